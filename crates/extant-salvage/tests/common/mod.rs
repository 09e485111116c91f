//! What the tests share: images of every shape, what their reader sees, and what a salvage hands on.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant::{Fs, MountOptions};
use extant_base::{Ino, Prng};
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending,
    SharedDevice, run_in_place,
};
use extant_format::inode::FileKind;
use extant_salvage::{
    Damage, Found, Image, Options, Refusal, SalvageError, Summary, Target, Xattr, salvage,
};
use extant_testkit::{image, oracle};

/// Feature sets of mke2fs, mostly with small blocks, so that every kind of structure is there.
pub(crate) const SETS: &[&[&str]] = &[
    &["-text2", "-b1024"],
    &["-text3", "-b1024", "-Jsize=1"],
    &["-text4", "-b1024", "-O^metadata_csum,uninit_bg", "-Jsize=1"],
    &["-text4", "-b1024", "-Oquota,project,inline_data,ea_inode", "-Jsize=1"],
    &["-text4", "-b1024", "-Obigalloc,^has_journal,^resize_inode", "-C4096"],
    &["-text4", "-b2048", "-Ometa_bg,^resize_inode,^flex_bg", "-Jsize=2"],
    &["-text4", "-b4096", "-Oorphan_file,metadata_csum_seed,large_dir", "-Jsize=4"],
    &["-text4", "-b1024", "-g1024", "-Osparse_super2,mmp", "-Jsize=1"],
    &["-text4", "-b4096", "-I128", "-O^flex_bg,^metadata_csum,^64bit", "-Jsize=4"],
];

/// Contents of files begin with this, names and targets of links hold other marks.
pub(crate) const CONTENT_MARK: &[u8] = b"CONTENT-OF-A-FILE";

fn source(dir: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::{FileExt, symlink};
    let source = dir.join("source");
    if source.exists() {
        return source;
    }
    fs::create_dir_all(source.join("d/e/f")).unwrap();
    fs::create_dir(source.join("many")).unwrap();
    for number in 0..150 {
        let name = format!("many/a long name so that there are many blocks {number:040}");
        fs::write(source.join(name), []).unwrap();
    }
    for number in 0..20usize {
        let mut contents = vec![number as u8 + 1; number * 3000];
        let mark = CONTENT_MARK.len().min(contents.len());
        contents[..mark].copy_from_slice(&CONTENT_MARK[..mark]);
        fs::write(source.join(format!("d/file{number}")), contents).unwrap();
    }
    fs::write(source.join("d/small"), CONTENT_MARK).unwrap();
    let marks = CONTENT_MARK.repeat(6);
    fs::write(source.join("d/e/small enough for an inode"), marks).unwrap();
    fs::hard_link(source.join("d/file3"), source.join("d/e/again")).unwrap();
    symlink("TARGET-OF-A-LINK".repeat(2), source.join("d/fast")).unwrap();
    symlink("TARGET-OF-A-LINK".repeat(9), source.join("d/slow")).unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    for hole in 0..40 {
        sparse.write_all_at(&[1; 512], hole * 9000).unwrap();
    }
    let made = std::process::Command::new("mkfifo").arg(source.join("d/pipe")).status();
    assert!(made.unwrap().success());
    source
}

pub(crate) fn sample(dir: &Path, features: &[&str]) -> Result<MemoryDevice, String> {
    let path = dir.join("sample.img");
    let from = source(dir).display().to_string();
    let arguments: Vec<&str> = features.iter().copied().chain(["-N512", "-d", &from]).collect();
    let _removed = fs::remove_file(&path);
    oracle::mke2fs(&path, "12M", &arguments)?;
    let value = "VALUE-OF-AN-ATTRIBUTE".repeat(9);
    let commands = format!(
        "ea_set /d/file5 user.short VALUE-OF-AN-ATTRIBUTE\nea_set /d/file5 user.long {value}\n\
         ea_set /d user.dir VALUE-OF-AN-ATTRIBUTE\n"
    );
    oracle::debugfs(&path, true, &commands)?;
    // What mke2fs copies it does not count for quota.
    oracle::e2fsck_as(&path, "-fy", &[])?;
    Ok(image::load(&path))
}

/// What is compared of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) ino: u32,
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    pub(crate) permissions: u16,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: i64,
    pub(crate) hash: u64,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// All that the reader, which obeys the rules, can read whole: by path.
pub(crate) fn seen(device: &MemoryDevice) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let Ok(fs) = MountOptions::new().open(device.snapshot()) else { return all };
    let Ok(walk) = fs.walk("/") else { return all };
    for entry in walk.flatten() {
        if let Some(seen) = one(entry.inode()) {
            all.insert(entry.path().to_vec(), seen);
        }
    }
    all
}

fn one(inode: &extant::Inode) -> Option<Seen> {
    let meta = inode.metadata();
    let bytes = match meta.kind {
        FileKind::Regular => {
            let mut bytes = vec![0; usize::try_from(meta.size).ok().filter(|len| *len < 1 << 26)?];
            let mut at = 0;
            while at < bytes.len() {
                match inode.read_at(&mut bytes[at..], at as u64) {
                    Ok(0) => break,
                    Ok(read) => at += read,
                    Err(_) => return None,
                }
            }
            bytes
        }
        FileKind::Symlink => inode.read_link().ok()?,
        _ => Vec::new(),
    };
    let mut xattrs: Vec<_> =
        inode.xattrs().ok()?.into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
    xattrs.sort();
    Some(Seen {
        ino: meta.ino.0,
        kind: meta.kind,
        size: if meta.kind == FileKind::Directory { 0 } else { meta.size },
        permissions: meta.permissions,
        owner: (meta.uid, meta.gid),
        mtime: meta.mtime.seconds,
        hash: hash(&bytes),
        xattrs,
    })
}

/// Opens an image with its journal left alone.
pub(crate) fn reader(device: &MemoryDevice) -> Option<Fs> {
    MountOptions::new().ignore_journal(true).open(device.snapshot()).ok()
}

/// A target in memory.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) files: BTreeMap<Vec<u8>, Seen>,
    pub(crate) contents: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) damages: Vec<Damage>,
    pub(crate) path: Vec<Vec<u8>>,
    pub(crate) open: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) links: BTreeMap<u32, Vec<u8>>,
    /// Bytes that were handed on.
    pub(crate) bytes: u64,
    /// Bytes after which there is no room.
    pub(crate) room: Option<u64>,
    pub(crate) abandoned: u32,
}

/// Contents that are kept, in bytes: a file of holes would fill the memory.
const KEPT_BYTES: u64 = 1 << 24;

impl Kept {
    fn at(&self, name: &[u8]) -> Vec<u8> {
        assert!(
            !name.is_empty()
                && name != b"."
                && name != b".."
                && !name.contains(&b'/')
                && !name.contains(&0),
            "{name:?} is no name"
        );
        let mut path = self.path.iter().fold(Vec::new(), |mut path, name| {
            path.push(b'/');
            path.extend_from_slice(name);
            path
        });
        path.push(b'/');
        path.extend_from_slice(name);
        path
    }

    fn add(&mut self, path: Vec<u8>, found: &Found, size: u64, bytes: &[u8], xattrs: &[Xattr]) {
        let mut xattrs: Vec<_> =
            xattrs.iter().map(|xattr| (xattr.name.clone(), xattr.value.clone())).collect();
        xattrs.sort();
        let seen = Seen {
            ino: found.ino.0,
            kind: found.kind,
            size,
            permissions: found.permissions,
            owner: (found.uid, found.gid),
            mtime: found.mtime.seconds,
            hash: hash(bytes),
            xattrs,
        };
        if found.links > 1 && found.kind != FileKind::Directory {
            self.links.insert(found.ino.0, path.clone());
        }
        self.files.insert(path, seen);
    }

    fn is_there(&self, path: &[u8]) -> Result<(), Refusal> {
        match self.files.contains_key(path) {
            true => Err(Refusal::Skip("it is there".to_owned())),
            false => Ok(()),
        }
    }

    pub(crate) fn by_ino(&self, ino: u32) -> Option<&Seen> {
        self.files.values().find(|seen| seen.ino == ino)
    }
}

impl Target for Kept {
    fn enter(&mut self, name: &[u8], found: &Found) -> Result<(), Refusal> {
        let path = self.at(name);
        self.is_there(&path)?;
        // Its attributes come last.
        self.add(path, found, 0, b"", &[]);
        self.path.push(name.to_vec());
        Ok(())
    }

    fn enter_lost_found(&mut self) -> Result<(), Refusal> {
        assert!(self.path.is_empty());
        self.path.push(b"lost+found".to_vec());
        Ok(())
    }

    fn leave(&mut self, from: Option<(&Found, &[Xattr])>) -> Result<(), Refusal> {
        let name = self.path.pop();
        if let Some((found, xattrs)) = from {
            let path = name.map_or_else(|| b"/".to_vec(), |name| self.at(&name));
            self.add(path, found, 0, b"", xattrs);
        }
        Ok(())
    }

    fn create(&mut self, name: &[u8], _found: &Found) -> Result<(), Refusal> {
        let path = self.at(name);
        self.is_there(&path)?;
        assert!(self.open.is_none());
        self.open = Some((path, Vec::new()));
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.bytes += bytes.len() as u64;
        if self.room.is_some_and(|room| self.bytes > room) {
            return Err(Refusal::Stop);
        }
        let (_, contents) = self.open.as_mut().unwrap();
        let end = offset + bytes.len() as u64;
        if end <= KEPT_BYTES {
            contents.resize(contents.len().max(end as usize), 0);
            contents[offset as usize..end as usize].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn close(&mut self, found: &Found, size: u64, xattrs: &[Xattr]) -> Result<(), Refusal> {
        let (path, mut contents) = self.open.take().unwrap();
        contents.resize(size.min(KEPT_BYTES) as usize, 0);
        self.add(path.clone(), found, size, &contents, xattrs);
        self.contents.insert(path, contents);
        Ok(())
    }

    fn abandon(&mut self) {
        self.abandoned += 1;
        self.open = None;
    }

    fn symlink(
        &mut self,
        name: &[u8],
        found: &Found,
        to: &[u8],
        xattrs: &[Xattr],
    ) -> Result<(), Refusal> {
        let path = self.at(name);
        self.is_there(&path)?;
        self.add(path, found, to.len() as u64, to, xattrs);
        Ok(())
    }

    fn special(&mut self, name: &[u8], found: &Found, xattrs: &[Xattr]) -> Result<(), Refusal> {
        let path = self.at(name);
        self.is_there(&path)?;
        self.add(path, found, found.size, b"", xattrs);
        Ok(())
    }

    fn link(&mut self, name: &[u8], ino: Ino) -> Result<bool, Refusal> {
        let path = self.at(name);
        self.is_there(&path)?;
        let Some(first) = self.links.get(&ino.0) else { return Ok(false) };
        let seen = self.files[first].clone();
        self.files.insert(path, seen);
        Ok(true)
    }

    fn damaged(&mut self, damage: Damage) -> Result<(), Refusal> {
        assert!(damage.path.starts_with(b"/"), "{damage:?}");
        assert!(damage.missing <= damage.size && !damage.why.is_empty(), "{damage:?}");
        self.damages.push(damage);
        Ok(())
    }
}

/// Salvages a device into memory.
pub(crate) fn salvaged(device: SharedDevice) -> Result<(Kept, Summary, Vec<String>), SalvageError> {
    let image = Image::open(device, &Options::default())?;
    let mut kept = Kept::default();
    let (summary, is_over) = salvage(&image, &mut kept);
    assert!(is_over);
    assert!(kept.path.is_empty() && kept.open.is_none(), "all that was opened was closed");
    assert_eq!(summary.damaged, kept.damages.len() as u64);
    Ok((kept, summary, image.notes().to_vec()))
}

/// [`salvaged`] of a copy of a device in memory.
pub(crate) fn of(device: &MemoryDevice) -> Result<(Kept, Summary, Vec<String>), SalvageError> {
    salvaged(Arc::new(device.snapshot()))
}

/// A device with blocks of 1 KiB that cannot be read, which counts how many reads there were.
pub(crate) struct Worn {
    pub(crate) inner: MemoryDevice,
    pub(crate) bad: Vec<u64>,
    pub(crate) reads: AtomicU64,
}

impl Worn {
    pub(crate) fn new(inner: MemoryDevice, bad: Vec<u64>) -> Worn {
        Worn { inner, bad, reads: AtomicU64::new(0) }
    }
}

impl BlockDevice for Worn {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn describe(&self) -> Arc<str> {
        self.inner.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let touched = offset / 1024..(offset + out.len() as u64).div_ceil(1024);
        if self.bad.iter().any(|bad| touched.contains(bad)) {
            let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(5));
            let (kind, len) = (OperationKind::Read, out.len() as u64);
            return Err(DeviceError::new(self.describe(), kind, offset, len, fault));
        }
        self.inner.read_at(offset, out)
    }
}

/// Kilobytes that hold metadata: all that are not filled with one small number, as contents of files are.
pub(crate) fn metadata(device: &MemoryDevice) -> Vec<u64> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    let mut list = Vec::new();
    for (number, block) in bytes.chunks(1024).enumerate() {
        let first = block[0];
        let is_filled = block.iter().take(512).all(|byte| *byte == first);
        if number >= 1 && !(is_filled && first < 64) && !block.starts_with(CONTENT_MARK) {
            list.push(number as u64);
        }
    }
    list
}

/// One damage: some bytes of one kilobyte.
pub(crate) fn damage(device: &MemoryDevice, blocks: &[u64], random: &mut Prng) {
    let block = blocks[random.below(blocks.len() as u64) as usize];
    let mut bytes = [0; 1024];
    device.read_at(block * 1024, &mut bytes).unwrap();
    match random.below(8) {
        // The whole of it: zeros, noise, or what lies somewhere else.
        0 => bytes.fill(0),
        1 => random.fill(&mut bytes),
        2 => {
            let other = blocks[random.below(blocks.len() as u64) as usize];
            device.read_at(other * 1024, &mut bytes).unwrap();
        }
        // A field: of one, two or four bytes, small numbers more often.
        _ => {
            for _field in 0..=random.below(3) {
                let len = 1 << random.below(3);
                let used: Vec<usize> =
                    (0..1024 / len).map(|at| at * len).filter(|at| bytes[*at] != 0).collect();
                let Some(at) = used.get(random.below(used.len().max(1) as u64) as usize) else {
                    continue;
                };
                let value = match random.below(3) {
                    0 => random.below(64) as u32,
                    1 => random.below(12_288) as u32,
                    _ => random.next_u64() as u32,
                };
                bytes[*at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
        }
    }
    device.write_at(block * 1024, &bytes).unwrap();
}
