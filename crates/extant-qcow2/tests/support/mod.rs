//! A store in memory that remembers what was done to it, a checker of its own, and qemu-img.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use extant_qcow2::Store;
use extant_sync::{Mutex, Rank};

/// What was done to a store.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    Write { offset: u64, bytes: Vec<u8> },
    Punch { offset: u64, len: u64 },
    Grow { len: u64 },
    Sync,
    Mark(u64),
}

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    log: Vec<Done>,
    /// Writes behind this byte find no room.
    room: Option<u64>,
    sync_fails: bool,
    /// So many writes succeed, and the next one fails.
    writes_left: Option<u64>,
}

/// A store in memory.
#[derive(Clone)]
pub(crate) struct MemoryStore(Arc<Mutex<Inner>>);

impl MemoryStore {
    pub(crate) fn new(bytes: Vec<u8>) -> MemoryStore {
        let inner = Inner { bytes, ..Inner::default() };
        MemoryStore(Arc::new(Mutex::new(Rank::Leaf, inner)))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().bytes.clone()
    }

    pub(crate) fn log(&self) -> Vec<Done> {
        self.0.lock().log.clone()
    }

    pub(crate) fn mark(&self, number: u64) {
        self.0.lock().log.push(Done::Mark(number));
    }

    pub(crate) fn limit(&self, room: Option<u64>) {
        self.0.lock().room = room;
    }

    /// Lets one write fail, after `count` others. Returns whether the last one that was to fail is still to come.
    pub(crate) fn fail_write(&self, count: Option<u64>) -> bool {
        std::mem::replace(&mut self.0.lock().writes_left, count).is_some()
    }

    pub(crate) fn fail_syncs(&self, fail: bool) {
        self.0.lock().sync_fails = fail;
    }
}

pub(crate) fn apply(bytes: &mut Vec<u8>, done: &Done) {
    match done {
        Done::Write { offset, bytes: new } => {
            let end = *offset as usize + new.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*offset as usize..end].copy_from_slice(new);
        }
        Done::Punch { offset, len } => {
            let end = ((offset + len) as usize).min(bytes.len());
            bytes[(*offset as usize).min(end)..end].fill(0);
        }
        Done::Grow { len } => {
            let len = (*len as usize).max(bytes.len());
            bytes.resize(len, 0);
        }
        Done::Sync | Done::Mark(_) => {}
    }
}

impl Store for MemoryStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.0.lock();
        let from = (offset as usize).min(inner.bytes.len());
        let there = (inner.bytes.len() - from).min(out.len());
        out[..there].copy_from_slice(&inner.bytes[from..from + there]);
        out[there..].fill(0);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock();
        match inner.writes_left {
            Some(0) => {
                inner.writes_left = None;
                return Err(io::Error::from_raw_os_error(5));
            }
            Some(left) => inner.writes_left = Some(left - 1),
            None => {}
        }
        if offset + bytes.len() as u64 > inner.room.unwrap_or(1 << 32) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let done = Done::Write { offset, bytes: bytes.to_vec() };
        apply(&mut inner.bytes, &done);
        inner.log.push(done);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.0.lock();
        if inner.sync_fails {
            return Err(io::Error::from_raw_os_error(5));
        }
        inner.log.push(Done::Sync);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) {
        let mut inner = self.0.lock();
        let done = Done::Punch { offset, len };
        apply(&mut inner.bytes, &done);
        inner.log.push(done);
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut inner = self.0.lock();
        if offset + len > inner.room.unwrap_or(1 << 32) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let done = Done::Grow { len: offset + len };
        apply(&mut inner.bytes, &done);
        inner.log.push(done);
        Ok(())
    }

    fn grows_with_zeros(&self) -> bool {
        true
    }
}

fn be(bytes: &[u8], at: usize, len: usize) -> u64 {
    (0..len).fold(0, |value, i| value << 8 | u64::from(bytes.get(at + i).copied().unwrap_or(0)))
}

/// Counts every use of every cluster of an image without snapshots and compressed clusters, and says what
/// is used more often than counted, or twice. Clusters that are counted and not used are no harm; how
/// many they are is the answer.
pub(crate) fn check(image: &[u8]) -> Result<u64, String> {
    let bits = be(image, 20, 4) as usize;
    let cluster = 1usize << bits;
    let mut uses: BTreeMap<u64, u64> = BTreeMap::new();
    let mut add = |offset: u64| *uses.entry(offset >> bits).or_default() += 1;
    add(0);
    let (l1_entries, l1) = (be(image, 36, 4), be(image, 40, 8));
    for at in 0..(l1_entries * 8).div_ceil(cluster as u64) {
        add(l1 + at * cluster as u64);
    }
    let (table, clusters) = (be(image, 48, 8), be(image, 56, 4));
    let mut blocks = Vec::new();
    for at in 0..clusters {
        add(table + at * cluster as u64);
    }
    for at in 0..clusters * cluster as u64 / 8 {
        let block = be(image, (table + at * 8) as usize, 8);
        blocks.push(block);
        if block != 0 {
            add(block);
        }
    }
    for at in 0..l1_entries {
        let l2 = be(image, (l1 + at * 8) as usize, 8) & 0x00ff_ffff_ffff_fe00;
        if l2 == 0 {
            continue;
        }
        add(l2);
        for index in 0..cluster as u64 / 8 {
            let entry = be(image, (l2 + index * 8) as usize, 8) & 0x00ff_ffff_ffff_fe00;
            if entry != 0 {
                add(entry);
            }
        }
    }
    let order = be(image, 96, 4);
    assert_eq!(order, 4, "counts of 16 bits");
    let per_block = cluster as u64 / 2;
    let count = |cluster: u64| match blocks.get((cluster / per_block) as usize) {
        None | Some(0) => 0,
        Some(block) => be(image, (block + cluster % per_block * 2) as usize, 2),
    };
    for (cluster, uses) in &uses {
        if *uses > 1 {
            return Err(format!("cluster {cluster} is used {uses} times"));
        }
        if count(*cluster) < *uses {
            return Err(format!("cluster {cluster} is used and counted {}", count(*cluster)));
        }
    }
    let counted: u64 = (0..blocks.len() as u64)
        .filter(|block| blocks[*block as usize] != 0)
        .flat_map(|block| block * per_block..(block + 1) * per_block)
        .map(count)
        .sum();
    Ok(counted - uses.len() as u64)
}

/// An empty image of small clusters in memory, over nothing or over a base of that name.
pub(crate) fn empty_image(cluster_bits: u32, size: u64, base: Option<&str>) -> Vec<u8> {
    let cluster = 1u64 << cluster_bits;
    let l1 = size.div_ceil(1 << (2 * cluster_bits - 3)).max(1);
    let l1_clusters = (l1 * 8).div_ceil(cluster);
    let used = 3 + l1_clusters;
    let mut bytes = vec![0; (used * cluster) as usize];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"QFI\xfb");
    put(4, &3u32.to_be_bytes());
    if let Some(base) = base {
        put(8, &256u64.to_be_bytes());
        put(16, &(base.len() as u32).to_be_bytes());
        put(256, base.as_bytes());
        put(104, &0xe279_2acau32.to_be_bytes());
        put(108, &3u32.to_be_bytes());
        put(112, b"raw");
    }
    put(20, &cluster_bits.to_be_bytes());
    put(24, &size.to_be_bytes());
    put(36, &(l1 as u32).to_be_bytes());
    put(40, &(3 * cluster).to_be_bytes());
    put(48, &cluster.to_be_bytes());
    put(56, &1u32.to_be_bytes());
    put(96, &4u32.to_be_bytes());
    put(100, &104u32.to_be_bytes());
    put(cluster as usize, &(2 * cluster).to_be_bytes());
    for at in 0..used {
        put((2 * cluster + at * 2) as usize, &1u16.to_be_bytes());
    }
    bytes
}

/// Whether a program is there; says so if not.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: no {program}");
    }
    found
}

pub(crate) fn qemu_img(arguments: &[&str], dir: &Path) -> Output {
    Command::new("qemu-img").args(arguments).current_dir(dir).output().unwrap()
}

/// Runs qemu-img, which has to succeed.
pub(crate) fn qemu_img_ok(arguments: &[&str], dir: &Path) {
    let output = qemu_img(arguments, dir);
    assert!(output.status.success(), "qemu-img {arguments:?}: {output:?}");
}

/// A directory in memory, where there is one.
pub(crate) fn scratch() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::Builder::new().prefix("extant-qcow2-").tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}
