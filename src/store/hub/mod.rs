//! Datasets of the Hugging Face Hub, `hf://datasets/owner/name@revision/path`, as a store that reads one commit.
//!
//! ```text
//!   revision ─asked once─► commit ─tree─► names, sizes, content hashes
//!                          commit ─resolve, once per file─► a signed address on another host ─ranges─► bytes
//! ```
//!
//! The Hub counts each request for where a file lies, and allows a few thousand in five minutes; it does not count ranges of the signed
//! address. So that is asked for once per file, and again when it expires or is refused. The token is sent to the Hub alone.

mod client;
mod repo;
mod settings;
mod signed;
mod store;

pub(super) use repo::{Repo, SCHEME};
pub(super) use settings::{KEYS, Settings};
pub(super) use store::Hub;
