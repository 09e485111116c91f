//! The tables.

use crate::script::{Case, parse};

macro_rules! tables {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../cases/", $name, ".case")))),*]
    };
}

const TABLES: &[(&str, &str)] = &tables![
    "open", "perm", "sticky", "rename", "link", "names", "times", "modes", "data", "special",
    "lock", "map", "space", "xattr", "acl", "flags", "readdir", "stat",
];

/// All cases, in the order of the tables.
///
/// # Errors
///
/// The first line that is no step, or the first name that two cases have.
pub(crate) fn all() -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for (table, text) in TABLES {
        for case in parse(table, text)? {
            if !names.insert(case.name.clone()) {
                return Err(format!("two cases are called {}", case.name));
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

/// The names of all cases.
///
/// # Errors
///
/// The first line of a table that is no step.
pub fn names() -> Result<Vec<String>, String> {
    Ok(all()?.into_iter().map(|case| case.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_well_formed_and_name_only_users_that_exist() {
        let cases = all().unwrap();
        for case in &cases {
            for step in &case.steps {
                assert!(crate::users::user(&step.who).is_some(), "{}: {}", case.name, step.show());
            }
        }
        assert!(cases.len() > 800, "{} cases", cases.len());
    }
}
