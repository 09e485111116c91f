//! Images behind a web server: read in place by every command, and written by none.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support;
use extant_sync::threads;
use support::mounts::mounts;
use support::{Place, Ran, text, tool};

/// A web server for the files of a directory.
struct Web<'a> {
    dir: &'a Path,
    ends: AtomicBool,
    /// Bytes of files that it sent, and in how many answers.
    sent: AtomicU64,
    answers: AtomicU64,
    /// A byte of which it says that nobody may have it.
    broken: AtomicU64,
    /// A byte that it sends only when `goes_on`.
    awaited: AtomicU64,
    is_awaited: AtomicBool,
    goes_on: AtomicBool,
}

impl Web<'_> {
    fn answer(&self, mut out: impl Read + Write) -> std::io::Result<()> {
        let mut lines = BufReader::new(&mut out).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let mut range = None;
        for line in lines {
            let line = line?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("range: bytes=") {
                let (from, to) = value.split_once('-').unwrap();
                range = Some((from.parse::<u64>().unwrap(), to.parse::<u64>().unwrap()));
            }
        }
        let name = first.split(' ').nth(1).unwrap_or("/");
        let name = name.split('?').next().unwrap().trim_start_matches('/');
        let close = "Connection: close\r\n\r\n";
        if let Ok(place) = std::fs::read_to_string(self.dir.join(format!("{name}.moved"))) {
            return write!(
                out,
                "HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n{close}"
            );
        }
        let Ok(file) = File::open(self.dir.join(name)) else {
            return write!(out, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{close}");
        };
        let size = file.metadata()?.len();
        let Some((from, to)) = range.filter(|_| !first.contains("?whole")) else {
            write!(out, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n{close}")?;
            return std::io::copy(&mut { file }, &mut out).map(drop);
        };
        let to = to.min(size - 1);
        let has = |byte: &AtomicU64| (from..=to).contains(&byte.load(Ordering::Relaxed));
        if has(&self.broken) {
            return write!(out, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n{close}");
        }
        if has(&self.awaited) {
            self.is_awaited.store(true, Ordering::Release);
            while !self.goes_on.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        let mut bytes = vec![0; (to - from + 1) as usize];
        file.read_exact_at(&mut bytes, from)?;
        let len = bytes.len();
        self.sent.fetch_add(len as u64, Ordering::Relaxed);
        self.answers.fetch_add(1, Ordering::Relaxed);
        write!(
            out,
            "HTTP/1.1 206 Partial Content\r\nETag: \"{size}\"\r\nContent-Range: bytes {from}-{to}/{size}\r\nContent-Length: {len}\r\n{close}"
        )?;
        out.write_all(&bytes)
    }
}

/// Runs `work` with a server for the files of `dir`, and its address.
fn with_web(dir: &Path, work: impl FnOnce(&Web<'_>, &str)) {
    serve(dir, "127.0.0.1", None, |web, host| work(web, &format!("http://{host}")));
}

/// Runs `work` with a server for the files of `dir`, over TLS if that is given, and its host and port.
fn serve(
    dir: &Path,
    host: &str,
    tls: Option<Arc<rustls::ServerConfig>>,
    work: impl FnOnce(&Web<'_>, &str),
) {
    let web = Web {
        dir,
        ends: AtomicBool::new(false),
        sent: AtomicU64::new(0),
        answers: AtomicU64::new(0),
        broken: AtomicU64::new(u64::MAX),
        awaited: AtomicU64::new(u64::MAX),
        is_awaited: AtomicBool::new(false),
        goes_on: AtomicBool::new(false),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = || {
        for stream in listener.incoming() {
            if web.ends.load(Ordering::Acquire) {
                return;
            }
            // Whoever does not wait for the answer is gone.
            let stream = stream.unwrap();
            let _ = match &tls {
                Some(tls) => {
                    let connection = rustls::ServerConnection::new(tls.clone()).unwrap();
                    web.answer(rustls::StreamOwned::new(connection, stream))
                }
                None => web.answer(stream),
            };
        }
    };
    threads::scope(|scope| {
        scope.spawn("web", serve).unwrap();
        let run = std::panic::AssertUnwindSafe(|| work(&web, &format!("{host}:{port}")));
        let done = std::panic::catch_unwind(run);
        web.ends.store(true, Ordering::Release);
        drop(TcpStream::connect(("127.0.0.1", port)));
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    })
    .unwrap();
}

#[test]
fn an_image_behind_a_web_server_is_read_in_place_and_not_written() {
    let place = Place::with_image();
    // Most of a large image is never asked for.
    File::options().write(true).open(place.path("a.img")).unwrap().set_len(64 << 20).unwrap();
    with_web(place.0.path(), |web, address| {
        let image = format!("{address}/a.img");
        let at = |path: &str| format!("{image}:{path}");
        let of = |image: &str| place.run(&["ls", "-Rl", image]).succeeds().out().replace(image, "");
        assert_eq!(of(&image), of("a.img"));
        assert_eq!(place.run(&["cat", &at("/file")]).succeeds().out(), "hello\n");
        place.run(&["extract", &at("/dir"), "out"]).succeeds();
        assert_eq!(std::fs::read(place.path("out/again")).unwrap(), b"hello\n");
        place.run(&["check", &image]).succeeds();
        let sent = web.sent.load(Ordering::Relaxed);
        assert!(sent < 32 << 20, "{sent} bytes for four small questions");
        for args in [["rm", &at("/file")], ["tune", &image], ["repair", &image]] {
            let ran = place.run(&args);
            assert_ne!(ran.output.status.code(), Some(0), "{args:?}");
        }
        place.run(&["rm", &at("/file")]).ends_with(7).complains(&["only read"]).hints("curl");
        place.run(&["ls", "--overlay", "o.qcow2", &image]).succeeds();
        assert!(!place.path("o.qcow2").exists(), "reading makes no overlay");
        place.run(&["ls", &format!("{address}/none.img")]).ends_with(9).complains(&["404"]);
        let whole = place.run(&["ls", &format!("{address}/a.img?whole")]);
        whole.ends_with(5).complains(&["whole file"]).hints("download");
        assert_eq!(place.run(&["cat", "a.img:/file"]).succeeds().out(), "hello\n");
    });
    place.run(&["ls", "http://127.0.0.1:1/a.img"]).ends_with(8).complains(&["no answer"]);
    place.run(&["ls", "http://127.0.0.1"]).ends_with(2).complains(&["names no file"]);
}

/// Files of many directories, small and large, with holes, attributes, links and long targets.
fn make_wide_tree(place: &Place) {
    for number in 0..1200u32 {
        let dir = place.path(&format!("tree/{}/{}", number % 12, number % 60));
        std::fs::create_dir_all(&dir).unwrap();
        let text = format!("file {number}\n").repeat(1 + number as usize * 7 % 900);
        std::fs::write(dir.join(format!("f{number}")), text).unwrap();
    }
    let mut random = extant_base::Prng::new(5);
    let large: Vec<u8> = (0..9 << 17).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let file = File::create(place.path("tree/large")).unwrap();
    file.write_all_at(&large, 0).unwrap();
    file.write_all_at(&large[..100_000], 40 << 20).unwrap();
    std::os::unix::fs::symlink("x".repeat(300), place.path("tree/link")).unwrap();
    std::fs::hard_link(place.path("tree/3/3/f3"), place.path("tree/another")).unwrap();
}

#[test]
fn a_tree_behind_a_web_server_comes_whole_in_few_requests() {
    let place = Place::new();
    make_wide_tree(&place);
    place.run(&["build", "a.img", "--from", "tree", "--size", "64M", "-q"]).succeeds();
    let convert = ["convert", "-O", "qcow2", "a.img", "q.qcow2"];
    let has_qcow2 = tool("qemu-img", &convert, place.0.path()).is_some();
    let list = |dir: &str| {
        let files =
            "find . -type f | sort | xargs md5sum; find . ! -type d -printf '%p %s %l\\n' | sort";
        let args = ["-c", &format!("cd {dir} && {files}")];
        text(&tool("sh", &args, place.0.path()).unwrap())
    };
    let wanted = list("tree");
    let tar = place.run(&["tar", "a.img"]).succeeds().output.stdout;
    with_web(place.0.path(), |web, address| {
        // 64 MiB in requests of up to 4 MiB are 16; what leads to them is read a few levels at a time.
        let few = |what: &str, most: u64| {
            let answers = web.answers.swap(0, Ordering::Relaxed);
            println!("{what}: {answers} requests");
            assert!(answers <= most, "{what}: {answers} requests");
        };
        place.run(&["extract", &format!("{address}/a.img"), "out"]).succeeds();
        few("extract", 40);
        assert!(list("out") == wanted);
        assert!(place.run(&["tar", &format!("{address}/a.img")]).succeeds().output.stdout == tar);
        few("tar", 40);
        if has_qcow2 {
            place.run(&["extract", &format!("{address}/q.qcow2"), "out2"]).succeeds();
            assert!(list("out2") == wanted);
            few("extract from qcow2", 60);
        }
        place.run(&["overlay", "create", "o.qcow2", "--base", &format!("{address}/a.img")]);
        let over = format!("{address}/a.img");
        place.run(&["rm", "--overlay", "o.qcow2", &format!("{over}:/another")]).succeeds();
        few("rm", 40);
        place.run(&["extract", "--overlay", "o.qcow2", &over, "out3"]).succeeds();
        few("extract from an overlay", 60);
        std::fs::remove_file(place.path("tree/another")).unwrap();
        assert!(list("out3") == list("tree"));
    });
}

#[test]
fn a_qcow2_image_behind_a_web_server_is_read_unless_it_lies_over_another() {
    let place = Place::with_image();
    let convert = ["convert", "-O", "qcow2", "-c", "a.img", "q.qcow2"];
    let Some(made) = tool("qemu-img", &convert, place.0.path()) else { return };
    assert!(made.status.success(), "{}", text(&made));
    place.run(&["overlay", "create", "o.qcow2", "--base", "a.img"]).succeeds();
    std::fs::copy(place.path("q.qcow2"), place.path("plain")).unwrap();
    std::fs::copy(place.path("o.qcow2"), place.path("doubtful")).unwrap();
    with_web(place.0.path(), |_, address| {
        for name in ["q.qcow2", "plain"] {
            let cat = place.run(&["cat", &format!("{address}/{name}:/file")]);
            assert_eq!(cat.succeeds().out(), "hello\n", "{name}");
        }
        let over = place.run(&["ls", &format!("{address}/o.qcow2")]);
        over.ends_with(5).complains(&["lies over another image"]);
        let doubtful = place.run(&["ls", &format!("{address}/doubtful")]);
        doubtful.ends_with(7).complains(&["header of a qcow2 image"]);
        let as_raw = place.run(&["ls", "--format", "raw", &format!("{address}/q.qcow2")]);
        as_raw.ends_with(4);
    });
}

/// A certificate for `host` that signed itself, in a file and as servers take it.
fn certified(place: &Place, host: &str, file: &str) -> Arc<rustls::ServerConfig> {
    let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
    std::fs::write(place.path(file), made.cert.pem()).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key).unwrap())
}

#[test]
fn https_servers_are_believed_when_their_certificate_is_and_named_when_not() {
    let place = Place::with_image();
    let run = |trusted: &str, args: &[&str]| {
        let output = place.command(args).env("SSL_CERT_FILE", place.path(trusted)).output();
        Ran { args: args.join(" "), output: output.unwrap() }
    };
    // An address that leads to this host, and is not one for which encryption is left out.
    let host = "0.0.0.0";
    let tls = certified(&place, host, "right.pem");
    certified(&place, host, "wrong.pem");
    let elsewhere = certified(&place, "images.example", "elsewhere.pem");
    serve(place.0.path(), host, Some(tls.clone()), |_, at| {
        let file = format!("https://{at}/a.img:/file");
        if !cfg!(feature = "tls") {
            run("right.pem", &["cat", &file]).ends_with(5).complains(&["without https"]);
            return;
        }
        assert_eq!(run("right.pem", &["cat", &file]).succeeds().out(), "hello\n");
        // Whoever names a file that has no certificates believes nobody.
        // The signer in wrong.pem has the same name, and another key.
        let doubts = [("wrong.pem", "signature"), ("a.img", "nobody"), ("none.pem", "nobody")];
        for (trusted, why) in doubts {
            let ran = run(trusted, &["cat", &file]);
            let ran = ran.ends_with(8).complains(&[at, "certificate is not believed", why]);
            ran.hints("SSL_CERT_FILE");
        }
    });
    if !cfg!(feature = "tls") {
        return;
    }
    serve(place.0.path(), host, Some(elsewhere), |_, at| {
        let ran = run("elsewhere.pem", &["cat", &format!("https://{at}/a.img:/file")]);
        ran.ends_with(8).complains(&["it is for another host"]);
    });
    // A registry, of an image of one layer.
    std::fs::create_dir(place.path("tree")).unwrap();
    std::fs::write(place.path("tree/hello"), "hello\n").unwrap();
    let Some(done) = tool("tar", &["-cf", "layer", "-C", "tree", "."], place.0.path()) else {
        return;
    };
    assert!(done.status.success(), "{}", text(&done));
    let root = place.path("v2/app");
    std::fs::create_dir_all(root.join("blobs")).unwrap();
    std::fs::create_dir(root.join("manifests")).unwrap();
    let blob = |kind: &str, bytes: &[u8]| {
        let digest = extant_oci::Digest::sha256(bytes).to_string();
        std::fs::write(root.join("blobs").join(&digest), bytes).unwrap();
        let kind = format!("application/vnd.oci.image.{kind}");
        serde_json::json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    };
    let layer = std::fs::read(place.path("layer")).unwrap();
    let diff = extant_oci::Digest::sha256(&layer).to_string();
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [diff]},
    });
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", config.to_string().as_bytes()),
        "layers": [blob("layer.v1.tar", &layer)],
    });
    let manifest = manifest.to_string();
    let digest = extant_oci::Digest::sha256(manifest.as_bytes()).to_string();
    for name in ["latest", &digest] {
        std::fs::write(root.join("manifests").join(name), &manifest).unwrap();
    }
    serve(place.0.path(), host, Some(tls), |_, at| {
        let from = format!("docker://{at}/app");
        let build = ["build", "app.img", "--no-cache", "--from", &from];
        let ran = run("wrong.pem", &build);
        ran.ends_with(8).complains(&[at, "is not believed", "signature"]).hints("SSL_CERT_FILE");
        assert!(!place.path("app.img").exists());
        run("right.pem", &build).succeeds();
        assert_eq!(place.run(&["cat", "app.img:/hello"]).succeeds().out(), "hello\n");
        // What was asked for over https does not come without, not even from this host.
        std::fs::remove_file(place.path("app.img")).unwrap();
        with_web(place.0.path(), |_, plain| {
            let there = format!("{plain}/v2/app/blobs/{diff}");
            std::fs::write(root.join("blobs").join(format!("{diff}.moved")), there).unwrap();
            run("right.pem", &build).complains(&["not encrypted", plain]);
        });
        assert!(!place.path("app.img").exists());
    });
}

#[test]
fn a_mount_of_an_image_behind_a_web_server_needs_connections_and_is_read_only() {
    let Some(mounts) = mounts() else { return };
    std::fs::write(mounts.path("hello"), "hello\n").unwrap();
    mounts.place.run(&["cp", "hello", "a.img:/file"]).succeeds();
    with_web(mounts.place.0.path(), |_, address| {
        let image = format!("{}/a.img?key=secret", address.replace("//", "//me:secret@"));
        let boxed = mounts.place.run(&["mount", "-r", &image, "m"]);
        boxed.ends_with(7).complains(&["sandbox"]).hints("--sandbox=off");
        mounts.place.run(&["mount", "--sandbox=off", &image, "m"]).succeeds();
        let point = mounts.path("m");
        assert_eq!(std::fs::read(point.join("file")).unwrap(), b"hello\n");
        assert!(std::fs::write(point.join("new"), b"x").is_err());
        let listed = mounts.listed().unwrap_or_default();
        assert!(!listed.contains("secret"), "{listed}");
        mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    });
}

/// An image with a directory far from everything that opening needs, and where its block is.
fn with_distant_directory() -> Option<(Place, u64)> {
    let place = Place::new();
    place.run(&["mkfs", "-q", "a.img", "64M"]).succeeds();
    place.run(&["mkdir", "a.img:/dir"]).succeeds();
    let asked = tool("debugfs", &["-R", "blocks /dir", "a.img"], place.0.path())?;
    let block: u64 = text(&asked).trim().parse().unwrap();
    Some((place, block))
}

#[test]
fn a_check_names_what_cannot_be_read_and_does_not_call_it_clean() {
    let Some((place, block)) = with_distant_directory() else { return };
    with_web(place.0.path(), |web, address| {
        let image = format!("{address}/a.img");
        place.run(&["check", &image]).succeeds();
        web.broken.store(block * 1024, Ordering::Relaxed);
        let ran = place.run(&["check", &image]).ends_with(8);
        let said = format!("block {block}");
        let named = ran.out().lines().any(|line| line.contains(&said) && line.contains("read"));
        assert!(named && ran.out().contains("extant salvage"), "{}", ran.out());
        // One line for it, and the verdict.
        assert_eq!(ran.out().lines().count(), 2, "{}", ran.out());
        let json = place.run(&["check", "--json", "--threads=1", &image]).ends_with(8).json();
        assert_eq!((&json["partial"], &json["clean"]), (&true.into(), &false.into()));
        assert_eq!(json["problems"][0]["code"], "unreadable");
        // Damage elsewhere does not hide it.
        std::fs::write(place.path("none"), "no image").unwrap();
        place.run(&["check", "none", &image]).ends_with(8);
    });
}

#[test]
fn an_interrupted_check_tells_what_it_found_so_far() {
    let Some((place, block)) = with_distant_directory() else { return };
    let before = std::fs::read(place.path("a.img")).unwrap();
    with_web(place.0.path(), |web, address| {
        web.awaited.store(block * 1024, Ordering::Relaxed);
        let args = ["check", &format!("{address}/a.img"), "missing.img"];
        let mut command = place.command(&args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !web.is_awaited.load(Ordering::Acquire) {
            assert!(child.try_wait().unwrap().is_none(), "never asked for the directory");
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        web.goes_on.store(true, Ordering::Release);
        let output = child.wait_with_output().unwrap();
        let ran = Ran { args: args.join(" "), output }.ends_with(130);
        assert!(ran.out().contains("0 problems so far"), "{}", ran.out());
        assert!(ran.err().contains("interrupted"), "{}", ran.err());
        // The next image is not begun.
        assert!(!ran.err().contains("missing.img"), "{}", ran.err());
    });
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
}

/// Runs the command with keys in the environment and nothing else of what names an account.
fn run_with_keys(place: &Place, endpoint: &str, variables: &[(&str, &str)], args: &[&str]) -> Ran {
    let mut command = place.command(args);
    for name in ["AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_SKIP_SIGNATURE"] {
        command.env_remove(name);
    }
    command.env("HOME", place.0.path()).env("AWS_ENDPOINT_URL", endpoint);
    command.env("AWS_ACCESS_KEY_ID", "ID").env("AWS_SECRET_ACCESS_KEY", "hidden");
    command.env("AWS_REGION", "us-east-1").envs(variables.iter().copied());
    Ran { args: args.join(" "), output: command.output().unwrap() }
}

#[test]
fn objects_are_read_by_every_command_and_keys_are_shown_by_none() {
    let place = Place::with_image();
    std::fs::create_dir(place.path("images")).unwrap();
    std::fs::copy(place.path("a.img"), place.path("images/a.img")).unwrap();
    with_web(place.0.path(), |web, endpoint| {
        let run = |args: &[&str]| run_with_keys(&place, endpoint, &[], args);
        assert_eq!(run(&["cat", "s3://images/a.img:/file"]).succeeds().out(), "hello\n");
        run(&["extract", "s3://images/a.img:/dir", "out"]).succeeds();
        assert_eq!(std::fs::read(place.path("out/again")).unwrap(), b"hello\n");
        run(&["check", "s3://images/a.img"]).succeeds();
        for (args, code, word) in [
            (["rm", "s3://images/a.img:/file"], 7, "an object in a store is only read"),
            (["ls", "s3://images/none.img"], 9, "404"),
            (["ls", "s3://images"], 2, "names no object"),
            (["ls", "s3://ID:hidden@images/a.img"], 2, "environment"),
        ] {
            let ran = run(&args).ends_with(code).complains(&[word]);
            assert!(!text(&ran.output).contains("hidden"), "{}", text(&ran.output));
        }
        let without = [("AWS_ACCESS_KEY_ID", "")];
        let ran = run_with_keys(&place, endpoint, &without, &["ls", "s3://images/a.img"]);
        ran.ends_with(2).complains(&["no keys"]).hints("--no-sign-request");
        let args = ["ls", "--no-sign-request", "s3://images/a.img"];
        run_with_keys(&place, endpoint, &without, &args).succeeds();

        // What one command fetched, the next one has.
        let sent = || web.sent.swap(0, Ordering::Relaxed);
        for image in ["s3://images/a.img", &format!("{endpoint}/a.img")] {
            let cache = format!("{},64M", place.path("cache").display());
            let list = ["ls", "-Rl", "--cache-dir", &cache, image];
            sent();
            let first = run(&list).succeeds().out();
            let cold = sent();
            assert_eq!(run(&list).succeeds().out(), first);
            let warm = sent();
            assert!(warm <= 64 << 10 && (warm < cold || cold <= 64 << 10), "{cold} {warm}");
            let list = ["ls", "-Rl", image];
            let by_variable = run_with_keys(&place, endpoint, &[("EXTANT_CACHE", &cache)], &list);
            assert_eq!(by_variable.succeeds().out(), first);
            assert!(sent() <= 64 << 10);
        }
        for (cache, why) in [(",1G", "directory"), ("c,1M", "16M"), ("c,x", "x")] {
            let ran = run(&["ls", "--cache-dir", cache, "s3://images/a.img"]).ends_with(2);
            assert!(ran.err().contains(why), "{cache}: {}", ran.err());
        }
        std::fs::write(place.path("plain"), "x").unwrap();
        let ran = run(&["ls", "--cache-dir", "plain", "s3://images/a.img"]);
        ran.ends_with(8).complains(&["cannot be a cache"]);
    });
}

#[test]
fn another_implementation_of_a_store_is_read() {
    let place = Place::with_image();
    let script = "
import sys
try:
    import boto3
    from moto.server import ThreadedMotoServer
except ImportError as error:
    sys.exit(print(error) or 0)
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
at = 'http://%s:%d' % server.get_host_and_port()
store = boto3.client('s3', endpoint_url=at, aws_access_key_id='ID', aws_secret_access_key='hidden', region_name='us-east-1')
store.create_bucket(Bucket='images')
store.upload_file('a.img', 'images', 'some/a disk+1.img')
print(at, flush=True)
sys.stdin.read()
server.stop()
";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", script]).current_dir(place.0.path());
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut server) = python.spawn() else {
        eprintln!("skipped: there is no python3");
        return;
    };
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let endpoint = line.trim();
    if endpoint.starts_with("http://") {
        let run = |args: &[&str]| run_with_keys(&place, endpoint, &[], args);
        let image = "s3://images/some/a disk+1.img";
        assert_eq!(run(&["cat", &format!("{image}:/file")]).succeeds().out(), "hello\n");
        run(&["check", image]).succeeds();
        let none = run(&["ls", "s3://images/none"]);
        none.ends_with(9).complains(&["404 NoSuchKey: there is no such object"]);
        run(&["ls", "s3://nowhere/none"]).ends_with(9).complains(&["there is no such bucket"]);
    } else {
        eprintln!("skipped: python3 has no moto and boto3 ({endpoint})");
    }
    drop(server.stdin.take());
    server.wait().unwrap();
}

#[test]
fn changes_of_an_image_behind_a_web_server_go_to_an_overlay_over_that_version() {
    let place = Place::with_image();
    let dir = place.0.path();
    let has_qemu = tool("qemu-img", &["convert", "-O", "qcow2", "a.img", "b.qcow2"], dir).is_some();
    with_web(dir, |_, web| {
        for (image, overlay) in [("a.img", "o.qcow2"), ("b.qcow2", "p.qcow2")] {
            if !has_qemu && image == "b.qcow2" {
                continue;
            }
            let before = std::fs::read(place.path(image)).unwrap();
            let address = format!("{web}/{image}");
            let at = |path: &str| format!("{address}:{path}");
            place
                .run(&["cp", "source/file", &at("/new")])
                .ends_with(7)
                .complains(&["only read"])
                .hints("--overlay FILE");
            place.run(&["cp", "--overlay", overlay, "source/file", &at("/new")]).succeeds();
            place.run(&["rm", "--overlay", overlay, &at("/file")]).succeeds();
            let cat = place.run(&["cat", "--overlay", overlay, &at("/new")]).succeeds();
            assert_eq!(cat.out(), "hello\n");
            place.run(&["cat", "--overlay", overlay, &at("/file")]).ends_with(9);
            place.run(&["check", "--overlay", overlay, &address]).succeeds();
            let info = place.run(&["overlay", "info", overlay]).succeeds().out();
            let len = before.len();
            assert!(info.contains(&format!("over: {address}")), "{info}");
            assert!(info.contains(&format!("when it was made: {len} bytes, tag")), "{info}");
            place
                .run(&["overlay", "commit", overlay, "--over", &address])
                .ends_with(7)
                .complains(&[overlay, &address, "only read"])
                .hints("download the base");
            // Another version is another image.
            let mut longer = before.clone();
            longer.extend([0; 65_536]);
            std::fs::write(place.path(image), &longer).unwrap();
            for command in ["stat", "rm"] {
                place
                    .run(&[command, "--overlay", overlay, &at("/new")])
                    .ends_with(7)
                    .complains(&["has changed since", &format!("{len} bytes")])
                    .hints("a new overlay");
            }
            std::fs::write(place.path(image), &before).unwrap();
            place.run(&["stat", "--overlay", overlay, &at("/new")]).succeeds();
            // As the hint of the commit says.
            std::fs::write(place.path("copy"), &before).unwrap();
            let format = if image == "a.img" { "raw" } else { "qcow2" };
            place
                .run(&[
                    "overlay", "rebase", overlay, "--over", &address, "--base", "copy", "--format",
                    format,
                ])
                .succeeds();
            place.run(&["overlay", "commit", overlay]).succeeds();
            let cat = place.run(&["cat", "--format", format, "copy:/new"]).succeeds();
            assert_eq!(cat.out(), "hello\n");
        }
    });
}

#[test]
fn an_overlay_does_not_hold_passwords_of_its_base() {
    let place = Place::with_image();
    with_web(place.0.path(), |_, web| {
        let address = web.replace("http://", "http://me:secret@") + "/a.img";
        place.run(&["mkdir", "--overlay", "o.qcow2", &format!("{address}:/made")]).succeeds();
        place.run(&["stat", "--overlay", "o.qcow2", &format!("{address}:/made")]).succeeds();
        // Nor what gives access behind `?`; another signature of the same file will do.
        for signature in ["secret", "other-secret"] {
            let signed = format!("{web}/a.img?signature={signature}:/made");
            place.run(&["stat", "--overlay", "o.qcow2", &signed]).succeeds();
            let signed = format!("{web}/a.img?signature={signature}:/{signature}");
            place.run(&["mkdir", "--overlay", "o2.qcow2", &signed]).succeeds();
        }
        let info = place.run(&["overlay", "info", "o2.qcow2"]).succeeds().out();
        assert!(info.contains(&format!("over: {web}/a.img (raw)")), "{info}");
        let header = std::fs::read(place.path("o2.qcow2")).unwrap()[..65536].to_vec();
        assert!(!header.windows(6).any(|six| six == b"secret"), "the signature is in the file");
        let bytes = std::fs::read(place.path("o.qcow2")).unwrap();
        assert!(!bytes.windows(6).any(|six| six == b"secret"), "the password is in the file");
    });
}
