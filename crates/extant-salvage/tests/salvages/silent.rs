//! Damage that reads like something else: holes that were none, attributes that are others. It is said.

use std::sync::Arc;

use crate::common;
use common::{SETS, of, sample};
use extant::{MountOptions, XattrMode};
use extant_block::{BlockDevice, MemoryDevice};
use extant_salvage::{Damage, Why};
use extant_testkit::{image, oracle, require, tempdir};

/// The block that `stat` of debugfs names behind `mark`, such as `(IND):`.
fn block_of(device: &MemoryDevice, path: &str, mark: &str) -> Result<u64, String> {
    let dir = tempdir().unwrap();
    let file = dir.path().join("image");
    image::save(device, &file);
    let said = oracle::debugfs(&file, false, &format!("stat {path}\n"))?;
    let at = said.find(mark).unwrap_or_else(|| panic!("{path} has no {mark}: {said}"));
    let digits = said[at + mark.len()..].split(|c: char| !c.is_ascii_digit()).next();
    Ok(digits.and_then(|digits| digits.parse().ok()).unwrap())
}

fn all_bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

#[track_caller]
fn only_damage(device: &MemoryDevice, what: &str) -> Damage {
    let (kept, summary, _) = of(device).unwrap();
    let [damage] = kept.damages.as_slice() else { panic!("{what}: {:?}", kept.damages) };
    assert_eq!((summary.damaged, summary.missing), (1, damage.missing), "{what}");
    damage.clone()
}

#[test]
fn a_block_of_pointers_that_is_zeros_now_is_no_hole() {
    for features in &SETS[..2] {
        let dir = tempdir().unwrap();
        let device = require!(sample(dir.path(), features));
        let block = require!(block_of(&device, "/d/file9", "(IND):"));
        device.write_at(block * 1024, &[0; 1024]).unwrap();
        let damage = only_damage(&device, &format!("{features:?}"));
        assert_eq!(damage.path, b"/d/file9");
        // Twelve blocks are in the inode.
        assert_eq!((damage.size, damage.missing), (27_000, 27_000 - 12 * 1024));
        assert_eq!(damage.why, [(Why::Blocks, 15)]);
    }
}

#[test]
fn a_block_of_pointers_that_is_a_copy_of_another_is_no_other_contents() {
    for features in &SETS[..2] {
        let dir = tempdir().unwrap();
        let device = require!(sample(dir.path(), features));
        let to = "/d/file9";
        let block = require!(block_of(&device, to, "(IND):"));
        let first = require!(block_of(&device, to, "(0-11):"));
        let mut pointers = [0; 1024];
        device.read_at(block * 1024, &mut pointers).unwrap();
        for (slot, pointer) in pointers.chunks_exact_mut(4).take(12).enumerate() {
            pointer.copy_from_slice(&(first as u32 + slot as u32).to_le_bytes());
        }
        device.write_at(block * 1024, &pointers).unwrap();
        let damage = only_damage(&device, &format!("{features:?}"));
        assert_eq!((damage.path.as_slice(), damage.missing), (to.as_bytes(), 0));
        assert_eq!(damage.why, [(Why::Twice, 12)]);
    }
}

#[test]
fn extents_that_a_node_does_not_count_any_more_are_no_holes() {
    let dir = tempdir().unwrap();
    let device = require!(sample(dir.path(), SETS[8]));
    let block = require!(block_of(&device, "/sparse", "(ETB0):"));
    // 40 extents of a block or two.
    device.write_at(block * 4096 + 2, &10u16.to_le_bytes()).unwrap();
    let damage = only_damage(&device, "40 extents");
    let [(Why::Blocks, lost @ 30..=60)] = damage.why[..] else { panic!("{damage:?}") };
    assert_eq!((damage.path.as_slice(), damage.missing), (&b"/sparse"[..], lost * 4096));
}

/// Without checksums nothing but the order says that an entry is damaged.
#[test]
fn extents_of_other_places_of_a_file_are_no_holes() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[8]));
    let block = require!(block_of(&sound, "/sparse", "(ETB0):"));
    let entry = |number: u64| block * 4096 + 12 * (number + 1);
    let start = |number: u64| {
        let mut bytes = [0; 4];
        sound.read_at(entry(number), &mut bytes).unwrap();
        bytes
    };
    // Far behind the end, as the last entry and before others; and two that have each other's place.
    let (far, exchanged) = (0x7fff_fff0u32.to_le_bytes(), [(6, start(7)), (7, start(6))]);
    let mut count = [0; 2];
    sound.read_at(block * 4096 + 2, &mut count).unwrap();
    let last = u64::from(u16::from_le_bytes(count)) - 1;
    for (changes, has_lost) in
        [(&[(last, far)][..], true), (&[(6, far)], true), (&exchanged[..], false)]
    {
        let device = sound.snapshot();
        for (number, bytes) in changes {
            device.write_at(entry(*number), bytes).unwrap();
        }
        let damage = only_damage(&device, &format!("{changes:?}"));
        assert_eq!(damage.path, b"/sparse");
        let has = |why: Why| damage.why.iter().any(|(one, _)| *one == why);
        assert_eq!((has(Why::Blocks), damage.missing > 0), (has_lost, has_lost), "{damage:?}");
        assert_eq!(has(Why::Map), changes[0].0 != last, "{damage:?}");
    }
}

#[test]
fn a_directory_of_which_a_part_is_not_mapped_is_named() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[0]));
    let device = sound.snapshot();
    let block = require!(block_of(&device, "/many", "(IND):"));
    device.write_at(block * 1024, &[0; 1024]).unwrap();
    let (kept, summary, _) = of(&device).unwrap();
    let damage = kept.damages.iter().find(|damage| damage.path == b"/many");
    let damage = damage.unwrap_or_else(|| panic!("{:?}", kept.damages));
    assert!(matches!(damage.why.as_slice(), [(Why::Directory, 1..)]), "{damage:?}");
    assert!(summary.loose > 0, "its files are in lost+found");
}

#[test]
fn a_directory_with_the_block_of_another_is_named() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[0]));
    let device = sound.snapshot();
    let (own, other) = ("/d/e", "/d/e/f");
    let (own, other) =
        (require!(block_of(&device, own, "(0):")), require!(block_of(&device, other, "(0):")));
    let mut block = [0; 1024];
    device.read_at(other * 1024, &mut block).unwrap();
    device.write_at(own * 1024, &block).unwrap();
    let (kept, summary, _) = of(&device).unwrap();
    let damage = kept.damages.iter().find(|damage| damage.path == b"/d/e");
    let damage = damage.unwrap_or_else(|| panic!("{:?}", kept.damages));
    assert_eq!(damage.why, [(Why::Directory, 1)]);
    assert!(summary.loose > 0, "what was in it is in lost+found");
}

#[test]
fn an_attribute_whose_value_is_another_is_named() {
    let is_of = |part: &[u8]| part == [0x5a; 1024];
    // In an inode of its own.
    let dir = tempdir().unwrap();
    let device = Arc::new(require!(sample(dir.path(), SETS[3])));
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open_shared(Arc::clone(&device) as _).unwrap();
    fs.set_xattr("/d/file6", "user.big", [0x5a; 5000], XattrMode::Any).unwrap();
    fs.unmount().unwrap();
    let (kept, _, _) = of(&device).unwrap();
    assert_eq!(kept.damages, []);
    // Where it is, and in the journal.
    for (number, _) in all_bytes(&device).chunks(1024).enumerate().filter(|(_, part)| is_of(part)) {
        device.write_at(number as u64 * 1024 + 9, &[0x5b]).unwrap();
    }
    let damage = only_damage(&device, "a value of its own");
    assert_eq!((damage.path.as_slice(), damage.missing), (&b"/d/file6"[..], 0));
    assert_eq!(damage.why, [(Why::AttributesChecksum, 1)]);
    let (kept, _, _) = of(&device).unwrap();
    let xattrs = &kept.files[b"/d/file6".as_slice()].xattrs;
    assert!(xattrs.iter().any(|(name, value)| name == b"user.big" && value[9] == 0x5b));

    // In a block, which has a checksum.
    let device = require!(sample(dir.path(), SETS[6]));
    let bytes = all_bytes(&device);
    let value = b"VALUE-OF-AN-ATTRIBUTE".repeat(9);
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    device.write_at(at as u64, b"B").unwrap();
    let damage = only_damage(&device, "a block");
    assert_eq!((damage.path.as_slice(), damage.missing), (&b"/d/file5"[..], 0));
    assert_eq!(damage.why, [(Why::AttributesChecksum, 1)]);
}

#[test]
fn a_node_of_extents_that_is_a_copy_of_another_is_lost() {
    let dir = tempdir().unwrap();
    for features in &SETS[2..4] {
        let device = Arc::new(require!(sample(dir.path(), features)));
        let options = MountOptions::new().read_only(false).background(false);
        let fs = options.open_shared(Arc::clone(&device) as _).unwrap();
        let file = fs.open_options().write(true).create(true).open("/d/pieces").unwrap();
        // 200 extents of a block, in nodes of 84.
        for piece in 0..200u64 {
            file.write_at(&[piece as u8 + 1; 1024], piece * 2048).unwrap();
        }
        file.sync().unwrap();
        drop(file);
        fs.unmount().unwrap();
        let (kept, _, _) = of(&device).unwrap();
        assert_eq!(kept.damages, []);

        // Nodes by the first file block of their first extent, which the piece after it follows.
        let nodes: Vec<(u32, u64)> = all_bytes(&device)
            .chunks(1024)
            .enumerate()
            .filter(|(_, block)| block.starts_with(&[0x0a, 0xf3]) && block[6..8] == [0, 0])
            .map(|(at, block)| (u32::from_le_bytes(block[12..16].try_into().unwrap()), at as u64))
            .filter(|(first, at)| {
                let mut next = [0; 4];
                device.read_at(at * 1024 + 24, &mut next).unwrap();
                u32::from_le_bytes(next) == first + 2
            })
            .collect();
        let place = |wanted: u32| nodes.iter().filter(move |(first, _)| *first == wanted);
        let second = nodes.iter().map(|(first, _)| *first).filter(|first| *first > 0).min();
        let second = second.unwrap();
        let mut copy = [0; 1024];
        device.read_at(place(0).next().unwrap().1 * 1024, &mut copy).unwrap();
        // In the journal as well.
        for (_, at) in place(second) {
            device.write_at(at * 1024, &copy).unwrap();
        }
        let (kept, summary, _) = of(&device).unwrap();
        let damage = kept.damages.iter().find(|damage| damage.path == b"/d/pieces");
        let damage = damage.unwrap_or_else(|| panic!("{:?}", kept.damages));
        assert!(damage.why.contains(&(Why::Map, 1)), "{damage:?}");
        assert!((80 * 1024..200 * 1024).contains(&damage.missing), "{damage:?}");
        assert_eq!((summary.damaged, summary.missing), (1, damage.missing));
    }
}

/// Nothing is missing of a file whose record has a wrong flag.
#[test]
fn a_file_is_whole_that_has_the_mark_of_a_value_or_not_that_of_its_tree() {
    let cases: [(&[&str], &str, &str); 6] = [
        (SETS[0], "/d/file7", "sif /d/file7 flags 0x200000"),
        (SETS[3], "/d/file7", "sif /d/file7 flags 0x280000"),
        (SETS[2], "/d/file7", "sif /d/file7 flags 0"),
        (SETS[3], "/d/file9", "sif /d/file9 flags 0"),
        (SETS[3], "/d/file9", "sif /d/file9 flags 0x10080000"),
        (SETS[6], "/many", "sif /many flags 0x1000"),
    ];
    for (features, path, command) in cases {
        let dir = tempdir().unwrap();
        let good = require!(sample(dir.path(), features));
        let (before, _, _) = of(&good).unwrap();
        let file = dir.path().join("marked.img");
        image::save(&good, &file);
        require!(oracle::debugfs(&file, true, command));
        let (kept, _, _) = of(&image::load(&file)).unwrap();
        assert!(kept.damages.is_empty(), "{features:?}, {path}: {:?}", kept.damages);
        assert_eq!(kept.files, before.files, "{features:?}, {path}");
    }
}
