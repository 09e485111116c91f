//! The name of this machine.

/// Returns the machine's name as in `uname`, for display; it is not unique.
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
