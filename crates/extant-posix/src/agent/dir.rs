//! Verbs about directories as a whole: listings, and listings while something changes.

use std::collections::BTreeSet;

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io;

use super::{Agent, Words};
use crate::errno::{Answer, Fail};
use crate::show;

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "list" => list(agent, words),
        "count" => count(agent, words),
        "dots" => dots(agent, words),
        "inodes" => inodes(agent, words),
        "fill" => fill(agent, words),
        "empty" => empty(agent, words),
        "cookies" => cookies(agent, words),
        "rewind" => rewind(agent, words),
        "scanremove" => scan_remove(agent, words),
        "scancreate" => scan_create(agent, words),
        "scanrename" => scan_rename(agent, words),
        _ => return None,
    })
}

fn open(agent: &Agent, words: &Words) -> Result<std::os::fd::OwnedFd, Fail> {
    let place = agent.place(words, 1)?;
    if place.itself {
        return Ok(io::dup(place.dir)?);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fs::openat(place.dir, &place.path[..], flags, Mode::empty())?)
}

fn letter(kind: FileType) -> char {
    match kind {
        FileType::RegularFile => 'f',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Unknown => '?',
    }
}

/// Names but `.` and `..`, in the order of the listing, with their kinds.
fn names(mut dir: Dir) -> Result<Vec<(Vec<u8>, FileType)>, Fail> {
    let mut out = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            out.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(out)
}

/// `list P`: sorted names, each with the letter of its kind.
fn list(agent: &Agent, words: &Words) -> Answer {
    let names = names(Dir::new(open(agent, words)?)?)?;
    let shown = names.iter().map(|(name, kind)| format!("{}:{}", show::bytes(name), letter(*kind)));
    Ok(show::sorted(shown.collect()))
}

/// `count P`: how many names, and whether each came once.
fn count(agent: &Agent, words: &Words) -> Answer {
    let names = names(Dir::new(open(agent, words)?)?)?;
    let set: BTreeSet<_> = names.iter().map(|(name, _)| name).collect();
    let twice = if set.len() == names.len() { "" } else { " some twice" };
    Ok(format!("{}{twice}", names.len()))
}

/// `dots P`: `.` and `..` as the listing has them, and whether they lead where they should.
fn dots(agent: &Agent, words: &Words) -> Answer {
    let file = open(agent, words)?;
    let ino =
        |path: &str| fs::statat(&file, path, AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_ino);
    let (own, parent) = (ino(".")?, ino("..")?);
    let mut dir = Dir::read_from(&file)?;
    let mut out = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry?;
        let right = match entry.file_name().to_bytes() {
            b"." => entry.ino() == own,
            b".." => entry.ino() == parent,
            _ => continue,
        };
        let name = String::from_utf8_lossy(entry.file_name().to_bytes()).into_owned();
        out.push(format!("{name}{}{}", letter(entry.file_type()), if right { "" } else { "!" }));
    }
    Ok(show::sorted(out))
}

/// `inodes P`: do the numbers in the listing equal those of stat?
fn inodes(agent: &Agent, words: &Words) -> Answer {
    let file = open(agent, words)?;
    let mut dir = Dir::read_from(&file)?;
    while let Some(entry) = dir.read() {
        let entry = entry?;
        let stat = fs::statat(&file, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        if stat.st_ino != entry.ino() {
            return Ok(format!("differ: {}", show::bytes(entry.file_name().to_bytes())));
        }
    }
    Ok("equal".to_owned())
}

fn create(dir: impl std::os::fd::AsFd, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).map(drop)
}

fn numbered(prefix: &[u8], number: u64) -> Vec<u8> {
    [prefix, number.to_string().as_bytes()].concat()
}

/// `fill P PREFIX COUNT`: empty files PREFIX0 and so on.
fn fill(agent: &Agent, words: &Words) -> Answer {
    let (dir, prefix) = (open(agent, words)?, words.bytes(2)?);
    for number in 0..words.number(3)? {
        create(&dir, &numbered(&prefix, number))?;
    }
    Ok(String::new())
}

/// `empty P`: removes every file that is no directory; how many.
fn empty(agent: &Agent, words: &Words) -> Answer {
    let dir = open(agent, words)?;
    let mut removed = 0;
    for (name, kind) in names(Dir::read_from(&dir)?)? {
        if kind != FileType::Directory {
            fs::unlinkat(&dir, &name[..], AtFlags::empty())?;
            removed += 1;
        }
    }
    Ok(removed.to_string())
}

/// `cookies P`: from the place after each entry, or each tenth of many, the rest of the listing must
/// come again.
fn cookies(agent: &Agent, words: &Words) -> Answer {
    let mut dir = Dir::new(open(agent, words)?)?;
    let mut all = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry?;
        all.push((entry.offset(), entry.file_name().to_bytes().to_vec()));
    }
    let step = (all.len() / 20).max(1);
    for (at, (offset, name)) in all.iter().enumerate().step_by(step) {
        dir.seek(*offset)?;
        let next = match dir.read() {
            Some(entry) => Some(entry?.file_name().to_bytes().to_vec()),
            None => None,
        };
        if next.as_deref() != all.get(at + 1).map(|(_, name)| &name[..]) {
            return Ok(format!("after {} comes another name", show::bytes(name)));
        }
    }
    Ok("ok".to_owned())
}

/// `rewind P NAME`: a name made after a listing is there after rewinding.
fn rewind(agent: &Agent, words: &Words) -> Answer {
    let file = open(agent, words)?;
    let mut dir = Dir::read_from(&file)?;
    while let Some(entry) = dir.read() {
        entry?;
    }
    create(&file, &words.bytes(2)?)?;
    dir.rewind();
    let mut found = false;
    while let Some(entry) = dir.read() {
        found |= entry?.file_name().to_bytes() == words.bytes(2)?;
    }
    Ok(if found { "there" } else { "missing" }.to_owned())
}

/// `scanremove P`: removes each name as the listing shows it; how many, and how many are left.
fn scan_remove(agent: &Agent, words: &Words) -> Answer {
    let file = open(agent, words)?;
    let mut dir = Dir::read_from(&file)?;
    let mut removed = 0;
    while let Some(entry) = dir.read() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            fs::unlinkat(&file, entry.file_name(), AtFlags::empty())?;
            removed += 1;
        }
    }
    let left = names(Dir::read_from(&file)?)?.len();
    Ok(format!("{removed} {left}"))
}

/// `scancreate P PREFIX COUNT`: makes files during a listing; names that were there before must come
/// exactly once.
fn scan_create(agent: &Agent, words: &Words) -> Answer {
    let file = open(agent, words)?;
    let (prefix, count) = (words.bytes(2)?, words.number(3)?);
    let before: BTreeSet<_> = names(Dir::read_from(&file)?)?.into_iter().map(|n| n.0).collect();
    let mut dir = Dir::read_from(&file)?;
    let mut seen = Vec::new();
    let mut made = 0;
    while let Some(entry) = dir.read() {
        let name = entry?.file_name().to_bytes().to_vec();
        if before.contains(&name) {
            seen.push(name);
        }
        if made < count {
            create(&file, &numbered(&prefix, made))?;
            made += 1;
        }
    }
    let once: BTreeSet<_> = seen.iter().cloned().collect();
    Ok(if once == before && once.len() == seen.len() { "each once" } else { "wrong" }.to_owned())
}

/// `scanrename P`: renames every second name during a listing; the others must come exactly once.
fn scan_rename(agent: &Agent, words: &Words) -> Answer {
    let file = open(agent, words)?;
    let all: Vec<_> = names(Dir::read_from(&file)?)?.into_iter().map(|n| n.0).collect();
    let stay: BTreeSet<_> = all.iter().skip(1).step_by(2).cloned().collect();
    let mut go = all.iter().step_by(2);
    let mut dir = Dir::read_from(&file)?;
    let mut seen = Vec::new();
    while let Some(entry) = dir.read() {
        let name = entry?.file_name().to_bytes().to_vec();
        if stay.contains(&name) {
            seen.push(name);
        }
        if let Some(old) = go.next() {
            fs::renameat(&file, &old[..], &file, &[b"moved-", &old[..]].concat()[..])?;
        }
    }
    let once: BTreeSet<_> = seen.iter().cloned().collect();
    Ok(if once == stay && once.len() == seen.len() { "each once" } else { "wrong" }.to_owned())
}
