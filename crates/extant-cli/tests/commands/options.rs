//! Every option of `mkfs` has the effect that it has in mke2fs, or is refused.

use crate::support;
use support::{Place, text, tool};

const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// Lines of `dumpe2fs -h` that depend on the moment or on the program.
const VOLATILE: [&str; 10] = [
    "Lifetime writes",
    "Checksum:",
    "Filesystem created",
    "Last write",
    "Last checked",
    "Last mount time",
    "    mmp_update",
    "    mmp_node_name",
    "    mmp_device_name",
    "    mmp_sequence",
];

fn header(place: &Place, image: &str) -> Option<Vec<String>> {
    let output = tool("dumpe2fs", &["-h", image], place.0.path())?;
    assert!(output.status.success(), "{image}");
    let stable = |line: &&str| !VOLATILE.iter().any(|word| line.starts_with(word));
    Some(text(&output).lines().filter(stable).map(str::to_owned).collect())
}

/// `-E` options, then others; each against mke2fs, and against the same without the option.
#[test]
fn each_option_does_what_mke2fs_does() {
    let place = Place::new();
    let base = ["-q", "-F", "-O", "^orphan_file,^metadata_csum_seed", "-U", UUID];
    let make = |image: &str, extended: &str, rest: &[&str]| {
        let seed = format!("hash_seed={UUID}{extended}");
        let _ = std::fs::remove_file(place.path(image));
        let args = [&["mkfs"], &base[..], &["-E", &seed], rest, &[image, "512M"]].concat();
        place.run(&args).succeeds();
    };
    make("default.img", "", &[]);
    let Some(default) = header(&place, "default.img") else { return };
    let extended = ["stride=16", "stripe_width=32", "resize=4000000", "test_fs", "desc_size=128"];
    let other: [&[&str]; 24] = [
        &["-e", "panic"],
        &["-e", "remount-ro"],
        &["-M", "/mnt/x"],
        &["-L", "hello"],
        &["-J", "size=8"],
        &["-O", "fast_commit", "-J", "size=8"],
        &["-O", "^has_journal"],
        &["-G", "8"],
        &["-g", "16384"],
        &["-O", "bigalloc", "-C", "16384"],
        &["-I", "512"],
        &["-I", "128"],
        &["-i", "65536"],
        &["-N", "5000"],
        &["-m", "12.5"],
        &["-m", "0"],
        &["-b", "1024"],
        &["-b", "65536"],
        &["-O", "quota"],
        &["-O", "casefold"],
        &["-O", "^flex_bg"],
        &["-O", "large_dir,ea_inode"],
        &["-O", "^resize_inode,meta_bg"],
        &["-O", "^64bit"],
    ];
    // With a feature that gives them their meaning.
    let paired = [
        ("mmp", "mmp_update_interval=7"),
        ("sparse_super2", "num_backup_sb=1"),
        ("sparse_super2", "num_backup_sb=0"),
        ("quota", "quotatype=usrquota"),
        ("quota", "quotatype=grpquota"),
        ("casefold", "encoding=utf8-12.1,encoding_flags=strict"),
    ];
    let cases = (extended.iter().map(|e| (format!(",{e}"), vec![])))
        .chain(other.iter().map(|rest| (String::new(), rest.to_vec())))
        .chain(paired.iter().map(|(feature, e)| (format!(",{e}"), vec!["-O", feature])));
    for (extended, rest) in cases {
        let name = format!("{extended} {rest:?}");
        make("ours.img", &extended, &rest);
        let ours = header(&place, "ours.img").unwrap();
        assert_ne!(ours, default, "{name} has no effect");
        let _ = std::fs::remove_file(place.path("theirs.img"));
        let seed = format!("hash_seed={UUID}{extended}");
        let kind = ["-t", "ext4", "-E", &seed];
        let args = [&base[..], &kind, &rest[..], &["theirs.img", "512M"]].concat();
        let Some(theirs) = tool("mke2fs", &args, place.0.path()) else { return };
        assert!(theirs.status.success(), "{name}: {}", String::from_utf8_lossy(&theirs.stderr));
        assert_eq!(ours, header(&place, "theirs.img").unwrap(), "{name}");
        let check = tool("e2fsck", &["-fn", "ours.img"], place.0.path()).unwrap();
        assert!(check.status.success(), "{name}: {}", text(&check));
    }
}

/// Where the inode tables lie.
fn tables(place: &Place, image: &str) -> Option<Vec<String>> {
    let output = tool("dumpe2fs", &[image], place.0.path())?;
    let lines = text(&output);
    let tables = lines.lines().filter(|line| line.trim().starts_with("Inode table at"));
    // The offset from the group's start follows.
    Some(tables.filter_map(|line| line.split(" (").next().map(str::to_owned)).collect())
}

#[test]
fn packed_metadata_lies_where_mke2fs_puts_it() {
    let place = Place::new();
    let seed = format!("hash_seed={UUID}");
    let packed = format!("{seed},packed_meta_blocks=1");
    for (image, extended) in [("default.img", &seed), ("packed.img", &packed)] {
        place.run(&["mkfs", "-q", "-U", UUID, "-E", extended, image, "8G"]).succeeds();
    }
    let Some(default) = tables(&place, "default.img") else { return };
    let ours = tables(&place, "packed.img").unwrap();
    assert_ne!(ours, default);
    let args = ["-q", "-t", "ext4", "-O", "orphan_file,metadata_csum_seed", "-E", &packed];
    let theirs = [&args[..], &["-U", UUID, "theirs.img", "8G"]].concat();
    if tool("mke2fs", &theirs, place.0.path()).is_some() {
        assert_eq!(ours, tables(&place, "theirs.img").unwrap());
    }
}

#[test]
fn who_knows_another_mkfs_hears_how_force_is_called() {
    let place = Place::new();
    place.run(&["mkfs", "-q", "a.img", "8M"]).succeeds();
    let before = std::fs::read(place.path("a.img")).unwrap();
    place.run(&["mkfs", "a.img"]).ends_with(7).complains(&["a.img", "ext4"]).hints("--force");
    place.run(&["mkfs", "-f", "a.img"]).ends_with(2).hints("-F, or --force, overwrites");
    assert_eq!(std::fs::read(place.path("a.img")).unwrap(), before);
    place.run(&["mkfs", "-F", "-L", "new", "a.img"]).succeeds();
    assert_ne!(std::fs::read(place.path("a.img")).unwrap(), before);
}

#[test]
fn an_option_without_its_feature_is_refused() {
    let place = Place::new();
    for (options, word) in [
        (&["-E", "num_backup_sb=1"][..], "sparse_super2"),
        (&["-E", "quotatype=usrquota"], "quota"),
        (&["-E", "mmp_update_interval=7"], "mmp"),
        (&["-E", "encoding_flags=strict"], "casefold"),
        (&["-O", "^orphan_file", "-E", "orphan_file_size=40b"], "orphan_file"),
        (&["-O", "orphan_file", "-E", "orphan_file_size=513b"], "1..=512; Linux mounts none"),
        (&["-J", "fast_commit_size=2"], "fast_commit"),
        (&["-C", "16384"], "bigalloc"),
        (&["-G", "3"], "power of two"),
        (&["-m", "60"], "0..=50"),
        (&["-L", "a label of twenty-one"], "16"),
        (&["-E", "desc_size=100"], "desc_size"),
        (&["-E", "resize=10"], "resize"),
    ] {
        place.run(&[&["mkfs", "a.img", "512M"], options].concat()).ends_with(2).complains(&[word]);
        assert!(place.names().is_empty(), "{options:?}");
    }
}

/// Those that dumpe2fs does not show, or mke2fs 1.47.0 does not have.
#[test]
fn the_other_extended_options_have_their_effect() {
    let place = Place::with_image();
    let from = ["build", "b.img", "--from", "source", "-F"];
    let build = |rest: &[&str]| place.run(&[&from, rest].concat()).succeeds();
    build(&["-E", "orphan_file_size=40b"]);
    let Some(orphan) = tool("debugfs", &["-R", "stat <12>", "b.img"], place.0.path()) else {
        return;
    };
    assert!(text(&orphan).contains(&format!("Size: {}", 40 * 4096)), "{}", text(&orphan));
    build(&["-O", "fast_commit", "-J", "size=8,fast_commit_size=2", "--size", "300M"]);
    let head = header(&place, "b.img").unwrap().join("\n");
    assert!(head.contains("Total journal size:       10M"), "{head}");
    let source = place.path("source/file");
    let name = "user.extant";
    if rustix::fs::setxattr(&source, name, b"1", rustix::fs::XattrFlags::empty()).is_err() {
        println!("skipped: no extended attributes here");
        return;
    }
    build(&[]);
    let stat = place.run(&["stat", "--json", "b.img:/file"]).succeeds().json();
    assert_eq!(stat["xattrs"][0]["name"], name);
    build(&["-E", "no_copy_xattrs"]);
    let stat = place.run(&["stat", "--json", "b.img:/file"]).succeeds().json();
    assert_eq!(stat["xattrs"].as_array().unwrap().len(), 0);
}
