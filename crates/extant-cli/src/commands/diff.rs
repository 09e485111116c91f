//! `extant diff`: how two images differ.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use extant::{FileKind, FsError, Inode, Walk, WalkEntry};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value, json};

use crate::commands::tar::{Writer, archive_output};
use crate::exit::{Exit, Failure, Result};
use crate::image::{Failures, Image, ReadArgs, split};
use crate::output::{Out, put_bytes, stdout};

/// Bytes compared at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant diff old.img new.img\n  extant diff --ignore-mtime monday.img:/etc tuesday.img:/etc\n  extant diff --json old.img new.img | jq -r .path\n  extant diff --layer change.tar old.img new.img\n";

/// Compare the files of two images: names, attributes and contents
///
/// Kinds, modes, owners, modification times, sizes, contents, link targets, hard links, device numbers,
/// extended attributes and access lists count; access and change times, inode numbers and places of blocks do
/// not. As with diff(1), the exit code is 0 when nothing differs, 1 when something does, and 2 when something
/// could not be compared.
///
/// With --layer, the difference is written as a layer of a container image: a tar archive that makes NEW of OLD, with
/// whiteouts for what is gone. extant build --from OLD.tar --from LAYER.tar applies it.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The old image, and a path in it
    #[arg(value_name = "OLD[:/PATH]")]
    old: OsString,
    /// The new image, and a path in it
    #[arg(value_name = "NEW[:/PATH]")]
    new: OsString,
    /// Write the difference as a layer to a file, or - for standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    layer: Option<OsString>,
    /// Modification times do not count
    #[arg(long)]
    ignore_mtime: bool,
    /// Print one JSON object for each file that differs
    #[arg(long)]
    json: bool,
    /// Print nothing; the exit code says whether something differs
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    how: ReadArgs,
}

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> Result<Exit> {
    // As diff(1): 1 is a difference, and everything that went wrong is 2.
    compare(args).map_err(|failure| match failure.exit {
        Exit::BrokenPipe | Exit::Interrupted => failure,
        _ => Failure { exit: Exit::Usage, ..failure },
    })
}

fn compare(args: &DiffArgs) -> Result<Exit> {
    let open = |target: &OsString| -> Result<Image> {
        let (file, path) = split(target);
        let (fs, name) = args.how.open(&file)?;
        Ok(Image { fs, path, name, is_one_of_several: true })
    };
    let (old, new) = (open(&args.old)?, open(&args.new)?);
    if let Some(path) = &args.layer {
        return layer(args, &old, &new, path);
    }
    let mut out = Out::new();
    let mut differs = false;
    each(args, &old, &new, |found| {
        differs = true;
        if args.quiet {
            return Ok(());
        }
        Ok(show(args, &mut out, found)?)
    })?;
    out.flush()?;
    Ok(if differs { Exit::Partial } else { Exit::Success })
}

/// A file that is in one image, in the other, or in both and not equal.
struct Found<'a> {
    /// Below the paths that were asked for; empty for those themselves.
    path: &'a [u8],
    old: Option<&'a Inode>,
    new: Option<&'a Inode>,
    /// What differs, for a file that is in both.
    what: Vec<&'static str>,
}

fn show(args: &DiffArgs, out: &mut Out, found: &Found<'_>) -> io::Result<()> {
    let change = match (found.old, found.new) {
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    };
    let path = [b"/", found.path].concat();
    if args.json {
        let mut object = Map::new();
        put_bytes(&mut object, "path", &path);
        object.insert("change".into(), change.into());
        if change == "changed" {
            object.insert("what".into(), json!(found.what));
        }
        return out.json(&Value::Object(object));
    }
    let sign = match change {
        "added" => "+",
        "removed" => "-",
        _ => "M",
    };
    write!(out, "{sign} ")?;
    out.name(&path)?;
    if let (Some(old), Some(new)) = (found.old, found.new) {
        let details: Vec<String> = found.what.iter().map(|what| detail(what, old, new)).collect();
        write!(out, ": {}", details.join(", "))?;
    }
    writeln!(out)
}

/// Returns what differs, with the values where they are short.
fn detail(what: &str, old: &Inode, new: &Inode) -> String {
    let (a, b) = (old.metadata(), new.metadata());
    match what {
        "kind" => format!("kind {} -> {}", kind_name(a.kind), kind_name(b.kind)),
        "mode" => format!("mode {:04o} -> {:04o}", a.permissions, b.permissions),
        "owner" => format!("owner {}:{} -> {}:{}", a.uid, a.gid, b.uid, b.gid),
        "size" => format!("size {} -> {}", a.size, b.size),
        what => what.to_owned(),
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "directory",
        FileKind::Regular => "file",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "pipe",
        FileKind::Socket => "socket",
    }
}

/// A walk with the next entry at hand.
struct Side<'a> {
    image: &'a Image,
    walk: Walk,
    next: Option<WalkEntry>,
    /// Bytes of a path that are not below the start.
    skipped: usize,
}

impl<'a> Side<'a> {
    fn new(image: &'a Image) -> Result<Side<'a>> {
        let walk = image.fs.walk(&image.path).map_err(|e| image.failure(&image.path, e))?;
        let skipped = image.path.len() + usize::from(!image.path.ends_with(b"/"));
        let mut side = Side { image, walk: walk.sorted(true), next: None, skipped };
        side.step()?;
        Ok(side)
    }

    fn step(&mut self) -> Result<Option<WalkEntry>> {
        let next = match self.walk.next() {
            None => None,
            Some(Ok(entry)) => Some(entry),
            Some(Err(error)) => return Err(self.image.failure(&error.path, error.error)),
        };
        Ok(std::mem::replace(&mut self.next, next))
    }

    fn below<'e>(&self, entry: &'e WalkEntry) -> &'e [u8] {
        entry.path().get(self.skipped..).unwrap_or_default()
    }
}

/// The order in which a sorted walk has two paths.
fn order(a: &[u8], b: &[u8]) -> Ordering {
    // A slash ends a name, and comes before all bytes that names have.
    let key = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    a.iter().map(key).cmp(b.iter().map(key))
}

/// Calls `each` for every file that differs, in the order of the walk.
fn each(
    args: &DiffArgs,
    old: &Image,
    new: &Image,
    mut each: impl FnMut(&Found<'_>) -> Result<()>,
) -> Result<()> {
    let mut pairs = Pairs::default();
    let (mut a, mut b) = (Side::new(old)?, Side::new(new)?);
    loop {
        let side = match (&a.next, &b.next) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => order(a.below(x), b.below(y)),
        };
        let old_entry = if side.is_le() { a.step()? } else { None };
        let new_entry = if side.is_ge() { b.step()? } else { None };
        let path = match (&old_entry, &new_entry) {
            (Some(entry), _) => a.below(entry).to_vec(),
            (None, Some(entry)) => b.below(entry).to_vec(),
            (None, None) => return Ok(()),
        };
        let mut found = Found {
            path: &path,
            old: old_entry.as_ref().map(WalkEntry::inode),
            new: new_entry.as_ref().map(WalkEntry::inode),
            what: Vec::new(),
        };
        if let (Some(x), Some(y)) = (found.old, found.new) {
            found.what = differences(args, (old, x), (new, y), &path, &mut pairs)?;
            if found.what.is_empty() {
                continue;
            }
        }
        each(&found)?;
    }
}

/// Which inode of the new image stands for which of the old one, for files of several names.
#[derive(Default)]
struct Pairs {
    by_old: FxHashMap<u32, u32>,
    by_new: FxHashMap<u32, u32>,
}

impl Pairs {
    /// Returns whether the two names are names of the same file as their others are.
    fn fit(&mut self, old: &Inode, new: &Inode) -> bool {
        let several = |inode: &Inode| !inode.is_dir() && inode.metadata().links > 1;
        let (is_old, is_new) = (several(old), several(new));
        let (a, b) = (old.ino().0, new.ino().0);
        let mut fits = true;
        if is_old {
            fits &= *self.by_old.entry(a).or_insert(b) == b;
        }
        if is_new {
            fits &= *self.by_new.entry(b).or_insert(a) == a;
        }
        fits
    }
}

fn differences(
    args: &DiffArgs,
    (old, a): (&Image, &Inode),
    (new, b): (&Image, &Inode),
    path: &[u8],
    pairs: &mut Pairs,
) -> Result<Vec<&'static str>> {
    let in_old = |error| old.failure(&full(old, path), error);
    let in_new = |error| new.failure(&full(new, path), error);
    let (x, y) = (a.metadata(), b.metadata());
    let mut what = Vec::new();
    let mut note = |differs: bool, name| {
        if differs {
            what.push(name);
        }
    };
    let same_kind = x.kind == y.kind;
    note(!same_kind, "kind");
    note(x.permissions != y.permissions, "mode");
    note((x.uid, x.gid) != (y.uid, y.gid), "owner");
    note(!args.ignore_mtime && x.mtime != y.mtime, "mtime");
    if same_kind {
        note(x.rdev != y.rdev, "device");
        match x.kind {
            FileKind::Regular => {
                note(x.size != y.size, "size");
                let differ = x.size != y.size || contents_differ(a, b, in_old, in_new)?;
                note(differ, "contents");
            }
            FileKind::Symlink => {
                let (x, y) = (a.read_link().map_err(in_old)?, b.read_link().map_err(in_new)?);
                note(x != y, "target");
            }
            _ => {}
        }
        note(!pairs.fit(a, b), "links");
    }
    let sorted = |inode: &Inode| {
        inode.xattrs().map(|mut xattrs| {
            xattrs.sort_by(|a, b| a.name.cmp(&b.name));
            xattrs
        })
    };
    let (x, y) = (sorted(a).map_err(in_old)?, sorted(b).map_err(in_new)?);
    let equal =
        x.len() == y.len() && x.iter().zip(&y).all(|(x, y)| x.name == y.name && x.value == y.value);
    note(!equal, "xattrs");
    Ok(what)
}

/// Returns whether the bytes of two files of one size differ. What is a hole in both is not read.
fn contents_differ(
    a: &Inode,
    b: &Inode,
    in_a: impl Fn(FsError) -> Failure,
    in_b: impl Fn(FsError) -> Failure,
) -> Result<bool> {
    let size = a.size();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < size {
        let x = a.seek_data(at).map_err(&in_a)?.unwrap_or(size);
        let y = b.seek_data(at).map_err(&in_b)?.unwrap_or(size);
        at = x.min(y);
        let count = size.saturating_sub(at).min(CHUNK_BYTES) as usize; // At most CHUNK_BYTES.
        if count == 0 {
            break;
        }
        ours.resize(count, 0);
        theirs.resize(count, 0);
        let x = a.read_at(&mut ours, at).map_err(&in_a)?;
        let y = b.read_at(&mut theirs, at).map_err(&in_b)?;
        if x != y || ours != theirs || x == 0 {
            return Ok(true);
        }
        at += x as u64;
    }
    Ok(false)
}

/// A path of the comparison as one in an image.
fn full(image: &Image, path: &[u8]) -> Vec<u8> {
    match (path, image.path.ends_with(b"/")) {
        (b"", _) => image.path.clone(),
        (path, true) => [&image.path, path].concat(),
        (path, false) => [&image.path, &b"/"[..], path].concat(),
    }
}

/// Writes the difference as a layer.
fn layer(args: &DiffArgs, old: &Image, new: &Image, path: &OsString) -> Result<Exit> {
    for image in [old, new] {
        let start = image.resolve()?;
        if !start.is_dir() {
            let label = image.label(&image.path);
            return Err(Failure::usage(format!("{label}: a layer is of directories")));
        }
    }
    let (differs, left_out) = if path == "-" {
        let out = stdout();
        if out.is_terminal() {
            return Err(Failure::usage("an archive is not for a terminal"));
        }
        write_layer(args, old, new, io::BufWriter::with_capacity(CHUNK_BYTES as usize, out))?
    } else {
        let output = archive_output(Path::new(path))?;
        let file = output.device().file();
        let result =
            write_layer(args, old, new, io::BufWriter::with_capacity(CHUNK_BYTES as usize, file))?;
        output.commit()?;
        result
    };
    if left_out.exit() != Exit::Success {
        return Ok(Exit::Usage);
    }
    Ok(if differs { Exit::Partial } else { Exit::Success })
}

fn write_layer(
    args: &DiffArgs,
    old: &Image,
    new: &Image,
    out: impl Write,
) -> Result<(bool, Failures)> {
    // Files of several names are written whole or not at all: a name that stays would lead to the old file.
    let mut whole = FxHashSet::default();
    each(args, old, new, |found| {
        if let Some(inode) = found.new
            && !inode.is_dir()
            && inode.metadata().links > 1
        {
            whole.insert(inode.ino().0);
        }
        Ok(())
    })?;
    let mut writer = Writer::new(out);
    let mut differs = false;
    // Directories that are gone, or have become something else: what was in them needs no whiteout.
    let mut gone: Option<Vec<u8>> = None;
    let mut unchanged = Side::new(new)?;
    each(args, old, new, |found| {
        differs = true;
        let Some(inode) = found.new else {
            let is_below = gone.as_ref().is_some_and(|gone| {
                found.path.strip_prefix(&**gone).is_some_and(|rest| rest.starts_with(b"/"))
            });
            if !is_below {
                let (dir, name) = split_name(found.path);
                writer.mark(&[dir, b".wh.", name].concat())?;
                gone = Some(found.path.to_vec());
            }
            return Ok(());
        };
        write_names(&mut writer, &mut unchanged, new, Some(found.path), &whole)?;
        if split_name(found.path).1.starts_with(b".wh.") {
            let label = new.label(&full(new, found.path));
            let what = format!("{label}: a name that begins with .wh. is a whiteout in a layer");
            return Err(Failure::new(Exit::Unsupported, what));
        }
        if found.old.is_some_and(Inode::is_dir) && !inode.is_dir() {
            gone = Some(found.path.to_vec());
        }
        writer.member(&new.name, &full(new, found.path), found.path, inode)
    })?;
    write_names(&mut writer, &mut unchanged, new, None, &whole)?;
    Ok((differs, writer.finish()?))
}

/// Writes the files before `path`, or to the end, that did not change and are to be written all the same, and passes
/// `path`.
fn write_names<W: Write>(
    writer: &mut Writer<W>,
    side: &mut Side<'_>,
    new: &Image,
    path: Option<&[u8]>,
    whole: &FxHashSet<u32>,
) -> Result<()> {
    if whole.is_empty() {
        return Ok(());
    }
    while let Some(entry) = &side.next {
        let below = side.below(entry).to_vec();
        match path.map_or(Ordering::Less, |path| order(&below, path)) {
            Ordering::Less => {}
            Ordering::Equal => {
                side.step()?;
                return Ok(());
            }
            Ordering::Greater => return Ok(()),
        }
        if let Some(entry) = side.step()?
            && !entry.inode().is_dir()
            && whole.contains(&entry.inode().ino().0)
        {
            writer.member(&new.name, entry.path(), &below, entry.inode())?;
        }
    }
    Ok(())
}

/// The directory of a path, with its slash, and the name.
fn split_name(path: &[u8]) -> (&[u8], &[u8]) {
    let cut = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    path.split_at(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_in_the_order_of_a_walk() {
        let walked: [&[u8]; 7] = [b"", b"a", b"a/b", b"a/b/c", b"a-b", b"a.b", b"b"];
        for pair in walked.windows(2) {
            assert_eq!(order(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(order(b"a/b", b"a/b"), Ordering::Equal);
    }
}
