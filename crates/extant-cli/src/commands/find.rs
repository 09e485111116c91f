//! `extant find`: files that meet conditions.

use std::io::Write;

use clap::Args;
use extant::{FileKind, Metadata, WalkEntry};

use crate::entry::inode_json;
use crate::exit::{Exit, Failure, Result};
use crate::image::{Failures, Image, ImagesArgs};
use crate::output::Out;
use crate::text::glob;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant find root.img -name '*.conf' -size +1M\n  extant find root.img:/usr -perm -4000\n  extant find root.img -type l -print0 | xargs -0 -n1 echo\n";

/// Find files of images that meet all conditions given
///
/// The long options may be written with one dash, as find(1) has them. Paths are printed in stored
/// order as they are met; on a terminal, control characters in them become escapes.
#[derive(Args, Debug)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    images: ImagesArgs,
    /// The name matches a shell pattern: * ? [a-z] [!a-z]
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    name: Option<String>,
    /// As --name, whatever the case
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    iname: Option<String>,
    /// The whole path matches a shell pattern; * takes slashes too
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    path: Option<String>,
    /// Kind: f file, d directory, l symlink, c, b devices, p fifo, s socket; several with commas
    #[arg(long = "type", value_name = "KIND", value_delimiter = ',', value_parser = parse_kind)]
    kinds: Vec<FileKind>,
    /// Size rounded up to a unit: 3M is 3 MiB, +3M more, -3M less; units c w b k M G, b (512 bytes) if none
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_size)]
    size: Option<SizeTest>,
    /// Owner, a number
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Group, a number
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
    /// Permissions in octal: MODE exactly, -MODE all of them, /MODE any of them
    #[arg(long, value_name = "MODE", allow_hyphen_values = true, value_parser = parse_perm)]
    perm: Option<PermTest>,
    /// Number of names: [+-]N
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_count)]
    links: Option<CountTest>,
    /// Inode number
    #[arg(long, value_name = "INO")]
    inum: Option<u32>,
    /// Changed after that moment: seconds since 1970
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    newer: Option<i64>,
    /// Nothing less deep than N; the path given is at 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    mindepth: usize,
    /// Nothing deeper than N
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// By name within each directory, not as stored
    #[arg(long)]
    sorted: bool,
    /// End paths with NUL and leave them as they are
    #[arg(long, short = '0', conflicts_with = "json")]
    print0: bool,
    /// One JSON object on each line
    #[arg(long)]
    json: bool,
}

/// Options that find(1) writes with one dash.
const SINGLE_DASH: [&str; 14] = [
    "name", "iname", "path", "type", "size", "user", "group", "perm", "links", "inum", "newer",
    "mindepth", "maxdepth", "print0",
];

/// Gives `-name` and its like their second dash.
pub(crate) fn double_dashes(arg: std::ffi::OsString) -> std::ffi::OsString {
    let name = arg.to_str().and_then(|arg| arg.strip_prefix('-')).map(str::to_owned);
    match name {
        Some(name) if SINGLE_DASH.contains(&name.split('=').next().unwrap_or("")) => {
            format!("--{name}").into()
        }
        _ => arg,
    }
}

/// `+N`, `-N` or `N`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CountTest {
    More(u64),
    Less(u64),
    Exactly(u64),
}

impl CountTest {
    fn accepts(self, value: u64) -> bool {
        match self {
            CountTest::More(limit) => value > limit,
            CountTest::Less(limit) => value < limit,
            CountTest::Exactly(wanted) => value == wanted,
        }
    }
}

fn parse_count(text: &str) -> Result<CountTest, String> {
    let (test, digits): (fn(u64) -> CountTest, &str) = match text.split_at_checked(1) {
        Some(("+", rest)) => (CountTest::More, rest),
        Some(("-", rest)) => (CountTest::Less, rest),
        _ => (CountTest::Exactly, text),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| plain);
    number.map(test).ok_or_else(|| "give N, +N (more) or -N (less)".into())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SizeTest {
    count: CountTest,
    unit: u64,
}

fn parse_size(text: &str) -> Result<SizeTest, String> {
    let unit = match text.bytes().last() {
        Some(b'c') => 1,
        Some(b'w') => 2,
        Some(b'b') => 512,
        Some(b'k') => 1 << 10,
        Some(b'M') => 1 << 20,
        Some(b'G') => 1 << 30,
        _ => {
            return Ok(SizeTest { count: parse_count(text)?, unit: 512 });
        }
    };
    let count = text.get(..text.len() - 1).unwrap_or("");
    Ok(SizeTest { count: parse_count(count)?, unit })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PermTest {
    Exactly(u16),
    All(u16),
    Any(u16),
}

fn parse_perm(text: &str) -> Result<PermTest, String> {
    let (test, digits): (fn(u16) -> PermTest, &str) = match text.split_at_checked(1) {
        Some(("-", rest)) => (PermTest::All, rest),
        Some(("/", rest)) => (PermTest::Any, rest),
        _ => (PermTest::Exactly, text),
    };
    let octal = digits.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u16::from_str_radix(digits, 8).ok().filter(|mode| octal && *mode <= 0o7777);
    mode.map(test).ok_or_else(|| "give permissions in octal, such as 644, -4000 or /222".into())
}

fn parse_kind(text: &str) -> Result<FileKind, String> {
    Ok(match text {
        "f" => FileKind::Regular,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        "c" => FileKind::CharDevice,
        "b" => FileKind::BlockDevice,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        _ => return Err("a kind is f, d, l, c, b, p or s".into()),
    })
}

impl FindArgs {
    fn accepts(&self, found: &WalkEntry) -> bool {
        let name_fits = |pattern: &Option<String>, ignore_case| {
            // The start's name is the last of its path.
            let name = found.path().rsplit(|byte| *byte == b'/').next().unwrap_or(found.path());
            pattern.as_ref().is_none_or(|pattern| glob(pattern, name, ignore_case))
        };
        found.depth() >= self.mindepth
            && name_fits(&self.name, false)
            && name_fits(&self.iname, true)
            && self.path.as_ref().is_none_or(|pattern| glob(pattern, found.path(), false))
            && self.accepts_meta(&found.inode().metadata())
    }

    fn accepts_meta(&self, meta: &Metadata) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&meta.kind))
            && self.size.is_none_or(|test| test.count.accepts(meta.size.div_ceil(test.unit)))
            && self.user.is_none_or(|uid| meta.uid == uid)
            && self.group.is_none_or(|gid| meta.gid == gid)
            && self.links.is_none_or(|test| test.accepts(u64::from(meta.links)))
            && self.inum.is_none_or(|ino| meta.ino.0 == ino)
            && self
                .newer
                .is_none_or(|seconds| (meta.mtime.seconds, meta.mtime.nanos) > (seconds, 0))
            && self.perm.is_none_or(|test| match test {
                PermTest::Exactly(mode) => meta.permissions == mode,
                PermTest::All(mode) => meta.permissions & mode == mode,
                PermTest::Any(mode) => mode == 0 || meta.permissions & mode != 0,
            })
    }
}

/// Runs the command.
pub(crate) fn run(args: &FindArgs) -> Result<Exit> {
    args.images.each(|image| find(args, image))
}

fn find(args: &FindArgs, image: &Image) -> Result<Exit> {
    let mut out = Out::new();
    let mut failures = Failures::default();
    let start = image.resolve_link()?;
    let walk = image.fs.walk(&image.path).map_err(|error| image.failure(&image.path, error))?;
    drop(start);
    for item in walk.sorted(args.sorted).max_depth(args.maxdepth.unwrap_or(usize::MAX)) {
        let found = match item {
            Ok(found) => found,
            Err(error) => {
                out.flush()?;
                failures.report(&image.failure(&error.path, error.error));
                continue;
            }
        };
        if !args.accepts(&found) {
            continue;
        }
        if args.json {
            let (mut value, failed) = inode_json("path", found.path(), found.inode());
            if let Some(object) = value.as_object_mut() {
                image.put_name(object);
            }
            out.json(&value)?;
            if let Some(error) = failed {
                failures.report(&image.failure(found.path(), error));
            }
            continue;
        }
        if image.is_one_of_several {
            out.write_all(&image.file_prefix())?;
        }
        if args.print0 {
            out.write_all(found.path())?;
            out.write_all(b"\0")?;
        } else {
            out.name(found.path())?;
            out.write_all(b"\n")?;
        }
    }
    out.flush().map_err(Failure::output)?;
    Ok(failures.exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_find_reads_them() {
        assert_eq!(parse_count("+3"), Ok(CountTest::More(3)));
        assert_eq!(parse_count("-3"), Ok(CountTest::Less(3)));
        assert!(parse_count("+-3").is_err() && parse_count("").is_err());
        let size = |text| parse_size(text).unwrap();
        assert_eq!(size("+1M"), SizeTest { count: CountTest::More(1), unit: 1 << 20 });
        assert_eq!(size("8"), SizeTest { count: CountTest::Exactly(8), unit: 512 });
        assert_eq!(parse_perm("-4000"), Ok(PermTest::All(0o4000)));
        assert_eq!(parse_perm("/222"), Ok(PermTest::Any(0o222)));
        assert!(parse_perm("888").is_err() && parse_perm("10000").is_err());
        assert_eq!(double_dashes("-name".into()), "--name");
        assert_eq!(double_dashes("-b".into()), "-b");
        assert_eq!(double_dashes("-perm=-222".into()), "--perm=-222");
    }
}
