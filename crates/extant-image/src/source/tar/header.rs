//! One 512-byte header block.
//!
//! # Source
//!
//! POSIX.1-2017 `pax`, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format" and
//! "Storing Sparse Files".

/// Bytes of a block: headers have one, data is padded to whole ones.
pub(super) const BLOCK: usize = 512;

/// One block of the archive.
pub(super) type Block = [u8; BLOCK];

/// Offset and length of a run of stored bytes in a sparse file.
pub(super) type SparseRun = (u64, u64);

/// A header with a correct checksum, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) typeflag: u8,
    /// With the prefix in front, where the format has one.
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u16,
    pub(super) uid: i64,
    pub(super) gid: i64,
    pub(super) size: u64,
    pub(super) mtime: i64,
    pub(super) device: (i64, i64),
    /// GNU headers only.
    pub(super) atime: Option<i64>,
    /// GNU headers only.
    pub(super) ctime: Option<i64>,
}

/// Why a block is no header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum HeaderFault {
    /// The stored sum and the computed one.
    Checksum { stored: Option<i64>, computed: u32 },
    /// A number that cannot be read, or is out of range.
    Number { name: Vec<u8>, field: &'static str, bytes: Vec<u8> },
}

impl HeaderFault {
    pub(super) fn text(&self) -> String {
        match self {
            HeaderFault::Checksum { stored: Some(stored), computed } => {
                format!("a header's checksum is {stored}, its bytes add up to {computed}")
            }
            HeaderFault::Checksum { stored: None, computed } => {
                format!("a header has no checksum where its bytes add up to {computed}")
            }
            HeaderFault::Number { name, field, bytes } => format!(
                "\"{}\": its {field} cannot be \"{}\"",
                name.escape_ascii(),
                bytes.escape_ascii()
            ),
        }
    }
}

/// The bytes `start..start + len` of a block; both are constants of the format.
fn field(block: &Block, start: usize, len: usize) -> &[u8] {
    block.get(start..start + len).unwrap_or_default()
}

/// Text up to the first NUL.
pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or_default()
}

/// Decodes a number field: octal text, or with the top bit set a big-endian binary number.
/// An empty field is 0; `None` if it is neither or exceeds 64 bits.
pub(super) fn number(bytes: &[u8]) -> Option<i64> {
    let (&first, rest) = bytes.split_first()?;
    if first & 0x80 != 0 {
        // Bit 6 is the sign, extended over what the field does not hold.
        let start =
            if first & 0x40 != 0 { i128::from(first) - 256 } else { i128::from(first & 0x3f) };
        let mut value = start;
        for &byte in rest {
            value = value.checked_mul(256)?.checked_add(i128::from(byte))?;
        }
        return i64::try_from(value).ok();
    }
    let blank = |b: &u8| *b == b' ' || *b == 0;
    let start = bytes.iter().position(|b| !blank(b)).unwrap_or(bytes.len());
    let mut value = 0i64;
    let mut rest = bytes.get(start..)?.iter();
    for byte in rest.by_ref() {
        match byte {
            b'0'..=b'7' => value = value.checked_mul(8)?.checked_add(i64::from(byte - b'0'))?,
            b' ' | 0 => break,
            _ => return None,
        }
    }
    // The end of the field may hold anything after a terminator in old archives; digits after a
    // blank would be a second number.
    if rest.any(|b| b.is_ascii_digit()) { None } else { Some(value) }
}

impl Header {
    /// Decodes and checks a block that is not all zeros.
    pub(super) fn decode(block: &Block) -> Result<Header, HeaderFault> {
        check_sum(block)?;
        let posix = field(block, 257, 6) == b"ustar\0";
        let gnu = field(block, 257, 8) == b"ustar  \0";
        let mut name = until_nul(field(block, 0, 100)).to_vec();
        if posix {
            // star writes its own times behind a shorter prefix, and says so at the end.
            let star = field(block, 508, 4) == b"tar\0";
            let prefix = until_nul(field(block, 345, if star { 131 } else { 155 }));
            if !prefix.is_empty() {
                name = [prefix, b"/", &name].concat();
            }
        }
        let get = |what: &'static str, start, len| {
            number(field(block, start, len)).ok_or_else(|| HeaderFault::Number {
                name: name.clone(),
                field: what,
                bytes: until_nul(field(block, start, len)).to_vec(),
            })
        };
        let size = get("size", 124, 12)?;
        let size = u64::try_from(size).map_err(|_| HeaderFault::Number {
            name: name.clone(),
            field: "size",
            bytes: size.to_string().into_bytes(),
        })?;
        let optional = |what, start| {
            let given = gnu && field(block, start, 12).iter().any(|&b| b != 0 && b != b' ');
            if given { get(what, start, 12).map(Some) } else { Ok(None) }
        };
        let typeflag = block[156];
        let is_device = matches!(typeflag, b'3' | b'4') && (posix || gnu);
        Ok(Header {
            typeflag,
            link: until_nul(field(block, 157, 100)).to_vec(),
            // Only the low 12 bits mean something; some writers store the kind above them.
            mode: (get("mode", 100, 8)? & 0o7777) as u16,
            uid: get("owner", 108, 8)?,
            gid: get("group", 116, 8)?,
            size,
            mtime: get("time", 136, 12)?,
            device: if is_device {
                (get("major device number", 329, 8)?, get("minor device number", 337, 8)?)
            } else {
                (0, 0)
            },
            atime: optional("access time", 345)?,
            ctime: optional("change time", 357)?,
            name,
        })
    }
}

/// The sum counts the sum field itself as blanks. Some old systems added signed bytes.
/// Whether a block is a header at all.
pub(super) fn check_sum(block: &Block) -> Result<(), HeaderFault> {
    let mut unsigned = 0u32;
    let mut signed = 0i64;
    for (at, &byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { byte };
        unsigned += u32::from(byte);
        signed += i64::from(byte as i8);
    }
    let stored = number(field(block, 148, 8));
    if stored == Some(i64::from(unsigned)) || stored == Some(signed) {
        Ok(())
    } else {
        Err(HeaderFault::Checksum { stored, computed: unsigned })
    }
}

/// The sparse runs in an old GNU header: the runs, whether more blocks of them follow, and the
/// size of the whole file. `None` for a number that cannot be.
pub(super) fn gnu_sparse(block: &Block) -> Option<(Vec<SparseRun>, bool, u64)> {
    let real_size = u64::try_from(number(field(block, 483, 12))?).ok()?;
    Some((sparse_runs(field(block, 386, 96))?, block[482] != 0, real_size))
}

/// The runs in a block that follows such a header, and whether another one follows.
pub(super) fn gnu_sparse_more(block: &Block) -> Option<(Vec<SparseRun>, bool)> {
    Some((sparse_runs(field(block, 0, 504))?, block[504] != 0))
}

fn sparse_runs(bytes: &[u8]) -> Option<Vec<SparseRun>> {
    let mut runs = Vec::new();
    for entry in bytes.chunks_exact(24) {
        let (offset, len) = entry.split_at(12);
        // An unused slot ends the list.
        if offset.first() == Some(&0) && len.first() == Some(&0) {
            break;
        }
        runs.push((u64::try_from(number(offset)?).ok()?, u64::try_from(number(len)?).ok()?));
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_octal_and_binary() {
        let table: &[(&[u8], Option<i64>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"77777777777 ", Some(0o77777777777)),
            (b"777777777777", Some(0o777777777777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"0000648\0", None),
            (b"-000644\0", None),
            (b"12 34\0\0\0", None),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\x02", Some(258)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xc0\0\0\0\0\0\0\0\0\0\0\0", None),
            (b"", None),
        ];
        for (bytes, wanted) in table {
            assert_eq!(number(bytes), *wanted, "{}", bytes.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn no_block_makes_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
            let mut block: Block = bytes.try_into().unwrap();
            let _ = (gnu_sparse(&block), gnu_sparse_more(&block));
            let _ = Header::decode(&block);
            // The same with a right checksum, so that the fields are reached.
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            let decoded = Header::decode(&block);
            let refused = matches!(decoded, Err(HeaderFault::Checksum { .. }));
            prop_assert!(!refused);
        }
    }
}
