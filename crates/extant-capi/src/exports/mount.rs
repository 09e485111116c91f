//! Versions, errors, mounting, what concerns a whole file system.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use extant::{BlockDevice, MountOptions, MountProgress, MountStage, SharedDevice};
use extant_block::{FileDevice, WindowDevice, partition};

use super::int;
use crate::caller::{Caller, call_back, enter, last_error, wrong};
use crate::device::CallbackDevice;
use crate::error::{EXTANT_E_BAD_HANDLE, EXTANT_E_BUSY, EXTANT_E_POISONED, Error, Result};
use crate::object::{FsObject, IN_FORK, Object};
use crate::types::{
    EXTANT_API_VERSION, EXTANT_MOUNT_DISCARD, EXTANT_MOUNT_IGNORE_JOURNAL,
    EXTANT_MOUNT_NO_BACKGROUND, EXTANT_MOUNT_NO_CHECKSUMS, EXTANT_MOUNT_NO_QUOTA_LIMITS,
    EXTANT_MOUNT_WRITE, EXTANT_STAGE_ORPHANS, EXTANT_STAGE_REPLAYING, EXTANT_STAGE_WAITING,
    EXTANT_UNMOUNT_FORCE, extant_device, extant_error, extant_fs, extant_mount_options,
    extant_statfs,
};

const MOUNT_FLAGS: u64 = EXTANT_MOUNT_WRITE
    | EXTANT_MOUNT_IGNORE_JOURNAL
    | EXTANT_MOUNT_NO_CHECKSUMS
    | EXTANT_MOUNT_DISCARD
    | EXTANT_MOUNT_NO_BACKGROUND
    | EXTANT_MOUNT_NO_QUOTA_LIMITS;

/// Version of the library's interface: EXTANT_API_VERSION of the header that it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn extant_api_version() -> u32 {
    EXTANT_API_VERSION
}

/// Version of the library, such as "0.1.0". Lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn extant_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Copies the last error of this thread. A call that succeeds does not change it. Returns 0, or
/// a negative errno for a structure that is NULL or has a wrong size: that is the last error then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_last_error(error: *mut extant_error) -> c_int {
    let said = last_error();
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            caller.answer(error, "error")?.put(said);
            Ok(0)
        })
    })
}

/// Name of an error code (EXTANT_E_*), such as "NotFound"; NULL for a number that is none. Lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn extant_error_name(code: c_int) -> *const c_char {
    crate::error::name(code).map_or(std::ptr::null(), std::ffi::CStr::as_ptr)
}

/// The function of the caller's program that observes a mount.
struct Observer {
    tell: unsafe extern "C" fn(*mut c_void, u32, u64, u64) -> c_int,
    context: *mut c_void,
}

// SAFETY: the library calls an observer on the thread that mounts, which is the one that called
// and returns only afterwards; only the value moves, inside of the options.
unsafe impl Send for Observer {}
// SAFETY: as for `Send`.
unsafe impl Sync for Observer {}

impl Observer {
    fn tell(&self, at: MountProgress) -> ControlFlow<()> {
        let stage = match at.stage {
            MountStage::Waiting => EXTANT_STAGE_WAITING,
            MountStage::Replaying => EXTANT_STAGE_REPLAYING,
            MountStage::Orphans => EXTANT_STAGE_ORPHANS,
            // A stage that this header has no number for yet.
            _ => return ControlFlow::Continue(()),
        };
        // SAFETY: the header asks that it can be called with the context until the call returns.
        match call_back(|| unsafe { (self.tell)(self.context, stage, at.done, at.total) }) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}

/// Refuses a descriptor that cannot be read, or that is to be written and cannot be. `found` are its
/// flags, as `fcntl` says them; an error of that is left to the next call.
fn check_access(found: c_int, fd: c_int, read_only: bool) -> Result<()> {
    let refused = |what: &str| {
        let message = format!("file descriptor {fd} is {what}");
        Err(Error::argument(message).with_errno(9)) // EBADF
    };
    match found {
        ..0 => Ok(()),
        _ if found & libc::O_PATH != 0 => refused("only a path (O_PATH)"),
        _ if found & libc::O_ACCMODE == libc::O_WRONLY => refused("not open for reading"),
        _ if found & libc::O_ACCMODE == libc::O_RDONLY && !read_only => {
            refused("not open for writing")
        }
        _ => Ok(()),
    }
}

/// Options of a mount, as the library has them.
fn mount_options(caller: &Caller, options: &extant_mount_options) -> Result<MountOptions> {
    let flags = options.flags;
    if flags & !MOUNT_FLAGS != 0 {
        return Err(Error::argument(format!("mount: unknown flags {:#x}", flags & !MOUNT_FLAGS)));
    }
    Error::check_reserved("mount options", options.reserved)?;
    let has = |flag| flags & flag != 0;
    if has(EXTANT_MOUNT_WRITE) && has(EXTANT_MOUNT_IGNORE_JOURNAL) {
        return Err(Error::argument("mount: who writes cannot ignore the journal"));
    }
    let mut mount = MountOptions::new()
        .read_only(!has(EXTANT_MOUNT_WRITE))
        .ignore_journal(has(EXTANT_MOUNT_IGNORE_JOURNAL))
        .verify_checksums(!has(EXTANT_MOUNT_NO_CHECKSUMS))
        .discard(has(EXTANT_MOUNT_DISCARD))
        .background(!has(EXTANT_MOUNT_NO_BACKGROUND))
        .quota_limits(!has(EXTANT_MOUNT_NO_QUOTA_LIMITS));
    if options.metadata_cache_bytes > 0 {
        let bytes = usize::try_from(options.metadata_cache_bytes).unwrap_or(usize::MAX);
        mount = mount.cache_bytes(bytes);
    }
    if options.data_cache_bytes > 0 {
        mount = mount.data_cache_bytes(options.data_cache_bytes);
    }
    if options.dirty_bytes > 0 {
        mount = mount.dirty_bytes(options.dirty_bytes);
    }
    if options.dirty_background_bytes > 0 {
        mount = mount.dirty_background_bytes(options.dirty_background_bytes);
    }
    if options.commit_interval_ms > 0 {
        mount = mount.commit_interval(Duration::from_millis(options.commit_interval_ms));
    }
    if options.write_back_after_ms > 0 {
        mount = mount.write_back_after(Duration::from_millis(options.write_back_after_ms));
    }
    if let Some(tell) = options.progress {
        let observer = Observer { tell, context: options.context };
        mount = mount.progress(move |at| observer.tell(at));
    }
    if !options.journal_device.is_null() {
        let path = caller.host_path(options.journal_device, "journal_device")?;
        mount = mount.journal_device(open_host(path, has(EXTANT_MOUNT_WRITE))?);
    }
    Ok(mount)
}

/// The part of a device that holds the file system.
pub(super) fn window(device: SharedDevice, offset: u64, number: u32) -> Result<SharedDevice> {
    let name = device.describe();
    if number > 0 {
        if offset > 0 {
            return Err(Error::argument("offset and partition exclude each other"));
        }
        let part = partition::open(device, number)
            .map_err(|error| Error::argument(error.to_string()).about(&*name))?;
        return Ok(Arc::new(part));
    }
    if offset == 0 {
        return Ok(device);
    }
    let part = WindowDevice::from_offset(device, offset)
        .map_err(|error| Error::argument(error.to_string()).about(&*name))?;
    Ok(Arc::new(part))
}

/// Opens a file or disk of the host. One to be written must not be a loop device of the kernel's, which would write what it has
/// in memory over our changes.
fn open_host(path: &Path, writes: bool) -> Result<FileDevice> {
    if !writes {
        return Ok(FileDevice::open_read_only(path)?);
    }
    let device = FileDevice::open_read_write(path)?;
    device.refuse_loop_device()?;
    Ok(device)
}

/// Opens the file system on a device, and a handle.
fn mount(
    caller: &Caller,
    device: SharedDevice,
    options: &extant_mount_options,
    mount: &MountOptions,
    place: crate::caller::Place<'_, *mut extant_fs>,
) -> Result<u64> {
    let name = device.describe();
    let device = window(device, options.offset, options.partition)?;
    let opened = mount.open_shared(device);
    let opened = opened.map_err(|error| Error::from(error.into_fs_error()).about(&*name));
    let writes = options.flags & EXTANT_MOUNT_WRITE != 0;
    let handle = caller.open(Object::Fs(FsObject::new(opened?, writes)))?;
    place.put(handle);
    Ok(0)
}

/// Mounts the image in the file, or on the disk, at `path` of the host. `options` may be NULL: for reading. Returns 0 and
/// sets `*fs`, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mount(
    path: *const c_char,
    options: *const extant_mount_options,
    fs: *mut *mut extant_fs,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let place = caller.place(fs, "fs")?;
            let options = caller.options_or_none(options, "mount options")?;
            let how = mount_options(caller, &options)?;
            let path = caller.host_path(path, "path")?;
            let device = open_host(path, options.flags & EXTANT_MOUNT_WRITE != 0)?;
            mount(caller, Arc::new(device), &options, &how, place)
        })
    })
}

/// Mounts the image in the open file, or on the open disk, `fd`, which stays the caller's: it is duplicated. Returns 0 and
/// sets `*fs`, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mount_fd(
    fd: c_int,
    options: *const extant_mount_options,
    fs: *mut *mut extant_fs,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let place = caller.place(fs, "fs")?;
            let options = caller.options_or_none(options, "mount options")?;
            let how = mount_options(caller, &options)?;
            if fd < 0 {
                return Err(Error::argument(format!("{fd} is no file descriptor")).with_errno(9));
            }
            // A number that is no open descriptor is an error of the duplication.
            let owned = BorrowedFd::borrow_raw(fd).try_clone_to_owned();
            let owned = owned.map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(9);
                Error::argument(format!("file descriptor {fd}: {error}")).with_errno(errno)
            })?;
            let name = format!("file descriptor {fd}");
            let read_only = options.flags & EXTANT_MOUNT_WRITE == 0;
            check_access(libc::fcntl(fd, libc::F_GETFL), fd, read_only)?;
            let device = FileDevice::with_file(owned.into(), Path::new(&name), read_only)?;
            if !read_only {
                device.refuse_loop_device()?;
            }
            mount(caller, Arc::new(device), &options, &how, place)
        })
    })
}

/// Mounts the image on a device of callbacks. Returns 0 and sets `*fs`, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_mount_device(
    device: *const extant_device,
    options: *const extant_mount_options,
    fs: *mut *mut extant_fs,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` and `CallbackDevice::new` do.
    int(unsafe {
        enter(|caller| {
            let table = caller.options(device, "device")?;
            let name = caller.text_or_none(table.name, "device: name")?.unwrap_or(b"device");
            let name = String::from_utf8_lossy(name);
            let device: SharedDevice = Arc::new(CallbackDevice::new(table, &name)?);
            let place = caller.place(fs, "fs")?;
            let options = caller.options_or_none(options, "mount options")?;
            let how = mount_options(caller, &options)?;
            mount(caller, device, &options, &how, place)
        })
    })
}

/// Ends a mount: everything is stored and the image is marked clean. With files, directories or
/// rings open it is refused (EXTANT_E_BUSY), unless `flags` has EXTANT_UNMOUNT_FORCE: then their
/// handles can be closed and nothing else, and open files that have no name are deleted. `flags`
/// is 0 or EXTANT_UNMOUNT_FORCE. In a fork of the process that mounted it for writing, nothing is
/// stored: EXTANT_E_BAD_HANDLE.
///
/// Returns 0 or a negative errno: then, except for EXTANT_E_BUSY and bad arguments, the handle is
/// closed all the same. Synced data is stored; data that could not be stored is lost. To be able to
/// try again, call extant_sync() first, which keeps everything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_unmount(fs: *mut extant_fs, flags: u32) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            if flags & !EXTANT_UNMOUNT_FORCE != 0 {
                return Err(Error::argument(format!("unmount: unknown flags {flags:#x}")));
            }
            let closed = caller.close(fs, "fs", |object| {
                let Object::Fs(fs) = object else { return Err(wrong("a file system")) };
                let force =
                    flags & EXTANT_UNMOUNT_FORCE != 0 || fs.is_poisoned() || !fs.is_at_home();
                fs.end(force).map_err(|open| {
                    let message =
                        format!("{open} files, directories or rings are open: close them first");
                    Error::new(EXTANT_E_BUSY, message)
                })
            })?;
            let Object::Fs(fs) = closed else { return Err(wrong("a file system")) };
            if !fs.is_at_home() {
                return Err(Error::new(EXTANT_E_BAD_HANDLE, IN_FORK));
            }
            // What waits in other threads goes on, and finds the mount ended.
            fs.thaw_for_good();
            if fs.is_poisoned() {
                let message = "a fault in extant happened to it: nothing was stored since; the next mount \
                               replays the journal";
                return Err(Error::new(EXTANT_E_POISONED, message));
            }
            fs.fs.clone().unmount()?;
            Ok(0)
        })
    })
}

/// Makes every change so far durable. Returns 0 or a negative errno: what could not be stored is kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_sync(fs: *mut extant_fs) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            caller.fs(fs)?.fs.sync()?;
            Ok(0)
        })
    })
}

/// Freezes a mount, so that its image can be copied: waits for changes under way, makes everything durable, empties the
/// journal and marks the image clean. Until extant_thaw() nothing is written to the device; reads go on, and changes wait in
/// any thread. A change by the only thread waits for ever. A mount for reading is always as if frozen. Returns 0, or a
/// negative errno: then the mount goes on, and if it is frozen already it is -EBUSY (EXTANT_E_FROZEN).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_freeze(fs: *mut extant_fs) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            caller.fs(fs)?.freeze()?;
            Ok(0)
        })
    })
}

/// Ends what extant_freeze() began: changes that wait go on. extant_unmount() does it too. Returns 0, or a negative errno:
/// -EINVAL for a mount that is not frozen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_thaw(fs: *mut extant_fs) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| match caller.fs(fs)?.thaw() {
            true => Ok(0),
            false => Err(Error::argument("thaw: the mount is not frozen")),
        })
    })
}

/// Does what is due, on mounts with EXTANT_MOUNT_NO_BACKGROUND: call it every second. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_tick(fs: *mut extant_fs) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            caller.fs(fs)?.fs.tick()?;
            Ok(0)
        })
    })
}

/// Space of a file system, its UUID and label. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_get_statfs(
    fs: *mut extant_fs,
    statfs: *mut extant_statfs,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let answer = caller.answer(statfs, "statfs")?;
            let fs = caller.fs(fs)?;
            let space = fs.fs.statfs()?;
            let superblock = fs.fs.superblock();
            let mut label = [0; 24];
            let stored = superblock.label();
            label[..stored.len()].copy_from_slice(stored);
            answer.put(extant_statfs {
                size: 0,
                block_bytes: space.block_bytes.into(),
                blocks: space.blocks,
                blocks_free: space.blocks_free,
                blocks_available: space.blocks_available,
                files: space.files,
                files_free: space.files_free,
                name_max: space.name_max.into(),
                uuid: superblock.uuid,
                label,
            });
            Ok(0)
        })
    })
}
