//! Where `build` and `mkfs` write: options, checks, the writing itself.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use extant_block::{BlockDevice, FileDevice, WindowDevice, partition};
use extant_image::output::{Existing, Output, OutputError, existing, refuse_if_in_use};
use extant_image::plan::{Plan, PlanSummary};
use extant_image::signature::recognise_device;
use extant_image::source::{Contents, Lost};
use extant_image::tree::Tree;
use extant_image::verity::{self, Layout};
use extant_image::write::{WriteOptions, write_bytes, write_image};
use extant_sync::{Clock, SystemClock, threads};
use serde_json::{Map, Value, json};

use crate::bounds::{Bounds, bounds};
use crate::disk::{Disk, Made};
use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::in_use::loop_device_of;
use crate::interrupt;
use crate::output::{self, Out, complain, put_bytes};
use crate::place::{is_address, is_rbd};
use crate::progress::Bar;
use crate::size::parse_bytes;
use crate::text::{counted, escape, human_bytes};

/// Options about the output that `build` and `mkfs` share.
#[derive(Args, Clone, Debug)]
pub(crate) struct TargetSet {
    /// Overwrite what looks like a file system or a partition table
    #[arg(long, short = 'F')]
    pub(crate) force: bool,
    /// Tells who knows other programs of the option that is meant
    #[arg(short = 'f', hide = true)]
    other_force: bool,
    /// The file system begins that many bytes into OUT, which must exist
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) offset: Option<u64>,
    /// The file system goes into partition N of OUT (GPT or MBR), which must exist
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub(crate) partition: Option<u32>,
    /// Threads that read and write; one for each processor if not given. The image is the same
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print what the image would be and write nothing
    #[arg(long, short = 'n', visible_alias = "dry-run")]
    pub(crate) plan: bool,
    /// Print the plan, or what was built, as a JSON object
    #[arg(long)]
    json: bool,
    /// Print nothing but errors
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
}

/// Where the image goes, looked at before anything is read or planned.
pub(crate) struct Target {
    path: PathBuf,
    pub(crate) kind: Kind,
    set: TargetSet,
    verity: Option<Verity>,
    disk: Option<Disk>,
    lost: Lost,
}

/// Where the hash tree of dm-verity goes.
#[derive(Clone, Debug)]
pub(crate) enum Verity {
    /// Behind the file system.
    Appended,
    /// Into a file of its own.
    Beside(PathBuf),
}

/// A hash tree that was written.
struct Sealed {
    tree: verity::Tree,
    /// The file it is in.
    file: PathBuf,
    /// Where it begins there.
    offset: u64,
}

/// What was made besides the image.
#[derive(Default)]
struct Done {
    sealed: Option<Sealed>,
    disk: Option<Made>,
}

/// What the output is.
pub(crate) enum Kind {
    Stdout,
    New,
    /// A regular file of that many bytes.
    File(u64),
    Device,
    /// A part of a file or device.
    Window(WindowDevice<FileDevice>),
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Failure {
        let object = match &error {
            OutputError::InUse { path, .. }
            | OutputError::NotAFile { path }
            | OutputError::TooSmall { path, .. }
            | OutputError::Io { path, .. } => Some(escape(path.as_os_str().as_bytes())),
            OutputError::Open(_) => None,
        };
        let mut failure = match error {
            OutputError::Open(error) => return error.into(),
            OutputError::InUse { .. } => Failure::caused(Exit::Refused, "", &error)
                .hint("--force overwrites it; everything in it will be lost"),
            OutputError::NotAFile { .. } => Failure::caused(Exit::Refused, "", &error),
            OutputError::TooSmall { .. } => Failure::caused(Exit::NoSpace, "", &error),
            OutputError::Io { ref cause, .. } => {
                if cause.kind() == std::io::ErrorKind::BrokenPipe {
                    return Failure::new(Exit::BrokenPipe, "");
                }
                Failure::caused(io_exit(cause), "", &error)
            }
        };
        failure.object = object;
        failure
    }
}

impl TargetSet {
    /// Number of workers.
    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(threads::available).clamp(1, 512)
    }

    /// Looks at the output, and refuses what must not be overwritten.
    pub(crate) fn look_at(&self, out: &OsStr) -> Result<Target> {
        if self.other_force {
            return Err(Failure::usage("-f is an option of mkfs for other file systems")
                .hint("-F, or --force, overwrites what looks like a file system, as with mke2fs"));
        }
        let path = PathBuf::from(out);
        if is_address(&path) {
            let name = escape(path.as_os_str().as_bytes());
            let failure = Failure::usage(format!("{name}: what is made is a file, a disk or -"));
            return Err(match is_rbd(&path) {
                true => {
                    failure.hint("pipe it: extant build - --from TREE | rbd import - POOL/IMAGE")
                }
                false => failure.hint("make a file, and copy it there"),
            });
        }
        let windowed = self.offset.is_some() || self.partition.is_some();
        // Also with --force: the kernel would write what it has in memory over the new contents, or lose
        // it with the old file.
        if out != "-"
            && !self.plan
            && let Some(holder) = loop_device_of(&path)
        {
            let name = escape(path.as_os_str().as_bytes());
            let message = format!("{name} is in use: the kernel has it as {holder}");
            return Err(Failure::new(Exit::Refused, message)
                .hint(format!("unmount it and detach it: losetup -d {holder}")));
        }
        let kind = if out == "-" {
            if windowed {
                return Err(Failure::usage("--offset and --partition need a file, not -"));
            }
            Kind::Stdout
        } else if windowed {
            Kind::Window(self.window(&path)?)
        } else {
            match existing(&path)? {
                Existing::Nothing => Kind::New,
                Existing::File(bytes) => Kind::File(bytes),
                Existing::Device => Kind::Device,
            }
        };
        let plain = matches!(kind, Kind::File(_) | Kind::Device);
        if plain && !self.force && !self.plan {
            refuse_if_in_use(&path)?;
        }
        Ok(Target {
            path,
            kind,
            set: self.clone(),
            verity: None,
            disk: None,
            lost: Lost::default(),
        })
    }

    fn window(&self, path: &Path) -> Result<WindowDevice<FileDevice>> {
        // A plan only wants to know how much room there is.
        let device = match self.plan {
            true => FileDevice::open_read_only(path)?,
            false => FileDevice::open_read_write(path)?,
        };
        let window = match (self.offset, self.partition) {
            (Some(offset), _) => self.window_from(device, offset)?,
            (None, number) => partition::open(device, number.unwrap_or(0))?,
        };
        if !self.force
            && !self.plan
            && let Some(found) = recognise_device(&window)?
        {
            let path = PathBuf::from(window.describe().to_string());
            return Err(OutputError::InUse { path, what: found.name }.into());
        }
        Ok(window)
    }

    /// What begins at `offset`: not more than a partition table leaves to it.
    fn window_from(&self, device: FileDevice, offset: u64) -> Result<WindowDevice<FileDevice>> {
        let Some(Bounds { inside, end }) = bounds(&device, offset) else {
            return Ok(WindowDevice::from_offset(device, offset)?);
        };
        let name = device.describe();
        if let Some(inside) = inside.filter(|inside| inside.offset != offset && !self.force) {
            let (number, from) = (inside.number, inside.offset);
            let message = format!(
                "byte {offset} of {name} is in the middle of partition {number}, which begins at byte {from}"
            );
            return Err(Failure::new(Exit::Refused, message).hint(format!(
                "--partition {number} is all of it; --force overwrites what is there"
            )));
        }
        let len = end.saturating_sub(offset);
        Ok(WindowDevice::new(device, offset, len)?)
    }
}

impl Target {
    /// Device and inode number of the output if it exists, for a source that contains it.
    pub(crate) fn identity(&self) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let found = fs::metadata(&self.path).ok().filter(|found| found.is_file())?;
        Some((found.dev(), found.ino()))
    }

    /// Makes a hash tree too, or says why that cannot be. With `in_partition` it gets a partition instead of the end of the
    /// file.
    pub(crate) fn seal(&mut self, verity: Option<Verity>, in_partition: bool) -> Result<()> {
        let appends = matches!(verity, Some(Verity::Appended)) && !in_partition;
        if appends && !matches!(self.kind, Kind::New | Kind::File(_)) {
            let name = escape(self.path.as_os_str().as_bytes());
            return Err(Failure::usage(format!(
                "{name}: --verity writes behind the end of a file, and this is none"
            ))
            .hint("--verity=FILE writes the hashes beside it"));
        }
        if let Some(Verity::Beside(file)) = &verity {
            let same = fs::canonicalize(file)
                .ok()
                .is_some_and(|file| fs::canonicalize(&self.path).is_ok_and(|path| path == file));
            if same || *file == self.path {
                let name = escape(file.as_os_str().as_bytes());
                return Err(Failure::usage(format!(
                    "{name}: it cannot hold both image and hashes"
                ))
                .hint("--verity without a name appends them"));
            }
            if !self.set.force && !self.set.plan && existing(file)? != Existing::Nothing {
                refuse_if_in_use(file)?;
            }
        }
        self.verity = verity;
        Ok(())
    }

    /// Tells, when the image is there, which attributes of its sources it does not have.
    pub(crate) fn tell_lost(&mut self, lost: Lost) {
        self.lost = lost;
    }

    /// Makes a whole disk.
    pub(crate) fn put_on(&mut self, disk: Option<Disk>) {
        self.disk = disk;
    }

    /// Returns where a packed archive may be spread out: beside the image, where there must be
    /// room.
    pub(crate) fn spool_dir(&self) -> PathBuf {
        let beside = || match self.path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
            None => PathBuf::from("."),
        };
        match (std::env::var_os("TMPDIR"), &self.kind) {
            (None, Kind::New | Kind::File(_)) => beside(),
            _ => std::env::temp_dir(),
        }
    }

    /// Returns how many bytes there are for an image that has to fit what exists.
    pub(crate) fn room(&self) -> Result<Option<u64>> {
        Ok(match &self.kind {
            Kind::Stdout | Kind::New => None,
            Kind::File(bytes) => Some(*bytes).filter(|bytes| *bytes > 0),
            Kind::Device => Some(FileDevice::open_read_only(&self.path)?.size_bytes()),
            Kind::Window(window) => Some(window.size_bytes()),
        })
    }

    /// Bytes of a sector, if the output is a disk: 512 or 4096.
    pub(crate) fn sector_bytes(&self) -> Result<u64> {
        let bytes = match &self.kind {
            Kind::Device => FileDevice::open_read_only(&self.path)?.logical_sector_bytes(),
            _ => 512,
        };
        Ok(if bytes == 4096 { 4096 } else { 512 })
    }

    /// Prints the plan, or writes the image and reports.
    ///
    /// `replaces`: a regular file that exists is replaced by a new one; otherwise it is written in
    /// place, as mke2fs does.
    pub(crate) fn write(
        self,
        plan: &Plan,
        tree: &Tree,
        contents: &dyn Contents,
        replaces: bool,
    ) -> Result<()> {
        let summary = plan.summary();
        if let Some(disk) = &self.disk {
            return self.write_disk(disk, plan, tree, contents);
        }
        if self.set.plan {
            return self.print(plan, &summary, None, &Done::default());
        }
        let bytes = plan.image_bytes();
        let layout = Layout::of(bytes);
        let in_whole_blocks = layout.data_bytes() == bytes;
        let may_grow = matches!(self.kind, Kind::New | Kind::File(_));
        if self.verity.is_some() && !in_whole_blocks && !may_grow {
            return Err(Failure::usage(format!(
                "--verity: the image has {bytes} bytes, which are no whole blocks of 4 KiB"
            ))
            .hint("give a --size that is a multiple of 4K"));
        }
        // What the file has in the end.
        let file_bytes = match &self.verity {
            None => bytes,
            Some(Verity::Beside(_)) => layout.data_bytes(),
            Some(Verity::Appended) => layout.data_bytes() + layout.bytes(),
        };
        let mut sealed = None;
        let clock = SystemClock;
        let started = clock.monotonic();
        if !matches!(self.kind, Kind::Stdout) {
            // From here on there is something to clean up. (An unnamed file goes by itself.)
            interrupt::listen()?;
        }
        match &self.kind {
            Kind::Window(window) => {
                if window.size_bytes() < bytes {
                    let room = window.size_bytes();
                    let name = window.describe();
                    return Err(Failure::new(
                        Exit::NoSpace,
                        format!("{name} has {room} bytes and the image needs {bytes}"),
                    ));
                }
                self.fill(plan, tree, contents, window, false)
                    .map_err(|failure| unfinished(failure, &window.describe()))?;
                if let Some((made, hashes)) = self.hashes(plan, window)? {
                    hashes.map(Output::commit).transpose()?;
                    sealed = Some(made);
                }
            }
            kind => {
                let in_place = match kind {
                    Kind::Device => true,
                    Kind::File(_) => !replaces,
                    _ => false,
                };
                let output = match kind {
                    Kind::Stdout => Output::stdout(&std::env::temp_dir(), bytes)?,
                    _ if in_place => Output::in_place(&self.path, bytes)?,
                    _ => Output::create(&self.path, file_bytes)?,
                };
                let zeroed = output.is_zeroed();
                let filled = self.fill(plan, tree, contents, output.device(), zeroed);
                if in_place {
                    filled.map_err(|failure| unfinished(failure, &self.path.to_string_lossy()))?;
                } else {
                    filled?;
                    if interrupt::requested() {
                        return Err(Failure::new(Exit::Interrupted, "interrupted"));
                    }
                }
                let hashes = self.hashes(plan, output.device())?;
                output.commit()?;
                if let Some((made, hashes)) = hashes {
                    hashes.map(Output::commit).transpose()?;
                    sealed = Some(made);
                }
            }
        }
        let took = clock.monotonic().saturating_sub(started);
        self.print(plan, &summary, Some(took.as_secs_f64()), &Done { sealed, disk: None })
    }

    /// As [`write`](Self::write), with the image in a partition of a disk.
    fn write_disk(
        &self,
        disk: &Disk,
        plan: &Plan,
        tree: &Tree,
        contents: &dyn Contents,
    ) -> Result<()> {
        let summary = plan.summary();
        let bytes = plan.image_bytes();
        let hashes = Layout::of(bytes);
        let beside = matches!(self.verity, Some(Verity::Beside(_)));
        let verity = self.verity.is_some().then(|| hashes.bytes()).filter(|_| !beside);
        let sector = self.sector_bytes()?;
        let room = match &self.kind {
            Kind::Device => self.room()?,
            _ => None,
        };
        let mut made = disk.layout(hashes.data_bytes(), verity, room, sector)?;
        if self.set.plan {
            return self.print(plan, &summary, None, &Done { sealed: None, disk: Some(made) });
        }
        let clock = SystemClock;
        let started = clock.monotonic();
        if !matches!(self.kind, Kind::Stdout) {
            interrupt::listen()?;
        }
        let total = made.layout.bytes;
        let output = match &self.kind {
            Kind::Stdout => Output::stdout(&std::env::temp_dir(), total)?,
            Kind::Device => Output::in_place(&self.path, total)?,
            _ => Output::create(&self.path, total)?,
        };
        let (device, zeroed) = (output.device(), output.is_zeroed());
        let place = made.layout.root;
        let mut fill = || -> Result<(Option<Sealed>, Option<Output>)> {
            if !zeroed {
                // An older table is none before the first byte of what it pointed to changes.
                let table = extant_image::disk::ALIGNMENT;
                device.write_zeroes(0, table)?;
                device.write_zeroes(total - (128 * 128 + sector), 128 * 128 + sector)?;
                device.write_zeroes(
                    place.offset + place.len - hashes_tail(bytes),
                    hashes_tail(bytes),
                )?;
                device.flush()?;
            }
            let window = WindowDevice::new(device, place.offset, place.len)
                .map_err(|error| Failure::caused(Exit::Io, "", &error))?;
            self.fill(plan, tree, contents, &window, zeroed)?;
            if interrupt::requested() {
                return Err(Failure::new(Exit::Interrupted, "interrupted"));
            }
            let (uuid, threads) = (&plan.ids().uuid, self.set.threads());
            let done = match made.layout.verity {
                Some(at) => {
                    let tree =
                        verity::write_tree(&window, bytes, device, at.offset, uuid, threads)?;
                    (Some(Sealed { tree, file: self.path.clone(), offset: at.offset }), None)
                }
                None => match self.hashes(plan, &window)? {
                    Some((sealed, output)) => (Some(sealed), output),
                    None => (None, None),
                },
            };
            let root = done.0.as_ref().map(|sealed| &sealed.tree.root);
            disk.finish(&mut made, device, uuid, root, zeroed)?;
            Ok(done)
        };
        let (sealed, hashes) = match self.kind {
            Kind::Device => {
                fill().map_err(|failure| unfinished(failure, &self.path.to_string_lossy()))?
            }
            _ => fill()?,
        };
        output.commit()?;
        hashes.map(Output::commit).transpose()?;
        let took = clock.monotonic().saturating_sub(started);
        self.print(plan, &summary, Some(took.as_secs_f64()), &Done { sealed, disk: Some(made) })
    }

    /// Makes the hash tree of the image on `device`, if one is wanted; with the file of its own that it is in, which has no
    /// name yet.
    fn hashes(
        &self,
        plan: &Plan,
        device: &dyn BlockDevice,
    ) -> Result<Option<(Sealed, Option<Output>)>> {
        let Some(verity) = &self.verity else { return Ok(None) };
        let bytes = plan.image_bytes();
        let layout = Layout::of(bytes);
        let (uuid, threads) = (&plan.ids().uuid, self.set.threads());
        Ok(Some(match verity {
            Verity::Appended => {
                let offset = layout.data_bytes();
                let tree = verity::write_tree(device, bytes, device, offset, uuid, threads)?;
                device.flush()?;
                (Sealed { tree, file: self.path.clone(), offset }, None)
            }
            Verity::Beside(file) => {
                let output = Output::create(file, layout.bytes())?;
                let out = output.device();
                let tree = verity::write_tree(device, bytes, out, 0, uuid, threads)?;
                out.flush()?;
                (Sealed { tree, file: file.clone(), offset: 0 }, Some(output))
            }
        }))
    }

    fn fill(
        &self,
        plan: &Plan,
        tree: &Tree,
        contents: &dyn Contents,
        device: &dyn BlockDevice,
        target_is_zeroed: bool,
    ) -> Result<()> {
        let bar = Bar::of(write_bytes(plan), !self.set.quiet && !self.set.json);
        let cancel = interrupt::flag();
        let options = WriteOptions {
            threads: self.set.threads(),
            target_is_zeroed,
            progress: &bar,
            cancel: &cancel,
        };
        let result = write_image(plan, tree, contents, device, &options);
        drop(bar);
        result?;
        Ok(())
    }

    fn print(
        &self,
        plan: &Plan,
        summary: &PlanSummary,
        seconds: Option<f64>,
        done: &Done,
    ) -> Result<()> {
        let sealed = done.sealed.as_ref();
        let name = escape(self.path.as_os_str().as_bytes());
        let to_stdout = matches!(self.kind, Kind::Stdout) && seconds.is_some();
        if self.set.json && !to_stdout {
            let uuid = uuid::Uuid::from_bytes(plan.ids().uuid).to_string();
            let mut object = Map::new();
            put_bytes(&mut object, "output", self.path.as_os_str().as_bytes());
            let fixed = json!({
                "written": seconds.is_some(),
                "seconds": seconds,
                "uuid": uuid,
                "size_bytes": summary.size_bytes,
                "block_bytes": summary.block_bytes,
                "blocks": summary.blocks,
                "used_blocks": summary.used_blocks,
                "free_blocks": summary.free_blocks,
                "reserved_blocks": summary.reserved_blocks,
                "inodes": summary.inodes,
                "used_inodes": summary.used_inodes,
                "inode_bytes": summary.inode_bytes,
                "groups": summary.groups,
                "journal_blocks": summary.journal_blocks,
                "files": summary.files,
                "directories": summary.directories,
                "indexed_directories": summary.indexed_directories,
                "data_bytes": summary.data_bytes,
                "features": plan.geometry().features.to_string(),
            });
            if let Value::Object(fixed) = fixed {
                object.extend(fixed);
            }
            if let Some(kept) = summary.kept_blocks {
                object.insert("kept_blocks".into(), kept.into());
            }
            if self.verity.is_some() {
                object.insert("verity".into(), self.verity_json(summary, sealed));
            }
            if let Some(disk) = &done.disk {
                object.insert("disk".into(), disk.json());
            }
            if !self.lost.is_empty() {
                object.insert("lost".into(), lost_json(&self.lost));
            }
            let mut out = Out::new();
            out.json_pretty(&Value::Object(object))?;
            return Ok(std::io::Write::flush(&mut out)?);
        }
        if !self.set.quiet {
            self.complain_of_lost();
        }
        let mut text = summary_text(plan, summary);
        if let Some(kept) = summary.kept_blocks {
            text += &format!("     Base: {kept} blocks of files where they were\n");
        }
        if self.verity.is_some() {
            let hashes = Layout::of(summary.size_bytes).bytes();
            text += &format!("   Verity: {} ({hashes} bytes)\n", human_bytes(hashes));
        }
        if let Some(disk) = &done.disk {
            text += &disk.text();
        }
        match seconds {
            None => output::put(text.as_bytes())?,
            Some(seconds) if !self.set.quiet => {
                let size = human_bytes(summary.size_bytes);
                let (files, free) = (counted(summary.files, "file"), free_text(summary));
                let line = format!("{name}: {size}, {files}, {free} free, {seconds:.2} s\n");
                // Standard output may be the image.
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            }
            Some(_) => {}
        }
        if let Some(sealed) = sealed {
            let line = format!("verity root hash: {}\n", verity::hex(&sealed.tree.root));
            if to_stdout {
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            } else {
                output::put(line.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Names what was lost, one line for each kind.
    fn complain_of_lost(&self) {
        for (what, kind) in self.lost.kinds() {
            let example = escape(&kind.example);
            let place = if example.is_empty() { "the root" } else { &example };
            complain(&format!("not kept: {what}, of {}: {place}", counted(kind.files, "file")));
        }
        if self.lost.unnamed() > 0 {
            complain(&format!("not kept: {} attributes of other kinds", self.lost.unnamed()));
        }
    }

    fn verity_json(&self, summary: &PlanSummary, sealed: Option<&Sealed>) -> Value {
        let layout = Layout::of(summary.size_bytes);
        let mut object = Map::new();
        object.insert("bytes".into(), layout.bytes().into());
        object.insert("data_blocks".into(), layout.data_blocks.into());
        object.insert("block_bytes".into(), verity::BLOCK.into());
        if let Some(Sealed { tree, file, offset }) = sealed {
            put_bytes(&mut object, "file", file.as_os_str().as_bytes());
            object.insert("offset".into(), (*offset).into());
            object.insert("algorithm".into(), "sha256".into());
            object.insert("salt".into(), verity::hex(&tree.salt).into());
            object.insert("root_hash".into(), verity::hex(&tree.root).into());
            object.insert("uuid".into(), uuid::Uuid::from_bytes(tree.uuid).to_string().into());
        }
        Value::Object(object)
    }
}

/// What was lost, as documented in docs/json.md.
fn lost_json(lost: &Lost) -> Value {
    let kinds = lost.kinds().map(|(what, kind)| {
        let mut object = Map::new();
        object.insert("what".into(), what.into());
        object.insert("files".into(), kind.files.into());
        put_bytes(&mut object, "example", &kind.example);
        Value::Object(object)
    });
    let mut list: Vec<Value> = kinds.collect();
    if lost.unnamed() > 0 {
        list.push(json!({ "what": "other kinds", "files": lost.unnamed() }));
    }
    Value::Array(list)
}

/// Bytes behind an image up to whole blocks of hashes.
fn hashes_tail(bytes: u64) -> u64 {
    Layout::of(bytes).data_bytes() - bytes
}

/// Says what a failure leaves of a target that is written in place: there is no way back.
fn unfinished(failure: Failure, name: &str) -> Failure {
    let message = format!(
        "{}; {name} is unfinished and holds no file system, nor what it held before",
        failure.message
    );
    Failure { message, ..failure }
}

fn free_text(summary: &PlanSummary) -> String {
    human_bytes(summary.free_blocks.saturating_mul(u64::from(summary.block_bytes)))
}

fn summary_text(plan: &Plan, summary: &PlanSummary) -> String {
    let block = u64::from(summary.block_bytes);
    let bytes = |blocks: u64| human_bytes(blocks.saturating_mul(block));
    format!(
        "     Size: {} ({} bytes)\n   Blocks: {} of {block} bytes, {} used, {} free ({})\n \
         Reserved: {} blocks for root\n   Inodes: {} of {} bytes, {} used\n   Groups: {}\n  \
         Journal: {} blocks ({})\n    Files: {} ({} directories, {} of them indexed)\n     \
         Data: {}\n Features: {}\n",
        human_bytes(summary.size_bytes),
        summary.size_bytes,
        summary.blocks,
        summary.used_blocks,
        summary.free_blocks,
        free_text(summary),
        summary.reserved_blocks,
        summary.inodes,
        summary.inode_bytes,
        summary.used_inodes,
        summary.groups,
        summary.journal_blocks,
        bytes(u64::from(summary.journal_blocks)),
        summary.files,
        summary.directories,
        summary.indexed_directories,
        human_bytes(summary.data_bytes),
        plan.geometry().features,
    )
}

/// The epoch that times are limited to: `--mtime-clamp`, else `SOURCE_DATE_EPOCH`.
pub(crate) fn epoch(option: Option<&str>) -> Result<Option<i64>> {
    let (name, text) = match option {
        Some(text) => ("--mtime-clamp", text.to_owned()),
        None => match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => ("SOURCE_DATE_EPOCH", text),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(error) => return Err(Failure::usage(format!("SOURCE_DATE_EPOCH: {error}"))),
        },
    };
    extant_image::transform::parse_epoch(&text)
        .map(Some)
        .map_err(|error| Failure::usage(format!("{name}: {error}")))
}
