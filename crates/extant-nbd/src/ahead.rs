//! Bytes of a connection that came with others: one call of the system brings many short replies.

use std::io::{self, Read};

/// Room for replies, in bytes.
const ROOM: usize = 64 << 10;

/// What was read and not taken yet.
pub(crate) struct Ahead {
    bytes: Box<[u8]>,
    taken: usize,
    end: usize,
}

impl Ahead {
    pub(crate) fn new() -> Ahead {
        Ahead { bytes: vec![0; ROOM].into_boxed_slice(), taken: 0, end: 0 }
    }

    /// What has come and was not taken.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.taken..self.end).unwrap_or_default()
    }

    /// Takes bytes: those that have come, or else what one read of `from` brings. Long reads go past the room.
    pub(crate) fn read(&mut self, from: &mut impl Read, out: &mut [u8]) -> io::Result<usize> {
        if self.rest().is_empty() {
            if out.len() >= ROOM {
                return from.read(out);
            }
            (self.taken, self.end) = (0, 0);
            self.end = from.read(&mut self.bytes)?;
        }
        let count = self.rest().len().min(out.len());
        if let (Some(to), Some(part)) = (out.get_mut(..count), self.rest().get(..count)) {
            to.copy_from_slice(part);
        }
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives as much as it is asked for, and counts.
    struct Source {
        next: u8,
        calls: usize,
        longest: usize,
    }

    impl Read for Source {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.calls += 1;
            let count = out.len().min(self.longest);
            for byte in out.iter_mut().take(count) {
                *byte = self.next;
                self.next = self.next.wrapping_add(1);
            }
            Ok(count)
        }
    }

    #[test]
    fn bytes_come_in_their_order_whatever_comes_with_what() {
        for longest in [1, 3, 100, ROOM, usize::MAX] {
            let mut source = Source { next: 0, calls: 0, longest };
            let mut ahead = Ahead::new();
            let mut wanted = 0u8;
            for len in [1, 2, 4, 8, 4096, ROOM, 3, 3 * ROOM + 1, 5, ROOM - 1, 1, 70_000] {
                let mut out = vec![0; len];
                let mut done = 0;
                while done < len {
                    done += ahead.read(&mut source, &mut out[done..]).unwrap();
                }
                for byte in out {
                    assert_eq!(byte, wanted);
                    wanted = wanted.wrapping_add(1);
                }
            }
        }
    }

    #[test]
    fn short_takes_cost_one_read_and_an_end_is_an_end() {
        let mut source = Source { next: 0, calls: 0, longest: usize::MAX };
        let mut ahead = Ahead::new();
        for _ in 0..ROOM / 4 {
            assert_eq!(ahead.read(&mut source, &mut [0; 4]).unwrap(), 4);
        }
        assert_eq!(source.calls, 1);
        assert_eq!(ahead.read(&mut io::empty(), &mut [0; 4]).unwrap(), 0);
        assert_eq!(
            ahead.read(&mut source, &mut [0; 4]).unwrap(),
            4,
            "and the next read asks again"
        );
    }
}
