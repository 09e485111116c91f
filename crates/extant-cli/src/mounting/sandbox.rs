//! What the server gives up before it looks at the first byte of the image.
//!
//! # Layers
//!
//! 1. No core dumps: they would hold what the files hold.
//! 2. No new rights by executing something; no capabilities, if there were any.
//! 3. Landlock: no path can be opened, no port used, no process outside signalled or traced.
//! 4. seccomp: system calls that a file server does not need answer `EPERM`, memory that can be
//!    written cannot be executed, and no process is started.
//!
//! All of them hold for the calling thread and for those it starts: this runs before there are others.
//! What is open already stays open: image, journal, log, the keeper's socket.
//!
//! # Invariants
//!
//! - S1. Whatever runs in the server later needs no path: what it needs is opened before.

use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::exit::{Exit, Failure, Result};
use crate::mounting::options::SandboxMode;
use crate::mounting::syscalls;

/// Gives up everything that `mode` asks for. What this kernel cannot do comes back as text.
pub(crate) fn enter(mode: SandboxMode) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    let mut layer = |name: &str, result: Result<(), String>| {
        if let Err(why) = result {
            missing.push(format!("{name}: {why}"));
        }
    };
    layer("core dumps", no_core_dumps());
    if mode == SandboxMode::Off {
        return Ok(missing);
    }
    layer("no new privileges", set_no_new_privs(true).map_err(|errno| errno.to_string()));
    layer("capabilities", no_capabilities());
    layer("landlock", landlock());
    // Last: it forbids the calls of the others.
    layer("seccomp", syscalls::restrict());
    match missing.is_empty() || mode == SandboxMode::On {
        true => Ok(missing),
        false => Err(Failure::new(
            Exit::Unsupported,
            format!("--sandbox=require: this kernel cannot do {}", missing.join("; ")),
        )
        .hint("--sandbox=on goes on with what there is")),
    }
}

fn no_core_dumps() -> Result<(), String> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(|errno| errno.to_string())?;
    // The limit is not for a program that the kernel pipes dumps to.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| errno.to_string())
}

fn no_capabilities() -> Result<(), String> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).map_err(|errno| errno.to_string())
}

fn landlock() -> Result<(), String> {
    use landlock::{ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _};
    use landlock::{RulesetStatus, Scope};
    let known = ABI::V6;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(known))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(known)))
        .and_then(|rules| rules.scope(Scope::from_all(known)))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(|error| error.to_string())?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("not in this kernel".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
    use std::os::unix::fs::FileExt as _;

    use extant_sync::threads;

    use super::*;

    /// Restrictions hold for a thread and what it starts: so the test may have one.
    fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        threads::scope(|scope| {
            scope
                .spawn("inside", || {
                    let missing = enter(SandboxMode::On).unwrap();
                    if !missing.is_empty() {
                        println!("without {missing:?}");
                    }
                    work()
                })
                .unwrap()
                .join()
                .unwrap()
        })
        .unwrap()
    }

    fn has(layer: fn() -> Result<(), String>) -> bool {
        threads::scope(|scope| scope.spawn("probe", layer).unwrap().join().unwrap())
            .unwrap()
            .inspect_err(|why| println!("skipped: {why}"))
            .is_ok()
    }

    #[test]
    fn nothing_is_opened_started_or_connected_to_in_the_sandbox() {
        if !has(landlock) || !has(syscalls::restrict) {
            return;
        }
        inside(|| {
            let denied = |result: std::io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
            };
            denied(File::open("/etc/passwd").map(drop));
            denied(File::create("/dev/shm/extant-sandbox").map(drop));
            denied(std::process::Command::new("/bin/true").status().map(drop));
            denied(std::net::TcpStream::connect("127.0.0.1:9").map(drop));
            denied(std::os::unix::net::UnixStream::connect("/dev/log").map(drop));
            denied(std::os::unix::net::UnixDatagram::unbound().map(drop));
            denied(
                rustix::mount::unmount("/nowhere", rustix::mount::UnmountFlags::DETACH)
                    .map_err(Into::into),
            );
        });
    }

    #[test]
    fn landlock_alone_opens_nothing_either() {
        if !has(landlock) {
            return;
        }
        let denied = threads::scope(|scope| {
            let work = || {
                set_no_new_privs(true).unwrap();
                landlock().unwrap();
                File::open("/etc/passwd").unwrap_err().kind()
            };
            scope.spawn("inside", work).unwrap().join().unwrap()
        });
        assert_eq!(denied.unwrap(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_was_open_works_and_threads_start() {
        let mut file = tempfile::tempfile().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let read = inside(move || {
            file.write_all(b"before").unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(b"at", 70_000).unwrap();
            file.sync_data().unwrap();
            file.rewind().unwrap();
            let mut byte = [0; 1];
            file.read_exact(&mut byte).unwrap();
            let flags =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, 0, 4096).unwrap();
            (&ours).write_all(b"said").unwrap();
            let sum = threads::workers("worker", 3, |index| vec![index; 1 << 20].len()).unwrap();
            assert_eq!(sum.iter().sum::<usize>(), 3 << 20);
            let caught = threads::workers("failing", 1, |_| assert!(byte[0] == 0, "as it must"));
            assert!(caught.is_err(), "a panic is caught as ever");
            byte[0]
        });
        assert_eq!(read, b'b');
        let mut said = [0; 4];
        (&theirs).read_exact(&mut said).unwrap();
        assert_eq!(&said, b"said");
    }

    #[test]
    fn no_capability_is_left() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let left = inside(|| {
            rustix::thread::capabilities(None).unwrap_or_else(|_| {
                // The call itself is forbidden by then.
                let none = CapabilitySet::empty();
                CapabilitySets { effective: none, permitted: none, inheritable: none }
            })
        });
        assert!(left.effective.is_empty() && left.permitted.is_empty());
        // Where nothing else stops it, the kernel does.
        let denied = threads::scope(|scope| {
            let work = || {
                no_capabilities().unwrap();
                rustix::mount::unmount("/proc", rustix::mount::UnmountFlags::empty()).unwrap_err()
            };
            scope.spawn("inside", work).unwrap().join().unwrap()
        });
        assert_eq!(denied.unwrap(), rustix::io::Errno::PERM);
    }
}
