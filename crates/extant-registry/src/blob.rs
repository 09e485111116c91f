//! A blob that comes from a registry.

use std::io::{self, Read};

use extant_oci::{Digest, Kind, OciError, Source};
use ureq::http::header;
use ureq::{Body, http::Response};

use crate::ask::Ask;
use crate::cache::{Cache, Coming};
use crate::session::{Failed, Session, Tries, text};

/// Bytes after which failed attempts are forgotten.
const PROGRESS: u64 = 1 << 20;

/// Bytes of a blob, from front to back. A connection that breaks off is made again, and goes on where it was.
pub(crate) struct Blob<'s> {
    session: &'s Session,
    digest: Digest,
    size: u64,
    at: u64,
    body: Option<Box<dyn Read + Send>>,
    tries: Tries,
    /// Where the first failure that counts was.
    failed_at: u64,
    coming: Option<Coming<'s>>,
}

impl<'s> Blob<'s> {
    /// Asks for a blob; the registry says its size.
    pub(crate) fn open(
        session: &'s Session,
        cache: Option<&'s Cache>,
        digest: Digest,
    ) -> Result<Blob<'s>, OciError> {
        let path = format!("blobs/{digest}");
        let ask = Ask { path: &path, from: 0, what: "blob" };
        let response = session.persist("blob", || session.ask(ask))?;
        let Some(size) = response.body().content_length() else {
            let what = format!("{} does not say how long {digest} is", session.base.authority);
            return Err(session.refuse(Kind::Unsupported, what));
        };
        if response.status() != 200 {
            let what = format!("{} gives a part of {digest}", session.base.authority);
            return Err(session.refuse(Kind::Damaged, what));
        }
        Ok(Blob {
            session,
            size,
            at: 0,
            body: Some(Box::new(response.into_body().into_reader())),
            tries: Tries::new(session.settings.attempts),
            failed_at: 0,
            coming: cache.and_then(|cache| cache.begin(size)),
            digest,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Asks for what is missing.
    fn resume(&mut self) -> Result<(), Failed> {
        let path = format!("blobs/{}", self.digest);
        let response = self.session.ask(Ask { path: &path, from: self.at, what: "blob" })?;
        let is_part = response.status() == 206;
        if is_part && !self.continues(&response) {
            let what = format!(
                "{} gives another part of {} than the one from byte {} on",
                self.session.base.authority, self.digest, self.at
            );
            return Err(Failed::ForGood(self.session.refuse(Kind::Damaged, what)));
        }
        let mut body = response.into_body().into_reader();
        if !is_part {
            // It gives the whole again: what is there already has its digest, which tells if it is another.
            let skipped = io::copy(&mut (&mut body).take(self.at), &mut io::sink());
            let skipped = skipped.map_err(|error| Failed::Now(error, None))?;
            if skipped < self.at {
                return Err(Failed::Now(io::ErrorKind::UnexpectedEof.into(), None));
            }
        }
        self.body = Some(Box::new(body));
        Ok(())
    }

    /// Returns whether an answer begins where the last one broke off.
    fn continues(&self, response: &Response<Body>) -> bool {
        let stated = text(response, header::CONTENT_RANGE).unwrap_or_default();
        let first = stated.trim().strip_prefix("bytes ").and_then(|rest| rest.split('-').next());
        first.and_then(|first| first.trim().parse().ok()) == Some(self.at)
    }

    fn failed(
        &mut self,
        cause: io::Error,
        asked: Option<std::time::Duration>,
    ) -> Result<(), OciError> {
        self.body = None;
        if self.at - self.failed_at >= PROGRESS {
            self.tries = Tries::new(self.session.settings.attempts);
            self.failed_at = self.at;
        }
        let given = self.tries.failed(asked, cause);
        let what = format!("more than {} of {} bytes of {}", self.at, self.size, self.digest);
        given.map_err(|cause| self.session.given_up(&what, &self.tries, cause))
    }
}

impl Read for Blob<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let count = left.min(buf.len());
        let Some(buf) = buf.get_mut(..count).filter(|buf| !buf.is_empty()) else { return Ok(0) };
        loop {
            let Some(body) = &mut self.body else {
                match self.resume() {
                    Ok(()) => {}
                    Err(Failed::ForGood(error)) => return Err(io::Error::other(error)),
                    Err(Failed::Now(cause, asked)) => {
                        self.failed(cause, asked).map_err(io::Error::other)?;
                    }
                }
                continue;
            };
            let cause = match body.read(buf) {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(count) => {
                    self.at += count as u64;
                    let bytes = buf.get(..count).unwrap_or_default();
                    if self.coming.as_mut().is_some_and(|coming| coming.write(bytes).is_err()) {
                        self.coming = None;
                    }
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.failed(cause, None).map_err(io::Error::other)?;
        }
    }
}

impl Source for Blob<'_> {
    fn proven(&mut self) {
        if let Some(coming) = self.coming.take() {
            coming.keep(&self.digest, self.size);
        }
    }
}
