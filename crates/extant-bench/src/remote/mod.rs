//! Images where they lie: qcow2, behind an NBD server, in an object store that is far away, and under many
//! overlays.

mod disks;
mod many;
mod nbd;
mod store;

use std::path::Path;

use anyhow::Result;

use crate::report::Series;

/// What is measured, and how often.
pub struct Plan {
    /// The command.
    pub extant: String,
    /// How many rounds.
    pub rounds: u32,
    /// The tree in the image that `ls` looks into.
    pub source: String,
    /// MiB of the image in the store.
    pub store_mib: u64,
    /// Mounts over one base.
    pub mounts: u32,
}

/// Measures all rows in `dir`, round by round. What cannot be measured here is named and left out.
///
/// # Errors
///
/// When an image cannot be made, a server does not come up, or a command fails.
pub fn measure(plan: &Plan, dir: &Path) -> Result<Vec<Series>> {
    let disks = disks::Disks::make(plan, dir)?;
    let server = nbd::Nbdkit::start(dir)?;
    let store = store::Distant::make(plan, dir)?;
    let mut all = Vec::new();
    for _ in 0..plan.rounds {
        disks.measure(plan, &mut all)?;
        if let Some(server) = &server {
            server.measure(&mut all)?;
        }
        store.measure(plan, dir, &mut all)?;
    }
    drop((disks, server));
    many::measure(plan, dir, &mut all)?;
    Ok(all)
}
