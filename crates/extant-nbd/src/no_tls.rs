//! In place of TLS, in builds without the feature `tls`: nothing of it can be made.

use std::io;
use std::path::Path;

use crate::address::{At, Secret};
use crate::error::NbdError;
use crate::stream::Stream;

const NONE: &str = "this build has no TLS (the feature \"tls\")";

pub(crate) enum Session {}

impl Session {
    pub(crate) fn read(&mut self, _: &mut Stream, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn peek(&mut self, _: &mut Stream) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn send(&mut self, _: &mut Stream, _: &[u8], _: &[u8]) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn end(&mut self, _: &mut Stream) {
        match *self {}
    }
}

pub(crate) struct Connector {
    pub(crate) has_certificate: bool,
    never: Session,
}

impl Connector {
    pub(crate) fn new(_: &At, _: &Secret) -> Result<Connector, String> {
        Err(NONE.to_owned())
    }

    pub(crate) fn start(&self, _: &mut Stream) -> io::Result<Session> {
        match self.never {}
    }
}

/// The certificate of a server; this build has none.
#[derive(Debug)]
pub enum ServerTls {}

impl ServerTls {
    /// Fails.
    ///
    /// # Errors
    ///
    /// [`NbdError::Certificates`], always.
    pub fn open(_: &Path, _: bool) -> Result<ServerTls, NbdError> {
        Err(NbdError::Certificates { what: NONE.to_owned() })
    }

    pub(crate) fn start(&self, _: &mut Stream) -> io::Result<Session> {
        match *self {}
    }
}

pub(crate) fn explain(_: &io::Error) -> Option<String> {
    None
}
