//! A queue full of requests: extant's over a file, and the one below it over the bytes.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use extant::ring::{Op, Value};
use extant::{
    AlignedBuffer, DirectDone, DirectFile, DirectKind, DirectRequest, Engine, Fs, QueueOptions,
};
use extant_base::Prng;
use extant_block::{BlockDevice, FileDevice, Operation};
use extant_sync::{Clock, SystemClock};

use super::busy::Busy;
use super::{Cell, Measured};

/// Each block of this many bytes has its offset in its first ones.
pub(super) const BLOCK: usize = 4096;
/// Bytes of one write while files are made.
const PIECE: u64 = 1 << 20;

/// Somebody who reads and writes blocks.
pub(super) enum Side {
    Device(FileDevice),
    Extant(Fs, DirectFile),
}

pub(super) fn mark(offset: u64, buffer: &mut [u8]) {
    for (number, block) in buffer.chunks_mut(BLOCK).enumerate() {
        let offset = offset + (number * BLOCK) as u64;
        block[..8].copy_from_slice(&offset.to_le_bytes());
    }
}

pub(super) fn check(offset: u64, buffer: &[u8]) -> Result<()> {
    for (number, block) in buffer.chunks(BLOCK).enumerate() {
        let offset = offset + (number * BLOCK) as u64;
        ensure!(
            block.get(..8) == Some(&offset.to_le_bytes()[..]),
            "byte {offset} is another one's"
        );
    }
    Ok(())
}

impl Side {
    /// Gives every block its contents, durable.
    pub(super) fn fill(&self, bytes: u64) -> Result<()> {
        for start in (0..bytes).step_by(PIECE as usize) {
            let mut piece = AlignedBuffer::zeroed(PIECE as usize);
            mark(start, &mut piece);
            match self {
                Side::Device(device) => device.write_at(start, &piece)?,
                Side::Extant(_, file) => _ = file.write_at(&piece, start)?,
            }
        }
        match self {
            Side::Device(device) => device.flush()?,
            Side::Extant(fs, _) => fs.sync()?,
        }
        Ok(())
    }

    pub(super) fn engine(&self, options: &QueueOptions) -> Engine {
        match self {
            Side::Device(device) => device.queue(options).engine(),
            Side::Extant(_, file) => file.queue(options).engine(),
        }
    }

    /// Reads or writes at random for about `time` through a ring of the file system. Returns how
    /// many requests that were, and how many of them workers did.
    pub(super) fn run_ring(
        &self,
        cell: &Cell,
        bytes: u64,
        time: Duration,
        random: &mut Prng,
    ) -> Result<(Measured, u64, u64)> {
        let Side::Extant(fs, file) = self else { bail!("rings are those of a file system") };
        let places = bytes / cell.bytes as u64;
        let ring = fs.ring(cell.depth)?;
        let mut spare: Vec<AlignedBuffer> = Vec::new();
        let busy = Busy::look()?;
        let start = SystemClock.monotonic();
        let (mut count, mut under_way, mut ends) = (0u64, 0, false);
        loop {
            while !ends && under_way < cell.depth {
                let offset = random.below(places) * cell.bytes as u64;
                let mut buffer = spare.pop().unwrap_or_else(|| AlignedBuffer::zeroed(cell.bytes));
                mark(offset, &mut buffer);
                let op = match cell.writes {
                    true => Op::WriteDirect { offset, buffer, synced: false },
                    false => Op::ReadDirect { offset, buffer },
                };
                ensure!(ring.submit(offset, file.inode(), op)?.is_none(), "done at once");
                under_way += 1;
            }
            let Some(done) = ring.wait() else { break };
            under_way -= 1;
            ensure!(done.result? == cell.bytes as u64, "a request was short");
            let Value::Direct(buffer) = done.value else { bail!("a buffer was lost") };
            check(done.tag, &buffer)?;
            spare.push(buffer);
            count += 1;
            let spent = || SystemClock.monotonic().saturating_sub(start);
            ends = ends || (count.is_multiple_of(64) && spent() >= time);
        }
        let spent = SystemClock.monotonic().saturating_sub(start).as_secs_f64();
        let cpu_micros = busy.since()?.as_secs_f64() / count as f64 * 1e6;
        let stats = ring.stats();
        Ok((Measured { rate: count as f64 / spent, cpu_micros }, count, stats.completed))
    }

    /// Reads or writes at random for about `time`. Returns how many requests that were as well.
    pub(super) fn run(
        &self,
        cell: &Cell,
        bytes: u64,
        time: Duration,
        random: &mut Prng,
        past_host: bool,
    ) -> Result<(Measured, u64)> {
        let options = QueueOptions::default().depth(cell.depth).direct(past_host);
        let places = bytes / cell.bytes as u64;
        let mut offset = || random.below(places) * cell.bytes as u64;
        let busy = Busy::look()?;
        let start = SystemClock.monotonic();
        let is_over = || SystemClock.monotonic().saturating_sub(start) >= time;
        let count = match self {
            Side::Device(device) => on_device(device, &options, cell, &mut offset, is_over)?,
            Side::Extant(_, file) => on_file(file, &options, cell, &mut offset, is_over)?,
        };
        let spent = SystemClock.monotonic().saturating_sub(start).as_secs_f64();
        let cpu_micros = busy.since()?.as_secs_f64() / count as f64 * 1e6;
        Ok((Measured { rate: count as f64 / spent, cpu_micros }, count))
    }
}

/// The bytes of a disk or a file, whatever they are: others write there as well.
fn on_device(
    device: &FileDevice,
    options: &QueueOptions,
    cell: &Cell,
    mut offset: impl FnMut() -> u64,
    is_over: impl Fn() -> bool,
) -> Result<u64> {
    let mut queue = device.queue(options);
    let mut spare: Vec<AlignedBuffer> = Vec::new();
    let (mut count, mut ends) = (0, false);
    loop {
        while !ends && queue.len() < queue.depth() {
            let offset = offset();
            let mut buffer = spare.pop().unwrap_or_else(|| AlignedBuffer::zeroed(cell.bytes));
            mark(offset, &mut buffer);
            let operation = match cell.writes {
                true => Operation::Write { offset, buffer, fua: false },
                false => Operation::Read { offset, buffer },
            };
            ensure!(queue.push(offset, operation).is_ok(), "a queue with room has none");
        }
        let Some(finished) = queue.advance() else { break };
        spare.push(finished.completion.into_buffer()?);
        count += 1;
        ends = ends || (u64::is_multiple_of(count, 64) && is_over());
    }
    Ok(count)
}

fn on_file(
    file: &DirectFile,
    options: &QueueOptions,
    cell: &Cell,
    mut offset: impl FnMut() -> u64,
    is_over: impl Fn() -> bool,
) -> Result<u64> {
    let mut queue = file.queue(options);
    let spare: RefCell<Vec<AlignedBuffer>> = RefCell::default();
    let kind = match cell.writes {
        true => DirectKind::Write { synced: false },
        false => DirectKind::Read,
    };
    let (mut count, mut result, ends) = (0, Ok(()), std::cell::Cell::new(false));
    queue.stream(
        || {
            let offset = (!ends.get()).then(&mut offset)?;
            let spare = spare.borrow_mut().pop();
            let mut buffer = spare.unwrap_or_else(|| AlignedBuffer::zeroed(cell.bytes));
            mark(offset, &mut buffer);
            Some((0, DirectRequest { kind, offset, buffer }))
        },
        |_, DirectDone { request, result: done }| {
            let checked = done.map_err(anyhow::Error::from).and_then(|len| {
                ensure!(len == cell.bytes, "a request was short");
                check(request.offset, &request.buffer)
            });
            if let Err(error) = checked {
                result = Err(error);
                ends.set(true);
            }
            spare.borrow_mut().push(request.buffer);
            count += 1;
            if u64::is_multiple_of(count, 64) && is_over() {
                ends.set(true);
            }
        },
    );
    result.map(|()| count)
}
