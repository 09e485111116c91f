//! One request for one range, repeated where that can help.

use std::io::{self, Read};
use std::ops::Range;
use std::time::Duration;

use extant_sync::{Clock, SystemClock};
use sha2::{Digest, Sha256};
use ureq::config::ConfigBuilder;
use ureq::http::{Response, header};
use ureq::typestate::AgentScope;
use ureq::{Agent, Body};

use crate::error::HttpError;
use crate::settings::Settings;
use crate::source::Source;
#[cfg(feature = "s3")]
use crate::store::{Refusal, Signer};

/// Wait before the first repetition; each further one waits twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Longest wait that a server may ask for.
const WAIT_MOST: Duration = Duration::from_secs(30);

/// Connections without a request that are kept at most.
const IDLE_MOST: usize = 32;

/// Length in bytes of the largest file that a system can have. A server that states more is
/// mistaken or lies, and sums of offsets behind it would overflow.
const LENGTH_MOST: u64 = i64::MAX as u64;

/// Configuration of connections: the name of this program, answers as they are stored, errors as answers, and, with the
/// feature `tls`, the certificates that the system trusts.
pub fn agent_config() -> ConfigBuilder<AgentScope> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("extant/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity");
    #[cfg(feature = "tls")]
    let config = config
        .tls_config(ureq::tls::TlsConfig::builder().root_certs(crate::trust::roots()).build());
    config
}

/// Returns what is wrong with the certificate of a server, if `error` is that it is not believed.
/// Another attempt cannot help then.
pub fn certificate_doubt(error: &io::Error) -> Option<String> {
    #[cfg(feature = "tls")]
    return crate::trust::doubt(error);
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        None
    }
}

/// What tells versions of a file apart (W1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Version {
    pub(crate) len: u64,
    tag: Option<String>,
    modified: Option<String>,
}

/// A file behind a server.
pub(crate) struct Remote {
    agent: Agent,
    source: Source,
    attempts: u32,
}

/// Why an attempt failed.
enum Failed {
    /// Another attempt may succeed, after a time that the server asks for.
    Now(io::Error, Option<Duration>),
    /// It will not.
    ForGood(HttpError),
}

impl Remote {
    pub(crate) fn new(source: Source, settings: &Settings) -> Remote {
        let config = agent_config()
            .max_redirects(source.redirects())
            .max_redirects_will_error(source.redirects() > 0)
            // As many as there are threads that read at the same time: each new one costs round trips.
            .max_idle_connections(IDLE_MOST)
            .max_idle_connections_per_host(IDLE_MOST)
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_global(Some(settings.timeout));
        let agent = config.build().new_agent();
        Remote { agent, source, attempts: settings.attempts.max(1) }
    }

    /// Fetches the bytes of `range`, all of them, of the version that is known. Of a file that is
    /// not known yet, it fetches those that there are. They come in `room`, whatever is in it, if that is large enough.
    pub(crate) fn fetch(
        &self,
        range: Range<u64>,
        known: Option<&Version>,
        mut room: Vec<u8>,
    ) -> Result<(Vec<u8>, Version), HttpError> {
        let mut wait = FIRST_WAIT;
        let mut attempt = 1;
        loop {
            match self.attempt(&range, known, &mut room) {
                Ok(version) => return Ok((room, version)),
                Err(Failed::ForGood(error)) => return Err(error),
                Err(Failed::Now(source, _)) if attempt >= self.attempts => {
                    let (address, attempts) = (self.source.shown(), attempt);
                    return Err(HttpError::Connect { address, attempts, source });
                }
                Err(Failed::Now(_, asked)) => {
                    SystemClock.sleep(asked.unwrap_or(wait).min(WAIT_MOST));
                    wait = (2 * wait).min(WAIT_MOST);
                    attempt += 1;
                }
            }
        }
    }

    fn attempt(
        &self,
        range: &Range<u64>,
        known: Option<&Version>,
        bytes: &mut Vec<u8>,
    ) -> Result<Version, Failed> {
        let last = range.end.saturating_sub(1);
        let mut request = self
            .agent
            .get(self.source.url(SystemClock.now().0))
            .header(header::RANGE, format!("bytes={}-{last}", range.start));
        if let Some(tag) = known.and_then(|known| known.tag.as_ref())
            && !tag.starts_with("W/")
        {
            request = request.header(header::IF_MATCH, tag);
        }
        let response = request.call().map_err(|error| self.failed(error))?;
        let response = self.check_status(response, known)?;
        let (start, end, version) = self.version_of(&response)?;
        if let Some(known) = known {
            self.compare(known, &version)?;
        }
        let wanted_end = range.end.min(version.len);
        if start != range.start || end != wanted_end {
            let what = format!("bytes {start}..{end}, asked for {}..{wanted_end}", range.start);
            return Err(Failed::ForGood(self.protocol(what)));
        }
        // At most what was asked for (W2).
        let wanted = usize::try_from(end - start).unwrap_or(usize::MAX);
        bytes.resize(wanted, 0);
        let mut body = response.into_body().into_reader().take(end - start);
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match body.read(rest) {
                Ok(0) => {
                    let message = format!("the answer ended after {done} of {wanted} bytes");
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, message);
                    return Err(Failed::Now(error, None));
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failed::Now(error, None)),
            }
        }
        Ok(version)
    }

    fn failed(&self, error: ureq::Error) -> Failed {
        match error {
            ureq::Error::Io(error) => match certificate_doubt(&error) {
                Some(what) => {
                    let address = self.source.shown();
                    Failed::ForGood(HttpError::Untrusted { address, what })
                }
                None => Failed::Now(error, None),
            },
            ureq::Error::Timeout(_) => Failed::Now(io::ErrorKind::TimedOut.into(), None),
            error @ ureq::Error::ConnectionFailed => Failed::Now(io::Error::other(error), None),
            // Names that are unknown for a moment are seldom, and misspelt ones are not.
            ureq::Error::HostNotFound => Failed::ForGood(HttpError::Connect {
                address: self.source.shown(),
                attempts: 1,
                source: io::Error::new(io::ErrorKind::NotFound, "no host of this name is known"),
            }),
            error => Failed::ForGood(self.protocol(error.to_string())),
        }
    }

    fn protocol(&self, what: String) -> HttpError {
        HttpError::Protocol { address: self.source.shown(), what }
    }

    fn changed(&self, what: String) -> Failed {
        Failed::ForGood(HttpError::Changed { address: self.source.shown(), what })
    }

    /// Returns what tells the version `known` from others of the same file, for people and programs: the length, and
    /// the tag or the time of the last change if the server names one. At most 160 bytes.
    pub(crate) fn version_text(&self, known: &Version) -> String {
        let strong = known.tag.as_ref().filter(|tag| !tag.starts_with("W/"));
        let (kind, mark) = match (strong, &known.tag, &known.modified) {
            (Some(tag), _, _) => ("tag", tag),
            (None, _, Some(time)) => ("changed", time),
            (None, Some(tag), None) => ("tag", tag),
            (None, None, None) => return format!("{} bytes", known.len),
        };
        match mark.len() {
            0..=120 => format!("{} bytes, {kind} {mark}", known.len),
            _ => {
                let digest = Sha256::digest(mark.as_bytes());
                let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{} bytes, {kind} sha256:{hex}", known.len)
            }
        }
    }

    /// Returns what identifies the version `known` of the file among all files; `None` if the server gives it no tag that
    /// stands for its bytes.
    pub(crate) fn identity(&self, known: &Version) -> Option<String> {
        let tag = known.tag.as_ref().filter(|tag| !tag.starts_with("W/"))?;
        Some(format!("{}\n{tag}\n{}", self.source.identity(), known.len))
    }

    /// Passes answers with a part of the file.
    fn check_status(
        &self,
        response: Response<Body>,
        known: Option<&Version>,
    ) -> Result<Response<Body>, Failed> {
        let status = response.status().as_u16();
        let address = self.source.shown();
        let what = match status {
            206 => return Ok(response),
            200 => {
                let what = "the server gives the whole file where a part is asked for";
                return Err(Failed::ForGood(HttpError::NoRanges { address, what }));
            }
            412 => return Err(self.changed("the server has another version".to_owned())),
            416 if known.is_some() => {
                return Err(self.changed("it is shorter than it was".to_owned()));
            }
            416 => "the file is empty",
            408 | 425 | 429 | 500..=599 => {
                let after = text(&response, header::RETRY_AFTER);
                let after = after.and_then(|after| after.trim().parse().ok());
                let error = io::Error::other(format!("the server answers {status}"));
                return Err(Failed::Now(error, after.map(Duration::from_secs)));
            }
            #[cfg(feature = "s3")]
            _ if let Source::Object(signer) = &self.source => {
                return Err(self.refused_by_store(signer, response));
            }
            401 => "user and password are needed, or others: http://USER:PASSWORD@HOST/",
            403 => "this is not allowed; a signed address may have expired",
            404 | 410 => "there is no such file",
            _ => "this is no file",
        };
        Err(Failed::ForGood(HttpError::Refused { address, status, what }))
    }

    /// Understands why a store gives nothing, and goes on in the region that it names.
    #[cfg(feature = "s3")]
    fn refused_by_store(&self, signer: &Signer, response: Response<Body>) -> Failed {
        let status = response.status().as_u16();
        let region = response.headers().get("x-amz-bucket-region");
        if let Some(region) = region.and_then(|region| region.to_str().ok())
            && matches!(status, 301 | 307 | 308 | 400 | 403)
            && signer.move_to(region)
        {
            let error = io::Error::other("the store moves the bucket from region to region");
            return Failed::Now(error, Some(Duration::ZERO));
        }
        let date = text(&response, header::DATE);
        let date = date.and_then(|date| jiff::fmt::rfc2822::parse(&date).ok());
        let skew =
            date.map(|date| date.timestamp().as_second().saturating_sub(SystemClock.now().0));
        let mut body = Vec::new();
        // What does not come says nothing.
        let _ = response.into_body().into_reader().take(Refusal::BODY_MOST).read_to_end(&mut body);
        let refusal = Refusal::read(status, &body, signer.signs(), skew);
        let (address, code) = (self.source.shown(), refusal.code);
        if refusal.passes {
            return Failed::Now(
                io::Error::other(format!("the store answers {status} {code}")),
                None,
            );
        }
        Failed::ForGood(HttpError::Store { address, status, code, what: refusal.what })
    }

    /// Returns which bytes an answer has, and of which version.
    fn version_of(&self, response: &Response<Body>) -> Result<(u64, u64, Version), Failed> {
        if let Some(coding) = text(response, header::CONTENT_ENCODING)
            && !coding.eq_ignore_ascii_case("identity")
        {
            let what = "the server compresses it on its way";
            let address = self.source.shown();
            return Err(Failed::ForGood(HttpError::NoRanges { address, what }));
        }
        let stated = text(response, header::CONTENT_RANGE);
        let parsed = stated.as_deref().and_then(content_range);
        let Some((start, end, len)) = parsed else {
            let what = match stated {
                Some(stated) => format!("Content-Range: {stated:.80}"),
                None => "it has no Content-Range".to_owned(),
            };
            return Err(Failed::ForGood(self.protocol(what)));
        };
        let tag = text(response, header::ETAG);
        let modified = text(response, header::LAST_MODIFIED);
        Ok((start, end, Version { len, tag, modified }))
    }

    fn compare(&self, known: &Version, now: &Version) -> Result<(), Failed> {
        if known.len != now.len {
            return Err(self.changed(format!("{} bytes, and {} before", now.len, known.len)));
        }
        let differ = |before: &Option<String>, now: &Option<String>| matches!((before, now), (Some(before), Some(now)) if before != now);
        if differ(&known.tag, &now.tag) || differ(&known.modified, &now.modified) {
            return Err(self.changed("its tag or its time is another".to_owned()));
        }
        // Another server behind the same address may have another file of this length.
        let is_marked = known.tag.is_some() || known.modified.is_some();
        let told =
            |before: &Option<String>, now: &Option<String>| before.is_some() && now.is_some();
        if is_marked && !told(&known.tag, &now.tag) && !told(&known.modified, &now.modified) {
            return Err(self.changed("neither its tag nor its time is told any more".to_owned()));
        }
        Ok(())
    }
}

fn text(response: &Response<Body>, name: header::HeaderName) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

/// Reads `bytes FIRST-LAST/LENGTH`: the range, and the length of the file. `None` if the length is
/// not told, or the numbers are impossible, or the length is over [`LENGTH_MOST`].
fn content_range(stated: &str) -> Option<(u64, u64, u64)> {
    let (unit, rest) = stated.trim().split_once(' ')?;
    let (range, len) = rest.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (first, last, len) = (number(first)?, number(last)?, number(len)?);
    let end = last.checked_add(1)?;
    (unit.eq_ignore_ascii_case("bytes") && first < end && end <= len && len <= LENGTH_MOST)
        .then_some((first, end, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_impossible_ones_are_none() {
        assert_eq!(content_range("bytes 0-99/100"), Some((0, 100, 100)));
        assert_eq!(
            content_range(" Bytes 5-5/9223372036854775807"),
            Some((5, 6, 9_223_372_036_854_775_807))
        );
        for wrong in [
            "",
            "bytes",
            "bytes 0-99",
            "bytes 0-99/*",
            "bytes */100",
            "bytes 5-4/100",
            "bytes 0-100/100",
            "bytes 0-18446744073709551615/18446744073709551615",
            "items 0-99/100",
            "bytes -1-9/100",
            "bytes 0-99/99999999999999999999",
            "bytes 0-99/9223372036854775808",
            "bytes 0-99/18446744073709551615",
        ] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
