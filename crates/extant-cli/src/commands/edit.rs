//! `extant edit`: a file through an editor.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use extant::{FsError, Inode, Timestamp};
use signal_hook::consts::{SIGINT, SIGQUIT};

use crate::commands::touch::end_of_links;
use crate::copying::Trouble;
use crate::copying::content::{self, Content, Fault, Mover, Sink, Sparse};
use crate::edit::{EditArgs, NewArgs, Session, Tally, edit_one, last_name};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::split;
use crate::output::complain;
use crate::replace;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant edit root.img:/etc/fstab\n  EDITOR='sed -i s/sda/vda/' extant edit root.img:/etc/fstab\n";

/// Edit a file of an image
///
/// A copy that only the user can read is given to $VISUAL, or $EDITOR, or vi. When the editor ends well
/// and has changed it, the file is replaced all at once; owner, mode, flags and attributes stay. The
/// image is not open meanwhile: if the file was changed by somebody else, or cannot be put back, the
/// copy is left and named. A file that is missing is made, with 0644, if something is saved.
#[derive(Args, Debug)]
pub(crate) struct EditorArgs {
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    new: NewArgs,
    /// The file
    #[arg(value_name = "IMG:/PATH")]
    target: OsString,
}

/// What tells one state of a file from another.
type State = Option<(extant::Ino, u32, u64, Timestamp, Timestamp)>;

fn state(inode: Option<&Inode>) -> State {
    inode.map(|inode| {
        let meta = inode.metadata();
        (meta.ino, meta.generation, meta.size, meta.mtime, meta.ctime)
    })
}

/// A directory of the host with the copy, for nobody else.
struct Draft {
    dir: PathBuf,
    file: PathBuf,
}

impl Draft {
    /// `name` tells the editor what kind of file it is.
    fn new(name: &[u8]) -> Result<Draft> {
        let mut random = [0; 8];
        extant_sync::os_random(&mut random)
            .map_err(|error| Failure::caused(Exit::Internal, "", &error))?;
        let unique = format!("extant-edit-{:016x}", u64::from_le_bytes(random));
        let dir = std::env::temp_dir().join(unique);
        // Fails if anything is there, a link too.
        DirBuilder::new().mode(0o700).create(&dir).map_err(|error| unmade(&dir, &error))?;
        let name = if name.is_empty() { b"file" } else { name };
        let file = dir.join(OsStr::from_bytes(name));
        Ok(Draft { dir, file })
    }

    fn create(&self) -> Result<File> {
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        options.open(&self.file).map_err(|error| unmade(&self.file, &error))
    }

    /// Removes it, with whatever else the editor left there.
    fn remove(self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            complain(&format!("note: {} is left over: {error}", self.dir.display()));
        }
    }

    /// The failure, which says where the text is.
    fn kept(self, failure: Failure) -> Failure {
        let hint = format!("what the editor saved is in {}", self.file.display());
        Failure { hint: None, ..failure }.hint(hint)
    }
}

fn unmade(path: &Path, error: &std::io::Error) -> Failure {
    Failure::caused(io_exit(error), &format!("cannot create {}", path.display()), error)
        .hint("set TMPDIR to a place for temporary files")
}

/// Runs the command.
pub(crate) fn run(args: &EditorArgs) -> Result<Exit> {
    let (file, path) = split(&args.target);
    let (draft, before) = take_out(args, &file, &path)?;
    if let Err(failure) = run_editor(&draft) {
        draft.remove();
        return Err(failure);
    }
    let saved = match changed(args, &file, &path, &draft, before) {
        Ok(Some(saved)) => saved,
        Ok(None) => {
            draft.remove();
            return Ok(Exit::Success);
        }
        Err(failure) => return Err(draft.kept(failure)),
    };
    let mut failed = None;
    let exit = edit_one(&args.edit, &file, |session| {
        if let Err(failure) = put_back(args, session, &path, before, &saved) {
            failed = Some(failure);
        } else {
            session.tally.done();
        }
        Ok(())
    });
    match (failed, exit) {
        (Some(failure), _) | (None, Err(failure)) => Err(draft.kept(failure)),
        (None, Ok(exit)) if exit == Exit::Success => {
            draft.remove();
            Ok(exit)
        }
        (None, Ok(exit)) => {
            complain(&format!("note: what the editor saved is in {}", draft.file.display()));
            Ok(exit)
        }
    }
}

/// Looks at the file before or after the editor, without opening the image for changes.
fn look<T>(
    args: &EditorArgs,
    file: &Path,
    run: impl FnOnce(&Session<'_>) -> Result<T>,
) -> Result<T> {
    let (fs, name) = args.edit.open_read_only(file)?;
    let mut tally = Tally::default();
    run(&Session { fs, name, tally: &mut tally })
}

/// Copies the file out; one that is missing is empty.
fn take_out(args: &EditorArgs, file: &Path, path: &[u8]) -> Result<(Draft, State)> {
    look(args, file, |session| {
        let inode = session.look(path, true)?;
        if let Some(inode) = &inode {
            replace::check(session, path, inode)?;
        } else {
            // The directory at least has to be there.
            end_of_links(session, path)
                .and_then(|path| session.find(crate::edit::parent(&path), true))?;
        }
        let draft = Draft::new(last_name(path))?;
        let copied = match &inode {
            None => Ok(()),
            Some(inode) => copy_out(session, path, inode, &draft),
        };
        match copied {
            Ok(()) => Ok((draft, state(inode.as_ref()))),
            Err(failure) => {
                draft.remove();
                Err(failure)
            }
        }
    })
}

fn copy_out(session: &Session<'_>, path: &[u8], inode: &Inode, draft: &Draft) -> Result<()> {
    let content = Content::Image { inode: inode.clone(), writable: false };
    let sink = Sink::Host(draft.create()?.into());
    Mover::silent().copy(&content, &sink, Sparse::Auto).map_err(|fault| match fault {
        Fault::From(trouble) => trouble.about(Some(&session.name), path),
        Fault::To(trouble) => trouble.about(None, draft.file.as_os_str().as_bytes()),
        Fault::Half(_) => Trouble::Fs(FsError::ReadOnly).about(Some(&session.name), path),
    })
}

/// Runs the editor and waits for it.
fn run_editor(draft: &Draft) -> Result<()> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".into());
    // ^C is for the editor: without a handler it would end this process and leave the copy.
    for signal in [SIGINT, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| Failure::caused(Exit::Internal, "cannot handle signals", &error))?;
    }
    // By the shell: the variable may hold options and quotes.
    let mut line = editor.clone();
    line.push(" \"$1\"");
    let status = Command::new("sh").arg("-c").arg(line).arg("sh").arg(&draft.file).status();
    let name = editor.display();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let message = format!("the editor {name} ended with {status}: nothing was changed");
            let failure = Failure::new(Exit::Refused, message);
            // What a shell says of a program that is not there, or is none.
            Err(match status.code() {
                Some(126 | 127) => {
                    failure.hint("set EDITOR or VISUAL to an editor that is installed")
                }
                _ => failure,
            })
        }
        Err(error) => {
            Err(Failure::caused(Exit::Io, &format!("cannot run the editor {name}"), &error))
        }
    }
}

/// Returns what the editor saved; `None` when that is what was there.
fn changed(
    args: &EditorArgs,
    file: &Path,
    path: &[u8],
    draft: &Draft,
    before: State,
) -> Result<Option<Content>> {
    let saved = match File::open(&draft.file) {
        Ok(saved) => saved,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let what = format!("cannot read {}", draft.file.display());
            return Err(Failure::caused(io_exit(&error), &what, &error));
        }
    };
    let failed = |error: &std::io::Error| {
        Failure::caused(io_exit(error), &format!("cannot read {}", draft.file.display()), error)
    };
    let len = saved.metadata().map_err(|error| failed(&error))?.len();
    let saved = Content::Host { file: saved, len, is_stream: false };
    let Some((_, _, size, ..)) = before else { return Ok(Some(saved)) };
    if len != size {
        return Ok(Some(saved));
    }
    let same = look(args, file, |session| {
        let Some(inode) = session.look(path, true)? else { return Ok(false) };
        let mut ours = vec![0; content::CHUNK_BYTES];
        let mut theirs = vec![0; content::CHUNK_BYTES];
        let mut at = 0;
        loop {
            let old = session.at(path, inode.read_at(&mut ours, at))?;
            let new = saved.read_at(at, &mut theirs);
            let new =
                new.map_err(|trouble| trouble.about(None, draft.file.as_os_str().as_bytes()))?;
            if ours[..old] != theirs[..new] {
                return Ok(false);
            }
            if old == 0 {
                return Ok(true);
            }
            at += old as u64;
        }
    })?;
    Ok((!same).then_some(saved))
}

/// Replaces the file, if it is as it was.
fn put_back(
    args: &EditorArgs,
    session: &Session<'_>,
    path: &[u8],
    before: State,
    saved: &Content,
) -> Result<()> {
    let inode = session.look(path, true)?;
    if state(inode.as_ref()) != before {
        let message = "it was changed by somebody else meanwhile, and is left as it is";
        return Err(Failure::new(Exit::Refused, format!("{}: {message}", session.label(path))));
    }
    let path = match &inode {
        Some(_) => session.at(path, session.fs.canonicalize(path))?,
        None => end_of_links(session, path)?,
    };
    replace::replace(session, &path, inode.as_ref(), (&args.new, None), saved)
}
