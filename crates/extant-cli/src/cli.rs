//! The command line as a whole, and which module runs what.

use std::ffi::OsString;
use std::io::Write;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use extant_block::DeviceEngine;

use crate::commands::{
    build, cat, chattr, check, chmod, chown, completions, cp, defrag, diff, edit, encrypt, extents,
    extract, fallocate, find, frag, fstrim, getfacl, getfattr, info, ln, ls, lsattr, man, metadata,
    mkdir, mkfs, mknod, mount, mv, overlay, repair, replay, resize, rm, rmdir, salvage, serve,
    setfacl, setfattr, stat, stats, tar, touch, tree, truncate, tune, umount, write,
};
use crate::exit::{Exit, Failure, Result};
use crate::output;

/// Build, make, inspect and edit ext4 images, without root and without mounting
#[derive(Parser, Debug)]
#[command(name = "extant", version, max_term_width = 100, disable_help_subcommand = false)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    /// How images and disks are read and written: auto, io_uring, portable
    ///
    /// auto takes io_uring where that pays and the system gives it; io_uring insists on it; portable
    /// does without. extant stats says what a mount uses, and why not io_uring.
    #[arg(long, global = true, value_name = "ENGINE", hide_short_help = true)]
    device_engine: Option<DeviceEngine>,
}

// The options of a command are made when it is called or asked for: all of them take a megabyte of memory, which was more
// than half of the time of a short command.
#[derive(Subcommand, Debug)]
#[command(defer = true)]
enum Command {
    Build(Box<build::BuildArgs>),
    Mkfs(Box<mkfs::MkfsArgs>),
    Info(info::InfoArgs),
    Check(check::CheckArgs),
    Ls(ls::LsArgs),
    Tree(tree::TreeArgs),
    Stat(stat::StatArgs),
    Cat(cat::CatArgs),
    Find(find::FindArgs),
    Encrypt(encrypt::EncryptArgs),
    Extents(extents::ExtentsArgs),
    Frag(frag::FragArgs),
    Defrag(defrag::DefragArgs),
    Extract(extract::ExtractArgs),
    Tar(tar::TarArgs),
    Diff(diff::DiffArgs),
    Cp(Box<cp::CpArgs>),
    Write(write::WriteArgs),
    Edit(edit::EditorArgs),
    Truncate(truncate::TruncateArgs),
    Fallocate(fallocate::FallocateArgs),
    Fstrim(fstrim::FstrimArgs),
    Mkdir(mkdir::MkdirArgs),
    Rmdir(rmdir::RmdirArgs),
    Mknod(mknod::MknodArgs),
    Rm(rm::RmArgs),
    Mv(mv::MvArgs),
    Ln(ln::LnArgs),
    Chmod(chmod::ChmodArgs),
    Chown(chown::ChownArgs),
    Touch(touch::TouchArgs),
    Setfattr(setfattr::SetfattrArgs),
    Getfattr(getfattr::GetfattrArgs),
    Setfacl(setfacl::SetfaclArgs),
    Getfacl(getfacl::GetfaclArgs),
    Chattr(chattr::ChattrArgs),
    Lsattr(lsattr::LsattrArgs),
    Tune(Box<tune::TuneArgs>),
    Resize(resize::ResizeArgs),
    Repair(repair::RepairArgs),
    Undo(repair::UndoArgs),
    Salvage(salvage::SalvageArgs),
    Metadata(metadata::MetadataArgs),
    Replay(replay::ReplayArgs),
    Overlay(overlay::OverlayArgs),
    Mount(Box<mount::MountArgs>),
    Umount(umount::UmountArgs),
    Stats(stats::StatsArgs),
    Serve(Box<serve::ServeArgs>),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// The command line's definition alone. Commands in it have their options only after [`clap::Command::build`].
pub(crate) fn bare_definition() -> clap::Command {
    Cli::command()
}

/// The command line's definition, with examples and the table of exit codes.
pub(crate) fn definition() -> clap::Command {
    let table = Exit::help_table();
    let mut command = bare_definition().after_help(table.clone());
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = with_examples(command, &name, &table);
    }
    command
}

/// The definition that `args` need: of one command, if they call one, and of all otherwise, because help and suggestions
/// tell of all.
fn definition_for(args: &[OsString]) -> clap::Command {
    let command = bare_definition();
    let called = args.get(1).and_then(|name| name.to_str());
    match called.filter(|name| command.find_subcommand(name).is_some()) {
        Some(name) => {
            let table = Exit::help_table();
            with_examples(command.after_help(table.clone()), name, &table)
        }
        None => {
            let mut all = definition();
            all.build();
            all
        }
    }
}

fn with_examples(command: clap::Command, name: &str, table: &str) -> clap::Command {
    let examples = examples(name).map(|text| format!("{text}\n")).unwrap_or_default();
    let end = format!("{examples}{table}");
    command.mut_subcommand(name, |sub| sub.after_long_help(end))
}

/// Commands that show something by example: a heading, and a line for each.
pub(crate) fn examples(command: &str) -> Option<&'static str> {
    Some(match command {
        "build" => build::EXAMPLES,
        "mkfs" => mkfs::EXAMPLES,
        "info" => info::EXAMPLES,
        "check" => check::EXAMPLES,
        "ls" => ls::EXAMPLES,
        "tree" => tree::EXAMPLES,
        "stat" => stat::EXAMPLES,
        "cat" => cat::EXAMPLES,
        "find" => find::EXAMPLES,
        "encrypt" => encrypt::EXAMPLES,
        "extents" => extents::EXAMPLES,
        "frag" => frag::EXAMPLES,
        "defrag" => defrag::EXAMPLES,
        "extract" => extract::EXAMPLES,
        "tar" => tar::EXAMPLES,
        "diff" => diff::EXAMPLES,
        "cp" => cp::EXAMPLES,
        "write" => write::EXAMPLES,
        "edit" => edit::EXAMPLES,
        "truncate" => truncate::EXAMPLES,
        "fallocate" => fallocate::EXAMPLES,
        "fstrim" => fstrim::EXAMPLES,
        "mkdir" => mkdir::EXAMPLES,
        "rmdir" => rmdir::EXAMPLES,
        "mknod" => mknod::EXAMPLES,
        "rm" => rm::EXAMPLES,
        "mv" => mv::EXAMPLES,
        "ln" => ln::EXAMPLES,
        "chmod" => chmod::EXAMPLES,
        "chown" => chown::EXAMPLES,
        "touch" => touch::EXAMPLES,
        "setfattr" => setfattr::EXAMPLES,
        "getfattr" => getfattr::EXAMPLES,
        "setfacl" => setfacl::EXAMPLES,
        "getfacl" => getfacl::EXAMPLES,
        "chattr" => chattr::EXAMPLES,
        "lsattr" => lsattr::EXAMPLES,
        "tune" => tune::EXAMPLES,
        "resize" => resize::EXAMPLES,
        "repair" => repair::EXAMPLES,
        "undo" => repair::UNDO_EXAMPLES,
        "salvage" => salvage::EXAMPLES,
        "metadata" => metadata::EXAMPLES,
        "replay" => replay::EXAMPLES,
        "overlay" => overlay::EXAMPLES,
        "mount" => mount::EXAMPLES,
        "umount" => umount::EXAMPLES,
        "stats" => stats::EXAMPLES,
        "serve" => serve::EXAMPLES,
        _ => return None,
    })
}

/// Reads the command line and runs what it asks for.
pub(crate) fn run() -> Result<Exit> {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(|name| name == "find") {
        args = args.into_iter().map(find::double_dashes).collect();
    }
    if args.get(1).is_some_and(|name| name == "chattr") {
        args = args.into_iter().map(chattr::named_removal).collect();
    }
    if args.get(1).is_some_and(|name| name == "resize") {
        args = args.into_iter().map(resize::named_minus).collect();
    }
    if wants_json(&args) {
        output::errors_as_json();
    }
    let cli = definition_for(&args)
        .try_get_matches_from(args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match cli {
        Ok(cli) => cli,
        // Help and the version, which may not get where they should.
        Err(error) if !error.use_stderr() => {
            output::is_there()?;
            error.print()?;
            std::io::stdout().flush()?;
            return Ok(Exit::Success);
        }
        // Prints usage errors itself and ends with 2.
        Err(error) if !output::is_json() => error.exit(),
        Err(error) => return Err(usage(&error)),
    };
    if let Some(engine) = cli.device_engine {
        extant_block::set_default_engine(engine);
    }
    match cli.command {
        Command::Build(args) => build::run(&args),
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Tree(args) => tree::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Find(args) => find::run(&args),
        Command::Encrypt(args) => encrypt::run(&args),
        Command::Extents(args) => extents::run(&args),
        Command::Frag(args) => frag::run(&args),
        Command::Defrag(args) => defrag::run(&args),
        Command::Extract(args) => extract::run(&args),
        Command::Tar(args) => tar::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Cp(args) => cp::run(&args),
        Command::Write(args) => write::run(&args),
        Command::Edit(args) => edit::run(&args),
        Command::Truncate(args) => truncate::run(&args),
        Command::Fallocate(args) => fallocate::run(&args),
        Command::Fstrim(args) => fstrim::run(&args),
        Command::Mkdir(args) => mkdir::run(&args),
        Command::Rmdir(args) => rmdir::run(&args),
        Command::Mknod(args) => mknod::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Mv(args) => mv::run(&args),
        Command::Ln(args) => ln::run(&args),
        Command::Chmod(args) => chmod::run(&args),
        Command::Chown(args) => chown::run(&args),
        Command::Touch(args) => touch::run(&args),
        Command::Setfattr(args) => setfattr::run(&args),
        Command::Getfattr(args) => getfattr::run(&args),
        Command::Setfacl(args) => setfacl::run(&args),
        Command::Getfacl(args) => getfacl::run(&args),
        Command::Chattr(args) => chattr::run(&args),
        Command::Lsattr(args) => lsattr::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Resize(args) => resize::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Undo(args) => repair::run_undo(&args),
        Command::Salvage(args) => salvage::run(&args),
        Command::Metadata(args) => metadata::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Overlay(args) => overlay::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Completions(args) => completions::run(&args, definition()),
        Command::Man(args) => man::run(&args, bare_definition(), examples),
    }
}

/// Returns whether the command was asked for JSON: its errors are objects then, also those about the
/// command line itself. What follows `--` is no option.
fn wants_json(args: &[OsString]) -> bool {
    if !args.iter().skip(2).take_while(|arg| *arg != "--").any(|arg| *arg == "--json") {
        return false;
    }
    let mut at = bare_definition();
    for name in args.iter().skip(1).map_while(|name| name.to_str()) {
        // Some commands have commands of their own.
        let Some(mut sub) = at.find_subcommand(name).cloned() else { break };
        // Its options are made here, and those of no other.
        sub.build();
        at = sub;
    }
    at.get_arguments().any(|arg| arg.get_long() == Some("json"))
}

/// What is wrong with the command line, as a failure.
fn usage(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let lines = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let failure = Failure::usage(lines(message.trim_start_matches("error:")));
    match lines(rest) {
        rest if rest.is_empty() => failure,
        rest => failure.hint(rest),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_holds_together() {
        super::definition().debug_assert();
    }

    #[test]
    fn json_is_for_commands_that_have_it_also_within_others() {
        let wants = |line: &str| {
            let args: Vec<_> = line.split(' ').map(std::ffi::OsString::from).collect();
            super::wants_json(&args)
        };
        assert!(wants("extant ls --json a.img") && wants("extant overlay info --json a.img"));
        assert!(wants("extant overlay info a.img --json"));
        assert!(!wants("extant ls a.img") && !wants("extant ls -- --json"));
        assert!(!wants("extant chmod 755 a.img --json") && !wants("extant --json"));
        assert!(!wants("extant overlay commit a.img --json"));
    }
}
