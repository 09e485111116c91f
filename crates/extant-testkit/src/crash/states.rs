//! Which fates the open records of a cut are given.

use std::ops::Range;

use extant_base::Prng;
use extant_block::{Event, Record};

use super::history::{Fate, History};

/// How many of the possible states are looked at.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// Seed of everything that is chosen.
    pub seed: u64,
    /// With at most this many open records every subset of them is tried.
    pub exhaustive_max: usize,
    /// States of a cut with more open records: about this many.
    pub samples: usize,
    /// One cut in this many is looked at; 1 for all.
    pub one_cut_in: u64,
    /// In how many ways each open write of several sectors is torn, rounded up to a multiple of 3.
    pub tears: usize,
    /// Writes within this range of bytes of the first device are not torn, because nobody could
    /// bear it: the primary superblock with its checksum is longer than a sector.
    pub whole: Range<u64>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { seed: 0, exhaustive_max: 5, samples: 24, one_cut_in: 1, tears: 3, whole: 0..0 }
    }
}

/// The states of the open records `open` at `cut`.
pub(super) fn states(
    history: &History,
    cut: u64,
    open: &[usize],
    sampling: &Sampling,
) -> Vec<Vec<Fate>> {
    let count = open.len();
    let mut random = Prng::new(sampling.seed ^ cut.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut found = vec![vec![Fate::Lost; count]];
    if count == 0 {
        return found;
    }
    found.push(vec![Fate::Kept; count]);
    let one = |all: Fate, at: usize, fate: Fate| {
        let mut fates = vec![all; count];
        fates[at] = fate;
        fates
    };
    let events: Vec<&Event> = open.iter().map(|place| &history.events()[*place]).collect();
    if count <= sampling.exhaustive_max {
        for set in 1..(1u32 << count) - 1 {
            let kept = |at: usize| if set >> at & 1 == 1 { Fate::Kept } else { Fate::Lost };
            found.push((0..count).map(kept).collect());
        }
        for (at, event) in events.iter().enumerate() {
            for fate in torn(event, &mut random, sampling) {
                found.push(one(Fate::Kept, at, fate));
                if count > 1 {
                    found.push(one(Fate::Lost, at, fate));
                }
            }
        }
        return found;
    }
    // The newest record decides what is new at this cut.
    let newest = count - 1;
    found.push(one(Fate::Kept, newest, Fate::Lost));
    found.push(one(Fate::Lost, newest, Fate::Kept));
    for fate in torn(events[newest], &mut random, sampling) {
        found.push(one(Fate::Kept, newest, fate));
    }
    while found.len() < sampling.samples {
        let at = random.below(count as u64) as usize;
        let next = match random.below(8) {
            0 => one(Fate::Kept, at, Fate::Lost),
            1 => one(Fate::Lost, at, Fate::Kept),
            // In order up to some record, and everything but such a beginning.
            2 => (0..count).map(|n| if n <= at { Fate::Kept } else { Fate::Lost }).collect(),
            3 => (0..count).map(|n| if n > at { Fate::Kept } else { Fate::Lost }).collect(),
            4 => one(Fate::Kept, at, any_torn(events[at], &mut random, sampling)),
            kind => {
                // Some few, half, nearly all; torn here and there.
                let kept_of_8 = [1, 4, 7][(kind - 5) as usize];
                let each = |event: &&Event| {
                    if random.one_in(6) {
                        any_torn(event, &mut random, sampling)
                    } else if random.below(8) < kept_of_8 {
                        Fate::Kept
                    } else {
                        Fate::Lost
                    }
                };
                events.iter().map(each).collect()
            }
        };
        found.push(next);
    }
    found
}

/// The ways of tearing a record: none for one sector, and for what is not written.
fn torn(event: &Event, random: &mut Prng, sampling: &Sampling) -> Vec<Fate> {
    let Record::Write { offset, data, .. } = &event.record else { return Vec::new() };
    let len = data.len() as u64;
    let sectors = len.div_ceil(512);
    if sectors < 2 {
        return Vec::new();
    }
    let whole = &sampling.whole;
    let guarded =
        event.device == 0 && *offset < whole.end && whole.start < offset.saturating_add(len);
    let mut found = Vec::new();
    for _ in 0..sampling.tears.div_ceil(3) {
        let mut cut = (1 + random.below(sectors - 1)) * 512;
        if guarded && (whole.start + 1..whole.end).contains(&(offset + cut)) {
            cut = whole.end - offset;
        }
        if cut < len {
            found.extend([Fate::First(cut), Fate::From(cut)]);
        }
        let seed = random.next_u64();
        if !guarded {
            found.push(Fate::Scattered(seed));
        }
    }
    found
}

fn any_torn(event: &Event, random: &mut Prng, sampling: &Sampling) -> Fate {
    let ways = torn(event, random, sampling);
    let at = random.below(ways.len() as u64) as usize;
    ways.get(at).copied().unwrap_or(Fate::Lost)
}
