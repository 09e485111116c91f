//! Random bytes in what says how a file is encrypted or sealed: contexts, descriptors with signatures, hash trees. Nothing
//! panics, and what is shown of a sealed file is what was sealed.

use std::collections::BTreeMap;

use extant::{
    EncryptionPolicy, FsError, KeySpec, MappingKind, MountOptions, NewInode, VerityOptions,
};
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice};
use extant_testkit::proof::env;
use extant_testkit::require;

use super::encrypted::{key, open_shared, pattern, unmounted};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };
/// Block of the file system and of the tree, in bytes.
const BLOCK: u64 = 1024;

/// Changes one to eight bytes of `places`, and returns what was there.
fn mutate(device: &MemoryDevice, places: &[u64], random: &mut Prng) -> Vec<(u64, u8)> {
    let count = 1 + random.below(8);
    let mut old = Vec::new();
    for _ in 0..count {
        let at = places[random.below(places.len() as u64) as usize];
        let mut byte = [0];
        device.read_at(at, &mut byte).unwrap();
        old.push((at, byte[0]));
        let bit = 1 << random.below(8);
        let other = [random.next_u64() as u8, byte[0] ^ bit, 0, 0xff][random.below(4) as usize];
        device.write_at(at, &[other]).unwrap();
    }
    old
}

fn restore(device: &MemoryDevice, old: Vec<(u64, u8)>) {
    for (at, byte) in old.into_iter().rev() {
        device.write_at(at, &[byte]).unwrap();
    }
}

/// Which errors there were, and how often.
type Seen = BTreeMap<i32, u64>;

fn seals(seed: u64, count: u64) {
    let device = require!(unmounted("verity", "1024"));
    let fs = open_shared(&device, MountOptions::new());
    let bytes = pattern(3, 90_000);
    let inode = fs.create("/sealed", &NEW).unwrap();
    inode.write_at(&bytes, 0).unwrap();
    let signature: Vec<u8> = (0..700).map(|at| at as u8).collect();
    let options =
        VerityOptions::new().block_bytes(BLOCK as u32).salt(vec![7; 20]).signature(signature);
    inode.enable_verity(&options).unwrap();
    // All that lies behind the end: two levels, and the descriptor with the signature.
    let mut places = Vec::new();
    for run in inode.map(inode.block_len()..1 << 12) {
        let run = run.unwrap();
        if let MappingKind::Mapped(start) = run.kind {
            let len = run.len * BLOCK;
            places.extend(start.0 * BLOCK..start.0 * BLOCK + len);
        }
    }
    drop(inode);
    fs.unmount().unwrap();
    // The last block has the descriptor: as often as all others together.
    let descriptor = places[places.len() - 2 * BLOCK as usize..].to_vec();
    let mut random = Prng::new(seed);
    let (mut seen, mut read) = (Seen::new(), 0);
    for round in 0..count {
        let here = if random.one_in(2) { &descriptor } else { &places };
        let old = mutate(&device, here, &mut random);
        let options = MountOptions::new().background(false).read_only(round % 2 == 0);
        let fs = options.open_shared(device.clone()).unwrap();
        let inode = fs.resolve("/sealed").unwrap();
        let results = [
            inode.read_all().map(|all| assert!(all == bytes, "round {round}: other bytes shown")),
            inode.read_at(&mut [0; 100], 50_000).map(drop),
            inode.verity_digest().map(drop),
            inode.check_seal().map(drop),
        ];
        for result in results {
            match result {
                Ok(()) => read += 1,
                Err(error @ (FsError::Corrupt { .. } | FsError::Unverified { .. })) => {
                    *seen.entry(error.errno()).or_default() += 1;
                }
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        drop(inode);
        drop(fs);
        restore(&device, old);
    }
    println!("{count} mutations of seals: {read} answers, errors by number: {seen:?}");
    assert!(seen.contains_key(&5) && seen.contains_key(&117) && read > 0, "{seen:?}");
}

fn contexts(seed: u64, count: u64) {
    let device = require!(unmounted("encrypt,stable_inodes", "1024"));
    let fs = open_shared(&device, MountOptions::new().key(key()));
    let dir = fs.root().unwrap().mkdir("d", &NewInode::root(0o755)).unwrap();
    dir.set_encryption_policy(&EncryptionPolicy::new(key().identifier())).unwrap();
    dir.create("file", &NEW).unwrap().append(&pattern(1, 5_000)).unwrap();
    dir.symlink("link", "target", &NEW).unwrap();
    drop(dir);
    fs.unmount().unwrap();
    let mut image = vec![0; 8 << 20];
    device.read_at(0, &mut image).unwrap();
    let KeySpec::Identifier(name) = key().identifier() else { panic!() };
    let starts = (8..image.len()).filter(|at| image[*at..].starts_with(&name)).map(|at| at - 8);
    let places: Vec<u64> = starts.flat_map(|at| at as u64..at as u64 + 40).collect();
    assert!(places.len() >= 3 * 40);
    let mut random = Prng::new(seed);
    let (mut seen, mut read) = (Seen::new(), 0);
    for round in 0..count {
        let old = mutate(&device, &places, &mut random);
        // Without checksums the bytes are believed.
        let options = MountOptions::new().key(key()).background(false).verify_checksums(false);
        let fs = options.read_only(round % 2 == 0).open_shared(device.clone()).unwrap();
        for path in ["/d", "/d/file", "/d/link"] {
            let done = fs.resolve(path).and_then(|inode| match inode.kind() {
                extant::FileKind::Directory => inode.read_dir().map(|dir| dir.count()),
                extant::FileKind::Symlink => inode.read_link().map(|link| link.len()),
                _ => inode.read_all().map(|bytes| bytes.len()),
            });
            match done {
                Ok(_) => read += 1,
                Err(error) => *seen.entry(error.errno()).or_default() += 1,
            }
        }
        drop(fs);
        restore(&device, old);
    }
    println!("{count} mutations of contexts: {read} answers, errors by number: {seen:?}");
    assert!(read > count / 4 && seen.len() > 1, "{read} {seen:?}");
}

#[test]
fn random_bytes_of_seals_show_nothing_that_was_not_sealed() {
    seals(1, 1_500);
}

#[test]
fn random_bytes_of_contexts_are_refused_or_read() {
    contexts(1, 1_500);
}

#[test]
#[ignore = "takes a minute: 100,000 mutations"]
fn many_random_bytes_of_seals_and_contexts() {
    let seed = env::seed(100);
    seals(seed, 50_000);
    contexts(seed, 50_000);
}
