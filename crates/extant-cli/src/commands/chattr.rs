//! `extant chattr`: change inode flags and projects.

use std::ffi::OsString;

use clap::Args;
use extant::{FileKind, FsError, Inode, InodeFlags, SetAttributes};

use crate::edit::{EditArgs, Session, edit_each};
use crate::exit::{Exit, Failure, Result};
use crate::flags::{FlagChange, is_letter};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant chattr +i root.img:/etc/machine-id\n  extant chattr -R -ia root.img:/var\n  extant chattr -p 7 +P root.img:/home/user\n";

/// Change flags of files in an image
///
/// Letters as chattr(1) of e2fsprogs has them: a append only, A no atime, c C compress (ext4
/// ignores it), d no dump, D synchronous directory, F case folding of an empty directory, i
/// immutable, j data journalled, m no compression, P project inherited, s u secure deletion,
/// undelete (ext4 ignores both), S synchronous, t no tails, T top of hierarchies, x DAX. What
/// lsattr shows besides is not for changing. Each file is one change, and made even if another one
/// fails.
#[derive(Args, Debug)]
pub(crate) struct ChattrArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Directories with all that is in them; symbolic links are left alone
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Set the project
    #[arg(short = 'p', long, value_name = "ID")]
    project: Option<u32>,
    /// The same as -LETTERS
    #[arg(long, value_name = "LETTERS")]
    remove: Vec<String>,
    /// +LETTERS, -LETTERS or =LETTERS, and then the files
    #[arg(value_name = "CHANGE… IMG:/PATH", required = true)]
    words: Vec<OsString>,
}

/// Turns `-ia` into an option that a parser of options understands.
pub(crate) fn named_removal(arg: OsString) -> OsString {
    let letters = arg.to_str().and_then(|arg| arg.strip_prefix('-')).unwrap_or("");
    match !letters.is_empty() && letters.chars().all(is_letter) {
        true => format!("--remove={letters}").into(),
        false => arg,
    }
}

/// Runs the command.
pub(crate) fn run(args: &ChattrArgs) -> Result<Exit> {
    let is_change = |word: &OsString| word.to_str().is_some_and(|w| w.starts_with(['+', '=']));
    let count = args.words.iter().take_while(|word| is_change(word)).count();
    let (words, targets) = args.words.split_at(count);
    let mut change = FlagChange::default();
    for word in words.iter().filter_map(|word| word.to_str()) {
        change.parse_word(word).map_err(Failure::usage)?;
    }
    for letters in &args.remove {
        change.parse_word(&format!("-{letters}")).map_err(Failure::usage)?;
    }
    change.check().map_err(Failure::usage)?;
    if words.is_empty() && args.remove.is_empty() && args.project.is_none() {
        return Err(Failure::usage("nothing to do: give +LETTERS, -LETTERS, =LETTERS or -p ID"));
    }
    if targets.is_empty() {
        return Err(Failure::usage("no files: give IMG:/PATH"));
    }
    edit_each(&args.edit, targets, |session, path| {
        if !args.recursive {
            let inode = session.find(path, false)?;
            return apply(args, change, session, path, &inode);
        }
        session.walk(path, false, |session, path, inode| match has_flags(inode) {
            true => apply(args, change, session, path, inode),
            false => Ok(()),
        })
    })
}

/// Flags are for files and directories.
pub(crate) fn has_flags(inode: &Inode) -> bool {
    matches!(inode.kind(), FileKind::Regular | FileKind::Directory)
}

fn apply(
    args: &ChattrArgs,
    change: FlagChange,
    session: &Session<'_>,
    path: &[u8],
    inode: &Inode,
) -> Result<()> {
    let label = session.label(path);
    if !has_flags(inode) {
        let message = format!("{label}: only files and directories have flags");
        return Err(Failure::new(Exit::NotFound, message));
    }
    let old = inode.metadata().flags;
    let flags = change
        .apply(old)
        .map_err(|why| Failure::new(Exit::Unsupported, format!("{label}: {why}")))?;
    let set = |changes: SetAttributes| session.at(path, inode.set_attributes(&changes));
    let flags_only = SetAttributes::new().flags(flags);
    let Some(project) = args.project else { return set(flags_only) };
    let frozen = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    if !old.intersects(frozen) {
        return set(flags_only.project(project));
    }
    // The flag that forbids everything else has to go first.
    if flags.intersects(frozen) {
        let what = "it is immutable or append-only";
        return Err(session.failure(path, FsError::NotPermitted { ino: inode.ino(), what }));
    }
    set(flags_only)?;
    set(SetAttributes::new().project(project))
}
