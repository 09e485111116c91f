//! What the kernel checks when it mounts, one field after the other: which of it extant checks, and
//! where it is stricter or looser. `docs/mount-checks.md` is this table with the reasons.

use std::path::Path;
use std::sync::Arc;

use crate::common;
use crate::patch;
use extant::{Fs, MountOptions};
use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_sync::FixedClock;
use extant_testkit::oracle::{LoopMount, is_root, mke2fs};
use extant_testkit::require;
use rustix::mount::MountFlags;

/// Who mounts: for reading, for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Takes {
    Both,
    Reading,
    Neither,
}
use Takes::{Both, Neither, Reading};

/// A field, what is put there, and who mounts that: the kernel, extant.
struct Check {
    name: &'static str,
    image: &'static str,
    patch: &'static [(usize, &'static [u8])],
    kernel: Takes,
    ours: Takes,
}

const IMAGES: &[(&str, &[&str])] = &[
    ("plain", &["-t", "ext4", "-b", "1024", "-J", "size=1"]),
    ("journal", &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file,^metadata_csum"]),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^has_journal"]),
    ("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "bigalloc,^has_journal"]),
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("narrow", &["-t", "ext4", "-b", "1024", "-O", "^64bit,^has_journal,^flex_bg"]),
];

const fn check(
    name: &'static str,
    image: &'static str,
    patch: &'static [(usize, &'static [u8])],
    kernel: Takes,
    ours: Takes,
) -> Check {
    Check { name, image, patch, kernel, ours }
}

include!("../common/mount_checks_table.rs");

fn make(options: &[&str]) -> Result<MemoryDevice, String> {
    let dir = common::work_dir();
    let image = dir.path().join("image");
    mke2fs(&image, "16M", &[options, &["-N", "512"]].concat())?;
    Ok(extant_testkit::image::load(&image))
}

fn opens(device: &MemoryDevice, writing: bool) -> extant::Result<()> {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(!writing).seed(1).clock(clock).background(false);
    let device: SharedDevice = Arc::new(device.snapshot());
    let fs: Fs = options.open_shared(device)?;
    fs.check_root()?;
    fs.unmount()
}

/// What an image says is never the fault of the device, or of who asked.
fn assert_blamed(error: &extant::FsError) {
    use extant::{Family, FsError};
    let wrong = matches!(error, FsError::NoSuchInode { .. } | FsError::NotFound { .. });
    assert!(!wrong && error.family() != Family::Device, "{error}");
}

fn ours(device: &MemoryDevice) -> (Takes, String) {
    for writing in [false, true] {
        if let Err(error) = opens(device, writing) {
            assert_blamed(&error);
        }
    }
    match (opens(device, false), opens(device, true)) {
        (Ok(()), Ok(())) => (Both, String::new()),
        (Ok(()), Err(error)) => (Reading, error.to_string()),
        (Err(error), Err(_)) => (Neither, error.to_string()),
        (Err(error), Ok(())) => panic!("mounts for writing only: {error}"),
    }
}

fn by_kernel(device: &MemoryDevice, dir: &Path) -> Result<Takes, String> {
    let image = dir.join("image");
    let _ = std::fs::remove_file(&image);
    extant_testkit::image::save(device, &image);
    let takes = |flags, options| LoopMount::attempt(&image, flags, options).map(|one| one.is_ok());
    let reads = takes(MountFlags::RDONLY, "errors=continue")?;
    let writes = takes(MountFlags::empty(), "errors=continue")?;
    Ok(match (reads, writes) {
        (true, true) => Both,
        (true, false) => Reading,
        (false, false) => Neither,
        (false, true) => return Err("mounts for writing only".to_owned()),
    })
}

#[test]
fn fields_are_checked_as_the_table_says() {
    let only = std::env::var("EXTANT_CHECK").ok();
    let print = std::env::var_os("EXTANT_TRACE").is_some();
    let dir = common::work_dir();
    let mut wrong = Vec::new();
    for (image, options) in IMAGES {
        let whole = require!(make(options));
        assert_eq!(ours(&whole), (Both, String::new()), "{image}");
        for check in CHECKS.iter().filter(|check| check.image == *image) {
            if only.as_ref().is_some_and(|only| only != check.name) {
                continue;
            }
            let device = whole.snapshot();
            for (at, bytes) in check.patch {
                device.write_at(1024 + *at as u64, bytes).unwrap();
            }
            patch::reseal(&device);
            let (takes, why) = ours(&device);
            let kernel = if is_root() { by_kernel(&device, dir.path()) } else { Ok(check.kernel) };
            if print {
                println!("{:40} {image:9} kernel {kernel:?} ours {takes:?} {why}", check.name);
            }
            if takes != check.ours {
                wrong.push(format!("{} ({image}): extant {takes:?}: {why}", check.name));
            }
            // Without loop devices extant's half of the table is checked.
            if let Ok(kernel) = kernel
                && kernel != check.kernel
            {
                wrong.push(format!("{} ({image}): the kernel {kernel:?}", check.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_difference_is_in_the_document() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mount-checks.md");
    let text = std::fs::read_to_string(path).unwrap();
    for check in CHECKS {
        let name = format!("| {} |", check.name);
        let row = text.lines().find(|line| line.starts_with(&name));
        let row = row.unwrap_or_else(|| panic!("{}: not in the document", check.name));
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let word = |takes| match takes {
            Both => "both",
            Reading => "read",
            Neither => "no",
        };
        assert_eq!(columns[2..4], [word(check.kernel), word(check.ours)], "{row}");
        assert_eq!(check.kernel == check.ours, columns[4].is_empty(), "the reason: {row}");
    }
}
