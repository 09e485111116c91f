//! Which top-level modules of a crate use which others: they lie on floors, and uses go down.
//!
//! # What counts
//!
//! Paths in code, in `use` and in bodies alike, that begin with `crate` or lead out of a module by
//! `super`; in the root of a crate also those that begin with a module. A name that the root re-exports
//! counts as its module's. Comments, strings, and whatever is compiled for tests only do not count.
//!
//! # What is not seen
//!
//! A call of a method on a type of a lower module whose `impl` block stands in a higher one, and what
//! only a macro's expansion would show.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::Text;

/// The module that stands for the root of a crate.
const ROOT: &str = "crate root";

/// The modules at the top of one crate, and who uses whom.
#[derive(Default)]
pub(crate) struct Graph {
    modules: BTreeSet<String>,
    /// By user and used: where it is said, the first of each file.
    edges: BTreeMap<(String, String), Vec<String>>,
}

impl Graph {
    /// The graph of the crate whose sources are below `source`, which ends in `/`.
    pub(crate) fn of(files: &[Text], source: &str) -> Graph {
        let sources: Vec<_> = files
            .iter()
            .filter(|file| file.path.starts_with(source) && file.path.ends_with(".rs"))
            .map(|file| (&file.path[source.len()..], tokens(&file.contents)))
            .filter(|(path, _)| !path.starts_with("bin/"))
            .collect();
        let mut left_out = BTreeSet::new();
        let mut parsed = Vec::new();
        for (path, tokens) in &sources {
            let module = module_of(path);
            let paths = Paths::of(tokens, &module);
            left_out.extend(paths.tests.iter().cloned());
            parsed.push((*path, module, paths));
        }
        parsed.retain(|(_, module, _)| {
            !(1..=module.len()).any(|len| left_out.contains(&module[..len]))
        });
        let mut graph = Graph::default();
        graph.modules.extend(parsed.iter().filter_map(|(_, module, _)| module.first().cloned()));
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        for (_, _, paths) in parsed.iter().filter(|(_, module, _)| module.is_empty()) {
            names.extend(paths.exports.iter().map(|(name, of)| (name.as_str(), of.as_str())));
        }
        for (file, module, paths) in &parsed {
            let user = module.first().map_or(ROOT, String::as_str);
            for path in &paths.used {
                let first = path.first().map_or("", String::as_str);
                let used = match names.get(first) {
                    _ if graph.modules.contains(first) => first,
                    Some(module) if graph.modules.contains(*module) => module,
                    // Another crate's.
                    Some(_) => continue,
                    None if module.is_empty() => continue,
                    None => ROOT,
                };
                if used != user {
                    let places = graph.edges.entry((user.to_owned(), used.to_owned())).or_default();
                    places.push(format!("{file}: {}", path.join("::")));
                }
            }
        }
        if graph.edges.keys().any(|(_, used)| used == ROOT) {
            graph.modules.insert(ROOT.into());
        }
        for places in graph.edges.values_mut() {
            places.sort();
            places.dedup();
        }
        graph
    }

    /// Returns how many modules there are, and how many pairs of user and used.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.modules.len(), self.edges.len())
    }

    /// Modules of which each uses each other, over however many steps: the sets of more than one.
    pub(crate) fn circles(&self) -> Vec<Vec<&str>> {
        let reach = self.reach();
        let meets = |one: &str, other: &str| {
            one == other || (reach[one].contains(other) && reach[other].contains(one))
        };
        let mut done = BTreeSet::new();
        let mut circles = Vec::new();
        for module in &self.modules {
            if !done.contains(module) {
                let all = self.modules.iter().map(String::as_str);
                let circle: Vec<_> = all.filter(|other| meets(module, other)).collect();
                done.extend(circle.iter().map(|module| (*module).to_owned()));
                if circle.len() > 1 {
                    circles.push(circle);
                }
            }
        }
        circles
    }

    fn used_by<'g>(&'g self, user: &'g str) -> impl Iterator<Item = &'g str> {
        self.edges.keys().filter(move |(one, _)| one == user).map(|(_, used)| used.as_str())
    }

    /// Everything that each module uses, over however many steps.
    fn reach(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut reach = BTreeMap::new();
        for module in &self.modules {
            let mut seen = BTreeSet::new();
            let mut next: Vec<&str> = self.used_by(module).collect();
            while let Some(used) = next.pop() {
                if seen.insert(used) {
                    next.extend(self.used_by(used));
                }
            }
            reach.insert(module.as_str(), seen);
        }
        reach
    }

    /// The shortest ways round through `circle`, each edge of it with a place where it is said, until
    /// every module of it was met.
    pub(crate) fn ways_round(&self, circle: &[&str]) -> Vec<String> {
        let mut met = BTreeSet::new();
        let mut ways = Vec::new();
        for start in circle {
            if met.contains(start) {
                continue;
            }
            let Some(way) = self.way_round(start) else { continue };
            met.extend(way.iter().copied());
            let steps = way.iter().zip(way.iter().cycle().skip(1)).map(|(user, used)| {
                let places = self.edges.get(&((*user).to_owned(), (*used).to_owned()));
                let place = places.and_then(|places| places.first()).map_or("", String::as_str);
                format!("{user} -> {used} ({place})")
            });
            ways.push(steps.collect::<Vec<_>>().join(", "));
        }
        ways
    }

    /// The fewest modules from `start` to itself.
    fn way_round<'g>(&'g self, start: &'g str) -> Option<Vec<&'g str>> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut row = vec![start];
        while !row.is_empty() {
            let mut next = Vec::new();
            for user in row {
                for used in self.used_by(user) {
                    if used == start {
                        let mut way = vec![user];
                        while let Some(user) = before.get(way[way.len() - 1]) {
                            way.push(user);
                        }
                        way.reverse();
                        return Some(way);
                    }
                    if !before.contains_key(used) {
                        before.insert(used, user);
                        next.push(used);
                    }
                }
            }
            row = next;
        }
        None
    }

    /// The modules by floors, the lowest first: each uses only what is on floors below its own.
    /// Modules of circles are on no floor.
    pub(crate) fn floors(&self) -> Vec<Vec<&str>> {
        let mut floors: Vec<Vec<&str>> = Vec::new();
        let mut placed = BTreeSet::new();
        loop {
            let is_next = |module: &&str| {
                !placed.contains(module) && self.used_by(module).all(|used| placed.contains(used))
            };
            let all = self.modules.iter().map(String::as_str);
            let floor: Vec<&str> = all.filter(is_next).collect();
            if floor.is_empty() {
                return floors;
            }
            placed.extend(floor.iter().copied());
            floors.push(floor);
        }
    }

    /// Returns what contradicts a table of floors, the highest first, given as the modules of each
    /// line.
    pub(crate) fn contradictions(&self, table: &[Vec<&str>]) -> Vec<String> {
        let mut faults = Vec::new();
        let mut line_of = BTreeMap::new();
        for (line, modules) in table.iter().enumerate() {
            for module in modules {
                if line_of.insert(*module, line).is_some() {
                    faults.push(format!("has {module} twice"));
                }
                if !self.modules.contains(*module) {
                    faults.push(format!("has {module}, which is no module"));
                }
            }
        }
        for module in self.modules.iter().filter(|module| *module != ROOT) {
            if !line_of.contains_key(module.as_str()) {
                faults.push(format!("does not have {module}"));
            }
        }
        for ((user, used), places) in &self.edges {
            if let (Some(high), Some(low)) =
                (line_of.get(user.as_str()), line_of.get(used.as_str()))
                && high >= low
            {
                let place = places.first().map_or("", String::as_str);
                faults.push(format!("has {user} not above {used}, which it uses ({place})"));
            }
        }
        faults
    }
}

/// The modules of each line of the block of text that follows `heading` in the documentation of a
/// module. What stands behind two spaces explains.
pub(crate) fn table<'t>(contents: &'t str, heading: &str) -> Vec<Vec<&'t str>> {
    let lines = contents.lines().map(|line| line.strip_prefix("//!").unwrap_or(line));
    let lines = lines.skip_while(|line| line.trim() != heading);
    let block = lines.skip_while(|line| !line.trim().starts_with("```")).skip(1);
    let block = block.take_while(|line| !line.trim().starts_with("```"));
    block
        .map(|line| line.trim().split("  ").next().unwrap_or("").split_whitespace().collect())
        .filter(|modules: &Vec<_>| !modules.is_empty())
        .collect()
}

/// The module that a file is, by its path below the sources.
fn module_of(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let mut module: Vec<_> = path.split('/').map(str::to_owned).collect();
    let last = module.last().map_or("", String::as_str);
    if last == "mod" || (module.len() == 1 && (last == "lib" || last == "main")) {
        module.pop();
    }
    module
}

/// Words, and signs of one byte; `::` is one. Neither comments nor literals.
pub(crate) fn tokens(contents: &str) -> Vec<&str> {
    let bytes = contents.as_bytes();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let rest = &contents[at..];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if *byte == b'"' {
            at += quoted(rest);
        } else if *byte == b'\'' {
            at += character(rest);
        } else if let Some(len) = raw(rest) {
            at += len;
        } else if is_word(*byte) {
            let len = rest.bytes().position(|byte| !is_word(byte)).unwrap_or(rest.len());
            // The letter before a string or a character of bytes.
            let is_prefix =
                matches!(&rest[..len], "b" | "c") && rest[len..].starts_with(['"', '\'']);
            if !is_prefix {
                tokens.push(&rest[..len]);
            }
            at += len;
        } else {
            let len = if rest.starts_with("::") { 2 } else { 1 };
            if !byte.is_ascii_whitespace() {
                tokens.push(&rest[..len]);
            }
            at += len;
        }
    }
    tokens
}

/// Length of the string that `rest` begins with.
fn quoted(rest: &str) -> usize {
    let mut bytes = rest.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return at + 1,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    rest.len()
}

/// Length of the character that `rest` begins with; 1 when it is a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[3.min(rest.len())..].find('\'').map_or(rest.len(), |end| end + 4),
        Some((_, _)) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

/// Length of the raw string that `rest` begins with.
fn raw(rest: &str) -> Option<usize> {
    let start = ["r\"", "r#", "br\"", "br#"].iter().find(|start| rest.starts_with(**start))?;
    let hashes = start.len() - 1;
    let count = rest[hashes..].bytes().take_while(|byte| *byte == b'#').count();
    let first = hashes + count;
    if rest.as_bytes().get(first) != Some(&b'"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(count));
    let len = rest[first + 1..].find(&end).map_or(rest.len(), |at| first + 1 + at + end.len());
    Some(len)
}

/// What the code of one file names.
#[derive(Default)]
struct Paths {
    /// From the root of the crate on, those that lead out of the file's top-level module.
    used: Vec<Vec<String>>,
    /// In a root: public names, and the modules that they come from.
    exports: Vec<(String, String)>,
    /// Modules that are compiled for tests only.
    tests: Vec<Vec<String>>,
}

impl Paths {
    fn of(tokens: &[&str], module: &[String]) -> Paths {
        let mut paths = Paths::default();
        // The modules within the file, each with the depth of braces that it is in.
        let mut inner: Vec<(String, usize)> = Vec::new();
        let (mut at, mut depth) = (0, 0);
        while let Some(token) = tokens.get(at) {
            let here = || -> Vec<String> {
                module.iter().cloned().chain(inner.iter().map(|(name, _)| name.clone())).collect()
            };
            match *token {
                "#" if is_for_tests(&tokens[at..]) => {
                    let item = at + attribute(&tokens[at..]);
                    if let Some(name) = module_named(&tokens[item..]) {
                        let mut path = here();
                        path.push(name.to_owned());
                        paths.tests.push(path);
                    }
                    at = item + item_len(&tokens[item..]);
                    continue;
                }
                "mod" if tokens.get(at + 2) == Some(&"{") => {
                    inner.push((tokens[at + 1].to_owned(), depth));
                }
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if inner.last().is_some_and(|(_, of)| *of == depth) {
                        inner.pop();
                    }
                }
                "use" => {
                    let end = tokens[at..].iter().position(|token| *token == ";");
                    let end = at + end.unwrap_or(tokens.len() - at);
                    let mut all = Vec::new();
                    tree(&tokens[at + 1..end], &mut Vec::new(), &mut all);
                    let is_public = at.checked_sub(1).is_some_and(|before| {
                        matches!(tokens[before], "pub" | ")") // `pub` or `pub(crate)`.
                    });
                    let here = here();
                    for (path, name) in all {
                        paths.add(&path, &here, is_public.then_some(name));
                    }
                    at = end;
                    continue;
                }
                word if at.checked_sub(1).is_none_or(|before| tokens[before] != "::") => {
                    let starts = matches!(word, "crate" | "super" | "self") || module.is_empty();
                    if starts && tokens.get(at + 1) == Some(&"::") {
                        let mut path = vec![word];
                        let mut next = at + 1;
                        while tokens.get(next) == Some(&"::") {
                            path.extend(tokens.get(next + 1));
                            next += 2;
                        }
                        paths.add(&path, &here(), None);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        paths
    }

    /// Notes a path that code in the module `here` names; `name` if it is exported by it.
    fn add(&mut self, path: &[&str], here: &[String], name: Option<&str>) {
        let out = path.iter().take_while(|word| **word == "super").count();
        let rest = match path.first() {
            Some(&"crate") => &path[1..],
            Some(&"super") if out >= here.len() => &path[out..],
            // Without anything in front a root names its modules.
            Some(&"self") if here.is_empty() => &path[1..],
            Some(_) if here.is_empty() => path,
            _ => return,
        };
        let Some(first) = rest.first() else { return };
        match name {
            // A re-export is a name, no use.
            Some(name) if here.is_empty() => {
                self.exports.push((name.to_owned(), (*first).to_owned()));
            }
            _ => self.used.push(rest.iter().map(|word| (*word).to_owned()).collect()),
        }
    }
}

/// The paths of a tree of `use`, each with the name that it gets.
pub(crate) fn tree<'t>(
    tokens: &[&'t str],
    before: &mut Vec<&'t str>,
    all: &mut Vec<(Vec<&'t str>, &'t str)>,
) {
    let len = before.len();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match *token {
            "{" => {
                let mut depth = 0;
                let end = tokens[at..].iter().position(|token| {
                    depth += i32::from(*token == "{") - i32::from(*token == "}");
                    depth == 0
                });
                let end = at + end.unwrap_or(tokens.len() - at - 1);
                let mut start = at + 1;
                let mut depth = 0;
                for part in at + 1..=end {
                    let token = tokens[part];
                    if depth == 0 && (token == "," || part == end) {
                        if part > start {
                            tree(&tokens[start..part], before, all);
                        }
                        start = part + 1;
                    }
                    depth += i32::from(token == "{") - i32::from(token == "}");
                }
                before.truncate(len);
                return;
            }
            "::" => {}
            "as" => {
                let name = tokens.get(at + 1).copied().unwrap_or("_");
                all.push((before.clone(), name));
                before.truncate(len);
                return;
            }
            word => before.push(word),
        }
        at += 1;
    }
    let name = before.last().copied().unwrap_or("_");
    all.push((before.clone(), name));
    before.truncate(len);
}

/// Tokens of the attribute that `tokens` begin with.
pub(crate) fn attribute(tokens: &[&str]) -> usize {
    let mut depth = 0;
    let end = tokens.iter().position(|token| {
        depth += i32::from(*token == "[") - i32::from(*token == "]");
        depth == 0 && *token == "]"
    });
    end.map_or(tokens.len(), |end| end + 1)
}

/// Returns whether an attribute begins here by which an item is compiled only for tests.
pub(crate) fn is_for_tests(tokens: &[&str]) -> bool {
    let attribute = &tokens[..attribute(tokens)];
    match attribute {
        ["#", "[", "test", "]"] | ["#", "[", "cfg", "(", "test", ")", "]"] => true,
        ["#", "[", "cfg", "(", "all", "(", rest @ ..] => {
            let named = rest.iter().position(|token| *token == "test");
            named.is_some_and(|at| {
                let before = &rest[..at];
                before.iter().filter(|token| **token == "(").count()
                    == before.iter().filter(|token| **token == ")").count()
            })
        }
        _ => false,
    }
}

/// The name of the module that is declared here, behind other attributes.
fn module_named<'t>(tokens: &[&'t str]) -> Option<&'t str> {
    let mut at = 0;
    while tokens.get(at) == Some(&"#") {
        at += attribute(&tokens[at..]);
    }
    let declared = tokens[at..].iter().take(6).position(|token| *token == "mod")?;
    let is_first = tokens[at..at + declared]
        .iter()
        .all(|token| matches!(*token, "pub" | "(" | ")" | "crate" | "super"));
    tokens.get(at + declared + 1).copied().filter(|_| is_first)
}

/// Tokens of the item that begins here: up to its semicolon, or the end of its braces.
pub(crate) fn item_len(tokens: &[&str]) -> usize {
    let (mut braces, mut others) = (0, 0);
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" => braces += 1,
            "}" if braces <= 1 && others == 0 => {
                // What the braces of an enclosing item end with is not this one's.
                return if braces == 0 { at } else { at + 1 };
            }
            "}" => braces -= 1,
            "(" | "[" => others += 1,
            ")" | "]" => others -= 1,
            ";" | "," if braces == 0 && others == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let text = |(path, contents): &(&str, &str)| Text {
            path: format!("crates/a/src/{path}"),
            contents: (*contents).into(),
        };
        Graph::of(&files.iter().map(text).collect::<Vec<_>>(), "crates/a/src/")
    }

    #[test]
    fn a_circle_is_found_wherever_it_is_said() {
        for said in [
            "use crate::low::Thing;",
            "fn f() { crate::low::g() }",
            "use crate::{other::X, low::{self as l, Y}};",
            "use super::low;",
            "use crate::Thing;",
            "mod inner { fn f(x: super::super::low::X) {} }",
        ] {
            let files = [
                ("lib.rs", "mod high; mod low; mod other; pub use low::{A, Thing};"),
                ("high.rs", said),
                ("low/mod.rs", "mod part;"),
                ("low/part.rs", "use super::super::high;"),
                ("other.rs", "pub struct X;"),
            ];
            let graph = graph(&files);
            assert_eq!(graph.circles(), [["high", "low"]], "{said}");
            let way = graph.ways_round(&["high", "low"]).join("");
            assert!(way.starts_with("high -> low (high.rs: "), "{way}");
            assert!(way.contains(", low -> high (low/part.rs: high"), "{way}");
            assert!(graph.floors().concat().contains(&"other"));
        }
    }

    #[test]
    fn what_is_no_code_of_the_crate_does_not_count() {
        let low = r##"
            // crate::high::x
            /* crate::high::y */
            const A: &str = "crate::high::z \" crate::high::z";
            const B: &str = r#"crate::high " crate::high"#;
            const C: char = '"';
            fn f<'a>(x: &'a str) -> char { '\'' }
            #[cfg(test)]
            mod tests { use crate::high; fn g() { crate::high::h() } }
            #[cfg(all(test, loom))]
            mod model;
            #[cfg(test)]
            impl X { fn f() -> crate::high::H { [1; 2]; crate::high::g() } }
            #[cfg(test)]
            use crate::high::H;
            mod inner { use super::Own; }
            pub(crate) use self::inner::Thing;
        "##;
        let files = [
            ("lib.rs", "mod high; mod low; fn f() { high::g(); low::h() }"),
            ("high.rs", "use crate::low::X;"),
            ("low.rs", low),
            ("low/tests.rs", ""),
            ("low/model.rs", "use crate::high::X;"),
        ];
        let graph = graph(&files);
        assert_eq!(graph.circles(), [[""; 0]; 0]);
        assert_eq!(graph.floors(), [["low"], ["high"]]);
        let counted = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", low)];
        assert_eq!(super::Graph::size(&self::graph(&counted)).0, 2);
        let not_test = ["#[cfg(not(test))] use crate::a::X;", "#[cfg(any(test, f))] use crate::a;"];
        for said in not_test {
            let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", said)];
            assert_eq!(self::graph(&files).circles().len(), 1, "{said}");
        }
    }

    #[test]
    fn the_root_is_a_module_when_others_use_what_is_in_it() {
        let files =
            [("main.rs", "mod a; struct X; fn main() { a::f() }"), ("a.rs", "use crate::X;")];
        assert_eq!(graph(&files).circles(), [["a", ROOT]]);
    }

    #[test]
    fn a_table_has_every_module_above_what_it_uses() {
        let lib =
            "//! # Shape\n//!\n//! ```text\n//! b c  both\n//! a\n//! ```\nmod a; mod b; mod c;";
        let files = [("lib.rs", lib), ("a.rs", ""), ("b.rs", "use crate::a;"), ("c.rs", "")];
        let graph = graph(&files);
        assert_eq!(table(lib, "# Shape"), [vec!["b", "c"], vec!["a"]]);
        assert_eq!(graph.contradictions(&table(lib, "# Shape")), [""; 0]);
        let faults = graph.contradictions(&[vec!["d"], vec!["a", "b"], vec!["b"]]);
        let told = ["has d, which is no module", "has b twice", "does not have c"];
        assert_eq!(faults[..3], told);
        let faults = graph.contradictions(&[vec!["a", "c"], vec!["b"]]);
        assert_eq!(faults, ["has b not above a, which it uses (b.rs: a)"]);
    }
}
