//! A device that stalls holds up those who need it, and nobody else.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use extant::MountOptions;
use extant_block::Operation;
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{Hooked, require, skip};

use crate::events::{Events, Level};
use crate::mount::{KernelOptions, open_and_mount, unmount};
use crate::serve::serve_session;
use crate::session::Session;
use crate::{RingUse, Settings};

/// Threads of the server.
const THREADS: usize = 4;
/// Programs that read what is on the device alone.
const READERS: usize = 6;

/// Reads of a device stop for as long as a test likes.
#[derive(Default)]
struct Stalls {
    stalls: AtomicBool,
    /// Number of reads that wait.
    waiting: AtomicUsize,
}

impl Stalls {
    fn before(&self, batch: &[Operation]) {
        let reads = batch.iter().any(|operation| matches!(operation, Operation::Read { .. }));
        if reads && self.stalls.load(Ordering::SeqCst) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            until("the device goes on", || !self.stalls.load(Ordering::SeqCst));
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = SystemClock.monotonic();
    while !is_so() {
        assert!(SystemClock.monotonic() - start < Duration::from_secs(60), "{what}");
        SystemClock.sleep(Duration::from_millis(1));
    }
}

/// Lets the device go on, also when the test fails.
struct GoesOn<'d>(&'d Stalls, &'d Path);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.stalls.store(false, Ordering::SeqCst);
        if std::thread::panicking() {
            let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(self.1, flags);
        }
    }
}

#[derive(Default)]
struct Ready(AtomicBool);

impl Events for Ready {
    fn ready(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn log(&self, _: Level, text: &str) {
        eprintln!("{text}");
    }
}

#[test]
fn more_stalled_reads_than_threads_do_not_stop_a_mount() {
    if !extant_testkit::oracle::is_root() || !Path::new("/dev/fuse").exists() {
        skip!("needs root and /dev/fuse: mounts");
    }
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at, source) =
        (dir.path().join("image"), dir.path().join("mount"), dir.path().join("source"));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&source).unwrap();
    for number in 0..READERS {
        std::fs::write(source.join(format!("{number}")), vec![number as u8 + 1; 8192]).unwrap();
    }
    std::fs::write(source.join("known"), vec![7; 8192]).unwrap();
    require!(mke2fs(&image, "16M", &["-t", "ext4", "-d", source.to_str().unwrap()]));
    let below = extant_testkit::image::load(&image);
    let device = Hooked::over(below, Stalls::default(), Stalls::before);
    let fs = MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as _).unwrap();
    let settings = Settings {
        threads: THREADS,
        writeback_cache: false,
        ring: RingUse::Never,
        ..Settings::default()
    };
    let ready = Ready::default();
    let connection = open_and_mount(&at, &KernelOptions::new("stalled")).unwrap();
    let session = Session::new(connection, Arc::new(SystemClock));
    threads::scope(|s| {
        let goes_on = GoesOn(&device.state, &at);
        let server =
            s.spawn("server", || serve_session(&session, None, fs, &settings, &ready)).unwrap();
        until("the mount is ready", || ready.0.load(Ordering::SeqCst));
        // Everything but the contents of the numbered files is known.
        for number in 0..READERS {
            assert_eq!(std::fs::metadata(at.join(format!("{number}"))).unwrap().len(), 8192);
        }
        std::fs::write(at.join("known"), [8; 4096]).unwrap();
        // The bitmaps are known as well.
        std::fs::create_dir(at.join("first")).unwrap();
        device.state.stalls.store(true, Ordering::SeqCst);
        let readers: Vec<_> = (0..READERS)
            .map(|number| {
                let path = at.join(format!("{number}"));
                s.spawn("reader", move || std::fs::read(path).unwrap()).unwrap()
            })
            .collect();
        // All threads of the server, and then those that took over.
        until("every reader waits", || device.state.waiting.load(Ordering::SeqCst) == READERS);
        // Others go on: names are looked for, attributes and contents are changed and shown.
        assert!(std::fs::symlink_metadata(at.join("missing")).is_err());
        for round in 0..3u8 {
            std::fs::write(at.join("known"), [round; 4096]).unwrap();
            std::fs::create_dir(at.join(format!("dir{round}"))).unwrap();
        }
        assert_eq!(std::fs::read(at.join("known")).unwrap(), [2; 4096]);
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), READERS + 2 + 1 + 3);
        assert_eq!(device.state.waiting.load(Ordering::SeqCst), READERS, "the device stands still");
        drop(goes_on);
        for (number, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().unwrap(), vec![number as u8 + 1; 8192]);
        }
        let gone = (0..100).find_map(|_| match unmount(&at, false) {
            Err(error) if error.is_busy() => {
                SystemClock.sleep(Duration::from_millis(50));
                None
            }
            other => Some(other),
        });
        gone.expect("in use").unwrap();
        server.join().unwrap().unwrap();
    })
    .unwrap();
}
