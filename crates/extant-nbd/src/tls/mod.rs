//! TLS: whose certificates are believed, and the bytes of a connection in records.
//!
//! The names of the files in a directory of certificates are those that libnbd, nbdkit and qemu use.

mod client;
mod files;
mod server;
mod session;

pub(crate) use client::Connector;
pub use server::ServerTls;
pub(crate) use session::{Session, explain};
