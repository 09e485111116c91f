//! Group descriptors of every size, with every kind of checksum.
#![no_main]
use extant_base::GroupIndex;
use extant_format::group::{GroupChecksum, GroupDescriptor};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u32, Vec<u8>)| {
    let (kind, group, bytes) = input;
    let Ok(first) = GroupDescriptor::decode(&bytes) else { return };
    let checksum = match kind % 3 {
        0 => GroupChecksum::None,
        1 => GroupChecksum::Crc16 { uuid: [kind; 16] },
        _ => GroupChecksum::Crc32c { seed: group },
    };
    let mut stored = bytes.clone();
    first.encode(GroupIndex(group), &checksum, &mut stored).expect("it was long enough");
    GroupDescriptor::verify_checksum(GroupIndex(group), &checksum, &stored).expect("just made");
    let second = GroupDescriptor::decode(&stored).expect("it was long enough");
    assert_eq!(GroupDescriptor { stored_checksum: second.stored_checksum, ..first }, second);
});
