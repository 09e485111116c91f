//! A thread for each client, each with files of its own and names in a directory for all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use extant_block::{RecordingDevice, SharedDevice};
use extant_sync::{FixedClock, threads};

use crate::crash::History;
use crate::model::{FileKind, Generator, Model, NewNode, Node, Op, Path, Profile, Rules, Tree};
use crate::proof::{Base, Contents, EPOCH, Moment, Step, Target, check_zones, recorders};

/// The directory that all clients use.
const SHARED: &str = "shared";

/// A concurrent run that is over.
#[derive(Debug)]
pub struct Concurrent {
    /// What happened to the devices.
    pub history: History,
    /// Of each client what it should see.
    clients: Vec<Client>,
    /// At each mark: the client, and how far it was.
    marks: Vec<(usize, Step)>,
    /// Operations of all clients.
    pub ops: usize,
    rules: Rules,
    unit: u64,
}

/// What one client did.
#[derive(Clone, Debug)]
struct Client {
    /// Fingerprints of its view: before its first operation, and after each.
    prints: Vec<u64>,
    contents: Contents,
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
        let mut known = vec![Step { begun: 0, synced: 0 }; self.clients.len()];
        // Marks of each client so far.
        let mut own = vec![0; self.clients.len()];
        for (client, step) in self.marks.iter().take(marks) {
            known[*client] = *step;
            own[*client] += 1;
        }
        for (number, (client, step)) in self.clients.iter().zip(known).enumerate() {
            let view = view(tree, number);
            let print = self.rules.print(&view);
            let prints = &client.prints;
            let allowed = step.synced..step.begun.min(prints.len() - 1) + 1;
            let mut wrong = None;
            let is_there = allowed.rev().filter(|count| prints[*count] == print).any(|names| {
                if !self.rules.contents {
                    return true;
                }
                let at = Moment { names, begun: step.begun, marks: own[number] };
                let judged = client.contents.judge(&view, at, self.unit);
                judged.map_err(|text| wrong = wrong.take().or(Some(text))).is_ok()
            });
            if is_there {
                continue;
            }
            if let Some(text) = wrong {
                return Err(format!("client {number}: {text}"));
            }
            let at = prints.iter().position(|other| *other == print);
            return Err(format!(
                "client {number}: {at:?} operations are there; allowed are {}..={}",
                step.synced, step.begun
            ));
        }
        Ok(())
    }
}

/// Its own directory.
fn own(client: usize) -> String {
    format!("c{client}")
}

/// Returns what its names in the shared directory begin with.
fn prefix(client: usize) -> Vec<u8> {
    format!("c{client}-").into_bytes()
}

/// Returns what of a tree belongs to a client: its directory, and its names in the shared one,
/// whose own attributes everybody changes.
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
    let fs = target.mount(&shared, Arc::clone(&clock))?;
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
    let client = |number: usize| -> Result<Client, String> {
        let mut model = Model::new(start.clone(), rules);
        let profile = Profile {
            below: Path::of(&own(number)),
            beside: Some((Path::of(SHARED), prefix(number))),
            ..profile.clone()
        };
        let mut generator = Generator::new(seed ^ (number as u64 + 1) << 32, profile);
        let mut slots = HashMap::new();
        let first = view(&model.tree, number);
        let mut prints = vec![rules.print(&first)];
        let mut contents = Contents::new(&first);
        let mut step = Step { begun: 0, synced: 0 };
        let mut marks = 0;
        let mut mark = |step: Step| {
            recorders[0].mark(&format!("{number} {}", step.mark()));
            marks += 1;
            marks
        };
        for at in 0..steps {
            let op = generator.next_op(&model);
            clock.advance(Duration::from_secs(op.seconds().into()));
            step.begun = at + 1;
            mark(step);
            let answer = target.apply(&fs, &mut slots, &op);
            let covered = match (&op, answer) {
                (Op::Sync, Ok(())) => Some(at + 1),
                (Op::Fsync { path }, Ok(())) => model.synced_by(path, at + 1),
                (Op::Fdatasync { path }, Ok(())) => model.named_by(path),
                _ => None,
            };
            model.follow(&op, answer).map_err(|wanted| {
                format!("client {number}: {op}: answered {answer:?} instead of {wanted:?}")
            })?;
            let seen = view(&model.tree, number);
            prints.push(rules.print(&seen));
            contents.note_in(&seen, &model, &op, at + 1);
            if let Some(covered) = covered {
                step.synced = step.synced.max(covered);
                let marks = mark(step);
                contents.synced(&model, &op, answer, (marks, at + 1));
            }
        }
        Ok(Client { prints, contents })
    };
    let results = threads::workers("client", clients, client).map_err(|e| e.to_string())?;
    let each = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let found = target.snapshot(&fs, &rules)?;
    check_zones(base, &recorders[0])?;
    let history = History::of(&devices);
    let parse = |text: &str| {
        let mut numbers = text.split(' ').map(|word| word.parse().expect("a number"));
        let mut next = || numbers.next().expect("three numbers");
        (next(), Step { begun: next(), synced: next() })
    };
    let marks = history.marks().map(parse).collect();
    let (ops, unit) = (clients * steps, base.unit);
    let done = Concurrent { history, clients: each, marks, ops, rules, unit };
    let mut at_end = done.marks.clone();
    at_end.extend((0..clients).map(|client| (client, Step { begun: steps, synced: steps })));
    let whole = Concurrent {
        history: History::of(&devices),
        clients: done.clients.clone(),
        marks: at_end,
        ..done
    };
    whole.judge(usize::MAX, &found).map_err(|text| format!("at the end: {text}"))?;
    Ok((done, fs))
}
