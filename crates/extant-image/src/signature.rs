//! Recognises the kind of data in a file or device by its first bytes, so that nothing is
//! overwritten by mistake, and so that errors about a wrong kind of file can name the kind.
//!
//! Only the first 132 KiB and magic numbers are examined; that is enough for error messages, but
//! not for mounting. Sources: the magic numbers in each format's public documentation (Linux
//! `Documentation/filesystems/`, the UEFI and LUKS specifications, RFC 1952 and 8878, PKWARE's
//! APPNOTE, QEMU's `docs/interop`, the VHD and VHDX specifications, `cpio(5)`, `ar(5)`).

use extant_block::{BlockDevice, DeviceError};

use self::Class::{Archive, DiskImage, FileSystem, Other, Packed, PartitionTable, Volume};

/// How many bytes from the start [`recognise`] wants to see.
pub const PROBE_BYTES: usize = 132 * 1024;

/// The kind of data that a file or device seems to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// With its article: "a SquashFS image".
    pub name: &'static str,
    /// Which sort of thing it is.
    pub class: Class,
}

/// Classes of data, by the user's possible reaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// ext2, ext3 or ext4.
    Ext,
    /// The external journal of an ext3 or ext4 file system.
    ExtJournal,
    /// Another file system. How its files are taken out without mounting it, where a program for
    /// that is common: words of a shell command, in which `FILE` and `DIR` stand for names.
    FileSystem(Option<&'static str>),
    /// Something below a file system: an encrypted volume, a part of an array, swap space.
    Volume,
    /// A disk with partitions.
    PartitionTable,
    /// The disk of a virtual machine in a format other than raw: its name for `qemu-img -f`.
    DiskImage(&'static str),
    /// One stream, packed: the words that unpack `FILE` to standard output.
    Packed(&'static str),
    /// Files in a format other than tar: the words that unpack `FILE` into `DIR`.
    Archive(&'static str),
    /// A tar archive, not packed.
    Tar,
    /// Anything else.
    Other,
}

/// `(name, class, offset of the magic number, magic number)`.
const MAGICS: &[(&str, Class, usize, &[u8])] = &[
    ("an XFS file system", FileSystem(None), 0, b"XFSB"),
    ("a Btrfs file system", FileSystem(Some("btrfs restore FILE DIR")), 0x10040, b"_BHRfS_M"),
    ("a SquashFS image", FileSystem(Some("unsquashfs -d DIR FILE")), 0, b"hsqs"),
    (
        "an EROFS image",
        FileSystem(Some("fsck.erofs --extract=DIR FILE")),
        1024,
        &[0xe2, 0xe1, 0xf5, 0xe0],
    ),
    ("an F2FS file system", FileSystem(None), 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an NTFS file system", FileSystem(None), 3, b"NTFS    "),
    ("an exFAT file system", FileSystem(None), 3, b"EXFAT   "),
    ("a BitLocker volume", Volume, 3, b"-FVE-FS-"),
    ("a FAT file system", FileSystem(Some("mcopy -s -i FILE :: DIR")), 0x36, b"FAT1"),
    ("a FAT file system", FileSystem(Some("mcopy -s -i FILE :: DIR")), 0x52, b"FAT32"),
    ("a cramfs image", FileSystem(None), 0, &[0x45, 0x3d, 0xcd, 0x28]),
    ("a romfs image", FileSystem(None), 0, b"-rom1fs-"),
    ("a UBI image", FileSystem(None), 0, b"UBI#"),
    ("a UBIFS image", FileSystem(None), 0, &[0x31, 0x18, 0x10, 0x06]),
    ("an APFS container", FileSystem(None), 32, b"NXSB"),
    ("a GFS2 file system", FileSystem(None), 0x10000, &[0x01, 0x16, 0x19, 0x70]),
    ("swap space", Volume, 4086, b"SWAPSPACE2"),
    ("swap space", Volume, 4086, b"SWAP-SPACE"),
    ("a LUKS volume", Volume, 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", Volume, 512, b"LABELONE"),
    ("an LVM physical volume", Volume, 1024, b"LABELONE"),
    ("an LVM physical volume", Volume, 0, b"LABELONE"),
    ("hashes of dm-verity", Volume, 0, b"verity\0\0"),
    (
        "an ISO 9660 image",
        FileSystem(Some("xorriso -osirrox on -indev FILE -extract / DIR")),
        0x8001,
        b"CD001",
    ),
    ("a UDF volume", FileSystem(None), 0x8001, b"BEA01"),
    ("a JFS file system", FileSystem(None), 0x8000, b"JFS1"),
    ("a ReiserFS file system", FileSystem(None), 0x10034, b"ReIsEr"),
    ("a NILFS file system", FileSystem(None), 1030, &[0x34, 0x34]),
    ("an HFS+ file system", FileSystem(None), 1024, b"H+\x00\x04"),
    ("an HFSX file system", FileSystem(None), 1024, b"HX\x00\x05"),
    ("a bcachefs or bcache device", FileSystem(None), 4120, &[0xc6, 0x85, 0x73, 0xf6]),
    ("a Linux RAID member", Volume, 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a Linux RAID member", Volume, 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a GPT partition table", PartitionTable, 512, b"EFI PART"),
    ("a GPT partition table", PartitionTable, 4096, b"EFI PART"),
    // Version 1 differs from the others in its name only here.
    ("a QCOW image", DiskImage("qcow"), 0, b"QFI\xfb\0\0\0\x01"),
    ("a QCOW2 image", DiskImage("qcow2"), 0, b"QFI\xfb"),
    ("a QED image", DiskImage("qed"), 0, b"QED\0"),
    ("a VMDK image", DiskImage("vmdk"), 0, b"KDMV"),
    ("a VMDK image", DiskImage("vmdk"), 0, b"COWD"),
    ("the description of a VMDK image", DiskImage("vmdk"), 0, b"# Disk DescriptorFile"),
    ("a VHDX image", DiskImage("vhdx"), 0, b"vhdxfile"),
    ("a VHD image", DiskImage("vpc"), 0, b"conectix"),
    ("a VDI image", DiskImage("vdi"), 0x40, &[0x7f, 0x10, 0xda, 0xbe]),
    ("a Parallels disk image", DiskImage("parallels"), 0, b"WithoutFreeSpace"),
    ("a Parallels disk image", DiskImage("parallels"), 0, b"WithouFreSpacExt"),
    ("an Android sparse image", Packed("simg2img FILE /dev/stdout"), 0, &[0x3a, 0xff, 0x26, 0xed]),
    ("a file packed with gzip", Packed("gzip -dc FILE"), 0, &[0x1f, 0x8b]),
    ("a file packed with compress", Packed("gzip -dc FILE"), 0, &[0x1f, 0x9d]),
    ("a file packed with zstd", Packed("zstd -dc FILE"), 0, &[0x28, 0xb5, 0x2f, 0xfd]),
    ("a file packed with xz", Packed("xz -dc FILE"), 0, b"\xfd7zXZ\0"),
    ("a file packed with lzma", Packed("xz -dc FILE"), 0, &[0x5d, 0, 0, 0x80, 0]),
    ("a file packed with bzip2", Packed("bzip2 -dc FILE"), 0, b"BZh"),
    ("a file packed with lz4", Packed("lz4 -dc FILE"), 0, &[0x04, 0x22, 0x4d, 0x18]),
    ("a file packed with lz4", Packed("lz4 -dc FILE"), 0, &[0x02, 0x21, 0x4c, 0x18]),
    ("a file packed with lzip", Packed("lzip -dc FILE"), 0, b"LZIP"),
    (
        "a file packed with lzop",
        Packed("lzop -dc FILE"),
        0,
        &[0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a],
    ),
    ("a zip archive", Archive("unzip -d DIR FILE"), 0, b"PK\x03\x04"),
    ("an empty zip archive", Archive("unzip -d DIR FILE"), 0, b"PK\x05\x06"),
    ("a 7z archive", Archive("7z x -oDIR FILE"), 0, b"7z\xbc\xaf\x27\x1c"),
    ("a RAR archive", Archive("unrar x FILE DIR/"), 0, b"Rar!\x1a\x07"),
    ("a cpio archive", Archive("cpio -idm -D DIR < FILE"), 0, b"070701"),
    ("a cpio archive", Archive("cpio -idm -D DIR < FILE"), 0, b"070702"),
    ("a cpio archive", Archive("cpio -idm -D DIR < FILE"), 0, b"070707"),
    ("a cpio archive", Archive("cpio -idm -D DIR < FILE"), 0, &[0xc7, 0x71]),
    ("a Debian package", Archive("dpkg-deb -x FILE DIR"), 0, b"!<arch>\ndebian-binary"),
    ("an ar archive", Archive("ar x --output DIR FILE"), 0, b"!<arch>\n"),
    ("an RPM package", Archive("rpm2cpio FILE | cpio -idm -D DIR"), 0, &[0xed, 0xab, 0xee, 0xdb]),
    ("a program (ELF)", Other, 0, b"\x7fELF"),
    ("a PDF document", Other, 0, b"%PDF-"),
];

/// Names what the first bytes of a file or device look like; `None` for nothing that is known.
///
/// `head` is what could be read of the first [`PROBE_BYTES`]; less is fine.
pub fn recognise(head: &[u8]) -> Option<Found> {
    if is_tar(head) {
        return Some(Found { name: "a tar archive", class: Class::Tar });
    }
    if let Some(ext) = recognise_ext(head) {
        return Some(ext);
    }
    let found = MAGICS.iter().find(|(_, _, at, magic)| {
        head.get(*at..at.saturating_add(magic.len())).is_some_and(|bytes| bytes == *magic)
    });
    let found = found.map(|(name, class, _, _)| Found { name, class: *class });
    found.or_else(|| recognise_mbr(head))
}

/// Names what a device, or a window on a part of one, looks like; `None` for nothing that is known.
///
/// # Errors
///
/// [`DeviceError`] when its first [`PROBE_BYTES`] cannot be read.
pub fn recognise_device(device: &dyn BlockDevice) -> Result<Option<Found>, DeviceError> {
    let mut head = vec![0; PROBE_BYTES];
    let there = usize::try_from(device.size_bytes()).unwrap_or(PROBE_BYTES).min(PROBE_BYTES);
    head.truncate(there);
    device.read_at(0, &mut head)?;
    Ok(recognise(&head))
}

/// Returns whether the first block is a header of a tar archive: its sum is right. Archives older
/// than POSIX have no magic number.
fn is_tar(head: &[u8]) -> bool {
    let Some(block) = head.get(..512) else { return false };
    let sum: u32 = (block.iter().enumerate())
        .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
        .sum();
    let field = block.get(148..156).unwrap_or_default();
    let digits = field.iter().skip_while(|byte| **byte == b' ').take_while(|b| b.is_ascii_digit());
    let stored = digits.fold(None, |value: Option<u32>, digit| {
        value.unwrap_or(0).checked_mul(8)?.checked_add(u32::from(digit - b'0'))
    });
    // A block with a name; the sum alone would let eight blanks and a zero pass.
    block.first().is_some_and(|byte| *byte != 0) && stored == Some(sum)
}

/// ext2, ext3, ext4 or an external journal, by the magic number and two feature bits.
fn recognise_ext(head: &[u8]) -> Option<Found> {
    if head.get(1080..1082)? != [0x53, 0xef] {
        return None;
    }
    let word =
        |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let compat = word(1024 + 0x5c)?;
    let incompat = word(1024 + 0x60)?;
    let (name, class) = if incompat & 0x8 != 0 {
        ("an ext4 journal device", Class::ExtJournal)
    } else if incompat & 0x2c0 != 0 {
        ("an ext4 file system", Class::Ext)
    } else if compat & 0x4 != 0 {
        ("an ext3 file system", Class::Ext)
    } else {
        ("an ext2 file system", Class::Ext)
    };
    Some(Found { name, class })
}

/// Recognises a partition table of the PC kind: the boot signature and at least one valid entry,
/// which distinguishes it from a boot sector without partitions.
fn recognise_mbr(head: &[u8]) -> Option<Found> {
    if head.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let sane = head.get(446..510)?.chunks(16).any(|entry| {
        matches!(entry[0], 0 | 0x80) && entry[4] != 0 && entry[12..16].iter().any(|&b| b != 0)
    });
    sane.then_some(Found { name: "an MBR partition table", class: PartitionTable })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(head: &[u8]) -> Option<&'static str> {
        recognise(head).map(|found| found.name)
    }

    #[test]
    fn every_magic_number_is_found_where_it_belongs_and_nowhere_else() {
        assert_eq!(recognise(&[]), None);
        assert_eq!(recognise(&vec![0; PROBE_BYTES]), None);
        for (name, class, at, magic) in MAGICS {
            let mut head = vec![0; PROBE_BYTES];
            head[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(recognise(&head).map(|found| found.class), Some(*class), "{name}");
            assert_eq!(super::tests::name(&head), Some(*name));
            // Cut short inside the magic number: another name, or none, and no panic.
            assert_ne!(super::tests::name(&head[..at + magic.len() - 1]), Some(*name), "{name}");
        }
    }

    #[test]
    fn ext_generations_are_told_apart() {
        let ext = |compat: u8, incompat: u8| {
            let mut head = vec![0; 4096];
            head[1080..1082].copy_from_slice(&[0x53, 0xef]);
            head[1024 + 0x5c] = compat;
            head[1024 + 0x60] = incompat;
            name(&head)
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
        assert_eq!(name(&head), Some("an MBR partition table"));
    }

    #[test]
    fn a_tar_archive_is_told_by_the_sum_of_its_header() {
        let mut block = vec![0; 1024];
        block[..4].copy_from_slice(b"name");
        assert_eq!(recognise(&block), None);
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(recognise(&block).map(|found| found.class), Some(Class::Tar));
        // What its first file holds at the place of a superblock does not matter.
        block.resize(4096, 0);
        block[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(name(&block), Some("a tar archive"));
        block[0] ^= 1;
        assert_ne!(name(&block), Some("a tar archive"));
    }
}
