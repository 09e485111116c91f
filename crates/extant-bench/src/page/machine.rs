//! The machine on which the page is made.

use std::process::Command;

use serde::Serialize;

/// What a reader must know to repeat the figures.
#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) commit: String,
    pub(super) processors: String,
    pub(super) memory: String,
    pub(super) system: String,
    /// Versions of the programs that were measured.
    pub(super) programs: Vec<String>,
}

/// Programs that appear in tables, and how each says its version.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("mke2fs", &["-V"]),
    ("mkfs.xfs", &["-V"]),
    ("fio", &["--version"]),
    ("fuse2fs", &["-V"]),
    ("mkfs.erofs", &["-V"]),
    ("genext2fs", &["-V"]),
    ("umoci", &["--version"]),
    ("tar", &["--version"]),
];

impl Machine {
    /// Asks the system; what it does not tell is "unknown".
    pub(super) fn here() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let cpuinfo = read("/proc/cpuinfo");
        let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let model = field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned());
        let kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let release = read("/proc/sys/kernel/osrelease");
        let name = read("/etc/os-release").lines().find_map(|line| {
            line.strip_prefix("PRETTY_NAME=").map(|name| name.trim_matches('"').to_owned())
        });
        Machine {
            date: said("date", &["-u", "+%Y-%m-%d"]).unwrap_or_else(|| "unknown".to_owned()),
            commit: commit().unwrap_or_else(|| "unknown".to_owned()),
            processors: format!("{count} × {model}"),
            memory: kib
                .map_or("unknown".to_owned(), |kib| format!("{} GiB", kib.div_ceil(1 << 20))),
            system: format!("Linux {}, {}", release.trim(), name.as_deref().unwrap_or("unknown")),
            programs: PROGRAMS.iter().filter_map(|(name, args)| version(name, args)).collect(),
        }
    }
}

/// Returns the first line that a program prints, wherever it prints it.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(crate::run::find(program)?).args(args).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Returns a program's name with its version.
fn version(program: &str, args: &[&str]) -> Option<String> {
    let line = said(program, args)?;
    Some(if line.contains(program) { line } else { format!("{program} {line}") })
}

/// Returns the commit of the checkout, marked if files differ from it.
fn commit() -> Option<String> {
    let commit = said("git", &["rev-parse", "--short", "HEAD"])?;
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no", "."]);
    Some(if changed.is_some() { format!("{commit}, with changes") } else { commit })
}
