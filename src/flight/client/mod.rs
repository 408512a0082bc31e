//! The client: batches of a server, in the same order and with the same bytes as from a local loader.

mod address;
mod connection;
mod gang;
mod local;
mod pending;
mod receive;
mod remote;
#[cfg(feature = "cli")]
mod served;
#[cfg(feature = "cli")]
mod snapshot;

pub use address::{Address, PORT};
pub use connection::{Dial, Tcp};
pub use gang::{Gang, Joining};
pub(crate) use local::Local;
pub use pending::Pending;
pub(crate) use receive::StreamInfo;
pub(crate) use remote::RemoteSource;
#[cfg(feature = "cli")]
pub(crate) use served::{Served, served};
#[cfg(feature = "cli")]
pub(crate) use snapshot::Viewed;
