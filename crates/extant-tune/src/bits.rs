//! Features that are a bit of the superblock, with the conditions under which it may be set or cleared.

use extant_base::GroupIndex;
use extant_change::Image;
use extant_format::features::{Encoding, Feature};
use extant_format::inode::InodeFlags;
use extant_layout::Heads;

use crate::error::{Result, refuse};
use crate::inodes::each_inode;
use crate::work::Work;

/// Why a feature is not switched at all.
fn never(feature: Feature, on: bool) -> Option<&'static str> {
    Some(match (feature, on) {
        (Feature::SPARSE_SUPER, false) => "groups have no room for the backups they would get",
        (Feature::EXTENTS, false) => "files have maps of extents",
        (Feature::FILETYPE, _) => "every directory would have to be written anew",
        (Feature::EXT_ATTR, false) => "files may have attributes",
        (Feature::LARGEDIR | Feature::STABLE_INODES, false) => {
            "what it allowed may be there, and what it promised is relied on"
        }
        (Feature::RESIZE_INODE, _) => {
            "its blocks are part of every backup; extant resize takes it away when they are used up"
        }
        (Feature::META_BG | Feature::BIGALLOC | Feature::SPARSE_SUPER2, _) => {
            "it is the shape of the file system: extant build makes another one"
        }
        (Feature::INLINE_DATA, _) => "it is chosen when a file system is made",
        (Feature::READONLY, _) => {
            "tune2fs -O switches it; extant does not change images that have it"
        }
        (Feature::RECOVER | Feature::ORPHAN_PRESENT, _) => "it is a state, and no choice",
        _ => return None,
    })
}

/// Features that are only a bit, on.
const ON: &[Feature] = &[
    Feature::DIR_INDEX,
    Feature::LARGEDIR,
    Feature::DIR_NLINK,
    Feature::EXTRA_ISIZE,
    Feature::HUGE_FILE,
    Feature::LARGE_FILE,
    Feature::SPARSE_SUPER,
    Feature::CASEFOLD,
    Feature::ENCRYPT,
    Feature::VERITY,
    Feature::EA_INODE,
    Feature::STABLE_INODES,
    Feature::EXT_ATTR,
    Feature::EXTENTS,
    Feature::FLEX_BG,
];

/// Features that are only a bit, off.
const OFF: &[Feature] = &[
    Feature::DIR_INDEX,
    Feature::DIR_NLINK,
    Feature::EXTRA_ISIZE,
    Feature::HUGE_FILE,
    Feature::LARGE_FILE,
    Feature::CASEFOLD,
    Feature::ENCRYPT,
    Feature::VERITY,
    Feature::EA_INODE,
    Feature::FLEX_BG,
];

/// The bits that are asked for and differ.
fn wanted(work: &Work<'_>, on: bool) -> Vec<Feature> {
    let asked = work.request.features.iter().map(|(feature, _)| *feature);
    let mut list: Vec<Feature> = asked
        .filter(|feature| work.request.wants(*feature) == Some(on) && work.has(*feature) != on)
        .filter(|feature| !is_elsewhere(*feature))
        .collect();
    // What others need comes before them, in whatever order it was said.
    list.sort_by_key(|feature| *feature != Feature::EXTENTS);
    list.dedup();
    list
}

/// Features that have a conversion of their own.
fn is_elsewhere(feature: Feature) -> bool {
    [
        Feature::HAS_JOURNAL,
        Feature::FAST_COMMIT,
        Feature::ORPHAN_FILE,
        Feature::MMP,
        Feature::METADATA_CSUM,
        Feature::GDT_CSUM,
        Feature::CSUM_SEED,
        Feature::SIXTY_FOUR_BIT,
        Feature::QUOTA,
        Feature::PROJECT,
    ]
    .contains(&feature)
}

/// Refuses what is never switched.
pub(crate) fn check_words(features: &[(Feature, bool)], has: impl Fn(Feature) -> bool) -> Result {
    for (feature, on) in features {
        if has(*feature) == *on || is_elsewhere(*feature) {
            continue;
        }
        let name = if *on { feature.to_string() } else { format!("^{feature}") };
        if let Some(why) = never(*feature, *on) {
            return refuse(name, why);
        }
        if !(if *on { ON } else { OFF }).contains(feature) {
            return refuse(name, "extant does not know how to switch it");
        }
    }
    Ok(())
}

/// Sets bits.
pub(crate) fn on(work: &mut Work<'_>) -> Result {
    for feature in wanted(work, true) {
        let sb = &work.image.sb;
        match feature {
            Feature::EXTRA_ISIZE | Feature::EA_INODE if sb.inode_size <= 128 => {
                return refuse(
                    feature,
                    "inodes of 128 bytes have no room; -I 256 makes them larger",
                );
            }
            Feature::CASEFOLD => {
                let encoding = work.request.encoding.unwrap_or(Encoding::Utf8V12_1);
                if let Encoding::Unknown(raw) = encoding {
                    return refuse("casefold", format!("there is no encoding {raw}"));
                }
                work.image.sb.encoding = encoding;
                work.image.sb.encoding_flags = work.request.encoding_flags.unwrap_or_default();
            }
            Feature::VERITY if !work.has(Feature::EXTENTS) => {
                return refuse("verity", "hash trees need files with extents; -O extent first");
            }
            Feature::SPARSE_SUPER => fewer_backups(work)?,
            _ => {}
        }
        work.image.sb.features.insert(feature);
        work.image.sb.revision = work.image.sb.revision.max(1);
    }
    Ok(work.image.write_superblock()?)
}

/// Gives the blocks back of backups that go.
fn fewer_backups(work: &mut Work<'_>) -> Result {
    if work.has(Feature::RESIZE_INODE) || work.has(Feature::META_BG) {
        return refuse("sparse_super", "with resize_inode or meta_bg, backups cannot go");
    }
    let old = work.image.heads();
    let mut sb = work.image.sb.clone();
    sb.features.insert(Feature::SPARSE_SUPER);
    let new = Heads::of(&sb);
    for group in old.superblock_groups().filter(|group| !new.has_superblock(*group)) {
        let head = old.head(group).blocks();
        work.space.free_blocks(&work.image, head.start, head.end - head.start);
    }
    let old = std::mem::replace(&mut work.image.sb, sb);
    work.space.keep_fixed(&work.image)?;
    work.image.sb = old;
    work.settle_space()?;
    // Groups that were never written have what the flag and their place say: make it explicit.
    work.image.sb.overhead_clusters = 0;
    work.to_check = true;
    Ok(())
}

/// Clears bits, where nothing in the image has what they stand for.
pub(crate) fn off(work: &mut Work<'_>) -> Result {
    for feature in wanted(work, false) {
        match feature {
            Feature::CASEFOLD => unused(work, feature, InodeFlags::CASEFOLD)?,
            Feature::ENCRYPT => unused(work, feature, InodeFlags::ENCRYPT)?,
            Feature::VERITY => unused(work, feature, InodeFlags::VERITY)?,
            Feature::EA_INODE => unused(work, feature, InodeFlags::EA_INODE)?,
            Feature::HUGE_FILE => unused(work, feature, InodeFlags::HUGE_FILE)?,
            Feature::FLEX_BG => at_home(&work.image)?,
            Feature::DIR_INDEX => work.full_dirs.extend(with_flag(&work.image, InodeFlags::INDEX)?),
            _ => {}
        }
        if feature == Feature::CASEFOLD {
            work.image.sb.encoding = Encoding::Unknown(0);
            work.image.sb.encoding_flags = Default::default();
        }
        work.image.sb.features.remove(feature);
        work.to_check |= !matches!(feature, Feature::CASEFOLD | Feature::ENCRYPT | Feature::VERITY);
    }
    Ok(work.image.write_superblock()?)
}

/// Refuses `^flex_bg` where a group has its bitmaps or its table in another.
fn at_home(image: &Image) -> Result {
    let (sb, len) = (&image.sb, u64::from(image.sb.inode_table_blocks()));
    for group in 0..sb.group_count {
        let descriptor = image.group(group)?;
        let start = sb.group_first_block(GroupIndex(group)).map_or(0, |block| block.0);
        let end = start.saturating_add(u64::from(sb.blocks_per_group)).min(sb.blocks_count);
        for (what, block, len) in [
            ("block bitmap", descriptor.block_bitmap.0, 1),
            ("inode bitmap", descriptor.inode_bitmap.0, 1),
            ("inode table", descriptor.inode_table.0, len),
        ] {
            if block < start || block.saturating_add(len) > end {
                let why = format!(
                    "the {what} of group {group} is at block {block}, in another group; extant build -O ^flex_bg makes \
                     a file system without it"
                );
                return refuse("^flex_bg", why);
            }
        }
    }
    Ok(())
}

fn with_flag(image: &Image, flag: InodeFlags) -> Result<Vec<extant_base::Ino>> {
    let found = each_inode(image, Vec::new, |found, record, is_used| {
        if is_used && record.links() != 0 && record.has(flag) {
            found.push(record.ino);
        }
        Ok(false)
    })?;
    let mut found = found.concat();
    found.sort_unstable();
    Ok(found)
}

fn unused(work: &Work<'_>, feature: Feature, flag: InodeFlags) -> Result {
    let found = with_flag(&work.image, flag)?;
    match found.as_slice() {
        [] => Ok(()),
        [first, ..] => refuse(
            format!("^{feature}"),
            format!("{} inodes use it, inode {first} first", found.len()),
        ),
    }
}
