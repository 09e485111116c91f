//! `extant man`: manual pages.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;

/// Print the manual page, or write one for each command into a directory
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory for extant.1, extant-build.1 and so on; must exist
    directory: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &ManArgs) -> Result<Exit> {
    let command = crate::cli::definition();
    let Some(directory) = &args.directory else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        std::io::stdout().write_all(&page)?;
        return Ok(Exit::Success);
    };
    clap_mangen::generate_to(command, directory).map_err(|error| {
        let what = format!("cannot write pages into {}", directory.display());
        Failure::caused(io_exit(&error), &what, &error)
    })?;
    Ok(Exit::Success)
}
