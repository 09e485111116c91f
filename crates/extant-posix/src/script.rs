//! The text of a table: cases, steps, and the lines that make many cases of one.
//!
//! ```text
//! # a comment
//! [name.of.the.case]
//! @each KIND file fifo          the case twice, as name.of.the.case.file and ….fifo
//! @slow                         not in short runs
//! @needs filefrag               skipped where this program is not installed
//! root: mkdir d 0755; chown d alice alice
//! bob& lock A w 0 10            does not wait for the result: `bob: .wait` has it
//! bob: rmdir d = EACCES
//! ```

use crate::words::split;

/// One case, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Unique; dotted, topic first.
    pub(crate) name: String,
    /// Takes more than a second.
    pub(crate) slow: bool,
    /// Programs of the host that it uses.
    pub(crate) needs: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

impl Case {
    /// All steps are by alice, and about nobody else: whoever runs the case can be her.
    pub(crate) fn is_for_one_user(&self) -> bool {
        let alone = |step: &Step| !step.words.iter().any(|word| crate::users::names_others(word));
        self.steps.iter().all(|step| step.who.starts_with("alice") && alone(step))
    }
}

/// What a step must give.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Expect {
    /// Anything that is no error.
    Success,
    /// One of these texts.
    Text(Vec<String>),
    /// Anything; it counts when two runs are compared.
    Recorded,
    /// Anything, and not even compared.
    Ignored,
}

/// One call by one user.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Name of a user, perhaps with a digit: another process of the same user.
    pub(crate) who: String,
    /// Go on without waiting for the result.
    pub(crate) background: bool,
    /// The verb and its words, quotes taken off, not yet expanded.
    pub(crate) words: Vec<String>,
    pub(crate) expect: Expect,
}

impl Step {
    /// The step as it stands in a record.
    pub(crate) fn show(&self) -> String {
        let mark = if self.background { "&" } else { ":" };
        format!("{}{mark} {}", self.who, self.words.join(" "))
    }
}

/// Parses a table. The error names the line.
pub(crate) fn parse(table: &str, text: &str) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    let mut block: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = |why: String| format!("{table}.case:{}: {why}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if let Some(done) = block.take() {
                done.finish(&mut cases).map_err(at)?;
            }
            block = Some(Block { name: format!("{table}.{name}"), ..Block::default() });
            continue;
        }
        let Some(block) = block.as_mut() else {
            return Err(at("a step before the first [case]".to_owned()));
        };
        if line == "@slow" {
            block.slow = true;
        } else if let Some(rest) = line.strip_prefix("@needs ") {
            block.needs.extend(rest.split_whitespace().map(str::to_owned));
        } else if let Some(rest) = line.strip_prefix("@each ") {
            let mut words = rest.split_whitespace().map(str::to_owned);
            let key = words.next().ok_or_else(|| at("@each without a key".to_owned()))?;
            block.each.push((key, words.collect()));
        } else {
            block.lines.push(line.to_owned());
        }
    }
    if let Some(done) = block.take() {
        done.finish(&mut cases)?;
    }
    Ok(cases)
}

#[derive(Default)]
struct Block {
    name: String,
    slow: bool,
    needs: Vec<String>,
    each: Vec<(String, Vec<String>)>,
    lines: Vec<String>,
}

impl Block {
    /// Adds the cases of this block: one for each combination of the `@each` values.
    fn finish(&self, cases: &mut Vec<Case>) -> Result<(), String> {
        if self.lines.is_empty() {
            return Err(format!("{} has no steps", self.name));
        }
        let mut picks: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
        for (key, values) in &self.each {
            picks = picks
                .iter()
                .flat_map(|pick| {
                    values.iter().map(move |value| {
                        let mut pick = pick.clone();
                        pick.push((key, value));
                        pick
                    })
                })
                .collect();
        }
        for pick in picks {
            let mut name = self.name.clone();
            for (_, value) in &pick {
                name.push('.');
                name.push_str(&value.replace(['/', '<', '>', '*', ','], "_"));
            }
            let mut steps = Vec::new();
            for line in &self.lines {
                let mut line = line.clone();
                for (key, value) in &pick {
                    line = line.replace(&format!("${key}"), value);
                }
                steps_of(&line, &mut steps).map_err(|why| format!("{name}: {line}: {why}"))?;
            }
            cases.push(Case { name, slow: self.slow, needs: self.needs.clone(), steps });
        }
        Ok(())
    }
}

/// Adds the steps of one line: `who: step; step`.
fn steps_of(line: &str, steps: &mut Vec<Step>) -> Result<(), String> {
    let end = line.find([':', '&']).ok_or("no user before the step")?;
    let (who, rest) = line.split_at(end);
    let background = rest.starts_with('&');
    if !who.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(format!("{who} is no user"));
    }
    let words = split(rest.get(1..).unwrap_or(""))?;
    for words in words.split(|word| word == ";") {
        let (words, expect) = match words.iter().position(|word| word == "=") {
            None => (words, Expect::Success),
            Some(at) => {
                let (words, rest) = words.split_at(at);
                let text = rest.get(1..).unwrap_or(&[]).join(" ");
                let expect = match text.as_str() {
                    "?" => Expect::Recorded,
                    "~" => Expect::Ignored,
                    text => Expect::Text(text.split(" | ").map(str::to_owned).collect()),
                };
                (words, expect)
            }
        };
        if words.is_empty() {
            return Err("an empty step".to_owned());
        }
        steps.push(Step { who: who.to_owned(), background, words: words.to_vec(), expect });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_multiplies_and_steps_split() {
        let text =
            "[a]\n@each K x y\n@each L 1 2\nroot: put f$K \"a ; b\"; stat f$L size = 3 | 4\n";
        let cases = parse("t", text).unwrap();
        let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["t.a.x.1", "t.a.x.2", "t.a.y.1", "t.a.y.2"]);
        let steps = &cases[1].steps;
        assert_eq!(steps[0].words, ["put", "fx", "a ; b"]);
        assert_eq!(steps[1].words, ["stat", "f2", "size"]);
        assert_eq!(steps[1].expect, Expect::Text(vec!["3".into(), "4".into()]));
    }

    #[test]
    fn errors_name_the_line() {
        assert!(parse("t", "root: x\n").unwrap_err().starts_with("t.case:1:"));
        assert!(parse("t", "[a]\nnobody home\n").unwrap_err().contains("no user"));
    }
}
