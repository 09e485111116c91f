//! Attributes of sources that `build` keeps in the image, or names as lost: flags, project ids, seals, and what fakeroot
//! remembers.

use std::fs;
use std::process::Command;

use crate::support;
use support::kernel::{Mounted, clean, made};
use support::mounts::mounts;
use support::{Place, is_root, tool};

/// What lsattr of e2fsprogs says of every name, without how files are stored.
fn flags_in(mounted: &Mounted) -> String {
    let list = mounted.shell(
        "for f in . $(find . -mindepth 1 -type f -o -type d -name 'd*'); do lsattr -dp $f; done",
    );
    let lines = list.lines().map(|line| {
        let (flags, path) = line.trim().rsplit_once(' ').unwrap();
        format!("{path} {}", flags.replace(['e', 'I'], "-"))
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines.join("\n")
}

/// An image whose files have flags, and with `project` also projects; made by the kernel and debugfs.
fn with_flags(project: bool) -> Option<Place> {
    if !is_root() {
        println!("skipped: needs root to mount");
        return None;
    }
    let place = made(&["-t", "ext4", "-O", "^metadata_csum"])?;
    {
        let mounted = Mounted::of(&place, "a.img");
        mounted.shell(
            "for letter in s u S i a d A j t c; do echo $letter > f-$letter; done
             echo plain > f-plain; mkdir d d/d-deep; echo below > d/f-below
             for letter in D T S d A; do mkdir d-$letter; echo x > d-$letter/f-in; done
             for letter in s u S i a d A j t c; do chattr +$letter f-$letter; done
             for letter in D T S d A; do chattr +$letter d-$letter; done
             chattr +d . && chattr +i d/d-deep",
        );
    }
    if project {
        let tune = tool("tune2fs", &["-O", "project", "a.img"], place.0.path())?;
        assert!(tune.status.success(), "{tune:?}");
        for (path, id) in [("/f-plain", "77"), ("/d", "5"), ("/d/f-below", "4294967295")] {
            let order = format!("sif {path} projid {id}");
            tool("debugfs", &["-w", "-R", &order, "a.img"], place.0.path())?;
        }
        // TOPDIR, INDEX and EXTENTS stay what they are: P alone on a new directory.
        tool("debugfs", &["-w", "-R", "sif /d-D flags 0x20090000", "a.img"], place.0.path())?;
    }
    Some(place)
}

#[test]
fn flags_and_projects_of_a_directory_are_kept() {
    let Some(place) = with_flags(true) else { return };
    let mounted = Mounted::with(&place, "a.img", "loop,ro");
    let args = ["build", "b.img", "--from", "a.img.mount", "-O", "project", "--json"];
    let built = place.run(&args).succeeds().json();
    clean(&place, "b.img");
    let (theirs, ours) = (flags_in(&mounted), flags_in(&Mounted::with(&place, "b.img", "loop,ro")));
    // Only c has no meaning in ext4, and e2fsck says that it must not be there.
    assert!(theirs.contains("77") && theirs.contains("4294967295") && theirs.contains('P'));
    let without_c = theirs.lines().map(|line| match line.starts_with("./f-c") {
        true => line.replace('c', "-").replacen("./f--", "./f-c", 1),
        false => line.to_owned(),
    });
    assert_eq!(ours, without_c.collect::<Vec<_>>().join("\n"));
    let lost = &built["lost"];
    assert_eq!(lost.as_array().unwrap().len(), 1, "{lost}");
    assert_eq!(lost[0]["what"], "flag c (compressed)");
    assert_eq!((&lost[0]["files"], &lost[0]["example"]), (&1.into(), &"f-c".into()));

    // Without the feature, each project is named, and so is P.
    let args = ["build", "c.img", "--from", "a.img.mount"];
    let err = place.run(&args).succeeds().err();
    for line in ["not kept: project id (-O project keeps it), of 3 files: d", "not kept: flag P"] {
        assert!(err.contains(line), "{err}");
    }
    clean(&place, "c.img");
    // Whoever wants to hear of errors only does.
    assert_eq!(place.run(&[&args[..], &["-q", "-F"]].concat()).succeeds().err(), "");

    // A file that is added has its flags as well; over layers they stay.
    let add = "a.img.mount/f-a:/f-a";
    let args = ["build", "d.img", "--from", "a.img.mount/d", "--add", add, "-O", "project", "-q"];
    place.run(&args).succeeds();
    let flags = place.run(&["lsattr", "-p", "d.img:/"]).succeeds().out();
    let line = |name: &str| flags.lines().find(|line| line.ends_with(name)).unwrap().to_owned();
    assert!(line("f-a").contains('a'), "{flags}");
    assert!(line("d-deep").contains('i') && line("f-below").contains("4294967295"), "{flags}");
    clean(&place, "d.img");
}

#[test]
fn quotas_count_projects() {
    let Some(place) = with_flags(true) else { return };
    let _mounted = Mounted::with(&place, "a.img", "loop,ro");
    let features = "quota,project";
    let args = ["build", "b.img", "--from", "a.img.mount", "-O", features, "-q"];
    place.run(&args).succeeds();
    // e2fsck counts what each project has, and compares.
    clean(&place, "b.img");
    place.run(&["check", "b.img"]).succeeds();
}

#[test]
fn flags_in_an_archive_are_kept() {
    let Some(place) = with_flags(false) else { return };
    let mounted = Mounted::with(&place, "a.img", "loop,ro");
    let args = ["--format=pax", "-cf", "t.tar", "-C", "a.img.mount", "."];
    let Some(done) = tool("bsdtar", &args, place.0.path()) else { return };
    assert!(done.status.success(), "{done:?}");
    let built = place.run(&["build", "b.img", "--from", "t.tar", "--json"]).succeeds().json();
    clean(&place, "b.img");
    let (theirs, ours) = (flags_in(&mounted), flags_in(&Mounted::with(&place, "b.img", "loop,ro")));
    let shown: Vec<&str> = theirs.lines().filter(|line| !line.starts_with("./f-c")).collect();
    let kept: Vec<&str> = ours.lines().filter(|line| !line.starts_with("./f-c")).collect();
    assert_eq!(kept, shown);
    assert_eq!(built["lost"][0]["what"], "flag c (compressed)", "{built}");
}

#[test]
fn seals_are_made_again_or_named() {
    let Some(mounts) = mounts() else { return };
    let place = &mounts.place;
    fs::create_dir_all(place.path("source")).unwrap();
    fs::write(place.path("source/sealed"), vec![7; 100_000]).unwrap();
    fs::write(place.path("source/open"), b"open").unwrap();
    fs::write(place.path("list"), "/sealed\n").unwrap();
    let args = ["build", "a.img", "--from", "source", "--fs-verity=list", "-F", "-q"];
    place.run(&args).succeeds();
    mounts.mount(&["-r"]).succeeds();
    let args = ["build", "b.img", "--from", "m", "-O", "verity", "--json"];
    let built = place.run(&args).succeeds().json();
    assert_eq!(built.get("lost"), None, "{built}");
    let err = place.run(&["build", "c.img", "--from", "m"]).succeeds().err();
    assert!(err.contains("not kept: fs-verity seal (-O verity makes it again), of 1 file: sealed"));
    mounts.umount();
    let digest = |path: &str| {
        place.run(&["stat", "--json", path]).succeeds().json().get("verity_digest").cloned()
    };
    assert!(digest("a.img:/sealed").is_some());
    assert_eq!(digest("a.img:/sealed"), digest("b.img:/sealed"));
    assert_eq!((digest("b.img:/open"), digest("c.img:/sealed")), (None, None));
    clean(place, "b.img");
}

/// In a user namespace Linux shows 65534 for all owners outside of it.
#[test]
fn owners_outside_of_the_user_namespace_are_named_as_lost() {
    let place = Place::new();
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/theirs"), "a").unwrap();
    let run = |program: &str, args: &[&str]| {
        tool(program, args, place.0.path()).filter(|o| o.status.success())
    };
    if run("chown", &["12345:12345", "tree/theirs"]).is_none()
        || run("unshare", &["-Ur", "true"]).is_none()
    {
        return;
    }
    let build = |more: &[&str]| {
        let args = ["-Ur", support::EXTANT, "build", "a.img", "-F", "--from", "tree"];
        let ran = run("unshare", &[&args[..], more].concat()).unwrap();
        String::from_utf8(ran.stderr).unwrap()
    };
    let said = build(&[]);
    assert!(
        said.contains("not kept: owner or group") && said.contains("of 1 file: theirs"),
        "{said}"
    );
    assert!(!build(&["--owner", "0:0"]).contains("not kept"));
}

#[test]
fn what_fakeroot_remembers_is_in_the_image() {
    let place = Place::new();
    fs::create_dir(place.path("tree")).unwrap();
    let script = "cd tree && umask 022 && echo a > mine && echo b > theirs && chown 5:6 theirs &&
        chmod 4751 theirs && mkdir dir && chown 7:8 dir && chmod 2770 dir && ln theirs dir/second &&
        ln -s mine link && chown -h 9:10 link && mknod tty c 4 1 && mknod disk b 259 1048575 &&
        chown 0:5 tty && chmod 620 tty && mkfifo pipe && chown 3:3 pipe && chown 11:12 .";
    let args = ["-s", "state", "--", "sh", "-ec", script];
    let Some(made) = tool("fakeroot", &args, place.0.path()) else { return };
    assert!(made.status.success(), "{made:?}");
    // What programs under fakeroot see is what an archive has.
    let args = ["-i", "state", "--", "tar", "--format=pax", "-cf", "t.tar", "-C", "tree", "."];
    assert!(tool("fakeroot", &args, place.0.path()).unwrap().status.success());
    place.run(&["build", "tar.img", "--from", "t.tar", "-q"]).succeeds();
    let args = ["build", "dir.img", "--from", "tree", "--fakeroot", "state", "-q"];
    place.run(&args).succeeds();
    let different = place.run(&["diff", "tar.img:/", "dir.img:/"]).out();
    // It is as old as its image, and there may be a second between the two.
    let different: Vec<_> =
        different.lines().filter(|line| !line.contains("/lost+found")).collect();
    assert_eq!(different, [""; 0]);
    let stat = |path: &str| place.run(&["stat", "--json", path]).succeeds().json();
    let disk = stat("dir.img:/disk");
    assert_eq!(disk["rdev"], serde_json::json!([259, 1_048_575]));
    assert_eq!(
        (&stat("dir.img:/link")["uid"], &stat("dir.img:/mine")["uid"]),
        (&9.into(), &0.into())
    );
    clean(&place, "dir.img");

    // As a layer below others, too; and not over files that are added.
    fs::create_dir(place.path("upper")).unwrap();
    fs::write(place.path("upper/top"), b"top").unwrap();
    let add = "tree/mine:/added:644:21:22";
    let args = ["build", "l.img", "--from", "tree", "--from", "upper", "--fakeroot", "state"];
    place.run(&[&args[..], &["--add", add, "-q"]].concat()).succeeds();
    assert_eq!(stat("l.img:/theirs")["gid"], 6);
    assert_eq!((&stat("l.img:/top")["uid"], &stat("l.img:/added")["uid"]), (&0.into(), &21.into()));

    // A copy has other inodes: its owners are nowhere, and that is not passed over.
    assert!(
        Command::new("cp")
            .args(["-a", "tree", "copy"])
            .current_dir(place.0.path())
            .status()
            .unwrap()
            .success()
    );
    let args = ["build", "c.img", "--from", "copy", "--fakeroot", "state"];
    place.run(&args).ends_with(3).complains(&["state", "none of the", "device and inode number"]);
    let args = ["build", "c.img", "--from", "t.tar", "--fakeroot", "state"];
    place.run(&args).ends_with(3).complains(&["none of the"]);
    fs::write(place.path("bad"), "owner=root\n").unwrap();
    let args = ["build", "c.img", "--from", "tree", "--fakeroot", "bad"];
    place
        .run(&args)
        .ends_with(3)
        .complains(&["bad: line 1", "owner=root"])
        .hints("fakeroot -s FILE");
    assert!(!place.path("c.img").exists());
}
