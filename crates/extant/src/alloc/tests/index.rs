//! Searches with the index of groups and without it.

use std::sync::atomic::AtomicUsize;

use super::*;

/// 1024 groups of 256 blocks.
const MANY_GROUPS: &[&str] =
    &["-t", "ext4", "-b", "1024", "-g", "256", "-N", "1024", "-O", "^has_journal"];

#[test]
fn p49_a_search_does_not_visit_a_thousand_full_groups() {
    let image = require!(Image::make("256M", MANY_GROUPS, ""));
    let mount = Mount::of(&image);
    let groups = mount.volume().superblock().group_count;
    assert!(groups >= 1000, "{groups}");
    let mut last = Run { start: FsBlock(0), len: 0 };
    while let Ok(run) = mount.take(1, 256, 1) {
        if run.start > last.start && run.len >= 64 {
            last = run;
        }
    }
    mount.free(last.start.0, last.len).unwrap();
    mount.commit();
    let visited = || mount.alloc().stats().groups_visited;
    let before = visited();
    assert_eq!(mount.take(1, 32, 32).unwrap().start, last.start);
    assert!(visited() - before <= 2, "{} groups visited", visited() - before);
    // One after the other, without the index.
    mount.alloc().set_optimized(false);
    let before = visited();
    assert_eq!(mount.take(1, 16, 16).unwrap().start.0, last.start.0 + 32);
    let group = mount.volume().superblock().group_of_block(last.start).unwrap().0.0;
    assert!(visited() - before >= u64::from(group), "{} groups visited", visited() - before);
    // What the index did not see is in it all the same (O3).
    mount.alloc().set_optimized(true);
    while mount.take(1, 64, 1).is_ok() {}
    let claimant = promise::Claimant::Purpose(Purpose::Data, Right::Rescue);
    assert_eq!(mount.alloc().space.left_for(claimant), 0);
    mount.verify();
}

#[test]
fn p50_the_index_is_switched_while_threads_allocate() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let before = mount.verify();
    let running = AtomicUsize::new(3);
    workers("switch", 4, |worker| {
        if worker == 3 {
            let mut optimize = false;
            while running.load(Ordering::Relaxed) > 0 {
                mount.alloc().set_optimized(optimize);
                optimize = !optimize;
            }
            return;
        }
        let mut random = Prng::new(worker as u64);
        let mut held = Vec::new();
        for _ in 0..1500 {
            if random.one_in(2) || held.is_empty() {
                held.push(
                    mount.take(random.below(60_000), random.below(300) as u32 + 1, 1).unwrap(),
                );
            } else {
                let run: Run = held.swap_remove(random.below(held.len() as u64) as usize);
                mount.free(run.start.0, run.len).unwrap();
            }
            if held.len() > 60 || random.one_in(100) {
                held.drain(..).for_each(|run| mount.free(run.start.0, run.len).unwrap());
                mount.commit();
            }
        }
        held.drain(..).for_each(|run| mount.free(run.start.0, run.len).unwrap());
        running.fetch_sub(1, Ordering::Relaxed);
    })
    .unwrap();
    mount.commit();
    assert_eq!(mount.verify(), before);
    // The index has every group with a run where a search for it looks (O1).
    for group in mount.groups() {
        let mut locked = mount.alloc().enter(mount.volume(), group, Needs::BLOCKS).unwrap();
        let state = locked.state().unwrap();
        let blocks = state.blocks_mut().unwrap();
        let longest = blocks.clear_runs(0..u32::MAX).map(|run| run.end - run.start).max();
        let Some(longest) = longest else { continue };
        drop(locked);
        assert_eq!(mount.alloc().index.next(group.0, group.0 + 1, longest), Some(group.0));
    }
    mount.end(&image);
}

/// Everything that is kept of 131,072 groups when all of them were looked at, bitmaps included.
#[test]
fn the_groups_of_16_tib_take_less_than_64_mib() {
    const GROUPS: usize = 131_072;
    let cells = GROUPS * size_of::<Cell>();
    // The smallest flexible groups that mke2fs makes have 16; without the feature, each group is one.
    let flexes = GROUPS * size_of::<std::sync::OnceLock<Flex>>();
    let index = GROUPS.div_ceil(64) * crate::alloc::index::WORD_BYTES;
    let loaded = BITMAP_BYTES_MAX / 4096 / 3;
    let states = loaded * (size_of::<GroupState>() + 256);
    let all = cells + flexes + index + BITMAP_BYTES_MAX + states;
    println!("{cells} + {flexes} + {index} + {BITMAP_BYTES_MAX} + {states} = {all}");
    assert!(all <= 64 << 20, "{all} bytes");
}
