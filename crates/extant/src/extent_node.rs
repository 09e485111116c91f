//! Nodes of extent trees, decoded.

use extant_format::extent::{self, Entries, Expect, Extent, ExtentFault, Index, Node};

/// A node of an extent tree, checked and decoded once.
#[derive(Debug)]
pub(crate) struct ExtentNode {
    /// What the parent said when this was decoded; `None` for a root. The same block reached in
    /// another way (only on a damaged image) is decoded again.
    pub(crate) expect: Option<Expect>,
    pub(crate) records: Records,
}

#[derive(Debug)]
pub(crate) enum Records {
    Leaf(Vec<Extent>),
    Index(Vec<(Index, Expect)>),
}

impl ExtentNode {
    /// The root, from `i_block`.
    pub(crate) fn decode_root(i_block: &[u8; extent::ROOT_BYTES]) -> Result<Self, ExtentFault> {
        Node::decode_root(i_block).map(|node| Self::from_node(&node, None))
    }

    /// A node below the root, whose parent says `expect`.
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
