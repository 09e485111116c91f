//! Files that a build seals by fs-verity: their digests are those of `fsverity digest`, e2fsck has
//! nothing to say, and damage is found.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::support;
use support::Place;

const SIZES: [(&str, usize); 8] = [
    ("empty", 0),
    ("one", 1),
    ("small", 100),
    ("block", 4096),
    ("more", 4097),
    ("aligned", 65_536),
    ("two levels", 600_000),
    ("large", 3_000_001),
];

fn source(place: &Place) {
    let at = place.path("source");
    std::fs::create_dir_all(at.join("dir")).unwrap();
    for (name, size) in SIZES {
        let bytes: Vec<u8> =
            (0..size as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 | 1).collect();
        std::fs::write(at.join("dir").join(name), bytes).unwrap();
    }
    let sparse = std::fs::File::create(at.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 9000], 1 << 20).unwrap();
    sparse.set_len((2 << 20) + 5).unwrap();
    std::fs::hard_link(at.join("dir/small"), at.join("second")).unwrap();
    std::os::unix::fs::symlink("sparse", at.join("link")).unwrap();
}

/// The digest of a file outside, if the usual tool is there.
fn digest(path: &Path, block: u32) -> Option<String> {
    let mut tool = Command::new("fsverity");
    tool.args(["digest", "--compact", &format!("--block-size={block}")]).arg(path);
    let Ok(done) = tool.output() else {
        println!("skipped: needs fsverity");
        return None;
    };
    assert!(done.status.success(), "{done:?}");
    Some(format!("sha256:{}", String::from_utf8_lossy(&done.stdout).trim()))
}

fn clean(place: &Place) {
    if let Some(done) = support::tool("e2fsck", &["-fn", "a.img"], place.0.path()) {
        assert!(done.status.success(), "{}", support::text(&done));
    }
}

fn files() -> Vec<String> {
    let mut files: Vec<String> = SIZES.iter().map(|(name, _)| format!("dir/{name}")).collect();
    files.extend(["sparse".to_owned(), "second".to_owned()]);
    files
}

#[test]
fn a_build_seals_all_files_and_every_checker_agrees() {
    let place = Place::new();
    source(&place);
    let layouts: [(&[&str], u32); 7] = [
        (&[], 4096),
        (&["-b", "1024"], 1024),
        (&["-O", "inline_data"], 4096),
        (&["-O", "bigalloc", "-C", "16384"], 4096),
        (&["-O", "quota,^64bit,^metadata_csum,^metadata_csum_seed"], 4096),
        (&["--size", "auto+0", "-b", "2048"], 2048),
        (&["-b", "65536"], 4096),
    ];
    for (layout, block) in layouts {
        let args =
            [&["build", "a.img", "-q", "--force", "--from", "source", "--fs-verity"], layout]
                .concat();
        place.run(&args).succeeds();
        clean(&place);
        place.run(&["check", "a.img"]).succeeds();
        for file in files() {
            let of_image = format!("a.img:/{file}");
            let host = place.path("source").join(&file);
            let Some(expected) = digest(&host, block) else { return };
            let shown = place.run(&["stat", &of_image]).succeeds().out();
            assert!(shown.contains(&expected), "{layout:?}: {file}: {expected} in {shown}");
            let json = place.run(&["stat", "--json", &of_image]).succeeds().out();
            assert!(json.contains(&format!("\"verity_digest\": \"{expected}\"")), "{json}");
            let read = place.run(&["cat", &of_image]).succeeds().output.stdout;
            assert!(read == std::fs::read(&host).unwrap(), "{layout:?}: {file}");
        }
        let shown = place.run(&["lsattr", "a.img:/sparse"]).succeeds().out();
        assert!(shown.contains('V'), "{shown}");
    }
}

#[test]
fn sealed_images_are_reproducible() {
    let place = Place::new();
    source(&place);
    let mut made = Vec::new();
    for (name, threads) in [("a.img", "1"), ("b.img", "3")] {
        let args =
            ["build", name, "-q", "--from", "source", "--fs-verity", "--mtime-clamp", "1700000000"];
        place.run(&[&args[..], &["--threads", threads]].concat()).succeeds();
        made.push(std::fs::read(place.path(name)).unwrap());
    }
    assert!(made[0] == made[1]);
}

#[test]
fn a_list_says_which_files_are_sealed() {
    let place = Place::new();
    source(&place);
    std::fs::write(place.path("list"), "/dir/large\n\nsparse\n").unwrap();
    place.run(&["build", "a.img", "-q", "--from", "source", "--fs-verity=list"]).succeeds();
    clean(&place);
    for (file, is_sealed) in [("dir/large", true), ("sparse", true), ("dir/more", false)] {
        let shown = place.run(&["stat", &format!("a.img:/{file}")]).succeeds().out();
        assert_eq!(shown.contains("Verity: sha256:"), is_sealed, "{shown}");
    }
    for (line, text) in [("/nowhere", "/nowhere"), ("/link", "/link"), ("dir", "dir")] {
        std::fs::write(place.path("list"), line).unwrap();
        let failed = place.run(&["build", "b.img", "-q", "--from", "source", "--fs-verity=list"]);
        let failed = failed.ends_with(2);
        assert!(failed.err().contains(text), "{}", failed.err());
        assert!(failed.err().contains("no regular file"), "{}", failed.err());
        assert!(!place.path("b.img").exists());
    }
    let failed = place.run(&[
        "build",
        "b.img",
        "-q",
        "--from",
        "source",
        "--fs-verity",
        "-O",
        "^extent,^64bit",
    ]);
    assert!(failed.ends_with(2).err().contains("verity needs extent"));
}

#[test]
fn damage_of_a_sealed_file_is_told_and_not_copied() {
    let place = Place::new();
    source(&place);
    place.run(&["build", "a.img", "-q", "--from", "source", "--fs-verity"]).succeeds();
    let host = std::fs::read(place.path("source/dir/large")).unwrap();
    let image = std::fs::read(place.path("a.img")).unwrap();
    let block = &host[100 * 4096..101 * 4096];
    let at = image.chunks(4096).position(|found| found == block).unwrap() * 4096;
    let file = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    file.write_all_at(&[image[at + 9] ^ 1], at as u64 + 9).unwrap();
    let failed = place.run(&["cat", "a.img:/dir/large"]).ends_with(4);
    assert!(failed.err().contains("block 100 (of 4096 bytes) of the contents"), "{}", failed.err());
    assert!(failed.output.stdout.len() <= 100 * 4096, "{}", failed.output.stdout.len());
    let failed = place.run(&["cp", "a.img:/dir/large", "out"]).ends_with(4);
    assert!(failed.err().contains("fs-verity"), "{}", failed.err());
    let failed = place.run(&["tar", "-o", "a.tar", "a.img"]).ends_with(4);
    assert!(failed.err().contains("fs-verity"), "{}", failed.err());
    // The metadata are right.
    place.run(&["check", "a.img"]).succeeds();
    place.run(&["cat", "a.img:/dir/more"]).succeeds();
}

#[test]
fn a_salvage_compares_sealed_files_with_their_seals() {
    let place = Place::new();
    source(&place);
    // A tree of two levels, with holes and an end within a block.
    let sparse = std::fs::File::create(place.path("source/dir/sparse")).unwrap();
    for block in [0u64, 1, 150, 400] {
        sparse.write_all_at(&[block as u8 + 1; 4000], block * 4096).unwrap();
    }
    place.run(&["build", "a.img", "-q", "--from", "source", "--fs-verity"]).succeeds();
    let whole = place.run(&["salvage", "a.img", "whole"]).succeeds().out();
    assert!(whole.contains("all that was found is whole"), "{whole}");
    let Some(blocks) =
        support::tool("debugfs", &["-R", "blocks /dir/sparse", "a.img"], place.0.path())
    else {
        return;
    };
    let blocks = support::text(&blocks);
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|one| one.parse().ok()).collect();
    // Four blocks of contents; the root of the tree, the four blocks below it, the descriptor.
    assert_eq!(blocks.len(), 10, "{blocks:?}");
    let cases: [(usize, u64, &str, &str); 6] = [
        (1, 9, "1 block is not what its fs-verity seal says: block 1 of 4096 bytes", "unverified"),
        (3, 3999, "seal says: block 400 of 4096 bytes", "unverified"),
        (4, 0, "1 block of the hashes of its fs-verity seal is damaged", "seal-tree"),
        (6, 3, "1 block of the hashes of its fs-verity seal is damaged", "seal-tree"),
        (9, 0, "its fs-verity seal cannot be read", "seal"),
        (9, 20, "1 block of the hashes of its fs-verity seal is damaged", "seal-tree"),
    ];
    for (number, (block, byte, said, code)) in cases.into_iter().enumerate() {
        let (image, out) = (format!("b{number}.img"), format!("out{number}"));
        std::fs::copy(place.path("a.img"), place.path(&image)).unwrap();
        let file = place.path(&image);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
        let (at, mut old) = (blocks[block] * 4096 + byte, [0]);
        file.read_exact_at(&mut old, at).unwrap();
        file.write_all_at(&[old[0] ^ 1], at).unwrap();
        let told = place.run(&["salvage", &image, &out]).ends_with(4).out();
        assert!(told.contains("/dir/sparse") && told.contains(said), "{number}: {told}");
        assert!(!told.contains("/dir/large"), "{number}: {told}");
        let told = place.run(&["salvage", "--json", &image, &format!("{out}.json")]).ends_with(4);
        let one = &told.json_lines()[0];
        assert_eq!(one["why"][0]["code"], code, "{one}");
        assert_eq!(one["unverified"].is_array(), code == "unverified", "{one}");
        // It is there all the same.
        let read = std::fs::read(place.path(&format!("{out}/dir/sparse"))).unwrap();
        let host = std::fs::read(place.path("source/dir/sparse")).unwrap();
        assert_eq!(read == host, code != "unverified", "{number}");
    }
    // Where a hole should not be one: a block of contents that the map has no more.
    let commands = "punch /dir/sparse 150 150";
    if support::tool("debugfs", &["-w", "-R", commands, "a.img"], place.0.path()).is_some() {
        let told = place.run(&["salvage", "a.img", "hole"]).ends_with(4).out();
        assert!(told.contains("seal says: block 150 of 4096 bytes"), "{told}");
    }
}
