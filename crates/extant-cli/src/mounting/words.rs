//! The words of `-o`: ext4's names with ext4's meaning, those of fstab, and extant's own.
//!
//! # Invariants
//!
//! - W1. A word that is accepted has its effect, or is in [`HARMLESS`]: a choice of how, not of what.
//! - W2. A word that is known and would promise what extant does not do is refused with the reason.
//! - W3. A word that is not known is refused by name.

use extant::MountErrors;
use extant_block::UnknownEngine;
use extant_fuse::{AccessTimes, RingUse};

use crate::exit::{Exit, Failure, Result};
use crate::manuals;
use crate::mounting::options::{IdRange, Kind, MountChoices, SandboxMode};
use crate::size::parse_bytes;

/// Words that [`apply`] gives an effect, for the list of similar ones. A `=` takes a value.
const EFFECTIVE: &[&str] = &[
    "ro",
    "rw",
    "remount",
    "defaults",
    "noatime",
    "atime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "nodiratime",
    "diratime",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "user",
    "users",
    "owner",
    "group",
    "user=",
    "errors=",
    "commit=",
    "noload",
    "norecovery",
    "load",
    "minixdf",
    "bsddf",
    "sb=",
    "data=",
    "quota",
    "usrquota",
    "grpquota",
    "prjquota",
    "noquota",
    "journal_checksum",
    "journal_path=",
    "allow_other",
    "noallow_other",
    "default_permissions",
    "map_root",
    "idmap=",
    "offset=",
    "partition=",
    "break_seal",
    "max_threads=",
    "cache=",
    "max_inodes=",
    "dirty_bytes=",
    "dirty_background_bytes=",
    "max_read=",
    "writeback_cache",
    "nowriteback_cache",
    "sync",
    "async",
    "dirsync",
    "discard",
    "nodiscard",
    "fast_commit",
    "nofast_commit",
    "mb_optimize_scan=",
    "io_uring",
    "noio_uring",
    "device_engine=",
    "fuseblk",
    "nofuseblk",
    "idmapped",
    "noidmapped",
    "sandbox",
    "nosandbox",
    "sandbox=",
    "log=",
    "dax=",
];

/// Words without an effect here, because there is nothing that they could change for programs, or
/// because what they ask for is always so. The second part says which.
const HARMLESS: &[(&str, &str)] = &[
    ("auto", "for whoever reads fstab"),
    ("noauto", "for whoever reads fstab"),
    ("nofail", "for whoever reads fstab"),
    ("_netdev", "for whoever reads fstab"),
    ("comment=", "for whoever reads fstab"),
    ("helper=", "for umount(8)"),
    ("uhelper=", "for umount(8)"),
    ("loop", "an image file needs no loop device"),
    ("user_id=", "in the kernel's list of mounts; who mounts is known"),
    ("group_id=", "in the kernel's list of mounts; who mounts is known"),
    ("blksize=", "in the kernel's list of mounts"),
    ("nouser", "the default"),
    ("nogroup", "the default"),
    ("noowner", "the default"),
    ("nomand", "the default"),
    ("silent", "what is wrong is always said"),
    ("loud", "what is wrong is always said"),
    ("acl", "always on"),
    ("user_xattr", "always on"),
    ("barrier", "always on"),
    ("barrier=", "always on, which is slower than off and safer"),
    ("nobarrier", "the cache of the disk is always flushed, which is slower and safer"),
    ("block_validity", "always on"),
    ("noblock_validity", "always on"),
    ("delalloc", "always on"),
    ("nodelalloc", "how blocks are chosen; room is always claimed at the write"),
    ("auto_da_alloc", "always on"),
    ("nogrpid", "the default"),
    ("sysvgroups", "the default"),
    ("iversion", "no program sees the number"),
    ("i_version", "no program sees the number"),
    ("nojournal_checksum", "the features of the image decide"),
    ("noauto_da_alloc", "keeps a promise that was not asked for"),
    ("dioread_nolock", "how reads and writes exclude each other inside"),
    ("dioread_lock", "how reads and writes exclude each other inside"),
    ("orlov", "how blocks are chosen"),
    ("stripe=", "how blocks are chosen"),
    ("inode_readahead_blks=", "how much is read ahead"),
    ("max_batch_time=", "how long a commit waits for others"),
    ("min_batch_time=", "how long a commit waits for others"),
    ("journal_ioprio=", "priority of the kernel's journal"),
    ("init_itable", "a thread of the kernel"),
    ("init_itable=", "a thread of the kernel"),
    ("noinit_itable", "a thread of the kernel"),
    ("no_mbcache", "a cache of the kernel"),
    ("nombcache", "a cache of the kernel"),
    ("prefetch_block_bitmaps", "how much is read ahead"),
    ("no_prefetch_block_bitmaps", "how much is read ahead"),
];

/// Words that are known, and cannot be kept, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("mand", "Linux has no mandatory locks any more"),
    ("noacl", "access control lists are always enforced"),
    ("nouser_xattr", "extended attributes are always there"),
    ("journal_async_commit", "a commit is never written before what it commits"),
    ("grpid", "new files get the group of who makes them, unless the directory is set-group-ID"),
    (
        "bsdgroups",
        "new files get the group of who makes them, unless the directory is set-group-ID",
    ),
    ("max_dir_size_kb=", "the size of directories is not limited"),
    ("dax", "an image in user space has no persistent memory to map"),
    ("resuid=", "the image says who may use reserved blocks: extant tune -u USER"),
    ("resgid=", "the image says who may use reserved blocks: extant tune -g GROUP"),
    ("usrjquota=", "quota files that users see are not kept; the quota feature is"),
    ("grpjquota=", "quota files that users see are not kept; the quota feature is"),
    ("jqfmt=", "quota files that users see are not kept; the quota feature is"),
    ("journal_dev=", "a device is given by name: journal_path=FILE"),
    ("abort", "setfattr -n extant.control -v shutdown=nologflush DIR stops a mount"),
    ("debug", "the log has what there is to say"),
    ("uid=", "ext4 stores owners; to show others give map_root or idmap=u:IMAGE:HOST:COUNT"),
    ("gid=", "ext4 stores groups; to show others give map_root or idmap=g:IMAGE:HOST:COUNT"),
    ("umask=", "ext4 stores permissions"),
    ("allow_root", "allow_other includes root, and the kernel checks permissions"),
    ("context=", "SELinux contexts of a whole mount are not supported"),
    ("fscontext=", "SELinux contexts of a whole mount are not supported"),
    ("defcontext=", "SELinux contexts of a whole mount are not supported"),
    ("rootcontext=", "SELinux contexts of a whole mount are not supported"),
    ("test_dummy_encryption", "directories are encrypted by their policies alone"),
    ("bind", "bind mounts are made by mount(8) alone"),
    ("loop=", "an image file needs no loop device"),
];

/// Applies a list of words, in their order: the last one of two that contradict each other counts.
pub(crate) fn apply_list(list: &str, choices: &mut MountChoices) -> Result<()> {
    list.split(',').filter(|word| !word.is_empty()).try_for_each(|word| apply(word, choices))
}

/// Applies one word.
fn apply(word: &str, choices: &mut MountChoices) -> Result<()> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    if flag(name, value, choices) {
        return Ok(());
    }
    if let Some(value) = value
        && let Some(result) = setting(name, value, choices)
    {
        return result.map_err(|why| Failure::usage(format!("-o {word}: {why}")));
    }
    if name.starts_with("x-") || name.starts_with("X-") || is_in(HARMLESS, name, value).is_some() {
        return Ok(());
    }
    if let Some(why) = is_in(REFUSED, name, value) {
        return Err(Failure::new(Exit::Unsupported, format!("-o {word}: {why}")));
    }
    Err(unknown(word, name, value))
}

/// Words without a value. Returns whether it is one.
fn flag(name: &str, value: Option<&str>, choices: &mut MountChoices) -> bool {
    if value.is_some() {
        return false;
    }
    match name {
        "defaults" | "default_permissions" | "load" => {}
        "ro" => choices.read_only = true,
        "rw" => choices.read_only = false,
        "remount" => choices.remount = true,
        "atime" | "relatime" | "nostrictatime" => choices.access_times = AccessTimes::Relative,
        "strictatime" | "norelatime" => choices.access_times = AccessTimes::Strict,
        "noatime" => choices.access_times = AccessTimes::Never,
        "lazytime" => choices.lazytime = true,
        "nolazytime" => choices.lazytime = false,
        "diratime" => choices.nodiratime = false,
        "nodiratime" => choices.nodiratime = true,
        "suid" => choices.nosuid = false,
        "nosuid" => choices.nosuid = true,
        "dev" => choices.nodev = false,
        "nodev" => choices.nodev = true,
        "exec" => choices.noexec = false,
        "noexec" => choices.noexec = true,
        // As mount(8): safe for a mount that users may ask for.
        "user" | "users" => {
            (choices.nosuid, choices.nodev, choices.noexec) = (true, true, true);
        }
        "owner" | "group" => (choices.nosuid, choices.nodev) = (true, true),
        "noload" | "norecovery" => choices.no_replay = true,
        "break_seal" => choices.break_seal = true,
        "minixdf" => choices.minix_df = true,
        "bsddf" => choices.minix_df = false,
        "quota" | "usrquota" | "grpquota" | "prjquota" => choices.needs_quota = true,
        "noquota" => choices.quota_limits = false,
        "journal_checksum" => choices.needs_journal_checksums = true,
        "allow_other" => choices.allow_other = Some(true),
        "noallow_other" => choices.allow_other = Some(false),
        "map_root" => choices.map_root = true,
        "writeback_cache" => choices.writeback_cache = true,
        "nowriteback_cache" => choices.writeback_cache = false,
        "sync" => choices.sync = true,
        "async" => choices.sync = false,
        "dirsync" => choices.dirsync = true,
        "discard" => choices.discard = true,
        "nodiscard" => choices.discard = false,
        "fast_commit" => choices.fast_commits = true,
        "nofast_commit" => choices.fast_commits = false,
        "io_uring" => choices.ring = RingUse::Always,
        "noio_uring" => choices.ring = RingUse::Never,
        "fuseblk" => choices.block_mount = Some(true),
        "idmapped" => choices.idmapped = true,
        "noidmapped" => choices.idmapped = false,
        "nofuseblk" => choices.block_mount = Some(false),
        "sandbox" => choices.sandbox = SandboxMode::On,
        "nosandbox" => choices.sandbox = SandboxMode::Off,
        _ => return false,
    }
    true
}

/// Words with a value; `None` for one that is not among them.
fn setting(name: &str, value: &str, choices: &mut MountChoices) -> Option<Result<(), String>> {
    let result = match name {
        // What mount(8) makes of "user", with the user's name.
        "user" => {
            flag("user", None, choices);
            Ok(())
        }
        "errors" => one_of(
            value,
            &[
                ("continue", MountErrors::Continue),
                ("remount-ro", MountErrors::RemountReadOnly),
                ("panic", MountErrors::Stop),
            ],
        )
        .map(|errors| choices.errors = Some(errors)),
        "commit" => number(value, 0, 86_400).map(|seconds| {
            choices.commit_seconds = (seconds > 0).then_some(seconds);
        }),
        "sb" => number(value, 0, u64::MAX >> 10).map(|kib| choices.superblock_kib = Some(kib)),
        "data" => match value {
            // The promise of "writeback" is a part of that of "ordered".
            "ordered" | "writeback" => {
                choices.data_journal = Some(false);
                Ok(())
            }
            "journal" => {
                choices.data_journal = Some(true);
                Ok(())
            }
            _ => Err("journal, ordered or writeback".to_owned()),
        },
        "dax" => match value {
            "never" => Ok(()),
            _ => Err("an image in user space has no persistent memory to map".to_owned()),
        },
        "journal_path" if !value.is_empty() => {
            choices.journal_device = Some(value.into());
            Ok(())
        }
        "offset" => parse_bytes(value).map(|bytes| choices.offset = Some(bytes)),
        "partition" => number(value, 1, u64::from(u32::MAX)).map(|number| {
            choices.partition = u32::try_from(number).ok();
        }),
        "max_threads" => number(value, 1, 64).map(|count| choices.threads = Some(count as usize)),
        "cache" => parse_bytes(value).and_then(|bytes| match bytes {
            0..0x20_0000 => Err("at least 2M".to_owned()),
            _ => {
                choices.cache_bytes = Some(bytes);
                Ok(())
            }
        }),
        "dirty_bytes" => dirty_limit(value).map(|bytes| choices.dirty_bytes = Some(bytes)),
        "dirty_background_bytes" => {
            dirty_limit(value).map(|bytes| choices.dirty_background_bytes = Some(bytes))
        }
        "mb_optimize_scan" => number(value, 0, 1).map(|optimize| {
            choices.optimize_scan = optimize == 1;
        }),
        "max_inodes" => number(value, 256, u64::from(u32::MAX)).map(|count| {
            choices.inodes_max = usize::try_from(count).ok();
        }),
        "device_engine" => value
            .parse()
            .map(|engine| choices.device_engine = Some(engine))
            .map_err(|error: UnknownEngine| error.to_string()),
        "max_read" => number(value, 4096, 1 << 24).map(|bytes| {
            choices.max_read = u32::try_from(bytes).ok();
        }),
        "sandbox" => SandboxMode::parse(value).map(|mode| choices.sandbox = mode),
        "log" if !value.is_empty() => {
            choices.log = Some(value.into());
            Ok(())
        }
        "idmap" => IdRange::parse(value).map(|range| {
            // A remount repeats what was said before.
            if !choices.id_map.contains(&range) {
                choices.id_map.push(range);
            }
        }),
        _ => return None,
    };
    Some(result)
}

/// A limit of what may wait to be written.
fn dirty_limit(value: &str) -> Result<u64, String> {
    match parse_bytes(value)? {
        0..0x10_0000 => Err("at least 1M".to_owned()),
        bytes => Ok(bytes),
    }
}

fn one_of<T: Copy>(value: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("one of {}", names.join(", "))
    })
}

fn number(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let found: Option<u64> = value.parse().ok().filter(|number| (least..=most).contains(number));
    found.ok_or_else(|| format!("a whole number from {least} to {most}"))
}

/// Returns what a table says of a word.
fn is_in(table: &[(&str, &'static str)], name: &str, value: Option<&str>) -> Option<&'static str> {
    table.iter().find(|(entry, _)| same(entry, name, value)).map(|(_, why)| *why)
}

/// Returns whether an entry of a table is this word: with a value when it ends in `=`.
fn same(entry: &str, name: &str, value: Option<&str>) -> bool {
    match entry.strip_suffix('=') {
        Some(entry) => entry == name && value.is_some(),
        None => entry == name && value.is_none(),
    }
}

/// The refusal of a word that nobody knows, with those that it resembles.
fn unknown(word: &str, name: &str, value: Option<&str>) -> Failure {
    let tables = HARMLESS.iter().chain(REFUSED).map(|(entry, _)| *entry);
    let entries: Vec<&str> = EFFECTIVE.iter().copied().chain(tables).collect();
    if let Some(entry) = entries.iter().find(|entry| entry.trim_end_matches('=') == name) {
        let what = if entry.ends_with('=') { "needs a value" } else { "takes no value" };
        return Failure::usage(format!("-o {word}: {name} {what}"));
    }
    let longest = (name.len() / 3).clamp(1, 3);
    let mut near: Vec<(usize, &str)> = entries
        .iter()
        .map(|entry| (distance(name, entry.trim_end_matches('=')), *entry))
        .filter(|(distance, _)| *distance <= longest)
        .collect();
    near.sort_unstable();
    let mut names: Vec<&str> = near.into_iter().map(|(_, entry)| entry).collect();
    names.dedup();
    names.truncate(4);
    let shown = if value.is_some() { name } else { word };
    let failure = Failure::usage(format!("-o {shown}: no such mount option"));
    match names.is_empty() {
        true => failure.hint(format!(
            "{} and extant mount --help list the options",
            manuals::place("mounting.md")
        )),
        false => failure.hint(format!("there is {}", names.join(", "))),
    }
}

/// Letters to put in, take out or change to get from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (y, cell) in b.bytes().zip(row.iter_mut().skip(1)) {
            let above = *cell;
            left = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            diagonal = above;
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

impl IdRange {
    /// Reads `u:IMAGE:HOST:COUNT`, with `g` for groups and `b` for both.
    pub(crate) fn parse(text: &str) -> Result<IdRange, String> {
        let form = || "u:IMAGE:HOST:COUNT, with g for groups and b for both".to_owned();
        let parts: Vec<&str> = text.split(':').collect();
        let [kind, image, host, count] = parts.as_slice() else { return Err(form()) };
        let kind = match *kind {
            "u" => Kind::Users,
            "g" => Kind::Groups,
            "b" => Kind::Both,
            _ => return Err(form()),
        };
        let id = |text: &str| text.parse::<u32>().map_err(|_| form());
        let range = IdRange { kind, image: id(image)?, host: id(host)?, count: id(count)? };
        let fits =
            |first: u32| first.checked_add(range.count - 1).is_some_and(|last| last != u32::MAX);
        if range.count == 0 || !fits(range.image) || !fits(range.host) {
            return Err("ids go from 0 to 4294967294".to_owned());
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &str) -> MountChoices {
        let mut choices = MountChoices::default();
        apply_list(list, &mut choices).unwrap_or_else(|failure| panic!("{list}: {failure:?}"));
        choices
    }

    fn refused(list: &str) -> Failure {
        apply_list(list, &mut MountChoices::default()).expect_err(list)
    }

    #[test]
    fn each_word_of_the_tables_is_known() {
        for entry in EFFECTIVE {
            let Some(name) = entry.strip_suffix('=') else {
                applied(entry);
                continue;
            };
            // With a wrong value the message is about the value.
            if let Err(failure) = apply(&format!("{name}=?"), &mut MountChoices::default()) {
                assert!(!failure.message.contains("no such"), "{}", failure.message);
            }
        }
        for (entry, _) in HARMLESS {
            let word = if entry.ends_with('=') { format!("{entry}1") } else { (*entry).to_owned() };
            let plain = MountChoices::default();
            assert_eq!(applied(&word), plain, "{word}");
        }
        for (entry, why) in REFUSED {
            let word = if entry.ends_with('=') { format!("{entry}1") } else { (*entry).to_owned() };
            let failure = refused(&word);
            assert_eq!(failure.exit, Exit::Unsupported, "{word}");
            assert!(failure.message.contains(why), "{word}");
        }
    }

    #[test]
    fn ext4_words_have_ext4_meaning() {
        let choices = applied("ro,noatime,nodiratime,errors=remount-ro,commit=30,sb=131072,noload");
        assert!(choices.read_only && choices.nodiratime && choices.no_replay);
        assert_eq!(choices.access_times, AccessTimes::Never);
        assert_eq!(choices.errors, Some(MountErrors::RemountReadOnly));
        assert_eq!(choices.commit_seconds, Some(30));
        assert_eq!(choices.superblock_kib, Some(131_072));
        assert_eq!(applied("commit=0").commit_seconds, None, "0 is the default");
        assert!(!applied("ro,rw").read_only, "the last one counts");
        assert!(applied("rw,ro").read_only);
        assert!(applied("lazytime").lazytime && !applied("lazytime,nolazytime").lazytime);
    }

    #[test]
    fn words_of_fstab_are_understood() {
        let choices =
            applied("defaults,noauto,nofail,_netdev,x-systemd.automount,X-mount.mkdir,user");
        assert!(choices.nosuid && choices.nodev && choices.noexec);
        assert!(!applied("user,exec,dev,suid").noexec, "what is said after it counts");
    }

    #[test]
    fn unknown_words_are_named_with_similar_ones() {
        let failure = refused("rw,noatim");
        assert_eq!(failure.message, "-o noatim: no such mount option");
        assert_eq!(failure.hint.as_deref(), Some("there is noatime"));
        assert!(refused("frobnicate=7").hint.unwrap().contains("docs/mounting.md"));
        assert!(refused("ro=1").message.contains("takes no value"));
        assert!(refused("commit").message.contains("needs a value"));
        assert!(refused("data=later").message.contains("journal, ordered or writeback"));
        assert_eq!(applied("data=journal").data_journal, Some(true));
        assert_eq!(applied("data=journal,data=ordered").data_journal, Some(false));
        assert!(refused("partition=0").message.contains("from 1"));
    }

    #[test]
    fn ranges_of_ids_fit_into_ids() {
        let range = IdRange::parse("b:0:1000:1").unwrap();
        assert_eq!((range.kind, range.image, range.host, range.count), (Kind::Both, 0, 1000, 1));
        for text in
            ["u:0:0:0", "u:4294967295:0:1", "u:0:4294967290:9", "x:0:0:1", "u:0:0", "u:a:0:1"]
        {
            assert!(IdRange::parse(text).is_err(), "{text}");
        }
        assert!(IdRange::parse("g:4294967294:0:1").is_ok());
    }
}
