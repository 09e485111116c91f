//! Builds in one call: what comes of them, and what is left when they fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_block::MemoryDevice;
use extant_testkit::oracle::e2fsck;
use extant_testkit::require;

use super::*;

fn source(dir: &Path) -> PathBuf {
    let root = dir.join("root");
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::write(root.join("etc/hostname"), "web1\n").unwrap();
    std::fs::write(root.join("large"), vec![7; 3_000_000]).unwrap();
    root
}

#[derive(Default)]
struct Heard(AtomicU64);

impl Progress for Heard {
    fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn a_directory_becomes_an_image_with_what_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (root, image) = (source(dir.path()), dir.path().join("a.img"));
    let heard = Heard::default();
    let built = Build::from_dir(&root)
        .free_bytes(1 << 20)
        .owner(3, 4)
        .label("root")
        .progress(&heard)
        .write_to(&image)
        .unwrap();
    assert!(heard.0.load(Ordering::Relaxed) > 3_000_000);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), built.summary.size_bytes);
    assert_eq!(built.skipped.count, 0);
    let fs = extant::Fs::open_path(&image).unwrap();
    assert_eq!(fs.read_to_string("/etc/hostname").unwrap(), "web1\n");
    let large = fs.metadata(Path::new("/large")).unwrap();
    assert_eq!((large.uid, large.gid, large.size), (3, 4, 3_000_000));
    assert_eq!(fs.superblock().uuid, built.uuid);
    require!(e2fsck(&image)).assert_clean();
}

#[test]
fn the_same_source_and_epoch_make_the_same_bytes_in_a_file_and_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (root, image) = (source(dir.path()), dir.path().join("a.img"));
    let build = || Build::from_dir(&root).size(16 << 20).reproducible(1_700_000_000);
    build().threads(1).write_to(&image).unwrap();
    let device = MemoryDevice::new(16 << 20);
    build().threads(4).write_to_device(&device, true).unwrap();
    let mut bytes = vec![0; 16 << 20];
    device.read_at(0, &mut bytes).unwrap();
    assert!(std::fs::read(&image).unwrap() == bytes);
    let small = MemoryDevice::new(4 << 20);
    let error = build().write_to_device(&small, true).unwrap_err();
    assert_eq!(error.to_string(), "the device has 4194304 bytes and the image needs 16777216");
}

#[test]
fn a_build_that_fails_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let (root, image) = (source(dir.path()), dir.path().join("a.img"));
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = names();
    // It stops when asked to.
    let stop = AtomicBool::new(true);
    let error = Build::from_dir(&root).cancel(&stop).write_to(&image).unwrap_err();
    assert!(matches!(error, BuildError::Write(WriteError::Interrupted)), "{error}");
    assert_eq!(names(), before);
    // It does not fit.
    let error = Build::from_dir(&root).size(1 << 20).write_to(&image).unwrap_err();
    assert!(matches!(error, BuildError::Plan(_)), "{error}");
    assert_eq!(names(), before);
    // There is no source, and one that only looks like a tree.
    let error = Build::from_dir(dir.path().join("none")).write_to(&image).unwrap_err();
    assert!(matches!(error, BuildError::Source(_)), "{error}");
    std::fs::write(root.join("oci-layout"), "{}").unwrap();
    std::fs::write(root.join("index.json"), "{}").unwrap();
    let error = Build::from_dir(&root).write_to(&image).unwrap_err();
    assert!(error.to_string().contains("OCI image layout"), "{error}");
    assert_eq!(names(), before);
    // Somebody's data stays, unless the caller says so.
    Build::from_dir(&root).take_containers(true).write_to(&image).unwrap();
    let bytes = std::fs::read(&image).unwrap();
    let again = || Build::from_dir(&root).take_containers(true).free_bytes(1 << 20);
    let error = again().write_to(&image).unwrap_err();
    assert!(matches!(error, BuildError::Output(OutputError::InUse { .. })), "{error}");
    assert!(std::fs::read(&image).unwrap() == bytes);
    let built = again().overwrite(true).write_to(&image).unwrap();
    assert_eq!(again().plan().unwrap().size_bytes, built.summary.size_bytes);
    assert!(std::fs::read(&image).unwrap().len() > bytes.len());
}

#[test]
fn an_archive_becomes_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let (root, image) = (source(dir.path()), dir.path().join("a.img"));
    let archive = dir.path().join("root.tar.gz");
    let mut tar = std::process::Command::new("tar");
    tar.arg("-C").arg(&root).arg("-czf").arg(&archive).arg(".");
    assert!(tar.status().unwrap().success());
    Build::from_tar(&archive).write_to(&image).unwrap();
    let fs = extant::Fs::open_path(&image).unwrap();
    assert_eq!(fs.read_to_string("/etc/hostname").unwrap(), "web1\n");
}
