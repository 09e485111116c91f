//! The EFI system partition: a FAT32 file system with files for the firmware.
//!
//! FAT names are case-insensitive, sizes are limited to 4 GiB, and times have steps of two seconds;
//! there are no owners, modes or links. Files that need more are refused with an error that names
//! them.

use std::fmt;
use std::io;

use extant_block::BlockDevice;

use super::fat::{self, Geometry};
use super::{ALIGNMENT, Place};
use crate::source::{Contents, SourceError};
use crate::tree::{Entry, Kind, NodeId, Tree};

/// The name of the file system.
const LABEL: &[u8; 11] = b"ESP        ";

/// Largest file of FAT.
const FILE_MAX: u64 = u32::MAX as u64;

/// Bytes read and written at once.
const CHUNK: usize = 256 << 10;

/// Why there is no EFI system partition.
#[derive(Debug)]
#[non_exhaustive]
pub enum EspError {
    /// FAT has no place for something.
    NoPlace {
        /// Path of the file in the source.
        path: String,
        /// The property that FAT lacks.
        what: String,
    },
    /// The partition is too small for its files.
    TooSmall {
        /// Bytes that were given.
        bytes: u64,
        /// Bytes that would do.
        needed: u64,
    },
    /// A file cannot be read.
    Source(SourceError),
    /// The partition cannot be written.
    Io(io::Error),
}

impl fmt::Display for EspError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EspError::NoPlace { path, what } => {
                write!(f, "\"{path}\" cannot be in an EFI system partition: {what}")
            }
            EspError::TooSmall { bytes, needed } => write!(
                f,
                "an EFI system partition of {bytes} bytes is too small; {needed} bytes would do"
            ),
            EspError::Source(error) => error.fmt(f),
            EspError::Io(_) => write!(f, "cannot write the EFI system partition"),
        }
    }
}

impl std::error::Error for EspError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EspError::Source(error) => error.source(),
            EspError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SourceError> for EspError {
    fn from(error: SourceError) -> EspError {
        EspError::Source(error)
    }
}

impl From<io::Error> for EspError {
    fn from(error: io::Error) -> EspError {
        EspError::Io(error)
    }
}

/// A tree that FAT has a place for, and how large the partition is.
pub struct EspPlan<'t> {
    tree: &'t Tree,
    geometry: Geometry,
    /// Bytes of the partition, a multiple of 1 MiB.
    pub bytes: u64,
}

/// Looks whether FAT has a place for all of `tree`, and how large a partition it needs: `bytes`, or as much as its files
/// and some more. `sector` is the size of a sector of the disk: 512 or 4096.
///
/// # Errors
///
/// [`EspError::NoPlace`], [`EspError::TooSmall`].
pub fn plan_esp(tree: &Tree, bytes: Option<u64>, sector: u64) -> Result<EspPlan<'_>, EspError> {
    let sum = tree.nodes().iter().map(|node| node.size).sum::<u64>();
    // The rounding to clusters assumes the cluster size of the final size, or a larger one.
    let cluster = u64::from(Geometry::cluster_bytes(sum.saturating_mul(2), sector));
    let mut needed = 0u64;
    let mut links = hashbrown::HashSet::new();
    for (dir, entries) in tree.dirs() {
        let mut names = hashbrown::HashSet::with_capacity(entries.len());
        for entry in entries {
            let node = tree.node(entry.node);
            let no_place = |what: String| {
                let mut path = tree.path(dir);
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(tree.name(entry));
                Err(EspError::NoPlace { path: path.escape_ascii().to_string(), what })
            };
            match node.kind {
                Kind::Dir | Kind::File => {}
                Kind::Symlink => return no_place("FAT has no symbolic links".into()),
                _ => return no_place("FAT has only files and directories".into()),
            }
            if node.kind == Kind::File && !links.insert(entry.node) {
                return no_place("FAT has no hard links".into());
            }
            if node.size > FILE_MAX {
                return no_place(format!("it has {} bytes, and FAT takes {FILE_MAX}", node.size));
            }
            let Ok(name) = std::str::from_utf8(tree.name(entry)) else {
                return no_place("its name is not UTF-8".into());
            };
            if let Some(bad) = name.chars().find(|c| !is_fine(*c)) {
                return no_place(format!("FAT has no '{}' in names", bad.escape_debug()));
            }
            if name.ends_with(['.', ' ']) {
                return no_place("names in FAT do not end with a dot or blank".into());
            }
            if !names.insert(name.to_uppercase()) {
                return no_place("FAT does not tell it from another name, except for case".into());
            }
            if node.kind == Kind::File {
                needed += node.size.next_multiple_of(cluster);
            }
        }
        let records = directory_bytes(tree, dir, entries) / fat::RECORD_BYTES;
        if records > fat::RECORDS_MAX {
            let path = tree.path(dir).escape_ascii().to_string();
            let most = fat::RECORDS_MAX;
            let what =
                format!("its names take {records} records, and a directory of FAT has {most}");
            return Err(EspError::NoPlace { path, what });
        }
        needed += (records * fat::RECORD_BYTES).next_multiple_of(cluster);
    }
    // Two tables of 4 bytes for each cluster, and some room.
    let auto = needed + needed / 512 * 8 + needed / 20 + (4 << 20);
    let auto = auto.max(fat::smallest(sector)).next_multiple_of(ALIGNMENT);
    let bytes = bytes.map_or(auto, |bytes| bytes / ALIGNMENT * ALIGNMENT);
    match Geometry::of(bytes, sector) {
        Some(geometry) if needed <= geometry.data_bytes() => Ok(EspPlan { tree, geometry, bytes }),
        _ => Err(EspError::TooSmall { bytes, needed: auto }),
    }
}

/// Characters of long names: what the specification of FAT and the crate agree on.
fn is_fine(c: char) -> bool {
    let code = u32::from(c);
    c.is_ascii_alphanumeric()
        || (0x80..0x1_0000).contains(&code)
        || "$%'-_@~`!(){}. +,;=[]^#&".contains(c)
}

/// Writes the partition `plan` to `place` of `device`, which reads as zeros there. The same tree, times and `fs_uuid` give
/// the same bytes.
///
/// # Errors
///
/// [`EspError`].
pub fn write_esp(
    plan: &EspPlan<'_>,
    contents: &dyn Contents,
    device: &dyn BlockDevice,
    place: Place,
    fs_uuid: &[u8; 16],
) -> Result<(), EspError> {
    let tree = plan.tree;
    let geometry = plan.geometry;
    let id = u32::from_le_bytes([fs_uuid[0], fs_uuid[1], fs_uuid[2], fs_uuid[3]]);
    // The root, then all others in the order of the tree: each in one piece.
    let mut next = fat::FIRST_CLUSTER;
    let mut chains = Vec::new();
    let mut clusters = vec![0u32; tree.nodes().len()];
    let mut give = |node: NodeId, bytes: u64| {
        let count = geometry.clusters_for(bytes);
        if count > 0 {
            clusters[node.index()] = next;
            chains.push(count);
            next += count;
        }
    };
    for (dir, entries) in tree.dirs() {
        give(dir, directory_bytes(tree, dir, entries));
    }
    for (at, node) in tree.nodes().iter().enumerate() {
        if node.kind == Kind::File {
            give(NodeId(at as u32), node.size);
        }
    }
    let first = |id: NodeId| clusters.get(id.index()).copied().unwrap_or(0);
    let at = |cluster: u32| place.offset + geometry.offset(cluster);
    let mut reader = contents.reader();
    let mut buffer = vec![0; CHUNK];
    for (dir, entries) in tree.dirs() {
        let names: Vec<String> = entries
            .iter()
            .map(|entry| String::from_utf8_lossy(tree.name(entry)).into_owned())
            .collect();
        let mut list = fat::Directory::new(names.iter().map(String::as_str));
        if dir == NodeId::ROOT {
            list.label(LABEL);
        } else {
            let parent = tree.entries().get(tree.node(dir).first_entry as usize);
            let parent = parent.map_or(NodeId::ROOT, |entry| entry.parent);
            let parent = if parent == NodeId::ROOT { 0 } else { first(parent) };
            list.dots(first(dir), parent, tree.node(dir).mtime.sec);
        }
        for (entry, name) in entries.iter().zip(&names) {
            let node = tree.node(entry.node);
            let size = (node.kind == Kind::File).then_some(node.size as u32);
            list.add(name, first(entry.node), size, node.mtime.sec);
        }
        device.write_at(at(first(dir)), list.bytes()).map_err(io::Error::other)?;
    }
    for (index, node) in tree.nodes().iter().enumerate() {
        let id = NodeId(index as u32);
        if node.kind != Kind::File || node.size == 0 {
            continue;
        }
        let mut done = 0;
        while done < node.size {
            let count = (node.size - done).min(CHUNK as u64) as usize;
            let chunk = buffer.get_mut(..count).unwrap_or_default();
            read(tree, &mut *reader, id, done, chunk)?;
            device.write_at(at(first(id)) + done, chunk).map_err(io::Error::other)?;
            done += count as u64;
        }
        reader.finish(tree)?;
    }
    let hidden = place.offset / geometry.sector;
    fat::write_tables(device, place.offset, &geometry, &chains, (id, LABEL, hidden))
        .map_err(io::Error::other)?;
    Ok(())
}

/// Fills `chunk` with the bytes of a file from `at` on, holes as zeros.
fn read(
    tree: &Tree,
    reader: &mut dyn crate::source::ContentReader,
    id: NodeId,
    at: u64,
    chunk: &mut [u8],
) -> Result<(), SourceError> {
    let node = tree.node(id);
    let Some(runs) = tree.runs(node) else { return reader.read(tree, id, at, chunk) };
    chunk.fill(0);
    let end = at + chunk.len() as u64;
    let next = runs.partition_point(|run| run.offset + run.len <= at);
    for run in runs.iter().skip(next).take_while(|run| run.offset < end) {
        let (from, to) = (run.offset.max(at), (run.offset + run.len).min(end));
        let part = chunk.get_mut((from - at) as usize..(to - at) as usize);
        reader.read(tree, id, from, part.unwrap_or_default())?;
    }
    Ok(())
}

/// Bytes that a directory takes: two records for itself or the label, and those of its names.
fn directory_bytes(tree: &Tree, dir: NodeId, entries: &[Entry]) -> u64 {
    let own = if dir == NodeId::ROOT { 1 } else { 2 };
    let names =
        entries.iter().map(|entry| fat::records(&String::from_utf8_lossy(tree.name(entry))));
    (own + names.sum::<u64>()) * fat::RECORD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Node, TreeBuilder};

    #[test]
    fn what_fat_has_no_place_for_is_named() {
        let plan = |names: &[&[u8]], kind: Kind, size: u64, bytes: Option<u64>| {
            let mut builder = TreeBuilder::new(Node::new(Kind::Dir));
            for name in names {
                let mut node = Node::new(kind);
                node.size = size;
                if kind == Kind::Symlink {
                    node.target = builder.store_target(b"x").unwrap();
                }
                let id = builder.add(node).unwrap();
                builder.link(NodeId::ROOT, name, id).unwrap();
            }
            let tree = builder.finish().unwrap();
            plan_esp(&tree, bytes, 512).map(|plan| plan.bytes).map_err(|error| error.to_string())
        };
        let file = |names: &[&[u8]]| plan(names, Kind::File, 1, None);
        assert_eq!(file(&[b"EFI", b"loader"]), Ok(fat::smallest(512)));
        assert!(file(&[b"a", b"A"]).unwrap_err().contains("\"a\""));
        assert!(file(&[b"a:b"]).unwrap_err().contains("':'"));
        assert!(file(&[b"\xff"]).unwrap_err().contains("UTF-8"));
        assert!(file(&[b"a."]).unwrap_err().contains("dot"));
        assert!(plan(&[b"l"], Kind::Symlink, 1, None).unwrap_err().contains("symbolic"));
        assert!(plan(&[b"big"], Kind::File, 1 << 32, None).unwrap_err().contains("4294967296"));
        let error = plan(&[b"x"], Kind::File, 100 << 20, Some(64 << 20)).unwrap_err();
        assert!(error.contains("would do"), "{error}");
        let fits = plan(&[b"x"], Kind::File, 100 << 20, None).unwrap();
        assert_eq!(plan(&[b"x"], Kind::File, 100 << 20, Some(fits)), Ok(fits));
    }
}
