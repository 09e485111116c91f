//! What the crates below report, as exit code and hint.

use extant::{Family, FsError};
use extant_block::partition::PartitionError;
use extant_block::{DeviceError, DeviceFault, OpenError, WindowError};
use extant_fuse::mount::MountError;
use extant_image::geometry::GeometryError;
use extant_image::plan::PlanError;
use extant_image::source::{ImageFault, SourceError};
use extant_image::write::WriteError;

use crate::exit::{Exit, Failure};
use crate::text::human_bytes;

/// Bytes of the longest target that a link can have, with large blocks.
const TARGET_MAX: usize = 4095;

/// The exit code for an error of the operating system met while doing I/O.
pub(crate) fn io_exit(error: &std::io::Error) -> Exit {
    use std::io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Exit::NoSpace,
        Kind::AlreadyExists | Kind::ResourceBusy => Exit::Refused,
        _ => Exit::Io,
    }
}

/// What gives the file system the feature for want of which something was refused.
fn lacking(error: &FsError) -> Option<&'static str> {
    match error {
        FsError::NotSupported { what, .. } if what.ends_with("the feature encrypt") => {
            Some("extant tune -O encrypt IMG gives the file system the feature")
        }
        FsError::InvalidArgument { what } if what.ends_with("no `casefold` feature") => {
            Some("extant tune -O casefold IMG gives the file system the feature")
        }
        FsError::InvalidArgument { what } if what.ends_with("no `project` feature") => Some(
            "extant tune -O project IMG gives the file system the feature, if its inodes have 256 bytes or more",
        ),
        _ => None,
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        let exit = match (&error, error.family()) {
            (FsError::NotExt { .. } | FsError::ExternalJournal { .. }, _) => Exit::Image,
            (FsError::Unsupported { .. } | FsError::Encrypted { .. }, _) => Exit::Unsupported,
            (_, _) if lacking(&error).is_some() => Exit::Refused,
            (FsError::JournalDeviceMissing { .. }, _) => Exit::Refused,
            (FsError::WrongJournalDevice { .. } | FsError::JournalDevice(_), Family::Refusal) => {
                Exit::Usage
            }
            (FsError::Journal(_), Family::Refusal) => Exit::Unsupported,
            (
                FsError::InvalidArgument { .. }
                | FsError::Misaligned { .. }
                | FsError::InvalidName { .. }
                | FsError::IntoItself { .. },
                _,
            ) => Exit::Usage,
            (
                FsError::NoSpace { .. }
                | FsError::QuotaExceeded { .. }
                | FsError::AttributeTooLarge { .. }
                | FsError::TooLarge { .. }
                | FsError::TargetTooLong { .. }
                | FsError::TooManyLinks { .. }
                | FsError::DeviceFull(_),
                _,
            ) => Exit::NoSpace,
            (
                FsError::Exists { .. }
                | FsError::AttributeExists { .. }
                | FsError::NotEmpty { .. }
                | FsError::NotPermitted { .. }
                | FsError::OtherProject { .. }
                | FsError::OtherPolicy { .. }
                | FsError::OtherFileSystem { .. }
                | FsError::Sealed { .. }
                | FsError::OpenForWriting { .. }
                | FsError::Frozen
                | FsError::CannotGrow(_)
                | FsError::NameInUse { .. }
                | FsError::OperationCancelled { .. }
                | FsError::InUse { .. }
                | FsError::ReadOnly,
                _,
            ) => Exit::Refused,
            // What stopped it counts: EBADMSG and EUCLEAN are damage.
            (FsError::Aborted { errno: 74 | 117, .. }, _) => Exit::Image,
            (FsError::Aborted { .. } | FsError::NoThread { .. }, _) => Exit::Io,
            (_, Family::Damage) => Exit::Image,
            (_, Family::Device) => Exit::Io,
            (_, Family::Refusal) => Exit::NotFound,
        };
        let hint = match &error {
            FsError::JournalDeviceMissing { .. } => {
                Some("pass the device or file with --journal-device")
            }
            FsError::ExternalJournal { .. } => {
                Some("give the file system's own device, and this one as --journal-device")
            }
            FsError::Journal(_) if exit == Exit::Image => {
                Some("extant repair brings in what can be brought in of it")
            }
            FsError::Corrupt { structure: "superblock" | "group descriptor", .. } => {
                Some("a backup may be intact: extant repair takes it; extant salvage does without")
            }
            FsError::CutShort { .. } => Some(
                "get all of the image again; extant salvage copies what can be read of this part",
            ),
            FsError::Corrupt { .. } => Some(
                "other files may be intact; extant check IMAGE shows the extent of the damage, extant repair puts it right",
            ),
            FsError::Unsupported { features, .. } if &**features == "read-only" => {
                Some("the image is marked as read-only: tune2fs -O ^read-only lifts that")
            }
            FsError::NoSpace { .. } => Some(
                "extant rm makes room; a larger image: extant resize IMG SIZE, or build it again with --size auto+512M",
            ),
            FsError::TargetTooLong { most, .. } if *most < TARGET_MAX - 2 => Some(
                "an image with blocks of 4 KiB stores targets of up to 4095 bytes: extant build -b 4096",
            ),
            FsError::DeviceFull(_) => {
                Some("make room there and try again; what was stored before is kept")
            }
            FsError::Unsupported { .. } => Some("a newer version of extant may know the feature"),
            other => lacking(other),
        };
        let mut failure = Failure::caused(exit, "", &error);
        failure.hint = hint.map(str::to_owned);
        failure
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let exit = match &error {
            // As of an image in a cluster: nothing failed, it is protected.
            OpenError::Io { source, .. }
                if matches!(
                    source.kind(),
                    std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Exit::Refused
            }
            // A directory cannot even be opened for writing; for reading it is no device.
            OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::IsADirectory => {
                Exit::Usage
            }
            OpenError::Io { source, .. } => io_exit(source),
            OpenError::NotADevice { .. } => Exit::Usage,
            OpenError::Locked { .. } | OpenError::Busy { .. } => Exit::Refused,
            OpenError::NoEngine { .. } => Exit::Unsupported,
            _ => Exit::Io,
        };
        let path = match &error {
            OpenError::Io { path, .. }
            | OpenError::NotADevice { path, .. }
            | OpenError::Locked { path, .. }
            | OpenError::Busy { path, .. }
            | OpenError::NoEngine { path, .. } => Some(path.display().to_string()),
            _ => None,
        };
        let hint = match &error {
            OpenError::Io { source, path, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Some(format!(
                    "extant needs no root, only the permission to open {}",
                    path.display()
                ))
            }
            OpenError::Locked { .. } => Some(
                "wait for it to finish, or stop it; ls, cat, info and extract read the image \
                 all the same"
                    .to_owned(),
            ),
            OpenError::NoEngine { .. } => {
                Some("--device-engine auto does without where it must".to_owned())
            }
            OpenError::Busy { .. } => {
                Some("unmount it first; ls, cat, info and extract read it all the same".to_owned())
            }
            _ => None,
        };
        let mut failure = Failure::caused(exit, "", &error);
        (failure.hint, failure.object) = (hint, path);
        failure
    }
}

impl From<PartitionError> for Failure {
    fn from(error: PartitionError) -> Failure {
        let exit = match &error {
            PartitionError::NoTable { .. } | PartitionError::Damaged { .. } => Exit::Image,
            PartitionError::NoSuchPartition { .. } => Exit::NotFound,
            PartitionError::Device(_) => Exit::Io,
            _ => Exit::Image,
        };
        let mut failure = Failure::caused(exit, "", &error);
        failure.object = match &error {
            PartitionError::NoTable { device }
            | PartitionError::NoSuchPartition { device, .. }
            | PartitionError::Damaged { device, .. } => Some(device.clone()),
            _ => None,
        };
        match &error {
            PartitionError::NoTable { .. } => {
                failure.hint("leave --partition out if the file system fills the whole file")
            }
            _ => failure,
        }
    }
}

impl From<WindowError> for Failure {
    fn from(error: WindowError) -> Failure {
        let WindowError { device, device_bytes, offset, .. } = error;
        Failure::usage(format!("--offset {offset}: {device} ends at byte {device_bytes}"))
            .on(&*device)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        let exit = match error.fault() {
            DeviceFault::Io(cause) => io_exit(cause),
            _ => Exit::Io,
        };
        let failure = Failure::caused(exit, "", &error);
        match exit {
            Exit::NoSpace => failure.hint("make room there, or choose another place for the image"),
            _ => failure,
        }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Failure {
        let (exit, hint) = match &error {
            SourceError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::StorageFull => (
                Exit::NoSpace,
                Some("files of a packed archive are collected in TMPDIR: set it to a larger place"),
            ),
            SourceError::Io { doing, .. } if doing.contains("temporary") => (
                Exit::Io,
                Some(
                    "files of a packed archive are collected in TMPDIR: set it to a place that can be written",
                ),
            ),
            SourceError::Io { cause, .. }
                if cause.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                (Exit::Input, Some("--ignore-unreadable leaves such files out and counts them"))
            }
            SourceError::Image(error) => (
                match error.kind {
                    ImageFault::Damaged | ImageFault::Missing => Exit::Input,
                    ImageFault::Choice => Exit::Usage,
                    ImageFault::Unsupported => Exit::Unsupported,
                    ImageFault::Io => error.cause.as_ref().map_or(Exit::Io, io_exit),
                },
                None,
            ),
            SourceError::Changed { .. } => {
                (Exit::Input, Some("build again when nothing writes to the source"))
            }
            SourceError::Threads(_) => (Exit::Internal, None),
            _ => (Exit::Input, None),
        };
        let object = match &error {
            SourceError::Io { path, .. } | SourceError::Changed { path, .. } => Some(path.clone()),
            SourceError::Archive { archive, .. } | SourceError::NotTar { archive, .. } => {
                Some(archive.clone())
            }
            SourceError::Addition { host, .. } => Some(host.clone()),
            SourceError::Image(error) => Some(error.place.clone()),
            _ => None,
        };
        let mut failure = Failure::caused(exit, "", &error);
        failure.hint = hint.map(str::to_owned).or(failure.hint);
        failure.object = object;
        failure
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        let (exit, hint) = match &error {
            PlanError::Geometry(
                GeometryError::Options(_)
                | GeometryError::JournalSize { .. }
                | GeometryError::ResizeLimit { .. }
                | GeometryError::OrphanFileSize { .. },
            ) => (Exit::Usage, None),
            PlanError::Geometry(_) => (Exit::NoSpace, None),
            PlanError::Tree(_) | PlanError::LostFoundTaken => (Exit::Input, None),
            PlanError::DoesNotFit { needed_bytes: Some(needed), .. } => (
                Exit::NoSpace,
                Some(format!("--size {} would do; so does --size auto", size_option(*needed))),
            ),
            PlanError::DoesNotFit { .. } => (Exit::NoSpace, Some("try --size auto".to_owned())),
            PlanError::TooFewInodes { needed, .. } => {
                (Exit::NoSpace, Some(format!("give -N {needed}, or leave -N and -i out")))
            }
            PlanError::TargetTooLong { most, .. } if *most < TARGET_MAX - 2 => {
                (Exit::NoSpace, Some("give -b 4096, for targets of up to 4095 bytes".to_owned()))
            }
            PlanError::TargetTooLong { .. } => (Exit::NoSpace, None),
            PlanError::File { .. } => (Exit::Unsupported, None),
            PlanError::NoSize { .. } => (Exit::NoSpace, Some("give a size: --size 2G".to_owned())),
            PlanError::BaseBlockSize { base_bytes, .. } => {
                (Exit::Unsupported, Some(format!("give -b {base_bytes}, or leave --base out")))
            }
            PlanError::Random(_) => (Exit::Io, Some("give -U and --hash-seed".to_owned())),
        };
        let mut failure = Failure::caused(exit, "", &error);
        failure.hint = hint;
        failure
    }
}

/// A size as `--size` takes it, at least `bytes`.
pub(crate) fn size_option(bytes: u64) -> String {
    let kib = bytes.div_ceil(1024);
    format!("{kib}K ({})", human_bytes(kib * 1024))
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Failure {
        match error {
            WriteError::Device(error) => error.into(),
            WriteError::Source(error) => error.into(),
            WriteError::Interrupted => Failure::new(Exit::Interrupted, "interrupted"),
            WriteError::Encode { .. } | WriteError::Thread(_) => {
                let failure = Failure::caused(Exit::Internal, "", &error);
                match failure.exit {
                    Exit::Internal => {
                        failure.hint("please report this with the command and extant --version")
                    }
                    _ => failure,
                }
            }
        }
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Failure {
        let exit = match &error {
            _ if error.is_busy() => Exit::Refused,
            MountError::Helper { .. } => Exit::Refused,
            MountError::System { source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Exit::Refused
            }
            _ => Exit::Io,
        };
        let hint = match &error {
            MountError::Device(source) if source.kind() == std::io::ErrorKind::NotFound => {
                Some("this kernel has no FUSE, or it is not loaded: modprobe fuse")
            }
            MountError::Device(_) => Some("a container needs it passed in: --device /dev/fuse"),
            MountError::System { action: "mount on", source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Some("root of a container needs CAP_SYS_ADMIN to mount; other users need fuse3")
            }
            MountError::NoHelper(_) => Some("install fuse3, or mount as root"),
            MountError::Helper { said } if said.contains("open /dev/fuse") => {
                Some("/dev/fuse is not for everybody here; distributions have it with mode 666")
            }
            MountError::Helper { said } if said.contains("user_allow_other") => {
                Some("without root, allow_other needs a line user_allow_other in /etc/fuse.conf")
            }
            MountError::Helper { said } if said.contains("no write access") => {
                Some("an ordinary user mounts on a directory of his own")
            }
            _ => None,
        };
        let mut failure = Failure::caused(exit, "", &error);
        failure.hint = hint.map(str::to_owned);
        failure
    }
}

#[cfg(test)]
mod tests {
    use extant::{FsBlock, FsError, Ino, Zone};

    use super::*;

    /// Whoever has to act: damage is 4 whatever met it, a device is 8, a wrong question 9.
    #[test]
    fn each_error_of_an_image_has_its_code() {
        let damage = |fault| FsError::Corrupt {
            structure: "inode",
            ino: Some(Ino(12)),
            block: Some(FsBlock(7)),
            fault,
        };
        let aborted = |errno| FsError::Aborted { errno, why: "for the test".into() };
        let zone = Zone::Journal(Ino(8));
        let table = [
            (damage(extant::Fault::Rule("its inode is not in use")), 4),
            (damage(extant::Fault::Checksum { stored: 1, computed: 2 }), 4),
            (damage(extant::Fault::Zone { file_block: Some(0), zone }), 4),
            (FsError::CutShort { file_system_bytes: 2, device_bytes: 1 }, 4),
            (FsError::NotExt { offset: 1024, magic: None }, 4),
            (aborted(117), 4),
            (aborted(74), 4),
            (aborted(5), 8),
            (aborted(28), 8),
            (FsError::Unsupported { wanted: "read", features: "x".into() }, 5),
            (FsError::NoSpace { what: "blocks", wanted: 1, free: 0 }, 6),
            (FsError::ReadOnly, 7),
            (FsError::InUse { by: "another".into() }, 7),
            (FsError::NotFound { dir: Ino(2), at: None }, 9),
            (FsError::NotADirectory { ino: Ino(12), at: None }, 9),
            // Of a number that somebody gave; what an image says to be in use and is not is damage.
            (FsError::NoSuchInode { ino: Ino(12), inode_count: 11 }, 9),
        ];
        for (error, code) in table {
            let text = error.to_string();
            assert_eq!(Failure::from(error).exit.code(), code, "{text}");
        }
    }
}
