use super::*;
use crate::extent::{Extent, ExtentState};
use extant_base::{BlockCount, Prng};
use proptest::prelude::*;
use std::vec::Vec;

#[test]
fn paths_turn_over_where_each_depth_ends() {
    let size = BlockSize::new(4096).unwrap();
    let p = 1024u32;
    let steps = |block| path(FileBlock(block), size).map(|path| path.steps().to_vec());
    assert_eq!(steps(0).unwrap(), [0]);
    assert_eq!(steps(12 + p - 1).unwrap(), [12, p - 1]);
    assert_eq!(steps(12 + p).unwrap(), [13, 0, 0]);
    assert_eq!(steps(12 + p + p * p - 1).unwrap(), [13, p - 1, p - 1]);
    assert_eq!(steps(12 + p + p * p).unwrap(), [14, 0, 0, 0]);
    let all = max_file_blocks(size);
    assert_eq!(all, 12 + 1024 + (1 << 20) + (1 << 30));
    assert_eq!(steps(all as u32 - 1).unwrap(), [14, p - 1, p - 1, p - 1]);
    assert_eq!(steps(all as u32), None);
    let largest = BlockSize::new(65536).unwrap();
    assert_eq!(max_file_blocks(largest), 1 << 32);
    assert!(path(FileBlock(u32::MAX), largest).is_some());
}

#[test]
fn runs_that_no_map_can_hold_are_refused() {
    let size = BlockSize::new(1024).unwrap();
    let run = |file, device, len, state| Extent {
        file_start: FileBlock(file),
        device_start: FsBlock(device),
        len: BlockCount(len),
        state,
    };
    let fault =
        |runs: &[Extent]| build(runs, size, || Ok::<_, IndirectFault>(FsBlock(5))).unwrap_err();
    let written = ExtentState::Written;
    assert_eq!(fault(&[run(0, 9, 0, written)]), IndirectFault::Run { run: 0 });
    assert_eq!(fault(&[run(0, 9, 1, ExtentState::Unwritten)]), IndirectFault::Run { run: 0 });
    assert_eq!(
        fault(&[run(0, 9, 2, written), run(1, 20, 1, written)]),
        IndirectFault::Run { run: 1 }
    );
    assert_eq!(fault(&[run(0, 0, 1, written)]), IndirectFault::DeviceBlock { block: 0 });
    assert_eq!(
        fault(&[run(0, 1 << 32, 1, written)]),
        IndirectFault::DeviceBlock { block: 1 << 32 }
    );
    let last = max_file_blocks(size) - 1;
    let past = IndirectFault::PastMap { block: last + 1, last };
    assert_eq!(fault(&[run(last as u32, 9, 2, written)]), past);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_built_reads_back(seed in any::<u64>(), count in 0u32..40, spread in 1u64..400_000) {
        let size = BlockSize::new(1024).unwrap();
        let mut random = Prng::new(seed);
        let mut at = 0u32;
        let runs: Vec<Extent> = (0..count).map(|_| {
            at += random.below(spread) as u32;
            let len = 1 + random.below(700) as u32;
            let run = Extent {
                file_start: FileBlock(at),
                device_start: FsBlock(1 + random.below(1 << 31)),
                len: BlockCount(len),
                state: ExtentState::Written,
            };
            at += len;
            run
        }).collect();
        let mut next = 0u64;
        let map = build(&runs, size, || {
            next += 1;
            Ok::<_, IndirectFault>(FsBlock(next))
        }).unwrap();
        let spans = runs.iter().map(|run| (run.file_start, u64::from(run.len.0)));
        prop_assert_eq!(map_blocks(spans, size), Ok(next));
        let read = |block: u32| {
            let way = path(FileBlock(block), size).unwrap();
            let mut bytes: &[u8] = &map.root;
            let mut found = None;
            for (level, slot) in way.steps().iter().enumerate() {
                found = block_at(bytes, *slot).block();
                if level < usize::from(way.depth()) {
                    bytes = &map.blocks[found?.0 as usize - 1].1;
                }
            }
            found
        };
        let mut limit = 0;
        for run in &runs {
            if run.file_start.0 > limit {
                prop_assert_eq!(read(limit), None);
                prop_assert_eq!(read(run.file_start.0 - 1), None);
            }
            for block in run.file_start.0..run.file_end().0 {
                prop_assert_eq!(read(block), run.device_block(FileBlock(block)));
            }
            limit = run.file_end().0;
        }
    }
}

#[test]
fn pointer_blocks_are_counted_layer_by_layer() {
    // P = 256.
    let size = BlockSize::new(1024).unwrap();
    let two = 12 + 256 + 256 * 256;
    for (blocks, own) in [
        (0, 0),
        (12, 0),
        (13, 1),
        (12 + 256, 1),
        (12 + 256 + 1, 3),
        (12 + 256 + 257, 4),
        (two, 1 + 1 + 256),
        (two + 1, 1 + 1 + 256 + 3),
        (max_file_blocks(size), 1 + (1 + 256) + (1 + 256 + 65_536)),
    ] {
        assert_eq!(pointer_blocks(blocks, size), own, "{blocks}");
    }
}
