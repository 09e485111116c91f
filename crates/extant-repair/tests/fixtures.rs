//! The damaged images of e2fsprogs: each that e2fsck repairs, we repair.
//!
//! They are not in this repository: `scripts/e2fsprogs-fixtures` fetches the source package. Where
//! the result differs on purpose, `docs/repair.md` has the reason, in a table that is read here.

mod common;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{e2fsck, losses, problems, repaired, seen};
use extant_block::MemoryDevice;
use extant_testkit::{image, oracle, require, tempdir};
use flate2::read::GzDecoder;

/// The directory with the tests of e2fsprogs.
fn fetched(dir: &Path) -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("EXTANT_E2FSPROGS") {
        return Ok(PathBuf::from(given).join("tests"));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/e2fsprogs-fixtures");
    let output = Command::new(script).arg(dir).output();
    let output = output.map_err(|error| format!("{script}: {error}"))?;
    match output.status.success() {
        true => Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("tests")),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Names of fixtures, each with why it differs, of the table in the documents.
fn on_purpose() -> Vec<(String, String)> {
    let text = include_str!("../../../docs/repair.md");
    text.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let name = cells.next()?.trim_end_matches('`');
            Some((name.to_owned(), cells.next()?.to_owned()))
        })
        .collect()
}

fn unpacked(packed: &Path, path: &Path) -> Option<()> {
    let mut bytes = Vec::new();
    GzDecoder::new(fs::File::open(packed).ok()?).read_to_end(&mut bytes).ok()?;
    fs::write(path, bytes).ok()
}

/// What e2fsck makes of the image; `None` when even it cannot make it clean.
fn by_e2fsck(path: &Path) -> Option<MemoryDevice> {
    for _pass in 0..2 {
        oracle::e2fsck_as(path, "-fy", &[]).unwrap();
    }
    let report = oracle::e2fsck(path).unwrap();
    let is_clean = report.is_clean() && !report.text.contains("? no");
    is_clean.then(|| image::load(path))
}

/// What is not as it should be after our repair.
fn faults(original: &MemoryDevice, theirs: &MemoryDevice, dir: &Path) -> Vec<String> {
    let ours = original.snapshot();
    let outcome = match repaired(&ours) {
        Ok(outcome) => outcome,
        Err(error) => return vec![error.to_string()],
    };
    let mut faults: Vec<String> = outcome
        .findings
        .iter()
        .filter_map(|one| one.left.as_ref().map(|why| format!("left: {}: {why}", one.message)))
        .collect();
    faults.extend(problems(&ours).into_iter().map(|text| format!("we find: {text}")));
    let text = e2fsck(&ours, dir, true).unwrap();
    if !text.is_empty() {
        faults.push(format!("e2fsck finds: {text}"));
    }
    match repaired(&ours) {
        Ok(again) if again.plan.is_empty() => {}
        Ok(again) => faults.push(format!("the second repair finds {:?}", again.findings)),
        Err(error) => faults.push(format!("the second repair: {error}")),
    }
    faults.extend(losses(&seen(theirs), &ours));
    faults
}

#[test]
#[ignore = "minutes, and fetches the source of e2fsprogs"]
fn what_e2fsck_repairs_is_repaired() {
    let dir = tempdir().unwrap();
    let tests = require!(fetched(dir.path()));
    let known = on_purpose();
    let only = std::env::var("EXTANT_FIXTURE").ok();
    let mut names: Vec<PathBuf> = fs::read_dir(&tests)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("image.gz").exists())
        .collect();
    names.sort();
    let (mut counted, mut wrong, mut differ) = (0, Vec::new(), 0);
    for fixture in &names {
        let name = fixture.file_name().unwrap().to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let path = dir.path().join("fixture.img");
        if unpacked(&fixture.join("image.gz"), &path).is_none() {
            continue;
        }
        let original = image::load(&path);
        let Some(theirs) = by_e2fsck(&path) else { continue };
        counted += 1;
        let faults = faults(&original, &theirs, dir.path());
        let reason = known.iter().find(|(known, _)| *known == name);
        match (faults.is_empty(), reason) {
            (true, None) => {}
            (false, Some(_)) => differ += 1,
            (true, Some(_)) => {
                wrong.push(format!("{name}: is in the table, and differs in nothing"))
            }
            (false, None) => wrong.push(format!("{name}: {}", faults.join("\n  "))),
        }
    }
    println!("{counted} fixtures, {differ} differ on purpose, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of {counted}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(only.is_some() || counted >= 150, "{counted} fixtures are too few");
}
