use super::*;
use proptest::prelude::*;
use std::string::ToString;
use std::vec;

fn entry(who: Who, perm: u8) -> AclEntry {
    AclEntry { who, perm }
}

#[test]
fn each_broken_rule_has_its_fault() {
    let base = || vec![entry(Who::Owner, 7), entry(Who::OwningGroup, 5), entry(Who::Others, 0)];
    assert!(Acl::new(base()).is_ok());
    for missing in 0..3 {
        let mut list = base();
        list.remove(missing);
        assert_eq!(Acl::new(list), Err(AclFault::Incomplete));
    }
    let mut list = base();
    list.insert(1, entry(Who::User(5), 4));
    assert_eq!(Acl::new(list.clone()), Err(AclFault::NoMask));
    list.insert(3, entry(Who::Mask, 4));
    assert!(Acl::new(list.clone()).is_ok());
    list.insert(3, entry(Who::Mask, 4));
    assert_eq!(Acl::new(list.clone()), Err(AclFault::Order { entry: 4 }));
    list.remove(3);
    list[1] = entry(Who::User(u32::MAX), 4);
    assert_eq!(Acl::new(list.clone()), Err(AclFault::Id { entry: 1 }));
    list[1] = entry(Who::User(1), 8);
    assert_eq!(Acl::new(list), Err(AclFault::Perm { entry: 1, perm: 8 }));
    let mut list = base();
    list.swap(0, 1);
    assert_eq!(Acl::new(list), Err(AclFault::Order { entry: 1 }));
}

#[test]
fn a_mode_changes_the_mask_and_not_the_owning_group_behind_it() {
    let list = |owner, mask, others| {
        let named = [entry(Who::User(5), 6), entry(Who::OwningGroup, 7), entry(Who::Mask, mask)];
        let all = [&[entry(Who::Owner, owner)][..], &named, &[entry(Who::Others, others)]];
        Acl::new(all.concat()).unwrap()
    };
    let restricted = list(7, 6, 1).restricted_to(0o2645);
    assert_eq!((&restricted, restricted.equivalent_mode()), (&list(6, 4, 1), (0o641, false)));
    assert_eq!(list(7, 6, 1).with_mode(0o2645), list(6, 4, 5));
}

#[test]
fn without_a_mask_the_owning_group_is_the_group_class() {
    let list = Acl::from_mode(0o775);
    assert_eq!(list.restricted_to(0o640), Acl::from_mode(0o640));
    assert_eq!(list.with_mode(0o4751), Acl::from_mode(0o751));
}

#[test]
fn bytes_that_are_no_list_are_refused() {
    let good = Acl::from_mode(0o750).encode_stored();
    assert_eq!(good, [1, 0, 0, 0, 1, 0, 7, 0, 4, 0, 5, 0, 32, 0, 0, 0]);
    for len in 0..good.len() {
        assert!(Acl::decode_stored(&good[..len]).is_err(), "{len} bytes");
    }
    assert_eq!(Acl::decode_xattr(&good), Err(AclFault::Version { found: 1, wanted: 2 }));
    let mut bad = good.clone();
    bad[4] = 3;
    assert!(Acl::decode_stored(&bad).is_err());
    bad[4] = 0x40;
    assert_eq!(Acl::decode_stored(&bad), Err(AclFault::Tag { entry: 0, tag: 0x40 }));
}

#[test]
fn the_mask_is_what_a_mode_shows_of_the_group() {
    let list = Acl::new(vec![
        entry(Who::Owner, 6),
        entry(Who::User(1000), 7),
        entry(Who::OwningGroup, 7),
        entry(Who::Mask, 4),
        entry(Who::Others, 1),
    ])
    .unwrap();
    assert_eq!(list.equivalent_mode(), (0o641, false));
    assert_eq!(list.to_string(), "user::rw-\nuser:1000:rwx\ngroup::rwx\nmask::r--\nother::--x\n");
    for mode in 0..0o1000 {
        assert_eq!(Acl::from_mode(mode).equivalent_mode(), (mode, true));
    }
}

proptest! {
    #[test]
    fn both_forms_give_the_list_back(
        users in prop::collection::vec((0..u32::MAX, 0u8..8), 0..20),
        groups in prop::collection::vec((0..u32::MAX, 0u8..8), 0..20),
        perms in prop::array::uniform4(0u8..8),
    ) {
        let mut list = vec![entry(Who::Owner, perms[0])];
        list.extend(users.iter().map(|(id, perm)| entry(Who::User(*id), *perm)));
        list.push(entry(Who::OwningGroup, perms[1]));
        list.extend(groups.iter().map(|(id, perm)| entry(Who::Group(*id), *perm)));
        list.push(entry(Who::Mask, perms[2]));
        list.push(entry(Who::Others, perms[3]));
        let list = Acl::new(list).unwrap();
        let stored = list.encode_stored();
        prop_assert_eq!(stored.len(), 4 + 16 + 8 * (users.len() + groups.len()));
        prop_assert_eq!(Acl::decode_stored(&stored), Ok(list.clone()));
        prop_assert_eq!(Acl::decode_xattr(&list.encode_xattr()), Ok(list));
    }
}
