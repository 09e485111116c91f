//! In which order changes reach a device, and what is durable before what.

use std::sync::Arc;

use extant_block::{BlockDevice, MemoryDevice, Operation, SharedDevice};
use extant_change::{Committer, Image};
use extant_format::features::State;
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use extant_sync::{Mutex, Rank};
use extant_testkit::{Hooked, image, oracle, require, tempdir};

/// What a device was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// The superblock, and whether it says that the file system is in order.
    Superblock(bool),
    /// A copy of the superblock, or of what lies behind it.
    Copy,
    /// The block that changes.
    Block,
    /// Another one.
    Other,
    Flush,
}

/// Bytes of a block, and the one that changes.
const SIZE: u64 = 1024;
const CHANGED: u64 = 9000;
/// The first copy of the superblock.
const COPY: u64 = 8193;

type Seen = Mutex<Vec<Event>>;

fn note(seen: &Seen, batch: &[Operation]) {
    for operation in batch {
        let event = match operation {
            Operation::Flush => Event::Flush,
            Operation::Write { offset, buffer, .. } => event(*offset, buffer),
            _ => continue,
        };
        seen.lock().push(event);
    }
}

fn event(from: u64, bytes: &[u8]) -> Event {
    let has = |at: u64| (from..from + bytes.len() as u64).contains(&at);
    if has(SUPERBLOCK_OFFSET) {
        let at = (SUPERBLOCK_OFFSET - from) as usize;
        let sb = Superblock::decode(&bytes[at..at + 1024]).unwrap();
        let is_in_order = sb.state.contains(State::VALID) && !sb.state.contains(State::ERROR);
        return Event::Superblock(is_in_order);
    }
    match () {
        () if has(CHANGED * SIZE) => Event::Block,
        () if has(COPY * SIZE) => Event::Copy,
        () => Event::Other,
    }
}

/// Changes a block and the label; what the device was asked for meanwhile.
fn changed(device: &MemoryDevice) -> Vec<Event> {
    let hooked = Hooked::over(device.snapshot(), Seen::new(Rank::Leaf, Vec::new()), note);
    let shared: SharedDevice = Arc::clone(&hooked) as SharedDevice;
    let mut image = Image::open(shared, device.size_bytes()).unwrap();
    let mut committer = Committer::of(&image).unwrap();
    image.write_block(CHANGED, &[7; SIZE as usize]).unwrap();
    image.sb.volume_name[0] = b'x';
    image.write_superblock().unwrap();
    assert!(hooked.state.lock().is_empty(), "a draft is in memory");
    committer.commit(&image).unwrap();
    let mut block = [0; SIZE as usize];
    hooked.below.read_at(CHANGED * SIZE, &mut block).unwrap();
    assert_eq!(block, [7; SIZE as usize]);
    let mut copy = [0; 1024];
    hooked.below.read_at(COPY * SIZE, &mut copy).unwrap();
    assert_eq!(Superblock::decode(&copy).unwrap().volume_name[0], b'x', "a copy is as new");
    hooked.state.lock().clone()
}

/// Flushes count once, and so do writes of one kind.
fn told(events: &[Event]) -> Vec<Event> {
    let mut list = events.to_vec();
    list.dedup();
    list
}

#[test]
fn without_a_journal_a_check_is_asked_for_until_all_is_durable() {
    use Event::{Block, Copy, Flush, Superblock};
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(oracle::mke2fs(&path, "16M", &["-b1024", "-t", "ext4", "-O", "^has_journal"]));
    let wanted =
        [Flush, Superblock(false), Flush, Block, Flush, Superblock(true), Flush, Copy, Flush];
    assert_eq!(told(&changed(&image::load(&path))), wanted);
}
