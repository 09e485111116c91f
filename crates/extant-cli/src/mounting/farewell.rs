//! What became of a file system, said to who unmounted it.
//!
//! Whoever unmounts is not the parent of the server, so sees that it has ended and not how. So it gives the
//! keeper the name of a socket before, and the keeper sends its last word there.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mounting::link::{Word, of_packet, packet};

/// Most who are told.
pub(crate) const HEARERS_MAX: usize = 16;
/// Longest packet.
const PACKET_BYTES_MAX: usize = 1 << 16;

/// Waits for the last word of a keeper.
#[derive(Debug)]
pub(crate) struct Hearer {
    socket: UnixDatagram,
    dir: PathBuf,
}

impl Hearer {
    /// A socket in a directory that nobody else can reach.
    pub(crate) fn new() -> io::Result<Hearer> {
        let mut random = [0; 8];
        extant_sync::os_random(&mut random).map_err(io::Error::other)?;
        let name = format!("extant-umount-{:016x}", u64::from_ne_bytes(random));
        let dir = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&dir)?;
        let socket = UnixDatagram::bind(dir.join("end"));
        let mut hearer = Hearer { socket: UnixDatagram::unbound()?, dir };
        hearer.socket = socket?;
        Ok(hearer)
    }

    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join("end")
    }

    /// Returns what was said, if something is said in time.
    pub(crate) fn hear(&self, within: Duration) -> Option<Word> {
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        self.socket.set_read_timeout(Some(within)).ok()?;
        let count = self.socket.recv(&mut bytes).ok()?;
        of_packet(bytes.get(..count)?)
    }
}

impl Drop for Hearer {
    fn drop(&mut self) {
        // Nobody is hurt by what is left.
        let _ = std::fs::remove_file(self.path());
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// Says the last word to who listens at `path`; nobody may be there any more.
pub(crate) fn say(path: &Path, word: &Word) {
    let said = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(&packet(word), path)
    });
    drop(said);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::{Exit, Failure};

    #[test]
    fn a_last_word_is_heard_and_nothing_is_left() {
        let hearer = Hearer::new().unwrap();
        let path = hearer.path();
        assert!(hearer.hear(Duration::from_millis(1)).is_none());
        say(&path, &Word::Failed(Failure::new(Exit::Io, "the journal had stopped")));
        let word = hearer.hear(Duration::from_secs(5));
        assert!(matches!(word, Some(Word::Failed(failure)) if failure.message.contains("journal")));
        drop(hearer);
        assert!(!path.parent().unwrap().exists());
        say(&path, &Word::Ready);
    }
}
