//! The system calls that a file server needs.
//!
//! # Invariants
//!
//! - C1. Nothing in the list takes a path, makes a process, or gives a right that was given up.
//! - C2. What the C library tries first and can do without answers `ENOSYS`, so that it goes on to the
//!   second way; everything else `EPERM`. Nothing kills: a call that was forgotten here fails, and the
//!   file system reports it.

/// Lets only what a file server needs pass, for this thread and those it starts.
#[cfg(all(
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
pub(crate) use filter::restrict;

/// There is no filter for this processor.
#[cfg(not(all(
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
pub(crate) fn restrict() -> Result<(), String> {
    Err(format!("no filter for {}", std::env::consts::ARCH))
}

#[cfg(all(
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod filter {
    use std::collections::BTreeMap;

    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch,
    };

    type Rules = BTreeMap<i64, Vec<SeccompRule>>;

    /// Calls that may have any arguments.
    const PLAIN: &[i64] = &[
        // Files that are open.
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_lseek,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_sync_file_range,
        libc::SYS_fallocate,
        libc::SYS_ftruncate,
        libc::SYS_fadvise64,
        libc::SYS_copy_file_range,
        libc::SYS_fstat,
        libc::SYS_fstatfs,
        libc::SYS_fcntl,
        libc::SYS_dup,
        libc::SYS_dup3,
        libc::SYS_close,
        libc::SYS_flock,
        // Payloads between files and the kernel's connection.
        libc::SYS_splice,
        libc::SYS_vmsplice,
        libc::SYS_tee,
        libc::SYS_pipe2,
        libc::SYS_memfd_create,
        libc::SYS_eventfd2,
        // Rings that were made before, each for commands to the kernel's connection alone.
        libc::SYS_io_uring_enter,
        // The keeper's socket and the log, which are open.
        libc::SYS_sendmsg,
        libc::SYS_sendto,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_shutdown,
        // Machines at a socket that listens already, of `serve virtiofs`; a mount has none.
        libc::SYS_accept4,
        libc::SYS_ppoll,
        libc::SYS_epoll_create1,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait,
        // Memory.
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_msync,
        libc::SYS_mincore,
        libc::SYS_membarrier,
        // Threads.
        libc::SYS_futex,
        libc::SYS_set_robust_list,
        libc::SYS_get_robust_list,
        libc::SYS_set_tid_address,
        libc::SYS_rseq,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_setaffinity,
        libc::SYS_getcpu,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_restart_syscall,
        // Signals that arrive.
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        // Time, chance, and who one is.
        libc::SYS_clock_gettime,
        libc::SYS_clock_getres,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_gettimeofday,
        libc::SYS_getrandom,
        libc::SYS_uname,
        libc::SYS_sysinfo,
        libc::SYS_getrusage,
        libc::SYS_getpid,
        libc::SYS_getppid,
        libc::SYS_gettid,
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getegid,
        // Answered by the other filter.
        libc::SYS_clone3,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_time,
    ];

    /// `IORING_REGISTER_ENABLE_RINGS`.
    const ENABLE_RINGS: i64 = 12;

    /// `BLKDISCARD`.
    const BLKDISCARD: i64 = 0x1277;
    /// `BLKSSZGET`.
    const BLKSSZGET: i64 = 0x1268;

    /// Calls that may pass when all of their conditions hold.
    fn conditional() -> Result<Rules, seccompiler::BackendError> {
        use SeccompCmpArgLen::{Dword, Qword};
        use SeccompCmpOp::{Eq, MaskedEq};
        let when = |argument, len, operator, value: i64| {
            let condition = SeccompCondition::new(argument, len, operator, value.cast_unsigned())?;
            SeccompRule::new(vec![condition])
        };
        let bits = |bits: i32| MaskedEq(u64::from(bits.cast_unsigned()));
        let no_execution = |argument| when(argument, Dword, bits(libc::PROT_EXEC), 0);
        let empty_path = |argument| {
            when(argument, Dword, bits(libc::AT_EMPTY_PATH), i64::from(libc::AT_EMPTY_PATH))
        };
        let own_process = i64::from(std::process::id());
        Ok(BTreeMap::from([
            (libc::SYS_mmap, vec![no_execution(2)?]),
            (libc::SYS_mprotect, vec![no_execution(2)?]),
            // Threads, and no processes.
            (
                libc::SYS_clone,
                vec![when(0, Dword, bits(libc::CLONE_THREAD), i64::from(libc::CLONE_THREAD))?],
            ),
            // What abort and panics in panics do.
            (libc::SYS_tgkill, vec![when(0, Dword, Eq, own_process)?]),
            // Names of threads and of memory.
            (
                libc::SYS_prctl,
                vec![
                    when(0, Dword, Eq, i64::from(libc::PR_SET_NAME))?,
                    when(0, Dword, Eq, i64::from(libc::PR_SET_VMA))?,
                ],
            ),
            // Telling the disk of free space: the one operation on devices that is not a read or write. And the
            // size of its sectors, of a device that comes later.
            (
                libc::SYS_ioctl,
                vec![when(1, Dword, Eq, BLKDISCARD)?, when(1, Dword, Eq, BLKSSZGET)?],
            ),
            // A ring that was made before is begun with, and nothing is added to it.
            (libc::SYS_io_uring_register, vec![when(1, Dword, Eq, ENABLE_RINGS)?]),
            // Limits are looked at, not set.
            (libc::SYS_prlimit64, vec![when(2, Qword, Eq, 0)?]),
            (libc::SYS_newfstatat, vec![empty_path(3)?]),
            (libc::SYS_statx, vec![empty_path(2)?]),
        ]))
    }

    fn program(
        rules: Rules,
        otherwise: SeccompAction,
        action: SeccompAction,
    ) -> Result<BpfProgram, String> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|e| e.to_string())?;
        SeccompFilter::new(rules, otherwise, action, arch)
            .and_then(BpfProgram::try_from)
            .map_err(|error| error.to_string())
    }

    /// Lets only what a file server needs pass, for this thread and those it starts.
    pub(crate) fn restrict() -> Result<(), String> {
        let errno = |errno: i32| SeccompAction::Errno(errno.cast_unsigned());
        let mut rules = conditional().map_err(|error| error.to_string())?;
        rules.extend(PLAIN.iter().map(|call| (*call, Vec::new())));
        // The flags of clone3 are behind a pointer, where a filter does not see them.
        let newer = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let newer = program(newer, SeccompAction::Allow, errno(libc::ENOSYS))?;
        let calls = program(rules, errno(libc::EPERM), SeccompAction::Allow)?;
        // That of the list is second: it forbids to set a third.
        for program in [newer, calls] {
            seccompiler::apply_filter(&program).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
