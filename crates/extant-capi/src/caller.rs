//! Entry from C: the caller's pointers, panics, the last error of a thread.
//!
//! # Place
//!
//! Every exported function runs its body through [`enter`]. The body gets a [`Caller`], the only
//! way to access memory behind pointers. Its existence stands for the caller's promise of the
//! header: pointers are NULL, or point to as much memory of the type as the call says, which no
//! other thread changes until the call returns.
//!
//! # Invariants
//!
//! - Everything that can be checked is: NULL, alignment, lengths past `isize::MAX`, sizes of
//!   structures, flags.
//! - References lent by a `Caller` do not outlive it, nor the call.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::IoSlice;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::error::{
    EXTANT_E_BAD_HANDLE, EXTANT_E_BAD_STRUCT, EXTANT_E_PANIC, EXTANT_E_REENTERED, Error, Result,
};
use crate::handle::Table;
use crate::object::{Destination, DirObject, FileObject, FsObject, Object, RingObject};
use crate::types::{
    extant_build_options, extant_build_result, extant_check_options, extant_check_report,
    extant_completion, extant_device, extant_dir, extant_dirent, extant_error, extant_file,
    extant_fs, extant_iovec, extant_mount_options, extant_op, extant_ring, extant_stat,
    extant_statfs, extant_time,
};

/// Pieces of a vectored call at most, as `IOV_MAX` of Linux.
const PIECES_MAX: usize = 1024;

static HANDLES: Table = Table::new();

/// The last error of a thread, with its texts as C has them.
#[derive(Default)]
struct Last {
    error: Option<Error>,
    message: CString,
    object: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
    /// Whether this thread is in a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// A structure that begins with its size, and may grow at its end.
///
/// # Safety
///
/// The type is `repr(C)`, its first field is a `usize` with its size, and every byte pattern that C can give it is a value.
pub(crate) unsafe trait Sized0: Copy {
    /// The size of the structure in the first version that had it.
    const FIRST: usize;
}

macro_rules! sized {
    ($($kind:ty, $first:expr;)*) => {$(
        // SAFETY: see the type: it is repr(C) and begins with `size`; its fields are integers, pointers, and optional
        // functions, which are null or what the caller says.
        unsafe impl Sized0 for $kind {
            const FIRST: usize = $first;
        }
        const _: () = assert!(size_of::<$kind>() >= $first);
    )*};
}

// Sizes in version 1, which stay when a structure grows.
sized! {
    extant_mount_options, 88;
    extant_device, 80;
    extant_error, 48;
    extant_stat, 144;
    extant_statfs, 104;
    extant_op, 56;
    extant_build_options, 96;
    extant_build_result, 72;
    extant_check_options, 56;
    extant_check_report, 48;
}

/// Access to the pointers passed to an exported function.
pub(crate) struct Caller {
    /// The path, if one was given: what an error is about.
    path: RefCell<Option<String>>,
    /// The file system that is worked on: what a panic poisons.
    fs: RefCell<Option<Arc<FsObject>>>,
}

/// Runs the body of an exported function, and turns what becomes of it into a number: what it says, or a negative errno.
///
/// # Safety
///
/// Pointers that `body` hands to its [`Caller`] are NULL, or point to memory that is as the header asks, until this
/// returns.
pub(crate) unsafe fn enter(body: impl FnOnce(&Caller) -> Result<u64>) -> i64 {
    if IN_CALLBACK.get() {
        let message = "a callback of extant called extant";
        return fail(Error::new(EXTANT_E_REENTERED, message));
    }
    let caller = Caller { path: RefCell::new(None), fs: RefCell::new(None) };
    // State that a panic left half done belongs to the file system, which is not used any more.
    let done = catch_unwind(AssertUnwindSafe(|| body(&caller)));
    let error = match done {
        Ok(Ok(value)) => return i64::try_from(value).unwrap_or(i64::MAX),
        Ok(Err(error)) => error,
        Err(panic) => {
            if let Ok(fs) = caller.fs.try_borrow()
                && let Some(fs) = &*fs
            {
                fs.poison();
            }
            Error::new(EXTANT_E_PANIC, format!("a fault in extant: {}", panic_text(&*panic)))
        }
    };
    let path = caller.path.borrow_mut().take();
    let ino = error.ino;
    fail(match path {
        Some(path) => error.about(path),
        None if ino > 0 => error.about(format!("inode {ino}")),
        None => error,
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

/// Keeps the error for this thread.
fn fail(error: Error) -> i64 {
    let answer = -i64::from(error.errno);
    let text = |text: &str| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
    let (message, object) = (text(&error.message), text(&error.object));
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Last { error: Some(error), message, object };
    });
    answer
}

/// Returns what `extant_last_error` says; the texts are those of this thread until its next
/// failure.
pub(crate) fn last_error() -> extant_error {
    let none = extant_error {
        size: 0,
        code: 0,
        error_number: 0,
        ino: 0,
        name: c"".as_ptr(),
        message: c"".as_ptr(),
        object: c"".as_ptr(),
    };
    let told = LAST.try_with(|last| {
        let last = last.borrow();
        let Some(error) = &last.error else { return none };
        extant_error {
            code: error.code,
            error_number: error.errno,
            ino: error.ino,
            name: crate::error::name(error.code).unwrap_or(c"").as_ptr(),
            message: last.message.as_ptr(),
            object: last.object.as_ptr(),
            ..none
        }
    });
    told.unwrap_or(none)
}

/// Runs a callback of the caller's program. It must not call extant, because locks may be held.
pub(crate) fn call_back<R>(function: impl FnOnce() -> R) -> R {
    struct Outside(bool);
    impl Drop for Outside {
        fn drop(&mut self) {
            IN_CALLBACK.set(self.0);
        }
    }
    let _outside = Outside(IN_CALLBACK.replace(true));
    function()
}

/// A place for a result that the caller gave, checked before anything is done.
pub(crate) struct Place<'c, T> {
    at: *mut T,
    of: PhantomData<&'c Caller>,
}

impl<T> Place<'_, T> {
    pub(crate) fn put(self, value: T) {
        // SAFETY: it is not null and aligned, which was checked, and memory of that type for the time of the call, which
        // the caller promised. Nothing is read or dropped there.
        unsafe { self.at.write(value) }
    }
}

fn check_pointer<T>(at: *const T, what: &str) -> Result<()> {
    if at.is_null() {
        return Err(Error::null(what));
    }
    if !at.is_aligned() {
        return Err(Error::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

fn check_length<T>(length: usize, what: &str) -> Result<()> {
    match length.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(Error::argument(format!("{what}: {length} is longer than memory can be"))),
    }
}

impl Caller {
    /// Bytes of the caller.
    pub(crate) fn bytes(&self, at: *const c_void, length: usize, what: &str) -> Result<&[u8]> {
        if length == 0 {
            return Ok(&[]);
        }
        check_pointer(at.cast::<u8>(), what)?;
        check_length::<u8>(length, what)?;
        // SAFETY: not null, aligned, no longer than a slice can be; readable until the call returns, which is longer than
        // `self` lives, and changed by nobody: the caller promised both.
        Ok(unsafe { std::slice::from_raw_parts(at.cast(), length) })
    }

    /// Memory of the caller to be filled.
    #[expect(
        clippy::mut_from_ref,
        reason = "what is lent is the caller's memory, not a part of self"
    )]
    pub(crate) fn buffer(&self, at: *mut c_void, length: usize, what: &str) -> Result<&mut [u8]> {
        if length == 0 {
            return Ok(&mut []);
        }
        check_pointer(at.cast::<u8>(), what)?;
        check_length::<u8>(length, what)?;
        // SAFETY: as for `bytes`, and writable; each function asks for a buffer of its arguments once. Memory that comes
        // from another language counts as initialized: bytes have no invalid values.
        Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), length) })
    }

    /// Pieces of memory to be written from.
    pub(crate) fn pieces(&self, at: *const extant_iovec, count: c_int) -> Result<Vec<IoSlice<'_>>> {
        let pieces = self.vector(at, count)?;
        let slice = |piece: &extant_iovec| {
            self.bytes(piece.base, piece.length, "a piece of the vector").map(IoSlice::new)
        };
        pieces.iter().map(slice).collect()
    }

    /// Descriptions of pieces of memory.
    pub(crate) fn vector(&self, at: *const extant_iovec, count: c_int) -> Result<&[extant_iovec]> {
        let count = usize::try_from(count).ok().filter(|count| *count <= PIECES_MAX);
        let count = count
            .ok_or_else(|| Error::argument(format!("a vector has 0 to {PIECES_MAX} pieces")))?;
        if count == 0 {
            return Ok(&[]);
        }
        check_pointer(at, "vector")?;
        // SAFETY: as for `bytes`; the type has no invalid values.
        Ok(unsafe { std::slice::from_raw_parts(at, count) })
    }

    /// An array of the caller to be filled, as far as there is something.
    #[expect(
        clippy::mut_from_ref,
        reason = "what is lent is the caller's memory, not a part of self"
    )]
    fn array<T>(
        &self,
        at: *mut T,
        count: usize,
        what: &str,
    ) -> Result<&mut [std::mem::MaybeUninit<T>]> {
        if count == 0 {
            return Ok(&mut []);
        }
        check_pointer(at, what)?;
        check_length::<T>(count, what)?;
        // SAFETY: as for `buffer`; nothing is said about what is in it.
        Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), count) })
    }

    /// Room for entries of a directory.
    pub(crate) fn entries(
        &self,
        at: *mut extant_dirent,
        count: usize,
    ) -> Result<&mut [std::mem::MaybeUninit<extant_dirent>]> {
        self.array(at, count, "entries")
    }

    /// Room for results of a ring.
    pub(crate) fn completions(
        &self,
        at: *mut extant_completion,
        count: usize,
    ) -> Result<&mut [std::mem::MaybeUninit<extant_completion>]> {
        self.array(at, count, "completions")
    }

    /// A string of the caller, without its zero byte.
    pub(crate) fn text(&self, at: *const c_char, what: &str) -> Result<&[u8]> {
        check_pointer(at, what)?;
        // SAFETY: not null, and ended by a zero byte, which the caller promised; changed by nobody until the call returns.
        Ok(unsafe { CStr::from_ptr(at) }.to_bytes())
    }

    /// The text at a pointer, where NULL is "none".
    pub(crate) fn text_or_none(&self, at: *const c_char, what: &str) -> Result<Option<&[u8]>> {
        if at.is_null() { Ok(None) } else { self.text(at, what).map(Some) }
    }

    /// A path inside the image; errors of the call are about it.
    pub(crate) fn path(&self, at: *const c_char) -> Result<&[u8]> {
        let path = self.text(at, "path")?;
        *self.path.borrow_mut() = Some(path.escape_ascii().to_string());
        Ok(path)
    }

    /// A path of the host; errors of the call are about it.
    pub(crate) fn host_path(&self, at: *const c_char, what: &str) -> Result<&Path> {
        use std::os::unix::ffi::OsStrExt as _;
        let path = Path::new(std::ffi::OsStr::from_bytes(self.text(at, what)?));
        self.is_about(path);
        Ok(path)
    }

    /// Says that errors of the call are about another path of the host.
    pub(crate) fn is_about(&self, path: &Path) {
        *self.path.borrow_mut() = Some(path.display().to_string());
    }

    /// Two times, or none for NULL.
    pub(crate) fn times(&self, at: *const extant_time) -> Result<Option<[extant_time; 2]>> {
        if at.is_null() {
            return Ok(None);
        }
        check_pointer(at, "times")?;
        // SAFETY: not null, aligned, and two of them, which the caller promised; the type has no invalid values.
        Ok(Some(unsafe { at.cast::<[extant_time; 2]>().read() }))
    }

    /// A place for a result.
    pub(crate) fn place<T>(&self, at: *mut T, what: &str) -> Result<Place<'_, T>> {
        check_pointer(at, what)?;
        Ok(Place { at, of: PhantomData })
    }

    /// A structure of options: its fields as far as the caller knows them, 0 for the others. One that is longer than what is
    /// known here has to be 0 there: it asks for something that is not known.
    pub(crate) fn options<T: Sized0>(&self, at: *const T, what: &str) -> Result<T> {
        let size = self.size_of(at, what)?;
        let known = size.min(size_of::<T>());
        let bytes = self.bytes(at.cast(), size, what)?;
        if bytes[known..].iter().any(|byte| *byte != 0) {
            let message = format!(
                "{what}: something is set behind byte {known}, which this version does not know: \
                 it is older than the header"
            );
            return Err(Error::new(EXTANT_E_BAD_STRUCT, message));
        }
        let mut value = std::mem::MaybeUninit::<T>::zeroed();
        // SAFETY: `known` bytes are in both, which do not overlap: one is a local. A `Sized0` is a value whatever its
        // bytes are, so also with zeros behind.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast::<u8>(), known);
            Ok(value.assume_init())
        }
    }

    /// The options at a pointer, where NULL is "all 0".
    pub(crate) fn options_or_none<T: Sized0>(&self, at: *const T, what: &str) -> Result<T> {
        if !at.is_null() {
            return self.options(at, what);
        }
        // SAFETY: a `Sized0` is a value whatever its bytes are.
        Ok(unsafe { std::mem::zeroed() })
    }

    fn size_of<T: Sized0>(&self, at: *const T, what: &str) -> Result<usize> {
        check_pointer(at, what)?;
        // SAFETY: not null and aligned; a structure of the caller begins with its size, which is all that is read.
        let size = unsafe { at.cast::<usize>().read() };
        // Larger ones than a page were never set.
        if size < T::FIRST || size > 4096 {
            let message = format!(
                "{what}: its size is {size}, and the first version had {}: set `size` to sizeof",
                T::FIRST
            );
            return Err(Error::new(EXTANT_E_BAD_STRUCT, message));
        }
        Ok(size)
    }

    /// A structure for a result: the caller's size says how much of it he knows.
    pub(crate) fn answer<T: Sized0>(&self, at: *mut T, what: &str) -> Result<Answer<'_, T>> {
        let size = self.size_of(at, what)?;
        Ok(Answer { at, size, of: PhantomData })
    }

    fn object(&self, handle: usize, what: &str) -> Result<Object> {
        if handle == 0 {
            return Err(Error::null(what));
        }
        HANDLES.get(handle, what)
    }

    fn works_on(&self, fs: &Arc<FsObject>) -> Result<()> {
        *self.fs.borrow_mut() = Some(Arc::clone(fs));
        fs.check()
    }

    /// The file system of a handle.
    pub(crate) fn fs(&self, handle: *const extant_fs) -> Result<Arc<FsObject>> {
        match self.object(handle.addr(), "fs")? {
            Object::Fs(fs) => self.works_on(&fs).map(|()| fs),
            _ => Err(wrong("a file system")),
        }
    }

    /// The file of a handle.
    pub(crate) fn file(&self, handle: *const extant_file) -> Result<Arc<FileObject>> {
        match self.object(handle.addr(), "file")? {
            Object::File(file) => self.works_on(file.opened.fs()).map(|()| file),
            _ => Err(wrong("a file")),
        }
    }

    /// The directory of a handle.
    pub(crate) fn dir(&self, handle: *const extant_dir) -> Result<Arc<DirObject>> {
        match self.object(handle.addr(), "directory")? {
            Object::Dir(dir) => self.works_on(dir.opened.fs()).map(|()| dir),
            _ => Err(wrong("a directory")),
        }
    }

    /// The ring of a handle.
    pub(crate) fn ring(&self, handle: *const extant_ring) -> Result<Arc<RingObject>> {
        match self.object(handle.addr(), "ring")? {
            Object::Ring(ring) => self.works_on(ring.opened.fs()).map(|()| ring),
            _ => Err(wrong("a ring")),
        }
    }

    /// Opens a handle, of whatever type the caller has for it.
    pub(crate) fn open<T>(&self, object: Object) -> Result<*mut T> {
        HANDLES.open(object).map(std::ptr::without_provenance_mut)
    }

    /// Closes a handle, if it is of a kind that `may` agrees to.
    pub(crate) fn close<T>(
        &self,
        handle: *const T,
        what: &str,
        may: impl FnOnce(&Object) -> Result<()>,
    ) -> Result<Object> {
        if handle.is_null() {
            return Err(Error::null(what));
        }
        let closed = HANDLES.close(handle.addr(), what, may)?;
        closed.leave_to_parent();
        Ok(closed)
    }

    /// Notes what a panic would poison.
    pub(crate) fn note(&self, fs: &Arc<FsObject>) {
        *self.fs.borrow_mut() = Some(Arc::clone(fs));
    }

    /// Memory for a read that a worker of a ring may have to do.
    pub(crate) fn destination(&self, at: *mut c_void, length: usize) -> Destination {
        Destination { address: at.expose_provenance(), len: length }
    }

    /// Brings what a worker has read to where its submitter wanted it.
    pub(crate) fn deliver(&self, to: Destination, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(to.len)];
        let at = std::ptr::with_exposed_provenance_mut::<u8>(to.address);
        // SAFETY: when the operation was submitted this was memory of `to.len` bytes, and the submitter promised that it
        // stays until the result is taken, which is now, or never. The bytes are a vector of this process: no overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) }
    }
}

pub(crate) fn wrong(wanted: &str) -> Error {
    Error::new(EXTANT_E_BAD_HANDLE, format!("the handle is not that of {wanted}"))
}

/// A place for a structure that begins with its size.
pub(crate) struct Answer<'c, T> {
    at: *mut T,
    size: usize,
    of: PhantomData<&'c Caller>,
}

impl<T: Sized0> Answer<'_, T> {
    /// Stores as much as the caller knows of; his `size` stays, and what he knows and this version does not becomes 0.
    pub(crate) fn put(self, value: T) {
        const WORD: usize = size_of::<usize>();
        let known = self.size.min(size_of::<T>());
        // SAFETY: the caller has `size` bytes there, which is at least `FIRST`, so more than a word; `value` has `known`
        // bytes and is a local.
        unsafe {
            let (to, from) = (self.at.cast::<u8>(), (&raw const value).cast::<u8>());
            std::ptr::copy_nonoverlapping(from.add(WORD), to.add(WORD), known - WORD);
            std::ptr::write_bytes(to.add(known), 0, self.size - known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(body: impl FnOnce(&Caller) -> Result<u64>) -> i64 {
        // SAFETY: the tests hand over pointers to their own locals only.
        unsafe { enter(body) }
    }

    fn last_code() -> c_int {
        last_error().code
    }

    #[test]
    fn a_panic_becomes_an_error_and_poisons_the_file_system() {
        let device = extant_block::MemoryDevice::new(8 << 20);
        extant_image::Build::empty().size(8 << 20).write_to_device(&device, true).unwrap();
        let fs = FsObject::new(extant::MountOptions::new().open(device).unwrap(), false);
        assert_eq!(run(|caller| caller.works_on(&fs).map(|()| 7)), 7);
        let answer = run(|caller| {
            caller.works_on(&fs)?;
            panic!("as if it were a bug")
        });
        assert_eq!((answer, last_code()), (-131, EXTANT_E_PANIC));
        let error = last_error();
        // SAFETY: a text of this thread, which has failed no more since.
        let message = unsafe { CStr::from_ptr(error.message) }.to_str().unwrap();
        assert!(message.contains("as if it were a bug"), "{message}");
        assert_eq!(run(|caller| caller.works_on(&fs).map(|()| 7)), -131);
        assert_eq!(last_code(), crate::error::EXTANT_E_POISONED);
    }

    #[test]
    fn a_callback_cannot_call_in() {
        let answer = run(|_| {
            let inside = call_back(|| run(|_| Ok(1)));
            assert_eq!(inside, -35);
            Ok(2)
        });
        assert_eq!(answer, 2);
        assert_eq!(run(|_| Ok(3)), 3, "afterwards it can");
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Larger {
        base: extant_statfs,
        more: [u64; 2],
    }

    #[test]
    fn structures_of_other_versions_are_taken_as_far_as_both_know_them() {
        let mut larger = Larger { base: extant_statfs::default(), more: [0, 0] };
        larger.base.size = size_of::<Larger>();
        larger.base.blocks = 5;
        let at = (&raw mut larger).cast::<extant_statfs>();
        assert_eq!(run(|caller| Ok(caller.options(at, "x")?.blocks)), 5);
        larger.more[1] = 1;
        let at = (&raw mut larger).cast::<extant_statfs>();
        assert_eq!(run(|caller| Ok(caller.options(at, "x")?.blocks)), -22);
        assert_eq!(last_code(), EXTANT_E_BAD_STRUCT);
        let answer = |caller: &Caller| {
            let place = caller.answer(at, "x")?;
            place.put(extant_statfs { blocks: 9, ..extant_statfs::default() });
            Ok(0)
        };
        assert_eq!(run(answer), 0);
        assert_eq!((larger.base.blocks, larger.base.size), (9, size_of::<Larger>()));
        assert_eq!(larger.more, [0, 0], "what only the caller knows is 0");
        for size in [0, 8, 103, 1 << 40] {
            larger.base.size = size;
            let at = (&raw mut larger).cast::<extant_statfs>();
            assert_eq!(run(|caller| Ok(caller.options(at, "x")?.blocks)), -22, "{size}");
        }
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        let null = std::ptr::null_mut::<u64>();
        assert_eq!(run(|caller| caller.place(null, "x").map(|_| 0)), -14);
        let odd = std::ptr::without_provenance_mut::<u64>(0x1001);
        assert_eq!(run(|caller| caller.place(odd, "x").map(|_| 0)), -22);
        let some = std::ptr::without_provenance_mut::<c_void>(0x1000);
        assert_eq!(run(|caller| caller.buffer(some, usize::MAX, "x").map(|_| 0)), -22);
        assert_eq!(run(|caller| Ok(caller.buffer(std::ptr::null_mut(), 0, "x")?.len() as u64)), 0);
        assert_eq!(run(|caller| caller.bytes(std::ptr::null(), 1, "x").map(|_| 0)), -14);
        assert_eq!(run(|caller| caller.vector(std::ptr::null(), 1025).map(|_| 0)), -22);
        assert_eq!(run(|caller| caller.vector(std::ptr::null(), -1).map(|_| 0)), -22);
    }
}
