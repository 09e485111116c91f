//! What a server wants before it gives something, and the answer to it.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use extant_oci::{Kind, OciError};
use serde::Deserialize;
use ureq::http::header;

use crate::credentials::{self, Login};
use crate::session::{Failed, Session, passing};
use crate::url::{Url, percent};

/// Longest answer with a token, in bytes.
const ANSWER_MAX: u64 = 1 << 20;

/// Longest token, in bytes; a header cannot be much longer.
const TOKEN_MAX: usize = 32 << 10;

/// What a header `WWW-Authenticate` asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token from the server at `realm`.
    Bearer { realm: String, service: Option<String> },
}

impl Challenge {
    /// The one of several that is answered: a token where one is offered, because it gives less away.
    pub(crate) fn choose<'t>(texts: impl Iterator<Item = &'t str>) -> Option<Challenge> {
        let all: Vec<Challenge> = texts.filter_map(Challenge::parse).collect();
        let token = all.iter().find(|one| matches!(one, Challenge::Bearer { .. }));
        token.or(all.first()).cloned()
    }

    fn parse(text: &str) -> Option<Challenge> {
        let text = text.trim_start();
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        for (key, value) in parameters(rest) {
            match &*key.to_ascii_lowercase() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                _ => {}
            }
        }
        Some(Challenge::Bearer { realm: realm?, service })
    }
}

/// Reads `key="value", key=value`. What it does not understand ends it.
fn parameters(mut text: &str) -> Vec<(&str, String)> {
    let mut all = Vec::new();
    loop {
        text = text.trim_start_matches([' ', ',', '\t']);
        let Some((key, rest)) = text.split_once('=') else { return all };
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (mut value, mut end, mut escaped) = (String::new(), None, false);
                for (at, letter) in quoted.char_indices() {
                    match letter {
                        _ if escaped => {
                            value.push(letter);
                            escaped = false;
                        }
                        '\\' => escaped = true,
                        '"' => {
                            end = Some(at + 1);
                            break;
                        }
                        _ => value.push(letter),
                    }
                }
                let Some(end) = end else { return all };
                (value, quoted.get(end..).unwrap_or_default())
            }
            None => {
                let end = rest.find([',', ' ']).unwrap_or(rest.len());
                let (value, rest) = rest.split_at(end);
                (value.to_owned(), rest)
            }
        };
        all.push((key.trim(), value));
        text = rest;
    }
}

/// Returns the header `Authorization` that answers a challenge.
pub(crate) fn answer(session: &Session, challenge: Option<Challenge>) -> Result<String, Failed> {
    let login = credentials::find(session).map_err(Failed::ForGood)?;
    let Some(challenge) = challenge else {
        let error = session.denied("wants a user, and does not say how", 401);
        return Err(Failed::ForGood(error));
    };
    match challenge {
        Challenge::Basic => match login {
            Some(Login::Password { user, password }) => {
                private(session, &session.base)?;
                Ok(basic(&user, &password))
            }
            Some(Login::IdentityToken(_)) => Err(Failed::ForGood(
                session.denied("wants user and password, and a token is what is known", 401),
            )),
            None => Err(Failed::ForGood(session.denied("wants user and password", 401))),
        },
        Challenge::Bearer { realm, service } => {
            let mut url = Url::parse(&realm, &session.base).map_err(|what| {
                let what = format!("it names for tokens {what}");
                Failed::ForGood(session.refuse(Kind::Damaged, what))
            })?;
            private(session, &url)?;
            if session.base.https && !url.https {
                let what = format!("it has tokens at {url}, which is not encrypted");
                return Err(Failed::ForGood(session.refuse(Kind::Damaged, what)));
            }
            let scope = format!("repository:{}:pull", session.reference.name());
            let request = if let Some(Login::IdentityToken(token)) = &login {
                let mut form = format!(
                    "grant_type=refresh_token&client_id=extant&scope={}&refresh_token={}",
                    percent(&scope),
                    percent(token)
                );
                if let Some(service) = &service {
                    form += &format!("&service={}", percent(service));
                }
                let kind = "application/x-www-form-urlencoded";
                let request = session.agent.post(url.text()).header(header::CONTENT_TYPE, kind);
                request.send(form)
            } else {
                if let Some(service) = &service {
                    url.query("service", service);
                }
                url.query("scope", &scope);
                let mut request = session.agent.get(url.text());
                if let Some(Login::Password { user, password }) = &login {
                    request = request.header(header::AUTHORIZATION, basic(user, password));
                }
                request.call()
            };
            let response = request.map_err(|error| session.failed(error))?;
            let status = response.status().as_u16();
            if let Some(failed) = passing(&response) {
                return Err(failed);
            }
            if status != 200 {
                let what = match &login {
                    None => "gives no access without a user",
                    Some(_) => "does not know the user or the password",
                };
                return Err(Failed::ForGood(session.denied(what, status)));
            }
            let mut bytes = Vec::new();
            let body = response.into_body().into_reader();
            body.take(ANSWER_MAX)
                .read_to_end(&mut bytes)
                .map_err(|error| Failed::Now(error, None))?;
            Ok(format!("Bearer {}", token(session, &url, &bytes).map_err(Failed::ForGood)?))
        }
    }
}

/// Refuses to send secrets where others see them (R1).
fn private(session: &Session, url: &Url) -> Result<(), Failed> {
    if url.is_private() || session.settings.plain_http {
        return Ok(());
    }
    let what = format!("user and password are not sent to {url}, which is not encrypted");
    Err(Failed::ForGood(session.refuse(Kind::Damaged, what)))
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// The token in the answer of a server.
fn token(session: &Session, url: &Url, bytes: &[u8]) -> Result<String, OciError> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        token: Option<String>,
        #[serde(default)]
        access_token: Option<String>,
    }
    let bad = |what: &str| session.refuse(Kind::Damaged, format!("{url} gives {what}"));
    let answer: Answer =
        serde_json::from_slice(bytes).map_err(|_| bad("no token, but something else"))?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| bad("no token"))?;
    if token.len() > TOKEN_MAX || !token.bytes().all(|b| (0x21..0x7f).contains(&b)) {
        return Err(bad("a token that no header can have"));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_and_a_token_is_preferred() {
        let choose = |texts: &[&str]| Challenge::choose(texts.iter().copied());
        let token = Challenge::Bearer {
            realm: "https://a.example/t".into(),
            service: Some("a, \"b\"".into()),
        };
        let text =
            r#"bearer realm="https://a.example/t",service="a, \"b\"", scope="x:y:pull,push""#;
        assert_eq!(choose(&["Basic realm=\"x\"", text]), Some(token));
        assert_eq!(choose(&["BASIC"]), Some(Challenge::Basic));
        let plain = Challenge::Bearer { realm: "/t".into(), service: None };
        assert_eq!(choose(&["Bearer realm=/t, error=x"]), Some(plain));
        for bad in ["", "Digest realm=x", "Bearer", "Bearer service=x", "Bearer realm=\"x"] {
            assert_eq!(choose(&[bad]), None, "{bad}");
        }
    }
}
