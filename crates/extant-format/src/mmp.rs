//! The multi-mount protection block: who has the file system mounted, and since when.
//!
//! # Shape
//!
//! One block, of which the first 1024 bytes count. Whoever mounts writes a new sequence number
//! every few seconds; whoever wants to mount waits and looks whether it changes.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/mmp.rst`, table `struct mmp_struct`.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::error::{ChecksumError, LengthError};
use crate::superblock::until_zero;

/// `mmp_magic`: "PMM".
pub const MMP_MAGIC: u32 = 0x004d_4d50;
/// Bytes of the record.
pub const MMP_BYTES: usize = 1024;
/// Largest sequence number of a mounted file system.
pub const SEQUENCE_MAX: u32 = 0xe24d_4d4f;
const SEQUENCE_FSCK: u32 = 0xe24d_4d50;
const SEQUENCE_CLEAN: u32 = 0xff4d_4d50;

/// The record as stored: 1024 bytes, little-endian.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x000` | 4 | `mmp_magic` | 0x004d4d50 |
/// | `0x004` | 4 | `mmp_seq` | [`MmpState`] |
/// | `0x008` | 8 | `mmp_time` | last update, seconds since 1970; advice |
/// | `0x010` | 64 | `mmp_nodename` | host of the last update; advice |
/// | `0x050` | 32 | `mmp_bdevname` | device of the last update; advice |
/// | `0x070` | 2 | `mmp_check_interval` | seconds to wait for a change |
/// | `0x072` | 2 | `mmp_pad1` | zero |
/// | `0x074` | 904 | `mmp_pad2` | zero |
/// | `0x3fc` | 4 | `mmp_checksum` | crc32c of all the above |
///
/// Source: Linux `Documentation/filesystems/ext4/mmp.rst`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, PartialEq, Eq, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the table above describes the fields")]
pub struct RawMmp {
    pub mmp_magic: U32,
    pub mmp_seq: U32,
    pub mmp_time: U64,
    pub mmp_nodename: [u8; 64],
    pub mmp_bdevname: [u8; 32],
    pub mmp_check_interval: U16,
    pub mmp_pad1: U16,
    pub mmp_pad2: [U32; 226],
    pub mmp_checksum: U32,
}

const _: () = assert!(size_of::<RawMmp>() == MMP_BYTES);
const _: () = assert!(offset_of!(RawMmp, mmp_check_interval) == 0x70);
const _: () = assert!(offset_of!(RawMmp, mmp_checksum) == 0x3fc);

/// The state that the sequence number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MmpState {
    /// Unmounted cleanly.
    Clean,
    /// e2fsck is at work, or was killed.
    Fsck,
    /// Mounted, or not unmounted cleanly; up to [`SEQUENCE_MAX`].
    Active(u32),
    /// A number above [`SEQUENCE_MAX`] that means nothing: never safe.
    Unsafe(u32),
}

impl MmpState {
    /// From `mmp_seq`.
    pub fn from_raw(raw: u32) -> MmpState {
        match raw {
            SEQUENCE_CLEAN => MmpState::Clean,
            SEQUENCE_FSCK => MmpState::Fsck,
            0..=SEQUENCE_MAX => MmpState::Active(raw),
            _ => MmpState::Unsafe(raw),
        }
    }

    /// To `mmp_seq`.
    pub fn to_raw(self) -> u32 {
        match self {
            MmpState::Clean => SEQUENCE_CLEAN,
            MmpState::Fsck => SEQUENCE_FSCK,
            MmpState::Active(raw) | MmpState::Unsafe(raw) => raw,
        }
    }
}

/// The reason why a block is not a multi-mount block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MmpError {
    /// Fewer than 1024 bytes.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// Another magic.
    #[error("multi-mount block: magic is {found:#010x}, not 0x004d4d50")]
    Magic {
        /// The value found.
        found: u32,
    },
    /// The checksum does not match.
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
}

/// The multi-mount block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mmp {
    /// Clean, active, or not safe.
    pub state: MmpState,
    /// Last update, seconds since 1970.
    pub time: u64,
    /// Host of the last update, padded with zeroes.
    pub node_name: [u8; 64],
    /// Device of the last update, padded with zeroes.
    pub device_name: [u8; 32],
    /// Seconds to wait for a change of the sequence number before mounting.
    pub check_interval: u16,
    /// Every stored byte, for the padding.
    pub raw: RawMmp,
}

impl Mmp {
    /// A block of a file system that is not mounted, all advice empty.
    pub fn clean(check_interval: u16) -> Mmp {
        Mmp {
            state: MmpState::Clean,
            time: 0,
            node_name: [0; 64],
            device_name: [0; 32],
            check_interval,
            raw: RawMmp {
                mmp_magic: U32::new(MMP_MAGIC),
                mmp_seq: U32::new(SEQUENCE_CLEAN),
                mmp_time: U64::ZERO,
                mmp_nodename: [0; 64],
                mmp_bdevname: [0; 32],
                mmp_check_interval: U16::new(check_interval),
                mmp_pad1: U16::ZERO,
                mmp_pad2: [U32::ZERO; 226],
                mmp_checksum: U32::ZERO,
            },
        }
    }

    /// Decodes the first 1024 bytes; `seed` is the file system's, `None` without `metadata_csum`.
    ///
    /// # Errors
    ///
    /// [`MmpError`], checksum last.
    pub fn decode(seed: Option<u32>, bytes: &[u8]) -> Result<Mmp, MmpError> {
        let bytes = LengthError::prefix("multi-mount block", bytes, MMP_BYTES)?;
        let raw = RawMmp::read_from_bytes(bytes).map_err(|_| LengthError {
            structure: "multi-mount block",
            wanted: MMP_BYTES,
            found: bytes.len(),
        })?;
        let found = raw.mmp_magic.get();
        if found != MMP_MAGIC {
            return Err(MmpError::Magic { found });
        }
        if let Some(seed) = seed {
            let stored = raw.mmp_checksum.get();
            ChecksumError::check("multi-mount block", stored, raw.checksum(seed))?;
        }
        Ok(Mmp {
            state: MmpState::from_raw(raw.mmp_seq.get()),
            time: raw.mmp_time.get(),
            node_name: raw.mmp_nodename,
            device_name: raw.mmp_bdevname,
            check_interval: raw.mmp_check_interval.get(),
            raw,
        })
    }

    /// The 1024 bytes to store at the start of the block.
    pub fn encode(&self, seed: Option<u32>) -> [u8; MMP_BYTES] {
        let mut raw = self.raw.clone();
        raw.mmp_magic = U32::new(MMP_MAGIC);
        raw.mmp_seq = U32::new(self.state.to_raw());
        raw.mmp_time = U64::new(self.time);
        raw.mmp_nodename = self.node_name;
        raw.mmp_bdevname = self.device_name;
        raw.mmp_check_interval = U16::new(self.check_interval);
        if let Some(seed) = seed {
            raw.mmp_checksum = U32::new(raw.checksum(seed));
        }
        let mut bytes = [0; MMP_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The host of the last update, without the padding.
    pub fn node(&self) -> &[u8] {
        until_zero(&self.node_name)
    }

    /// The device of the last update, without the padding.
    pub fn device(&self) -> &[u8] {
        until_zero(&self.device_name)
    }
}

impl RawMmp {
    /// crc32c of everything before the checksum.
    pub fn checksum(&self, seed: u32) -> u32 {
        let covered = self.as_bytes().get(..offset_of!(RawMmp, mmp_checksum)).unwrap_or(&[]);
        crc32c(seed, covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_around_every_limit() {
        for (raw, state) in [
            (0, MmpState::Active(0)),
            (SEQUENCE_MAX, MmpState::Active(SEQUENCE_MAX)),
            (SEQUENCE_MAX + 1, MmpState::Fsck),
            (SEQUENCE_MAX + 2, MmpState::Unsafe(SEQUENCE_MAX + 2)),
            (0xff4d_4d4f, MmpState::Unsafe(0xff4d_4d4f)),
            (0xff4d_4d50, MmpState::Clean),
            (0xff4d_4d51, MmpState::Unsafe(0xff4d_4d51)),
            (u32::MAX, MmpState::Unsafe(u32::MAX)),
        ] {
            assert_eq!(MmpState::from_raw(raw), state);
            assert_eq!(state.to_raw(), raw);
        }
    }

    #[test]
    fn a_changed_block_reads_back_and_any_flip_is_noticed() {
        let mut mmp = Mmp::clean(5);
        mmp.state = MmpState::Active(7);
        mmp.node_name[..4].copy_from_slice(b"host");
        mmp.raw.mmp_pad1 = U16::new(3);
        let mut bytes = mmp.encode(Some(2));
        let back = Mmp::decode(Some(2), &bytes).unwrap();
        assert_eq!((back.state, back.node(), back.check_interval), (mmp.state, &b"host"[..], 5));
        assert_eq!(back.encode(Some(2)), bytes, "padding is kept");
        for bit in 0..8192 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Mmp::decode(Some(2), &bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(Mmp::decode(None, &bytes[..1023]).is_err());
    }
}
