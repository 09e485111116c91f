//! From what is asked for to steps, and from steps to the device.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_block::{BlockDevice, SharedDevice};
use extant_change::{
    Committer, Draft, Guard, Image, Seen, Tell, is_unsettled, settle, settled_view, superblock,
};
use extant_check::CheckOptions;
use extant_format::features::Features;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_repair::{RepairOptions, Yes, repair};
use extant_sync::Clock;

use crate::error::{Result, TuneError, refuse};
use crate::request::{Conversion, Request};
use crate::work::{Planned, Work};
use crate::{bits, checksums, files, inodes, wide};

/// A step of a conversion, as it would be done or was done.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Done {
    /// The feature or setting.
    pub what: String,
    /// Blocks that are written first, in which the file system before sees nothing new.
    pub quiet_blocks: u64,
    /// Blocks that switch over.
    pub switched_blocks: u64,
    /// Cut at any write, the image is the one before or the one after; otherwise it may be one that says
    /// that it needs a check.
    pub is_atomic: bool,
}

/// What a request comes to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    /// The steps, in order; none: everything is as asked for.
    pub steps: Vec<Done>,
    /// The features afterwards.
    pub features: Features,
}

fn name(request: &Request, conversion: Conversion) -> String {
    use Conversion as C;
    let bits = |on: bool| {
        let mut names: Vec<String> = Vec::new();
        for (feature, value) in &request.features {
            if *value == on {
                names.push(if on { feature.to_string() } else { format!("^{feature}") });
            }
        }
        names.join(",")
    };
    match conversion {
        C::QuotaOff => "^quota".to_owned(),
        C::OrphanFileOff => "^orphan_file".to_owned(),
        C::FastCommitOff => "^fast_commit".to_owned(),
        C::JournalOff => "^has_journal".to_owned(),
        C::MmpOff => "^mmp".to_owned(),
        C::ChecksumsOff => "^metadata_csum".to_owned(),
        C::GroupChecksumsOff => "^uninit_bg".to_owned(),
        C::BitsOff => bits(false),
        C::WideOff => "^64bit".to_owned(),
        C::InodeSize => "inode size".to_owned(),
        C::WideOn => "64bit".to_owned(),
        C::Bits => bits(true),
        C::GroupChecksumsOn => "uninit_bg".to_owned(),
        C::ChecksumsOn => "metadata_csum".to_owned(),
        C::SeedOff => "^metadata_csum_seed".to_owned(),
        C::SeedOn => "metadata_csum_seed".to_owned(),
        C::Uuid => "uuid".to_owned(),
        C::MmpOn => "mmp".to_owned(),
        C::JournalSize => "journal size".to_owned(),
        C::JournalOn => "has_journal".to_owned(),
        C::FastCommitOn => "fast_commit".to_owned(),
        C::OrphanFileOn => "orphan_file".to_owned(),
        C::QuotaOn => "quota".to_owned(),
        C::Settings => "settings".to_owned(),
    }
}

fn convert(work: &mut Work<'_>, conversion: Conversion) -> Result {
    use Conversion as C;
    match conversion {
        C::QuotaOff => files::quota_off(work),
        C::OrphanFileOff => files::orphan_file_off(work),
        C::FastCommitOff => {
            work.image.sb.features.remove(extant_format::features::Feature::FAST_COMMIT);
            Ok(work.image.write_superblock()?)
        }
        C::JournalOff => files::journal_off(work),
        C::MmpOff => files::mmp_off(work),
        C::ChecksumsOff => checksums::off(work),
        C::GroupChecksumsOff => checksums::groups_off(work),
        C::BitsOff => bits::off(work),
        C::WideOff => wide::off(work),
        C::InodeSize => inodes::resize(work),
        C::WideOn => wide::on(work),
        C::Bits => bits::on(work),
        C::GroupChecksumsOn => checksums::groups_on(work),
        C::ChecksumsOn => checksums::on(work),
        C::SeedOff => checksums::seed_off(work),
        C::SeedOn => checksums::seed_on(work),
        C::Uuid => checksums::uuid(work),
        C::MmpOn => files::mmp_on(work),
        C::JournalSize => files::journal_size(work),
        C::JournalOn => files::journal_on(work),
        C::FastCommitOn => files::fast_commit_on(work),
        C::OrphanFileOn => files::orphan_file_on(work),
        C::QuotaOn => files::quota_on(work),
        C::Settings => checksums::settings(work),
    }
}

/// What is checked of an image as it will be.
fn options() -> CheckOptions {
    CheckOptions {
        require_replayed: false,
        require_no_orphans: false,
        strict_totals: false,
        ..CheckOptions::default()
    }
}

/// Nothing may be wrong with the image as it is, where the step would hide it, or goes by bitmaps and maps: what
/// those call free or the journal's may be a file's.
fn check_base(work: &Work<'_>) -> Result {
    let goes_by_marks = !work.to_check && !work.space.is_untouched();
    if !work.to_check_base && !goes_by_marks {
        return Ok(());
    }
    match extant_check::check(&*work.base, &options())?.problems.first() {
        Some(problem) => Err(TuneError::damaged(problem)),
        None => Ok(()),
    }
}

/// Nothing may be wrong with the image as it will be. Directories that have to be written anew are.
fn check(work: &mut Work<'_>) -> Result {
    if !work.to_check && work.full_dirs.is_empty() {
        return Ok(());
    }
    work.settle_space()?;
    let view = work.view();
    let report = extant_check::check(&*view, &options())?;
    let full = &work.full_dirs;
    let other = report
        .problems
        .iter()
        .find(|problem| !problem.objects().ino.is_some_and(|ino| full.contains(&ino)));
    if let Some(problem) = other {
        // Only what was wrong before is for a repair.
        if !extant_check::check(&*work.base, &options())?.is_clean() {
            return Err(TuneError::damaged(problem));
        }
        return refuse(
            &work.what,
            format!("the file system would not be in order then: {problem}"),
        );
    }
    if report.problems.is_empty() {
        return Ok(());
    }
    let options = RepairOptions { now: work.request.now };
    let outcome = repair(work.view(), &options, &mut Yes)?;
    if !outcome.is_clean {
        return Err(TuneError::damaged("directories cannot be written anew"));
    }
    outcome.plan.apply(&*view)?;
    // What the repair changed is read again.
    Ok(work.image.reload()?)
}

/// What a conversion consists of for the image as it is then. Checksums with another seed are taken away
/// and made again: in place, the file system before would take them for damage, and a check clears what
/// is damaged.
fn parts(sb: &Superblock, request: &Request, conversion: Conversion) -> Vec<Conversion> {
    use Conversion as C;
    match conversion {
        C::Uuid if checksums::depend_on_uuid(sb) && !request.keep_checksums => {
            vec![C::ChecksumsOff, C::Uuid, C::ChecksumsOn]
        }
        C::SeedOff if checksums::have_other_seed(sb) => vec![C::ChecksumsOff, C::ChecksumsOn],
        _ => vec![conversion],
    }
}

fn steps(base: &SharedDevice, request: &Request) -> Result<(Vec<Planned>, Features)> {
    let sb = superblock(&**base)?;
    bits::check_words(&request.features, |feature| sb.features.has(feature))?;
    let mut planned: Vec<Planned> = Vec::new();
    let mut features = sb.features;
    let mut view = Arc::clone(base);
    let mut todo: VecDeque<Conversion> = request.conversions(&sb)?.into();
    // How many of the next conversions are parts of one.
    let mut parts_left = 0;
    while let Some(conversion) = todo.pop_front() {
        if parts_left == 0 {
            let parts = parts(&superblock(&*view)?, request, conversion);
            parts_left = parts.len();
            parts.into_iter().rev().for_each(|part| todo.push_front(part));
            continue;
        }
        parts_left -= 1;
        let mut work = Work::over(Arc::clone(&view), request, name(request, conversion))?;
        convert(&mut work, conversion)?;
        check_base(&work)?;
        check(&mut work)?;
        if work.recount {
            files::recount(&mut work)?;
        }
        let step = work.finish()?;
        features = step.step.sb.features;
        if step.step.switch.is_empty() {
            continue;
        }
        if !todo.is_empty() {
            let draft = Draft::over(view, base.size_bytes(), sb.block_size.len());
            step.show_in(&draft)?;
            view = Arc::new(draft);
        }
        planned.push(step);
    }
    Ok((planned, features))
}

fn plan_of(device: &SharedDevice, planned: &[Planned], features: Features) -> Result<Plan> {
    let image = Image::open(Arc::clone(device), 0)?;
    let mut limit = Committer::of(&image)?.limit()?;
    let mut steps = Vec::new();
    for one in planned {
        let step = &one.step;
        let switched = step.switch.len();
        let fits = limit.is_some_and(|limit| switched < u64::from(limit));
        steps.push(Done {
            what: one.what.clone(),
            quiet_blocks: step.quiet.len(),
            switched_blocks: switched,
            is_atomic: switched == 1 || step.may_journal && fits,
        });
        if !step.sb.features.has(extant_format::features::Feature::HAS_JOURNAL) {
            limit = None;
        }
    }
    Ok(Plan { steps, features })
}

/// Says what a request comes to. Nothing is written.
///
/// # Errors
///
/// [`TuneError`]: what is in the way, by name.
pub fn plan(device: &SharedDevice, request: &Request) -> std::result::Result<Plan, TuneError> {
    if let Some(plan) = only_cleared(device, request)? {
        return Ok(plan);
    }
    let view = settled_view(device)?;
    let (planned, features) = steps(&view, request)?;
    let mut plan = plan_of(&view, &planned, features)?;
    if request.clear_mmp && Guard::left(&**device, &superblock(&**device)?)?.is_some() {
        plan.steps.insert(0, cleared());
    }
    Ok(plan)
}

/// The plan of a request for nothing but that, which a file system in any state gets: a repair that was cut
/// off leaves one that nothing else is done to.
fn only_cleared(device: &SharedDevice, request: &Request) -> Result<Option<Plan>> {
    let others = Request { clear_mmp: false, now: 0, ..request.clone() };
    if !request.clear_mmp || others != Request::default() {
        return Ok(None);
    }
    let steps = extant_repair::holder(device)?.map(|_| cleared());
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let features = Superblock::decode_unverified(&bytes)
        .map_or_else(|_| Features::default(), |sb| sb.features);
    Ok(Some(Plan { steps: steps.into_iter().collect(), features }))
}

/// The step that takes the file system away from whoever was cut off.
fn cleared() -> Done {
    Done { what: "clear_mmp".to_owned(), quiet_blocks: 0, switched_blocks: 1, is_atomic: true }
}

/// Is told what will be overwritten, each place an offset and a length in bytes; an error ends the change.
pub type BeforeWriting<'a> = dyn FnMut(&[(u64, u64)]) -> std::result::Result<(), TuneError> + 'a;

/// Does what a request says, all of it planned before the first write, step by step.
///
/// `before_writing` is called with everything that will be overwritten, as offset and length, when all
/// is planned: a caller keeps a copy of it, to undo the change.
///
/// With multi-mount protection, nobody else has the file system meanwhile: this waits by the clock's
/// [`sleep`](Clock::sleep) for others to show themselves, once before the first write (11 s as a rule), once
/// more where the block says that a mount has it, and as a mount does before a journal is replayed; 6 minutes
/// each at most. `tell` is told before each wait, with the number of seconds.
///
/// # Errors
///
/// [`TuneError`]. If the device failed, what is there then, [`Done::is_atomic`] says for each step.
pub fn tune(
    device: &SharedDevice,
    request: &Request,
    before_writing: &mut BeforeWriting<'_>,
    clock: &Arc<dyn Clock>,
    tell: &mut Tell<'_>,
) -> std::result::Result<Plan, TuneError> {
    if let Some(plan) = only_cleared(device, request)? {
        if !plan.steps.is_empty() {
            extant_repair::clear(device)?;
        }
        return Ok(plan);
    }
    let sb = superblock(&**device)?;
    let is_cleared = request.clear_mmp && Guard::left(&**device, &sb)?.is_some();
    if is_cleared {
        Guard::clear(&**device, &sb)?;
    }
    if is_unsettled(&sb) {
        // What cannot be done is known before anything is written.
        plan(device, request)?;
        settle(device, clock, tell)?;
    }
    let seen = Seen::look(&**device, &superblock(&**device)?, &**clock, tell)?;
    let (planned, features) = steps(device, request)?;
    let mut plan = plan_of(device, &planned, features)?;
    if is_cleared {
        plan.steps.insert(0, cleared());
    }
    if planned.is_empty() {
        return Ok(plan);
    }
    before_writing(&places(&planned))?;
    let mut guard = seen.claim(device, false, &**clock, tell)?;
    let changed = change(device, planned, &mut guard);
    // Whatever became of it: nothing more is written.
    let ended = guard.end();
    changed?;
    ended?;
    Ok(plan)
}

/// Does the steps, each under the protection that the file system has before it.
fn change(device: &SharedDevice, planned: Vec<Planned>, guard: &mut Guard) -> Result {
    let mut left = planned.len();
    for mut one in planned {
        left -= 1;
        let after = guard.after(&mut one.step, left == 0)?;
        for run in &one.zeroes {
            device.write_zeroes(run.start, run.end - run.start)?;
        }
        let mut committer = Committer::of(&Image::open(Arc::clone(device), 0)?)?;
        committer.apply(one.step)?;
        *guard = after;
    }
    Ok(())
}

/// What the steps overwrite of what anybody looks at: what becomes zeros is free, or was never used.
fn places(planned: &[Planned]) -> Vec<(u64, u64)> {
    let mut list = Vec::new();
    for one in planned {
        let size = u64::from(one.step.sb.block_size.bytes());
        let runs = one.step.quiet.runs().chain(one.step.switch.runs());
        list.extend(runs.map(|(start, len)| (start * size, len * size)));
        list.extend(one.step.backups.iter().map(|(at, bytes)| (*at, bytes.len() as u64)));
    }
    list
}
