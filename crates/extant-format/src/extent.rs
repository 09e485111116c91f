//! extent
