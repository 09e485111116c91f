//! What the tests of conversions share: images of many layouts, and what must be the same afterwards.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use extant::{Fs, MountOptions};
use extant_block::{MemoryDevice, SharedDevice};
use extant_check::{CheckOptions, check};
use extant_format::features::Feature;
use extant_format::inode::FileKind;
use extant_sync::Clock;
pub(crate) use extant_testkit::image::{Layout, e2fsck};
use extant_testkit::{HastyClock, image, oracle};
use extant_tune::{Plan, Request, TuneError, tune};

/// Layouts in which everything differs that a conversion must know.
pub(crate) const LAYOUTS: &[Layout] = &[
    Layout::new(&["-text2", "-b1024"], "12M"),
    Layout::new(&["-text4", "-b1024", "-Jsize=4"], "24M"),
    Layout::new(
        &["-text4", "-b1024", "-O^metadata_csum,uninit_bg,^64bit", "-g2048", "-Jsize=4"],
        "24M",
    ),
    Layout::new(
        &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg,^flex_bg,^64bit", "-Jsize=4"],
        "24M",
    ),
    Layout::new(&["-text4", "-b1024", "-Ometa_bg,^resize_inode", "-g512", "-Jsize=4"], "24M"),
    Layout::new(&["-text4", "-b4096", "-O^64bit,orphan_file", "-Jsize=4"], "32M"),
    Layout::new(&["-text4", "-b1024", "-Obigalloc,^metadata_csum", "-C4096", "-Jsize=4"], "24M"),
    Layout::new(&["-text4", "-b1024", "-Oquota,project,inline_data", "-Jsize=4"], "24M"),
];

fn source(dir: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::{FileExt, symlink};
    let source = dir.join("source");
    fs::create_dir_all(source.join("d/e/f")).unwrap();
    fs::create_dir(source.join("many")).unwrap();
    for number in 0..150 {
        let name = format!("many/a long name so that there are many blocks {number:040}");
        fs::write(source.join(name), []).unwrap();
    }
    // Names that fill their block: 12 bytes each behind `.` and `..`.
    fs::create_dir(source.join("full")).unwrap();
    for number in 0..83 {
        fs::write(source.join(format!("full/{number:02}")), []).unwrap();
    }
    for number in 0..12usize {
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
    let source = source(dir);
    let from = source.display().to_string();
    let path = dir.join("made.img");
    let mut words: Vec<&str> = layout.words.to_vec();
    words.extend(["-N1024", "-d", &from]);
    oracle::mke2fs(&path, layout.size, &words)?;
    fs::remove_dir_all(&source).unwrap();
    // Records of deleted inodes stay in the tables.
    oracle::debugfs(&path, true, "rm /d/file1\nrm /d/file11\n")?;
    // What mke2fs copies it does not count for quota; indexes are made as well.
    oracle::e2fsck_as(&path, "-fyD", &[])?;
    Ok(image::load(&path))
}

/// A request by the words of tune2fs -O.
pub(crate) fn features(words: &str) -> Request {
    let mut request = Request { now: 1_700_000_000, ..Request::default() };
    for word in words.split(',').filter(|word| !word.is_empty()) {
        let (name, on) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        request.features.push((Feature::from_name(name).unwrap(), on));
    }
    request
}

/// A clock on which nobody waits for other hosts.
pub(crate) fn hasty() -> Arc<dyn Clock> {
    Arc::new(HastyClock)
}

/// Does what a request says with a copy of the image.
pub(crate) fn tuned(
    device: &MemoryDevice,
    request: &Request,
) -> Result<(MemoryDevice, Plan), TuneError> {
    let shared = Arc::new(device.snapshot());
    let plan = tune(
        &(Arc::clone(&shared) as SharedDevice),
        request,
        &mut |_| Ok(()),
        &hasty(),
        &mut |_| {},
    )?;
    Ok((shared.snapshot(), plan))
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

/// Everything that has a name, with its contents; of directories not their length.
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
        let is_dir = inode.kind() == FileKind::Directory;
        let seen = Seen {
            kind: inode.kind(),
            size: if is_dir { 0 } else { inode.size() },
            links: inode.metadata().links,
            hash: hasher.finish(),
        };
        all.insert(entry.path().to_vec(), seen);
    }
    all
}
