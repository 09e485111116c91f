//! Whatever the kernel keeps of a mount, row by row of the table in docs/design/0011-what-the-kernel-keeps.md.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::MountOptions;
use extant_block::{MemoryDevice, SharedDevice};
use extant_fuse::Settings;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{require, skip};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, XattrFlags, copy_file_range, fallocate, getxattr,
    linkat, openat, removexattr, setxattr,
};

const BLOCK: usize = 4096;

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn attributes(at: &Path) {
    let path = at.join("file");
    create(&path);
    for bits in [0o600, 0o4755, 0o2711] {
        set_mode(&path, bits);
        assert_eq!(mode(&path), bits);
    }
    std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
    let now = fs::metadata(&path).unwrap();
    assert_eq!((now.uid(), now.gid(), now.mode() & 0o7777), (7, 8, 0o711));
    for names in 2..5 {
        fs::hard_link(&path, at.join(format!("name{names}"))).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().nlink(), names);
        assert_eq!(fs::metadata(at.join(format!("name{names}"))).unwrap().nlink(), names);
    }
    fs::remove_file(at.join("name4")).unwrap();
    fs::rename(at.join("name3"), at.join("name2")).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 3, "two names of one file: nothing is done");
    fs::remove_file(at.join("name3")).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
    let dir = fs::metadata(at).unwrap().nlink();
    fs::create_dir(at.join("d")).unwrap();
    assert_eq!(fs::metadata(at).unwrap().nlink(), dir + 1);
    fs::remove_dir(at.join("d")).unwrap();
    assert_eq!(fs::metadata(at).unwrap().nlink(), dir);
}

fn space(at: &Path) {
    let path = at.join("file");
    let file = create(&path);
    let blocks = || fs::metadata(&path).unwrap().blocks();
    assert_eq!(blocks(), 1, "the kernel may have data of it");
    file.write_all_at(&[1; 4 * BLOCK], 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(blocks(), 32);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 0, BLOCK as u64).unwrap();
    assert_eq!(blocks(), 24);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 4 * BLOCK as u64, BLOCK as u64).unwrap();
    assert_eq!(blocks(), 32);
    file.set_len(BLOCK as u64).unwrap();
    assert_eq!(blocks(), 1);
    // Too large for the inode.
    setxattr(&path, "user.large", &[b'x'; 2000], XattrFlags::empty()).unwrap();
    assert_eq!(blocks(), 8);
    removexattr(&path, "user.large").unwrap();
    assert_eq!(blocks(), 1);
}

fn contents(at: &Path) {
    let file = create(&at.join("file"));
    let byte = |offset: usize| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset as u64).unwrap();
        byte[0]
    };
    let all = |what: &str, wanted: [u8; 4]| {
        let is = [byte(5), byte(BLOCK + 5), byte(2 * BLOCK + 5), byte(3 * BLOCK + 5)];
        assert_eq!(is, wanted, "{what}");
    };
    file.write_all_at(&[1; 4 * BLOCK], 0).unwrap();
    all("written", [1; 4]);
    let range =
        |mode, at: usize, len: usize| fallocate(&file, mode, at as u64, len as u64).unwrap();
    range(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, BLOCK, BLOCK);
    all("punched", [1, 0, 1, 1]);
    range(FallocateFlags::ZERO_RANGE, 2 * BLOCK, BLOCK);
    all("zeroed", [1, 0, 0, 1]);
    let other = create(&at.join("other"));
    other.write_all_at(&[2; BLOCK], 0).unwrap();
    let copied = copy_file_range(&other, Some(&mut 0), &file, Some(&mut (BLOCK as u64)), BLOCK);
    assert_eq!(copied, Ok(BLOCK));
    all("copied", [1, 2, 0, 1]);
    file.set_len(3 * BLOCK as u64 + 2).unwrap();
    file.set_len(4 * BLOCK as u64).unwrap();
    all("cut and grown", [1, 2, 0, 0]);
    fs::write(at.join("file"), [9; 3]).unwrap();
    assert_eq!(fs::read(at.join("file")).unwrap(), [9; 3]);
}

fn names(at: &Path) {
    let is_there = |name: &str| fs::symlink_metadata(at.join(name)).is_ok();
    let missing = ["made", "dir", "linked", "moved", "symbolic", "nameless", "exchanged", "pipe"];
    // Known not to be there.
    assert!(!missing.iter().any(|name| is_there(name)));
    create(&at.join("made"));
    fs::create_dir(at.join("dir")).unwrap();
    fs::hard_link(at.join("made"), at.join("linked")).unwrap();
    create(&at.join("first"));
    fs::rename(at.join("first"), at.join("moved")).unwrap();
    symlink("made", at.join("symbolic")).unwrap();
    let nameless = openat(CWD, at, OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o600)).unwrap();
    linkat(&nameless, "", CWD, at.join("nameless"), AtFlags::EMPTY_PATH).unwrap();
    create(&at.join("exchanged"));
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(CWD, at.join("pipe"), kind, Mode::from(0o600), 0).unwrap();
    assert!(missing.iter().all(|name| is_there(name)));
    assert!(!is_there("first"));
    let (a, b) = (at.join("exchanged"), at.join("dir"));
    rustix::fs::renameat_with(CWD, &a, CWD, &b, rustix::fs::RenameFlags::EXCHANGE).unwrap();
    assert!(fs::metadata(&a).unwrap().is_dir() && fs::metadata(&b).unwrap().is_file());
    fs::remove_dir(&a).unwrap();
    fs::remove_file(at.join("linked")).unwrap();
    assert!(!is_there("exchanged") && !is_there("linked") && is_there("made"));
}

fn links(at: &Path) {
    let path = at.join("link");
    for round in 0..200 {
        // The number is used again.
        let target = format!("{}{round}", "long/".repeat(round % 20));
        symlink(&target, &path).unwrap();
        assert_eq!(fs::read_link(&path).unwrap().as_os_str(), target.as_str());
        if round % 2 == 0 {
            fs::remove_file(&path).unwrap();
        } else {
            symlink("other", at.join("other")).unwrap();
            fs::rename(at.join("other"), &path).unwrap();
            assert_eq!(fs::read_link(&path).unwrap().as_os_str(), "other");
            fs::remove_file(&path).unwrap();
        }
    }
}

fn capabilities(at: &Path) {
    const NAME: &str = "security.capability";
    const CAPABLE: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let path = at.join("file");
    let file = create(&path);
    let has = || getxattr(&path, NAME, &mut [0; 64]).is_ok();
    for round in 0..3u64 {
        // Now it is known that there are none to be taken.
        file.write_all_at(b"x", 2 * round).unwrap();
        assert!(!has());
        setxattr(&path, NAME, &CAPABLE, XattrFlags::empty()).unwrap();
        assert!(has());
        file.write_all_at(b"y", 2 * round + 1).unwrap();
        assert!(!has(), "round {round}");
    }
    setxattr(&path, NAME, &CAPABLE, XattrFlags::empty()).unwrap();
    file.set_len(1).unwrap();
    assert!(!has(), "truncated");
    setxattr(&path, NAME, &CAPABLE, XattrFlags::empty()).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 100).unwrap();
    assert!(!has(), "allocated");
}

fn lists(at: &Path) {
    const NAME: &str = "system.posix_acl_access";
    let path = at.join("file");
    create(&path);
    set_mode(&path, 0o640);
    let list = || {
        let mut bytes = [0; 256];
        getxattr(&path, NAME, &mut bytes).map(|len| bytes[..len].to_vec())
    };
    assert!(list().is_err());
    let entry = |tag: u16, perm: u16, id: u32| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes
    };
    let nobody = u32::MAX;
    let of = |mask: u16| {
        let mut all = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in [
            (0x01, 6, nobody),
            (0x02, 7, 1000),
            (0x04, 4, nobody),
            (0x10, mask, nobody),
            (0x20, 0, nobody),
        ] {
            all.extend(entry(tag, perm, id));
        }
        all
    };
    setxattr(&path, NAME, &of(7), XattrFlags::empty()).unwrap();
    assert_eq!((list().unwrap(), mode(&path)), (of(7), 0o670));
    // The group of the mode is the mask.
    set_mode(&path, 0o640);
    assert_eq!((list().unwrap(), mode(&path)), (of(4), 0o640));
    setxattr(&path, NAME, &of(5), XattrFlags::empty()).unwrap();
    assert_eq!((list().unwrap(), mode(&path)), (of(5), 0o650));
    removexattr(&path, NAME).unwrap();
    assert!(list().is_err());
}

fn listings(at: &Path) {
    let dir = at.join("many");
    fs::create_dir(&dir).unwrap();
    let mut wanted = BTreeSet::new();
    let listed = |wanted: &BTreeSet<String>, what: &str| {
        // The second one out of the cache.
        for round in 0..2 {
            let names: BTreeSet<String> = fs::read_dir(&dir)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            assert_eq!(&names, wanted, "{what}, {round}");
        }
    };
    listed(&wanted, "empty");
    for index in 0..300 {
        let name = format!("a name of some length, number {index}");
        create(&dir.join(&name));
        wanted.insert(name);
        if index % 50 == 0 {
            listed(&wanted, "made");
        }
    }
    listed(&wanted, "all");
    for index in (0..300).step_by(30) {
        let name = format!("a name of some length, number {index}");
        wanted.remove(&name);
        if index % 60 == 0 {
            fs::remove_file(dir.join(&name)).unwrap();
        } else {
            fs::rename(dir.join(&name), dir.join(format!("moved {index}"))).unwrap();
            wanted.insert(format!("moved {index}"));
        }
        listed(&wanted, "changed");
    }
}

type Row = (&'static str, fn(&Path));

const ROWS: [Row; 8] = [
    ("attributes", attributes),
    ("space", space),
    ("contents", contents),
    ("names", names),
    ("links", links),
    ("capabilities", capabilities),
    ("lists", lists),
    ("listings", listings),
];

/// What programs are shown of everything below a directory.
fn shown(dir: &Path, all: &mut Vec<(String, [u64; 7], [i64; 4])>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let of = fs::symlink_metadata(&path).unwrap();
        let numbers = [
            u64::from(of.mode()),
            of.nlink(),
            u64::from(of.uid()),
            u64::from(of.gid()),
            of.size(),
            of.blocks(),
            of.ino(),
        ];
        let times = [of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()];
        all.push((path.to_str().unwrap().to_owned(), numbers, times));
        if of.is_dir() {
            shown(&path, all);
        }
    }
}

fn open(device: &Arc<MemoryDevice>) -> extant::Fs {
    let shared = Arc::clone(device) as SharedDevice;
    MountOptions::new().read_only(false).open_shared(shared).unwrap()
}

fn row_by_row(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    require!(mke2fs(&image, "32M", &["-t", "ext4", "-b", "4096"]));
    fs::create_dir(&at).unwrap();
    let device = Arc::new(extant_testkit::image::load(&image));
    let (served, before) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        for (row, check) in ROWS {
            println!("{row}");
            let own = at.join(row);
            fs::create_dir(&own).unwrap();
            check(&own);
        }
        let mut all = Vec::new();
        shown(at, &mut all);
        all.sort();
        all
    });
    served.unwrap();
    // Everything is stored: a kernel that knows nothing is shown the same.
    let (served, after) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        let mut all = Vec::new();
        shown(at, &mut all);
        all.sort();
        all
    });
    served.unwrap();
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before, after);
    }
    let path = dir.path().join("check");
    extant_testkit::image::save(&device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

#[test]
fn what_the_kernel_keeps_is_true_row_by_row() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let mut settings = Settings::default();
    row_by_row(&settings);
    settings.writeback_cache = false;
    row_by_row(&settings);
    match common::over_rings() {
        Ok(settings) => row_by_row(&settings),
        Err(obstacle) => println!("not over rings: {obstacle}"),
    }
}
