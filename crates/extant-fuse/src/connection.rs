//! The descriptor that requests come from and replies go to.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as Os;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, InvalInodeOut, OutHeader, RetrieveOut, SetxattrIn};
use crate::operations::{Errno, NodeId};
use crate::pipe::Pipe;

/// An open `/dev/fuse` that belongs to a mount.
pub(crate) struct Connection {
    device: OwnedFd,
    /// The number of this server's next request to the kernel.
    next_question: AtomicU64,
    /// Changes answers, for tests.
    #[cfg(test)]
    pub(crate) mangle: std::sync::OnceLock<Mangle>,
}

/// Changes an answer, header and body, before it goes to the kernel.
#[cfg(test)]
pub(crate) type Mangle = Box<dyn Fn(&mut Vec<u8>) + Send + Sync>;

/// Codes of notifications, which are not answers.
const NOTIFY_INVAL_INODE: i32 = 2;
const NOTIFY_RETRIEVE: i32 = 5;
/// Numbers of questions that we have the kernel ask, from here on: far from those that it gives, and even as
/// those are.
const OWN_QUESTIONS: u64 = 1 << 62;

impl Connection {
    pub(crate) fn new(device: OwnedFd) -> Connection {
        Connection {
            device,
            next_question: AtomicU64::new(OWN_QUESTIONS),
            #[cfg(test)]
            mangle: std::sync::OnceLock::new(),
        }
    }

    /// Another descriptor of the same connection.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// Returns whether a request waits. Never blocks.
    pub(crate) fn has_request(&self) -> bool {
        let mut wanted = [PollFd::new(&self.device, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Gone, or anything else: the next read says what it is.
        poll(&mut wanted, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for a request; its length, or `None` when the mount is gone.
    ///
    /// # Errors
    ///
    /// What the system says beyond that; the connection is of no use then.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                // Of a transport that is closed; the kernel's says it otherwise.
                Ok(0) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                // ENOENT: the request was taken back before it could be handed out.
                Err(Os::INTR | Os::AGAIN | Os::NOENT) => {}
                Err(Os::NODEV | Os::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers a request with `parts`, one after the other.
    ///
    /// # Errors
    ///
    /// The kernel refused the answer; its caller gets `EIO`. An answer for which no caller waits
    /// any more is no error.
    pub(crate) fn reply(&self, unique: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let header = OutHeader { unique, ..OutHeader::default() };
        self.send(header, parts).inspect_err(|_| {
            // Of an answer that is too long or too short for the question the kernel makes an error by itself,
            // and then knows no such question. To any other it still waits for one.
            let _ = self.fail(unique, Errno::EIO);
        })
    }

    /// Answers a request with parts of a file, which the system moves. `false` when nothing was sent.
    pub(crate) fn reply_with_parts_of(
        &self,
        unique: u64,
        file: BorrowedFd<'_>,
        parts: &[(u64, u64)],
    ) -> bool {
        let body: u64 = parts.iter().map(|(_, len)| len).sum();
        let len = size_of::<OutHeader>() as u64 + body;
        let Ok(whole) = u32::try_from(len) else { return false };
        #[cfg(test)]
        if self.mangle.get().is_some() {
            return false;
        }
        let header = OutHeader { unique, len: whole, ..OutHeader::default() };
        let sent = Pipe::with(|pipe| {
            if !pipe.has_room_for(parts) {
                return Ok(false);
            }
            pipe.put(header.as_bytes())?;
            parts.iter().try_for_each(|part| pipe.put_part_of(file, *part))?;
            match pipe.send_to(&self.device, len as usize) {
                // As in `send`: no caller waits any more.
                Ok(()) | Err(Os::NOENT | Os::NODEV) => Ok(true),
                Err(error) => Err(error),
            }
        });
        matches!(sent, Some(Ok(true)))
    }

    /// Answers a request with an error.
    pub(crate) fn fail(&self, unique: u64, error: Errno) -> io::Result<()> {
        self.send(OutHeader { unique, error: code(error), ..OutHeader::default() }, &[])
    }

    /// Tells the kernel to write back and drop what it has cached of a node's contents from `offset` on.
    /// Other threads must be free to take the writes.
    pub(crate) fn drop_cached(&self, node: NodeId, offset: i64) -> io::Result<()> {
        let message = InvalInodeOut { ino: node.0, off: offset, len: 0 };
        let header = OutHeader { error: NOTIFY_INVAL_INODE, ..OutHeader::default() };
        self.send(header, &[IoSlice::new(message.as_bytes())])
    }

    /// Makes the kernel ask for the attributes of a node before it uses them again. Never waits.
    pub(crate) fn drop_attributes(&self, node: NodeId) -> io::Result<()> {
        self.drop_cached(node, -1)
    }

    /// Makes the kernel send a request of kind `NOTIFY_REPLY`, with no contents, for the regular
    /// file `file`, to the queue of the processor on which this is called.
    pub(crate) fn ask_to_be_asked(&self, file: NodeId) -> io::Result<()> {
        // An answer is found by its number: two with the same one would be taken for each other.
        let notify_unique = self.next_question.fetch_add(2, Ordering::Relaxed);
        let message = RetrieveOut { notify_unique, nodeid: file.0, ..RetrieveOut::default() };
        let header = OutHeader { error: NOTIFY_RETRIEVE, ..OutHeader::default() };
        self.send(header, &[IoSlice::new(message.as_bytes())])
    }

    fn send(&self, mut header: OutHeader, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let len = size_of::<OutHeader>().saturating_add(body);
        header.len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        #[cfg(test)]
        if let Some(mangled) = self.mangled(header, parts) {
            return match rustix::io::write(&self.device, &mangled) {
                Ok(_) | Err(Os::NOENT | Os::NODEV) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let sent = match parts {
            [] => rustix::io::write(&self.device, header.as_bytes()),
            [one] => {
                let all = [IoSlice::new(header.as_bytes()), IoSlice::new(one)];
                rustix::io::writev(&self.device, &all)
            }
            _ => {
                let mut all = Vec::with_capacity(parts.len() + 1);
                all.push(IoSlice::new(header.as_bytes()));
                all.extend(parts.iter().map(|part| IoSlice::new(part)));
                rustix::io::writev(&self.device, &all)
            }
        };
        match sent {
            // ENOENT: interrupted, or forgotten with its connection. ENODEV: unmounted.
            Ok(_) | Err(Os::NOENT | Os::NODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// An answer as a test wants it; messages and errors go as they are.
    #[cfg(test)]
    fn mangled(&self, header: OutHeader, parts: &[IoSlice<'_>]) -> Option<Vec<u8>> {
        let mangle = self.mangle.get().filter(|_| header.unique != 0 && header.error == 0)?;
        let mut all = header.as_bytes().to_vec();
        parts.iter().for_each(|part| all.extend_from_slice(part));
        mangle(&mut all);
        Some(all)
    }
}

/// An error as an answer says it.
pub(crate) fn code(error: Errno) -> i32 {
    // The kernel refuses what is no error number, and the caller would wait for ever.
    let number = if (1..512).contains(&error.0) { error.0 } else { Errno::EIO.0 };
    -number
}

/// A request as it came.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    /// The first fixed part, where that lies apart.
    fixed: Option<&'a [u8]>,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// `None` when there is less than the header says: not from a kernel.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        let whole = header.len as usize;
        let extensions = usize::from(header.total_extlen) * 8;
        let end = whole.checked_sub(size_of::<InHeader>())?.checked_sub(extensions)?;
        Some(Request { header, fixed: None, body: body.get(..end)? })
    }

    /// Parses a request in two parts: `fixed`, its first fixed part, and `body`, the rest, of
    /// `body_len` bytes. `None` when their lengths differ from the header's.
    pub(crate) fn of_parts(
        header: InHeader,
        fixed: &'a [u8],
        body: &'a [u8],
        body_len: usize,
    ) -> Option<Request<'a>> {
        let all = (header.len as usize).checked_sub(size_of::<InHeader>())?;
        let fixed = fixed.get(..all.checked_sub(body_len)?)?;
        let extensions = usize::from(header.total_extlen) * 8;
        let end = body_len.checked_sub(extensions)?.min(body.len());
        // Kinds without a fixed part have the rest only.
        Some(Request {
            header,
            fixed: Some(fixed).filter(|fixed| !fixed.is_empty()),
            body: &body[..end],
        })
    }

    /// Returns whether this sets an attribute with that name.
    pub(crate) fn is_for_attribute(&self, name: &[u8]) -> bool {
        let before = if self.fixed.is_some() { 0 } else { size_of::<SetxattrIn>() };
        let text = self.body.get(before..).unwrap_or(&[]);
        text.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The next fixed part of the body.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        if let Some(fixed) = self.fixed.take() {
            let (value, _) = T::read_from_prefix(fixed).map_err(|_| Errno::EINVAL)?;
            return Ok(value);
        }
        let (value, rest) = T::read_from_prefix(self.body).map_err(|_| Errno::EINVAL)?;
        self.body = rest;
        Ok(value)
    }

    /// The next text, which ends with a zero byte.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.body.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
        let (name, rest) = self.body.split_at(end);
        self.body = &rest[1..];
        Ok(name)
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.body.split_at_checked(len as usize).ok_or(Errno::EINVAL)?;
        self.body = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &[u8], claimed: u32, extlen: u16) -> Vec<u8> {
        let header = InHeader { len: claimed, total_extlen: extlen, ..InHeader::default() };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn what_is_shorter_than_it_says_is_no_request() {
        assert!(Request::parse(&[0; 39]).is_none());
        assert!(Request::parse(&request(b"abc", 44, 0)).is_none());
        assert!(Request::parse(&request(b"abc", 39, 0)).is_none());
        assert!(Request::parse(&request(b"abc", 43, 1)).is_none(), "more extensions than body");
        assert!(Request::parse(&request(b"abc", 43, 0)).is_some());
    }

    #[test]
    fn parts_are_taken_in_order_and_never_beyond_the_end() {
        let bytes = request(b"\x01\0\0\0name\0tail", 53, 0);
        let mut request = Request::parse(&bytes).unwrap();
        assert_eq!(request.take::<u32>().unwrap(), 1);
        assert_eq!(request.name().unwrap(), b"name");
        assert_eq!(request.name(), Err(Errno::EINVAL), "no zero byte");
        assert_eq!(request.bytes(5), Err(Errno::EINVAL));
        assert_eq!(request.bytes(4).unwrap(), b"tail");
        assert_eq!(request.take::<u32>(), Err(Errno::EINVAL));
    }

    #[test]
    fn a_fixed_part_that_lies_apart_is_taken_first_and_whole() {
        let header = |len: u32| InHeader { len, ..InHeader::default() };
        let (fixed, body) = ([1u8; 128], b"name\0\0\0\0\0");
        // Newer kernels may say more in it than we know.
        let mut request = Request::of_parts(header(40 + 16 + 9), &fixed, body, 9).unwrap();
        assert_eq!(request.take::<u64>().unwrap(), 0x0101_0101_0101_0101);
        assert_eq!(request.name().unwrap(), b"name");
        assert!(Request::of_parts(header(40 + 129 + 9), &fixed, body, 9).is_none());
        assert!(Request::of_parts(header(40 + 8), &fixed, body, 9).is_none());
        assert!(Request::of_parts(header(39), &fixed, &[], 0).is_none());
        let mut none = Request::of_parts(header(40 + 9), &fixed, body, 9).unwrap();
        assert_eq!(none.name().unwrap(), b"name");
        let longer = InHeader { len: 40 + 9, total_extlen: 1, ..InHeader::default() };
        let mut short = Request::of_parts(longer, &fixed, body, 9).unwrap();
        assert_eq!(short.bytes(2), Err(Errno::EINVAL), "extensions are no body");
    }
}
