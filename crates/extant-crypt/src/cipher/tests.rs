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
    let small: Vec<Policy> = all
        .iter()
        .map(|policy| Policy {
            contents: ContentsMode::Aes128CbcEssiv,
            names: NamesMode::Aes128Cts,
            padding: 4,
            ..*policy
        })
        .collect();
    all.extend(small);
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
        let per_file = policy.iv == IvKind::PerFile;
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
    let adiantum =
        Policy { contents: ContentsMode::Adiantum, names: NamesMode::Adiantum, ..policy };
    let fault = Some(CipherFault::Mode("Adiantum"));
    assert_eq!(try_names(adiantum, &PLACE, &master()), (fault, fault));
    let hctr2 = Policy { names: NamesMode::Aes256Hctr2, ..policy };
    assert_eq!(
        try_names(hctr2, &PLACE, &master()),
        (None, Some(CipherFault::Mode("AES-256-HCTR2")))
    );
    let unstable = Place { is_stable: false, ..PLACE };
    let by_number = Policy { iv: IvKind::InoLblk64, ..policy };
    let fault = Some(CipherFault::NeedsStableInodes);
    assert_eq!(try_names(by_number, &unstable, &master()), (fault, fault));
    let large = Policy { data_unit_log2: Some(13), ..policy };
    assert_eq!(try_names(large, &PLACE, &master()), (Some(CipherFault::DataUnit), None));
    let short = MasterKey::new(&[1; 31]).unwrap();
    let fault = Some(CipherFault::ShortKey { have: 31, need: 32 });
    assert_eq!(try_names(policy, &PLACE, &short), (fault, fault));
    let old = Policy::new(KeySpec::Descriptor([0; 8]));
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
