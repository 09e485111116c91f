//! What is asked for, what it comes to, and the steps of it.

use std::sync::Arc;

use extant_block::SharedDevice;
use extant_change::{Committer, Image, Seen, Tell, is_unsettled, settle, settled_view, superblock};
use extant_format::superblock::Superblock;
use extant_layout::{Shape, blocks_max};
use extant_sync::Clock;

use crate::error::{Obstacle, ResizeError, Result};
use crate::grow::{self, bytes_of};
use crate::shrink::{self, Moves, Survey};

/// The size asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// So many bytes, or the next smaller size that a file system can have.
    Bytes(u64),
    /// As little as what is in use allows.
    Min,
    /// As much as there is room for.
    Max,
}

/// Numbers that a size comes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Sizes {
    /// Size of the file system in bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Groups.
    pub groups: u32,
    /// Inodes.
    pub inodes: u32,
}

impl Sizes {
    fn of(sb: &Superblock) -> Sizes {
        Sizes {
            bytes: bytes_of(sb.block_size, sb.blocks_count),
            blocks: sb.blocks_count,
            groups: sb.group_count,
            inodes: sb.inodes_count,
        }
    }
}

/// What a change of size comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The sizes before.
    pub before: Sizes,
    /// The sizes afterwards.
    pub after: Sizes,
    /// Blocks reserved for descriptors that are used up.
    pub reserved_used: u32,
    /// The reserve is not enough: descriptors are spread over the groups from now on (`meta_bg`).
    pub turns_meta_bg: bool,
    /// Files of which blocks move.
    pub moved_files: u64,
    /// Blocks of files that move.
    pub moved_blocks: u64,
    /// Inodes that get other numbers.
    pub moved_inodes: u64,
    /// The steps go through the journal of the image, so that each is done or not at all.
    pub journaled: bool,
}

impl Plan {
    /// Returns whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.before.blocks == self.after.blocks
    }
}

/// Returns the size of the file system on `device`.
///
/// # Errors
///
/// [`ResizeError`], also for a file system that cannot be resized.
pub fn sizes(device: &SharedDevice) -> std::result::Result<Sizes, ResizeError> {
    let view = settled_view(device)?;
    Ok(Sizes::of(&superblock(&*view)?))
}

/// The number of blocks that `goal` asks for. `room`: how many bytes the device has or can get.
fn wanted(sb: &Superblock, goal: Goal, room: u64) -> Result<u64> {
    let most = room / u64::from(sb.block_size.bytes());
    match goal {
        Goal::Bytes(bytes) => {
            let blocks = bytes / u64::from(sb.block_size.bytes());
            if blocks > most {
                return Err(ResizeError::TooLarge {
                    why: format!("the device has only {room} bytes"),
                    largest: grow::shape(sb, most.max(sb.blocks_count))
                        .map_or(0, |shape| bytes_of(sb.block_size, shape.sb.blocks_count)),
                });
            }
            Ok(blocks)
        }
        Goal::Min => Ok(0),
        Goal::Max => Ok(most.min(blocks_max(sb))),
    }
}

/// Says what a change of size comes to. Nothing is written. `room`: how many bytes the device has, or
/// can get.
///
/// # Errors
///
/// [`ResizeError`], with the size that can be reached.
pub fn plan(
    device: &SharedDevice,
    goal: Goal,
    room: u64,
) -> std::result::Result<Plan, ResizeError> {
    let view = settled_view(device)?;
    let image = Image::open(view, room)?;
    let committer = Committer::of(&image)?;
    let decision = decide(&image, &committer, goal, room)?;
    Ok(decision.plan(&image, &committer))
}

/// The shape that a goal comes to, and how it is reached.
struct Decision {
    shape: Shape,
    /// What is known of a file system that becomes smaller, and what has to be moved.
    moves: Option<(Survey, Moves)>,
}

impl Decision {
    fn plan(&self, image: &Image, committer: &Committer) -> Plan {
        let (sb, new) = (&image.sb, &self.shape.sb);
        let moves = self.moves.as_ref().map(|(_, moves)| moves);
        Plan {
            block_bytes: sb.block_size.bytes(),
            before: Sizes::of(sb),
            after: Sizes::of(new),
            reserved_used: u32::from(sb.reserved_gdt_blocks)
                .saturating_sub(u32::from(new.reserved_gdt_blocks)),
            turns_meta_bg: self.shape.turns_meta_bg,
            moved_files: moves.map_or(0, |moves| moves.files),
            moved_blocks: moves.map_or(0, |moves| moves.blocks(sb)),
            moved_inodes: moves.map_or(0, Moves::inodes),
            journaled: committer.is_journaled(),
        }
    }
}

fn decide(image: &Image, committer: &Committer, goal: Goal, room: u64) -> Result<Decision> {
    let sb = &image.sb;
    let survey_of = || Survey::of(image, committer.limit()?);
    let survey = match goal {
        Goal::Min => Some(survey_of()?),
        _ => None,
    };
    let blocks = match &survey {
        Some(survey) => survey.smallest(image)?.0,
        None => wanted(sb, goal, room)?,
    };
    if blocks >= sb.blocks_count {
        let mut shape = grow::shape(sb, blocks)?;
        if shape.sb.blocks_count <= sb.blocks_count {
            // What is more is too little for another group.
            shape = Shape { sb: sb.clone(), turns_meta_bg: false };
        }
        return Ok(Decision { shape, moves: None });
    }
    let survey = survey.map_or_else(survey_of, Ok)?;
    let shape = Shape::rounded(sb, blocks);
    let found = match shape.sb.group_count {
        0 => Err(Obstacle("there is no group left".to_owned())),
        _ => survey.moves(image, &shape)?,
    };
    match found {
        Ok(moves) => Ok(Decision { shape, moves: Some((survey, moves)) }),
        Err(Obstacle(why)) => {
            let smallest = bytes_of(sb.block_size, survey.smallest(image)?.0);
            Err(ResizeError::TooSmall { why, smallest })
        }
    }
}

/// Gives the file system on `device` another size. The device must be as large as the larger of both.
///
/// With multi-mount protection, nobody has it meanwhile: this waits by the clock's [`sleep`](Clock::sleep) for
/// others to show themselves, once before the first write (11 s as a rule), once more where the block says
/// that a mount has it, and as a mount does before a journal is replayed; 6 minutes each at most. `tell` is
/// told before each wait, with the number of seconds.
///
/// # Errors
///
/// [`ResizeError`]. If the device failed, recovery of the journal or a check leads to the old size or
/// to the new one.
pub fn resize(
    device: &SharedDevice,
    goal: Goal,
    clock: &Arc<dyn Clock>,
    tell: &mut Tell<'_>,
) -> std::result::Result<Plan, ResizeError> {
    let room = device.size_bytes();
    if is_unsettled(&superblock(&**device)?) {
        // What cannot be done is known before anything is written.
        plan(device, goal, room)?;
        settle(device, clock, tell)?;
    }
    let seen = Seen::look(&**device, &superblock(&**device)?, &**clock, tell)?;
    let mut image = Image::open(Arc::clone(device), room)?;
    let mut committer = Committer::of(&image)?;
    let decision = decide(&image, &committer, goal, room)?;
    let done = decision.plan(&image, &committer);
    if done.is_empty() {
        return Ok(done);
    }
    let guard = seen.claim(device, false, &**clock, tell)?;
    let changed = change(device, &mut image, &mut committer, &decision);
    // Whatever became of it: nothing more is written.
    let ended = guard.end();
    changed?;
    ended?;
    Ok(done)
}

fn change(
    device: &SharedDevice,
    image: &mut Image,
    committer: &mut Committer,
    decision: &Decision,
) -> Result {
    match &decision.moves {
        None => {
            let grown = grow::grow(image, &decision.shape)?;
            for run in grown.zeroes {
                device.write_zeroes(run.start, run.end - run.start)?;
            }
        }
        Some((survey, moves)) => {
            let end = decision.shape.sb.blocks_count;
            shrink::evacuate(image, committer, survey, moves, end)?;
            shrink::renumber(image, committer, survey, moves)?;
            shrink::cut(image, &decision.shape)?;
        }
    }
    Ok(committer.commit(image)?)
}
