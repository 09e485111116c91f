//! What a mount was asked to be, and what follows from it for each process that takes part.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use extant::{MountErrors, MountOptions};
use extant_block::DeviceEngine;
use extant_fuse::mount::{AtimeFlag, KernelOptions};
use extant_fuse::{AccessTimes, Durable, IdMap, RingUse, Settings};
use rustix::process::{getegid, geteuid};

use crate::exit::{Failure, Result};
use crate::keys::{KeyArgs, Keys};
use crate::mounting::words;
use crate::place::{absolute, is_address, is_object, is_rbd, is_web_address};
use crate::seal::SealArgs;
use crate::size::parse_bytes;
use crate::source::SourceArgs;

const IMAGE: &str = "Image";
const PROCESS: &str = "Process";

/// Options of `extant mount`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MountSet {
    /// Mount options as mount(8) takes them: ro,noatime,errors=remount-ro,…
    ///
    /// ext4's names with ext4's meaning (ro, noatime, lazytime, nosuid, sync, dirsync, discard, fast_commit, errors=, commit=,
    /// noload, sb=, data=, journal_path=, the words of quotas, remount), the words of fstab, and
    /// extant's own: offset=, partition=, break_seal, map_root, idmap=, allow_other, cache=, dirty_bytes=,
    /// dirty_background_bytes=, max_inodes=, max_threads=, max_read=, nowriteback_cache, io_uring,
    /// device_engine=, sandbox=, log=; fuseblk, with which the kernel holds the block device and waits for the server at
    /// sync and umount (what root gets where that can be; nofuseblk does without); idmapped, so that
    /// idmapped mounts can be made of it. An option that is not known is an error. docs/mounting.md says
    /// what each does.
    #[arg(short = 'o', long = "options", value_name = "LIST", action = clap::ArgAction::Append)]
    pub(crate) lists: Vec<String>,
    /// No changes through this mount; the same as -o ro
    #[arg(short = 'r', long)]
    pub(crate) read_only: bool,
    /// Other users may use the mount too; the default for root
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Files of root in the image belong to you outside, and what you make to root inside
    #[arg(long)]
    pub(crate) map_root: bool,
    /// COUNT users (u), groups (g) or both (b) from IMAGE on are HOST and following outside
    #[arg(long, value_name = "u:IMAGE:HOST:COUNT", value_parser = IdRange::parse)]
    pub(crate) id_map: Vec<IdRange>,
    /// The file system begins that many bytes into the file
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = IMAGE)]
    pub(crate) offset: Option<u64>,
    /// The file system is in partition N of the file (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset", help_heading = IMAGE)]
    pub(crate) partition: Option<u32>,
    /// Device or file with the journal, for an image whose journal is not inside it
    #[arg(long, value_name = "FILE", help_heading = IMAGE)]
    pub(crate) journal_device: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) seal: SealArgs,
    /// Do not verify checksums of metadata; needs --read-only
    #[arg(long, help_heading = IMAGE)]
    pub(crate) no_checksums: bool,
    /// Stay in the foreground; ^C unmounts
    #[arg(short = 'f', long, help_heading = PROCESS)]
    pub(crate) foreground: bool,
    /// File that messages are added to; without it the system's log
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    pub(crate) log: Option<PathBuf>,
    /// Whether the server gives up what it does not need: on, as far as this kernel can; require, or
    /// not at all; off
    #[arg(long, value_name = "MODE", value_parser = SandboxMode::parse, help_heading = PROCESS)]
    pub(crate) sandbox: Option<SandboxMode>,
    /// Threads that answer, 1 to 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64),
          help_heading = PROCESS)]
    pub(crate) threads: Option<u64>,
    /// Memory for contents of files: 256M unless given, at least 2M
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = PROCESS)]
    pub(crate) cache: Option<u64>,
    /// Say what happens
    #[arg(short = 'v', long, help_heading = PROCESS)]
    pub(crate) verbose: bool,
}

/// Whether the server gives up rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum SandboxMode {
    /// As far as the kernel can.
    #[default]
    On,
    /// Altogether, or there is no mount.
    Require,
    /// Not.
    Off,
}

impl SandboxMode {
    /// Reads `on`, `require` or `off`.
    pub(crate) fn parse(text: &str) -> Result<SandboxMode, String> {
        match text {
            "on" => Ok(SandboxMode::On),
            "require" => Ok(SandboxMode::Require),
            "off" => Ok(SandboxMode::Off),
            _ => Err("on, require or off".to_owned()),
        }
    }
}

/// Whose ids a range is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Users,
    Groups,
    Both,
}

/// `count` ids from `image` on in the image are `host` and following outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IdRange {
    pub(crate) kind: Kind,
    pub(crate) image: u32,
    pub(crate) host: u32,
    pub(crate) count: u32,
}

/// Everything that was asked for, from words and options alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MountChoices {
    /// The words of `-o`, as they were given.
    pub(crate) words: String,
    pub(crate) read_only: bool,
    /// What cannot be written is not to be mounted for reading instead.
    pub(crate) insists_on_writing: bool,
    pub(crate) remount: bool,
    pub(crate) access_times: AccessTimes,
    pub(crate) lazytime: bool,
    pub(crate) nodiratime: bool,
    pub(crate) nosuid: bool,
    pub(crate) nodev: bool,
    pub(crate) noexec: bool,
    pub(crate) errors: Option<MountErrors>,
    pub(crate) commit_seconds: Option<u64>,
    pub(crate) no_replay: bool,
    pub(crate) no_checksums: bool,
    /// A backup superblock, in KiB from the start, as ext4 counts.
    pub(crate) superblock_kib: Option<u64>,
    pub(crate) quota_limits: bool,
    pub(crate) minix_df: bool,
    /// The image must have the quota feature.
    pub(crate) needs_quota: bool,
    /// The image must have checksums in its journal.
    pub(crate) needs_journal_checksums: bool,
    pub(crate) allow_other: Option<bool>,
    pub(crate) map_root: bool,
    pub(crate) id_map: Vec<IdRange>,
    pub(crate) offset: Option<u64>,
    pub(crate) partition: Option<u32>,
    pub(crate) journal_device: Option<PathBuf>,
    pub(crate) keys: Keys,
    pub(crate) source: SourceArgs,
    /// What dm-verity seals may be changed.
    pub(crate) break_seal: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) inodes_max: Option<usize>,
    pub(crate) dirty_bytes: Option<u64>,
    pub(crate) dirty_background_bytes: Option<u64>,
    pub(crate) max_read: Option<u32>,
    pub(crate) writeback_cache: bool,
    pub(crate) sync: bool,
    pub(crate) dirsync: bool,
    /// What is freed is given back to the device.
    pub(crate) discard: bool,
    /// Fast commits are made where the file system has the feature.
    pub(crate) fast_commits: bool,
    /// Contents go through the journal; `None`: as the superblock says.
    pub(crate) data_journal: Option<bool>,
    pub(crate) optimize_scan: bool,
    pub(crate) ring: RingUse,
    /// How the image is read and written; `None`: as the command says.
    pub(crate) device_engine: Option<DeviceEngine>,
    /// A block device is to be held by the kernel for the mount, or not; `None`: where that can be.
    pub(crate) block_mount: Option<bool>,
    /// The kernel may make idmapped mounts of it.
    pub(crate) idmapped: bool,
    pub(crate) foreground: bool,
    pub(crate) log: Option<PathBuf>,
    pub(crate) sandbox: SandboxMode,
    pub(crate) verbose: bool,
}

/// Inodes that a mount keeps in memory beside those in use, unless told otherwise.
const INODES_MAX: usize = 1 << 16;

impl Default for MountChoices {
    fn default() -> MountChoices {
        MountChoices {
            words: String::new(),
            read_only: false,
            insists_on_writing: false,
            remount: false,
            access_times: AccessTimes::Relative,
            lazytime: false,
            nodiratime: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            errors: None,
            commit_seconds: None,
            no_replay: false,
            no_checksums: false,
            superblock_kib: None,
            quota_limits: true,
            minix_df: false,
            needs_quota: false,
            needs_journal_checksums: false,
            allow_other: None,
            map_root: false,
            id_map: Vec::new(),
            offset: None,
            partition: None,
            journal_device: None,
            keys: Keys::default(),
            source: SourceArgs::default(),
            break_seal: false,
            threads: None,
            cache_bytes: None,
            inodes_max: None,
            dirty_bytes: None,
            dirty_background_bytes: None,
            max_read: None,
            writeback_cache: true,
            sync: false,
            dirsync: false,
            discard: false,
            fast_commits: true,
            data_journal: None,
            optimize_scan: true,
            ring: RingUse::default(),
            device_engine: None,
            block_mount: None,
            idmapped: false,
            foreground: false,
            log: None,
            sandbox: SandboxMode::On,
            verbose: false,
        }
    }
}

impl MountSet {
    /// The words of `-o` and the options, which count more.
    pub(crate) fn choices(&self) -> Result<MountChoices> {
        let mut choices = MountChoices::default();
        for list in &self.lists {
            words::apply_list(list, &mut choices)?;
        }
        choices.words = self.lists.join(",");
        // mount(8) says "rw" to its helpers always; whoever says it here means it.
        choices.insists_on_writing = choices.words.split(',').any(|word| word == "rw");
        choices.read_only |= self.read_only;
        choices.no_checksums |= self.no_checksums;
        choices.map_root |= self.map_root;
        choices.foreground |= self.foreground;
        choices.verbose |= self.verbose;
        choices.id_map.extend(&self.id_map);
        if self.allow_other {
            choices.allow_other = Some(true);
        }
        if self.offset.is_some() || self.partition.is_some() {
            (choices.offset, choices.partition) = (self.offset, self.partition);
        }
        choices.journal_device = self.journal_device.clone().or(choices.journal_device);
        choices.keys = self.keys.read()?;
        choices.source = self.source.clone();
        choices.break_seal |= self.seal.break_seal;
        choices.log = self.log.clone().or(choices.log);
        choices.sandbox = self.sandbox.unwrap_or(choices.sandbox);
        choices.threads = self.threads.map(|count| count as usize).or(choices.threads);
        choices.cache_bytes = self.cache.or(choices.cache_bytes);
        choices.check()?;
        Ok(choices)
    }
}

impl MountChoices {
    /// Refuses what contradicts itself.
    pub(crate) fn check(&self) -> Result<()> {
        let only_reading = [
            (self.superblock_kib.is_some(), "sb=: a backup superblock is for reading"),
            (self.no_replay, "noload: an image is read without its journal, never written"),
            (self.no_checksums, "--no-checksums is for reading"),
        ];
        if let Some((_, what)) = only_reading.iter().find(|(on, _)| *on && !self.read_only) {
            return Err(Failure::usage(format!("{what}; add ro")));
        }
        if self.offset.is_some() && self.partition.is_some() {
            return Err(Failure::usage("offset and partition exclude each other"));
        }
        if self.cache_bytes.is_some_and(|bytes| bytes < 2 << 20) {
            return Err(Failure::usage("--cache: at least 2M"));
        }
        let (begin, most) = (self.dirty_background_bytes, self.dirty_bytes);
        if begin.zip(most).is_some_and(|(begin, most)| begin > most) {
            let what = "dirty_background_bytes= is more than dirty_bytes=: the background would begin when \
                        writers wait already";
            return Err(Failure::usage(what));
        }
        Ok(())
    }

    /// What the file system is asked for, without devices.
    pub(crate) fn file_system(&self) -> MountOptions {
        let mut options = MountOptions::new()
            .read_only(self.read_only)
            .ignore_journal(self.no_replay)
            .verify_checksums(!self.no_checksums)
            .quota_limits(self.quota_limits)
            .minix_df(self.minix_df)
            .discard(self.discard)
            .lazytime(self.lazytime)
            .fast_commits(self.fast_commits)
            .optimize_scan(self.optimize_scan);
        if let Some(data_journal) = self.data_journal {
            options = options.data_journal(data_journal);
        }
        // What the kernel hands over has waited there already, and it does not tell of a sync(2): data
        // becomes durable as soon as names do.
        let seconds = self.commit_seconds.unwrap_or(5);
        options = options
            .commit_interval(Duration::from_secs(seconds))
            .write_back_after(Duration::from_secs(seconds));
        if let Some(errors) = self.errors {
            options = options.errors(errors);
        }
        if let Some(bytes) = self.cache_bytes {
            options = options.data_cache_bytes(bytes);
        }
        if let Some(bytes) = self.dirty_bytes {
            options = options.dirty_bytes(bytes);
        }
        if let Some(bytes) = self.dirty_background_bytes {
            options = options.dirty_background_bytes(bytes);
        }
        options = options.inodes_max(self.inodes_max.unwrap_or(INODES_MAX));
        self.keys.apply(options)
    }

    /// What the server is asked for.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        if let Some(threads) = self.threads {
            settings.threads = threads;
        }
        // A write that the kernel keeps is not durable.
        settings.writeback_cache = self.writeback_cache && !self.sync;
        settings.durable = match (self.sync, self.dirsync) {
            (true, _) => Durable::Everything,
            (false, true) => Durable::Names,
            (false, false) => Durable::AsAsked,
        };
        settings.options.clone_from(&self.words);
        settings.ring = self.ring;
        settings.idmapped = self.idmapped;
        settings.access_times = self.access_times;
        settings.directory_access_times = !self.nodiratime;
        settings.ids = self.ids();
        settings
    }

    /// What the kernel is asked for, with `source` as the device that it shows.
    pub(crate) fn kernel(&self, source: &OsStr) -> KernelOptions {
        let mut options = KernelOptions::new(source);
        options.read_only = self.read_only;
        // As other file systems of root; the kernel checks permissions.
        options.allow_other = self.allow_other.unwrap_or_else(|| geteuid().is_root());
        options.nosuid = self.nosuid;
        options.nodev = self.nodev;
        options.noexec = self.noexec;
        options.sync = self.sync;
        options.dirsync = self.dirsync;
        options.atime = match self.access_times {
            AccessTimes::Strict => AtimeFlag::Strict,
            AccessTimes::Relative => AtimeFlag::Relative,
            AccessTimes::Never => AtimeFlag::Never,
        };
        options.nodiratime = self.nodiratime;
        options.max_read = self.max_read;
        options
    }

    /// Whose inodes are whose.
    fn ids(&self) -> IdMap {
        let mut ids = IdMap::new();
        for range in &self.id_map {
            let IdRange { kind, image, host, count } = *range;
            if kind != Kind::Groups {
                ids = ids.map_users(image, host, count);
            }
            if kind != Kind::Users {
                ids = ids.map_groups(image, host, count);
            }
        }
        if self.map_root {
            let (user, group) = (geteuid().as_raw(), getegid().as_raw());
            for (image, host, count) in root_map(user) {
                ids = ids.map_users(image, host, count);
            }
            for (image, host, count) in root_map(group) {
                ids = ids.map_groups(image, host, count);
            }
        }
        ids
    }

    /// Returns whether the image is a part of its file only.
    pub(crate) fn is_windowed(&self) -> bool {
        self.offset.is_some() || self.partition.is_some()
    }
}

/// Root of the image is `id` outside, and everybody else himself. Who is `id` inside is nobody
/// outside: two cannot be the same.
fn root_map(id: u32) -> Vec<(u32, u32, u32)> {
    if id == 0 {
        return vec![(0, 0, u32::MAX)];
    }
    let below = (1, 1, id - 1);
    let above = (id.saturating_add(1), id.saturating_add(1), u32::MAX - id.saturating_add(1));
    [(0, id, 1), below, above].into_iter().filter(|(_, _, count)| *count > 0).collect()
}

/// The name of the image in the list of mounts: absolute; with the part of it that is mounted.
pub(crate) fn source_name(image: &Path, choices: &MountChoices) -> OsString {
    let image = choices.source.written(image);
    let real = match is_address(image) {
        // The list is for everybody: passwords and signatures are not.
        true if is_web_address(image) && !is_object(image) => {
            let address = image.to_str().map(extant_http::Address::parse);
            address.and_then(Result::ok).map_or("http".into(), |address| address.to_string().into())
        }
        true if is_rbd(image) => crate::source::rbd::shown(image).into(),
        true => image.to_owned(),
        false => image.canonicalize().unwrap_or_else(|_| absolute(image)),
    };
    let mut name = real.into_os_string();
    if let Some(number) = choices.partition {
        name.push(format!("#{number}"));
    } else if let Some(offset) = choices.offset {
        name.push(format!("@{offset}"));
    }
    // The kernel's list escapes blanks and the like itself.
    if name.as_bytes().contains(&0) { OsString::from("extant") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(lists: &[&str]) -> Result<MountChoices> {
        let lists = lists.iter().map(|list| (*list).to_owned()).collect();
        MountSet { lists, ..MountSet::default() }.choices()
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for list in ["sb=8193", "noload", "offset=1M,partition=2,ro"] {
            assert!(choices(&[list]).is_err(), "{list}");
        }
        assert!(choices(&["sb=8193", "ro,noload"]).is_ok());
    }

    #[test]
    fn root_of_the_image_becomes_the_user_and_nobody_else_does() {
        for id in [1, 1000, u32::MAX - 1] {
            let mut ids = IdMap::new();
            for (image, host, count) in root_map(id) {
                ids = ids.map_users(image, host, count);
            }
            assert_eq!(ids.user_outside(0), id);
            assert_eq!(ids.user_inside(id), Some(0));
            assert_ne!(ids.user_outside(id), id, "{id} is taken");
            assert_eq!(ids.user_inside(0), None);
            for other in [2, 999, 1001, 4_000_000_000] {
                assert_eq!((ids.user_outside(other), ids.user_inside(other)), (other, Some(other)));
            }
        }
    }

    #[test]
    fn options_count_more_than_words() {
        let set = MountSet {
            lists: vec!["rw,sandbox=off,max_threads=3,cache=8M".into()],
            read_only: true,
            sandbox: Some(SandboxMode::Require),
            threads: Some(7),
            ..MountSet::default()
        };
        let choices = set.choices().unwrap();
        assert!(choices.read_only);
        assert_eq!(choices.sandbox, SandboxMode::Require);
        assert_eq!((choices.threads, choices.cache_bytes), (Some(7), Some(8 << 20)));
        assert_eq!(choices.settings().threads, 7);
    }

    #[test]
    fn the_index_of_groups_is_used_unless_it_is_not_wanted() {
        assert!(choices(&[]).unwrap().optimize_scan);
        assert!(!choices(&["mb_optimize_scan=0"]).unwrap().optimize_scan);
        assert!(choices(&["mb_optimize_scan=0,mb_optimize_scan=1"]).unwrap().optimize_scan);
        for refused in ["mb_optimize_scan=2", "mb_optimize_scan=", "mb_optimize_scan"] {
            assert!(choices(&[refused]).is_err(), "{refused}");
        }
    }

    #[test]
    fn limits_of_memory_are_numbers_that_make_sense() {
        let all = choices(&["max_inodes=2000,dirty_bytes=8M,dirty_background_bytes=4M"]).unwrap();
        assert_eq!(all.inodes_max, Some(2000));
        assert_eq!((all.dirty_bytes, all.dirty_background_bytes), (Some(8 << 20), Some(4 << 20)));
        for wrong in
            ["max_inodes=255", "max_inodes=x", "dirty_bytes=64K", "dirty_background_bytes=0"]
        {
            assert!(choices(&[wrong]).is_err(), "{wrong}");
        }
        let failure = choices(&["dirty_bytes=4M,dirty_background_bytes=8M"]).unwrap_err();
        assert!(failure.message.contains("more than dirty_bytes"), "{}", failure.message);
    }

    #[test]
    fn the_kernel_is_asked_for_what_the_words_say() {
        let kernel = choices(&["ro,nosuid,noatime,max_read=65536,allow_other"]).unwrap();
        let kernel = kernel.kernel(OsStr::new("/a.img"));
        assert!(kernel.read_only && kernel.nosuid && kernel.allow_other && !kernel.nodev);
        assert_eq!((kernel.atime, kernel.max_read), (AtimeFlag::Never, Some(65536)));
    }
}
