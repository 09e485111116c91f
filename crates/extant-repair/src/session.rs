//! A repair from beginning to end: rounds of checking and fixing over a draft.

mod fixes;
mod phase;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_base::{Ino, sabotage};
use extant_block::SharedDevice;
use extant_check::{
    Answer, CheckOptions, Examination, Objects, Problem, Report, Severity, examine,
};
use extant_format::dir::FileType;
use extant_format::features::{Feature, State as FsState};
use extant_format::superblock::Superblock;

use self::fixes::write_backups;
use self::phase::{Phase, phase};
use crate::ask::{Ask, Decision, Fix, Yes};
use crate::draft::Draft;
use crate::error::{Fixed, RepairError, Trouble};
use crate::journal::BroughtIn;
use crate::plan::Plan;
use crate::space::Bits;
use crate::state::State;
use crate::{descriptors, elsewhere, journal, supers};

/// Rounds after which a repair gives up.
const ROUNDS_MAX: u32 = 80;
/// Times that one problem is fixed before it is left.
const TRIES_MAX: u32 = 3;
/// Why a problem is left that was tried so often.
const COMES_BACK: &str = "it comes back";
/// Problems that are taken up in one round; the others come in the next.
const BATCH_MAX: usize = 200_000;

/// How to repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepairOptions {
    /// Seconds since 1970: the time of deletions and of this check.
    pub now: i64,
}

/// Result of a repair, with the writes to be done.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// All findings, in the order met.
    pub findings: Vec<Fix>,
    /// The writes, none of which was done yet.
    pub plan: Plan,
    /// Nothing is wrong with the image as it will be.
    pub is_clean: bool,
    /// The answer to some finding was to stop.
    pub is_stopped: bool,
    /// Transactions that waited in the journal.
    pub transactions: u32,
    /// Fast commits that waited in the journal.
    pub fast_commits: u32,
    /// How often the image was looked through.
    pub rounds: u32,
}

struct Session<'a> {
    draft: Arc<Draft>,
    ask: &'a mut dyn Ask,
    now: u32,
    findings: Vec<Fix>,
    /// Problems that were answered, by text; where they are in `findings`.
    asked: BTreeMap<String, usize>,
    tries: BTreeMap<String, u32>,
    left: BTreeSet<String>,
    pins: Option<Bits>,
    first_pins: Option<Bits>,
    is_stopped: bool,
    /// Descriptors or lasting fields of the superblock changed: backups are written anew.
    stale_backups: bool,
    rounds: u32,
    /// The file system was marked as in order, so that the mark that it is not is the repair's own.
    was_valid: bool,
    /// A log was brought in: the next mount deletes and shortens the orphans.
    has_replayed: bool,
    /// A check finds nothing wrong: what there is to be done is what Linux left, and what follows from that.
    is_sound: bool,
    /// Trees of extents were looked at.
    trees_are_done: bool,
    /// The blocks of the resize inode were set right once.
    has_fixed_resize: bool,
    /// Fast commits that are brought in once the rest is in order.
    waiting: Option<journal::Waiting>,
    /// Groups of which the caller knows whether their inode table is there.
    told_tables: BTreeSet<u32>,
}

/// Finds out what is wrong with the image on `device`, asks what to do about it, and plans the writes that set
/// it right. Nothing is written before [`Plan::apply`].
///
/// # Errors
///
/// [`RepairError`] when there is nothing that could be repaired.
pub fn repair(
    device: SharedDevice,
    options: &RepairOptions,
    ask: &mut dyn Ask,
) -> Result<Outcome, RepairError> {
    repair_both(device, None, options, ask)
}

/// Does what [`repair`] does, with the device of the journal where that is another one: what its log holds is brought
/// in first, as that of a log in the image is, and the log is empty then.
///
/// # Errors
///
/// As of [`repair`]; [`RepairError::OtherJournal`] for a device that is not that of the journal.
pub fn repair_both(
    device: SharedDevice,
    journal: Option<SharedDevice>,
    options: &RepairOptions,
    ask: &mut dyn Ask,
) -> Result<Outcome, RepairError> {
    let draft = Arc::new(Draft::over_both(Arc::clone(&device), journal.clone()));
    let mut session = Session::new(&draft, options, ask);
    let mut sb = session.find_superblock(journal.as_ref())?;
    let (mut transactions, mut fast_commits) = (0, 0);
    if !session.is_stopped {
        (transactions, fast_commits) = session.bring_in_log(&mut sb)?;
    }
    if !session.is_stopped && session.has_replayed {
        session.tell_of_home(&device, journal)?;
    }
    if !session.is_stopped {
        session.renew_by_copies(&mut sb)?;
    }
    let is_touched = !draft.is_unchanged();
    let mut is_clean = false;
    if !session.is_stopped {
        is_clean = session.rounds(&mut sb)?;
        if session.is_stopped {
            draft.drop_current();
        } else {
            session.finish(is_touched)?;
        }
    }
    let plan = if session.is_stopped && transactions == 0 {
        Plan::default()
    } else {
        let pins = session.first_pins.as_ref().map(|bits| (bits, &sb));
        Plan::of(&draft, pins)?
    };
    Ok(Outcome {
        findings: session.findings,
        plan,
        is_clean: is_clean && !session.is_stopped,
        is_stopped: session.is_stopped,
        transactions,
        fast_commits,
        rounds: session.rounds,
    })
}

/// Says what a repair would say of the log of an image, for checks, which show the image as the next mount has it: a
/// mount ends without a word where it takes damage for the end of the log. Empty where all of it would be brought in.
///
/// # Errors
///
/// As of [`repair_both`].
pub fn log_damage(
    device: SharedDevice,
    journal: Option<SharedDevice>,
) -> Result<Vec<Fix>, RepairError> {
    let draft = Arc::new(Draft::over_both(device, journal.clone()));
    let mut yes = Yes;
    let mut session = Session::new(&draft, &RepairOptions { now: 0 }, &mut yes);
    let mut sb = session.find_superblock(journal.as_ref())?;
    session.findings.clear();
    session.bring_in_log(&mut sb)?;
    // A check finds these in the journal and among the orphans itself.
    session.findings.retain(|one| one.code != ABORTED && one.code != NO_ORPHANS);
    Ok(session.findings)
}

/// Says what a repair would say of the superblock that lies on a device, for checks, which see the image as `shown`: with
/// the one that the log may have. Without what it would say of that one too, which a check finds.
///
/// # Errors
///
/// As of [`repair`].
pub fn superblock_damage(
    device: SharedDevice,
    shown: SharedDevice,
) -> Result<Vec<Fix>, RepairError> {
    let notes = |device| {
        let draft = Arc::new(Draft::over_both(device, None));
        let mut yes = Yes;
        let mut session = Session::new(&draft, &RepairOptions { now: 0 }, &mut yes);
        session.tell_of_superblock().map(|_| session.findings)
    };
    let at_home = notes(device)?;
    if at_home.is_empty() {
        return Ok(at_home);
    }
    let later = notes(shown)?;
    let is_new = |one: &Fix| !later.iter().any(|other| other.message == one.message);
    Ok(at_home.into_iter().filter(is_new).collect())
}

/// The code of a journal that whoever wrote it had to stop.
const ABORTED: &str = "journal-state";
/// The code of entries among the orphans that are none.
const NO_ORPHANS: &str = "orphan";

/// Options of the checks.
const CHECK: CheckOptions = CheckOptions {
    require_replayed: true,
    require_no_orphans: true,
    require_clean_state: true,
    strict_totals: true,
    max_problems: 1000,
    threads: None,
    skip_unreadable: false,
};

impl<'a> Session<'a> {
    fn new(draft: &Arc<Draft>, options: &RepairOptions, ask: &'a mut dyn Ask) -> Session<'a> {
        Session {
            draft: Arc::clone(draft),
            ask,
            now: u32::try_from(options.now).unwrap_or(u32::MAX),
            findings: Vec::new(),
            asked: BTreeMap::new(),
            tries: BTreeMap::new(),
            left: BTreeSet::new(),
            pins: None,
            first_pins: None,
            is_stopped: false,
            stale_backups: false,
            rounds: 0,
            was_valid: false,
            has_replayed: false,
            is_sound: false,
            trees_are_done: false,
            has_fixed_resize: false,
            waiting: None,
            told_tables: BTreeSet::new(),
        }
    }

    /// Finds a superblock that can be used, and compares the device of the journal with it.
    fn find_superblock(
        &mut self,
        journal: Option<&SharedDevice>,
    ) -> Result<Superblock, RepairError> {
        let sb = self.tell_of_superblock()?;
        elsewhere::compare(&sb, journal)?;
        self.was_valid = journal::is_valid(&sb);
        Ok(sb)
    }

    fn tell_of_superblock(&mut self) -> Result<Superblock, RepairError> {
        let found = supers::find(&self.draft)?;
        self.stale_backups |= found.renews_backups;
        for (code, message) in found.notes {
            self.tell(code, message, "write the superblock anew", Severity::FileSystem);
        }
        Ok(found.sb)
    }

    /// Asks about what kept everybody else from the log, and is right again now that it was brought in: a descriptor,
    /// or the journal's inode.
    fn tell_of_home(
        &mut self,
        device: &SharedDevice,
        journal: Option<SharedDevice>,
    ) -> Result<(), RepairError> {
        if !self.findings.is_empty() {
            return Ok(());
        }
        let Some(why) = journal::not_mounted(device, journal.clone()) else { return Ok(()) };
        let mended = Arc::new(self.draft.above()) as SharedDevice;
        if journal::not_mounted(&mended, journal).is_none() {
            let text = format!("the log cannot be brought in by a mount: {why}");
            self.tell("journal-log", text, "bring it in", Severity::Count);
        }
        Ok(())
    }

    /// Brings in what the log holds, and asks about what it does not hold any more; how many transactions and fast
    /// commits there were.
    fn bring_in_log(&mut self, sb: &mut Superblock) -> Result<(u32, u32), RepairError> {
        let mut state = self.state_for_journal(sb)?;
        let mut counts = (0, 0);
        let toll = |device| self.toll(device);
        match journal::replay(&self.draft, &mut state, &toll) {
            Ok(Some(replayed)) => {
                self.was_valid = replayed.was_valid;
                self.has_replayed = true;
                counts = (replayed.transactions, replayed.fast_commits);
                if let Some(why) = &replayed.mended {
                    let text = format!("a field of the journal's superblock is wrong: {why}");
                    self.tell("journal", text, "set it right", Severity::FileSystem);
                }
                if replayed.is_aborted {
                    let text = "journal: it was aborted by an error".to_owned();
                    self.tell(ABORTED, text, "take the mark away", Severity::Count);
                }
                self.tell_of_no_orphans(replayed.no_orphans);
                self.tell_of_log(replayed);
            }
            Ok(None) => {}
            Err(Trouble::Device(error)) => return Err(RepairError::Device(error)),
            Err(_) => {}
        }
        *sb = supers::reread(&self.draft)?;
        Ok(counts)
    }

    /// Repairs an image in memory, with nothing in its log; the number of findings, without what can be computed.
    fn toll(&self, device: SharedDevice) -> u64 {
        let journal = self.draft.journal().map(|journal| Arc::new(journal) as SharedDevice);
        let draft = Arc::new(Draft::over_both(device, journal));
        let mut yes = Yes;
        let options = RepairOptions { now: i64::from(self.now) };
        let mut session = Session::new(&draft, &options, &mut yes);
        match session.try_without_log() {
            Ok(()) => {
                let counts = |one: &&Fix| one.severity != Severity::Count || one.left.is_some();
                session.findings.iter().filter(counts).count() as u64
            }
            Err(_) => u64::MAX,
        }
    }

    /// Does what a repair does once the log is empty.
    fn try_without_log(&mut self) -> Result<(), RepairError> {
        let mut sb = supers::reread(&self.draft)?;
        let mut state = self.state_for_journal(&sb)?;
        journal::empty_log(&mut state).map_err(give_up)?;
        state.sb.features.remove(Feature::RECOVER);
        state.write_superblock().map_err(give_up)?;
        sb = supers::reread(&self.draft)?;
        self.renew_by_copies(&mut sb)?;
        self.rounds(&mut sb).map(drop)
    }

    fn tell_of_log(&mut self, replayed: journal::Replayed) {
        let journal::Replayed { transactions, fast_commits, damaged, at_home, .. } = replayed;
        let (text, fix) = if let Some(why) = replayed.trouble {
            (format!("the log cannot be replayed: {why}"), "empty the log")
        } else if let Some(waiting) = replayed.waiting {
            let why = &waiting.why;
            let text =
                format!("{fast_commits} fast commits cannot be brought in as the image is: {why}");
            self.waiting = Some(waiting);
            (text, "repair it first")
        } else if let Some(why) = replayed.broken {
            let text = format!("the log is damaged behind {transactions} transactions: {why}");
            (text, "leave the rest out")
        } else if damaged > 0 {
            (format!("{damaged} blocks of the log are damaged"), "leave them out")
        } else if at_home > 0 {
            let text = format!(
                "{at_home} blocks of the log are damaged, and what they were is in its place already"
            );
            (text, "leave them out")
        } else if replayed.is_unasked {
            let text = format!(
                "the log has {transactions} transactions, and the superblock says that it has none"
            );
            (text, "bring them in")
        } else {
            return;
        };
        self.tell("journal-log", text, fix, Severity::FileSystem);
    }

    /// Asks about entries that a mount takes out with the orphans, and a check names.
    fn tell_of_no_orphans(&mut self, count: u64) {
        if count > 0 {
            let text = format!("{count} entries among the orphans are none");
            self.tell(NO_ORPHANS, text, "take them out", Severity::Count);
        }
    }

    /// Asks about something that the checker has no problem for.
    fn tell(&mut self, code: &'static str, message: String, fix: &'static str, severity: Severity) {
        let objects = Objects::default();
        let mut finding =
            Fix { code, message, fix, severity, objects, is_damage: true, hint: None, left: None };
        if self.ask.ask(&finding) != Decision::Fix {
            // Nothing else can be looked at without it.
            finding.left = Some("the answer was no".into());
            self.is_stopped = true;
        }
        self.findings.push(finding);
    }

    /// A state that is enough to find the journal.
    fn state_for_journal(&mut self, sb: &Superblock) -> Result<State, RepairError> {
        let mut pins = Some(Bits::default());
        let exam = Examination::default();
        let made = State::new(Arc::clone(&self.draft), sb.clone(), exam, &mut pins, self.now);
        let mut state = made.map_err(give_up)?;
        descriptors::renew_for_journal(&mut state).map_err(give_up)?;
        Ok(state)
    }

    /// Takes descriptors from a backup that name another table than where the inodes of their group are: without
    /// checksums, whatever is read there looks like inodes that belong elsewhere.
    fn renew_by_copies(&mut self, sb: &mut Superblock) -> Result<(), RepairError> {
        let (draft, mut pins) = (Arc::clone(&self.draft), Some(Bits::default()));
        let exam = Examination::default();
        let made = State::new(draft, sb.clone(), exam, &mut pins, self.now);
        let mut state = made.map_err(give_up)?;
        let found = descriptors::contradicted(&state);
        for (group, text) in &found {
            self.tell(
                "group",
                text.clone(),
                "take the descriptor from a backup",
                Severity::FileSystem,
            );
            if self.is_stopped {
                return Ok(());
            }
            self.mark(&mut state)?;
            descriptors::take_copy(&mut state, *group).map_err(give_up)?;
        }
        if !found.is_empty() {
            self.draft.seal();
            *sb = supers::reread(&self.draft)?;
        }
        Ok(())
    }

    /// Repeats rounds until there is nothing left to do. Returns whether no problem is left then.
    fn rounds(&mut self, sb: &mut Superblock) -> Result<bool, RepairError> {
        loop {
            self.rounds += 1;
            self.ask.round(self.rounds);
            let left = &self.left;
            let mut count = 0usize;
            let mut meet = |problem: &Problem| {
                if count >= BATCH_MAX || left.contains(&problem.to_string()) {
                    return Answer::Report;
                }
                count += 1;
                Answer::Fix
            };
            let options = CheckOptions { require_replayed: self.waiting.is_none(), ..CHECK };
            let mut exam = examine(&*self.draft, &options, &mut meet)?;
            if self.rounds == 1 {
                let is_left = |problem: &Problem| is_left_by_linux(problem, self.has_replayed);
                self.is_sound = self.findings.is_empty()
                    && exam.report.dropped == 0
                    && exam.report.problems.iter().all(is_left);
            }
            let wanted = std::mem::take(&mut exam.wanted);
            let first = wanted.iter().map(phase).min();
            if first.is_none_or(|first| first >= Phase::State) {
                self.forget_gone(&exam.report);
            }
            if self.waiting.is_some() && first.is_none_or(|first| first >= Phase::State) {
                self.bring_in_waiting(sb)?;
                if self.is_stopped {
                    return Ok(false);
                }
                continue;
            }
            if !self.trees_are_done && first.is_none_or(|first| first >= Phase::State) {
                self.trees_are_done = true;
                let is_clean = exam.report.is_clean();
                self.join_trees(sb, exam)?;
                if self.is_stopped || first.is_none() && self.first_pins.is_none() {
                    return Ok(is_clean);
                }
                continue;
            }
            let Some(first) = first else { return Ok(exam.report.is_clean()) };
            if self.rounds > ROUNDS_MAX {
                for problem in &wanted {
                    self.leave(problem, "it takes too many rounds");
                }
                return Ok(false);
            }
            let said = said(&wanted);
            let batch: Vec<Problem> =
                wanted.into_iter().filter(|problem| phase(problem) == first).collect();
            let hints = self.lost_tables(sb, &batch);
            let batch = self.decide(batch, &hints);
            if self.is_stopped {
                return Ok(false);
            }
            if batch.is_empty() {
                continue;
            }
            *sb = supers::reread(&self.draft)?;
            let made =
                State::new(Arc::clone(&self.draft), sb.clone(), exam, &mut self.pins, self.now);
            let mut state = made.map_err(give_up)?;
            state.said = said;
            if let Some(waiting) = &self.waiting {
                state.promise(&waiting.blocks, &waiting.inodes);
            }
            if self.first_pins.is_none() {
                self.first_pins = self.pins.clone();
                self.mark(&mut state)?;
            }
            self.fix(&mut state, first, &batch)?;
            *sb = supers::reread(&self.draft)?;
        }
    }

    /// Brings in the fast commits that waited for the image to be in order. What cannot be applied is left out, and
    /// named; links and blocks are looked at again afterwards.
    fn bring_in_waiting(&mut self, sb: &mut Superblock) -> Result<(), RepairError> {
        let Some(waiting) = self.waiting.take() else { return Ok(()) };
        self.draft.seal();
        let mut done = journal::bring_in(&self.draft, false)
            .or_else(|_| journal::bring_in(&self.draft, true))
            .unwrap_or_else(|why| BroughtIn { left_out: vec![why], ..BroughtIn::default() });
        if done.commits == 0 && done.left_out.is_empty() {
            done.left_out.push("the journal was made anew".into());
        }
        if let Some(why) = done.left_out.first() {
            let commits = waiting.commits;
            let text = match done.left_out.len() {
                _ if done.commits == 0 => {
                    format!("{commits} fast commits cannot be brought in: {why}")
                }
                1 => format!("a part of {commits} fast commits cannot be brought in: {why}"),
                parts => format!(
                    "{parts} parts of {commits} fast commits cannot be brought in, the first: {why}"
                ),
            };
            self.tell("journal-log", text, "leave it out", Severity::FileSystem);
        }
        *sb = supers::reread(&self.draft)?;
        let mut state = self.state_for_journal(sb)?;
        if done.commits == 0 {
            journal::empty_log(&mut state).map_err(give_up)?;
        }
        state.sb.features.remove(Feature::RECOVER);
        state.sb.state.remove(FsState::VALID);
        state.sb.state.insert(FsState::ERROR);
        state.write_superblock().map_err(give_up)?;
        self.draft.seal();
        *sb = supers::reread(&self.draft)?;
        Ok(())
    }

    /// Trees of extents with far more nodes, or levels, than they need are written anew.
    fn join_trees(&mut self, sb: &mut Superblock, exam: Examination) -> Result<(), RepairError> {
        *sb = supers::reread(&self.draft)?;
        let mut pins = self.pins.clone();
        let made = State::new(Arc::clone(&self.draft), sb.clone(), exam, &mut pins, self.now);
        let mut state = made.map_err(give_up)?;
        let loose = state.loose_trees().map_err(give_up)?;
        let mut wanted = Vec::new();
        for (ino, nodes, needed) in loose {
            let mut finding = Fix {
                code: "extent-tree",
                message: format!("inode {ino}: its tree has {nodes} nodes, {needed} would do"),
                fix: "write the tree anew",
                severity: Severity::Count,
                objects: Objects { ino: Some(ino), ..Objects::default() },
                is_damage: false,
                hint: None,
                left: None,
            };
            match self.ask.ask(&finding) {
                Decision::Fix => wanted.push(ino),
                Decision::Leave => finding.left = Some("the answer was no".into()),
                Decision::Stop => {
                    finding.left = Some("it needs a decision".into());
                    self.is_stopped = true;
                    self.findings.push(finding);
                    return Ok(());
                }
            }
            self.findings.push(finding);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        self.pins = pins;
        if self.first_pins.is_none() {
            self.first_pins = self.pins.clone();
            self.mark(&mut state)?;
        }
        for ino in wanted {
            match state.join_tree(ino) {
                // Without room it stays as it is, which is no fault.
                Ok(()) | Err(Trouble::Full(_) | Trouble::Cannot(_)) => {}
                Err(Trouble::Device(error)) => return Err(RepairError::Device(error)),
            }
        }
        Ok(())
    }

    /// Makes the first write: it marks the image as in need of a check.
    fn mark(&mut self, state: &mut State) -> Result<(), RepairError> {
        self.draft.seal();
        let old = state.sb.state;
        state.sb.state.remove(FsState::VALID);
        state.sb.state.insert(FsState::ERROR);
        if state.sb.state != old && !sabotage("repair.session.not-marked") {
            state.write_superblock().map_err(give_up)?;
        }
        self.draft.seal();
        Ok(())
    }

    /// Says of each group whose table cannot be found what that means, with the first of its problems.
    fn lost_tables(&mut self, sb: &Superblock, batch: &[Problem]) -> BTreeMap<String, String> {
        let mut hints = BTreeMap::new();
        let mut state = None;
        for problem in batch {
            let Some(group) = descriptors::misplaced(problem) else { continue };
            if !self.told_tables.insert(group) {
                continue;
            }
            // What cannot be read is named where it is needed.
            let state = match &state {
                Some(state) => state,
                None => match self.state_for_journal(sb) {
                    Ok(made) => state.insert(made),
                    Err(_) => return hints,
                },
            };
            if let Some(hint) = descriptors::lost_table(state, group) {
                hints.insert(problem.to_string(), hint);
            }
        }
        hints
    }

    /// Returns those of a batch that are to be fixed; `hints` are by the text of the problem.
    fn decide(&mut self, batch: Vec<Problem>, hints: &BTreeMap<String, String>) -> Vec<Problem> {
        let mut wanted = Vec::with_capacity(batch.len());
        let mut tried = BTreeSet::new();
        for problem in batch {
            let key = problem.to_string();
            if !self.asked.contains_key(&key) && !self.is_own_mark(&problem) {
                let mut finding = Fix::of(&problem, !self.is_sound);
                finding.hint = hints.get(&key).cloned();
                let answer = self.ask.ask(&finding);
                self.asked.insert(key.clone(), self.findings.len());
                self.findings.push(finding);
                match answer {
                    Decision::Fix => {}
                    Decision::Leave => self.leave(&problem, "the answer was no"),
                    Decision::Stop => {
                        self.leave(&problem, "it needs a decision");
                        self.is_stopped = true;
                        return Vec::new();
                    }
                }
            }
            if self.left.contains(&key) {
                continue;
            }
            // The same words may stand for several places.
            if tried.insert(key.clone()) {
                *self.tries.entry(key.clone()).or_default() += 1;
            }
            if self.tries.get(&key).is_some_and(|tries| *tries > TRIES_MAX) {
                self.leave(&problem, COMES_BACK);
                continue;
            }
            wanted.push(problem);
        }
        wanted
    }

    /// Returns whether a problem is the mark that the repair itself made before its first change.
    fn is_own_mark(&self, problem: &Problem) -> bool {
        self.was_valid && matches!(problem, Problem::State { .. })
    }

    fn leave(&mut self, problem: &Problem, why: &str) {
        let key = problem.to_string();
        if self.is_own_mark(problem) {
            self.left.insert(key);
            return;
        }
        let at = *self.asked.entry(key.clone()).or_insert_with(|| {
            self.findings.push(Fix::of(problem, !self.is_sound));
            self.findings.len() - 1
        });
        if let Some(finding) = self.findings.get_mut(at) {
            finding.left = Some(why.to_owned());
        }
        self.left.insert(key);
    }

    /// Takes those that came back for done if nothing is left of them: what set others right later set them right, too.
    /// Where anything else is left, it may hide them.
    fn forget_gone(&mut self, report: &Report) {
        let is_state = |problem: &Problem| matches!(problem, Problem::State { .. });
        if report.dropped != 0 || !report.problems.iter().all(is_state) {
            return;
        }
        for (key, at) in &self.asked {
            let Some(finding) = self.findings.get_mut(*at) else { continue };
            if finding.left.as_deref() == Some(COMES_BACK) {
                finding.left = None;
                self.left.remove(key);
            }
        }
    }

    /// Takes note of how one fix went.
    fn note(&mut self, problems: &[Problem], result: Fixed) -> Result<(), RepairError> {
        let why = match result {
            Ok(()) => return Ok(()),
            Err(Trouble::Device(error)) => return Err(RepairError::Device(error)),
            Err(Trouble::Full(what)) => format!("there is no free {what}"),
            Err(Trouble::Cannot(why)) => why,
        };
        for problem in problems {
            self.leave(problem, &why);
        }
        Ok(())
    }

    /// Makes the last writes of a repair that changed something.
    fn finish(&mut self, is_touched: bool) -> Result<(), RepairError> {
        if self.first_pins.is_none() && !is_touched {
            return Ok(());
        }
        let sb = supers::reread(&self.draft)?;
        let exam = Examination::default();
        let mut pins = Some(Bits::default());
        let made = State::new(Arc::clone(&self.draft), sb, exam, &mut pins, self.now);
        let mut state = made.map_err(give_up)?;
        if self.left.is_empty() {
            state.sb.last_check = i64::from(self.now);
            state.sb.mount_count = 0;
        } else {
            state.sb.state.remove(FsState::VALID);
            state.sb.state.insert(FsState::ERROR);
        }
        state.write_superblock().map_err(give_up)?;
        if self.stale_backups && !sabotage("repair.session.copies-stay") {
            write_backups(&state).map_err(give_up)?;
        }
        Ok(())
    }
}

/// Returns whether a problem is no damage, as of an image that was in use when its machine stopped: Linux writes the
/// totals of the superblock now and then, and neither it nor e2fsck believes them; orphans are what the next mount
/// ends, where it has a log to bring in.
fn is_left_by_linux(problem: &Problem, has_replayed: bool) -> bool {
    match problem {
        Problem::SuperblockCount { .. } | Problem::State { .. } => true,
        Problem::Orphans { .. } => has_replayed,
        _ => false,
    }
}

/// The types that entries have for inodes of another one, where all of them say the same.
fn said(problems: &[Problem]) -> BTreeMap<Ino, FileType> {
    let mut said = BTreeMap::new();
    for problem in problems {
        let Problem::EntryType { ino, found, .. } = problem else { continue };
        let one = said.entry(*ino).or_insert(*found);
        if *one != *found {
            *one = FileType::Unknown;
        }
    }
    said.retain(|_, one| *one != FileType::Unknown);
    said
}

fn give_up(trouble: Trouble) -> RepairError {
    match trouble {
        Trouble::Device(error) => RepairError::Device(error),
        Trouble::Full(what) => RepairError::Check(format!("no free {what}")),
        Trouble::Cannot(why) => RepairError::Check(why),
    }
}
