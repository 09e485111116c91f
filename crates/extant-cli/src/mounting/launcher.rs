//! What the user called: starts the keeper, and waits until the mount can be used.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::exit::{Exit, Failure, Result, is_refusal};
use crate::mounting::link::{Link, Word};
use crate::mounting::options::MountChoices;
use crate::mounting::{keeper, second, server};

/// Tells a child which part it plays.
const ROLE: &str = "EXTANT_MOUNT_ROLE";
const KEEPER: &str = "keeper";
const SERVER: &str = "server";

/// A mount to be made.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) image: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) choices: MountChoices,
}

/// Makes the mount, or plays the part in that that this process was started for.
pub(crate) fn run(request: &Request) -> Result<Exit> {
    match std::env::var_os(ROLE) {
        Some(role) if role == SERVER => server::run(request),
        Some(role) if role == KEEPER => keeper::daemon(request),
        Some(role) => Err(Failure::usage(format!("{ROLE} is set to {}", role.display()))),
        None => {
            look_for_null()?;
            match second::show(request)? {
                Some(exit) => Ok(exit),
                None if request.choices.foreground => keeper::foreground(request),
                None => launch(),
            }
        }
    }
}

/// The processes of a mount leave the terminal for `/dev/null`, and are started with it.
fn look_for_null() -> Result<()> {
    let what = "cannot open /dev/null";
    match File::options().read(true).write(true).open("/dev/null") {
        Ok(_) => Ok(()),
        Err(error) if is_refusal(&error) => Err(Failure::caused(Exit::Internal, what, &error)),
        Err(error) => Err(Failure::caused(Exit::Io, what, &error)
            .hint("a mount needs it: mknod -m 666 /dev/null c 1 3 makes it again")),
    }
}

fn launch() -> Result<Exit> {
    close_what_was_inherited();
    let (link, theirs) = Link::pair().map_err(|error| no_child(&error))?;
    let mut keeper = child(KEEPER).stdin(theirs).spawn().map_err(|error| no_child(&error))?;
    match link.hear() {
        Ok(Some(Word::Ready)) => Ok(Exit::Success),
        Ok(Some(Word::Failed(failure))) => {
            // It has said all; what is left is its end.
            let _ = keeper.wait();
            Err(failure)
        }
        Ok(_) => {
            let status = keeper.wait().map_err(|error| no_child(&error))?;
            let message = format!("the process that keeps the mount ended too early: {status}");
            Err(Failure::new(Exit::Internal, message))
        }
        Err(error) => Err(Failure::caused(Exit::Internal, "", &error)),
    }
}

/// Has the mount not inherit what a script or a supervisor had open: whoever reads such a pipe, or waits for such a
/// lock, would wait for the end of the mount. What an argument names stays.
fn close_what_was_inherited() {
    let named: Vec<i32> = std::env::args_os()
        .filter_map(|arg| {
            let arg = arg.into_string().ok()?;
            let number = arg.split_once("/dev/fd/").or_else(|| arg.split_once("/self/fd/"))?.1;
            let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
            number.get(..end)?.parse().ok()
        })
        .collect();
    close_fds::set_fds_cloexec_threadsafe(3, &named);
}

/// Starts the server for a keeper, with `link` as its standard input.
pub(crate) fn start_server(link: impl Into<Stdio>) -> Result<std::process::Child> {
    child(SERVER).stdin(link).spawn().map_err(|error| no_child(&error))
}

fn no_child(error: &io::Error) -> Failure {
    let what = "cannot start a process for the mount";
    match Path::new("/proc/self").exists() {
        true => Failure::caused(Exit::Internal, what, error),
        // It finds its own program there.
        false => {
            Failure::caused(Exit::Io, what, error).hint("it needs /proc, which is not mounted here")
        }
    }
}

/// This program with its arguments again, in another part.
fn child(role: &str) -> Command {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| OsString::from("extant"));
    // By its name where it still has one: so it is called in the list of processes.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
    command.arg0(name).args(args).env(ROLE, role);
    command
}
