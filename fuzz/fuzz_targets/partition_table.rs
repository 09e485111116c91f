//! Partition tables of any bytes: `list` answers or refuses, and what it answers lies on the device.
#![no_main]

use extant_block::{BlockDevice, MemoryDevice, partition};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Blank space after the input, so that short inputs describe disks too.
    let device = MemoryDevice::new(bytes.len() as u64 + (1 << 20));
    device.write_at(0, bytes).expect("the device is longer than the input");
    if let Ok(partitions) = partition::list(&device) {
        for partition in partitions {
            let end = partition.offset.checked_add(partition.len).expect("no overflow");
            assert!(partition.len > 0 && end <= device.size_bytes(), "{partition:?}");
            partition::open(&device, partition.number).expect("what is listed opens");
        }
    }
});
