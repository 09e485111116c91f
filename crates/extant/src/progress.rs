//! Progress of opening an image, for programs that show or cancel it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::error::{FsError, Result};

/// A stage of opening an image for writing that can take long.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MountStage {
    /// Multi-mount protection waits to see whether another host uses the image; counted in seconds.
    Waiting,
    /// The journal is replayed; counted in blocks.
    Replaying,
    /// Orphans are deleted or truncated; counted in inodes.
    Orphans,
}

/// The progress of opening an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct MountProgress {
    /// The current stage.
    pub stage: MountStage,
    /// Amount that is done, in the unit of the stage.
    pub done: u64,
    /// Total amount, as far as known; at least `done`.
    pub total: u64,
}

type Observe = dyn Fn(MountProgress) -> ControlFlow<()> + Send + Sync;

/// The function that observes the progress of opening.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Arc<Observe>>);

impl Observer {
    pub(crate) fn new(
        observe: impl Fn(MountProgress) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Observer {
        Observer(Some(Arc::new(observe)))
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Reports the progress of a stage.
    ///
    /// # Errors
    ///
    /// [`FsError::OperationCancelled`] when the observer stops the opening.
    pub(crate) fn tell(&self, stage: MountStage, done: u64, total: u64) -> Result<()> {
        let Some(observe) = &self.0 else { return Ok(()) };
        match observe(MountProgress { stage, done, total }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Observer::stopped()),
        }
    }

    pub(crate) fn stopped() -> FsError {
        let why = "the observer of the progress of opening stopped it";
        FsError::OperationCancelled { why }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observer({})", self.is_there())
    }
}
