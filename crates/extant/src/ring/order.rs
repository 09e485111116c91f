//! The order of tasks: dependencies only, without locks, threads or a file system.
//!
//! # Invariants
//!
//! - O1. A task waits only for tasks that were accepted before it, so there is always one that
//!   waits for none.
//! - O2. A task waits for the last unfinished change of each of its files. Only drains and links wait
//!   for a task that only reads.
//! - O3. A link waits for its predecessor in its chain, and is cancelled if that fails. A drain
//!   waits for every earlier task, and every later task waits for it.
//! - O4. A cancelled task keeps its place until nothing is before it: tasks behind it wait for
//!   those before it.
//! - O5. A task that is begun ahead of its turn still waits for the one before it, which the same worker does
//!   first. Until then it can be put back as it was.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use extant_base::{Ino, sabotage};
use rustc_hash::FxHashMap;

/// The files of a task, two at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Files {
    first: Ino,
    second: Option<Ino>,
}

impl Files {
    pub(super) fn one(ino: Ino) -> Files {
        Files { first: ino, second: None }
    }

    pub(super) fn two(first: Ino, second: Ino) -> Files {
        Files { first, second: (second != first).then_some(second) }
    }

    fn iter(self) -> impl Iterator<Item = Ino> {
        std::iter::once(self.first).chain(self.second)
    }
}

/// The relations of a task to its files and to other tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) files: Files,
    /// Whether later tasks on these files wait for it.
    pub(super) is_change: bool,
    /// Whether it may wait for a thaw or a limit; at least one worker never runs such tasks.
    pub(super) may_be_held: bool,
    pub(super) drains: bool,
    /// Whether a part of it is done, so that it cannot be cancelled any more.
    pub(super) has_begun: bool,
    /// Time after which it is cancelled instead of begun.
    pub(super) deadline: Option<Duration>,
}

/// The tasks that wait for one, nearly always one at most: that one needs no memory of its own.
#[derive(Default)]
struct Behind {
    first: Option<u64>,
    more: Vec<u64>,
}

impl Behind {
    /// Adds a task, unless it is the last one already.
    fn add(&mut self, number: u64) -> bool {
        let last = self.more.last().copied().or(self.first);
        if last == Some(number) {
            return false;
        }
        match self.first {
            None => self.first = Some(number),
            Some(_) => self.more.push(number),
        }
        true
    }

    /// Returns the task that waits if it is the only one.
    fn only(&self) -> Option<u64> {
        self.first.filter(|_| self.more.is_empty())
    }

    fn into_iter(self) -> impl Iterator<Item = u64> {
        self.first.into_iter().chain(self.more)
    }
}

/// A task that was accepted and is not finished.
struct Held<T> {
    place: Place,
    /// The task; `None` while it is executed, or after it was cancelled.
    task: Option<T>,
    waits_for: u32,
    /// Whether a worker has it that does those before it first.
    is_ahead: bool,
    behind: Behind,
    /// The next task of its chain.
    link: Option<u64>,
}

/// Tasks and their dependencies.
pub(super) struct Order<T> {
    held: FxHashMap<u64, Held<T>>,
    next: u64,
    /// The last unfinished change of each file.
    changes: FxHashMap<Ino, u64>,
    /// The last unfinished drain.
    drain: Option<u64>,
    /// Tasks that wait for nothing: those that may be held up, and the others.
    ready: [VecDeque<u64>; 2],
    deadlines: BTreeSet<(Duration, u64)>,
}

impl<T> Default for Order<T> {
    fn default() -> Order<T> {
        Order {
            held: FxHashMap::default(),
            next: 0,
            changes: FxHashMap::default(),
            drain: None,
            ready: [VecDeque::new(), VecDeque::new()],
            deadlines: BTreeSet::new(),
        }
    }
}

impl<T> Order<T> {
    /// Returns the number of unfinished tasks.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns the number of tasks that wait only for a worker.
    pub(super) fn ready(&self) -> usize {
        self.ready.iter().map(VecDeque::len).sum()
    }

    /// Returns whether a task waits only for a worker; unless `any`, one that cannot be held up.
    pub(super) fn is_ready(&self, any: bool) -> bool {
        let [held, free] = &self.ready;
        !free.is_empty() || (any && !held.is_empty())
    }

    /// Returns whether a task in this place would have to wait.
    pub(super) fn is_behind(&self, place: &Place) -> bool {
        self.drain.is_some()
            || (place.drains && !self.held.is_empty())
            || place.files.iter().any(|ino| self.changes.contains_key(&ino))
    }

    /// Accepts a task, behind `after` of its chain if given. Returns its number.
    pub(super) fn accept(&mut self, place: Place, task: T, after: Option<u64>) -> u64 {
        let number = self.next;
        self.next += 1;
        let mut waits_for = 0;
        if place.drains {
            let added =
                self.held.values_mut().filter_map(|held| held.behind.add(number).then_some(()));
            waits_for = added.count() as u32;
        } else {
            // One task may be several of these; they come one after the other, and none is added twice.
            let changes = place.files.iter().filter_map(|ino| self.changes.get(&ino).copied());
            for before in changes.chain(self.drain).chain(after) {
                let held = self.held.get_mut(&before);
                waits_for += u32::from(held.is_some_and(|held| held.behind.add(number)));
            }
        }
        if let Some(held) = after.and_then(|after| self.held.get_mut(&after)) {
            held.link = Some(number);
        }
        if place.is_change {
            place.files.iter().for_each(|ino| _ = self.changes.insert(ino, number));
        }
        if place.drains {
            self.drain = Some(number);
        }
        if let Some(deadline) = place.deadline.filter(|_| !place.has_begun) {
            self.deadlines.insert((deadline, number));
        }
        if waits_for == 0 {
            self.ready[usize::from(!place.may_be_held)].push_back(number);
        }
        self.hold(number, place, task, waits_for);
        number
    }

    fn hold(&mut self, number: u64, place: Place, task: T, waits_for: u32) {
        let (task, behind, link) = (Some(task), Behind::default(), None);
        self.held.insert(number, Held { place, task, waits_for, is_ahead: false, behind, link });
    }

    /// Accepts a task that has begun elsewhere, before all that were accepted: it waits for none.
    pub(super) fn accept_begun(&mut self, place: Place, task: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.ready[usize::from(!place.may_be_held)].push_front(number);
        self.hold(number, place, task, 0);
        number
    }

    /// Begins the task that has been ready longest; unless `any`, of those that cannot be held up.
    pub(super) fn begin(&mut self, any: bool) -> Option<(u64, Place, T)> {
        let [held, free] = &self.ready;
        let kind = match (held.front().filter(|_| any), free.front()) {
            (Some(held), Some(free)) => usize::from(free < held),
            (Some(_), None) => 0,
            (None, Some(_)) => 1,
            (None, None) => return None,
        };
        let number = self.ready[kind].pop_front()?;
        self.take(number)
    }

    /// Begins the task behind `number`, which has just finished and made it ready, if there is one
    /// on the same files.
    pub(super) fn begin_next(&mut self, files: Files) -> Option<(u64, Place, T)> {
        let number = *self.ready[0].back()?;
        (self.held.get(&number)?.place.files == files).then_some(())?;
        self.ready[0].pop_back();
        self.take(number)
    }

    /// Begins up to `most` tasks ahead of their turn: the next ones of the same files behind `number`, which has begun,
    /// as long as each `fits`, waits for nothing but the one before it, and is alone in that.
    pub(super) fn begin_ahead(
        &mut self,
        number: u64,
        most: usize,
        fits: impl Fn(&T) -> bool,
    ) -> Vec<(u64, Place, T)> {
        let (mut ahead, mut last) = (Vec::new(), number);
        while ahead.len() < most
            && let Some(next) = self.follower(last, &fits)
            && let Some(begun) = self.take(next)
        {
            if let Some(held) = self.held.get_mut(&next) {
                held.is_ahead = true;
            }
            ahead.push(begun);
            last = next;
        }
        ahead
    }

    /// Returns the one task that could be done right behind another by the same worker.
    fn follower(&self, number: u64, fits: impl Fn(&T) -> bool) -> Option<u64> {
        let before = self.held.get(&number)?;
        let next = before.behind.only()?;
        let Held { place, task, waits_for, .. } = self.held.get(&next)?;
        // A link may be cancelled with what is before it, and a deadline may pass.
        let is_free = before.link.is_none() && *waits_for == 1 && place.deadline.is_none();
        let is_alike = place.files == before.place.files
            && place.may_be_held == before.place.may_be_held
            && !place.drains;
        (is_free && is_alike && fits(task.as_ref()?)).then_some(next)
    }

    /// Puts back a task that was begun ahead of its turn and not touched.
    pub(super) fn put_back(&mut self, number: u64, task: T) {
        let Some(held) = self.held.get_mut(&number) else { return };
        held.task = Some(task);
        held.is_ahead = false;
        if held.waits_for == 0 {
            self.ready[usize::from(!held.place.may_be_held)].push_front(number);
        }
    }

    /// Begins another ready task that `fits`, if it is the next of its kind.
    pub(super) fn begin_like(
        &mut self,
        may_be_held: bool,
        fits: impl Fn(&T) -> bool,
    ) -> Option<(u64, Place, T)> {
        let ready = &mut self.ready[usize::from(!may_be_held)];
        let number = *ready.front()?;
        let task = self.held.get(&number)?.task.as_ref()?;
        fits(task).then(|| ready.pop_front())??;
        self.take(number)
    }

    fn take(&mut self, number: u64) -> Option<(u64, Place, T)> {
        let held = self.held.get_mut(&number)?;
        let (place, task) = (held.place, held.task.take()?);
        if let Some(deadline) = place.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        Some((number, place, task))
    }

    /// Finishes a task. If it failed, the rest of its chain is cancelled and passed to `cancelled`.
    pub(super) fn finish(&mut self, number: u64, went_well: bool, cancelled: &mut impl FnMut(T)) {
        if !went_well && !sabotage("extant.ring.chain-goes-on") {
            self.cancel_links(number, cancelled);
        }
        self.remove(number);
    }

    /// Cancels a task that has not begun, and those behind it in its chain. Returns whether there
    /// was one.
    pub(super) fn cancel(&mut self, number: u64, cancelled: &mut impl FnMut(T)) -> bool {
        if self.held.get(&number).is_none_or(|held| held.place.has_begun) {
            return false;
        }
        let Some((.., task)) = self.take(number) else { return false };
        cancelled(task);
        self.cancel_links(number, cancelled);
        // Nothing is before it, so it need not keep a place.
        let keeps = self.held.get(&number).is_some_and(|held| held.waits_for > 0);
        if !keeps || sabotage("extant.ring.cancelled-gives-way") {
            self.ready.iter_mut().for_each(|ready| ready.retain(|ready| *ready != number));
            self.remove(number);
        }
        true
    }

    fn cancel_links(&mut self, number: u64, cancelled: &mut impl FnMut(T)) {
        let mut link = self.held.get(&number).and_then(|held| held.link);
        while let Some(number) = link {
            // The task waits for its predecessor, so it keeps its place (O4).
            if let Some((.., task)) = self.take(number) {
                cancelled(task);
            }
            link = self.held.get(&number).and_then(|held| held.link);
        }
    }

    /// Removes a task; tasks that waited for it alone become ready.
    fn remove(&mut self, number: u64) {
        let (mut first, mut gone) = (Some(number), Vec::new());
        while let Some(number) = first.take().or_else(|| gone.pop()) {
            let Some(Held { place, behind, .. }) = self.held.remove(&number) else { continue };
            for ino in place.files.iter() {
                if self.changes.get(&ino) == Some(&number) {
                    self.changes.remove(&ino);
                }
            }
            if self.drain == Some(number) {
                self.drain = None;
            }
            for next in behind.into_iter() {
                let Some(held) = self.held.get_mut(&next) else { continue };
                held.waits_for -= 1;
                match (held.waits_for, &held.task) {
                    (0, Some(_)) => {
                        self.ready[usize::from(!held.place.may_be_held)].push_back(next);
                    }
                    // Who did the one before it does it next.
                    (0, None) if held.is_ahead => {}
                    // The task was cancelled.
                    (0, None) => gone.push(next),
                    _ => {}
                }
            }
        }
    }

    /// Returns the tasks that have not begun and that `fits`, in the order of their acceptance.
    pub(super) fn find(&self, fits: impl Fn(&T) -> bool) -> Vec<u64> {
        let fits = |held: &Held<T>| held.task.as_ref().is_some_and(&fits);
        let mut found: Vec<u64> =
            self.held.iter().filter(|(_, held)| fits(held)).map(|(number, _)| *number).collect();
        found.sort_unstable();
        found
    }

    /// Returns the earliest deadline and its task.
    pub(super) fn next_deadline(&self) -> Option<(Duration, u64)> {
        self.deadlines.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    fn place(files: &[u32], is_change: bool) -> Place {
        let files = match *files {
            [one] => Files::one(Ino(one)),
            [first, second, ..] => Files::two(Ino(first), Ino(second)),
            [] => panic!("a task without a file"),
        };
        Place {
            files,
            is_change,
            may_be_held: is_change,
            drains: false,
            has_begun: false,
            deadline: None,
        }
    }

    /// A task: its place, the one before it in its chain, when it began, and when it ended and whether well.
    type Lived = (Place, Option<usize>, Option<u64>, Option<(u64, bool)>);

    /// Whatever is accepted, cancelled and done in whatever order: each task ends once, a change after every change of its
    /// files before it, a link after a success only, a drain after all; and nothing is left.
    #[test]
    fn each_task_begins_after_those_it_waits_for_and_none_is_left() {
        for seed in 0..400 {
            let mut random = Prng::new(seed);
            let mut order = Order::<usize>::default();
            let mut tasks: Vec<Lived> = Vec::new();
            let (mut running, mut numbers): (Vec<(u64, usize)>, Vec<u64>) =
                (Vec::new(), Vec::new());
            let mut now = 0;
            for step in 0..160 {
                now += 1;
                let mut gone = Vec::new();
                match random.below(if step < 100 { 6 } else { 4 }) {
                    0 | 1 => {
                        if let Some((number, _, task)) = order.begin(true) {
                            let most = random.below(4) as usize;
                            let ahead = order.begin_ahead(number, most, |_| true);
                            let mut line = vec![(number, task)];
                            line.extend(ahead.into_iter().map(|(number, _, task)| (number, task)));
                            // Some are done at once, one has to wait, and those behind it are put back.
                            let done = match line.len() {
                                1 => 0,
                                len => random.below(len as u64 + 1) as usize,
                            };
                            for (at, (number, task)) in line.into_iter().enumerate() {
                                now += 1;
                                if at > done {
                                    order.put_back(number, task);
                                    continue;
                                }
                                tasks[task].2 = Some(now);
                                if at == done {
                                    running.push((number, task));
                                    continue;
                                }
                                let went_well = !random.one_in(4);
                                tasks[task].3 = Some((now, went_well));
                                order.finish(number, went_well, &mut |task| gone.push(task));
                            }
                        }
                    }
                    2 if !running.is_empty() => {
                        let (number, task) =
                            running.swap_remove(random.below(running.len() as u64) as usize);
                        let went_well = !random.one_in(4);
                        tasks[task].3 = Some((now, went_well));
                        order.finish(number, went_well, &mut |task| gone.push(task));
                    }
                    3 if !numbers.is_empty() && random.one_in(4) => {
                        let at = random.below(numbers.len() as u64) as usize;
                        let has_begun = tasks[at].2.is_some() || tasks[at].3.is_some();
                        let done = order.cancel(numbers[at], &mut |task| gone.push(task));
                        assert_eq!(done, !has_begun, "seed {seed}");
                    }
                    _ if step < 100 => {
                        let mut after = None;
                        for link in 0..1 + random.below(3) {
                            let files = [random.below(4) as u32, random.below(4) as u32];
                            let mut place =
                                place(&files[..1 + random.below(2) as usize], random.one_in(2));
                            place.drains = link == 0 && random.one_in(12);
                            let task = tasks.len();
                            tasks.push((
                                place,
                                (link > 0).then(|| task - 1),
                                None::<u64>,
                                None::<(u64, bool)>,
                            ));
                            let number = order.accept(place, task, after);
                            numbers.push(number);
                            after = Some(number);
                        }
                    }
                    _ => {}
                }
                gone.into_iter().for_each(|task| tasks[task].3 = Some((now, false)));
            }
            // To the end.
            loop {
                now += 1;
                if let Some((number, _, task)) = order.begin(true) {
                    tasks[task].2 = Some(now);
                    running.push((number, task));
                } else if let Some((number, task)) = running.pop() {
                    tasks[task].3 = Some((now, true));
                    order.finish(number, true, &mut |_| {
                        panic!("seed {seed}: cancelled for nothing")
                    });
                } else {
                    break;
                }
            }
            assert_eq!((order.len(), order.ready()), (0, 0), "seed {seed}");
            assert!(
                order.changes.is_empty() && order.drain.is_none() && order.deadlines.is_empty()
            );
            for (at, (place, link, began, ended)) in tasks.iter().enumerate() {
                let (_, _) = ended.unwrap_or_else(|| panic!("seed {seed}: task {at} is lost"));
                let Some(began) = *began else { continue };
                if let Some(before) = link {
                    let (when, went_well) = tasks[*before].3.unwrap();
                    assert!(went_well && when < began, "seed {seed}: link {at}");
                }
                for (before, other) in tasks[..at].iter().enumerate() {
                    let meets = other.0.is_change
                        && other.0.files.iter().any(|ino| place.files.iter().any(|own| own == ino));
                    if meets || place.drains || other.0.drains {
                        // What never began has no effect.
                        let is_over =
                            other.2.is_none() || other.3.is_some_and(|(when, _)| when < began);
                        assert!(is_over, "seed {seed}: {at} overtakes {before}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_cancelled_keeps_those_behind_it_in_their_place() {
        let mut order = Order::default();
        let change = place(&[1], true);
        let first = order.accept(change, "first", None);
        let second = order.accept(change, "second", None);
        order.accept(change, "third", None);
        assert!(order.begin(true).is_some_and(|(number, ..)| number == first));
        let mut gone = Vec::new();
        assert!(order.cancel(second, &mut |task| gone.push(task)));
        assert!(!order.cancel(first, &mut |_| panic!("it has begun")));
        assert_eq!((gone.as_slice(), order.ready()), (&["second"][..], 0));
        order.finish(first, true, &mut |_| panic!("nothing is linked"));
        assert!(order.begin(true).is_some_and(|(.., task)| task == "third"));
    }

    #[test]
    fn what_may_be_held_up_is_left_to_others_on_demand() {
        let mut order = Order::default();
        order.accept(place(&[1], true), "write", None);
        order.accept(place(&[2], false), "read", None);
        assert_eq!(order.begin(false).map(|(.., task)| task), Some("read"));
        assert!(order.begin(false).is_none());
        assert_eq!(order.begin(true).map(|(.., task)| task), Some("write"));
    }
}
