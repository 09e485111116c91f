//! `extant tune`: settings of a file system, and its features.

mod convert;

use std::ffi::OsString;

use clap::Args;
use extant::{Reserve, Tune};
use extant_format::features::{DefaultMountOpts, ErrorsPolicy};
use uuid::Uuid;

use crate::accounts::Account;
use crate::commands::build::random_uuid;
use crate::edit::{EditArgs, edit_one};
use crate::exit::{Exit, Failure, Result};
use crate::image::split;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant tune -L data -m 1 data.img\n  extant tune -O metadata_csum,64bit,orphan_file data.img\n  extant tune -n -O ^orphan_file,^has_journal data.img\n  extant tune -J size=64M data.img\n  extant tune -Q usrquota,^grpquota data.img\n  extant tune -L data -U random mnt\n  extant tune -c none -i 6m -e remount-ro data.img\n  extant tune -o acl,^user_xattr data.img\n";

const HEADING: &str = "Settings (as tune2fs)";

/// Change settings and features of a file system
///
/// Settings are changed together, or none of them. Features, the journal, quota, the size of inodes and the UUID are
/// conversions, each by itself, and all of them planned before the first write; settings come after them.
/// A conversion goes through the journal of the image where it can, so that a cut leaves the image before or the one
/// after; -n says which do. Otherwise the image says that it needs a check until the last write. extant info
/// shows the settings.
///
/// A directory is one of a mount by extant, whose label and UUID change while others use it.
#[derive(Args, Debug)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// Name of the file system, at most 16 bytes
    #[arg(short = 'L', long, value_name = "NAME", help_heading = HEADING)]
    label: Option<OsString>,
    /// UUID, or random
    #[arg(short = 'U', long, value_name = "UUID", value_parser = parse_uuid,
          help_heading = HEADING)]
    uuid: Option<NewUuid>,
    /// Percent of blocks that only root may use, 0 to 50
    #[arg(short = 'm', long, value_name = "PERCENT", conflicts_with = "reserved_blocks",
          help_heading = HEADING)]
    reserved_percent: Option<f64>,
    /// The same as a number of blocks
    #[arg(short = 'r', long, value_name = "BLOCKS", help_heading = HEADING)]
    reserved_blocks: Option<u64>,
    /// User who may use them too
    #[arg(short = 'u', long, value_name = "USER", value_parser = Account::parse,
          help_heading = HEADING)]
    reserved_user: Option<Account>,
    /// Group who may use them too
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = Account::parse,
          help_heading = HEADING)]
    reserved_group: Option<Account>,
    /// Check after that many mounts; none, 0 or -1: never
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = parse_mounts,
          allow_hyphen_values = true, help_heading = HEADING)]
    max_mount_count: Option<Mounts>,
    /// Mounts since the last check
    #[arg(short = 'C', long, value_name = "COUNT", help_heading = HEADING)]
    mount_count: Option<u16>,
    /// Check after that time: 180d, 26w, 6m (30 days each), 3600s; 0 or none: never
    #[arg(short = 'i', long, value_name = "TIME", value_parser = parse_interval,
          help_heading = HEADING)]
    check_interval: Option<u32>,
    /// What the kernel does when it meets an error
    #[arg(short = 'e', long, value_name = "WHAT",
          value_parser = ["continue", "remount-ro", "panic"], help_heading = HEADING)]
    errors: Option<String>,
    /// Default mount options on, or with ^ off: acl,^user_xattr
    #[arg(short = 'o', long, value_name = "LIST", allow_hyphen_values = true,
          help_heading = HEADING)]
    mount_options: Vec<String>,
    #[command(flatten)]
    convert: convert::ConvertArgs,
    /// Image file or block device, or a directory of a mount
    #[arg(value_name = "IMG|DIR")]
    image: OsString,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NewUuid {
    Random,
    This([u8; 16]),
}

fn parse_uuid(text: &str) -> Result<NewUuid, String> {
    match text {
        "random" | "time" => Ok(NewUuid::Random),
        _ => Uuid::parse_str(text)
            .map(|uuid| NewUuid::This(uuid.into_bytes()))
            .map_err(|error| error.to_string()),
    }
}

/// After how many mounts a check is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mounts(Option<u16>);

fn parse_mounts(text: &str) -> Result<Mounts, String> {
    match text {
        "none" | "0" | "-1" => Ok(Mounts(None)),
        _ => text
            .parse()
            .map(|count| Mounts(Some(count)))
            .map_err(|_| "a number from 1 to 32767, or none".into()),
    }
}

/// Seconds. A plain number is days, as tune2fs has it.
fn parse_interval(text: &str) -> Result<u32, String> {
    const DAY: u32 = 86_400;
    if text == "none" {
        return Ok(0);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "" | "d" => DAY,
        "w" => 7 * DAY,
        "m" => 30 * DAY,
        "s" => 1,
        _ => return Err("a whole number with d, w, m (30 days) or s".into()),
    };
    let number: u32 = number.parse().map_err(|_| "a whole number with d, w, m or s".to_owned())?;
    number.checked_mul(scale).ok_or_else(|| "that is more than 136 years".into())
}

/// Options by the names of tune2fs; those of the journal exclude each other.
const OPTIONS: [(&str, DefaultMountOpts); 11] = [
    ("debug", DefaultMountOpts::DEBUG),
    ("bsdgroups", DefaultMountOpts::BSDGROUPS),
    ("user_xattr", DefaultMountOpts::XATTR_USER),
    ("acl", DefaultMountOpts::ACL),
    ("uid16", DefaultMountOpts::UID16),
    ("journal_data", DefaultMountOpts::JMODE_DATA),
    ("journal_data_ordered", DefaultMountOpts::JMODE_ORDERED),
    ("journal_data_writeback", WRITEBACK),
    ("nobarrier", DefaultMountOpts::NOBARRIER),
    ("block_validity", DefaultMountOpts::BLOCK_VALIDITY),
    ("discard", DefaultMountOpts::DISCARD),
];

const WRITEBACK: DefaultMountOpts =
    DefaultMountOpts::JMODE_DATA.union(DefaultMountOpts::JMODE_ORDERED);

/// The options after the changes of `list`.
fn change_options(mut options: DefaultMountOpts, list: &str) -> Result<DefaultMountOpts, String> {
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, on) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        let known = OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, option)| *option);
        let known = known.or((name == "nodelalloc").then_some(DefaultMountOpts::NODELALLOC));
        let Some(option) = known else { return Err(format!("no mount option is called {name:?}")) };
        if WRITEBACK.contains(option) {
            match on {
                true => options = options.difference(WRITEBACK) | option,
                // Only the mode that is set can be taken away.
                false if options & WRITEBACK == option => options = options.difference(WRITEBACK),
                false => {}
            }
        } else {
            options.set(option, on);
        }
    }
    Ok(options)
}

impl TuneArgs {
    /// Returns whether nothing but label and UUID is to change.
    fn is_only_names(&self) -> bool {
        let other = [
            self.reserved_percent.is_some(),
            self.reserved_blocks.is_some(),
            self.reserved_user.is_some(),
            self.reserved_group.is_some(),
            self.max_mount_count.is_some(),
            self.mount_count.is_some(),
            self.check_interval.is_some(),
            self.errors.is_some(),
            !self.mount_options.is_empty(),
            self.convert.plan,
            self.convert.json,
            self.convert.undo.is_some(),
        ];
        !other.contains(&true)
            && (self.label.is_some() || self.uuid.is_some())
            && self.convert.request(None).is_ok_and(|request| request.is_none())
    }

    /// The UUID that is asked for.
    fn new_uuid(&self) -> Result<Option<[u8; 16]>> {
        Ok(match self.uuid {
            Some(NewUuid::Random) => Some(random_uuid()?),
            Some(NewUuid::This(uuid)) => Some(uuid),
            None => None,
        })
    }
}

/// Runs the command.
pub(crate) fn run(args: &TuneArgs) -> Result<Exit> {
    if std::path::Path::new(&args.image).is_dir() {
        return convert::on_mount(args);
    }
    let (file, path) = split(&args.image);
    if path != b"/" {
        return Err(Failure::usage("tune is for a whole image: leave the path out"));
    }
    let mut tune = Tune::new();
    if let Some(label) = &args.label {
        use std::os::unix::ffi::OsStrExt;
        if label.len() > 16 {
            return Err(Failure::usage("label: at most 16 bytes"));
        }
        tune = tune.label(label.as_bytes());
    }
    if let Some(percent) = args.reserved_percent {
        tune = tune.reserve(Reserve::Percent(percent));
    }
    if let Some(blocks) = args.reserved_blocks {
        tune = tune.reserve(Reserve::Blocks(blocks));
    }
    if let Some(Mounts(count)) = args.max_mount_count {
        tune = tune.max_mount_count(count);
    }
    if let Some(count) = args.mount_count {
        tune = tune.mount_count(count);
    }
    if let Some(seconds) = args.check_interval {
        tune = tune.check_interval(seconds);
    }
    if let Some(errors) = &args.errors {
        tune = tune.errors(match errors.as_str() {
            "continue" => ErrorsPolicy::Continue,
            "panic" => ErrorsPolicy::Panic,
            _ => ErrorsPolicy::RemountReadOnly,
        });
    }
    let owner = args.reserved_user.is_some() || args.reserved_group.is_some();
    let request = args.convert.request(args.new_uuid()?)?;
    let has_settings = tune != Tune::new() || !args.mount_options.is_empty() || owner;
    if let Some(request) = &request {
        if args.convert.plan && has_settings {
            return Err(Failure::usage("-n is for features, the journal, quota, -I, -U and -E"));
        }
        args.convert.run(&args.edit, &file, request)?;
        if !has_settings {
            return Ok(Exit::Success);
        }
    } else if args.convert.plan || args.convert.json || args.convert.undo.is_some() {
        return Err(Failure::usage(
            "-n, --json and --undo are for features, the journal, quota, -I, -U and -E",
        ));
    }
    if !has_settings {
        return Err(Failure::usage("nothing to do: give a setting")
            .hint("extant info IMG shows the present ones"));
    }
    edit_one(&args.edit, &file, |session| {
        let superblock = session.fs.superblock();
        if !args.mount_options.is_empty() {
            let mut options = superblock.default_mount_opts;
            for list in &args.mount_options {
                options = change_options(options, list).map_err(Failure::usage)?;
            }
            tune = tune.clone().default_options(options);
        }
        if owner {
            let names = crate::accounts::Names::load(&session.fs, false);
            let (mut uid, mut gid) = (superblock.reserved_uid, superblock.reserved_gid);
            if let Some(user) = &args.reserved_user {
                uid = user.uid(&names)?;
            }
            if let Some(group) = &args.reserved_group {
                gid = group.gid(&names)?;
            }
            tune = tune.clone().reserve_owner(uid, gid);
        }
        session.fs.tune(&tune).map_err(|error| Failure::from(error).about(&session.name))?;
        session.tally.done();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_as_tune2fs_reads_them() {
        assert_eq!(parse_interval("180d"), Ok(180 * 86_400));
        assert_eq!(parse_interval("2"), Ok(2 * 86_400));
        assert_eq!(parse_interval("6m"), Ok(180 * 86_400));
        assert_eq!(parse_interval("1w"), Ok(7 * 86_400));
        assert_eq!(parse_interval("none"), Ok(0));
        assert!(parse_interval("1y").is_err() && parse_interval("99999m").is_err());
        assert_eq!(parse_mounts("-1"), Ok(Mounts(None)));
        assert_eq!(parse_mounts("30"), Ok(Mounts(Some(30))));
        assert!(parse_mounts("-2").is_err());
        assert_eq!(parse_uuid("random"), Ok(NewUuid::Random));
        assert!(parse_uuid("x").is_err());
    }

    #[test]
    fn mount_options_are_switched_and_journal_modes_exclude_each_other() {
        let acl = DefaultMountOpts::ACL;
        let options = change_options(acl, "user_xattr,^acl").unwrap();
        assert_eq!(options, DefaultMountOpts::XATTR_USER);
        let data = change_options(acl, "journal_data_ordered,journal_data").unwrap();
        assert_eq!(data, acl | DefaultMountOpts::JMODE_DATA);
        assert_eq!(change_options(data, "^journal_data_writeback").unwrap(), data);
        assert_eq!(change_options(data, "^journal_data").unwrap(), acl);
        assert!(change_options(acl, "nonsense").is_err());
    }
}
