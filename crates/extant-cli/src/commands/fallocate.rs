//! `extant fallocate`: space of files.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;

use clap::Args;
use extant::{Fallocate, Inode};

use crate::commands::touch::end_of_links;
use crate::commands::truncate::check_file;
use crate::copying::content::CHUNK_BYTES;
use crate::edit::{EditArgs, NewArgs, Session, edit_each};
use crate::exit::{Exit, Failure, Result};
use crate::output::stdout;
use crate::size::parse_bytes;
use crate::text::{counted, human_bytes};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant fallocate -l 1G root.img:/swap\n  extant fallocate -p -o 1M -l 64K root.img:/var/lib/db\n  extant fallocate -d root.img:/disk.raw\n";

/// Give files of an image space, or take it away
///
/// As fallocate(1). Without one of -p, -z, -w, -c, -i, -d the range gets space that reads as zeros where
/// it has none, and the file is made if it is missing. Each file is one change, and made even if
/// another one fails.
#[derive(Args, Debug)]
pub(crate) struct FallocateArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// Length of the range
    #[arg(short = 'l', long, value_name = "BYTES", value_parser = parse_bytes,
          required_unless_present = "dig_holes")]
    length: Option<u64>,
    /// Begin of the range; the long name is --from, because --offset is that of the file system
    #[arg(short = 'o', long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    from: u64,
    /// The size stays, even if the range ends behind it
    #[arg(short = 'n', long, conflicts_with_all = ["collapse_range", "insert_range"])]
    keep_size: bool,
    /// Take the space of the range away; it reads as zeros
    #[arg(short = 'p', long, group = "how")]
    punch_hole: bool,
    /// Let the range read as zeros, and have space
    #[arg(short = 'z', long, group = "how")]
    zero_range: bool,
    /// Fill the range with zeros that are written, so that later writes change data only
    #[arg(short = 'w', long, group = "how", conflicts_with = "keep_size")]
    write_zeroes: bool,
    /// Take the range out; what is behind it moves up to its begin. Whole blocks
    #[arg(short = 'c', long, group = "how")]
    collapse_range: bool,
    /// Put a hole in; what is there and behind moves back. Whole blocks
    #[arg(short = 'i', long, group = "how")]
    insert_range: bool,
    /// Turn blocks of zeros into holes
    #[arg(short = 'd', long, group = "how", conflicts_with = "keep_size")]
    dig_holes: bool,
    /// Print what was done
    #[arg(short = 'v', long)]
    verbose: bool,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

impl FallocateArgs {
    fn mode(&self) -> Fallocate {
        match () {
            () if self.punch_hole => Fallocate::PunchHole,
            () if self.zero_range => Fallocate::ZeroRange { keep_size: self.keep_size },
            () if self.write_zeroes => Fallocate::WriteZeroes,
            () if self.collapse_range => Fallocate::CollapseRange,
            () if self.insert_range => Fallocate::InsertRange,
            () => Fallocate::Allocate { keep_size: self.keep_size },
        }
    }

    fn word(&self) -> &'static str {
        match self.mode() {
            Fallocate::PunchHole => "punched",
            Fallocate::ZeroRange { .. } | Fallocate::WriteZeroes => "zeroed",
            Fallocate::CollapseRange => "removed",
            Fallocate::InsertRange => "inserted",
            _ => "allocated",
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &FallocateArgs) -> Result<Exit> {
    if args.length == Some(0) {
        return Err(Failure::usage("--length is 0: there is nothing to do"));
    }
    let end = args.from.checked_add(args.length.unwrap_or(0));
    let end = end.filter(|end| *end <= i64::MAX as u64);
    let end = end.ok_or_else(|| Failure::usage("the range ends behind 8 EiB"))?;
    edit_each(&args.edit, &args.targets, |session, path| {
        let inode = file(args, session, path)?;
        let label = session.label(path);
        if args.dig_holes {
            let end = if args.length.is_some() { end } else { u64::MAX };
            let dug = dig(session, path, &inode, args.from..end)?;
            if args.verbose {
                writeln!(stdout(), "{label}: {} turned into holes", human_bytes(dug))?;
            }
            return Ok(());
        }
        session.at(path, inode.fallocate(args.mode(), args.from..end))?;
        if args.verbose {
            let bytes = counted(end - args.from, "byte");
            writeln!(stdout(), "{label}: {bytes} {}", args.word())?;
        }
        Ok(())
    })
}

fn file(args: &FallocateArgs, session: &Session<'_>, path: &[u8]) -> Result<Inode> {
    let makes = matches!(args.mode(), Fallocate::Allocate { .. }) && !args.dig_holes;
    let inode = match session.look(path, true)? {
        Some(inode) => inode,
        None if makes => {
            let path = end_of_links(session, path)?;
            let new = args.new.inode(session, &path, None, 0o644)?;
            session.at(&path, session.fs.create(&path, &new))?
        }
        None => session.find(path, true)?,
    };
    check_file(session, path, &inode)?;
    Ok(inode)
}

/// Punches holes where blocks hold zeros, and returns how many bytes that freed.
fn dig(session: &Session<'_>, path: &[u8], inode: &Inode, range: Range<u64>) -> Result<u64> {
    let block = session.fs.block_size().bytes() as usize;
    let mut buffer = vec![0; CHUNK_BYTES.next_multiple_of(block)];
    let (mut at, mut dug) = (range.start, 0u64);
    let end = range.end.min(inode.metadata().size);
    while at < end {
        let Some(from) = session.at(path, inode.seek_data(at))?.filter(|from| *from < end) else {
            break;
        };
        let to = session.at(path, inode.seek_hole(from))?.unwrap_or(end).min(end);
        at = from.max(range.start);
        while at < to {
            if session.tally.is_interrupted() {
                return Ok(dug);
            }
            // In whole blocks, from the next boundary on.
            let into = (at % block as u64) as usize; // Less than a block.
            let want = (to - at).min((buffer.len() - into) as u64) as usize; // At most the buffer.
            let read = session.at(path, inode.read_at(&mut buffer[..want], at))?;
            if read == 0 {
                return Ok(dug);
            }
            for hole in zero_blocks(&buffer[..read], at, block, end == inode.metadata().size) {
                dug = dug.saturating_add(hole.end - hole.start);
                session.at(path, inode.fallocate(Fallocate::PunchHole, hole))?;
            }
            at = at.saturating_add(read as u64);
        }
    }
    Ok(dug)
}

/// The runs of whole blocks of zeros in `bytes`, which stand at byte `at` of a file. The last block
/// counts as whole when the file ends in it: the run then ends behind the file.
fn zero_blocks(bytes: &[u8], at: u64, block: usize, to_end: bool) -> Vec<Range<u64>> {
    let skip = (block - (at % block as u64) as usize) % block;
    let mut runs: Vec<Range<u64>> = Vec::new();
    let Some(blocks) = bytes.get(skip..) else { return runs };
    let mut start = at.saturating_add(skip as u64);
    for part in blocks.chunks(block) {
        let end = start.saturating_add(part.len() as u64);
        let whole = part.len() == block || to_end;
        if whole && part.iter().all(|byte| *byte == 0) {
            let whole_end = start.saturating_add(block as u64);
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = whole_end,
                _ => runs.push(start..whole_end),
            }
        }
        start = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_of_zeros_are_holes() {
        let mut bytes = vec![0; 50];
        bytes[25] = 1;
        // Blocks of 10 from byte 5 of the file on: 10..20, 20..30, 30..40 with the 1, 40..50, 50..55.
        assert_eq!(zero_blocks(&bytes, 5, 10, false), [10..30, 40..50]);
        assert_eq!(zero_blocks(&bytes, 5, 10, true), [10..30, 40..60]);
        assert_eq!(zero_blocks(&bytes[..3], 5, 10, true), Vec::<Range<u64>>::new());
        assert_eq!(zero_blocks(&[0; 20], 0, 10, false).first(), Some(&(0..20)));
    }
}
