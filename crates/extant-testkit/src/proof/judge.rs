//! Looks at every state that a cut may leave.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::{BlockDevice as _, MemoryDevice, RecordingDevice, SharedDevice};
use extant_format::features::Compat;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_sync::FixedClock;

use super::contents::Moment;
use super::record::{Recorded, tail};
use super::{EPOCH, Target};
use crate::crash::{CrashState, Fate, History, Report, Sampling, run};
use crate::image;
use crate::model::{Rules, Tree};
use crate::oracle;

/// States of the second cut that follow one state of the first.
const SECOND_CUT_SAMPLES: usize = 12;

/// Returns whether `e2fsck -fy` repaired something that no replay leaves behind. A superblock's
/// totals are brought up to date when it is unmounted, by Linux too; and e2fsck empties an orphan
/// file by itself. It also forgets the attribute block of an orphan that has no other blocks, of
/// images of Linux, too. A tree of extents may be higher than it must be, after a truncation.
fn repairs(text: &str) -> bool {
    let orphans = text.contains("Clearing orphaned inode");
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().any(|(at, line)| {
        let before = at.checked_sub(1).and_then(|at| lines.get(at)).unwrap_or(&"");
        let usual = before.starts_with("Free blocks count wrong (")
            || before.starts_with("Free inodes count wrong (")
            || before.starts_with("Orphan file (inode ")
            || orphans && before.starts_with("Block bitmap differences:  -")
            || orphans && before.starts_with("Free blocks count wrong for group")
            || before.starts_with("Feature orphan_present is set but orphan file is clean")
            || line.contains("extent tree") && line.contains("could be");
        line.contains("? yes") && !usual
    })
}

/// Returns whether `e2fsck -fy`, which said `text`, truncated an orphan of an image with clusters. It frees a
/// cluster once and leaves all blocks of it but the first in the map, and then finds them there; with
/// files that Linux wrote, too.
fn truncates_clusters(device: &MemoryDevice, text: &str) -> Result<bool, String> {
    if !text.contains("Truncating orphaned inode") {
        return Ok(false);
    }
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).map_err(|error| error.to_string())?;
    let superblock = Superblock::decode(&bytes).map_err(|error| error.to_string())?;
    Ok(superblock.bigalloc())
}

/// How thoroughly a history is looked at.
pub struct Proof<'a, T> {
    /// The file system.
    pub target: &'a T,
    /// Which states.
    pub sampling: Sampling,
    /// On how many threads.
    pub threads: usize,
    /// `e2fsck -fn` after one in this many; 0 for none.
    pub fsck_one_in: u64,
    /// `e2fsck -fy` on one in this many, as it was cut; 0 for none.
    pub replay_one_in: u64,
    /// A mount by the running kernel of one in this many, as it was cut; 0 for none.
    pub kernel_one_in: u64,
    /// Cuts power again during the recovery of one in this many; 0 for none.
    pub again_one_in: u64,
    /// The one state to look at.
    pub only: Option<String>,
}

/// What was done, for the log and for the documents.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    /// Histories.
    pub histories: u64,
    /// Cuts.
    pub cuts: u64,
    /// States mounted, compared and checked.
    pub states: u64,
    /// States of a second cut, during recovery.
    pub second: u64,
    /// Runs of `e2fsck -fn`.
    pub fsck: u64,
    /// Runs of `e2fsck -fy`.
    pub replays: u64,
    /// Those of them that say nothing, because e2fsck truncates no orphan of whole clusters.
    pub exempt: u64,
    /// Mounts by the kernel.
    pub kernel: u64,
}

impl Counts {
    /// Adds up.
    pub fn add(&mut self, other: &Counts) {
        self.histories += other.histories;
        self.cuts += other.cuts;
        self.states += other.states;
        self.second += other.second;
        self.fsck += other.fsck;
        self.replays += other.replays;
        self.exempt += other.exempt;
        self.kernel += other.kernel;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { histories, cuts, states, second, fsck, replays, exempt, kernel } = self;
        write!(
            f,
            "{histories} histories, {cuts} cuts, {states} states, {second} states of a second \
             cut, {fsck} e2fsck -fn, {replays} e2fsck -fy ({exempt} of them exempt), {kernel} \
             mounts by the kernel"
        )
    }
}

#[derive(Default)]
struct Tally {
    second: AtomicU64,
    fsck: AtomicU64,
    replays: AtomicU64,
    exempt: AtomicU64,
    kernel: AtomicU64,
}

impl<'a, T: Target> Proof<'a, T> {
    /// Looks at the states that `sampling` chooses, on all processors, with some of each of the
    /// expensive checks.
    pub fn new(target: &'a T, sampling: Sampling) -> Proof<'a, T> {
        Proof {
            target,
            sampling,
            threads: extant_sync::threads::available(),
            fsck_one_in: 200,
            replay_one_in: 400,
            kernel_one_in: 400,
            again_one_in: 100,
            only: super::env::state(),
        }
    }

    /// Looks at every chosen state of a scenario.
    pub fn prove(&self, recorded: &Recorded) -> (Report, Counts) {
        let verdict = |marks: usize, tree: &Tree| {
            let step = recorded.step_at(marks);
            judge(recorded, step.synced..step.begun + 1, marks, tree)
        };
        let kernel_one_in = if recorded.kernel { self.kernel_one_in } else { 0 };
        let own = Proof { kernel_one_in, ..self.copy() };
        own.prove_history(&recorded.history, &recorded.rules, &recorded.base, verdict)
    }

    fn copy(&self) -> Proof<'a, T> {
        let (sampling, only) = (self.sampling.clone(), self.only.clone());
        Proof { sampling, only, ..*self }
    }

    /// Looks at every chosen state of a history. `verdict` gets the number of marks before the cut
    /// and the tree that was found.
    pub fn prove_history(
        &self,
        history: &History,
        rules: &Rules,
        name: &str,
        verdict: impl Fn(usize, &Tree) -> Result<(), String> + Sync,
    ) -> (Report, Counts) {
        let tally = Tally::default();
        let check = |state: &CrashState| {
            let salt = history.events().len();
            self.look_at(state, salt, rules, &tally, &verdict)
                .map_err(|text| format!("{name}: {text}"))
        };
        let only = self.only.as_deref();
        let report = run(history, &self.sampling, self.threads, only, check);
        let counts = Counts {
            histories: 1,
            cuts: report.cuts,
            states: report.states,
            second: tally.second.into_inner(),
            fsck: tally.fsck.into_inner(),
            replays: tally.replays.into_inner(),
            exempt: tally.exempt.into_inner(),
            kernel: tally.kernel.into_inner(),
        };
        (report, counts)
    }

    fn look_at(
        &self,
        state: &CrashState,
        salt: usize,
        rules: &Rules,
        tally: &Tally,
        verdict: &(impl Fn(usize, &Tree) -> Result<(), String> + Sync),
    ) -> Result<(), String> {
        let raw = || self.target.disks(&state.devices);
        if let Some(dir) = std::env::var_os("EXTANT_SAVE") {
            for (number, device) in state.devices.iter().enumerate() {
                let name = format!("{}-{number}", state.name());
                image::save(device, &Path::new(&dir).join(name));
            }
        }
        let chosen = |one_in, kind| self.chosen(state, salt, one_in, kind);
        let (found, after) = if chosen(self.again_one_in, 1) {
            let recorders = over(&state.devices);
            let shared: Vec<SharedDevice> =
                recorders.iter().map(|r| Arc::clone(r) as SharedDevice).collect();
            let found = self.recover(&shared, rules)?;
            verdict(state.marks, &found)?;
            self.cut_again(&recorders, rules, &found, tally)?;
            let after: Vec<MemoryDevice> = recorders.iter().map(|r| r.contents()).collect();
            (found, after)
        } else {
            let after: Vec<Arc<MemoryDevice>> =
                state.devices.iter().map(|device| Arc::new(device.snapshot())).collect();
            let shared: Vec<SharedDevice> =
                after.iter().map(|device| Arc::clone(device) as SharedDevice).collect();
            let found = self.recover(&shared, rules)?;
            verdict(state.marks, &found)?;
            (found, after.iter().map(|device| device.snapshot()).collect())
        };
        let fsck = chosen(self.fsck_one_in, 2);
        self.settled(&after, fsck, tally)?;
        // Newer kernels and extant take a commit block for whole of which only the first sector
        // arrived; older ones and e2fsck do not. Nobody was promised anything yet.
        let torn = |(_, fate): &(usize, Fate)| !matches!(fate, Fate::Kept | Fate::Lost);
        let torn = state.fates.iter().any(torn);
        if chosen(self.replay_one_in, 3) {
            tally.replays.fetch_add(1, Ordering::Relaxed);
            let is_allowed = |theirs: &Tree| torn && verdict(state.marks, theirs).is_ok();
            if !self.replay_elsewhere(&raw()?, rules, &found, is_allowed)? {
                tally.exempt.fetch_add(1, Ordering::Relaxed);
                // It shall at least agree with what we made of the state.
                if !fsck {
                    self.settled(&after, true, tally)?;
                }
            }
        }
        if chosen(self.kernel_one_in, 4) && state.devices.len() == 1 && oracle::is_root() {
            tally.kernel.fetch_add(1, Ordering::Relaxed);
            let theirs = self.replay_by_kernel(&raw()?, rules)?;
            let (found, theirs) =
                (comparable(&found, rules), theirs.map(|t| comparable(&t, rules)));
            if let Some(theirs) = theirs.filter(|tree| tree.fingerprint() != found.fingerprint())
                && !(torn && verdict(state.marks, &theirs).is_ok())
            {
                let lines = found.differences(&theirs).join("\n");
                return Err(format!("our replay | the kernel's replay:\n{lines}"));
            }
        }
        Ok(())
    }

    /// One state in `one_in`, the same ones every time, and other ones for each `kind`.
    fn chosen(&self, state: &CrashState, salt: usize, one_in: u64, kind: u64) -> bool {
        let mut hasher = DefaultHasher::new();
        (self.sampling.seed, salt, state.cut, state.number, kind).hash(&mut hasher);
        one_in != 0 && hasher.finish().is_multiple_of(one_in)
    }

    /// Mounts, looks at every node, unmounts.
    fn recover(&self, devices: &[SharedDevice], rules: &Rules) -> Result<Tree, String> {
        // Later than anything in the history, as time is.
        let clock = Arc::new(FixedClock::at(EPOCH + 10_000_000, 0));
        let fs = self
            .target
            .mount(devices, clock)
            .map_err(|error| format!("cannot mount after the cut: {error}"))?;
        let tree = self
            .target
            .snapshot(&fs, rules)
            .map_err(|error| format!("cannot read everything after the cut: {error}"))?;
        self.target
            .unmount(fs)
            .map_err(|error| format!("cannot unmount after the cut: {error}"))?;
        Ok(tree)
    }

    /// V3.
    fn settled(&self, after: &[MemoryDevice], fsck: bool, tally: &Tally) -> Result<(), String> {
        let checked = self.target.check(after);
        let clean = checked.map_err(|text| format!("the checker finds:\n{text}"))?;
        if fsck && clean {
            tally.fsck.fetch_add(1, Ordering::Relaxed);
            e2fsck(&self.target.disks(after)?, "-fn", |report, _| {
                if report.is_clean() {
                    Ok(())
                } else {
                    Err(format!("e2fsck -fn:\n{}", report.text))
                }
            })?;
        }
        Ok(())
    }

    /// V4.
    fn cut_again(
        &self,
        recorders: &[Arc<RecordingDevice>],
        rules: &Rules,
        found: &Tree,
        tally: &Tally,
    ) -> Result<(), String> {
        let devices: Vec<&RecordingDevice> = recorders.iter().map(|r| &**r).collect();
        let history = History::of(&devices);
        let cuts = history.cuts().len() as u64;
        let sampling = Sampling {
            seed: self.sampling.seed,
            exhaustive_max: 1,
            samples: 5,
            one_cut_in: cuts / SECOND_CUT_SAMPLES as u64 + 1,
            tears: 3,
            whole: self.sampling.whole.clone(),
        };
        let print = found.fingerprint();
        let report = run(&history, &sampling, 1, None, |state| {
            tally.second.fetch_add(1, Ordering::Relaxed);
            let shared: Vec<SharedDevice> = state
                .devices
                .iter()
                .map(|device| Arc::new(device.snapshot()) as SharedDevice)
                .collect();
            let again = self.recover(&shared, rules)?;
            if again.fingerprint() == print {
                return Ok(());
            }
            Err(format!("first | second:\n{}", found.differences(&again).join("\n")))
        });
        match report.failures.first() {
            None => Ok(()),
            Some(failure) => Err(format!("power failed again during recovery: {failure}")),
        }
    }

    /// V5. `false` if e2fsck is known to do such a state harm, whoever left it.
    fn replay_elsewhere(
        &self,
        raw: &[MemoryDevice],
        rules: &Rules,
        found: &Tree,
        is_allowed: impl Fn(&Tree) -> bool,
    ) -> Result<bool, String> {
        if makes_fast_commits(&raw[0])? && !replayed_alone(raw)? {
            return Ok(false);
        }
        e2fsck(raw, "-fy", |report, files| {
            // It forgets attribute values in inodes of their own when it deletes an orphan that had
            // them, and finds them again in the same run; with images of Linux, too.
            let forgets = report.text.contains("Clearing orphaned inode")
                && report.text.contains("Unattached inode");
            if forgets {
                return Ok(true);
            }
            if repairs(&report.text) && truncates_clusters(&raw[0], &report.text)? {
                return Ok(false);
            }
            if !matches!(report.status, Some(0 | 1)) || repairs(&report.text) {
                return Err(format!("e2fsck -fy of the cut image:\n{}", report.text));
            }
            let shared: Vec<SharedDevice> =
                files.iter().map(|file| Arc::new(image::load(file)) as SharedDevice).collect();
            let theirs = comparable(&self.recover(&shared, rules)?, rules);
            let found = comparable(found, rules);
            // It takes a commit block of which only a part arrived for a broken one.
            let is_torn = report.text.contains("was corrupt, replay was aborted");
            if theirs.fingerprint() == found.fingerprint() || is_torn && is_allowed(&theirs) {
                return Ok(true);
            }
            let lines = found.differences(&theirs).join("\n");
            Err(format!("our replay | e2fsck's replay:\n{lines}\n{}", report.text))
        })
    }

    /// V5, with the running kernel: what it leaves, `None` where there are no loop devices.
    fn replay_by_kernel(
        &self,
        raw: &[MemoryDevice],
        rules: &Rules,
    ) -> Result<Option<Tree>, String> {
        let Some(after) = kernel_replay(&raw[0])? else { return Ok(None) };
        let shared = [Arc::new(after.snapshot()) as SharedDevice];
        let theirs = self.recover(&shared, rules)?;
        e2fsck(&[after], "-fn", |report, _| {
            let text = &report.text;
            if report.is_clean() { Ok(()) } else { Err(format!("after the kernel's:\n{text}")) }
        })?;
        Ok(Some(theirs))
    }
}

/// Returns whether a file system has the feature `fast_commit`.
fn makes_fast_commits(device: &MemoryDevice) -> Result<bool, String> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).map_err(|error| error.to_string())?;
    let superblock = Superblock::decode(&bytes).map_err(|error| error.to_string())?;
    Ok(superblock.features.has_compat(Compat::FAST_COMMIT))
}

/// V5, with nothing but the journal: what e2fsck's replay leaves is clean, but for orphans, which it
/// leaves to the next run. `false` where it drops the log because it finds the head of fast commits
/// that a full commit has just replaced.
fn replayed_alone(raw: &[MemoryDevice]) -> Result<bool, String> {
    let only: &[&str] = &["-E", "journal_only"];
    e2fsck_with(raw, "-fy", only, |replay, files| {
        if replay.text.contains("Invalid argument while recovering journal") {
            return Ok(false);
        }
        let after = oracle::e2fsck_as(&files[0], "-fn", &[])?;
        let orphans = after.text.contains("orphan") || after.text.contains("Orphan");
        // The totals in the superblock are as old as its last full copy, of Linux's images, too.
        let totals = after.text.lines().all(|line| !line.contains("? no"))
            || after.text.lines().filter(|line| line.contains("? no")).count()
                == after.text.matches("blocks count wrong (").count()
                    + after.text.matches("inodes count wrong (").count();
        if after.is_clean() || orphans || totals {
            return Ok(true);
        }
        let (said, found) = (&replay.text, &after.text);
        Err(format!("e2fsck -E journal_only:\n{said}\nand then e2fsck -fn:\n{found}"))
    })
}

/// Returns what the kernel's mount leaves of a state; `None` where there are no loop devices.
fn kernel_replay(device: &MemoryDevice) -> Result<Option<MemoryDevice>, String> {
    let dir = scratch()?;
    let file = dir.path().join("image");
    image::save(device, &file);
    match oracle::LoopMount::read_write(&file) {
        Ok(mount) => drop(mount),
        Err(_) => return Ok(None),
    }
    Ok(Some(image::load(&file)))
}

/// Recording devices over a state.
fn over(devices: &[MemoryDevice]) -> Vec<Arc<RecordingDevice>> {
    let mut all: Vec<Arc<RecordingDevice>> = Vec::new();
    for device in devices {
        let next = match all.first() {
            None => RecordingDevice::over(device.snapshot()),
            Some(first) => RecordingDevice::beside(device.snapshot(), first),
        };
        all.push(Arc::new(next));
    }
    all
}

/// A tree as another's replay can be compared with: the kernel stamps files whose truncation it
/// finishes.
fn comparable(tree: &Tree, rules: &Rules) -> Tree {
    let mut tree = tree.clone();
    if rules.contents {
        tree.forget_times_of_files();
    }
    tree
}

/// V1 and V2: whether the tree is what the model had after one of `allowed` operations.
fn judge(
    recorded: &Recorded,
    allowed: Range<usize>,
    marks: usize,
    tree: &Tree,
) -> Result<(), String> {
    let print = recorded.rules.print(tree);
    let same = |count: &usize| recorded.prints.get(*count) == Some(&print);
    let mut wrong: Vec<String> = Vec::new();
    // Newest first: of operations that change contents only, most states are after all of them.
    for count in allowed.clone().rev().filter(same) {
        if !recorded.rules.contents {
            return Ok(());
        }
        let at = Moment { names: count, begun: allowed.end - 1, marks };
        match recorded.contents.judge(tree, at, recorded.unit) {
            Ok(()) => return Ok(()),
            Err(text) => wrong.push(text),
        }
    }
    if !wrong.is_empty() {
        // One of them is nearest to what happened.
        wrong.truncate(4);
        let ops = tail(&recorded.ops, &recorded.answers, allowed.end - 1);
        return Err(format!("{}\n{ops}", wrong.join("\nor: ")));
    }
    let elsewhere = recorded.prints.iter().position(|other| *other == print);
    let mut text = match elsewhere {
        Some(count) if count < allowed.start => {
            format!("a lost sync: only {count} operations are there, {} were synced", allowed.start)
        }
        Some(count) => format!("{count} operations are there, {} had begun", allowed.end - 1),
        None => "no number of operations leads to this tree".to_owned(),
    };
    // The nearest one tells most. Not all of many, since each is replayed.
    let step = (allowed.len() / 64).max(1);
    let nearest = allowed
        .clone()
        .step_by(step)
        .map(|count| (count, tree.differences(&recorded.tree_after(count))))
        .min_by_key(|(_, lines)| lines.len());
    if let Some((count, lines)) = nearest {
        let ops = tail(&recorded.ops, &recorded.answers, allowed.end.min(count + 4));
        text += &format!(
            "\nallowed are {}..={}; nearest is {count}; found | wanted:\n{}\n{ops}",
            allowed.start,
            allowed.end - 1,
            lines.join("\n")
        );
    }
    Err(text)
}

fn scratch() -> Result<tempfile::TempDir, String> {
    crate::scratch::prefixed("extant-crash-")
        .map_err(|error| format!("needs a temporary directory: {error}"))
}

/// Saves devices as files, runs e2fsck on the first, and has `look` look at what it said and left.
fn e2fsck<R>(
    devices: &[MemoryDevice],
    mode: &str,
    look: impl FnOnce(&oracle::FsckReport, &[std::path::PathBuf]) -> Result<R, String>,
) -> Result<R, String> {
    e2fsck_with(devices, mode, &[], look)
}

/// [`e2fsck`] with further arguments.
fn e2fsck_with<R>(
    devices: &[MemoryDevice],
    mode: &str,
    further: &[&str],
    look: impl FnOnce(&oracle::FsckReport, &[std::path::PathBuf]) -> Result<R, String>,
) -> Result<R, String> {
    let dir = scratch()?;
    let names = ["image", "journal"];
    let files: Vec<_> = devices.iter().zip(names).map(|(_, name)| dir.path().join(name)).collect();
    for (device, file) in devices.iter().zip(&files) {
        image::save(device, file);
    }
    let mut arguments = further.to_vec();
    let journal = files.get(1).map(|file| file.display().to_string());
    if let Some(journal) = &journal {
        arguments.extend(["-j", journal]);
    }
    let report = oracle::e2fsck_as(&files[0], mode, &arguments)?;
    look(&report, &files)
}

/// Panics with the first failures of a run and the command that shows them again. `variables` are
/// set before it, such as `EXTANT_SEED=7`.
#[track_caller]
pub fn explain(report: &Report, variables: &str, command: &str) {
    let Some(first) = report.failures.first() else { return };
    let state = &first.state;
    let all: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    let variables = format!("EXTANT_STATE={state} {variables}");
    panic!("{}\n\nagain:\n  {} {command} -- --nocapture", all.join("\n\n"), variables.trim_end());
}
