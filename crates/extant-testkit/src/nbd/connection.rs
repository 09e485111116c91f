//! One connection: it negotiates, and answers one request after the other until it is cut.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use extant_sync::{Clock, SystemClock};

use super::{CUTS, Cut, LOOK, Shared, State, flags};

const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const OPTION: u64 = 0x4948_4156_454f_5054;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
/// Longest payload that is taken.
const PAYLOAD_MAX: u32 = 32 << 20;

pub(super) struct Connection<'a> {
    pub(super) shared: &'a Shared,
    pub(super) socket: UnixStream,
    pub(super) life: u64,
}

/// A request.
struct Request {
    command: u16,
    is_fua: bool,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Connection<'_> {
    pub(super) fn run(mut self) -> io::Result<()> {
        self.agree()?;
        while !self.shared.end.load(Ordering::SeqCst) {
            if !self.answer()? {
                break;
            }
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn agree(&mut self) -> io::Result<()> {
        self.socket.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        self.take::<4>()?;
        loop {
            let magic = u64::from_be_bytes(self.take()?);
            let option = u32::from_be_bytes(self.take()?);
            let len = u32::from_be_bytes(self.take()?);
            assert!(magic == OPTION && len < 9000, "a client that breaks the rules");
            let mut data = vec![0; len as usize];
            self.socket.read_exact(&mut data)?;
            if option != 7 {
                // Not supported, and no structured replies either.
                self.reply_to(option, 1 << 31 | 1, &[])?;
                continue;
            }
            let says = self.shared.state.lock().says;
            let mut info = vec![0, 0];
            info.extend(says.size.to_be_bytes());
            info.extend(says.flags.to_be_bytes());
            self.reply_to(option, 3, &info)?;
            if let Some((least, most)) = says.sizes {
                let mut info = vec![0, 3];
                [least, least.max(4096), most].iter().for_each(|n| info.extend(n.to_be_bytes()));
                self.reply_to(option, 3, &info)?;
            }
            return self.reply_to(option, 1, &[]);
        }
    }

    fn reply_to(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut reply = OPTION_REPLY.to_be_bytes().to_vec();
        [option, kind, data.len() as u32].iter().for_each(|n| reply.extend(n.to_be_bytes()));
        reply.extend(data);
        self.socket.write_all(&reply)
    }

    /// Answers one request. False if the connection ends.
    fn answer(&mut self) -> io::Result<bool> {
        let magic = u32::from_be_bytes(self.take()?);
        let (flags, command) = (u16::from_be_bytes(self.take()?), u16::from_be_bytes(self.take()?));
        let (cookie, offset) = (u64::from_be_bytes(self.take()?), u64::from_be_bytes(self.take()?));
        let len = u32::from_be_bytes(self.take()?);
        assert_eq!(magic, REQUEST, "a client that breaks the rules");
        if command == 2 {
            return Ok(false);
        }
        let request = Request { command, is_fua: flags & 1 != 0, cookie, offset, len };
        let Some((cut, forgets)) = self.fate() else { return Ok(false) };
        let mut payload = Vec::new();
        if command == 1 {
            assert!(len <= PAYLOAD_MAX, "a payload of {len} bytes");
            if cut == Some(Cut::Unread) {
                return Ok(self.end(forgets));
            }
            let most = if cut == Some(Cut::HalfRead) { len / 2 } else { len };
            payload.resize(most as usize, 0);
            self.socket.read_exact(&mut payload)?;
        }
        match cut {
            Some(Cut::Unread | Cut::HalfRead | Cut::Unapplied) => return Ok(self.end(forgets)),
            Some(Cut::Late) => {
                while !self.shared.is_let_go.load(Ordering::SeqCst) {
                    SystemClock.sleep(LOOK);
                }
            }
            _ => {}
        }
        let done = {
            let mut state = self.shared.state.lock();
            if state.life != self.life {
                return Ok(false);
            }
            apply(&mut state, &request, &payload)
        };
        if matches!(cut, Some(Cut::Unanswered | Cut::Late)) {
            return Ok(self.end(forgets));
        }
        let (errno, data) = match done {
            Ok(data) => (0, data),
            Err(errno) => (errno, Vec::new()),
        };
        let mut reply = REPLY.to_be_bytes().to_vec();
        reply.extend(errno.to_be_bytes());
        reply.extend(request.cookie.to_be_bytes());
        reply.extend(data);
        if cut == Some(Cut::HalfAnswered) {
            self.socket.write_all(&reply[..reply.len() / 2])?;
            return Ok(self.end(forgets));
        }
        self.socket.write_all(&reply)?;
        Ok(true)
    }

    /// Counts a request, and says where it is cut and whether the server forgets then. `None` if nobody is
    /// there any more.
    fn fate(&self) -> Option<(Option<Cut>, bool)> {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        let number = state.requests;
        state.requests += 1;
        if state.faults.gone_from.is_some_and(|from| number >= from) {
            self.shared.is_gone.store(true, Ordering::SeqCst);
            state.hang_up();
            return None;
        }
        let named = state.faults.exactly.iter().find(|(at, _)| *at == number);
        let cut = match named {
            Some((_, cut)) => Some(*cut),
            None if state.faults.cut_one_in > 0 && state.random.one_in(state.faults.cut_one_in) => {
                Some(CUTS[state.random.below(CUTS.len() as u64) as usize])
            }
            None => None,
        };
        state.cuts += u64::from(cut.is_some());
        let forgets = cut.is_some()
            && state.faults.forget_one_in > 0
            && state.random.one_in(state.faults.forget_one_in);
        Some((cut, forgets))
    }

    fn end(&self, forgets: bool) -> bool {
        if forgets {
            self.shared.state.lock().die();
        }
        false
    }
}

fn apply(state: &mut State, request: &Request, payload: &[u8]) -> Result<Vec<u8>, u32> {
    let has = |flag: u16| state.says.flags & flag != 0;
    let (offset, len) = (request.offset, u64::from(request.len));
    let is_change = matches!(request.command, 1 | 4 | 6);
    if is_change && has(flags::READ_ONLY) {
        return Err(1);
    }
    let is_known = match request.command {
        0 | 1 => true,
        3 => has(flags::FLUSH),
        4 => has(flags::TRIM),
        6 => has(flags::WRITE_ZEROES),
        _ => false,
    };
    if !is_known || (request.is_fua && !has(flags::FUA)) {
        return Err(EINVAL);
    }
    // It may have said another size than there is.
    if offset.checked_add(len).is_none_or(|end| end > state.memory.size_bytes()) {
        return Err(if is_change { ENOSPC } else { EINVAL });
    }
    let zeros;
    let done = match request.command {
        0 => {
            let mut data = vec![0; request.len as usize];
            return state.memory.read(offset, &mut data).map(|()| data).map_err(|_| EIO);
        }
        3 if state.faults.failing_flushes > 0 => {
            state.faults.failing_flushes -= 1;
            state.memory.forget(&mut state.random, &state.faults.whole);
            return Err(EIO);
        }
        3 => state.memory.flush(),
        // Nobody may rely on what is there afterwards.
        4 => Ok(()),
        command => {
            let bytes = match command {
                1 => payload,
                _ => {
                    zeros = vec![0; request.len as usize];
                    &zeros[..]
                }
            };
            match request.is_fua {
                true => state.memory.write_through(offset, bytes),
                false => state.memory.write(offset, bytes),
            }
        }
    };
    done.map(|()| Vec::new()).map_err(|_| EIO)
}
