//! Builds an image of a directory and asks e2fsck and the kernel about it.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod read_back;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use extant_base::BlockSize;
use extant_image::options::MkfsOptions;
use extant_image::output::Output;
use extant_image::plan::{BuildOptions, Headroom, PlanError, PlanSummary, SizeSpec, plan};
use extant_image::profile::Profile;
use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::transform::Transform;
use extant_image::write::{NoProgress, WriteOptions, write_image};

/// Options by mke2fs spelling: profile, `-O`, `-b`, `-I`, `-E`.
pub(crate) fn options(
    profile: Profile,
    features: &str,
    block_bytes: u64,
    inode_size: u16,
    extended: &str,
) -> MkfsOptions {
    let mut options = MkfsOptions::new(profile).with_features(features).unwrap();
    if block_bytes > 0 {
        options.block_size = Some(BlockSize::new(block_bytes).unwrap());
    }
    if inode_size > 0 {
        options.inode_size = Some(inode_size);
    }
    if !extended.is_empty() {
        options.apply_extended(extended).unwrap();
    }
    options.created = Some(1_700_000_000);
    options
}

/// Builds `image` from `source`; `clamp`: reproducibly, times as of 2023 at the latest.
pub(crate) fn build(
    source: &Path,
    image: &Path,
    mkfs: MkfsOptions,
    size: SizeSpec,
    threads: usize,
    clamp: bool,
) -> Result<PlanSummary, PlanError> {
    let scan =
        ScanOptions { threads: NonZeroUsize::new(threads).unwrap(), ..ScanOptions::default() };
    let mut scanned = scan_dir(source, &scan).unwrap();
    // As the command does with SOURCE_DATE_EPOCH: reading the source changes access times.
    let transform = Transform { epoch: mkfs.created, ..Transform::default() };
    let reproducible = clamp && mkfs.created.is_some();
    if clamp {
        transform.apply(&mut scanned.tree).unwrap();
    }
    let build = BuildOptions { mkfs, size, reproducible };
    let plan = plan(&mut scanned.tree, &build)?;
    let output = Output::create(image, plan.image_bytes()).unwrap();
    let options = WriteOptions {
        threads,
        target_is_zeroed: output.is_zeroed(),
        progress: &NoProgress,
        cancel: &AtomicBool::new(false),
    };
    let contents = &*scanned.contents;
    write_image(&plan, &scanned.tree, contents, output.device(), &options).unwrap();
    output.commit().unwrap();
    Ok(plan.summary())
}

/// Headroom, and what Linux lets no data have: a fiftieth of the clusters, 4096 at most.
pub(crate) fn free_wanted(summary: &PlanSummary, headroom_blocks: u64) -> u64 {
    let pool = if headroom_blocks == 0 { 0 } else { (summary.blocks / 50).min(4096) };
    headroom_blocks + pool
}

/// No headroom.
pub(crate) const AUTO: SizeSpec = SizeSpec::Auto(Headroom::None);
