//! Damaged images through a mount and through the kernel: what both read is the same, and where one
//! of them refuses and the other does not, the table below says so.
//!
//! Each mutant has one damage, of one kind of metadata; half of them have checksums that fit it again.
//! A child process looks at everything, changes what it can, and looks again: once in a mount of
//! extant's, once in one of the kernel's; and then the same in mounts for reading only. The device under
//! extant's mount knows which parts belong to the file system, and no contents of files may be written
//! there; under a mount for reading, nothing at all.
//!
//! `EXTANT_MUTANTS` asks for more mutants of each image, `EXTANT_SEED` for others, `EXTANT_KIND` for one
//! image, `EXTANT_MUTANT` for one mutant, which is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common;
use crate::damage;
use crate::look;
use crate::reseal;
use common::{Heard, obstacle, with_mount_as};
use damage::{damage_one, places};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{MemoryDevice, RecordingDevice};
use extant_fuse::Settings;
use extant_fuse::mount::KernelOptions;
use extant_testkit::model::is_written;
use extant_testkit::oracle::{LoopMount, mke2fs};
use extant_testkit::zones::zones;
use extant_testkit::{require, skip};
use look::Answers;
use rustix::mount::MountFlags;

const LAYOUTS: &[(&str, &[&str])] = &[
    ("checksums", &["-t", "ext4", "-J", "size=1"]),
    ("all checksums", &["-t", "ext4", "-O", "^has_journal,inline_data,ea_inode,64bit"]),
    ("no checksums", &["-t", "ext4", "-O", "^metadata_csum,^64bit", "-J", "size=1"]),
    ("bigalloc", &["-t", "ext4", "-O", "^has_journal,bigalloc"]),
    ("ext3", &["-t", "ext3", "-J", "size=1"]),
    ("ext2", &["-t", "ext2"]),
];
/// Mutants of each layout in the short form.
const FEW: u64 = 5;
/// Seconds after which a child has hung.
const LIMIT: &str = "30";

/// What may be answered by one of both alone, by the kind of metadata that is damaged, and why. Never what
/// both answer. `docs/mount-checks.md` is this table.
const DIFFERENCES: &[(&str, &str)] = &[
    ("superblock", "docs/mount-checks.md: fields that one of both checks when mounting"),
    ("journal superblock", "a clean image's journal is not looked at when reading"),
    ("journal", "the same; blocks of an empty log mean nothing"),
    ("journal head", "the same"),
    (
        "first orphan",
        "the kernel mounts whatever is there; so does extant, and reports another error",
    ),
    ("orphan", "an orphan's inode"),
    ("orphan link", "an orphan's inode"),
    (
        "group descriptors",
        "the kernel refuses to write what one descriptor says wrongly; extant goes on without the group",
    ),
    ("block bitmap", "extant believes a bitmap only if its count fits the descriptor's"),
    ("inode bitmap", "the same"),
    ("inode", "what is checked when an inode is loaded, and what when it is used"),
    ("inode flags", "the same"),
    ("map in an inode", "the kernel checks a root when it loads the inode, extant when it is used"),
    ("attributes in an inode", "the kernel checks all attributes when it loads the inode"),
    ("attribute block", "which rule of a block is checked when"),
    ("attribute header", "the same"),
    ("attribute entry", "the same"),
    (
        "directory",
        "extant shows the names before and after a damaged record, the kernel none of a block",
    ),
    ("directory head", "the same"),
    ("extents", "which rule of a node is checked when"),
    ("extent header", "the same"),
    ("pointers", "the kernel does not check pointers of blocks that nobody reads"),
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// How it is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Reading,
    Writing,
}

impl Way {
    const ALL: [Way; 2] = [Way::Reading, Way::Writing];

    fn word(self) -> &'static str {
        match self {
            Way::Reading => "ro",
            Way::Writing => "rw",
        }
    }
}

/// How the answers of the mutants compare, mounted in one way.
#[derive(Default)]
struct Tally {
    mutants: u64,
    /// Left out, because the kernel hung.
    kernel_hung: u64,
    /// Mounted by both, by one of them, by none.
    both: u64,
    kernel_alone: u64,
    ours_alone: u64,
    neither: u64,
    same: u64,
    /// Answers: equal, refused by one of them.
    answers: u64,
    ours_stricter: u64,
    ours_looser: u64,
    by_kind: BTreeMap<&'static str, (u64, u64)>,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} mutants (and {} that the kernel hung on): {} mounted by both ({} of them with equal \
             answers), {} by the kernel alone, {} by extant alone, {} by none; {} answers, extant \
             refuses {} that the kernel gives, the kernel {} that extant gives",
            self.mutants,
            self.kernel_hung,
            self.both,
            self.same,
            self.kernel_alone,
            self.ours_alone,
            self.neither,
            self.answers,
            self.ours_stricter,
            self.ours_looser
        )
    }
}

/// Runs the child that looks; `None` when it hung.
fn observe(dir: &Path, out: &Path, way: Way) -> Option<Answers> {
    let _ = std::fs::remove_file(out);
    let status = Command::new("timeout")
        .args(["--signal=KILL", LIMIT])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "mutants::child_that_looks", "--ignored"])
        .env("EXTANT_LOOK_AT", dir)
        .env("EXTANT_LOOK_OUT", out)
        .env("EXTANT_LOOK_WAY", way.word())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    status.success().then(|| look::read_back(out))
}

/// Looks at a directory for [`observe`].
#[test]
#[ignore = "a part of the other tests"]
fn child_that_looks() {
    let (Some(dir), Some(out)) =
        (std::env::var_os("EXTANT_LOOK_AT"), std::env::var_os("EXTANT_LOOK_OUT"))
    else {
        return;
    };
    let read_only = std::env::var("EXTANT_LOOK_WAY").is_ok_and(|way| way == Way::Reading.word());
    look::look(Path::new(&dir), Path::new(&out), read_only);
}

/// Extant's answers; `None` if it does not mount.
fn ours(
    device: &MemoryDevice,
    whole: &MemoryDevice,
    dir: &Path,
    what: &str,
    way: Way,
) -> Option<Answers> {
    let recording = Arc::new(RecordingDevice::over(device.snapshot()));
    for (bytes, name) in zones(whole) {
        recording.label(bytes, &name);
    }
    let read_only = way == Way::Reading;
    let options = MountOptions::new().read_only(read_only).cache_bytes(1 << 20);
    let fs = options.data_cache_bytes(8 << 20).open_shared(Arc::clone(&recording) as _);
    let fs = match fs {
        Ok(fs) => fs,
        Err(error) => {
            if number("EXTANT_MUTANT").is_some() {
                println!("{what}: not mounted: {error}");
            }
            return None;
        }
    };
    let heard = Heard::new();
    let mut kernel = KernelOptions::new("test");
    (kernel.nosuid, kernel.nodev, kernel.read_only) = (true, true, read_only);
    let (_damaged, seen) =
        with_mount_as(&kernel, fs, &dir.join("mount"), &Settings::default(), &heard, |at| {
            observe(at, &dir.join("out"), way)
        });
    assert_eq!(heard.bugs.load(Ordering::SeqCst), 0, "{what}: a panic");
    assert!(!read_only || recording.is_empty(), "{what}: written by a mount for reading");
    for touch in recording.touches() {
        for sector in touch.data.chunks_exact(512) {
            assert!(!is_written(sector), "{what}: contents of a file in the {}", touch.label);
        }
    }
    Some(seen.unwrap_or_else(|| panic!("{what}: programs hung")))
}

/// The kernel's answers; `None` if it does not mount. What hangs in the kernel is left out.
fn by_kernel(device: &MemoryDevice, dir: &Path, way: Way) -> Result<Option<Answers>, String> {
    let image = dir.join("image");
    let _ = std::fs::remove_file(&image);
    extant_testkit::image::save(device, &image);
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, way == Way::Reading);
    let Ok(mount) = LoopMount::attempt(&image, flags, "errors=continue")? else { return Ok(None) };
    let seen = observe(mount.path(), &dir.join("out"), way);
    seen.map(Some).ok_or_else(|| "the kernel hung".to_owned())
}

fn try_layouts(mutants: u64) {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let seed = number("EXTANT_SEED").unwrap_or(1);
    let mutants = number("EXTANT_MUTANTS").unwrap_or(mutants);
    let chosen = number("EXTANT_MUTANT");
    let kind = std::env::var("EXTANT_KIND").ok();
    let work = extant_testkit::tempdir().unwrap();
    let source = work.path().join("source");
    extant_testkit::tree::make_small(&source);
    std::fs::create_dir(work.path().join("mount")).unwrap();
    let mut all = [Tally::default(), Tally::default()];
    let mut wrong = Vec::new();
    for (name, options) in LAYOUTS {
        if kind.as_deref().is_some_and(|kind| kind != *name) {
            continue;
        }
        let image = work.path().join("image");
        let _ = std::fs::remove_file(&image);
        let mut arguments = options.to_vec();
        arguments.extend(["-b", "1024", "-N", "256", "-d", source.to_str().unwrap()]);
        require!(mke2fs(&image, "6M", &arguments));
        let whole = extant_testkit::image::load(&image);
        let kinds = places(&whole, &BTreeSet::new());
        for mutant in 0..=mutants {
            if chosen.is_some_and(|chosen| chosen != mutant) {
                continue;
            }
            let mut random = Prng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(mutant));
            let device = whole.snapshot();
            let (mut story, mut damaged) = ("nothing".to_owned(), "nothing");
            let repaired = random.below(2) == 0;
            if mutant > 0 {
                let (text, place) = damage_one(&device, &kinds, &mut random);
                (story, damaged) = (text, place.what);
                if repaired {
                    reseal::reseal(&device, &whole, place);
                }
            }
            let what = format!(
                "{name}, seed {seed}, mutant {mutant}, {story}{}",
                if repaired { ", checksums repaired" } else { "" }
            );
            if chosen.is_some() {
                println!("{what}");
            }
            for (way, tally) in Way::ALL.into_iter().zip(&mut all) {
                let what = format!("{} {what}", way.word());
                let kernel = match by_kernel(&device, work.path(), way) {
                    Ok(kernel) => kernel,
                    Err(reason) => {
                        println!("{what}: {reason}");
                        tally.kernel_hung += 1;
                        continue;
                    }
                };
                let ours = ours(&device, &whole, work.path(), &what, way);
                let known = wrong.len();
                compare(tally, &mut wrong, (&what, damaged), ours.as_ref(), kernel.as_ref());
                // Whoever waits for thousands wants to know early.
                wrong.iter().skip(known).for_each(|text| println!("{text}"));
            }
        }
        println!("{name}: done, {} differences so far", wrong.len());
    }
    for (way, tally) in Way::ALL.into_iter().zip(&all) {
        println!("{}: {tally}", way.word());
        for (kind, (stricter, looser)) in &tally.by_kind {
            println!("  {kind}: extant stricter in {stricter}, looser in {looser}");
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

fn compare(
    tally: &mut Tally,
    wrong: &mut Vec<String>,
    (what, damaged): (&str, &'static str),
    ours: Option<&Answers>,
    kernel: Option<&Answers>,
) {
    tally.mutants += 1;
    let known = DIFFERENCES.iter().any(|(kind, _)| *kind == damaged);
    let (stricter, looser) = tally.by_kind.entry(damaged).or_default();
    let (ours, kernel) = match (ours, kernel) {
        (Some(ours), Some(kernel)) => (ours, kernel),
        (None, None) => {
            tally.neither += 1;
            return;
        }
        (Some(_), None) => {
            tally.ours_alone += 1;
            *looser += 1;
            if !known {
                wrong.push(format!("{what}: mounted by extant alone"));
            }
            return;
        }
        (None, Some(_)) => {
            tally.kernel_alone += 1;
            *stricter += 1;
            if !known {
                wrong.push(format!("{what}: mounted by the kernel alone"));
            }
            return;
        }
    };
    tally.both += 1;
    let mut same = true;
    let keys: BTreeSet<&String> = ours.keys().chain(kernel.keys()).collect();
    // Where one of them did not do what the other did, what is there afterwards differs.
    let did_the_same = keys
        .iter()
        .filter(|key| key.starts_with("change"))
        .all(|key| ours.get(*key) == kernel.get(*key));
    for key in keys {
        if key.starts_with("after") && !did_the_same {
            continue;
        }
        tally.answers += 1;
        let (mine, theirs) = (ours.get(key), kernel.get(key));
        if mine == theirs {
            continue;
        }
        same = false;
        let refused = |answer: Option<&String>| answer.is_none_or(|text| text.starts_with("error"));
        match (refused(mine), refused(theirs)) {
            // Both refuse, in other words: no data differs.
            (true, true) => continue,
            (true, false) => {
                tally.ours_stricter += 1;
                *stricter += 1;
            }
            (false, true) => {
                tally.ours_looser += 1;
                *looser += 1;
            }
            (false, false) if is_cut_when_mounted(damaged, key, mine, theirs) => continue,
            (false, false) => {
                wrong.push(format!("{what}: {key}: extant {mine:?}, the kernel {theirs:?}"));
                continue;
            }
        }
        if !known {
            wrong.push(format!("{what}: {key}: extant {mine:?}, the kernel {theirs:?}"));
        }
    }
    tally.same += u64::from(same);
    if number("EXTANT_MUTANT").is_some() && !same {
        for key in ours.keys().chain(kernel.keys()).collect::<BTreeSet<_>>() {
            if ours.get(key) != kernel.get(key) {
                println!("{key}: extant {:?}, the kernel {:?}", ours.get(key), kernel.get(key));
            }
        }
    }
}

/// An orphan with a name is cut to its size when it is mounted, and its time of modification is then:
/// each mount has its own.
fn is_cut_when_mounted(
    damaged: &str,
    key: &str,
    mine: Option<&String>,
    theirs: Option<&String>,
) -> bool {
    let all_but_time = |answer: Option<&String>| {
        answer.and_then(|text| text.rsplit_once(' ')).map(|(rest, _)| rest.to_owned())
    };
    damaged.contains("orphan")
        && key.starts_with("before")
        && key.ends_with("stat")
        && all_but_time(mine) == all_but_time(theirs)
}

#[test]
fn every_difference_is_in_the_document() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mount-checks.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("\n## Damaged images in use\n").expect("the table");
    let table = table.split("\n## ").next().unwrap();
    for (kind, reason) in DIFFERENCES {
        let row = format!("| {kind} | {reason} |");
        assert!(table.lines().any(|line| line == row), "not in the document: {row}");
    }
    let rows = table.lines().filter(|line| line.starts_with("| ")).count();
    assert_eq!(rows, DIFFERENCES.len() + 2, "the document has other rows than the test");
}

#[test]
fn what_the_kernel_reads_of_damaged_images_is_read_alike() {
    try_layouts(FEW);
}

/// Two thousand mutants, each in both ways.
#[test]
#[ignore = "takes a quarter of an hour"]
fn what_the_kernel_reads_of_two_thousand_damaged_images_is_read_alike() {
    try_layouts(2004 / LAYOUTS.len() as u64);
}
