//! Damaged images: a conversion neither goes by what is wrong nor hides it.

use std::sync::Arc;

use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_format::group::GroupDescriptor;
use extant_testkit::{image, oracle, require, tempdir};
use extant_tune::{Request, TuneError, tune};

use crate::common::{LAYOUTS, features, hasty, made, problems, tuned};
use crate::{bytes_of, superblock};

/// Why a request fails, of an image that stays as it is.
pub(crate) fn failed(device: &MemoryDevice, request: &Request) -> TuneError {
    let copy = Arc::new(device.snapshot());
    let shared = Arc::clone(&copy) as SharedDevice;
    let error = tune(&shared, request, &mut |_| Ok(()), &hasty(), &mut |_| {}).unwrap_err();
    assert!(bytes_of(&copy) == bytes_of(device), "{error}, and something is written");
    error
}

/// What was wrong before is for a repair, and no refusal.
#[test]
fn a_damaged_image_is_told_as_one() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("damaged.img");
    image::save(&require!(made(dir.path(), LAYOUTS[1])), &path);
    oracle::debugfs(&path, true, "sif /sparse links_count 7").unwrap();
    let error = tuned(&image::load(&path), &features("^huge_file")).unwrap_err();
    assert!(matches!(error, TuneError::Change(_)), "{error:?}");
    assert!(error.to_string().contains("7 links"), "{error}");
}

/// A conversion that takes checksums away, or makes others, would make damage look whole: it is refused, and
/// nothing is written.
#[test]
fn damage_that_only_a_checksum_tells_of_is_not_converted_away() {
    let dir = tempdir().unwrap();
    let good = require!(made(dir.path(), LAYOUTS[1]));
    let whole = bytes_of(&good);
    // A letter of the target of a link, which lies in its inode, and one of a name.
    for (what, old, new) in [("inode", [b'x'; 40].as_slice(), b'y'), ("name", b"file7", b'g')] {
        let at = whole.windows(old.len()).position(|bytes| bytes == old).unwrap();
        let damaged = good.snapshot();
        damaged.write_at(at as u64, &[new]).unwrap();
        assert!(problems(&damaged)[0].contains("checksum"), "{what}: {:?}", problems(&damaged));
        let requests = [
            features("^metadata_csum"),
            features("^metadata_csum,^uninit_bg"),
            Request { uuid: Some([9; 16]), ..Request::default() },
            Request { inode_size: Some(512), ..Request::default() },
        ];
        for request in requests {
            let error = failed(&damaged, &request);
            assert!(matches!(error, TuneError::Change(_)), "{what} {request:?}: {error:?}");
            assert!(error.to_string().contains("checksum"), "{what} {request:?}: {error}");
        }
    }
}

/// Bitmaps that call blocks and inodes free that are in use: what is new would be put over them.
#[test]
fn nothing_is_put_where_a_wrong_bitmap_says_that_it_is_free() {
    let dir = tempdir().unwrap();
    // With checksums and without.
    for number in [1, 2] {
        let good = require!(made(dir.path(), LAYOUTS[number]));
        let sb = superblock(&good);
        let block = u64::from(sb.block_size.bytes());
        let mut bytes = vec![0; usize::from(sb.desc_size)];
        good.read_at((u64::from(sb.first_data_block) + 1) * block, &mut bytes).unwrap();
        let group = GroupDescriptor::decode(&bytes).unwrap();
        for (what, place) in [("block", group.block_bitmap.0), ("inode", group.inode_bitmap.0)] {
            let damaged = good.snapshot();
            // Of the first group, neither what the file system keeps for itself first of all, nor its end.
            damaged.write_at(place * block + 4, &[0; 24]).unwrap();
            assert!(!problems(&damaged).is_empty());
            let requests = [
                features("quota"),
                features("mmp"),
                features("^has_journal"),
                features("orphan_file"),
                Request { inode_size: Some(512), ..Request::default() },
                Request { journal_bytes: Some(2 << 20), ..Request::default() },
            ];
            for request in requests {
                let error = failed(&damaged, &request);
                assert!(matches!(error, TuneError::Change(_)), "{what} {request:?}: {error:?}");
                let text = error.to_string();
                assert!(text.contains("group 0"), "{number} {what} {request:?}: {text}");
            }
        }
    }
}
