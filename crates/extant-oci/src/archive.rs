//! Archives of `docker save` and `podman save`: `manifest.json` beside configurations and layers.

use crate::digest::Digest;
use crate::error::{Kind, OciError};
use crate::image::{Choice, Image, Layer};
use crate::layout::{check_platform, diff_ids};
use crate::limits::ENTRIES_MAX;
use crate::model::{Config, SavedImage};
use crate::store::Store;
use crate::store::{document, find, parse};

/// Finds the image chosen by `choice` in the archive whose files are in `store`.
///
/// Such an archive has no digests of its files, only those of the unpacked layers, in the
/// configuration. If the name of the configuration is its digest, as both programs have it, that is
/// checked.
///
/// # Errors
///
/// [`OciError`], whose [`Kind`] distinguishes damage from a choice that matches no image or
/// several.
pub fn open_docker_archive(store: &dyn Store, choice: &Choice) -> Result<Image, OciError> {
    let text = document(store, "manifest.json", "the list of images", None, None)?;
    let images: Vec<SavedImage> = parse(store, "manifest.json", &text)?;
    if images.len() > ENTRIES_MAX {
        let what = format!("it has {} images; at most {ENTRIES_MAX} are read", images.len());
        return Err(OciError::damaged(store.name(), what));
    }
    let saved = choose(store, &images, choice)?;
    let path = safe(store, &saved.config)?;
    let wanted = digest_in_name(path);
    let config = document(store, path, "the configuration", None, wanted.as_ref())?;
    let parsed: Config = parse(store, path, &config)?;
    if let Some(wanted) = &choice.platform {
        check_platform(store, &parsed, wanted)?;
    }
    let names = saved.layers.as_deref().unwrap_or_default();
    let diff_ids = diff_ids(store, path, &parsed, names.len())?;
    let mut layers = Vec::new();
    for (name, diff_id) in names.iter().zip(diff_ids) {
        let path = safe(store, name)?.to_owned();
        let size = find(store, &path, &format!("layer {}", name.escape_debug()))?.size;
        layers.push(Layer { name: path.clone(), path, size, digest: None, diff_id });
    }
    Ok(Image { config, layers })
}

fn choose<'i>(
    store: &dyn Store,
    images: &'i [SavedImage],
    choice: &Choice,
) -> Result<&'i SavedImage, OciError> {
    let tags = |image: &SavedImage| image.repo_tags.clone().unwrap_or_default();
    let all: Vec<String> = images.iter().flat_map(tags).take(20).collect();
    let all = all.join(", ").escape_debug().take(2000).collect::<String>();
    let refuse = |what: String| Err(OciError::new(Kind::Choice, store.name(), what));
    if let Some(digest) = &choice.digest {
        let found = images.iter().find(|i| digest_in_name(&i.config).as_ref() == Some(digest));
        return match found {
            Some(image) => Ok(image),
            None => refuse(format!("it has no image whose configuration is {digest}")),
        };
    }
    match (&choice.tag, images) {
        (Some(wanted), _) => {
            let is_it = |tag: &String| {
                let (tag, wanted) = (plain(tag), plain(wanted));
                tag == wanted || tag.rsplit('/').next() == Some(&*wanted)
            };
            match images.iter().find(|image| tags(image).iter().any(is_it)) {
                Some(image) => Ok(image),
                None => {
                    refuse(format!("it has no image \"{}\"; it has: {all}", wanted.escape_debug()))
                }
            }
        }
        (None, [one]) => Ok(one),
        (None, []) => refuse("it has no image".into()),
        (None, _) => refuse(format!("it has {} images; say which: {all}", images.len())),
    }
}

/// A name as Docker shows it: without its own registry, and with a tag.
fn plain(name: &str) -> String {
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    let has_tag = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
    if has_tag { name.to_owned() } else { format!("{name}:latest") }
}

/// The digest that is the name of a file, with `.json` or without.
fn digest_in_name(path: &str) -> Option<Digest> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let hex = name.strip_suffix(".json").unwrap_or(name);
    format!("sha256:{hex}").parse().ok()
}

/// A path from inside the archive, which must not lead out of it.
fn safe<'p>(store: &dyn Store, path: &'p str) -> Result<&'p str, OciError> {
    let fine = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if fine && path.len() <= 4096 && !path.contains('\0') {
        return Ok(path);
    }
    let shown: String = path.escape_debug().take(200).collect();
    let what =
        format!("\"manifest.json\" names the file \"{shown}\", which is none of the archive");
    Err(OciError::damaged(store.name(), what))
}
