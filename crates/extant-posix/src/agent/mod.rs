//! The process of one user of a case: does one step after the other and says what came out.
//!
//! # Shape
//!
//! Standard input has one step per line, a JSON list of words; standard output gets one line for each,
//! a JSON string. The process starts as root in the directory of the case and becomes its user
//! before it reads anything. It ends with its input.
//!
//! Words for files are places: `name` (from the current directory), `%A` the open file A itself,
//! `%A/name` relative to it, `proc:A` its path in `/proc/self/fd`.

mod attr;
mod data;
mod dir;
mod flags;
mod lock;
mod map;
mod names;
mod program;
mod watch;
mod xattr;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD};

use crate::errno::{self, Answer, Fail};
use crate::users::{self, User};
use crate::words;

/// Runs as `user` until standard input ends. `keep` leaves this process whose it is: without root, that is
/// alice.
///
/// # Errors
///
/// When the process cannot become that user, or loses its input or output.
pub fn serve(user: User, keep: bool) -> std::io::Result<()> {
    if keep {
        users::be_alice();
    } else {
        users::become_user(user)?;
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut agent = Agent::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let text = match serde_json::from_str::<Vec<String>>(&line?) {
            Ok(words) => agent.step(&Words(words)),
            Err(error) => format!("BAD: {error}"),
        };
        serde_json::to_writer(&mut out, &text)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

/// What a process keeps between steps.
#[derive(Default)]
struct Agent {
    files: BTreeMap<String, OwnedFd>,
    maps: BTreeMap<String, map::Map>,
    /// Times when a file was marked, by device and inode.
    marks: BTreeMap<(u32, u32, u64), attr::Times>,
    /// What a file looked like when it was remembered.
    texts: BTreeMap<String, String>,
    programs: BTreeMap<String, std::process::Child>,
}

impl Agent {
    fn step(&mut self, words: &Words) -> String {
        match self.call(words) {
            Ok(text) if text.is_empty() => "ok".to_owned(),
            Ok(text) => text,
            Err(Fail::Errno(number)) => errno::name(number),
            Err(Fail::Bad(why)) => format!("BAD: {why}"),
        }
    }

    fn call(&mut self, words: &Words) -> Answer {
        let verb = words.word(0)?.to_owned();
        let tables = [
            names::call,
            data::call,
            attr::call,
            xattr::call,
            flags::call,
            lock::call,
            map::call,
            dir::call,
            watch::call,
            program::call,
        ];
        for table in tables {
            if let Some(answer) = table(self, &verb, words) {
                return answer;
            }
        }
        Err(Fail::Bad(format!("no verb {verb}")))
    }

    fn file(&self, name: &str) -> Result<BorrowedFd<'_>, Fail> {
        self.files
            .get(name)
            .map(|file| file.as_fd())
            .ok_or_else(|| Fail::Bad(format!("no open file {name}")))
    }

    /// The open file that word `at` names.
    fn open_file(&self, words: &Words, at: usize) -> Result<BorrowedFd<'_>, Fail> {
        self.file(words.word(at)?.trim_start_matches('%'))
    }

    fn place(&self, words: &Words, at: usize) -> Result<Place<'_>, Fail> {
        self.place_of(words.word(at)?)
    }

    fn place_of(&self, word: &str) -> Result<Place<'_>, Fail> {
        if let Some(name) = word.strip_prefix("proc:") {
            let path = format!("/proc/self/fd/{}", self.file(name)?.as_raw_fd());
            return Ok(Place { dir: CWD, path: path.into_bytes(), itself: false });
        }
        let Some(name) = word.strip_prefix('%') else {
            return Ok(Place { dir: CWD, path: words::expand(word), itself: false });
        };
        match name.split_once('/') {
            None => Ok(Place { dir: self.file(name)?, path: Vec::new(), itself: true }),
            Some((name, path)) => {
                Ok(Place { dir: self.file(name)?, path: words::expand(path), itself: false })
            }
        }
    }
}

/// A file that a step names.
struct Place<'a> {
    dir: BorrowedFd<'a>,
    path: Vec<u8>,
    /// The open file `dir` itself; `path` is empty.
    itself: bool,
}

impl Place<'_> {
    /// Flags for calls that take an empty path for the open file.
    fn at_flags(&self, follow: bool) -> AtFlags {
        let mut flags = AtFlags::empty();
        flags.set(AtFlags::EMPTY_PATH, self.itself);
        flags.set(AtFlags::SYMLINK_NOFOLLOW, !follow);
        flags
    }

    /// A path for calls that know no directory file descriptor.
    fn plain(&self) -> Result<&[u8], Fail> {
        if self.dir.as_raw_fd() == CWD.as_raw_fd() {
            Ok(&self.path)
        } else {
            Err(Fail::Bad("this verb takes no %file/name".to_owned()))
        }
    }
}

/// The words of a step; the first is the verb.
struct Words(Vec<String>);

impl Words {
    fn get(&self, at: usize) -> Option<&str> {
        self.0.get(at).map(String::as_str)
    }

    fn word(&self, at: usize) -> Result<&str, Fail> {
        self.get(at).ok_or_else(|| Fail::Bad(format!("word {at} is missing")))
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>, Fail> {
        self.word(at).map(words::expand)
    }

    fn signed(&self, at: usize) -> Result<i64, Fail> {
        let word = self.word(at)?;
        let number = words::number(word).and_then(|number| i64::try_from(number).ok());
        number.ok_or_else(|| Fail::Bad(format!("{word} is no number")))
    }

    /// A number; negative ones as the kernel would take their bits.
    fn number(&self, at: usize) -> Result<u64, Fail> {
        let word = self.word(at)?;
        let number = words::number(word);
        let number = number.and_then(|n| {
            u64::try_from(n).ok().or_else(|| i64::try_from(n).ok().map(i64::cast_unsigned))
        });
        number.ok_or_else(|| Fail::Bad(format!("{word} is no number")))
    }

    fn size(&self, at: usize) -> Result<usize, Fail> {
        usize::try_from(self.number(at)?).map_err(|_| Fail::Bad("too large".to_owned()))
    }

    fn mode(&self, at: usize) -> Result<rustix::fs::Mode, Fail> {
        let word = self.word(at)?;
        u32::from_str_radix(word, 8)
            .map(rustix::fs::Mode::from_raw_mode)
            .map_err(|_| Fail::Bad(format!("{word} is no mode")))
    }

    fn has(&self, word: &str) -> bool {
        self.0.iter().skip(1).any(|other| other == word)
    }

    /// The word after `key`.
    fn after(&self, key: &str) -> Option<&str> {
        let at = self.0.iter().skip(1).position(|word| word == key)?;
        self.get(at + 2)
    }
}

/// Flags that a word joins with commas.
fn flags_of<T>(word: &str, table: &[(&str, T)]) -> Result<Vec<T>, Fail>
where
    T: Copy,
{
    word.split(',')
        .filter(|name| !name.is_empty() && *name != "-")
        .map(|name| {
            let found = table.iter().find(|(known, _)| *known == name);
            found.map(|(_, flag)| *flag).ok_or_else(|| Fail::Bad(format!("no flag {name}")))
        })
        .collect()
}
