//! The project's files that people write.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the project.
pub(crate) struct Text {
    /// Its path, relative to the root.
    pub(crate) path: String,
    pub(crate) contents: String,
}

/// All of them, in order of their paths.
pub(crate) fn all_files(root: &Path) -> Vec<Text> {
    let mut files = Vec::new();
    collect(root, root, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Text files of the project; not what tools make.
fn collect(root: &Path, dir: &Path, files: &mut Vec<Text>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path: PathBuf = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | ".git" | "corpus" | "artifacts") {
                collect(root, &path, files);
            }
            continue;
        }
        let known = [".rs", ".md", ".toml", ".yml", ".sh"].iter().any(|end| name.ends_with(end))
            || name == "Makefile"
            || name == "Cargo.lock"
            || dir.file_name().is_some_and(|dir| dir == "scripts" || dir == ".ci");
        let Some(contents) = known.then(|| fs::read_to_string(&path).ok()).flatten() else {
            continue;
        };
        let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        files.push(Text { path, contents });
    }
}
