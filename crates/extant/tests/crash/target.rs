//! The file system, as the harness wants it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant::{
    AclKind, AlignedBuffer, EncryptionPolicy, Fallocate, FileKind, Fs, Inode, InodeFlags,
    MappedFile, MappingKind, MasterKey, MountOptions, NewInode, RenameFlags, SetAttributes,
    Special, TimeChange, Timestamp, XattrMode,
};
use extant_block::{MemoryDevice, SharedDevice};
use extant_jbd2::Mutations;
use extant_sync::FixedClock;
use extant_testkit::model::{
    self, Content, NewNode, Node, NodeId, Op, Outcome, Path, RenameMode, Rules, Space, Tree, Which,
    XattrWrite,
};
use extant_testkit::proof::Target;

/// Mounts by `extant`, with the same seed every time.
#[derive(Clone, Default)]
pub(crate) struct Extant {
    /// Steps that are left out.
    pub(crate) mutations: Mutations,
    /// Whether the file system may say that it saw errors.
    pub(crate) errors: bool,
    /// Data is written after what points to it is committed.
    pub(crate) publish_before_data: bool,
    /// Memory for contents of files; 0 for what the images need: a larger one has larger tables to make at each of
    /// many thousand mounts.
    pub(crate) data_cache_bytes: u64,
    /// What is freed is discarded.
    pub(crate) discard: bool,
    /// Whether syncs make fast commits.
    pub(crate) makes_fast_commits: bool,
    /// Contents go through the journal.
    pub(crate) data_journal: bool,
    /// Number of mounts that applied fast commits.
    pub(crate) fast: Arc<AtomicU64>,
    /// What is put over the device.
    pub(crate) over: Option<Arc<dyn Fn(SharedDevice) -> SharedDevice + Send + Sync>>,
}

impl Extant {
    fn options(&self, devices: &[SharedDevice], clock: Arc<FixedClock>) -> MountOptions {
        let mut options = MountOptions::new()
            .read_only(false)
            .clock(clock)
            .seed(11)
            .background(false)
            .cache_bytes(64 << 20)
            .mutations(self.mutations)
            .publish_before_data(self.publish_before_data)
            .discard(self.discard)
            .key(key())
            .fast_commits(self.makes_fast_commits)
            .data_journal(self.data_journal);
        options = options.data_cache_bytes(match self.data_cache_bytes {
            0 => 32 << 20,
            bytes => bytes,
        });
        if let Some(journal) = devices.get(1) {
            options = options.journal_device(Arc::clone(journal));
        }
        options
    }
}

/// What a client keeps of a file.
pub(crate) enum Held {
    File(#[expect(dead_code, reason = "that it is there is enough")] Inode),
    Map(MappedFile),
}

type Result<T> = extant::Result<T>;

fn new(node: &NewNode) -> NewInode {
    NewInode { permissions: node.permissions, uid: node.uid, gid: node.gid }
}

/// The name of the directory that histories are in, if it is encrypted or ignores case.
const TOP: &str = "the top";

fn key() -> MasterKey {
    MasterKey::new(&[0x5a; 64]).expect("64 bytes")
}

/// The root of histories.
fn top(fs: &Fs) -> Result<Inode> {
    let root = fs.root()?;
    match root.lookup(TOP) {
        Ok(dir) if dir.is_encrypted() || dir.is_casefold() => Ok(dir),
        Ok(_) | Err(extant::FsError::NotFound { .. }) => Ok(root),
        Err(error) => Err(error),
    }
}

/// The image with a special [`TOP`], which has what is in `source`.
pub(crate) fn with_top(
    device: MemoryDevice,
    is_encrypted: bool,
    folds: bool,
    source: &std::path::Path,
) -> MemoryDevice {
    fn copy(from: &std::path::Path, to: &Inode) {
        let mut entries: Vec<_> =
            std::fs::read_dir(from).unwrap().map(|one| one.unwrap()).collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_str().unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                copy(&path, &to.mkdir(name, &NewInode::root(0o755)).unwrap());
            } else if kind.is_symlink() {
                let target = std::fs::read_link(&path).unwrap();
                let target = target.to_str().unwrap();
                to.symlink(name, target, &NewInode::root(0o777)).unwrap();
            } else {
                let file = to.create(name, &NewInode::root(0o644)).unwrap();
                file.write_at(&std::fs::read(&path).unwrap(), 0).unwrap();
            }
        }
    }
    let device = Arc::new(device);
    let options = MountOptions::new().read_only(false).background(false).seed(11).key(key());
    let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    let dir = fs.root().unwrap().mkdir(TOP, &NewInode::root(0o755)).unwrap();
    if folds {
        let flags = dir.flags() | InodeFlags::CASEFOLD;
        dir.set_attributes(&SetAttributes::new().flags(flags)).unwrap();
    }
    if is_encrypted {
        dir.set_encryption_policy(&EncryptionPolicy::new(key().identifier())).unwrap();
    }
    let dir = top(&fs).unwrap();
    copy(source, &dir);
    drop(dir);
    fs.unmount().unwrap();
    device.snapshot()
}

fn find(fs: &Fs, names: &[Vec<u8>]) -> Result<Inode> {
    let mut at = top(fs)?;
    for name in names {
        at = at.lookup(name)?;
    }
    Ok(at)
}

/// Writes the first bytes through the cache, up to a whole sector, or the whole sectors past it.
fn write_sectors(inode: &Inode, bytes: &[u8], at: u64) -> Result<usize> {
    const SECTOR: u64 = 512;
    let before = (at.next_multiple_of(SECTOR) - at) as usize;
    let whole = bytes.len() & !(SECTOR as usize - 1);
    if before > 0 || whole == 0 || inode.direct_alignment().is_none() {
        let first = if before > 0 { before } else { bytes.len() };
        return inode.write_at(&bytes[..first.min(bytes.len())], at);
    }
    let mut sectors = AlignedBuffer::zeroed(whole);
    sectors.copy_from_slice(&bytes[..whole]);
    inode.direct()?.write_at(&sectors, at)
}

/// The directory of a path and its last name.
fn place<'a>(fs: &Fs, path: &'a Path) -> Result<(Inode, &'a [u8])> {
    let (name, parents) = path.split().expect("never the root");
    let dir = find(fs, parents)?;
    if !dir.is_dir() {
        return Err(extant::FsError::NotADirectory { ino: dir.ino(), at: None });
    }
    Ok((dir, name))
}

fn acl_kind(which: Which) -> AclKind {
    match which {
        Which::Access => AclKind::Access,
        Which::Default => AclKind::Default,
    }
}

fn run(fs: &Fs, slots: &mut HashMap<usize, Held>, op: &Op) -> Result<()> {
    let change = |path: &Path, changes: SetAttributes| find(fs, &path.0)?.set_attributes(&changes);
    match op {
        Op::Create { path, new: node } => {
            let (dir, name) = place(fs, path)?;
            dir.create(name, &new(node)).map(drop)
        }
        Op::Mkdir { path, new: node } => {
            let (dir, name) = place(fs, path)?;
            dir.mkdir(name, &new(node)).map(drop)
        }
        Op::Symlink { path, target, new: node } => {
            let (dir, name) = place(fs, path)?;
            dir.symlink(name, target, &new(node)).map(drop)
        }
        Op::Mknod { path, special, new: node } => {
            let (dir, name) = place(fs, path)?;
            let special = match *special {
                model::Special::Fifo => Special::Fifo,
                model::Special::Socket => Special::Socket,
                model::Special::Char(major, minor) => Special::CharDevice { major, minor },
                model::Special::Block(major, minor) => Special::BlockDevice { major, minor },
            };
            dir.mknod(name, special, &new(node)).map(drop)
        }
        Op::Link { from, to } => {
            let target = find(fs, &from.0)?;
            let (dir, name) = place(fs, to)?;
            dir.link(name, &target)
        }
        Op::Unlink { path } => {
            let (dir, name) = place(fs, path)?;
            dir.unlink(name)
        }
        Op::Rmdir { path } => {
            let (dir, name) = place(fs, path)?;
            dir.rmdir(name)
        }
        Op::Rename { from, to, mode } => {
            let (old_dir, old) = place(fs, from)?;
            let (new_dir, new) = place(fs, to)?;
            let flags = match mode {
                RenameMode::Replace => RenameFlags::empty(),
                RenameMode::NoReplace => RenameFlags::NOREPLACE,
                RenameMode::Exchange => RenameFlags::EXCHANGE,
                RenameMode::Whiteout => RenameFlags::WHITEOUT,
            };
            old_dir.rename(old, &new_dir, new, flags)
        }
        Op::Chmod { path, permissions } => {
            change(path, SetAttributes::new().permissions(*permissions))
        }
        Op::Chown { path, uid, gid } => {
            change(path, SetAttributes::new().owner(Some(*uid), Some(*gid)))
        }
        Op::Utimes { path, atime, mtime } => {
            let to = |seconds| Some(TimeChange::To(Timestamp::new(seconds, 0)));
            change(path, SetAttributes::new().times(to(*atime), to(*mtime)))
        }
        Op::SetXattr { path, name, value, write } => {
            let mode = match write {
                XattrWrite::Any => XattrMode::Any,
                XattrWrite::Create => XattrMode::Create,
                XattrWrite::Replace => XattrMode::Replace,
            };
            find(fs, &path.0)?.set_xattr(name, value, mode)
        }
        Op::RemoveXattr { path, name } => find(fs, &path.0)?.remove_xattr(name),
        Op::SetAcl { path, which, acl } => {
            find(fs, &path.0)?.set_acl(acl_kind(*which), acl.as_ref())
        }
        Op::Truncate { path, size } => find(fs, &path.0)?.truncate(*size),
        Op::SetFlags { path, flags } => {
            let inode = find(fs, &path.0)?;
            let own = InodeFlags::from_bits_retain(Rules::user_flags());
            let flags = inode.flags().difference(own) | InodeFlags::from_bits_retain(*flags);
            inode.set_attributes(&SetAttributes::new().flags(flags))
        }
        Op::SetProject { path, project } => change(path, SetAttributes::new().project(*project)),
        Op::Sync => fs.sync(),
        Op::Fsync { path } => find(fs, &path.0)?.sync(),
        Op::Fdatasync { path } => find(fs, &path.0)?.sync_data(),
        Op::Write { path, offset, len, seed } => {
            let bytes = model::written(*seed, *offset, *len);
            let inode = find(fs, &path.0)?;
            let mut done = 0;
            // The call after a short one says why.
            while done < bytes.len() {
                let (at, rest) = (offset + done as u64, &bytes[done..]);
                done += match seed % 6 {
                    0 => inode.write_direct_at(rest, at)?,
                    3 => write_sectors(&inode, rest, at)?,
                    _ => inode.write_at(rest, at)?,
                };
            }
            Ok(())
        }
        Op::Append { path, len, seed } => {
            let inode = find(fs, &path.0)?;
            let at = inode.size();
            let bytes = model::written(*seed, at, *len);
            assert_eq!(inode.append(&bytes)?, at, "where an append went");
            Ok(())
        }
        Op::Fallocate { path, space, offset, len } => {
            let mode = match *space {
                Space::Allocate { keep_size } => Fallocate::Allocate { keep_size },
                Space::Punch => Fallocate::PunchHole,
                Space::Zero { keep_size } => Fallocate::ZeroRange { keep_size },
                Space::WriteZeroes => Fallocate::WriteZeroes,
                Space::Collapse => Fallocate::CollapseRange,
                Space::Insert => Fallocate::InsertRange,
            };
            find(fs, &path.0)?.fallocate(mode, *offset..offset + len)
        }
        Op::Defrag { path } => {
            let mut go_on = |_| std::ops::ControlFlow::Continue(());
            find(fs, &path.0)?.defragment(&mut go_on).map(drop)
        }
        Op::Map { path, slot, offset, len } => {
            let map = find(fs, &path.0)?.map_shared(model::pages(*offset, *len), true)?;
            slots.insert(*slot, Held::Map(map));
            Ok(())
        }
        Op::Store { path, slot, offset, len, seed } => {
            let pages = model::pages(*offset, *len);
            let bytes = model::written(*seed, *offset, pages.end - offset);
            let store = |map: &MappedFile| map.write(offset - map.range().start, &bytes);
            match slot.and_then(|slot| slots.get(&slot)) {
                Some(Held::Map(map)) => store(map),
                _ => store(&find(fs, &path.0)?.map_shared(pages, true)?),
            }
        }
        Op::Tick { .. } => fs.tick(),
        Op::Hold { path, slot } => {
            slots.insert(*slot, Held::File(find(fs, &path.0)?));
            Ok(())
        }
        Op::Release { slot } => {
            slots.remove(slot);
            Ok(())
        }
    }
}

/// One inode as the model sees it.
fn node(inode: &Inode, rules: &Rules) -> Result<Node> {
    let meta = inode.metadata();
    let mut node = Node::new(meta.kind);
    node.permissions = meta.permissions;
    (node.uid, node.gid, node.links) = (meta.uid, meta.gid, meta.links);
    node.project = meta.project;
    node.flags = meta.flags.bits() & Rules::user_flags();
    node.rdev = meta.rdev;
    if rules.times {
        let crtime = meta.crtime.unwrap_or_default();
        let times = [meta.atime, meta.mtime, meta.ctime, crtime];
        node.times = times.map(|time| (time.seconds, time.nanos));
    }
    for xattr in inode.xattrs()? {
        node.xattrs.insert(xattr.name, xattr.value);
    }
    match meta.kind {
        FileKind::Directory => {}
        FileKind::Symlink => {
            let target = inode.read_link()?;
            // Of an encrypted one the size is that of what is stored.
            node.size = if inode.is_encrypted() { target.len() as u64 } else { meta.size };
            node.target = Some(target);
        }
        FileKind::Regular => {
            node.size = meta.size;
            node.content = if rules.contents { read(inode)? } else { content(inode)? };
        }
        _ => node.size = meta.size,
    }
    Ok(node)
}

/// Contents that need not be on the device.
fn read(inode: &Inode) -> Result<Content> {
    let mut content = Content::new();
    let mut at = 0;
    while let Some(start) = inode.seek_data(at)? {
        let end = inode.seek_hole(start)?.unwrap_or(inode.size());
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        inode.read_at(&mut bytes, start)?;
        content.add(start, &bytes);
        at = end;
    }
    Ok(content)
}

fn content(inode: &Inode) -> Result<Content> {
    let mut content = Content::new();
    let block_bytes = u64::from(inode.fs().block_size().bytes());
    if inode.is_inline() {
        content.add(0, &inode.read_all()?);
        return Ok(content);
    }
    for run in inode.map(0..inode.block_len()) {
        let run = run?;
        if !matches!(run.kind, MappingKind::Mapped(_)) {
            continue;
        }
        let start = u64::from(run.file_start.0) * block_bytes;
        let end = (start + run.len * block_bytes).min(inode.size());
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        inode.read_at(&mut bytes, start)?;
        content.add(start, &bytes);
    }
    Ok(content)
}

fn snapshot(fs: &Fs, rules: &Rules) -> std::result::Result<Tree, String> {
    let say = |at: &[u8], error: extant::FsError| {
        let text = format!("{}: {error}", at.escape_ascii());
        let mut source = std::error::Error::source(&error);
        let mut text = text;
        while let Some(cause) = source {
            text += &format!(": {cause}");
            source = cause.source();
        }
        text
    };
    let root = top(fs).map_err(|error| say(b"/", error))?;
    let mut tree = Tree::new(node(&root, rules).map_err(|error| say(b"/", error))?);
    let mut met: HashMap<u32, NodeId> = HashMap::new();
    let mut pending = vec![(root, tree.root())];
    while let Some((dir, id)) = pending.pop() {
        for entry in dir.read_dir().map_err(|error| say(b"a directory", error))? {
            let entry = entry.map_err(|error| say(b"a directory", error))?;
            let name = entry.name().to_vec();
            let inode = entry.inode().map_err(|error| say(&name, error))?;
            if entry.kind().is_some_and(|kind| kind != inode.kind()) {
                return Err(format!("{}: the entry's kind is wrong", name.escape_ascii()));
            }
            let child = match met.get(&inode.ino().0) {
                Some(child) => *child,
                None => tree.add(node(&inode, rules).map_err(|error| say(&name, error))?),
            };
            if met.insert(inode.ino().0, child).is_none() && inode.is_dir() {
                pending.push((inode, child));
            }
            if tree.node_mut(id).entries.insert(name.clone(), child).is_some() {
                return Err(format!("{}: listed twice", name.escape_ascii()));
            }
        }
    }
    Ok(tree)
}

impl Target for Extant {
    type Fs = Fs;
    type Handle = Held;

    fn mount(
        &self,
        devices: &[SharedDevice],
        clock: Arc<FixedClock>,
    ) -> std::result::Result<Fs, String> {
        let options = self.options(devices, clock);
        let device = Arc::clone(&devices[0]);
        let device = self.over.as_ref().map_or(device.clone(), |over| over(device));
        let fs = options.open_shared(device).map_err(|error| in_full(&error))?;
        let fast = fs.replayed().is_some_and(|replay| replay.fast_commits > 0);
        self.fast.fetch_add(u64::from(fast), Ordering::Relaxed);
        Ok(fs)
    }

    fn apply(&self, fs: &Fs, slots: &mut HashMap<usize, Held>, op: &Op) -> Outcome {
        run(fs, slots, op).map_err(|error| {
            if std::env::var_os("EXTANT_TRACE").is_some() {
                eprintln!("{op}: {}", in_full(&error));
            }
            match error {
                // A failure of the device, as far as the model knows.
                extant::FsError::DeviceFull(_) => 5,
                error => error.errno(),
            }
        })
    }

    fn snapshot(&self, fs: &Fs, rules: &Rules) -> std::result::Result<Tree, String> {
        snapshot(fs, rules)
    }

    fn unmount(&self, fs: Fs) -> std::result::Result<(), String> {
        fs.unmount().map_err(|error| in_full(&error))
    }

    fn check(&self, devices: &[MemoryDevice]) -> std::result::Result<bool, String> {
        let options = extant_check::CheckOptions {
            require_clean_state: !self.errors,
            ..extant_check::CheckOptions::default()
        };
        let report = extant_check::check(&devices[0], &options).map_err(|e| in_full(&e))?;
        let lines: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        let is_left = |line: &String| {
            line.ends_with("in use without links, and not an orphan")
                // Of a file that was being cut off; what was its next orphan stays in its dtime.
                || line.ends_with("but blocks behind it hold data")
                || line.contains(": dtime is ")
        };
        if lines.is_empty() {
            return Ok(true);
        }
        // As Linux, a mount deletes and cuts off no orphans after errors: e2fsck does.
        if self.errors && report.state.has_errors && lines.iter().all(is_left) {
            return Ok(false);
        }
        Err(lines.into_iter().take(10).collect::<Vec<_>>().join("\n"))
    }
}

/// An error and its causes.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
