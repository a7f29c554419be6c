//! What holds for any text: reading never panics, and what is printed reads back.

mod support;

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::select};
use spill_core::{
    Config, Share,
    config::{Amount, Compression, StoreUrl, format_bytes_exactly, keys},
    parse_bytes,
};
use support::registry;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 2000,
        rng_seed: proptest::test_runner::RngSeed::Fixed(8),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Names that exist, and some that almost do.
fn name() -> impl Strategy<Value = String> {
    let known: Vec<String> = keys().into_iter().map(|key| key.name.to_owned()).collect();
    prop_oneof![8 => select(known), 1 => "[a-zäß_.\" -]{0,12}", 1 => Just("tier".to_owned())]
}

fn value() -> impl Strategy<Value = String> {
    let texts = select(vec![
        "\"512 MiB\"",
        "\"50%\"",
        "\"30s\"",
        "\"wait\"",
        "\"lru\"",
        "\"zstd:3\"",
        "\"file:///a\"",
        "\"memory:\"",
        "4",
        "-1",
        "0x1F",
        "1_000",
        "1.5",
        "nan",
        "-inf",
        "true",
        "1979-05-27T07:32:00Z",
        "[]",
        "[1, 2]",
        "{}",
        "{ a = 1 }",
        "\"\"",
        "'''",
        "\"99999999999999999999 EiB\"",
        "\"%\"",
        "\"-%\"",
        "\"1e400%\"",
        "\"nan%\"",
        "\"99999999999999999999s\"",
    ]);
    prop_oneof![
        4 => texts.prop_map(str::to_owned),
        1 => "\"[ -~äß→]{0,20}\"",
        1 => "\\PC{0,20}",
        1 => any::<i64>().prop_map(|number| number.to_string()),
    ]
}

/// Lines as a careless person, or a cat, would write them.
fn document() -> impl Strategy<Value = String> {
    let header = select(vec![
        "[memory]",
        "[[tier]]",
        "[tier]",
        "[tier.options]",
        "[[memory]]",
        "[",
        "[tiers]",
        "[memory.limit]",
    ]);
    let line = prop_oneof![
        2 => header.prop_map(str::to_owned),
        6 => (name(), value()).prop_map(|(name, value)| format!("{name} = {value}")),
        1 => "\\PC{0,30}",
    ];
    vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_text_makes_reading_panic(text in document()) {
        match Config::from_toml(&text, "any.toml").and_then(|config| config.validate(&registry()).map(|()| config)) {
            Ok(config) => prop_assert!(config.memory.limit.is_some()),
            Err(error) => prop_assert!(error.to_string().starts_with("any.toml") && !error.fix().is_empty(), "{error}"),
        }
    }

    #[test]
    fn no_variable_makes_reading_panic(
        variables in vec(("(SPILL_|SPILL_MEMORY_|SPILL_TIER_[0-2x]_|)[A-Z_]{0,12}|SPILL_\\PC{0,8}", "\\PC{0,12}"), 0..4),
    ) {
        let base = "[memory]\nlimit = 1\n[[tier]]\nstore = \"memory:\"\n";
        let ours = variables.iter().any(|(name, _)| name.starts_with("SPILL_"));
        let read = Config::from_toml(base, "base.toml").unwrap().with_env(variables);
        prop_assert!(ours || read.is_ok());
        if let Err(error) = read {
            prop_assert!(error.place().starts_with("environment variable SPILL_"), "{error}");
        }
    }

    #[test]
    fn a_size_reads_back(bytes: u64, shift in 0u32..64) {
        let bytes = bytes >> shift << (shift / 2);
        prop_assert_eq!(parse_bytes(&format_bytes_exactly(bytes)), Ok(bytes));
        prop_assert_eq!(Amount::Bytes(bytes).to_string().parse(), Ok(Amount::Bytes(bytes)));
    }

    #[test]
    fn a_share_reads_back(thousandths in 0u16..=1000) {
        let share = Share::thousandths(thousandths).unwrap();
        prop_assert_eq!(Amount::Share(share).to_string().parse(), Ok(Amount::Share(share)));
    }

    #[test]
    fn a_duration_reads_back(millis in 1u64..=3_600_000) {
        let time = Duration::from_millis(millis);
        let text = format!("[[tier]]\nstore = \"memory:\"\ntimeout = \"{}\"\n", humantime::format_duration(time));
        prop_assert_eq!(Config::from_toml(&text, "any.toml").unwrap().tiers[0].timeout, time);
    }

    #[test]
    fn a_compression_reads_back(text in "[a-z0-9_-]{1,8}(:[a-z0-9]{1,3})?|\\PC{0,8}") {
        if let Ok(compression) = text.parse::<Compression>() {
            prop_assert_eq!(compression.to_string(), text);
        }
    }

    #[test]
    fn no_url_shows_its_password(user in "[a-z]{0,6}", scheme in select(vec!["file", "s3", "redis", "memory", "http", "az"]), path in "[a-z@/:?#]{0,8}") {
        let text = format!("{scheme}://{user}:hunter2@host/{path}");
        let shown = match text.parse::<StoreUrl>() {
            Ok(store) => format!("{store} {store:?}"),
            Err(error) => error.to_string(),
        };
        prop_assert!(!shown.contains("hunter2"), "{shown}");
        let document = format!("[[tier]]\nstore = \"{text}\"\nretries = -1\n");
        let error = Config::from_toml(&document, "any.toml").unwrap_err();
        prop_assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
