//! Who keeps a mount busy.
//!
//! Nothing here touches the mount itself, which may hang: open files are told by the number of the
//! mount, directories by their path.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::mounting::table::{self, Entry};
use crate::text::escape;

/// Most processes that are named.
const SHOWN_MAX: usize = 8;

/// The processes that have something of `mount` open, as far as this user may see them:
/// `bash (process 17: working directory)`.
pub(crate) fn users(mount: &Entry) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        // What this process inherited ends with it.
        .filter(|pid| *pid != std::process::id())
        .collect();
    pids.sort_unstable();
    let used = |pid: &u32| {
        let what = uses(&PathBuf::from(format!("/proc/{pid}")), mount)?;
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(format!("{} (process {pid}: {what})", escape(name.trim_ascii_end())))
    };
    pids.iter().filter_map(used).collect()
}

/// Returns whether a process that this user may see, or a mount inside it, keeps `mount` busy for long.
pub(crate) fn is_used(mount: &Entry) -> bool {
    !users(mount).is_empty() || mount_inside(mount).is_some()
}

/// Where something is mounted inside `mount`.
fn mount_inside(mount: &Entry) -> Option<PathBuf> {
    let inside = |entry: &Entry| entry.point != mount.point && is_below(&entry.point, &mount.point);
    table::all().ok()?.into_iter().find(inside).map(|entry| entry.point)
}

/// Returns who uses a mount as a part of a message.
pub(crate) fn users_text(mount: &Entry) -> String {
    let users = users(mount);
    let more = match users.len() {
        0 => {
            return match mount_inside(mount) {
                Some(point) => {
                    format!("a mount inside it, {}", escape(point.as_os_str().as_bytes()))
                }
                None => "a process that you may not see".to_owned(),
            };
        }
        count if count > SHOWN_MAX => format!(" and {} more", count - SHOWN_MAX),
        _ => String::new(),
    };
    let shown: Vec<String> = users.into_iter().take(SHOWN_MAX).collect();
    format!("{}{more}", shown.join(", "))
}

/// Returns what one process has of a mount.
fn uses(process: &Path, mount: &Entry) -> Option<String> {
    for (link, what) in
        [("cwd", "working directory"), ("root", "root directory"), ("exe", "program")]
    {
        let target = fs::read_link(process.join(link));
        if target.is_ok_and(|target| is_below(&target, &mount.point)) {
            return Some(what.to_owned());
        }
    }
    let wanted = format!("mnt_id:\t{}", mount.id);
    for info in fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(info.path()).unwrap_or_default();
        if text.lines().any(|line| line == wanted) {
            let file = fs::read_link(process.join("fd").join(info.file_name())).ok()?;
            return Some(format!("has {} open", escape(file.as_os_str().as_bytes())));
        }
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').find_map(|line| mapped(line, mount))
}

/// The file of a line of `maps`, `start-end rwxp offset 00:2d inode  /path`, if it is in the mount.
fn mapped(line: &[u8], mount: &Entry) -> Option<String> {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let device = std::str::from_utf8(words.nth(3)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let device = format!("{}:{}", number(major)?, number(minor)?);
    let path = words.nth(1)?;
    (device == mount.device && is_below(Path::new(OsStr::from_bytes(path)), &mount.point))
        .then(|| format!("has {} mapped", escape(path)))
}

fn is_below(path: &Path, point: &Path) -> bool {
    point != Path::new("/") && path.starts_with(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(point: &Path) -> Entry {
        let entries = table::all().unwrap();
        let holds = |entry: &&Entry| point.starts_with(&entry.point);
        let mut entry =
            entries.iter().rev().filter(holds).max_by_key(|e| e.point.as_os_str().len());
        let mut entry = entry.take().unwrap().clone();
        entry.point = point.to_owned();
        entry
    }

    #[test]
    fn open_files_and_working_directories_are_seen() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().canonicalize().unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("60").current_dir(&dir).spawn().unwrap();
        let wanted = format!("(process {}: working directory)", child.id());
        // The name is that of this program until the child has become the other one.
        let users = users(&of(&dir));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(users.iter().any(|user| user.ends_with(&wanted)), "{users:?}");
    }

    #[test]
    fn mapped_files_are_told_by_device_and_path() {
        let mut mount = of(Path::new("/proc"));
        (mount.device, mount.point) = ("0:45".into(), "/mnt".into());
        let line = b"7f00-7f01 r-xp 00001000 00:2d 1234      /mnt/lib/a.so";
        assert_eq!(mapped(line, &mount).as_deref(), Some("has /mnt/lib/a.so mapped"));
        assert_eq!(mapped(b"7f00-7f01 r-xp 00001000 00:2e 1234      /mnt/lib/a.so", &mount), None);
        assert_eq!(mapped(b"7f00-7f01 r-xp 00001000 00:00 0", &mount), None);
    }
}
