//! Journals that the kernel left dirty, replayed here and by e2fsck.
//!
//! Goal: through [`ReplayedDevice`], an image cut off in the middle of the kernel's work reads,
//! block for block, like the same image after e2fsck replayed its journal.
//!
//! Method: mount an image on a loop device, work on it with an `fsync` here and there, copy the
//! backing file while it is mounted (the copy is the crash), unmount. One copy is replayed by
//! `e2fsck -E journal_only`, the other is read through this crate; only the file-system superblock
//! and the journal superblock may differ, since e2fsck rewrites both.
//!
//! Needs root, loop devices and e2fsprogs; says so and skips otherwise.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use extant_base::{BlockSize, FsBlock};
use extant_block::{BlockDevice as _, FileDevice, SharedDevice};
use extant_format::jbd2::{JBD2_MAGIC, JournalChecksum};
use extant_jbd2::{
    ExternalJournal, FcEntry, JournalReader, MappedJournal, RecoveryOptions, Replay,
    ReplayedDevice, load_superblock, recover,
};

/// Runs a program; its standard output, or why it failed.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} {arguments:?}: {} {errors}", output.status))
    }
}

fn str_of(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Why this machine cannot run these tests; `None` when it can.
fn cannot_mount() -> Option<String> {
    let uid = run("id", &["-u"]).unwrap_or_default();
    if uid.trim() != "0" {
        return Some("needs root for loop mounts".into());
    }
    for (program, argument) in [("mke2fs", "-V"), ("e2fsck", "-V"), ("debugfs", "-V")] {
        if let Err(error) = run(program, &[argument]) {
            return Some(error);
        }
    }
    run("losetup", &["-f"]).err()
}

macro_rules! skip_unless_root {
    () => {
        if let Some(why) = cannot_mount() {
            println!("SKIPPED: {why}");
            return;
        }
    };
}

/// Where the scratch files of one test live: memory if there is some.
fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("extant-jbd2-")
        .tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary directory")
}

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn attach(file: &Path) -> Loop {
        let name = run("losetup", &["--show", "-f", str_of(file)]).expect("losetup");
        Loop(name.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["-d", &self.0]);
    }
}

/// A mounted file system, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(device: &str, at: &Path, options: &str) -> Mount {
        fs::create_dir_all(at).expect("mount point");
        run("mount", &["-t", "ext4", "-o", options, device, str_of(at)]).expect("mount");
        Mount(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", &[str_of(&self.0)]);
    }
}

/// Commits the running transaction, without writing anything home.
fn commit(at: &Path) {
    let mut file = File::create(at.join("barrier")).expect("create");
    file.write_all(b"new contents, new block").expect("write");
    file.sync_all().expect("fsync");
}

/// Creates, renames and removes, so that blocks are journaled repeatedly and revoked.
fn work(at: &Path) {
    for round in 0..4 {
        let dir = at.join(format!("dir{round}"));
        fs::create_dir(&dir).expect("mkdir");
        for number in 0..300 {
            let file = dir.join(format!("a file with a rather long name {number:06}"));
            fs::write(&file, vec![round as u8; number * 7]).expect("write");
        }
        commit(at);
        for number in (0..300).step_by(2) {
            fs::remove_file(dir.join(format!("a file with a rather long name {number:06}")))
                .expect("unlink");
        }
        commit(at);
        if round % 2 == 1 {
            fs::remove_dir_all(&dir).expect("rmdir");
            commit(at);
        }
    }
    // Freed directory blocks become data: their older copies in the log must stay dead.
    fs::write(at.join("reuse"), vec![0x5au8; 1 << 20]).expect("write");
    commit(at);
}

/// Blocks that begin with the journal's magic number, as journaled data.
fn work_escaped(at: &Path) {
    let mut block = vec![0x11u8; 4096];
    block[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    fs::write(at.join("magic"), block.repeat(20)).expect("write");
    commit(at);
    work(at);
}

/// So much journaled data that the log goes round several times.
fn work_wrapping(at: &Path) {
    for round in 0..12u8 {
        fs::write(at.join(format!("big{}", round % 3)), vec![round; 1 << 20]).expect("write");
        commit(at);
    }
    work(at);
}

struct Case {
    name: &'static str,
    mke2fs: &'static [&'static str],
    mount: &'static str,
    work: fn(&Path),
    checksum: JournalChecksum,
}

const CASES: &[Case] = &[
    Case {
        name: "default",
        mke2fs: &["-t", "ext4", "-b", "4096", "-O", "metadata_csum,64bit"],
        mount: "defaults",
        work,
        checksum: JournalChecksum::V3,
    },
    Case {
        name: "no checksums",
        mke2fs: &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,64bit"],
        mount: "defaults",
        work,
        checksum: JournalChecksum::None,
    },
    Case {
        name: "checksum version 1, 32-bit blocks",
        mke2fs: &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,^64bit"],
        mount: "journal_checksum",
        work,
        checksum: JournalChecksum::V1,
    },
    Case {
        name: "asynchronous commits",
        mke2fs: &["-t", "ext4", "-b", "4096", "-O", "metadata_csum,64bit"],
        mount: "journal_async_commit,data=writeback",
        work,
        checksum: JournalChecksum::V3,
    },
    Case {
        name: "32-bit blocks with checksums",
        mke2fs: &["-t", "ext4", "-b", "4096", "-O", "metadata_csum,^64bit"],
        mount: "defaults",
        work,
        checksum: JournalChecksum::V3,
    },
    Case {
        name: "blocks of 1 KiB",
        mke2fs: &["-t", "ext4", "-b", "1024", "-O", "metadata_csum"],
        mount: "defaults",
        work,
        checksum: JournalChecksum::V3,
    },
    Case {
        name: "ext3",
        mke2fs: &["-t", "ext3", "-b", "1024"],
        mount: "defaults",
        work,
        checksum: JournalChecksum::None,
    },
    Case {
        name: "data journal with escaped blocks",
        mke2fs: &["-t", "ext4", "-b", "4096", "-O", "metadata_csum,64bit"],
        mount: "data=journal",
        work: work_escaped,
        checksum: JournalChecksum::V3,
    },
    Case {
        name: "log that goes round",
        mke2fs: &["-t", "ext4", "-b", "1024", "-J", "size=4", "-O", "metadata_csum"],
        mount: "data=journal",
        work: work_wrapping,
        checksum: JournalChecksum::V3,
    },
];

fn open(path: &Path) -> SharedDevice {
    Arc::new(FileDevice::open_read_only(path).expect("open image"))
}

fn block_size_of(image: &Path) -> BlockSize {
    let mut bytes = [0u8; 2048];
    File::open(image).and_then(|mut file| file.read_exact(&mut bytes)).expect("superblock");
    let log = u32::from_le_bytes(bytes[1048..1052].try_into().expect("4 bytes"));
    BlockSize::from_log_kib(log).expect("block size")
}

/// The journal inode's contents as a file, and that file as a journal.
fn internal_journal(image: &Path, scratch: &Path) -> Arc<dyn JournalReader> {
    let dump = scratch.join("journal");
    let request = format!("dump <8> {}", dump.display());
    // A crash may leave checksums that do not fit, so -n; bitmaps are not needed, so -c.
    run("debugfs", &["-n", "-c", "-R", &request, str_of(image)]).expect("debugfs");
    Arc::new(MappedJournal::whole_device(open(&dump), block_size_of(image)))
}

fn options(image: &Path) -> RecoveryOptions {
    let bytes = fs::metadata(image).expect("image").len();
    RecoveryOptions::new(bytes >> block_size_of(image).log2())
}

/// Replays a copy of `crash` with e2fsck; the copy.
fn replayed_by_e2fsck(crash: &Path, journal: Option<&str>) -> PathBuf {
    let copy = crash.with_extension("e2fsck");
    fs::copy(crash, &copy).expect("copy");
    let mut arguments = vec!["-s", "KILL", "60", "e2fsck", "-E", "journal_only", "-y"];
    if let Some(journal) = journal {
        arguments.extend(["-j", journal]);
    }
    arguments.push(str_of(&copy));
    let status =
        Command::new("timeout").args(&arguments).stdout(Stdio::null()).status().expect("e2fsck");
    assert!(matches!(status.code(), Some(0 | 1)), "e2fsck {arguments:?}: {status}");
    copy
}

/// Compares every block; returns how many of them differ from the crashed image.
fn assert_equal(name: &str, crash: &Path, seen: &ReplayedDevice, wanted: &Path) -> u64 {
    let size = block_size_of(crash);
    let wanted = open(wanted);
    let crashed = open(crash);
    assert_eq!(seen.size_bytes(), wanted.size_bytes());
    let fs_superblock = FsBlock(1024 >> size.log2());
    let (mut here, mut there, mut before) =
        (vec![0; size.len()], vec![0; size.len()], vec![0; size.len()]);
    let (mut journal_superblocks, mut changed) = (0, 0);
    for block in 0..seen.size_bytes() >> size.log2() {
        let offset = block << size.log2();
        seen.read_at(offset, &mut here).expect("read");
        wanted.read_at(offset, &mut there).expect("read");
        crashed.read_at(offset, &mut before).expect("read");
        changed += u64::from(here != before);
        if FsBlock(block) == fs_superblock || here == there {
            continue;
        }
        let is_journal_superblock = here[..4] == JBD2_MAGIC.to_be_bytes()
            && there[..4] == JBD2_MAGIC.to_be_bytes()
            && matches!(here[7], 3 | 4);
        assert!(is_journal_superblock, "{name}: block {block} differs from e2fsck's");
        journal_superblocks += 1;
    }
    assert!(journal_superblocks <= 1, "{name}: {journal_superblocks} journal superblocks");
    changed
}

#[test]
fn dirty_journals_read_as_e2fsck_replays_them() {
    skip_unless_root!();
    let (mut revoked, mut escaped, mut wrapped) = (0, 0, 0);
    for case in CASES {
        let scratch = scratch();
        let (image, crash) = (scratch.path().join("image"), scratch.path().join("crash"));
        let mut arguments = vec!["-q", "-F"];
        arguments.extend(case.mke2fs);
        if !case.mke2fs.contains(&"-J") {
            arguments.extend(["-J", "size=16"]);
        }
        arguments.extend([str_of(&image), "128M"]);
        run("mke2fs", &arguments).expect("mke2fs");
        {
            let device = Loop::attach(&image);
            let mount = Mount::new(&device.0, &scratch.path().join("mnt"), case.mount);
            (case.work)(&mount.0);
            fs::copy(&image, &crash).expect("copy");
        }
        let log = internal_journal(&crash, scratch.path());
        let superblock = load_superblock(&log, 0).expect(case.name);
        assert_eq!(superblock.checksum(), case.checksum, "{}", case.name);
        let replay = recover(&log, &superblock, &options(&crash)).expect(case.name);
        assert!(replay.dirty && replay.transactions > 0, "{}: {replay:?}", case.name);
        revoked += replay.revoked;
        escaped += replay.blocks.iter().filter(|(_, at)| at.escaped).count();
        wrapped += u32::from(replay.head < superblock.start);
        let seen = ReplayedDevice::new(open(&crash), log, Arc::new(replay.blocks.clone()));
        let wanted = replayed_by_e2fsck(&crash, None);
        let changed = assert_equal(case.name, &crash, &seen, &wanted);
        println!(
            "{}: {} transactions, {} blocks, {changed} changed, {} revoked, {:?}",
            case.name,
            replay.transactions,
            replay.blocks.len(),
            replay.revoked,
            replay.stop
        );
        assert!(changed > 0, "{}: the replay changed nothing", case.name);
    }
    assert!(
        revoked > 0 && escaped > 0 && wrapped > 0,
        "{revoked} revoked, {escaped} escaped, {wrapped} wrapped: a rule was not tested"
    );
}

#[test]
fn an_external_journal_reads_as_e2fsck_replays_it() {
    skip_unless_root!();
    for block_bytes in ["1024", "4096"] {
        let scratch = scratch();
        let path = |name: &str| scratch.path().join(name);
        let (image, journal) = (path("image"), path("journal"));
        let (crash, crash_journal) = (path("crash"), path("crash-journal"));
        let arguments = ["-q", "-F", "-b", block_bytes, "-O", "journal_dev"];
        run("mke2fs", &[&arguments[..], &[str_of(&journal), "16M"]].concat()).expect("mke2fs");
        {
            let journal_device = Loop::attach(&journal);
            let on = format!("device={}", journal_device.0);
            let arguments =
                ["-q", "-F", "-t", "ext4", "-b", block_bytes, "-J", &on, str_of(&image), "128M"];
            run("mke2fs", &arguments).expect("mke2fs");
            let device = Loop::attach(&image);
            let mount_options = format!("journal_path={}", journal_device.0);
            let mount = Mount::new(&device.0, &path("mnt"), &mount_options);
            work(&mount.0);
            fs::copy(&image, &crash).expect("copy");
            fs::copy(&journal, &crash_journal).expect("copy");
        }
        // A file system is not a journal device, nor is a file of zeros.
        assert!(ExternalJournal::open(open(&crash)).is_err());
        let external = ExternalJournal::open(open(&crash_journal)).expect("journal device");
        assert_eq!(external.superblock_block, if block_bytes == "1024" { 2 } else { 1 });
        let replay =
            recover(&external.log, &external.superblock, &options(&crash)).expect("recover");
        assert!(replay.transactions > 0 && !replay.blocks.is_empty());
        let seen = ReplayedDevice::new(open(&crash), external.log, Arc::new(replay.blocks));
        let replayed_journal = path("journal-for-e2fsck");
        fs::copy(&crash_journal, &replayed_journal).expect("copy");
        let wanted = replayed_by_e2fsck(&crash, Some(str_of(&replayed_journal)));
        assert!(assert_equal("external", &crash, &seen, &wanted) > 0);
    }
}

/// `ls -l` of a directory by debugfs: name and inode number.
fn names_by_debugfs(image: &Path, dir: &str) -> Vec<(String, u32)> {
    let listing = run("debugfs", &["-R", &format!("ls -p {dir}"), str_of(image)]).expect("debugfs");
    // Lines read "/inode/mode/uid/gid/name/size/".
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split('/').collect();
        Some((fields.get(5)?.to_string(), fields.get(1)?.parse().ok()?))
    };
    listing.lines().filter_map(parse).collect()
}

#[test]
fn fast_commits_fold_into_what_e2fsck_makes_of_them() {
    skip_unless_root!();
    let scratch = scratch();
    let path = |name: &str| scratch.path().join(name);
    let (image, crash) = (path("image"), path("crash"));
    let arguments = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "metadata_csum,64bit,fast_commit",
        "-J",
        "size=16",
    ];
    run("mke2fs", &[&arguments[..], &[str_of(&image), "128M"]].concat()).expect("mke2fs");
    {
        let device = Loop::attach(&image);
        let mount = Mount::new(&device.0, &path("mnt"), "defaults");
        let at = &mount.0;
        fs::create_dir(at.join("d")).expect("mkdir");
        for number in 0..10 {
            fs::write(at.join(format!("d/old{number}")), vec![1; 9000]).expect("write");
        }
        run("sync", &["-f", str_of(at)]).expect("sync"); // A full commit.
        for number in 0..20u8 {
            let file = at.join(format!("d/new{number}"));
            fs::write(&file, vec![number; 5000]).expect("write");
            File::open(&file).and_then(|file| file.sync_all()).expect("fsync");
        }
        fs::remove_file(at.join("d/old3")).expect("unlink");
        fs::remove_file(at.join("d/new4")).expect("unlink");
        fs::hard_link(at.join("d/new5"), at.join("d/link5")).expect("link");
        fs::rename(at.join("d/old6"), at.join("d/renamed6")).expect("rename");
        let short = File::options().write(true).open(at.join("d/old7")).expect("open");
        short.set_len(5000).expect("truncate");
        short.sync_all().expect("fsync");
        fs::copy(&image, &crash).expect("copy");
    }
    let log = internal_journal(&crash, scratch.path());
    let superblock = load_superblock(&log, 0).expect("superblock");
    assert!(!superblock.fast_commit_area().is_empty());
    let replay: Replay = recover(&log, &superblock, &options(&crash)).expect("recover");
    let Some(overlay) = &replay.fast_commits else {
        panic!("no fast commits in {:?}..{}: {replay:?}", replay.first_tid, replay.end_tid);
    };
    println!("{} fast commits of {}, then {:?}", overlay.commits(), overlay.tid(), overlay.stop());
    assert!(overlay.commits() > 1);

    // What e2fsck made of it.
    let wanted = crash.with_extension("full");
    fs::copy(&crash, &wanted).expect("copy");
    let status = Command::new("timeout")
        .args(["-s", "KILL", "60", "e2fsck", "-fy", str_of(&wanted)])
        .stdout(Stdio::null())
        .status()
        .expect("e2fsck");
    assert!(matches!(status.code(), Some(0 | 1)), "{status}");

    let mut named = 0;
    let root_names = names_by_debugfs(&wanted, "/");
    let dir = root_names.iter().find(|(name, _)| name == "d").expect("directory d").1;
    let wanted_names = names_by_debugfs(&wanted, "/d");
    let directory = overlay.directory(extant_base::Ino(dir)).expect("names in d");
    for (name, entry) in directory.entries() {
        let name = String::from_utf8_lossy(name).into_owned();
        let found = wanted_names.iter().find(|(wanted, _)| *wanted == name).map(|(_, ino)| *ino);
        match entry {
            FcEntry::Present(ino) => assert_eq!(found, Some(ino.0), "{name}"),
            FcEntry::Removed(ino) => assert_ne!(found, Some(ino.0), "{name}"),
        }
        named += 1;
    }
    assert!(named >= 20, "{named} names");

    // Contents: every new file reads, through the recorded ranges, as it was written.
    let device = open(&crash);
    let size = block_size_of(&crash);
    for number in (0..20u8).filter(|number| *number != 4) {
        let ino = match directory.get(format!("new{number}").as_bytes()) {
            Some(FcEntry::Present(ino)) => ino,
            other => panic!("new{number}: {other:?}"),
        };
        let inode = overlay.inode(ino).expect("inode");
        let merged = inode.merge(&[0; 256]);
        let file_bytes = u32::from_le_bytes(merged[4..8].try_into().expect("i_size_lo"));
        assert_eq!(file_bytes, 5000, "new{number}");
        for block in 0..2 {
            let extant_jbd2::FcMapping::Mapped(extent) = inode.map(extant_base::FileBlock(block))
            else {
                panic!(
                    "new{number}: block {block} is {:?}",
                    inode.map(extant_base::FileBlock(block))
                );
            };
            let mut bytes = vec![0; size.len()];
            device.read_at(extent.device_start.0 << size.log2(), &mut bytes).expect("read");
            let valid = if block == 0 { 4096 } else { 5000 - 4096 };
            assert!(bytes[..valid].iter().all(|byte| *byte == number), "new{number} {block}");
        }
    }
}
