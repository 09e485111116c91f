//! Objects in a store of the test's own, which computes signatures by the rules of AWS and not by those of the crate.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use extant_http::{Account, DiskCache, HttpDevice, HttpError, ObjectAddress};
use extant_sync::{Clock, Mutex, Rank, SystemClock, threads};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::{PAGE, chain, read, settings};

const SECRET: &str = "a/secret+key";
const TOKEN: &str = "a session/token+==";

/// What is wrong with an answer.
#[derive(Clone, Copy)]
enum Wrong {
    /// A status, and a word in the body.
    Error(u16, &'static str),
    /// The bucket is in another region.
    Region(u16, &'static str),
    /// The store sends elsewhere.
    Location(&'static str),
    CutAfter(usize),
    OtherRange,
    OtherTag,
    /// An error with a body without an end.
    Endless,
    /// Its clock is ahead by so many seconds.
    Ahead(i64),
}

struct Store {
    body: Vec<u8>,
    region: Mutex<&'static str>,
    wrong: Mutex<VecDeque<Wrong>>,
    /// Requests with a right signature.
    right: Mutex<u32>,
    /// The hosts, URLs and headers that came.
    heard: Mutex<String>,
    tag: Mutex<&'static str>,
    ends: AtomicBool,
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

impl Store {
    fn new(len: usize) -> Store {
        Store {
            body: (0..len).map(|at| (at ^ (at >> 7)) as u8).collect(),
            region: Mutex::new(Rank::Leaf, "us-east-1"),
            wrong: Mutex::new(Rank::Leaf, VecDeque::new()),
            right: Mutex::new(Rank::Leaf, 0),
            heard: Mutex::new(Rank::Leaf, String::new()),
            tag: Mutex::new(Rank::Leaf, "\"one\""),
            ends: AtomicBool::new(false),
        }
    }

    fn fails(&self, wrong: &[Wrong]) {
        self.wrong.lock().extend(wrong);
    }

    /// Says what is wrong with a request, in the words of S3.
    fn doubt(&self, path: &str, query: &str, host: &str) -> Option<&'static str> {
        let all: Vec<(&str, &str)> =
            query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let get = |name: &str| all.iter().find(|(this, _)| *this == name).map(|(_, value)| *value);
        let Some(signature) = get("X-Amz-Signature") else { return Some("AccessDenied") };
        let date = get("X-Amz-Date")?;
        let day = date.get(..8)?;
        let region = *self.region.lock();
        let scope = format!("{day}/{region}/s3/aws4_request");
        if get("X-Amz-Credential")? != format!("ID/{scope}").replace('/', "%2F") {
            return Some("InvalidAccessKeyId");
        }
        if get("X-Amz-Security-Token").is_none_or(|token| token != "a%20session%2Ftoken%2B%3D%3D") {
            return Some("InvalidToken");
        }
        let mut signed: Vec<&str> =
            query.split('&').filter(|pair| !pair.starts_with("X-Amz-Signature")).collect();
        signed.sort_unstable();
        let request =
            format!("GET\n{path}\n{}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD", signed.join("&"));
        let digest = hex(&Sha256::digest(request.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}");
        let mut key = hmac(format!("AWS4{SECRET}").as_bytes(), day);
        for part in [region, "s3", "aws4_request"] {
            key = hmac(&key, part);
        }
        (hex(&hmac(&key, &text)) != signature).then_some("SignatureDoesNotMatch")
    }

    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut out = stream;
        let first = lines.next().transpose()?.unwrap_or_default();
        let (mut range, mut matched, mut host) = (None, None, String::new());
        let mut heard = format!("{first}\n");
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            heard += &format!("{line}\n");
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            match name.to_ascii_lowercase().as_str() {
                "range" => range = Some(value.trim().to_owned()),
                "if-match" => matched = Some(value.trim().to_owned()),
                "host" => host = value.trim().to_owned(),
                _ => {}
            }
        }
        self.heard.lock().push_str(&heard);
        let url = first.split(' ').nth(1).unwrap_or_default();
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let mut head = "Connection: close\r\n".to_owned();
        let error = |out: &mut TcpStream, status: u16, head: &str, code: &str| {
            let body = format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code></Error>");
            write!(
                out,
                "HTTP/1.1 {status} No\r\n{head}Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let wrong = self.wrong.lock().pop_front();
        match wrong {
            Some(Wrong::Error(status, code)) => return error(&mut out, status, &head, code),
            Some(Wrong::Region(status, region)) => {
                head += &format!("x-amz-bucket-region: {region}\r\n");
                return error(&mut out, status, &head, "PermanentRedirect");
            }
            Some(Wrong::Location(place)) => {
                head += &format!("Location: {place}\r\n");
                return error(&mut out, 307, &head, "TemporaryRedirect");
            }
            Some(Wrong::Endless) => {
                write!(out, "HTTP/1.1 403 No\r\n{head}\r\n<Code>Access")?;
                while out.write_all(&[b'x'; PAGE]).is_ok() {}
                return Ok(());
            }
            Some(Wrong::Ahead(seconds)) => {
                let now = SystemClock.now().0 + seconds;
                let date = jiff::Timestamp::from_second(now).unwrap();
                head += &format!("Date: {}\r\n", date.strftime("%a, %d %b %Y %H:%M:%S GMT"));
                return error(&mut out, 403, &head, "AccessDenied");
            }
            _ => {}
        }
        let is_public = path == "/images/public.img";
        if let Some(code) = self.doubt(path, query, &host).filter(|_| !is_public) {
            return error(&mut out, 403, &head, code);
        }
        *self.right.lock() += 1;
        if !is_public && path != "/images/a%20disk%2B1.img" {
            return error(&mut out, 404, &head, "NoSuchKey");
        }
        let tag = match wrong {
            Some(Wrong::OtherTag) => "\"two\"",
            _ => *self.tag.lock(),
        };
        if matched.is_some_and(|matched| matched != *self.tag.lock()) {
            return error(&mut out, 412, &head, "PreconditionFailed");
        }
        let range = range.expect("a part is asked for");
        let (from, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (from, last): (usize, usize) = (from.parse().unwrap(), last.parse().unwrap());
        let to = (last + 1).min(self.body.len());
        let shift = usize::from(matches!(wrong, Some(Wrong::OtherRange)));
        write!(
            out,
            "HTTP/1.1 206 Partial Content\r\n{head}ETag: {tag}\r\nContent-Range: bytes {}-{}/{}\r\nContent-Length: {}\r\n\r\n",
            from + shift,
            to - 1,
            self.body.len(),
            to - from - shift
        )?;
        match wrong {
            Some(Wrong::CutAfter(bytes)) => out.write_all(&self.body[from..to][..bytes]),
            _ => out.write_all(&self.body[from + shift..to]),
        }
    }

    /// Runs `work` with the endpoint, while the store serves.
    fn serve(&self, work: impl FnOnce(&str)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        threads::scope(|scope| {
            let serving = || {
                for stream in listener.incoming() {
                    if self.ends.load(Ordering::Acquire) {
                        return;
                    }
                    // A client that has gone is none of the store's business.
                    drop(self.answer(stream.unwrap()));
                }
            };
            scope.spawn("store", serving).unwrap();
            let work = std::panic::AssertUnwindSafe(|| work(&format!("http://127.0.0.1:{port}")));
            let done = std::panic::catch_unwind(work);
            self.ends.store(true, Ordering::Release);
            drop(TcpStream::connect(("127.0.0.1", port)));
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        })
        .unwrap();
    }
}

fn account(endpoint: &str) -> Account {
    Account::anonymous(Some(endpoint), None).unwrap().with_keys("ID", SECRET, Some(TOKEN))
}

fn open_as(account: &Account, name: &str) -> Result<HttpDevice, HttpError> {
    HttpDevice::open_object(&ObjectAddress::parse(name).unwrap(), account, &settings())
}

const NAME: &str = "s3://images/a disk+1.img";

#[test]
fn an_object_is_read_by_signed_requests_and_public_ones_without() {
    let store = Store::new(20 * PAGE + 3);
    store.serve(|endpoint| {
        let device = open_as(&account(endpoint), NAME).unwrap();
        assert!(read(&device, 0, store.body.len()).unwrap() == store.body);
        assert!(*store.right.lock() >= 2);
        let shown = format!("{device:?} {:?}", account(endpoint));
        assert!(shown.contains("s3://images/a disk+1.img"), "{shown}");
        let heard = store.heard.lock().clone();
        for secret in [SECRET, "a%2Fsecret", "secret+key"] {
            assert!(!heard.contains(secret) && !shown.contains(secret), "{heard} {shown}");
        }
        let nobody = Account::anonymous(Some(endpoint), None).unwrap();
        let device = open_as(&nobody, "s3://images/public.img").unwrap();
        assert!(read(&device, PAGE, 9).unwrap() == store.body[PAGE..PAGE + 9]);
        let refused = chain(&open_as(&nobody, NAME).unwrap_err());
        assert!(refused.contains("403 AccessDenied: without keys"), "{refused}");
    });
}

#[test]
fn what_a_store_refuses_is_told_at_once_and_in_words() {
    let store = Store::new(4 * PAGE);
    store.serve(|endpoint| {
        let right = account(endpoint);
        let anonymous = || Account::anonymous(Some(endpoint), None).unwrap();
        for (keys, what) in [
            (
                anonymous().with_keys("ID", "wrong", Some(TOKEN)),
                "403 SignatureDoesNotMatch: the secret key",
            ),
            (anonymous().with_keys("XX", SECRET, Some(TOKEN)), "403 InvalidAccessKeyId"),
            (anonymous().with_keys("ID", SECRET, None), "403 InvalidToken: the session token"),
        ] {
            let error = chain(&open_as(&keys, NAME).unwrap_err());
            assert!(error.contains(what), "{error}");
            assert!(!error.contains(SECRET) && !error.contains("X-Amz"), "{error}");
        }
        let missing = open_as(&right, "s3://images/none.img").unwrap_err();
        assert!(matches!(missing, HttpError::Store { status: 404, .. }), "{missing:?}");
        for (wrong, what) in [
            (Wrong::Error(404, "NoSuchBucket"), "there is no such bucket"),
            (Wrong::Error(403, "InvalidObjectState"), "archived"),
            (Wrong::Error(301, "PermanentRedirect"), "does not say in which region"),
            (Wrong::Ahead(5000), " seconds behind the store's"),
            (Wrong::Ahead(-5000), " seconds ahead of the store's"),
            (Wrong::Endless, "403: these keys may not read it"),
            (Wrong::OtherRange, "asked for 0..65536"),
        ] {
            store.fails(&[wrong]);
            let error = chain(&open_as(&right, NAME).unwrap_err());
            assert!(error.contains(what), "{error}");
            // One request was enough.
            open_as(&right, NAME).unwrap();
        }
    });
}

#[test]
fn what_passes_is_tried_again_and_another_version_is_not_mixed_in() {
    let store = Store::new(20 * PAGE);
    store.serve(|endpoint| {
        let device = open_as(&account(endpoint), NAME).unwrap();
        let part = |page: usize| read(&device, page * PAGE, 100);
        for (index, wrong) in [
            Wrong::Error(503, "SlowDown"),
            Wrong::Error(500, "InternalError"),
            Wrong::Error(400, "RequestTimeout"),
            Wrong::CutAfter(1000),
        ]
        .into_iter()
        .enumerate()
        {
            store.fails(&[wrong, wrong]);
            // Backwards, so that none is fetched ahead.
            let page = 10 - 2 * index;
            assert!(part(page).unwrap() == store.body[page * PAGE..][..100]);
        }
        store.fails(&[Wrong::Error(503, "SlowDown"); 3]);
        let error = chain(&part(15).unwrap_err());
        assert!(error.contains("no answer in 3 attempts") && error.contains("503"), "{error}");
        store.fails(&[Wrong::OtherTag]);
        let error = chain(&part(15).unwrap_err());
        assert!(error.contains("changed while it was being read"), "{error}");
        *store.tag.lock() = "\"three\"";
        let error = chain(&part(17).unwrap_err());
        assert!(error.contains("the server has another version"), "{error}");
        assert!(part(0).unwrap() == store.body[..100]);
    });
}

#[test]
fn a_store_decides_the_region_and_not_where_signed_requests_go() {
    let store = Store::new(2 * PAGE);
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = format!("http://{}/images/a%20disk%2B1.img", thief.local_addr().unwrap());
    thief.set_nonblocking(true).unwrap();
    store.serve(|endpoint| {
        let right = account(endpoint);
        for status in [301, 400, 403] {
            *store.region.lock() = "eu-north-1";
            store.fails(&[Wrong::Region(status, "eu-north-1")]);
            let device = open_as(&right, NAME).unwrap();
            assert!(read(&device, PAGE, 9).unwrap() == store.body[PAGE..PAGE + 9]);
        }
        // From one to the next, and back.
        store.fails(&[
            Wrong::Region(301, "eu-1"),
            Wrong::Region(301, "eu-2"),
            Wrong::Region(301, "eu-1"),
        ]);
        let error = chain(&open_as(&right, NAME).unwrap_err());
        assert!(error.contains("from region to region"), "{error}");
        for region in ["evil.example/", "evil.example#", "a@evil.example"] {
            store.fails(&[Wrong::Region(301, region)]);
            let error = chain(&open_as(&right, NAME).unwrap_err());
            assert!(error.contains("301 PermanentRedirect"), "{error}");
        }
        store.fails(&[Wrong::Location(elsewhere.clone().leak())]);
        let error = chain(&open_as(&right, NAME).unwrap_err());
        assert!(error.contains("307 TemporaryRedirect"), "{error}");
        assert!(thief.accept().is_err(), "somebody else was asked");
    });
}

#[test]
fn objects_share_a_cache_on_the_disk_by_their_tags() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(10 * PAGE);
    let mut settings = settings();
    settings.disk_cache = Some(DiskCache { dir: dir.path().to_owned(), most_bytes: 4 << 20 });
    store.serve(|endpoint| {
        let open = || {
            let address = ObjectAddress::parse(NAME).unwrap();
            let device = HttpDevice::open_object(&address, &account(endpoint), &settings).unwrap();
            assert!(read(&device, 0, store.body.len()).unwrap() == store.body);
            device.stats()
        };
        assert_eq!(open().bytes_from_disk, 0);
        let again = open();
        assert_eq!((again.requests, again.bytes_from_disk), (1, 9 * PAGE as u64));
        *store.tag.lock() = "\"new\"";
        assert_eq!(open().bytes_from_disk, 0);
        // Nothing on the disk tells a secret.
        for entry in std::fs::read_dir(dir.path().join("pages")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name == ".bytes" || name.len() <= 34, "{name}");
        }
    });
}
