//! Whole disks: tables, partitions and what is in them, as other tools read them and as a machine boots them.

use std::path::Path;
use std::process::Command;

use crate::support;
use support::{Place, Ran, tool};

/// A directory with what firmware starts.
fn boot_files(place: &Place) {
    let boot = place.path("boot");
    std::fs::create_dir_all(boot.join("EFI/BOOT")).unwrap();
    std::fs::create_dir_all(boot.join("loader/entries")).unwrap();
    let program: Vec<u8> = (0..700_000u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(boot.join("EFI/BOOT/BOOTX64.EFI"), program).unwrap();
    std::fs::write(boot.join("loader/loader.conf"), "timeout 3\n").unwrap();
    std::fs::write(boot.join("loader/entries/A long näme.conf"), "title\n").unwrap();
    std::fs::write(boot.join("empty"), "").unwrap();
}

fn build(place: &Place, out: &str, args: &[&str]) -> serde_json::Value {
    let args = [&["build", out, "-q", "-F", "--json", "--from", "source", "--gpt"], args].concat();
    let output = place.command(&args).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
    Ran { args: args.join(" "), output }.succeeds().json()
}

/// Bytes `from..from + len` of a file, as a file of its own.
fn cut(place: &Place, disk: &str, partition: &serde_json::Value, out: &str) {
    let bytes = std::fs::read(place.path(disk)).unwrap();
    let number = |key: &str| partition[key].as_u64().unwrap() as usize;
    let (from, len) = (number("offset"), number("bytes"));
    std::fs::write(place.path(out), &bytes[from..from + len]).unwrap();
}

#[test]
fn a_disk_is_what_other_tools_read() {
    let place = Place::with_image();
    boot_files(&place);
    let made = build(&place, "d.img", &["--esp", "boot", "--verity", "--disk-size", "200M"]);
    let disk = &made["disk"];
    assert_eq!(disk["bytes"].as_u64(), Some(200 << 20));
    assert_eq!(std::fs::metadata(place.path("d.img")).unwrap().len(), 200 << 20);
    let parts = disk["partitions"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 3);
    assert!(names[0] == "esp" && names[1].starts_with("root-") && names[2].ends_with("-verity"));
    // Who knows the root hash finds both halves.
    let hash = made["verity"]["root_hash"].as_str().unwrap();
    let uuid = |at: usize| parts[at]["uuid"].as_str().unwrap().replace('-', "");
    assert_eq!([uuid(1), uuid(2)].concat(), hash);
    // The same with another number of threads, and from a run to standard output.
    build(&place, "e.img", &["--esp", "boot", "--verity", "--disk-size", "200M", "--threads", "1"]);
    let bytes = std::fs::read(place.path("d.img")).unwrap();
    assert!(std::fs::read(place.path("e.img")).unwrap() == bytes);

    // The command itself reads it, and e2fsck what is in the partition.
    place.run(&["check", "--partition", "2", "d.img"]).succeeds();
    let listed = place.run(&["cat", "--partition", "2", "d.img:/file"]).succeeds().out();
    assert_eq!(listed, "hello\n");
    cut(&place, "d.img", &parts[0], "esp.img");
    cut(&place, "d.img", &parts[1], "root.img");
    cut(&place, "d.img", &parts[2], "hashes.img");
    let good = |program: &str, args: &[&str]| {
        if let Some(output) = tool(program, args, place.0.path()) {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let complaints = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {args:?}: {said}{complaints}");
            return Some(said);
        }
        None
    };
    good("e2fsck", &["-fn", "root.img"]);
    if let Some(said) = good("sgdisk", &["-v", "d.img"]) {
        assert!(said.contains("No problems found"), "{said}");
    }
    if let Some(said) = good("sfdisk", &["--json", "d.img"]) {
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let table = &said["partitiontable"];
        assert_eq!(table["id"].as_str().map(str::to_lowercase).as_deref(), disk["uuid"].as_str());
        for (theirs, ours) in table["partitions"].as_array().unwrap().iter().zip(parts) {
            assert_eq!(theirs["start"].as_u64().unwrap() * 512, ours["offset"].as_u64().unwrap());
            assert_eq!(theirs["size"].as_u64().unwrap() * 512, ours["bytes"].as_u64().unwrap());
            for key in ["type", "uuid"] {
                let theirs = theirs[key].as_str().unwrap().to_lowercase();
                assert_eq!(Some(&*theirs), ours[key].as_str(), "{key}");
            }
        }
    }
    good("fsck.fat", &["-vn", "esp.img"]);
    if good("mcopy", &["-i", "esp.img", "::EFI/BOOT/BOOTX64.EFI", "copy"]).is_some() {
        let copy = std::fs::read(place.path("copy")).unwrap();
        assert!(copy == std::fs::read(place.path("boot/EFI/BOOT/BOOTX64.EFI")).unwrap());
        let listed = good("mdir", &["-/", "-b", "-i", "esp.img", "::"]).unwrap();
        for name in ["A long näme.conf", "loader/loader.conf", "/empty"] {
            assert!(listed.contains(name), "{listed}");
        }
    }
    good("veritysetup", &["verify", "root.img", "hashes.img", hash]);
}

#[test]
fn a_disk_that_cannot_be_is_refused_before_anything_is_written() {
    let place = Place::with_image();
    boot_files(&place);
    let run =
        |args: &[&str]| place.run(&[&["build", "d.img", "-q", "--from", "source"], args].concat());
    run(&["--esp", "boot"]).ends_with(2);
    run(&["--gpt", "--partition", "1"]).ends_with(2);
    run(&["--gpt", "--disk-size", "4M"]).ends_with(6).hints("--disk-size");
    run(&["--gpt", "--esp", "boot", "--esp-size", "8M"]).ends_with(6).hints("--esp-size");
    run(&["--gpt", "--platform", "linux/mips"]).ends_with(2).complains(&["mips"]);
    std::os::unix::fs::symlink("x", place.path("boot/link")).unwrap();
    run(&["--gpt", "--esp", "boot"]).complains(&["link", "symbolic links"]);
    assert!(!place.path("d.img").exists());
    // What it would be.
    std::fs::remove_file(place.path("boot/link")).unwrap();
    let plan = run(&["--gpt", "--esp", "boot", "--verity", "--plan"]).succeeds().out();
    assert!(plan.contains("Disk: ") && plan.contains("verity"), "{plan}");
    assert!(!place.path("d.img").exists());
    // On a machine of another kind, with room to grow.
    run(&["--gpt", "--platform", "linux/arm64"]).succeeds();
    let list = place.run(&["info", "--partition", "9", "d.img"]);
    assert!(list.err().contains("there are 1 ("), "{}", list.err());
}

/// A machine whose root is sealed starts, and does not when one bit of it is another one.
#[test]
#[ignore = "boots machines: takes a minute"]
fn a_sealed_disk_boots_and_a_damaged_one_does_not() {
    let place = Place::new();
    let root = place.path("source");
    for dir in ["bin", "sbin", "dev", "proc", "sys", "etc", "usr/share"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    let Some(output) = tool("sh", &["-c", "command -v busybox"], place.0.path()) else { return };
    let busybox = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if busybox.is_empty() {
        println!("skipped: busybox is not installed");
        return;
    }
    std::fs::copy(&busybox, root.join("bin/busybox")).unwrap();
    std::fs::write(root.join("etc/marker"), "this is the sealed root\n").unwrap();
    let bulk: Vec<u8> =
        (0..4 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(root.join("usr/share/bulk"), &bulk).unwrap();
    let init = "#!/bin/busybox sh\nB=/bin/busybox\n\
        $B echo \"init: $($B cat /etc/marker), on $($B grep ' / ' /proc/mounts)\"\n\
        $B find / -xdev -type f -exec $B cat {} + > /dev/null && $B echo 'init: all files were read'\n\
        $B touch /etc/x 2> /dev/null || $B echo 'init: nothing can be written'\n\
        $B sync\n$B poweroff -f\n";
    std::fs::write(root.join("sbin/init"), init).unwrap();
    let made = {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(root.join("sbin/init"), mode).unwrap();
        build(&place, "d.img", &["--verity", "--owner", "0:0", "--platform", "linux/amd64"])
    };
    let hash = made["verity"]["root_hash"].as_str().unwrap().to_owned();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/boot-disk");
    let boot = || {
        let output = Command::new(&script).arg(place.path("d.img")).arg(&hash).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let skipped = output.status.code() == Some(77);
        if skipped {
            println!("{}", said.trim());
        }
        (!skipped).then(|| said + &String::from_utf8_lossy(&output.stderr))
    };
    let Some(said) = boot() else { return };
    for wanted in [
        "init: this is the sealed root, on /dev/mapper/root / ext4 ro",
        "init: all files were read",
        "init: nothing can be written",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    // One bit of the large file.
    let mut bytes = std::fs::read(place.path("d.img")).unwrap();
    let at = bytes.windows(64).position(|part| *part == bulk[1 << 20..(1 << 20) + 64]).unwrap();
    bytes[at] ^= 1;
    std::fs::write(place.path("d.img"), bytes).unwrap();
    let said = boot().unwrap();
    assert!(said.contains("init: this is the sealed root"), "{said}");
    assert!(!said.contains("init: all files were read"), "{said}");
}
