//! Answers that the kernel must refuse: none of them may end a server, or leave a caller waiting. And questions that no
//! kernel asks: each has an answer of a form that a kernel takes.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use extant::MountOptions;
use extant_base::Prng;
use extant_sync::{Clock, Mutex, Rank, SystemClock, threads};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, skip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, InitIn, InitInExt, OutHeader, op};
use crate::events::{Events, Level};
use crate::mount::{KernelOptions, open_and_mount, unmount};
use crate::serve::serve_session;
use crate::session::Session;
use crate::{RingUse, Rings, Settings};

const HEAD: usize = size_of::<OutHeader>();
/// Bytes of an answer that has attributes and nothing else.
const ATTR_OUT: usize = HEAD + 104;

/// A falsification of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    /// Bytes behind the end, which the header counts.
    Longer,
    /// Some of the end is missing, which the header knows.
    Shorter,
    /// The header counts other bytes than there are.
    OtherLength,
    /// A number that is no error.
    OtherError,
    /// An error, and a body all the same.
    ErrorWithBody,
    /// Bits of the body turned over.
    Bits,
    /// The body is one byte, again and again.
    Same,
}

const LIES: [Lie; 7] = [
    Lie::Longer,
    Lie::Shorter,
    Lie::OtherLength,
    Lie::OtherError,
    Lie::ErrorWithBody,
    Lie::Bits,
    Lie::Same,
];

fn put(answer: &mut [u8], at: usize, value: u32) {
    answer[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

/// Returns whether `answer` shows the root: a root of another type is of no use to the kernel ever
/// after.
fn is_of_root(answer: &[u8]) -> bool {
    answer.len() == ATTR_OUT && answer[HEAD + 16..HEAD + 24] == 2u64.to_ne_bytes()
}

fn tell(lie: Lie, answer: &mut Vec<u8>, random: &mut Prng) {
    match lie {
        Lie::Longer => {
            let more = 1 + random.below(5000) as usize;
            answer.resize(answer.len() + more, 0x41);
        }
        Lie::Shorter if answer.len() > HEAD => {
            let less = 1 + random.below((answer.len() - HEAD) as u64) as usize;
            answer.truncate(answer.len() - less);
        }
        Lie::OtherLength => {
            let len = [0, 15, 16, 17, answer.len() as u32 + 1, u32::MAX];
            return put(answer, 0, len[random.below(len.len() as u64) as usize]);
        }
        Lie::OtherError => {
            let error = [1, 5, i32::MAX, -512, -4096, i32::MIN];
            put(answer, 4, error[random.below(error.len() as u64) as usize] as u32);
            answer.truncate(HEAD);
        }
        Lie::ErrorWithBody => {
            put(answer, 4, -5i32 as u32);
            answer.resize(answer.len().max(HEAD + 8), 0);
        }
        Lie::Bits if answer.len() > HEAD && !is_of_root(answer) => {
            for _ in 0..1 + random.below(8) {
                let at = HEAD + random.below((answer.len() - HEAD) as u64) as usize;
                answer[at] ^= 1 << random.below(8);
            }
        }
        Lie::Same if answer.len() > HEAD && !is_of_root(answer) => {
            let byte = [0, 0xff, b'/'][random.below(3) as usize];
            answer[HEAD..].fill(byte);
        }
        _ => {}
    }
    let len = answer.len() as u32;
    put(answer, 0, len);
}

/// Programs that ask for everything; what they are told does not matter here.
const WALK: &str = r#"
exec 2> /dev/null
cd "$1" || exit 0
ls -la . a > /dev/null
find . -printf '%p %s %i %n %m %T@ %l\n' > /dev/null
readlink link
cat file
getfattr -h -d -m - file link > /dev/null
setfattr -n user.a -v value file
stat -f .
lsattr file
for name in 1 2 3; do head -c 20000 /dev/zero > "a/$name.$2"; done
mkdir "b.$2"; rmdir "b.$2"; mv "a/1.$2" "c.$2"; ln "a/2.$2" "d.$2"; ln -s x "e.$2"; truncate -s 5 "a/3.$2"
fallocate -l 8192 "a/3.$2"
cp --reflink=never "a/2.$2" "f.$2"
sync "a/3.$2"
rm -f "c.$2" "d.$2" "e.$2" "f.$2" a/[123]."$2"
exit 0
"#;

#[derive(Default)]
struct Log {
    ready: AtomicBool,
    bugs: AtomicU32,
    lines: Lines,
}

struct Lines(Mutex<Vec<String>>);

impl Default for Lines {
    fn default() -> Lines {
        Lines(Mutex::new(Rank::Leaf, Vec::new()))
    }
}

impl Events for Log {
    fn ready(&self) {
        self.ready.store(true, Ordering::SeqCst);
    }

    fn log(&self, _: Level, text: &str) {
        if text.contains("bug in extant") {
            self.bugs.fetch_add(1, Ordering::SeqCst);
        }
        let mut lines = self.lines.0.lock();
        if lines.len() < 100 {
            lines.push(text.to_owned());
        }
    }
}

/// Runs the programs. A file that is said to have an exabyte, or a listing that is sent back to its start, keeps
/// a program busy for as long as it likes: it is killed. What still waits for an answer then holds the mount.
fn programs(at: &Path, round: u32) {
    let walked = Command::new("timeout")
        .args(["--signal=KILL", "3", "sh", "-c", WALK, "walk"])
        .arg(at)
        .arg(round.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(walked.success() || walked.signal() == Some(9), "{walked}");
}

/// Ends the connection when the test fails: the server's thread would be waited for otherwise, and it would wait
/// for the kernel.
struct Ender<'a>(&'a Path);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = rustix::mount::unmount(self.0, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

/// `EXTANT_SEED`, or 0.
fn seed() -> u64 {
    std::env::var("EXTANT_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn no_answer_ends_a_server(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at, source) =
        (dir.path().join("image"), dir.path().join("mount"), dir.path().join("source"));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir_all(source.join("a")).unwrap();
    std::fs::write(source.join("file"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("file", source.join("link")).unwrap();
    require!(mke2fs(&image, "16M", &["-t", "ext4", "-d", source.to_str().unwrap()]));
    for lie in LIES {
        let device = Arc::new(extant_testkit::image::load(&image));
        let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
        let (log, armed, told) =
            (Log::default(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let rings = (settings.ring == RingUse::Always).then(|| Rings::prepare(settings).unwrap());
        let connection = open_and_mount(&at, &KernelOptions::new("lies")).unwrap();
        let session = Session::new(connection, Arc::new(SystemClock));
        let (is_armed, count) = (Arc::clone(&armed), Arc::clone(&told));
        let random = Mutex::new(Rank::Leaf, Prng::new(seed() * 7 + lie as u64 + 1));
        let mangle = move |answer: &mut Vec<u8>| {
            let mut random = random.lock();
            if is_armed.load(Ordering::SeqCst) && random.below(3) == 0 {
                count.fetch_add(1, Ordering::SeqCst);
                tell(lie, answer, &mut random);
            }
        };
        assert!(session.connection.mangle.set(Box::new(mangle)).is_ok());
        threads::scope(|s| {
            let _ender = Ender(&at);
            let serve = || serve_session(&session, rings, fs, settings, &log);
            let server = s.spawn("server", serve).unwrap();
            while !log.ready.load(Ordering::SeqCst) {
                SystemClock.sleep(Duration::from_millis(1));
            }
            armed.store(true, Ordering::SeqCst);
            // A lie about the root at the start of a round leaves little of it.
            for round in 0..60 {
                if round >= 4 && told.load(Ordering::SeqCst) > 20 {
                    break;
                }
                programs(&at, round);
            }
            armed.store(false, Ordering::SeqCst);
            // Every thread is there: no more than one of these may come to each.
            let clients: Vec<_> = (0..8)
                .map(|index| {
                    let missing = at.join(format!("missing{index}"));
                    s.spawn("client", move || std::fs::symlink_metadata(missing).unwrap_err())
                        .unwrap()
                })
                .collect();
            for client in clients {
                assert_eq!(client.join().unwrap().raw_os_error(), Some(2), "{lie:?}");
            }
            let gone = (0..100).find_map(|_| match unmount(&at, false) {
                Err(error) if error.is_busy() => {
                    SystemClock.sleep(Duration::from_millis(50));
                    None
                }
                other => Some(other),
            });
            gone.expect("in use").unwrap();
            let served = server.join().unwrap();
            let lines = log.lines.0.lock();
            assert!(served.is_ok(), "{lie:?}: {served:?}\n{}", lines.join("\n"));
            assert!(!lines.iter().any(|line| line.contains("ended:")), "{lie:?}: {lines:?}");
            assert_eq!(log.bugs.load(Ordering::SeqCst), 0, "{lie:?}: {lines:?}");
            // Over rings the kernel makes an error of it and says nothing.
            let heard = lines.iter().any(|line| line.contains("did not take the answer"));
            let is_shape = !matches!(lie, Lie::Bits | Lie::Same);
            assert!(heard || !is_shape || settings.ring == RingUse::Always, "{lie:?}: {lines:?}");
        })
        .unwrap();
        let told = told.load(Ordering::SeqCst);
        println!("{lie:?}: told {told} times");
        assert!(told > 20, "{lie:?}: told {told} times");
    }
}

fn obstacle() -> Option<&'static str> {
    match extant_testkit::oracle::is_root() && Path::new("/dev/fuse").exists() {
        true => None,
        false => Some("needs root and /dev/fuse: mounts"),
    }
}

#[test]
fn no_answer_that_the_kernel_refuses_ends_a_server() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    // So few that none can be missing unseen.
    no_answer_ends_a_server(&Settings { threads: 2, ..Settings::default() });
}

#[test]
fn no_answer_that_the_kernel_refuses_ends_a_server_over_rings() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let settings = Settings { ring: RingUse::Always, ..Settings::default() };
    if let Err(obstacle) = Rings::prepare(&settings) {
        skip!("{obstacle}");
    }
    no_answer_ends_a_server(&settings);
}

/// The other end of a server's connection.
struct Kernel {
    socket: OwnedFd,
    unique: u64,
    buffer: Vec<u8>,
}

impl Kernel {
    fn send(&mut self, opcode: u32, nodeid: u64, claimed: Option<u32>, body: &[u8]) {
        self.unique += 2;
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader {
            len: claimed.unwrap_or(len),
            opcode,
            unique: self.unique,
            nodeid,
            ..InHeader::default()
        };
        let all = [header.as_bytes(), body].concat();
        assert_eq!(rustix::io::write(&self.socket, &all), Ok(all.len()));
    }

    /// The answer to the last request: its error, and its body.
    fn answer(&mut self, what: &dyn std::fmt::Debug) -> (i32, &[u8]) {
        loop {
            let mut wanted = [PollFd::new(&self.socket, PollFlags::IN)];
            let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
            assert_eq!(poll(&mut wanted, Some(&limit)), Ok(1), "no answer to {what:?}");
            let len = rustix::io::read(&self.socket, &mut self.buffer[..]).unwrap();
            let (header, _) = OutHeader::read_from_prefix(&self.buffer[..len]).unwrap();
            assert_eq!(header.len as usize, len, "{what:?}");
            if header.unique == 0 {
                continue; // A message that nobody asked for.
            }
            assert_eq!(header.unique, self.unique, "{what:?}");
            assert!(header.error <= 0 && header.error > -512, "{what:?}: {header:?}");
            assert!(header.error == 0 || len == HEAD, "{what:?}: {header:?}");
            return (header.error, &self.buffer[HEAD..len]);
        }
    }
}

/// A body that may be a request, or nearly.
fn body(random: &mut Prng, nodes: &[u64]) -> Vec<u8> {
    let mut body = Vec::new();
    let pick = |random: &mut Prng, from: &[u64]| from[random.below(from.len() as u64) as usize];
    match random.below(5) {
        0 => {}
        1 => body.extend((0..random.below(300)).map(|_| random.below(256) as u8)),
        2 => body.resize(random.below(70_000) as usize, random.below(256) as u8),
        _ => {
            for _ in 0..random.below(12) {
                let wide = [0, 1, 2, 4096, 5, u64::MAX, 1 << 32, 1 << 62, i64::MAX as u64];
                let narrow = [0u32, 1, 2, 3, 0o100_644, 0o040_755, 4096, 65536, u32::MAX];
                match random.below(4) {
                    0 => body.extend(pick(random, &wide).to_ne_bytes()),
                    1 => body.extend(pick(random, nodes).to_ne_bytes()),
                    _ => {
                        let one = narrow[random.below(narrow.len() as u64) as usize];
                        body.extend(one.to_ne_bytes());
                    }
                }
            }
            let names: [&[u8]; 10] = [
                b"file",
                b"a",
                b"link",
                b"new",
                b".",
                b"..",
                b"",
                b"a/b",
                b"user.x",
                b"security.capability",
            ];
            for _ in 0..random.below(3) {
                match random.below(8) {
                    0 => body.resize(body.len() + [255, 256, 5000][random.below(3) as usize], b'n'),
                    _ => body.extend(names[random.below(10) as usize]),
                }
                if random.below(8) > 0 {
                    body.push(0);
                }
            }
        }
    }
    body
}

#[test]
fn every_question_that_no_kernel_asks_has_an_answer() {
    const ASKED: u32 = 6000;
    let dir = extant_testkit::tempdir().unwrap();
    let (image, source) = (dir.path().join("image"), dir.path().join("source"));
    std::fs::create_dir_all(source.join("a")).unwrap();
    std::fs::write(source.join("file"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("file", source.join("link")).unwrap();
    require!(mke2fs(&image, "16M", &["-t", "ext4", "-d", source.to_str().unwrap()]));
    let device = Arc::new(extant_testkit::image::load(&image));
    let shared = Arc::clone(&device) as extant_block::SharedDevice;
    let fs = MountOptions::new().read_only(false).open_shared(shared).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let (ours, socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let (settings, log) = (Settings { threads: 2, ..Settings::default() }, Log::default());
    let session = Session::new(ours, Arc::new(SystemClock));
    let mut kernel = Kernel { socket, unique: 0, buffer: vec![0; 2 << 20] };
    threads::scope(|s| {
        let serve = || serve_session(&session, None, fs, &settings, &log);
        let server = s.spawn("server", serve).unwrap();
        let init = InitIn { major: 7, minor: 41, max_readahead: 131_072, flags: u32::MAX };
        let more = InitInExt { flags2: u32::MAX, ..InitInExt::default() };
        kernel.send(op::INIT, 0, None, &[init.as_bytes(), more.as_bytes()].concat());
        assert_eq!(kernel.answer(&"init").0, 0);
        let mut nodes = vec![0, 1, 2, 7, 11, u64::MAX, 1 << 40];
        for name in [&b"file\0"[..], b"a\0", b"link\0"] {
            kernel.send(op::LOOKUP, 1, None, name);
            let (error, entry) = kernel.answer(&name);
            assert_eq!(error, 0);
            nodes.push(u64::from_ne_bytes(entry[..8].try_into().unwrap()));
        }
        let mut random = Prng::new(1);
        let (mut errors, mut answers) = (0, 0);
        for round in 0..ASKED {
            let opcode = match random.below(20) {
                0 => random.below(1 << 32) as u32,
                _ => 1 + random.below(u64::from(op::COUNT) + 4) as u32,
            };
            // It ends everything, as it should.
            if opcode == op::DESTROY {
                continue;
            }
            let node = nodes[random.below(nodes.len() as u64) as usize];
            let body = body(&mut random, &nodes);
            let claimed = (random.below(50) == 0).then(|| random.below(200) as u32);
            let what = (round, opcode, node, claimed, &body[..body.len().min(64)]);
            let is_whole = claimed.is_none_or(|len| {
                (size_of::<InHeader>()..=size_of::<InHeader>() + body.len())
                    .contains(&(len as usize))
            });
            kernel.send(opcode, node, claimed, &body);
            let silent = [op::FORGET, op::BATCH_FORGET, op::INTERRUPT, op::NOTIFY_REPLY];
            if silent.contains(&opcode) && is_whole {
                continue;
            }
            let (error, _) = kernel.answer(&what);
            assert!(is_whole || error == -5, "{what:?}: {error}");
            errors += u32::from(error != 0);
            answers += 1;
            assert_eq!(log.bugs.load(Ordering::SeqCst), 0, "{what:?}: {:?}", log.lines.0.lock());
        }
        println!("{answers} answers, {errors} of them errors");
        assert!(errors > answers / 4 && errors < answers);
        kernel.send(op::STATFS, 1, None, &[]);
        assert_eq!(kernel.answer(&"statfs").0, 0);
        drop(kernel);
        server.join().unwrap().unwrap();
    })
    .unwrap();
    let path = dir.path().join("check");
    extant_testkit::image::save(&device, &path);
    extant_testkit::oracle::e2fsck(&path).unwrap().assert_clean();
}
