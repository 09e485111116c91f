//! Handles: numbers that look like pointers, and their objects.
//!
//! A program in C may close a handle twice, use it after that, or pass one for another. If handles
//! were addresses, each of these mistakes would access foreign memory. So a handle is a place in a
//! table and the number of times that the place was used: a lookup tells whether it is valid, and
//! its "address" is never read. Handles are odd, so they differ from the address of every aligned
//! object.
//!
//! # Invariants
//!
//! - H1. A place has an object exactly while a handle of its present generation is open.
//! - H2. Its lock is held while an `Arc` is copied, never during an operation on the object.

use std::sync::OnceLock;

use extant_sync::{Mutex, Rank, RwLock};

use crate::error::{EXTANT_E_BAD_HANDLE, EXTANT_E_TOO_MANY_HANDLES, Error, Result};
use crate::object::Object;

/// Places that are made together.
const CHUNK: usize = 256;
/// Chunks there are at most: 262,144 handles.
const CHUNKS: usize = 1024;
/// Number of bits of a generation. A place is retired after 2^31 handles.
const GENERATION_BITS: u32 = 31;

struct Place {
    generation: u32,
    object: Option<Object>,
}

/// Places that are free, and how many there are in all.
struct Free {
    places: Vec<usize>,
    made: usize,
}

/// The table of a process.
pub(crate) struct Table {
    chunks: [OnceLock<Box<[RwLock<Place>]>>; CHUNKS],
    free: Mutex<Free>,
}

const _: () = assert!(usize::BITS == 64, "a handle takes 64 bits");

fn handle(place: usize, generation: u32) -> usize {
    ((generation as usize) << 33) | (place << 1) | 1
}

fn parts(handle: usize) -> Option<(usize, u32)> {
    let (place, generation) = ((handle >> 1) & 0xffff_ffff, (handle >> 33) as u32);
    (handle & 1 == 1 && place < CHUNK * CHUNKS && generation > 0).then_some((place, generation))
}

impl Table {
    pub(crate) const fn new() -> Table {
        Table {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Rank::Leaf, Free { places: Vec::new(), made: 0 }),
        }
    }

    fn place(&self, place: usize) -> Option<&RwLock<Place>> {
        self.chunks.get(place / CHUNK)?.get()?.get(place % CHUNK)
    }

    /// Opens a handle of `object`.
    pub(crate) fn open(&self, object: Object) -> Result<usize> {
        let place = self.take_place()?;
        let Some(lock) = self.place(place) else { return Err(bad("a new one")) };
        let mut found = lock.write();
        found.generation += 1;
        found.object = Some(object);
        Ok(handle(place, found.generation))
    }

    fn take_place(&self) -> Result<usize> {
        let mut free = self.free.lock();
        if let Some(place) = free.places.pop() {
            return Ok(place);
        }
        let place = free.made;
        let Some(chunk) = self.chunks.get(place / CHUNK) else {
            let message = format!("{place} handles are open, which is all there can be");
            return Err(Error::new(EXTANT_E_TOO_MANY_HANDLES, message));
        };
        chunk.get_or_init(|| {
            let empty = || RwLock::new(Rank::Leaf, Place { generation: 0, object: None });
            (0..CHUNK).map(|_| empty()).collect()
        });
        free.made += 1;
        Ok(place)
    }

    /// Returns what a handle stands for.
    pub(crate) fn get(&self, handle: usize, what: &str) -> Result<Object> {
        let found = parts(handle).and_then(|(place, generation)| {
            let found = self.place(place)?.read();
            (found.generation == generation).then(|| found.object.clone()).flatten()
        });
        found.ok_or_else(|| bad(what))
    }

    /// Closes a handle, if `may` agrees to what it stands for.
    pub(crate) fn close(
        &self,
        handle: usize,
        what: &str,
        may: impl FnOnce(&Object) -> Result<()>,
    ) -> Result<Object> {
        let (place, generation) = parts(handle).ok_or_else(|| bad(what))?;
        let object = {
            let mut found = self.place(place).ok_or_else(|| bad(what))?.write();
            let object = found.object.as_ref().filter(|_| found.generation == generation);
            may(object.ok_or_else(|| bad(what))?)?;
            found.object.take().ok_or_else(|| bad(what))?
        };
        if generation + 1 < 1 << GENERATION_BITS {
            self.free.lock().places.push(place);
        }
        Ok(object)
    }
}

fn bad(what: &str) -> Error {
    Error::new(EXTANT_E_BAD_HANDLE, format!("{what}: no open handle of this kind"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;

    fn table() -> &'static Table {
        Box::leak(Box::new(Table::new()))
    }

    #[test]
    fn a_closed_handle_is_none_also_when_its_place_is_used_again() {
        let table = table();
        let first = table.open(Object::Nothing).unwrap();
        assert!(table.get(first, "x").is_ok());
        table.close(first, "x", |_| Ok(())).unwrap();
        let second = table.open(Object::Nothing).unwrap();
        assert_eq!(parts(first).unwrap().0, parts(second).unwrap().0, "the same place");
        assert_ne!(first, second);
        for gone in [first, 0, 1, 2, usize::MAX, second + 1, second + 2, second ^ (1 << 63)] {
            let Err(error) = table.get(gone, "x") else { panic!("{gone:#x} is open") };
            assert_eq!((error.code, error.errno), (EXTANT_E_BAD_HANDLE, 9), "{gone:#x}");
            assert!(table.close(gone, "x", |_| Ok(())).is_err());
        }
        assert!(table.get(second, "x").is_ok());
    }

    #[test]
    fn there_are_so_many_handles_and_no_more() {
        let table = table();
        let all: Vec<usize> =
            (0..CHUNK * CHUNKS).map(|_| table.open(Object::Nothing).unwrap()).collect();
        assert_eq!(table.open(Object::Nothing).unwrap_err().code, EXTANT_E_TOO_MANY_HANDLES);
        table.close(all[77], "x", |_| Ok(())).unwrap();
        assert!(table.open(Object::Nothing).is_ok());
    }

    #[test]
    fn of_two_who_close_one_handle_one_does() {
        let table = table();
        for _ in 0..200 {
            let handle = table.open(Object::Nothing).unwrap();
            let closed = extant_sync::threads::workers("close", 2, |_| {
                table.close(handle, "x", |_| Ok(())).is_ok()
            });
            assert_eq!(closed.unwrap().into_iter().filter(|done| *done).count(), 1);
        }
    }
}
