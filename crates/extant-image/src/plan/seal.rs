//! Sealed files (fs-verity): what they need behind their end.

use extant_base::BlockSize;
use extant_verity::{Algorithm, DESCRIPTOR_BYTES, Place, Shape};

use crate::tree::{Kind, Node};

/// Largest blocks that are hashed, as a power of two: the pages of most machines.
const BLOCK_LOG2_MAX: u32 = 12;
/// The hash, without a salt: the digest of a file is the one that `fsverity digest` prints.
pub(crate) const ALGORITHM: Algorithm = Algorithm::Sha256;

/// Tree and descriptor of a sealed file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealPlan {
    pub(crate) shape: Shape,
    pub(crate) place: Place,
    /// First block of the file that they take, and how many.
    pub(crate) blocks: (u64, u64),
}

impl SealPlan {
    /// Returns what a node needs; `None` for one that is not sealed.
    ///
    /// # Errors
    ///
    /// In words: no file can be so long.
    pub(crate) fn of(node: &Node, block_size: BlockSize) -> Result<Option<SealPlan>, String> {
        if !node.sealed || node.kind != Kind::File {
            return Ok(None);
        }
        let log2 = block_size.log2();
        let shape = Shape::new(node.size, log2.min(BLOCK_LOG2_MAX), ALGORITHM);
        let shape = shape.map_err(|fault| fault.to_string())?;
        let place = Place::new(&shape, DESCRIPTOR_BYTES, log2);
        let place = place.ok_or("there is no room for a hash tree behind its end")?;
        let start = place.tree >> log2;
        let blocks = (start, (place.end >> log2) - start);
        Ok(Some(SealPlan { shape, place, blocks }))
    }
}
