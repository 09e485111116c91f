//! OCI image layouts: from `index.json` to the layers of one image.

use crate::digest::Digest;
use crate::error::{Kind, OciError};
use crate::image::{Choice, Image, Layer};
use crate::limits::{ENTRIES_MAX, LAYERS_MAX, NESTING_MAX};
use crate::model::{Config, Descriptor, Index, LayoutFile, Manifest};
use crate::platform::Platform;
use crate::store::Store;
use crate::store::{document, parse};

const REF_NAME: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// Annotation with which buildx marks attestations of an image, which are no images.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";

const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Most names in a message.
const NAMES_MAX: usize = 20;

/// Finds the image chosen by `choice` in the layout in `store`.
///
/// # Errors
///
/// [`OciError`], whose [`Kind`] distinguishes damage from a choice that matches no image or
/// several.
pub fn open_layout(store: &dyn Store, choice: &Choice) -> Result<Image, OciError> {
    let text = document(store, "oci-layout", "the mark of an OCI image layout", None, None)?;
    let file: LayoutFile = parse(store, "oci-layout", &text)?;
    if !file.image_layout_version.starts_with("1.") {
        let version: String = file.image_layout_version.chars().take(40).collect();
        let what = format!("its layout has version \"{}\"; 1.0.0 is known", version.escape_debug());
        return Err(OciError::new(Kind::Unsupported, store.name(), what));
    }
    let text = document(store, "index.json", "the index", None, None)?;
    let index: Index = parse(store, "index.json", &text)?;
    let mut search = Search { store, choice, entries: 0 };
    let (manifest, platform) = search.manifest(named(store, index, choice)?, 1)?;
    image(store, choice, &manifest, platform)
}

/// The entries of the layout's index that tag and digest leave.
fn named(store: &dyn Store, index: Index, choice: &Choice) -> Result<Vec<Descriptor>, OciError> {
    let all = index.manifests;
    if all.len() > ENTRIES_MAX {
        let what = format!("its index has {} entries; at most {ENTRIES_MAX} are read", all.len());
        return Err(OciError::damaged(store.name(), what));
    }
    let name = |entry: &Descriptor| entry.annotation(REF_NAME).map(str::to_owned);
    if let Some(digest) = &choice.digest {
        let wanted = digest.to_string();
        let mut left: Vec<_> = all.into_iter().filter(|entry| entry.digest == wanted).collect();
        left.truncate(1);
        return match left.is_empty() {
            false => Ok(left),
            // The digest identifies it, below an index of the layout or without a reference.
            true => {
                let stored = crate::store::find(store, &digest.path(), &wanted)?;
                Ok(vec![Descriptor {
                    media_type: String::new(),
                    digest: wanted,
                    size: stored.size,
                    annotations: None,
                    platform: None,
                }])
            }
        };
    }
    let names: Vec<String> = all.iter().filter_map(name).collect();
    if let Some(tag) = &choice.tag {
        let has = |entry: &Descriptor, key| entry.annotation(key) == Some(tag);
        for key in [REF_NAME, CONTAINERD_NAME] {
            let left: Vec<_> = all.iter().filter(|entry| has(entry, key)).cloned().collect();
            if !left.is_empty() {
                return Ok(left);
            }
        }
        let what = format!("it has no image \"{}\"{}", tag.escape_debug(), list("it has", &names));
        return Err(OciError::new(Kind::Choice, store.name(), what));
    }
    let mut distinct = names.clone();
    distinct.sort();
    distinct.dedup();
    if distinct.len() > 1 {
        let what = format!("it has several images{}", list("say which", &distinct));
        let example = distinct.first().cloned().unwrap_or_default();
        return Err(OciError::new(Kind::Choice, store.name(), what)
            .advise(format!("oci:{}:{example}", store.name())));
    }
    Ok(all)
}

/// `; INTRO: a, b, c`, or nothing if there is nothing to list.
fn list(intro: &str, names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = (names.iter().take(NAMES_MAX))
        .map(|name| name.escape_debug().take(200).collect::<String>())
        .collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; {intro}: {}{rest}", shown.join(", "))
}

/// The way from an index to one manifest.
struct Search<'s> {
    store: &'s dyn Store,
    choice: &'s Choice,
    entries: usize,
}

impl Search<'_> {
    /// The manifest among `entries`, or below them.
    fn manifest(
        &mut self,
        entries: Vec<Descriptor>,
        depth: usize,
    ) -> Result<(Descriptor, Option<Platform>), OciError> {
        let mut found = Vec::new();
        self.collect(entries, depth, &mut found)?;
        let wanted = self.choice.platform.clone();
        let name = self.store.name();
        let platforms = |found: &[(Descriptor, Option<Platform>)]| -> Vec<String> {
            found.iter().filter_map(|(_, p)| p.as_ref().map(Platform::to_string)).collect()
        };
        if found.is_empty() {
            return Err(OciError::new(Kind::Choice, name, "it has no image"));
        }
        // One that does not say what it is for says so in its configuration.
        if let [one] = &*found
            && (wanted.is_none() || one.1.is_none())
        {
            return Ok(one.clone());
        }
        let asked = wanted.is_some();
        let wanted = wanted.unwrap_or_else(Platform::host);
        let fits: Vec<_> = (found.iter())
            .filter(|(_, platform)| platform.as_ref().is_some_and(|p| p.is(&wanted)))
            .collect();
        let all = platforms(&found);
        match (fits.first(), asked) {
            (Some(&first), _) => Ok(first.clone()),
            (None, true) => {
                let what = format!("it has no image for {wanted}{}", list("it has", &all));
                Err(OciError::new(Kind::Choice, name, what))
            }
            (None, false) => {
                let what =
                    format!("it has no image for {wanted}, this machine{}", list("it has", &all));
                let example = all.first().cloned().unwrap_or_else(|| "OS/ARCHITECTURE".into());
                Err(OciError::new(Kind::Choice, name, what)
                    .advise(format!("--platform {example} takes that one")))
            }
        }
    }

    fn collect(
        &mut self,
        entries: Vec<Descriptor>,
        depth: usize,
        found: &mut Vec<(Descriptor, Option<Platform>)>,
    ) -> Result<(), OciError> {
        let name = self.store.name().to_owned();
        if depth > NESTING_MAX {
            let what = format!("its indexes nest deeper than {NESTING_MAX}");
            return Err(OciError::damaged(&name, what));
        }
        for entry in entries {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                let what = format!("its indexes have more than {ENTRIES_MAX} entries");
                return Err(OciError::damaged(&name, what));
            }
            if entry.annotation(REFERENCE_TYPE).is_some() {
                continue;
            }
            let platform = entry.platform.clone().map(|fields| Platform {
                os: fields.os,
                architecture: fields.architecture,
                variant: fields.variant.filter(|variant| !variant.is_empty()),
            });
            if platform.as_ref().is_some_and(|p| p.os == "unknown") {
                continue;
            }
            match self.kind(&entry)? {
                EntryKind::Manifest => found.push((entry, platform)),
                EntryKind::Index(index) => self.collect(index.manifests, depth + 1, found)?,
                // Signatures, bills of material and the like live in layouts too.
                EntryKind::Other => {}
            }
        }
        Ok(())
    }

    /// Returns what an entry is: by its media type, or by its contents where that is left out.
    fn kind(&self, entry: &Descriptor) -> Result<EntryKind, OciError> {
        let media = &*entry.media_type;
        if MANIFESTS.contains(&media) {
            return Ok(EntryKind::Manifest);
        }
        if !INDEXES.contains(&media) && !media.is_empty() {
            return Ok(EntryKind::Other);
        }
        let (path, bytes) = manifest_blob(self.store, entry, "the index")?;
        if media.is_empty() {
            let value: serde_json::Value = parse(self.store, &path, &bytes)?;
            if value.get("manifests").is_none() {
                return Ok(EntryKind::Manifest);
            }
        }
        Ok(EntryKind::Index(parse(self.store, &path, &bytes)?))
    }
}

enum EntryKind {
    Manifest,
    Index(Index),
    Other,
}

/// Reads the blob that `descriptor` points to, checked.
fn blob(
    store: &dyn Store,
    descriptor: &Descriptor,
    what: &str,
) -> Result<(String, Vec<u8>), OciError> {
    let digest = digest(store, &descriptor.digest)?;
    let path = digest.path();
    let bytes = document(store, &path, what, Some(descriptor.size), Some(&digest))?;
    Ok((path, bytes))
}

/// As [`blob`], for a manifest or an index.
fn manifest_blob(
    store: &dyn Store,
    descriptor: &Descriptor,
    what: &str,
) -> Result<(String, Vec<u8>), OciError> {
    let digest = digest(store, &descriptor.digest)?;
    let path = digest.path();
    let bytes = crate::store::manifest(store, &path, what, descriptor.size, &digest)?;
    Ok((path, bytes))
}

fn digest(store: &dyn Store, text: &str) -> Result<Digest, OciError> {
    text.parse().map_err(|what: String| OciError::damaged(store.name(), what))
}

/// Reads manifest and configuration.
fn image(
    store: &dyn Store,
    choice: &Choice,
    manifest: &Descriptor,
    platform: Option<Platform>,
) -> Result<Image, OciError> {
    let (path, bytes) = manifest_blob(store, manifest, "the manifest")?;
    let manifest: Manifest = parse(store, &path, &bytes)?;
    let media = &manifest.config.media_type;
    let known = [
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.docker.container.image.v1+json",
    ];
    if !media.is_empty() && !known.contains(&&**media) {
        let media: String = media.escape_debug().take(120).collect();
        let what = format!("\"{path}\" is no container image: its configuration is \"{media}\"");
        return Err(OciError::new(Kind::Unsupported, store.name(), what));
    }
    let (config_path, config) = blob(store, &manifest.config, "the configuration")?;
    let parsed: Config = parse(store, &config_path, &config)?;
    if let (Some(wanted), None) = (&choice.platform, platform) {
        check_platform(store, &parsed, wanted)?;
    }
    let diff_ids = diff_ids(store, &config_path, &parsed, manifest.layers.len())?;
    let mut layers = Vec::new();
    for (layer, diff_id) in manifest.layers.iter().zip(diff_ids) {
        check_media_type(store, layer)?;
        let digest = digest(store, &layer.digest)?;
        let path = digest.path();
        if store.is_near() {
            let stored = crate::store::find(store, &path, &format!("layer {digest}"))?;
            crate::store::check_size(store, &path, stored.size, layer.size)?;
        }
        layers.push(Layer {
            name: digest.to_string(),
            path,
            size: layer.size,
            digest: Some(digest),
            diff_id,
        });
    }
    Ok(Image { config, layers })
}

/// Compares what a configuration says that it is for with what was asked for.
pub(crate) fn check_platform(
    store: &dyn Store,
    config: &Config,
    wanted: &Platform,
) -> Result<(), OciError> {
    let have = Platform {
        os: config.os.clone(),
        architecture: config.architecture.clone(),
        variant: config.variant.clone().filter(|variant| !variant.is_empty()),
    };
    if have.is(wanted) {
        return Ok(());
    }
    let have: String = have.to_string().escape_debug().take(120).collect();
    let what = format!("it has no image for {wanted}; it has: {have}");
    Err(OciError::new(Kind::Choice, store.name(), what))
}

/// The digests of the unpacked layers, as many as there are layers.
pub(crate) fn diff_ids(
    store: &dyn Store,
    path: &str,
    config: &Config,
    layers: usize,
) -> Result<Vec<Digest>, OciError> {
    let texts = config.rootfs.diff_ids.as_deref().unwrap_or_default();
    if layers > LAYERS_MAX {
        let what = format!("the image has {layers} layers; at most {LAYERS_MAX} are read");
        return Err(OciError::damaged(store.name(), what));
    }
    if texts.len() != layers {
        let what = format!(
            "the image has {layers} layers, and its configuration (\"{path}\") has the digests of {}",
            texts.len()
        );
        return Err(OciError::damaged(store.name(), what));
    }
    texts.iter().map(|text| digest(store, text)).collect()
}

/// Refuses layers that are no tar archives. How those are packed their contents tell.
fn check_media_type(store: &dyn Store, layer: &Descriptor) -> Result<(), OciError> {
    let media = &*layer.media_type;
    let tar = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ];
    let packed = ["", ".gzip", "+gzip", ".zstd", "+zstd"];
    let known =
        tar.iter().any(|tar| media.strip_prefix(tar).is_some_and(|end| packed.contains(&end)));
    if known {
        return Ok(());
    }
    let media: String = media.escape_debug().take(120).collect();
    let digest: String = layer.digest.escape_debug().take(160).collect();
    let what = format!("layer {digest} is of a kind that is not known: \"{media}\"");
    let error = OciError::new(Kind::Unsupported, store.name(), what);
    Err(match media.contains("encrypted") {
        true => error.advise("skopeo copy --decryption-key KEY oci:DIR oci:PLAIN decrypts it"),
        false => error,
    })
}
