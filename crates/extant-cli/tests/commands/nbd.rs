//! Images behind addresses: served by extant and by others, read and changed by every command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use rustix::process::Signal;

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
