//! Contents of files against a model, on every layout, with little memory and with mounts between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use extant::{Fs, Ino, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{BlockDevice, FaultDevice, FaultPlan, MemoryDevice, SharedDevice};
use extant_sync::FixedClock;
use extant_testkit::oracle::{LoopMount, debugfs, e2fsck, mke2fs, root};
use extant_testkit::{image, require, tempdir};
use rustix::mount::MountFlags;

struct Layout {
    name: &'static str,
    options: &'static [&'static str],
}

const LAYOUTS: &[Layout] = &[
    Layout { name: "1K", options: &["-t", "ext4", "-b", "1024", "-J", "size=2"] },
    Layout { name: "4K", options: &["-t", "ext4", "-b", "4096"] },
    Layout { name: "64K", options: &["-t", "ext4", "-b", "65536"] },
    Layout {
        name: "bigalloc",
        options: &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"],
    },
    Layout { name: "inline", options: &["-t", "ext4", "-b", "1024", "-O", "inline_data"] },
    Layout { name: "ext3", options: &["-t", "ext3", "-b", "1024"] },
    Layout { name: "ext2", options: &["-t", "ext2", "-b", "2048"] },
];

const SIZE_MAX: u64 = 3 << 20;

struct World {
    device: Arc<MemoryDevice>,
    clock: Arc<FixedClock>,
    cache: u64,
    folio: u64,
    fs: Option<Fs>,
    files: BTreeMap<String, Vec<u8>>,
}

impl World {
    fn new(layout: &Layout, cache: u64, folio: u64) -> Result<World, String> {
        let dir = tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("image");
        // What a file does not own must never show: make it recognisable.
        std::fs::write(&path, vec![0xa5; 48 << 20]).map_err(|error| error.to_string())?;
        mke2fs(&path, "48M", layout.options)?;
        let device = Arc::new(image::load(&path));
        let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
        let mut world = World { device, clock, cache, folio, fs: None, files: BTreeMap::new() };
        world.mount();
        Ok(world)
    }

    fn mount(&mut self) {
        let device: SharedDevice = Arc::clone(&self.device) as SharedDevice;
        let clock = Arc::clone(&self.clock);
        let options = MountOptions::new().read_only(false).clock(clock).seed(7).background(false);
        let options = options.data_cache_bytes(self.cache).folio_bytes_max(self.folio);
        self.fs = Some(options.open_shared(device).unwrap());
    }

    fn fs(&self) -> &Fs {
        self.fs.as_ref().unwrap()
    }

    fn step(&mut self, random: &mut Prng) {
        let names: Vec<String> = self.files.keys().cloned().collect();
        let pick = |random: &mut Prng| names[random.below(names.len() as u64) as usize].clone();
        if names.len() < 2 || (names.len() < 6 && random.one_in(20)) {
            let name = format!("f{}", random.below(1000));
            if !self.files.contains_key(&name) {
                self.fs().root().unwrap().create(&name, &NewInode::root(0o644)).unwrap();
                self.files.insert(name, Vec::new());
            }
            return;
        }
        let name = pick(random);
        let inode = self.fs().resolve(format!("/{name}")).unwrap();
        let model = self.files.get_mut(&name).unwrap();
        let len = |random: &mut Prng| match random.below(5) {
            0 => 1 + random.below(64),
            1 => 1 + random.below(5000),
            2 => 4096 * (1 + random.below(8)),
            3 => 1 + random.below(100_000),
            _ => 1 + random.below(400_000),
        };
        let at = |random: &mut Prng, model: &Vec<u8>| match random.below(4) {
            0 => random.below(SIZE_MAX),
            1 => random.below(SIZE_MAX) & !4095,
            2 => model.len() as u64,
            _ => random.below(model.len() as u64 + 1),
        };
        match random.below(22) {
            0..=8 => {
                let offset = at(random, model);
                let mut bytes =
                    vec![0; len(random).min(SIZE_MAX - offset.min(SIZE_MAX - 1)) as usize];
                random.fill(&mut bytes);
                let end = offset as usize + bytes.len();
                let written = match random.one_in(3) {
                    true => inode.write_direct_at(&bytes, offset).unwrap(),
                    false => inode.write_at(&bytes, offset).unwrap(),
                };
                assert_eq!(written, bytes.len());
                if model.len() < end {
                    model.resize(end, 0);
                }
                model[offset as usize..end].copy_from_slice(&bytes);
            }
            9..=13 => {
                let offset = at(random, model);
                let mut out = vec![0xee; len(random) as usize];
                let read = match random.one_in(3) {
                    true => inode.read_direct_at(&mut out, offset).unwrap(),
                    false => inode.read_at(&mut out, offset).unwrap(),
                };
                let from = (offset as usize).min(model.len());
                let wanted = &model[from..model.len().min(from + out.len())];
                assert_eq!(read, wanted.len(), "{name}: read of {} at {offset}", out.len());
                if let Some(bad) = (0..read).find(|at| out[*at] != wanted[*at]) {
                    panic!(
                        "{name}: byte {} is {:#x}, not {:#x}",
                        from + bad,
                        out[bad],
                        wanted[bad]
                    );
                }
            }
            14 | 15 => {
                let size = if random.one_in(2) {
                    random.below(SIZE_MAX)
                } else {
                    random.below(model.len() as u64 + 1)
                };
                inode.truncate(size).unwrap();
                model.resize(size as usize, 0);
            }
            16 => inode.sync().unwrap(),
            17 => inode.sync_data().unwrap(),
            18 => {
                self.clock.advance(Duration::from_secs(random.below(40)));
                self.fs().tick().unwrap();
            }
            19 => {
                drop(inode);
                self.fs().root().unwrap().unlink(&name).unwrap();
                self.files.remove(&name);
            }
            20 => {
                let mut bytes = vec![0; len(random) as usize];
                random.fill(&mut bytes);
                if model.len() + bytes.len() < SIZE_MAX as usize {
                    assert_eq!(inode.append(&bytes).unwrap(), model.len() as u64);
                    model.extend(&bytes);
                }
            }
            _ => {
                drop(inode);
                if random.one_in(4) {
                    self.fs.take().unwrap().unmount().unwrap();
                    self.mount();
                } else {
                    self.fs().sync().unwrap();
                }
            }
        }
    }

    fn check(&self) {
        for (name, model) in &self.files {
            let inode = self.fs().resolve(format!("/{name}")).unwrap();
            assert_eq!(inode.metadata().size, model.len() as u64, "{name}");
            let read = inode.read_all().unwrap();
            assert_eq!(read.len(), model.len(), "{name}");
            if let Some(bad) = (0..read.len()).find(|at| read[*at] != model[*at]) {
                panic!("{name}: byte {bad} is {:#x}, not {:#x}", read[bad], model[bad]);
            }
        }
    }
}

fn run(layout: &Layout, seed: u64, steps: u64, cache: u64, folio: u64) -> Result<(), String> {
    let mut world = World::new(layout, cache, folio)?;
    let mut random = Prng::new(seed);
    for step in 0..steps {
        world.step(&mut random);
        if step % 64 == 63 {
            world.check();
        }
    }
    world.check();
    let promised = world.fs().statfs().unwrap();
    world.fs.take().unwrap().unmount().unwrap();
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(&world.device, &path);
    let report = e2fsck(&path)?;
    assert!(report.is_clean(), "{}, seed {seed}: {}", layout.name, report.text);
    let _ = promised;
    if root("mounts images").is_ok() && layout.name != "64K" {
        let mount = LoopMount::new(&path, MountFlags::RDONLY, "")?;
        for (name, model) in &world.files {
            let theirs = std::fs::read(mount.path().join(name)).unwrap();
            assert!(
                theirs == *model,
                "{}, seed {seed}: {name} as the kernel reads it",
                layout.name
            );
        }
    }
    world.mount();
    world.check();
    let _ = (Ino(1), world.device.size_bytes());
    Ok(())
}

fn all(seeds: std::ops::Range<u64>, steps: u64) {
    for layout in LAYOUTS {
        for seed in seeds.clone() {
            for (cache, folio) in [(2 << 20, 1 << 21), (64 << 20, 1 << 21), (4 << 20, 1 << 12)] {
                println!("{}, seed {seed}, cache {cache}, folio {folio}", layout.name);
                require!(run(layout, seed, steps, cache, folio));
            }
        }
    }
}

#[test]
fn contents_match_a_model_on_every_layout() {
    all(1..2, 400);
}

#[test]
#[ignore = "takes minutes"]
fn contents_match_a_model_over_many_seeds() {
    all(10..40, 2000);
}

#[test]
fn contents_sealed_by_verity_are_not_changed() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4", "-O", "verity"]));
    let open = || {
        let device = extant_block::FileDevice::open_read_write(&path).unwrap();
        MountOptions::new().read_only(false).open(device).unwrap()
    };
    let fs = open();
    fs.write("/sealed", "as it was").unwrap();
    fs.unmount().unwrap();
    // EXTENTS and VERITY, as `ioctl(FS_IOC_ENABLE_VERITY)` leaves them.
    require!(debugfs(&path, true, "sif /sealed flags 0x180000"));
    let fs = open();
    let inode = fs.resolve("/sealed").unwrap();
    let refusals = [
        inode.write_at(b"x", 0).map(drop),
        inode.append(b"x").map(drop),
        inode.truncate(1),
        inode.fallocate(extant::Fallocate::PunchHole, 0..4096),
        inode.map_shared(0..4096, true).map(drop),
        fs.open_options().write(true).open("/sealed").map(drop),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert!(matches!(error, extant::FsError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("verity"), "{error}");
    }
    // There is no tree by which it could be checked: `sealed.rs` has files with one.
    let error = fs.read_to_string("/sealed").unwrap_err();
    assert!(error.to_string().contains("fs-verity descriptor"), "{error}");
    drop(inode);
    fs.unmount().unwrap();
}

#[test]
fn an_open_file_hears_once_of_failed_writeback_and_nothing_is_lost() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4"]));
    let memory = Arc::new(image::load(&path));
    let plan = FaultPlan { write_one_in: 1, ..FaultPlan::default() };
    let device = Arc::new(FaultDevice::new(Arc::clone(&memory), plan));
    device.set_enabled(false);
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1);
    let options = options.clock(Arc::clone(&clock) as Arc<_>);
    let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    fs.write("/file", "first").unwrap();
    fs.sync().unwrap();
    let open = || fs.open_options().write(true).open("/file").unwrap();
    let (one, other) = (open(), open());
    one.write_at(b"later", 0).unwrap();
    // Nothing but the data is to be written: the journal must not meet the fault.
    device.set_enabled(true);
    clock.advance(Duration::from_secs(40));
    fs.tick().unwrap_err();
    assert!(device.failed() > 0);
    device.set_enabled(false);
    let late = open();
    for file in [&one, &other] {
        let error = file.sync().unwrap_err();
        assert!(matches!(error, extant::FsError::WritebackFailed { failures: 1, .. }), "{error}");
        file.sync().unwrap();
    }
    late.sync().unwrap();
    drop((one, other, late));
    fs.unmount().unwrap();
    let device: SharedDevice = memory;
    let fs = MountOptions::new().open_shared(device).unwrap();
    assert_eq!(fs.read_to_string("/file").unwrap(), "later");
}

#[test]
fn a_handle_shows_the_size_that_the_file_has() {
    for options in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext4", "-O", "inline_data"]] {
        let dir = tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        require!(mke2fs(&path, "16M", options));
        let device: SharedDevice = Arc::new(image::load(&path));
        let fs = MountOptions::new().read_only(false).open_shared(device).expect("mounts");
        let root = fs.root().expect("a root");
        let new = NewInode { permissions: 0o644, uid: 0, gid: 0 };
        let file = root.create("f", &new).expect("creates");
        let other = root.lookup("f").expect("is there");
        let show = |size| assert_eq!([file.size(), other.size(), file.metadata().size], [size; 3]);
        show(0);
        file.write_at(b"some", 0).expect("writes");
        show(4);
        other.append(&[1; 10_000]).expect("appends");
        show(10_004);
        file.truncate(17).expect("truncates");
        show(17);
        fs.sync().expect("syncs");
        show(17);
        drop((file, other, root));
        fs.unmount().expect("unmounts");
    }
}

/// What is written for files of the host takes one of an image.
#[test]
fn a_file_is_one_of_the_host_to_whoever_reads_and_writes_at_offsets() {
    use std::os::unix::fs::FileExt;

    fn exchange(file: &impl FileExt) -> std::io::Result<[u8; 4]> {
        file.write_all_at(b"abcdef", 3)?;
        let mut four = [0; 4];
        file.read_exact_at(&mut four, 4)?;
        Ok(four)
    }

    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4"]));
    let fs = MountOptions::new().read_only(false).open(image::load(&path)).unwrap();
    let file = fs.open_options().read(true).write(true).create(true).open("/file").unwrap();
    assert_eq!(&exchange(&file).unwrap(), b"bcde");
    let host = tempfile::tempfile().unwrap();
    assert_eq!(&exchange(&host).unwrap(), b"bcde");
    let error = FileExt::read_exact_at(&file, &mut [0; 4], 8).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    let reader = fs.open("/file").unwrap();
    let error = FileExt::write_at(&reader, b"x", 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    drop((file, reader));
    fs.unmount().unwrap();
}
