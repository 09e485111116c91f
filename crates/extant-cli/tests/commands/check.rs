//! `extant check`: what it finds, what e2fsck finds, and what it tells.

use std::os::unix::fs::FileExt;

use crate::support;
use support::{Place, tool};

/// Writes into the image with debugfs; `false` when that is not installed.
fn debugfs(place: &Place, image: &str, commands: &[&str]) -> bool {
    std::fs::write(place.path("commands"), commands.join("\n")).unwrap();
    tool("debugfs", &["-w", "-f", "commands", image], place.0.path()).is_some()
}

/// Whether e2fsck finds nothing to do.
fn e2fsck_is_content(place: &Place, image: &str) -> Option<bool> {
    Some(tool("e2fsck", &["-fn", image], place.0.path())?.status.success())
}

#[test]
fn a_clean_image_is_called_clean_and_stays_as_it_is() {
    let place = Place::with_image();
    let before = std::fs::read(place.path("a.img")).unwrap();
    let told = place.run(&["check", "a.img"]).succeeds().out();
    assert!(told.starts_with("a.img: clean: ") && told.lines().count() == 1, "{told}");
    assert_eq!(place.run(&["check", "-q", "a.img", "a.img"]).succeeds().out(), "");
    let json = place.run(&["check", "--json", "a.img"]).succeeds().json();
    assert_eq!(json["clean"], true);
    assert_eq!(json["problems"], serde_json::json!([]));
    assert_eq!(json["replayed"], serde_json::Value::Null);
    assert!(json["inodes"].as_u64() > Some(10) && json["directories"].as_u64() >= Some(4));
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
}

#[test]
fn damage_is_named_and_counted_as_by_e2fsck() {
    let damages: [(&[&str], &str); 7] = [
        (&["set_inode_field /file links_count 7"], "links"),
        (&["set_inode_field /dir/link mode 0"], "mode"),
        (&["clri /dir/deep"], "entry-inode"),
        (&["freeb 10 5"], "block-bitmap"),
        (&["freei <12>"], "inode-bitmap"),
        (&["set_bg 0 free_blocks_count 1", "set_bg 0 checksum calc"], "group-count"),
        (&["unlink /dir"], "unreachable"),
    ];
    let place = Place::with_image();
    for (commands, code) in damages {
        std::fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
        if !debugfs(&place, "b.img", commands) {
            return;
        }
        let Some(content) = e2fsck_is_content(&place, "b.img") else { return };
        assert!(!content, "{commands:?}: e2fsck finds nothing");
        let json = place.run(&["check", "--json", "b.img"]).ends_with(4).json();
        let problems = json["problems"].as_array().unwrap();
        assert!(problems.iter().any(|problem| problem["code"] == code), "{commands:?}: {json:#}");
        assert_eq!(json["clean"], false);
        let told = place.run(&["check", "b.img"]).ends_with(4).out();
        assert_eq!(told.lines().count(), problems.len() + 1, "{told}");
        assert!(told.lines().all(|line| line.starts_with("b.img: ")), "{told}");
        let last = told.lines().last().unwrap();
        assert!(last.contains("problem") && last.contains("extant repair"), "{last}");
        assert_eq!(place.run(&["check", "-q", "b.img"]).ends_with(4).out(), format!("{last}\n"));
    }
}

#[test]
fn what_an_image_says_of_itself_is_told_and_no_damage() {
    let place = Place::with_image();
    if !debugfs(&place, "a.img", &["set_super_value state 3"]) {
        return;
    }
    let Some(true) = e2fsck_is_content(&place, "a.img") else { return };
    let ran = place.run(&["check", "a.img"]).succeeds();
    assert!(ran.err().contains("recorded errors"), "{}", ran.err());
    let json = place.run(&["check", "--json", "a.img"]).succeeds().json();
    assert_eq!((&json["errors_recorded"], &json["clean"]), (&true.into(), &true.into()));
}

#[test]
fn of_many_problems_some_are_shown_and_all_are_counted() {
    let place = Place::with_image();
    let paths = ["/file", "/dir", "/dir/link", "/.hidden", "/sparse"];
    let commands = paths.map(|path| format!("set_inode_field {path} links_count 9"));
    if !debugfs(&place, "a.img", &commands.each_ref().map(String::as_str)) {
        return;
    }
    let all = place.run(&["check", "--json", "a.img"]).ends_with(4).json();
    let count = all["problems"].as_array().unwrap().len();
    assert!(count >= 5, "{all:#}");
    let told = place.run(&["check", "--max-problems", "2", "a.img"]).ends_with(4).out();
    assert_eq!(told.lines().count(), 3, "{told}");
    assert!(told.contains(&format!("{count} problems, {} of them not shown", count - 2)), "{told}");
    let some = place.run(&["check", "--json", "--max-problems", "2", "a.img"]).ends_with(4).json();
    assert_eq!(some["problems"].as_array().unwrap().len(), 2);
    assert_eq!(some["problems_not_shown"], count - 2);
}

/// What waits in the journal counts: a block bitmap there that frees everything.
#[test]
fn the_journal_is_replayed_in_memory_first() {
    let place = Place::new();
    place.run(&["mkfs", "-q", "a.img", "64M"]).succeeds();
    let groups = place.run(&["info", "--json", "--groups", "a.img"]).succeeds().json();
    let bitmap = groups["groups"][0]["block_bitmap"].as_u64().unwrap();
    std::fs::write(place.path("zeros"), [0; 4096]).unwrap();
    let write = format!("journal_write -b {bitmap} zeros");
    if !debugfs(&place, "a.img", &["journal_open", &write, "journal_close"]) {
        return;
    }
    let before = std::fs::read(place.path("a.img")).unwrap();
    let json = place.run(&["check", "--json", "a.img"]).ends_with(4).json();
    assert_eq!(json["replayed"]["transactions"], 1);
    let codes: Vec<_> = json["problems"].as_array().unwrap().iter().map(|p| &p["code"]).collect();
    assert!(
        codes.iter().any(|code| *code == "block-bitmap" || *code == "bitmap-checksum"),
        "{json:#}"
    );
    let there = place.run(&["check", "--no-replay", "a.img"]).succeeds().out();
    assert!(there.starts_with("a.img: clean"), "{there}");
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
}

#[test]
fn of_several_images_each_has_its_verdict() {
    let place = Place::with_image();
    std::fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
    let file = std::fs::File::options().write(true).open(place.path("b.img")).unwrap();
    // Counted, and under a checksum.
    file.write_all_at(&[1, 2, 3, 4], 1024 + 0x10).unwrap();
    let ran = place.run(&["check", "a.img", "missing.img", "b.img"]).ends_with(4);
    assert!(ran.out().starts_with("a.img: clean"), "{}", ran.out());
    assert!(ran.out().contains("\nb.img: "), "{}", ran.out());
    ran.complains(&["missing.img"]);
    place.run(&["check", "a.img", "missing.img"]).ends_with(8);
}

#[test]
fn what_is_no_image_is_said_not_checked() {
    let place = Place::with_image();
    std::fs::write(place.path("text"), "no image at all\n".repeat(999)).unwrap();
    place.run(&["check", "text"]).ends_with(4).complains(&["text"]);
    place.run(&["check", "a.img:/file"]).ends_with(2).complains(&["path"]);
    place.run(&["check", "missing.img"]).ends_with(8).complains(&["missing.img"]);
    // Cut short: the file system says that there is more.
    let file = std::fs::File::options().write(true).open(place.path("a.img")).unwrap();
    file.set_len(2 << 20).unwrap();
    let told = place.run(&["check", "a.img"]);
    assert!([4, 8].contains(&told.output.status.code().unwrap()), "{}", told.err());
    assert!((told.out() + &told.err()).contains("a.img"));
}

#[test]
fn a_superblock_of_which_a_field_cannot_be_is_named_by_that_field() {
    for (at, field) in [(0xfc, "s_def_hash_version"), (0x18, "block size"), (0x28, "s_inodes")] {
        let place = Place::with_image();
        let file = std::fs::File::options().write(true).open(place.path("a.img")).unwrap();
        file.write_all_at(&[127; 4][..if at == 0xfc { 1 } else { 4 }], 1024 + at).unwrap();
        let told = place.run(&["check", "a.img"]).ends_with(4);
        let told = told.complains(&["a.img", field]).hints("extant repair");
        assert!(!told.err().contains("device ends"), "{}", told.err());
        // Once, and not twice.
        let info = place.run(&["info", "--no-checksums", "a.img"]).ends_with(4);
        assert!(!info.err().contains("superblock: superblock"), "{}", info.err());
    }
}

#[test]
fn any_number_of_threads_tells_the_same() {
    let place = Place::with_image();
    let commands = ["clri /dir/deep", "set_inode_field /file links_count 7", "freeb 10 5"];
    if !debugfs(&place, "a.img", &commands) {
        return;
    }
    let one = place.run(&["check", "--json", "--threads", "1", "a.img"]).ends_with(4).out();
    for threads in ["2", "7", "4000000000"] {
        let other = place.run(&["check", "--json", "--threads", threads, "a.img"]).ends_with(4);
        assert_eq!(other.out(), one, "{threads} threads");
    }
    for wrong in ["0", "-1", "many"] {
        let asked = format!("--threads={wrong}");
        let ran = place.run(&["check", &asked, "a.img"]).ends_with(2);
        assert!(ran.err().contains(wrong) && ran.err().contains("--threads"), "{}", ran.err());
    }
}

/// Linux mounts nothing that names both, and e2fsck ends with an error when it has not the device.
#[test]
fn a_journal_device_beside_the_journal_is_named_and_taken_away() {
    for field in ["journal_uuid e97bad5d-abd4-4dff-9a4b-2a3c41ac0adf", "journal_dev 0x700"] {
        let place = Place::with_image();
        if !debugfs(&place, "a.img", &[&format!("set_super_value {field}")]) {
            return;
        }
        let told = place.run(&["check", "a.img"]).ends_with(4).out();
        assert!(told.contains("a device with another is named as well"), "{told}");
        place.run(&["repair", "-y", "a.img"]).ends_with(1);
        place.run(&["check", "a.img"]).succeeds();
        place.run(&["mkdir", "a.img:/new"]).succeeds();
        assert_ne!(e2fsck_is_content(&place, "a.img"), Some(false));
    }
}

/// The log has a superblock that is right, which no mount comes to.
#[test]
fn a_superblock_that_is_wrong_before_the_log_is_brought_in_is_damage() {
    let place = Place::new();
    let plain = ["-b", "1024", "-O", "^metadata_csum,^metadata_csum_seed"];
    place.run(&[&["mkfs", "-q", "-F"], &plain[..], &["a.img", "16M"]].concat()).succeeds();
    let mut image = std::fs::read(place.path("a.img")).unwrap();
    // It needs recovery.
    image[1024 + 0x60] |= 4;
    std::fs::write(place.path("super"), &image[1024..2048]).unwrap();
    std::fs::write(place.path("log"), "jo -c\njw -b 1 super\njc\n").unwrap();
    let Some(_) = tool("debugfs", &["-w", "-f", "log", "a.img"], place.0.path()) else { return };
    place.run(&["check", "a.img"]).succeeds();
    place.run(&["repair", "-n", "a.img"]).succeeds();
    let uuid = "set_super_value journal_uuid e97bad5d-abd4-4dff-9a4b-2a3c41ac0adf";
    assert!(debugfs(&place, "a.img", &[uuid]));
    assert_eq!(e2fsck_is_content(&place, "a.img"), Some(false));
    place.run(&["repair", "-n", "a.img"]).ends_with(4);
    let told = place.run(&["check", "a.img"]).ends_with(4).out();
    let text = "a device with another is named";
    assert!(told.contains(text) && told.contains(": 1 problem;"), "{told}");
    place.run(&["repair", "-y", "a.img"]).ends_with(1);
    place.run(&["check", "a.img"]).succeeds();
    assert_eq!(e2fsck_is_content(&place, "a.img"), Some(true));
}

/// With clusters and blocks of 1 KiB, group 0 begins with the boot block and the others do not.
#[test]
fn the_reserve_of_small_blocks_in_clusters_is_listed_as_linux_lists_it() {
    let place = Place::new();
    for cluster in ["2048", "16384"] {
        let args = ["mkfs", "-q", "-F", "-O", "bigalloc", "-b", "1024", "-C", cluster, "c.img"];
        place.run(&[&args[..], &["300M"]].concat()).succeeds();
        place.run(&["check", "c.img"]).succeeds();
        let Some(said) = support::tool("e2fsck", &["-fn", "c.img"], place.0.path()) else { return };
        // It asks, is told no, and ends with 0 all the same.
        let said = support::text(&said);
        assert!(!said.contains("Resize inode not valid"), "{said}");
    }
}
