//! Directories that are encrypted in the image: names, contents and link targets below them (fscrypt).
//!
//! # Place
//!
//! After `source` and `transform`, before `plan`: [`encrypt`] marks nodes of a tree. `plan` gives each of them a context
//! and lays out names as they are stored; `write` encrypts contents on their way out, so that the
//! target has no plaintext at any time.
//!
//! # Invariants
//!
//! - EN1. Every file, directory and link below an encrypted directory is encrypted with the same policy, as Linux
//!   demands; devices, pipes and sockets are not, and only their names are.
//! - EN2. No two inodes of an image have the same nonce.
//!
//! # Nonces
//!
//! The nonce of a node is a hash of its path, of the name of its key and of a seed. The seed is random, and in a
//! reproducible build it follows from the UUID, so that equal input gives equal bytes. Then whoever has two such images
//! with one UUID and one key sees which blocks of 16 bytes of a file differ (with Adiantum, which data units), and which
//! names begin alike: the same is true of a file system and an older copy of it. Where vectors have the number of the
//! inode, nonces are of no account, and the same is true of any two images with one UUID and one key.

use std::fmt;

use extant_base::sabotage;
use extant_crypt::{
    CipherFault, ContentsCipher, Context, IvKind, KeySpec, MasterKey, NAME_BYTES_MIN, NONCE_BYTES,
    NamesCipher, Place, Policy,
};
use extant_sync::os_random;
use sha2::{Digest, Sha256};

use crate::keys::Keyed;
use crate::tree::{Kind, NodeId, Tree, XattrSet, XattrSetId};

/// The attribute with the context, among those of a node. No source has a name like that.
pub(crate) const CONTEXT: &[u8] = b"\0encryption";

/// Longest stored name, in bytes.
const NAME_MAX: usize = 255;

/// Why a directory of a tree cannot be encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EncryptError {
    /// There is no directory with that path.
    NoDirectory {
        /// As given.
        path: String,
    },
    /// It is the root or `lost+found`, which Linux and e2fsck need as they are.
    Needed {
        /// The directory.
        path: String,
    },
    /// It lies below another one that is encrypted, or above.
    Nested {
        /// A directory that belongs to both.
        path: String,
    },
    /// A file has one name in an encrypted directory, and another one outside or with another key.
    HardLink {
        /// One of its names.
        path: String,
        /// The directory that has the other one.
        other: String,
    },
    /// The key does not do.
    Key(CipherFault),
    /// Linux gives no directory such a policy, or it names another key.
    Policy(Policy),
    /// Two keys have the same name, which policies of version 1 choose freely.
    NameTaken {
        /// The name.
        key: KeySpec,
    },
    /// More than 65,535 policies.
    TooManyKeys,
}

impl fmt::Display for EncryptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDirectory { path } => {
                write!(f, "there is no directory \"{path}\" in the sources")
            }
            Self::Needed { path } => {
                write!(f, "\"{path}\" cannot be encrypted: Linux and e2fsck need it as it is")
            }
            Self::Nested { path } => write!(
                f,
                "\"{path}\" is below two directories that are to be encrypted; one key is for all of a \
                 directory"
            ),
            Self::HardLink { path, other } => write!(
                f,
                "\"{path}\" has another name in \"{other}\", which is not encrypted with the same key; ext4 \
                 has no such links"
            ),
            Self::Key(fault) => fault.fmt(f),
            Self::Policy(policy) => write!(
                f,
                "Linux gives no directory the policy of {} and {} with {:?}, names padded to {} bytes and the \
                 key {}",
                policy.contents.name(),
                policy.names.name(),
                policy.iv,
                policy.padding,
                policy.key
            ),
            Self::NameTaken { key } => {
                write!(f, "two keys have the name {key}; each needs a name of its own")
            }
            Self::TooManyKeys => f.write_str("there are more than 65535 keys"),
        }
    }
}

impl std::error::Error for EncryptError {}

/// Marks the directory `path` of `tree`, and everything below it, to be encrypted with `key` as Linux tools do it:
/// AES-256, a key for each file. See [`encrypt_with`].
///
/// # Errors
///
/// [`EncryptError`]: the tree is then of no more use.
pub fn encrypt(tree: &mut Tree, path: &[u8], key: &MasterKey) -> Result<(), EncryptError> {
    encrypt_with(tree, path, key, &Policy::new(key.identifier()))
}

/// Marks the directory `path` of `tree`, and everything below it, to be encrypted with `key` by `policy`, which names the
/// key by its [identifier](MasterKey::identifier), or in version 1 as it likes. Slashes at the beginning and end of the
/// path do not count.
///
/// # Errors
///
/// [`EncryptError`]: the tree is then of no more use.
///
/// # Cost
///
/// A walk over the directory; when the image is planned, about 400 bytes of memory for each file below it.
pub fn encrypt_with(
    tree: &mut Tree,
    path: &[u8],
    key: &MasterKey,
    policy: &Policy,
) -> Result<(), EncryptError> {
    let shown = || path.escape_ascii().to_string();
    let top = tree.find_dir(path).ok_or_else(|| EncryptError::NoDirectory { path: shown() })?;
    if top == NodeId::ROOT || tree.path(top) == b"lost+found" {
        return Err(EncryptError::Needed { path: shown() });
    }
    let is_named = match policy.key {
        KeySpec::Identifier(_) => policy.key == key.identifier(),
        KeySpec::Descriptor(_) => true,
    };
    if !is_named || !policy.is_supported() {
        return Err(EncryptError::Policy(*policy));
    }
    // Whatever the policy derives from it later is as long as this. The plan looks at blocks and features.
    let context = Context { policy: *policy, nonce: [0; NONCE_BYTES] };
    let place = Place { ino: 0, uuid: [0; 16], is_stable: true, block_log2: 16 };
    ContentsCipher::new(key, &context, &place).map_err(EncryptError::Key)?;
    NamesCipher::new(key, &context, &place).map_err(EncryptError::Key)?;

    if tree.keys.has_other(key, policy) {
        return Err(EncryptError::NameTaken { key: policy.key });
    }
    let number = tree.keys.number(key, policy).ok_or(EncryptError::TooManyKeys)?;
    let mut dirs = vec![top];
    let mut below = vec![top];
    while let Some(dir) = dirs.pop() {
        for entry in tree.children(dir) {
            match tree.node(entry.node).kind {
                Kind::Dir => {
                    dirs.push(entry.node);
                    below.push(entry.node);
                }
                Kind::File | Kind::Symlink => below.push(entry.node),
                Kind::Char | Kind::Block | Kind::Fifo | Kind::Socket => {}
            }
        }
    }
    for id in below {
        let node = tree.node_mut(id);
        if node.kind == Kind::Dir && node.key != 0 {
            return Err(EncryptError::Nested { path: tree.path(id).escape_ascii().to_string() });
        }
        node.key = number;
    }
    Ok(())
}

/// Checks, when all directories are marked, that no file is in two minds (EN1).
///
/// # Errors
///
/// [`EncryptError::HardLink`].
pub fn check_links(tree: &Tree) -> Result<(), EncryptError> {
    if !tree.is_encrypted() {
        return Ok(());
    }
    for (dir, entries) in tree.dirs() {
        let key = tree.node(dir).key;
        for entry in entries {
            let node = tree.node(entry.node);
            if matches!(node.kind, Kind::File | Kind::Symlink) && node.key != key {
                let name = |id| tree.path(id).escape_ascii().to_string();
                return Err(EncryptError::HardLink { path: name(entry.node), other: name(dir) });
            }
        }
    }
    Ok(())
}

/// Returns whether inodes of a policy are read only while inode numbers and UUID stay: the feature `stable_inodes`.
fn needs_stable_inodes(policy: &Policy) -> bool {
    matches!(policy.iv, IvKind::InoLblk64 | IvKind::InoLblk32)
}

/// Returns the features, as mke2fs takes them, that a file system needs for a policy.
pub fn features_of(policy: &Policy) -> &'static str {
    if needs_stable_inodes(policy) { "encrypt,stable_inodes" } else { "encrypt" }
}

/// Fails in words if what a node is encrypted with cannot be used on a file system like that.
pub(crate) fn check_node(tree: &Tree, number: u16, place: &Place) -> Result<(), String> {
    let Some(Keyed { policy, .. }) = tree.keys.get(number) else {
        return Err(format!("there is no key number {number}"));
    };
    if needs_stable_inodes(policy) && !place.is_stable {
        return Err("it is encrypted with the numbers of inodes, which needs the stable_inodes feature (-O \
                    stable_inodes)"
            .into());
    }
    match policy.data_unit_log2 {
        Some(unit) if unit > place.block_log2 => Err(format!(
            "it is encrypted in units of {} bytes, and blocks have {}",
            1u64 << unit,
            1u64 << place.block_log2
        )),
        _ => Ok(()),
    }
}

/// Returns whether a directory can be in the order of its folded names. Policies of version 1 have no key for that.
pub(crate) fn hashes_names(tree: &Tree, dir: NodeId) -> bool {
    let keyed = tree.keys.get(tree.node(dir).key);
    keyed.is_none_or(|keyed| matches!(keyed.policy.key, KeySpec::Identifier(_)))
}

/// The context of a node; `None` for one that is not encrypted.
fn context(tree: &Tree, id: NodeId) -> Option<Context> {
    let policy = tree.keys.get(tree.node(id).key)?.policy;
    let mut hash = Sha256::new().chain_update(tree.keys.seed).chain_update(policy.key.to_string());
    if !sabotage("image.encrypt.one-nonce") {
        hash.update(tree.path(id));
    }
    let hash: [u8; 32] = hash.finalize().into();
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&hash[..NONCE_BYTES]);
    Some(Context { policy, nonce })
}

/// The cipher of the names in a directory at that place, or of a link's target; `None` for one that is not encrypted.
pub(crate) fn names_cipher(tree: &Tree, id: NodeId, place: &Place) -> Option<NamesCipher> {
    let keyed = tree.keys.get(tree.node(id).key)?;
    NamesCipher::new(&keyed.key, &context(tree, id)?, place).ok()
}

/// The cipher of a file's contents at that place; `None` for one that is not encrypted.
pub(crate) fn contents_cipher(tree: &Tree, id: NodeId, place: &Place) -> Option<ContentsCipher> {
    let keyed = tree.keys.get(tree.node(id).key)?;
    ContentsCipher::new(&keyed.key, &context(tree, id)?, place).ok()
}

/// A name as a directory with that cipher stores it.
pub(crate) fn stored_name(cipher: &NamesCipher, name: &[u8]) -> Box<[u8]> {
    // Names of a tree are short enough. An empty one would be refused where it is stored.
    cipher.encrypt(name, NAME_MAX).unwrap_or_default().into()
}

/// Bytes that a link's target takes where it is stored. `block` bytes are the most, with a zero byte that Linux counts.
pub(crate) fn target_len(tree: &Tree, id: NodeId, block: usize) -> u64 {
    let node = tree.node(id);
    let Some(keyed) = tree.keys.get(node.key) else {
        return node.size;
    };
    let padding = usize::from(keyed.policy.padding);
    let padded = (node.size as usize).max(NAME_BYTES_MIN).next_multiple_of(padding);
    2 + padded.min(block - 3).max(node.size as usize) as u64
}

/// A link's target as it is stored: with the key its length and ciphertext.
pub(crate) fn stored_target(tree: &Tree, id: NodeId, place: &Place) -> Vec<u8> {
    let target = tree.target(tree.node(id));
    let Some(cipher) = names_cipher(tree, id, place) else {
        return target.to_vec();
    };
    let block = 1usize << place.block_log2;
    let stored = cipher.encrypt(target, block - 3).unwrap_or_default();
    [&(stored.len() as u16).to_le_bytes()[..], &stored].concat()
}

/// Draws or derives the seed of all nonces, and puts a context among the attributes of each encrypted node. Without
/// `keep`, other attributes are left out.
///
/// # Errors
///
/// In words: the system has no random bytes.
pub(crate) fn add_contexts(
    tree: &mut Tree,
    uuid: &[u8; 16],
    reproducible: bool,
    keep: bool,
) -> Result<(), String> {
    if !tree.is_encrypted() {
        return Ok(());
    }
    let mut seed = [0; 32];
    if reproducible {
        seed =
            Sha256::new().chain_update(b"extant build nonces").chain_update(uuid).finalize().into();
    } else {
        os_random(&mut seed).map_err(|error| error.to_string())?;
    }
    tree.keys.seed = seed;
    for index in 0..tree.nodes().len() as u32 {
        let id = NodeId(index);
        let context = context(tree, id);
        let mut set: XattrSet = match keep {
            true => tree.xattrs(tree.node(id)).clone(),
            false => Vec::new(),
        };
        set.retain(|(name, _)| &**name != CONTEXT);
        match context {
            Some(context) => {
                set.insert(0, (CONTEXT.into(), context.encode().into()));
                tree.set_xattrs(id, set);
            }
            None if !keep => tree.node_mut(id).xattrs = XattrSetId(0),
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tree::{Node, TreeBuilder};

    fn key(byte: u8) -> MasterKey {
        MasterKey::new(&[byte; 64]).unwrap()
    }

    /// `a/b/file`, `a/link`, `c/other` and, if wanted, `c/again`, which is `a/b/file`.
    fn tree(linked: bool) -> Tree {
        let mut builder = TreeBuilder::new(Node::new(Kind::Dir));
        let mut add = |parent, name: &[u8], kind| {
            let id = builder.add(Node::new(kind)).unwrap();
            builder.link(parent, name, id).unwrap();
            id
        };
        let a = add(NodeId::ROOT, b"a", Kind::Dir);
        let b = add(a, b"b", Kind::Dir);
        let c = add(NodeId::ROOT, b"c", Kind::Dir);
        add(a, b"pipe", Kind::Fifo);
        add(c, b"other", Kind::File);
        let file = add(b, b"file", Kind::File);
        if linked {
            builder.link(c, b"again", file).unwrap();
        }
        builder.finish().unwrap()
    }

    #[test]
    fn all_below_a_directory_is_marked_and_nothing_else() {
        let mut tree = tree(false);
        encrypt(&mut tree, b"/a/", &key(1)).unwrap();
        let marked: BTreeSet<Vec<u8>> = (0..tree.nodes().len() as u32)
            .map(NodeId)
            .filter(|id| tree.node(*id).key != 0)
            .map(|id| tree.path(id))
            .collect();
        assert_eq!(marked, [&b"a"[..], b"a/b", b"a/b/file"].map(<[u8]>::to_vec).into());
        check_links(&tree).unwrap();
        assert!(matches!(
            encrypt(&mut tree, b"a/b", &key(1)),
            Err(EncryptError::Nested { path }) if path == "a/b"
        ));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (path, words) in [
            (&b"none"[..], "no directory \"none\""),
            (b"a/pipe", "no directory"),
            (b"/", "cannot be encrypted"),
        ] {
            let error = encrypt(&mut tree(false), path, &key(1)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let short = MasterKey::new(&[1; 16]).unwrap();
        assert!(matches!(encrypt(&mut tree(false), b"a", &short), Err(EncryptError::Key(_))));
        let mut linked = tree(true);
        encrypt(&mut linked, b"a", &key(1)).unwrap();
        assert!(matches!(check_links(&linked), Err(EncryptError::HardLink { .. })));
        // With another key it is no better; with the same one it is.
        encrypt(&mut linked, b"c", &key(2)).unwrap();
        assert!(check_links(&linked).is_err());
        let mut linked = tree(true);
        encrypt(&mut linked, b"a", &key(1)).unwrap();
        encrypt(&mut linked, b"c", &key(1)).unwrap();
        check_links(&linked).unwrap();
    }

    #[test]
    fn nonces_are_different_and_follow_from_the_uuid_alone() {
        let contexts = |uuid: u8, reproducible| {
            let mut tree = tree(false);
            encrypt(&mut tree, b"a", &key(1)).unwrap();
            encrypt(&mut tree, b"c", &key(2)).unwrap();
            add_contexts(&mut tree, &[uuid; 16], reproducible, true).unwrap();
            // A second time nothing is added.
            add_contexts(&mut tree, &[uuid; 16], reproducible, true).unwrap();
            let sets = tree.nodes().iter().map(|node| tree.xattrs(node));
            let sets = sets.filter(|set| !set.is_empty()).inspect(|set| assert_eq!(set.len(), 1));
            sets.map(|set| Context::decode(&set[0].1).unwrap().nonce).collect::<Vec<_>>()
        };
        let first = contexts(1, true);
        assert_eq!(first.len(), 5);
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 5);
        assert_eq!(first, contexts(1, true));
        assert_ne!(first, contexts(2, true));
        assert_ne!(contexts(1, false), contexts(1, false));
    }
}
