//! Verbs that make, move and remove names.

use rustix::fs::{self, AtFlags, FileType, Mode, RenameFlags};
use rustix::process::{Gid, Uid};

use super::{Agent, Words, flags_of};
use crate::errno::{Answer, Fail};
use crate::{show, users};

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "mkdir" => mkdir(agent, words),
        "rmdir" => remove(agent, words, AtFlags::REMOVEDIR),
        "unlink" => remove(agent, words, AtFlags::empty()),
        "link" => link(agent, words),
        "symlink" => symlink(agent, words),
        "readlink" => readlink(agent, words),
        "rename" => rename(agent, words),
        "mknod" => mknod(agent, words),
        "make" => make(agent, words),
        "cd" => cd(agent, words),
        "umask" => words.mode(1).map(|mode| format!("{:04o}", rustix::process::umask(mode).bits())),
        _ => return None,
    })
}

/// `mkdir P MODE`
fn mkdir(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let mode = if words.get(2).is_some() { words.mode(2)? } else { Mode::from_raw_mode(0o755) };
    fs::mkdirat(place.dir, &place.path[..], mode)?;
    Ok(String::new())
}

fn remove(agent: &Agent, words: &Words, flags: AtFlags) -> Answer {
    let place = agent.place(words, 1)?;
    fs::unlinkat(place.dir, &place.path[..], flags)?;
    Ok(String::new())
}

/// `link OLD NEW [follow] [empty]`
fn link(agent: &Agent, words: &Words) -> Answer {
    let (old, new) = (agent.place(words, 1)?, agent.place(words, 2)?);
    let mut flags = AtFlags::empty();
    flags.set(AtFlags::EMPTY_PATH, old.itself);
    flags.set(AtFlags::SYMLINK_FOLLOW, words.has("follow"));
    fs::linkat(old.dir, &old.path[..], new.dir, &new.path[..], flags)?;
    Ok(String::new())
}

/// `symlink TARGET P`
fn symlink(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 2)?;
    fs::symlinkat(&words.bytes(1)?[..], place.dir, &place.path[..])?;
    Ok(String::new())
}

fn readlink(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let target = fs::readlinkat(place.dir, &place.path[..], Vec::new())?;
    Ok(show::bytes(target.as_bytes()))
}

/// `rename OLD NEW [noreplace,exchange,whiteout]`
fn rename(agent: &Agent, words: &Words) -> Answer {
    let table = [
        ("noreplace", RenameFlags::NOREPLACE),
        ("exchange", RenameFlags::EXCHANGE),
        ("whiteout", RenameFlags::WHITEOUT),
        ("unknown", RenameFlags::from_bits_retain(1 << 20)),
    ];
    let (old, new) = (agent.place(words, 1)?, agent.place(words, 2)?);
    match words.get(3) {
        None => fs::renameat(old.dir, &old.path[..], new.dir, &new.path[..])?,
        Some(flags) => {
            let flags = flags_of(flags, &table)?.into_iter().collect();
            fs::renameat_with(old.dir, &old.path[..], new.dir, &new.path[..], flags)?;
        }
    }
    Ok(String::new())
}

fn kind(word: &str) -> Result<FileType, Fail> {
    Ok(match word {
        "reg" => FileType::RegularFile,
        "fifo" => FileType::Fifo,
        "sock" => FileType::Socket,
        "chr" => FileType::CharacterDevice,
        "blk" => FileType::BlockDevice,
        "dir" => FileType::Directory,
        "lnk" => FileType::Symlink,
        other => return Err(Fail::Bad(format!("no kind {other}"))),
    })
}

/// `mknod P KIND MODE [MAJOR MINOR]`
fn mknod(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let number = |at| words.get(at).and_then(|word| word.parse::<u32>().ok()).unwrap_or(0);
    let device = fs::makedev(number(4), number(5));
    fs::mknodat(place.dir, &place.path[..], kind(words.word(2)?)?, words.mode(3)?, device)?;
    Ok(String::new())
}

/// `make KIND P [MODE [USER [GROUP]]]`: a file of any kind, whatever the umask; `reg` has "hello" in it,
/// `lnk` points to `target`.
fn make(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 2)?;
    let path = &place.path[..];
    let mode = if words.get(3).is_some() { words.mode(3)? } else { Mode::from_raw_mode(0o644) };
    match words.word(1)? {
        "dir" => fs::mkdirat(place.dir, path, mode)?,
        "lnk" => fs::symlinkat("target", place.dir, path)?,
        "reg" => {
            use rustix::fs::OFlags;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            rustix::io::write(fs::openat(place.dir, path, flags, mode)?, b"hello")?;
        }
        other => {
            let device = if other == "chr" { fs::makedev(1, 3) } else { fs::makedev(7, 0) };
            fs::mknodat(place.dir, path, kind(other)?, mode, device)?;
        }
    }
    if let Some(user) = words.get(4).and_then(users::id) {
        let group = words.get(5).and_then(users::id).unwrap_or(user);
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        fs::chownat(place.dir, path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if words.get(3).is_some() && words.word(1)? != "lnk" {
        fs::chmodat(place.dir, path, mode, AtFlags::empty())?;
    }
    Ok(String::new())
}

/// `cd P`
fn cd(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    if place.itself {
        rustix::process::fchdir(place.dir)?;
    } else {
        rustix::process::chdir(place.plain()?)?;
    }
    Ok(String::new())
}
