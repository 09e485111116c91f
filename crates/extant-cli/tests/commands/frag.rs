//! `extant frag`: pieces of files and of free space, against what e2freefrag says.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support;
use support::Place;

/// An image with a file of 40 pieces, whose holes are free space, and files in one.
fn crumbled(layout: &[&str]) -> Place {
    let place = Place::with_image();
    place.run(&[&["mkfs", "-q", "c.img", "32M"], layout].concat()).succeeds();
    place.run(&["mkdir", "c.img:/dir"]).succeeds();
    let bytes: Vec<u8> = (0..80).flat_map(|at| [u8::from(at % 2 == 0); 16 << 10]).collect();
    for (path, bytes) in [("crumbs", &bytes[..]), ("dir/whole", &[7; 100_000])] {
        let image = format!("c.img:/{path}");
        let mut write = place.command(&["write", &image]).stdin(Stdio::piped()).spawn().unwrap();
        write.stdin.take().unwrap().write_all(bytes).unwrap();
        assert!(write.wait().unwrap().success());
    }
    place.run(&["fallocate", "-d", "c.img:/crumbs"]).succeeds();
    place.run(&["ln", "c.img:/crumbs", "c.img:/dir/again"]).succeeds();
    place.run(&["truncate", "-s", "5M", "c.img:/empty"]).succeeds();
    place
}

#[test]
fn files_and_free_space_are_counted_in_pieces() {
    for layout in [&["-b", "4096"][..], &["-b", "1024"], &["-t", "ext3"]] {
        let place = crumbled(layout);
        let frag = place.run(&["frag", "--json", "c.img"]).succeeds().json();
        // The second name is the same file, and what has no blocks has no pieces.
        let expected = (2.into(), 1.into(), 41.into());
        let said = (&frag["files"], &frag["broken_files"], &frag["pieces"]);
        assert_eq!(said, (&expected.0, &expected.1, &expected.2), "{layout:?}: {frag}");
        assert_eq!(frag["worst"].as_array().unwrap().len(), 1);
        assert_eq!(frag["worst"][0]["pieces"], 40);
        assert_eq!(frag["worst"][0]["bytes"], 40 * (16 << 10));
        // 39 jumps in 740 KiB, 12 times 64 KiB: more than one for each.
        assert_eq!(frag["score"], 100);
        let info = place.run(&["info", "--json", "c.img"]).succeeds().json();
        let free = info["free_blocks"].as_u64().unwrap() * info["block_bytes"].as_u64().unwrap();
        assert_eq!(frag["free"]["bytes"], free, "{layout:?}");
        let rows = frag["free"]["histogram"].as_array().unwrap();
        let sum = |key| rows.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("bytes"), sum("pieces")), (free, frag["free"]["pieces"].as_u64().unwrap()));
        agree_with_e2freefrag(&place, &frag);
    }
}

/// Pieces of free space, and the largest, as e2fsprogs counts them.
fn agree_with_e2freefrag(place: &Place, frag: &serde_json::Value) {
    let Ok(ran) = Command::new("e2freefrag").arg(place.path("c.img")).output() else {
        println!("skipped: no e2freefrag");
        return;
    };
    let text = String::from_utf8(ran.stdout).unwrap();
    let number = |line: &str| {
        let line = text.lines().find(|other| other.starts_with(line));
        let word = line.and_then(|line| line.split_whitespace().find_map(|word| word.parse().ok()));
        word.unwrap_or_else(|| panic!("{text}"))
    };
    let (largest, pieces): (u64, u64) = (number("Max. free extent:"), number("Num. free extent:"));
    assert_eq!(frag["free"]["pieces"], pieces, "{text}");
    assert_eq!(frag["free"]["largest_bytes"], largest << 10, "{text}");
}

#[test]
fn people_see_the_score_the_worst_files_and_the_sizes_of_free_pieces() {
    let place = crumbled(&["-b", "4096"]);
    let out = place.run(&["frag", "c.img"]).succeeds().out();
    assert!(out.starts_with("2 files with 740 KiB in 41 pieces\nScore: 100 of 100;"), "{out}");
    assert!(out.contains("40      640 KiB  /crumbs\n") && !out.contains("whole"), "{out}");
    assert!(out.contains(" free in ") && out.contains("16 KiB to 28 KiB"), "{out}");
    // Of a directory, what is below it; free space is the image's.
    let below = place.run(&["frag", "--worst", "0", "c.img:/dir"]).succeeds().out();
    assert!(below.contains("2 files") && !below.contains("free"), "{below}");
    assert!(!below.contains("/dir/"), "{below}");
    let whole = place.run(&["frag", "c.img:/dir/whole"]).succeeds().out();
    assert!(whole.starts_with("1 file with 100 KiB in 1 piece\nScore: 0 of 100;"), "{whole}");
    let several = place.run(&["frag", "--json", "c.img:/dir", "a.img"]).succeeds();
    assert!(several.out().contains("\"image\": \"a.img\""), "{}", several.out());
    place.run(&["frag", "c.img:/none"]).ends_with(9).complains(&["c.img:/none"]);
}

#[test]
fn a_damaged_bitmap_is_named_and_the_rest_is_counted() {
    let place = crumbled(&["-b", "1024"]);
    let info = place.run(&["info", "--json", "--groups", "c.img"]).succeeds().json();
    let at = info["groups"][1]["block_bitmap"].as_u64().unwrap() * 1024;
    let image = std::fs::OpenOptions::new().write(true).open(place.path("c.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[0x55; 64], at).unwrap();
    place.run(&["frag", "c.img"]).ends_with(1).complains(&["c.img:/", "block bitmap"]);
    let ran = place.run(&["frag", "--json", "c.img"]).ends_with(1);
    assert_eq!(ran.json()["pieces"], 41);
    assert!(ran.json()["free"]["bytes"].as_u64().unwrap() > 8 << 20);
}

#[test]
fn a_page_shows_the_groups_and_the_worst_files_and_replaces_nothing() {
    let place = crumbled(&["-b", "1024"]);
    place.run(&["mv", "c.img:/crumbs", "c.img:/<b>crumbs & co"]).succeeds();
    let said = place.run(&["frag", "--html", "c.html", "c.img", "a.img"]).succeeds().out();
    assert!(said.contains("Score: 100 of 100;"), "{said}");
    let page = std::fs::read_to_string(place.path("c.html")).unwrap();
    // 32 MiB are four groups of blocks of 1 KiB.
    let section = page.split("<section>").nth(1).unwrap();
    assert_eq!(section.matches("<rect ").count(), 4, "{section}");
    assert!(section.contains("<td>40</td><td>640 KiB</td>"), "{section}");
    assert!(section.contains("/&lt;b&gt;crumbs &amp; co</bdi>"), "{section}");
    assert_eq!(page.matches("<section>").count(), 2, "{page}");
    for outside in ["<b>crumbs", "<script", "src=", "href=", "http:", "https:", "url("] {
        assert!(!page.contains(outside), "{outside}: {page}");
    }
    for element in
        ["html", "head", "body", "main", "section", "table", "svg", "rect", "title", "bdi"]
    {
        let opened = page.matches(&format!("<{element}>")).count();
        let opened = opened + page.matches(&format!("<{element} ")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
    }
    assert!(page.contains("prefers-color-scheme: dark"), "{page}");
    // An image, or a page, that is there stays as it is.
    let before = std::fs::read(place.path("a.img")).unwrap();
    place
        .run(&["frag", "--html", "a.img", "c.img"])
        .ends_with(2)
        .complains(&["a.img"])
        .hints("--html");
    assert!(std::fs::read(place.path("a.img")).unwrap() == before);
    // What has no page leaves no file.
    place.run(&["frag", "--html", "n.html", "c.img:/none"]).ends_with(9);
    assert!(!place.path("n.html").exists());
}
