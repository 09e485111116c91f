//! One step while it is planned: the image with its changes, free space, and how it is to be written.

use std::sync::Arc;

use extant_base::{FsBlock, Ino};
use extant_block::{BlockDevice, SharedDevice};
use extant_change::{ChangeError, Draft, Image, Step};
use extant_format::extent::{Extent, empty_root};
use extant_format::features::Feature;
use extant_format::inode::InodeFlags;
use extant_format::record::{self, Record, put};

use crate::error::{Result, TuneError, refuse};
use crate::request::Request;
use crate::space::{Space, free_inode};

/// Bytes of a step that are copied at once.
const PIECE_BYTES: usize = 256 << 10;

/// A step being planned.
pub(crate) struct Work<'a> {
    /// The image; its draft has what switches over, the device below it what is written first.
    pub(crate) image: Image,
    stage: Arc<Draft>,
    /// The image before this step.
    pub(crate) base: SharedDevice,
    pub(crate) space: Space,
    pub(crate) request: &'a Request,
    /// The feature or setting, for messages.
    pub(crate) what: String,
    pub(crate) may_journal: bool,
    pub(crate) new_first: bool,
    /// The superblock is hidden while the step is done; the copies of before.
    pub(crate) hides: Option<Vec<(u64, Vec<u8>)>>,
    /// Bytes that become zeros before anything else is written.
    pub(crate) zeroes: Vec<std::ops::Range<u64>>,
    /// All of the image is to be checked as it will be.
    pub(crate) to_check: bool,
    /// All of the image is to be checked as it is: the step takes away the checksums by which damage is
    /// known, or makes others for whatever is there.
    pub(crate) to_check_base: bool,
    /// Directories that have to be written anew, which a repair of the draft does.
    pub(crate) full_dirs: Vec<Ino>,
    /// The usage of quota files is to be computed anew.
    pub(crate) recount: bool,
}

impl<'a> Work<'a> {
    pub(crate) fn over(base: SharedDevice, request: &'a Request, what: String) -> Result<Work<'a>> {
        let sb = extant_change::superblock(&*base)?;
        let size = base.size_bytes();
        let stage = Arc::new(Draft::over(Arc::clone(&base), size, sb.block_size.len()));
        let image = Image::open(Arc::clone(&stage) as SharedDevice, 0)?;
        let space = Space::of(&image);
        Ok(Work {
            image,
            stage,
            base,
            space,
            request,
            what,
            may_journal: true,
            new_first: false,
            hides: None,
            zeroes: Vec::new(),
            to_check: false,
            to_check_base: false,
            full_dirs: Vec::new(),
            recount: false,
        })
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.image.has(feature)
    }

    /// The draft as a device: the image as it will be.
    pub(crate) fn view(&self) -> SharedDevice {
        Arc::clone(&self.image.draft) as SharedDevice
    }

    /// Ends the planning: bitmaps, descriptors, superblock.
    pub(crate) fn finish(mut self) -> Result<Planned> {
        let space = std::mem::replace(&mut self.space, Space::of(&self.image));
        space.apply(&mut self.image)?;
        let switch = self.image.draft.take()?;
        let backups = self.image.backups()?;
        // What is written past the draft is written because it changes.
        let quiet = self.stage.take_all();
        let sb = self.image.sb.clone();
        let step = Step {
            quiet,
            switch,
            sb,
            backups,
            may_journal: self.may_journal,
            new_first: self.new_first,
            hides: self.hides,
        };
        Ok(Planned { what: self.what, zeroes: self.zeroes, step })
    }

    /// Marks what was taken, so that the draft is in order before the step ends.
    pub(crate) fn settle_space(&mut self) -> Result {
        let space = std::mem::replace(&mut self.space, Space::of(&self.image));
        space.apply(&mut self.image)
    }

    /// A new record for a file that the file system keeps for itself.
    pub(crate) fn new_record(&self, ino: Ino) -> Result<Record> {
        let mut record = self.image.load_any(ino)?;
        record.clear();
        let now = u32::try_from(self.request.now).unwrap_or(u32::MAX);
        for at in [8, record::CTIME, 0x10] {
            record.put32(at, now);
        }
        if record.bytes.len() > 128 {
            record.put16(record::EXTRA, self.image.sb.new_extra_isize());
        }
        record.put16(record::MODE, 0o100_600);
        record.put16(record::LINKS, 1);
        if self.has(Feature::EXTENTS) {
            record.set_flag(InodeFlags::EXTENTS, true);
            record.set_block_area(&empty_root());
        } else {
            record.set_block_area(&[0; 60]);
        }
        Ok(record)
    }

    /// Stores a new file with these blocks, under an inode that is marked used.
    pub(crate) fn store_file(
        &mut self,
        mut record: Record,
        extents: &[Extent],
        size: u64,
        in_use: bool,
    ) -> Result<Record> {
        let clusters: u64 = extents
            .iter()
            .map(|extent| u64::from(extent.len.0.div_ceil(self.image.sb.cluster_ratio().max(1))))
            .sum();
        let (image, space, what) = (&self.image, &mut self.space, &self.what);
        let nodes = image.build_map(&mut record, extents, || {
            space.take_block(image, what).map_err(|error| match error {
                TuneError::Change(error) => error,
                other => extant_change::ChangeError::damaged(other.to_string()),
            })
        })?;
        record.set_size(size);
        image.set_clusters(&mut record, clusters + nodes.len() as u64);
        image.store(&record)?;
        if !in_use {
            self.image.mark_inode(record.ino, true, false)?;
        }
        Ok(record)
    }

    /// An inode that nothing uses.
    pub(crate) fn free_inode(&self) -> Result<Ino> {
        free_inode(&self.image, &self.what)
    }

    /// Writes the contents of a new file.
    pub(crate) fn write_contents(&self, extents: &[Extent], bytes: &[u8]) -> Result {
        let block = self.image.block_bytes();
        for extent in extents {
            for at in 0..extent.len.0 {
                let from = (extent.file_start.0 + at) as usize * block;
                let mut piece = vec![0; block];
                let to = bytes.len().min(from + block);
                put(&mut piece, 0, bytes.get(from..to).unwrap_or(&[]));
                self.image.write_fresh(extent.device_start.0 + u64::from(at), &piece)?;
            }
        }
        Ok(())
    }

    /// Takes a file away: its blocks, its record, and its inode unless that is reserved.
    pub(crate) fn remove_file(&mut self, ino: Ino) -> Result {
        if ino.0 == 0 {
            return Ok(());
        }
        let mut record = self.image.load(ino)?;
        let map = self.image.read_map(&record)?;
        for extent in &map.extents {
            self.space.free_blocks(&self.image, extent.device_start.0, u64::from(extent.len.0));
        }
        for node in &map.nodes {
            self.space.free_blocks(&self.image, *node, 1);
        }
        let acl = record.file_acl(self.image.is_wide());
        if acl != FsBlock(0) {
            return refuse(&self.what, format!("inode {ino} has attributes"));
        }
        record.clear();
        self.image.store(&record)?;
        if ino.0 >= self.image.sb.first_inode.0 {
            self.image.mark_inode(ino, false, false)?;
        }
        Ok(())
    }
}

/// A step that was planned.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) what: String,
    pub(crate) zeroes: Vec<std::ops::Range<u64>>,
    pub(crate) step: Step,
}

impl Planned {
    /// Makes the step true in a draft, for the planning of the next one.
    pub(crate) fn show_in(&self, base: &dyn BlockDevice) -> Result {
        let size = u64::from(self.step.sb.block_size.bytes());
        for run in &self.zeroes {
            base.write_zeroes(run.start, run.end - run.start)?;
        }
        for blocks in [&self.step.quiet, &self.step.switch] {
            blocks.each(PIECE_BYTES, |start, bytes| {
                base.write_at(start * size, bytes).map_err(ChangeError::Device)
            })?;
        }
        for (offset, bytes) in &self.step.backups {
            if offset + bytes.len() as u64 <= base.size_bytes() {
                base.write_at(*offset, bytes)?;
            }
        }
        Ok(())
    }
}
