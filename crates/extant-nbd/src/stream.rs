//! Bytes over a socket of either kind, with limits of time.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use extant_sync::{Clock, SystemClock};

use crate::address::At;

/// Bytes for which whoever is in a hurry gets a second more: two megabits in a second are slow, not stalled.
const PACE: u64 = 256 << 10;

/// Bytes of a payload that go in one call: where a socket is one of this host, each part of a longer one has the whole
/// time for itself.
const PIECE: usize = 256 << 10;

/// Returns whether an error says no more than that nothing came for a while.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The kinds of sockets.
pub(crate) enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// When everything has to have gone over the network, however little goes at a time.
struct End {
    at: Duration,
    /// Bytes that go bring more time, by [`PACE`].
    is_earned: bool,
}

/// Bytes as they go over the network.
pub(crate) struct Stream {
    kind: Kind,
    limit: Option<Duration>,
    end: Option<End>,
    /// What the system knows of how long one call may take.
    told: Option<Duration>,
}

impl Stream {
    pub(crate) fn new(kind: Kind) -> Stream {
        Stream { kind, limit: None, end: None, told: None }
    }

    pub(crate) fn connect(at: &At, limit: Duration) -> io::Result<Stream> {
        let kind = match at {
            At::Socket(path) => Kind::Unix(UnixStream::connect(path)?),
            At::Host(host, port) => {
                use std::net::ToSocketAddrs;
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                let mut found = None;
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => {
                            found = Some(stream);
                            break;
                        }
                        Err(error) => last = error,
                    }
                }
                let stream = found.ok_or(last)?;
                stream.set_nodelay(true)?;
                Kind::Tcp(stream)
            }
        };
        let mut stream = Stream::new(kind);
        stream.limit(Some(limit))?;
        Ok(stream)
    }

    pub(crate) fn limit(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.limit = limit;
        self.set_timeouts(limit)
    }

    fn set_timeouts(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match &self.kind {
            Kind::Tcp(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
            }
            Kind::Unix(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
            }
        }
        self.told = limit;
        Ok(())
    }

    /// From now on, everything is over within `within`, and within a second more for each [`PACE`] bytes that go if
    /// that is earned by them.
    pub(crate) fn finish_within(&mut self, within: Duration, is_earned: bool) {
        self.end = Some(End { at: SystemClock.monotonic() + within, is_earned });
    }

    /// Each read and each write has its own time again.
    pub(crate) fn take_time(&mut self) -> io::Result<()> {
        self.end = None;
        self.set_timeouts(self.limit)
    }

    /// What is read and written next has only the time that is left. The system is told when that differs by more
    /// than an eighth of the limit: not for each of many short answers that come at once.
    fn hurry(&mut self) -> io::Result<()> {
        let Some(end) = &self.end else { return Ok(()) };
        let left = end.at.saturating_sub(SystemClock.monotonic());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = self.limit.map_or(left, |limit| limit.min(left));
        let slack = self.limit.unwrap_or_default() / 8;
        if self.told.is_none_or(|told| told.abs_diff(left) > slack) {
            self.set_timeouts(Some(left))?;
        }
        Ok(())
    }

    /// Some bytes have gone.
    fn went(&mut self, done: io::Result<usize>) -> io::Result<usize> {
        if let (Ok(count), Some(end)) = (&done, &mut self.end)
            && end.is_earned
        {
            end.at += Duration::from_nanos(*count as u64 * (1_000_000_000 / PACE));
        }
        done
    }

    fn write_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.hurry()?;
        let done = match &mut self.kind {
            Kind::Tcp(stream) => stream.write_vectored(parts),
            Kind::Unix(stream) => stream.write_vectored(parts),
        };
        self.went(done)
    }

    /// Writes a head and a payload.
    pub(crate) fn send<'p>(&mut self, head: &'p [u8], payload: &'p [u8]) -> io::Result<()> {
        let total = head.len() + payload.len();
        let mut done = 0;
        while done < total {
            let piece = |rest: &'p [u8]| IoSlice::new(&rest[..rest.len().min(PIECE)]);
            let parts = match head.get(done..).filter(|rest| !rest.is_empty()) {
                Some(rest) => [IoSlice::new(rest), piece(payload)],
                None => [piece(&payload[done - head.len()..]), IoSlice::new(&[])],
            };
            match self.write_vectored(&parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn peek(&self) -> io::Result<usize> {
        let mut byte = [0];
        match &self.kind {
            Kind::Tcp(stream) => stream.peek(&mut byte),
            Kind::Unix(stream) => {
                use rustix::net::RecvFlags;
                let (count, _) = rustix::net::recv(stream, &mut byte[..], RecvFlags::PEEK)?;
                Ok(count)
            }
        }
    }

    pub(crate) fn end_sending(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Kind::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        let mut bytes = [0; 4096];
        // Much may have come before the end, and not without bound.
        for _ in 0..1 << 16 {
            let came = match &self.kind {
                Kind::Tcp(stream) => recv(stream, &mut bytes[..], RecvFlags::DONTWAIT),
                Kind::Unix(stream) => recv(stream, &mut bytes[..], RecvFlags::DONTWAIT),
            };
            match came {
                Ok((0, _)) => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return !is_silence(&errno.into()),
            }
        }
        false
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        let done = match &mut self.kind {
            Kind::Tcp(stream) => stream.read(out),
            Kind::Unix(stream) => stream.read(out),
        };
        self.went(done)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_parts(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_parts(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
