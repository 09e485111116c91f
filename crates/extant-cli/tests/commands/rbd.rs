//! Images in a Ceph cluster: over stand-ins for its libraries, and in a real cluster of one machine.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use extant_base::Prng;
use extant_block::{AlignedBuffer, BlockDevice, Operation, QueueOptions};
use extant_rbd::{Address, RbdDevice, Settings};
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::e2fsck;
use extant_testkit::rbd::Cluster;
use extant_testkit::{require, skip};
use rustix::process::Signal;

use crate::support;
use support::mounts::{Mounts, is_alive, mounts, signal, until};
use support::{Place, Ran};

/// A place beside a cluster that stand-ins make of files.
struct Beside {
    place: Place,
    cluster: Cluster,
}

impl Beside {
    fn new() -> Result<Beside, String> {
        let beside = Beside { cluster: Cluster::new(&[])?, place: Place::with_image() };
        fs::copy(beside.place.path("a.img"), beside.cluster.image("image")).unwrap();
        Ok(beside)
    }

    fn address(&self) -> String {
        self.cluster.address("image")
    }

    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.address())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("LD_LIBRARY_PATH", self.cluster.dir());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran { args: args.join(" "), output: self.command(args).output().unwrap() }
    }
}

#[test]
fn every_command_opens_an_image_where_it_lies() {
    let here = require!(Beside::new());
    let of = |image: &str| here.run(&["ls", "-Rl", image]).succeeds().out().replace(image, "");
    assert_eq!(of(&here.address()), of("a.img"));
    assert_eq!(here.run(&["cat", &here.at("/file")]).succeeds().out(), "hello\n");
    here.run(&["extract", &here.at("/dir"), "out"]).succeeds();
    assert_eq!(fs::read(here.place.path("out/again")).unwrap(), b"hello\n");
    here.run(&["cp", "source/file", &here.at("/new")]).succeeds();
    here.run(&["check", &here.address()]).succeeds();
    // What is in the cluster is a file system like any other.
    let image = here.cluster.image("image");
    let name = image.to_str().unwrap();
    assert_eq!(here.run(&["cat", &format!("{name}:/new")]).succeeds().out(), "hello\n");
    require!(e2fsck(&image)).assert_clean();
    // A snapshot shows what was, and is not written.
    fs::copy(here.place.path("a.img"), here.cluster.image("image@old")).unwrap();
    let old = here.cluster.address("image@old");
    here.run(&["cat", &format!("{old}:/new")]).ends_with(9);
    here.run(&["cat", &format!("{old}:/file")]).succeeds();
    here.run(&["rm", &format!("{old}:/file")])
        .ends_with(7)
        .complains(&["a snapshot is only read"])
        .hints("--overlay");
}

#[test]
fn what_the_environment_says_counts_as_for_other_programs_of_ceph() {
    let here = require!(Beside::new());
    let conf = here.place.path("c.conf");
    fs::write(&conf, format!("[global]\nfake_dir = {}\n", here.cluster.dir().display())).unwrap();
    let run = |address: &str, env: &[(&str, &str)]| {
        let mut command = here.command(&["ls", address]);
        let output = command.envs(env.iter().copied()).output().unwrap();
        Ran { args: format!("ls {address}, {env:?}"), output }
    };
    let by_env = [("CEPH_CONF", conf.to_str().unwrap())];
    run("rbd:pool/image", &by_env).succeeds();
    run("rbd:pool/image:conf=c.conf", &[]).succeeds();
    run("rbd:pool/image:conf=c.conf:/dir", &[]).succeeds();
    run("rbd:pool/image:conf=none", &by_env).ends_with(2).complains(&["configuration none"]);
    // It counts over the file, and the address over both.
    let args = [by_env[0], ("CEPH_ARGS", "--fake_connect=13")];
    run("rbd:pool/image", &args).ends_with(8).complains(&["ermission denied"]);
    run("rbd:pool/image:fake_connect=110", &args).ends_with(8).complains(&["timed out"]);
}

#[test]
fn what_is_wrong_is_named_with_what_to_do() {
    let here = require!(Beside::new());
    here.run(&["ls", "rbd:pool"]).ends_with(2).complains(&["rbd:POOL/[NAMESPACE/]IMAGE"]);
    here.run(&["ls", "rbd:pool/image"]).ends_with(2).complains(&["no configuration of Ceph"]);
    here.run(&["ls", &here.cluster.address("none")])
        .ends_with(9)
        .complains(&["no image \"none\""])
        .hints("rbd ls");
    here.run(&["ls", &here.address().replace("pool/", "other/")])
        .ends_with(9)
        .complains(&["no pool \"other\""])
        .hints("ceph osd pool ls");
    here.run(&["ls", &(here.cluster.address("image@x"))])
        .ends_with(9)
        .complains(&["no snapshot \"x\""])
        .hints("rbd snap ls");
    here.run(&["ls", &(here.address() + ":fake_connect=110:id=me")])
        .ends_with(8)
        .complains(&["cannot connect to the cluster as client.me", "timed out"])
        .hints("ceph -s --id me");
    here.run(&["ls", "--format", "qcow2", &here.address()])
        .ends_with(5)
        .complains(&["raw disk"])
        .hints("IMAGE@SNAP");
    here.run(&["build", &here.address(), "--from", "source"])
        .ends_with(2)
        .complains(&["a file, a disk or -"])
        .hints("rbd import");
    let failed = here.run(&["ls", "--json", &here.cluster.address("none")]).ends_with(9);
    let told: serde_json::Value = serde_json::from_str(failed.err().trim()).unwrap();
    assert_eq!((&told["code"], &told["family"]), (&9.into(), &"not-found".into()));
    // A client that is alive: this process.
    let lock = here.cluster.image("image.lock");
    fs::write(&lock, format!("client.{} 10.0.0.7:0/1", std::process::id())).unwrap();
    let owner = format!("client.{} at 10.0.0.7:0/1", std::process::id());
    here.run(&["rm", &here.at("/file")])
        .ends_with(7)
        .complains(&["is in use", &owner])
        .hints("--overlay");
    here.run(&["cat", &here.at("/file")]).succeeds();
    fs::remove_file(&lock).unwrap();
    // What the cluster does not allow, as it says at one step or the other; who only reads needs less.
    for step in ["fail_lock=1", "fail_open=1", "fail_open=13"] {
        here.cluster.tell(step);
        let refused = here.run(&["rm", &(here.address() + ":id=reader:/file")]).ends_with(7);
        refused.complains(&["client.reader may not write to it"]).hints("--overlay");
        let code = if step == "fail_lock=1" { 0 } else { 8 };
        here.run(&["cat", &here.at("/file")]).ends_with(code);
    }
    here.cluster.tell("fail_lock=5");
    here.run(&["rm", &here.at("/file")])
        .ends_with(8)
        .complains(&["taking the exclusive lock failed"]);
    here.cluster.tell("");
    // No lock to take.
    let noted = here.run(&["cp", "source/file", &(here.address() + ":fake_features=1:/n")]);
    assert!(noted.succeeds().err().contains("has not the feature exclusive-lock"));
    // Libraries that are none.
    let bad = here.place.path("bad");
    fs::create_dir(&bad).unwrap();
    fs::write(bad.join("librbd.so.1"), "no library").unwrap();
    let output =
        here.place.command(&["ls", &here.address()]).env("LD_LIBRARY_PATH", &bad).output().unwrap();
    Ran { args: "ls".to_owned(), output }
        .ends_with(5)
        .complains(&["librbd.so.1 cannot be used", "package librbd1"])
        .hints("apt-get install librbd1");
}

#[test]
fn overlays_lie_over_an_image_and_know_it_again() {
    let here = require!(Beside::new());
    let over = ["--overlay", "o.qcow2"];
    let run = |words: &[&str], at: &str| here.run(&[words, &over[..], &[&here.at(at)]].concat());
    let before = fs::read(here.cluster.image("image")).unwrap();
    assert_eq!(run(&["cat"], "/file").succeeds().out(), "hello\n");
    assert!(!here.place.path("o.qcow2").exists());
    run(&["rm"], "/file").succeeds();
    run(&["cat"], "/file").ends_with(9);
    assert!(fs::read(here.cluster.image("image")).unwrap() == before, "the base was written");
    let info = here.run(&["overlay", "info", "--json", "o.qcow2"]).succeeds().json();
    assert_eq!(info["base"], here.address());
    let version = info["base_version"].as_str().unwrap();
    assert!(version.ends_with(&format!(", {} bytes", before.len())), "{version}");
    // A file does not decide whom its readers ask.
    here.run(&["ls", "o.qcow2"]).ends_with(7).complains(&["because a file says so"]);
    // Another image of the same name is another version.
    let (image, away) = (here.cluster.image("image"), here.cluster.image("away"));
    fs::rename(&image, &away).unwrap();
    fs::copy(&away, &image).unwrap();
    run(&["ls"], "/").ends_with(7).complains(&["has changed since"]);
    fs::rename(&away, &image).unwrap();
    // Into the image, with its lock.
    here.run(&["overlay", "commit", "o.qcow2"]).ends_with(7).hints("--over ADDRESS");
    here.run(&["overlay", "commit", "o.qcow2", "--over", &here.address()]).succeeds();
    here.run(&["cat", &here.at("/file")]).ends_with(9);
    here.run(&["check", &here.address()]).succeeds();
}

/// A mount of an image in the cluster of `beside`.
struct Mounted<'a> {
    mounts: Mounts,
    beside: &'a Beside,
}

impl Mounted<'_> {
    fn new(beside: &Beside) -> Option<Mounted<'_>> {
        let mounted = Mounted { mounts: mounts()?, beside };
        // Its connections are not made from a sandbox.
        let refused = mounted.mounts.place.run(&["mount", &beside.address(), "m"]);
        refused.ends_with(7).hints("--sandbox=off");
        mounted.mount();
        Some(mounted)
    }

    fn mount(&self) {
        let address = self.beside.address();
        let args = ["mount", "--sandbox=off", "--log", "log", &address, "m"];
        let mut command = self.mounts.place.command(&args);
        command.env("LD_LIBRARY_PATH", self.beside.cluster.dir());
        let output = command.output().unwrap();
        Ran { args: args.join(" "), output }.succeeds();
    }

    /// Ends the server at once, and with it the mount.
    fn kill(&self) {
        kill(&self.mounts);
    }
}

/// Kills the server of a mount, and takes the rest away.
fn kill(mounts: &Mounts) {
    let (keeper, server) = mounts.processes();
    signal(server, Signal::KILL);
    until("it is dead", || !is_alive(server));
    let _ = Command::new("umount").arg("-l").arg(mounts.path("m")).output();
    until("the keeper has ended", || !is_alive(keeper));
}

fn synced(path: &Path, byte: u8) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&[byte; 100_000]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn after_a_kill_of_the_server_what_was_synced_is_there() {
    let here = require!(Beside::new());
    let Some(mounted) = Mounted::new(&here) else { return };
    synced(&mounted.mounts.inside("synced"), 5);
    fs::write(mounted.mounts.inside("lost"), [6; 100_000]).unwrap();
    here.run(&["rm", &here.at("/synced")]).ends_with(7).complains(&["is in use"]);
    mounted.kill();
    assert!(here.cluster.image("image.lock").exists());
    mounted.mount();
    assert_eq!(fs::read(mounted.mounts.inside("synced")).unwrap(), [5; 100_000]);
    mounted.mounts.place.run(&["umount", "--timeout", "60", "m"]).succeeds();
    require!(e2fsck(&here.cluster.image("image"))).assert_clean();
}

#[test]
fn a_mount_whose_client_is_shut_out_becomes_read_only_and_says_why() {
    let here = require!(Beside::new());
    let Some(mounted) = Mounted::new(&here) else { return };
    synced(&mounted.mounts.inside("synced"), 5);
    here.cluster.tell("fail_write=108 fail_flush=108 fail_discard=108 fail_zero=108");
    let mut file = fs::File::create(mounted.mounts.inside("late")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap_err();
    // From now on the cluster would take it, which must not happen.
    here.cluster.tell("");
    until("it is read-only", || {
        let error = fs::write(mounted.mounts.inside("more"), "x").err();
        error.is_some_and(|error| error.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
    });
    assert_eq!(fs::read(mounted.mounts.inside("synced")).unwrap(), [5; 100_000]);
    drop(file);
    let _ = mounted.mounts.place.run(&["umount", "--timeout", "60", "m"]);
    let log = mounted.mounts.log();
    assert!(log.contains("blocklisted") && log.contains("open the image again"), "{log}");
    assert_eq!(here.run(&["cat", &here.at("/synced")]).succeeds().output.stdout, [5; 100_000]);
}

/// A cluster of this machine's own packages.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn script() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph-node")
    }

    fn start() -> Result<Node, String> {
        Node::start_with("none")
    }

    /// Starts a cluster in which everybody has to log in by the protocol `auth`.
    fn start_with(auth: &str) -> Result<Node, String> {
        for program in ["ceph-mon", "ceph-osd", "ceph-mgr", "ceph", "rbd"] {
            let found = Command::new(program).arg("--version").output();
            found.map_err(|_| {
                format!("there is no {program} (ceph-mon, ceph-osd, ceph-mgr, ceph-common)")
            })?;
        }
        let node = Node { dir: tempfile::tempdir().map_err(|error| error.to_string())? };
        let mut script = Command::new(Node::script());
        let done = script.arg("start").arg(node.dir.path()).env("AUTH", auth).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(node)
    }

    fn conf(&self) -> PathBuf {
        self.dir.path().join("ceph.conf")
    }

    fn address(&self, name: &str) -> String {
        format!("rbd:rbd/{name}:conf={}", self.conf().display())
    }

    /// Runs a program of Ceph, for a minute at most.
    #[track_caller]
    fn ceph(&self, args: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.arg("60").args(args).env("CEPH_CONF", self.conf());
        let done = command.output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Brings a file into the cluster.
    fn import(&self, file: &Path, name: &str) {
        self.ceph(&[
            "rbd",
            "import",
            "--no-progress",
            file.to_str().unwrap(),
            &format!("rbd/{name}"),
        ]);
    }

    /// What e2fsck says of an image.
    #[track_caller]
    fn clean(&self, name: &str, dir: &Path) {
        let file = dir.join("exported");
        let _ = fs::remove_file(&file);
        self.ceph(&[
            "rbd",
            "export",
            "--no-progress",
            &format!("rbd/{name}"),
            file.to_str().unwrap(),
        ]);
        if let Ok(report) = e2fsck(&file) {
            report.assert_clean();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = Command::new(Node::script()).arg("stop").arg(self.dir.path()).output();
    }
}

#[test]
#[ignore = "starts a cluster and waits for its time limits: two minutes"]
fn in_a_real_cluster_everything_is_as_over_the_stand_ins() {
    let node = require!(Node::start());
    let place = Place::with_image();
    node.import(&place.path("a.img"), "image");
    let address = node.address("image");
    let at = |path: &str| format!("{address}:{path}");
    let of = |image: &str| place.run(&["ls", "-Rl", image]).succeeds().out().replace(image, "");
    assert_eq!(of(&address), of("a.img"));
    node.ceph(&["rbd", "snap", "create", "--no-progress", "rbd/image@before"]);
    place.run(&["cp", "source/file", &at("/new")]).succeeds();
    place.run(&["fallocate", "-l", "1M", &at("/new")]);
    place.run(&["check", &address]).succeeds();
    node.clean("image", place.0.path());
    let before = format!("{}:/new", node.address("image@before"));
    place.run(&["cat", &before]).ends_with(9);
    place.run(&["rm", &before]).ends_with(7);
    place.run(&["ls", &node.address("none")]).ends_with(9).complains(&["no image \"none\""]);
    place.run(&["ls", &node.address("image@none")]).ends_with(9).complains(&["no snapshot"]);
    place
        .run(&["ls", &address.replace("rbd:rbd/", "rbd:none/")])
        .ends_with(9)
        .complains(&["no pool \"none\""]);
    place.run(&["ls", &(address.clone() + ":no_such_option=1")]).ends_with(2);
    // Overlays: over the snapshot, and into the image.
    let over = ["--overlay", "o.qcow2"];
    place.run(&[&["rm"], &over[..], &[&at("/file")]].concat()).succeeds();
    place.run(&[&["cat"], &over[..], &[&at("/file")]].concat()).ends_with(9);
    place.run(&["cat", &at("/file")]).succeeds();
    place.run(&["overlay", "commit", "o.qcow2", "--over", &address]).succeeds();
    place.run(&["cat", &at("/file")]).ends_with(9);
    node.clean("image", place.0.path());
    // A client that would hand the lock over if it were asked is not, and goes on.
    node.ceph(&["rbd", "create", "-s", "64M", "rbd/busy"]);
    let words = ["--io-type", "write", "--io-size", "4K", "--io-total", "64M"];
    let mut busy = Command::new("timeout");
    busy.args(["60", "rbd", "bench"]).args(words).arg("rbd/busy").env("CEPH_CONF", node.conf());
    let mut busy = busy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("it has the lock", || node.ceph(&["rbd", "lock", "ls", "rbd/busy"]).contains("client."));
    let refused = place.run(&["rm", &format!("{}:/x", node.address("busy"))]);
    refused.ends_with(7).complains(&["is in use: client."]);
    assert!(busy.try_wait().unwrap().is_none(), "it was done before: this shows nothing");
    assert!(busy.wait().unwrap().success());
    // Another size.
    let device = RbdDevice::open(&Address::parse(&address).unwrap(), false, &Settings::default());
    let device = device.unwrap();
    let size = device.size_bytes();
    node.ceph(&["rbd", "resize", "--no-progress", "--allow-shrink", "-s", "1M", "rbd/image"]);
    let error = device.write_at(size - 512, &[0; 512]).unwrap_err().to_string();
    assert!(error.contains("ends at byte 1048576"), "{error}");
    node.ceph(&["rbd", "resize", "--no-progress", "-s", "100M", "rbd/image"]);
    assert_eq!(device.extend(0).unwrap(), 100 << 20);
}

#[test]
#[ignore = "starts a cluster: half a minute"]
fn in_a_real_cluster_a_user_has_what_the_keyring_gives() {
    let node = require!(Node::start_with("cephx"));
    let place = Place::with_image();
    // The administrator, by the keyring that the configuration names.
    node.import(&place.path("a.img"), "image");
    let address = node.address("image");
    place.run(&["cp", "source/file", &format!("{address}:/new")]).succeeds();
    // A user who may only read, by a keyring of his own.
    let ring = place.path("reader.keyring");
    let may = ["mon", "profile rbd", "osd", "profile rbd-read-only"];
    let key = node.ceph(&[&["ceph", "auth", "get-or-create", "client.reader"], &may[..]].concat());
    fs::write(&ring, &key).unwrap();
    let by = |id: &str, ring: &Path| format!("{address}:id={id}:keyring={}", ring.display());
    let reader = by("reader", &ring);
    assert_eq!(place.run(&["cat", &format!("{reader}:/new")]).succeeds().out(), "hello\n");
    place.run(&["check", &reader]).succeeds();
    let refused = place.run(&["rm", &format!("{reader}:/new")]).ends_with(7);
    let refused = refused.complains(&["client.reader may not write", "Operation not permitted"]);
    refused.hints("ceph auth get client.reader");
    // Another key, no key, and no file of keys.
    let wrong = place.path("wrong.keyring");
    fs::write(&wrong, "[client.reader]\n\tkey = AQBiZ1ZlAAAAABAAYWJjZGVmZ2hpamtsbW5vcA==\n")
        .unwrap();
    let nowhere = place.path("nowhere");
    for (id, ring) in [("reader", &wrong), ("nobody", &ring), ("reader", &nowhere)] {
        let ran = place.run(&["ls", &by(id, ring)]).ends_with(8);
        ran.complains(&[&format!("client.{id}")]).hints("ceph -s --id");
    }
    // A key in the address is a password, which an overlay does not keep.
    let secret = key.split("key = ").nth(1).unwrap().trim();
    let with_key = format!("{address}:id=reader:key={secret}");
    place.run(&["rm", "--overlay", "o.qcow2", &format!("{with_key}:/new")]).succeeds();
    let overlay = fs::read(place.path("o.qcow2")).unwrap();
    let holds = |word: &str| overlay.windows(word.len()).any(|part| part == word.as_bytes());
    assert!(holds("id=reader") && !holds(secret), "the key is in the file");
    node.clean("image", place.0.path());
}

#[test]
#[ignore = "starts a cluster and waits for its time limits: two minutes"]
fn in_a_real_cluster_a_full_pool_is_an_error_in_time_and_costs_nothing_that_was_synced() {
    let node = require!(Node::start());
    let Some(mounts) = mounts() else { return };
    node.import(&mounts.path("a.img"), "image");
    let address = node.address("image");
    let quota = |bytes: &str| {
        node.ceph(&["ceph", "osd", "pool", "set-quota", "rbd", "max_bytes", bytes]);
        let is_full = bytes != "0";
        until("the cluster says so", || {
            node.ceph(&["ceph", "health", "detail"]).contains("POOL_FULL") == is_full
        });
    };
    let args = ["mount", "--sandbox=off", "--log", "log", &address, "m"];
    mounts.place.run(&args).succeeds();
    synced(&mounts.inside("synced"), 3);
    quota("1048576");
    let clock = SystemClock;
    let started = clock.monotonic();
    let mut file = fs::File::create(mounts.inside("late")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap_err();
    let took = clock.monotonic().saturating_sub(started);
    println!("the sync was an error after {:.1} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(90), "{took:?}");
    // A sync that failed once never succeeds after it, and nothing more is changed.
    file.sync_all().unwrap_err();
    let error = fs::write(mounts.inside("more"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(mounts.inside("synced")).unwrap(), [3; 100_000]);
    // What only reads goes on.
    mounts.place.run(&["ls", &address]).succeeds();
    drop(file);
    quota("0");
    let _ = mounts.place.run(&["umount", "--timeout", "90", "m"]);
    let log = mounts.log();
    assert!(log.contains("did not answer in time") && log.contains("the journal stopped"), "{log}");
    let found = mounts.place.run(&["cat", &format!("{address}:/synced")]).succeeds();
    assert_eq!(found.output.stdout, [3; 100_000]);
    mounts.place.run(&["check", &address]).succeeds();
    // Who opens it for changes while it is full learns of it in time, too, and what to look at.
    quota("1048576");
    let refused = mounts.place.run(&["mkdir", &format!("{address}:/x")]).ends_with(8);
    refused.complains(&["timed out"]).hints("ceph health detail");
    mounts.place.run(&["cat", &format!("{address}:/synced")]).succeeds();
    quota("0");
    mounts.place.run(&["mkdir", &format!("{address}:/x")]).succeeds();
    node.clean("image", mounts.place.0.path());
}

#[test]
#[ignore = "starts a cluster and waits for its time limits: three minutes"]
fn in_a_real_cluster_a_client_that_dies_or_sleeps_loses_the_image_and_nothing_that_was_synced() {
    let node = require!(Node::start());
    let Some(mounts) = mounts() else { return };
    node.import(&mounts.path("a.img"), "image");
    let address = node.address("image");
    let clock = SystemClock;
    let mount = || {
        let args = ["mount", "--sandbox=off", "--log", "log", &address, "m"];
        mounts.place.run(&args)
    };
    // Nothing is written while its owner is alive, and for as long as it may be.
    let wait_for_lock = |what: &str| {
        let started = clock.monotonic();
        loop {
            let done = mount();
            if done.output.status.success() {
                let waited = clock.monotonic().saturating_sub(started);
                println!("{what}: the lock was had after {:.1} s", waited.as_secs_f64());
                return;
            }
            done.ends_with(7).complains(&["is in use: client.", "exclusive lock"]);
            assert!(clock.monotonic().saturating_sub(started) < Duration::from_secs(90), "{what}");
            clock.sleep(Duration::from_secs(1));
        }
    };
    for round in 0..3u8 {
        match round {
            0 => drop(mount().succeeds()),
            _ => wait_for_lock("after a kill"),
        }
        for older in 0..round {
            let found = fs::read(mounts.inside(&format!("synced-{older}"))).unwrap();
            assert!(found == [older; 100_000], "round {round}, file {older}");
        }
        fs::write(mounts.inside(&format!("unsynced-{round}")), vec![1; 5 << 20]).unwrap();
        synced(&mounts.inside(&format!("synced-{round}")), round);
        fs::write(mounts.inside(&format!("lost-{round}")), vec![2; 5 << 20]).unwrap();
        // A second writer is refused by name, and a reader is not.
        let second = mounts.place.run(&["mkdir", &format!("{address}:/second")]);
        second.ends_with(7).complains(&["is in use: client.", "at 127.0.0.1:0/"]);
        mounts.place.run(&["ls", &address]).succeeds();
        kill(&mounts);
    }
    wait_for_lock("after the last kill");
    // One who sleeps for too long is shut out, and finds that out.
    let (_, server) = mounts.processes();
    signal(server, Signal::STOP);
    let started = clock.monotonic();
    loop {
        let done = mounts.place.run(&["mkdir", &format!("{address}:/second")]);
        if done.output.status.success() {
            break;
        }
        done.ends_with(7);
        assert!(clock.monotonic().saturating_sub(started) < Duration::from_secs(90));
        clock.sleep(Duration::from_secs(1));
    }
    signal(server, Signal::CONT);
    // Where it notices is open; that it does is not.
    let late = fs::File::create(mounts.inside("too-late")).and_then(|mut file| {
        file.write_all(&[7; 100_000])?;
        file.sync_all()
    });
    late.unwrap_err();
    let _ = mounts.place.run(&["umount", "--timeout", "90", "m"]);
    let log = mounts.log();
    assert!(log.contains("blocklisted"), "{log}");
    mounts.place.run(&["ls", &format!("{address}:/too-late")]).ends_with(9);
    mounts.place.run(&["stat", &format!("{address}:/second")]).succeeds();
    mounts.place.run(&["check", &address]).succeeds();
    // A cluster that stops answers nobody, and then nobody waits without end.
    let pids = fs::read_to_string(node.dir.path().join("pids")).unwrap();
    let osd: i32 = pids.lines().nth(1).unwrap().parse().unwrap();
    node.ceph(&["rbd", "create", "-s", "8M", "rbd/other"]);
    let short = Address::parse(&(node.address("other") + ":rados_osd_op_timeout=3")).unwrap();
    let device = RbdDevice::open(&short, false, &Settings::default()).unwrap();
    device.write_at(0, &[1; 4096]).unwrap();
    device.flush().unwrap();
    signal(osd, Signal::STOP);
    let started = clock.monotonic();
    let read = device.read_at(0, &mut [0; 4096]).unwrap_err();
    let written = device.write_at(0, &[2; 4096]).and_then(|()| device.flush()).unwrap_err();
    let waited = clock.monotonic().saturating_sub(started);
    signal(osd, Signal::CONT);
    println!("no answer: {:.1} s, {read}, {written}", waited.as_secs_f64());
    assert!(waited < Duration::from_secs(40));
    // What was said to be in doubt may be there by now: nothing else may be written before it.
    device.flush().unwrap_err();
    device.write_at(0, &[3; 4096]).unwrap_err();
    drop(device);
    let device = RbdDevice::open(&short, false, &Settings::default()).unwrap();
    let mut bytes = [0; 4096];
    device.read_at(0, &mut bytes).unwrap();
    println!("the write that nobody answered was made: {}", bytes == [2; 4096]);
    assert!(bytes == [1; 4096] || bytes == [2; 4096]);
    device.write_at(0, &[3; 4096]).and_then(|()| device.flush()).unwrap();
    mounts.place.run(&["ls", &address]).succeeds();
}

/// Random reads of 4 KiB, 64 under way, for that long: how many in a second.
fn random_reads(device: &RbdDevice, time: Duration) -> f64 {
    let clock = SystemClock;
    let started = clock.monotonic();
    let mut random = Prng::new(1);
    let mut queue = device.queue(&QueueOptions::default().depth(64));
    let mut read = |buffer| Operation::Read {
        offset: random.below(device.size_bytes() / 4096) * 4096,
        buffer,
    };
    let mut done = 0u64;
    for tag in 0..64 {
        queue.push(tag, read(AlignedBuffer::zeroed(4096))).unwrap();
    }
    while let Some(finished) = queue.advance() {
        done += 1;
        let buffer = finished.completion.into_buffer().unwrap();
        if clock.monotonic() - started < time {
            queue.push(finished.tag, read(buffer)).unwrap();
        }
    }
    done as f64 / (clock.monotonic() - started).as_secs_f64()
}

#[test]
#[ignore = "starts a cluster and measures: a minute; a figure, and no verdict below half of fio"]
fn random_reads_of_a_real_cluster_beside_fio() {
    let node = require!(Node::start());
    let engines = Command::new("fio").arg("--enghelp").output();
    if !engines.is_ok_and(|found| String::from_utf8_lossy(&found.stdout).contains("rbd")) {
        skip!("there is no fio with its engine rbd");
    }
    node.ceph(&["rbd", "create", "-s", "256M", "rbd/image"]);
    let device = RbdDevice::open(
        &Address::parse(&node.address("image")).unwrap(),
        false,
        &Settings::default(),
    );
    let device = device.unwrap();
    for number in 0..64u64 {
        device.write_at(number << 22, &vec![number as u8 | 1; 4 << 20]).unwrap();
    }
    device.flush().unwrap();
    drop(device);
    let fio = || {
        let out = node.ceph(&[
            "fio",
            "--name=r",
            "--ioengine=rbd",
            "--clientname=admin",
            "--pool=rbd",
            "--rbdname=image",
            "--rw=randread",
            "--bs=4k",
            "--iodepth=64",
            "--runtime=8",
            "--time_based",
            "--output-format=json",
        ]);
        let json = &out[out.find('{').unwrap()..];
        let told: serde_json::Value = serde_json::from_str(json).unwrap();
        told["jobs"][0]["read"]["iops"].as_f64().unwrap()
    };
    let ours = || {
        let address = Address::parse(&node.address("image")).unwrap();
        let device = RbdDevice::open(&address, true, &Settings::default()).unwrap();
        random_reads(&device, Duration::from_secs(8))
    };
    let mut rounds: Vec<(f64, f64)> = (0..3).map(|_| (ours(), fio())).collect();
    for (ours, fio) in &rounds {
        println!("4 KiB at random, 64 under way: extant {ours:.0}/s, fio {fio:.0}/s");
    }
    rounds.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    assert!(rounds[1].0 > rounds[1].1 / 2.0);
}
