//! Recognises what is already on a device or in a file, so that it is not overwritten by mistake.
//!
//! Looks only at the first 132 KiB and at magic numbers; that is enough for "is this somebody's
//! data?", and is not a probe to mount by. Sources: the magic numbers in each format's public
//! documentation (Linux `Documentation/filesystems/`, the UEFI and LUKS specifications).

/// How many bytes from the start [`recognise`] wants to see.
pub(crate) const PROBE_BYTES: usize = 132 * 1024;

/// `(name, offset of the magic number, magic number)`.
const MAGICS: &[(&str, usize, &[u8])] = &[
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    ("a SquashFS image", 0, b"hsqs"),
    ("an EROFS image", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x36, b"FAT1"),
    ("a FAT file system", 0x52, b"FAT32"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an ISO 9660 image", 0x8001, b"CD001"),
    ("a UDF volume", 0x8001, b"BEA01"),
    ("a JFS file system", 0x8000, b"JFS1"),
    ("a ReiserFS file system", 0x10034, b"ReIsEr"),
    ("a NILFS file system", 1030, &[0x34, 0x34]),
    ("an HFS+ file system", 1024, b"H+\x00\x04"),
    ("an HFSX file system", 1024, b"HX\x00\x05"),
    ("a bcachefs or bcache device", 4120, &[0xc6, 0x85, 0x73, 0xf6]),
    ("a Linux RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a Linux RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("a QCOW image", 0, b"QFI\xfb"),
    ("a VMDK image", 0, b"KDMV"),
    ("a VHDX image", 0, b"vhdxfile"),
];

/// Names what the first bytes of a device look like; `None` for nothing that is known.
///
/// `head` is what could be read of the first [`PROBE_BYTES`]; less is fine.
pub(crate) fn recognise(head: &[u8]) -> Option<&'static str> {
    if let Some(ext) = recognise_ext(head) {
        return Some(ext);
    }
    let found = MAGICS.iter().find(|(_, at, magic)| {
        head.get(*at..at.saturating_add(magic.len())).is_some_and(|bytes| bytes == *magic)
    });
    found.map(|(name, _, _)| *name).or_else(|| recognise_mbr(head))
}

/// ext2, ext3, ext4 or an external journal, by the magic number and two feature bits.
fn recognise_ext(head: &[u8]) -> Option<&'static str> {
    if head.get(1080..1082)? != [0x53, 0xef] {
        return None;
    }
    let word =
        |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let compat = word(1024 + 0x5c)?;
    let incompat = word(1024 + 0x60)?;
    Some(if incompat & 0x8 != 0 {
        "an ext4 journal device"
    } else if incompat & 0x2c0 != 0 {
        "an ext4 file system"
    } else if compat & 0x4 != 0 {
        "an ext3 file system"
    } else {
        "an ext2 file system"
    })
}

/// A partition table of the PC kind: the boot signature and at least one sane entry, which tells
/// it from a boot sector without partitions.
fn recognise_mbr(head: &[u8]) -> Option<&'static str> {
    if head.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let sane = head.get(446..510)?.chunks(16).any(|entry| {
        matches!(entry[0], 0 | 0x80) && entry[4] != 0 && entry[12..16].iter().any(|&b| b != 0)
    });
    sane.then_some("an MBR partition table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_number_is_found_where_it_belongs_and_nowhere_else() {
        assert_eq!(recognise(&[]), None);
        assert_eq!(recognise(&vec![0; PROBE_BYTES]), None);
        for (name, at, magic) in MAGICS {
            let mut head = vec![0; PROBE_BYTES];
            head[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(recognise(&head), Some(*name));
            // Cut short inside the magic number: nothing to see, and no panic.
            assert_eq!(recognise(&head[..at + magic.len() - 1]), None, "{name}");
        }
    }

    #[test]
    fn ext_generations_are_told_apart() {
        let ext = |compat: u8, incompat: u8| {
            let mut head = vec![0; 4096];
            head[1080..1082].copy_from_slice(&[0x53, 0xef]);
            head[1024 + 0x5c] = compat;
            head[1024 + 0x60] = incompat;
            recognise(&head)
        };
        assert_eq!(ext(0, 0x02), Some("an ext2 file system"));
        assert_eq!(ext(4, 0x02), Some("an ext3 file system"));
        assert_eq!(ext(4, 0x42), Some("an ext4 file system"));
        assert_eq!(ext(0, 0x08), Some("an ext4 journal device"));
    }

    #[test]
    fn a_boot_sector_without_partitions_is_not_a_table() {
        let mut head = vec![0; 4096];
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(recognise(&head), None);
        head[446 + 4] = 0x83;
        head[446 + 12] = 1;
        assert_eq!(recognise(&head), Some("an MBR partition table"));
    }
}
