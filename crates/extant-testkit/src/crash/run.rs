//! Makes the states of a history on all processors.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use extant_block::{MemoryDevice, Record};
use extant_sync::threads;
use extant_sync::{Mutex, Rank};

use super::history::{Fate, History};
use super::states::{Sampling, states};

/// Failures after which a run ends.
const FAILURES_MAX: usize = 3;
/// Records that a failure lists.
const LISTED_MAX: usize = 24;

/// One state: what is on the devices after a cut.
#[derive(Debug)]
pub struct CrashState {
    /// The moment of the cut.
    pub cut: u64,
    /// Number of the state among those of this cut.
    pub number: usize,
    /// Marks made by then.
    pub marks: usize,
    /// The devices, each with pages shared with other states: writing them disturbs nobody.
    pub devices: Vec<MemoryDevice>,
    /// What became of the open records: place in the history, and fate.
    pub fates: Vec<(usize, Fate)>,
}

impl CrashState {
    /// The name that selects this state again: `CUT.NUMBER`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.cut, self.number)
    }
}

/// A state that should not be.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Name of the state.
    pub state: String,
    /// What is wrong with it.
    pub message: String,
    /// The last records before the cut and what became of them, in words.
    pub fates: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}: {}\nhistory:\n{}", self.state, self.message, self.fates)
    }
}

/// What a run found.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Moments at which power was cut.
    pub cuts: u64,
    /// States looked at, no two of them alike.
    pub states: u64,
    /// States left out because they were looked at before (C3).
    pub repeated: u64,
    /// The first failures.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Adds up two runs.
    pub fn add(&mut self, other: Report) {
        self.cuts += other.cuts;
        self.states += other.states;
        self.repeated += other.repeated;
        self.failures.extend(other.failures);
    }
}

struct Job {
    cut: u64,
    number: usize,
    from: usize,
    end: usize,
    marks: usize,
    bases: Arc<Vec<MemoryDevice>>,
    fates: Vec<(usize, Fate)>,
}

/// Makes every state that `sampling` chooses and has `check` look at it, on `threads` threads.
/// With `only` it makes the state of that name and no other.
pub fn run(
    history: &History,
    sampling: &Sampling,
    threads: usize,
    only: Option<&str>,
    check: impl Fn(&CrashState) -> Result<(), String> + Sync,
) -> Report {
    let (sender, receiver) = threads::channel::<Job>(64);
    let failures: Mutex<Vec<Failure>> = Mutex::new(Rank::Leaf, Vec::new());
    let worker = || {
        for job in receiver.iter() {
            // What is queued behind the last failure that is kept is not worth the time.
            if failures.lock().len() >= FAILURES_MAX {
                continue;
            }
            let devices: Vec<MemoryDevice> = job.bases.iter().map(MemoryDevice::snapshot).collect();
            history.finish(&devices, job.from, job.end, &job.fates);
            let state = CrashState {
                cut: job.cut,
                number: job.number,
                marks: job.marks,
                devices,
                fates: job.fates,
            };
            if let Err(message) = check(&state) {
                let fates = in_words(history, &state);
                let failure = Failure { state: state.name(), message, fates };
                failures.lock().push(failure);
            }
        }
    };
    let mut report = threads::scope(|scope| {
        for number in 0..threads.max(1) {
            scope.spawn(&format!("crash-{number}"), worker).expect("a thread");
        }
        let report = produce(history, sampling, only, |job| {
            failures.lock().len() < FAILURES_MAX && sender.send(job).is_ok()
        });
        // The channel ends with its sender, and the workers with it.
        drop(sender);
        report
    })
    .unwrap_or_else(|panic| panic!("{panic}"));
    report.failures = std::mem::take(&mut *failures.lock());
    report.failures.truncate(FAILURES_MAX);
    report
}

fn produce(
    history: &History,
    sampling: &Sampling,
    only: Option<&str>,
    mut send: impl FnMut(Job) -> bool,
) -> Report {
    let mut report = Report::default();
    let images = history.bases();
    let mut from = 0;
    let mut bases = Arc::new(images.iter().map(MemoryDevice::snapshot).collect::<Vec<_>>());
    let mut seen: HashSet<u64> = HashSet::new();
    let cuts = history.cuts();
    let last = cuts.last().copied();
    let mut chooser = extant_base::Prng::new(sampling.seed);
    for cut in cuts {
        let chosen = chooser.one_in(sampling.one_cut_in.max(1)) || Some(cut) == last;
        if !chosen {
            continue;
        }
        report.cuts += 1;
        let open = history.open_at(cut);
        let end = history.performed_by(cut);
        let floor = open.first().copied().unwrap_or(end);
        if floor > from {
            history.advance(&images, from..floor);
            from = floor;
            bases = Arc::new(images.iter().map(MemoryDevice::snapshot).collect());
        }
        let marks = history.marks_by(cut);
        for (number, fates) in states(history, cut, &open, sampling).into_iter().enumerate() {
            let fates: Vec<(usize, Fate)> = open.iter().copied().zip(fates).collect();
            if !seen.insert(key(history, end, marks, &fates)) {
                report.repeated += 1;
                continue;
            }
            if only.is_some_and(|only| only != format!("{cut}.{number}")) {
                continue;
            }
            report.states += 1;
            let bases = Arc::clone(&bases);
            if !send(Job { cut, number, from, end, marks, bases, fates }) {
                return report;
            }
        }
    }
    report
}

/// Tells states apart. Lost records leave no trace, and records that are protected by now look
/// like kept ones, so the same bytes have the same key at every cut.
fn key(history: &History, end: usize, marks: usize, fates: &[(usize, Fate)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    marks.hash(&mut hasher);
    // The records that are kept are all before `end` but those listed here; trailing lost ones
    // shorten the history.
    let mut end = end;
    let mut missing: Vec<(usize, Fate)> =
        fates.iter().copied().filter(|(_, fate)| *fate != Fate::Kept).collect();
    while let Some(event) = end.checked_sub(1).and_then(|last| history.events().get(last)) {
        let is_lost = missing.last() == Some(&(end - 1, Fate::Lost));
        if is_lost {
            missing.pop();
        } else if event.record.range().1 > 0 {
            break;
        }
        end -= 1;
    }
    (end, missing).hash(&mut hasher);
    hasher.finish()
}

/// The last records before the cut, one in a line, with what became of the open ones.
fn in_words(history: &History, state: &CrashState) -> String {
    let end = history.performed_by(state.cut);
    let first = end.saturating_sub(LISTED_MAX);
    let each = |place: usize| {
        let event = &history.events()[place];
        let what = match &event.record {
            Record::Write { offset, data, fua } => {
                format!("{} {} bytes at {offset}", if *fua { "FUA" } else { "write" }, data.len())
            }
            Record::Discard { offset, len } => format!("discard {len} bytes at {offset}"),
            Record::WriteZeroes { offset, len } => format!("zero {len} bytes at {offset}"),
            Record::Flush => "flush".to_owned(),
            Record::FlushFailed => "failed flush".to_owned(),
            Record::Mark(text) => format!("mark {text}"),
        };
        let done = if event.completed <= state.cut { "" } else { ", in flight" };
        let fate = state.fates.iter().find(|(at, _)| *at == place);
        let fate = fate.map(|(_, fate)| format!(" => {fate}")).unwrap_or_default();
        format!("  #{place} device {}: {what}{done}{fate}", event.device)
    };
    let mut lines: Vec<String> = (first..end).map(each).collect();
    if first > 0 {
        let open = state.fates.iter().filter(|(place, _)| *place < first).count();
        lines.insert(0, format!("  {first} records, {open} of them open"));
    }
    lines.join("\n")
}
