//! The images that scenarios start from.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use extant_testkit::model::{Rules, written};
use extant_testkit::oracle::{self, Tool};
use extant_testkit::proof::Base;
use extant_testkit::{image, tempdir};

use crate::target;

/// How to make an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    size: &'static str,
    arguments: &'static [&'static str],
    external: bool,
    pub(crate) project: bool,
    /// Longest value of an attribute that fits.
    pub(crate) value_max: u64,
    /// Every free block holds 0xA5, so that bytes which nobody wrote are seen.
    stale: bool,
    /// Bytes of a block, or of a cluster if there are some.
    pub(crate) unit: u64,
    /// What the tree of the histories is in.
    pub(crate) top: Top,
}

/// The directory that is the root of the histories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Top {
    /// That of the file system.
    Root,
    /// One in it that is encrypted, or ignores case, or both.
    Special { is_encrypted: bool, folds: bool },
}

impl Layout {
    const fn new(
        name: &'static str,
        size: &'static str,
        arguments: &'static [&'static str],
    ) -> Self {
        Layout {
            name,
            size,
            arguments,
            external: false,
            project: false,
            value_max: 800,
            stale: false,
            unit: 1024,
            top: Top::Root,
        }
    }

    const fn special(name: &'static str, is_encrypted: bool, folds: bool) -> Self {
        let arguments: &[&str] =
            &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "encrypt,casefold", "-J", "size=1"];
        let top = Top::Special { is_encrypted, folds };
        // The context of a policy takes room among the attributes.
        Layout { top, value_max: 600, ..Layout::new(name, "8M", arguments) }
    }

    /// Whether contents can move inside of files: encrypted ones cannot.
    pub(crate) fn moves_contents(&self) -> bool {
        self.has_extents() && !matches!(self.top, Top::Special { is_encrypted: true, .. })
    }

    pub(crate) fn has_extents(&self) -> bool {
        !self.arguments.contains(&"ext3")
    }

    const fn stale(self, unit: u64) -> Self {
        Layout { stale: true, unit, ..self }
    }
}

/// What mke2fs makes by default, but small.
pub(crate) const DEFAULT: Layout = Layout {
    unit: 4096,
    ..Layout::new("default", "16M", &["-t", "ext4", "-b", "4096", "-N", "512"])
};
/// Several groups, and a log of 1 MiB that wraps soon.
pub(crate) const SMALL: Layout = Layout::new(
    "small",
    "8M",
    &["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "512", "-J", "size=1"],
);

/// Small files and directories are inside their inodes.
pub(crate) const INLINE: Layout = Layout::new(
    "inline data",
    "8M",
    &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "inline_data", "-J", "size=1"],
);

/// All layouts.
pub(crate) const LAYOUTS: &[Layout] = &[
    DEFAULT,
    SMALL,
    Layout::new(
        "no checksums",
        "8M",
        &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "^metadata_csum,^64bit", "-J", "size=1"],
    ),
    Layout::new(
        "group checksums",
        "8M",
        &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "^metadata_csum,uninit_bg,^64bit"],
    ),
    Layout::new(
        "orphan file",
        "8M",
        &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "orphan_file", "-J", "size=1"],
    ),
    INLINE,
    Layout {
        project: true,
        ..Layout::new(
            "quota",
            "8M",
            &[
                "-t",
                "ext4",
                "-b",
                "1024",
                "-N",
                "512",
                "-J",
                "size=1",
                "-O",
                "quota,project",
                "-E",
                "quotatype=usrquota:grpquota:prjquota",
            ],
        )
    },
    Layout::new(
        "fast commit",
        "8M",
        &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "fast_commit"],
    ),
    Layout { external: true, ..Layout::new("external", "8M", &["-t", "ext4", "-b", "1024"]) },
    Layout::new("ext3", "8M", &["-t", "ext3", "-b", "1024", "-N", "512", "-J", "size=1"]),
    Layout::new(
        "small inodes",
        "8M",
        &["-t", "ext3", "-b", "1024", "-N", "512", "-I", "128", "-J", "size=1"],
    ),
    Layout {
        value_max: 5000,
        ..Layout::new(
            "large values",
            "8M",
            &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "ea_inode", "-J", "size=1"],
        )
    },
    Layout::new(
        "no index",
        "8M",
        &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "^dir_index", "-J", "size=1"],
    ),
];

/// Layouts for histories that write files.
pub(crate) const WRITTEN: &[Layout] = &[
    Layout::new("blocks of 4K", "16M", &["-t", "ext4", "-b", "4096", "-N", "256"]).stale(4096),
    Layout::new(
        "blocks of 1K",
        "8M",
        &["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "512", "-J", "size=1"],
    )
    .stale(1024),
    Layout::new("blocks of 2K", "12M", &["-t", "ext4", "-b", "2048", "-N", "256", "-J", "size=2"])
        .stale(2048),
    // The smallest that mke2fs gives a journal.
    Layout::new(
        "blocks of 64K",
        "136M",
        &["-t", "ext4", "-b", "65536", "-N", "256", "-J", "size=64"],
    )
    .stale(65536),
    Layout::new(
        "clusters",
        "16M",
        &["-t", "ext4", "-b", "1024", "-C", "16384", "-N", "256", "-O", "bigalloc", "-J", "size=1"],
    )
    .stale(16384),
    Layout::new(
        "inline",
        "8M",
        &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "inline_data", "-J", "size=1"],
    )
    .stale(1024),
    Layout::new("indirect", "8M", &["-t", "ext3", "-b", "1024", "-N", "512", "-J", "size=1"])
        .stale(1024),
    Layout {
        external: true,
        ..Layout::new("journal outside", "8M", &["-t", "ext4", "-b", "1024"])
    }
    .stale(1024),
    Layout::new(
        "orphans in a file",
        "8M",
        &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "orphan_file,fast_commit", "-J", "size=1"],
    )
    .stale(1024),
    Layout {
        project: true,
        ..Layout::new(
            "quotas",
            "8M",
            &["-t", "ext4", "-b", "1024", "-N", "512", "-J", "size=1", "-O", "quota,project"],
        )
    }
    .stale(1024),
];

/// Layouts whose histories happen in a directory that is encrypted, ignores case, or both.
pub(crate) const SPECIAL: &[Layout] = &[
    Layout::special("encrypted", true, false),
    Layout::special("folding", false, true),
    Layout::special("encrypted and folding", true, true),
];

/// Layouts on which syncs make fast commits.
pub(crate) const FAST: &[Layout] = &[
    Layout::new("fast 4K", "32M", &["-t", "ext4", "-b", "4096", "-N", "256", "-O", "fast_commit"])
        .stale(4096),
    Layout::new("fast 1K", "8M", &["-t", "ext4", "-b", "1024", "-N", "512", "-O", "fast_commit"])
        .stale(1024),
    Layout::new(
        "fast, orphans in a file",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "512",
            "-O",
            "orphan_file,fast_commit,^metadata_csum,uninit_bg",
        ],
    )
    .stale(1024),
];

/// Some files of every kind of map, so that truncating and deleting has something to free.
fn contents(root: &Path) {
    let make = |name: &str, len: usize, hole: usize| {
        // Each file's bytes are its own.
        let seed =
            name.bytes().fold(1 << 63, |seed: u64, byte| seed.rotate_left(7) ^ u64::from(byte));
        let bytes = written(seed, 0, len as u64);
        let mut all = vec![0; hole];
        all.extend(&bytes);
        fs::write(root.join(name), &all).unwrap();
    };
    make("empty", 0, 0);
    make("tiny", 40, 0);
    make("block", 1024, 0);
    make("file", 20_000, 0);
    make("large-a", 300_000, 0);
    make("large-b", 270_000, 0);
    // Small enough to be inside the inode, where that is possible.
    for n in 0..16 {
        make(&format!("small{n}"), 50, 0);
    }
    for n in 0..6 {
        make(&format!("sparse{n}"), 3000, 8192 * (n + 1));
    }
    fs::create_dir_all(root.join("dir/sub/deep")).unwrap();
    for n in 0..12 {
        make(&format!("dir/f{n}"), n * 100, 0);
    }
    symlink("file", root.join("short-link")).unwrap();
    symlink("x".repeat(200), root.join("long-link")).unwrap();
    fs::hard_link(root.join("file"), root.join("dir/other-name")).unwrap();
}

/// All layouts, or the one that `EXTANT_LAYOUT` names.
pub(crate) fn chosen() -> Vec<&'static Layout> {
    of(LAYOUTS)
}

/// All of `layouts`, or the one that `EXTANT_LAYOUT` names.
pub(crate) fn of(layouts: &'static [Layout]) -> Vec<&'static Layout> {
    let only = std::env::var("EXTANT_LAYOUT").ok();
    layouts.iter().filter(|layout| only.as_ref().is_none_or(|only| layout.name == only)).collect()
}

/// Makes the image of a layout; the same one every time. The error is the reason to skip.
pub(crate) fn make(layout: &Layout) -> Result<Base, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    contents(&source);
    let file = dir.path().join("image");
    let source = source.display().to_string();
    let uuid = "2a9b5c3e-0d1f-4a6b-8c7d-112233445566";
    let mut arguments: Vec<&str> = layout.arguments.to_vec();
    arguments.extend(["-U", uuid, "-E", "hash_seed=77665544-3322-1100-ffee-ddccbbaa9988"]);
    if layout.top == Top::Root {
        arguments.extend(["-d", &source]);
    }
    if layout.stale {
        // Not zeroed, and not discarded.
        let megabytes: usize = layout.size.trim_end_matches('M').parse().expect("megabytes");
        fs::write(&file, vec![0xa5; megabytes << 20]).unwrap();
        arguments.push("-K");
    }
    let journal = dir.path().join("journal");
    let mut attached = None;
    let on;
    if layout.external {
        oracle::root("makes a journal on a loop device")?;
        let uuid = "7b9b5c3e-0d1f-4a6b-8c7d-665544332211";
        oracle::mke2fs(&journal, "2M", &["-b", "1024", "-O", "journal_dev", "-U", uuid])?;
        let device = Loop::attach(&journal)?;
        on = format!("device={}", device.0);
        arguments.extend(["-J", &on]);
        attached = Some(device);
    }
    oracle::mke2fs(&file, layout.size, &arguments)?;
    drop(attached);
    if layout.project {
        // mke2fs counts for the quotas before it copies the source; and e2fsck counts blocks before
        // it makes the quota files longer.
        oracle::e2fsck_as(&file, "-fy", &[])?;
        oracle::e2fsck_as(&file, "-fy", &[])?;
    }
    if !layout.external {
        oracle::e2fsck(&file)?.assert_clean();
    }
    let mut devices = vec![image::load(&file)];
    if let Top::Special { is_encrypted, folds } = layout.top {
        devices =
            vec![target::with_top(devices.remove(0), is_encrypted, folds, Path::new(&source))];
    }
    if layout.external {
        devices.push(image::load(&journal));
    }
    let crtime = !layout.arguments.contains(&"128");
    let rules = Rules { times: true, crtime, project: layout.project, full: false, contents: true };
    // The kernel may have been built without quotas, and takes no blocks larger than a page.
    let kernel = !layout.project && layout.unit != 65536 && layout.top == Top::Root;
    let zones = extant_testkit::zones::zones(&devices[0]);
    Ok(Base { name: layout.name.to_owned(), devices, rules, kernel, unit: layout.unit, zones })
}

/// The base of a layout, made once.
pub(crate) fn base(layout: &Layout) -> Result<Base, String> {
    const ALL: usize = LAYOUTS.len() + WRITTEN.len() + SPECIAL.len() + FAST.len();
    static MADE: [OnceLock<Result<Base, String>>; ALL] = [const { OnceLock::new() }; ALL];
    let mut all = LAYOUTS.iter().chain(WRITTEN).chain(SPECIAL).chain(FAST);
    let at = all.position(|other| other.name == layout.name);
    let at = at.expect("a known layout");
    MADE[at].get_or_init(|| make(layout)).as_ref().map(Base::snapshot).map_err(Clone::clone)
}

/// A loop device, detached when dropped.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn attach(file: &Path) -> Result<Loop, String> {
        let tool = Tool::find("losetup")?;
        let mut command: Command = tool.command();
        let output = command.args(["--find", "--show"]).arg(file).output();
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err("needs a loop device".to_owned());
        }
        Ok(Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Ok(tool) = Tool::find("losetup") {
            let _ = tool.command().arg("--detach").arg(&self.0).status();
        }
    }
}

#[test]
fn all_layouts_can_be_made_and_read() {
    use extant_testkit::proof::Target as _;
    for layout in LAYOUTS.iter().chain(WRITTEN).chain(FAST) {
        let base = match base(layout) {
            Ok(base) => base,
            Err(reason) => {
                println!("{}: {reason}", layout.name);
                continue;
            }
        };
        let mut options = extant::MountOptions::new();
        if let Some(journal) = base.devices.get(1) {
            options = options.journal_device(journal.snapshot());
        }
        let fs = options.open(base.devices[0].snapshot()).unwrap();
        let tree = crate::target::Extant::default().snapshot(&fs, &base.rules).unwrap();
        assert!(tree.paths().len() > 30, "{}: {}", layout.name, tree.paths().len());
        println!("{}: {} pages", layout.name, base.devices[0].stored_bytes() / 4096);
    }
}
