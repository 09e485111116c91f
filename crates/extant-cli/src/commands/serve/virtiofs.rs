//! `extant serve virtiofs`: the tree of an image for virtual machines.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use extant::MountOptions;
use extant_fuse::{Events, Level, Settings};
use extant_virtiofs::{Options, ServeError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Removed, bind_private};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::{mount_failure, note_journal_error, opening, split};
use crate::in_use::loop_device_of;
use crate::keys::KeyArgs;
use crate::mounting::options::SandboxMode;
use crate::mounting::sandbox;
use crate::output::{announce, complain};
use crate::place::needs_connections;
use crate::seal::{Part, SealArgs};
use crate::size::parse_bytes;
use crate::source::SourceArgs;
use crate::text::escape;

/// What a guest has written is on its way to the device after this time at the latest, as in a mount.
const COMMIT: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
pub(super) struct VirtiofsArgs {
    /// Image file, block device or address
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The socket that the program which runs the machine connects to (vhost-user)
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The guest cannot write
    #[arg(short = 'r', long)]
    read_only: bool,
    /// Queues for requests, 1 to 16: what the machine is given must not be more
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=16))]
    queues: u64,
    /// Threads that answer, 1 to 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: Option<u64>,
    /// Memory for contents of files: 256M unless given, at least 2M
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    cache: Option<u64>,
    /// Whether the server gives up what it does not need: on, as far as this kernel can; require, or
    /// not at all; off
    #[arg(long, value_name = "MODE", value_parser = SandboxMode::parse)]
    sandbox: Option<SandboxMode>,
    /// Serve what begins that many bytes into the image
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// Serve partition N of the image (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    seal: SealArgs,
    #[command(flatten)]
    keys: KeyArgs,
}

/// What happens is said on standard error.
struct Said;

impl Events for Said {
    fn ready(&self) {}

    fn log(&self, _: Level, text: &str) {
        complain(text);
    }
}

/// Runs the command.
pub(super) fn run(args: &VirtiofsArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("serve is for a whole image: leave the path out"));
    }
    let name = escape(file.as_os_str().as_bytes());
    let mode = args.sandbox.unwrap_or_default();
    if needs_connections(&file) && mode != SandboxMode::Off {
        let message = format!("{name}: from its sandbox, a server makes no connections");
        return Err(Failure::new(Exit::Refused, message).hint("--sandbox=off"));
    }
    let written = args.source.written(&file);
    if let Some(holder) = loop_device_of(written).filter(|_| !args.read_only) {
        let name = escape(written.as_os_str().as_bytes());
        let message = format!("{name} is in use: the kernel has it as {holder}");
        return Err(Failure::new(Exit::Refused, message));
    }
    let device = match args.read_only {
        true => args.source.open_read_only(&file),
        false => args.source.open_read_write(&file),
    };
    let device = device.map_err(|error| opening(error, &file))?;
    let mut options = MountOptions::new()
        .read_only(args.read_only)
        .commit_interval(COMMIT)
        .write_back_after(COMMIT);
    if let Some(bytes) = args.cache {
        options = options.data_cache_bytes(bytes);
    }
    options = args.keys.apply(options)?;
    let mut settings = Settings::default();
    if let Some(threads) = args.threads {
        settings.threads = threads as usize;
    }
    let mut served = Options::default();
    served.queues = args.queues as usize;
    let end = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end))
            .map_err(|error| Failure::caused(Exit::Internal, "cannot handle signals", &error))?;
    }
    let listener = bind_private(&args.socket)?;
    // From the sandbox it cannot be removed; the next server replaces it.
    let _socket = Removed(args.socket.clone());
    allow_descriptors();
    for missing in sandbox::enter(mode)? {
        complain(&format!("note: sandbox without {missing}"));
    }
    // From here on, bytes of the image are looked at.
    let looks = !args.read_only && !args.seal.break_seal;
    let device = Part::of(device, args.offset, args.partition, looks)?.unsealed(&name)?;
    let at_start = args.offset.is_none() && args.partition.is_none();
    let fs = options
        .open(Arc::clone(&device))
        .map_err(|error| mount_failure(error.into(), &name, &device, at_start))?;
    note_journal_error(&fs, &name);
    announce(&args.socket.display().to_string())?;
    extant_virtiofs::serve(listener, fs, &served, &settings, &Said, &end).map_err(|error| {
        let exit = match &error {
            ServeError::Socket(error) => io_exit(error),
            ServeError::FileSystem(_) => Exit::Io,
            _ => Exit::Internal,
        };
        Failure::caused(exit, &name, &error)
    })?;
    Ok(Exit::Success)
}

/// As many open files as this process may have: each machine leaves one behind.
fn allow_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Without it, machines can come less often.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
