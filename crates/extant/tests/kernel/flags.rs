//! Flags of inodes that say little today: what this kernel keeps, refuses and passes on, and extant the same. (What
//! `i`, `a`, `P` and the others forbid, cases/flags.case of extant-posix compares on a mount.)

use std::fs::{self, File};
use std::path::Path;

use extant::{InodeFlags, MountOptions, NewInode, SetAttributes};
use extant_testkit::oracle::{self, LoopMount, mke2fs};
use extant_testkit::{require, tempdir};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// Of each flag: its letter, and itself.
const FLAGS: [(char, InodeFlags); 11] = [
    ('s', InodeFlags::SECRM),
    ('u', InodeFlags::UNRM),
    ('c', InodeFlags::COMPR),
    ('X', InodeFlags::NOCOMPR),
    ('S', InodeFlags::SYNC),
    ('d', InodeFlags::NODUMP),
    ('A', InodeFlags::NOATIME),
    ('D', InodeFlags::DIRSYNC),
    ('T', InodeFlags::TOPDIR),
    ('j', InodeFlags::JOURNAL_DATA),
    ('x', InodeFlags::DAX),
];

const SHOWN: InodeFlags = FLAGS[0].1;

fn all() -> InodeFlags {
    FLAGS.iter().fold(SHOWN, |all, (_, flag)| all | *flag)
}

/// What became of a flag that was set: the error or what is there, and what a file and a directory get that are made in
/// a directory with it.
type Answer = (Result<u32, i32>, Option<(u32, u32)>);

fn by_kernel(root: &Path, letter: char, flag: InodeFlags, is_dir: bool) -> Answer {
    let path = root.join(format!("{letter}{is_dir}"));
    match is_dir {
        true => fs::create_dir(&path).unwrap(),
        false => drop(File::create(&path).unwrap()),
    }
    let flags_of = |path: &Path| {
        let flags = ioctl_getflags(File::open(path).unwrap()).unwrap().bits();
        flags & all().bits()
    };
    let file = File::open(&path).unwrap();
    let old = ioctl_getflags(&file).unwrap();
    let set = ioctl_setflags(&file, old | IFlags::from_bits_retain(flag.bits()));
    let set = set.map(|()| flags_of(&path)).map_err(|error| error.raw_os_error());
    let below = is_dir.then(|| {
        drop(File::create(path.join("f")).unwrap());
        fs::create_dir(path.join("d")).unwrap();
        (flags_of(&path.join("f")), flags_of(&path.join("d")))
    });
    (set, below)
}

fn by_extant(fs: &extant::Fs, letter: char, flag: InodeFlags, is_dir: bool) -> Answer {
    let (root, name) = (fs.root().unwrap(), format!("{letter}{is_dir}"));
    let inode = match is_dir {
        true => root.mkdir(&name, &NewInode::root(0o755)).unwrap(),
        false => root.create(&name, &NewInode::root(0o644)).unwrap(),
    };
    let set = inode.set_attributes(&SetAttributes::new().flags(inode.flags() | flag));
    let set = set.map(|()| (inode.flags() & all()).bits()).map_err(|error| error.errno());
    let below = is_dir.then(|| {
        let file = inode.create("f", &NewInode::root(0o644)).unwrap();
        let dir = inode.mkdir("d", &NewInode::root(0o755)).unwrap();
        ((file.flags() & all()).bits(), (dir.flags() & all()).bits())
    });
    (set, below)
}

#[test]
fn flags_are_kept_refused_and_passed_on_as_by_the_kernel() {
    let place = require!(tempdir().map_err(|error| error.to_string()));
    let (theirs, ours) = (place.path().join("theirs"), place.path().join("ours"));
    for image in [&theirs, &ours] {
        require!(mke2fs(image, "16M", &["-t", "ext4"]));
    }
    let mounted = require!(LoopMount::read_write(&theirs));
    let fs = MountOptions::new().read_only(false).open_path(&ours).unwrap();
    let mut different = Vec::new();
    for (letter, flag) in FLAGS {
        for is_dir in [false, true] {
            let kernel = by_kernel(mounted.path(), letter, flag, is_dir);
            let extant = by_extant(&fs, letter, flag, is_dir);
            println!("{letter} of a {}: {kernel:x?}", if is_dir { "directory" } else { "file" });
            match letter {
                // It asks for CAP_SYS_RESOURCE; so does a mount of extant, and the library asks for nothing.
                'j' if kernel.0 == Err(1) => continue,
                // The kernel leaves the flag as it is and says nothing; so does a mount.
                'X' => {
                    assert_eq!(kernel, (Ok(0), is_dir.then_some((0, 0))));
                    continue;
                }
                // EOPNOTSUPP, as a mount says; to the library the argument is invalid.
                'D' | 'T' if !is_dir => {
                    assert_eq!((kernel.0, extant.0), (Err(95), Err(22)), "{letter}");
                    continue;
                }
                _ => {}
            }
            if kernel != extant {
                different.push(format!("{letter}, directory: {is_dir}: {kernel:x?}, {extant:x?}"));
            }
        }
    }
    assert!(different.is_empty(), "the kernel, extant:\n{}", different.join("\n"));
    fs.unmount().unwrap();
    drop(mounted);
    oracle::e2fsck(&ours).unwrap().assert_clean();
}

#[test]
fn the_kernel_swaps_to_a_file_that_extant_has_written() {
    let place = require!(tempdir().map_err(|error| error.to_string()));
    let image = place.path().join("image");
    require!(mke2fs(&image, "64M", &["-t", "ext4"]));
    let swap = place.path().join("swap");
    fs::write(&swap, vec![0; 8 << 20]).unwrap();
    let mkswap = require!(oracle::Tool::find("mkswap"));
    assert!(mkswap.command().arg(&swap).output().unwrap().status.success());
    let fs = MountOptions::new().read_only(false).open_path(&image).unwrap();
    let file = fs.create("/swap", &NewInode::root(0o600)).unwrap();
    file.write_at(&fs::read(&swap).unwrap(), 0).unwrap();
    drop(file);
    fs.unmount().unwrap();
    let mounted = require!(LoopMount::read_write(&image));
    let path = mounted.path().join("swap");
    let (on, off) =
        (require!(oracle::Tool::find("swapon")), require!(oracle::Tool::find("swapoff")));
    let done = on.command().arg(&path).output().unwrap();
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        require!(Err::<(), _>(format!("needs a kernel that swaps: {}", said.trim())));
    }
    // While it is in use the kernel lets nobody change it.
    let refused = File::options().write(true).open(&path).map(|file| file.set_len(0));
    let done = off.command().arg(&path).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert!(refused.is_err() || refused.is_ok_and(|done| done.is_err()), "ETXTBSY");
    drop(mounted);
    oracle::e2fsck(&image).unwrap().assert_clean();
}
