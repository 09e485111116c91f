//! Descriptions of the sources of an image's files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use extant_oci::{Choice, Digest, Reference};

use crate::transform::Owner;

/// One source of files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A directory or an archive, or a container image in one of those, recognised by its contents.
    Path(PathBuf),
    /// An archive on standard input.
    Stdin,
    /// A directory, whatever is in it.
    Dir(PathBuf),
    /// An archive, whatever is in it.
    Tar(PathBuf),
    /// An image in an OCI layout in a directory.
    OciDir(PathBuf, Choice),
    /// An image in an OCI layout in an archive.
    OciArchive(PathBuf, Choice),
    /// An image in an archive by `docker save`.
    DockerArchive(PathBuf, Choice),
    /// An image in a registry.
    Registry(Reference),
}

/// Why words are no [`Origin`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginError {
    /// Description of the fault.
    pub what: String,
    /// Advice for the user.
    pub advice: Option<String>,
}

impl std::fmt::Display for OriginError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for OriginError {}

impl Origin {
    /// Reads `oci:DIR[:TAG][@DIGEST]`, `oci-archive:FILE[:TAG][@DIGEST]`, `docker-archive:FILE[:TAG]`,
    /// `docker://[HOST/]NAME[:TAG][@DIGEST]`, `dir:DIR`, `tar:FILE`, `-`, or a path. A path that begins with one of these words is written `./oci:…`.
    ///
    /// # Errors
    ///
    /// [`OriginError`]: a word for something that is no source here, or a digest that is none.
    pub fn parse(text: &OsStr) -> Result<Origin, OriginError> {
        if text == "-" {
            return Ok(Origin::Stdin);
        }
        let bytes = text.as_bytes();
        let rest = |word: &str| bytes.strip_prefix(word.as_bytes()).map(OsStr::from_bytes);
        if let Some(path) = rest("dir:") {
            return Ok(Origin::Dir(path.into()));
        }
        if let Some(path) = rest("tar:") {
            return Ok(Origin::Tar(path.into()));
        }
        if let Some(rest) = rest("oci:") {
            let (path, choice) = chosen(rest)?;
            return Ok(Origin::OciDir(path, choice));
        }
        if let Some(rest) = rest("oci-archive:") {
            let (path, choice) = chosen(rest)?;
            return Ok(Origin::OciArchive(path, choice));
        }
        if let Some(rest) = rest("docker-archive:") {
            let (path, choice) = chosen(rest)?;
            return Ok(Origin::DockerArchive(path, choice));
        }
        if let Some(rest) = rest("docker://") {
            let reference: Result<Reference, String> = rest.to_string_lossy().parse();
            return match reference {
                Ok(reference) => Ok(Origin::Registry(reference)),
                Err(what) => Err(OriginError { what, advice: None }),
            };
        }
        let elsewhere = ["docker:", "docker-daemon:", "containers-storage:", "podman:"];
        if let Some(word) = elsewhere.into_iter().find(|word| rest(word).is_some()) {
            let shown = text.to_string_lossy().escape_debug().to_string();
            if word == "docker:" {
                let registry = shown.replacen("docker:", "docker://", 1);
                return Err(OriginError {
                    what: format!("{shown}: images are not fetched from there"),
                    advice: Some(format!("from a registry: --from {registry}")),
                });
            }
            let fetch = match word {
                "podman:" => shown.replacen("podman:", "containers-storage:", 1),
                _ => shown.clone(),
            };
            return Err(OriginError {
                what: format!("{shown}: images are not fetched from there"),
                advice: Some(format!(
                    "skopeo copy {fetch} oci:DIR:latest fetches it; then --from oci:DIR"
                )),
            });
        }
        Ok(Origin::Path(text.into()))
    }

    /// Returns how messages call it.
    pub fn name(&self) -> String {
        match self {
            Origin::Stdin => "standard input".into(),
            Origin::Registry(reference) => format!("docker://{reference}"),
            Origin::Path(path)
            | Origin::Dir(path)
            | Origin::Tar(path)
            | Origin::OciDir(path, _)
            | Origin::OciArchive(path, _)
            | Origin::DockerArchive(path, _) => path.to_string_lossy().into_owned(),
        }
    }
}

/// `PATH[:TAG][@DIGEST]`. Of several colons, the first one counts before which there is a path that exists.
fn chosen(text: &OsStr) -> Result<(PathBuf, Choice), OriginError> {
    let mut choice = Choice::default();
    let mut bytes = text.as_bytes();
    if Path::new(text).exists() {
        return Ok((text.into(), choice));
    }
    if let Some(at) = bytes.iter().rposition(|&b| b == b'@')
        && let Some(digest) = bytes.get(at + 1..).filter(|digest| digest.contains(&b':'))
    {
        let digest = String::from_utf8_lossy(digest);
        let parsed: Result<Digest, String> = digest.parse();
        choice.digest = Some(parsed.map_err(|what| OriginError { what, advice: None })?);
        bytes = bytes.get(..at).unwrap_or_default();
    }
    let colons = (bytes.iter().enumerate()).filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    let cuts: Vec<usize> = colons.collect();
    let path_to = |at: usize| Path::new(OsStr::from_bytes(bytes.get(..at).unwrap_or_default()));
    let whole = path_to(bytes.len());
    let cut = cuts.iter().copied().find(|&at| path_to(at).exists());
    let cut = if whole.exists() { None } else { cut.or(cuts.last().copied()) };
    let Some(cut) = cut else { return Ok((whole.into(), choice)) };
    let tag = bytes.get(cut + 1..).unwrap_or_default();
    if tag.is_empty() {
        let what =
            format!("\"{}\" ends with a colon and no tag", text.to_string_lossy().escape_debug());
        return Err(OriginError { what, advice: None });
    }
    choice.tag = Some(String::from_utf8_lossy(tag).into_owned());
    Ok((path_to(cut).into(), choice))
}

/// A file or directory of the host that is put into the image, over what the sources have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addition {
    /// Path on the host; a symbolic link is followed.
    pub host: PathBuf,
    /// Absolute path in the image.
    pub path: Vec<u8>,
    /// The mode of a file, `0o7777`; that of the host's file unless set.
    pub mode: Option<u16>,
    /// The owner of all that is added; root unless set.
    pub owner: Owner,
}

impl Addition {
    /// Reads `HOST:/PATH[:MODE[:UID:GID]]`. A path that ends with a slash is a directory that gets the file under its own
    /// name.
    ///
    /// # Errors
    ///
    /// What is wrong with the words.
    pub fn parse(text: &OsStr) -> Result<Addition, String> {
        const FORM: &str =
            "what is added is HOST:/PATH, HOST:/PATH:MODE or HOST:/PATH:MODE:UID:GID";
        let bytes = text.as_bytes();
        let cut = bytes.windows(2).position(|pair| pair == b":/").filter(|&at| at > 0);
        let cut = cut.ok_or_else(|| FORM.to_owned())?;
        let host = PathBuf::from(OsStr::from_bytes(bytes.get(..cut).unwrap_or_default()));
        let rest = bytes.get(cut + 1..).unwrap_or_default();
        let mut fields = rest.splitn(3, |&b| b == b':');
        let mut path = fields.next().unwrap_or_default().to_vec();
        let mode = match fields.next() {
            None | Some(b"") => None,
            Some(mode) => {
                let text = String::from_utf8_lossy(mode);
                let octal = u16::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777);
                Some(octal.ok_or_else(|| format!("\"{text}\" is no mode: 0 to 7777, octal"))?)
            }
        };
        let owner = match fields.next() {
            None => Owner { uid: 0, gid: 0 },
            Some(owner) => String::from_utf8_lossy(owner)
                .parse()
                .map_err(|error: crate::transform::OptionError| error.to_string())?,
        };
        if path.split(|&b| b == b'/').any(|part| part == b"..") {
            return Err("a path in the image has no \"..\"".into());
        }
        if path.ends_with(b"/") && !host.is_dir() {
            let name = host.file_name().ok_or_else(|| FORM.to_owned())?;
            path.extend_from_slice(name.as_bytes());
        }
        Ok(Addition { host, path, mode, owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_sources() {
        let dir = tempfile::tempdir().unwrap();
        let colon = dir.path().join("a:b");
        std::fs::create_dir(&colon).unwrap();
        let at = colon.to_str().unwrap();
        let parse = |text: &str| Origin::parse(text.as_ref());
        let choice = |tag: Option<&str>, digest: Option<&str>| Choice {
            tag: tag.map(str::to_owned),
            digest: digest.map(|d| d.parse().unwrap()),
            platform: None,
        };
        let digest = format!("sha256:{}", "0".repeat(64));
        assert_eq!(parse("-"), Ok(Origin::Stdin));
        assert_eq!(parse("a:b"), Ok(Origin::Path("a:b".into())));
        assert_eq!(parse("dir:x"), Ok(Origin::Dir("x".into())));
        for (text, tag, has_digest) in [
            (format!("oci:{at}"), None, false),
            (format!("oci:{at}:v1"), Some("v1"), false),
            (format!("oci:{at}:docker.io/x/y:1"), Some("docker.io/x/y:1"), false),
            (format!("oci:{at}@{digest}"), None, true),
            (format!("oci:{at}:v1@{digest}"), Some("v1"), true),
        ] {
            let wanted = choice(tag, has_digest.then_some(&*digest));
            assert_eq!(parse(&text), Ok(Origin::OciDir(at.into(), wanted)), "{text}");
        }
        let gone = Origin::OciDir("gone".into(), choice(Some("tag"), None));
        assert_eq!(parse("oci:gone:tag"), Ok(gone));
        assert!(parse(&format!("oci:{at}@sha256:00")).is_err());
        assert!(parse(&format!("oci:{at}:")).is_err());
        let there = Origin::Registry("docker.io/library/debian:12".parse().unwrap());
        assert_eq!(there.name(), "docker://docker.io/library/debian:12");
        assert_eq!(parse("docker://debian:12"), Ok(there));
        assert!(parse("docker://Debian").is_err());
        let advice = parse("docker:debian:12").unwrap_err().advice.unwrap();
        assert!(advice.contains("--from docker://debian:12"), "{advice}");
    }

    #[test]
    fn words_for_additions() {
        let parse = |text: &str| Addition::parse(text.as_ref());
        let added = parse("a:b:/etc/x:755:1:2").unwrap();
        assert_eq!((added.host, &*added.path), ("a:b".into(), &b"/etc/x"[..]));
        assert_eq!((added.mode, added.owner), (Some(0o755), Owner { uid: 1, gid: 2 }));
        let added = parse("init:/sbin/").unwrap();
        assert_eq!((&*added.path, added.mode), (&b"/sbin/init"[..], None));
        assert_eq!(parse("x:/y::5:6").unwrap().owner, Owner { uid: 5, gid: 6 });
        for bad in ["x", ":/y", "x:y", "x:/y:999", "x:/y:7:1", "x:/../y"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
