//! What a program sees of a tree, and what it can do to it, as lines that can be compared.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use extant_testkit::model::written;

/// By what was asked: the answer, or `error` and what it is about.
pub(crate) type Answers = BTreeMap<String, String>;

/// Most entries that are looked at; a damaged directory may lead back to itself.
const ENTRIES_MAX: usize = 400;
/// Levels of directories.
const DEPTH_MAX: usize = 6;
/// Bytes of a file that are read.
const BYTES_MAX: usize = 1 << 20;

/// An error's kind: damage is damage, whoever names it how.
fn word(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(5 | 74 | 116 | 117) => "error: damage".to_owned(),
        Some(errno) => format!("error: {errno}"),
        None => format!("error: {error}"),
    }
}

fn answer<T>(result: io::Result<T>, text: impl FnOnce(T) -> String) -> String {
    match result {
        Ok(value) => text(value),
        Err(error) => word(&error),
    }
}

struct Looker {
    answers: Answers,
    entries: usize,
    phase: &'static str,
}

impl Looker {
    fn say(&mut self, path: &str, what: &str, text: String) {
        self.answers.insert(format!("{} {path} {what}", self.phase), text);
    }

    fn look(&mut self, path: &Path, shown: &str, depth: usize) {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return;
        }
        let about = fs::symlink_metadata(path);
        let Ok(about) = about else {
            let error = about.map(|_| String::new());
            self.say(shown, "stat", answer(error, |text| text));
            return;
        };
        let owners = format!("{:o} {} {}", about.mode(), about.uid(), about.gid());
        // What was just made has other times and numbers, and directories may have grown otherwise.
        let text = match (self.phase, about.is_dir()) {
            ("before", _) => format!(
                "{owners} {} {} {} {}",
                about.nlink(),
                about.ino(),
                about.size(),
                about.mtime()
            ),
            (_, true) => format!("{owners} {}", about.nlink()),
            (_, false) => format!("{owners} {} {}", about.nlink(), about.size()),
        };
        self.say(shown, "stat", text);
        let kind = about.file_type();
        if kind.is_symlink() {
            let target = fs::read_link(path);
            self.say(shown, "target", answer(target, |target| format!("{target:?}")));
        }
        let mut names = vec![0; 65536];
        match rustix::fs::llistxattr(path, &mut names) {
            Ok(len) => {
                let mut found: Vec<&[u8]> =
                    names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
                found.sort_unstable();
                for name in found {
                    let mut value = vec![0; 65536];
                    let read = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value);
                    let text = answer(read.map_err(io::Error::from), |len| digest(&value[..len]));
                    self.say(shown, &format!("attribute {}", name.escape_ascii()), text);
                }
            }
            Err(error) => self.say(shown, "attributes", word(&error.into())),
        }
        if kind.is_file() {
            self.read(path, shown);
        } else if kind.is_dir() && depth < DEPTH_MAX {
            self.list(path, shown, depth);
        }
    }

    fn read(&mut self, path: &Path, shown: &str) {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) => return self.say(shown, "contents", word(&error)),
        };
        let mut bytes = vec![0; BYTES_MAX];
        let mut len = 0;
        let mut failed = None;
        while len < bytes.len() {
            // Pages at a time, so that both fail at the same place.
            let end = (len + 4096).min(BYTES_MAX);
            match (&file).read(&mut bytes[len..end]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) => {
                    failed = Some(word(&error));
                    break;
                }
            }
        }
        self.say(shown, "contents", failed.unwrap_or_else(|| digest(&bytes[..len])));
    }

    fn list(&mut self, path: &Path, shown: &str, depth: usize) {
        let mut names = Vec::new();
        let mut failed = None;
        match fs::read_dir(path) {
            Ok(entries) => {
                for entry in entries.take(ENTRIES_MAX) {
                    match entry {
                        Ok(entry) => names.push(entry.file_name()),
                        Err(error) => {
                            failed = Some(word(&error));
                            break;
                        }
                    }
                }
            }
            Err(error) => failed = Some(word(&error)),
        }
        names.sort_unstable();
        let text = failed.unwrap_or_else(|| format!("{names:?}"));
        self.say(shown, "list", text);
        for name in names {
            let shown = format!("{shown}/{}", name.as_bytes().escape_ascii());
            self.look(&path.join(&name), &shown, depth + 1);
        }
    }

    fn tries(&mut self, what: &str, result: io::Result<()>) {
        self.say("", what, answer(result, |()| "done".to_owned()));
    }

    /// Changes what it can.
    fn change(&mut self, root: &Path) {
        let bytes = written(7, 0, 20_000);
        self.tries("mkdir", fs::create_dir(root.join("made")));
        for name in ["made/one", "made/two", "a/more"] {
            let wrote = File::create(root.join(name)).and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            });
            self.tries(&format!("write {name}"), wrote);
        }
        for name in ["a/large", "a/small", "a/block", "big/a file with a long name, number 3"] {
            let over = OpenOptions::new().write(true).open(root.join(name)).and_then(|file| {
                file.write_all_at(&bytes[..5000], 1000)?;
                file.sync_all()
            });
            self.tries(&format!("overwrite {name}"), over);
        }
        let cut = OpenOptions::new().write(true).open(root.join("a/large"));
        self.tries("truncate", cut.and_then(|file| file.set_len(3000)));
        self.tries("rename", fs::rename(root.join("made/two"), root.join("a/moved")));
        self.tries("link", fs::hard_link(root.join("made/one"), root.join("made/link")));
        let set = rustix::fs::setxattr(
            root.join("made/one"),
            "user.new",
            &bytes[..500],
            rustix::fs::XattrFlags::empty(),
        );
        self.tries("set an attribute", set.map_err(io::Error::from));
        self.tries("unlink", fs::remove_file(root.join("a/small")));
        self.tries("rmdir", fs::remove_dir_all(root.join("a/b")));
        let synced = File::open(root).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
        self.tries("sync", synced);
    }
}

fn digest(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{} bytes {:016x}", bytes.len(), hasher.finish())
}

/// Looks at everything below `root`, changes it, looks again; writes the answers to `out`. What can be
/// read only is not looked at again: nothing was changed.
pub(crate) fn look(root: &Path, out: &Path, read_only: bool) {
    let mut looker = Looker { answers: Answers::new(), entries: 0, phase: "before" };
    looker.look(root, "", 0);
    looker.phase = "change";
    looker.change(root);
    if !read_only {
        looker.phase = "after";
        looker.entries = 0;
        looker.look(root, "", 0);
    }
    let lines: Vec<String> =
        looker.answers.iter().map(|(what, answer)| format!("{what}\t{answer}\n")).collect();
    fs::write(out, lines.concat()).unwrap();
}

/// What [`look`] wrote.
pub(crate) fn read_back(out: &Path) -> Answers {
    let text = fs::read_to_string(out).unwrap();
    let pair = |line: &str| line.split_once('\t').map(|(a, b)| (a.to_owned(), b.to_owned()));
    text.lines().filter_map(pair).collect()
}
