//! A device that fails while the journal is replayed, before anything is converted.

mod common;

use std::sync::Arc;

use common::{e2fsck, features, hasty};
use extant_block::{FaultDevice, FaultPlan, OperationKind, SharedDevice};
use extant_change::ChangeError;
use extant_testkit::oracle::{debugfs, mke2fs};
use extant_testkit::{image, require, tempdir};
use extant_tune::{TuneError, tune};

#[test]
fn a_device_that_fails_before_the_change_is_no_damage() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(mke2fs(&path, "16M", &["-t", "ext4", "-b", "1024", "-J", "size=1"]));
    let data = dir.path().join("data");
    std::fs::write(&data, [0xd7; 2048]).unwrap();
    let script = format!("jo -c\njw -b 9000-9001 {}\njc\n", data.display());
    require!(debugfs(&path, true, &script));
    let unsettled = image::load(&path);
    for kind in [OperationKind::Read, OperationKind::Write, OperationKind::Flush] {
        let mut refused = 0;
        for number in 0.. {
            assert!(number < 2000, "{kind:?}: the change never ends");
            let exactly = vec![(kind, number, u64::MAX / 2)];
            let plan = FaultPlan { exactly, whole: 1024..2048, ..FaultPlan::default() };
            let below = Arc::new(unsettled.snapshot());
            let device: SharedDevice = Arc::new(FaultDevice::new(Arc::clone(&below), plan));
            let done = tune(&device, &features("quota"), &mut |_| Ok(()), &hasty(), &mut |_| {});
            let Err(error) = done else {
                assert_eq!(require!(e2fsck(&below, dir.path())), "");
                break;
            };
            refused += 1;
            assert!(
                matches!(
                    &error,
                    TuneError::Change(ChangeError::Device(_) | ChangeError::Journal(_))
                ),
                "{kind:?} {number}: {error:?}"
            );
        }
        assert!(refused > 2, "{kind:?}: {refused}");
    }
}
