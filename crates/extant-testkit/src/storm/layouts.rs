//! File systems of every shape that mke2fs makes and extant writes.

use std::path::Path;

use extant_base::Prng;

use crate::oracle::mke2fs;

/// One shape.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// For messages, and to choose it by.
    pub name: &'static str,
    /// For mke2fs.
    pub options: &'static [&'static str],
    /// Size of the image, as mke2fs reads it.
    pub size: &'static str,
}

const fn layout(
    name: &'static str,
    size: &'static str,
    options: &'static [&'static str],
) -> Layout {
    Layout { name, options, size }
}

/// All of them.
pub const LAYOUTS: &[Layout] = &[
    layout("4k", "64M", &["-t", "ext4", "-b", "4096"]),
    layout("1k", "64M", &["-t", "ext4", "-b", "1024"]),
    layout("ext3", "64M", &["-t", "ext3", "-b", "1024"]),
    layout("bigalloc", "128M", &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"]),
    layout("inline", "64M", &["-t", "ext4", "-b", "4096", "-O", "inline_data"]),
    layout("quota", "64M", &["-t", "ext4", "-b", "2048", "-O", "quota,project"]),
    layout("small-journal", "48M", &["-t", "ext4", "-b", "1024", "-J", "size=1"]),
    layout("orphan-list", "64M", &["-t", "ext4", "-b", "4096", "-O", "^orphan_file"]),
    layout("orphan-file", "64M", &["-t", "ext4", "-b", "2048", "-O", "orphan_file"]),
    layout("no-checksums", "64M", &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,^64bit"]),
    layout("full", "12M", &["-t", "ext4", "-b", "1024", "-J", "size=1", "-m", "0"]),
    layout("few-inodes", "64M", &["-t", "ext4", "-b", "4096", "-N", "64"]),
    layout(
        "small-inodes",
        "64M",
        &["-t", "ext4", "-b", "4096", "-I", "128", "-O", "^flex_bg,uninit_bg"],
    ),
    layout("ext3-4k", "64M", &["-t", "ext3", "-b", "4096"]),
    layout("bigalloc-1k", "64M", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"]),
    layout(
        "names",
        "64M",
        &["-t", "ext4", "-b", "4096", "-O", "casefold,large_dir,ea_inode,inline_data"],
    ),
    layout("fast-commit", "64M", &["-t", "ext4", "-b", "4096", "-O", "fast_commit"]),
    layout("no-journal", "64M", &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]),
    layout("meta-bg", "64M", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
];

impl Layout {
    /// The one of that name.
    pub fn find(name: &str) -> Option<Layout> {
        LAYOUTS.iter().copied().find(|layout| layout.name == name)
    }

    /// Those whose names `EXTANT_STORM_LAYOUTS` lists, with commas between; all of them without.
    ///
    /// # Panics
    ///
    /// If there is none of a name.
    pub fn chosen() -> Vec<Layout> {
        let Ok(names) = std::env::var("EXTANT_STORM_LAYOUTS") else { return LAYOUTS.to_vec() };
        let find = |name: &str| {
            Layout::find(name).unwrap_or_else(|| panic!("EXTANT_STORM_LAYOUTS: no layout {name:?}"))
        };
        names.split(',').map(find).collect()
    }

    /// Makes an image.
    ///
    /// # Errors
    ///
    /// What is missing on this machine.
    pub fn make(&self, path: &Path) -> Result<(), String> {
        mke2fs(path, self.size, self.options)
    }

    /// Returns whether a crash leaves it to be repaired: there is no log.
    pub fn is_unprotected(&self) -> bool {
        self.options.contains(&"^has_journal")
    }
}

/// A whole number from the environment.
///
/// # Panics
///
/// If it is none.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is no number")))
}

/// Returns what a round of number `number` takes from seed `seed`.
pub fn random_of(seed: u64, number: u64) -> Prng {
    Prng::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(number))
}
