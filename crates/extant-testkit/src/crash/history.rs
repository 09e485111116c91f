//! A history that is over, and images made from it.

use std::fmt;

use extant_base::Prng;
use extant_block::{Event, MemoryDevice, Record, RecordingDevice, protected_from};

/// Bytes that are written whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// What a cut did to one open record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// It is on the device.
    Kept,
    /// It never happened.
    Lost,
    /// Its first bytes are there.
    First(u64),
    /// Its bytes from this one on are there.
    From(u64),
    /// Each of its sectors is there or not, as the seed says.
    Scattered(u64),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Kept => f.write_str("kept"),
            Fate::Lost => f.write_str("lost"),
            Fate::First(bytes) => write!(f, "first {bytes} bytes"),
            Fate::From(bytes) => write!(f, "from byte {bytes}"),
            Fate::Scattered(seed) => write!(f, "scattered by {seed:#x}"),
        }
    }
}

/// What happened to one or several devices, and where each of them began.
#[derive(Debug)]
pub struct History {
    bases: Vec<MemoryDevice>,
    events: Vec<Event>,
    protected: Vec<u64>,
    /// Every mark: its moment and text.
    marks: Vec<(u64, String)>,
}

impl History {
    /// The history of devices that share one: the one that began it and those
    /// [`beside`](RecordingDevice::beside) it, all of them and in their order.
    pub fn of(devices: &[&RecordingDevice]) -> History {
        let events = devices.first().map(|device| device.events()).unwrap_or_default();
        for (number, device) in devices.iter().enumerate() {
            assert_eq!(device.number(), number, "devices of a history come in their order");
        }
        let protected = protected_from(&events);
        let marks = events.iter().filter_map(|event| match &event.record {
            Record::Mark(text) => Some((event.performed, text.clone())),
            _ => None,
        });
        let marks = marks.collect();
        History { bases: devices.iter().map(|d| d.base()).collect(), events, protected, marks }
    }

    /// All events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Every moment at which what may survive changes: when a record took effect, and when
    /// completions arrived. Rising.
    pub fn cuts(&self) -> Vec<u64> {
        let mut cuts: Vec<u64> =
            self.events.iter().flat_map(|event| [event.performed, event.completed]).collect();
        cuts.retain(|cut| *cut != u64::MAX);
        cuts.push(0);
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Returns how many marks were made by the moment `cut`.
    pub fn marks_by(&self, cut: u64) -> usize {
        self.marks.partition_point(|(at, _)| *at <= cut)
    }

    /// The text of every mark, in order.
    pub fn marks(&self) -> impl Iterator<Item = &str> {
        self.marks.iter().map(|(_, text)| text.as_str())
    }

    /// Number of records that had taken effect by `cut`.
    pub(crate) fn performed_by(&self, cut: u64) -> usize {
        self.events.partition_point(|event| event.performed <= cut)
    }

    /// The open records at `cut`, in order.
    pub fn open_at(&self, cut: u64) -> Vec<usize> {
        (0..self.performed_by(cut)).filter(|place| self.protected[*place] > cut).collect()
    }

    /// The devices as they began.
    pub fn bases(&self) -> Vec<MemoryDevice> {
        self.bases.iter().map(MemoryDevice::snapshot).collect()
    }

    /// Repeats everything on `images`, which are as the devices began: what they hold now.
    pub fn replay_all(&self, images: &[MemoryDevice]) {
        self.advance(images, 0..self.events.len());
    }

    /// Repeats the records `range` whole on `images`.
    pub(crate) fn advance(&self, images: &[MemoryDevice], range: std::ops::Range<usize>) {
        for event in &self.events[range] {
            repeat(event, &images[event.device], Fate::Kept);
        }
    }

    /// The devices after a cut. `images` has all records before the place `from`; `open` are the
    /// open records with their fates; all others before the place `end` are kept.
    pub(crate) fn finish(
        &self,
        images: &[MemoryDevice],
        from: usize,
        end: usize,
        open: &[(usize, Fate)],
    ) {
        let mut open = open.iter().copied().peekable();
        for (place, event) in self.events.iter().enumerate().take(end).skip(from) {
            let fate = match open.next_if(|(at, _)| *at == place) {
                Some((_, fate)) => fate,
                None => Fate::Kept,
            };
            repeat(event, &images[event.device], fate);
        }
    }
}

/// Repeats the part of a record that survives.
fn repeat(event: &Event, image: &MemoryDevice, fate: Fate) {
    let apply = |from, len| {
        // It succeeded on a device of this size.
        event.record.apply(image, from, len).unwrap_or_else(|error| panic!("{error}"));
    };
    match fate {
        Fate::Kept => apply(0, u64::MAX),
        Fate::Lost => {}
        Fate::First(bytes) => apply(0, bytes),
        Fate::From(bytes) => apply(bytes, u64::MAX),
        Fate::Scattered(seed) => {
            let mut random = Prng::new(seed);
            let (_, len) = event.record.range();
            for sector in 0..len.div_ceil(SECTOR_BYTES) {
                if random.one_in(2) {
                    apply(sector * SECTOR_BYTES, SECTOR_BYTES);
                }
            }
        }
    }
}
