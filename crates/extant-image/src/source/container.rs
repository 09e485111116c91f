//! Recognises the image of a container, whose files lie in archives of layers inside it.

use crate::tree::{Kind, NodeId, Tree};

/// Layouts of container images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContainerImage {
    /// The OCI image layout: `oci-layout`, `index.json`, `blobs`.
    OciLayout,
    /// An archive of `docker save` or `podman save`: `manifest.json` beside layers.
    DockerArchive,
}

impl ContainerImage {
    /// With its article, as messages have it.
    pub fn name(self) -> &'static str {
        match self {
            ContainerImage::OciLayout => "an OCI image layout",
            ContainerImage::DockerArchive => "a container image as docker save writes it",
        }
    }
}

/// Which layout the names in the root of `tree` are those of, if any.
///
/// Sources: OCI Image Layout Specification 1.1, "Content"; Docker Image Specification 1.2,
/// "Combined Image JSON + Filesystem Changeset Format".
pub fn container_image(tree: &Tree) -> Option<ContainerImage> {
    let is_file = |name: &str| {
        let found = tree.find_in_root(name.as_bytes());
        found.is_some_and(|entry| tree.node(entry.node).kind == Kind::File)
    };
    if is_file("oci-layout") && is_file("index.json") {
        return Some(ContainerImage::OciLayout);
    }
    let has_layer = || {
        tree.children(NodeId::ROOT).iter().any(|entry| {
            let name = tree.name(entry);
            let children = tree.dir_index(entry.node).map(|_| tree.children(entry.node));
            let in_it = children.unwrap_or_default().iter();
            name.strip_suffix(b".tar").is_some_and(is_digest)
                || (is_digest(name) && in_it.clone().any(|entry| tree.name(entry) == b"layer.tar"))
        })
    };
    (is_file("manifest.json") && (is_file("repositories") || has_layer()))
        .then_some(ContainerImage::DockerArchive)
}

/// The names that [`container_image`] has met, of those it looks for.
#[derive(Default)]
pub(super) struct ContainerNames {
    oci_layout: bool,
    index: bool,
    manifest: bool,
    repositories: bool,
    layer: bool,
}

impl ContainerNames {
    /// Looks at the name of one member of an archive.
    pub(super) fn see(&mut self, name: &[u8]) {
        let name = name.strip_prefix(b"./").unwrap_or(name);
        match name {
            b"oci-layout" => self.oci_layout = true,
            b"index.json" => self.index = true,
            b"manifest.json" => self.manifest = true,
            b"repositories" => self.repositories = true,
            _ => {
                let flat = name.strip_suffix(b".tar").is_some_and(is_digest);
                self.layer |= flat || name.strip_suffix(b"/layer.tar").is_some_and(is_digest);
            }
        }
    }

    /// Returns whether the names seen are those of a container image.
    pub(super) fn is_container(&self) -> bool {
        (self.oci_layout && self.index) || (self.manifest && (self.repositories || self.layer))
    }
}

/// Returns whether a name is a SHA-256 digest in hexadecimal.
fn is_digest(name: &[u8]) -> bool {
    name.len() == 64 && name.iter().all(u8::is_ascii_hexdigit)
}
