//! Directories of every kind changed at random, against a model, e2fsck and the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant::{Fs, FsError, Inode, MountOptions, NewInode, RenameFlags};
use extant_base::Prng;
use extant_block::MemoryDevice;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require};

fn device(size: &str, options: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("image");
    mke2fs(&path, size, options)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let device = Arc::clone(device);
    MountOptions::new().read_only(false).seed(1).open_shared(device).expect("mounts")
}

fn assert_clean(device: &MemoryDevice) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).expect("mke2fs is there, so is e2fsck").assert_clean();
}

type Model = BTreeMap<Vec<u8>, u32>;

fn listed(dir: &Inode) -> Model {
    let mut names = Model::new();
    for entry in dir.read_dir().unwrap() {
        let entry = entry.unwrap();
        let before = names.insert(entry.name().to_vec(), entry.ino().0);
        assert_eq!(before, None, "{:?} listed twice", String::from_utf8_lossy(entry.name()));
    }
    names
}

/// A name of random length, often short, sometimes as long as can be.
fn random_name(random: &mut Prng, long: bool) -> Vec<u8> {
    let number = random.next_u64() >> 24;
    let mut name = format!("{number:x}").into_bytes();
    let len = match random.below(8) {
        _ if long => 200 + random.below(56),
        0 => 1 + random.below(255),
        _ => 10 + random.below(20),
    };
    name.resize(name.len().max(len as usize).min(255), b'.');
    name
}

/// What a test does with one directory.
struct Work {
    steps: usize,
    long_names: bool,
    /// In 16: how often a name is added rather than removed.
    grow: u64,
}

/// Random insertions, removals and renames. All entries are links to one file, so that only the
/// directory grows.
fn churn(dir: &Inode, files: &[Inode], model: &mut Model, random: &mut Prng, work: &Work) {
    let mut names: Vec<Vec<u8>> = model.keys().cloned().collect();
    for _ in 0..work.steps {
        let file = &files[random.below(files.len() as u64) as usize];
        if names.is_empty() || random.below(16) < work.grow {
            let name = random_name(random, work.long_names);
            match dir.link(&name, file) {
                Ok(()) => {
                    assert_eq!(model.insert(name.clone(), file.ino().0), None);
                    names.push(name);
                }
                Err(FsError::Exists { .. }) => assert!(model.contains_key(&name)),
                Err(error) => panic!("{error}"),
            }
            continue;
        }
        let at = random.below(names.len() as u64) as usize;
        let name = names.swap_remove(at);
        if random.one_in(4) {
            let new = random_name(random, work.long_names);
            if model.contains_key(&new) {
                names.push(name);
                continue;
            }
            dir.rename(&name, dir, &new, RenameFlags::empty()).unwrap();
            let ino = model.remove(&name).unwrap();
            model.insert(new.clone(), ino);
            names.push(new);
        } else {
            dir.unlink(&name).unwrap();
            model.remove(&name).unwrap();
            assert!(matches!(dir.lookup(&name), Err(FsError::NotFound { .. })));
        }
    }
}

fn files(dir: &Inode) -> Vec<Inode> {
    // A file has at most 65,000 links.
    (0..8).map(|at| dir.create(format!("file-{at}"), &NewInode::root(0o644)).unwrap()).collect()
}

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext4", "-b", "1024", "-O", "inline_data", "-I", "256"],
    &["-t", "ext4", "-b", "4096", "-O", "inline_data,large_dir", "-I", "512"],
    &["-t", "ext4", "-b", "1024", "-O", "^dir_index,inline_data"],
    &["-t", "ext2", "-b", "1024", "-O", "^dir_index"],
    &["-t", "ext2", "-b", "1024", "-O", "^filetype"],
    &["-t", "ext3", "-b", "1024", "-O", "dir_index"],
    &["-t", "ext4", "-b", "2048", "-O", "casefold", "-E", "encoding=utf8"],
];

#[test]
fn every_kind_of_directory_agrees_with_a_model() {
    for (number, layout) in LAYOUTS.iter().enumerate() {
        let device = require!(device("32M", layout));
        let mut random = Prng::new(number as u64 + 7);
        let mut model = Model::new();
        let fs = mount(&device);
        let root = fs.root().unwrap();
        let files = files(&root);
        let dir = root.mkdir("dir", &NewInode::root(0o755)).unwrap();
        for (steps, grow) in [(20, 14), (400, 12), (800, 8), (1500, 12), (1500, 3), (500, 10)] {
            let work = Work { steps, grow, long_names: false };
            churn(&dir, &files, &mut model, &mut random, &work);
            for (name, ino) in &model {
                assert_eq!(dir.lookup_ino(name).unwrap().0, *ino, "{layout:?}");
            }
            fs.sync().unwrap();
            let seen = MountOptions::new().open_shared(Arc::clone(&device) as _).unwrap();
            assert_eq!(listed(&seen.resolve("/dir").unwrap()), model, "{layout:?}");
            assert_eq!(listed(&dir), model, "{layout:?}");
        }
        drop((dir, files, root));
        fs.unmount().unwrap();
        assert_clean(&device);
        // Emptied, it is as good as new.
        let fs = mount(&device);
        let dir = fs.resolve("/dir").unwrap();
        for name in model.keys() {
            dir.unlink(name).unwrap();
        }
        assert_eq!(listed(&dir), Model::new());
        drop(dir);
        fs.root().unwrap().rmdir("dir").unwrap();
        fs.unmount().unwrap();
        assert_clean(&device);
    }
}
