//! Values of extended attributes as `getfattr` writes and `setfattr` reads them.

use std::fmt::Write as _;

use clap::ValueEnum;

/// How values are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Encoding {
    /// In double quotes, with escapes
    Text,
    /// 0x and two digits for each byte
    Hex,
    /// 0s and base 64
    Base64,
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// `value` as text. Without an encoding: in quotes if it is mostly printable, else base 64.
pub(crate) fn encode(value: &[u8], encoding: Option<Encoding>) -> Vec<u8> {
    let encoding = encoding.unwrap_or_else(|| match is_printable(value) {
        true => Encoding::Text,
        false => Encoding::Base64,
    });
    match encoding {
        Encoding::Text => quote(value),
        Encoding::Hex => format!("0x{}", crate::output::hex(value)).into_bytes(),
        Encoding::Base64 => format!("0s{}", base64(value)).into_bytes(),
    }
}

/// At most one byte in eight is a control character or outside ASCII; a zero byte at the end does
/// not count.
fn is_printable(value: &[u8]) -> bool {
    let body = value.strip_suffix(b"\0").unwrap_or(value);
    let odd = body.iter().filter(|byte| !(b' '..=b'~').contains(*byte)).count();
    body.len() >= odd * 8
}

/// In double quotes; zero bytes, line ends, quotes and backslashes escaped, the rest as it is.
fn quote(value: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    for &byte in value {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            0 | b'\n' | b'\r' => out.extend(format!("\\{byte:03o}").into_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    out
}

fn base64(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len().div_ceil(3) * 4);
    for chunk in value.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            let digit = DIGITS.get(digit as usize).copied().unwrap_or(b'=');
            out.push(if place > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    out
}

/// Reads what [`encode`] writes, and plain text. `0x…` is hexadecimal, `0s…` base 64; text may be
/// in double quotes; in it `\\`, `\"` and `\nnn` (octal) are escapes.
pub(crate) fn decode(text: &[u8]) -> Result<Vec<u8>, String> {
    match text {
        [b'0', b'x' | b'X', digits @ ..] => decode_hex(digits),
        [b'0', b's' | b'S', digits @ ..] => decode_base64(digits),
        [b'"', inner @ .., b'"'] => Ok(unescape(inner)),
        _ => Ok(unescape(text)),
    }
}

fn decode_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || "a hexadecimal value is 0x and an even number of digits".to_owned();
    let digits: Vec<u8> = text
        .iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()
        .ok_or_else(wrong)?;
    if !digits.len().is_multiple_of(2) {
        return Err(wrong());
    }
    Ok(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

fn decode_base64(text: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || "a value after 0s is base 64: groups of four, filled up with =".to_owned();
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let body = match text.as_slice() {
        [body @ .., b'=', b'='] | [body @ .., b'='] => body,
        body => body,
    };
    if !text.len().is_multiple_of(4) || body.len() % 4 == 1 {
        return Err(wrong());
    }
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 2);
    for group in body.chunks(4) {
        let mut bits = 0u32;
        for place in 0..4 {
            let digit = match group.get(place) {
                Some(byte) => DIGITS.iter().position(|digit| digit == byte).ok_or_else(wrong)?,
                None => 0,
            };
            bits = bits << 6 | u32::try_from(digit).unwrap_or(0);
        }
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend(bytes.iter().take(group.len() - 1));
    }
    Ok(out)
}

/// Escapes undone; a backslash before anything else is itself.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        match rest {
            [] => return out,
            [b'\\', byte @ (b'\\' | b'"'), tail @ ..] => {
                out.push(*byte);
                rest = tail;
            }
            [b'\\', b'0'..=b'7', ..] => {
                let len = rest.iter().skip(1).take(3).take_while(|b| (b'0'..=b'7').contains(b));
                let len = len.count();
                let digits = rest.get(1..=len).unwrap_or(&[]);
                // As wide as a byte, whatever \777 would be.
                let octal =
                    |value: u8, digit: &u8| value.wrapping_mul(8).wrapping_add(digit - b'0');
                out.push(digits.iter().fold(0, octal));
                rest = rest.get(len + 1..).unwrap_or(&[]);
            }
            [byte, tail @ ..] => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
}

/// A name or path on a line of its own: control characters, backslashes and, in names, `=` as
/// octal escapes.
pub(crate) fn escape_name(name: &[u8], also: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            let must = c == '\\' || u8::try_from(c).is_ok_and(|byte| also.contains(&byte));
            if must || c.is_control() {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\{byte:03o}");
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\{byte:03o}");
        }
    }
    out
}

/// Undoes [`escape_name`].
pub(crate) fn unescape_name(text: &[u8]) -> Vec<u8> {
    unescape(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        for value in [&b""[..], b"a", b"ab", b"abc", b"0x12", b"\"", b"a\\012\0", b"\n", &all] {
            for encoding in
                [None, Some(Encoding::Text), Some(Encoding::Hex), Some(Encoding::Base64)]
            {
                let text = encode(value, encoding);
                assert_eq!(decode(&text).as_deref(), Ok(value), "{text:?}");
            }
        }
    }

    #[test]
    fn values_are_written_as_getfattr_writes_them() {
        let text = |value: &[u8]| String::from_utf8(encode(value, None)).unwrap();
        assert_eq!(text(b"hello"), "\"hello\"");
        assert_eq!(text(b"a\"b\\c\n12345678"), "\"a\\\"b\\\\c\\01212345678\"");
        assert_eq!(text(b"hello\0"), "\"hello\\000\"");
        assert_eq!(text(b"\x01\x02\x03"), "0sAQID");
        assert_eq!(text(b""), "\"\"");
    }

    #[test]
    fn plain_text_is_a_value_and_nonsense_is_refused() {
        assert_eq!(decode(b"plain").unwrap(), b"plain");
        assert_eq!(decode(b"\\101\\x").unwrap(), b"A\\x");
        assert_eq!(decode(b"\"").unwrap(), b"\"");
        assert_eq!(decode(b"0xAb cD").unwrap(), b"\xab\xcd");
        assert_eq!(decode(b"0sQQ==").unwrap(), b"A");
        for wrong in [&b"0x1"[..], b"0xg0", b"0sQ", b"0sQQ", b"0s====", b"0sQ===", b"0s!!!!"] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_stay_on_their_line() {
        let name = b"a\n=\\b\xff";
        assert_eq!(escape_name(name, b"="), "a\\012\\075\\134b\\377");
        assert_eq!(unescape_name(escape_name(name, b"=").as_bytes()), name);
    }
}
