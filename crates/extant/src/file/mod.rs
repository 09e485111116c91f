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
//! direct, direct_file, direct_queue   past the page cache
//! nowait   read, write, append at once or not at all
//! copy     from file to file             fallocate   space for ranges, all modes; append, its commonest case
//! query    where data and holes are      mapped   files as memory of the program
//! ahead    the thread that fetches what readers will want
//! flush    sync, the list of dirty files, limits
//! mapper   what is behind a range, where delayed data goes, how it gets into the map
//! ```

mod ahead;
mod append;
mod copy;
mod direct;
mod direct_file;
mod direct_queue;
mod fallocate;
mod flush;
mod io;
mod mapped;
mod mapper;
mod nowait;
mod privilege;
mod query;
mod resize;

pub use direct_file::{DirectAlignment, DirectFile};
pub use direct_queue::{DirectDone, DirectKind, DirectQueue, DirectRequest};
pub use fallocate::Fallocate;
pub(crate) use io::check_changeable;
pub use mapped::MappedFile;
pub(crate) use mapper::FileMapper;
pub use privilege::WriteBy;
pub use query::FiemapExtent;
pub(crate) use resize::resize;
