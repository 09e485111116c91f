//! Which clusters are in use: a bit for each, in pieces of one group, made when first needed.

/// Clusters counted from the first block of the first group.
pub(crate) struct Claims {
    groups: Vec<Option<Box<[u64]>>>,
    per_group: u32,
}

impl Claims {
    /// Nothing claimed. `groups` groups of `per_group` clusters.
    pub(crate) fn new(groups: u32, per_group: u32) -> Claims {
        Claims { groups: vec![None; groups as usize], per_group: per_group.max(1) }
    }

    /// Claims `len` clusters from `first` on. The first of them that was claimed already; the others
    /// are claimed even so.
    pub(crate) fn claim(&mut self, first: u64, len: u64) -> Option<u64> {
        let per_group = u64::from(self.per_group);
        let words = self.per_group.div_ceil(64) as usize;
        let mut before = None;
        let end = first.saturating_add(len);
        let mut at = first;
        while at < end {
            let (group, bit) = (at / per_group, at % per_group);
            let take = (end - at).min(per_group - bit).min(64 - bit % 64);
            let Some(slot) = usize::try_from(group).ok().and_then(|g| self.groups.get_mut(g))
            else {
                return before;
            };
            let bits = slot.get_or_insert_with(|| vec![0; words].into_boxed_slice());
            let mask = (u64::MAX >> (64 - take)) << (bit % 64);
            if let Some(word) = bits.get_mut((bit / 64) as usize) {
                let twice = *word & mask;
                if twice != 0 && before.is_none() {
                    before = Some(at - bit % 64 + u64::from(twice.trailing_zeros()));
                }
                *word |= mask;
            }
            at += take;
        }
        before
    }

    /// The bits of all groups.
    pub(crate) fn into_groups(self) -> Vec<Option<Box<[u64]>>> {
        self.groups
    }

    /// Clusters claimed in a group.
    pub(crate) fn count(&self, group: u32) -> u32 {
        self.words(group).map_or(0, |words| words.iter().map(|word| word.count_ones()).sum())
    }

    /// The bits of a group; `None` when nothing is claimed there.
    pub(crate) fn words(&self, group: u32) -> Option<&[u64]> {
        self.groups.get(group as usize)?.as_deref()
    }
}

/// Compares the first `bits` bits of a bitmap with what should be there; `None` stands for zeros.
/// The first bit that differs, whether it is set in the bitmap, and how many differ.
pub(crate) fn compare(
    bitmap: &[u8],
    wanted: Option<&[u64]>,
    bits: u32,
) -> Option<(u32, bool, u32)> {
    let mut first = None;
    let mut count = 0;
    let (words, _) = bitmap.as_chunks::<8>();
    for (number, word) in words.iter().take(bits.div_ceil(64) as usize).enumerate() {
        let found = u64::from_le_bytes(*word);
        let wanted = wanted.and_then(|words| words.get(number)).copied().unwrap_or(0);
        let left = bits - (number as u32) * 64;
        let mask = if left >= 64 { u64::MAX } else { u64::MAX >> (64 - left) };
        let differ = (found ^ wanted) & mask;
        if differ != 0 {
            count += differ.count_ones();
            let bit = differ.trailing_zeros();
            first.get_or_insert((number as u32 * 64 + bit, found >> bit & 1 == 1));
        }
    }
    first.map(|(bit, marked)| (bit, marked, count))
}
