//! A guest of our own: it sets up memory and queues as a program that runs machines does, and speaks the protocol, well
//! and badly.

mod machine;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::MountOptions;
use extant_block::SharedDevice;
use extant_fuse::{Events, Level, Settings};
use extant_sync::{Mutex, Rank, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};
use extant_virtiofs::{Options, serve};
use machine::{Chain, Machine, Part, op};

const ROOT: u64 = 1;

struct Log(Mutex<Vec<String>>);

impl Events for Log {
    fn ready(&self) {}

    fn log(&self, _: Level, text: &str) {
        self.0.lock().push(text.to_owned());
    }
}

/// Serves a new file system to `work`, which gets the path of the socket; then the image must be clean. Returns what was
/// logged.
fn served(read_only: bool, work: impl FnOnce(&Path) + Send) -> Result<Vec<String>, String> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, "16M", &["-t", "ext4"])?;
    let device = Arc::new(image::load(&path));
    let open = Arc::clone(&device) as SharedDevice;
    let fs = MountOptions::new().read_only(read_only).open_shared(open).unwrap();
    let socket = dir.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (end, log) = (AtomicBool::new(false), Log(Mutex::new(Rank::Leaf, Vec::new())));
    let result = threads::scope(|scope| {
        let (end, log) = (&end, &log);
        let server = scope.spawn("server", move || {
            serve(listener, fs, &Options::default(), &Settings::default(), log, end)
        });
        let guest = scope.spawn("guest", || work(&socket)).unwrap().join();
        end.store(true, Ordering::Release);
        server.unwrap().join().unwrap().unwrap();
        guest
    });
    result.unwrap().unwrap();
    let after = dir.path().join("after");
    image::save(&device, &after);
    e2fsck(&after)?.assert_clean();
    Ok(log.0.into_inner())
}

#[test]
fn a_guest_reads_and_writes_and_another_one_sees_it() {
    require!(served(false, |socket| {
        let machine = Machine::start(socket);
        let out = machine.init();
        assert_eq!(out[..4], 7u32.to_ne_bytes());
        let flags = u32::from_ne_bytes(out[12..16].try_into().unwrap());
        assert_eq!(flags & 1 << 16, 0, "a guest cannot be told to bring back what it collects");
        let (node, file) = machine.create(ROOT, "file");
        let bytes: Vec<u8> = (0..1_000_000u32).map(|at| (at / 11) as u8).collect();
        assert_eq!(machine.write(node, file, 5, &bytes), Ok(bytes.len() as u32));
        assert_eq!(machine.read(node, file, 5, bytes.len() as u32).unwrap(), bytes);
        assert_eq!(machine.read(node, file, 0, 4096).unwrap()[..5], [0; 5]);
        assert_eq!(machine.read(node, file, 1_000_004, 4096).unwrap(), bytes[999_999..]);
        assert_eq!(machine.read(node, file, 1_000_005, 4096).unwrap(), [0; 0]);
        machine.ask(op::FSYNC, node, &[&file.to_ne_bytes(), &[0; 8]], 0).unwrap();
        machine.lookup(ROOT, "none").unwrap_err();
        machine.ask(op::DESTROY, 0, &[], 0).unwrap();
        drop(machine);
        let another = Machine::start(socket);
        another.init();
        let (node, size) = another.lookup(ROOT, "file").unwrap();
        assert_eq!(size, 1_000_005);
        let file = another.open(node, 0).unwrap();
        assert_eq!(another.read(node, file, 5, bytes.len() as u32).unwrap(), bytes);
        // Two queues, and the one for urgent requests, which has no answer.
        another.on(2).lookup(ROOT, "file").unwrap();
        another.on(0).ask_silently(op::FORGET, node, &[&1u64.to_ne_bytes()]);
    }));
}

#[test]
fn a_request_that_comes_while_an_empty_queue_is_looked_at_is_answered() {
    require!(served(false, |socket| {
        let machine = Machine::start(socket);
        machine.init();
        for _ in 0..3000 {
            machine.kick();
            machine.lookup(ROOT, "none").unwrap_err();
        }
    }));
}

#[test]
fn nothing_is_answered_before_the_first_request_and_a_new_guest_begins_anew() {
    require!(served(false, |socket| {
        let machine = Machine::start(socket);
        assert_eq!(machine.lookup(ROOT, "file").unwrap_err(), 5);
        machine.init();
        let (node, file) = machine.create(ROOT, "open");
        machine.write(node, file, 0, b"contents").unwrap();
        machine.ask(op::UNLINK, ROOT, &[b"open\0"], 0).unwrap();
        assert_eq!(machine.read(node, file, 0, 100).unwrap(), b"contents", "open, without a name");
        drop(machine);
        // The connection was lost, the guest was not: what it has open is there.
        let same = Machine::start(socket);
        assert_eq!(same.read(node, file, 0, 100).unwrap(), b"contents");
        // It was started anew: nobody has it open.
        same.init();
        assert_eq!(same.read(node, file, 0, 100).unwrap_err(), 116);
    }));
}

#[test]
fn a_guest_gives_no_orders_and_a_read_only_one_writes_nothing() {
    require!(served(false, |socket| {
        let machine = Machine::start(socket);
        machine.init();
        let (node, _) = machine.create(ROOT, "file");
        for name in ["extant.order.freeze", "extant.order.grow=max", "extant.stats"] {
            let asked = [&4096u64.to_ne_bytes()[..], name.as_bytes(), b"\0"];
            let refused = machine.ask(op::GETXATTR, ROOT, &asked, 4096).unwrap_err();
            assert!(refused == 1 || refused == 61, "{name}: {refused}");
        }
        // EXT4_IOC_RESIZE_FS, and EXT4_IOC_SHUTDOWN with an argument that lies in no memory of this host.
        for (command, input) in [(0x4008_6610u32, 8u32), (0x8004_587d, 0)] {
            let mut head = [0u8; 32];
            head[12..16].copy_from_slice(&command.to_ne_bytes());
            head[24..28].copy_from_slice(&input.to_ne_bytes());
            let input = vec![0xff; input as usize];
            assert_eq!(machine.ask(op::IOCTL, node, &[&head, &input], 4096).unwrap_err(), 1);
        }
        // It cannot be told that a write takes set-id bits: it has to ask.
        assert_eq!(machine.set_mode(node, 0o4755), 0);
        assert_eq!(machine.set_mode(node, 0o755), 1);
    }));
    require!(served(true, |socket| {
        let machine = Machine::start(socket);
        machine.init();
        assert_eq!(machine.ask(op::MKDIR, ROOT, &[&[0; 8], b"d\0"], 4096).unwrap_err(), 30);
    }));
}

#[test]
fn hostile_queues_get_their_places_back_and_harm_nobody() {
    let logged = require!(served(false, |socket| {
        let machine = Machine::start(socket);
        machine.init();
        let lookup = machine.request(op::LOOKUP, ROOT, &[b"none\0"]);
        let good = Part::readable(&lookup);
        let room = Part::writable(4096);
        // Outside of the memory, at its end, lengths that overflow.
        for (at, len) in [(1 << 40, 100), (u64::MAX, 100), (machine.end() - 4, 100), (0, u32::MAX)]
        {
            let out = Part::readable(&[0; 8]).with_len(len).at(at);
            assert_eq!(machine.put(Chain::of(std::slice::from_ref(&out))), Some(0));
            assert_eq!(machine.put(Chain::of(&[good.clone(), out.into_writable()])), Some(0));
        }
        // A loop, a next one that is none, a table inside a table, a table that is cut off.
        let looping = Chain::of(&[good.clone(), room.clone()]).with_next(1, 0);
        machine.put(looping).expect("an end");
        machine.put(Chain::of(&[good.clone(), room.clone()]).with_next(0, 60_000)).expect("an end");
        machine.put(Chain::of(&[good.clone().into_table(), room.clone()])).expect("an end");
        // Too short for a header, for what it says, longer than any request.
        for len in [0, 1, 39, 41] {
            machine.put(Chain::of(&[good.clone().with_len(len), room.clone()])).expect("an end");
        }
        let long = machine.request(op::WRITE, ROOT, &[&vec![7; 2 << 20]]);
        machine.put(Chain::of(&[Part::readable(&long), room.clone()])).expect("an end");
        // No room for an answer, or for less than one.
        for len in [0, 1, 15, 16, 17] {
            let answer = machine.put(Chain::of(&[good.clone(), Part::writable(len)])).unwrap();
            assert!(answer == 0 || answer == 16, "{answer} bytes for {len}");
        }
        // A read with less room than it asks for.
        let (node, file) = machine.create(ROOT, "file");
        machine.write(node, file, 0, &[1; 8192]).unwrap();
        let read = machine.request(op::READ, node, &[&machine.read_in(file, 0, 8192)]);
        assert_eq!(
            machine.put(Chain::of(&[Part::readable(&read), Part::writable(4096)])),
            Some(16)
        );
        // Sizes inside of requests, at all of them.
        for opcode in 0..60 {
            for body in [vec![], vec![0xff; 24], vec![0xff; 200], vec![0; 200]] {
                if opcode != op::INIT && opcode != op::DESTROY {
                    let about = if opcode == op::FORGET { 77 } else { node };
                    let bytes = machine.request(opcode, about, &[&body]);
                    let chain = Chain::of(&[Part::readable(&bytes), Part::writable(70_000)]);
                    machine.put(chain).expect("an end");
                }
            }
        }
        machine.read(node, file, 0, 10).unwrap();
        // A position that no queue can have: the queue rests, and another one does not.
        machine.on(2).skip(40_000);
        machine.lookup(ROOT, "file").unwrap();
    }));
    assert!(!logged.iter().any(|line| line.contains("bug")), "{logged:#?}");
    assert!(logged.len() < 200, "{} lines", logged.len());
}

#[test]
fn a_machine_that_is_gone_in_the_middle_leaves_what_it_synced_and_room_for_the_next() {
    require!(served(false, |socket| {
        for round in 0..6u8 {
            let machine = Machine::start(socket);
            machine.init();
            let (node, file) = machine.create(ROOT, &format!("file{round}"));
            machine.write(node, file, 0, &[round; 5000]).unwrap();
            machine.ask(op::FSYNC, node, &[&file.to_ne_bytes(), &[0; 8]], 0).unwrap();
            for at in 0..10 {
                let body = machine.write_in(file, at * 100_000, 100_000);
                let bytes = machine.request(op::WRITE, node, &[&body, &vec![9; 100_000]]);
                machine.put_and_leave(Chain::of(&[Part::readable(&bytes), Part::writable(64)]));
            }
            // Not even its queues are taken back.
            drop(machine);
        }
        // Who says nothing, and who says nonsense.
        drop(UnixStream::connect(socket).unwrap());
        let nonsense = UnixStream::connect(socket).unwrap();
        std::io::Write::write_all(&mut &nonsense, &[0xff; 300]).unwrap();
        drop(nonsense);
        let machine = Machine::start(socket);
        machine.init();
        for round in 0..6u8 {
            let (node, size) = machine.lookup(ROOT, &format!("file{round}")).unwrap();
            assert!(size >= 5000);
            let file = machine.open(node, 0).unwrap();
            let first = machine.read(node, file, 0, 5000).unwrap();
            assert!(first.iter().all(|byte| *byte == round || *byte == 9), "{round}");
        }
        // Of a queue that is taken back, all that was taken from it is answered.
        let (node, file) = machine.create(ROOT, "last");
        let body = machine.write_in(file, 0, 100_000);
        let bytes = machine.request(op::WRITE, node, &[&body, &vec![3; 100_000]]);
        machine.put_and_leave(Chain::of(&[Part::readable(&bytes), Part::writable(64)]));
        let taken = machine.take_back_queue();
        assert_eq!(u32::from(machine.used()), taken);
    }));
}

#[test]
fn a_full_device_is_told_and_the_guest_goes_on() {
    require!(served(false, |socket| {
        let machine = Machine::start(socket);
        machine.init();
        let (node, file) = machine.create(ROOT, "file");
        let piece = vec![1; 1 << 20];
        let full = (0..32).find_map(|at| machine.write(node, file, at << 20, &piece).err());
        assert_eq!(full, Some(28));
        machine.ask(op::FSYNC, node, &[&file.to_ne_bytes(), &[0; 8]], 0).unwrap();
        machine.ask(op::UNLINK, ROOT, &[b"file\0"], 0).unwrap();
        machine.ask_silently(op::RELEASE, node, &[&file.to_ne_bytes(), &[0; 16]]);
        machine.ask_silently(op::FORGET, node, &[&1u64.to_ne_bytes()]);
        machine.ask(op::STATFS, ROOT, &[], 80).unwrap();
        let (node, file) = machine.create(ROOT, "again");
        assert_eq!(machine.write(node, file, 0, &piece), Ok(1 << 20));
    }));
}
