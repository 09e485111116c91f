//! Criteria: which free runs a search takes, and in what order it looks for them. Pure policy,
//! without a volume and without locks.
//!
//! # Shape
//!
//! A request ([`Wish`]) is looked for criterion by criterion. Each criterion visits groups, through
//! the [index](super::index) or one after the other, and its [`Terms`] say what a group must have,
//! whether it is waited for, and which of its clusters count.
//!
//! | criterion | a run is taken if | groups |
//! | --- | --- | --- |
//! | `Ahead` | it has the full length and a window behind it; at the goal of a file that goes on, the full length | by the index, the first 16 with such a run, none that others are at but that of the goal |
//! | `Whole` | it has the full length | by the index, the first 64, none that others are at |
//! | `Least` | it has the minimum, the longest of a group | all, waited for; first the one with the longest run |
//! | `Any` | it has the minimum; clusters in windows of other files count | all, waited for |
//!
//! # Linux
//!
//! What corresponds to the criteria of Linux's allocator, and what is left out and why:
//!
//! | Linux | here |
//! | --- | --- |
//! | `POWER2_ALIGNED` | none: it finds room that a file grows into without a seam, which a [window](super::window) is |
//! | `GOAL_LEN_FAST` | `Ahead`, then `Whole` |
//! | `BEST_AVAIL_LEN` | the group in which `Least` begins |
//! | `GOAL_LEN_SLOW` | none: the index orders groups by their longest run, so a group that has the length is not missed for its average |
//! | `ANY_FREE` | `Least`, then `Any` |
//!
//! # Stripes
//!
//! On a file system made for a RAID (`s_raid_stripe_width`, or else `s_raid_stride`), file data of
//! at least a stripe starts on a multiple of the stripe where the group that is looked at has such
//! a run, and otherwise where it would start without a stripe. A file that goes on behind its last
//! block stays there: one piece is better than two aligned ones.

use super::window::Look;

/// Number of groups whose bitmaps are searched for the full length plus a window.
const AHEAD_LOOKS: u32 = 16;

/// Number of groups whose bitmaps are searched for the full length before shorter runs will do.
const WHOLE_LOOKS: u32 = 64;

/// How choosy a search is, the choosiest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Criterion {
    Ahead,
    Whole,
    Least,
    Any,
}

/// What the blocks are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Contents of a file: stripes count.
    Data,
    /// Blocks of trees and directories.
    Metadata,
}

/// A request for contiguous clusters of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) class: Class,
    /// Length wanted.
    pub(super) len: u32,
    /// Shortest useful length.
    pub(super) min: u32,
    /// The group and the cluster in it where the run would best start.
    pub(super) goal: u32,
    pub(super) goal_bit: u32,
    /// Whether a window is wanted behind the run.
    pub(super) with_window: bool,
    /// Length of that window, as far as there is room for windows.
    pub(super) ahead: u32,
    /// Whether a file that grows goes on at the goal: its group is waited for.
    pub(super) continues: bool,
    /// Whether the file has the block before the goal.
    pub(super) follows: bool,
    /// Length of a stripe; 0 for none.
    pub(super) stripe: u32,
}

/// What a criterion means in one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    /// Shortest run that will do. Groups that are known to have less are passed over.
    pub(super) needed: u32,
    /// Whether the file goes on in this group: what is known of it without the lock does not count,
    /// because the file's own window is in it.
    pub(super) is_home: bool,
    /// Whether the lock of the group and the read of its bitmap are waited for.
    pub(super) waits: bool,
    /// Which clusters count.
    pub(super) look: Look,
}

/// Where stripes begin in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stripes {
    /// The first cluster on which a stripe begins, below `stripe`.
    pub(super) first: u32,
    /// Length of a stripe in clusters, not 0.
    pub(super) stripe: u32,
}

impl Stripes {
    /// Returns whether a stripe begins with this cluster.
    pub(super) fn has(self, cluster: u32) -> bool {
        self.next(cluster) == Some(cluster)
    }

    /// Returns the first beginning of a stripe from `cluster` on.
    pub(super) fn next(self, cluster: u32) -> Option<u32> {
        let into = cluster.checked_sub(self.first);
        let steps = into.map_or(0, |into| into.div_ceil(self.stripe.max(1)));
        steps.checked_mul(self.stripe)?.checked_add(self.first)
    }
}

impl Criterion {
    /// Returns whether groups are visited through the index, which is a hint: the later criteria
    /// look at all groups.
    pub(super) fn by_index(self) -> bool {
        matches!(self, Criterion::Ahead | Criterion::Whole)
    }

    /// Returns the limit of the groups whose bitmaps are searched.
    pub(super) fn looks_max(self) -> u32 {
        match self {
            Criterion::Ahead => AHEAD_LOOKS,
            Criterion::Whole => WHOLE_LOOKS,
            Criterion::Least | Criterion::Any => u32::MAX,
        }
    }

    /// Returns whether the search begins in the group with the longest run that was too short.
    pub(super) fn begins_with_best(self) -> bool {
        matches!(self, Criterion::Least | Criterion::Any)
    }

    pub(super) fn look(self) -> Look {
        if self == Criterion::Any { Look::All } else { Look::Open }
    }
}

impl Wish {
    /// Returns the criteria by which the request is looked for, in their order.
    pub(super) fn criteria(&self) -> impl Iterator<Item = Criterion> + use<> {
        let all = [Criterion::Ahead, Criterion::Whole, Criterion::Least, Criterion::Any];
        all.into_iter().skip(usize::from(!self.with_window))
    }

    /// Returns what a criterion means in a group.
    pub(super) fn terms(&self, criterion: Criterion, group: u32) -> Terms {
        let is_home = criterion == Criterion::Ahead && self.continues && group == self.goal;
        Terms {
            needed: if is_home { self.len } else { self.elsewhere(criterion) },
            is_home,
            waits: is_home || !criterion.by_index(),
            look: criterion.look(),
        }
    }

    /// Returns the shortest run that will do in other groups than the one where the file goes on.
    pub(super) fn elsewhere(&self, criterion: Criterion) -> u32 {
        match criterion {
            Criterion::Ahead => self.len.saturating_add(self.ahead),
            Criterion::Whole => self.len,
            Criterion::Least | Criterion::Any => self.min,
        }
    }

    /// Returns the stripe on which a run of the full length is to start, if it is to start on one.
    pub(super) fn stripe(&self, criterion: Criterion) -> Option<u32> {
        let is_full = matches!(criterion, Criterion::Ahead | Criterion::Whole);
        let is_wide = self.class == Class::Data && self.stripe > 1 && self.len >= self.stripe;
        (is_full && is_wide).then_some(self.stripe)
    }
}

/// Returns the length of a stripe in clusters, 0 for none: the stripe's width, or else the chunk of
/// one disk, if it is more than a cluster, whole clusters, and no more than a group.
pub(super) fn stripe_of(width: u32, stride: u32, group_blocks: u32, ratio: u32) -> u32 {
    let ratio = ratio.max(1);
    let blocks = [width, stride].into_iter().find(|blocks| (1..=group_blocks).contains(blocks));
    let clusters = blocks.filter(|blocks| blocks % ratio == 0).map_or(0, |blocks| blocks / ratio);
    if clusters > 1 { clusters } else { 0 }
}

/// Returns the first cluster of a group, whose first block is `first`, that starts on a multiple of
/// `stripe` clusters; `None` if clusters and stripes never meet.
pub(super) fn first_on_stripe(first: u64, stripe: u32, ratio: u32) -> Option<u32> {
    let ratio = u64::from(ratio.max(1));
    let blocks = u64::from(stripe).checked_mul(ratio).filter(|blocks| *blocks > 0)?;
    let into = (blocks - first % blocks) % blocks;
    // Less than a stripe, which has 32 bits.
    into.is_multiple_of(ratio).then_some((into / ratio) as u32)
}

#[cfg(test)]
mod tests {
    use super::super::index::{Index, Visits};
    use super::*;

    const WISH: Wish = Wish {
        class: Class::Data,
        len: 100,
        min: 10,
        goal: 5,
        goal_bit: 7,
        with_window: false,
        ahead: 0,
        continues: false,
        follows: false,
        stripe: 0,
    };
    const GROWS: Wish = Wish { with_window: true, ahead: 400, ..WISH };
    const GOES_ON: Wish = Wish { continues: true, follows: true, ..GROWS };

    #[test]
    fn the_choosiest_comes_first_and_any_cluster_last() {
        use Criterion::{Ahead, Any, Least, Whole};
        for (wish, expected) in [
            (WISH, &[Whole, Least, Any][..]),
            (GROWS, &[Ahead, Whole, Least, Any]),
            (GOES_ON, &[Ahead, Whole, Least, Any]),
            // There is no room for windows, but the group at the goal is waited for all the same.
            (Wish { ahead: 0, ..GOES_ON }, &[Ahead, Whole, Least, Any]),
            (Wish { continues: true, ..WISH }, &[Whole, Least, Any]),
            (Wish { min: 100, ..WISH }, &[Whole, Least, Any]),
        ] {
            assert_eq!(wish.criteria().collect::<Vec<_>>(), expected, "{wish:?}");
        }
    }

    #[test]
    fn each_criterion_means_what_its_table_says() {
        use Criterion::{Ahead, Any, Least, Whole};
        // Needed at home and elsewhere; waited for at home and elsewhere; windows; groups at most.
        let rows = [
            (GOES_ON, Ahead, (100, 500), (true, false), Look::Open, 16, true),
            (GROWS, Ahead, (500, 500), (false, false), Look::Open, 16, true),
            (GOES_ON, Whole, (100, 100), (false, false), Look::Open, 64, true),
            (GOES_ON, Least, (10, 10), (true, true), Look::Open, u32::MAX, false),
            (GOES_ON, Any, (10, 10), (true, true), Look::All, u32::MAX, false),
        ];
        for (wish, criterion, needed, waits, look, looks, by_index) in rows {
            let (home, away) = (wish.terms(criterion, 5), wish.terms(criterion, 6));
            assert_eq!((home.needed, away.needed), needed, "{criterion:?}");
            assert_eq!((home.waits, away.waits), waits, "{criterion:?}");
            assert_eq!((home.look, away.look), (look, look), "{criterion:?}");
            assert_eq!(criterion.looks_max(), looks, "{criterion:?}");
            assert_eq!(criterion.by_index(), by_index, "{criterion:?}");
            assert_eq!(criterion.begins_with_best(), !by_index, "{criterion:?}");
            let is_home = wish.continues && criterion == Ahead;
            assert_eq!((home.is_home, away.is_home), (is_home, false), "{criterion:?}");
        }
        let huge = Wish { len: u32::MAX, ..GROWS };
        assert_eq!(huge.elsewhere(Ahead), u32::MAX, "no overflow");
    }

    /// A group as a search sees it: its longest run outside windows and in all, and whether others
    /// are at it.
    type Group = (u32, u32, bool);

    /// Where a search ends among groups.
    fn found(groups: &[Group], wish: &Wish) -> Option<(Criterion, u32)> {
        let index = Index::new(groups.len() as u32);
        groups.iter().enumerate().for_each(|(at, group)| index.record(at as u32, group.0));
        for criterion in wish.criteria() {
            let best = (0..groups.len()).max_by_key(|at| (groups[*at].0, groups.len() - at));
            let first = match best.filter(|at| groups[*at].0 >= wish.min) {
                Some(best) if criterion.begins_with_best() => best as u32,
                _ => wish.goal,
            };
            let index = criterion.by_index().then_some(&index);
            let visits = Visits::new(index, first, groups.len() as u32, wish.elsewhere(criterion));
            let mut looks = 0;
            for group in visits {
                let (open, all, is_busy) = groups[group as usize];
                let terms = wish.terms(criterion, group);
                if looks == criterion.looks_max() || (is_busy && !terms.waits) {
                    continue;
                }
                looks += 1;
                if (if terms.look == Look::All { all } else { open }) >= terms.needed {
                    return Some((criterion, group));
                }
            }
        }
        None
    }

    #[test]
    fn a_search_ends_where_the_table_says() {
        use Criterion::{Ahead, Any, Least, Whole};
        let full: Vec<Group> = vec![(0, 0, false); 10];
        let with = |changes: &[(usize, Group)]| {
            let mut groups = full.clone();
            changes.iter().for_each(|(at, group)| groups[*at] = *group);
            groups
        };
        let has = |len: u32| (len, len, false);
        let busy = |len: u32| (len, len, true);
        for (wish, groups, expected) in [
            // Nothing, and less than the minimum.
            (WISH, with(&[]), None),
            (WISH, with(&[(3, has(9))]), None),
            // The goal, or the next group behind it, and round.
            (WISH, with(&[(5, has(100)), (6, has(900))]), Some((Whole, 5))),
            (WISH, with(&[(5, has(99)), (6, has(900))]), Some((Whole, 6))),
            (WISH, with(&[(2, has(100)), (9, has(100))]), Some((Whole, 9))),
            (WISH, with(&[(2, has(100)), (4, has(900))]), Some((Whole, 2))),
            // A group that others are at is passed over while there are others.
            (WISH, with(&[(5, busy(900)), (7, has(100))]), Some((Whole, 7))),
            (WISH, with(&[(5, busy(900)), (7, has(99))]), Some((Least, 5))),
            // Less will do if nobody has all: the longest.
            (WISH, with(&[(6, has(20)), (8, has(80))]), Some((Least, 8))),
            (WISH, with(&[(6, busy(20)), (8, busy(80))]), Some((Least, 8))),
            // Windows of other files last of all.
            (WISH, with(&[(1, (0, 900, false)), (8, has(10))]), Some((Least, 8))),
            (WISH, with(&[(1, (0, 900, false)), (8, has(9))]), Some((Any, 1))),
            // Who grows looks for a window as well, then for itself.
            (GROWS, with(&[(5, has(499)), (2, has(500))]), Some((Ahead, 2))),
            (GROWS, with(&[(5, has(499)), (2, has(100))]), Some((Whole, 5))),
            // Who goes on stays where it is for its length, and waits there.
            (GOES_ON, with(&[(5, has(100)), (6, has(900))]), Some((Ahead, 5))),
            (GOES_ON, with(&[(5, busy(100)), (6, has(900))]), Some((Ahead, 5))),
            (GOES_ON, with(&[(5, has(99)), (6, has(900))]), Some((Ahead, 6))),
        ] {
            assert_eq!(found(&groups, &wish), expected, "{wish:?} in {groups:?}");
        }
    }

    #[test]
    fn stripes_are_for_data_of_a_stripe_or_more_that_is_whole() {
        use Criterion::{Ahead, Any, Least, Whole};
        let wide = Wish { stripe: 64, ..WISH };
        for (wish, criterion, expected) in [
            (wide, Ahead, Some(64)),
            (wide, Whole, Some(64)),
            (wide, Least, None),
            (wide, Any, None),
            (Wish { len: 64, ..wide }, Whole, Some(64)),
            (Wish { len: 63, ..wide }, Whole, None),
            (Wish { class: Class::Metadata, ..wide }, Whole, None),
            (Wish { stripe: 1, ..wide }, Whole, None),
            (WISH, Whole, None),
        ] {
            assert_eq!(wish.stripe(criterion), expected, "{wish:?} {criterion:?}");
        }
    }

    #[test]
    fn a_stripe_is_what_fits_a_group_and_clusters() {
        for (width, stride, group_blocks, ratio, expected) in [
            (0, 0, 32768, 1, 0),
            (64, 16, 32768, 1, 64),
            (0, 16, 32768, 1, 16),
            (1, 0, 32768, 1, 0),
            (32768, 16, 32768, 1, 32768),
            (32769, 16, 32768, 1, 16),
            (u32::MAX, 65535, 32768, 1, 0),
            (64, 16, 32768, 16, 4),
            (16, 16, 32768, 16, 0),
            (24, 16, 32768, 16, 0),
            (64, 16, 32768, 0, 64),
        ] {
            assert_eq!(stripe_of(width, stride, group_blocks, ratio), expected, "{width} {stride}");
        }
    }

    #[test]
    fn the_next_stripe_is_never_behind_the_last_cluster_there_is() {
        let stripes = Stripes { first: 3, stripe: 8 };
        for (cluster, next) in [(0, 3), (3, 3), (4, 11), (11, 11), (12, 19)] {
            assert_eq!(stripes.next(cluster), Some(next));
            assert_eq!(stripes.has(cluster), cluster == next);
        }
        assert_eq!(stripes.next(u32::MAX), None);
        assert_eq!(Stripes { first: 0, stripe: u32::MAX }.next(1), Some(u32::MAX));
    }

    #[test]
    fn stripes_begin_at_multiples_of_blocks_of_the_device() {
        for (first, stripe, ratio, expected) in [
            (0, 64, 1, Some(0)),
            (1, 64, 1, Some(63)),
            (32768, 64, 1, Some(0)),
            (32768, 48, 1, Some(16)),
            (8193, 16, 1, Some(15)),
            (u64::MAX - 63, 64, 1, Some(0)),
            (1 << 40, 12, 16, Some(8)),
            (1, 4, 16, None),
            (0, 0, 1, None),
        ] {
            assert_eq!(first_on_stripe(first, stripe, ratio), expected, "{first} {stripe} {ratio}");
            if let Some(at) = expected {
                let block = u128::from(first) + u128::from(at) * u128::from(ratio);
                assert_eq!(block % (u128::from(stripe) * u128::from(ratio)), 0);
            }
        }
    }
}
