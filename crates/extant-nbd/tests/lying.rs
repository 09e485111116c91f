//! The client against a server that agrees on everything and then answers reads with what no answer can be: an error
//! in bounded time, never bytes that were not sent, and nothing that stays when the server is in order again.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use extant_block::BlockDevice;
use extant_nbd::{Address, NbdDevice, Settings};
use extant_sync::{Clock, SystemClock, threads};

const SIZE: u64 = 1 << 20;
const DONE: u16 = 1;
const DATA: u16 = 1;
const HOLE: u16 = 2;
const ERROR: u16 = (1 << 15) | 1;

/// A request for a read, as it came.
struct Asked {
    cookie: u64,
    offset: u64,
    len: u32,
}

fn simple(errno: u32, cookie: u64, bytes: &[u8]) -> Vec<u8> {
    [&0x6744_6698u32.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes(), bytes].concat()
}

/// One part of a structured reply. `stated`: the length that it says.
fn part(flags: u16, kind: u16, cookie: u64, stated: u32, bytes: &[u8]) -> Vec<u8> {
    let head = 0x668e_33efu32.to_be_bytes();
    let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
    [&head[..], &flags, &kind, &cookie.to_be_bytes(), &stated.to_be_bytes(), bytes].concat()
}

fn data(flags: u16, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], bytes].concat();
    part(flags, DATA, cookie, payload.len() as u32, &payload)
}

fn hole(flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    part(flags, HOLE, cookie, 12, &payload)
}

fn true_bytes(asked: &Asked) -> Vec<u8> {
    (asked.offset..asked.offset + u64::from(asked.len)).map(|at| (at / 7) as u8).collect()
}

/// What is said in place of an answer.
type Lie = fn(&Asked) -> Vec<u8>;

/// Errors as they may be said: with a number, after some of the bytes, all of them, or before them.
fn refusals() -> Vec<(&'static str, Lie)> {
    fn error(flags: u16, cookie: u64) -> Vec<u8> {
        part(flags, ERROR, cookie, 6, &[0, 0, 0, 5, 0, 0])
    }
    vec![
        ("an error alone", |a| error(DONE, a.cookie)),
        ("half of the data, then an error", |a| {
            let half = data(0, a.cookie, a.offset, &true_bytes(a)[..256]);
            [half, error(DONE, a.cookie)].concat()
        }),
        ("all of the data, then an error", |a| {
            [data(0, a.cookie, a.offset, &true_bytes(a)), error(DONE, a.cookie)].concat()
        }),
        ("an error, then all of the data", |a| {
            [error(0, a.cookie), data(DONE, a.cookie, a.offset, &true_bytes(a))].concat()
        }),
        ("an error in one piece", |a| simple(5, a.cookie, &[])),
    ]
}

/// What a server does when it has said something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Ends,
    SaysItAgain,
    GoesOn,
}

/// Parts that are said again and again, and bring nothing.
fn endless() -> Vec<(&'static str, Lie)> {
    vec![
        ("nothing, without end", |a| part(0, 0, a.cookie, 0, &[])),
        ("no data, without end", |a| data(0, a.cookie, a.offset, &[])),
        ("holes of no length, without end", |a| hole(0, a.cookie, a.offset, 0)),
        ("errors, without end", |a| part(0, ERROR, a.cookie, 6, &[0, 0, 0, 5, 0, 0])),
    ]
}

fn lies() -> Vec<(&'static str, Lie)> {
    vec![
        ("half of the data, and done", |a| data(DONE, a.cookie, a.offset, &true_bytes(a)[..100])),
        ("done without data", |a| part(DONE, 0, a.cookie, 0, &[])),
        ("the first half twice", |a| {
            let half = &true_bytes(a)[..a.len as usize / 2];
            let first = data(0, a.cookie, a.offset, half);
            [first, data(DONE, a.cookie, a.offset, half)].concat()
        }),
        ("all of it, and some of it again", |a| {
            let all = data(0, a.cookie, a.offset, &true_bytes(a));
            [all, hole(DONE, a.cookie, a.offset + 8, 8)].concat()
        }),
        ("data in front", |a| data(DONE, a.cookie, a.offset.wrapping_sub(1), &true_bytes(a))),
        ("data behind", |a| data(DONE, a.cookie, a.offset + 1, &true_bytes(a))),
        ("data of an end of all", |a| data(DONE, a.cookie, u64::MAX, &true_bytes(a))),
        ("a hole that is too long", |a| hole(DONE, a.cookie, a.offset, u32::MAX)),
        ("a hole of a length of its own", |a| part(DONE, HOLE, a.cookie, 13, &[0; 13])),
        ("a part without room for its place", |a| part(DONE, DATA, a.cookie, 7, &[0; 7])),
        ("four gigabytes", |a| part(DONE, DATA, a.cookie, u32::MAX, &a.offset.to_be_bytes())),
        ("an error as long as memory", |a| part(DONE, ERROR, a.cookie, u32::MAX, &[0; 64])),
        ("an error without a number", |a| part(DONE, ERROR, a.cookie, 2, &[0; 2])),
        ("a kind that nobody knows", |a| part(DONE, 77, a.cookie, 0, &[])),
        ("somebody else's answer", |a| data(DONE, a.cookie + 1000, a.offset, &true_bytes(a))),
        ("a simple answer to nobody", |a| simple(0, a.cookie ^ 0xff00, &true_bytes(a))),
        ("no answer's beginning", |_| vec![0x55; 64]),
        ("a part of an answer", |a| simple(0, a.cookie, &true_bytes(a)[..9])),
        ("a part of a head", |_| 0x6744_6698u32.to_be_bytes().to_vec()),
    ]
}

fn take<const N: usize>(stream: &mut UnixStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map(|()| bytes)
}

/// Says parts of answers for as long as somebody listens.
fn babble(stream: &mut UnixStream, part: &[u8]) -> std::io::Result<()> {
    let many = part.repeat(100);
    loop {
        stream.write_all(&many)?;
    }
}

/// Agrees on an export that is read, and answers with `lie`, or with the truth.
fn talk(
    mut stream: UnixStream,
    (lie, then): (Lie, Then),
    is_true: &AtomicBool,
) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    take::<4>(&mut stream)?;
    loop {
        take::<8>(&mut stream)?;
        let option = u32::from_be_bytes(take(&mut stream)?);
        let len = u32::from_be_bytes(take(&mut stream)?) as usize;
        stream.read_exact(&mut vec![0; len])?;
        let mut reply = |kind: u32, bytes: &[u8]| {
            let head = 0x0003_e889_0455_65a9u64.to_be_bytes();
            let words = [option, kind, bytes.len() as u32].map(u32::to_be_bytes).concat();
            stream.write_all(&[&head[..], &words, bytes].concat())
        };
        match option {
            8 => reply(1, &[])?,
            7 => {
                // Read-only, and it can be flushed.
                let flags: u16 = 1 | 1 << 1 | 1 << 2;
                let told = [&[0, 0][..], &SIZE.to_be_bytes(), &flags.to_be_bytes()].concat();
                reply(3, &told)?;
                reply(1, &[])?;
                break;
            }
            _ => reply((1 << 31) | 1, &[])?,
        }
    }
    loop {
        let _magic = take::<4>(&mut stream)?;
        let [_, _, _, command] = take::<4>(&mut stream)?;
        let cookie = u64::from_be_bytes(take(&mut stream)?);
        let offset = u64::from_be_bytes(take(&mut stream)?);
        let len = u32::from_be_bytes(take(&mut stream)?);
        if command != 0 {
            return Ok(());
        }
        let asked = Asked { cookie, offset, len };
        match is_true.load(Ordering::Acquire) {
            false => {
                stream.write_all(&lie(&asked))?;
                match then {
                    Then::SaysItAgain => return babble(&mut stream, &lie(&asked)),
                    Then::GoesOn => continue,
                    Then::Ends => {}
                }
                // Whoever waits for the rest does not get it.
                return stream.shutdown(std::net::Shutdown::Write);
            }
            true => stream.write_all(&data(DONE, cookie, offset, &true_bytes(&asked)))?,
        }
    }
}

#[test]
fn answers_that_cannot_be_are_errors_in_bounded_time_and_leave_nothing() {
    let all = [(lies(), Then::Ends), (endless(), Then::SaysItAgain), (refusals(), Then::GoesOn)];
    let all = all.into_iter().flat_map(|(list, then)| list.into_iter().map(move |lie| (lie, then)));
    for ((what, lie), then) in all {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let (is_true, ends, connections) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        threads::scope(|scope| {
            let accept = || {
                for stream in listener.incoming() {
                    if ends.load(Ordering::Acquire) {
                        return;
                    }
                    connections.fetch_add(1, Ordering::AcqRel);
                    let stream = stream.unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                    // A client that hangs up on a liar is right.
                    let _ = talk(stream, (lie, then), &is_true);
                }
            };
            scope.spawn("liar", accept).unwrap();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let name = format!("nbd+unix:///?socket={}", socket.display());
                let settings = Settings { limit: Duration::from_millis(500), tries: 2 };
                let device =
                    NbdDevice::open(&Address::parse(&name).unwrap(), true, settings).unwrap();
                let start = SystemClock.monotonic();
                let mut out = [0xee; 512];
                println!("{what}");
                let error = device.read_at(4096, &mut out).expect_err(what);
                let took = SystemClock.monotonic().saturating_sub(start);
                assert!(took < Duration::from_secs(15), "{what}: {took:?}");
                assert!(std::error::Error::source(&error).is_some(), "{what}: {error}");
                // It is asked again over a new connection, and no more often than was said.
                let asked = connections.load(Ordering::Acquire);
                match then {
                    // It is an answer.
                    Then::GoesOn => assert_eq!(asked, 1, "{what}: connections"),
                    _ => assert!((2..=6).contains(&asked), "{what}: {asked} connections"),
                }
                is_true.store(true, Ordering::Release);
                let wanted = true_bytes(&Asked { cookie: 0, offset: 4096, len: 512 });
                // A device that was lost is tried once in a second.
                let until = SystemClock.monotonic() + Duration::from_secs(15);
                while device.read_at(4096, &mut out).is_err() {
                    assert!(SystemClock.monotonic() < until, "{what}: it stays an error");
                    SystemClock.sleep(Duration::from_millis(100));
                }
                assert!(out[..] == wanted[..], "{what}");
            }));
            ends.store(true, Ordering::Release);
            drop(UnixStream::connect(&socket));
            if let Err(panic) = done {
                std::panic::resume_unwind(panic);
            }
        })
        .unwrap();
    }
}
