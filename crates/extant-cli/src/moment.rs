//! Times on the command line. What says no zone is UTC: the host's is not asked.

use extant::Timestamp;

const HELP: &str = "a time is now, @SECONDS, 2026-11-21, or 2026-11-21 10:12:58.5 with or without \
                    Z or +02:00; without a zone it is UTC";

/// A moment given by name or number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    Now,
    At(Timestamp),
}

/// Reads `now`, `@SECONDS[.FRACTION]` or a date with or without time and zone.
pub(crate) fn parse_moment(text: &str) -> Result<Moment, String> {
    let text = text.trim();
    if text == "now" {
        return Ok(Moment::Now);
    }
    let parsed = match text.strip_prefix('@') {
        Some(number) => parse_number(number),
        None => parse_date(text),
    };
    parsed.map(Moment::At).ok_or_else(|| format!("{text:?}: {HELP}"))
}

fn parse_number(text: &str) -> Option<Timestamp> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, nanos) = parse_seconds(digits)?;
    match (negative, nanos) {
        (false, _) => Some(Timestamp::new(whole, nanos)),
        (true, 0) => Some(Timestamp::new(whole.checked_neg()?, 0)),
        // -1.25 is three quarters after -2.
        (true, _) => Some(Timestamp::new(
            whole.checked_neg()?.checked_sub(1)?,
            1_000_000_000u32.checked_sub(nanos)?,
        )),
    }
}

/// `58`, `58.5`: seconds and nanoseconds. Digits after the ninth are dropped.
fn parse_seconds(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return None;
    }
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some((whole.parse().ok()?, nine.parse().ok()?))
}

fn parse_date(text: &str) -> Option<Timestamp> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, Some(time.trim())),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let mut field = |len| number(parts.next()?, len);
    let (year, month, day) = (field(4)?, field(2)?, field(2)?);
    if parts.next().is_some() {
        return None;
    }
    let days = days(year, month, day)?;
    let (mut seconds, mut nanos) = (days * 86_400, 0);
    if let Some(time) = time {
        let (time, zone) = split_zone(time)?;
        let mut parts = time.splitn(3, ':');
        let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
        let (second, fraction) = match parts.next() {
            Some(second) if second.split('.').next()?.len() == 2 => parse_seconds(second)?,
            Some(_) => return None,
            None => (0, 0),
        };
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        seconds += hour * 3600 + minute * 60 + second - zone;
        nanos = fraction;
    }
    Some(Timestamp::new(seconds, nanos))
}

/// The time and how many seconds its zone is ahead of UTC.
fn split_zone(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix('Z').or_else(|| time.strip_suffix("UTC")) {
        return Some((time.trim_end(), 0));
    }
    let Some(at) = time.find(['+', '-']) else { return Some((time, 0)) };
    let (time, zone) = time.split_at(at);
    let (sign, zone) = zone.split_at(1);
    let (hours, minutes) = match zone.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None if zone.len() == 4 && zone.is_ascii() => zone.split_at(2),
        None => (zone, "00"),
    };
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    if hours > 14 || minutes > 59 {
        return None;
    }
    let ahead = hours * 3600 + minutes * 60;
    Some((time.trim_end(), if sign == "-" { -ahead } else { ahead }))
}

/// Exactly `len` digits.
fn number(text: &str, len: usize) -> Option<i64> {
    let digits = text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Days from 1970-01-01 to a date of the years 0 to 9999.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let february = if leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    if day < 1 || day > *lengths.get(index)? {
        return None;
    }
    let before: i64 = lengths.iter().take(index).sum();
    // Leap days of all years before this one, counted from the year 0, which has one.
    let past = year - 1;
    let leap_days = if year == 0 { 0 } else { past / 4 - past / 100 + past / 400 + 1 };
    const TO_1970: i64 = 719_528;
    Some(year * 365 + leap_days + before + day - 1 - TO_1970)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::time_long;

    #[test]
    fn times_come_out_as_they_are_shown() {
        for (text, shown) in [
            ("@0", "1970-01-01 00:00:00.000000000 UTC"),
            ("@-1.25", "1969-12-31 23:59:58.750000000 UTC"),
            ("@951782400.5", "2000-02-29 00:00:00.500000000 UTC"),
            ("2026-11-21", "2026-11-21 00:00:00.000000000 UTC"),
            ("2026-11-21 10:12", "2026-11-21 10:12:00.000000000 UTC"),
            ("2026-11-21T10:12:58.123456789Z", "2026-11-21 10:12:58.123456789 UTC"),
            ("2026-11-21 10:12:58 UTC", "2026-11-21 10:12:58.000000000 UTC"),
            ("2026-11-21 10:12:58+02:00", "2026-11-21 08:12:58.000000000 UTC"),
            ("2026-11-21 23:30 -0130", "2026-11-22 01:00:00.000000000 UTC"),
            ("1901-12-13 20:45:52", "1901-12-13 20:45:52.000000000 UTC"),
            ("2400-02-29", "2400-02-29 00:00:00.000000000 UTC"),
            ("0000-03-01", "0000-03-01 00:00:00.000000000 UTC"),
        ] {
            let Ok(Moment::At(time)) = parse_moment(text) else { panic!("{text}") };
            assert_eq!(time_long(time), shown, "{text}");
        }
        assert_eq!(parse_moment("now"), Ok(Moment::Now));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "@",
            "@1.",
            "@x",
            "@99999999999999999999",
            "2026-13-01",
            "2026-02-29",
            "2026-1-1",
            "2026-11-21 24:00",
            "2026-11-21 10",
            "2026-11-21 10:12:5",
            "tomorrow",
            "2026-11-21 10:12 CET",
            "2026-11-21 10:12+99:00",
            "2026-11-21-01",
        ] {
            assert!(parse_moment(text).is_err(), "{text}");
        }
    }
}
