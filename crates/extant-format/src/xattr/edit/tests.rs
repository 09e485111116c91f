use super::*;
use extant_base::Prng;
use std::collections::BTreeMap;
use std::vec;

fn encode(set: &AttributeSet, inode: usize, block: usize) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut space = vec![0xaa; inode];
    set.encode_inode(&mut space).unwrap();
    let bytes = set.of(Home::Block).next().map(|_| {
        let mut bytes = vec![0xaa; block];
        set.encode_block(&mut bytes, 1).unwrap();
        bytes
    });
    (space, bytes)
}

fn read_back(set: &AttributeSet, inode: usize, block: usize) -> AttributeSet {
    let (space, bytes) = encode(set, inode, block);
    AttributeSet::read(&space, bytes.as_deref()).unwrap()
}

fn sorted(set: &AttributeSet) -> Vec<Attribute> {
    let mut list = set.attributes().to_vec();
    list.sort_by(|a, b| a.key().cmp(&b.key()));
    list
}

#[test]
fn random_changes_equal_a_map_of_names() {
    for seed in 0..40 {
        let mut random = Prng::new(seed);
        let inode = [0, 4, 96, 160, 736][random.below(5) as usize];
        let block = [1024, 4096][random.below(2) as usize];
        let mut set = AttributeSet::default();
        let mut model: BTreeMap<(u8, Vec<u8>), Stored> = BTreeMap::new();
        for _ in 0..200 {
            let index = NameIndex(1 + random.below(4) as u8);
            let name = vec![b'a' + random.below(6) as u8; 1 + random.below(9) as usize];
            let before = set.clone();
            if random.one_in(3) {
                let removed = set.remove(index, &name).map(|one| one.value);
                assert_eq!(removed, model.remove(&(index.0, name)));
            } else {
                let value = if random.one_in(5) {
                    let ino = Ino(1 + random.below(50) as u32);
                    Stored::InInode { ino, len: 70_000, hash: random.next_u64() as u32 }
                } else {
                    let longest = if random.one_in(3) { 900 } else { 40 };
                    let len = random.below(longest) as usize;
                    Stored::Here(vec![random.below(256) as u8; len])
                };
                match set.set(index, &name, value.clone(), (inode, block)) {
                    Ok(()) => {
                        model.insert((index.0, name), value);
                    }
                    Err(XattrFault::NoRoom { .. }) => assert_eq!(set, before),
                    Err(other) => panic!("{other}"),
                }
            }
            let back = read_back(&set, inode, block);
            assert_eq!(sorted(&back), sorted(&set), "seed {seed}");
            assert_eq!(set.attributes().len(), model.len());
            for one in set.attributes() {
                assert_eq!(model[&(one.index.0, one.name.clone())], one.value);
            }
            // A block's entries come in the order that lookups rely on.
            let (_, bytes) = encode(&set, inode, block);
            if let Some(bytes) = bytes {
                let (header, area) = decode_block(&bytes).unwrap();
                let keys: Vec<_> =
                    area.entries().map(|e| (e.index, e.name.len(), e.name.to_vec())).collect();
                assert!(keys.is_sorted());
                assert_eq!(header.references, 1);
                assert_eq!(header.hash, block_hash(area.entries().map(|e| e.hash)));
            }
        }
    }
}

#[test]
fn what_fits_the_inode_goes_there_and_the_rest_stays_where_it_is() {
    let mut set = AttributeSet::default();
    let sizes = (100, 4096);
    let here = |len| Stored::Here(vec![7; len]);
    set.set(NameIndex::USER, b"big", here(300), sizes).unwrap();
    set.set(NameIndex::USER, b"small", here(8), sizes).unwrap();
    let home = |set: &AttributeSet, name: &[u8]| set.find(NameIndex::USER, name).unwrap().home;
    assert_eq!((home(&set, b"big"), home(&set, b"small")), (Home::Block, Home::Inode));
    // Smaller now, it moves into the inode.
    set.set(NameIndex::USER, b"big", here(4), sizes).unwrap();
    assert_eq!(home(&set, b"big"), Home::Inode);
    // Larger than what is left there, it goes to the block and the other stays.
    set.set(NameIndex::USER, b"big", here(60), sizes).unwrap();
    assert_eq!((home(&set, b"big"), home(&set, b"small")), (Home::Block, Home::Inode));
}

#[test]
fn attributes_move_when_the_new_one_fits_in_no_other_way() {
    let mut set = AttributeSet::default();
    // 100 bytes of room in the inode, 1024 - 36 in the block.
    let sizes = (108, 1024);
    let here = |len| Stored::Here(vec![7; len]);
    set.set(NameIndex::USER, b"a", here(40), sizes).unwrap();
    set.set(NameIndex::USER, b"b", here(900), sizes).unwrap();
    // 96 bytes: only the inode has room, once the first one has left it.
    set.set(NameIndex::USER, b"c", here(76), sizes).unwrap();
    let home = |name: &[u8]| set.find(NameIndex::USER, name).unwrap().home;
    assert_eq!((home(b"a"), home(b"b"), home(b"c")), (Home::Block, Home::Block, Home::Inode));
}

#[test]
fn inline_data_never_leaves_the_inode() {
    let mut set = AttributeSet::default();
    let sizes = (160, 4096);
    set.set(NameIndex::USER, b"a", Stored::Here(vec![1; 100]), sizes).unwrap();
    set.set(NameIndex::SYSTEM, b"data", Stored::Here(vec![2; 90]), sizes).unwrap();
    assert_eq!(set.find(NameIndex::SYSTEM, b"data").unwrap().home, Home::Inode);
    assert_eq!(set.find(NameIndex::USER, b"a").unwrap().home, Home::Block);
    let too_long = set.set(NameIndex::SYSTEM, b"data", Stored::Here(vec![2; 140]), sizes);
    assert!(matches!(too_long, Err(XattrFault::NoRoom { .. })));
}

#[test]
fn the_same_name_in_both_areas_is_refused() {
    let mut set = AttributeSet::default();
    set.set(NameIndex::USER, b"a", Stored::Here(vec![1]), (100, 1024)).unwrap();
    let (space, _) = encode(&set, 100, 1024);
    let mut block = vec![0; 1024];
    let mut other = AttributeSet::default();
    other.set(NameIndex::USER, b"a", Stored::Here(vec![1]), (0, 1024)).unwrap();
    other.encode_block(&mut block, 1).unwrap();
    assert_eq!(AttributeSet::read(&space, Some(&block)), Err(XattrFault::Duplicate));
}
