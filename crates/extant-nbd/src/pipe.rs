//! One connection to a server: negotiated, with requests under way.

use std::io::{self, Read};
use std::time::Duration;

use extant_base::sabotage;
use extant_block::{AlignedBuffer, Operation};
use rustc_hash::FxHashMap;

use crate::address::Address;
use crate::error::NbdError;
use crate::ranges::Ranges;
use crate::socket::Socket;
use crate::stream::is_silence;
use crate::tls::{Connector, explain};
use crate::wire::*;

/// Requests begin and end with one, in bytes.
const SECTOR: u32 = 512;

/// Replies to one option, at most.
const OPTION_REPLIES_MAX: usize = 64;

/// Parts with errors in one reply, at most.
const ERRORS_MAX: usize = 64;

/// Bytes of requests that wait for others to be sent with.
const UNSENT_MAX: usize = 28 * 64;

/// Properties of an export as reported by the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Export {
    pub(crate) size: u64,
    pub(crate) flags: u16,
    /// Smallest request, in bytes.
    pub(crate) block_min: u32,
    /// Longest payload.
    pub(crate) payload_max: u32,
}

/// A request under way.
struct Waiting {
    operation: Operation,
    /// An error of a part of its reply.
    errno: i32,
    /// Bytes of a read that came in parts, counted from its first byte.
    came: Ranges,
    /// Errors of parts of its reply.
    errors: usize,
}

pub(crate) struct Pipe {
    socket: Socket,
    limit: Duration,
    /// Requests that are under way for their callers, and not sent yet: they go out together.
    unsent: Vec<u8>,
    waiting: FxHashMap<u64, Waiting>,
    reads: usize,
    next: u64,
    pub(crate) export: Export,
}

/// A reply: the cookie, the operation, and the errno, 0 for success.
pub(crate) struct Answer {
    pub(crate) cookie: u64,
    pub(crate) operation: Operation,
    pub(crate) errno: i32,
}

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Pipe {
    /// Connects and negotiates, over TLS if there is a connector.
    pub(crate) fn open(
        address: &Address,
        connector: Option<&Connector>,
        limit: Duration,
    ) -> Result<Pipe, NbdError> {
        let named = || address.to_string();
        let mut socket = Socket::connect(&address.at, limit)
            .map_err(|source| NbdError::Connect { address: named(), source })?;
        socket.finish_within(limit);
        negotiate(socket, &address.export, connector, limit).map_err(|error| match error {
            Trouble::Io(error) => NbdError::Protocol {
                address: named(),
                what: format!("no agreement with the server: {error}"),
            },
            Trouble::Tls(what) => NbdError::Tls { address: named(), what },
            Trouble::NeedsTls => {
                NbdError::NeedsTls { address: named(), scheme: address.scheme_over_tls() }
            }
            Trouble::Refused(what) => {
                NbdError::Refused { address: named(), export: address.export.clone(), what }
            }
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether a request can be sent without a deadlock of both sides (N4).
    pub(crate) fn may_send(&self, operation: &Operation) -> bool {
        self.reads == 0 || !matches!(operation, Operation::Write { .. })
    }

    /// Makes a request, and returns its cookie. It is sent with the next one that has a payload, with
    /// [`Pipe::send_all`], or before an answer is waited for. When that fails, the connection is of no use any more.
    pub(crate) fn send(&mut self, operation: Operation) -> Result<u64, (io::Error, Operation)> {
        let cookie = self.next;
        self.next += 1;
        let (command, fua) = match &operation {
            Operation::Read { .. } => (CMD_READ, false),
            Operation::Write { fua, .. } => (CMD_WRITE, *fua),
            Operation::Flush => (CMD_FLUSH, false),
            Operation::Discard { .. } => (CMD_TRIM, false),
            Operation::WriteZeroes { .. } => (CMD_WRITE_ZEROES, false),
        };
        let payload: &[u8] = match &operation {
            Operation::Write { buffer, .. } => buffer,
            _ => &[],
        };
        let head = request(command, fua, cookie, operation.offset(), operation.length() as u32);
        self.unsent.extend_from_slice(&head);
        if !payload.is_empty() || self.unsent.len() >= UNSENT_MAX {
            self.socket.go_on_within(self.limit);
            let sent = self.socket.send(&self.unsent, payload);
            self.unsent.clear();
            if let Err(error) = sent {
                return Err((error, operation));
            }
        }
        self.reads += usize::from(matches!(operation, Operation::Read { .. }));
        self.waiting
            .insert(cookie, Waiting { operation, errno: 0, came: Ranges::default(), errors: 0 });
        Ok(cookie)
    }

    /// Sends what was not sent yet. An error means that the connection is of no use any more.
    pub(crate) fn send_all(&mut self) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        self.socket.go_on_within(self.limit);
        let sent = self.socket.send(&self.unsent, &[]);
        self.unsent.clear();
        sent
    }

    /// Returns whether the next answer has come whole, so that [`Pipe::receive`] does not wait.
    pub(crate) fn has_answer(&self) -> bool {
        self.has_come().is_some()
    }

    /// `None` when the bytes that have come are no whole answer. Nonsense is one: it is an error when it is taken.
    fn has_come(&self) -> Option<()> {
        let mut rest = self.socket.came();
        loop {
            let magic = u32::from_be_bytes(*rest.first_chunk()?);
            if magic != STRUCTURED_REPLY_MAGIC {
                let cookie = u64::from_be_bytes(*rest.get(8..)?.first_chunk()?);
                let errno = rest.get(4..8)?;
                let len = match self.waiting.get(&cookie).map(|waiting| &waiting.operation) {
                    Some(Operation::Read { buffer, .. }) if errno == [0; 4] => buffer.len(),
                    _ => 0,
                };
                return rest.get(16..)?.get(..len).map(drop);
            }
            let flags = u16::from_be_bytes(*rest.get(4..)?.first_chunk()?);
            let len = u32::from_be_bytes(*rest.get(16..)?.first_chunk()?) as usize;
            rest = rest.get(20..)?.get(len..)?;
            if flags & CHUNK_DONE != 0 {
                return Some(());
            }
        }
    }

    /// The next answer that is complete, within the limit and the time that its length takes (N3). An error means that the
    /// connection is of no use any more.
    pub(crate) fn receive(&mut self) -> io::Result<Answer> {
        self.send_all()?;
        self.socket.go_on_within(self.limit);
        loop {
            let magic = self.socket.take_u32()?;
            let (cookie, errno) = match magic {
                SIMPLE_REPLY_MAGIC => {
                    let errno = self.socket.take_u32()?;
                    let cookie = self.socket.take_u64()?;
                    let waiting = find(&mut self.waiting, cookie)?;
                    if errno == 0
                        && let Operation::Read { buffer, .. } = &mut waiting.operation
                    {
                        self.socket.read_exact(buffer)?;
                    }
                    (cookie, errno as i32)
                }
                STRUCTURED_REPLY_MAGIC => match self.chunk()? {
                    Some(done) => done,
                    None => continue,
                },
                other => {
                    return Err(broken(format!("the server sent {other:#x} in place of a reply")));
                }
            };
            let Some(waiting) = self.waiting.remove(&cookie) else { continue };
            self.reads -= usize::from(matches!(waiting.operation, Operation::Read { .. }));
            return Ok(Answer { cookie, operation: waiting.operation, errno });
        }
    }

    /// One part of a structured reply: cookie and errno if it was the last one. Each part brings something that no other
    /// one brought, so that a reply ends.
    fn chunk(&mut self) -> io::Result<Option<(u64, i32)>> {
        let flags = self.socket.take_u16()?;
        let kind = self.socket.take_u16()?;
        let cookie = self.socket.take_u64()?;
        let len = self.socket.take_u32()? as usize;
        let waiting = find(&mut self.waiting, cookie)?;
        match (kind, &mut waiting.operation) {
            (CHUNK_NONE, _) if len == 0 && flags & CHUNK_DONE != 0 => {}
            (CHUNK_DATA | CHUNK_HOLE, Operation::Read { offset, buffer }) => {
                if len <= 8 || (kind == CHUNK_HOLE && len != 12) {
                    return Err(broken(format!("a part of a reply of {len} bytes")));
                }
                let at = self.socket.take_u64()?.wrapping_sub(*offset);
                let count = match kind {
                    CHUNK_DATA => len as u64 - 8,
                    _ => u64::from(self.socket.take_u32()?),
                };
                let end = at.checked_add(count).filter(|end| *end <= buffer.len() as u64);
                let Some(end) = end else {
                    return Err(broken("a part of a reply outside of what was asked for"));
                };
                if count == 0 || waiting.came.add(at, count) != [(at, count)] {
                    return Err(broken("a part of a reply that has come already"));
                }
                let part = &mut buffer[at as usize..end as usize];
                match kind {
                    CHUNK_DATA => self.socket.read_exact(part)?,
                    _ => part.fill(0),
                }
            }
            (kind, _)
                if kind & CHUNK_ERROR != 0
                    && (6..=STRING_MAX + 16).contains(&len)
                    && waiting.errors < ERRORS_MAX =>
            {
                waiting.errors += 1;
                let errno = self.socket.take_u32()? as i32;
                let mut rest = vec![0; len - 4];
                self.socket.read_exact(&mut rest)?;
                waiting.errno = if errno == 0 { EIO } else { errno };
            }
            _ => return Err(broken(format!("a part of a reply of kind {kind} and {len} bytes"))),
        }
        if flags & CHUNK_DONE == 0 {
            return Ok(None);
        }
        if let Operation::Read { buffer, .. } = &waiting.operation
            && waiting.errno == 0
            && waiting.came.bytes() != buffer.len() as u64
        {
            // It stays among what is under way: it is sent again over another connection.
            let came = waiting.came.bytes();
            return Err(broken(format!("the server gave {came} of {} bytes", buffer.len())));
        }
        Ok(Some((cookie, waiting.errno)))
    }

    /// Returns the operations under way, in the order in which they were sent, after the connection was lost.
    pub(crate) fn take_waiting(&mut self) -> Vec<(u64, Operation)> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let mut all: Vec<_> =
            waiting.map(|(cookie, waiting)| (cookie, waiting.operation)).collect();
        all.sort_by_key(|(cookie, _)| *cookie);
        all
    }

    /// Sends nothing more and waits until the server has ended the connection, which it does when it has
    /// nothing more to do there. False if it has not within the limit for an answer.
    pub(crate) fn wait_for_end(&mut self) -> bool {
        self.socket.finish_within(self.limit);
        if self.socket.end_sending().is_err() {
            // There is no connection any more.
            return true;
        }
        loop {
            // Answers come too late.
            match self.socket.read_past_tls(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return !is_silence(&error),
            }
        }
    }

    /// Returns whether the server has ended the connection by now; never waits.
    pub(crate) fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    /// Ends the connection.
    pub(crate) fn close(mut self) {
        // Nobody waits for it.
        self.socket.go_on_within(self.limit);
        let _ = self.socket.send(&request(CMD_DISC, false, 0, 0, 0), &[]);
        self.socket.part();
    }
}

fn find(waiting: &mut FxHashMap<u64, Waiting>, cookie: u64) -> io::Result<&mut Waiting> {
    waiting.get_mut(&cookie).ok_or_else(|| broken("a reply to a request that was not made"))
}

fn request(command: u16, fua: bool, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut head = [0; 28];
    head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&(if fua { CMD_FLAG_FUA } else { 0 }).to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&len.to_be_bytes());
    head
}

enum Trouble {
    Io(io::Error),
    /// There is no TLS, and why.
    Tls(String),
    /// The server wants TLS.
    NeedsTls,
    Refused(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Io(error)
    }
}

fn option(socket: &mut Socket, option: u32, data: &[u8]) -> io::Result<()> {
    let mut head = Vec::with_capacity(16);
    head.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    head.extend_from_slice(&option.to_be_bytes());
    head.extend_from_slice(&(data.len() as u32).to_be_bytes());
    socket.send(&head, data)
}

/// Asks for an export, and for what the server says of it.
fn go(socket: &mut Socket, name: &str, questions: &[u16]) -> io::Result<()> {
    let mut data = Vec::new();
    data.extend_from_slice(&(name.len() as u32).to_be_bytes());
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(questions.len() as u16).to_be_bytes());
    for question in questions {
        data.extend_from_slice(&question.to_be_bytes());
    }
    option(socket, OPT_GO, &data)
}

/// Kind and data of one reply to an option.
fn option_reply(socket: &mut Socket, wanted: u32) -> io::Result<(u32, Vec<u8>)> {
    let magic = socket.take_u64()?;
    let (option, kind, len) = (socket.take_u32()?, socket.take_u32()?, socket.take_u32()?);
    if magic != OPTION_REPLY_MAGIC || option != wanted || len as usize > STRING_MAX + 64 {
        return Err(broken(format!(
            "an answer of {len} bytes to option {option}, not to {wanted}"
        )));
    }
    let mut data = vec![0; len as usize];
    socket.read_exact(&mut data)?;
    Ok((kind, data))
}

/// Starts TLS, before anything else is said.
fn secure(socket: &mut Socket, connector: &Connector, limit: Duration) -> Result<(), Trouble> {
    option(socket, OPT_STARTTLS, &[])?;
    let (kind, data) = option_reply(socket, OPT_STARTTLS)?;
    if kind != REP_ACK && !sabotage("nbd.client.plain-after-all") {
        let what = match kind {
            REP_ERR_UNSUP => "it has none".to_owned(),
            REP_ERR_POLICY => "it is set to give none".to_owned(),
            _ => format!("it answers {kind:#x} to the wish for it"),
        };
        return Err(Trouble::Tls(format!("{what}{}", quoted(&data))));
    }
    if kind == REP_ACK {
        socket.secure(|stream| connector.start(stream)).map_err(|error| {
            Trouble::Tls(match explain(&error) {
                Some(what) => what,
                None if is_silence(&error) => {
                    format!("it did not finish the handshake within {limit:?}")
                }
                None => format!("it broke off the handshake: {error}"),
            })
        })?;
    }
    Ok(())
}

/// What a server says beside its answer.
fn quoted(data: &[u8]) -> String {
    match data.is_empty() {
        true => String::new(),
        false => format!(" ({})", String::from_utf8_lossy(data)),
    }
}

/// The first answer over TLS. A server that does not like what it was shown says so in its place, or just goes.
fn first_answer(
    socket: &mut Socket,
    connector: &Connector,
    asked: io::Result<()>,
) -> Result<(), Trouble> {
    let answer = match asked {
        Ok(()) => option_reply(socket, OPT_STRUCTURED_REPLY).map(drop),
        Err(error) if is_silence(&error) => Err(error),
        Err(error) => socket.take::<1>().and(Err(error)),
    };
    answer.map_err(|error| match explain(&error) {
        Some(what) => Trouble::Tls(what),
        None if is_silence(&error) => Trouble::Io(error),
        None => Trouble::Tls(match connector.has_certificate {
            true => format!("it went away when it had seen the certificate of this side ({error})"),
            false => format!(
                "it went away after the handshake ({error}): it may want to see a certificate of this side"
            ),
        }),
    })
}

fn negotiate(
    mut socket: Socket,
    name: &str,
    connector: Option<&Connector>,
    limit: Duration,
) -> Result<Pipe, Trouble> {
    let (init, style) = (socket.take_u64()?, socket.take_u64()?);
    if init != INIT_MAGIC || style != OPTION_MAGIC {
        return Err(broken("this is no NBD server, or one of the old style").into());
    }
    let flags = socket.take_u16()?;
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(broken("the server does not negotiate in the fixed new style").into());
    }
    socket.send(&u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes(), &[])?;
    if let Some(connector) = connector {
        secure(&mut socket, connector, limit)?;
    }
    let asked = option(&mut socket, OPT_STRUCTURED_REPLY, &[]);
    // What it says does not matter: replies of both kinds are understood.
    match connector {
        Some(connector) => first_answer(&mut socket, connector, asked)?,
        None => {
            asked?;
            option_reply(&mut socket, OPT_STRUCTURED_REPLY)?;
        }
    }
    // Without a question about sizes, servers take requests of any.
    go(&mut socket, name, &[])?;
    let mut has_asked = false;
    let mut export = None;
    let (mut block_min, mut payload_max) = (1, PAYLOAD_MAX as u32);
    for _ in 0..OPTION_REPLIES_MAX {
        let (kind, data) = option_reply(&mut socket, OPT_GO)?;
        let u16_at = |at: usize| {
            data.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes)
        };
        let u32_at = |at: usize| {
            data.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
        };
        match kind {
            REP_ACK => {
                let (size, flags) =
                    export.ok_or_else(|| broken("the server did not describe the export"))?;
                // Parts of what is longer begin and end with sectors.
                let whole = payload_max.min(PAYLOAD_MAX as u32) / SECTOR * SECTOR;
                if whole == 0 {
                    let what = format!("the server takes no more than {payload_max} bytes at once");
                    return Err(broken(what).into());
                }
                let payload_max = whole;
                let export = Export { size, flags, block_min, payload_max };
                socket.take_time()?;
                socket.read_ahead();
                return Ok(Pipe {
                    socket,
                    limit,
                    unsent: Vec::new(),
                    waiting: FxHashMap::default(),
                    reads: 0,
                    next: 1,
                    export,
                });
            }
            REP_INFO if u16_at(0) == INFO_EXPORT && data.len() == 12 => {
                let size = u64::from(u32_at(2)) << 32 | u64::from(u32_at(6));
                export = Some((size, u16_at(10)));
            }
            REP_INFO if u16_at(0) == INFO_BLOCK_SIZE && data.len() == 14 => {
                block_min = u32_at(2).max(1);
                payload_max = u32_at(10);
            }
            REP_ERR_BLOCK_SIZE_REQD if !has_asked => {
                has_asked = true;
                go(&mut socket, name, &[INFO_BLOCK_SIZE])?;
            }
            REP_INFO => {}
            REP_ERR_TLS_REQD => return Err(Trouble::NeedsTls),
            kind if kind & REP_ERR != 0 => {
                let what = match kind {
                    REP_ERR_UNKNOWN => "there is none of that name",
                    REP_ERR_UNSUP => "the server is too old",
                    _ => "it said no",
                };
                return Err(Trouble::Refused(format!("{what}{}", quoted(&data))));
            }
            _ => {}
        }
    }
    Err(broken("the server does not stop describing the export").into())
}

/// A buffer for a part of a read.
pub(crate) fn read_of(offset: u64, len: usize) -> Operation {
    Operation::Read { offset, buffer: AlignedBuffer::zeroed(len) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::stream::Kind;

    fn pair() -> (Pipe, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut socket = Socket::new(Kind::Unix(ours));
        socket.read_ahead();
        let export = Export { size: 1 << 20, flags: 0, block_min: 1, payload_max: 1 << 20 };
        let (limit, waiting) = (Duration::from_secs(1), FxHashMap::default());
        (Pipe { socket, limit, unsent: Vec::new(), waiting, reads: 0, next: 1, export }, theirs)
    }

    fn simple(cookie: u64, byte: u8) -> Vec<u8> {
        let head = [SIMPLE_REPLY_MAGIC, 0].map(u32::to_be_bytes).concat();
        [&head[..], &cookie.to_be_bytes(), &[byte; 512]].concat()
    }

    fn structured(cookie: u64, byte: u8) -> Vec<u8> {
        let mut reply = Vec::new();
        for (flags, offset) in [(0u16, 0u64), (CHUNK_DONE, 256)] {
            reply.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
            reply.extend([flags, CHUNK_DATA].map(u16::to_be_bytes).concat());
            reply.extend(cookie.to_be_bytes());
            reply.extend(264u32.to_be_bytes());
            reply.extend(offset.to_be_bytes());
            reply.extend([byte; 256]);
        }
        reply
    }

    #[test]
    fn requests_go_out_and_answers_come_in_together_and_half_an_answer_is_none() {
        for answer in [simple, structured] {
            let (mut pipe, mut server) = pair();
            for cookie in 1..=3 {
                assert_eq!(pipe.send(read_of(0, 512)).ok(), Some(cookie));
            }
            pipe.send_all().unwrap();
            let mut asked = [0; 4096];
            assert_eq!(server.read(&mut asked).unwrap(), 3 * 28, "in one piece");
            assert!(!pipe.has_answer(), "nothing has come");
            let all = [answer(3, 3), answer(1, 1), answer(2, 2)].concat();
            let (first, rest) = all.split_at(all.len() - 1);
            server.write_all(first).unwrap();
            for cookie in [3, 1] {
                let is_first = cookie == 3;
                assert_eq!(pipe.has_answer(), !is_first, "nothing is read to find out");
                let came = pipe.receive().unwrap();
                let Operation::Read { buffer, .. } = came.operation else { panic!("a read") };
                assert_eq!((came.cookie, came.errno), (cookie, 0));
                assert!(buffer.iter().all(|byte| u64::from(*byte) == cookie));
            }
            assert!(!pipe.has_answer(), "a byte is missing");
            server.write_all(rest).unwrap();
            assert_eq!(pipe.receive().unwrap().cookie, 2);
            assert!(!pipe.has_answer() && pipe.len() == 0);
        }
    }

    #[test]
    fn a_payload_follows_what_was_asked_before_it() {
        let (mut pipe, mut server) = pair();
        pipe.send(Operation::Flush).ok().unwrap();
        let buffer = AlignedBuffer::copy_of(&[7; 512]);
        pipe.send(Operation::Write { offset: 0, buffer, fua: false }).ok().unwrap();
        let mut came = [0; 28 * 2 + 512];
        server.read_exact(&mut came).unwrap();
        let command = |at: usize| u16::from_be_bytes([came[at + 6], came[at + 7]]);
        assert_eq!((command(0), command(28)), (CMD_FLUSH, CMD_WRITE));
        assert!(came[56..].iter().all(|byte| *byte == 7));
    }
}
