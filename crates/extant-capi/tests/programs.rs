//! Programs in C and C++ that use the library as it is installed.
#![forbid(unsafe_code)]

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use extant_testkit::oracle::e2fsck;
use extant_testkit::{TempDir, require, skip, tempdir};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn has(program: &str) -> Result<(), String> {
    let found = Command::new(program).arg("--version").output();
    found.map(drop).map_err(|_| format!("there is no {program}"))
}

/// The library beside its header, under the names that programs ask for.
fn installed() -> TempDir {
    let place = tempdir().unwrap();
    let library = common::library("libextant_capi.so");
    symlink(&library, place.path().join("libextant.so.0.1")).unwrap();
    symlink("libextant.so.0.1", place.path().join("libextant.so")).unwrap();
    symlink(common::library("libextant_capi.a"), place.path().join("libextant.a")).unwrap();
    place
}

/// Compiles `source` to `program`; with `is_static` the library goes into it.
fn compile(compiler: &[&str], source: &Path, library: &Path, is_static: bool) -> PathBuf {
    let program = library.join(format!("program-{is_static}"));
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-I"]);
    command.arg(here("include")).arg(source).arg("-o").arg(&program);
    match is_static {
        true => command.arg(library.join("libextant.a")).args(["-ldl", "-lm"]),
        false => command.arg("-L").arg(library).arg("-lextant"),
    };
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&done.stderr));
    program
}

fn run(command: &mut Command, library: &Path) -> Output {
    let done = command.env("LD_LIBRARY_PATH", library).output().unwrap();
    let (told, failed) =
        (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{told}\n{failed}", done.status);
    done
}

const C: [&str; 3] = ["cc", "-std=c11", "-D_GNU_SOURCE"];
const CPP: [&str; 3] = ["c++", "-std=c++17", "-Wpedantic"];

#[test]
fn a_program_in_c_does_everything_and_is_refused_what_makes_no_sense() {
    require!(has("cc"));
    let library = installed();
    let program = compile(&C, &here("tests/c/all.c"), library.path(), false);
    let place = tempdir().unwrap();
    let done = run(Command::new(program).arg(place.path()), library.path());
    assert!(String::from_utf8_lossy(&done.stdout).ends_with("all done\n"));
    let report = require!(e2fsck(&place.path().join("image")));
    report.assert_clean();
    require!(e2fsck(&place.path().join("empty.img"))).assert_clean();
}

#[test]
fn the_same_program_runs_with_the_library_inside() {
    require!(has("cc"));
    let library = installed();
    let program = compile(&C, &here("tests/c/all.c"), library.path(), true);
    let place = tempdir().unwrap();
    let done = run(Command::new(program).arg(place.path()), Path::new("/nowhere"));
    assert!(String::from_utf8_lossy(&done.stdout).ends_with("all done\n"));
}

#[test]
fn a_program_in_cpp_closes_its_handles_by_itself() {
    require!(has("c++"));
    let library = installed();
    let program = compile(&CPP, &here("tests/c/raii.cpp"), library.path(), false);
    let place = tempdir().unwrap();
    let image = place.path().join("image");
    run(Command::new(program).arg(&image), library.path());
    require!(e2fsck(&image)).assert_clean();
}

#[test]
fn calls_beside_each_other_keep_what_the_header_promises() {
    require!(has("cc"));
    let library = installed();
    let program = compile(&C, &here("tests/c/beside.c"), library.path(), false);
    let place = tempdir().unwrap();
    let image = place.path().join("image");
    extant_image::Build::empty().size(8 << 20).write_to(&image).unwrap();
    let done = run(Command::new(program).arg(&image), library.path());
    assert!(String::from_utf8_lossy(&done.stdout).ends_with("all done\n"));
}

/// A loop device over a file; detached when dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn an_image_that_the_kernel_has_is_neither_mounted_for_writing_nor_built_over() {
    require!(has("cc"));
    let library = installed();
    let program = compile(&C, &here("tests/c/held.c"), library.path(), false);
    let place = tempdir().unwrap();
    let image = place.path().join("image");
    extant_image::Build::empty().size(8 << 20).write_to(&image).unwrap();
    let made = Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        skip!("needs root and loop devices");
    };
    let device = Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned());
    run(Command::new(&program).arg(&image).arg("16"), library.path());
    drop(device);
    run(Command::new(&program).arg(&image).arg("0"), library.path());
}

#[test]
fn a_disk_that_fails_is_no_damage() {
    require!(has("cc"));
    let library = installed();
    let program = compile(&C, &here("tests/c/checks.c"), library.path(), false);
    let place = tempdir().unwrap();
    let image = place.path().join("image");
    let check = |what: &Path, errno: &str, name: &str| {
        run(Command::new(&program).arg(what).args([errno, name]), library.path());
    };
    // Its bitmaps are all over the disk.
    let features = "^flex_bg,^metadata_csum,^uninit_bg,^has_journal,^resize_inode";
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-b", "1024", "-O", features])
        .arg(&image)
        .arg("64M")
        .output();
    let Some(_) = made.ok().filter(|made| made.status.success()) else {
        skip!("there is no mke2fs");
    };
    check(&image, "0", "");
    let damaged = place.path().join("damaged");
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[1024 + 0x18] = 99; // The block size.
    std::fs::write(&damaged, bytes).unwrap();
    check(&damaged, "117", "Check");
    let made = Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        skip!("needs root and loop devices");
    };
    let device = Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned());
    // What is behind the end of the file is a disk's bad sectors.
    std::fs::File::options().write(true).open(&image).unwrap().set_len(20 << 20).unwrap();
    check(Path::new(&device.0), "5", "Device");
}

#[test]
fn the_example_of_the_documentation_runs() {
    require!(has("cc"));
    let library = installed();
    let program = compile(&C, &here("../../examples/c/embed.c"), library.path(), false);
    let place = tempdir().unwrap();
    std::fs::create_dir(place.path().join("tree")).unwrap();
    std::fs::write(place.path().join("tree/file"), "contents").unwrap();
    let image = place.path().join("image");
    let done =
        run(Command::new(program).arg(place.path().join("tree")).arg(&image), library.path());
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(told.contains("/log has 1400 bytes"), "{told}");
    assert!(told.contains("error NotFound about /none/at/all"), "{told}");
    assert!(told.ends_with("clean\n"), "{told}");
}

#[test]
fn valgrind_finds_nothing() {
    require!(has("cc"));
    require!(has("valgrind"));
    let library = installed();
    let place = tempdir().unwrap();
    for (compiler, source) in [(C, "tests/c/all.c"), (CPP, "tests/c/raii.cpp")] {
        if has(compiler[0]).is_err() {
            skip!("there is no {}", compiler[0]);
        }
        let program = compile(&compiler, &here(source), library.path(), false);
        let argument = match source.ends_with(".c") {
            true => place.path().to_owned(),
            false => place.path().join("another"),
        };
        let mut command = Command::new("valgrind");
        command.args(["-q", "--error-exitcode=99", "--leak-check=full"]);
        command.args([
            "--errors-for-leak-kinds=definite",
            "--show-leak-kinds=definite",
            "--fair-sched=yes",
        ]);
        let done = run(command.arg(program).arg(argument), library.path());
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(!told.contains("lost in loss record"), "{told}");
    }
}
