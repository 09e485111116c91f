//! What came out of a case, as one line of JSON, and the comparison of two runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// One step as it came out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepRecord {
    /// Who did what: `alice: open f r`.
    pub step: String,
    /// Errno, signal or values; `~` where the table says that it may differ.
    pub got: String,
    /// What the table asks for, where that did not come out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub want: Option<String>,
}

/// One case as it came out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Name of the case, topic first.
    pub name: String,
    /// Users whose processes took part, in order of their first step.
    pub users: Vec<String>,
    /// All steps gave what the table asks for.
    pub ok: bool,
    /// Why the case was not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// The steps up to the last one that was done.
    pub steps: Vec<StepRecord>,
}

impl Record {
    /// A line for people about each step that gave something else than it should.
    pub fn complaints(&self) -> Vec<String> {
        let wrong = self.steps.iter().filter_map(|step| Some((step, step.want.as_ref()?)));
        wrong
            .map(|(step, want)| {
                format!("{}: {}: got {}, want {want}", self.name, step.step, step.got)
            })
            .collect()
    }
}

/// Reads the lines of a run.
///
/// # Errors
///
/// The first line that is no record.
pub fn parse(text: &str) -> Result<Vec<Record>, String> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}")))
        .collect()
}

/// A step that came out differently in two runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Name of the case.
    pub name: String,
    /// The step.
    pub step: String,
    /// What it gave in the first run, and in the second.
    pub got: (String, String),
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}\n    {}\n    {}", self.name, self.step, self.got.0, self.got.1)
    }
}

/// Every step that differs; of a case that is in one run only, its name. Cases that either run skipped
/// are left out.
pub fn compare(a: &[Record], b: &[Record]) -> Vec<Difference> {
    let index = |run: &[Record]| -> BTreeMap<String, Record> {
        run.iter().map(|record| (record.name.clone(), record.clone())).collect()
    };
    let (a, b) = (index(a), index(b));
    let names: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let mut out = Vec::new();
    for name in names {
        let difference = |step: &str, left: &str, right: &str| Difference {
            name: name.clone(),
            step: step.to_owned(),
            got: (left.to_owned(), right.to_owned()),
        };
        let (left, right) = match (a.get(name), b.get(name)) {
            (Some(left), Some(right)) => (left, right),
            (Some(_), None) => {
                out.push(difference("the case", "run", "not run"));
                continue;
            }
            _ => {
                out.push(difference("the case", "not run", "run"));
                continue;
            }
        };
        if left.skipped.is_some() || right.skipped.is_some() {
            continue;
        }
        for at in 0..left.steps.len().max(right.steps.len()) {
            match (left.steps.get(at), right.steps.get(at)) {
                (Some(left), Some(right)) if left.got != right.got => {
                    out.push(difference(&left.step, &left.got, &right.got));
                }
                (Some(left), None) => out.push(difference(&left.step, &left.got, "not done")),
                (None, Some(right)) => out.push(difference(&right.step, "not done", &right.got)),
                _ => {}
            }
        }
    }
    out
}

/// Names of the cases that both runs did.
pub fn both_ran(a: &[Record], b: &[Record]) -> BTreeSet<String> {
    let names = |run: &[Record]| -> BTreeSet<String> {
        let done = run.iter().filter(|record| record.skipped.is_none());
        done.map(|record| record.name.clone()).collect()
    };
    names(a).intersection(&names(b)).cloned().collect()
}

/// Where a mount by extant differs from the kernel's ext4, and why.
pub const KNOWN: &str = include_str!("../differences.txt");

/// Takes out of `differences` those that `known` lists, and says which of its lines did not happen although
/// their case ran, by the names in `ran`.
///
/// A line is `case: user: step = result`, with the result of the second run; lines that start with `#`
/// say why.
pub fn unknown(
    differences: Vec<Difference>,
    known: &str,
    ran: &BTreeSet<String>,
) -> (Vec<Difference>, Vec<String>) {
    let mut lines: BTreeMap<&str, bool> = known
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| (line, false))
        .collect();
    let new = differences
        .into_iter()
        .filter(|difference| {
            let line = format!("{}: {} = {}", difference.name, difference.step, difference.got.1);
            lines.get_mut(line.as_str()).is_none_or(|happened| {
                *happened = true;
                false
            })
        })
        .collect();
    let gone = lines.into_iter().filter(|(line, happened)| {
        !happened && line.split_once(": ").is_some_and(|(name, _)| ran.contains(name))
    });
    (new, gone.map(|(line, _)| line.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, got: &[&str]) -> Record {
        let step = |got: &&str| StepRecord {
            step: "root: x".to_owned(),
            got: (*got).to_owned(),
            want: None,
        };
        let steps = got.iter().map(step).collect();
        Record { name: name.to_owned(), users: Vec::new(), ok: true, skipped: None, steps }
    }

    #[test]
    fn comparison_finds_steps_and_missing_cases() {
        let a = [record("a", &["1", "2"]), record("b", &["1"])];
        let b = [record("a", &["1", "3"]), record("c", &["1"])];
        let found = compare(&a, &b);
        let names: Vec<_> = found.iter().map(|d| (d.name.as_str(), d.got.1.as_str())).collect();
        assert_eq!(names, [("a", "3"), ("b", "not run"), ("c", "run")]);
        assert!(compare(&a, &a).is_empty());
    }

    #[test]
    fn what_is_written_down_is_no_news() {
        let differences = compare(&[record("a", &["1", "2"])], &[record("a", &["1", "3"])]);
        let ran = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        let known = "# why\na: root: x = 3\nb: root: x = 4\nc: root: x = 5\n";
        let (new, gone) = unknown(differences.clone(), known, &ran);
        assert!(new.is_empty());
        assert_eq!(gone, ["b: root: x = 4"], "c did not run");
        assert_eq!(unknown(differences.clone(), "a: root: x = 4", &ran).0, differences);
    }

    #[test]
    fn each_line_of_the_list_names_a_step() {
        let cases = crate::cases::all().unwrap();
        for line in KNOWN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let found = cases.iter().any(|case| {
                let own = line.strip_prefix(&case.name).and_then(|rest| rest.strip_prefix(": "));
                own.is_some_and(|own| {
                    case.steps.iter().any(|step| own.starts_with(&format!("{} = ", step.show())))
                })
            });
            assert!(found, "{line}");
        }
    }

    #[test]
    fn records_survive_json() {
        let text = serde_json::to_string(&record("a", &["1"])).unwrap();
        assert_eq!(parse(&text).unwrap(), [record("a", &["1"])]);
        assert!(parse("{}").is_err());
    }
}
