//! The name space, against the kernel's ext4 on a loop device over the same tmpfs.
//!
//! Both sides run the same work on images made with the same options. The kernel is called through
//! `*at` calls relative to an open directory, which is the cheapest way in; extant through handles
//! of directories and names.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use extant::{Fs, Inode, MountOptions, NewInode, RenameFlags};
use extant_block::FileDevice;
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::oracle::{LoopMount, mke2fs};
use rustix::fs::{AtFlags, Mode, OFlags};

/// Names that a round of work uses at once: a directory of ordinary size.
const NAMES: usize = 1000;

/// One kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Empty files made and removed.
    CreateUnlink,
    /// Directories made and removed.
    MkdirRmdir,
    /// Files renamed in their directory and back.
    Rename,
    /// Attributes of existing names.
    Stat,
    /// Files made and removed, each made durable by a sync.
    CreateUnlinkSync,
}

impl Work {
    /// All of them, with names for the table.
    pub const ALL: [(Work, &'static str); 5] = [
        (Work::CreateUnlink, "create+unlink"),
        (Work::MkdirRmdir, "mkdir+rmdir"),
        (Work::Rename, "rename"),
        (Work::Stat, "stat"),
        (Work::CreateUnlinkSync, "create+unlink, fsync each"),
    ];

    /// Operations per thread in one measurement: about a second of the kernel's work.
    fn operations(self) -> usize {
        match self {
            Work::CreateUnlink | Work::MkdirRmdir | Work::Rename => 100_000,
            Work::Stat => 1_000_000,
            Work::CreateUnlinkSync => 4_000,
        }
    }
}

/// One side of the comparison: a directory per thread.
trait Side: Sync {
    fn create(&self, thread: usize, name: &str) -> Result<()>;
    fn unlink(&self, thread: usize, name: &str) -> Result<()>;
    fn mkdir(&self, thread: usize, name: &str) -> Result<()>;
    fn rmdir(&self, thread: usize, name: &str) -> Result<()>;
    fn rename(&self, thread: usize, from: &str, to: &str) -> Result<()>;
    /// Looks a name up and returns the size, so that nothing is left out.
    fn stat(&self, thread: usize, name: &str) -> Result<u64>;
    /// Makes the directory's changes durable.
    fn sync(&self, thread: usize) -> Result<()>;
}

/// extant, in process.
pub struct Extant {
    fs: Fs,
    dirs: Vec<Inode>,
}

impl Extant {
    /// Mounts the image and makes a directory for each thread.
    pub fn mount(image: &Path, threads: usize) -> Result<Extant> {
        let device = FileDevice::open_read_write(image)?;
        let fs = MountOptions::new().read_only(false).open(device)?;
        let root = fs.root()?;
        let make = |thread: usize| root.mkdir(format!("t{thread}"), &NewInode::root(0o755));
        let dirs = (0..threads).map(make).collect::<Result<_, _>>()?;
        Ok(Extant { fs, dirs })
    }

    /// Ends the mount; the image is left clean.
    pub fn unmount(self) -> Result<()> {
        drop(self.dirs);
        Ok(self.fs.unmount()?)
    }

    /// The file system, for its counters.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }
}

impl Side for Extant {
    fn create(&self, thread: usize, name: &str) -> Result<()> {
        self.dirs[thread].create(name, &NewInode::root(0o644))?;
        Ok(())
    }

    fn unlink(&self, thread: usize, name: &str) -> Result<()> {
        Ok(self.dirs[thread].unlink(name)?)
    }

    fn mkdir(&self, thread: usize, name: &str) -> Result<()> {
        self.dirs[thread].mkdir(name, &NewInode::root(0o755))?;
        Ok(())
    }

    fn rmdir(&self, thread: usize, name: &str) -> Result<()> {
        Ok(self.dirs[thread].rmdir(name)?)
    }

    fn rename(&self, thread: usize, from: &str, to: &str) -> Result<()> {
        let dir = &self.dirs[thread];
        Ok(dir.rename(from, dir, to, RenameFlags::empty())?)
    }

    fn stat(&self, thread: usize, name: &str) -> Result<u64> {
        Ok(self.dirs[thread].stat(name)?.size)
    }

    fn sync(&self, thread: usize) -> Result<()> {
        Ok(self.dirs[thread].sync()?)
    }
}

/// The kernel's ext4 on a loop device.
pub struct Kernel {
    mount: Option<LoopMount>,
    dirs: Vec<OwnedFd>,
}

impl Kernel {
    /// Mounts the image and makes a directory for each thread.
    ///
    /// # Errors
    ///
    /// The reason why it cannot: no root, no loop devices.
    pub fn mount(image: &Path, threads: usize) -> Result<Kernel> {
        let mount = LoopMount::read_write(image).map_err(anyhow::Error::msg)?;
        let mut dirs = Vec::new();
        for thread in 0..threads {
            let path = mount.path().join(format!("t{thread}"));
            std::fs::create_dir(&path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            dirs.push(rustix::fs::open(&path, flags, Mode::empty())?);
        }
        Ok(Kernel { mount: Some(mount), dirs })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.dirs.clear();
        self.mount = None;
    }
}

impl Side for Kernel {
    fn create(&self, thread: usize, name: &str) -> Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mode = Mode::from_raw_mode(0o644);
        drop(rustix::fs::openat(self.dirs[thread].as_fd(), name, flags, mode)?);
        Ok(())
    }

    fn unlink(&self, thread: usize, name: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.dirs[thread], name, AtFlags::empty())?)
    }

    fn mkdir(&self, thread: usize, name: &str) -> Result<()> {
        let mode = Mode::from_raw_mode(0o755);
        Ok(rustix::fs::mkdirat(&self.dirs[thread], name, mode)?)
    }

    fn rmdir(&self, thread: usize, name: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.dirs[thread], name, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, thread: usize, from: &str, to: &str) -> Result<()> {
        let dir = &self.dirs[thread];
        Ok(rustix::fs::renameat(dir, from, dir, to)?)
    }

    fn stat(&self, thread: usize, name: &str) -> Result<u64> {
        let stat = rustix::fs::statat(&self.dirs[thread], name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_size as u64)
    }

    fn sync(&self, thread: usize) -> Result<()> {
        Ok(rustix::fs::fsync(&self.dirs[thread])?)
    }
}

/// The share of one thread. Returns a sum of sizes, so that nothing can be left out.
fn work(
    side: &dyn Side,
    work: Work,
    operations: usize,
    thread: usize,
    names: &[[String; 2]],
) -> Result<u64> {
    let rounds = operations / names.len().max(1);
    let mut sum = 0;
    for _ in 0..rounds.max(1) {
        match work {
            Work::CreateUnlink => {
                for [name, _] in names {
                    side.create(thread, name)?;
                }
                for [name, _] in names {
                    side.unlink(thread, name)?;
                }
            }
            Work::MkdirRmdir => {
                for [name, _] in names {
                    side.mkdir(thread, name)?;
                }
                for [name, _] in names {
                    side.rmdir(thread, name)?;
                }
            }
            Work::Rename => {
                for [name, other] in names {
                    side.rename(thread, name, other)?;
                }
                for [name, other] in names {
                    side.rename(thread, other, name)?;
                }
            }
            Work::Stat => {
                for [name, _] in names {
                    sum += 1 + side.stat(thread, name)?;
                }
            }
            Work::CreateUnlinkSync => {
                for [name, _] in names {
                    side.create(thread, name)?;
                    side.sync(thread)?;
                    side.unlink(thread, name)?;
                    side.sync(thread)?;
                }
            }
        }
    }
    Ok(sum)
}

/// Names of one thread's directory, and what each is renamed to.
fn names() -> Vec<[String; 2]> {
    (0..NAMES).map(|at| [format!("file-{at:05}"), format!("other-{at:05}")]).collect()
}

/// Runs `kind` on `side` with `count` threads; the result is in microseconds per operation, all
/// threads together.
fn measure(side: &dyn Side, kind: Work, operations: usize, count: usize) -> Result<f64> {
    let names = names();
    if matches!(kind, Work::Rename | Work::Stat) {
        for thread in 0..count {
            for [name, _] in &names {
                side.create(thread, name)?;
            }
        }
    }
    let clock = SystemClock;
    let start = clock.monotonic();
    let done = threads::scope(|scope| -> Result<()> {
        let mut handles = Vec::new();
        for thread in 0..count {
            let names = &names;
            let run = move || work(side, kind, operations, thread, names);
            handles.push(scope.spawn(&format!("bench-{thread}"), run)?);
        }
        for handle in handles {
            handle.join()??;
        }
        Ok(())
    });
    done??;
    let elapsed: Duration = clock.monotonic() - start;
    if matches!(kind, Work::Rename | Work::Stat) {
        for thread in 0..count {
            for [name, _] in &names {
                side.unlink(thread, name)?;
            }
        }
    }
    let rounds = (operations / names.len()).max(1);
    let per_round = match kind {
        Work::Stat => names.len(),
        Work::CreateUnlink | Work::MkdirRmdir | Work::Rename | Work::CreateUnlinkSync => {
            2 * names.len()
        }
    };
    Ok(elapsed.as_secs_f64() * 1e6 / (rounds * per_round * count) as f64)
}

/// One measurement of one side.
#[derive(Clone, Debug)]
pub struct Sample {
    /// `extant` or `ext4`.
    pub target: &'static str,
    /// The row of the table.
    pub row: String,
    /// Microseconds per operation.
    pub micros: f64,
    /// For extant: commits, inodes encoded and bytes journaled per operation.
    pub counters: Option<[f64; 3]>,
}

/// Makes an image for one side.
fn image(dir: &Path, name: &str) -> Result<std::path::PathBuf> {
    let path = dir.join(name);
    let _ = std::fs::remove_file(&path);
    mke2fs(&path, "1G", &["-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
        .map_err(anyhow::Error::msg)?;
    Ok(path)
}

/// One round: every kind of work with one and two threads, on fresh images, sides taking turns; `1/divide` of the usual
/// number of operations.
pub fn round(dir: &Path, divide: usize) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (kind, name) in Work::ALL {
        let operations = kind.operations() / divide.max(1);
        for count in [1, 2] {
            let row = format!("{name}, {count} thread{}", if count == 1 { "" } else { "s" });
            {
                let image = image(dir, "extant.img")?;
                let side = Extant::mount(&image, count).context("extant")?;
                let before = side.fs().writer_stats();
                let micros = measure(&side, kind, operations, count).context("extant")?;
                // A round makes and unmakes, but for the one that only looks.
                let each = if kind == Work::Stat { 1 } else { 2 };
                let per = (each * operations * count).max(1) as f64;
                let counters = before.zip(side.fs().writer_stats()).map(|(before, after)| {
                    let per = |after: u64, before: u64| (after - before) as f64 / per;
                    let (old, new) = (before.journal, after.journal);
                    [
                        per(new.commits, old.commits),
                        per(after.inodes_encoded, before.inodes_encoded),
                        per(new.blocks_logged, old.blocks_logged)
                            * f64::from(side.fs().block_size().bytes()),
                    ]
                });
                side.unmount()?;
                samples.push(Sample { target: "extant", row: row.clone(), micros, counters });
            }
            {
                let image = image(dir, "kernel.img")?;
                let side = match Kernel::mount(&image, count) {
                    Ok(side) => side,
                    Err(why) => {
                        println!("kernel ext4 is left out: {why}");
                        continue;
                    }
                };
                let micros = measure(&side, kind, operations, count).context("kernel ext4")?;
                samples.push(Sample { target: "ext4", row, micros, counters: None });
            }
        }
    }
    Ok(samples)
}

/// Only extant, one kind of work: what a profiler looks at. 0 operations: as many as usual.
pub fn only(dir: &Path, wanted: &str, operations: usize, count: usize) -> Result<f64> {
    let (kind, _) = Work::ALL
        .into_iter()
        .find(|(_, name)| *name == wanted)
        .with_context(|| format!("no work is called {wanted}"))?;
    let image = image(dir, "extant.img")?;
    let side = Arc::new(Extant::mount(&image, count)?);
    let operations = if operations == 0 { kind.operations() } else { operations };
    measure(&*side, kind, operations, count)
}
