//! The two checksums of ext4: crc32c (`metadata_csum`) and crc16 (`uninit_bg`).
//!
//! # Shape
//!
//! ext4 uses both *raw*: a running value goes in, a running value comes out, and nothing is
//! inverted at the end. The usual catalogue value of a whole message is `!crc32c(!0, bytes)`.
//! Because of that, checksums chain: `crc32c(crc32c(s, a), b) == crc32c(s, ab)`, and a seed is
//! simply the checksum of what comes "before" the record:
//!
//! ```text
//! fs seed     = s_checksum_seed (feature metadata_csum_seed), else crc32c(!0, s_uuid)
//! inode seed  = crc32c(crc32c(fs seed, inode number as le32), i_generation as le32)
//! ```
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/checksums.rst`, "Checksums", for what each structure
//! covers; `group_descr.rst` for the crc16 of descriptors.

use extant_base::Ino;

/// The value a chain starts from when nothing comes before: all ones.
pub const CRC32C_INIT: u32 = !0;

/// The value a crc16 chain starts from: all ones.
pub const CRC16_INIT: u16 = !0;

/// crc32c (Castagnoli) of `bytes`, continuing from `seed`, without final inversion.
///
/// ```
/// use extant_format::checksum::{CRC32C_INIT, crc32c};
/// // The catalogue's check value, inverted once more because ext4 does not invert.
/// assert_eq!(!crc32c(CRC32C_INIT, b"123456789"), 0xe306_9283);
/// assert_eq!(crc32c(crc32c(7, b"1234"), b"56789"), crc32c(7, b"123456789"));
/// ```
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    backend::crc32c(seed, bytes)
}

/// crc32c of a little-endian 32-bit number, continuing from `seed`.
#[must_use]
pub fn crc32c_u32(seed: u32, value: u32) -> u32 {
    crc32c(seed, &value.to_le_bytes())
}

/// crc32c of `zeros` zero bytes, continuing from `seed`: what a checksum field counts as while its
/// own checksum is computed.
#[must_use]
pub fn crc32c_zeros(seed: u32, zeros: usize) -> u32 {
    const ZEROS: [u8; 64] = [0; 64];
    let mut crc = seed;
    let mut left = zeros;
    while left > 0 {
        let now = left.min(ZEROS.len());
        crc = crc32c(crc, ZEROS.get(..now).unwrap_or(&ZEROS));
        left = left.saturating_sub(now);
    }
    crc
}

/// The seed of a file system without `metadata_csum_seed`: crc32c of its UUID.
#[must_use]
pub fn fs_seed_from_uuid(uuid: &[u8; 16]) -> u32 {
    crc32c(CRC32C_INIT, uuid)
}

/// The seed of everything that belongs to one inode: the inode itself, its directory blocks, its
/// extent blocks.
///
/// `generation` is `i_generation`.
#[must_use]
pub fn inode_seed(fs_seed: u32, ino: Ino, generation: u32) -> u32 {
    let both = u64::from(ino.0) | (u64::from(generation) << 32);
    crc32c(fs_seed, &both.to_le_bytes())
}

/// crc16 (polynomial 0x8005, reflected: "ARC") of `bytes`, continuing from `seed`.
///
/// ```
/// use extant_format::checksum::crc16;
/// assert_eq!(crc16(0, b"123456789"), 0xbb3d); // CRC-16/ARC check value
/// assert_eq!(crc16(!0, b"123456789"), 0x4b37); // CRC-16/MODBUS: what ext4 starts from
/// ```
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    const TABLE: crc::Crc<u16> = crc::Crc::<u16>::new(&crc::CRC_16_ARC);
    // The crate takes the start value in the unreflected order of the catalogue.
    let mut digest = TABLE.digest_with_initial(seed.reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

#[cfg(feature = "std")]
mod backend {
    use crc_fast::{CrcAlgorithm, Digest};

    /// With the instructions this processor has.
    pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
        digest.update(bytes);
        // The state is a 32-bit value in a u64; the mask states it, the conversion cannot fail.
        u32::try_from(digest.get_state() & u64::from(u32::MAX)).unwrap_or(0)
    }
}

#[cfg(not(feature = "std"))]
mod backend {
    /// From the table.
    pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
        super::table::crc32c(seed, bytes)
    }
}

#[cfg(any(test, not(feature = "std")))]
mod table {
    use crc::{Algorithm, CRC_32_ISCSI, Crc};

    /// Castagnoli without the final inversion.
    const RAW: Algorithm<u32> = Algorithm { xorout: 0, ..CRC_32_ISCSI };

    pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
        const TABLE: Crc<u32> = Crc::<u32>::new(&RAW);
        let mut digest = TABLE.digest_with_initial(seed.reverse_bits());
        digest.update(bytes);
        digest.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::Prng;
    use std::vec;

    /// One bit at a time, straight from the definition.
    fn bitwise32(mut crc: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        crc
    }

    fn bitwise16(mut crc: u16, bytes: &[u8]) -> u16 {
        for byte in bytes {
            crc ^= u16::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0xa001 } else { crc >> 1 };
            }
        }
        crc
    }

    #[test]
    fn every_length_and_many_seeds_agree_with_the_definition() {
        let mut random = Prng::new(1);
        let mut bytes = vec![0u8; 4200];
        random.fill(&mut bytes);
        for len in (0..600).chain(4080..4200) {
            let seed = random.next_u64() as u32;
            let start = random.below(64) as usize;
            let part = &bytes[start.min(4200 - len)..][..len];
            assert_eq!(crc32c(seed, part), bitwise32(seed, part), "crc32c of {len} bytes");
            assert_eq!(table::crc32c(seed, part), bitwise32(seed, part), "table, {len} bytes");
            assert_eq!(crc16(seed as u16, part), bitwise16(seed as u16, part), "crc16 of {len}");
        }
    }

    #[test]
    fn zeros_are_bytes_too() {
        for len in [0usize, 1, 2, 4, 63, 64, 65, 1000] {
            assert_eq!(crc32c_zeros(99, len), bitwise32(99, &vec![0; len]), "{len} zeros");
        }
    }

    #[test]
    fn seeds_chain_over_little_endian_numbers() {
        let fs = fs_seed_from_uuid(&[0x5a; 16]);
        assert_eq!(fs, bitwise32(!0, &[0x5a; 16]));
        let all: [u8; 8] = [0x0b, 0, 0, 0, 0x78, 0x56, 0x34, 0x12];
        assert_eq!(inode_seed(fs, Ino(11), 0x1234_5678), bitwise32(fs, &all));
    }
}
