//! indirect
