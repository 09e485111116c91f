//! superblock
