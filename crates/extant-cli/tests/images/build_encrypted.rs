//! `build --encrypt`: directories that are encrypted in the image, read with the key by extant and by the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use extant::{ContentsMode, KeySpec, MasterKey};

use crate::support;
use support::kernel::{Mounted, clean};
use support::{Place, is_root, tool};

/// Gives the kernel the key in a file, for a mounted file system; with the name that follows, if there is one.
const ADD_KEY: &str = r#"
import fcntl, os, struct, sys
raw = open(sys.argv[2], "rb").read()
name = bytes.fromhex(sys.argv[3]) if len(sys.argv) > 3 else b""
spec = struct.pack("<II", 1 if name else 2, 0) + name.ljust(32, b"\0")
arg = bytearray(spec + struct.pack("<II", len(raw), 0) + bytes(32) + raw)
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0xC0506617, arg, True)
"#;

/// The name of a key in policies of version 1.
const NAME: &str = "0123456789abcdef";

const SECRET: &[u8] = b"nobody shall read this line";

fn add_key(mounted: &Path, key: &Path) -> bool {
    add_key_as(mounted, key, &[])
}

fn add_key_as(mounted: &Path, key: &Path, name: &[&str]) -> bool {
    let mut program = Command::new("python3");
    let done = program.args(["-c", ADD_KEY]).args([mounted, key]).args(name).output();
    match done {
        Ok(done) if done.status.success() => true,
        other => {
            println!("skipped: the kernel takes no key: {other:?}");
            false
        }
    }
}

/// A source with the directory `home`, of everything that an encrypted directory can have; and keys.
fn source() -> Place {
    let place = Place::new();
    let home = place.path("source/home");
    fs::create_dir_all(home.join("deep/deeper")).unwrap();
    fs::create_dir_all(home.join("many")).unwrap();
    for size in [0, 1, 15, 16, 1023, 1024, 4095, 4096, 4097, 1_048_579] {
        let bytes: Vec<u8> = SECRET.iter().copied().cycle().take(size).collect();
        fs::write(home.join(format!("deep/{size} bytes")), bytes).unwrap();
    }
    for number in 0..500 {
        let name = format!("many/secret name of a file, number {number}");
        fs::write(home.join(name), number.to_string()).unwrap();
    }
    fs::write(home.join("n".repeat(255)), b"long").unwrap();
    fs::write(home.join("s"), b"short").unwrap();
    let sparse = fs::File::create(home.join("sparse")).unwrap();
    sparse.write_all_at(SECRET, 200_000).unwrap();
    sparse.set_len(3_000_000).unwrap();
    fs::hard_link(home.join("s"), home.join("deep/deeper/second")).unwrap();
    for (name, len) in
        [("l1", 1), ("l30", 30), ("l32", 32), ("l33", 33), ("l58", 58), ("l900", 900)]
    {
        symlink("t".repeat(len), home.join(name)).unwrap();
    }
    let pipe = tool("mkfifo", &["source/home/pipe"], place.0.path()).unwrap();
    assert!(pipe.status.success());
    fs::create_dir(place.path("source/open")).unwrap();
    fs::write(place.path("source/open/file"), b"for everybody").unwrap();
    // Small inodes have whole seconds.
    let touch = ["source", "-exec", "touch", "-h", "-d", "@1700000000", "{}", "+"];
    assert!(tool("find", &touch, place.0.path()).unwrap().status.success());
    let raw: Vec<u8> = (0..64).map(|n| n * 3 + 3).collect();
    fs::write(place.path("key"), raw).unwrap();
    fs::write(place.path("other"), [9; 64]).unwrap();
    fs::write(place.path("short"), [9; 16]).unwrap();
    place
}

#[test]
fn extant_and_the_kernel_read_with_the_key_what_was_built() {
    let place = source();
    place.run(&["build", "plain.img", "--from", "source", "-q"]).succeeds();
    for options in [&["-b", "4096"][..], &["-b", "1024"], &["-O", "inline_data"], &["-I", "128"]] {
        let args = ["build", "a.img", "--from", "source", "--encrypt", "/home=key", "-F", "-q"];
        let args = [&args[..], &["--size", "auto+4M"], options].concat();
        place.run(&args).succeeds();
        clean(&place, "a.img");
        place.run(&["check", "a.img"]).succeeds();
        for dir in ["home", "open"] {
            let (plain, built) = (format!("plain.img:/{dir}"), format!("a.img:/{dir}"));
            let diff = place.run(&["diff", "--key-file", "key", &plain, &built]);
            assert_eq!(diff.succeeds().out(), "", "{options:?}");
        }
        let image = fs::read(place.path("a.img")).unwrap();
        for secret in [SECRET, b"secret name", b"tttttttt", b"nnnnnnnn"] {
            assert!(!image.windows(secret.len()).any(|bytes| bytes == secret), "{options:?}");
        }
        assert!(image.windows(13).any(|bytes| bytes == b"for everybody"));
        if !is_root() {
            println!("skipped what the kernel sees: needs root");
            continue;
        }
        let mounted = Mounted::of(&place, "a.img");
        let names = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        // Both show the same names without the key.
        for dir in ["home", "home/*/ | grep -v :"] {
            let theirs = names(mounted.shell(&format!("ls -A {dir}")));
            assert!(!theirs.iter().any(|name| name.contains("secret")), "{theirs:?}");
        }
        let ours = names(place.run(&["ls", "a.img:/home"]).succeeds().out());
        assert_eq!(ours, names(mounted.shell("ls -A home")));
        if !add_key(&mounted.0, &place.path("key")) {
            continue;
        }
        let differ = mounted.shell("diff -r --no-dereference home ../source/home 2>&1; true");
        assert_eq!(differ, "File home/pipe is a fifo while file ../source/home/pipe is a fifo\n");
        assert_eq!(mounted.shell("cat home/deep/deeper/second open/file"), "shortfor everybody");
        // It goes on where the build ended.
        mounted.shell("echo new > home/many/new && mkdir home/made && mv home/s home/made/moved");
        mounted.shell(
            "rm home/sparse && ln -s where home/made/link && echo more >> 'home/deep/15 bytes'",
        );
        drop(mounted);
        clean(&place, "a.img");
        let cat = |path: &str| {
            place
                .run(&["cat", "--key-file", "key", &format!("a.img:/home/{path}")])
                .succeeds()
                .out()
        };
        assert_eq!((cat("many/new"), cat("made/moved")), ("new\n".into(), "short".into()));
        assert_eq!(cat("deep/15 bytes"), "nobody shall remore\n");
    }
}

/// Every policy that can be asked for: its words, and whether it is of version 1.
const POLICIES: [(&[&str], bool); 13] = [
    (&["--padding", "4"], false),
    (&["--modes", "aes256", "--padding", "16"], true),
    (&["--vectors", "ino-lblk64", "--padding", "8"], false),
    (&["--vectors", "ino-lblk32"], false),
    (&["--modes", "aes128"], false),
    (&["--modes", "aes128", "--padding", "4"], true),
    (&["--modes", "hctr2"], false),
    (&["--modes", "hctr2", "--vectors", "ino-lblk64"], false),
    (&["--modes", "hctr2", "--vectors", "ino-lblk32", "--padding", "4"], false),
    (&["--modes", "adiantum"], false),
    (&["--modes", "adiantum", "--vectors", "direct-key", "--padding", "8"], false),
    (&["--modes", "adiantum"], true),
    (&["--modes", "adiantum", "--vectors", "direct-key"], true),
];

/// `--encrypt` for `/home`, and what opens it.
fn words(is_v1: bool) -> (String, String) {
    let file = if is_v1 { format!("{NAME}=key") } else { "key".to_owned() };
    (format!("/home={file}"), file)
}

#[test]
fn every_policy_is_built_as_it_is_read() {
    let place = source();
    place.run(&["build", "plain.img", "--from", "source", "-q"]).succeeds();
    let epoch = ["--mtime-clamp", "1700000000"];
    for (index, (policy, is_v1)) in POLICIES.into_iter().enumerate() {
        let (encrypt, key) = words(is_v1);
        let block = ["-b", if index % 2 == 0 { "4096" } else { "1024" }];
        let build = |image: &str, threads: &str| {
            let args = ["build", image, "--from", "source", "--encrypt", &encrypt, "-F", "-q"];
            let threads = ["--threads", threads, "--size", "auto+4M"];
            place.run(&[&args[..], policy, &block, &epoch, &threads].concat()).succeeds();
            fs::read(place.path(image)).unwrap()
        };
        let image = build("a.img", "1");
        assert!(image == build("b.img", "3"), "{policy:?}");
        clean(&place, "a.img");
        place.run(&["check", "a.img"]).succeeds();
        let diff = ["diff", "--key-file", &key, "plain.img:/home", "a.img:/home"];
        assert_eq!(place.run(&diff).succeeds().out(), "", "{policy:?}");
        for secret in [SECRET, b"secret name", b"tttttttt", b"nnnnnnnn"] {
            assert!(!image.windows(secret.len()).any(|bytes| bytes == secret), "{policy:?}");
        }
        // Whoever gives a directory this policy gives it the one that was built.
        let same = [&["encrypt", "--key-file", &key, "a.img:/home"][..], policy].concat();
        place.run(&same).succeeds();
        // The next build over it keeps what did not change.
        let args = ["build", "c.img", "--from", "source", "--encrypt", &encrypt, "-q", "-F"];
        place.run(&[&args[..], policy, &["--base", "a.img"]].concat()).succeeds();
        clean(&place, "c.img");
        let diff = ["diff", "--key-file", &key, "plain.img:/home", "c.img:/home"];
        assert_eq!(place.run(&diff).succeeds().out(), "", "{policy:?} over a base");

        // It goes on where the build ended.
        let image = ["--key-file", &key];
        place.run(&[&["cp"][..], &image, &["source/open/file", "a.img:/home/many/new"]].concat());
        place.run(&[&["rm"][..], &image, &["a.img:/home/sparse"]].concat()).succeeds();
        let cat = [&["cat"][..], &image, &["a.img:/home/many/new"]].concat();
        assert_eq!(place.run(&cat).succeeds().out(), "for everybody", "{policy:?}");
        clean(&place, "a.img");
        if !is_root() {
            println!("skipped what the kernel sees: needs root");
            continue;
        }
        let mounted = Mounted::of(&place, "b.img");
        let name: &[&str] = if is_v1 { &[NAME] } else { &[] };
        if !add_key_as(&mounted.0, &place.path("key"), name) {
            continue;
        }
        if let Err(error) = fs::read(mounted.0.join("home/deep/4096 bytes")) {
            // A cipher that the kernel was built without.
            assert!(policy.contains(&"--modes") && !policy.contains(&"aes256"), "{policy:?}");
            println!("skipped what the kernel reads of {policy:?}: {error}");
            continue;
        }
        let differ = mounted.shell("diff -r --no-dereference home ../source/home 2>&1; true");
        assert_eq!(differ, "File home/pipe is a fifo while file ../source/home/pipe is a fifo\n");
        mounted.shell("mv home/s home/deep/moved && echo more >> 'home/deep/15 bytes'");
        drop(mounted);
        clean(&place, "b.img");
        let cat = ["cat", "--key-file", &key, "b.img:/home/deep/15 bytes"];
        assert_eq!(place.run(&cat).succeeds().out(), "nobody shall remore\n", "{policy:?}");
        println!("the kernel reads and changes {policy:?}, version {}", if is_v1 { 1 } else { 2 });
    }
}

/// The other half, for ciphers that few kernels have: one in a machine of its own.
#[test]
#[ignore = "boots a machine: for `make test-long`"]
fn linux_in_a_machine_reads_what_was_built_with_adiantum() {
    let place = source();
    for (policy, is_v1) in POLICIES.into_iter().filter(|(words, _)| words.contains(&"adiantum")) {
        let (encrypt, _) = words(is_v1);
        let args = ["build", "a.img", "--from", "source", "--encrypt", &encrypt, "-F", "-q"];
        place.run(&[&args[..], policy].concat()).succeeds();
        let commands = format!(
            "xfs_io -c add_enckey /mnt < /key > /dev/null\n\
             xfs_io -c 'add_enckey -d {NAME}' /mnt < /key > /dev/null\n\
             cat home/deep/deeper/second && echo ' is read'\n\
             echo $(ls home/many | wc -l) entries, $(readlink home/l900 | wc -c) bytes of a target\n\
             md5sum < 'home/deep/1048579 bytes'; md5sum < home/sparse\n\
             echo more >> 'home/deep/15 bytes'\n"
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/boot-image");
        let (image, key) = (place.path("a.img"), place.path("key"));
        let done = Command::new(script).arg(&image).arg(commands).arg(&key).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).replace('\r', "");
        if done.status.code() == Some(77) {
            println!("{}", said.trim());
            return;
        }
        let sums = tool(
            "sh",
            &["-c", "md5sum < 'source/home/deep/1048579 bytes'; md5sum < source/home/sparse"],
            place.0.path(),
        );
        let sums = support::text(&sums.unwrap());
        for line in ["short is read", "500 entries, 901 bytes of a target", "boot: unmounted"] {
            assert!(said.contains(line), "{policy:?}: no \"{line}\" in {said}");
        }
        assert!(said.contains(&sums), "{policy:?}: no {sums} in {said}");
        clean(&place, "a.img");
        let key = words(is_v1).1;
        let cat = ["cat", "--key-file", &key, "a.img:/home/deep/15 bytes"];
        assert_eq!(place.run(&cat).succeeds().out(), "nobody shall remore\n", "{policy:?}");
    }
}

#[test]
fn the_library_builds_with_any_policy_and_refuses_what_linux_does() {
    use extant_image::{Build, BuildError, EncryptionPolicy, IvKind, NamesMode};
    let place = source();
    let key = || MasterKey::new(&fs::read(place.path("key")).unwrap()).unwrap();
    let usual = EncryptionPolicy::new(key().identifier());
    let build = |key: MasterKey, policy| {
        let build = Build::from_dir(place.path("source")).encrypt_with("home", key, policy);
        let _ = fs::remove_file(place.path("a.img"));
        build.write_to(place.path("a.img"))
    };
    // Data units that are smaller than blocks; those that are larger are refused.
    let units = EncryptionPolicy { data_unit_log2: Some(9), ..usual };
    build(key(), units).unwrap();
    place.run(&["build", "plain.img", "--from", "source", "-q"]).succeeds();
    let diff = ["diff", "--key-file", "key", "plain.img:/home", "a.img:/home"];
    assert_eq!(place.run(&diff).succeeds().out(), "");
    let large = build(key(), EncryptionPolicy { data_unit_log2: Some(13), ..usual }).unwrap_err();
    assert!(large.to_string().contains("units of 8192 bytes"), "{large}");
    for (policy, words) in [
        (EncryptionPolicy { iv: IvKind::DirectKey, ..usual }, "DirectKey"),
        (EncryptionPolicy { contents: ContentsMode::Adiantum, ..usual }, "Adiantum"),
        (EncryptionPolicy { names: NamesMode::Adiantum, ..usual }, "Adiantum"),
        (EncryptionPolicy { padding: 5, ..usual }, "5 bytes"),
        (EncryptionPolicy { key: KeySpec::Identifier([1; 16]), ..usual }, "0101"),
    ] {
        let error = build(key(), policy).unwrap_err();
        assert!(matches!(error, BuildError::Encrypt(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // One name, two keys.
    let named = EncryptionPolicy { key: KeySpec::Descriptor([5; 8]), ..usual };
    let twice = Build::from_dir(place.path("source")).encrypt_with("home", key(), named);
    let twice = twice.encrypt_with("open", MasterKey::new(&[9; 64]).unwrap(), named);
    let error = twice.write_to(place.path("b.img")).unwrap_err();
    assert!(error.to_string().contains("0505050505050505"), "{error}");
}

#[test]
fn builds_with_an_epoch_are_equal_and_others_are_not() {
    let place = source();
    let build = |image: &str, more: &[&str]| {
        let args = ["build", image, "--from", "source", "--encrypt", "/home=key", "-F", "-q"];
        place.run(&[&args[..], more].concat()).succeeds();
        fs::read(place.path(image)).unwrap()
    };
    let epoch = ["--mtime-clamp", "1700000000"];
    let one = build("a.img", &[&epoch[..], &["--threads", "1"]].concat());
    assert!(one == build("b.img", &[&epoch[..], &["--threads", "4"]].concat()));
    // A UUID of its own is all that it takes to have other ciphertexts.
    let uuid = ["-U", "6b5f2f2e-9c0e-4a53-8f41-4a8c6c1f9b1d"];
    let other = build("c.img", &[&epoch[..], &uuid].concat());
    let encrypted = |image: &str| {
        let place_of =
            ["extents", "--json", "--key-file", "key", &format!("{image}:/home/deep/4096 bytes")];
        let extent = place.run(&place_of).succeeds().json_lines().remove(0);
        extent["physical_byte"].as_u64().unwrap() as usize
    };
    let (at, there) = (encrypted("a.img"), encrypted("c.img"));
    assert!(one[at..at + 4096] != other[there..there + 4096]);
    // Without an epoch nonces are random, even if everything else is given.
    let (first, second) = (build("d.img", &uuid), build("e.img", &uuid));
    let (at, there) = (encrypted("d.img"), encrypted("e.img"));
    assert!(first[at..at + 4096] != second[there..there + 4096]);
}

#[test]
fn what_cannot_be_encrypted_is_refused_by_name() {
    let place = source();
    fs::hard_link(place.path("source/home/s"), place.path("source/open/outside")).unwrap();
    let build = |more: &[&str]| {
        place.run(&[&["build", "a.img", "--from", "source", "-q"][..], more].concat())
    };
    build(&["--encrypt", "/none=key"]).ends_with(9).complains(&["no directory", "/none"]);
    build(&["--encrypt", "/home"]).ends_with(2).complains(&["no DIR=FILE"]);
    build(&["--encrypt", "/home=missing"]).ends_with(2).complains(&["missing"]);
    build(&["--encrypt", "/home=short"]).ends_with(2).complains(&["16 bytes is too short"]);
    build(&["--encrypt", "/=key"]).ends_with(3).complains(&["cannot be encrypted"]);
    build(&["--encrypt", "/home=key"]).ends_with(3).complains(&["another name in", "open"]);
    let both = ["--encrypt", "/home=key", "--encrypt", "/open=other"];
    build(&both).ends_with(3).complains(&["another name in"]);
    let nested = ["--encrypt", "/home=key", "--encrypt", "/home/deep=key"];
    build(&nested).ends_with(3).complains(&["below two directories", "home/deep"]);
    fs::remove_file(place.path("source/open/outside")).unwrap();
    build(&["--encrypt", "/home=key", "--fs-verity"])
        .ends_with(5)
        .complains(&["to be encrypted and sealed"]);
    build(&["--encrypt", "/home=key", "--for", "linux-4.0"])
        .ends_with(2)
        .complains(&["linux-4.0 cannot read", "encrypt"]);
    let modes = |words: &[&str]| build(&[&["--encrypt", "/home=key"], words].concat()).ends_with(2);
    modes(&["--vectors", "direct-key"]).complains(&["direct-key does not go with --modes aes256"]);
    modes(&["--modes", "adiantum", "--vectors", "ino-lblk64"]).complains(&["in Linux"]);
    modes(&["--modes", "sm4"]);
    modes(&["--padding", "5"]);
    build(&["--encrypt", &format!("/home={NAME}=key"), "--modes", "hctr2"])
        .ends_with(2)
        .complains(&["version 1"]);
    build(&["--modes", "adiantum"]).ends_with(2).complains(&["are for --encrypt"]);
    assert!(!place.path("a.img").exists());
    // Two directories, two keys: each is read with its own.
    build(&both).succeeds();
    clean(&place, "a.img");
    place.run(&["cat", "--key-file", "other", "a.img:/open/file"]).succeeds();
    place.run(&["cat", "--key-file", "other", "a.img:/home/s"]).ends_with(9);
    let keys = ["--key-file", "key", "--key-file", "other"];
    place.run(&[&["cat"][..], &keys, &["a.img:/home/s"]].concat()).succeeds();
}
