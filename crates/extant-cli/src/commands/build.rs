//! `extant build`: an image from directories, archives and container images.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant_image::attributes::{fold_case, settle, settle_times};
use extant_image::encrypt::{EncryptError, check_links, encrypt_with, features_of};
use extant_image::plan::{BuildOptions, Headroom, Plan, PlanError, SizeSpec, plan, plan_onto};
use extant_image::source::dir::ScanOptions;
use extant_image::source::{
    Addition, Fakeroot, Layered, Origin, Platform, RegistryAccess, Skipped, Sources, UNMAPPED,
};
use extant_image::transform::{IdMap, OptionError, Owner, Transform, TransformError};
use extant_image::tree::Tree;
use extant_image::{EncryptionPolicy, MasterKey};

use crate::base;
use crate::disk::DiskSet;
use crate::exit::{Exit, Failure, Result};
use crate::fault::{io_exit, size_option};
use crate::foreign;
use crate::keys;
use crate::mkfs_args::{MkfsSet, warn_of_readers};
use crate::output::complain;
use crate::policy::PolicyArgs;
use crate::size::{parse_build_size, parse_bytes};
use crate::stdio;
use crate::target::{Target, TargetSet, Verity, epoch};
use crate::text::escape;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant build root.img --from rootfs/ --size auto+20% --owner 0:0\n  extant build root.img --from rootfs.tar.zst --profile microvm\n  extant build root.img --from docker://debian:12 --size 4G\n  extant build root.img --from oci:layout:v1 --platform linux/arm64\n  extant build root.img --from saved.tar --from overlay/ --add init:/sbin/init:755\n  SOURCE_DATE_EPOCH=0 extant build root.img --from rootfs/\n  extant build disk.img --from rootfs/ --gpt --esp boot/ --verity\n  extant build disk.img --from rootfs/ --partition 2\n  extant build new.img --base old.img --from rootfs/\n  extant build boot.img --from boot/ --for grub\n  extant build user.img --from rootfs/ --encrypt /home=key\n  extant build root.img --from rootfs/ --plan\n";

/// Build an image from directories, tar archives and container images
///
/// Several sources are layers, from the lowest to the topmost: a file of an upper one takes the place
/// of what has its name below, and one that is called .wh.NAME takes NAME away.
///
/// OUT appears complete or not at all. It is as large as the contents need, with some room to work
/// in, unless --size says otherwise. With SOURCE_DATE_EPOCH set, or --mtime-clamp, equal input gives equal bytes: times
/// are limited to it, and UUID and hash seed follow from the file list unless given.
#[derive(Args, Debug)]
pub(crate) struct BuildArgs {
    /// Image file or block device to write; - for standard output
    #[arg(value_name = "OUT")]
    out: OsString,
    /// Directory, tar archive (plain, gzip, zstd), - for an archive on standard input, or a container
    /// image: docker://HOST/NAME:TAG in a registry, oci:DIR, oci-archive:FILE, docker-archive:FILE, each
    /// also with :TAG at the end, or one of these found by content. tar:FILE and dir:DIR are taken as they are. Required; several are layers
    #[arg(long, short = 'd', value_name = "SOURCE", help_heading = "Source")]
    from: Vec<OsString>,
    /// Put a file or directory of the host into the image, over the sources: HOST:/PATH, owned by
    /// root, or HOST:/PATH:MODE:UID:GID
    #[arg(long, value_name = "HOST:/PATH", help_heading = "Source")]
    add: Vec<OsString>,
    /// Of a container image for several machines, the one for this: linux/arm64, linux/arm/v7
    #[arg(long, value_name = "OS/ARCH", value_parser = parse_platform, help_heading = "Source")]
    platform: Option<Platform>,
    /// Write the configuration of the container image (JSON) to a file
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    config_out: Option<PathBuf>,
    /// Most bytes that one layer may unpack to: 1G, or 200 times its packed size, if not given
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help_heading = "Source")]
    unpack_limit: Option<u64>,
    /// Ask registries on other hosts without encryption, too; what they say, and users and passwords,
    /// can be read and changed on the way
    #[arg(long, help_heading = "Source")]
    plain_http: bool,
    /// Neither keep what comes from a registry in $XDG_CACHE_HOME/extant nor take it from there
    #[arg(long, help_heading = "Source")]
    no_cache: bool,
    /// What was meant as a source without --from.
    #[arg(hide = true)]
    stray: Option<OsString>,
    /// Take the files of a container image (OCI layout, docker save) as they are, layers packed
    #[arg(long, help_heading = "Source")]
    as_is: bool,
    /// auto (as large as the contents need, and a tenth of it free, at least 32 MiB), auto+20% or
    /// auto+512M (that much free), auto+0 (nothing free), or a size: 2G, 512M, 100000K
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = parse_build_size)]
    size: SizeSpec,
    /// Make a dm-verity hash tree too: behind the file system, or in FILE. Its root hash is printed
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    verity: Option<Option<PathBuf>>,
    /// Seal all regular files by fs-verity, or those whose paths are in FILE, one on each line: they
    /// can never change again, and every read is checked
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    fs_verity: Option<Option<PathBuf>>,
    /// Encrypt a directory of the image, and all below it, with the master key in FILE (as --key-file takes it). May be
    /// given several times
    ///
    /// The policy is of version 2, named after the key; with DIR=NAME=FILE it is of version 1, which has the name that is
    /// given, 16 hex digits.
    #[arg(long, value_name = "DIR=FILE")]
    encrypt: Vec<OsString>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// A directory of the image, and all below it, finds names whatever their case. May be given several times
    #[arg(long, value_name = "DIR")]
    casefold: Vec<OsString>,
    /// Build over an older image: what did not change keeps its blocks and inodes, so that block deltas
    /// are small. UUID, hash seed and size are those of the base unless given; other options are to be as for it
    #[arg(long, value_name = "IMG")]
    base: Option<PathBuf>,
    /// The older file system is in partition N of IMG
    #[arg(long, value_name = "N", requires = "base")]
    base_partition: Option<u32>,
    #[command(flatten)]
    target: TargetSet,
    #[command(flatten)]
    disk: DiskSet,
    /// Owner of every file
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner, help_heading = "Source")]
    owner: Option<Owner>,
    /// Users: FROM:TO or FROM:TO:COUNT, several with commas
    #[arg(long, value_name = "MAP", value_parser = parse_map, help_heading = "Source")]
    uid_map: Option<IdMap>,
    /// Groups: FROM:TO or FROM:TO:COUNT, several with commas
    #[arg(long, value_name = "MAP", value_parser = parse_map, help_heading = "Source")]
    gid_map: Option<IdMap>,
    /// Later times become this one: seconds since 1970. SOURCE_DATE_EPOCH if not given
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, help_heading = "Source")]
    mtime_clamp: Option<String>,
    /// Owners, modes and devices of directories are those that fakeroot showed: the state that `fakeroot -s FILE` saved.
    /// Files that are not in it belong to root
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    fakeroot: Option<PathBuf>,
    /// Leave out what cannot be read, and say how much that was
    #[arg(long, help_heading = "Source")]
    ignore_unreadable: bool,
    /// Stay on the source's file system
    #[arg(long, short = 'x', help_heading = "Source")]
    one_file_system: bool,
    #[command(flatten)]
    mkfs: MkfsSet,
}

fn parse_platform(text: &str) -> Result<Platform, String> {
    text.parse()
}

fn parse_owner(text: &str) -> Result<Owner, String> {
    text.parse().map_err(|error: OptionError| error.what)
}

fn parse_map(text: &str) -> Result<IdMap, String> {
    text.parse().map_err(|error: OptionError| error.what)
}

/// Runs the command.
pub(crate) fn run(args: &BuildArgs) -> Result<Exit> {
    let sources = sources(args)?;
    let mut mkfs = args.mkfs.options()?;
    let epoch = epoch(args.mtime_clamp.as_deref())?;
    mkfs.created = mkfs.created.or(epoch);
    if args.fs_verity.is_some() {
        mkfs = mkfs
            .with_features("verity")
            .map_err(|error| Failure::caused(Exit::Usage, "", &error))?;
    }
    if !args.casefold.is_empty() {
        mkfs = mkfs
            .with_features("casefold")
            .map_err(|error| Failure::caused(Exit::Usage, "", &error))?;
    }
    let encrypted = encrypted(args)?;
    for (_, _, policy) in &encrypted {
        mkfs = mkfs
            .with_features(features_of(policy))
            .map_err(|error| Failure::caused(Exit::Usage, "", &error))?;
    }
    if !args.target.quiet {
        warn_of_readers(&mkfs);
    }
    if args.mkfs.wants_random_uuid() {
        mkfs.uuid = Some(random_uuid()?);
    }
    let mut target = args.target.look_at(&args.out)?;
    let verity = args.verity.clone().map(|file| file.map_or(Verity::Appended, Verity::Beside));
    target.seal(verity, args.disk.gpt)?;
    let size = match (args.size, &target.kind) {
        // A part of a disk is filled, like a whole one by mkfs.
        (SizeSpec::Auto(_), crate::target::Kind::Window(_)) => {
            SizeSpec::Bytes(target.room()?.unwrap_or(0))
        }
        (size, _) => size,
    };
    let Layered { mut scanned, config } = scan(args, &sources, &target)?;
    if args.config_out.is_some() && config.is_none() {
        return Err(Failure::usage("--config-out: no source is a container image")
            .hint("give one: --from oci:DIR, oci-archive:FILE or docker-archive:FILE"));
    }
    let transform = Transform {
        owner: args.owner,
        uid_map: args.uid_map.clone().unwrap_or_default(),
        gid_map: args.gid_map.clone().unwrap_or_default(),
        epoch,
        rootless: true,
    };
    transform.apply(&mut scanned.tree).map_err(|error| {
        let hint = match error {
            TransformError::BadOwner { .. } => {
                "setfattr -x user.rootlesscontainers FILE takes it away"
            }
            _ => "add a range for it, or give every file one owner with --owner",
        };
        Failure::caused(Exit::Input, "", &error).hint(hint)
    })?;
    match &args.fs_verity {
        Some(Some(list)) => seal_listed(&mut scanned.tree, list)?,
        Some(None) => scanned.tree.seal_all(),
        None => {}
    }
    for dir in &args.casefold {
        if !fold_case(&mut scanned.tree, dir.as_bytes()) {
            let dir = escape(dir.as_bytes());
            let message = format!("--casefold: there is no directory \"{dir}\" in the sources");
            return Err(Failure::new(Exit::NotFound, message));
        }
    }
    for (dir, key, policy) in &encrypted {
        encrypt_with(&mut scanned.tree, dir, key, policy).map_err(encryption)?;
    }
    check_links(&scanned.tree).map_err(encryption)?;
    settle(&mut scanned.tree, &mkfs.requested_features(), &mut scanned.lost);
    if args.owner.is_some() {
        scanned.lost.forget(UNMAPPED);
    }
    let options = BuildOptions { mkfs, size, reproducible: epoch.is_some() };
    let over = match &args.base {
        Some(file) => Some(Arc::new(base::read(file, args.base_partition, &scanned.tree)?)),
        None => None,
    };
    let made = |tree: &mut Tree, options: &BuildOptions| -> Result<Plan, PlanError> {
        match &over {
            Some(base) => plan_onto(tree, options, base),
            None => plan(tree, options),
        }
    };
    let plan = made(&mut scanned.tree, &options).map_err(|error| {
        let too_small = matches!(error, PlanError::Geometry(_));
        let failure = Failure::from(error);
        // A size below what any file system needs: say what the contents need.
        let mut fits = || {
            let size = SizeSpec::Auto(Headroom::None);
            let needed = made(&mut scanned.tree, &BuildOptions { size, ..options.clone() }).ok()?;
            Some(size_option(needed.image_bytes()))
        };
        match options.size {
            SizeSpec::Bytes(_) if too_small && failure.exit == Exit::NoSpace => match fits() {
                Some(size) => failure.hint(format!("--size {size} would do; so does --size auto")),
                None => failure,
            },
            _ => failure,
        }
    })?;
    settle_times(&scanned.tree, plan.summary().inode_bytes, &mut scanned.lost);
    target.tell_lost(scanned.lost);
    let writes = !args.target.plan;
    let platform = platform(args, config.as_deref());
    let how = (args.target.threads(), target.sector_bytes()?);
    target.put_on(args.disk.look_at(&platform, epoch, how, &mut scanned.skipped)?);
    target.write(&plan, &scanned.tree, &*scanned.contents, true)?;
    if let (Some(path), Some(config), true) = (&args.config_out, config, writes) {
        std::fs::write(path, config).map_err(|error| {
            let name = escape(path.as_os_str().as_bytes());
            Failure::caused(io_exit(&error), &format!("cannot write {name}"), &error)
        })?;
    }
    Ok(report_skipped(&scanned.skipped))
}

/// Directories that are to be encrypted, with their keys and how.
fn encrypted(args: &BuildArgs) -> Result<Vec<(Vec<u8>, MasterKey, EncryptionPolicy)>> {
    if args.policy.is_given() && args.encrypt.is_empty() {
        return Err(Failure::usage("--modes, --padding and --vectors are for --encrypt")
            .hint("--encrypt DIR=FILE says which directory is encrypted with which key"));
    }
    let one = |text: &OsString| {
        let bytes = text.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=').ok_or_else(|| {
            Failure::usage(format!("--encrypt {}: that is no DIR=FILE", escape(bytes))).hint(
                "--encrypt /home=key encrypts /home of the image with the key in the file key",
            )
        })?;
        let (dir, file) = bytes.split_at(at);
        let (name, key) = keys::read("--encrypt", Path::new(OsStr::from_bytes(&file[1..])))?;
        let policy = args.policy.policy(name.unwrap_or_else(|| key.identifier()))?;
        Ok((dir.to_vec(), key, policy))
    };
    args.encrypt.iter().map(one).collect()
}

/// Returns what it means that a directory cannot be encrypted.
fn encryption(error: EncryptError) -> Failure {
    let exit = match error {
        EncryptError::Key(_) | EncryptError::NameTaken { .. } => Exit::Usage,
        EncryptError::NoDirectory { .. } => Exit::NotFound,
        _ => Exit::Input,
    };
    Failure::caused(exit, "--encrypt", &error)
}

/// Seals the files whose paths are in a file, one on each line.
fn seal_listed(tree: &mut Tree, list: &Path) -> Result<()> {
    let name = escape(list.as_os_str().as_bytes());
    let paths = std::fs::read(list).map_err(|error| {
        Failure::caused(io_exit(&error), &format!("cannot read {name}"), &error)
    })?;
    for path in paths.split(|byte| *byte == b'\n').filter(|path| !path.is_empty()) {
        if !tree.seal(path) {
            let path = escape(path);
            return Err(Failure::usage(format!(
                "--fs-verity: {name}: {path} is no regular file of the image"
            ))
            .hint("paths are those in the image, such as /usr/bin/env, one on each line"));
        }
    }
    Ok(())
}

/// Returns what the root is for: as it was asked for, as the container image says, or this machine.
fn platform(args: &BuildArgs, config: Option<&[u8]>) -> Platform {
    let said = || {
        let config: serde_json::Value = serde_json::from_slice(config?).ok()?;
        config.get("architecture")?.as_str()?.parse().ok()
    };
    args.platform.clone().or_else(said).unwrap_or_else(Platform::host)
}

/// The sources that were given.
fn sources(args: &BuildArgs) -> Result<Sources> {
    let out = escape(args.out.as_bytes());
    if let Some(stray) = &args.stray {
        // As cp has it: the source first.
        let swapped = Path::new(&args.out).is_dir() && !Path::new(stray).is_dir();
        let stray = escape(stray.as_bytes());
        let (stray, out) = if swapped { (out, stray) } else { (stray, out) };
        return Err(Failure::usage(format!(
            "{stray}: what is this? A source is given with --from"
        ))
        .hint(format!("extant build {out} --from {stray}")));
    }
    if args.from.is_empty() {
        return Err(Failure::usage(
            "no source: give a directory, a tar archive or a container image with --from",
        )
        .hint(format!(
            "extant build {out} --from DIR; extant mkfs {out} SIZE makes an empty file system"
        )));
    }
    let mut origins = Vec::new();
    for from in &args.from {
        let origin = Origin::parse(from).map_err(|error| {
            let failure = Failure::new(Exit::Unsupported, error.what);
            let failure = failure.on(escape(from.as_bytes()));
            match error.advice {
                Some(advice) => failure.hint(advice),
                None => Failure { exit: Exit::Usage, ..failure },
            }
        })?;
        if origin == Origin::Stdin && origins.contains(&Origin::Stdin) {
            return Err(Failure::usage("--from -: standard input is one archive, not two"));
        }
        origins.push(origin);
    }
    if origins.contains(&Origin::Stdin) {
        stdio::check_input().map_err(|error| {
            Failure::caused(io_exit(&error), "cannot read standard input", &error)
        })?;
    }
    if origins.contains(&Origin::Stdin) && std::io::stdin().is_terminal() {
        return Err(Failure::usage("--from - reads an archive from a terminal")
            .hint("pipe one in: tar -cf - -C DIR . | extant build OUT --from -"));
    }
    let additions = args.add.iter().map(|text| {
        Addition::parse(text)
            .map_err(|what| Failure::usage(format!("--add {}: {what}", escape(text.as_bytes()))))
    });
    Ok(Sources {
        origins,
        additions: additions.collect::<Result<_>>()?,
        platform: args.platform.clone(),
        as_is: args.as_is,
        unpack_limit: args.unpack_limit,
        registry: RegistryAccess { plain_http: args.plain_http, cache: !args.no_cache },
    })
}

fn scan(args: &BuildArgs, sources: &Sources, target: &Target) -> Result<Layered> {
    let options = ScanOptions {
        threads: NonZeroUsize::new(args.target.threads()).unwrap_or(NonZeroUsize::MIN),
        ignore_unreadable: args.ignore_unreadable,
        one_file_system: args.one_file_system,
        exclude_inode: target.identity(),
        fakeroot: match &args.fakeroot {
            Some(file) => Some(Fakeroot::read(file).map_err(|error| {
                Failure::from(error).hint("fakeroot -s FILE PROGRAM saves one when PROGRAM ends")
            })?),
            None => None,
        },
        cancel: None,
    };
    sources.scan(&options, &target.spool_dir()).map_err(|error| {
        let named = |from: &&OsString| {
            Origin::parse(from).is_ok_and(|origin| error.archive() == Some(&*origin.name()))
        };
        let from = args.from.iter().find(named).or(args.from.first());
        let from = from.map(OsString::as_os_str).unwrap_or_default();
        foreign::no_source(error, from, &escape(args.out.as_bytes()))
    })
}

/// Names what was left out, and makes it count in the exit code.
fn report_skipped(skipped: &Skipped) -> Exit {
    if skipped.count == 0 {
        return Exit::Success;
    }
    for example in &skipped.examples {
        complain(&format!("left out: {example}"));
    }
    let more = skipped.count.saturating_sub(skipped.examples.len() as u64);
    let rest = if more > 0 { format!(" ({more} not named)") } else { String::new() };
    complain(&format!("{} unreadable files or directories were left out{rest}", skipped.count));
    Exit::Partial
}

/// A UUID of version 4.
pub(crate) fn random_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    extant_sync::os_random(&mut bytes)
        .map_err(|error| Failure::caused(Exit::Io, "cannot draw a UUID", &error))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes())
}
