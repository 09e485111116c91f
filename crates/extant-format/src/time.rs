//! Times of inodes: 34 bits of seconds and 30 bits of nanoseconds in two 32-bit fields.
//!
//! # Shape
//!
//! The first field holds the low 32 bits of the seconds, read as *signed*: 1901 to 2038. The extra
//! field, present when the inode is large enough, adds the epoch and the nanoseconds:
//!
//! ```text
//! bit 31                             2  1     0
//! +----------------------------------+---------+
//! | nanoseconds, 0..=999,999,999     |  epoch  |   seconds = signed low half + epoch * 2^32
//! +----------------------------------+---------+
//! ```
//!
//! | epoch | first second         | last second          |
//! |------:|----------------------|----------------------|
//! |     0 | 1901-12-13T20:45:52Z | 2038-01-19T03:14:07Z |
//! |     1 | 2038-01-19T03:14:08Z | 2174-02-25T09:42:23Z |
//! |     2 | 2174-02-25T09:42:24Z | 2310-04-04T16:10:39Z |
//! |     3 | 2310-04-04T16:10:40Z | 2446-05-10T22:38:55Z |
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/inodes.rst`, "Inode Timestamps".

/// The first second that can be stored: 1901-12-13T20:45:52Z.
pub const SECONDS_MIN: i64 = -(1 << 31);
/// The last second that an inode without extra fields can store: 2038-01-19T03:14:07Z.
pub const SECONDS_MAX_SMALL: i64 = (1 << 31) - 1;
/// The last second that can be stored: 2446-05-10T22:38:55Z.
pub const SECONDS_MAX: i64 = (1 << 34) - (1 << 31) - 1;
/// Nanoseconds of a second.
pub const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A moment, to the nanosecond. Ordered by time when `nanos` is below one second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z, negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, 0..=999,999,999. A damaged inode may hold up to 2^30 - 1; the
    /// value is kept as found so that encoding changes nothing, see [`Timestamp::nanos_clamped`].
    pub nanos: u32,
}

#[cfg(feature = "std")]
impl From<std::time::SystemTime> for Timestamp {
    /// Moments outside of 64 bits of seconds become the first or the last one. Cost: none.
    ///
    /// ```
    /// use extant_format::time::Timestamp;
    /// use std::time::{Duration, UNIX_EPOCH};
    /// let before = UNIX_EPOCH - Duration::from_millis(1_500);
    /// assert_eq!(Timestamp::from(before), Timestamp::new(-2, 500_000_000));
    /// ```
    fn from(time: std::time::SystemTime) -> Timestamp {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Timestamp {
                seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nanos: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let whole = i64::try_from(before.as_secs()).map_or(i64::MIN, i64::wrapping_neg);
                match before.subsec_nanos() {
                    0 => Timestamp { seconds: whole, nanos: 0 },
                    nanos => Timestamp {
                        seconds: whole.saturating_sub(1),
                        nanos: NANOS_PER_SECOND.saturating_sub(nanos),
                    },
                }
            }
        }
    }
}

#[cfg(feature = "std")]
impl Timestamp {
    /// Returns the same moment as `std` keeps it; `None` where the system's clock cannot say it. Nanoseconds of a
    /// damaged inode past the end of the second count as its last one.
    ///
    /// ```
    /// use extant_format::time::Timestamp;
    /// let moment = Timestamp::new(-2, 500_000_000);
    /// assert_eq!(moment.to_system_time().map(Timestamp::from), Some(moment));
    /// ```
    pub fn to_system_time(self) -> Option<std::time::SystemTime> {
        use std::time::{Duration, UNIX_EPOCH};
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole = match self.seconds {
            0.. => UNIX_EPOCH.checked_add(seconds),
            _ => UNIX_EPOCH.checked_sub(seconds),
        };
        let nanos = self.nanos.min(NANOS_PER_SECOND - 1);
        whole?.checked_add(Duration::from_nanos(u64::from(nanos)))
    }
}

impl Timestamp {
    /// A moment from seconds since 1970 and nanoseconds.
    pub const fn new(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    /// From the two stored fields; `extra` is `None` when the inode has no room for it.
    ///
    /// ```
    /// use extant_format::time::Timestamp;
    /// assert_eq!(Timestamp::decode(0xffff_ffff, None).seconds, -1);
    /// // Epoch 1 moves the same low half from 1969 to 2106.
    /// assert_eq!(Timestamp::decode(0xffff_ffff, Some(1)).seconds, 0xffff_ffff);
    /// ```
    pub fn decode(low: u32, extra: Option<u32>) -> Timestamp {
        let base = i64::from(i32::from_le_bytes(low.to_le_bytes()));
        let extra = extra.unwrap_or(0);
        let epoch = i64::from(extra & 3) << 32;
        Timestamp { seconds: base.saturating_add(epoch), nanos: extra >> 2 }
    }

    /// The two fields to store, when there is room for both. Times outside
    /// [`SECONDS_MIN`]`..=`[`SECONDS_MAX`] are clamped, as the kernel does.
    pub fn encode(self) -> (u32, u32) {
        let seconds = self.seconds.clamp(SECONDS_MIN, SECONDS_MAX);
        let [a, b, c, d, ..] = seconds.to_le_bytes();
        let low = u32::from_le_bytes([a, b, c, d]);
        // What the signed low half does not account for is a multiple of 2^32, 0 to 3 of them.
        let base = i64::from(i32::from_le_bytes([a, b, c, d]));
        let [epoch, ..] = (seconds.saturating_sub(base) >> 32).to_le_bytes();
        let nanos = self.nanos & ((1 << 30) - 1);
        (low, (nanos << 2) | u32::from(epoch & 3))
    }

    /// The field to store in an inode without room for the extra one: clamped to
    /// [`SECONDS_MIN`]`..=`[`SECONDS_MAX_SMALL`], nanoseconds dropped.
    pub fn encode_small(self) -> u32 {
        let [a, b, c, d, ..] = self.seconds.clamp(SECONDS_MIN, SECONDS_MAX_SMALL).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The nearest time that an inode can store, with or without extra fields, as Linux chooses it:
    /// the first and the last second have no nanoseconds, and without extra fields no second has.
    ///
    /// ```
    /// use extant_format::time::{SECONDS_MAX, Timestamp};
    /// let late = Timestamp::new(SECONDS_MAX, 5);
    /// assert_eq!(late.nearest(true), Timestamp::new(SECONDS_MAX, 0));
    /// assert_eq!(Timestamp::new(i64::MAX, 5).nearest(true), late.nearest(true));
    /// assert_eq!(Timestamp::new(7, 5).nearest(false), Timestamp::new(7, 0));
    /// ```
    pub fn nearest(self, has_extra: bool) -> Timestamp {
        let last = if has_extra { SECONDS_MAX } else { SECONDS_MAX_SMALL };
        let seconds = self.seconds.clamp(SECONDS_MIN, last);
        let is_whole = !has_extra || seconds == SECONDS_MIN || seconds == last;
        Timestamp { seconds, nanos: if is_whole { 0 } else { self.nanos } }
    }

    /// The nanoseconds, at most 999,999,999: what to tell a program.
    pub fn nanos_clamped(self) -> u32 {
        self.nanos.min(NANOS_PER_SECOND.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days since 1970 of a Gregorian date.
    fn days(y: i64, m: i64, d: i64) -> i64 {
        let leap = |y: i64| y / 4 - y / 100 + y / 400;
        let cumulative = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let is_leap = y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
        365 * (y - 1970) + leap(y - 1) - leap(1969)
            + cumulative[(m - 1) as usize]
            + i64::from(m > 2 && is_leap)
            + d
            - 1
    }

    fn at(y: i64, m: i64, d: i64, h: i64, min: i64, s: i64) -> i64 {
        days(y, m, d) * 86400 + h * 3600 + min * 60 + s
    }

    #[test]
    fn the_documented_epochs_start_and_end_where_they_should() {
        let table = [
            (0, at(1901, 12, 13, 20, 45, 52), at(2038, 1, 19, 3, 14, 7)),
            (1, at(2038, 1, 19, 3, 14, 8), at(2174, 2, 25, 9, 42, 23)),
            (2, at(2174, 2, 25, 9, 42, 24), at(2310, 4, 4, 16, 10, 39)),
            (3, at(2310, 4, 4, 16, 10, 40), at(2446, 5, 10, 22, 38, 55)),
        ];
        for (epoch, first, last) in table {
            assert_eq!(Timestamp::new(first, 0).encode(), (0x8000_0000, epoch));
            assert_eq!(Timestamp::new(last, 0).encode(), (0x7fff_ffff, epoch));
        }
        assert_eq!((table[0].1, table[3].2), (SECONDS_MIN, SECONDS_MAX));
        // The years in which the unsigned low half wraps.
        for (epoch, year, month, day, h, m, s) in [
            (0, 1970, 1, 1, 0, 0, 0),
            (1, 2106, 2, 7, 6, 28, 16),
            (2, 2242, 3, 16, 12, 56, 32),
            (3, 2378, 4, 22, 19, 24, 48),
        ] {
            assert_eq!(Timestamp::new(at(year, month, day, h, m, s), 0).encode(), (0, epoch));
            assert_eq!(
                Timestamp::new(at(year, month, day, h, m, s) - 1, 0).encode(),
                (0xffff_ffff, epoch)
            );
        }
    }

    #[test]
    fn every_second_near_an_edge_reads_back() {
        for edge in -2..=14i64 {
            for by in -1000..=1000 {
                let seconds = (edge << 30) + by;
                let time = Timestamp::new(seconds, 999_999_999);
                let (low, extra) = time.encode();
                let back = Timestamp::decode(low, Some(extra));
                assert_eq!(back.seconds, seconds.clamp(SECONDS_MIN, SECONDS_MAX), "{seconds}");
                assert_eq!(back.nanos, 999_999_999);
                let small = Timestamp::decode(time.encode_small(), None);
                assert_eq!(small.seconds, seconds.clamp(SECONDS_MIN, SECONDS_MAX_SMALL));
            }
        }
        for far in [i64::MIN, i64::MAX] {
            let (low, extra) = Timestamp::new(far, 0).encode();
            let back = Timestamp::decode(low, Some(extra)).seconds;
            assert_eq!(back, far.clamp(SECONDS_MIN, SECONDS_MAX));
        }
    }

    #[test]
    fn every_stored_pair_encodes_to_itself() {
        for low in [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            for epoch in 0..4 {
                for nanos in [0u32, 1, 999_999_999, 1_000_000_000, (1 << 30) - 1] {
                    let extra = (nanos << 2) | epoch;
                    let time = Timestamp::decode(low, Some(extra));
                    assert_eq!(time.encode(), (low, extra));
                    assert!(time.nanos_clamped() < NANOS_PER_SECOND);
                }
            }
        }
    }
}
