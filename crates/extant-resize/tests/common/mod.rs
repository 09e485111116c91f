//! What the tests of resizes share: images of many layouts, and what must be the same afterwards.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use extant::{Fs, MountOptions};
use extant_block::{BlockDevice, DeviceError, MemoryDevice, SharedDevice};
use extant_check::{CheckOptions, check};
use extant_format::features::Feature;
use extant_format::inode::FileKind;
use extant_resize::{Goal, Plan, ResizeError, resize};
use extant_sync::Clock;
pub(crate) use extant_testkit::image::Layout;
use extant_testkit::{HastyClock, image, oracle};

/// Layouts in which everything differs that a resize must know.
pub(crate) const LAYOUTS: &[Layout] = &[
    Layout::new(&["-text2", "-b1024"], "12M"),
    Layout::new(&["-text3", "-b1024", "-Jsize=1"], "12M"),
    Layout::new(&["-text4", "-b1024", "-Jsize=1"], "12M"),
    Layout::new(&["-text4", "-b1024", "-g1024", "-Jsize=1"], "9M"),
    Layout::new(&["-text4", "-b1024", "-O^metadata_csum,uninit_bg", "-g2048", "-Jsize=1"], "12M"),
    Layout::new(
        &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg,^flex_bg", "-g2048", "-Jsize=1"],
        "12M",
    ),
    Layout::new(&["-text4", "-b1024", "-O^resize_inode,^flex_bg", "-g512", "-Jsize=1"], "9M"),
    Layout::new(
        &["-text4", "-b1024", "-Ometa_bg,^resize_inode,^flex_bg", "-g512", "-Jsize=1"],
        "12M",
    ),
    Layout::new(
        &["-text4", "-b1024", "-Ometa_bg,^resize_inode,^64bit", "-g256", "-Jsize=1"],
        "12M",
    ),
    Layout::new(&["-text4", "-b1024", "-g1024", "-Osparse_super2,mmp", "-Jsize=1"], "12M"),
    Layout::new(&["-text4", "-b1024", "-Osparse_super2,^has_journal", "-E", "resize=30000"], "7M"),
    Layout::new(&["-text4", "-b4096", "-O64bit,metadata_csum_seed,orphan_file", "-Jsize=4"], "16M"),
    Layout::new(&["-text4", "-b2048", "-O^64bit", "-g2048", "-Jsize=2"], "12M"),
    Layout::new(&["-text4", "-b65536", "-Jsize=64"], "96M"),
    Layout::new(&["-text4", "-b1024", "-Obigalloc", "-C4096", "-Jsize=1"], "12M"),
    Layout::new(
        &["-text4", "-b1024", "-Obigalloc,^resize_inode", "-C16384", "-g4096", "-Jsize=1"],
        "24M",
    ),
    Layout::new(&["-text4", "-b1024", "-Oquota,project,inline_data,ea_inode", "-Jsize=1"], "12M"),
    Layout::new(&["-text4", "-b1024", "-G4", "-g1024", "-N4096", "-Jsize=1"], "10M"),
    Layout::new(
        &["-text4", "-b1024", "-Ofast_commit", "-g1024", "-Jsize=1,fast_commit_size=64"],
        "12M",
    ),
];

/// A tree with every kind of file that is small.
fn source(dir: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::{FileExt, symlink};
    let source = dir.join("source");
    if source.exists() {
        return source;
    }
    fs::create_dir_all(source.join("d/e/f")).unwrap();
    fs::create_dir(source.join("many")).unwrap();
    for number in 0..60 {
        let name = format!("many/a long name so that there are many blocks {number:040}");
        fs::write(source.join(name), []).unwrap();
    }
    for number in 0..20usize {
        let bytes: Vec<u8> = (0..number * 3000).map(|at| (at * 7 + number) as u8).collect();
        fs::write(source.join(format!("d/file{number}")), bytes).unwrap();
    }
    fs::hard_link(source.join("d/file3"), source.join("d/e/again")).unwrap();
    symlink("x".repeat(40), source.join("d/fast")).unwrap();
    symlink("x".repeat(140), source.join("d/slow")).unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    for hole in 0..20 {
        sparse.write_all_at(&[1; 512], hole * 9000).unwrap();
    }
    source
}

/// An image of a layout with a tree in it.
pub(crate) fn made(dir: &Path, layout: Layout) -> Result<MemoryDevice, String> {
    let from = source(dir).display().to_string();
    let path = dir.join("made.img");
    let _removed = fs::remove_file(&path);
    let mut words: Vec<&str> = layout.words.to_vec();
    if !words.iter().any(|word| word.starts_with("-N")) {
        words.push("-N512");
    }
    words.extend(["-d", &from]);
    oracle::mke2fs(&path, layout.size, &words)?;
    // What mke2fs copies it does not count for quota.
    oracle::e2fsck_as(&path, "-fy", &[])?;
    Ok(image::load(&path))
}

/// The same bytes on a device of another size.
pub(crate) fn with_size(device: &MemoryDevice, size: u64) -> MemoryDevice {
    let other = MemoryDevice::new(size);
    device
        .for_each_page(|offset, bytes| {
            if offset >= size {
                return Ok::<(), DeviceError>(());
            }
            let len = (size - offset).min(bytes.len() as u64) as usize;
            other.write_at(offset, &bytes[..len])
        })
        .unwrap();
    other
}

/// A clock on which nobody waits for other hosts.
pub(crate) fn hasty() -> Arc<dyn Clock> {
    Arc::new(HastyClock)
}

/// Resizes to `bytes`; the image afterwards is on a device that is just as large.
pub(crate) fn to_size(
    device: &MemoryDevice,
    bytes: u64,
) -> Result<(MemoryDevice, Plan), ResizeError> {
    let large = Arc::new(with_size(device, bytes.max(device.size_bytes())));
    let shared: SharedDevice = Arc::clone(&large) as SharedDevice;
    let plan = resize(&shared, Goal::Bytes(bytes), &hasty(), &mut |_| {})?;
    Ok((with_size(&large, bytes), plan))
}

/// What is wrong with `device` by our checker, as text.
pub(crate) fn problems(device: &MemoryDevice) -> Vec<String> {
    match check(device, &CheckOptions::default()) {
        Ok(report) => report.problems.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// A file that can be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    kind: FileKind,
    size: u64,
    links: u32,
    hash: u64,
}

/// Everything that has a name, with its contents.
pub(crate) fn seen(device: &MemoryDevice) -> BTreeMap<Vec<u8>, Seen> {
    let fs: Fs = MountOptions::new().open(device.snapshot()).expect("it can be opened");
    let mut all = BTreeMap::new();
    for entry in fs.walk("/").expect("it can be walked") {
        let entry = entry.unwrap_or_else(|error| panic!("{}", error.error));
        let inode = entry.inode();
        let mut hasher = DefaultHasher::new();
        match inode.kind() {
            FileKind::Regular => {
                let mut bytes = vec![0; inode.size() as usize];
                let mut at = 0;
                while at < bytes.len() {
                    let read = inode.read_at(&mut bytes[at..], at as u64).unwrap();
                    assert!(read > 0, "{:?}", entry.path());
                    at += read;
                }
                bytes.hash(&mut hasher);
            }
            FileKind::Symlink => inode.read_link().unwrap().hash(&mut hasher),
            _ => {}
        }
        for one in inode.xattrs().unwrap() {
            (one.name, one.value).hash(&mut hasher);
        }
        let metadata = inode.metadata();
        let seen = Seen {
            kind: inode.kind(),
            size: inode.size(),
            links: metadata.links,
            hash: hasher.finish(),
        };
        all.insert(entry.path().to_vec(), seen);
    }
    all
}

/// Puts files, directories, a link and attributes at the end of the file system, with room in front of them.
pub(crate) fn with_files_at_the_end(device: &MemoryDevice) -> MemoryDevice {
    with_at_the_end(device, |fs| {
        let new = extant::NewInode::root(0o755);
        fs.create_dir("/end", &new).unwrap();
        for number in 0..14u64 {
            let bytes: Vec<u8> = (0..number * 5000).map(|at| (at * 11 + number) as u8).collect();
            fs.write(format!("/end/{number:050}"), bytes).unwrap();
            fs.sync().unwrap();
        }
        let block = u64::from(fs.block_size().bytes());
        let holes = fs.open_options().write(true).create(true).open("/end/holes").unwrap();
        for hole in 0..9 {
            holes.write_at(&[hole as u8 + 1; 700], hole * 3 * block).unwrap();
        }
        drop(holes);
        fs.symlink("y".repeat(200), "/end/slow", &new).unwrap();
        fs.set_xattr("/end/holes", "user.large", vec![7; 600], extant::XattrMode::Any).unwrap();
    })
}

/// Puts what `make` makes at the end of the file system, where there is room for 3 MiB or 24 blocks, with room in
/// front of it.
pub(crate) fn with_at_the_end(device: &MemoryDevice, make: impl FnOnce(&Fs)) -> MemoryDevice {
    let shared = Arc::new(device.snapshot());
    let options =
        MountOptions::new().read_only(false).clock(Arc::new(HastyClock)).background(false).seed(7);
    let fs = options.open_shared(Arc::clone(&shared) as SharedDevice).expect("it can be opened");
    let filler = fs.open_options().write(true).create(true).open("/filler").unwrap();
    let bytes = vec![0xee; 64 << 10];
    let mut at = 0;
    while let Ok(written) = filler.write_at(&bytes, at) {
        at += written as u64;
        if written == 0 || filler.sync().is_err() {
            break;
        }
    }
    let _full = filler.sync();
    let block = u64::from(fs.block_size().bytes());
    let room = (3 << 20).max(24 * block);
    filler.set_len(at.saturating_sub(room)).unwrap();
    fs.sync().unwrap();
    make(&fs);
    fs.sync().unwrap();
    drop(filler);
    fs.remove_file("/filler").unwrap();
    fs.unmount().unwrap();
    shared.snapshot()
}

/// Lets all inodes but `spared` be in use while `between` makes files, so that those are in the last groups; the others
/// are free afterwards.
pub(crate) fn with_last_inodes(
    device: &MemoryDevice,
    spared: u32,
    between: impl FnOnce(MemoryDevice) -> MemoryDevice,
) -> MemoryDevice {
    let options = || {
        MountOptions::new().read_only(false).clock(Arc::new(HastyClock)).background(false).seed(7)
    };
    let shared = Arc::new(device.snapshot());
    let fs = options().open_shared(Arc::clone(&shared) as SharedDevice).expect("it can be opened");
    let mut sb = [0; 1024];
    shared.read_at(1024, &mut sb).unwrap();
    let sb = extant_format::superblock::Superblock::decode(&sb).unwrap();
    fs.create_dir("/fill", &extant::NewInode::root(0o755)).unwrap();
    let count = sb.free_inodes_count.saturating_sub(spared + 1);
    for number in 0..count {
        fs.write(format!("/fill/{number}"), Vec::new()).unwrap();
    }
    fs.unmount().unwrap();
    let shared = Arc::new(between(shared.snapshot()));
    let fs = options().open_shared(Arc::clone(&shared) as SharedDevice).expect("it can be opened");
    for number in 0..count {
        fs.remove_file(format!("/fill/{number}")).unwrap();
    }
    fs.unmount().unwrap();
    shared.snapshot()
}

/// Files whose inodes do not fit into one step of a shrink.
pub(crate) fn many_files(fs: &Fs) {
    for number in 0..390u32 {
        fs.write(format!("/many/{number}"), vec![number as u8; 700]).unwrap();
    }
}

/// How many inodes [`with_inodes_at_the_end`] makes at most.
pub(crate) const LAST_INODES: u32 = 45;

/// Puts inodes of every kind into the last groups.
pub(crate) fn with_inodes_at_the_end(device: &MemoryDevice) -> MemoryDevice {
    with_last_inodes(device, LAST_INODES, |filled| {
        let shared = Arc::new(filled);
        let options = MountOptions::new()
            .read_only(false)
            .clock(Arc::new(HastyClock))
            .background(false)
            .seed(7);
        let opened = options.open_shared(Arc::clone(&shared) as SharedDevice);
        let fs = opened.expect("it can be opened");
        let new = extant::NewInode::root(0o755);
        let block = u64::from(fs.block_size().bytes());
        fs.create_dir("/last", &new).unwrap();
        fs.create_dir("/last/d", &new).unwrap();
        for number in 0..4 {
            fs.create_dir(format!("/last/d/{number}"), &new).unwrap();
            fs.write(format!("/last/d/{number}/f"), vec![number as u8; 3000]).unwrap();
        }
        // An index, of names of one file.
        fs.write("/last/d/file", vec![3; 5000]).unwrap();
        for number in 0..70 {
            fs.hard_link("/last/d/file", format!("/last/d/{number:0100}")).unwrap();
        }
        fs.hard_link("/last/d/file", "/again").unwrap();
        // A tree of extents.
        let holes = fs.open_options().write(true).create(true).open("/last/holes").unwrap();
        for hole in 0..12 {
            holes.write_at(&[hole as u8 + 1; 700], hole * 3 * block).unwrap();
        }
        drop(holes);
        fs.symlink("y".repeat(200), "/last/slow", &new).unwrap();
        fs.symlink("y".repeat(20), "/last/fast", &new).unwrap();
        let mode = extant::XattrMode::Any;
        fs.set_xattr("/last/holes", "user.some", vec![7; 600], mode).unwrap();
        if fs.superblock().features.has(Feature::EA_INODE) {
            fs.set_xattr("/last/d/3/f", "user.large", vec![9; 2 * block as usize], mode).unwrap();
            fs.write("/value", vec![1; 100]).unwrap();
            fs.set_xattr("/value", "user.large", vec![8; 2 * block as usize], mode).unwrap();
            // The inode has no room left: the value's number is in the block of attributes.
            fs.write("/crowded", vec![1; 3000]).unwrap();
            fs.set_xattr("/crowded", "user.small", vec![6; 60], mode).unwrap();
            fs.set_xattr("/crowded", "user.large", vec![5; 2 * block as usize], mode).unwrap();
        }
        if fs.superblock().features.has(Feature::INLINE_DATA) {
            // Two names are in the place of the map, and two behind it, in an attribute.
            let inline = fs.create_dir("/inline", &new).unwrap();
            for number in 0..4 {
                fs.write(format!("/inline/{number:020}"), vec![1; 3000]).unwrap();
            }
            let of = inline.metadata();
            assert!(of.flags.contains(extant::InodeFlags::INLINE_DATA) && of.size > 60);
        }
        fs.unmount().unwrap();
        shared.snapshot()
    })
}
