//! `extant metadata`: what it makes, what it refuses, and what is not in it.

use std::os::unix::fs::MetadataExt;

use crate::support;
use support::kernel::Loop;
use support::{Place, tool};

#[test]
fn a_copy_is_an_image_without_contents() {
    let place = Place::with_image();
    place.run(&["mkdir", "a.img:/SECRET-NAME"]).succeeds();
    place.run(&["setfattr", "-n", "user.note", "-v", "SECRET-VALUE", "a.img:/file"]).succeeds();
    let tree = |image: &str| place.run(&["ls", "-R", "-l", image]).succeeds().out();
    let told = place.run(&["metadata", "a.img", "b.img"]).succeeds().out();
    assert!(told.contains("copied"), "{told}");
    assert_eq!(tree("a.img"), tree("b.img"));
    assert_eq!(place.run(&["cat", "b.img:/file"]).succeeds().out(), "\0\0\0\0\0\0");
    let (a, b) = (place.path("a.img").metadata().unwrap(), place.path("b.img").metadata().unwrap());
    assert_eq!(a.len(), b.len());
    assert!(b.blocks() <= a.blocks());

    let json = place.run(&["metadata", "--json", "--scramble", "a.img", "c.img"]).succeeds().json();
    assert_eq!(
        (json["scrambled"].as_bool(), json["left"].as_array().map(Vec::len)),
        (Some(true), Some(0))
    );
    let bytes = std::fs::read(place.path("c.img")).unwrap();
    for secret in [&b"SECRET-NAME"[..], b"SECRET-VALUE", b"hello\n", b"../file"] {
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{secret:?}");
    }
    for image in ["b.img", "c.img"] {
        place.run(&["check", image]).succeeds();
        place.run(&["info", image]).succeeds();
        if let Some(fsck) = tool("e2fsck", &["-fn", image], place.0.path()) {
            assert!(fsck.status.success(), "{}", support::text(&fsck));
        }
    }
}

#[test]
fn nothing_is_overwritten_unless_asked_for() {
    let place = Place::with_image();
    let before = std::fs::read(place.path("a.img")).unwrap();
    place.run(&["metadata", "a.img", "source/file"]).ends_with(7).hints("-f");
    assert_eq!(std::fs::read(place.path("source/file")).unwrap(), b"hello\n");
    place.run(&["metadata", "-f", "a.img", "source/file"]).succeeds();
    place.run(&["check", "source/file"]).succeeds();
    place.run(&["metadata", "a.img", "-"]).ends_with(2).hints("zstd");
    // Which would be left without its files.
    std::os::unix::fs::symlink("a.img", place.path("link")).unwrap();
    for out in ["a.img", "./a.img", "link"] {
        place.run(&["metadata", "-f", "a.img", out]).ends_with(7).complains(&["the image itself"]);
    }
    place.run(&["metadata", "-f", "link", "a.img"]).ends_with(7);
    place.run(&["metadata", "a.img", "source"]).ends_with(7);
    place.run(&["metadata", "a.img:/file", "b.img"]).ends_with(2);
    // An image that is none leaves no copy.
    std::fs::write(place.path("none"), vec![1; 1 << 20]).unwrap();
    place.run(&["metadata", "none", "b.img"]).ends_with(4).complains(&["no superblock"]);
    assert!(!place.path("b.img").exists());
    assert!(std::fs::read(place.path("a.img")).unwrap() == before, "the image is only read");
}

#[test]
fn what_cannot_be_followed_is_named() {
    let place = Place::with_image();
    let Some(said) =
        tool("debugfs", &["-w", "-R", "sif /sparse block[2] 0xf30b", "a.img"], place.0.path())
    else {
        return;
    };
    assert!(said.status.success());
    let said = tool("debugfs", &["-w", "-R", "sif /sparse block[0] 0", "a.img"], place.0.path());
    assert!(said.is_some_and(|said| said.status.success()));
    let json = place.run(&["metadata", "--json", "a.img", "b.img"]).ends_with(4).json();
    let left = json["left"].as_array().unwrap();
    assert!(left.iter().any(|one| one.as_str().unwrap().contains("of its map")), "{left:?}");
    // The copy has the same verdict.
    place.run(&["check", "-q", "a.img"]).ends_with(4);
    place.run(&["check", "-q", "b.img"]).ends_with(4);
}

/// What the kernel writes to a file that has lost its name is lost.
#[test]
fn an_image_that_the_kernel_has_is_not_replaced() {
    let place = Place::with_image();
    std::fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
    std::os::unix::fs::symlink("b.img", place.path("link")).unwrap();
    let Some(device) = Loop::over(&place.path("b.img")) else { return };
    let before = place.path("b.img").metadata().unwrap().ino();
    for out in ["b.img", "link"] {
        place.run(&["metadata", "-f", "a.img", out]).ends_with(7).complains(&["in use", &device.0]);
    }
    assert_eq!(place.path("b.img").metadata().unwrap().ino(), before);
    drop(device);
}
