//! Where objects are asked for, and with whose keys.

use std::fmt;
use std::path::PathBuf;

use rusty_s3::Credentials;
use url::Url;

use super::profile::{self, Section, value};
use crate::error::HttpError;

/// The region that is tried first where none is named.
const REGION: &str = "us-east-1";

/// An account at a store: endpoint, region, keys.
///
/// Keys are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    pub(super) endpoint: Option<Url>,
    pub(super) region: String,
    pub(super) keys: Option<Credentials>,
}

impl Account {
    /// An account without keys: requests are not signed, and reach public objects only.
    ///
    /// `endpoint` is `http://HOST[:PORT]` or `https://HOST[:PORT]`; without one, it is that of AWS.
    ///
    /// # Errors
    ///
    /// [`HttpError::Account`]: the endpoint or the region makes no sense.
    pub fn anonymous(endpoint: Option<&str>, region: Option<&str>) -> Result<Account, HttpError> {
        let endpoint = endpoint.map(parse_endpoint).transpose()?;
        let region = region.unwrap_or(REGION);
        if !is_region(region) {
            let what = "a region has letters, digits and hyphens".to_owned();
            return Err(HttpError::Account { what });
        }
        Ok(Account { endpoint, region: region.to_owned(), keys: None })
    }

    /// Adds keys, which sign the requests of the account.
    #[must_use]
    pub fn with_keys(mut self, id: &str, secret: &str, token: Option<&str>) -> Account {
        self.keys = Some(match token {
            Some(token) => Credentials::new_with_token(id, secret, token),
            None => Credentials::new(id, secret),
        });
        self
    }

    /// The account that environment and files name, as other programs for S3 find it.
    ///
    /// Keys: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`; else those of the profile `AWS_PROFILE`
    /// in `~/.aws/credentials` and `~/.aws/config` (`AWS_SHARED_CREDENTIALS_FILE`, `AWS_CONFIG_FILE`).
    /// Region: `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile. Endpoint: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the
    /// profile. With `sign` off, or `AWS_SKIP_SIGNATURE=true`, keys are not looked for.
    ///
    /// # Errors
    ///
    /// [`HttpError::Account`]: there are no keys, or a file cannot be read.
    pub fn from_environment(sign: bool) -> Result<Account, HttpError> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Account::find(&|name| std::env::var(name).ok(), home, sign)
    }

    fn find(
        variable: &dyn Fn(&str) -> Option<String>,
        home: Option<PathBuf>,
        sign: bool,
    ) -> Result<Account, HttpError> {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let named = get("AWS_PROFILE");
        let profile = named.clone().unwrap_or_else(|| "default".to_owned());
        let file = |name: &str, default: &str| {
            get(name).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".aws").join(default)))
        };
        let read = |path: Option<PathBuf>, names: &[&str]| match path {
            Some(path) => profile::section(&path, names),
            None => Ok(None),
        };
        let long = format!("profile {profile}");
        let config_names: &[&str] =
            if profile == "default" { &["default", &long] } else { &[&long] };
        let config = read(file("AWS_CONFIG_FILE", "config"), config_names)?;
        let region = get("AWS_REGION").or_else(|| get("AWS_DEFAULT_REGION"));
        let of_config = |name: &str| Some(value(config.as_ref()?, name)?.to_owned());
        let region = region.or_else(|| of_config("region"));
        let ignores = get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|word| is_true(&word));
        let endpoint = get("AWS_ENDPOINT_URL_S3").or_else(|| get("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.or_else(|| of_config("endpoint_url")).filter(|_| !ignores);
        let account = Account::anonymous(endpoint.as_deref(), region.as_deref())?;
        if !sign || get("AWS_SKIP_SIGNATURE").is_some_and(|word| is_true(&word)) {
            return Ok(account);
        }
        if let Some(id) = get("AWS_ACCESS_KEY_ID") {
            let secret = get("AWS_SECRET_ACCESS_KEY").ok_or_else(|| HttpError::Account {
                what: "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not".to_owned(),
            })?;
            return Ok(account.with_keys(&id, &secret, get("AWS_SESSION_TOKEN").as_deref()));
        }
        let keys = read(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), &[&profile])?;
        for section in [&keys, &config].into_iter().flatten() {
            if let Some((id, secret, token)) = keys_in(section) {
                return Ok(account.with_keys(id, secret, token));
            }
        }
        Err(HttpError::Account { what: what_is_missing(&profile, named.is_some(), &keys, &config) })
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.endpoint.as_ref().map_or("AWS", |url| url.as_str());
        let keys = if self.keys.is_some() { "with keys" } else { "without keys" };
        write!(f, "Account({endpoint}, {}, {keys})", self.region)
    }
}

fn keys_in(section: &Section) -> Option<(&str, &str, Option<&str>)> {
    let id = value(section, "aws_access_key_id")?;
    Some((id, value(section, "aws_secret_access_key")?, value(section, "aws_session_token")))
}

/// Says why there are no keys.
fn what_is_missing(
    profile: &str,
    is_named: bool,
    keys: &Option<Section>,
    config: &Option<Section>,
) -> String {
    let sections = [keys, config];
    for name in ["credential_process", "sso_session", "sso_start_url", "role_arn", "login_session"]
    {
        if sections
            .iter()
            .filter_map(|section| section.as_ref())
            .any(|it| value(it, name).is_some())
        {
            return format!(
                "the profile {profile} gets its keys by {name}, which is not done here"
            );
        }
    }
    match sections.iter().all(|section| section.is_none()) {
        true if is_named => format!("no file has the profile {profile} (AWS_PROFILE)"),
        true => "there are no keys: neither AWS_ACCESS_KEY_ID nor ~/.aws/credentials".to_owned(),
        false => format!("the profile {profile} has no aws_access_key_id with its secret"),
    }
}

fn is_true(word: &str) -> bool {
    matches!(word.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

/// Returns whether this may be the name of a region, of which a name of a host is made (O2).
pub(super) fn is_region(name: &str) -> bool {
    let is_in_names = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    (1..=32).contains(&name.len()) && name.chars().all(is_in_names)
}

fn parse_endpoint(text: &str) -> Result<Url, HttpError> {
    // Not shown: it may hold a password.
    let wrong = |what: &str| HttpError::Account { what: format!("the endpoint {what}") };
    let url: Url = text.trim().parse().map_err(|_| wrong("is no URL"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(wrong("is http://HOST[:PORT] or https://HOST[:PORT]"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("has a user or a password, which S3 does not know"));
    }
    if url.scheme() == "https" && !cfg!(feature = "tls") {
        return Err(wrong(
            "needs https, which this program was built without (the feature \"tls\")",
        ));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn find(variables: &[(&str, &str)], home: Option<&Path>) -> Result<Account, HttpError> {
        let variable = |name: &str| {
            variables.iter().find(|(this, _)| *this == name).map(|(_, value)| (*value).to_owned())
        };
        Account::find(&variable, home.map(Path::to_owned), true)
    }

    fn keys(account: &Account) -> (&str, &str, Option<&str>) {
        let keys = account.keys.as_ref().unwrap();
        (keys.key(), keys.secret(), keys.token())
    }

    #[test]
    fn keys_come_from_the_environment_or_else_from_the_profile_that_is_named() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let credentials = "[default]\naws_access_key_id=D\naws_secret_access_key=ds\n\
            [work]\naws_access_key_id=W\naws_secret_access_key=ws\naws_session_token=wt\n[half]\naws_access_key_id=H\n";
        std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        let config = "[default]\nregion=eu-north-1\n[profile work]\nregion=eu-west-1\n\
            endpoint_url=http://10.0.0.1:9000\n[profile sso]\nsso_session=s\n";
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        let home = Some(home.path());

        let variables = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "es")];
        let account = find(&variables, home).unwrap();
        assert_eq!(keys(&account), ("E", "es", None));
        assert_eq!(account.region, "eu-north-1");
        let account = find(&[], home).unwrap();
        assert_eq!(keys(&account), ("D", "ds", None));
        let account = find(&[("AWS_PROFILE", "work")], home).unwrap();
        assert_eq!(keys(&account), ("W", "ws", Some("wt")));
        assert_eq!(account.region, "eu-west-1");
        assert_eq!(account.endpoint.as_ref().unwrap().as_str(), "http://10.0.0.1:9000/");
        let other =
            [("AWS_PROFILE", "work"), ("AWS_REGION", "mars-1"), ("AWS_ENDPOINT_URL", "http://h:1")];
        let account = find(&other, home).unwrap();
        assert_eq!(account.region, "mars-1");
        assert_eq!(account.endpoint.as_ref().unwrap().as_str(), "http://h:1/");

        for (profile, what) in
            [("sso", "by sso_session"), ("half", "its secret"), ("no", "AWS_PROFILE")]
        {
            let error = find(&[("AWS_PROFILE", profile)], home).unwrap_err().to_string();
            assert!(error.contains(what), "{profile}: {error}");
        }
        assert!(find(&[], None).unwrap_err().to_string().contains("no keys"));
        assert!(find(&variables[..1], None).unwrap_err().to_string().contains("SECRET"));
        assert!(find(&[("AWS_SKIP_SIGNATURE", "true")], None).unwrap().keys.is_none());
    }

    #[test]
    fn nothing_shows_a_secret() {
        let account = Account::anonymous(Some("http://h:1"), None).unwrap();
        let account = account.with_keys("ID", "hidden", Some("hidden too"));
        assert_eq!(format!("{account:?}"), "Account(http://h:1/, us-east-1, with keys)");
        for endpoint in ["http://me:hidden@h", "ftp://h", "h", "http://"] {
            let error = Account::anonymous(Some(endpoint), None).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
        for region in ["", "a.evil.example/", "a b", "eu_west"] {
            assert!(Account::anonymous(None, Some(region)).is_err(), "{region}");
        }
    }
}
