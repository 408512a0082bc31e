//! The client: batches of a server, in the same order and with the same bytes as from a local loader.

mod address;
mod connection;
mod gang;
mod local;
mod pending;
mod receive;
mod remote;
mod served;

pub use address::{Address, PORT};
pub use connection::{Dial, Tcp};
pub use gang::{Gang, Joining};
pub(crate) use local::Local;
pub use pending::Pending;
pub(crate) use receive::StreamInfo;
pub(crate) use remote::RemoteSource;
pub(crate) use served::{Served, served};
