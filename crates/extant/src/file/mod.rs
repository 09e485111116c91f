//! Contents of regular files: reading and writing through the page cache, sizes, allocation.
//!
//! # Place
//!
//! Below: `extant-iomap` (the page cache), `map` and `alloc`. Above: the path layer and front ends.
//!
//! # Shape
//!
//! ```text
//! io       read, write, append           resize   truncate, both ways
//! direct, direct_file, direct_queue   bypassing the page cache
//! direct_now   direct operations that belong to no thread while they are under way
//! nowait   read, write, append without waiting
//! copy     from file to file             fallocate   all modes; append, its commonest case
//! query    data, holes, extents      mapped   memory maps of the program
//! pieces   counts pieces of a file    defrag   joins them on the device
//! ahead    the read-ahead thread         once      contents that leave the cache after use
//! accessed access times
//! atomic   writes that are there as a whole after a crash, or not at all
//! flush    sync, background writeback, dirty limits
//! move_out inline data moves to a block   sealing  sealing contents by fs-verity
//! data_journal   contents that go through the journal
//! mapper   mapping, placing and publishing for the page cache
//! ```

mod accessed;
mod ahead;
mod append;
mod atomic;
mod copy;
mod data_journal;
mod defrag;
mod direct;
mod direct_file;
mod direct_now;
mod direct_queue;
mod fallocate;
mod flush;
mod io;
mod mapped;
mod mapper;
mod move_out;
mod nowait;
mod once;
mod pieces;
mod privilege;
mod publish;
mod query;
mod resize;
mod sealing;

pub use atomic::AtomicUnits;
pub use defrag::Defragmented;
pub use direct_file::{DirectAlignment, DirectFile};
pub(crate) use direct_now::Departed;
pub use direct_queue::{DirectDone, DirectKind, DirectQueue, DirectRequest};
pub use fallocate::Fallocate;
pub(crate) use flush::Store;
pub(crate) use io::check_changeable;
pub use mapped::MappedFile;
pub(crate) use mapper::FileMapper;
use mapper::Ticket;
pub use pieces::Pieces;
pub use privilege::WriteBy;
pub use query::FiemapExtent;
pub(crate) use resize::{finish_shrink, resize};
pub use sealing::VerityOptions;
