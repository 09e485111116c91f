//! Images behind addresses: served by extant and by others, read and changed by every command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use rustix::process::Signal;

use crate::pki::Pki;
use crate::support;
use support::mounts::{is_alive, mounts, signal, until};
use support::{Place, text, tool};

/// A server that runs until the test ends it.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(place: &Place, args: &[&str]) -> Served {
        let mut command = place.command(&[&["serve", "nbd"], args].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Served { child, address: address.trim().to_owned() }
    }

    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.address)
    }

    fn end(mut self) {
        signal(self.child.id().cast_signed(), Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_is_served_is_read_and_changed_by_its_address() {
    let place = Place::with_image();
    let base = fs::read(place.path("a.img")).unwrap();
    let served = Served::start(
        &place,
        &["a.img", "--overlay", "o.qcow2", "--socket", "s", "--export", "root"],
    );
    assert_eq!(served.address, "nbd+unix:///root?socket=s");
    let of = |image: &str| place.run(&["ls", "-Rl", image]).succeeds().out().replace(image, "");
    assert_eq!(of(&served.address), of("a.img"));
    assert_eq!(place.run(&["cat", &served.at("/file")]).succeeds().out(), "hello\n");
    place.run(&["cp", "source/file", &served.at("/new")]).succeeds();
    place.run(&["check", &served.address]).succeeds();
    place.run(&["extract", &served.at("/dir"), "out"]).succeeds();
    assert_eq!(fs::read(place.path("out/again")).unwrap(), b"hello\n");
    place.run(&["ls", "nbd+unix:///other?socket=s"]).ends_with(9).complains(&["refuses", "other"]);
    served.end();
    assert!(!place.path("s").exists());
    assert!(fs::read(place.path("a.img")).unwrap() == base);
    assert_eq!(place.run(&["cat", "o.qcow2:/new"]).succeeds().out(), "hello\n");
    place.run(&["ls", "nbd+unix:///?socket=s"]).ends_with(8).complains(&["cannot connect"]);
    place.run(&["ls", "nbd+unix:///x"]).ends_with(2).complains(&["socket"]);
    // Where to listen: one of two.
    let err = place.run(&["serve", "nbd", "a.img"]).ends_with(2).err();
    assert!(err.contains("--socket") && err.contains("--listen"), "{err}");
    let both = ["serve", "nbd", "a.img", "--socket", "t", "--listen", "127.0.0.1:0"];
    assert!(place.run(&both).ends_with(2).err().contains("cannot be used with"));
    if let Some(checked) = tool("qemu-img", &["check", "o.qcow2"], place.0.path()) {
        assert!(checked.status.success(), "{}", text(&checked));
    }
}

#[test]
fn a_server_for_reading_takes_no_writes_and_a_port_is_for_this_host() {
    let place = Place::with_image();
    let served = Served::start(&place, &["a.img", "--listen", "127.0.0.1:0", "-r"]);
    assert!(served.address.starts_with("nbd://127.0.0.1:"), "{}", served.address);
    assert_eq!(place.run(&["cat", &served.at("/file")]).succeeds().out(), "hello\n");
    place.run(&["rm", &served.at("/file")]).ends_with(7).complains(&["read-only"]);
    place
        .run(&["serve", "nbd", "a.img", "--listen", "0.0.0.0:0"])
        .ends_with(7)
        .complains(&["no address of this host alone"]);
    served.end();
}

#[test]
fn the_socket_of_a_server_that_was_killed_is_replaced_and_no_other() {
    let place = Place::with_image();
    let mut killed = Served::start(&place, &["a.img", "--socket", "s"]);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(fs::symlink_metadata(place.path("s")).is_ok(), "nobody removed it");
    let served = Served::start(&place, &["a.img", "--socket", "s"]);
    place.run(&["cat", &served.at("/file")]).succeeds();
    // One that listens keeps its socket, and what is no socket stays.
    fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
    let other = ["serve", "nbd", "b.img", "--socket", "s"];
    let taken = place.run(&other).ends_with(8);
    taken.complains(&["cannot make the socket"]).hints("a program listens on it");
    place.run(&["cat", &served.at("/file")]).succeeds();
    served.end();
    fs::write(place.path("s"), "a file").unwrap();
    let file = place.run(&other).ends_with(8).complains(&["cannot make the socket"]);
    file.hints("no socket");
    assert_eq!(fs::read(place.path("s")).unwrap(), b"a file");
}

#[test]
fn a_mount_behind_an_address_is_read_and_written_and_hears_of_its_loss() {
    let Some(mounts) = mounts() else { return };
    let mut served = Served::start(&mounts.place, &["a.img", "--socket", "s"]);
    let point = mounts.path("m");
    let socket = mounts.path("s").display().to_string();
    let address = format!("nbd+unix:///?socket={socket}");
    mounts.place.run(&["mount", "--log", "log", &address, "m"]).succeeds();
    fs::write(point.join("kept"), vec![7; 300_000]).unwrap();
    assert_eq!(fs::read(point.join("kept")).unwrap(), vec![7; 300_000]);
    mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    mounts.place.run(&["mount", "--log", "log", &address, "m"]).succeeds();
    assert_eq!(fs::read(point.join("kept")).unwrap(), vec![7; 300_000]);
    let synced = fs::File::create(point.join("synced")).unwrap();
    std::io::Write::write_all(&mut &synced, &[9; 100_000]).unwrap();
    synced.sync_all().unwrap();
    std::io::Write::write_all(&mut &synced, &[8; 100_000]).unwrap();
    // The server is gone for good: a sync says so.
    served.child.kill().unwrap();
    until("it is dead", || !is_alive(served.child.id().cast_signed()));
    let _ = served.child.wait();
    synced.sync_all().unwrap_err();
    drop(synced);
    let _ = mounts.place.run(&["umount", "--timeout", "60", "m"]);
    let _ = std::process::Command::new("umount").arg("-l").arg(&point).output();
    let cat = mounts.place.run(&["cat", "a.img:/synced"]).succeeds();
    assert!(cat.output.stdout.starts_with(&[9; 100_000]));
}

fn here(place: &Place) -> String {
    place.0.path().canonicalize().unwrap().display().to_string()
}

#[test]
fn changes_of_an_export_go_to_an_overlay_that_qemu_reads_and_into_it_by_a_commit() {
    let place = Place::with_image();
    let dir = place.0.path();
    let before = fs::read(place.path("a.img")).unwrap();
    let served = Served::start(&place, &["a.img", "--socket", "s", "--export", "root"]);
    let over = ["--overlay", "o.qcow2"];
    let run =
        |command: &str, at: &str| place.run(&[&[command], &over[..], &[&served.at(at)]].concat());
    // Before there is one, it shows the export.
    assert_eq!(run("cat", "/file").succeeds().out(), "hello\n");
    assert!(!place.path("o.qcow2").exists());
    place.run(&["cp", "--overlay", "o.qcow2", "source/file", &served.at("/new")]).succeeds();
    run("rm", "/file").succeeds();
    assert_eq!(run("cat", "/new").succeeds().out(), "hello\n");
    run("cat", "/file").ends_with(9);
    place.run(&["check", "--overlay", "o.qcow2", &served.address]).succeeds();
    assert!(fs::read(place.path("a.img")).unwrap() == before, "the base was written");
    // A file does not decide whom its readers ask.
    // For readers in any directory.
    let stored = served.address.replace("socket=", &format!("socket={}/", here(&place)));
    place
        .run(&["cat", "o.qcow2:/new"])
        .ends_with(7)
        .complains(&["o.qcow2", &stored, "because a file says so"])
        .hints("--overlay FILE ADDRESS");
    let info = place.run(&["overlay", "info", "--json", "o.qcow2"]).succeeds().json();
    assert_eq!(info["base"], *stored);
    assert_eq!(info["base_version"], format!("{} bytes", before.len()));
    if let Some(converted) =
        tool("qemu-img", &["convert", "-O", "raw", "o.qcow2", "whole.img"], dir)
    {
        assert!(converted.status.success(), "{}", text(&converted));
        assert_eq!(place.run(&["cat", "whole.img:/new"]).succeeds().out(), "hello\n");
        place.run(&["check", "whole.img"]).succeeds();
    }
    // Over a copy of the base, and back.
    fs::copy(place.path("a.img"), place.path("copy.img")).unwrap();
    let to_copy = ["overlay", "rebase", "o.qcow2", "--base", "copy.img"];
    place.run(&to_copy).ends_with(7).hints("--over ADDRESS");
    place.run(&[&to_copy[..], &["--over", &served.address]].concat()).succeeds();
    assert_eq!(place.run(&["cat", "o.qcow2:/new"]).succeeds().out(), "hello\n");
    place
        .run(&["rm", "--overlay", "o.qcow2", &served.at("/new")])
        .ends_with(7)
        .complains(&["lies over copy.img"]);
    place.run(&["overlay", "rebase", "o.qcow2", "--base", &served.address]).succeeds();
    place
        .run(&["rm", "--overlay", "o.qcow2", "a.img:/new"])
        .ends_with(7)
        .complains(&["lies over nbd"]);
    assert_eq!(run("cat", "/new").succeeds().out(), "hello\n");
    // Into the export.
    place.run(&["overlay", "commit", "o.qcow2"]).ends_with(7).hints("--over ADDRESS");
    assert!(fs::read(place.path("a.img")).unwrap() == before, "the base was written");
    place.run(&["overlay", "commit", "o.qcow2", "--over", &served.address]).succeeds();
    assert_eq!(place.run(&["cat", &served.at("/new")]).succeeds().out(), "hello\n");
    let info = place.run(&["overlay", "info", "--json", "o.qcow2"]).succeeds().json();
    assert_eq!(info["own_clusters"], 0);
    assert_eq!(info["base"], *stored);
    // One that has the address as it was given, as others make it, is known by it.
    let plain =
        ["create", "-u", "-f", "qcow2", "-F", "raw", "-b", &served.address, "q.qcow2", "64M"];
    if let Some(made) = tool("qemu-img", &plain, dir) {
        assert!(made.status.success(), "{}", text(&made));
        let over = |command: &str, at: &str| place.run(&[command, "--overlay", "q.qcow2", at]);
        assert_eq!(over("cat", &served.at("/new")).succeeds().out(), "hello\n");
        over("rm", &served.at("/new")).succeeds();
        let info = place.run(&["overlay", "info", "--json", "q.qcow2"]).succeeds().json();
        assert_eq!(info["base"], *served.address);
    }
    served.end();
    // An export that is only read, and one of another size.
    run_over_others(&place);
}

/// The overlay of the export `root` on the socket `s`, over exports that are not what it was made over.
fn run_over_others(place: &Place) {
    let served = Served::start(place, &["a.img", "--socket", "s", "--export", "root", "-r"]);
    place.run(&["mkdir", "--overlay", "o.qcow2", &served.at("/made")]).succeeds();
    place
        .run(&["overlay", "commit", "o.qcow2", "--over", &served.address])
        .ends_with(7)
        .complains(&["read-only"]);
    place.run(&["stat", "--overlay", "o.qcow2", &served.at("/made")]).succeeds();
    served.end();
    let file = fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len + 4096).unwrap();
    let served = Served::start(place, &["a.img", "--socket", "s", "--export", "root"]);
    for command in ["stat", "rm"] {
        place
            .run(&[command, "--overlay", "o.qcow2", &served.at("/made")])
            .ends_with(7)
            .complains(&[
                "has changed since",
                &format!("{len} bytes"),
                &format!("{} bytes", len + 4096),
            ])
            .hints("a new overlay");
    }
}

#[test]
fn a_mount_of_an_overlay_over_an_export_writes_to_the_overlay() {
    let Some(mounts) = mounts() else { return };
    let place = &mounts.place;
    let before = fs::read(mounts.path("a.img")).unwrap();
    let served = Served::start(place, &["a.img", "--socket", "s", "-r"]);
    let point = mounts.path("m");
    let address = format!("nbd+unix:///?socket={}", mounts.path("s").display());
    let over = mounts.path("o.qcow2").display().to_string();
    place.run(&["mount", "--overlay", &over, &address, "m"]).succeeds();
    fs::write(point.join("written"), [7; 300_000]).unwrap();
    place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    let read = place.run(&["cat", "--overlay", &over, &format!("{address}:/written")]).succeeds();
    assert!(read.output.stdout == [7; 300_000]);
    place.run(&["cat", &format!("{address}:/written")]).ends_with(9);
    place.run(&["check", "--overlay", &over, &address]).succeeds();
    assert!(fs::read(mounts.path("a.img")).unwrap() == before, "the base was written");
    served.end();
}

#[test]
fn over_tls_an_image_is_read_and_changed_and_without_it_nothing_is_told() {
    let place = Place::with_image();
    let pki = Pki::new("localhost");
    let (dir, nobody) = (pki.dir().display().to_string(), pki.stranger("nobody"));
    let serve = ["a.img", "--socket", "s", "--export", "root", "--tls-certificates", &dir];
    if !cfg!(feature = "tls") {
        place.run(&[&["serve", "nbd"], &serve[..]].concat()).ends_with(2).complains(&["no TLS"]);
        return;
    }
    let served = Served::start(&place, &[&serve[..], &["--tls-verify-peer"]].concat());
    assert_eq!(served.address, "nbds+unix:///root?socket=s");
    let known = format!("{}&tls-certificates={dir}", served.address);
    let of = |path: &str| format!("{known}:{path}");
    assert_eq!(place.run(&["cat", &of("/file")]).succeeds().out(), "hello\n");
    place.run(&["cp", "source/file", &of("/new")]).succeeds();
    place.run(&["check", &known]).succeeds();
    let unknown = format!("{}&tls-certificates={}:/", served.address, nobody.display());
    let refused = place.run(&["ls", &unknown]).ends_with(8);
    refused.complains(&["no TLS", "wants a certificate of this side"]).hints("client-cert.pem");
    let plain = place.run(&["ls", "nbd+unix:///root?socket=s"]).ends_with(7);
    plain.complains(&["wants TLS", "nbds+unix://"]).hints("tls-certificates=DIR");
    place.run(&["ls", &format!("{}&tls-psk-file=k", served.address)]).ends_with(2);
    let missing = format!("{}&tls-certificates=nowhere", served.address);
    place.run(&["ls", &missing]).ends_with(2).complains(&["nowhere/ca-cert.pem"]);
    // An overlay keeps the disk's name, and not how this side is known.
    place.run(&["rm", "--overlay", "o.qcow2", &of("/file")]).succeeds();
    let info = place.run(&["overlay", "info", "o.qcow2"]).succeeds().out();
    let stored = served.address.replace("socket=", &format!("socket={}/", here(&place)));
    assert!(info.contains(&stored) && !info.contains("tls-"), "{info}");
    // The name of the socket leads there from another directory.
    let known = format!("{stored}&tls-certificates={dir}:/new");
    let o = place.path("o.qcow2").display().to_string();
    let mut elsewhere = place.command(&["cat", "--overlay", &o, &known]);
    assert_eq!(elsewhere.current_dir("/").output().unwrap().stdout, b"hello\n");
    place.run(&["cat", "--overlay", "o.qcow2", &of("/file")]).ends_with(9);
    assert_eq!(place.run(&["cat", &of("/file")]).succeeds().out(), "hello\n");
    served.end();
    assert_eq!(place.run(&["cat", "a.img:/new"]).succeeds().out(), "hello\n");
    place.run(&["serve", "nbd", "a.img", "--socket", "s", "--tls-verify-peer"]).ends_with(2);
    let open = ["a.img", "-r", "--listen", "0.0.0.0:0", "--tls-certificates", &dir];
    let refused = place.run(&[&["serve", "nbd"], &open[..]].concat()).ends_with(7);
    refused.hints("--tls-verify-peer");
    let served = Served::start(&place, &[&open[..], &["--tls-verify-peer"]].concat());
    assert!(served.address.starts_with("nbds://0.0.0.0:"), "{}", served.address);
    let at = served.address.replace("0.0.0.0", "localhost");
    let at = format!("{at}?tls-certificates={dir}:/file");
    assert_eq!(place.run(&["cat", &at]).succeeds().out(), "hello\n");
    served.end();
}

#[test]
fn a_mount_over_tls_works_from_its_sandbox() {
    if !cfg!(feature = "tls") {
        return println!("skipped: no TLS in this build");
    }
    let Some(mounts) = mounts() else { return };
    let pki = Pki::new("localhost");
    let dir = pki.dir().display().to_string();
    let serve = ["a.img", "--socket", "s", "--tls-certificates", &dir, "--tls-verify-peer"];
    let served = Served::start(&mounts.place, &serve);
    let socket = mounts.path("s").display().to_string();
    let address = format!("nbds+unix:///?socket={socket}&tls-certificates={dir}");
    mounts.place.run(&["mount", "--log", "log", &address, "m"]).succeeds();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(at) >> 9) as u8).collect();
    let mut file = fs::File::create(mounts.inside("kept")).unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    mounts.place.run(&["mount", "--log", "log", &address, "m"]).succeeds();
    assert!(fs::read(mounts.inside("kept")).unwrap() == bytes);
    mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    served.end();
    mounts.clean();
}
