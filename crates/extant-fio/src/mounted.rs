//! The image, mounted once for all jobs of a process.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use extant::{Fs, FsError, MountErrorKind, MountOptions};
use extant_sync::{Mutex, Rank};

use crate::options::Options;

/// An image in use.
struct Mounted {
    image: Vec<u8>,
    cache_mib: u32,
    fs: Fs,
    jobs: usize,
}

/// Images in use in this process. The lock is held while one is mounted or ended, so that the next job waits for that.
static MOUNTED: Mutex<Vec<Mounted>> = Mutex::new(Rank::Freeze, Vec::new());

fn path(image: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(image))
}

/// The text of an error with its causes.
pub(crate) fn told(error: &FsError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Mounts the image of a job for writing, unless another job has.
pub(crate) fn mount(options: &Options) -> Result<Fs, String> {
    let mut all = MOUNTED.lock();
    if let Some(mounted) = all.iter_mut().find(|mounted| mounted.image == options.image) {
        if mounted.cache_mib != options.cache_mib {
            return Err(format!(
                "cache_mib={} here and {} in another job: jobs share one mount",
                options.cache_mib, mounted.cache_mib
            ));
        }
        mounted.jobs += 1;
        return Ok(mounted.fs.clone());
    }
    let mut mount = MountOptions::new().read_only(false);
    if options.cache_mib > 0 {
        mount = mount.data_cache_bytes(u64::from(options.cache_mib) << 20);
    }
    let fs = mount.open_path(path(&options.image)).map_err(|error| {
        let hint = match error.kind() {
            MountErrorKind::InUse => " (several jobs need --thread, to share one mount)",
            _ => "",
        };
        format!("{}{hint}", told(&error))
    })?;
    let (image, cache_mib) = (options.image.clone(), options.cache_mib);
    all.push(Mounted { image, cache_mib, fs: fs.clone(), jobs: 1 });
    Ok(fs)
}

/// A job is done with the image: the last one unmounts it.
pub(crate) fn end(options: &Options) -> Result<(), String> {
    let mut all = MOUNTED.lock();
    let Some(at) = all.iter().position(|mounted| mounted.image == options.image) else {
        return Ok(());
    };
    all[at].jobs -= 1;
    if all[at].jobs > 0 {
        return Ok(());
    }
    let mounted = all.swap_remove(at);
    mounted.fs.unmount().map_err(|error| format!("unmounting failed: {}", told(&error)))
}

/// Size of a file of the image in bytes; `None` if there is none. Starts no thread.
pub(crate) fn size_of(options: &Options, name: &[u8]) -> Result<Option<u64>, String> {
    let all = MOUNTED.lock();
    let fs = match all.iter().find(|mounted| mounted.image == options.image) {
        Some(mounted) => mounted.fs.clone(),
        None => {
            MountOptions::new().open_path(path(&options.image)).map_err(|error| told(&error))?
        }
    };
    match fs.metadata(name) {
        Ok(found) => Ok(Some(found.size)),
        Err(FsError::NotFound { .. }) => Ok(None),
        Err(error) => Err(told(&error)),
    }
}
