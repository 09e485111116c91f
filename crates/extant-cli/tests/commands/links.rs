//! Symbolic links whose targets are not as long as their inodes say: nobody gets half a target for a whole one.

use std::fs;

use extant_testkit::oracle::{LoopMount, debugfs, mke2fs};
use extant_testkit::require;

use crate::support::Place;

/// What is wrong with the link `/l`, and whether Linux refuses it, too: it looks at targets in inodes alone.
const WRONG: &[(&str, &str, bool)] = &[
    ("short", "sif /l size 40\n", true),
    ("short", "sif /l size 2\n", true),
    ("short", "sif /l size 0\n", true),
    ("slow", "zap_block -f /l -p 0 0\n", false),
    ("slow", "zap_block -f /l -o 100 -l 1 -p 0 0\n", false),
];

#[test]
fn a_target_that_is_not_as_long_as_its_inode_says_is_damage() {
    for (which, command, is_kernels) in WRONG {
        let place = Place::new();
        let target = "t".repeat(if *which == "slow" { 200 } else { 5 });
        require!(mke2fs(&place.path("a.img"), "4M", &["-t", "ext4", "-O", "^metadata_csum"]));
        let words = format!("symlink l {target}\nsymlink good elsewhere\n");
        require!(debugfs(&place.path("a.img"), true, &words));
        place.run(&["extract", "a.img:/", "whole"]).succeeds();
        assert_eq!(fs::read_link(place.path("whole/l")).unwrap().as_os_str(), target.as_str());
        require!(debugfs(&place.path("a.img"), true, command));
        if let Ok(mount) =
            LoopMount::new(&place.path("a.img"), rustix::mount::MountFlags::RDONLY, "noload")
        {
            let shown = fs::read_link(mount.path().join("l"));
            // Kernels before 6.15 did not look.
            assert!(shown.is_ok() || *is_kernels, "{command}: {shown:?}");
        }
        let extract = place.run(&["extract", "a.img:/", "out"]).ends_with(1);
        extract.complains(&["/l", "not as long as the inode says"]);
        assert!(fs::symlink_metadata(place.path("out/l")).is_err(), "{command}");
        assert!(fs::symlink_metadata(place.path("out/good")).is_ok(), "{command}");
        place.run(&["tar", "-o", "a.tar", "a.img"]).ends_with(4).complains(&["/l"]);
        place.run(&["cp", "-a", "a.img:/", "copy"]).ends_with(1).complains(&["/l"]);
        place.run(&["check", "a.img"]).ends_with(4);
        let salvage = place.run(&["salvage", "a.img", "rescued"]).ends_with(4);
        assert!((salvage.out() + &salvage.err()).contains("/l: "), "{command}");
    }
}
