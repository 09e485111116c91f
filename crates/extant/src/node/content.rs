//! The content lock of an inode, together with direct operations under way that belong to no
//! thread.
//!
//! # Place
//!
//! Below: `extant-sync`. Above: `node`, whose every inode has one; `file/direct_now`, which begins
//! and ends such operations; `ring/lane`, which gives them to the device.
//!
//! # Rules
//!
//! - Y1. A direct operation of a lane begins under the lock, shared, and then counts instead of the
//!   guard. Whoever takes the lock exclusively waits for it, and none begins meanwhile.
//! - Y2. Whoever waits drives: it takes completions from the device itself, because the thread that
//!   would otherwise take them may be the one that waits (P40).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use extant_base::sabotage;
use extant_sync::{Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, check_may_wait};

use super::flights::Flights;

/// Somebody who has operations at the device.
pub(crate) trait Drive: Send + Sync {
    /// Ends operations, waiting for the device, until `is_enough`, or none is left with the device:
    /// those left are then being ended by other threads. The caller holds no lock above the content
    /// locks.
    fn drive(&self, is_enough: &dyn Fn() -> bool);
}

/// The operations under way on something, and those who have them.
pub(crate) struct Airspace {
    flights: Flights,
    drivers: Mutex<Vec<Weak<dyn Drive>>>,
    /// Address of the driver that was enlisted last, which is in the list, so that no other one has
    /// that address.
    last: AtomicUsize,
}

impl Airspace {
    pub(crate) fn new() -> Airspace {
        let drivers = Mutex::new(Rank::Leaf, Vec::new());
        Airspace { flights: Flights::new(), drivers, last: AtomicUsize::new(0) }
    }

    /// Makes a driver known, before an operation of it begins here.
    pub(crate) fn enlist(&self, driver: &Weak<dyn Drive>) {
        let address = driver.as_ptr().addr();
        if self.last.load(Ordering::Acquire) == address {
            return;
        }
        let mut drivers = self.drivers.lock();
        if !drivers.iter().any(|known| known.ptr_eq(driver)) {
            drivers.push(Weak::clone(driver));
        }
        self.last.store(address, Ordering::Release);
        // This comes last: addresses of drivers that are let go may be used again.
        drivers.retain(|known| known.strong_count() > 0);
    }

    /// Counts an operation; see [`Flights::begin`].
    pub(crate) fn begin(&self) {
        self.flights.begin();
    }

    /// Counts an operation down.
    pub(crate) fn end(&self) {
        self.flights.end();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Waits until no operation is under way, and drives those that are (Y2). The caller keeps new
    /// ones from beginning.
    pub(crate) fn settle(&self) {
        if self.is_empty() || sabotage("extant.content.flights-not-awaited") {
            return;
        }
        check_may_wait("direct operations under way");
        let drivers: Vec<Arc<dyn Drive>> =
            self.drivers.lock().iter().filter_map(Weak::upgrade).collect();
        for driver in drivers {
            driver.drive(&|| self.is_empty());
        }
        self.flights.wait();
    }
}

/// The content lock: entries, size, data and attributes of an inode. Rank `InodeContent`, by
/// number.
pub(crate) struct Content {
    lock: RwLock<()>,
    /// Made when the first lane uses the file, because there are many inodes and few such files.
    airspace: OnceLock<Box<Airspace>>,
}

impl Content {
    pub(crate) fn new(order: u64) -> Content {
        let lock = RwLock::with_order(Rank::InodeContent, order, ());
        Content { lock, airspace: OnceLock::new() }
    }

    /// Waits for shared access.
    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }

    /// Takes shared access if it is free now.
    #[track_caller]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.lock.try_read()
    }

    /// Waits for exclusive access, and for the direct operations under way (Y1).
    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        let guard = self.lock.write();
        if let Some(airspace) = self.airspace.get() {
            airspace.settle();
        }
        guard
    }

    /// Takes exclusive access if it is free now and no direct operation is under way.
    #[track_caller]
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let guard = self.lock.try_write()?;
        let is_free = self.airspace.get().is_none_or(|airspace| airspace.is_empty());
        (is_free || sabotage("extant.content.attempts-beside-flights")).then_some(guard)
    }

    /// Returns the operations under way; made if there were none before.
    pub(crate) fn airspace(&self) -> &Airspace {
        self.airspace.get_or_init(|| Box::new(Airspace::new()))
    }
}
