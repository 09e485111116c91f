//! `extant serve`: an image for other programs and hosts.

mod virtiofs;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{ArgGroup, Args, Subcommand};
use extant_nbd::{Listening, ServerTls, serve, serve_tls};

use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::image::{opening, split, window};
use crate::in_use::loop_device_of;
use crate::output::announce;
use crate::size::parse_bytes;
use crate::source::SourceArgs;
use crate::text::escape;
use virtiofs::VirtiofsArgs;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:
  extant serve nbd debian.qcow2 --socket /run/user/1000/nbd
  extant serve nbd base.img --overlay vm7.qcow2 --socket s --export root
  extant ls 'nbd+unix:///?socket=s:/etc'
  extant serve nbd base.img -r --listen 0.0.0.0:10809 --tls-certificates /etc/pki/nbd --tls-verify-peer
  extant ls 'nbds://disks.example/?tls-certificates=/home/me/pki:/etc'
  extant serve virtiofs root.img --socket /run/user/1000/fs";

/// Serve an image to other programs and hosts
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// As a network block device, until SIGINT or SIGTERM
    ///
    /// Whoever can connect can read, and write unless --read-only. The socket is made for its owner alone, and one
    /// that nobody listens on any more is replaced; addresses other than those of this host are refused, unless --tls-verify-peer says whom to let in.
    Nbd(NbdArgs),
    /// As a tree for virtual machines (virtiofs), until SIGINT or SIGTERM
    ///
    /// The image is no disk of the machine: this process reads and writes it, and the guest mounts it by
    /// "mount -t virtiofs TAG DIR". One machine is connected at a time, and the next one may come when it is gone.
    /// The socket is made for its owner alone; one that nobody listens on any more is replaced.
    Virtiofs(VirtiofsArgs),
}

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("place").required(true).args(["socket", "listen"])))]
struct NbdArgs {
    /// Image file, block device or address
    #[arg(value_name = "IMG")]
    image: OsString,
    /// A socket in the file system, for clients of this host
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// An address of this host, such as 127.0.0.1:10809; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Serve over TLS alone, with server-cert.pem and server-key.pem in DIR
    ///
    /// Clients use addresses that begin with nbds:// or nbds+unix://; those without TLS are told so, and nothing else.
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,
    /// Let in only clients whose certificate somebody in ca-cert.pem in DIR signed
    ///
    /// Certificates that ca-crl.pem has, if there is one, are not good any more. Then addresses that other hosts
    /// reach may be listened at, too.
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,
    /// Name of the export; clients that ask for none get it as well
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// Clients cannot write
    #[arg(short = 'r', long)]
    read_only: bool,
    /// Serve what begins that many bytes into the image
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// Serve partition N of the image (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    #[command(flatten)]
    source: SourceArgs,
}

/// A socket in the file system, which is removed at the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> Result<Exit> {
    match &args.what {
        What::Nbd(args) => run_nbd(args),
        What::Virtiofs(args) => virtiofs::run(args),
    }
}

fn run_nbd(args: &NbdArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("serve is for a whole image: leave the path out"));
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
    let device = window(device, args.offset, args.partition)?;
    let end = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end))
            .map_err(|error| Failure::caused(Exit::Internal, "cannot handle signals", &error))?;
    }
    let tls = match &args.tls_certificates {
        Some(dir) => Some(ServerTls::open(dir, args.tls_verify_peer)?),
        None => None,
    };
    let (listening, address, _socket) = listen(args)?;
    announce(&address)?;
    let name = escape(file.as_os_str().as_bytes());
    let served = match &tls {
        None => serve(&device, &args.export, &listening, &end),
        Some(tls) => serve_tls(&device, &args.export, &listening, tls, &end),
    };
    served.map_err(|error| Failure::caused(io_exit(&error), &name, &error))?;
    Ok(Exit::Success)
}

/// Where clients come in, its address, and the socket to remove.
fn listen(args: &NbdArgs) -> Result<(Listening, String, Option<Removed>)> {
    let export = &args.export;
    let s = if args.tls_certificates.is_some() { "s" } else { "" };
    if let Some(path) = &args.socket {
        let listener = bind_private(path)?;
        let address = format!("nbd{s}+unix:///{export}?socket={}", path.display());
        return Ok((Listening::Unix(listener), address, Some(Removed(path.clone()))));
    }
    let Some(address) = args.listen else { return Err(Failure::usage("--socket or --listen")) };
    if !address.ip().is_loopback() && !args.tls_verify_peer {
        let message = format!("{address} is no address of this host alone");
        return Err(Failure::new(Exit::Refused, message)
            .hint("nothing protects what is served: --tls-certificates DIR --tls-verify-peer, or 127.0.0.1:PORT, with ssh -L for others"));
    }
    let failed =
        |error| Failure::caused(io_exit(&error), &format!("cannot listen at {address}"), &error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let shown = format!("nbd{s}://{}/{export}", listener.local_addr().map_err(failed)?);
    Ok((Listening::Tcp(listener), shown, None))
}

/// A socket that nobody but its owner can use, from its first moment; in place of one that nobody listens on,
/// as a server leaves it that was killed.
fn bind_private(path: &Path) -> Result<UnixListener> {
    let is_socket = || std::fs::symlink_metadata(path).is_ok_and(|at| at.file_type().is_socket());
    let is_dead = || {
        UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    let bound = bind_new(path).or_else(|error| {
        if error.kind() != ErrorKind::AddrInUse || !is_socket() || !is_dead() {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        bind_new(path)
    });
    bound.map_err(|error| {
        let name = escape(path.as_os_str().as_bytes());
        let message = format!("cannot make the socket {name}");
        let failure = Failure::caused(io_exit(&error), &message, &error);
        match error.kind() {
            ErrorKind::AddrInUse if is_socket() => {
                failure.hint("a program listens on it: stop that, or give another name")
            }
            ErrorKind::AddrInUse => {
                failure.hint("what is there is no socket, and is left alone: give another name")
            }
            _ => failure,
        }
    })
}

fn bind_new(path: &Path) -> std::io::Result<UnixListener> {
    let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(old);
    bound
}
