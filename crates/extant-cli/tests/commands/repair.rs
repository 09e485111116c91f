//! `extant repair` and `extant undo`: what they tell, change and put back.

use crate::support;
use extant_format::mmp::{Mmp, MmpState};
use extant_format::superblock::Superblock;
use support::{EXTANT, Place, Ran, tool};

fn write(place: &Place, name: &str, contents: &str) {
    let path = place.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, contents).unwrap();
}

/// An image with wrong counts, a cleared entry and an inode that nothing leads to; `None`: no e2fsprogs.
fn damaged(place: &Place) -> Option<()> {
    write(place, "source/kept", "kept");
    write(place, "source/lost", "lost");
    place.run(&["build", "a.img", "--from", "source"]).succeeds();
    let commands = "unlink lost\nset_bg 0 free_blocks_count 3\nset_bg 0 checksum calc\n";
    write(place, "commands", commands);
    let ran = tool("debugfs", &["-w", "-f", "commands", "a.img"], place.0.path())?;
    assert!(ran.status.success());
    Some(())
}

/// The limit of the size of files stands for a full disk.
#[test]
fn of_an_undo_file_that_cannot_be_written_nothing_is_left_and_the_image_stays() {
    let place = Place::new();
    let Some(()) = damaged(&place) else { return };
    let before = std::fs::read(place.path("a.img")).unwrap();
    let repair = "repair -y --undo u a.img";
    for words in [repair, "tune --undo u --inode-size 512 b.img"] {
        place.run(&["mkfs", "--force", "b.img", "8M"]).succeeds();
        let script = format!("trap '' XFSZ; ulimit -f 1; exec \"$0\" {words}");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script, EXTANT]).current_dir(place.0.path());
        let ran = Ran { args: words.to_owned(), output: shell.output().unwrap() };
        ran.ends_with(8).complains(&["u cannot be written"]);
        assert!(!place.path("u").exists(), "{words}");
        assert!(std::fs::read(place.path("a.img")).unwrap() == before, "{words}");
    }
    place.run(&repair.split(' ').collect::<Vec<_>>()).ends_with(1);
    place.run(&["undo", "u", "a.img"]).succeeds();
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
}

#[test]
fn what_is_wrong_is_set_right_and_can_be_put_back() {
    let place = Place::new();
    let Some(()) = damaged(&place) else { return };
    let before = std::fs::read(place.path("a.img")).unwrap();

    let told = place.run(&["repair", "-n", "a.img"]).ends_with(4).out();
    assert!(told.contains("would be done") && told.contains("nothing was changed"), "{told}");
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "-n changes nothing");

    // A file without a name has to be decided about.
    let told = place.run(&["repair", "-p", "a.img"]).ends_with(4).out();
    assert!(told.contains("none was set right"), "{told}");
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "-p changes all or nothing");

    let json = place.run(&["repair", "-y", "--json", "--undo", "u", "a.img"]).ends_with(1).json();
    let codes: Vec<&str> = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["code"].as_str().unwrap())
        .collect();
    assert!(codes.contains(&"unreachable") && codes.contains(&"group-count"), "{codes:?}");
    assert_eq!((json["clean"].as_bool(), json["left"].as_u64()), (Some(true), Some(0)));
    place.run(&["check", "a.img"]).succeeds();
    let fsck = tool("e2fsck", &["-fn", "a.img"], place.0.path()).unwrap();
    assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stdout));
    let names = place.run(&["ls", "a.img:/lost+found"]).succeeds().out();
    let name = names.lines().next().unwrap();
    let found = place.run(&["cat", &format!("a.img:/lost+found/{name}")]).succeeds().out();
    assert_eq!(found, "lost");

    assert_eq!(place.run(&["repair", "-y", "a.img"]).succeeds().out(), "a.img: clean\n");
    // Whoever relies on a way back hears that there is none.
    let ran = place.run(&["repair", "-y", "--undo", "v", "a.img"]).succeeds();
    ran.complains(&["note: nothing was written", "v was not made"]);
    assert!(!place.path("v").exists());

    // What was written since is not destroyed, unless somebody insists.
    std::fs::copy(place.path("a.img"), place.path("later.img")).unwrap();
    place.run(&["mkdir", "later.img:/later"]).succeeds();
    let later = std::fs::read(place.path("later.img")).unwrap();
    place
        .run(&["undo", "u", "later.img"])
        .ends_with(7)
        .complains(&["was changed since", "nothing was put back"])
        .hints("--force");
    assert!(std::fs::read(place.path("later.img")).unwrap() == later);
    place.run(&["undo", "--force", "u", "later.img"]).succeeds();

    // An undo file is never overwritten, and belongs to one device.
    place.run(&["undo", "u", "a.img"]).succeeds();
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "all is as it was");
    place.run(&["undo", "commands", "a.img"]).ends_with(7).complains(&["no undo file"]);
}

#[test]
fn nobody_is_asked_where_nobody_is() {
    let place = Place::new();
    write(&place, "source/file", "");
    place.run(&["build", "a.img", "--from", "source"]).succeeds();
    place.run(&["repair", "a.img"]).ends_with(2).complains(&["nobody"]).hints("-y");
    place.run(&["repair", "-y", "a.img"]).succeeds();
    // One code for one cause: as of everybody who looks at it.
    for words in [&["repair", "-y"][..], &["repair", "-n"], &["ls"], &["check"], &["resize"]] {
        let size = (words == ["resize"]).then_some("1M");
        let words: Vec<&str> = words.iter().copied().chain(["none"]).chain(size).collect();
        std::fs::write(place.path("none"), "KDMV".repeat(1 << 18)).unwrap();
        place.run(&words).ends_with(4).complains(&["none: "]);
    }
    place.run(&["repair", "-y", "none"]).ends_with(4).complains(&["VMDK"]);
    place.run(&["repair", "-y", "a.img:/file"]).ends_with(2);
}

#[test]
fn an_image_that_was_cut_off_is_said_to_be_by_everybody() {
    let place = Place::new();
    write(&place, "source/kept", "kept");
    place.run(&["build", "a.img", "--from", "source"]).succeeds();
    let whole = std::fs::metadata(place.path("a.img")).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    file.set_len(3 << 20).unwrap();
    let before = std::fs::read(place.path("a.img")).unwrap();
    let said =
        [format!("has {whole} bytes, its device 3145728"), format!("truncate -s {whole} a.img")];

    let told = place.run(&["check", "a.img"]).ends_with(4).out();
    assert!(told.contains(&said[0]) && told.contains(&said[1]), "{told}");
    assert!(!told.contains("extant repair sets"), "{told}");
    for words in [&["repair", "-y", "a.img"][..], &["repair", "-n", "a.img"]] {
        place.run(words).ends_with(4).complains(&[&said[0]]).hints(&said[1]);
        assert_eq!(place.run(words).out(), "", "nobody says that it is clean");
    }
    place.run(&["resize", "a.img", "1G"]).ends_with(4).complains(&[&said[0]]).hints(&said[1]);
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "nothing was changed");

    // As the hint says: what is missing is given up.
    file.set_len(whole).unwrap();
    place.run(&["repair", "-y", "a.img"]);
    place.run(&["check", "a.img"]).succeeds();
    // Its contents were behind the end.
    assert_eq!(place.run(&["cat", "a.img:/kept"]).succeeds().out(), "\0\0\0\0");
}

#[test]
fn a_number_of_blocks_that_a_backup_denies_is_not_believed() {
    let place = Place::new();
    let make = ["-q", "-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit", "a.img", "40M"];
    let Some(made) = tool("mke2fs", &make, place.0.path()) else { return };
    assert!(made.status.success());
    let ran = tool("debugfs", &["-w", "-R", "ssv blocks_count 4000000", "a.img"], place.0.path());
    assert!(ran.unwrap().status.success());
    let told = place.run(&["repair", "-y", "a.img"]).ends_with(1).out();
    assert!(told.contains("takes its place"), "{told}");
    let fsck = tool("e2fsck", &["-fn", "a.img"], place.0.path()).unwrap();
    assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stdout));
    place.run(&["check", "a.img"]).succeeds();
}

#[test]
fn what_a_table_that_is_not_found_costs_is_said_before_it_is_written() {
    let place = Place::new();
    place.run(&["mkfs", "-b", "4096", "a.img", "32M"]).succeeds();
    let mut bytes = std::fs::read(place.path("a.img")).unwrap();
    let sb = Superblock::decode(&bytes[1024..2048]).unwrap();
    assert_eq!(sb.group_count, 1, "no backup");
    let table = u32::from_le_bytes(bytes[4096 + 8..4096 + 12].try_into().unwrap()) as usize;
    bytes[4096..4096 + 64].fill(0);
    bytes[table * 4096..(table + 1) * 4096].fill(0xa5);
    std::fs::write(place.path("a.img"), &bytes).unwrap();
    let words = ["group 0", "gets an empty one", "extant salvage"];
    let told = place.run(&["repair", "-n", "a.img"]).ends_with(4).out();
    assert!(words.iter().all(|word| told.contains(word)), "{told}");
    let json = place.run(&["repair", "-n", "--json", "a.img"]).ends_with(4).json();
    let findings = json["findings"].as_array().unwrap();
    let hints: Vec<&str> = findings.iter().filter_map(|one| one["hint"].as_str()).collect();
    assert!(hints.len() == 1 && words.iter().all(|word| hints[0].contains(word)), "{hints:?}");
    assert!(std::fs::read(place.path("a.img")).unwrap() == bytes);
    place.run(&["repair", "-y", "a.img"]).complains(&words);
}

/// An image with multi-mount protection, a wrong count, and a mark of somebody who was cut off.
fn marked(place: &Place, mark: MmpState) {
    write(place, "source/kept", "kept");
    place.run(&["build", "a.img", "--from", "source"]).succeeds();
    place.run(&["tune", "-O", "mmp", "a.img"]).succeeds();
    let mut bytes = std::fs::read(place.path("a.img")).unwrap();
    let mut sb = Superblock::decode(&bytes[1024..2048]).unwrap();
    sb.free_inodes_count = 3;
    bytes[1024..2048].copy_from_slice(&sb.encode());
    let seed = sb.features.metadata_csum().then(|| sb.checksum_seed());
    let at = sb.mmp_block.0 as usize * sb.block_size.len();
    let mut mmp = Mmp::decode(seed, &bytes[at..]).unwrap();
    mmp.state = mark;
    bytes[at..at + 1024].copy_from_slice(&mmp.encode(seed));
    std::fs::write(place.path("a.img"), bytes).unwrap();
}

#[test]
fn who_may_have_it_by_multi_mount_protection_is_named_and_nothing_is_written() {
    let place = Place::new();
    marked(&place, MmpState::Fsck);
    let before = std::fs::read(place.path("a.img")).unwrap();
    write(&place, "empty", "");
    let order = "extant tune -E clear_mmp a.img";
    place.run(&["repair", "-y", "a.img"]).ends_with(7).complains(&["a check"]).hints(order);
    place.run(&["repair", "-p", "a.img"]).ends_with(7).hints(order);
    place.run(&["undo", "empty", "a.img"]).ends_with(7).hints(order);
    place.run(&["resize", "a.img", "max"]).ends_with(0);
    place.run(&["resize", "a.img", "+32M"]).ends_with(7).complains(&["a check"]).hints(order);
    place.run(&["tune", "-O", "quota", "a.img"]).ends_with(7).complains(&["a check"]).hints(order);
    place.run(&["repair", "-n", "a.img"]).succeeds().complains(&["note", "a check"]);
    assert!(place.run(&["check", "a.img"]).err().contains("a check or a conversion"));
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "nothing was written");
    place.run(&["tune", "--plan", "-E", "clear_mmp", "a.img"]).succeeds();
    place.run(&["tune", "-E", "clear_mmp", "a.img"]).succeeds();
    let told = place.run(&["tune", "-E", "clear_mmp", "a.img"]).succeeds().out();
    assert!(told.contains("is so already"), "{told}");
    place.run(&["repair", "-n", "a.img"]).succeeds();
}

#[test]
fn an_undo_file_that_has_no_room_is_not_left_and_nothing_is_changed() {
    let place = Place::new();
    let Some(()) = damaged(&place) else { return };
    let before = std::fs::read(place.path("a.img")).unwrap();
    // One block of the shell's: more than the head of the file, and less than what it has to keep.
    let limit = "ulimit -f 1; trap '' XFSZ; exec \"$0\" \"$@\"";
    let limited = |args: &[&str]| {
        let whole = place.command(args);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", limit]).arg(whole.get_program()).args(whole.get_args());
        shell.current_dir(place.0.path()).output().unwrap()
    };
    for args in [
        &["repair", "-y", "--undo", "u", "a.img"][..],
        &["tune", "-O", "^metadata_csum", "--undo", "u", "b.img"],
    ] {
        if args[0] == "tune" {
            place.run(&["mkfs", "b.img", "32M"]).succeeds();
        }
        let ran = limited(args);
        assert!(!ran.status.success(), "{args:?}");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(said.contains("u cannot be written"), "{args:?}: {said}");
        assert!(!place.path("u").exists(), "{args:?}: {said}");
    }
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
    place.run(&["check", "b.img"]).succeeds();
    // The name is free for the next attempt.
    place.run(&["repair", "-y", "--undo", "u", "a.img"]).ends_with(1);
}

#[test]
#[ignore = "waits for half a minute, as the protection wants"]
fn a_mount_that_was_cut_off_is_waited_for_and_followed() {
    let place = Place::new();
    marked(&place, MmpState::Active(77));
    let said = ["waiting 11 s"];
    place.run(&["repair", "-y", "--undo", "u", "a.img"]).ends_with(1).complains(&said);
    place.run(&["check", "a.img"]).succeeds();
    place.run(&["undo", "u", "a.img"]).succeeds();
    place.run(&["repair", "-n", "a.img"]).ends_with(4);
}

#[test]
#[ignore = "waits for half a minute, as the protection wants"]
fn who_changes_a_file_system_with_multi_mount_protection_waits_and_says_so() {
    let place = Place::new();
    place.run(&["mkfs", "a.img", "32M"]).succeeds();
    place.run(&["tune", "-O", "mmp", "a.img"]).succeeds();
    let said = ["multi-mount protection", "waiting 11 s"];
    place.run(&["resize", "a.img", "+32M"]).ends_with(0).complains(&said);
    place.run(&["tune", "-O", "quota", "a.img"]).ends_with(0).complains(&said);
    place.run(&["check", "a.img"]).succeeds();
}

/// A journal on another device is part of the file system: who goes on without it loses what it holds.
#[test]
fn what_a_journal_on_another_device_holds_is_not_given_up() {
    let place = Place::new();
    let made = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "a.img", "32M"];
    if tool("mke2fs", &made, place.0.path()).is_none() {
        return;
    }
    let commands = [
        "feature has_journal needs_recovery",
        "set_super_value journal_uuid e97bad5d-abd4-4dff-9a4b-2a3c41ac0adf",
    ];
    std::fs::write(place.path("commands"), commands.join("\n")).unwrap();
    if tool("debugfs", &["-w", "-f", "commands", "a.img"], place.0.path()).is_none() {
        return;
    }
    let before = std::fs::read(place.path("a.img")).unwrap();
    for words in [
        &["repair", "-n", "a.img"][..],
        &["repair", "-y", "a.img"],
        &["repair", "-p", "a.img"],
        &["resize", "a.img", "min"],
        &["resize", "a.img", "64M"],
        &["tune", "-O", "^metadata_csum", "a.img"],
        &["tune", "-O", "^has_journal", "a.img"],
    ] {
        let ran = place.run(words).ends_with(7);
        let brings_in = match words[0] {
            "repair" => "extant repair --journal-device FILE a.img brings in",
            _ => "extant replay --journal-device",
        };
        ran.complains(&["e97bad5d", "another device"]).hints(brings_in);
        assert!(std::fs::read(place.path("a.img")).unwrap() == before, "{words:?}");
    }
    place.run(&["check", "a.img"]).ends_with(7).hints("--journal-device");
}

/// An image with the journal on a device `j.img`, which holds three transactions; `None`: a tool is missing.
fn with_journal_elsewhere() -> Option<Place> {
    let place = Place::new();
    let here = place.0.path();
    let made = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^has_journal", "a.img", "16M"];
    tool("mke2fs", &made, here)?;
    tool("mke2fs", &["-q", "-F", "-b", "1024", "-O", "journal_dev", "j.img", "4M"], here)?;
    let uuid = &std::fs::read(place.path("j.img")).unwrap()[1024 + 0x68..][..16];
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let uuid = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
    let mut commands = format!("feature has_journal\nset_super_value journal_uuid {uuid}\n");
    for number in 0..3u8 {
        let block = format!("block{number}");
        std::fs::write(place.path(&block), [number + 1; 1024]).unwrap();
        commands += &format!("jo -f j.img -c\njw -b {} {block}\njc\n", 9000 + u32::from(number));
    }
    std::fs::write(place.path("commands"), commands).unwrap();
    tool("debugfs", &["-w", "-f", "commands", "a.img"], here)?;
    Some(place)
}

/// Where the commit blocks of a log with blocks of 1 KiB are.
fn commits(log: &[u8]) -> Vec<usize> {
    let starts = (0..log.len()).step_by(1024);
    starts.filter(|at| log[*at..].starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2])).collect()
}

#[test]
fn a_damaged_log_on_another_device_is_checked_and_repaired_with_that_device() {
    let Some(place) = with_journal_elsewhere() else { return };
    let mut log = std::fs::read(place.path("j.img")).unwrap();
    let all = commits(&log);
    assert_eq!(all.len(), 3, "{all:?}");
    let given = ["--journal-device", "j.img", "a.img"];
    let with = |words: &[&str]| place.run(&[words, &given[..]].concat());
    with(&["check"]).succeeds();
    with(&["repair", "-n"]).succeeds();
    // A commit block that is none looks like the end of the log, and one with another checksum is damage.
    for damage in [&[0u8; 8][..], &[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2]] {
        log[all[1]..][..8].copy_from_slice(damage);
        log[all[1] + 16] = log[all[1] + 16].wrapping_add(1);
        std::fs::write(place.path("j.img"), &log).unwrap();
        let before = std::fs::read(place.path("a.img")).unwrap();
        let told = with(&["check"]).ends_with(4).out();
        let repairs = "extant repair --journal-device j.img a.img sets them right";
        assert!(told.contains("is damaged") && told.contains(repairs), "{told}");
        let told = with(&["repair", "-n"]).ends_with(4).out();
        assert!(told.contains("the log is damaged behind 1 transactions"), "{told}");
        if damage != [0; 8] {
            with(&["replay"])
                .ends_with(4)
                .hints("extant repair --journal-device j.img a.img brings in");
            place
                .run(&["mkdir", "--journal-device", "j.img", "a.img:/new"])
                .ends_with(4)
                .hints("extant repair --journal-device j.img a.img brings in");
        }
        assert!(std::fs::read(place.path("a.img")).unwrap() == before);
        assert!(std::fs::read(place.path("j.img")).unwrap() == log);
    }
    with(&["repair", "-y", "--undo", "u"]).ends_with(2).complains(&["journal device"]);
    with(&["repair", "-y"]).ends_with(1);
    with(&["check"]).succeeds();
    place.run(&["check", "a.img"]).succeeds();
    with(&["repair", "-n"]).succeeds();
    let image = std::fs::read(place.path("a.img")).unwrap();
    assert!(image[9000 << 10..][..1024] == [1; 1024] && image[9001 << 10..][..1024] == [0; 1024]);
    let fsck = tool("e2fsck", &["-fn", "-j", "j.img", "a.img"], place.0.path());
    assert!(fsck.is_none_or(|done| done.status.success()));
    // Both are in use as before.
    with(&["replay"]).succeeds();
}

/// What to do about a damaged log is said with options that the command has.
#[test]
fn each_command_hints_at_its_own_options() {
    let place = Place::new();
    place.run(&["mkfs", "-q", "-b", "1024", "a.img", "16M"]).succeeds();
    std::fs::write(place.path("block"), [7; 1024]).unwrap();
    let commands = "jo -c\njw -b 9000 block\njc\njo -c\njw -b 9001 block\njc\n";
    std::fs::write(place.path("commands"), commands).unwrap();
    if tool("debugfs", &["-w", "-f", "commands", "a.img"], place.0.path()).is_none() {
        return;
    }
    let mut image = std::fs::read(place.path("a.img")).unwrap();
    let all = commits(&image);
    assert_eq!(all.len(), 2, "{all:?}");
    image[all[0] + 16] ^= 1;
    std::fs::write(place.path("a.img"), &image).unwrap();
    for words in [&["replay", "a.img"][..], &["mkdir", "a.img:/new"]] {
        let ran = place.run(words).ends_with(4).hints("extant repair a.img brings in");
        assert!(!ran.err().contains("--no-replay"), "{}", ran.err());
    }
    place.run(&["ls", "a.img"]).ends_with(4).hints("--no-replay reads the image without");
    place.run(&["ls", "--no-replay", "a.img"]).succeeds();
    // And of a superblock: its label.
    place.run(&["mkfs", "-q", "-b", "1024", "b.img", "16M"]).succeeds();
    let mut image = std::fs::read(place.path("b.img")).unwrap();
    image[1024 + 0x78] ^= 1;
    std::fs::write(place.path("b.img"), &image).unwrap();
    let ran = place.run(&["replay", "b.img"]).ends_with(4).hints("extant repair");
    assert!(!ran.err().contains("-b 32768"), "{}", ran.err());
    place.run(&["ls", "b.img"]).ends_with(4).hints("-b 32768");
}

#[test]
fn what_is_not_the_journal_of_an_image_is_named_by_what_it_is() {
    let Some(place) = with_journal_elsewhere() else { return };
    let before = std::fs::read(place.path("a.img")).unwrap();
    std::fs::write(place.path("noise"), vec![0xa5; 4 << 20]).unwrap();
    std::fs::write(place.path("short"), [0; 100]).unwrap();
    place.run(&["mkfs", "-q", "-F", "inside.img", "16M"]).succeeds();
    let repair =
        |given: &str, image: &str| place.run(&["repair", "-y", "--journal-device", given, image]);
    repair("a.img", "a.img").ends_with(7).complains(&["is the image itself"]);
    repair("inside.img", "a.img").ends_with(7).complains(&["not a journal device"]);
    repair("noise", "a.img").ends_with(7).complains(&["journal device", "magic"]);
    repair("short", "a.img").ends_with(8).complains(&["short", "ends at byte 100"]);
    repair("nowhere", "a.img").ends_with(8).complains(&["nowhere"]);
    repair("j.img", "inside.img").ends_with(7).complains(&["its journal in inode 8"]);
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
    for words in [&["check", "j.img"][..], &["repair", "-n", "j.img"], &["salvage", "j.img", "o"]] {
        place.run(words).ends_with(4).complains(&["journal"]).hints("--journal-device");
    }
}

/// Linux writes the totals of the superblock now and then; e2fsck -fn names them, and ends with 0.
#[test]
fn a_check_and_a_repair_that_changes_nothing_say_the_same() {
    let place = Place::new();
    place.run(&["mkfs", "-q", "-F", "-b", "1024", "a.img", "16M"]).succeeds();
    let set = |commands: &str| {
        std::fs::write(place.path("commands"), commands).unwrap();
        tool("debugfs", &["-w", "-f", "commands", "a.img"], place.0.path()).is_some()
    };
    if !set("set_super_value free_inodes_count 100\nset_super_value free_blocks_count 100\n") {
        return;
    }
    place.run(&["check", "a.img"]).succeeds();
    let told = place.run(&["repair", "-n", "a.img"]).succeeds().out();
    assert!(told.contains("counts 100 free inodes") && told.contains("a.img: clean"), "{told}");
    let fsck = tool("e2fsck", &["-fn", "a.img"], place.0.path());
    assert!(fsck.is_none_or(|done| done.status.success()));
    // Nothing but a log that the superblock knows nothing of.
    std::fs::write(place.path("block"), [7; 1024]).unwrap();
    assert!(set("jo -c\njw -b 9000 block\njc\nfeature -needs_recovery\n"));
    place.run(&["check", "a.img"]).ends_with(4);
    let told = place.run(&["repair", "-n", "a.img"]).ends_with(4).out();
    assert!(told.contains("the superblock says that it has none"), "{told}");
    place.run(&["repair", "-y", "a.img"]).ends_with(1);
    place.run(&["check", "a.img"]).succeeds();
    place.run(&["repair", "-n", "a.img"]).succeeds();
    // Damage is damage also beside totals.
    assert!(set("set_super_value free_inodes_count 100\nfreei <2>\n"));
    place.run(&["check", "a.img"]).ends_with(4);
    place.run(&["repair", "-n", "a.img"]).ends_with(4);
}
