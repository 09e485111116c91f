use super::*;
use extant_base::Prng;
use std::{vec, vec::Vec};

fn layout(inode_size: u16) -> InodeLayout {
    InodeLayout {
        inode_size,
        block_size: BlockSize::new(4096).unwrap(),
        huge_file: true,
        large_dir: false,
        wide: true,
        checksum_seed: Some(0x1234_5678),
    }
}

const SIZES: [u16; 10] = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 256];

#[test]
fn every_extra_size_is_accepted_or_refused_as_documented() {
    for size in SIZES {
        for extra in 0..=u16::MAX {
            let mut bytes = vec![0u8; usize::from(size)];
            if size > 128 {
                bytes[128..130].copy_from_slice(&extra.to_le_bytes());
            }
            let decoded = Inode::decode(&layout(size), &bytes);
            if size == 128 {
                assert_eq!(decoded.unwrap().extra_isize, 0);
                break;
            }
            let good = extra % 4 == 0 && extra <= size - 128;
            assert_eq!(decoded.is_ok(), good, "extra {extra} of {size}");
            if let Ok(inode) = decoded {
                assert_eq!(inode.extra_isize, extra);
                assert_eq!(inode.crtime.is_some(), extra >= 20);
            }
            if size > 256 && extra > 300 {
                break;
            }
        }
    }
}

/// A layout of the size whose turn it is, and random bytes of a record, with one of these extra sizes.
fn random_record(random: &mut Prng, round: usize, extras: &[u16]) -> (InodeLayout, Vec<u8>) {
    let layout = InodeLayout {
        huge_file: random.one_in(2),
        large_dir: random.one_in(2),
        wide: random.one_in(2),
        ..layout(SIZES[round % SIZES.len()])
    };
    let mut bytes = vec![0u8; usize::from(layout.inode_size)];
    random.fill(&mut bytes);
    bytes[0x6f] &= 0x7f; // I2
    if bytes.len() > 128 {
        let extra = extras[random.below(extras.len() as u64) as usize];
        bytes[128..130].copy_from_slice(&extra.to_le_bytes());
    }
    (layout, bytes)
}

#[test]
fn random_records_encode_to_themselves_and_any_flipped_bit_is_noticed() {
    let mut random = Prng::new(11);
    for round in 0..600usize {
        let (layout, bytes) = random_record(&mut random, round, &[0, 4, 12, 24, 28, 32, 64, 128]);
        let len = bytes.len();
        let inode = Inode::decode(&layout, &bytes).unwrap();
        let mut again = bytes.clone();
        inode.encode(&layout, Ino(77), &mut again).unwrap();
        Inode::verify_checksum(&layout, Ino(77), &again).unwrap();
        assert_eq!(Inode::decode(&layout, &again), Ok(inode.clone()));
        // Only the checksum may differ from the random bytes.
        let mut masked = again.clone();
        masked[0x7c..0x7e].copy_from_slice(&bytes[0x7c..0x7e]);
        if inode.extra_isize >= 4 {
            masked[0x82..0x84].copy_from_slice(&bytes[0x82..0x84]);
        }
        assert_eq!(masked, bytes, "round {round}");

        assert!(Inode::verify_checksum(&layout, Ino(78), &again).is_err(), "number is covered");
        let bits: Vec<usize> = (0..40).map(|_| random.below(len as u64 * 8) as usize).collect();
        for bit in bits {
            again[bit / 8] ^= 1 << (bit % 8);
            // A change of i_extra_isize may move the checksum's high half out of the record; then
            // 16 bits are left, which a single flip can still not keep.
            assert!(Inode::verify_checksum(&layout, Ino(77), &again).is_err(), "bit {bit}");
            again[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_mode_has_the_kind_of_its_upper_bits() {
    let mut kinds = 0;
    for mode in 0..=u16::MAX {
        let kind = FileKind::from_mode(mode);
        assert_eq!(kind.map_or(mode & 0xf000, FileKind::mode_bits), mode & 0xf000);
        kinds += usize::from(kind.is_some() && mode & 0xfff == 0);
    }
    assert_eq!(kinds, 7);
}

#[test]
fn sizes_follow_the_kind_and_large_dir() {
    for (mode, large_dir, wide) in [
        (0x8000, false, true),
        (0x8000, true, true),
        (0x4000, false, false),
        (0x4000, true, true),
        (0xa000, false, false),
    ] {
        let layout = InodeLayout { large_dir, ..layout(256) };
        let mut bytes = [0u8; 256];
        bytes[..2].copy_from_slice(&u16::to_le_bytes(mode));
        bytes[4] = 5;
        bytes[0x6c] = 7;
        let inode = Inode::decode(&layout, &bytes).unwrap();
        assert_eq!(inode.size, if wide { 0x7_0000_0005 } else { 5 });
        let big = Inode { size: 1 << 32, ..inode.clone() }.encode(&layout, Ino(12), &mut bytes);
        assert_eq!(big.is_ok(), wide);
    }
    let mut bytes = [0u8; 256];
    bytes[1] = 0x80;
    bytes[0x6f] = 0x80;
    assert_eq!(
        Inode::decode(&layout(256), &bytes),
        Err(InodeError::Size { found: 0x8000_0000_0000_0000 })
    );
}

#[test]
fn block_counts_use_the_unit_that_fits() {
    let huge = layout(256);
    let plain = InodeLayout { huge_file: false, ..huge };
    let cases: [(u64, Option<bool>, Option<bool>); 8] = [
        (0, Some(false), Some(false)),
        (u64::from(u32::MAX), Some(false), Some(false)),
        (1 << 32, Some(false), None),
        ((1 << 48) - 1, Some(false), None),
        (1 << 48, Some(true), None),
        ((1 << 51) - 8, Some(true), None),
        (1 << 51, None, None),
        (u64::MAX, None, None),
    ];
    for (sectors, with, without) in cases {
        for (layout, expected) in [(huge, with), (plain, without)] {
            let mut inode = Inode::empty(&layout);
            let result = inode.set_sectors(&layout, sectors);
            assert_eq!(result.is_ok(), expected.is_some(), "{sectors}");
            assert_eq!(inode.sectors, if expected.is_some() { sectors } else { 0 });
            if let Some(flag) = expected {
                assert_eq!(inode.flags.contains(InodeFlags::HUGE_FILE), flag, "{sectors}");
                let mut bytes = [0u8; 256];
                inode.encode(&layout, Ino(12), &mut bytes).unwrap();
                assert_eq!(Inode::decode(&layout, &bytes), Ok(inode));
            }
        }
    }
    // Sectors that are no whole blocks cannot be told in blocks.
    let mut odd = Inode::empty(&huge);
    odd.flags = InodeFlags::HUGE_FILE;
    odd.sectors = 9;
    let mut bytes = [0u8; 256];
    assert!(matches!(
        odd.encode(&huge, Ino(12), &mut bytes),
        Err(InodeError::TooLarge { value: 9, .. })
    ));
    assert_eq!(bytes, [0; 256], "nothing written");
}

#[test]
fn small_inodes_clamp_times_and_have_no_birth() {
    let layout = InodeLayout { checksum_seed: None, ..layout(128) };
    let mut inode = Inode::empty(&layout);
    inode.mtime = Timestamp::new(1 << 33, 5);
    let mut bytes = [0u8; 128];
    inode.encode(&layout, Ino(12), &mut bytes).unwrap();
    let back = Inode::decode(&layout, &bytes).unwrap();
    assert_eq!(back.mtime, Timestamp::new(i64::from(i32::MAX), 0));
    assert_eq!(back.crtime, None);
    assert!(Inode::decode(&layout, &bytes[..127]).is_err());
}

#[test]
fn a_seal_changes_the_checksum_and_nothing_else() {
    let mut random = Prng::new(5);
    for (size, extra) in [(128u16, 0u16), (256, 0), (256, 4), (256, 32), (1024, 32)] {
        let layout = layout(size);
        let mut bytes = vec![0; usize::from(size)];
        random.fill(&mut bytes);
        if size > 128 {
            bytes[128..130].copy_from_slice(&extra.to_le_bytes());
        }
        assert!(Inode::verify_checksum(&layout, Ino(77), &bytes).is_err());
        let mut sealed = bytes.clone();
        Inode::seal(&layout, Ino(77), &mut sealed).unwrap();
        Inode::verify_checksum(&layout, Ino(77), &sealed).unwrap();
        assert!(Inode::verify_checksum(&layout, Ino(78), &sealed).is_err());
        sealed[0x7c..0x7e].copy_from_slice(&bytes[0x7c..0x7e]);
        if extra >= 4 {
            sealed[0x82..0x84].copy_from_slice(&bytes[0x82..0x84]);
        }
        assert_eq!(sealed, bytes, "{size} with {extra}");
        let plain = InodeLayout { checksum_seed: None, ..layout };
        Inode::seal(&plain, Ino(77), &mut sealed).unwrap();
        assert_eq!(sealed, bytes, "without checksums");
        let cut = Inode::seal(&layout, Ino(77), &mut sealed[..usize::from(size) - 1]);
        assert!(matches!(cut, Err(InodeError::Length(_))), "{cut:?}");
    }
}

#[test]
fn rounded_times_are_those_that_are_read_again() {
    for (size, extra) in [(128, 0), (256, 0), (256, 4), (256, 8), (256, 12), (256, 16), (256, 32)] {
        let layout = layout(size);
        let mut inode = Inode { extra_isize: extra, ..Inode::empty(&layout) };
        inode.atime = Timestamp::new(1 << 33, 1);
        inode.ctime = Timestamp::new((1 << 33) + 1, 2);
        inode.mtime = Timestamp::new(-(1 << 40), 3);
        inode.crtime = (extra >= 20).then(|| Timestamp::new(1 << 50, 4));
        let exact = inode.clone();
        inode.round_times();
        let mut bytes = vec![0; usize::from(size)];
        inode.encode(&layout, Ino(12), &mut bytes).unwrap();
        assert_eq!(Inode::decode(&layout, &bytes), Ok(inode.clone()), "{size} with {extra}");
        let kept = |end| extra >= end;
        assert_eq!(inode.ctime == exact.ctime, kept(8), "{extra}");
        assert_eq!(inode.atime == exact.atime, kept(16), "{extra}");
        assert_ne!(inode.mtime, exact.mtime, "before 1901");
    }
}

#[test]
fn a_fast_symlink_is_a_short_symlink_without_a_map() {
    let link = |mode, size, flags| {
        Inode { mode, size, flags, ..Inode::empty(&layout(256)) }.is_fast_symlink()
    };
    let none = InodeFlags::empty();
    assert!(link(0o120_777, 59, none) && link(0o120_777, 0, none));
    assert!(!link(0o120_777, 60, none));
    assert!(!link(0o100_644, 59, none));
    assert!(!link(0o120_777, 59, InodeFlags::EXTENTS));
    assert!(!link(0o120_777, 59, InodeFlags::INLINE_DATA));
}

#[test]
fn an_orphan_names_the_next_one_in_its_time_of_deletion() {
    let inode = Inode { mode: 0o104_755, ..Inode::empty(&layout(256)) };
    assert_eq!((inode.next_orphan(), inode.permissions()), (None, 0o4755));
    assert_eq!(Inode { dtime: 77, ..inode }.next_orphan(), Some(Ino(77)));
}

#[test]
fn an_inode_is_stored_whole_whatever_its_place_held() {
    let mut random = Prng::new(6);
    for round in 0..300usize {
        let (layout, bytes) = random_record(&mut random, round, &[4, 20, 32]);
        let len = bytes.len();
        let inode = Inode::decode(&layout, &bytes).unwrap();
        for fill in [0, 0xff] {
            let mut place = vec![fill; len];
            inode.encode(&layout, Ino(77), &mut place).unwrap();
            Inode::verify_checksum(&layout, Ino(77), &place).unwrap();
            assert_eq!(Inode::decode(&layout, &place).as_ref(), Ok(&inode), "round {round}");
        }
    }
}

#[test]
fn what_a_record_has_no_room_for_is_refused_and_nothing_is_written() {
    let wide = layout(256);
    let narrow = InodeLayout { wide: false, ..wide };
    let file = Inode { mode: 0o100_644, ..Inode::empty(&wide) };
    let stores = |layout: &InodeLayout, inode: &Inode| {
        let mut place = [0xaa; 256];
        let stored = inode.encode(layout, Ino(12), &mut place);
        assert!(stored.is_ok() || place == [0xaa; 256], "{stored:?}");
        stored.is_ok()
    };
    for (block, in_wide, in_narrow) in
        [(u64::from(u32::MAX), true, true), (1 << 32, true, false), (1 << 48, false, false)]
    {
        let inode = Inode { file_acl: FsBlock(block), ..file.clone() };
        assert_eq!(
            (stores(&wide, &inode), stores(&narrow, &inode)),
            (in_wide, in_narrow),
            "{block}"
        );
    }
    assert!(stores(&wide, &Inode { size: u64::MAX >> 1, ..file.clone() }));
    assert!(!stores(&wide, &Inode { size: (u64::MAX >> 1) + 1, ..file.clone() }));
    assert!(stores(&wide, &Inode { sectors: (1 << 48) - 1, ..file.clone() }));
    assert!(!stores(&wide, &Inode { sectors: 1 << 48, ..file.clone() }));
    for (extra_isize, fits) in [(128, true), (132, false), (30, false)] {
        assert_eq!(stores(&wide, &Inode { extra_isize, ..file.clone() }), fits, "{extra_isize}");
    }
}
