//! The engine of a file: whether runs go through io_uring, and the rings for them.
//!
//! # Where rings pay
//!
//! One call after the other is best where a call is a copy in the calling thread: files in memory, and
//! writes to regular files, which go into the host's page cache and which the kernel does one at a
//! time for each file whoever asks. Reads that may have to wait for a disk, and block devices, gain by
//! having many requests under way.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_sync::{Mutex, Rank};

use crate::error::OperationKind;
use crate::lent::{LENT_DEPTH, Lent, LentRing};
use crate::queue::{DeviceEngine, Engine, EngineInfo};

/// The engine of files that are opened from now on, as an index of [`DeviceEngine::NAMES`].
static DEFAULT: AtomicUsize = AtomicUsize::new(0);

/// Chooses the engine of files that this process opens from now on, for a command whose files are
/// opened in many places. [`DeviceEngine::Auto`] before the first call.
pub fn set_default_engine(engine: DeviceEngine) {
    let index = DeviceEngine::NAMES.iter().position(|(_, known)| *known == engine);
    DEFAULT.store(index.unwrap_or(0), Ordering::Relaxed);
}

/// Returns the engine of files that are opened now.
pub(crate) fn default_engine() -> DeviceEngine {
    DeviceEngine::NAMES.get(DEFAULT.load(Ordering::Relaxed)).map_or(DeviceEngine::Auto, |(_, e)| *e)
}

/// Number of rings that are kept; threads beyond that make one for a call.
const KEPT_MAX: usize = 4;

/// The rings of one file.
pub(crate) struct Rings {
    wanted: DeviceEngine,
    is_in_memory: bool,
    is_block_device: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<LentRing>,
    /// Whether a ring was made. A process may give up the right to make more; it keeps what it has.
    has_made: bool,
    /// Why there are no rings; none are made any more then.
    refused: Option<Arc<str>>,
}

impl Rings {
    /// Creates the state without a ring.
    pub(crate) fn new(is_in_memory: bool, is_block_device: bool) -> Rings {
        let state = Mutex::new(Rank::Leaf, State::default());
        Rings { wanted: DeviceEngine::Auto, is_in_memory, is_block_device, state }
    }

    /// Creates the state for another descriptor of the file, with the same choice.
    pub(crate) fn again(&self) -> Rings {
        Rings { wanted: self.wanted, ..Rings::new(self.is_in_memory, self.is_block_device) }
    }

    /// Chooses the engine.
    ///
    /// # Errors
    ///
    /// io_uring was demanded, and the system gives no ring.
    pub(crate) fn choose(&mut self, wanted: DeviceEngine, file: &File) -> io::Result<()> {
        if wanted == DeviceEngine::IoUring {
            let ring = LentRing::new(file)?;
            let state = self.state.get_mut();
            state.idle.push(ring);
            state.has_made = true;
        }
        self.wanted = wanted;
        Ok(())
    }

    /// Returns whether no ring of any kind is wanted.
    pub(crate) fn is_portable(&self) -> bool {
        self.wanted == DeviceEngine::Portable
    }

    /// Returns whether rings are used for nothing, by choice.
    fn is_left_out(&self) -> bool {
        self.wanted == DeviceEngine::Auto && self.is_in_memory && !self.is_block_device
    }

    /// Returns how many runs are under way at once.
    pub(crate) fn at_once(&self, kind: OperationKind) -> usize {
        let pays = match self.wanted {
            DeviceEngine::Portable => false,
            DeviceEngine::IoUring => true,
            DeviceEngine::Auto if kind == OperationKind::Read => !self.is_in_memory,
            DeviceEngine::Auto => self.is_block_device,
        };
        if pays && self.state.lock().refused.is_none() { LENT_DEPTH } else { 1 }
    }

    /// Transfers runs through a ring. Those without a result afterwards are left to the caller.
    pub(crate) fn run(&self, file: &File, runs: &mut [Lent<'_>]) {
        let idle = self.state.lock().idle.pop();
        let ring = match idle {
            Some(ring) => Ok(ring),
            None => LentRing::new(file),
        };
        let mut ring = match ring {
            Ok(ring) => ring,
            Err(error) => {
                let mut state = self.state.lock();
                if !state.has_made {
                    state.refused = Some(reason(&error));
                }
                return;
            }
        };
        ring.run(runs);
        let mut state = self.state.lock();
        state.has_made = true;
        if ring.is_broken() {
            state.refused = Some("a call to it failed".into());
        } else if state.idle.len() < KEPT_MAX {
            state.idle.push(ring);
            return;
        }
        drop(state);
        drop(ring);
    }

    /// Makes rings for as many threads as are to have one each, at most those that are kept. For a
    /// process that is about to give up the right to make them.
    pub(crate) fn prepare(&self, file: &File, threads: usize) {
        if self.at_once(OperationKind::Read).max(self.at_once(OperationKind::Write)) < 2 {
            return;
        }
        let made: Vec<_> =
            (0..threads.min(KEPT_MAX)).map_while(|_| LentRing::new(file).ok()).collect();
        let mut state = self.state.lock();
        state.has_made |= !made.is_empty();
        state.idle.extend(made);
    }

    /// Returns the engine in use, and why not a better one. Makes a ring to find out, where one would be used: a process
    /// that gave up the right to make one would blame the system.
    pub(crate) fn info(&self, file: &File) -> EngineInfo {
        if self.is_portable() {
            return EngineInfo { engine: Engine::Portable, refused: None };
        }
        if self.is_left_out() {
            let refused = Some("it does not pay for a file in memory".into());
            return EngineInfo { engine: Engine::Portable, refused };
        }
        let is_known = {
            let state = self.state.lock();
            state.has_made || state.refused.is_some()
        };
        if !is_known {
            self.run(file, &mut []);
        }
        let refused = self.state.lock().refused.clone();
        let engine = if refused.is_some() { Engine::Portable } else { Engine::Uring };
        EngineInfo { engine, refused }
    }
}

/// Says why the system gives no ring.
pub(crate) fn reason(error: &io::Error) -> Arc<str> {
    const ENOSYS: i32 = 38;
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const ENOMEM: i32 = 12;
    const EINVAL: i32 = 22;
    match error.raw_os_error() {
        Some(ENOSYS) => "this kernel has no io_uring".into(),
        Some(EPERM | EACCES) => {
            "io_uring is forbidden here, by a filter of system calls or kernel.io_uring_disabled"
                .into()
        }
        Some(ENOMEM) => "no memory for a ring within the limit of locked memory (ulimit -l)".into(),
        Some(EINVAL) => "this kernel cannot limit a ring to one file (Linux 5.10)".into(),
        _ => error.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_not_blamed_where_no_ring_is_wanted() {
        let file = File::open("/proc/self/exe").unwrap();
        let info = Rings::new(true, false).info(&file);
        assert_eq!(info.engine, Engine::Portable);
        assert!(info.refused.as_ref().unwrap().contains("in memory"), "{info:?}");
        // On demand it is used, and tried.
        let mut demanded = Rings::new(true, false);
        if demanded.choose(DeviceEngine::IoUring, &file).is_ok() {
            assert_eq!(demanded.info(&file).engine, Engine::Uring);
        }
    }
}
