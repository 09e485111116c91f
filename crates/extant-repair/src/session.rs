//! A repair from beginning to end: rounds of checking and fixing over a draft.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_base::{Ino, sabotage};
use extant_block::SharedDevice;
use extant_check::{Answer, CheckOptions, Examination, Objects, Problem, Severity, examine};
use extant_format::features::{Feature, State as FsState};
use extant_format::group::GroupFlags;
use extant_format::mmp::Mmp;
use extant_format::superblock::Superblock;

use crate::draft::Draft;
use crate::error::{Fixed, RepairError, Trouble};
use crate::plan::Plan;
use crate::space::Bits;
use crate::state::State;
use crate::{bitmaps, descriptors, dirs, inodes, journal, lost, special, supers, twice, xattrs};

/// Rounds after which a repair gives up.
const ROUNDS_MAX: u32 = 80;
/// Times that one problem is fixed before it is left.
const TRIES_MAX: u32 = 3;
/// Problems that are taken up in one round; the others come in the next.
const BATCH_MAX: usize = 200_000;

/// A finding that needs a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fix {
    /// The name of the broken rule, for programs.
    pub code: &'static str,
    /// Description of the problem.
    pub message: String,
    /// Description of the repair.
    pub fix: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Objects of the problem.
    pub objects: Objects,
    /// Why it was left as it is; `None`: it was set right.
    pub left: Option<String>,
}

impl Fix {
    fn of(problem: &Problem) -> Fix {
        Fix {
            code: problem.code(),
            message: problem.to_string(),
            fix: problem.fix(),
            severity: problem.severity(),
            objects: problem.objects(),
            left: None,
        }
    }
}

/// Decision about one finding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// Repair it.
    Fix,
    /// Leave it.
    Leave,
    /// The repair ends, and nothing is changed but what the journal holds.
    Stop,
}

/// The caller's side of a repair, which decides.
pub trait Ask {
    /// Called once for each finding, before anything is done about it.
    fn ask(&mut self, finding: &Fix) -> Decision;

    /// Called when a round begins.
    fn round(&mut self, _number: u32) {}
}

/// Decides to repair everything.
#[derive(Clone, Copy, Debug)]
pub struct Yes;

impl Ask for Yes {
    fn ask(&mut self, _finding: &Fix) -> Decision {
        Decision::Fix
    }
}

/// Sets right what can be computed, and stops at anything else.
#[derive(Clone, Copy, Debug)]
pub struct Preen;

impl Ask for Preen {
    fn ask(&mut self, finding: &Fix) -> Decision {
        match finding.severity {
            Severity::Count => Decision::Fix,
            _ => Decision::Stop,
        }
    }
}

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
    /// Trees of extents were looked at.
    trees_are_done: bool,
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
    let draft = Arc::new(Draft::over(device));
    let mut session = Session {
        draft: Arc::clone(&draft),
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
        trees_are_done: false,
    };
    let found = supers::find(&draft)?;
    session.stale_backups |= found.is_backup;
    for (code, message) in found.notes {
        session.tell(code, message, "write the superblock anew", Severity::FileSystem);
    }
    let mut sb = found.sb;
    let (mut transactions, mut fast_commits) = (0, 0);
    if !session.is_stopped {
        let mut state = session.state_for_journal(&sb)?;
        match journal::replay(&draft, &mut state) {
            Ok(Some(replayed)) => {
                transactions = replayed.transactions;
                fast_commits = replayed.fast_commits;
                if let Some(why) = replayed.trouble {
                    let text = format!("the log cannot be replayed: {why}");
                    session.tell("journal-log", text, "empty the log", Severity::FileSystem);
                } else if let Some(why) = replayed.lost_fast_commits {
                    let text = format!("{fast_commits} fast commits cannot be brought in: {why}");
                    session.tell("journal-log", text, "leave them out", Severity::FileSystem);
                } else if replayed.damaged > 0 {
                    let text = format!("{} blocks of the log are damaged", replayed.damaged);
                    session.tell("journal-log", text, "leave them out", Severity::FileSystem);
                }
            }
            Ok(None) => {}
            Err(Trouble::Device(error)) => return Err(RepairError::Device(error)),
            Err(_) => {}
        }
        sb = supers::reread(&draft)?;
    }
    let is_touched = !draft.stages().is_empty();
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

/// Options of the checks.
const CHECK: CheckOptions = CheckOptions {
    require_replayed: true,
    require_no_orphans: true,
    require_clean_state: true,
    strict_totals: true,
    max_problems: 1000,
};

/// In which order problems are taken up: what others follow from comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Super,
    Groups,
    Log,
    Inodes,
    Journal,
    Twice,
    Special,
    Orphans,
    Dirs,
    Dots,
    Loops,
    Lost,
    Links,
    Counts,
    Quota,
    Bitmaps,
    Totals,
    State,
    Unknown,
}

fn phase(problem: &Problem) -> Phase {
    use Problem as P;
    match problem {
        P::DeviceTooSmall { .. }
        | P::SuperblockChecksum(..)
        | P::ExtraSize { .. }
        | P::Feature { .. }
        | P::Mmp(..) => Phase::Super,
        P::Group(..)
        | P::OutsideGroup { .. }
        | P::MetadataOverlap { .. }
        | P::TableUnused { .. }
        | P::GroupFlags { .. } => Phase::Groups,
        P::NeedsRecovery => Phase::Log,
        P::SpecialInode { field: "the list of bad blocks" | "a reserved inode", .. } => {
            Phase::Inodes
        }
        P::Size { why: special::ORPHAN_SIZE, .. } => Phase::Orphans,
        P::Size { why: special::QUOTA_SIZE, .. } => Phase::Quota,
        P::BlockChecksum { source, .. } if !is_node(source.structure) => Phase::Dirs,
        P::Inode { .. }
        | P::Mode { .. }
        | P::Flags { .. }
        | P::Reserved { .. }
        | P::Unwritten { .. }
        | P::Encryption { .. }
        | P::Size { .. }
        | P::Extent { .. }
        | P::ExtentRoom { .. }
        | P::BlockChecksum { .. }
        | P::Cluster { .. }
        | P::BlockRange { .. }
        | P::FileBlock { .. }
        | P::Inline { .. }
        | P::Symlink { .. }
        | P::Special { .. }
        | P::Xattr { .. }
        | P::XattrChecksum { .. }
        | P::XattrName { .. }
        | P::XattrEntryHash { .. }
        | P::XattrBlockHash { .. } => Phase::Inodes,
        P::XattrInode { ino, value, .. } if ino != value => Phase::Inodes,
        P::SpecialInode { field: "s_journal_inum", .. }
        | P::Journal(..)
        | P::JournalChecksum(..)
        | P::JournalState { .. } => Phase::Journal,
        P::ClaimedTwice { .. } | P::ClusterSplit { .. } => Phase::Twice,
        P::ResizeInode { .. } | P::SpecialInode { .. } => Phase::Special,
        P::Orphans { .. } | P::Orphan { .. } | P::OrphanFile(..) | P::Dtime { .. } => {
            Phase::Orphans
        }
        P::Dir { .. }
        | P::DirHole { .. }
        | P::DotsEnd { .. }
        | P::Name { .. }
        | P::DuplicateName { .. }
        | P::EntryInode { .. }
        | P::EntryType { .. }
        | P::SecondParent { .. }
        | P::Htree { .. }
        | P::HtreeReference { .. }
        | P::HtreeHash { .. }
        | P::HtreeRange { .. } => Phase::Dirs,
        P::Dots { .. } => Phase::Dots,
        P::Loop { .. } => Phase::Loops,
        P::Unreachable { .. } | P::NotOrphan { .. } => Phase::Lost,
        P::Links { .. } => Phase::Links,
        P::XattrReferences { .. } | P::XattrInode { .. } | P::Sectors { .. } => Phase::Counts,
        P::Quota { .. } | P::QuotaKind { .. } | P::QuotaUsage { .. } => Phase::Quota,
        P::BitmapChecksum { .. }
        | P::Padding { .. }
        | P::BlockBitmap { .. }
        | P::InodeBitmap { .. }
        | P::UninitUsed { .. }
        | P::GroupCount { .. } => Phase::Bitmaps,
        P::SuperblockCount { .. } => Phase::Totals,
        P::State { .. } => Phase::State,
        _ => Phase::Unknown,
    }
}

/// Returns whether a checksum is that of a node of a map.
fn is_node(structure: &str) -> bool {
    structure.contains("extent")
}

impl Session<'_> {
    /// Asks about something that the checker has no problem for.
    fn tell(&mut self, code: &'static str, message: String, fix: &'static str, severity: Severity) {
        let objects = Objects::default();
        let mut finding = Fix { code, message, fix, severity, objects, left: None };
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
        State::new(Arc::clone(&self.draft), sb.clone(), Examination::default(), &mut pins, self.now)
            .map_err(give_up)
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
            let mut exam = examine(&*self.draft, &CHECK, &mut meet)?;
            let wanted = std::mem::take(&mut exam.wanted);
            let first = wanted.iter().map(phase).min();
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
            let batch: Vec<Problem> =
                wanted.into_iter().filter(|problem| phase(problem) == first).collect();
            let batch = self.decide(batch);
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
            if self.first_pins.is_none() {
                self.first_pins = self.pins.clone();
                self.mark(&mut state)?;
            }
            self.fix(&mut state, first, &batch)?;
            *sb = supers::reread(&self.draft)?;
        }
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

    /// Returns those of a batch that are to be fixed.
    fn decide(&mut self, batch: Vec<Problem>) -> Vec<Problem> {
        let mut wanted = Vec::with_capacity(batch.len());
        let mut tried = BTreeSet::new();
        for problem in batch {
            let key = problem.to_string();
            if !self.asked.contains_key(&key) {
                let finding = Fix::of(&problem);
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
                self.leave(&problem, "it comes back");
                continue;
            }
            wanted.push(problem);
        }
        wanted
    }

    fn leave(&mut self, problem: &Problem, why: &str) {
        let key = problem.to_string();
        let at = *self.asked.entry(key.clone()).or_insert_with(|| {
            self.findings.push(Fix::of(problem));
            self.findings.len() - 1
        });
        if let Some(finding) = self.findings.get_mut(at) {
            finding.left = Some(why.to_owned());
        }
        self.left.insert(key);
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

    /// Fixes a batch of one phase.
    fn fix(
        &mut self,
        state: &mut State,
        phase: Phase,
        batch: &[Problem],
    ) -> Result<(), RepairError> {
        match phase {
            Phase::Super => {
                let result = fix_super(state, batch);
                self.stale_backups = true;
                self.note(batch, result)
            }
            Phase::Groups => self.fix_groups(state, batch),
            Phase::Log => {
                // Nothing waits in the log any more.
                state.sb.features.remove(Feature::RECOVER);
                let result = state.write_superblock();
                self.note(batch, result)
            }
            Phase::Inodes => self.fix_inodes(state, batch),
            Phase::Twice => self.fix_twice(state, batch),
            Phase::Special => self.fix_special(state, batch),
            Phase::Journal => {
                let is_gone = batch.iter().any(|one| matches!(one, Problem::SpecialInode { .. }));
                let result = journal::fix(state, is_gone);
                self.stale_backups = true;
                self.note(batch, result)
            }
            Phase::Orphans => self.fix_orphans(state, batch),
            Phase::Dirs => self.fix_dirs(state, batch),
            Phase::Dots => {
                for problem in batch {
                    let Problem::Dots { dir, name, wanted, .. } = problem else { continue };
                    let result = match *name {
                        ".." => dirs::set_parent(state, *dir, *wanted),
                        _ => dirs::fix(state, *dir, std::slice::from_ref(problem)),
                    };
                    self.note(std::slice::from_ref(problem), result)?;
                }
                Ok(())
            }
            Phase::Loops => {
                for problem in batch {
                    let Problem::Loop { ino } = problem else { continue };
                    let result = lost::break_loop(state, *ino);
                    self.note(std::slice::from_ref(problem), result)?;
                }
                Ok(())
            }
            Phase::Lost => self.fix_lost(state, batch),
            Phase::Links => {
                for problem in batch {
                    let Problem::Links { ino, counted, .. } = problem else { continue };
                    let result = lost::set_links(state, *ino, *counted);
                    self.stale_backups |= *counted > extant_format::inode::LINKS_MAX;
                    self.note(std::slice::from_ref(problem), result)?;
                }
                Ok(())
            }
            Phase::Counts => self.fix_counts(state, batch),
            Phase::Quota => {
                for kind in special::quota_kinds(&state.sb, batch) {
                    let result = special::write_quota(state, kind, false);
                    self.note(batch, result)?;
                }
                Ok(())
            }
            Phase::Bitmaps => {
                for group in bitmaps::groups_of(batch) {
                    let result = bitmaps::fix_group(state, group);
                    self.note(batch, result)?;
                }
                let result = bitmaps::fix_totals(state);
                self.note(batch, result)
            }
            Phase::Totals => {
                let result = bitmaps::fix_totals(state);
                self.note(batch, result)
            }
            Phase::State => {
                if !self.left.is_empty() {
                    for problem in batch {
                        self.leave(problem, "other problems are left");
                    }
                    return Ok(());
                }
                state.sb.state.insert(FsState::VALID);
                state.sb.state.remove(FsState::ERROR | FsState::ORPHAN);
                state.sb.error_count = 0;
                let result = state.write_superblock();
                self.note(batch, result)
            }
            Phase::Unknown => {
                for problem in batch {
                    self.leave(problem, "this version has no rule for it");
                }
                Ok(())
            }
        }
    }

    fn fix_groups(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for problem in batch {
            let result = match problem {
                Problem::GroupFlags { group, .. } => state.group(group.0).and_then(|descriptor| {
                    let mut descriptor = descriptor;
                    let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
                    descriptor.flags.remove(uninit);
                    descriptor.itable_unused = 0;
                    state.set_group(group.0, descriptor)
                }),
                Problem::TableUnused { group, .. } => state.group(group.0).and_then(|descriptor| {
                    let mut descriptor = descriptor;
                    descriptor.itable_unused = 0;
                    state.set_group(group.0, descriptor)
                }),
                _ => {
                    self.stale_backups = true;
                    descriptors::fix(state, problem)
                }
            };
            self.note(std::slice::from_ref(problem), result)?;
        }
        Ok(())
    }

    fn by_inode(batch: &[Problem]) -> BTreeMap<Ino, Vec<Problem>> {
        let mut map = BTreeMap::<Ino, Vec<Problem>>::new();
        for problem in batch {
            map.entry(problem.objects().ino.unwrap_or_default()).or_default().push(problem.clone());
        }
        map
    }

    fn fix_inodes(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for (ino, problems) in Self::by_inode(batch) {
            let (attributes, others): (Vec<Problem>, Vec<Problem>) =
                problems.into_iter().partition(|problem| problem.code().starts_with("xattr"));
            if !attributes.is_empty() {
                let result = if ino.0 == 0 {
                    fix_block_hashes(state, &attributes)
                } else {
                    xattrs::fix(state, ino, &attributes)
                };
                self.note(&attributes, result)?;
            }
            if others.is_empty() {
                continue;
            }
            let named = others.iter().find_map(|problem| match problem {
                Problem::SpecialInode { field, .. } => Some(*field),
                _ => None,
            });
            let result = match named {
                Some(field) => special::fix_named(state, field, ino),
                None if ino == Ino::RESIZE => special::fix_resize(state),
                None => inodes::fix(state, ino, &others),
            };
            self.note(&others, result)?;
        }
        Ok(())
    }

    fn fix_twice(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        let inodes: BTreeSet<Ino> =
            batch.iter().filter_map(|problem| problem.objects().ino).collect();
        if inodes.contains(&Ino::RESIZE) {
            let result = special::fix_resize(state);
            return self.note(batch, result);
        }
        match twice::fix(state, &inodes) {
            // A problem that was not found is reported again, and left then.
            Ok(()) => Ok(()),
            // Contents of files need the room more than a journal does.
            Err(Trouble::Full(_)) if journal::is_part_of(state, batch).unwrap_or(false) => {
                let result = journal::remove(state);
                self.stale_backups = true;
                self.note(batch, result)
            }
            Err(trouble) => self.note(batch, Err(trouble)),
        }
    }

    fn fix_special(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for problem in batch {
            let result = match problem {
                Problem::ResizeInode { .. } => special::fix_resize(state),
                Problem::SpecialInode { field, ino, .. } => {
                    self.stale_backups |= *field != "the root";
                    special::fix_named(state, field, *ino)
                }
                _ => Ok(()),
            };
            self.note(std::slice::from_ref(problem), result)?;
        }
        Ok(())
    }

    fn fix_orphans(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        let mut in_general = Vec::new();
        for problem in batch {
            match problem {
                Problem::Dtime { ino, .. } => {
                    let result = inodes::fix(state, *ino, std::slice::from_ref(problem));
                    self.note(std::slice::from_ref(problem), result)?;
                }
                _ => in_general.push(problem.clone()),
            }
        }
        if in_general.is_empty() {
            return Ok(());
        }
        let is_file = in_general
            .iter()
            .any(|problem| matches!(problem, Problem::OrphanFile(..) | Problem::Size { .. }));
        let result = special::finish_orphans(state)
            .and_then(|()| if is_file { special::fix_orphan_file(state) } else { Ok(()) });
        self.note(&in_general, result)
    }

    fn fix_dirs(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for (dir, problems) in Self::by_inode(batch) {
            let result = dirs::fix(state, dir, &problems);
            self.note(&problems, result)?;
        }
        Ok(())
    }

    fn fix_lost(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for problem in batch {
            let result = match problem {
                Problem::Unreachable { ino } => lost::reconnect(state, *ino),
                Problem::NotOrphan { ino } => match state.load(*ino) {
                    Ok(mut record) => state.delete_inode(&mut record),
                    Err(trouble) => Err(trouble),
                },
                _ => Ok(()),
            };
            self.note(std::slice::from_ref(problem), result)?;
        }
        Ok(())
    }

    fn fix_counts(&mut self, state: &mut State, batch: &[Problem]) -> Result<(), RepairError> {
        for problem in batch {
            let result = match problem {
                Problem::XattrReferences { block, counted, .. } => {
                    xattrs::set_references(state, block.0, *counted)
                }
                Problem::XattrInode { value, .. } => fix_value(state, *value),
                Problem::Sectors { ino, .. } => {
                    inodes::fix(state, *ino, std::slice::from_ref(problem))
                }
                _ => Ok(()),
            };
            self.note(std::slice::from_ref(problem), result)?;
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
        if self.stale_backups {
            write_backups(&state).map_err(give_up)?;
        }
        Ok(())
    }
}

fn give_up(trouble: Trouble) -> RepairError {
    match trouble {
        Trouble::Device(error) => RepairError::Device(error),
        Trouble::Full(what) => RepairError::Check(format!("no free {what}")),
        Trouble::Cannot(why) => RepairError::Check(why),
    }
}

fn fix_super(state: &mut State, batch: &[Problem]) -> Fixed {
    for problem in batch {
        match problem {
            Problem::ExtraSize { field, max, .. } => {
                let right = 32.min(*max) / 4 * 4;
                match *field {
                    "s_min_extra_isize" => state.sb.min_extra_isize = right,
                    _ => state.sb.want_extra_isize = right,
                }
            }
            Problem::SuperblockChecksum(_) => {}
            Problem::Feature { name, .. } => {
                let feature = Feature::from_name(name)
                    .map_err(|_| Trouble::cannot(format!("feature {name} is not known")))?;
                state.add_feature(feature);
            }
            Problem::Mmp(_) => {
                let block = state.sb.mmp_block.0;
                let mut bytes = vec![0; state.block_bytes()];
                let seed = state.dir_layout.checksum.then_some(state.seed);
                let clean = Mmp::clean(state.sb.mmp_interval).encode(seed);
                extant_format::record::put(&mut bytes, 0, &clean);
                state.write_block(block, &bytes)?;
            }
            Problem::DeviceTooSmall { .. } => {
                return Err(Trouble::cannot(
                    "the device is too small: make it larger, and repair it then",
                ));
            }
            _ => {}
        }
    }
    state.write_superblock()
}

fn fix_block_hashes(state: &mut State, problems: &[Problem]) -> Fixed {
    for problem in problems {
        if let Problem::XattrBlockHash { block, .. } = problem {
            let bytes = state.read_block(block.0)?;
            let references = extant_format::record::u32_at(&bytes, 4);
            xattrs::set_references(state, block.0, references)?;
        }
    }
    Ok(())
}

/// Sets the number of references of an inode that holds a value.
fn fix_value(state: &mut State, value: Ino) -> Fixed {
    let counted = state.exam.value_references(value);
    let mut record = state.load(value)?;
    record.put32(extant_format::record::CTIME, (counted >> 32) as u32);
    record.put32(0x24, counted as u32);
    state.store(&record)
}

/// Writes all backups of the superblock and of the descriptors that belong to it.
fn write_backups(state: &State) -> Fixed {
    use extant_base::GroupIndex;
    use extant_block::BlockDevice;
    let mut sb = state.sb.clone();
    sb.features.remove(Feature::RECOVER);
    for group in state.heads.superblock_groups().skip(1) {
        let head = state.heads.head(group);
        let Some(block) = head.super_block else { continue };
        let at = block.saturating_mul(state.block_bytes() as u64);
        state.draft.write_at(at, &sb.encode_backup(group))?;
        for index in 0..state.sb.descriptor_blocks() {
            let copy = state.heads.descriptor_block_copy(index, group);
            let own = state.heads.descriptor_block_copy(index, GroupIndex(0));
            if let (Some(copy), Some(own)) = (copy, own)
                && copy != own
                && state.in_range(copy.0, 1)
            {
                let bytes = state.read_block(own.0)?;
                state.write_block(copy.0, &bytes)?;
            }
        }
    }
    Ok(())
}
