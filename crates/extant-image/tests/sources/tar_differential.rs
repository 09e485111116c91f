//! The reader of archives against two others over a generated corpus: the crate `tar-core`, which reads headers, and GNU tar,
//! which makes files of them. Whatever all take is the same.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::process::Command;

use extant_base::Prng;
use extant_image::source::Scanned;
use extant_image::source::dir::{ScanOptions, scan_dir};
use extant_image::source::tar::{TarOptions, scan_tar_stream};
use extant_image::tree::Kind;

use tar_core::parse::{Limits, ParseEvent, Parser};

const BLOCK: usize = 512;

/// What is known of a file, by its path.
#[derive(Clone, PartialEq, Eq, Debug)]
struct File {
    kind: Kind,
    mode: u32,
    owner: (u64, u64),
    mtime: i64,
    data: Vec<u8>,
    link: Vec<u8>,
}

type Files = BTreeMap<Vec<u8>, File>;

/// How numbers and long names are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    V7,
    Ustar,
    Gnu,
    Pax,
}

fn sealed(mut block: [u8; BLOCK]) -> [u8; BLOCK] {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// A number in octal digits, or in binary where those do not reach and the form has that.
fn number(field: &mut [u8], value: u64, form: Form) {
    let digits = field.len() - 1;
    let text = format!("{value:0digits$o}");
    if text.len() <= digits {
        field[..digits].copy_from_slice(text.as_bytes());
    } else if form == Form::Gnu {
        let len = field.len();
        field[len - 8..].copy_from_slice(&value.to_be_bytes());
        field[0] |= 0x80;
    } else {
        // A record of an extended header says it.
        field[..digits].fill(b'0');
    }
}

fn padded(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

/// A header that describes the next one: a long name, or records.
fn extension(out: &mut Vec<u8>, kind: u8, data: &[u8], form: Form) {
    let mut block = [0; BLOCK];
    block[..12].copy_from_slice(b"././@LongXyz");
    block[156] = kind;
    number(&mut block[124..136], data.len() as u64, form);
    block[257..265].copy_from_slice(if form == Form::Gnu { b"ustar  \0" } else { b"ustar\x0000" });
    out.extend_from_slice(&sealed(block));
    padded(out, data);
}

fn record(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    let body = key.len() + value.len() + 3;
    let len = (1..9).map(|n| body + n).find(|len| len.to_string().len() + body == *len).unwrap();
    out.extend_from_slice(format!("{len} {key}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Appends the member `path`, or says that the form cannot have it.
fn append(out: &mut Vec<u8>, path: &[u8], file: &File, form: Form, random: &mut Prng) -> bool {
    let mut name = path.to_vec();
    if file.kind == Kind::Dir {
        name.push(b'/');
    }
    if random.below(3) == 0 {
        name = [b"./", &name[..]].concat();
    }
    let mut block = [0; BLOCK];
    let mut records = Vec::new();
    let long = name.len() > 100 || file.link.len() > 100;
    match form {
        Form::V7 if long => return false,
        Form::Ustar if long => {
            let cut = (1..name.len()).find(|&at| name[at] == b'/' && name.len() - at <= 100);
            match cut.filter(|&at| at <= 155 && at + 1 < name.len() && file.link.len() <= 100) {
                Some(at) => {
                    block[345..345 + at].copy_from_slice(&name[..at]);
                    name.drain(..=at);
                }
                None => return false,
            }
        }
        Form::Gnu => {
            if file.link.len() > 100 {
                extension(out, b'K', &[&file.link[..], b"\0"].concat(), form);
            }
            if name.len() > 100 {
                extension(out, b'L', &[&name[..], b"\0"].concat(), form);
            }
        }
        Form::Pax => {
            // Also where it need not be.
            if name.len() > 100 || random.below(4) == 0 {
                record(&mut records, "path", &name);
            }
            if file.link.len() > 100 {
                record(&mut records, "linkpath", &file.link);
            }
            if random.below(2) == 0 {
                let nanos = random.below(1_000_000_000);
                record(&mut records, "mtime", format!("{}.{nanos:09}", file.mtime).as_bytes());
            }
            for (key, id) in [("uid", file.owner.0), ("gid", file.owner.1)] {
                if id > 0o777_7777 || random.below(4) == 0 {
                    record(&mut records, key, id.to_string().as_bytes());
                }
            }
            if file.kind == Kind::File && random.below(3) == 0 {
                record(&mut records, "size", file.data.len().to_string().as_bytes());
            }
        }
        _ => {}
    }
    if form != Form::Pax && form != Form::Gnu && file.owner.0.max(file.owner.1) > 0o777_7777 {
        return false;
    }
    if !records.is_empty() {
        extension(out, b'x', &records, form);
    }
    let shown = name.len().min(100);
    block[..shown].copy_from_slice(&name[..shown]);
    number(&mut block[100..108], u64::from(file.mode), form);
    number(&mut block[108..116], file.owner.0, form);
    number(&mut block[116..124], file.owner.1, form);
    number(&mut block[124..136], file.data.len() as u64, form);
    number(&mut block[136..148], file.mtime as u64, form);
    block[156] = match file.kind {
        Kind::Dir => b'5',
        Kind::Symlink => b'2',
        // Old archives have no kind.
        _ if form == Form::V7 => [0, b'0'][random.below(2) as usize],
        _ => [b'0', b'7'][usize::from(random.below(9) == 0)],
    };
    let shown = file.link.len().min(100);
    block[157..157 + shown].copy_from_slice(&file.link[..shown]);
    match form {
        Form::V7 => {}
        Form::Gnu => block[257..265].copy_from_slice(b"ustar  \0"),
        _ => block[257..265].copy_from_slice(b"ustar\x0000"),
    }
    out.extend_from_slice(&sealed(block));
    padded(out, &file.data);
    true
}

fn component(random: &mut Prng) -> Vec<u8> {
    let len = match random.below(8) {
        0 => 90 + random.below(110),
        1 => 30,
        _ => 1 + random.below(6),
    };
    let letter = |random: &mut Prng| match random.below(12) {
        0 => b' ',
        1 => 0xc3,
        2 => b'=',
        3 => b'.',
        _ => b'a' + random.below(26) as u8,
    };
    // Not "." and "..", nor the end of one.
    std::iter::once(b'n').chain((0..len).map(|_| letter(random))).collect()
}

/// An archive, and what is in it.
fn generate(seed: u64) -> (Vec<u8>, Files) {
    let mut random = Prng::new(seed);
    let (mut out, mut files) = (Vec::new(), Files::new());
    let mut dirs: Vec<Vec<u8>> = vec![Vec::new()];
    for _ in 0..3 + random.below(25) {
        let dir = &dirs[random.below(dirs.len() as u64) as usize];
        let mut path = dir.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(component(&mut random));
        // A later member of another kind is another story, told elsewhere; a file may come twice.
        let again = files.get(&path).is_some_and(|file| file.kind == Kind::File);
        if path.len() > 800 || (files.contains_key(&path) && !again) {
            continue;
        }
        let kind = match random.below(6) {
            _ if again => Kind::File,
            0 | 1 => Kind::Dir,
            2 => Kind::Symlink,
            _ => Kind::File,
        };
        let big = random.below(8) == 0;
        let id = |random: &mut Prng| match (big, random.below(2)) {
            (true, 0) => 3_000_000_000 - random.below(1000),
            _ => random.below(70_000),
        };
        let len = [0, 1, 511, 512, 513, 5000][random.below(6) as usize];
        let file = File {
            kind,
            mode: if kind == Kind::Symlink { 0o777 } else { 0o700 | random.below(0o1000) as u32 },
            owner: (id(&mut random), id(&mut random)),
            mtime: random.below(3_000_000_000) as i64,
            data: match kind {
                Kind::File => (0..len).map(|_| random.below(256) as u8).collect(),
                _ => Vec::new(),
            },
            link: match kind {
                Kind::Symlink => component(&mut random),
                _ => Vec::new(),
            },
        };
        let first = random.below(4) as usize;
        let forms = [Form::V7, Form::Ustar, Form::Gnu, Form::Pax];
        for at in 0..4 {
            let before = out.len();
            if append(&mut out, &path, &file, forms[(first + at) % 4], &mut random) {
                if kind == Kind::Dir {
                    dirs.push(path.clone());
                }
                files.insert(path, file);
                break;
            }
            out.truncate(before);
        }
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    (out, files)
}

fn of_tree(scanned: &Scanned) -> Files {
    let tree = &scanned.tree;
    let mut reader = scanned.contents.reader();
    let mut files = Files::new();
    for entry in tree.entries() {
        let node = tree.node(entry.node);
        let mut data = vec![0; if node.kind == Kind::File { node.size as usize } else { 0 }];
        if !data.is_empty() && tree.runs(node).is_none() {
            reader.read(tree, entry.node, 0, &mut data).unwrap();
        }
        reader.finish(tree).unwrap();
        let dir = tree.path(entry.parent);
        let slash: &[u8] = if dir.is_empty() { b"" } else { b"/" };
        let file = File {
            kind: node.kind,
            mode: u32::from(node.mode),
            owner: (u64::from(node.uid), u64::from(node.gid)),
            mtime: node.mtime.sec,
            data,
            link: tree.target(node).to_vec(),
        };
        files.insert([&dir[..], slash, tree.name(entry)].concat(), file);
    }
    files
}

fn scan(bytes: &[u8]) -> Result<Files, String> {
    let options = TarOptions { spool_dir: std::env::temp_dir(), cancel: None };
    let scanned = scan_tar_stream("t", Cursor::new(bytes.to_vec()), &options);
    scanned.map(|scanned| of_tree(&scanned)).map_err(|error| error.to_string())
}

/// What the crate finds; `None` if it refuses, or finds what this test does not make.
fn of_crate(bytes: &[u8]) -> Option<Files> {
    let mut parser = Parser::new(Limits::default());
    let (mut files, mut at) = (Files::new(), 0);
    loop {
        match parser.parse(bytes.get(at..)?).ok()? {
            ParseEvent::Entry { consumed, entry } => {
                let size = usize::try_from(entry.size).ok()?;
                let data = bytes.get(at + consumed..)?.get(..size)?.to_vec();
                let path = entry.path.strip_prefix(b"./").unwrap_or(&entry.path);
                let path = path.strip_suffix(b"/").unwrap_or(path).to_vec();
                // What old archives have for directories: GNU tar and extant know it.
                let is_old_dir = entry.is_file() && entry.path.ends_with(b"/");
                // A long name ends at its first NUL, as for GNU tar.
                if is_old_dir
                    || [&entry.path[..], entry.link_target.as_deref().unwrap_or_default()]
                        .concat()
                        .contains(&0)
                {
                    return None;
                }
                let kind = match (entry.is_dir(), entry.is_symlink(), entry.is_file()) {
                    (true, ..) => Kind::Dir,
                    (_, true, _) => Kind::Symlink,
                    (.., true) => Kind::File,
                    _ => return None,
                };
                let link = entry.link_target.as_deref().unwrap_or_default().to_vec();
                let file = File {
                    kind,
                    mode: entry.mode & 0o7777,
                    owner: (entry.uid, entry.gid),
                    mtime: entry.mtime as i64,
                    data,
                    link: if kind == Kind::Symlink { link } else { Vec::new() },
                };
                at += consumed + size.next_multiple_of(BLOCK);
                files.insert(path, file);
            }
            ParseEvent::End { .. } => return Some(files),
            _ => return None,
        }
    }
}

/// The differences, with names that can be read.
fn differences(ours: &Files, theirs: &Files) -> Vec<String> {
    let mut paths: Vec<&Vec<u8>> = ours.keys().chain(theirs.keys()).collect();
    paths.dedup();
    let short = |file: Option<&File>| {
        file.map(|f| {
            format!("{:?} {:o} {:?} {} {}", f.kind, f.mode, f.owner, f.mtime, f.data.len())
        })
    };
    paths
        .into_iter()
        .filter(|path| ours.get(*path) != theirs.get(*path))
        .map(|path| {
            let (our, their) = (short(ours.get(path)), short(theirs.get(path)));
            format!("{}: {our:?} and {their:?}", path.escape_ascii())
        })
        .collect()
}

#[test]
fn generated_archives_are_read_as_the_crate_reads_them() {
    for seed in 0..400 {
        let (bytes, made) = generate(seed);
        let ours = scan(&bytes).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert_eq!(differences(&ours, &made), [""; 0], "{seed}");
        let theirs = of_crate(&bytes).unwrap_or_else(|| panic!("{seed}: the crate refuses it"));
        assert_eq!(differences(&ours, &theirs), [""; 0], "{seed}");
    }
}

/// With bytes changed and sums made right again, either refuses or both find the same.
#[test]
fn of_changed_archives_both_make_the_same_or_one_refuses() {
    let (mut both, mut random) = (0, Prng::new(5));
    for seed in 0..3000 {
        let (mut bytes, _) = generate(seed % 300);
        let blocks = bytes.len() / BLOCK;
        for _ in 0..=random.below(2) {
            let at = random.below(blocks as u64) as usize * BLOCK + random.below(345) as usize;
            // Of the magic number the crate wants the version too.
            if (257..265).contains(&(at % BLOCK)) {
                continue;
            }
            // A NUL before a number is passed over here and by GNU tar, and not by the crate.
            let is_number = [100, 108, 116, 124, 136].contains(&(at % BLOCK));
            bytes[at] = match random.below(4) {
                0 if !is_number => 0,
                1 => b'0' + random.below(8) as u8,
                2 => b'/',
                _ => random.below(256) as u8,
            };
        }
        for block in bytes.chunks_exact_mut(BLOCK).filter(|block| &block[257..262] == b"ustar") {
            let whole: [u8; BLOCK] = (&*block).try_into().unwrap();
            block.copy_from_slice(&sealed(whole));
        }
        let (Ok(ours), Some(theirs)) = (scan(&bytes), of_crate(&bytes)) else { continue };
        // Names that mean the same: what is stricter than that is refused above.
        let plain = |files: Files| -> Option<Files> {
            files
                .into_iter()
                .map(|(path, file)| {
                    let parts = path.split(|&b| b == b'/').filter(|p| !matches!(*p, b"" | b"."));
                    let path = parts.collect::<Vec<_>>().join(&b'/');
                    (!path.is_empty()).then_some((path, file))
                })
                .collect()
        };
        let (Some(mut ours), Some(theirs)) = (plain(ours), plain(theirs)) else { continue };
        // Directories that no member names are made here, and only here.
        ours.retain(|path, file| file.kind != Kind::Dir || theirs.contains_key(path));
        // A file is taken away by a later one in its place, and a directory stays.
        if ours.len() != theirs.len() {
            continue;
        }
        both += 1;
        assert_eq!(differences(&ours, &theirs), [""; 0], "seed {seed}");
    }
    assert!(both > 300, "only {both} were taken by both");
}

fn as_gnu_tar_has_it(seeds: std::ops::Range<u64>) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: owners are restored by root only");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    for seed in seeds {
        let (bytes, _) = generate(seed);
        let (file, out) = (here.path().join("t.tar"), here.path().join("out"));
        std::fs::write(&file, &bytes).unwrap();
        std::fs::create_dir(&out).unwrap();
        let done = Command::new("tar")
            .args(["--numeric-owner", "--delay-directory-restore", "-xpf"])
            .arg(&file)
            .arg("-C")
            .arg(&out)
            .output();
        let Ok(done) = done else {
            println!("skipped: tar is not installed");
            return;
        };
        assert!(done.status.success(), "{seed}: {}", String::from_utf8_lossy(&done.stderr));
        let theirs = of_tree(&scan_dir(Path::new(&out), &ScanOptions::default()).unwrap());
        assert_eq!(differences(&scan(&bytes).unwrap(), &theirs), [""; 0], "{seed}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn generated_archives_are_read_as_gnu_tar_extracts_them() {
    as_gnu_tar_has_it(0..100);
}

#[test]
#[ignore = "takes a minute"]
fn many_generated_archives_are_read_as_gnu_tar_extracts_them() {
    as_gnu_tar_has_it(1000..6000);
}
