//! What a cut may leave of the contents of files.
//!
//! # Shape
//!
//! For each file there are its versions: size and bytes after each operation that changed them. A cut
//! falls when `begun` operations had begun, the journal holds names as of operation `n`, and a
//! sync that had returned covers the file's operations up to the *floor*.
//!
//! # The verdict
//!
//! - D1. Everything up to the floor is there.
//! - D2. A byte is what some version from the floor on has there, and one that was long enough to have
//!   it: nothing of before a sync, of another file, or of whoever had the block before, and no
//!   zeros where a size is there before the data.
//! - D3. Blocks that an operation up to `n` took away show nothing of before it: a file that shrinks and
//!   grows again reads as zeros.
//! - D4. Blocks that an operation after `n` took away show nothing of after it: until that is
//!   committed, nobody may write to them.
//! - D5. The size is between what the floor promised and what operations up to `n` made of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use crate::model::{
    Content, FileKind, Model, Node, NodeId, Op, Outcome, PIECE_BYTES, Path, Space, Tree,
};

/// The regular files of a tree by path, in the order of [`Tree::paths`].
type Names = Vec<(Vec<Vec<u8>>, NodeId)>;

/// How a version differs from the one before.
#[derive(Clone, Debug)]
enum Change {
    /// The file began.
    Begun,
    /// Bytes were added or replaced, or the file became longer.
    Wrote,
    /// Everything from this byte on was taken away.
    Cut(u64),
    /// Whole blocks of this range became zeros, not at once; whether their space was taken away.
    Zeroed(u64, u64, bool),
    /// What was behind the first byte moved to the second, at once, with all that had been written.
    Moved(u64, u64),
    /// Something failed, and may be done in part; this is what was found then.
    Failed,
}

#[derive(Clone, Debug)]
struct Version {
    /// Operations that had been done.
    count: usize,
    size: u64,
    content: Content,
    change: Change,
}

/// From the mark `marks` on it is known that the contents after `count` operations are durable: of one
/// file, or of all.
#[derive(Clone, Copy, Debug)]
struct Floor {
    marks: usize,
    file: Option<NodeId>,
    count: usize,
}

/// A moment that is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Operations that the names that were found are after.
    pub(crate) names: usize,
    /// Operations that had begun.
    pub(crate) begun: usize,
    /// Marks before the cut.
    pub(crate) marks: usize,
}

/// The contents of all files at all times.
#[derive(Clone, Default, Debug)]
pub struct Contents {
    files: BTreeMap<NodeId, Vec<Version>>,
    /// Before the first operation and after each.
    names: Vec<Arc<Names>>,
    floors: Vec<Floor>,
}

fn names(tree: &Tree) -> Names {
    let mut all = tree.paths();
    all.retain(|(_, id)| tree.node(*id).kind == FileKind::Regular);
    all
}

impl Contents {
    /// Begins with what a file system has.
    pub(crate) fn new(tree: &Tree) -> Contents {
        let mut contents = Contents::default();
        contents.look(tree, 0);
        contents
    }

    /// Notes who has which name.
    fn look(&mut self, tree: &Tree, count: usize) {
        let names = names(tree);
        for (_, id) in &names {
            let node = tree.node(*id);
            self.files.entry(*id).or_insert_with(|| {
                let (size, content) = (node.size, node.content.clone());
                vec![Version { count, size, content, change: Change::Begun }]
            });
        }
        match self.names.last() {
            Some(last) if **last == names => self.names.push(Arc::clone(last)),
            _ => self.names.push(Arc::new(names)),
        }
    }

    /// Notes an operation that the model has followed, the one that makes it `count`.
    pub(crate) fn note(&mut self, model: &Model, op: &Op, count: usize) {
        self.note_in(&model.tree, model, op, count);
    }

    /// [`note`](Self::note) where names count as `seen` has them.
    pub(crate) fn note_in(&mut self, seen: &Tree, model: &Model, op: &Op, count: usize) {
        let Some(path) = op.changes_contents_of() else {
            match self.names.last() {
                Some(last) if !op.changes_names() => self.names.push(Arc::clone(last)),
                _ => self.look(seen, count),
            }
            return;
        };
        if let Some(last) = self.names.last() {
            self.names.push(Arc::clone(last));
        }
        let Ok(id) = model.find(path) else { return };
        let node = model.tree.node(id);
        let Some(versions) = self.files.get_mut(&id) else { return };
        // After an error nothing is new.
        if versions.last().is_some_and(|v| v.size == node.size && v.content == node.content) {
            return;
        }
        let before = versions.last().map_or(0, |version| version.size);
        let change = match op {
            Op::Truncate { size, .. } if *size <= before => Change::Cut(*size),
            Op::Fallocate { space, offset, len, .. } => match space {
                Space::Punch => Change::Zeroed(*offset, offset + len, true),
                Space::Zero { .. } => Change::Zeroed(*offset, offset + len, false),
                Space::Collapse => Change::Moved(offset + len, *offset),
                Space::Insert => Change::Moved(*offset, offset + len),
                Space::Allocate { .. } | Space::WriteZeroes => Change::Wrote,
            },
            _ => Change::Wrote,
        };
        let (size, content) = (node.size, node.content.clone());
        versions.push(Version { count, size, content, change });
    }

    /// Notes what a file was found to be after an operation on it failed, the one that makes it `count`.
    pub(crate) fn failed(&mut self, id: NodeId, node: &Node, count: usize) {
        let Some(versions) = self.files.get_mut(&id) else { return };
        if versions.last().is_some_and(|v| v.size == node.size && v.content == node.content) {
            return;
        }
        let (size, content) = (node.size, node.content.clone());
        versions.push(Version { count, size, content, change: Change::Failed });
    }

    /// Notes what a sync that returned covers, if it was one; `marks` marks were made before that.
    pub(crate) fn synced(&mut self, model: &Model, op: &Op, answer: Outcome, at: (usize, usize)) {
        let (marks, count) = at;
        let mut add = |file| self.floors.push(Floor { marks, file, count });
        let of = |path: &Path| model.find(path).ok();
        match (op, answer) {
            (Op::Sync, Ok(())) => add(None),
            (Op::Fsync { path } | Op::Fdatasync { path }, Ok(())) => {
                if let Some(id) = of(path) {
                    add(Some(id));
                }
            }
            _ => {}
        }
    }

    /// Notes that everything is durable.
    pub(crate) fn all_synced(&mut self, marks: usize, count: usize) {
        self.floors.push(Floor { marks, file: None, count });
    }

    fn floor(&self, id: NodeId, marks: usize) -> usize {
        let known = self.floors.iter().filter(|floor| floor.marks <= marks);
        let ours = known.filter(|floor| floor.file.is_none_or(|file| file == id));
        ours.map(|floor| floor.count).max().unwrap_or(0)
    }

    /// D1 to D5 of a tree that was found, whose names are as `at` says. `unit` is the size of a block, or
    /// of a cluster if there are some.
    pub(crate) fn judge(&self, tree: &Tree, at: Moment, unit: u64) -> Result<(), String> {
        let Some(wanted) = self.names.get(at.names) else {
            return Err(format!("no names after {} operations", at.names));
        };
        let found = names(tree);
        if found.len() != wanted.len() {
            return Err("other files".to_owned());
        }
        for ((path, node), (_, id)) in found.iter().zip(wanted.iter()) {
            let Some(versions) = self.files.get(id) else { continue };
            let floor = self.floor(*id, at.marks);
            let file = File { versions, floor, at, unit };
            file.judge(tree.node(*node)).map_err(|wrong| {
                let mut text = format!(
                    "{}: {} (floor {floor}, names {}, begun {})",
                    Path(path.clone()),
                    wrong.what,
                    at.names,
                    at.begun
                );
                if let Some(byte) = wrong.byte {
                    text += &self.origin(tree.node(*node), byte);
                }
                text + &file.history()
            })?;
        }
        Ok(())
    }

    /// Returns who wrote the bytes at `byte` of a file that was found.
    fn origin(&self, found: &Node, byte: u64) -> String {
        let at = byte / 8 * 8;
        let bytes: Vec<u8> = (at..at + 8).map(|at| found.content.byte(at)).collect();
        let mut text = format!("\nfound there {bytes:02x?}");
        if bytes.iter().all(|byte| *byte == 0xa5) {
            return text + ": what was on the device before";
        }
        let place = (at % PIECE_BYTES) as usize;
        for (id, versions) in &self.files {
            for version in versions {
                for number in 0..version.size.div_ceil(PIECE_BYTES) {
                    if version.content.piece(number).get(place..place + 8) == Some(&bytes) {
                        let offset = number * PIECE_BYTES + place as u64;
                        let _ = write!(
                            text,
                            ": byte {offset} of file {} after {} operations",
                            id.0, version.count
                        );
                        return text;
                    }
                }
            }
        }
        text
    }
}

/// What is wrong, and at which byte.
struct Wrong {
    what: String,
    byte: Option<u64>,
}

/// One file at a moment.
struct File<'a> {
    versions: &'a [Version],
    floor: usize,
    at: Moment,
    unit: u64,
}

impl File<'_> {
    /// Operations on the file that the journal holds at least.
    fn held(&self) -> usize {
        self.at.names.max(self.floor)
    }

    /// The versions that may show, from that of the floor on.
    fn open(&self) -> &[Version] {
        let until = self.versions.partition_point(|version| version.count <= self.at.begun);
        let from = self.versions.partition_point(|version| version.count <= self.floor);
        &self.versions[from.saturating_sub(1).min(until)..until]
    }

    fn judge(&self, found: &Node) -> Result<(), Wrong> {
        let open = self.open();
        let held = open.iter().rev().find(|version| version.count <= self.held());
        if held.is_some_and(|v| v.size == found.size && v.content == found.content) {
            return Ok(());
        }
        let sizes = self.sizes();
        if !sizes.contains(&found.size) {
            let what = format!("{} bytes, allowed are {sizes:?}", found.size);
            return Err(Wrong { what, byte: None });
        }
        for number in 0..found.size.div_ceil(PIECE_BYTES) {
            self.piece(found, number)?;
        }
        Ok(())
    }

    /// D1 and D5. Writeback stores sizes in between.
    fn sizes(&self) -> std::ops::RangeInclusive<u64> {
        let mut versions = self.open().iter();
        let Some(first) = versions.next() else { return 0..=0 };
        let (mut low, mut high) = (first.size, first.size);
        for version in versions.take_while(|version| version.count <= self.held()) {
            match version.change {
                Change::Cut(size) => (low, high) = (low.min(size), high.min(size)),
                // Everything is written back first, so it is exact.
                Change::Moved(..) => (low, high) = (version.size, version.size),
                Change::Failed => (low, high) = (low.min(version.size), high.max(version.size)),
                _ => high = high.max(version.size),
            }
        }
        low..=high
    }

    /// Numbers of operations that versions of these bytes may have: D3, D4.
    fn window(&self, bytes: &Range<u64>) -> Range<usize> {
        let mut window = 0..usize::MAX;
        let up = |at: u64| at.next_multiple_of(self.unit);
        for version in self.open().iter().skip(1) {
            let count = version.count;
            let is_held = count <= self.held();
            let (taken, freed) = match version.change {
                Change::Cut(size) => (size..u64::MAX, up(size)..u64::MAX),
                Change::Zeroed(start, end, is_freed) => {
                    let whole = up(start)..end / self.unit * self.unit;
                    // Until the next operation is there it may be done in part.
                    let taken = if count < self.held() { whole.clone() } else { 0..0 };
                    (taken, if is_freed { whole } else { 0..0 })
                }
                Change::Moved(from, to) => {
                    let all = from.min(to)..u64::MAX;
                    (all.clone(), all)
                }
                Change::Begun | Change::Wrote | Change::Failed => continue,
            };
            let meets = |range: Range<u64>| range.start < bytes.end && bytes.start < range.end;
            if is_held && meets(taken) {
                window.start = count;
            } else if !is_held && meets(freed) {
                window.end = window.end.min(count);
            }
        }
        window
    }

    fn piece(&self, found: &Node, number: u64) -> Result<(), Wrong> {
        let start = number * PIECE_BYTES;
        let bytes = start..(start + PIECE_BYTES).min(found.size);
        let window = self.window(&bytes);
        let is_whole = |version: &&Version| {
            window.contains(&version.count)
                && version.size >= bytes.end
                && version.content.same_piece(&found.content, number)
        };
        if self.open().iter().rev().find(is_whole).is_some() {
            return Ok(());
        }
        for at in bytes {
            let byte = found.content.byte(at);
            let window = self.window(&(at..at + 1));
            let explains = |version: &&Version| {
                window.contains(&version.count)
                    && version.size > at
                    && version.content.byte(at) == byte
            };
            if self.open().iter().rev().find(explains).is_none() {
                let what = format!("byte {at} is {byte:#04x}, which none of {window:?} explains");
                return Err(Wrong { what, byte: Some(at) });
            }
        }
        Ok(())
    }

    /// The versions from the floor on, one in a line.
    fn history(&self) -> String {
        let each = |version: &Version| {
            format!("\n  {:4} {:?}, {} bytes", version.count, version.change, version.size)
        };
        self.open().iter().map(each).collect()
    }
}
