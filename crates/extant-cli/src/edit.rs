//! Commands on several paths: one mount for each image, every failure named, one exit code.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use extant::{AclKind, Family, Fs, FsError, Inode, KeySpec, MountOptions, NewInode};
use extant_block::{FileDevice, OpenError, SharedDevice};
use extant_format::features::{Compat, Incompat};
use extant_sync::{Clock, SystemClock};

use crate::accounts::OwnerSpec;
use crate::exit::{Exit, Failure, Result};
use crate::image::{self, ReadArgs, mount_failure, note_journal_error, window};
use crate::in_use::{loop_device_of, with_mount};
use crate::interrupt;
use crate::keys::KeyArgs;
use crate::output::{complain, report};
use crate::seal::{Part, SealArgs};
use crate::size::parse_bytes;
use crate::source::{SourceArgs, SourceError};
use crate::target::epoch;
use crate::text::escape;

/// Where in the file the file system is that is to be changed.
#[derive(Args, Clone, Debug)]
pub(crate) struct EditArgs {
    /// The file system begins that many bytes into the file.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR).
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    /// Device or file with the journal, for an image whose journal is not inside it.
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    journal_device: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    seal: SealArgs,
}

impl EditArgs {
    /// The image is the whole file.
    pub(crate) fn is_all(&self) -> bool {
        self.offset.is_none() && self.partition.is_none()
    }

    /// Opens what the image in `file` is on, for changes of its structures.
    pub(crate) fn device(&self, file: &Path) -> Result<SharedDevice> {
        let name = escape(file.as_os_str().as_bytes());
        if let Some(holder) = loop_device_of(self.source.written(file)) {
            let message = format!("{name} is in use: the kernel has it as {holder}");
            return Err(Failure::new(Exit::Refused, message).hint(format!(
                "unmount it and detach it (losetup -d {holder}), or give {holder} itself"
            )));
        }
        let device = self.source.open_read_write(file).map_err(|error| {
            let is_locked = matches!(error, SourceError::Open(OpenError::Locked { .. }));
            let failure = image::opening(error, file);
            if is_locked {
                let place = (self.source.written(file), self.partition, self.offset);
                return with_mount(failure, place, |dir| {
                    format!("change its files there, or extant umount {dir} first")
                });
            }
            match &failure.hint {
                Some(_) if is_read_only(file) => {
                    failure.hint("the command changes the image: it needs to be writable")
                }
                _ => failure,
            }
        })?;
        let looks = !self.seal.break_seal;
        Part::of(device, self.offset, self.partition, looks)?.unsealed(&name)
    }

    /// Opens what the image in `file` is on, for a look.
    pub(crate) fn device_read_only(&self, file: &Path) -> Result<SharedDevice> {
        let device = self.source.open_read_only(file);
        let device = device.map_err(|error| image::opening(error, file))?;
        window(device, self.offset, self.partition)
    }

    /// Returns whether options are given that only images have.
    pub(crate) fn is_for_images(&self) -> bool {
        self.offset.is_some() || self.partition.is_some() || self.journal_device.is_some()
    }

    /// Opens the image in `file` for changes. What its journal holds is brought in first.
    pub(crate) fn open(&self, file: &Path) -> Result<(Fs, String)> {
        let name = escape(file.as_os_str().as_bytes());
        let device = self.device(file)?;
        let mut options = MountOptions::new().read_only(false);
        if let Some(epoch) = epoch(None)? {
            options = self.at_epoch(options, file, epoch)?;
        }
        if let Some(journal) = &self.journal_device {
            options = options.journal_device(FileDevice::open_read_write(journal)?);
        }
        options = self.keys.apply(options)?;
        let at_start = self.offset.is_none() && self.partition.is_none();
        let opened = options.open(Arc::clone(&device)).map_err(FsError::from);
        let fs = opened.map_err(|error| self.failed(error, &name, &device, at_start))?;
        note_journal_error(&fs, &name);
        let orphans = fs.recovered_orphans();
        if orphans.is_some_and(|orphans| orphans.list_ignored || orphans.damaged > 0) {
            complain(&format!(
                "{name}: note: what a crash left without a name could not all be removed; \
                 extant repair does that"
            ));
        }
        Ok((fs, name))
    }

    /// Why an image cannot be opened, with options that commands which change images have.
    fn failed(&self, error: FsError, name: &str, device: &SharedDevice, at_start: bool) -> Failure {
        let hint = match &error {
            FsError::Journal(_) | FsError::JournalDevice(_) if error.family() == Family::Damage => {
                let given = self.journal_device.as_ref().map(|path| {
                    format!(" --journal-device {}", escape(path.as_os_str().as_bytes()))
                });
                let given = given.unwrap_or_default();
                Some(format!("extant repair{given} {name} brings in what can be brought in of it"))
            }
            _ => None,
        };
        let failure = mount_failure(error, name, device, at_start);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl EditArgs {
    /// Returns the name of the one key that was given.
    pub(crate) fn only_key(&self) -> Result<KeySpec> {
        self.keys.read()?.only()
    }

    /// Opens the image in `file` for a look, before it is changed.
    pub(crate) fn open_read_only(&self, file: &Path) -> Result<(Fs, String)> {
        let how = ReadArgs {
            offset: self.offset,
            partition: self.partition,
            journal_device: self.journal_device.clone(),
            keys: self.keys.clone(),
            source: self.source.clone(),
            ..ReadArgs::default()
        };
        how.open_or(file, &|error, name, device, at_start| {
            self.failed(error, name, device, at_start)
        })
    }
}

impl EditArgs {
    /// Lets changes carry the time `epoch`, and everything that is drawn follow from what the image
    /// holds: the same commands then make the same bytes.
    fn at_epoch(&self, options: MountOptions, file: &Path, epoch: i64) -> Result<MountOptions> {
        let options = options.clock(Arc::new(EpochClock(epoch)));
        let (fs, _) = self.open_read_only(file)?;
        let superblock = fs.superblock();
        if fs.features().has_incompat(Incompat::MMP) {
            // Hosts tell each other apart by what they draw.
            return Ok(options);
        }
        let [low, ..] = superblock.uuid;
        let seed = epoch.cast_unsigned()
            ^ superblock.kbytes_written.rotate_left(24)
            ^ u64::from(superblock.mount_count).rotate_left(48)
            ^ u64::from(superblock.free_inodes_count).rotate_left(12)
            ^ u64::from(low);
        Ok(options.seed(seed))
    }
}

/// A clock that shows one time for ever.
#[derive(Debug)]
struct EpochClock(i64);

impl Clock for EpochClock {
    fn now(&self) -> (i64, u32) {
        (self.0, 0)
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn sleep(&self, time: Duration) {
        SystemClock.sleep(time);
    }
}

fn is_read_only(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.permissions().readonly())
}

/// What became of the changes so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    done: u64,
    /// Directories that were made and are not yet full.
    begun: u64,
    /// Something was changed that counts as failed.
    changed: bool,
    failed: u64,
    /// Code of the first failure.
    first: Option<Exit>,
    /// The device failed: going on makes no sense.
    broken: bool,
    interrupted: bool,
}

impl Tally {
    /// One change was made.
    pub(crate) fn done(&mut self) {
        self.done += 1;
    }

    /// A directory was made, and is to be filled.
    pub(crate) fn begun(&mut self) {
        self.begun += 1;
    }

    /// One of them is full.
    pub(crate) fn ended(&mut self) {
        self.begun = self.begun.saturating_sub(1);
    }

    /// Something that failed has left a change behind.
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }

    /// Returns how many were named.
    pub(crate) fn failures(&self) -> u64 {
        self.failed
    }

    /// Names one thing that could not be done.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        report(failure);
        self.failed += 1;
        self.first = self.first.or(Some(failure.exit));
        self.broken |= matches!(failure.exit, Exit::Io | Exit::BrokenPipe);
    }

    /// Names a mount that did not end as it should. The first failure has the exit code if what was done may be gone.
    pub(crate) fn unended(&mut self, unended: &Unended) {
        self.failed(&unended.failure);
        self.broken |= unended.stopped || unended.failure.exit == Exit::Image;
    }

    /// Counts a failure that says nothing about the paths after it, even if reading failed.
    pub(crate) fn failed_alone(&mut self, failure: &Failure) {
        let broken = self.broken;
        self.failed(failure);
        self.broken = broken;
    }

    /// One or the other.
    pub(crate) fn note(&mut self, result: Result<()>) {
        match result {
            Ok(()) => self.done(),
            Err(failure) => self.failed(&failure),
        }
    }

    /// Returns whether to leave the rest undone. It is asked only while something is left.
    pub(crate) fn stops(&mut self) -> bool {
        if interrupt::requested() && !self.interrupted {
            self.interrupted = true;
            let number = match self.done {
                0 => String::new(),
                done => format!(", {done} in number"),
            };
            let unfinished = match self.begun {
                0 => String::new(),
                1 => "; 1 directory that was made is not full".to_owned(),
                begun => format!("; {begun} directories that were made are not full"),
            };
            let message = match (self.done, self.begun, self.changed) {
                (0, 0, false) => "interrupted: nothing was changed".to_owned(),
                _ => format!("interrupted: what was done before stays{number}{unfinished}"),
            };
            report(&Failure::new(Exit::Interrupted, message));
        }
        self.interrupted || self.broken
    }

    /// Returns whether a signal has asked to stop, which [`stops`](Self::stops) will say.
    pub(crate) fn is_interrupted(&self) -> bool {
        interrupt::requested()
    }

    /// Success; the code of the first failure when nothing was done; else
    /// [`Exit::Partial`].
    pub(crate) fn exit(&self) -> Exit {
        match self.first {
            _ if self.interrupted => Exit::Interrupted,
            None => Exit::Success,
            Some(first) if self.done == 0 || self.broken => first,
            Some(_) => Exit::Partial,
        }
    }
}

/// An image that is open, while a command works on its paths.
pub(crate) struct Session<'a> {
    pub(crate) fs: Fs,
    /// The image's name.
    pub(crate) name: String,
    pub(crate) tally: &'a mut Tally,
}

impl Session<'_> {
    /// `path` as messages name it, with the image.
    pub(crate) fn label(&self, path: &[u8]) -> String {
        image::label(&self.name, path)
    }

    /// Names the path in an error.
    pub(crate) fn failure(&self, path: &[u8], error: FsError) -> Failure {
        if let FsError::ReadOnly = error {
            // It was open for changes: damage has ended that, and was named when it was met.
            let message = "not done: after the failure before, nothing more is changed";
            return Failure::new(Exit::Io, format!("{}: {message}", self.label(path)));
        }
        image::failure(&self.name, path, error)
    }

    /// `result`, with the path named in its error.
    pub(crate) fn at<T>(&self, path: &[u8], result: Result<T, FsError>) -> Result<T> {
        result.map_err(|error| self.failure(path, error))
    }

    /// The file at `path`, a symbolic link in the last place followed or not.
    pub(crate) fn find(&self, path: &[u8], follow: bool) -> Result<Inode> {
        let found = if follow { self.fs.resolve(path) } else { self.fs.resolve_link(path) };
        self.at(path, found)
    }

    /// What is at `path`, if anything is.
    pub(crate) fn look(&self, path: &[u8], follow: bool) -> Result<Option<Inode>> {
        let found = if follow { self.fs.resolve(path) } else { self.fs.resolve_link(path) };
        match found {
            Ok(inode) => Ok(Some(inode)),
            Err(FsError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failure(path, error)),
        }
    }

    /// Returns whether `path` is a directory to put something into. A link that cannot be followed is none.
    pub(crate) fn is_directory(&self, path: &[u8], follow: bool) -> Result<bool> {
        let found = if follow { self.fs.resolve(path) } else { self.fs.resolve_link(path) };
        match found {
            Ok(inode) => Ok(inode.is_dir()),
            Err(
                FsError::NotFound { .. }
                | FsError::NotADirectory { .. }
                | FsError::SymlinkLoop { .. },
            ) => Ok(false),
            Err(error) => Err(self.failure(path, error)),
        }
    }

    /// Ends a writable mount. If that fails, the first failure has the exit code all the same.
    fn close(self) {
        let Session { fs, name, tally } = self;
        if let Err(unended) = close(fs, &name) {
            tally.unended(&unended);
        }
    }

    /// Calls `each` for `path` and, if it is a directory, for all that is in it. Failures are noted
    /// and the walk goes on. Symbolic links are not followed, except `path` itself with `follow`.
    pub(crate) fn walk(
        &mut self,
        path: &[u8],
        follow: bool,
        mut each: impl FnMut(&mut Self, &[u8], &Inode) -> Result<()>,
    ) -> Result<()> {
        let start = match follow {
            true => self.at(path, self.fs.canonicalize(path))?,
            false => path.to_vec(),
        };
        let walk = self.at(path, self.fs.walk(&start))?;
        for entry in walk.sorted(true) {
            if self.tally.stops() {
                break;
            }
            match entry {
                Ok(entry) => {
                    let result = each(self, entry.path(), entry.inode());
                    self.tally.note(result);
                }
                Err(error) => {
                    let failure = self.failure(&error.path, error.error);
                    self.tally.failed(&failure);
                }
            }
        }
        Ok(())
    }
}

/// The paths of each image, in the order given.
pub(crate) fn by_image(targets: &[OsString]) -> Vec<(PathBuf, Vec<Vec<u8>>)> {
    let mut images: Vec<(PathBuf, Vec<Vec<u8>>)> = Vec::new();
    for target in targets {
        let (file, path) = image::split(target);
        match images.iter_mut().find(|(known, _)| *known == file) {
            Some((_, paths)) => paths.push(path),
            None => images.push((file, vec![path])),
        }
    }
    images
}

/// Reads with `each` at every target. What it prints is its own affair.
pub(crate) fn read_each(
    targets: &[OsString],
    open: impl Fn(&Path) -> Result<(Fs, String)>,
    each: impl FnMut(&mut Session<'_>, &[u8]) -> Result<()>,
) -> Result<Exit> {
    let mut tally = Tally::default();
    run(&mut tally, targets, open, each, false);
    Ok(tally.exit())
}

/// Changes every target with `each`, one by one: a failure is named and the others are done all
/// the same. All of one image is durable when this returns.
pub(crate) fn edit_each(
    args: &EditArgs,
    targets: &[OsString],
    each: impl FnMut(&mut Session<'_>, &[u8]) -> Result<()>,
) -> Result<Exit> {
    interrupt::listen()?;
    let mut tally = Tally::default();
    run(&mut tally, targets, |file| args.open(file), each, true);
    Ok(tally.exit())
}

/// Does `restore` for each file of a dump, below each target: a failure is named, and the others
/// are done all the same.
pub(crate) fn restore_each<T>(
    args: &EditArgs,
    targets: &[OsString],
    files: &[T],
    restore: impl Fn(&Session<'_>, &[u8], &T) -> Result<()>,
) -> Result<Exit> {
    edit_each(args, targets, |session, path| {
        for file in files {
            if session.tally.stops() {
                break;
            }
            let result = restore(session, path, file);
            session.tally.note(result);
        }
        Ok(())
    })
}

fn run(
    tally: &mut Tally,
    targets: &[OsString],
    open: impl Fn(&Path) -> Result<(Fs, String)>,
    mut each: impl FnMut(&mut Session<'_>, &[u8]) -> Result<()>,
    writes: bool,
) {
    for (file, paths) in by_image(targets) {
        if tally.stops() {
            break;
        }
        let (fs, name) = match open(&file) {
            Ok(opened) => opened,
            Err(failure) => {
                tally.failed(&failure);
                // Another image may be sound.
                tally.broken = false;
                continue;
            }
        };
        let mut session = Session { fs, name, tally: &mut *tally };
        for path in paths {
            if session.tally.stops() {
                break;
            }
            let (failed, done) = (session.tally.failed, session.tally.done);
            match each(&mut session, &path) {
                // A walk has counted for itself.
                Ok(()) if (session.tally.failed, session.tally.done) != (failed, done) => {}
                result => session.tally.note(result),
            }
        }
        if writes {
            session.close();
        }
    }
}

/// Runs one change that concerns several paths of the image in `file`.
pub(crate) fn edit_one(
    args: &EditArgs,
    file: &Path,
    change: impl FnOnce(&mut Session<'_>) -> Result<()>,
) -> Result<Exit> {
    interrupt::listen()?;
    let (fs, name) = args.open(file)?;
    let mut tally = Tally::default();
    let mut session = Session { fs, name, tally: &mut tally };
    if let Err(failure) = change(&mut session) {
        session.tally.failed(&failure);
    }
    session.close();
    Ok(tally.exit())
}

/// A writable mount that did not end as it should.
#[derive(Debug)]
pub(crate) struct Unended {
    failure: Failure,
    /// The journal stopped for it, and nobody knows what is stored of what was done.
    stopped: bool,
}

impl From<Unended> for Failure {
    fn from(unended: Unended) -> Failure {
        unended.failure
    }
}

/// Ends a writable mount.
pub(crate) fn close(fs: Fs, name: &str) -> Result<(), Unended> {
    let seen = fs.clone();
    fs.unmount().map_err(|error| {
        let stopped = seen.stopped_because().is_some();
        let has_journal = seen.features().has_compat(Compat::HAS_JOURNAL);
        let hint = match &error {
            FsError::DeviceFull(_) if !stopped => {
                "make room there and try again; what fitted is stored"
            }
            _ if !has_journal => {
                "changes may be lost, in part too, since it has no journal: extant repair sets it right"
            }
            FsError::DeviceFull(_) => {
                "make room there and try again; changes may be lost, each as a whole"
            }
            _ => "changes may be lost, each as a whole; the next use replays the journal",
        };
        Unended { failure: Failure::from(error).about(name).hint(hint), stopped }
    })
}

impl NewArgs {
    /// Owner and group of what is made; `None` when nothing was asked for.
    pub(crate) fn given(&self, fs: &Fs) -> Result<Option<(u32, u32)>> {
        let Some(owner) = &self.owner else { return Ok(None) };
        let (uid, gid) = owner.resolve(fs)?;
        Ok(Some((uid.unwrap_or(0), gid.unwrap_or(0))))
    }

    /// Returns whether an owner was asked for.
    pub(crate) fn is_given(&self) -> bool {
        self.owner.is_some()
    }
}

/// Options of commands that make something.
#[derive(Args, Clone, Debug)]
pub(crate) struct NewArgs {
    /// Owner and group of what is made, names as in the image; root when left out
    #[arg(long, value_name = "USER[:GROUP]", value_parser = OwnerSpec::parse)]
    owner: Option<OwnerSpec>,
}

impl NewArgs {
    /// Owner and permissions of a new inode at `path`. Without `exact`, `usual` is what it gets
    /// where the directory has no default ACL; one that it has takes the place of the umask.
    pub(crate) fn inode(
        &self,
        session: &Session<'_>,
        path: &[u8],
        exact: Option<u16>,
        usual: u16,
    ) -> Result<NewInode> {
        let owner = self.given(&session.fs)?;
        let mut permissions = usual;
        if let Some(exact) = exact {
            permissions = exact;
        } else if has_default_acl(&session.fs, path) {
            permissions |= (usual & 0o444) >> 1;
        }
        let mut new = NewInode::root(permissions);
        (new.uid, new.gid) = owner.unwrap_or((0, 0));
        Ok(new)
    }
}

/// Returns whether the directory that `path` is in gives ACLs to what is made in it. One that cannot
/// be read is not asked; making something in it will say why.
fn has_default_acl(fs: &Fs, path: &[u8]) -> bool {
    let dir = fs.resolve(parent(path)).ok();
    dir.and_then(|dir| dir.acl(AclKind::Default).ok()).flatten().is_some()
}

/// The path of the directory that the last name of `path` is in.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    let end = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    match path[..end].iter().rposition(|byte| *byte == b'/') {
        Some(slash) if slash > 0 => &path[..slash],
        _ => b"/",
    }
}

/// The last name of `path`, without slashes; empty for the root.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or(b"")
}

/// `name` in the directory `dir`.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use extant_block::{FaultDevice, FaultPlan, OperationKind};

    use super::*;

    #[test]
    fn paths_come_apart_at_their_last_name() {
        for (path, dir, name) in [
            ("/", "/", ""),
            ("/a", "/", "a"),
            ("/a/", "/", "a"),
            ("/a/b//", "/a", "b"),
            ("/a//b", "/a/", "b"),
        ] {
            assert_eq!(parent(path.as_bytes()), dir.as_bytes(), "{path}");
            assert_eq!(last_name(path.as_bytes()), name.as_bytes(), "{path}");
        }
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(join(b"/a", b"x"), b"/a/x");
    }

    #[test]
    fn what_a_full_disk_kept_from_the_log_is_no_partial_success() {
        let dir = extant_testkit::tempdir().unwrap();
        let path = dir.path().join("a.img");
        extant_testkit::require!(extant_testkit::oracle::mke2fs(&path, "8M", &["-text4"]));
        let device = Arc::new(extant_testkit::image::load(&path));
        // ENOSPC of every write from some point on: one write later each time.
        let (mut stopped, mut kept) = (0, 0);
        for first in 0..40 {
            let plan = FaultPlan {
                exactly: vec![(OperationKind::Write, first, u64::MAX - first)],
                errno: 28,
                ..FaultPlan::default()
            };
            let fault = Arc::new(FaultDevice::new(Arc::new(device.snapshot()), plan));
            let options = MountOptions::new().read_only(false).background(false);
            let Ok(fs) = options.open_shared(Arc::clone(&fault) as SharedDevice) else { continue };
            let made = fs.root().and_then(|root| root.mkdir("made", &NewInode::root(0o755)));
            if made.is_err() {
                continue;
            }
            let mut tally = Tally::default();
            tally.done();
            let Err(unended) = close(fs, "a.img") else { break };
            tally.unended(&unended);
            if unended.stopped {
                stopped += 1;
                assert_eq!(tally.exit(), Exit::NoSpace, "write {first}");
                let hint = format!("{:?}", unended.failure);
                assert!(hint.contains("changes may be lost"), "write {first}: {hint}");
            } else {
                kept += 1;
                assert_eq!(tally.exit(), Exit::Partial, "write {first}");
            }
        }
        assert!(stopped > 0, "{stopped} {kept}");
    }

    #[test]
    fn the_exit_code_says_whether_anything_was_done() {
        let tally = |done, failed: Option<Exit>, broken| Tally {
            done,
            begun: 0,
            changed: false,
            failed: u64::from(failed.is_some()),
            first: failed,
            broken,
            interrupted: false,
        };
        assert_eq!(tally(3, None, false).exit(), Exit::Success);
        assert_eq!(tally(0, Some(Exit::NotFound), false).exit(), Exit::NotFound);
        assert_eq!(tally(3, Some(Exit::NotFound), false).exit(), Exit::Partial);
        assert_eq!(tally(3, Some(Exit::Io), true).exit(), Exit::Io);
    }
}
