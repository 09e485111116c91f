//! Images from a registry of our own, which answers well, badly, late, or with lies.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_oci::{Choice, Digest, Image, Kind, OciError, open_layout};
use extant_registry::{RegistryStore, Settings};
use extant_sync::{Mutex, Rank, threads};

/// What came.
#[derive(Clone)]
struct Request {
    path: String,
    headers: HashMap<String, String>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte of the range that is asked for.
    fn from(&self) -> usize {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap())
    }
}

/// An answer.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes after which the connection ends.
    cut: Option<usize>,
    /// Bytes that are said to come, if not those of the body; `Some(None)` says nothing.
    stated: Option<Option<u64>>,
    endless: bool,
}

fn answer(status: u16, body: impl Into<Vec<u8>>) -> Answer {
    let body = body.into();
    Answer { status, headers: Vec::new(), body, cut: None, stated: None, endless: false }
}

impl Answer {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    fn cut(mut self, at: usize) -> Answer {
        self.cut = Some(at);
        self
    }

    fn send(self, out: &mut TcpStream) -> std::io::Result<()> {
        write!(out, "HTTP/1.1 {} X\r\nConnection: close\r\n", self.status)?;
        for (name, value) in &self.headers {
            write!(out, "{name}: {value}\r\n")?;
        }
        if let Some(len) = self.stated.unwrap_or(Some(self.body.len() as u64)) {
            write!(out, "Content-Length: {len}\r\n")?;
        }
        out.write_all(b"\r\n")?;
        out.write_all(&self.body[..self.cut.unwrap_or(self.body.len())])?;
        // Until the client has had enough.
        while self.endless && out.write_all(&[b' '; 64 << 10]).is_ok() {}
        Ok(())
    }
}

type Rule<'r> = dyn Fn(&Request, usize) -> Option<Answer> + Sync + 'r;

/// An image of two layers, and what was asked.
struct Site {
    blobs: HashMap<String, Vec<u8>>,
    manifest: Vec<u8>,
    layers: Vec<Vec<u8>>,
    asked: Mutex<Vec<Request>>,
    ends: AtomicBool,
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) ^ (at >> 8) ^ (at >> 15)) as u8).collect()
}

impl Site {
    fn new() -> Site {
        let layers = vec![bytes(3_000_000, 1), bytes(1000, 2)];
        let ids: Vec<String> =
            layers.iter().map(|l| format!("{:?}", Digest::sha256(l).to_string())).collect();
        let ids = ids.join(",");
        let config = format!(
            "{{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[{ids}]}}}}"
        );
        let descriptor = |media: &str, blob: &[u8]| {
            let (digest, size) = (Digest::sha256(blob), blob.len());
            format!("{{\"mediaType\":\"{media}\",\"digest\":\"{digest}\",\"size\":{size}}}")
        };
        let media = "application/vnd.oci.image.layer.v1.tar";
        let all: Vec<String> = layers.iter().map(|layer| descriptor(media, layer)).collect();
        let manifest = format!(
            "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{},\"layers\":[{}]}}",
            descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
            all.join(",")
        );
        let blobs = layers.iter().cloned().chain([config.into_bytes()]);
        let blobs = blobs.map(|blob| (Digest::sha256(&blob).to_string(), blob)).collect();
        let (asked, ends) = (Mutex::new(Rank::Leaf, Vec::new()), AtomicBool::new(false));
        Site { blobs, manifest: manifest.into_bytes(), layers, asked, ends }
    }

    /// What an honest registry says.
    fn honest(&self, request: &Request) -> Answer {
        if let Some(name) = request.path.strip_prefix("/v2/app/manifests/") {
            let digest = Digest::sha256(&self.manifest).to_string();
            if name != "v1" && name != digest {
                return answer(404, "{}");
            }
            let kind = "application/vnd.oci.image.manifest.v1+json";
            return answer(200, &*self.manifest)
                .with("Content-Type", kind)
                .with("Docker-Content-Digest", digest);
        }
        let digest = request.path.strip_prefix("/v2/app/blobs/").unwrap_or_default();
        match (self.blobs.get(digest), request.from()) {
            (None, _) => answer(404, "{}"),
            (Some(blob), 0) => answer(200, &**blob),
            (Some(blob), from) => {
                let range = format!("bytes {from}-{}/{}", blob.len() - 1, blob.len());
                answer(206, &blob[from..]).with("Content-Range", range)
            }
        }
    }

    fn answer(&self, mut stream: TcpStream, rule: &Rule<'_>) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = HashMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let request = Request { path, headers };
        let before = {
            let mut asked = self.asked.lock();
            asked.push(request.clone());
            asked.iter().filter(|other| other.path == request.path).count() - 1
        };
        let given = rule(&request, before).unwrap_or_else(|| self.honest(&request));
        given.send(&mut stream)
    }

    /// Runs `work` with host and port, while the server serves by `rule`, which gets each request and how often its path
    /// was asked for before; what it does not answer is answered honestly.
    fn serve<T>(&self, rule: &Rule<'_>, work: impl FnOnce(&str) -> T) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        self.ends.store(false, Ordering::Release);
        threads::scope(|scope| {
            let serving = || {
                threads::scope(|inner| {
                    for stream in listener.incoming() {
                        if self.ends.load(Ordering::Acquire) {
                            return;
                        }
                        let stream = stream.unwrap();
                        // A client that has gone is none of the server's business.
                        inner.spawn("answer", move || drop(self.answer(stream, rule))).unwrap();
                    }
                })
                .unwrap();
            };
            scope.spawn("server", serving).unwrap();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                work(&format!("127.0.0.1:{port}"))
            }));
            self.ends.store(true, Ordering::Release);
            drop(TcpStream::connect(("127.0.0.1", port)));
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .unwrap()
    }

    fn take_asked(&self) -> Vec<Request> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// Fetches by `rule`, and expects to be refused with these words.
    fn refused(&self, rule: &Rule<'_>, kind: Kind, words: &[&str]) {
        let error = self.serve(rule, |host| pull(host, &settings(None)).unwrap_err());
        let text = chain(&error);
        assert_eq!(error.kind, kind, "{text}");
        for word in words {
            assert!(text.contains(word), "{text}\n  has no {word}");
        }
        assert!(!text.contains("secret"), "{text}");
    }
}

fn settings(cache: Option<&Path>) -> Settings {
    let mut settings = Settings::default();
    settings.cache = cache.map(Path::to_owned);
    settings.auth_files = Vec::new();
    settings.attempts = 3;
    settings
}

/// Fetches an image whole.
fn pull_as(name: &str, settings: &Settings) -> Result<(Image, Vec<Vec<u8>>), OciError> {
    let reference = name.parse().unwrap();
    let store = RegistryStore::open(&reference, settings.clone())?;
    let image = open_layout(&store, &Choice::default())?;
    let mut layers = Vec::new();
    for layer in &image.layers {
        let mut bytes = Vec::new();
        let read = layer.open(&store)?.read_to_end(&mut bytes);
        read.map_err(|cause| {
            OciError::inside(cause).unwrap_or_else(|cause| OciError {
                kind: Kind::Damaged,
                place: name.to_owned(),
                what: cause.to_string(),
                advice: None,
                cause: None,
            })
        })?;
        layers.push(bytes);
    }
    Ok((image, layers))
}

fn pull(host: &str, settings: &Settings) -> Result<Vec<Vec<u8>>, OciError> {
    pull_as(&format!("{host}/app:v1"), settings).map(|(_, layers)| layers)
}

/// The error with its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

fn is_layer(request: &Request) -> bool {
    request.path.contains(&Digest::sha256(&bytes(3_000_000, 1)).to_string())
}

fn is_config(request: &Request) -> bool {
    let layers = [bytes(3_000_000, 1), bytes(1000, 2)].map(|l| Digest::sha256(&l).to_string());
    request.path.contains("/blobs/") && !layers.iter().any(|digest| request.path.contains(digest))
}

/// A document of the same length with another last byte.
fn changed(mut document: Vec<u8>) -> Vec<u8> {
    *document.last_mut().unwrap() = b' ';
    document
}

fn auth_file(dir: &Path, host: &str, json: &str) -> Settings {
    let file = dir.join("auth.json");
    std::fs::write(&file, json.replace("HOST", host)).unwrap();
    let mut settings = settings(None);
    settings.auth_files = vec![dir.join("not there"), file];
    settings
}

#[test]
fn what_was_fetched_is_kept_and_checked_again() {
    let (site, dir) = (Site::new(), tempfile::tempdir().unwrap());
    let settings = settings(Some(dir.path()));
    site.serve(&|_, _| None, |host| {
        assert_eq!(pull(host, &settings).unwrap(), site.layers);
        assert_eq!(site.take_asked().len(), 4);
        // The tag may have moved, all else is here.
        assert_eq!(pull(host, &settings).unwrap(), site.layers);
        assert_eq!(site.take_asked().len(), 1);
        let pinned = format!("{host}/app@{}", Digest::sha256(&site.manifest));
        assert_eq!(pull_as(&pinned, &settings).unwrap().1, site.layers);
        assert_eq!(site.take_asked().len(), 0);
        // A file of the cache that is another one is fetched again.
        let name = Digest::sha256(&site.layers[1]).to_string().replace(':', "-");
        let kept = dir.path().join("blobs").join(name);
        std::fs::write(&kept, bytes(1000, 7)).unwrap();
        assert_eq!(pull_as(&pinned, &settings).unwrap().1, site.layers);
        assert_eq!(site.take_asked().len(), 1);
        assert_eq!(std::fs::read(&kept).unwrap(), site.layers[1]);
        // Many at once share it.
        std::fs::remove_dir_all(dir.path().join("blobs")).unwrap();
        let all = threads::workers("pull", 4, |_| pull(host, &settings).unwrap()).unwrap();
        assert!(all.iter().all(|layers| *layers == site.layers));
        assert_eq!(std::fs::read_dir(dir.path().join("blobs")).unwrap().count(), 4);
    });
}

#[test]
fn a_connection_that_breaks_off_goes_on_where_it_was() {
    let site = Site::new();
    let cut = |request: &Request, before: usize| match before {
        // More than a megabyte came each time, which makes it three attempts again.
        0 if is_layer(request) => Some(site.honest(request).cut(1_200_000)),
        1 if is_layer(request) => Some(site.honest(request).cut(1_100_000)),
        2 if is_layer(request) => Some(answer(503, "").with("Retry-After", "0")),
        _ => None,
    };
    site.serve(&cut, |host| assert_eq!(pull(host, &settings(None)).unwrap(), site.layers));
    let ranges: Vec<usize> =
        site.take_asked().iter().filter(|r| is_layer(r)).map(Request::from).collect();
    assert_eq!(ranges, [0, 1_200_000, 2_300_000, 2_300_000]);
    // A server that knows no ranges begins again.
    let whole = |request: &Request, before: usize| match (is_layer(request), before) {
        (true, 0) => Some(site.honest(request).cut(500_000)),
        (true, _) => Some(answer(200, &*site.layers[0])),
        _ => None,
    };
    site.serve(&whole, |host| assert_eq!(pull(host, &settings(None)).unwrap(), site.layers));
    site.take_asked();
    let short =
        |request: &Request, _: usize| is_layer(request).then(|| site.honest(request).cut(0));
    site.refused(&short, Kind::Io, &["0 of 3000000 bytes", "in 3 attempts"]);
    let other = |request: &Request, before: usize| match (is_layer(request), before) {
        (true, 0) => Some(site.honest(request).cut(500_000)),
        (true, _) => Some(answer(206, "x").with("Content-Range", "bytes 5-5/3000000")),
        _ => None,
    };
    site.take_asked();
    site.refused(&other, Kind::Damaged, &["another part"]);
}

#[test]
fn users_log_in_and_secrets_stay_with_their_registry() {
    let (site, other, dir) = (Site::new(), Site::new(), tempfile::tempdir().unwrap());
    // "me:secret"
    let json =
        r#"{"auths":{"x.example":{"auth":"eDp5"},"http://HOST/v1/":{"auth":"bWU6c2VjcmV0"}}}"#;
    let basic = |request: &Request, _: usize| {
        let right = request.header("authorization") == Some("Basic bWU6c2VjcmV0");
        (!right).then(|| answer(401, "").with("WWW-Authenticate", "Basic realm=\"x\""))
    };
    site.serve(&basic, |host| {
        let settings = auth_file(dir.path(), host, json);
        assert_eq!(pull(host, &settings).unwrap(), site.layers);
        let none = pull(host, &self::settings(None)).unwrap_err();
        assert!(chain(&none).contains("wants user and password"), "{}", chain(&none));
        assert!(none.advice.unwrap().contains("login"));
        let wrong = auth_file(dir.path(), host, r#"{"auths":{"HOST":{"auth":"bWU6eA=="}}}"#);
        assert!(pull(host, &wrong).unwrap_err().what.contains("refuses what it gave access to"));
    });
    // A token from a server that knows the user, and that expires once; layers are elsewhere.
    other.serve(
        &|request, _| {
            assert_eq!(request.header("authorization"), None, "{}", request.path);
            None
        },
        |elsewhere| {
            site.take_asked();
            let rule = |request: &Request, before: usize| {
                let user = request.header("authorization").unwrap_or_default();
                if request.path.starts_with("/token?") {
                    assert_eq!(user, "Basic bWU6c2VjcmV0");
                    assert!(request.path.contains("service=a%20b&scope=repository%3Aapp%3Apull"));
                    return Some(answer(200, "{\"token\":\"good\"}"));
                }
                if user != "Bearer good" || (is_layer(request) && before == 0) {
                    let realm =
                        "Bearer realm=\"/token\",service=\"a b\",scope=\"registry:catalog:*\"";
                    return Some(answer(401, "").with("WWW-Authenticate", realm));
                }
                let there = format!("http://{elsewhere}{}?sig=1", request.path);
                is_layer(request).then(|| answer(307, "").with("Location", there))
            };
            // Elsewhere, the layer has its query in its name.
            let settings = |host: &str| auth_file(dir.path(), host, json);
            let error = site.serve(&rule, |host| pull(host, &settings(host)).unwrap_err());
            assert_eq!(error.kind, Kind::Missing, "{}", chain(&error));
            let plain = |request: &Request, before: usize| {
                let mut answer = rule(request, before)?;
                for (name, value) in &mut answer.headers {
                    if *name == "Location" {
                        *value = value.replace("?sig=1", "");
                    }
                }
                Some(answer)
            };
            site.take_asked();
            site.serve(&plain, |host| {
                assert_eq!(pull(host, &settings(host)).unwrap(), site.layers)
            });
            let tokens = site.take_asked().iter().filter(|r| r.path.starts_with("/token")).count();
            assert_eq!(tokens, 2);
        },
    );
    // Who is redirected to does not get the password either by asking for it.
    for challenge in ["Bearer realm=\"http://HOST/token\"", "Basic realm=\"x\""] {
        other.serve(
            &|request, _| {
                assert_eq!(request.header("authorization"), None, "{}", request.path);
                let challenge = challenge.replace("HOST", request.header("host").unwrap());
                Some(match request.path.starts_with("/token") {
                    true => answer(200, "{\"token\":\"t\"}"),
                    false => answer(401, "").with("WWW-Authenticate", challenge),
                })
            },
            |elsewhere| {
                let rule = |request: &Request, before: usize| {
                    let there = format!("http://{elsewhere}{}", request.path);
                    let moved = is_layer(request).then(|| answer(307, "").with("Location", there));
                    basic(request, before).or(moved)
                };
                site.serve(&rule, |host| {
                    let settings = auth_file(dir.path(), host, json);
                    let error = chain(&pull(host, &settings).unwrap_err());
                    assert!(error.contains("wants a user of its own"), "{error}");
                });
            },
        );
    }
    // A program that has the password, and is not there.
    site.serve(&basic, |host| {
        for json in [r#"{"credsStore":"none-such"}"#, r#"{"credHelpers":{"HOST":"none-such"}}"#] {
            let error = pull(host, &auth_file(dir.path(), host, json)).unwrap_err();
            assert!(error.what.contains("docker-credential-none-such"), "{}", chain(&error));
        }
        for json in ["{", "7", r#"{"auths":{"HOST":{"auth":"secret"}}}"#] {
            let error = pull(host, &auth_file(dir.path(), host, json)).unwrap_err();
            assert_eq!(error.kind, Kind::Damaged);
            assert!(!chain(&error).contains("secret"), "{}", chain(&error));
        }
    });
}

#[test]
fn lies_are_refused_by_name_and_nothing_is_kept_of_them() {
    let site = Site::new();
    let manifest = |request: &Request| request.path.contains("/manifests/");
    let only = |is: bool, given: Answer| is.then_some(given);
    let huge = 1 << 40;
    let challenge = |text: &'static str| answer(401, "").with("WWW-Authenticate", text);
    let lies: &[(Kind, &[&str], &Rule<'_>)] = &[
        (Kind::Missing, &["no such image"], &|_, _| Some(answer(404, "{}"))),
        (Kind::Io, &["does not allow it"], &|_, _| Some(answer(403, ""))),
        (Kind::Io, &["in 3 attempts", "429"], &|_, _| {
            Some(answer(429, "").with("Retry-After", "0"))
        }),
        (Kind::Damaged, &["answers 418"], &|_, _| Some(answer(418, ""))),
        (Kind::Damaged, &["no manifest"], &|_, _| Some(answer(200, "<html>"))),
        (Kind::Unsupported, &["version 1"], &|_, _| Some(answer(200, "{\"schemaVersion\":1}"))),
        (Kind::Damaged, &["its manifest has more than"], &|_, _| {
            Some(Answer { stated: Some(Some(huge)), endless: true, ..answer(200, "{") })
        }),
        (Kind::Damaged, &["its manifest has more than"], &|_, _| {
            Some(Answer { stated: Some(None), endless: true, ..answer(200, "{") })
        }),
        (Kind::Io, &["in 3 attempts"], &|request, _| {
            only(manifest(request), site.honest(request).cut(20))
        }),
        (Kind::Damaged, &["digest of its manifest", "should be sha256:e3b0"], &|request, _| {
            let mut lie = site.honest(request);
            lie.headers = vec![("Docker-Content-Digest", Digest::sha256(b"").to_string())];
            only(manifest(request), lie)
        }),
        // The configuration, and the manifest by its digest: others of the same length, and of another.
        (Kind::Damaged, &["digest of \"blobs/", "the image says"], &|request, _| {
            only(is_config(request), answer(200, changed(site.honest(request).body)))
        }),
        (Kind::Damaged, &["bytes, and the image says"], &|request, _| {
            only(is_config(request), answer(200, "{}"))
        }),
        (Kind::Damaged, &["digest of \"blobs/", "the image says"], &|request, _| {
            only(
                manifest(request) && request.path.contains("sha256:"),
                answer(200, changed(site.honest(request).body)),
            )
        }),
        // Layers: another one, a longer, a shorter, an endless one, one without a length.
        (Kind::Damaged, &["its digest is"], &|request, _| {
            only(is_layer(request), answer(200, bytes(3_000_000, 5)))
        }),
        (Kind::Damaged, &["3000001 bytes", "3000000"], &|request, _| {
            only(is_layer(request), answer(200, bytes(3_000_001, 1)))
        }),
        (Kind::Damaged, &["2999999 bytes", "3000000"], &|request, _| {
            only(is_layer(request), answer(200, bytes(2_999_999, 1)))
        }),
        (Kind::Damaged, &["1099511627776 bytes"], &|request, _| {
            only(
                is_layer(request),
                Answer { stated: Some(Some(huge)), endless: true, ..answer(200, "") },
            )
        }),
        (Kind::Unsupported, &["does not say how long"], &|request, _| {
            only(is_layer(request), Answer { stated: Some(None), endless: true, ..answer(200, "") })
        }),
        // Redirects.
        (Kind::Damaged, &["more than 5 redirects"], &|request, _| {
            Some(answer(302, "").with("Location", request.path.clone()))
        }),
        (Kind::Damaged, &["redirects to nowhere"], &|_, _| Some(answer(302, ""))),
        (Kind::Damaged, &["http://other.example/x, which is not encrypted"], &|_, _| {
            Some(answer(302, "").with("Location", "http://other.example/x?secret"))
        }),
        (Kind::Damaged, &["none of HTTP"], &|_, _| {
            Some(answer(302, "").with("Location", "file:///etc/passwd"))
        }),
        // Log-ins.
        (Kind::Io, &["wants a user, and does not say how"], &|_, _| Some(answer(401, ""))),
        (Kind::Io, &["wants a user, and does not say how"], &|_, _| Some(challenge("Digest x=y"))),
        (Kind::Io, &["refuses what it gave access to"], &|request, _| match request
            .path
            .starts_with("/token")
        {
            true => Some(answer(200, "{\"access_token\":\"t\"}")),
            false => Some(challenge("Bearer realm=\"/token\"")),
        }),
        (Kind::Io, &["gives no access without a user"], &|_, _| {
            Some(challenge("Bearer realm=\"/token\""))
        }),
        (Kind::Damaged, &["http://tokens.example", "not encrypted"], &|_, _| {
            Some(challenge("Bearer realm=\"http://tokens.example/t\""))
        }),
        (Kind::Damaged, &["token that no header can have"], &|request, _| match request
            .path
            .starts_with("/token")
        {
            true => Some(answer(200, "{\"token\":\"a\\r\\nb\"}")),
            false => Some(challenge("Bearer realm=\"/token\"")),
        }),
        (Kind::Damaged, &["no token, but something else"], &|request, _| match request
            .path
            .starts_with("/token")
        {
            true => Some(Answer { endless: true, stated: Some(None), ..answer(200, "[") }),
            false => Some(challenge("Bearer realm=\"/token\"")),
        }),
    ];
    for (kind, words, rule) in lies {
        site.take_asked();
        site.refused(rule, *kind, words);
        assert!(site.take_asked().len() <= 20);
    }
    // Nothing of them is in the cache.
    let dir = tempfile::tempdir().unwrap();
    let other =
        |request: &Request, _: usize| is_layer(request).then(|| answer(200, bytes(3_000_000, 5)));
    site.serve(&other, |host| pull(host, &settings(Some(dir.path()))).unwrap_err());
    let names =
        std::fs::read_dir(dir.path().join("blobs")).unwrap().map(|e| e.unwrap().file_name());
    let wrong = Digest::sha256(&bytes(3_000_000, 5)).to_string().replace(':', "-");
    let right = Digest::sha256(&site.layers[0]).to_string().replace(':', "-");
    let names: Vec<_> = names.collect();
    assert_eq!(names.len(), 2, "manifest and configuration");
    assert!(names.iter().all(|name| *name != *wrong && *name != *right));
    // Who is not there.
    let error = pull("127.0.0.1:1", &settings(None)).unwrap_err();
    assert_eq!(error.kind, Kind::Io);
    #[cfg(not(feature = "tls"))]
    assert_eq!(pull("registry.example", &settings(None)).unwrap_err().kind, Kind::Unsupported);
}
