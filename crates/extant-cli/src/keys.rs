//! Master keys of encrypted files and directories, from files.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use extant::{KeySpec, MasterKey, MountOptions};

use crate::exit::{Exit, Failure, Result};

/// Limit of what is read of a file with a key: 128 digits and line ends.
const FILE_BYTES_MAX: u64 = 4096;

/// Options for keys.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KeyArgs {
    /// The master key of encrypted files and directories is in FILE: 16 to 64 bytes as they are, or
    /// 128 hex digits; may be given several times.
    ///
    /// A policy of version 1 whose key has another name than the tools give it is served by NAME=FILE,
    /// with the 16 hex digits of the name.
    #[arg(long = "key-file", value_name = "[NAME=]FILE", help_heading = "Image")]
    key_files: Vec<PathBuf>,
}

/// Keys that were read, with the names that were given for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys(Vec<(Option<KeySpec>, MasterKey)>);

impl PartialEq for Keys {
    fn eq(&self, other: &Keys) -> bool {
        let names = |keys: &Keys| -> Vec<_> {
            keys.0.iter().map(|(name, key)| (*name, key.identifier())).collect()
        };
        names(self) == names(other)
    }
}

impl Eq for Keys {}

impl KeyArgs {
    /// Reads the keys.
    pub(crate) fn read(&self) -> Result<Keys> {
        self.key_files
            .iter()
            .map(|given| read("--key-file", given))
            .collect::<Result<_>>()
            .map(Keys)
    }

    /// Reads the keys, and opens with them.
    pub(crate) fn apply(&self, options: MountOptions) -> Result<MountOptions> {
        Ok(self.read()?.apply(options))
    }
}

impl Keys {
    /// Returns the name of the one key that there is, for policies.
    pub(crate) fn only(&self) -> Result<KeySpec> {
        match &self.0[..] {
            [(Some(name), _)] => Ok(*name),
            [(None, key)] => Ok(key.identifier()),
            [] => Err(Failure::usage("with which key? give --key-file FILE")),
            _ => Err(Failure::usage("one key encrypts a directory: give --key-file once")),
        }
    }

    /// Opens with these keys.
    pub(crate) fn apply(&self, options: MountOptions) -> MountOptions {
        self.0.iter().fold(options, |options, (name, key)| match name {
            Some(name) => options.key_named(*name, key.clone()),
            None => options.key(key.clone()),
        })
    }
}

/// Reads one key, and the name that was given for it.
pub(crate) fn read(option: &str, given: &Path) -> Result<(Option<KeySpec>, MasterKey)> {
    let named = given.to_str().and_then(|text| text.split_once('=')).and_then(|(name, file)| {
        let name: KeySpec = name.parse().ok()?;
        matches!(name, KeySpec::Descriptor(_)).then(|| (name, Path::new(file)))
    });
    let (name, file) = match named {
        Some((name, file)) => (Some(name), file),
        None => (None, given),
    };
    let failed =
        |why: String| Failure::new(Exit::Usage, format!("{option} {}: {why}", file.display()));
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(|error| failed(error.to_string()))?;
    opened
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(error.to_string()))?;
    let key = MasterKey::from_file(&bytes).map_err(|error| failed(error.to_string()));
    bytes.fill(0);
    Ok((name, key?))
}
