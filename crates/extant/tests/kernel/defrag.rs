//! Files are brought together on the device: on every mapping, beside those who use them, when there is no room,
//! and when the device fails. What a cut leaves is in `crash/generated.rs`.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::{
    Defragmented, Fallocate, Fs, FsError, Inode, InodeFlags, MappingKind, MountOptions, NewInode,
    SetAttributes,
};
use extant_block::{FaultDevice, FaultPlan, MemoryDevice, OperationKind, SharedDevice};
use extant_check::{CheckOptions, Problem};
use extant_sync::FixedClock;
use extant_sync::threads::workers;
use extant_testkit::oracle::{debugfs, e2fsck, mke2fs};
use extant_testkit::{Ends, image, require, tempdir};

/// A byte of the contents that tests write: different in each block and each file.
fn byte(seed: u64, at: u64) -> u8 {
    ((at / 512).wrapping_mul(131).wrapping_add(seed.wrapping_mul(77)).wrapping_add(at % 509)) as u8
}

fn bytes(seed: u64, at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|at| byte(seed, at)).collect()
}

fn make(size: &str, arguments: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, arguments)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount_shared(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(device).unwrap()
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    mount_shared(Arc::clone(device) as SharedDevice)
}

/// Both checkers find nothing; what e2fsck says.
fn check(device: &MemoryDevice) -> String {
    let report = extant_check::check(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path).unwrap();
    report.assert_clean();
    report.text
}

fn new(fs: &Fs, path: &str) -> Inode {
    fs.create(path, &NewInode::root(0o644)).unwrap()
}

/// Writes a file until there is no room.
fn fill(fs: &Fs, path: &str) -> Inode {
    let file = new(fs, path);
    let (chunk, mut at) = (vec![0x55; 256 << 10], 0);
    for len in [chunk.len(), 1024] {
        while let Ok(written @ 1..) = file.write_at(&chunk[..len], at) {
            at += written as u64;
        }
    }
    file.sync().unwrap();
    file
}

/// A cluster or block.
fn unit(fs: &Fs) -> u64 {
    fs.superblock().cluster_bytes()
}

/// Where the file has bytes: of `units`, some with holes between.
fn place(at: u64, unit: u64) -> u64 {
    (at + at / 8 * 3) * unit
}

/// Units of the longest free run.
fn longest_run(fs: &Fs) -> u64 {
    let groups = (0..fs.superblock().group_count).map(extant::GroupIndex);
    let runs = groups.flat_map(|group| fs.free_runs(group).unwrap());
    let longest = runs.map(|run| run.end - run.start).max().unwrap_or(0);
    longest / u64::from(fs.superblock().cluster_ratio().max(1))
}

/// Takes all room there is but single units with none beside them; what has it.
fn crumble(fs: &Fs) -> [Inode; 2] {
    let unit = unit(fs);
    let filler = fill(fs, "/filler");
    let count = (filler.size() / unit - 40) / 2;
    for at in 0..count {
        let range = (20 + 2 * at) * unit..(21 + 2 * at) * unit;
        filler.fallocate(Fallocate::PunchHole, range).unwrap();
    }
    fs.sync().unwrap();
    // What was kept for others lies together, and whoever wants much finds it first.
    let rest = new(fs, "/rest");
    for _ in 0..8 {
        let longest = longest_run(fs);
        if longest < 16 {
            break;
        }
        rest.write_at(&vec![0x66; (longest * unit) as usize], rest.size()).unwrap();
        rest.sync().unwrap();
    }
    fs.sync().unwrap();
    [filler, rest]
}

/// A file of so many units, each in a piece of its own.
fn scatter(fs: &Fs, path: &str, units: u64, seed: u64) -> Inode {
    let unit = unit(fs);
    let fillers = crumble(fs);
    let file = new(fs, path);
    for at in 0..units {
        let at = place(at, unit);
        if file.uses_extents() && at / unit % 16 == 5 {
            let mode = Fallocate::Allocate { keep_size: false };
            file.fallocate(mode, at..at + unit).unwrap();
        } else {
            file.write_at(&bytes(seed, at, unit), at).unwrap();
        }
        file.sync().unwrap();
    }
    drop(fillers);
    fs.remove_file("/filler").unwrap();
    fs.remove_file("/rest").unwrap();
    fs.sync().unwrap();
    file
}

fn verify(file: &Inode, units: u64, seed: u64) {
    let unit = unit(file.fs());
    let mut expected = vec![0; file.size() as usize];
    for at in (0..units).map(|at| place(at, unit)) {
        if !(file.uses_extents() && at / unit % 16 == 5) {
            expected[at as usize..][..unit as usize].copy_from_slice(&bytes(seed, at, unit));
        }
    }
    assert!(file.read_all().unwrap() == expected, "other contents");
}

fn defragment(file: &Inode) -> Defragmented {
    file.defragment(&mut |_| ControlFlow::Continue(())).unwrap()
}

const LAYOUTS: [(&str, &[&str]); 8] = [
    ("blocks of 4K", &["-t", "ext4", "-b", "4096"]),
    ("blocks of 1K", &["-t", "ext4", "-b", "1024", "-g", "8192"]),
    ("clusters", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"]),
    ("indirect", &["-t", "ext3", "-b", "1024"]),
    ("inline", &["-t", "ext4", "-b", "1024", "-O", "inline_data"]),
    ("quota", &["-t", "ext4", "-b", "1024", "-O", "quota,project"]),
    ("no journal", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^metadata_csum"]),
];

#[test]
fn a_scattered_file_lies_in_one_piece_on_every_mapping_and_is_the_same_file() {
    for (name, layout) in LAYOUTS {
        let device = require!(make("24M", layout));
        let fs = mount(&device);
        let units = if name == "clusters" { 60 } else { 300 };
        let file = scatter(&fs, "/file", units, 3);
        let before = (file.pieces().unwrap(), file.metadata(), fs.statfs().unwrap());
        assert!(before.0.count > units / 2, "{name}: {:?}", before.0);
        let done = defragment(&file);
        println!("{name}: {done:?}");
        assert_eq!(done.pieces_before, before.0.count, "{name}");
        assert!(done.pieces_after <= 2, "{name}: {done:?}");
        assert_eq!(file.pieces().unwrap().count, done.pieces_after);
        assert_eq!(done.blocks, before.0.blocks, "{name}: it has as many blocks as before");
        assert!(!done.is_stopped && done.bytes_moved > 0);
        verify(&file, units, 3);
        fs.sync().unwrap();
        let after = (file.metadata(), fs.statfs().unwrap());
        let nodes = done.nodes_freed * u64::from(fs.superblock().cluster_ratio());
        assert_eq!(after.1.blocks_free, before.2.blocks_free + nodes, "{name}: free blocks");
        assert_eq!((after.0.mtime, after.0.ctime), (before.1.mtime, before.1.ctime), "{name}");
        assert_eq!(after.0.size, before.1.size);
        // Once more there is nothing to do.
        let again = defragment(&file);
        assert_eq!((again.bytes_moved, again.pieces_after), (0, done.pieces_after), "{name}");
        drop(file);
        fs.unmount().unwrap();
        check(&device);
        let fs = mount(&device);
        verify(&fs.resolve("/file").unwrap(), units, 3);
        fs.unmount().unwrap();
    }
}

#[test]
fn what_is_in_the_inode_or_empty_or_whole_stays() {
    let device = require!(make("8M", &["-t", "ext4", "-b", "1024", "-O", "inline_data"]));
    let fs = mount(&device);
    fs.write("/small", "in the inode").unwrap();
    fs.write("/empty", "").unwrap();
    fs.write("/whole", vec![7; 100_000]).unwrap();
    fs.sync().unwrap();
    for path in ["/small", "/empty", "/whole"] {
        let file = fs.resolve(path).unwrap();
        let before = file.pieces().unwrap();
        let done = defragment(&file);
        assert_eq!((done.bytes_moved, done.pieces_after), (0, before.count), "{path}");
        assert!(before.count <= 1 && !done.lacks_room, "{path}: {done:?}");
    }
    assert_eq!(fs.read("/small").unwrap(), b"in the inode");
    fs.unmount().unwrap();
    check(&device);
}

#[test]
fn what_cannot_be_moved_is_refused_and_says_why() {
    let device = require!(make("24M", &["-t", "ext4", "-b", "1024"]));
    let fs = mount(&device);
    let file = scatter(&fs, "/file", 20, 1);
    let mut go_on = |_| ControlFlow::Continue(());
    file.set_attributes(&SetAttributes::new().flags(file.flags() | InodeFlags::IMMUTABLE)).unwrap();
    let before = file.pieces().unwrap();
    let refused = file.defragment(&mut go_on);
    assert!(matches!(refused, Err(FsError::NotPermitted { .. })), "{refused:?}");
    assert_eq!(file.pieces().unwrap(), before);
    let dir = fs.resolve("/").unwrap();
    assert!(matches!(dir.defragment(&mut go_on), Err(FsError::IsADirectory { .. })));
    fs.symlink("file", "/link", &NewInode::root(0o777)).unwrap();
    let link = fs.resolve_link("/link").unwrap();
    assert!(matches!(link.defragment(&mut go_on), Err(FsError::NotARegularFile { .. })));
    drop((file, dir, link));
    fs.unmount().unwrap();
    let fs = MountOptions::new().open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    let refused = fs.resolve("/file").unwrap().defragment(&mut go_on);
    assert!(refused.is_err(), "a mount for reading moves nothing: {refused:?}");
    check(&device);
}

#[test]
fn without_a_run_for_two_pieces_it_says_so_and_gives_everything_back() {
    let device = require!(make("24M", &["-t", "ext4", "-b", "1024"]));
    let fs = mount(&device);
    let [filler, rest] = crumble(&fs);
    let file = new(&fs, "/file");
    for at in 0..100 {
        file.write_at(&bytes(9, at << 10, 1024), at << 10).unwrap();
        file.sync().unwrap();
    }
    let more = fill(&fs, "/more");
    fs.sync().unwrap();
    let before = (file.pieces().unwrap(), fs.statfs().unwrap());
    assert!(before.0.count > 90, "{:?}", before.0);
    let done = defragment(&file);
    assert!(done.lacks_room && done.pieces_after <= done.pieces_before, "{done:?}");
    fs.sync().unwrap();
    let after = fs.statfs().unwrap();
    assert_eq!(after.blocks_free, before.1.blocks_free);
    assert_eq!(after.blocks_available, before.1.blocks_available, "nothing stays promised");
    // Room there is, but only one run for a few pieces.
    more.truncate(more.size() / 2).unwrap();
    filler.fallocate(Fallocate::PunchHole, 4000 << 10..4004 << 10).unwrap();
    fs.sync().unwrap();
    let better = defragment(&file);
    assert!(better.lacks_room && better.pieces_after < done.pieces_after, "{better:?}");
    assert!(file.read_all().unwrap() == bytes(9, 0, 100 << 10));
    drop((file, filler, rest, more));
    fs.unmount().unwrap();
    check(&device);
}

#[test]
fn who_watches_may_stop_it_and_another_call_goes_on() {
    let device = require!(make("24M", &["-t", "ext4", "-b", "1024"]));
    let fs = mount(&device);
    let file = scatter(&fs, "/file", 200, 4);
    let free = fs.statfs().unwrap().blocks_free;
    let (mut stops, mut last, mut told) = (0, u64::MAX, 0);
    loop {
        let done = file
            .defragment(&mut |moved| {
                told += 1;
                if moved > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        verify(&file, 200, 4);
        assert!(done.pieces_after < last || !done.is_stopped, "{done:?}");
        last = done.pieces_after;
        if !done.is_stopped {
            break;
        }
        stops += 1;
        assert!(stops < 300, "no end");
    }
    assert!(stops > 3 && last <= 2, "{stops} stops, {last} pieces, told {told} times");
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free >= free);
    drop(file);
    fs.unmount().unwrap();
    check(&device);
}

#[test]
fn half_empty_nodes_are_joined_and_e2fsck_proposes_nothing_more() {
    let device = require!(make("64M", &["-t", "ext4", "-b", "1024"]));
    let fs = mount(&device);
    let file = new(&fs, "/file");
    // In an order that splits nodes in the middle, and every other one with a hole behind it.
    for round in 0..16u64 {
        for at in 0..256u64 {
            let at = (at * 16 + round * 5 % 16) * 2048;
            file.write_at(&bytes(5, at, 1024), at).unwrap();
        }
        file.sync().unwrap();
    }
    for at in (0..4096u64).filter(|at| at % 5 != 0) {
        file.fallocate(Fallocate::PunchHole, at * 2048..at * 2048 + 1024).unwrap();
    }
    fs.sync().unwrap();
    let before = fs.statfs().unwrap().blocks_free;
    drop(file);
    fs.unmount().unwrap();
    let proposes = |text: &str| text.contains("Optimize? no");
    assert!(proposes(&check(&device)), "the tree was as small as it can be before");
    let fs = mount(&device);
    let file = fs.resolve("/file").unwrap();
    let done = defragment(&file);
    assert!(done.nodes_freed > 10, "{done:?}");
    for at in (0..4096u64).filter(|at| at % 5 == 0) {
        let mut out = vec![0; 1024];
        file.read_at(&mut out, at * 2048).unwrap();
        assert!(out == bytes(5, at * 2048, 1024), "at {at}");
    }
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, before + done.nodes_freed);
    drop(file);
    fs.unmount().unwrap();
    let text = check(&device);
    assert!(!proposes(&text), "{text}");
}

#[test]
fn an_encrypted_file_is_moved_as_it_is() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "24M", &["-t", "ext4", "-b", "1024", "-O", "encrypt"]));
    let device = Arc::new(image::load(&path));
    let fs = mount(&device);
    drop(scatter(&fs, "/file", 40, 6));
    fs.unmount().unwrap();
    let path = dir.path().join("encrypted");
    image::save(&device, &path);
    // Its contents stand for a cipher text: nobody here can tell.
    let flag = "set_inode_field /file flags 0x80800";
    require!(debugfs(&path, true, flag));
    let device = Arc::new(image::load(&path));
    let fs = mount(&device);
    let done = defragment(&fs.resolve("/file").unwrap());
    assert!(done.pieces_before > 20 && done.pieces_after <= 2, "{done:?}");
    fs.unmount().unwrap();
    let path = dir.path().join("plain");
    image::save(&device, &path);
    require!(debugfs(&path, true, "set_inode_field /file flags 0x80000"));
    let fs = mount(&Arc::new(image::load(&path)));
    verify(&fs.resolve("/file").unwrap(), 40, 6);
    fs.unmount().unwrap();
}

/// Readers compare, writers write and truncate, maps are stored to, all while the file is moved again and
/// again; in the end each has what the others left it.
#[test]
fn readers_writers_and_maps_see_their_file_while_it_is_moved() {
    for layout in [&LAYOUTS[1], &LAYOUTS[2], &LAYOUTS[3]] {
        let device = require!(make("48M", layout.1));
        let fs = mount(&device);
        let unit = unit(&fs);
        let units = if layout.0 == "clusters" { 60 } else { 400 };
        let file = scatter(&fs, "/file", units, 2);
        let size = file.size();
        // Parts of their own: what nobody changes, what one writes, what one maps.
        let third = size / 3 / 4096 * 4096;
        let ends = AtomicBool::new(false);
        let still = file.read_all().unwrap();
        let rounds = workers("users", 5, |who| {
            let file = fs.resolve("/file").unwrap();
            let mut rounds = 0u64;
            match who {
                0 => {
                    let _ends = Ends(&ends);
                    // Pieces come apart again, so that there is something to move.
                    for round in 0..12u64 {
                        defragment(&file);
                        let at = place(round % 40 * 8, unit) + unit;
                        let range = at / unit * unit..at / unit * unit + unit;
                        if range.end < third {
                            // Holes and blocks of zeros read alike: only what is zero is punched.
                            let of = range.start as usize..range.end as usize;
                            if still[of].iter().all(|byte| *byte == 0) {
                                file.fallocate(Fallocate::PunchHole, range).unwrap();
                            }
                        }
                        rounds += 1;
                    }
                }
                1 | 2 => {
                    let mut out = vec![0; third as usize];
                    while !ends.load(Ordering::Acquire) {
                        if who == 1 {
                            file.read_at(&mut out, 0).unwrap();
                            assert!(out == still[..third as usize], "what nobody changes");
                        } else if let Ok(len) = file.read_direct_at(&mut out[..4096 * 4], 4096) {
                            assert!(out[..len] == still[4096..][..len], "past the cache");
                        }
                        rounds += 1;
                    }
                }
                3 => {
                    while !ends.load(Ordering::Acquire) || rounds < 3 {
                        for at in (third..2 * third).step_by(3000) {
                            let len = (2 * third - at).min(3000);
                            file.write_at(&bytes(rounds, at, len), at).unwrap();
                        }
                        if rounds.is_multiple_of(3) {
                            file.sync_data().unwrap();
                        }
                        let mut out = vec![0; third as usize];
                        file.read_at(&mut out, third).unwrap();
                        assert!(out == bytes(rounds, third, third), "what it wrote");
                        rounds += 1;
                    }
                }
                _ => {
                    let map = file.map_shared(2 * third..2 * third + 16384, true).unwrap();
                    while !ends.load(Ordering::Acquire) || rounds < 3 {
                        map.write(0, &bytes(rounds, 0, 16384)).unwrap();
                        map.sync(0..16384).unwrap();
                        let mut out = vec![0; 16384];
                        map.read(0, &mut out).unwrap();
                        assert!(out == bytes(rounds, 0, 16384), "what it stored");
                        rounds += 1;
                    }
                }
            }
            rounds
        })
        .unwrap();
        println!("{}: rounds {rounds:?}", layout.0);
        defragment(&file);
        drop(file);
        fs.unmount().unwrap();
        check(&device);
        let fs = mount(&device);
        let all = fs.read("/file").unwrap();
        assert!(all[..third as usize] == still[..third as usize]);
        let of_writer = bytes(rounds[3] - 1, third, third);
        assert!(all[third as usize..2 * third as usize] == of_writer);
        assert!(all[2 * third as usize..][..16384] == bytes(rounds[4] - 1, 0, 16384));
        assert!(all[2 * third as usize + 16384..] == still[2 * third as usize + 16384..]);
        fs.unmount().unwrap();
    }
}

/// K3 of `file/defrag.rs`: what a sync made durable is at the new place, so the move is durable, too.
#[test]
fn what_is_synced_after_a_move_is_found_at_its_new_place() {
    let device = require!(make("24M", &["-t", "ext4", "-b", "1024"]));
    let fs = mount(&device);
    let file = scatter(&fs, "/file", 200, 7);
    let step = || {
        let stop =
            |moved| if moved > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        assert!(file.defragment(&mut { stop }).unwrap().is_stopped);
    };
    let places = || -> Vec<(u64, u64)> {
        let runs = file.map(0..file.block_len()).map(Result::unwrap);
        let written = runs.filter_map(|run| match run.kind {
            MappingKind::Mapped(at) => Some((u64::from(run.file_start.0), run.len, at.0)),
            _ => None,
        });
        written.flat_map(|(file, len, at)| (0..len).map(move |n| (file + n, at + n))).collect()
    };
    // The first step changes the root; the next ones leaves only, and nothing of the inode itself.
    step();
    fs.sync().unwrap();
    let before = places();
    step();
    let moved: Vec<u64> = places()
        .into_iter()
        .zip(before)
        .filter(|(now, before)| now.1 != before.1)
        .map(|(now, _)| now.0)
        .collect();
    let at = moved[moved.len() / 2] * 1024;
    file.write_at(&bytes(8, at, 1024), at).unwrap();
    file.sync_data().unwrap();
    // All that was written has reached the device; what was not committed is gone.
    let after = Arc::new(device.snapshot());
    let found = mount(&after);
    let mut out = vec![0; 1024];
    found.resolve("/file").unwrap().read_at(&mut out, at).unwrap();
    assert!(out == bytes(8, at, 1024), "the old place has the old bytes");
    found.unmount().unwrap();
    check(&after);
    drop(file);
    fs.unmount().unwrap();
}

/// Each read and each write of a run fails once: the file is whole, at its old place or its new one, and nothing
/// stays pinned.
#[test]
fn a_device_that_fails_costs_neither_bytes_nor_room() {
    let device = require!(make("24M", &["-t", "ext4", "-b", "1024"]));
    let fs = mount(&device);
    drop(scatter(&fs, "/file", 120, 8));
    fs.unmount().unwrap();
    // Reading metadata may fail as well: that is noted in the superblock, as of any change.
    let run = |plan: FaultPlan, may_note: bool| {
        let inner = Arc::new(device.snapshot());
        let faulty = Arc::new(FaultDevice::new(Arc::clone(&inner), plan));
        faulty.set_enabled(false);
        let fs = mount_shared(Arc::clone(&faulty) as SharedDevice);
        let file = fs.resolve("/file").unwrap();
        let (first, before) = (faulty.seen(), file.pieces().unwrap());
        faulty.set_enabled(true);
        let done = file.defragment(&mut |_| ControlFlow::Continue(()));
        faulty.set_enabled(false);
        if !may_note && let Err(error) = &done {
            assert!(fs.stopped_because().is_none(), "{error}");
        }
        let (last, free) = (faulty.seen(), fs.statfs().unwrap());
        verify(&file, 120, 8);
        assert!(file.pieces().unwrap().count <= before.count + 1);
        assert_eq!(fs.statfs().unwrap().blocks_available, free.blocks_available);
        // Once more, on a device that works again.
        if done.is_err() {
            assert!(defragment(&file).pieces_after <= 2);
        }
        drop(file);
        fs.unmount().unwrap();
        let report = extant_check::check(&*inner, &CheckOptions::default()).unwrap();
        let is_noted = may_note && done.is_err();
        let noted = |problem: &Problem| is_noted && matches!(problem, Problem::State { .. });
        assert!(report.problems.iter().all(noted), "{:#?}", report.problems);
        let fs = mount(&inner);
        verify(&fs.resolve("/file").unwrap(), 120, 8);
        fs.unmount().unwrap();
        (first, last, done.is_err())
    };
    let (first, last, failed) = run(FaultPlan::default(), false);
    assert!(!failed && last[0] > first[0] && last[1] > first[1]);
    let mut failures = 0;
    let kinds = [(OperationKind::Read, 0, 9), (OperationKind::Write, 1, 1)];
    for (kind, slot, step) in kinds {
        for number in (first[slot]..last[slot]).step_by(step) {
            let exactly = vec![(kind, number, 1)];
            let plan = FaultPlan { exactly, ..FaultPlan::default() };
            failures += u64::from(run(plan, kind == OperationKind::Read).2);
        }
    }
    println!("{failures} runs ended with an error");
    assert!(failures > 5);
}
