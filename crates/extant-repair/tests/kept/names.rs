//! What a damaged record of a directory keeps of its name, and of those behind it.

use std::fs;
use std::sync::Arc;

use extant::{EncryptionPolicy, MasterKey, MountOptions, NewInode};
use extant_block::BlockDevice;
use extant_testkit::{image, oracle, require, tempdir};

use crate::common::{SETS, e2fsck, repaired, sample};

/// Where the records of the entries of a directory with one block begin.
fn records(block: &[u8]) -> Vec<usize> {
    let (mut at, mut places) = (0, Vec::new());
    while at + 12 <= block.len() && block[at + 6] != 0 {
        places.push(at);
        at += usize::from(u16::from_le_bytes([block[at + 4], block[at + 5]]));
    }
    places
}

/// A name that is longer than its record is as long as the record says; nothing behind it is a part of it.
#[test]
fn an_entry_whose_name_has_a_wrong_length_keeps_it_and_so_do_those_behind_it() {
    let dir = tempdir().unwrap();
    for features in [SETS[2], SETS[6]] {
        let device = Arc::new(require!(sample(dir.path(), &[features, &["-Oencrypt"]].concat())));
        let size = if features == SETS[6] { 4096 } else { 1024 };
        let (key, new) = (MasterKey::new(&[7; 64]).unwrap(), NewInode::root(0o755));
        let options = || MountOptions::new().key(key.clone());
        let fs = options().read_only(false).background(false).open(Arc::clone(&device)).unwrap();
        for (path, policy) in
            [("/plain", None), ("/secret", Some(EncryptionPolicy::new(key.identifier())))]
        {
            fs.create_dir_all(path, &new).unwrap();
            if let Some(policy) = policy {
                fs.resolve(path).unwrap().set_encryption_policy(&policy).unwrap();
            }
            for name in ["one", "the second of all names here", "e/f/g", "last"] {
                match name.rsplit_once('/') {
                    Some((above, _)) => {
                        fs.create_dir_all(format!("{path}/{above}"), &new).unwrap();
                        fs.write(format!("{path}/{name}"), name).unwrap();
                    }
                    None => fs.write(format!("{path}/{name}"), name).unwrap(),
                }
            }
        }
        let dirs = ["/plain", "/secret", "/secret/e"].map(|path| fs.resolve(path).unwrap().ino());
        fs.unmount().unwrap();
        let path = dir.path().join("encrypted.img");
        let _removed = fs::remove_file(&path);
        image::save(&device, &path);
        let blocks = dirs.map(|ino| {
            let said = oracle::debugfs(&path, false, &format!("blocks <{ino}>\n")).unwrap();
            let numbers = said.lines().filter(|line| !line.starts_with("debugfs"));
            let first = numbers.flat_map(str::split_whitespace).find_map(|word| word.parse().ok());
            first.unwrap_or_else(|| panic!("{said}"))
        });
        for block in blocks {
            let mut bytes = vec![0; size];
            let block: u64 = block;
            device.read_at(block * size as u64, &mut bytes).unwrap();
            for at in records(&bytes) {
                let fitting = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]])) - 8;
                for len in [fitting + 1, fitting + 9, 255] {
                    let Ok(len) = u8::try_from(len) else { continue };
                    if usize::from(len) <= fitting {
                        continue;
                    }
                    let damaged = device.snapshot();
                    damaged.write_at(block * size as u64 + at as u64 + 6, &[len]).unwrap();
                    let what = format!("{features:?}, block {block}, record {at}, {len}");
                    assert!(repaired(&damaged).unwrap().is_clean, "{what}");
                    assert_eq!(e2fsck(&damaged, dir.path(), false).unwrap(), "", "{what}");
                    let fs = options().open(damaged).unwrap();
                    for path in ["/plain", "/secret"] {
                        for name in ["one", "the second of all names here", "e/f/g", "last"] {
                            let read = fs.read(format!("{path}/{name}"));
                            let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
                            assert_eq!(read, name.as_bytes(), "{what}");
                        }
                    }
                    assert_eq!(fs.read_dir("/lost+found").unwrap().count(), 0, "{what}");
                }
            }
        }
    }
}
