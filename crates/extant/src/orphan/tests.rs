use extant_block::BlockDevice;
use extant_format::features::{RoCompat, State};

use super::*;
use crate::fs::Fs;
use crate::map::MappingKind;
use crate::test_images::Image;
use crate::txn::Txn;
use crate::{Inode, NewInode};

const WITH_FILE: &[&str] = &["-t", "ext4", "-b", "1024", "-N", "9000", "-O", "orphan_file"];
/// What mke2fs gives such a file: 32 blocks.
const IN_FILE: usize = 32 * 254;
const LIST: &[&str] = &["-t", "ext4", "-b", "1024", "-N", "2048", "-O", "^orphan_file"];

/// Deletes what nobody holds.
fn reclaim(fs: &Fs) {
    // A few at a time.
    for _ in 0..100 {
        let _ = fs.reclaim();
    }
}

/// So many files without names.
fn nameless(fs: &Fs, count: usize) -> Vec<Inode> {
    let root = fs.root().unwrap();
    (0..count).map(|_| root.tmpfile(&NewInode::root(0o600)).unwrap()).collect()
}

fn recovered(fs: &Fs) -> &OrphanSummary {
    fs.recovered_orphans().unwrap()
}

fn finish(fs: Fs, image: &Image) {
    fs.unmount().unwrap();
    image.check().assert_clean();
}

#[test]
fn orphans_are_found_after_a_crash_and_deleted() {
    let with_file: &[usize] = &[1, 600, IN_FILE + 9];
    for (options, in_file, counts) in [(WITH_FILE, IN_FILE, with_file), (LIST, 0, &[1, 700])] {
        for &count in counts {
            let image = extant_testkit::require!(Image::make("16M", options, ""));
            let free = image.superblock().free_inodes_count;
            let fs = image.open();
            let held = nameless(&fs, count);
            assert_eq!(fs.volume().writer().unwrap().orphans().len(), count as u64);
            fs.sync().unwrap();
            let crashed = image.copy();
            let listed = crashed.superblock().last_orphan != 0;
            assert_eq!(listed, count > in_file, "{count}: the list takes what the file cannot");
            let fs = crashed.open();
            let summary = recovered(&fs);
            assert_eq!((summary.deleted, summary.damaged), (count as u64, 0), "{summary:?}");
            finish(fs, &crashed);
            let found = crashed.superblock();
            assert_eq!((found.last_orphan, found.free_inodes_count), (0, free));
            assert!(!found.features.has_ro_compat(RoCompat::ORPHAN_PRESENT));
            drop(held);
        }
    }
}

#[test]
fn e2fsck_finds_the_same_orphans() {
    for options in [WITH_FILE, LIST] {
        let image = extant_testkit::require!(Image::make("16M", options, ""));
        let fs = image.open();
        let held = nameless(&fs, 600);
        fs.sync().unwrap();
        let dir = extant_testkit::tempdir().unwrap();
        let path = dir.path().join("image");
        extant_testkit::image::save(&image.device, &path);
        let tool = extant_testkit::oracle::Tool::find("e2fsck").unwrap();
        let output = tool.command().arg("-fy").arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.matches("Clearing orphaned inode").count(), 600, "{text}");
        extant_testkit::oracle::e2fsck(&path).unwrap().assert_clean();
        drop(held);
    }
}

#[test]
fn leaving_in_any_order_leaves_the_others() {
    for options in [WITH_FILE, LIST] {
        let image = extant_testkit::require!(Image::make("16M", options, ""));
        let fs = image.open();
        let mut random = extant_base::Prng::new(4);
        let mut held: Vec<_> = nameless(&fs, 560);
        while held.len() > 40 {
            let at = random.below(held.len() as u64) as usize;
            drop(held.swap_remove(at));
            reclaim(&fs);
        }
        fs.sync().unwrap();
        let crashed = image.copy();
        let fs_crashed = crashed.open();
        let summary = recovered(&fs_crashed);
        assert_eq!((summary.deleted, summary.damaged), (40, 0));
        finish(fs_crashed, &crashed);
        drop(held);
        reclaim(&fs);
        assert_eq!(fs.volume().writer().unwrap().orphans().len(), 0);
        finish(fs, &image);
    }
}

#[test]
fn a_file_that_was_being_shortened_is_cut_to_its_size() {
    let dir = extant_testkit::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::write(&data, vec![7; 300_000]).unwrap();
    for options in [WITH_FILE, LIST] {
        let script = format!("write {} f\nsif f size 5000\n", data.display());
        let image = extant_testkit::require!(Image::make("16M", options, &script));
        let fs = image.open();
        let node = Arc::clone(fs.resolve("/f").unwrap().node());
        let mut txn = Txn::begin(fs.volume(), 8).unwrap();
        fs.add_orphan(&mut txn, &node).unwrap();
        fs.add_orphan(&mut txn, &node).unwrap();
        drop(txn);
        assert_eq!(fs.volume().writer().unwrap().orphans().len(), 1, "once");
        fs.sync().unwrap();
        let crashed = image.copy();
        let fs = crashed.open();
        let summary = recovered(&fs);
        assert_eq!((summary.shortened, summary.deleted), (1, 0), "{summary:?}");
        assert_eq!(fs.resolve("/f").unwrap().metadata().blocks, 5 * 2);
        finish(fs, &crashed);
    }
}

/// Writes the list as a hostile image has it.
fn set_list(fs: &Fs, head: u32, links: &[(Ino, u32)]) {
    let supers = fs.volume().writer().unwrap().supers();
    let mut txn = Txn::begin(fs.volume(), 16).unwrap();
    supers.change(&mut txn, |superblock| superblock.last_orphan = head).unwrap();
    for (ino, next) in links {
        let node = fs.volume().nodes().get(ino).unwrap();
        txn.update(&node, |data| data.record.dtime = *next).unwrap();
    }
    drop(txn);
    fs.sync().unwrap();
}

#[test]
fn a_hostile_list_ends_and_what_is_sound_is_deleted() {
    for case in ["cycle", "reserved", "outside", "unused", "deleted", "journal", "at once"] {
        let image = extant_testkit::require!(Image::make("16M", LIST, ""));
        let fs = image.open();
        let held = nameless(&fs, 3);
        let gone = nameless(&fs, 1).pop().unwrap().ino();
        reclaim(&fs);
        let [a, b, c] = [0, 1, 2].map(|at| held[at].ino());
        let bad = match case {
            "cycle" => a.0,
            "reserved" | "journal" => 8,
            "unused" => 1000,
            // What it was is still in the table.
            "deleted" => gone.0,
            _ => u32::MAX,
        };
        let head = if case == "at once" { bad } else { a.0 };
        set_list(&fs, head, &[(a, b.0), (b, c.0), (c, bad)]);
        let image = image.copy();
        let fs = image.open();
        let summary = recovered(&fs);
        let deleted = if case == "at once" { 0 } else { 3 };
        assert_eq!((summary.deleted, summary.damaged), (deleted, 1), "{case}: {summary:?}");
        assert_eq!(summary.errors.len(), 1);
        fs.unmount().unwrap();
        assert_eq!(image.superblock().last_orphan, 0, "{case}");
        if deleted == 3 {
            image.check().assert_clean();
        }
        drop(held);
    }
}

#[test]
fn a_list_of_a_file_system_with_errors_is_left_to_e2fsck() {
    let image = extant_testkit::require!(Image::make("16M", LIST, ""));
    let fs = image.open();
    let held = nameless(&fs, 3);
    let supers = fs.volume().writer().unwrap().supers();
    let mut txn = Txn::begin(fs.volume(), 1).unwrap();
    supers.change(&mut txn, |superblock| superblock.state |= State::ERROR).unwrap();
    drop(txn);
    fs.sync().unwrap();
    let crashed = image.copy();
    let fs = crashed.open();
    let summary = recovered(&fs);
    assert!(summary.list_ignored && summary.deleted == 0);
    fs.sync().unwrap();
    assert_eq!(crashed.superblock().last_orphan, 0);
    drop(held);
}

#[test]
fn a_damaged_orphan_file_is_named() {
    let image = extant_testkit::require!(Image::make("16M", WITH_FILE, ""));
    let fs = image.open();
    let inode = fs.inode(image.superblock().orphan_file_inode).unwrap();
    let MappingKind::Mapped(block) = inode.map(0..1).next().unwrap().unwrap().kind else {
        panic!("a hole");
    };
    image.device.write_at(block.0 * 1024 + 100, &[1, 2, 3, 4]).unwrap();
    let error = image.options().open_shared(Arc::clone(&image.device) as _).unwrap_err();
    assert!(error.to_string().contains("orphan file"), "{error}");
}

#[test]
fn what_is_no_orphan_leaves_the_orphan_file_and_the_others_are_deleted() {
    let image = extant_testkit::require!(Image::make("16M", WITH_FILE, ""));
    let fs = image.open();
    let held = nameless(&fs, 3);
    let gone = nameless(&fs, 1).pop().unwrap().ino();
    reclaim(&fs);
    let orphans = fs.volume().writer().unwrap().orphans();
    let mut txn = Txn::begin(fs.volume(), 8).unwrap();
    for ino in [gone, Ino(8), Ino(u32::MAX)] {
        assert!(orphans.file.as_ref().unwrap().add(&mut txn, ino).unwrap());
    }
    drop(txn);
    fs.sync().unwrap();
    let crashed = image.copy();
    let fs = crashed.open();
    let summary = recovered(&fs);
    assert_eq!((summary.deleted, summary.damaged), (3, 3), "{summary:?}");
    assert_eq!(fs.volume().writer().unwrap().orphans().len(), 0);
    finish(fs, &crashed);
    drop(held);
}

#[test]
fn what_loses_its_name_in_use_is_an_orphan_until_it_is_let_go() {
    for options in [WITH_FILE, LIST] {
        let image = extant_testkit::require!(Image::make("16M", options, ""));
        let fs = image.open();
        let held = fs.root().unwrap().create("file", &NewInode::root(0o644)).unwrap();
        held.write_at(&[7; 5000], 0).unwrap();
        fs.sync().unwrap();
        fs.remove_file("/file").unwrap();
        fs.sync().unwrap();
        let crashed = image.copy();
        let later = crashed.open();
        assert_eq!(recovered(&later).deleted, 1);
        finish(later, &crashed);
        drop(held);
        finish(fs, &image);
    }
}

/// Slots of the orphan file are used again: after many times as many orphans as it has room for, one more is in it.
#[test]
fn slots_of_the_orphan_file_are_free_again_when_their_inodes_are_gone() {
    let image = extant_testkit::require!(Image::make("16M", WITH_FILE, ""));
    let fs = image.open();
    for _ in 0..IN_FILE * 3 / 600 + 1 {
        drop(nameless(&fs, 600));
        reclaim(&fs);
    }
    let orphans = fs.volume().writer().unwrap().orphans();
    assert_eq!(orphans.len(), 0);
    let held = nameless(&fs, IN_FILE);
    fs.sync().unwrap();
    assert_eq!(image.copy().superblock().last_orphan, 0, "all of them are in the file");
    assert_eq!(orphans.len(), IN_FILE as u64);
    drop(held);
    reclaim(&fs);
    finish(fs, &image);
}
