//! What is read: a file behind a web server, or an object in a store.

use crate::address::Address;
#[cfg(feature = "s3")]
use crate::store::Signer;

/// Redirects that a web server may ask for.
const REDIRECTS: u32 = 5;

/// What is read, and how its URL is made.
pub(crate) enum Source {
    Web(Address),
    /// An object in a store, whose URL is signed anew for each request.
    #[cfg(feature = "s3")]
    Object(Box<Signer>),
}

impl Source {
    /// Returns its name, without secrets.
    pub(crate) fn shown(&self) -> String {
        match self {
            Source::Web(address) => address.to_string(),
            #[cfg(feature = "s3")]
            Source::Object(signer) => signer.address().to_string(),
        }
    }

    /// Returns the URL for a request at `now`, in seconds since 1970. It may hold secrets.
    pub(crate) fn url(&self, now: i64) -> String {
        let _ = now;
        match self {
            Source::Web(address) => address.url().to_owned(),
            #[cfg(feature = "s3")]
            Source::Object(signer) => signer.signed(now),
        }
    }

    /// Returns what tells it from everything else. It may hold secrets.
    pub(crate) fn identity(&self) -> String {
        match self {
            Source::Web(address) => address.url().to_owned(),
            #[cfg(feature = "s3")]
            Source::Object(signer) => format!("{} {}", signer.address(), signer.url()),
        }
    }

    /// Returns how many redirects are followed. None of a store: a signature is for one host.
    pub(crate) fn redirects(&self) -> u32 {
        match self {
            Source::Web(_) => REDIRECTS,
            #[cfg(feature = "s3")]
            Source::Object(_) => 0,
        }
    }
}
