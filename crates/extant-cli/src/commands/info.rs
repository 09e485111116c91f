//! `extant info`: what kind of file system an image holds.

use std::io::Write;

use clap::Args;
use extant::{Fs, GroupDescriptor, GroupIndex};
use extant_format::features::{Compat, Incompat, RoCompat, State};
use extant_format::group::GroupFlags;
use extant_layout::Heads;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::exit::{Exit, Failure, Result};
use crate::image::{Failures, Image, ImagesArgs, device_bytes};
use crate::output::{Out, complain, put_bytes};
use crate::text::{human_bytes, seconds_text};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant info root.img\n  extant info --json --groups root.img\n  extant info -b 32768 damaged.img\n";

/// Show the file systems of images: sizes, features, journal, free space
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// Also every block group
    #[arg(long)]
    groups: bool,
    /// One JSON object; with --groups, an array in it
    #[arg(long)]
    json: bool,
}

/// ext2, ext3 or ext4, by the features that made the difference.
fn generation(fs: &Fs) -> &'static str {
    let features = fs.features();
    let ext4 = Incompat::EXTENTS
        .union(Incompat::FLEX_BG)
        .union(Incompat::SIXTY_FOUR_BIT)
        .union(Incompat::INLINE_DATA);
    let ext4_ro = RoCompat::METADATA_CSUM.union(RoCompat::HUGE_FILE).union(RoCompat::EXTRA_ISIZE);
    if !features.incompat.intersection(ext4).is_empty()
        || !features.ro_compat.intersection(ext4_ro).is_empty()
    {
        "ext4"
    } else if features.has_compat(Compat::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    }
}

/// Returns what the journal is and does, in words.
fn journal_state(fs: &Fs, ignored: bool) -> String {
    let superblock = fs.superblock();
    if !fs.features().has_compat(Compat::HAS_JOURNAL) {
        return "none".into();
    }
    let place = match superblock.journal_inode.0 {
        0 => format!("on device {}", Uuid::from_bytes(superblock.journal_uuid)),
        ino => match fs.inode(superblock.journal_inode) {
            Ok(inode) => format!("inode {ino}, {}", human_bytes(inode.size())),
            Err(error) => format!("inode {ino}, unreadable: {error}"),
        },
    };
    let state = match fs.replayed() {
        Some(replayed) => format!(
            "unclean; {} transactions and {} fast commits are shown as if replayed",
            replayed.transactions, replayed.fast_commits
        ),
        None if ignored && fs.features().has_incompat(Incompat::RECOVER) => {
            "unclean and ignored: what is shown may be inconsistent".into()
        }
        None => "clean".into(),
    };
    format!("{place}; {state}")
}

fn state_names(state: State) -> Vec<&'static str> {
    let mut names = vec![if state.contains(State::VALID) { "clean" } else { "not clean" }];
    names.extend(state.contains(State::ERROR).then_some("with errors"));
    names.extend(state.contains(State::ORPHAN).then_some("orphans being recovered"));
    names
}

/// Runs the command.
pub(crate) fn run(args: &InfoArgs) -> Result<Exit> {
    args.images.each(|image| info(args, image))
}

fn info(args: &InfoArgs, image: &Image) -> Result<Exit> {
    if image.path != b"/" {
        return Err(Failure::usage("info is for a whole image: leave the path out"));
    }
    let mut failures = Failures::default();
    let mut out = Out::new();
    let statfs = image.fs.statfs().map_err(|error| {
        failures.report(&image.failure(b"/", error));
    });
    let superblock = image.fs.superblock();
    let needed = superblock.blocks_count.saturating_mul(u64::from(superblock.block_size.bytes()));
    if device_bytes(&image.fs) < needed {
        complain(&format!(
            "{}: note: the file system has {needed} bytes and the image only {}: it is cut short",
            image.name,
            device_bytes(&image.fs)
        ));
    }
    if args.json {
        let mut object = to_json(image, args, statfs.ok().as_ref());
        image.put_name(&mut object);
        if args.groups {
            let mut groups = Vec::new();
            for index in 0..superblock.group_count {
                match image.fs.group(GroupIndex(index)) {
                    Ok(group) => groups.push(group_json(&image.fs, GroupIndex(index), &group)),
                    Err(error) => failures.report(&image.failure(b"/", error)),
                }
            }
            object.insert("groups".into(), groups.into());
        }
        out.json_pretty(&Value::Object(object))?;
    } else {
        print(&mut out, image, args, statfs.ok().as_ref())?;
        if args.groups {
            print_groups(&mut out, image, &mut failures)?;
        }
    }
    out.flush()?;
    Ok(failures.exit())
}

fn print(
    out: &mut Out,
    image: &Image,
    args: &InfoArgs,
    statfs: Option<&extant::Statfs>,
) -> Result<()> {
    let fs = &image.fs;
    let superblock = fs.superblock();
    let block_bytes = u64::from(superblock.block_size.bytes());
    let bytes = |blocks: u64| human_bytes(blocks.saturating_mul(block_bytes));
    writeln!(out, "File system: {}", generation(fs))?;
    if !superblock.label().is_empty() {
        write!(out, "      Label: ")?;
        out.name(superblock.label())?;
        writeln!(out)?;
    }
    writeln!(out, "       UUID: {}", Uuid::from_bytes(superblock.uuid))?;
    let blocks = superblock.blocks_count;
    writeln!(out, "       Size: {} ({blocks} blocks of {block_bytes} bytes)", bytes(blocks))?;
    let size = blocks.saturating_mul(block_bytes);
    let held = device_bytes(fs);
    if held < size {
        let missing = human_bytes(size - held);
        writeln!(out, "  Cut short: the file has {held} of {size} bytes, {missing} are missing")?;
    }
    if superblock.bigalloc() {
        writeln!(out, "    Cluster: {}", human_bytes(superblock.cluster_bytes()))?;
    }
    if let Some(statfs) = statfs {
        let (free, available) = (statfs.blocks_free, statfs.blocks_available);
        writeln!(
            out,
            "       Free: {} ({free} blocks), {} for users other than root",
            bytes(free),
            bytes(available)
        )?;
        let used = statfs.files.saturating_sub(statfs.files_free);
        writeln!(
            out,
            "     Inodes: {} of {} bytes, {used} used, {} free",
            statfs.files, superblock.inode_size, statfs.files_free
        )?;
    }
    writeln!(
        out,
        "     Groups: {} of {} blocks and {} inodes",
        superblock.group_count, superblock.blocks_per_group, superblock.inodes_per_group
    )?;
    writeln!(out, "   Features: {}", fs.features().names().join(" "))?;
    writeln!(out, "    Journal: {}", journal_state(fs, args.images.how.no_replay))?;
    writeln!(out, "      State: {}", state_names(superblock.state).join(", "))?;
    writeln!(out, "    Created: {}", seconds_text(superblock.mkfs_time))?;
    writeln!(out, "    Mounted: {}", seconds_text(superblock.mount_time))?;
    writeln!(out, "    Written: {}", seconds_text(superblock.write_time))?;
    writeln!(out, "    Checked: {}", seconds_text(superblock.last_check))?;
    if superblock.error_count > 0 {
        let last = seconds_text(superblock.last_error_time);
        writeln!(out, "     Errors: {}, the last at {last}", superblock.error_count)?;
    }
    if !superblock.last_mounted_path().is_empty() {
        write!(out, " Mounted on: ")?;
        out.name(superblock.last_mounted_path())?;
        writeln!(out)?;
    }
    Ok(())
}

fn print_groups(out: &mut Out, image: &Image, failures: &mut Failures) -> Result<()> {
    let superblock = image.fs.superblock();
    writeln!(
        out,
        "\n{:>8} {:>12} {:>12} {:>12} {:>12} {:>10} {:>10} {:>8}  flags",
        "group", "first", "block map", "inode map", "inode table", "free", "free ino", "dirs"
    )?;
    for index in 0..superblock.group_count {
        let index = GroupIndex(index);
        let group = match image.fs.group(index) {
            Ok(group) => group,
            Err(error) => {
                out.flush()?;
                failures.report(&image.failure(b"/", error));
                continue;
            }
        };
        let first = superblock.group_first_block(index).map_or(0, |block| block.0);
        writeln!(
            out,
            "{index:>8} {first:>12} {:>12} {:>12} {:>12} {:>10} {:>10} {:>8}  {}",
            group.block_bitmap.0,
            group.inode_bitmap.0,
            group.inode_table.0,
            group.free_clusters,
            group.free_inodes,
            group.directories,
            group_flags(&image.fs, index, &group).join(" ")
        )?;
    }
    Ok(())
}

fn group_flags(fs: &Fs, index: GroupIndex, group: &GroupDescriptor) -> Vec<&'static str> {
    let has = |flag| group.flags.contains(flag);
    let all = [
        (Heads::of(fs.superblock()).has_superblock(index), "superblock"),
        (has(GroupFlags::INODE_UNINIT), "inode_uninit"),
        (has(GroupFlags::BLOCK_UNINIT), "block_uninit"),
        (has(GroupFlags::INODE_ZEROED), "itable_zeroed"),
    ];
    all.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect()
}

fn group_json(fs: &Fs, index: GroupIndex, group: &GroupDescriptor) -> Value {
    json!({
        "group": index.0,
        "first_block": fs.superblock().group_first_block(index).map(|block| block.0),
        "block_bitmap": group.block_bitmap.0,
        "inode_bitmap": group.inode_bitmap.0,
        "inode_table": group.inode_table.0,
        "free_clusters": group.free_clusters,
        "free_inodes": group.free_inodes,
        "directories": group.directories,
        "flags": group_flags(fs, index, group),
    })
}

fn to_json(image: &Image, args: &InfoArgs, statfs: Option<&extant::Statfs>) -> Map<String, Value> {
    let superblock = image.fs.superblock();
    let block_bytes = u64::from(superblock.block_size.bytes());
    let mut object = Map::new();
    put_bytes(&mut object, "label", superblock.label());
    let replayed = image.fs.replayed().map(|replayed| {
        json!({
            "transactions": replayed.transactions,
            "fast_commits": replayed.fast_commits,
            "blocks": replayed.blocks,
        })
    });
    let fixed = json!({
        "type": generation(&image.fs),
        "uuid": Uuid::from_bytes(superblock.uuid).to_string(),
        "size_bytes": superblock.blocks_count.saturating_mul(block_bytes),
        "device_bytes": device_bytes(&image.fs),
        "block_bytes": block_bytes,
        "cluster_bytes": superblock.cluster_bytes(),
        "blocks": superblock.blocks_count,
        "reserved_blocks": superblock.reserved_blocks_count,
        "free_blocks": statfs.map(|statfs| statfs.blocks_free),
        "inodes": superblock.inodes_count,
        "free_inodes": statfs.map(|statfs| statfs.files_free),
        "inode_bytes": superblock.inode_size,
        "group_count": superblock.group_count,
        "blocks_per_group": superblock.blocks_per_group,
        "inodes_per_group": superblock.inodes_per_group,
        "features": image.fs.features().names(),
        "journal": journal_state(&image.fs, args.images.how.no_replay),
        "replayed": replayed,
        "state": state_names(superblock.state),
        "created": superblock.mkfs_time,
        "mounted": superblock.mount_time,
        "written": superblock.write_time,
        "checked": superblock.last_check,
        "error_count": superblock.error_count,
    });
    if let Value::Object(fixed) = fixed {
        object.extend(fixed);
    }
    object
}
