//! Partition tables made by sfdisk, and damaged ones.

use std::io::Write as _;
use std::process::{Command, Stdio};

use extant_base::Prng;
use extant_block::partition::{self, Partition, PartitionError, TableKind};
use extant_block::{BlockDevice, FileDevice, MemoryDevice};

const MIB: u64 = 1 << 20;

/// Lets sfdisk write a table to an image of 64 MiB; `None`, with the reason, where there is none.
fn image_from_sfdisk(script: &str) -> Option<MemoryDevice> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(FileDevice::create_new(&path, 64 * MIB).unwrap());
    let child = Command::new("sfdisk")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .arg("--quiet")
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: sfdisk does not start ({error}); Debian package fdisk");
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    Some(MemoryDevice::from_bytes(&std::fs::read(&path).unwrap()).named("disk"))
}

fn ranges(partitions: &[Partition]) -> Vec<(u32, u64, u64)> {
    partitions.iter().map(|p| (p.number, p.offset, p.len)).collect()
}

const GPT: &str = "label: gpt\n\
    1 : start=2048, size=16384, name=\"boot\"\n\
    5 : start=20480, size=40960, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name=\"root\"\n\
    2 : start=65536, size=2048\n";
const GPT_RANGES: [(u32, u64, u64); 3] =
    [(1, MIB, 8 * MIB), (2, 32 * MIB, MIB), (5, 10 * MIB, 20 * MIB)];

/// Three primary partitions, and four logical ones in an extended partition.
const MBR: &str = "label: dos\n\
    1 : start=2048, size=4096, type=83, bootable\n\
    2 : start=8192, size=8192, type=82\n\
    3 : start=16384, size=65536, type=f\n\
    5 : start=18432, size=2048, type=83\n\
    6 : start=22528, size=4096, type=83\n\
    7 : start=30720, size=8192, type=83\n\
    8 : start=40960, size=40960, type=83\n";
const MBR_RANGES: [(u32, u64, u64); 6] = [
    (1, MIB, 2 * MIB),
    (2, 4 * MIB, 4 * MIB),
    (5, 9 * MIB, MIB),
    (6, 11 * MIB, 2 * MIB),
    (7, 15 * MIB, 4 * MIB),
    (8, 20 * MIB, 20 * MIB),
];

#[test]
fn a_gpt_by_sfdisk_reads_as_written_and_so_does_its_second_copy() {
    let Some(disk) = image_from_sfdisk(GPT) else { return };
    let partitions = partition::list(&disk).unwrap();
    assert_eq!(ranges(&partitions), GPT_RANGES);
    assert_eq!((partitions[2].name.as_str(), partitions[2].table), ("root", TableKind::Gpt));
    assert_eq!(partitions[2].type_code, "0fc63daf-8483-4772-8e79-3d69d8477de4");

    // First the entries, then the header, then the protective MBR as well.
    // All bits of a byte are turned: a byte of the disk's random identifier may have any value.
    for damaged in [1024, 512 + 60, 510] {
        let mut byte = [0];
        disk.read_at(damaged, &mut byte).unwrap();
        disk.write_at(damaged, &[!byte[0]]).unwrap();
        assert_eq!(ranges(&partition::list(&disk).unwrap()), GPT_RANGES, "byte {damaged}");
    }
    disk.write_zeroes(63 * MIB, MIB).unwrap();
    let error = partition::list(&disk).unwrap_err();
    assert_eq!(error.to_string(), "disk: no partition table found");
}

/// One that was copied, or was the last sector of a smaller disk: what it says of the disk is not of this one.
#[test]
fn a_gpt_header_that_lies_elsewhere_than_it_says_is_none() {
    let Some(disk) = image_from_sfdisk(GPT) else { return };
    let mut header = [0; 512];
    disk.read_at(512, &mut header).unwrap();
    disk.write_at(64 * MIB - 512, &header).unwrap();
    assert_eq!(ranges(&partition::list(&disk).unwrap()), GPT_RANGES, "the first one is whole");
    disk.write_at(512, &[0; 512]).unwrap();
    let error = partition::list(&disk).unwrap_err();
    assert!(matches!(error, PartitionError::Damaged { .. }), "{error}");
}

#[test]
fn an_mbr_by_sfdisk_reads_as_written_with_logical_partitions() {
    let Some(disk) = image_from_sfdisk(MBR) else { return };
    let partitions = partition::list(&disk).unwrap();
    assert_eq!(ranges(&partitions), MBR_RANGES);
    assert_eq!((partitions[1].type_code.as_str(), partitions[1].table), ("0x82", TableKind::Mbr));
}

/// Writes a boot record: of each entry its status, type, start and length in sectors.
fn write_record(device: &MemoryDevice, sector: u64, entries: &[(u8, u8, u32, u32)]) {
    let mut bytes = [0; 512];
    for (slot, (status, kind, start, sectors)) in bytes[446..].chunks_mut(16).zip(entries) {
        (slot[0], slot[4]) = (*status, *kind);
        slot[8..12].copy_from_slice(&start.to_le_bytes());
        slot[12..16].copy_from_slice(&sectors.to_le_bytes());
    }
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    device.write_at(sector * 512, &bytes).unwrap();
}

/// Needs no sfdisk, which not every machine has.
#[test]
fn an_mbr_has_the_entries_with_a_type_and_a_length_and_those_of_its_chain() {
    let disk = MemoryDevice::new(64 * MIB);
    // The second has no length, the fourth no type.
    let primary =
        [(0x80, 0x83, 2048, 4096), (0, 0x83, 7000, 0), (0, 5, 8192, 40_000), (0, 0, 9, 9)];
    write_record(&disk, 0, &primary);
    // Contents are counted from their own record, the next record from the first of the chain.
    write_record(&disk, 8192, &[(0, 0x83, 2048, 1000), (0, 5, 4096, 8000)]);
    write_record(&disk, 8192 + 4096, &[(0, 0x82, 63, 2000), (0, 5, 20_000, 4000)]);
    write_record(&disk, 8192 + 20_000, &[(0, 0x83, 1, 3000)]);
    let partitions = partition::list(&disk).unwrap();
    let sectors = |start: u64, len: u64| (start * 512, len * 512);
    let wanted = [
        (1, sectors(2048, 4096)),
        (5, sectors(8192 + 2048, 1000)),
        (6, sectors(8192 + 4096 + 63, 2000)),
        (7, sectors(8192 + 20_000 + 1, 3000)),
    ];
    assert_eq!(ranges(&partitions), wanted.map(|(number, (offset, len))| (number, offset, len)));
    assert_eq!(partitions[2].type_code, "0x82");
    disk.write_at((8192 + 4096 + 63) * 512, b"start of six").unwrap();
    let mut bytes = [0; 12];
    partition::open(&disk, 6).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"start of six");
}

#[test]
fn a_partition_opens_as_a_window_and_a_missing_one_names_the_others() {
    let Some(disk) = image_from_sfdisk(MBR) else { return };
    disk.write_at(15 * MIB, b"start of seven").unwrap();
    let seven = partition::open(&disk, 7).unwrap();
    assert_eq!((seven.size_bytes(), seven.offset()), (4 * MIB, 15 * MIB));
    let mut bytes = [0; 14];
    seven.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"start of seven");
    assert_eq!(&*seven.describe(), "disk partition 7 (Linux)");

    for number in [0, 3, 9, u32::MAX] {
        let error = partition::open(&disk, number).unwrap_err();
        let wanted = format!(
            "disk: partition {number} does not exist; there are 1 (2 MiB), 2 (4 MiB), \
             5 (1 MiB), 6 (2 MiB), 7 (4 MiB), 8 (20 MiB)"
        );
        assert_eq!(error.to_string(), wanted);
    }
}

#[test]
fn devices_without_a_table_say_so() {
    for bytes in [0, 1, 511, 512, 513, 4096, 8192, 1 << 20] {
        let device = MemoryDevice::new(bytes);
        let error = partition::list(&device).unwrap_err();
        assert!(matches!(error, PartitionError::NoTable { .. }), "{bytes}: {error}");
    }
    // A FAT boot sector: the signature, and code where the table would be.
    let device = MemoryDevice::new(1 << 20);
    device.write_at(440, &[0xcd; 70]).unwrap();
    device.write_at(510, &[0x55, 0xaa]).unwrap();
    assert!(matches!(partition::list(&device), Err(PartitionError::NoTable { .. })));
    // A boot loader alone: the signature, and no partitions at all.
    let device = MemoryDevice::new(1 << 20);
    device.write_at(510, &[0x55, 0xaa]).unwrap();
    assert!(matches!(partition::list(&device), Err(PartitionError::NoTable { .. })));
}

/// An MBR with one extended partition from sector 8 on.
fn extended(size_bytes: u64, entry: impl Fn(u32) -> Option<[(u8, u32, u32); 2]>) -> MemoryDevice {
    let device = MemoryDevice::new(size_bytes);
    let record = |sector: u32, entries: &[(u8, u32, u32)]| {
        let entries: Vec<_> =
            entries.iter().map(|(kind, start, len)| (0, *kind, *start, *len)).collect();
        write_record(&device, sector.into(), &entries);
    };
    record(0, &[(0x05, 8, 100_000)]);
    for link in 0..2000 {
        if let Some(entries) = entry(link) {
            record(8 + link, &entries);
        }
    }
    device
}

#[test]
fn chains_of_logical_partitions_cannot_loop_or_go_on_for_ever() {
    let back =
        extended(1 << 22, |link| (link < 4).then_some([(0x83, 1, 1), (5, (link + 1) % 4, 1)]));
    let error = partition::list(&back).unwrap_err().to_string();
    // A link of 0 in the last of four records.
    assert!(error.ends_with("the record at sector 11 links back to 0"), "{error}");

    let endless = extended(1 << 22, |link| Some([(0x83, 1, 1), (5, link + 1, 1)]));
    let error = partition::list(&endless).unwrap_err().to_string();
    assert!(error.ends_with("more than 256 logical partitions"), "{error}");

    let most = |link: u32| {
        (link < 256)
            .then_some([(0x83, 1, 1), if link < 255 { (5, link + 1, 1) } else { (0, 0, 0) }])
    };
    assert_eq!(partition::list(&extended(1 << 22, most)).unwrap().last().unwrap().number, 260);

    let far = extended(1 << 22, |_| Some([(0x83, u32::MAX, u32::MAX), (5, u32::MAX, u32::MAX)]));
    let error = partition::list(&far).unwrap_err().to_string();
    assert!(error.contains("partition 5 has 4294967295 sectors from sector 4294967303"), "{error}");
    let empty = extended(1 << 22, |_| None);
    assert_eq!(partition::list(&empty).unwrap(), []);
}

/// CRC-32 as GPT uses it, one bit at a time: independent of the crate under test.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()))
    })
}

#[test]
fn hostile_counts_with_a_valid_checksum_are_refused_by_name() {
    let Some(disk) = image_from_sfdisk(GPT) else { return };
    disk.write_zeroes(63 * MIB, MIB).unwrap();
    // (offset in the header, value, what the message says)
    let table: [(usize, &[u8], &str); 5] = [
        (80, &u32::MAX.to_le_bytes(), "4294967295 entries"),
        (84, &129u32.to_le_bytes(), "entries of 129 bytes"),
        (84, &0u32.to_le_bytes(), "entries of 0 bytes"),
        (72, &u64::MAX.to_le_bytes(), "at sector 18446744073709551615, past the end"),
        (88, &0u32.to_le_bytes(), "CRC mismatch"),
    ];
    for (at, value, wanted) in table {
        let copy = disk.snapshot();
        let mut header = [0; 92];
        copy.read_at(512, &mut header).unwrap();
        header[at..at + value.len()].copy_from_slice(value);
        header[16..20].fill(0);
        let crc = crc32(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        copy.write_at(512, &header).unwrap();
        let error = partition::list(&copy).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn random_damage_never_panics() {
    let images: Vec<_> = [GPT, MBR].into_iter().filter_map(image_from_sfdisk).collect();
    let mut prng = Prng::new(0x9a27);
    let mut outcomes = [0, 0];
    for round in 0..2000 {
        for image in &images {
            let copy = image.snapshot();
            for _ in 0..=prng.below(4) {
                // The MBR, the GPT header and first entries, and the logical records.
                let area = [446, 512, 1024, 8 * MIB + 446, 10 * MIB + 446][prng.below(5) as usize];
                let byte = [0, 1, 5, 0x7f, 0x80, 0xff][prng.below(6) as usize];
                copy.write_at(area + prng.below(128), &[byte]).unwrap();
            }
            match partition::list(&copy) {
                Ok(partitions) => {
                    outcomes[0] += 1;
                    for p in partitions {
                        assert!(
                            p.len > 0 && p.offset + p.len <= copy.size_bytes(),
                            "round {round}"
                        );
                    }
                }
                Err(_) => outcomes[1] += 1,
            }
        }
    }
    assert!(images.is_empty() || (outcomes[0] > 0 && outcomes[1] > 0), "{outcomes:?}");
}

#[test]
fn a_table_of_4096_byte_sectors_is_found_in_a_plain_file() {
    // Tools take the sector size from the device, and a file has 512. So move a table by hand: the header and the
    // entries keep their meaning, only the unit of their sector numbers changes.
    let Some(disk) = image_from_sfdisk("label: gpt\n1 : start=2048, size=4096\n") else { return };
    let big = MemoryDevice::new(64 * MIB);
    let mut header = [0; 512];
    disk.read_at(512, &mut header).unwrap();
    let mut entries = vec![0; 128 * 128];
    disk.read_at(1024, &mut entries).unwrap();
    big.write_at(4096, &header).unwrap();
    big.write_at(8192, &entries).unwrap();
    let partitions = partition::list(&big).unwrap();
    assert_eq!(ranges(&partitions), [(1, 8 * MIB, 16 * MIB)]);
}
