//! Decoded nodes of extent trees.

use extant_format::extent::{self, Entries, Expect, Extent, ExtentFault, Index, Node};

/// A node of an extent tree, checked and decoded once.
#[derive(Debug)]
pub(crate) struct ExtentNode {
    /// The parent's constraints at the time of decoding; `None` for a root. The same block reached
    /// from another parent (only in a damaged image) is decoded again.
    pub(crate) expect: Option<Expect>,
    pub(crate) records: Records,
}

#[derive(Debug)]
pub(crate) enum Records {
    Leaf(Vec<Extent>),
    Index(Vec<(Index, Expect)>),
}

impl ExtentNode {
    /// Decodes the root in `i_block`.
    pub(crate) fn decode_root(i_block: &[u8; extent::ROOT_BYTES]) -> Result<Self, ExtentFault> {
        Node::decode_root(i_block).map(|node| Self::from_node(&node, None))
    }

    /// Decodes a node below the root, whose parent gives `expect`.
    pub(crate) fn decode_block(bytes: &[u8], expect: Expect) -> Result<Self, ExtentFault> {
        Node::decode_block(bytes, expect).map(|node| Self::from_node(&node, Some(expect)))
    }

    fn from_node(node: &Node<'_>, expect: Option<Expect>) -> ExtentNode {
        let records = match node.entries() {
            Entries::Extents(_) => Records::Leaf(node.extents().collect()),
            Entries::Indexes(_) => Records::Index(node.children().collect()),
        };
        ExtentNode { expect, records }
    }
}
