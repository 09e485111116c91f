//! The page of `mount.fuse.extant` and `umount.fuse.extant`, which mount(8) and umount(8) call.

use std::path::Path;

use clap_mangen::roff::{Roff, roman};

use crate::manuals;

/// Letters that the helpers take: what they are for.
const OPTIONS: &[(&str, &str)] = &[
    ("-o LIST", "options of the mount, with commas between them: extant-mount(1) has them all"),
    ("-r", "mounts for reading only, as -o ro"),
    ("-s", "passes over options that are not known, and names them, instead of ending"),
    ("-f", "checks options and names and mounts nothing"),
    ("-v", "says what is done"),
    ("-l", "umount: takes the directory away at once, and the server ends when nobody uses it"),
    ("-n, -w, -t TYPE", "taken and without effect"),
];

/// What mount(8) knows of exit codes.
const STATUS: &[(&str, &str)] = &[
    ("0", "mounted, or unmounted and everything written"),
    ("1", "the command line makes no sense"),
    ("4", "a mistake of extant itself"),
    ("8", "interrupted"),
    ("32", "it could not be mounted or unmounted"),
];

const EXAMPLES: &[&str] = &[
    "mount -t fuse.extant -o allow_other root.img /mnt",
    "mount -t fuse.extant -o ro,partition=2 disk.img /mnt",
    "umount /mnt",
    "",
    "In /etc/fstab:",
    "/srv/root.img  /mnt  fuse.extant  allow_other,noatime,nofail  0 0",
];

/// The page, in section 8.
pub(super) fn page(documents: Option<&Path>) -> std::io::Result<Vec<u8>> {
    let mut page = Roff::new();
    let version = format!("extant {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["MOUNT.FUSE.EXTANT", "8", " ", &version, "System Administration"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "mount.fuse.extant, umount.fuse.extant - mount ext2, ext3 and ext4 images with extant",
    )]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([roman("mount -t fuse.extant [-o LIST] IMAGE DIRECTORY")]);
    page.control("br", []);
    page.text([roman("mount.fuse.extant IMAGE DIRECTORY [-sfrv] [-o LIST]")]);
    page.control("br", []);
    page.text([roman("umount.fuse.extant DIRECTORY [-lv]")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "mount(8), fstab(5) and systemd call the first for file systems of the type fuse.extant; it does what \
         extant mount does. umount(8) calls the second for a mount that was made so; it returns when the \
         server has written everything and ended.",
    )]);
    page.control("PP", []);
    page.text([roman(
        "Both are the extant command under another name, in /sbin, where mount(8) looks.",
    )]);
    page.control("SH", ["OPTIONS"]);
    for (letters, meaning) in OPTIONS {
        page.control("TP", []);
        page.text([roman(*letters)]);
        page.text([roman(*meaning)]);
    }
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    for line in EXAMPLES {
        page.text([roman(*line)]);
    }
    page.control("fi", []);
    page.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in STATUS {
        page.control("TP", ["5"]);
        page.text([roman(*code)]);
        page.text([roman(*meaning)]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(
        "extant(1), extant-mount(1), extant-umount(1), mount(8), umount(8), fstab(5)",
    )]);
    page.control("PP", []);
    page.text([roman(format!(
        "Options, memory, privileges, fstab and systemd: {}",
        manuals::place_in(documents, "mounting.md")
    ))]);
    let mut out = Vec::new();
    page.to_writer(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_the_helpers_has_the_sections_of_a_manual() {
        let page = String::from_utf8(super::page(None).unwrap()).unwrap();
        let sections: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let wanted = [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXAMPLES",
            "\"EXIT STATUS\"",
            "\"SEE ALSO\"",
        ];
        assert_eq!(sections, wanted);
        assert!(page.contains(".TH MOUNT.FUSE.EXTANT 8"), "{page}");
    }
}
