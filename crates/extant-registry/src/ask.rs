//! One question to a registry and its answer: redirects, and logging in where that is asked for.

use extant_oci::Kind;
use ureq::Body;
use ureq::http::{Response, header};

use crate::login::{self, Challenge};
use crate::session::{Failed, Session, passing, text};
use crate::url::Url;

/// Most redirects on the way to one answer.
const REDIRECTS_MAX: usize = 5;

/// What manifests and indexes are called.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Path below that of the repository: `blobs/sha256:...`.
    pub(crate) path: &'a str,
    /// First byte.
    pub(crate) from: u64,
    /// How messages call it.
    pub(crate) what: &'a str,
}

impl Session {
    /// Asks once, and logs in where that is asked for.
    pub(crate) fn ask(&self, ask: Ask<'_>) -> Result<Response<Body>, Failed> {
        let mut url = self.base.clone();
        url = Url::parse(&format!("/v2/{}/{}", self.reference.name(), ask.path), &url)
            .map_err(|what| Failed::ForGood(self.refuse(Kind::Unsupported, what.to_owned())))?;
        let mut logged_in = false;
        loop {
            let authorization = self.authorization.lock().clone();
            let (response, from) = self.follow(url.clone(), authorization.as_deref(), ask)?;
            if response.status() != 401 {
                return self.check(response, &from, ask);
            }
            if !from.same_server(&self.base) {
                let what = format!("it redirects to {from}, which wants a user of its own");
                return Err(Failed::ForGood(self.refuse(Kind::Damaged, what)));
            }
            if logged_in {
                return Err(Failed::ForGood(self.denied("refuses what it gave access to", 401)));
            }
            let challenges = response.headers().get_all(header::WWW_AUTHENTICATE);
            let texts = challenges.iter().filter_map(|text| text.to_str().ok());
            let challenge = Challenge::choose(texts);
            let given = login::answer(self, challenge)?;
            *self.authorization.lock() = Some(given);
            logged_in = true;
        }
    }

    /// Asks for `url`, and for what it redirects to. Secrets go to the registry's own server (R1).
    fn follow(
        &self,
        mut url: Url,
        authorization: Option<&str>,
        ask: Ask<'_>,
    ) -> Result<(Response<Body>, Url), Failed> {
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(url.text());
            if ask.path.starts_with("manifests/") {
                request = request.header(header::ACCEPT, MANIFESTS);
            }
            if let Some(value) = authorization.filter(|_| url.same_server(&self.base)) {
                request = request.header(header::AUTHORIZATION, value);
            }
            if ask.from > 0 {
                request = request.header(header::RANGE, format!("bytes={}-", ask.from));
            }
            let response = request.call().map_err(|error| self.failed(error))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, url));
            }
            let bad = |what: String| Failed::ForGood(self.refuse(Kind::Damaged, what));
            let next = text(&response, header::LOCATION)
                .ok_or_else(|| bad(format!("{url} redirects to nowhere")))?;
            let next = Url::parse(&next, &url)
                .map_err(|what| bad(format!("{url} redirects to {what}")))?;
            if url.https && !next.https {
                return Err(bad(format!("{url} redirects to {next}, which is not encrypted")));
            }
            if !next.is_private() && !self.settings.plain_http {
                let mut error = self.refuse(
                    Kind::Damaged,
                    format!("{url} redirects to {next}, which is not encrypted"),
                );
                error.advice = Some("--plain-http allows that".into());
                return Err(Failed::ForGood(error));
            }
            url = next;
        }
        let what = format!("more than {REDIRECTS_MAX} redirects, the last one to {url}");
        Err(Failed::ForGood(self.refuse(Kind::Damaged, what)))
    }

    /// Passes answers that have what was asked for, or a part of it.
    fn check(
        &self,
        response: Response<Body>,
        from: &Url,
        ask: Ask<'_>,
    ) -> Result<Response<Body>, Failed> {
        let status = response.status().as_u16();
        let error = match status {
            200 | 206 => return Ok(response),
            403 => self.denied("does not allow it", 403),
            404 | 410 => self.refuse(
                Kind::Missing,
                format!("{} has no such {} (it answers {status})", from.authority, ask.what),
            ),
            _ => match passing(&response) {
                Some(failed) => return Err(failed),
                None => self.refuse(
                    Kind::Damaged,
                    format!("{from} answers {status} where a {} is asked for", ask.what),
                ),
            },
        };
        Err(Failed::ForGood(error))
    }
}
