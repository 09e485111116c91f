//! A device that lets a test in before each request.

use std::sync::Arc;

use extant_block::{BlockDevice, Operation, Pending};

/// A device that shows each batch of operations to a function before the device below gets it.
pub struct Hooked<B, S> {
    /// What does the operations.
    pub below: B,
    /// What the function remembers, and what a test tells it.
    pub state: S,
    before: fn(&S, &[Operation]),
}

impl<B: BlockDevice, S: Send + Sync> Hooked<B, S> {
    /// A device over `below`. Whoever submits a batch waits for `before`.
    pub fn over(below: B, state: S, before: fn(&S, &[Operation])) -> Arc<Hooked<B, S>> {
        Arc::new(Hooked { below, state, before })
    }
}

impl<B: BlockDevice, S: Send + Sync> BlockDevice for Hooked<B, S> {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        (self.before)(&self.state, &batch);
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }
}
