//! Answers that the kernel must refuse: none of them may end a server, or leave a caller waiting.

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

use crate::abi::OutHeader;
use crate::ext4::serve_session;
use crate::mount::{KernelOptions, open_and_mount, unmount};
use crate::session::{Events, Level, Session};
use crate::{RingUse, Rings, Settings};

const HEAD: usize = size_of::<OutHeader>();
/// Bytes of an answer that has attributes and nothing else.
const ATTR_OUT: usize = HEAD + 104;

/// What is done to an answer.
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

/// Whether `answer` shows the root: a root of another type is of no use to the kernel ever after.
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

fn programs(at: &Path, round: u32) {
    let walked = Command::new("timeout")
        .args(["--signal=KILL", "30", "sh", "-c", WALK, "walk"])
        .arg(at)
        .arg(round.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(walked.success(), "programs hung ({walked})");
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
        let random = Mutex::new(Rank::Leaf, Prng::new(lie as u64 + 1));
        let mangle = move |answer: &mut Vec<u8>| {
            let mut random = random.lock();
            if is_armed.load(Ordering::SeqCst) && random.below(3) == 0 {
                count.fetch_add(1, Ordering::SeqCst);
                tell(lie, answer, &mut random);
            }
        };
        assert!(session.connection.mangle.set(Box::new(mangle)).is_ok());
        threads::scope(|s| {
            let serve = || serve_session(&session, rings, fs, settings, &log);
            let server = s.spawn("server", serve).unwrap();
            while !log.ready.load(Ordering::SeqCst) {
                SystemClock.sleep(Duration::from_millis(1));
            }
            armed.store(true, Ordering::SeqCst);
            for round in 0..4 {
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
