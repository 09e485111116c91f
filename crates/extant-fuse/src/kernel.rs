//! What answers need of the kernel beside requests, whatever the transport.

use std::io;

use crate::operations::NodeId;

/// The other side of a mount.
pub(crate) trait Kernel: Send + Sync {
    /// Has the kernel write back and drop what it has cached of a node's contents from `offset` on. Other
    /// threads must be free to take the writes.
    ///
    /// # Errors
    ///
    /// It knows no such node, or the mount is gone.
    fn drop_cached(&self, node: NodeId, offset: i64) -> io::Result<()>;

    /// Has it ask for the attributes of a node before it uses them again. Waits for nobody.
    ///
    /// # Errors
    ///
    /// As [`drop_cached`](Self::drop_cached).
    fn drop_attributes(&self, node: NodeId) -> io::Result<()>;

    /// Whether the calling thread may wait for what other threads answer.
    fn may_wait_here(&self) -> bool;
}
