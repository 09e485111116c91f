//! The members of an archive, one after the other, each with all that its headers say.

use extant_format::acl::Acl;

use super::header::{
    BLOCK, Block, Header, HeaderFault, SparseRun, gnu_sparse, gnu_sparse_more, until_nul,
};
use super::input::Input;
use super::pax::{Pax, decimal};
use super::{acl, stopped};
use crate::source::SourceError;
use crate::source::dir::flags;
use crate::tree::{DataRun, Kind, Time, XattrSet};

/// Longest extended header, long name or long link; real ones have a few hundred bytes.
const EXTENSION_MAX: u64 = 1 << 20;

/// Most bytes of an archive without members: one record of tar's usual size. Longer runs of zeros
/// are disks, not archives.
const EMPTY_MAX: usize = 20 * BLOCK;

/// Most zero blocks behind an end mark among which a second archive is looked for: a record of
/// 1 MiB. Records have 20 blocks unless tar was asked for more.
const PADDING_MAX_BLOCKS: usize = 2048;

/// Kind of a member.
#[derive(Clone, Debug)]
pub(in crate::source) enum What {
    /// A file of any kind, with its attributes.
    File(Attributes),
    /// Another name for an earlier or later member.
    HardLink {
        /// The name of that member, as stored.
        target: Vec<u8>,
    },
}

/// Attributes of a member that is not a hard link.
#[derive(Clone, Debug)]
pub(in crate::source) struct Attributes {
    pub(in crate::source) kind: Kind,
    pub(in crate::source) mode: u16,
    pub(in crate::source) uid: u32,
    pub(in crate::source) gid: u32,
    pub(in crate::source) mtime: Time,
    pub(in crate::source) atime: Time,
    pub(in crate::source) ctime: Time,
    pub(in crate::source) size: u64,
    pub(in crate::source) rdev: (u32, u32),
    pub(in crate::source) target: Vec<u8>,
    pub(in crate::source) xattrs: XattrSet,
    pub(in crate::source) locator: u64,
    pub(in crate::source) runs: Option<Vec<DataRun>>,
    pub(in crate::source) flags: u32,
    pub(in crate::source) project: u32,
    /// Names of attributes that an image cannot have.
    pub(in crate::source) lost: Vec<Box<str>>,
}

/// One member of the archive.
#[derive(Clone, Debug)]
pub(in crate::source) struct Member {
    /// Byte offset of its first header.
    pub(in crate::source) offset: u64,
    /// Name as stored.
    pub(in crate::source) name: Vec<u8>,
    pub(in crate::source) mtime: Time,
    pub(in crate::source) what: What,
}

/// What tells that an archive is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Its end mark.
    Mark,
    /// Somebody else, by the digest of all of it: it may end behind any member.
    Digest,
}

/// Reads members from an archive.
pub(super) struct Members<'a> {
    input: Input<'a>,
    archive: &'a str,
    /// How the archive was packed, for messages.
    packed: Option<&'static str>,
    end: End,
    pos: u64,
    /// Extended headers for all later members.
    global: Pax,
}

/// Extended headers for the next member.
#[derive(Default)]
struct Pending {
    pax: Pax,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

/// Places of the data of a member.
struct Layout {
    size: u64,
    locator: u64,
    runs: Option<Vec<DataRun>>,
}

impl<'a> Members<'a> {
    pub(super) fn new(
        input: Input<'a>,
        archive: &'a str,
        packed: Option<&'static str>,
        end: End,
    ) -> Members<'a> {
        Members { input, archive, packed, end, pos: 0, global: Pax::default() }
    }

    /// Reads the rest of a stream; returns the number of bytes in its spool.
    pub(super) fn drain(&mut self) -> Result<u64, SourceError> {
        self.input.drain().map_err(|e| stopped(self.archive, self.pos, e))
    }

    /// The next member; `None` at the end mark.
    pub(super) fn next(&mut self) -> Result<Option<Member>, SourceError> {
        let start = self.pos;
        let mut pending = Pending::default();
        let mut extended = false;
        loop {
            let offset = self.pos;
            let Some(block) = self.header_block()? else {
                if extended {
                    let what = "an extended header is followed by no member".into();
                    return Err(self.bad(start, what));
                }
                return Ok(None);
            };
            let header = Header::decode(&block).map_err(|fault| match fault {
                HeaderFault::Checksum { .. } if offset == 0 => self.no_archive(fault.text()),
                _ => self.bad(offset, fault.text()),
            })?;
            match header.typeflag {
                b'x' | b'X' | b'g' => {
                    let global = header.typeflag == b'g';
                    let records = self.extension(&header)?;
                    let pax = if global { &mut self.global } else { &mut pending.pax };
                    let added = pax.add(&records, global);
                    added.map_err(|what| self.bad(offset, what))?;
                    extended |= !global;
                }
                b'L' => {
                    pending.long_name = Some(until_nul(&self.extension(&header)?).to_vec());
                    extended = true;
                }
                b'K' => {
                    pending.long_link = Some(until_nul(&self.extension(&header)?).to_vec());
                    extended = true;
                }
                // A volume label: the name of the archive, not of a member.
                b'V' => self.skip(&header.name, header.size)?,
                _ => return self.member(start, &block, header, pending).map(Some),
            }
        }
    }

    /// The next block that is no end mark; `None` at the end mark.
    fn header_block(&mut self) -> Result<Option<Block>, SourceError> {
        let mut block = [0; BLOCK];
        let count = self.read(&mut block)?;
        if count == 0 && self.pos == 0 {
            return Err(
                self.no_archive("it is empty, and even an archive of nothing is not".into())
            );
        }
        if count == 0 && self.end == End::Digest {
            return Ok(None);
        }
        if count < BLOCK {
            if self.pos == count as u64 {
                let why = format!("it has {count} bytes, and the header of one file {BLOCK}");
                return Err(self.no_archive(why));
            }
            let what = "the archive is cut short: there is no end mark (blocks of zeros)";
            return Err(self.bad(self.pos, what.into()));
        }
        if block.iter().any(|&b| b != 0) {
            return Ok(Some(block));
        }
        // The end mark has two blocks; an archive that ends after one is complete too.
        let at = self.pos;
        let count = self.read(&mut block)?;
        if block.get(..count).unwrap_or_default().iter().any(|&b| b != 0) {
            let what = "one block of zeros, then more: the archive is damaged or two in one file";
            return Err(self.bad(at, what.into()));
        }
        if at == BLOCK as u64 {
            self.only_zeros()?;
        } else {
            self.no_other_archive()?;
        }
        Ok(None)
    }

    /// Checks that no second archive follows, which an image would be without. Anything else behind
    /// the end mark is what archives have on tapes and in files that were longer once.
    fn no_other_archive(&mut self) -> Result<(), SourceError> {
        for _ in 0..PADDING_MAX_BLOCKS {
            let (at, mut block) = (self.pos, [0; BLOCK]);
            if self.read(&mut block)? < BLOCK {
                return Ok(());
            }
            if block.iter().any(|&byte| byte != 0) {
                return match Header::decode(&block) {
                    Ok(_) => {
                        let what = "another archive follows the end mark; \
                                    give each in a file of its own, as a --from of its own";
                        Err(self.bad(at, what.into()))
                    }
                    Err(_) => Ok(()),
                };
            }
        }
        Ok(())
    }

    /// Checks whether an end mark at the very start is that of an archive without members: only
    /// zeros, and no more than one record of them.
    fn only_zeros(&mut self) -> Result<(), SourceError> {
        let seen = self.pos;
        if seen < 2 * BLOCK as u64 {
            let why = format!("it has {seen} zero bytes; an archive of nothing has 1024 at least");
            return Err(self.no_archive(why));
        }
        let mut rest = vec![0; EMPTY_MAX - 2 * BLOCK + 1];
        let count = self.read(&mut rest)?;
        let rest = rest.get(..count).unwrap_or_default();
        if let Some(at) = rest.iter().position(|byte| *byte != 0) {
            let why = format!("it begins with {} zero bytes", seen + at as u64);
            return Err(self.no_archive(why));
        }
        if self.pos > EMPTY_MAX as u64 {
            let why = format!(
                "it begins with more than {EMPTY_MAX} zero bytes, the most that an archive of \
                 nothing has"
            );
            return Err(self.no_archive(why));
        }
        Ok(())
    }

    fn no_archive(&self, why: String) -> SourceError {
        let (archive, packed) = (self.archive.into(), self.packed);
        SourceError::NotTar { archive, found: None, packed, why }
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let count =
            self.input.read(self.pos, buf).map_err(|e| stopped(self.archive, self.pos, e))?;
        self.pos += count as u64;
        Ok(count)
    }

    /// The contents of an extension header, without padding.
    fn extension(&mut self, header: &Header) -> Result<Vec<u8>, SourceError> {
        let size = header.size;
        if size > EXTENSION_MAX {
            let what =
                format!("an extended header of {size} bytes; at most {EXTENSION_MAX} are read");
            return Err(self.bad(self.pos, what));
        }
        let mut bytes = vec![0; size as usize];
        let count = self.read(&mut bytes)?;
        if count < bytes.len() {
            return Err(self.cut_short(&header.name, size, count as u64));
        }
        self.skip_padding(size)?;
        Ok(bytes)
    }

    fn skip(&mut self, name: &[u8], size: u64) -> Result<(), SourceError> {
        let count =
            self.input.skip(self.pos, size).map_err(|e| stopped(self.archive, self.pos, e))?;
        if count < size {
            return Err(self.cut_short(name, size, count));
        }
        self.pos += count;
        self.skip_padding(size)
    }

    /// Moves to the next whole block after `size` bytes of data. Missing padding is noticed when
    /// the next block is read.
    fn skip_padding(&mut self, size: u64) -> Result<(), SourceError> {
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        let count =
            self.input.skip(self.pos, padding).map_err(|e| stopped(self.archive, self.pos, e))?;
        self.pos += count;
        Ok(())
    }

    /// Keeps `size` bytes of data; returns where they can be found.
    fn keep(&mut self, name: &[u8], size: u64) -> Result<u64, SourceError> {
        let (at, count) =
            self.input.keep(self.pos, size).map_err(|e| stopped(self.archive, self.pos, e))?;
        if count < size {
            return Err(self.cut_short(name, size, count));
        }
        self.pos += count;
        self.skip_padding(size)?;
        Ok(at)
    }

    fn cut_short(&self, name: &[u8], size: u64, have: u64) -> SourceError {
        let name = name.escape_ascii();
        let what =
            format!("the archive is cut short: \"{name}\" needs {size} bytes, {have} are left");
        self.bad(self.pos, what)
    }

    fn bad(&self, offset: u64, what: String) -> SourceError {
        SourceError::Archive { archive: self.archive.into(), offset, what }
    }

    fn member(
        &mut self,
        offset: u64,
        block: &Block,
        header: Header,
        pending: Pending,
    ) -> Result<Member, SourceError> {
        let Pending { mut pax, long_name, long_link } = pending;
        let name = [pax.sparse.name.take(), pax.path.take(), long_name]
            .into_iter()
            .flatten()
            .next()
            .unwrap_or(header.name);
        let link = [pax.link.take(), long_link].into_iter().flatten().next().unwrap_or(header.link);
        let shown = name.escape_ascii().to_string();
        let fault = |what: String| SourceError::Archive {
            archive: self.archive.into(),
            offset,
            what: format!("\"{shown}\": {what}"),
        };
        let at = |sec| Time { sec, nsec: 0 };
        let mtime = pax.mtime.or(self.global.mtime).unwrap_or(at(header.mtime));

        let kind = match header.typeflag {
            // Before POSIX, a directory was an ordinary member with a slash at the end.
            b'0' | 0 | b'7' if name.ends_with(b"/") => Kind::Dir,
            b'0' | 0 | b'7' | b'S' => Kind::File,
            b'1' => {
                // Whatever the size says, no data follows: so write and read GNU tar, libarchive
                // and the rest.
                return Ok(Member { offset, name, mtime, what: What::HardLink { target: link } });
            }
            b'2' => Kind::Symlink,
            b'3' => Kind::Char,
            b'4' => Kind::Block,
            b'5' | b'D' => Kind::Dir,
            b'6' => Kind::Fifo,
            b'M' => return Err(fault("continues from another volume; join the volumes".into())),
            other => {
                let kind = other.escape_ascii();
                return Err(fault(format!("is of a kind that is not known: '{kind}'")));
            }
        };
        let id = |value: i64, what: &str| {
            // The highest number means "no change" to the kernel and cannot be an owner.
            let id = u32::try_from(value).ok().filter(|&id| id != u32::MAX);
            id.ok_or_else(|| fault(format!("{what} {value} is not between 0 and 4294967294")))
        };
        let uid = id(pax.uid.or(self.global.uid).unwrap_or(header.uid), "owner")?;
        let gid = id(pax.gid.or(self.global.gid).unwrap_or(header.gid), "group")?;
        let mut rdev = (0, 0);
        if matches!(kind, Kind::Char | Kind::Block) {
            let major = pax.device_major.unwrap_or(header.device.0);
            let minor = pax.device_minor.unwrap_or(header.device.1);
            // The kernel has 12 bits for the major number and 20 for the minor.
            rdev = match (u32::try_from(major), u32::try_from(minor)) {
                (Ok(major), Ok(minor)) if major < 1 << 12 && minor < 1 << 20 => (major, minor),
                _ => return Err(fault(format!("device number {major}:{minor} is out of range"))),
            };
        }
        let atime = pax.atime.or(self.global.atime).or(header.atime.map(at)).unwrap_or(mtime);
        let ctime = pax.ctime.or(self.global.ctime).or(header.ctime.map(at)).unwrap_or(mtime);
        let xattrs = attributes(&mut pax).map_err(fault)?;
        let mut kept = flags::sort(kind, pax.flags);
        kept.lost.append(&mut pax.lost);
        if kind == Kind::Symlink && !(1..=4095).contains(&link.len()) {
            let len = link.len();
            return Err(fault(format!("a symbolic link of {len} bytes; it must have 1 to 4095")));
        }
        if kind == Kind::Symlink && link.contains(&0) {
            let link = link.escape_ascii();
            return Err(fault(format!("\"{link}\" cannot be where a symbolic link leads")));
        }

        let stored = pax.size.unwrap_or(header.size);
        let layout = match kind {
            Kind::File => self.layout(offset, block, header.typeflag, &name, stored, &pax)?,
            // A GNU incremental dump lists the directory here, an old-style directory is an
            // ordinary member. For the other kinds the size means nothing.
            Kind::Dir if header.typeflag != b'5' => {
                self.skip(&name, stored)?;
                Layout { size: 0, locator: 0, runs: None }
            }
            _ => Layout { size: link.len() as u64, locator: 0, runs: None },
        };
        let attributes = Attributes {
            kind,
            mode: mode_with_list(header.mode, &xattrs),
            uid,
            gid,
            mtime,
            atime,
            ctime,
            size: match kind {
                Kind::File | Kind::Symlink => layout.size,
                _ => 0,
            },
            rdev,
            target: if kind == Kind::Symlink { link } else { Vec::new() },
            xattrs,
            locator: layout.locator,
            runs: layout.runs,
            flags: kept.flags,
            project: kept.project,
            lost: kept.lost,
        };
        Ok(Member { offset, name, mtime, what: What::File(attributes) })
    }

    /// Finds, and for a stream keeps, the data of a file, sparse or not.
    fn layout(
        &mut self,
        offset: u64,
        block: &Block,
        typeflag: u8,
        name: &[u8],
        stored: u64,
        pax: &Pax,
    ) -> Result<Layout, SourceError> {
        let sparse = &pax.sparse;
        let mut stored = stored;
        let (map, size) = if let Some(major) = sparse.major {
            let minor = sparse.minor.unwrap_or(0);
            match (major, minor) {
                (1, 0) => {
                    let (map, used) = self.map_in_data(offset, name, stored)?;
                    stored -= used;
                    (map, sparse.size)
                }
                (0, _) => (sparse.map.clone().unwrap_or_default(), sparse.size),
                _ => {
                    let what = format!("sparse format {major}.{minor} is not known");
                    return Err(self.member_fault(offset, name, &what));
                }
            }
        } else if let Some(map) = &sparse.map {
            (map.clone(), sparse.size)
        } else if typeflag == b'S' {
            let (map, size) = self.old_gnu_map(offset, name, block)?;
            (map, Some(size))
        } else {
            return Ok(Layout { size: stored, locator: self.keep(name, stored)?, runs: None });
        };
        let Some(size) = size else {
            return Err(self.member_fault(offset, name, "a sparse file without its size"));
        };
        let locator = self.keep(name, stored)?;
        match data_runs(&map, size, stored, locator) {
            Ok(runs) => Ok(Layout { size, locator, runs: Some(runs) }),
            Err(what) => Err(self.member_fault(offset, name, &what)),
        }
    }

    fn member_fault(&self, offset: u64, name: &[u8], what: &str) -> SourceError {
        self.bad(offset, format!("\"{}\": {what}", name.escape_ascii()))
    }

    fn old_gnu_map(
        &mut self,
        offset: u64,
        name: &[u8],
        block: &Block,
    ) -> Result<(Vec<SparseRun>, u64), SourceError> {
        let bad = "its list of sparse runs has a number that cannot be";
        let Some((mut map, mut more, size)) = gnu_sparse(block) else {
            return Err(self.member_fault(offset, name, bad));
        };
        while more {
            let mut block = [0; BLOCK];
            let count = self.read(&mut block)?;
            if count < BLOCK {
                return Err(self.cut_short(name, BLOCK as u64, count as u64));
            }
            let Some((runs, again)) = gnu_sparse_more(&block) else {
                return Err(self.member_fault(offset, name, bad));
            };
            map.extend(runs);
            more = again;
        }
        Ok((map, size))
    }

    /// Format 1.0: decimal numbers, one per line, in front of the data and padded to a block: how
    /// many runs, then offset and length of each. Also returns how many bytes that took.
    fn map_in_data(
        &mut self,
        offset: u64,
        name: &[u8],
        stored: u64,
    ) -> Result<(Vec<SparseRun>, u64), SourceError> {
        let mut map = Vec::new();
        let mut used = 0;
        let mut line = Vec::new();
        let mut count: Option<u64> = None;
        let mut run_offset = None;
        loop {
            let mut block = [0; BLOCK];
            if used + BLOCK as u64 > stored.next_multiple_of(BLOCK as u64) {
                let what = "its list of sparse runs is longer than its data";
                return Err(self.member_fault(offset, name, what));
            }
            let have = self.read(&mut block)?;
            if have < BLOCK {
                return Err(self.cut_short(name, stored, used + have as u64));
            }
            used += BLOCK as u64;
            for byte in block {
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > 20 {
                        let what = "its list of sparse runs has no lines of numbers";
                        return Err(self.member_fault(offset, name, what));
                    }
                    continue;
                }
                let Some(value) = decimal(&line) else {
                    let what = "its list of sparse runs has a number that cannot be";
                    return Err(self.member_fault(offset, name, what));
                };
                line.clear();
                match (count, run_offset.take()) {
                    (None, _) => count = Some(value),
                    (Some(_), None) => run_offset = Some(value),
                    (Some(_), Some(start)) => map.push((start, value)),
                }
                if count == Some(map.len() as u64) {
                    // The map ends here and is padded to a block, the data to another.
                    return Ok((map, used.min(stored)));
                }
            }
        }
    }
}

/// Checks a map of sparse runs and says where each lies, one after the other from `locator`.
fn data_runs(
    map: &[SparseRun],
    size: u64,
    stored: u64,
    locator: u64,
) -> Result<Vec<DataRun>, String> {
    let mut runs: Vec<DataRun> = Vec::new();
    let mut end = 0;
    let mut used = 0u64;
    for &(offset, len) in map {
        let run_end = offset.checked_add(len).filter(|&run_end| run_end <= size);
        let Some(run_end) = run_end.filter(|_| offset >= end) else {
            return Err(format!(
                "sparse run of {len} bytes at {offset} overlaps another or passes the end, {size}"
            ));
        };
        let at = locator.saturating_add(used);
        used = used.saturating_add(len);
        match runs.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => runs.push(DataRun { offset, len, locator: at }),
        }
        end = run_end;
    }
    if used != stored {
        return Err(format!("sparse runs of {used} bytes, but {stored} bytes are stored"));
    }
    Ok(runs)
}

/// The mode of a member that may have an access list. The two have nine bits in common, which are
/// the list's, as when both are extracted: Linux sets the mode by the list, and does not ask a list
/// where the mode gives the group nothing. libarchive writes the owning group's into the mode,
/// where everybody else has the mask.
fn mode_with_list(mode: u16, xattrs: &XattrSet) -> u16 {
    let list = xattrs.iter().find(|(name, _)| **name == *b"system.posix_acl_access");
    // What is no list is named later, with the path that it has in the image.
    match list.and_then(|(_, value)| Acl::decode_xattr(value).ok()) {
        Some(acl) => (mode & !0o777) | acl.equivalent_mode().0,
        None => mode,
    }
}

/// The extended attributes of a member; of two with one name, the last counts.
fn attributes(pax: &mut Pax) -> Result<XattrSet, String> {
    let lists = [
        (&b"system.posix_acl_access"[..], &pax.acl_access),
        (b"system.posix_acl_default", &pax.acl_default),
    ];
    let mut all: XattrSet = Vec::new();
    for (name, text) in lists {
        // The attribute itself has numbers, where GNU tar writes names into the text.
        let is_there = pax.xattrs.iter().any(|(other, _)| **other == *name);
        if let Some(text) = text
            && !is_there
            && let Some(value) = acl::to_kernel(text)?
        {
            all.push((name.into(), value.into()));
        }
    }
    all.append(&mut pax.xattrs);
    // Stable, so that the last of equal names stays last.
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.reverse();
    all.dedup_by(|later, kept| later.0 == kept.0);
    all.reverse();
    Ok(all)
}
