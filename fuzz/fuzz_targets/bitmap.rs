//! Bitmaps against a vector of booleans, with ranges that may lie anywhere.
#![no_main]
use extant_format::bitmap::Bitmap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<(bool, u32, u32)>)| {
    let (bytes, ranges) = input;
    let bytes = &bytes[..bytes.len().min(4096)];
    let mut bitmap = Bitmap::decode(bytes, bytes.len()).expect("long enough");
    let bits = bitmap.bit_count();
    let mut model: Vec<bool> = (0..bits).map(|bit| bitmap.view().get(bit)).collect();
    for (set, start, end) in ranges.into_iter().take(50) {
        if set {
            bitmap.set_range(start..end)
        } else {
            bitmap.clear_range(start..end)
        }
        for bit in start.min(bits)..end.min(bits) {
            model[bit as usize] = set;
        }
        let inside = start.min(bits)..end.min(bits);
        let mut count = 0;
        for bit in inside.clone() {
            count += u32::from(model[bit as usize]);
        }
        assert_eq!(bitmap.view().count_set(inside.clone()), count);
        let in_runs: u32 = bitmap.view().set_runs(inside).map(|run| run.end - run.start).sum();
        assert_eq!(in_runs, count);
        let _ = bitmap.view().find_clear_run(start..end, 3);
        let _ = bitmap.view().clear_runs(start..end).count();
        let _ = bitmap.view().checksum(start, end);
    }
    assert!((0..bits).all(|bit| bitmap.view().get(bit) == model[bit as usize]));
    assert_eq!(Bitmap::decode(bitmap.as_bytes(), bytes.len()), Ok(bitmap.clone()));
});
