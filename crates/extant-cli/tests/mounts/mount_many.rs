//! Many mounts at once, each of an overlay of its own over one base.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use extant_base::Prng;
use extant_sync::threads;
use rustix::process::Signal;

use crate::support;
use support::mounts::{Mounts, is_alive, mounts, signal, until};
use support::{kernel, text, tool};

/// KiB that all of 200 may take.
const ALL_KIB: u64 = 1 << 20;
/// KiB of the program, of which each process counts its part.
const PROGRAM_KIB: u64 = 64 << 10;
/// Mounts that are made at the same time.
const MAKERS: usize = 4;

fn noise(number: usize, len: usize) -> Vec<u8> {
    let mut random = Prng::new(number as u64 + 1);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

/// KiB of memory that a process has, of what it shares its part.
fn pss(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

struct Many {
    mounts: Mounts,
    count: usize,
}

impl Many {
    fn point(&self, number: usize) -> PathBuf {
        self.mounts.path(&format!("m{number}"))
    }

    fn each(&self, name: &str, at_once: usize, work: impl Fn(usize) + Sync) {
        let some = |first: usize| (first..self.count).step_by(at_once).for_each(&work);
        threads::workers(name, at_once, some).unwrap();
    }

    fn mount(&self, number: usize) {
        let (overlay, point) = (format!("o{number}.qcow2"), format!("m{number}"));
        fs::create_dir(self.point(number)).unwrap();
        let args = ["mount", "--overlay", &overlay, "a.img", &point];
        self.mounts.place.run(&args).succeeds();
    }

    fn write(&self, number: usize, name: &str, bytes: &[u8]) {
        let mut file = fs::File::create(self.point(number).join(name)).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
    }
}

fn many(count: usize) {
    let Some(mounts) = mounts() else { return };
    let base = fs::read(mounts.path("a.img")).unwrap();
    let all = Many { mounts, count };
    let place = &all.mounts.place;
    all.each("mount", MAKERS, |number| all.mount(number));
    all.each("write", count, |number| all.write(number, "synced", &noise(number, 1 << 20)));
    let processes: Vec<(i32, i32)> =
        (0..count).map(|number| all.mounts.processes_at(&format!("m{number}"))).collect();
    let taken: u64 = processes.iter().map(|(keeper, server)| pss(*keeper) + pss(*server)).sum();
    println!("{count} mounts: {} MiB", taken / 1024);
    let most = (PROGRAM_KIB + count as u64 * (ALL_KIB / 200)).min(ALL_KIB);
    assert!(taken <= most, "{taken} KiB, more than {most} KiB");
    // Some die, in the middle of what is not synced.
    let mut random = Prng::new(count as u64);
    let is_killed: Vec<bool> = (0..count).map(|_| random.one_in(3)).collect();
    assert!(is_killed.contains(&true) && is_killed.contains(&false));
    all.each("kill", count, |number| {
        if is_killed[number] {
            let _ = fs::write(all.point(number).join("late"), noise(number, 1 << 20));
            signal(processes[number].1, Signal::KILL);
            until("the server is gone", || !is_alive(processes[number].1));
        } else {
            all.write(number, "after", &noise(number, 100_000));
        }
    });
    all.each("end", MAKERS, |number| {
        let point = format!("m{number}");
        match is_killed[number] {
            // The keeper may have taken it away already.
            true => drop(place.run(&["umount", "-l", &point])),
            false => drop(place.run(&["umount", "--timeout", "60", &point]).succeeds()),
        }
    });
    for (number, is_killed) in is_killed.iter().enumerate() {
        let overlay = format!("o{number}.qcow2");
        let read = |name: &str| {
            let ran = place.run(&["cat", &format!("{overlay}:/{name}")]).succeeds();
            ran.output.stdout.clone()
        };
        assert!(read("synced") == noise(number, 1 << 20), "{number}: what was synced is lost");
        if !is_killed {
            assert!(read("after") == noise(number, 100_000), "{number}");
        }
        let convert = ["convert", "-O", "raw", &overlay, "flat"];
        let Some(flat) = tool("qemu-img", &convert, place.0.path()) else { continue };
        assert!(flat.status.success(), "{}", text(&flat));
        if *is_killed {
            // As the kernel would: the journal, and nothing else.
            let replay = ["-E", "journal_only", "-fy", "flat"];
            let Some(replay) = tool("e2fsck", &replay, place.0.path()) else { continue };
            assert!(matches!(replay.status.code(), Some(0 | 1)), "{}", text(&replay));
        }
        kernel::clean(place, "flat");
    }
    assert!(fs::read(all.mounts.path("a.img")).unwrap() == base, "the base has changed");
}

#[test]
fn overlays_that_are_mounted_side_by_side_take_little_and_lose_nothing_when_some_die() {
    many(8);
}

#[test]
#[ignore = "takes minutes: 200 mounts at once"]
fn two_hundred_mounts_of_overlays_take_less_than_a_gibibyte() {
    many(200);
}
