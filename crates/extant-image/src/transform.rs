//! Changes to a scanned tree that the user asks for: other owners, and times that do not depend
//! on when the image is built.
//!
//! # Place
//!
//! Between `source`, which fills a [`Tree`], and `plan`, which reads it. Sources keep what they
//! need to notice changed files apart from the tree, so nothing here disturbs them.

mod rootless;

use std::fmt;
use std::str::FromStr;

use crate::tree::{NodeId, Time, Tree, XattrSet, XattrSetId};

/// An owner for every file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Numeric user.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
}

/// Numeric ids to others, in ranges. The default changes nothing; one with ranges has an answer
/// only for the ids in them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdMap {
    /// First id inside, first id outside, count; not overlapping on the first.
    ranges: Vec<(u32, u32, u32)>,
}

/// Changes to a tree. The default changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transform {
    /// Owner of all files, whatever the source says. Ids inside access lists and capabilities
    /// still go through the maps.
    pub owner: Option<Owner>,
    /// For users.
    pub uid_map: IdMap,
    /// For groups.
    pub gid_map: IdMap,
    /// Whether the owner in the attribute `user.rootlesscontainers` becomes the file's, unless
    /// [`owner`](Self::owner) is set; the maps do not change it. The attribute itself is removed.
    pub rootless: bool,
    /// Seconds since 1970: later modification times become this one, and access and change times
    /// become the modification time, because merely reading or copying the source changes those.
    pub epoch: Option<i64>,
}

/// An option's text that cannot be understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionError {
    /// The text.
    pub text: String,
    /// Expected syntax, or description of the fault.
    pub what: String,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": {}", self.text, self.what)
    }
}

impl std::error::Error for OptionError {}

/// Why a transformation cannot be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransformError {
    /// A map has no answer for an id that the source has.
    Unmapped {
        /// "user" or "group".
        what: &'static str,
        /// The id.
        id: u32,
        /// Path of the first file with it; "/" for the root.
        path: String,
    },
    /// The attribute `user.rootlesscontainers` names no owner.
    BadOwner {
        /// Path of the first file with it; "/" for the root.
        path: String,
    },
}

impl fmt::Display for TransformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransformError::Unmapped { what, id, path } => {
                write!(f, "{what} {id} of \"{path}\" is in no range of the {what} map")
            }
            TransformError::BadOwner { path } => {
                write!(f, "the attribute user.rootlesscontainers of \"{path}\" names no owner")
            }
        }
    }
}

impl std::error::Error for TransformError {}

impl FromStr for Owner {
    type Err = OptionError;

    /// `UID:GID`, both decimal numbers.
    fn from_str(text: &str) -> Result<Owner, OptionError> {
        let parse = || {
            let (uid, gid) = text.split_once(':')?;
            Some(Owner { uid: id(uid)?, gid: id(gid)? })
        };
        parse().ok_or_else(|| OptionError {
            text: text.into(),
            what: "an owner is UID:GID, two numbers up to 4294967294".into(),
        })
    }
}

impl FromStr for IdMap {
    type Err = OptionError;

    /// `FROM:TO[:COUNT]`, several separated by commas; COUNT is 1 when left out.
    fn from_str(text: &str) -> Result<IdMap, OptionError> {
        let error = |what: String| OptionError { text: text.into(), what };
        let mut ranges: Vec<(u32, u32, u32)> = Vec::new();
        for part in text.split(',') {
            let parse = || {
                let mut fields = part.split(':');
                let (from, to) = (id(fields.next()?)?, id(fields.next()?)?);
                let count = match fields.next() {
                    Some(count) => id(count).filter(|&count| count > 0)?,
                    None => 1,
                };
                // The highest number is "no id" to the kernel.
                let fits = |first: u32| first.checked_add(count).is_some();
                (fields.next().is_none() && fits(from) && fits(to)).then_some((from, to, count))
            };
            let range = parse().ok_or_else(|| {
                error(format!(
                    "range \"{part}\" is not FROM:TO[:COUNT], numbers that end by 4294967294"
                ))
            })?;
            ranges.push(range);
        }
        ranges.sort_unstable();
        for pair in ranges.array_windows::<2>() {
            let [(first, _, count), (next, ..)] = *pair;
            if next - first < count {
                return Err(error(format!("id {next} is in two ranges")));
            }
        }
        Ok(IdMap { ranges })
    }
}

/// A number that can be an owner.
fn id(text: &str) -> Option<u32> {
    // `parse` would take a plus sign too.
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|&id| digits && id != u32::MAX)
}

impl IdMap {
    /// Returns what `id` becomes; `None` when there are ranges and none has it.
    pub fn map(&self, id: u32) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(id);
        }
        let after = self.ranges.partition_point(|&(from, ..)| from <= id);
        let &(from, to, count) = self.ranges.get(after.checked_sub(1)?)?;
        let distance = id - from;
        (distance < count).then_some(to + distance)
    }

    fn is_identity(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// Reads a time given as `SOURCE_DATE_EPOCH` or with `--mtime-clamp`: seconds since 1970.
///
/// # Errors
///
/// [`OptionError`] unless it is a whole number between -2^31 and 2^34 - 2^31 - 1, the times ext4
/// can hold.
pub fn parse_epoch(text: &str) -> Result<i64, OptionError> {
    let range = -(1i64 << 31)..(1i64 << 34) - (1i64 << 31);
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let value = text.parse().ok().filter(|value| plain && range.contains(value));
    value.ok_or_else(|| OptionError {
        text: text.into(),
        what: format!(
            "a time is a whole number of seconds since 1970, {} to {}",
            range.start,
            range.end - 1
        ),
    })
}

/// The owners in a set of attributes.
struct Named {
    ids: (Option<u32>, Option<u32>),
    /// Nothing else is in the set.
    is_all: bool,
}

impl Transform {
    /// Changes `tree`.
    ///
    /// # Errors
    ///
    /// [`TransformError`]: the tree is then changed in part and of no more use.
    pub fn apply(&self, tree: &mut Tree) -> Result<(), TransformError> {
        let maps = !self.uid_map.is_identity() || !self.gid_map.is_identity();
        let mut unmapped: Option<(NodeId, &'static str, u32)> = None;
        let mut at = 0u32;
        let named = if self.rootless { self.take_owners(tree)? } else { Vec::new() };
        tree.for_each_node_mut(|node| {
            let here = NodeId(at);
            at += 1;
            let mut said = (None, None);
            if let Some(Some(named)) = named.get(node.xattrs.0 as usize) {
                said = named.ids;
                if named.is_all {
                    node.xattrs = XattrSetId(0);
                }
            }
            if let Some(owner) = self.owner {
                (node.uid, node.gid) = (owner.uid, owner.gid);
            } else if maps || said != (None, None) {
                let uid = said.0.or_else(|| self.uid_map.map(node.uid));
                match (uid, said.1.or_else(|| self.gid_map.map(node.gid))) {
                    (Some(uid), Some(gid)) => (node.uid, node.gid) = (uid, gid),
                    (None, _) => drop(unmapped.get_or_insert((here, "user", node.uid))),
                    (_, None) => drop(unmapped.get_or_insert((here, "group", node.gid))),
                }
            }
            if let Some(epoch) = self.epoch {
                node.mtime = node.mtime.min(Time { sec: epoch, nsec: 0 });
                node.atime = node.mtime;
                node.ctime = node.mtime;
            }
        });
        if let Some((node, what, id)) = unmapped {
            return Err(unmapped_error(tree, node, what, id));
        }
        if maps { self.map_xattrs(tree) } else { Ok(()) }
    }

    /// Takes the owners out of the sets of attributes that name one.
    fn take_owners(&self, tree: &mut Tree) -> Result<Vec<Option<Named>>, TransformError> {
        let is_it = |name: &[u8]| name == rootless::NAME;
        if !tree.xattr_sets().iter().flatten().any(|(name, _)| is_it(name)) {
            return Ok(Vec::new());
        }
        let (mut named, mut bad) = (Vec::new(), None);
        tree.for_each_xattr_set_mut(|set| {
            let at = set.iter().position(|(name, _)| is_it(name));
            let value = at.map(|at| set.remove(at).1);
            let ids = value.as_ref().and_then(|value| rootless::owner(value));
            if value.is_some() && ids.is_none() {
                bad.get_or_insert(named.len());
            }
            named.push(ids.map(|ids| Named { ids, is_all: set.is_empty() }));
        });
        let Some(set) = bad else { return Ok(named) };
        let node = tree.nodes().iter().position(|node| node.xattrs.0 as usize == set);
        Err(TransformError::BadOwner { path: shown(tree, NodeId(node.unwrap_or(0) as u32)) })
    }

    /// Maps the ids inside access lists and capabilities.
    fn map_xattrs(&self, tree: &mut Tree) -> Result<(), TransformError> {
        let mut unmapped = None;
        let mut at = 0usize;
        tree.for_each_xattr_set_mut(|set| {
            if let Err((what, id)) = self.map_set(set) {
                unmapped.get_or_insert((at, what, id));
            }
            at += 1;
        });
        let Some((set, what, id)) = unmapped else { return Ok(()) };
        let node = tree.nodes().iter().position(|node| node.xattrs.0 as usize == set);
        Err(unmapped_error(tree, NodeId(node.unwrap_or(0) as u32), what, id))
    }

    fn map_set(&self, set: &mut XattrSet) -> Result<(), (&'static str, u32)> {
        for (name, value) in set {
            match &**name {
                b"system.posix_acl_access" | b"system.posix_acl_default" => self.map_acl(value)?,
                b"security.capability" => self.map_capability(value)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Linux `include/uapi/linux/posix_acl_xattr.h`: version 2, then 8-byte entries of tag,
    /// permissions and id. Only named users (tag 2) and groups (tag 8) have an id.
    fn map_acl(&self, value: &mut [u8]) -> Result<(), (&'static str, u32)> {
        let Some(([2, 0, 0, 0], entries)) = value.split_first_chunk_mut::<4>() else {
            return Ok(());
        };
        for entry in entries.as_chunks_mut::<8>().0 {
            let [tag, 0, _, _, id @ ..] = entry else { continue };
            match tag {
                2 => map_le(id, &self.uid_map).map_err(|id| ("user", id))?,
                8 => map_le(id, &self.gid_map).map_err(|id| ("group", id))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Linux `include/uapi/linux/capability.h`, `struct vfs_ns_cap_data`: revision 3 has, at byte
    /// 20, the root user of the name space that set it.
    fn map_capability(&self, value: &mut [u8]) -> Result<(), (&'static str, u32)> {
        if value.len() == 24
            && value.get(3) == Some(&3)
            && let Some((_, root)) = value.split_last_chunk_mut::<4>()
        {
            map_le(root, &self.uid_map).map_err(|id| ("user", id))?;
        }
        Ok(())
    }
}

fn map_le(id: &mut [u8; 4], map: &IdMap) -> Result<(), u32> {
    let old = u32::from_le_bytes(*id);
    *id = map.map(old).ok_or(old)?.to_le_bytes();
    Ok(())
}

fn unmapped_error(tree: &Tree, node: NodeId, what: &'static str, id: u32) -> TransformError {
    TransformError::Unmapped { what, id, path: shown(tree, node) }
}

/// The path of a node, as messages have it.
fn shown(tree: &Tree, node: NodeId) -> String {
    match node {
        NodeId::ROOT => "/".into(),
        node => tree.path(node).escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Kind, Node, TreeBuilder};

    #[test]
    fn owners_and_maps_are_read() {
        assert_eq!("0:5".parse(), Ok(Owner { uid: 0, gid: 5 }));
        for bad in ["", "0", "0:", ":0", "0:0:0", "-1:0", "+1:0", "4294967295:0", "root:root"] {
            let error = bad.parse::<Owner>().unwrap_err();
            assert!(error.to_string().contains("UID:GID"), "{error}");
        }
        let map: IdMap = "0:100000:65536,70000:1".parse().unwrap();
        for (id, wanted) in [
            (0, Some(100_000)),
            (65535, Some(165_535)),
            (65536, None),
            (70000, Some(1)),
            (70001, None),
        ] {
            assert_eq!(map.map(id), wanted, "{id}");
        }
        assert_eq!(IdMap::default().map(77), Some(77));
        let whole: IdMap = "0:0:4294967294".parse().unwrap();
        assert_eq!(whole.map(4_294_967_293), Some(4_294_967_293));
        for bad in ["", "1", "1:2:0", "1:2:3:4", "0:4294967290:10", "0:0:5,4:9", "1:2,", "a:b"] {
            assert!(bad.parse::<IdMap>().is_err(), "{bad}");
        }
    }

    #[test]
    fn epochs_are_whole_seconds_that_ext4_has() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("1700000000", Some(1_700_000_000)),
            ("-2147483648", Some(-2_147_483_648)),
            ("15032385535", Some(15_032_385_535)),
            ("15032385536", None),
            ("-2147483649", None),
            ("", None),
            ("-", None),
            ("+1", None),
            ("1.5", None),
            ("now", None),
        ] {
            assert_eq!(parse_epoch(text).ok(), wanted, "{text}");
        }
    }

    fn sample() -> Tree {
        let acl = |user: u8| {
            let entries: [&[u8]; 4] = [
                &[2, 0, 0, 0],
                &[1, 0, 6, 0, 255, 255, 255, 255],
                &[2, 0, 4, 0, user, 0, 0, 0],
                &[8, 0, 7, 0, 9, 0, 0, 0],
            ];
            entries.concat().into_boxed_slice()
        };
        let mut capability = vec![0; 24];
        (capability[3], capability[20]) = (3, 4);
        let mut b = TreeBuilder::new(Node::new(Kind::Dir));
        let mut node = Node::new(Kind::File);
        node.uid = 3;
        node.gid = 9;
        node.mtime = Time { sec: 100, nsec: 5 };
        node.atime = Time { sec: 999, nsec: 0 };
        node.xattrs = b
            .intern_xattrs(vec![
                (b"system.posix_acl_access"[..].into(), acl(7)),
                (b"security.capability"[..].into(), capability.into()),
            ])
            .unwrap();
        let id = b.add(node).unwrap();
        b.link(NodeId::ROOT, b"f", id).unwrap();
        b.finish().unwrap()
    }

    #[test]
    fn ids_are_mapped_in_attributes_too() {
        let mut tree = sample();
        let map: IdMap = "0:1000:10".parse().unwrap();
        let transform = Transform { uid_map: map.clone(), gid_map: map, ..Transform::default() };
        transform.apply(&mut tree).unwrap();
        let node = tree.node(NodeId(1));
        assert_eq!((node.uid, node.gid), (1003, 1009));
        assert_eq!(tree.node(NodeId::ROOT).uid, 1000);
        let [(_, capability), (_, acl)] = &tree.xattrs(node)[..] else { panic!() };
        assert_eq!(capability[20..], 1004u32.to_le_bytes());
        assert_eq!(acl[8..12], [255; 4]);
        assert_eq!(acl[16..20], 1007u32.to_le_bytes());
        assert_eq!(acl[24..28], 1009u32.to_le_bytes());
    }

    #[test]
    fn an_id_without_a_range_is_named_with_a_path() {
        let narrow =
            |text: &str| Transform { uid_map: text.parse().unwrap(), ..Transform::default() };
        let error = narrow("0:0:3").apply(&mut sample()).unwrap_err();
        assert_eq!(error.to_string(), "user 3 of \"f\" is in no range of the user map");
        let error = narrow("1:1:9").apply(&mut sample()).unwrap_err();
        assert_eq!(error.to_string(), "user 0 of \"/\" is in no range of the user map");
        let error = narrow("0:0:6").apply(&mut sample()).unwrap_err();
        assert_eq!(error.to_string(), "user 7 of \"f\" is in no range of the user map");
    }

    #[test]
    fn owners_beside_files_are_theirs_and_the_attribute_goes() {
        let name = rootless::NAME;
        let make = |value: &[u8]| {
            let mut b = TreeBuilder::new(Node::new(Kind::Dir));
            for (file, more) in [(&b"alone"[..], false), (b"with", true)] {
                let mut node = Node::new(Kind::File);
                (node.uid, node.gid) = (1000, 1000);
                let mut set = vec![(name.into(), value.into())];
                if more {
                    set.push((b"user.other"[..].into(), b"x"[..].into()));
                }
                node.xattrs = b.intern_xattrs(set).unwrap();
                let id = b.add(node).unwrap();
                b.link(NodeId::ROOT, file, id).unwrap();
            }
            b.finish().unwrap()
        };
        let rootless = Transform { rootless: true, ..Transform::default() };
        let found = |tree: &Tree, name: &[u8]| {
            let node = tree.node(tree.find_in_root(name).unwrap().node);
            (node.uid, node.gid, tree.xattrs(node).len())
        };
        let mut tree = make(&[0x08, 42]);
        rootless.apply(&mut tree).unwrap();
        assert_eq!([found(&tree, b"alone"), found(&tree, b"with")], [(42, 0, 0), (42, 0, 1)]);
        // One number stays, and goes through its map; the other does not.
        let map: IdMap = "0:500:2000".parse().unwrap();
        let maps = Transform { uid_map: map.clone(), gid_map: map, ..rootless.clone() };
        let mut tree = make(&[0x08, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x10, 7]);
        maps.apply(&mut tree).unwrap();
        assert_eq!(found(&tree, b"with"), (1500, 7, 1));
        let one = Transform { owner: Some(Owner { uid: 1, gid: 2 }), ..rootless.clone() };
        let mut tree = make(&[0x08, 42]);
        one.apply(&mut tree).unwrap();
        assert_eq!(found(&tree, b"alone"), (1, 2, 0));
        let error = rootless.apply(&mut make(b"text")).unwrap_err().to_string();
        assert!(error.contains("\"alone\" names no owner"), "{error}");
        let mut tree = make(b"text");
        Transform::default().apply(&mut tree).unwrap();
        assert_eq!(found(&tree, b"with"), (1000, 1000, 2));
    }

    #[test]
    fn times_are_clamped_and_made_equal() {
        for (epoch, wanted) in [
            (100, Time { sec: 100, nsec: 0 }),
            (50, Time { sec: 50, nsec: 0 }),
            (101, Time { sec: 100, nsec: 5 }),
        ] {
            let mut tree = sample();
            let owner = Some(Owner { uid: 8, gid: 9 });
            let transform = Transform { epoch: Some(epoch), owner, ..Transform::default() };
            transform.apply(&mut tree).unwrap();
            let node = tree.node(NodeId(1));
            assert_eq!([node.mtime, node.atime, node.ctime], [wanted; 3]);
            assert_eq!((node.uid, node.gid), (8, 9));
        }
        let mut tree = sample();
        Transform::default().apply(&mut tree).unwrap();
        assert_eq!(tree.node(NodeId(1)).atime.sec, 999);
    }
}
