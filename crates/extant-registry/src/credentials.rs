//! User and password for a registry, from the files of Docker and Podman.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use extant_oci::{Kind, OciError};
use serde::Deserialize;

use crate::session::Session;

/// Longest file or answer of a helper that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// What a registry knows its user by.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    Password {
        user: String,
        password: String,
    },
    /// A token with which the server for tokens gives others.
    IdentityToken(String),
}

/// Fields of `config.json` and `auth.json`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    auths: Option<BTreeMap<String, Auth>>,
    #[serde(default)]
    cred_helpers: Option<BTreeMap<String, String>>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
struct Auth {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    identitytoken: Option<String>,
}

/// Looks for the registry of a session in its files; `None` if none has it.
pub(crate) fn find(session: &Session) -> Result<Option<Login>, OciError> {
    for file in &session.settings.auth_files {
        if let Some(login) = in_file(session, file)? {
            return Ok(Some(login));
        }
    }
    Ok(None)
}

fn in_file(session: &Session, file: &Path) -> Result<Option<Login>, OciError> {
    let shown = file.display();
    let bad = |what: String| session.refuse(Kind::Damaged, what);
    let bytes = match read(file) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => {
            let error = session.refuse(Kind::Io, format!("cannot read users in \"{shown}\""));
            return Err(OciError { cause: Some(cause), ..error });
        }
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    // Errors of the parser have its line, and none of its contents.
    let config: Config = serde_json::from_slice(&bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        bad(format!("the file \"{shown}\" with users is none: line {line}, column {column}"))
    })?;
    let keys = keys(session);
    let helpers = config.cred_helpers.unwrap_or_default();
    if let Some((key, name)) = keys.iter().find_map(|key| helpers.get_key_value(key)) {
        return helper(session, name, key);
    }
    let auths = config.auths.unwrap_or_default();
    let found = keys
        .iter()
        .find_map(|key| auths.iter().find(|(name, _)| plain(name) == *key).map(|(_, auth)| auth));
    if let Some(login) = found.map(stated) {
        match login {
            Ok(Some(login)) => return Ok(Some(login)),
            // Docker leaves an empty entry where a helper has the password.
            Ok(None) => {}
            Err(what) => return Err(bad(format!("in \"{shown}\": {what}"))),
        }
    }
    match config.creds_store.filter(|name| !name.is_empty()) {
        Some(name) => {
            let server = match session.reference.registry() {
                "docker.io" => "https://index.docker.io/v1/",
                other => other,
            };
            helper(session, &name, server)
        }
        None => Ok(None),
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Names that an entry for the image may have, the closest first.
fn keys(session: &Session) -> Vec<String> {
    let (registry, name) = (session.reference.registry(), session.reference.name());
    let mut keys = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        keys.push(format!("{registry}/{rest}"));
        rest = rest.rsplit_once('/').map_or("", |(rest, _)| rest);
    }
    keys.push(registry.to_owned());
    if registry == "docker.io" {
        keys.extend(["index.docker.io", "registry-1.docker.io"].map(str::to_owned));
    }
    keys
}

/// A name of an entry without scheme and version: `https://index.docker.io/v1/` is `index.docker.io`.
fn plain(key: &str) -> &str {
    match key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")) {
        Some(rest) => rest.split('/').next().unwrap_or(rest),
        None => key.trim_end_matches('/'),
    }
}

/// What an entry says; `None` if it is empty.
fn stated(auth: &Auth) -> Result<Option<Login>, &'static str> {
    if let Some(token) = auth.identitytoken.clone().filter(|token| !token.is_empty()) {
        return Ok(Some(Login::IdentityToken(token)));
    }
    if let (Some(user), Some(password)) = (&auth.username, &auth.password)
        && !user.is_empty()
    {
        return Ok(Some(Login::Password { user: user.clone(), password: password.clone() }));
    }
    let Some(packed) = auth.auth.as_deref().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = STANDARD.decode(packed.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let text = text.ok_or("\"auth\" is no base64")?;
    let (user, password) = text.split_once(':').ok_or("\"auth\" has no colon")?;
    let password = password.trim_end_matches('\0').to_owned();
    Ok(Some(Login::Password { user: user.to_owned(), password }))
}

/// Asks the program `docker-credential-NAME`.
fn helper(session: &Session, name: &str, server: &str) -> Result<Option<Login>, OciError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let fail = |what: String, cause: Option<io::Error>| {
        let text = format!("the helper for passwords \"docker-credential-{name:.80}\" {what}");
        let advice = "REGISTRY_AUTH_FILE=/dev/null asks without a user".to_owned();
        let error = session.refuse(Kind::Unsupported, text);
        Err(OciError { advice: Some(advice), cause, ..error })
    };
    if name.is_empty() || !name.bytes().all(is_word) {
        return fail("has a name that no program has".into(), None);
    }
    let mut command = Command::new(format!("docker-credential-{name}"));
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(cause) => return fail("cannot be started".into(), Some(cause)),
    };
    // A helper that needs no input may have ended already.
    if let Some(mut input) = child.stdin.take() {
        let _ = writeln!(input, "{server}");
    }
    let mut bytes = Vec::new();
    let read = child.stdout.take().map(|out| out.take(FILE_MAX).read_to_end(&mut bytes));
    let status = child.wait();
    let status = match (read.transpose(), status) {
        (Ok(_), Ok(status)) => status,
        (Err(cause), _) | (_, Err(cause)) => return fail("gives no answer".into(), Some(cause)),
    };
    if !status.success() {
        // The words are part of the protocol of helpers.
        let said = String::from_utf8_lossy(&bytes);
        return match said.contains("credentials not found") {
            true => Ok(None),
            false => fail(format!("ends with {status}"), None),
        };
    }
    match serde_json::from_slice::<Answer>(&bytes) {
        Ok(answer) if answer.username == "<token>" => Ok(Some(Login::IdentityToken(answer.secret))),
        Ok(answer) => Ok(Some(Login::Password { user: answer.username, password: answer.secret })),
        Err(_) => fail("gives an answer that is none".into(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read() {
        let auth = |json: &str| stated(&serde_json::from_str(json).unwrap());
        let is = |login: Result<Option<Login>, _>, user: &str, secret: &str| {
            let Ok(Some(Login::Password { user: u, password: p })) = login else { panic!() };
            assert_eq!((&*u, &*p), (user, secret));
        };
        is(auth(r#"{"auth":"bWU6czpi"}"#), "me", "s:b");
        is(auth(r#"{"username":"me","password":"x"}"#), "me", "x");
        assert!(matches!(
            auth(r#"{"auth":"bWU6czpi","identitytoken":"t"}"#),
            Ok(Some(Login::IdentityToken(_)))
        ));
        assert!(matches!(auth("{}"), Ok(None)));
        assert!(auth(r#"{"auth":"%"}"#).is_err());
        assert!(auth(r#"{"auth":"bWU="}"#).is_err());
        assert_eq!(plain("https://index.docker.io/v1/"), "index.docker.io");
        assert_eq!(plain("h.example/a"), "h.example/a");
    }
}
