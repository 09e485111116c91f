//! All clients in one thread, in an order that the seed decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use extant_base::Prng;
use extant_block::{BlockDevice, FaultDevice, FaultPlan, RecordingDevice, SharedDevice};
use extant_sync::FixedClock;

use crate::model::{Generator, Model, Op, Outcome, Profile, errno};
use crate::proof::{Base, EPOCH, Recorded, Target};
use crate::proof::{Progress, check_zones, recorders};

/// A simulated run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What everything follows from.
    pub seed: u64,
    /// How many clients.
    pub clients: usize,
    /// Operations of all clients together.
    pub steps: usize,
    /// What they do.
    pub profile: Profile,
    /// Faults of the devices; the seed in it is replaced.
    pub faults: FaultPlan,
}

/// What happened.
#[derive(Debug)]
pub struct Simulated {
    /// The history, to be proved.
    pub recorded: Recorded,
    /// Operations of the device that failed.
    pub device_errors: u64,
    /// Operations of clients that failed for it.
    pub failed_ops: usize,
    /// Whether the file system gave up.
    pub gave_up: bool,
}

/// Runs the clients, comparing every answer with the model (S1, S2).
///
/// # Errors
///
/// The first answer that is wrong, with the operations before it.
pub fn simulate<T: Target>(target: &T, base: &Base, plan: &Plan) -> Result<Simulated, String> {
    let mut random = Prng::new(plan.seed);
    let recorders = recorders(base);
    let faulty: Vec<Arc<FaultDevice<RecordingDevice>>> = recorders
        .iter()
        .map(|recorder| {
            let faults = FaultPlan { seed: random.next_u64(), ..plan.faults.clone() };
            let below = Arc::clone(recorder);
            let device = FaultDevice::new(Arc::clone(recorder), faults)
                .on_failed_flush(move || below.note_failed_flush());
            device.set_enabled(false);
            Arc::new(device)
        })
        .collect();
    let enable = |enabled| faulty.iter().for_each(|device| device.set_enabled(enabled));
    let shared: Vec<SharedDevice> =
        faulty.iter().map(|device| Arc::clone(device) as Arc<dyn BlockDevice>).collect();
    let clock = Arc::new(FixedClock::at(EPOCH, 0));
    let fs = target.mount(&shared, Arc::clone(&clock))?;
    let start = target.snapshot(&fs, &base.rules)?;
    let mut model = Model::new(start.clone(), base.rules);
    model.now = EPOCH;
    let mut done = Progress::new(&recorders[0], &start, base.rules);
    let mut clients: Vec<(Generator, HashMap<usize, T::Handle>)> = (0..plan.clients.max(1))
        .map(|_| (Generator::new(random.next_u64(), plan.profile.clone()), HashMap::new()))
        .collect();
    let mut gave_up = false;
    let mut failed_ops = 0;
    enable(true);
    for _ in 0..plan.steps {
        let next = random.below(clients.len() as u64) as usize;
        let (generator, slots) = &mut clients[next];
        let op = generator.next_op(&model);
        clock.advance(Duration::from_secs(op.seconds().into()));
        model.now += i64::from(op.seconds());
        done.begin();
        let mut answer = target.apply(&fs, slots, &op);
        // Memory is left as it was when the journal stopped: a name of an inode that was being deleted.
        if failed_ops > 0 && answer == Err(errno::ESTALE) {
            answer = Err(errno::EROFS);
        }
        let failed = matches!(answer, Err(errno::EIO | errno::EROFS));
        failed_ops += usize::from(failed);
        let changes = changes(&op);
        let still = gave_up && changes && answer.is_ok();
        gave_up |= answer == Err(errno::EROFS);
        let text = op.to_string();
        done.end(&mut model, op, answer)?;
        if done.may_be_half() {
            enable(false);
            done.look_again(&mut model, &target.snapshot(&fs, &base.rules)?);
            enable(true);
        }
        if still && !is_no_op(answer, &done) {
            return Err(format!("S2: {text} succeeded after the file system gave up"));
        }
    }
    enable(false);
    if failed_ops == 0 {
        let found = target.snapshot(&fs, &base.rules)?;
        if found.fingerprint() != model.tree.fingerprint() {
            let lines = found.differences(&model.tree).join("\n");
            return Err(format!("at the end, found | wanted:\n{lines}\n{}", done.tail()));
        }
    }
    drop(clients);
    // As when the machine stops: nothing more is written.
    drop(fs);
    check_zones(base, &recorders[0])?;
    let device_errors = faulty.iter().map(|device| device.failed()).sum();
    let recorded = done.recorded(&recorders, start, base);
    Ok(Simulated { recorded, device_errors, failed_ops, gave_up })
}

/// Returns whether an operation changes the name space when it succeeds.
fn changes(op: &Op) -> bool {
    !matches!(
        op,
        Op::Sync
            | Op::Fsync { .. }
            | Op::Fdatasync { .. }
            | Op::Tick { .. }
            | Op::Map { .. }
            | Op::Hold { .. }
            | Op::Release { .. }
    )
}

/// Returns whether an operation that succeeded changed nothing, such as a rename to another name of
/// the same file.
fn is_no_op(answer: Outcome, done: &Progress) -> bool {
    answer.is_ok() && done.last_changed_nothing()
}
