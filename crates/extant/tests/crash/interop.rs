//! Images cut off under the kernel: extant's replay leaves what the kernel's replay leaves.
//!
//! The backing file of a busy loop mount is copied between two looks at the device's counters: if
//! nothing was written meanwhile, the copy is what a power cut would have left at that moment.

use std::fs;
use std::path::{Path as OsPath, PathBuf};
use std::sync::Arc;

use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::{Clock as _, FixedClock, SystemClock};
use extant_testkit::kernel::{Kernel, snapshot};
use extant_testkit::model::{
    Generator, Model, NewNode, Op, Path, Profile, RenameMode, Rules, Tree,
};
use extant_testkit::oracle::{LoopMount, device_writes, e2fsck_with, mke2fs, print_skip, root};
use extant_testkit::proof::{EPOCH, Target as _, env};
use extant_testkit::{image, require, tempdir};
use rustix::mount::MountFlags;

use crate::layouts::Loop;
use crate::target::Extant;

const RULES: Rules =
    Rules { times: true, crtime: true, project: false, full: false, contents: false };
/// Copies that must be tried again because something was written meanwhile.
const COPIES_MAX: usize = 50;

/// One kind of image.
struct Kind {
    name: &'static str,
    arguments: &'static [&'static str],
    external: bool,
}

const KINDS: &[Kind] = &[
    Kind { name: "default", arguments: &["-t", "ext4"], external: false },
    Kind {
        name: "1K blocks",
        arguments: &["-t", "ext4", "-b", "1024", "-J", "size=1"],
        external: false,
    },
    Kind {
        name: "fast commit",
        arguments: &["-t", "ext4", "-b", "1024", "-O", "fast_commit"],
        external: false,
    },
    Kind {
        name: "fast commit and orphan file",
        arguments: &["-t", "ext4", "-O", "fast_commit,orphan_file"],
        external: false,
    },
    Kind {
        name: "orphan file",
        arguments: &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
        external: false,
    },
    Kind { name: "external journal", arguments: &["-t", "ext4", "-b", "1024"], external: true },
    Kind {
        name: "no checksums",
        arguments: &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
        external: false,
    },
    Kind { name: "ext3", arguments: &["-t", "ext3", "-b", "1024"], external: false },
];

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

    fn copy_to(&self, other: &Files) {
        fs::copy(&self.image, &other.image).unwrap();
        if let (Some(from), Some(to)) = (&self.journal, &other.journal) {
            fs::copy(from, to).unwrap();
        }
    }

    /// Mounts by the kernel.
    fn mount(&self, options: &str) -> Result<(LoopMount, Option<Loop>), String> {
        let journal = self.journal.as_deref().map(Loop::attach).transpose()?;
        let mut options = options.to_owned();
        if let Some(journal) = &journal {
            options += &format!(",journal_path={}", journal.0);
        }
        let options = options.trim_start_matches(',');
        Ok((LoopMount::new(&self.image, MountFlags::empty(), options)?, journal))
    }

    fn load(&self) -> Vec<MemoryDevice> {
        let files = std::iter::once(&self.image).chain(&self.journal);
        files.map(|file| image::load(file)).collect()
    }
}

/// What was there to be replayed.
#[derive(Default, Debug)]
struct Work {
    transactions: u64,
    fast_commits: u64,
}

/// Copies the files of a mounted image as they are at one moment.
fn cut(mount: &LoopMount, journal: Option<&Loop>, from: &Files, to: &Files) -> Result<(), String> {
    let look = || (mount.writes(), journal.map(|journal| device_writes(&journal.0)));
    for _ in 0..COPIES_MAX {
        let before = look();
        from.copy_to(to);
        if look() == before {
            return Ok(());
        }
    }
    Err("the kernel never stopped writing".to_owned())
}

/// What the image holds after extant replayed its journal and cleaned up; and what it looked like
/// to a mount for reading, which replays in memory.
fn by_extant(files: &Files, work: &mut Work) -> (Tree, Tree, Vec<MemoryDevice>) {
    let devices = files.load();
    let mut options = extant::MountOptions::new();
    if let Some(journal) = devices.get(1) {
        options = options.journal_device(journal.snapshot());
    }
    let fs = options.open(devices[0].snapshot()).unwrap();
    let read = Extant::default().snapshot(&fs, &RULES).unwrap();
    if let Some(replayed) = fs.replayed() {
        work.transactions += u64::from(replayed.transactions);
        work.fast_commits += u64::from(replayed.fast_commits);
    }
    drop(fs);
    let devices: Vec<Arc<MemoryDevice>> = devices.into_iter().map(Arc::new).collect();
    let shared: Vec<SharedDevice> = devices.iter().map(|d| Arc::clone(d) as SharedDevice).collect();
    let clock = Arc::new(FixedClock::at(EPOCH + 10_000_000, 0));
    let fs = Extant::default().mount(&shared, clock).unwrap();
    let replayed = Extant::default().snapshot(&fs, &RULES).unwrap();
    Extant::default().unmount(fs).unwrap();
    (read, replayed, devices.iter().map(|device| device.snapshot()).collect())
}

/// What extant reads after the kernel replayed.
fn by_kernel(files: &Files) -> Result<Tree, String> {
    drop(files.mount("")?);
    let devices = files.load();
    let fs = extant::MountOptions::new().open(devices[0].snapshot()).unwrap();
    Ok(Extant::default().snapshot(&fs, &RULES).unwrap())
}

fn forget_times_of_directories(tree: &mut Tree) {
    for (_, id) in tree.paths() {
        if tree.node(id).is_dir() {
            tree.node_mut(id).times = [(0, 0); 4];
        }
    }
}

/// Forgets when files were changed that the kernel stamped as it replayed: `since` is the time of the
/// cut. An inode that was on the list of orphans when the last whole transaction was written, and that
/// a fast commit then gave to a new file, is truncated and stamped as an orphan that is still linked.
fn forget_files_stamped_since(since: (i64, u32), theirs: &mut Tree, ours: &mut [&mut Tree]) {
    for (path, id) in theirs.paths() {
        if theirs.node(id).times[1] < since && theirs.node(id).times[2] < since {
            continue;
        }
        println!("{}: stamped by the kernel's replay", Path(path.clone()));
        theirs.node_mut(id).times[1..3].fill((0, 0));
        for tree in ours.iter_mut() {
            let same = tree.paths().into_iter().find(|(other, _)| *other == path);
            if let Some((_, id)) = same {
                tree.node_mut(id).times[1..3].fill((0, 0));
            }
        }
    }
}

fn same(what: &str, ours: &Tree, theirs: &Tree) {
    let lines = ours.differences(theirs);
    assert!(lines.is_empty(), "{what}, extant | kernel:\n{}", lines.join("\n"));
    assert_eq!(ours.fingerprint(), theirs.fingerprint(), "{what}");
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

/// Works on a mounted image, and cuts it a few times.
fn one(kind: &Kind, seed: u64, cuts: usize) -> Result<Work, String> {
    let mut work = Work::default();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let busy = Files::at(dir.path(), "busy", kind.external);
    let mut arguments = kind.arguments.to_vec();
    let on;
    let mut attached = None;
    if let Some(journal) = &busy.journal {
        mke2fs(journal, "2M", &["-b", "1024", "-O", "journal_dev"])?;
        let device = Loop::attach(journal)?;
        on = format!("device={}", device.0);
        arguments.extend(["-J", &on]);
        attached = Some(device);
    }
    mke2fs(&busy.image, "24M", &arguments)?;
    drop(attached);
    // No commit but those that somebody waits for.
    let (mount, journal) = busy.mount("commit=300")?;
    let mut kernel = Kernel::new(mount.path().to_owned());
    let mut model = Model::new(snapshot(mount.path()), Rules { times: false, ..RULES });
    // A fast commit says nothing about attributes behind the fields of an inode: the kernel's replay
    // shows those of the deleted file that had the inode before.
    let attributes = if kind.name.starts_with("fast commit") { 0 } else { 30 };
    let profile = Profile { sync_one_in: 0, size_max: 1 << 16, attributes, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let mut random = extant_base::Prng::new(seed);
    for number in 0..cuts {
        for _ in 0..30 {
            let op = generator.next_op(&model);
            let answer = kernel.apply(&op);
            if let Err(wanted) = model.follow(&op, answer) {
                panic!("{}, seed {seed}: {op}: {answer:?}, not {wanted:?}", kind.name);
            }
            // Fast commits come from fsync of single files, full ones from sync.
            let files: Vec<_> = model.tree.paths();
            let (path, id) = &files[random.below(files.len() as u64) as usize];
            if random.one_in(4) && model.tree.node(*id).kind == extant::FileKind::Regular {
                let _ = kernel.apply(&Op::Fsync { path: Path(path.clone()) });
            }
        }
        if random.one_in(4) {
            let _ = kernel.apply(&Op::Sync);
        }
        if kind.name.starts_with("fast commit") {
            let _ = kernel.apply(&Op::Sync);
            for op in simple(number) {
                let answer = kernel.apply(&op);
                assert_eq!(model.follow(&op, answer), Ok(()), "{op}: {answer:?}");
            }
        }
        let what = format!("{}, seed {seed}, cut {number}", kind.name);
        let copy = Files::at(dir.path(), "cut", kind.external);
        let since = SystemClock.now();
        cut(&mount, journal.as_ref(), &busy, &copy)?;
        let (mut read, mut replayed, after) = by_extant(&copy, &mut work);
        let mut theirs = by_kernel(&copy)?;
        if work.fast_commits > 0 {
            // The kernel inserts the names of a fast commit as if just now.
            for tree in [&mut read, &mut replayed, &mut theirs] {
                forget_times_of_directories(tree);
            }
            forget_files_stamped_since(since, &mut theirs, &mut [&mut read, &mut replayed]);
        }
        same(&format!("{what}, in memory"), &read, &theirs);
        same(&what, &replayed, &theirs);
        Extant::default().check(&after).unwrap_or_else(|text| panic!("{what}: {text}"));
        let file = dir.path().join("after");
        let _ = fs::remove_file(&file);
        image::save(&after[0], &file);
        let mut arguments = Vec::new();
        let journal_file = dir.path().join("after.journal");
        let name = journal_file.display().to_string();
        if let Some(journal) = after.get(1) {
            let _ = fs::remove_file(&journal_file);
            image::save(journal, &journal_file);
            arguments.extend(["-j", &name]);
        }
        let report = e2fsck_with(&file, &arguments)?;
        assert!(report.is_clean(), "{what}: {}", report.text);
    }
    Ok(work)
}

fn all(seed: u64, cuts: usize) {
    for kind in KINDS {
        match one(kind, seed, cuts) {
            Ok(work) => {
                println!("{}, {cuts} cuts: {work:?}", kind.name);
                assert!(work.transactions > 0, "{}: every journal was empty", kind.name);
                let fast = kind.name.starts_with("fast commit");
                assert_eq!(work.fast_commits > 0, fast, "{}: fast commits", kind.name);
            }
            Err(reason) => {
                print_skip(module_path!(), line!(), &format!("{}: {reason}", kind.name));
            }
        }
    }
}

#[test]
fn images_cut_under_the_kernel_are_replayed_alike() {
    require!(root("mounts images"));
    all(env::seed(1), 4);
}

#[test]
#[ignore = "takes minutes"]
fn many_images_cut_under_the_kernel_are_replayed_alike() {
    require!(root("mounts images"));
    for seed in 10..20 {
        all(seed, 12);
    }
}

/// What `scenarios::a_synced_directory_has_every_name_that_was_made_before` asks of extant is what Linux
/// does; and of a regular file Linux asks no more than what changed it.
#[test]
fn linux_commits_all_when_a_directory_is_synced_that_did_not_change() {
    require!(root("mounts images"));
    let dir = require!(tempdir().map_err(|error| error.to_string()));
    let busy = Files::at(dir.path(), "busy", false);
    require!(mke2fs(&busy.image, "24M", &["-t", "ext4"]));
    let (mount, _) = require!(busy.mount("commit=300"));
    let at = |name: &str| mount.path().join(name);
    let sync = |name: &str| fs::File::open(at(name)).unwrap().sync_all().unwrap();
    fs::create_dir(at("dir")).unwrap();
    for name in ["dir/foo", "other"] {
        fs::write(at(name), "").unwrap();
        sync(name);
    }
    sync("dir");
    let names = |cut_to: &str| -> Result<Vec<String>, String> {
        let copy = Files::at(dir.path(), cut_to, false);
        cut(&mount, None, &busy, &copy)?;
        let fs = extant::MountOptions::new().open(copy.load()[0].snapshot()).unwrap();
        let entries = fs.read_dir("/").unwrap().map(|entry| entry.unwrap().name().to_vec());
        Ok(entries.map(|name| String::from_utf8(name).unwrap()).collect())
    };
    // Somebody else on the machine may ask for a commit of everything at any moment.
    let mut left_alone = false;
    for number in 0..5 {
        let link = format!("bar{number}");
        fs::hard_link(at("dir/foo"), at(&link)).unwrap();
        sync("other");
        let before = require!(names(&format!("before{number}")));
        sync("dir");
        let after = require!(names(&format!("after{number}")));
        assert!(after.contains(&link), "not there after a cut: {after:?}");
        left_alone |= !before.contains(&link);
        if left_alone {
            break;
        }
    }
    assert!(left_alone, "committed without being asked, five times");
}
