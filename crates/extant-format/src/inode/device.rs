//! Device numbers of special files.

use crate::le::{put, u32_at};

/// A device number, kept in the first two words of `i_block`.
///
/// Two encodings: the old one, 8 bits each, in word 0; the new one, 12 and 20 bits, in word 1 with
/// word 0 zero. The old one is used whenever both numbers fit.
///
/// Source: Linux `include/linux/kdev_t.h`, as used by ext4 for special inodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DeviceNumber {
    /// Major number, 0..=4095.
    pub major: u32,
    /// Minor number, 0..=1048575.
    pub minor: u32,
}

/// A device number that ext4 cannot store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("device {major}:{minor} is above 4095:1048575, the largest that ext4 stores")]
pub struct DeviceNumberError {
    /// Major number asked for.
    pub major: u32,
    /// Minor number asked for.
    pub minor: u32,
}

impl DeviceNumber {
    /// Checks the ranges.
    ///
    /// # Errors
    ///
    /// [`DeviceNumberError`] above 12 bits of major or 20 bits of minor.
    pub fn new(major: u32, minor: u32) -> Result<DeviceNumber, DeviceNumberError> {
        if major >= 1 << 12 || minor >= 1 << 20 {
            return Err(DeviceNumberError { major, minor });
        }
        Ok(DeviceNumber { major, minor })
    }

    /// From `i_block`.
    pub fn decode(block: &[u8; 60]) -> DeviceNumber {
        let old = u32_at(block, 0).unwrap_or(0);
        if old != 0 {
            return DeviceNumber { major: (old >> 8) & 0xff, minor: old & 0xff };
        }
        let new = u32_at(block, 4).unwrap_or(0);
        DeviceNumber { major: (new >> 8) & 0xfff, minor: (new & 0xff) | ((new >> 12) & 0xf_ff00) }
    }

    /// To `i_block`.
    pub fn encode(self) -> [u8; 60] {
        let mut block = [0; 60];
        let (at, word) = if self.major < 256 && self.minor < 256 {
            (0, (self.major << 8) | self.minor)
        } else {
            let high = (self.minor & 0xf_ff00) << 12;
            (4, (self.minor & 0xff) | ((self.major & 0xfff) << 8) | high)
        };
        // Bytes 0..8 of 60 are always there.
        let written = put(&mut block, at, &word.to_le_bytes());
        debug_assert!(written.is_some(), "word {at} of 60 bytes");
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_reads_back_and_the_old_form_is_used_when_it_fits() {
        for major in (0..4096).step_by(5).chain([255, 256, 4095]) {
            for minor in [0, 1, 2, 255, 256, 257, 4095, 4096, 65_535, 65_536, 1_048_575] {
                let device = DeviceNumber::new(major, minor).unwrap();
                let block = device.encode();
                assert_eq!(DeviceNumber::decode(&block), device);
                let fits = major < 256 && minor < 256;
                assert_eq!(block[4..8] == [0; 4], fits || (major, minor) == (0, 0));
            }
        }
        assert!(DeviceNumber::new(4096, 0).is_err());
        assert!(DeviceNumber::new(0, 1 << 20).is_err());
    }

    #[test]
    fn known_words() {
        // /dev/null is 1:3; 259:300 is an NVMe partition past the old limits.
        assert_eq!(DeviceNumber { major: 1, minor: 3 }.encode()[..4], [3, 1, 0, 0]);
        let block = DeviceNumber { major: 259, minor: 300 }.encode();
        assert_eq!(block[..8], [0, 0, 0, 0, 0x2c, 0x03, 0x11, 0x00]);
    }
}
