//! What a quota file keeps of its limits, whatever its blocks hold beside them.

use std::sync::Arc;

use extant::{MountOptions, QuotaKind, QuotaLimits};
use extant_block::BlockDevice;
use extant_format::quota::{QuotaEntry, QuotaLeaf, record_offset};
use extant_testkit::{require, tempdir};

use crate::common::{SETS, e2fsck, problems, sample};
use crate::mended;

/// The kernel reads the record that the tree leads to, e2fsck all that lie beside it.
#[test]
fn a_second_record_of_an_id_goes_and_the_limits_of_the_first_stay() {
    let dir = tempdir().unwrap();
    let good = Arc::new(require!(sample(dir.path(), SETS[3])));
    let fs = MountOptions::new().read_only(false).open(Arc::clone(&good)).unwrap();
    let limits = QuotaLimits { inodes_hard: 4321, ..QuotaLimits::default() };
    fs.set_quota_limits(QuotaKind::User, 77, &limits).unwrap();
    fs.unmount().unwrap();
    // One of them is what is left in the log.
    let is_leaf = |at: &u64| {
        let mut bytes = [0; 1024];
        good.read_at(*at, &mut bytes).unwrap();
        QuotaLeaf::find(&bytes, 77).is_some_and(|(_, entry)| entry.inode_hard_limit == 4321)
    };
    let leaves: Vec<u64> = (0..good.size_bytes()).step_by(1024).filter(is_leaf).collect();
    for id in [0, 77, 4711] {
        let device = good.snapshot();
        let stray = QuotaEntry { id, space_bytes: 1 << 31, ..QuotaEntry::default() };
        for leaf in &leaves {
            device.write_at(leaf + record_offset(12) as u64, &stray.encode()).unwrap();
        }
        assert_ne!(require!(e2fsck(&device, dir.path(), false)), "", "{id}");
        assert!(problems(&device)[0].contains("nothing leads"), "{id}: {:?}", problems(&device));
        let fs = mended(device, dir.path());
        let entry = fs.quota(QuotaKind::User, 77).unwrap().unwrap();
        assert_eq!((entry.inode_hard_limit, entry.inodes), (4321, 0), "{id}");
    }
}
