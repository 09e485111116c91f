//! What the kernel writes has no problems. Alone in its process: a child that another test starts
//! would hold files of the mount open for a moment.

use std::fs;

use crate::common;
use common::{FEATURES, assert_clean, grow_all};
use extant_testkit::oracle::{self, LoopMount};
use extant_testkit::{require, tempdir};

#[test]
fn images_written_by_the_kernel_have_no_problems() {
    require!(oracle::root("mounts images"));
    let dir = tempdir().unwrap();
    // Kernels without quota do not mount the one, and the other waits for seconds.
    let mounted = FEATURES.iter().filter(|(what, _)| !["mmp", "quota"].contains(what));
    for (what, features) in mounted {
        let image = dir.path().join("kernel.img");
        require!(oracle::mke2fs(&image, "24M", features));
        let mount = require!(LoopMount::read_write(&image));
        let root = mount.path();
        grow_all(root);
        for number in (0..600).step_by(3) {
            let name =
                format!("many/a file with a long name, so that the directory grows {number}");
            fs::remove_file(root.join(name)).unwrap();
        }
        fs::remove_dir(root.join("a/dir7")).unwrap();
        fs::File::options()
            .write(true)
            .open(root.join("a/file70000"))
            .unwrap()
            .set_len(10)
            .unwrap();
        drop(mount);
        assert_clean(&image, what);
        fs::remove_file(image).unwrap();
    }
}
