//! A mounted file system becomes larger.
//!
//! # Place
//!
//! Below: `txn`, the allocator, the volume's [growing geometry](crate::volume), `extant-layout`,
//! which knows the shape of the larger file system. Above: programs; the caller makes the device
//! larger first ([`BlockDevice::extend`](extant_block::BlockDevice::extend)).
//!
//! # Shape
//!
//! ```text
//! mod       the size asked for; steps
//!   step      one step: new groups are written, then one transaction makes them part
//!   reserve   the resize inode: blocks reserved for descriptors
//!   backups   copies of the superblock and the descriptors
//! ```
//!
//! # Rules
//!
//! - E1. What new groups consist of is durable before a transaction makes anything refer to it.
//! - E2. A step is one transaction: descriptors, the bitmap of the last group, the resize inode, the
//!   superblock. Everything that can fail comes before its first change.
//! - E3. The new size is published while the handle of that transaction is open, under the lock of
//!   the last group. Whoever sees it changes the same transaction or a later one.
//! - E4. A step that fails leaves the mount as it was; earlier steps stay.

mod backups;
mod reserve;
mod step;

use extant_base::GroupIndex;
use extant_block::BlockDevice;
use extant_format::features::Incompat;
use extant_format::superblock::Superblock;
use extant_layout::{Shape, blocks_max};

use self::step::Step;
use crate::error::{FsError, GrowRefused, Result};
use crate::fs::Fs;

/// The size that a mounted file system gets: [`Fs::grow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrowTo {
    /// So many blocks, or the next smaller size that a file system can have.
    Blocks(u64),
    /// So many bytes, or the next smaller size that a file system can have.
    Bytes(u64),
    /// As much as the device has room for.
    DeviceEnd,
}

/// Numbers that a size comes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct GrownSize {
    /// Size of the file system in bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of groups.
    pub groups: u32,
    /// Number of inodes.
    pub inodes: u32,
}

/// What [`Fs::grow`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Grown {
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// The size before.
    pub before: GrownSize,
    /// The size afterwards: the same where what is more was too little for another group.
    pub after: GrownSize,
    /// Number of blocks reserved for descriptors that are used now.
    pub reserved_used: u32,
    /// Whether descriptors are spread over the groups from now on (`meta_bg`), because the reserve
    /// was not enough.
    pub turned_meta_bg: bool,
    /// Number of transactions that it took.
    pub steps: u32,
}

impl GrownSize {
    fn of(superblock: &Superblock) -> GrownSize {
        GrownSize {
            bytes: bytes_of(superblock, superblock.blocks_count),
            blocks: superblock.blocks_count,
            groups: superblock.group_count,
            inodes: superblock.inodes_count,
        }
    }
}

fn bytes_of(superblock: &Superblock, blocks: u64) -> u64 {
    blocks.saturating_mul(u64::from(superblock.block_size.bytes()))
}

/// # Growing
impl Fs {
    /// Makes a mounted file system larger, up to what its device has room for. Reads and changes go
    /// on meanwhile, and the new space can be used when this returns.
    ///
    /// The device is measured again, but not made longer: for an image file call
    /// [`BlockDevice::extend`] on [`device`](Self::device) before. A cut at any moment leaves the
    /// old size, the new one, or for a large growth one in between; with a journal the image is in
    /// order in either case. While the mount is frozen this waits.
    ///
    /// Without a journal a cut may leave an image that needs a check, as with every change.
    ///
    /// # Errors
    ///
    /// [`FsError::CannotGrow`] with the reason, [`FsError::ReadOnly`], damage of the last group or
    /// of the resize inode, [`FsError::DeviceFull`] and device errors. Until a transaction is
    /// written the mount is as it was; an error of the journal ends all changes, as always. What
    /// earlier steps of a large growth added stays.
    ///
    /// # Cost
    ///
    /// Up to two written blocks for each new group and the zeroing of its inode table; a
    /// transaction for each 1024 groups.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use extant::{GrowTo, MountOptions};
    /// use extant_block::BlockDevice;
    ///
    /// let fs = MountOptions::new().read_only(false).open_path("disk.img")?;
    /// fs.device().extend(64 << 30)?;
    /// let grown = fs.grow(GrowTo::DeviceEnd)?;
    /// println!("{} bytes", grown.after.bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow(&self, to: GrowTo) -> Result<Grown> {
        let writer = self.volume().writer()?;
        writer.check_running()?;
        let _turn = writer.begin_growth().ok_or(FsError::CannotGrow(GrowRefused::Busy))?;
        let before = self.superblock().clone();
        let device = self.device().extend(0).map_err(FsError::from)?;
        let blocks = self.blocks_to_reach(to, device)?;
        let mut grown = Grown {
            block_bytes: before.block_size.bytes(),
            before: GrownSize::of(&before),
            ..Grown::default()
        };
        let mut result = Ok(());
        while result.is_ok() && self.superblock().blocks_count < blocks {
            let _inside = writer.enter();
            result = writer.supers().check_writable().and_then(|()| self.take_step(blocks));
            grown.steps += u32::from(result.is_ok());
        }
        if grown.steps > 0 {
            let _inside = writer.enter();
            let stored = self.write_backups(&before);
            result = result.and(stored);
        }
        let after = self.superblock();
        grown.after = GrownSize::of(after);
        grown.turned_meta_bg = after.features.has_incompat(Incompat::META_BG)
            && !before.features.has_incompat(Incompat::META_BG);
        grown.reserved_used = u32::from(before.reserved_gdt_blocks)
            .saturating_sub(u32::from(after.reserved_gdt_blocks));
        result.map(|()| {
            log::info!(
                "{}: has grown from {} to {} blocks",
                self.device().describe(),
                before.blocks_count,
                after.blocks_count
            );
            grown
        })
    }

    /// Says what [`grow`](Self::grow) would do on a device of `device_bytes`, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`FsError::CannotGrow`], [`FsError::ReadOnly`].
    pub fn plan_growth(&self, to: GrowTo, device_bytes: u64) -> Result<Grown> {
        self.volume().writer()?.check_running()?;
        let superblock = self.superblock();
        let blocks = self.blocks_to_reach(to, device_bytes)?;
        let mut shape = Shape::rounded(superblock, blocks);
        if blocks == superblock.blocks_count {
            shape = Shape { sb: superblock.clone(), turns_meta_bg: false };
        }
        Ok(Grown {
            block_bytes: superblock.block_size.bytes(),
            before: GrownSize::of(superblock),
            after: GrownSize::of(&shape.sb),
            reserved_used: u32::from(superblock.reserved_gdt_blocks)
                .saturating_sub(u32::from(shape.sb.reserved_gdt_blocks)),
            turned_meta_bg: shape.turns_meta_bg,
            steps: 0,
        })
    }

    /// Returns the number of blocks that a size comes to, if it can be reached.
    fn blocks_to_reach(&self, to: GrowTo, device: u64) -> Result<u64> {
        let superblock = self.superblock();
        let refuse = |why| Err(FsError::CannotGrow(why));
        let most = device / u64::from(superblock.block_size.bytes());
        let groups_max = u64::from(self.volume().groups_max());
        let numbers = groups_max.saturating_mul(u64::from(superblock.blocks_per_group));
        let numbers = numbers.saturating_add(u64::from(superblock.first_data_block));
        let numbers = numbers.min(blocks_max(superblock));
        let wanted = match to {
            GrowTo::Blocks(blocks) => blocks,
            GrowTo::Bytes(bytes) => bytes / u64::from(superblock.block_size.bytes()),
            GrowTo::DeviceEnd => most.min(numbers).max(superblock.blocks_count),
        };
        let wanted_bytes = bytes_of(superblock, wanted);
        if wanted < superblock.blocks_count {
            let has = bytes_of(superblock, superblock.blocks_count);
            return refuse(GrowRefused::Smaller { wanted: wanted_bytes, has });
        }
        if wanted > numbers {
            let largest = Shape::rounded(superblock, numbers).sb.blocks_count;
            let largest = bytes_of(superblock, largest);
            let lacks_64bit = !superblock.features.has_incompat(Incompat::SIXTY_FOUR_BIT);
            return refuse(GrowRefused::NoNumbers { wanted: wanted_bytes, largest, lacks_64bit });
        }
        if wanted > most {
            return refuse(GrowRefused::PastDevice { wanted: wanted_bytes, device });
        }
        let shape = Shape::rounded(superblock, wanted);
        if shape.sb.blocks_count <= superblock.blocks_count {
            // What is more is too little for another group.
            return Ok(superblock.blocks_count);
        }
        let layout = |what| refuse(GrowRefused::Layout { what });
        if !superblock.blocks_count.is_multiple_of(u64::from(superblock.cluster_ratio().max(1))) {
            return layout("its last cluster is not whole");
        }
        if self.volume().home_group() != GroupIndex(0) {
            return layout("it was mounted by a backup of its superblock");
        }
        Ok(shape.sb.blocks_count)
    }

    fn take_step(&self, blocks: u64) -> Result<()> {
        let step = Step::plan(self, blocks)?;
        if let Err(error) = step.write_new_groups(self) {
            step.forget_new_groups(self);
            return Err(error);
        }
        step.commit(self)
    }
}
