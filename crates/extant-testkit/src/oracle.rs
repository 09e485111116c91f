//! Other implementations, to agree with: e2fsprogs and the Linux kernel.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::hurry::hurry;

/// Where tools for administrators are, in case the tests run with a user's `PATH`.
const TOOL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Seconds after which e2fsck is killed. On damaged images it can run for ever, and it ignores
/// the polite signal.
const FSCK_LIMIT_S: &str = "60";

/// Prints the line that says a test was skipped; use [`skip!`](crate::skip).
///
/// Past the capture of the test harness, so that it shows without `--nocapture`.
pub fn print_skip(module: &str, line: u32, reason: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr().lock(), "skipped ({module}:{line}): {reason}");
}

/// True for user 0.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `Ok` for user 0, else the reason to skip a test that does `what`.
pub fn root(what: &str) -> Result<(), String> {
    if is_root() { Ok(()) } else { Err(format!("needs root: {what}")) }
}

/// A program that is installed.
#[derive(Clone, Debug)]
pub struct Tool {
    path: PathBuf,
}

impl Tool {
    /// Looks a program up; the error is the reason to skip.
    pub fn find(name: &str) -> Result<Tool, String> {
        TOOL_PATH
            .split(':')
            .map(|dir| Path::new(dir).join(name))
            .find(|path| path.is_file())
            .map(|path| Tool { path })
            .ok_or_else(|| format!("needs the program {name}, which is not installed"))
    }

    /// A command to add arguments to: C locale, UTC, no configuration of this machine, and no waiting for
    /// other machines.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        clean(&mut command);
        hurry(&mut command, &self.path);
        command
    }

    /// Runs with `arguments` and returns standard output. Panics, with all the program said, if
    /// it fails.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let mut command = self.command();
        command.args(arguments);
        let output = output(&mut command);
        assert!(output.status.success(), "{command:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn clean(command: &mut Command) {
    // A fake time set for reproducible images must not leak into what a test asks for.
    command.env("PATH", TOOL_PATH).env("LC_ALL", "C").env("TZ", "UTC");
    command.env_remove("E2FSPROGS_FAKE_TIME");
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// What e2fsck thinks of an image.
#[derive(Clone, Debug)]
pub struct FsckReport {
    /// Its exit status; 0 when clean, `None` when it had to be killed.
    pub status: Option<i32>,
    /// All it printed.
    pub text: String,
}

impl FsckReport {
    /// True if it found nothing wrong, and ended. The status alone is not enough: some questions that
    /// `-n` answers with no leave it at 0. That a tree of extents could have fewer nodes is a proposal
    /// and no fault: as with the kernel, nodes that are half empty are not joined. Nor is it one that the number
    /// of the device with an external journal is another one now: loop devices come and go.
    pub fn is_clean(&self) -> bool {
        let is_proposal = |line: &str| {
            line.ends_with("Optimize? no")
                || line.starts_with("Superblock hint for external superblock should be")
        };
        let is_fault = |line: &str| line.contains("? no") && !is_proposal(line);
        self.status == Some(0) && !self.text.lines().any(is_fault)
    }

    /// Panics with the report unless it is clean.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "e2fsck -fn: status {:?}\n{}", self.status, self.text);
    }
}

/// Runs `e2fsck -fn`, which changes nothing, for at most 60 s and then kills it.
pub fn e2fsck(image: &Path) -> Result<FsckReport, String> {
    e2fsck_with(image, &[])
}

/// [`e2fsck`] with more arguments, such as `-D` or `-E journal_only`.
pub fn e2fsck_with(image: &Path, arguments: &[&str]) -> Result<FsckReport, String> {
    e2fsck_as(image, "-fn", arguments)
}

/// [`e2fsck_with`] in another mode than `-fn`: `-fy` repairs.
pub fn e2fsck_as(image: &Path, mode: &str, arguments: &[&str]) -> Result<FsckReport, String> {
    let fsck = Tool::find("e2fsck")?;
    let mut command = Tool::find("timeout")?.command();
    hurry(&mut command, &fsck.path);
    command.args(["-s", "KILL", FSCK_LIMIT_S]).arg(&fsck.path).arg(mode).args(arguments).arg(image);
    let output = output(&mut command);
    // `timeout` ends by the same signal when it had to use it, or reports 128 + 9.
    let status = output.status.code().filter(|status| *status != 137);
    Ok(FsckReport { status, text: said(&output) })
}

/// Makes a file system with mke2fs on an existing file, or on a new one of `size` such as `64M`.
/// Panics if mke2fs fails.
///
/// Where the arguments name no UUID and no seed of the directories' hashes, those of
/// `EXTANT_TEST_UUID` are used, or else fixed ones: mke2fs draws them, and what a damaged index
/// or a checksum shows depends on them, so that a test would fail once in a hundred runs and not
/// again.
pub fn mke2fs(image: &Path, size: &str, arguments: &[&str]) -> Result<(), String> {
    make(image, size, arguments, None)
}

/// [`mke2fs`] at another time than now, in seconds since 1970: files that it copies keep their own times.
pub fn mke2fs_at(image: &Path, size: &str, arguments: &[&str], time: u32) -> Result<(), String> {
    make(image, size, arguments, Some(time))
}

fn make(image: &Path, size: &str, arguments: &[&str], time: Option<u32>) -> Result<(), String> {
    let tool = Tool::find("mke2fs")?;
    let uuid = std::env::var("EXTANT_TEST_UUID").unwrap_or_else(|_| TEST_UUID.to_owned());
    let mut all: Vec<String> = vec!["-q".into(), "-F".into()];
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    // Programs find an external journal by its UUID, and would find that of another test.
    let is_journal = arguments.iter().any(|argument| argument.contains("journal_dev"));
    if !is_journal && !arguments.contains(&"-U") {
        all.extend(["-U".into(), uuid.clone()]);
    }
    let seed = format!("hash_seed={uuid}");
    match arguments.iter().position(|argument| *argument == "-E") {
        // Of several `-E`, mke2fs takes the last.
        Some(_) if arguments.iter().any(|argument| argument.contains("hash_seed=")) => {}
        Some(_) => {
            let last = all.iter().rposition(|argument| argument == "-E").expect("one was found");
            all[last + 1] = format!("{},{seed}", all[last + 1]);
        }
        None => all.extend(["-E".into(), seed]),
    }
    let mut all: Vec<&OsStr> = all.iter().map(OsStr::new).collect();
    all.extend([image.as_os_str(), size.as_ref()]);
    let mut command = tool.command();
    command.args(all);
    if let Some(time) = time {
        command.env("E2FSPROGS_FAKE_TIME", time.to_string());
    }
    let output = output(&mut command);
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    Ok(())
}

/// UUID and hash seed of the images that [`mke2fs`] makes.
const TEST_UUID: &str = "5a17e9c4-0d3b-4c86-9f21-7be0a4d8c613";

/// Runs debugfs commands, one per line, on an image. `write` opens it for writing. Returns what
/// debugfs printed, errors included: its exit status does not tell.
pub fn debugfs(image: &Path, write: bool, commands: &str) -> Result<String, String> {
    let tool = Tool::find("debugfs")?;
    let dir =
        tempfile::tempdir().map_err(|error| format!("needs a temporary directory: {error}"))?;
    let script = dir.path().join("commands");
    std::fs::write(&script, commands).unwrap_or_else(|error| panic!("{script:?}: {error}"));
    let mut command = tool.command();
    if write {
        command.arg("-w");
    }
    command.arg("-f").arg(&script).arg(image);
    let output = output(&mut command);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(text(&output.stdout) + &text(&output.stderr))
}

/// The superblock as `dumpe2fs -h` prints it.
pub fn dumpe2fs(image: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = Tool::find("dumpe2fs")?.run([OsStr::new("-h"), image.as_os_str()]);
    Ok(parse_dumpe2fs(&text))
}

/// Splits lines of the form `Block size:               4096` into name and value.
pub fn parse_dumpe2fs(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    text.lines().filter_map(pair).collect()
}

/// A mounted image. Unmounted and detached when dropped, also when the test panics.
#[derive(Debug)]
pub struct LoopMount {
    device: String,
    // `None` after unmounting; the directory outlives the mount.
    mounted: Option<tempfile::TempDir>,
}

/// Copies that must be made again because something was written meanwhile.
const COPIES_MAX: usize = 50;

/// [`LoopMount::writes`] of any block device, by its path.
pub fn device_writes(device: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat"))
        .unwrap_or_else(|error| panic!("the statistics of {device}: {error}"));
    // Requests and sectors written, requests in flight.
    let words: Vec<&str> = text.split_whitespace().collect();
    [words[4], words[6], words[8]].join(" ")
}

impl LoopMount {
    /// Mounts by the kernel's ext4, reading only and without touching the image; a journal that
    /// needs recovery is left alone (`noload`).
    pub fn read_only(image: &Path) -> Result<LoopMount, String> {
        LoopMount::new(image, MountFlags::RDONLY, "noload")
    }

    /// Mounts by the kernel's ext4 for reading and writing.
    pub fn read_write(image: &Path) -> Result<LoopMount, String> {
        LoopMount::new(image, MountFlags::empty(), "")
    }

    /// Mounts with the given mount flags and ext4 options. The error is the reason to skip: no
    /// root, no loop devices. Panics if the kernel refuses the image itself.
    pub fn new(image: &Path, flags: MountFlags, options: &str) -> Result<LoopMount, String> {
        match LoopMount::attempt(image, flags, options)? {
            Ok(mount) => Ok(mount),
            Err(error) => panic!("the kernel does not mount {}: {error}", image.display()),
        }
    }

    /// [`new`](Self::new) of an image that the kernel may refuse; the inner error is its answer.
    pub fn attempt(
        image: &Path,
        flags: MountFlags,
        options: &str,
    ) -> Result<std::io::Result<LoopMount>, String> {
        root("mounts an image through a loop device")?;
        let losetup = Tool::find("losetup")?;
        let mut command = losetup.command();
        command.args(["--find", "--show"]);
        if flags.contains(MountFlags::RDONLY) {
            command.arg("--read-only");
        }
        let output = output(command.arg(image));
        if !output.status.success() {
            return Err(format!("needs a loop device: {}", said(&output)));
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let mut guard = LoopMount { device, mounted: None };
        let dir = tempfile::Builder::new()
            .prefix("extant-mount-")
            .tempdir()
            .map_err(|error| format!("needs a temporary directory: {error}"))?;
        let options = std::ffi::CString::new(options).expect("mount options have no NUL byte");
        if let Err(errno) =
            rustix::mount::mount(guard.device.as_str(), dir.path(), "ext4", flags, &*options)
        {
            return Ok(Err(errno.into()));
        }
        guard.mounted = Some(dir);
        Ok(Ok(guard))
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.mounted.as_ref().expect("mounted until dropped").path()
    }

    /// Returns what the device has been asked to write so far, and how much is on its way: two
    /// equal answers mean that nothing was written in between, so that a copy of the file made
    /// meanwhile is what a power cut would have left.
    pub fn writes(&self) -> String {
        device_writes(&self.device)
    }

    /// Copies `image`, the file behind this mount, as a power cut would leave it at one moment. The
    /// file system is not asked to do anything; what the loop device holds back is written first.
    ///
    /// # Panics
    ///
    /// When the kernel never stops writing.
    pub fn copy_as_cut(&self, image: &Path, copy: &Path) {
        for _ in 0..COPIES_MAX {
            let flushed = std::fs::File::open(&self.device).and_then(|device| device.sync_all());
            flushed.unwrap_or_else(|error| panic!("{}: {error}", self.device));
            let before = self.writes();
            std::fs::copy(image, copy).unwrap_or_else(|error| panic!("{copy:?}: {error}"));
            // The kernel writes when it likes: a copy made meanwhile is no state of the device.
            if self.writes() == before {
                return;
            }
        }
        panic!("the kernel never stopped writing to {}", self.device);
    }

    /// The loop device, such as `/dev/loop0`.
    pub fn device(&self) -> &str {
        &self.device
    }
}

/// Unmounts; waits a little when the mount is busy, as it is while a process that another thread
/// starts holds copies of this one's files.
fn unmount(path: &Path) -> rustix::io::Result<()> {
    let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    for _ in 0..50 {
        match rustix::mount::unmount(path, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => {
                // Cut short by a signal is fine.
                let _ = rustix::thread::nanosleep(&pause);
            }
            other => return other,
        }
    }
    rustix::mount::unmount(path, UnmountFlags::empty())
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Panicking here, perhaps during another panic, would hide the test's own failure.
        if let Some(dir) = self.mounted.take()
            && let Err(errno) = unmount(dir.path())
        {
            eprintln!("cannot unmount {}: {errno}; detaching lazily", dir.path().display());
            let _ = rustix::mount::unmount(dir.path(), UnmountFlags::DETACH);
        }
        if let Ok(losetup) = Tool::find("losetup") {
            let detached = losetup.command().arg("--detach").arg(&self.device).status();
            if !detached.is_ok_and(|status| status.success()) {
                eprintln!("cannot detach {}", self.device);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumpe2fs_lines_become_a_map() {
        let map = parse_dumpe2fs(
            "Filesystem volume name:   <none>\nBlock size:               4096\nno colon\n\
             Filesystem created:       Sat Nov 21 09:26:31 2026\nFilesystem flags: x\n",
        );
        assert_eq!(map["Block size"], "4096");
        assert_eq!(map["Filesystem created"], "Sat Nov 21 09:26:31 2026");
        assert_eq!(map.len(), 4);
    }

    #[test]
    fn a_missing_tool_is_named() {
        let error = Tool::find("no-such-tool").unwrap_err();
        assert_eq!(error, "needs the program no-such-tool, which is not installed");
    }
}
