//! Where the library is that was built for the tests.

use std::path::PathBuf;

/// The file `name` that cargo made beside the test.
pub(crate) fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let places = [deps.join(name), deps.join("..").join(name)];
    let found = places.iter().find(|place| place.exists());
    found.unwrap_or_else(|| panic!("no {name} at {places:?}")).canonicalize().unwrap()
}
