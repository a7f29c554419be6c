//! Each module uses only modules on its own floor or below. The floors are the table in `src/lib.rs`.
//!
//! A reader of Rust source that knows just enough: comments and strings are blanked, then every path that starts
//! with `crate`, `super`, `std` or `tokio` is taken apart, groups in braces included, wherever it stands. Tests obey
//! the floors as well, but those at the end of a pure file may start threads and runtimes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

/// Up to here floors are pure.
const LAST_PURE: u8 = 2;

/// The modules and the floor of each, and the module behind each name at the root of the crate.
#[derive(Debug, Default)]
struct House {
    floors: BTreeMap<String, u8>,
    names: BTreeMap<String, String>,
}

impl House {
    /// Reads the table, the modules and the re-exports of a `lib.rs`.
    fn read(lib: &str) -> Self {
        let mut house = Self::default();
        for line in lib.lines().filter_map(|line| line.strip_prefix("// F")) {
            let (floor, rest) = line.split_once(": ").expect("`// F<floor>: <modules>   <what for>`");
            let modules = rest.split("  ").next().unwrap_or_default();
            for module in modules.split(", ") {
                let before = house.floors.insert(module.trim().to_owned(), floor.parse().expect("a number"));
                assert_eq!(before, None, "`{module}` stands on two floors");
            }
        }
        let code = blanked(lib);
        let declared: Vec<&str> = code
            .lines()
            .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
            .collect();
        let placed: Vec<&str> = house.floors.keys().map(String::as_str).collect();
        let mut sorted = declared.clone();
        sorted.sort_unstable();
        assert_eq!(placed, sorted, "modules in the table of src/lib.rs, and modules declared there");
        for line in code.split(';').map(str::trim) {
            let Some(at) = line.find("pub use ") else { continue };
            let mut leaves = Vec::new();
            leaves_of(&line[at + "pub use ".len()..], &mut Vec::new(), &mut leaves);
            for path in leaves {
                let (module, name) = (path.first().cloned(), path.last().cloned());
                house.names.extend(name.zip(module));
            }
        }
        house
    }

    /// The floor of what `crate::name` is.
    fn floor_of(&self, name: &str) -> Option<u8> {
        let module = self.names.get(name).map_or(name, String::as_str);
        self.floors.get(module).copied()
    }

    /// What a file of a module uses that it must not: line and reason.
    fn offences(&self, module: &str, depth: usize, source: &str) -> Vec<(usize, String)> {
        let Some(here) = self.floors.get(module).copied() else {
            return vec![(0, format!("`{module}` is not in the table"))];
        };
        let code = blanked(source);
        let tests =
            code.find("#[cfg(test)]\nmod tests {").map_or(usize::MAX, |at| code[..at].lines().count());
        let mut found = Vec::new();
        for (line, path) in paths(&code) {
            let pure = here <= LAST_PURE && line <= tests;
            let shown = path.join("::");
            let second = path.get(1).map_or("", String::as_str);
            match path[0].as_str() {
                "crate" => match self.floor_of(second) {
                    Some(floor) if floor > here => {
                        found.push((line, format!("`{shown}` is on F{floor}, `{module}` on F{here}")));
                    }
                    Some(_) => {}
                    None => found.push((line, format!("`{shown}`: no module or re-export of that name"))),
                },
                // A `super` that could be the root hides which module is meant. In an inner module of the file
                // one step is fine.
                "super" => {
                    let steps = path.iter().take_while(|part| *part == "super").count();
                    let inner = usize::from(indented(source, line));
                    if steps >= depth + inner {
                        found.push((line, format!("`{shown}`: write `crate::…`")));
                    }
                }
                "tokio" if pure => {
                    found.push((line, format!("`{shown}` in `{module}`, which is pure")));
                }
                "std" if pure && reaches_out(&path) => {
                    found.push((line, format!("`{shown}` in `{module}`, which is pure")));
                }
                _ => {}
            }
        }
        found
    }
}

fn reaches_out(path: &[String]) -> bool {
    let part = |at: usize| path.get(at).map(String::as_str);
    match part(1) {
        Some("fs" | "net" | "thread" | "process" | "env") => true,
        Some("time") => part(2) != Some("Duration"),
        _ => false,
    }
}

fn indented(source: &str, line: usize) -> bool {
    source.lines().nth(line - 1).is_some_and(|line| line.starts_with("    "))
        && source.lines().take(line).any(|line| line.starts_with("mod ") && line.ends_with('{'))
}

/// The source with comments and the insides of strings made blank; lines stay where they are.
fn blanked(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let blank = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(inside) = rest.strip_prefix("r#\"") {
            inside.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if next == '"' {
            string_len(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") {
            rest[1..].find('\'').map_or(rest.len(), |end| end + 2)
        } else {
            0
        };
        if blank == 0 {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            out.extend(rest[..blank].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[blank..];
        }
    }
    out
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Every path with one of the roots that matter, with the line on which it begins; groups are taken apart.
fn paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for root in ["crate::", "super::", "std::", "tokio::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            // `spill_core::` is no `crate::`, and the `super::` in the middle of a path was seen at its start.
            if before.is_some_and(|c| is_word(c) || c == ':') && !code[..at].ends_with(" ::") {
                continue;
            }
            let line = code[..at].lines().count().max(1) + usize::from(code[..at].ends_with('\n'));
            let mut leaves = Vec::new();
            leaves_of(path_text(&code[at..]), &mut Vec::new(), &mut leaves);
            found.extend(leaves.into_iter().map(|path| (line, path)));
        }
    }
    found.sort();
    found
}

/// The text of one path, or of one tree of them.
fn path_text(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' if depth > 0 || text[..at].trim_end().ends_with("::") => depth += 1,
            '}' if depth > 1 => depth -= 1,
            '}' if depth == 1 => return &text[..=at],
            _ if depth > 0 || c.is_alphanumeric() || matches!(c, '_' | ':' | '*') => {}
            _ => return &text[..at],
        }
    }
    text
}

/// Takes `a::{b, c::d}` apart into `a::b` and `a::c::d`.
fn leaves_of(tree: &str, prefix: &mut Vec<String>, leaves: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let (head, group) = match tree.find('{') {
        Some(open) => (&tree[..open], tree[open + 1..].trim_end().strip_suffix('}')),
        None => (tree, None),
    };
    let parts = head.split(" as ").next().unwrap_or_default().split("::").map(str::trim);
    let kept = prefix.len();
    prefix.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
    match group {
        None => leaves.push(prefix.clone()),
        Some(group) => split_outside_braces(group)
            .into_iter()
            .filter(|branch| !branch.trim().is_empty())
            .for_each(|branch| leaves_of(branch, prefix, leaves)),
    }
    prefix.truncate(kept);
}

fn split_outside_braces(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

/// Visits every source file below `dir`.
fn each_source(dir: &Path, visit: &mut impl FnMut(&Path, &str)) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            each_source(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_module_uses_only_its_own_floor_and_lower_ones() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let house = House::read(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let (mut files, mut report) = (0, String::new());
    each_source(&src, &mut |path, source| {
        let relative = path.strip_prefix(&src).unwrap();
        if relative == Path::new("lib.rs") {
            return;
        }
        files += 1;
        let module = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        // Steps of `super` from here to the root.
        let parts = relative.iter().count();
        let depth = if relative.ends_with("mod.rs") { parts - 1 } else { parts };
        for (line, offence) in house.offences(module, depth, source) {
            writeln!(report, "spill-core/src/{}:{line}: {offence}", relative.display()).unwrap();
        }
    });
    assert!(files > 40, "only {files} files were looked at");
    assert!(report.is_empty(), "imports that reach up, or out:\n{report}");
}

/// The test above can fail: each of these lines is found, and nothing else is.
#[test]
fn imports_that_reach_up_or_out_are_found() {
    let lib = "\
// F2: engine, face   what does things
// F1: contract       what is promised
// F0: words, more    names
mod contract;
mod engine;
pub mod face;
mod more;
mod words;
pub use face::{Face, Other as Renamed};
pub use words::Word;
";
    let mut house = House::read(lib);
    let source = "\
//! crate::engine in a comment, and [`Face`](crate::Face) in another
use crate::{Word, words::Thing};
use crate::Face;
use std::{collections::BTreeMap, fs::File, time::{Duration, Instant}};
fn f(text: &str) -> crate::engine::Engine { text == \"crate::engine\"; tokio::spawn(g) }
use super::face;
use crate::{
    more::{self, More},
    engine::{Deep, deeper::Deepest},
};
use crate::nowhere::Thing;
#[cfg(test)]
mod tests {
    use super::*;
    use super::super::engine;
    use std::thread;
}
";
    let lines = |found: Vec<(usize, String)>| found.into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    let found = house.offences("contract", 1, source);
    assert_eq!(lines(found.clone()), [3, 4, 4, 5, 5, 6, 7, 7, 11, 15], "{found:#?}");

    let upper =
        house.offences("face", 1, "use crate::{engine::Engine, words::Word};\nuse tokio::sync::Notify;\n");
    assert_eq!(lines(upper), [2], "F2 is pure");
    for floor in house.floors.values_mut() {
        *floor += 1;
    }
    let upper =
        house.offences("face", 1, "use crate::{engine::Engine, words::Word};\nuse tokio::sync::Notify;\n");
    assert_eq!(upper, [], "the same floor, a lower one, and a runtime above the pure floors are fine");
}
