//! A mount served by threads of the test itself.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use extant::Fs;
use extant_fuse::mount::{KernelOptions, open_and_mount, unmount};
use extant_fuse::{Events, Level, RingUse, Rings, ServeError, Settings, serve};
use extant_sync::{Clock, Mutex, Rank, SystemClock, threads};

/// Why nothing can be mounted here; `None` when it can.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !extant_testkit::oracle::is_root() {
        return Some("needs root: mounts");
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("needs /dev/fuse");
    }
    None
}

/// Settings for requests over the kernel's rings, or why there are none.
pub(crate) fn over_rings() -> Result<Settings, String> {
    let mut settings = Settings::default();
    settings.ring = RingUse::Always;
    match Rings::prepare(&settings) {
        Ok(_) => Ok(settings),
        Err(obstacle) => Err(obstacle.to_string()),
    }
}

/// What the server said.
pub(crate) struct Heard {
    pub(crate) ready: AtomicBool,
    pub(crate) errors: AtomicU32,
    /// Panics that were caught.
    pub(crate) bugs: AtomicU32,
    pub(crate) lines: Mutex<Vec<String>>,
}

impl Heard {
    pub(crate) fn new() -> Heard {
        Heard {
            ready: AtomicBool::new(false),
            errors: AtomicU32::new(0),
            bugs: AtomicU32::new(0),
            lines: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    pub(crate) fn says(&self, text: &str) -> bool {
        self.lines.lock().iter().any(|line| line.contains(text))
    }
}

impl Events for Heard {
    fn ready(&self) {
        self.ready.store(true, Ordering::SeqCst);
    }

    fn log(&self, level: Level, text: &str) {
        if level == Level::Error {
            self.errors.fetch_add(1, Ordering::SeqCst);
        }
        if text.contains("bug in extant") {
            self.bugs.fetch_add(1, Ordering::SeqCst);
            println!("{text}");
        }
        let mut lines = self.lines.lock();
        if lines.len() < 1000 {
            lines.push(text.to_owned());
        }
    }
}

/// Unmounts lazily when the test fails, so that its thread ends all the same.
struct Unmounter(PathBuf, bool);

impl Drop for Unmounter {
    fn drop(&mut self) {
        if self.1 {
            let _ = unmount(&self.0, true);
        }
    }
}

/// Mounts `fs` at `dir`, calls `use_it`, unmounts; how serving ended, and what `use_it` returned.
pub(crate) fn with_mount<R>(
    fs: Fs,
    dir: &Path,
    settings: &Settings,
    heard: &Heard,
    use_it: impl FnOnce(&Path) -> R,
) -> (Result<(), ServeError>, R) {
    let mut kernel = KernelOptions::new("test");
    kernel.nosuid = true;
    kernel.nodev = true;
    with_mount_as(&kernel, fs, dir, settings, heard, use_it)
}

/// The same for all users, with set-id bits.
pub(crate) fn with_mount_for_all<R>(
    fs: Fs,
    dir: &Path,
    settings: &Settings,
    heard: &Heard,
    use_it: impl FnOnce(&Path) -> R,
) -> (Result<(), ServeError>, R) {
    let mut kernel = KernelOptions::new("test");
    kernel.allow_other = true;
    with_mount_as(&kernel, fs, dir, settings, heard, use_it)
}

/// The same as `kernel` is told.
pub(crate) fn with_mount_as<R>(
    kernel: &KernelOptions,
    fs: Fs,
    dir: &Path,
    settings: &Settings,
    heard: &Heard,
    use_it: impl FnOnce(&Path) -> R,
) -> (Result<(), ServeError>, R) {
    let connection = open_and_mount(dir, kernel).unwrap();
    threads::scope(|s| {
        let mut mounted = Unmounter(dir.to_owned(), true);
        let server = s.spawn("server", || serve(connection, fs, settings, heard)).unwrap();
        let result = use_it(dir);
        // What a killed program has open may take a moment to be closed.
        let unmounted = (0..100).find_map(|_| match unmount(dir, false) {
            Err(error) if error.is_busy() => {
                SystemClock.sleep(Duration::from_millis(50));
                None
            }
            other => Some(other),
        });
        mounted.1 = !matches!(unmounted, Some(Ok(())));
        drop(mounted);
        let served = server.join().unwrap();
        unmounted.expect("still in use after 5 seconds").unwrap();
        (served, result)
    })
    .unwrap()
}
