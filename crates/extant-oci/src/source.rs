//! Streams of bytes that learn whether what they gave was right.

use std::fs::File;
use std::io::Read;

/// The bytes of a file, from front to back.
pub trait Source: Read + Send {
    /// Tells that all bytes were read and have the size and digest that they should have.
    fn proven(&mut self) {}
}

impl Source for File {}
impl Source for &[u8] {}
