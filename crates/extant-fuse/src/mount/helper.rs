//! `fusermount3`: mounts for users without the right to mount.
//!
//! The program gets one end of a socket, whose number is in `_FUSE_COMMFD`, mounts, and sends the
//! opened `/dev/fuse` back over it as an `SCM_RIGHTS` message.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::{AtimeFlag, KernelOptions, MountError, SUBTYPE};

/// Most that is read of what the program says.
const SAID_BYTES_MAX: u64 = 4096;

/// The program: as the search path has it, or where distributions put it.
fn program() -> PathBuf {
    let name = "fusermount3";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .chain(usual)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| PathBuf::from(name))
}

pub(super) fn mount(dir: &Path, options: &KernelOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| MountError::NoHelper(errno.into()))?;
    let mut command = Command::new(program());
    command.arg("-o").arg(words(options)).arg("--").arg(dir);
    command.env("_FUSE_COMMFD", "0").stdin(theirs);
    run(command)?;
    let no_descriptor = |source| MountError::NoDescriptor { dir: dir.to_owned(), source };
    receive(&ours).map_err(no_descriptor)
}

pub(super) fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(program());
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir).stdin(Stdio::null());
    run(command)
}

/// Runs the program to its end. Its standard error is the error's text.
fn run(mut command: Command) -> Result<(), MountError> {
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(MountError::NoHelper)?;
    // Keeps the other end of a socket given to it until it goes away.
    drop(command);
    let mut said = Vec::new();
    if let Some(pipe) = child.stderr.take() {
        // With what could be read there is more to say than with nothing.
        let _ = pipe.take(SAID_BYTES_MAX).read_to_end(&mut said);
    }
    let status = child.wait().map_err(MountError::NoHelper)?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&said);
    let said = said.trim().lines().collect::<Vec<_>>().join("; ");
    let said = if said.is_empty() { format!("fusermount3: {status}") } else { said };
    Err(MountError::Helper { said })
}

/// The options as fusermount3 takes them.
fn words(options: &KernelOptions) -> OsString {
    let mut words: Vec<Vec<u8>> = vec![
        [b"fsname=", escaped(&options.source).as_slice()].concat(),
        format!("subtype={SUBTYPE}").into_bytes(),
        b"default_permissions".to_vec(),
    ];
    let flags = [
        (options.read_only, "ro"),
        (options.allow_other, "allow_other"),
        (options.noexec, "noexec"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
        (options.atime == AtimeFlag::Never, "noatime"),
    ];
    words.extend(flags.iter().filter(|(on, _)| *on).map(|(_, word)| word.as_bytes().to_vec()));
    if let Some(bytes) = options.max_read {
        words.push(format!("max_read={bytes}").into_bytes());
    }
    OsString::from_vec(words.join(&b','))
}

/// A value for a list that commas divide.
fn escaped(value: &OsStr) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}

/// Takes the one descriptor that comes over `socket`.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, flags))?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let first = descriptors.next().and_then(|mut descriptors| descriptors.next());
    first.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_names_do_not_end_an_option() {
        let mut options = KernelOptions::new("/a,b\\c.img");
        options.read_only = true;
        let wanted = "fsname=/a\\,b\\\\c.img,subtype=extant,default_permissions,ro";
        assert_eq!(words(&options), wanted);
    }

    #[test]
    fn a_socket_without_a_descriptor_is_an_error() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        drop(theirs);
        assert!(receive(&ours).is_err());
    }
}
