//! What `build` is given as a source: what is taken, and what is refused, with what it is and what
//! to do about it.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support;
use support::{Place, Ran};

/// A file with `magic` at byte `at`, as long as real ones are.
fn with_magic(at: usize, magic: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; (at + magic.len()).next_multiple_of(4096) + 200_000];
    bytes[at..at + magic.len()].copy_from_slice(magic);
    bytes
}

/// An archive without members, of `bytes` bytes.
fn zeros(bytes: usize) -> Vec<u8> {
    vec![0; bytes]
}

fn feed(place: &Place, args: &[&str], bytes: &[u8]) -> Ran {
    feed_to(place.command(args), args, bytes)
}

fn feed_to(mut command: Command, args: &[&str], bytes: &[u8]) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its input early closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    Ran { args: args.join(" "), output: child.wait_with_output().unwrap() }
}

fn gzip(place: &Place, name: &str) -> Option<Vec<u8>> {
    let output = Command::new("gzip").arg("-c").arg(name).current_dir(place.0.path()).output();
    let packed = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    if packed.is_none() {
        println!("skipped: gzip is not installed");
    }
    packed
}

/// Each kind of file that somebody may hold for a source: its name, and how a source is made of it.
#[test]
fn what_is_no_archive_is_refused_with_its_name_and_a_way_out() {
    let place = Place::with_image();
    let ext4 = std::fs::read(place.path("a.img")).unwrap();
    let table: &[(&str, Vec<u8>, &str, &str)] = &[
        ("fs.img", ext4, "an ext4 file system", "extant cp -a fs.img:/. b.img:/"),
        (
            "x.zip",
            with_magic(0, b"PK\x03\x04"),
            "a zip archive",
            "(unzip -d DIR x.zip), then --from DIR",
        ),
        ("x.7z", with_magic(0, b"7z\xbc\xaf\x27\x1c"), "a 7z archive", "7z x -oDIR x.7z"),
        ("x.cpio", with_magic(0, b"070701"), "a cpio archive", "cpio -idm -D DIR < x.cpio"),
        (
            "x.deb",
            with_magic(0, b"!<arch>\ndebian-binary   "),
            "a Debian package",
            "dpkg-deb -x x.deb",
        ),
        ("x.rpm", with_magic(0, b"\xed\xab\xee\xdb"), "an RPM package", "rpm2cpio x.rpm"),
        ("x.squashfs", with_magic(0, b"hsqs"), "a SquashFS image", "unsquashfs -d DIR x.squashfs"),
        ("x.erofs", with_magic(1024, b"\xe2\xe1\xf5\xe0"), "an EROFS image", "fsck.erofs"),
        ("x.iso", with_magic(0x8001, b"CD001"), "an ISO 9660 image", "xorriso"),
        ("x.xfs", with_magic(0, b"XFSB"), "an XFS file system", "mount -o ro x.xfs DIR"),
        ("x.btrfs", with_magic(0x10040, b"_BHRfS_M"), "a Btrfs file system", "btrfs restore"),
        (
            "x.qcow2",
            with_magic(0, b"QFI\xfb\0\0\0\x03"),
            "a QCOW2 image",
            "qemu-img convert -f qcow2 -O raw",
        ),
        ("x.vmdk", with_magic(0, b"KDMV"), "a VMDK image", "qemu-img convert -f vmdk"),
        ("x.vhd", with_magic(0, b"conectix"), "a VHD image", "qemu-img convert -f vpc"),
        ("x.vhdx", with_magic(0, b"vhdxfile"), "a VHDX image", "qemu-img convert -f vhdx"),
        (
            "x.gpt",
            with_magic(512, b"EFI PART"),
            "a GPT partition table",
            "extant extract --partition N x.gpt DIR",
        ),
        ("x.luks", with_magic(0, b"LUKS\xba\xbe"), "a LUKS volume", "open the volume"),
        (
            "x.xz",
            with_magic(0, b"\xfd7zXZ\0"),
            "a file packed with xz",
            "xz -dc x.xz | extant build b.img --from -",
        ),
        (
            "x.bz2",
            with_magic(0, b"BZh9"),
            "a file packed with bzip2",
            "bzip2 -dc x.bz2 | extant build",
        ),
        ("x.lz4", with_magic(0, b"\x04\x22\x4d\x18"), "a file packed with lz4", "lz4 -dc x.lz4 |"),
        ("program", with_magic(0, b"\x7fELF"), "a program (ELF)", "--from takes a directory"),
        ("empty", zeros(0), "not a tar archive: it is empty", "extant mkfs b.img SIZE"),
        (
            "text",
            b"#!/bin/sh\n".repeat(100),
            "not a tar archive: a header",
            "--from takes a directory",
        ),
        // Zeros: a disk on which nothing was made, or that begins with some.
        ("zero", zeros(1 << 20), "it begins with more than 10240 zero bytes", "extant mkfs b.img"),
        ("record", zeros(10_241), "it begins with more than 10240 zero bytes", "--from takes"),
        ("block", zeros(512), "it has 512 zero bytes", "--from takes"),
        (
            "late",
            [zeros(2000), b"x".repeat(3000)].concat(),
            "it begins with 2000 zero bytes",
            "--from takes",
        ),
    ];
    for (name, bytes, what, hint) in table {
        std::fs::write(place.path(name), bytes).unwrap();
        let before = place.names();
        let build = ["build", "b.img", "--from", name];
        place.run(&build).ends_with(3).complains(&[name, what]).hints(hint);
        // From a pipe: the same, by content.
        let build = ["build", "b.img", "--from", "-"];
        feed(&place, &build, bytes).ends_with(3).complains(&["standard input", what]);
        assert_eq!(place.names(), before, "{name}");
    }
}

#[test]
fn an_archive_of_nothing_is_a_source() {
    let place = Place::new();
    for (name, bytes) in [("two.tar", zeros(1024)), ("record.tar", zeros(10_240))] {
        std::fs::write(place.path(name), &bytes).unwrap();
        place.run(&["build", "b.img", "-F", "--from", name]).succeeds();
        assert_eq!(place.run(&["ls", "b.img"]).succeeds().out(), "lost+found\n", "{name}");
        feed(&place, &["build", "b.img", "-F", "--from", "-"], &bytes).succeeds();
    }
    // As tar makes it.
    let made = ["-cf", "made.tar", "-T", "/dev/null"];
    if support::tool("tar", &made, place.0.path()).is_some() {
        place.run(&["build", "c.img", "--from", "made.tar"]).succeeds();
    }
}

#[test]
fn what_is_packed_is_looked_into() {
    let place = Place::with_image();
    std::fs::write(place.path("zeros"), zeros(1 << 20)).unwrap();
    std::fs::write(place.path("cpio"), with_magic(0, b"070701")).unwrap();
    for (name, what, hint) in [
        ("a.img", "this is an ext4 file system, packed with gzip, not a tar", "gzip -dc x.gz >"),
        ("cpio", "this is a cpio archive, packed with gzip", "cpio -idm -D DIR < UNPACKED"),
        ("zeros", "packed with gzip, and not a tar archive: it begins", "extant mkfs"),
    ] {
        let Some(packed) = gzip(&place, name) else { return };
        std::fs::write(place.path("x.gz"), &packed).unwrap();
        let build = ["build", "b.img", "--from", "x.gz"];
        place.run(&build).ends_with(3).complains(&["x.gz", what]).hints(hint);
        feed(&place, &["build", "b.img", "--from", "-"], &packed).ends_with(3).complains(&[what]);
        assert!(!place.path("b.img").exists());
    }
}

#[test]
fn no_source_and_misplaced_ones_are_told_how_to_give_one() {
    let place = Place::with_image();
    let before = place.names();
    place.run(&["build", "b.img"]).ends_with(2).complains(&["no source", "--from"]).hints("mkfs");
    let stray = place.run(&["build", "b.img", "source"]);
    stray.ends_with(2).complains(&["source", "--from"]).hints("extant build b.img --from source");
    let swapped = place.run(&["build", "source", "b.img"]).ends_with(2);
    swapped.hints("extant build b.img --from source");
    let gone = place.run(&["build", "b.img", "--from", "gone"]);
    gone.ends_with(3).complains(&["cannot open \"gone\""]).hints("no such file or directory");
    // A path in an image.
    let inside = place.run(&["build", "b.img", "--from", "a.img:/dir"]);
    inside.ends_with(3).hints("extant extract a.img:/dir DIR");
    assert_eq!(place.names(), before);
}

/// The image of a container is layers in archives: what looks like one is read as one, and damage in it is named.
#[test]
fn what_looks_like_a_container_image_is_read_as_one_unless_wanted_as_it_is() {
    let place = Place::new();
    let digest = "0123456789abcdef".repeat(4);
    let make = |name: &str, files: &[&str]| {
        for file in files {
            let path = place.path(name).join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"{}").unwrap();
        }
    };
    let layer = format!("{digest}/layer.tar");
    let flat = format!("{digest}.tar");
    make("oci", &["oci-layout", "index.json", "blobs/sha256/x"]);
    make("docker", &["manifest.json", "repositories", &layer]);
    make("older", &["manifest.json", &layer]);
    make("podman", &["manifest.json", &flat]);
    // A root file system may hold such names, only not all of them in its root.
    make("rootfs", &["manifest.json", "etc/oci-layout", "etc/index.json", "x/layer.tar"]);
    for (name, what) in [
        ("oci", "\"oci-layout\" cannot be understood"),
        ("docker", "\"manifest.json\" cannot be understood"),
        ("older", "\"manifest.json\" cannot be understood"),
        ("podman", "\"manifest.json\" cannot be understood"),
    ] {
        let tar = format!("{name}.tar");
        support::tool("tar", &["-C", name, "-cf", &tar, "."], place.0.path());
        for source in [name, &*tar].into_iter().filter(|source| place.path(source).exists()) {
            let build = ["build", "b.img", "-F", "--from", source];
            place.run(&build).ends_with(3).complains(&[source, what]).hints("skopeo copy");
            assert!(!place.path("b.img").exists());
            place.run(&[&build[..], &["--as-is"]].concat()).succeeds();
            std::fs::remove_file(place.path("b.img")).unwrap();
        }
    }
    place.run(&["build", "b.img", "--from", "rootfs"]).succeeds();
}

/// A layout as skopeo writes it, of two layers; `None` where the tools for it are missing.
fn image_of_two_layers(place: &Place) -> Option<()> {
    let run = |program: &str, args: &[&str]| support::tool(program, args, place.0.path());
    for (dir, file) in
        [("one/etc", "base"), ("one/gone", "x"), ("two/etc", "upper"), ("two", ".wh.gone")]
    {
        std::fs::create_dir_all(place.path(dir)).unwrap();
        std::fs::write(place.path(dir).join(file), file).unwrap();
    }
    run("umoci", &["init", "--layout", "made"])?;
    run("umoci", &["new", "--image", "made:v1"])?;
    for layer in ["one", "two"] {
        let tar = format!("{layer}.tar");
        run("tar", &["--owner=0", "--group=0", "-C", layer, "-cf", &tar, "."])?;
        run("umoci", &["raw", "add-layer", "--image", "made:v1", &tar])?;
    }
    Some(())
}

#[test]
fn every_form_of_a_container_image_gives_the_same_bytes() {
    let place = Place::new();
    if image_of_two_layers(&place).is_none() {
        return;
    }
    let build = |out: &str, args: &[&str]| {
        let mut command = place.command(&[&["build", out, "-q", "-F"], args].concat());
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        let output = command.output().unwrap();
        Ran { args: args.join(" "), output }.succeeds();
        std::fs::read(place.path(out)).unwrap()
    };
    let wanted = build("a.img", &["--from", "oci:made:v1", "--config-out", "config.json"]);
    let found = place.run(&["find", "a.img", "-type", "f"]).succeeds().out();
    assert_eq!(found, "/etc/base\n/etc/upper\n");
    let config = std::fs::read_to_string(place.path("config.json")).unwrap();
    assert!(config.contains("diff_ids"), "{config}");
    // The layers by themselves are the same tree; so is a layout that nobody called one.
    assert!(build("b.img", &["--from", "one.tar", "--from", "two.tar"]) == wanted);
    assert!(build("b.img", &["--from", "made"]) == wanted);
    support::tool("tar", &["-C", "made", "-cf", "made.tar", "."], place.0.path());
    for source in ["made.tar", "oci-archive:made.tar", "oci-archive:made.tar:v1"] {
        assert!(build("b.img", &["--from", source]) == wanted, "{source}");
    }
    for (form, source) in
        [("docker-archive:saved.tar:x/y:z", "saved.tar"), ("oci-archive:again.tar:v1", "again.tar")]
    {
        let copy = ["--insecure-policy", "copy", "-q", "oci:made:v1", form];
        if support::tool("skopeo", &copy, place.0.path()).is_none() {
            return;
        }
        assert!(build("b.img", &["--from", source]) == wanted, "{source}");
    }
    assert!(build("b.img", &["--from", "docker-archive:saved.tar:x/y:z"]) == wanted);
    let tag = place.run(&["build", "c.img", "--from", "docker-archive:saved.tar:w"]);
    tag.ends_with(2).complains(&["no image \"w\"", "it has: docker.io/x/y:z"]);
    let tag = place.run(&["build", "c.img", "--from", "oci:made:v2"]);
    tag.ends_with(2).complains(&["no image \"v2\"; it has: v1"]);
    let config = place.run(&["build", "c.img", "--from", "one", "--config-out", "x"]);
    config.ends_with(2).complains(&["no source is a container image"]);
    for name in ["c.img", "x"] {
        assert!(!place.path(name).exists(), "{name}");
    }
}

#[test]
fn layers_of_directories_and_what_is_added() {
    let place = Place::with_image();
    std::fs::create_dir_all(place.path("over/dir")).unwrap();
    std::fs::write(place.path("over/dir/new"), "new").unwrap();
    std::fs::write(place.path("over/.wh.sparse"), "").unwrap();
    std::fs::write(place.path("init"), "#!\n").unwrap();
    let args =
        ["build", "b.img", "--from", "source", "--from", "over", "--add", "init:/sbin/:755:7:8"];
    place.run(&[&args[..], &["--add", "over:/opt", "--add", "init:/dir/new"]].concat()).succeeds();
    let list = |path: &str| place.run(&["find", &format!("b.img:{path}")]).succeeds().out();
    assert!(!list("/").contains("sparse") || list("/").contains("/opt/.wh.sparse"));
    assert_eq!(list("/opt"), "/opt\n/opt/.wh.sparse\n/opt/dir\n/opt/dir/new\n");
    assert_eq!(place.run(&["cat", "b.img:/dir/new"]).succeeds().out(), "#!\n");
    assert_eq!(
        place.run(&["cat", "b.img:/dir/again", "b.img:/file"]).succeeds().out(),
        "hello\nhello\n"
    );
    let init = place.run(&["stat", "--json", "b.img:/sbin/init"]).succeeds().out();
    for field in ["\"uid\":7", "\"gid\":8"] {
        assert!(init.replace(' ', "").contains(field), "{init}");
    }
    // A directory that was there keeps its mode, which is 0710 in the source, when something is added below it; an
    // upper layer that has it gives it its own.
    let keeps_mode = || place.run(&["ls", "-l", "b.img"]).succeeds().out().contains("drwx--x---");
    assert!(!keeps_mode());
    place.run(&["build", "b.img", "-F", "--from", "source", "--add", "over:/"]).succeeds();
    assert!(keeps_mode());
    for (add, code, what) in [
        ("init", 2, "HOST:/PATH"),
        ("gone:/x", 3, "cannot open \"gone\""),
        ("over:/x:755", 3, "a mode is for one file"),
        (
            "init:/file/x",
            3,
            "cannot add \"init\" as \"/file/x\": the sources have \"/file\", which is no directory; name another \
             place",
        ),
        (
            "init:/dir",
            3,
            "cannot add \"init\" as \"/dir\": the first is no directory, and what the sources have there is one; \
             name another place in the image, or leave that out of the sources",
        ),
        (
            "over:/file",
            3,
            "cannot add \"over\" as \"/file\": the first is a directory, and what the sources have there is none; \
             name another place in the image, or leave that out of the sources",
        ),
        (
            "over:/file/x/y",
            3,
            "as \"/file/x/y\": the sources have \"/file\", which is no directory",
        ),
    ] {
        let args = ["build", "c.img", "--from", "source", "--add", add];
        place.run(&args).ends_with(code).complains(&[what]);
        assert!(!place.path("c.img").exists());
    }
}

#[test]
fn registries_are_refused_with_the_command_that_fetches() {
    let place = Place::new();
    for (from, fetch) in [
        ("docker:debian:12", "--from docker://debian:12"),
        ("docker-daemon:x:latest", "skopeo copy docker-daemon:x:latest oci:"),
        ("podman:x", "skopeo copy containers-storage:x oci:"),
    ] {
        place.run(&["build", "a.img", "--from", from]).ends_with(5).complains(&[from]).hints(fetch);
    }
    assert!(place.names().is_empty());
}

/// A registry, which ends with the value.
struct Registry(std::process::Child);

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Debian's registry on this host, for a user with a password; `None` where it or its tools are missing.
fn registry(place: &Place, port: u16) -> Option<Registry> {
    let users = support::tool("htpasswd", &["-Bbn", "me", "secret"], place.0.path())?;
    std::fs::write(place.path("users"), users.stdout).unwrap();
    let at = |name: &str| place.path(name).display().to_string();
    let config = format!(
        "version: 0.1\nlog: {{accesslog: {{disabled: true}}, level: error}}\n\
         storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n\
         auth: {{htpasswd: {{realm: x, path: {}}}}}\n",
        at("registry"),
        at("users")
    );
    std::fs::write(place.path("registry.yml"), config).unwrap();
    let mut command = Command::new("docker-registry");
    command.args(["serve", &at("registry.yml")]).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => Some(Registry(child)),
        Err(error) => {
            println!("skipped: docker-registry: {error}");
            None
        }
    }
}

#[test]
fn an_image_in_a_registry_is_the_one_that_was_pushed() {
    let place = Place::new();
    if image_of_two_layers(&place).is_none() {
        return;
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let Some(server) = registry(&place, port) else { return };
    let from = format!("docker://127.0.0.1:{port}/some/root:v1");
    // skopeo tries again while the registry starts.
    let push = ["--insecure-policy", "copy", "-q", "--retry-times", "5", "--dest-tls-verify=false"];
    let push = [&push[..], &["--dest-creds", "me:secret", "oci:made:v1", &from]].concat();
    if support::tool("skopeo", &push, place.0.path()).is_none() {
        return;
    }
    let helper = "#!/bin/sh\nread host\n[ \"$host\" = HOST ] && \
                  echo '{\"ServerURL\":\"x\",\"Username\":\"me\",\"Secret\":\"secret\"}'\n";
    let helper = helper.replace("HOST", &format!("127.0.0.1:{port}"));
    std::fs::write(place.path("docker-credential-test"), helper).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path("docker-credential-test"), mode).unwrap();
    let users = |name: &str, json: &str| std::fs::write(place.path(name), json).unwrap();
    users("none", "{}");
    users("file", &format!("{{\"auths\":{{\"127.0.0.1:{port}\":{{\"auth\":\"bWU6c2VjcmV0\"}}}}}}"));
    users("helper", "{\"credsStore\":\"test\"}");
    let build = |out: &str, users: &str, args: &[&str]| {
        let mut command = place.command(&[&["build", out, "-q", "-F", "--from"], args].concat());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", place.0.path().display()));
        command.env("SOURCE_DATE_EPOCH", "1700000000").env("XDG_CACHE_HOME", place.path("cache"));
        command.env("REGISTRY_AUTH_FILE", place.path(users));
        Ran { args: args.join(" "), output: command.output().unwrap() }
    };
    build("a.img", "none", &["oci:made:v1"]).succeeds();
    let wanted = std::fs::read(place.path("a.img")).unwrap();
    let is_wanted = |out: &str| std::fs::read(place.path(out)).unwrap() == wanted;
    build("b.img", "none", &[&from]).ends_with(8).complains(&["user"]).hints("login");
    assert!(!place.path("b.img").exists());
    build("b.img", "file", &[&from, "--no-cache"]).succeeds();
    assert!(is_wanted("b.img") && !place.path("cache").exists());
    build("c.img", "helper", &[&from]).succeeds();
    assert!(is_wanted("c.img"));
    let gone = from.replace(":v1", ":v2");
    build("d.img", "file", &[&gone]).ends_with(3).complains(&["no such image"]);
    // All of it is in the cache now, where a digest finds it without the registry.
    drop(server);
    let index = std::fs::read_to_string(place.path("made/index.json")).unwrap();
    let digest = index.split("\"digest\":\"").nth(1).unwrap().split('"').next().unwrap();
    build("d.img", "none", &[&from.replace(":v1", &format!("@{digest}"))]).succeeds();
    assert!(is_wanted("d.img"));
    build("e.img", "none", &[&from]).ends_with(8).complains(&["gives no manifest"]);
}

#[test]
fn a_place_for_temporary_files_that_is_not_there_is_no_fault_of_the_archive() {
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    std::fs::write(place.path("source/file"), [7; 10_000]).unwrap();
    place.run(&["build", "a.img", "-q", "--from", "source"]).succeeds();
    let archive = place.run(&["tar", "a.img"]).succeeds().output.stdout;
    let args = ["build", "b.img", "--from", "-"];
    let mut command = place.command(&args);
    command.env("TMPDIR", place.path("none"));
    feed_to(command, &args, &archive)
        .ends_with(8)
        .complains(&["temporary", "none"])
        .hints("TMPDIR");
    feed(&place, &args, &archive).succeeds();
}
