//! Holds `docs/object-storage.md` against the tables of options, and the tables against the builders.
//!
//! `SPILL_UPDATE_DOCS=1 cargo test -p spill-backend-object --all-features --lib page` writes the tables anew.

use super::{
    azure, gcs,
    options::{CONNECTION, Setting},
    s3,
};

/// The options of [`StoreOptions`](super::StoreOptions), and what they do.
const STORE: [(&str, &str); 3] = [
    (
        "owner",
        "Programs whose sessions belong together: each sweeps dead ones of its owner. Default: the name of the \
         executable.",
    ),
    ("heartbeat", "How often the store shows that it lives, by one small write. Default: `1m`."),
    (
        "dead_after",
        "A session that showed no life for so long is swept; `never`: this store sweeps none. Default: `1day`.",
    ),
];

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/object-storage.md");

fn table(settings: &[Setting]) -> String {
    let mut table = String::from("| option | value | variable | what it does |\n|---|---|---|---|\n");
    table.extend(settings.iter().map(|Setting { name, form, variables, about, .. }| {
        let variables: Vec<_> = variables.iter().map(|name| format!("`{name}`")).collect();
        format!("| `{name}` | {form} | {} | {about} |\n", variables.join(", "))
    }));
    table
}

fn store_table() -> String {
    let mut table = String::from("| option | what it does |\n|---|---|\n");
    table.extend(STORE.iter().map(|(name, about)| format!("| `{name}` | {about} |\n")));
    table
}

/// The page with this table after its mark, in the place of the one there.
fn replace(page: &str, name: &str, table: &str) -> String {
    let mark = format!("<!-- options of {name} -->\n");
    let (before, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("the page has no mark for {name}"));
    let after = rest.trim_start_matches(|c| c != '\n').trim_start();
    let after = match rest.starts_with('|') {
        true => rest.split_once("\n\n").map_or("", |(_, after)| after),
        false => after,
    };
    format!("{before}{mark}{table}\n{after}")
}

#[test]
fn the_page_has_the_options_of_the_code() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut expected = page.clone();
    let tables =
        [("s3", s3::SETTINGS), ("gs", gcs::SETTINGS), ("az", azure::SETTINGS), ("connection", CONNECTION)];
    for (name, settings) in tables {
        expected = replace(&expected, name, &table(settings));
    }
    expected = replace(&expected, "store", &store_table());
    if std::env::var_os("SPILL_UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &expected).unwrap();
    } else {
        assert!(page == expected, "docs/object-storage.md is out of date: see the head of this file");
    }
}

#[test]
fn every_option_is_known_to_its_builder() {
    for setting in s3::SETTINGS {
        setting.key.parse::<object_store::aws::AmazonS3ConfigKey>().unwrap();
    }
    for setting in gcs::SETTINGS {
        setting.key.parse::<object_store::gcp::GoogleConfigKey>().unwrap();
    }
    for setting in azure::SETTINGS {
        setting.key.parse::<object_store::azure::AzureConfigKey>().unwrap();
    }
}
