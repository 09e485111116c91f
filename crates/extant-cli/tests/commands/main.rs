//! The command's other words, each as a user calls it.
//!
//! One program for all of them: each has to be linked with everything it tests.

#[path = "../../../extant-nbd/tests/tls/pki.rs"]
#[allow(dead_code, reason = "shared with the tests of the protocol")]
mod pki;
#[path = "../support/mod.rs"]
mod support;

mod check;
mod command;
mod defrag;
mod devices;
mod edit;
mod encrypted;
mod frag;
mod fs_verity;
mod hostile;
mod interrupt;
mod links;
mod metadata;
mod mixed_up;
mod nbd;
mod options;
mod output;
mod qcow2;
#[cfg(feature = "rbd")]
mod rbd;
mod repair;
mod resize;
mod salvage;
mod web;
