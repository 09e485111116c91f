//! `extant check`: whether everything an image says fits together.

use std::ffi::OsString;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant::{Family, FsError, MountOptions};
use extant_base::sabotage;
use extant_block::{FileDevice, SharedDevice};
use extant_check::{Answer, CheckError, CheckOptions, Meet, Problem, Report};
use extant_image::write::Progress;
use extant_repair::Fix;
use serde_json::{Value, json};

use crate::commands::repair::{self, note_holder};
use crate::exit::{Exit, Failure, LIMITS, Result};
use crate::image::{cut_off, mount_failure, note_journal_error, opening, split, window};
use crate::in_use;
use crate::interrupt;
use crate::output::{Out, complain, report};
use crate::progress::Bar;
use crate::size::parse_bytes;
use crate::source::SourceArgs;
use crate::text::{counted, escape};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant check root.img\n  extant check -q *.img || echo damaged\n  extant check --json root.img | jq -r '.problems[].code'\n";

/// Check whether images are clean, without changing them
///
/// Reads all metadata and finds what e2fsck -fn finds. The journal of an image that was not unmounted is
/// replayed in memory first: what is checked is what the next mount would have. Ends with 0 if
/// the image is clean and with 4 if anything is not. Blocks that cannot be read are named, the rest is
/// checked all the same, and the exit code is 8. ^C ends it with what was found so far.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Image file or block device; several, one after the other
    #[arg(value_name = "IMG", required = true)]
    images: Vec<OsString>,
    /// The file system begins that many bytes into the file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Image")]
    offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = "Image")]
    partition: Option<u32>,
    /// Check an image as it lies there, without looking through its journal
    #[arg(long, help_heading = "Image")]
    no_replay: bool,
    /// Device or file with the journal, for an image whose journal is not inside it
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    journal_device: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// Name at most N problems of an image; the others are counted
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_problems: usize,
    /// Threads that read and compare, instead of one for each processor
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Say nothing of clean images, and only how many problems others have
    #[arg(short, long)]
    quiet: bool,
    /// One JSON object for each image
    #[arg(long)]
    json: bool,
}

/// What was found in one image.
struct Found {
    name: String,
    /// Why the image cannot be opened, if that is so.
    unopened: Option<String>,
    report: Report,
    /// What is wrong with its log, or with its superblock without the log, and is not seen by a mount.
    log: Vec<Fix>,
    /// Transactions and fast commits that were replayed in memory, if any were waiting.
    replayed: Option<(u32, u32)>,
}

/// Shows how far a check is, and stops it at a signal.
struct Watch {
    bar: Bar,
}

impl Meet for Watch {
    fn meet(&mut self, _problem: &Problem) -> Answer {
        Answer::Report
    }

    fn begins(&mut self, bytes: u64) {
        self.bar.set_total(bytes);
    }

    fn did(&mut self, bytes: u64) {
        self.bar.add(bytes);
    }

    fn is_cancelled(&self) -> bool {
        interrupt::requested()
    }
}

/// Runs the command.
pub(crate) fn run(args: &CheckArgs) -> Result<Exit> {
    let mut out = Out::new();
    let (mut damaged, mut unread, mut first) = (false, false, None);
    interrupt::listen()?;
    for image in &args.images {
        match args.check(image) {
            Ok(found) => {
                args.show(&mut out, &found)?;
                out.flush()?;
                if interrupt::requested() {
                    let text = "interrupted; what was found so far was told, nothing was changed";
                    return Err(Failure::new(Exit::Interrupted, text).about(&found.name));
                }
                damaged |= !found.is_clean();
                unread |= found.report.is_partial;
            }
            Err(failure) if args.images.len() == 1 => return Err(failure),
            Err(failure) => {
                first = first.or(Some(failure.exit));
                report(&failure);
            }
        }
    }
    Ok(match first {
        _ if unread => Exit::Io,
        _ if damaged && !sabotage("cli.check.damage-is-success") => Exit::Image,
        Some(first) => first,
        None => Exit::Success,
    })
}

/// Returns whether the system has no memory or thread to spare, which says nothing of the image.
fn is_for_want_of_room(error: &FsError) -> bool {
    matches!(error, FsError::PageCache(_) | FsError::NoThread { .. })
}

impl CheckArgs {
    fn check(&self, image: &OsString) -> Result<Found> {
        let (file, path) = split(image);
        if path != b"/" {
            return Err(Failure::usage("check is for whole images: leave the path out"));
        }
        let name = escape(file.as_os_str().as_encoded_bytes());
        let device = self.source.open_read_only(&file).map_err(|error| opening(error, &file))?;
        let device = window(device, self.offset, self.partition)?;
        self.note_use(&file, &name);
        note_holder(&device, &name);
        let mut found = Found {
            name,
            unopened: None,
            report: Report::default(),
            log: Vec::new(),
            replayed: None,
        };
        let (shown, is_pending) = self.replay(&device, &mut found)?;
        let options = CheckOptions {
            require_replayed: false,
            // The next mount deletes them; an image that was unmounted has none.
            require_no_orphans: !is_pending,
            // Told, but no damage by itself: as e2fsck has it.
            require_clean_state: false,
            // Linux writes them now and then, and neither it nor e2fsck believes them.
            strict_totals: false,
            max_problems: self.max_problems,
            threads: self.threads,
            skip_unreadable: true,
        };
        let mut watch = Watch { bar: Bar::new(!self.quiet && !self.json) };
        let checked = extant_check::check_with(&shown, &options, &mut watch);
        drop(watch);
        found.report = checked.map_err(|error| cannot(error, &found.name))?;
        found.note_state(is_pending);
        Ok(found)
    }

    /// The device as the next mount would have it, and whether the journal has anything to replay.
    fn replay(&self, device: &SharedDevice, found: &mut Found) -> Result<(SharedDevice, bool)> {
        let mut options = MountOptions::new().ignore_journal(self.no_replay);
        let mut journal: Option<SharedDevice> = None;
        if let Some(path) = &self.journal_device {
            let given = journal.insert(Arc::new(FileDevice::open_read_only(path)?));
            options = options.journal_device(Arc::clone(given));
        }
        match options.open(Arc::clone(device)).map_err(FsError::from) {
            Ok(fs) => {
                note_journal_error(&fs, &found.name);
                let replayed = fs.replayed();
                found.replayed = replayed.map(|seen| (seen.transactions, seen.fast_commits));
                let is_pending = found.replayed.is_some() || self.no_replay;
                if !self.no_replay && (is_pending || journal.is_some()) {
                    let log = extant_repair::log_damage(Arc::clone(device), journal);
                    found.log = log.map_err(|error| repair::cannot(&error, &found.name))?;
                    let shown = Arc::clone(fs.device());
                    let home = extant_repair::superblock_damage(Arc::clone(device), shown);
                    found.log.extend(home.map_err(|error| repair::cannot(&error, &found.name))?);
                }
                Ok((Arc::clone(fs.device()), is_pending))
            }
            Err(error @ (FsError::NotExt { .. } | FsError::Unsupported { .. })) => {
                Err(self.unopened(error, &found.name, device))
            }
            // Nothing is known of the image as the next mount would have it.
            Err(
                error @ (FsError::JournalDeviceMissing { .. }
                | FsError::WrongJournalDevice { .. }
                | FsError::ExternalJournal { .. }
                | FsError::JournalDevice(_)),
            ) => {
                let is_damage = error.family() == Family::Damage;
                let failure = Failure::from(error).about(&found.name);
                Err(match is_damage {
                    true => failure.hint(self.repairs(&found.name)),
                    false => failure,
                })
            }
            // Nor when the device fails, or the system has no room for it.
            Err(error) if error.family() == Family::Device || is_for_want_of_room(&error) => {
                Err(Failure::from(error).about(&found.name))
            }
            // The first of its problems. What else there is, the image as it lies there says.
            Err(error) => {
                found.unopened = Some(Failure::from(error).message);
                Ok((Arc::clone(device), false))
            }
        }
    }

    /// Which command sets problems right.
    fn repairs(&self, name: &str) -> String {
        match &self.journal_device {
            Some(path) => {
                let path = escape(path.as_os_str().as_encoded_bytes());
                format!("extant repair --journal-device {path} {name} sets them right")
            }
            None => "extant repair sets them right".into(),
        }
    }

    fn unopened(&self, error: FsError, name: &str, device: &SharedDevice) -> Failure {
        let at_start = self.offset.is_none() && self.partition.is_none();
        mount_failure(error, name, device, at_start)
    }

    /// Says that the image is in use, if it is: what changes meanwhile looks damaged.
    fn note_use(&self, file: &Path, name: &str) {
        let user = in_use::mounted_on(file, self.partition, self.offset)
            .map(|dir| format!("is mounted on {}", escape(dir.as_os_str().as_encoded_bytes())))
            .or_else(|| {
                in_use::loop_device_of(file).map(|device| format!("is in use by {device}"))
            });
        if let Some(user) = user {
            complain(&format!(
                "{name}: note: it {user}: what changes meanwhile may be taken for damage"
            ));
        }
    }

    fn show(&self, out: &mut Out, found: &Found) -> Result<()> {
        if self.json {
            return Ok(out.json_pretty(&found.to_json())?);
        }
        let name = &found.name;
        if !self.quiet {
            for text in found.unopened.iter() {
                writeln!(out, "{name}: cannot be opened: {}", escape(text.as_bytes()))?;
            }
            for one in &found.log {
                writeln!(out, "{name}: {}", escape(one.message.as_bytes()))?;
            }
            for problem in &found.report.problems {
                writeln!(out, "{name}: {}", escape(problem.to_string().as_bytes()))?;
            }
        }
        match found.is_clean() {
            true if self.quiet => {}
            true => writeln!(out, "{name}: clean: {}", found.summary())?,
            false => writeln!(out, "{name}: {}", found.verdict(self))?,
        }
        Ok(())
    }
}

/// Why an image cannot be checked.
fn cannot(error: CheckError, name: &str) -> Failure {
    let exit = match &error {
        CheckError::Device(_) => Exit::Io,
        CheckError::Memory { .. } => {
            return Failure::new(Exit::Io, error.to_string()).about(name).hint(LIMITS);
        }
        CheckError::Features { .. } => Exit::Unsupported,
        CheckError::Superblock(_) => {
            let hint = "extant repair takes a backup of it, or sets right what can be; extant salvage does without";
            return Failure::new(Exit::Image, error.to_string()).about(name).hint(hint);
        }
        _ => Exit::Internal,
    };
    Failure::new(exit, error.to_string()).about(name)
}

impl Found {
    fn is_clean(&self) -> bool {
        self.unopened.is_none()
            && self.log.is_empty()
            && self.report.is_clean()
            && !self.report.is_partial
    }

    /// Tells what the image says of itself, if that is worth knowing.
    fn note_state(&self, is_pending: bool) {
        let (name, state) = (&self.name, &self.report.state);
        if let [Problem::DeviceTooSmall { .. }] = self.report.problems.as_slice() {
            return; // Nothing else was looked at.
        }
        if state.has_errors {
            complain(&format!(
                "{name}: note: whoever wrote it recorded errors; extant repair takes the mark away"
            ));
        } else if !state.is_clean && !is_pending {
            complain(&format!("{name}: note: it was not unmounted, and has no journal to replay"));
        }
    }

    fn problems(&self) -> u64 {
        let named = self.report.problems.len() as u64 + self.log.len() as u64;
        let named = named.saturating_add(u64::from(self.unopened.is_some()));
        named.saturating_add(self.report.dropped)
    }

    fn summary(&self) -> String {
        let counts = &self.report.counts;
        let mut text = format!(
            "{}, {} of them, {} in use",
            counted(counts.inodes.into(), "inode"),
            match counts.directories {
                1 => "1 directory".into(),
                many => format!("{many} directories"),
            },
            counted(counts.blocks, "block"),
        );
        if let Some((transactions, fast_commits)) = self.replayed {
            text +=
                &format!("; with {} of its journal", counted(transactions.into(), "transaction"));
            if fast_commits > 0 {
                text += &format!(", without {}", counted(fast_commits.into(), "fast commit"));
            }
        }
        text
    }

    fn verdict(&self, args: &CheckArgs) -> String {
        let mut text = counted(self.problems(), "problem");
        if self.report.dropped > 0 && !args.quiet {
            text += &format!(", {} of them not shown (--max-problems)", self.report.dropped);
        }
        match self.report.problems.as_slice() {
            [Problem::DeviceTooSmall { wanted, .. }] => text + "; " + &cut_off(&self.name, *wanted),
            _ if interrupt::requested() => text + " so far",
            _ if self.report.is_partial => {
                text + "; some blocks cannot be read: extant salvage copies out what can be"
            }
            _ => text + "; " + &args.repairs(&self.name),
        }
    }

    fn to_json(&self) -> Value {
        let problems: Vec<Value> = self
            .unopened
            .iter()
            .map(|text| json!({"code": "not-openable", "message": text, "severity": "file-system"}))
            .chain(self.log.iter().map(finding_problem))
            .chain(self.report.problems.iter().map(problem_json))
            .collect();
        let counts = &self.report.counts;
        json!({
            "image": self.name,
            "clean": self.is_clean(),
            "problems": problems,
            "problems_not_shown": self.report.dropped,
            "partial": self.report.is_partial,
            "inodes": counts.inodes,
            "directories": counts.directories,
            "blocks": counts.blocks,
            "orphans": self.report.state.orphans,
            "errors_recorded": self.report.state.has_errors,
            "replayed": self.replayed.map(|(transactions, fast_commits)| json!({
                "transactions": transactions,
                "fast_commits": fast_commits,
            })),
        })
    }
}

/// Something wrong with a log, as a problem.
fn finding_problem(one: &Fix) -> Value {
    json!({
        "code": one.code,
        "message": one.message,
        "severity": one.severity.name(),
        "fix": one.fix,
        "inode": null,
        "target": null,
        "block": null,
        "group": null,
    })
}

fn problem_json(problem: &Problem) -> Value {
    let objects = problem.objects();
    json!({
        "code": problem.code(),
        "message": problem.to_string(),
        "severity": problem.severity().name(),
        "fix": problem.fix(),
        "inode": objects.ino.map(|ino| ino.0),
        "target": objects.target.map(|ino| ino.0),
        "block": objects.block.map(|block| block.0),
        "group": objects.group.map(|group| group.0),
    })
}
