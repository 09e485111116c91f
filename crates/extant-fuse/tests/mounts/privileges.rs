//! Programs with set-id bits and capabilities lose them as on the kernel's ext4 when somebody changes them, and
//! nobody runs one with rights that it has no more. The cases are in `privileges.py`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common;
use common::{Heard, obstacle, with_mount_for_all};
use extant::MountOptions;
use extant_fuse::Settings;
use extant_testkit::oracle::{LoopMount, mke2fs};
use extant_testkit::{require, skip};

/// What each case ended in, at this directory.
fn cases(at: &Path) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/privileges.py");
    let mut command = Command::new("timeout");
    let run = command.args(["--signal=KILL", "300", "python3"]).arg(script).arg(at).output();
    let run = run.unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Of the groups of a caller a request names one only. For a member by another group the set-gid bit of what no
/// group executes, which gives nobody any rights, goes with requests that do not say that it was looked at.
fn differs_for_want_of_groups(ours: &str, kernel: &str) -> bool {
    let is_one = ours.contains("by member by another on 2767")
        || ours.contains("by member by another on 6767");
    let without = |case: &str| case.replace(", 2767,", ", 767,").replace(", 2766,", ", 766,");
    is_one && without(kernel) == ours
}

fn compare(settings: &Settings, kernel: &[String]) {
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    mke2fs(&image, "32M", &["-t", "ext4"]).unwrap();
    std::fs::create_dir(&at).unwrap();
    let device = Arc::new(extant_testkit::image::load(&image));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    let heard = Heard::new();
    let (served, ours) = with_mount_for_all(fs, &at, settings, &heard, cases);
    served.unwrap();
    assert_eq!(heard.bugs.load(Ordering::SeqCst), 0);
    assert_eq!(ours.len(), kernel.len());
    let mut differences = Vec::new();
    let mut for_want_of_groups = 0;
    for (ours, kernel) in ours.iter().zip(kernel) {
        if differs_for_want_of_groups(ours, kernel) {
            for_want_of_groups += 1;
        } else if ours != kernel {
            differences.push(format!("ours:   {ours}\nkernel: {kernel}"));
        }
    }
    println!("{} cases, {for_want_of_groups} differ for want of groups", ours.len());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(kernel.len() > 400 && kernel.iter().any(|case| case.contains("euid=0(root)")));
}

#[test]
fn what_changes_a_program_takes_its_rights_at_once_and_as_the_kernel_does() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        skip!("needs python3");
    }
    let dir = extant_testkit::tempdir().unwrap();
    let image = dir.path().join("image");
    require!(mke2fs(&image, "32M", &["-t", "ext4"]));
    let mount = require!(LoopMount::read_write(&image));
    let kernel = cases(mount.path());
    drop(mount);
    let mut settings = Settings::default();
    compare(&settings, &kernel);
    settings.writeback_cache = false;
    compare(&settings, &kernel);
    match common::over_rings() {
        Ok(settings) => compare(&settings, &kernel),
        Err(obstacle) => println!("not over rings: {obstacle}"),
    }
}
