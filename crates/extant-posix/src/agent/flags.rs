//! Verbs about inode flags, by the letters of chattr(1).

use rustix::fs::{self, IFlags, Mode, OFlags};

use super::{Agent, Words};
use crate::errno::{Answer, Fail};

const LETTERS: [(char, u32); 12] = [
    ('s', 0x1),
    ('u', 0x2),
    ('c', 0x4),
    ('S', 0x8),
    ('i', 0x10),
    ('a', 0x20),
    ('d', 0x40),
    ('A', 0x80),
    ('D', 0x1_0000),
    ('T', 0x2_0000),
    ('e', 0x8_0000),
    ('P', 0x2000_0000),
];

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "flags" => get(agent, words),
        "chattr" => set(agent, words),
        _ => return None,
    })
}

fn open(agent: &Agent, words: &Words) -> Result<std::os::fd::OwnedFd, Fail> {
    let place = agent.place(words, 1)?;
    if place.itself {
        return Ok(rustix::io::dup(place.dir)?);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(fs::openat(place.dir, &place.path[..], flags, Mode::empty())?)
}

/// `flags P`: `FS_IOC_GETFLAGS`.
fn get(agent: &Agent, words: &Words) -> Answer {
    let flags = fs::ioctl_getflags(open(agent, words)?)?.bits();
    let known = LETTERS.iter().filter(|(_, bit)| flags & bit != 0);
    let text: String = known.map(|(letter, _)| *letter).collect();
    Ok(if text.is_empty() { "-".to_owned() } else { text })
}

/// `chattr P +LETTERS|-LETTERS|=LETTERS`: `FS_IOC_SETFLAGS`; `=` sets these and no others.
fn set(agent: &Agent, words: &Words) -> Answer {
    let file = open(agent, words)?;
    let word = words.word(2)?;
    let mut bits = 0;
    for letter in word.chars().skip(1) {
        let found = LETTERS.iter().find(|(known, _)| *known == letter);
        bits |= found.ok_or_else(|| Fail::Bad(format!("no flag {letter}")))?.1;
    }
    let old = fs::ioctl_getflags(&file)?.bits();
    let new = match word.chars().next() {
        Some('+') => old | bits,
        Some('-') => old & !bits,
        _ => bits,
    };
    fs::ioctl_setflags(&file, IFlags::from_bits_retain(new))?;
    Ok(String::new())
}
