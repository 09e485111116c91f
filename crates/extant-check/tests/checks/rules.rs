//! Rules that hold between structures: what an encrypted directory may have in it, where hashes of an index lie, which
//! files may hold something. Each damage is told as what it is, and e2fsck calls it damage, too.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use extant_base::BlockSize;
use extant_block::{BlockDevice, MemoryDevice};
use extant_check::{CheckOptions, Problem, check};
use extant_image::MasterKey;
use extant_image::attributes::fold_case;
use extant_image::encrypt::encrypt;
use extant_image::options::MkfsOptions;
use extant_image::output::Output;
use extant_image::plan::{BuildOptions, SizeSpec, plan};
use extant_image::profile::Profile;
use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::tree::Tree;
use extant_image::write::{NoProgress, WriteOptions, write_image};
use extant_testkit::{image, oracle, require, tempdir};

fn found(device: &MemoryDevice) -> Vec<Problem> {
    check(device, &CheckOptions::default()).unwrap().problems
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// Whether e2fsck finds something.
fn is_damaged(device: &MemoryDevice, dir: &Path) -> bool {
    !image::e2fsck(device, dir).unwrap().is_empty()
}

fn debugged(good: &MemoryDevice, dir: &Path, commands: &str) -> MemoryDevice {
    let path = dir.join("debugged.img");
    let _removed = fs::remove_file(&path);
    image::save(good, &path);
    oracle::debugfs(&path, true, commands).unwrap();
    image::load(&path)
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The places of some bytes.
fn places(device: &MemoryDevice, wanted: &[u8]) -> Vec<u64> {
    let all = bytes(device);
    let windows = all.windows(wanted.len()).enumerate();
    windows.filter(|(_, window)| *window == wanted).map(|(at, _)| at as u64).collect()
}

/// `/a` and `/b` are encrypted with different keys, each has `inside`; `/plain` is not.
fn encrypted(dir: &Path) -> MemoryDevice {
    let source = dir.join("source");
    for name in ["a", "b"] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("inside"), b"text").unwrap();
    }
    fs::write(source.join("plain"), b"text").unwrap();
    built(dir, "encrypt", 4096, |tree| {
        for (name, byte) in [(b"a", 1), (b"b", 2)] {
            encrypt(tree, name, &MasterKey::new(&[byte; 64]).unwrap()).unwrap();
        }
    })
}

/// An image of the directory `source`, without checksums, of the tree as `prepare` has made it.
fn built(dir: &Path, feature: &str, block: u64, prepare: impl FnOnce(&mut Tree)) -> MemoryDevice {
    let threads = NonZeroUsize::new(1).unwrap();
    let options = ScanOptions { threads, ..ScanOptions::default() };
    let mut scanned = scan_dir(&dir.join("source"), &options).unwrap();
    prepare(&mut scanned.tree);
    let mut mkfs = MkfsOptions::new(Profile::Default)
        .with_features(&format!("{feature},^metadata_csum,^metadata_csum_seed,^has_journal"))
        .unwrap();
    mkfs.block_size = Some(BlockSize::new(block).unwrap());
    let options = BuildOptions { mkfs, size: SizeSpec::Bytes(4 << 20), reproducible: false };
    let plan = plan(&mut scanned.tree, &options).unwrap();
    let path = dir.join("built.img");
    let output = Output::create(&path, plan.image_bytes()).unwrap();
    let options = WriteOptions {
        threads: 1,
        target_is_zeroed: output.is_zeroed(),
        progress: &NoProgress,
        cancel: &AtomicBool::new(false),
    };
    write_image(&plan, &scanned.tree, &*scanned.contents, output.device(), &options).unwrap();
    output.commit().unwrap();
    image::load(&path)
}

/// The number of what has the one name, which nobody can type, in an encrypted directory.
fn only_entry(path: &Path, dir: &str) -> String {
    let text = oracle::debugfs(path, false, &format!("ls -p {dir}")).unwrap();
    let mut numbers = text.lines().filter_map(|line| {
        let mut parts = line.split('/').skip(1);
        let ino = parts.next()?;
        let mode = parts.next()?;
        mode.starts_with("10").then(|| ino.to_owned())
    });
    numbers.next_back().unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn an_encrypted_directory_has_only_what_is_encrypted_like_it() {
    require!(oracle::Tool::find("debugfs"));
    require!(oracle::Tool::find("e2fsck"));
    let dir = tempdir().unwrap();
    let good = encrypted(dir.path());
    assert_eq!(texts(&found(&good)), [""; 0]);
    assert!(!is_damaged(&good, dir.path()));
    let path = dir.path().join("built.img");
    let (in_a, in_b) = (only_entry(&path, "/a"), only_entry(&path, "/b"));
    let name = "0123456789abcdef";
    let cases: &[(String, &[&str])] = &[
        (format!("link /plain /a/{name}\nsif /plain links_count 2"), &["which is not encrypted"]),
        (
            format!("link <{in_b}> /a/{name}\nsif <{in_b}> links_count 2"),
            &["which is encrypted in another way"],
        ),
        (format!("link <{in_a}> /a/{name}\nsif <{in_a}> links_count 2"), &[]),
        (format!("link <{in_a}> /plain2\nsif <{in_a}> links_count 2"), &[]),
        (
            "link /plain /a/short\nsif /plain links_count 2".to_owned(),
            &["entry \"short\"", "2 links, 1 counted"],
        ),
        // Special files have no contents, and are never encrypted.
        (format!("mknod fifo p\nlink /fifo /a/{name}\nsif /fifo links_count 2"), &[]),
        (format!("sif <{in_a}> flags 0x80000"), &["which is not encrypted"]),
    ];
    for (commands, wanted) in cases {
        let device = debugged(&good, dir.path(), commands);
        let texts = texts(&found(&device));
        let fsck = image::e2fsck(&device, dir.path()).unwrap();
        assert_eq!(texts.is_empty(), fsck.is_empty(), "{commands}: {texts:?}\n{fsck}");
        assert_eq!(texts.len(), wanted.len(), "{commands}: {texts:?}");
        assert!(texts.iter().zip(*wanted).all(|(t, w)| t.contains(w)), "{commands}: {texts:?}");
    }
    // Contexts, each with the key in it: of `/a` and what is inside, then of `/b`.
    let contexts = places(&good, &[2, 1, 4, 3, 0, 0, 0, 0]);
    let [a, b, inside_a, inside_b] = contexts[..] else { panic!("{contexts:?}") };
    let other = "which is encrypted in another way";
    let damaged = "and its context is damaged";
    let cases: &[(&[u64], u8, &str)] = &[
        (&[inside_a], 0, damaged),
        (&[a], 0, damaged),
        // Version 1 is shorter.
        (&[inside_b], 1, damaged),
        // Of a later version nothing is known, but that it is not this one.
        (&[inside_b], 3, other),
        (&[b], 3, other),
        (&[b, inside_b], 3, ""),
        (&[b, inside_b], 2, ""),
    ];
    for (contexts, version, wanted) in cases {
        let device = good.snapshot();
        for at in *contexts {
            device.write_at(*at, &[*version]).unwrap();
        }
        let told = texts(&found(&device)).join("\n");
        let fsck = image::e2fsck(&device, dir.path()).unwrap();
        let what = format!("{contexts:?} of version {version}: {told}\n{fsck}");
        assert_eq!(told.is_empty(), wanted.is_empty(), "{what}");
        assert!(told.contains(wanted), "{what}");
        assert_eq!(told.is_empty(), fsck.is_empty(), "{what}");
    }
}

#[test]
fn names_that_are_there_twice_are_counted_each() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    let words = ["-text4", "-b1024", "-O^metadata_csum,^uninit_bg,^dir_index"];
    require!(oracle::mke2fs(&path, "2M", &words));
    let names: Vec<String> = (0..6).map(|number| format!("a name {number}")).collect();
    let mut commands = String::from("mkdir /d\ncd /d\n");
    for name in &names {
        commands += &format!("mknod \"{name}\" p\n");
    }
    oracle::debugfs(&path, true, &commands).unwrap();
    let good = image::load(&path);
    assert_eq!(texts(&found(&good)), [""; 0]);
    // 0 1 2 0 1 5: neither pair is side by side.
    for (from, to) in [(3, b"0"), (4, b"1")] {
        let at = places(&good, names[from].as_bytes());
        let [at] = at[..] else { panic!("{at:?}") };
        good.write_at(at + 7, to).unwrap();
    }
    let found = found(&good);
    let [Problem::DuplicateName { name: first, .. }, Problem::DuplicateName { name: second, .. }] =
        &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!([first, second], [&names[0], &names[1]]);
    assert!(is_damaged(&good, dir.path()));
}

#[test]
fn a_directory_of_strict_names_has_only_those_in_unicode() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    for (encoding, is_strict) in
        [("encoding=utf8,encoding_flags=strict", true), ("encoding=utf8", false)]
    {
        let features = "-O^metadata_csum,^uninit_bg,^dir_index,casefold";
        let words = ["-text4", "-b1024", features, "-E", encoding];
        let _removed = fs::remove_file(&path);
        require!(oracle::mke2fs(&path, "2M", &words));
        for (flags, is_folded) in [("0x40080000", true), ("0x80000", false)] {
            let commands = format!("mkdir /d\nsif /d flags {flags}\ncd /d\nmknod name p");
            let device = debugged(&image::load(&path), dir.path(), &commands);
            assert_eq!(texts(&found(&device)), [""; 0]);
            let at = places(&device, b"\x04\x05name");
            let [at] = at[..] else { panic!("{at:?}") };
            device.write_at(at + 2, b"\xff").unwrap();
            let found = found(&device);
            let told = matches!(found[..], [Problem::Name { .. }]);
            assert_eq!(told, is_strict && is_folded, "{words:?} {flags}: {found:?}");
            assert_eq!(is_damaged(&device, dir.path()), told, "{words:?} {flags}");
        }
    }
}

#[test]
fn an_orphan_file_that_may_hold_nothing_holds_nothing() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    let words = ["-text4", "-b1024", "-Oorphan_file,^metadata_csum,^uninit_bg", "-N64"];
    require!(oracle::mke2fs(&path, "2M", &words));
    // A file without a name: an orphan.
    let commands = "mknod file p\nsif file mode 0100644\nsif file links_count 0\nunlink file";
    let device = debugged(&image::load(&path), dir.path(), commands);
    let blocks = places(&device, &0x0b10_ca04u32.to_le_bytes());
    assert!(!blocks.is_empty());
    device.write_at(blocks[0] - blocks[0] % 1024, &13u32.to_le_bytes()).unwrap();
    let told = texts(&found(&device));
    assert!(told.iter().any(|text| text.contains("but none may be")), "{told:?}");
    assert!(is_damaged(&device, dir.path()));
    // With the feature it is an orphan, and nothing else is wrong.
    let mut sb = [0; 1024];
    device.read_at(1024, &mut sb).unwrap();
    sb[0x66] |= 1;
    device.write_at(1024, &sb).unwrap();
    let found = found(&device);
    assert!(matches!(found[..], [Problem::Orphans { count: 1 }]), "{found:?}");
}

#[test]
fn hashes_of_an_index_lie_within_those_of_the_level_above() {
    let dir = tempdir().unwrap();
    let (path, source) = (dir.path().join("image"), dir.path().join("source"));
    fs::create_dir_all(source.join("d")).unwrap();
    for number in 0..520 {
        fs::write(source.join(format!("d/{number:0245}")), []).unwrap();
    }
    let from = source.display().to_string();
    let words =
        ["-text4", "-b1024", "-O^metadata_csum,^uninit_bg,^has_journal", "-N1024", "-d", &from];
    require!(oracle::mke2fs(&path, "4M", &words));
    oracle::e2fsck_as(&path, "-fyD", &[]).unwrap();
    let good = image::load(&path);
    assert_eq!(texts(&found(&good)), [""; 0]);
    let text = oracle::debugfs(&path, false, "blocks /d").unwrap();
    let blocks: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let u32_at = |at: u64| {
        let mut bytes = [0; 4];
        good.read_at(at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    let root = blocks[0] * 1024;
    assert_eq!(u32_at(root + 0x1c) >> 16 & 0xff, 1, "the index has two levels");
    // The second inner node begins with the hash that the root has beside it.
    let (low, node) = (u32_at(root + 0x28), blocks[u32_at(root + 0x2c) as usize] * 1024);
    // The first one ends there, and the last record is where the one before it ends.
    let first = blocks[u32_at(root + 0x24) as usize] * 1024;
    let last = first + u64::from(u32_at(first + 8) >> 16) * 8;
    for (record, hash, leaf, told) in [
        (node + 16, low - 2, u32_at(node + 20), low - 2),
        (last, low + 2, u32_at(last - 4), low + 1),
    ] {
        let device = good.snapshot();
        device.write_at(record, &hash.to_le_bytes()).unwrap();
        let found = found(&device);
        let wanted = |p: &Problem| matches!(p, Problem::HtreeRange { block, hash, .. } if block.0 == leaf && *hash == told);
        assert!(found.iter().any(wanted), "{told:#x} in block {leaf}: {found:?}");
        assert!(is_damaged(&device, dir.path()));
    }
}

/// The names are in folded form where they are hashed: another hash in the index, or another name, is damage.
#[test]
fn hashes_of_names_whose_case_is_ignored_lie_within_those_of_the_index() {
    require!(oracle::Tool::find("e2fsck"));
    let dir = tempdir().unwrap();
    let source = dir.path().join("source/d");
    fs::create_dir_all(&source).unwrap();
    for number in 0..60 {
        fs::write(source.join(format!("STRASSE, Straße 0123456789 {number:03}")), []).unwrap();
        fs::write(source.join(format!("Plain NAME with some LETTERS {number:03}")), []).unwrap();
    }
    let good = built(dir.path(), "casefold", 1024, |tree| assert!(fold_case(tree, b"d")));
    assert_eq!(texts(&found(&good)), [""; 0]);
    assert!(!is_damaged(&good, dir.path()));
    let text = oracle::debugfs(&dir.path().join("built.img"), false, "blocks /d").unwrap();
    let root = text.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap() * 1024;
    let mut hash = [0; 4];
    // The third of the records of the root, behind 24 bytes of `.` and `..` and 8 of what kind of index it is.
    good.read_at(root + 0x30, &mut hash).unwrap();
    let device = good.snapshot();
    let more = u32::from_le_bytes(hash) + 0x0100_0000;
    device.write_at(root + 0x30, &more.to_le_bytes()).unwrap();
    let told = found(&device);
    assert!(told.iter().any(|one| matches!(one, Problem::HtreeHash { .. })), "{told:?}");
    assert!(is_damaged(&device, dir.path()));
}
