//! Words of a step: quotes, repetitions, escapes, and numbers with suffixes.

/// Splits a line at blanks. `"…"` keeps blanks; `;` and `=` are words of their own when they stand
/// alone.
pub(crate) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ';' if !quoted => {
                words.extend(word.take());
                words.push(";".to_owned());
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    if quoted {
        return Err("a quote that does not end".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// The bytes that a word stands for: `<text*count>` repeats, `\n`, `\0`, `\\` and `\xff` escape.
pub(crate) fn expand(word: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        if let Some((part, after)) = repetition(rest) {
            out.extend(part);
            rest = after;
            continue;
        }
        rest = rest.get(c.len_utf8()..).unwrap_or("");
        if c != '\\' {
            out.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let mut tail = rest.chars();
        match tail.next() {
            Some('n') => out.push(b'\n'),
            Some('0') => out.push(0),
            Some('x') => {
                let hex = rest.get(1..3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
                out.push(hex.unwrap_or(b'?'));
                tail = rest.get(3..).unwrap_or("").chars();
            }
            Some(other) => out.extend(other.encode_utf8(&mut [0; 4]).as_bytes()),
            None => out.push(b'\\'),
        }
        rest = tail.as_str();
    }
    out
}

/// `<text*count>` at the start: what it stands for, and what follows it.
fn repetition(text: &str) -> Option<(Vec<u8>, &str)> {
    let inner = text.strip_prefix('<')?;
    let end = inner.find('>')?;
    let (part, count) = inner.get(..end)?.rsplit_once('*')?;
    let count = usize::try_from(number(count)?).ok()?;
    Some((expand(part).repeat(count), inner.get(end + 1..)?))
}

/// A number: terms with `+` and `-` between them, each decimal or `0x…`, with K, M, G, T or P. At most
/// 2^64 - 1, at least -2^63.
pub(crate) fn number(text: &str) -> Option<i128> {
    if text.is_empty() {
        return None;
    }
    let mut sum = 0_i128;
    let mut sign = 1;
    let mut start = 0;
    for (at, c) in text.char_indices().chain([(text.len(), '+')]) {
        if !matches!(c, '+' | '-') {
            continue;
        }
        let term = text.get(start..at)?;
        if !term.is_empty() || at != 0 {
            sum = sum.checked_add(sign * self::term(term)?)?;
        }
        sign = if c == '-' { -1 } else { 1 };
        start = at + 1;
    }
    (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&sum).then_some(sum)
}

fn term(text: &str) -> Option<i128> {
    if let Some(hex) = text.strip_prefix("0x") {
        return i128::from_str_radix(hex, 16).ok();
    }
    let shift = match text.chars().last()? {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        'P' => 50,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { text.get(..text.len() - 1)? };
    digits.parse::<i128>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number("16T-4K"), Some((16 << 40) - 4096));
        assert_eq!(number("-1"), Some(-1));
        assert_eq!(number("0x10+1"), Some(17));
        assert_eq!(number("x"), None);
        assert_eq!(number(""), None);
    }

    #[test]
    fn words_and_bytes() {
        assert_eq!(split("a \"b c\";d \"\"").unwrap(), ["a", "b c", ";", "d", ""]);
        assert!(split("\"a").is_err());
        assert_eq!(expand("a<xy*3>b"), b"axyxyxyb");
        assert_eq!(expand("\\xff\\0\\n\\<"), b"\xff\0\n<");
        assert_eq!(expand("<<"), b"<<");
    }
}
