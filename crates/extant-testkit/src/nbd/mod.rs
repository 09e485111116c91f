//! A server of network block devices that loses connections, forgets, stalls and lies, under one seed.
//!
//! # Shape
//!
//! ```text
//! client  --socket-->  one thread for each connection     cuts the connection at any point of a request
//!                              |
//!                         Memory of the server             what was not flushed; a server that ends
//!                              |                           forgets some of it
//!                      the device, such as a RecordingDevice
//! ```
//!
//! # What it promises, until it lies
//!
//! - B1. A request is applied whole or not at all, and never after its connection was ended by
//!   [`Cut`]s other than [`Cut::Late`].
//! - B2. A flush that is answered has all requests that were answered before it, of all connections,
//!   on the device, and the device flushed.
//! - B3. When it forgets, each sector that was written since the last flush is on the device or not, each
//!   by itself, and all connections end.
//!
//! It is written from the protocol and shares no code with `extant-nbd`.

mod connection;
mod memory;

use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant_base::Prng;
use extant_block::SharedDevice;
use extant_sync::{Background, Clock, Mutex, Rank, SystemClock, threads};

use connection::Connection;
use memory::Memory;

/// Period of looks for clients and for the end.
const LOOK: Duration = Duration::from_millis(2);

/// Flags of an export, as the protocol numbers them.
pub mod flags {
    /// There are flags.
    pub const HAS_FLAGS: u16 = 1;
    /// The export cannot be written.
    pub const READ_ONLY: u16 = 2;
    /// Flushes are understood.
    pub const FLUSH: u16 = 4;
    /// So are writes that are durable when they are answered.
    pub const FUA: u16 = 8;
    /// Ranges can be discarded.
    pub const TRIM: u16 = 32;
    /// Ranges can be made zeros without a payload.
    pub const WRITE_ZEROES: u16 = 64;
    /// A client may use several connections.
    pub const MULTI_CONN: u16 = 256;
    /// All that can be done.
    pub const ALL: u16 = HAS_FLAGS | FLUSH | FUA | TRIM | WRITE_ZEROES | MULTI_CONN;
}

/// Where in a request its connection is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Before its payload is read.
    Unread,
    /// In the middle of its payload; as [`Cut::Unread`] where there is none.
    HalfRead,
    /// Before it is applied.
    Unapplied,
    /// When it is applied, before it is answered.
    Unanswered,
    /// In the middle of the answer.
    HalfAnswered,
    /// It is not answered, and the connection stays open until [`Server::let_go`]; then it is applied, and the
    /// connection ends.
    Late,
}

/// The cuts that a seed chooses among: all that end by themselves.
const CUTS: [Cut; 5] =
    [Cut::Unread, Cut::HalfRead, Cut::Unapplied, Cut::Unanswered, Cut::HalfAnswered];

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// What is chosen follows from it.
    pub seed: u64,
    /// One request in this many is cut; 0 for none.
    pub cut_one_in: u64,
    /// Numbers of requests, from 0 on, that are cut, and how.
    pub exactly: Vec<(u64, Cut)>,
    /// One cut in this many is the end of the server, which is there again at once and has forgotten some of
    /// what was not flushed; 0 for none.
    pub forget_one_in: u64,
    /// Bytes that are forgotten together or not at all, as a superblock of two sectors under one checksum.
    pub whole: Range<u64>,
    /// So many flushes are errors, and some of what they were to bring to the device is lost, as with a system whose disk
    /// fails for a moment. The next one succeeds.
    pub failing_flushes: u64,
    /// From this request on, nobody is there any more.
    pub gone_from: Option<u64>,
}

/// What the server says of its export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Says {
    /// Bytes; not necessarily those of the device.
    pub size: u64,
    /// [`flags`].
    pub flags: u16,
    /// Smallest request and longest payload, if it says anything about them.
    pub sizes: Option<(u32, u32)>,
}

/// Parts of the server that connections share.
struct Shared {
    state: Mutex<State>,
    end: AtomicBool,
    /// Nobody is there.
    is_gone: AtomicBool,
    /// Late requests go on.
    is_let_go: AtomicBool,
    /// Connections so far.
    connections: AtomicU64,
}

struct State {
    memory: Memory,
    says: Says,
    faults: Faults,
    random: Prng,
    /// Requests so far.
    requests: u64,
    cuts: u64,
    forgotten: u64,
    /// Raised when the server ends: what the threads of an earlier life have under way counts for nothing.
    life: u64,
    /// The open connections, by number.
    sockets: Vec<(u64, UnixStream)>,
}

impl State {
    /// All connections end, and some of what is not flushed is lost.
    fn die(&mut self) {
        self.life += 1;
        self.forgotten += 1;
        self.memory.forget(&mut self.random, &self.faults.whole);
        self.hang_up();
    }

    fn hang_up(&mut self) {
        for (_, socket) in self.sockets.drain(..) {
            // The client may have gone before.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A server in this process. It ends when it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    address: String,
    accepting: Option<Background>,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Serves `device` on a socket of its own. `says` is what the device is like, if nothing is given.
    pub fn start(device: SharedDevice, faults: Faults, says: Option<Says>) -> Server {
        let dir = tempfile::Builder::new().prefix("extant-nbd-").tempdir().expect("a directory");
        let path = dir.path().join("s");
        let honest = Says { size: device.size_bytes(), flags: flags::ALL, sizes: None };
        let state = State {
            memory: Memory::new(device),
            says: says.unwrap_or(honest),
            random: Prng::new(faults.seed ^ 0x6e62),
            faults,
            requests: 0,
            cuts: 0,
            forgotten: 0,
            life: 0,
            sockets: Vec::new(),
        };
        let shared = Arc::new(Shared {
            // Held over calls to the device below.
            state: Mutex::new(Rank::JournalState, state),
            end: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_let_go: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        });
        let listener = UnixListener::bind(&path).expect("a socket");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let (inside, place) = (Arc::clone(&shared), path.clone());
        let accept = move || {
            accept(&inside, &listener, &place);
            false
        };
        let accepting = Background::start("nbd-accept", LOOK, accept).expect("a thread");
        accepting.wake();
        let address = format!("nbd+unix:///?socket={}", path.display());
        Server { shared, address, accepting: Some(accepting), _dir: dir }
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What it says from now on to those who connect.
    pub fn say(&self, says: Says) {
        self.shared.state.lock().says = says;
    }

    /// What it says now.
    pub fn says(&self) -> Says {
        self.shared.state.lock().says
    }

    /// What goes wrong from now on. Requests are counted from 0 again.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.shared.state.lock();
        state.random = Prng::new(faults.seed ^ 0x6e62);
        state.requests = 0;
        state.faults = faults;
        self.shared.is_gone.store(false, Ordering::SeqCst);
    }

    /// All connections end.
    pub fn hang_up(&self) {
        self.shared.state.lock().hang_up();
    }

    /// The server ends and is there again; some of what was not flushed is lost.
    pub fn restart(&self) {
        self.shared.state.lock().die();
    }

    /// Nobody is there any more, or somebody again.
    pub fn set_gone(&self, gone: bool) {
        let mut state = self.shared.state.lock();
        self.shared.is_gone.store(gone, Ordering::SeqCst);
        if gone {
            state.hang_up();
        }
    }

    /// Requests that are late are applied now.
    pub fn let_go(&self) {
        self.shared.is_let_go.store(true, Ordering::SeqCst);
    }

    /// Number of requests, since the faults were set.
    pub fn requests(&self) -> u64 {
        self.shared.state.lock().requests
    }

    /// How many requests were cut, and how often the server forgot.
    pub fn cuts(&self) -> (u64, u64) {
        let state = self.shared.state.lock();
        (state.cuts, state.forgotten)
    }

    /// Number of connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::SeqCst);
        self.shared.is_let_go.store(true, Ordering::SeqCst);
        self.shared.state.lock().hang_up();
        drop(self.accepting.take());
    }
}

fn accept(shared: &Shared, listener: &UnixListener, path: &Path) {
    threads::scope(|scope| {
        while !shared.end.load(Ordering::SeqCst) {
            // Others find nobody: what connects meanwhile is hung up on.
            let Ok((socket, _)) = listener.accept() else {
                SystemClock.sleep(LOOK);
                continue;
            };
            if shared.is_gone.load(Ordering::SeqCst) {
                continue;
            }
            socket.set_nonblocking(false).expect("a socket that blocks");
            let number = shared.connections.fetch_add(1, Ordering::SeqCst);
            let life = {
                let mut state = shared.state.lock();
                state.sockets.push((number, socket.try_clone().expect("a second handle")));
                state.life
            };
            let serve = move || {
                // A connection that broke tells nobody but the client.
                let _ = Connection { shared, socket, life }.run();
                let mut state = shared.state.lock();
                if let Some(at) = state.sockets.iter().position(|(other, _)| *other == number) {
                    // The second handle would hold it open.
                    let _ = state.sockets.remove(at).1.shutdown(std::net::Shutdown::Both);
                }
            };
            scope.spawn("nbd-serve", serve).expect("a thread");
        }
    })
    .unwrap_or_else(|panic| panic!("{}: {panic}", path.display()));
}
