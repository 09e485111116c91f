//! What the kernel and its tools make of the same image.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Place, is_root, text, tool};

/// A place with an image that mke2fs made; `None` where there is no mke2fs.
pub(crate) fn made(options: &[&str]) -> Option<Place> {
    let place = Place::new();
    let args = [&["-q", "-F", "-E", "lazy_itable_init=0"], options, &["a.img", "48M"]].concat();
    let made = tool("mke2fs", &args, place.0.path())?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(place)
}

#[track_caller]
pub(crate) fn clean(place: &Place, image: &str) {
    let Some(check) = tool("e2fsck", &["-fn", image], place.0.path()) else { return };
    assert!(check.status.success(), "{}", text(&check));
}

/// A mounted image, unmounted at the end.
pub(crate) struct Mounted(pub(crate) PathBuf, PathBuf);

impl Mounted {
    pub(crate) fn of(place: &Place, image: &str) -> Mounted {
        Mounted::with(place, image, "loop")
    }

    pub(crate) fn with(place: &Place, image: &str, options: &str) -> Mounted {
        let point = place.path(&format!("{image}.mount"));
        std::fs::create_dir_all(&point).unwrap();
        let args = ["-o", options, image, point.to_str().unwrap()];
        let mount = tool("mount", &args, place.0.path()).unwrap();
        assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
        Mounted(point, place.path(image))
    }

    /// Runs a line of shell in the root of the image.
    #[track_caller]
    pub(crate) fn shell(&self, line: &str) -> String {
        let output = Command::new("sh")
            .args(["-c", &format!("umask 022; {line}")])
            .current_dir(&self.0)
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {err}");
        text(&output)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Busy while another test's new process still has our descriptors, before it runs its
        // program.
        for _ in 0..200 {
            let umount = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
            if umount.is_ok_and(|status| status.success()) {
                // Its loop device stays for a moment in mount name spaces that other tests have just made.
                super::mounts::until("the image is free", || !has_loop_device(&self.1));
                return;
            }
        }
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn has_loop_device(image: &Path) -> bool {
    let backs = |device: std::fs::DirEntry| {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim_end()) == image)
    };
    std::fs::read_dir("/sys/block").is_ok_and(|mut devices| devices.any(|d| d.is_ok_and(backs)))
}

/// A loop device that goes away with the value.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn over(image: &Path) -> Option<Loop> {
        if !is_root() {
            println!("skipped: needs root");
            return None;
        }
        let image = image.to_str().unwrap();
        let output = tool("losetup", &["-f", "--show", image], Path::new("/"))?;
        if !output.status.success() {
            println!("skipped: no loop devices here");
            return None;
        }
        Some(Loop(text(&output).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Whether the kernel can be asked, and its tools are there.
pub(crate) fn has_kernel() -> bool {
    let tools = ["getfacl", "getfattr", "lsattr", "mount"];
    let missing = tools.iter().find(|tool| {
        !["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
            .iter()
            .any(|dir| Path::new(dir).join(tool).exists())
    });
    if !is_root() || missing.is_some() {
        println!("skipped: needs root and {tools:?}");
        return false;
    }
    true
}

/// Arguments with `/path` made to mean the image's.
pub(crate) fn in_image(line: &str) -> Vec<String> {
    let word = |word: &str| match word.strip_prefix('/') {
        Some(path) => format!("a.img:/{path}"),
        None => word.trim_matches('\'').replace("TEXT:", ""),
    };
    line.split(' ').map(word).collect()
}

/// Each line is run by the kernel's tools in one image and by extant in another. Words that begin
/// with `/` are paths in the image, `TEXT:` in front of one makes it text.
#[track_caller]
pub(crate) fn same_as_kernel(options: &[&str], lines: &[&str]) {
    if !has_kernel() {
        return;
    }
    let Some(place) = made(options) else { return };
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    same_in(&place, &lines, &[]);
}

/// [`same_as_kernel`] for the image in `place`, with more to ask of both in the end.
#[track_caller]
pub(crate) fn same_in(place: &Place, lines: &[String], questions: &[&str]) {
    std::fs::copy(place.path("a.img"), place.path("k.img")).unwrap();
    let kernel = Mounted::of(place, "k.img");
    for line in lines {
        let there = line
            .split(' ')
            .map(|word| match word.strip_prefix('/') {
                Some(path) => format!("./{path}"),
                None => word.replace("TEXT:", ""),
            })
            .collect::<Vec<_>>()
            .join(" ");
        kernel.shell(&there);
        let args = in_image(line);
        place.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).succeeds();
    }
    clean(place, "a.img");
    let ours = Mounted::of(place, "a.img");
    let always = [
        "find . ! -name lost+found -printf '%p %M %U %G %n %l %s\\n' | sort",
        "getfacl -R -n . 2>/dev/null",
        "getfattr -R -h -d -m - . 2>/dev/null; true",
        "lsattr -R . 2>/dev/null | grep -v lost+found",
        "find . -type f -exec md5sum {} +",
    ];
    for question in always.iter().chain(questions) {
        let (ours, theirs) = (ours.shell(question), kernel.shell(question));
        assert_eq!(sorted(&ours), sorted(&theirs), "{question}");
    }
    // And what extant says of it is what the tools say.
    let theirs = kernel.shell("getfacl -R -n . 2>/dev/null");
    drop(kernel);
    let said = place.run(&["getfacl", "-R", "-n", "k.img:/"]).succeeds().out();
    assert_eq!(paragraphs(&said), paragraphs(&theirs));
    let theirs = ours.shell("getfattr -R -h -d -m - . 2>/dev/null; true");
    drop(ours);
    let said = place.run(&["getfattr", "-R", "-d", "-m", "-", "a.img:/"]).succeeds().out();
    assert_eq!(paragraphs(&said), paragraphs(&theirs));
}

pub(crate) fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Sets of lines with empty lines between, in order of their first.
pub(crate) fn paragraphs(text: &str) -> Vec<String> {
    let mut all: Vec<String> = text.split("\n\n").map(|part| sorted(part).join("\n")).collect();
    all.retain(|part| !part.is_empty());
    all.sort();
    all
}
