//! Why there is no device in a cluster.

use std::io;

/// Why an image could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RbdError {
    /// The address makes no sense.
    #[error("{address}: {what}")]
    Address {
        /// The address, without a password.
        address: String,
        /// The rule that it breaks.
        what: String,
    },
    /// A library of Ceph is not there, or lacks a function.
    #[error("{library} cannot be used: {what}; Debian and Ubuntu have it in the package {package}")]
    Library {
        /// Name of the library.
        library: &'static str,
        /// Message of the system, or the function that is missing.
        what: String,
        /// The package that has the library.
        package: &'static str,
    },
    /// This program is linked statically and cannot load libraries.
    #[error(
        "{address}: this program is linked statically, and librbd has to be loaded: a program that is built for this system can"
    )]
    Static {
        /// The address.
        address: String,
    },
    /// Ceph refuses an option, or there is no configuration.
    #[error("{address}: {what}")]
    Option {
        /// The address.
        address: String,
        /// The option or the file, and why not.
        what: String,
        /// Error of the library.
        #[source]
        source: io::Error,
    },
    /// There is no connection to the cluster.
    #[error("{address}: cannot connect to the cluster as client.{id}")]
    Connect {
        /// The address.
        address: String,
        /// The user.
        id: String,
        /// Error of the library.
        #[source]
        source: io::Error,
    },
    /// There is no such pool, image or snapshot.
    #[error("{address}: there is no {what} {name:?}")]
    NotFound {
        /// The address.
        address: String,
        /// `pool`, `image` or `snapshot`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Another client has the exclusive lock, and is alive.
    #[error("{address} is in use: {owner} has its exclusive lock")]
    Locked {
        /// The address.
        address: String,
        /// The client, and where it is.
        owner: String,
    },
    /// A snapshot was to be written.
    #[error("{address}: a snapshot is only read")]
    Snapshot {
        /// The address.
        address: String,
    },
    /// The cluster lets the user not do what writing needs.
    #[error("{address}: client.{id} may not write to it: {action} failed")]
    MayNotWrite {
        /// The address.
        address: String,
        /// The user.
        id: String,
        /// The step.
        action: &'static str,
        /// Error of the library.
        #[source]
        source: io::Error,
    },
    /// The library reports an error.
    #[error("{address}: {action} failed")]
    Ceph {
        /// The address.
        address: String,
        /// The step.
        action: &'static str,
        /// Error of the library.
        #[source]
        source: io::Error,
    },
}
