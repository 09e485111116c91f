//! The file system in a qcow2 overlay, whose file is cut: the overlay opens, what was synced is there, and
//! the image below it is as it was.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::{
    BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending,
    SharedDevice, run_in_place,
};
use extant_qcow2::{Format, Qcow2, Store, create_over};
use extant_sync::FixedClock;
use extant_testkit::crash::Sampling;
use extant_testkit::model::{Generator, Op, Outcome, Profile, Rules, Tree};
use extant_testkit::proof::{Base, Counts, Proof, Target, env, record};
use extant_testkit::{image, oracle, tempdir};

use crate::finish;
use crate::layouts::{self, DEFAULT, LAYOUTS, Layout, SMALL, WRITTEN};
use crate::target::{Extant, Held, in_full};

/// Bytes that the file of an overlay may take, for each byte of the disk.
const ROOM: u64 = 3;
/// Bytes of a cluster of the overlays that extant makes.
const CLUSTER_BYTES: usize = 1 << 16;
/// One state in this many is looked at by `qemu-img check`.
const QEMU_ONE_IN: u64 = 150;

/// What lies below overlays: reading is all that can be done to it.
struct Sealed(MemoryDevice);

impl BlockDevice for Sealed {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn describe(&self) -> Arc<str> {
        "the base".into()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        panic!("{} bytes at {offset} of the base are written", bytes.len());
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        panic!("{len} bytes at {offset} of the base are zeroed");
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let (kind, fault) = (OperationKind::Discard, DeviceFault::ReadOnly);
        Err(DeviceError::new(self.describe(), kind, offset, len, fault))
    }
}

/// A file that grows, in a device that is as large as the file may become. Its end is that of the cluster with
/// the last byte that is not zero: a file system may have forgotten any more after a cut.
struct Growing {
    device: SharedDevice,
    len: AtomicU64,
}

impl Growing {
    fn new(device: SharedDevice, least: u64) -> Result<Growing, DeviceError> {
        let mut bits = [0; 4];
        device.read_at(20, &mut bits)?;
        let cluster = 1u64 << u32::from_be_bytes(bits).min(21);
        let (mut piece, zeros) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut end = device.size_bytes();
        let len = loop {
            let start = end.saturating_sub(piece.len() as u64);
            let part = &mut piece[..(end - start) as usize];
            device.read_at(start, part)?;
            if *part != zeros[..part.len()] {
                let last = part.iter().rposition(|byte| *byte != 0).unwrap_or(0);
                break start + last as u64 + 1;
            }
            if start == 0 {
                break 0;
            }
            end = start;
        };
        Ok(Growing { device, len: AtomicU64::new(len.next_multiple_of(cluster).max(least)) })
    }
}

impl Store for Growing {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Ordering::SeqCst))
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.device.size_bytes().saturating_sub(offset).min(out.len() as u64);
        let (inside, behind) = out.split_at_mut(there as usize);
        behind.fill(0);
        Ok(self.device.read_at(offset, inside)?)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, bytes)?;
        self.len.fetch_max(offset + bytes.len() as u64, Ordering::SeqCst);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(self.device.flush()?)
    }
    fn punch(&self, offset: u64, len: u64) {
        self.device.discard(offset, len).expect("memory can be discarded");
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if offset + len > self.device.size_bytes() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.len.fetch_max(offset + len, Ordering::SeqCst);
        Ok(())
    }
    fn grows_with_zeros(&self) -> bool {
        true
    }
}

/// The file system in an overlay over `base`. Its device is the overlay's file.
struct Overlaid {
    inner: Extant,
    base: Arc<Sealed>,
    /// Bytes of the file when it was made.
    len: u64,
    /// Files that were opened as overlays.
    opened: AtomicU64,
    asked: AtomicU64,
}

impl Overlaid {
    /// The disk in `file`; the file itself if it is no overlay.
    fn disk(&self, file: SharedDevice, is_read_only: bool) -> Result<SharedDevice, String> {
        let mut magic = [0; 4];
        file.read_at(0, &mut magic).map_err(|error| in_full(&error))?;
        if magic != *b"QFI\xfb" {
            return Ok(file);
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        let store = Box::new(Growing::new(file, self.len).map_err(|error| in_full(&error))?);
        let base = Arc::clone(&self.base) as SharedDevice;
        let image = Qcow2::open(store, "overlay", Some(base), 1, is_read_only);
        Ok(Arc::new(image.map_err(|error| format!("the overlay: {}", in_full(&error)))?))
    }

    /// `qemu-img check` finds nothing but clusters that are counted and not used.
    fn ask_qemu(&self, file: &MemoryDevice) -> Result<(), String> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(QEMU_ONE_IN) {
            return Ok(());
        }
        let dir = tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("overlay.qcow2");
        image::save(file, &path);
        // It wants to see the base, and does not read it.
        let base = std::fs::File::create(dir.path().join("base"));
        base.and_then(|base| base.set_len(self.base.size_bytes())).map_err(|e| e.to_string())?;
        let mut check = Command::new("qemu-img");
        check.args(["check", "-f", "qcow2", "-U"]).arg(&path);
        let Ok(output) = check.output() else {
            oracle::print_skip(module_path!(), line!(), "needs qemu-img");
            return Ok(());
        };
        // 3 is for leaks alone.
        match output.status.code() {
            Some(0 | 3) => Ok(()),
            other => Err(format!("qemu-img check: {other:?}: {output:?}")),
        }
    }
}

impl Target for Overlaid {
    type Fs = <Extant as Target>::Fs;
    type Handle = Held;

    fn mount(&self, devices: &[SharedDevice], clock: Arc<FixedClock>) -> Result<Self::Fs, String> {
        let disk = self.disk(Arc::clone(&devices[0]), false)?;
        self.inner.mount(&[disk], clock)
    }

    fn apply(&self, fs: &Self::Fs, slots: &mut HashMap<usize, Held>, op: &Op) -> Outcome {
        self.inner.apply(fs, slots, op)
    }

    fn snapshot(&self, fs: &Self::Fs, rules: &Rules) -> Result<Tree, String> {
        self.inner.snapshot(fs, rules)
    }

    fn unmount(&self, fs: Self::Fs) -> Result<(), String> {
        self.inner.unmount(fs)
    }

    fn check(&self, devices: &[MemoryDevice]) -> Result<bool, String> {
        self.ask_qemu(&devices[0])?;
        self.inner.check(&self.disks(devices)?)
    }

    fn disks(&self, devices: &[MemoryDevice]) -> Result<Vec<MemoryDevice>, String> {
        let disk = self.disk(Arc::new(devices[0].snapshot()), true)?;
        // As the base, with what differs: pages are shared.
        let flat = self.base.0.snapshot();
        let (mut above, mut below) = (vec![0; CLUSTER_BYTES], vec![0; CLUSTER_BYTES]);
        for at in (0..flat.size_bytes()).step_by(CLUSTER_BYTES) {
            let len = CLUSTER_BYTES.min((flat.size_bytes() - at) as usize);
            let (above, below) = (&mut above[..len], &mut below[..len]);
            let copied = disk
                .read_at(at, above)
                .and_then(|()| flat.read_at(at, below))
                .and_then(|()| if above == below { Ok(()) } else { flat.write_at(at, above) });
            copied.map_err(|error| in_full(&error))?;
        }
        Ok(vec![flat])
    }
}

/// The base of a layout with an overlay over it, in which the superblock lies already. Also where in the
/// file the superblock is.
fn over(
    layout: &Layout,
    inner: Extant,
    cluster: Option<u32>,
) -> Result<(Overlaid, Base, u64), String> {
    let below = layouts::base(layout)?;
    let dir = tempdir().unwrap();
    let path = dir.path().join("overlay.qcow2");
    let size = below.devices[0].size_bytes();
    match cluster {
        None => create_over(&path, size, "base".as_ref(), Format::Raw).unwrap(),
        Some(bytes) => {
            let (size, options) = (size.to_string(), format!("cluster_size={bytes}"));
            let mut create = Command::new("qemu-img");
            create.args(["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "base"]);
            create.args(["-o", &options]).arg(&path).arg(&size);
            let status = create.status().map_err(|error| format!("needs qemu-img: {error}"))?;
            assert!(status.success(), "{create:?}: {status}");
        }
    }
    let file = std::fs::read(&path).unwrap();
    let device = Arc::new(MemoryDevice::new(ROOM * size + (2 << 20)));
    device.write_at(0, &file).unwrap();
    let base = Arc::new(Sealed(below.devices[0].snapshot()));
    let (opened, asked) = (AtomicU64::new(0), AtomicU64::new(0));
    let target = Overlaid { inner, base, len: file.len() as u64, opened, asked };
    let disk = target.disk(Arc::clone(&device) as SharedDevice, false).unwrap();
    let mut superblock = [0; 1024];
    disk.read_at(1024, &mut superblock).unwrap();
    disk.write_at(1024, &superblock).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let entry = |at: u64| entry_at(at, &device) & 0x00ff_ffff_ffff_fe00;
    // The place in the first cluster: of two that a cluster of 1 KiB is too small for, the second.
    let cluster = u64::from(cluster.unwrap_or(CLUSTER_BYTES as u32));
    let second = entry(entry(entry_at(40, &device)) + 1024 / cluster * 8);
    let place = second + 1024 % cluster;
    let mut found = [0; 1024];
    device.read_at(place, &mut found).unwrap();
    assert_eq!(found, superblock, "where the superblock is");
    let devices = vec![device.snapshot()];
    // Nobody knows where in the file other parts of the disk come to lie.
    Ok((target, Base { devices, zones: Vec::new(), ..below }, place))
}

fn entry_at(at: u64, device: &MemoryDevice) -> u64 {
    let mut bytes = [0; 8];
    device.read_at(at, &mut bytes).expect("within the file");
    u64::from_be_bytes(bytes)
}

/// Generated operations in an overlay, and every chosen cut of its file.
fn prove(
    name: &str,
    layout: &Layout,
    (seed, steps): (u64, usize),
    cluster: Option<u32>,
    profile: &Profile,
    sampling: &Sampling,
) -> Option<Counts> {
    let writes = profile.contents > 0;
    let inner = Extant {
        // Too little for everything to stay in memory, on every other seed.
        data_cache_bytes: if seed % 2 == 1 && writes { 2 << 20 } else { 0 },
        discard: seed.is_multiple_of(3),
        ..Extant::default()
    };
    let (target, base, place) = match over(layout, inner, cluster) {
        Ok(made) => made,
        Err(reason) => {
            oracle::print_skip(module_path!(), line!(), &format!("{}: {reason}", layout.name));
            return None;
        }
    };
    let before = contents(&target.base.0);
    let unit = if profile.unit > 0 && layout.moves_contents() { base.unit } else { 0 };
    let profile =
        Profile { project: layout.project, value_max: layout.value_max, unit, ..profile.clone() };
    let mut generator = Generator::new(seed, profile);
    let mut left = steps;
    let recorded = record(&target, &base, |model| {
        left = left.checked_sub(1)?;
        Some(generator.next_op(model))
    });
    let recorded = recorded.unwrap_or_else(|text| panic!("{name}, seed {seed}: {text}"));
    let sampling = Sampling { seed, whole: place..place + 1024, ..sampling.clone() };
    let (report, counts) = Proof::new(&target, sampling).prove(&recorded);
    finish(name, seed, &report, &counts);
    assert!(contents(&target.base.0) == before, "{name}: the base has changed");
    assert!(target.opened.load(Ordering::Relaxed) >= counts.states, "{name}: what was cut?");
    Some(counts)
}

fn contents(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).expect("memory can be read");
    bytes
}

#[test]
fn names_in_an_overlay_survive_every_cut_of_its_file() {
    let sampling =
        Sampling { exhaustive_max: 3, samples: 8, one_cut_in: 10, ..Sampling::default() };
    let name = "names_in_an_overlay_survive_every_cut";
    let seed = env::seed(8100);
    prove(name, &SMALL, (seed, 60), None, &Profile::default(), &sampling);
    prove(name, &SMALL, (seed, 60), Some(4096), &Profile::default(), &sampling);
}

#[test]
fn contents_in_an_overlay_survive_every_cut_of_its_file() {
    let sampling =
        Sampling { exhaustive_max: 3, samples: 6, one_cut_in: 24, ..Sampling::default() };
    let name = "contents_in_an_overlay_survive_every_cut";
    let seed = env::seed(8201);
    prove(name, &WRITTEN[1], (seed, 50), None, &Profile::contents(), &sampling);
    prove(name, &WRITTEN[0], (seed + 1, 50), Some(4096), &Profile::contents(), &sampling);
}

#[test]
#[ignore = "takes minutes: 40,000 states"]
fn many_histories_in_overlays_survive_every_cut_of_their_files() {
    let sampling =
        Sampling { exhaustive_max: 4, samples: 16, tears: 6, one_cut_in: 3, ..Sampling::default() };
    let name = "many_histories_in_overlays_survive_every_cut";
    let first = env::seed(8300);
    for seed in first..first + 3 {
        for cluster in [None, Some(512), Some(4096)] {
            for layout in LAYOUTS.iter().filter(|layout| layout.name != "external") {
                prove(name, layout, (seed, 120), cluster, &Profile::default(), &sampling);
            }
            for layout in [&DEFAULT, &WRITTEN[0], &WRITTEN[1], &WRITTEN[4], &WRITTEN[5]] {
                prove(name, layout, (seed, 120), cluster, &Profile::contents(), &sampling);
            }
        }
    }
}
