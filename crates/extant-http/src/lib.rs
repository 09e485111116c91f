//! Images behind HTTP servers: a device that reads in place, by ranges.
//!
//! # Place
//!
//! Below: `extant-block` has the trait; the crate `ureq` speaks HTTP. Above: the command, and any
//! program that opens a file system behind a URL. This crate knows neither formats nor ext4.
//!
//! # Shape
//!
//! ```text
//! Address      http://HOST/PATH, https://HOST/PATH; ObjectAddress, s3://BUCKET/KEY
//! HttpDevice   the device: pages in memory, reads ahead, several requests at once
//!  +- Pages    what was fetched lately, and what other threads are fetching
//!  +- DiskPages  what was fetched by any process, on a disk, in a `Shelf`
//!  +- Remote   one request for one range, repeated where that can help
//!      +- Source   the URL of what is read; that of an object (`store`) is signed anew for each request
//! ```
//!
//! # Invariants
//!
//! - W1. All bytes come from one version of the file. Its length, and its entity tag and time of
//!   modification where the server tells them, are compared with each answer; another version is
//!   an error, and never mixed with the first.
//! - W2. No answer decides how much memory is allocated: a body is read up to the length of its
//!   request.
//! - W3. A request is repeated a bounded number of times, and each has a time limit.
//! - W4. A page is fetched by one thread at a time; others wait for it, and try themselves if it
//!   fails.
//! - W5. A page from the disk counts for the version of the file that it was fetched from, and only when its digest is
//!   right. What is wrong with the cache while it is used costs requests, and no errors.
//!
//! Source: RFC 9110, sections 13 (conditional requests) and 14 (ranges).
#![forbid(unsafe_code)]

mod address;
mod device;
mod disk;
mod error;
mod pages;
mod remote;
mod settings;
mod shelf;
mod source;
#[cfg(feature = "s3")]
mod store;
#[cfg(feature = "tls")]
mod trust;

pub use address::Address;
pub use device::{HttpDevice, HttpStats};
pub use disk::DiskCache;
pub use error::HttpError;
pub use remote::{agent_config, certificate_doubt};
pub use settings::Settings;
pub use shelf::Shelf;
#[cfg(feature = "s3")]
pub use store::{Account, ObjectAddress};
