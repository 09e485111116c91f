//! Permissions as `chmod` takes them: `755`, `u=rwX,go-w`, `g=u`.

use extant_base::sabotage;

/// The umask that counts where a clause says no `u`, `g`, `o` or `a`. The host's is not asked, so
/// that the same command makes the same image everywhere.
const UMASK: u16 = 0o022;

const SET_IDS: u16 = 0o6000;
const ALL: u16 = 0o7777;

/// A change of permissions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ModeChange {
    steps: Vec<Step>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    operator: Operator,
    /// Bits of those whom the step is about; `None`: everyone, but for the umask.
    whom: Option<u16>,
    bits: u16,
    /// `X`: execution too, of directories and of what somebody may execute.
    executable: bool,
    /// `bits` are those of one class, to be copied to the others.
    copies: bool,
    /// Set-id bits of directories that this step changes; it leaves the others alone.
    set_ids: u16,
}

impl ModeChange {
    /// Reads octal digits or comma-separated clauses.
    pub(crate) fn parse(text: &str) -> Result<ModeChange, String> {
        let wrong = || {
            format!("{text:?} is no mode: give octal digits, or clauses such as u+rwX,go-w or g=u")
        };
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = octal(text).ok_or_else(wrong)?;
            // With five digits somebody has thought of the set-id bits of directories.
            let set_ids = if text.len() > 4 { SET_IDS } else { bits & SET_IDS };
            let operator = Operator::Set;
            let whom = Some(ALL);
            let step = Step { operator, whom, bits, executable: false, copies: false, set_ids };
            return Ok(ModeChange { steps: vec![step] });
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps).ok_or_else(wrong)?;
        }
        Ok(ModeChange { steps })
    }

    /// Returns what becomes of `permissions`, `0..=0o7777`.
    pub(crate) fn apply(&self, permissions: u16, is_dir: bool) -> u16 {
        self.steps.iter().fold(permissions, |mode, step| step.apply(mode, is_dir))
    }
}

impl Step {
    fn apply(self, mode: u16, is_dir: bool) -> u16 {
        let mut bits = self.bits;
        if self.copies {
            bits &= mode;
            for class in [0o444, 0o222, 0o111] {
                if bits & class != 0 {
                    bits |= class;
                }
            }
        }
        if self.executable && (is_dir || mode & 0o111 != 0 || sabotage("cli.mode.x-for-all")) {
            bits |= 0o111;
        }
        let keeps = is_dir && !sabotage("cli.mode.set-id-of-directory-lost");
        let kept = if keeps { SET_IDS & !self.set_ids } else { 0 };
        bits &= self.whom.unwrap_or(!UMASK & ALL) & !kept;
        match self.operator {
            Operator::Add => mode | bits,
            Operator::Remove => mode & !bits,
            Operator::Set => (mode & (kept | !self.whom.unwrap_or(ALL))) | bits,
        }
    }
}

fn octal(digits: &str) -> Option<u16> {
    let plain = digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let bits = u32::from_str_radix(digits, 8).ok().filter(|bits| plain && *bits <= 0o7777)?;
    u16::try_from(bits).ok()
}

/// `[ugoa]*` and one or more of `+-=` with what follows.
fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let start = clause.find(['+', '-', '='])?;
    let (classes, mut rest) = clause.split_at(start);
    let mut whom = 0;
    for class in classes.chars() {
        whom |= match class {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => ALL,
            _ => return None,
        };
    }
    let whom = (!classes.is_empty()).then_some(whom);
    while let Some(sign) = rest.chars().next() {
        let operator = match sign {
            '+' => Operator::Add,
            '-' => Operator::Remove,
            _ => Operator::Set,
        };
        let after = rest.get(1..)?;
        let len = after.find(['+', '-', '=']).unwrap_or(after.len());
        let (what, next) = after.split_at(len);
        steps.push(parse_step(operator, whom, what)?);
        rest = next;
    }
    Some(())
}

fn parse_step(operator: Operator, whom: Option<u16>, what: &str) -> Option<Step> {
    let mut step = Step { operator, whom, bits: 0, executable: false, copies: false, set_ids: 0 };
    if what.starts_with(|c: char| c.is_ascii_digit()) {
        if whom.is_some() {
            return None;
        }
        step.bits = octal(what)?;
        (step.whom, step.set_ids) = (Some(ALL), SET_IDS);
        return Some(step);
    }
    step.copies = matches!(what, "u" | "g" | "o");
    match what {
        "u" => step.bits = 0o700,
        "g" => step.bits = 0o070,
        "o" => step.bits = 0o007,
        _ => {
            for letter in what.chars() {
                match letter {
                    'r' => step.bits |= 0o444,
                    'w' => step.bits |= 0o222,
                    'x' => step.bits |= 0o111,
                    'X' => step.executable = true,
                    's' => step.bits |= SET_IDS,
                    't' => step.bits |= 0o1000,
                    _ => return None,
                }
            }
        }
    }
    step.set_ids = step.bits & whom.unwrap_or(ALL) & SET_IDS;
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, before: u16, is_dir: bool, after: u16) {
        let got = ModeChange::parse(text).unwrap().apply(before, is_dir);
        assert_eq!(got, after, "{text} of {before:04o}: {got:04o}, not {after:04o}");
    }

    #[test]
    fn octal_modes_keep_set_ids_of_directories_unless_they_have_five_digits() {
        check("755", 0o4644, false, 0o755);
        check("755", 0o2700, true, 0o2755);
        check("00755", 0o2700, true, 0o755);
        check("0755", 0o2700, true, 0o2755);
        check("1777", 0o755, true, 0o1777);
        check("=755", 0o2700, true, 0o755);
        check("-22", 0o777, false, 0o755);
    }

    #[test]
    fn clauses() {
        check("u+x", 0o644, false, 0o744);
        check("go-rwx", 0o777, false, 0o700);
        check("a=r", 0o7777, false, 0o444);
        check("u=rwx,g=u,o=g-w", 0o000, false, 0o775);
        check("g=o", 0o705, false, 0o755);
        check("a+X", 0o644, false, 0o644);
        check("a+X", 0o654, false, 0o755);
        check("a+X", 0o644, true, 0o755);
        check("a-x+X", 0o755, false, 0o644);
        check("+t", 0o777, true, 0o1777);
        check("u+s", 0o755, false, 0o4755);
        check("g+s", 0o755, true, 0o2755);
        check("ug+s", 0o755, false, 0o6755);
        check("o+s", 0o755, false, 0o755);
        check("u=rwx", 0o4700, false, 0o700);
        check("u=rwx", 0o4700, true, 0o4700);
        check("u=rwxs", 0o700, true, 0o4700);
        check("u-s", 0o4700, true, 0o700);
        check("=", 0o777, false, 0);
        check("a=", 0o2777, true, 0o2000);
    }

    #[test]
    fn without_anyone_named_the_umask_counts() {
        check("+w", 0o444, false, 0o644);
        check("+x", 0o644, false, 0o755);
        check("-w", 0o666, false, 0o466);
        check("=rw", 0o777, false, 0o644);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "8", "77777", "u", "u+q", "x+r", "u+r,", "ugx", "u+7", "u=gr", "1755x"] {
            assert!(ModeChange::parse(text).is_err(), "{text:?}");
        }
    }
}
