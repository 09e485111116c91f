//! Encrypted directories by the command, with `--key-file`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use extant::{EncryptionPolicy, MasterKey, MountOptions, NewInode};

use crate::support;
use support::Place;

/// An image with the encrypted directory `private`, and the file `key`; `None` without mke2fs.
fn place() -> Option<Place> {
    let place = Place::new();
    let image = place.path("a.img");
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-O", "encrypt"])
        .arg(&image)
        .arg("16M")
        .status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs mke2fs");
        return None;
    }
    let raw: Vec<u8> = (0..64).map(|n| n * 3).collect();
    fs::write(place.path("key"), &raw).unwrap();
    let digits: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(place.path("digits"), format!("{digits}\n")).unwrap();
    fs::write(place.path("other"), [7; 64]).unwrap();
    fs::write(place.path("short"), [7; 9]).unwrap();
    let fs = MountOptions::new().read_only(false).open_path(&image).unwrap();
    let key = fs.add_key(MasterKey::new(&raw).unwrap()).unwrap();
    let dir = fs.root().unwrap().mkdir("private", &NewInode::root(0o755)).unwrap();
    dir.set_encryption_policy(&EncryptionPolicy::new(key)).unwrap();
    fs.write("/private/letter", "dear reader\n").unwrap();
    drop(dir);
    fs.unmount().unwrap();
    Some(place)
}

#[test]
fn who_encrypts_without_the_feature_hears_how_to_get_it() {
    let place = Place::new();
    std::fs::write(place.path("key"), [7; 64]).unwrap();
    place.run(&["mkfs", "-q", "a.img", "8M"]).succeeds();
    place.run(&["mkdir", "a.img:/home"]).succeeds();
    let encrypt = ["encrypt", "--key-file", "key", "a.img:/home"];
    let ran = place.run(&encrypt).ends_with(7);
    ran.complains(&["the feature encrypt"]).hints("extant tune -O encrypt");
    place.run(&["chattr", "+F", "a.img:/home"]).ends_with(7).hints("extant tune -O casefold");
    place.run(&["chattr", "-p", "7", "a.img:/home"]).ends_with(7).hints("extant tune -O project");
    place.run(&["tune", "-O", "encrypt", "a.img"]).succeeds();
    place.run(&encrypt).succeeds();
}

#[test]
fn files_are_read_and_written_with_the_key() {
    let Some(place) = place() else { return };
    for key in ["key", "digits"] {
        let read = place.run(&["cat", "--key-file", key, "a.img:/private/letter"]).succeeds();
        assert_eq!(read.out(), "dear reader\n");
    }
    fs::write(place.path("new"), "an answer\n").unwrap();
    place.run(&["cp", "--key-file", "key", "new", "a.img:/private/answer"]).succeeds();
    let listed = place.run(&["ls", "--key-file", "key", "a.img:/private"]).succeeds();
    assert_eq!(listed.out(), "answer\nletter\n");
    place.run(&["cp", "--key-file", "key", "-r", "a.img:/private", "copy"]).succeeds();
    assert_eq!(fs::read_to_string(place.path("copy/answer")).unwrap(), "an answer\n");
    place.run(&["check", "a.img"]).succeeds();
    // Without the key, and with another one.
    for args in [&["ls"][..], &["ls", "--key-file", "other"]] {
        let listed = place.run(&[args, &["a.img:/private"]].concat()).succeeds();
        assert!(!listed.out().contains("letter") && listed.out().lines().count() == 2);
        let name = listed.out().lines().next().unwrap().to_owned();
        let path = format!("a.img:/private/{name}");
        place.run(&["cat", &path]).ends_with(5).complains(&["encrypted with the key"]);
    }
    place.run(&["cp", "new", "a.img:/private/more"]).ends_with(5);
    place.run(&["ls", "--key-file", "short", "a.img:/"]).ends_with(2).complains(&["16 to 64"]);
    place.run(&["ls", "--key-file", "none", "a.img:/"]).ends_with(2).complains(&["none"]);
}

#[test]
fn a_mount_has_the_key() {
    let Some(place) = place() else { return };
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs /dev/fuse");
        return;
    }
    fs::create_dir(place.path("mnt")).unwrap();
    place.run(&["mount", "--key-file", "key", "a.img", "mnt"]).succeeds();
    let inside = |name: &str| place.path("mnt/private").join(name);
    let seen = fs::read_to_string(inside("letter"));
    let written = fs::write(inside("by a program"), vec![b'z'; 100_000])
        .and_then(|()| fs::rename(inside("by a program"), inside("renamed")));
    place.run(&["umount", "mnt"]).succeeds();
    assert_eq!(seen.unwrap(), "dear reader\n");
    written.unwrap();
    let read = place.run(&["cat", "--key-file", "key", "a.img:/private/renamed"]).succeeds();
    assert_eq!(read.out(), "z".repeat(100_000));
    place.run(&["check", "a.img"]).succeeds();
}

/// The control operations of fscrypt, as programs use them.
const KEYS: &str = r#"
import errno, fcntl, os, struct, sys
d = sys.argv[1]
raw = open(sys.argv[2], "rb").read()
fd = os.open(d, os.O_RDONLY)

def spec(name):
    return struct.pack("<II", 2 if len(name) == 16 else 1, 0) + name.ljust(32, b"\0")

def call(number, arg, at=None):
    arg = bytearray(arg)
    try:
        fcntl.ioctl(fd if at is None else at, number, arg, True)
    except OSError as error:
        return errno.errorcode[error.errno]
    return bytes(arg)

def add(raw, name=b""):
    head = spec(name) if name else struct.pack("<II", 2, 0) + bytes(32)
    done = call(0xC0506617, head + struct.pack("<II", len(raw), 0) + bytes(32) + raw)
    return done if isinstance(done, str) else done[8:24]

def remove(name, number=0xC0406618):
    done = call(number, spec(name) + bytes(24))
    return done if isinstance(done, str) else struct.unpack_from("<I", done, 40)[0]

def status(name):
    done = call(0xC080661A, spec(name) + bytes(88))
    return struct.unpack_from("<III", done, 64)

def set_policy(path, policy):
    at = os.open(path, os.O_RDONLY)
    done = call(0x800C6613, policy, at)
    os.close(at)
    return done if isinstance(done, str) else "done"

def policy_ex(path, room=24):
    at = os.open(path, os.O_RDONLY)
    done = call(0xC0096616, struct.pack("<Q", room) + bytes(24), at)
    os.close(at)
    return done if isinstance(done, str) else done[8:8 + struct.unpack_from("<Q", done)[0]]

def nonce(path):
    at = os.open(path, os.O_RDONLY)
    done = call(0x8010661B, bytes(16), at)
    os.close(at)
    return done

# Keys come: wrong ones are refused, the right one is there once however often it is added.
assert add(raw[:15]) == "EINVAL" and add(raw + b"x") == "EINVAL"
name = add(raw)
assert len(name) == 16 and add(raw) == name
assert status(name) == (2, 1, 1), status(name)
assert status(b"?" * 16)[0] == 1 and remove(b"?" * 16) == "ENOKEY"
v2 = bytes([2, 1, 4, 3, 0, 0, 0, 0]) + name
private = os.path.join(d, "private")
os.mkdir(private)
assert policy_ex(private) == "ENODATA"
assert set_policy(private, v2[:1] + b"\x63" + v2[2:]) == "EINVAL"
other = os.path.join(d, "other")
os.mkdir(other)
# Linux lets root name a key that is not there.
assert set_policy(other, v2[:8] + b"?" * 16) in ("ENOKEY", "done")
os.rmdir(other)
assert set_policy(private, v2) == "done" and set_policy(private, v2) == "done"
assert set_policy(private, v2[:3] + b"\0" + v2[4:]) == "EEXIST"
assert set_policy(d, v2) == "EPERM" or set_policy(d, v2) == "ENOTEMPTY"
assert policy_ex(private) == v2, policy_ex(private)
assert policy_ex(private, 23) == "EOVERFLOW"
at = os.open(private, os.O_RDONLY)
assert call(0x400C6615, bytes(12), at) == "EINVAL", "it is of version 2"
os.close(at)
# Version 1, without its key and with it.
old = os.path.join(d, "old")
os.mkdir(old)
v1 = bytes([0, 1, 4, 2]) + b"descript"
assert set_policy(old, v1) == "done"
at = os.open(old, os.O_RDONLY)
assert call(0x400C6615, bytes(12), at) == v1
os.close(at)
assert policy_ex(old) == v1
try:
    open(os.path.join(old, "file"), "w")
    assert False
except OSError as error:
    assert error.errno == errno.ENOKEY
assert add(raw, b"descript") != "" and status(b"descript")[0] == 2
with open(os.path.join(old, "file"), "w") as file:
    file.write("of version 1")
assert remove(b"descript") == 0 and status(b"descript")[0] == 1
assert call(0x40106614, bytes(16)) == call(0x40106614, bytes(16)) != bytes(16)
# What is in it, with the key.
path = lambda name: os.path.join(private, name)
open(path("letter"), "w").write("dear reader")
os.mkdir(path("sub"))
open(path("sub/deep"), "wb").write(b"z" * 300000)
os.symlink("target", path("link"))
assert len(nonce(path("letter"))) == 16 and nonce(path("letter")) != nonce(path("sub"))
at = os.open(path("letter"), os.O_RDONLY)
assert struct.unpack("<Q", call(0x80086601, bytes(8), at))[0] & 0x800, "lsattr shows E"
os.close(at)
# The key goes while a file is open and dirty.
busy = open(path("busy"), "wb+", buffering=0)
busy.write(b"before " * 20000)
reader = open(path("letter"))
mapped = __import__("mmap").mmap(busy.fileno(), 0)
mapped[:6] = b"BEFORE"
assert remove(name) == 1, "files are busy"
assert status(name)[0] == 3
names = os.listdir(private)
assert len(names) == 4 and "letter" not in names and "busy" not in names, names
assert not os.path.exists(path("letter"))
busy.write(b"after")
assert os.pread(busy.fileno(), 6, 0) == b"BEFORE"
assert reader.read() == "dear reader"
def opens(shown):
    try:
        os.close(os.open(path(shown), os.O_RDONLY | os.O_NOFOLLOW))
        return 0
    except OSError as error:
        return error.errno

# Of those in use nothing is locked yet; a link is none that O_NOFOLLOW opens.
files = [shown for shown in names if not os.path.isdir(path(shown))]
assert sorted(map(opens, files)) == [0, 0, errno.ELOOP], files
sub, = set(names) - set(files)
deep, = os.listdir(path(sub))
assert deep != "deep" and opens(os.path.join(sub, deep)) == errno.ENOKEY
try:
    open(path("new"), "w")
    assert False
except OSError as error:
    assert error.errno == errno.ENOKEY
mapped.close()
busy.close()
reader.close()
assert remove(name) in (0, 1, "ENOKEY")
for _ in range(50):
    if status(name)[0] == 1: break
    __import__("time").sleep(0.1)
assert status(name)[0] == 1, status(name)
# And comes back.
assert add(raw) == name
assert open(path("letter")).read() == "dear reader"
kept = open(path("busy"), "rb").read()
assert kept == b"BEFORE " + b"before " * 19999 + b"after", kept[:20]
assert open(path("sub/deep"), "rb").read() == b"z" * 300000
assert os.readlink(path("link")) == "target"
assert remove(name, 0xC0406619) == 0 and status(name)[0] == 1
print("all is well")
"#;

#[test]
fn keys_come_and_go_on_a_mount() {
    let Some(place) = place() else { return };
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !Path::new("/dev/fuse").exists() || !is_root || !has_python {
        eprintln!("skipped: needs /dev/fuse, root and python3");
        return;
    }
    place.run(&["rm", "-r", "a.img:/private"]).succeeds();
    fs::create_dir(place.path("mnt")).unwrap();
    for sandbox in ["sandbox", "nosandbox"] {
        place.run(&["mount", "-o", sandbox, "a.img", "mnt"]).succeeds();
        let done = Command::new("python3")
            .args(["-c", KEYS])
            .args([place.path("mnt"), place.path("key")])
            .output()
            .unwrap();
        place.run(&["umount", "mnt"]).succeeds();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{sandbox}: {said}");
        place.run(&["check", "a.img"]).succeeds();
        let read = place.run(&["cat", "--key-file", "key", "a.img:/private/letter"]).succeeds();
        assert_eq!(read.out(), "dear reader");
        let old = "6465736372697074=key";
        let read = place.run(&["cat", "--key-file", old, "a.img:/old/file"]).succeeds();
        assert_eq!(read.out(), "of version 1");
        place.run(&["rm", "-r", "a.img:/private", "a.img:/old"]).succeeds();
    }
}

/// Follows the functions of [`KEYS`]: what root and another user may do with a key.
const USERS: &str = r#"
os.mkdir(d + "/own")
os.chown(d + "/own", 1234, 1234)
os.mkdir(d + "/others")
name = add(raw)
v2 = bytes([2, 1, 4, 3, 0, 0, 0, 0]) + name
print("root", status(name), flush=True)
child = os.fork()
if child == 0:
    os.setgid(1234)
    os.setuid(1234)
    print(status(name), set_policy(d + "/own", v2), set_policy(d + "/others", v2))
    print(remove(name), remove(name, 0xC0406619), add(raw, b"descript"))
    print(add(raw) == name, status(name), set_policy(d + "/own", v2))
    print(remove(name), status(name), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("root", status(name), remove(name), status(name))
"#;

#[test]
fn users_have_keys_of_their_own_as_on_the_kernels_mount() {
    let Some(place) = place() else { return };
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    if !Path::new("/dev/fuse").exists() || !is_root {
        eprintln!("skipped: needs /dev/fuse and root");
        return;
    }
    fs::set_permissions(place.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mnt = place.path("mnt");
    fs::create_dir(&mnt).unwrap();
    fs::copy(place.path("a.img"), place.path("b.img")).unwrap();
    let functions = KEYS.split("# Keys come").next().unwrap();
    let run = || {
        let script = format!("{functions}{USERS}");
        Command::new("python3").args(["-c", &script]).args([&mnt, &place.path("key")]).output()
    };
    place.run(&["mount", "-o", "allow_other", "a.img", "mnt"]).succeeds();
    let ours = run();
    place.run(&["umount", "mnt"]).succeeds();
    let Ok(ours) = ours else {
        eprintln!("skipped: needs python3");
        return;
    };
    let said = String::from_utf8_lossy(&ours.stdout).into_owned();
    assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
    assert_eq!(said.lines().count(), 6, "{said}");
    let mut mount = Command::new("mount");
    mount.args(["-o", "loop"]).arg(place.path("b.img")).arg(&mnt);
    if !mount.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: the kernel mounts no image here");
        return;
    }
    let theirs = run();
    Command::new("umount").arg(&mnt).status().unwrap();
    assert_eq!(said, String::from_utf8_lossy(&theirs.unwrap().stdout));
}

#[test]
fn xfs_io_and_the_kernel_agree_with_a_mount() {
    let Some(place) = place() else { return };
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let xfs_io = |dir: &Path, command: &str| {
        let key = fs::File::open(place.path("key")).unwrap();
        let done = Command::new("xfs_io").args(["-c", command]).arg(dir).stdin(key).output();
        done.map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    if !Path::new("/dev/fuse").exists() || !is_root || xfs_io(place.0.path(), "help").is_err() {
        eprintln!("skipped: needs /dev/fuse, root and xfs_io");
        return;
    }
    fs::create_dir(place.path("mnt")).unwrap();
    place.run(&["mount", "a.img", "mnt"]).succeeds();
    let mnt = place.path("mnt");
    let added = xfs_io(&mnt, "add_enckey").unwrap();
    let name = added.rsplit(' ').next().unwrap().to_owned();
    fs::create_dir(mnt.join("made")).unwrap();
    let set = xfs_io(&mnt.join("made"), &format!("set_encpolicy -v 2 {name}")).unwrap();
    let got = xfs_io(&mnt.join("made"), "get_encpolicy").unwrap();
    let status = xfs_io(&mnt, &format!("enckey_status {name}")).unwrap();
    let letter = fs::read_to_string(mnt.join("private/letter"));
    let written = fs::write(mnt.join("made/by a program"), "contents\n");
    let removed = xfs_io(&mnt, &format!("rm_enckey {name}")).unwrap();
    let after = xfs_io(&mnt, &format!("enckey_status {name}")).unwrap();
    place.run(&["umount", "mnt"]).succeeds();
    let raw = fs::read(place.path("key")).unwrap();
    assert_eq!(name, MasterKey::new(&raw).unwrap().identifier().to_string(), "{added}");
    assert_eq!(set, "");
    assert!(got.contains("Policy version: 2") && got.contains(&name), "{got}");
    assert!(status.starts_with("Present"), "{status}");
    assert_eq!(letter.unwrap(), "dear reader\n");
    written.unwrap();
    // Some versions say nothing of it.
    assert!(removed.is_empty() || removed.ends_with(&name), "{removed}");
    assert!(after.starts_with("Absent"), "{after}");
    // The kernel, with the same key by the same program.
    let mut mount = Command::new("mount");
    mount.args(["-o", "loop"]).arg(place.path("a.img")).arg(&mnt);
    if !mount.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: the kernel mounts no image here");
        return;
    }
    let theirs = xfs_io(&mnt, "add_enckey");
    let read = fs::read_to_string(mnt.join("made/by a program"));
    let policy = xfs_io(&mnt.join("made"), "get_encpolicy");
    Command::new("umount").arg(&mnt).status().unwrap();
    assert_eq!(theirs.unwrap(), added);
    assert_eq!(read.unwrap(), "contents\n");
    assert_eq!(policy.unwrap(), got);
}

#[test]
fn directories_are_encrypted_by_command() {
    let Some(place) = place() else { return };
    place.run(&["mkdir", "a.img:/home", "a.img:/full", "a.img:/full/sub"]).succeeds();
    place.run(&["encrypt", "--key-file", "key", "a.img:/home"]).succeeds();
    place.run(&["encrypt", "--key-file", "digits", "a.img:/home"]).succeeds();
    fs::write(place.path("new"), "an answer\n").unwrap();
    place.run(&["cp", "--key-file", "key", "new", "a.img:/home/answer"]).succeeds();
    let shown = place.run(&["stat", "a.img:/home"]).succeeds().out();
    let line = "Encrypted: AES-256-XTS, AES-256-CBC-CTS, names padded to 32, key ";
    assert!(shown.contains(line), "{shown}");
    let shown = place.run(&["stat", "--json", "a.img:/home"]).succeeds().out();
    assert!(shown.contains("\"version\": 2") && shown.contains("\"padding\": 32"), "{shown}");
    let listed = place.run(&["lsattr", "-d", "a.img:/home"]).succeeds().out();
    assert!(listed.starts_with("---------E"), "{listed}");
    let named = "00112233aabbccdd=key";
    place.run(&["mkdir", "a.img:/old"]).succeeds();
    let args =
        ["encrypt", "--modes", "aes128", "--padding", "4", "--key-file", named, "a.img:/old"];
    place.run(&args).succeeds();
    let shown = place.run(&["stat", "a.img:/old"]).succeeds().out();
    assert!(shown.contains("AES-128-CBC-ESSIV") && shown.contains("key 00112233aabbccdd"));
    for (dir, words, shown) in [
        (
            "hctr2",
            &["--modes", "hctr2"][..],
            "AES-256-XTS, AES-256-HCTR2, names padded to 32, key ",
        ),
        ("adiantum", &["--modes", "adiantum"], "Adiantum, Adiantum, names padded to 32, key "),
        (
            "direct",
            &["--modes", "adiantum", "--vectors", "direct-key", "--padding", "16"],
            "Adiantum, Adiantum, names padded to 16, direct-key, key ",
        ),
    ] {
        let (target, new) = (format!("a.img:/{dir}"), format!("a.img:/{dir}/answer"));
        place.run(&["mkdir", &target]).succeeds();
        place.run(&[&["encrypt", "--key-file", "key"], words, &[&target]].concat()).succeeds();
        let said = place.run(&["stat", &target]).succeeds().out();
        assert!(said.contains(shown), "{said}");
        place.run(&["cp", "--key-file", "key", "new", &new]).succeeds();
        let read = place.run(&["cat", "--key-file", "key", &new]).succeeds();
        assert_eq!(read.out(), "an answer\n");
        place.run(&["cat", &new]).ends_with(9);
    }
    let refused = |args: &[&str], code: i32, words: &[&str]| {
        place.run(&[&["encrypt"], args].concat()).ends_with(code).complains(words);
    };
    refused(&["a.img:/full"], 2, &["--key-file"]);
    refused(&["--key-file", "key", "--key-file", "other", "a.img:/full"], 2, &["once"]);
    refused(&["--key-file", "other", "a.img:/home"], 5, &["/home"]);
    place.run(&["encrypt", "--padding", "5", "--key-file", "key", "a.img:/old"]).ends_with(2);
    for (key, words, why) in [
        ("key", &["--vectors", "direct-key"][..], "--modes aes256: its vectors are too short"),
        ("key", &["--modes", "hctr2", "--vectors", "direct-key"], "--modes hctr2"),
        ("key", &["--modes", "adiantum", "--vectors", "ino-lblk64"], "does not go with"),
        ("key", &["--modes", "aes128", "--vectors", "ino-lblk32"], "does not go with"),
        (named, &["--modes", "hctr2"], "not for policies of version 1"),
        (named, &["--vectors", "ino-lblk64"], "not for policies of version 1"),
    ] {
        let args = [&["--key-file", key], words, &["a.img:/full/sub"]].concat();
        refused(&args, 2, &[why]);
    }
    let done = place.run(&["encrypt", "--key-file", "key", "a.img:/full"]);
    assert_ne!(done.output.status.code(), Some(0), "it is not empty");
    place.run(&["check", "a.img"]).succeeds();
}

#[test]
fn an_archive_has_what_the_key_reads() {
    let Some(place) = place() else { return };
    place.run(&["mkdir", "a.img:/home"]).succeeds();
    place.run(&["encrypt", "--key-file", "key", "a.img:/home"]).succeeds();
    place.run(&["ln", "-s", "--key-file", "key", "letter", "a.img:/private/link"]).succeeds();
    place.run(&["tar", "--key-file", "key", "-o", "a.tar", "a.img"]).succeeds();
    place.run(&["build", "-q", "b.img", "--from", "a.tar"]).succeeds();
    assert_eq!(place.run(&["cat", "b.img:/private/link"]).succeeds().out(), "dear reader\n");
    // Names without the key are no names for an archive.
    for args in [
        &["tar", "-o", "c.tar", "a.img"][..],
        &["tar", "--key-file", "other", "-o", "c.tar", "a.img"],
    ] {
        place.run(args).ends_with(5).complains(&["/private", "encrypted with the key"]);
        assert!(!place.path("c.tar").exists());
    }
    place.run(&["tar", "-o", "c.tar", "a.img:/home"]).succeeds();
}
