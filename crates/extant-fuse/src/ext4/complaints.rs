//! Messages for the log that a hostile image, or a full disk below an image, could cause without
//! end.
//!
//! Of each kind the log gets [`BURST`] a minute, so that it does not fill the disk that it lies on,
//! and so that damage is still named after thousands of writes have failed. What was left out is
//! counted, and the next message of the kind says how many.

use std::time::Duration;

use extant_sync::{Mutex, Rank};

/// Messages of one kind that are logged in one [`PERIOD`].
const BURST: u32 = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// What is complained about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Damage of the image.
    Damage,
    /// A device that fails, or has no room.
    Device,
}

/// The messages of a mount so far.
pub(super) struct Complaints([Mutex<Pace>; 2]);

#[derive(Default)]
struct Pace {
    /// All of them, logged or not.
    count: u64,
    /// The beginning of the period, by the clock that counts on.
    since: Option<Duration>,
    /// Logged in it.
    said: u32,
    left_out: u64,
}

impl Complaints {
    pub(super) fn new() -> Complaints {
        let pace = || Mutex::new(Rank::Leaf, Pace::default());
        Complaints([pace(), pace()])
    }

    fn pace(&self, kind: Kind) -> &Mutex<Pace> {
        let [damage, device] = &self.0;
        match kind {
            Kind::Damage => damage,
            Kind::Device => device,
        }
    }

    /// Counts a message. Returns the line for the log, or `None` if it gets none.
    pub(super) fn line(&self, kind: Kind, text: &str, now: Duration) -> Option<String> {
        let mut pace = self.pace(kind).lock();
        pace.count += 1;
        if pace.since.is_none_or(|since| now.saturating_sub(since) >= PERIOD) {
            (pace.since, pace.said) = (Some(now), 0);
        }
        if pace.said >= BURST {
            pace.left_out += 1;
            return None;
        }
        pace.said += 1;
        let left_out = std::mem::take(&mut pace.left_out);
        drop(pace);
        Some(match left_out {
            0 => text.to_owned(),
            1 => format!("{text} (and 1 message of this kind was left out before)"),
            _ => format!("{text} (and {left_out} messages of this kind were left out before)"),
        })
    }

    /// How many there were of a kind, logged or not.
    pub(super) fn count(&self, kind: Kind) -> u64 {
        self.pace(kind).lock().count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_twenty_of_each_kind_and_the_next_says_how_many_there_were() {
        let complaints = Complaints::new();
        let at = Duration::from_secs;
        let mut lines = 0;
        for number in 0..1000 {
            let line = complaints.line(Kind::Device, "full", at(5 + number / 50));
            lines += usize::from(line.is_some_and(|line| line == "full"));
        }
        assert_eq!(lines, 20);
        // The other kind is not drowned.
        assert_eq!(complaints.line(Kind::Damage, "bad", at(25)).as_deref(), Some("bad"));
        assert_eq!(complaints.line(Kind::Device, "full", at(64)), None);
        let later = complaints.line(Kind::Device, "full", at(65)).unwrap();
        assert_eq!(later, "full (and 981 messages of this kind were left out before)");
        assert_eq!(complaints.line(Kind::Device, "full", at(65)).as_deref(), Some("full"));
        assert_eq!((complaints.count(Kind::Device), complaints.count(Kind::Damage)), (1003, 1));
    }
}
