//! `extant setfacl`: change access control lists.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use extant::{Acl, AclKind, Inode, SetAttributes};

use crate::accounts::{Account, Names, OwnerSpec};
use crate::acl_text::{AclChange, EntrySpec, Lists, parse_entries, parse_removals};
use crate::commands::setfattr::read_input;
use crate::edit::{EditArgs, Session, edit_each, join, restore_each};
use crate::exit::{Exit, Failure, Result};
use crate::xattr_text::unescape_name;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant setfacl -m u:1000:rwX,g:adm:r root.img:/srv/www\n  extant setfacl -R -m d:u:1000:rwX root.img:/srv/www\n  extant setfacl -x u:1000 root.img:/srv/www\n  extant setfacl -b root.img:/srv/www\n  extant getfacl -R old.img | extant setfacl --restore - new.img\n";

/// Change access control lists of files in an image
///
/// Entries are as setfacl(1) has them: u:USER:rwx, g:GROUP:rwx, m::rwx, o::rwx, with commas
/// between, and d: in front of those of the default list. Names are looked up in the image; numbers
/// work always. Of several options, --set, -b and -k count first, then -x, then -m. Permissions
/// follow the list. Symbolic links are followed; with -R those inside are left alone. Each file is
/// one change, and made even if another one fails.
#[derive(Args, Debug)]
pub(crate) struct SetfaclArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Add these entries or change them
    #[arg(short = 'm', long, value_name = "ENTRIES", value_parser = Entries::parse)]
    modify: Vec<Entries>,
    /// Add the entries that this file has (- for standard input)
    #[arg(short = 'M', long, value_name = "FILE")]
    modify_file: Option<PathBuf>,
    /// Remove these entries, given without permissions
    #[arg(short = 'x', long, value_name = "ENTRIES", value_parser = Entries::parse_removals)]
    remove: Vec<Entries>,
    /// Entries in place of all there are
    #[arg(long, value_name = "ENTRIES", value_parser = Entries::parse, conflicts_with = "strip")]
    set: Vec<Entries>,
    /// Remove all but the permissions
    #[arg(short = 'b', long = "remove-all")]
    strip: bool,
    /// Remove the default list
    #[arg(short = 'k', long)]
    remove_default: bool,
    /// All entries given are of the default list
    #[arg(short = 'd', long)]
    default: bool,
    /// Leave the mask as it is
    #[arg(short = 'n', long)]
    no_mask: bool,
    /// Directories with all that is in them
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Set owners, permissions and lists to what this file says (- for standard input), as getfacl
    /// writes it; paths in it are below IMG:/PATH
    #[arg(long, value_name = "FILE", conflicts_with_all =
          ["modify", "modify_file", "remove", "set", "strip", "remove_default", "default",
           "no_mask", "recursive"])]
    restore: Option<PathBuf>,
    /// The files
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

/// The entries of one option.
#[derive(Clone, Debug)]
struct Entries(Vec<EntrySpec>);

impl Entries {
    fn parse(text: &str) -> Result<Entries, String> {
        parse_entries(text).map(Entries)
    }

    fn parse_removals(text: &str) -> Result<Entries, String> {
        parse_removals(text).map(Entries)
    }
}

/// A change with its names not yet looked up.
struct Wanted {
    change: AclChange,
    set: Option<Vec<EntrySpec>>,
    remove: Vec<EntrySpec>,
    modify: Vec<EntrySpec>,
}

impl Wanted {
    fn of(args: &SetfaclArgs) -> Result<Wanted> {
        let all = |options: &[Entries]| -> Vec<EntrySpec> {
            let mut entries: Vec<EntrySpec> =
                options.iter().flat_map(|option| option.0.iter().cloned()).collect();
            entries.iter_mut().for_each(|entry| entry.default |= args.default);
            entries
        };
        let mut modify = args.modify.clone();
        if let Some(file) = &args.modify_file {
            let bytes = read_input(file)?;
            let text = String::from_utf8_lossy(&bytes);
            modify.push(Entries::parse(&text).map_err(Failure::usage)?);
        }
        let wanted = Wanted {
            change: AclChange {
                strip: args.strip,
                drop_default: args.remove_default,
                keep_mask: args.no_mask,
                ..AclChange::default()
            },
            set: (!args.set.is_empty()).then(|| all(&args.set)),
            remove: all(&args.remove),
            modify: all(&modify),
        };
        let nothing = wanted.set.is_none()
            && wanted.remove.is_empty()
            && wanted.modify.is_empty()
            && !args.strip
            && !args.remove_default;
        if nothing {
            return Err(Failure::usage("nothing to do: give -m, -x, -b, -k, --set or --restore"));
        }
        Ok(wanted)
    }

    fn resolve(&self, session: &Session<'_>) -> Result<AclChange> {
        let set = self.set.as_deref().unwrap_or(&[]);
        let every = set.iter().chain(&self.remove).chain(&self.modify);
        let named = every.into_iter().any(EntrySpec::needs_names);
        let names = Names::load(&session.fs, !named);
        let resolve = |entries: &[EntrySpec]| -> Result<Vec<_>> {
            entries.iter().map(|entry| entry.resolve(&names)).collect()
        };
        Ok(AclChange {
            set: self.set.as_deref().map(resolve).transpose()?,
            remove: resolve(&self.remove)?,
            modify: resolve(&self.modify)?,
            ..self.change.clone()
        })
    }
}

/// Runs the command.
pub(crate) fn run(args: &SetfaclArgs) -> Result<Exit> {
    if let Some(file) = &args.restore {
        let files = parse_dump(&read_input(file)?).map_err(Failure::usage)?;
        return restore_each(&args.edit, &args.targets, &files, restore);
    }
    let wanted = Wanted::of(args)?;
    edit_each(&args.edit, &args.targets, |session, path| {
        let change = wanted.resolve(session)?;
        if !args.recursive {
            let inode = session.find(path, true)?;
            return apply(session, path, &inode, &change, false);
        }
        session.walk(path, true, |session, path, inode| match inode.is_symlink() {
            true => Ok(()),
            false => apply(session, path, inode, &change, true),
        })
    })
}

fn lists_of(session: &Session<'_>, path: &[u8], inode: &Inode) -> Result<Lists> {
    let access = session.at(path, inode.acl(AclKind::Access))?;
    let access = access.unwrap_or_else(|| Acl::from_mode(inode.metadata().permissions));
    let default = match inode.is_dir() {
        true => session.at(path, inode.acl(AclKind::Default))?,
        false => None,
    };
    Ok(Lists { access, default })
}

fn apply(
    session: &Session<'_>,
    path: &[u8],
    inode: &Inode,
    change: &AclChange,
    lenient: bool,
) -> Result<()> {
    let before = lists_of(session, path, inode)?;
    let after = change
        .apply(&before, inode.is_dir(), lenient)
        .map_err(|failure| failure.about(&session.label(path)))?;
    store(session, path, inode, &before, &after)
}

/// Stores both lists, or neither.
fn store(
    session: &Session<'_>,
    path: &[u8],
    inode: &Inode,
    before: &Lists,
    after: &Lists,
) -> Result<()> {
    if before.access != after.access {
        session.at(path, inode.set_acl(AclKind::Access, Some(&after.access)))?;
    }
    if before.default == after.default {
        return Ok(());
    }
    inode.set_acl(AclKind::Default, after.default.as_ref()).map_err(|error| {
        let failure = session.failure(path, error);
        if before.access == after.access {
            return failure;
        }
        match inode.set_acl(AclKind::Access, Some(&before.access)) {
            Ok(()) => failure,
            Err(_) => failure.hint("the access list is changed, the default list is not"),
        }
    })
}

/// A file as `getfacl` wrote it.
#[derive(Debug, Default)]
struct Dumped {
    path: Vec<u8>,
    user: Option<Account>,
    group: Option<Account>,
    /// Set-id and sticky bits.
    special: u16,
    entries: Vec<EntrySpec>,
}

fn parse_dump(bytes: &[u8]) -> Result<Vec<Dumped>, String> {
    let mut files: Vec<Dumped> = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let at = |why: String| format!("line {}: {why}", index + 1);
        if let Some(path) = line.strip_prefix(b"# file: ") {
            files.push(Dumped { path: unescape_name(path), ..Dumped::default() });
            continue;
        }
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        let Some(file) = files.last_mut() else {
            return Err(at("no `# file: PATH` before it".into()));
        };
        if let Some(user) = text.strip_prefix("# owner: ") {
            file.user = Some(Account::parse(user).map_err(at)?);
        } else if let Some(group) = text.strip_prefix("# group: ") {
            file.group = Some(Account::parse(group).map_err(at)?);
        } else if let Some(flags) = text.strip_prefix("# flags: ") {
            let bits = [0o4000, 0o2000, 0o1000].into_iter().zip(flags.bytes());
            file.special = bits.filter(|(_, letter)| *letter != b'-').map(|(bit, _)| bit).sum();
        } else {
            file.entries.extend(parse_entries(text).map_err(at)?);
        }
    }
    Ok(files)
}

/// Sets owners, permissions and lists of one file.
fn restore(session: &Session<'_>, base: &[u8], file: &Dumped) -> Result<()> {
    let path = join(base, file.path.strip_prefix(b"/").unwrap_or(&file.path));
    let inode = session.find(&path, true)?;
    let names = Names::load(&session.fs, false);
    let entries: Vec<_> =
        file.entries.iter().map(|entry| entry.resolve(&names)).collect::<Result<_>>()?;
    let change = AclChange { set: Some(entries), drop_default: true, ..AclChange::default() };
    let before = lists_of(session, &path, &inode)?;
    let after = change
        .apply(&before, inode.is_dir(), true)
        .map_err(|failure| failure.about(&session.label(&path)))?;
    let owner = OwnerSpec::of(file.user.clone(), file.group.clone());
    let (uid, gid) = owner.resolve(&session.fs)?;
    let (mode, _) = after.access.equivalent_mode();
    let owners = SetAttributes::new().owner(uid, gid).permissions(mode | file.special);
    session.at(&path, inode.set_attributes(&owners))?;
    let now = lists_of(session, &path, &inode)?;
    store(session, &path, &inode, &now, &after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_read_back() {
        let text = b"# file: a\\012b\n# owner: web\n# group: 4\n# flags: -st\nuser::rwx\n\
            user:33:rwx\t\t#effective:r-x\ngroup::r-x\nmask::r-x\nother::---\ndefault:user::rwx\n\n";
        let files = parse_dump(text).unwrap();
        let [file] = files.as_slice() else { panic!("{files:?}") };
        assert_eq!((file.path.as_slice(), file.special), (&b"a\nb"[..], 0o3000));
        assert_eq!(file.user, Some(Account::Name("web".into())));
        assert_eq!(file.group, Some(Account::Id(4)));
        assert_eq!(file.entries.len(), 6);
        assert!(parse_dump(b"user::rwx\n").unwrap_err().contains("line 1"));
        assert!(parse_dump(b"# file: a\nuser::q\n").unwrap_err().contains("line 2"));
    }
}
