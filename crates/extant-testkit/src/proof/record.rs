//! Does operations on a recording device, in step with the model.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_block::{MemoryDevice, RecordingDevice, SharedDevice};
use extant_sync::FixedClock;

use super::contents::Contents;
use super::{EPOCH, Target};
use crate::crash::History;
use crate::model::{Model, Op, Outcome, Rules, Tree, is_written};

/// Bytes by which contents are recognised.
const SECTOR_BYTES: usize = 512;

/// A file system to start from.
#[derive(Debug)]
pub struct Base {
    /// Name of the layout, for messages.
    pub name: String,
    /// The file system's device, and that of its journal if it has one.
    pub devices: Vec<MemoryDevice>,
    /// What is compared.
    pub rules: Rules,
    /// Whether the running kernel can mount it.
    pub kernel: bool,
    /// Bytes of a block, or of a cluster if it has some.
    pub unit: u64,
    /// Parts of the first device where no contents of files may ever be written, and what is there.
    pub zones: Vec<(Range<u64>, String)>,
}

impl Base {
    /// An independent copy; pages are shared.
    #[must_use]
    pub fn snapshot(&self) -> Base {
        let devices = self.devices.iter().map(MemoryDevice::snapshot).collect();
        let (name, zones) = (self.name.clone(), self.zones.clone());
        Base { name, devices, zones, ..*self }
    }
}

/// What was known at a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Operations that had begun.
    pub begun: usize,
    /// Operations that a returned sync covers.
    pub synced: usize,
}

impl Step {
    pub(crate) fn mark(self) -> String {
        format!("{} {}", self.begun, self.synced)
    }
}

/// A recorded scenario.
#[derive(Debug)]
pub struct Recorded {
    /// What happened to the devices.
    pub history: History,
    /// The operations.
    pub ops: Vec<Op>,
    /// What each was answered.
    pub answers: Vec<Outcome>,
    /// The tree before the first one.
    pub start: Tree,
    /// Fingerprints of the model: before the first, and after each.
    pub prints: Vec<u64>,
    /// Contents of files at all times.
    pub contents: Contents,
    /// What was known at each mark.
    pub steps: Vec<Step>,
    /// Bytes of a block, or of a cluster if there are some.
    pub unit: u64,
    /// What is compared.
    pub rules: Rules,
    /// Name of the layout.
    pub base: String,
    /// Whether the running kernel can mount it.
    pub kernel: bool,
}

impl Recorded {
    /// Returns what was known when `marks` marks had been made.
    pub fn step_at(&self, marks: usize) -> Step {
        let at = marks.checked_sub(1).and_then(|last| self.steps.get(last));
        at.copied().unwrap_or(Step { begun: 0, synced: 0 })
    }

    /// The model's tree after `count` operations.
    pub fn tree_after(&self, count: usize) -> Tree {
        let mut model = Model::new(self.start.clone(), self.rules);
        model.now = EPOCH;
        for (op, answer) in self.ops.iter().zip(&self.answers).take(count) {
            model.now += i64::from(op.seconds());
            model.follow(op, *answer).expect("as while recording");
        }
        model.tree
    }

    /// Returns how often each operation succeeded and failed.
    pub fn tally(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let mut tally = BTreeMap::new();
        for (op, answer) in self.ops.iter().zip(&self.answers) {
            let entry: &mut (u64, u64) = tally.entry(op.name()).or_default();
            match answer {
                Ok(()) => entry.0 += 1,
                Err(_) => entry.1 += 1,
            }
        }
        tally
    }
}

/// Mounts, does what `next` says until it says no more, compares, unmounts.
///
/// # Errors
///
/// The file system answered otherwise than the model, or has another tree in the end; or a mount
/// or unmount failed.
pub fn record<T: Target>(
    target: &T,
    base: &Base,
    next: impl FnMut(&Model) -> Option<Op>,
) -> Result<Recorded, String> {
    record_with(target, base, true, next)
}

/// [`record`], with or without the unmount at the end.
///
/// # Errors
///
/// As [`record`].
pub fn record_with<T: Target>(
    target: &T,
    base: &Base,
    unmount: bool,
    mut next: impl FnMut(&Model) -> Option<Op>,
) -> Result<Recorded, String> {
    let recorders = recorders(base);
    let shared: Vec<SharedDevice> =
        recorders.iter().map(|r| Arc::clone(r) as SharedDevice).collect();
    let clock = Arc::new(FixedClock::at(EPOCH, 0));
    let fs = target
        .mount(&shared, Arc::clone(&clock))
        .map_err(|error| format!("{}: cannot mount the start: {error}", base.name))?;
    let start = target.snapshot(&fs, &base.rules)?;
    let mut model = Model::new(start.clone(), base.rules);
    model.now = EPOCH;
    let mut done = Progress::new(&recorders[0], &start, base.rules);
    let mut slots = HashMap::new();
    // Slower, but names the operation.
    let each = std::env::var_os("EXTANT_TRACE").is_some();
    while let Some(op) = next(&model) {
        clock.advance(Duration::from_secs(op.seconds().into()));
        model.now += i64::from(op.seconds());
        done.begin();
        let answer = target.apply(&fs, &mut slots, &op);
        done.end(&mut model, op, answer).map_err(|text| format!("{}: {text}", base.name))?;
        if done.may_be_half() {
            done.look_again(&mut model, &target.snapshot(&fs, &base.rules)?);
        }
        if each {
            compare(target, &fs, &model, &done, base)?;
        }
    }
    compare(target, &fs, &model, &done, base)?;
    drop(slots);
    if unmount {
        target.unmount(fs)?;
        done.step.synced = done.ops.len();
        done.note();
        done.contents.all_synced(done.steps.len(), done.ops.len());
    } else {
        drop(fs);
    }
    check_zones(base, &recorders[0])?;
    Ok(done.recorded(&recorders, start, base))
}

/// No contents of files were written over what is not theirs.
pub(crate) fn check_zones(base: &Base, recorder: &RecordingDevice) -> Result<(), String> {
    for touch in recorder.touches() {
        for (at, sector) in touch.data.chunks_exact(SECTOR_BYTES).enumerate() {
            if is_written(sector) {
                return Err(format!(
                    "{}: record {} has contents of a file at byte {}, in {}",
                    base.name,
                    touch.record,
                    touch.bytes.start + (at * SECTOR_BYTES) as u64,
                    touch.label
                ));
            }
        }
    }
    Ok(())
}

/// Compares the whole tree with the model's.
fn compare<T: Target>(
    target: &T,
    fs: &T::Fs,
    model: &Model,
    done: &Progress,
    base: &Base,
) -> Result<(), String> {
    let found = target.snapshot(fs, &base.rules)?;
    if found.fingerprint() == model.tree.fingerprint() {
        return Ok(());
    }
    Err(format!(
        "{}: after {} operations, found | wanted:\n{}\n{}",
        base.name,
        done.ops.len(),
        found.differences(&model.tree).join("\n"),
        done.tail()
    ))
}

/// Recording devices over the devices of `base`, with one history.
pub(crate) fn recorders(base: &Base) -> Vec<Arc<RecordingDevice>> {
    let mut all: Vec<Arc<RecordingDevice>> = Vec::new();
    for device in &base.devices {
        let next = match all.first() {
            None => RecordingDevice::over(device.snapshot()),
            Some(first) => RecordingDevice::beside(device.snapshot(), first),
        };
        all.push(Arc::new(next));
    }
    for (bytes, name) in &base.zones {
        all[0].label(bytes.clone(), name);
    }
    all
}

/// What was done so far.
pub(crate) struct Progress {
    recorder: Arc<RecordingDevice>,
    pub(crate) ops: Vec<Op>,
    answers: Vec<Outcome>,
    prints: Vec<u64>,
    contents: Contents,
    pub(crate) step: Step,
    steps: Vec<Step>,
}

impl Progress {
    pub(crate) fn new(recorder: &Arc<RecordingDevice>, start: &Tree, rules: Rules) -> Progress {
        Progress {
            recorder: Arc::clone(recorder),
            ops: Vec::new(),
            answers: Vec::new(),
            prints: vec![rules.print(start)],
            contents: Contents::new(start),
            step: Step { begun: 0, synced: 0 },
            steps: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self) {
        self.recorder.mark(&self.step.mark());
        self.steps.push(self.step);
    }

    /// An operation begins.
    pub(crate) fn begin(&mut self) {
        self.step.begun += 1;
        self.note();
    }

    /// It was answered.
    pub(crate) fn end(&mut self, model: &mut Model, op: Op, answer: Outcome) -> Result<(), String> {
        let followed = model.follow(&op, answer);
        let covered = match (&op, answer) {
            (Op::Sync, Ok(())) => Some(self.ops.len() + 1),
            (Op::Fsync { path }, Ok(())) => model.synced_by(path, self.ops.len() + 1),
            (Op::Fdatasync { path }, Ok(())) => model.named_by(path),
            _ => None,
        };
        let count = self.ops.len() + 1;
        self.contents.note(model, &op, count);
        self.ops.push(op.clone());
        self.answers.push(answer);
        followed.map_err(|wanted| {
            format!("answered {answer:?} instead of {wanted:?}:\n{}", self.tail())
        })?;
        self.prints.push(model.rules.print(&model.tree));
        if let Some(covered) = covered {
            self.step.synced = self.step.synced.max(covered);
            self.note();
            self.contents.synced(model, &op, answer, (self.steps.len(), count));
        }
        Ok(())
    }

    /// Returns whether the last operation failed and may have changed contents all the same: a write of which
    /// only a part had space.
    pub(crate) fn may_be_half(&self) -> bool {
        let last = self.ops.last().zip(self.answers.last());
        last.is_some_and(|(op, answer)| answer.is_err() && op.changes_contents_of().is_some())
    }

    /// Takes over what became of the file of the last operation.
    pub(crate) fn look_again(&mut self, model: &mut Model, found: &Tree) {
        let path = self.ops.last().and_then(Op::changes_contents_of);
        let Some((path, id)) = path.and_then(|path| Some((path, model.find(path).ok()?))) else {
            return;
        };
        let Some(found) = found.find(path) else { return };
        let node = model.tree.node_mut(id);
        (node.size, node.times) = (found.size, found.times);
        node.content = found.content.clone();
        self.contents.failed(id, node, self.ops.len());
    }

    /// Returns whether the last operation left the model as it was.
    pub(crate) fn last_changed_nothing(&self) -> bool {
        let mut last = self.prints.iter().rev();
        last.next() == last.next()
    }

    /// The last operations, one in a line.
    pub(crate) fn tail(&self) -> String {
        tail(&self.ops, &self.answers, self.ops.len())
    }

    pub(crate) fn recorded(
        self,
        recorders: &[Arc<RecordingDevice>],
        start: Tree,
        base: &Base,
    ) -> Recorded {
        let devices: Vec<&RecordingDevice> = recorders.iter().map(|r| &**r).collect();
        Recorded {
            history: History::of(&devices),
            ops: self.ops,
            answers: self.answers,
            start,
            prints: self.prints,
            contents: self.contents,
            unit: base.unit,
            steps: self.steps,
            rules: base.rules,
            base: base.name.clone(),
            kernel: base.kernel,
        }
    }
}

/// The operations before number `end`, the last of them.
pub(crate) fn tail(ops: &[Op], answers: &[Outcome], end: usize) -> String {
    let from = end.saturating_sub(12);
    let lines =
        ops.iter().zip(answers).enumerate().take(end).skip(from).map(|(number, (op, answer))| {
            match answer {
                Ok(()) => format!("  {:4} {op}", number + 1),
                Err(errno) => format!("  {:4} {op} = error {errno}", number + 1),
            }
        });
    lines.collect::<Vec<_>>().join("\n")
}
