//! extant and the kernel take turns on one image, with and without a cut in between.
//!
//! An image cut off under one of them is replayed three times: by the kernel's mount, by
//! `e2fsck -fy`, and by extant's mount for writing. All three must leave the same tree, and what is
//! left must be clean. Images of the kernel are copies of the backing file of a busy loop mount,
//! made between two looks at the device's counters: if nothing was written meanwhile, the copy is
//! what a power cut would have left at that moment. Images of extant come from a recording device.
//!
//! `EXTANT_SEED` chooses other operations, `EXTANT_KIND` one kind of image by a part of its name.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path as OsPath, PathBuf};
use std::sync::Arc;

use extant::{FileKind, Fs, MountOptions, Statfs};
use extant_base::Prng;
use extant_block::{MemoryDevice, RecordingDevice, SharedDevice, Survival};
use extant_sync::{Clock, FixedClock, SystemClock};
use extant_testkit::kernel::{Kernel, snapshot};
use extant_testkit::model::{
    Generator, Model, NewNode, Node, Op, Path, Profile, RenameMode, Rules, Tree,
};
use extant_testkit::oracle::{LoopMount, Tool, e2fsck_as, mke2fs, print_skip, root};
use extant_testkit::proof::{EPOCH, Target as _, env};
use extant_testkit::{image, require, tempdir};
use rustix::mount::MountFlags;

use crate::target;
use target::{Extant, Held, in_full};

/// What is compared between two ways to replay.
const ALL: Rules =
    Rules { times: true, crtime: true, project: false, full: false, contents: false };
/// What operations are followed by: the kernel's clock cannot be foreseen.
const TIMELESS: Rules = Rules { times: false, ..ALL };
/// Copies that must be tried again because something was written meanwhile.
const COPIES_MAX: usize = 100;

/// One kind of image.
struct Kind {
    name: &'static str,
    arguments: &'static [&'static str],
    /// How the kernel mounts it.
    mount: &'static str,
    /// The journal is a file system of its own.
    external: bool,
}

impl Kind {
    const fn new(name: &'static str, arguments: &'static [&'static str]) -> Kind {
        Kind { name, arguments, mount: "", external: false }
    }

    fn is_fast(&self) -> bool {
        self.name.starts_with("fast commit")
    }
}

const KINDS: &[Kind] = &[
    Kind::new("default", &["-t", "ext4"]),
    Kind::new("1K blocks", &["-t", "ext4", "-b", "1024", "-J", "size=1"]),
    Kind::new("orphan file", &["-t", "ext4", "-b", "1024", "-O", "orphan_file"]),
    Kind::new("fast commit", &["-t", "ext4", "-b", "1024", "-O", "fast_commit"]),
    Kind::new("fast commit, orphan file", &["-t", "ext4", "-O", "fast_commit,orphan_file"]),
    Kind::new("no checksums", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]),
    Kind::new("quota", &["-t", "ext4", "-b", "1024", "-O", "quota", "-E", "quotatype=usrquota"]),
    Kind { mount: "data=journal", ..Kind::new("data journal", &["-t", "ext4", "-b", "1024"]) },
    Kind { external: true, ..Kind::new("external journal", &["-t", "ext4", "-b", "1024"]) },
    Kind::new("ext3", &["-t", "ext3", "-b", "1024"]),
];

/// Kinds of the long tests only.
const MORE: &[Kind] = &[
    Kind::new("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"]),
    Kind::new("inline data", &["-t", "ext4", "-O", "inline_data"]),
    Kind::new("large attributes", &["-t", "ext4", "-b", "1024", "-O", "ea_inode,orphan_file"]),
    Kind::new("small inodes", &["-t", "ext4", "-b", "1024", "-I", "128"]),
    Kind::new("quota of groups", &["-t", "ext4", "-O", "quota,project", "-I", "256"]),
    Kind::new("fast commit, no checksums", &["-t", "ext4", "-O", "fast_commit,^metadata_csum"]),
    Kind {
        external: true,
        ..Kind::new(
            "external journal, orphan file",
            &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
        )
    },
];

/// The kinds that were asked for.
fn kinds(more: bool) -> impl Iterator<Item = &'static Kind> {
    let wanted = std::env::var("EXTANT_KIND").unwrap_or_default();
    let more = if more { MORE } else { &[] };
    KINDS.iter().chain(more).filter(move |kind| kind.name.contains(&wanted))
}

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn attach(file: &OsPath) -> Result<Loop, String> {
        let output = Tool::find("losetup")?.command().args(["--find", "--show"]).arg(file).output();
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err("needs a loop device".to_owned());
        }
        Ok(Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Ok(tool) = Tool::find("losetup") {
            let _ = tool.command().arg("--detach").arg(&self.0).status();
        }
    }
}

/// A file system mounted by the kernel, with its journal if that is beside it.
struct Mounted {
    // Unmounted before the journal is detached.
    mount: LoopMount,
    journal: Option<Loop>,
}

impl Mounted {
    /// Makes what was done so far durable, here only.
    fn sync(&self) {
        rustix::fs::syncfs(File::open(self.mount.path()).unwrap()).unwrap();
    }

    /// Writes that its devices have done; `None` while some are under way.
    fn writes(&self) -> Option<Vec<String>> {
        let devices = [Some(self.mount.device()), self.journal.as_ref().map(|j| j.0.as_str())];
        let mut found = Vec::new();
        for device in devices.into_iter().flatten() {
            let name = device.trim_start_matches("/dev/");
            let text = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
            // Requests and sectors written, requests in flight.
            let words: Vec<&str> = text.split_whitespace().collect();
            if words[8] != "0" {
                return None;
            }
            found.push(format!("{} {}", words[4], words[6]));
        }
        Some(found)
    }

    /// Copies the files `from` of the mounted image as they are at one moment.
    fn cut(&self, from: &Files, to: &Files) -> Result<(), String> {
        for _ in 0..COPIES_MAX {
            let before = self.writes();
            from.copy_to(to);
            if before.is_some() && self.writes() == before {
                return Ok(());
            }
        }
        Err("the kernel never stopped writing".to_owned())
    }
}

/// The image and its journal, if that is beside it.
#[derive(Clone)]
struct Files {
    image: PathBuf,
    journal: Option<PathBuf>,
}

impl Files {
    fn at(dir: &OsPath, name: &str, external: bool) -> Files {
        let journal = external.then(|| dir.join(format!("{name}.journal")));
        Files { image: dir.join(format!("{name}.image")), journal }
    }

    /// A new file system. The error is the reason to skip.
    fn make(dir: &OsPath, name: &str, kind: &Kind) -> Result<Files, String> {
        let files = Files::at(dir, name, kind.external);
        let mut arguments = kind.arguments.to_vec();
        let on;
        let mut attached = None;
        if let Some(journal) = &files.journal {
            mke2fs(journal, "2M", &["-b", "1024", "-O", "journal_dev"])?;
            let device = attached.insert(Loop::attach(journal)?);
            on = format!("device={}", device.0);
            arguments.extend(["-J", &on]);
        }
        mke2fs(&files.image, "24M", &arguments)?;
        Ok(files)
    }

    fn each(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.image).chain(&self.journal)
    }

    fn copy_to(&self, other: &Files) {
        for (from, to) in self.each().zip(other.each()) {
            fs::copy(from, to).unwrap();
        }
    }

    /// Mounts by the kernel.
    fn mount(&self, options: &str) -> Result<Mounted, String> {
        let journal = self.journal.as_deref().map(Loop::attach).transpose()?;
        let mut options = options.to_owned();
        if let Some(journal) = &journal {
            options += &format!(",journal_path={}", journal.0);
        }
        let options = options.trim_start_matches(',');
        let mount = LoopMount::new(&self.image, MountFlags::empty(), options)?;
        Ok(Mounted { mount, journal })
    }

    fn load(&self) -> Vec<MemoryDevice> {
        self.each().map(|file| image::load(file)).collect()
    }

    fn save(&self, devices: &[MemoryDevice]) {
        for (file, device) in self.each().zip(devices) {
            let _ = fs::remove_file(file);
            image::save(device, file);
        }
    }

    /// Whether this kernel mounts the image: it may have been built without quota.
    fn suits_kernel(&self) -> Result<bool, String> {
        let device = Loop::attach(&self.image)?;
        let dir = tempdir().map_err(|error| error.to_string())?;
        let flags = MountFlags::empty();
        let mounted = rustix::mount::mount(device.0.as_str(), dir.path(), "ext4", flags, c"");
        if mounted.is_ok() {
            let flags = rustix::mount::UnmountFlags::empty();
            rustix::mount::unmount(dir.path(), flags).unwrap();
        }
        Ok(mounted.is_ok())
    }

    /// Asserts that e2fsck finds nothing to mend.
    fn assert_clean(&self, what: &str) -> Result<(), String> {
        let mut report = self.fsck("-fn")?;
        // Which loop device the journal was on is of no interest.
        let hint = |line: &&str| !line.starts_with("Superblock hint for external superblock");
        report.text = report.text.lines().filter(hint).collect::<Vec<_>>().join("\n");
        assert!(report.is_clean(), "{what}: {}", report.text);
        Ok(())
    }

    /// What e2fsck says in the given mode.
    fn fsck(&self, mode: &str) -> Result<extant_testkit::oracle::FsckReport, String> {
        let mut arguments = Vec::new();
        let name;
        if let Some(journal) = &self.journal {
            name = journal.display().to_string();
            arguments.extend(["-j", &name]);
        }
        e2fsck_as(&self.image, mode, &arguments)
    }
}

/// What one way to replay left.
struct After {
    tree: Tree,
    totals: Statfs,
}

impl After {
    fn of(fs: &Fs) -> After {
        let mut totals = fs.statfs().unwrap();
        let superblock = fs.superblock();
        // e2fsck writes files of quotas anew, as short as they can be.
        for ino in [superblock.user_quota_inode, superblock.group_quota_inode] {
            if ino.0 != 0 {
                let sectors = fs.inode(ino).unwrap().metadata().blocks;
                totals.blocks_free += sectors * 512 / u64::from(totals.block_bytes);
                totals.blocks_available = 0;
            }
        }
        After { tree: tree_of(fs), totals }
    }
}

fn tree_of(fs: &Fs) -> Tree {
    Extant::default().snapshot(fs, &ALL).unwrap_or_else(|text| panic!("{text}"))
}

/// What extant sees on devices that nobody has mounted; no journal is left to be replayed.
fn look(what: &str, devices: &[MemoryDevice]) -> After {
    let mut options = MountOptions::new();
    if let Some(journal) = devices.get(1) {
        options = options.journal_device(journal.snapshot());
    }
    let fs =
        options.open(devices[0].snapshot()).unwrap_or_else(|e| panic!("{what}: {}", in_full(&e)));
    assert_eq!(fs.replayed(), None, "{what}: the journal is clean");
    assert_eq!(fs.superblock().last_orphan, 0, "{what}: an orphan is left");
    After::of(&fs)
}

/// What there was to be replayed: a test without any tests nothing.
#[derive(Default, Debug)]
struct Work {
    cuts: u32,
    transactions: u32,
    fast_commits: u32,
    orphans: usize,
    /// Images that e2fsck does not replay.
    stale: u32,
}

fn mount_by_extant(devices: &[Arc<MemoryDevice>]) -> Fs {
    let shared: Vec<SharedDevice> = devices.iter().map(|d| Arc::clone(d) as SharedDevice).collect();
    let clock = Arc::new(FixedClock::at(EPOCH + 10_000_000, 0));
    Extant::default().mount(&shared, clock).unwrap_or_else(|text| panic!("{text}"))
}

fn forget_times(tree: &mut Tree, of: impl Fn(&Node) -> bool) {
    for (_, id) in tree.paths() {
        if of(tree.node(id)) {
            tree.node_mut(id).times = [(0, 0); 4];
        }
    }
}

/// Asserts that two ways to replay `files` left the same; `exact` when the counts of blocks and the
/// times of directories must be the same, too.
fn same(what: &str, ours: &After, theirs: &After, exact: bool) {
    let mut trees = [ours.tree.clone(), theirs.tree.clone()];
    if !exact {
        trees.iter_mut().for_each(|tree| forget_times(tree, Node::is_dir));
    }
    let lines = trees[0].differences(&trees[1]);
    assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
    assert_eq!(trees[0].fingerprint(), trees[1].fingerprint(), "{what}");
    if exact {
        assert_eq!(ours.totals, theirs.totals, "{what}");
    }
}

/// e2fsck 1.47.0 gives up where Linux stops reading: fast commits of a transaction that was since
/// written whole are still in their area, and whole transactions follow. It does so with images of
/// the kernel, too.
const STALE: &str = "Invalid argument while recovering journal";

/// And now and then it leaves a superblock that it does not read again, after its replay of fast commits.
/// Its doing: extant has looked at the checksum before by then, in the image and in its log, and the kernel
/// mounts the same.
const LOST_SUPERBLOCK: &str =
    "Superblock checksum does not match superblock while trying to re-open";

/// What e2fsck mends after every crash: totals of the superblock are written at unmount only, and
/// the mark of orphans stays until somebody cleans up.
const USUAL: &[&str] = &[
    "Free blocks count wrong (",
    "Free inodes count wrong (",
    "Feature orphan_present is set but orphan file is clean.",
    "Orphan file (",
    "Superblock hint for external superblock",
];

/// What e2fsck mends after its own replay of fast commits, where descriptors have no checksums: it
/// made these marks itself, also in images of the kernel.
const AFTER_FAST_COMMITS: &str = "marked uninitialized without feature set.";

/// What else e2fsck says that it mended, perhaps after fast commits.
fn mended(text: &str, fast: bool) -> Vec<&str> {
    let mut found = Vec::new();
    let mut before = "";
    for line in text.lines() {
        let is_usual = |line: &str| {
            USUAL.iter().any(|usual| line.starts_with(usual))
                || fast && line.ends_with(AFTER_FAST_COMMITS)
        };
        let usual = is_usual(line) || is_usual(before);
        if !usual && (line.contains("? yes") || line.contains("wrong") || line.contains("QUOTA")) {
            found.push(line);
        }
        before = line;
    }
    found
}

/// Replays the image `cut` in all ways, that of the kernel if it can. Asserts that all leave the same and
/// nothing to mend.
fn replay_everywhere(
    what: &str,
    dir: &OsPath,
    cut: &Files,
    by_kernel: bool,
    work: &mut Work,
) -> Result<(), String> {
    work.cuts += 1;
    let external = cut.journal.is_some();
    // First in memory only: what is shown must be what the others make durable.
    let devices = cut.load();
    let mut options = MountOptions::new();
    if let Some(journal) = devices.get(1) {
        options = options.journal_device(journal.snapshot());
    }
    let fs =
        options.open(devices[0].snapshot()).unwrap_or_else(|e| panic!("{what}: {}", in_full(&e)));
    let shown = After::of(&fs);
    let summary = fs.replayed().cloned();
    drop(fs);
    let fast = summary.as_ref().is_some_and(|summary| summary.fast_commits > 0);
    if let Some(summary) = summary {
        work.transactions += summary.transactions;
        work.fast_commits += summary.fast_commits;
    }
    // By extant.
    let devices: Vec<Arc<MemoryDevice>> = devices.into_iter().map(Arc::new).collect();
    let fs = mount_by_extant(&devices);
    if let Some(orphans) = fs.recovered_orphans() {
        work.orphans += (orphans.deleted + orphans.shortened) as usize;
    }
    fs.unmount().unwrap_or_else(|e| panic!("{what}: {}", in_full(&e)));
    let devices: Vec<MemoryDevice> = devices.iter().map(|device| device.snapshot()).collect();
    let ours = Files::at(dir, "ours", external);
    ours.save(&devices);
    ours.assert_clean(&format!("{what}, after extant"))?;
    Extant::default().check(&devices).unwrap_or_else(|text| panic!("{what}: {text}"));
    let ours = look(what, &devices);
    // By e2fsck.
    let copy = Files::at(dir, "fsck", external);
    cut.copy_to(&copy);
    let report = copy.fsck("-fy")?;
    if report.text.contains(STALE) || fast && report.text.contains(LOST_SUPERBLOCK) {
        work.stale += 1;
    } else {
        let mended = mended(&report.text, fast);
        assert!(
            report.status.is_some_and(|status| status <= 1) && mended.is_empty(),
            "{what}, e2fsck -fy: {mended:?}\n{}",
            report.text
        );
        let fsck = look(&format!("{what}, after e2fsck"), &copy.load());
        same(&format!("{what}: extant | e2fsck"), &ours, &fsck, !fast);
    }
    // By the kernel.
    if by_kernel {
        let copy = Files::at(dir, "kernel", external);
        cut.copy_to(&copy);
        drop(copy.mount("")?);
        let what = format!("{what}, after the kernel");
        let kernel = look(&what, &copy.load());
        copy.assert_clean(&what)?;
        same(&format!("{what}: extant | kernel"), &ours, &kernel, !fast);
    }
    let shown = After { totals: ours.totals, ..shown };
    same(&format!("{what}: shown | extant"), &shown, &ours, !fast);
    Ok(())
}

/// What a fast commit can say: anything else in a transaction makes the kernel write it whole.
fn simple(number: usize) -> Vec<Op> {
    let new = NewNode { permissions: 0o644, uid: 0, gid: 0 };
    let path = |name: &str| Path::of(&format!("fast-{number}-{name}"));
    let fsync = |name: &str| Op::Fsync { path: path(name) };
    vec![
        Op::Create { path: path("a"), new },
        fsync("a"),
        Op::Create { path: path("b"), new },
        Op::Link { from: path("a"), to: path("c") },
        Op::Truncate { path: path("a"), size: 8192 },
        fsync("a"),
        Op::Unlink { path: path("c") },
        Op::Chmod { path: path("b"), permissions: 0o600 },
        Op::Rename { from: path("b"), to: path("d"), mode: RenameMode::Replace },
        fsync("d"),
        Op::Create { path: path("lost"), new },
    ]
}

fn profile(kind: &Kind) -> Profile {
    // A fast commit says nothing about attributes behind the fields of an inode: the kernel's replay
    // shows those of the deleted file that had the inode before.
    let attributes = if kind.is_fast() { 0 } else { 30 };
    Profile { sync_one_in: 0, size_max: 1 << 16, attributes, ..Profile::default() }
}

/// The kernel at work on a mounted image.
struct Busy {
    // Holds files open: given up before the mount.
    kernel: Kernel,
    mounted: Mounted,
    model: Model,
    generator: Generator,
    random: Prng,
    what: String,
}

impl Busy {
    /// Mounts `files`. No commit happens but those that somebody waits for.
    fn new(files: &Files, kind: &Kind, seed: u64) -> Result<Busy, String> {
        let mounted = files.mount(format!("commit=300,{}", kind.mount).trim_end_matches(','))?;
        let root = mounted.mount.path().to_owned();
        Ok(Busy {
            model: Model::new(snapshot(&root), TIMELESS),
            kernel: Kernel::new(root),
            generator: Generator::new(seed, profile(kind)),
            random: Prng::new(seed ^ 0x5eed),
            what: format!("{}, seed {seed}", kind.name),
            mounted,
        })
    }

    fn apply(&mut self, op: &Op) {
        let answer = self.kernel.apply(op);
        if let Err(wanted) = self.model.follow(op, answer) {
            panic!("{}: {op}: {answer:?}, not {wanted:?}", self.what);
        }
    }

    /// Operations on names and attributes; contents, which the model does not know; and now and then
    /// a commit: of one file, perhaps fast, or of everything.
    fn work(&mut self, steps: usize) {
        for _ in 0..steps {
            let op = self.generator.next_op(&self.model);
            self.apply(&op);
            let paths = self.model.tree.paths();
            let (path, id) = &paths[self.random.below(paths.len() as u64) as usize];
            if self.model.tree.node(*id).kind != FileKind::Regular {
                continue;
            }
            let path = Path(path.clone());
            if self.random.one_in(4) {
                let at = path.0.iter().fold(self.mounted.mount.path().to_owned(), |at, name| {
                    at.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name))
                });
                let size = self.model.tree.node(*id).size;
                // Refused where the file is immutable.
                if let Ok(file) = File::options().write(true).open(at)
                    && size > 0
                {
                    let from = self.random.below(size);
                    let len = (size - from).min(self.random.below(9000));
                    let byte = self.random.below(256) as u8;
                    let _refused = file.write_all_at(&vec![byte; len as usize], from);
                }
            }
            if self.random.one_in(5) {
                let _ = self.kernel.apply(&Op::Fsync { path });
            }
        }
        if self.random.one_in(3) {
            self.mounted.sync();
        }
    }

    /// Holds a large file that loses its name: an orphan after a cut.
    fn orphan(&mut self, number: usize) {
        let path = Path::of(&format!("gone-{number}"));
        let new = NewNode { permissions: 0o600, uid: 1, gid: 1 };
        self.apply(&Op::Create { path: path.clone(), new });
        let at = self.mounted.mount.path().join(format!("gone-{number}"));
        fs::write(&at, vec![number as u8; 200_000]).unwrap();
        self.apply(&Op::Hold { path: path.clone(), slot: 1000 + number });
        self.mounted.sync();
        self.apply(&Op::Unlink { path });
        self.mounted.sync();
    }

    /// Ends in fast commits.
    fn work_fast(&mut self, number: usize) {
        self.mounted.sync();
        for op in simple(number) {
            self.apply(&op);
        }
    }
}

/// The kernel works on an image, and is cut a few times.
fn cut_kernel(kind: &Kind, seed: u64, cuts: usize) -> Result<Work, String> {
    let mut work = Work::default();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let files = Files::make(dir.path(), "busy", kind)?;
    if !kind.external && !files.suits_kernel()? {
        return Err("needs a kernel that mounts it".to_owned());
    }
    let copy = Files::at(dir.path(), "cut", kind.external);
    let mut busy = Busy::new(&files, kind, seed)?;
    for number in 0..cuts {
        busy.orphan(number);
        busy.work(30);
        if kind.is_fast() {
            busy.work_fast(number);
        }
        busy.mounted.cut(&files, &copy)?;
        let what = format!("{}, seed {seed}, cut {number}", kind.name);
        replay_everywhere(&what, dir.path(), &copy, true, &mut work)?;
    }
    Ok(work)
}

/// extant at work on recorded devices.
struct Recorded {
    devices: Vec<Arc<RecordingDevice>>,
    /// Files that are held: those without a name are orphans.
    slots: HashMap<usize, Held>,
    fs: Fs,
}

impl Recorded {
    /// Works on `base`: `steps` operations, every now and then a sync.
    fn work(
        kind: &Kind,
        seed: u64,
        base: &[MemoryDevice],
        steps: usize,
        attributes: u64,
    ) -> Recorded {
        let first = Arc::new(RecordingDevice::over(base[0].snapshot()));
        let mut devices = vec![Arc::clone(&first)];
        for other in &base[1..] {
            devices.push(Arc::new(RecordingDevice::beside(other.snapshot(), &first)));
        }
        let shared: Vec<SharedDevice> =
            devices.iter().map(|d| Arc::clone(d) as SharedDevice).collect();
        let clock = Arc::new(FixedClock::at(EPOCH, 0));
        let extant = Extant::default();
        let fs = extant.mount(&shared, Arc::clone(&clock)).unwrap_or_else(|text| panic!("{text}"));
        let tree = extant.snapshot(&fs, &TIMELESS).unwrap_or_else(|text| panic!("{text}"));
        let mut model = Model::new(tree, TIMELESS);
        let profile = Profile { sync_one_in: 15, attributes, ..profile(kind) };
        let mut generator = Generator::new(seed, profile);
        let mut slots = HashMap::new();
        for _ in 0..steps {
            clock.advance(std::time::Duration::from_millis(1500));
            let op = generator.next_op(&model);
            let answer = extant.apply(&fs, &mut slots, &op);
            if let Err(wanted) = model.follow(&op, answer) {
                panic!("{}, seed {seed}: {op}: {answer:?}, not {wanted:?}", kind.name);
            }
        }
        if seed % 2 == 1 {
            fs.sync().unwrap_or_else(|error| panic!("{}", in_full(&error)));
        }
        Recorded { devices, slots, fs }
    }

    /// The devices after a power cut when the first `position` records had happened: of those that
    /// may be lost, each is or is not.
    fn cut(&self, position: usize, random: &mut Prng) -> Vec<MemoryDevice> {
        let keep = random.next_u64();
        let fate = |index: usize| {
            let mut random = Prng::new(keep ^ index as u64);
            if random.one_in(2) { Survival::Kept } else { Survival::Lost }
        };
        self.devices.iter().map(|device| device.image_at(position, |at, _| fate(at))).collect()
    }

    fn len(&self) -> usize {
        self.devices[0].len()
    }
}

/// extant works on an image, and is cut in the middle and at the end.
fn cut_extant(kind: &Kind, seed: u64, cuts: u64) -> Result<Work, String> {
    let mut work = Work::default();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let files = Files::make(dir.path(), "new", kind)?;
    let by_kernel = kind.external || files.suits_kernel()?;
    if !by_kernel {
        println!("{}: this kernel does not mount it; e2fsck is asked alone", kind.name);
    }
    let recorded = Recorded::work(kind, seed, &files.load(), 120, 30);
    let copy = Files::at(dir.path(), "cut", kind.external);
    let mut random = Prng::new(seed);
    for number in 0..cuts {
        let len = recorded.len();
        // The last one is where the process ended.
        let position = if number + 1 == cuts { len } else { random.below(len as u64) as usize };
        copy.save(&recorded.cut(position, &mut random));
        let what = format!("{}, seed {seed}, cut {number} at {position} of {len}", kind.name);
        replay_everywhere(&what, dir.path(), &copy, by_kernel, &mut work)?;
    }
    Ok(work)
}

/// extant and the kernel work on one image in turns; each is cut or unmounts, and the other takes
/// what is left.
fn alternate(kind: &Kind, seed: u64, rounds: usize) -> Result<Work, String> {
    let mut work = Work::default();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let files = Files::make(dir.path(), "turns", kind)?;
    if !kind.external && !files.suits_kernel()? {
        return Err("needs a kernel that mounts it".to_owned());
    }
    let copy = Files::at(dir.path(), "cut", kind.external);
    let mut random = Prng::new(seed);
    for round in 0..rounds {
        let what = format!("{}, seed {seed}, round {round}", kind.name);
        // extant's turn.
        let recorded =
            Recorded::work(kind, seed + round as u64, &files.load(), 60, profile(kind).attributes);
        if round % 2 == 0 {
            files.save(&recorded.cut(recorded.len(), &mut random));
            replay_everywhere(&format!("{what}, extant cut"), dir.path(), &files, true, &mut work)?;
        } else {
            let Recorded { devices, slots, fs } = recorded;
            // Every other time files without a name are left to the kernel.
            let held = (random.one_in(2)).then_some(slots);
            fs.unmount().unwrap_or_else(|error| panic!("{what}: {}", in_full(&error)));
            files.save(&devices.iter().map(|device| device.contents()).collect::<Vec<_>>());
            if held.is_none() {
                files.assert_clean(&format!("{what}, extant unmounted"))?;
            }
        }
        // The kernel's: it replays what was cut.
        let mut busy = Busy::new(&files, kind, seed + 100 + round as u64)?;
        busy.work(40);
        if kind.is_fast() {
            busy.work_fast(round);
        }
        if round % 3 == 1 {
            busy.mounted.cut(&files, &copy)?;
            drop(busy);
            replay_everywhere(&format!("{what}, kernel cut"), dir.path(), &copy, true, &mut work)?;
            copy.copy_to(&files);
        } else {
            drop(busy);
            files.assert_clean(&format!("{what}, kernel unmounted"))?;
        }
    }
    Ok(work)
}

/// What tune2fs and resize2fs do to an image on which both worked; extant sees all of it after each.
fn tools(kind: &Kind, seed: u64) -> Result<Work, String> {
    let mut work = Work::default();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let files = Files::make(dir.path(), "tools", kind)?;
    let cut = Recorded::work(kind, seed, &files.load(), 80, 30);
    files.save(&cut.cut(cut.len(), &mut Prng::new(seed)));
    let devices: Vec<_> = files.load().into_iter().map(Arc::new).collect();
    let fs = mount_by_extant(&devices);
    work.transactions = fs.replayed().map_or(0, |summary| summary.transactions);
    let mut tree = tree_of(&fs);
    forget_times(&mut tree, |_| true);
    fs.unmount().unwrap_or_else(|error| panic!("{}", in_full(&error)));
    files.save(&devices.iter().map(|device| device.snapshot()).collect::<Vec<_>>());
    let (tune, resize) = (Tool::find("tune2fs")?, Tool::find("resize2fs")?);
    let image = files.image.to_str().expect("a plain name");
    let mut steps = vec![
        (&tune, vec!["-L", "turns", "-c", "30", image]),
        (&resize, vec!["-f", image, "40M"]),
        (&resize, vec!["-f", image, "16M"]),
    ];
    if kind.name != "ext3" {
        steps.push((&tune, vec!["-O", "^metadata_csum", image]));
        steps.push((&tune, vec!["-O", "metadata_csum", image]));
        steps.push((&tune, vec!["-O", "orphan_file", image]));
    }
    for (tool, arguments) in steps {
        let what = format!("{}, seed {seed}, {arguments:?}", kind.name);
        // Both want to see that somebody looked at it since it was mounted.
        let report = files.fsck("-fy")?;
        assert_eq!(report.status, Some(0), "{what}: {}", report.text);
        tool.run(&arguments);
        files.assert_clean(&what)?;
        let mut found = look(&what, &files.load()).tree;
        // What resize2fs moves gets new times.
        forget_times(&mut found, |_| true);
        let lines = found.differences(&tree);
        assert!(lines.is_empty(), "{what}: {lines:#?}");
    }
    // And it can still be changed.
    let devices: Vec<_> = files.load().into_iter().map(Arc::new).collect();
    let fs = mount_by_extant(&devices);
    fs.create("/after the tools", &extant::NewInode::root(0o600)).unwrap();
    fs.unmount().unwrap_or_else(|error| panic!("{}", in_full(&error)));
    files.save(&devices.iter().map(|device| device.snapshot()).collect::<Vec<_>>());
    files.assert_clean(kind.name)?;
    Ok(work)
}

/// Runs one test for every kind; kinds that cannot be made here are named and left out.
fn for_kinds(more: bool, run: impl Fn(&Kind) -> Result<Work, String>) {
    for kind in kinds(more) {
        let begin = SystemClock.monotonic();
        match run(kind) {
            Ok(work) => {
                println!(
                    "{}: {work:?}, {:?}",
                    kind.name,
                    SystemClock.monotonic().saturating_sub(begin)
                );
                assert!(work.transactions > 0, "{}: every journal was empty", kind.name);
                assert!(work.stale == 0 || kind.is_fast(), "{}: {work:?}", kind.name);
            }
            Err(reason) => {
                print_skip(module_path!(), line!(), &format!("{}: {reason}", kind.name));
            }
        }
    }
}

/// Goal: kernel, e2fsck and extant make the same of an image that was cut off under the kernel.
#[test]
fn what_the_kernel_left_is_replayed_alike() {
    require!(root("mounts images"));
    for_kinds(false, |kind| {
        let work = cut_kernel(kind, env::seed(1), 2)?;
        assert!(work.orphans >= 2, "{}: {work:?}", kind.name);
        assert_eq!(work.fast_commits > 0, kind.is_fast(), "{}: fast commits", kind.name);
        Ok(work)
    });
}

/// Goal: and of one that was cut off under extant.
#[test]
fn what_extant_left_is_replayed_alike() {
    require!(root("mounts images"));
    for_kinds(false, |kind| cut_extant(kind, env::seed(1), 3));
}

/// Goal: images stay sound while both take turns on them.
#[test]
fn turns_of_extant_and_the_kernel_leave_sound_images() {
    require!(root("mounts images"));
    for_kinds(false, |kind| alternate(kind, env::seed(1), 5));
}

/// Goal: the tools of e2fsprogs take what extant left.
#[test]
fn tools_change_what_extant_left() {
    for name in ["1K blocks", "default", "no checksums", "ext3"] {
        for kind in KINDS.iter().filter(|kind| kind.name == name) {
            let work = require!(tools(kind, env::seed(1)));
            assert!(work.transactions > 0, "{name}: nothing was replayed");
        }
    }
}

#[test]
#[ignore = "takes minutes"]
fn much_that_the_kernel_left_is_replayed_alike() {
    require!(root("mounts images"));
    for seed in env::seed(100)..env::seed(100) + 6 {
        for_kinds(true, |kind| cut_kernel(kind, seed, 8));
    }
}

#[test]
#[ignore = "takes minutes"]
fn much_that_extant_left_is_replayed_alike() {
    require!(root("mounts images"));
    for seed in env::seed(100)..env::seed(100) + 6 {
        for_kinds(true, |kind| cut_extant(kind, seed, 12));
    }
}

#[test]
#[ignore = "takes minutes"]
fn many_turns_of_extant_and_the_kernel_leave_sound_images() {
    require!(root("mounts images"));
    for seed in env::seed(100)..env::seed(100) + 4 {
        for_kinds(true, |kind| alternate(kind, seed, 8));
    }
}
