//! Calls to the kernel that answers need besides requests, for any transport.

use std::io;

use crate::operations::NodeId;

/// The other side of a mount.
pub(crate) trait Kernel: Send + Sync {
    /// Makes the kernel write back and drop its cached contents of a node from `offset` on. Other
    /// threads must be free to take the writes.
    ///
    /// # Errors
    ///
    /// The kernel does not know the node, or the mount is gone.
    fn drop_cached(&self, node: NodeId, offset: i64) -> io::Result<()>;

    /// Makes the kernel ask for the attributes of a node before it uses them again. Never waits.
    ///
    /// # Errors
    ///
    /// As [`drop_cached`](Self::drop_cached).
    fn drop_attributes(&self, node: NodeId) -> io::Result<()>;

    /// Returns whether the calling thread may wait for what other threads answer.
    fn may_wait_here(&self) -> bool;
}
