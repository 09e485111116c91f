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
    /// The certificates of this side cannot be used.
    #[error("TLS: {what}")]
    Certificates {
        /// The file, and what is wrong with it.
        what: String,
    },
    /// TLS was asked for, and there is none with this server. Nothing was sent in plain text instead.
    #[error("{address}: no TLS with the server: {what}")]
    Tls {
        /// The address.
        address: String,
        /// The reason.
        what: String,
    },
    /// The server gives nothing without TLS.
    #[error("{address}: the server wants TLS, which addresses ask for that begin with {scheme}")]
    NeedsTls {
        /// The address.
        address: String,
        /// The beginning of the address that asks for TLS.
        scheme: &'static str,
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
