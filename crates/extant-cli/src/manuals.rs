//! Where the documents are that messages point to.

use std::path::Path;

/// The document `name`, as somebody can open it: beside the installed command, else by its place in
/// the source.
pub(crate) fn place(name: &str) -> String {
    let installed = std::env::current_exe().ok().and_then(|program| {
        let prefix = program.parent()?.parent()?;
        let path = prefix.join("share/doc/extant").join(name);
        path.exists().then(|| path.display().to_string())
    });
    installed.unwrap_or_else(|| in_source(name))
}

/// Returns the place of a document for pages that are made before anything is installed: in
/// `directory`, if that is given.
pub(crate) fn place_in(directory: Option<&Path>, name: &str) -> String {
    match directory {
        Some(directory) => directory.join(name).display().to_string(),
        None => in_source(name),
    }
}

fn in_source(name: &str) -> String {
    format!("docs/{name}")
}
