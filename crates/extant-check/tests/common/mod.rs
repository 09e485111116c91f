//! Trees and features that the tests share.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use extant_check::{CheckOptions, Report, check};
use extant_testkit::tree::{self, TreeOptions};
use extant_testkit::{image, oracle};

pub(crate) fn report(path: &Path) -> Report {
    check(&image::load(path), &CheckOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
pub(crate) fn assert_clean(path: &Path, what: &str) {
    let fsck = oracle::e2fsck(path).unwrap();
    let report = report(path);
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    // mke2fs -d does not count what it copies for quota; then we must see that too.
    assert_eq!(fsck.is_clean(), report.is_clean(), "{what}: {}\nwe: {problems:#?}", fsck.text);
    if what == "quota, full" {
        return;
    }
    assert!(report.is_clean(), "{what}: {problems:#?}");
    assert!(report.counts.inodes >= 11 && report.counts.directories >= 1, "{what}");
}

/// A tree with every kind of thing that has a rule of its own.
pub(crate) fn grow(root: &Path) {
    let far = "t/".repeat(150);
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..600 {
        let name = format!("many/a file with a long name, so that the directory grows {number}");
        fs::write(root.join(name), []).unwrap();
    }
    for number in 0..40 {
        fs::create_dir(root.join(format!("a/dir{number}"))).unwrap();
    }
    for size in [1, 59, 60, 61, 100, 150, 1024, 5000, 70_000, 900_000] {
        fs::write(root.join(format!("a/file{size}")), vec![7; size]).unwrap();
    }
    fs::hard_link(root.join("a/file5000"), root.join("a/b/again")).unwrap();
    symlink("short", root.join("a/short")).unwrap();
    symlink(&far, root.join("a/long")).unwrap();
    symlink("m".repeat(59), root.join("a/59")).unwrap();
    symlink("m".repeat(60), root.join("a/60")).unwrap();
    let sparse = fs::File::create(root.join("a/sparse")).unwrap();
    for hole in 0..30 {
        use std::os::unix::fs::FileExt;
        sparse.write_all_at(&[1; 512], hole * 40_000).unwrap();
    }
}

/// The same, and everything that a kernel takes: attributes, devices, odd names.
pub(crate) fn grow_all(root: &Path) {
    grow(root);
    fs::create_dir(root.join("all")).unwrap();
    let options = TreeOptions { files: 40, big_directory_entries: 300, ..TreeOptions::default() };
    tree::make(&root.join("all"), &options);
}

pub(crate) const FEATURES: &[(&str, &[&str])] = &[
    ("ext2 1K", &["-text2", "-b1024"]),
    ("ext2 4K", &["-text2", "-b4096"]),
    ("ext2 128", &["-text2", "-b1024", "-I128", "-O^resize_inode,^dir_index,^filetype"]),
    ("ext3 1K", &["-text3", "-b1024"]),
    ("ext3 4K", &["-text3", "-b4096"]),
    ("ext4 1K", &["-text4", "-b1024"]),
    ("ext4 2K", &["-text4", "-b2048"]),
    ("ext4 4K", &["-text4", "-b4096"]),
    ("32 bit", &["-text4", "-b1024", "-O^64bit"]),
    ("no checksums", &["-text4", "-b1024", "-O^metadata_csum,uninit_bg"]),
    ("nothing", &["-text4", "-b4096", "-O^metadata_csum,^uninit_bg,^flex_bg,^has_journal"]),
    ("small groups", &["-text4", "-b1024", "-g1024", "-O^resize_inode,meta_bg,^flex_bg"]),
    ("groups", &["-text4", "-b1024", "-g2048", "-G4"]),
    ("sparse_super2", &["-text4", "-b1024", "-g2048", "-Osparse_super2"]),
    ("bigalloc", &["-text4", "-b4096", "-C16384", "-Obigalloc"]),
    ("bigalloc 1K", &["-text4", "-b1024", "-C8192", "-Obigalloc,^resize_inode"]),
    ("inline", &["-text4", "-b1024", "-Oinline_data"]),
    ("inline 4K", &["-text4", "-b4096", "-I512", "-Oinline_data"]),
    ("quota", &["-text4", "-b1024", "-Oquota,project", "-Equotatype=usrquota:grpquota:prjquota"]),
    ("ea_inode", &["-text4", "-b1024", "-Oea_inode,large_dir,metadata_csum_seed"]),
    ("orphan_file", &["-text4", "-b4096", "-Oorphan_file"]),
    ("fast_commit", &["-text4", "-b4096", "-Ofast_commit"]),
    ("mmp", &["-text4", "-b4096", "-Ommp"]),
    ("lazy", &["-text4", "-b1024", "-Elazy_itable_init=1"]),
];
