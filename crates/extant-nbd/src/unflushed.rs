//! Writes that were acknowledged and are not flushed, and what of them a server has to be told again.

use std::collections::VecDeque;

use extant_base::sabotage;
use extant_block::{AlignedBuffer, Operation};

use crate::ranges::Ranges;

/// What one entry costs beside its bytes.
const ENTRY_BYTES: u64 = 64;
/// Bytes of flushed buffers that are kept for the next writes: fresh memory costs as much as the copy into it.
const SPARES_MAX: u64 = 4 << 20;
/// Shorter ones are not: they are cheap, and would be many.
const SPARE_MIN: u64 = 64 << 10;

/// What the caller of a request does with its buffer when it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Buffers {
    /// It gets it back.
    GivenBack,
    /// It was made for the request: the bytes may stay where they are.
    Left,
}

enum Change {
    Bytes(AlignedBuffer),
    Zeros,
    /// It is durable already, and counts because it hides what was written there before it.
    Durable,
}

struct Entry {
    number: u64,
    offset: u64,
    len: u64,
    change: Change,
}

impl Entry {
    fn cost(&self) -> u64 {
        match &self.change {
            Change::Bytes(buffer) => buffer.len() as u64 + ENTRY_BYTES,
            Change::Zeros | Change::Durable => ENTRY_BYTES,
        }
    }
}

/// Acknowledged changes in the order in which their answers came.
#[derive(Default)]
pub(crate) struct Unflushed {
    entries: VecDeque<Entry>,
    bytes: u64,
    next: u64,
    spares: VecDeque<AlignedBuffer>,
    spare_bytes: u64,
}

impl Unflushed {
    /// Memory that is taken, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of the next change.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Memory of `len` bytes of what was flushed; it has its old contents.
    pub(crate) fn spare(&mut self, len: usize) -> Option<AlignedBuffer> {
        let at = self.spares.iter().position(|buffer| buffer.len() == len)?;
        self.spare_bytes -= len as u64;
        self.spares.remove(at)
    }

    /// Notes an operation that the server acknowledged, and keeps its bytes: a copy where the caller wants its buffer
    /// back.
    pub(crate) fn note(&mut self, operation: &mut Operation, buffers: Buffers) {
        let (offset, len) = (operation.offset(), operation.length());
        let change = match operation {
            Operation::Write { buffer, fua: false, .. } => Change::Bytes(match buffers {
                Buffers::GivenBack => buffer.clone(),
                Buffers::Left => std::mem::take(buffer),
            }),
            Operation::WriteZeroes { .. } => Change::Zeros,
            // Without anything older there is nothing that it could hide.
            Operation::Write { fua: true, .. }
                if !self.entries.is_empty() && !sabotage("nbd.unflushed.durable-not-noted") =>
            {
                Change::Durable
            }
            _ => return,
        };
        let entry = Entry { number: self.next, offset, len, change };
        self.next += 1;
        self.bytes += entry.cost();
        self.entries.push_back(entry);
    }

    /// Changes before number `until` are flushed.
    pub(crate) fn flushed(&mut self, until: u64) {
        while let Some(entry) = self.entries.pop_front_if(|entry| entry.number < until) {
            self.bytes -= entry.cost();
            if let Change::Bytes(buffer) = entry.change
                && (SPARE_MIN..=SPARES_MAX).contains(&(buffer.len() as u64))
            {
                self.spare_bytes += buffer.len() as u64;
                self.spares.push_back(buffer);
            }
        }
        while self.spare_bytes > SPARES_MAX
            && let Some(oldest) = self.spares.pop_front()
        {
            self.spare_bytes -= oldest.len() as u64;
        }
    }

    /// The operations that give a server which forgot everything what it had acknowledged. No two of them
    /// overlap: a server that forgot nothing, and those who read from it meanwhile, notice nothing.
    pub(crate) fn again(&self) -> Vec<Operation> {
        let mut newer = Ranges::default();
        let mut operations = Vec::new();
        for entry in self.entries.iter().rev() {
            for (offset, len) in newer.add(entry.offset, entry.len) {
                match &entry.change {
                    Change::Bytes(buffer) if len == entry.len => {
                        operations.push(Operation::Write {
                            offset,
                            buffer: buffer.clone(),
                            fua: false,
                        });
                    }
                    Change::Bytes(buffer) => {
                        let part = &buffer[(offset - entry.offset) as usize..][..len as usize];
                        let buffer = AlignedBuffer::copy_of(part);
                        operations.push(Operation::Write { offset, buffer, fua: false });
                    }
                    Change::Zeros => operations.push(Operation::WriteZeroes { offset, len }),
                    Change::Durable => {}
                }
            }
        }
        operations
    }
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    fn write(offset: u64, bytes: &[u8], fua: bool) -> Operation {
        Operation::Write { offset, buffer: AlignedBuffer::copy_of(bytes), fua }
    }

    #[test]
    fn what_is_told_again_is_the_newest_of_everything_and_once() {
        let mut random = Prng::new(5);
        for turn in 0..300 {
            let buffers = if turn % 2 == 0 { Buffers::Left } else { Buffers::GivenBack };
            let mut unflushed = Unflushed::default();
            // What was durable before, what the server knows, and whether it may be forgotten.
            let mut disk = [0u8; 256];
            let mut durable = disk;
            let mut flushed_to = 0;
            for number in 0..random.below(40) {
                let (at, len) = (random.below(240), 1 + random.below(16));
                let range = at as usize..(at + len) as usize;
                match random.below(6) {
                    0 => {
                        unflushed.note(&mut Operation::WriteZeroes { offset: at, len }, buffers);
                        disk[range].fill(0);
                    }
                    1 => {
                        unflushed.note(
                            &mut write(at, &vec![number as u8 + 1; len as usize], true),
                            buffers,
                        );
                        disk[range.clone()].fill(number as u8 + 1);
                        durable[range].fill(number as u8 + 1);
                    }
                    2 if random.one_in(3) => {
                        flushed_to = unflushed.next();
                        unflushed.flushed(flushed_to);
                        durable = disk;
                    }
                    _ => {
                        unflushed.note(
                            &mut write(at, &vec![number as u8 + 1; len as usize], false),
                            buffers,
                        );
                        disk[range].fill(number as u8 + 1);
                    }
                }
            }
            assert!(flushed_to <= unflushed.next());
            let mut told = [false; 256];
            for operation in unflushed.again() {
                let (offset, len) = (operation.offset() as usize, operation.length() as usize);
                assert!(len > 0);
                for (at, told) in told.iter_mut().enumerate().skip(offset).take(len) {
                    assert!(!std::mem::replace(told, true), "byte {at} twice");
                    durable[at] = match &operation {
                        Operation::Write { buffer, .. } => buffer[at - offset],
                        _ => 0,
                    };
                }
            }
            assert!(durable == disk, "the server does not have what it acknowledged");
            let next = unflushed.next();
            unflushed.flushed(next);
            assert_eq!((unflushed.bytes(), unflushed.again().len()), (0, 0));
        }
    }
}
