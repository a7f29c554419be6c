//! Wrong configurations and what they are told, and which source of a setting wins.

mod support;

use spill_core::{
    Config, ConfigError, OnFull,
    config::{Amount, Compression, MAX_TIERS, TierConfig},
};
use std::{fmt::Write as _, time::Duration};
use support::registry;

const MEMORY: &str = "[memory]\nlimit = \"512 MiB\"\n";

fn read(text: &str) -> Result<Config, ConfigError> {
    let config = Config::from_toml(text, "spill.toml")?;
    config.validate(&registry())?;
    Ok(config)
}

fn variables<'a>(set: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = (String, String)> + 'a {
    set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
}

/// One wrong configuration: its text, the key that the message has to name, and the value.
struct Case(String, &'static str, Option<&'static str>);

fn memory(lines: &str, key: &'static str, value: impl Into<Option<&'static str>>) -> Case {
    Case(format!("{MEMORY}{lines}\n"), key, value.into())
}

/// In the second of two tiers, so that the message has to count.
fn tier(lines: &str, key: &'static str, value: impl Into<Option<&'static str>>) -> Case {
    let first = "[[tier]]\nstore = \"memory:first\"\n";
    let store = if lines.contains("store") { "" } else { "store = \"file:///var/tmp/app\"\n" };
    Case(format!("{MEMORY}{first}[[tier]]\n{store}{lines}\n"), key, value.into())
}

fn wrong_memory() -> Vec<Case> {
    vec![
        Case("[memory]\n".into(), "memory.limit", None),
        Case(String::new(), "memory.limit", None),
        Case("[memory]\nlimit = \"12 parsecs\"\n".into(), "memory.limit", Some("\"12 parsecs\"")),
        Case("[memory]\nlimit = \"-1 GiB\"\n".into(), "memory.limit", Some("\"-1 GiB\"")),
        Case("[memory]\nlimit = -4096\n".into(), "memory.limit", Some("-4096")),
        Case("[memory]\nlimit = \"101%\"\n".into(), "memory.limit", Some("\"101%\"")),
        Case("[memory]\nlimit = \"9000 PiB\"\n".into(), "memory.limit", Some("\"9000 PiB\"")),
        Case("[memory]\nlimit = 0x7fff_ffff_ffff_ffff\n".into(), "memory.limit", Some("0x7fffffffffffffff")),
        Case("[memory]\nlimit = 0.6\n".into(), "memory.limit", Some("0.6")),
        Case("[memory]\nlimit = true\n".into(), "memory.limit", Some("true")),
        Case("[memory]\nlimit = [\"1 GiB\"]\n".into(), "memory.limit", Some("(an array)")),
        Case("[memory]\nlimit = \"\"\n".into(), "memory.limit", Some("\"\"")),
        Case("memory = \"1 GiB\"\n".into(), "memory", Some("\"1 GiB\"")),
        Case("[[memory]]\nlimit = 1\n".into(), "memory", Some("(an array)")),
        memory("limmit = 1", "memory.limmit", None),
        memory("policy = \"lruu\"", "memory.policy", "\"lruu\""),
        memory("policy = \"belady\"", "memory.policy", "\"belady\""),
        memory("policy = 3", "memory.policy", "3"),
        memory("on_full = \"block\"", "memory.on_full", "\"block\""),
        memory("on_full = \"rejct\"", "memory.on_full", "\"rejct\""),
        memory("on_full = \"reject\"\nwait_timeout = \"5s\"", "memory.wait_timeout", "\"5s\""),
        memory("wait_timeout = 30", "memory.wait_timeout", "30"),
        memory("wait_timeout = \"0s\"", "memory.wait_timeout", "\"0s\""),
        memory("wait_timeout = \"30 parsecs\"", "memory.wait_timeout", "\"30 parsecs\""),
        memory("wait_timeout = \"-5s\"", "memory.wait_timeout", "\"-5s\""),
        memory("wait_timeout = \"2 years\"", "memory.wait_timeout", "\"2 years\""),
        memory("spill_buffers = \"512 MiB\"", "memory.spill_buffers", "\"512 MiB\""),
        memory("spill_buffers = \"10%\"", "memory.spill_buffers", "\"10%\""),
        memory("high_watermark = 0.9", "memory.high_watermark", "0.9"),
        memory("high_watermark = \"120%\"", "memory.high_watermark", "\"120%\""),
        memory("high_watermark = \"60%\"", "memory.low_watermark", "\"75%\" (the default)"),
        memory("low_watermark = \"90%\"", "memory.low_watermark", "\"90%\""),
        memory("[memmory]\nlimit = 1", "memmory", None),
        memory("[network]\nport = 1", "network", None),
        memory("[tiers]\nstore = \"memory:\"", "tiers", None),
    ]
}

fn wrong_tiers() -> Vec<Case> {
    vec![
        memory("[tier]\nstore = \"memory:\"", "tier", "(a table)"),
        memory("tier = 1", "memory.tier", None),
        Case(format!("tier = [1]\n{MEMORY}"), "tier[0]", Some("1")),
        memory("[[tier]]\nmax_spill = 1", "tier[0].store", None),
        tier("store = \"\"", "tier[1].store", "\"\""),
        tier("store = \"/var/tmp/app\"", "tier[1].store", "\"/var/tmp/app\""),
        tier("store = \"C:\\\\spill\"", "tier[1].store", "\"C:\\\\spill\""),
        tier("store = \"var/tmp/app\"", "tier[1].store", "\"var/tmp/app\""),
        tier("store = \"file://var/tmp/app\"", "tier[1].store", "\"file://var/tmp/app\""),
        tier("store = \"file:app\"", "tier[1].store", "\"file:app\""),
        tier("store = \"s3://[bucket\"", "tier[1].store", "\"s3://[bucket\""),
        tier("store = 7", "tier[1].store", "7"),
        tier("store = \"s3://bucket\"", "tier[1].store", "\"s3://bucket\""),
        tier("store = \"flie:///var/tmp/app\"", "tier[1].store", "\"flie:///var/tmp/app\""),
        tier("store = \"redis://me:hunter2@host/0\"", "tier[1].store", "\"redis://***@host/0\""),
        tier("store = \"memory:first\"", "tier[1].store", "\"memory:first\""),
        tier("name = \"\"", "tier[1].name", "\"\""),
        tier("name = \"a\\u0007b\"", "tier[1].name", "\"a\\u{7}b\""),
        tier("name = \"memory:first\"", "tier[1].name", "\"memory:first\""),
        tier("max_spil = \"1 GiB\"", "tier[1].max_spil", None),
        tier("secret_access_key = \"hunter2\"", "tier[1].secret_access_key", None),
        tier("max_spill = \"20 parsecs\"", "tier[1].max_spill", "\"20 parsecs\""),
        tier("max_spill = \"50%\"", "tier[1].max_spill", "\"50%\""),
        tier("max_spill = 1979-05-27", "tier[1].max_spill", "(a date)"),
        tier("reserve_free = \"150%\"", "tier[1].reserve_free", "\"150%\""),
        tier("store = \"memory:second\"\nreserve_free = \"5%\"", "tier[1].reserve_free", "\"5%\""),
        tier("concurrency = 0", "tier[1].concurrency", "0"),
        tier("concurrency = 5000", "tier[1].concurrency", "5000"),
        tier("max_spill = 9\ndemote_at = \"90%\"", "tier[1].demote_at", "\"90%\""),
        tier("max_spill = 9\ndemote_at = 0.9", "tier[1].demote_at", "0.9"),
        Case(
            format!(
                "{MEMORY}[[tier]]\nstore = \"memory:1\"\ndemote_at = \"90%\"\n[[tier]]\nstore = \"memory:2\"\n"
            ),
            "tier[0].demote_at",
            Some("\"90%\""),
        ),
        tier("compress = \"gzip\"", "tier[1].compress", "\"gzip\""),
        tier("compress = \"lz5\"", "tier[1].compress", "\"lz5\""),
        tier("compress = \"snappy\"", "tier[1].compress", "\"snappy\""),
        tier("compress = \"zstd:99\"", "tier[1].compress", "\"zstd:99\""),
        tier("compress = \"lz4:3\"", "tier[1].compress", "\"lz4:3\""),
        tier("compress = \"zstd:\"", "tier[1].compress", "\"zstd:\""),
        tier("compress = \"none:3\"", "tier[1].compress", "\"none:3\""),
        tier("compress = \"LZ4 please\"", "tier[1].compress", "\"LZ4 please\""),
        tier("compress = false", "tier[1].compress", "false"),
        tier("batch_bytes = 0", "tier[1].batch_bytes", "0"),
        tier("batch_entries = 0", "tier[1].batch_entries", "0"),
        tier("batch_entries = \"many\"", "tier[1].batch_entries", "\"many\""),
        tier("retries = -1", "tier[1].retries", "-1"),
        tier("retries = 1000", "tier[1].retries", "1000"),
        tier("timeout = \"0ms\"", "tier[1].timeout", "\"0ms\""),
        tier("timeout = \"1 day\"", "tier[1].timeout", "\"1 day\""),
        tier("durable = \"yes\"", "tier[1].durable", "\"yes\""),
        tier("store = \"memory:second\"\ndurable = true", "tier[1].durable", "true"),
        tier("[tier.options]\ndurable = true", "tier[1].options", None),
        tier("options = \"hunter2\"", "tier[1].options", "(not shown)"),
        tier("[tier.options]\nkeys = [\"hunter2\"]", "tier[1].options.keys", "(not shown)"),
        tier("[tier.optoins]\nregion = \"eu\"", "tier[1].optoins", None),
    ]
}

/// Renders the messages, and checks of each that it names what it has to.
fn told(cases: Vec<Case>) -> String {
    let mut told = String::new();
    for Case(text, key, value) in cases {
        let Err(error) = read(&text) else { panic!("it was accepted: {text}") };
        let message = error.to_string();
        assert!(error.place().starts_with("spill.toml"), "names the file: {message}");
        assert_eq!(error.key(), key, "{message}");
        assert_eq!(error.value(), value, "{message}");
        for part in [error.place(), key, value.unwrap_or_default(), error.problem(), error.fix()] {
            assert!(message.contains(part), "{part:?} is missing: {message}");
        }
        assert!(!error.fix().is_empty() && error.allowed().is_some(), "{message}");
        assert!(!message.contains('\n') && !message.contains("hunter2"), "{message}");
        let _ = write!(told, "{}\n→ {message}\n\n", text.replace(MEMORY, "…\n").trim_end());
    }
    told
}

#[test]
fn wrong_memory_settings_are_told_what_is_wrong() {
    insta::assert_snapshot!(told(wrong_memory()));
}

#[test]
fn wrong_tiers_are_told_what_is_wrong() {
    insta::assert_snapshot!(told(wrong_tiers()));
}

#[test]
fn broken_toml_is_told_the_line_but_not_what_is_in_it() {
    let mut told = String::new();
    for line in [
        "limit = 512 MiB",
        "limit = \"hunter2",
        "secret = hunter2",
        "hunter2",
        "limit = \"hunter2\\q\"",
        "limit = 1\nlimit = 2",
        "[memory]",
        "limit = 99999999999999999999999999999999999999999999",
    ] {
        let text = format!("[memory]\npolicy = \"lru\"\n{line}\n");
        let error = read(&text).expect_err(&text);
        let message = error.to_string();
        assert!(error.place().starts_with("spill.toml:"), "{message}");
        assert!(!message.contains("hunter2") && !message.contains('\n'), "{message}");
        let _ = write!(told, "{line}\n→ {message}\n\n");
    }
    insta::assert_snapshot!(told);
}

#[test]
fn wrong_variables_are_told_what_is_wrong() {
    let text = format!("{MEMORY}[[tier]]\nstore = \"memory:\"\n[[tier]]\nstore = \"file:///a\"\n");
    let mut told = String::new();
    for (name, value, key, shown) in [
        ("SPILL_MEMORY_LIMIT", "lots", "memory.limit", Some("\"lots\"")),
        ("SPILL_MEMORY_LIMIT", "", "memory.limit", Some("\"\"")),
        ("SPILL_MEMORY_ON_FULL", "panic", "memory.on_full", Some("\"panic\"")),
        ("SPILL_MEMORY_POLICY", "lruu", "memory.policy", Some("\"lruu\"")),
        ("SPILL_MEMORY_LIMITS", "hunter2", "", None),
        ("SPILL_MEMORYLIMIT", "1", "", None),
        ("SPILL_TIER_0_MAXSPILL", "1", "", None),
        ("SPILL_TIER_FIRST_STORE", "memory:", "", None),
        ("SPILL_TIER_01_STORE", "memory:", "", None),
        ("SPILL_TIER_0_OPTIONS", "hunter2", "", None),
        ("SPILL_TIER_0_OPTIONS_", "hunter2", "", None),
        ("SPILL_", "1", "", None),
        ("SPILL_TIER_2_MAX_SPILL", "1", "tier[2]", None),
        ("SPILL_TIER_18446744073709551615_STORE", "memory:", "tier[18446744073709551615]", None),
        ("SPILL_TIER_1_STORE", "s3://me:hunter2@[", "tier[1].store", Some("\"s3://***@[\"")),
        ("SPILL_TIER_1_RETRIES", "1.5", "tier[1].retries", Some("\"1.5\"")),
        ("SPILL_TIER_1_DURABLE", "yes", "tier[1].durable", Some("\"yes\"")),
        ("SPILL_TIER_1_COMPRESS", "zstd:99", "tier[1].compress", Some("\"zstd:99\"")),
    ] {
        let config = Config::from_toml(&text, "spill.toml").unwrap();
        let error = config
            .with_env(variables(&[(name, value)]))
            .and_then(|config| config.validate(&registry()))
            .expect_err(name);
        let message = error.to_string();
        assert_eq!(error.place(), format!("environment variable {name}"));
        assert_eq!((error.key(), error.value()), (key, shown), "{message}");
        assert!(!error.fix().is_empty() && error.allowed().is_some(), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        let _ = write!(told, "{name}={value}\n→ {message}\n\n");
    }
    insta::assert_snapshot!(told);
}

#[test]
fn what_is_set_in_code_is_judged_too() {
    let good = || read(&format!("{MEMORY}[[tier]]\nstore = \"file:///a\"\nretries = 7\n")).unwrap();
    type Change = fn(&mut Config);
    let changes: [(&str, Change); 9] = [
        ("memory.limit", |config| config.memory.limit = None),
        ("memory.limit", |config| config.memory.limit = Some(Amount::Bytes(u64::MAX))),
        ("memory.policy", |config| config.memory.policy = "mine".into()),
        ("memory.wait_timeout", |config| config.memory.on_full = OnFull::Wait(Duration::ZERO)),
        ("tier[0].batch_bytes", |config| config.tiers[0].batch_bytes = Some(0)),
        ("tier[0].retries", |config| config.tiers[0].retries = 101),
        ("tier[0].name", |config| config.tiers[0].name = Some(String::new())),
        ("tier[1].store", |config| config.tiers.push(config.tiers[0].clone())),
        ("tier", |config| {
            let tier = |index| TierConfig::new(format!("memory:{index}").parse().unwrap());
            config.tiers = (0..=MAX_TIERS).map(tier).collect();
        }),
    ];
    let mut told = String::new();
    for (key, change) in changes {
        let mut config = good();
        change(&mut config);
        let error = config.validate(&registry()).expect_err(key);
        assert_eq!(error.key(), key);
        let _ = writeln!(told, "{error}");
    }
    insta::assert_snapshot!(told);
}

#[test]
fn too_many_tiers_are_refused_where_they_are_read() {
    let tiers = |number: usize| -> String {
        (0..number).map(|index| format!("[[tier]]\nstore = \"memory:{index}\"\n")).collect()
    };
    assert_eq!(read(&format!("{MEMORY}{}", tiers(MAX_TIERS))).unwrap().tiers.len(), MAX_TIERS);
    let error = read(&format!("{MEMORY}{}", tiers(MAX_TIERS + 1))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spill.toml:3: tier = (17 tables): there are 17 tiers; allowed: at most 16 tiers; \
         fix: remove some; a few large ones do the same"
    );
}

#[test]
fn later_sources_win() {
    let text = "
        [memory]
        limit = \"1 GiB\"
        policy = \"lru\"
        on_full = \"wait\"
        wait_timeout = \"5s\"
        [[tier]]
        store = \"file:///a\"
        max_spill = \"1 TiB\"
        [tier.options]
        region = \"file\"
        bucket = \"file\"
    ";
    let file = read(text).unwrap();
    assert_eq!(file.memory.on_full, OnFull::Wait(Duration::from_secs(5)));
    let set = [
        ("SPILL_MEMORY_LIMIT", "60%"),
        ("SPILL_MEMORY_ON_FULL", "keep"),
        ("SPILL_TIER_0_MAX_SPILL", "2 TiB"),
        ("SPILL_TIER_0_OPTIONS_REGION", "env"),
        ("SPILL_TIER_0_DURABLE", "true"),
        ("HOME", "/root"),
        ("spill_memory_limit", "not ours"),
    ];
    let mut config = file.with_env(variables(&set)).unwrap();
    assert_eq!(config.memory.budget(Some(1000)).unwrap().limit, 600);
    assert_eq!(config.memory.policy, "lru", "what no variable names stays");
    assert_eq!(config.memory.on_full, OnFull::Keep);
    assert_eq!(config.tiers[0].max_spill, Some(2 << 40));
    assert!(config.tiers[0].durable);
    let mut options = config.tiers[0].options.clone();
    assert_eq!(options.take("region").as_deref(), Some("env"));
    assert_eq!(options.take("bucket").as_deref(), Some("file"));

    config.memory.limit = Some(Amount::Bytes(4096));
    config.tiers[0].max_spill = None;
    config.validate(&registry()).unwrap();
    assert_eq!(config.memory.budget(None).unwrap().limit, 4096);
    assert_eq!(config.tiers[0].max_spill, None);
}

#[test]
fn variables_are_read_in_the_order_of_the_keys() {
    let config = Config::from_toml("[memory]\nlimit = 1\non_full = \"reject\"", "spill.toml").unwrap();
    let both = [("SPILL_MEMORY_WAIT_TIMEOUT", "7s"), ("SPILL_MEMORY_ON_FULL", "wait")];
    let waiting = config.clone().with_env(variables(&both)).unwrap();
    assert_eq!(waiting.memory.on_full, OnFull::Wait(Duration::from_secs(7)));
    let error = config.with_env(variables(&both[..1])).unwrap_err();
    assert_eq!(error.key(), "memory.wait_timeout");
}

#[test]
fn case_09_a_cap_is_the_same_from_a_file_and_from_a_variable() {
    let text = |cap: &str| format!("{MEMORY}[[tier]]\nstore = \"memory:\"\nmax_spill = {cap}\n");
    for (toml, variable, bytes) in [
        ("\"20 GiB\"", "20 GiB", 20 << 30),
        ("4096", "4096", 4096),
        ("0", "0", 0),
        ("\"1.5kB\"", "1.5kB", 1500),
    ] {
        assert_eq!(read(&text(toml)).unwrap().tiers[0].max_spill, Some(bytes));
        let config = read(&text("1")).unwrap();
        let config = config.with_env(variables(&[("SPILL_TIER_0_MAX_SPILL", variable)])).unwrap();
        assert_eq!(config.tiers[0].max_spill, Some(bytes));
    }
}

#[test]
fn a_late_message_names_where_the_value_was_last_set() {
    let text = "[memory]\nlimit = \"1 MiB\"\nspill_buffers = \"2 MiB\"\n";
    let place = |config: &Config| config.validate(&registry()).unwrap_err().place().to_owned();
    let mut config = Config::from_toml(text, "spill.toml").unwrap();
    assert_eq!(place(&config), "spill.toml:3");
    config = config.with_env(variables(&[("SPILL_MEMORY_SPILL_BUFFERS", "3 MiB")])).unwrap();
    assert_eq!(place(&config), "environment variable SPILL_MEMORY_SPILL_BUFFERS");
    config.memory.spill_buffers = Some(4 << 20);
    assert_eq!(place(&config), "set in code");
}

#[test]
fn a_percentage_is_judged_once_the_machine_is_known() {
    let text = "[memory]\nlimit = \"50%\"\nspill_buffers = \"1 MiB\"\n";
    let memory = read(text).unwrap().memory;
    assert_eq!(memory.budget(Some(4 << 20)).unwrap().entries(), 1 << 20);
    assert_eq!(memory.budget(Some(2 << 20)).unwrap_err().key(), "memory.spill_buffers");
    assert_eq!(memory.budget(None).unwrap_err().key(), "memory.limit");
}

#[test]
fn the_default_of_the_buffers_never_takes_everything() {
    let budget = |limit| {
        let mut config = Config::default();
        config.memory.limit = Some(Amount::Bytes(limit));
        config.validate(&registry()).unwrap();
        config.memory.budget(None).unwrap().spill_buffers
    };
    assert_eq!([0, 1, 8, 256 << 20, 1 << 40].map(budget), [0, 0, 1, 32 << 20, 64 << 20]);
}

#[test]
fn secrets_are_never_shown() {
    let text = format!(
        "{MEMORY}[[tier]]\nstore = \"memory://me:hunter2@host/p?token=hunter2\"\n[tier.options]\nkey = \"hunter2\"\n"
    );
    let config = read(&text).unwrap();
    let shown = format!("{config:?} {config:#?} {}", config.tiers[0].name());
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("memory://***@host/p?***") && shown.contains("key"), "{shown}");
    assert_eq!(config.tiers[0].store.as_url().password(), Some("hunter2"), "it is kept, though");
}

#[test]
fn files_are_read_and_missing_or_foreign_ones_are_named() {
    let path = std::env::temp_dir().join(format!("spill-config-{}.toml", std::process::id()));
    std::fs::write(&path, MEMORY).unwrap();
    assert_eq!(Config::from_file(&path).unwrap().memory.limit, Some(Amount::Bytes(512 << 20)));
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    let foreign = Config::from_file(&path).unwrap_err().to_string();
    std::fs::write(&path, " ".repeat(2 << 20)).unwrap();
    let long = Config::from_file(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let missing = Config::from_file(&path).unwrap_err();
    assert!(std::error::Error::source(&missing).is_some());
    for message in [foreign, long, missing.to_string()] {
        assert!(message.contains(&path.display().to_string()), "{message}");
    }
}

#[test]
fn auto_is_a_value_of_its_own() {
    let config = read(&format!("{MEMORY}[[tier]]\nstore = \"memory:\"\ncompress = \"auto\"\n")).unwrap();
    assert_eq!(config.tiers[0].compress, Compression::Auto);
}

/// A process can't change its own environment safely, so the test runs itself once more in another.
#[cfg(unix)]
#[test]
fn the_environment_of_the_process_is_read() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, process::Command};
    if let Ok(expected) = std::env::var("CONFIG_TEST_EXPECTS") {
        let shown = match Config::default().with_process_env() {
            Ok(config) => config.memory.limit.unwrap().to_string(),
            Err(error) => error.to_string(),
        };
        return assert_eq!(shown, expected);
    }
    let not_utf8 = "environment variable SPILL_MEMORY_LIMIT: its value is not UTF-8; \
                    fix: set it again, with nothing but UTF-8 in it, or unset it";
    for (value, expected) in [(OsStr::new("4096"), "4 KiB"), (OsStr::from_bytes(&[0xff]), not_utf8)] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "the_environment_of_the_process_is_read"]).env_remove("SPILL_UPDATE_DOCS");
        child.env("OTHER", OsStr::from_bytes(&[0xff])).env("CONFIG_TEST_EXPECTS", expected);
        let output = child.env("SPILL_MEMORY_LIMIT", value).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
    }
}
