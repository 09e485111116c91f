//! The connections of a device: had by turns, made again when they are lost, and given up when they are of no use.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use extant_base::sabotage;
use extant_block::Operation;
use extant_sync::{Clock, SystemClock};

use super::{NbdDevice, WINDOW};
use crate::pipe::Pipe;
use crate::wire::*;

/// How long nobody tries to connect after it was in vain.
const DOWN: Duration = Duration::from_secs(1);

impl NbdDevice {
    /// Makes all possible connections, for a process that cannot make any later.
    pub fn connect_all(&self) {
        loop {
            {
                let mut pool = self.pool.lock();
                if pool.open >= self.connections.load(Ordering::Relaxed) {
                    return;
                }
                pool.open += 1;
            }
            let made = self.fresh().ok();
            if made.is_none() {
                self.connections.store(self.pool.lock().open.max(2) - 1, Ordering::Relaxed);
            }
            self.release(made);
        }
    }

    /// A connection of its own for one caller; `None` for one that is yet to be made.
    fn acquire(&self) -> Option<Pipe> {
        let mut pool = self.pool.lock();
        loop {
            if let Some(pipe) = pool.idle.pop() {
                return Some(pipe);
            }
            if pool.open < self.connections.load(Ordering::Relaxed) {
                pool.open += 1;
                return None;
            }
            self.is_free.wait(&mut pool);
        }
    }

    /// A connection, if there is one to be had. One beside others is made, and where that cannot be, the
    /// others have to do.
    pub(super) fn acquire_or_connect(&self) -> Option<Pipe> {
        loop {
            if let Some(pipe) = self.acquire() {
                return Some(pipe);
            }
            let made = match sabotage("nbd.client.second-connection-not-told") {
                true => self.connect(),
                false => self.fresh(),
            };
            if let Ok(pipe) = made {
                return Some(pipe);
            }
            let mut pool = self.pool.lock();
            if pool.open <= 1 {
                return None;
            }
            pool.open -= 1;
            self.connections.store(pool.open, Ordering::Relaxed);
        }
    }

    pub(super) fn release(&self, pipe: Option<Pipe>) {
        let mut pool = self.pool.lock();
        match pipe {
            Some(pipe) => pool.idle.push(pipe),
            None => pool.open -= 1,
        }
        drop(pool);
        self.is_free.notify_one();
    }

    /// A new connection to the same export.
    fn connect(&self) -> io::Result<Pipe> {
        let pipe = Pipe::open(&self.address, self.connector.as_ref(), self.settings.limit);
        let pipe = pipe.map_err(io::Error::other)?;
        let (old, new) = (self.export, pipe.export);
        let other = |what: String| Err(io::Error::other(format!("the export came back {what}")));
        if new.size != old.size {
            return other(format!("with {} bytes; it had {}", new.size, old.size));
        }
        if !self.is_read_only && new.flags & READ_ONLY != 0 {
            return other("read-only".to_owned());
        }
        // What was relied on may be under way.
        let lost = old.flags & !new.flags;
        let relied = [
            (SEND_FLUSH, "flushes"),
            (SEND_FUA, "writes that are durable at once"),
            (SEND_TRIM, "discards"),
            (SEND_WRITE_ZEROES, "writes of zeros"),
            (CAN_MULTI_CONN, "several connections"),
        ];
        if let Some((_, what)) = relied.iter().find(|(flag, _)| lost & flag != 0) {
            return other(format!("without {what}; it had them"));
        }
        if new.block_min > old.block_min || new.payload_max < old.payload_max {
            return other(format!(
                "for requests of {} to {} bytes; they were {} to {}",
                new.block_min, new.payload_max, old.block_min, old.payload_max
            ));
        }
        Ok(pipe)
    }

    /// A new connection to a server that has everything that was acknowledged. Whoever answers may be another
    /// one than before, and may have forgotten what was not flushed.
    pub(super) fn fresh(&self) -> io::Result<Pipe> {
        // Nobody else has anything under way that what is written again could overtake, or an answer that
        // is not noted yet.
        let _alone = self.gate.write();
        let pipe = self.connect()?;
        if sabotage("nbd.client.acknowledged-forgotten") {
            return Ok(pipe);
        }
        self.write_again(pipe)
    }

    /// Makes a connection after one was lost, and brings the server to where it was.
    pub(super) fn recover(&self, tries: &mut u32, last: io::Error) -> io::Result<Pipe> {
        let mut last = last;
        let mut most = self.settings.tries;
        if let Some((when, why)) = &*self.down.lock() {
            if SystemClock.monotonic().saturating_sub(*when) < DOWN {
                return Err(io::Error::other(why.clone()));
            }
            most = most.min(1);
        }
        while *tries < most {
            if *tries > 0 {
                SystemClock.sleep(Duration::from_millis(100 << (*tries - 1).min(10)));
            }
            *tries += 1;
            match self.fresh() {
                Ok(pipe) => {
                    self.again.fetch_add(1, Ordering::Relaxed);
                    *self.down.lock() = None;
                    return Ok(pipe);
                }
                Err(error) => last = error,
            }
        }
        let why = format!("the connection is lost: {last}");
        *self.down.lock() = Some((SystemClock.monotonic(), why));
        Err(last)
    }

    /// Over a connection to a server whose last flush failed: tells it again what it had acknowledged, as one that may
    /// have lost it (N7). Returns the connection unless it was lost, and whether the server took everything.
    pub(super) fn restore(&self, mut pipe: Pipe) -> (Option<Pipe>, io::Result<()>) {
        // As over a new connection.
        let _alone = self.gate.write();
        if !self.is_in_doubt.load(Ordering::Acquire) {
            return (Some(pipe), Ok(()));
        }
        match self.tell_again(&mut pipe) {
            Ok(told) => {
                self.is_in_doubt.store(told.is_err(), Ordering::Release);
                (Some(pipe), told)
            }
            Err(_) => {
                // Another connection is made, over which it is told all of it first.
                self.give_up(pipe);
                (None, Ok(()))
            }
        }
    }

    /// Everything that was acknowledged and is not flushed.
    fn write_again(&self, mut pipe: Pipe) -> io::Result<Pipe> {
        match self.tell_again(&mut pipe).flatten() {
            Ok(()) => {
                self.is_in_doubt.store(false, Ordering::Release);
                Ok(pipe)
            }
            Err(error) => {
                self.give_up(pipe);
                Err(error)
            }
        }
    }

    /// Sends everything that was acknowledged and is not flushed, and returns what the server says of it. An error of the
    /// connection means that it is of no use any more.
    fn tell_again(&self, pipe: &mut Pipe) -> io::Result<io::Result<()>> {
        // Parts that do not overlap, so that they may be under way together.
        let mut again = self.unflushed.lock().again().into_iter();
        let mut told = Ok(());
        loop {
            if pipe.len() < WINDOW
                && told.is_ok()
                && let Some(change) = again.next()
            {
                pipe.send(change).map_err(|(error, _)| error)?;
                continue;
            }
            if pipe.len() == 0 {
                return Ok(told);
            }
            let answer = pipe.receive()?;
            if answer.errno != 0 && told.is_ok() {
                told = Err(io::Error::from_raw_os_error(answer.errno));
            }
        }
    }

    /// Ends a connection that is of no use any more, and returns what was under way there, and whether the server
    /// is known to do nothing more of it.
    pub(super) fn give_up(&self, mut pipe: Pipe) -> (Vec<(u64, Operation)>, bool) {
        let waiting = pipe.take_waiting();
        let changes =
            |operation: &Operation| !matches!(operation, Operation::Read { .. } | Operation::Flush);
        let is_over = waiting.iter().all(|(_, operation)| !changes(operation))
            || pipe.wait_for_end()
            || sabotage("nbd.client.sent-again-beside-itself");
        if !is_over {
            self.lingering.lock().push(pipe);
        }
        (waiting, is_over)
    }

    /// Refuses a change while the server may still make an older one.
    pub(super) fn check_lingering(&self) -> io::Result<()> {
        let mut lingering = self.lingering.lock();
        lingering.retain(|pipe| !pipe.has_ended());
        match lingering.len() {
            0 => Ok(()),
            count => Err(io::Error::other(format!(
                "the server neither answers {count} of its connections nor ends them, and may still make the changes that it was sent there: nothing more is changed until it has"
            ))),
        }
    }
}
