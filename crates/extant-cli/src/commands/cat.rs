//! `extant cat`: the contents of a file.

use std::io::Write;

use clap::Args;

use crate::exit::{Exit, Result};
use crate::image::ImageArgs;
use crate::size::parse_bytes;

/// Bytes read at once.
const CHUNK_BYTES: u64 = 4 << 20;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant cat root.img:/etc/passwd\n  extant cat --from 1M --length 4K root.img:/var/log/big\n";

/// Write the contents of a file of an image to standard output
///
/// Holes come out as zeros. For a copy that keeps them, use extract.
#[derive(Args, Debug)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Begin at this byte of the file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0")]
    from: u64,
    /// At most that many bytes
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    length: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &CatArgs) -> Result<Exit> {
    let image = args.image.open()?;
    let inode = image.resolve()?;
    let end = match args.length {
        Some(length) => args.from.saturating_add(length).min(inode.size()),
        None => inode.size(),
    };
    let mut out = std::io::stdout().lock();
    let mut at = args.from;
    let wanted = end.saturating_sub(at).clamp(1, CHUNK_BYTES);
    let mut buffer = vec![0; wanted as usize]; // At most CHUNK_BYTES.
    loop {
        let len = end.saturating_sub(at).min(CHUNK_BYTES) as usize;
        let read = inode
            .read_at(at, buffer.get_mut(..len).unwrap_or(&mut []))
            .map_err(|error| image.failure(&image.path, error))?;
        if read == 0 {
            break; // Also the first time: read_at says if this is no regular file.
        }
        out.write_all(&buffer[..read])?;
        at = at.saturating_add(read as u64);
    }
    out.flush()?;
    Ok(Exit::Success)
}
