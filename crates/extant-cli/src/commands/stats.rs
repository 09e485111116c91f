//! `extant stats`.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use extant_sync::{Clock, SystemClock};
use serde_json::Value;

use crate::exit::{Exit, Result};
use crate::interrupt;
use crate::mounting::{asked, figures};
use crate::output::Out;
use crate::place::absolute;
use crate::text::escape;

/// The end of `--help`, before the exit codes.
pub(crate) const EXAMPLES: &str = "Examples:\n  extant stats mnt\n  extant stats --watch 2 mnt\n  extant stats --prometheus mnt > /var/lib/node_exporter/extant.prom\n";

/// Show what a mount has done: requests, latencies, cache, journal, space
///
/// For root and the user who mounted. Figures count from the mount on; with --watch, each round is
/// about the time since the one before.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("form").args(["json", "prometheus", "watch"]))]
pub(crate) struct StatsArgs {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Print in the text format of Prometheus
    #[arg(long)]
    prometheus: bool,
    /// Print again every so many seconds, until ^C
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<u64>,
    /// Directory of the mount, or anything in it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &StatsArgs) -> Result<Exit> {
    let info = asked::info(&args.dir).map_err(|error| asked::no_answer(&args.dir, &error))?;
    let clock = SystemClock;
    let ask = || asked::stats(&args.dir).map_err(|error| asked::no_answer(&args.dir, &error));
    let stats = ask()?;
    let mut out = Out::new();
    if args.json {
        let mut object = stats.clone();
        if let Value::Object(members) = &mut object {
            members.insert("mount".into(), info.clone());
        }
        out.json_pretty(&object)?;
    } else if args.prometheus {
        // As long as it is mounted there, the same label wherever this is called from.
        let mount = absolute(&args.dir);
        let mount = escape(std::os::unix::ffi::OsStrExt::as_bytes(mount.as_os_str()));
        out.write_all(figures::prometheus(&stats, &info, &mount).as_bytes())?;
    } else {
        out.write_all(figures::text(&stats, None, &info).as_bytes())?;
    }
    out.flush()?;
    let Some(seconds) = args.watch else { return Ok(Exit::Success) };
    interrupt::listen()?;
    let (mut before, mut asked_at) = (stats, clock.monotonic());
    loop {
        let next = asked_at + Duration::from_secs(seconds);
        while clock.monotonic() < next {
            if interrupt::requested() {
                return Ok(Exit::Success);
            }
            clock.sleep(Duration::from_millis(50));
        }
        let now = ask()?;
        let took = clock.monotonic().saturating_sub(asked_at);
        asked_at = clock.monotonic();
        out.write_all(b"\n")?;
        out.write_all(figures::text(&now, Some((&before, took)), &info).as_bytes())?;
        out.flush()?;
        before = now;
    }
}
