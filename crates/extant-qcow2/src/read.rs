//! Reading.

use std::io;
use std::ops::Range;

use crate::compressed;
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

    /// Fetches what ranges of the disk consist of, in the file and in the image below, if these are far away. What
    /// is damaged is left to whoever reads it.
    pub(crate) fn bring_parts_near(&self, ranges: &[Range<u64>]) {
        let inside = self.gate.read();
        let bits = self.header.cluster_bits;
        let (mut here, mut below) = (Vec::new(), Vec::new());
        for range in ranges {
            let (mut at, end) = (range.start, range.end.min(self.header.size));
            while at < end {
                let until = (((at >> bits) + 1) << bits).min(end);
                let (l1, index) = self.indices(at >> bits);
                let place = match self.table(l1) {
                    Ok(None) => Ok(Place::Below),
                    Ok(Some(table)) => self.place_of(table.get(index)),
                    Err(error) => Err(error),
                };
                match place {
                    Ok(Place::Data(host)) => {
                        let host = host + (at & ((1 << bits) - 1));
                        here.push(host..host + (until - at));
                    }
                    Ok(Place::Packed(entry)) => {
                        let (host, len) = compressed::place(entry, bits);
                        here.push(host..host + len);
                    }
                    Ok(Place::Below) => below.push(at..until),
                    Ok(Place::Zeros) | Err(_) => {}
                }
                at = until;
            }
        }
        // A server may take long, and what moves meanwhile is found again by who reads it.
        drop(inside);
        self.store.bring_near(&here);
        if let Some(backing) = &self.backing {
            backing.bring_near(&below);
        }
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
