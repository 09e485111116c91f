//! Network block devices (NBD): a device behind a server, and a server for a device.
//!
//! # Place
//!
//! Below: `extant-block` has the trait. Above: the command, and any program that opens a file
//! system behind an NBD server or shows a device to others. This crate knows neither formats nor
//! ext4.
//!
//! # Shape
//!
//! ```text
//! Address      nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, and nbds for TLS
//! NbdDevice    the device: connections, unflushed writes, recovery of lost connections
//!  +- Unflushed what a server has to be told again
//!  +- Pipe     one connection: requests go out, replies come in any order
//!     +- tls   the connection in records, and whose certificates are believed (feature `tls`)
//! serve        a device for clients on a listening socket
//! wire         the protocol's numbers
//! ```
//!
//! # Invariants
//!
//! - N1. Writes that were acknowledged and not yet flushed are kept, at most [`UNFLUSHED_MAX`]
//!   bytes of them. Over each new connection they are repeated before anything else, the newest bytes of
//!   each place and nothing older: so a flush is true even if the server lost them, and no reader
//!   sees anything old.
//! - N2. No answer of a server decides how much memory is allocated: a reply has the length of its
//!   request, or the connection is given up.
//! - N3. A client waits for one reply, as a whole, no longer than its time limit and a second for each 256 KiB that come,
//!   and tries a bounded number of times.
//! - N4. A payload is sent only while no reads are under way on a connection, so that the two sides
//!   never wait for each other to read.
//! - N5. A change is sent again only when the server has ended the connection on which it was under
//!   way. While it has not, nothing is changed: so no change overtakes a later one.
//! - N6. Who asks for TLS gets it or an error: no option but the one that starts TLS, no name of an export and no
//!   data goes over such a connection in plain text, and nothing that came before TLS counts after it.
//! - N7. A flush that fails leaves in doubt what the server acknowledged before it, for whoever wrote it: systems drop
//!   such bytes, and succeed the next time. So a client tells all of it again before its next flush, and a server
//!   that was asked for one neither flushes nor changes anything any more.
//!
//! Source: the NBD protocol document, "fixed newstyle negotiation", "structured replies" and "TLS support"; for
//! addresses, the document on URIs beside it.
#![forbid(unsafe_code)]

mod address;
mod ahead;
mod client;
mod error;
mod pipe;
mod queue;
mod ranges;
mod serve;
mod socket;
mod stream;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod unflushed;
mod wire;

pub use address::Address;
pub use client::{NbdDevice, Settings, UNFLUSHED_MAX};
pub use error::NbdError;
pub use serve::{Listening, serve, serve_tls};
pub use tls::ServerTls;
