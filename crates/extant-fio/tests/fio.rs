//! fio with the engine: what it writes is there, what it verifies is right, and an fio that is not known is refused.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use extant_image::Build;
use extant_testkit::oracle::{debugfs, e2fsck};
use extant_testkit::{TempDir, require, tempdir};

fn engine() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let engine = test.parent().unwrap().join("libextant_fio.so");
    assert!(engine.exists(), "no {}", engine.display());
    engine
}

/// fio, if it is one that the engine knows.
fn fio() -> Result<(), String> {
    let told = Command::new("fio").arg("--version").output().map_err(|_| "there is no fio")?;
    let version = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    let known = ["fio-3.30", "fio-3.31", "fio-3.32", "fio-3.33"];
    if known.iter().any(|known| version.starts_with(known)) && cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    Err(format!("{version} is not one that the engine knows"))
}

fn image() -> (TempDir, PathBuf) {
    let place = tempdir().unwrap();
    let image = place.path().join("image");
    Build::empty().size(96 << 20).write_to(&image).unwrap();
    (place, image)
}

fn run(image: &Path, options: &[&str]) -> Output {
    let mut command = Command::new("fio");
    command.arg(format!("--ioengine=external:{}", engine().display()));
    command.arg(format!("--image={}", image.display())).arg("--name=job").args(options);
    command.current_dir(image.parent().unwrap()).output().unwrap()
}

fn told(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    format!("{}\n{}", String::from_utf8_lossy(out), String::from_utf8_lossy(error))
}

/// Runs fio, which must succeed, and looks at what it left.
fn works(options: &[&str]) -> (TempDir, PathBuf) {
    let (place, image) = image();
    let output = run(&image, options);
    assert!(output.status.success(), "{options:?}\n{}", told(&output));
    require_clean(&image);
    (place, image)
}

fn require_clean(image: &Path) {
    match e2fsck(image) {
        Ok(report) => report.assert_clean(),
        Err(reason) => eprintln!("not checked: {reason}"),
    }
}

const VERIFIED: [&str; 5] =
    ["--filename=/data", "--size=16m", "--bs=4k", "--verify=crc32c", "--verify_fatal=1"];

#[test]
fn what_is_written_in_each_mode_is_verified() {
    require!(fio());
    for more in [
        &["--rw=randwrite", "--mode=buffered", "--fdatasync=64"][..],
        &["--rw=randwrite", "--mode=direct", "--iomem=malloc", "--mem_align=4096"],
        &["--rw=randwrite", "--mode=ring", "--iodepth=16", "--fsync=100"],
        &["--rw=write", "--mode=ring", "--iodepth=4", "--cache_mib=4", "--size=32m"],
        &["--rw=write", "--mode=buffered", "--durable=data", "--size=1m"],
        &["--rw=randtrimwrite", "--mode=ring", "--iodepth=8", "--size=4m"],
    ] {
        let more: Vec<&str> =
            more.iter().copied().filter(|option| !option.contains("iomem")).collect();
        let (_place, image) = works(&[&VERIFIED[..], &more].concat());
        let listed = require!(debugfs(&image, false, "ls -l /"));
        assert!(listed.contains("data"), "{listed}");
    }
}

#[test]
fn jobs_with_thread_share_a_mount_and_others_are_told_how() {
    require!(fio());
    let jobs = [
        "--filename_format=/f.$jobnum",
        "--size=4m",
        "--bs=8k",
        "--rw=randwrite",
        "--verify=crc32c",
    ];
    works(&[&jobs[..], &["--numjobs=4", "--thread", "--mode=ring", "--iodepth=4"]].concat());
    let (_place, image) = image();
    // Each process runs for longer than a lock is tried for: none comes after the others.
    let apart = ["--numjobs=4", "--time_based", "--runtime=2"];
    let output = run(&image, &[&jobs[..], &apart].concat());
    assert!(!output.status.success());
    assert!(told(&output).contains("--thread"), "{}", told(&output));
    require_clean(&image);
}

#[test]
fn reading_what_is_not_cached_at_depth_goes_to_workers_and_back() {
    require!(fio());
    let (_place, image) = works(&["--filename=/data", "--size=16m", "--bs=64k", "--rw=write"]);
    let read = [
        "--filename=/data",
        "--size=16m",
        "--bs=16k",
        "--rw=randread",
        "--mode=ring",
        "--iodepth=32",
    ];
    let output = run(&image, &read);
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("16.0MiB"), "{}", told(&output));
}

#[test]
fn options_that_make_no_sense_end_the_job_and_are_named() {
    require!(fio());
    let (_place, image) = image();
    for (options, wanted) in [
        (["--filename=/x", "--size=1m", "--mode=fast"], "mode=fast"),
        (["--filename=/x", "--size=1m", "--durable=never"], "durable=never"),
        (["--filename=/none/x", "--size=1m", "--rw=write"], "/none/: there is no such entry"),
        (["--filename=/x", "--size=1m", "--image=/none/image"], "/none/image"),
    ] {
        let output = run(&image, &options);
        assert!(!output.status.success(), "{options:?}");
        assert!(told(&output).contains(wanted), "{options:?}: {}", told(&output));
    }
}

#[test]
fn space_that_ends_is_an_error_of_the_job() {
    require!(fio());
    let (_place, image) = image();
    let output = run(&image, &["--filename=/x", "--size=200m", "--bs=1m", "--rw=write"]);
    assert!(!output.status.success());
    assert!(told(&output).contains("No space left"), "{}", told(&output));
    require_clean(&image);
}

#[test]
fn another_version_of_fio_is_refused_by_its_name() {
    let place = tempdir().unwrap();
    let program = place.path().join("other");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/other.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-rdynamic", "-ldl"]).arg(source).arg("-o").arg(&program);
    let compiled = require!(compiler.output().map_err(|_| "there is no cc"));
    assert!(compiled.status.success(), "{}", told(&compiled));
    let output = Command::new(program).arg(engine()).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("fio-3.99 is not known"), "{}", told(&output));
}
