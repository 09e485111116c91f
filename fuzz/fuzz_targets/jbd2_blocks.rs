//! Every block of a journal, decoded under every format, from arbitrary bytes.
#![no_main]

use extant_base::BlockSize;
use extant_format::jbd2::{
    BlockHeader, CommitBlock, FcRecords, JournalChecksum, JournalSuperblock, LogFormat,
    RevokeRecords, Tags, Tid, verify_tail,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = BlockHeader::decode(bytes);
    if let Ok(superblock) = JournalSuperblock::decode(bytes) {
        let _ = superblock.verify_checksum(bytes);
        assert!(!superblock.log().is_empty());
        assert!(superblock.start == 0 || superblock.log().contains(&superblock.start));
        let mut encoded = [0; JournalSuperblock::BYTES];
        superblock.encode(&mut encoded).expect("1024 bytes");
        assert_eq!(JournalSuperblock::decode(&encoded).as_ref(), Ok(&superblock));
        superblock.verify_checksum(&encoded).expect("just computed");
    }
    let block_size = BlockSize::new(1024).expect("a block size");
    for checksum in
        [JournalChecksum::None, JournalChecksum::V1, JournalChecksum::V2, JournalChecksum::V3]
    {
        for blocks_64bit in [false, true] {
            let format = LogFormat { block_size, checksum, blocks_64bit, seed: 1, uuid: [1; 16] };
            let _ = verify_tail(&format, bytes);
            let _ = CommitBlock::verify(&format, bytes);
            let tags = Tags::new(&format, bytes).inspect(|tag| {
                tag.matches(&format, Tid(1), bytes);
            });
            assert!(tags.count() <= 1024 / format.tag_bytes());
            if let Ok(records) = RevokeRecords::new(&format, bytes) {
                assert!(records.count() <= 1024 / format.revoke_bytes());
            }
        }
    }
    let _ = CommitBlock::decode(bytes);
    assert!(FcRecords::new(bytes).count() <= bytes.len() / 4 + 1);
});
