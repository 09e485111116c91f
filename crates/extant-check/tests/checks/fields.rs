//! Fields that say something for themselves: one is changed at a time, and the problem is named by what it is.
//! e2fsck, asked beside, calls the same of them damage.

use std::fs;
use std::path::PathBuf;

use extant_block::BlockDevice;
use extant_check::{CheckOptions, Problem, check};
use extant_testkit::{TempDir, image, oracle, require, tempdir};

const EXT4: &[&str] = &["-text4", "-b1024"];
const NARROW: &[&str] = &["-text4", "-b1024", "-O^64bit"];
const INLINE: &[&str] = &["-text4", "-b1024", "-Oinline_data"];
const VERITY: &[&str] = &["-text4", "-b1024", "-Overity"];
const CLUSTERS: &[&str] = &["-text4", "-b1024", "-Obigalloc,^resize_inode", "-C4096"];
const UNSUMMED: &[&str] = &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg"];
const UNTYPED: &[&str] = &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg,^filetype"];

fn sample(dir: &TempDir, features: &[&str]) -> Result<PathBuf, String> {
    let source = dir.path().join("source");
    if !source.exists() {
        fs::create_dir_all(source.join("d/e")).unwrap();
        fs::write(source.join("file"), vec![3; 3000]).unwrap();
        fs::write(source.join("tiny"), vec![3; 90]).unwrap();
        fs::write(source.join("d/a name that is long enough for two in a directory"), []).unwrap();
    }
    let path = dir.path().join("sample.img");
    let _removed = fs::remove_file(&path);
    let from = source.display().to_string();
    let arguments: Vec<&str> = features.iter().copied().chain(["-N256", "-d", &from]).collect();
    oracle::mke2fs(&path, "8M", &arguments)?;
    Ok(path)
}

/// What debugfs does, and a word that the one who reads the problems must see; empty: there is none.
const CASES: &[(&[&str], &str, &str)] = &[
    // A file that was deleted says when.
    (EXT4, "sif /tiny links_count 0\nsif /tiny dtime 0\nunlink /tiny\nfreei <16>", "dtime is 0"),
    (EXT4, "sif /d size 0x100000400", "its high half has no meaning here"),
    (EXT4, "mknod fifo p\nsif fifo size 5", "it has a size"),
    (EXT4, "sif /file faddr 7", "i_faddr"),
    (EXT4, "sif <8> size 1048577", "it has holes"),
    (NARROW, "sif /file file_acl 0x700000000", "i_file_acl_hi"),
    (EXT4, "link <2> /d/up", "which has no name"),
    (INLINE, "sif /d/e size 61", "another amount of it is inline"),
    // Behind the end of a sealed file are its hashes; behind the end of another is what was lost.
    (VERITY, "sif /file flags 0x180000\nsif /file size 900", ""),
    (VERITY, "sif /file size 900", "blocks behind it hold data"),
];

#[test]
fn a_changed_field_is_named_and_e2fsck_agrees() {
    let dir = tempdir().unwrap();
    let mut missed = Vec::new();
    for (features, commands, wanted) in CASES {
        let path = require!(sample(&dir, features));
        oracle::debugfs(&path, true, commands).unwrap();
        let device = image::load(&path);
        let found = check(&device, &CheckOptions::default()).unwrap().problems;
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        let is_told = match wanted.is_empty() {
            true => texts.is_empty(),
            false => texts.iter().any(|text| text.contains(wanted)),
        };
        let fsck = image::e2fsck(&device, dir.path()).unwrap();
        if !is_told || texts.is_empty() != fsck.is_empty() {
            missed.push(format!("{features:?} {commands}: {texts:#?}\n{fsck}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

type Is = fn(&Problem) -> bool;

type Poke = (&'static [&'static str], &'static [u8], i64, &'static [u8], Is);

/// As above: bytes that are looked for, what so many behind them is changed, and the problem.
const POKES: &[Poke] = &[
    (UNSUMMED, b"\x04\x01file", 0, b"\0", |p| matches!(p, Problem::Name { .. })),
    (UNTYPED, b"\x04\x00file", 1, b"\x01", |p| matches!(p, Problem::EntryType { .. })),
    // The first record of `/d/e`, over one that nothing uses, and the second behind that.
    (UNSUMMED, b"\x01\x02.\0\0\0", -2, FIRST_TOO_LONG, |p| {
        matches!(p, Problem::Dots { name: ".", .. })
    }),
];

/// From the length of the record `.` on: 24, its name, a record without an inode, and `..` in the root.
const FIRST_TOO_LONG: &[u8] =
    b"\x18\0\x01\x02.\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0\x02\0\0\0\xe8\x03\x02\x02..\0\0";

#[test]
fn a_changed_byte_of_a_directory_is_named_and_e2fsck_agrees() {
    let dir = tempdir().unwrap();
    for (features, wanted, offset, bytes, is_kind) in POKES {
        let path = require!(sample(&dir, features));
        let device = image::load(&path);
        let mut all = vec![0; device.size_bytes() as usize];
        device.read_at(0, &mut all).unwrap();
        let mut places = all.windows(wanted.len()).enumerate();
        // The last that is there: of the records `.`, that of a directory without files.
        let at = places.rfind(|(_, window)| window == wanted).unwrap().0 as u64;
        device.write_at(at.wrapping_add_signed(*offset), bytes).unwrap();
        let found = check(&device, &CheckOptions::default()).unwrap().problems;
        assert!(found.iter().any(is_kind), "{wanted:x?} {offset}: {found:?}");
        assert_ne!(image::e2fsck(&device, dir.path()).unwrap(), "", "{wanted:x?} {offset}");
    }
}

/// An extent: its place in the file, its length, its block.
type Extent = (u32, u32, u32);

/// The root of a tree of extents: how many there are, how many may be, and each by place, length and block.
fn tree(file: &str, max: u16, extents: &[Extent]) -> String {
    let mut words = vec![0xf30a | (extents.len() as u32) << 16, u32::from(max), 0];
    words.extend(extents.iter().flat_map(|(at, len, block)| [*at, *len, *block]));
    let set = words.iter().enumerate();
    set.map(|(slot, word)| format!("sif {file} block[{slot}] {word}\n")).collect()
}

#[test]
fn extents_begin_where_clusters_do_and_their_root_has_its_room() {
    let dir = tempdir().unwrap();
    let path = require!(sample(&dir, CLUSTERS));
    let text = oracle::debugfs(&path, false, "blocks /file").unwrap();
    let first: u32 = text.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let free = 6000;
    let cases: [(u16, &[Extent], Is); 3] = [
        (4, &[(0, 3, first + 1)], |p| matches!(p, Problem::Cluster { .. })),
        (4, &[(0, 1, first), (1, 2, free + 1)], |p| matches!(p, Problem::ClusterSplit { .. })),
        (1, &[(0, 3, first)], |p| matches!(p, Problem::ExtentRoom { .. })),
    ];
    let good = image::load(&path);
    for (max, extents, is_kind) in cases {
        fs::remove_file(&path).unwrap();
        image::save(&good, &path);
        oracle::debugfs(&path, true, &tree("/file", max, extents)).unwrap();
        let device = image::load(&path);
        let found = check(&device, &CheckOptions::default()).unwrap().problems;
        assert!(found.iter().any(is_kind), "{extents:?}: {found:?}");
        assert_ne!(image::e2fsck(&device, dir.path()).unwrap(), "", "{extents:?}");
    }
}
