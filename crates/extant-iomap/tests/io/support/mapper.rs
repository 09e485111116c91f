//! What the cache asks a file.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_iomap::{
    Contents, Cookie, Done, Intent, Kind, MapFlags, Mapper, Mapping, Obstacle, Placed, Placement,
};

use super::device::Point;
use super::file::{Map, Stored, TestFile};
use super::{Alloc, Error, Seen};

/// Longest answer, in blocks.
const ANSWER_MAX: u64 = 512;
/// Blocks promised behind the end of a file that grows: as many as it has, in these bounds.
const AHEAD: (u64, u64) = (4, 64);

impl Mapper for TestFile {
    type Error = Error;
    /// The first byte of the file behind it.
    type Ticket = u64;

    fn contents(&self) -> Result<Contents<'_>, Error> {
        Ok(Contents::plain(&self.fs.device))
    }

    fn block_log2(&self) -> u32 {
        self.log2()
    }

    fn size(&self) -> u64 {
        TestFile::size(self)
    }

    fn stored_size(&self) -> u64 {
        TestFile::stored_size(self)
    }

    fn relieve(&self) -> Result<bool, Error> {
        self.fs.relieve()
    }

    fn read_ahead(&self) {
        Seen::add(&self.fs.seen.asked);
    }

    fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
    }

    fn map(&self, range: Range<u64>, intent: Intent) -> Result<Mapping, Error> {
        assert!(range.start < range.end, "an empty question");
        if self.fs.faults.map.fails() {
            return Err(Error::Injected("map"));
        }
        let blocks = range.start >> self.log2()..range.end.div_ceil(1 << self.log2());
        let answer = self.look_up(blocks.clone(), intent);
        let answer = match (intent, &answer.kind) {
            (Intent::Write, Kind::Hole) => {
                self.delay(blocks.start..blocks.end.min(answer.end() >> self.log2()))?
            }
            _ => answer,
        };
        self.fs.hooks.run(Point::Mapped);
        Ok(answer)
    }

    fn try_map(&self, range: Range<u64>, intent: Intent) -> Result<Mapping, Obstacle> {
        // Promises ahead would not be used whole.
        if self.fs.options.ahead && intent == Intent::Write {
            return Err(Obstacle::Space);
        }
        self.map(range, intent).map_err(|_| Obstacle::Space)
    }

    fn is_current(&self, cookie: Cookie) -> bool {
        self.map.read().cookie == cookie.0
    }

    fn end(&self, mapping: &Mapping, used: u64, _: Intent) {
        if !mapping.flags.is_new || used >= mapping.len {
            return;
        }
        let log2 = self.log2();
        let mut map = self.map.write();
        for at in (mapping.offset + used).div_ceil(1 << log2)..mapping.end() >> log2 {
            if map.blocks.get(&at) == Some(&Stored::Delayed) {
                map.blocks.remove(&at);
                self.drop_block(Stored::Delayed);
            }
        }
        map.cookie += 1;
    }

    fn place(&self, range: Range<u64>, before: Option<&u64>) -> Result<Placement<u64>, Error> {
        assert!(before.is_none_or(|end| *end <= range.start), "the ticket of what is in front");
        if self.fs.faults.place.fails() {
            return Err(Error::Injected("place"));
        }
        let log2 = self.log2();
        let blocks = range.start >> log2..range.end >> log2;
        assert_eq!(
            (blocks.start << log2, blocks.end << log2),
            (range.start, range.end),
            "whole blocks"
        );
        let placement = self.place_blocks(blocks);
        self.fs.hooks.run(Point::Placed);
        Ok(placement)
    }

    fn publish(&self, done: Done<u64>) -> Result<(), Error> {
        self.fs.hooks.run(Point::Publish);
        if self.fs.faults.publish.fails() {
            done.placements.into_iter().for_each(|placement| self.give_back(placement));
            return Err(Error::Injected("publish"));
        }
        {
            let mut map = self.map.write();
            let mut last = 0;
            for placement in &done.placements {
                assert!(placement.offset >= last, "placements ascend");
                last = placement.end();
                Seen::add(&self.fs.seen.published);
                self.publish_one(&mut map, placement);
            }
            if done.grows {
                self.size.fetch_max(done.size_to, Ordering::SeqCst);
            }
            self.stored.fetch_max(done.size_to.min(TestFile::size(self)), Ordering::SeqCst);
        }
        self.fs.hooks.run(Point::Published);
        Ok(())
    }

    fn begin_overwrite(&self) -> Result<(), Error> {
        self.fs.hooks.run(Point::Placed);
        Ok(())
    }

    fn end_overwrite(&self, _durable: bool) {
        Seen::add(&self.fs.seen.overwrites);
    }

    fn give_back(&self, placement: Placement<u64>) {
        if !matches!(placement.placed, Placed::Pinned(_)) {
            return;
        }
        let mut map = self.map.write();
        for (at, block) in self.pairs(&placement) {
            assert_eq!(map.blocks.insert(at, Stored::Delayed), Some(Stored::Pinned(block)));
            self.fs.keep_promise(-1);
            self.fs.device.free(block);
        }
    }
}

impl TestFile {
    fn answer(&self, map: &Map, blocks: Range<u64>, kind: Kind, is_new: bool) -> Mapping {
        Mapping {
            offset: blocks.start << self.log2(),
            len: (blocks.end - blocks.start) << self.log2(),
            kind,
            flags: MapFlags { is_new },
            cookie: Cookie(map.cookie),
        }
    }

    fn look_up(&self, blocks: Range<u64>, intent: Intent) -> Mapping {
        let end = TestFile::size(self).div_ceil(1 << self.log2());
        let behind = intent == Intent::Zero && blocks.start >= end;
        if behind && self.map.read().blocks.get(&blocks.start) == Some(&Stored::Delayed) {
            self.convert_ahead(blocks.start);
        }
        let map = self.map.read();
        let start = blocks.start;
        let Some(&first) = map.blocks.get(&start) else {
            let next = map.blocks.range(start..).next().map_or(blocks.end, |(at, _)| *at);
            return self.answer(&map, start..next.min(blocks.end), Kind::Hole, false);
        };
        let limit = blocks.end.min(start + ANSWER_MAX);
        let run = run_of(&map, start..limit, first);
        let kind = match first {
            Stored::Delayed | Stored::Pinned(_) => Kind::Delayed,
            Stored::Unwritten(block) => Kind::Unwritten(block << self.log2()),
            Stored::Written(block) => Kind::Mapped(block << self.log2()),
        };
        self.answer(&map, run, kind, false)
    }

    /// Promises for a hole, and for blocks behind the end of a file that grows.
    fn delay(&self, hole: Range<u64>) -> Result<Mapping, Error> {
        let mut map = self.map.write();
        let given = self.fs.promise(hole.end - hole.start);
        if given == 0 {
            return Err(Error::NoSpace);
        }
        let hole = hole.start..hole.start + given;
        for at in hole.clone() {
            assert_eq!(map.blocks.insert(at, Stored::Delayed), None);
        }
        let end = TestFile::size(self).div_ceil(1 << self.log2());
        if self.fs.options.ahead && hole.end > end {
            let next = map.blocks.range(hole.end..).next().map_or(u64::MAX, |(at, _)| *at);
            let ahead = end.clamp(AHEAD.0, AHEAD.1).min(next - hole.end);
            for at in hole.end..hole.end + self.fs.promise(ahead) {
                map.blocks.insert(at, Stored::Delayed);
            }
        }
        map.cookie += 1;
        Ok(self.answer(&map, hole, Kind::Delayed, true))
    }

    /// Zeroing behind the end makes the promises there unwritten blocks.
    fn convert_ahead(&self, start: u64) {
        let mut map = self.map.write();
        let mut at = start;
        while map.blocks.get(&at) == Some(&Stored::Delayed) {
            let (block, _) = self.take(1);
            self.fs.keep_promise(1);
            map.blocks.insert(at, Stored::Unwritten(block));
            at += 1;
        }
        map.cookie += 1;
        Seen::add(&self.fs.seen.zeroed_ahead);
    }

    fn place_blocks(&self, blocks: Range<u64>) -> Placement<u64> {
        let mut map = self.map.write();
        let start = blocks.start;
        let placement = |run: Range<u64>, block: u64, placed| Placement {
            offset: run.start << self.log2(),
            len: (run.end - run.start) << self.log2(),
            address: block << self.log2(),
            placed,
        };
        let Some(&first) = map.blocks.get(&start) else {
            Seen::add(&self.fs.seen.nowhere);
            let next = map.blocks.range(start..).next().map_or(u64::MAX, |(at, _)| *at);
            return placement(start..next.min(blocks.end), 0, Placed::Nowhere);
        };
        let run = run_of(&map, blocks, first);
        match first {
            Stored::Written(block) => {
                Seen::add(&self.fs.seen.over);
                placement(run, block, Placed::Over)
            }
            Stored::Unwritten(block) => {
                Seen::add(&self.fs.seen.converted);
                placement(run, block, Placed::Convert)
            }
            Stored::Pinned(block) => panic!("block {start} is placed twice, at {block}"),
            Stored::Delayed if self.fs.options.alloc == Alloc::Pinned => {
                Seen::add(&self.fs.seen.pinned);
                let (block, len) = self.take(run.end - run.start);
                for step in 0..len {
                    map.blocks.insert(start + step, Stored::Pinned(block + step));
                }
                self.fs.keep_promise(len as i64);
                let end = (start + len) << self.log2();
                placement(start..start + len, block, Placed::Pinned(end))
            }
            Stored::Delayed => {
                // All of the promise, also what nobody has written yet.
                let all = run_of(&map, start..start + ANSWER_MAX, first);
                let (block, len) = self.take(all.end - start);
                for step in 0..len {
                    map.blocks.insert(start + step, Stored::Unwritten(block + step));
                }
                self.fs.keep_promise(len as i64);
                map.cookie += 1;
                Seen::add(&self.fs.seen.converted);
                placement(start..run.end.min(start + len), block, Placed::Convert)
            }
        }
    }

    fn publish_one(&self, map: &mut Map, placement: &Placement<u64>) {
        for (at, block) in self.pairs(placement) {
            let stored = map.blocks.get(&at).copied();
            match placement.placed {
                Placed::Nowhere => assert_eq!(stored, None),
                Placed::Over => assert_eq!(stored, Some(Stored::Written(block))),
                // Two writes past the cache may bring a block its first data at once.
                Placed::Convert => assert!(
                    [Stored::Unwritten(block), Stored::Written(block)].map(Some).contains(&stored)
                ),
                Placed::Pinned(_) => assert_eq!(stored, Some(Stored::Pinned(block))),
            }
            if matches!(placement.placed, Placed::Convert | Placed::Pinned(_)) {
                map.blocks.insert(at, Stored::Written(block));
                map.cookie += 1;
            }
        }
    }

    /// Blocks of the file and of the device.
    fn pairs(&self, placement: &Placement<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
        let log2 = self.log2();
        let (at, block) = (placement.offset >> log2, placement.address >> log2);
        (0..placement.len >> log2).map(move |step| (at + step, block + step))
    }
}

/// Blocks stored alike, one behind the other on the device.
fn run_of(map: &Map, limit: Range<u64>, first: Stored) -> Range<u64> {
    let follows = |at: u64| {
        let step = at - limit.start;
        let wanted = match first {
            Stored::Delayed => Stored::Delayed,
            Stored::Pinned(block) => Stored::Pinned(block + step),
            Stored::Unwritten(block) => Stored::Unwritten(block + step),
            Stored::Written(block) => Stored::Written(block + step),
        };
        map.blocks.get(&at) == Some(&wanted)
    };
    let len = limit.clone().take_while(|at| follows(*at)).count() as u64;
    limit.start..limit.start + len
}
