//! Subjects of the commits that are about to be pushed.

use std::path::Path;
use std::process::Command;

/// Longest subject, in characters: what fits beside a hash on a line.
const SUBJECT_MAX: usize = 100;

/// Complains about subjects of commits that the branch `origin/main` does not have. Where there is
/// no such branch, or no git, there is nothing to look at, and a line says so.
pub(crate) fn subjects(root: &Path, faults: &mut Vec<String>) {
    let log = Command::new("git")
        .args(["log", "--no-merges", "--format=%h %s", "origin/main..HEAD"])
        .current_dir(root)
        .output();
    let Some(log) = log.ok().filter(|log| log.status.success()) else {
        println!(
            "tidy: subjects of commits are not looked at: no branch origin/main to compare with"
        );
        return;
    };
    for line in String::from_utf8_lossy(&log.stdout).lines() {
        let (hash, subject) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(fault) = fault(subject) {
            faults.push(format!("commit {hash}: {fault}: {subject:?}"));
        }
    }
}

/// What is wrong with a subject: it is `area: imperative`, areas are lower-case words, and it fits
/// on a line.
fn fault(subject: &str) -> Option<&'static str> {
    let Some((area, what)) = subject.split_once(": ") else {
        return Some("the subject has no area (`area: what it does`)");
    };
    let is_area = |area: &str| {
        let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
        !area.is_empty() && area.chars().all(ok)
    };
    if !area.split(", ").all(is_area) {
        return Some("the area of the subject is not one or several lower-case words");
    }
    if what.trim().is_empty() || what.ends_with('.') {
        return Some("the subject says nothing, or ends with a full stop");
    }
    (subject.chars().count() > SUBJECT_MAX).then_some("the subject is longer than 100 characters")
}

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn a_subject_has_an_area_and_fits() {
        for good in
            ["jbd2: stop at a revoke block that is cut short", "cli, docs: name it", "io-uring: go"]
        {
            assert_eq!(fault(good), None, "{good}");
        }
        let long = format!("docs: {}", "word ".repeat(30).trim());
        for bad in ["Format", "Fix: it", "docs: ", "docs: it.", ": what", "a b: what", &long] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }
}
