//! Name hashes: defined for any bytes, even, never the end mark; ASCII has one value.
#![no_main]
use extant_format::hash::{HashSeed, HashVersion, name_hash, siphash};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((seed, name)) = bytes.split_first_chunk::<16>() else { return };
    let words = HashSeed::from_bytes(seed);
    let hashes: Vec<_> = HashVersion::ALL.map(|version| name_hash(version, &words, name)).into();
    for hash in hashes.iter().flatten().chain([&siphash(seed, name)]) {
        assert!(hash.major & 1 == 0 && hash.major != 0xffff_fffe);
    }
    if name.is_ascii() {
        assert_eq!(hashes[..3], hashes[3..6]);
    }
});
