//! One damage at a time, by debugfs, of each kind that the checker names: what is found first, and what of the tree is
//! another one after the repair. Everything else, with modes, links, sizes, contents and attributes, is as it was.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use common::{SETS, e2fsck, planned, problems, repaired, sample};
use extant::MountOptions;
use extant_block::MemoryDevice;
use extant_format::inode::FileKind;
use extant_testkit::{image, oracle, require, tempdir};

/// A damage, and what comes of it.
struct Case {
    /// Commands of debugfs; `{ino PATH}`, `{block PATH}` and `{acl PATH}` are numbers, `{record PATH}` the block with the
    /// inode and `{at PATH BYTES}` so many bytes behind its start there.
    damage: &'static str,
    /// The findings in their order, neighbours of one kind as one.
    finds: &'static [&'static str],
    /// What differs in the tree: names that are gone or new, and fields. Another place is lost+found.
    differs: &'static [&'static str],
}

const fn case(
    damage: &'static str,
    finds: &'static [&'static str],
    differs: &'static [&'static str],
) -> Case {
    Case { damage, finds, differs }
}

/// Files of all kinds, with attributes inside of inodes and in blocks.
fn good(dir: &Path, features: &[&str]) -> Result<MemoryDevice, String> {
    let plain = sample(dir, features)?;
    let path = dir.join("good.img");
    image::save(&plain, &path);
    for (name, len) in [("middle", 500), ("large", 900), ("huge", 5000)] {
        std::fs::write(dir.join(name), vec![b'v'; len]).unwrap();
    }
    let value = |name: &str| dir.join(name).display().to_string();
    let mut commands = String::from("mknod pipe p\nmknod tty c 4 5\nmkdir links\n");
    for number in 0..80 {
        writeln!(commands, "symlink /links/{number} target").unwrap();
    }
    // What of it is in its inode e2fsck does not count for quota.
    if features.iter().any(|words| words.contains("inline_data") && !words.contains("quota")) {
        writeln!(commands, "symlink /d/inside {}", "y".repeat(80)).unwrap();
    }
    for (file, name) in [("file3", "one"), ("file4", "one"), ("file4", "two"), ("e", "one")] {
        writeln!(commands, "ea_set /d/{file} user.{name} value").unwrap();
    }
    writeln!(commands, "ea_set -f {} /d/file6 user.large", value("large")).unwrap();
    writeln!(commands, "ea_set -f {} /d/file8 user.first", value("middle")).unwrap();
    writeln!(commands, "ea_set -f {} /d/file8 user.second", value("middle")).unwrap();
    if features.iter().any(|words| words.contains("ea_inode")) {
        writeln!(commands, "ea_set -f {} /d/file9 user.huge", value("huge")).unwrap();
    }
    oracle::debugfs(&path, true, &commands)?;
    oracle::e2fsck_as(&path, "-fy", &[])?;
    let device = image::load(&path);
    assert_eq!(problems(&device), [""; 0], "{features:?}");
    Ok(device)
}

/// All that has a name: fields and their values, by path; what is in lost+found by the path that it had.
type Tree = BTreeMap<String, (u32, BTreeMap<&'static str, u64>)>;

fn tree(device: &MemoryDevice, before: Option<&Tree>) -> Tree {
    let mut all = Tree::new();
    let fs = MountOptions::new().ignore_journal(true).open(device.snapshot()).unwrap();
    for entry in fs.walk("/").unwrap() {
        let entry = entry.unwrap_or_else(|error| panic!("{}", error.error));
        let inode = entry.inode();
        let mut path = String::from_utf8_lossy(entry.path()).into_owned();
        let mut is_lost = false;
        if let Some(rest) = path.strip_prefix("/lost+found/#") {
            let (number, below) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let number: u32 = number.parse().unwrap();
            let named = before.into_iter().flatten().find(|(_, (ino, _))| *ino == number);
            if let Some((old, _)) = named {
                is_lost = below.is_empty();
                path = format!("{old}{below}");
            }
        }
        let metadata = inode.metadata();
        let hash = |bytes: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            bytes(&mut hasher);
            hasher.finish()
        };
        let is_dir = inode.kind() == FileKind::Directory;
        let mut fields = BTreeMap::new();
        fields.insert("kind", hash(&|hasher| inode.kind().hash(hasher)));
        fields.insert("place", u64::from(is_lost));
        fields.insert("inode", u64::from(metadata.ino.0));
        fields.insert("mode", u64::from(metadata.permissions));
        fields.insert("links", u64::from(metadata.links));
        fields.insert("size", if is_dir { 0 } else { metadata.size });
        fields.insert("device", hash(&|hasher| metadata.rdev.hash(hasher)));
        fields.insert(
            "contents",
            hash(&|hasher| match inode.kind() {
                FileKind::Regular => {
                    let mut bytes = vec![0; metadata.size.min(1 << 20) as usize];
                    let mut at = 0;
                    while at < bytes.len() {
                        match inode.read_at(&mut bytes[at..], at as u64).unwrap() {
                            0 => break,
                            read => at += read,
                        }
                    }
                    bytes.hash(hasher);
                }
                FileKind::Symlink => inode.read_link().unwrap().hash(hasher),
                _ => {}
            }),
        );
        for one in inode.xattrs().unwrap_or_else(|error| panic!("{path}: {error}")) {
            let name = match one.name.as_slice() {
                b"user.one" => "user.one",
                b"user.two" => "user.two",
                b"user.large" => "user.large",
                b"user.first" => "user.first",
                b"user.second" => "user.second",
                b"user.huge" => "user.huge",
                _ => "other attributes",
            };
            fields.insert(name, hash(&|hasher| one.value.hash(hasher)));
        }
        all.insert(path, (metadata.ino.0, fields));
    }
    all
}

/// What differs between two trees; `*` is for many names of one directory.
fn differences(before: &Tree, after: &Tree) -> Vec<String> {
    let mut list: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    let mut add = |path: &'_ str, what: &str| {
        let at = path.rfind('/').unwrap();
        let place = (before.get_key_value(path).or(after.get_key_value(path))).unwrap().0;
        list.entry((&place[..at], what.to_owned())).or_default().push(&place[at..]);
    };
    for (path, (_, old)) in before {
        let Some((_, new)) = after.get(path) else {
            add(path, "gone");
            continue;
        };
        let mut names: Vec<&str> = old.keys().chain(new.keys()).copied().collect();
        names.sort_unstable();
        names.dedup();
        for name in names.into_iter().filter(|name| old.get(*name) != new.get(*name)) {
            add(path, name);
        }
    }
    for path in after.keys().filter(|path| !before.contains_key(*path)) {
        add(path, "new");
    }
    let mut texts = Vec::new();
    for ((place, what), names) in list {
        match names.len() {
            0..8 => texts.extend(names.iter().map(|name| format!("{place}{name}: {what}"))),
            many => texts.push(format!("{place}/* {many}: {what}")),
        }
    }
    texts
}

/// Puts numbers in place of what stands in braces.
fn filled(damage: &str, path: &Path, before: &Tree) -> String {
    let mut text = String::new();
    for piece in damage.split_inclusive(['{', '}']) {
        let Some(word) = piece.strip_suffix('}') else {
            text.push_str(piece.trim_end_matches('{'));
            continue;
        };
        let words: Vec<&str> = word.split(' ').collect();
        let ask = |command: &str| oracle::debugfs(path, false, command).unwrap();
        let behind = |text: String, mark: &str| {
            let rest = text.split(mark).nth(1).unwrap_or_else(|| panic!("{word}: {text}"));
            let rest = rest.trim_start();
            let digits = rest.strip_prefix("0x").map_or(rest, |rest| rest);
            let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
            let radix = if digits.len() < rest.len() { 16 } else { 10 };
            u64::from_str_radix(&digits[..end], radix).unwrap()
        };
        let number = match words[0] {
            "ino" => u64::from(before[words[1]].0),
            "block" => {
                behind(ask(&format!("bmap {} 0", words[1])), &format!("bmap {} 0\n", words[1]))
            }
            "acl" => behind(ask(&format!("stat {}", words[1])), "File ACL: "),
            "record" => behind(ask(&format!("imap {}", words[1])), "located at block "),
            "at" => {
                let more: u64 = words[2].parse().unwrap();
                behind(ask(&format!("imap {}", words[1])), "offset ") + more
            }
            other => panic!("{other}"),
        };
        write!(text, "{number}").unwrap();
    }
    text
}

fn run(features: &[&str], cases: &[Case]) {
    let dir = tempdir().unwrap();
    let good = require!(good(dir.path(), features));
    let before = tree(&good, None);
    let path = dir.path().join("damaged.img");
    let mut wrong = Vec::new();
    for case in cases {
        let _removed = std::fs::remove_file(&path);
        image::save(&good, &path);
        let commands = filled(case.damage, &path, &before);
        let said = oracle::debugfs(&path, true, &commands).unwrap();
        let device = image::load(&path);
        let outcome = match repaired(&device) {
            Ok(outcome) => outcome,
            Err(error) => {
                wrong.push(format!("{}: {error}", case.damage));
                continue;
            }
        };
        let mut finds: Vec<&str> = outcome.findings.iter().map(|one| one.code).collect();
        finds.dedup();
        let differs = differences(&before, &tree(&device, Some(&before)));
        if finds != case.finds || differs != case.differs {
            wrong.push(format!("{}:\n    finds {finds:?}\n    differs {differs:?}", case.damage));
            if finds.is_empty() {
                wrong.push(said);
            }
        }
        let left: Vec<_> = outcome.findings.iter().filter(|one| one.left.is_some()).collect();
        let fsck = e2fsck(&device, dir.path(), false).unwrap();
        let found = problems(&device);
        if !outcome.is_clean || !left.is_empty() || !found.is_empty() || !fsck.is_empty() {
            wrong.push(format!("{}: left {left:?}, we find {found:?}, e2fsck {fsck}", case.damage));
        }
        if !planned(&device).unwrap().plan.is_empty() {
            wrong.push(format!("{}: there is something to do the second time", case.damage));
        }
    }
    assert!(wrong.is_empty(), "{features:?}:\n{}", wrong.join("\n"));
}

#[test]
fn inodes() {
    run(
        SETS[2],
        &[
            case("set_inode_field /d/file5 mode 0170644", &["mode"], &[]),
            case("set_inode_field /d/e mode 0170755", &["mode"], &[]),
            case("set_inode_field /d/file5 flags 0x1000", &["flags"], &[]),
            case("set_inode_field /d/file5 flags 0x281000", &["flags"], &[]),
            case("set_inode_field /d/file5 flags 0xc0000", &["sectors"], &[]),
            case("set_inode_field /d/file5 flags 0x180000", &["flags"], &[]),
            case("set_inode_field /d/file5 flags 0x80800", &["flags", "encryption"], &[]),
            case("set_inode_field /d flags 0x40080000", &["flags"], &[]),
            case("set_inode_field /d/file5 flags 0x10080000", &["flags", "size"], &[]),
            case("set_inode_field /d/fast flags 0x10", &["flags"], &[]),
            case("set_inode_field /d/fast flags 0x80000", &["extent"], &[]),
            case("set_inode_field /pipe flags 0x80000", &["flags"], &[]),
            case("set_inode_field /tty flags 0x10", &["flags"], &[]),
            case("set_inode_field /pipe size 77", &["special"], &[]),
            case("set_inode_field /tty size 77", &["special"], &[]),
            case("set_inode_field /d/fast size 30", &["symlink"], &[]),
            case("set_inode_field /d/slow size 30", &["symlink"], &[]),
            case("set_inode_field /d/slow size 200", &["symlink"], &[]),
            case(
                "zap_block -o {at /d/fast 40} -l 1 -p 0 {record /d/fast}",
                &["symlink", "entry-inode", "group-count"],
                &["/d/fast: gone"],
            ),
            case("set_inode_field /d/file5 dtime 12345", &["dtime"], &[]),
            case("set_inode_field /d/file5 faddr 7", &["reserved"], &[]),
            case("set_inode_field /d/file5 file_acl_high 7", &[], &[]),
            case("set_inode_field /d/file5 blocks_high 7", &[], &[]),
            case("set_inode_field /d/file5 extra_isize 0xfff1", &["inode"], &[]),
            case(
                "set_inode_field /d/file5 size 1000",
                &["size"],
                &["/d/file5: contents", "/d/file5: size"],
            ),
            case("set_inode_field /d size 1000", &["size"], &[]),
            case("set_inode_field /d/file5 blocks 2", &["sectors"], &[]),
            case("set_inode_field /d/file5 links_count 5", &["links"], &[]),
            case("set_inode_field /d/file3 links_count 1", &["links"], &[]),
            case("set_inode_field /d links_count 9", &["links"], &[]),
            case("set_inode_field /d/file5 links_count 0", &["entry-inode"], &[]),
            case("set_inode_field /d/file5 file_acl 99999", &["block-range"], &[]),
            case(
                "set_inode_field /d/file5 file_acl {acl /d/file6}",
                &["sectors", "xattr-references"],
                &["/d/file5: user.large"],
            ),
            case(
                "set_inode_field /d/file5 block[5] {block /d/file7}",
                &["claimed-twice", "block-bitmap"],
                &["/d/file5: contents"],
            ),
            case(
                "set_inode_field /d/file5 block[5] 99999",
                &["block-range", "block-bitmap", "group-count"],
                &["/d/file5: contents"],
            ),
            case(
                "clri <2>",
                &["special-inode", "unreachable", "block-bitmap", "group-count"],
                &[
                    "/: links",
                    "/d: place",
                    "/links: place",
                    "/lost+found: place",
                    "/many: place",
                    "/pipe: place",
                    "/sparse: place",
                    "/tty: place",
                ],
            ),
            case("set_inode_field <2> mode 0100644", &["special-inode"], &["/: mode"]),
            case("set_inode_field <2> mode 0", &["mode"], &["/: mode"]),
            case("set_inode_field <1> mode 0100644", &["special-inode"], &[]),
            case("set_inode_field <7> links_count 0", &["resize-inode"], &[]),
            case("set_inode_field <7> blocks 2", &["sectors"], &[]),
            case("set_inode_field <6> mode 0100644", &["special-inode"], &[]),
            case(
                "clri /d/file5",
                &["entry-inode", "block-bitmap", "inode-bitmap", "group-count"],
                &["/d/file5: gone"],
            ),
            case(
                "clri /d/e",
                &[
                    "entry-inode",
                    "unreachable",
                    "links",
                    "block-bitmap",
                    "inode-bitmap",
                    "group-count",
                ],
                &[
                    "/d: links",
                    "/lost+found: links",
                    "/d/e: gone",
                    "/d/file3: links",
                    "/d/e/again: gone",
                    "/d/e/f: place",
                ],
            ),
        ],
    );
}

#[test]
fn directories() {
    run(
        SETS[2],
        &[
            case("unlink /d/file7", &["unreachable"], &["/d/file7: place"]),
            case("unlink /d/file0", &["unreachable", "group-count"], &["/d/file0: gone"]),
            case("unlink /pipe", &["unreachable"], &["/pipe: place"]),
            case(
                "unlink /d/e",
                &["unreachable", "links"],
                &["/d: links", "/lost+found: links", "/d/e: place"],
            ),
            case(
                "unlink /many",
                &["unreachable", "links"],
                &["/: links", "/lost+found: links", "/many: place"],
            ),
            case(
                "unlink /d/e\nunlink /lost+found",
                &["unreachable", "links", "block-bitmap", "group-count"],
                &["/d: links", "/lost+found: place", "/d/e: place"],
            ),
            case(
                "kill_file /lost+found\nunlink /lost+found\nunlink /d/file7",
                &["dtime", "unreachable", "links", "block-bitmap", "inode-bitmap", "group-count"],
                &["/lost+found: place", "/d/file7: place"],
            ),
            case(
                "clri /lost+found\nunlink /d/file7",
                &["entry-inode", "unreachable", "links", "block-bitmap", "group-count"],
                &["/d/file7: place"],
            ),
            case(
                "unlink /lost+found\nln /d/file3 /lost+found\nunlink /d/file7",
                &["unreachable", "links", "block-bitmap", "group-count"],
                &["/lost+found: place", "/d/file7: place"],
            ),
            case("ln /d/file3 /d/file5", &[], &[]),
            case("ln /d/file3 /d/file3", &[], &[]),
            case("ln <400> /d/ghost", &["entry-inode"], &[]),
            case("ln <9999> /d/ghost", &[], &[]),
            case("ln /d/e /second", &["second-parent"], &[]),
            case(
                "ln /d/e /d/e/f/again\nunlink /d/e",
                &["dots", "loop", "unreachable", "links", "block-bitmap"],
                &["/d: links", "/lost+found: links", "/d/e: place"],
            ),
            case("ln <8> /d/journal", &["entry-inode"], &[]),
            case("zap_block -f /d -o 0 -l 1 -p 5 0", &["dots"], &[]),
            case("zap_block -f /d -o 8 -l 1 -p 65 0", &["dots", "second-parent"], &[]),
            case("zap_block -f /d -o 12 -l 1 -p 5 0", &["dots"], &[]),
            case(
                "zap_block -f /d -o 20 -l 1 -p 65 0",
                &["dots", "entry-inode", "block-bitmap"],
                &[],
            ),
            case("zap_block -f /d -o 9 -l 1 -p 65 0", &["dots-end"], &[]),
            case("zap_block -f /d -o 22 -l 1 -p 65 0", &["dots-end"], &[]),
            case("zap_block -f /d -o 19 -l 1 -p 1 0", &["entry-type"], &[]),
            case("zap_block -f /d -o 7 -l 1 -p 1 0", &["entry-type"], &[]),
            case("zap_block -f /d -o 31 -l 1 -p 5 0", &["entry-type"], &[]),
            case("zap_block -f /d -o 31 -l 1 -p 0 0", &["entry-type"], &[]),
            case("zap_block -f /d -o 28 -l 1 -p 3 0", &["dir"], &[]),
            case("zap_block -f /d -o 33 -l 1 -p 0 0", &[], &[]),
            case("zap_block -f /d -o 33 -l 1 -p 47 0", &[], &[]),
            case(
                "zap_block -f /d/e -p 0 0",
                &["dir", "unreachable", "links"],
                &[
                    "/lost+found: links",
                    "/d/e: links",
                    "/d/file3: links",
                    "/d/e/again: gone",
                    "/d/e/f: place",
                ],
            ),
            case(
                "zap_block -f /many -p 0 0",
                &["htree", "dir", "block-bitmap", "group-count"],
                &[],
            ),
            case(
                "zap_block -f /many -p 0 2",
                &["dir", "unreachable", "block-bitmap", "group-count"],
                &["/many/* 9: gone"],
            ),
            case(
                "zap_block -f /many -o 200 -l 1 -p 7 3",
                &["htree-hash", "block-bitmap", "group-count"],
                &[
                    "/many/a long name so that there are many blocks 0000000000000000000000000000000000000144: gone",
                    "/many/a long n\u{7}me so that there are many blocks 0000000000000000000000000000000000000144: new",
                ],
            ),
            case(
                "zap_block -f /many -o 28 -l 1 -p 9 0",
                &["htree", "block-bitmap", "group-count"],
                &[],
            ),
            case(
                "zap_block -f /many -o 44 -l 2 -p 9 0",
                &["htree", "block-bitmap", "group-count"],
                &[],
            ),
            case(
                "punch /many 3 3",
                &["dir-hole", "htree", "unreachable", "block-bitmap", "group-count"],
                &["/many/* 9: gone"],
            ),
            case("set_inode_field /many flags 0x80000", &[], &[]),
            case("set_inode_field /d flags 0x81000", &["htree", "block-bitmap"], &[]),
            case("set_super_value last_orphan {ino /d/file5}", &["orphans"], &[]),
            case(
                "set_inode_field /d/file5 links_count 0\nunlink /d/file5\nset_super_value last_orphan {ino /d/file5}",
                &["orphans", "block-bitmap", "group-count"],
                &["/d/file5: gone"],
            ),
            case(
                "set_inode_field /d/file5 size 2000\nset_super_value last_orphan {ino /d/file5}",
                &["orphans", "block-bitmap", "group-count"],
                &["/d/file5: contents", "/d/file5: size"],
            ),
            case(
                "clri /links\nclri /lost+found",
                &[
                    "entry-inode",
                    "unreachable",
                    "links",
                    "block-bitmap",
                    "inode-bitmap",
                    "group-count",
                ],
                &["/links: gone", "/: links", "/links/* 80: place"],
            ),
        ],
    );
}

#[test]
fn attributes() {
    run(
        SETS[2],
        &[
            case("zap_block -o 4 -l 1 -p 9 {acl /d/file6}", &["xattr-references"], &[]),
            case(
                "zap_block -o 0 -l 1 -p 9 {acl /d/file6}",
                &["xattr", "sectors", "block-bitmap", "group-count"],
                &["/d/file6: user.large"],
            ),
            case(
                "zap_block -o 8 -l 1 -p 9 {acl /d/file6}",
                &["xattr", "sectors", "block-bitmap", "group-count"],
                &["/d/file6: user.large"],
            ),
            case("zap_block -o 12 -l 1 -p 9 {acl /d/file6}", &["xattr-block-hash"], &[]),
            case(
                "zap_block -o 44 -l 1 -p 9 {acl /d/file8}",
                &["xattr-entry-hash", "sectors", "block-bitmap", "group-count"],
                &["/d/file8: user.first"],
            ),
            case(
                "zap_block -o 48 -l 1 -p 0 {acl /d/file8}",
                &["xattr", "sectors", "block-bitmap", "group-count"],
                &["/d/file8: user.first"],
            ),
            case(
                "zap_block -o 32 -l 1 -p 200 {acl /d/file8}",
                &["xattr", "sectors", "block-bitmap", "group-count"],
                &["/d/file8: user.first"],
            ),
            case(
                "zap_block -o 34 -l 2 -p 255 {acl /d/file8}",
                &["xattr", "sectors", "block-bitmap", "group-count"],
                &["/d/file8: user.first"],
            ),
            case(
                "zap_block -o 36 -l 1 -p 77 {acl /d/file8}",
                &["xattr-inode", "sectors", "block-bitmap", "group-count"],
                &["/d/file8: user.first"],
            ),
            case(
                "zap_block -o 40 -l 3 -p 77 {acl /d/file8}",
                &["xattr", "sectors", "block-bitmap", "group-count"],
                &["/d/file8: user.first"],
            ),
            case(
                "zap_block -o {at /d/file4 164} -l 1 -p 255 {record /d/file4}",
                &["xattr"],
                &["/d/file4: user.one", "/d/file4: user.two"],
            ),
            case(
                "zap_block -o {at /d/file4 166} -l 2 -p 255 {record /d/file4}",
                &["xattr"],
                &["/d/file4: user.one"],
            ),
            case(
                "zap_block -o {at /d/file4 168} -l 1 -p 12 {record /d/file4}",
                &["xattr-inode"],
                &["/d/file4: user.one"],
            ),
            case(
                "zap_block -o {at /d/file4 180} -l 1 -p 0 {record /d/file4}",
                &["xattr"],
                &["/d/file4: user.one"],
            ),
            case(
                "zap_block -o {at /d/file4 160} -l 1 -p 9 {record /d/file4}",
                &[],
                &["/d/file4: user.one", "/d/file4: user.two"],
            ),
        ],
    );
}

#[test]
fn whole_file_system() {
    run(
        SETS[2],
        &[
            case("set_super_value free_blocks_count 1", &["superblock-count"], &[]),
            case("set_super_value free_inodes_count 1", &["superblock-count"], &[]),
            case("set_super_value state 2", &["state"], &[]),
            case("set_super_value min_extra_isize 9999", &["superblock"], &[]),
            case("set_super_value want_extra_isize 131", &["superblock"], &[]),
            case("set_super_value journal_inum 12", &["special-inode"], &[]),
            case("set_bg 0 free_blocks_count 3\nset_bg 0 checksum calc", &["group-count"], &[]),
            case("set_bg 0 itable_unused 200\nset_bg 0 checksum calc", &["table-unused"], &[]),
            case("set_bg 1 inode_table 99999", &["group"], &[]),
            case("set_bg 0 block_bitmap 99999", &["group"], &[]),
            case("set_bg 0 inode_bitmap 99999", &["group"], &[]),
            case("set_bg 0 checksum 7", &["group"], &[]),
            case("freeb {block /d/file5}", &["block-bitmap"], &[]),
            case("setb 9000", &["block-bitmap"], &[]),
            case("freei /d/file5", &["inode-bitmap"], &[]),
            case("seti <400>", &["table-unused", "inode-bitmap"], &[]),
            case("clri <7>", &["resize-inode", "block-bitmap"], &[]),
            case("clri <8>", &["special-inode", "block-bitmap"], &[]),
            case(
                "feature ^resize_inode",
                &["resize-inode", "block-bitmap", "group-count", "block-bitmap", "group-count"],
                &[],
            ),
            case(
                "feature ^resize_inode\nclri <7>",
                &["resize-inode", "block-bitmap", "group-count", "block-bitmap", "group-count"],
                &[],
            ),
            case("feature ^large_file ^ext_attr", &["reserved"], &[]),
            case("set_super_value first_ino 20", &["special-inode"], &[]),
            case("feature ^dir_index", &["flags"], &[]),
            case("feature ^filetype", &["entry-type", "block-bitmap", "group-count"], &[]),
            case("feature ^extent", &["flags"], &[]),
            case("feature ^has_journal", &["journal-state", "block-bitmap", "group-count"], &[]),
            case("feature orphan_present", &["feature-alone"], &[]),
            case("feature mmp", &["feature-alone"], &[]),
            case("feature casefold", &["feature-alone"], &[]),
        ],
    );
}

#[test]
fn quotas_and_what_lies_in_inodes() {
    run(
        SETS[3],
        &[
            case(
                "feature ^filetype",
                &["entry-type", "quota-usage", "block-bitmap", "group-count"],
                &[],
            ),
            case("clri <3>", &["special-inode", "block-bitmap"], &[]),
            // Somebody's file keeps its contents.
            case(
                "set_super_value prj_quota_inum {ino /d/file5}",
                &[
                    "entry-inode",
                    "unreachable",
                    "quota-usage",
                    "quota",
                    "unreachable",
                    "quota-usage",
                    "block-bitmap",
                    "group-count",
                ],
                &["/d/file5: place", "/lost+found/#12: new"],
            ),
            case("feature ^quota", &["special-inode", "block-bitmap", "group-count"], &[]),
            case("clri <4>", &["special-inode", "block-bitmap"], &[]),
            case("zap_block -f <3> 1", &["quota-usage", "block-bitmap"], &[]),
            case("zap_block -f <4> 0", &["quota", "block-bitmap"], &[]),
            case("set_inode_field <3> size 3000", &["size"], &[]),
            case(
                "set_super_value usr_quota_inum 0",
                &["special-inode", "block-bitmap", "group-count"],
                &[],
            ),
            case(
                "set_super_value prj_quota_inum 0",
                &["unreachable", "quota-usage", "block-bitmap"],
                &["/lost+found/#12: new"],
            ),
            case("set_inode_field /d/file5 projid 7", &["quota-usage", "block-bitmap"], &[]),
            case("set_inode_field /d/file5 uid 7", &["quota-usage", "block-bitmap"], &[]),
            case("set_inode_field /d/e mode 0170755", &["mode"], &[]),
            case(
                "set_inode_field /d/e/f mode 0170755",
                &["mode", "entry-inode", "links", "quota-usage", "block-bitmap", "group-count"],
                &["/d/e: links", "/d/e/f: gone"],
            ),
            case(
                "unlink /d/e/f",
                &["unreachable", "links"],
                &["/lost+found: links", "/d/e: links", "/d/e/f: place"],
            ),
            case(
                "unlink /d/e",
                &["unreachable", "links"],
                &["/d: links", "/lost+found: links", "/d/e: place"],
            ),
            case(
                "unlink /d/e/again\nln <400> /d/e/ghost",
                &["entry-inode", "links"],
                &["/d/file3: links", "/d/e/again: gone"],
            ),
            case("ln /d/file3 /d/e/again", &[], &[]),
            case(
                "set_inode_field /d/e flags 0x80000",
                &[
                    "extent",
                    "size",
                    "dir-hole",
                    "unreachable",
                    "links",
                    "quota-usage",
                    "block-bitmap",
                    "group-count",
                ],
                &[
                    "/lost+found: links",
                    "/d/e: links",
                    "/d/file3: links",
                    "/d/e/again: gone",
                    "/d/e/f: place",
                ],
            ),
            case("set_inode_field /d/e size 30", &["size"], &[]),
            case("set_inode_field /d/e block[0] 5", &["dots"], &[]),
            case("set_inode_field /d/fast flags 0x10000000", &["size"], &[]),
            case("set_inode_field /d/file5 flags 0x10000000", &["size"], &[]),
            case("set_inode_field /d/file5 flags 0x10080000", &["flags", "size"], &[]),
            case("set_inode_field /d/e flags 0x10001000", &["flags"], &[]),
            case("feature ^inline_data", &["flags"], &[]),
            case(
                "feature ^ea_inode",
                &["xattr-inode", "flags", "unreachable", "sectors"],
                &[
                    "/d/file9: user.huge",
                    "/d/file8: user.second",
                    "/lost+found/#273: new",
                    "/lost+found/#274: new",
                ],
            ),
            case(
                "ea_rm /d/file9 user.huge\nea_set /d/file9 user.huge 1",
                &["sectors", "quota-usage", "block-bitmap"],
                &["/d/file9: user.huge"],
            ),
        ],
    );
}

#[test]
fn clusters() {
    run(
        SETS[4],
        &[
            case(
                "set_inode_field /d/file5 block[5] {block /d/file7}",
                &["claimed-twice", "block-bitmap"],
                &["/d/file5: contents"],
            ),
            case("set_inode_field /d/file5 flags 0", &["flags"], &[]),
            case("unlink /d/file7", &["unreachable"], &["/d/file7: place"]),
            case(
                "unlink /many",
                &["unreachable", "links"],
                &["/: links", "/lost+found: links", "/many: place"],
            ),
            case(
                "clri /lost+found\nunlink /d/file7",
                &["entry-inode", "unreachable", "links", "block-bitmap", "group-count"],
                &["/d/file7: place"],
            ),
            case("freeb {block /d/file5}", &["block-bitmap"], &[]),
            case(
                "clri /links\nclri /lost+found",
                &[
                    "entry-inode",
                    "unreachable",
                    "links",
                    "block-bitmap",
                    "inode-bitmap",
                    "group-count",
                ],
                &["/links: gone", "/: links", "/links/* 80: place"],
            ),
        ],
    );
}

#[test]
fn orphan_files() {
    run(
        SETS[6],
        &[
            // Who has it set, and has unmounted: e2fsck finds that, too.
            case("feature orphan_present", &["feature-alone"], &[]),
            case("feature ^filetype", &["entry-type", "block-bitmap"], &[]),
            case(
                "set_super_value orphan_file_inum 0",
                &["special-inode", "unreachable", "block-bitmap", "group-count"],
                &["/lost+found/#12: new"],
            ),
            case("zap_block -f <12> -o 4092 -l 4 -p 1 0", &["orphan-file"], &[]),
            case("zap_block -f <12> -o 0 -l 1 -p 20 0", &["orphan-file"], &[]),
            case("clri <12>", &["special-inode", "block-bitmap"], &[]),
            case("feature ^orphan_file", &["special-inode", "block-bitmap", "group-count"], &[]),
            // Another file than an orphan file is not taken away.
            case(
                "feature ^orphan_file\nset_super_value orphan_file_inum {ino /d/file5}",
                &["special-inode", "unreachable"],
                &["/lost+found/#12: new"],
            ),
            // Somebody's file stays as it is, also where the feature is on and the number leads to it.
            case(
                "feature ^has_journal\nset_super_value journal_inum 0\nclri <8>\nset_super_value orphan_file_inum {ino /d/file5}",
                &["special-inode", "unreachable", "block-bitmap", "group-count"],
                &["/lost+found/#12: new"],
            ),
            case(
                "set_super_value orphan_file_inum {ino /d/file5}",
                &["orphan-file", "size", "unreachable", "block-bitmap", "group-count"],
                &["/lost+found/#12: new"],
            ),
            // As tune2fs 1.47.0 leaves it, with nothing in it, or with an inode that was open.
            case(
                "feature ^has_journal\nset_super_value journal_inum 0\nclri <8>",
                &["special-inode", "block-bitmap", "group-count"],
                &[],
            ),
        ],
    );
}

#[test]
fn pointers() {
    run(
        SETS[0],
        &[
            case(
                "set_inode_field /d/file5 flags 0x80000",
                &["flags", "extent", "block-bitmap"],
                &[],
            ),
            case(
                "set_inode_field /d/file5 block[2] {block /d/file7}",
                &["claimed-twice", "block-bitmap"],
                &["/d/file5: contents"],
            ),
            case(
                "set_inode_field /d/file5 block[2] 99999",
                &["block-range", "block-bitmap", "group-count"],
                &["/d/file5: contents"],
            ),
            case(
                "set_inode_field /sparse block[IND] 99999",
                &["block-range", "block-bitmap", "group-count"],
                &["/sparse: contents"],
            ),
            case(
                "set_inode_field /sparse block[DIND] {block /d/file7}",
                &["claimed-twice", "block-bitmap", "group-count"],
                &["/sparse: contents"],
            ),
            case(
                "set_inode_field /sparse block[TIND] 99999",
                &["block-range", "block-bitmap"],
                &[],
            ),
            case(
                "set_inode_field /d/e block[0] 0",
                &["size", "dir-hole", "unreachable", "links", "block-bitmap"],
                &[
                    "/lost+found: links",
                    "/d/e: links",
                    "/d/file3: links",
                    "/d/e/again: gone",
                    "/d/e/f: place",
                ],
            ),
            case(
                "set_inode_field /d/file5 size 1000",
                &["size"],
                &["/d/file5: contents", "/d/file5: size"],
            ),
            case(
                "unlink /many",
                &["unreachable", "links"],
                &["/: links", "/lost+found: links", "/many: place"],
            ),
            case(
                "clri <2>",
                &["special-inode", "unreachable", "block-bitmap", "group-count"],
                &[
                    "/: links",
                    "/d: place",
                    "/links: place",
                    "/lost+found: place",
                    "/many: place",
                    "/pipe: place",
                    "/sparse: place",
                    "/tty: place",
                ],
            ),
        ],
    );
}

#[test]
fn links_in_inodes() {
    run(
        &["-text4", "-b1024", "-Oinline_data", "-Jsize=1"],
        &[
            case("set_inode_field /d/inside size 30", &["size"], &[]),
            case(
                "set_inode_field /d/inside flags 0x80000",
                &["extent", "symlink", "entry-inode", "group-count"],
                &["/d/inside: gone"],
            ),
            case(
                "set_inode_field /d/inside flags 0",
                &["block-range", "symlink", "entry-inode", "group-count"],
                &["/d/inside: gone"],
            ),
            case("set_inode_field /d/fast flags 0x10000000", &["size"], &[]),
            case("set_inode_field /d/fast flags 0x10080000", &["flags", "size"], &[]),
            case("set_inode_field /d/slow flags 0x10080000", &["flags", "size"], &[]),
        ],
    );
}
