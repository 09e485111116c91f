//! What a cipher of an inode does with contents, names, and policies that it cannot serve.

use super::*;
use crate::{IvKind, KeySpec, Policy};

const PLACE: Place = Place { ino: 13, uuid: [0x5a; 16], is_stable: true, block_log2: 12 };

fn master() -> MasterKey {
    MasterKey::new(&std::array::from_fn::<u8, 64, _>(|n| n as u8)).unwrap()
}

fn policies() -> Vec<Policy> {
    let master = master();
    let mut all = vec![Policy::new(master.usual_descriptor())];
    for iv in [IvKind::PerFile, IvKind::InoLblk64, IvKind::InoLblk32] {
        for data_unit_log2 in [None, Some(9)] {
            all.push(Policy { iv, data_unit_log2, ..Policy::new(master.identifier()) });
        }
    }
    use {ContentsMode as C, NamesMode as N};
    let with = |contents, names, padding| {
        let change = move |policy: &Policy| Policy { contents, names, padding, ..*policy };
        all.iter().map(change).filter(Policy::is_supported).collect::<Vec<_>>()
    };
    let small = with(C::Aes128CbcEssiv, N::Aes128Cts, 4);
    let adiantum = with(C::Adiantum, N::Adiantum, 16);
    let hctr2 = with(C::Aes256Xts, N::Aes256Hctr2, 8);
    let direct = adiantum.iter().map(|policy| Policy { iv: IvKind::DirectKey, ..*policy });
    let direct: Vec<Policy> = direct.collect();
    all.extend([small, adiantum, hctr2, direct].concat());
    assert_eq!(all.len(), 7 + 3 + 3 + 6 + 3);
    all
}

#[test]
fn contents_come_back_and_depend_on_nonce_and_position() {
    let plain: Vec<u8> = (0..8192).map(|n| (n % 251) as u8).collect();
    for policy in policies() {
        assert!(policy.is_supported(), "{policy:?}");
        let cipher = |nonce| {
            let context = Context { policy, nonce: [nonce; 16] };
            ContentsCipher::new(&master(), &context, &PLACE).unwrap()
        };
        let encrypted = |nonce, offset| {
            let mut bytes = plain.clone();
            cipher(nonce).encrypt(offset, &mut bytes);
            bytes
        };
        let first = encrypted(1, 4096);
        assert_ne!(first[..4096], plain[..4096]);
        assert_ne!(first, encrypted(1, 0), "{policy:?}");
        let per_file = matches!(policy.iv, IvKind::PerFile | IvKind::DirectKey);
        assert_eq!(first != encrypted(2, 4096), per_file, "{policy:?}");
        // Data units stand for themselves.
        let mut second = first[4096..].to_vec();
        cipher(1).decrypt(8192, &mut second);
        assert_eq!(second, plain[4096..], "{policy:?}");
    }
}

#[test]
fn names_come_back_at_every_length() {
    for policy in policies() {
        let context = Context { policy, nonce: [9; 16] };
        let names = NamesCipher::new(&master(), &context, &PLACE).unwrap();
        for len in 1..=255 {
            let name: Vec<u8> = (0..len).map(|n| b'a' + (n % 26) as u8).collect();
            let stored = names.encrypt(&name, 255).unwrap();
            assert!(stored.len() >= name.len().max(16) && stored.len() <= 255);
            assert_eq!(names.decrypt(&stored), Some(name), "{policy:?}");
        }
        assert_eq!(names.decrypt(&[0; 15]), None);
        assert_eq!(names.encrypt(&[1; 256], 255), Err(NameTooLong { len: 256, most: 255 }));
    }
}

#[test]
fn policies_that_cannot_be_served_are_refused_by_name() {
    let policy = Policy::new(master().identifier());
    let try_names = |policy, place: &Place, master: &MasterKey| {
        let context = Context { policy, nonce: [0; 16] };
        let contents = ContentsCipher::new(master, &context, place).err();
        (contents, NamesCipher::new(master, &context, place).err())
    };
    let sm4 = Policy { contents: ContentsMode::Sm4Xts, names: NamesMode::Sm4Cts, ..policy };
    let faults = (Some(CipherFault::Mode("SM4-XTS")), Some(CipherFault::Mode("SM4-CBC-CTS")));
    assert_eq!(try_names(sm4, &PLACE, &master()), faults);
    let unstable = Place { is_stable: false, ..PLACE };
    let by_number = Policy { iv: IvKind::InoLblk64, ..policy };
    let fault = Some(CipherFault::NeedsStableInodes);
    assert_eq!(try_names(by_number, &unstable, &master()), (fault, fault));
    let large = Policy { data_unit_log2: Some(13), ..policy };
    assert_eq!(try_names(large, &PLACE, &master()), (Some(CipherFault::DataUnit), None));
    let short = MasterKey::new(&[1; 31]).unwrap();
    let fault = Some(CipherFault::ShortKey { have: 31, need: 32 });
    assert_eq!(try_names(policy, &PLACE, &short), (fault, fault));
    let adiantum =
        Policy { contents: ContentsMode::Adiantum, names: NamesMode::Adiantum, ..policy };
    let direct = Policy { iv: IvKind::DirectKey, ..adiantum };
    let hctr2 = Policy { names: NamesMode::Aes256Hctr2, ..policy };
    for policy in [adiantum, direct, hctr2] {
        assert_eq!(try_names(policy, &PLACE, &short), (fault, fault), "{policy:?}");
        assert_eq!(try_names(policy, &PLACE, &MasterKey::new(&[1; 32]).unwrap()), (None, None));
    }
    let old = Policy::new(KeySpec::Descriptor([0; 8]));
    let old_direct = Policy { key: old.key, ..direct };
    assert_eq!(try_names(old_direct, &PLACE, &short), (fault, fault));
    let fault = Some(CipherFault::ShortKey { have: 31, need: 64 });
    assert_eq!(try_names(old, &PLACE, &short).0, fault);
}

#[test]
fn debug_shows_the_mode_alone() {
    let context = Context { policy: Policy::new(master().identifier()), nonce: [9; 16] };
    let contents = ContentsCipher::new(&master(), &context, &PLACE).unwrap();
    let names = NamesCipher::new(&master(), &context, &PLACE).unwrap();
    assert_eq!(
        format!("{contents:?} {names:?}"),
        "ContentsCipher(AES-256-XTS) NamesCipher(AES-256-CBC-CTS)"
    );
}

#[test]
fn one_key_for_all_inodes_is_that_of_linux() {
    let direct = Policy {
        contents: ContentsMode::Adiantum,
        names: NamesMode::Adiantum,
        iv: IvKind::DirectKey,
        ..Policy::new(master().identifier())
    };
    let old = Policy { key: master().usual_descriptor(), ..direct };
    let block = [0x5a; 4096];
    for policy in [direct, old] {
        let context = Context { policy, nonce: std::array::from_fn(|n| 0xf0 | n as u8) };
        // Version 1 takes the beginning of the master key as it is; version 2 derives one of mode 9.
        let mut key = [0; 32];
        match policy.key {
            KeySpec::Descriptor(_) => key.copy_from_slice(&master().bytes()[..32]),
            KeySpec::Identifier(_) => {
                let hkdf = hkdf::Hkdf::<sha2::Sha512>::new(None, master().bytes());
                hkdf.expand(b"fscrypt\0\x03\x09", &mut key).unwrap();
            }
        }
        let mut expected = block;
        let mut vector = [0; 32];
        vector[..8].copy_from_slice(&5u64.to_le_bytes());
        vector[8..24].copy_from_slice(&context.nonce);
        Adiantum::new(&key).encrypt(&vector, &mut expected);
        for place in [PLACE, Place { ino: 99, uuid: [1; 16], is_stable: false, ..PLACE }] {
            let mut contents = block;
            let cipher = ContentsCipher::new(&master(), &context, &place).unwrap();
            cipher.encrypt(5 * 4096, &mut contents);
            assert!(contents == expected, "{policy:?}");
            // Names have the same key, and the vector of position 0.
            let mut name = b"a name of thirty-two bytes, here".to_vec();
            let stored =
                NamesCipher::new(&master(), &context, &place).unwrap().encrypt(&name, 255).unwrap();
            vector[..8].fill(0);
            Adiantum::new(&key).encrypt(&vector, &mut name);
            assert_eq!(stored, name, "{policy:?}");
        }
    }
}

#[test]
fn each_wide_mode_has_its_own_cipher_and_key() {
    let hkdf = hkdf::Hkdf::<sha2::Sha512>::new(None, master().bytes());
    let key = |info: &[u8]| {
        let mut key = [0; 32];
        hkdf.expand(&[b"fscrypt\0", info].concat(), &mut key).unwrap();
        key
    };
    let nonce = [9; 16];
    let name = b"a name of thirty-two bytes, here".to_vec();
    let stored = |policy| {
        let context = Context { policy, nonce };
        NamesCipher::new(&master(), &context, &PLACE).unwrap().encrypt(&name, 255).unwrap()
    };
    let usual = Policy::new(master().identifier());
    let hctr2 = Policy { names: NamesMode::Aes256Hctr2, ..usual };
    let adiantum = Policy { contents: ContentsMode::Adiantum, names: NamesMode::Adiantum, ..usual };

    let per_file = key(&[&[2], &nonce[..]].concat());
    let mut expected = name.clone();
    Hctr2::new(&per_file).encrypt(&[0; 32], &mut expected);
    assert_eq!(stored(hctr2), expected);
    let mut expected = name.clone();
    Adiantum::new(&per_file).encrypt(&[0; 32], &mut expected);
    assert_eq!(stored(adiantum), expected);

    let by_number = key(&[&[4, 10], &PLACE.uuid[..]].concat());
    let mut vector = [0; 32];
    vector[4..8].copy_from_slice(&PLACE.ino.to_le_bytes());
    let mut expected = name.clone();
    Hctr2::new(&by_number).encrypt(&vector, &mut expected);
    assert_eq!(stored(Policy { iv: IvKind::InoLblk64, ..hctr2 }), expected);
}

#[test]
fn no_stored_name_and_no_context_makes_a_cipher_panic() {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut made = 0;
    for policy in policies() {
        let stored = Context { policy, nonce: [9; 16] }.encode();
        for _ in 0..300 {
            let mut stored = stored.clone();
            for _ in 0..=random() % 3 {
                let at = random() as usize % stored.len().min(8);
                stored[at] = if random() % 2 == 0 { random() as u8 % 12 } else { random() as u8 };
            }
            let Ok(context) = Context::decode(&stored) else { continue };
            let len = 16 + random() as usize % 49;
            let key = MasterKey::new(&master().bytes()[..len]).unwrap();
            let is_stable = random() % 2 == 0;
            let place = Place { is_stable, block_log2: 10 + (random() % 7) as u8, ..PLACE };
            if let Ok(cipher) = ContentsCipher::new(&key, &context, &place) {
                let mut bytes = vec![random() as u8; 1 << place.block_log2];
                let before = bytes.clone();
                let offset = (random() >> 20) << place.block_log2;
                cipher.decrypt(offset, &mut bytes);
                cipher.encrypt(offset, &mut bytes);
                assert!(bytes == before, "{context:?}");
                made += 1;
            }
            if let Ok(cipher) = NamesCipher::new(&key, &context, &place) {
                let name: Vec<u8> = (0..random() % 300).map(|_| random() as u8).collect();
                assert_eq!(cipher.decrypt(&name).is_some(), name.len() >= 16);
                made += 1;
            }
        }
    }
    assert!(made > 500, "{made}");
}
