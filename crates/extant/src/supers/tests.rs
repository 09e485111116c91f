use std::sync::Arc;

use extant_format::features::DefaultMountOpts;

use super::*;
use crate::test_images::Image;
use crate::txn::Txn;

const EXT4: &[&str] = &["-t", "ext4", "-O", "^orphan_file"];

fn damage() -> FsError {
    FsError::corrupt("extent node", Ino(77), FsBlock(123), Fault::Rule("for the test"))
}

#[test]
fn mounting_and_unmounting_leave_their_marks() {
    let image = extant_testkit::require!(Image::make("16M", &["-t", "ext4"], ""));
    let before = image.superblock();
    let fs = image.open();
    let during = image.superblock_at_home();
    assert!(during.features.has_incompat(Incompat::RECOVER), "J11");
    assert!(during.state.contains(State::VALID), "as Linux: the log vouches for it");
    assert_eq!(during.mount_count, before.mount_count + 1);
    assert_eq!(during.mount_time, 1_700_000_000);
    fs.unmount().unwrap();
    let after = image.superblock_at_home();
    assert!(!after.features.has_incompat(Incompat::RECOVER));
    assert!(after.kbytes_written >= before.kbytes_written);
    assert_eq!(after.features, before.features);
    assert_eq!(after.state, before.state);
    image.check().assert_clean();
}

#[test]
fn what_is_not_true_is_not_claimed_at_the_end() {
    let image =
        extant_testkit::require!(Image::make("16M", &["-t", "ext4", "-O", "orphan_file"], ""));
    let fs = image.open();
    let present = || image.superblock_at_home().features.has_ro_compat(RoCompat::ORPHAN_PRESENT);
    assert!(present());
    fs.end_writing(false, 0).unwrap();
    let after = image.superblock_at_home();
    assert!(after.features.has_incompat(Incompat::RECOVER), "the log is not empty");
    assert!(after.features.has_ro_compat(RoCompat::ORPHAN_PRESENT));
    fs.unmount().unwrap();
    assert!(!present());
    image.check().assert_clean();
}

#[test]
fn without_a_log_a_mount_is_not_valid_until_its_end() {
    let image = extant_testkit::require!(Image::make("4M", &["-t", "ext2"], ""));
    let fs = image.open();
    assert!(!image.superblock_at_home().state.contains(State::VALID));
    assert!(!image.superblock_at_home().features.has_incompat(Incompat::RECOVER));
    fs.unmount().unwrap();
    assert!(image.superblock().state.contains(State::VALID));
    image.check().assert_clean();
}

#[test]
fn a_change_is_part_of_its_transaction_and_encoded_at_its_end() {
    let image = extant_testkit::require!(Image::make("16M", EXT4, ""));
    let fs = image.open();
    let supers = fs.volume().writer().unwrap().supers();
    let mut txn = Txn::begin(fs.volume(), 4).unwrap();
    for count in 0..1000 {
        supers.change(&mut txn, |superblock| superblock.check_interval = count).unwrap();
    }
    supers.require_feature(&mut txn, Needed::LargeFile).unwrap();
    drop(txn);
    assert_eq!(image.superblock().check_interval, 0, "not before the commit");
    fs.sync().unwrap();
    assert_eq!(image.superblock().check_interval, 999);
    fs.unmount().unwrap();
    image.check().assert_clean();
}

#[test]
fn features_come_into_use_once() {
    for (needed, off) in [(Needed::LargeFile, "^large_file"), (Needed::ExtAttr, "^ext_attr")] {
        let image = extant_testkit::require!(Image::make("16M", &["-t", "ext4", "-O", off], ""));
        assert!(!needed.is_on(&image.superblock()), "{needed:?}");
        let fs = image.open();
        let supers = fs.volume().writer().unwrap().supers();
        for _ in 0..2 {
            let mut txn = Txn::begin(fs.volume(), 4).unwrap();
            supers.require_feature(&mut txn, needed).unwrap();
        }
        fs.unmount().unwrap();
        assert!(needed.is_on(&image.superblock()), "{needed:?}");
        image.check().assert_clean();
    }
}

#[test]
fn damage_is_recorded_and_the_policy_holds() {
    for (policy, refuses, stops) in [
        (MountErrors::Continue, false, false),
        (MountErrors::RemountReadOnly, true, false),
        (MountErrors::Stop, true, true),
    ] {
        let image = extant_testkit::require!(Image::make("16M", EXT4, ""));
        let fs =
            image.options().errors(policy).open_shared(Arc::clone(&image.device) as _).unwrap();
        let writer = fs.volume().writer().unwrap();
        let supers = writer.supers();
        assert!(!supers.report(&FsError::ReadOnly, 5), "a refusal");
        supers.check_writable().unwrap();
        assert_eq!(supers.report(&damage(), 1_700_000_007), stops);
        assert_eq!(supers.check_writable().is_err(), refuses);
        supers.report(&FsError::NotFound { dir: Ino(2), at: None }, 9);
        assert_eq!(image.superblock().error_count, 0, "with the next transaction");
        let found = if stops {
            writer.abort(&damage());
            image.superblock_at_home()
        } else {
            drop(Txn::begin(fs.volume(), 1).unwrap());
            fs.sync().unwrap();
            image.superblock()
        };
        assert_eq!((found.error_count, found.first_error_time), (1, 1_700_000_007), "{policy:?}");
        assert_eq!(found.last_error_time, 1_700_000_007);
        assert!(found.state.contains(State::ERROR));
        assert_eq!(found.raw.s_first_error_func[..12], *b"extent node\0");
        assert_eq!(found.raw.s_last_error_ino.get(), 77);
        assert_eq!(found.raw.s_last_error_block.get(), 123);
        assert_eq!(found.raw.s_last_error_errcode, 5);
    }
}

#[test]
fn a_journal_that_stops_by_itself_is_recorded() {
    let image = extant_testkit::require!(Image::make("16M", EXT4, ""));
    let fs = image.open();
    let writer = fs.volume().writer().unwrap();
    let mut txn = Txn::begin(fs.volume(), 1).unwrap();
    writer.supers().change(&mut txn, |superblock| superblock.last_orphan = 99).unwrap();
    drop(txn);
    writer.journal().abort(5, "for the test");
    let found = image.superblock_at_home();
    assert!(found.state.contains(State::ERROR));
    assert_eq!((found.error_count, found.raw.s_first_error_errcode), (1, 2));
    assert_eq!(found.last_orphan, 0, "U4: nothing that was not committed");
}

#[test]
fn settings_change_together_or_not_at_all() {
    let image = extant_testkit::require!(Image::make("16M", EXT4, ""));
    let fs = image.open();
    let good = Tune::new()
        .label("archive")
        .reserve(Reserve::Percent(1.5))
        .reserve_owner(7, 70_000)
        .max_mount_count(Some(30))
        .mount_count(3)
        .check_interval(86_400)
        .errors(ErrorsPolicy::RemountReadOnly)
        .default_options(DefaultMountOpts::ACL | DefaultMountOpts::DISCARD);
    fs.tune(&good).unwrap();
    let refused = [
        Tune::new().label("no").uuid([1; 16]),
        Tune::new().check_interval(1).label("seventeen bytes!!"),
        Tune::new().check_interval(1).label("a\0b"),
        Tune::new().check_interval(1).reserve(Reserve::Percent(50.5)),
        Tune::new().check_interval(1).reserve(Reserve::Percent(f64::NAN)),
        Tune::new().check_interval(1).reserve(Reserve::Blocks(1 << 40)),
        Tune::new().check_interval(1).max_mount_count(Some(40_000)),
        Tune::new().check_interval(1).errors(ErrorsPolicy::Unknown(9)),
        Tune::new().check_interval(1).uuid([0; 16]),
    ];
    for tune in refused {
        let error = fs.tune(&tune).unwrap_err();
        assert!(matches!(error, FsError::InvalidArgument { .. }), "{error}");
    }
    fs.unmount().unwrap();
    let found = image.superblock();
    assert_eq!(found.label(), b"archive");
    assert_eq!(found.reserved_blocks_count, found.blocks_count * 15 / 1000);
    assert_eq!((found.reserved_uid, found.reserved_gid), (7, 70_000));
    assert_eq!((found.max_mount_count, found.mount_count), (30, 3));
    assert_eq!((found.check_interval, found.errors), (86_400, ErrorsPolicy::RemountReadOnly));
    assert_eq!(found.default_mount_opts, DefaultMountOpts::ACL | DefaultMountOpts::DISCARD);
    image.check().assert_clean();
}

#[test]
fn the_uuid_changes_where_no_checksum_hangs_on_it() {
    for (features, changes) in [
        ("metadata_csum,metadata_csum_seed", true),
        ("^metadata_csum,^uninit_bg", true),
        ("^metadata_csum,uninit_bg", false),
        ("metadata_csum,^metadata_csum_seed", false),
        ("metadata_csum,metadata_csum_seed,encrypt,stable_inodes", false),
    ] {
        let image =
            extant_testkit::require!(Image::make("16M", &["-t", "ext4", "-O", features], ""));
        let fs = image.open();
        let tuned = fs.tune(&Tune::new().uuid([9; 16]));
        assert_eq!(tuned.is_ok(), changes, "{features}: {tuned:?}");
        fs.unmount().unwrap();
        assert_eq!(image.superblock().uuid == [9; 16], changes);
        image.check().assert_clean();
    }
}
