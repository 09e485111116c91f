//! What to do with a file of another kind than the one that was wanted.

use std::path::Path;

use extant_image::signature::{Class, Found};
use extant_image::source::{OciError, SourceError};

use crate::exit::Failure;
use crate::place::split_place;
use crate::text::escape;

/// What `--from` takes.
const SOURCES: &str = "--from takes a directory, a tar archive, plain or packed with gzip or zstd, or a container image";

/// A command with the name of the file in it.
fn with_file(command: &str, file: &str) -> String {
    command.replace("FILE", file)
}

/// Returns what makes a source for `build` of `file`, which holds `found`; `out` is what is to be
/// built.
fn as_source(found: Found, file: &str, out: &str) -> String {
    match found.class {
        Class::Ext => format!(
            "extant mkfs {out} SIZE, then extant cp -a {file}:/. {out}:/ copies its files; cp copies \
             the image as it is"
        ),
        Class::FileSystem(Some(command)) => {
            format!("take its files out ({}), then --from DIR", with_file(command, file))
        }
        Class::FileSystem(None) => {
            format!("mount it (mount -o ro {file} DIR, as root), then --from DIR")
        }
        Class::Volume => "open the volume, mount what is in it, then --from DIR".into(),
        Class::PartitionTable => format!(
            "extant extract --partition N {file} DIR takes the files of an ext4 partition out; \
             then --from DIR"
        ),
        Class::DiskImage(format) => format!(
            "qemu-img convert -f {format} -O raw {file} disk.raw makes a disk of it that extant \
             reads: extant info disk.raw"
        ),
        Class::Packed(command) => {
            format!(
                "unpack it on the way: {} | extant build {out} --from -",
                with_file(command, file)
            )
        }
        Class::Archive(command) => {
            format!("unpack it first ({}), then --from DIR", with_file(command, file))
        }
        Class::ExtJournal | Class::Tar | Class::Other => SOURCES.into(),
    }
}

/// Names what was given as a source of `build`, and says how to make one of it.
pub(crate) fn no_source(error: SourceError, from: &std::ffi::OsStr, out: &str) -> Failure {
    let file = escape(from.as_encoded_bytes());
    let hint = match &error {
        SourceError::NotTar { found: Some(found), packed: None, .. } => {
            Some(as_source(*found, &file, out))
        }
        SourceError::NotTar { found: Some(found), packed: Some(program), .. } => {
            let then = as_source(*found, "UNPACKED", out);
            Some(format!("unpack it first ({program} -dc {file} > UNPACKED); then {then}"))
        }
        SourceError::NotTar { found: None, .. } => {
            Some(format!("{SOURCES}; extant mkfs {out} SIZE makes an empty file system"))
        }
        SourceError::Io { cause, doing: "open", .. }
            if cause.kind() == std::io::ErrorKind::NotFound =>
        {
            match split_place(from) {
                Some((image, path)) if image.exists() => {
                    let (image, path) = (image.display(), escape(&path));
                    Some(format!(
                        "a path in an image is no source: extant extract {image}:{path} DIR, then \
                         --from DIR; or extant cp -a {image}:{path} {out}:/ into an image that exists"
                    ))
                }
                _ => Some(format!("there is no such file or directory; {SOURCES}")),
            }
        }
        SourceError::Image(OciError { advice, .. }) => advice.clone(),
        SourceError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => None,
        _ => None,
    };
    let failure = Failure::from(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Returns what to do with `file`, which holds `found` and no ext2, ext3 or ext4 file system.
pub(crate) fn as_image(found: Found, file: &str) -> String {
    match found.class {
        Class::Tar => format!("extant build OUT --from {file} makes an image of it"),
        Class::Packed(command) => {
            let command = with_file(command, file);
            format!(
                "unpack it first: {command} > IMG; of a tar archive, extant build makes an image"
            )
        }
        Class::DiskImage(format) => {
            format!(
                "qemu-img convert -f {format} -O raw {file} disk.raw; then extant info disk.raw"
            )
        }
        Class::Archive(command) => {
            let command = with_file(command, file);
            format!("unpack it ({command}); extant build OUT --from DIR makes an image of that")
        }
        Class::FileSystem(Some(command)) => {
            let command = with_file(command, file);
            format!("extant is for ext2, ext3 and ext4; {command} takes its files out")
        }
        Class::FileSystem(None) => {
            "extant is for ext2, ext3 and ext4; the kernel may know this one (mount, as root)"
                .into()
        }
        Class::Volume => {
            "there may be an ext4 file system in it: open the volume, and give its device".into()
        }
        Class::PartitionTable => "extant partitions are given with --partition N".into(),
        Class::ExtJournal => format!(
            "give the file system's own device, and this one as its journal: extant check --journal-device {file} IMG"
        ),
        Class::Ext | Class::Other => {
            format!(
                "extant mkfs IMG SIZE and extant build IMG --from DIR make images; file {file} \
                     tells more"
            )
        }
    }
}

/// Says how a path in an image is written, where `given` looks as if one was meant: `IMG:PATH` or
/// `IMG/PATH` with an image that exists.
pub(crate) fn meant_path(given: &std::ffi::OsStr) -> Option<String> {
    let bytes = given.as_encoded_bytes();
    let is_image = |name: &[u8]| {
        let name = Path::new(std::ffi::OsStr::new(std::str::from_utf8(name).ok()?));
        let meta = name.metadata().ok()?;
        use std::os::unix::fs::FileTypeExt;
        (meta.is_file() || meta.file_type().is_block_device()).then_some(())
    };
    let cuts = (1..bytes.len()).filter(|at| matches!(bytes.get(*at), Some(b':' | b'/')));
    for at in cuts {
        let (image, path) = (bytes.get(..at)?, bytes.get(at + 1..)?);
        if is_image(image).is_some() {
            let path = path.strip_prefix(b"/").unwrap_or(path);
            let (image, path) = (escape(image), escape(path));
            return Some(format!("paths in an image are IMG:/PATH: {image}:/{path}"));
        }
    }
    None
}
