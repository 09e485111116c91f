//! Blocks that files of the Hurd have for their translators, and that e2fsck counts.

use extant_block::BlockDevice;
use extant_testkit::{require, tempdir};

use crate::common::{SETS, e2fsck, losses, problems, repaired, sample, seen};
use crate::{damaged, mended, record_of};

#[test]
fn a_block_of_a_translator_is_in_use_and_no_other_than_its_files() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[0]));
    let path = dir.path().join("damaged.img");
    for file in ["/d/file4", "/d"] {
        // Free, of the file system itself, of a file, and none at all.
        for (block, stays) in [(11_000_u32, true), (3, false), (0, false), (99_999, false)] {
            let what = format!("{file}, block {block}");
            let device = require!(damaged(dir.path(), &good, "ssv creator_os 1"));
            assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
            let before = seen(&device);
            let block = match block {
                0 => {
                    let other = require!(record_of(&path, "/d/file6"));
                    let mut word = [0; 4];
                    device.read_at(other + 0x28, &mut word).unwrap();
                    u32::from_le_bytes(word)
                }
                block => block,
            };
            let record = require!(record_of(&path, file));
            device.write_at(record + 0x24, &block.to_le_bytes()).unwrap();
            assert_ne!(e2fsck(&device, dir.path(), false).unwrap(), "", "{what}");
            assert_ne!(problems(&device), Vec::<String>::new(), "{what}");
            let outcome = repaired(&device).unwrap();
            assert!(outcome.is_clean, "{what}: {:#?}", outcome.findings);
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            let mut word = [0; 4];
            device.read_at(record + 0x24, &mut word).unwrap();
            if stays {
                assert_eq!(u32::from_le_bytes(word), block, "{what}");
            }
            drop(mended(device, dir.path()));
        }
    }
}
