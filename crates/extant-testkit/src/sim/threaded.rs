//! A thread for each client, each with files of its own and names in a directory for all.

use std::collections::HashMap;
use std::sync::Arc;

use extant_block::{RecordingDevice, SharedDevice};
use extant_sync::{FixedClock, threads};

use crate::crash::History;
use crate::model::{FileKind, Generator, Model, NewNode, Node, Op, Path, Profile, Rules, Tree};
use crate::proof::{Base, EPOCH, Step, Target, recorders};

/// The directory that all clients use.
const SHARED: &str = "shared";

/// A concurrent run that is over.
#[derive(Debug)]
pub struct Concurrent {
    /// What happened to the devices.
    pub history: History,
    /// Of each client the fingerprints of its view: before its first operation, and after each.
    prints: Vec<Vec<u64>>,
    /// At each mark: the client, and how far it was.
    marks: Vec<(usize, Step)>,
    /// Operations of all clients.
    pub ops: usize,
}

impl Concurrent {
    /// S4 after a cut that `marks` marks came before.
    ///
    /// # Errors
    ///
    /// What is wrong with which client.
    pub fn judge(&self, marks: usize, tree: &Tree) -> Result<(), String> {
        if marks == 0 {
            // Their directories were only being made.
            return Ok(());
        }
        let mut known = vec![Step { begun: 0, synced: 0 }; self.prints.len()];
        for (client, step) in self.marks.iter().take(marks) {
            known[*client] = *step;
        }
        for (client, (prints, step)) in self.prints.iter().zip(known).enumerate() {
            let print = view(tree, client).fingerprint();
            let allowed = prints.get(step.synced..=step.begun.min(prints.len() - 1));
            if !allowed.is_some_and(|allowed| allowed.contains(&print)) {
                let at = prints.iter().position(|other| *other == print);
                return Err(format!(
                    "client {client}: {at:?} operations are there; allowed are {}..={}",
                    step.synced, step.begun
                ));
            }
        }
        Ok(())
    }
}

/// Its own directory.
fn own(client: usize) -> String {
    format!("c{client}")
}

/// What its names in the shared directory begin with.
fn prefix(client: usize) -> Vec<u8> {
    format!("c{client}-").into_bytes()
}

/// What of a tree belongs to a client: its directory, and its names in the shared one, whose own
/// attributes everybody changes.
fn view(tree: &Tree, client: usize) -> Tree {
    let mut blank = Node::new(FileKind::Directory);
    let old_root = tree.node(tree.root());
    let mut all = tree.clone();
    if let Some(shared) = old_root.entries.get(SHARED.as_bytes()) {
        let entries = tree.node(*shared).entries.clone();
        let mut node = Node::new(FileKind::Directory);
        let start = prefix(client);
        node.entries = entries.into_iter().filter(|(name, _)| name.starts_with(&start)).collect();
        *all.node_mut(*shared) = node;
        blank.entries.insert(SHARED.as_bytes().to_vec(), *shared);
    }
    if let Some(own) = old_root.entries.get(own(client).as_bytes()) {
        blank.entries.insert(b"own".to_vec(), *own);
    }
    *all.node_mut(all.root()) = blank;
    all
}

/// Runs `clients` clients of `steps` operations each at the same time.
///
/// Times are not compared, whatever `base` says: which client's operation comes first is open.
///
/// # Errors
///
/// The first answer that a client's model does not give, or a tree at the end that is not the sum
/// of theirs.
pub fn run_threads<T: Target>(
    target: &T,
    base: &Base,
    clients: usize,
    steps: usize,
    seed: u64,
    profile: &Profile,
) -> Result<(Concurrent, T::Fs), String> {
    let rules = Rules { times: false, ..base.rules };
    let recorders = recorders(base);
    let shared: Vec<SharedDevice> =
        recorders.iter().map(|r| Arc::clone(r) as SharedDevice).collect();
    let clock = Arc::new(FixedClock::at(EPOCH, 0));
    let fs = target.mount(&shared, clock)?;
    let new = NewNode { permissions: 0o755, uid: 0, gid: 0 };
    let mut none = HashMap::new();
    for name in std::iter::once(SHARED.to_owned()).chain((0..clients).map(own)) {
        let op = Op::Mkdir { path: Path::of(&name), new };
        target.apply(&fs, &mut none, &op).map_err(|errno| format!("{op}: error {errno}"))?;
    }
    let synced = target.apply(&fs, &mut none, &Op::Sync);
    synced.map_err(|errno| format!("the first sync: error {errno}"))?;
    let devices: Vec<&RecordingDevice> = recorders.iter().map(|r| &**r).collect();
    let start = target.snapshot(&fs, &rules)?;
    let client = |number: usize| -> Result<Vec<u64>, String> {
        let mut model = Model::new(start.clone(), rules);
        let profile = Profile {
            below: Path::of(&own(number)),
            beside: Some((Path::of(SHARED), prefix(number))),
            ..profile.clone()
        };
        let mut generator = Generator::new(seed ^ (number as u64 + 1) << 32, profile);
        let mut slots = HashMap::new();
        let mut prints = vec![view(&model.tree, number).fingerprint()];
        let mut step = Step { begun: 0, synced: 0 };
        let mark = |step: Step| recorders[0].mark(&format!("{number} {}", step.mark()));
        for at in 0..steps {
            let op = generator.next_op(&model);
            step.begun = at + 1;
            mark(step);
            let answer = target.apply(&fs, &mut slots, &op);
            let covered = match (&op, answer) {
                (Op::Sync, Ok(())) => Some(at + 1),
                (Op::Fsync { path }, Ok(())) => model.changed_by(path),
                _ => None,
            };
            model.follow(&op, answer).map_err(|wanted| {
                format!("client {number}: {op}: answered {answer:?} instead of {wanted:?}")
            })?;
            prints.push(view(&model.tree, number).fingerprint());
            if let Some(covered) = covered {
                step.synced = step.synced.max(covered);
                mark(step);
            }
        }
        Ok(prints)
    };
    let results = threads::workers("client", clients, client).map_err(|e| e.to_string())?;
    let prints = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let found = target.snapshot(&fs, &rules)?;
    let history = History::of(&devices);
    let parse = |text: &str| {
        let mut numbers = text.split(' ').map(|word| word.parse().expect("a number"));
        let mut next = || numbers.next().expect("three numbers");
        (next(), Step { begun: next(), synced: next() })
    };
    let marks = history.marks().map(parse).collect();
    let done = Concurrent { history, prints, marks, ops: clients * steps };
    let mut at_end = done.marks.clone();
    at_end.extend((0..clients).map(|client| (client, Step { begun: steps, synced: steps })));
    let whole = Concurrent {
        history: History::of(&devices),
        prints: done.prints.clone(),
        marks: at_end,
        ops: done.ops,
    };
    whole.judge(usize::MAX, &found).map_err(|text| format!("at the end: {text}"))?;
    Ok((done, fs))
}
