//! Names of error numbers.

/// Error of one step.
#[derive(Debug)]
pub(crate) enum Fail {
    /// The system call failed.
    Errno(i32),
    /// The step itself is wrong: no such verb, a word missing.
    Bad(String),
}

/// What a step gives: text to compare, or why not.
pub(crate) type Answer = Result<String, Fail>;

impl From<rustix::io::Errno> for Fail {
    fn from(errno: rustix::io::Errno) -> Fail {
        Fail::Errno(errno.raw_os_error())
    }
}

impl From<nix::errno::Errno> for Fail {
    fn from(errno: nix::errno::Errno) -> Fail {
        // The discriminants are the numbers of this host.
        Fail::Errno(errno as i32)
    }
}

impl From<std::io::Error> for Fail {
    fn from(error: std::io::Error) -> Fail {
        match error.raw_os_error() {
            Some(number) => Fail::Errno(number),
            None => Fail::Bad(error.to_string()),
        }
    }
}

/// `EACCES` for 13.
pub(crate) fn name(number: i32) -> String {
    match nix::errno::Errno::from_raw(number) {
        nix::errno::Errno::UnknownErrno => format!("E{number}"),
        // One number, two names: Linux's manual pages use this one for files.
        nix::errno::Errno::EAGAIN => "EAGAIN".to_owned(),
        known => format!("{known:?}"),
    }
}

/// True for text that stands for a failure: an errno, a signal, a step that is wrong or hangs.
pub(crate) fn is_failure(text: &str) -> bool {
    let word = text.split(' ').next().unwrap_or("");
    ["BAD:", "HANG", "DIED"].contains(&word)
        || (word.len() > 2
            && (word.starts_with('E') || word.starts_with("SIG"))
            && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_known() {
        assert_eq!(name(13), "EACCES");
        assert!(is_failure("EACCES") && is_failure("SIGBUS") && is_failure("BAD: x"));
        assert!(!is_failure("Eve") && !is_failure("ok") && !is_failure("E"));
    }
}
