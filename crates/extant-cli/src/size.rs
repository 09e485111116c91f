//! Sizes on the command line.

use extant_base::sabotage;
use extant_image::plan::{Headroom, SizeSpec};

/// A size with its unit, or a plain number, whose meaning depends on where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Amount {
    /// With a unit: bytes.
    Bytes(u64),
    /// Without a unit.
    Plain(u64),
}

const UNITS: &str = "a whole number with K, M, G, T, P (powers of 1024), s (512 bytes) or B";

/// Reads `512M`, `4096s`, `10GiB`, `1048576B` or a plain number.
pub(crate) fn parse_amount(text: &str) -> Result<Amount, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("a size is {UNITS}"))?;
    let lower = unit.to_ascii_lowercase();
    let scale = match lower.strip_suffix("ib").unwrap_or(&lower) {
        "" if lower.is_empty() => return Ok(Amount::Plain(number)),
        "b" => 1,
        "s" if sabotage("cli.size.sector-of-1024") => 1024,
        "s" => 512,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        "p" => 1 << 50,
        _ => return Err(format!("no unit is called {unit:?}: a size is {UNITS}")),
    };
    let bytes = number.checked_mul(scale).filter(|bytes| *bytes <= i64::MAX as u64);
    bytes.map(Amount::Bytes).ok_or_else(|| "that is more than 8 EiB".into())
}

/// Bytes; a plain number is bytes too. For offsets and lengths.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_amount(text).map(|amount| match amount {
        Amount::Bytes(bytes) | Amount::Plain(bytes) => bytes,
    })
}

/// `--size` of `build`: `auto`, `auto+10%`, `auto+512M`, or a size with a unit.
pub(crate) fn parse_build_size(text: &str) -> Result<SizeSpec, String> {
    let Some(rest) = text.strip_prefix("auto") else {
        return match parse_amount(text)? {
            Amount::Bytes(bytes) => Ok(SizeSpec::Bytes(bytes)),
            Amount::Plain(number) => {
                Err(format!("{number} of what? Give a unit: {number}K, {number}M, {number}B"))
            }
        };
    };
    let headroom = match rest.strip_prefix('+') {
        None if rest.is_empty() => Headroom::Room,
        None => return Err("give auto, auto+10%, auto+512M or a size".into()),
        Some(percent) if percent.ends_with('%') => {
            Headroom::Percent(parse_percent(percent.trim_end_matches('%'))?)
        }
        Some(bytes) => match parse_amount(bytes)? {
            Amount::Bytes(0) | Amount::Plain(0) => Headroom::None,
            Amount::Bytes(bytes) => Headroom::Bytes(bytes),
            Amount::Plain(number) => {
                return Err(format!("{number} of what? Give auto+{number}% or auto+{number}M"));
            }
        },
    };
    Ok(SizeSpec::Auto(headroom))
}

/// `12.5` as hundredths: 1250.
fn parse_percent(text: &str) -> Result<u32, String> {
    let error = || format!("{text:?} is no percentage: 0 to 10000, with at most two decimals");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || part.len() > 2 || !digits(whole) || !digits(part) {
        return Err(error());
    }
    let hundredths: u32 = format!("{part:0<2}").parse().map_err(|_| error())?;
    let whole: u32 = whole.parse().map_err(|_| error())?;
    let part = if sabotage("cli.size.part-of-percent-lost") { 0 } else { hundredths };
    Some(whole).filter(|w| *w <= 10_000).map(|w| w * 100 + part).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (text, amount) in [
            ("0", Amount::Plain(0)),
            ("8192", Amount::Plain(8192)),
            ("1B", Amount::Bytes(1)),
            ("3s", Amount::Bytes(1536)),
            ("1k", Amount::Bytes(1024)),
            ("1KiB", Amount::Bytes(1024)),
            ("16T", Amount::Bytes(16 << 40)),
        ] {
            assert_eq!(parse_amount(text), Ok(amount), "{text}");
        }
        for text in ["", "M", "1.5G", "-1M", "1KB", "1x", "9999P", "18446744073709551616", "1ib"] {
            assert!(parse_amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn build_sizes() {
        for (text, size) in [
            ("auto", SizeSpec::Auto(Headroom::Room)),
            ("auto+0", SizeSpec::Auto(Headroom::None)),
            ("auto+0M", SizeSpec::Auto(Headroom::None)),
            ("auto+10%", SizeSpec::Auto(Headroom::Percent(1000))),
            ("auto+2.5%", SizeSpec::Auto(Headroom::Percent(250))),
            ("auto+512M", SizeSpec::Auto(Headroom::Bytes(512 << 20))),
            ("2G", SizeSpec::Bytes(2 << 30)),
        ] {
            assert_eq!(parse_build_size(text), Ok(size), "{text}");
        }
        for text in ["", "1000", "auto+", "auto+5", "auto-1M", "automatic", "auto+1.234%", "auto+%"]
        {
            assert!(parse_build_size(text).is_err(), "{text}");
        }
    }
}
