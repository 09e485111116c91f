//! Other names and values in the place of those that are there: of equal length, and with their hashes.

use extant_base::Ino;
use extant_format::dir::{self, DirLayout, HEADER_BYTES, RECORD_MIN, TAIL_BYTES, TAIL_FILE_TYPE};
use extant_format::record::{put, u16_at, u32_at};
use extant_format::xattr::{self, NameIndex, Value, XattrArea, XattrEntry};

/// Bytes of names, those first that are easily read.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789-_+=,@%^~!#$&();[]{}`'";

/// Returns `len` bytes in the place of a value; none of them is 0.
pub(crate) fn filler(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at % 26) as u8).collect()
}

/// New names for one directory: unique, and the same each time.
pub(crate) struct Names {
    letters: Vec<u8>,
    /// How many of each length were given.
    given: Box<[u64; 256]>,
    keeps_lost_found: bool,
}

impl Names {
    /// For a directory; `plain`: names are UTF-8, and case is ignored.
    pub(crate) fn of(ino: Ino, plain: bool) -> Names {
        let mut letters = LETTERS.to_vec();
        let others: Vec<u8> = (1..=255u8)
            .filter(|byte| !letters.contains(byte) && !matches!(byte, b'/' | b'.'))
            .filter(|byte| !plain || (byte.is_ascii() && !byte.is_ascii_uppercase()))
            .collect();
        letters.extend(others);
        Names { letters, given: Box::new([0; 256]), keeps_lost_found: ino == Ino::ROOT }
    }

    /// Replaces a name. False: there are no more names of that length.
    pub(crate) fn replace(&mut self, name: &mut [u8]) -> bool {
        if self.keeps_lost_found && name == b"lost+found" {
            return true;
        }
        // Long names have room for letters and digits alone.
        let letters = match name.len() {
            ..=3 => self.letters.as_slice(),
            _ => self.letters.get(..36).unwrap_or(&[]),
        };
        let radix = letters.len() as u64;
        let Some(given) = self.given.get_mut(name.len()) else { return false };
        let mut number = *given;
        *given += 1;
        for byte in name.iter_mut().rev() {
            *byte = letters.get((number % radix) as usize).copied().unwrap_or(b'a');
            number /= radix;
        }
        number == 0
    }
}

/// What became of a block of names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Renamed {
    pub(crate) names: u64,
    /// From some byte on it was no list of entries, and is zeros now; or there were no names left.
    pub(crate) is_cut: bool,
}

/// Replaces all names in a list of entries; what is left over of deleted ones becomes zeros.
pub(crate) fn rename_all(area: &mut [u8], layout: DirLayout, names: &mut Names) -> Renamed {
    let mut done = Renamed::default();
    let mut at = 0;
    while at < area.len() {
        let Ok(entry) = dir::decode_entry(area, at, layout) else {
            done.is_cut = true;
            if let Some(rest) = area.get_mut(at..) {
                rest.fill(0);
            }
            break;
        };
        let (is_used, is_dots, len) = (entry.is_used(), entry.is_dots(), entry.name.len());
        let end = at + (entry.rec_len as usize).max(RECORD_MIN);
        let is_tail = !is_used && end == area.len() && end - at == TAIL_BYTES;
        let is_tail = is_tail && area.get(at + 7) == Some(&TAIL_FILE_TYPE);
        let name_at = at + HEADER_BYTES;
        let keep = if is_used { name_at + len } else { name_at };
        if is_used
            && !is_dots
            && let Some(name) = area.get_mut(name_at..name_at + len)
        {
            done.is_cut |= !names.replace(name);
            done.names += 1;
        }
        if !is_tail {
            if !is_used {
                put(area, at + 6, &[0, 0]);
            }
            if let Some(rest) = area.get_mut(keep..end) {
                rest.fill(0);
            }
        }
        at = end;
    }
    done
}

/// Returns whether a block of an indexed directory is one of the index, behind the first.
pub(crate) fn is_index_node(block: &[u8], layout: DirLayout) -> bool {
    let len = dir::decode_rec_len(u16_at(block, 4), layout.block_size);
    u32_at(block, 0) == 0 && len as usize == block.len()
}

/// Makes a block of an index one of entries: `.` and `..` stay in the first one, in others there are none.
pub(crate) fn without_index(block: &mut [u8], layout: DirLayout, is_root: bool) {
    let end = layout.entry_bytes();
    let first = if is_root { RECORD_MIN } else { 0 };
    let keep = if is_root { 2 * RECORD_MIN } else { 0 };
    if let Some(rest) = block.get_mut(keep..) {
        rest.fill(0);
    }
    let len = u32::try_from(end - first).ok();
    if let Some(raw) = len.and_then(|len| dir::encode_rec_len(len, layout.block_size)) {
        put(block, first + 4, &raw.to_le_bytes());
    }
    if layout.checksum {
        put(block, end + 4, &(TAIL_BYTES as u16).to_le_bytes());
        put(block, end + 7, &[TAIL_FILE_TYPE]);
    }
}

/// Returns whether the value of an attribute says something that a name or a file would: lists of access and how
/// something is encrypted do not, and are of use only as they are.
pub(crate) fn is_private(entry: &XattrEntry<'_>) -> bool {
    let kept =
        [NameIndex::ACL_ACCESS, NameIndex::ACL_DEFAULT, NameIndex::ENCRYPTION, NameIndex::SYSTEM];
    !kept.contains(&entry.index)
}

/// The area with other values: `value` gives each, of equal length, or nothing for those that stay. What lies between
/// them becomes zeros. `start`: where entries begin in `base`.
pub(crate) fn revalue(
    base: &[u8],
    start: usize,
    area: &XattrArea<'_>,
    seed: u32,
    value: &mut dyn FnMut(&XattrEntry<'_>) -> Option<Vec<u8>>,
) -> Vec<u8> {
    let end = area
        .entries()
        .map(|entry| entry.offset as usize + xattr::entry_bytes(entry.name.len()))
        .max()
        .unwrap_or(start);
    let mut new = vec![0; base.len()];
    put(&mut new, 0, base.get(..end).unwrap_or(&[]));
    for entry in area.entries() {
        let offset = entry.offset as usize;
        let other = value(&entry);
        let at = usize::from(u16_at(base, offset + 2));
        let hash = match (entry.value, &other) {
            (Value::Here(old), None) => {
                put(&mut new, at, old);
                continue;
            }
            (Value::Here(_), Some(value)) => {
                put(&mut new, at, value);
                xattr::entry_hash(entry.name, value)
            }
            (Value::InInode { .. }, None) => continue,
            (Value::InInode { .. }, Some(value)) => {
                xattr::entry_hash_for_inode(entry.name, xattr::value_hash(seed, value))
            }
        };
        // In an inode most have none.
        if entry.hash != 0 {
            put(&mut new, offset + 12, &hash.to_le_bytes());
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_of_the_same_length() {
        for plain in [false, true] {
            let mut names = Names::of(Ino(12), plain);
            for (len, count) in [(1usize, 60), (2, 5000), (3, 5000), (5, 5000), (255, 100)] {
                let mut seen = std::collections::BTreeSet::new();
                for _name in 0..count {
                    let mut name = vec![b'?'; len];
                    assert!(names.replace(&mut name));
                    assert!(crate::dirs::is_name(&name), "{name:?}");
                    let folded = if plain { name.to_ascii_lowercase() } else { name };
                    assert!(seen.insert(folded));
                }
            }
        }
        let mut names = Names::of(Ino(12), false);
        let given = (0..300).take_while(|_| names.replace(&mut [0])).count();
        assert_eq!(given, 253, "all that a name of one byte can be");
    }

    #[test]
    fn lost_found_stays_where_it_is() {
        let mut name = *b"lost+found";
        assert!(Names::of(Ino::ROOT, false).replace(&mut name));
        assert_eq!(&name, b"lost+found");
        assert!(Names::of(Ino(12), false).replace(&mut name));
        assert_ne!(&name, b"lost+found");
    }
}
