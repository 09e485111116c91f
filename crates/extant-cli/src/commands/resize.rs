//! `extant resize`: give an image another size.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use extant_block::{BlockDevice, DeviceFault, FileDevice, OpenError, SharedDevice};
use extant_resize::{ChangeError, Goal, Plan, ResizeError, Sizes};
use extant_sync::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::bounds;
use crate::commands::repair::{replay_elsewhere, waits};
use crate::exit::{Exit, Failure, LIMITS, Result, chain};
use crate::image::{cut_off, instead_of_ext, opening, split};
use crate::in_use;
use crate::mounting::asked;
use crate::output::{Out, complain};
use crate::place::is_address;
use crate::seal::{Part, SealArgs};
use crate::size::{Amount, parse_amount, parse_bytes};
use crate::source::{SourceArgs, SourceError};
use crate::text::{counted, escape, human_bytes};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant resize disk.img 20G\n  extant resize disk.img +512M\n  extant resize disk.img min\n  extant resize --plan disk.img 20G\n  extant resize --partition 2 disk.img max\n  extant resize mnt +20G\n";

/// Give an image another size
///
/// The file system gets SIZE, or the next smaller size that it can have; an image file gets it as well. The
/// journal is replayed first. Before it becomes smaller, all of it is checked, and blocks of files move in front
/// of the new end, with a journal inodes too. What changes goes through the image's own journal, so that a cut leaves the old
/// size or the new one, and every file whole; without a journal, the image says that it needs a check until the last write.
///
/// A directory is one of a mount by extant: its file system becomes larger while others use it, and its image
/// file with it; max is all of the device or file. For root and the user who mounted. It becomes smaller only
/// while it is not mounted, and other images are those that nobody has mounted.
#[derive(Args, Debug)]
pub(crate) struct ResizeArgs {
    /// Image file or block device, or a directory of a mount
    #[arg(value_name = "IMG|DIR")]
    image: OsString,
    /// The size: with a unit (20G, 512M), +N or -N for so much more or less, min for as little as possible,
    /// max for all of the device, partition or file
    #[arg(value_name = "SIZE", value_parser = parse_wish)]
    size: Wish,
    /// Show what would be done, and change nothing
    #[arg(long)]
    plan: bool,
    /// The file system begins that many bytes into the file, whose size stays
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR), whose size stays
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    seal: SealArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// What stands in front of a size instead of a minus, which would begin an option.
const LESS: &str = "minus:";

/// `-512M` as a word that is no option.
pub(crate) fn named_minus(arg: OsString) -> OsString {
    let less = arg.to_str().and_then(|text| text.strip_prefix('-'));
    match less.filter(|text| text.starts_with(|first: char| first.is_ascii_digit())) {
        Some(less) => format!("{LESS}{less}").into(),
        None => arg,
    }
}

/// The size that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Bytes(u64),
    More(u64),
    Less(u64),
    Min,
    Max,
}

fn parse_wish(text: &str) -> Result<Wish, String> {
    let amount = |text: &str| match parse_amount(text)? {
        Amount::Bytes(bytes) => Ok(bytes),
        Amount::Plain(number) => {
            Err(format!("{number} of what? Give a unit: {number}K, {number}M, {number}B"))
        }
    };
    match text.strip_prefix('+') {
        Some(more) => amount(more).map(Wish::More),
        None if text == "max" => Ok(Wish::Max),
        None if text == "min" => Ok(Wish::Min),
        None => match text.strip_prefix(LESS) {
            Some(less) => amount(less).map(Wish::Less),
            None => amount(text).map(Wish::Bytes),
        },
    }
}

/// The device of an image, and the file of which it is all.
struct Target {
    device: SharedDevice,
    /// The image file itself, whose size changes with the file system.
    file: Option<FileDevice>,
}

/// Runs the command.
pub(crate) fn run(args: &ResizeArgs) -> Result<Exit> {
    if Path::new(&args.image).is_dir() {
        return on_mount(args, Path::new(&args.image));
    }
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("resize is for a whole image: leave the path out"));
    }
    let name = escape(file.as_os_str().as_encoded_bytes());
    let Target { device, file } = args.open(&file, &name)?;
    let cannot = |error: ResizeError| failure(&error, &name);
    let old_bytes = device.size_bytes();
    let is_all = args.offset.is_none() && args.partition.is_none();
    let now = extant_resize::sizes(&device).map_err(|error| {
        let other = match &error {
            ResizeError::Change(change) => other_than_ext(change, &name, &device, is_all),
            _ => None,
        };
        other.unwrap_or_else(|| cannot(error))
    })?;
    let goal = match args.size {
        Wish::Bytes(bytes) => Goal::Bytes(bytes),
        Wish::More(more) => Goal::Bytes(now.bytes.saturating_add(more)),
        Wish::Less(less) => Goal::Bytes(now.bytes.saturating_sub(less)),
        Wish::Min => Goal::Min,
        Wish::Max => Goal::Max,
    };
    let room = match (&file, goal) {
        (Some(_), Goal::Bytes(bytes)) => bytes.max(old_bytes).min(i64::MAX as u64),
        _ => old_bytes,
    };
    let becomes_smaller = match goal {
        Goal::Bytes(bytes) => bytes < now.bytes,
        Goal::Min => true,
        Goal::Max => false,
    };
    // The length of a file is known before it grows, and one that becomes shorter is cut afterwards: then the
    // check and the survey of a plan would be made twice.
    let plan = match becomes_smaller && !args.plan {
        true => None,
        false => Some(extant_resize::plan(&device, goal, room).map_err(cannot)?),
    };
    if let Some(plan) = plan.as_ref().filter(|plan| args.plan || plan.is_empty()) {
        return show(args, plan, &name, false);
    }
    let done = match file {
        None => resize(&device, goal, &name)?,
        Some(file) => {
            drop(device);
            let after = plan.map(|plan| plan.after.bytes);
            in_file(&file, &name, goal, (now.bytes, after), old_bytes)?
        }
    };
    show(args, &done, &name, !done.is_empty())
}

/// Resizes what is on a device, and says what it waits for.
fn resize(device: &SharedDevice, goal: Goal, name: &str) -> Result<Plan> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let done = extant_resize::resize(device, goal, &clock, &mut |seconds| waits(name, seconds));
    done.map_err(|error| failure(&error, name))
}

/// Has the server of a mount make its file system larger.
fn on_mount(args: &ResizeArgs, dir: &Path) -> Result<Exit> {
    let name = escape(dir.as_os_str().as_encoded_bytes());
    if args.offset.is_some() || args.partition.is_some() {
        return Err(Failure::usage(
            "--offset and --partition are for images: a mount knows its own",
        ));
    }
    let ask = |question: &[u8], size: &str| {
        let question = [question, size.as_bytes()].concat();
        let answer = asked::answer(dir, &question).map_err(|error| match error.kind() {
            std::io::ErrorKind::ResourceBusy => {
                Failure::new(Exit::Refused, format!("{name} is frozen, or grows already"))
            }
            std::io::ErrorKind::ReadOnlyFilesystem => {
                let message = format!("{name} is read-only: mounted so, or stopped by an error");
                Failure::new(Exit::Refused, message)
                    .hint(format!("mount -o remount,rw {name}, and extant stats {name} says more"))
            }
            std::io::ErrorKind::StorageFull => Failure::caused(Exit::NoSpace, &name, &error),
            _ if error.raw_os_error() == Some(5) => Failure::caused(Exit::Io, &name, &error),
            _ => asked::no_answer(dir, &error),
        })?;
        match answer.get("refused").and_then(Value::as_str) {
            Some(why) => {
                let errno = answer.get("errno").and_then(Value::as_i64);
                let exit = if errno == Some(28) { Exit::NoSpace } else { Exit::Refused };
                Err(Failure::new(exit, why.to_owned()).about(&name))
            }
            None => Ok(plan_of(&answer)),
        }
    };
    let smaller = || {
        let message = format!("{name}: a mounted file system does not become smaller");
        let hint = format!("extant umount {name}, then extant resize IMG SIZE");
        Err(Failure::new(Exit::Refused, message).hint(hint))
    };
    let size = match args.size {
        Wish::Bytes(bytes) => bytes.to_string(),
        Wish::More(more) => {
            let now = ask(extant_fuse::GROWTH, "max")?.before.bytes;
            now.saturating_add(more).to_string()
        }
        Wish::Max => "max".to_owned(),
        Wish::Less(_) | Wish::Min => return smaller(),
    };
    if let Wish::Bytes(bytes) = args.size
        && bytes < ask(extant_fuse::GROWTH, "max")?.before.bytes
    {
        return smaller();
    }
    let plan = ask(extant_fuse::GROWTH, &size)?;
    if args.plan || plan.is_empty() {
        return show(args, &plan, &name, false);
    }
    let done = ask(extant_fuse::GROW, &size)?;
    show(args, &done, &name, true)
}

/// What a server says about growth.
fn plan_of(answer: &Value) -> Plan {
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or(0);
    let small = |of: &Value, key: &str| u32::try_from(number(of, key)).unwrap_or(u32::MAX);
    let is = |key: &str| answer.get(key).and_then(Value::as_bool).unwrap_or(false);
    let sizes = |key: &str| {
        let mut sizes = Sizes::default();
        if let Some(of) = answer.get(key) {
            sizes.bytes = number(of, "bytes");
            sizes.blocks = number(of, "blocks");
            sizes.groups = small(of, "groups");
            sizes.inodes = small(of, "inodes");
        }
        sizes
    };
    let mut plan = Plan::default();
    plan.block_bytes = small(answer, "block_bytes");
    (plan.before, plan.after) = (sizes("before"), sizes("after"));
    plan.reserved_used = small(answer, "reserved_blocks_used");
    (plan.turns_meta_bg, plan.journaled) = (is("turns_meta_bg"), is("journaled"));
    plan
}

/// Resizes an image file of `old` bytes and what is in it, a file system of `before` bytes. `after`: the bytes of one
/// that becomes larger.
fn in_file(
    file: &FileDevice,
    name: &str,
    goal: Goal,
    (before, after): (u64, Option<u64>),
    old: u64,
) -> Result<Plan> {
    let failed = |error: std::io::Error| {
        Failure::caused(Exit::Io, &format!("{name}: its size cannot be set"), &error)
    };
    let set_len = |bytes: u64| file.file().set_len(bytes).map_err(failed);
    let length_for = |after: u64| match goal {
        Goal::Bytes(bytes) => bytes.max(after),
        Goal::Min => after,
        Goal::Max => old,
    };
    let grown = after.map(length_for).filter(|length| *length > old);
    if let Some(length) = grown {
        set_len(length)?;
    }
    let device = |read_only| {
        let same = file.file().try_clone().map_err(failed)?;
        Ok(Arc::new(FileDevice::with_file(same, Path::new(name), read_only)?) as SharedDevice)
    };
    let done = device(false).and_then(|device| resize(&device, goal, name));
    // Whatever failed, superblock or journal may have the new size already: then nothing is cut off.
    let has_old_size = || {
        let sizes = device(true).ok().and_then(|device| extant_resize::sizes(&device).ok());
        sizes.is_some_and(|sizes| sizes.bytes == before)
    };
    if done.is_err() && grown.is_some() && has_old_size() {
        set_len(old)?;
    }
    let done = done?;
    let wanted = length_for(done.after.bytes);
    if done.after.bytes < done.before.bytes && wanted < old {
        match is_zero(file, done.before.bytes..old)? {
            true => set_len(wanted.max(done.after.bytes))?,
            false => complain(&format!(
                "{name}: note: the file keeps its length, since something lies behind the file system"
            )),
        }
    }
    file.file().sync_all().map_err(failed)?;
    Ok(done)
}

/// Returns whether a part of the file is zeros.
fn is_zero(file: &FileDevice, range: Range<u64>) -> Result<bool> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = range.start;
    while at < range.end {
        let take = (range.end - at).min(buffer.len() as u64) as usize;
        let Some(bytes) = buffer.get_mut(..take) else { break };
        file.read_at(at, bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += take as u64;
    }
    Ok(true)
}

impl ResizeArgs {
    fn open(&self, file: &Path, name: &str) -> Result<Target> {
        let holder = in_use::loop_device_of(self.source.written(file)).filter(|_| !self.plan);
        if let Some(holder) = holder {
            let message = format!("{name} is in use: the kernel has it as {holder}");
            return Err(Failure::new(Exit::Refused, message).hint(format!(
                "unmount it and detach it (losetup -d {holder}), or give {holder} itself"
            )));
        }
        let opening = |error, file: &Path| {
            let is_locked = matches!(error, SourceError::Open(OpenError::Locked { .. }));
            let failure = opening(error, file);
            if !is_locked {
                return failure;
            }
            let place = (self.source.written(file), self.partition, self.offset);
            in_use::with_mount(failure, place, |dir| {
                format!(
                    "extant resize {dir} SIZE makes it larger there, or extant umount {dir} first"
                )
            })
        };
        let is_part = self.offset.is_some() || self.partition.is_some();
        let is_whole = !is_part && !is_address(file) && !self.source.is_special(file);
        if is_whole {
            let opened = match self.plan {
                true => FileDevice::open_read_only(file),
                false => FileDevice::open_read_write(file),
            };
            let opened = opened.map_err(|error| opening(SourceError::Open(error), file))?;
            let is_file = !opened.is_block_device();
            if is_file {
                let same = opened.file().try_clone().map_err(|error| {
                    Failure::caused(Exit::Io, &format!("{name} cannot be opened"), &error)
                })?;
                let device = FileDevice::with_file(same, file, self.plan)?;
                let device = self.unsealed(Arc::new(device), name)?;
                return Ok(Target { device, file: Some(opened) });
            }
            return Ok(Target { device: self.unsealed(Arc::new(opened), name)?, file: None });
        }
        let opened = match self.plan {
            true => self.source.open_read_only(file),
            false => self.source.open_read_write(file),
        };
        let device = opened.map_err(|error| opening(error, file))?;
        Ok(Target { device: self.unsealed(device, name)?, file: None })
    }

    /// The part of a disk where the file system is, if it may be changed or only a plan is wanted.
    fn unsealed(&self, disk: SharedDevice, name: &str) -> Result<SharedDevice> {
        let looks = !self.plan && !self.seal.break_seal;
        let part = Part::of(Arc::clone(&disk), self.offset, self.partition, looks)?;
        bounds::within(part.unsealed(name)?, &*disk, self.offset)
    }
}

fn sizes_json(sizes: &Sizes) -> Value {
    json!({
        "bytes": sizes.bytes,
        "blocks": sizes.blocks,
        "groups": sizes.groups,
        "inodes": sizes.inodes,
    })
}

fn show(args: &ResizeArgs, plan: &Plan, name: &str, written: bool) -> Result<Exit> {
    let mut out = Out::new();
    if let Some(number) = args.partition.filter(|_| plan.is_empty() && args.size == Wish::Max) {
        // A disk that was made larger leaves its partitions as they are.
        complain(&format!(
            "{name}: note: that is all of partition {number}; growpart, parted (resizepart) or sfdisk (-N) makes \
             the partition larger where the disk has room behind it"
        ));
    }
    if args.json {
        out.json_pretty(&json!({
            "image": name,
            "written": written,
            "block_bytes": plan.block_bytes,
            "before": sizes_json(&plan.before),
            "after": sizes_json(&plan.after),
            "reserved_blocks_used": plan.reserved_used,
            "turns_meta_bg": plan.turns_meta_bg,
            "moved_files": plan.moved_files,
            "moved_blocks": plan.moved_blocks,
            "moved_inodes": plan.moved_inodes,
            "journaled": plan.journaled,
        }))?;
        out.flush()?;
        return Ok(Exit::Success);
    }
    let (before, after) = (&plan.before, &plan.after);
    if plan.is_empty() {
        writeln!(
            out,
            "{name}: {} already, {}",
            human_bytes(after.bytes),
            counted(after.blocks, "block")
        )?;
        out.flush()?;
        return Ok(Exit::Success);
    }
    let verb = if written { "has" } else { "would have" };
    writeln!(
        out,
        "{name}: {verb} {} in {} and {}; before {} in {} and {}",
        human_bytes(after.bytes),
        counted(after.blocks, "block"),
        counted(after.groups.into(), "group"),
        human_bytes(before.bytes),
        counted(before.blocks, "block"),
        counted(before.groups.into(), "group")
    )?;
    if plan.turns_meta_bg {
        writeln!(
            out,
            "{name}: the blocks reserved for descriptors are used up: descriptors of more groups lie \
             in the groups (meta_bg)"
        )?;
    }
    if plan.moved_files > 0 {
        let verb = if written { "moved" } else { "would move" };
        writeln!(
            out,
            "{name}: {} of {} {verb} in front of the new end",
            counted(plan.moved_blocks, "block"),
            counted(plan.moved_files, "file")
        )?;
    }
    if plan.moved_inodes > 0 {
        let verb = if written { "got" } else { "would get" };
        writeln!(
            out,
            "{name}: {} {verb} other numbers in front of the new end",
            counted(plan.moved_inodes, "inode")
        )?;
    }
    if !plan.journaled && !written {
        writeln!(out, "{name}: without a journal, a cut would leave an image that needs a repair")?;
    }
    out.flush()?;
    Ok(Exit::Success)
}

/// What is there instead, where no file system begins. `is_all`: the whole file was looked at.
pub(crate) fn other_than_ext(
    error: &ChangeError,
    name: &str,
    device: &SharedDevice,
    is_all: bool,
) -> Option<Failure> {
    match error {
        ChangeError::Superblock(_) => instead_of_ext(name, device, is_all),
        _ => None,
    }
}

/// The exit code and the hint for what keeps an image from being changed.
pub(crate) fn of_change(error: &ChangeError, name: &str) -> (Exit, Option<String>) {
    match error {
        ChangeError::Features { .. } => (Exit::Unsupported, None),
        ChangeError::Superblock(_) => (Exit::Image, None),
        ChangeError::Damaged { .. } | ChangeError::Replay(_) => {
            (Exit::Image, Some(format!("extant repair {name} sets it right")))
        }
        ChangeError::JournalDevice { .. } => (Exit::Refused, Some(replay_elsewhere(name))),
        ChangeError::DeviceTooSmall { wanted, .. } => (Exit::Image, Some(cut_off(name, *wanted))),
        ChangeError::InUse { .. } => {
            (Exit::Refused, Some(format!("if no host uses it: extant tune -E clear_mmp {name}")))
        }
        // Before anything else, the superblock is looked for.
        ChangeError::Device(error)
            if error.offset() < 4096 && matches!(error.fault(), DeviceFault::PastEnd { .. }) =>
        {
            (Exit::Image, Some(format!("{name} is empty, or too short to hold a file system")))
        }
        ChangeError::System(_) => (Exit::Io, Some(LIMITS.to_owned())),
        ChangeError::Scratch(_) => (
            Exit::Io,
            Some(format!(
                "TMPDIR=DIR names a directory with more room; the image is as it was, or says that it needs a check: \
                 extant check {name} looks at it"
            )),
        ),
        // The log is marked as stopped then, which a repair takes away.
        ChangeError::JournalFull(_) => (
            Exit::NoSpace,
            Some(format!(
                "make room on the disk that holds the image, run extant repair {name}, and try again; the image is as \
                 it was, or as it was to be"
            )),
        ),
        ChangeError::Device(error) if error.is_full() => (
            Exit::NoSpace,
            Some(format!(
                "make room on the disk that holds the image, and try again; the image is as it was, or as it \
                 was to be: extant check {name} looks at it"
            )),
        ),
        _ => (
            Exit::Io,
            Some(format!(
                "the image is as it was, or as it was to be: when what failed works again, the next \
                 mount brings in what its journal has; extant check {name} looks at it"
            )),
        ),
    }
}

fn failure(error: &ResizeError, name: &str) -> Failure {
    let (exit, hint) = match error {
        ResizeError::Change(error) => of_change(error, name),
        ResizeError::TooLarge { largest, .. } => {
            (Exit::NoSpace, Some(format!("extant resize {name} {largest}B makes it that large")))
        }
        ResizeError::TooSmall { smallest, .. } => {
            (Exit::NoSpace, Some(format!("extant resize {name} {smallest}B makes it that small")))
        }
        _ => (Exit::Io, None),
    };
    let failure = Failure::new(exit, chain(error)).about(name);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_wish("20G"), Ok(Wish::Bytes(20 << 30)));
        assert_eq!(parse_wish("+512M"), Ok(Wish::More(512 << 20)));
        assert_eq!(parse_wish("max"), Ok(Wish::Max));
        assert_eq!(parse_wish("min"), Ok(Wish::Min));
        let less = named_minus("-512M".into());
        assert_eq!(parse_wish(less.to_str().unwrap()), Ok(Wish::Less(512 << 20)));
        assert_eq!(named_minus("--plan".into()), "--plan");
        for text in ["", "20", "+", "+7", "maximum", "+max", "1.5G"] {
            assert!(parse_wish(text).is_err(), "{text}");
        }
    }
}
