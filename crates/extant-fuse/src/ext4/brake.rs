//! Ending a mount from the side of the server.

use std::sync::Arc;

use super::current::Current;
use super::end;
use super::ending::Ending;
use super::nodes::Nodes;
use crate::events::Halt;
use crate::gate::Gate;
use crate::kernel::Kernel;

/// All that it takes to bring a mount to rest.
pub(super) struct Stop {
    pub(super) nodes: Arc<Nodes>,
    pub(super) gate: Arc<Gate>,
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) ending: Arc<Ending>,
    pub(super) current: Arc<Current>,
}

impl Halt for Stop {
    fn pull(&self) {
        // Writes would wait for ever.
        self.gate.thaw();
        for node in self.nodes.written() {
            // At worst it is as if the server had been killed.
            let _ = self.kernel.drop_cached(node, 0);
        }
        self.gate.freeze();
    }

    fn end(&self) -> extant::Result<()> {
        self.pull();
        self.ending.reach(|| {
            self.nodes.forget_all();
            end(self.current.get())
        });
        self.ending.take().unwrap_or(Ok(()))
    }
}
