//! Objects in stores that speak the protocol of S3.
//!
//! # Place
//!
//! Below: the crate `rusty-s3` signs addresses. Above: `remote`, which asks for ranges of what a signed address names.
//!
//! # Invariants
//!
//! - O1. Secret keys leave this module as signatures only. Neither they nor signed addresses are shown.
//! - O2. A signed request goes to the endpoint of the account, and an answer never decides which host that is: of an
//!   answer only the name of a region is taken, of letters, digits and hyphens.
mod account;
mod address;
mod profile;
mod refusal;
mod signer;

pub use account::Account;
pub use address::ObjectAddress;
pub(crate) use refusal::Refusal;
pub(crate) use signer::Signer;
