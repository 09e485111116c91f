//! What one thread does.

use extant_base::Prng;

use super::book::{ANYWHERE, Book, Care, UNIT};
use super::{
    Answer, DIRS, FILE_BYTES, Log, NAMES, Place, Renaming, SHIFT_BYTES, Space, Storm, Target, Way,
};

/// Files that a thread has open at most.
const OPEN_MOST: usize = 4;
/// Of so many files, one is moved in parts, and one is copied to: the others are known exactly.
const KINDS: u64 = 4;

/// What other threads, a full disk or a layout may answer.
const MAY_BE: [i32; 20] = [
    1,   // EPERM
    2,   // ENOENT
    12,  // ENOMEM: too much is mapped
    16,  // EBUSY
    17,  // EEXIST
    18,  // EXDEV
    20,  // ENOTDIR
    21,  // EISDIR
    22,  // EINVAL
    26,  // ETXTBSY
    27,  // EFBIG
    28,  // ENOSPC
    31,  // EMLINK
    36,  // ENAMETOOLONG
    39,  // ENOTEMPTY
    40,  // ELOOP
    61,  // ENODATA
    75,  // EOVERFLOW
    95,  // EOPNOTSUPP
    122, // EDQUOT
];

struct Open<F> {
    file: F,
    id: u64,
}

/// One thread.
pub(super) struct Actor<'a, T: Target> {
    storm: &'a Storm,
    target: &'a T,
    book: &'a Book,
    number: usize,
    moment: &'a (dyn Fn() -> u64 + Sync),
    random: Prng,
    open: Vec<Open<T::File>>,
    log: Log,
    log_file: Option<T::File>,
    /// What it does now, for messages.
    doing: String,
    pub(super) done: u64,
    pub(super) refused: u64,
}

impl<'a, T: Target> Actor<'a, T> {
    pub(super) fn new(
        storm: &'a Storm,
        target: &'a T,
        book: &'a Book,
        number: usize,
        moment: &'a (dyn Fn() -> u64 + Sync),
    ) -> Actor<'a, T> {
        let random = Prng::new(storm.seed.wrapping_mul(1000) + number as u64);
        Actor {
            storm,
            target,
            book,
            number,
            moment,
            random,
            open: Vec::new(),
            log: Log::default(),
            log_file: None,
            doing: String::new(),
            done: 0,
            refused: 0,
        }
    }

    pub(super) fn finish(self) -> Log {
        self.log
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit.max(1))
    }

    fn place(&mut self) -> Place {
        let (dir, name) = (self.below(DIRS.into()) as u8, self.below(NAMES.into()) as u8);
        Place { dir, name }
    }

    /// Units of a file: where, and how many bytes.
    fn range(&mut self) -> (u64, u64) {
        let most = [1, 8, 32, 128, 400][self.below(5) as usize];
        let len = (1 + self.below(most)) * UNIT;
        // The front is where threads meet.
        let room = if self.random.one_in(3) { FILE_BYTES } else { FILE_BYTES / 8 };
        let at = self.below(room / UNIT) * UNIT;
        // Whole pages as often as not.
        if self.random.one_in(2) {
            let at = at & !4095;
            return (at, len.next_multiple_of(4096).min(FILE_BYTES - at));
        }
        (at, len.min(FILE_BYTES - at))
    }

    /// `None` for an answer that may be.
    fn answered<R>(&mut self, what: &str, answer: Answer<R>) -> Result<Option<R>, String> {
        match answer {
            Ok(value) => {
                self.done += 1;
                Ok(Some(value))
            }
            Err(errno) if self.storm.may_fail || MAY_BE.contains(&errno) => {
                self.refused += 1;
                Ok(None)
            }
            Err(errno) => {
                Err(format!("thread {}: {what} {}: error {errno}", self.number, self.doing))
            }
        }
    }

    fn says(&mut self, what: impl std::fmt::Debug) {
        self.doing = format!("{what:?}");
    }

    fn which(&mut self) -> Option<usize> {
        let count = self.open.len() as u64;
        (count > 0).then(|| self.below(count) as usize)
    }

    /// One operation.
    pub(super) fn step(&mut self) -> Result<(), String> {
        if self.log_file.is_none() && self.log.place.is_none() {
            return self.begin_log();
        }
        match self.below(64) {
            0..=9 => self.open_one(),
            10..=13 => {
                if let Some(which) = self.which() {
                    drop(self.open.swap_remove(which));
                }
                Ok(())
            }
            14..=27 => self.write(),
            28..=30 => self.append(),
            31..=34 => self.read(),
            35..=37 => self.truncate(),
            38..=42 => self.space(),
            43 | 44 => self.copy(),
            45..=47 => self.sync(),
            48..=51 => self.unlink(),
            52..=54 => self.rename(),
            55 | 56 => self.link(),
            57 | 58 => self.other_kinds(),
            59 => self.attributes(),
            60 | 61 => self.append_log(),
            62 => self.look(),
            _ => {
                let random = self.random.next_u64();
                let answer = self.target.disturb(random);
                self.answered("disturbing", answer).map(drop)
            }
        }
    }

    fn keep(&mut self, file: T::File) -> Result<(), String> {
        let id = self.target.identity(&file);
        if let Some(id) = self.answered("identity", id)? {
            if self.open.len() >= OPEN_MOST {
                let which = self.below(OPEN_MOST as u64) as usize;
                drop(self.open.swap_remove(which));
            }
            self.open.push(Open { file, id });
        }
        Ok(())
    }

    fn open_one(&mut self) -> Result<(), String> {
        let at = self.place();
        self.says(at);
        let file = match self.below(8) {
            0 => self.target.tmpfile(at.dir),
            1 => self.target.create(at, true),
            2..=4 => self.target.create(at, false),
            _ => self.target.open(at),
        };
        match self.answered("opening", file)? {
            Some(file) => self.keep(file),
            None => Ok(()),
        }
    }

    /// Of so many, so many go past the cache, and one through memory.
    fn way(&mut self, (all, direct): (u64, u64)) -> Way {
        match self.below(all) {
            some if some < direct => Way::Direct,
            some if some == direct => Way::Mapped,
            // Memory that shows a file keeps others in the cache, too.
            _ if self.storm.directs && !self.random.one_in(8) => Way::Direct,
            _ => Way::Cached,
        }
    }

    fn write(&mut self) -> Result<(), String> {
        let Some(which) = self.which() else { return Ok(()) };
        let (at, mut len) = self.range();
        let way = self.way((8, 2));
        let id = self.open[which].id;
        self.says((way, id, at, len));
        let began = self.book.now();
        if way != Way::Cached {
            self.book.will_tear(id);
        }
        if way == Way::Mapped {
            let size = self.target.size(&self.open[which].file);
            let Some(size) = self.answered("size", size)? else { return Ok(()) };
            len = len.min(size.saturating_sub(at)) / UNIT * UNIT;
            if len == 0 {
                return Ok(());
            }
        }
        let bytes = self.book.bytes(id, at, began, len);
        let answer = self.target.write(&self.open[which].file, at, &bytes, way);
        self.book.wrote(id, (at, len), began, answer.is_ok());
        self.answered("writing", answer).map(drop)
    }

    fn append(&mut self) -> Result<(), String> {
        let Some(which) = self.which() else { return Ok(()) };
        let id = self.open[which].id;
        let len = (1 + self.below(32)) * UNIT;
        let size = self.target.size(&self.open[which].file);
        if self.answered("size", size)?.is_none_or(|size| size + 2 * len > FILE_BYTES) {
            return Ok(());
        }
        self.says(("append", id, len));
        let began = self.book.now();
        let bytes = self.book.bytes(id, ANYWHERE, began, len);
        let answer = self.target.append(&self.open[which].file, &bytes);
        match &answer {
            Ok(at) => self.book.wrote(id, (*at, len), began, true),
            // Wherever the end was.
            Err(_) => self.book.wrote(id, (0, FILE_BYTES), began, false),
        }
        self.answered("appending", answer).map(drop)
    }

    fn read(&mut self) -> Result<(), String> {
        let Some(which) = self.which() else { return Ok(()) };
        let (at, len) = self.range();
        let id = self.open[which].id;
        let way = self.way((6, 1));
        self.says((way, id, at, len));
        let mut bytes = vec![0; len as usize];
        let answer = self.target.read(&self.open[which].file, at, &mut bytes, way);
        let Some(got) = self.answered("reading", answer)? else { return Ok(()) };
        let is_atomic = self.target.is_atomic() && way == Way::Cached;
        let care = if is_atomic { Care::Whole } else { Care::Owner };
        self.book
            .check(id, at, &bytes[..got], care)
            .map_err(|what| format!("thread {} reads {}: {what}", self.number, self.doing))
    }

    fn truncate(&mut self) -> Result<(), String> {
        let Some(which) = self.which() else { return Ok(()) };
        let id = self.open[which].id;
        let size = match self.below(4) {
            0 => 0,
            1 => self.below(FILE_BYTES / UNIT) * UNIT,
            _ => self.below(FILE_BYTES / UNIT / 8) * UNIT,
        };
        self.says(("truncate", id, size));
        let began = self.book.now();
        let answer = self.target.truncate(&self.open[which].file, size);
        self.book.zeroed(id, (size, u64::MAX - size), began, answer.is_ok());
        self.answered("truncating", answer).map(drop)
    }

    fn space(&mut self) -> Result<(), String> {
        let Some(which) = self.which() else { return Ok(()) };
        let id = self.open[which].id;
        let (mut at, mut len) = self.range();
        let keep_size = self.random.one_in(2);
        let moves = self.storm.shifts && id % KINDS == 1;
        let what = match self.below(6) {
            0 | 1 => Space::Allocate { keep_size },
            2 => Space::Zero { keep_size },
            3 if moves => Space::Collapse,
            4 if moves => Space::Insert,
            _ => Space::Punch,
        };
        self.says((what, id, at, len));
        let began = self.book.now();
        if matches!(what, Space::Collapse | Space::Insert) {
            let size = self.target.size(&self.open[which].file);
            let Some(size) = self.answered("size", size)? else { return Ok(()) };
            if size + SHIFT_BYTES > FILE_BYTES {
                return Ok(());
            }
            at = (at / 8) & !(SHIFT_BYTES - 1);
            len = SHIFT_BYTES;
            self.book.will_move(id);
        }
        let answer = self.target.space(&self.open[which].file, what, at..at + len);
        if matches!(what, Space::Punch | Space::Zero { .. }) {
            self.book.zeroed(id, (at, len), began, answer.is_ok());
        }
        self.answered("space", answer).map(drop)
    }

    fn copy(&mut self) -> Result<(), String> {
        let (Some(from), Some(to)) = (self.which(), self.which()) else { return Ok(()) };
        let (from_id, id) = (self.open[from].id, self.open[to].id);
        let ((at, len), (to_at, _)) = (self.range(), self.range());
        let len = len.min(FILE_BYTES - to_at);
        if id % KINDS != 2 || from == to {
            return Ok(());
        }
        self.says(("copy", from_id, at, id, to_at, len));
        let began = self.book.now();
        if from_id == id {
            self.book.will_move(id);
        }
        self.book.will_copy(from_id, id);
        let (from, to) = (&self.open[from].file, &self.open[to].file);
        let answer = self.target.copy(from, at, to, to_at, len);
        self.book.copied(id, (to_at, len), began);
        self.answered("copying", answer).map(drop)
    }

    fn sync(&mut self) -> Result<(), String> {
        if self.random.one_in(8) {
            let answer = self.target.sync_all();
            return self.answered("syncing all", answer).map(drop);
        }
        let Some(which) = self.which() else { return Ok(()) };
        let data_only = self.random.one_in(2);
        let answer = self.target.sync(&self.open[which].file, data_only);
        self.answered("syncing", answer).map(drop)
    }

    fn unlink(&mut self) -> Result<(), String> {
        let at = self.place();
        self.says(at);
        let answer = self.target.unlink(at);
        self.answered("unlinking", answer).map(drop)
    }

    fn rename(&mut self) -> Result<(), String> {
        let (from, to) = (self.place(), self.place());
        let how = match self.below(5) {
            0 => Renaming::Exchange,
            1 => Renaming::NoReplace,
            _ => Renaming::Over,
        };
        self.says((how, from, to));
        let answer = self.target.rename(from, to, how);
        self.answered("renaming", answer).map(drop)
    }

    fn link(&mut self) -> Result<(), String> {
        let Some(which) = self.which() else { return Ok(()) };
        let to = self.place();
        self.says((self.open[which].id, to));
        let answer = self.target.link(&self.open[which].file, to);
        self.answered("linking", answer).map(drop)
    }

    fn other_kinds(&mut self) -> Result<(), String> {
        let at = self.place();
        self.says(at);
        let answer = match self.below(4) {
            0 => {
                let long = if self.random.one_in(2) { 20 } else { 400 };
                self.target.symlink(at, &"x".repeat(long))
            }
            1 | 2 => self.target.mkdir(at),
            _ => self.target.rmdir(at),
        };
        self.answered("special", answer).map(drop)
    }

    fn attributes(&mut self) -> Result<(), String> {
        let Some(which) = self.which() else { return Ok(()) };
        let name = format!("user.{}", self.below(3));
        let mode = 0o600 | self.below(0o200) as u16;
        let value = vec![b'v'; [10, 100, 700, 3000][self.below(4) as usize]];
        self.says((self.open[which].id, &name));
        let kind = self.below(4);
        let file = &self.open[which].file;
        let answer = match kind {
            0 | 1 => self.target.set_xattr(file, &name, &value),
            2 => self.target.remove_xattr(file, &name),
            _ => self.target.attributes(file, mode),
        };
        self.answered("attributes", answer).map(drop)
    }

    fn look(&mut self) -> Result<(), String> {
        let at = self.place();
        self.says(at);
        let answer = self.target.look(at);
        self.answered("looking", answer).map(drop)
    }

    fn begin_log(&mut self) -> Result<(), String> {
        let number = NAMES.saturating_add(u8::try_from(self.number).unwrap_or(u8::MAX));
        let at = Place { dir: number % DIRS, name: number };
        self.says(at);
        let file = self.target.create(at, true);
        self.log.place = Some(at);
        self.log_file = self.answered("making its log", file)?;
        Ok(())
    }

    fn append_log(&mut self) -> Result<(), String> {
        let (Some(place), Some(file)) = (self.log.place, &self.log_file) else { return Ok(()) };
        if self.random.one_in(3) {
            let bytes = self.log.bytes;
            let answer = self.target.sync(file, self.random.one_in(2));
            if self.answered("syncing its log", answer)?.is_some() {
                self.log.durable.push((bytes, (self.moment)()));
            }
            return Ok(());
        }
        let len = (1 + self.random.below(20)) * UNIT;
        if self.log.bytes + len > FILE_BYTES {
            return Ok(());
        }
        let bytes = self.book.log_bytes(place.name, self.log.bytes, len);
        let way = if self.random.one_in(4) { Way::Direct } else { Way::Cached };
        let answer = self.target.write(file, self.log.bytes, &bytes, way);
        self.doing = format!("its log at {}", self.log.bytes);
        match self.answered("writing", answer)? {
            Some(()) => self.log.bytes += len,
            // A part may be there: it ends here.
            None => {
                self.log_file = None;
                self.log.is_cut = true;
            }
        }
        Ok(())
    }
}
