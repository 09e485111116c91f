//! What the processes of a mount say to each other: JSON in packets over a socket, now and then with
//! a descriptor.
//!
//! # Invariants
//!
//! - K1. A child gets its end as standard input, so that nothing but its own program inherits it.
//! - K2. The end of one side ends the other: a packet of nothing is the end.
//! - K3. Saying something never waits for the other side to listen.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use extant_fuse::Argument;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};

/// Longest packet; what is longer is cut where it is made.
const PACKET_BYTES_MAX: usize = 1 << 16;

/// Longest text inside one.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

/// What is said.
#[derive(Debug)]
pub(crate) enum Word {
    /// Keeper: open the image.
    Open {
        /// The kernel holds the device for the mount, so nobody else can take it, nor open it exclusively.
        is_claimed: bool,
    },
    /// Server: the file system is open. Keeper: mount it.
    Opened {
        /// It cannot be changed.
        read_only: bool,
    },
    /// Keeper: serve the descriptor that comes along.
    Serve(OwnedFd),
    /// Server, and keeper to launcher: programs can use the mount.
    Ready,
    /// It went wrong.
    Failed(Failure),
    /// For the log.
    Log {
        /// Importance as syslog counts: 3 error, 4 warning, 6 information.
        level: u8,
        text: String,
    },
    /// Server: somebody asked me to end.
    Terminate,
    /// Keeper: write everything, leave the image clean and end, whoever still has it mounted.
    End,
    /// Server: say your last word to this socket as well.
    Hearer {
        /// Its name.
        path: String,
    },
    /// Server: have the kernel send what it holds back.
    HandOver,
    /// Keeper: it has.
    HandedOver {
        /// And all of it was answered.
        completely: bool,
    },
    /// Server: which bytes has the argument of the control operation in which this thread of a
    /// program waits?
    AskArgument {
        /// The thread, and the operation.
        argument: Argument,
        /// The bytes of the argument.
        bytes: Range<u32>,
    },
    /// Server: this is the answer to such an operation.
    GiveArgument {
        /// The thread, and the operation.
        argument: Argument,
        /// What its argument is to begin with.
        bytes: Vec<u8>,
    },
    /// Server: whose is this thread of a program, which waits for an answer?
    AskUser {
        /// The thread.
        thread: u32,
    },
    /// Keeper: this user's; `None` when that cannot be seen.
    AskedUser(Option<u32>),
    /// Keeper: the bytes of the argument of this thread; `None` when they cannot be seen.
    AskedArgument {
        /// The thread.
        thread: u32,
        /// The bytes.
        bytes: Option<Vec<u8>>,
    },
    /// Keeper: the argument of this thread was written, or cannot be.
    GaveArgument {
        /// The thread.
        thread: u32,
        /// It was.
        done: bool,
    },
    /// Server: open this file for writing: the image is 0, a journal elsewhere 1.
    AskFile {
        /// Which.
        index: u32,
    },
    /// Keeper: here it is; [`Word::Failed`] when it cannot.
    File(OwnedFd),
}

impl Link {
    /// Two ends.
    pub(crate) fn pair() -> io::Result<(Link, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Link(ours), theirs))
    }

    /// The end that this process was started with, taken from standard input.
    pub(crate) fn inherited() -> io::Result<Link> {
        let link = Link(io::stdin().as_fd().try_clone_to_owned()?);
        let nothing = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        // Whoever set the variable by hand has no socket there.
        rustix::net::getpeername(&link.0)?;
        Ok(link)
    }

    /// Returns another handle of this end of the link.
    pub(crate) fn try_clone(&self) -> io::Result<Link> {
        self.0.try_clone().map(Link)
    }

    /// Says `word`.
    pub(crate) fn say(&self, word: &Word) -> io::Result<()> {
        let descriptor = match word {
            Word::Serve(descriptor) | Word::File(descriptor) => Some(descriptor.as_fd()),
            _ => None,
        };
        self.send(&packet(word), descriptor)
    }

    fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let parts = [IoSlice::new(bytes)];
        rustix::io::retry_on_intr(|| sendmsg(&self.0, &parts, &mut control, flags))?;
        Ok(())
    }

    /// Waits for the other side to hang up, no longer than `within`.
    pub(crate) fn is_over(&self, within: Duration) -> bool {
        let within = Timespec::try_from(within).ok();
        let mut wanted = [PollFd::new(&self.0, PollFlags::IN)];
        let came = rustix::io::retry_on_intr(|| poll(&mut wanted, within.as_ref()));
        came.is_err() || wanted.iter().any(|fd| fd.revents().intersects(PollFlags::HUP))
    }

    /// Waits for the next word; `None` at the end.
    pub(crate) fn hear(&self) -> io::Result<Option<Word>> {
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::io::retry_on_intr(|| recvmsg(&self.0, &mut parts, &mut control, flags));
        let (count, is_cut) = match received {
            Ok(received) => (received.bytes, received.flags.contains(ReturnFlags::CTRUNC)),
            Err(Errno::CONNRESET) => (0, false),
            Err(errno) => return Err(errno.into()),
        };
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        if descriptor.is_none() && is_cut {
            // There was one, which this process may not have besides those that it has.
            return Err(Errno::MFILE.into());
        }
        let Some(packet) = bytes.get(..count).filter(|packet| !packet.is_empty()) else {
            return Ok(None);
        };
        let strange = || io::Error::new(io::ErrorKind::InvalidData, "a strange message");
        let value: Value = serde_json::from_slice(packet).map_err(|_| strange())?;
        decode(&value, descriptor).ok_or_else(strange).map(Some)
    }
}

/// A word that comes with no descriptor, for another way of saying it.
pub(crate) fn packet(word: &Word) -> Vec<u8> {
    encode(word).to_string().into_bytes()
}

/// Reads a word out of a packet; `None` if it is none.
pub(crate) fn of_packet(packet: &[u8]) -> Option<Word> {
    decode(&serde_json::from_slice(packet).ok()?, None)
}

impl From<OwnedFd> for Link {
    fn from(end: OwnedFd) -> Link {
        Link(end)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn encode(word: &Word) -> Value {
    match word {
        Word::Open { is_claimed } => json!({"word": "open", "is_claimed": is_claimed}),
        Word::HandOver => json!({"word": "hand over"}),
        Word::HandedOver { completely } => {
            json!({"word": "handed over", "completely": completely})
        }
        Word::Opened { read_only } => json!({"word": "opened", "read_only": read_only}),
        Word::Serve(_) => json!({"word": "serve"}),
        Word::Ready => json!({"word": "ready"}),
        Word::Failed(failure) => json!({
            "word": "failed",
            "exit": failure.exit.code(),
            "message": cut(&failure.message),
            "hint": failure.hint.as_deref().map(cut),
        }),
        Word::Log { level, text } => json!({"word": "log", "level": level, "text": cut(text)}),
        Word::Terminate => json!({"word": "terminate"}),
        Word::End => json!({"word": "end"}),
        Word::Hearer { path } => json!({"word": "hearer", "path": path}),
        Word::AskArgument { argument, bytes } => json!({
            "word": "ask argument",
            "thread": argument.thread,
            "command": argument.command,
            "start": bytes.start,
            "end": bytes.end,
        }),
        Word::GiveArgument { argument, bytes } => json!({
            "word": "give argument",
            "thread": argument.thread,
            "command": argument.command,
            "bytes": bytes,
        }),
        Word::AskedArgument { thread, bytes } => {
            json!({"word": "asked argument", "thread": thread, "bytes": bytes})
        }
        Word::GaveArgument { thread, done } => {
            json!({"word": "gave argument", "thread": thread, "done": done})
        }
        Word::AskUser { thread } => json!({"word": "ask user", "thread": thread}),
        Word::AskedUser(user) => json!({"word": "asked user", "user": user}),
        Word::AskFile { index } => json!({"word": "ask file", "index": index}),
        Word::File(_) => json!({"word": "file"}),
    }
}

fn decode(value: &Value, descriptor: Option<OwnedFd>) -> Option<Word> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    // There, and perhaps a number.
    let number = |key: &str| {
        let value = value.get(key)?;
        Some(value.as_u64().and_then(|number| u32::try_from(number).ok()))
    };
    Some(match text("word")?.as_str() {
        "open" => Word::Open { is_claimed: value.get("is_claimed")?.as_bool()? },
        "hand over" => Word::HandOver,
        "handed over" => Word::HandedOver { completely: value.get("completely")?.as_bool()? },
        "opened" => Word::Opened { read_only: value.get("read_only")?.as_bool()? },
        "serve" => Word::Serve(descriptor?),
        "ready" => Word::Ready,
        "failed" => {
            let code = value.get("exit")?.as_u64()?;
            let exit = Exit::ALL.into_iter().find(|exit| u64::from(exit.code()) == code)?;
            Word::Failed(Failure {
                exit,
                message: text("message")?,
                hint: text("hint"),
                object: None,
            })
        }
        "log" => {
            let level = u8::try_from(value.get("level")?.as_u64()?).ok()?;
            Word::Log { level, text: text("text")? }
        }
        "terminate" => Word::Terminate,
        "end" => Word::End,
        "hearer" => Word::Hearer { path: text("path")? },
        "ask argument" => {
            let argument = Argument { thread: number("thread")??, command: number("command")?? };
            Word::AskArgument { argument, bytes: number("start")??..number("end")?? }
        }
        "give argument" => {
            let argument = Argument { thread: number("thread")??, command: number("command")?? };
            Word::GiveArgument { argument, bytes: bytes(value.get("bytes")?)? }
        }
        "asked argument" => {
            Word::AskedArgument { thread: number("thread")??, bytes: bytes(value.get("bytes")?) }
        }
        "gave argument" => {
            Word::GaveArgument { thread: number("thread")??, done: value.get("done")?.as_bool()? }
        }
        "ask user" => Word::AskUser { thread: number("thread")?? },
        "asked user" => Word::AskedUser(number("user")?),
        "ask file" => Word::AskFile { index: number("index")?? },
        "file" => Word::File(descriptor?),
        _ => return None,
    })
}

/// An array of bytes; `None` for anything else.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    let byte = |value: &Value| u8::try_from(value.as_u64()?).ok();
    value.as_array()?.iter().map(byte).collect()
}

/// A text that fits into a packet whatever JSON makes of it.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    fn ends() -> (Link, Link) {
        let (a, b) = Link::pair().unwrap();
        (a, Link(b))
    }

    #[test]
    fn a_failure_arrives_as_it_was_said() {
        let (a, b) = ends();
        let failure = Failure::new(Exit::Refused, "in \"use\"\n").hint("wait");
        a.say(&Word::Failed(failure)).unwrap();
        a.say(&Word::Ready).unwrap();
        let Some(Word::Failed(failure)) = b.hear().unwrap() else { panic!("another word") };
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Refused, "in \"use\"\n"));
        assert_eq!(failure.hint.as_deref(), Some("wait"));
        assert!(matches!(b.hear().unwrap(), Some(Word::Ready)));
        drop(a);
        assert!(b.hear().unwrap().is_none());
    }

    #[test]
    fn a_descriptor_comes_along() {
        let (a, b) = ends();
        let place = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(place.path(), "through").unwrap();
        a.say(&Word::Serve(File::open(place.path()).unwrap().into())).unwrap();
        let Some(Word::Serve(descriptor)) = b.hear().unwrap() else { panic!("another word") };
        let mut text = String::new();
        File::from(descriptor).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn long_texts_are_cut_and_full_sockets_do_not_wait() {
        let (a, b) = ends();
        let text = "\u{1}".repeat(1 << 20);
        a.say(&Word::Log { level: 4, text }).unwrap();
        let Some(Word::Log { level: 4, text }) = b.hear().unwrap() else { panic!("another word") };
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        let full = (0..10_000)
            .map(|_| a.say(&Word::Log { level: 6, text: "x".repeat(4096) }))
            .find(Result::is_err);
        assert_eq!(full.unwrap().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_is_no_word_is_an_error() {
        let (a, b) = ends();
        for packet in ["{}", "[1", "{\"word\":\"serve\"}", "{\"word\":\"dance\"}"] {
            a.send(packet.as_bytes(), None).unwrap();
            assert!(b.hear().is_err(), "{packet}");
        }
    }
}
