//! Goal: the layers of a container image become the tree that a container runtime makes of them; what is damaged or hostile
//! is refused by name; nothing is left of an image that failed.
//!
//! Method: layouts of random layers by a generator with a seed (`data/layers.py`), unpacked by umoci as the other
//! implementation; layouts made by hand, one rule or fault each.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use common::read_back::{Times, assert_equal_by};
use extant_base::Prng;
use extant_image::source::{Digest, Origin, Platform};
use extant_image::{Build, BuildError};
use extant_testkit::oracle::{Tool, e2fsck, is_root};
use extant_testkit::{require, skip};

/// A member of an archive: name, kind, contents or target of a link.
type Member<'a> = (&'a str, u8, &'a str);

/// An archive of members whose mode is 0644 and whose owner is 0:0, by the plainest means there are.
fn tar(members: &[Member<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for &(name, kind, text) in members {
        let (link, data) = if kind == b'0' { ("", text) } else { (text, "") };
        let mut block = vec![0u8; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..107].copy_from_slice(b"0000644");
        block[108..115].copy_from_slice(b"0000000");
        block[116..123].copy_from_slice(b"0000000");
        block[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        block[136..147].copy_from_slice(b"00000000007");
        block[156] = kind;
        block[157..157 + link.len()].copy_from_slice(link.as_bytes());
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend(block);
        out.extend(data.as_bytes());
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// A layout being made.
struct Layout(PathBuf);

impl Layout {
    fn new(path: PathBuf) -> Layout {
        std::fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        std::fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Layout(path)
    }

    /// Stores a blob; returns digest and size as a descriptor has them.
    fn blob(&self, bytes: &[u8]) -> (String, usize) {
        let digest = Digest::sha256(bytes);
        std::fs::write(self.0.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        (digest.to_string(), bytes.len())
    }

    /// Stores configuration and manifest of an image of plain layers; returns the manifest's descriptor.
    fn image(&self, layers: &[Vec<u8>], architecture: &str) -> String {
        let blobs: Vec<_> = layers.iter().map(|layer| self.blob(layer)).collect();
        let diff_ids: Vec<&str> = blobs.iter().map(|(digest, _)| &**digest).collect();
        self.manifest(&blobs, &diff_ids, architecture)
    }

    fn manifest(&self, blobs: &[(String, usize)], diff_ids: &[&str], architecture: &str) -> String {
        let config = format!(
            r#"{{"os":"linux","architecture":"{architecture}","rootfs":{{"type":"layers","diff_ids":{diff_ids:?}}}}}"#
        );
        let (config, config_size) = self.blob(config.as_bytes());
        let layers: Vec<String> = (blobs.iter())
            .map(|(digest, size)| {
                let media = "application/vnd.oci.image.layer.v1.tar";
                format!(r#"{{"mediaType":"{media}","digest":"{digest}","size":{size}}}"#)
            })
            .collect();
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{config}","size":{config_size}}},"layers":[{}]}}"#,
            layers.join(",")
        );
        let (digest, size) = self.blob(manifest.as_bytes());
        let media = "application/vnd.oci.image.manifest.v1+json";
        format!(
            r#"{{"mediaType":"{media}","digest":"{digest}","size":{size},"platform":{{"os":"linux","architecture":"{architecture}"}}}}"#
        )
    }

    fn index(&self, entries: &[String]) {
        let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","));
        std::fs::write(self.0.join("index.json"), text).unwrap();
    }

    fn build(&self, image: &Path) -> Result<(), String> {
        self.build_for(image, None)
    }

    fn build_for(&self, image: &Path, platform: Option<&str>) -> Result<(), String> {
        let mut build = Build::from_source(Origin::OciDir(self.0.clone(), Default::default()));
        if let Some(platform) = platform {
            build = build.platform(platform.parse::<Platform>().unwrap());
        }
        build.overwrite(true).write_to(image).map(drop).map_err(|e: BuildError| {
            let cause = std::error::Error::source(&e);
            format!("{e}: {}", cause.map(|cause| cause.to_string()).unwrap_or_default())
        })
    }
}

/// Paths in an image, sorted, directories with a slash; files with their contents.
fn listing(image: &Path) -> Vec<String> {
    let fs = extant::Fs::open_path(image).unwrap();
    let mut out = Vec::new();
    for entry in fs.walk("/").unwrap() {
        let entry = entry.unwrap();
        let path = String::from_utf8_lossy(entry.path()).into_owned();
        let inode = entry.inode();
        if path.starts_with("/lost+found") || path == "/" {
        } else if inode.is_dir() {
            out.push(format!("{path}/"));
        } else if inode.is_symlink() {
            out.push(format!("{path} -> {}", String::from_utf8_lossy(&inode.read_link().unwrap())));
        } else {
            out.push(format!("{path}={}", fs.read_to_string(entry.path()).unwrap()));
        }
    }
    out.sort();
    out
}

/// `umoci insert` writes layers without an end mark, and engines unpack them: the digest says that nothing is missing.
#[test]
fn layers_without_an_end_mark_are_whole_by_their_digest() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let layout = Layout::new(dir.path().join("layout"));
    let whole = tar(&[("a", b'0', "one"), ("b", b'0', "two")]);
    let marked = tar(&[("c", b'0', "three")]);
    let unmarked = whole[..whole.len() - 1024].to_vec();
    layout.index(&[layout.image(&[unmarked.clone(), marked, unmarked.clone()], "amd64")]);
    layout.build(&image).unwrap();
    assert_eq!(listing(&image), ["/a=one", "/b=two", "/c=three"]);
    // Within a header, within contents, and behind a header that describes the next one.
    let long = tar(&[("././@LongLink", b'L', "name")]);
    let cut = [&unmarked[..1024 + 511], &unmarked[..1024 + 514], &long[..1024]];
    for layer in cut {
        layout.index(&[layout.image(&[layer.to_vec()], "amd64")]);
        let error = layout.build(&image).unwrap_err();
        assert!(error.contains("cut short") || error.contains("no member"), "{error}");
    }
}

fn generator(place: &Path, first: u64, count: u64) -> Result<(), String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/layers.py");
    let python = Tool::find("python3")?;
    let (first, count) = (first.to_string(), count.to_string());
    let status = python.command().arg(script).arg(place).args([first, count]).status().unwrap();
    assert!(status.success());
    Ok(())
}

/// Builds each layout and lets umoci unpack it: the same tree, the same bytes with any number of threads.
fn as_umoci_has_it(first: u64, count: u64) {
    if !is_root() {
        skip!("only root makes the owners and devices of layers in a directory");
    }
    let umoci = require!(Tool::find("umoci"));
    let dir = tempfile::tempdir().unwrap();
    require!(generator(dir.path(), first, count));
    let (image, again) = (dir.path().join("a.img"), dir.path().join("b.img"));
    for seed in first..first + count {
        let layout = dir.path().join(seed.to_string());
        let rootfs = dir.path().join("rootfs");
        let named = format!("{}:latest", layout.display());
        umoci.run(["raw", "unpack", "--image", &named, rootfs.to_str().unwrap()]);
        let build = |threads| {
            let source = Origin::OciDir(layout.clone(), Default::default());
            Build::from_source(source).reproducible(1_700_000_000).threads(threads).overwrite(true)
        };
        let built = build(1).write_to(&image).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        build(3).write_to(&again).unwrap();
        assert!(std::fs::read(&image).unwrap() == std::fs::read(&again).unwrap(), "seed {seed}");
        let config = String::from_utf8(built.image_config.unwrap()).unwrap();
        assert!(config.contains(&format!("SEED={seed}\"")), "{config}");
        println!("seed {seed}");
        // What umoci leaves of the times of directories depends on its whiteouts.
        assert_equal_by(&rootfs, &image, Times::Files);
        std::fs::remove_dir_all(&rootfs).unwrap();
        std::fs::remove_dir_all(&layout).unwrap();
    }
    require!(e2fsck(&image)).assert_clean();
}

#[test]
fn layers_become_the_tree_that_umoci_makes_of_them() {
    as_umoci_has_it(0, 36);
}

#[test]
#[ignore = "takes a minute"]
fn many_layers_become_the_trees_that_umoci_makes_of_them() {
    as_umoci_has_it(1000, 300);
}

/// One rule of whiteouts each: layers, and what is there in the end.
#[test]
fn whiteouts_hide_what_lies_below_and_nothing_else() {
    const F: u8 = b'0';
    const D: u8 = b'5';
    let lower: &[Member<'_>] =
        &[("d/", D, ""), ("d/x", F, "1"), ("d/y", F, "1"), ("f", F, "1"), ("g", b'1', "f")];
    let cases: &[(&str, &[Member<'_>], &[&str])] = &[
        ("a file", &[(".wh.f", F, "")], &["/d/", "/d/x=1", "/d/y=1", "/g=1"]),
        ("a directory", &[(".wh.d", F, "")], &["/f=1", "/g=1"]),
        (
            "nothing",
            &[(".wh.gone", F, ""), ("gone/.wh.x", F, "")],
            &["/d/", "/d/x=1", "/d/y=1", "/f=1", "/g=1"],
        ),
        ("opaque", &[("d/.wh..wh..opq", F, "")], &["/d/", "/f=1", "/g=1"]),
        // Its own layer's entries stay, whichever comes first.
        (
            "own before",
            &[("d/n", F, "2"), ("d/.wh..wh..opq", F, "")],
            &["/d/", "/d/n=2", "/f=1", "/g=1"],
        ),
        (
            "own after",
            &[("d/.wh..wh..opq", F, ""), ("d/n", F, "2")],
            &["/d/", "/d/n=2", "/f=1", "/g=1"],
        ),
        ("own name", &[("d/x", F, "2"), (".wh.d", F, "")], &["/d/", "/d/x=2", "/f=1", "/g=1"]),
        (
            "own file",
            &[("f", F, "2"), (".wh.f", F, "")],
            &["/d/", "/d/x=1", "/d/y=1", "/f=2", "/g=1"],
        ),
        // Kinds change places.
        ("file for directory", &[("d", F, "2")], &["/d=2", "/f=1", "/g=1"]),
        (
            "directory for file",
            &[("f/", D, ""), ("f/n", F, "2")],
            &["/d/", "/d/x=1", "/d/y=1", "/f/", "/f/n=2", "/g=1"],
        ),
        // A hard link to a file of the lower layer, whose other name goes.
        (
            "link",
            &[("h", b'1', "f"), (".wh.f", F, "")],
            &["/d/", "/d/x=1", "/d/y=1", "/g=1", "/h=1"],
        ),
        // Through a link of a lower layer or the same, which leads nowhere else than into the tree.
        (
            "through",
            &[("s", b'2', "../../d"), ("s/n", F, "2")],
            &["/d/", "/d/n=2", "/d/x=1", "/d/y=1", "/f=1", "/g=1", "/s -> ../../d"],
        ),
        (
            "hidden through",
            &[("s", b'2', "/d"), ("s/.wh.x", F, "")],
            &["/d/", "/d/y=1", "/f=1", "/g=1", "/s -> /d"],
        ),
        (
            "absolute",
            &[("/etc/n", F, "2")],
            &["/d/", "/d/x=1", "/d/y=1", "/etc/", "/etc/n=2", "/f=1", "/g=1"],
        ),
        ("AUFS", &[(".wh..wh.plnk", F, "")], &["/d/", "/d/x=1", "/d/y=1", "/f=1", "/g=1"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, upper, wanted) in cases {
        let layout = Layout::new(dir.path().join(name));
        layout.index(&[layout.image(&[tar(lower), tar(upper)], "amd64")]);
        let image = dir.path().join("a.img");
        layout.build(&image).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(listing(&image), *wanted, "{name}");
    }
}

/// Each way in which layers can be hostile: refused by name, and no image is left.
#[test]
fn hostile_layers_are_refused_by_name() {
    const F: u8 = b'0';
    let cases: &[(&[Member<'_>], &str)] = &[
        (&[("../x", F, "1")], "\"../x\": has \"..\" in its name"),
        (&[("a/../../x", F, "1")], "has \"..\""),
        (&[("x", b'1', "../../etc/passwd")], "its link target \"../../etc/passwd\" has \"..\""),
        (&[("x", b'1', "gone")], "a hard link to \"gone\", which does not exist"),
        (&[(".wh.", F, "")], "a whiteout that names nothing"),
        (&[(".wh...", F, "")], "a whiteout that names nothing"),
        (&[(".wh.d/x", F, "1")], "lies below a name that begins with .wh."),
        (&[("f", F, "1"), ("f/x", F, "1")], "lies below \"f\", which is not a directory"),
        (&[("l", b'2', "l"), ("l/x", F, "1")], "more than 40 symbolic links"),
        (&[("a", b'2', "b"), ("b", b'2', "a"), ("a/x", F, "1")], "more than 40 symbolic links"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    for (at, (members, what)) in cases.iter().enumerate() {
        let layout = Layout::new(dir.path().join(at.to_string()));
        layout.index(&[layout.image(&[tar(members)], "amd64")]);
        let error = layout.build(&image).unwrap_err();
        assert!(error.contains(what) && error.contains("layer sha256:"), "{error}");
        assert!(!image.exists());
    }
}

/// Everything that a layout can lie about.
#[test]
fn damaged_layouts_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    let layer = tar(&[("f", b'0', "text")]);
    let refused = |name: &str, what: &[&str], spoil: &dyn Fn(&Layout)| {
        let layout = Layout::new(dir.path().join(name));
        layout.index(&[layout.image(std::slice::from_ref(&layer), "amd64")]);
        spoil(&layout);
        let error = layout.build(&image).unwrap_err();
        assert!(what.iter().all(|what| error.contains(what)), "{name}: {error}");
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert!(names.iter().all(|n| n.path().is_dir()), "{name}: {names:?}");
    };
    let digest = Digest::sha256(&layer);
    let path = format!("blobs/sha256/{}", digest.hex());
    let rewrite = |layout: &Layout, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(layout.0.join(&path)).unwrap();
        change(&mut bytes);
        std::fs::write(layout.0.join(&path), bytes).unwrap();
    };
    // A byte of contents, of a header, behind the end mark; a layer that is no archive at all.
    for (name, at) in [("contents", 513), ("header", 3), ("end", 1500)] {
        let found = ["its digest is sha256:", digest.hex()];
        refused(name, &found, &|layout| rewrite(layout, &|bytes| bytes[at] ^= 1));
    }
    refused("zeros", &["its digest is sha256:"], &|l| rewrite(l, &|bytes| bytes.fill(0)));
    refused("short", &["has 100 bytes, and the image says 2048"], &|l| {
        rewrite(l, &|b| b.truncate(100))
    });
    refused("long", &["has 2049 bytes, and the image says 2048"], &|l| rewrite(l, &|b| b.push(0)));
    refused("gone", &["layer sha256:", "there is no file"], &|l| {
        std::fs::remove_file(l.0.join(&path)).unwrap();
    });
    refused("fifo", &["no regular file"], &|l| {
        std::fs::remove_file(l.0.join(&path)).unwrap();
        let made = Command::new("mkfifo").arg(l.0.join(&path)).status().unwrap();
        assert!(made.success());
    });
    refused("no index", &["there is no file \"index.json\""], &|l| {
        std::fs::remove_file(l.0.join("index.json")).unwrap();
    });
    refused("no json", &["\"index.json\" cannot be understood"], &|l| {
        std::fs::write(l.0.join("index.json"), "{\"manifests\":[{").unwrap();
    });
    refused("nothing in it", &["it has no image"], &|l| l.index(&[]));
    refused("version", &["version \"9"], &|l| {
        std::fs::write(l.0.join("oci-layout"), r#"{"imageLayoutVersion":"9\n"}"#).unwrap();
    });
    refused("large", &["index.json", "at most 16777216 are read"], &|l| {
        let file = std::fs::File::create(l.0.join("index.json")).unwrap();
        file.set_len(1 << 40).unwrap();
    });
    let entry = |digest: &str, size: u64, media: &str| {
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{media}.v1+json","digest":"{digest}","size":{size}}}"#
        )
    };
    refused("traversal", &["no digest"], &|l| {
        l.index(&[entry("sha256:../../../etc/passwd", 1, "manifest")])
    });
    refused("md5", &["only sha256 and sha512"], &|l| l.index(&[entry("md5:00", 1, "manifest")]));
    // An index that says that it has itself, which no digest allows, and one that nests too deep.
    refused("cycle", &["the digest of \"blobs/sha256/"], &|l| {
        let own = format!("sha256:{}", "1".repeat(64));
        let text = format!(r#"{{"manifests":[{}]}}"#, entry(&own, 0, "index"));
        let text = text.replace("\"size\":0", &format!("\"size\":{}", text.len() + 2));
        std::fs::write(l.0.join("blobs/sha256").join(&own[7..]), &text).unwrap();
        l.index(&[entry(&own, text.len() as u64, "index")]);
    });
    refused("nesting", &["its indexes nest deeper than 4"], &|l| {
        let mut inner = entry(&format!("sha256:{}", "2".repeat(64)), 9, "index");
        for _ in 0..5 {
            let text = format!(r#"{{"manifests":[{inner}]}}"#);
            let (digest, size) = l.blob(text.as_bytes());
            inner = entry(&digest, size as u64, "index");
        }
        l.index(&[inner]);
    });
    refused("JSON that nests", &["cannot be understood"], &|l| {
        std::fs::write(l.0.join("index.json"), "[".repeat(1 << 20)).unwrap();
    });
    // The configuration has another number of layers, or another digest of the unpacked one.
    refused("count", &["the image has 1 layers, and its configuration", "of 0"], &|l| {
        let blob = l.blob(&layer);
        l.index(&[l.manifest(&[blob], &[], "amd64")]);
    });
    refused("diff_id", &["unpacked, its digest is", "and the image says sha256:333"], &|l| {
        let blob = l.blob(&layer);
        let other = format!("sha256:{}", "3".repeat(64));
        l.index(&[l.manifest(&[blob], &[&other], "amd64")]);
    });
    refused("too many layers", &["the image has 1025 layers; at most 1024"], &|l| {
        let blob = l.blob(&layer);
        let (blobs, ids) = (vec![blob.clone(); 1025], vec![&*blob.0; 1025]);
        l.index(&[l.manifest(&blobs, &ids, "amd64")]);
    });
    refused("encrypted", &["of a kind that is not known", "+encrypted"], &|l| {
        let text = std::fs::read_to_string(l.0.join("index.json")).unwrap();
        let at = text.find("sha256:").unwrap() + 7;
        let manifest = l.0.join("blobs/sha256").join(&text[at..at + 64]);
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let manifest = manifest.replace("layer.v1.tar", "layer.v1.tar+encrypted");
        let (digest, size) = l.blob(manifest.as_bytes());
        l.index(&[entry(&digest, size as u64, "manifest")]);
    });
}

/// Changes one blob of a good layout, in one of many ways: whatever it is, it is noticed.
fn random_damage_is_noticed(rounds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    let text = "text".repeat(500);
    let layers = [
        tar(&[("d/", b'5', ""), ("d/f", b'0', &text), ("l", b'2', "d/f")]),
        tar(&[("d/.wh.f", b'0', ""), ("g", b'0', "more")]),
    ];
    let layout = Layout::new(dir.path().join("layout"));
    layout.index(&[layout.image(&layers, "amd64")]);
    layout.build(&image).unwrap();
    std::fs::remove_file(&image).unwrap();
    let mut blobs: Vec<PathBuf> = std::fs::read_dir(layout.0.join("blobs/sha256"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    blobs.sort();
    let mut random = Prng::new(7);
    for round in 0..rounds {
        let path = &blobs[random.below(blobs.len() as u64) as usize];
        let good = std::fs::read(path).unwrap();
        let mut bytes = good.clone();
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, random.below(256) as u8),
            3 => bytes[at..].rotate_left(1),
            4 => bytes[at..].fill(b'0'),
            _ => bytes = std::fs::read(&blobs[random.below(blobs.len() as u64) as usize]).unwrap(),
        }
        if bytes == good {
            continue;
        }
        std::fs::write(path, &bytes).unwrap();
        let error = layout.build(&image).expect_err("a changed blob is taken");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name), "round {round}: {error}");
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "round {round}: {names:?}");
        std::fs::write(path, &good).unwrap();
    }
    layout.build(&image).unwrap();
}

#[test]
fn a_changed_blob_is_noticed_and_nothing_is_left() {
    random_damage_is_noticed(100);
}

#[test]
#[ignore = "takes some seconds"]
fn every_changed_blob_is_noticed_and_nothing_is_left() {
    random_damage_is_noticed(2000);
}

/// Changes a layer or document in one of many ways and makes all digests right again, as somebody does who means harm: an
/// image that e2fsck and this library take for whole comes out, or an error that names the layout, and nothing is left.
fn hostile_layouts_are_refused_or_make_whole_images(rounds: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    let text = "text".repeat(300);
    let good = [
        tar(&[("d/", b'5', ""), ("d/f", b'0', &text), ("l", b'2', "d/f"), ("h", b'1', "d/f")]),
        tar(&[("d/.wh.f", b'0', ""), ("g", b'0', "more"), ("d/.wh..wh..opq", b'0', "")]),
        tar(&[("d/sub/x", b'0', "x"), (".wh.l", b'0', ""), ("d", b'5', "")]),
    ];
    let mut random = Prng::new(11);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..rounds {
        let place = dir.path().join("layout");
        let layout = Layout::new(place.clone());
        let mut layers = good.clone();
        let at = random.below(3) as usize;
        for _ in 0..=random.below(3) {
            let layer = &mut layers[at];
            let blocks = layer.len() as u64 / 512;
            let block = random.below(blocks) as usize * 512;
            match random.below(5) {
                // Names, kinds, sizes and link targets are where the harm is.
                0 => {
                    layer[block + random.below(100) as usize] = b"./\0wh"[random.below(5) as usize]
                }
                1 => layer[block + 156] = b'0' + random.below(9) as u8,
                2 => layer[block + 124 + random.below(11) as usize] = b'0' + random.below(8) as u8,
                3 => {
                    layer[block + 157 + random.below(20) as usize] =
                        b"./\0dfl"[random.below(6) as usize]
                }
                _ => {
                    let other = random.below(blocks) as usize * 512;
                    layer.copy_within(other..other + 512, block);
                }
            }
            for header in layer.chunks_exact_mut(512).filter(|block| block[0] != 0) {
                header[148..156].fill(b' ');
                let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
                header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            }
        }
        let entry = layout.image(&layers, "amd64");
        let mut entries = vec![entry];
        // A document that is changed has its digest from its change on.
        if random.below(4) == 0 {
            let at = random.below(entries[0].len() as u64) as usize;
            if entries[0].is_char_boundary(at) && entries[0].is_char_boundary(at + 1) {
                let with = ["\"", "{", "9", "}", ",", "null"][random.below(6) as usize];
                entries[0].replace_range(at..at + 1, with);
            }
        }
        layout.index(&entries);
        match layout.build(&image) {
            Ok(()) => {
                taken += 1;
                let opened = extant::Fs::open_path(&image);
                let opened = opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
                for entry in opened.walk("/").unwrap() {
                    entry.unwrap_or_else(|error| panic!("round {round}: {error}"));
                }
                if taken % 20 == 1 {
                    require!(e2fsck(&image)).assert_clean();
                }
                std::fs::remove_file(&image).unwrap();
            }
            Err(error) => {
                refused += 1;
                assert!(error.starts_with(place.to_str().unwrap()), "round {round}: {error}");
            }
        }
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "round {round}: {names:?}");
        std::fs::remove_dir_all(&place).unwrap();
    }
    assert!(taken > rounds / 20 && refused > rounds / 10, "{taken} taken, {refused} refused");
}

#[test]
fn hostile_layouts_with_right_digests_leave_nothing() {
    hostile_layouts_are_refused_or_make_whole_images(200);
}

#[test]
#[ignore = "takes a minute"]
fn thousands_of_hostile_layouts_leave_nothing() {
    hostile_layouts_are_refused_or_make_whole_images(3000);
}

#[test]
fn of_several_platforms_and_tags_the_one_that_was_asked_for_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.img");
    let layout = Layout::new(dir.path().join("many"));
    let make = |machine: &str| layout.image(&[tar(&[("machine", b'0', machine)])], machine);
    let statement = make("amd64").replace("\"linux\"", "\"unknown\"");
    let nested = format!(r#"{{"manifests":[{},{},{statement}]}}"#, make("arm64"), make("riscv64"));
    let (digest, size) = layout.blob(nested.as_bytes());
    let media = "application/vnd.oci.image.index.v1+json";
    layout.index(&[format!(r#"{{"mediaType":"{media}","digest":"{digest}","size":{size}}}"#)]);
    for machine in ["arm64", "riscv64"] {
        layout.build_for(&image, Some(machine)).unwrap();
        assert_eq!(listing(&image), [format!("/machine={machine}")]);
    }
    let error = layout.build_for(&image, Some("linux/s390x")).unwrap_err();
    assert!(
        error.contains("no image for linux/s390x; it has: linux/arm64, linux/riscv64"),
        "{error}"
    );
    // One for another machine, and no other: it is what was asked for, unless that was said.
    layout.index(&[make("arm64")]);
    layout.build(&image).unwrap();
    let error = layout.build_for(&image, Some("amd64")).unwrap_err();
    assert!(error.contains("no image for linux/amd64"), "{error}");
    // Tags.
    let tagged = |tag: &str, machine: &str| {
        let note = format!(r#"{{"annotations":{{"org.opencontainers.image.ref.name":"{tag}"}},"#);
        make(machine).replacen('{', &note, 1)
    };
    layout.index(&[tagged("one", "arm64"), tagged("two", "amd64")]);
    let error = layout.build(&image).unwrap_err();
    assert!(error.contains("several images; say which: one, two"), "{error}");
    for (text, machine) in [("one", "arm64"), ("two", "amd64")] {
        let origin = Origin::parse(format!("oci:{}:{text}", layout.0.display()).as_ref()).unwrap();
        Build::from_source(origin).overwrite(true).write_to(&image).unwrap();
        assert_eq!(listing(&image), [format!("/machine={machine}")]);
    }
    let origin = Origin::parse(format!("oci:{}:three", layout.0.display()).as_ref()).unwrap();
    let error = Build::from_source(origin).overwrite(true).write_to(&image).unwrap_err();
    assert!(error.to_string().contains("no image \"three\"; it has: one, two"), "{error}");
}

/// The same layer, packed in each way, also in several frames.
#[test]
fn layers_may_be_packed_with_gzip_or_zstd() {
    let dir = tempfile::tempdir().unwrap();
    let layer = tar(&[("f", b'0', "text"), ("g", b'0', "more")]);
    let (file, image) = (dir.path().join("layer"), dir.path().join("a.img"));
    for (tool, end) in [("gzip", "gz"), ("zstd", "zst")] {
        let tool = require!(Tool::find(tool));
        let pack = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            tool.run(["-q", "-f", "-k", file.to_str().unwrap()]);
            std::fs::read(file.with_extension(end)).unwrap()
        };
        let frames = [pack(&layer[..700]), pack(&layer[700..])].concat();
        for packed in [pack(&layer), frames] {
            let layout = Layout::new(dir.path().join(end));
            let blob = layout.blob(&packed);
            let diff_id = Digest::sha256(&layer).to_string();
            layout.index(&[layout.manifest(&[blob], &[&diff_id], "amd64")]);
            layout.build(&image).unwrap();
            assert_eq!(listing(&image), ["/f=text", "/g=more"]);
        }
        // Damage that the packing finds and the digest does not is damage too.
        let mut packed = pack(&layer);
        let middle = packed.len() / 2;
        packed[middle] ^= 0x55;
        let layout = Layout::new(dir.path().join(format!("{end} damaged")));
        let blob = layout.blob(&packed);
        let diff_id = Digest::sha256(&layer).to_string();
        layout.index(&[layout.manifest(&[blob], &[&diff_id], "amd64")]);
        let error = layout.build(&image).unwrap_err();
        assert!(error.contains("layer sha256:") && error.contains("is damaged"), "{error}");
    }
}

/// A layer that unpacks to gigabytes from nothing.
#[test]
fn what_unpacks_beyond_its_limit_is_refused() {
    let gzip = require!(Tool::find("gzip"));
    let dir = tempfile::tempdir().unwrap();
    let mut bomb = tar(&[("zeros", b'0', "")]);
    bomb[124..135].copy_from_slice(b"01000000000");
    bomb[148..156].fill(b' ');
    let sum: u32 = bomb[..512].iter().map(|&b| u32::from(b)).sum();
    bomb[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    bomb.resize(bomb.len() + (128 << 20), 0);
    let diff_id = Digest::sha256(&bomb).to_string();
    let file = dir.path().join("bomb");
    std::fs::write(&file, bomb).unwrap();
    gzip.run(["-1", file.to_str().unwrap()]);
    let packed = std::fs::read(dir.path().join("bomb.gz")).unwrap();
    std::fs::remove_file(dir.path().join("bomb.gz")).unwrap();
    let layout = Layout::new(dir.path().join("layout"));
    let blob = layout.blob(&packed);
    layout.index(&[layout.manifest(&[blob], &[&diff_id], "amd64")]);
    let sources = extant_image::source::Sources {
        unpack_limit: Some(1 << 20),
        ..extant_image::source::Sources::one(Origin::Path(layout.0.clone()))
    };
    let error = sources.scan(&Default::default(), dir.path()).err().unwrap().to_string();
    assert!(error.contains("it unpacks to more than 1048576 bytes"), "{error}");
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    // The same is fine when it is allowed.
    let sources = extant_image::source::Sources { unpack_limit: Some(1 << 30), ..sources };
    sources.scan(&Default::default(), dir.path()).map(drop).unwrap();
}
