//! Features, journal, quota, size of inodes, UUID: what needs more than a field of the superblock.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant_block::SharedDevice;
use extant_format::features::{DefaultHash, Encoding, EncodingFlags, Feature};
use extant_sync::{Clock, SystemClock};
use extant_tune::{Plan, Request, TuneError};
use serde_json::{Value, json};

use super::TuneArgs;
use crate::commands::repair::{UndoFile, waits};
use crate::commands::resize::{of_change, other_than_ext};
use crate::edit::EditArgs;
use crate::exit::{Exit, Failure, Result, chain};
use crate::mounting::asked;
use crate::output::Out;
use crate::size::{Amount, parse_amount};
use crate::target::epoch;
use crate::text::{counted, escape};

const HEADING: &str = "Features (as tune2fs)";

/// Conversions.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = HEADING)]
pub(super) struct ConvertArgs {
    /// Features on, or with ^ off: metadata_csum,^has_journal
    #[arg(short = 'O', long, value_name = "LIST", allow_hyphen_values = true)]
    features: Vec<String>,
    /// Size of the journal: size=64M (a plain number is MiB)
    #[arg(short = 'J', long, value_name = "LIST")]
    journal: Vec<String>,
    /// Make a journal: -O has_journal
    #[arg(short = 'j', long = "with-journal")]
    with_journal: bool,
    /// Usage that is counted: usrquota, grpquota, prjquota, or with ^ not
    #[arg(short = 'Q', long, value_name = "LIST", allow_hyphen_values = true)]
    quota: Vec<String>,
    /// Bytes of an inode: 128, 256 and more
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u16>,
    /// Extended options by tune2fs's names: stride=, stripe_width=, hash_alg=, mount_opts=, encoding=,
    /// encoding_flags=, mmp_update_interval=, clear_mmp
    #[arg(short = 'E', long, value_name = "LIST")]
    extended: Vec<String>,
    /// With -U: leave checksums as they are, by metadata_csum_seed
    #[arg(long, requires = "uuid")]
    keep_checksums: bool,
    /// Show what would be done, and change nothing
    #[arg(short = 'n', long)]
    pub(super) plan: bool,
    /// Keep what is overwritten in a new file, for extant undo
    #[arg(long, value_name = "FILE")]
    pub(super) undo: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(super) json: bool,
}

fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

/// A word, and whether it is without `^`.
fn switch(word: &str) -> (&str, bool) {
    match word.strip_prefix('^') {
        Some(name) => (name, false),
        None => (word, true),
    }
}

fn number<N: std::str::FromStr>(name: &str, text: &str) -> Result<N> {
    text.parse()
        .map_err(|_| Failure::usage(format!("-E {name}={text}: not a number that it takes")))
}

fn unsupported(word: &str, why: &str) -> Failure {
    Failure::new(Exit::Unsupported, format!("{word}: {why}"))
}

impl ConvertArgs {
    /// What is asked for; `None`: no conversion.
    pub(super) fn request(&self, uuid: Option<[u8; 16]>) -> Result<Option<Request>> {
        let mut request =
            Request { uuid, keep_checksums: self.keep_checksums, ..Request::default() };
        for word in words(&self.features) {
            let (name, on) = switch(word);
            let feature =
                Feature::from_name(name).map_err(|error| Failure::usage(error.to_string()))?;
            request.features.push((feature, on));
        }
        if self.with_journal {
            request.features.push((Feature::HAS_JOURNAL, true));
        }
        for word in words(&self.journal) {
            match word.split_once('=') {
                Some(("size", text)) => request.journal_bytes = Some(journal_bytes(text)?),
                Some(("device" | "location" | "fast_commit_size", _)) => {
                    return Err(unsupported(
                        &format!("-J {word}"),
                        "only a journal inside the image, placed by extant",
                    ));
                }
                _ => return Err(Failure::usage(format!("-J {word}: give size=SIZE"))),
            }
        }
        for word in words(&self.quota) {
            let (name, on) = switch(word);
            let kind = match name {
                "usrquota" | "usr" => 0,
                "grpquota" | "grp" => 1,
                "prjquota" | "prj" => 2,
                _ => {
                    return Err(Failure::usage(format!(
                        "-Q {word}: give usrquota, grpquota or prjquota, or one of them with ^"
                    )));
                }
            };
            if let Some(slot) = request.quota.get_mut(kind) {
                *slot = Some(on);
            }
        }
        request.inode_size = self.inode_size;
        for word in words(&self.extended) {
            extended(&mut request, word)?;
        }
        if request == Request::default() {
            return Ok(None);
        }
        request.now = match epoch(None)? {
            Some(epoch) => epoch,
            None => SystemClock.now().0,
        };
        Ok(Some(request))
    }

    /// Plans, writes and tells.
    pub(super) fn run(&self, edit: &EditArgs, file: &Path, request: &Request) -> Result<()> {
        let name = escape(file.as_os_str().as_encoded_bytes());
        let cannot = |error: TuneError, device: &SharedDevice| {
            let other = match &error {
                TuneError::Change(change) => other_than_ext(change, &name, device, edit.is_all()),
                _ => None,
            };
            other.unwrap_or_else(|| failure(&error, &name))
        };
        if self.plan {
            let device = edit.device_read_only(file)?;
            let plan =
                extant_tune::plan(&device, request).map_err(|error| cannot(error, &device))?;
            return self.show(&plan, &name, false);
        }
        let device = edit.device(file)?;
        let mut kept = Ok(None);
        let mut keep = |places: &[(u64, u64)]| {
            let Some(undo) = &self.undo else { return Ok(()) };
            kept = UndoFile::save(&*device, places.iter().copied(), undo).map(Some);
            match &kept {
                Ok(_) => Ok(()),
                Err(_) => Err(TuneError::Refused {
                    what: "undo".to_owned(),
                    why: "what would be overwritten cannot be kept".to_owned(),
                }),
            }
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let mut tell = |seconds| waits(&name, seconds);
        let done = extant_tune::tune(&device, request, &mut keep, &clock, &mut tell);
        let undo = kept?;
        let plan = done.map_err(|error| cannot(error, &device))?;
        if let Some(undo) = undo {
            undo.finish(&*device);
        }
        self.show(&plan, &name, true)
    }

    fn show(&self, plan: &Plan, name: &str, written: bool) -> Result<()> {
        let mut out = Out::new();
        if self.json {
            let steps: Vec<Value> = plan
                .steps
                .iter()
                .map(|step| {
                    json!({
                        "what": step.what,
                        "quiet_blocks": step.quiet_blocks,
                        "switched_blocks": step.switched_blocks,
                        "atomic": step.is_atomic,
                    })
                })
                .collect();
            out.json_pretty(&json!({
                "image": name,
                "written": written,
                "steps": steps,
                "features": plan.features.names(),
            }))?;
            return Ok(out.flush()?);
        }
        if plan.steps.is_empty() {
            writeln!(out, "{name}: is so already")?;
        }
        for step in &plan.steps {
            let how = match (written, step.is_atomic) {
                (true, _) => "",
                (false, true) => "; a cut leaves the image before or after it",
                (false, false) => "; a cut may leave an image that needs a check",
            };
            writeln!(
                out,
                "{name}: {}{}: {} before, {} switched{how}",
                if written { "" } else { "would do " },
                step.what,
                counted(step.quiet_blocks, "block"),
                counted(step.switched_blocks, "block"),
            )?;
        }
        Ok(out.flush()?)
    }
}

fn journal_bytes(text: &str) -> Result<u64> {
    match parse_amount(text) {
        Ok(Amount::Bytes(bytes)) => Ok(bytes),
        Ok(Amount::Plain(mib)) if mib < 1 << 20 => Ok(mib << 20),
        Ok(Amount::Plain(_)) => Err(Failure::usage(format!("-J size={text}: too large"))),
        Err(error) => Err(Failure::usage(format!("-J size={text}: {error}"))),
    }
}

fn extended(request: &mut Request, word: &str) -> Result<()> {
    let (name, text) = word.split_once('=').unwrap_or((word, ""));
    match name {
        "stride" => request.stride = Some(number(name, text)?),
        "stripe_width" | "stripe-width" => request.stripe_width = Some(number(name, text)?),
        "mmp_update_interval" => request.mmp_interval = Some(number(name, text)?),
        "mount_opts" => request.mount_options = Some(text.as_bytes().to_vec()),
        "hash_alg" => {
            request.default_hash = Some(match text {
                "legacy" => DefaultHash::Legacy,
                "half_md4" => DefaultHash::HalfMd4,
                "tea" => DefaultHash::Tea,
                _ => {
                    return Err(Failure::usage(format!("-E {word}: give legacy, half_md4 or tea")));
                }
            });
        }
        "encoding" => match text {
            "utf8" | "utf8-12.1" => request.encoding = Some(Encoding::Utf8V12_1),
            _ => return Err(Failure::usage(format!("-E {word}: give utf8 or utf8-12.1"))),
        },
        "encoding_flags" => {
            request.encoding_flags = Some(match text {
                "strict" => EncodingFlags::STRICT,
                "^strict" | "" => EncodingFlags::empty(),
                _ => return Err(Failure::usage(format!("-E {word}: give strict or ^strict"))),
            });
        }
        "clear_mmp" => request.clear_mmp = true,
        "force_fsck" | "test_fs" | "^test_fs" | "orphan_file_size" | "revision" => {
            return Err(unsupported(&format!("-E {word}"), "tune2fs has it, extant has not"));
        }
        _ => return Err(Failure::usage(format!("-E {word}: no such option"))),
    }
    Ok(())
}

fn failure(error: &TuneError, name: &str) -> Failure {
    let (exit, hint) = match error {
        TuneError::Change(error) => of_change(error, name),
        TuneError::Refused { .. } => (Exit::Refused, None),
        TuneError::Full { .. } => {
            (Exit::NoSpace, Some(format!("extant resize {name} SIZE makes it larger")))
        }
        _ => (Exit::Io, None),
    };
    let failure = Failure::new(exit, chain(error)).about(name);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Changes label and UUID of a mount.
pub(super) fn on_mount(args: &TuneArgs) -> Result<Exit> {
    let dir = Path::new(&args.image);
    let name = escape(dir.as_os_str().as_encoded_bytes());
    let uuid = args.new_uuid()?;
    if args.edit.is_for_images() || !args.is_only_names() {
        return Err(Failure::usage(format!("{name} is a mount: only -L and -U change one"))
            .hint(format!("extant umount {name}, then extant tune … IMG")));
    }
    let mut order = extant_fuse::TUNE.to_vec();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    if let Some(label) = &args.label {
        order.extend_from_slice(format!("label:{},", hex(label.as_encoded_bytes())).as_bytes());
    }
    if let Some(uuid) = uuid {
        order.extend_from_slice(format!("uuid:{},", hex(&uuid)).as_bytes());
    }
    let answer = asked::answer(dir, &order).map_err(|error| match error.kind() {
        std::io::ErrorKind::ReadOnlyFilesystem => {
            Failure::new(Exit::Refused, format!("{name} is read-only"))
        }
        std::io::ErrorKind::ResourceBusy => {
            Failure::new(Exit::Refused, format!("{name} is frozen"))
        }
        _ => asked::no_answer(dir, &error),
    })?;
    match answer.get("refused").and_then(Value::as_str) {
        Some(why) => Err(Failure::new(Exit::Refused, why.to_owned()).about(&name)),
        None => Ok(Exit::Success),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_options_are_those_of_tune2fs() {
        let one = |word: &str| {
            let mut request = Request::default();
            extended(&mut request, word).map(|()| request)
        };
        assert_eq!(one("stride=16").unwrap().stride, Some(16));
        assert_eq!(one("stripe-width=64").unwrap().stripe_width, Some(64));
        assert_eq!(one("hash_alg=tea").unwrap().default_hash, Some(DefaultHash::Tea));
        assert_eq!(one("mount_opts=a").unwrap().mount_options, Some(b"a".to_vec()));
        assert_eq!(one("stride=65536").unwrap_err().exit, Exit::Usage);
        assert_eq!(one("speed=1").unwrap_err().exit, Exit::Usage);
        assert!(one("clear_mmp").unwrap().clear_mmp);
        assert_eq!(one("force_fsck").unwrap_err().exit, Exit::Unsupported);
    }
}
