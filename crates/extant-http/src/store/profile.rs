//! Files of settings and keys by profile, as other programs for S3 have them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::HttpError;

/// Bytes that such a file has at most.
const FILE_MOST: u64 = 1 << 20;

/// What a file says in one section.
pub(super) type Section = Vec<(String, String)>;

/// Returns the value of a name in a section.
pub(super) fn value<'s>(section: &'s Section, name: &str) -> Option<&'s str> {
    // The last one counts, and one that is empty is none.
    let found = section.iter().rev().find(|(this, _)| this == name);
    found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
}

/// Reads the section that has one of these names; `None` if there is none, or no file.
pub(super) fn section(path: &Path, names: &[&str]) -> Result<Option<Section>, HttpError> {
    let wrong = |what: String| HttpError::Account { what: format!("{}: {what}", path.display()) };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let mut text = String::new();
    file.take(FILE_MOST + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > FILE_MOST {
        return Err(wrong(format!("it has more than {FILE_MOST} bytes")));
    }
    Ok(parse(&text, names))
}

fn parse(text: &str, names: &[&str]) -> Option<Section> {
    let mut found: Option<Section> = None;
    let mut is_inside = false;
    for line in text.lines() {
        // What is indented belongs to the value before it: settings of other services.
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if is_nested || line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let words: Vec<&str> = name.split_whitespace().collect();
            is_inside = names.contains(&words.join(" ").as_str());
            if is_inside {
                found.get_or_insert_default();
            }
        } else if let (true, Some((name, value))) = (is_inside, line.split_once('=')) {
            let value = value.split(" #").next().unwrap_or(value).trim();
            let entry = (name.trim().to_ascii_lowercase(), value.to_owned());
            found.get_or_insert_default().push(entry);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_found_by_its_name_and_ends_at_the_next() {
        let text = "\
# keys
region = nowhere
[default]
aws_access_key_id = A
[ profile  other ]
Aws_Access_Key_Id=B
s3 =
    endpoint_url = http://nested
region = eu-west-1 # not far
[default]
region = us-east-1
";
        let default = parse(text, &["default"]).unwrap();
        assert_eq!(value(&default, "aws_access_key_id"), Some("A"));
        assert_eq!(value(&default, "region"), Some("us-east-1"));
        let other = parse(text, &["profile other"]).unwrap();
        assert_eq!(value(&other, "aws_access_key_id"), Some("B"));
        assert_eq!(value(&other, "region"), Some("eu-west-1"));
        assert_eq!((value(&other, "s3"), value(&other, "endpoint_url")), (None, None));
        assert!(parse(text, &["third"]).is_none());
        for odd in ["[", "]", "[]", "=", "[default", "\u{0}", "[default]\n=\n==\n[x"] {
            let _ = parse(odd, &["default", ""]);
        }
    }
}
