//! The state of the committing thread: the place in the log, and committed blocks that are not home
//! yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::FsBlock;
use extant_format::jbd2::JournalSuperblock;

use crate::block::{Image, JournalBlock, Tid};
use crate::fast_area::FastArea;
use crate::write::Place;

/// A committed version that is not home yet.
pub(crate) struct Pinned {
    pub(crate) image: Image,
    /// Keeps the block in the client's cache (K3).
    pub(crate) _block: Arc<dyn JournalBlock>,
}

/// The state that only the committing thread touches.
pub(crate) struct Work {
    /// The ring and the next block to write.
    pub(crate) place: Place,
    /// Whether a transaction may begin near the end of the ring and end at its beginning (J19).
    pub(crate) goes_round: bool,
    /// Blocks from the tail to the head.
    pub(crate) used: u32,
    /// The last transaction in the log, once there is one.
    pub(crate) last: Option<Tid>,
    /// The superblock on the device says that the log is in use.
    pub(crate) active: bool,
    /// Features and geometry as they will be from the first commit on.
    pub(crate) template: Option<JournalSuperblock>,
    pub(crate) table: BTreeMap<FsBlock, Pinned>,
    /// Blocks of the transaction whose commit failed (K4).
    pub(crate) lost: Vec<Arc<dyn JournalBlock>>,
    /// Time of the last commit block: they never go back, or recovery would take them for old ones.
    pub(crate) last_commit: (u64, u32),
    /// Where fast commits go, if they are made.
    pub(crate) fast: Option<FastArea>,
}

impl Work {
    pub(crate) fn new(log: std::ops::Range<u32>, head: u32, template: JournalSuperblock) -> Work {
        let goes_round = template.goes_round();
        let template = Some(template);
        Work { place: Place { log, head }, goes_round, template, ..Work::without_log() }
    }

    /// Gives the work the area in which fast commits are made if it `is_used`, but not of
    /// transaction `closed`, of which there are some.
    pub(crate) fn with_fast_area(
        mut self,
        blocks: std::ops::Range<u32>,
        closed: Option<Tid>,
        is_used: bool,
    ) -> Work {
        self.fast = Some(FastArea::new(blocks, closed, is_used));
        self
    }

    pub(crate) fn without_log() -> Work {
        Work {
            place: Place { log: 0..0, head: 0 },
            goes_round: true,
            used: 0,
            last: None,
            active: false,
            template: None,
            table: BTreeMap::new(),
            lost: Vec::new(),
            last_commit: (0, 0),
            fast: None,
        }
    }

    /// Blocks of the ring.
    pub(crate) fn len(&self) -> u32 {
        self.place.log.end.saturating_sub(self.place.log.start)
    }
}
