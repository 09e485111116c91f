//! Damaged images, mounted for writing: every operation ends, in an answer or in an error that says
//! what is wrong; and what no damage touched is still there afterwards.
//!
//! Damage is of two kinds. Some fields say who owns a block: bitmaps, descriptors, maps, the journal.
//! Where these lie, nobody can tell whose block it is, unless checksums find out; the tests ask for
//! an end in bounded time and memory. All others, of directories, attributes, quotas, and so on, may
//! cost what they describe and nothing else.
//!
//! `EXTANT_MUTANTS` asks for more mutants of each image, `EXTANT_SEED` for others, `EXTANT_KIND` for
//! one image; `EXTANT_MUTANT` runs one mutant only and says what was damaged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common;
use crate::damage;
use common::read_everything;
use damage::{Place, damage, places};
use extant::{
    Acl, AclKind, Family, Fs, Inode, InodeFlags, MappingKind, MountErrors, MountOptions, NewInode,
    RenameFlags, Reserve, SetAttributes, Special, TimeChange, Timestamp, Tune, XattrMode,
};
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_sync::{Clock, FixedClock, SystemClock};
use extant_testkit::oracle::{LoopMount, mke2fs};
use extant_testkit::require;

/// Mutants per image.
const MUTANTS: u64 = 200;
/// One mutant may take this long in a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// Most memory the whole test may use, in KiB: all of its images and caches.
const MEMORY_MAX_KIB: u64 = 1 << 20;

/// How the maker of an image leaves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Unmounted,
    /// Unmounted while files without a name were held: they are orphans at their places.
    Held,
    /// Not unmounted: the last changes are in the journal alone.
    Cut,
}
use End::{Cut, Held, Unmounted};

const WITH_JOURNAL: &[(&str, End, &[&str])] = &[
    ("journal", Cut, &["-t", "ext4", "-O", "^metadata_csum", "-J", "size=1"]),
    ("ext3 with orphans", Held, &["-t", "ext3", "-J", "size=1"]),
    ("orphan list", Held, &["-t", "ext4", "-O", "^metadata_csum", "-J", "size=1"]),
    ("orphan file", Held, &["-t", "ext4", "-O", "^metadata_csum,orphan_file", "-J", "size=1"]),
    ("checksums and journal", Cut, &["-t", "ext4", "-J", "size=1"]),
];

const PLAIN: &[(&str, End, &[&str])] = &[
    ("ext2", Unmounted, &["-t", "ext2"]),
    ("checksums", Unmounted, &["-t", "ext4", "-O", "^has_journal"]),
    ("quota", Unmounted, &["-t", "ext4", "-O", "^has_journal,^metadata_csum,quota"]),
    ("large attributes", Unmounted, &["-t", "ext4", "-O", "^has_journal,^metadata_csum,ea_inode"]),
    ("inline data", Unmounted, &["-t", "ext4", "-O", "^has_journal,^metadata_csum,inline_data"]),
    ("bigalloc", Unmounted, &["-t", "ext4", "-O", "^has_journal,^metadata_csum,bigalloc"]),
    ("protected", Unmounted, &["-t", "ext4", "-O", "^has_journal,^metadata_csum,mmp"]),
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    for _ in 0..20 {
        let Some(cause) = source else { return text };
        text += &format!(": {cause}");
        source = cause.source();
    }
    panic!("endless causes: {text}");
}

/// Files that no operation touches.
const KEPT: u64 = 6;

fn kept_contents(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 700 + 9000 * number as usize];
    Prng::new(number).fill(&mut bytes);
    bytes
}

/// A tree with something of everything, on the disk of the test.
fn source() -> extant_testkit::TempDir {
    let dir = common::work_dir();
    let root = dir.path().join("source");
    std::fs::create_dir_all(root.join("kept")).unwrap();
    for index in 0..KEPT {
        std::fs::write(root.join(format!("kept/{index}")), kept_contents(index)).unwrap();
    }
    extant_testkit::tree::make_small(&root);
    dir
}

fn mount(device: SharedDevice, seed: u64) -> extant::Result<Fs> {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).seed(seed).clock(clock);
    Ok(options.cache_bytes(1 << 20).open_shared(device)?)
}

/// Makes an image, works on it, and leaves it.
fn make(source: &std::path::Path, end: End, options: &[&str]) -> Result<MemoryDevice, String> {
    let dir = common::work_dir();
    let image = dir.path().join("image");
    let mut arguments = options.to_vec();
    arguments.extend(["-b", "1024", "-N", "256", "-d", source.to_str().unwrap()]);
    mke2fs(&image, "6M", &arguments)?;
    let device = Arc::new(extant_testkit::image::load(&image));
    let shared = Arc::clone(&device) as SharedDevice;
    let fs = mount(shared, 1).unwrap_or_else(|error| panic!("{}", in_full(&error)));
    let root = fs.root().unwrap();
    let a = root.lookup("a").unwrap();
    for at in 0..6u8 {
        let file = a.create(format!("f{at}"), &NewInode::root(0o644)).unwrap();
        file.set_xattr("user.block", [1; 300], XattrMode::Any).unwrap();
        file.set_xattr("user.small", [2; 10], XattrMode::Any).unwrap();
        let _only_with_ea_inode = file.set_xattr("user.large", [at; 3000], XattrMode::Any);
    }
    let mut held = vec![a.lookup("block").unwrap(), a.create("gone", &NewInode::root(0)).unwrap()];
    a.unlink("block").unwrap();
    a.unlink("gone").unwrap();
    held.push(a.tmpfile(&NewInode::root(0o600)).unwrap());
    fs.sync().unwrap();
    let cut = device.snapshot();
    drop((a, root));
    if end == Cut {
        return Ok(cut);
    }
    let held = (end == Held).then_some(held);
    fs.unmount().unwrap_or_else(|error| panic!("{}", in_full(&error)));
    let device = device.snapshot();
    drop(held);
    Ok(device)
}

/// Inodes of the kept files, their directory and the root.
fn kept_inos(fs: &Fs) -> BTreeSet<u32> {
    let kept = fs.resolve("/kept").unwrap();
    let mut inos = BTreeSet::from([2, kept.ino().0]);
    for index in 0..KEPT {
        inos.insert(kept.lookup(format!("{index}")).unwrap().ino().0);
    }
    inos
}

/// Whether all kept files have their contents.
fn keeps(fs: &Fs) -> Result<(), String> {
    for index in 0..KEPT {
        match fs.read(format!("/kept/{index}")) {
            Ok(bytes) if bytes == kept_contents(index) => {}
            Ok(_) => return Err(format!("/kept/{index} has other contents")),
            Err(error) => return Err(format!("/kept/{index}: {}", in_full(&error))),
        }
    }
    Ok(())
}

/// Whether another name leads to a kept inode: whoever changes what that names may change it.
fn is_aliased(fs: &Fs, kept: &BTreeSet<u32>) -> bool {
    let Ok(walk) = fs.walk("/") else { return true };
    walk.take(5000).any(|entry| match entry {
        Ok(entry) => {
            let path = entry.path();
            let own = path == b"/" || path.is_empty() || path.starts_with(b"/kept");
            !own && kept.contains(&entry.inode().ino().0)
        }
        Err(_) => false,
    }) || ["/a", "/big", "/a/b", "/a/b/c", "/lost+found"].iter().any(|dir| {
        // Also names whose inode is of another kind, which a walk may not show.
        let Ok(listing) = fs.read_dir(dir) else { return false };
        listing.take(5000).flatten().any(|entry| kept.contains(&entry.ino().0))
    })
}

/// What happened to one mutant.
#[derive(Default)]
struct Outcome {
    done: u32,
    refused: u32,
    damage: u32,
    stopped: u32,
}

impl Outcome {
    fn note<T>(&mut self, what: &str, result: extant::Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            Err(error) => {
                let text = in_full(&error);
                assert!(text.len() > 8, "{what}: {text:?} says nothing");
                assert!((1..=133).contains(&error.errno()), "{what}: {text}: {}", error.errno());
                match error.family() {
                    Family::Damage => {
                        let named = text.bytes().any(|byte| byte.is_ascii_digit());
                        assert!(named, "{what}: no number in: {text}");
                        self.damage += 1;
                    }
                    Family::Refusal => self.refused += 1,
                    // The journal stopped for damage met before.
                    Family::Device => self.stopped += 1,
                }
                None
            }
        }
    }
}

/// Every operation, on paths that exist in the sound image.
fn everything(fs: &Fs, out: &mut Outcome, random: &mut Prng) {
    let new = NewInode { permissions: 0o644, uid: 5, gid: 6 };
    let Some(root) = out.note("root", fs.root()) else { return };
    let find = |out: &mut Outcome, path: &str| out.note(path, fs.resolve_link(path));
    let dirs: Vec<Inode> =
        ["/a", "/big", "/a/b", "/"].iter().filter_map(|path| find(out, path)).collect();
    let mut held = Vec::new();
    for dir in &dirs {
        for index in 0..3 {
            held.extend(out.note("create", dir.create(format!("new {index}"), &new)));
        }
        out.note("mkdir", dir.mkdir("new dir", &new));
        out.note("symlink", dir.symlink("new link", "short", &new));
        out.note("symlink", dir.symlink("new long link", "z".repeat(500), &new));
        out.note("mknod", dir.mknod("fifo", Special::Fifo, &new));
        out.note("mknod", dir.mknod("null", Special::CharDevice { major: 1, minor: 3 }, &new));
        held.extend(out.note("tmpfile", dir.tmpfile(&new)));
    }
    for index in 0..60 {
        let name = format!("/big/another name that is long, {index}");
        out.note("create", fs.create(name, &new));
    }
    out.note("sync", fs.sync());
    for name in
        ["f0", "f1", "f2", "f3", "f4", "f5", "tiny", "small", "large", "b/sparse", "b", "long-link"]
    {
        let Some(file) = find(out, &format!("/a/{name}")) else { continue };
        out.note("set xattr", file.set_xattr("user.block", [3; 250], XattrMode::Any));
        out.note("set xattr", file.set_xattr("user.large", [4; 2500], XattrMode::Any));
        out.note("set xattr", file.set_xattr("user.more", [5; 60], XattrMode::Create));
        out.note("remove xattr", file.remove_xattr("user.small"));
        out.note("set acl", file.set_acl(AclKind::Access, Some(&Acl::from_mode(0o641))));
        out.note("xattrs", file.xattrs());
        let time = Some(TimeChange::To(Timestamp::new(1, 2)));
        let changes = SetAttributes::new().permissions(0o705).owner(Some(7), Some(8));
        out.note("set attributes", file.set_attributes(&changes.times(time, time)));
        let flags = file.flags() | InodeFlags::NODUMP;
        out.note("set flags", file.set_attributes(&SetAttributes::new().flags(flags)));
        out.note("set project", file.set_attributes(&SetAttributes::new().project(9)));
        for size in [random.below(1 << 22), random.below(400_000), 13] {
            out.note("truncate", file.truncate(size));
        }
        out.note("fsync", file.sync());
        out.note("link", root.link(format!("link to {}", name.replace('/', "-")), &file));
    }
    for (from, to) in
        [("/a/f0", "/big/moved"), ("/a/f1", "/a/f2"), ("/a/b", "/big/b"), ("/big/b", "/b")]
    {
        out.note("rename", fs.rename(from, to));
    }
    out.note("exchange", fs.rename_with("/a/f3", "/b", RenameFlags::EXCHANGE));
    out.note("whiteout", fs.rename_with("/a/f4", "/f4", RenameFlags::WHITEOUT));
    out.note("sync", fs.sync());
    for index in 0..90 {
        let name = format!("/big/a file with a long name, number {index}");
        if index % 3 != 0 {
            out.note("unlink", fs.remove_file(name));
        }
    }
    for path in ["/a/large", "/a/b/sparse", "/b/sparse", "/a/f5", "/big/moved", "/new link"] {
        out.note("unlink", fs.remove_file(path));
    }
    for path in ["/a/new dir", "/big/new dir", "/b/c", "/a/b/c"] {
        out.note("rmdir", fs.remove_dir(path));
    }
    drop(held);
    out.note("remove all", fs.remove_all("/big"));
    out.note("tune", fs.tune(&Tune::new().label("hostile").reserve(Reserve::Blocks(10))));
    out.note("statfs", fs.statfs());
    out.note("tick", fs.tick());
    out.note("sync", fs.sync());
}

/// Runs the mutants of one image.
/// The inodes that damage leaves alone.
fn kept_of(whole: &MemoryDevice) -> BTreeSet<u32> {
    kept_inos(&MountOptions::new().open(whole.snapshot()).unwrap())
}

fn try_mutants(name: &str, whole: &MemoryDevice, mutants: u64) {
    let seed = number("EXTANT_SEED").unwrap_or(1);
    let all = places(whole, &kept_of(whole));
    let local: Vec<Place> =
        places(whole, &kept_of(whole)).into_iter().filter(|place| place.is_local).collect();
    let sound = MountOptions::new().open(whole.snapshot()).unwrap();
    let kept = kept_inos(&sound);
    let mut sum = Outcome::default();
    let (mut mounted, mut judged, mut slowest) = (0, 0, Duration::ZERO);
    let chosen = number("EXTANT_MUTANT");
    // Mutant 0 is the image itself.
    for mutant in 0..=mutants {
        if chosen.is_some_and(|chosen| chosen != mutant) {
            continue;
        }
        let mut random = Prng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(mutant));
        let device = Arc::new(whole.snapshot());
        let is_local = random.one_in(2);
        let mut story = String::new();
        for _ in 0..(1 + random.below(6)) * u64::from(mutant > 0) {
            let places = if is_local { &local } else { &all };
            story += &damage(&device, places, &mut random);
            story += "\n";
        }
        if chosen.is_some() {
            println!("{name}, mutant {mutant}:\n{story}");
        }
        let what = format!("{name}, seed {seed}, mutant {mutant}");
        let begin = SystemClock.monotonic();
        let claims = is_local && {
            let before = MountOptions::new().open(device.snapshot());
            before.is_ok_and(|fs| keeps(&fs).is_ok() && !is_aliased(&fs, &kept))
        };
        let mut outcome = Outcome::default();
        if let Some(fs) = outcome.note(&what, mount(Arc::clone(&device) as SharedDevice, mutant)) {
            mounted += u64::from(mutant > 0);
            everything(&fs, &mut outcome, &mut random);
            outcome.note("unmount", fs.unmount());
        }
        if mutant == 0 {
            assert_eq!(outcome.damage, 0, "{name}: the image itself");
            assert!(outcome.done > 150, "{name}: only {} operations work", outcome.done);
        }
        match MountOptions::new().cache_bytes(1 << 20).open(device.snapshot()) {
            Ok(fs) => {
                let _errors = read_everything(&fs, 16 << 20);
                if claims {
                    judged += 1;
                    keeps(&fs).unwrap_or_else(|text| panic!("{what}: {text}\n{story}"));
                }
            }
            Err(error) => assert!(!claims, "{what}: {}\n{story}", in_full(&error)),
        }
        let taken = SystemClock.monotonic().saturating_sub(begin);
        assert!(taken < LIMIT, "{what} took {taken:?}\n{story}");
        slowest = slowest.max(taken);
        sum.done += outcome.done;
        sum.refused += outcome.refused;
        sum.damage += outcome.damage;
        sum.stopped += outcome.stopped;
    }
    println!(
        "{name}, seed {seed}: {mounted} of {mutants} mounted, {judged} judged; {} done, {} refused, {} met \
         damage, {} after a stop; the slowest took {slowest:?}",
        sum.done, sum.refused, sum.damage, sum.stopped
    );
    if chosen.is_none() {
        assert!(mounted > mutants / 4, "{name}: {mounted} of {mutants} mounted: little is tested");
        assert!(judged > mutants / 10, "{name}: {judged} of {mutants} judged");
        assert!(u64::from(sum.damage) > mutants / 4, "{name}: hardly any damage is met");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    if let Some(kib) = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok())
    {
        assert!(kib < MEMORY_MAX_KIB, "{name}: {kib} KiB of memory were used");
    }
}

fn try_layouts(layouts: &[(&str, End, &[&str])], mutants: u64) {
    let tree = source();
    let wanted = std::env::var("EXTANT_KIND").unwrap_or_default();
    for (name, end, options) in layouts.iter().filter(|(name, ..)| name.contains(&wanted)) {
        let whole = require!(make(&tree.path().join("source"), *end, options));
        try_mutants(name, &whole, mutants);
    }
}

/// Goal: whatever is wrong, every operation ends, and what is intact stays.
#[test]
fn operations_on_damaged_images_with_journals_end_in_answers_or_errors() {
    try_layouts(WITH_JOURNAL, number("EXTANT_MUTANTS").unwrap_or(MUTANTS));
}

#[test]
fn operations_on_damaged_images_end_in_answers_or_errors() {
    try_layouts(PLAIN, number("EXTANT_MUTANTS").unwrap_or(MUTANTS));
}

#[test]
#[ignore = "takes minutes"]
fn operations_on_many_damaged_images_end_in_answers_or_errors() {
    for layouts in [WITH_JOURNAL, PLAIN] {
        try_layouts(layouts, number("EXTANT_MUTANTS").unwrap_or(2000));
    }
}

/// Goal: the same for a journal with fast commits, which the kernel wrote.
#[test]
fn operations_on_damaged_fast_commits_end_in_answers_or_errors() {
    let tree = source();
    let image = tree.path().join("image");
    let source = tree.path().join("source");
    let options = ["-t", "ext4", "-b", "1024", "-O", "fast_commit,^metadata_csum", "-N", "256"];
    let more = ["-J", "size=4", "-d", source.to_str().unwrap()];
    require!(mke2fs(&image, "12M", &[&options[..], &more].concat()));
    let mount = require!(LoopMount::new(&image, rustix::mount::MountFlags::empty(), "commit=3600"));
    for index in 0..20 {
        let file = mount.path().join(format!("a/new-{index}"));
        std::fs::write(&file, [index; 3000]).unwrap();
        std::fs::File::open(&file).unwrap().sync_all().unwrap();
    }
    std::fs::File::open(mount.device()).unwrap().sync_all().unwrap();
    let whole = extant_testkit::image::load(&image);
    drop(mount);
    let fs = MountOptions::new().open(whole.snapshot()).unwrap();
    assert!(fs.replayed().is_some_and(|summary| summary.fast_commits > 0));
    try_mutants("fast commits", &whole, number("EXTANT_MUTANTS").unwrap_or(MUTANTS));
}

/// Goal: damage that is met is remembered in the superblock, and stops a mount that was told so.
#[test]
fn damage_met_is_remembered() {
    let tree = source();
    let whole = require!(make(&tree.path().join("source"), Unmounted, WITH_JOURNAL[0].2));
    let sound = MountOptions::new().open(whole.snapshot()).unwrap();
    let big = sound.resolve("/a").unwrap();
    let run = big.map(0..1).next().unwrap().unwrap();
    let MappingKind::Mapped(block) = run.kind else { panic!("a directory without blocks") };
    let device = Arc::new(whole.snapshot());
    {
        // Replayed first: the journal may hold this block.
        let fs = mount(Arc::clone(&device) as SharedDevice, 1).unwrap();
        fs.unmount().unwrap();
    }
    // The record of "." reaches beyond the block.
    device.write_at(block.0 * 1024 + 4, &0x8001u16.to_le_bytes()).unwrap();
    for policy in [MountErrors::Continue, MountErrors::RemountReadOnly] {
        let device = Arc::new(device.snapshot());
        let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
        let options = MountOptions::new().read_only(false).seed(1).clock(clock).errors(policy);
        let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
        let error = fs.create("/a/new", &NewInode::root(0o600)).unwrap_err();
        assert_eq!(error.family(), Family::Damage, "{}", in_full(&error));
        let after = fs.create("/new", &NewInode::root(0o600)).map(drop);
        assert_eq!(after.is_ok(), policy == MountErrors::Continue, "{after:?}");
        let _may_be_stopped = fs.unmount();
        let superblock = MountOptions::new().open(device.snapshot()).unwrap().superblock().clone();
        assert!(superblock.error_count > 0, "{policy:?}");
    }
}
