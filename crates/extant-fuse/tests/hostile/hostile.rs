//! Damaged images, mounted and walked by programs: no panic, no hang, bounded memory; and reading goes
//! on beside the damage.
//!
//! `EXTANT_MUTANTS` asks for more mutants of each image, `EXTANT_SEED` for others, `EXTANT_KIND` for one
//! image, `EXTANT_MUTANT` for one mutant, whose damage is printed. The long form mounts a thousand.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common;
use crate::damage;
use common::{Heard, obstacle, with_mount};
use damage::{damage, places};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_fuse::Settings;
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, skip};

const LAYOUTS: &[(&str, &[&str])] = &[
    ("journal", &["-t", "ext4", "-O", "^metadata_csum", "-J", "size=1"]),
    ("checksums", &["-t", "ext4", "-J", "size=1"]),
    ("ext2", &["-t", "ext2"]),
    ("inline data", &["-t", "ext4", "-O", "^has_journal,^metadata_csum,inline_data"]),
    ("bigalloc", &["-t", "ext4", "-O", "^has_journal,^metadata_csum,bigalloc"]),
    ("large attributes", &["-t", "ext4", "-O", "^has_journal,^metadata_csum,ea_inode,quota"]),
];
/// Mutants of each layout in the short form: with these, about a minute.
const FEW: u64 = 6;
/// Seconds after which programs that walk have hung: on an idle machine one walk takes a tenth of one.
const LIMIT: u64 = 30;
/// Most memory that the whole test may use, in KiB.
const MEMORY_MAX_KIB: u64 = 512 << 10;

/// What programs do: list, stat, read, attributes; then change what they can, and remove it.
const WALK: &str = r#"
exec 2> /dev/null
cd "$1" || exit 0
find . -printf '%p %s %i %n %m %T@ %l\n' > /dev/null
find . -type f -exec head -c 2000000 {} + > /dev/null
find . -exec getfattr -h -d -m - {} + > /dev/null
ls -lR . > /dev/null
df . > /dev/null
mkdir new
for name in 1 2 3 4 5 6 7 8; do head -c 70000 /dev/zero > "new/$name"; done
mv new/1 a/moved
ln a/large new/link
truncate -s 10000 a/large
setfattr -n user.test -v value a/small
sync -f .
rm -rf big a/b
sync -f .
exit 0
"#;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn source() -> extant_testkit::TempDir {
    let dir = extant_testkit::tempdir().unwrap();
    let root = dir.path().join("source");
    extant_testkit::tree::make_small(&root);
    dir
}

/// Mounts the image, lets programs walk it, unmounts. Whether it could be mounted.
fn walk(device: SharedDevice, dir: &Path, settings: &Settings, heard: &Heard, what: &str) -> bool {
    let options = MountOptions::new().read_only(false).cache_bytes(1 << 20);
    let Ok(fs) = options.data_cache_bytes(8 << 20).open_shared(device) else { return false };
    let (_damaged, walked) = with_mount(fs, dir, settings, heard, |dir| {
        Command::new("timeout")
            .args(["--signal=KILL", &LIMIT.to_string(), "sh", "-c", WALK, "walk"])
            .arg(dir)
            .stdin(Stdio::null())
            .status()
            .unwrap()
    });
    assert!(walked.success(), "{what}: programs hung ({walked})");
    assert!(heard.ready.load(Ordering::SeqCst), "{what}: never ready");
    assert_eq!(heard.bugs.load(Ordering::SeqCst), 0, "{what}: a panic");
    true
}

fn try_layouts(mutants: u64, settings: &Settings) {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let seed = number("EXTANT_SEED").unwrap_or(1);
    let mutants = number("EXTANT_MUTANTS").unwrap_or(mutants);
    let chosen = number("EXTANT_MUTANT");
    let kind = std::env::var("EXTANT_KIND").ok();
    let tree = source();
    let mount_at = tree.path().join("mount");
    std::fs::create_dir(&mount_at).unwrap();
    let source = tree.path().join("source");
    for (name, options) in LAYOUTS {
        if kind.as_deref().is_some_and(|kind| kind != *name) {
            continue;
        }
        let image = tree.path().join("image");
        let mut arguments = options.to_vec();
        arguments.extend(["-b", "1024", "-N", "256", "-d", source.to_str().unwrap()]);
        require!(mke2fs(&image, "6M", &arguments));
        let whole: MemoryDevice = extant_testkit::image::load(&image);
        let all = places(&whole, &BTreeSet::new());
        let (mut mounted, mut met, mut slowest) = (0, 0, Duration::ZERO);
        // Mutant 0 is the image itself.
        for mutant in 0..=mutants {
            if chosen.is_some_and(|chosen| chosen != mutant) {
                continue;
            }
            let mut random = Prng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(mutant));
            let device = Arc::new(whole.snapshot());
            let mut story = String::new();
            for _ in 0..(1 + random.below(6)) * u64::from(mutant > 0) {
                story += &damage(&device, &all, &mut random);
                story += "\n";
            }
            let what = format!("{name}, seed {seed}, mutant {mutant}");
            if chosen.is_some() {
                println!("{what}:\n{story}");
            }
            let heard = Heard::new();
            let began = SystemClock.monotonic();
            if mutants > FEW {
                println!("{what}");
            }
            let is_mounted = walk(device, &mount_at, settings, &heard, &what);
            mounted += u64::from(is_mounted && mutant > 0);
            slowest = slowest.max(SystemClock.monotonic().saturating_sub(began));
            let errors = heard.errors.load(Ordering::SeqCst);
            assert!(mutant > 0 || errors == 0, "{name}: the image itself has damage");
            met += u64::from(errors > 0);
        }
        println!(
            "{name}, seed {seed}: {mounted} of {mutants} mounted, {met} met damage; the \
             slowest took {slowest:?}"
        );
        assert!(chosen.is_some() || mounted > mutants / 4, "{name}: little is tested");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    if let Some(kib) = peak {
        println!("peak memory {kib} KiB");
        assert!(kib < MEMORY_MAX_KIB, "{kib} KiB of memory were used");
    }
}

#[test]
fn programs_on_damaged_images_end_in_answers_or_errors() {
    try_layouts(FEW, &Settings::default());
}

#[test]
fn the_same_over_rings() {
    try_layouts(2, &require!(common::over_rings()));
}

/// A thousand mutants; minutes.
#[test]
#[ignore = "takes minutes"]
fn programs_on_a_thousand_damaged_images_end_in_answers_or_errors() {
    try_layouts(1002 / LAYOUTS.len() as u64, &Settings::default());
}
