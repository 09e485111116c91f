//! Which types of other crates of the project a crate shows in its interface without naming them itself.
//!
//! # What counts
//!
//! Names in the signatures of public functions, in public fields, in variants, traits and aliases, if a `use` of
//! the same file has them from another crate of the project. A crate names what its root re-exports.
//!
//! # What is not seen
//!
//! Trait implementations, and what a macro's expansion shows.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::Text;
use crate::floors::{attribute, is_for_tests, item_len, tokens, tree};

/// Returns what the interface of the crate below `source` (which ends in `/`) shows and its root does not name:
/// the name, its path, and a file that shows it.
pub(crate) fn unnamed(files: &[Text], source: &str) -> Vec<(String, String, String)> {
    let sources = files.iter().filter(|file| {
        file.path.starts_with(source) && file.path.ends_with(".rs") && !file.path.contains("/tests")
    });
    let mut named = BTreeSet::new();
    let mut shown = BTreeMap::new();
    for file in sources {
        let tokens = tokens(&file.contents);
        let mut from = BTreeMap::new();
        let mut shows = BTreeSet::new();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let is_public = at.checked_sub(1).is_some_and(|before| tokens[before] == "pub");
            match *token {
                "#" if is_for_tests(&tokens[at..]) => {
                    let item = at + attribute(&tokens[at..]);
                    at = item + item_len(&tokens[item..]);
                    continue;
                }
                "use" => {
                    let end = tokens[at..].iter().position(|token| *token == ";");
                    let end = at + end.unwrap_or(tokens.len() - at);
                    let mut all = Vec::new();
                    tree(&tokens[at + 1..end], &mut Vec::new(), &mut all);
                    for (path, name) in all {
                        let of = path.join("::");
                        if is_public && file.path == format!("{source}lib.rs") {
                            named.insert(of);
                        } else if of.starts_with("extant_") && name != "self" {
                            from.insert(name, of);
                        }
                    }
                    at = end;
                    continue;
                }
                _ if is_public && *token != "(" => shows.extend(interface(&tokens[at..])),
                _ => {}
            }
            at += 1;
        }
        for name in shows {
            if let Some(of) = from.get(name) {
                shown.entry(of.clone()).or_insert_with(|| (name.to_owned(), file.path.clone()));
            }
        }
    }
    shown.retain(|of, _| !named.contains(of));
    shown.into_iter().map(|(of, (name, file))| (name, of, file)).collect()
}

/// The words that an item or a field shows, whose tokens begin behind `pub`.
fn interface<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    let kind =
        tokens.iter().find(|token| !matches!(**token, "const" | "unsafe" | "async" | "extern"));
    let whole = matches!(kind, Some(&"enum" | &"trait"));
    // The fields of a structure are public each for itself.
    let is_function = matches!(kind, Some(&"fn" | &"struct" | &"union"));
    if kind == Some(&"mod") {
        return Vec::new();
    }
    let mut words = Vec::new();
    let (mut braces, mut others) = (0, 0);
    for token in tokens {
        match *token {
            "{" if is_function => break,
            "{" => braces += 1,
            "}" if braces <= 1 => break,
            "}" => braces -= 1,
            "(" | "[" | "<" => others += 1,
            ")" | "]" if others == 0 => break,
            ")" | "]" | ">" => others -= 1,
            ";" | "=" if braces == 0 && others <= 0 => break,
            "," if braces == 0 && others <= 0 && !whole && !is_function => break,
            word => words.push(word),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(files: &[(&str, &str)]) -> Vec<String> {
        let text = |(path, contents): &(&str, &str)| Text {
            path: format!("crates/a/src/{path}"),
            contents: (*contents).to_owned(),
        };
        let files: Vec<_> = files.iter().map(text).collect();
        unnamed(&files, "crates/a/src/").into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn what_a_signature_shows_has_a_name_in_the_root() {
        let lib = ("lib.rs", "mod x; pub use extant_base::{Ino, Block as Other};");
        let shows = |code: &str| missing(&[lib, ("x.rs", code)]);
        let import = "use extant_base::{Ino, Secret, Block};";
        assert_eq!(
            shows(&format!("{import} pub fn f(a: Ino, b: &Block) {{ Secret::new() }}")),
            [""; 0]
        );
        for code in [
            "pub fn f(a: &[Secret]) -> u8 { 0 }",
            "pub const fn f() -> Option<Secret>;",
            "pub struct A { pub(crate) a: Ino, pub b: Vec<Secret>, c: u8 }",
            "pub struct A(pub Secret);",
            "pub enum A { B { c: Secret }, D }",
            "pub trait A { fn f(&self) -> Secret; }",
            "pub type A = Vec<u8>; impl A { pub fn g<T>(t: T) -> Result<T, Secret> { t } }",
        ] {
            assert_eq!(shows(&format!("{import} {code}")), ["Secret"], "{code}");
        }
        for code in [
            "pub(crate) fn f(a: Secret) {}",
            "pub struct A { a: Secret }",
            "#[cfg(test)] mod tests { pub fn f(a: Secret) {} }",
            "// pub fn f(a: Secret)\nfn g() { let a: Secret; }",
        ] {
            assert_eq!(shows(&format!("{import} {code}")), [""; 0], "{code}");
        }
        assert_eq!(shows("use std::x::Secret; pub fn f(a: Secret) {}"), [""; 0]);
    }
}
