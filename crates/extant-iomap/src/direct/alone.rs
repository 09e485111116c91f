//! Writing past the cache with the file alone: whatever a direct write may have to do.

use super::Progress;
use crate::cache::CacheError;
use crate::file::FileCache;
use crate::mapping::{Done, Intent, Mapper, Placed};
use extant_base::sabotage;

impl FileCache {
    /// Writes like [`write`](Self::write), with whole blocks going to the device at once. The
    /// caller holds the content lock exclusively, no folio lock and no journal handle, and the file
    /// has no maps.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and those of writeback for these blocks.
    ///
    /// # Cost
    ///
    /// One device write for each run of blocks, and one handle if any of them had no data before.
    /// Waits for writeback of the file.
    pub fn write_direct<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let end = offset.saturating_add(bytes.len() as u64);
        let whole = self.whole_blocks(offset..end).filter(|_| !mapper.is_staged());
        let Some(whole) = whole else {
            return self.write(mapper, offset, bytes);
        };
        let head = (whole.start - offset) as usize;
        let middle = head..(whole.end - offset) as usize;
        let mut done = 0;
        if head > 0 {
            done = self.write(mapper, offset, &bytes[..head])?;
        } else if offset > mapper.size() {
            self.zero_tail(mapper, mapper.size())?;
        }
        if done < head {
            return Ok(done);
        }
        match self.write_blocks(mapper, whole.start, &bytes[middle.clone()]) {
            // There is no error, but no place for the data: the write through the cache finds the
            // reason.
            Ok(0) => {}
            Ok(written) => done += written,
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
        }
        if done == head || (done == middle.end && done < bytes.len()) {
            match self.write(mapper, offset + done as u64, &bytes[done..]) {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(done)
    }

    /// Writes whole blocks; returns the number of bytes, fewer only before an error.
    fn write_blocks<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, M::Error> {
        let end = offset + bytes.len() as u64;
        let kept_out = self.keep_writeback_out();
        if end > mapper.stored_size() && !sabotage("iomap.direct.size-passes-dirty") {
            // The stored size has to follow what is added here, and may not pass what is dirty before it.
            self.write_back_kept_out(mapper, 0..offset, &kept_out)?;
        }
        let mut stored = Progress::new(offset);
        let failed = self.store(mapper, end, bytes, offset, &mut stored).err();
        if stored.at > offset {
            let size = mapper.size();
            mapper.set_size(size.max(stored.at));
            let placements = std::mem::take(&mut stored.placements);
            let published = mapper.publish(Done { placements, size_to: stored.at, grows: false });
            if published.is_err() {
                mapper.set_size(size);
                stored.at = offset;
            }
            self.end_all(mapper, &stored);
            published?;
            if !sabotage("iomap.direct.old-folio-kept") {
                self.forget(offset..stored.at, &kept_out); // R1.
            }
        } else {
            self.end_all(mapper, &stored);
        }
        if failed.is_some() {
            // The device may have some of the bytes of the write that failed, and readers see what it
            // has. What is dirty there is older than this write, and goes to the device first.
            let touched = stored.at..end;
            if self.write_back_kept_out(mapper, touched.clone(), &kept_out).is_ok() {
                self.forget(touched, &kept_out);
            }
        }
        match failed {
            Some(error) if stored.at == offset => Err(error),
            _ => Ok((stored.at - offset) as usize),
        }
    }

    /// Writes the bytes to the device, at places of the mapper, up to an error, or to a block for
    /// which the file system has no place, whose reason the write through the cache finds.
    fn store<M: Mapper>(
        &self,
        mapper: &M,
        end: u64,
        bytes: &[u8],
        offset: u64,
        stored: &mut Progress<M::Ticket>,
    ) -> Result<(), M::Error> {
        while stored.at < end {
            let mapping = mapper.map(stored.at..end, Intent::Write)?;
            let mapped_to = mapping.end().min(end);
            stored.new.push(mapping);
            while stored.at < mapped_to {
                let placement = mapper.place(stored.at..mapped_to, stored.last_ticket())?;
                if matches!(placement.placed, Placed::Nowhere) {
                    return Ok(());
                }
                let part =
                    (placement.offset - offset) as usize..(placement.end() - offset) as usize;
                let (offset, address) = (placement.offset, placement.address);
                let written = mapper.contents().and_then(|contents| {
                    contents.write_at(offset, address, &bytes[part]).map_err(M::Error::from)
                });
                if let Err(error) = written {
                    if !sabotage("iomap.direct.place-kept-on-error") {
                        mapper.give_back(placement);
                    }
                    return Err(error);
                }
                self.cache.counters.direct_writes.add(1);
                self.cache.counters.bytes_written_direct.add(placement.len);
                stored.push(placement);
            }
        }
        Ok(())
    }
}
