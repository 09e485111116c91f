//! One file of an image as a line for people or an object for programs.

use std::io::Write;

use extant::{FileKind, Fs, FsError, Inode, Metadata, Timestamp};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use crate::exit::Result;
use crate::output::{Out, put_bytes};
use crate::text;

/// Longest `/etc/passwd` or `/etc/group` that is looked into, in bytes.
const NAMES_MAX: u64 = 4 << 20;

/// Names of users and groups as the image's own `/etc/passwd` and `/etc/group` have them. The
/// host's are not asked: its users have nothing to do with the image.
#[derive(Default)]
pub(crate) struct Names {
    users: FxHashMap<u32, Vec<u8>>,
    groups: FxHashMap<u32, Vec<u8>>,
}

impl Names {
    /// Reads both files; without them, or with `numeric`, all owners are numbers.
    pub(crate) fn load(fs: &Fs, numeric: bool) -> Names {
        if numeric {
            return Names::default();
        }
        Names { users: read_names(fs, "/etc/passwd"), groups: read_names(fs, "/etc/group") }
    }

    fn show(out: &mut Out, names: &FxHashMap<u32, Vec<u8>>, id: u32) -> std::io::Result<()> {
        match names.get(&id) {
            // Names come from the image: never raw, or columns could be faked.
            Some(name) => write!(out, " {:<8}", text::escape(name)),
            None => write!(out, " {id:<8}"),
        }
    }
}

/// `name:x:id:…` on each line. A file that cannot be read or makes no sense has no names.
fn read_names(fs: &Fs, path: &str) -> FxHashMap<u32, Vec<u8>> {
    let contents = fs.resolve(path).ok().filter(|inode| inode.size() <= NAMES_MAX);
    let contents = contents.and_then(|inode| inode.read_all().ok()).unwrap_or_default();
    let mut names = FxHashMap::default();
    for line in contents.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, id) = (fields.next(), fields.nth(1));
        let id = id.and_then(|id| std::str::from_utf8(id).ok()).and_then(|id| id.parse().ok());
        let plain = |name: &&[u8]| {
            !name.is_empty() && name.len() <= 32 && name.iter().all(|byte| byte.is_ascii_graphic())
        };
        if let (Some(name), Some(id)) = (name.filter(plain), id) {
            names.entry(id).or_insert_with(|| name.to_vec());
        }
    }
    names
}

/// How `ls -l` writes its lines.
#[derive(Clone, Copy)]
pub(crate) struct LongForm {
    /// The inode's number first.
    pub(crate) ino: bool,
    /// Sizes in powers of 1024.
    pub(crate) human: bool,
}

/// Everything of an `ls -l` line before the name.
pub(crate) fn long_prefix(
    out: &mut Out,
    meta: &Metadata,
    names: &Names,
    form: LongForm,
) -> std::io::Result<()> {
    if form.ino {
        write!(out, "{:>9} ", meta.ino.0)?;
    }
    write!(out, "{} {:>3}", text::mode_text(meta.kind, meta.permissions), meta.links)?;
    Names::show(out, &names.users, meta.uid)?;
    Names::show(out, &names.groups, meta.gid)?;
    match meta.rdev {
        Some((major, minor)) => write!(out, " {:>11}", format!("{major}, {minor}"))?,
        None if form.human => write!(out, " {:>11}", text::human_short(meta.size))?,
        None => write!(out, " {:>11}", meta.size)?,
    }
    write!(out, " {} ", text::time_short(meta.mtime))
}

/// ` -> target` after the name of a symbolic link.
pub(crate) fn link_suffix(out: &mut Out, inode: &Inode) -> Result<(), LinkError> {
    if inode.is_symlink() {
        let target = inode.read_link().map_err(LinkError::Fs)?;
        out.write_all(b" -> ").map_err(LinkError::Out)?;
        out.name(&target).map_err(LinkError::Out)?;
    }
    Ok(())
}

/// Why a link's target was not shown.
pub(crate) enum LinkError {
    Fs(FsError),
    Out(std::io::Error),
}

fn time_json(time: Timestamp) -> Value {
    json!({ "sec": time.seconds, "nsec": time.nanos_clamped() })
}

/// An inode as an object. `name` is the key and value that identify it.
pub(crate) fn inode_json(key: &str, name: &[u8], inode: &Inode) -> (Value, Option<FsError>) {
    let meta = inode.metadata();
    let mut object = Map::new();
    put_bytes(&mut object, key, name);
    let mut failed = None;
    let fixed = json!({
        "ino": meta.ino.0,
        "type": text::kind_name(meta.kind),
        "mode": format!("{:04o}", meta.permissions),
        "uid": meta.uid,
        "gid": meta.gid,
        "size": meta.size,
        "allocated_bytes": meta.blocks.saturating_mul(512),
        "links": meta.links,
        "atime": time_json(meta.atime),
        "mtime": time_json(meta.mtime),
        "ctime": time_json(meta.ctime),
        "crtime": meta.crtime.map(time_json),
    });
    if let Value::Object(fixed) = fixed {
        object.extend(fixed);
    }
    if let Some((major, minor)) = meta.rdev {
        object.insert("rdev".into(), json!([major, minor]));
    }
    if meta.kind == FileKind::Symlink {
        match inode.read_link() {
            Ok(target) => put_bytes(&mut object, "target", &target),
            Err(error) => failed = Some(error),
        }
    }
    (Value::Object(object), failed)
}
