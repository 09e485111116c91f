//! A connected socket of either kind.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::address::At;

/// Returns whether an error says no more than that nothing came for a while.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn connect(at: &At, limit: Duration) -> io::Result<Socket> {
        let socket = match at {
            At::Socket(path) => Socket::Unix(UnixStream::connect(path)?),
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
                Socket::Tcp(stream)
            }
        };
        socket.limit(Some(limit))?;
        Ok(socket)
    }

    /// How long one read or write may take.
    pub(crate) fn limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
        }
    }

    /// Writes a head and a payload.
    pub(crate) fn send(&mut self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let total = head.len() + payload.len();
        let mut done = 0;
        while done < total {
            let parts = match head.get(done..).filter(|rest| !rest.is_empty()) {
                Some(rest) => [IoSlice::new(rest), IoSlice::new(payload)],
                None => [IoSlice::new(&payload[done - head.len()..]), IoSlice::new(&[])],
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

    /// Returns the number of bytes available, without taking them; 0 when the other side is gone.
    pub(crate) fn peek(&self) -> io::Result<usize> {
        let mut byte = [0];
        match self {
            Socket::Tcp(stream) => stream.peek(&mut byte),
            Socket::Unix(stream) => {
                use rustix::net::RecvFlags;
                let (count, _) = rustix::net::recv(stream, &mut byte[..], RecvFlags::PEEK)?;
                Ok(count)
            }
        }
    }

    /// Tells the other side that nothing more comes.
    pub(crate) fn end_sending(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Returns whether the other side has ended the connection. Takes what came from it; never waits.
    pub(crate) fn has_ended(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        let mut bytes = [0; 4096];
        // Much may have come before the end, and not without bound.
        for _ in 0..1 << 16 {
            let came = match self {
                Socket::Tcp(stream) => recv(stream, &mut bytes[..], RecvFlags::DONTWAIT),
                Socket::Unix(stream) => recv(stream, &mut bytes[..], RecvFlags::DONTWAIT),
            };
            match came {
                Ok((0, _)) => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return !is_silence(&errno.into()),
            }
        }
        false
    }

    pub(crate) fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn take_u16(&mut self) -> io::Result<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn take_u32(&mut self) -> io::Result<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn take_u64(&mut self) -> io::Result<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

impl Read for Socket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(out),
            Socket::Unix(stream) => stream.read(out),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write_vectored(parts),
            Socket::Unix(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
