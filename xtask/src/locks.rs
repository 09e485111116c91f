//! Lock files of programs outside of the workspace.
//!
//! `cargo … --locked` refuses a lock file that does not know a dependency which a crate of the project was given since;
//! here the difference shows in seconds, and not after all tests.

use crate::files::Text;

/// What a crate of the project needs according to a lock file, by name.
fn locked<'a>(lock: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let mine = format!("name = \"{name}\"\n");
    let package = lock.split("[[package]]").find(|package| {
        // One from a registry may have the same name.
        package.contains(&mine) && !package.contains("\nsource = ")
    })?;
    let list = package.split_once("dependencies = [").map_or("", |(_, list)| list);
    let list = list.split(']').next().unwrap_or("");
    // `name`, or `name version` where there are several.
    let entries = list.lines().map(|line| line.trim().trim_matches([',', '"']));
    Some(
        entries
            .filter_map(|entry| entry.split(' ').next())
            .filter(|name| !name.is_empty())
            .collect(),
    )
}

/// What a crate says that it needs, apart from its tests.
fn wanted(manifest: &str) -> Vec<&str> {
    let mut wanted = Vec::new();
    let mut needed = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            needed = section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
        } else if needed && let Some((name, value)) = line.split_once('=') {
            let renamed =
                value.split_once("package = \"").and_then(|(_, name)| name.split('"').next());
            let name = name.trim().trim_end_matches(".workspace").trim_matches('"');
            // Cargo locks what is optional only where a feature asks for it.
            if !line.starts_with('#') && !value.contains("optional = true") {
                wanted.push(renamed.unwrap_or(name));
            }
        }
    }
    wanted
}

/// Lock files other than the workspace's that lack what a crate of the project needs.
pub(crate) fn lacking(files: &[Text], faults: &mut Vec<String>) {
    let manifests = files.iter().filter_map(|file| {
        let name = file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        Some((name, wanted(&file.contents)))
    });
    let manifests: Vec<_> = manifests.collect();
    let locks = files.iter().filter(|file| file.path.ends_with("/Cargo.lock"));
    for lock in locks {
        for (name, wanted) in &manifests {
            let Some(locked) = locked(&lock.contents, name) else { continue };
            for needed in wanted.iter().filter(|needed| !locked.contains(needed)) {
                faults.push(format!(
                    "{} does not know that {name} needs {needed}: run cargo metadata there",
                    lock.path
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"one\"\n[dependencies]\n# remark = 1\nlog.workspace = true\n\
        maybe = { version = \"1\", optional = true }\n\
        other = { version = \"1\", package = \"real\" }\n[dev-dependencies]\ntempfile = \"3\"\n\
        [target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n";

    fn faults(list: &str) -> Vec<String> {
        let lock = format!(
            "[[package]]\nname = \"one\"\nsource = \"registry\"\n\n\
             [[package]]\nname = \"one\"\nversion = \"0.1.0\"\ndependencies = [\n{list}]\n\n\
             [[package]]\nname = \"log\"\n"
        );
        let file =
            |path: &str, contents: &str| Text { path: path.into(), contents: contents.into() };
        let files = [file("crates/one/Cargo.toml", MANIFEST), file("examples/x/Cargo.lock", &lock)];
        let mut faults = Vec::new();
        lacking(&files, &mut faults);
        faults
    }

    #[test]
    fn a_lock_file_that_lacks_a_dependency_is_named() {
        assert_eq!(faults(" \"libc\",\n \"log 0.4.1\",\n \"real\",\n"), Vec::<String>::new());
        let told = faults(" \"log\",\n \"real\",\n");
        let wanted =
            "examples/x/Cargo.lock does not know that one needs libc: run cargo metadata there";
        assert_eq!(told, [wanted]);
        assert_eq!(faults("").len(), 3);
    }
}
