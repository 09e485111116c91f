//! Errors that several structures share. Each structure's own faults live in its module.

/// A stored checksum that does not match the bytes it covers.
///
/// Structures with 16-bit checksums widen both values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{structure}: checksum is {stored:#010x}, its bytes give {computed:#010x}")]
pub struct ChecksumError {
    /// What was checked, in plain words: "superblock", "extent block".
    pub structure: &'static str,
    /// The checksum found in the record.
    pub stored: u32,
    /// The checksum its bytes have.
    pub computed: u32,
}

impl ChecksumError {
    /// `Ok` when both values are equal, else the error that shows both.
    pub fn check(structure: &'static str, stored: u32, computed: u32) -> Result<(), ChecksumError> {
        if stored == computed { Ok(()) } else { Err(ChecksumError { structure, stored, computed }) }
    }
}

/// A slice that is too short to hold the structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{structure}: {found} bytes given, {wanted} needed")]
pub struct LengthError {
    /// What was to be decoded or encoded, in plain words.
    pub structure: &'static str,
    /// Bytes needed.
    pub wanted: usize,
    /// Bytes given.
    pub found: usize,
}

impl LengthError {
    /// The first `wanted` bytes of `bytes`, or the error that shows both lengths.
    pub fn prefix<'a>(
        structure: &'static str,
        bytes: &'a [u8],
        wanted: usize,
    ) -> Result<&'a [u8], LengthError> {
        bytes.get(..wanted).ok_or(LengthError { structure, wanted, found: bytes.len() })
    }

    /// The first `wanted` bytes of `bytes` for writing, or the error that shows both lengths.
    pub fn prefix_mut<'a>(
        structure: &'static str,
        bytes: &'a mut [u8],
        wanted: usize,
    ) -> Result<&'a mut [u8], LengthError> {
        let found = bytes.len();
        bytes.get_mut(..wanted).ok_or(LengthError { structure, wanted, found })
    }
}
