//! Attributes: any bytes decode or are refused; what decodes can be placed and read back.
#![no_main]
use extant_base::{FsBlock, Ino};
use extant_format::xattr::{self, NewXattr, Space, Value, XattrArea};
use libfuzzer_sys::fuzz_target;

fn exercise(area: &XattrArea<'_>) {
    let mut all = Vec::new();
    for entry in area.entries() {
        if let Value::Here(value) = entry.value {
            all.push(NewXattr { index: entry.index, name: entry.name, value });
        }
        let full = xattr::join(entry.index, entry.name);
        if let Some((index, name)) = full.as_deref().and_then(xattr::split) {
            assert_eq!(xattr::join(index, name), full);
        }
    }
    for ea_inode in [false, true] {
        let Ok(placement) = xattr::place(&all, Space { inode: 96, block: 1024, ea_inode }) else {
            continue;
        };
        assert_eq!(placement.placed().len(), all.len());
        let value_inode = |_| Some((Ino(12), 99));
        let mut space = [0; 96];
        xattr::encode_inode(&mut space, &all, &placement, value_inode).unwrap();
        let mut block = [0; 1024];
        let at = (FsBlock(9), 1);
        xattr::encode_block(&mut block, at, Some(1), &all, &placement, value_inode).unwrap();
        xattr::verify_block(1, FsBlock(9), &block).unwrap();
        let inside = xattr::decode_inode(&space).unwrap();
        let (_, outside) = xattr::decode_block(&block).unwrap();
        for xattr in &all {
            let found = inside
                .and_then(|area| area.find(xattr.index, xattr.name))
                .or_else(|| outside.find(xattr.index, xattr.name))
                .unwrap();
            match found.value {
                Value::Here(value) => assert_eq!(value, xattr.value),
                Value::InInode { len, .. } => assert_eq!(len as usize, xattr.value.len()),
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    if bytes.len() > 4 {
        bytes[..4].copy_from_slice(&xattr::MAGIC.to_le_bytes());
    }
    if let Ok(Some(area)) = xattr::decode_inode(&bytes) {
        exercise(&area);
    }
    if bytes.len() > 32 {
        bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    }
    let _ = xattr::verify_block(1, FsBlock(1), &bytes);
    if let Ok((_, area)) = xattr::decode_block(&bytes) {
        exercise(&area);
    }
});
