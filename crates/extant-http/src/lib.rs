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
//! Address      http://HOST/PATH, https://HOST/PATH
//! HttpDevice   the device: pages in memory, reads ahead, several requests at once
//!  +- Pages    what was fetched lately, and what other threads are fetching
//!  +- Remote   one request for one range, repeated where that can help
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
//!
//! Source: RFC 9110, sections 13 (conditional requests) and 14 (ranges).
#![forbid(unsafe_code)]

mod address;
mod device;
mod error;
mod pages;
mod remote;
mod settings;
#[cfg(feature = "tls")]
mod trust;

pub use address::Address;
pub use device::{HttpDevice, HttpStats};
pub use error::HttpError;
pub use remote::{agent_config, certificate_doubt};
pub use settings::Settings;
