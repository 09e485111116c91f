//! Verbs about open files and their contents.

use std::io::{IoSlice, IoSliceMut};

use rustix::fs::{self, FallocateFlags, Mode, OFlags, ResolveFlags, SeekFrom};
use rustix::io::{self, ReadWriteFlags};
use rustix::pipe::{SpliceFlags, pipe, splice};

use super::{Agent, Words, flags_of};
use crate::errno::{Answer, Fail};
use crate::show;

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "open" => open(agent, words),
        "openat2" => openat2(agent, words),
        "close" => close(agent, words),
        "dup" => dup(agent, words),
        "setfl" => setfl(agent, words),
        "getfl" => getfl(agent, words),
        "put" => put(agent, words),
        "cat" => cat(agent, words),
        "copyin" => copy_in(agent, words),
        "read" => read(agent, words),
        "pread" => pread(agent, words),
        "write" => write(agent, words),
        "pwrite" => pwrite(agent, words),
        "dread" => direct_read(agent, words),
        "dwrite" => direct_write(agent, words),
        "appendn" => append_many(agent, words),
        "seek" => seek(agent, words),
        "truncate" => truncate(agent, words),
        "fallocate" => fallocate(agent, words),
        "copyrange" => copy_range(agent, words),
        "sendfile" => sendfile(agent, words),
        "splicein" => splice_in(agent, words),
        "spliceout" => splice_out(agent, words),
        "ficlone" => ficlone(agent, words),
        "fsync" => agent.open_file(words, 1).and_then(|file| done(fs::fsync(file))),
        "fdatasync" => agent.open_file(words, 1).and_then(|file| done(fs::fdatasync(file))),
        "syncfs" => agent.open_file(words, 1).and_then(|file| done(fs::syncfs(file))),
        "fadvise" => fadvise(agent, words),
        _ => return None,
    })
}

fn done(result: io::Result<()>) -> Answer {
    result?;
    Ok(String::new())
}

const OPEN_FLAGS: [(&str, OFlags); 21] = [
    ("r", OFlags::RDONLY),
    ("w", OFlags::WRONLY),
    ("rw", OFlags::RDWR),
    ("3", OFlags::from_bits_retain(3)),
    ("creat", OFlags::CREATE),
    ("excl", OFlags::EXCL),
    ("trunc", OFlags::TRUNC),
    ("append", OFlags::APPEND),
    ("dir", OFlags::DIRECTORY),
    ("nofollow", OFlags::NOFOLLOW),
    ("path", OFlags::PATH),
    ("tmpfile", OFlags::TMPFILE),
    ("direct", OFlags::DIRECT),
    ("nonblock", OFlags::NONBLOCK),
    ("noatime", OFlags::NOATIME),
    ("sync", OFlags::SYNC),
    ("dsync", OFlags::DSYNC),
    ("noctty", OFlags::NOCTTY),
    ("cloexec", OFlags::CLOEXEC),
    ("async", OFlags::ASYNC),
    ("large", OFlags::LARGEFILE),
];

fn open_flags(word: &str) -> Result<OFlags, Fail> {
    let flags: OFlags = flags_of(word, &OPEN_FLAGS)?.into_iter().collect();
    Ok(flags | OFlags::CLOEXEC)
}

/// `open P FLAGS [MODE] [as NAME]`: without a name it is closed at once.
fn open(agent: &mut Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let mode = match words.get(3) {
        None | Some("as") => Mode::from_raw_mode(0o644),
        Some(_) => words.mode(3)?,
    };
    let file = fs::openat(place.dir, &place.path[..], open_flags(words.word(2)?)?, mode)?;
    if let Some(name) = words.after("as") {
        agent.files.insert(name.to_owned(), file);
    }
    Ok(String::new())
}

/// `openat2 P FLAGS RESOLVE`
fn openat2(agent: &mut Agent, words: &Words) -> Answer {
    let table = [
        ("noxdev", ResolveFlags::NO_XDEV),
        ("nomagic", ResolveFlags::NO_MAGICLINKS),
        ("nosymlinks", ResolveFlags::NO_SYMLINKS),
        ("beneath", ResolveFlags::BENEATH),
        ("inroot", ResolveFlags::IN_ROOT),
    ];
    let place = agent.place(words, 1)?;
    let resolve = flags_of(words.word(3)?, &table)?.into_iter().collect();
    let flags = open_flags(words.word(2)?)?;
    fs::openat2(place.dir, &place.path[..], flags, Mode::empty(), resolve)?;
    Ok(String::new())
}

fn close(agent: &mut Agent, words: &Words) -> Answer {
    let name = words.word(1)?;
    agent.files.remove(name).ok_or_else(|| Fail::Bad(format!("no open file {name}")))?;
    Ok(String::new())
}

/// `dup A as B`
fn dup(agent: &mut Agent, words: &Words) -> Answer {
    let copy = io::dup(agent.open_file(words, 1)?)?;
    agent.files.insert(words.word(3)?.to_owned(), copy);
    Ok(String::new())
}

/// `setfl A FLAGS`: `F_SETFL`
fn setfl(agent: &Agent, words: &Words) -> Answer {
    let flags = flags_of(words.word(2)?, &OPEN_FLAGS)?.into_iter().collect();
    done(fs::fcntl_setfl(agent.open_file(words, 1)?, flags))
}

/// `getfl A`: the flags of the open file, named.
fn getfl(agent: &Agent, words: &Words) -> Answer {
    let flags = fs::fcntl_getfl(agent.open_file(words, 1)?)?;
    let access = match flags & OFlags::RWMODE {
        OFlags::WRONLY => "w",
        OFlags::RDWR => "rw",
        _ => "r",
    };
    let named = OPEN_FLAGS
        .iter()
        .skip(4)
        .filter(|(name, flag)| flags.contains(*flag) && !matches!(*name, "large" | "cloexec"));
    Ok(std::iter::once(access).chain(named.map(|(name, _)| *name)).collect::<Vec<_>>().join(","))
}

/// `put P DATA [MODE]`: opens with `O_CREAT|O_TRUNC` and writes.
fn put(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let mode = if words.get(3).is_some() { words.mode(3)? } else { Mode::from_raw_mode(0o644) };
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = fs::openat(place.dir, &place.path[..], flags, mode)?;
    let data = words.bytes(2)?;
    let count = io::write(&file, &data)?;
    if count == data.len() { Ok(String::new()) } else { Ok(format!("short {count}")) }
}

/// `cat P`: all contents.
fn cat(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = fs::openat(place.dir, &place.path[..], flags, Mode::empty())?;
    let mut data = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut data)?;
    Ok(show::bytes(&data))
}

/// `copyin HOSTFILE P MODE`: a file of the host, such as a program.
fn copy_in(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 2)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let mut from = std::fs::File::open(words.word(1)?)?;
    let to = fs::openat(place.dir, &place.path[..], flags, Mode::RWXU)?;
    std::io::copy(&mut from, &mut std::fs::File::from(to))?;
    fs::chmodat(place.dir, &place.path[..], words.mode(3)?, fs::AtFlags::empty())?;
    Ok(String::new())
}

/// `read A LEN`
fn read(agent: &Agent, words: &Words) -> Answer {
    let mut data = vec![0; words.size(2)?];
    let count = io::read(agent.open_file(words, 1)?, &mut data[..])?;
    Ok(show::bytes(data.get(..count).unwrap_or(&[])))
}

const RWF: [(&str, ReadWriteFlags); 6] = [
    ("dsync", ReadWriteFlags::DSYNC),
    ("hipri", ReadWriteFlags::HIPRI),
    ("sync", ReadWriteFlags::SYNC),
    ("nowait", ReadWriteFlags::NOWAIT),
    ("append", ReadWriteFlags::APPEND),
    ("unknown", ReadWriteFlags::from_bits_retain(1 << 30)),
];

/// `pread A OFFSET LEN [FLAGS]`; with flags as `preadv2`.
fn pread(agent: &Agent, words: &Words) -> Answer {
    let file = agent.open_file(words, 1)?;
    let (offset, mut data) = (words.number(2)?, vec![0; words.size(3)?]);
    let count = match words.get(4) {
        None => io::pread(file, &mut data[..], offset)?,
        Some(flags) => {
            let flags = flags_of(flags, &RWF)?.into_iter().collect();
            io::preadv2(file, &mut [IoSliceMut::new(&mut data)], offset, flags)?
        }
    };
    Ok(show::bytes(data.get(..count).unwrap_or(&[])))
}

/// `write A DATA`: how many bytes were written.
fn write(agent: &Agent, words: &Words) -> Answer {
    Ok(io::write(agent.open_file(words, 1)?, &words.bytes(2)?)?.to_string())
}

/// `pwrite A OFFSET DATA [FLAGS]`; with flags as `pwritev2`.
fn pwrite(agent: &Agent, words: &Words) -> Answer {
    let file = agent.open_file(words, 1)?;
    let (offset, data) = (words.number(2)?, words.bytes(3)?);
    let count = match words.get(4) {
        None => io::pwrite(file, &data, offset)?,
        Some(flags) => {
            let flags = flags_of(flags, &RWF)?.into_iter().collect();
            io::pwritev2(file, &[IoSlice::new(&data)], offset, flags)?
        }
    };
    Ok(count.to_string())
}

/// `len` bytes of a buffer that start `shift` bytes behind a multiple of 4096.
fn aligned(buffer: &mut [u8], shift: usize, len: usize) -> Result<&mut [u8], Fail> {
    let start = buffer.as_ptr().align_offset(4096).wrapping_add(shift);
    buffer.get_mut(start..start + len).ok_or_else(|| Fail::Bad("buffer".to_owned()))
}

/// `dread A OFFSET LEN [SHIFT]`: pread into memory that is aligned but for SHIFT bytes.
fn direct_read(agent: &Agent, words: &Words) -> Answer {
    let (offset, len) = (words.number(2)?, words.size(3)?);
    let shift = if words.get(4).is_some() { words.size(4)? } else { 0 };
    let mut memory = vec![0; len + shift + 8192];
    let buffer = aligned(&mut memory, shift, len)?;
    let count = io::pread(agent.open_file(words, 1)?, &mut *buffer, offset)?;
    Ok(show::bytes(buffer.get(..count).unwrap_or(&[])))
}

/// `dwrite A OFFSET DATA [SHIFT]`
fn direct_write(agent: &Agent, words: &Words) -> Answer {
    let (offset, data) = (words.number(2)?, words.bytes(3)?);
    let shift = if words.get(4).is_some() { words.size(4)? } else { 0 };
    let mut memory = vec![0; data.len() + shift + 8192];
    let buffer = aligned(&mut memory, shift, data.len())?;
    buffer.copy_from_slice(&data);
    Ok(io::pwrite(agent.open_file(words, 1)?, buffer, offset)?.to_string())
}

/// `appendn P RECORD COUNT`: COUNT writes of RECORD with `O_APPEND`.
fn append_many(agent: &Agent, words: &Words) -> Answer {
    let place = agent.place(words, 1)?;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    let file = fs::openat(place.dir, &place.path[..], flags, Mode::empty())?;
    let record = words.bytes(2)?;
    for _ in 0..words.number(3)? {
        if io::write(&file, &record)? != record.len() {
            return Ok("short".to_owned());
        }
    }
    Ok(String::new())
}

/// `seek A set|cur|end|data|hole OFFSET`: the new offset.
fn seek(agent: &Agent, words: &Words) -> Answer {
    let file = agent.open_file(words, 1)?;
    let to = match words.word(2)? {
        "set" => SeekFrom::Start(words.number(3)?),
        "cur" => SeekFrom::Current(words.signed(3)?),
        "end" => SeekFrom::End(words.signed(3)?),
        "data" => SeekFrom::Data(words.number(3)?),
        "hole" => SeekFrom::Hole(words.number(3)?),
        other => return Err(Fail::Bad(format!("no way to seek: {other}"))),
    };
    Ok(fs::seek(file, to)?.to_string())
}

/// `truncate P LEN`: `%A` is `ftruncate`.
fn truncate(agent: &Agent, words: &Words) -> Answer {
    let (place, len) = (agent.place(words, 1)?, words.signed(2)?);
    if place.itself {
        fs::ftruncate(place.dir, len.cast_unsigned())?;
    } else {
        let path = place.plain()?;
        nix::unistd::truncate(path, len)?;
    }
    Ok(String::new())
}

/// `fallocate A FLAGS OFFSET LEN`
fn fallocate(agent: &Agent, words: &Words) -> Answer {
    let table = [
        ("keep", FallocateFlags::KEEP_SIZE),
        ("punch", FallocateFlags::PUNCH_HOLE),
        ("collapse", FallocateFlags::COLLAPSE_RANGE),
        ("zero", FallocateFlags::ZERO_RANGE),
        ("insert", FallocateFlags::INSERT_RANGE),
        ("unshare", FallocateFlags::UNSHARE_RANGE),
        ("unknown", FallocateFlags::from_bits_retain(0x4000)),
    ];
    let flags = flags_of(words.word(2)?, &table)?.into_iter().collect();
    let file = agent.open_file(words, 1)?;
    done(fs::fallocate(file, flags, words.number(3)?, words.number(4)?))
}

/// `copyrange FROM OFFSET TO OFFSET LEN`
fn copy_range(agent: &Agent, words: &Words) -> Answer {
    let (from, to) = (agent.open_file(words, 1)?, agent.open_file(words, 3)?);
    let (mut at, mut into) = (words.number(2)?, words.number(4)?);
    let len = words.size(5)?;
    Ok(fs::copy_file_range(from, Some(&mut at), to, Some(&mut into), len)?.to_string())
}

/// `sendfile TO FROM OFFSET LEN`
fn sendfile(agent: &Agent, words: &Words) -> Answer {
    let (to, from) = (agent.open_file(words, 1)?, agent.open_file(words, 2)?);
    let mut offset = words.number(3)?;
    Ok(fs::sendfile(to, from, Some(&mut offset), words.size(4)?)?.to_string())
}

/// `splicein A OFFSET LEN`: from the file into a pipe; what the pipe then has.
fn splice_in(agent: &Agent, words: &Words) -> Answer {
    let (end, start) = pipe()?;
    let mut offset = words.number(2)?;
    let file = agent.open_file(words, 1)?;
    let len = words.size(3)?;
    let count = splice(file, Some(&mut offset), &start, None, len, SpliceFlags::empty())?;
    let mut data = vec![0; count];
    let count = if count == 0 { 0 } else { io::read(&end, &mut data[..])? };
    Ok(show::bytes(data.get(..count).unwrap_or(&[])))
}

/// `spliceout A OFFSET DATA`: DATA into a pipe and from there into the file.
fn splice_out(agent: &Agent, words: &Words) -> Answer {
    let (end, start) = pipe()?;
    let data = words.bytes(3)?;
    io::write(&start, &data)?;
    let mut offset = words.number(2)?;
    let file = agent.open_file(words, 1)?;
    let flags = SpliceFlags::empty();
    Ok(splice(&end, None, file, Some(&mut offset), data.len(), flags)?.to_string())
}

/// `ficlone TO FROM`
fn ficlone(agent: &Agent, words: &Words) -> Answer {
    done(fs::ioctl_ficlone(agent.open_file(words, 1)?, agent.open_file(words, 2)?))
}

/// `fadvise A normal|dontneed|willneed`
fn fadvise(agent: &Agent, words: &Words) -> Answer {
    let advice = match words.word(2)? {
        "dontneed" => fs::Advice::DontNeed,
        "willneed" => fs::Advice::WillNeed,
        _ => fs::Advice::Normal,
    };
    done(fs::fadvise(agent.open_file(words, 1)?, 0, None, advice))
}
