//! Label and UUID of a file system that is mounted.

use extant::{FsError, Tune};
use serde_json::json;

use super::Ext4;
use crate::events::Level;
use crate::operations::{Caller, Errno, Reply};
use crate::orders::TUNE;

/// Bytes of hexadecimal digits.
fn bytes_in(text: &str) -> Reply<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Errno::EINVAL);
    }
    let digit = |byte: u8| (byte as char).to_digit(16).ok_or(Errno::EINVAL);
    pairs.iter().map(|[high, low]| Ok((digit(*high)? * 16 + digit(*low)?) as u8)).collect()
}

/// Reads `label:HEX,uuid:HEX,`.
fn tune_in(text: &[u8]) -> Reply<(Tune, Option<Vec<u8>>)> {
    let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let (mut tune, mut label) = (Tune::new(), None);
    for word in text.split(',').filter(|word| !word.is_empty()) {
        match word.split_once(':') {
            Some(("label", hex)) => {
                let bytes = bytes_in(hex)?;
                tune = tune.label(bytes.as_slice());
                label = Some(bytes);
            }
            Some(("uuid", hex)) => {
                let uuid = bytes_in(hex)?.try_into().map_err(|_| Errno::EINVAL)?;
                tune = tune.uuid(uuid);
            }
            _ => return Err(Errno::EINVAL),
        }
    }
    if tune == Tune::new() {
        return Err(Errno::EINVAL);
    }
    Ok((tune, label))
}

impl Ext4<'_> {
    /// The answer to an order about label and UUID; `None` when it is none.
    pub(super) fn naming_query(&self, caller: Caller, name: &[u8]) -> Option<Reply<Vec<u8>>> {
        let order = name.strip_prefix(TUNE)?;
        Some(self.answer_naming(caller, order))
    }

    fn answer_naming(&self, caller: Caller, order: &[u8]) -> Reply<Vec<u8>> {
        self.check_operator(caller)?;
        self.check_change()?;
        if self.gate.is_frozen() {
            return Err(Errno(16)); // EBUSY
        }
        let (tune, label) = tune_in(order)?;
        let answer = match self.set_names(&tune, label) {
            Ok(()) => json!({}),
            Err(error @ (FsError::InvalidArgument { .. } | FsError::ReadOnly)) => {
                json!({ "refused": error.to_string(), "errno": error.errno() })
            }
            Err(error) => return Err(self.errno(&error)),
        };
        Ok(answer.to_string().into_bytes())
    }

    /// Changes label or UUID, and brings the superblock home: programs that list disks read the device.
    pub(super) fn set_names(&self, tune: &Tune, label: Option<Vec<u8>>) -> Result<(), FsError> {
        self.fs().tune(tune)?;
        self.fs().bring_home()?;
        if let Some(label) = label {
            *self.label.lock() = label;
        }
        self.events.log(Level::Info, "has another label or UUID");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_or_refused() {
        let (tune, label) = tune_in(b"label:6461,").unwrap();
        assert_eq!((tune, label), (Tune::new().label(b"da".as_slice()), Some(b"da".to_vec())));
        assert!(tune_in(b"uuid:00112233445566778899aabbccddeeff").is_ok());
        for text in ["", "label:6", "label:zz", "uuid:00", "size:00", "uuid"] {
            assert_eq!(tune_in(text.as_bytes()).unwrap_err(), Errno::EINVAL, "{text}");
        }
    }
}
