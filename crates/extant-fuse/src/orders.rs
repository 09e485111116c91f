//! Names of the attributes by which the server takes orders and tells about itself.

/// Attribute with what happened since the mount, as JSON.
pub const STATS: &[u8] = b"extant.stats";
/// Attribute with what is mounted and how, as JSON.
pub const INFO: &[u8] = b"extant.info";
/// Attribute that takes orders: `sync`, `rest`, `freeze`, `thaw`, `remount,ro`, `remount,rw`,
/// `shutdown=default`, `shutdown=logflush`, `shutdown=nologflush`, and for `extant umount` `tell=SOCKET`.
///
/// `rest` is `sync`, and leaves the image as unmounting does until the next change. `sync`, `rest`, `freeze` and `shutdown=default` have the kernel send what programs have written before, and wait
/// for it; it forgets what it has cached of files that are open for writing. `EAGAIN` when too many wait for it already.
///
/// Setting an attribute waits for others who change the inode. While the file system is frozen these
/// wait in turn, so `thaw` may never arrive that way: *getting* the attribute named
/// [`ORDER`] and the order does the same and waits for nobody; its value is `done`.
pub const CONTROL: &[u8] = b"extant.control";
/// In front of an order, the name of an attribute: asking for it gives the order too, as
/// `extant.order.thaw`. See [`CONTROL`]; and a mount for reading lets no attribute be set.
pub const ORDER: &[u8] = b"extant.order.";
