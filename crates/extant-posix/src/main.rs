//! `extant-posix run DIR`: what a mounted directory promises to programs, one JSON line per case.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use extant_posix::record::{KNOWN, both_ran, compare, parse, unknown};
use extant_posix::run::{Options, agent, run};

const USAGE: &str = "usage: extant-posix run DIR [--short] [--only PART]... > RESULTS
       extant-posix compare [--known] RESULTS RESULTS
       extant-posix list

`run` makes directories below DIR, runs each case in one, removes it, and prints a line of JSON for each case. It
ends with 1 if a case gave something else than the tables ask for; those go to standard error.
`compare` prints every step that differs between two runs and ends with 1 if there is one. With --known it leaves
out where a mount by extant, the second run, is known to differ from the kernel's ext4, and names what does not
differ any more.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["agent", who] => agent(who).map(|()| true),
        ["run", dir, options @ ..] => run_command(Path::new(dir), options),
        ["compare", "--known", a, b] => compare_command(a, b, true),
        ["compare", a, b] => compare_command(a, b, false),
        ["list"] => list(),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn list() -> Result<bool, String> {
    for name in extant_posix::cases::names()? {
        println!("{name}");
    }
    Ok(true)
}

fn run_command(dir: &Path, words: &[&str]) -> Result<bool, String> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (*word, words.len()) {
            ("--short", _) => options.short = true,
            ("--only", 1..) => options.only.extend(words.next().map(|part| (*part).to_owned())),
            _ => return Err(USAGE.to_owned()),
        }
    }
    let (mut count, mut wrong, mut skipped) = (0, 0, 0);
    let mut out = std::io::stdout().lock();
    let mut failure = None;
    run(dir, &options, &mut |record| {
        count += 1;
        for complaint in record.complaints() {
            eprintln!("{complaint}");
        }
        wrong += usize::from(!record.ok);
        if let Some(reason) = &record.skipped {
            skipped += 1;
            eprintln!("{}: skipped: {reason}", record.name);
        }
        let line = serde_json::to_string(&record).unwrap_or_default();
        failure = writeln!(out, "{line}").err().or(failure.take());
    })?;
    if let Some(error) = failure {
        return Err(format!("cannot write the results: {error}"));
    }
    eprintln!("{count} cases, {wrong} not as expected, {skipped} skipped");
    Ok(wrong == 0)
}

fn compare_command(a: &str, b: &str, leave_known: bool) -> Result<bool, String> {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        parse(&text).map_err(|error| format!("{path}: {error}"))
    };
    let (a, b) = (read(a)?, read(b)?);
    let mut differences = compare(&a, &b);
    let mut gone = Vec::new();
    if leave_known {
        let all = differences.len();
        (differences, gone) = unknown(differences, KNOWN, &both_ran(&a, &b));
        eprintln!("{} known differences", all - differences.len());
    }
    for difference in &differences {
        println!("{difference}");
    }
    for line in &gone {
        println!("no difference any more: {line}");
    }
    eprintln!("{} differences", differences.len());
    Ok(differences.is_empty() && gone.is_empty())
}
