//! Every rule has a test that is named after it: `b03_…` for rule B03. Found by reading the sources, so a test in any
//! package counts.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, fs, path::Path};

/// The rules, by letter and how many there are: budget, inserting, getting, explicit moves, accounting, compression,
/// full and failing tiers, stores.
const RULES: [(char, u32); 8] =
    [('b', 10), ('i', 8), ('g', 10), ('e', 5), ('a', 8), ('c', 4), ('f', 10), ('s', 8)];

fn rules() -> impl Iterator<Item = String> {
    RULES
        .into_iter()
        .flat_map(|(letter, count)| (1..=count).map(move |number| format!("{letter}{number:02}")))
}

/// The rules that functions in `source` are named after.
fn rules_of(source: &str) -> impl Iterator<Item = String> {
    let names = source.lines().filter_map(|line| {
        let (before, name) = line.split_once("fn ")?;
        // What may stand before it: not a comment, not text.
        before.split_whitespace().all(|word| matches!(word, "async" | "pub")).then_some(name)
    });
    names.filter_map(|name| name.split_once('_')).map(|(rule, _)| rule.to_owned())
}

fn each_source(dir: &Path, visit: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            each_source(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_rule_has_a_test_named_after_it() {
    let mut found = BTreeSet::new();
    each_source(Path::new(env!("CARGO_MANIFEST_DIR")), &mut |source| found.extend(rules_of(source)));
    let missing: Vec<String> = rules().filter(|rule| !found.contains(rule)).collect();
    assert!(missing.is_empty(), "rules without a test `<rule>_…`: {}", missing.join(" "));
}

#[test]
fn only_functions_count() {
    let source =
        "    async fn b01_x() {\nfn b02_x(steps in steps()) {\n// fn b03_x()\n\"fn b04_x\"\nfn b05() {}";
    assert_eq!(rules_of(source).collect::<Vec<_>>(), ["b01", "b02"]);
}
