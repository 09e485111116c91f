//! Partitions and block devices: only the part asked for is touched.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support;
use support::kernel::Loop;
use support::{Place, text, tool};

/// A disk image of 200 MiB with a table; every byte of the partitions is 0xa5.
fn disk(place: &Place, name: &str, table: &str, partitions: &[(u64, u64)]) -> bool {
    let file = std::fs::File::create(place.path(name)).unwrap();
    file.set_len(200 << 20).unwrap();
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.args(["-q", name]).current_dir(place.0.path()).stdin(Stdio::piped());
    let Ok(mut child) = sfdisk.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").spawn() else {
        println!("skipped: sfdisk is not installed");
        return false;
    };
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), table.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    for (start, sectors) in partitions {
        file.write_all_at(&vec![0xa5; (sectors * 512) as usize], start * 512).unwrap();
    }
    true
}

const GPT: &str = "label: gpt\nstart=2048,size=40960\nstart=43008,size=122880\n\
                   start=165888,size=131072\n";
const MBR: &str = "label: dos\nstart=2048,size=40960,type=83\nstart=43008,size=204800,type=5\n\
                   start=45056,size=81920,type=83\nstart=131072,size=102400,type=83\n";

#[test]
fn a_partition_is_filled_and_nothing_else_is_touched() {
    for (table, number, start, sectors) in
        [(GPT, "2", 43008u64, 122_880u64), (MBR, "5", 45056, 81920), (MBR, "6", 131_072, 102_400)]
    {
        let place = Place::with_image();
        let others = [(2048, 40960), (45056, 81920), (131_072, 102_400)];
        let others = if table == GPT { &others[..1] } else { &others[..] };
        if !disk(&place, "disk", table, others) {
            return;
        }
        let before = std::fs::read(place.path("disk")).unwrap();
        place.run(&["mkfs", "disk", "--partition", number]).succeeds();
        let build = ["build", "disk", "--from", "source", "--partition", number];
        place.run(&build).ends_with(7).complains(&["ext4"]).hints("--force");
        place.run(&[&build[..], &["--force"]].concat()).succeeds();
        let after = std::fs::read(place.path("disk")).unwrap();
        let (first, end) = ((start * 512) as usize, ((start + sectors) * 512) as usize);
        assert!(before[..first] == after[..first], "before partition {number}");
        assert!(before[end..] == after[end..], "after partition {number}");
        let ls = place.run(&["ls", "--partition", number, "disk:/dir"]).succeeds();
        assert_eq!(ls.out(), "again\ndeep\nlink\n");
        std::fs::write(place.path("part"), &after[first..end]).unwrap();
        let Some(check) = tool("e2fsck", &["-fn", "part"], place.0.path()) else { return };
        assert!(check.status.success(), "{}", text(&check));
        let info = place.run(&["info", "--json", "part"]).succeeds().json();
        assert_eq!(info["size_bytes"], sectors * 512);
    }
}

#[test]
fn what_is_wrong_with_a_partition_is_said() {
    let place = Place::with_image();
    if !disk(&place, "disk", GPT, &[]) {
        return;
    }
    let before = std::fs::read(place.path("disk")).unwrap();
    let build = |rest: &[&str]| place.run(&[&["build", "disk", "--from", "source"], rest].concat());
    build(&[]).ends_with(7).complains(&["GPT"]);
    build(&["--partition", "9"]).ends_with(9).complains(&["partition 9", "60 MiB"]);
    build(&["--partition", "1", "--size", "30M"]).ends_with(6).complains(&["partition 1"]);
    build(&["--offset", "500M"]).ends_with(2).complains(&["524288000", "209715200"]);
    place.run(&["mkfs", "none", "--partition", "1"]).ends_with(8).complains(&["none"]);
    let plan = build(&["--partition", "2", "--plan", "--json"]).succeeds().json();
    assert_eq!(plan["size_bytes"], 60 << 20);
    place.run(&["ls", "disk"]).ends_with(4).hints("--partition");
    assert!(std::fs::read(place.path("disk")).unwrap() == before);
    // Anybody's data in a partition is refused, as on a whole device.
    let file = std::fs::File::options().write(true).open(place.path("disk")).unwrap();
    file.write_all_at(b"LUKS\xba\xbe", 43008 * 512).unwrap();
    build(&["--partition", "2"]).ends_with(7).complains(&["LUKS"]);
    build(&["--offset", "22020096"]).ends_with(7).complains(&["LUKS"]);
    build(&["--partition", "2", "--force"]).succeeds();
}

/// Blocks that hold what was on the device before: of inode tables, and of the journal.
fn stale(device: &str) -> (usize, bool) {
    let dump = tool("dumpe2fs", &[device], Path::new("/")).unwrap();
    let file = std::fs::File::open(device).unwrap();
    let is_stale = |block: u64, blocks: u64| {
        let mut bytes = vec![0; (blocks * 4096) as usize];
        file.read_exact_at(&mut bytes, block * 4096).unwrap();
        bytes.windows(4).any(|word| word == [0xa5; 4])
    };
    let tables = text(&dump);
    let tables = tables.lines().filter_map(|line| {
        let range = line.trim().strip_prefix("Inode table at ")?;
        let (first, last) = range.split(' ').next()?.split_once('-')?;
        Some((first.parse::<u64>().unwrap(), last.parse::<u64>().unwrap()))
    });
    let tables = tables.filter(|(first, last)| is_stale(*first, last - first + 1)).count();
    let journal = tool("debugfs", &["-R", "bmap <8> 100", device], Path::new("/")).unwrap();
    (tables, is_stale(text(&journal).trim().parse().unwrap(), 1))
}

#[test]
fn a_used_device_is_wiped_as_far_as_asked() {
    let place = Place::new();
    let backing = place.path("backing");
    std::fs::write(&backing, vec![0xa5; 300 << 20]).unwrap();
    let Some(device) = Loop::over(&backing) else { return };
    if tool("dumpe2fs", &["-V"], Path::new("/")).is_none() {
        return;
    }
    for (option, tables, journal) in [
        ("lazy_itable_init=0", 0, false),
        ("lazy_itable_init=1", 3, false),
        ("lazy_journal_init=1", 0, true),
        ("assume_storage_prezeroed=1", 3, true),
        ("discard", 0, false),
        ("nodiscard", 0, false),
    ] {
        let file = std::fs::File::options().write(true).open(&device.0).unwrap();
        for mib in 0..300 {
            file.write_all_at(&vec![0xa5; 1 << 20], mib << 20).unwrap();
        }
        drop(file);
        place.run(&["mkfs", "-q", "-b", "4096", "-E", option, &device.0]).succeeds();
        let check = tool("e2fsck", &["-fn", &device.0], Path::new("/")).unwrap();
        assert!(check.status.success(), "{option}: {}", text(&check));
        let (stale_tables, stale_journal) = stale(&device.0);
        // The first group's table is partly written by extant itself.
        assert!(
            stale_tables.abs_diff(tables) <= usize::from(tables > 0),
            "{option}: {stale_tables}"
        );
        assert_eq!(stale_journal, journal, "{option}");
    }
    place.run(&["mkfs", &device.0]).ends_with(7).complains(&["ext4"]);
    place.run(&["mkfs", "-F", &device.0, "400M"]).ends_with(6).complains(&["loop"]);
}

#[test]
fn an_unclean_image_shows_what_the_journal_holds_and_stays_as_it_is() {
    let place = Place::new();
    place.run(&["mkfs", "-q", "a.img", "64M"]).succeeds();
    let Some(device) = Loop::over(&place.path("a.img")) else { return };
    let mount = place.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount").arg(&device.0).arg(&mount).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: cannot mount here");
        return;
    }
    // In use by the kernel: refused even with --force.
    let busy = place.run(&["mkfs", "-F", &device.0]);
    let file = std::fs::File::create(mount.join("late")).unwrap();
    std::io::Write::write_all(&mut &file, b"late\n").unwrap();
    file.sync_all().unwrap();
    drop(file);
    std::fs::copy(place.path("a.img"), place.path("dirty.img")).unwrap();
    assert!(Command::new("umount").arg(&mount).status().unwrap().success());
    busy.ends_with(7).complains(&["mounted"]);
    let before = std::fs::read(place.path("dirty.img")).unwrap();
    let info = place.run(&["info", "--json", "dirty.img"]).succeeds().json();
    assert!(info["replayed"]["transactions"].as_u64().unwrap() > 0);
    let checked = place.run(&["check", "dirty.img"]).succeeds().out();
    assert!(checked.contains("of its journal"), "{checked}");
    assert_eq!(place.run(&["cat", "dirty.img:/late"]).succeeds().out(), "late\n");
    place.run(&["cat", "--no-replay", "dirty.img:/late"]).ends_with(9);
    place.run(&["extract", "dirty.img:/late", "out"]).succeeds();
    assert!(std::fs::read(place.path("dirty.img")).unwrap() == before);
}

#[test]
fn a_backup_superblock_stands_in_for_a_destroyed_one() {
    let place = Place::with_image();
    for (block_bytes, backup) in [("4096", "32768"), ("1024", "8193")] {
        let build = ["build", "b.img", "-F", "--from", "source", "--size", "300M"];
        place.run(&[&build[..], &["-b", block_bytes]].concat()).succeeds();
        let file = std::fs::File::options().write(true).open(place.path("b.img")).unwrap();
        file.write_all_at(&[0; 4096], 0).unwrap();
        place.run(&["ls", "b.img"]).ends_with(4);
        let cat = ["cat", "b.img:/file", "-b", backup];
        assert_eq!(place.run(&cat).succeeds().out(), "hello\n");
        let sized = [&cat[..], &["-B", block_bytes]].concat();
        assert_eq!(place.run(&sized).succeeds().out(), "hello\n");
        place.run(&[&cat[..], &["-B", "2048"]].concat()).ends_with(4);
        place.run(&[&cat[..], &["-B", "1000"]].concat()).ends_with(2);
        place.run(&["ls", "b.img", "-b", "99999999"]).ends_with(4);
    }
}
