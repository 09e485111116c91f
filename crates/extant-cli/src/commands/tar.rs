//! `extant tar`: files of an image as a tar archive.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Args;
use extant::{AclKind, FileKind, Inode, Timestamp};
use extant_image::output::{Existing, Output, existing};
use extant_image::signature::{Class, PROBE_BYTES, recognise};
use rustc_hash::FxHashMap;

use crate::acl_text::entries_text;
use crate::archive::{Archive, Header, Kind, Record, map_entry_len};
use crate::exit::{Exit, Failure, Result};
use crate::image::{Failures, Image, ImageArgs};
use crate::interrupt;
use crate::output::{complain, stdout};
use crate::text::escape;

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant tar root.img > root.tar\n  extant tar root.img:/etc | tar -tvf -\n  extant tar root.img | zstd > root.tar.zst\n  extant tar -o home.tar root.img:/home\n";

/// Write files of an image as a tar archive
///
/// The archive has everything: owners, devices, hard links, holes, times to the nanosecond, extended
/// attributes, access control lists and capabilities, in the POSIX (pax) format that GNU tar, libarchive
/// and extant build read. The same image gives the same bytes. Names are relative to the directory that was
/// asked for. What is encrypted comes out as it is read with the key (--key-file). Sockets have no form in an archive: they are named and left out, with exit code 1.
#[derive(Args, Debug)]
pub(crate) struct TarArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Write to a file, which appears when it is complete, instead of standard output (-)
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &TarArgs) -> Result<Exit> {
    let image = args.image.open()?;
    let start = image.resolve_link()?;
    match args.output.as_deref().filter(|name| *name != "-") {
        Some(path) => {
            let output = archive_output(Path::new(path))?;
            let file = io::BufWriter::with_capacity(CHUNK_BYTES, output.device().file());
            let failures = write(&image, &start, file)?;
            output.commit()?;
            Ok(failures.exit())
        }
        None => {
            let out = stdout();
            if out.is_terminal() {
                return Err(Failure::usage("an archive is not for a terminal")
                    .hint("extant tar IMG > FILE, or -o FILE"));
            }
            Ok(write(&image, &start, io::BufWriter::with_capacity(CHUNK_BYTES, out))?.exit())
        }
    }
}

/// Begins an archive in a file. An older archive is replaced, but nothing that is read as an image or a disk:
/// `tar -o IMG IMG` is a slip, and what it would take away is all that there is.
pub(crate) fn archive_output(path: &Path) -> Result<Output> {
    let name = escape(path.as_os_str().as_bytes());
    match existing(path)? {
        Existing::Nothing => {}
        Existing::File(_) => {
            let mut head = Vec::with_capacity(PROBE_BYTES);
            let file =
                File::open(path).map_err(|error| Failure::caused(Exit::Io, &name, &error))?;
            file.take(PROBE_BYTES as u64)
                .read_to_end(&mut head)
                .map_err(|error| Failure::caused(Exit::Io, &name, &error))?;
            if let Some(found) = recognise(&head)
                && found.class != Class::Tar
            {
                let message = format!("{name} is {}; no archive takes its place", found.name);
                return Err(Failure::new(Exit::Refused, message)
                    .hint(format!("write to another name, or remove {name} first")));
            }
        }
        _ => return Err(Failure::new(Exit::Refused, format!("{name}: it is no regular file"))),
    }
    // Where files have no unnamed form, what is unfinished has a name, which is taken away on the way out.
    interrupt::listen()?;
    Ok(Output::create(path, 0)?)
}

/// What a signal leaves of an archive in a file. One to standard output ends with the process, at once.
fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted; no archive was made")
}

/// Writes the whole archive.
fn write(image: &Image, start: &Inode, out: impl Write) -> Result<Failures> {
    let mut writer = Writer::new(out);
    if !start.is_dir() {
        let name = image.path.rsplit(|&b| b == b'/').next().unwrap_or(b"file").to_vec();
        writer.member(&image.name, &image.path, &name, start)?;
    } else {
        let walk = image.fs.walk(&image.path).map_err(|e| image.failure(&image.path, e))?;
        let skipped = image.path.len() + usize::from(!image.path.ends_with(b"/"));
        for entry in walk.sorted(true).contents(true) {
            let entry = entry.map_err(|e| image.failure(&e.path, e.error))?;
            let name = entry.path().get(skipped..).unwrap_or_default();
            writer.member(&image.name, entry.path(), name, entry.inode())?;
        }
    }
    writer.finish()
}

/// Writes members, each with all its attributes.
pub(crate) struct Writer<W> {
    archive: Archive<W>,
    /// Names of files that have others, until all of those came.
    links: FxHashMap<u32, (Vec<u8>, u32)>,
    left_out: Failures,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(out: W) -> Writer<W> {
        Writer {
            archive: Archive::new(out),
            links: FxHashMap::default(),
            left_out: Failures::default(),
            buffer: vec![0; CHUNK_BYTES],
        }
    }

    /// Writes the end mark; returns what was left out.
    pub(crate) fn finish(self) -> Result<Failures> {
        self.archive.finish()?;
        Ok(self.left_out)
    }

    /// Writes an empty file: what a whiteout is.
    pub(crate) fn mark(&mut self, name: &[u8]) -> Result<()> {
        let zero = (0, 0);
        Ok(self.archive.header(&Header {
            name,
            kind: Kind::File(0),
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: zero,
            atime: zero,
            ctime: zero,
            records: &[],
        })?)
    }

    /// Writes another name of a file that is there already.
    pub(crate) fn link(&mut self, name: &[u8], target: &[u8], inode: &Inode) -> Result<()> {
        Ok(self.header(name, Kind::Link(target), inode, &[])?)
    }

    /// Writes the file `inode`, which is `path` in the image `image`, as `name`. An empty name is the root.
    pub(crate) fn member(
        &mut self,
        image: &str,
        path: &[u8],
        name: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let failed = |error| crate::image::failure(image, path, error);
        if interrupt::requested() {
            return Err(interrupted());
        }
        let metadata = inode.metadata();
        // Without the key, names and targets are others, and contents none; of an empty directory nothing is missing.
        if let Err(error) = inode.check_key()
            && !(inode.is_dir() && inode.read_dir().map_err(failed)?.next().is_none())
        {
            return Err(failed(error));
        }
        if !inode.is_dir() && metadata.links > 1 {
            let ino = inode.ino().0;
            if let Some((first, left)) = self.links.get_mut(&ino) {
                let first = first.clone();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.links.remove(&ino);
                }
                return self.link(name, &first, inode);
            }
            self.links.insert(ino, (name.to_vec(), metadata.links - 1));
        }
        let records = records(inode).map_err(failed)?;
        let rdev = metadata.rdev.unwrap_or_default();
        match metadata.kind {
            FileKind::Directory => {
                let name = match name {
                    b"" => b"./".to_vec(),
                    name => [name, b"/"].concat(),
                };
                self.header(&name, Kind::Dir, inode, &records)?;
            }
            FileKind::Symlink => {
                let target = inode.read_link().map_err(failed)?;
                self.header(name, Kind::Symlink(&target), inode, &records)?;
            }
            FileKind::CharDevice => {
                self.header(name, Kind::Char(rdev.0, rdev.1), inode, &records)?
            }
            FileKind::BlockDevice => {
                self.header(name, Kind::Block(rdev.0, rdev.1), inode, &records)?
            }
            FileKind::Fifo => self.header(name, Kind::Fifo, inode, &records)?,
            FileKind::Regular => self.file(image, path, name, inode, &records)?,
            _ => {
                self.left_out.count();
                let label = crate::image::label(image, path);
                complain(&format!("{label}: a socket has no form in an archive; it is left out"));
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        image: &str,
        path: &[u8],
        name: &[u8],
        inode: &Inode,
        records: &[Record],
    ) -> Result<()> {
        let size = inode.size();
        // Once to count, so that no list of runs is kept, however many there are.
        let (mut runs, mut map, mut data, mut end) = (0u64, 0u64, 0u64, 0u64);
        each_run(inode, |from, len| {
            runs += 1;
            map += map_entry_len(from) + map_entry_len(len);
            data += len;
            end = from + len;
            Ok(())
        })
        .map_err(|error| error.into_failure(image, path))?;
        // GNU tar makes a file as long as its map says, whatever the header does: a hole at the end needs
        // an empty run behind it.
        let ends_in_hole = end < size;
        if ends_in_hole {
            runs += 1;
            map += map_entry_len(size) + map_entry_len(0);
        }
        if data >= size {
            self.header(name, Kind::File(size), inode, records)?;
        } else {
            self.header(name, Kind::Sparse { size, runs, map, data }, inode, records)?;
            self.archive.map_start(runs)?;
            let archive = &mut self.archive;
            each_run(inode, |from, len| Ok(archive.map_entry(from, len)?))
                .map_err(|error| error.into_failure(image, path))?;
            if ends_in_hole {
                self.archive.map_entry(size, 0)?;
            }
            self.archive.pad()?;
        }
        let (archive, buffer) = (&mut self.archive, &mut self.buffer);
        each_run(inode, |from, len| {
            let mut at = from;
            let end = from + len;
            while at < end {
                let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
                let chunk = buffer.get_mut(..count).unwrap_or_default();
                if interrupt::requested() {
                    return Err(Stop::Interrupted);
                }
                let read = inode.read_at(chunk, at)?;
                if read == 0 {
                    return Err(Stop::Short(at));
                }
                archive.data(chunk.get(..read).unwrap_or_default())?;
                at += read as u64;
            }
            Ok(())
        })
        .map_err(|error| error.into_failure(image, path))?;
        Ok(self.archive.pad()?)
    }

    fn header(
        &mut self,
        name: &[u8],
        kind: Kind<'_>,
        inode: &Inode,
        records: &[Record],
    ) -> io::Result<()> {
        let metadata = inode.metadata();
        let time = |time: Timestamp| (time.seconds, time.nanos);
        self.archive.header(&Header {
            name,
            kind,
            mode: u32::from(metadata.permissions),
            uid: metadata.uid,
            gid: metadata.gid,
            mtime: time(metadata.mtime),
            atime: time(metadata.atime),
            ctime: time(metadata.ctime),
            records,
        })
    }
}

/// Why contents are not written.
enum Stop {
    Fs(extant::FsError),
    Output(io::Error),
    Short(u64),
    Interrupted,
}

impl From<extant::FsError> for Stop {
    fn from(error: extant::FsError) -> Stop {
        Stop::Fs(error)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Output(error)
    }
}

impl Stop {
    fn into_failure(self, image: &str, path: &[u8]) -> Failure {
        match self {
            Stop::Fs(error) => crate::image::failure(image, path, error),
            Stop::Output(error) => Failure::output(error),
            Stop::Interrupted => interrupted(),
            Stop::Short(at) => {
                let label = crate::image::label(image, path);
                Failure::new(Exit::Image, format!("{label}: it ends at byte {at}, before its size"))
            }
        }
    }
}

/// Calls `each` for every run of data: offset and length.
fn each_run(
    inode: &Inode,
    mut each: impl FnMut(u64, u64) -> std::result::Result<(), Stop>,
) -> std::result::Result<(), Stop> {
    let (mut at, end) = (0, inode.size());
    while at < end {
        let Some(from) = inode.seek_data(at)?.filter(|from| *from < end) else { return Ok(()) };
        let to = inode.seek_hole(from)?.unwrap_or(end).min(end);
        if to <= from {
            return Ok(());
        }
        each(from, to - from)?;
        at = to;
    }
    Ok(())
}

/// Extended attributes and access control lists, as records of an extended header.
fn records(inode: &Inode) -> std::result::Result<Vec<Record>, extant::FsError> {
    let mut records = Vec::new();
    let mut xattrs = inode.xattrs()?;
    xattrs.sort_by(|a, b| a.name.cmp(&b.name));
    for (kind, name, key) in [
        (AclKind::Access, &b"system.posix_acl_access"[..], &b"SCHILY.acl.access"[..]),
        (AclKind::Default, b"system.posix_acl_default", b"SCHILY.acl.default"),
    ] {
        if xattrs.iter().any(|xattr| xattr.name == name)
            && let Some(acl) = inode.acl(kind)?
        {
            records.push((key.to_vec(), entries_text(&acl).join(",").into_bytes()));
            xattrs.retain(|xattr| xattr.name != name);
        }
    }
    for xattr in xattrs {
        records.push(([b"SCHILY.xattr.", &*escaped(&xattr.name)].concat(), xattr.value));
    }
    Ok(records)
}

/// A name of an attribute as GNU tar has it in a key, which ends at the first `=`. `%` is escaped
/// only where the name would be taken for an escape: most readers know of none.
fn escaped(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, behind)) = rest.split_first() {
        match rest {
            [b'=', ..] => out.extend(b"%3D"),
            [b'%', b'3', b'D', ..] | [b'%', b'2', b'5', ..] => out.extend(b"%25"),
            _ => out.push(byte),
        }
        rest = behind;
    }
    out
}
