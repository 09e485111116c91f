//! Changes of extended attributes and access control lists, compared with a map of names, checked by
//! e2fsck and by the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant::{
    Acl, AclKind, Fs, FsError, Inode, MountOptions, NewInode, SetAttributes, Special, XattrMode,
};
use extant_base::Prng;
use extant_block::MemoryDevice;
use extant_format::acl::{AclEntry, Who};
use extant_format::features::Compat;
use extant_testkit::oracle::{LoopMount, debugfs, e2fsck, mke2fs};
use extant_testkit::{image, require};

struct Scratch {
    dir: tempfile::TempDir,
    device: Arc<MemoryDevice>,
}

impl Scratch {
    fn new(size: &str, options: &[&str]) -> Result<Scratch, String> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        mke2fs(&path, size, options)?;
        Ok(Scratch { device: Arc::new(image::load(&path)), dir })
    }

    fn mount(&self) -> Fs {
        let device = Arc::clone(&self.device);
        MountOptions::new().read_only(false).seed(1).open_shared(device).expect("mounts")
    }

    fn read(&self) -> Fs {
        MountOptions::new().open_shared(Arc::clone(&self.device) as _).expect("opens")
    }

    /// Stores the image, e2fsck's opinion included.
    fn checked(&self) -> std::path::PathBuf {
        let path = self.dir.path().join("result");
        let _from_before = std::fs::remove_file(&path);
        image::save(&self.device, &path);
        e2fsck(&path).expect("mke2fs is there, so is e2fsck").assert_clean();
        path
    }
}

/// Inodes without attribute space, small blocks, values in inodes, no checksums, clusters.
const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024", "-I", "128"],
    &["-t", "ext4", "-b", "1024", "-O", "ea_inode"],
    &["-t", "ext4", "-O", "ea_inode,quota,project", "-E", "quotatype=usrquota:grpquota:prjquota"],
    &["-t", "ext4", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext4", "-I", "1024", "-O", "ea_inode,metadata_csum_seed"],
    &["-t", "ext2"],
    &["-t", "ext4", "-O", "bigalloc,ea_inode", "-C", "16384"],
];

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn attributes(inode: &Inode) -> Model {
    inode.xattrs().unwrap().into_iter().map(|xattr| (xattr.name, xattr.value)).collect()
}

#[test]
fn random_attributes_equal_a_map_and_leave_a_clean_file_system() {
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let scratch = require!(Scratch::new("64M", layout));
        let mut random = Prng::new(number as u64);
        let mut models: Vec<Model> = vec![Model::new(); 8];
        {
            let fs = scratch.mount();
            let root = fs.root().unwrap();
            let files: Vec<Inode> = (0..models.len())
                .map(|at| root.create(format!("file-{at}"), &NewInode::root(0o644)).unwrap())
                .collect();
            for step in 0..600 {
                let at = random.below(models.len() as u64) as usize;
                let (file, model) = (&files[at], &mut models[at]);
                let space = ["user", "trusted", "security"][random.below(3) as usize];
                let name = format!("{space}.name{}", random.below(6)).into_bytes();
                if random.one_in(4) {
                    let removed = file.remove_xattr(&name);
                    match model.remove(&name) {
                        Some(_) => removed.unwrap(),
                        None => assert!(matches!(removed, Err(FsError::NoAttribute { .. }))),
                    }
                } else {
                    // Few different values, so that blocks are shared.
                    let longest = [20, 60, 900, 5000][random.below(4) as usize];
                    let len = if random.one_in(12) { 20_000 } else { longest } as usize;
                    let value = vec![b'a' + random.below(2) as u8; len];
                    match file.set_xattr(&name, &value, XattrMode::Any) {
                        Ok(()) => {
                            model.insert(name, value);
                        }
                        Err(FsError::NoSpace { .. } | FsError::AttributeTooLarge { .. }) => {}
                        Err(other) => panic!("{layout:?}: {other}"),
                    }
                }
                assert_eq!(&attributes(file), model, "{layout:?}, step {step}");
                if random.one_in(40) {
                    fs.sync().unwrap();
                }
            }
            // Freed inodes give up what they hold.
            for at in [1, 4] {
                root.unlink(format!("file-{at}")).unwrap();
                models[at].clear();
            }
            drop((files, root));
            fs.unmount().unwrap();
        }
        scratch.checked();
        let fs = scratch.read();
        for (at, model) in models.iter().enumerate().filter(|(at, _)| ![1, 4].contains(at)) {
            let file = fs.resolve(format!("/file-{at}")).unwrap();
            assert_eq!(&attributes(&file), model, "{layout:?}");
        }
    }
}

#[test]
fn equal_attributes_share_a_block_until_one_changes() {
    let scratch = require!(Scratch::new("16M", &["-t", "ext4", "-I", "128"]));
    let fs = scratch.mount();
    let root = fs.root().unwrap();
    let block_of = |name: &str| fs.resolve(name).unwrap().record().file_acl;
    for at in 0..1026 {
        let file = root.create(format!("f{at}"), &NewInode::root(0o644)).unwrap();
        file.set_xattr("user.same", "value", XattrMode::Create).unwrap();
    }
    let shared = block_of("/f0");
    assert_eq!(block_of("/f1023"), shared);
    // At most 1024 users.
    assert_ne!(block_of("/f1024"), shared);
    assert_eq!(block_of("/f1025"), block_of("/f1024"));
    let file = fs.resolve("/f5").unwrap();
    file.set_xattr("user.same", "other", XattrMode::Replace).unwrap();
    assert_ne!(block_of("/f5"), shared);
    assert_eq!(fs.resolve("/f6").unwrap().xattr("user.same").unwrap(), b"value");
    let other = fs.resolve("/f6").unwrap();
    other.remove_xattr("user.same").unwrap();
    assert_eq!(block_of("/f6").0, 0);
    assert_eq!(fs.resolve("/f7").unwrap().xattr("user.same").unwrap(), b"value");
    for at in 10..20 {
        root.unlink(format!("f{at}")).unwrap();
    }
    drop((root, file, other));
    fs.unmount().unwrap();
    scratch.checked();
}

#[test]
fn modes_of_setting_are_kept() {
    let scratch = require!(Scratch::new("16M", &["-t", "ext4"]));
    let fs = scratch.mount();
    let file = fs.root().unwrap().create("f", &NewInode::root(0o644)).unwrap();
    let missing = file.set_xattr("user.a", "1", XattrMode::Replace);
    assert!(matches!(missing, Err(FsError::NoAttribute { .. })));
    file.set_xattr("user.a", "1", XattrMode::Create).unwrap();
    let exists = file.set_xattr("user.a", "2", XattrMode::Create);
    assert!(matches!(exists, Err(FsError::AttributeExists { .. })));
    assert_eq!(file.xattr("user.a").unwrap(), b"1");
    let long = file.set_xattr(format!("user.{}", "n".repeat(256)), "1", XattrMode::Any);
    assert!(matches!(long, Err(FsError::InvalidName { .. })));
    let large = file.set_xattr("user.large", vec![0; 65537], XattrMode::Any);
    assert!(matches!(large, Err(FsError::AttributeTooLarge { .. })));
    let inline = file.set_xattr("system.data", "x", XattrMode::Any);
    assert!(matches!(inline, Err(FsError::NotPermitted { .. })));
    file.set_xattr(format!("user.{}", "n".repeat(255)), "1", XattrMode::Any).unwrap();
    drop(file);
    fs.unmount().unwrap();
    scratch.checked();
}

fn acl(entries: &[(Who, u8)]) -> Acl {
    Acl::new(entries.iter().map(|(who, perm)| AclEntry { who: *who, perm: *perm }).collect())
        .unwrap()
}

fn sample() -> Acl {
    acl(&[
        (Who::Owner, 7),
        (Who::User(1234), 6),
        (Who::OwningGroup, 5),
        (Who::Group(55), 7),
        (Who::Mask, 7),
        (Who::Others, 1),
    ])
}

#[test]
fn lists_and_permission_bits_follow_each_other() {
    let scratch = require!(Scratch::new("16M", &["-t", "ext4"]));
    let fs = scratch.mount();
    let file = fs.root().unwrap().create("f", &NewInode::root(0o600)).unwrap();
    let mode = |file: &Inode| file.metadata().permissions;
    file.set_acl(AclKind::Access, Some(&sample())).unwrap();
    assert_eq!((mode(&file), file.acl(AclKind::Access).unwrap()), (0o771, Some(sample())));
    file.set_attributes(&SetAttributes::new().permissions(0o640)).unwrap();
    let expected = acl(&[
        (Who::Owner, 6),
        (Who::User(1234), 6),
        (Who::OwningGroup, 5),
        (Who::Group(55), 7),
        (Who::Mask, 4),
        (Who::Others, 0),
    ]);
    assert_eq!(file.acl(AclKind::Access).unwrap(), Some(expected));
    // A list that says no more than the bits is not kept.
    file.set_acl(AclKind::Access, Some(&Acl::from_mode(0o751))).unwrap();
    assert_eq!((mode(&file), file.acl(AclKind::Access).unwrap()), (0o751, None));
    let default = file.set_acl(AclKind::Default, Some(&sample()));
    assert!(matches!(default, Err(FsError::NotPermitted { .. })));
    drop(file);
    fs.unmount().unwrap();
    scratch.checked();
}

#[test]
fn default_lists_are_inherited_as_linux_does() {
    let scratch = require!(Scratch::new("32M", &["-t", "ext4", "-I", "128"]));
    let image = scratch.dir.path().join("kernel");
    {
        let fs = scratch.mount();
        for name in ["ours", "theirs"] {
            let dir = fs.root().unwrap().mkdir(name, &NewInode::root(0o755)).unwrap();
            dir.set_acl(AclKind::Default, Some(&sample())).unwrap();
        }
        let ours = fs.resolve("/ours").unwrap();
        let new = |mode| NewInode::root(mode);
        ours.create("file", &new(0o640)).unwrap();
        ours.mkdir("dir", &new(0o750)).unwrap();
        ours.symlink("link", "file", &new(0o777)).unwrap();
        ours.mknod("pipe", Special::Fifo, &new(0o604)).unwrap();
        drop(ours);
        fs.unmount().unwrap();
        std::fs::copy(scratch.checked(), &image).unwrap();
    }
    let mount = require!(LoopMount::read_write(&image));
    let theirs = mount.path().join("theirs");
    make_with_modes(&theirs);
    let show = |dir: &std::path::Path| {
        let mut lines = Vec::new();
        for name in ["file", "dir", "link", "pipe"] {
            let path = dir.join(name);
            let mode = std::os::unix::fs::MetadataExt::mode(&path.symlink_metadata().unwrap());
            for list in ["system.posix_acl_access", "system.posix_acl_default"] {
                lines.push((name, mode, list, kernel_xattr(&path, list)));
            }
        }
        lines
    };
    assert_eq!(show(&mount.path().join("ours")), show(&theirs));
    drop(mount);
    e2fsck(&image).unwrap().assert_clean();
    // And what the kernel made reads the same here.
    let fs = MountOptions::new()
        .open(extant_block::FileDevice::open_read_only(&image).unwrap())
        .unwrap();
    for name in ["file", "dir", "pipe"] {
        let of = |dir: &str| fs.resolve(format!("/{dir}/{name}")).unwrap();
        for kind in [AclKind::Access, AclKind::Default] {
            assert_eq!(of("ours").acl(kind).unwrap(), of("theirs").acl(kind).unwrap(), "{name}");
        }
        assert_eq!(of("ours").metadata().mode(), of("theirs").metadata().mode(), "{name}");
    }
}

/// The same inodes by the kernel.
fn make_with_modes(dir: &std::path::Path) {
    use rustix::fs::{CWD, FileType, Mode, OFlags};
    let mode = Mode::from_raw_mode;
    let create = OFlags::CREATE | OFlags::WRONLY;
    drop(rustix::fs::open(dir.join("file"), create, mode(0o640)).unwrap());
    rustix::fs::mkdir(dir.join("dir"), mode(0o750)).unwrap();
    rustix::fs::symlink("file", dir.join("link")).unwrap();
    rustix::fs::mknodat(CWD, dir.join("pipe"), FileType::Fifo, mode(0o604), 0).unwrap();
}

fn kernel_xattr(path: &std::path::Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 65536];
    let len = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

#[test]
fn the_kernel_reads_and_goes_on_with_what_was_set_here() {
    for layout in [
        &["-t", "ext4", "-O", "ea_inode"][..],
        &["-t", "ext4", "-b", "1024", "-I", "128"],
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode"],
    ] {
        let scratch = require!(Scratch::new("32M", layout));
        let image = scratch.dir.path().join("kernel");
        let fs = scratch.mount();
        let root = fs.root().unwrap();
        let mut wanted: BTreeMap<(usize, String), Vec<u8>> = BTreeMap::new();
        for at in 0..4 {
            let file = root.create(format!("f{at}"), &NewInode::root(0o644)).unwrap();
            for (name, len) in
                [("user.s", 9), ("trusted.m", 200), ("user.l", 700), ("user.x", 9000)]
            {
                let value = vec![b'0' + at as u8 / 2; len];
                if file.set_xattr(name, &value, XattrMode::Any).is_ok() {
                    wanted.insert((at, name.to_owned()), value);
                }
            }
        }
        drop(root);
        fs.unmount().unwrap();
        std::fs::copy(scratch.checked(), &image).unwrap();
        let mount = require!(LoopMount::read_write(&image));
        for ((at, name), value) in &wanted {
            let path = mount.path().join(format!("f{at}"));
            assert_eq!(kernel_xattr(&path, name).as_ref(), Some(value), "{layout:?} {at} {name}");
        }
        // The kernel changes some, takes shared blocks apart, frees.
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mount.path().join("f0"), "user.l", b"kernel", flags).unwrap();
        let _may_lack = rustix::fs::removexattr(mount.path().join("f1"), "user.x");
        std::fs::remove_file(mount.path().join("f2")).unwrap();
        drop(mount);
        e2fsck(&image).unwrap().assert_clean();
        // And here it goes on with what the kernel left.
        let device = Arc::new(image::load(&image));
        let fs =
            MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as _).unwrap();
        let file = fs.resolve("/f0").unwrap();
        assert_eq!(file.xattr("user.l").unwrap(), b"kernel");
        file.set_xattr("user.l", vec![7; 600], XattrMode::Any).unwrap();
        let other = fs.resolve("/f3").unwrap();
        for name in other.xattr_names().unwrap() {
            other.remove_xattr(&name).unwrap();
        }
        drop((file, other));
        fs.root().unwrap().unlink("f0").unwrap();
        fs.unmount().unwrap();
        std::fs::remove_file(&image).unwrap();
        image::save(&device, &image);
        e2fsck(&image).unwrap().assert_clean();
    }
}

#[test]
fn without_space_nothing_changes() {
    for layout in [&["-t", "ext4", "-O", "ea_inode"][..], &["-t", "ext4", "-b", "1024"]] {
        let scratch = require!(Scratch::new("8M", layout));
        let fs = scratch.mount();
        let root = fs.root().unwrap();
        let mut refused = 0;
        // Names first: a directory that cannot grow is not what this is about.
        let new = NewInode::root(0o644);
        let files: Vec<_> =
            (0..1500).map(|at| root.create(format!("f{at}"), &new).unwrap()).collect();
        for (at, file) in files.iter().enumerate() {
            file.set_xattr("user.small", "before", XattrMode::Any).unwrap();
            // Every value is another one, so nothing is shared.
            let len = if at % 3 == 0 { 12_000 } else { 700 };
            let value = format!("{at:06}").repeat(len / 6);
            match file.set_xattr("user.value", &value, XattrMode::Any) {
                Ok(()) => assert_eq!(file.xattr("user.value").unwrap(), value.as_bytes()),
                Err(FsError::NoSpace { .. } | FsError::AttributeTooLarge { .. }) => {
                    refused += 1;
                    assert_eq!(attributes(file).len(), 1);
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(refused > 100, "{refused}");
        drop((files, root));
        fs.unmount().unwrap();
        let path = scratch.checked();
        assert!(debugfs(&path, false, "stats").unwrap().contains("Block count"));
    }
}

#[test]
fn threads_share_blocks_and_take_them_apart() {
    for layout in [
        &["-t", "ext4", "-b", "4096", "-I", "128"][..],
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode"],
    ] {
        let scratch = require!(Scratch::new("64M", layout));
        let fs = scratch.mount();
        let root = fs.root().unwrap();
        let work = |thread: usize| {
            let mut random = Prng::new(thread as u64);
            let names: Vec<String> = (0..12).map(|at| format!("{thread}-{at}")).collect();
            let mut models = vec![Model::new(); names.len()];
            for name in &names {
                root.create(name, &NewInode::root(0o644)).unwrap();
            }
            for _ in 0..800 {
                let at = random.below(names.len() as u64) as usize;
                let file = root.lookup(&names[at]).unwrap();
                if random.one_in(200) {
                    fs.sync().unwrap();
                }
                if random.one_in(12) {
                    drop(file);
                    root.unlink(&names[at]).unwrap();
                    root.create(&names[at], &NewInode::root(0o644)).unwrap();
                    models[at].clear();
                } else if random.one_in(4) {
                    if file.remove_xattr("user.a").is_ok() {
                        models[at].remove(b"user.a".as_slice()).unwrap();
                    }
                } else {
                    // Three values, so that threads meet in the same blocks.
                    let len = 400 + if random.one_in(9) { 2000 } else { 0 };
                    let value = vec![b'0' + random.below(3) as u8; len];
                    file.set_xattr("user.a", &value, XattrMode::Any).unwrap();
                    models[at].insert(b"user.a".to_vec(), value);
                }
            }
            for (name, model) in names.iter().zip(&models) {
                assert_eq!(&attributes(&root.lookup(name).unwrap()), model);
            }
        };
        extant_sync::threads::workers("setter", 4, work).unwrap();
        drop(root);
        fs.unmount().unwrap();
        scratch.checked();
    }
}

/// What a program gets that nobody in particular runs: capabilities of version 2.
const CAPABLE: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn whatever_changes_the_contents_takes_capabilities_and_set_id_bits() {
    use extant::{Fallocate, WriteBy};
    type Change = (&'static str, fn(&Inode, &Inode));
    let changes: &[Change] = &[
        ("write", |file, _| {
            file.write_at(b"new", 0).unwrap();
        }),
        ("append", |file, _| {
            file.append(b"new").unwrap();
        }),
        ("vectored", |file, _| {
            let parts = [std::io::IoSlice::new(b"a"), std::io::IoSlice::new(b"b")];
            file.write_vectored_at(&parts, 5).unwrap();
        }),
        ("direct", |file, _| {
            file.write_direct_at(&[7; 4096], 0).unwrap();
        }),
        ("direct over data", |file, _| {
            file.write_direct_at(&[7; 4096], 4096).unwrap();
        }),
        ("shrink", |file, _| file.truncate(5).unwrap()),
        ("grow", |file, _| file.truncate(50_000).unwrap()),
        ("same size", |file, _| file.truncate(12_288).unwrap()),
        ("allocate", |file, _| {
            file.fallocate(Fallocate::Allocate { keep_size: true }, 40_960..49_152).unwrap();
        }),
        ("punch", |file, _| file.fallocate(Fallocate::PunchHole, 0..8192).unwrap()),
        ("zero", |file, _| {
            file.fallocate(Fallocate::ZeroRange { keep_size: true }, 0..8192).unwrap();
        }),
        ("collapse", |file, _| file.fallocate(Fallocate::CollapseRange, 0..4096).unwrap()),
        ("copy", |file, other| {
            other.copy_range(0, file, 0, 4096).unwrap();
        }),
        ("copy of a hole", |file, other| {
            other.copy_range(20_480, file, 0, 4096).unwrap();
        }),
        ("give away", |file, _| {
            file.set_attributes(&SetAttributes::new().owner(Some(7), None)).unwrap();
        }),
    ];
    for layout in [LAYOUTS[0], LAYOUTS[1], &["-t", "ext4", "-O", "inline_data", "-b", "4096"][..]] {
        let scratch = require!(Scratch::new("32M", &[layout, &["-b", "4096"]].concat()));
        let fs = scratch.mount();
        let root = fs.root().unwrap();
        let other = root.create("other", &NewInode::root(0o644)).unwrap();
        other.write_at(&[1; 12_288], 0).unwrap();
        other.truncate(40_960).unwrap();
        for (index, (what, change)) in changes.iter().enumerate() {
            let name = format!("file{index}");
            let file = root.create(&name, &NewInode::root(0o644)).unwrap();
            file.write_at(&[1; 12_288], 0).unwrap();
            file.sync().unwrap();
            file.set_attributes(&SetAttributes::new().permissions(0o6755)).unwrap();
            file.set_xattr("user.other", "stays", XattrMode::Any).unwrap();
            file.set_xattr("security.capability", CAPABLE, XattrMode::Any).unwrap();
            change(&file, &other);
            let left = file.xattr_names().unwrap();
            assert_eq!(left, [b"user.other"], "{what} on {layout:?}");
            assert_eq!(file.metadata().permissions, 0o755, "{what} on {layout:?}");
        }
        // What was set before this mount is found as well.
        let file = root.create("before", &NewInode::root(0o755)).unwrap();
        file.write_at(&[1; 12_288], 0).unwrap();
        file.set_xattr("security.capability", CAPABLE, XattrMode::Any).unwrap();
        drop((file, other, root));
        fs.unmount().unwrap();
        let fs = scratch.mount();
        let file = fs.resolve("/before").unwrap();
        // By a cache in front, which has seen to it before; then by who may keep bits, not capabilities.
        file.write_by(WriteBy::Cache, b"x", 0).unwrap();
        assert_eq!(file.xattr("security.capability").unwrap(), CAPABLE);
        file.write_direct_by(WriteBy::Privileged, &[2; 4096], 0).unwrap();
        assert!(matches!(file.xattr("security.capability"), Err(FsError::NoAttribute { .. })));
        drop(file);
        fs.unmount().unwrap();
        scratch.checked();
    }
}

#[test]
fn a_new_owner_takes_set_id_bits_of_everything_but_directories() {
    let scratch = require!(Scratch::new("16M", LAYOUTS[0]));
    let fs = scratch.mount();
    let root = fs.root().unwrap();
    let new = NewInode::root(0o6755);
    let made = [
        ("file", root.create("file", &new).unwrap(), 0o755),
        ("fifo", root.mknod("fifo", Special::Fifo, &new).unwrap(), 0o755),
        ("socket", root.mknod("socket", Special::Socket, &new).unwrap(), 0o755),
        (
            "device",
            root.mknod("device", Special::CharDevice { major: 1, minor: 3 }, &new).unwrap(),
            0o755,
        ),
        ("directory", root.mkdir("directory", &new).unwrap(), 0o6755),
    ];
    for (what, inode, wanted) in &made {
        inode.set_attributes(&SetAttributes::new().permissions(0o6755)).unwrap();
        inode.set_attributes(&SetAttributes::new().owner(None, Some(5))).unwrap();
        assert_eq!(inode.metadata().permissions, *wanted, "{what}");
        // Said in the same call it stays.
        let both = SetAttributes::new().owner(Some(5), None).permissions(0o6755);
        inode.set_attributes(&both).unwrap();
        assert_eq!(inode.metadata().permissions, 0o6755, "{what}");
    }
    let file = &made[0].1;
    file.set_attributes(&SetAttributes::new().permissions(0o2745)).unwrap();
    file.set_attributes(&SetAttributes::new().owner(Some(0), None)).unwrap();
    assert_eq!(file.metadata().permissions, 0o2745, "no group executes it");
    drop(made);
    drop(root);
    fs.unmount().unwrap();
    scratch.checked();
}

/// What a file system without a feature gets that needs it, other programs have to be told of.
#[test]
fn the_first_attribute_is_told_by_a_feature_wherever_it_is() {
    for (inode_bytes, value) in [("128", 10), ("256", 10), ("256", 900), ("256", 0)] {
        let scratch =
            require!(Scratch::new("8M", &["-t", "ext4", "-I", inode_bytes, "-O", "^ext_attr"]));
        let fs = scratch.mount();
        let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
        let has = |fs: &Fs| fs.superblock().features.has_compat(Compat::EXT_ATTR);
        let absent = file.remove_xattr("user.one").unwrap_err();
        assert!(!has(&fs) && absent.errno() == 61, "{absent}");
        match value {
            0 => file.set_acl(AclKind::Access, Some(&sample())).unwrap(),
            _ => file.set_xattr("user.one", vec![7; value], XattrMode::Any).unwrap(),
        }
        drop(file);
        fs.unmount().unwrap();
        scratch.checked();
        let fs = scratch.read();
        assert!(has(&fs), "{inode_bytes} {value}");
        let file = fs.resolve("/file").unwrap();
        match value {
            0 => assert_eq!(file.acl(AclKind::Access).unwrap(), Some(sample())),
            _ => assert_eq!(file.xattr("user.one").unwrap(), vec![7; value]),
        }
    }
}

/// Permissions are twelve bits, all of which can be set; one number is nobody's.
#[test]
fn all_permissions_and_owners_can_be_set_and_nothing_beyond() {
    let scratch = require!(Scratch::new("8M", &["-t", "ext4"]));
    let fs = scratch.mount();
    let file = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
    for bits in [0, 0o1, 0o4000, 0o7777] {
        file.set_attributes(&SetAttributes::new().permissions(bits)).unwrap();
        assert_eq!(file.metadata().permissions, bits, "{bits:o}");
    }
    for bits in [0o10000, 0o17777, u16::MAX] {
        let error = file.set_attributes(&SetAttributes::new().permissions(bits)).unwrap_err();
        assert_eq!(error.errno(), 22, "{bits:o}: {error}");
    }
    assert_eq!(file.metadata().permissions, 0o7777);
    for (uid, gid) in [(Some(u32::MAX), None), (None, Some(u32::MAX))] {
        let error = file.set_attributes(&SetAttributes::new().owner(uid, gid)).unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
    }
    let most = Some(u32::MAX - 1);
    file.set_attributes(&SetAttributes::new().owner(most, most).permissions(0o7777)).unwrap();
    assert_eq!((file.metadata().uid, file.metadata().gid), (u32::MAX - 1, u32::MAX - 1));
    drop(file);
    fs.unmount().unwrap();
    scratch.checked();
}
