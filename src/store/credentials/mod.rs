//! Credentials that expire: asked for when they are needed, kept until shortly before their end, asked for again where a store refuses them.
//!
//! ```text
//!   CredentialProvider (of the user, or a profile of AWS)  ─►  CredentialSource (keeps, renews)  ─►  Renewing (a store, tries once more)
//! ```

mod adapters;
mod renewing;
mod source;
mod values;

pub(super) use adapters::open;
pub use source::CredentialSource;
pub(super) use source::{Given, store_error};
pub use values::Credentials;
