//! Ending a mount from the side of the server.

use std::fmt;
use std::sync::Arc;

use extant_sync::Clock;

use super::current::Current;
use super::end;
use super::ending::Ending;
use super::nodes::Nodes;
use crate::connection::Connection;
use crate::gate::Gate;

/// Brings a mount to rest, for a server that may not unmount it. After that its file system can be
/// ended although programs have files open; they get errors when the connection is closed.
#[derive(Clone)]
pub struct Brake {
    pub(super) nodes: Arc<Nodes>,
    pub(super) gate: Arc<Gate>,
    pub(super) connection: Arc<Connection>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ending: Arc<Ending>,
    pub(super) current: Arc<Current>,
}

impl Brake {
    /// Has the kernel hand over what it holds back of files, then waits for the changes that are being
    /// made, and lets no other one begin, for good. The threads of the server go on meanwhile and
    /// answer what changes nothing.
    ///
    /// What a program writes into the kernel's cache after its file was handed over is lost with the
    /// connection.
    pub fn pull(&self) {
        // Writes would wait for ever.
        self.gate.thaw();
        for node in self.nodes.written() {
            // At worst it is as if the server had been killed.
            let _ = self.connection.drop_cached(node, 0);
        }
        self.gate.freeze(&*self.clock);
    }

    /// Brings the mount to rest and ends its file system: everything is written and the image is clean. What
    /// programs have open is of no use after that.
    ///
    /// # Errors
    ///
    /// As [`Fs::unmount`]. If it was being ended already this waits for it, and whoever did that hears how it went.
    pub fn end(&self) -> extant::Result<()> {
        self.pull();
        self.ending.reach(|| {
            self.nodes.forget_all();
            end(self.current.get())
        });
        self.ending.take().unwrap_or(Ok(()))
    }
}

impl fmt::Debug for Brake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Brake").finish_non_exhaustive()
    }
}
