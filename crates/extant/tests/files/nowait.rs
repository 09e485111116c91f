//! What is in memory is reached without waiting for anybody: no device, no journal, no condition, no lock that
//! somebody has.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use extant::{Fs, MountOptions, NewInode};
use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::{FixedClock, no_waiting};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{image, require, tempdir};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };

fn made() -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "32M", &["-t", "ext4"])?;
    Ok(Arc::new(image::load(&path)))
}

fn mount(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(device).unwrap()
}

#[test]
fn what_is_in_memory_is_read_overwritten_and_found_without_waiting() {
    let fs = mount(require!(made()));
    let root = fs.root().unwrap();
    let file = root.create("f", &NEW).unwrap();
    file.write_at(&[1; 65536], 0).unwrap();
    let mut out = vec![0; 65536];
    {
        // Contents that wait to be written.
        let _scope = no_waiting();
        assert_eq!(file.write_at(&[2; 4096], 4096).unwrap(), 4096);
        assert_eq!(file.read_at(&mut out, 0).unwrap(), 65536);
        assert_eq!((out[4095], out[4096], out[8191], out[8192]), (1, 2, 2, 1));
        assert_eq!(root.lookup("f").unwrap().ino(), file.ino());
        assert_eq!(root.stat("f").unwrap().size, 65536);
        assert_eq!(fs.metadata("/f").unwrap().size, 65536);
    }
    fs.sync().unwrap();
    {
        // Contents that are stored and still in memory.
        let _scope = no_waiting();
        assert_eq!(file.read_at(&mut out, 60000).unwrap(), 5536);
        assert_eq!(root.lookup("f").unwrap().ino(), file.ino());
    }
    fs.unmount().unwrap();
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
fn what_is_not_in_memory_or_changes_the_tree_would_wait_and_says_for_what() {
    let device = require!(made());
    let fs = mount(Arc::clone(&device) as SharedDevice);
    fs.write("/f", [1; 65536]).unwrap();
    fs.unmount().unwrap();
    let fs = mount(device);
    let file = fs.resolve("/f").unwrap();
    let refusal = |act: &dyn Fn()| {
        let _scope = no_waiting();
        let panic = catch_unwind(AssertUnwindSafe(act)).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    let why = refusal(&|| drop(file.read_at(&mut [0; 4096], 0)));
    assert!(why.ends_with("would for a device"), "{why}");
    let why = refusal(&|| drop(fs.root().unwrap().create("g", &NEW)));
    assert!(why.contains("this thread may not wait"), "{why}");
    // Outside of the scope it goes on.
    assert_eq!(file.read_at(&mut [0; 4096], 0).unwrap(), 4096);
    file.write_at(&[3], 0).unwrap();
    let why = refusal(&|| drop(file.sync()));
    assert!(why.contains("this thread may not wait"), "{why}");
}
