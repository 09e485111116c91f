//! The data runs of sparse files.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::tree::DataRun;

/// Limit of the runs kept for one file, 24 bytes each. The part behind the last one counts as data:
/// its holes are read as zeros, so only space is lost.
const RUNS_MAX: usize = 1 << 20;

/// The data runs among the first `size` bytes of `file`; `None` if there is no hole, or the file
/// system cannot tell.
///
/// # Errors
///
/// What seeking gives.
pub(super) fn data_runs(file: BorrowedFd<'_>, size: u64) -> Result<Option<Vec<DataRun>>, Errno> {
    let mut runs: Vec<DataRun> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            // No data up to the end of the file.
            Err(Errno::NXIO) => break,
            // A file system that does not know holes, or has none in this file.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            result => result?.max(at),
        };
        if start >= size {
            break;
        }
        let end = if runs.len() + 1 == RUNS_MAX {
            size
        } else {
            match seek(file, SeekFrom::Hole(start)) {
                // The file shrank below `start`; the read will notice.
                Err(Errno::NXIO) => size,
                // Never standing still, whatever a strange file system answers.
                result => result?.max(start + 1).min(size),
            }
        };
        runs.push(DataRun { offset: start, len: end - start, locator: start });
        at = end;
    }
    let whole = matches!(&runs[..], [run] if run.offset == 0 && run.len == size);
    Ok(if whole { None } else { Some(runs) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn runs(file: &File, size: u64) -> Option<Vec<(u64, u64)>> {
        let runs = data_runs(file.as_fd(), size).unwrap()?;
        assert!(runs.iter().all(|run| run.locator == run.offset));
        Some(runs.iter().map(|run| (run.offset, run.len)).collect())
    }

    /// Assumes blocks of at most 64 KiB, which every file system used for tests has.
    #[test]
    fn holes_at_start_middle_and_end() {
        let file = tempfile::tempfile().unwrap();
        const M: u64 = 1 << 20;
        file.set_len(8 * M).unwrap();
        assert_eq!(runs(&file, 8 * M), Some(vec![]));
        file.write_all_at(&[1; 65536], 2 * M).unwrap();
        file.write_all_at(&[1; 131072], 5 * M).unwrap();
        assert_eq!(runs(&file, 8 * M), Some(vec![(2 * M, 65536), (5 * M, 131072)]));
        // A size seen earlier cuts the list, also inside a run.
        assert_eq!(runs(&file, 5 * M + 7), Some(vec![(2 * M, 65536), (5 * M, 7)]));
        file.write_all_at(&vec![1; 8 << 20], 0).unwrap();
        assert_eq!(runs(&file, 8 * M), None);
        assert_eq!(runs(&file, 0), Some(vec![]));
    }
}
