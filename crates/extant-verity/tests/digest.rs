//! Digests compared with those of `fsverity digest`, and trees with those that it writes.

use std::fs;
use std::process::Command;

use extant_verity::{Algorithm, Builder, Descriptor, Hasher, Shape};

const SIZES: [usize; 15] = [
    0, 1, 1023, 1024, 1025, 4095, 4096, 4097, 16384, 16385, 32768, 131_072, 131_073, 528_384,
    2_200_001,
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns tree and descriptor, from pieces of some blocks.
fn made(data: &[u8], log2: u32, algorithm: Algorithm, salt: &[u8]) -> (Vec<u8>, Descriptor) {
    let shape = Shape::new(data.len() as u64, log2, algorithm).unwrap();
    let mut tree = vec![0xee; shape.bytes() as usize];
    let mut builder = Builder::new(shape, Hasher::new(algorithm, salt));
    let mut write = |at: u64, block: &[u8]| -> Result<(), ()> {
        tree[at as usize..][..block.len()].copy_from_slice(block);
        Ok(())
    };
    for piece in data.chunks(7 << log2) {
        builder.push(piece, &mut write).unwrap();
    }
    let root = builder.finish(&mut write).unwrap().unwrap();
    (tree, Descriptor::new(&shape, root, salt, &[]).unwrap())
}

#[test]
fn digests_trees_and_descriptors_are_those_of_the_usual_tool() {
    if Command::new("fsverity").arg("--version").output().is_err() {
        println!("skipped: needs fsverity");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let (tree_file, descriptor_file) = (dir.path().join("tree"), dir.path().join("descriptor"));
    let salts: [&[u8]; 4] = [&[], &[0xa5], &[1, 2, 3, 4, 5, 6, 7], &[0x5a; 32]];
    for (index, size) in SIZES.into_iter().enumerate() {
        let data: Vec<u8> =
            (0..size as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(&file, &data).unwrap();
        for log2 in [10, 11, 12, 16] {
            for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
                let salt = salts[(index + log2 as usize) % salts.len()];
                let mut tool = Command::new("fsverity");
                tool.args(["digest", "--compact", &format!("--hash-alg={algorithm}")]);
                tool.arg(format!("--block-size={}", 1 << log2));
                tool.arg(format!("--out-merkle-tree={}", tree_file.display()));
                tool.arg(format!("--out-descriptor={}", descriptor_file.display()));
                if !salt.is_empty() {
                    tool.arg(format!("--salt={}", hex(salt)));
                }
                let done = tool.arg(&file).output().unwrap();
                let what = format!("{size} bytes, 2^{log2}, {algorithm}, salt {}", hex(salt));
                assert!(done.status.success(), "{what}: {done:?}");
                let (tree, descriptor) = made(&data, log2, algorithm, salt);
                let digest = descriptor.digest().to_string();
                assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), digest, "{what}");
                assert_eq!(fs::read(&tree_file).unwrap(), tree, "{what}: tree");
                assert_eq!(fs::read(&descriptor_file).unwrap(), descriptor.encode(), "{what}");
            }
        }
    }
}

#[test]
fn a_tree_of_too_few_or_too_many_blocks_has_no_root() {
    let shape = Shape::new(9000, 12, Algorithm::Sha256).unwrap();
    for given in [2, 4] {
        let mut builder = Builder::new(shape, Hasher::new(Algorithm::Sha256, &[]));
        let mut write = |_: u64, _: &[u8]| -> Result<(), ()> { Ok(()) };
        builder.push(&vec![0; given << 12], &mut write).unwrap();
        let unfinished = builder.finish(&mut write).unwrap().unwrap_err();
        assert_eq!((unfinished.given, unfinished.wanted), (given as u64, 3));
    }
}

#[test]
fn what_a_writer_says_ends_the_work() {
    let shape = Shape::new(1 << 20, 12, Algorithm::Sha256).unwrap();
    let mut builder = Builder::new(shape, Hasher::new(Algorithm::Sha256, &[]));
    let done = builder.push(&vec![0; 1 << 20], &mut |_, _: &[u8]| Err("full"));
    assert_eq!(done, Err("full"));
}
