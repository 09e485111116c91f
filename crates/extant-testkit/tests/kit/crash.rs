//! The tester of crashes, tested with a file system of three blocks that is right, and with the
//! same one after each of the mistakes that the proof is there to find.

use std::collections::HashMap;
use std::sync::Arc;

use extant_block::{AlignedBuffer, BlockDevice, FaultPlan, MemoryDevice, Operation, SharedDevice};
use extant_sync::{FixedClock, Mutex, Rank};
use extant_testkit::crash::Sampling;
use extant_testkit::model::{FileKind, Generator, Model, Node, Op, Outcome, Profile, Rules, Tree};
use extant_testkit::proof::{Base, EPOCH, Proof, Target, record};
use extant_testkit::sim::{Plan, run_threads, simulate};

const RULES: Rules =
    Rules { times: true, crtime: true, project: false, full: false, contents: false };
const SLOT_BYTES: usize = 2048;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mistake {
    None,
    /// The pointer is written before what it points to is durable.
    NoFlushBefore,
    /// A sync returns before its pointer is durable.
    NoFlushAfter,
    /// A flush in one batch with what it should protect.
    FlushInBatch,
    /// The present state is overwritten.
    InPlace,
    /// An operation is stored in two halves.
    Halves,
    /// A sync is tried again after its flush failed, and believed.
    SecondFlush,
    /// Recovery forgets an operation when it runs twice.
    RecoveryTwice,
}

/// Stores how many operations were done, in four sectors of one of two slots; block 0 says which.
/// What the operations were is kept beside the device.
struct Toy {
    mistake: Mistake,
    done: Mutex<Vec<(Op, Outcome)>>,
}

struct ToyFs {
    device: SharedDevice,
    state: Mutex<ToyState>,
    recording: bool,
}

struct ToyState {
    model: Model,
    count: u32,
    slot: u8,
    /// It gave up.
    dead: bool,
}

fn start() -> Tree {
    let mut root = Node::new(FileKind::Directory);
    root.links = 2;
    root.permissions = 0o755;
    Tree::new(root)
}

fn format() -> Base {
    let device = MemoryDevice::new(16384);
    device.write_at(0, &[1]).unwrap();
    let (name, devices, zones) = ("toy".to_owned(), vec![device], Vec::new());
    Base { name, devices, rules: RULES, kernel: false, unit: 512, zones }
}

impl Toy {
    fn new(mistake: Mistake) -> Toy {
        Toy { mistake, done: Mutex::new(Rank::Freeze, Vec::new()) }
    }

    fn commit(&self, fs: &ToyFs, state: &mut ToyState) -> Result<(), String> {
        let device = &fs.device;
        let next = if self.mistake == Mistake::InPlace { state.slot } else { 3 - state.slot };
        let bytes: Vec<u8> = state.count.to_le_bytes().repeat(SLOT_BYTES / 4);
        let slot = Operation::Write {
            offset: u64::from(next) * 4096,
            buffer: AlignedBuffer::copy_of(&bytes),
            fua: false,
        };
        let mut batch = vec![slot];
        if self.mistake == Mistake::FlushInBatch {
            batch.push(Operation::Flush);
        }
        device.submit(batch).wait_all().map_err(|error| error.to_string())?;
        if !matches!(self.mistake, Mistake::NoFlushBefore | Mistake::FlushInBatch) {
            device.flush().map_err(|error| error.to_string())?;
        }
        device.write_at(0, &[next]).map_err(|error| error.to_string())?;
        if self.mistake != Mistake::NoFlushAfter {
            device.flush().map_err(|error| error.to_string())?;
        }
        state.slot = next;
        Ok(())
    }
}

impl Target for Toy {
    type Fs = ToyFs;
    type Handle = ();

    fn mount(&self, devices: &[SharedDevice], _: Arc<FixedClock>) -> Result<ToyFs, String> {
        let device = Arc::clone(&devices[0]);
        let mut slot = [0];
        device.read_at(0, &mut slot).map_err(|error| error.to_string())?;
        let mut bytes = [0; SLOT_BYTES];
        device.read_at(u64::from(slot[0]) * 4096, &mut bytes).map_err(|e| e.to_string())?;
        let (first, _) = bytes.split_first_chunk::<4>().unwrap();
        if bytes.chunks(4).any(|other| other != first) {
            return Err("the slot is torn".to_owned());
        }
        let mut count = u32::from_le_bytes(*first);
        let mut model = Model::new(start(), RULES);
        let done = self.done.lock();
        for (number, (op, answer)) in done.iter().take(count as usize).enumerate() {
            model.now = EPOCH + 1 + number as i64;
            model.follow(op, *answer).map_err(|wanted| format!("{wanted:?}"))?;
            if self.mistake == Mistake::Halves && number + 1 == count as usize {
                model.tree.node_mut(model.tree.root()).permissions ^= 1;
            }
        }
        if self.mistake == Mistake::RecoveryTwice && slot[0] == 2 && count > 0 {
            count = count.saturating_sub(5);
        }
        let recording = done.is_empty();
        let state = ToyState { model, count, slot: slot[0], dead: false };
        Ok(ToyFs { device, state: Mutex::new(Rank::InodeContent, state), recording })
    }

    fn apply(&self, fs: &ToyFs, _: &mut HashMap<usize, ()>, op: &Op) -> Outcome {
        let mut done = self.done.lock();
        let mut state = fs.state.lock();
        if state.dead {
            return Err(30);
        }
        state.count += 1;
        state.model.now = EPOCH + i64::from(state.count);
        let answer = state.model.apply(op);
        if fs.recording {
            done.push((op.clone(), answer));
        }
        if matches!(op, Op::Sync | Op::Fsync { .. }) && answer.is_ok() {
            let done = self.commit(fs, &mut state);
            state.dead = done.is_err() && self.mistake != Mistake::SecondFlush;
            done.map_err(|_| 5)?;
        }
        answer
    }

    fn snapshot(&self, fs: &ToyFs, rules: &Rules) -> Result<Tree, String> {
        let mut tree = fs.state.lock().model.tree.clone();
        for (_, id) in tree.paths() {
            if !rules.times {
                tree.node_mut(id).times = [(0, 0); 4];
            }
        }
        Ok(tree)
    }

    fn unmount(&self, fs: ToyFs) -> Result<(), String> {
        let mut state = fs.state.lock();
        self.commit(&fs, &mut state)
    }

    fn check(&self, _: &[MemoryDevice]) -> Result<bool, String> {
        Ok(true)
    }
}

/// Failures of a history of 60 operations.
fn failures(mistake: Mistake) -> (usize, u64, u64) {
    let toy = Toy::new(mistake);
    let mut generator = Generator::new(5, Profile::default());
    let mut left = 60;
    let recorded = record(&toy, &format(), |model| {
        left -= 1;
        (left > 0).then(|| generator.next_op(model))
    })
    .unwrap();
    let mut proof = Proof::new(&toy, Sampling::default());
    (proof.fsck_one_in, proof.replay_one_in, proof.kernel_one_in) = (0, 0, 0);
    proof.again_one_in = 3;
    let (report, counts) = proof.prove(&recorded);
    println!("{mistake:?}: {counts}");
    for failure in &report.failures {
        println!("{failure}");
    }
    (report.failures.len(), counts.states, counts.second)
}

#[test]
fn a_file_system_that_is_right_passes() {
    let (failures, states, second) = failures(Mistake::None);
    assert_eq!(failures, 0);
    assert!(states > 100, "{states}");
    assert!(second > 100, "{second}");
}

#[test]
fn each_mistake_is_found() {
    for mistake in [
        Mistake::NoFlushBefore,
        Mistake::NoFlushAfter,
        Mistake::FlushInBatch,
        Mistake::InPlace,
        Mistake::Halves,
        Mistake::RecoveryTwice,
    ] {
        assert!(failures(mistake).0 > 0, "{mistake:?}");
    }
}

/// Failures of 20 simulated runs in which flushes fail.
fn simulated_failures(mistake: Mistake) -> usize {
    let mut failures = 0;
    let (mut errors, mut gave_up) = (0, 0);
    for seed in 0..20 {
        let toy = Toy::new(mistake);
        let plan = Plan {
            seed,
            clients: 3,
            steps: 100,
            profile: Profile::default(),
            faults: FaultPlan { flush_one_in: 6, reorder: true, ..FaultPlan::default() },
        };
        let done = simulate(&toy, &format(), &plan).unwrap();
        errors += done.device_errors;
        gave_up += usize::from(done.gave_up);
        let mut proof = Proof::new(&toy, Sampling { seed, ..Sampling::default() });
        (proof.fsck_one_in, proof.replay_one_in, proof.kernel_one_in) = (0, 0, 0);
        failures += proof.prove(&done.recorded).0.failures.len();
    }
    assert!(errors > 10, "{errors}");
    assert!(gave_up > 5 || mistake != Mistake::None, "{gave_up}");
    failures
}

#[test]
fn a_file_system_that_gives_up_after_a_failed_flush_passes() {
    assert_eq!(simulated_failures(Mistake::None), 0);
}

#[test]
fn believing_a_second_flush_is_found() {
    assert!(simulated_failures(Mistake::SecondFlush) > 0);
}

#[test]
fn threads_are_judged_one_by_one() {
    let toy = Toy::new(Mistake::None);
    let profile = Profile { acls: false, ..Profile::default() };
    // The toy's operations are in one order for all, so equal to some order for each.
    let (done, fs) = run_threads(&toy, &format(), 3, 40, 9, &profile).unwrap();
    drop(fs);
    let rules = Rules { times: false, ..RULES };
    let mut proof = Proof::new(&toy, Sampling::default());
    (proof.fsck_one_in, proof.replay_one_in, proof.kernel_one_in) = (0, 0, 0);
    let verdict = |marks: usize, tree: &Tree| done.judge(marks, tree);
    let (report, counts) = proof.prove_history(&done.history, &rules, "toy", verdict);
    assert!(report.failures.is_empty(), "{}", report.failures[0]);
    assert!(counts.states > 50, "{counts}");
    // A client that lost a sync is noticed.
    assert!(done.judge(usize::MAX, &start()).is_err());
}

#[test]
fn a_few_open_writes_are_tried_in_every_subset_and_none_twice() {
    use extant_block::RecordingDevice;
    use extant_testkit::crash::{History, run};
    let device = RecordingDevice::new(8192);
    for n in 0..4u8 {
        device.write_at(u64::from(n) * 512, &[n + 1; 512]).unwrap();
    }
    let history = History::of(&[&device]);
    let seen = Mutex::new(Rank::Leaf, std::collections::BTreeMap::new());
    let report = run(&history, &Sampling::default(), 2, None, |state| {
        let mut bytes = [0; 2048];
        state.devices[0].read_at(0, &mut bytes).unwrap();
        let key = [bytes[0], bytes[512], bytes[1024], bytes[1536]];
        *seen.lock().entry(key).or_insert(0) += 1;
        Ok(())
    });
    let seen = seen.lock().clone();
    assert_eq!(seen.len(), 16);
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    assert_eq!(report.states, 16);
}

#[test]
fn equal_seeds_give_equal_operations() {
    let run = |seed| {
        let mut model = Model::new(start(), RULES);
        let mut generator = Generator::new(seed, Profile::default());
        let ops: Vec<String> = (0..200)
            .map(|_| {
                let op = generator.next_op(&model);
                let _ = model.apply(&op);
                op.to_string()
            })
            .collect();
        (ops, model.tree.fingerprint())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).1, run(2).1);
}
