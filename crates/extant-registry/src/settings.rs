//! What a registry is asked with.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How images are fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Whether a registry on another host may be asked without encryption. No, unless set; those on this host always are.
    pub plain_http: bool,
    /// Directory in which blobs are kept; `None` keeps nothing.
    pub cache: Option<PathBuf>,
    /// Bytes that the cache has at most when an image has been fetched; 8 GiB.
    pub cache_bytes: u64,
    /// Files with users and passwords, of which the first one counts that has the registry.
    pub auth_files: Vec<PathBuf>,
    /// How often a request is tried at most, unless it brings something; 5.
    pub attempts: u32,
    /// Time limit of a connection; 10 seconds.
    pub connect_timeout: Duration,
    /// Time in which something has to come; 30 seconds.
    pub read_timeout: Duration,
}

impl Default for Settings {
    /// The user's cache and files, as the environment says.
    fn default() -> Settings {
        Settings {
            plain_http: false,
            cache: cache_dir(),
            cache_bytes: 8 << 30,
            auth_files: auth_files(),
            attempts: 5,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
        }
    }
}

/// Returns the absolute path in a variable.
fn dir(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn cache_dir() -> Option<PathBuf> {
    let base = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")))?;
    Some(base.join("extant"))
}

fn auth_files() -> Vec<PathBuf> {
    if let Some(file) = std::env::var_os("REGISTRY_AUTH_FILE").filter(|file| !file.is_empty()) {
        return vec![file.into()];
    }
    let join = |base: Option<PathBuf>, rest: &str| Some(base?.join(Path::new(rest)));
    let home = || dir("HOME");
    let files = [
        join(dir("XDG_RUNTIME_DIR"), "containers/auth.json"),
        join(dir("XDG_CONFIG_HOME").or_else(|| join(home(), ".config")), "containers/auth.json"),
        join(dir("DOCKER_CONFIG").or_else(|| join(home(), ".docker")), "config.json"),
    ];
    files.into_iter().flatten().collect()
}
