//! `extant extract`: files of an image into a directory of the host.
//!
//! # Trust
//!
//! Names and links come from the image, so nothing is ever opened by path below the destination:
//! each directory is opened relative to its parent without following links, files are created
//! with `O_EXCL`, and attributes are set through the open file. A name that is already there as
//! something else is an error, never followed.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use extant::{FileKind, FsError, Inode, Mapping, MappingKind, Metadata, Timestamp, WalkEntry};
use rustc_hash::FxHashMap;
use rustix::fs::{
    self, AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags, makedev,
};
use rustix::io::Errno;

use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::{Failures, Image, ImageArgs};
use crate::interrupt;
use crate::output::complain;
use crate::text::escape;

/// Bytes read and written at once.
const CHUNK_BYTES: u64 = 4 << 20;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant extract root.img out/\n  extant extract root.img:/etc out/etc\n  extant extract root.img:/etc/passwd passwd\n  extant extract --no-same-owner root.img:/home home/\n";

/// Copy files out of an image
///
/// What is in a directory goes into DEST, which is created if it is missing; any other file becomes
/// DEST, or goes into it if DEST is a directory. Modes, times, hard links, holes and extended
/// attributes are restored; owners, devices and privileged attributes as root or with
/// --same-owner. Nothing outside DEST is touched, whatever the image holds.
///
/// Directories that exist in DEST are filled up and get the image's attributes. A file that exists
/// is an error, named, and the rest goes on (exit code 1); --force replaces it. A symbolic link in
/// DEST where the image has a directory is never followed.
#[derive(Args, Debug)]
pub(crate) struct ExtractArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Directory, or name of the file
    #[arg(value_name = "DEST", default_value = ".")]
    dest: PathBuf,
    /// Replace files that exist
    #[arg(long, short = 'F')]
    force: bool,
    /// Restore owners, devices and privileged attributes; the default for root
    #[arg(long, overrides_with = "no_same_owner")]
    same_owner: bool,
    /// Leave them to the user who runs this; the default for everyone else
    #[arg(long)]
    no_same_owner: bool,
    /// Print nothing but errors
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// What was left out on purpose, for the note at the end.
#[derive(Default)]
struct Omitted {
    owners: u64,
    devices: u64,
    xattrs: u64,
}

/// A directory being filled; its attributes are set when it is full.
struct Level {
    dir: OwnedFd,
    inode: Inode,
    path: Vec<u8>,
}

struct Extractor<'a> {
    image: &'a Image,
    force: bool,
    privileged: bool,
    /// Where inodes with several names were put first: names below the destination.
    links: FxHashMap<u32, Vec<Vec<u8>>>,
    omitted: Omitted,
    failures: Failures,
    buffer: Vec<u8>,
}

/// Why one file was not restored. The others go on.
enum Trouble {
    /// The image.
    Fs(FsError),
    /// The host: what was tried.
    Host(&'static str, Errno),
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Trouble {
        Trouble::Fs(error)
    }
}

fn host(doing: &'static str) -> impl Fn(Errno) -> Trouble {
    move |errno| Trouble::Host(doing, errno)
}

/// Runs the command.
pub(crate) fn run(args: &ExtractArgs) -> Result<Exit> {
    let image = args.image.open()?;
    let inode = image.resolve_link()?;
    interrupt::listen()?;
    // Deep trees keep a directory open for each level.
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, ..limits };
    // Only very deep trees notice if this is refused, and say so.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    let is_root = rustix::process::geteuid().is_root();
    let mut extractor = Extractor {
        image: &image,
        force: args.force,
        privileged: args.same_owner || (is_root && !args.no_same_owner),
        links: FxHashMap::default(),
        omitted: Omitted::default(),
        failures: Failures::default(),
        buffer: Vec::new(),
    };
    if inode.is_dir() {
        extractor.tree(&args.dest)?;
    } else {
        extractor.single(&inode, &args.dest)?;
    }
    if !args.quiet {
        extractor.omitted.note();
    }
    Ok(extractor.failures.exit())
}

impl Omitted {
    fn note(&self) {
        let parts = [
            (self.owners, "owners (and set-id bits)"),
            (self.devices, "devices"),
            (self.xattrs, "privileged extended attributes"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if !parts.is_empty() {
            complain(&format!("note: not restored, which needs root: {}", parts.join(", ")));
        }
    }
}

fn open_dir(dest: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    fs::openat(CWD, dest, flags, Mode::empty()).map_err(|errno| {
        let error = std::io::Error::from(errno);
        Failure::caused(io_exit(&error), &format!("cannot open {}", dest.display()), &error)
    })
}

impl Extractor<'_> {
    fn report(&mut self, path: &[u8], trouble: Trouble) -> Result<()> {
        let failure = match trouble {
            Trouble::Fs(error) => self.image.failure(path, error),
            Trouble::Host(doing, errno) => {
                let error = std::io::Error::from(errno);
                let what = format!("{}: cannot {doing}", self.image.label(path));
                let failure = Failure::caused(io_exit(&error), &what, &error);
                // With no room left, every other file fails alike.
                if failure.exit == Exit::NoSpace {
                    return Err(failure);
                }
                failure
            }
        };
        self.failures.report(&failure);
        Ok(())
    }

    /// One file that is no directory.
    fn single(&mut self, inode: &Inode, dest: &Path) -> Result<()> {
        let own_name = self.image.path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        let own_name = own_name.unwrap_or(b"file").to_vec();
        let (dir, name) = if dest.is_dir() {
            (dest.to_owned(), own_name)
        } else {
            let parent = dest.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = dest.file_name().map(OsStrExt::as_bytes).map(<[u8]>::to_vec);
            let name =
                name.ok_or_else(|| Failure::usage(format!("{}: no name", dest.display())))?;
            (parent.unwrap_or(Path::new(".")).to_owned(), name)
        };
        let dir = open_dir(&dir)?;
        let path = self.image.path.clone();
        if let Err(trouble) = self.file(&dir, &name, inode) {
            if interrupt::requested() {
                return Err(Failure::new(Exit::Interrupted, "interrupted"));
            }
            self.report(&path, trouble)?;
        }
        Ok(())
    }

    /// Everything in the directory asked for.
    fn tree(&mut self, dest: &Path) -> Result<()> {
        if let Err(errno) = fs::mkdirat(CWD, dest, Mode::from(0o700))
            && errno != Errno::EXIST
        {
            let error = std::io::Error::from(errno);
            let what = format!("cannot create {}", dest.display());
            return Err(Failure::caused(io_exit(&error), &what, &error));
        }
        let root = open_dir(dest)?;
        let start = self.image.path.clone();
        let walk = self.image.fs.walk(&start).map_err(|e| self.image.failure(&start, e))?;
        let mut levels: Vec<Level> = Vec::new();
        // A directory that could not be made: what is in it is passed over.
        let mut skipped: Option<usize> = None;
        for item in walk {
            if interrupt::requested() {
                return Err(interrupted(dest));
            }
            let found = match item {
                Ok(found) => found,
                Err(error) => {
                    self.report(&error.path, Trouble::Fs(error.error))?;
                    continue;
                }
            };
            let depth = found.depth();
            if skipped.is_some_and(|above| depth > above) {
                continue;
            }
            skipped = None;
            while levels.len() > depth {
                self.leave(levels.pop())?;
            }
            let made = self.entry(&root, &levels, &found);
            match made {
                Ok(Some(dir)) => {
                    let (inode, path) = (found.inode().clone(), found.path().to_vec());
                    levels.push(Level { dir, inode, path });
                }
                Ok(None) => {}
                Err(_) if interrupt::requested() => return Err(interrupted(dest)),
                Err(trouble) => {
                    if found.inode().is_dir() {
                        skipped = Some(depth);
                    }
                    self.report(found.path(), trouble)?;
                }
            }
        }
        while let Some(level) = levels.pop() {
            self.leave(Some(level))?;
        }
        Ok(())
    }

    /// Sets the attributes of a directory that is full.
    fn leave(&mut self, level: Option<Level>) -> Result<()> {
        let Some(level) = level else { return Ok(()) };
        let done = self.attributes(level.dir.as_fd(), &level.inode);
        done.or_else(|trouble| self.report(&level.path, trouble))
    }

    /// Makes what the walk found; gives back an open directory if it is one.
    fn entry(
        &mut self,
        root: &OwnedFd,
        levels: &[Level],
        found: &WalkEntry,
    ) -> Result<Option<OwnedFd>, Trouble> {
        let inode = found.inode();
        let Some(parent) = levels.last() else {
            // The start itself: the destination.
            return root.try_clone().map(Some).map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Trouble::Host("open the destination", errno)
            });
        };
        let name = found.name();
        if inode.is_dir() {
            return make_dir(&parent.dir, name).map(Some);
        }
        let meta = inode.metadata();
        if meta.links > 1 {
            let names: Vec<Vec<u8>> = found.path()[self.image.path.len()..]
                .split(|byte| *byte == b'/')
                .filter(|name| !name.is_empty())
                .map(<[u8]>::to_vec)
                .collect();
            if let Some(first) = self.links.get(&meta.ino.0) {
                let first = first.clone();
                return self.link(root, &first, &parent.dir, name).map(|()| None);
            }
            self.file(&parent.dir, name, inode)?;
            self.links.insert(meta.ino.0, names);
            return Ok(None);
        }
        self.file(&parent.dir, name, inode).map(|()| None)
    }

    /// A further name for a file made before.
    fn link(
        &mut self,
        root: &OwnedFd,
        first: &[Vec<u8>],
        dir: &OwnedFd,
        name: &[u8],
    ) -> Result<(), Trouble> {
        let Some((last, above)) = first.split_last() else { return Ok(()) };
        let mut at = root.try_clone().map_err(|_| Trouble::Host("link", Errno::MFILE))?;
        for part in above {
            at = open_below(&at, part).map_err(host("open the directory of its first name"))?;
        }
        self.make_way(dir, name)?;
        fs::linkat(&at, last, dir, name, AtFlags::empty()).map_err(host("link"))
    }

    /// With `--force`, removes a file that is in the way.
    fn make_way(&self, dir: &OwnedFd, name: &[u8]) -> Result<(), Trouble> {
        if !self.force {
            return Ok(());
        }
        match fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Trouble::Host("remove the file in its place", errno)),
        }
    }

    /// A file that is no directory, with its attributes.
    fn file(&mut self, dir: &OwnedFd, name: &[u8], inode: &Inode) -> Result<(), Trouble> {
        let meta = inode.metadata();
        let kind = match meta.kind {
            FileKind::Regular => return self.regular(dir, name, inode),
            FileKind::Directory => return make_dir(dir, name).map(|_| ()),
            FileKind::Symlink => {
                let target = inode.read_link()?;
                self.make_way(dir, name)?;
                fs::symlinkat(target.as_slice(), dir, name).map_err(host("create"))?;
                return self.special_attributes(dir, name, inode);
            }
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
        };
        if meta.rdev.is_some() && !self.privileged {
            self.omitted.devices += 1;
            return Ok(());
        }
        let (major, minor) = meta.rdev.unwrap_or((0, 0));
        self.make_way(dir, name)?;
        fs::mknodat(dir, name, kind, Mode::from(0o600), makedev(major, minor))
            .map_err(host("create"))?;
        self.special_attributes(dir, name, inode)
    }

    fn regular(&mut self, dir: &OwnedFd, name: &[u8], inode: &Inode) -> Result<(), Trouble> {
        self.make_way(dir, name)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(dir, name, flags, Mode::from(0o600)).map_err(host("create"))?;
        let copied = self.contents(&file, inode);
        if copied.is_err() {
            // A file that looks whole and is not would be worse than none.
            let _ = fs::unlinkat(dir, name, AtFlags::empty());
            return copied;
        }
        self.attributes(file.as_fd(), inode)
    }

    /// Copies what is stored; holes stay holes.
    fn contents(&mut self, file: &OwnedFd, inode: &Inode) -> Result<(), Trouble> {
        let size = inode.size();
        let block = u64::from(self.image.fs.block_size().bytes());
        if inode.is_encrypted() {
            return Err(FsError::Encrypted { ino: inode.ino(), what: "contents" }.into());
        }
        for run in inode.map(0..inode.block_len()) {
            let Mapping { file_start, len, kind } = run?;
            if !matches!(kind, MappingKind::Mapped(_) | MappingKind::Inline) {
                continue;
            }
            let mut at = u64::from(file_start.0).saturating_mul(block);
            let end = at.saturating_add(len.saturating_mul(block)).min(size);
            while at < end {
                let want = (end - at).min(CHUNK_BYTES) as usize; // At most CHUNK_BYTES.
                if self.buffer.len() < want {
                    self.buffer.resize(want, 0);
                }
                let read = inode.read_at(at, &mut self.buffer[..want])?;
                if read == 0 {
                    break;
                }
                let mut done = 0;
                while done < read {
                    let offset = at.saturating_add(done as u64);
                    let wrote = rustix::io::pwrite(file, &self.buffer[done..read], offset)
                        .map_err(host("write"))?;
                    done += wrote;
                }
                at = at.saturating_add(read as u64);
                if interrupt::requested() {
                    return Err(Trouble::Host("finish", Errno::INTR));
                }
            }
        }
        fs::ftruncate(file, size).map_err(host("set the size"))
    }

    /// Permissions as far as they may be given: without the owner, set-id bits would hand the
    /// file's powers to somebody else.
    fn mode(&self, meta: &Metadata) -> Mode {
        let mask = if self.privileged { 0o7777 } else { 0o1777 };
        Mode::from(u32::from(meta.permissions) & mask)
    }

    /// Owner, extended attributes, mode and times of an open file or directory, in the order in
    /// which none undoes another: a change of owner drops capabilities, and both change the mode.
    fn attributes(
        &mut self,
        file: std::os::fd::BorrowedFd<'_>,
        inode: &Inode,
    ) -> Result<(), Trouble> {
        let meta = inode.metadata();
        if self.privileged {
            let (uid, gid) = owner(&meta);
            fs::fchown(file, Some(uid), Some(gid)).map_err(host("set the owner"))?;
        } else {
            self.count_owner(&meta);
        }
        fs::fchmod(file, self.mode(&meta)).map_err(host("set the mode"))?;
        self.xattrs(inode, |name, value| fs::fsetxattr(file, name, value, XattrFlags::empty()))?;
        fs::futimens(file, &times(&meta)).map_err(host("set the times"))
    }

    /// The same for what is not opened: links, devices, pipes, sockets.
    fn special_attributes(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        inode: &Inode,
    ) -> Result<(), Trouble> {
        let meta = inode.metadata();
        if self.privileged {
            let (uid, gid) = owner(&meta);
            fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(host("set the owner"))?;
        } else {
            self.count_owner(&meta);
        }
        if meta.kind != FileKind::Symlink {
            // It was created just now, exclusively, by this process.
            fs::chmodat(dir, name, self.mode(&meta), AtFlags::empty())
                .map_err(host("set the mode"))?;
        }
        // The kernel offers these by path only; the directory is named by its descriptor.
        let mut path =
            OsString::from(format!("/proc/self/fd/{}/", std::os::fd::AsRawFd::as_raw_fd(dir)));
        path.push(std::ffi::OsStr::from_bytes(name));
        self.xattrs(inode, |name, value| fs::lsetxattr(&path, name, value, XattrFlags::empty()))?;
        fs::utimensat(dir, name, &times(&meta), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(host("set the times"))
    }

    fn count_owner(&mut self, meta: &Metadata) {
        let own = rustix::process::geteuid().as_raw() == meta.uid
            && rustix::process::getegid().as_raw() == meta.gid;
        self.omitted.owners += u64::from(!own);
    }

    fn xattrs(
        &mut self,
        inode: &Inode,
        set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
    ) -> Result<(), Trouble> {
        for xattr in inode.xattrs()? {
            let open_to_all =
                xattr.name.starts_with(b"user.") || xattr.name.starts_with(b"system.posix_acl");
            if !open_to_all && !self.privileged {
                self.omitted.xattrs += 1;
                continue;
            }
            if let Err(errno) = set(&xattr.name, &xattr.value) {
                let what = format!("inode {}: cannot set {}", inode.ino(), escape(&xattr.name));
                let error = std::io::Error::from(errno);
                self.failures.report(&Failure::caused(io_exit(&error), &what, &error));
            }
        }
        Ok(())
    }
}

fn owner(meta: &Metadata) -> (fs::Uid, fs::Gid) {
    (fs::Uid::from_raw(meta.uid), fs::Gid::from_raw(meta.gid))
}

fn times(meta: &Metadata) -> Timestamps {
    let time = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanos_clamped()),
    };
    Timestamps { last_access: time(meta.atime), last_modification: time(meta.mtime) }
}

/// What a signal leaves behind.
fn interrupted(dest: &Path) -> Failure {
    let dest = dest.display();
    Failure::new(Exit::Interrupted, format!("interrupted; {dest} holds what was restored so far"))
}

/// Opens a directory in `dir`; a symbolic link of that name is refused.
fn open_below(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

/// A directory in `dir`, new or there already, opened.
fn make_dir(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Trouble> {
    match fs::mkdirat(dir, name, Mode::from(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(Trouble::Host("create", errno)),
    }
    open_below(dir, name).map_err(host("open the directory just made"))
}
