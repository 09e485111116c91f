//! `extant encrypt`: give empty directories an encryption policy.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use extant::{ContentsMode, EncryptionPolicy, IvKind, KeySpec, NamesMode};

use crate::edit::{EditArgs, edit_each};
use crate::exit::{Exit, Failure, Result};

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant mkdir root.img:/home/alice\n  extant encrypt --key-file key root.img:/home/alice\n  extant cp -r --key-file key letters root.img:/home/alice\n  extant stat --key-file key root.img:/home/alice\n";

/// Encrypt empty directories of an image
///
/// What is made in such a directory from now on, and below it, is encrypted with the key of --key-file (fscrypt):
/// contents, names and targets of links. The image needs the feature encrypt (extant mkfs -O encrypt). The policy is of
/// version 2, named after the key; with --key-file NAME=FILE it is of version 1, which has the name that is given. A
/// directory that has this very policy stays as it is. extant stat shows the policy of a file. On a mount, fscryptctl
/// and xfs_io do the same.
#[derive(Args, Debug)]
pub(crate) struct EncryptArgs {
    #[command(flatten)]
    edit: EditArgs,
    /// How contents and names are encrypted
    #[arg(long, value_enum, default_value_t = Modes::Aes256)]
    modes: Modes,
    /// Names are padded to a multiple of so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 32, value_parser = padding)]
    padding: u8,
    /// What keys and initialization vectors depend on
    #[arg(long, value_enum, default_value_t = Vectors::File)]
    vectors: Vectors,
    /// The directories
    #[arg(value_name = "IMG:/PATH", required = true)]
    targets: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Modes {
    /// AES-256-XTS, and AES-256-CBC-CTS for names
    Aes256,
    /// AES-128-CBC-ESSIV, and AES-128-CBC-CTS for names
    Aes128,
    /// AES-256-XTS, and AES-256-HCTR2 for names, which hides where names begin alike
    Hctr2,
    /// Adiantum for both: for processors without instructions for AES
    Adiantum,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Vectors {
    /// A key for each file
    File,
    /// One key, and the nonce of the file in vectors; with adiantum alone
    DirectKey,
    /// One key, and the number of the inode in vectors of 64 bits; needs the feature stable_inodes, and aes256 or hctr2
    InoLblk64,
    /// The same in vectors of 32 bits
    InoLblk32,
}

fn padding(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(bytes @ (4 | 8 | 16 | 32)) => Ok(bytes),
        _ => Err("4, 8, 16 or 32".to_owned()),
    }
}

/// Runs the command.
pub(crate) fn run(args: &EncryptArgs) -> Result<Exit> {
    let (contents, names) = match args.modes {
        Modes::Aes256 => (ContentsMode::Aes256Xts, NamesMode::Aes256Cts),
        Modes::Aes128 => (ContentsMode::Aes128CbcEssiv, NamesMode::Aes128Cts),
        Modes::Hctr2 => (ContentsMode::Aes256Xts, NamesMode::Aes256Hctr2),
        Modes::Adiantum => (ContentsMode::Adiantum, NamesMode::Adiantum),
    };
    let iv = match args.vectors {
        Vectors::File => IvKind::PerFile,
        Vectors::DirectKey => IvKind::DirectKey,
        Vectors::InoLblk64 => IvKind::InoLblk64,
        Vectors::InoLblk32 => IvKind::InoLblk32,
    };
    let usual = EncryptionPolicy::new(args.edit.only_key()?);
    let policy = EncryptionPolicy { contents, names, iv, padding: args.padding, ..usual };
    if !policy.is_supported() {
        return Err(unsupported(args, &policy));
    }
    edit_each(&args.edit, &args.targets, |session, path| {
        let dir = session.find(path, true)?;
        session.at(path, dir.set_encryption_policy(&policy))
    })
}

/// Returns why words that are known do not go together, as in Linux.
fn unsupported(args: &EncryptArgs, policy: &EncryptionPolicy) -> Failure {
    let (modes, vectors) = (word(&args.modes), word(&args.vectors));
    let is_v1 = matches!(policy.key, KeySpec::Descriptor(_));
    let (why, hint) = match args.vectors {
        Vectors::DirectKey if !matches!(args.modes, Modes::Adiantum) => (
            format!(
                "--vectors direct-key does not go with --modes {modes}: its vectors are too short"
            ),
            "give --modes adiantum, or other vectors",
        ),
        Vectors::InoLblk64 | Vectors::InoLblk32 if !is_v1 => (
            format!("--vectors {vectors} does not go with --modes {modes} in Linux"),
            "give --modes aes256 or hctr2, or other vectors",
        ),
        _ => (
            format!("--modes {modes} and --vectors {vectors} are not for policies of version 1"),
            "give --key-file FILE without a name",
        ),
    };
    Failure::usage(why).hint(hint)
}

/// A value as it is given.
fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
