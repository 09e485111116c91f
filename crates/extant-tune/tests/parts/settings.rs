//! Settings and bits: dumpe2fs shows what it shows after tune2fs, and what cannot be is refused before anything changes.

use std::path::Path;

use extant_block::{BlockDevice, MemoryDevice};
use extant_format::features::{DefaultHash, Encoding, EncodingFlags, Feature};
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_testkit::{image, oracle, require, tempdir};
use extant_tune::{Request, TuneError};

use crate::common::{LAYOUTS, Layout, e2fsck, features, made, problems, seen, tuned};
use crate::damaged::failed;
use crate::shown;

/// What dumpe2fs shows after tune2fs did as it was told; `None` where it refuses.
fn theirs(
    device: &MemoryDevice,
    dir: &Path,
    words: &[&str],
) -> Result<Option<std::collections::BTreeMap<String, String>>, String> {
    let path = dir.join("theirs.img");
    let _removed = std::fs::remove_file(&path);
    image::save(device, &path);
    let tool = oracle::Tool::find("tune2fs")?;
    let output = tool.command().arg("-f").args(words).arg(&path).output().unwrap();
    if !output.status.success() {
        return Ok(None);
    }
    let checked = oracle::e2fsck_as(&path, "-fy", &[])?;
    assert!(matches!(checked.status, Some(0 | 1)), "{words:?}: {}", checked.text);
    shown(&path).map(Some)
}

/// What a feature needs may be asked for beside it, in whatever order.
#[test]
fn features_that_need_each_other_are_switched_by_one_request() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[0]));
    let refused = tuned(&first, &features("64bit")).unwrap_err().to_string();
    assert!(refused.contains("-O extent"), "{refused}");
    let (device, _) = tuned(&first, &features("verity,64bit,extent")).unwrap();
    assert_eq!(require!(e2fsck(&device, dir.path())), "");
    assert_eq!(problems(&device), Vec::<String>::new());
    assert_eq!(seen(&first), seen(&device));
}

/// How wide numbers of blocks and how large inodes are said to be, after whoever else makes them so.
#[test]
fn widths_and_sizes_are_said_as_resize2fs_and_tune2fs_say_them() {
    let cases: [(Layout, &str, &[&str], Request); 4] = [
        (LAYOUTS[1], "resize2fs", &["-s"], features("^64bit")),
        (LAYOUTS[5], "resize2fs", &["-b"], features("64bit")),
        (
            Layout::new(
                &["-text4", "-b1024", "-I128", "-O^extra_isize,^flex_bg", "-Jsize=4"],
                "24M",
            ),
            "tune2fs",
            &["-f", "-I", "256"],
            settings(|r| r.inode_size = Some(256)),
        ),
        (
            Layout::new(&["-text4", "-b1024", "-O^flex_bg", "-Jsize=4"], "24M"),
            "tune2fs",
            &["-f", "-I", "512"],
            settings(|r| r.inode_size = Some(512)),
        ),
    ];
    let keys = [
        "Group descriptor size",
        "Inode size",
        "Required extra isize",
        "Desired extra isize",
        "Inode blocks per group",
    ];
    let mut said = 0;
    for (layout, name, words, request) in cases {
        let dir = tempdir().unwrap();
        let device = require!(made(dir.path(), layout));
        let path = dir.path().join("theirs.img");
        image::save(&device, &path);
        require!(oracle::e2fsck_as(&path, "-fy", &[]));
        let tool = require!(oracle::Tool::find(name));
        let ran = tool.command().args(words).arg(&path).output().unwrap();
        let theirs = require!(shown(&path));
        let (ours, _) = tuned(&device, &request).unwrap_or_else(|e| panic!("{words:?}: {e}"));
        assert_eq!(require!(e2fsck(&ours, dir.path())), "", "{words:?}");
        std::fs::remove_file(&path).unwrap();
        image::save(&ours, &path);
        let ours = require!(shown(&path));
        if !ran.status.success() {
            println!("{layout:?}: {name} {words:?}: {}", String::from_utf8_lossy(&ran.stderr));
            continue;
        }
        for key in keys {
            // tune2fs makes room for more fields and says nothing of it, so nobody uses it.
            if key.ends_with("extra isize") && !theirs.contains_key(key) {
                assert_eq!(ours.get(key).map(String::as_str), Some("32"), "{layout:?}: {key}");
                continue;
            }
            assert_eq!(ours.get(key), theirs.get(key), "{layout:?} {words:?}: {key}");
            said += usize::from(theirs.contains_key(key));
        }
    }
    assert!(said > 4, "{said} of them are said");
}

fn settings(change: impl FnOnce(&mut Request)) -> Request {
    let mut request = Request { now: 1_700_000_000, ..Request::default() };
    change(&mut request);
    request
}

fn casefold(request: &mut Request, flags: Option<EncodingFlags>) {
    request.features.push((Feature::CASEFOLD, true));
    request.encoding_flags = flags;
}

#[test]
fn settings_are_what_tune2fs_makes_of_them() {
    let long = "o".repeat(63);
    let long_words = ["-E", &format!("mount_opts={long}")];
    let strict = EncodingFlags::STRICT;
    let cases: Vec<(&[&str], Request)> = vec![
        (&["-E", "stride=16"], settings(|r| r.stride = Some(16))),
        (&["-E", "stripe_width=96"], settings(|r| r.stripe_width = Some(96))),
        (&long_words, settings(|r| r.mount_options = Some(long.clone().into()))),
        // It is over the longer one.
        (
            &["-E", "mount_opts=nodelalloc"],
            settings(|r| r.mount_options = Some("nodelalloc".into())),
        ),
        (&["-E", "hash_alg=tea"], settings(|r| r.default_hash = Some(DefaultHash::Tea))),
        (&["-E", "hash_alg=legacy"], settings(|r| r.default_hash = Some(DefaultHash::Legacy))),
        (
            &["-O", "casefold", "-E", "encoding=utf8,encoding_flags=strict"],
            settings(|r| casefold(r, Some(strict))),
        ),
        (&["-O", "mmp", "-E", "mmp_update_interval=17"], {
            let mut request = features("mmp");
            request.mmp_interval = Some(17);
            request
        }),
        (&["-E", "mmp_update_interval=300"], settings(|r| r.mmp_interval = Some(300))),
        (&["-E", "mmp_update_interval=1"], settings(|r| r.mmp_interval = Some(1))),
        (&["-O", "^casefold"], features("^casefold")),
    ];
    let dir = tempdir().unwrap();
    let mut device = require!(made(dir.path(), LAYOUTS[1]));
    let tree = seen(&device);
    for (words, request) in cases {
        let wanted = require!(theirs(&device, dir.path(), words));
        let wanted = wanted.unwrap_or_else(|| panic!("tune2fs refuses {words:?}"));
        let (next, _) = tuned(&device, &request).unwrap_or_else(|e| panic!("{words:?}: {e}"));
        let path = dir.path().join("ours.img");
        let _removed = std::fs::remove_file(&path);
        image::save(&next, &path);
        assert_eq!(require!(shown(&path)), wanted, "{words:?}");
        assert_eq!(require!(e2fsck(&next, dir.path())), "", "{words:?}");
        device = next;
    }
    assert_eq!(seen(&device), tree);
}

/// Each is refused with these words, and nothing is written.
#[test]
fn settings_that_cannot_be_are_refused() {
    let strict = Some(EncodingFlags::STRICT);
    let unknown = Some(EncodingFlags::from_bits_retain(0x8000));
    let interval = |seconds: u16| {
        settings(|r| {
            r.features.push((Feature::MMP, true));
            r.mmp_interval = Some(seconds);
        })
    };
    let cases = [
        (settings(|r| r.mount_options = Some(vec![b'o'; 64])), "mount_opts"),
        (settings(|r| r.mount_options = Some(b"a\0b".to_vec())), "mount_opts"),
        (settings(|r| r.mmp_interval = Some(5)), "there is no mmp"),
        (interval(0), "1 to 300"),
        (interval(301), "1 to 300"),
        (settings(|r| r.encoding_flags = strict), "there is no casefold"),
        (settings(|r| casefold(r, unknown)), "an unknown flag"),
        (
            settings(|r| {
                casefold(r, None);
                r.encoding = Some(Encoding::Unknown(9));
            }),
            "there is no encoding 9",
        ),
        (settings(|r| (r.uuid, r.keep_checksums) = (Some([0; 16]), false)), "all zeros"),
        (features("sparse_super"), "with resize_inode"),
        (features("^flex_bg"), "in another group"),
    ];
    let dir = tempdir().unwrap();
    const WORDS: &[&str] =
        &["-text4", "-b1024", "-O^sparse_super,^resize_inode,meta_bg", "-g2048", "-Jsize=4"];
    let plain = require!(made(dir.path(), Layout::new(WORDS, "24M")));
    for (request, why) in cases {
        let found = refused(&plain, &request);
        assert!(found.contains(why), "{found} instead of {why}");
    }
    let path = dir.path().join("folded.img");
    image::save(&plain, &path);
    let commands = "feature casefold\nssv encoding 1\nmkdir folded\nsif folded flags 0x40080000";
    oracle::debugfs(&path, true, commands).unwrap();
    let text = oracle::debugfs(&path, false, "stat folded").unwrap();
    let ino = text.split("Inode: ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let found = refused(&image::load(&path), &features("^casefold"));
    assert!(found.contains(&format!("1 inodes use it, inode {ino} first")), "{found}");
}

/// Why a request is refused, of an image that stays as it is.
fn refused(device: &MemoryDevice, request: &Request) -> String {
    let error = failed(device, request);
    assert!(matches!(error, TuneError::Refused { .. }), "{error}");
    error.to_string()
}

/// Groups that keep no copy of the superblock any more give its blocks back, as e2fsck counts them.
#[test]
fn fewer_copies_of_the_superblock_leave_their_blocks_free() {
    let dir = tempdir().unwrap();
    const WORDS: &[&str] =
        &["-text4", "-b1024", "-O^sparse_super,^resize_inode", "-g1024", "-Jsize=1"];
    let first = require!(made(dir.path(), Layout::new(WORDS, "12M")));
    let tree = seen(&first);
    let wanted = require!(theirs(&first, dir.path(), &["-O", "sparse_super"])).unwrap();
    let (next, _) = tuned(&first, &features("sparse_super")).unwrap();
    let path = dir.path().join("ours.img");
    image::save(&next, &path);
    let ours = require!(shown(&path));
    for key in ["Free blocks", "Filesystem features", "Free inodes"] {
        assert_eq!(ours.get(key), wanted.get(key), "{key}");
    }
    assert_eq!(require!(e2fsck(&next, dir.path())), "");
    assert_eq!(problems(&next), [""; 0]);
    assert_eq!(seen(&next), tree);
}

/// `s_jnl_blocks`: the block area of the journal's inode, then its size.
#[test]
fn the_superblock_has_a_copy_of_the_inode_of_a_new_journal() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[0]));
    let (next, _) = tuned(&first, &features("has_journal")).unwrap();
    let mut copy = [0; 68];
    next.read_at(SUPERBLOCK_OFFSET + 0x10c, &mut copy).unwrap();
    assert!(copy[..4] != [0; 4]);
    let path = dir.path().join("ours.img");
    image::save(&next, &path);
    let text = require!(oracle::debugfs(&path, false, "imap <8>"));
    let number = |word: &str, radix| {
        let at = text.find(word).unwrap_or_else(|| panic!("{text}")) + word.len();
        let digits: String = text[at..].chars().take_while(char::is_ascii_hexdigit).collect();
        u64::from_str_radix(&digits, radix).unwrap()
    };
    let inode = number("located at block ", 10) * 1024 + number("offset 0x", 16);
    let mut area = [0; 60];
    next.read_at(inode + 0x28, &mut area).unwrap();
    assert_eq!(copy[..60], area);
    let mut size = [0; 4];
    next.read_at(inode + 4, &mut size).unwrap();
    assert_eq!(copy[64..], size);
}
