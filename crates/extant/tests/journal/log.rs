//! What a program hears that installs a logger. There is one for the process, and other tests mount beside this one:
//! only what is said of its own devices counts.

use std::sync::Arc;

use extant::{MountErrors, MountOptions, NewInode};
use extant_block::{FaultDevice, FaultPlan, SharedDevice};
use extant_sync::{Mutex, Rank};
use extant_testkit::oracle::{debugfs, mke2fs};
use extant_testkit::{image, require, tempdir};

/// What names of this test's devices begin with.
const OURS: &str = "heard";

struct Lines(Mutex<Vec<String>>);

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let said = record.args().to_string();
        if record.target().starts_with("extant") && said.starts_with(OURS) {
            self.0.lock().push(format!("{} {said}", record.level()));
        }
    }

    fn flush(&self) {}
}

#[test]
fn whoever_logs_hears_of_mounts_replays_damage_and_failures() {
    let lines: &'static Lines = Box::leak(Box::new(Lines(Mutex::new(Rank::Leaf, Vec::new()))));
    log::set_logger(lines).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let heard = || std::mem::take(&mut *lines.0.lock());
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4", "-b", "1024"]));
    let memory = Arc::new(image::load(&path).named("heard disk"));
    let options = MountOptions::new().read_only(false).background(false);
    let open = |device: SharedDevice| options.open_shared(device).unwrap();
    let fs = open(Arc::clone(&memory) as _);
    assert_eq!(heard(), ["INFO heard disk: mounted for writing"]);
    // Cut off with an orphan.
    let orphan = fs.root().unwrap().create("orphan", &NewInode::root(0o644)).unwrap();
    fs.root().unwrap().unlink("orphan").unwrap();
    fs.sync().unwrap();
    let cut: SharedDevice = Arc::new(memory.snapshot().named("heard cut"));
    drop((orphan, fs));
    let fs = open(cut);
    let said = heard();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[1].starts_with("INFO heard cut: it was not unmounted: "), "{said:?}");
    assert_eq!(said[2], "INFO heard cut: 1 files without names deleted, 0 cut to their size");
    // Writeback that fails, any number of times.
    fs.unmount().unwrap();
    assert_eq!(heard(), ["INFO heard cut: unmounted"]);
    let plan = FaultPlan { write_one_in: 1, ..FaultPlan::default() };
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory), plan));
    faulty.set_enabled(false);
    let fs = open(Arc::clone(&faulty) as _);
    fs.write("/file", [1; 4096]).unwrap();
    heard();
    faulty.set_enabled(true);
    let file = fs.resolve("/file").unwrap();
    for _ in 0..9 {
        file.write_back().unwrap_err();
    }
    let said = heard();
    assert_eq!(said.len(), 4, "of nine the first, second, fourth and eighth: {said:?}");
    assert!(
        said.iter()
            .all(|line| line.starts_with("WARN heard disk") && line.contains("writeback failed"))
    );
    // A journal that stops.
    fs.root().unwrap().mkdir("dir", &NewInode::root(0o755)).unwrap();
    fs.sync().unwrap_err();
    let said = heard();
    let stopped = said.iter().filter(|line| line.contains("the journal stopped, errno 5: "));
    assert_eq!(stopped.count(), 1, "{said:?}");
    drop((file, fs));
    heard();
    // Damage.
    require!(debugfs(&path, true, "mkdir dir\nsif dir flags 0\n"));
    let damaged: SharedDevice = Arc::new(image::load(&path).named("heard damaged"));
    let fs = options.clone().errors(MountErrors::RemountReadOnly).open_shared(damaged).unwrap();
    heard();
    for number in 0..3 {
        let name = format!("file{number}");
        let _ = fs.resolve("/dir").unwrap().create(name, &NewInode::root(0o644)).unwrap_err();
    }
    let said = heard();
    assert!(
        said[0].starts_with("ERROR heard damaged: damage, report 1 of this mount: "),
        "{said:?}"
    );
    let stops = said.iter().filter(|line| line.contains("nothing is changed any more"));
    assert_eq!(stops.count(), 1, "{said:?}");
}
