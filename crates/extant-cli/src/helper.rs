//! The command called by mount(8) and umount(8), under another name: `mount.fuse.extant IMG DIR
//! [-sfnrwv] [-N NAMESPACE] [-o LIST] [-t TYPE]` and `umount.fuse.extant DIR [-flnrv] …`.
//!
//! Its exit codes are those of mount(8), which passes them on.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::commands::umount;
use crate::exit::{Exit, Failure, Result};
use crate::mounting::launcher::{self, Request};
use crate::mounting::options::MountChoices;
use crate::mounting::{remount, words};
use crate::output::{complain, report};

/// What the program is called as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Mount,
    Umount,
}

fn part(name: &OsStr) -> Option<Part> {
    let name = Path::new(name).file_name()?;
    match name.to_str()? {
        "mount.fuse.extant" | "mount.extant" => Some(Part::Mount),
        "umount.fuse.extant" | "umount.extant" => Some(Part::Umount),
        _ => None,
    }
}

/// Runs the command if it is called as a helper.
pub(crate) fn run() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let part = part(&args.next()?)?;
    let args: Vec<OsString> = args.collect();
    let result = Arguments::parse(&args, part).and_then(|arguments| match part {
        Part::Mount => mount(arguments),
        Part::Umount => unmount(&arguments),
    });
    Some(match result {
        Ok(exit) => code(exit),
        Err(failure) => {
            report(&failure);
            code(failure.exit)
        }
    })
}

/// The exit code that mount(8) knows.
fn code(exit: Exit) -> ExitCode {
    ExitCode::from(match exit {
        Exit::Success => 0,
        Exit::Usage => 1,
        Exit::Internal => 4,
        Exit::Interrupted => 8,
        _ => 32,
    })
}

#[derive(Debug, Default)]
struct Arguments {
    names: Vec<PathBuf>,
    lists: Vec<String>,
    /// Unknown options are passed over.
    sloppy: bool,
    /// Only as if.
    fake: bool,
    read_only: bool,
    lazy: bool,
    verbose: bool,
}

impl Arguments {
    fn parse(args: &[OsString], part: Part) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        let mut rest = args.iter();
        let mut only_names = false;
        while let Some(arg) = rest.next() {
            let letters = arg.to_str().and_then(|arg| arg.strip_prefix('-'));
            let Some(letters) = letters.filter(|letters| !letters.is_empty() && !only_names) else {
                arguments.names.push(PathBuf::from(arg));
                continue;
            };
            only_names = letters == "-";
            let mut letters = letters.trim_start_matches('-').chars();
            while let Some(letter) = letters.next() {
                match letter {
                    's' => arguments.sloppy = true,
                    'f' if part == Part::Mount => arguments.fake = true,
                    'f' | 'n' | 'w' => {}
                    'r' => arguments.read_only = part == Part::Mount,
                    'l' => arguments.lazy = true,
                    'v' => arguments.verbose = true,
                    'o' | 't' | 'N' => {
                        let value = match letters.as_str() {
                            "" => rest.next().map(|value| value.to_string_lossy().into_owned()),
                            attached => Some(attached.to_owned()),
                        };
                        let missing = || Failure::usage(format!("-{letter} needs a value"));
                        let value = value.ok_or_else(missing)?;
                        match letter {
                            'o' => arguments.lists.push(value),
                            // Which of its names the kind has makes no difference.
                            't' => {}
                            _ => return Err(other_name_space()),
                        }
                        break;
                    }
                    _ => return Err(Failure::usage(format!("no such option: -{letter}"))),
                }
            }
        }
        Ok(arguments)
    }
}

fn other_name_space() -> Failure {
    Failure::new(Exit::Unsupported, "-N: mounting in another name space is not supported")
        .hint("nsenter --mount runs the whole command there")
}

fn mount(arguments: Arguments) -> Result<Exit> {
    let mut choices = MountChoices::default();
    for list in &arguments.lists {
        if arguments.sloppy {
            for word in list.split(',') {
                if let Err(failure) = words::apply_list(word, &mut choices) {
                    complain(&format!("passed over: {}", failure.message));
                }
            }
        } else {
            words::apply_list(list, &mut choices)?;
        }
    }
    choices.read_only |= arguments.read_only;
    choices.verbose |= arguments.verbose;
    choices.check()?;
    let [image, dir] = arguments.names.as_slice() else {
        return Err(Failure::usage("an image and a directory are needed"));
    };
    if arguments.fake {
        return Ok(Exit::Success);
    }
    if choices.remount {
        let read_only = arguments.read_only.then(|| "ro".to_owned());
        return remount::run(
            dir,
            &arguments.lists.into_iter().chain(read_only).collect::<Vec<_>>(),
        );
    }
    launcher::run(&Request { image: image.clone(), dir: dir.clone(), choices })
}

fn unmount(arguments: &Arguments) -> Result<Exit> {
    let [dir] = arguments.names.as_slice() else {
        return Err(Failure::usage("a directory is needed"));
    };
    umount::take_down(dir, arguments.lazy, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str, part: Part) -> Result<Arguments> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Arguments::parse(&args, part)
    }

    #[test]
    fn it_is_known_by_its_names() {
        assert_eq!(part(OsStr::new("/sbin/mount.fuse.extant")), Some(Part::Mount));
        assert_eq!(part(OsStr::new("umount.fuse.extant")), Some(Part::Umount));
        for name in ["extant", "/usr/bin/extant", "mount", "mount.fuse", ""] {
            assert_eq!(part(OsStr::new(name)), None, "{name}");
        }
    }

    #[test]
    fn arguments_of_mount_are_understood() {
        let line = "/a.img /mnt -nv -o rw,noatime -t fuse.extant -oro";
        let arguments = parsed(line, Part::Mount).unwrap();
        assert_eq!(arguments.names, [Path::new("/a.img"), Path::new("/mnt")]);
        assert_eq!(arguments.lists, ["rw,noatime", "ro"]);
        assert!(arguments.verbose && !arguments.sloppy && !arguments.fake);
        assert!(parsed("/a.img /mnt -sf", Part::Mount).unwrap().fake);
        assert!(!parsed("/mnt -fl", Part::Umount).unwrap().fake, "forced there");
        assert_eq!(parsed("-- -a -b", Part::Mount).unwrap().names.len(), 2);
        assert_eq!(
            parsed("/a /b -N /proc/1/ns/mnt", Part::Mount).unwrap_err().exit,
            Exit::Unsupported
        );
        assert_eq!(parsed("/a /b -x", Part::Mount).unwrap_err().exit, Exit::Usage);
        assert_eq!(parsed("/a /b -o", Part::Mount).unwrap_err().exit, Exit::Usage);
    }
}
