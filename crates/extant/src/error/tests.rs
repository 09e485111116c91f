//! What callers see of every error.

use std::io;

use super::*;
use extant_block::{DeviceFault, OperationKind};

/// Every variant, with the family, the errno as a literal, and its whole text.
fn table() -> Vec<(FsError, Family, i32, &'static str)> {
    let uuid = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
    let ino = Ino(12);
    vec![
        (
            FsError::NotFound { dir: ino, at: None },
            Family::Refusal,
            2,
            "no such entry in directory inode 12",
        ),
        (
            FsError::NotADirectory { ino, at: None },
            Family::Refusal,
            20,
            "inode 12 is not a directory",
        ),
        (FsError::IsADirectory { ino }, Family::Refusal, 21, "inode 12 is a directory"),
        (FsError::NotARegularFile { ino }, Family::Refusal, 22, "inode 12 is not a regular file"),
        (FsError::NotASymlink { ino }, Family::Refusal, 22, "inode 12 is not a symbolic link"),
        (
            FsError::NameTooLong { len: 256 },
            Family::Refusal,
            36,
            "a name of 256 bytes is longer than the 255 that ext4 allows",
        ),
        (
            FsError::TargetTooLong { len: 1024, most: 1023 },
            Family::Refusal,
            36,
            "a link target of 1024 bytes is longer than the 1023 that fit, with blocks of this size",
        ),
        (
            FsError::SymlinkLoop { ino, at: None },
            Family::Refusal,
            40,
            "more than 40 symbolic links in one path, stopped at inode 12",
        ),
        (
            FsError::TooDeep { ino, depth_max: 5 },
            Family::Refusal,
            36,
            "directory inode 12 lies more than 5 levels deep",
        ),
        (
            FsError::NoSuchInode { ino, inode_count: 11 },
            Family::Refusal,
            116,
            "inode 12 is not in use (the image has inodes 1 to 11)",
        ),
        (
            FsError::NoAttribute { ino },
            Family::Refusal,
            61,
            "inode 12 has no extended attribute of that name",
        ),
        (
            FsError::Encrypted { ino, what: "contents", key: None },
            Family::Refusal,
            126,
            "contents of inode 12 cannot be read: encrypted, and the key has to be given \
             (--key-file)",
        ),
        (
            FsError::NotUtf8 { ino, valid_up_to: 7 },
            Family::Refusal,
            84,
            "contents of inode 12 are not UTF-8 from byte 7 on",
        ),
        (
            FsError::TooLarge { ino, bytes: 9, limit: 8 },
            Family::Refusal,
            27,
            "inode 12: 9 bytes are more than the 8 there can be here",
        ),
        (
            FsError::InvalidArgument { what: "depth must be above 0" },
            Family::Refusal,
            22,
            "invalid argument: depth must be above 0",
        ),
        (
            FsError::Misaligned { what: "offset", value: 513, unit: 512 },
            Family::Refusal,
            22,
            "direct I/O: the offset is 513, and has to be a multiple of 512",
        ),
        (
            FsError::NotSupported { ino, what: "moving its blocks" },
            Family::Refusal,
            95,
            "inode 12: not supported: moving its blocks",
        ),
        (FsError::ReadOnly, Family::Refusal, 30, "the file system is open read-only"),
        (
            FsError::NotExt { offset: 1024, magic: Some(0x1234) },
            Family::Refusal,
            22,
            "no ext2, ext3 or ext4 superblock at byte 1024: magic 0x1234, expected 0xef53",
        ),
        (
            FsError::NotExt { offset: 1024, magic: None },
            Family::Refusal,
            22,
            "no ext2, ext3 or ext4 superblock at byte 1024: the device ends before it",
        ),
        (
            FsError::ExternalJournal { uuid },
            Family::Refusal,
            22,
            "this is an external journal (UUID 01234567-89ab-cdef-0123-456789abcdef), not a \
             file system; open the file system that uses it and pass this device as its \
             journal",
        ),
        (
            FsError::Unsupported { wanted: "read", features: "FEATURE_I31".into() },
            Family::Refusal,
            22,
            "cannot read this image: it uses features unknown here: FEATURE_I31",
        ),
        (
            FsError::JournalDeviceMissing { uuid },
            Family::Refusal,
            22,
            "the journal (UUID 01234567-89ab-cdef-0123-456789abcdef) is on another \
             device, which has to be given; or ignore the journal to see the tree as of its last \
             checkpoint",
        ),
        (
            FsError::WrongJournalDevice { wanted: uuid, found: [0; 16] },
            Family::Refusal,
            22,
            "the device passed as journal has UUID 00000000-0000-0000-0000-000000000000, the \
             image's journal has UUID 01234567-89ab-cdef-0123-456789abcdef",
        ),
        (
            FsError::journal(RecoveryError::FastCommitFeatures { features: 4 }),
            Family::Refusal,
            22,
            "journal cannot be replayed: fast commits need unknown features 0x4",
        ),
        (
            FsError::journal(RecoveryError::TooManyBlocks { limit: 5 }),
            Family::Damage,
            117,
            "journal cannot be replayed: journal holds more than 5 blocks to replay",
        ),
        (
            FsError::journal_device(ExternalJournalError::NotAJournal { incompat: 2 }),
            Family::Refusal,
            22,
            "journal device cannot be used: device is not a journal device: incompatible \
             features 0x2 lack 0x8",
        ),
        (
            FsError::corrupt(
                "extent node",
                ino,
                FsBlock(77),
                Fault::Checksum { stored: 1, computed: 0xdead_beef },
            ),
            Family::Damage,
            74,
            "extent node of inode 12 at block 77: checksum 0x00000001 stored, 0xdeadbeef \
             computed",
        ),
        (
            FsError::corrupt(
                "inode",
                ino,
                None,
                Fault::Field { rule: "extra size past the inode", value: 9, limit: 8 },
            ),
            Family::Damage,
            117,
            "inode of inode 12: extra size past the inode (9, limit 8)",
        ),
        (
            FsError::corrupt("superblock", None, None, Fault::Rule("no inodes")),
            Family::Damage,
            117,
            "superblock: no inodes",
        ),
        (
            FsError::corrupt("group descriptor", None, FsBlock(1), Fault::Decode("short".into())),
            Family::Damage,
            117,
            "group descriptor at block 1: short",
        ),
        (
            FsError::CutShort { file_system_bytes: 8 << 20, device_bytes: 100_000 },
            Family::Damage,
            117,
            "the image is cut short: the file system has 8388608 bytes, the file has 100000",
        ),
        (
            FsError::Device(DeviceError::new(
                "a.img".into(),
                OperationKind::Read,
                4096,
                512,
                DeviceFault::Io(io::Error::other("gone")),
            )),
            Family::Device,
            5,
            "a.img: read of 512 bytes at byte 4096 failed",
        ),
        (
            FsError::from(DeviceError::new(
                "a.img".into(),
                OperationKind::Write,
                4096,
                512,
                DeviceFault::Io(io::Error::from_raw_os_error(28)),
            )),
            Family::Device,
            28,
            "the disk that holds a.img is full: a.img: write of 512 bytes at byte 4096 failed",
        ),
        (
            FsError::Exists { dir: Ino(2), ino },
            Family::Refusal,
            17,
            "the name is taken in directory inode 2, by inode 12",
        ),
        (FsError::NotEmpty { ino }, Family::Refusal, 39, "directory inode 12 is not empty"),
        (FsError::InvalidName { what: "empty" }, Family::Refusal, 22, "invalid name: empty"),
        (
            FsError::NoSpace { what: "blocks", wanted: 9, free: 4 },
            Family::Refusal,
            28,
            "no room: 9 blocks wanted, 4 free",
        ),
        (
            FsError::QuotaExceeded { kind: "user", id: 1000, what: "blocks" },
            Family::Refusal,
            122,
            "the quota of user 1000 for blocks is used up",
        ),
        (
            FsError::TooManyLinks { ino, limit: 65000 },
            Family::Refusal,
            31,
            "inode 12 has 65000 links, and there can be no more",
        ),
        (
            FsError::AccessDenied { ino, uid: 7 },
            Family::Refusal,
            13,
            "the permissions of inode 12 do not let user 7 do that",
        ),
        (
            FsError::NotPermitted { ino, what: "it is immutable" },
            Family::Refusal,
            1,
            "inode 12 cannot be changed so: it is immutable",
        ),
        (
            FsError::OtherProject { ino },
            Family::Refusal,
            18,
            "inode 12 belongs to another project than the directory",
        ),
        (
            FsError::OtherPolicy { ino },
            Family::Refusal,
            18,
            "inode 12 is not encrypted as the directory is",
        ),
        (
            FsError::Unverified { ino, what: "contents", index: 7, block_bytes: 4096 },
            Family::Damage,
            5,
            "block 7 (of 4096 bytes) of the contents of inode 12 has not the hash that its \
             fs-verity seal says",
        ),
        (FsError::Sealed { ino }, Family::Refusal, 17, "inode 12 is sealed by fs-verity already"),
        (
            FsError::OpenForWriting { ino },
            Family::Refusal,
            26,
            "inode 12 is open for writing, so it cannot be sealed",
        ),
        (
            FsError::OtherFileSystem { ino },
            Family::Refusal,
            18,
            "inode 12 is of another mounted file system: copy it instead",
        ),
        (
            FsError::NameInUse { name: "/" },
            Family::Refusal,
            16,
            "`/` can be neither removed nor moved, nor anything moved to it",
        ),
        (FsError::Frozen, Family::Refusal, 16, "the file system is frozen: thaw it first"),
        (
            FsError::CannotGrow(GrowRefused::Busy),
            Family::Refusal,
            16,
            "the file system grows already: wait until that is done",
        ),
        (
            FsError::CannotGrow(GrowRefused::Smaller { wanted: 1, has: 2 }),
            Family::Refusal,
            22,
            "1 bytes are less than the 2 that the file system has: it becomes smaller only while \
             it is not mounted (extant resize IMAGE SIZE)",
        ),
        (
            FsError::CannotGrow(GrowRefused::PastDevice { wanted: 2, device: 1 }),
            Family::Refusal,
            28,
            "2 bytes are more than the 1 of the device: make that larger first",
        ),
        (
            FsError::CannotGrow(GrowRefused::NoNumbers {
                wanted: 2,
                largest: 1,
                lacks_64bit: true,
            }),
            Family::Refusal,
            27,
            "2 bytes cannot be reached: without the feature 64bit, blocks have numbers of 32 \
             bits; at most 1 bytes",
        ),
        (
            FsError::CannotGrow(GrowRefused::JournalTooSmall { wanted: 2, limit: 1 }),
            Family::Refusal,
            28,
            "2 blocks change together, and the journal takes 1 at once: resize the file system \
             while it is not mounted, or give it a larger journal",
        ),
        (
            FsError::CannotGrow(GrowRefused::Layout { what: "its last cluster is not whole" }),
            Family::Refusal,
            95,
            "it cannot grow while it is mounted: its last cluster is not whole",
        ),
        (
            FsError::OperationCancelled { why: "its time was over" },
            Family::Refusal,
            125,
            "the operation was cancelled before it began: its time was over",
        ),
        (
            FsError::NoThread { why: "Resource temporarily unavailable".into() },
            Family::Refusal,
            11,
            "no thread could be started: Resource temporarily unavailable",
        ),
        (
            FsError::IntoItself { ino },
            Family::Refusal,
            22,
            "directory inode 12 cannot move to a place inside itself",
        ),
        (
            FsError::AttributeExists { ino },
            Family::Refusal,
            17,
            "inode 12 has an extended attribute of that name already",
        ),
        (
            FsError::PageCache(CacheError::Full { bytes: 8, dirty: 7 }),
            Family::Refusal,
            12,
            "no room in the page cache: 7 of 8 bytes are dirty; sync, or mount with a larger cache",
        ),
        (
            FsError::WritebackFailed { ino, failures: 3 },
            Family::Device,
            5,
            "writeback of inode 12 failed 3 times since it was last synced; nothing was lost, and \
             what failed was written again",
        ),
        (
            FsError::AttributeTooLarge { ino, bytes: 5000, limit: 4000 },
            Family::Refusal,
            28,
            "an attribute value of 5000 bytes does not fit inode 12: at most 4000 bytes on this \
             file system",
        ),
        (
            FsError::InUse { by: "host a".into() },
            Family::Refusal,
            16,
            "the file system is in use by host a",
        ),
        (
            FsError::Aborted { errno: 5, why: "no".into() },
            Family::Device,
            30,
            "the journal stopped, mount again to go on: no",
        ),
        (
            FsError::from(OpenError::Busy { path: "/dev/sda1".into() }),
            Family::Refusal,
            16,
            "/dev/sda1 is mounted or in use by the kernel",
        ),
        (
            FsError::from(OpenError::Io {
                action: "open",
                path: "a.img".into(),
                source: io::Error::from_raw_os_error(2),
            }),
            Family::Device,
            2,
            "cannot open a.img",
        ),
    ]
}

#[test]
fn family_errno_and_text_of_every_error() {
    for (error, family, errno, text) in table() {
        assert_eq!(error.to_string(), text);
        assert_eq!(error.family(), family, "{text}");
        assert_eq!(error.errno(), errno, "{text}");
        let has_cause = match &error {
            FsError::Open(error) => matches!(**error, OpenError::Io { .. }),
            _ => matches!(error, FsError::Device(_) | FsError::DeviceFull(_)),
        };
        assert_eq!(error.source().is_some(), has_cause, "{text}");
    }
}

#[test]
fn as_io_error_the_kind_is_right_and_nothing_is_lost() {
    for (error, _, errno, text) in table() {
        let wrapped = io::Error::from(error);
        assert_eq!(wrapped.to_string(), text);
        let inner = wrapped.get_ref().and_then(|e| e.downcast_ref::<FsError>()).unwrap();
        assert_eq!(inner.errno(), errno);
    }
    let kind = io::Error::from(FsError::NotFound { dir: Ino(2), at: None }).kind();
    assert_eq!(kind, io::ErrorKind::NotFound);
    let kind = io::Error::from(FsError::IsADirectory { ino: Ino(2) }).kind();
    assert_eq!(kind, io::ErrorKind::IsADirectory);
}

#[test]
fn words_of_an_error_have_those_of_its_causes() {
    let cause = DeviceFault::Io(io::Error::from_raw_os_error(28));
    let error = DeviceError::new("a.img".into(), OperationKind::Flush, 0, 0, cause);
    let text = FsError::from(error).with_causes();
    assert!(text.starts_with("the disk that holds a.img is full: a.img: flush failed: No space"));
}

/// What `std` makes of the same errno, but where it knows less, or the image is at fault.
#[test]
fn kinds_are_those_of_the_standard_library() {
    use io::ErrorKind as Kind;
    for (error, family, errno, text) in table() {
        let (code, kind) = (error.code(), io::Error::from(error).kind());
        let expected = match (code, family) {
            (_, Family::Damage) => Kind::InvalidData,
            (ErrorCode::Device | ErrorCode::WritebackFailed, _) => Kind::Other,
            (ErrorCode::NameTooLong | ErrorCode::TooDeep, _) => Kind::InvalidFilename,
            (ErrorCode::NotExt | ErrorCode::ExternalJournal, _) => Kind::InvalidData,
            (ErrorCode::Unsupported, _) => Kind::Unsupported,
            (ErrorCode::Journal | ErrorCode::JournalDevice, Family::Refusal) => Kind::Unsupported,
            (ErrorCode::NoAttribute, _) => Kind::NotFound,
            (ErrorCode::Encrypted, _) => Kind::PermissionDenied,
            (ErrorCode::NotUtf8, _) => Kind::InvalidData,
            (ErrorCode::SymlinkLoop | ErrorCode::OperationCancelled, _) => Kind::Other,
            _ => io::Error::from_raw_os_error(errno).kind(),
        };
        assert_eq!(kind, expected, "{code:?}: {text}");
    }
}

#[test]
fn numbers_and_names_of_errors_stay() {
    let mut seen = std::collections::BTreeMap::new();
    for (error, ..) in table() {
        seen.insert(error.code() as u16, error.code().name());
    }
    let expected = [
        "NotFound",
        "NotADirectory",
        "IsADirectory",
        "NotARegularFile",
        "NotASymlink",
        "NameTooLong",
        "SymlinkLoop",
        "TooDeep",
        "NoSuchInode",
        "NoAttribute",
        "Encrypted",
        "NotUtf8",
        "TooLarge",
        "InvalidArgument",
        "NotSupported",
        "ReadOnly",
        "Exists",
        "NotEmpty",
        "InvalidName",
        "NoSpace",
        "QuotaExceeded",
        "TooManyLinks",
        "AccessDenied",
        "NotPermitted",
        "OtherProject",
        "IntoItself",
        "AttributeExists",
        "PageCache",
        "WritebackFailed",
        "AttributeTooLarge",
        "InUse",
        "Aborted",
        "NotExt",
        "ExternalJournal",
        "Unsupported",
        "JournalDeviceMissing",
        "WrongJournalDevice",
        "Corrupt",
        "CutShort",
        "Journal",
        "JournalDevice",
        "Device",
        "DeviceFull",
        "Open",
        "Misaligned",
        "OtherFileSystem",
        "NoThread",
        "Frozen",
        "OperationCancelled",
        "OtherPolicy",
        "Unverified",
        "Sealed",
        "OpenForWriting",
        "CannotGrow",
        "NameInUse",
    ];
    let expected = (1..).zip(expected).collect();
    let all = ErrorCode::ALL.map(|code| (code as u16, code.name()));
    assert_eq!(std::collections::BTreeMap::from(all), expected, "all of them");
    assert_eq!(seen, expected, "every variant is in the table, under its number");
}

#[test]
fn an_error_of_a_path_names_the_path_and_the_part_of_it() {
    let missing = || FsError::NotFound { dir: Ino(12), at: None };
    let inner = missing().in_path(b"/etc/x/y", b"x");
    assert_eq!(inner.to_string(), "/etc/x/y (at x): there is no such entry in directory inode 12");
    let last = missing().in_path(b"/etc/x/y/", b"y").in_path(b"/other", b"other");
    assert_eq!(last.to_string(), "/etc/x/y/: there is no such entry in directory inode 12");
    let odd = missing().in_path(b"/caf\xe9\n", b"caf\xe9\n");
    assert_eq!(odd.to_string(), "/caf\\xe9\\n: there is no such entry in directory inode 12");
    let FsError::NotFound { at: Some(at), .. } = last else { panic!() };
    assert_eq!((at.path(), at.component()), (&b"/etc/x/y/"[..], &b"y"[..]));
}

#[test]
fn the_inode_that_a_message_names_is_the_one_that_programs_get() {
    for (error, _, _, text) in table() {
        let named = text.contains("inode 12") && !matches!(error, FsError::Journal(_));
        assert_eq!(error.ino(), named.then_some(Ino(12)), "{text}");
    }
}
