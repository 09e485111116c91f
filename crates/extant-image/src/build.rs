//! From directories, archives and container images to an image in one call.
//!
//! # Place
//!
//! Above everything else in this crate: `source` reads, `transform` changes owners and times, `plan` lays out,
//! `output` keeps the target safe, `write` writes. Programs that need more than this calls those themselves, as
//! the command does.

use std::fmt;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_block::{BlockDevice, OpenError};
use extant_crypt::{MasterKey, Policy};
use extant_sync::{Clock, SystemClock, threads};

use crate::attributes::{fold_case, settle};
use crate::base::{Base, BaseError, BaseImage};
use crate::encrypt::{EncryptError, check_links, encrypt_with, features_of};
use crate::options::MkfsOptions;
use crate::output::{Existing, Output, OutputError, existing, refuse_if_in_use};
use crate::plan::{
    BuildOptions, Headroom, Plan, PlanError, PlanSummary, SizeSpec, plan, plan_onto,
};
use crate::source::dir::ScanOptions;
use crate::source::{
    Addition, ContainerImage, Fakeroot, Layered, Lost, NoContents, Origin, Platform,
    RegistryAccess, Scanned, Skipped, SourceError, Sources, UNMAPPED, container_image,
};
use crate::transform::{IdMap, Owner, Transform, TransformError};
use crate::tree::{Kind, Node, Time, Tree};
use crate::write::{NoProgress, Progress, WriteError, WriteOptions, write_bytes, write_image};

/// A build of one image: the source, and what is to come of it.
///
/// ```
/// use extant_image::Build;
/// # let place = tempfile::tempdir()?;
/// # let (root, image) = (place.path().join("root"), place.path().join("root.img"));
/// # std::fs::create_dir(&root)?;
/// # std::fs::write(root.join("hello"), "hello\n")?;
/// let built = Build::from_dir(&root).free_percent(20).owner(0, 0).label("root").write_to(&image)?;
/// assert_eq!(std::fs::metadata(&image)?.len(), built.summary.size_bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is built yet"]
pub struct Build<'a> {
    sources: Sources,
    mkfs: MkfsOptions,
    size: SizeSpec,
    transform: Transform,
    fs_verity: bool,
    encrypted: Vec<(Vec<u8>, MasterKey, Policy)>,
    folded: Vec<Vec<u8>>,
    base: Option<&'a dyn BaseImage>,
    threads: usize,
    ignore_unreadable: bool,
    one_file_system: bool,
    fakeroot: Option<Fakeroot>,
    overwrite: bool,
    take_containers: bool,
    progress: &'a dyn Progress,
    cancel: Option<&'a AtomicBool>,
}

/// Result of a build.
#[derive(Debug)]
pub struct Built {
    /// Sizes and counts of the image.
    pub summary: PlanSummary,
    /// The UUID of the file system.
    pub uuid: [u8; 16],
    /// Files left out because [`Build::ignore_unreadable`] allowed it.
    pub skipped: Skipped,
    /// Attributes of the sources that the image does not have.
    pub lost: Lost,
    /// The configuration of the container image among the sources, JSON as stored.
    pub image_config: Option<Vec<u8>>,
}

/// Why there is no image. The target is as it was, unless it is a block device that was being written.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The source cannot be read.
    Source(SourceError),
    /// The source is a container image with its layers, and not a root file system.
    Container(ContainerImage),
    /// An owner has no place in the maps.
    Transform(TransformError),
    /// A directory that is to fold case is not in the sources.
    NoDirectory {
        /// As given.
        path: String,
    },
    /// A directory cannot be encrypted.
    Encrypt(EncryptError),
    /// The base cannot be read.
    Base(BaseError),
    /// The options contradict each other, or the contents do not fit.
    Plan(PlanError),
    /// The target cannot be used, or not be finished.
    Output(OutputError),
    /// The image could not be written. [`WriteError::Interrupted`] is what [`Build::cancel`] asks for.
    Write(WriteError),
    /// A device is smaller than the image.
    TooSmall {
        /// Bytes of the device.
        device_bytes: u64,
        /// Bytes of the image.
        image_bytes: u64,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => error.fmt(f),
            Self::Container(layout) => {
                write!(f, "the source is {}: give it to Build::from_source", layout.name())
            }
            Self::Transform(error) => error.fmt(f),
            Self::NoDirectory { path } => {
                write!(f, "there is no directory \"{path}\" in the sources")
            }
            Self::Encrypt(error) => error.fmt(f),
            Self::Base(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
            Self::Output(error) => error.fmt(f),
            Self::Write(error) => error.fmt(f),
            Self::TooSmall { device_bytes, image_bytes } => {
                write!(f, "the device has {device_bytes} bytes and the image needs {image_bytes}")
            }
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Source(error) => error.source(),
            Self::Transform(error) => error.source(),
            Self::Encrypt(error) => error.source(),
            Self::Base(error) => error.source(),
            Self::Plan(error) => error.source(),
            Self::Output(error) => error.source(),
            Self::Write(error) => error.source(),
            Self::Container(_) | Self::NoDirectory { .. } | Self::TooSmall { .. } => None,
        }
    }
}

macro_rules! from_errors {
    ($($variant:ident($error:ty)),*) => {$(
        impl From<$error> for BuildError {
            fn from(error: $error) -> BuildError {
                BuildError::$variant(error)
            }
        }
    )*};
}

from_errors!(
    Source(SourceError),
    Transform(TransformError),
    Encrypt(EncryptError),
    Base(BaseError),
    Plan(PlanError),
    Output(OutputError),
    Write(WriteError)
);

impl From<OpenError> for BuildError {
    fn from(error: OpenError) -> BuildError {
        BuildError::Output(OutputError::Open(error))
    }
}

impl<'a> Build<'a> {
    fn new(sources: Sources) -> Build<'a> {
        Build {
            sources,
            mkfs: MkfsOptions::default(),
            size: SizeSpec::Auto(Headroom::None),
            transform: Transform { rootless: true, ..Transform::default() },
            fs_verity: false,
            encrypted: Vec::new(),
            folded: Vec::new(),
            base: None,
            threads: threads::available(),
            ignore_unreadable: false,
            one_file_system: false,
            fakeroot: None,
            overwrite: false,
            take_containers: false,
            progress: &NoProgress,
            cancel: None,
        }
    }

    /// Starts from the tree below the directory `path` of the host.
    pub fn from_dir(path: impl Into<PathBuf>) -> Build<'a> {
        Build::new(Sources::one(Origin::Dir(path.into())))
    }

    /// Starts from the tar archive in the file `path` of the host: plain, gzip or zstd, by its contents.
    pub fn from_tar(path: impl Into<PathBuf>) -> Build<'a> {
        Build::new(Sources::one(Origin::Tar(path.into())))
    }

    /// Starts from any source, for example a container image: `Origin::parse("oci:DIR:TAG".as_ref())`.
    pub fn from_source(origin: Origin) -> Build<'a> {
        Build::new(Sources::one(origin))
    }

    /// Adds a layer: its files take the place of those below with their names, and one that is called `.wh.NAME` takes
    /// `NAME` away, as in the layers of a container image.
    pub fn layer(mut self, origin: Origin) -> Build<'a> {
        self.sources.origins.push(origin);
        self
    }

    /// Puts a file or directory of the host into the image, over all layers.
    pub fn add_from_host(mut self, addition: Addition) -> Build<'a> {
        self.sources.additions.push(addition);
        self
    }

    /// Sets how registries are asked, where a source is in one (`docker://`; with the feature `registry`).
    pub fn registry(mut self, access: RegistryAccess) -> Build<'a> {
        self.sources.registry = access;
        self
    }

    /// Sets what a container image is to run on, where there are several; this machine unless set.
    pub fn platform(mut self, platform: Platform) -> Build<'a> {
        self.sources.platform = Some(platform);
        self
    }

    /// Starts from nothing: an empty file system, as mkfs makes it. [`size`](Self::size) says how large; the root's owner,
    /// permissions and times are those of [`MkfsOptions`] and now.
    ///
    /// ```
    /// let device = extant_block::MemoryDevice::new(16 << 20);
    /// let built = extant_image::Build::empty().size(16 << 20).write_to_device(&device, true)?;
    /// assert_eq!((built.summary.size_bytes, built.summary.files), (16 << 20, 2));
    /// # Ok::<(), extant_image::BuildError>(())
    /// ```
    pub fn empty() -> Build<'a> {
        Build::new(Sources::default())
    }

    /// Sets everything that mkfs decides: profile, features, block size, journal, UUID. [`label`](Self::label) and
    /// [`reproducible`](Self::reproducible) change single fields of it, so they come after it.
    pub fn mkfs(mut self, options: MkfsOptions) -> Build<'a> {
        self.mkfs = options;
        self
    }

    /// Sets the volume label: at most 16 bytes.
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Build<'a> {
        self.mkfs.label = label.as_ref().to_vec();
        self
    }

    /// Sets the size of the image in bytes, rounded down to whole blocks. Unless one of the three sizes is set, the
    /// image is as small as its contents allow.
    pub fn size(mut self, bytes: u64) -> Build<'a> {
        self.size = SizeSpec::Bytes(bytes);
        self
    }

    /// Sets the free space of an image of automatic size, in bytes.
    pub fn free_bytes(mut self, bytes: u64) -> Build<'a> {
        self.size = SizeSpec::Auto(Headroom::Bytes(bytes));
        self
    }

    /// Sets the free space of an image of automatic size, in percent of what the contents take.
    pub fn free_percent(mut self, percent: u32) -> Build<'a> {
        self.size = SizeSpec::Auto(Headroom::Percent(percent.saturating_mul(100)));
        self
    }

    /// Gives every file this owner, instead of its owner in the source.
    pub fn owner(mut self, uid: u32, gid: u32) -> Build<'a> {
        self.transform.owner = Some(Owner { uid, gid });
        self
    }

    /// Maps the owners of the source: each id has to be in one of the ranges.
    pub fn id_maps(mut self, uids: IdMap, gids: IdMap) -> Build<'a> {
        self.transform.uid_map = uids;
        self.transform.gid_map = gids;
        self
    }

    /// Makes equal bytes of equal sources: later times become `epoch` (seconds since 1970), which is also when the
    /// image says it was made, and its UUID follows from the list of files.
    pub fn reproducible(mut self, epoch: i64) -> Build<'a> {
        self.transform.epoch = Some(epoch);
        self.mkfs.created = Some(epoch);
        self
    }

    /// Seals every regular file by fs-verity: its contents can never change, and every read is checked. The file system
    /// gets the feature `verity`. Digests are those of `fsverity digest`, with blocks of 4096 bytes or of the file system.
    pub fn fs_verity(mut self) -> Build<'a> {
        self.fs_verity = true;
        self
    }

    /// Lets the directory `path` of the image and all directories below it find names whatever their case; two names that
    /// are one then end the build. The file system gets the feature `casefold`.
    pub fn fold_case(mut self, path: impl AsRef<[u8]>) -> Build<'a> {
        self.folded.push(path.as_ref().to_vec());
        self
    }

    /// Encrypts the directory `path` of the image and everything below it with `key` (fscrypt, policy version 2,
    /// AES-256-XTS and CTS). The file system gets the feature `encrypt`. What a [reproducible](Self::reproducible) build
    /// gives away, [`encrypt`](crate::encrypt) says.
    pub fn encrypt(self, path: impl AsRef<[u8]>, key: MasterKey) -> Build<'a> {
        let policy = Policy::new(key.identifier());
        self.encrypt_with(path, key, policy)
    }

    /// Encrypts the directory `path` as [`encrypt`](Self::encrypt) does, by any policy that Linux knows and extant
    /// writes; its name of the key is the key's [identifier](MasterKey::identifier), or any descriptor. A policy with
    /// inode numbers in its vectors gives the file system the feature `stable_inodes`, too: no inode of such an image can get
    /// another number, nor the image another UUID.
    pub fn encrypt_with(
        mut self,
        path: impl AsRef<[u8]>,
        key: MasterKey,
        policy: Policy,
    ) -> Build<'a> {
        self.encrypted.push((path.as_ref().to_vec(), key, policy));
        self
    }

    /// Lays the image out over an older one: what did not change keeps its blocks, so that few blocks differ. See
    /// [`plan_onto`](crate::plan::plan_onto).
    pub fn base(mut self, image: &'a dyn BaseImage) -> Build<'a> {
        self.base = Some(image);
        self
    }

    /// Sets how many threads read and write; one for each processor unless set. The image does not depend on it.
    pub fn threads(mut self, threads: usize) -> Build<'a> {
        self.threads = threads.clamp(1, 512);
        self
    }

    /// Sets whether what cannot be read is left out and counted, instead of ending the build.
    pub fn ignore_unreadable(mut self, ignore: bool) -> Build<'a> {
        self.ignore_unreadable = ignore;
        self
    }

    /// Sets whether other file systems that are mounted inside the source are left out.
    pub fn one_file_system(mut self, stay: bool) -> Build<'a> {
        self.one_file_system = stay;
        self
    }

    /// Sets owners, permissions and devices to those that fakeroot showed: the state that `fakeroot -s` saved. Files
    /// that are not in it belong to root.
    pub fn fakeroot(mut self, state: Fakeroot) -> Build<'a> {
        self.fakeroot = Some(state);
        self
    }

    /// Sets whether a target that seems to hold data is overwritten, instead of ending the build.
    pub fn overwrite(mut self, overwrite: bool) -> Build<'a> {
        self.overwrite = overwrite;
        self
    }

    /// Sets whether a container image with its layers is taken as a tree like any other, instead of ending the
    /// build.
    pub fn take_containers(mut self, take: bool) -> Build<'a> {
        self.take_containers = take;
        self.sources.as_is = take;
        self
    }

    /// Sets the observer of the bytes written.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Build<'a> {
        self.progress = progress;
        self
    }

    /// Sets a flag that cancels the build, which then ends with [`WriteError::Interrupted`]; an
    /// incomplete file is removed. It is looked at while a directory or an archive is read that is
    /// the only source, before the image is planned, and while it is written.
    pub fn cancel(mut self, cancel: &'a AtomicBool) -> Build<'a> {
        self.cancel = Some(cancel);
        self
    }

    /// Makes the image in the file or on the block device `path` of the host.
    ///
    /// A file appears under its name when the image is complete and durable, and replaces one that was there; whatever
    /// goes wrong before leaves what was there. A block device is written in place.
    ///
    /// # Errors
    ///
    /// All of [`BuildError`]; [`OutputError::InUse`] when the target holds a file system, a partition table or the
    /// like and [`overwrite`](Self::overwrite) is not set.
    ///
    /// # Cost
    ///
    /// One pass over the source, one write of what the image holds; memory for the list of files.
    pub fn write_to(self, path: impl AsRef<Path>) -> Result<Built, BuildError> {
        let path = path.as_ref();
        let kind = existing(path)?;
        if kind != Existing::Nothing && !self.overwrite {
            refuse_if_in_use(path)?;
        }
        let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
        let own = metadata.map(|found| (found.dev(), found.ino()));
        let (Layered { mut scanned, config }, plan) = self.prepare(own, path)?;
        let output = match kind {
            Existing::Device => Output::in_place(path, plan.image_bytes())?,
            _ => Output::create(path, plan.image_bytes())?,
        };
        let zeroed = output.is_zeroed();
        self.fill(&plan, &mut scanned, output.device(), zeroed)?;
        output.commit()?;
        Ok(Built::of(&plan, scanned, config))
    }

    /// Makes the image on `device`, for example in memory, and makes it durable. `is_zeroed` says that every byte of
    /// the device reads as zero: fresh memory, a new sparse file.
    ///
    /// # Errors
    ///
    /// All of [`BuildError`]. After [`BuildError::Write`] the device holds no file system, and maybe not what it held
    /// before.
    pub fn write_to_device(
        self,
        device: &dyn BlockDevice,
        is_zeroed: bool,
    ) -> Result<Built, BuildError> {
        let (Layered { mut scanned, config }, plan) =
            self.prepare(None, &std::env::temp_dir().join("image"))?;
        let (device_bytes, image_bytes) = (device.size_bytes(), plan.image_bytes());
        if device_bytes < image_bytes {
            return Err(BuildError::TooSmall { device_bytes, image_bytes });
        }
        self.fill(&plan, &mut scanned, device, is_zeroed)?;
        Ok(Built::of(&plan, scanned, config))
    }

    /// Computes what [`write_to`](Self::write_to) would make, and writes nothing.
    ///
    /// # Errors
    ///
    /// [`BuildError`] without its output and write errors.
    pub fn plan(&self) -> Result<PlanSummary, BuildError> {
        Ok(self.prepare(None, &std::env::temp_dir().join("image"))?.1.summary())
    }

    fn prepare(
        &self,
        own: Option<(u64, u64)>,
        target: &Path,
    ) -> Result<(Layered, Plan), BuildError> {
        let mut layered = self.scan(own, target)?;
        let tree = &mut layered.scanned.tree;
        if !self.take_containers
            && let Some(layout) = container_image(tree)
        {
            return Err(BuildError::Container(layout));
        }
        self.transform.apply(tree)?;
        let mut mkfs = self.mkfs.clone();
        if self.fs_verity {
            tree.seal_all();
            mkfs = mkfs.with_features("verity").expect("the name of a feature");
        }
        for path in &self.folded {
            if !fold_case(tree, path) {
                let path = path.escape_ascii().to_string();
                return Err(BuildError::NoDirectory { path });
            }
            mkfs = mkfs.with_features("casefold").expect("the name of a feature");
        }
        for (path, key, policy) in &self.encrypted {
            encrypt_with(tree, path, key, policy)?;
            mkfs = mkfs.with_features(features_of(policy)).expect("names of features");
        }
        check_links(tree)?;
        settle(tree, &mkfs.requested_features(), &mut layered.scanned.lost);
        if self.transform.owner.is_some() {
            layered.scanned.lost.forget(UNMAPPED);
        }
        let options =
            BuildOptions { mkfs, size: self.size, reproducible: self.transform.epoch.is_some() };
        let plan = match self.base {
            Some(image) => plan_onto(tree, &options, &Arc::new(Base::read(image, tree)?))?,
            None => plan(tree, &options)?,
        };
        Ok((layered, plan))
    }

    fn scan(&self, own: Option<(u64, u64)>, target: &Path) -> Result<Layered, BuildError> {
        if self.sources.origins.is_empty() && self.sources.additions.is_empty() {
            let sec = self.mkfs.created.unwrap_or_else(|| SystemClock.now().0);
            let now = Time { sec, nsec: 0 };
            let mut root = Node::new(Kind::Dir);
            root.mode = 0o755;
            (root.mtime, root.atime, root.ctime) = (now, now, now);
            let skipped = Skipped::default();
            let contents = Box::new(NoContents);
            let lost = Lost::default();
            let scanned = Scanned { tree: Tree::empty(root), contents, skipped, lost };
            return Ok(Layered { scanned, config: None });
        }
        let options = ScanOptions {
            threads: NonZeroUsize::new(self.threads).unwrap_or(NonZeroUsize::MIN),
            ignore_unreadable: self.ignore_unreadable,
            one_file_system: self.one_file_system,
            exclude_inode: own,
            fakeroot: self.fakeroot.clone(),
            cancel: self.cancel,
        };
        // Packed data is unpacked beside the image, where there must be space for it.
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let scanned = self.sources.scan(&options, parent.unwrap_or(Path::new(".")));
        if self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Err(BuildError::Write(WriteError::Interrupted));
        }
        Ok(scanned?)
    }

    fn fill(
        &self,
        plan: &Plan,
        scanned: &mut Scanned,
        device: &dyn BlockDevice,
        target_is_zeroed: bool,
    ) -> Result<(), BuildError> {
        let never = AtomicBool::new(false);
        let options = WriteOptions {
            threads: self.threads,
            target_is_zeroed,
            progress: self.progress,
            cancel: self.cancel.unwrap_or(&never),
        };
        self.progress.expect(write_bytes(plan));
        let tree: &Tree = &scanned.tree;
        write_image(plan, tree, &*scanned.contents, device, &options)?;
        Ok(())
    }
}

impl Built {
    fn of(plan: &Plan, scanned: Scanned, image_config: Option<Vec<u8>>) -> Built {
        let Scanned { skipped, lost, .. } = scanned;
        Built { summary: plan.summary(), uuid: plan.ids().uuid, skipped, lost, image_config }
    }
}

#[cfg(test)]
mod tests;
