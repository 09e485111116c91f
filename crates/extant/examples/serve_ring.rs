//! Serves the files of an image over HTTP, with operations as futures and no executor.
//!
//! Several threads share one ring. Each answers one connection at a time, and reads the next piece
//! of a file while it sends the last one: the operation is a future, which is begun by its first
//! poll and awaited when its bytes are needed.
//!
//! ```sh
//! cargo run --release -p extant --example serve_ring -- disk.img 127.0.0.1:8080
//! curl http://127.0.0.1:8080/etc/motd
//! ```

use std::future::Future;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use extant::ring::{Completion, Op, Ring, Running, Value};
use extant::{FileKind, FsError, Inode, MountOptions};
use extant_sync::{Condvar, Mutex, Rank, threads};

/// Threads, each with one connection.
const THREADS: usize = 4;
/// Operations under way.
const DEPTH: usize = 16;
/// Bytes of one read.
const PIECE: usize = 256 << 10;
/// Longest request line and headers.
const REQUEST_MAX: u64 = 16 << 10;
/// How long a client may be silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Wakes the thread that waits for a future.
struct Parked {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Parked {
    fn new() -> Arc<Parked> {
        Arc::new(Parked { is_woken: Mutex::new(Rank::Leaf, false), woken: Condvar::new() })
    }

    fn park(&self) {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            self.woken.wait(&mut is_woken);
        }
        *is_woken = false;
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.woken.notify_one();
    }
}

/// Waits for a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let parked = Parked::new();
    let waker = Waker::from(Arc::clone(&parked));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        parked.park();
    }
}

/// A read that has begun, and perhaps ended.
enum Ahead {
    UnderWay(Running),
    Done(Completion),
}

impl Ahead {
    /// Begins to read a piece. What is cached is here at once, and otherwise a worker reads it.
    fn begin(ring: &Ring, file: &Inode, offset: u64, mut buffer: Vec<u8>) -> Ahead {
        buffer.resize(PIECE, 0);
        let mut running = ring.run(file, Op::Read { offset, buffer });
        // Nobody needs to be woken yet: it is polled again where it is waited for.
        match Pin::new(&mut running).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Ahead::Done(done),
            Poll::Pending => Ahead::UnderWay(running),
        }
    }

    fn finish(self) -> Completion {
        match self {
            Ahead::UnderWay(running) => block_on(running),
            Ahead::Done(done) => done,
        }
    }
}

/// Sends a file, `size` bytes of it: as many as were announced.
fn send(ring: &Ring, file: &Inode, size: u64, client: &mut TcpStream) -> io::Result<()> {
    let (mut sent, mut spare) = (0, Vec::new());
    let mut ahead = Ahead::begin(ring, file, 0, Vec::new());
    while sent < size {
        let Completion { result, buffer, .. } = ahead.finish();
        let read = result.map_err(io::Error::other)?.min(size - sent);
        if read == 0 {
            // Somebody has cut the file, and the client learns it by the end of the connection.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        ahead = Ahead::begin(ring, file, sent + read, std::mem::replace(&mut spare, buffer));
        client.write_all(&spare[..read as usize])?;
        sent += read;
    }
    Ok(())
}

fn refuse(client: &mut TcpStream, status: &str) -> io::Result<()> {
    write!(client, "HTTP/1.0 {status}\r\nContent-Length: 0\r\n\r\n")
}

/// Answers the one request of a connection.
fn answer(ring: &Ring, client: &mut TcpStream) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(client.try_clone()?.take(REQUEST_MAX)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
    let mut words = first.split(' ');
    let (Some("GET"), Some(path)) = (words.next(), words.next()) else {
        return refuse(client, "405 Method Not Allowed");
    };
    let root = ring.fs().root().map_err(io::Error::other)?;
    let opened = block_on(ring.run(&root, Op::Open { path: path.as_bytes().to_vec() }));
    let file = match (opened.result, opened.value) {
        (Ok(_), Value::Inode(file)) => file,
        (Err(FsError::NotFound { .. } | FsError::NotADirectory { .. }), _) => {
            return refuse(client, "404 Not Found");
        }
        _ => return refuse(client, "500 Internal Server Error"),
    };
    let metadata = match block_on(ring.run(&file, Op::Stat)).value {
        Value::Metadata(metadata) if metadata.kind == FileKind::Regular => metadata,
        _ => return refuse(client, "403 Forbidden"),
    };
    write!(client, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", metadata.size)?;
    send(ring, &file, metadata.size, client)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(image), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve_ring IMAGE ADDRESS:PORT".into());
    };
    let fs = MountOptions::new().open_path(image)?;
    let ring = fs.ring(DEPTH)?;
    let listener = TcpListener::bind(address)?;
    println!("http://{}", listener.local_addr()?);
    threads::workers("client", THREADS, |_| {
        while let Ok((mut client, from)) = listener.accept() {
            if let Err(why) = answer(&ring, &mut client) {
                eprintln!("{from}: {why}");
            }
        }
    })?;
    Ok(())
}
