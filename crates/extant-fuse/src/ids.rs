//! Mapping of owners between the image and the host.

use extant_base::sabotage;

/// The id shown for an id of the image without a counterpart outside: `nobody`.
pub const UNMAPPED: u32 = 65534;

/// One run of ids: `count` from `image` on are `host` and following outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    image: u32,
    host: u32,
    count: u32,
}

/// Map of the image's users and groups to those outside. Without any run the ids are the same.
///
/// ```
/// use extant_fuse::IdMap;
/// let map = IdMap::new().map_users(0, 1000, 1);
/// assert_eq!(map.user_outside(0), 1000);
/// assert_eq!(map.user_inside(1000), Some(0));
/// assert_eq!(map.user_outside(7), 65534, "nobody: not in the map");
/// assert_eq!(map.user_inside(7), None);
/// assert_eq!(map.group_outside(7), 7, "groups have no map here");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdMap {
    users: Vec<Run>,
    groups: Vec<Run>,
}

impl IdMap {
    /// Everybody is himself.
    pub fn new() -> IdMap {
        IdMap::default()
    }

    /// Users `image..image + count` of the image are `host` and following outside. The first run that
    /// fits counts.
    #[must_use]
    pub fn map_users(mut self, image: u32, host: u32, count: u32) -> IdMap {
        self.users.push(Run { image, host, count });
        self
    }

    /// Groups `image..image + count` of the image are `host` and following outside. The first run that fits counts.
    #[must_use]
    pub fn map_groups(mut self, image: u32, host: u32, count: u32) -> IdMap {
        self.groups.push(Run { image, host, count });
        self
    }

    /// Returns whether all ids are the same inside and outside.
    pub fn is_identity(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// The user to show for one of the image; [`UNMAPPED`] without a run.
    pub fn user_outside(&self, image: u32) -> u32 {
        outside(&self.users, image)
    }

    /// The group to show for one of the image; [`UNMAPPED`] without a run.
    pub fn group_outside(&self, image: u32) -> u32 {
        outside(&self.groups, image)
    }

    /// The user to store for one outside; `None` without a run: such a user cannot own anything here.
    pub fn user_inside(&self, host: u32) -> Option<u32> {
        inside(&self.users, host)
    }

    /// The group to store for one outside; `None` without a run.
    pub fn group_inside(&self, host: u32) -> Option<u32> {
        inside(&self.groups, host)
    }
}

fn outside(runs: &[Run], image: u32) -> u32 {
    if runs.is_empty() {
        return image;
    }
    let at = |run: &Run| {
        let nth = image.checked_sub(run.image).filter(|nth| *nth < run.count)?;
        run.host.checked_add(nth)
    };
    runs.iter().find_map(at).unwrap_or(UNMAPPED)
}

fn inside(runs: &[Run], host: u32) -> Option<u32> {
    if runs.is_empty() {
        return Some(host);
    }
    runs.iter().find_map(|run| {
        let count = run.count.saturating_add(u32::from(sabotage("fuse.ids.one-too-many")));
        let nth = host.checked_sub(run.host).filter(|nth| *nth < count)?;
        run.image.checked_add(nth)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_map_there_and_back() {
        let map = IdMap::new().map_users(0, 100_000, 65_536).map_groups(5, 7, 1);
        for id in [0, 1, 65_535] {
            assert_eq!(map.user_outside(id), 100_000 + id);
            assert_eq!(map.user_inside(100_000 + id), Some(id));
        }
        assert_eq!(map.user_outside(65_536), UNMAPPED);
        assert_eq!(map.user_inside(99_999), None);
        assert_eq!(map.user_inside(165_536), None);
        assert_eq!((map.group_outside(5), map.group_outside(6)), (7, UNMAPPED));
        assert!(!map.is_identity());
    }

    #[test]
    fn runs_at_the_end_of_the_numbers_do_not_wrap() {
        let map = IdMap::new().map_users(u32::MAX - 1, u32::MAX, 10);
        assert_eq!(map.user_outside(u32::MAX - 1), u32::MAX);
        assert_eq!(map.user_outside(u32::MAX), UNMAPPED);
        assert_eq!(map.user_inside(u32::MAX), Some(u32::MAX - 1));
    }
}
