//! A file system without room: who may have the last blocks, what fits in part, and what must work all the
//! same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::{Fallocate, Fs, FsError, Inode, MountOptions, NewInode, QuotaKind, QuotaLimits};
use extant_block::{FaultDevice, FaultPlan, MemoryDevice, SharedDevice};
use extant_check::CheckOptions;
use extant_sync::{Clock, FixedClock, SystemClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Ends, image, require, tempdir};

fn make(size: &str, arguments: &[&str]) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, arguments)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: &Arc<MemoryDevice>) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(Arc::clone(device) as SharedDevice).unwrap()
}

/// Ends the mount; both checkers find nothing.
fn end(fs: Fs, device: &Arc<MemoryDevice>) {
    fs.unmount().unwrap();
    let report = extant_check::check(&**device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

fn create(fs: &Fs, path: &str) -> Inode {
    fs.create(path, &NewInode::root(0o644)).unwrap()
}

fn is_no_space(error: &FsError) -> bool {
    matches!(error, FsError::NoSpace { .. })
}

/// Writes to the end of a file until nothing more is taken.
fn fill(inode: &Inode, mut at: u64) -> u64 {
    let bytes = vec![0x5a; 1 << 20];
    loop {
        match inode.write_at(&bytes, at) {
            Ok(written) => at += written as u64,
            Err(error) => {
                assert!(is_no_space(&error), "{error}");
                return at;
            }
        }
    }
}

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "4096", "-m", "5"],
    &["-t", "ext4", "-b", "1024", "-m", "5"],
    &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-m", "5"],
    &["-t", "ext3", "-b", "1024", "-m", "5"],
];

#[test]
fn an_ordinary_user_leaves_the_reserve_to_root_and_df_says_so() {
    for layout in LAYOUTS {
        let device = require!(make("32M", layout));
        let fs = mount(&device);
        let block = u64::from(fs.statfs().unwrap().block_bytes);
        let reserved = fs.superblock().reserved_blocks_count * block;
        let (mine, roots) = (create(&fs, "/mine"), create(&fs, "/roots"));
        {
            let _ordinary = fs.take_space_for(false);
            let available = fs.statfs().unwrap().blocks_available * block;
            let end = fill(&mine, 0);
            assert!(end >= available, "{layout:?}: {available} available, {end} written");
            assert_eq!((fs.statfs().unwrap().blocks_available, fs.room(false)), (0, 0));
            for mode in [Fallocate::Allocate { keep_size: true }, Fallocate::WriteZeroes] {
                let refused = roots.fallocate(mode, 0..block).unwrap_err();
                assert_eq!(refused.errno(), if layout[1] == "ext3" { 95 } else { 28 }, "{refused}");
            }
            assert!(is_no_space(
                &mine
                    .write_direct_at(&vec![1; block as usize], end.next_multiple_of(block))
                    .unwrap_err()
            ));
            mine.sync().unwrap();
        }
        let before = fs.statfs().unwrap();
        assert!(before.blocks_free * block >= reserved, "{layout:?}");
        assert!(fs.room(true) >= reserved / 2, "{layout:?}");
        let end_of_roots = fill(&roots, 0);
        assert!(end_of_roots >= reserved / 2, "{layout:?}: {end_of_roots} of {reserved}");
        roots.sync().unwrap();
        drop((mine, roots));
        end(fs, &device);
    }
}

#[test]
fn who_finds_no_space_takes_no_quota_from_neighbours() {
    let device = require!(make("32M", &["-t", "ext4", "-b", "4096", "-m", "10", "-O", "quota"]));
    let fs = mount(&device);
    let user = NewInode { uid: 1000, gid: 100, permissions: 0o644 };
    let (refused, served) = (fs.create("/a", &user).unwrap(), fs.create("/b", &user).unwrap());
    {
        let _ordinary = fs.take_space_for(false);
        let filler = create(&fs, "/filler");
        fill(&filler, 0);
        filler.sync().unwrap();
    }
    let used = fs.quota(QuotaKind::User, 1000).unwrap().unwrap().space_bytes;
    let limits = QuotaLimits { space_hard_kib: used / 1024 + 64, ..QuotaLimits::default() };
    fs.set_quota_limits(QuotaKind::User, 1000, &limits).unwrap();
    let stop = AtomicBool::new(false);
    threads::scope(|s| {
        let other = s.spawn("refused", || {
            let _ordinary = fs.take_space_for(false);
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                // All that the quota leaves, of which there is nothing.
                refused.write_at(&[1; 64 << 10], 0).unwrap_err();
                count += 1;
            }
            count
        });
        let ends = Ends(&stop);
        for step in 0..200_000 {
            let written = served.write_at(&[2; 4096], 0);
            assert!(matches!(written, Ok(4096)), "step {step}: {written:?}");
            served.truncate(0).unwrap();
        }
        drop(ends);
        assert!(other.unwrap().join().unwrap() > 0);
    })
    .unwrap();
    drop((refused, served));
    end(fs, &device);
}

#[test]
fn whoever_the_superblock_names_may_use_the_reserve() {
    let device = require!(make("16M", &["-t", "ext4"]));
    let fs = mount(&device);
    fs.tune(&extant::Tune::new().reserve_owner(7, 70_000)).unwrap();
    fs.unmount().unwrap();
    let fs = mount(&device);
    let of = |uid, gid, groups: &[u32]| {
        fs.may_use_reserve(&extant::Credentials::new(uid, gid).with_groups(groups))
    };
    assert!(of(0, 5, &[]) && of(7, 5, &[]) && of(8, 70_000, &[]) && of(8, 5, &[6, 70_000]));
    assert!(!of(8, 5, &[6]));
}

#[test]
fn punches_in_a_full_file_system_succeed() {
    for layout in &LAYOUTS[..2] {
        let device = require!(make("32M", layout));
        let fs = mount(&device);
        let file = create(&fs, "/file");
        fill(&file, 0);
        // To the last block, as far as data goes.
        file.sync().unwrap();
        for at in 0..500u64 {
            let range = at * 32_768 + 8192..at * 32_768 + 16_384;
            let punched = file.fallocate(Fallocate::PunchHole, range);
            punched.unwrap_or_else(|error| panic!("{layout:?}: punch {at}: {error}"));
            let range = at * 32_768 + 20_480..at * 32_768 + 24_576;
            let zeroed = file.fallocate(Fallocate::ZeroRange { keep_size: true }, range);
            zeroed.unwrap_or_else(|error| panic!("{layout:?}: zero range {at}: {error}"));
        }
        file.sync().unwrap();
        let mut bytes = [1; 8192];
        file.read_at(&mut bytes, 8192).unwrap();
        assert_eq!(bytes, [0; 8192]);
        drop(file);
        end(fs, &device);
    }
}

#[test]
fn what_fits_in_part_is_written_in_part_and_what_was_taken_is_stored() {
    type Write = fn(&Fs, &Inode, &[u8]) -> Result<u64, FsError>;
    let ways: [(&str, Write); 4] = [
        ("cached", |_, file, bytes| file.write_at(bytes, 0).map(|done| done as u64)),
        ("direct", |_, file, bytes| file.write_direct_at(bytes, 0).map(|done| done as u64)),
        ("vectored", |_, file, bytes| {
            let (a, b) = bytes.split_at(100_000);
            let parts = [std::io::IoSlice::new(a), std::io::IoSlice::new(b)];
            file.write_vectored_at(&parts, 0).map(|done| done as u64)
        }),
        ("copied", |fs, file, bytes| {
            fs.resolve("/source")?.copy_range(0, file, 0, bytes.len() as u64)
        }),
    ];
    for layout in LAYOUTS {
        for (way, write) in ways {
            let what = format!("{way}, {layout:?}");
            let device = require!(make("32M", layout));
            let fs = mount(&device);
            let bytes: Vec<u8> = (0..4u32 << 20).map(|at| (at / 512 % 250) as u8 + 1).collect();
            fs.write("/source", &bytes).unwrap();
            let (ballast, file) = (create(&fs, "/ballast"), create(&fs, "/file"));
            fs.sync().unwrap();
            // Room for about 1.5 MiB.
            let room = fs.room(true);
            ballast
                .fallocate(Fallocate::Allocate { keep_size: false }, 0..room - (3 << 19))
                .or_else(|error| {
                    assert_eq!(error.errno(), 95, "{what}");
                    let bytes = vec![1; (room - (3 << 19)) as usize];
                    ballast.write_at(&bytes, 0).map(drop)
                })
                .unwrap();
            fs.sync().unwrap();
            let room = fs.room(true);
            assert!((1 << 20..2 << 20).contains(&room), "{what}: {room}");
            let done = write(&fs, &file, &bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(
                done >= room - (64 << 10) && done < bytes.len() as u64,
                "{what}: {done} of {room}"
            );
            assert_eq!(file.metadata().size, done, "{what}");
            let more = file.write_at(&[1; 65_536], done.next_multiple_of(1 << 20));
            assert!(is_no_space(&more.unwrap_err()), "{what}");
            // All that was taken can be stored.
            file.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop((ballast, file));
            let after = MountOptions::new().open(device.snapshot()).unwrap();
            assert!(after.read("/file").unwrap() == bytes[..done as usize], "{what}");
            end(fs, &device);
        }
    }
}

#[test]
fn an_append_into_a_cluster_of_the_file_needs_no_room() {
    let layout = ["-t", "ext4", "-O", "bigalloc,quota", "-C", "65536", "-b", "4096"];
    let device = require!(make("48M", &layout));
    let fs = mount(&device);
    let files: Vec<Inode> = (0..4).map(|at| create(&fs, &format!("/f{at}"))).collect();
    for file in &files {
        file.write_at(&[7; 5000], 0).unwrap();
    }
    fs.sync().unwrap();
    let ballast = create(&fs, "/ballast");
    {
        let _ordinary = fs.take_space_for(false);
        fill(&ballast, 0);
        ballast.sync().unwrap();
        assert_eq!(fs.room(false), 0);
        // To the end of their clusters, by each way, and then no further.
        assert_eq!(files[0].write_at(&[8; 60_536], 5000).unwrap(), 60_536);
        assert_eq!(files[1].write_direct_at(&[8; 57_344], 8192).unwrap(), 57_344);
        for at in 2..16 {
            assert_eq!(files[2].write_at(&[8; 4096], at * 4096).unwrap(), 4096);
        }
        files[3].fallocate(Fallocate::Allocate { keep_size: false }, 0..65_536).unwrap();
        for file in &files {
            assert!(is_no_space(&file.write_at(&[9; 4096], 65_536).unwrap_err()));
            file.sync().unwrap();
        }
    }
    assert_eq!(fs.room(false), 0);
    drop((files, ballast));
    let after = MountOptions::new().open(device.snapshot()).unwrap();
    assert_eq!(after.read("/f0").unwrap()[5000..], [8; 60_536]);
    assert_eq!(after.read("/f1").unwrap()[8192..], [8; 57_344]);
    end(fs, &device);
}

#[test]
fn what_was_removed_makes_room_for_who_finds_none() {
    let device = require!(make("32M", LAYOUTS[0]));
    let fs = mount(&device);
    let file = create(&fs, "/file");
    let size = fill(&file, 0);
    file.sync().unwrap();
    let free = |fs: &Fs| fs.statfs().unwrap().blocks_free;
    let before = free(&fs);
    // The last handle goes after the name: nobody has deleted the contents yet.
    fs.remove_file("/file").unwrap();
    drop(file);
    assert_eq!(free(&fs), before);
    fs.finish_removals();
    assert!(free(&fs) >= before + size / 4096, "shows at once, before the commit");
    let reserved = fs.superblock().reserved_blocks_count;
    assert!(fs.statfs().unwrap().blocks_available + reserved >= size / 4096);
    fs.write("/next", vec![1; size as usize / 2]).unwrap();
    // And without being asked for.
    let file = create(&fs, "/again");
    fill(&file, 0);
    fs.remove_file("/again").unwrap();
    drop(file);
    fs.write("/last", vec![2; size as usize / 3]).unwrap();
    end(fs, &device);
}

/// The largest file that other file systems can hold has 122,880 groups.
#[test]
fn the_first_allocation_of_15_tib_reads_a_few_blocks() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    let options = ["-t", "ext4", "-N", "131072", "-J", "size=8", "-O", "^resize_inode"];
    require!(mke2fs(
        &path,
        "15T",
        &[&options[..], &["-E", "lazy_itable_init=1,nodiscard"]].concat()
    ));
    let file = extant::FileDevice::open_read_write(&path).unwrap();
    let device = Arc::new(FaultDevice::new(Arc::new(file), FaultPlan::default()));
    let options = MountOptions::new().read_only(false).background(false).seed(1);
    let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    assert!(fs.superblock().group_count > 100_000);
    let mounted = device.seen();
    let start = SystemClock.monotonic();
    let inode = create(&fs, "/file");
    inode.fallocate(Fallocate::Allocate { keep_size: false }, 0..1 << 20).unwrap();
    let took = SystemClock.monotonic().saturating_sub(start);
    let found = fs.writer_stats().unwrap().allocator;
    let reads = device.seen()[0] - mounted[0];
    println!("mounted with {} reads; the first allocation: {reads}, {took:?}", mounted[0]);
    assert!(reads <= 64, "{reads} reads");
    assert!(found.groups_visited <= 4 && found.groups_searched <= 2, "{found:?}");
    drop(inode);
    fs.unmount().unwrap();
}
