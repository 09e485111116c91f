//! Unpredictable random bytes.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// The operating system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gave no random bytes ({filled} of {wanted} wanted)")]
pub struct RandomError {
    filled: usize,
    wanted: usize,
    #[source]
    source: std::io::Error,
}

/// Fills `out` from the operating system. For UUIDs and hash seeds of real images; tests and
/// reproducible builds use a seeded source instead.
///
/// # Errors
///
/// [`RandomError`] where the system call does not exist or is forbidden.
pub fn os_random(out: &mut [u8]) -> Result<(), RandomError> {
    let wanted = out.len();
    let mut filled = 0;
    while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(0) => {
                let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                return Err(RandomError { filled, wanted, source });
            }
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(RandomError { filled, wanted, source: errno.into() }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_every_byte_of_any_length_and_differently_each_time() {
        os_random(&mut []).unwrap();
        // Large requests may be answered in pieces. A run of 64 zeros has probability 2^-512.
        let mut bytes = vec![0; 100_000];
        os_random(&mut bytes).unwrap();
        assert!(bytes.chunks(64).all(|chunk| chunk.iter().any(|b| *b != 0)));
        let (mut a, mut b) = ([0; 16], [0; 16]);
        os_random(&mut a).unwrap();
        os_random(&mut b).unwrap();
        assert_ne!(a, b);
    }
}
