//! The commands that change images: what they do, against what the kernel and its tools do.

use std::os::unix::fs::FileExt;

use crate::support;
use support::kernel::{Mounted, clean, has_kernel, in_image, made, same_as_kernel};
use support::{Place, text, tool};

const EXT4: &[&str] = &["-t", "ext4"];

#[test]
fn names_are_made_moved_and_removed_as_the_kernel_does() {
    let lines = [
        "mkdir /a /b",
        "mkdir -p /a/deep/er/still",
        "mkdir -m 2775 /a/shared",
        "mkdir /a/shared/inside",
        "mkdir -m u=rwx,go= /private",
        "mkdir -m +t /sticky",
        "touch /a/one /a/two /a/three",
        "ln /a/one /b/uno",
        "ln -s TEXT:../a/one /b/link",
        "ln -s TEXT:/absolute /b/dangling",
        "ln -sf TEXT:other /b/link",
        "ln -f /a/two /b/link",
        "mv /a/two /b",
        "mv /a/deep /b/moved",
        "mv -T /b/moved /c",
        "mv /a/three /b/two",
        "mknod /null c 1 3",
        "mknod -m 600 /disk b 259 70000",
        "mknod /pipe p",
        "rm /b/uno",
        "rm -f /nothing",
        "rm -d /sticky",
        "rmdir /a/shared/inside",
        "rm -r /c",
        "mkdir -p /c/1/2/3 /c/4",
        "touch /c/1/2/x /c/4/y",
        "rm -rf /c /also/nothing /null/below",
        "ln -s TEXT:b/made /dangling",
        "touch /dangling",
        "ln -s TEXT:circle /circle",
        "ln -sf TEXT:a /circle",
        "ln -sfn TEXT:b /circle",
        "mv /b/made /circle/renamed",
    ];
    same_as_kernel(EXT4, &lines);
    same_as_kernel(&["-t", "ext2", "-I", "128", "-b", "1024"], &lines);
}

#[test]
fn modes_and_owners_are_changed_as_the_kernel_does() {
    let lines = [
        "mkdir -p /d/e",
        "touch /d/f /d/g /d/e/h",
        "chmod 4755 /d/f",
        "chmod u-s,go+w /d/f",
        "chmod -R a+X /d",
        "chmod g+s /d",
        "chmod 755 /d",
        "chmod 6711 /d/g",
        "chown 1000:1001 /d/g",
        "chown 70000 /d/f",
        "chown :70001 /d/e",
        "ln -s TEXT:f /d/l",
        "chown -h 5:6 /d/l",
        "chown -R 7:8 /d/e",
        "chmod -R o= /d",
        "chmod +w /d/e/h",
        "chmod g=u,o=g /d/e/h",
        "chmod u-trw,og-u /d/f",
        "chmod =g,=u /d/g",
        "chmod o=rtX,a-u /d",
        "chmod 00711 /d/e",
        "chmod =2751 /d/e",
        "chmod +,-xt /d/e",
    ];
    same_as_kernel(EXT4, &lines);
}

#[test]
fn lists_are_changed_as_setfacl_does() {
    let lines = [
        "mkdir /d",
        "touch /d/f /d/g /d/h",
        "setfacl -m u:5:rwx,g:6:r /d/f",
        "chmod g=r /d/f",
        "setfacl -m u:7:rx /d/g",
        "setfacl -m m::r /d/g",
        "setfacl -m g::rwx /d/g",
        "setfacl -x u:7 /d/g",
        "setfacl -n -m u:9:rwx /d/h",
        "setfacl -m d:u:5:rwX /d",
        "setfacl -d -m g:6:rw /d",
        "mkdir /d/below",
        "touch /d/below/file",
        "mkdir -m 700 /d/tight",
        "mknod /d/pipe p",
        "ln -s TEXT:f /d/link",
        "setfacl -k /d/tight",
        "setfacl --set u::rwx,u:3:r,g::rx,o::- /d/h",
        "setfacl -R -m u:11:rX,d:o::- /d",
        "touch /x /y /z",
        "setfacl -m u:5:rwx,m::rx /x",
        "setfacl --set u::-,g::rX,o::rwx /z",
        "setfacl --set u::rwx,g::rX,o::r,m::0 /z",
        "setfacl -x u:99 /z",
        "setfacl -x m: /z",
        "setfacl -n -m u:5:rw,g:6:x,d:u:5:r /d/below",
        "chmod g=o /d/below",
        "setfacl -n -x u:5 /d/below",
        "setfacl -k -m g:6:- /d/below",
        "setfacl -b /x",
        "setfacl -m u:5:rwx /y",
        "chmod 640 /y",
        "chown 5:5 /y",
    ];
    same_as_kernel(EXT4, &lines);
    same_as_kernel(&["-t", "ext4", "-I", "128"], &lines);
}

#[test]
fn attributes_and_flags_are_changed_as_the_tools_do() {
    let lines = [
        "mkdir /d",
        "touch /d/f /d/g",
        "setfattr -n user.text -v hello /d/f",
        "setfattr -n user.hex -v 0x00ff10 /d/f",
        "setfattr -n user.base -v 0sAAEC /d/f",
        "setfattr -n user.empty /d/f",
        "setfattr -n user.line -v 'a\\012b' /d/f",
        "setfattr -n trusted.t -v 1 /d",
        "setfattr -n security.s -v 1 /d/g",
        "setfattr -n user.text -v other /d/f",
        "setfattr -x user.hex /d/f",
        "chattr +Ad /d/f",
        "chattr +S /d",
        "chattr =eA /d/g",
        "chattr -A /d/f",
        "touch /d/new",
        "chattr -R +d /d",
        "chattr +T /d",
        "ln -s TEXT:f /d/l",
        "setfattr -h -n trusted.link -v 1 /d/l",
    ];
    same_as_kernel(EXT4, &lines);
}

#[test]
fn values_are_shown_as_getfattr_shows_them() {
    if !has_kernel() {
        return;
    }
    let Some(place) = made(EXT4) else { return };
    place.run(&["touch", "a.img:/f"]).succeeds();
    let values = [
        // No zero byte at the end, which getfattr does not show.
        "0x",
        "0x0061",
        "0x61626364656667680a",
        "0x0102",
        "0x22",
        "0x5c6e",
        "0xc3a9",
        "0x6162636465666768c3",
        "0x20",
        "0x7f",
        "0x0d0a",
        "0x61626364656667680961626364656667",
    ];
    for (number, value) in values.iter().enumerate() {
        let name = format!("user.v{number}");
        place.run(&["setfattr", "-n", &name, "-v", value, "a.img:/f"]).succeeds();
    }
    for how in [&["-d"][..], &["-d", "-e", "hex"], &["-d", "-e", "base64"], &["-d", "-e", "text"]] {
        let ours = place.run(&[&["getfattr"], how, &["a.img:/f"]].concat()).succeeds().out();
        let kernel = Mounted::of(&place, "a.img");
        assert_eq!(ours, kernel.shell(&format!("getfattr {} f", how.join(" "))), "{how:?}");
    }
}

#[test]
fn what_getfattr_and_getfacl_write_can_be_restored() {
    let Some(place) = made(EXT4) else { return };
    for line in [
        "mkdir -m 3775 /d",
        "touch /d/f",
        "chown 5:6 /d/f",
        "setfattr -n user.a -v 0x00ff /d/f",
        "setfattr -n user.b=c -v x /d",
        "setfacl -m u:5:rwx,d:g:7:rx /d",
    ] {
        place.run(&in_image(line).iter().map(String::as_str).collect::<Vec<_>>()).succeeds();
    }
    let xattrs = place.run(&["getfattr", "-R", "-d", "a.img:/"]).succeeds().out();
    let acls = place.run(&["getfacl", "-R", "a.img:/d"]).succeeds().out();
    std::fs::write(place.path("xattrs"), &xattrs).unwrap();
    std::fs::write(place.path("acls"), &acls).unwrap();
    place.run(&["rm", "-r", "a.img:/d"]).succeeds();
    place.run(&["mkdir", "a.img:/d"]).succeeds();
    place.run(&["touch", "a.img:/d/f"]).succeeds();
    place.run(&["setfattr", "--restore", "xattrs", "a.img:/"]).succeeds();
    place.run(&["setfacl", "--restore", "acls", "a.img:/"]).succeeds();
    assert_eq!(place.run(&["getfattr", "-R", "-d", "a.img:/"]).succeeds().out(), xattrs);
    assert_eq!(place.run(&["getfacl", "-R", "a.img:/d"]).succeeds().out(), acls);
    clean(&place, "a.img");
}

#[test]
fn times_are_set() {
    let Some(place) = made(EXT4) else { return };
    place.run(&["touch", "-d", "2020-01-02 03:04:05.678", "a.img:/f"]).succeeds();
    let times = |path: &str| {
        let stat = place.run(&["stat", "--json", path]).succeeds().json();
        let time = |key: &str| (stat[key]["sec"].as_i64().unwrap(), stat[key]["nsec"].as_i64());
        (time("atime"), time("mtime"))
    };
    let then = (1_577_934_245, Some(678_000_000));
    assert_eq!(times("a.img:/f"), (then, then));
    place.run(&["touch", "-a", "-d", "@5", "a.img:/f"]).succeeds();
    assert_eq!(times("a.img:/f"), ((5, Some(0)), then));
    place.run(&["touch", "-r", "a.img:/f", "a.img:/g"]).succeeds();
    assert_eq!(times("a.img:/g"), ((5, Some(0)), then));
    place.run(&["touch", "-c", "a.img:/none"]).succeeds();
    place.run(&["stat", "a.img:/none"]).ends_with(9);
    std::fs::write(place.path("host"), b"").unwrap();
    place.run(&["touch", "-m", "-r", "host", "a.img:/f"]).succeeds();
    assert_eq!(times("a.img:/f").0, (5, Some(0)));
    assert!(times("a.img:/f").1.0 > 1_577_934_245);
    place.run(&["touch", "-d", "yesterday", "a.img:/f"]).ends_with(2);
    clean(&place, "a.img");
}

#[test]
fn names_of_owners_are_those_of_the_image() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("source/etc")).unwrap();
    std::fs::write(place.path("source/etc/passwd"), "web:x:33:34::/:\n").unwrap();
    std::fs::write(place.path("source/etc/group"), "adm:x:4:\n").unwrap();
    place.run(&["build", "a.img", "--from", "source", "--size", "auto+4M", "-q"]).succeeds();
    place.run(&["mkdir", "--owner", "web:adm", "a.img:/srv"]).succeeds();
    place.run(&["setfacl", "-m", "u:web:rx,g:adm:r", "a.img:/srv"]).succeeds();
    let said = place.run(&["getfacl", "a.img:/srv"]).succeeds().out();
    assert!(said.contains("# owner: web\n# group: adm\n"), "{said}");
    assert!(said.contains("user:web:r-x") && said.contains("group:adm:r--"), "{said}");
    place.run(&["chown", "web:", "a.img:/srv"]).succeeds();
    let stat = place.run(&["stat", "--json", "a.img:/srv"]).succeeds().json();
    assert_eq!((&stat["uid"], &stat["gid"]), (&33.into(), &34.into()));
    let ran = place.run(&["chown", "nobody", "a.img:/srv"]);
    ran.ends_with(9).complains(&["nobody", "/etc/passwd"]).hints("number");
    let ran = place.run(&["setfacl", "-m", "u:nobody:r", "a.img:/srv"]);
    ran.ends_with(9).complains(&["nobody"]);
    clean(&place, "a.img");
}

#[test]
fn a_command_that_fails_changes_nothing_and_says_why() {
    let Some(place) = made(EXT4) else { return };
    place.run(&["mkdir", "a.img:/d", "a.img:/d/e", "a.img:/d/e/g"]).succeeds();
    place.run(&["touch", "a.img:/d/f"]).succeeds();
    place.run(&["chattr", "+i", "a.img:/d/f"]).succeeds();
    let listing = || place.run(&["find", "--json", "a.img"]).succeeds().out();
    let before = listing();
    let fails = |args: &[&str], code: i32, words: &[&str]| {
        place.run(args).ends_with(code).complains(words);
        assert_eq!(listing(), before, "{args:?}");
    };
    fails(&["mkdir", "a.img:/d"], 7, &["a.img:/d: exists already"]);
    fails(&["mkdir", "a.img:/no/where"], 9, &["a.img:/no/where", "no such file"]);
    fails(&["rmdir", "a.img:/d"], 7, &["not empty"]);
    fails(&["rmdir", "a.img:/d/f"], 9, &["not a directory"]);
    fails(&["rm", "a.img:/d"], 9, &["is a directory"]);
    fails(&["rm", "a.img:/d/f"], 7, &["immutable"]);
    fails(&["rm", "-r", "a.img:/d"], 7, &["a.img:/d/f", "immutable"]);
    fails(&["rm", "a.img:/"], 2, &["root"]);
    fails(&["rm", "a.img:/none"], 9, &["no such file"]);
    fails(&["mv", "a.img:/d", "a.img:/d/e"], 2, &["inside itself"]);
    fails(&["mv", "-n", "-T", "a.img:/d/e", "a.img:/lost+found"], 7, &["exists already"]);
    fails(&["mv", "--exchange", "a.img:/d", "a.img:/none"], 9, &["a.img:/none"]);
    fails(&["mv", "--exchange", "a.img:/d", "a.img:/d/e/g"], 2, &["inside itself"]);
    fails(&["mv", "--exchange", "a.img:/d/e/g", "a.img:/d"], 2, &["inside itself"]);
    fails(&["mv", "a.img:/d", "b.img:/d"], 2, &["not in the same image"]);
    fails(&["mv", "a.img:/d", "a.img:/d"], 2, &["inside itself"]);
    fails(&["mv", "-T", "a.img:/d", "a.img:/d"], 2, &["the same file"]);
    fails(&["ln", "a.img:/d", "a.img:/x"], 7, &["director"]);
    fails(&["ln", "-s", "x", "a.img:/d/f"], 7, &["exists already"]);
    fails(&["chmod", "600", "a.img:/d/f"], 7, &["immutable"]);
    fails(&["chmod", "8", "a.img:/d"], 2, &[]);
    fails(&["chown", "1", "a.img:/none"], 9, &[]);
    fails(&["setfattr", "-n", "nonsense", "a.img:/d"], 2, &["namespace"]);
    fails(&["setfattr", "-x", "user.none", "a.img:/d"], 9, &["user.none"]);
    fails(&["setfattr", "-n", "user.a", "-v", "0x1", "a.img:/d"], 2, &["hexadecimal"]);
    fails(&["setfacl", "-m", "d:u::rwx", "a.img:/d/f"], 9, &["only directories"]);
    fails(&["setfacl", "--set", "u:5:r", "a.img:/d"], 2, &["lacks"]);
    fails(&["setfacl", "-m", "u:5:r", "-m", "d:g:5:r", "a.img:/d/f"], 9, &["only directories"]);
    fails(&["chattr", "+I", "a.img:/d"], 2, &["only shown"]);
    fails(&["chattr", "-e", "a.img:/d"], 5, &["extents"]);
    fails(&["chattr", "-p", "5", "a.img:/d"], 7, &["project"]);
    fails(&["touch", "a.img:/none/"], 9, &["directory"]);
    fails(&["tune", "a.img"], 2, &["nothing to do"]);
    fails(&["tune", "-L", "longer than sixteen", "a.img"], 2, &["16 bytes"]);
    fails(&["tune", "-O", "mmp", "-L", "longer than sixteen", "a.img"], 2, &["16 bytes"]);
    fails(&["tune", "-O", "speed", "a.img"], 2, &["speed"]);
    fails(&["tune", "-O", "bigalloc", "a.img"], 7, &["bigalloc", "extant build"]);
    fails(&["tune", "-O", "mmp,^filetype", "a.img"], 7, &["^filetype"]);
    fails(&["tune", "-E", "force_fsck", "a.img"], 5, &["force_fsck"]);
    fails(&["tune", "-J", "device=/dev/sdb", "a.img"], 5, &["device"]);
    fails(&["tune", "-J", "size=9G", "a.img"], 7, &["journal size", "blocks"]);
    fails(&["tune", "-Q", "everybody", "a.img"], 2, &["usrquota"]);
    // Of several paths, those that can be are done.
    let ran = place.run(&["mkdir", "a.img:/d", "a.img:/new"]);
    ran.ends_with(1).complains(&["a.img:/d"]);
    place.run(&["stat", "a.img:/new"]).succeeds();
    clean(&place, "a.img");
}

#[test]
fn features_are_switched_as_planned_and_can_be_undone() {
    let words = &["-t", "ext4", "-O", "^metadata_csum,^orphan_file,^64bit"];
    let Some(place) = made(words) else { return };
    place.run(&["mkdir", "a.img:/d"]).succeeds();
    let bytes = std::fs::read(place.path("a.img")).unwrap();
    let args = ["tune", "--json", "-O", "metadata_csum,64bit", "-Q", "usrquota", "a.img"];
    let plan = place.run(&[&args[..], &["-n"]].concat()).succeeds().json();
    assert_eq!(plan["written"], false);
    assert!(std::fs::read(place.path("a.img")).unwrap() == bytes, "a plan changes nothing");
    let done = place.run(&[&args[..], &["--undo", "u"]].concat()).succeeds().json();
    assert_eq!((&done["steps"], &done["features"]), (&plan["steps"], &plan["features"]));
    let steps = done["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3, "{done}");
    // The log of another size of descriptors would not be found.
    let is_as_said = |step: &serde_json::Value| step["atomic"] == (step["what"] != "64bit");
    assert!(steps.iter().all(is_as_said), "{done}");
    clean(&place, "a.img");
    let info = place.run(&["info", "a.img"]).succeeds().out();
    assert!(["metadata_csum", "64bit", "quota"].iter().all(|name| info.contains(name)), "{info}");
    let again = place.run(&["tune", "-n", "-O", "metadata_csum", "a.img"]).succeeds().out();
    assert!(again.contains("is so already"), "{again}");
    place.run(&["undo", "u", "a.img"]).succeeds();
    clean(&place, "a.img");
    let info = place.run(&["info", "a.img"]).succeeds().out();
    assert!(!info.contains("metadata_csum") && !info.contains("quota"), "{info}");
    place.run(&["stat", "a.img:/d"]).succeeds();
    // Settings after features, in one command; and a UUID that checksums depend on.
    place.run(&["tune", "-O", "metadata_csum", "-L", "name", "-E", "stride=4", "a.img"]).succeeds();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    place.run(&["tune", "-U", uuid, "a.img"]).succeeds();
    clean(&place, "a.img");
    let info = place.run(&["info", "a.img"]).succeeds().out();
    assert!(info.contains(uuid) && info.contains("name"), "{info}");
    place.run(&["tune", "-I", "512", "-J", "size=5M", "a.img"]).succeeds();
    clean(&place, "a.img");
}

#[test]
fn images_that_are_in_use_or_full_are_refused() {
    let Some(place) = made(&["-t", "ext4", "-N", "16", "-O", "^resize_inode"]) else { return };
    let held = extant_block::FileDevice::open_read_write(place.path("a.img")).unwrap();
    place.run(&["mkdir", "a.img:/d"]).ends_with(7).complains(&["a.img", "in use"]);
    place.run(&["tune", "-L", "x", "a.img"]).ends_with(7).complains(&["in use"]);
    drop(held);
    if has_kernel() {
        let mounted = Mounted::of(&place, "a.img");
        let ran = place.run(&["mkdir", "a.img:/d"]);
        ran.ends_with(7).complains(&["a.img", "in use", "/dev/loop"]).hints("losetup -d");
        drop(mounted);
    }
    let info = place.run(&["info", "--json", "a.img"]).succeeds().json();
    let free = info["free_inodes"].as_u64().unwrap();
    let names: Vec<String> = (0..free + 2).map(|number| format!("a.img:/{number}")).collect();
    let args: Vec<&str> =
        std::iter::once("touch").chain(names.iter().map(String::as_str)).collect();
    place.run(&args).ends_with(1).complains(&["inodes"]);
    place.run(&["touch", "a.img:/more"]).ends_with(6).complains(&["a.img:/more", "inodes"]);
    place.run(&["mkdir", "none.img:/d"]).ends_with(8).complains(&["none.img"]);
    clean(&place, "a.img");
}

#[test]
fn images_in_partitions_are_edited_in_place() {
    let Some(place) = made(EXT4) else { return };
    let image = std::fs::read(place.path("a.img")).unwrap();
    let mut disk = vec![0u8; 1 << 20];
    disk.extend(image);
    std::fs::write(place.path("disk.img"), disk).unwrap();
    place.run(&["mkdir", "--offset", "1M", "disk.img:/d"]).succeeds();
    place.run(&["chattr", "--offset", "1M", "+A", "disk.img:/d"]).succeeds();
    let said = place.run(&["lsattr", "--offset", "1M", "-d", "disk.img:/d"]).succeeds().out();
    assert_eq!(said, "-------A------e------- /d\n");
    place.run(&["mkdir", "disk.img:/d"]).ends_with(4);
}

#[test]
fn flags_and_projects_are_shown_as_lsattr_shows_them() {
    let Some(place) = made(&["-t", "ext4", "-O", "project,quota", "-I", "256"]) else { return };
    place.run(&["mkdir", "-p", "a.img:/d/e"]).succeeds();
    place.run(&["touch", "a.img:/d/f"]).succeeds();
    place.run(&["chattr", "-p", "7", "+P", "a.img:/d"]).succeeds();
    place.run(&["mkdir", "a.img:/d/heir"]).succeeds();
    place.run(&["chattr", "+ia", "a.img:/d/f"]).succeeds();
    place.run(&["chattr", "-ia", "-p", "9", "a.img:/d/f"]).succeeds();
    place.run(&["chattr", "-R", "+d", "a.img:/d"]).succeeds();
    let said = place.run(&["lsattr", "-p", "a.img:/d"]).succeeds().out();
    assert!(said.contains("    7 ------d-------e----P-- /d/heir\n"), "{said}");
    assert!(said.contains("    9 ------d-------e------- /d/f\n"), "{said}");
    let json = place.run(&["lsattr", "--json", "-d", "a.img:/d/heir"]).succeeds().json();
    assert_eq!((&json["flags"], &json["project"]), (&"deP".into(), &7.into()));
    clean(&place, "a.img");
    if !has_kernel() {
        return;
    }
    // For reading only: not every kernel has quotas.
    let mounted = Mounted::with(&place, "a.img", "loop,ro");
    for options in ["-d", "-R", "-pd", "-vd", "-Ra"] {
        let theirs = mounted.shell(&format!("lsattr {options} d")).replace(" d", " /d");
        let theirs = theirs.replace("\nd", "\n/d");
        let args = ["lsattr", options, "a.img:/d"];
        let ours = place.run(&args).succeeds().out();
        let plain = |text: &str| {
            let lines = text.lines().filter(|line| !line.ends_with("/.") && !line.ends_with("/.."));
            let mut lines: Vec<String> = lines.map(str::to_owned).collect();
            lines.sort();
            lines.retain(|line| !line.is_empty());
            lines
        };
        assert_eq!(plain(&ours), plain(&theirs), "{options}");
    }
}

#[test]
fn settings_are_what_dumpe2fs_then_says() {
    let Some(place) = made(EXT4) else { return };
    let args = [
        "tune",
        "-L",
        "data",
        "-m",
        "1",
        "-c",
        "20",
        "-i",
        "6m",
        "-e",
        "panic",
        "-o",
        "^acl,discard",
        "-u",
        "5",
        "-C",
        "3",
        "a.img",
    ];
    place.run(&args).succeeds();
    clean(&place, "a.img");
    let Some(said) = tool("dumpe2fs", &["-h", "a.img"], place.0.path()) else { return };
    let said = text(&said);
    for (key, value) in [
        ("Filesystem volume name", "data"),
        ("Maximum mount count", "20"),
        ("Check interval", "15552000 (6 months)"),
        ("Errors behavior", "Panic"),
        ("Default mount options", "user_xattr discard"),
        ("Filesystem state", "clean"),
    ] {
        let line = said.lines().find(|line| line.starts_with(&format!("{key}:")));
        let shown = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
        assert_eq!(shown, Some(value), "{key}");
    }
    assert!(said.contains("Reserved blocks uid:      5 "), "{said}");
}

#[test]
fn an_image_cut_off_under_the_kernel_is_replayed() {
    if !has_kernel() {
        return;
    }
    let Some(place) = made(EXT4) else { return };
    let kernel = Mounted::of(&place, "a.img");
    kernel.shell("mkdir d; touch d/f; echo x > d/g; sync -f .");
    std::fs::copy(place.path("a.img"), place.path("cut.img")).unwrap();
    drop(kernel);
    let replayed = place.run(&["replay", "--json", "cut.img"]).succeeds().json();
    assert!(replayed["replayed"]["transactions"].as_u64().unwrap() > 0, "{replayed}");
    clean(&place, "cut.img");
    place.run(&["stat", "cut.img:/d/f"]).succeeds();
    let bytes = std::fs::read(place.path("cut.img")).unwrap();
    let ran = place.run(&["replay", "cut.img"]).succeeds();
    assert!(ran.out().contains("nothing to replay"), "{}", ran.out());
    assert!(std::fs::read(place.path("cut.img")).unwrap() == bytes, "a clean image has changed");
    place.run(&["replay", "cut.img:/d"]).ends_with(2);
}

#[test]
fn a_file_that_was_open_without_a_name_is_deleted_by_replay() {
    if !has_kernel() {
        return;
    }
    for options in
        [EXT4, &["-t", "ext4", "-O", "orphan_file"], &["-t", "ext4", "-O", "^has_journal"]]
    {
        let Some(place) = made(options) else { return };
        let kernel = Mounted::of(&place, "a.img");
        let held = kernel.0.join("held");
        std::fs::write(&held, vec![1; 100_000]).unwrap();
        let open = std::fs::File::open(&held).unwrap();
        std::fs::remove_file(&held).unwrap();
        kernel.shell("mkdir kept; sync -f .");
        std::fs::copy(place.path("a.img"), place.path("cut.img")).unwrap();
        drop(open);
        drop(kernel);
        let replayed = place.run(&["replay", "--json", "cut.img"]).succeeds().json();
        if options.contains(&"^has_journal") {
            // Nobody can tell what is missing: the state says that a check is needed.
            assert_eq!(replayed["clean"], false, "{replayed}");
            continue;
        }
        assert_eq!(replayed["replayed"]["orphans_deleted"], 1, "{options:?}: {replayed}");
        assert_eq!(replayed["clean"], true, "{options:?}: {replayed}");
        clean(&place, "cut.img");
    }
}

#[test]
fn a_replay_that_left_something_to_e2fsck_says_so_by_its_exit_code() {
    let Some(place) = made(EXT4) else { return };
    // A file without a name that a crash left, and a file system with errors: nobody can tell whether its
    // list is true, so nothing on it is deleted.
    let commands = "ssv last_orphan 12\nssv state 2\n";
    std::fs::write(place.path("commands"), commands).unwrap();
    let directory = place.path("");
    let done = tool("debugfs", &["-w", "-f", "commands", "a.img"], &directory);
    assert!(done.is_some_and(|done| done.status.success()), "debugfs");
    let ran = place.run(&["replay", "a.img"]).ends_with(1);
    assert!(ran.out().contains("run extant repair"), "{}", ran.out());
}

#[test]
fn a_signal_ends_a_long_change_between_two_files() {
    let place = Place::new();
    let source = place.path("tree");
    std::fs::create_dir(&source).unwrap();
    for number in 0..8000 {
        std::fs::write(source.join(format!("{number}")), b"").unwrap();
    }
    place.run(&["build", "b.img", "--from", "tree", "--size", "auto+8M", "-q"]).succeeds();
    let mut stopped = 0;
    for _ in 0..4 {
        std::fs::copy(place.path("b.img"), place.path("c.img")).unwrap();
        let image = std::fs::File::open(place.path("c.img")).unwrap();
        let mut child = place.command(&["chmod", "-R", "go-rwx", "c.img:/"]).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        // Once the image needs recovery it is open for changes, and the handler stands.
        let needs_recovery = || {
            let mut incompat = [0; 4];
            image.read_exact_at(&mut incompat, 1024 + 0x60).unwrap();
            incompat[0] & 4 != 0
        };
        while !needs_recovery() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        match child.wait().unwrap().code() {
            Some(130) => stopped += 1,
            // It was faster than the signal.
            Some(0) => {}
            other => panic!("ended with {other:?}"),
        }
        let ran = place.run(&["replay", "c.img"]).succeeds();
        assert!(ran.out().contains("nothing to replay; clean"), "{}", ran.out());
        clean(&place, "c.img");
    }
    assert!(stopped > 0, "never stopped in time");
}

#[test]
fn damaged_images_are_refused_or_edited_and_never_end_in_a_panic() {
    let Some(place) = made(EXT4) else { return };
    place.run(&["mkdir", "-p", "a.img:/d/e"]).succeeds();
    place.run(&["touch", "a.img:/d/f"]).succeeds();
    place.run(&["setfattr", "-n", "user.a", "-v", "b", "a.img:/d/f"]).succeeds();
    let sound = std::fs::read(place.path("a.img")).unwrap();
    // Where something lies: damage of zeroes and of free space says little.
    let used: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    let commands: [&[&str]; 8] = [
        &["mkdir", "-p", "c.img:/d/e/g/h"],
        &["rm", "-r", "c.img:/d"],
        &["mv", "c.img:/d/f", "c.img:/d/e"],
        &["setfacl", "-R", "-m", "u:5:rwx", "c.img:/"],
        &["chmod", "-R", "a+X", "c.img:/"],
        &["ln", "c.img:/d/f", "c.img:/d/g"],
        &["setfattr", "-n", "user.b", "-v", "c", "c.img:/d/f"],
        &["replay", "c.img"],
    ];
    for round in 0..64 {
        let mut bytes = sound.clone();
        for _ in 0..=random(3) {
            let at = used[random(used.len())];
            bytes[at] ^= 1 << random(8);
        }
        std::fs::write(place.path("c.img"), &bytes).unwrap();
        let command = commands[round % commands.len()];
        let ran = place.run(command);
        let code = ran.output.status.code();
        let fine = code.is_some_and(|code| code < 70);
        assert!(fine, "{command:?} in round {round}: {code:?} {}", ran.err());
    }
}

#[test]
fn with_an_epoch_the_same_commands_make_the_same_bytes() {
    let Some(place) = made(EXT4) else { return };
    let original = std::fs::read(place.path("a.img")).unwrap();
    let edit = || {
        std::fs::write(place.path("a.img"), &original).unwrap();
        for line in [
            "mkdir -p /d/e",
            "touch /d/f",
            "setfacl -m u:5:rwx,d:u:5:rx /d",
            "ln -s TEXT:f /d/l",
            "touch /d/g",
            "rm /d/f",
            "chmod -R g+w /d",
        ] {
            let args = in_image(line);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let mut command = place.command(&args);
            let output = command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
            support::Ran { args: args.join(" "), output }.succeeds();
        }
        std::fs::read(place.path("a.img")).unwrap()
    };
    let first = edit();
    assert!(first == edit(), "two runs differ");
    assert!(first != original);
    let stat = place.run(&["stat", "--json", "a.img:/d/g"]).succeeds().json();
    for time in ["atime", "mtime", "ctime", "crtime"] {
        assert_eq!(stat[time]["sec"], 1_700_000_000, "{time}");
    }
    clean(&place, "a.img");
}

#[test]
fn damage_that_is_met_on_the_way_has_the_exit_code() {
    let Some(place) = made(&["-t", "ext4", "-b", "4096", "-e", "remount-ro"]) else { return };
    place.run(&["mkdir", "a.img:/d"]).succeeds();
    place.run(&["touch", "a.img:/d/a", "a.img:/d/b", "a.img:/d/c"]).succeeds();
    let extents = place.run(&["extents", "--json", "a.img:/d"]).succeeds().json_lines();
    let at = extents[0]["physical_byte"].as_u64().unwrap();
    let image = std::fs::OpenOptions::new().write(true).open(place.path("a.img")).unwrap();
    // The checksum in the directory's last bytes.
    image.write_all_at(b"\x12\x34\x56\x78", at + 4092).unwrap();
    place.run(&["rm", "-r", "a.img:/d"]).ends_with(4).complains(&["a.img:/d", "checksum"]);
    place.run(&["touch", "a.img:/d/x", "a.img:/d/y"]).ends_with(4).complains(&["checksum"]);
    place.run(&["ls", "a.img:/"]).succeeds();
}

#[test]
fn damage_that_is_met_when_changes_are_stored_has_the_exit_code_too() {
    let Some(place) = made(&["-t", "ext4", "-b", "1024", "-e", "panic"]) else { return };
    let Some(dumped) = tool("dumpe2fs", &["a.img"], place.0.path()) else { return };
    let dumped = text(&dumped);
    let (_, bitmap) = dumped.split_once("Inode bitmap at ").expect("the first group's");
    let number = bitmap.split(|at: char| !at.is_ascii_digit()).next().unwrap();
    let image = std::fs::OpenOptions::new().read(true).write(true).open(place.path("a.img"));
    let (image, at) = (image.unwrap(), number.parse::<u64>().unwrap() * 1024 + 50);
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[!byte[0]], at).unwrap();
    // There are others, but errors=panic stops the journal before anything is stored.
    let touched = place.run(&["touch", "a.img:/x"]).ends_with(4);
    assert!(touched.err().contains("inode bitmap"), "{}", touched.err());
    let listed = place.run(&["ls", "a.img:/"]).succeeds();
    assert!(!listed.out().contains('x'), "{}", listed.out());
}

/// The longest target has a block less one byte; whoever makes a link says how long it is and what fits.
#[test]
fn a_target_that_is_too_long_for_the_blocks_is_named_with_its_length_by_all_who_make_links() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    std::fs::create_dir(place.path("source")).unwrap();
    let target = |len: usize| "t".repeat(len);
    symlink(target(1023), place.path("source/fits")).unwrap();
    symlink(target(1024), place.path("source/long")).unwrap();
    let words = ["1024 bytes", "1023"];
    let hint = "-b 4096";
    place.run(&["mkfs", "-b", "1024", "a.img", "16M"]).succeeds();
    place.run(&["cp", "-r", "source", "a.img:/"]).ends_with(1).complains(&words).hints(hint);
    assert_eq!(place.run(&["ls", "a.img:/source"]).succeeds().out(), "fits\n");
    place.run(&["ln", "-s", &target(1023), "a.img:/other"]).succeeds();
    let long = target(1024);
    let ln = place.run(&["ln", "-s", &long, "a.img:/long"]).ends_with(6).complains(&words);
    assert!(!ln.hints(hint).err().contains("name of"));
    let build = ["build", "-b", "1024", "b.img", "--from"];
    let with = |source: &'static str| [&build[..], &[source]].concat();
    place.run(&with("source")).ends_with(6).complains(&words).complains(&["/long"]).hints(hint);
    if let Some(tar) = tool("tar", &["-cf", "source.tar", "source"], place.0.path()) {
        assert!(tar.status.success());
        place.run(&with("source.tar")).ends_with(6).complains(&words).hints(hint);
    }
    place.run(&["build", "-b", "4096", "b.img", "--from", "source"]).succeeds();
    place.run(&["check", "a.img", "b.img"]).succeeds();
}
