//! `extant repair` and `extant undo`: what is wrong with an image is set right, and put back.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant_block::{BlockDevice, FileDevice, OpenError, SharedDevice};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_repair::{
    Ask, Decision, Fix, Look, Outcome, Preen, RepairError, RepairOptions, UndoError, Yes,
};
use extant_sync::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, LIMITS, Result, chain};
use crate::image::{cut_off, instead_of_ext, opening, split, window};
use crate::in_use;
use crate::interrupt;
use crate::output::{Out, complain};
use crate::seal::{Part, SealArgs};
use crate::size::parse_bytes;
use crate::source::{SourceArgs, SourceError};
use crate::target::epoch;
use crate::text::{counted, escape};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant repair disk.img\n  extant repair -n disk.img\n  extant repair -y --undo before.undo disk.img\n\nEnds with the codes of fsck(8): 0 nothing was wrong, 1 everything was set right, 4 something is left, or it is no ext2, ext3 or ext4, 8 it does not read or write.\n";

/// The end of `--help` of `undo`.
pub(crate) const UNDO_EXAMPLES: &str = "Examples:\n  extant repair -y --undo before.undo disk.img\n  extant undo before.undo disk.img\n";

/// Repair an image
///
/// Finds what extant check finds, and sets it right: superblock and descriptors from their backups, maps,
/// directories, attributes, blocks that two files claim, files without a name, counts and bitmaps. The
/// journal is replayed first. Nothing is written before all of it is known; the image says that it
/// needs a check until the last write, so that a repair that was cut off can be run again.
///
/// On a terminal each finding is asked about. Ends with the codes of fsck(8): 0, 1 when something was set
/// right, 4 when something is left.
#[derive(Args, Debug)]
pub(crate) struct RepairArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    image: OsString,
    /// Say yes to everything
    #[arg(short = 'y', long, conflicts_with_all = ["preen", "dry_run"])]
    yes: bool,
    /// Set right what loses nothing; stop, and change nothing, at anything else
    #[arg(short = 'p', long, conflicts_with = "dry_run")]
    preen: bool,
    /// Show what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Keep what is overwritten in a new file, for extant undo; where nothing is, there is none
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// The file system begins that many bytes into the file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    /// Device or file with the journal, for an image whose journal is not inside it
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    journal_device: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    seal: SealArgs,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Put back what a repair overwrote
///
/// Takes the file that extant repair --undo or extant tune --undo made. All of it is checked before anything is
/// written. An image that was changed since, or is another one, is refused.
#[derive(Args, Debug)]
pub(crate) struct UndoArgs {
    /// What extant repair --undo wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Image file or block device
    #[arg(value_name = "IMG")]
    image: OsString,
    /// Put it back also where something else was written since, which is lost then
    #[arg(long)]
    force: bool,
    /// The file system begins that many bytes into the file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    #[command(flatten)]
    source: SourceArgs,
}

/// Asks on the terminal.
struct Terminal {
    /// The answer to everything from now on.
    always: Option<Decision>,
}

impl Ask for Terminal {
    fn ask(&mut self, finding: &Fix) -> Decision {
        if let Some(answer) = self.always {
            return answer;
        }
        let mut err = io::stderr().lock();
        loop {
            let message = escape(finding.message.as_bytes());
            // Without a terminal that can be written to, the answer below is an end.
            if let Some(hint) = &finding.hint {
                let _ = write!(err, "{message}\n  note: {}", escape(hint.as_bytes()));
            } else {
                let _ = write!(err, "{message}");
            }
            let _ = write!(err, "\n  {}? [y]es, [n]o, [a]ll, [q]uit: ", finding.fix);
            let _ = err.flush();
            let mut line = String::new();
            match io::stdin().lock().read_line(&mut line) {
                Ok(0) | Err(_) => return Decision::Stop,
                Ok(_) => {}
            }
            match line.trim() {
                "y" | "yes" => return Decision::Fix,
                "n" | "no" => return Decision::Leave,
                "a" | "all" => {
                    self.always = Some(Decision::Fix);
                    return Decision::Fix;
                }
                "q" | "quit" => return Decision::Stop,
                _ => {}
            }
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &RepairArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("repair is for a whole image: leave the path out"));
    }
    let name = escape(file.as_os_str().as_encoded_bytes());
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    let decides = args.yes || args.preen || args.dry_run;
    if !decides && (!may_ask || args.json) {
        return Err(Failure::usage("nobody can be asked here")
            .hint("pass -y (yes to everything), -p (what loses nothing) or -n (change nothing)"));
    }
    if args.undo.is_some() && args.journal_device.is_some() {
        return Err(Failure::usage(
            "--undo keeps nothing of a journal device, which is written, too",
        )
        .hint("copy the image and the journal device first, and leave --undo out"));
    }
    let part = args.open(&file, &name)?;
    let journal = args.open_journal(&file)?;
    let device = SharedDevice::clone(&part.device);
    let look = match args.dry_run {
        true => {
            note_holder(&device, &name);
            None
        }
        false => {
            let look =
                extant_repair::look(&device, &SystemClock, &mut |seconds| waits(&name, seconds));
            Some(look.map_err(|error| cannot(&error, &name))?)
        }
    };
    let now = match epoch(None)? {
        Some(epoch) => epoch,
        None => SystemClock.now().0,
    };
    let mut terminal = Terminal { always: None };
    let ask: &mut dyn Ask = match () {
        () if args.preen => &mut Preen,
        () if args.yes || args.dry_run => &mut Yes,
        () => &mut terminal,
    };
    let options = RepairOptions { now };
    let outcome =
        extant_repair::repair_both(SharedDevice::clone(&device), journal.clone(), &options, ask)
            .map_err(|error| args.cannot(&error, &name, &device))?;
    let look = look.filter(|_| !outcome.plan.is_empty());
    let writes = look.is_some();
    if let Some(look) = look {
        part.check(&name)?;
        args.write((&device, journal.as_deref()), &outcome, look, &name)?;
    }
    args.show(&outcome, &name, writes)?;
    if let Some(undo) = args.undo.as_ref().filter(|_| !writes) {
        // Whoever finds a file of that name has one of another time.
        let undo = escape(undo.as_os_str().as_encoded_bytes());
        complain(&format!("{name}: note: nothing was written, so {undo} was not made"));
    }
    Ok(args.exit(&outcome))
}

impl RepairArgs {
    fn open(&self, file: &Path, name: &str) -> Result<Part> {
        if let Some(holder) =
            in_use::loop_device_of(self.source.written(file)).filter(|_| !self.dry_run)
        {
            let message = format!("{name} is in use: the kernel has it as {holder}");
            return Err(Failure::new(Exit::Refused, message).hint(format!(
                "unmount it and detach it (losetup -d {holder}), or give {holder} itself"
            )));
        }
        let opened = match self.dry_run {
            true => self.source.open_read_only(file),
            false => self.source.open_read_write(file),
        };
        let device = opened.map_err(|error| {
            let is_locked = matches!(error, SourceError::Open(OpenError::Locked { .. }));
            let failure = opening(error, file);
            if !is_locked {
                return failure;
            }
            let place = (self.source.written(file), self.partition, self.offset);
            in_use::with_mount(failure, place, |dir| format!("extant umount {dir} first"))
        })?;
        let looks = !self.dry_run && !self.seal.break_seal;
        Part::of(device, self.offset, self.partition, looks)
    }

    /// Opens the device of the journal, if one was given.
    fn open_journal(&self, image: &Path) -> Result<Option<SharedDevice>> {
        let Some(path) = &self.journal_device else { return Ok(None) };
        let shown = escape(path.as_os_str().as_encoded_bytes());
        if is_same_file(path, self.source.written(image)) {
            let message = format!("{shown} is the image itself, and not the device of its journal");
            return Err(Failure::new(Exit::Refused, message));
        }
        if let Some(holder) = in_use::loop_device_of(path).filter(|_| !self.dry_run) {
            let message = format!("{shown} is in use: the kernel has it as {holder}");
            return Err(Failure::new(Exit::Refused, message)
                .hint(format!("detach it (losetup -d {holder}), or give {holder} itself")));
        }
        let device = match self.dry_run {
            true => FileDevice::open_read_only(path)?,
            false => FileDevice::open_read_write(path)?,
        };
        Ok(Some(Arc::new(device)))
    }

    /// Does the writes, while nobody else has the file system.
    fn write(
        &self,
        (device, journal): (&SharedDevice, Option<&dyn BlockDevice>),
        outcome: &Outcome,
        look: Look,
        name: &str,
    ) -> Result<()> {
        // From here on ^C waits for the end, which is near: who is killed stays in the block of multi-mount
        // protection, in everybody's way.
        interrupt::listen()?;
        for hint in outcome.findings.iter().filter_map(|one| one.hint.as_ref()) {
            complain(&format!("{name}: note: {}", escape(hint.as_bytes())));
        }
        held(device, look, Some(outcome), name, |below| {
            let writes = outcome.plan.writes();
            let places = writes.map(|(at, bytes)| (at, bytes.len() as u64));
            let undo = self.undo.as_ref();
            let undo = undo.map(|path| UndoFile::save(below, places, path)).transpose()?;
            outcome.plan.apply_both(below, journal).map_err(|error| {
                Failure::from(error)
                    .about(name)
                    .hint("the image is marked as in need of a check: repair it again")
            })?;
            if let Some(undo) = undo {
                undo.finish(below);
            }
            Ok(())
        })
    }

    /// Why there is nothing to be repaired, where it is none of ours: by what it is.
    fn cannot(&self, error: &RepairError, name: &str, device: &SharedDevice) -> Failure {
        let at_start = self.offset.is_none() && self.partition.is_none();
        let is_none = matches!(error, RepairError::NoSuperblock | RepairError::BadSuperblock(_));
        let instead = if is_none { instead_of_ext(name, device, at_start) } else { None };
        instead.unwrap_or_else(|| cannot(error, name))
    }

    fn exit(&self, outcome: &Outcome) -> Exit {
        let is_left = !outcome.is_clean || outcome.findings.iter().any(|one| one.left.is_some());
        match () {
            () if is_left => Exit::Image,
            // As e2fsck: to bring in the journal is no repair.
            () if outcome.findings.is_empty() => Exit::Success,
            () if self.dry_run && outcome.findings.iter().all(|one| !one.is_damage) => {
                Exit::Success
            }
            // Nothing was set right yet.
            () if self.dry_run => Exit::Image,
            () => Exit::Partial,
        }
    }

    fn show(&self, outcome: &Outcome, name: &str, written: bool) -> Result<()> {
        let mut out = Out::new();
        let left = outcome.findings.iter().filter(|one| one.left.is_some()).count();
        if self.json {
            let findings: Vec<Value> = outcome.findings.iter().map(finding_json).collect();
            out.json_pretty(&json!({
                "image": name,
                "clean": outcome.is_clean,
                "written": written,
                "stopped": outcome.is_stopped,
                "findings": findings,
                "left": left,
                "transactions": outcome.transactions,
                "fast_commits": outcome.fast_commits,
                "writes": outcome.plan.write_count(),
                "bytes": outcome.plan.byte_count(),
                "rounds": outcome.rounds,
            }))?;
            out.flush()?;
            return Ok(());
        }
        for one in &outcome.findings {
            let message = escape(one.message.as_bytes());
            match &one.left {
                Some(why) => writeln!(out, "{name}: {message}: left: {}", escape(why.as_bytes()))?,
                None if written => writeln!(out, "{name}: {message}: done: {}", one.fix)?,
                None => writeln!(out, "{name}: {message}: would be done: {}", one.fix)?,
            }
            if let Some(hint) = one.hint.as_ref().filter(|_| !written) {
                writeln!(out, "{name}: note: {}", escape(hint.as_bytes()))?;
            }
        }
        let found = counted(outcome.findings.len() as u64, "problem");
        if outcome.transactions > 0 {
            let log = counted(outcome.transactions.into(), "transaction");
            let done = if written { "brought in" } else { "to be brought in" };
            writeln!(out, "{name}: {log} of the journal {done}")?;
        }
        match () {
            () if outcome.is_stopped => writeln!(
                out,
                "{name}: {found} so far: not all of it loses nothing, so none was set right; \
                 extant repair asks, -y says yes"
            )?,
            () if outcome.findings.is_empty() && outcome.is_clean => {
                writeln!(out, "{name}: clean")?;
            }
            () if !outcome.is_clean && left == 0 => writeln!(
                out,
                "{name}: {found}; it is not in order, and the rest is not repaired here: extant check names it"
            )?,
            () if left > 0 => writeln!(out, "{name}: {found}, {left} left")?,
            () if written => writeln!(out, "{name}: {found}, all set right")?,
            () if outcome.findings.iter().all(|one| !one.is_damage) => writeln!(
                out,
                "{name}: clean: what would be written is no damage, which extant check passes over, as e2fsck -n does"
            )?,
            () => writeln!(out, "{name}: {found}; nothing was changed")?,
        }
        out.flush()?;
        Ok(())
    }
}

/// Says that another host is given time to show itself.
pub(crate) fn waits(name: &str, seconds: u64) {
    complain(&format!(
        "{name}: note: multi-mount protection: waiting {seconds} s for another host to show itself"
    ));
}

/// Says who has the file system by what its block says, for commands that write nothing.
pub(crate) fn note_holder(device: &SharedDevice, name: &str) {
    // Whatever else is wrong with it is for the check.
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let read = device.read_at(SUPERBLOCK_OFFSET, &mut bytes);
    if read.is_err() || Superblock::decode(&bytes).is_err() {
        return;
    }
    if let Ok(Some(who)) = extant_repair::holder(device) {
        complain(&format!(
            "{name}: note: {} has it, by multi-mount protection: if that is at work, what is found may be a \
             change under way",
            escape(who.as_bytes())
        ));
    }
}

/// Runs `work` while nobody else has the file system, and gives it back whatever became of it.
fn held<T>(
    device: &SharedDevice,
    look: Look,
    outcome: Option<&Outcome>,
    name: &str,
    work: impl FnOnce(&dyn BlockDevice) -> Result<T>,
) -> Result<T> {
    let claimed = look.claim(device, outcome, &SystemClock, &mut |seconds| waits(name, seconds));
    let held = claimed.map_err(|error| cannot(&error, name))?;
    let done = held.with(work);
    let ended = held.end().map_err(|error| cannot(&error, name));
    let done = done?;
    ended?;
    Ok(done)
}

fn finding_json(one: &Fix) -> Value {
    json!({
        "code": one.code,
        "message": one.message,
        "severity": one.severity.name(),
        "fix": one.fix,
        "inode": one.objects.ino.map(|ino| ino.0),
        "target": one.objects.target.map(|ino| ino.0),
        "block": one.objects.block.map(|block| block.0),
        "group": one.objects.group.map(|group| group.0),
        "done": one.left.is_none(),
        "hint": one.hint,
        "left": one.left,
    })
}

/// Returns whether two names are of one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    id(one).is_ok_and(|one| id(other).is_ok_and(|other| one == other))
}

/// What to do where the journal is on another device and was not brought in.
pub(crate) fn replay_elsewhere(name: &str) -> String {
    format!(
        "extant replay --journal-device FILE {name} brings in what it holds; if it is lost, debugfs -w -R 'feature \
         -needs_recovery' {name} gives that up"
    )
}

pub(crate) fn cannot(error: &RepairError, name: &str) -> Failure {
    let exit = match error {
        RepairError::Features { .. } => Exit::Unsupported,
        RepairError::InUse { .. }
        | RepairError::JournalDevice { .. }
        | RepairError::OtherJournal { .. } => Exit::Refused,
        RepairError::NoSuperblock
        | RepairError::BadSuperblock(_)
        | RepairError::DeviceTooSmall { .. }
        | RepairError::Check(_) => Exit::Image,
        _ => Exit::Io,
    };
    let failure = Failure::new(exit, chain(error)).about(name);
    match error {
        RepairError::InUse { .. } => {
            failure.hint(format!("if no host uses it: extant tune -E clear_mmp {name}"))
        }
        RepairError::JournalDevice { .. } => failure.hint(format!(
            "extant repair --journal-device FILE {name} brings in what it holds; if it is lost, debugfs -w -R \
             'feature -needs_recovery' {name} gives that up"
        )),
        RepairError::OtherJournal { .. } => failure.hint(format!(
            "extant info {name} says which journal it has; without --journal-device nothing is brought in"
        )),
        RepairError::DeviceTooSmall { wanted, .. } => failure.hint(cut_off(name, *wanted)),
        RepairError::System(_) => failure.hint(LIMITS),
        _ => failure,
    }
}

/// A file that keeps what a change overwrites.
pub(crate) struct UndoFile {
    file: File,
    /// Its name, for messages.
    shown: String,
}

impl UndoFile {
    /// Writes what `device` holds at `places`, and makes it durable.
    pub(crate) fn save(
        device: &dyn BlockDevice,
        places: impl Iterator<Item = (u64, u64)>,
        path: &Path,
    ) -> Result<UndoFile> {
        let shown = escape(path.as_os_str().as_encoded_bytes());
        let failed = |error: io::Error| {
            Failure::caused(Exit::Io, &format!("{shown} cannot be written"), &error)
        };
        let options = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let mut file = options.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::new(Exit::Refused, format!("{shown} exists"))
                .hint("an undo file is never overwritten: give another name"),
            _ => failed(error),
        })?;
        let saved = match extant_repair::save_undo(device, places, &mut file) {
            Ok(()) => file.sync_all().map_err(failed),
            Err(UndoError::File(error)) => Err(failed(error)),
            Err(error) => Err(Failure::new(Exit::Io, error.to_string())),
        };
        // Nothing is changed then, so a part of it is no way back, and would keep its name from the next attempt.
        if saved.is_err() {
            let _ = std::fs::remove_file(path);
        }
        saved.map(|()| UndoFile { file, shown })
    }

    /// Keeps what the change left, which is done: without it, nobody can tell what was written later.
    pub(crate) fn finish(mut self, device: &dyn BlockDevice) {
        let done = extant_repair::finish_undo(device, &mut self.file);
        if let Err(error) = done.and_then(|()| Ok(self.file.sync_all()?)) {
            complain(&format!(
                "note: {} does not say what was written, so that extant undo may destroy what is written later: {error}",
                self.shown
            ));
        }
    }
}

/// Runs `undo`.
pub(crate) fn run_undo(args: &UndoArgs) -> Result<Exit> {
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("undo is for a whole image: leave the path out"));
    }
    let name = escape(file.as_os_str().as_encoded_bytes());
    let shown = escape(args.file.as_os_str().as_encoded_bytes());
    if let Some(holder) = in_use::loop_device_of(&file) {
        let message = format!("{name} is in use: the kernel has it as {holder}");
        return Err(Failure::new(Exit::Refused, message)
            .hint("unmount it and detach it, or give the device itself"));
    }
    let mut undo = File::open(&args.file)
        .map_err(|error| Failure::caused(Exit::Io, &format!("{shown} cannot be opened"), &error))?;
    let device = args.source.open_read_write(&file).map_err(|error| opening(error, &file))?;
    let device = window(device, args.offset, args.partition)?;
    let look = extant_repair::look(&device, &SystemClock, &mut |seconds| waits(&name, seconds));
    let look = look.map_err(|error| cannot(&error, &name))?;
    interrupt::listen()?;
    let bytes = held(&device, look, None, &name, |below| {
        extant_repair::undo(below, &mut undo, args.force).map_err(|error| {
            let exit = match &error {
                UndoError::Device(_) | UndoError::File(_) => Exit::Io,
                _ => Exit::Refused,
            };
            let failure = Failure::new(exit, error.to_string()).about(&shown);
            match error {
                UndoError::Changed { .. } => failure.hint(
                    "--force puts it back all the same, for the image of this undo file only",
                ),
                _ => failure,
            }
        })
    })?;
    complain(&format!("{name}: {} put back", counted(bytes, "byte")));
    Ok(Exit::Success)
}
