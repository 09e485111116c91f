//! The fields of an image's documents that matter here.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A pointer to a blob.
#[derive(Clone, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) platform: Option<PlatformFields>,
}

impl Descriptor {
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// The platform of an image, as an index says it.
#[derive(Clone, Deserialize, Debug)]
pub(crate) struct PlatformFields {
    pub(crate) os: String,
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
}

/// `oci-layout`.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayoutFile {
    pub(crate) image_layout_version: String,
}

/// An index, also Docker's "manifest list".
#[derive(Deserialize, Debug)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// A manifest.
#[derive(Deserialize, Debug)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// A configuration.
#[derive(Deserialize, Debug)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
    pub(crate) rootfs: RootFs,
}

#[derive(Deserialize, Debug)]
pub(crate) struct RootFs {
    #[serde(default)]
    pub(crate) diff_ids: Option<Vec<String>>,
}

/// One image in the `manifest.json` of an archive by `docker save`.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SavedImage {
    pub(crate) config: String,
    #[serde(default)]
    pub(crate) repo_tags: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) layers: Option<Vec<String>>,
}
