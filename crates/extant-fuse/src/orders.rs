//! Names of the attributes for orders to the server and its reports.

/// Attribute with what happened since the mount, as JSON.
pub const STATS: &[u8] = b"extant.stats";
/// Attribute with what is mounted and how, as JSON.
pub const INFO: &[u8] = b"extant.info";
/// Attribute of a regular file with how many pieces it lies in, as JSON.
pub const PIECES: &[u8] = b"extant.pieces";
/// Asking for this attribute of a regular file brings it together on the device, some of it with each request, and tells what became
/// of it as JSON: `is_stopped` when there is more to do.
pub const DEFRAG: &[u8] = b"extant.order.defrag";
/// In front of a size (bytes, or `max` for all of the device), the name of an attribute: what growing
/// to that would come to, as JSON; `refused` says why it cannot be.
pub const GROWTH: &[u8] = b"extant.growth=";
/// In front of a size (bytes, or `max`), the name of an attribute: asking for it makes the file system
/// that large, its image file included, and tells what was done like [`GROWTH`]. `EBUSY` while the
/// file system is frozen.
pub const GROW: &[u8] = b"extant.order.grow=";
/// In front of `label:HEX,uuid:HEX,`, or one of them, the name of an attribute: asking for it gives the file system
/// that label and UUID, and answers with JSON; `refused` says why it cannot be. `EBUSY` while it is frozen.
pub const TUNE: &[u8] = b"extant.order.tune=";
/// Attribute that takes orders: `sync`, `rest`, `freeze`, `thaw`, `remount,ro`, `remount,rw`,
/// `mb_optimize_scan=0`, `mb_optimize_scan=1`, `shutdown=default`, `shutdown=logflush`,
/// `shutdown=nologflush`, and for `extant umount` `tell=SOCKET`.
///
/// `rest` syncs, and leaves the image as after an unmount until the next change. `sync`, `rest`,
/// `freeze` and `shutdown=default` make the kernel send earlier writes of programs, and wait for
/// them; the kernel drops its cache of files that are open for writing. `EAGAIN` when too many
/// threads wait for the kernel already.
///
/// Setting an attribute waits for other changes of the inode. While the file system is frozen these
/// wait in turn, so `thaw` may never arrive that way: *getting* the attribute named [`ORDER`]
/// followed by the order does the same without waiting; its value is `done`. Asking for the length of that
/// value gives no order.
pub const CONTROL: &[u8] = b"extant.control";
/// In front of an order, the name of an attribute: asking for it gives the order too, as
/// `extant.order.thaw`. See [`CONTROL`]; and a mount for reading lets no attribute be set.
pub const ORDER: &[u8] = b"extant.order.";
