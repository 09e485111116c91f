//! Bytes as text of a result.

/// Bytes with escapes; a run of 16 and more equal bytes as `<x*count>`.
pub(crate) fn bytes(data: &[u8]) -> String {
    let mut out = String::new();
    let mut rest = data;
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|byte| *byte == first).count();
        let shown = match first {
            0 => "\\0".to_owned(),
            byte => byte.escape_ascii().to_string(),
        };
        if run >= 16 {
            out.push_str(&format!("<{shown}*{run}>"));
        } else {
            out.push_str(&shown.repeat(run));
        }
        rest = rest.get(run..).unwrap_or(&[]);
        if out.len() > 2000 {
            return format!("{out}... {} bytes, hash {:016x}", data.len(), hash(data));
        }
    }
    if out.is_empty() { "empty".to_owned() } else { out }
}

/// FNV-1a, to tell long contents apart.
pub(crate) fn hash(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Names in order, joined with blanks; `-` for none.
pub(crate) fn sorted(mut names: Vec<String>) -> String {
    names.sort();
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}
