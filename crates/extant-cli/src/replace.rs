//! New contents for a file of an image, all at once.

use extant::{FsError, Inode, InodeFlags, NewInode, SetAttributes, XattrMode};

use crate::copying::content::{Content, Fault, Mover, Sink, Sparse};
use crate::edit::{NewArgs, Session, join, last_name, parent};
use crate::exit::{Failure, Result};
use crate::flags;
use crate::output::complain;

/// Says whether the contents of `old` can be replaced, before anything is read or written.
pub(crate) fn check(session: &Session<'_>, path: &[u8], old: &Inode) -> Result<()> {
    let ino = old.ino();
    let refuse = |what| Err(session.failure(path, FsError::NotPermitted { ino, what }));
    if old.is_dir() {
        return Err(session.failure(path, FsError::IsADirectory { ino }));
    }
    if !old.is_file() {
        return Err(session.failure(path, FsError::NotARegularFile { ino }));
    }
    old.check_key().map_err(|error| session.failure(path, error))?;
    match old.metadata().flags {
        flags if flags.contains(InodeFlags::IMMUTABLE) => refuse("it is immutable"),
        flags if flags.contains(InodeFlags::APPEND) => refuse("it can only be appended to"),
        _ => Ok(()),
    }
}

/// Gives the file at `path`, which no link stands for, the contents `from`: all at once, also over
/// a crash. The new file has owner, mode, flags and extended attributes of `old`, but for its capabilities, or
/// those of a new one with `permissions`.
///
/// The contents are written to a file without a name, made durable, and then renamed over the old
/// one.
pub(crate) fn replace(
    session: &Session<'_>,
    path: &[u8],
    old: Option<&Inode>,
    (new, permissions): (&NewArgs, Option<u16>),
    from: &Content,
) -> Result<()> {
    let dir = session.find(parent(path), true)?;
    let inode = match old {
        None => new.inode(session, path, permissions, 0o644)?,
        Some(old) => {
            let meta = old.metadata();
            NewInode { permissions: meta.permissions, uid: meta.uid, gid: meta.gid }
        }
    };
    let nameless = session.at(path, dir.tmpfile(&inode))?;
    fill(session, path, from, &Sink::Image(nameless.clone()))?;
    if let Some(old) = old {
        session.at(path, keep_attributes(old, &nameless))?;
    }
    // Before the name leads to it: a crash must not find the name and no contents.
    session.at(path, nameless.sync())?;
    let Some(old) = old else {
        return session.at(path, dir.link(last_name(path), &nameless));
    };
    let names = old.metadata().links;
    let aside = join(parent(path), format!(".extant-{}", std::process::id()).as_bytes());
    session.at(&aside, dir.link(last_name(&aside), &nameless))?;
    session.fs.rename(&aside, path).map_err(|error| {
        let left = session.fs.remove_file(&aside);
        let failure = session.failure(path, error);
        match left {
            Ok(()) => failure,
            Err(_) => failure.hint(format!("{} is left over", session.label(&aside))),
        }
    })?;
    if names > 1 {
        complain(&format!(
            "{}: note: its other names, {} in number, keep the old contents",
            session.label(path),
            names - 1
        ));
    }
    Ok(())
}

/// Copies all of `from` into the empty file `to`, which `path` is or will be.
pub(crate) fn fill(session: &Session<'_>, path: &[u8], from: &Content, to: &Sink) -> Result<()> {
    let copied = Mover::silent().copy(from, to, Sparse::Auto);
    copied.map_err(|fault| failure(session, path, fault))
}

/// Returns what went wrong between the host and the file at `path`.
pub(crate) fn failure(session: &Session<'_>, path: &[u8], fault: Fault) -> Failure {
    match fault {
        Fault::From(trouble) => trouble.about(None, b"the new contents"),
        Fault::To(trouble) => trouble.about(Some(&session.name), path),
        Fault::Half(fault) => failure(session, path, *fault),
    }
}

fn keep_attributes(old: &Inode, new: &Inode) -> Result<(), FsError> {
    let (was, is) = (old.metadata(), new.metadata());
    // Those that came from the directory are not the file's.
    for name in new.xattr_names()? {
        match new.remove_xattr(&name) {
            Ok(()) | Err(FsError::NoAttribute { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mask = flags::changeable();
    let mut changes = SetAttributes::new()
        .permissions(was.permissions)
        .owner(Some(was.uid), Some(was.gid))
        .flags(is.flags.difference(mask) | (was.flags & mask));
    if was.project != is.project {
        changes = changes.project(was.project);
    }
    new.set_attributes(&changes)?;
    for xattr in old.xattrs()? {
        // They were for the program that it was, and no write on Linux leaves them, whoever writes.
        if xattr.name == b"security.capability" {
            continue;
        }
        new.set_xattr(&xattr.name, &xattr.value, XattrMode::default())?;
    }
    Ok(())
}
