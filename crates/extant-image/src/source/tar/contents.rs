//! Reading the files of a scanned archive.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::source::{ContentReader, Contents, SourceError};
use crate::tree::{NodeId, Tree};

/// Data of files in one file, the archive or the spool.
pub(super) struct TarContents {
    file: File,
    archive: String,
    /// Size and modification time of an archive that is read in place.
    stamp: Option<Stamp>,
}

/// Properties by which a change of an archive is detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    size: u64,
    mtime: (i64, i64),
}

impl Stamp {
    pub(super) fn of(file: &File) -> io::Result<Stamp> {
        let meta = file.metadata()?;
        Ok(Stamp { size: meta.len(), mtime: (meta.mtime(), meta.mtime_nsec()) })
    }
}

impl TarContents {
    pub(super) fn new(file: File, archive: String, stamp: Option<Stamp>) -> TarContents {
        TarContents { file, archive, stamp }
    }
}

impl Contents for TarContents {
    fn reader(&self) -> Box<dyn ContentReader + '_> {
        Box::new(TarReader { source: self })
    }
}

struct TarReader<'a> {
    source: &'a TarContents,
}

impl ContentReader for TarReader<'_> {
    fn read(
        &mut self,
        tree: &Tree,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), SourceError> {
        let file = tree.node(node);
        let end = offset.checked_add(buf.len() as u64);
        let start = match tree.runs(file) {
            None => end.filter(|&end| end <= file.size).and(file.locator.checked_add(offset)),
            Some(runs) => {
                let after = runs.partition_point(|run| run.offset <= offset);
                let run = after.checked_sub(1).and_then(|at| runs.get(at));
                run.filter(|run| end.is_some_and(|end| end - run.offset <= run.len))
                    .and_then(|run| run.locator.checked_add(offset - run.offset))
            }
        };
        let path = || tree.path(node).escape_ascii().to_string();
        let Some(start) = start else {
            let len = buf.len();
            let what = format!("it has no {len} bytes of data at {offset}");
            return Err(SourceError::Changed { path: path(), what });
        };
        match self.source.file.read_exact_at(buf, start) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(SourceError::Changed {
                path: self.source.archive.clone(),
                what: format!("it ends before the data of \"{}\" at byte {start}", path()),
            }),
            Err(e) => Err(SourceError::Io { doing: "read", path: path(), cause: e }),
        }
    }

    fn finish(&mut self, _tree: &Tree) -> Result<(), SourceError> {
        let Some(stamp) = self.source.stamp else { return Ok(()) };
        let now = Stamp::of(&self.source.file).map_err(|cause| SourceError::Io {
            doing: "examine",
            path: self.source.archive.clone(),
            cause,
        })?;
        if now == stamp {
            return Ok(());
        }
        Err(SourceError::Changed {
            path: self.source.archive.clone(),
            what: format!(
                "it had {} bytes of time {}.{:09}, now {} bytes of time {}.{:09}",
                stamp.size, stamp.mtime.0, stamp.mtime.1, now.size, now.mtime.0, now.mtime.1
            ),
        })
    }
}
