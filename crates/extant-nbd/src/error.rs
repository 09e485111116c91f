//! Why there is no device behind a server.

use std::io;

/// Why a server could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address makes no sense.
    #[error("{address}: {what}")]
    Address {
        /// The address.
        address: String,
        /// The rule that it breaks.
        what: &'static str,
    },
    /// There is no connection.
    #[error("{address}: cannot connect")]
    Connect {
        /// The address.
        address: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The server does not speak as the protocol says, or went away.
    #[error("{address}: {what}")]
    Protocol {
        /// The address.
        address: String,
        /// The violation of the protocol.
        what: String,
    },
    /// The server has no such export, or does not give it.
    #[error("{address}: the server refuses the export {export:?}: {what}")]
    Refused {
        /// The address.
        address: String,
        /// The export that was asked for.
        export: String,
        /// Message of the server.
        what: String,
    },
    /// The export can only be read, and was to be written.
    #[error("{address}: the export is read-only")]
    ReadOnly {
        /// The address.
        address: String,
    },
    /// The server cannot flush, and the export was to be written.
    #[error(
        "{address}: the server cannot flush, so nothing written there is ever known to be durable: have it offer flushes, or write to an overlay"
    )]
    NoFlush {
        /// The address.
        address: String,
    },
}
