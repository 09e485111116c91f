//! Goal: whatever the features and sizes, the image is clean for e2fsck, the kernel mounts it and
//! sees the source's tree, as does the `extant` crate, and its free space is what was asked for.
//!
//! Method: one generated tree with every kind of file, built once per row of the table.

use std::path::Path;

use crate::common;
use common::{AUTO, build, options};
use extant_image::plan::{Headroom, SizeSpec};
use extant_image::profile::Profile;
use extant_testkit::compare::{CompareOptions, compare_trees};
use extant_testkit::oracle::{LoopMount, Tool, e2fsck, is_root};
use extant_testkit::tree::{TreeOptions, make};
use extant_testkit::{require, skip};

/// Builds, checks, mounts, compares. `block_bytes` 0: the default.
fn check(source: &Path, index: usize, row: Row) {
    let Row { profile, features, block_bytes, inode_size, extended, size } = row;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mkfs = options(profile, features, block_bytes, inode_size, extended);
    let summary =
        build(source, &image, mkfs, size, 2, false).unwrap_or_else(|e| panic!("{row:?}: {e}"));
    let report = e2fsck(&image).unwrap();
    assert!(report.is_clean(), "{row:?}: {summary:?}: {:?}\n{}", report.status, report.text);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), summary.size_bytes, "{row:?}");
    if let SizeSpec::Auto(Headroom::Bytes(bytes)) = size {
        let unit = u64::from(summary.block_bytes);
        let wanted = bytes.div_ceil(unit);
        // Linux keeps nothing where there are no extents.
        let wanted = match profile {
            Profile::Ext2 | Profile::Ext3 => wanted,
            _ => common::free_wanted(&summary, wanted),
        };
        assert!(
            summary.free_blocks >= wanted && summary.free_blocks <= wanted + 64,
            "{row:?}: asked for {wanted} free blocks, got {}",
            summary.free_blocks
        );
    }
    // Kernels differ in these.
    let unsure = ["casefold", "quota", "verity", "encrypt"];
    let mountable = summary.block_bytes <= 4096 && !unsure.iter().any(|f| features.contains(f));
    // Unoptimised code reads slowly; there, one row in four is enough where the kernel looks too.
    if !mountable || index.is_multiple_of(4) || !cfg!(debug_assertions) {
        common::read_back::assert_equal(source, &image, inode_size != 128);
    }
    if !mountable {
        return;
    }
    let mount = LoopMount::read_only(&image).unwrap_or_else(|e| panic!("{row:?}: {e}"));
    // Inodes of 128 bytes have no room for nanoseconds or for years after 2038.
    // A file may take an attribute block and map blocks more than in the source; clusters round up.
    let extra = if features.contains("bigalloc") { 1 << 19 } else { 1 << 15 };
    let compare = CompareOptions {
        times: inode_size != 128,
        extra_allocated_bytes: Some(extra),
        ..CompareOptions::default()
    };
    let found = compare_trees(source, mount.path(), &compare);
    assert!(found.is_empty(), "{row:?}: {} differences, first: {}", found.len(), found[0]);
}

#[derive(Clone, Copy, Debug)]
struct Row {
    profile: Profile,
    features: &'static str,
    block_bytes: u64,
    inode_size: u16,
    extended: &'static str,
    size: SizeSpec,
}

const ROW: Row = Row {
    profile: Profile::Default,
    features: "",
    block_bytes: 0,
    inode_size: 0,
    extended: "",
    size: AUTO,
};

const fn plus(bytes: u64) -> SizeSpec {
    SizeSpec::Auto(Headroom::Bytes(bytes))
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for profile in Profile::ALL {
        rows.push(Row { profile, ..ROW });
        rows.push(Row { profile, size: plus(10 << 20), ..ROW });
        rows.push(Row { profile, size: SizeSpec::Bytes(700 << 20), ..ROW });
        for block_bytes in [1024, 2048, 65536] {
            rows.push(Row { profile, block_bytes, ..ROW });
            rows.push(Row { profile, block_bytes, size: SizeSpec::Bytes(300 << 20), ..ROW });
        }
    }
    for features in [
        "^has_journal",
        "^extent,^64bit",
        "^flex_bg",
        "^metadata_csum,^metadata_csum_seed",
        "^metadata_csum,^metadata_csum_seed,uninit_bg",
        "^metadata_csum,^metadata_csum_seed,^64bit",
        "^64bit",
        "^resize_inode",
        "^resize_inode,meta_bg",
        "^sparse_super,^resize_inode",
        "sparse_super2",
        "^dir_index",
        "large_dir",
        "inline_data",
        "inline_data,ea_inode",
        "ea_inode",
        "bigalloc",
        "bigalloc,inline_data",
        "quota",
        "quota,project",
        "mmp",
        "fast_commit",
        "casefold",
        "^filetype",
        "^orphan_file",
        "^metadata_csum_seed",
        "stable_inodes,encrypt,verity",
        "^huge_file",
        "^dir_nlink",
        "^extra_isize",
    ] {
        rows.push(Row { features, ..ROW });
        rows.push(Row { features, size: SizeSpec::Bytes(1 << 30), ..ROW });
    }
    for inode_size in [128, 512, 1024, 4096] {
        rows.push(Row { inode_size, ..ROW });
    }
    rows.push(Row { inode_size: 128, features: "ea_inode", ..ROW });
    rows.push(Row { inode_size: 1024, features: "inline_data", ..ROW });
    rows.push(Row { block_bytes: 1024, features: "bigalloc,^resize_inode", ..ROW });
    rows.push(Row { block_bytes: 1024, features: "inline_data,ea_inode", ..ROW });
    rows.push(Row { extended: "packed_meta_blocks=1", size: SizeSpec::Bytes(2 << 30), ..ROW });
    rows.push(Row { extended: "stride=4,stripe_width=16", ..ROW });
    rows
}

#[test]
fn every_feature_set_is_clean_and_equal_to_the_source() {
    require!(Tool::find("e2fsck"));
    if !is_root() {
        skip!("needs root: the tree has devices and owners, and images are mounted");
    }
    let source = tempfile::tempdir().unwrap();
    make(source.path(), &TreeOptions::default());
    // Attributes and a symlink's target that need blocks of 4 KiB.
    let small = tempfile::tempdir().unwrap();
    make(small.path(), &TreeOptions::default());
    std::fs::remove_file(small.path().join("attributes/many")).unwrap();
    std::fs::remove_file(small.path().join("links/symlink-4095")).unwrap();
    let wanted = std::env::var("EXTANT_ROW").ok();
    let mut failed = Vec::new();
    for (index, row) in rows().into_iter().enumerate() {
        if wanted.as_ref().is_some_and(|w| *w != index.to_string()) {
            continue;
        }
        let source = if matches!(row.block_bytes, 1024 | 2048) { &small } else { &source };
        let run = std::panic::catch_unwind(|| check(source.path(), index, row));
        if run.is_err() {
            failed.push(format!("EXTANT_ROW={index}: {row:?}"));
        }
    }
    assert!(failed.is_empty(), "{} rows failed:\n{}", failed.len(), failed.join("\n"));
}
