use super::*;
use std::vec::Vec;

#[test]
fn versions_on_disk_are_0_1_2_and_6() {
    for raw in 0..=u8::MAX {
        assert_eq!(HashVersion::from_raw(raw).is_some(), raw <= 6, "{raw}");
        for unsigned in [false, true] {
            let version = HashVersion::from_disk(raw, unsigned);
            assert_eq!(version.is_some(), matches!(raw, 0 | 1 | 2 | 6), "{raw}");
            if let Some(version) = version {
                assert_eq!(version.on_disk(), raw);
                // The keyed hash has no signedness.
                assert_eq!(version.is_unsigned(), unsigned && raw != 6);
            }
        }
    }
}

#[test]
fn the_end_mark_moves_down_and_bit_0_is_clear() {
    assert_eq!(NameHash::new(0xffff_fffe, 5), NameHash { major: 0xffff_fffc, minor: 5 });
    assert_eq!(NameHash::new(0xffff_ffff, 0).major, 0xffff_fffc);
    assert_eq!(NameHash::new(0xffff_fffd, 0).major, 0xffff_fffc);
    assert_eq!(NameHash::new(1, 0).major, 0);
}

#[test]
fn an_all_zero_seed_stands_for_the_constants_of_md4() {
    let constants = HashSeed::from_words([0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]);
    for version in [HashVersion::HalfMd4, HashVersion::Tea] {
        for name in [b"a".as_slice(), b"some longer name than sixteen bytes, and 32"] {
            let zero = name_hash(version, &HashSeed::default(), name);
            assert_eq!(zero, name_hash(version, &constants, name));
            let other = HashSeed::from_words([1, 0, 0, 0]);
            assert_ne!(zero, name_hash(version, &other, name));
        }
    }
}

#[test]
fn signedness_matters_from_0x80_on_and_only_there() {
    for byte in 1..=u8::MAX {
        let name = [b'x', byte, b'y', b'z', b'q'];
        for (one, other) in [
            (HashVersion::Legacy, HashVersion::LegacyUnsigned),
            (HashVersion::HalfMd4, HashVersion::HalfMd4Unsigned),
            (HashVersion::Tea, HashVersion::TeaUnsigned),
        ] {
            let pair = [one, other].map(|v| name_hash(v, &HashSeed::default(), &name).unwrap());
            assert_eq!(pair[0] == pair[1], byte < 0x80, "{one:?} {byte:#x}");
        }
    }
}

/// Vectors of the SipHash paper's reference implementation: key 00..0f, input 00..len.
#[test]
fn siphash_agrees_with_its_paper() {
    let key: [u8; 16] = core::array::from_fn(|i| i as u8);
    for (len, wanted) in [(0usize, 0x726f_db47_dd0e_0e31u64), (15, 0xa129_ca61_49be_45e5)] {
        let input: Vec<u8> = (0..len as u8).collect();
        let hash = siphash(&key, &input);
        assert_eq!(hash.major, (wanted >> 32) as u32 & !1);
        assert_eq!(hash.minor, wanted as u32);
    }
    assert_eq!(name_hash(HashVersion::SipHash, &HashSeed::default(), b"x"), None);
}

#[test]
fn many_names_at_once_hash_as_each_alone() {
    let mut random = extant_base::Prng::new(5);
    for round in 0..200 {
        let seed = HashSeed::from_words(core::array::from_fn(|_| random.next_u64() as u32));
        let most = if round % 4 == 0 { 255 } else { 32 };
        let names: [Vec<u8>; NAMES_AT_ONCE] = core::array::from_fn(|_| {
            let len = 1 + random.below(most);
            (0..len).map(|_| random.next_u64() as u8).collect()
        });
        let names: [&[u8]; NAMES_AT_ONCE] = core::array::from_fn(|at| names[at].as_slice());
        for version in HashVersion::ALL {
            let wanted = names.map(|name| name_hash(version, &seed, name));
            match name_hashes(version, &seed, &names) {
                Some(found) => assert_eq!(found.map(Some), wanted, "{version:?}"),
                None => assert_eq!(version, HashVersion::SipHash),
            }
        }
    }
}

/// One byte at a time, as the rule is put.
#[test]
fn words_of_a_name_are_filled_from_the_top() {
    let mut random = extant_base::Prng::new(6);
    for len in 0..=70usize {
        let name: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        for widen in [signed as fn(u8) -> u32, unsigned] {
            let pad = len as u32 * 0x0101_0101;
            let mut wanted = [pad; 8];
            for (at, byte) in name.iter().take(32).enumerate() {
                wanted[at / 4] = (wanted[at / 4] << 8).wrapping_add(widen(*byte));
            }
            assert_eq!(words::<8>(&name, &widen), wanted, "{len}");
        }
    }
}
