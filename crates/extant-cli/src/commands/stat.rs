//! `extant stat`: everything the image knows about one file.

use std::io::Write;

use clap::Args;
use extant::{Acl, AclKind, EncryptionPolicy, FsError, Inode, InodeFlags, IvKind, KeySpec};
use serde_json::{Map, Value, json};

use crate::acl_text::entries_text;
use crate::entry::inode_json;
use crate::exit::{Exit, Result};
use crate::image::{Failures, Image, ImagesArgs};
use crate::output::{Out, hex, xattrs_json};
use crate::text;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str =
    "Examples:\n  extant stat root.img:/etc/passwd\n  extant stat --json root.img:/etc/passwd\n";

/// Show all attributes of files of images
///
/// Times to the nanosecond, flags, extended attributes, access control lists. A symbolic link is
/// shown itself unless -L is given.
#[derive(Args, Debug)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// Follow a symbolic link
    #[arg(short = 'L', long)]
    dereference: bool,
    /// One JSON object for each file
    #[arg(long)]
    json: bool,
}

/// Flags by name, with lsattr's letter where it has one.
const FLAGS: [(InodeFlags, &str); 16] = [
    (InodeFlags::IMMUTABLE, "immutable"),
    (InodeFlags::APPEND, "append"),
    (InodeFlags::NODUMP, "nodump"),
    (InodeFlags::NOATIME, "noatime"),
    (InodeFlags::SYNC, "sync"),
    (InodeFlags::DIRSYNC, "dirsync"),
    (InodeFlags::JOURNAL_DATA, "journal_data"),
    (InodeFlags::INDEX, "index"),
    (InodeFlags::TOPDIR, "topdir"),
    (InodeFlags::EXTENTS, "extents"),
    (InodeFlags::INLINE_DATA, "inline_data"),
    (InodeFlags::ENCRYPT, "encrypt"),
    (InodeFlags::CASEFOLD, "casefold"),
    (InodeFlags::VERITY, "verity"),
    (InodeFlags::DAX, "dax"),
    (InodeFlags::PROJINHERIT, "projinherit"),
];

/// What is beside the fixed attributes, each possibly unreadable.
struct Extras {
    xattrs: Vec<extant::Xattr>,
    acls: Vec<(&'static str, Acl)>,
    target: Option<Vec<u8>>,
    /// The digest of a file that is sealed by fs-verity, with its algorithm.
    digest: Option<String>,
    /// How it is encrypted.
    policy: Option<EncryptionPolicy>,
}

/// Runs the command.
pub(crate) fn run(args: &StatArgs) -> Result<Exit> {
    args.images.each(|image| stat(args, image))
}

fn stat(args: &StatArgs, image: &Image) -> Result<Exit> {
    let inode = if args.dereference { image.resolve()? } else { image.resolve_link()? };
    let mut failures = Failures::default();
    let extras = Extras::load(image, &inode, &mut failures);
    let mut out = Out::new();
    if args.json {
        out.json_pretty(&to_json(image, &inode, &extras))?;
    } else {
        print(&mut out, image, &inode, &extras)?;
    }
    out.flush()?;
    Ok(failures.exit())
}

impl Extras {
    fn load(image: &Image, inode: &Inode, failures: &mut Failures) -> Extras {
        let mut report = |error: FsError| failures.report(&image.failure(&image.path, error));
        let xattrs = inode.xattrs().unwrap_or_else(|error| {
            report(error);
            Vec::new()
        });
        let mut acls = Vec::new();
        for (name, kind) in [("access", AclKind::Access), ("default", AclKind::Default)] {
            match inode.acl(kind) {
                Ok(acl) => acls.extend(acl.map(|acl| (name, acl))),
                Err(error) => report(error),
            }
        }
        let target =
            if inode.is_symlink() { inode.read_link().map_err(&mut report).ok() } else { None };
        let digest = inode.verity_digest().unwrap_or_else(|error| {
            report(error);
            None
        });
        let digest = digest.map(|digest| format!("{}:{digest}", digest.algorithm()));
        let policy = inode.encryption_policy().unwrap_or_else(|error| {
            report(error);
            None
        });
        Extras { xattrs, acls, target, digest, policy }
    }
}

/// What vectors depend on, if that is unusual.
fn vectors(kind: IvKind) -> Option<&'static str> {
    match kind {
        IvKind::PerFile => None,
        IvKind::DirectKey => Some("direct-key"),
        IvKind::InoLblk64 => Some("ino-lblk64"),
        IvKind::InoLblk32 => Some("ino-lblk32"),
    }
}

fn flag_names(flags: InodeFlags) -> Vec<&'static str> {
    FLAGS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name).collect()
}

fn print(out: &mut Out, image: &Image, inode: &Inode, extras: &Extras) -> Result<()> {
    let meta = inode.metadata();
    write!(out, "      Path: ")?;
    if image.is_one_of_several {
        write!(out, "{}:", image.name)?;
    }
    out.name(&image.path)?;
    if let Some(target) = &extras.target {
        write!(out, " -> ")?;
        out.name(target)?;
    }
    writeln!(out, "\n      Type: {}", text::kind_name(meta.kind))?;
    writeln!(out, "     Inode: {} (generation {})", meta.ino, meta.generation)?;
    let mode = text::mode_text(meta.kind, meta.permissions);
    writeln!(out, "      Mode: {:04o} ({mode})", meta.permissions)?;
    writeln!(out, "     Owner: {}:{} (project {})", meta.uid, meta.gid, meta.project)?;
    let allocated = meta.blocks.saturating_mul(512);
    writeln!(out, "      Size: {} bytes, {allocated} allocated", meta.size)?;
    writeln!(out, "     Links: {}", meta.links)?;
    if let Some((major, minor)) = meta.rdev {
        writeln!(out, "    Device: {major}, {minor}")?;
    }
    let flags = flag_names(meta.flags);
    writeln!(out, "     Flags: {:#x} {}", meta.flags.bits(), flags.join(" "))?;
    if let Some(digest) = &extras.digest {
        writeln!(out, "    Verity: {digest}")?;
    }
    if let Some(policy) = &extras.policy {
        let (contents, names) = (policy.contents.name(), policy.names.name());
        let padding = policy.padding;
        write!(out, " Encrypted: {contents}, {names}, names padded to {padding}")?;
        if let Some(vectors) = vectors(policy.iv) {
            write!(out, ", {vectors}")?;
        }
        if let Some(log2) = policy.data_unit_log2 {
            write!(out, ", units of {} bytes", 1u32 << log2)?;
        }
        writeln!(out, ", key {}", policy.key)?;
    }
    writeln!(out, "    Access: {}", text::time_long(meta.atime))?;
    writeln!(out, "    Modify: {}", text::time_long(meta.mtime))?;
    writeln!(out, "    Change: {}", text::time_long(meta.ctime))?;
    match meta.crtime {
        Some(time) => writeln!(out, "     Birth: {}", text::time_long(time))?,
        None => writeln!(out, "     Birth: not stored")?,
    }
    // Access control lists follow in words.
    let is_acl = |name: &[u8]| name.starts_with(b"system.posix_acl_");
    for xattr in extras.xattrs.iter().filter(|xattr| !is_acl(&xattr.name)) {
        write!(out, "     Xattr: ")?;
        out.name(&xattr.name)?;
        match std::str::from_utf8(&xattr.value) {
            Ok(text) if !text.chars().any(char::is_control) => writeln!(out, "=\"{text}\"")?,
            _ => writeln!(out, "=0x{}", hex(&xattr.value))?,
        }
    }
    for (kind, acl) in &extras.acls {
        writeln!(out, "{:>10}: {}", format!("ACL {kind}"), entries_text(acl).join(","))?;
    }
    Ok(())
}

fn to_json(image: &Image, inode: &Inode, extras: &Extras) -> Value {
    // An unreadable link target was reported when it was loaded.
    let (mut value, _) = inode_json("path", &image.path, inode);
    let meta = inode.metadata();
    let xattrs = xattrs_json(&extras.xattrs);
    let acls: Map<String, Value> = extras
        .acls
        .iter()
        .map(|(kind, acl)| ((*kind).to_owned(), json!(entries_text(acl))))
        .collect();
    if let Some(object) = value.as_object_mut() {
        image.put_name(object);
        object.insert("generation".into(), meta.generation.into());
        object.insert("project".into(), meta.project.into());
        object.insert("version".into(), meta.version.into());
        object.insert("flags".into(), json!(flag_names(meta.flags)));
        object.insert("flags_raw".into(), meta.flags.bits().into());
        if let Some(digest) = &extras.digest {
            object.insert("verity_digest".into(), digest.as_str().into());
        }
        if let Some(policy) = &extras.policy {
            let policy = json!({
                "version": if matches!(policy.key, KeySpec::Identifier(_)) { 2 } else { 1 },
                "contents": policy.contents.name(),
                "names": policy.names.name(),
                "padding": policy.padding,
                "vectors": vectors(policy.iv),
                "unit_bytes": policy.data_unit_log2.map(|log2| 1u32 << log2),
                "key": policy.key.to_string(),
            });
            object.insert("encryption".into(), policy);
        }
        object.insert("xattrs".into(), xattrs);
        object.insert("acl".into(), acls.into());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::acl::{AclEntry, Who};

    #[test]
    fn lists_as_setfacl_takes_them() {
        let entry = |who, perm| AclEntry { who, perm };
        let acl = Acl::new(vec![
            entry(Who::Owner, 6),
            entry(Who::User(1000), 7),
            entry(Who::OwningGroup, 4),
            entry(Who::Mask, 5),
            entry(Who::Others, 0),
        ]);
        let lines = entries_text(&acl.unwrap());
        assert_eq!(lines.join(","), "user::rw-,user:1000:rwx,group::r--,mask::r-x,other::---");
    }

    #[test]
    fn flags_have_names() {
        let flags = InodeFlags::EXTENTS | InodeFlags::IMMUTABLE;
        assert_eq!(flag_names(flags), ["immutable", "extents"]);
    }
}
