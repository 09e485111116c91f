//! `extant completions`: completion scripts for shells.

use clap::Args;
use clap_complete::Shell;

use crate::exit::{Exit, Result};

/// Print a completion script for a shell
///
/// For bash: extant completions bash > ~/.local/share/bash-completion/completions/extant
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs the command; `definition` is the command line's.
pub(crate) fn run(args: &CompletionsArgs, mut definition: clap::Command) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, "extant", &mut script);
    crate::output::put(&script)?;
    Ok(Exit::Success)
}
