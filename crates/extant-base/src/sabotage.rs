//! Mistakes on demand, to see that a test notices them.
//!
//! `sabotage("jbd2.commit.time-goes-back")` in a condition is a *switch*: a mistake that a
//! maintainer could make, kept beside the line that does it right. Without the feature `sabotage`
//! the call is `false` and nothing of it is left in the program. With it, the process makes the one
//! mistake that the environment variable `EXTANT_SABOTAGE` names; unset, it makes none.
//!
//! `docs/mutations.md` lists every switch with the test that must fail, `make test-mutants` tries
//! them all, and `cargo run -p xtask -- tidy` keeps list and source equal.

/// Returns whether this process is to make the mistake called `switch`: `CRATE.PLACE.MISTAKE`.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
#[must_use]
pub const fn sabotage(switch: &'static str) -> bool {
    let _ = switch;
    false
}

/// Returns whether this process is to make the mistake called `switch`: `CRATE.PLACE.MISTAKE`.
#[cfg(feature = "sabotage")]
#[must_use]
pub fn sabotage(switch: &'static str) -> bool {
    extern crate std;
    static CHOSEN: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var_os("EXTANT_SABOTAGE"));
    chosen.as_ref().is_some_and(|chosen| chosen == switch)
}

#[cfg(all(test, not(feature = "sabotage")))]
mod tests {
    use super::*;

    #[test]
    fn a_switch_costs_nothing_without_the_feature() {
        // Known when the program is compiled, whatever the environment says.
        const { assert!(!sabotage("base.test.never")) }
    }
}
