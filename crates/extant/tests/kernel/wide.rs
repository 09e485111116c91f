//! Encrypted trees in the modes that few kernels are built with: Adiantum, and names by HCTR2. What extant writes it
//! reads again and e2fsck finds clean; a kernel in a machine of its own reads it, and writes more.

use std::fs;
use std::path::Path;

use extant::{
    ContentsMode, EncryptionPolicy, Fs, FsError, Inode, IvKind, KeySpec, MasterKey, MountOptions,
    NamesMode, NewInode,
};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, tempdir};

use super::encrypted::{
    assert_device_clean, assert_same, errno, extant_tree, fill_by_extant, key, open_shared,
    pattern, raw_key, require_clean, unmounted, with_changed_contexts,
};
use super::machine;

pub(crate) fn adiantum(key: KeySpec, iv: IvKind) -> EncryptionPolicy {
    EncryptionPolicy {
        contents: ContentsMode::Adiantum,
        names: NamesMode::Adiantum,
        iv,
        ..EncryptionPolicy::new(key)
    }
}

fn hctr2(iv: IvKind) -> EncryptionPolicy {
    EncryptionPolicy {
        names: NamesMode::Aes256Hctr2,
        iv,
        ..EncryptionPolicy::new(key().identifier())
    }
}

/// Each policy with the name of its directory.
fn policies() -> [(&'static str, EncryptionPolicy); 7] {
    let (v1, v2) = (key().usual_descriptor(), key().identifier());
    [
        ("adiantum", adiantum(v2, IvKind::PerFile)),
        ("adiantum-direct", adiantum(v2, IvKind::DirectKey)),
        ("adiantum-v1", EncryptionPolicy { padding: 4, ..adiantum(v1, IvKind::PerFile) }),
        ("adiantum-direct-v1", EncryptionPolicy { padding: 16, ..adiantum(v1, IvKind::DirectKey) }),
        ("hctr2", hctr2(IvKind::PerFile)),
        ("hctr2-lblk64", EncryptionPolicy { padding: 8, ..hctr2(IvKind::InoLblk64) }),
        ("hctr2-lblk32", EncryptionPolicy { padding: 4, ..hctr2(IvKind::InoLblk32) }),
    ]
}

fn encrypted_dir(fs: &Fs, name: &str, policy: &EncryptionPolicy) -> Inode {
    let dir = fs.root().unwrap().mkdir(name, &NewInode::root(0o755)).unwrap();
    dir.set_encryption_policy(policy).unwrap();
    assert_eq!(dir.encryption_policy().unwrap(), Some(*policy));
    dir
}

#[test]
fn what_is_written_is_read_again_and_clean() {
    let units = |(name, policy): (&'static str, EncryptionPolicy)| {
        let is_v2 = matches!(policy.key, KeySpec::Identifier(_));
        let with = move |block, data_unit_log2| {
            (name, block, EncryptionPolicy { data_unit_log2, ..policy })
        };
        [Some(with("1024", None)), is_v2.then(|| with("4096", Some(9)))]
    };
    for (name, block, policy) in policies().into_iter().flat_map(units).flatten() {
        let device = require!(unmounted("encrypt,stable_inodes,inline_data", block));
        let fs = open_shared(&device, MountOptions::new().key(key()));
        let dir = encrypted_dir(&fs, name, &policy);
        fill_by_extant(&fs, &dir);
        let path = format!("/{name}");
        let tree = extant_tree(&fs, &path);
        drop(dir);
        fs.unmount().unwrap();
        assert_device_clean(&device);
        for writable in [false, true] {
            let options = MountOptions::new().key(key()).read_only(!writable).background(false);
            let fs = options.open_shared(device.clone()).unwrap();
            assert_same(&extant_tree(&fs, &path), &tree, name);
            // Parts, past the cache and through it.
            let file = fs.resolve(format!("{path}/file of 3000000")).unwrap();
            let expected = pattern(11, 3_000_000);
            for (at, len) in [(0, 1), (1, 4096), (511, 2), (70_001, 9_999), (2_999_990, 10)] {
                let mut bytes = vec![0; len];
                assert_eq!(file.read_at(&mut bytes, at as u64).unwrap(), len, "{name}");
                assert!(bytes == expected[at..at + len], "{name}: {len} bytes at {at}");
            }
        }
        // A wrong key under version 2 is none.
        let wrong = MountOptions::new().key(MasterKey::new(&[9; 64]).unwrap());
        let fs = open_shared(&device, wrong);
        let shown = extant_tree(&fs, &path);
        assert_eq!(shown.len(), tree.len(), "{name}");
        assert!(!shown.keys().any(|path| tree.contains_key(path)), "{name}");
        let dir = fs.resolve(&path).unwrap();
        assert_eq!(errno(dir.create("new", &NewInode::root(0o644))), 126);
        // By the names that are shown everything can go.
        fn empty(dir: &Inode) {
            for entry in dir.read_dir().unwrap() {
                let entry = entry.unwrap();
                let inode = entry.inode().unwrap();
                if inode.is_dir() {
                    empty(&inode);
                    dir.rmdir(entry.name()).unwrap();
                } else {
                    dir.unlink(entry.name()).unwrap();
                }
            }
        }
        empty(&dir);
        drop(dir);
        fs.unmount().unwrap();
        assert_device_clean(&device);
    }
}

#[test]
fn no_context_makes_a_mount_panic() {
    for (name, policy) in policies() {
        if matches!(policy.key, KeySpec::Descriptor(_)) {
            continue;
        }
        let device = require!(unmounted("encrypt,stable_inodes", "4096"));
        let fs = open_shared(&device, MountOptions::new().key(key()));
        let dir = encrypted_dir(&fs, "d", &policy);
        dir.create("file", &NewInode::root(0o644)).unwrap().append(&pattern(1, 5_000)).unwrap();
        dir.symlink("link", "target", &NewInode::root(0o777)).unwrap();
        drop(dir);
        fs.unmount().unwrap();
        let options = || MountOptions::new().key(key());
        let (refused, read) = with_changed_contexts(&device, &key().identifier(), options);
        assert!(refused > 500 && read > 500, "{name}: {refused} {read}");
    }
}

#[test]
fn policies_that_linux_does_not_take_are_refused() {
    let device = require!(unmounted("encrypt", "1024"));
    let fs = open_shared(&device, MountOptions::new().key(key()));
    let (v1, v2) = (key().usual_descriptor(), key().identifier());
    let usual = EncryptionPolicy::new(v2);
    let sm4 =
        EncryptionPolicy { contents: ContentsMode::Sm4Xts, names: NamesMode::Sm4Cts, ..usual };
    let small = EncryptionPolicy {
        contents: ContentsMode::Aes128CbcEssiv,
        names: NamesMode::Aes128Cts,
        ..usual
    };
    let dir = fs.root().unwrap().mkdir("d", &NewInode::root(0o755)).unwrap();
    for policy in [
        sm4,
        EncryptionPolicy { iv: IvKind::DirectKey, ..usual },
        hctr2(IvKind::DirectKey),
        // It needs stable_inodes.
        hctr2(IvKind::InoLblk64),
        EncryptionPolicy { key: v1, ..hctr2(IvKind::PerFile) },
        adiantum(v2, IvKind::InoLblk64),
        adiantum(v2, IvKind::InoLblk32),
        EncryptionPolicy { iv: IvKind::InoLblk64, ..small },
        EncryptionPolicy { names: NamesMode::Aes256Hctr2, ..adiantum(v2, IvKind::PerFile) },
        EncryptionPolicy { names: NamesMode::Adiantum, ..usual },
    ] {
        let refused = dir.set_encryption_policy(&policy).unwrap_err();
        assert!(matches!(refused, FsError::NotSupported { .. }), "{policy:?}: {refused}");
        assert!(!dir.is_encrypted());
    }
    // A key that is too short for the mode.
    let short = MasterKey::new(&[1; 24]).unwrap();
    let name = fs.add_key(short).unwrap();
    for policy in [adiantum(name, IvKind::PerFile), adiantum(name, IvKind::DirectKey)] {
        let refused = dir.set_encryption_policy(&policy).unwrap_err().to_string();
        assert!(refused.contains("too short"), "{refused}");
    }
    drop(dir);
    fs.unmount().unwrap();
    assert_device_clean(&device);
}

/// Sizes around those of data units and of the messages of a hash.
const SIZES: [usize; 11] = [0, 1, 15, 16, 1023, 1024, 4095, 4096, 4097, 70_000, 1_000_000];
const NAMES: [usize; 8] = [1, 15, 16, 17, 31, 33, 149, 255];
const TARGETS: [usize; 6] = [1, 31, 46, 60, 500, 900];
const MANY: usize = 400;

/// What `yes NAME | head -c SIZE` says.
fn said(name: &str, size: usize) -> Vec<u8> {
    format!("{name}\n").into_bytes().into_iter().cycle().take(size).collect()
}

/// The functions of the machine that fill a directory and look at one.
const FUNCTIONS: &str = r#"
run_of() { head -c $1 /dev/zero | tr '\0' $2; }
fill() {
  for n in $SIZES; do yes "file of $n" | head -c $n > "$1/file of $n"; done
  for n in $NAMES; do echo $n > "$1/$(run_of $n n)"; done
  for n in $TARGETS; do ln -s $(run_of $n t) "$1/link $n"; done
  mkdir -p "$1/many/deep/directory"
  for n in $(seq $MANY); do : > "$1/many/entry number $n of a large directory"; done
  yes hole | head -c 3000 > "$1/many/deep/directory/sparse"
  truncate -s 500000 "$1/many/deep/directory/sparse"
}
look() {
  bad=0
  for n in $SIZES; do
    yes "file of $n" | head -c $n | cmp - "$1/file of $n" || bad=$((bad + 1))
  done
  for n in $NAMES; do [ "$(cat "$1/$(run_of $n n)")" = $n ] || bad=$((bad + 1)); done
  for n in $TARGETS; do [ "$(readlink "$1/link $n")" = $(run_of $n t) ] || bad=$((bad + 1)); done
  for n in $(seq $MANY); do
    [ -e "$1/many/entry number $n of a large directory" ] || bad=$((bad + 1))
  done
  [ $(ls "$1/many" | wc -l) = $((MANY + 1)) ] || bad=$((bad + 1))
  [ $(ls "$1" | wc -l) = $2 ] || bad=$((bad + 1))
  head -c 3000 "$1/many/deep/directory/sparse" | cmp - /tmp/holes || bad=$((bad + 1))
  [ "$(tail -c 497000 "$1/many/deep/directory/sparse" | tr -d '\0' | wc -c)" = 0 ] || bad=$((bad + 1))
  echo "guest: $1 has $bad wrong"
}
yes hole | head -c 3000 > /tmp/holes
xfs_io -c add_enckey /mnt < /key > /tmp/added
id=$(grep -o '[0-9a-f]\{32\}' /tmp/added)
xfs_io -c "add_enckey -d $DESCRIPTOR" /mnt < /key > /dev/null
"#;

/// Runs commands in the machine. `Err` says what is missing.
fn boot(image: &Path, key_file: &Path, commands: &str) -> Result<String, String> {
    let words =
        |numbers: &[usize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let head = format!(
        "SIZES='{}' NAMES='{}' TARGETS='{}' MANY={MANY} DESCRIPTOR={}",
        words(&SIZES),
        words(&NAMES),
        words(&TARGETS),
        key().usual_descriptor()
    );
    machine::boot(image, &[&head, FUNCTIONS, commands].concat(), &[key_file], &[])
}

/// Fills a directory by extant with what `fill` makes in the machine.
fn fill_as_the_machine(dir: &Inode) {
    let new = NewInode::root(0o644);
    for size in SIZES {
        let name = format!("file of {size}");
        dir.create(&name, &new).unwrap().write_at(&said(&name, size), 0).unwrap();
    }
    for len in NAMES {
        let file = dir.create("n".repeat(len), &new).unwrap();
        file.append(format!("{len}\n").as_bytes()).unwrap();
    }
    for len in TARGETS {
        dir.symlink(format!("link {len}"), "t".repeat(len), &new).unwrap();
    }
    let many = dir.mkdir("many", &NewInode::root(0o755)).unwrap();
    for number in 1..=MANY {
        many.create(format!("entry number {number} of a large directory"), &new).unwrap();
    }
    let deep = many.mkdir("deep", &NewInode::root(0o755)).unwrap();
    let deep = deep.mkdir("directory", &NewInode::root(0o755)).unwrap();
    let sparse = deep.create("sparse", &new).unwrap();
    sparse.append(&said("hole", 3000)).unwrap();
    sparse.truncate(500_000).unwrap();
}

/// Looks at a directory that the machine, or extant, has filled.
fn look_at(fs: &Fs, path: &str) {
    for size in SIZES {
        let name = format!("file of {size}");
        let bytes = fs.read(format!("{path}/{name}")).unwrap();
        assert!(bytes == said(&name, size), "{path}: {name}");
    }
    for len in NAMES {
        let bytes = fs.read(format!("{path}/{}", "n".repeat(len))).unwrap();
        assert_eq!(bytes, format!("{len}\n").into_bytes(), "{path}");
    }
    let dir = fs.resolve(path).unwrap();
    for len in TARGETS {
        let link = dir.lookup(format!("link {len}")).unwrap();
        assert_eq!(link.read_link().unwrap(), "t".repeat(len).into_bytes(), "{path}");
    }
    let many = dir.lookup("many").unwrap();
    for number in 1..=MANY {
        many.lookup(format!("entry number {number} of a large directory")).unwrap();
    }
    assert_eq!(many.read_dir().unwrap().count(), MANY + 1, "{path}");
    let sparse = fs.read(format!("{path}/many/deep/directory/sparse")).unwrap();
    assert!(sparse.len() == 500_000 && sparse[..3000] == said("hole", 3000));
    assert!(sparse[3000..].iter().all(|byte| *byte == 0), "{path}");
}

#[test]
#[ignore = "boots machines: for `make test-long`"]
fn linux_in_a_machine_writes_what_extant_reads_and_reads_what_extant_writes() {
    for block in ["4096", "1024"] {
        let place = require!(tempdir().map_err(|error| error.to_string()));
        let (image, key_file) = (place.path().join("image"), place.path().join("key"));
        fs::write(&key_file, raw_key()).unwrap();
        let features = "encrypt,stable_inodes";
        require!(mke2fs(&image, "128M", &["-t", "ext4", "-b", block, "-O", features]));

        // The kernel gives the policies, as extant would, and fills the directories.
        let mut commands = String::new();
        for (name, policy) in policies() {
            let bytes = policy.encode();
            let (version, spec) = match policy.key {
                KeySpec::Descriptor(_) => (1, "$DESCRIPTOR"),
                KeySpec::Identifier(_) => (2, "$id"),
            };
            let (contents, names, flags) = (bytes[1], bytes[2], bytes[3]);
            commands += &format!(
                "mkdir {name} && xfs_io -c \"set_encpolicy -c {contents} -n {names} -f {flags} \
                 -v {version} {spec}\" {name}\n\
                 if mkdir {name}/first; then fill {name}/first; echo 'guest: {name} is filled'\n\
                 else rmdir {name}; echo 'guest: {name} cannot be'; fi\n"
            );
        }
        let first = require!(boot(&image, &key_file, &commands));
        assert!(first.contains("boot: unmounted"), "{first}");
        let is_there = |name: &str| first.contains(&format!("guest: {name} is filled"));
        for (name, policy) in policies() {
            if !is_there(name) {
                // Debian's kernels have it not; see scripts/boot-image.
                assert_eq!(policy.names, NamesMode::Aes256Hctr2, "{name}: {first}");
                println!("skipped: {name}: the kernel in the machine has no HCTR2");
            }
        }
        let there = || policies().into_iter().filter(|(name, _)| is_there(name));

        // extant reads, and fills another directory in each, and one that it has encrypted itself.
        let options = || MountOptions::new().key(key());
        let fs = options().read_only(false).open_path(&image).unwrap();
        for (name, policy) in there() {
            let dir = fs.resolve(format!("/{name}")).unwrap();
            assert_eq!(dir.encryption_policy().unwrap(), Some(policy), "{name}");
            look_at(&fs, &format!("/{name}/first"));
            fill_as_the_machine(&dir.mkdir("second", &NewInode::root(0o755)).unwrap());
            fill_as_the_machine(&encrypted_dir(&fs, &format!("{name}-own"), &policy));
            look_at(&fs, &format!("/{name}-own"));
        }
        let all = || there().flat_map(|(name, _)| [format!("/{name}"), format!("/{name}-own")]);
        let trees: Vec<_> = all().map(|path| extant_tree(&fs, &path)).collect();
        fs.unmount().unwrap();
        require_clean(&image);

        // The kernel reads, and changes what there is.
        let entries = SIZES.len() + NAMES.len() + TARGETS.len() + 1;
        let mut commands = String::new();
        for (name, _) in there() {
            for dir in [format!("{name}/first"), format!("{name}/second"), format!("{name}-own")] {
                commands += &format!("look {dir} {entries}\n");
            }
            commands += &format!(
                "echo more >> '{name}/second/file of 4097'\n\
                 mv '{name}/second/link 900' {name}/moved\n\
                 rm -r {name}/second/many\n"
            );
        }
        let second = require!(boot(&image, &key_file, &commands));
        assert!(second.contains("boot: unmounted"), "{second}");
        for (name, _) in there() {
            for dir in [format!("{name}/first"), format!("{name}/second"), format!("{name}-own")] {
                assert!(second.contains(&format!("guest: {dir} has 0 wrong")), "{dir}: {second}");
            }
        }
        require_clean(&image);
        let fs = options().open_path(&image).unwrap();
        for (path, before) in all().zip(trees) {
            let mut expected = before;
            if !path.ends_with("-own") {
                let more = expected.get_mut("/second/file of 4097").unwrap();
                more.extend(b"more\n");
                let link = expected.remove("/second/link 900").unwrap();
                expected.insert("/moved".to_owned(), link);
                expected.retain(|path, _| !path.starts_with("/second/many"));
            }
            assert_same(&extant_tree(&fs, &path), &expected, &path);
        }
    }
}
