//! `extant cat`: the contents of a file.

use std::io::Write;
use std::ops::Range;

use clap::Args;
use extant::Inode;
use extant_sync::threads::{self, ThreadError};

use crate::exit::{Exit, Failure, Result};
use crate::image::{Image, ImagesArgs};
use crate::output::stdout;
use crate::size::parse_bytes;

/// Bytes read at once: what stays in the processor's cache until it is written.
const CHUNK_BYTES: u64 = 1 << 20;

/// Chunks that are read ahead of the one that is written.
const CHUNKS_AHEAD: usize = 3;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant cat root.img:/etc/passwd\n  extant cat root.img:/var/log/syslog.1 root.img:/var/log/syslog\n  extant cat --from 1M --length 4K root.img:/var/log/big\n";

/// Write the contents of files of images to standard output, one after the other
///
/// Holes come out as zeros. For a copy that keeps them, use extract.
#[derive(Args, Debug)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// Begin at this byte of each file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    from: u64,
    /// At most that many bytes of each file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    length: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &CatArgs) -> Result<Exit> {
    args.images.each(|image| cat(args, image))
}

fn cat(args: &CatArgs, image: &Image) -> Result<Exit> {
    let inode = image.resolve()?;
    let end = match args.length {
        Some(length) => args.from.saturating_add(length).min(inode.size()),
        None => inode.size(),
    };
    let range = args.from..end.max(args.from);
    // Also for an empty range: read_at says if this is no regular file.
    if range.end - range.start <= CHUNK_BYTES || threads::available() < 2 {
        write_one_by_one(image, &inode, range)?;
    } else {
        write_while_reading(image, &inode, range)?;
    }
    Ok(Exit::Success)
}

/// The next bytes of `range`, into `chunk`: none at the end of the file.
fn read_chunk(
    image: &Image,
    inode: &Inode,
    range: &mut Range<u64>,
    chunk: &mut Vec<u8>,
) -> Result<()> {
    chunk.resize((range.end - range.start).min(CHUNK_BYTES) as usize, 0); // At most CHUNK_BYTES.
    let read =
        inode.read_at(chunk, range.start).map_err(|error| image.failure(&image.path, error))?;
    chunk.truncate(read);
    range.start = range.start.saturating_add(read as u64);
    Ok(())
}

fn write_one_by_one(image: &Image, inode: &Inode, mut range: Range<u64>) -> Result<()> {
    let mut out = stdout();
    let mut chunk = Vec::new();
    loop {
        read_chunk(image, inode, &mut range, &mut chunk)?;
        out.write_all(&chunk)?;
        if chunk.is_empty() || range.is_empty() {
            out.flush()?;
            return Ok(());
        }
    }
}

/// A second thread reads ahead, so that neither the device nor the output waits for the other.
fn write_while_reading(image: &Image, inode: &Inode, mut range: Range<u64>) -> Result<()> {
    let (full, chunks) = threads::channel::<Result<Vec<u8>>>(CHUNKS_AHEAD);
    let (empty, used) = threads::channel::<Vec<u8>>(CHUNKS_AHEAD + 2);
    let written = threads::scope(|scope| {
        scope.spawn("cat-read", move || {
            while !range.is_empty() {
                let mut chunk = used.try_recv().unwrap_or_default();
                let read = read_chunk(image, inode, &mut range, &mut chunk);
                let ends = read.is_err() || chunk.is_empty();
                // The other side is gone when the output has failed.
                if full.send(read.map(|()| chunk)).is_err() || ends {
                    break;
                }
            }
        })?;
        let mut out = stdout();
        let mut write = || -> Result<()> {
            while let Ok(chunk) = chunks.recv() {
                let chunk = chunk?;
                out.write_all(&chunk)?;
                // Full when the reader needs no more.
                let _ = empty.try_send(chunk);
            }
            Ok(out.flush()?)
        };
        let written = write();
        drop(chunks);
        Ok::<_, ThreadError>(written)
    });
    let internal = |error: ThreadError| Failure::caused(Exit::Internal, "", &error);
    written.map_err(|error| internal(error.into()))?.map_err(internal)?
}
