//! Other hosts that have a disk, by the block of multi-mount protection.
//!
//! # Place
//!
//! For tests of whatever takes that block: what another host does, it does in the sleeps of whoever waits for
//! it ([`While`]), or just before the block is read for the nth time ([`Before`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use extant_block::{BlockDevice, DeviceError, MemoryDevice, Operation, Pending};
use extant_format::mmp::{MMP_BYTES, Mmp};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_sync::{Clock, FixedClock};

/// A clock in whose sleeps something else happens, once in each; sleeping takes no time.
pub struct While<'a> {
    clock: FixedClock,
    other: Box<dyn Fn() + Send + Sync + 'a>,
}

impl<'a> While<'a> {
    /// It is `seconds` after 1970.
    pub fn at(seconds: i64, other: impl Fn() + Send + Sync + 'a) -> While<'a> {
        While { clock: FixedClock::at(seconds, 0), other: Box::new(other) }
    }
}

impl std::fmt::Debug for While<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("While").field(&self.clock).finish()
    }
}

impl Clock for While<'_> {
    fn now(&self) -> (i64, u32) {
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn sleep(&self, time: Duration) {
        (self.other)();
        self.clock.sleep(time);
    }
}

fn superblock(device: &dyn BlockDevice) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).expect("it can be read");
    Superblock::decode_unverified(&bytes).expect("it has a superblock")
}

/// Where the block is, in bytes, and the seed of its checksum.
pub fn place(device: &dyn BlockDevice) -> (u64, Option<u32>) {
    let sb = superblock(device);
    let seed = sb.features.metadata_csum().then(|| sb.checksum_seed());
    (sb.mmp_block.0 * u64::from(sb.block_size.bytes()), seed)
}

/// The block, whose checksum is right.
pub fn get(device: &dyn BlockDevice) -> Mmp {
    let (at, seed) = place(device);
    let mut bytes = [0; MMP_BYTES];
    device.read_at(at, &mut bytes).expect("it can be read");
    Mmp::decode(seed, &bytes).expect("it is in order")
}

/// Writes the block with a change.
pub fn put(device: &dyn BlockDevice, change: impl FnOnce(&mut Mmp)) {
    let (at, seed) = place(device);
    let mut mmp = get(device);
    change(&mut mmp);
    device.write_at(at, &mmp.encode(seed)).expect("it can be written");
}

/// All of the device but the block, which is zeros.
pub fn all_else(device: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; usize::try_from(device.size_bytes()).expect("a small device")];
    device.read_at(0, &mut all).expect("it can be read");
    let at = usize::try_from(place(device).0).expect("within a small device");
    all[at..at + MMP_BYTES].fill(0);
    all
}

/// A device on which another host changes the block just before it is read for the nth time.
pub struct Before {
    below: Arc<MemoryDevice>,
    at: u64,
    left: AtomicU32,
    change: Box<dyn Fn(&mut Mmp) + Send + Sync>,
}

impl Before {
    /// Reads are counted from 1.
    pub fn read(
        nth: u32,
        below: Arc<MemoryDevice>,
        change: impl Fn(&mut Mmp) + Send + Sync + 'static,
    ) -> Before {
        let (at, _) = place(&*below);
        Before { below, at, left: AtomicU32::new(nth), change: Box::new(change) }
    }
}

impl BlockDevice for Before {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let count = |left: u32| left.checked_sub(1);
        if offset == self.at
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(1)
        {
            put(&*self.below, |mmp| (self.change)(mmp));
        }
        self.below.read_at(offset, out)
    }
}
