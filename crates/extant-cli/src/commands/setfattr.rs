//! `extant setfattr`: set and remove extended attributes.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{ArgAction, Args};
use extant::{FsError, XattrMode};

use crate::edit::{EditArgs, Session, edit_each, join, restore_each};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::stdio;
use crate::text::escape;
use crate::xattr_text::{decode, unescape_name};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant setfattr -n user.origin -v 'build 7' root.img:/etc/motd\n  extant setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 root.img:/bin/ping\n  extant setfattr -x user.origin root.img:/etc/motd\n  extant getfattr -dR -m - old.img | extant setfattr --restore - new.img\n";

/// Longest file that --restore reads, in bytes.
const RESTORE_BYTES_MAX: u64 = 256 << 20;

/// Set extended attributes of files in an image, or remove them
///
/// VALUE is text, hexadecimal after 0x, or base 64 after 0s; text may be in double quotes, and \\,
/// \" and \nnn (octal) in it are escapes. A symbolic link is followed unless -h is given. Each file
/// is one change, and made even if another one fails.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct SetfattrArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Set this attribute, with its namespace: user.comment
    #[arg(short = 'n', long, value_name = "NAME")]
    name: Option<OsString>,
    /// To this value; an empty one when left out
    #[arg(short = 'v', long, value_name = "VALUE", requires = "name", allow_hyphen_values = true)]
    value: Option<OsString>,
    /// Remove this attribute
    #[arg(short = 'x', long, value_name = "NAME", conflicts_with = "name")]
    remove: Option<OsString>,
    /// Set what this file says (- for standard input), as getfattr -d writes it; paths in it are
    /// below IMG:/PATH
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "remove"])]
    restore: Option<PathBuf>,
    /// Change a symbolic link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Runs the command.
pub(crate) fn run(args: &SetfattrArgs) -> Result<Exit> {
    if let Some(file) = &args.restore {
        let files = parse_dump(&read_input(file)?).map_err(Failure::usage)?;
        return restore_each(&args.edit, &args.targets, &files, |session, path, file| {
            restore(args, session, path, file)
        });
    }
    let (name, value) = match (&args.name, &args.remove) {
        (Some(name), _) => {
            let value = args.value.as_deref().unwrap_or(OsStr::new("")).as_bytes();
            (name, Some(decode(value).map_err(|why| Failure::usage(format!("-v: {why}")))?))
        }
        (None, Some(name)) => (name, None),
        (None, None) => {
            return Err(Failure::usage("nothing to do: give -n NAME, -x NAME or --restore FILE"));
        }
    };
    edit_each(&args.edit, &args.targets, |session, path| {
        let inode = session.find(path, !args.no_dereference)?;
        let result = match &value {
            Some(value) => inode.set_xattr(name.as_bytes(), value, XattrMode::Any),
            None => inode.remove_xattr(name.as_bytes()),
        };
        result.map_err(|error| attribute_failure(session, path, name.as_bytes(), error))
    })
}

/// Names the attribute too.
pub(crate) fn attribute_failure(
    session: &Session<'_>,
    path: &[u8],
    name: &[u8],
    error: FsError,
) -> Failure {
    let label = session.label(path);
    if let FsError::NoAttribute { .. } = error {
        let message = format!("{label}: no attribute {}", escape(name));
        return Failure::new(Exit::NotFound, message);
    }
    let failure = session.failure(path, error);
    let rest = failure.message.strip_prefix(&format!("{label}: ")).unwrap_or(&failure.message);
    Failure { message: format!("{label}: {}: {rest}", escape(name)), ..failure }
}

/// All of a file of the host, or of standard input.
pub(crate) fn read_input(file: &std::path::Path) -> Result<Vec<u8>> {
    let name = escape(file.as_os_str().as_bytes());
    let failed = |error: std::io::Error| Failure::caused(io_exit(&error), &name, &error);
    let mut input: Box<dyn Read> = match file.as_os_str() == "-" {
        true => {
            stdio::check_input().map_err(failed)?;
            Box::new(std::io::stdin())
        }
        false => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    input.by_ref().take(RESTORE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > RESTORE_BYTES_MAX {
        return Err(Failure::usage(format!("{name}: longer than {RESTORE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Attributes of one file, as `getfattr -d` wrote them.
#[derive(Debug, PartialEq, Eq)]
struct Dumped {
    path: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn parse_dump(bytes: &[u8]) -> Result<Vec<Dumped>, String> {
    let mut files: Vec<Dumped> = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        if let Some(path) = line.strip_prefix(b"# file: ") {
            files.push(Dumped { path: unescape_name(path), xattrs: Vec::new() });
        } else if !line.is_empty() && !line.starts_with(b"#") {
            let Some(file) = files.last_mut() else {
                return Err(format!("line {number}: no `# file: PATH` before it"));
            };
            let equals = line.iter().position(|byte| *byte == b'=');
            let (name, value) = match equals.and_then(|at| line.split_at_checked(at)) {
                Some((name, value)) => (name, decode(value.get(1..).unwrap_or(b""))),
                None => (line, Ok(Vec::new())),
            };
            let value = value.map_err(|why| format!("line {number}: {why}"))?;
            file.xattrs.push((unescape_name(name), value));
        }
    }
    Ok(files)
}

fn restore(args: &SetfattrArgs, session: &Session<'_>, base: &[u8], file: &Dumped) -> Result<()> {
    let path = join(base, file.path.strip_prefix(b"/").unwrap_or(&file.path));
    let inode = session.find(&path, !args.no_dereference)?;
    for (name, value) in &file.xattrs {
        inode
            .set_xattr(name, value, XattrMode::Any)
            .map_err(|error| attribute_failure(session, &path, name, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_read_back() {
        let text = b"# file: a\\012b\nuser.x=\"1\"\nuser.y=0x0203\nuser.z\n\n# file: c\n";
        let files = parse_dump(text).unwrap();
        assert_eq!(files.len(), 2);
        assert_eq!(files[0].path, b"a\nb");
        let xattrs = &files[0].xattrs;
        assert_eq!(xattrs[0], (b"user.x".to_vec(), b"1".to_vec()));
        assert_eq!(xattrs[1], (b"user.y".to_vec(), vec![2, 3]));
        assert_eq!(xattrs[2], (b"user.z".to_vec(), vec![]));
        assert!(parse_dump(b"user.x=1").unwrap_err().contains("line 1"));
        assert!(parse_dump(b"# file: a\nuser.x=0x1").unwrap_err().contains("line 2"));
    }
}
