//! Keeps `docs/config.md` true: it is written from the schema, and its example is read.
//!
//! `SPILL_UPDATE_DOCS=1 cargo test -p spill-core --test config_docs` writes it anew.

mod support;

use std::{fmt::Write as _, path::PathBuf};

use spill_core::{
    Config,
    config::{KeyInfo, MAX_TIERS, TierConfig, keys},
};
use support::registry;

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `SPILL_UPDATE_DOCS=1 cargo test -p spill-core --test config_docs`; edit the schema, not this. -->

Settings come from a TOML file, then from environment variables, then from what the program sets itself.
Later sources win.

```rust,ignore
let mut config = Config::from_file(\"spill.toml\")?.with_process_env()?;
config.memory.limit = Some(\"60%\".parse()?);
```

Everything that is unknown, mistyped, out of its limits or of no use is refused before anything is opened,
with a message that names the file and line (or the variable), the key, the value, what is allowed, and the
fix:

> spill.toml:7: tier[1].max_spil: unknown key; allowed: store, name, max_spill, …; fix: did you mean max_spill?

Values of `options`, and users and passwords in URLs, are never shown.

## How values are written

| type | written as |
|---|---|
| bytes | a whole number of bytes, or a string with a unit: `\"512 MiB\"`. `kB`, `MB`, `GB`, `TB` are powers of 1000; `KiB`, `MiB`, `GiB`, `TiB` of 1024 |
| percentage | a string: `\"12.5%\"`, to a tenth of a percent |
| duration | a string with a unit: `\"500ms\"`, `\"30s\"`, `\"1m 30s\"`, `\"2h\"` |
| switch | `true` or `false` |
| compression | `\"none\"`, `\"auto\"`, the name of a compressor, or `\"NAME:LEVEL\"` |
| URL | a string with a scheme: `\"file:///var/tmp/myapp\"`, `\"s3://bucket/prefix\"`, `\"memory:\"` |

A variable holds the same without quotes: `SPILL_MEMORY_LIMIT=\"512 MiB\"` in a shell.
";

const ENVIRONMENT: &str = "\
## Environment

`<N>` is the number of a tier, counted from 0. Variables change tiers that are there; they can't add one.
`SPILL_TIER_0_OPTIONS_REGION=eu-central-1` sets the option `region` of the first tier. Every other variable
that starts with `SPILL_` is refused.

";

fn table(keys: &[KeyInfo]) -> String {
    let mut table = String::new();
    for key in keys {
        let _ = writeln!(table, "### `{}`\n\n{}\n", key.name, key.about);
        let _ = writeln!(table, "| type | {} |\n|---|---|", key.kind);
        let _ = writeln!(table, "| default | {} |", key.default);
        let _ = writeln!(table, "| allowed | {} |", key.limits);
        let _ = writeln!(table, "| environment | `{}` |", key.environment);
        let _ = writeln!(table, "| example | `{} = {}` |\n", key.name, key.example);
    }
    table
}

/// Every key once, with its description, and a second tier as one would be written.
fn example() -> String {
    let mut text = String::new();
    for (name, header) in [("memory", "[memory]"), ("tier", "[[tier]]")] {
        let _ = writeln!(text, "{header}");
        for key in of(name).iter().filter(|key| key.name != "options") {
            let _ = writeln!(text, "# {}\n{} = {}", key.about, key.name, key.example);
        }
        text.push('\n');
    }
    text.push_str(
        "# Used when the first has no room.\n[[tier]]\nstore = \"file:///mnt/large/myapp\"\nmax_spill = \"2 TiB\"\n\
         compress = \"zstd:3\"\n# What only this kind of store knows.\n[tier.options]\nopen_files = \"64\"\n",
    );
    text
}

fn of(table: &str) -> Vec<KeyInfo> {
    keys().into_iter().filter(|key| key.table == table).collect()
}

fn reference() -> String {
    let (memory, tier) = (table(&of("memory")), table(&of("tier")));
    let variables: String = keys().iter().fold(String::new(), |mut rows, key| {
        let _ = writeln!(rows, "- `{}`: `{}.{}`", key.environment, key.table, key.name);
        rows
    });
    format!(
        "{INTRODUCTION}\n## `[memory]`\n\n{memory}## `[[tier]]`\n\nOne table per tier, at most {MAX_TIERS}, tried in \
         order.\nWithout any, nothing is ever spilled.\n\n{tier}{ENVIRONMENT}{variables}\n## Everything at once\n\n\
         ```toml\n{}```\n",
        example()
    )
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/config.md")
}

#[test]
fn the_reference_says_what_the_schema_says() {
    let reference = reference();
    if std::env::var_os("SPILL_UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path().parent().unwrap()).unwrap();
        std::fs::write(path(), &reference).unwrap();
    }
    let written = std::fs::read_to_string(path()).unwrap();
    assert!(written == reference, "docs/config.md is out of date: run this test with SPILL_UPDATE_DOCS=1");
}

#[test]
fn the_annotated_example_is_a_good_configuration() {
    let written = std::fs::read_to_string(path()).unwrap();
    let (_, after) = written.split_once("```toml\n").unwrap();
    let (example, _) = after.split_once("```").unwrap();
    let config = Config::from_toml(example, "docs/config.md").unwrap();
    config.validate(&registry().with_store("s3", std::sync::Arc::new(support::NoFiles))).unwrap();
    assert_eq!(config.tiers.len(), 2);
    for key in keys() {
        let line =
            if key.name == "options" { "\n[tier.options]\n".into() } else { format!("\n{} = ", key.name) };
        assert!(example.contains(&line), "{} is in it", key.name);
    }
}

/// An empty table behaves as one in which every default is written out.
#[test]
fn the_defaults_are_what_the_reference_says() {
    let literal = |key: &KeyInfo| {
        key.default.starts_with('"') || key.default.parse::<u32>().is_ok() || key.default == "false"
    };
    let lines = |table: &str| -> (String, usize) {
        let stated: Vec<_> = of(table).into_iter().filter(literal).collect();
        let text = stated.iter().map(|key| format!("{} = {}\n", key.name, key.default)).collect();
        (text, stated.len())
    };
    let (memory, tier) = (lines("memory"), lines("tier"));
    assert_eq!((memory.1, tier.1), (5, 5), "those with a plain value as default");
    let text = format!("[memory]\n{}[[tier]]\nstore = \"memory:\"\n{}", memory.0, tier.0);
    let config = Config::from_toml(&text, "defaults").unwrap();
    assert_eq!(config.memory, Config::default().memory);
    assert_eq!(config.tiers, [TierConfig::new("memory:".parse().unwrap())]);
}

#[test]
fn every_example_can_be_set_by_its_variable() {
    let base = "[memory]\nlimit = 1\n[[tier]]\nstore = \"memory:\"\n";
    for key in keys().iter().filter(|key| key.name != "options") {
        let config = Config::from_toml(base, "base").unwrap();
        let set = (key.environment.replace("<N>", "0"), key.example.trim_matches('"').to_owned());
        let by_variable = config.with_env([set]).unwrap();
        let header = if key.table == "memory" { "[memory]" } else { "[[tier]]" };
        let line = format!("{} = {}", key.name, key.example);
        let text = match key.name {
            "limit" => base.replace("limit = 1", &line),
            "store" => base.replace("store = \"memory:\"", &line),
            _ => base.replace(header, &format!("{header}\n{line}")),
        };
        assert_eq!(by_variable, Config::from_toml(&text, "file").unwrap(), "{}", key.name);
    }
}
