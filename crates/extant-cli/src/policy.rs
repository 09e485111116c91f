//! Options that say how directories are encrypted.

use clap::{Args, ValueEnum};
use extant::{ContentsMode, EncryptionPolicy, IvKind, KeySpec, NamesMode};

use crate::exit::{Failure, Result};

/// How directories are encrypted, whatever the key.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct PolicyArgs {
    /// How contents and names are encrypted [default: aes256]
    #[arg(long, value_enum, help_heading = "Encryption")]
    modes: Option<Modes>,
    /// Names are padded to a multiple of so many bytes: 4, 8, 16 or 32 [default: 32]
    #[arg(long, value_name = "BYTES", value_parser = padding, help_heading = "Encryption")]
    padding: Option<u8>,
    /// What keys and initialization vectors depend on [default: file]
    #[arg(long, value_enum, help_heading = "Encryption")]
    vectors: Option<Vectors>,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default)]
enum Modes {
    /// AES-256-XTS, and AES-256-CBC-CTS for names
    #[default]
    Aes256,
    /// AES-128-CBC-ESSIV, and AES-128-CBC-CTS for names
    Aes128,
    /// AES-256-XTS, and AES-256-HCTR2 for names, which hides where names begin alike
    Hctr2,
    /// Adiantum for both: for processors without instructions for AES
    Adiantum,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default)]
enum Vectors {
    /// A key for each file
    #[default]
    File,
    /// One key, and the nonce of the file in vectors; with adiantum alone
    DirectKey,
    /// One key, and the number of the inode in vectors of 64 bits; needs the feature stable_inodes, and aes256 or hctr2
    InoLblk64,
    /// The same in vectors of 32 bits
    InoLblk32,
}

fn padding(text: &str) -> std::result::Result<u8, String> {
    match text.parse() {
        Ok(bytes @ (4 | 8 | 16 | 32)) => Ok(bytes),
        _ => Err("4, 8, 16 or 32".to_owned()),
    }
}

impl PolicyArgs {
    /// Returns whether one of the options was given.
    pub(crate) fn is_given(&self) -> bool {
        self.modes.is_some() || self.padding.is_some() || self.vectors.is_some()
    }

    /// Returns the policy with the key of that name.
    pub(crate) fn policy(&self, key: KeySpec) -> Result<EncryptionPolicy> {
        let (contents, names) = match self.modes.unwrap_or_default() {
            Modes::Aes256 => (ContentsMode::Aes256Xts, NamesMode::Aes256Cts),
            Modes::Aes128 => (ContentsMode::Aes128CbcEssiv, NamesMode::Aes128Cts),
            Modes::Hctr2 => (ContentsMode::Aes256Xts, NamesMode::Aes256Hctr2),
            Modes::Adiantum => (ContentsMode::Adiantum, NamesMode::Adiantum),
        };
        let iv = match self.vectors.unwrap_or_default() {
            Vectors::File => IvKind::PerFile,
            Vectors::DirectKey => IvKind::DirectKey,
            Vectors::InoLblk64 => IvKind::InoLblk64,
            Vectors::InoLblk32 => IvKind::InoLblk32,
        };
        let usual = EncryptionPolicy::new(key);
        let padding = self.padding.unwrap_or(usual.padding);
        let policy = EncryptionPolicy { contents, names, iv, padding, ..usual };
        match policy.is_supported() {
            true => Ok(policy),
            false => Err(self.unsupported(&policy)),
        }
    }

    /// Returns why words that are known do not go together, as in Linux.
    fn unsupported(&self, policy: &EncryptionPolicy) -> Failure {
        let (modes, vectors) = (self.modes.unwrap_or_default(), self.vectors.unwrap_or_default());
        let is_v1 = matches!(policy.key, KeySpec::Descriptor(_));
        let names = (word(&modes), word(&vectors));
        let (why, hint) = match (vectors, names) {
            (Vectors::DirectKey, (modes_name, _)) if !matches!(modes, Modes::Adiantum) => (
                format!(
                    "--vectors direct-key does not go with --modes {modes_name}: its vectors are too short"
                ),
                "give --modes adiantum, or other vectors",
            ),
            (Vectors::InoLblk64 | Vectors::InoLblk32, (modes, vectors)) if !is_v1 => (
                format!("--vectors {vectors} does not go with --modes {modes} in Linux"),
                "give --modes aes256 or hctr2, or other vectors",
            ),
            (_, (modes, vectors)) => (
                format!(
                    "--modes {modes} and --vectors {vectors} are not for policies of version 1"
                ),
                "give the file of the key without a name",
            ),
        };
        Failure::usage(why).hint(hint)
    }
}

/// A value as it is given.
fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
