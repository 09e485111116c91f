//! `scan_tar` against archives made by GNU tar and Python, and against hostile ones.

use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::source::tar::{TarInput, TarOptions, scan_tar, scan_tar_stream};
use extant_image::source::{Scanned, SourceError};
use extant_image::tree::{Kind, Node, NodeId, Tree};

fn options() -> TarOptions<'static> {
    TarOptions { spool_dir: std::env::temp_dir(), cancel: None }
}

fn scan_file(path: &Path) -> Scanned {
    scan_tar(TarInput::File(path.to_path_buf()), &options())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn scan_bytes(bytes: Vec<u8>) -> Result<Scanned, SourceError> {
    scan_tar_stream("test.tar", Cursor::new(bytes), &options())
}

fn node<'t>(tree: &'t Tree, path: &str) -> &'t Node {
    if path.is_empty() {
        return tree.node(NodeId::ROOT);
    }
    let at = (0..tree.entries().len()).find(|&i| tree.entry_path(i as u32) == path.as_bytes());
    tree.node(tree.entries()[at.unwrap_or_else(|| panic!("no {path}"))].node)
}

/// All bytes of a file, zeros for holes.
fn contents(scanned: &Scanned, id: NodeId) -> Vec<u8> {
    let tree = &scanned.tree;
    let node = tree.node(id);
    let mut bytes = vec![0; node.size as usize];
    let whole = [(0, node.size)];
    let runs: Vec<(u64, u64)> = match tree.runs(node) {
        Some(runs) => runs.iter().map(|run| (run.offset, run.len)).collect(),
        None => whole.to_vec(),
    };
    let mut reader = scanned.contents.reader();
    for (offset, len) in runs.into_iter().filter(|run| run.1 > 0) {
        let piece = &mut bytes[offset as usize..(offset + len) as usize];
        reader.read(tree, id, offset, piece).unwrap();
    }
    reader.finish(tree).unwrap();
    bytes
}

/// Everything an archive of `tree` should keep; `nanos` when it keeps them.
fn describe(scanned: &Scanned, nanos: bool, holes: bool) -> Vec<String> {
    let tree = &scanned.tree;
    let mut lines = Vec::new();
    for (i, n) in tree.nodes().iter().enumerate() {
        let data = if n.kind == Kind::File { contents(scanned, NodeId(i as u32)) } else { vec![] };
        let sum = data.iter().fold(7u64, |s, &b| s.wrapping_mul(31).wrapping_add(b.into()));
        let nsec = if nanos { n.mtime.nsec } else { 0 };
        let runs = if holes { tree.runs(n).map(<[_]>::len) } else { None };
        lines.push(format!(
            "{:?} {:?} {:o} {}:{} {}.{nsec} {} {:?} {} {:?} {:?} {sum} {runs:?}",
            tree.path(NodeId(i as u32)).escape_ascii().to_string(),
            n.kind,
            n.mode,
            n.uid,
            n.gid,
            n.mtime.sec,
            n.size,
            n.rdev,
            n.name_count,
            tree.target(n).escape_ascii().to_string(),
            tree.xattrs(n),
        ));
    }
    lines
}

/// A tree with what archives can hold. Sockets cannot be archived.
fn sample(root: &Path) {
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::create_dir_all(root.join(format!("{}/{}", "d".repeat(120), "e".repeat(140)))).unwrap();
    let long = root.join(format!("{}/{}/{}", "d".repeat(120), "e".repeat(140), "f".repeat(200)));
    fs::write(long, b"long name").unwrap();
    fs::write(root.join("usr/bin/tool"), vec![0x5a; 100_000]).unwrap();
    fs::write(root.join("usr/empty"), b"").unwrap();
    fs::write(root.join("secret"), b"x").unwrap();
    fs::hard_link(root.join("usr/bin/tool"), root.join("another")).unwrap();
    symlink("usr/bin/tool", root.join("link")).unwrap();
    symlink("t".repeat(300), root.join("long link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), 0o640.into()).unwrap();
    fs::set_permissions(root.join("usr"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(root.join("secret"), fs::Permissions::from_mode(0o0)).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    // More runs than the 4 and 21 of GNU's headers.
    sparse.set_len(4 << 20).unwrap();
    for i in 0..30 {
        sparse.write_all_at(&[i as u8 + 1; 4096], i * (128 << 10) + (64 << 10)).unwrap();
    }
    if rustix::process::geteuid().is_root() {
        let mut mknod = Command::new("mknod");
        assert!(mknod.arg(root.join("dev")).args(["b", "8", "17"]).status().unwrap().success());
        std::os::unix::fs::chown(root.join("secret"), Some(3_000_000), Some(77)).unwrap();
    }
}

fn run(program: &str, args: &[&str]) -> bool {
    let out = Command::new(program).args(args).output();
    let worked = out.as_ref().is_ok_and(|out| out.status.success());
    if !worked {
        println!("skipped {program} {args:?}: {out:?}");
    }
    worked
}

#[test]
fn every_format_of_gnu_tar_gives_the_tree_that_the_directory_gives() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    fs::create_dir(&root).unwrap();
    sample(&root);
    let dir = scan_dir(&root, &ScanOptions::default()).unwrap();
    let archive = temp.path().join("a.tar");
    let mut compared = 0;
    let (path, root) = (archive.to_str().unwrap(), root.to_str().unwrap());
    for format in [
        &["--format=gnu"][..],
        &["--format=pax"],
        &["--format=oldgnu"],
        &["--format=gnu", "-S"],
        &["--format=pax", "-S", "--sparse-version=0.0"],
        &["--format=pax", "-S", "--sparse-version=0.1"],
        &["--format=pax", "-S", "--sparse-version=1.0"],
    ] {
        let args = [&["-C", root, "--sort=name", "-cf", path], format, &["."]].concat();
        if !run("tar", &args) {
            continue;
        }
        let (nanos, holes) = (format[0].ends_with("pax"), format.contains(&"-S"));
        let wanted = describe(&dir, nanos, holes);
        assert_eq!(describe(&scan_file(&archive), nanos, holes), wanted, "{format:?}");
        // The same packed, as a stream.
        for packer in ["gzip", "zstd"] {
            let Ok(packed) = Command::new(packer).args(["-c", path]).output() else {
                println!("skipped {packer}");
                continue;
            };
            let stream = scan_bytes(packed.stdout).unwrap();
            assert_eq!(describe(&stream, nanos, holes), wanted, "{format:?} {packer}");
        }
        let stream = scan_bytes(fs::read(&archive).unwrap()).unwrap();
        assert_eq!(describe(&stream, nanos, holes), wanted, "{format:?} stream");
        compared += 1;
    }
    println!("{compared} formats compared");
}

#[test]
fn attributes_and_lists_come_through_gnu_tar() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    fs::create_dir_all(root.join("dir")).unwrap();
    fs::write(root.join("file"), b"x").unwrap();
    let (file, dir) = (root.join("file"), root.join("dir"));
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    let archive = temp.path().join("a.tar");
    let made = run("setfattr", &["-n", "user.a", "-v", "0x000aff", file])
        // Escaped in the archive, which has no place for "=" in a key.
        && run("setfattr", &["-n", "user.a=b%41%3D", "-v", "c=d", file])
        // GNU tar writes the names that the host knows into the text of a list, whatever --numeric-owner says.
        && run("setfacl", &["-m", "u:daemon:r,u:1234:r,g:5678:rwx", file])
        && run("setfacl", &["-d", "-m", "u:1234:rwx,g:daemon:x", dir])
        && run("setcap", &["cap_net_raw+ep", file])
        && run("setfattr", &["-n", "security.selinux", "-v", "a:b:c\\000", dir])
        && run(
            "tar",
            &[
                "-C",
                root.to_str().unwrap(),
                "--format=pax",
                "--xattrs",
                "--xattrs-include=*",
                "--acls",
                "--numeric-owner",
                "-cf",
                archive.to_str().unwrap(),
                ".",
            ],
        );
    if made {
        let from_dir = scan_dir(&root, &ScanOptions::default()).unwrap();
        let from_tar = scan_file(&archive);
        assert_eq!(from_dir.tree.xattr_sets().len(), 3);
        assert_eq!(describe(&from_tar, true, true), describe(&from_dir, true, true));
    }
}

#[test]
fn a_mode_goes_by_the_list_beside_it() {
    // As libarchive writes it: the mode has the owning group's permissions, not the mask.
    let list = "user::rw-,group::---,other::r--,user:joe:rwx:1000,mask::rwx";
    let mut member = pax(&[("SCHILY.acl.access", list)]);
    let mut plain = file("x", b"");
    plain[100..108].copy_from_slice(b"0004604\0");
    member.extend(sealed(plain));
    let scanned = scan_bytes(archive(&[member])).unwrap();
    assert_eq!(format!("{:o}", node(&scanned.tree, "x").mode), "4674");
}

#[test]
fn archives_by_python_in_all_formats() {
    let temp = tempfile::tempdir().unwrap();
    let script = r#"
import io, sys, tarfile
for name, fmt in [("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)]:
    with tarfile.open(f"{sys.argv[1]}/{name}.tar", "w", format=fmt) as t:
        def add(name, kind, data=b"", **more):
            i = tarfile.TarInfo(name)
            i.type, i.size, i.mtime, i.mode = kind, len(data), 1234567, 0o640
            for k, v in more.items(): setattr(i, k, v)
            t.addfile(i, io.BytesIO(data))
        add("./", tarfile.DIRTYPE, mode=0o711, uid=3)
        add("before", tarfile.LNKTYPE, linkname="a/b/file")
        add("a/b/file", tarfile.REGTYPE, b"data", uid=5, gid=6)
        add("p" * 90 + "/" + "q" * 90, tarfile.REGTYPE, b"prefix")
        add("chr", tarfile.CHRTYPE, devmajor=10, devminor=200)
        add("link", tarfile.SYMTYPE, linkname="/absolute/is fine")
        if fmt != tarfile.USTAR_FORMAT:
            add("big id", tarfile.REGTYPE, b"", uid=4000000000)
"#;
    let dir = temp.path().to_str().unwrap();
    if !run("python3", &["-c", script, dir]) {
        return;
    }
    for name in ["ustar", "gnu", "pax"] {
        let scanned = scan_file(&temp.path().join(format!("{name}.tar")));
        let tree = &scanned.tree;
        assert_eq!((node(tree, "").mode, node(tree, "").uid), (0o711, 3));
        let file = node(tree, "a/b/file");
        assert_eq!((file.uid, file.gid, file.mode, file.name_count), (5, 6, 0o640, 2));
        assert_eq!(file.mtime.sec, 1234567);
        assert_eq!(file.atime, file.mtime);
        let first = tree.entries()[node(tree, "before").first_entry as usize].node;
        assert_eq!(contents(&scanned, first), b"data");
        let implied = node(tree, "a");
        assert_eq!((implied.kind, implied.mode, implied.uid), (Kind::Dir, 0o755, 0));
        assert_eq!(implied.mtime.sec, 1234567);
        assert_eq!(node(tree, "chr").rdev, (10, 200));
        assert_eq!(tree.target(node(tree, "link")), b"/absolute/is fine");
        node(tree, &format!("{}/{}", "p".repeat(90), "q".repeat(90)));
        if name != "ustar" {
            assert_eq!(node(tree, "big id").uid, 4_000_000_000);
        }
    }
}

/// A header block with a right checksum.
fn header(name: &str, typeflag: u8, size: &str, link: &str) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put =
        |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, size);
    put(136, "00000000007\0");
    put(157, link);
    put(257, "ustar\x0000");
    block[156] = typeflag;
    sealed(block)
}

fn sealed(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn file(name: &str, data: &[u8]) -> Vec<u8> {
    let mut out = header(name, b'0', &format!("{:011o}\0", data.len()), "");
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn simple(name: &str, typeflag: u8, link: &str) -> Vec<u8> {
    header(name, typeflag, "00000000000\0", link)
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut out = members.concat();
    out.resize(out.len() + 1024, 0);
    out
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut data = String::new();
    for (key, value) in records {
        let body = key.len() + value.len() + 3;
        let len = (1..9).map(|n| body + n).find(|len| len.to_string().len() + body == *len);
        data += &format!("{} {key}={value}\n", len.unwrap());
    }
    let mut out = file("pax", data.as_bytes());
    out[156] = b'x';
    let first = sealed(out[..512].to_vec());
    out[..512].copy_from_slice(&first);
    out
}

#[test]
fn later_members_take_the_place_of_earlier_ones() {
    let scanned = scan_bytes(archive(&[
        simple("link2", b'1', "link1"),
        simple("link1", b'1', "late"),
        file("a", b"old"),
        simple("keeps", b'1', "a"),
        file("./a", b"new"),
        simple("dir", b'5', ""),
        file("dir/f", b""),
        simple("dir/", b'5', ""),
        simple("was link", b'2', "dir"),
        simple("was link", b'5', ""),
        file("was link/f", b"1"),
        simple("empty", b'5', ""),
        file("empty", b"2"),
        simple("placeholder", b'1', "nowhere"),
        file("placeholder", b"3"),
        file("late", b"4"),
    ]))
    .unwrap();
    let tree = &scanned.tree;
    let read =
        |path| contents(&scanned, tree.entries()[node(tree, path).first_entry as usize].node);
    assert_eq!(read("a"), b"new");
    assert_eq!(read("keeps"), b"old");
    assert_eq!(read("was link/f"), b"1");
    assert_eq!(read("empty"), b"2");
    assert_eq!(read("placeholder"), b"3");
    assert_eq!(read("link2"), b"4");
    assert_eq!(node(tree, "late").name_count, 3);
    assert_eq!(tree.entries().len(), 11);
}

#[test]
fn hostile_and_damaged_archives_are_refused_by_name() {
    let huge = |kind: u8| header("x", kind, "77777777777\0", "");
    let mut negative = header("neg", b'0', "00000000000\0", "");
    negative[124..136].fill(0xff);
    let mut sum = file("sum", b"x");
    sum[0] = b'z';
    let pax_file = |records: &[(&str, &str)]| archive(&[pax(records), file("f", b"")]);
    let table: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![], &["not a tar archive", "empty"]),
        (vec![7; 5000], &["not a tar archive"]),
        (vec![0; 100], &["not a tar archive", "100 bytes"]),
        (b"key=value\n".to_vec(), &["not a tar archive", "10 bytes"]),
        (
            [archive(&[file("a", b"x")]), archive(&[file("b", b"x")])].concat(),
            &["byte 2048", "another archive"],
        ),
        (archive(&[file("../out", b"")]), &["../out", "\"..\""]),
        (archive(&[file("a/../b", b"")]), &["a/../b", "\"..\""]),
        (archive(&[file("/etc/passwd", b"")]), &["/etc/passwd", "absolute"]),
        (archive(&[simple("h", b'1', "../x")]), &["h", "../x"]),
        // Nobody reads a link further than to a zero byte, and e2fsck calls it damaged.
        (
            archive(&[pax(&[("linkpath", "to\0there")]), simple("s", b'2', "")]),
            &["\"s\"", "to\\x00there"],
        ),
        (archive(&[simple("h", b'1', "/x")]), &["\"h\"", "/x"]),
        (archive(&[simple("h", b'1', "gone")]), &["\"h\"", "\"gone\"", "does not exist"]),
        (archive(&[simple("h", b'1', "h")]), &["\"h\"", "back"]),
        (archive(&[simple("h", b'1', "i"), simple("i", b'1', "h")]), &["\"h\"", "\"i\"", "back"]),
        (
            archive(&[simple("h", b'1', "d"), simple("d", b'5', "")]),
            &["\"h\"", "\"d\"", "directory"],
        ),
        (
            archive(&[simple("d", b'5', ""), simple("h", b'1', "d")]),
            &["\"h\"", "\"d\"", "directory"],
        ),
        (
            archive(&[simple("s", b'2', "/etc"), file("s/passwd", b"")]),
            &["s/passwd", "\"s\"", "symbolic link"],
        ),
        (archive(&[file("f", b""), file("f/g", b"")]), &["f/g", "not a directory"]),
        (archive(&[file("d/f", b""), file("d", b"")]), &["\"d\"", "not empty"]),
        (archive(&[file("./", b"").to_vec(), simple(".", b'6', "")]), &["\".\"", "root"]),
        (archive(&[huge(b'0')]), &["\"x\"", "8589934591 bytes", "cut short"]),
        (archive(&[huge(b'L')]), &["8589934591 bytes", "1048576"]),
        (archive(&[huge(b'x')]), &["8589934591 bytes", "1048576"]),
        (archive(&[sealed(negative)]), &["neg", "size", "-1"]),
        (archive(&[file("a", b""), sum]), &["checksum", "byte 512"]),
        (file("a", b"x"), &["cut short", "end mark"]),
        (file("a", b"x")[..800].to_vec(), &["cut short"]),
        (archive(&[file("a", &[1; 2000])])[..1000].to_vec(), &["\"a\"", "2000 bytes", "488"]),
        (archive(&[vec![0; 512], file("a", b"")]), &["one block of zeros"]),
        (archive(&[simple("k", b'Q', "")]), &["\"k\"", "'Q'"]),
        (archive(&[simple("k", b'M', "")]), &["\"k\"", "volume"]),
        (archive(&[simple("s", b'2', "")]), &["\"s\"", "0 bytes"]),
        (archive(&[pax(&[("path", "x")])]), &["no member"]),
        (pax_file(&[("path", &"n".repeat(256))]), &["256 bytes", "nnn"]),
        (pax_file(&[("path", &"d/".repeat(5000))]), &["deeper"]),
        (pax_file(&[("path", "a\0b")]), &["cannot be a file name"]),
        (pax_file(&[("uid", "4294967296")]), &["\"f\"", "4294967296"]),
        (pax_file(&[("size", "-5")]), &["size", "-5"]),
        (pax_file(&[("SCHILY.acl.access", "user:joe:r--")]), &["\"f\"", "joe", "--xattrs"]),
        (
            pax_file(&[("GNU.sparse.size", "10"), ("GNU.sparse.map", "5,9")]),
            &["\"f\"", "9 bytes at 5"],
        ),
        (pax_file(&[("GNU.sparse.map", "0,0")]), &["\"f\"", "without its size"]),
        (pax_file(&[("GNU.sparse.major", "2")]), &["\"f\"", "2.0"]),
        (b"\xfd7zXZ\0rest".to_vec(), &["a file packed with xz", "not a tar archive"]),
        (b"BZh9rest".to_vec(), &["a file packed with bzip2", "not a tar archive"]),
        (b"\x1f\x8bgarbage".to_vec(), &["test.tar"]),
    ];
    for (bytes, words) in table {
        let start = bytes[..bytes.len().min(8)].escape_ascii().to_string();
        // In place and as a stream: the same complaint.
        let temp = tempfile::NamedTempFile::new().unwrap();
        fs::write(temp.path(), &bytes).unwrap();
        let in_place = scan_tar(TarInput::File(temp.path().into()), &options());
        for result in [in_place, scan_bytes(bytes)] {
            let error = match result {
                Ok(_) => panic!("accepted {start}, wanted {words:?}"),
                Err(error) => error,
            };
            let is_refusal =
                matches!(error, SourceError::Archive { .. } | SourceError::NotTar { .. });
            assert!(is_refusal, "{error:?}");
            let text = error.to_string();
            for word in words.iter().filter(|&&word| word != "test.tar") {
                assert!(text.contains(word), "{text:?} lacks {word:?}");
            }
        }
    }
}

#[test]
fn cutting_anywhere_is_noticed() {
    let whole = archive(&[
        file("a", &[1; 700]),
        pax(&[("path", "long"), ("SCHILY.xattr.user.x", "y")]),
        file("b", &[2; 512]),
        simple("c", b'5', ""),
    ]);
    // Around every block's start, and some in between.
    for len in (0..whole.len()).filter(|len| len % 97 == 0 || (len + 1) % 512 < 3) {
        // From one byte of the end mark's second block on, nothing is missing.
        let complete = len >= whole.len() - 512;
        let result = scan_bytes(whole[..len].to_vec());
        assert_eq!(result.is_ok(), complete, "cut at {len} of {}", whole.len());
    }
}

#[test]
fn packed_streams_in_parts_cut_short_and_damaged() {
    let whole = archive(&[file("a", &[7; 5000]), file("b", b"x")]);
    let pack = |program: &str, bytes: &[u8]| {
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut temp, bytes).unwrap();
        Command::new(program).arg("-c").arg(temp.path()).output().ok().map(|out| out.stdout)
    };
    for program in ["gzip", "zstd"] {
        let (Some(one), Some(two)) = (pack(program, &whole[..3000]), pack(program, &whole[3000..]))
        else {
            println!("skipped {program}");
            continue;
        };
        let both = [&one[..], &two].concat();
        assert_eq!(scan_bytes(both.clone()).unwrap().tree.entries().len(), 2, "{program}");
        let padded = [&both[..], &[0; 1000]].concat();
        assert_eq!(scan_bytes(padded).unwrap().tree.entries().len(), 2, "{program}");
        assert!(scan_bytes(one.clone()).is_err());
        let text = scan_bytes(both[..both.len() - 3].to_vec()).err().unwrap().to_string();
        assert!(text.contains("cut short") || text.contains("damaged"), "{program}: {text}");
        if program == "gzip" {
            let mut damaged = both.clone();
            let crc = damaged.len() - 6;
            damaged[crc] ^= 1;
            let text = scan_bytes(damaged).err().unwrap().to_string();
            assert!(text.contains("damaged"), "{text}");
        }
    }
}

#[test]
fn garbage_after_the_end_mark_is_passed_over_and_no_member_is_a_tree() {
    let mut bytes = archive(&[file("a", b"x")]);
    bytes.extend([0xaa; 3000]);
    assert_eq!(scan_bytes(bytes).unwrap().tree.entries().len(), 1);
    let empty = scan_bytes(archive(&[])).unwrap();
    assert_eq!((empty.tree.entries().len(), empty.tree.node(NodeId::ROOT).mode), (0, 0o755));
}

#[test]
fn an_archive_that_changes_after_the_scan_is_named() {
    let temp = tempfile::NamedTempFile::new().unwrap();
    fs::write(temp.path(), archive(&[file("a", &[1; 3000])])).unwrap();
    let scanned = scan_file(temp.path());
    let id = NodeId(1);
    assert_eq!(contents(&scanned, id), [1; 3000]);
    fs::write(temp.path(), b"short").unwrap();
    let mut reader = scanned.contents.reader();
    let mut buf = [0; 3000];
    let error = reader.read(&scanned.tree, id, 0, &mut buf).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    assert!(matches!(reader.finish(&scanned.tree), Err(SourceError::Changed { .. })));
    // Outside the file's data.
    assert!(reader.read(&scanned.tree, id, 1, &mut buf).is_err());
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Bytes of a good archive overwritten anywhere, checksums repaired or not.
        #[test]
        fn no_damage_makes_it_panic(
            changes in proptest::collection::vec((0usize..5120, any::<u8>()), 1..20),
            repair in any::<bool>(),
        ) {
            let mut bytes = archive(&[
                pax(&[("path", "x"), ("GNU.sparse.size", "9"), ("GNU.sparse.map", "1,1,3,2")]),
                file("x", b"abc"),
                simple("h", b'1', "x"),
                simple("s", b'2', "t"),
                header("old", b'S', "00000000000\0", ""),
            ]);
            for (at, value) in changes {
                let len = bytes.len();
                bytes[at % len] = value;
            }
            if repair {
                for block in bytes.chunks_mut(512).filter(|b| b.len() == 512 && b[257] == b'u') {
                    let whole = sealed(block.to_vec());
                    block.copy_from_slice(&whole);
                }
            }
            let _ = scan_bytes(bytes);
        }
    }
}

/// An archive that goes on and on: the header of one member of 8 GiB, then zeros. Sets `stop`
/// after a few megabytes.
struct Endless<'a> {
    header: Cursor<Vec<u8>>,
    read: u64,
    stop: &'a AtomicBool,
}

impl Read for Endless<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        assert!(self.read < 64 << 20, "nobody heeds the flag");
        if self.read > 4 << 20 {
            self.stop.store(true, Ordering::Relaxed);
        }
        let count = match self.header.read(buf)? {
            0 => {
                buf.fill(0);
                buf.len()
            }
            count => count,
        };
        self.read += count as u64;
        Ok(count)
    }
}

#[test]
fn a_scan_that_is_cancelled_ends_in_the_middle_of_a_member() {
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"file");
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(b"77777777777\0");
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let stop = AtomicBool::new(false);
    let options = TarOptions { cancel: Some(&stop), ..options() };
    let endless = Endless { header: Cursor::new(header), read: 0, stop: &stop };
    let ended = scan_tar_stream("endless.tar", endless, &options);
    assert!(matches!(ended, Err(SourceError::Interrupted)), "{:?}", ended.err());
}
