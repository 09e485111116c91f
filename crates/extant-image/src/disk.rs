//! A whole disk around an image: a GUID partition table, and partitions for the root, for its hashes and for what the
//! firmware starts.
//!
//! # Shape
//!
//! ```text
//! 0        protective MBR, table
//! 1 MiB    EFI system partition, if there is one   (`esp`)
//! ...      root: the file system
//! ...      its dm-verity tree, if it is sealed
//! ...      free space
//! end      second copy of the table
//! ```
//!
//! Every partition begins at a multiple of 1 MiB.
//!
//! # Source
//!
//! UEFI Specification 2.10, section 5.3 (`gpt`); the Discoverable Partitions Specification of the UAPI group: types by
//! architecture, flags, and UUIDs that are the two halves of a root hash.

mod esp;
mod fat;
mod gpt;

use std::fmt;

use sha2::{Digest, Sha256};

pub use esp::{EspError, EspPlan, plan_esp, write_esp};
pub use gpt::{Entry, Table};

use crate::verity;

/// Alignment of partitions, in bytes.
pub const ALIGNMENT: u64 = 1 << 20;

/// Architecture of a root file system, which decides the types of its partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Architecture {
    /// In the words of container images: `amd64`.
    pub name: &'static str,
    /// The name of the partition, as systemd gives it: `x86-64`.
    label: &'static str,
    root: uuid::Uuid,
    verity: uuid::Uuid,
}

macro_rules! architectures {
    ($($name:literal $label:literal $root:literal $verity:literal),* $(,)?) => {
        &[$(Architecture {
            name: $name,
            label: $label,
            root: uuid::Uuid::from_u128($root),
            verity: uuid::Uuid::from_u128($verity),
        }),*]
    };
}

/// Architectures with a type of their own, running Linux.
const ARCHITECTURES: &[Architecture] = architectures![
    "amd64" "x86-64" 0x4f68bce3_e8cd_4db1_96e7_fbcaf984b709 0x2c7357ed_ebd2_46d9_aec1_23d437ec2bf5,
    "arm64" "arm64" 0xb921b045_1df0_41c3_af44_4c6f280d3fae 0xdf3300ce_d69f_4c92_978c_9bfb0f38d820,
    "386" "x86" 0x44479540_f297_41b2_9af7_d131d5f0458a 0xd13c5d3b_b5d1_422a_b29f_9454fdc89d76,
    "arm" "arm" 0x69dad710_2ce4_4e3c_b16c_21a1d49abed3 0x7386cdf2_203c_47a9_a498_f2ecce45a2d6,
    "riscv64" "riscv64" 0x72ec70a6_cf74_40e6_bd49_4bda08e8f224 0xb6ed5582_440b_4209_b8da_5ff7c419ea3d,
    "loong64" "loongarch64" 0x77055800_792c_4f94_b39a_98c91b762bb6 0xf3393b22_e9af_4613_a948_9d3bfbd0c535,
    "ppc64le" "ppc64-le" 0xc31c45e6_3f39_412e_80fb_4809c4980599 0x906bd944_4589_4aae_a4e4_dd983917446a,
    "ppc64" "ppc64" 0x912ade1d_a839_4913_8964_a10eee08fbd2 0x9225a9a3_3c19_4d89_b4f6_eeff88f17631,
    "s390x" "s390x" 0x5eead9a9_fe09_4a1e_a1d7_520d00531306 0xb325bfbe_c7be_4ab8_8357_139e652d2f6b,
];

/// The type of an EFI system partition.
const ESP: uuid::Uuid = uuid::Uuid::from_u128(0xc12a7328_f81f_11d2_ba4b_00a0c93ec93b);

/// Flags of the Discoverable Partitions Specification: to be mounted read-only, and to be grown to the partition's size.
const READ_ONLY: u64 = 1 << 60;
const GROW: u64 = 1 << 59;

impl Architecture {
    /// The one that container images call `name`; `None` for one without partition types.
    pub fn find(name: &str) -> Option<Architecture> {
        ARCHITECTURES.iter().find(|known| known.name == name).copied()
    }
}

/// Sizes of the parts of a disk, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// The EFI system partition.
    pub esp: Option<u64>,
    /// The root file system.
    pub root: u64,
    /// Size of the hash tree.
    pub verity: Option<u64>,
}

/// A range of bytes on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

impl Place {
    fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// Places of the parts of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskLayout {
    /// Bytes of the disk.
    pub bytes: u64,
    /// Bytes of a sector: 512 or 4096.
    pub sector: u64,
    /// The EFI system partition.
    pub esp: Option<Place>,
    /// The root file system.
    pub root: Place,
    /// Place of the hash tree.
    pub verity: Option<Place>,
}

/// The parts do not fit on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskTooSmall {
    /// Bytes of the disk that was asked for.
    pub disk_bytes: u64,
    /// Bytes that it has to have.
    pub needed_bytes: u64,
}

impl fmt::Display for DiskTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskTooSmall { disk_bytes, needed_bytes } = self;
        write!(f, "a disk of {disk_bytes} bytes cannot hold partitions that need {needed_bytes}")
    }
}

impl std::error::Error for DiskTooSmall {}

impl DiskLayout {
    /// Places `parts` on a disk of `disk_bytes`, or of as many as they need.
    ///
    /// # Errors
    ///
    /// [`DiskTooSmall`].
    pub fn of(
        parts: &Parts,
        disk_bytes: Option<u64>,
        sector: u64,
    ) -> Result<DiskLayout, DiskTooSmall> {
        let mut at = ALIGNMENT;
        let mut place = |len: u64| {
            let place = Place { offset: at, len: len.next_multiple_of(sector.max(verity::BLOCK)) };
            at = place.end().next_multiple_of(ALIGNMENT);
            place
        };
        let esp = parts.esp.map(&mut place);
        let root = place(parts.root);
        let verity = parts.verity.map(&mut place);
        let last = verity.unwrap_or(root).end();
        let needed = (last + gpt::tail_bytes(sector)).next_multiple_of(ALIGNMENT);
        let bytes = disk_bytes.unwrap_or(needed);
        // A device's size need not be a multiple of more than its sectors.
        if bytes < last + gpt::tail_bytes(sector) {
            return Err(DiskTooSmall { disk_bytes: bytes, needed_bytes: needed });
        }
        Ok(DiskLayout { bytes, sector, esp, root, verity })
    }

    /// Returns the table of this disk. Its UUIDs follow from that of the file system, and for a
    /// sealed root from the root hash: the first half is that of the root partition and the second
    /// that of the hash partition, so that both can be found by the hash.
    pub fn table(
        &self,
        architecture: Architecture,
        fs_uuid: &[u8; 16],
        root_hash: Option<&[u8; 32]>,
    ) -> Table {
        let derived = |what: &str| {
            let hash: [u8; 32] = Sha256::new()
                .chain_update(b"extant disk ")
                .chain_update(what)
                .chain_update(fs_uuid)
                .finalize()
                .into();
            uuid::Builder::from_custom_bytes(half(&hash, 0)).into_uuid()
        };
        let (root_uuid, verity_uuid) = match root_hash {
            Some(hash) => {
                // In the order in which it is written down.
                let part = |at| uuid::Uuid::from_bytes(half(hash, at));
                (part(0), part(1))
            }
            None => (derived("root"), derived("verity")),
        };
        let label = architecture.label;
        let mut entries = Vec::new();
        if let Some(place) = self.esp {
            entries.push(Entry {
                kind: ESP,
                uuid: derived("esp"),
                place,
                flags: 0,
                name: "esp".into(),
            });
        }
        entries.push(Entry {
            kind: architecture.root,
            uuid: root_uuid,
            place: self.root,
            flags: if root_hash.is_some() { READ_ONLY } else { GROW },
            name: format!("root-{label}"),
        });
        if let Some(place) = self.verity {
            entries.push(Entry {
                kind: architecture.verity,
                uuid: verity_uuid,
                place,
                flags: READ_ONLY,
                name: format!("root-{label}-verity"),
            });
        }
        Table { uuid: derived("disk"), bytes: self.bytes, sector: self.sector, entries }
    }
}

/// The first or second half of a hash.
fn half(hash: &[u8; 32], which: usize) -> [u8; 16] {
    let mut out = [0; 16];
    out.copy_from_slice(&hash[which * 16..which * 16 + 16]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn partitions_lie_one_behind_the_other_and_end_before_the_second_table() {
        let parts = Parts { esp: Some(40 * MIB), root: 100 * MIB + 4096, verity: Some(MIB) };
        let layout = DiskLayout::of(&parts, None, 512).unwrap();
        assert_eq!(layout.esp, Some(Place { offset: MIB, len: 40 * MIB }));
        assert_eq!(layout.root, Place { offset: 41 * MIB, len: 100 * MIB + 4096 });
        assert_eq!(layout.verity, Some(Place { offset: 142 * MIB, len: MIB }));
        assert_eq!(layout.bytes, 144 * MIB);
        let small = DiskLayout::of(&parts, Some(143 * MIB), 512).unwrap_err();
        assert_eq!(small.needed_bytes, 144 * MIB);
        let large = DiskLayout::of(&parts, Some(1 << 30), 4096).unwrap();
        assert_eq!((large.bytes, large.root), (1 << 30, layout.root));
    }

    #[test]
    fn a_sealed_root_is_found_by_its_hash() {
        let parts = Parts { esp: None, root: MIB, verity: Some(MIB) };
        let layout = DiskLayout::of(&parts, None, 512).unwrap();
        let mut hash = [0; 32];
        (0..32).for_each(|at| hash[at] = at as u8);
        let amd64 = Architecture::find("amd64").unwrap();
        let table = layout.table(amd64, &[7; 16], Some(&hash));
        let uuids: Vec<String> = table.entries.iter().map(|entry| entry.uuid.to_string()).collect();
        assert_eq!(uuids[0], "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(uuids[1], "10111213-1415-1617-1819-1a1b1c1d1e1f");
        assert_eq!(table, layout.table(amd64, &[7; 16], Some(&hash)));
        assert_ne!(table.uuid, layout.table(amd64, &[8; 16], Some(&hash)).uuid);
    }
}
