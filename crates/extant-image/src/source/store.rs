//! The files of an archive as the store of a container image.

use std::io::{self, Read};

use extant_oci::{Source, Store, Stored};

use crate::source::Scanned;
use crate::tree::{Kind, NodeId, Tree};

/// Most links on the way to one file. Old versions of `docker save` have a link where two images share a layer.
const LINKS_MAX: usize = 8;

/// The files of an archive that was scanned.
pub(super) struct TreeStore {
    scanned: Scanned,
    name: String,
}

impl TreeStore {
    pub(super) fn new(scanned: Scanned, name: &str) -> TreeStore {
        TreeStore { scanned, name: name.into() }
    }
}

impl Store for TreeStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, path: &str) -> io::Result<Option<Stored<'_>>> {
        let tree = &self.scanned.tree;
        let Some(node) = find(tree, path.as_bytes()) else { return Ok(None) };
        let found = tree.node(node);
        if found.kind != Kind::File {
            return Err(io::Error::other("it is no regular file"));
        }
        let reader = Box::new(FileReader { scanned: &self.scanned, node, at: 0 });
        Ok(Some(Stored { size: found.size, reader }))
    }
}

/// The node at `path`, through links that stay inside.
fn find(tree: &Tree, path: &[u8]) -> Option<NodeId> {
    let mut todo: Vec<Vec<u8>> = path.split(|&b| b == b'/').rev().map(<[u8]>::to_vec).collect();
    let mut done = vec![NodeId::ROOT];
    let mut links = 0;
    while let Some(part) = todo.pop() {
        match &*part {
            b"" | b"." => continue,
            b".." => {
                done.pop();
                continue;
            }
            _ => {}
        }
        let dir = done.last().copied()?;
        let entries = tree.children(dir);
        let at = entries.binary_search_by(|entry| tree.name(entry).cmp(&part)).ok()?;
        let id = entries.get(at)?.node;
        let node = tree.node(id);
        if node.kind != Kind::Symlink {
            done.push(id);
            continue;
        }
        links += 1;
        let target = tree.target(node);
        if links > LINKS_MAX || target.starts_with(b"/") {
            return None;
        }
        todo.extend(target.split(|&b| b == b'/').rev().map(<[u8]>::to_vec));
    }
    done.last().copied()
}

/// Reads one file from front to back.
struct FileReader<'s> {
    scanned: &'s Scanned,
    node: NodeId,
    at: u64,
}

impl Source for FileReader<'_> {}

impl Read for FileReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let tree = &self.scanned.tree;
        let node = tree.node(self.node);
        let mut end = node.size;
        let mut is_hole = false;
        if let Some(runs) = tree.runs(node) {
            let next = runs.partition_point(|run| run.offset.saturating_add(run.len) <= self.at);
            match runs.get(next) {
                Some(run) if run.offset <= self.at => end = run.offset.saturating_add(run.len),
                Some(run) => (is_hole, end) = (true, run.offset),
                None => is_hole = true,
            }
        }
        let left = usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let count = left.min(buf.len());
        let Some(buf) = buf.get_mut(..count).filter(|buf| !buf.is_empty()) else { return Ok(0) };
        if is_hole {
            buf.fill(0);
        } else {
            let mut reader = self.scanned.contents.reader();
            let read = reader.read(tree, self.node, self.at, buf);
            read.map_err(|error| io::Error::other(error.to_string()))?;
        }
        self.at += count as u64;
        Ok(count)
    }
}
