//! A second mount of what is mounted already: another view of the same file system, as the kernel's own
//! file systems have it.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use extant_fuse::mount::bind;
use rustix::process::geteuid;
use serde_json::Value;

use crate::exit::{Exit, Failure, Result};
use crate::mounting::launcher::Request;
use crate::mounting::options::source_name;
use crate::mounting::{asked, table};
use crate::output::complain;
use crate::text::escape;

/// Shows what is mounted of an image at another directory too, as root. `None` where there is nothing, or a
/// server of its own will do: several may read.
///
/// At a directory where it is mounted already, it is refused, as the kernel does it with its own file systems: who
/// gave the same order twice would have to unmount twice.
pub(crate) fn show(request: &Request) -> Result<Option<Exit>> {
    let choices = &request.choices;
    let source = source_name(&request.image, choices);
    if !geteuid().is_root() {
        return Ok(None);
    }
    let ours = identity(choices.source.written(&request.image));
    let all = table::all().unwrap_or_default();
    let live = all.into_iter().rev().filter(|entry| entry.is_ours() && entry.source == source);
    // A dead one is no obstacle: whoever opens the image finds that out.
    let live = live.filter_map(|entry| asked::info(&entry.point).ok().map(|info| (entry, info)));
    let shown = live.into_iter().find(|(_, info)| match &ours {
        Some(ours) => serves(info, ours),
        // No file of this host.
        None => true,
    });
    let Some((live, info)) = shown else { return Ok(None) };
    let is_read_only = info.get("read_only").and_then(Value::as_bool) == Some(true);
    let (image, point) = (escape(source.as_bytes()), escape(live.point.as_os_str().as_bytes()));
    if is_same_place(&live.point, &request.dir) {
        let message = format!("{image} is mounted on {point} already");
        return Err(Failure::new(Exit::Refused, message)
            .hint(format!("extant umount {point}, or mount -o remount for other options")));
    }
    if choices.foreground {
        return Ok(None);
    }
    if is_read_only {
        return match choices.read_only {
            true => Ok(None),
            false => Err(Failure::new(
                Exit::Refused,
                format!("{image} is in use: it is mounted on {point}, for reading"),
            )
            .hint(format!("extant umount {point}"))),
        };
    }
    bind(&live.point, &request.dir, &choices.kernel(&source))?;
    complain(&format!(
        "note: {image} is mounted on {point} already: this shows the same, with the options of that"
    ));
    Ok(Some(Exit::Success))
}

/// Returns whether both are the root of one mount. Something else that lies over it is another place.
fn is_same_place(point: &Path, dir: &Path) -> bool {
    let identity = |path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(point).is_some_and(|point| identity(dir) == Some(point))
}

/// What tells a file or device from others.
#[derive(PartialEq, Eq)]
enum Identity {
    File(u64, u64),
    Device(u64),
}

fn identity(path: &Path) -> Option<Identity> {
    let found = std::fs::metadata(path).ok()?;
    Some(match found.file_type().is_block_device() {
        true => Identity::Device(found.rdev()),
        false => Identity::File(found.dev(), found.ino()),
    })
}

/// Returns whether a server has that very file open. What its name leads to may have become another one since
/// it was mounted.
fn serves(info: &Value, image: &Identity) -> bool {
    let Some(pid) = info.get("pid").and_then(Value::as_u64) else { return false };
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|file| identity(&file.path()).as_ref() == Some(image))
}
