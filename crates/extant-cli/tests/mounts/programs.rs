//! Real programs on a mount: the short part of `scripts/real-programs`, which has all of them.

use std::path::Path;
use std::process::Command;

#[test]
fn git_tar_and_sqlite_work_on_a_mount_and_what_was_committed_survives_a_kill() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = root.join("scripts/real-programs");
    let run = Command::new("python3")
        .arg(script)
        .arg("--short")
        .env("EXTANT", env!("CARGO_BIN_EXE_extant"))
        .current_dir(root)
        .output();
    let Ok(output) = run else {
        println!("skipped: python3 is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // A line says what is left out, and why.
    print!("{said}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{error}", output.status);
}
