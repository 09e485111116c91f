//! What tune2fs did is undone by extant, and the other way round.

use std::path::Path;

use extant_block::MemoryDevice;
use extant_testkit::{image, oracle, require, tempdir};
use extant_tune::TuneError;

use crate::PAIRS;
use crate::common::{LAYOUTS, e2fsck, features, made, problems, seen, tuned};

/// The image after tune2fs did as it was told, and e2fsck what that asks for; `None` where it refuses.
fn theirs(device: &MemoryDevice, dir: &Path, words: &str) -> Result<Option<MemoryDevice>, String> {
    let path = dir.join("theirs.img");
    let _removed = std::fs::remove_file(&path);
    image::save(device, &path);
    let output = oracle::Tool::find("tune2fs")?
        .command()
        .args(["-f", "-O", words])
        .arg(&path)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Ok(None);
    }
    let checked = oracle::e2fsck_as(&path, "-fy", &[])?;
    assert!(matches!(checked.status, Some(0 | 1)), "{words}: {}", checked.text);
    Ok(Some(image::load(&path)))
}

#[test]
fn features_go_back_and_forth_between_tune2fs_and_extant() {
    let (mut after_theirs, mut after_ours) = (0, 0);
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let before = seen(&first);
        for (there, back) in PAIRS {
            let whole = |device: &MemoryDevice, what: &str| {
                assert_eq!(problems(device), [""; 0], "{layout:?} {what}");
                let found = e2fsck(device, dir.path()).expect("it was found for the image");
                assert_eq!(found, "", "{layout:?} {what}");
                assert_eq!(seen(device), before, "{layout:?} {what}");
            };
            let ours = |device: &MemoryDevice, words: &str| match tuned(device, &features(words)) {
                Ok((next, plan)) => (!plan.steps.is_empty()).then_some(next),
                Err(error @ (TuneError::Refused { .. } | TuneError::Full { .. })) => {
                    // For its own reasons, and not because it was done wrong.
                    let text = error.to_string();
                    assert!(!text.contains("in order"), "{layout:?} {there} {back}: {text}");
                    None
                }
                Err(error) => panic!("{layout:?} {there} {back}: {error}"),
            };
            if let Some(next) = require!(theirs(&first, dir.path(), there))
                && let Some(last) = ours(&next, back)
            {
                whole(&last, &format!("tune2fs {there}, extant {back}"));
                after_theirs += 1;
            }
            if let Some(next) = ours(&first, there)
                && let Some(last) = require!(theirs(&next, dir.path(), back))
            {
                whole(&last, &format!("extant {there}, tune2fs {back}"));
                after_ours += 1;
            }
        }
    }
    assert!(after_theirs > 20, "extant went on {after_theirs} times");
    assert!(after_ours > 20, "tune2fs went on {after_ours} times");
}
