//! A mount that becomes read-only, or writable again.
//!
//! The kernel comes first on the way to read-only, because it knows who has files open for writing and
//! what it still keeps; the server comes first on the way back. An order to the server is a question
//! here, since no attribute can be set on what is read-only.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use extant_fuse::mount::{hand_over_writes, remount};
use rustix::process::geteuid;

use crate::exit::{Exit, Failure, Result};
use crate::mounting::options::MountChoices;
use crate::mounting::{asked, table, words};
use crate::text::escape;

/// Words in the list of mounts that a remount keeps unless it says otherwise.
const KEPT: &[&str] = &[
    "ro",
    "rw",
    "nosuid",
    "nodev",
    "noexec",
    "noatime",
    "relatime",
    "nodiratime",
    "sync",
    "dirsync",
];

/// Changes the mount at `dir` to what `lists` say.
pub(crate) fn run(dir: &Path, lists: &[String]) -> Result<Exit> {
    let name = escape(dir.as_os_str().as_bytes());
    let failed = |error| Failure::caused(Exit::Io, &format!("cannot find {name}"), &error);
    let entry = table::at(dir).map_err(failed)?.filter(table::Entry::is_ours);
    let Some(entry) = entry else {
        return Err(Failure::new(Exit::Refused, format!("{name} is not mounted by extant")));
    };
    let kept: Vec<&str> = entry.options.split(',').filter(|word| KEPT.contains(word)).collect();
    let mut before = MountChoices::default();
    // mount(8) repeats what fstab says. What the server does not know it was mounted with, it was not.
    let info = asked::info(&entry.point).unwrap_or_default();
    if let Some(list) = info.get("options").and_then(serde_json::Value::as_str) {
        words::apply_list(list, &mut before)?;
    }
    // The mount's own word stands before that of the file system, and counts.
    words::apply_list(&kept.join(","), &mut before)?;
    before.read_only = entry.options.split(',').any(|word| word == "ro");
    let mut choices = before.clone();
    lists.iter().try_for_each(|list| words::apply_list(list, &mut choices))?;
    refuse_the_rest(&before, &choices)?;
    let point = entry.point.as_path();
    let kernel = choices.kernel(&entry.source);
    let order = |order| {
        asked::order(point, order).map_err(|error| {
            let failure = Failure::caused(Exit::Refused, &format!("{name}: {order}"), &error);
            match error.kind() {
                std::io::ErrorKind::ReadOnlyFilesystem => why_read_only(point, &name, failure),
                std::io::ErrorKind::PermissionDenied => {
                    failure.hint("only root and who mounted it may")
                }
                _ => failure,
            }
        })
    };
    // Whatever it was mounted with, it may have been switched since.
    let words = lists.iter().flat_map(|list| list.split(','));
    let is_asked = words.into_iter().any(|word| word.starts_with("mb_optimize_scan="));
    let scan = if choices.optimize_scan { "mb_optimize_scan=1" } else { "mb_optimize_scan=0" };
    let is_root = geteuid().is_root();
    if !choices.read_only {
        if before.read_only && !is_root {
            let message = format!("{name} is mounted read-only, and only root can change that");
            return Err(Failure::new(Exit::Refused, message)
                .hint(format!("mount it again: extant umount {name}, then without -r")));
        }
        order("remount,rw")?;
        if is_root {
            remount(point, &kernel)?;
        }
        if is_asked {
            order(scan)?;
        }
        return Ok(Exit::Success);
    }
    if is_root {
        remount(point, &kernel)?;
    } else {
        // Without root, only the server refuses; what the kernel keeps must be there before.
        hand_over_writes(point)?;
    }
    if is_asked {
        order(scan)?;
    }
    order("remount,ro")?;
    Ok(Exit::Success)
}

/// Why the server of what is mounted at `point` does not write.
fn why_read_only(point: &Path, name: &str, failure: Failure) -> Failure {
    let info = asked::info(point).unwrap_or_default();
    let said = |key: &str| info.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
    match (said("stopped_because"), said("not_writable_because")) {
        (Some(why), _) => {
            Failure::new(Exit::Refused, format!("{name}: writing has stopped: {why}"))
                .hint("unmount it, and mount it again")
        }
        (None, Some(why)) => Failure::new(Exit::Refused, format!("{name} stays read-only: {why}")),
        (None, None) => {
            failure.hint("it was mounted for reading, or stopped after damage: mount it again")
        }
    }
}

/// Only what the kernel keeps, read-only, and how groups are searched can change while it is mounted.
fn refuse_the_rest(before: &MountChoices, after: &MountChoices) -> Result<()> {
    let same = MountChoices {
        remount: after.remount,
        read_only: after.read_only,
        nosuid: after.nosuid,
        nodev: after.nodev,
        noexec: after.noexec,
        allow_other: after.allow_other,
        verbose: after.verbose,
        optimize_scan: after.optimize_scan,
        ..before.clone()
    };
    match same == *after {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Unsupported,
            "a remount changes ro, rw, suid, dev, exec and mb_optimize_scan; for other options mount again",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_change_is_refused() {
        let before = MountChoices::default();
        for (list, can) in [
            ("remount,ro,nosuid", true),
            ("remount,rw,relatime,user_id=0,group_id=0,default_permissions,allow_other", true),
            ("remount,mb_optimize_scan=0", true),
            ("remount,noatime", false),
            ("remount,errors=continue", false),
            ("remount,commit=9", false),
        ] {
            let mut after = before.clone();
            words::apply_list(list, &mut after).unwrap();
            assert_eq!(refuse_the_rest(&before, &after).is_ok(), can, "{list}");
        }
    }
}
