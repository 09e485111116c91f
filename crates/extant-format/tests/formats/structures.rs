//! The decoders and builders against bytes that e2fsprogs and the kernel wrote, and e2fsck against
//! bytes that the builders wrote.
//!
//! Needs e2fsprogs, setfattr and setfacl; what needs a loop mount also needs root. A test that
//! cannot run says why and passes.

use extant_base::{BlockSize, FileBlock, FsBlock, Ino};
use extant_format::checksum::{fs_seed_from_uuid, inode_seed};
use extant_format::dir::{self, DirLayout, FileType, NewEntry, Records};
use extant_format::extent::{self, Extent, ExtentState, Node};
use extant_format::hash::{HashSeed, HashVersion, NameHash, name_hash};
use extant_format::htree::{
    self, HtreePlan, Index, IndexLayout, IndexOptions, NodePlace, PlannedEntry, Root,
};
use extant_format::{acl, indirect, inline, xattr};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a command; its output, or `None` with the reason printed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .output();
    match out {
        Ok(out) if out.status.success() => Some(String::from_utf8_lossy(&out.stdout).into_owned()),
        Ok(out) => {
            println!("skip: {program} {args:?}: {}", String::from_utf8_lossy(&out.stderr).trim());
            None
        }
        Err(error) => {
            println!("skip: {program}: {error}");
            None
        }
    }
}

/// A new image of `mib` MiB.
fn mkfs(dir: &Path, mib: u64, args: &[&str]) -> Option<PathBuf> {
    let image = dir.join("image");
    std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
    let mut all = vec!["-q", "-F"];
    all.extend(args);
    all.push(image.to_str()?);
    run("mke2fs", &all)?;
    Some(image)
}

/// A mounted image; unmounts when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, dir: &Path) -> Option<Mount> {
        let point = dir.join("mnt");
        std::fs::create_dir_all(&point).unwrap();
        run("mount", &["-o", "loop", image.to_str()?, point.to_str()?])?;
        Some(Mount(point))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "cannot unmount {:?}", self.0);
    }
}

/// What e2fsck says of an image; `Ok` when it finds nothing.
fn e2fsck(image: &Path) -> Result<(), String> {
    let out = Command::new("timeout")
        .args(["-s", "KILL", "60", "e2fsck", "-fn"])
        .arg(image)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .unwrap();
    if out.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

/// Just enough of a reader to find the structures under test, straight from the offsets.
struct Image {
    bytes: Vec<u8>,
    size: BlockSize,
}

struct Inode {
    ino: u32,
    raw: Vec<u8>,
}

impl Image {
    fn open(path: &Path) -> Image {
        let bytes = std::fs::read(path).unwrap();
        let size = BlockSize::from_log_kib(u32_at(&bytes, 1024 + 24)).unwrap();
        Image { bytes, size }
    }
    fn sb32(&self, at: usize) -> u32 {
        u32_at(&self.bytes, 1024 + at)
    }
    fn fs_seed(&self) -> u32 {
        if self.sb32(96) & 0x2000 != 0 {
            self.sb32(624)
        } else {
            fs_seed_from_uuid(self.bytes[1024 + 104..][..16].try_into().unwrap())
        }
    }
    fn block(&self, block: FsBlock) -> &[u8] {
        &self.bytes[block.0 as usize * self.size.len()..][..self.size.len()]
    }
    fn inode(&self, ino: u32) -> Inode {
        let per_group = self.sb32(40);
        let inode_size = usize::from(u16_at(&self.bytes, 1024 + 88));
        let desc_size = if self.sb32(96) & 0x80 != 0 {
            usize::from(u16_at(&self.bytes, 1024 + 254))
        } else {
            32
        };
        let (group, index) = ((ino - 1) / per_group, (ino - 1) % per_group);
        let table = (self.sb32(20) as usize + 1) * self.size.len() + group as usize * desc_size;
        let start = u32_at(&self.bytes, table + 8) as usize * self.size.len();
        let raw = self.bytes[start + index as usize * inode_size..][..inode_size].to_vec();
        Inode { ino, raw }
    }
    fn seed_of(&self, inode: &Inode) -> u32 {
        inode_seed(self.fs_seed(), Ino(inode.ino), u32_at(&inode.raw, 100))
    }
    fn has_csum(&self) -> bool {
        self.sb32(100) & 0x400 != 0
    }
    /// All extents of a file, in order, each node's checksum verified; and the depth of the tree.
    fn extents(&self, inode: &Inode) -> (Vec<Extent>, u16) {
        let seed = self.has_csum().then(|| self.seed_of(inode));
        let i_block = inode.i_block();
        let root = Node::decode_root(&i_block).unwrap();
        let mut all = Vec::new();
        self.walk(&root, seed, &mut all);
        (all, root.depth())
    }
    fn walk(&self, node: &Node<'_>, seed: Option<u32>, all: &mut Vec<Extent>) {
        all.extend(node.extents());
        for (index, expect) in node.children() {
            let block = self.block(index.child);
            if let Some(seed) = seed {
                extent::verify(seed, block).unwrap();
            }
            let child = Node::decode_block(block, expect).unwrap();
            assert_eq!(child.header().max, extent::max_in_block(self.size));
            self.walk(&child, seed, all);
        }
    }
    fn file_blocks(&self, inode: &Inode) -> Vec<FsBlock> {
        let mut blocks = Vec::new();
        for extent in self.extents(inode).0 {
            for into in 0..extent.len.0 {
                assert_eq!(
                    extent.file_start.0 + into,
                    blocks.len() as u32,
                    "a directory has no holes"
                );
                blocks.push(FsBlock(extent.device_start.0 + u64::from(into)));
            }
        }
        blocks
    }
    fn dir_layout(&self) -> DirLayout {
        DirLayout {
            block_size: self.size,
            filetype: self.sb32(96) & 2 != 0,
            checksum: self.has_csum(),
            stored_hash: false,
            encrypted: false,
        }
    }
    fn index_layout(&self) -> IndexLayout {
        IndexLayout {
            dir: self.dir_layout(),
            large_dir: self.sb32(96) & 0x4000 != 0,
            unsigned_hash: self.sb32(352) & 2 != 0,
        }
    }
    fn hash_seed(&self) -> HashSeed {
        HashSeed::from_bytes(self.bytes[1024 + 236..][..16].try_into().unwrap())
    }
    /// The inode of `name` in a directory, by reading all of it as a list.
    fn lookup(&self, dir: u32, name: &[u8]) -> u32 {
        let inode = self.inode(dir);
        for block in self.file_blocks(&inode) {
            if let Some(entry) = dir::find(self.block(block), self.dir_layout(), name).unwrap() {
                return entry.ino.0;
            }
        }
        panic!("no {} in inode {dir}", String::from_utf8_lossy(name));
    }
}

impl Inode {
    fn i_block(&self) -> [u8; 60] {
        self.raw[40..100].try_into().unwrap()
    }
    fn flags(&self) -> u32 {
        u32_at(&self.raw, 32)
    }
    fn size(&self) -> u64 {
        u64::from(u32_at(&self.raw, 4)) | u64::from(u32_at(&self.raw, 108)) << 32
    }
    fn space(&self) -> &[u8] {
        &self.raw[128 + usize::from(u16_at(&self.raw, 128))..]
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn hashes_agree_with_debugfs() {
    let scratch = tempfile::tempdir().unwrap();
    let seed_text = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    let parsed: Vec<u8> = seed_text
        .replace('-', "")
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let seed = HashSeed::from_bytes(parsed.as_slice().try_into().unwrap());
    let mut script = Vec::new();
    let mut wanted = Vec::new();
    let mut random = extant_base::Prng::new(11);
    for len in 1..=255usize {
        for ascii in [true, false] {
            // debugfs splits its commands at blanks and takes quotes and a leading '-' as its own.
            let name: Vec<u8> = (0..len)
                .map(|_| {
                    let letter = b'a' + random.below(26) as u8;
                    if ascii { letter } else { letter | (random.below(2) as u8) << 7 }
                })
                .collect();
            for (flag, versions) in [
                ("legacy", [HashVersion::Legacy, HashVersion::LegacyUnsigned]),
                ("half_md4", [HashVersion::HalfMd4, HashVersion::HalfMd4Unsigned]),
                ("tea", [HashVersion::Tea, HashVersion::TeaUnsigned]),
            ] {
                for seeded in [false, true] {
                    let seed_flag = if seeded { format!("-s {seed_text} ") } else { String::new() };
                    script.extend_from_slice(format!("dx_hash -h {flag} {seed_flag}").as_bytes());
                    script.extend_from_slice(&name);
                    script.push(b'\n');
                    let seed = if seeded { seed } else { HashSeed::default() };
                    wanted.push((name.clone(), seed, versions, seeded, flag));
                }
            }
        }
    }
    let commands = scratch.path().join("commands");
    std::fs::write(&commands, &script).unwrap();
    let out = Command::new("debugfs")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .arg("-f")
        .arg(&commands)
        .output();
    let Ok(out) = out else {
        println!("skip: no debugfs");
        return;
    };
    // "Hash of NAME is 0xMAJOR (minor 0xMINOR)"
    let mut answers = Vec::new();
    for line in out.stdout.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        if line.starts_with("debugfs:") {
            continue;
        }
        if let Some((_, rest)) = line.rsplit_once(" is 0x") {
            let (major, rest) = rest.split_once(' ').unwrap();
            let minor = rest.trim_start_matches("(minor 0x").trim_end_matches(')');
            let number =
                |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
            answers.push(NameHash { major: number(major), minor: number(minor) });
        }
    }
    assert_eq!(answers.len(), wanted.len());
    for (answer, (name, seed, versions, seeded, flag)) in answers.iter().zip(&wanted) {
        let [one, other] = versions.map(|version| name_hash(version, seed, name).unwrap());
        // debugfs names the plain versions, which are the signed ones.
        assert_eq!(*answer, one, "{flag}, seeded {seeded}, {name:?}");
        if name.is_ascii() {
            assert_eq!(one, other, "{name:?}");
        }
    }
}

/// A name's hash, the name, and its inode.
type Named = (NameHash, Vec<u8>, u32);

/// Checks every block of an indexed directory. Its names, inner levels and blocks.
fn check_index(image: &Image, dir: u32) -> (Vec<Named>, u8, u32) {
    let inode = image.inode(dir);
    assert!(inode.flags() & 0x1000 != 0, "directory {dir} has an index");
    let blocks = image.file_blocks(&inode);
    let layout = image.index_layout();
    let count = blocks.len() as u32;
    let seed = image.seed_of(&inode);
    let root_block = image.block(blocks[0]);
    let root = Root::decode(root_block, &layout, count).unwrap();
    if layout.dir.checksum {
        htree::verify(seed, root_block, NodePlace::Root).unwrap();
    }
    // (first hash, continued, first hash of the next, block)
    let mut level: Vec<(htree::Record, u64)> = with_limits(&root.index, 0, 1 << 32);
    for _ in 0..root.levels {
        let mut below = Vec::new();
        for (record, limit) in level {
            let block = image.block(blocks[record.block.0 as usize]);
            let index = Index::decode_inner(block, &layout, count).unwrap();
            if layout.dir.checksum {
                htree::verify(seed, block, NodePlace::Inner).unwrap();
            }
            below.extend(with_limits(&index, record.hash, limit));
        }
        level = below;
    }
    let mut names = Vec::new();
    let mut seen = vec![false; blocks.len()];
    for (record, limit) in &level {
        let block = image.block(blocks[record.block.0 as usize]);
        assert!(!std::mem::replace(&mut seen[record.block.0 as usize], true), "leaf twice");
        if layout.dir.checksum {
            dir::verify(seed, block).unwrap();
        }
        for entry in Records::of_block(block, layout.dir).unwrap().used() {
            let entry = entry.unwrap();
            let hash = name_hash(root.hash, &image.hash_seed(), entry.name).unwrap();
            assert!(hash.major >= record.hash, "{entry:?} hashes to {hash:x?}, before {record:x?}");
            assert!(
                u64::from(hash.major) <= *limit,
                "{entry:?} hashes to {hash:x?}, after {limit:x}"
            );
            // The way down from the root finds the leaf, or one just before it.
            names.push((hash, entry.name.to_vec(), entry.ino.0));
        }
    }
    for (hash, name, ino) in &names {
        assert_eq!(search(image, &blocks, &root, hash.major, name), Some(*ino), "{name:?}");
    }
    (names, root.levels, count)
}

/// Each record with the largest hash that its block may hold.
fn with_limits(index: &Index<'_>, first: u32, limit: u64) -> Vec<(htree::Record, u64)> {
    let records: Vec<_> = index.iter().collect();
    records
        .iter()
        .enumerate()
        .map(|(position, record)| {
            let mut record = *record;
            if position == 0 {
                record.hash = first;
            }
            let limit = records.get(position + 1).map_or(limit, |next| {
                // A continued block shares its first hash with the one before.
                u64::from(next.hash) - u64::from(!next.continued && next.hash > 0)
            });
            (record, limit)
        })
        .collect()
}

fn search(
    image: &Image,
    blocks: &[FsBlock],
    root: &Root<'_>,
    hash: u32,
    name: &[u8],
) -> Option<u32> {
    assert_eq!(root.levels.min(1), root.levels, "deeper trees need more here");
    let leaf = |block: FileBlock| {
        let block = image.block(blocks[block.0 as usize]);
        dir::find(block, image.dir_layout(), name).unwrap().map(|entry| entry.ino.0)
    };
    let mut position = root.index.find(hash);
    loop {
        let record = root.index.get(position)?;
        if root.levels == 0 {
            if let Some(ino) = leaf(record.block) {
                return Some(ino);
            }
        } else {
            let block = image.block(blocks[record.block.0 as usize]);
            let inner =
                Index::decode_inner(block, &image.index_layout(), blocks.len() as u32).unwrap();
            let mut at = inner.find(hash);
            loop {
                if let Some(ino) = leaf(inner.get(at).unwrap().block) {
                    return Some(ino);
                }
                if inner.goes_on(at, hash) != Some(true) {
                    break;
                }
                at += 1;
            }
        }
        if root.index.goes_on(position, hash) != Some(true) {
            return None;
        }
        position += 1;
    }
}

#[test]
fn an_index_of_the_kernel_is_read_and_ours_satisfies_e2fsck_and_the_kernel() {
    // With another hash seed the kernel splits elsewhere and uses another number of blocks; of a
    // few, one is a number that our packing can have.
    for (block_size, count, version) in
        [("1024", 5000u32, "half_md4"), ("4096", 5000, "tea"), ("1024", 700, "legacy")]
    {
        let done =
            (1..=8).any(|seed| index_round(block_size, count, version, seed) != Round::NoFit);
        assert!(done, "no seed gives a number of blocks that we can pack into");
    }
}

/// How one round of the test above went.
#[derive(PartialEq)]
enum Round {
    Done,
    Skipped,
    NoFit,
}

fn index_round(block_size: &str, count: u32, version: &str, seed: u32) -> Round {
    let hash_seed = format!("hash_seed=00112233-4455-6677-8899-aabbccddee{seed:02x}");
    let scratch = tempfile::tempdir().unwrap();
    let Some(path) =
        mkfs(scratch.path(), 32, &["-t", "ext4", "-b", block_size, "-N", "8192", "-E", &hash_seed])
    else {
        return Round::Skipped;
    };
    let set = format!("hash_alg={version}");
    if run("tune2fs", &["-E", &set, path.to_str().unwrap()]).is_none() {
        return Round::Skipped;
    }
    {
        let Some(mount) = Mount::new(&path, scratch.path()) else { return Round::Skipped };
        let dir = mount.0.join("big");
        std::fs::create_dir(&dir).unwrap();
        for number in 0..count {
            use std::os::unix::ffi::OsStrExt;
            let mut name = format!("file {number:07} ").into_bytes();
            name.extend(std::iter::repeat_n(b'x' | (number as u8 & 0x80), (number % 23) as usize));
            std::fs::write(dir.join(std::ffi::OsStr::from_bytes(&name)), b"").unwrap();
        }
    }
    let image = Image::open(&path);
    let big = image.lookup(2, b"big");
    let (mut names, levels, blocks) = check_index(&image, big);
    assert_eq!(names.len(), count as usize);
    assert_eq!(levels, u8::from(block_size == "1024" && count == 5000));

    // The same entries, packed by us into exactly as many blocks as the kernel used, so that
    // nothing else in the image needs to change.
    names.sort();
    let layout = image.index_layout();
    let inode = image.inode(big);
    let hash = HashVersion::from_disk(
        match version {
            "legacy" => 0,
            "half_md4" => 1,
            _ => 2,
        },
        layout.unsigned_hash,
    );
    let plan = (1..=100u8).find_map(|fill_percent| {
        let options = IndexOptions { layout, hash, fill_percent };
        let planned = names
            .iter()
            .map(|(hash, name, _)| PlannedEntry { name_len: name.len() as u8, hash: *hash });
        let plan = HtreePlan::new(options, planned).ok()?;
        (plan.block_count() == blocks).then_some(plan)
    });
    let Some(plan) = plan else {
        return Round::NoFit;
    };
    assert!(plan.is_indexed());
    let places = image.file_blocks(&inode);
    let mut bytes = image.bytes.clone();
    let mut next = 0;
    let entries = names.iter().map(|(hash, name, ino)| NewEntry {
        ino: Ino(*ino),
        name,
        file_type: FileType::Regular,
        hash: Some(*hash),
    });
    let seed = image.seed_of(&inode);
    plan.emit((Ino(big), Ino(2)), Some(seed), entries, |block, contents| {
        assert_eq!(block, FileBlock(next));
        let at = places[next as usize].0 as usize * contents.len();
        bytes[at..at + contents.len()].copy_from_slice(contents);
        next += 1;
        Ok::<(), htree::HtreeFault>(())
    })
    .unwrap();
    assert_eq!(next, blocks);
    std::fs::write(&path, &bytes).unwrap();
    e2fsck(&path).unwrap();
    let again = Image::open(&path);
    let (mut ours, ..) = check_index(&again, big);
    ours.sort();
    assert_eq!(ours, names);
    // The kernel finds every name, and can add and remove.
    let Some(mount) = Mount::new(&path, scratch.path()) else { return Round::Skipped };
    use std::os::unix::ffi::OsStrExt;
    let dir = mount.0.join("big");
    for (_, name, ino) in &names {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(dir.join(std::ffi::OsStr::from_bytes(name))).unwrap();
        assert_eq!(found.ino(), u64::from(*ino));
    }
    for number in 0..500 {
        std::fs::write(dir.join(format!("more {number}")), b"").unwrap();
    }
    for (_, name, _) in names.iter().step_by(3) {
        std::fs::remove_file(dir.join(std::ffi::OsStr::from_bytes(name))).unwrap();
    }
    drop(mount);
    e2fsck(&path).unwrap();
    Round::Done
}

#[test]
fn a_fragmented_files_tree_is_read_and_built_again() {
    use std::os::unix::fs::FileExt;
    let scratch = tempfile::tempdir().unwrap();
    let Some(path) = mkfs(scratch.path(), 32, &["-t", "ext4", "-b", "1024"]) else { return };
    {
        let Some(mount) = Mount::new(&path, scratch.path()) else { return };
        let file = std::fs::File::create(mount.0.join("holes")).unwrap();
        for block in 0..3000u64 {
            file.write_all_at(&[1; 1024], block * 2048).unwrap();
        }
    }
    let image = Image::open(&path);
    let ino = image.lookup(2, b"holes");
    let inode = image.inode(ino);
    let (extents, depth) = image.extents(&inode);
    assert_eq!(depth, 2);
    assert_eq!(extents.len(), 3000);
    for (number, extent) in extents.iter().enumerate() {
        assert_eq!((extent.file_start.0, extent.len.0), (number as u32 * 2, 1));
        assert_eq!(extent.state, ExtentState::Written);
    }
    // Where the kernel put the tree, ours goes, as far as it needs blocks.
    let needed = extent::tree_blocks(3000, image.size).unwrap();
    let seed = image.seed_of(&inode);
    let mut next = 0u64;
    let built = extent::build(&extents, image.size, Some(seed), || {
        next += 1;
        Ok::<_, extent::ExtentFault>(FsBlock(1000 + next))
    })
    .unwrap();
    assert_eq!((next, built.blocks.len() as u64), (needed, needed));
    let stored: BTreeMap<u64, &Vec<u8>> =
        built.blocks.iter().map(|(at, bytes)| (at.0, bytes)).collect();
    let root = Node::decode_root(&built.root).unwrap();
    assert_eq!(root.depth(), 2);
    let mut found = Vec::new();
    let mut todo: Vec<_> = root.children().collect();
    todo.reverse();
    while let Some((index, expect)) = todo.pop() {
        let block = stored[&index.child.0];
        extent::verify(seed, block).unwrap();
        let node = Node::decode_block(block, expect).unwrap();
        found.extend(node.extents());
        let mut children: Vec<_> = node.children().collect();
        children.reverse();
        todo.extend(children);
    }
    assert_eq!(found, extents);
}

#[test]
fn preallocated_space_is_unwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(path) = mkfs(scratch.path(), 64, &["-t", "ext4", "-b", "4096"]) else { return };
    {
        let Some(mount) = Mount::new(&path, scratch.path()) else { return };
        let file = mount.0.join("reserved");
        if run("fallocate", &["-l", "20M", file.to_str().unwrap()]).is_none() {
            return;
        }
    }
    let image = Image::open(&path);
    let inode = image.inode(image.lookup(2, b"reserved"));
    let (extents, _) = image.extents(&inode);
    assert_eq!(extents.iter().map(|extent| extent.len.0).sum::<u32>(), 5120);
    assert!(extents.iter().all(|extent| extent.state == ExtentState::Unwritten));
}

#[test]
fn attributes_and_acls_of_the_kernel_are_read_and_encode_to_the_same_block() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(path) = mkfs(scratch.path(), 32, &["-t", "ext4", "-b", "4096", "-I", "256"]) else {
        return;
    };
    let long = "v".repeat(1001);
    {
        let Some(mount) = Mount::new(&path, scratch.path()) else { return };
        let file = mount.0.join("file");
        std::fs::write(&file, b"x").unwrap();
        let name = file.to_str().unwrap();
        let all =
            [("user.small", "1"), ("user.long", &long), ("trusted.t", "trust"), ("user.ä", "abc")];
        for (key, value) in all {
            if run("setfattr", &["-n", key, "-v", value, name]).is_none() {
                return;
            }
        }
        if run("setfacl", &["-m", "u:1000:rwx,g:2000:r-x,u:7:---", name]).is_none() {
            return;
        }
        let text = run("getfacl", &["-ncE", name]).unwrap();
        std::fs::write(scratch.path().join("acl"), text).unwrap();
    }
    let image = Image::open(&path);
    let inode = image.inode(image.lookup(2, b"file"));
    let mut found = BTreeMap::new();
    let inside = xattr::decode_inode(inode.space()).unwrap().unwrap();
    for entry in inside.entries() {
        assert_eq!(entry.hash, 0);
        let xattr::Value::Here(value) = entry.value else { panic!("{entry:?}") };
        found.insert(xattr::join(entry.index, entry.name).unwrap(), value.to_vec());
    }
    let at = FsBlock(u64::from(u32_at(&inode.raw, 104)));
    assert_ne!(at.0, 0);
    let block = image.block(at);
    xattr::verify_block(image.fs_seed(), at, block).unwrap();
    let (header, list) = xattr::decode_block(block).unwrap();
    let mut in_block = Vec::new();
    for entry in list.entries() {
        let xattr::Value::Here(value) = entry.value else { panic!("{entry:?}") };
        assert!(xattr::entry_hash_matches(entry.hash, entry.name, value));
        found.insert(xattr::join(entry.index, entry.name).unwrap(), value.to_vec());
        in_block.push(xattr::NewXattr { index: entry.index, name: entry.name, value });
    }
    assert_eq!(header.hash, xattr::block_hash(list.entries().map(|entry| entry.hash)));
    assert_eq!(found[b"user.long".as_slice()], long.as_bytes());
    assert_eq!(found[b"user.small".as_slice()], b"1");
    assert_eq!(found["user.ä".as_bytes()], b"abc");
    assert_eq!(found[b"trusted.t".as_slice()], b"trust");
    let list_text = acl::Acl::decode_stored(&found[b"system.posix_acl_access".as_slice()]).unwrap();
    let text = std::fs::read_to_string(scratch.path().join("acl")).unwrap();
    assert_eq!(list_text.to_string().trim(), text.trim());
    assert_eq!(list_text.encode_stored(), found[b"system.posix_acl_access".as_slice()]);

    // Our encoding, in the kernel's place: e2fsck recomputes hashes and checksum.
    let all: Vec<_> = found
        .iter()
        .map(|(full, value)| {
            let (index, name) = xattr::split(full).unwrap();
            xattr::NewXattr { index, name, value }
        })
        .collect();
    let space = xattr::Space { inode: inode.space().len(), block: 4096, ea_inode: false };
    let placement = xattr::place(&all, space).unwrap();
    assert!(placement.needs_block());
    let mut ours = vec![0; 4096];
    let seed = Some(image.fs_seed());
    xattr::encode_block(&mut ours, (at, 1), seed, &all, &placement, |_| None).unwrap();
    let (_, again) = xattr::decode_block(&ours).unwrap();
    assert!(again.entries().all(|entry| xattr::entry_hash_matches(
        entry.hash,
        entry.name,
        match entry.value {
            xattr::Value::Here(value) => value,
            xattr::Value::InInode { .. } => panic!("no value inodes here"),
        }
    )));
    let mut bytes = image.bytes.clone();
    bytes[at.0 as usize * 4096..][..4096].copy_from_slice(&ours);
    std::fs::write(&path, &bytes).unwrap();
    e2fsck(&path).unwrap();

    // The kernel's own set for the block, placed only in a block: values may lie elsewhere.
    let only_block = xattr::Space { inode: 0, ..space };
    let placement = xattr::place(&in_block, only_block).unwrap();
    let hash =
        xattr::encode_block(&mut ours, (at, 1), seed, &in_block, &placement, |_| None).unwrap();
    assert_eq!(hash, header.hash);
}

#[test]
fn inline_files_and_directories_of_the_kernel_are_read() {
    let scratch = tempfile::tempdir().unwrap();
    let args = ["-t", "ext4", "-b", "4096", "-I", "256", "-O", "inline_data"];
    let Some(path) = mkfs(scratch.path(), 32, &args) else { return };
    let contents: Vec<u8> = (0..100u8).collect();
    {
        let Some(mount) = Mount::new(&path, scratch.path()) else { return };
        std::fs::write(mount.0.join("file"), &contents).unwrap();
        std::fs::create_dir(mount.0.join("dir")).unwrap();
        for number in 0..7 {
            std::fs::write(mount.0.join(format!("dir/n{number}")), b"").unwrap();
        }
    }
    let image = Image::open(&path);
    // The root may itself be inline or not; the tool knows the numbers.
    let number = |name: &str| {
        let text =
            run("debugfs", &["-R", &format!("stat {name}"), path.to_str().unwrap()]).unwrap();
        let text = text.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap();
        image.inode(text.parse().unwrap())
    };
    let value_of = |inode: &Inode| {
        let area = xattr::decode_inode(inode.space()).unwrap().unwrap();
        match area.find(xattr::NameIndex::SYSTEM, b"data").unwrap().value {
            xattr::Value::Here(value) => value.to_vec(),
            xattr::Value::InInode { .. } => panic!("inline data is in the inode"),
        }
    };
    let file = number("file");
    assert!(file.flags() & 0x1000_0000 != 0);
    let (i_block, value) = (file.i_block(), value_of(&file));
    let (head, tail) = inline::parts(&i_block, &value, file.size()).unwrap();
    assert_eq!([head, tail].concat(), contents);
    let room = inline::capacity(file.space().len()).unwrap();
    let (again, rest) = inline::split(&contents, room).unwrap();
    assert_eq!((again, rest), (i_block, tail));
    let dir = number("dir");
    let (i_block, value) = (dir.i_block(), value_of(&dir));
    assert_eq!(dir.size(), 60 + value.len() as u64);
    let list = inline::InlineDir::new(&i_block, &value, image.dir_layout());
    assert_eq!(list.parent(), Ino(2));
    let names: Vec<_> = list.used().map(|entry| entry.unwrap().name.to_vec()).collect();
    let wanted: Vec<_> = (0..7).map(|number| format!("n{number}").into_bytes()).collect();
    assert_eq!(names, wanted);
    for name in &wanted {
        assert!(list.find(name).unwrap().is_some());
    }
}

#[test]
fn an_indirect_map_of_mke2fs_is_built_the_same() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    // 1 KiB blocks: 12 direct, 256 single, then double.
    std::fs::write(source.join("file"), vec![7; 400 * 1024]).unwrap();
    let source = source.to_str().unwrap().to_owned();
    let args = ["-t", "ext2", "-b", "1024", "-d", &source];
    let Some(path) = mkfs(scratch.path(), 8, &args) else { return };
    let image = Image::open(&path);
    let text = run("debugfs", &["-R", "stat file", path.to_str().unwrap()]).unwrap();
    let ino = text.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap();
    let inode = image.inode(ino.parse().unwrap());
    let i_block = inode.i_block();
    let mut tree = Vec::new();
    let mut runs: Vec<Extent> = Vec::new();
    for number in 0..400u32 {
        let way = indirect::path(FileBlock(number), image.size).unwrap();
        let mut bytes: &[u8] = &i_block;
        let mut block = None;
        for (level, slot) in way.steps().iter().enumerate() {
            block = indirect::block_at(bytes, *slot).block();
            let found = block.unwrap();
            if level < usize::from(way.depth()) {
                if !tree.contains(&found) {
                    tree.push(found);
                }
                bytes = image.block(found);
            }
        }
        let device_start = block.unwrap();
        assert!(image.block(device_start).iter().all(|byte| *byte == 7));
        runs.push(Extent {
            file_start: FileBlock(number),
            device_start,
            len: extant_base::BlockCount(1),
            state: ExtentState::Written,
        });
    }
    assert_eq!(tree.len(), 3);
    assert_eq!(indirect::map_blocks([(FileBlock(0), 400)], image.size), Ok(3));
    let mut next = tree.iter();
    let map = indirect::build(&runs, image.size, || {
        Ok::<_, indirect::IndirectFault>(*next.next().unwrap())
    })
    .unwrap();
    assert_eq!(map.root, i_block);
    for (at, bytes) in &map.blocks {
        assert_eq!(bytes, image.block(*at), "{at}");
    }
}
