//! Container images in registries.
//!
//! # Place
//!
//! Below: `extant-oci`, whose [`Store`](extant_oci::Store) a registry is, and `extant-http`, whose connections it uses.
//! Above: the builder. Nothing here knows layers, archives or file systems.
//!
//! # Shape
//!
//! ```text
//! RegistryStore    the store: the image's index, manifests and blobs
//!  +- Session      one answer for one path: redirects, repetition, log-in
//!  |   +- login    what a server wants, and the token for it
//!  |   +- credentials   user and password in the files of Docker and Podman
//!  +- Blob         a stream that goes on where it broke off
//!  +- Cache        blobs by digest, in a directory that processes share
//! ```
//!
//! # Invariants
//!
//! - R1. User, password and token of a registry go to its own server, and user and password to the server that it
//!   names for tokens; never to where an answer redirects. Over plain HTTP they go to this host alone, unless
//!   [`Settings::plain_http`] is set.
//! - R2. No answer decides how much memory is allocated or how often something is asked: documents, tokens, redirects,
//!   repetitions and waits have bounds.
//! - R3. A blob of the cache is believed when its digest was computed anew, and a blob gets into the cache when its
//!   reader has proven it. Files of the cache appear whole or not at all.
//!
//! Sources: OCI Distribution Specification 1.1; Docker Registry token authentication; RFC 9110, sections 11
//! (authentication), 14 (ranges) and 15.4 (redirection); containers-auth.json(5).
#![forbid(unsafe_code)]

mod ask;
mod blob;
mod cache;
mod credentials;
mod login;
mod session;
mod settings;
mod store;
mod url;

pub use settings::Settings;
pub use store::RegistryStore;
