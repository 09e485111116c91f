//! How names, numbers, modes and times are shown.

use extant::{FileKind, Timestamp};

/// A name or path as text, for messages and terminals: control characters and bytes that are not
/// UTF-8 become escapes, so that a name can neither move the cursor nor fake a line.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                // Control characters, and the marks that turn the direction of writing around.
                _ if c.is_control() || is_bidi_mark(c) => out.extend(c.escape_default()),
                _ => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// A message on one line of plain text, whatever names it was made of. Backslashes stay: names
/// that went through [`escape`] are not escaped twice.
pub(crate) fn one_line(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() || is_bidi_mark(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// JSON with the control characters that JSON allows in strings, and marks of direction, escaped:
/// the same value, harmless on a terminal.
pub(crate) fn json_plain(json: &str) -> std::borrow::Cow<'_, str> {
    // Below 0x20 are only the line ends between values.
    let is_unsafe = |c: char| (c.is_control() && c >= '\u{7f}') || is_bidi_mark(c);
    if !json.contains(is_unsafe) {
        return json.into();
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_unsafe(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c))); // All are below 0x10000.
        } else {
            out.push(c);
        }
    }
    out.into()
}

/// A number with its noun: `1 block`, `2 blocks`, `0 directories`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {noun}s"),
    }
}

fn is_bidi_mark(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Bytes in units of 1024 with at most one decimal, rounded: `1.5 GiB`, `512 B`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if bytes.is_multiple_of(1024u64.pow(unit as u32 + 1)) {
        format!("{} {}", bytes / 1024u64.pow(unit as u32 + 1), UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// The short form of `ls -h`: `1.5G`, `512`.
pub(crate) fn human_short(bytes: u64) -> String {
    let long = human_bytes(bytes);
    match long.split_once(' ') {
        Some((number, "B")) => number.to_owned(),
        Some((number, unit)) => format!("{number}{}", unit.get(..1).unwrap_or("")),
        None => long,
    }
}

/// The letter of `ls -l` for a kind of file.
pub(crate) fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// The name of a kind of file, as `--json` has it.
pub(crate) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// Kind and permissions as `ls -l` writes them: `drwxr-sr-t`.
pub(crate) fn mode_text(kind: FileKind, permissions: u16) -> String {
    let mut text = String::with_capacity(10);
    text.push(kind_letter(kind));
    for (shift, special, with_x, without_x) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = permissions >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (permissions & special != 0, bits & 1 != 0) {
            (true, true) => with_x,
            (true, false) => without_x,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Date and time in UTC: `(year, month, day, hour, minute, second)`.
fn civil(seconds: i64) -> (i64, u32, u32, u32, u32, u32) {
    let days = seconds.div_euclid(86_400);
    let of_day = seconds.rem_euclid(86_400) as u32; // Below 86,400.
    // Eras of 400 years that begin on 1 March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32; // 1..=31.
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u32, day, of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// A moment to the minute, in UTC: `2026-11-21 10:12`.
pub(crate) fn time_short(time: Timestamp) -> String {
    let (year, month, day, hour, minute, _) = civil(time.seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// A moment to the nanosecond, in UTC: `2026-11-21 10:12:58.123456789 UTC`.
pub(crate) fn time_long(time: Timestamp) -> String {
    let (year, month, day, hour, minute, second) = civil(time.seconds);
    let nanos = time.nanos_clamped();
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanos:09} UTC")
}

/// Seconds since 1970 to the second, in UTC; `never` for 0.
pub(crate) fn seconds_text(seconds: i64) -> String {
    if seconds == 0 {
        return "never".into();
    }
    let (year, month, day, hour, minute, second) = civil(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Returns whether a name matches a shell pattern: `*`, `?`, `[a-z]`, `[!a-z]`, `\` before a
/// character. Works on bytes, except that `?` and a class take a whole UTF-8 character.
///
/// Cost: at most length of the pattern times length of the name.
pub(crate) fn glob(pattern: &str, name: &[u8], ignore_case: bool) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<Glyph> = glyphs(name);
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last `*` does not fit: one character further.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(len) = one(&pattern[p..], name[n], ignore_case) {
            p += len;
            n += 1;
        } else if let Some((star_p, star_n)) = star {
            p = star_p + 1;
            n = star_n + 1;
            star = Some((star_p, n));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// A character of a name, or a byte that is part of none.
#[derive(Clone, Copy, PartialEq)]
enum Glyph {
    Char(char),
    Byte,
}

fn glyphs(name: &[u8]) -> Vec<Glyph> {
    name.utf8_chunks()
        .flat_map(|chunk| {
            let bytes = chunk.invalid().iter().map(|_| Glyph::Byte);
            chunk.valid().chars().map(Glyph::Char).chain(bytes)
        })
        .collect()
}

fn same(a: char, b: char, ignore_case: bool) -> bool {
    a == b || (ignore_case && a.to_lowercase().eq(b.to_lowercase()))
}

/// Returns the length of the first element of `pattern` if it takes `glyph`.
fn one(pattern: &[char], glyph: Glyph, ignore_case: bool) -> Option<usize> {
    let Glyph::Char(c) = glyph else { return (pattern.first() == Some(&'?')).then_some(1) };
    match *pattern.first()? {
        '?' => Some(1),
        '\\' if pattern.len() > 1 => same(pattern[1], c, ignore_case).then_some(2),
        '[' => match class(pattern, c, ignore_case) {
            Some((matches, len)) => matches.then_some(len),
            None => (c == '[').then_some(1), // Never closed: an ordinary character.
        },
        literal => same(literal, c, ignore_case).then_some(1),
    }
}

/// A bracket expression at the start of `pattern`: whether it holds `c`, and its length.
fn class(pattern: &[char], c: char, ignore_case: bool) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = if negated { 2 } else { 1 };
    let mut at = first;
    let mut found = false;
    loop {
        let low = *pattern.get(at)?;
        if low == ']' && at > first {
            return Some((found != negated, at + 1));
        }
        let ranged = pattern.get(at + 1) == Some(&'-')
            && pattern.get(at + 2).is_some_and(|high| *high != ']');
        if ranged {
            let high = pattern[at + 2];
            let inside = |c: char| (low..=high).contains(&c);
            found |= inside(c)
                || (ignore_case && (c.to_lowercase().any(inside) || c.to_uppercase().any(inside)));
            at += 3;
        } else {
            found |= same(low, c, ignore_case);
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_are_plain_text_and_unambiguous() {
        assert_eq!(escape(b"plain \xc3\xa9"), "plain \u{e9}");
        assert_eq!(escape(b"a\nb\x1b[2J\\"), "a\\nb\\u{1b}[2J\\\\");
        assert_eq!(escape(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(escape("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    }

    #[test]
    fn messages_stay_on_their_line() {
        assert_eq!(one_line("a\nb\x1b[2J \\n"), "a\\nb\\u{1b}[2J \\n");
    }

    #[test]
    fn json_keeps_its_value_without_control_characters() {
        let text = serde_json::to_string("a\u{9b}\u{202e}\u{7f}\n\u{e9}").unwrap();
        let plain = json_plain(&text);
        assert_eq!(plain, "\"a\\u009b\\u202e\\u007f\\n\u{e9}\"");
        assert_eq!(
            serde_json::from_str::<String>(&plain).unwrap(),
            "a\u{9b}\u{202e}\u{7f}\n\u{e9}"
        );
    }

    #[test]
    fn numbers_and_their_nouns() {
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(0, "block"), "0 blocks");
        assert_eq!(counted(2, "directory"), "2 directories");
        assert_eq!(counted(1, "directory"), "1 directory");
    }

    #[test]
    fn bytes_in_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (16 << 40, "16 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(human_bytes(bytes), text, "{bytes}");
        }
        assert_eq!(human_short(1536), "1.5K");
        assert_eq!(human_short(12), "12");
    }

    #[test]
    fn modes_as_ls_writes_them() {
        assert_eq!(mode_text(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Regular, 0o4711), "-rws--x--x");
        assert_eq!(mode_text(FileKind::Regular, 0o7000), "---S--S--T");
        assert_eq!(mode_text(FileKind::Symlink, 0), "l---------");
    }

    #[test]
    fn dates_over_the_whole_range() {
        let at = |seconds| time_long(Timestamp::new(seconds, 5));
        assert_eq!(at(0), "1970-01-01 00:00:00.000000005 UTC");
        assert_eq!(at(-1), "1969-12-31 23:59:59.000000005 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00.000000005 UTC");
        assert_eq!(at(-(1 << 31)), "1901-12-13 20:45:52.000000005 UTC");
        assert_eq!(at((1 << 34) - (1 << 31) - 1), "2446-05-10 22:38:55.000000005 UTC");
        assert_eq!(seconds_text(0), "never");
    }

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("", "a", false),
            ("*.c", "a.c", true),
            ("*.c", "a.cc", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("?", "\u{e9}", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("A", "a", false),
        ] {
            assert_eq!(glob(pattern, name.as_bytes(), false), expected, "{pattern} {name}");
        }
        assert!(glob("R[E]*", b"readme", true));
        assert!(glob("?a*", b"\xffa\xfe", false));
        assert!(!glob("a", b"\xff", false));
        // Not exponential.
        assert!(!glob(&"a*".repeat(50), &[b'a'; 49], false));
        assert!(glob(&"a*".repeat(50), &[b'a'; 250], false));
    }
}
