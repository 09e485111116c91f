//! Access control lists: both forms decode or are refused, and each gives the other back.
#![no_main]
use extant_format::acl::Acl;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    if bytes.len() > 4 {
        let version = [bytes[0] & 3, 0, 0, 0];
        bytes[..4].copy_from_slice(&version);
    }
    for list in [Acl::decode_stored(&bytes), Acl::decode_xattr(&bytes)].into_iter().flatten() {
        assert_eq!(Acl::decode_stored(&list.encode_stored()).as_ref(), Ok(&list));
        assert_eq!(Acl::decode_xattr(&list.encode_xattr()).as_ref(), Ok(&list));
        let (mode, exact) = list.equivalent_mode();
        assert!(!exact || Acl::from_mode(mode) == list);
        assert_eq!(list.to_string().lines().count(), list.entries().len());
    }
});
