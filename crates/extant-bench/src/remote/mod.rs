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
    /// Parts that are measured: of `qcow2`, `nbd`, `store`, `overlays`; empty for all.
    pub parts: Vec<String>,
}

impl Plan {
    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

/// Measures all rows in `dir`, round by round. What cannot be measured here is named and left out.
///
/// # Errors
///
/// When an image cannot be made, a server does not come up, or a command fails.
pub fn measure(plan: &Plan, dir: &Path) -> Result<Vec<Series>> {
    let disks = plan.has("qcow2").then(|| disks::Disks::make(plan, dir)).transpose()?;
    let server = plan.has("nbd").then(|| nbd::Nbdkit::start(plan, dir)).transpose()?.flatten();
    let store = plan.has("store").then(|| store::Distant::make(plan, dir)).transpose()?;
    let mut all = Vec::new();
    for _ in 0..plan.rounds {
        if let Some(disks) = &disks {
            disks.measure(plan, &mut all)?;
        }
        if let Some(server) = &server {
            server.measure(&mut all)?;
        }
        if let Some(store) = &store {
            store.measure(plan, dir, &mut all)?;
        }
    }
    drop((disks, server, store));
    if plan.has("overlays") {
        many::measure(plan, dir, &mut all)?;
    }
    Ok(all)
}
