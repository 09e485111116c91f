//! htree
