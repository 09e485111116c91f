//! The name of this machine.

/// The machine's name as `uname` gives it; advice for people, and not unique.
pub fn host_name() -> Vec<u8> {
    rustix::system::uname().nodename().to_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_has_a_name() {
        assert!(!super::host_name().is_empty());
    }
}
