//! `extant getfacl`: show access control lists.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use extant::{Acl, AclKind, Inode};
use serde_json::{Map, Value, json};

use crate::accounts::Names;
use crate::acl_text::{Effective, entries_text, lines};
use crate::commands::getfattr::relative;
use crate::edit::{Session, read_each};
use crate::exit::{Exit, Result};
use crate::image::ReadArgs;
use crate::output::{Out, put_bytes};
use crate::text::escape;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str =
    "Examples:\n  extant getfacl root.img:/srv/www\n  extant getfacl -Rs root.img:/ > acls\n";

/// Show owners, permissions and access control lists of files of an image
///
/// In the form of getfacl(1), which setfacl --restore reads. Names are those of the image's
/// /etc/passwd and /etc/group. Symbolic links are followed; with -R those inside are left out.
#[derive(Args, Debug)]
pub(crate) struct GetfaclArgs {
    #[command(flatten)]
    how: ReadArgs,
    /// The access list only
    #[arg(short = 'a', long, conflicts_with = "default")]
    access: bool,
    /// The default list only
    #[arg(short = 'd', long)]
    default: bool,
    /// Without the lines that begin with #
    #[arg(short = 'c', long)]
    omit_header: bool,
    /// Say what is effective of every entry that the mask limits
    #[arg(short = 'e', long, conflicts_with = "no_effective")]
    all_effective: bool,
    /// Never say what is effective
    #[arg(short = 'E', long)]
    no_effective: bool,
    /// Leave out files that have permissions only
    #[arg(short = 's', long)]
    skip_base: bool,
    /// Owners as numbers
    #[arg(short = 'n', long)]
    numeric: bool,
    /// Directories with all that is in them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// One JSON object on each line, owners as numbers
    #[arg(long)]
    json: bool,
    /// The files
    #[arg(value_name = "IMG[:/PATH]", required = true)]
    targets: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &GetfaclArgs) -> Result<Exit> {
    let mut out = Out::new();
    let exit = read_each(
        &args.targets,
        |file| args.how.open(file),
        |session, path| {
            let names = Names::load(&session.fs, args.numeric || args.json);
            if !args.recursive {
                let inode = session.find(path, true)?;
                return show(args, session, &names, &mut out, path, &inode);
            }
            session.walk(path, true, |session, path, inode| match inode.is_symlink() {
                true => Ok(()),
                false => show(args, session, &names, &mut out, path, inode),
            })
        },
    )?;
    out.flush()?;
    Ok(exit)
}

fn show(
    args: &GetfaclArgs,
    session: &Session<'_>,
    names: &Names,
    out: &mut Out,
    path: &[u8],
    inode: &Inode,
) -> Result<()> {
    let meta = inode.metadata();
    let stored = session.at(path, inode.acl(AclKind::Access))?;
    let default = match meta.is_dir() {
        true => session.at(path, inode.acl(AclKind::Default))?,
        false => None,
    };
    if args.skip_base && stored.is_none() && default.is_none() {
        return Ok(());
    }
    let access = stored.unwrap_or_else(|| Acl::from_mode(meta.permissions));
    let (access, default) = ((!args.default).then_some(access), default.filter(|_| !args.access));
    if args.json {
        let mut object = Map::new();
        put_bytes(&mut object, "path", path);
        object.insert("uid".into(), meta.uid.into());
        object.insert("gid".into(), meta.gid.into());
        object.insert("mode".into(), format!("{:04o}", meta.permissions).into());
        let lists = [("access", access), ("default", default)];
        let lists: Map<String, Value> = lists
            .into_iter()
            .filter_map(|(name, acl)| Some((name.to_owned(), json!(entries_text(&acl?)))))
            .collect();
        object.insert("acl".into(), lists.into());
        out.json(&Value::Object(object))?;
        return Ok(());
    }
    if !args.omit_header {
        let shown = |name: Option<&[u8]>, id: u32| match name {
            Some(name) => escape(name),
            None => id.to_string(),
        };
        writeln!(out, "# file: {}", relative(path))?;
        writeln!(out, "# owner: {}", shown(names.user(meta.uid), meta.uid))?;
        writeln!(out, "# group: {}", shown(names.group(meta.gid), meta.gid))?;
        if meta.permissions & 0o7000 != 0 {
            let bit = |mask, letter| if meta.permissions & mask != 0 { letter } else { '-' };
            let (u, g, t) = (bit(0o4000, 's'), bit(0o2000, 's'), bit(0o1000, 't'));
            writeln!(out, "# flags: {u}{g}{t}")?;
        }
    }
    let effective = match () {
        () if args.all_effective => Effective::All,
        () if args.no_effective => Effective::Never,
        () => Effective::Limited,
    };
    // A default list shown alone needs no word to tell it from the other.
    let prefix = if args.default { "" } else { "default:" };
    for (acl, prefix) in [(access, ""), (default, prefix)] {
        for line in acl.iter().flat_map(|acl| lines(acl, prefix, names, effective)) {
            writeln!(out, "{line}")?;
        }
    }
    writeln!(out)?;
    Ok(())
}
