//! Directories of every kind changed at random, against a model, e2fsck and the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant::{Fs, FsError, Inode, MountOptions, NewInode, RenameFlags};
use extant_base::Prng;
use extant_block::BlockDevice as _;
use extant_block::MemoryDevice;
use extant_testkit::oracle::{LoopMount, debugfs, e2fsck, mke2fs, root};
use extant_testkit::{image, require};

use crate::patch;

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

/// Fills a directory with names of 255 bytes until `count` or an error; the answer is how many fit.
fn fill_with_long_names(dir: &Inode, count: usize, file: &Inode) -> (usize, Option<FsError>) {
    for at in 0..count {
        let name = format!("{at:0255}");
        if let Err(error) = dir.link(&name, file) {
            return (at, Some(error));
        }
        if at % 60_000 == 59_999 {
            // A file has at most 65,000 links.
            return (at + 1, None);
        }
    }
    (count, None)
}

#[test]
fn an_index_gets_as_deep_as_the_features_allow_and_then_refuses() {
    for (options, deep) in [("^large_dir,^has_journal", false), ("large_dir,^has_journal", true)] {
        let layout = ["-t", "ext4", "-b", "1024", "-N", "1024", "-O", options];
        let device = require!(device("96M", &layout));
        let fs = mount(&device);
        let root = fs.root().unwrap();
        let file = root.create("file", &NewInode::root(0o644)).unwrap();
        let dir = root.mkdir("dir", &NewInode::root(0o755)).unwrap();
        let (count, error) = fill_with_long_names(&dir, 30_000, &file);
        if deep {
            assert!(error.is_none(), "{count}: {error:?}");
            assert_eq!(count, 30_000);
        } else {
            let error = error.expect("an index of two levels of 1 KiB blocks is full by now");
            assert!(matches!(error, FsError::NoSpace { .. }), "{count}: {error}");
            assert!(error.to_string().contains("index levels"), "{error}");
            assert!(count > 15_000, "{count}");
        }
        for at in (0..count).step_by(97) {
            assert_eq!(dir.lookup_ino(format!("{at:0255}")).unwrap(), file.ino());
        }
        assert_eq!(dir.read_dir().unwrap().map(Result::unwrap).count(), count);
        for at in (0..count).step_by(3) {
            dir.unlink(format!("{at:0255}")).unwrap();
        }
        assert_eq!(dir.read_dir().unwrap().count(), count - count.div_ceil(3));
        drop((dir, file, root));
        fs.unmount().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn what_is_there_all_the_time_is_listed_once_while_others_come_and_go() {
    let layouts: [&[&str]; 4] = [
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "inline_data"],
        &["-t", "ext4", "-b", "1024", "-O", "^dir_index"],
        &["-t", "ext4", "-b", "1024", "-O", "casefold", "-E", "encoding=utf8"],
    ];
    for (number, layout) in layouts.iter().enumerate() {
        let device = require!(device("32M", layout));
        let fs = mount(&device);
        let root = fs.root().unwrap();
        let file = root.create("file", &NewInode::root(0o644)).unwrap();
        let mut random = Prng::new(number as u64);
        for lasting in [0usize, 2, 10, 60, 600] {
            let dir = root.mkdir(format!("dir-{lasting}"), &NewInode::root(0o755)).unwrap();
            for at in 0..lasting {
                dir.link(format!("stays-{at}"), &file).unwrap();
            }
            // Listed in one go, and resumed at every entry by its cookie.
            for resumed in [false, true] {
                let mut seen = BTreeMap::new();
                let mut listing = dir.read_dir().unwrap().with_dots(true);
                let mut extra = 0;
                while let Some(entry) = listing.next() {
                    let entry = entry.unwrap();
                    *seen.entry(entry.name().to_vec()).or_insert(0) += 1;
                    if resumed {
                        let again = dir.read_dir().unwrap().with_dots(true);
                        listing = again.seek(entry.cookie());
                    }
                    // Without an index, entries that moved to a block or an index have new cookies.
                    let bound = if number == 2 { 2 } else { 40 };
                    for _ in 0..random.below(bound).min(2000u64.saturating_sub(extra)) {
                        dir.link(format!("comes-{resumed}-{extra}"), &file).unwrap();
                        if random.one_in(3) {
                            dir.unlink(format!("comes-{resumed}-{extra}")).unwrap();
                        }
                        extra += 1;
                    }
                }
                for at in 0..lasting {
                    let times = seen.get(format!("stays-{at}").as_bytes());
                    assert_eq!(times, Some(&1), "{layout:?} {at} of {lasting}, {resumed}");
                }
                assert!(seen.values().all(|times| *times == 1));
                assert_eq!(seen.get(b"..".as_slice()), Some(&1));
            }
        }
        drop((file, root));
        fs.unmount().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn a_full_device_leaves_directories_whole() {
    for options in ["dir_index", "^dir_index", "inline_data"] {
        let layout = ["-t", "ext4", "-b", "1024", "-N", "4096", "-O", options];
        let device = require!(device("8M", &layout));
        let fs = mount(&device);
        let root = fs.root().unwrap();
        let file = root.create("file", &NewInode::root(0o644)).unwrap();
        let mut dirs = Vec::new();
        let mut model = Vec::new();
        let mut refused = 0;
        for at in 0..60_000usize {
            if dirs.len() < 40 {
                dirs.push(root.mkdir(format!("dir-{at}"), &NewInode::root(0o755)).unwrap());
                model.push(Model::new());
            }
            let number = at % dirs.len();
            let name = format!("{at:0200}");
            match dirs[number].link(&name, &file) {
                Ok(()) => {
                    model[number].insert(name.into_bytes(), file.ino().0);
                }
                Err(FsError::NoSpace { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            if refused > 200 {
                break;
            }
        }
        assert!(refused > 200, "{options}");
        for (dir, model) in dirs.iter().zip(&model) {
            assert_eq!(listed(dir), *model, "{options}");
        }
        drop((dirs, file, root));
        fs.unmount().unwrap();
        assert_clean(&device);
    }
}

/// Sends an image to the kernel and back: what it lists, and what it then does with the directory.
#[test]
fn the_kernel_lists_and_goes_on_with_what_was_written() {
    require!(root("mounting"));
    for layout in [LAYOUTS[0], LAYOUTS[1], LAYOUTS[4], LAYOUTS[8]] {
        let device = require!(device("32M", layout));
        let mut random = Prng::new(3);
        let mut model = Model::new();
        let fs = mount(&device);
        let top = fs.root().unwrap();
        let files = files(&top);
        let dir = top.mkdir("dir", &NewInode::root(0o755)).unwrap();
        let work = Work { steps: 4000, grow: 12, long_names: false };
        churn(&dir, &files, &mut model, &mut random, &work);
        drop((dir, files, top));
        fs.unmount().unwrap();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        image::save(&device, &path);
        {
            use std::os::unix::ffi::OsStrExt;
            let kernel = LoopMount::read_write(&path).unwrap();
            let dir = kernel.path().join("dir");
            let mut seen = Model::new();
            for entry in std::fs::read_dir(&dir).unwrap() {
                use std::os::unix::fs::DirEntryExt;
                let entry = entry.unwrap();
                seen.insert(entry.file_name().as_bytes().to_vec(), entry.ino() as u32);
            }
            assert_eq!(seen, model, "{layout:?}");
            for name in model.keys().step_by(2) {
                std::fs::remove_file(dir.join(std::ffi::OsStr::from_bytes(name))).unwrap();
            }
            for at in 0..1500 {
                std::fs::write(dir.join(format!("kernel-{at}")), "").unwrap();
            }
        }
        e2fsck(&path).unwrap().assert_clean();
        // And extant goes on with what the kernel left.
        let device = Arc::new(image::load(&path));
        let fs = mount(&device);
        let dir = fs.resolve("/dir").unwrap();
        for at in (0..1500).step_by(2) {
            dir.unlink(format!("kernel-{at}")).unwrap();
            dir.create(format!("extant-{at}"), &NewInode::root(0o600)).unwrap();
        }
        let expected = model.len() - model.len().div_ceil(2) + 1500;
        assert_eq!(listed(&dir).len(), expected);
        drop(dir);
        fs.unmount().unwrap();
        assert_clean(&device);
    }
}

/// Behind 249 times `x`, these have one legacy hash.
const OF_ONE_HASH: [&str; 9] =
    ["aneWq1", "aJ12ee", "aJ12hh", "aJ12ll", "aJ12uu", "aJ12xx", "aJ12EE", "aJ12II", "aJ12LL"];

/// More names of one hash than a leaf has room for go on in the next leaf, and so do lookups,
/// removals and listings.
#[test]
fn names_of_one_hash_go_on_in_the_next_leaf() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4", "-b", "1024"]));
    require!(debugfs(&path, true, "set_super_value def_hash_version 0\n"));
    let device = Arc::new(image::load(&path));
    for seed in 0..6 {
        let mut random = Prng::new(seed);
        let fs = mount(&device);
        let top = fs.root().unwrap();
        let name = format!("dir-{seed}");
        let dir = top.mkdir(&name, &NewInode::root(0o755)).unwrap();
        let files = vec![top.create(format!("file-{seed}"), &NewInode::root(0o644)).unwrap()];
        let mut model = Model::new();
        for round in 0..4 {
            let work = Work { steps: 40, grow: 12, long_names: true };
            churn(&dir, &files, &mut model, &mut random, &work);
            for suffix in OF_ONE_HASH {
                let name = format!("{}{suffix}", "x".repeat(249)).into_bytes();
                if model.contains_key(&name) && random.one_in(2) {
                    dir.unlink(&name).unwrap();
                    model.remove(&name);
                } else if !model.contains_key(&name) && (round == 1 || random.one_in(2)) {
                    dir.link(&name, &files[0]).unwrap();
                    model.insert(name, files[0].ino().0);
                } else if model.contains_key(&name) {
                    let again = dir.link(&name, &files[0]);
                    assert!(matches!(again, Err(FsError::Exists { .. })));
                }
            }
            for (name, ino) in &model {
                assert_eq!(dir.lookup_ino(name).unwrap().0, *ino);
            }
            assert_eq!(listed(&dir), model);
            let mut resumed = Model::new();
            let mut listing = dir.read_dir().unwrap();
            while let Some(entry) = listing.next() {
                let entry = entry.unwrap();
                resumed.insert(entry.name().to_vec(), entry.ino().0);
                listing = dir.read_dir().unwrap().seek(entry.cookie());
            }
            assert_eq!(resumed, model);
        }
        drop((dir, files, top));
        fs.unmount().unwrap();
        assert_clean(&device);
        let fs = MountOptions::new().open_shared(Arc::clone(&device) as _).unwrap();
        let dir = fs.resolve(format!("/{name}")).unwrap();
        for (name, ino) in &model {
            assert_eq!(dir.lookup_ino(name).unwrap().0, *ino, "found through the index");
        }
    }
}

/// A directory with a damaged index can be read and names be removed; it takes no new ones.
#[test]
fn a_damaged_index_takes_no_names() {
    let device = require!(device("16M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]));
    let fs = mount(&device);
    let top = fs.root().unwrap();
    let dir = top.mkdir("dir", &NewInode::root(0o755)).unwrap();
    for at in 0..200 {
        dir.create(format!("name-{at}"), &NewInode::root(0o644)).unwrap();
    }
    let block = dir.map(0..1).next().unwrap().unwrap();
    let extant::MappingKind::Mapped(block) = block.kind else { panic!("a root") };
    drop((dir, top));
    fs.unmount().unwrap();
    // The count of the root's records, beyond its limit.
    let device: Arc<MemoryDevice> = device;
    let at = block.0 * 1024 + 34;
    device.write_at(at, &[0xff, 0xff]).unwrap();
    let fs = mount(&device);
    let dir = fs.resolve("/dir").unwrap();
    assert!(dir.lookup("name-17").is_ok());
    assert!(matches!(dir.lookup("name-17000"), Err(FsError::NotFound { .. })));
    let refused = dir.create("another", &NewInode::root(0o644)).unwrap_err();
    assert_eq!(refused.family(), extant::Family::Damage, "{refused}");
    dir.unlink("name-17").unwrap();
    assert_eq!(listed(&dir).len(), 199);
    assert!(fs.resolve("/").unwrap().create("elsewhere", &NewInode::root(0o644)).is_ok());
}

/// An index that names another hash function than the one it was made with leads nowhere: every name is listed,
/// found and can be removed all the same, and none comes to it.
#[test]
fn an_index_of_other_hashes_hides_no_name() {
    // With the second seed the legacy hashes of all names belong to the first leaf.
    for seed in ["f0a4c5f8-8d5b-4f6a-9a39-1c7c5d5f9f10", "17156075-1111-4222-8333-0000f72a4db3"] {
        let seed = format!("hash_seed={seed}");
        let device = require!(device(
            "16M",
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-E", &seed]
        ));
        let fs = mount(&device);
        let top = fs.root().unwrap();
        let dir = top.mkdir("dir", &NewInode::root(0o755)).unwrap();
        let file = top.create("file", &NewInode::root(0o644)).unwrap();
        for at in 0..300 {
            dir.link(format!("name-{at}"), &file).unwrap();
        }
        let block = dir.map(0..1).next().unwrap().unwrap();
        let extant::MappingKind::Mapped(block) = block.kind else { panic!("a root") };
        drop((dir, file, top));
        fs.unmount().unwrap();
        // The version of the hash: half MD4 becomes TEA, and the legacy one.
        for version in [2, 0] {
            device.write_at(block.0 * 1024 + 0x1c, &[version]).unwrap();
            for read_only in [true, false] {
                let device = Arc::clone(&device) as _;
                let fs = MountOptions::new().read_only(read_only).open_shared(device).unwrap();
                let dir = fs.resolve("/dir").unwrap();
                assert_eq!(listed(&dir).len(), 300, "version {version}, read only {read_only}");
                let found = (0..300).filter(|at| dir.lookup(format!("name-{at}")).is_ok()).count();
                assert_eq!(found, 300, "version {version}, read only {read_only}");
                assert!(matches!(dir.lookup("name-300"), Err(FsError::NotFound { .. })));
                if !read_only {
                    let file = fs.resolve("/file").unwrap();
                    let refused = dir.link("another", &file).unwrap_err();
                    assert_eq!(refused.family(), extant::Family::Damage, "{refused}");
                    dir.unlink("name-17").unwrap();
                    assert_eq!(listed(&dir).len(), 299);
                    dir.unlink("name-17").unwrap_err();
                    // Back for the next round: the true version leads to the place.
                    drop((dir, file));
                    fs.unmount().unwrap();
                }
            }
            device.write_at(block.0 * 1024 + 0x1c, &[1]).unwrap();
            let fs = mount(&device);
            let (dir, file) = (fs.resolve("/dir").unwrap(), fs.resolve("/file").unwrap());
            dir.link("name-17", &file).unwrap();
            assert_eq!(listed(&dir).len(), 300);
            drop((dir, file));
            fs.unmount().unwrap();
            assert_clean(&device);
        }
    }
}

#[test]
fn names_of_bytes_above_127_hash_as_the_superblock_says_from_the_first_split_on() {
    // Bits of `s_flags`: signed and unsigned bytes in hashes of names.
    for flags in ["1", "2"] {
        for hash in ["half_md4", "tea", "legacy"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("image");
            require!(mke2fs(&path, "16M", &["-t", "ext4", "-b", "1024"]));
            require!(debugfs(
                &path,
                true,
                &format!("ssv flags {flags}\nssv def_hash_version {hash}\n")
            ));
            let device = Arc::new(image::load(&path));
            let fs = mount(&device);
            let root = fs.root().unwrap();
            let names: Vec<Vec<u8>> = (0..200u32)
                .map(|n| {
                    [&[0xe4, 0x80 + (n % 100) as u8, 0xff], format!("{n}").as_bytes()].concat()
                })
                .collect();
            for name in &names {
                root.create(name, &NewInode::root(0o644)).unwrap();
            }
            drop(root);
            fs.unmount().unwrap();
            assert_clean(&device);
            let fs = mount(&device);
            let root = fs.root().unwrap();
            for name in &names {
                assert!(root.lookup(name).is_ok(), "{hash}, flags {flags}: {name:x?}");
            }
        }
    }
}

#[test]
fn the_root_directory_is_there_and_is_no_file() {
    let device = require!(device("8M", &["-t", "ext4"]));
    let fs = mount(&device);
    fs.create("/file", &NewInode::root(0o644)).unwrap();
    for path in ["/", "//"] {
        let new = NewInode::root(0o755);
        let made = [
            fs.create_dir(path, &new).map(drop),
            fs.symlink("file", path, &new).map(drop),
            fs.hard_link("/file", path),
        ];
        for error in made {
            assert!(matches!(error, Err(FsError::Exists { .. })), "{path}: {error:?}");
        }
        let error = fs.remove_file(path);
        assert!(matches!(error, Err(FsError::IsADirectory { .. })), "{path}: {error:?}");
        assert!(fs.remove_dir(path).is_err() && fs.rename(path, "/other").is_err());
    }
    fs.unmount().unwrap();
    assert_clean(&device);
}

/// What is no name is refused as that, wherever it is given, and not as a name that is not there.
#[test]
fn what_is_no_name_is_refused_as_such_by_everything_that_takes_one() {
    let device = require!(device("8M", &["-t", "ext4"]));
    let fs = mount(&device);
    let root = fs.root().unwrap();
    let new = NewInode::root(0o644);
    let file = root.create("file", &new).unwrap();
    let dir = root.mkdir("dir", &NewInode::root(0o755)).unwrap();
    let long = vec![b'x'; 256];
    let names: [(&[u8], i32); 6] =
        [(b"", 22), (b".", 22), (b"..", 22), (b"dir/a", 22), (b"a\0b", 22), (&long, 36)];
    let none = RenameFlags::default();
    for (name, errno) in names {
        let answers = [
            ("create", root.create(name, &new).map(drop)),
            ("mkdir", root.mkdir(name, &new).map(drop)),
            ("symlink", root.symlink(name, "target", &new).map(drop)),
            ("link", root.link(name, &file)),
            ("unlink", root.unlink(name)),
            // Linux says of a parent that it is not empty.
            ("rmdir", if name == b".." { root.unlink(name) } else { root.rmdir(name) }),
            ("rename from", root.rename(name, &dir, "there", none)),
            ("rename to", root.rename("file", &dir, name, none)),
        ];
        for (what, answer) in answers {
            let error = answer.unwrap_err();
            let text = String::from_utf8_lossy(name);
            assert_eq!(error.errno(), errno, "{what} {text:?}: {error}");
        }
    }
    assert_eq!(listed(&root).len(), 3, "lost+found, file, dir");
    drop((file, dir, root));
    fs.unmount().unwrap();
    assert_clean(&device);
}

/// A directory that has as many directories as it may have: what is in it may still be renamed there.
#[test]
fn a_directory_at_its_limit_of_links_lets_its_own_be_renamed() {
    let device = require!(device("8M", &["-t", "ext4", "-O", "^dir_nlink"]));
    {
        let fs = mount(&device);
        let root = fs.root().unwrap();
        let full = root.mkdir("full", &NewInode::root(0o755)).unwrap();
        full.mkdir("mine", &NewInode::root(0o755)).unwrap();
        root.mkdir("other", &NewInode::root(0o755)).unwrap();
        drop((full, root));
        fs.unmount().unwrap();
    }
    patch::patch_inode(&device, "/full", |record| record.links = 65_000);
    let fs = mount(&device);
    let root = fs.root().unwrap();
    let full = root.lookup("full").unwrap();
    full.rename("mine", &full, "still mine", RenameFlags::default()).unwrap();
    assert_eq!(full.metadata().links, 65_000);
    let error = root.rename("other", &full, "new", RenameFlags::default()).unwrap_err();
    assert_eq!(error.errno(), 31, "{error}");
    assert_eq!(full.mkdir("new", &NewInode::root(0o755)).unwrap_err().errno(), 31);
    drop((full, root));
    fs.unmount().unwrap();
}

/// Whether a name is in a directory with a damaged block is not known: it is neither called absent nor given again.
#[test]
fn a_name_that_may_be_in_a_damaged_block_is_not_called_absent() {
    for index in [false, true] {
        let features = if index { "dir_index,^metadata_csum" } else { "^dir_index,^metadata_csum" };
        let device = require!(device("8M", &["-t", "ext4", "-b", "1024", "-O", features]));
        let first = {
            let fs = mount(&device);
            let dir = fs.root().unwrap().mkdir("dir", &NewInode::root(0o755)).unwrap();
            for number in 0..200 {
                dir.create(format!("name {number:04}"), &NewInode::root(0o644)).unwrap();
            }
            // With an index, the first block is its root.
            let at = u64::from(index);
            let run = dir.map(at..at + 1).next().unwrap().unwrap();
            let extant::MappingKind::Mapped(block) = run.kind else { panic!("a directory") };
            drop(dir);
            fs.unmount().unwrap();
            block.0
        };
        // The length of a record in the middle.
        let mut bytes = [0; 1024];
        device.read_at(first * 1024, &mut bytes).unwrap();
        let mut at = 0;
        for _ in 0..5 {
            at += usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        }
        bytes[at + 4..at + 6].copy_from_slice(&[3, 0]);
        device.write_at(first * 1024, &bytes).unwrap();

        let fs = mount(&device);
        let dir = fs.resolve("/dir").unwrap();
        let (mut gone, mut unknown) = (0, 0);
        for number in 0..200 {
            match dir.unlink(format!("name {number:04}")) {
                Ok(()) => gone += 1,
                Err(error) => {
                    assert_eq!(error.errno(), 117, "index {index}, {number}: {error}");
                    unknown += 1;
                }
            }
        }
        assert!(gone > 100 && unknown > 10, "index {index}: {gone} removed, {unknown} not known");
        if !index {
            assert_eq!(dir.unlink("of nobody").unwrap_err().errno(), 117);
            let new = dir.create("of nobody", &NewInode::root(0o644));
            assert_eq!(new.unwrap_err().errno(), 117);
        }
        drop(dir);
        fs.unmount().unwrap();
    }
}

/// Programs keep cookies, and some make them up: whatever it is, what follows is a rest of the list, and it ends.
#[test]
fn a_listing_goes_on_from_any_cookie_and_ends() {
    for features in ["^dir_index", "dir_index", "inline_data"] {
        let device = require!(device("8M", &["-t", "ext4", "-b", "1024", "-O", features]));
        let count = if features == "inline_data" { 4 } else { 90 };
        {
            let fs = mount(&device);
            let dir = fs.root().unwrap().mkdir("dir", &NewInode::root(0o755)).unwrap();
            for number in 0..count {
                dir.create(format!("name {number}"), &NewInode::root(0o644)).unwrap();
            }
            drop(dir);
            fs.unmount().unwrap();
        }
        for writable in [false, true] {
            let options = MountOptions::new().read_only(!writable).seed(1);
            let fs = options.open_shared(Arc::clone(&device) as _).unwrap();
            let dir = fs.resolve("/dir").unwrap();
            let entries: Vec<_> = dir.read_dir().unwrap().map(|one| one.unwrap()).collect();
            let names: Vec<_> = entries.iter().map(|one| one.name().to_vec()).collect();
            assert_eq!(names.len(), count, "{features}");
            for (number, entry) in entries.iter().enumerate() {
                let rest = dir.read_dir().unwrap().seek(entry.cookie());
                let rest: Vec<_> = rest.map(|one| one.unwrap().name().to_vec()).collect();
                assert_eq!(rest, names[number + 1..], "{features} {writable} {number}");
            }
            let size = dir.size() + 20;
            let odd = [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 32, 1 << 31];
            for cookie in (0..size).chain(odd) {
                let rest = dir.read_dir().unwrap().seek(cookie);
                let rest: Vec<_> = rest.map(|one| one.unwrap().name().to_vec()).collect();
                assert!(names.ends_with(&rest), "{features} {writable} {cookie}: {}", rest.len());
            }
            drop(dir);
        }
    }
}
