//! Builds an image of a directory, changes it, reads it back, copies it while in use, and shows what an error says: all that a program
//! needs from `extant` and `extant-image`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use extant::{
    Clock, ErrorCode, Fs, FsError, MemoryDevice, MountOptions, NewInode, SharedCache, SharedDevice,
    SystemClock, Timestamp,
};
use extant_image::Build;
use extant_image::write::Progress;

/// Counts the bytes that a build has written.
#[derive(Default)]
struct Written(AtomicU64);

impl Progress for Written {
    fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A directory of the host that goes away with the value.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn place() -> std::io::Result<Place> {
    let path = std::env::temp_dir().join(format!("extant-embed-{}", std::process::id()));
    std::fs::create_dir(&path)?;
    Ok(Place(path))
}

/// Makes an image of a small tree.
fn build(place: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let (root, image) = (place.join("root"), place.join("root.img"));
    std::fs::create_dir_all(root.join("etc"))?;
    std::fs::write(root.join("etc/hostname"), "web1\n")?;
    let written = Written::default();
    let built = Build::from_dir(&root)
        .free_bytes(8 << 20)
        .owner(0, 0)
        .label("embed")
        .progress(&written)
        .write_to(&image)?;
    println!(
        "built: {} files, {} bytes, {} of them written",
        built.summary.files,
        built.summary.size_bytes,
        written.0.load(Ordering::Relaxed)
    );
    Ok(image)
}

/// Changes names, contents and attributes; everything is durable when it returns.
fn change(image: &Path) -> Result<(), Box<dyn Error>> {
    let fs = MountOptions::new().read_only(false).open_path(image)?;
    fs.create_dir_all(Path::new("/var/log"), &NewInode::root(0o755))?;
    let mut log = fs.open_options().read(true).append(true).create(true).open("/var/log/build")?;
    writeln!(log, "done")?;
    log.sync()?;
    let mut text = String::new();
    log.seek(SeekFrom::Start(0))?;
    log.read_to_string(&mut text)?;
    assert_eq!(text, "done\n");
    fs.rename("/etc/hostname", "/etc/hostname.old")?;
    fs.write("/etc/hostname", "web2\n")?;
    let before = Timestamp::from(SystemTime::now());
    let made = fs.metadata("/etc/hostname")?.mtime;
    assert!(made.to_system_time().is_some() && made.seconds <= before.seconds + 1);
    fs.unmount()?;
    Ok(())
}

/// Lists the tree, and shows what a path that leads nowhere is told.
fn read(image: &Path) -> Result<(), Box<dyn Error>> {
    let fs = Fs::open_path(image)?;
    for entry in fs.walk("/")?.sorted(true) {
        let entry = entry?;
        println!("{:>8} {}", entry.inode().metadata().size, String::from_utf8_lossy(entry.path()));
    }
    assert_eq!(fs.read_to_string("/etc/hostname")?, "web2\n");
    let error = fs.read("/etc/none/at/all").unwrap_err();
    println!("error {}: {error}", error.code().name());
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.to_string().contains("/etc/none/at/all"));
    assert!(matches!(FsError::ReadOnly.code(), ErrorCode::ReadOnly));
    assert!(fs.write("/etc/hostname", "web3\n").is_err(), "it was opened for reading");
    Ok(())
}

/// The same on a device of the program's own: here memory.
fn in_memory(place: &Path) -> Result<(), Box<dyn Error>> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    Build::from_dir(place.join("root")).size(16 << 20).write_to_device(&*device, true)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let shared: SharedDevice = device;
    let fs = MountOptions::new().read_only(false).clock(clock).open_shared(shared)?;
    fs.write("/note", b"in memory")?;
    println!(
        "in memory: {} bytes, {:?}",
        fs.read("/note")?.len(),
        fs.io_stats().map(|stats| stats.used_bytes)
    );
    fs.unmount()?;
    Ok(())
}

/// A copy of an image that is in use, and both mounted with one cache between them.
fn snapshot(place: &Path, image: &Path) -> Result<(), Box<dyn Error>> {
    let cache = SharedCache::new(64 << 20);
    let options = MountOptions::new().read_only(false).cache(&cache);
    let fs = options.open_path(image)?;
    fs.write("/state", "before")?;
    let copy = place.join("copy.img");
    let frozen = fs.freeze()?;
    std::fs::copy(image, &copy)?;
    frozen.thaw();
    fs.write("/state", "after")?;
    let old = options.open_path(&copy)?;
    assert_eq!(
        (&*old.read_to_string("/state")?, &*fs.read_to_string("/state")?),
        ("before", "after")
    );
    println!("{} mounts share {} bytes", cache.mounts(), cache.stats().used_bytes);
    old.unmount()?;
    fs.unmount()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let place = place()?;
    let image = build(&place.0)?;
    change(&image)?;
    read(&image)?;
    in_memory(&place.0)?;
    snapshot(&place.0, &image)?;
    println!("all done");
    Ok(())
}
