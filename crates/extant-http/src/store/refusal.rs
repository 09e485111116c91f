//! What a store says when it gives nothing.

/// Why a store refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// Its own word for that; may be empty.
    pub(crate) code: String,
    /// What that means.
    pub(crate) what: String,
    /// Whether another attempt may succeed.
    pub(crate) passes: bool,
}

impl Refusal {
    /// Bytes of an answer that are looked at.
    pub(crate) const BODY_MOST: u64 = 8 << 10;

    /// Reads the answer. `skew` is how many seconds the clock of the store is ahead of this host's, if it tells its time.
    pub(crate) fn read(status: u16, body: &[u8], signed: bool, skew: Option<i64>) -> Refusal {
        let code = code_in(body);
        let passes = matches!(
            code.as_str(),
            "SlowDown"
                | "RequestTimeout"
                | "RequestTimeTooSlow"
                | "InternalError"
                | "ServiceUnavailable"
                | "Throttling"
        );
        let clock = skew.filter(|skew| skew.unsigned_abs() > 300 && signed);
        let what: String = match (code.as_str(), status) {
            (_, 403) if clock.is_some() => {
                let skew = clock.unwrap_or_default();
                let word = if skew > 0 { "behind" } else { "ahead of" };
                format!(
                    "the clock of this host is {} seconds {word} the store's",
                    skew.unsigned_abs()
                )
            }
            ("RequestTimeTooSkewed", _) => "the clock of this host is not the store's".to_owned(),
            ("SignatureDoesNotMatch", _) => {
                "the secret key is not the one of this access key".to_owned()
            }
            ("InvalidAccessKeyId", _) => "the store does not know this access key".to_owned(),
            ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => {
                "the session token is not good any more".to_owned()
            }
            ("NoSuchBucket", _) => "there is no such bucket".to_owned(),
            ("NoSuchKey", _) | (_, 404) => "there is no such object".to_owned(),
            ("InvalidObjectState", _) => {
                "the object is archived, and has to be restored first".to_owned()
            }
            ("AccessDenied", _) | (_, 403) if signed => {
                "these keys may not read it, or there is no such object".to_owned()
            }
            (_, 401 | 403) => {
                "without keys this is not allowed, or there is no such object".to_owned()
            }
            ("PermanentRedirect" | "TemporaryRedirect" | "AuthorizationHeaderMalformed", _)
            | (_, 301 | 307 | 308) => {
                "the bucket is elsewhere, and the store does not say in which region".to_owned()
            }
            _ => "this is no object".to_owned(),
        };
        Refusal { code, what, passes }
    }
}

/// Returns the contents of the first `<Code>`, if they are a word.
fn code_in(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let found = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let word = found.map_or("", |(word, _)| word.trim());
    let is_word = word.len() <= 64 && word.chars().all(|letter| letter.is_ascii_alphanumeric());
    if is_word { word.to_owned() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_words_or_nothing() {
        for (body, code) in [
            ("<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>", "SlowDown"),
            ("<Code>  NoSuchKey\n</Code>", "NoSuchKey"),
            ("<Code>\u{1b}[2J</Code>", ""),
            ("<Code>No", ""),
            ("", ""),
        ] {
            assert_eq!(Refusal::read(403, body.as_bytes(), true, None).code, code, "{body}");
        }
        let long = format!("<Code>{}</Code>", "a".repeat(65));
        assert_eq!(Refusal::read(403, long.as_bytes(), true, None).code, "");
    }

    #[test]
    fn clocks_that_differ_are_named_with_by_how_much() {
        let of = |skew| Refusal::read(403, b"<Code>AccessDenied</Code>", true, skew).what;
        assert!(of(Some(4000)).contains("4000 seconds behind"));
        assert!(of(Some(-4000)).contains("4000 seconds ahead"));
        assert!(of(Some(i64::MIN)).contains("seconds ahead"));
        assert!(of(Some(10)).contains("may not read it"));
        assert!(of(None).contains("may not read it"));
    }
}
