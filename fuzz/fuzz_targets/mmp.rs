//! The multi-mount block.
#![no_main]
use extant_format::mmp::Mmp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u32, &[u8])| {
    let (seed, bytes) = input;
    let _ = Mmp::decode(Some(seed), bytes);
    let mut bytes = bytes.to_vec();
    if let Some(magic) = bytes.get_mut(..4) {
        magic.copy_from_slice(&0x004d_4d50u32.to_le_bytes());
    }
    let Ok(first) = Mmp::decode(None, &bytes) else { return };
    let stored = first.encode(Some(seed));
    assert_eq!(stored[..1020], bytes[..1020]);
    let second = Mmp::decode(Some(seed), &stored).expect("what was encoded decodes");
    assert_eq!(Mmp { raw: second.raw.clone(), ..first }, second);
});
