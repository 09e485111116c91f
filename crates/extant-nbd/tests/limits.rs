//! The client against servers with limits of their own: what takes longer than it may, and what is longer than they take.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use extant_block::{AlignedBuffer, BlockDevice, Operation, QueueOptions, Wait};
use extant_nbd::{Address, NbdDevice, NbdError, Settings};
use extant_sync::{Clock, SystemClock, threads};

const SIZE: u64 = 4 << 20;
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const FLUSH: u16 = 1 << 2;
const MULTI_CONN: u16 = 1 << 8;

/// How slowly a server goes about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    Quick,
    /// An answer comes a byte at a time.
    Drips,
    /// A payload is taken a little at a time.
    Sips,
    /// An answer comes in pieces of 16 KiB, slower than the limit as a whole.
    Slow,
}

struct Server {
    flags: u16,
    /// The longest payload, if it says anything about it.
    most: Option<u32>,
    /// It gives nothing to those who did not ask.
    insists: bool,
    pace: Pace,
    /// The longest request that came, and how many connections there were.
    longest: AtomicU32,
    connections: AtomicUsize,
    ends: AtomicBool,
}

impl Server {
    fn new(flags: u16) -> Server {
        Server {
            flags,
            most: None,
            insists: false,
            pace: Pace::Quick,
            longest: AtomicU32::new(0),
            connections: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
        }
    }

    fn answer(&self, stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
        let (piece, pause) = match self.pace {
            Pace::Drips => (1, Duration::from_millis(20)),
            Pace::Slow => (16 << 10, Duration::from_millis(20)),
            Pace::Quick | Pace::Sips => (bytes.len().max(1), Duration::ZERO),
        };
        for piece in bytes.chunks(piece) {
            if self.ends.load(Ordering::Acquire) {
                break;
            }
            stream.write_all(piece)?;
            SystemClock.sleep(pause);
        }
        Ok(())
    }

    fn agree(&self, stream: &mut UnixStream) -> io::Result<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        take::<4>(stream)?;
        loop {
            take::<8>(stream)?;
            let option = u32::from_be_bytes(take(stream)?);
            let len = u32::from_be_bytes(take(stream)?) as usize;
            let mut data = vec![0; len];
            stream.read_exact(&mut data)?;
            let mut reply = |kind: u32, bytes: &[u8]| {
                let head = 0x0003_e889_0455_65a9u64.to_be_bytes();
                let words = [option, kind, bytes.len() as u32].map(u32::to_be_bytes).concat();
                stream.write_all(&[&head[..], &words, bytes].concat())
            };
            let has_asked = data.ends_with(&[0, 1, 0, 3]);
            if option != 7 {
                reply((1 << 31) | 1, &[])?;
            } else if self.insists && !has_asked {
                reply((1 << 31) | 8, &[])?;
            } else {
                reply(3, &[&[0, 0][..], &SIZE.to_be_bytes(), &self.flags.to_be_bytes()].concat())?;
                if let Some(most) = self.most {
                    let sizes = [1u32, 4096.min(most), most].map(u32::to_be_bytes).concat();
                    reply(3, &[&[0, 3][..], &sizes].concat())?;
                }
                return reply(1, &[]);
            }
        }
    }

    fn talk(&self, mut stream: UnixStream) -> io::Result<()> {
        self.agree(&mut stream)?;
        loop {
            take::<4>(&mut stream)?;
            let [_, _, _, command] = take::<4>(&mut stream)?;
            let cookie: [u8; 8] = take(&mut stream)?;
            take::<8>(&mut stream)?;
            let len = u32::from_be_bytes(take(&mut stream)?);
            if command == 2 {
                return Ok(());
            }
            self.longest.fetch_max(len, Ordering::AcqRel);
            let is_too_long = self.most.is_some_and(|most| len > most);
            let mut bytes = vec![7; len as usize];
            if command == 1 {
                let piece = if self.pace == Pace::Sips { 32 << 10 } else { bytes.len() };
                for piece in bytes.chunks_mut(piece.max(1)) {
                    if self.ends.load(Ordering::Acquire) {
                        return Ok(());
                    }
                    stream.read_exact(piece)?;
                    if self.pace == Pace::Sips {
                        SystemClock.sleep(Duration::from_millis(400));
                    }
                }
            }
            let errno = if is_too_long { 22u32 } else { 0 };
            let head = [&0x6744_6698u32.to_be_bytes()[..], &errno.to_be_bytes(), &cookie].concat();
            match command {
                0 if !is_too_long => self.answer(&mut stream, &[head, bytes].concat())?,
                _ => self.answer(&mut stream, &head)?,
            }
        }
    }

    /// Serves while `work` runs, which is told the address.
    fn serve(&self, work: impl FnOnce(&Address)) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let address = format!("nbd+unix:///?socket={}", socket.display());
        let address = Address::parse(&address).unwrap();
        threads::scope(|scope| {
            let accept = || {
                threads::scope(|clients| {
                    for stream in listener.incoming() {
                        if self.ends.load(Ordering::Acquire) {
                            return;
                        }
                        self.connections.fetch_add(1, Ordering::AcqRel);
                        let stream = stream.unwrap();
                        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                        // Who gives up on this server may do so at any moment.
                        clients.spawn("client", move || drop(self.talk(stream))).unwrap();
                    }
                })
                .unwrap();
            };
            scope.spawn("server", accept).unwrap();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&address)));
            self.ends.store(true, Ordering::Release);
            drop(UnixStream::connect(&socket));
            if let Err(panic) = done {
                std::panic::resume_unwind(panic);
            }
        })
        .unwrap();
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map(|()| bytes)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = SystemClock.monotonic();
    let done = work();
    (done, SystemClock.monotonic().saturating_sub(start))
}

const HASTY: Settings = Settings { limit: Duration::from_millis(500), tries: 1 };

#[test]
fn a_reply_that_drips_is_given_up_as_one_that_does_not_come() {
    let server = Server { pace: Pace::Drips, ..Server::new(HAS_FLAGS | READ_ONLY | FLUSH) };
    server.serve(|address| {
        let device = NbdDevice::open(address, true, HASTY).unwrap();
        // A byte in 20 milliseconds: 82 seconds for all of it.
        let (read, took) = timed(|| device.read_at(0, &mut [0; 4096]));
        read.unwrap_err();
        assert!(took < Duration::from_secs(5), "{took:?}");
        // Many of them, and each is in time.
        let (read, took) = timed(|| device.read_at(0, &mut [0; 1]));
        assert!(read.is_err() || took < Duration::from_secs(5), "{took:?}");
    });
}

#[test]
fn a_server_that_takes_a_request_sip_by_sip_is_given_up() {
    let server = Server { pace: Pace::Sips, ..Server::new(HAS_FLAGS | FLUSH) };
    server.serve(|address| {
        // Long enough for each piece of it: the system tells of room only when a larger one was taken.
        let settings = Settings { limit: Duration::from_secs(2), tries: 1 };
        let device = NbdDevice::open(address, false, settings).unwrap();
        // 32 KiB in 400 milliseconds: twelve seconds for all of it, and by its length it may take six.
        let (written, took) = timed(|| device.write_at(0, &vec![1; 1 << 20]));
        written.unwrap_err();
        assert!(took < Duration::from_secs(20), "{took:?}");
    });
}

#[test]
fn what_is_long_and_goes_on_may_take_longer_than_the_limit() {
    let server = Server { pace: Pace::Slow, ..Server::new(HAS_FLAGS | READ_ONLY | FLUSH) };
    server.serve(|address| {
        let device = NbdDevice::open(address, true, HASTY).unwrap();
        let mut out = vec![0; 1 << 20];
        let (read, took) = timed(|| device.read_at(0, &mut out));
        read.unwrap();
        assert!(took > 2 * HASTY.limit, "{took:?}: it was not slow");
        assert!(out.iter().all(|byte| *byte == 7));
        assert_eq!(device.reconnections(), 0);
    });
}

#[test]
fn no_request_is_longer_than_the_server_says_that_it_takes() {
    for (most, insists) in [(4096u32, false), (65_536, true), (10_000, false), (512, true)] {
        let flags = HAS_FLAGS | FLUSH | MULTI_CONN;
        let server = Server { most: Some(most), insists, ..Server::new(flags) };
        server.serve(|address| {
            let device = NbdDevice::open(address, false, Settings::default()).unwrap();
            device.write_at(0, &[1; 50_000]).unwrap();
            device.write_zeroes(0, 100_000).unwrap();
            device.read_at(512, &mut [0; 50_000]).unwrap();
            let mut queue = device.queue(&QueueOptions::default().depth(4));
            for (tag, len) in [(0, 512), (1, 65_536), (2, 1 << 20)] {
                let buffer = AlignedBuffer::zeroed(len);
                queue.push(tag, Operation::Read { offset: 0, buffer }).unwrap();
            }
            queue.submit();
            while let Some(done) = queue.reap(Wait::Block) {
                let Operation::Read { buffer, .. } = &done.completion.operation else {
                    panic!("a read")
                };
                assert!(done.completion.result.is_ok(), "{most}: {:?}", done.completion.result);
                assert!(buffer.iter().all(|byte| *byte == 7));
            }
        });
        // Parts begin and end with sectors, whatever the server's number is.
        assert_eq!(server.longest.load(Ordering::Acquire), most / 512 * 512);
    }
}

#[test]
fn a_server_that_takes_less_than_a_sector_is_refused_by_name() {
    let server = Server { most: Some(100), ..Server::new(HAS_FLAGS | FLUSH) };
    server.serve(|address| {
        let error = NbdDevice::open(address, false, HASTY).unwrap_err();
        assert!(matches!(error, NbdError::Protocol { .. }), "{error:?}");
        assert!(error.to_string().contains("no more than 100 bytes"), "{error}");
    });
}

#[test]
fn one_connection_is_all_where_the_server_does_not_say_that_a_flush_is_for_several() {
    for (flags, most) in [(HAS_FLAGS | FLUSH, 1), (HAS_FLAGS | FLUSH | MULTI_CONN, 64)] {
        let server = Server::new(flags);
        server.serve(|address| {
            let device = NbdDevice::open(address, false, Settings::default()).unwrap();
            threads::scope(|scope| {
                for number in 0..8u64 {
                    let device = &device;
                    let work = move || {
                        for turn in 0..50 {
                            device.write_at(number * 65_536 + turn * 512, &[1; 512]).unwrap();
                            device.flush().unwrap();
                            let mut queue = device.queue(&QueueOptions::default().depth(4));
                            let buffer = AlignedBuffer::zeroed(512);
                            queue.push(0, Operation::Read { offset: 0, buffer }).unwrap();
                            queue.submit();
                            queue.reap(Wait::Block).unwrap().completion.result.unwrap();
                        }
                    };
                    scope.spawn("user", work).unwrap();
                }
            })
            .unwrap();
            device.connect_all();
            let made = server.connections.load(Ordering::Acquire);
            assert!(most > 1 || made == 1, "{made} connections");
        });
    }
}
