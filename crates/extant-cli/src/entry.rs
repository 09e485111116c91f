//! One file of an image as a line for people or an object for programs.

use std::io::Write;

use extant::{FileKind, FsError, Inode, Metadata, Timestamp};
use serde_json::{Map, Value, json};

use crate::accounts::Names;
use crate::exit::Result;
use crate::output::{Out, put_bytes};
use crate::text;

/// A name, or the number without one, as a column.
fn show_account(out: &mut Out, name: Option<&[u8]>, id: u32) -> std::io::Result<()> {
    match name {
        // Names come from the image: never raw, or columns could be faked.
        Some(name) => write!(out, " {:<8}", text::escape(name)),
        None => write!(out, " {id:<8}"),
    }
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
    show_account(out, names.user(meta.uid), meta.uid)?;
    show_account(out, names.group(meta.gid), meta.gid)?;
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
