//! `extant man`: manual pages.

mod helper;

use std::path::{Path, PathBuf};

use clap::Args;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::exit::{Exit, Failure, Result};
use crate::fault::io_exit;
use crate::manuals;
use crate::output::put;

/// Title over the pages of this section, as the kernel's and coreutils' have one.
const MANUAL: &str = "User Commands";

/// Print the manual page, or write one for each command into a directory
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory for extant.1, extant-build.1, mount.fuse.extant.8 and so on; must exist
    directory: Option<PathBuf>,
    /// Where the documents are installed that pages point to
    #[arg(long, value_name = "DIR")]
    documents: Option<PathBuf>,
}

/// What a command shows by example, if anything: a heading, and a line for each.
pub(crate) type Examples = fn(&str) -> Option<&'static str>;

/// Runs the command; `definition` is the command line's.
pub(crate) fn run(args: &ManArgs, definition: clap::Command, examples: Examples) -> Result<Exit> {
    let mut command = definition.disable_help_subcommand(true);
    command.build();
    let documents = args.documents.as_deref();
    let Some(directory) = &args.directory else {
        put(&page(&command, None, None, documents)?)?;
        return Ok(Exit::Success);
    };
    let write = |name: &str, page: Vec<u8>| {
        let path = directory.join(name);
        std::fs::write(&path, page).map_err(|error| {
            let what = format!("cannot write {}", path.display());
            Failure::caused(io_exit(&error), &what, &error)
        })
    };
    write("extant.1", page(&command, None, None, documents)?)?;
    for sub in command.get_subcommands() {
        let name = sub.get_name();
        write(&format!("extant-{name}.1"), page(sub, Some(name), examples(name), documents)?)?;
    }
    write("mount.fuse.extant.8", helper::page(documents)?)?;
    write("umount.fuse.extant.8", b".so man8/mount.fuse.extant.8\n".to_vec())?;
    Ok(Exit::Success)
}

/// The page of a command; that of extant itself without a name.
fn page(
    command: &clap::Command,
    name: Option<&str>,
    examples: Option<&str>,
    documents: Option<&Path>,
) -> std::io::Result<Vec<u8>> {
    let title = match name {
        Some(name) => format!("extant-{name}"),
        None => "extant".to_owned(),
    };
    let version = format!("extant {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone())
        .title(title.to_uppercase())
        .section("1")
        // Not left out: what follows would take its place.
        .date(" ")
        .source(version)
        .manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let mut options = Vec::new();
    man.render_options_section(&mut options)?;
    page.extend_from_slice(&below_options(&options));
    if name.is_none() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    if let Some(examples) = examples {
        rest.control("SH", ["EXAMPLES"]);
        rest.control("nf", []);
        for line in examples.lines().skip(1) {
            rest.text([roman(line.trim_start())]);
        }
        rest.control("fi", []);
    }
    rest.control("SH", ["EXIT STATUS"]);
    for exit in Exit::ALL {
        rest.control("TP", ["5"]);
        rest.text([roman(exit.code().to_string())]);
        rest.text([roman(exit.meaning())]);
    }
    rest.control("SH", ["SEE ALSO"]);
    let others = match name {
        Some(_) => vec!["extant(1)".to_owned()],
        None => {
            let names =
                command.get_subcommands().map(|sub| format!("extant-{}(1)", sub.get_name()));
            names.collect()
        }
    };
    rest.text([roman(format!("{}, e2fsck(8), ext4(5)", others.join(", ")))]);
    rest.control("PP", []);
    rest.text([roman(format!(
        "What went wrong, by the text of the message: {}",
        manuals::place_in(documents, "troubleshooting.md")
    ))]);
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// Groups of options are parts of one section.
fn below_options(options: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(options);
    let lines = text.lines().map(|line| match line.strip_prefix(".SH ") {
        Some(heading) if heading != "OPTIONS" => format!(".SS {heading}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_the_sections_of_a_manual_and_no_others() {
        let mut command = crate::cli::bare_definition().disable_help_subcommand(true);
        command.build();
        for sub in command.get_subcommands() {
            let name = sub.get_name();
            let page =
                String::from_utf8(page(sub, Some(name), crate::cli::examples(name), None).unwrap())
                    .unwrap();
            let title = format!(".TH EXTANT-{} 1", name.to_uppercase());
            assert!(page.lines().any(|line| line.starts_with(&title)), "{name}: {page}");
            let sections: Vec<&str> =
                page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            let expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"];
            assert_eq!(sections[..4], expected, "{name}");
            let rest = sections[4..].strip_prefix(&["EXAMPLES"]).unwrap_or(&sections[4..]);
            assert_eq!(rest, ["\"EXIT STATUS\"", "\"SEE ALSO\""], "{name}");
        }
    }
}
