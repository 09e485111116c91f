//! A registry as the store of an image.

use std::io::{self, Cursor, Read};

use extant_oci::{DOCUMENT_MAX, Digest, Hashing, Kind, OciError, Reference, Source, Store, Stored};
use serde::Deserialize;
use ureq::http::header;

use crate::ask::Ask;
use crate::blob::Blob;
use crate::cache::Cache;
use crate::session::{Failed, Session, text};
use crate::settings::Settings;

/// An image in a registry, as a layout: `index.json` has what its tag points to, and blobs are fetched when they are read.
///
/// [`open_layout`](extant_oci::open_layout) finds its layers:
///
/// ```no_run
/// use extant_oci::{Choice, open_layout};
/// use extant_registry::{RegistryStore, Settings};
/// let store = RegistryStore::open(&"debian:12".parse()?, Settings::default())?;
/// let image = open_layout(&store, &Choice::default())?;
/// println!("{} layers", image.layers.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RegistryStore {
    session: Session,
    cache: Option<Cache>,
    index: Vec<u8>,
}

impl RegistryStore {
    /// Asks the registry what the tag points to. With a digest that the cache has, it is not asked.
    ///
    /// # Errors
    ///
    /// [`OciError`]: there is no answer ([`Kind::Io`]), no such image ([`Kind::Missing`]), an answer that is not what it
    /// should be ([`Kind::Damaged`]), or https is asked for and not built in ([`Kind::Unsupported`]).
    pub fn open(reference: &Reference, settings: Settings) -> Result<RegistryStore, OciError> {
        let cache = settings.cache.as_deref().map(|dir| Cache::new(dir, settings.cache_bytes));
        let session = Session::new(reference, settings)?;
        let mut store = RegistryStore { session, cache, index: Vec::new() };
        let cached = reference.digest().and_then(|digest| store.in_cache(digest));
        let (bytes, kind) = match cached {
            Some(bytes) => (bytes, String::new()),
            None => store.fetch_named(reference)?,
        };
        let digest = match reference.digest() {
            Some(wanted) => wanted.clone(),
            None => Digest::sha256(&bytes),
        };
        store.index = store.index_of(&bytes, &kind, &digest)?;
        Ok(store)
    }

    /// A document of the cache.
    fn in_cache(&self, digest: &Digest) -> Option<Vec<u8>> {
        let (file, len) =
            self.cache.as_ref()?.find(digest).filter(|found| found.1 <= DOCUMENT_MAX)?;
        let mut bytes = Vec::new();
        file.take(len).read_to_end(&mut bytes).ok()?;
        digest.check(&bytes).ok().map(|()| bytes)
    }

    fn keep(&self, digest: &Digest, bytes: &[u8]) {
        let len = bytes.len() as u64;
        if let Some(mut coming) = self.cache.as_ref().and_then(|cache| cache.begin(len))
            && coming.write(bytes).is_ok()
        {
            coming.keep(digest, len);
        }
    }

    /// Fetches what tag or digest point to, and its media type.
    fn fetch_named(&self, reference: &Reference) -> Result<(Vec<u8>, String), OciError> {
        let name = match reference.digest() {
            Some(digest) => digest.to_string(),
            None => reference.tag().to_owned(),
        };
        let (bytes, kind, stated) = self.fetch_manifest(&name)?;
        let stated = stated.and_then(|stated| stated.parse::<Digest>().ok());
        // What the answer says of itself guards against what changes answers on the way.
        let wanted = reference.digest().or(stated.as_ref());
        if let Some(wanted) = wanted
            && let Err(found) = wanted.check(&bytes)
        {
            let what = format!("the digest of its manifest is {found}, and should be {wanted}");
            return Err(self.session.refuse(Kind::Damaged, what));
        }
        let mut hashing = wanted.map_or_else(|| Hashing::like(&Digest::sha256(b"")), Hashing::like);
        hashing.update(&bytes);
        self.keep(&hashing.finish(), &bytes);
        Ok((bytes, kind))
    }

    fn fetch_manifest(&self, name: &str) -> Result<(Vec<u8>, String, Option<String>), OciError> {
        let path = format!("manifests/{name}");
        let ask = Ask { path: &path, from: 0, what: "image" };
        self.session.persist("manifest", || {
            let response = self.session.ask(ask)?;
            let kind = text(&response, header::CONTENT_TYPE).unwrap_or_default();
            let digest = response.headers().get("docker-content-digest");
            let digest = digest.and_then(|digest| digest.to_str().ok()).map(str::to_owned);
            let length = response.body().content_length();
            let too_long = || {
                let what =
                    format!("its manifest has more than the {DOCUMENT_MAX} bytes that are read");
                Failed::ForGood(self.session.refuse(Kind::Damaged, what))
            };
            if length.is_some_and(|length| length > DOCUMENT_MAX) {
                return Err(too_long());
            }
            let mut bytes = Vec::new();
            let body = response.into_body().into_reader();
            body.take(DOCUMENT_MAX + 1)
                .read_to_end(&mut bytes)
                .map_err(|error| Failed::Now(error, None))?;
            if bytes.len() as u64 > DOCUMENT_MAX {
                return Err(too_long());
            }
            if length.is_some_and(|length| length != bytes.len() as u64) {
                return Err(Failed::Now(io::ErrorKind::UnexpectedEof.into(), None));
            }
            Ok((bytes, kind, digest))
        })
    }

    /// The index of a layout with this one manifest.
    fn index_of(&self, bytes: &[u8], kind: &str, digest: &Digest) -> Result<Vec<u8>, OciError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            #[serde(default)]
            schema_version: u32,
            #[serde(default)]
            media_type: Option<String>,
        }
        let refuse = |kind, what: String| Err(self.session.refuse(kind, what));
        let Ok(head) = serde_json::from_slice::<Head>(bytes) else {
            let server = &self.session.base.authority;
            return refuse(Kind::Damaged, format!("{server} answers with no manifest"));
        };
        if head.schema_version != 2 {
            let what = format!("its manifest has version {}; 2 is known", head.schema_version);
            return refuse(Kind::Unsupported, what);
        }
        let kind = kind.split(';').next().unwrap_or_default().trim();
        // Manifests of OCI need not say what they are, and some servers say less than that.
        let media = head.media_type.unwrap_or_else(|| match kind {
            "application/json" | "text/plain" | "application/octet-stream" => String::new(),
            other => other.to_owned(),
        });
        let descriptor = serde_json::json!({
            "mediaType": media, "digest": digest.to_string(), "size": bytes.len(),
        });
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [descriptor] });
        Ok(index.to_string().into_bytes())
    }
}

/// The digest of the blob that a layout has at `path`.
fn digest_at(path: &str) -> Option<Digest> {
    path.strip_prefix("blobs/")?.replacen('/', ":", 1).parse().ok()
}

/// A document in memory.
struct Document(Cursor<Vec<u8>>);

impl Read for Document {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Source for Document {}

fn stored(bytes: Vec<u8>) -> Option<Stored<'static>> {
    Some(Stored { size: bytes.len() as u64, reader: Box::new(Document(Cursor::new(bytes))) })
}

impl Store for RegistryStore {
    fn name(&self) -> &str {
        &self.session.place
    }

    fn is_near(&self) -> bool {
        false
    }

    fn open(&self, path: &str) -> io::Result<Option<Stored<'_>>> {
        match path {
            "oci-layout" => return Ok(stored(br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())),
            "index.json" => return Ok(stored(self.index.clone())),
            _ => {}
        }
        let Some(digest) = digest_at(path) else { return Ok(None) };
        if let Some((file, size)) = self.cache.as_ref().and_then(|cache| cache.find(&digest)) {
            return Ok(Some(Stored { size, reader: Box::new(file) }));
        }
        let blob = Blob::open(&self.session, self.cache.as_ref(), digest);
        let blob = blob.map_err(io::Error::other)?;
        Ok(Some(Stored { size: blob.size(), reader: Box::new(blob) }))
    }

    fn open_manifest(&self, path: &str) -> io::Result<Option<Stored<'_>>> {
        let Some(digest) = digest_at(path) else { return Ok(None) };
        if let Some(bytes) = self.in_cache(&digest) {
            return Ok(stored(bytes));
        }
        let (bytes, ..) = self.fetch_manifest(&digest.to_string()).map_err(io::Error::other)?;
        if digest.check(&bytes).is_ok() {
            self.keep(&digest, &bytes);
        }
        Ok(stored(bytes))
    }
}
