//! Whoever reads a file sees what was written before, however either is done: through the kernel's cache, past it,
//! asynchronously, through maps, by copying. The writers and readers are in `coherence.py`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::MountOptions;
use extant_fuse::Settings;
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, skip};

fn all_see_what_was_written(settings: &Settings, seconds: u32) {
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    require!(mke2fs(&image, "32M", &["-t", "ext4"]));
    std::fs::create_dir(&at).unwrap();
    let device = Arc::new(extant_testkit::image::load(&image));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    let heard = Heard::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/coherence.py");
    let (served, run) = with_mount(fs, &at, settings, &heard, |at| {
        let limit = (seconds + 60).to_string();
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &limit, "python3"]).arg(script).arg(at);
        command.arg(seconds.to_string()).output().unwrap()
    });
    served.unwrap();
    assert_eq!(heard.bugs.load(Ordering::SeqCst), 0);
    let said = String::from_utf8_lossy(&run.stdout);
    println!("{said}");
    let failed = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{:?}: {said}{failed}", run.status);
}

fn on_each_kind_of_mount(seconds: u32) {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        skip!("needs python3");
    }
    let mut settings = Settings::default();
    all_see_what_was_written(&settings, seconds);
    settings.writeback_cache = false;
    all_see_what_was_written(&settings, seconds);
    match common::over_rings() {
        Ok(settings) => all_see_what_was_written(&settings, seconds),
        Err(obstacle) => println!("not over rings: {obstacle}"),
    }
}

#[test]
fn readers_see_what_was_written_before_however_either_is_done() {
    on_each_kind_of_mount(3);
}

#[test]
#[ignore = "takes minutes"]
fn readers_see_what_was_written_before_for_minutes() {
    on_each_kind_of_mount(60);
}
