//! An archive like the sources of a kernel, always the same.
//!
//! 55,000 files in 4,608 directories of three levels, in the order in which an archiver finds them.
//! Sizes are the sum of three dice in the exponent: half of the files below 5 KiB, 10 KiB on
//! average, the largest 128 KiB.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use extant_base::Prng;

use crate::read::header;

/// Directories in each directory of the three levels.
const FANOUT: [u64; 3] = [24, 12, 16];
const SEED: u64 = 55;

/// What the archive holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contents {
    /// Files and directories.
    pub entries: u64,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

fn size(random: &mut Prng) -> u64 {
    let exponent = 7 + random.below(4) + random.below(4) + random.below(4);
    (1 << exponent) + random.below(1 << exponent)
}

/// Writes an archive with `files` files below the directory `tree`.
///
/// # Errors
///
/// When it cannot be written.
pub fn write_archive(path: &Path, files: u64) -> Result<Contents> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = Prng::new(SEED);
    let mut filler = vec![0; 256 << 10];
    random.fill(&mut filler);
    let mut contents = Contents { entries: 0, files: 0, bytes: 0 };
    let mut dir = |out: &mut BufWriter<File>, name: &str| -> Result<()> {
        contents.entries += 1;
        Ok(out.write_all(&header(name, b'5', 0)?)?)
    };
    let leaves: u64 = FANOUT.iter().product();
    let mut sum = (0, 0);
    dir(&mut out, "tree/")?;
    for leaf in 0..leaves {
        let top = leaf / (FANOUT[1] * FANOUT[2]);
        let middle = leaf / FANOUT[2] % FANOUT[1];
        let bottom = leaf % FANOUT[2];
        if middle == 0 && bottom == 0 {
            dir(&mut out, &format!("tree/subsystem-{top}/"))?;
        }
        if bottom == 0 {
            dir(&mut out, &format!("tree/subsystem-{top}/family-{middle}/"))?;
        }
        let here = format!("tree/subsystem-{top}/family-{middle}/driver-{bottom}/");
        dir(&mut out, &here)?;
        // As many as make the whole number come out.
        for file in files * leaf / leaves..files * (leaf + 1) / leaves {
            let bytes = size(&mut random);
            let extension = ["c", "h", "o.d", "rst"][usize::try_from(random.below(4))?];
            out.write_all(&header(&format!("{here}source_{file}.{extension}"), b'0', bytes)?)?;
            let from = usize::try_from(random.below(filler.len() as u64 / 2))?;
            let padded = usize::try_from(bytes.next_multiple_of(512))?;
            out.write_all(&filler[from..from + usize::try_from(bytes)?])?;
            out.write_all(&[0; 512][..padded - usize::try_from(bytes)?])?;
            sum = (sum.0 + 1, sum.1 + bytes);
        }
    }
    out.write_all(&[0; 1024])?;
    out.flush()?;
    (contents.files, contents.bytes) = sum;
    contents.entries += contents.files;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_always_the_same_and_tar_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let contents = write_archive(&one, 5500).unwrap();
        assert_eq!(write_archive(&two, 5500).unwrap(), contents);
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap());
        assert_eq!((contents.files, contents.entries), (5500, 5500 + 4608 + 24 * 12 + 24 + 1));
        assert!((8 << 10..12 << 10).contains(&(contents.bytes / contents.files)), "{contents:?}");
        let listed = std::process::Command::new("tar").arg("-tf").arg(&one).output().unwrap();
        assert!(listed.status.success());
        let lines = listed.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines as u64, contents.entries);
    }
}
