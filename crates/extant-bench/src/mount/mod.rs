//! Mounted file systems as programs see them: the kernel's ext4 on a loop device, `extant mount`
//! and `fuse2fs`, in one run.
//!
//! All work goes through system calls on a mount, by this process or by `tar`, `find` and `rm`.
//! Images are files in the same tmpfs, whose pages were all there before, made by mke2fs with the
//! same options. Each session begins with a fresh mount; contenders take turns within each session
//! of each round. All rows are rates, so a ratio above 1 is always the better one.

pub mod rows;
pub mod target;
pub mod tree;
pub mod work;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::rows::{DIRECT_BYTES, Session, Until, bars};
use self::target::{Mounted, Target, drop_caches};
use self::tree::Contents;
use crate::io::kernel;
use crate::report::{Series, add, report};
use crate::stop;

/// Room on an image besides two files: the tree, the journal, metadata.
const ROOM_BYTES: u64 = 1 << 30;
/// The file that is read.
const FILE: &str = "data";
/// The archive that is unpacked.
const ARCHIVE: &str = "tree.tar";

/// What is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rounds.
    pub rounds: u32,
    /// Bytes of a file: a multiple of 1 MiB.
    pub file_bytes: u64,
    /// Files of the tree.
    pub tree_files: u64,
    /// Length of one run of what is counted by time.
    pub length: Duration,
    /// Only rows whose name has one of these in it; all when empty.
    pub rows: Vec<String>,
    /// Only these contenders; all when empty.
    pub targets: Vec<String>,
}

impl Settings {
    fn has_row(&self, name: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| name.contains(wanted.as_str()))
    }

    fn sessions(&self) -> Vec<Session> {
        let wanted = |session: &Session| session.rows().iter().any(|row| self.has_row(row));
        Session::all().into_iter().filter(wanted).collect()
    }
}

/// A run: images in a directory.
struct Bench<'a> {
    dir: &'a Path,
    settings: &'a Settings,
    contents: Option<Contents>,
    /// What extant counted of waits for locks, while most clients were at work.
    lock_waits: RefCell<Option<String>>,
}

type Cells = Vec<(String, f64)>;

impl Bench<'_> {
    fn image(&self, target: Target) -> PathBuf {
        self.dir.join(format!("{}.img", target.name()))
    }

    fn mount(&self, target: Target) -> Result<Mounted> {
        Mounted::new(target, &self.image(target))
    }

    /// Makes an image and the file that is read.
    fn prepare(&self, target: Target) -> Result<()> {
        let path = self.image(target);
        kernel::zeros(&path, 2 * self.settings.file_bytes + ROOM_BYTES)?;
        kernel::make_ext4(&path)?;
        let mounted = self.mount(target)?;
        if self.settings.sessions().into_iter().any(Session::reads) {
            work::write(
                &mounted.path(FILE),
                self.settings.file_bytes,
                DIRECT_BYTES,
                Until::Synced,
            )?;
        }
        mounted.close()
    }

    /// Runs one session on one contender.
    fn cells(&self, target: Target, session: Session) -> Result<Cells> {
        let mounted = self.mount(target)?;
        let row = session.to_string();
        let rate = match session {
            Session::Tree => return self.tree(target, mounted),
            Session::Write { block_bytes, until } => {
                let path = mounted.path("new");
                let rate = work::write(&path, self.settings.file_bytes, block_bytes, until)?;
                std::fs::remove_file(path)?;
                rate
            }
            Session::Read { block_bytes, is_cold } => {
                drop_caches()?;
                let path = mounted.path(FILE);
                if !is_cold {
                    work::read(&path, 1 << 20, DIRECT_BYTES)?;
                }
                work::read(&path, block_bytes, DIRECT_BYTES)?
            }
            Session::Direct { is_write, threads } => {
                work::direct(&mounted.path(FILE), is_write, threads, self.settings.length)?
            }
            Session::Clients(count) => {
                let rate = work::clients(&mounted.path(""), count, self.settings.length)?;
                if target == Target::Extant {
                    self.lock_waits.replace(mounted.lock_waits());
                }
                rate
            }
        };
        mounted.close()?;
        Ok(vec![(row, rate)])
    }

    fn tree(&self, target: Target, mounted: Mounted) -> Result<Cells> {
        let contents = self.contents.context("the archive is there")?;
        let archive = self.dir.join(ARCHIVE);
        let files = contents.files as f64;
        let os = OsStr::new;
        let root = mounted.path("");
        let unpack = [os("-xf"), archive.as_os_str(), os("-C"), root.as_os_str()];
        let untar = work::timed(|| work::program("tar", &unpack).map(drop))?;
        let unmount = work::timed(|| mounted.close())?;
        let mounted = self.mount(target)?;
        drop_caches()?;
        let tree = mounted.path("tree");
        let walk = || {
            let args = [tree.as_os_str(), os("-printf"), os("%s\n")];
            let found = work::program("find", &args)?;
            ensure!(found == contents.entries, "find finds {found} of {}", contents.entries);
            Ok(())
        };
        let cold = work::timed(walk)?;
        // What the first walk changes, access times, is known after the second.
        walk()?;
        let warm = work::timed(walk)?;
        let args = [os("-r"), tree.as_os_str()];
        let remove = work::timed(|| work::program("rm", &args).map(drop))?;
        mounted.close()?;
        let cells = [
            (rows::UNTAR, untar),
            (rows::UNTAR_UNMOUNT, untar + unmount),
            (rows::FIND_COLD, cold),
            (rows::FIND_WARM, warm),
            (rows::REMOVE, remove),
        ];
        Ok(cells.map(|(row, seconds)| (row.to_owned(), files / seconds)).to_vec())
    }
}

/// Which contenders can run here; says why the others cannot.
fn contenders(bench: &Bench<'_>) -> Result<Vec<Target>> {
    let mut here = Vec::new();
    for target in Target::ALL {
        let wanted = &bench.settings.targets;
        if !wanted.is_empty() && !wanted.iter().any(|one| one == target.name()) {
            continue;
        }
        match bench.prepare(target) {
            Ok(()) => here.push(target),
            Err(why) if target == Target::Extant => return Err(why),
            Err(why) => {
                println!("{} is left out: {why:#}", target.name());
                let _ = std::fs::remove_file(bench.image(target));
            }
        }
    }
    Ok(here)
}

/// Runs everything on images in `dir`, prints the table, and writes `target/bench/mount.json`.
///
/// # Errors
///
/// Errors of a contender; contents that are not what was written; an image that e2fsck does not
/// find clean; a signal.
pub fn mount(dir: &Path, settings: &Settings) -> Result<()> {
    extant_testkit::oracle::root("mounts images and drops caches").map_err(anyhow::Error::msg)?;
    ensure!(
        settings.file_bytes > 0 && settings.file_bytes.is_multiple_of(1 << 20),
        "the size of a file is a multiple of 1 MiB, not {}",
        settings.file_bytes
    );
    let sessions = settings.sessions();
    ensure!(!sessions.is_empty(), "no row is called {}", settings.rows.join(" or "));
    let mut bench = Bench { dir, settings, contents: None, lock_waits: RefCell::default() };
    if sessions.contains(&Session::Tree) {
        let contents = tree::write_archive(&dir.join(ARCHIVE), settings.tree_files)?;
        println!("the tree: {} files, {} MiB", contents.files, contents.bytes >> 20);
        bench.contents = Some(contents);
    }
    let targets = contenders(&bench)?;
    let mut all = Vec::new();
    for round in 0..settings.rounds {
        for session in &sessions {
            print!("round {}, {session:<16}", round + 1);
            let first = round as usize % targets.len().max(1);
            for target in targets.iter().cycle().skip(first).take(targets.len()) {
                stop::check()?;
                let name = target.name();
                let cells = bench.cells(*target, *session);
                for (row, rate) in cells.with_context(|| format!("{name}, {session}"))? {
                    print!("  {name} {rate:.0}");
                    add(&mut all, &row, target.name(), session.unit(), rate);
                }
            }
            println!();
        }
    }
    for target in &targets {
        kernel::check_ext4(&bench.image(*target))?;
    }
    // In the order of the table, whoever began a round.
    let order = |series: &Series| {
        let rows = sessions.iter().flat_map(|session| session.rows());
        let row = rows.into_iter().position(|row| row == series.row);
        (row, Target::ALL.iter().position(|target| target.name() == series.target))
    };
    all.sort_by_key(order);
    all.retain(|series| settings.has_row(&series.row));
    report("mount", Target::Ext4.name(), &all)?;
    print_bars(&all);
    if let Some(waits) = bench.lock_waits.take() {
        println!("extant, clients, last run: {waits}");
    }
    Ok(())
}

/// Prints which bars are met, and how the clients scale.
fn print_bars(all: &[Series]) {
    let rate = |row: &str, target: &str| {
        let same = |series: &&Series| series.row == row && series.target == target;
        all.iter().find(same).map(Series::median)
    };
    println!();
    let mut missed = 0;
    let own = all.iter().filter(|series| series.target == Target::Extant.name());
    for series in own {
        for bar in bars(&series.row) {
            let Some(other) = rate(&series.row, bar.of) else { continue };
            let ratio = series.median() / other;
            let is_met = ratio >= bar.times;
            missed += u32::from(!is_met);
            let verdict = if is_met { "met" } else { "MISSED" };
            println!("{:<16} {ratio:>6.2} x {}, bar {}: {verdict}", series.row, bar.of, bar.times);
        }
    }
    for target in Target::ALL {
        let of = |count: usize| rate(&Session::Clients(count).to_string(), target.name());
        if let (Some(one), Some(two), Some(eight)) = (of(1), of(2), of(8)) {
            let (two, eight) = (two / one, eight / one);
            println!("{}: 2 clients do {two:.2} times as much as 1, 8 {eight:.2}", target.name());
        }
    }
    println!("{missed} bars missed");
}

/// One session on extant alone (or on the contenders asked for), for a profiler.
///
/// # Errors
///
/// Those of [`mount`]; no session of this name.
pub fn one(dir: &Path, settings: &Settings, wanted: &str) -> Result<()> {
    let settings = Settings { rows: Vec::new(), ..settings.clone() };
    let session = Session::all().into_iter().find(|session| session.to_string() == wanted);
    let session = session.with_context(|| format!("no session is called {wanted}"))?;
    let mut bench =
        Bench { dir, settings: &settings, contents: None, lock_waits: RefCell::default() };
    if session == Session::Tree {
        bench.contents = Some(tree::write_archive(&dir.join(ARCHIVE), settings.tree_files)?);
    }
    for target in contenders(&bench)? {
        for _ in 0..settings.rounds {
            for (row, rate) in bench.cells(target, session)? {
                println!("{:<8} {row:<16} {rate:.1} {}", target.name(), session.unit());
            }
        }
        kernel::check_ext4(&bench.image(target))?;
    }
    Ok(())
}
