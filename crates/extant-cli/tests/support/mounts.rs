//! Mounts for tests: made, asked, and taken away whatever happens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Place, Ran, is_root, kernel};

/// A place where things are mounted: nothing is left of it.
pub(crate) struct Mounts {
    pub(crate) place: Place,
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for _ in 0..4 {
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let here = self.place.0.path().to_string_lossy().into_owned();
            let left = table.lines().filter_map(|line| line.split(' ').nth(4));
            for point in left.filter(|point| point.starts_with(&here)) {
                let _ = Command::new("umount").args(["-l", point]).status();
            }
        }
    }
}

/// Why no mount can be tested here.
pub(crate) fn mounts() -> Option<Mounts> {
    if !is_root() || fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        println!("skipped: needs root and /dev/fuse");
        return None;
    }
    let place = kernel::made(&["-t", "ext4"])?;
    fs::create_dir(place.path("m")).unwrap();
    Some(Mounts { place })
}

impl Mounts {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// What is in the mount.
    pub(crate) fn inside(&self, name: &str) -> PathBuf {
        self.place.path("m").join(name)
    }

    #[track_caller]
    pub(crate) fn mount(&self, options: &[&str]) -> Ran {
        self.place.run(&[&["mount"], options, &["--log", "log", "a.img", "m"]].concat())
    }

    #[track_caller]
    pub(crate) fn umount(&self) {
        self.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
        self.clean();
    }

    #[track_caller]
    pub(crate) fn clean(&self) {
        kernel::clean(&self.place, "a.img");
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The line of the list of mounts, if it is there.
    pub(crate) fn listed(&self) -> Option<String> {
        let point = self.path("m").canonicalize().unwrap_or_else(|_| self.path("m"));
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let of = |line: &&str| line.split(' ').nth(4) == point.to_str();
        table.lines().find(of).map(str::to_owned)
    }

    /// The processes of the mount: keeper and server.
    pub(crate) fn processes(&self) -> (i32, i32) {
        self.processes_at("m")
    }

    /// The processes of the mount at `point`: keeper and server.
    pub(crate) fn processes_at(&self, point: &str) -> (i32, i32) {
        let info = self.asked_at(point, "extant.info");
        let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
        let server = i32::try_from(info["pid"].as_i64().unwrap()).unwrap();
        let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap();
        (parent.parse().unwrap(), server)
    }

    pub(crate) fn asked(&self, name: &str) -> Vec<u8> {
        self.asked_at("m", name)
    }

    fn asked_at(&self, point: &str, name: &str) -> Vec<u8> {
        let mut answer = vec![0; 1 << 16];
        let count = rustix::fs::getxattr(self.path(point), name, &mut answer[..]).unwrap();
        answer.truncate(count);
        answer
    }
}

/// Waits for something that another process is about to do.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let clock = extant_sync::SystemClock;
    let start = extant_sync::Clock::monotonic(&clock);
    while !holds() {
        let waited = extant_sync::Clock::monotonic(&clock).saturating_sub(start);
        assert!(waited < Duration::from_secs(60), "{what}");
        extant_sync::Clock::sleep(&clock, Duration::from_millis(10));
    }
}

pub(crate) fn is_alive(pid: i32) -> bool {
    // A zombie is nobody's business any more.
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z ")
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A line of shell for a new mount name space, that takes away its copies of mounts that are not below `kept`:
/// their ends would wait for it.
pub(crate) fn let_others_go(kept: &Path) -> String {
    let (kept, all) = (kept.display(), std::env::temp_dir());
    let all = all.display();
    format!(
        "while read -r a b c d point rest; do case $point in {kept}*) ;; {all}/.tmp*) umount -l $point;; \
         esac; done < /proc/self/mountinfo"
    )
}
