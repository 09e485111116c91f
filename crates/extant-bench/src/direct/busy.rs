//! How busy the processors of the machine are, whoever works: threads of the kernel do much of what is asked for.

use std::time::Duration;

use anyhow::{Context, Result};

/// What all processors together have worked until now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy(Duration);

impl Busy {
    pub(super) fn look() -> Result<Busy> {
        let text = std::fs::read_to_string("/proc/stat")?;
        parse(&text).context("/proc/stat says nothing of processors")
    }

    /// The work since then.
    pub(super) fn since(self) -> Result<Duration> {
        Ok(Busy::look()?.0.saturating_sub(self.0))
    }
}

/// User, nice, system, irq and softirq of `cpu  user nice system idle iowait irq softirq …`.
fn parse(text: &str) -> Option<Busy> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _wait, irq, softirq, ..] = *ticks else { return None };
    let busy = user + nice + system + irq + softirq;
    Some(Busy(
        Duration::from_secs(busy) / u32::try_from(rustix::param::clock_ticks_per_second()).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_work_and_not_of_waiting() {
        let ticks = rustix::param::clock_ticks_per_second();
        let text = format!("cpu  {ticks} 0 {ticks} 777 999 0 {ticks} 5 0 0\ncpu0 1 2 3 4 5 6 7\n");
        assert_eq!(parse(&text).unwrap().0, Duration::from_secs(3));
        assert!(parse("cpu  1 2 3").is_none());
        assert!(parse("").is_none());
    }
}
