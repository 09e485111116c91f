//! Damaged images: what the reader still reads is handed on with equal bytes, and what is missing is said.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common;
use common::{Kept, SETS, Worn, damage, metadata, of, reader, salvaged, sample, seen};
use extant::MountOptions;
use extant_base::{BlockSize, FsBlock, GroupIndex, Ino, Prng};
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::inode::FileKind;
use extant_format::superblock::Superblock;
use extant_salvage::{Image, Options, SalvageError, Why, salvage};
use extant_testkit::{image, oracle, require, tempdir};

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap()
}

/// Offsets of the primary superblock and of its backups.
fn superblocks(device: &MemoryDevice) -> Vec<u64> {
    let sb = superblock(device);
    let heads = extant_layout::Heads::of(&sb);
    let groups = heads.superblock_groups().skip(1);
    let block = |group| sb.group_first_block(group).unwrap().0 * u64::from(sb.block_size.bytes());
    std::iter::once(1024).chain(groups.map(block)).collect()
}

fn wipe_block(device: &MemoryDevice, block: u64, size: BlockSize) {
    device.write_at(block * size.len() as u64, &vec![0; size.len()]).unwrap();
}

/// Everything as in the sound image.
#[track_caller]
fn assert_equal(sound: &MemoryDevice, kept: &Kept, what: &str) {
    let wanted = seen(sound);
    let names = |map: &std::collections::BTreeMap<Vec<u8>, common::Seen>| {
        map.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&kept.files), names(&wanted), "{what}");
    for (path, seen) in &wanted {
        assert_eq!(kept.files.get(path), Some(seen), "{what}: {}", String::from_utf8_lossy(path));
    }
}

#[test]
fn a_sound_image_is_copied_as_it_is() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let device = require!(sample(dir.path(), features));
        let (kept, summary, notes) = of(&device).unwrap();
        assert_eq!(kept.damages, [], "{features:?}");
        assert_eq!((summary.loose, summary.lost_groups, notes.len()), (0, 0, 0), "{features:?}");
        assert_equal(&device, &kept, &format!("{features:?}"));
    }
}

#[test]
fn a_superblock_that_is_gone_is_found_elsewhere() {
    for (number, features) in SETS.iter().enumerate() {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        let has_backup = superblocks(&sound).len() > 1;
        for damage in 0..4 {
            let device = sound.snapshot();
            let mut bytes = [0; 1024];
            match damage {
                0 => {}
                1 => Prng::new(number as u64).fill(&mut bytes),
                _ => device.read_at(1024, &mut bytes).unwrap(),
            }
            if damage == 2 {
                // The block size.
                bytes[0x18] = 77;
            } else if damage == 3 {
                // Inodes of a group, and of all: a superblock that could be, and is not.
                let sb = superblock(&sound);
                let per_group = sb.inodes_per_group / 2;
                bytes[0x28..0x2c].copy_from_slice(&per_group.to_le_bytes());
                bytes[..4].copy_from_slice(&(per_group * sb.group_count).to_le_bytes());
            }
            device.write_at(1024, &bytes).unwrap();
            let what = format!("{features:?}, damage {damage}");
            if !has_backup && damage == 3 {
                continue;
            }
            let (kept, _, notes) = of(&device).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(notes.iter().any(|note| note.contains("superblock")), "{what}: {notes:?}");
            if has_backup {
                assert_eq!(kept.damages, [], "{what}");
                assert_equal(&sound, &kept, &what);
            } else {
                // Features are not known any more: what is in files is there all the same.
                assert_contents(&sound, &kept, &what);
            }
        }
    }
}

/// Regular files as in the sound image, whatever their names.
#[track_caller]
fn assert_contents(sound: &MemoryDevice, kept: &Kept, what: &str) {
    for (path, wanted) in seen(sound) {
        if wanted.kind != FileKind::Regular {
            continue;
        }
        let found = kept.by_ino(wanted.ino);
        let same =
            found.is_some_and(|found| (found.size, found.hash) == (wanted.size, wanted.hash));
        assert!(same, "{what}: {}: {found:?}", String::from_utf8_lossy(&path));
    }
}

#[test]
fn without_any_superblock_the_descriptors_say_what_is_where() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        let sb = superblock(&sound);
        // Groups of another size than mke2fs's own, clusters and spread descriptors cannot be guessed.
        if features.iter().any(|word| {
            word.contains("-g") || word.contains("bigalloc") || word.contains("meta_bg")
        }) {
            continue;
        }
        let device = sound.snapshot();
        for at in superblocks(&sound) {
            device.write_at(at, &[0; 1024]).unwrap();
        }
        for options in
            [Options::default(), Options { block_size: Some(sb.block_size), ..Options::default() }]
        {
            let image = Image::open(Arc::new(device.snapshot()), &options).unwrap();
            let mut kept = Kept::default();
            salvage(&image, &mut kept);
            assert_contents(&sound, &kept, &format!("{features:?}"));
            let names = seen(&sound);
            assert!(names.keys().all(|path| kept.files.contains_key(path)), "{features:?}");
        }
        // With their descriptors gone as well there is nothing.
        for group in extant_layout::Heads::of(&sb).superblock_groups() {
            let head = extant_layout::Heads::of(&sb).head(group);
            head.gdt.for_each(|block| wipe_block(&device, block, sb.block_size));
        }
        let error = Image::open(Arc::new(device), &Options::default()).map(drop).unwrap_err();
        assert!(matches!(error, SalvageError::NoSuperblock { block_size: None }), "{error}");
    }
}

#[test]
fn descriptors_that_are_gone_are_found_in_backups_or_computed() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        let sb = superblock(&sound);
        let heads = extant_layout::Heads::of(&sb);
        for all in [false, true] {
            let device = sound.snapshot();
            for group in heads.groups() {
                let head = heads.head(group);
                if all || group == GroupIndex(0) {
                    head.gdt.for_each(|block| wipe_block(&device, block, sb.block_size));
                }
            }
            let (kept, summary, _) = of(&device).unwrap();
            let what = format!("{features:?}, all of them: {all}");
            assert_eq!((kept.damages.len(), summary.lost_groups), (0, 0), "{what}");
            assert_equal(&sound, &kept, &what);
        }
    }
}

/// A checksum that is right says that a descriptor is one, and no more: a copy of it knows better, or what lies there.
#[test]
fn a_descriptor_that_leads_elsewhere_is_not_believed_for_its_checksum() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        for command in ["set_bg 0 inode_table 9", "set_bg 1 inode_table 9"] {
            let sb = superblock(&sound);
            let has_sums = sb.features.metadata_csum();
            if command.contains("bg 1") && (sb.group_count < 2 || !has_sums) {
                continue;
            }
            let path = dir.path().join("elsewhere.img");
            let _removed = std::fs::remove_file(&path);
            image::save(&sound, &path);
            let group = &command[..8];
            let commands = format!("{command}\n{group} checksum calc");
            require!(oracle::debugfs(&path, true, &commands));
            let (kept, summary, _) = of(&image::load(&path)).unwrap();
            let what = format!("{features:?}: {command}");
            assert_eq!((kept.damages.len(), summary.lost_groups), (0, 0), "{what}");
            assert_equal(&sound, &kept, &what);
        }
    }
}

/// The first block of a file, from the reader.
fn first_block(device: &MemoryDevice, path: &str) -> FsBlock {
    let fs = reader(device).unwrap();
    let text = format!("blocks {path}\n");
    drop(fs);
    let dir = tempdir().unwrap();
    let file = dir.path().join("image");
    image::save(device, &file);
    let said = oracle::debugfs(&file, false, &text).unwrap();
    let numbers = said.lines().filter(|line| !line.starts_with("debugfs"));
    let first = numbers.flat_map(str::split_whitespace).find_map(|word| word.parse().ok());
    FsBlock(first.unwrap_or_else(|| panic!("{said}")))
}

#[test]
fn without_a_root_everything_is_a_tree_in_lost_found() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        let sb = superblock(&sound);
        let inline = features.iter().any(|word| word.contains("inline_data"));
        for whole in [false, true] {
            let device = sound.snapshot();
            if whole || inline {
                // Its inode: the second record of the first table.
                let path = dir.path().join("root.img");
                let _removed = std::fs::remove_file(&path);
                image::save(&device, &path);
                require!(oracle::debugfs(&path, true, "clri <2>\n"));
                let changed = image::load(&path);
                let mut bytes = vec![0; changed.size_bytes() as usize];
                changed.read_at(0, &mut bytes).unwrap();
                device.write_at(0, &bytes).unwrap();
            } else {
                wipe_block(&device, first_block(&device, "/").0, sb.block_size);
            }
            let (kept, summary, _) = of(&device).unwrap();
            let what = format!("{features:?}, the inode: {whole}");
            assert_contents(&sound, &kept, &what);
            let wanted = seen(&sound);
            let d = wanted[b"/d".as_slice()].ino;
            // Below a directory, names are as they were.
            for (path, file) in wanted.iter().filter(|(path, _)| path.starts_with(b"/d/")) {
                let tail = String::from_utf8_lossy(&path[2..]);
                let there = format!("/lost+found/#{d}{tail}");
                assert_eq!(kept.files.get(there.as_bytes()), Some(file), "{what}: {there}");
            }
            assert!(summary.loose > 0 && summary.damaged > 0, "{what}");
        }
    }
}

#[test]
fn a_journal_that_is_pending_is_brought_in() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[3]));
    let device = Arc::new(sound.snapshot());
    let fs = MountOptions::new()
        .read_only(false)
        .background(false)
        .open_shared(Arc::clone(&device) as _)
        .unwrap();
    fs.write("/d/late", "written late").unwrap();
    fs.sync().unwrap();
    let cut = device.snapshot();
    drop(fs);
    assert!(superblock(&cut).features.has(extant_format::features::Feature::RECOVER));
    for is_gone in [false, true] {
        let device = cut.snapshot();
        if is_gone {
            device.write_at(1024, &[0; 1024]).unwrap();
        }
        let (kept, _, notes) = of(&device).unwrap();
        assert!(
            notes.iter().any(|note| note.contains("of the journal are brought in")),
            "{notes:?}"
        );
        assert_eq!(kept.contents[b"/d/late".as_slice()], b"written late");
        let lacks_log = |device: &MemoryDevice| {
            let image = Image::open(Arc::new(device.snapshot()), &Options::default()).unwrap();
            image.lacks_log()
        };
        assert!(!lacks_log(&device));
        // A log that is none is said, and gone on without.
        let sb = superblock(&cut);
        let log = first_block(&cut, "<8>");
        wipe_block(&device, log.0, sb.block_size);
        let (kept, _, notes) = of(&device).unwrap();
        assert!(notes.iter().any(|note| note.contains("left out")), "{notes:?}");
        assert!(lacks_log(&device), "what waited in it is missing");
        assert_contents(&sound, &kept, "without a journal");
    }
}

#[test]
fn blocks_that_cannot_be_read_are_holes_and_counted() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        let sb = superblock(&sound);
        let block = first_block(&sound, "/d/file9").0 + 2;
        let kib = u64::from(sb.block_size.bytes()) / 1024;
        let worn = Worn::new(sound.snapshot(), vec![block * kib]);
        let (kept, summary, _) = salvaged(Arc::new(worn)).unwrap();
        let what = format!("{features:?}");
        let [damage] = kept.damages.as_slice() else { panic!("{what}: {:?}", kept.damages) };
        let bytes = u64::from(sb.block_size.bytes());
        assert_eq!(damage.path, b"/d/file9", "{what}");
        assert_eq!((damage.size, damage.missing), (27_000, bytes), "{what}");
        assert_eq!(damage.why, [(Why::Unreadable, 1)], "{what}");
        assert_eq!((summary.damaged, summary.missing), (1, bytes), "{what}");
        let contents = &kept.contents[b"/d/file9".as_slice()];
        assert_eq!(contents.iter().filter(|byte| **byte == 0).count() as u64, bytes, "{what}");
    }
}

#[test]
fn a_device_that_fails_everywhere_is_an_error_and_no_image_is_another() {
    let bad = (0..64 << 10).collect();
    let error = salvaged(Arc::new(Worn::new(MemoryDevice::new(1 << 26), bad))).map(drop);
    assert!(matches!(error, Err(SalvageError::Device(_))));
    for size in [0, 512, 1024, 2047, 4096, 1 << 20] {
        let error = of(&MemoryDevice::new(size)).map(drop).unwrap_err();
        let is_named = matches!(error, SalvageError::NoSuperblock { .. } | SalvageError::Device(_));
        assert!(is_named, "{size}: {error}");
    }
}

/// An ext2 of one group, without checksums, changed by debugfs.
fn hostile(dir: &std::path::Path, commands: &str) -> Result<MemoryDevice, String> {
    let sound = sample(dir, SETS[0])?;
    let path = dir.join("hostile.img");
    let _removed = std::fs::remove_file(&path);
    image::save(&sound, &path);
    oracle::debugfs(&path, true, commands)?;
    Ok(image::load(&path))
}

#[test]
fn sizes_that_no_file_has_are_not_believed() {
    let dir = tempdir().unwrap();
    // Of two terabytes of holes; and more than a map reaches.
    for size in ["0x20000000000", "0x7000000000000000"] {
        let device = require!(hostile(dir.path(), &format!("sif /d/file9 size {size}\n")));
        let (kept, _, _) = of(&device).unwrap();
        let found = kept.files.get(b"/d/file9".as_slice()).unwrap();
        assert_eq!(found.size, 27 * 1024, "{size}: the file ends with its last block");
        let damage = kept.damages.iter().find(|damage| damage.path == b"/d/file9").unwrap();
        assert_eq!(damage.why, [(Why::Size, 1)]);
    }
}

#[test]
fn blocks_outside_are_missing_and_counted() {
    let dir = tempdir().unwrap();
    let device = require!(hostile(dir.path(), "sif /d/file9 block[3] 900000\n"));
    let (kept, _, _) = of(&device).unwrap();
    let [damage] = kept.damages.as_slice() else { panic!("{:?}", kept.damages) };
    assert_eq!((damage.missing, damage.why.as_slice()), (1024, &[(Why::Outside, 1)][..]));
}

#[test]
fn directories_in_themselves_are_entered_once() {
    let dir = tempdir().unwrap();
    let device = require!(hostile(dir.path(), "link /d /d/e/f/round\nlink / /d/root\n"));
    let (kept, _, _) = of(&device).unwrap();
    let loops: Vec<_> =
        kept.damages.iter().filter(|damage| damage.why == [(Why::Loop, 1)]).collect();
    assert_eq!(loops.len(), 2, "{:?}", kept.damages);
    assert_contents(&device, &kept, "with loops");
}

#[test]
fn names_that_lead_elsewhere_are_no_names() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[0]));
    let mut bytes = vec![0; sound.size_bytes() as usize];
    sound.read_at(0, &mut bytes).unwrap();
    let at = bytes.windows(6).position(|window| window == b"file19").unwrap();
    for name in [b"../../", b"/etc/x", b"a\0b\0c\0"] {
        let device = sound.snapshot();
        device.write_at(at as u64, name).unwrap();
        // The target asserts what it is given.
        let (kept, summary, _) = of(&device).unwrap();
        let damage = kept.damages.iter().find(|damage| damage.why == [(Why::Name, 1)]);
        let ino = damage.unwrap_or_else(|| panic!("{:?}", kept.damages)).ino;
        assert_eq!(summary.loose, 1);
        let there = format!("/lost+found/#{ino}");
        assert_eq!(kept.files[there.as_bytes()].size, 57_000, "it has another place");
    }
}

#[test]
fn two_files_of_one_name_are_both_there() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[0]));
    let mut bytes = vec![0; sound.size_bytes() as usize];
    sound.read_at(0, &mut bytes).unwrap();
    let at = bytes.windows(6).position(|window| window == b"file19").unwrap();
    sound.write_at(at as u64, b"file18").unwrap();
    let (kept, _, _) = of(&sound).unwrap();
    assert_eq!(kept.files[b"/d/file18".as_slice()].size.min(54_000), 54_000);
    let sizes: Vec<u64> = kept.files.values().map(|seen| seen.size).collect();
    assert!(sizes.contains(&54_000) && sizes.contains(&57_000));
}

#[test]
fn a_target_without_room_ends_it_and_keeps_nothing_half_done() {
    let dir = tempdir().unwrap();
    let device = require!(sample(dir.path(), SETS[6]));
    let image = Image::open(Arc::new(device), &Options::default()).unwrap();
    let mut kept = Kept { room: Some(100_000), ..Kept::default() };
    let (summary, is_over) = salvage(&image, &mut kept);
    assert!(!is_over);
    assert_eq!(kept.abandoned, 1, "the file that had no room was taken away");
    assert!(summary.bytes <= 100_000);
}

/// An image of holes and nothing but a superblock that claims much: no memory, no time.
#[test]
fn a_superblock_that_claims_much_costs_little() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[0]));
    let mut sb = superblock(&sound);
    let huge = MemoryDevice::new(1 << 44);
    sb.blocks_count = u64::from(u32::MAX);
    sb.group_count = ((sb.blocks_count - 1).div_ceil(u64::from(sb.blocks_per_group))) as u32;
    sb.inodes_per_group = 32;
    sb.inodes_count = sb.inodes_per_group * sb.group_count;
    huge.write_at(1024, &sb.encode()).unwrap();
    let worn = Arc::new(Worn::new(huge, Vec::new()));
    let (kept, summary, _) = salvaged(Arc::clone(&worn) as _).unwrap();
    assert_eq!((kept.files.len(), summary.bytes), (0, 0));
    let reads = worn.reads.load(Ordering::Relaxed);
    assert!(reads < 40 * u64::from(sb.group_count), "{reads} reads");
}

fn mutants(rounds: u64, first: u64) {
    let (mut images, mut files, mut lost) = (0, 0, Vec::new());
    for (number, features) in SETS.iter().enumerate() {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        let blocks = metadata(&sound);
        for round in 0..rounds {
            let seed = (first + number as u64) * 1_000_000 + round;
            let mut random = Prng::new(seed);
            let device = sound.snapshot();
            for _damage in 0..=random.below(4) {
                damage(&device, &blocks, &mut random);
            }
            let readable = readable(&device);
            let worn = Arc::new(Worn::new(device.snapshot(), Vec::new()));
            images += 1;
            let what = format!("{features:?}, seed {seed}");
            let kept = match salvaged(Arc::clone(&worn) as _) {
                Ok((kept, _, _)) => kept,
                Err(error) => {
                    assert!(readable.is_empty(), "{what}: {error}");
                    continue;
                }
            };
            // Each block a few times, whatever the image says.
            assert!(worn.reads.load(Ordering::Relaxed) < 200_000, "{what}");
            assert!(kept.bytes <= 3 * device.size_bytes(), "{what}");
            for (ino, size, hash) in readable {
                files += 1;
                let found = kept.files.values().filter(|seen| seen.ino == ino);
                let is_there = found.clone().any(|seen| (seen.size, seen.hash) == (size, hash));
                if !is_there {
                    lost.push(format!(
                        "{what}: inode {ino} of {size} bytes: {found:?}",
                        found = found.collect::<Vec<_>>()
                    ));
                }
            }
        }
    }
    println!("{images} images, {files} files compared, {} lost", lost.len());
    assert!(lost.is_empty(), "{} of {files}:\n{}", lost.len(), lost.join("\n"));
}

/// Regular files that the reader reads whole: number, size and hash.
fn readable(device: &MemoryDevice) -> Vec<(u32, u64, u64)> {
    let mut list: Vec<_> = seen(device)
        .into_values()
        .filter(|seen| seen.kind == FileKind::Regular && Ino(seen.ino).0 >= 11)
        .map(|seen| (seen.ino, seen.size, seen.hash))
        .collect();
    list.sort_unstable();
    list.dedup();
    list
}

#[test]
fn mutants_neither_panic_nor_lose_what_can_be_read() {
    mutants(56, 1);
}

#[test]
#[ignore = "minutes"]
fn mutants_neither_panic_nor_lose_what_can_be_read_long() {
    mutants(1000, 100);
}
