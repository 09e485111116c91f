//! Quota files: hostile ones, and files made of any entries.
#![no_main]
use extant_format::quota::{QuotaEntry, QuotaFile, QuotaKind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<(u32, u64, u64)>)| {
    let (mut bytes, entries) = input;
    if let Some(header) = bytes.get_mut(..8) {
        header[..4].copy_from_slice(&QuotaKind::User.magic().to_le_bytes());
        header[4..].copy_from_slice(&1u32.to_le_bytes());
    }
    if let Ok(file) = QuotaFile::decode(&bytes) {
        assert!(file.entries.len() <= bytes.len() / 4);
        let stored = file.encode().expect("the tree gives ids in order");
        assert_eq!(QuotaFile::decode(&stored), Ok(file));
    }

    let mut entries: Vec<QuotaEntry> = entries
        .into_iter()
        .map(|(id, space_bytes, inodes)| QuotaEntry {
            id,
            space_bytes,
            inodes,
            ..QuotaEntry::default()
        })
        .collect();
    entries.sort_by_key(|entry| entry.id);
    entries.dedup_by_key(|entry| entry.id);
    let file = QuotaFile { entries, ..QuotaFile::empty(QuotaKind::Group) };
    let stored = file.encode().expect("sorted");
    // The same file with one pointer spoilt must still end.
    let mut spoilt = stored.clone();
    for (at, byte) in bytes.iter().enumerate().take(64) {
        let place = 1024 + (at * 257 + usize::from(*byte)) % (spoilt.len() - 1024);
        spoilt[place] ^= byte;
    }
    let _ = QuotaFile::decode(&spoilt);
    assert_eq!(QuotaFile::decode(&stored), Ok(file));
});
