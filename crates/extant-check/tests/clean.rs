//! Images that e2fsck calls clean have no problems, whatever their features and whoever made them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use extant_check::{CheckOptions, Report, check};
use extant_testkit::oracle::{self, LoopMount};
use extant_testkit::{image, require, tempdir};

fn report(path: &Path) -> Report {
    check(&image::load(path), &CheckOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn assert_clean(path: &Path, what: &str) {
    let fsck = oracle::e2fsck(path).unwrap();
    let report = report(path);
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(fsck.is_clean(), "{what}: e2fsck: {}\nwe: {problems:#?}", fsck.text);
    assert!(report.is_clean(), "{what}: {problems:#?}");
    assert!(report.counts.inodes >= 11 && report.counts.directories >= 1, "{what}");
}

/// A tree with every kind of thing that has a rule of its own.
fn grow(root: &Path) {
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

const FEATURES: &[(&str, &[&str])] = &[
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

#[test]
fn images_of_mke2fs_have_no_problems() {
    let dir = tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    grow(&source);
    for (what, features) in FEATURES {
        let empty = dir.path().join("empty.img");
        require!(oracle::mke2fs(&empty, "24M", features));
        assert_clean(&empty, &format!("{what}, empty"));
        let full = dir.path().join("full.img");
        let from = source.display().to_string();
        let arguments: Vec<&str> = features.iter().copied().chain(["-d", &from]).collect();
        require!(oracle::mke2fs(&full, "24M", &arguments));
        assert_clean(&full, &format!("{what}, full"));
        fs::remove_file(empty).unwrap();
        fs::remove_file(full).unwrap();
    }
}

#[test]
fn images_written_by_the_kernel_have_no_problems() {
    require!(oracle::root("mounts images"));
    let dir = tempdir().unwrap();
    for (what, features) in FEATURES.iter().filter(|(what, _)| *what != "mmp") {
        let image = dir.path().join("kernel.img");
        require!(oracle::mke2fs(&image, "24M", features));
        let mount = match LoopMount::read_write(&image) {
            Ok(mount) => mount,
            Err(reason) => {
                println!("{what}: {reason}");
                fs::remove_file(image).unwrap();
                continue;
            }
        };
        let root = mount.path();
        grow(root);
        for number in (0..600).step_by(3) {
            let name =
                format!("many/a file with a long name, so that the directory grows {number}");
            fs::remove_file(root.join(name)).unwrap();
        }
        fs::remove_dir(root.join("a/dir7")).unwrap();
        fs::File::options()
            .write(true)
            .open(root.join("a/file70000"))
            .unwrap()
            .set_len(10)
            .unwrap();
        drop(mount);
        assert_clean(&image, what);
        fs::remove_file(image).unwrap();
    }
}
