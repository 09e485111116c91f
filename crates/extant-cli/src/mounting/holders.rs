//! Who has a file system mounted beside the mount that one asks about: in other places, and in other mount
//! name spaces.
//!
//! `/proc/PID/mountinfo` shows the mounts of the name space of a process. Of processes that this user may not
//! look at, nothing is seen.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use crate::mounting::table::{self, Entry};
use crate::text::escape;
use std::os::unix::ffi::OsStrExt;

/// Most holders that are named.
const SHOWN_MAX: usize = 8;

/// Mounts of one file system.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Where it is mounted in this name space.
    pub(crate) here: Vec<PathBuf>,
    /// One process of each other name space where it is mounted: `sleep (process 17)`.
    pub(crate) elsewhere: Vec<String>,
}

impl Holders {
    /// Returns who has the file system of `mount` mounted now.
    pub(crate) fn of(mount: &Entry) -> Holders {
        let same = |entry: &Entry| entry.device == mount.device && entry.is_ours();
        let here = table::all().unwrap_or_default().into_iter().filter(same);
        let mut holders =
            Holders { here: here.map(|entry| entry.point).collect(), elsewhere: Vec::new() };
        let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
        let mut seen: HashSet<PathBuf> = space("self").into_iter().collect();
        let mut pids: Vec<u32> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
            .collect();
        pids.sort_unstable();
        for pid in pids {
            // What cannot be told apart is this user's own: others' cannot be read either.
            let Ok(space) = space(&pid.to_string()) else { continue };
            if !seen.insert(space) {
                continue;
            }
            let Ok(text) = fs::read(format!("/proc/{pid}/mountinfo")) else { continue };
            if table::entries(&text).any(|entry| same(&entry)) {
                let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
                let name = escape(name.trim_ascii_end());
                holders.elsewhere.push(format!("{name} (process {pid})"));
            }
        }
        holders
    }

    /// Returns whether nobody has it mounted.
    pub(crate) fn are_none(&self) -> bool {
        self.here.is_empty() && self.elsewhere.is_empty()
    }

    /// The mounts in this name space, as a part of a message.
    pub(crate) fn places(&self) -> String {
        let places = self.here.iter().map(|place| escape(place.as_os_str().as_bytes()));
        listed(&places.collect::<Vec<_>>())
    }

    /// All of them, as a part of a message.
    pub(crate) fn text(&self) -> String {
        let mut parts = Vec::new();
        if !self.here.is_empty() {
            parts.push(format!("mounted on {}", self.places()));
        }
        if !self.elsewhere.is_empty() {
            let who = listed(&self.elsewhere);
            parts.push(format!("mounted in another mount name space, that of {who}"));
        }
        parts.join(", and ")
    }
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_not_all_named() {
        let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(listed(&names[..2]), "0, 1");
        assert_eq!(listed(&names), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        let holders =
            Holders { here: vec!["/a b".into()], elsewhere: vec!["sh (process 3)".into()] };
        let text =
            "mounted on /a b, and mounted in another mount name space, that of sh (process 3)";
        assert_eq!(holders.text(), text);
        assert!(!holders.are_none() && Holders::default().are_none());
    }
}
