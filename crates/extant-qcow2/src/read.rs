//! Reading.

use std::io;

use crate::image::Qcow2;
use crate::map::Place;

impl Qcow2 {
    /// Fills `out` from byte `offset` of the disk. The range lies on the disk.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let _inside = self.gate.read();
        self.read_inside(offset, out)
    }

    /// Reads like [`read`](Self::read), for a thread inside the gate already.
    pub(crate) fn read_inside(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bits = self.header.cluster_bits;
        let cluster_bytes = 1u64 << bits;
        let (mut at, end) = (offset, offset + out.len() as u64);
        let mut rest = out;
        while at < end {
            let (l1, first) = self.indices(at >> bits);
            let table = self.table(l1)?;
            // As far as this table reaches, and as long as what follows lies behind it.
            let reach = ((l1 as u64 + 1) << self.header.l2_reach_bits()).min(end);
            let place = |index: usize| match &table {
                None => Ok(Place::Below),
                Some(table) => self.place_of(table.get(index)),
            };
            let run = place(first)?;
            let mut until = ((at >> bits) + 1) << bits;
            let mut index = first + 1;
            while until < reach {
                let follows = match (run, place(index)?) {
                    (Place::Data(host), Place::Data(next)) => {
                        next == host + (index - first) as u64 * cluster_bytes
                    }
                    (Place::Packed(_), _) => false,
                    (one, other) => one == other,
                };
                if !follows {
                    break;
                }
                until += cluster_bytes;
                index += 1;
            }
            let until = until.min(reach);
            let (now, later) = rest.split_at_mut((until - at) as usize);
            let inside = at & (cluster_bytes - 1);
            match run {
                Place::Zeros => now.fill(0),
                Place::Data(host) => self.store.read_at(host + inside, now)?,
                Place::Below => self.read_below(at, now)?,
                Place::Packed(entry) => {
                    let bytes =
                        self.unpacked.get(&*self.store, entry, bits, self.header.compression)?;
                    now.copy_from_slice(&bytes[inside as usize..][..now.len()]);
                }
            }
            rest = later;
            at = until;
        }
        Ok(())
    }

    /// Reads from the image below; zeros behind its end.
    pub(crate) fn read_below(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let Some(backing) = &self.backing else {
            out.fill(0);
            return Ok(());
        };
        let there = backing.size_bytes().saturating_sub(offset).min(out.len() as u64) as usize;
        let (inside, behind) = out.split_at_mut(there);
        behind.fill(0);
        match inside.is_empty() {
            true => Ok(()),
            false => backing.read_at(offset, inside).map_err(io::Error::from),
        }
    }
}
