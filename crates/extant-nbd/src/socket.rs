//! One side of a connection: what is read and written over it, as it is or by TLS.

use std::io::{self, Read};
use std::time::Duration;

use crate::address::At;
use crate::ahead::Ahead;
use crate::stream::{Kind, Stream};
use crate::tls::Session;

/// One side of a connection.
///
/// Nothing is read ahead before [`Socket::read_ahead`]: what came in plain text before TLS began, and was not asked for,
/// is taken for TLS, which it is not.
pub(crate) struct Socket {
    stream: Stream,
    session: Option<Session>,
    ahead: Option<Ahead>,
}

impl Socket {
    pub(crate) fn new(kind: Kind) -> Socket {
        Socket { stream: Stream::new(kind), session: None, ahead: None }
    }

    pub(crate) fn connect(at: &At, limit: Duration) -> io::Result<Socket> {
        Ok(Socket { stream: Stream::connect(at, limit)?, session: None, ahead: None })
    }

    /// How long one read or write may take.
    pub(crate) fn limit(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.limit(limit)
    }

    /// Everything until [`Socket::take_time`] is over within `limit`, however little comes at a time.
    pub(crate) fn finish_within(&mut self, limit: Duration) {
        self.stream.finish_within(limit, false);
    }

    /// As [`Socket::finish_within`], with more time for what is long as long as it goes on.
    pub(crate) fn go_on_within(&mut self, limit: Duration) {
        self.stream.finish_within(limit, true);
    }

    /// Each read and each write has its own time again.
    pub(crate) fn take_time(&mut self) -> io::Result<()> {
        self.stream.take_time()
    }

    /// From here on, what comes with what was asked for is kept. TLS may not begin after that, and [`Socket::peek`] sees only
    /// what was not kept.
    pub(crate) fn read_ahead(&mut self) {
        self.ahead = Some(Ahead::new());
    }

    /// What was read ahead.
    pub(crate) fn came(&self) -> &[u8] {
        self.ahead.as_ref().map_or(&[], Ahead::rest)
    }

    pub(crate) fn is_secret(&self) -> bool {
        self.session.is_some()
    }

    /// From here on, everything goes over TLS.
    pub(crate) fn secure(
        &mut self,
        start: impl FnOnce(&mut Stream) -> io::Result<Session>,
    ) -> io::Result<()> {
        self.session = Some(start(&mut self.stream)?);
        Ok(())
    }

    /// Writes a head and a payload.
    pub(crate) fn send(&mut self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        match &mut self.session {
            None => self.stream.send(head, payload),
            Some(session) => session.send(&mut self.stream, head, payload),
        }
    }

    /// Returns 0 when the other side is gone, otherwise waits until something can be read; takes nothing.
    pub(crate) fn peek(&mut self) -> io::Result<usize> {
        match &mut self.session {
            None => self.stream.peek(),
            Some(session) => session.peek(&mut self.stream),
        }
    }

    /// Takes bytes as they come over the network: 0 says that there is an end, whatever TLS would make of the rest.
    pub(crate) fn read_past_tls(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.stream.read(out)
    }

    /// Tells the other side that nothing more comes.
    pub(crate) fn end_sending(&mut self) -> io::Result<()> {
        self.part();
        self.stream.end_sending()
    }

    /// Ends TLS, for the other side to know that nothing was cut off.
    pub(crate) fn part(&mut self) {
        if let Some(session) = &mut self.session {
            session.end(&mut self.stream);
        }
    }

    /// Returns whether the other side has ended the connection. Takes what came from it; never waits.
    pub(crate) fn has_ended(&self) -> bool {
        self.stream.has_ended()
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
        let Socket { stream, session, ahead } = self;
        let mut bytes = Bytes { stream, session: session.as_mut() };
        match ahead {
            None => bytes.read(out),
            Some(ahead) => ahead.read(&mut bytes, out),
        }
    }
}

/// Bytes as the other side meant them.
struct Bytes<'a> {
    stream: &'a mut Stream,
    session: Option<&'a mut Session>,
}

impl Read for Bytes<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.stream.read(out),
            Some(session) => session.read(self.stream, out),
        }
    }
}
