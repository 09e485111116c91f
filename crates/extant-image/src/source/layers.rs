//! Several sources, one above the other: directories, archives, the layers of container images, and what is added.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use extant_oci::{Choice, DirStore, Image, Kind as Fault, OciError, Platform, Reference, Store};
use extant_oci::{open_docker_archive, open_layout};

use super::container::{ContainerImage, container_image};
use super::dir::owners::UNMAPPED;
use super::dir::{ScanOptions, scan_dir};
use super::file::scan_file;
use super::origin::{Addition, Origin};
use super::store::TreeStore;
use super::tar::lanes::{LANES_MAX, LayerFault, LayerSource, add_layers};
use super::tar::{
    Assembler, Attributes, Member, SharedSpool, TarInput, TarOptions, What, add_archive,
    holds_container, scan_tar,
};
use super::{ContentReader, Contents, Lost, Scanned, Skipped, SourceError};
use crate::tree::{Kind, NodeId, Tree};

/// Most sources, layers and additions together.
pub const PARTS_MAX: usize = 4096;

/// Ratio of the unpacked to the packed size that a layer may have, beyond a gigabyte, unless
/// [`Sources::unpack_limit`] is set.
const RATIO_MAX: u64 = 200;

/// Sources of one image.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// From the lowest to the topmost. Of several, the upper ones are layers: names that begin with `.wh.` take away what
    /// lower ones have.
    pub origins: Vec<Origin>,
    /// Files put over the layers, in order. Existing directories keep their attributes.
    pub additions: Vec<Addition>,
    /// Which of several images for different machines is meant; this machine's unless set.
    pub platform: Option<Platform>,
    /// Takes the files of a container image as they are, layers packed, where an [`Origin::Path`] is one.
    pub as_is: bool,
    /// Most bytes that one layer may unpack to. Unless set: 1 GiB, or 200 times the packed size if that is more.
    pub unpack_limit: Option<u64>,
    /// How registries are asked.
    pub registry: RegistryAccess,
}

/// How container images are fetched from registries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegistryAccess {
    /// Whether registries on other hosts may be asked without encryption.
    pub plain_http: bool,
    /// Whether what is fetched is kept in the user's cache, and taken from there.
    pub cache: bool,
}

impl Default for RegistryAccess {
    fn default() -> RegistryAccess {
        RegistryAccess { plain_http: false, cache: true }
    }
}

/// Result of [`Sources::scan`].
pub struct Layered {
    /// The tree and its contents.
    pub scanned: Scanned,
    /// The configuration of the topmost container image among the sources, if there is one.
    pub config: Option<Vec<u8>>,
}

/// A source, looked at.
enum Opened {
    /// A tree of its own.
    Tree(Box<Scanned>),
    /// An archive that is a layer.
    Archive(TarInput),
    /// A container image.
    Image(Box<dyn Store>, Image),
}

impl Sources {
    /// One source and nothing else.
    pub fn one(origin: Origin) -> Sources {
        Sources { origins: vec![origin], ..Sources::default() }
    }

    /// Reads all sources.
    ///
    /// # Errors
    ///
    /// Those of [`scan_dir`] and [`scan_tar`]; [`SourceError::Image`] when a container image is damaged, or which one is
    /// meant is not clear.
    ///
    /// # Cost
    ///
    /// One pass over each source. Layers of container images and packed archives are unpacked into one unnamed temporary
    /// file in `spool_dir`.
    pub fn scan(
        &self,
        options: &ScanOptions<'_>,
        spool_dir: &Path,
    ) -> Result<Layered, SourceError> {
        let is_lone = self.origins.len() == 1 && self.additions.is_empty();
        let spool = TarOptions { spool_dir: spool_dir.to_owned(), cancel: options.cancel };
        let mut merge = Merge::new(spool_dir);
        for origin in &self.origins {
            let first = merge.is_empty();
            match self.open(origin, options, &spool, is_lone)? {
                Opened::Tree(scanned) if is_lone => {
                    check_faked(options)?;
                    return Ok(Layered { scanned: *scanned, config: None });
                }
                Opened::Tree(scanned) => merge.tree(*scanned, &origin.name(), !first)?,
                Opened::Archive(input) => merge.archive(&input, !first)?,
                Opened::Image(store, image) => {
                    merge.image(&*store, image, self.unpack_limit, options.threads.get())?;
                }
            }
        }
        // Those have the owners that were given for them.
        let added = ScanOptions { fakeroot: None, ..options.clone() };
        for addition in &self.additions {
            merge.addition(addition, &added)?;
        }
        check_faked(options)?;
        merge.finish()
    }

    fn open(
        &self,
        origin: &Origin,
        options: &ScanOptions<'_>,
        spool: &TarOptions<'_>,
        is_lone: bool,
    ) -> Result<Opened, SourceError> {
        let choice = |choice: &Choice| Choice { platform: self.platform.clone(), ..choice.clone() };
        let tar = |path: &PathBuf| TarInput::File(path.clone());
        Ok(match origin {
            Origin::Stdin if is_lone => {
                self.perhaps_image(scan_tar(TarInput::Stdin, spool)?, origin)?
            }
            Origin::Stdin => Opened::Archive(TarInput::Stdin),
            Origin::Dir(path) => Opened::Tree(Box::new(scan_dir(path, options)?)),
            Origin::Tar(path) if is_lone => Opened::Tree(Box::new(scan_tar(tar(path), spool)?)),
            Origin::Tar(path) => Opened::Archive(tar(path)),
            Origin::Path(path) if path.is_dir() => {
                let scanned = scan_dir(path, options)?;
                match container_image(&scanned.tree).filter(|_| !self.as_is) {
                    None => Opened::Tree(Box::new(scanned)),
                    Some(layout) => {
                        image(Box::new(DirStore::new(path)), layout, &choice(&Choice::default()))?
                    }
                }
            }
            Origin::Path(path) if is_lone || (!self.as_is && holds_container(path)) => {
                self.perhaps_image(scan_tar(tar(path), spool)?, origin)?
            }
            Origin::Path(path) => Opened::Archive(tar(path)),
            Origin::OciDir(path, chosen) => {
                if !path.is_dir() {
                    return Err(not_a_dir(path));
                }
                image(Box::new(DirStore::new(path)), ContainerImage::OciLayout, &choice(chosen))?
            }
            Origin::OciArchive(path, chosen) | Origin::DockerArchive(path, chosen) => {
                let layout = match origin {
                    Origin::OciArchive(..) => ContainerImage::OciLayout,
                    _ => ContainerImage::DockerArchive,
                };
                // The files unpacked before are read as well.
                let store: Box<dyn Store> = match path.is_dir() {
                    true => Box::new(DirStore::new(path)),
                    false => Box::new(TreeStore::new(scan_tar(tar(path), spool)?, &origin.name())),
                };
                image(store, layout, &choice(chosen))?
            }
            Origin::Registry(reference) => {
                let store = registry(reference, self.registry)?;
                image(store, ContainerImage::OciLayout, &choice(&Choice::default()))?
            }
        })
    }

    /// A container image if an archive holds one, else the archive's tree.
    fn perhaps_image(&self, scanned: Scanned, origin: &Origin) -> Result<Opened, SourceError> {
        let Some(layout) = container_image(&scanned.tree).filter(|_| !self.as_is) else {
            return Ok(Opened::Tree(Box::new(scanned)));
        };
        let choice = Choice { platform: self.platform.clone(), ..Choice::default() };
        image(Box::new(TreeStore::new(scanned, &origin.name())), layout, &choice)
    }
}

/// An image in a registry, as a layout.
#[cfg(feature = "registry")]
fn registry(reference: &Reference, access: RegistryAccess) -> Result<Box<dyn Store>, OciError> {
    let mut settings = extant_registry::Settings::default();
    settings.plain_http = access.plain_http;
    if !access.cache {
        settings.cache = None;
    }
    Ok(Box::new(extant_registry::RegistryStore::open(reference, settings)?))
}

/// As above, where nothing speaks with registries.
#[cfg(not(feature = "registry"))]
fn registry(reference: &Reference, _access: RegistryAccess) -> Result<Box<dyn Store>, OciError> {
    let place = format!("docker://{reference}");
    let what = "this program was built without registries (the feature \"registry\")".into();
    let advice = Some(format!("skopeo copy {place} oci:DIR fetches it; then --from oci:DIR"));
    Err(OciError { kind: Fault::Unsupported, place, what, advice, cause: None })
}

fn not_a_dir(path: &Path) -> SourceError {
    let exists = path.exists();
    let what = if exists { "it is a file" } else { "there is no such directory" };
    let place = path.to_string_lossy().into_owned();
    let advice = exists.then(|| format!("oci-archive:{place} reads a layout in an archive"));
    let kind = if exists { Fault::Unsupported } else { Fault::Missing };
    SourceError::Image(OciError { kind, place, what: what.into(), advice, cause: None })
}

fn image(
    store: Box<dyn Store>,
    layout: ContainerImage,
    choice: &Choice,
) -> Result<Opened, SourceError> {
    let image = match layout {
        ContainerImage::OciLayout => open_layout(&*store, choice)?,
        ContainerImage::DockerArchive => open_docker_archive(&*store, choice)?,
    };
    Ok(Opened::Image(store, image))
}

/// Sources being put together.
struct Merge {
    tree: Assembler,
    /// Parts of the contents; the first is the spool.
    parts: Vec<Option<Part>>,
    /// Made when it is needed.
    spool: Option<SharedSpool>,
    spool_dir: PathBuf,
    skipped: Skipped,
    lost: Lost,
    config: Option<Vec<u8>>,
    layers: usize,
}

impl Merge {
    fn new(spool_dir: &Path) -> Merge {
        Merge {
            tree: Assembler::of_layers(),
            parts: vec![None],
            spool: None,
            spool_dir: spool_dir.to_owned(),
            skipped: Skipped::default(),
            lost: Lost::default(),
            config: None,
            layers: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.layers == 0
    }

    fn count(&mut self) -> Result<(), SourceError> {
        self.layers += 1;
        match self.layers {
            0..=PARTS_MAX => Ok(()),
            _ => Err(crate::tree::TreeError::TooLarge { what: "layers" }.into()),
        }
    }

    fn next_part(&self) -> u16 {
        // Fewer than PARTS_MAX.
        self.parts.len() as u16
    }

    /// Puts a tree of its own on top.
    fn tree(&mut self, scanned: Scanned, name: &str, whiteouts: bool) -> Result<(), SourceError> {
        self.count()?;
        let part = self.next_part();
        self.tree.begin_layer(name, part, whiteouts)?;
        graft(&mut self.tree, &scanned.tree, None, b"")?;
        self.keep(scanned);
        Ok(())
    }

    fn keep(&mut self, scanned: Scanned) {
        let Scanned { tree, contents, skipped, lost } = scanned;
        self.lost.merge(lost);
        self.parts.push(Some(Part { contents, tree: Some(tree) }));
        self.skipped.count += skipped.count;
        self.skipped.examples.extend(skipped.examples);
    }

    fn archive(&mut self, input: &TarInput, whiteouts: bool) -> Result<(), SourceError> {
        self.count()?;
        let own = self.next_part();
        let spool = spool(&mut self.spool, &self.spool_dir)?;
        let contents = add_archive(&mut self.tree, input, spool, (own, 0), whiteouts)?;
        if let Some(contents) = contents {
            self.parts.push(Some(Part { contents, tree: None }));
        }
        Ok(())
    }

    fn image(
        &mut self,
        store: &dyn Store,
        image: Image,
        limit: Option<u64>,
        threads: usize,
    ) -> Result<(), SourceError> {
        let mut layers = Vec::new();
        for layer in &image.layers {
            self.count()?;
            layers.push(LayerSource {
                name: format!("{}, layer {}", store.name(), layer.name),
                diff_id: layer.diff_id.clone(),
                limit: limit.unwrap_or_else(|| layer.size.saturating_mul(RATIO_MAX).max(1 << 30)),
                open: Box::new(move || Ok(Box::new(layer.open(store)?))),
            });
        }
        let lanes = threads.clamp(1, LANES_MAX).min(layers.len());
        let spools = (0..lanes).map(|_| SharedSpool::new(&self.spool_dir));
        let mut spools = spools.collect::<Result<Vec<_>, _>>()?;
        let first = self.next_part();
        let added = add_layers(&mut self.tree, &layers, &mut spools, first);
        added.map_err(|(at, fault)| match (fault, image.layers.get(at)) {
            (LayerFault::Stream(cause), Some(layer)) => layer_fault(store, layer, cause).into(),
            (LayerFault::Stream(cause), None) => {
                SourceError::io("read", store.name().as_bytes(), cause)
            }
            (LayerFault::Source(error), _) => error,
        })?;
        for spool in spools {
            self.parts.push(Some(Part { contents: spool.into_contents(), tree: None }));
        }
        drop(layers);
        self.config = Some(image.config);
        Ok(())
    }

    fn addition(
        &mut self,
        addition: &Addition,
        options: &ScanOptions<'_>,
    ) -> Result<(), SourceError> {
        self.count()?;
        let host = addition.host.as_os_str().as_bytes();
        let is_dir = addition.host.is_dir();
        let path = addition.path.strip_prefix(b"/").unwrap_or(&addition.path);
        let (mut scanned, at) = if is_dir {
            (scan_dir(&addition.host, options)?, path.to_vec())
        } else {
            let cut = path.iter().rposition(|&b| b == b'/');
            let (dir, name) = cut.map_or((&[][..], path), |at| path.split_at(at + 1));
            (scan_file(&addition.host, name)?, dir.to_vec())
        };
        if is_dir && addition.mode.is_some() {
            let cause = std::io::Error::other("it is a directory, and a mode is for one file");
            return Err(SourceError::io("add", host, cause));
        }
        scanned.tree.for_each_node_mut(|node| {
            (node.uid, node.gid) = (addition.owner.uid, addition.owner.gid);
            if let (Some(mode), Kind::File) = (addition.mode, node.kind) {
                node.mode = mode;
            }
        });
        scanned.lost.forget(UNMAPPED);
        let name = addition.host.to_string_lossy();
        self.tree.begin_layer(&name, self.next_part(), false)?;
        self.tree.keep_dirs();
        graft(&mut self.tree, &scanned.tree, Some((addition, is_dir)), &at)?;
        self.keep(scanned);
        Ok(())
    }

    fn finish(mut self) -> Result<Layered, SourceError> {
        let (tree, lost) = self.tree.finish()?;
        self.lost.merge(lost);
        if let (Some(first), Some(spool)) = (self.parts.first_mut(), self.spool) {
            *first = Some(Part { contents: spool.into_contents(), tree: None });
        }
        let parts = self.parts;
        let contents = Box::new(Parts { parts });
        self.skipped.examples.sort();
        self.skipped.examples.truncate(super::EXAMPLES_MAX);
        let scanned = Scanned { tree, contents, skipped: self.skipped, lost: self.lost };
        Ok(Layered { scanned, config: self.config })
    }
}

/// Checks that what fakeroot saved was about one of the sources.
fn check_faked(options: &ScanOptions<'_>) -> Result<(), SourceError> {
    options.fakeroot.as_ref().map_or(Ok(()), |fakeroot| fakeroot.check())
}

/// The temporary file for what is unpacked.
fn spool<'s>(
    spool: &'s mut Option<SharedSpool>,
    dir: &Path,
) -> Result<&'s mut SharedSpool, SourceError> {
    Ok(match spool {
        Some(spool) => spool,
        None => spool.insert(SharedSpool::new(dir)?),
    })
}

/// Returns what is wrong with the bytes of a layer.
fn layer_fault(store: &dyn Store, layer: &extant_oci::Layer, cause: std::io::Error) -> OciError {
    use std::io::ErrorKind as Io;
    let cause = match OciError::inside(cause) {
        Ok(error) => return error,
        Err(cause) => cause,
    };
    let place = store.name().to_owned();
    let name = &layer.name;
    // Errors of a decompressor have no errno.
    let is_damage = cause.raw_os_error().is_none();
    match cause.kind() {
        Io::FileTooLarge if is_damage => OciError {
            kind: Fault::Damaged,
            place,
            what: format!("layer {name}, {} bytes: {cause}", layer.size),
            advice: Some("if that is meant, --unpack-limit SIZE allows more".into()),
            cause: None,
        },
        _ if is_damage => OciError {
            kind: Fault::Damaged,
            place,
            what: format!("layer {name} is damaged: {cause}"),
            advice: Some(OciError::fetch_again(store.name()).into()),
            cause: None,
        },
        _ => OciError {
            kind: Fault::Io,
            place,
            what: format!("cannot read layer {name}"),
            advice: None,
            cause: Some(cause),
        },
    }
}

/// Puts all of `from` below the directory `at` of `tree`.
fn graft(
    tree: &mut Assembler,
    from: &Tree,
    addition: Option<(&Addition, bool)>,
    at: &[u8],
) -> Result<(), SourceError> {
    let place = |path: &[u8]| -> Vec<u8> {
        let mut name = b"./".to_vec();
        name.extend_from_slice(at);
        name.push(b'/');
        name.extend_from_slice(path);
        name
    };
    let mut add = |member: Member, path: &[u8]| {
        let (name, is_directory) = (member.name.clone(), is_directory(&member));
        tree.add(member).map_err(|error| {
            let Some((addition, is_dir)) = addition else { return error };
            let host = match is_dir {
                true if path.is_empty() => addition.host.clone(),
                true => addition.host.join(OsStr::from_bytes(path)),
                false => addition.host.clone(),
            };
            // Of a file, what is above it comes with it.
            let is_above = is_directory && !is_dir;
            let name = if is_above { &addition.path } else { &name };
            in_the_way(tree, error, &host.to_string_lossy(), (name, is_directory && is_dir))
        })
    };
    add(member(from, NodeId::ROOT, place(b"")), b"")?;
    for (dir, entries) in from.dirs() {
        let mut path = from.path(dir);
        if !path.is_empty() {
            path.push(b'/');
        }
        let dir_len = path.len();
        for entry in entries {
            path.truncate(dir_len);
            path.extend_from_slice(from.name(entry));
            let node = from.node(entry.node);
            let first = from.entries().get(node.first_entry as usize);
            let is_first = first
                .is_some_and(|first| first.parent == dir && from.name(first) == from.name(entry));
            let name = place(&path);
            if is_first || node.kind == Kind::Dir {
                add(member(from, entry.node, name), &path)?;
            } else {
                let target = place(&from.path(entry.node));
                let what = What::HardLink { target };
                add(Member { offset: 0, name, mtime: node.mtime, what }, &path)?;
            }
        }
    }
    Ok(())
}

fn is_directory(member: &Member) -> bool {
    matches!(&member.what, What::File(attributes) if attributes.kind == Kind::Dir)
}

/// Says of what cannot be added what there is in its place, and how to have both.
fn in_the_way(
    tree: &Assembler,
    error: SourceError,
    host: &str,
    (name, is_dir): (&[u8], bool),
) -> SourceError {
    let SourceError::Archive { what, .. } = error else { return error };
    let parts = name.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
    let path: Vec<u8> = parts.flat_map(|part| [b"/", part].concat()).collect();
    let advice = "name another place in the image, or leave that out of the sources";
    let what = match (is_dir, tree.kind_at(&path)) {
        (true, Some(kind)) if kind != Kind::Dir => {
            format!("the first is a directory, and what the sources have there is none; {advice}")
        }
        (false, Some(Kind::Dir)) => {
            format!("the first is no directory, and what the sources have there is one; {advice}")
        }
        _ => match above(tree, &path) {
            Some(file) => {
                format!(
                    "the sources have \"{}\", which is no directory; {advice}",
                    file.escape_ascii()
                )
            }
            // What it says begins with the name in the form that archives have.
            None => what.split_once("\": ").map_or(&*what, |(_, rest)| rest).to_owned(),
        },
    };
    let host = host.escape_default().to_string();
    SourceError::Addition { host, path: path.escape_ascii().to_string(), what }
}

/// What lies on the way to `path` and is no directory.
fn above<'p>(tree: &Assembler, path: &'p [u8]) -> Option<&'p [u8]> {
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
    let mut above = ends.filter_map(|(end, _)| path.get(..end));
    above.find(|above| !matches!(tree.kind_at(above), None | Some(Kind::Dir | Kind::Symlink)))
}

fn member(from: &Tree, id: NodeId, name: Vec<u8>) -> Member {
    let node = from.node(id);
    let target = if node.kind == Kind::Symlink { from.target(node).to_vec() } else { Vec::new() };
    let what = What::File(Attributes {
        kind: node.kind,
        mode: node.mode,
        uid: node.uid,
        gid: node.gid,
        mtime: node.mtime,
        atime: node.atime,
        ctime: node.ctime,
        size: node.size,
        rdev: node.rdev,
        target,
        xattrs: from.xattrs(node).clone(),
        locator: u64::from(id.0),
        runs: from.runs(node).map(<[_]>::to_vec),
        flags: node.flags,
        project: node.project,
        // Counted where they were found.
        lost: Vec::new(),
    });
    Member { offset: 0, name, mtime: node.mtime, what }
}

/// Contents of one source.
struct Part {
    contents: Box<dyn Contents>,
    /// The tree of the contents, whose nodes are the locators of the merged one. Contents without
    /// one use the merged tree.
    tree: Option<Tree>,
}

/// Contents of several sources, by [`Node::source`](crate::tree::Node::source).
struct Parts {
    parts: Vec<Option<Part>>,
}

impl Contents for Parts {
    fn reader(&self) -> Box<dyn ContentReader + '_> {
        let readers = self.parts.iter().map(|_| None).collect();
        Box::new(PartsReader { parts: &self.parts, readers, last: 0 })
    }
}

struct PartsReader<'a> {
    parts: &'a [Option<Part>],
    readers: Vec<Option<Box<dyn ContentReader + 'a>>>,
    last: usize,
}

impl<'p> PartsReader<'p> {
    /// The reader of the source that has `node`, and the node in that source's tree.
    fn of<'t>(
        &mut self,
        tree: &'t Tree,
        node: NodeId,
    ) -> Result<(&mut (dyn ContentReader + 'p), &'t Tree, NodeId), SourceError>
    where
        'p: 't,
    {
        let found = tree.node(node);
        let at = usize::from(found.source);
        if at != self.last {
            self.finish(tree)?;
            self.last = at;
        }
        let (Some(Some(part)), Some(reader)) = (self.parts.get(at), self.readers.get_mut(at))
        else {
            let path = tree.path(node).escape_ascii().to_string();
            return Err(SourceError::Changed { path, what: "no source has it".into() });
        };
        let reader = reader.get_or_insert_with(|| part.contents.reader());
        Ok(match &part.tree {
            Some(own) => (&mut **reader, own, NodeId(found.locator as u32)),
            None => (&mut **reader, tree, node),
        })
    }
}

impl ContentReader for PartsReader<'_> {
    fn read(
        &mut self,
        tree: &Tree,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), SourceError> {
        let (reader, tree, node) = self.of(tree, node)?;
        reader.read(tree, node, offset, buf)
    }

    fn file(&mut self, tree: &Tree, node: NodeId) -> Result<Option<BorrowedFd<'_>>, SourceError> {
        let (reader, tree, node) = self.of(tree, node)?;
        reader.file(tree, node)
    }

    fn finish(&mut self, tree: &Tree) -> Result<(), SourceError> {
        match (self.readers.get_mut(self.last), self.parts.get(self.last)) {
            (Some(Some(reader)), Some(Some(part))) => {
                reader.finish(part.tree.as_ref().unwrap_or(tree))
            }
            _ => Ok(()),
        }
    }
}
