//! Verbs about locks: of a process (`lock`), of an open file (`olock`), and `flock`.

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::FlockOperation;

use super::{Agent, Words};
use crate::errno::{Answer, Fail};

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "lock" => set(agent, words, false),
        "olock" => set(agent, words, true),
        "getlock" => get(agent, words, false),
        "ogetlock" => get(agent, words, true),
        "flock" => flock(agent, words),
        _ => return None,
    })
}

/// Words from 2: `r|w|u START LEN`; LEN 0 is to the end.
fn record(words: &Words) -> Result<libc::flock, Fail> {
    let kind = match words.word(2)? {
        "r" => libc::F_RDLCK,
        "w" => libc::F_WRLCK,
        "u" => libc::F_UNLCK,
        other => return Err(Fail::Bad(format!("no lock {other}"))),
    };
    let whence = match words.after("from") {
        Some("end") => libc::SEEK_END,
        Some("cur") => libc::SEEK_CUR,
        _ => libc::SEEK_SET,
    };
    Ok(libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: i16::try_from(whence).unwrap_or(0),
        l_start: words.signed(3)?,
        l_len: words.signed(4)?,
        l_pid: 0,
    })
}

/// `lock A r|w|u START LEN [from end|cur] [wait]`
fn set(agent: &Agent, words: &Words, open_file: bool) -> Answer {
    let record = record(words)?;
    let arg = match (open_file, words.has("wait")) {
        (false, false) => FcntlArg::F_SETLK(&record),
        (false, true) => FcntlArg::F_SETLKW(&record),
        (true, false) => FcntlArg::F_OFD_SETLK(&record),
        (true, true) => FcntlArg::F_OFD_SETLKW(&record),
    };
    fcntl(agent.open_file(words, 1)?, arg)?;
    Ok(String::new())
}

/// `getlock A r|w START LEN`: `free`, or the lock in the way, and whether it has an owner.
fn get(agent: &Agent, words: &Words, open_file: bool) -> Answer {
    let mut record = record(words)?;
    let arg =
        if open_file { FcntlArg::F_OFD_GETLK(&mut record) } else { FcntlArg::F_GETLK(&mut record) };
    fcntl(agent.open_file(words, 1)?, arg)?;
    let kind = match i32::from(record.l_type) {
        libc::F_UNLCK => return Ok("free".to_owned()),
        libc::F_RDLCK => "r",
        _ => "w",
    };
    let owner = match record.l_pid {
        -1 => "file",
        pid if pid > 0 => "process",
        _ => "nobody",
    };
    Ok(format!("{kind} {} {} {owner}", record.l_start, record.l_len))
}

/// `flock A sh|ex|un [wait]`
fn flock(agent: &Agent, words: &Words) -> Answer {
    let operation = match (words.word(2)?, words.has("wait")) {
        ("sh", false) => FlockOperation::NonBlockingLockShared,
        ("ex", false) => FlockOperation::NonBlockingLockExclusive,
        ("sh", true) => FlockOperation::LockShared,
        ("ex", true) => FlockOperation::LockExclusive,
        _ => FlockOperation::Unlock,
    };
    rustix::fs::flock(agent.open_file(words, 1)?, operation)?;
    Ok(String::new())
}
