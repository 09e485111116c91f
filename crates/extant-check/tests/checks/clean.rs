//! Images that e2fsck calls clean have no problems, whatever their features.

use std::fs;

use crate::common;
use common::{FEATURES, assert_clean, grow};
use extant_testkit::{oracle, require, tempdir};

#[test]
fn images_of_mke2fs_have_no_problems() {
    let dir = tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    grow(&source);
    for (what, features) in FEATURES {
        let empty = dir.path().join("empty.img");
        require!(oracle::mke2fs(&empty, "24M", features));
        assert_clean(&empty, &format!("{what}, empty"));
        let full = dir.path().join("full.img");
        let from = source.display().to_string();
        let arguments: Vec<&str> = features.iter().copied().chain(["-d", &from]).collect();
        require!(oracle::mke2fs(&full, "24M", &arguments));
        assert_clean(&full, &format!("{what}, full"));
        fs::remove_file(empty).unwrap();
        fs::remove_file(full).unwrap();
    }
}
