//! A second mount of what is mounted already: another view of the same file system, as the kernel's own
//! file systems have it.

use std::os::unix::ffi::OsStrExt;

use extant_fuse::mount::bind;
use rustix::process::geteuid;

use crate::exit::{Exit, Failure, Result};
use crate::mounting::launcher::Request;
use crate::mounting::options::source_name;
use crate::mounting::{asked, table};
use crate::output::complain;
use crate::text::escape;

/// Shows what is mounted of an image at another directory too, as root. `None` where there is nothing, or a
/// server of its own will do: several may read.
pub(crate) fn show(request: &Request) -> Result<Option<Exit>> {
    let choices = &request.choices;
    let source = source_name(&request.image, choices);
    let all = table::all().unwrap_or_default();
    let live = all.into_iter().rev().find(|entry| entry.is_ours() && entry.source == source);
    let Some(live) = live.filter(|_| geteuid().is_root() && !choices.foreground) else {
        return Ok(None);
    };
    // A dead one is no obstacle: whoever opens the image finds that out.
    let Ok(info) = asked::info(&live.point) else { return Ok(None) };
    let is_read_only = info.get("read_only").and_then(serde_json::Value::as_bool) == Some(true);
    let (image, point) = (escape(source.as_bytes()), escape(live.point.as_os_str().as_bytes()));
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
