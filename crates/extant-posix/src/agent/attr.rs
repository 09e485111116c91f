//! Verbs about attributes: modes, owners, times, and what `stat` says.

use std::collections::BTreeMap;

use rustix::fs::{
    self, Access, AtFlags, Mode, Statx, StatxAttributes, StatxFlags, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT,
};
use rustix::process::{Gid, Uid};

use super::{Agent, Place, Words, flags_of};
use crate::errno::{Answer, Fail};
use crate::users;

/// Access, modification and change time in nanoseconds.
pub(super) type Times = [i128; 3];

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "stat" => stat(agent, words, true),
        "lstat" => stat(agent, words, false),
        "same" => same(agent, words),
        "mark" => mark(agent, words),
        "moved" => moved(agent, words),
        "chmod" => chmod(agent, words, AtFlags::empty()),
        "lchmod" => chmod(agent, words, AtFlags::SYMLINK_NOFOLLOW),
        "chown" => chown(agent, words, true),
        "lchown" => chown(agent, words, false),
        "utimens" => utimens(agent, words, true),
        "lutimens" => utimens(agent, words, false),
        "access" => access(agent, words),
        "statfs" => statfs(agent, words),
        "remember" => remember(agent, words),
        "unchanged" => unchanged(agent, words),
        _ => return None,
    })
}

fn statx(place: &Place<'_>, follow: bool) -> Result<Statx, Fail> {
    let flags = place.at_flags(follow);
    Ok(fs::statx(place.dir, &place.path[..], flags, StatxFlags::ALL)?)
}

fn kind(mode: u16) -> &'static str {
    match u32::from(mode) & 0o170_000 {
        0o010_000 => "fifo",
        0o020_000 => "chr",
        0o040_000 => "dir",
        0o060_000 => "blk",
        0o100_000 => "reg",
        0o120_000 => "lnk",
        0o140_000 => "sock",
        _ => "none",
    }
}

fn time(at: fs::StatxTimestamp) -> String {
    format!("{}.{:09}", at.tv_sec, at.tv_nsec)
}

/// `stat P FIELD…`: the values, in the order of the words.
fn stat(agent: &Agent, words: &Words, follow: bool) -> Answer {
    let found = statx(&agent.place(words, 1)?, follow)?;
    let mut out = Vec::new();
    for field in words.0.iter().skip(2) {
        out.push(match field.as_str() {
            "type" => kind(found.stx_mode).to_owned(),
            "mode" => format!("{:04o}", found.stx_mode & 0o7777),
            "nlink" => found.stx_nlink.to_string(),
            "uid" => users::name_of(found.stx_uid),
            "gid" => users::name_of(found.stx_gid),
            "size" => found.stx_size.to_string(),
            "blocks" => found.stx_blocks.to_string(),
            "blksize" => found.stx_blksize.to_string(),
            "rdev" => format!("{}:{}", found.stx_rdev_major, found.stx_rdev_minor),
            "atime" => time(found.stx_atime),
            "mtime" => time(found.stx_mtime),
            "ctime" => time(found.stx_ctime),
            "btime" => time(found.stx_btime),
            // Did the file system know its birth time, and is it no later than its change?
            "born" => {
                let known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
                let order = nanos(found.stx_btime) <= nanos(found.stx_ctime);
                if known && order { "yes" } else { "no" }.to_owned()
            }
            "mask" => format!("{:#x}", found.stx_mask & 0xfff),
            "attrs" => attributes(found.stx_attributes),
            "attrsmask" => attributes(found.stx_attributes_mask),
            "dioalign" => format!("{}/{}", found.stx_dio_mem_align, found.stx_dio_offset_align),
            other => return Err(Fail::Bad(format!("no field {other}"))),
        });
    }
    Ok(out.join(" "))
}

fn attributes(bits: StatxAttributes) -> String {
    let table = [
        (StatxAttributes::COMPRESSED, "compressed"),
        (StatxAttributes::IMMUTABLE, "immutable"),
        (StatxAttributes::APPEND, "append"),
        (StatxAttributes::NODUMP, "nodump"),
        (StatxAttributes::ENCRYPTED, "encrypted"),
        (StatxAttributes::VERITY, "verity"),
        (StatxAttributes::MOUNT_ROOT, "root"),
    ];
    let names: Vec<_> =
        table.iter().filter(|(bit, _)| bits.contains(*bit)).map(|(_, name)| *name).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(",") }
}

/// `same P Q`: do both lead to one inode?
fn same(agent: &Agent, words: &Words) -> Answer {
    let (a, b) = (statx(&agent.place(words, 1)?, false)?, statx(&agent.place(words, 2)?, false)?);
    let id = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
    Ok(if id(&a) == id(&b) { "yes" } else { "no" }.to_owned())
}

fn nanos(at: fs::StatxTimestamp) -> i128 {
    i128::from(at.tv_sec) * 1_000_000_000 + i128::from(at.tv_nsec)
}

fn times(found: &Statx) -> Times {
    [nanos(found.stx_atime), nanos(found.stx_mtime), nanos(found.stx_ctime)]
}

/// `mark P…`: notes the times of files, and waits until the clock of files has moved.
fn mark(agent: &mut Agent, words: &Words) -> Answer {
    for at in 1..words.0.len() {
        let found = statx(&agent.place(words, at)?, false)?;
        let id = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        agent.marks.insert(id, times(&found));
    }
    pause(25);
    Ok(String::new())
}

/// Waits for the clock that the kernel stamps files with: it moves with the timer's tick, up to 10 ms,
/// and nobody can pass it in.
pub(super) fn pause(ms: i64) {
    let wait = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let _ = rustix::thread::nanosleep(&wait);
}

/// `moved P…`: for each file which of its times (a, m, c) are later than when it was marked; in
/// capitals if earlier; `-` for none.
fn moved(agent: &Agent, words: &Words) -> Answer {
    let mut out = Vec::new();
    for at in 1..words.0.len() {
        let found = statx(&agent.place(words, at)?, false)?;
        let id = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        let marked = agent.marks.get(&id);
        let marked = marked.ok_or_else(|| Fail::Bad("this inode was not marked".to_owned()))?;
        let mut text = String::new();
        for ((old, new), letter) in marked.iter().zip(times(&found)).zip(['a', 'm', 'c']) {
            match new.cmp(old) {
                std::cmp::Ordering::Greater => text.push(letter),
                std::cmp::Ordering::Less => text.push(letter.to_ascii_uppercase()),
                std::cmp::Ordering::Equal => {}
            }
        }
        out.push(if text.is_empty() { "-".to_owned() } else { text });
    }
    Ok(out.join(" "))
}

/// `remember NAME P`: everything stat says but the times; `unchanged NAME P` compares.
fn remember(agent: &mut Agent, words: &Words) -> Answer {
    let text = all(&statx(&agent.place(words, 2)?, false)?);
    agent.texts.insert(words.word(1)?.to_owned(), text);
    Ok(String::new())
}

fn all(found: &Statx) -> String {
    let owner = (found.stx_uid, found.stx_gid);
    let rest = (found.stx_nlink, found.stx_size, found.stx_ino, found.stx_blocks);
    format!("{:o} {owner:?} {rest:?}", found.stx_mode)
}

fn unchanged(agent: &Agent, words: &Words) -> Answer {
    let text = all(&statx(&agent.place(words, 2)?, false)?);
    let same = agent.texts.get(words.word(1)?) == Some(&text);
    Ok(if same { "yes" } else { "no" }.to_owned())
}

/// `chmod P MODE`
fn chmod(agent: &Agent, words: &Words, flags: AtFlags) -> Answer {
    let (place, mode) = (agent.place(words, 1)?, words.mode(2)?);
    if place.itself {
        fs::fchmod(place.dir, mode)?;
    } else {
        fs::chmodat(place.dir, &place.path[..], mode, flags)?;
    }
    Ok(String::new())
}

/// `chown P USER GROUP`: `-` leaves one as it is.
fn chown(agent: &Agent, words: &Words, follow: bool) -> Answer {
    let place = agent.place(words, 1)?;
    let id = |at| -> Result<Option<u32>, Fail> {
        let word = words.word(at)?;
        if word == "-" {
            return Ok(None);
        }
        users::id(word).map(Some).ok_or_else(|| Fail::Bad(format!("no user {word}")))
    };
    let (user, group) = (id(2)?.map(Uid::from_raw), id(3)?.map(Gid::from_raw));
    if place.itself {
        fs::fchown(place.dir, user, group)?;
    } else {
        fs::chownat(place.dir, &place.path[..], user, group, place.at_flags(follow))?;
    }
    Ok(String::new())
}

fn timespec(word: &str) -> Result<Timespec, Fail> {
    let bad = || Fail::Bad(format!("{word} is no time"));
    Ok(match word {
        "now" => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        "omit" => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        _ => {
            let (seconds, nanos) = word.split_once('.').unwrap_or((word, "0"));
            Timespec {
                tv_sec: seconds.parse().map_err(|_| bad())?,
                tv_nsec: nanos.parse().map_err(|_| bad())?,
            }
        }
    })
}

/// `utimens P ATIME MTIME`: `now`, `omit` or SECONDS.NANOSECONDS.
fn utimens(agent: &Agent, words: &Words, follow: bool) -> Answer {
    let place = agent.place(words, 1)?;
    let times = Timestamps {
        last_access: timespec(words.word(2)?)?,
        last_modification: timespec(words.word(3)?)?,
    };
    if place.itself {
        fs::futimens(place.dir, &times)?;
    } else {
        let mut flags = AtFlags::empty();
        flags.set(AtFlags::SYMLINK_NOFOLLOW, !follow);
        fs::utimensat(place.dir, &place.path[..], &times, flags)?;
    }
    Ok(String::new())
}

/// `access P r,w,x [nofollow] [eff]`
fn access(agent: &Agent, words: &Words) -> Answer {
    let table = [
        ("r", Access::READ_OK),
        ("w", Access::WRITE_OK),
        ("x", Access::EXEC_OK),
        ("f", Access::EXISTS),
    ];
    let place = agent.place(words, 1)?;
    let access = flags_of(words.word(2)?, &table)?.into_iter().collect();
    let mut flags = place.at_flags(!words.has("nofollow"));
    flags.set(AtFlags::EACCESS, words.has("eff"));
    fs::accessat(place.dir, &place.path[..], access, flags)?;
    Ok(String::new())
}

/// `statfs P FIELD…`
fn statfs(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let flags = fs::OFlags::PATH | fs::OFlags::CLOEXEC;
    let file = fs::openat(place.dir, &place.path[..], flags, Mode::empty())?;
    let (found, vfs) = (fs::fstatfs(&file)?, fs::fstatvfs(&file)?);
    let yes = |yes| if yes { "yes" } else { "no" }.to_owned();
    let mut fields: BTreeMap<&str, String> = BTreeMap::new();
    fields.insert("type", format!("{:#x}", found.f_type));
    fields.insert("bsize", found.f_bsize.to_string());
    fields.insert("frsize", vfs.f_frsize.to_string());
    fields.insert("namelen", vfs.f_namemax.to_string());
    fields.insert("blocks", found.f_blocks.to_string());
    fields.insert("files", found.f_files.to_string());
    fields.insert("reserved", (found.f_bfree - found.f_bavail).to_string());
    fields.insert("sane", yes(found.f_bfree <= found.f_blocks && found.f_ffree <= found.f_files));
    fields.insert("fsid", yes(vfs.f_fsid != 0));
    let mut out = Vec::new();
    for field in words.0.iter().skip(2) {
        let value = fields.get(field.as_str());
        out.push(value.ok_or_else(|| Fail::Bad(format!("no field {field}")))?.as_str());
    }
    Ok(out.join(" "))
}
