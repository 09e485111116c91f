//! The device against a server of its own, which answers well, badly, late, or not at all.

#[cfg(feature = "s3")]
mod store;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use extant_block::{AlignedBuffer, BlockDevice, DeviceError, Operation};
use extant_http::{Address, DiskCache, HttpDevice, HttpError, Settings};
use extant_sync::{Clock, Condvar, Mutex, Rank, SystemClock, threads};

const PAGE: usize = 64 << 10;

/// What is wrong with an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    Status(u16),
    /// 503, and to come back after so many seconds.
    Later(u64),
    /// The connection ends after so many bytes of the body.
    CutAfter(usize),
    /// The connection ends at once.
    Silent,
    /// Nothing comes, and the connection stays.
    Stalls,
    /// The body stops in the middle, and the connection stays.
    StallsAfter(usize),
    /// The whole file.
    Whole,
    /// Another range than was asked for.
    OtherRange,
    /// As many bytes as were asked for, from another place.
    OtherPlace,
    /// A body without an end.
    Endless,
    Compressed,
    NoRange,
    OtherTag,
    OtherLength,
    OtherTime,
    /// Neither tag nor time.
    NoMarks,
    Garbage,
    RedirectTo(&'static str),
    /// The length of the file that the answer states; all other bytes are as in the file.
    Length(u64),
}

/// A server with one file.
struct Site {
    body: Vec<u8>,
    tag: Option<&'static str>,
    wrong: Mutex<VecDeque<Wrong>>,
    /// Ranges asked for, in order.
    asked: Mutex<Vec<(usize, usize)>>,
    matched: Mutex<Vec<Option<String>>>,
    /// How many requests must be under way before the first is answered.
    together: AtomicUsize,
    under_way: Mutex<usize>,
    more: Condvar,
    ends: AtomicBool,
}

impl Site {
    fn new(len: usize) -> Site {
        let body = (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 15)) as u8).collect();
        Site {
            body,
            tag: Some("\"one\""),
            wrong: Mutex::new(Rank::Leaf, VecDeque::new()),
            asked: Mutex::new(Rank::Leaf, Vec::new()),
            matched: Mutex::new(Rank::Leaf, Vec::new()),
            together: AtomicUsize::new(1),
            under_way: Mutex::new(Rank::Leaf, 0),
            more: Condvar::new(),
            ends: AtomicBool::new(false),
        }
    }

    fn fails(&self, wrong: &[Wrong]) {
        self.wrong.lock().extend(wrong);
    }

    fn take_asked(&self) -> Vec<(usize, usize)> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// Waits until so many requests are under way as are to be answered together.
    fn wait_for_others(&self) {
        let mut count = self.under_way.lock();
        *count += 1;
        self.more.notify_all();
        let until = SystemClock.monotonic() + Duration::from_secs(20);
        while *count < self.together.load(Ordering::Acquire) {
            assert!(SystemClock.monotonic() < until, "requests come one after the other");
            self.more.wait_for(&mut count, Duration::from_secs(1));
        }
    }

    fn until_the_end(&self) {
        while !self.ends.load(Ordering::Acquire) {
            SystemClock.sleep(Duration::from_millis(10));
        }
    }

    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut out = stream;
        let first = lines.next().transpose()?.unwrap_or_default();
        let (mut range, mut matched) = (None, None);
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            match name.to_ascii_lowercase().as_str() {
                "range" => range = Some(value.trim().to_owned()),
                "if-match" => matched = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let wrong = self.wrong.lock().pop_front();
        match wrong {
            Some(Wrong::Silent) => return Ok(()),
            Some(Wrong::Stalls) => {
                self.until_the_end();
                return Ok(());
            }
            Some(Wrong::Garbage) => return out.write_all(b"EXT4 rules\r\n\r\n"),
            Some(Wrong::RedirectTo(place)) => {
                return write!(
                    out,
                    "HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
            }
            Some(Wrong::Status(status)) => {
                return write!(
                    out,
                    "HTTP/1.1 {status} No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
                );
            }
            Some(Wrong::Later(seconds)) => {
                return write!(
                    out,
                    "HTTP/1.1 503 Busy\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
            }
            _ => {}
        }
        if !first.starts_with("GET /disk.img") {
            return out.write_all(
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
        let range = range.expect("a part is asked for");
        let (from, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (from, last): (usize, usize) = (from.parse().unwrap(), last.parse().unwrap());
        let to = (last + 1).min(self.body.len());
        if from >= to {
            return out.write_all(
                b"HTTP/1.1 416 Past the end\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
        self.asked.lock().push((from, to));
        let moved = usize::from(wrong == Some(Wrong::OtherPlace));
        let (from, to) = (from + moved, to + moved);
        self.matched.lock().push(matched.clone());
        self.wait_for_others();
        let tag = match wrong {
            Some(Wrong::OtherTag) => Some("\"two\""),
            Some(Wrong::NoMarks) => None,
            _ => self.tag,
        };
        if matched.is_some() && wrong != Some(Wrong::OtherTag) && matched.as_deref() != self.tag {
            return out.write_all(
                b"HTTP/1.1 412 Changed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        }
        let mut head = String::new();
        if let Some(tag) = tag {
            head += &format!("ETag: {tag}\r\n");
        }
        let day = if wrong == Some(Wrong::OtherTime) { "Tue" } else { "Mon" };
        if wrong != Some(Wrong::NoMarks) {
            head += &format!("Last-Modified: {day}, 01 Jan 2024 00:00:00 GMT\r\n");
        }
        if wrong == Some(Wrong::Whole) {
            head += &format!("Content-Length: {}\r\n", self.body.len());
            write!(out, "HTTP/1.1 200 OK\r\n{head}Connection: close\r\n\r\n")?;
            return out.write_all(&self.body);
        }
        let mut total = (self.body.len() + usize::from(wrong == Some(Wrong::OtherLength))) as u64;
        if let Some(Wrong::Length(len)) = wrong {
            total = len;
        }
        let shift = usize::from(wrong == Some(Wrong::OtherRange));
        if wrong != Some(Wrong::NoRange) {
            head += &format!("Content-Range: bytes {}-{}/{total}\r\n", from + shift, to - 1);
        }
        if wrong == Some(Wrong::Compressed) {
            head += "Content-Encoding: gzip\r\n";
        }
        if wrong != Some(Wrong::Endless) {
            head += &format!("Content-Length: {}\r\n", to - from - shift);
        }
        write!(out, "HTTP/1.1 206 Partial Content\r\n{head}Connection: close\r\n\r\n")?;
        match wrong {
            Some(Wrong::CutAfter(bytes)) => out.write_all(&self.body[from..to][..bytes]),
            Some(Wrong::StallsAfter(bytes)) => {
                out.write_all(&self.body[from..to][..bytes])?;
                self.until_the_end();
                Ok(())
            }
            Some(Wrong::Endless) => {
                out.write_all(&self.body[from..to])?;
                // Until the client has had enough.
                while out.write_all(&[0; PAGE]).is_ok() {}
                Ok(())
            }
            _ => out.write_all(&self.body[from + shift..to]),
        }
    }

    /// Runs `work` with the address of the file, while the server serves.
    fn serve(&self, work: impl FnOnce(&str)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        threads::scope(|scope| {
            let serving = || {
                threads::scope(|inner| {
                    for stream in listener.incoming() {
                        if self.ends.load(Ordering::Acquire) {
                            return;
                        }
                        let stream = stream.unwrap();
                        // A client that has gone is none of the server's business.
                        inner.spawn("answer", move || drop(self.answer(stream))).unwrap();
                    }
                })
                .unwrap();
            };
            scope.spawn("server", serving).unwrap();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                work(&format!("http://127.0.0.1:{port}/disk.img"));
            }));
            self.ends.store(true, Ordering::Release);
            drop(TcpStream::connect(("127.0.0.1", port)));
            if let Err(panic) = done {
                std::panic::resume_unwind(panic);
            }
        })
        .unwrap();
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.attempts = 3;
    settings.timeout = Duration::from_secs(30);
    settings
}

fn open(url: &str) -> Result<HttpDevice, HttpError> {
    HttpDevice::open(&Address::parse(url).unwrap(), &settings())
}

fn read(device: &HttpDevice, offset: usize, len: usize) -> Result<Vec<u8>, DeviceError> {
    let mut out = vec![0xaa; len];
    device.read_at(offset as u64, &mut out).map(|()| out)
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

#[test]
fn every_read_gives_the_bytes_of_the_file() {
    let site = Site::new(10 * PAGE + 777);
    site.serve(|url| {
        let mut small = settings();
        small.cache_bytes = 2 * PAGE as u64;
        for settings in [settings(), small] {
            let device = HttpDevice::open(&Address::parse(url).unwrap(), &settings).unwrap();
            assert_eq!(device.size_bytes(), site.body.len() as u64);
            assert!(device.is_read_only());
            for (offset, len) in [
                (0, 1),
                (PAGE - 1, 2),
                (3 * PAGE, PAGE),
                (5 * PAGE + 5, 4 * PAGE),
                (0, site.body.len()),
                (site.body.len() - 1, 1),
                (site.body.len(), 0),
                (7, 9 * PAGE),
            ] {
                let bytes = read(&device, offset, len).unwrap();
                assert!(bytes == site.body[offset..offset + len], "{offset} {len}");
            }
            assert!(read(&device, site.body.len(), 1).is_err());
            assert!(device.write_at(0, b"x").is_err());
            device.flush().unwrap();
        }
    });
}

#[test]
fn what_was_read_is_not_asked_for_again_and_reading_on_asks_for_more_at_once() {
    let site = Site::new(256 * PAGE);
    site.serve(|url| {
        let device = open(url).unwrap();
        assert_eq!(site.take_asked(), [(0, PAGE)]);
        for at in (0..site.body.len()).step_by(4096) {
            assert!(read(&device, at, 4096).unwrap() == site.body[at..at + 4096]);
        }
        let asked = site.take_asked();
        // 64 KiB by opening, then twice as much each time up to 4 MiB: 2, 4, 8, 16, 32, 64, 64 and
        // the last 65 in two.
        let pages: Vec<usize> = asked.iter().map(|(from, to)| (to - from) / PAGE).collect();
        assert_eq!(pages, [2, 4, 8, 16, 32, 64, 64, 64, 1]);
        for at in (0..site.body.len()).step_by(PAGE) {
            read(&device, at, 100).unwrap();
        }
        assert_eq!(site.take_asked(), []);
        assert_eq!(device.stats().bytes, site.body.len() as u64);
        assert_eq!(device.stats().requests, 10);
    });
}

#[test]
fn the_reads_of_a_batch_are_fetched_side_by_side() {
    let site = Site::new(64 * PAGE);
    site.serve(|url| {
        let device = open(url).unwrap();
        *site.under_way.lock() = 0;
        site.together.store(4, Ordering::Release);
        let offsets = [10, 20, 30, 40].map(|page| (page * PAGE) as u64);
        let batch = offsets
            .map(|offset| Operation::Read { offset, buffer: AlignedBuffer::zeroed(4096) })
            .into();
        for done in device.submit(batch).wait() {
            let Operation::Read { offset, .. } = done.operation else { panic!() };
            let bytes = done.into_buffer().unwrap();
            assert!(bytes[..] == site.body[offset as usize..offset as usize + 4096]);
        }
    });
}

#[test]
fn what_is_brought_near_comes_in_few_requests_side_by_side_and_is_read_without_any() {
    let site = Site::new(300 * PAGE + 5);
    site.serve(|url| {
        let device = open(url).unwrap();
        assert!(device.near_bytes() >= 32 << 20);
        site.take_asked();
        *site.under_way.lock() = 0;
        // One that waits for the others would fail.
        site.together.store(4, Ordering::Release);
        let pages = |from: usize, to: usize| (from * PAGE) as u64..(to * PAGE) as u64;
        let brought = [
            pages(298, 310),
            pages(10, 12),
            pages(11, 13),
            // As near as to be one request with those before.
            pages(15, 16),
            // Longer than one request may be.
            pages(100, 170),
            // The device ends before.
            pages(400, 500),
            7..7,
        ];
        device.bring_near(&brought);
        let mut asked = site.take_asked();
        asked.sort_unstable();
        let end = site.body.len();
        let wanted = [(10, 16), (100, 164), (164, 170)].map(|(a, b)| (a * PAGE, b * PAGE));
        assert_eq!(asked, [&wanted[..], &[(298 * PAGE, end)]].concat());
        for (offset, len) in [(10, 6), (100, 70), (298, 2)].map(|(a, b)| (a * PAGE, b * PAGE)) {
            assert!(read(&device, offset, len).unwrap() == site.body[offset..offset + len]);
        }
        assert!(read(&device, end - 3, 3).unwrap() == site.body[end - 3..]);
        device.bring_near(&brought);
        assert_eq!(site.take_asked(), []);
        // Who goes on behind what was brought does not count as a reader who gets more at once.
        site.together.store(1, Ordering::Release);
        read(&device, 170 * PAGE, 1).unwrap();
        assert_eq!(site.take_asked(), [(170 * PAGE, 171 * PAGE)]);
        // What goes wrong is left to the read: it has its own attempts.
        site.fails(&[Wrong::Status(404)]);
        device.bring_near(&[pages(200, 201)]);
        assert!(read(&device, 200 * PAGE, 9).unwrap() == site.body[200 * PAGE..][..9]);
    });
}

#[test]
fn no_more_is_brought_near_than_is_kept() {
    let site = Site::new(1024 * PAGE);
    site.serve(|url| {
        let mut settings = settings();
        settings.cache_bytes = 16 << 20;
        let device = HttpDevice::open(&Address::parse(url).unwrap(), &settings).unwrap();
        assert_eq!(device.near_bytes(), 12 << 20);
        site.take_asked();
        device.bring_near(std::slice::from_ref(&(0..64 << 20)));
        let asked = site.take_asked();
        let bytes: usize = asked.iter().map(|(from, to)| to - from).sum();
        assert_eq!(bytes, 12 << 20);
        // All of it is there still, in the order in which it is read.
        let all = asked.iter().map(|(from, _)| *from).min().unwrap();
        for at in (all..all + (12 << 20)).step_by(1 << 20) {
            assert!(read(&device, at, 1 << 20).unwrap() == site.body[at..at + (1 << 20)]);
        }
        assert_eq!(site.take_asked(), []);
        // With little room, nothing would be there when it is read.
        settings.cache_bytes = 2 << 20;
        let device = HttpDevice::open(&Address::parse(url).unwrap(), &settings).unwrap();
        site.take_asked();
        assert_eq!(device.near_bytes(), 0);
        device.bring_near(std::slice::from_ref(&(0..64 << 20)));
        assert_eq!(site.take_asked(), []);
    });
}

#[test]
fn two_threads_that_need_one_page_ask_once() {
    let site = Site::new(8 * PAGE);
    site.serve(|url| {
        let device = open(url).unwrap();
        site.take_asked();
        threads::workers("reader", 8, |_| {
            assert!(read(&device, 5 * PAGE, 10).unwrap() == site.body[5 * PAGE..5 * PAGE + 10]);
        })
        .unwrap();
        assert_eq!(site.take_asked(), [(5 * PAGE, 6 * PAGE)]);
    });
}

#[test]
fn what_can_pass_is_tried_again_and_no_more_often_than_was_said() {
    let passing = [
        Wrong::Status(503),
        Wrong::Status(429),
        Wrong::Later(0),
        Wrong::CutAfter(1000),
        Wrong::CutAfter(0),
        Wrong::Silent,
    ];
    let site = Site::new(4 * PAGE);
    site.serve(|url| {
        for wrong in passing {
            site.fails(&[wrong, wrong]);
            let device = open(url).unwrap_or_else(|error| panic!("{wrong:?}: {}", chain(&error)));
            site.fails(&[wrong, wrong]);
            assert!(read(&device, 2 * PAGE, PAGE).unwrap() == site.body[2 * PAGE..3 * PAGE]);
            site.fails(&[wrong, wrong, wrong]);
            let error = read(&device, 3 * PAGE, 1).unwrap_err();
            let text = chain(&error);
            assert!(text.contains("no answer in 3 attempts"), "{wrong:?}: {text}");
            assert!(text.contains("/disk.img"), "{text}");
            // Nobody waits for what failed, and a later read succeeds.
            assert!(site.wrong.lock().is_empty());
            assert!(read(&device, 3 * PAGE, 9).unwrap() == site.body[3 * PAGE..3 * PAGE + 9]);
        }
    });
}

#[test]
fn a_server_that_stalls_is_an_error_in_bounded_time_and_the_next_read_tries_again() {
    let site = Site::new(4 * PAGE);
    site.serve(|url| {
        let mut settings = settings();
        settings.attempts = 2;
        settings.timeout = Duration::from_millis(400);
        let device = HttpDevice::open(&Address::parse(url).unwrap(), &settings).unwrap();
        for stalls in [[Wrong::Stalls; 2], [Wrong::StallsAfter(1000); 2]] {
            let start = SystemClock.monotonic();
            site.fails(&stalls);
            let error = read(&device, 2 * PAGE, 10).unwrap_err();
            let took = SystemClock.monotonic() - start;
            assert!(took < Duration::from_secs(10), "{took:?}");
            assert!(chain(&error).contains("no answer"), "{}", chain(&error));
            // What was brought near from a server that stalls is left to the read.
            site.fails(&stalls);
            device.bring_near(std::slice::from_ref(&(2 * PAGE as u64..3 * PAGE as u64)));
        }
        assert!(read(&device, 2 * PAGE, 10).unwrap() == site.body[2 * PAGE..][..10]);
    });
}

#[test]
fn what_will_not_pass_is_told_at_once() {
    let site = Site::new(4 * PAGE);
    let cases = [
        (Wrong::Status(404), "404: there is no such file"),
        (Wrong::Status(403), "403: this is not allowed"),
        (Wrong::Status(401), "401: user and password are needed"),
        (Wrong::Status(416), "416: the file is empty"),
        (Wrong::Status(304), "304: this is no file"),
        (Wrong::Whole, "gives the whole file"),
        (Wrong::Compressed, "compresses"),
        (Wrong::NoRange, "no Content-Range"),
        (Wrong::OtherRange, "asked for 0..65536"),
        (Wrong::OtherPlace, "bytes 1..65537, asked for 0..65536"),
    ];
    site.serve(|url| {
        for (wrong, what) in cases {
            site.fails(&[wrong]);
            let error = chain(&open(url).unwrap_err());
            assert!(error.contains(what), "{wrong:?}: {error}");
            // One request was enough.
            open(url).unwrap();
        }
        site.fails(&[Wrong::Garbage, Wrong::Garbage, Wrong::Garbage]);
        assert!(open(url).is_err());
        site.wrong.lock().clear();
        let missing = url.replace("disk.img", "other.img");
        assert!(matches!(open(&missing), Err(HttpError::Refused { status: 404, .. })));
    });
}

#[test]
fn another_version_is_an_error_and_never_mixed_with_the_first() {
    let site = Site::new(4 * PAGE);
    site.serve(|url| {
        let device = open(url).unwrap();
        for wrong in [
            Wrong::OtherTag,
            Wrong::OtherLength,
            Wrong::OtherTime,
            Wrong::NoMarks,
            Wrong::Status(412),
            Wrong::Status(416),
        ] {
            site.fails(&[wrong]);
            let error = chain(&read(&device, 2 * PAGE, 10).unwrap_err());
            assert!(error.contains("changed while it was being read"), "{wrong:?}: {error}");
            // What was read before is still that version.
            assert!(read(&device, 0, 10).unwrap() == site.body[..10]);
        }
        // The server was told which version is meant, but for the first request.
        let matched = site.matched.lock();
        assert_eq!(matched.first(), Some(&None));
        assert!(matched[1..].iter().all(|tag| tag.as_deref() == Some("\"one\"")));
    });
}

#[test]
fn a_length_that_no_file_has_is_refused_and_the_largest_one_is_read_to_its_end() {
    const LARGEST: u64 = i64::MAX as u64;
    let site = Site::new(4 * PAGE);
    site.serve(|url| {
        for len in [u64::MAX, LARGEST + 1] {
            site.fails(&[Wrong::Length(len)]);
            let error = chain(&open(url).unwrap_err());
            assert!(error.contains(&format!("/{len}")), "{error}");
        }
        site.fails(&[Wrong::Length(LARGEST)]);
        let device = open(url).unwrap();
        assert_eq!(device.size_bytes(), LARGEST);
        // The server has nothing there; that is an error, whatever is added to the offset.
        for (offset, len) in [(LARGEST - 10, 10), (LARGEST - 10, 11), (u64::MAX - 5, 10)] {
            assert!(device.read_at(offset, &mut vec![0; len]).is_err());
        }
        let mut first = [0; 10];
        device.read_at(0, &mut first).unwrap();
        assert_eq!(first[..], site.body[..10]);
    });
}

#[test]
fn weak_tags_are_compared_and_not_asked_for() {
    let mut site = Site::new(4 * PAGE);
    site.tag = Some("W/\"one\"");
    site.serve(|url| {
        let device = open(url).unwrap();
        read(&device, 2 * PAGE, 10).unwrap();
        assert!(site.matched.lock().iter().all(Option::is_none));
        site.fails(&[Wrong::OtherTag]);
        assert!(read(&device, 3 * PAGE, 10).is_err());
    });
}

#[test]
fn a_body_without_an_end_is_read_as_far_as_was_asked() {
    let site = Site::new(4 * PAGE);
    site.serve(|url| {
        site.fails(&[Wrong::Endless]);
        let device = open(url).unwrap();
        assert_eq!(device.stats().bytes, PAGE as u64);
        site.fails(&[Wrong::Endless]);
        assert!(read(&device, 3 * PAGE, 10).unwrap() == site.body[3 * PAGE..3 * PAGE + 10]);
    });
}

#[test]
fn the_server_may_send_elsewhere_but_not_for_ever() {
    let site = Site::new(PAGE);
    site.serve(|url| {
        site.fails(&[Wrong::RedirectTo("/disk.img?here")]);
        let device = open(url).unwrap();
        assert_eq!(device.size_bytes(), PAGE as u64);
        site.fails(&[Wrong::RedirectTo("/disk.img"); 40]);
        let error = chain(&open(url).unwrap_err());
        assert!(error.to_lowercase().contains("redirect"), "{error}");
    });
}

#[test]
fn nobody_who_listens_is_an_error_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = chain(&open(&format!("http://me:secret@127.0.0.1:{port}/a?key=1")).unwrap_err());
    assert!(error.contains(&format!("http://127.0.0.1:{port}/a: no answer in 3")), "{error}");
    assert!(!error.contains("secret") && !error.contains("key"), "{error}");
}

#[test]
fn a_cache_on_the_disk_saves_requests_and_damage_in_it_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::new(100 * PAGE + 5);
    let mut with_cache = settings();
    with_cache.disk_cache = Some(DiskCache { dir: dir.path().to_owned(), most_bytes: 64 << 20 });
    let files = |count: usize| {
        let all = std::fs::read_dir(dir.path().join("pages")).unwrap();
        let all: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
        let pages = all.iter().filter(|path| !path.ends_with(".bytes"));
        assert_eq!(pages.clone().count(), count);
        pages.cloned().collect::<Vec<_>>()
    };
    site.serve(|url| {
        let open = || HttpDevice::open(&Address::parse(url).unwrap(), &with_cache).unwrap();
        let all = |device: &HttpDevice| {
            assert!(read(device, PAGE, 99 * PAGE + 5).unwrap() == site.body[PAGE..]);
        };
        let first = open();
        all(&first);
        assert_eq!(first.stats().bytes_from_disk, 0);
        site.take_asked();
        // The version is asked for, and nothing else.
        let second = open();
        all(&second);
        assert_eq!(site.take_asked(), [(0, PAGE)]);
        assert_eq!(second.stats().bytes_from_disk, 99 * PAGE as u64 + 5);
        // A byte of one page is wrong, and another page is gone.
        let pages = files(100);
        let mut wrong = std::fs::read(&pages[10]).unwrap();
        *wrong.last_mut().unwrap() ^= 1;
        std::fs::write(&pages[10], wrong).unwrap();
        std::fs::remove_file(&pages[20]).unwrap();
        let third = open();
        all(&third);
        assert!(site.take_asked().len() <= 3);
        assert!((2..=3).contains(&third.stats().requests));
        files(100);
        // A cache that goes away while it is used costs requests only.
        let fourth = open();
        std::fs::remove_dir_all(dir.path().join("pages")).unwrap();
        all(&fourth);
    });
    // Another version shares nothing with this one, and one without a tag is not kept.
    site.body.reverse();
    site.ends.store(false, Ordering::Release);
    for tag in [Some("\"other\""), Some("W/\"weak\""), None] {
        site.tag = tag;
        site.serve(|url| {
            // Nor is it the second time: a weak tag does not stand for the bytes.
            for is_first in [true, false] {
                let device = HttpDevice::open(&Address::parse(url).unwrap(), &with_cache).unwrap();
                assert!(read(&device, 0, site.body.len()).unwrap() == site.body);
                let is_kept = !is_first && tag == Some("\"other\"");
                assert_eq!(device.stats().bytes_from_disk > 0, is_kept, "{tag:?}");
            }
        });
        site.ends.store(false, Ordering::Release);
    }
}
