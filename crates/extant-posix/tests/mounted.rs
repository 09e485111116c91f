//! The tables against the kernel's ext4, which is right, and a mount by extant against that.

use std::path::{Path, PathBuf};
use std::process::Command;

use extant_posix::record::{KNOWN, Record, both_ran, compare, unknown};
use extant_posix::run::{Options, run};
use extant_testkit::oracle::{LoopMount, e2fsck, mke2fs, root};
use extant_testkit::{require, skip, tempdir};

/// Runs the cases that take no more than a second each.
fn record(dir: &Path) -> Vec<Record> {
    let program = Some(PathBuf::from(env!("CARGO_BIN_EXE_extant-posix")));
    let options = Options { short: true, program, ..Options::default() };
    let mut records = Vec::new();
    run(dir, &options, &mut |record| records.push(record)).unwrap();
    records
}

fn complaints(records: &[Record]) -> Vec<String> {
    records.iter().flat_map(Record::complaints).collect()
}

/// The command to mount with: `EXTANT`, or what this build made.
fn extant() -> Result<PathBuf, String> {
    let beside = Path::new(env!("CARGO_BIN_EXE_extant-posix")).with_file_name("extant");
    let path = std::env::var_os("EXTANT").map_or(beside, PathBuf::from);
    let help = Command::new(&path).args(["mount", "--help"]).output();
    match help {
        Ok(output) if output.status.success() => Ok(path),
        _ => Err(format!("{} is not there, or cannot mount: build extant-cli", path.display())),
    }
}

/// A mount by extant. Unmounted when dropped.
struct Mounted<'a> {
    extant: &'a Path,
    dir: &'a Path,
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let status = Command::new(self.extant).arg("umount").arg(self.dir).status();
        if !status.is_ok_and(|status| status.success()) && !std::thread::panicking() {
            panic!("{} could not be unmounted", self.dir.display());
        }
    }
}

#[test]
fn the_kernel_gives_what_the_tables_ask_for_and_extant_the_same() {
    require!(root("mounts, and runs steps as several users"));
    let dir = tempdir().unwrap();
    // What ordinary users do in there must not fail on the way.
    open_to_all(dir.path());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    require!(mke2fs(&theirs, "2G", &["-t", "ext4"]));
    let copied = Command::new("cp").arg("--sparse=always").arg(&theirs).arg(&ours).status();
    assert!(copied.unwrap().success());

    let mount = require!(LoopMount::read_write(&theirs));
    open_to_all(mount.path());
    let kernel = record(mount.path());
    drop(mount);
    assert_eq!(complaints(&kernel), [""; 0]);
    assert!(kernel.iter().filter(|record| record.skipped.is_none()).count() > 700);

    if !Path::new("/dev/fuse").exists() {
        skip!("needs /dev/fuse");
    }
    let extant = require!(extant());
    let top = dir.path().join("mnt");
    std::fs::create_dir(&top).unwrap();
    let mut mount = Command::new(&extant);
    let made = mount.args(["mount", "-o", "allow_other"]).arg(&ours).arg(&top).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mounted = Mounted { extant: &extant, dir: &top };
    let found = record(&top);
    drop(mounted);
    let (new, gone) = unknown(compare(&kernel, &found), KNOWN, &both_ran(&kernel, &found));
    let new: Vec<String> = new.iter().map(ToString::to_string).collect();
    assert!(new.is_empty(), "differs from the kernel:\n{}", new.join("\n"));
    assert_eq!(gone, [""; 0], "no difference any more: take it from the list");
    e2fsck(&ours).unwrap().assert_clean();
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
}
