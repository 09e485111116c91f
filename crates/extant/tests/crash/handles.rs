//! No byte of a file is sent to the device by a thread that has a journal handle open: whoever waits for the
//! device there keeps everybody's commit waiting, and a device that fails there leaves a change half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::{BlockDevice, Operation, OperationKind, Pending, SharedDevice};
use extant_sync::{Rank, holds};
use extant_testkit::model::{Generator, Profile};
use extant_testkit::proof::record;
use extant_testkit::{oracle, skip};

use crate::layouts::{self, LAYOUTS, WRITTEN};
use crate::target::Extant;

/// A device that refuses writes of a thread with an open handle.
struct Watched {
    below: SharedDevice,
    writes: Arc<AtomicU64>,
}

impl BlockDevice for Watched {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let reads_only = [OperationKind::Read, OperationKind::Flush];
        if batch.iter().any(|operation| !reads_only.contains(&operation.kind())) {
            assert!(!holds(Rank::JournalHandle), "{batch:?} under a handle");
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }
}

#[test]
fn nothing_is_written_under_a_handle() {
    if !cfg!(debug_assertions) {
        skip!("release builds do not know who holds a handle");
    }
    for (layouts, profile) in [(LAYOUTS, Profile::default()), (WRITTEN, Profile::contents())] {
        for layout in layouts::of(layouts) {
            let base = match layouts::base(layout) {
                Ok(base) => base,
                Err(reason) => {
                    let text = format!("{}: {reason}", layout.name);
                    oracle::print_skip(module_path!(), line!(), &text);
                    continue;
                }
            };
            let unit = if profile.unit > 0 && layout.has_extents() { base.unit } else { 0 };
            let (project, value_max) = (layout.project, layout.value_max);
            let profile = Profile { project, value_max, unit, ..profile.clone() };
            let writes = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&writes);
            let over = move |below| -> SharedDevice {
                Arc::new(Watched { below, writes: Arc::clone(&counter) })
            };
            let target = Extant { over: Some(Arc::new(over)), ..Extant::default() };
            let mut generator = Generator::new(7, profile);
            let mut left = 150;
            let recorded = record(&target, &base, |model| {
                left -= 1;
                (left >= 0).then(|| generator.next_op(model))
            });
            recorded.unwrap_or_else(|text| panic!("{}: {text}", layout.name));
            let writes = writes.load(Ordering::Relaxed);
            assert!(writes > 3, "{}: {writes} writes", layout.name);
        }
    }
}
