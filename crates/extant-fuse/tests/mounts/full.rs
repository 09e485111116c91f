//! When there is no room: what a write said it has taken is there afterwards, but for very little, and writes say
//! themselves that there is none, although the kernel collects them.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{MemoryDevice, SharedDevice};
use extant_fuse::Settings;
use extant_sync::threads;
use extant_testkit::oracle::{LoopMount, e2fsck, mke2fs};
use extant_testkit::{require, skip};
use rustix::fs::{copy_file_range, statvfs};

const PIECE: usize = 64 << 10;
const MIB: u64 = 1 << 20;
const ENOSPC: i32 = 28;

/// An image that is empty but for its journal.
fn image(dir: &Path, size: &str) -> Result<Arc<MemoryDevice>, String> {
    let path = dir.join("image");
    let _ = fs::remove_file(&path);
    mke2fs(&path, size, &["-t", "ext4", "-m", "0", "-J", "size=4"])?;
    fs::create_dir_all(dir.join("mount")).unwrap();
    Ok(Arc::new(extant_testkit::image::load(&path)))
}

fn open(device: &Arc<MemoryDevice>) -> extant::Fs {
    let shared = Arc::clone(device) as SharedDevice;
    MountOptions::new().read_only(false).open_shared(shared).unwrap()
}

fn room_at(at: &Path) -> u64 {
    let totals = statvfs(at).unwrap();
    totals.f_bavail * totals.f_frsize
}

/// The piece `number`, told from all others.
fn piece(number: usize) -> Vec<u8> {
    (number as u64 + 1).to_le_bytes().repeat(PIECE / 8)
}

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

/// Which writes were taken, and how many said that there is no room.
struct Written {
    taken: Vec<usize>,
    refused: usize,
    synced: bool,
}

fn write_pieces(path: &Path, order: &[usize]) -> Written {
    let file = create(path);
    let mut written = Written { taken: Vec::new(), refused: 0, synced: false };
    for number in order {
        match file.write_all_at(&piece(*number), (number * PIECE) as u64) {
            Ok(()) => written.taken.push(*number),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
                written.refused += 1;
            }
        }
    }
    written.synced = file.sync_all().is_ok();
    written
}

/// How many of the pieces that were taken are not in the image.
fn lost(device: &Arc<MemoryDevice>, name: &str, taken: &[usize]) -> usize {
    let shared = Arc::clone(device) as SharedDevice;
    let fs = MountOptions::new().open_shared(shared).unwrap();
    let inode = fs.resolve(format!("/{name}")).unwrap();
    let is_there = |number: &&usize| {
        let mut bytes = vec![0; PIECE];
        let read = inode.read_at(&mut bytes, (**number * PIECE) as u64).unwrap();
        read == PIECE && bytes == piece(**number)
    };
    taken.len() - taken.iter().filter(is_there).count()
}

fn check(dir: &Path, device: &MemoryDevice) {
    let path = dir.join("check");
    let _ = fs::remove_file(&path);
    extant_testkit::image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

/// 1,172 pieces, 73 MB, in any order.
fn order() -> Vec<usize> {
    let mut order: Vec<usize> = (0..1172).collect();
    let mut random = Prng::new(7);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

fn writes_here_and_there(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let device = require!(image(dir.path(), "44M"));
    let at = dir.path().join("mount");
    let ((served, (written, room)), heard) = {
        let heard = Heard::new();
        let use_it = |at: &Path| {
            let room = room_at(at);
            (write_pieces(&at.join("file"), &order()), room)
        };
        (with_mount(open(&device), &at, settings, &heard, use_it), heard)
    };
    served.unwrap();
    assert_eq!(heard.bugs.load(Ordering::SeqCst), 0);
    let lost = lost(&device, "file", &written.taken);
    println!(
        "{} pieces into {} MiB: {} taken, {} refused, {lost} of the taken lost, synced: {}",
        order().len(),
        room / MIB,
        written.taken.len(),
        written.refused,
        written.synced
    );
    assert!(lost <= 16, "a MiB");
    assert!(lost == 0 || !written.synced, "what is lost is said");
    assert!(written.refused > 400 && written.taken.len() * PIECE > (room - 2 * MIB) as usize);
    check(dir.path(), &device);
}

/// The same on the kernel's ext4, to be seen beside it.
fn kernel_control() {
    let dir = extant_testkit::tempdir().unwrap();
    if image(dir.path(), "44M").is_err() {
        return;
    }
    match LoopMount::read_write(&dir.path().join("image")) {
        Ok(mount) => {
            let room = room_at(mount.path());
            let written = write_pieces(&mount.path().join("file"), &order());
            drop(mount);
            let device = Arc::new(extant_testkit::image::load(&dir.path().join("image")));
            let lost = lost(&device, "file", &written.taken);
            println!(
                "kernel's ext4, into {} MiB: {} taken, {} refused, {lost} of the taken lost",
                room / MIB,
                written.taken.len(),
                written.refused
            );
        }
        Err(reason) => println!("not compared with the kernel's ext4: {reason}"),
    }
}

fn one_long_file(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let device = require!(image(dir.path(), "64M"));
    let at = dir.path().join("mount");
    let heard = Heard::new();
    let (served, (taken, room)) = with_mount(open(&device), &at, settings, &heard, |at| {
        let room = room_at(at);
        let file = create(&at.join("file"));
        // As dd bs=1M: until an error, or 480 MiB.
        let large: Vec<u8> = (0..16).flat_map(piece).collect();
        let mut taken = 0;
        while taken < 480 && file.write_all_at(&large, taken * MIB).is_ok() {
            taken += 1;
        }
        (taken, room)
    });
    served.unwrap();
    println!("{taken} MiB taken into {} MiB", room / MIB);
    assert!(taken * MIB <= room + 3 * MIB && taken * MIB + 3 * MIB >= room);
    check(dir.path(), &device);
}

fn several_at_once_and_others_go_on(settings: &Settings) {
    const FILES: usize = 4;
    let dir = extant_testkit::tempdir().unwrap();
    let device = require!(image(dir.path(), "48M"));
    let at = dir.path().join("mount");
    let heard = Heard::new();
    let (served, taken) = with_mount(open(&device), &at, settings, &heard, |at| {
        let old: Vec<usize> = (0..64).collect();
        assert!(write_pieces(&at.join("old"), &old).synced);
        let taken: Vec<Vec<usize>> = threads::scope(|s| {
            let writers: Vec<_> = (0..FILES)
                .map(|index| {
                    let path = at.join(format!("file{index}"));
                    s.spawn("writer", move || {
                        let file = create(&path);
                        let full = |number: &usize| {
                            file.write_all_at(&piece(*number), (number * PIECE) as u64).is_ok()
                        };
                        (0..2000).take_while(full).collect::<Vec<_>>()
                    })
                    .unwrap()
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        })
        .unwrap();
        // What has its room already can be written over, as often as one likes.
        let file = OpenOptions::new().write(true).open(at.join("old")).unwrap();
        for number in 0..64 {
            file.write_all_at(&piece(number + 1000), (number * PIECE) as u64).unwrap();
        }
        file.sync_all().unwrap();
        let first = fs::read(at.join("old")).unwrap();
        assert_eq!(first[..PIECE], piece(1000)[..]);
        taken
    });
    served.unwrap();
    let lost: Vec<usize> =
        (0..FILES).map(|index| lost(&device, &format!("file{index}"), &taken[index])).collect();
    println!("taken {:?}, lost {lost:?}", taken.iter().map(Vec::len).collect::<Vec<_>>());
    assert!(lost.iter().sum::<usize>() <= 8 * FILES, "{lost:?}: half a MiB each");
    assert!(taken.iter().all(|taken| taken.len() < 2000));
    check(dir.path(), &device);
}

fn what_lost_something_is_not_copied(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let device = require!(image(dir.path(), "32M"));
    let at = dir.path().join("mount");
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        let file = create(&at.join("file"));
        let view = File::open(at.join("file")).unwrap();
        let mut number = 0;
        while file.write_all_at(&piece(number), (number * PIECE) as u64).is_ok() {
            number += 1;
            assert!(number < 2000);
        }
        // Room for a copy of a part, and still it is not whole.
        let to = create(&at.join("copy"));
        for _ in 0..3 {
            let copied = copy_file_range(&view, Some(&mut 0), &to, Some(&mut 0), PIECE);
            assert_eq!(copied.map_err(|errno| errno.raw_os_error()), Err(ENOSPC));
        }
        // Who says that what is there is what he wants gets it copied.
        file.set_len(0).unwrap();
        file.write_all_at(&piece(5), 0).unwrap();
        assert!(file.sync_all().is_err(), "what was lost is said");
        file.sync_all().unwrap();
        let copied = copy_file_range(&view, Some(&mut 0), &to, Some(&mut 0), PIECE);
        assert_eq!(copied, Ok(PIECE));
        assert_eq!(fs::read(at.join("copy")).unwrap(), piece(5));
    });
    served.unwrap();
    check(dir.path(), &device);
}

/// The last inode goes from one file to the next, as fast as a program can: on ext4 of the kernel no
/// call of these fails.
fn one_inode_for_many_files(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4", "-m", "0", "-J", "size=4", "-N", "128"]));
    let device = Arc::new(extant_testkit::image::load(&path));
    let at = dir.path().join("mount");
    fs::create_dir_all(&at).unwrap();
    let (served, ()) = with_mount(open(&device), &at, settings, &Heard::new(), |at| {
        let full = (0..1000).find_map(|number| File::create_new(at.join(number.to_string())).err());
        assert_eq!(full.and_then(|error| error.raw_os_error()), Some(ENOSPC));
        fs::remove_file(at.join("0")).unwrap();
        for round in 0..1500 {
            let mut file = File::create_new(at.join("next"))
                .unwrap_or_else(|error| panic!("{error}, in round {round}"));
            file.write_all(&[1; 5000]).unwrap();
            drop(file);
            fs::remove_file(at.join("next")).unwrap();
        }
        // What a program has open takes its inode until it closes it.
        let open = File::create_new(at.join("next")).unwrap();
        fs::remove_file(at.join("next")).unwrap();
        let refused = File::create_new(at.join("another")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(ENOSPC));
        drop(open);
        File::create_new(at.join("another")).unwrap();
    });
    served.unwrap();
    check(dir.path(), &device);
}

fn on_each_transport(run: fn(&Settings)) {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    run(&Settings::default());
    match common::over_rings() {
        Ok(settings) => run(&settings),
        Err(obstacle) => println!("not over rings: {obstacle}"),
    }
}

#[test]
fn writes_here_and_there_say_themselves_that_there_is_no_room() {
    on_each_transport(writes_here_and_there);
    if obstacle().is_none() {
        kernel_control();
    }
}

#[test]
fn a_long_file_ends_where_the_room_does() {
    on_each_transport(one_long_file);
}

#[test]
fn several_writers_lose_little_and_who_has_room_already_goes_on() {
    on_each_transport(several_at_once_and_others_go_on);
}

#[test]
fn what_a_removed_file_took_is_there_when_the_call_returns() {
    on_each_transport(one_inode_for_many_files);
}

#[test]
fn a_file_that_has_lost_something_is_not_copied() {
    on_each_transport(what_lost_something_is_not_copied);
}
