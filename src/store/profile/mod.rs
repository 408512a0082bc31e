//! Profiles of AWS: `~/.aws/config` and `~/.aws/credentials`, of which object_store knows nothing; and the service beside a container.
//!
//! ```text
//!   files ─ini─► sections ─profiles─► Means: keys, a process, SSO, a role ─provider─► credentials, renewed
//! ```
//!
//! A reader of our own: the SDK's would bring some fifty crates, and boto3 exists in Python alone, where the command line and the server
//! have none.

mod choose;
mod container;
mod ini;
mod process;
mod profiles;
mod provider;
mod requests;
mod times;

pub(super) use choose::{Chosen, choose, endpoint};
pub(super) use profiles::is_region;
