//! Stand-ins for the libraries of Ceph, with images in files: `fake.c` says what they can be told to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// What the libraries consist of.
const SOURCE: &str = include_str!("fake.c");

/// Libraries that were compiled, and a cluster for them: a directory with one pool, `pool`.
pub struct Cluster {
    dir: TempDir,
}

impl Cluster {
    /// Compiles the libraries. `without`: symbols that the source is told to leave out, such as `WITHOUT_FLUSH`.
    ///
    /// # Errors
    ///
    /// That there is no compiler.
    pub fn new(without: &[&str]) -> Result<Cluster, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let source = dir.path().join("fake.c");
        fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        for (symbol, name) in [("-DRADOS", "librados.so.2"), ("-DRBD", "librbd.so.1")] {
            let mut command = Command::new("cc");
            command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]);
            command.args(["-g", "-O1", "-shared", "-fPIC", "-pthread", symbol]);
            command.args(without.iter().map(|symbol| format!("-D{symbol}")));
            command.arg(&source).arg("-o").arg(dir.path().join(name));
            let done = command.output().map_err(|_| "there is no C compiler (cc)".to_owned())?;
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        fs::create_dir(dir.path().join("pool")).map_err(|error| error.to_string())?;
        Ok(Cluster { dir })
    }

    /// The directory of the libraries, and of the pools.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The file of an image.
    pub fn image(&self, name: &str) -> PathBuf {
        self.dir().join("pool").join(name)
    }

    /// Makes an image of zeros.
    pub fn make(&self, name: &str, bytes: u64) {
        fs::File::create(self.image(name)).and_then(|file| file.set_len(bytes)).unwrap();
    }

    /// The address of an image or a snapshot.
    pub fn address(&self, name: &str) -> String {
        let dir = self.dir().display();
        format!(
            "rbd:pool/{name}:mon_host=none:fake_dir={dir}:fake_control={dir}/control:fake_log={dir}/log"
        )
    }

    /// Tells the libraries what to do from now on: words such as `fail_read=5`.
    pub fn tell(&self, words: &str) {
        // At once or not at all: requests read it meanwhile.
        let next = self.dir().join("control.new");
        fs::write(&next, words).unwrap();
        fs::rename(next, self.dir().join("control")).unwrap();
    }

    /// The requests so far: what, offset, length, how many were under way; and forgets them.
    pub fn requests(&self) -> Vec<(String, u64, u64, u64)> {
        let path = self.dir().join("log");
        let log = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        let line = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse().unwrap();
            (words[0].to_owned(), number(1), number(2), number(3))
        };
        log.lines().map(line).collect()
    }
}
