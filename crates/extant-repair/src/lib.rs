//! Repairs ext2/3/4 images: what [`extant_check`] finds wrong is set right.
//!
//! # Place
//!
//! Above `extant-check`, which says what is wrong and asks what to do about it, and above the formats, the
//! layout and the journal. Of `extant`, which opens images that obey the rules, it uses one thing: fast
//! commits in a journal speak of files, and `extant` makes them true where the image is sound enough for that.
//!
//! # Shape
//!
//! ```text
//! ask        what was found, and who decides about it
//! session    rounds: check the draft, take the earliest kind of problem, fix it, check again
//!   supers       superblock, from backups where it must be; the journal is replayed
//!   descriptors  group descriptors from backups, other places for what overlaps
//!   inodes map twice xattrs   records, maps, blocks claimed twice, attributes
//!   special      journal, orphans, resize inode, quota
//!   dirs lost    directories; what nothing leads to
//!   bitmaps      bitmaps, counts, state
//! draft      the image as it will be: the device below, and what was changed, in memory
//! plan       the changes in the order in which they are written; undo
//! hold       nobody else has the file system while they are written
//! ```
//!
//! # Invariants
//!
//! - R1. Nothing is written to the device before the whole repair is known, and then only by
//!   [`Plan::apply`].
//!   A file system with multi-mount protection is taken for that time ([`look`]), and not before.
//! - R2. Cut after any write of a plan, the image says that it needs a check, everything that was
//!   readable before is readable or found by the next repair, and that repair ends clean: what is new lies
//!   on blocks that nothing used, and is written first.
//! - R3. A block with contents of a file that no problem names is never written.
//! - R4. Rounds are bounded; a problem that comes back after it was fixed is reported, not fixed for ever.
//! - R5. Nothing on the image makes it panic, or loop or allocate without bound: a map is walked to
//!   a bounded depth and number of nodes, and the draft holds changed blocks only.
#![forbid(unsafe_code)]

mod ask;
mod bitmaps;
mod descriptors;
mod dirs;
mod draft;
mod elsewhere;
mod empty_log;
mod error;
mod hold;
mod inodes;
mod journal;
mod log_head;
mod lost;
mod map;
mod plan;
mod seed;
mod session;
mod space;
mod special;
mod state;
mod supers;
mod twice;
mod undo;
mod xattrs;

pub use ask::{Ask, Decision, Fix, Preen, Yes};
pub use error::RepairError;
pub use hold::{Held, Look, clear, holder, look};
pub use plan::Plan;
pub use session::{Outcome, RepairOptions, log_damage, repair, repair_both, superblock_damage};
pub use undo::{UndoError, finish_undo, save_undo, undo};
