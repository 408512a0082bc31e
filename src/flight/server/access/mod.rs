//! Authentication and authorization, and their records: tokens, certificates, keys of tickets, names of tenants, the audit log.

pub(crate) mod audit;
pub mod auth;
pub(crate) mod auth_layer;
pub mod certificate;
pub mod key;
pub(crate) mod refusals;
pub mod secret;
pub mod space;
pub mod tls;
