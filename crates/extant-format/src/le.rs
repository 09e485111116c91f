//! Little-endian numbers in slices, and the number conversions that cannot lose anything.
//!
//! For records of variable length, where a `zerocopy` struct would only cover the head.

/// Every target of this crate has at least 32-bit addresses.
const _: () = assert!(usize::BITS >= 32);

/// A 32-bit number as a slice index.
#[expect(clippy::as_conversions, reason = "usize has at least 32 bits, asserted above")]
pub(crate) const fn index(value: u32) -> usize {
    value as usize
}

/// A length inside one block (at most 64 KiB) or one list as `u32`; saturates above 2^32 - 1.
pub(crate) fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The 16-bit number at byte `at`; `None` past the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_le_bytes(*field))
}

/// The 32-bit number at byte `at`; `None` past the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*field))
}

/// Copies `value` to byte `at`; `None`, and nothing written, when it would not fit.
#[must_use]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    let end = at.checked_add(value.len())?;
    bytes.get_mut(at..end)?.copy_from_slice(value);
    Some(())
}
