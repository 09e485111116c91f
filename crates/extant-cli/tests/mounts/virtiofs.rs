//! `extant serve virtiofs`: the command, its sandbox and its end, with a guest of our own and with Linux.

// The guest of the tests of the device itself.

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::machine;
use crate::support;
use machine::{Machine, op};
use rustix::process::Signal;
use support::mounts::signal;
use support::{Place, text, tool};

const ROOT: u64 = 1;

/// A server that runs until the test ends it.
struct Served(Child);

impl Served {
    fn start(place: &Place, options: &[&str]) -> Served {
        let args = [&["serve", "virtiofs", "a.img", "--socket", "s"], options].concat();
        let mut command = place.command(&args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "s\n");
        Served(child)
    }

    /// Ends it; it says nothing.
    fn end(mut self, by: Signal) {
        signal(self.0.id().cast_signed(), by);
        let status = self.0.wait().unwrap();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let notes = said.lines().filter(|line| !line.starts_with("extant: note: sandbox without"));
        assert_eq!(notes.collect::<Vec<_>>(), [""; 0]);
        assert!(status.success(), "{status}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn assert_clean(place: &Place) {
    if let Some(checked) = tool("e2fsck", &["-fn", "a.img"], place.0.path()) {
        assert!(checked.status.success(), "{}", text(&checked));
    }
    place.run(&["check", "a.img"]).succeeds();
}

#[test]
fn what_a_guest_writes_is_in_the_image_when_the_server_was_ended() {
    let place = Place::with_image();
    let served = Served::start(&place, &[]);
    let socket = fs::metadata(place.path("s")).unwrap();
    assert!(socket.file_type().is_socket() && socket.permissions().mode() & 0o077 == 0);
    let machine = Machine::start(&place.path("s"));
    machine.init();
    let (node, size) = machine.lookup(ROOT, "file").unwrap();
    let file = machine.open(node, 0).unwrap();
    assert_eq!((size, machine.read(node, file, 0, 4096).unwrap()), (6, b"hello\n".to_vec()));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at / 11) as u8).collect();
    let (node, file) = machine.create(ROOT, "new");
    for (at, part) in bytes.chunks(1_000_000).enumerate() {
        machine.write(node, file, at as u64 * 1_000_000, part).unwrap();
    }
    // The image is in use, and so is the socket.
    let again = ["serve", "virtiofs", "a.img", "--socket", "t"];
    place.run(&again).ends_with(7).complains(&["a.img", "in use"]);
    fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
    let other = ["serve", "virtiofs", "b.img", "--socket", "s"];
    place.run(&other).ends_with(8).complains(&["cannot make the socket"]);
    served.end(Signal::TERM);
    drop(machine);
    assert_clean(&place);
    assert!(place.run(&["cat", "a.img:/new"]).succeeds().output.stdout == bytes);
    // The socket of before is replaced; anything else is not.
    let served = Served::start(&place, &["--read-only"]);
    let machine = Machine::start(&place.path("s"));
    machine.init();
    assert_eq!(machine.lookup(ROOT, "new").unwrap().1, bytes.len() as u64);
    assert_eq!(machine.ask(op::UNLINK, ROOT, &[b"new\0"], 0), Err(30));
    served.end(Signal::INT);
    assert_clean(&place);
    let _ = fs::remove_file(place.path("s"));
    fs::write(place.path("s"), "a file").unwrap();
    place.run(&other).ends_with(8).complains(&["cannot make the socket"]);
    assert_eq!(fs::read(place.path("s")).unwrap(), b"a file");
}

#[test]
#[ignore = "boots a machine: for `make test-long`"]
fn linux_in_a_machine_reads_and_writes() {
    let place = Place::with_image();
    let large = ["build", "a.img", "--force", "--from", "source", "--size", "256M", "-q"];
    place.run(&large).succeeds();
    let served = Served::start(&place, &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/boot-virtiofs");
    // Many at once, with small and large files, so that the queue is full and notifications are left out.
    let commands = "echo \"guest: $(cat file), $(readlink dir/link), $(stat -c %a dir)\"
for n in 1 2 3 4 5 6 7 8; do
  (for m in $(seq 200); do echo $n $m > w$n.$m; done
  dd if=/dev/urandom of=big$n bs=1M count=4 2> /dev/null; md5sum big$n > sum$n) &
done
wait
echo 3 > /proc/sys/vm/drop_caches
md5sum -c sum* > /tmp/sums && echo 'guest: all sums are right'
echo \"guest: $(cat w*.* | wc -l) files\"
rm w1.*; mv big1 dir/moved; mkdir made; chmod 700 made; ln -s x made/link
mv file dir/deep/file && sync && echo 'guest: synced'";
    let output = Command::new(script).arg(place.path("s")).arg(commands).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    if output.status.code() == Some(77) {
        println!("{}", said.trim());
        return served.end(Signal::TERM);
    }
    let said = said + &String::from_utf8_lossy(&output.stderr);
    for wanted in [
        "guest: hello, ../file, 710",
        "guest: all sums are right",
        "guest: 1600 files",
        "guest: synced",
        "boot: unmounted",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    served.end(Signal::TERM);
    assert_clean(&place);
    assert_eq!(place.run(&["cat", "a.img:/dir/deep/file"]).succeeds().out(), "hello\n");
    assert_eq!(place.run(&["cat", "a.img:/w8.200"]).succeeds().out(), "8 200\n");
    place.run(&["cat", "a.img:/w1.1"]).ends_with(9);
    // The sums that the guest took, of what is in the image.
    place.run(&["extract", "a.img:/", "out"]).succeeds();
    fs::rename(place.path("out/dir/moved"), place.path("out/big1")).unwrap();
    for n in 1..=8 {
        let sum = format!("sum{n}");
        if let Some(checked) = tool("md5sum", &["-c", &sum], &place.path("out")) {
            assert!(checked.status.success(), "{}", text(&checked));
        }
    }
}
