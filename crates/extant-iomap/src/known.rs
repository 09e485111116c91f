//! Recent mappings of a file, so that the mapper is asked once for each run of blocks and not for
//! each request.
//!
//! # Invariants
//!
//! - K1. All entries have one cookie: mappings of different versions are never mixed.
//! - K2. Entries are in ascending order, do not overlap, and are at most [`MOST`].

use extant_base::sabotage;
use extant_sync::{Rank, RwLock};

use crate::mapping::{Cookie, Kind, MapFlags, Mapping};

/// Limit of the runs; beyond it, all but the newest are dropped.
const MOST: usize = 64;

/// The known mappings of a file. The cookie of a mapping tells whether it is still valid.
pub(crate) struct Known {
    runs: RwLock<Vec<Mapping>>,
}

impl Known {
    pub(crate) fn new() -> Known {
        Known { runs: RwLock::new(Rank::Leaf, Vec::new()) }
    }

    /// Returns the known mapping of byte `at`.
    pub(crate) fn about(&self, at: u64) -> Option<Mapping> {
        let runs = self.runs.read();
        let after = runs.partition_point(|run| run.offset <= at);
        let run = runs.get(after.checked_sub(1)?)?;
        run.covers(at).then(|| run.clone())
    }

    /// Remembers a mapping, without its reservation.
    pub(crate) fn note(&self, answer: &Mapping) {
        let flags = MapFlags { is_new: false };
        let mut new = Mapping { flags, ..answer.clone() };
        let mut runs = self.runs.write();
        if runs.first().is_some_and(|run| run.cookie != new.cookie)
            && !sabotage("iomap.known.times-mixed")
        {
            runs.clear();
        }
        if runs.is_empty() {
            runs.push(new);
            return;
        }
        // Runs that it overlaps or touches are merged with it, or dropped.
        let first = runs.partition_point(|run| run.end() < new.offset);
        let end = runs.partition_point(|run| run.offset <= new.end());
        let mut rest = Vec::new();
        for old in runs.drain(first..end.max(first)) {
            match joined(&old, &new) {
                Some(both) => new = both,
                None if old.end() == new.offset || old.offset == new.end() => rest.push(old),
                None => {} // Said again, differently cut.
            }
        }
        if runs.len() + rest.len() >= MOST {
            runs.clear();
            rest.clear();
        }
        rest.push(new);
        rest.sort_unstable_by_key(|run| run.offset);
        let place = runs.partition_point(|run| run.offset < rest[0].offset);
        runs.splice(place..place, rest);
    }

    pub(crate) fn forget(&self) {
        self.runs.write().clear();
    }
}

/// Returns one run for two that overlap or touch, if they continue each other.
fn joined(a: &Mapping, b: &Mapping) -> Option<Mapping> {
    let (first, second) = if a.offset <= b.offset { (a, b) } else { (b, a) };
    let distance = second.offset - first.offset;
    let continues = match (&first.kind, &second.kind) {
        (Kind::Mapped(one), Kind::Mapped(other))
        | (Kind::Unwritten(one), Kind::Unwritten(other)) => {
            one.checked_add(distance) == Some(*other)
        }
        (Kind::Hole, Kind::Hole) | (Kind::Delayed, Kind::Delayed) => true,
        _ => false,
    };
    let cookies = |Cookie(one), Cookie(other)| one == other;
    if !continues || first.flags != second.flags || !cookies(first.cookie, second.cookie) {
        return None;
    }
    let end = first.end().max(second.end());
    Some(Mapping { len: end - first.offset, ..first.clone() })
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    fn mapping(offset: u64, len: u64, kind: Kind, cookie: u64) -> Mapping {
        Mapping { offset, len, kind, flags: MapFlags::default(), cookie: Cookie(cookie) }
    }

    /// A file in runs of ten bytes: a hole, data, unwritten, data elsewhere, and so on.
    fn kind_of(run: u64) -> Kind {
        match run % 4 {
            0 => Kind::Hole,
            2 => Kind::Unwritten(5000 + run * 10),
            _ => Kind::Mapped(run % 3 * 1000 + run * 10),
        }
    }

    /// Returns what a mapper may say of byte `at`: a part of its run.
    fn answer(random: &mut Prng, at: u64, cookie: u64) -> Mapping {
        let run = at / 10;
        let start = at - random.below(at - run * 10 + 1);
        let end = at + 1 + random.below(run * 10 + 10 - at);
        let kind = match kind_of(run) {
            Kind::Mapped(device) => Kind::Mapped(device + start - run * 10),
            Kind::Unwritten(device) => Kind::Unwritten(device + start - run * 10),
            other => other,
        };
        mapping(start, end - start, kind, cookie)
    }

    #[test]
    fn it_says_what_was_said_of_one_time_and_no_more() {
        for seed in 0..20 {
            let mut random = Prng::new(seed);
            let known = Known::new();
            let (mut cookie, mut hits) = (1, 0);
            for _ in 0..3000 {
                if random.one_in(200) {
                    cookie += 1;
                }
                let at = random.below(400);
                match known.about(at).filter(|said| said.cookie == Cookie(cookie)) {
                    Some(said) => {
                        hits += 1;
                        let run = at / 10;
                        match (kind_of(run), &said.kind) {
                            (Kind::Hole, Kind::Hole) => {}
                            (Kind::Mapped(device), Kind::Mapped(_))
                            | (Kind::Unwritten(device), Kind::Unwritten(_)) => {
                                assert_eq!(said.address_of(at), Some(device + at - run * 10));
                            }
                            (wanted, got) => panic!("byte {at}: {got:?}, not {wanted:?}"),
                        }
                    }
                    None => known.note(&answer(&mut random, at, cookie)),
                }
                let runs = known.runs.read();
                assert!(runs.len() <= MOST);
                assert!(runs.windows(2).all(|two| two[0].end() <= two[1].offset), "K2: {runs:?}");
                assert!(runs.iter().all(|run| run.cookie == runs[0].cookie), "K1: {runs:?}");
            }
            assert!(hits > 1000, "only {hits} hits");
        }
    }

    #[test]
    fn parts_of_a_run_grow_together() {
        let known = Known::new();
        for at in [50, 10, 90, 0, 30] {
            known.note(&mapping(at, 100 - at, Kind::Mapped(7000 + at), 1));
        }
        assert_eq!(known.about(0), Some(mapping(0, 100, Kind::Mapped(7000), 1)));
        assert_eq!(known.runs.read().len(), 1);
    }

    #[test]
    fn it_is_bounded() {
        let known = Known::new();
        for at in 0..1000 {
            known.note(&mapping(at * 10, 5, Kind::Hole, 1));
            assert_eq!(known.about(at * 10), Some(mapping(at * 10, 5, Kind::Hole, 1)));
        }
        assert!(known.runs.read().len() <= MOST);
    }
}
