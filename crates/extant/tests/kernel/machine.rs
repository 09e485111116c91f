//! What the kernel of this machine may be built without: folded names, sealed files, quotas. A kernel in a machine of
//! its own reads what extant wrote, and extant reads what it wrote.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use extant::{
    Fs, FsError, Inode, InodeFlags, MappingKind, MountOptions, NewInode, QuotaKind, QuotaLimits,
    SetAttributes, VerityAlgorithm, VerityOptions,
};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, tempdir};

use super::encrypted::require_clean;

/// Runs commands on an image in a machine (`scripts/boot-image`), beside which `files` lie; `settings` are variables of
/// the script. What the machine said, or what is missing for it.
pub(crate) fn boot(
    image: &Path,
    commands: &str,
    files: &[&Path],
    settings: &[(&str, &str)],
) -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/boot-image");
    let mut command = Command::new(script);
    command.arg(image).arg(commands).args(files).envs(settings.iter().copied());
    let done = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stdout).replace('\r', "");
    match done.status.code() {
        Some(77) => Err(said.trim().trim_start_matches("skipped: ").to_owned()),
        _ => Ok(said + &String::from_utf8_lossy(&done.stderr)),
    }
}

fn writable(image: &Path) -> Fs {
    MountOptions::new().read_only(false).open_path(image).unwrap()
}

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };

/// Names as they are stored, and another way to write each that is the same name in a folding directory.
const NAMES: [(&str, &str); 12] = [
    ("README", "readme"),
    ("Stra\u{df}e", "STRASSE"),
    ("\u{c5}NGSTR\u{d6}M", "a\u{30a}ngstro\u{308}m"),
    ("\u{130}stanbul", "i\u{307}STANBUL"),
    (
        "\u{3a3}\u{38a}\u{3a3}\u{3a5}\u{3a6}\u{39f}\u{3a3}",
        "\u{3c3}\u{3af}\u{3c3}\u{3c5}\u{3c6}\u{3bf}\u{3c2}",
    ),
    ("\u{fb01}le", "FIle"),
    ("\u{d55c}\u{ae00}", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}"),
    ("\u{416}\u{443}\u{43a}", "\u{436}\u{423}\u{41a}"),
    ("\u{1e9e}x", "SSX"),
    ("o\u{328}\u{304}", "O\u{304}\u{328}"),
    ("\u{10400}", "\u{10428}"),
    ("so\u{ad}ft", "SOFT"),
];
/// Entries of a directory that has an index.
const MANY: usize = 300;

fn many(number: usize) -> String {
    format!("Entry Number {number} of a Large Directory")
}

/// A folding directory of the root.
fn folding(fs: &Fs, name: &str) -> Inode {
    let dir = fs.root().unwrap().mkdir(name, &NewInode::root(0o755)).unwrap();
    let flags = dir.flags() | InodeFlags::CASEFOLD;
    dir.set_attributes(&SetAttributes::new().flags(flags)).unwrap();
    dir
}

#[test]
#[ignore = "boots machines: for `make test-long`"]
fn linux_in_a_machine_folds_names_as_extant_does() {
    for strict in [false, true] {
        let place = require!(tempdir().map_err(|error| error.to_string()));
        let image = place.path().join("image");
        let encoding = if strict { "encoding=utf8,encoding_flags=strict" } else { "encoding=utf8" };
        require!(mke2fs(&image, "64M", &["-t", "ext4", "-O", "casefold", "-E", encoding]));
        let fs = writable(&image);
        let ours = folding(&fs, "ours");
        for (stored, _) in NAMES {
            ours.create(stored, &NEW).unwrap().append(stored.as_bytes()).unwrap();
        }
        for number in 1..=MANY {
            ours.create(many(number), &NEW).unwrap();
        }
        drop(ours);
        fs.unmount().unwrap();

        let mut commands = String::from(
            "mkdir theirs && chattr +F theirs\nwrong() { echo \"guest: wrong: $*\"; }\n",
        );
        for (stored, variant) in NAMES {
            write!(
                commands,
                "[ \"$(cat 'ours/{variant}')\" = '{stored}' ] || wrong 'ours/{variant}'\n\
                 mkdir 'ours/{variant}' 2> /dev/null && wrong 'ours/{variant} is made again'\n\
                 printf %s '{stored}' > 'theirs/{stored}'\n"
            )
            .unwrap();
        }
        write!(
            commands,
            "[ $(ls ours | wc -l) = {} ] || wrong 'ours has' $(ls ours | wc -l)\n\
             for n in $(seq {MANY}); do\n\
               [ -e \"ours/entry number $n OF A large directory\" ] || wrong $n\n\
               : > \"theirs/Entry Number $n of a Large Directory\"\n\
             done\n\
             rm 'ours/eNTRY nUMBER 7 OF A lARGE dIRECTORY' || wrong 'rm'\n\
             mv ours/readme ours/moved || wrong mv\n\
             printf 'no utf8' > \"theirs/$(printf '\\377')\" && echo 'guest: no UTF-8 is taken'\n\
             echo 'guest: done'\n",
            NAMES.len() + MANY
        )
        .unwrap();
        let said = require!(boot(&image, &commands, &[], &[("BOOT_TOOLS", "chattr")]));
        assert!(said.contains("guest: done") && said.contains("boot: unmounted"), "{said}");
        assert!(!said.contains("guest: wrong"), "{said}");
        assert_eq!(said.contains("guest: no UTF-8 is taken"), !strict, "{said}");
        require_clean(&image);

        let fs = writable(&image);
        let theirs = fs.resolve("/theirs").unwrap();
        for (stored, variant) in NAMES {
            let found = theirs.lookup(variant).unwrap_or_else(|error| panic!("{variant}: {error}"));
            let mut bytes = vec![0; 100];
            let len = found.read_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes[..len], stored.as_bytes(), "{variant}");
            let again = theirs.mkdir(variant, &NewInode::root(0o755));
            assert!(matches!(again, Err(FsError::Exists { .. })), "{variant}: {again:?}");
        }
        for number in 1..=MANY {
            theirs.lookup(many(number).to_uppercase()).unwrap();
        }
        let raw = theirs.lookup(b"\xff");
        assert_eq!(raw.is_ok(), !strict);
        let made = theirs.create(b"\xfe", &NEW);
        assert_eq!(made.is_ok(), !strict, "{made:?}");
        let ours = fs.resolve("/ours").unwrap();
        assert!(matches!(ours.lookup("readme"), Err(FsError::NotFound { .. })));
        ours.lookup("MOVED").unwrap();
        assert_eq!(ours.read_dir().unwrap().count(), NAMES.len() + MANY - 1);
        drop((made, ours, theirs));
        fs.unmount().unwrap();
        require_clean(&image);
    }
}

/// Sizes around blocks and levels of the tree.
const SIZES: [usize; 6] = [0, 1, 4096, 4097, 524_289, 3_000_000];

/// What `yes SIZE | head -c SIZE` says.
fn sealed_contents(size: usize) -> Vec<u8> {
    format!("{size}\n").into_bytes().into_iter().cycle().take(size).collect()
}

#[test]
#[ignore = "boots machines: for `make test-long`"]
fn linux_in_a_machine_verifies_what_extant_sealed_and_the_other_way() {
    let place = require!(tempdir().map_err(|error| error.to_string()));
    let image = place.path().join("image");
    require!(mke2fs(&image, "64M", &["-t", "ext4", "-b", "4096", "-O", "verity"]));
    let ways = [
        ("plain", VerityOptions::new(), ""),
        ("salted", VerityOptions::new().salt(b"\x5a\x00\xff"), "--salt=5a00ff"),
        ("long", VerityOptions::new().algorithm(VerityAlgorithm::Sha512), "--hash-alg=sha512"),
    ];
    let fs = writable(&image);
    let root = fs.root().unwrap();
    let mut commands = String::from("wrong() { echo \"guest: wrong: $*\"; }\n");
    for (name, options, words) in &ways {
        for size in SIZES {
            let file = root.create(format!("{name}-{size}"), &NEW).unwrap();
            file.append(&sealed_contents(size)).unwrap();
            let digest = file.enable_verity(options).unwrap();
            write!(
                commands,
                "yes {size} | head -c {size} > their-{name}-{size}\n\
                 cmp their-{name}-{size} {name}-{size} || wrong {name}-{size}\n\
                 fsverity measure {name}-{size} | grep -q ':{digest} ' || wrong {name}-{size} is not {digest}\n\
                 echo more 2> /dev/null >> {name}-{size} && wrong {name}-{size} is written\n\
                 fsverity enable {words} their-{name}-{size} || wrong enable\n\
                 echo \"guest: $(fsverity measure their-{name}-{size})\"\n"
            )
            .unwrap();
        }
    }
    drop(root);
    fs.unmount().unwrap();
    commands += "echo 'guest: done'\n";
    let tools = [("BOOT_TOOLS", "fsverity")];
    let said = require!(boot(&image, &commands, &[], &tools));
    assert!(said.contains("guest: done") && said.contains("boot: unmounted"), "{said}");
    assert!(!said.contains("guest: wrong"), "{said}");
    require_clean(&image);

    let fs = MountOptions::new().open_path(&image).unwrap();
    let mut damaged = Vec::new();
    for (name, ..) in &ways {
        for size in SIZES {
            let theirs = fs.resolve(format!("/their-{name}-{size}")).unwrap();
            let digest = theirs.verity_digest().unwrap().expect("it is sealed");
            let ours = fs.resolve(format!("/{name}-{size}")).unwrap();
            assert_eq!(ours.verity_digest().unwrap(), Some(digest), "{name}-{size}");
            assert!(said.contains(&format!(":{digest} their-{name}-{size}")), "{digest}: {said}");
            assert!(fs.read(format!("/their-{name}-{size}")).unwrap() == sealed_contents(size));
            if size > 4096 {
                let last = (size as u64 - 1) / 4096;
                let run = ours.map(last..last + 1).next().unwrap().unwrap();
                let MappingKind::Mapped(at) = run.kind else { panic!("{name}-{size} has a hole") };
                damaged.push((format!("{name}-{size}"), at.0 * 4096));
            }
        }
    }
    drop(fs);

    // One byte of the last block of each.
    let mut bytes = fs::read(&image).unwrap();
    for (_, at) in &damaged {
        bytes[usize::try_from(*at).unwrap()] ^= 1;
    }
    fs::write(&image, bytes).unwrap();
    let mut commands = String::new();
    for (name, _) in &damaged {
        writeln!(commands, "head -c 4096 {name} > /dev/null && echo 'guest: {name} begins'")
            .unwrap();
        writeln!(commands, "cat {name} > /dev/null 2>&1 || echo 'guest: {name} is refused'")
            .unwrap();
    }
    let said = require!(boot(&image, &commands, &[], &tools));
    let fs = MountOptions::new().open_path(&image).unwrap();
    for (name, _) in &damaged {
        assert!(said.contains(&format!("guest: {name} begins")), "{name}: {said}");
        assert!(said.contains(&format!("guest: {name} is refused")), "{name}: {said}");
        let mut begin = vec![0; 4096];
        let file = fs.resolve(format!("/{name}")).unwrap();
        assert_eq!(file.read_at(&mut begin, 0).unwrap(), 4096, "{name}");
        fs.read(format!("/{name}")).expect_err("one bit is wrong");
    }
}

#[test]
#[ignore = "boots a machine: for `make test-long`"]
fn linux_in_a_machine_counts_and_limits_as_extant_does() {
    let place = require!(tempdir().map_err(|error| error.to_string()));
    let image = place.path().join("image");
    require!(mke2fs(
        &image,
        "64M",
        &["-t", "ext4", "-b", "4096", "-O", "quota", "-E", "quotatype=usrquota:grpquota"]
    ));
    let fs = writable(&image);
    let limits = QuotaLimits { space_hard_kib: 400, inodes_hard: 5, ..QuotaLimits::default() };
    fs.set_quota_limits(QuotaKind::User, 1000, &limits).unwrap();
    let own = NewInode { permissions: 0o755, uid: 1000, gid: 100 };
    let dir = fs.root().unwrap().mkdir("own", &own).unwrap();
    let file = NewInode { permissions: 0o644, ..own };
    dir.create("ours", &file).unwrap().append(&[1; 100_000]).unwrap();
    drop(dir);
    fs.unmount().unwrap();

    // 4 KiB of the directory and 100 of the file are used.
    let commands = "echo 'u:x:1000:100::/:/bin/sh' > /etc/passwd; echo 'g:x:100:' > /etc/group\n\
        su u -c 'head -c 1000000 /dev/zero > own/theirs' || echo 'guest: space is limited'\n\
        for n in 1 2 3 4; do su u -c \": > own/n$n\" || echo \"guest: $n is one too many\"; done\n\
        rm own/n1\n\
        echo \"guest: $(stat -c %b own/theirs) sectors, done\"\n";
    let settings = [("BOOT_TOOLS", ""), ("BOOT_OPTIONS", "usrquota,grpquota")];
    let commands = format!("mkdir -p /etc\n{commands}");
    let said = require!(boot(&image, &commands, &[], &settings));
    for words in ["space is limited", "3 is one too many", "592 sectors, done"] {
        assert!(said.contains(&format!("guest: {words}")), "no \"{words}\" in {said}");
    }
    assert!(!said.contains("2 is one too many") && said.contains("boot: unmounted"), "{said}");
    require_clean(&image);

    let fs = writable(&image);
    let used = fs.quota(QuotaKind::User, 1000).unwrap().unwrap();
    assert_eq!((used.space_bytes, used.inodes), (400 << 10, 4));
    assert_eq!((used.space_hard_limit, used.inode_hard_limit), (400, 5));
    let group = fs.quota(QuotaKind::Group, 100).unwrap().unwrap();
    assert_eq!((group.space_bytes, group.inodes), (400 << 10, 4));
    drop(fs);
}
