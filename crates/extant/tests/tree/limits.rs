//! What happens at the limits: no blocks, no inodes, no quota, a device that fails. An operation
//! that is refused has changed nothing: neither the tree nor a count; and once there is room again
//! it succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use extant::{
    Acl, AclKind, Family, Fs, FsError, Inode, InodeFlags, MountOptions, NewInode, QuotaKind,
    QuotaLimits, RenameFlags, Result, SetAttributes, Special, Statfs, XattrMode,
};
use extant_block::{FaultDevice, FaultPlan, MemoryDevice, OperationKind, SharedDevice};
use extant_check::CheckOptions;
use extant_format::acl::{AclEntry, Who};
use extant_format::features::Incompat;
use extant_sync::FixedClock;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{TempDir, image, require};

/// Who owns what the operations change.
const ME: NewInode = NewInode { permissions: 0o755, uid: 1000, gid: 2000 };
const THEM: NewInode = NewInode { permissions: 0o755, uid: 4000, gid: 4001 };
const PROJECT: u32 = 3000;

type Step = fn(&Fs) -> Result<()>;

fn many_entries(first: u32) -> Acl {
    let entry = |who, perm| AclEntry { who, perm };
    let mut entries = vec![entry(Who::Owner, 7)];
    entries.extend((first..first + 40).map(|id| entry(Who::User(id), 5)));
    entries.extend([entry(Who::OwningGroup, 5), entry(Who::Mask, 5), entry(Who::Others, 5)]);
    Acl::new(entries).expect("in order")
}

fn moved(fs: &Fs, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
    let split = |path: &str| {
        let (dir, name) = path.rsplit_once('/').expect("a path");
        (fs.resolve(if dir.is_empty() { "/" } else { dir }), name.to_owned())
    };
    let ((from, name), (to, new_name)) = (split(from), split(to));
    from?.rename(name, &to?, new_name, flags)
}

fn set(fs: &Fs, path: &str, fill: u8, bytes: usize) -> Result<()> {
    fs.set_xattr(path, "user.value", vec![fill; bytes], XattrMode::Any)
}

/// Names that go into `one`, `two` and so on are as long as those that filled them.
const NEXT: &str = "next-00000000000000000000000000000000000";

fn next(dir: &str) -> String {
    format!("/{dir}/{NEXT}")
}

/// Everything that can want room. Each touches files that no other touches.
const STEPS: &[(&str, Step)] = &[
    ("create", |fs| fs.create("/d/new", &ME).map(drop)),
    ("create in one", |fs| fs.create(next("one"), &ME).map(drop)),
    ("create in two", |fs| fs.create(next("two"), &ME).map(drop)),
    ("create in three", |fs| fs.create(next("three"), &ME).map(drop)),
    ("mkdir", |fs| fs.create_dir("/d/new-dir", &ME).map(drop)),
    ("mkdir in one", |fs| fs.create_dir(next("one-b"), &ME).map(drop)),
    ("symlink", |fs| fs.symlink("short", "/d/new-link", &ME).map(drop)),
    ("long symlink", |fs| fs.symlink("x".repeat(900), "/d/new-long", &ME).map(drop)),
    ("long symlink in one", |fs| fs.symlink("x".repeat(900), next("one-c"), &ME).map(drop)),
    ("mknod in two", |fs| fs.mknod(next("two-b"), Special::Fifo, &ME).map(drop)),
    ("link in one", |fs| fs.hard_link("/d/f0", next("one-d"))),
    ("link in two", |fs| fs.hard_link("/d/f1", next("two-c"))),
    ("rename into one", |fs| moved(fs, "/d/f2", &next("one-e"), RenameFlags::empty())),
    ("rename within two", |fs| {
        moved(fs, &format!("/two-d/{}", nth(0)), &next("two-d"), RenameFlags::NOREPLACE)
    }),
    ("rename of a directory into one", |fs| {
        moved(fs, "/d/dir-a", &next("one-f"), RenameFlags::empty())
    }),
    ("rename with whiteout into two", |fs| {
        moved(fs, "/d/f3", &next("two-e"), RenameFlags::WHITEOUT)
    }),
    ("rename with whiteout out of one", |fs| {
        moved(fs, &format!("/one-g/{}", nth(0)), "/d/from-one", RenameFlags::WHITEOUT)
    }),
    ("rename over a name in one", |fs| {
        moved(fs, "/d/f4", &format!("/one-h/{}", nth(1)), RenameFlags::empty())
    }),
    ("exchange", |fs| moved(fs, "/d/dir-b", &format!("/two-d/{}", nth(1)), RenameFlags::EXCHANGE)),
    ("attribute in the inode", |fs| set(fs, "/d/f5", b'a', 20)),
    ("attribute in a block", |fs| set(fs, "/d/f6", b'b', 700)),
    ("attribute of a shared block", |fs| set(fs, "/shared-a", b'c', 600)),
    ("attribute beside inline entries", |fs| set(fs, "/small", b'd', 60)),
    ("attributes of both places", |fs| {
        set(fs, "/d/f7", b'e', 40)?;
        Ok(())
    }),
    ("large attribute", |fs| large(fs, "/d/f8", b'f')),
    ("large attribute instead of another", |fs| large(fs, "/large", b'g')),
    ("access list", |fs| fs.set_acl("/d/f9", AclKind::Access, Some(&many_entries(9)))),
    ("default access list", |fs| fs.set_acl("/d/dir-c", AclKind::Default, Some(&many_entries(10)))),
    ("create below an access list", |fs| fs.create("/acl/new", &ME).map(drop)),
    ("mkdir below an access list", |fs| fs.create_dir("/acl/new-dir", &ME).map(drop)),
    ("create below another owner's list", |fs| {
        fs.create("/acl/other", &NewInode { permissions: 0o600, ..ME }).map(drop)
    }),
    ("tmpfile", |fs| fs.resolve("/d")?.tmpfile(&ME).map(drop)),
    ("tmpfile below an access list", |fs| {
        fs.resolve("/acl")?.tmpfile(&NewInode { permissions: 0o711, ..ME }).map(drop)
    }),
    ("truncate to a little", |fs| fs.resolve("/d/f10")?.truncate(100)),
    ("truncate to much", |fs| fs.resolve("/d/f11")?.truncate(9 << 20)),
    ("chmod", |fs| fs.set_attributes("/d/f12", &SetAttributes::new().permissions(0o600))),
    ("unlink", |fs| fs.remove_file("/d/f13")),
    ("unlink of a long symlink", |fs| fs.remove_file("/d/long")),
    ("rmdir", |fs| fs.remove_dir("/d/dir-d")),
];

/// Larger than a block where values can have inodes of their own, else as large as a block takes.
fn large(fs: &Fs, path: &str, fill: u8) -> Result<()> {
    let block = fs.block_size().bytes() as usize;
    let has = fs.features().incompat.contains(extant_format::features::Incompat::EA_INODE);
    set(fs, path, fill, if has { block * 3 + 17 } else { block - 100 })
}

fn nth(number: usize) -> String {
    format!("name-{number:0>35}")
}

/// Fills directories until one name more lets them grow for the `growth`th time.
fn brink(fs: &Fs, names: &[&str], growth: usize) -> Result<()> {
    let probe = fs.create_dir("/probe", &ME)?;
    let (mut grown, mut count) = (0, 0);
    let grew = |before: u64| usize::from(probe.metadata().size > before);
    while count < 400 {
        // The name that will not fit has the hash of the one that operations use.
        let before = probe.metadata().size;
        probe.create(NEXT, &ME)?;
        let by_next = grew(before);
        grown += by_next;
        if by_next == 1 && grown >= growth {
            break;
        }
        probe.unlink(NEXT)?;
        let before = probe.metadata().size;
        probe.create(nth(count), &ME)?;
        grown += grew(before);
        count += 1;
    }
    drop(probe);
    fs.remove_all("/probe")?;
    let mut first: Vec<Inode> = Vec::new();
    for name in names {
        let dir = fs.create_dir(format!("/{name}"), &ME)?;
        for number in 0..count {
            // As above: it may have grown for a name that went again.
            if let Some(inode) = first.first() {
                dir.link(NEXT, inode)?;
                dir.unlink(NEXT)?;
            }
            match first.get(number) {
                // Links, so that inodes last.
                Some(inode) if number != 2 => dir.link(nth(number), inode)?,
                _ => first.push(dir.create(nth(number), &ME)?),
            }
        }
    }
    Ok(())
}

const SPARES: usize = 24;

/// The tree that the operations are made for.
fn furnish(fs: &Fs) -> Result<()> {
    let root = fs.root()?;
    for at in 0..SPARES {
        fs.create(format!("/spare-{at}"), &THEM)?;
        fs.create(format!("/rest-{at}"), &THEM)?;
    }
    let d = root.mkdir("d", &ME)?;
    for at in 0..14 {
        d.create(format!("f{at}"), &ME)?;
    }
    for name in ["dir-a", "dir-b", "dir-c", "dir-d"] {
        d.mkdir(name, &ME)?;
    }
    d.symlink("long", "y".repeat(900), &ME)?;
    // As much as the inode takes: then another attribute does not fit beside it.
    fs.set_xattr("/d/f7", "user.first", [7; 30], XattrMode::Any)?;
    root.symlink("theirs", "z".repeat(900), &THEM)?;
    for name in ["shared-a", "shared-b", "large"] {
        root.create(name, &ME)?;
        set(fs, &format!("/{name}"), b's', 600)?;
    }
    large(fs, "/large", b'l')?;
    root.mkdir("small", &ME)?.create("a", &ME)?;
    let acl = root.mkdir("acl", &ME)?;
    acl.set_acl(AclKind::Default, Some(&many_entries(1)))?;
    brink(fs, &["one", "one-b", "one-c", "one-d", "one-e", "one-f", "one-g", "one-h"], 1)?;
    brink(fs, &["two", "two-b", "two-c", "two-d", "two-e"], 2)?;
    brink(fs, &["three"], 3)
}

/// Every inode that has a name, in words. Contents of directories that only take up room are left
/// out.
fn tree(fs: &Fs) -> Result<BTreeMap<Vec<u8>, String>> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut pending = vec![(Vec::new(), fs.root()?)];
    while let Some((path, inode)) = pending.pop() {
        let m = inode.metadata();
        let mut line = format!(
            "{} {:o} {}:{}:{} {} bytes {} sectors {} links {:?} {:?} {:?}",
            m.ino,
            m.mode(),
            m.uid,
            m.gid,
            m.project,
            m.size,
            m.blocks,
            m.links,
            m.mtime,
            m.ctime,
            m.flags
        );
        for xattr in inode.xattrs()? {
            let sum = xattr
                .value
                .iter()
                .fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            write!(line, " {}={sum:x}", String::from_utf8_lossy(&xattr.name)).expect("a string");
        }
        if inode.is_symlink() {
            let target = inode.read_link()?;
            write!(line, " -> {}", String::from_utf8_lossy(&target)).expect("a string");
        }
        if inode.is_dir() && !path.starts_with(b"/fill-") {
            for entry in inode.read_dir()? {
                let entry = entry?;
                let path = [&path, b"/".as_slice(), entry.name()].concat();
                // What has several names is told once.
                if seen.insert(entry.ino()) {
                    pending.push((path, entry.inode()?));
                } else {
                    found.insert(path, format!("{}", entry.ino()));
                }
            }
        }
        found.insert(path, line);
    }
    Ok(found)
}

fn differences(a: &BTreeMap<Vec<u8>, String>, b: &BTreeMap<Vec<u8>, String>) -> String {
    let mut text = String::new();
    for path in a.keys().chain(b.keys().filter(|path| !a.contains_key(*path))) {
        let (one, two) = (a.get(path), b.get(path));
        if one != two {
            let path = String::from_utf8_lossy(path);
            writeln!(text, "{path}:\n  {one:?}\n  {two:?}").expect("a string");
        }
    }
    text
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let device = Arc::clone(device);
    MountOptions::new().read_only(false).seed(1).open_shared(device).expect("mounts")
}

/// Where images are for e2fsck.
struct Work(TempDir);

impl Work {
    fn new() -> Work {
        Work(extant_testkit::tempdir().expect("a temporary directory"))
    }

    fn make(&self, size: &str, options: &[&str]) -> std::result::Result<Arc<MemoryDevice>, String> {
        let path = self.0.path().join("image");
        let _ = std::fs::remove_file(&path);
        mke2fs(&path, size, options)?;
        Ok(Arc::new(image::load(&path)))
    }

    /// Checks by our checker, and by e2fsck if `also_e2fsck`.
    fn check(&self, what: &str, device: &MemoryDevice, also_e2fsck: bool) {
        let report = extant_check::check(device, &CheckOptions::default()).expect("checks");
        assert!(report.is_clean(), "{what}: {:#?}", report.problems);
        if !also_e2fsck {
            return;
        }
        let path = self.0.path().join("result");
        let _ = std::fs::remove_file(&path);
        image::save(device, &path);
        let report = e2fsck(&path).expect("mke2fs is there, so is e2fsck");
        assert!(report.is_clean(), "{what}: {}", report.text);
    }
}

fn is_full(error: &FsError) -> bool {
    matches!(error, FsError::NoSpace { what, .. } if !what.contains("attributes"))
}

/// Fills what `free` counts, by files of others.
/// Blocks that the owner of the device can have: with extents some are for nobody.
fn blocks_left(fs: &Fs) -> u64 {
    match fs.features().has_incompat(Incompat::EXTENTS) {
        true => fs.room(true) / u64::from(fs.block_size().bytes()),
        false => fs.statfs().expect("the totals").blocks_free,
    }
}

fn fill_blocks(fs: &Fs) -> Result<()> {
    for at in 0..SPARES {
        fs.set_xattr(format!("/spare-{at}"), "user.fill", format!("{at:0600}"), XattrMode::Any)?;
    }
    let dir = fs.create_dir("/fill-blocks", &THEM)?;
    let mut number = 0;
    let room = fs.block_size().bytes() as usize - 10;
    while blocks_left(fs) > 0 {
        match dir.symlink(format!("{number}"), "z".repeat(room.min(1000)), &THEM) {
            Ok(_) => number += 1,
            Err(error) if is_full(&error) => break,
            Err(error) => return Err(error),
        }
    }
    // The directory may have wanted more than the last block.
    for rest in 0.. {
        // What was released on the way counts from the commit on.
        fs.sync()?;
        if blocks_left(fs) == 0 {
            break;
        }
        let file = format!("/rest-{rest}");
        fs.set_xattr(file, "user.fill", format!("r{rest:0600}"), XattrMode::Any)?;
    }
    Ok(())
}

fn fill_inodes(fs: &Fs) -> Result<()> {
    let dir = fs.create_dir("/fill-inodes", &THEM)?;
    for number in 0.. {
        if fs.statfs()?.files_free == 0 {
            break;
        }
        dir.create(format!("{number}"), &THEM)?;
    }
    fs.sync()
}

fn state(fs: &Fs) -> (BTreeMap<Vec<u8>, String>, Statfs) {
    (tree(fs).expect("the tree"), fs.statfs().expect("counts"))
}

/// Runs a step again and again, with one unit more each time, until it succeeds. Returns how many
/// units it took.
fn until_it_fits(
    what: &str,
    fs: &Fs,
    step: Step,
    refused: impl Fn(&FsError) -> bool,
    mut give: impl FnMut(usize) -> Result<()>,
) -> usize {
    for given in 0..=SPARES {
        fs.sync().expect("commits");
        let before = state(fs);
        let Err(error) = step(fs) else { return given };
        assert!(refused(&error), "{what}, {given} units: {error}");
        let after = state(fs);
        let differ = differences(&before.0, &after.0);
        assert!(
            differ.is_empty(),
            "{what}, {given} units: {error}, but there are changes:\n{differ}"
        );
        assert_eq!(before.1, after.1, "{what}, {given} units: {error}");
        fs.sync().expect("commits");
        assert_eq!(before.1, fs.statfs().unwrap(), "{what}, {given} units, committed: {error}");
        give(given).unwrap_or_else(|error| panic!("{what}: giving unit {given}: {error}"));
    }
    panic!("{what}: does not fit into {SPARES} units");
}

const LAYOUTS: &[Layout] = &[
    ("ext4", "9M", &["-t", "ext4", "-b", "4096", "-J", "size=4", "-N", "2048"]),
    ("1k", "3M", &["-t", "ext4", "-b", "1024", "-N", "2048"]),
    (
        "inline",
        "3M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "2048",
            "-O",
            "inline_data,ea_inode,^metadata_csum,^64bit",
        ],
    ),
    (
        "ea_inode",
        "9M",
        &["-t", "ext4", "-b", "4096", "-J", "size=4", "-N", "2048", "-O", "ea_inode"],
    ),
    (
        "bigalloc",
        "24M",
        &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-J", "size=4", "-N", "2048"],
    ),
    ("ext3", "3M", &["-t", "ext3", "-b", "1024", "-N", "2048"]),
    ("ext2", "2M", &["-t", "ext2", "-b", "1024", "-N", "2048"]),
];

fn furnished(
    work: &Work,
    size: &str,
    options: &[&str],
) -> std::result::Result<Arc<MemoryDevice>, String> {
    let options: Vec<&str> = options.iter().copied().chain(["-m", "0"]).collect();
    let device = work.make(size, &options)?;
    let fs = mount(&device);
    furnish(&fs).expect("the tree fits");
    fs.unmount().expect("unmounts");
    work.check("the tree", &device, true);
    Ok(device)
}

fn filled(base: &MemoryDevice, fill: fn(&Fs) -> Result<()>) -> Arc<MemoryDevice> {
    let device = Arc::new(base.snapshot());
    let fs = mount(&device);
    fill(&fs).expect("fills");
    fs.unmount().expect("unmounts");
    device
}

/// How a layout is made: its name, size and options.
type Layout = (&'static str, &'static str, &'static [&'static str]);

/// `every`: e2fsck looks at one image in so many.
fn no_blocks(&(name, size, options): &Layout, every: usize) -> std::result::Result<(), String> {
    let work = Work::new();
    let base = furnished(&work, size, options)?;
    let full = filled(&base, fill_blocks);
    work.check(name, &full, true);
    let mut refused = 0;
    for (number, (what, step)) in STEPS.iter().enumerate() {
        let what = format!("{name}: {what}");
        let device = Arc::new(full.snapshot());
        let fs = mount(&device);
        assert_eq!(blocks_left(&fs), 0, "{what}");
        let units = until_it_fits(&what, &fs, *step, is_full, |given| {
            fs.remove_xattr(format!("/spare-{given}"), "user.fill")
        });
        println!("{what}: {units}");
        refused += units;
        fs.unmount().expect("unmounts");
        work.check(&what, &device, every == 1 || number % every == 0);
        if units == 0 {
            continue;
        }
        // What was removed a moment ago is room, too.
        let device = Arc::new(full.snapshot());
        let fs = mount(&device);
        for at in 0..units {
            fs.remove_file(format!("/fill-blocks/{at}")).expect("removes");
        }
        step(&fs).unwrap_or_else(|error| panic!("{what}, after removals: {error}"));
        fs.unmount().expect("unmounts");
        work.check(&what, &device, every == 1 || number % every == 0);
    }
    assert!(refused > 12, "{name}: only {refused} refusals");
    Ok(())
}

fn no_inodes(&(name, size, options): &Layout, every: usize) -> std::result::Result<(), String> {
    let work = Work::new();
    let base = furnished(&work, size, options)?;
    let full = filled(&base, fill_inodes);
    work.check(name, &full, true);
    let mut refused = 0;
    for (number, (what, step)) in STEPS.iter().enumerate() {
        let what = format!("{name}: {what}");
        let device = Arc::new(full.snapshot());
        let fs = mount(&device);
        assert_eq!(fs.statfs().unwrap().files_free, 0, "{what}");
        let units = until_it_fits(&what, &fs, *step, is_full, |given| {
            fs.remove_file(format!("/spare-{given}"))
        });
        refused += units;
        fs.unmount().expect("unmounts");
        work.check(&what, &device, every == 1 || number % every == 0);
        if units == 0 {
            continue;
        }
        let device = Arc::new(full.snapshot());
        let fs = mount(&device);
        for at in 0..units {
            fs.remove_file(format!("/spare-{at}")).expect("removes");
        }
        step(&fs).unwrap_or_else(|error| panic!("{what}, after removals: {error}"));
        fs.unmount().expect("unmounts");
        work.check(&what, &device, every == 1 || number % every == 0);
    }
    assert!(refused > 8, "{name}: only {refused} refusals");
    Ok(())
}

const QUOTAS: Layout = (
    "quotas",
    "16M",
    &[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-J",
        "size=4",
        "-N",
        "2048",
        "-O",
        "quota,project,ea_inode",
        "-E",
        "quotatype=usrquota:grpquota:prjquota",
    ],
);

/// The kinds with the ids that own what the operations change.
const PAYERS: [(QuotaKind, u32); 3] =
    [(QuotaKind::User, ME.uid), (QuotaKind::Group, ME.gid), (QuotaKind::Project, PROJECT)];

/// Gives everything that is not THEIRS to the project, new files below included.
fn give_to_project(fs: &Fs) -> Result<()> {
    let mut below = vec![b"/".to_vec()];
    while let Some(path) = below.pop() {
        for entry in fs.read_dir(&path)? {
            let entry = entry?;
            let inode = entry.inode()?;
            if inode.metadata().uid != ME.uid {
                continue;
            }
            let mut changes = SetAttributes::new().project(PROJECT);
            if inode.is_dir() {
                changes = changes.flags(inode.flags() | InodeFlags::PROJINHERIT);
                below.push([&path, entry.name(), b"/"].concat());
            }
            inode.set_attributes(&changes)?;
        }
    }
    Ok(())
}

fn usage(fs: &Fs) -> Vec<extant::QuotaEntry> {
    let ids = PAYERS.into_iter().chain([(QuotaKind::User, THEM.uid), (QuotaKind::Group, THEM.gid)]);
    ids.map(|(kind, id)| fs.quota(kind, id).expect("the quota").expect("counted")).collect()
}

/// Lets an id have `room` blocks or inodes more than it has.
fn limit(fs: &Fs, (kind, id): (QuotaKind, u32), inodes: bool, room: usize) -> Result<()> {
    let used = fs.quota(kind, id)?.expect("counted");
    let block = u64::from(fs.block_size().bytes());
    let room = room as u64;
    let limits = if inodes {
        QuotaLimits { inodes_hard: used.inodes + room, ..QuotaLimits::default() }
    } else {
        let space_hard_kib = (used.space_bytes + room * block) / 1024;
        QuotaLimits { space_hard_kib, ..QuotaLimits::default() }
    };
    fs.set_quota_limits(kind, id, &limits)
}

/// Changes of owners take blocks and inodes along.
const TRANSFERS: &[(&str, Step)] = &[
    ("chown", |fs| {
        let changes = SetAttributes::new().owner(Some(ME.uid), Some(ME.gid)).permissions(0o511);
        fs.resolve_link("/theirs")?.set_attributes(&changes)
    }),
    ("chown of an attribute block", |fs| {
        let changes = SetAttributes::new().owner(Some(ME.uid), Some(ME.gid));
        fs.set_attributes("/their-value", &changes)
    }),
    ("change of the project", |fs| {
        let changes = SetAttributes::new().project(PROJECT).permissions(0o511);
        fs.set_attributes("/their-value", &changes)
    }),
];

fn no_quota(every: usize) -> std::result::Result<(), String> {
    let work = Work::new();
    let base = furnished(&work, QUOTAS.1, QUOTAS.2)?;
    let fs = mount(&base);
    give_to_project(&fs).expect("there is room");
    fs.create("/their-value", &THEM).expect("creates");
    set(&fs, "/their-value", b't', 650).expect("there is room");
    fs.unmount().expect("unmounts");
    work.check("quotas", &base, true);
    let steps: Vec<&(&str, Step)> = STEPS.iter().chain(TRANSFERS).collect();
    let mut number = 0;
    for payer in PAYERS {
        for inodes in [false, true] {
            // The short run: users in full, of the others one half each.
            let short = every > 1 && inodes != (payer.0 == QuotaKind::Project);
            if short && payer.0 != QuotaKind::User {
                continue;
            }
            let mut refused = 0;
            for (what, step) in &steps {
                number += 1;
                let of = if inodes { "inodes" } else { "blocks" };
                let what = format!("{payer:?}, {of}: {what}");
                let device = Arc::new(base.snapshot());
                let fs = mount(&device);
                limit(&fs, payer, inodes, 0).expect("limits");
                let kind = ["user", "group", "project"][payer.0 as usize];
                let over = |error: &FsError| {
                    let FsError::QuotaExceeded { kind: k, id, what } = error else { return false };
                    (*k, *id, *what) == (kind, payer.1, of)
                };
                let before = std::cell::RefCell::new(usage(&fs));
                let units = until_it_fits(&what, &fs, *step, over, |given| {
                    assert_eq!(usage(&fs), *before.borrow(), "{what}: usage");
                    limit(&fs, payer, inodes, given + 1)?;
                    *before.borrow_mut() = usage(&fs);
                    Ok(())
                });
                refused += units;
                fs.unmount().expect("unmounts");
                work.check(&what, &device, number % every == 0);
            }
            assert!(refused > 8, "{payer:?}: only {refused} refusals");
        }
    }
    Ok(())
}

type Tree = BTreeMap<Vec<u8>, String>;

/// Steps from one commit to the next.
const COMMIT_EVERY: usize = 5;

fn mount_at_noon(device: SharedDevice) -> Result<Fs> {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    Ok(MountOptions::new().read_only(false).seed(1).clock(clock).open_shared(device)?)
}

/// All steps on a device that does not fail: the tree after each, and how many reads, writes and
/// flushes there were.
fn without_faults(base: &MemoryDevice) -> (Vec<Tree>, [u64; 3]) {
    let device = Arc::new(FaultDevice::new(Arc::new(base.snapshot()), FaultPlan::default()));
    let fs = mount_at_noon(Arc::clone(&device) as SharedDevice).expect("mounts");
    let mut trees = vec![tree(&fs).expect("the tree")];
    for (number, (what, step)) in STEPS.iter().enumerate() {
        step(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
        trees.push(tree(&fs).expect("the tree"));
        if number % COMMIT_EVERY == 0 {
            fs.sync().expect("commits");
        }
    }
    fs.unmount().expect("unmounts");
    let [reads, writes, flushes, _] = device.seen();
    (trees, [reads, writes, flushes])
}

/// What is known after a run on a device that fails.
#[derive(Default)]
struct Survived {
    /// Steps that succeeded.
    done: usize,
    /// How many of them were made durable.
    durable: usize,
    /// What the first failure was.
    failure: Option<FsError>,
}

impl Survived {
    /// Runs until something fails, and then tries whether anything still works.
    fn run(fs: Fs) -> Survived {
        let mut survived = Survived::default();
        for (number, (_, step)) in STEPS.iter().enumerate() {
            if let Err(error) = step(&fs) {
                survived.failure = Some(error);
                break;
            }
            survived.done += 1;
            if number % COMMIT_EVERY == 0 {
                match fs.sync() {
                    Ok(()) => survived.durable = survived.done,
                    Err(error) => {
                        survived.failure = Some(error);
                        break;
                    }
                }
            }
        }
        if survived.failure.is_none() {
            match fs.unmount() {
                Ok(()) => survived.durable = survived.done,
                Err(error) => survived.failure = Some(error),
            }
            return survived;
        }
        match fs.sync() {
            Ok(()) => survived.durable = survived.done,
            Err(_) => {
                let error = fs.create("/after", &ME).map(drop).expect_err("nothing more goes in");
                assert_eq!(error.errno(), 30, "EROFS: {error}");
                // Nothing may be due.
                let _ = fs.tick();
                assert!(fs.unmount().is_err(), "it cannot end well");
            }
        }
        survived
    }
}

/// Whether a superblock is half old and half new. It is longer than a sector: nobody can bear that.
fn is_torn_superblock(error: &FsError) -> bool {
    matches!(error, FsError::Corrupt { structure: "superblock", .. })
}

/// One fault, `(kind, at, count)`: in the `at`-th operation of its kind and `count - 1` after it.
fn with_fault(
    work: &Work,
    base: &MemoryDevice,
    trees: &[Tree],
    fault: (OperationKind, u64, u64),
    also_e2fsck: bool,
) {
    let torn = |seed: &u64| with_fault_of(work, base, trees, (*seed, fault), also_e2fsck).is_err();
    // The seed says how much of the write is there.
    assert!((0..16).take_while(torn).count() < 16, "{fault:?}: always a torn superblock");
}

fn with_fault_of(
    work: &Work,
    base: &MemoryDevice,
    trees: &[Tree],
    (seed, fault): (u64, (OperationKind, u64, u64)),
    also_e2fsck: bool,
) -> Result<()> {
    let what = format!("{fault:?}, seed {seed}");
    let device = Arc::new(base.snapshot());
    let plan = FaultPlan { seed, exactly: vec![fault], ..FaultPlan::default() };
    let failing = Arc::new(FaultDevice::new(Arc::clone(&device), plan));
    let survived = match mount_at_noon(Arc::clone(&failing) as SharedDevice) {
        Ok(fs) => Survived::run(fs),
        Err(error) => Survived { failure: Some(error), ..Survived::default() },
    };
    if let Some(error) = &survived.failure {
        let expected = error.family() == Family::Device || matches!(error, FsError::Aborted { .. });
        assert!(expected, "{what}: after {} steps: {error}", survived.done);
        assert!(failing.failed() > 0, "{what}: {error}, but the device was well");
    }
    drop(failing);
    let fs = match mount_at_noon(Arc::clone(&device) as SharedDevice) {
        Err(error) if is_torn_superblock(&error) => return Err(error),
        mounted => mounted.unwrap_or_else(|error| panic!("{what}: mounting again: {error}")),
    };
    let found = tree(&fs).unwrap_or_else(|error| panic!("{what}: the tree: {error}"));
    let possible = &trees[survived.durable..=survived.done];
    if !possible.contains(&found) {
        let differ = differences(&trees[survived.done], &found);
        let (durable, done) = (survived.durable, survived.done);
        panic!("{what}: {durable} to {done} steps, and the last one differs in\n{differ}");
    }
    fs.unmount().unwrap_or_else(|error| panic!("{what}: unmounting: {error}"));
    let options = CheckOptions { require_clean_state: false, ..CheckOptions::default() };
    let report = extant_check::check(&*device, &options).expect("checks");
    assert!(report.is_clean(), "{what}: {:#?}", report.problems);
    if also_e2fsck && !report.state.has_errors {
        work.check(&what, &device, true);
    }
    Ok(())
}

/// Lets each operation of the device fail, or one in `every`.
fn faults(layout: &Layout, every: u64) -> std::result::Result<(), String> {
    let work = Work::new();
    let base = furnished(&work, layout.1, layout.2)?;
    let (trees, seen) = without_faults(&base);
    println!("{}: reads, writes, flushes: {seen:?}", layout.0);
    let kinds = [OperationKind::Read, OperationKind::Write, OperationKind::Flush];
    for (kind, count) in kinds.into_iter().zip(seen) {
        let every = if kind == OperationKind::Flush { 1 } else { every };
        for at in (0..count).filter(|at| at % every == 0) {
            // Once, and for good.
            with_fault(&work, &base, &trees, (kind, at, 1), at % (7 * every) == 0);
            with_fault(&work, &base, &trees, (kind, at, 1 << 40), false);
        }
    }
    Ok(())
}

#[test]
fn without_blocks_nothing_changes() {
    let chosen = |layout: &&Layout| matches!(layout.0, "inline" | "ea_inode" | "bigalloc" | "ext3");
    for layout in LAYOUTS.iter().filter(chosen) {
        require!(no_blocks(layout, 9));
    }
}

#[test]
fn without_inodes_nothing_changes() {
    for layout in LAYOUTS.iter().filter(|layout| matches!(layout.0, "inline" | "ext2")) {
        require!(no_inodes(layout, 9));
    }
}

#[test]
#[ignore = "takes minutes"]
fn without_blocks_or_inodes_nothing_changes_says_e2fsck() {
    for layout in LAYOUTS {
        require!(no_blocks(layout, 1));
        require!(no_inodes(layout, 1));
    }
}

#[test]
fn without_quota_nothing_changes() {
    require!(no_quota(60));
}

#[test]
#[ignore = "takes minutes"]
fn without_quota_nothing_changes_says_e2fsck() {
    require!(no_quota(1));
}

#[test]
fn a_device_that_fails_leaves_a_prefix() {
    let layout = LAYOUTS.iter().find(|layout| layout.0 == "ea_inode").expect("in the table");
    require!(faults(layout, 5));
}

#[test]
#[ignore = "takes minutes"]
fn a_device_that_fails_anywhere_leaves_a_prefix() {
    for layout in LAYOUTS.iter().filter(|layout| layout.0 != "ext2") {
        require!(faults(layout, 1));
    }
}
