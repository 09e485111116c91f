//! Indirect maps: any block of numbers reads; any list of runs builds or is refused.
#![no_main]
use extant_base::{BlockCount, BlockSize, FileBlock, FsBlock};
use extant_format::extent::{Extent, ExtentState};
use extant_format::indirect::{self, IndirectFault};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let size = BlockSize::from_log_kib(u32::from(first % 7)).unwrap();
    let mut slot = 0;
    while let Some((_, len)) = indirect::run_at(rest, slot) {
        assert!(len > 0);
        slot += len;
    }
    assert_eq!(slot as usize, indirect::blocks(rest).len());
    let mut total = 0u32;
    let mut runs = Vec::new();
    for part in rest.chunks_exact(12) {
        let word =
            |at: usize| u32::from_le_bytes([part[at], part[at + 1], part[at + 2], part[at + 3]]);
        let len = word(8) % 2000;
        total = total.saturating_add(len);
        if total > 20_000 {
            break;
        }
        runs.push(Extent {
            file_start: FileBlock(word(0)),
            device_start: FsBlock(u64::from(word(4))),
            len: BlockCount(len),
            state: ExtentState::Written,
        });
    }
    let mut used = 0;
    let built = indirect::build(&runs, size, || {
        used += 1;
        Ok::<_, IndirectFault>(FsBlock(used))
    });
    if let Ok(map) = built {
        let spans = runs.iter().map(|run| (run.file_start, u64::from(run.len.0)));
        assert_eq!(indirect::map_blocks(spans, size), Ok(used));
        for run in &runs {
            let way = indirect::path(run.file_start, size).unwrap();
            let mut bytes: &[u8] = &map.root;
            let mut found = None;
            for (level, slot) in way.steps().iter().enumerate() {
                found = indirect::block_at(bytes, *slot).unwrap();
                if level < usize::from(way.depth()) {
                    bytes = &map.blocks[found.unwrap().0 as usize - 1].1;
                }
            }
            assert_eq!(found, Some(run.device_start));
        }
    }
});
