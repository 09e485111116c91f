//! The image that a journal leaves which stopped for an error.
//!
//! What a file system has that met errors, apart from them, is what a cut of power leaves. As long as
//! e2fsck sees the state it trusts no list of orphans: it finds them, and more of them, by looking at
//! everything, as it does on an image that the kernel leaves so. So the state is taken off first.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use extant::MountOptions;
use extant_block::MemoryDevice;
use extant_format::features::Incompat;
use extant_testkit::image;
use extant_testkit::oracle::{Tool, e2fsck_as};

use crate::round::check;

/// Whether `line`, the only question of e2fsck that this is about or the one before it, is one that
/// ending orphans brings: what is free is counted, which nobody stores while mounted, and the file of
/// orphans has had some. That e2fsck leaves it unclean itself it says of the kernel's images, too.
fn is_of_orphans(line: &str) -> bool {
    let is_total = line.starts_with("Free ") && !line.contains(" for group ");
    (is_total && line.contains(" count wrong ("))
        || (line.starts_with("Orphan file ") && line.ends_with(" is not clean."))
        || line.starts_with("Feature orphan_present is set but ")
        // Nodes of extents that are half empty are no fault.
        || line.ends_with("Optimize? yes")
}

/// Whether e2fsck corrects how many blocks an inode has that it has just shortened itself: it gives nodes of the
/// map back with the blocks that they named, and does not count them.
fn is_count_of_shortened(text: &str, line: &str) -> bool {
    line.split_once(", i_blocks is ").is_some_and(|(inode, _)| {
        let inode = inode.trim_start_matches("Inode ");
        text.contains(&format!("Truncating orphaned inode {inode} "))
    })
}

/// Whether e2fsck found usage of the same inodes, but more space than they take, wherever it differs:
/// an orphan pays for a block of attributes that it shares with other inodes, and e2fsck does not give
/// that back when it deletes the orphan.
fn is_shared_block(text: &str) -> bool {
    let usage = |text: &str| -> Option<(u64, u64)> {
        let (space, inodes) = text.split_once('(')?.1.split_once(')')?.0.split_once(", ")?;
        Some((space.parse().ok()?, inodes.parse().ok()?))
    };
    let differs = |line: &str| {
        let (real, recorded) = line.split_once(" != ")?;
        let (real, recorded) = (usage(real.split_once("actual")?.1)?, usage(recorded)?);
        Some(real.0 < recorded.0 && real.1 == recorded.1)
    };
    let warnings = text.lines().filter(|line| line.starts_with("[QUOTA WARNING]"));
    (text.contains("Clearing orphaned inode ") || text.contains("Truncating orphaned inode "))
        && warnings.clone().count() > 0
        && warnings.into_iter().all(|line| differs(line) == Some(true))
}

/// Whether e2fsck, answering yes, did nothing but end what was begun: it deletes files without names, and
/// shortens those that were being shortened.
fn ends_only_orphans(text: &str) -> bool {
    let mut said = "";
    let mut fine = true;
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(question) = line.strip_suffix("? yes") {
            // The question may have a line of its own.
            let asked = if question.contains(' ') { line } else { said };
            let is_usage = line.starts_with("Update quota info for quota type ");
            fine &= is_of_orphans(asked)
                || is_count_of_shortened(text, asked)
                || (is_usage && is_shared_block(text));
        }
        said = line;
    }
    fine
}

/// Once the state is off, nothing is left to do but to end orphans: for the next mount, and for e2fsck.
pub(crate) fn check_but_for_errors(
    device: &MemoryDevice,
    options: &MountOptions,
    scratch: &Path,
) -> Result<(), String> {
    let path = scratch.join("stateless");
    let _ = std::fs::remove_file(&path);
    image::save(device, &path);
    // The log has a superblock with errors, too. Bitmaps fit their checksums only when it is replayed.
    let debugfs = Tool::find("debugfs")?;
    for request in ["journal_run", "set_super_value state 1"] {
        debugfs.run([OsStr::new("-nwR"), OsStr::new(request), path.as_os_str()]);
    }

    let mounted = Arc::new(image::load(&path));
    fn said(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let fs = options.open_shared(Arc::clone(&mounted) as _).map_err(said)?;
    let is_bigalloc = fs.superblock().bigalloc();
    let has_value_inodes = fs.features().has_incompat(Incompat::EA_INODE);
    fs.unmount().map_err(said)?;
    check(&mounted, scratch)
        .map_err(|what| format!("the next mount, but for the errors: {what}"))?;

    let found = e2fsck_as(&path, "-fy", &[])?;
    // It takes one block of each cluster behind the new end, and leaves inodes that hold values of
    // attributes behind without their owner.
    let spoils = is_bigalloc && found.text.contains("Truncating orphaned inode ")
        || has_value_inodes && found.text.contains("Clearing orphaned inode ");
    match found.status {
        Some(0 | 1) if spoils || ends_only_orphans(&found.text) => Ok(()),
        status => Err(format!("but for the errors, status {status:?}: {}", found.text)),
    }
}
