//! An image behind a server that takes 20 ms for each answer, as a store in another region does.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use extant_block::BlockDevice;
use extant_http::{Address, HttpDevice, Settings};
use extant_sync::{Background, Clock, SystemClock, threads};

use super::Plan;
use super::disks::timed;
use crate::report::{Series, add};
use crate::run::run;

const LATENCY: Duration = Duration::from_millis(20);
/// Bytes of each large file.
const FILE_MIB: u64 = 16;
/// Small files in `/etc`.
const SMALL_FILES: u32 = 300;
/// Small files elsewhere, and the directories that they are in.
const SPREAD_FILES: u32 = 2000;
const SPREAD_DIRS: u32 = 200;
/// Bytes of one range of the limits.
const RANGE: u64 = 8 << 20;
/// How many of them are under way at once: as many bytes as `extract` has, and as many requests.
const RANGES_AT_ONCE: [usize; 2] = [4, 8];

struct Shared {
    file: File,
    len: u64,
    sent: AtomicU64,
    ends: AtomicBool,
}

/// The image and its server, which ends when this is dropped.
pub(super) struct Distant {
    shared: Arc<Shared>,
    address: String,
    port: u16,
    serving: Option<Background>,
}

impl Drop for Distant {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        // It waits for somebody to come.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        drop(self.serving.take());
    }
}

impl Distant {
    /// Builds the image, with an `/etc` of small files among large ones.
    pub(super) fn make(plan: &Plan, dir: &Path) -> Result<Distant> {
        let (tree, image) = (dir.join("tree"), dir.join("distant.img"));
        std::fs::create_dir_all(tree.join("etc/many"))?;
        for number in 0..SMALL_FILES {
            let text = format!("setting = {number}\n").repeat(number as usize % 90 + 1);
            std::fs::write(tree.join(format!("etc/many/{number:03}.conf")), text)?;
        }
        for number in 0..SPREAD_FILES {
            let dir = number % SPREAD_DIRS;
            let dir = tree.join(format!("spread/{}/{dir}", dir % 10));
            std::fs::create_dir_all(&dir)?;
            std::fs::write(dir.join(format!("{number}")), vec![b'x'; 1 + number as usize * 8])?;
        }
        let mut random = extant_base::Prng::new(3);
        for number in 0..plan.store_mib / FILE_MIB {
            let bytes: Vec<u8> =
                (0..FILE_MIB << 17).flat_map(|_| random.next_u64().to_le_bytes()).collect();
            std::fs::write(tree.join(format!("large{number}")), bytes)?;
        }
        let name = |path: &Path| path.to_string_lossy().into_owned();
        run(&plan.extant, &["build", &name(&image), "--from", &name(&tree), "-q"])?;
        std::fs::remove_dir_all(&tree)?;
        let file = File::open(&image)?;
        let len = file.metadata()?.len();
        let (sent, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { file, len, sent, ends });
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let inside = Arc::clone(&shared);
        let accept = move || {
            // What it says is said by those who asked.
            let _ = threads::scope(|scope| {
                for stream in listener.incoming().flatten() {
                    if inside.ends.load(Ordering::SeqCst) {
                        return;
                    }
                    let inside = &inside;
                    let serve = move || drop(inside.answer(stream));
                    let _ = scope.spawn("distant", serve);
                }
            });
            false
        };
        let serving = Background::start("distant-accept", LATENCY, accept)?;
        serving.wake();
        let address = format!("http://127.0.0.1:{port}/distant.img");
        Ok(Distant { shared, address, port, serving: Some(serving) })
    }

    pub(super) fn measure(&self, plan: &Plan, dir: &Path, all: &mut Vec<Series>) -> Result<()> {
        let out = dir.join("out");
        let to = out.to_string_lossy().into_owned();
        let before = self.shared.sent.load(Ordering::SeqCst);
        let etc = format!("{}:/etc", self.address);
        let took = run(&plan.extant, &["extract", &etc, &to])?.seconds;
        let sent = self.shared.sent.load(Ordering::SeqCst) - before;
        let found = std::fs::read_dir(out.join("many"))?.count();
        ensure!(found == SMALL_FILES as usize, "{found} files of {SMALL_FILES}");
        std::fs::remove_dir_all(&out)?;
        add(all, "store, 20 ms away: extract /etc", "extant", "s", took);
        let part = sent as f64 * 100.0 / self.shared.len as f64;
        add(all, "store, 20 ms away: of the image read for /etc", "extant", "%", part);
        let spread = format!("{}:/spread", self.address);
        let took = run(&plan.extant, &["extract", &spread, &to])?.seconds;
        std::fs::remove_dir_all(&out)?;
        let row =
            format!("store, 20 ms away: extract {SPREAD_FILES} files in {SPREAD_DIRS} directories");
        add(all, &row, "extant", "s", took);
        let mib = plan.store_mib as f64;
        let took = run(&plan.extant, &["extract", &self.address, &to])?.seconds;
        std::fs::remove_dir_all(&out)?;
        add(all, "store, 20 ms away: extract everything", "extant", "MiB/s", mib / took);
        for at_once in RANGES_AT_ONCE {
            let (took, bytes) = self.ranges(at_once)?;
            let rate = bytes as f64 / f64::from(1 << 20) / took;
            let target = format!("{at_once} parallel ranges, thrown away");
            add(all, "store, 20 ms away: extract everything", &target, "MiB/s", rate);
        }
        Ok(())
    }

    /// Reads the whole image in ranges, `at_once` of them, and throws them away.
    fn ranges(&self, at_once: usize) -> Result<(f64, u64)> {
        let next = AtomicU64::new(0);
        let took = timed(|| {
            let done = threads::workers("range", at_once, |_| -> Result<()> {
                let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
                let mut buffer = vec![0; RANGE as usize];
                loop {
                    let from = next.fetch_add(RANGE, Ordering::SeqCst);
                    if from >= self.shared.len {
                        return Ok(());
                    }
                    let to = (from + RANGE).min(self.shared.len) - 1;
                    write!(stream, "GET / HTTP/1.1\r\nRange: bytes={from}-{to}\r\n\r\n")?;
                    let mut reader = BufReader::new(&stream);
                    let mut line = String::new();
                    while reader.read_line(&mut line)? > 2 {
                        line.clear();
                    }
                    let len = usize::try_from(to - from + 1)?;
                    reader.read_exact(buffer.get_mut(..len).context("a range")?)?;
                }
            })?;
            done.into_iter().collect()
        })?;
        // That the client reads what is there is seen once.
        let device = HttpDevice::open(&Address::parse(&self.address)?, &Settings::default())?;
        ensure!(device.size_bytes() == self.shared.len, "another image");
        Ok((took, self.shared.len))
    }
}

impl Shared {
    /// Answers what comes over one connection, each after [`LATENCY`].
    fn answer(&self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let (mut range, mut line) = (None, String::new());
            while reader.read_line(&mut line)? > 2 {
                let lower = line.to_ascii_lowercase();
                if let Some((from, to)) =
                    lower.trim().strip_prefix("range: bytes=").and_then(|text| text.split_once('-'))
                {
                    range = Some((from.parse::<u64>()?, to.parse::<u64>()?));
                }
                line.clear();
            }
            let Some((from, to)) = range else { return Ok(()) };
            let (to, len) = (to.min(self.len - 1), self.len);
            SystemClock.sleep(LATENCY);
            let count = to - from + 1;
            write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nContent-Range: bytes {from}-{to}/{len}\r\nContent-Length: {count}\r\n\r\n"
            )?;
            let mut buffer = vec![0; 1 << 20];
            let mut at = from;
            while at <= to {
                let piece = usize::try_from((to - at + 1).min(1 << 20))?;
                let part = buffer.get_mut(..piece).context("a piece")?;
                self.file.read_exact_at(part, at)?;
                stream.write_all(part)?;
                at += piece as u64;
            }
            self.sent.fetch_add(count, Ordering::SeqCst);
        }
    }
}
