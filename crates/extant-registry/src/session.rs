//! The conversation with one registry: what it is about, repetition, and what servers refuse.

use std::io;
use std::time::Duration;

use extant_oci::{Kind, OciError, Reference};
use extant_sync::{Clock, Mutex, Rank, SystemClock};
use ureq::http::{Response, header};
use ureq::{Agent, Body};

use crate::settings::Settings;
use crate::url::Url;

/// Wait before the first repetition; each further one waits twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Longest wait that a server may ask for.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Longest time that one answer may take, however it drips. What is missing then is asked for again.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// What is said when the certificate of a server is not believed.
const TRUST: &str =
    "SSL_CERT_FILE=FILE names the certificates to believe (PEM), if the server is yours";

/// Why an attempt failed.
pub(crate) enum Failed {
    /// Another attempt may succeed, after a time that the server asks for.
    Now(io::Error, Option<Duration>),
    /// It will not.
    ForGood(OciError),
}

/// Conversation with one registry about one repository.
pub(crate) struct Session {
    pub(crate) agent: Agent,
    pub(crate) reference: Reference,
    pub(crate) place: String,
    pub(crate) base: Url,
    pub(crate) settings: Settings,
    /// Value of the header `Authorization`, once a server has asked for it.
    pub(crate) authorization: Mutex<Option<String>>,
}

impl Session {
    pub(crate) fn new(reference: &Reference, settings: Settings) -> Result<Session, OciError> {
        let place = format!("docker://{reference}");
        let https = !settings.plain_http && !reference.is_loopback();
        if https && !cfg!(feature = "tls") {
            let mut error = refusal(
                Kind::Unsupported,
                &place,
                "this program was built without https (the feature \"tls\")".into(),
            );
            error.advice = Some(format!("skopeo copy {place} oci:DIR; then --from oci:DIR"));
            return Err(error);
        }
        let agent = extant_http::agent_config()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections_per_host(8)
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_per_read(Some(settings.read_timeout))
            .timeout_recv_response(Some(settings.read_timeout))
            .timeout_recv_body(Some(ANSWER_MAX))
            .build()
            .new_agent();
        let base = Url::new(https, reference.server(), format!("/v2/{}/", reference.name()));
        let authorization = Mutex::new(Rank::Leaf, None);
        Ok(Session { agent, reference: reference.clone(), place, base, settings, authorization })
    }

    pub(crate) fn refuse(&self, kind: Kind, what: String) -> OciError {
        refusal(kind, &self.place, what)
    }

    /// Tries until it succeeds, or cannot, or has been tried often enough.
    pub(crate) fn persist<T>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> Result<T, Failed>,
    ) -> Result<T, OciError> {
        let mut tries = Tries::new(self.settings.attempts);
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Failed::ForGood(error)) => return Err(error),
                Err(Failed::Now(cause, asked)) => {
                    tries
                        .failed(asked, cause)
                        .map_err(|cause| self.given_up(what, &tries, cause))?;
                }
            }
        }
    }

    pub(crate) fn given_up(&self, what: &str, tries: &Tries, cause: io::Error) -> OciError {
        let (server, count) = (&self.base.authority, tries.count);
        let text = format!("{server} gives no {what} in {count} attempts");
        OciError { cause: Some(cause), ..self.refuse(Kind::Io, text) }
    }

    /// What is said when a registry wants another user.
    pub(crate) fn denied(&self, what: &str, status: u16) -> OciError {
        let text = format!("{} {what} (it answers {status})", self.base.authority);
        let cause = Some(io::ErrorKind::PermissionDenied.into());
        let registry = self.reference.registry();
        let advice = Some(format!(
            "there may be no such image, or it is for others: podman login {registry}, or docker login {registry}, keeps a user"
        ));
        OciError { cause, advice, ..self.refuse(Kind::Io, text) }
    }

    pub(crate) fn failed(&self, error: ureq::Error) -> Failed {
        match error {
            ureq::Error::Io(error) => match extant_http::certificate_doubt(&error) {
                Some(what) => {
                    let server = &self.base.authority;
                    let what = format!("the certificate of {server} is not believed: {what}");
                    let advice = Some(TRUST.to_owned());
                    Failed::ForGood(OciError { advice, ..self.refuse(Kind::Io, what) })
                }
                None => Failed::Now(error, None),
            },
            ureq::Error::Timeout(_) => Failed::Now(io::ErrorKind::TimedOut.into(), None),
            error @ ureq::Error::ConnectionFailed => Failed::Now(io::Error::other(error), None),
            ureq::Error::HostNotFound => {
                let what = format!("no host \"{}\" is known", self.base.authority);
                let cause = Some(io::ErrorKind::NotFound.into());
                Failed::ForGood(OciError { cause, ..self.refuse(Kind::Io, what) })
            }
            error => {
                let what = format!("{} does not speak HTTP as it should", self.base.authority);
                let cause = Some(io::Error::other(error));
                Failed::ForGood(OciError { cause, ..self.refuse(Kind::Io, what) })
            }
        }
    }
}

/// Returns the failure that an answer is, if another attempt can help.
pub(crate) fn passing(response: &Response<Body>) -> Option<Failed> {
    let status = response.status().as_u16();
    if !matches!(status, 408 | 425 | 429 | 500..=599) {
        return None;
    }
    let after = text(response, header::RETRY_AFTER);
    let after = after.and_then(|after| after.trim().parse().ok());
    let error = io::Error::other(format!("the server answers {status}"));
    Some(Failed::Now(error, after.map(Duration::from_secs)))
}

/// Counts attempts, and waits between them.
pub(crate) struct Tries {
    pub(crate) count: u32,
    most: u32,
    wait: Duration,
}

impl Tries {
    pub(crate) fn new(most: u32) -> Tries {
        Tries { count: 0, most: most.max(1), wait: FIRST_WAIT }
    }

    /// Waits for the next attempt.
    ///
    /// # Errors
    ///
    /// The cause, if that was the last one.
    pub(crate) fn failed(
        &mut self,
        asked: Option<Duration>,
        cause: io::Error,
    ) -> Result<(), io::Error> {
        self.count += 1;
        if self.count >= self.most {
            return Err(cause);
        }
        SystemClock.sleep(asked.unwrap_or(self.wait).min(WAIT_MAX));
        self.wait = (2 * self.wait).min(WAIT_MAX);
        Ok(())
    }
}

pub(crate) fn text(response: &Response<Body>, name: header::HeaderName) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

fn refusal(kind: Kind, place: &str, what: String) -> OciError {
    OciError { kind, place: place.to_owned(), what, advice: None, cause: None }
}
