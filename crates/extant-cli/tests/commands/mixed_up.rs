//! Directories with blocks of others, or one block twice: a list of names is not called whole.

use std::fs;
use std::os::unix::fs::FileExt;

use extant_testkit::oracle::{debugfs, mke2fs};
use extant_testkit::require;

use crate::support::Place;

const BLOCK: u64 = 1024;

/// An image in which `/many` has several blocks and `/other` one, and the blocks of both.
fn made(place: &Place) -> Result<(Vec<u64>, Vec<u64>), String> {
    for dir in ["many", "other"] {
        fs::create_dir_all(place.path("tree").join(dir)).map_err(|error| error.to_string())?;
    }
    for number in 0..100 {
        let name = format!("tree/many/a name of some length {number:03}");
        fs::write(place.path(&name), [number]).map_err(|error| error.to_string())?;
    }
    fs::write(place.path("tree/other/one"), "one").map_err(|error| error.to_string())?;
    let tree = place.path("tree").display().to_string();
    let features = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^dir_index", "-d", &tree];
    mke2fs(&place.path("a.img"), "8M", &features)?;
    let blocks = |path: &str| -> Result<Vec<u64>, String> {
        let said = debugfs(&place.path("a.img"), false, &format!("blocks {path}\n"))?;
        let lines = said.lines().filter(|line| !line.starts_with("debugfs"));
        Ok(lines.flat_map(str::split_whitespace).filter_map(|word| word.parse().ok()).collect())
    };
    Ok((blocks("/many")?, blocks("/other")?))
}

fn copy_block(place: &Place, from: u64, to: u64) {
    let image = fs::File::options().read(true).write(true).open(place.path("a.img")).unwrap();
    let mut block = vec![0; BLOCK as usize];
    image.read_exact_at(&mut block, from * BLOCK).unwrap();
    image.write_all_at(&block, to * BLOCK).unwrap();
}

/// Every command that goes through the tree says that something is wrong with `/many`.
#[track_caller]
fn all_say(place: &Place, what: &str) {
    let commands: [&[&str]; 5] = [
        &["extract", "a.img:/", "out"],
        &["cp", "-a", "a.img:/", "copy"],
        &["ls", "-R", "a.img:/"],
        &["find", "a.img"],
        &["tar", "-o", "a.tar", "a.img"],
    ];
    for command in commands {
        let ran = place.run(command);
        let code = ran.output.status.code();
        assert!(matches!(code, Some(1 | 4)), "{command:?}: {code:?}, {}", ran.err());
        assert!(ran.err().contains("/many") && ran.err().contains(what), "{}", ran.err());
    }
    place.run(&["check", "a.img"]).ends_with(4);
}

#[test]
fn a_block_that_begins_a_directory_is_damage_anywhere_else() {
    let place = Place::new();
    let (many, _) = require!(made(&place));
    assert!(many.len() > 2, "{many:?}");
    place.run(&["extract", "a.img:/", "whole"]).succeeds();
    copy_block(&place, many[0], many[1]);
    all_say(&place, "a second '.' or '..'");
}

#[test]
fn a_directory_with_the_names_of_another_is_damage() {
    let place = Place::new();
    let (many, other) = require!(made(&place));
    copy_block(&place, other[0], many[0]);
    all_say(&place, "'.' names another inode");
    let salvage = place.run(&["salvage", "a.img", "rescued"]).ends_with(4);
    assert!((salvage.out() + &salvage.err()).contains("/many: "), "{}", salvage.err());
    // What has lost its name is there all the same.
    let left = fs::read_dir(place.path("rescued/lost+found")).unwrap().count();
    assert!(left > 10, "{left}");
}
