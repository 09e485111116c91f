//! A device for clients.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use extant_base::sabotage;
use extant_block::{
    AlignedBuffer, BlockDevice, DeviceError, DeviceFault, Operation, OperationKind, SharedDevice,
};
use extant_sync::{Clock, SystemClock, threads};

use crate::socket::Socket;
use crate::stream::Kind;
use crate::tls::ServerTls;
use crate::wire::*;

/// Clients at once.
const CLIENTS_MAX: usize = 64;
/// Period of checks for the end of serving and for new clients.
const LOOK: Duration = Duration::from_millis(20);
/// How long a client may take over the bytes of one request.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take a client to choose an export, TLS included.
const AGREEMENT: Duration = Duration::from_secs(20);
/// Options that a client may ask for before it chooses an export.
const OPTIONS_MAX: usize = 64;

/// The socket on which clients connect.
#[derive(Debug)]
pub enum Listening {
    /// A port of this host.
    Tcp(TcpListener),
    /// A socket in the file system.
    Unix(UnixListener),
}

impl Listening {
    fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Listening::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Socket::new(Kind::Tcp(stream))
            }
            Listening::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Socket::new(Kind::Unix(stream))
            }
        })
    }
}

/// Serves `device` under the name `export` to all clients, until `end` is set. Connected clients
/// are disconnected after their current request; their writes are flushed.
///
/// Each client has a thread of its own and gets one answer after the other. All see each other's
/// writes and flush each other's, so that one client may use several connections. When a flush has failed, every later one
/// and every change is an error until the device is served again: what any of them had written is in doubt.
///
/// # Errors
///
/// Errors of the socket, of the last flush at the end, and of an earlier one.
pub fn serve(
    device: &SharedDevice,
    export: &str,
    listening: &Listening,
    end: &AtomicBool,
) -> io::Result<()> {
    serve_any(device, export, listening, None, end)
}

/// As [`serve`], to clients over TLS alone: whoever asks for an export without it is told so, and learns nothing of it.
///
/// A client has 20 seconds to agree with the server, TLS included, and then may be silent for any time.
///
/// # Errors
///
/// As [`serve`].
pub fn serve_tls(
    device: &SharedDevice,
    export: &str,
    listening: &Listening,
    tls: &ServerTls,
    end: &AtomicBool,
) -> io::Result<()> {
    serve_any(device, export, listening, Some(tls), end)
}

fn serve_any(
    device: &SharedDevice,
    export: &str,
    listening: &Listening,
    tls: Option<&ServerTls>,
    end: &AtomicBool,
) -> io::Result<()> {
    match listening {
        Listening::Tcp(listener) => listener.set_nonblocking(true)?,
        Listening::Unix(listener) => listener.set_nonblocking(true)?,
    }
    let clients = AtomicUsize::new(0);
    let is_in_doubt = AtomicBool::new(false);
    let served = threads::scope(|scope| {
        while !end.load(Ordering::Acquire) {
            let socket = match listening.accept() {
                Ok(socket) if clients.load(Ordering::Acquire) < CLIENTS_MAX => socket,
                // Too many: the connection is closed.
                Ok(_) => continue,
                Err(error) if is_passing(&error) => {
                    SystemClock.sleep(LOOK);
                    continue;
                }
                Err(error) => {
                    end.store(true, Ordering::Release);
                    return Err(error);
                }
            };
            clients.fetch_add(1, Ordering::AcqRel);
            let (clients, is_in_doubt) = (&clients, &is_in_doubt);
            let client = move || {
                // A client that breaks the rules or disconnects does not affect others.
                let _ = Client { device, export, socket, tls, is_in_doubt, end }.run();
                clients.fetch_sub(1, Ordering::AcqRel);
            };
            if scope.spawn("nbd-client", client).is_err() {
                clients.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    });
    let served = served.map_err(io::Error::other)?;
    device.flush().map_err(io::Error::from)?;
    if is_in_doubt.load(Ordering::Acquire) {
        let what = "a flush failed: what clients had written before it may be lost";
        return Err(io::Error::other(what));
    }
    served
}

/// Returns whether an error is temporary: there is no client, the client has left, or there are no
/// resources for a connection at the moment.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::WouldBlock | Kind::Interrupted | Kind::ConnectionAborted)
        || matches!(error.raw_os_error(), Some(23 | 24))
}

struct Client<'a> {
    device: &'a SharedDevice,
    export: &'a str,
    socket: Socket,
    tls: Option<&'a ServerTls>,
    /// A flush has failed, of any client (N7).
    is_in_doubt: &'a AtomicBool,
    end: &'a AtomicBool,
}

impl Client<'_> {
    fn run(mut self) -> io::Result<()> {
        self.socket.limit(Some(PATIENCE))?;
        self.socket.finish_within(AGREEMENT);
        if self.agree()? {
            self.socket.take_time()?;
            self.socket.read_ahead();
            while self.wait()? {
                if !self.answer()? {
                    break;
                }
            }
        }
        self.socket.part();
        Ok(())
    }

    /// Waits for a request; returns false when serving ends. A client may be silent for any time.
    fn wait(&mut self) -> io::Result<bool> {
        // A client that has much under way sends many together.
        if !self.socket.came().is_empty() && !self.end.load(Ordering::Acquire) {
            return Ok(true);
        }
        self.socket.limit(Some(LOOK * 5))?;
        let is_there = loop {
            if self.end.load(Ordering::Acquire) {
                break false;
            }
            match self.socket.peek() {
                Ok(0) => break false,
                Ok(_) => break true,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        };
        self.socket.limit(Some(PATIENCE))?;
        Ok(is_there)
    }

    fn flags(&self) -> u16 {
        let flags =
            HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN;
        if self.device.is_read_only() { flags | READ_ONLY } else { flags }
    }

    /// Finds out which export is wanted. False if none is.
    fn agree(&mut self) -> io::Result<bool> {
        let mut hello = Vec::new();
        hello.extend_from_slice(&INIT_MAGIC.to_be_bytes());
        hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        hello.extend_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        self.socket.send(&hello, &[])?;
        let flags = self.socket.take_u32()?;
        for _ in 0..OPTIONS_MAX {
            let magic = self.socket.take_u64()?;
            let (option, len) = (self.socket.take_u32()?, self.socket.take_u32()? as usize);
            if magic != OPTION_MAGIC || len > STRING_MAX * 2 {
                return Ok(false);
            }
            let mut data = vec![0; len];
            self.socket.read_exact(&mut data)?;
            let is_plain = self.tls.is_some() && !self.socket.is_secret();
            match option {
                OPT_STARTTLS if is_plain && data.is_empty() => {
                    let Some(tls) = self.tls else { return Ok(false) };
                    self.reply(option, REP_ACK, &[])?;
                    self.socket.secure(|stream| tls.start(stream))?;
                }
                OPT_STARTTLS if self.tls.is_some() => self.reply(option, REP_ERR_INVALID, &[])?,
                OPT_STARTTLS => self.reply(option, REP_ERR_POLICY, b"there is none here")?,
                // There is no way to say no but to go.
                OPT_EXPORT_NAME if is_plain => return Ok(false),
                OPT_ABORT => {
                    self.reply(option, REP_ACK, &[])?;
                    return Ok(false);
                }
                _ if is_plain && !sabotage("nbd.serve.plain-text-answered") => {
                    self.reply(option, REP_ERR_TLS_REQD, b"start TLS first")?;
                }
                OPT_EXPORT_NAME => {
                    // There is no way to say no but to go.
                    if !self.is_ours(&data) {
                        return Ok(false);
                    }
                    let mut reply = Vec::new();
                    reply.extend_from_slice(&self.device.size_bytes().to_be_bytes());
                    reply.extend_from_slice(&self.flags().to_be_bytes());
                    if flags & u32::from(NO_ZEROES) == 0 {
                        reply.resize(reply.len() + 124, 0);
                    }
                    self.socket.send(&reply, &[])?;
                    return Ok(true);
                }
                OPT_LIST if data.is_empty() => {
                    let mut name = (self.export.len() as u32).to_be_bytes().to_vec();
                    name.extend_from_slice(self.export.as_bytes());
                    self.reply(option, REP_SERVER, &name)?;
                    self.reply(option, REP_ACK, &[])?;
                }
                OPT_GO | OPT_INFO => {
                    let len =
                        data.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
                    let Some(name) = data.get(4..).and_then(|rest| rest.get(..len as usize)) else {
                        self.reply(option, REP_ERR_INVALID, &[])?;
                        continue;
                    };
                    if !self.is_ours(name) {
                        self.reply(option, REP_ERR_UNKNOWN, b"there is no such export")?;
                        continue;
                    }
                    let mut info = INFO_EXPORT.to_be_bytes().to_vec();
                    info.extend_from_slice(&self.device.size_bytes().to_be_bytes());
                    info.extend_from_slice(&self.flags().to_be_bytes());
                    self.reply(option, REP_INFO, &info)?;
                    let mut sizes = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
                    for size in [1, 4096, PAYLOAD_MAX as u32] {
                        sizes.extend_from_slice(&size.to_be_bytes());
                    }
                    self.reply(option, REP_INFO, &sizes)?;
                    self.reply(option, REP_ACK, &[])?;
                    if option == OPT_GO {
                        return Ok(true);
                    }
                }
                _ => self.reply(option, REP_ERR_UNSUP, &[])?,
            }
        }
        Ok(false)
    }

    /// The empty name is for whatever there is.
    fn is_ours(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.as_bytes()
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut head = Vec::new();
        head.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        head.extend_from_slice(&option.to_be_bytes());
        head.extend_from_slice(&kind.to_be_bytes());
        head.extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.socket.send(&head, data)
    }

    /// Answers one request. False if the client says goodbye.
    fn answer(&mut self) -> io::Result<bool> {
        let magic = self.socket.take_u32()?;
        let (flags, command) = (self.socket.take_u16()?, self.socket.take_u16()?);
        let (cookie, offset) = (self.socket.take_u64()?, self.socket.take_u64()?);
        let len = self.socket.take_u32()?;
        if magic != REQUEST_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let has_payload = matches!(command, CMD_READ | CMD_WRITE);
        if has_payload && len as usize > PAYLOAD_MAX {
            // The data behind a write of that length cannot be read.
            if command == CMD_WRITE {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.settle(cookie, EINVAL, &[])?;
            return Ok(true);
        }
        let fua = flags & CMD_FLAG_FUA != 0;
        let operation = match command {
            CMD_DISC => return Ok(false),
            CMD_READ => Operation::Read { offset, buffer: AlignedBuffer::zeroed(len as usize) },
            CMD_WRITE => {
                let mut buffer = AlignedBuffer::zeroed(len as usize);
                self.socket.read_exact(&mut buffer)?;
                Operation::Write { offset, buffer, fua }
            }
            CMD_FLUSH => Operation::Flush,
            CMD_TRIM => Operation::Discard { offset, len: u64::from(len) },
            CMD_WRITE_ZEROES => Operation::WriteZeroes { offset, len: u64::from(len) },
            _ => {
                self.settle(cookie, EINVAL, &[])?;
                return Ok(true);
            }
        };
        let is_range = matches!(command, CMD_TRIM | CMD_WRITE_ZEROES);
        if command != CMD_READ && self.is_in_doubt.load(Ordering::Acquire) {
            self.settle(cookie, EIO, &[])?;
            return Ok(true);
        }
        let done = self.device.submit(vec![operation]).wait().pop();
        let Some(done) = done else { return Err(io::ErrorKind::Other.into()) };
        let result = match done.result {
            Ok(()) if is_range && fua => self.device.flush(),
            // A wish that the device does not know.
            Err(error) if command == CMD_TRIM && error.is_unsupported() => Ok(()),
            other => other,
        };
        if result.as_ref().is_err_and(|error| error.kind() == OperationKind::Flush)
            && !sabotage("nbd.serve.flush-failed-once")
        {
            self.is_in_doubt.store(true, Ordering::Release);
        }
        match (result, &done.operation) {
            (Ok(()), Operation::Read { buffer, .. }) => self.settle(cookie, 0, buffer)?,
            (Ok(()), _) => self.settle(cookie, 0, &[])?,
            (Err(error), _) => self.settle(cookie, errno(&error), &[])?,
        }
        Ok(true)
    }

    fn settle(&mut self, cookie: u64, errno: i32, payload: &[u8]) -> io::Result<()> {
        let mut head = [0; 16];
        head[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head[4..8].copy_from_slice(&errno.to_be_bytes());
        head[8..].copy_from_slice(&cookie.to_be_bytes());
        self.socket.send(&head, payload)
    }
}

fn errno(error: &DeviceError) -> i32 {
    match error.fault() {
        DeviceFault::ReadOnly => EPERM,
        DeviceFault::PastEnd { .. } if matches!(error.kind(), OperationKind::Read) => EINVAL,
        DeviceFault::PastEnd { .. } => ENOSPC,
        DeviceFault::Unsupported => ENOTSUP,
        _ if error.is_full() => ENOSPC,
        _ => EIO,
    }
}
