//! orphan
