//! Power cuts at every record of a scenario, with every subset of what no flush had made durable.

use std::collections::BTreeMap;

use extant_base::Prng;
use extant_block::{Record, RecordingDevice, Survival};

use super::*;

/// Subsets per position; all of them up to this many.
const SUBSETS_MAX: u64 = 64;

/// The state after some commit: what each metadata block holds, and which were freed.
type Model = BTreeMap<u64, u8>;

/// The promises of a scenario up to a mark.
#[derive(Clone, Default)]
struct Promise {
    /// Transactions durable.
    durable: usize,
    /// File data that is durable in reused blocks.
    data: BTreeMap<u64, u8>,
}

struct Scenario {
    device: Arc<RecordingDevice>,
    /// After 0, 1, 2 ... commits.
    states: Vec<Model>,
    /// By the number in the marks.
    promises: Vec<Promise>,
}

/// The changes of a transaction: it sets blocks and frees blocks.
struct Step {
    set: Vec<(u64, u8)>,
    free: Vec<u64>,
    checkpoint: bool,
}

fn steps() -> Vec<Step> {
    let mut random = Prng::new(11);
    let mut steps = Vec::new();
    for round in 0..14u8 {
        let set = (0..4).map(|at| (u64::from(at) * 3 + 1, round * 7 + at + 1)).collect();
        steps.push(Step { set, free: vec![], checkpoint: false });
        // A block that lives for one transaction in the log only, and one that reaches home first.
        let victim = 30 + u64::from(round % 4);
        let set = vec![(victim, 101 + round), (2, round)];
        steps.push(Step { set, free: vec![], checkpoint: round % 2 == 1 });
        let set = vec![(1, 60 + round), (20 + random.next_u64() % 5, 200 + round)];
        steps.push(Step { set, free: vec![victim], checkpoint: false });
    }
    steps
}

/// Runs the steps; freed blocks get file data as soon as the journal says they may.
fn run(checksum: JournalChecksum, mutations: Mutations) -> Scenario {
    let device = Arc::new(RecordingDevice::over(formatted(checksum)));
    let shared: SharedDevice = device.clone();
    let freed: Arc<Mutex<Vec<u64>>> = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
    let (data_device, to_fill) = (Arc::clone(&device), Arc::clone(&freed));
    let on_committed = move |_: Tid| {
        let blocks = to_fill.lock().clone();
        for block in blocks {
            data_device.write_at(block * BLOCK as u64, &contents(77)).unwrap();
        }
    };
    let client = TestClient::new(Box::new(|_, _| Ok(())), Box::new(on_committed));
    let options = JournalOptions { mutations, ..options() };
    let journal = Journal::open(store(&shared), Arc::clone(&shared), client, options).unwrap();
    let mut state: Model = (0..HOME_BLOCKS).map(|block| (block, 0xee)).collect();
    let mut scenario = Scenario { device, states: vec![state.clone()], promises: vec![] };
    let mut promise = Promise::default();
    let mut blocks: BTreeMap<u64, Arc<TestBlock>> = BTreeMap::new();
    for step in steps() {
        let mut handle = journal.start(6).unwrap();
        for (number, fill) in &step.set {
            let block = blocks.entry(*number).or_insert_with(|| TestBlock::new(*number));
            handle.claim(block).unwrap();
            block.set(*fill);
            state.insert(*number, *fill);
            promise.data.remove(number);
        }
        for number in &step.free {
            handle.revoke(FsBlock(*number)).unwrap();
            blocks.remove(number);
            state.remove(number);
        }
        // Before the commit may begin: a promise about a block that turns metadata again ends.
        scenario.mark(promise.clone());
        freed.lock().clone_from(&step.free);
        let tid = handle.tid();
        drop(handle);
        scenario.states.push(state.clone());
        journal.commit(tid).unwrap();
        promise.durable += 1;
        scenario.mark(promise.clone());
        if !step.free.is_empty() {
            scenario.device.flush().unwrap();
            promise.data.extend(step.free.iter().map(|block| (*block, 77)));
            scenario.mark(promise.clone());
        }
        if step.checkpoint {
            journal.checkpoint().unwrap();
        }
    }
    assert!(journal.stats().checkpoints >= 5, "the log goes round");
    scenario
}

impl Scenario {
    fn mark(&mut self, promise: Promise) {
        self.device.mark(&self.promises.len().to_string());
        self.promises.push(promise);
    }

    fn promise_at(&self, position: usize) -> Promise {
        let mark = self.device.mark_before(position);
        mark.map_or_else(Promise::default, |mark| {
            self.promises[mark.parse::<usize>().unwrap()].clone()
        })
    }

    /// What is wrong with a device after a cut at `position`.
    fn check(&self, crashed: MemoryDevice, position: usize) -> Result<(), String> {
        let device: SharedDevice = Arc::new(crashed);
        let (_, clean) = replayed(&device).map_err(|error| error.to_string())?;
        if clean.superblock().is_dirty() {
            return Err("not clean after recovery".into());
        }
        let promise = self.promise_at(position);
        let found: Vec<_> = (0..HOME_BLOCKS).map(|block| fill_of(&device, block)).collect();
        for (block, fill) in &promise.data {
            if found[*block as usize] != Some(*fill) {
                return Err(format!("data of block {block} is {:?}", found[*block as usize]));
            }
        }
        // The one being committed may have made it.
        let allowed = promise.durable..=(promise.durable + 1).min(self.states.len() - 1);
        let agrees =
            |state: &Model| state.iter().all(|(block, fill)| found[*block as usize] == Some(*fill));
        match allowed.clone().any(|k| agrees(&self.states[k])) {
            true => Ok(()),
            false => Err(format!("neither of the states {allowed:?}")),
        }
    }

    /// A write with FUA that was under way: either of its halves is there, over everything or
    /// nothing of what was not flushed.
    fn check_torn(&self, position: usize, offset: u64, data: &[u8]) -> Result<u64, String> {
        let mut checked = 0;
        for keep in [Survival::Kept, Survival::Lost] {
            for (start, half) in [(0, &data[..512]), (512, &data[512..])] {
                let crashed = self.device.image_at(position, |_, _| keep);
                crashed.write_at(offset + start, half).unwrap();
                self.check(crashed, position)
                    .map_err(|error| format!("torn write {position} from {start}: {error}"))?;
                checked += 1;
            }
        }
        Ok(checked)
    }

    /// Every cut; the first failure, or how many were checked.
    fn check_all(&self) -> Result<u64, String> {
        let records = self.device.records();
        let mut random = Prng::new(5);
        let mut checked = 0;
        for position in 0..=records.len() {
            let durable =
                records[..position].iter().rposition(|r| *r == Record::Flush).unwrap_or(0);
            let open: Vec<usize> = (durable..position)
                .filter(|at| matches!(records[*at], Record::Write { fua: false, .. }))
                .collect();
            let all = 1u64 << open.len().min(60);
            for n in 0..all.min(SUBSETS_MAX) {
                // All lost and all kept are always among them.
                let mask = match n {
                    _ if all <= SUBSETS_MAX => n,
                    0 => 0,
                    1 => u64::MAX,
                    _ => random.next_u64(),
                };
                let torn = random.one_in(4);
                let crashed = self.device.image_at(position, |index, record| {
                    let bit = open.iter().position(|at| *at == index).unwrap_or(0);
                    match (mask >> bit & 1 == 1, record) {
                        (true, _) => Survival::Kept,
                        (false, Record::Write { data, .. }) if torn => {
                            Survival::Torn { bytes: data.len() as u64 / 2 }
                        }
                        (false, _) => Survival::Lost,
                    }
                });
                self.check(crashed, position)
                    .map_err(|error| format!("cut at {position}, mask {mask:b}: {error}"))?;
                checked += 1;
            }
            if let Some(Record::Write { offset, data, fua: true }) = records.get(position) {
                checked += self.check_torn(position, *offset, data)?;
            }
        }
        Ok(checked)
    }
}

#[test]
fn j1_j2_j4_j6_every_cut_leaves_whole_transactions_with_each_checksum_version() {
    for version in VERSIONS {
        let checked = run(version, Mutations::default()).check_all();
        assert!(checked.clone().unwrap_or_else(|why| panic!("{version:?}: {why}")) > 1000);
    }
}

#[test]
fn each_mutation_is_caught() {
    let off = Mutations::default();
    let table = [
        ("J6 flush", Mutations { skip_flush_before_commit: true, ..off }),
        ("J2 flush", Mutations { skip_checkpoint_flush: true, ..off }),
        ("J4", Mutations { skip_revokes: true, ..off }),
        ("checksum", Mutations { bad_checksum: true, ..off }),
        ("J6 order", Mutations { commit_block_first: true, ..off }),
        ("J2 order", Mutations { tail_before_home: true, ..off }),
        ("J3", Mutations { release_freed_early: true, ..off }),
    ];
    for (rule, mutations) in table {
        let outcome = run(JournalChecksum::V3, mutations).check_all();
        assert!(outcome.is_err(), "{rule}: {outcome:?} cuts and nothing noticed");
    }
}

#[test]
fn j9_replay_is_idempotent_and_survives_a_cut_at_each_of_its_writes() {
    let scenario = run(JournalChecksum::V3, Mutations::default());
    let records = scenario.device.records();
    // Cuts right after each commit block.
    let commits = (0..records.len())
        .filter(|at| matches!(&records[*at], Record::Write { fua: true, .. }))
        .map(|at| at + 1);
    for position in commits {
        let crashed = scenario.device.image_at(position, |_, _| Survival::Lost);
        let again = Arc::new(RecordingDevice::over(crashed));
        let device: SharedDevice = again.clone();
        replayed(&device).unwrap();
        for cut in 0..=again.len() {
            for keep in [Survival::Lost, Survival::Kept] {
                let image = again.image_at(cut, |_, _| keep);
                scenario.check(image, position).unwrap_or_else(|why| {
                    panic!("cut at {position}, replay cut at {cut}: {why}");
                });
            }
        }
    }
}
