//! `extant getfattr`: show extended attributes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use clap::{ArgAction, Args};
use extant::{Inode, Xattr};
use regex_lite::Regex;
use serde_json::{Map, Value};

use crate::commands::setfattr::attribute_failure;
use crate::edit::{Session, read_each};
use crate::exit::{Exit, Failure, Result};
use crate::image::ReadArgs;
use crate::output::{Out, put_bytes, xattrs_json};
use crate::xattr_text::{Encoding, encode, escape_name};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant getfattr -d root.img:/etc/motd\n  extant getfattr -n security.capability -e hex root.img:/bin/ping\n  extant getfattr -R -d -m - root.img:/\n";

/// Show extended attributes of files of an image
///
/// The names of user attributes, or what -n, -m and -d ask for, in the form of getfattr(1), which
/// setfattr --restore reads; a zero byte at the end of a value is shown, which that one leaves out.
/// A symbolic link is followed unless -h or -R is given.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct GetfattrArgs {
    #[command(flatten)]
    how: ReadArgs,
    /// This attribute, with its value
    #[arg(short = 'n', long, value_name = "NAME")]
    name: Option<OsString>,
    /// Values too
    #[arg(short = 'd', long)]
    dump: bool,
    /// Attributes whose names match this regular expression; - for all
    #[arg(
        short = 'm',
        long = "match",
        value_name = "PATTERN",
        default_value = "^user\\.",
        allow_hyphen_values = true
    )]
    pattern: String,
    /// How values are written; text where they are printable, else base64, when left out
    #[arg(short = 'e', long, value_name = "HOW")]
    encoding: Option<Encoding>,
    /// Values and nothing else, as they are
    #[arg(long, conflicts_with_all = ["json", "encoding"])]
    only_values: bool,
    /// Directories with all that is in them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show those of a symbolic link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// One JSON object on each line, values included
    #[arg(long)]
    json: bool,
    /// The files
    #[arg(value_name = "IMG[:/PATH]", required = true)]
    targets: Vec<OsString>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Runs the command.
pub(crate) fn run(args: &GetfattrArgs) -> Result<Exit> {
    let pattern = match args.pattern.as_str() {
        "-" => None,
        pattern => Some(
            Regex::new(pattern)
                .map_err(|error| Failure::usage(format!("-m {pattern}: {error}")))?,
        ),
    };
    let mut out = Out::new();
    let exit = read_each(
        &args.targets,
        |file| args.how.open(file),
        |session, path| {
            if !args.recursive {
                let inode = session.find(path, !args.no_dereference)?;
                return show(args, pattern.as_ref(), session, &mut out, path, &inode);
            }
            session.walk(path, false, |session, path, inode| {
                show(args, pattern.as_ref(), session, &mut out, path, inode)
            })
        },
    )?;
    out.flush()?;
    Ok(exit)
}

fn show(
    args: &GetfattrArgs,
    pattern: Option<&Regex>,
    session: &Session<'_>,
    out: &mut Out,
    path: &[u8],
    inode: &Inode,
) -> Result<()> {
    let xattrs = match &args.name {
        Some(name) => {
            let name = name.as_bytes();
            let value =
                inode.xattr(name).map_err(|error| attribute_failure(session, path, name, error))?;
            vec![Xattr { name: name.to_vec(), value }]
        }
        None => {
            let mut xattrs = session.at(path, inode.xattrs())?;
            xattrs.retain(|xattr| {
                pattern.is_none_or(|wanted| wanted.is_match(&String::from_utf8_lossy(&xattr.name)))
            });
            xattrs.sort_by(|a, b| a.name.cmp(&b.name));
            xattrs
        }
    };
    if xattrs.is_empty() {
        return Ok(());
    }
    if args.json {
        out.json(&to_json(path, &xattrs))?;
        return Ok(());
    }
    if args.only_values {
        for xattr in &xattrs {
            out.write_all(&xattr.value)?;
        }
        return Ok(());
    }
    writeln!(out, "# file: {}", relative(path))?;
    for Xattr { name, value } in &xattrs {
        write!(out, "{}", escape_name(name, b"="))?;
        if args.dump || args.name.is_some() {
            write!(out, "=")?;
            out.name(&encode(value, args.encoding))?;
        }
        writeln!(out)?;
    }
    writeln!(out)?;
    Ok(())
}

/// A path as the tools of attributes and ACLs write it, below the root.
pub(crate) fn relative(path: &[u8]) -> String {
    let start = path.iter().take_while(|byte| **byte == b'/').count();
    match path.get(start..).unwrap_or(b"") {
        b"" => ".".into(),
        path => escape_name(path, b""),
    }
}

fn to_json(path: &[u8], xattrs: &[Xattr]) -> Value {
    let mut object = Map::new();
    put_bytes(&mut object, "path", path);
    object.insert("xattrs".into(), xattrs_json(xattrs));
    Value::Object(object)
}
