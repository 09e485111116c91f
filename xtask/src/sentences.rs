//! Markdown with one sentence per line, so that a change of a sentence is a change of a line.

/// The same text, each sentence of its paragraphs and list items on a line of its own. Tables, code,
/// headings, quotes and what stands in brackets stay as they are.
pub(crate) fn one_per_line(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let mut out: Vec<String> = Vec::new();
    let mut fence: Option<&str> = None;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        let trimmed = line.trim();
        if let Some(mark) = fence {
            fence = (!trimmed.starts_with(mark)).then_some(mark);
            out.push((*line).to_owned());
            continue;
        }
        fence = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        if is_apart(line) {
            out.push((*line).to_owned());
            continue;
        }
        let lead = marker(line).unwrap_or(line.len() - line.trim_start().len());
        let mut paragraph = line[lead..].trim_end().to_owned();
        while let Some(next) =
            lines.get(at).filter(|next| !is_apart(next) && marker(next).is_none())
        {
            paragraph.push(' ');
            paragraph.push_str(next.trim());
            at += 1;
        }
        for (number, sentence) in sentences(&paragraph).into_iter().enumerate() {
            let lead = if number == 0 { line[..lead].to_owned() } else { " ".repeat(lead) };
            out.push(lead + sentence);
        }
    }
    out.join("\n")
}

/// Returns whether a line is no part of a paragraph.
fn is_apart(line: &str) -> bool {
    let line = line.trim();
    line.is_empty()
        || ["#", "|", "```", "~~~", "<", ">", "[^", "---", "***", "==="]
            .iter()
            .any(|start| line.starts_with(start))
        || line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
            .is_some_and(|(name, _)| !name.contains(']'))
}

/// Returns how long the marker of a list item at the start of `line` is, blanks included.
fn marker(line: &str) -> Option<usize> {
    let rest = line.trim_start();
    let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let sign = match number {
        0 => rest.starts_with(['-', '*', '+']),
        _ => rest[number..].starts_with(['.', ')']),
    };
    let after = rest.get(number + 1..).filter(|after| sign && after.starts_with(' '))?;
    Some(line.len() - after.trim_start().len())
}

/// Cuts a paragraph behind its sentences. Nothing is cut inside of brackets and code.
fn sentences(paragraph: &str) -> Vec<&str> {
    let bytes = paragraph.as_bytes();
    let (mut found, mut start, mut at, mut depth) = (Vec::new(), 0, 0, 0u32);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'`' => {
                let ticks = bytes[at - 1..].iter().take_while(|byte| **byte == b'`').count();
                let code = &paragraph[at - 1 + ticks..];
                let skipped = code.find(&"`".repeat(ticks)).map_or(0, |end| end + ticks);
                at += ticks - 1 + skipped;
            }
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let ended = matches!(byte, b'.' | b'!' | b'?')
            || byte == b')' && at >= 2 && matches!(bytes[at - 2], b'.' | b'!' | b'?');
        if !ended || depth > 0 {
            continue;
        }
        let closers = bytes[at..].iter().take_while(|byte| b"\"*_".contains(byte)).count();
        let (sentence, rest) = paragraph.split_at(at + closers);
        let sentence = &sentence[start..];
        if let Some(rest) = rest.strip_prefix(' ')
            && starts_sentence(rest)
            && sentence.len() > 2
            && !["e.g.", "i.e.", "etc.", "vs.", "cf."].iter().any(|short| sentence.ends_with(short))
        {
            found.push(sentence);
            at += closers + 1;
            start = at;
        }
    }
    if start < paragraph.len() {
        found.push(&paragraph[start..]);
    }
    found
}

/// Returns whether a sentence, and nothing that a line must not begin with, may start here.
fn starts_sentence(rest: &str) -> bool {
    let starts = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "`[*_\"(".contains(c);
    rest.starts_with(starts) && marker(rest).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_get_lines() {
        let text = "# A. B\n\nOne is here, and\nlong. Two (in. Brackets) is `a. B`. \"Three.\" **Four.** Five, e.g. Six\n1. An item. It goes\n   on.\n- Other\n\n```text\nx. Y\nz\n```\n| a. B |\n";
        let want = "# A. B\n\nOne is here, and long.\nTwo (in. Brackets) is `a. B`.\n\"Three.\"\n**Four.**\nFive, e.g. Six\n1. An item.\n   It goes on.\n- Other\n\n```text\nx. Y\nz\n```\n| a. B |\n";
        assert_eq!(one_per_line(text), want);
        assert_eq!(one_per_line(want), want);
    }

    #[test]
    fn no_line_becomes_a_list() {
        let text = "It ends in 2. 3. is not an item. - Nor this.";
        assert_eq!(one_per_line(text).split('\n').filter(|line| marker(line).is_some()).count(), 0);
    }
}
