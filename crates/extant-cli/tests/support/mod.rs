//! What the tests of the command share.
// Each test program uses a part of it.
#![allow(dead_code)]

pub(crate) mod kernel;
pub(crate) mod mounts;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The finished command.
pub(crate) const EXTANT: &str = env!("CARGO_BIN_EXE_extant");

/// A directory with a source tree and room for images.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A source with one of each kind that needs no root, and an image of it.
    pub(crate) fn with_image() -> Place {
        let place = Place::new();
        let source = place.path("source");
        std::fs::create_dir_all(source.join("dir/deep")).unwrap();
        std::fs::write(source.join("file"), b"hello\n").unwrap();
        std::fs::hard_link(source.join("file"), source.join("dir/again")).unwrap();
        symlink("../file", source.join("dir/link")).unwrap();
        std::fs::write(source.join(".hidden"), b"").unwrap();
        std::fs::write(source.join(OsStr::from_bytes(b"odd\n\xff")), b"odd").unwrap();
        let sparse = std::fs::File::create(source.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 3 << 20).unwrap();
        std::fs::set_permissions(source.join("dir"), PermissionsExt::from_mode(0o710)).unwrap();
        let args = ["build", "a.img", "--from", "source", "--size", "auto+4M", "-q"];
        place.run(&args).succeeds();
        place
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(EXTANT);
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command.env_remove("SOURCE_DATE_EPOCH").env("NO_COLOR", "1");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran { args: args.join(" "), output: self.command(args).output().unwrap() }
    }

    /// Whether `process` writes an image here: to a file without a name, or to a temporary one.
    pub(crate) fn is_writing(&self, process: u32) -> bool {
        let here = self.0.path().canonicalize().unwrap();
        let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        let mut names = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let is_ours = |name: PathBuf| {
            let last = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.parent() == Some(&here)
                && (last.ends_with(" (deleted)") || last.contains(".extant-"))
        };
        names.any(is_ours)
    }

    /// Names in the directory: to see that nothing is left behind.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// A run of the command that has ended.
pub(crate) struct Ran {
    pub(crate) args: String,
    pub(crate) output: Output,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> Ran {
        let (out, err) = (self.out(), self.err());
        assert_eq!(self.output.status.code(), Some(code), "{}\n{out}\n{err}", self.args);
        self
    }

    #[track_caller]
    pub(crate) fn succeeds(self) -> Ran {
        self.ends_with(0)
    }

    /// One line that begins with the program's name and says all of `words`.
    #[track_caller]
    pub(crate) fn complains(self, words: &[&str]) -> Ran {
        let err = self.err();
        let line = err.lines().find(|line| line.starts_with("extant: ")).unwrap_or_default();
        assert!(words.iter().all(|word| line.contains(word)), "{}: {err}", self.args);
        self
    }

    #[track_caller]
    pub(crate) fn hints(self, word: &str) -> Ran {
        let err = self.err();
        let hinted = err.lines().any(|line| line.starts_with("hint: ") && line.contains(word));
        assert!(hinted, "{}: {err}", self.args);
        self
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.output.stdout).unwrap()
    }

    pub(crate) fn json_lines(&self) -> Vec<serde_json::Value> {
        self.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a tool of the system; `None`, with a line about it, when it is not installed.
pub(crate) fn tool(program: &str, args: &[&str], directory: &Path) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", program]).args(args).current_dir(directory);
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.code() != Some(127));
    if output.is_none() {
        println!("skipped: {program} is not installed");
    }
    output
}

/// Standard output as text.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
