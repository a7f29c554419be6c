//! The main job, `examples/corpus`, over a small local tier and a bucket.

use std::{
    env,
    ffi::OsString,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use spill_conformance::{Proxy, Weather};
use tempfile::TempDir;

use crate::weed::{ACCESS_KEY, BUCKET, SECRET_KEY, Weed};

/// Nothing goes wrong.
pub(crate) fn in_a_bucket(weed: &mut Weed) {
    let job = Job::start(weed.address());
    let report = job.finish();
    check(&report, weed);
    assert_eq!(report["repeated"], 0, "nothing failed");
}

/// One exchange of twenty is cut, and the server is killed twice and started again.
pub(crate) fn through_trouble(weed: &mut Weed) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(Proxy::start(weed.address(), 0x5b1117)).unwrap();
    let mut job = Job::start(proxy.address());
    wait_for(|| proxy.traffic().exchanges > 20 || job.has_ended());
    proxy.set(Weather::fair().cut_per_mille(50));
    for _ in 0..2 {
        let seen = proxy.traffic().exchanges;
        wait_for(|| proxy.traffic().exchanges > seen + 60 || job.has_ended());
        assert!(!job.has_ended(), "over before the server was killed: give it more to do");
        assert!(!weed.objects().is_empty(), "there is something to lose");
        weed.kill();
        std::thread::sleep(Duration::from_secs(1));
        weed.restart();
    }
    let report = job.finish();
    let traffic = proxy.traffic();
    println!("{traffic:?}");
    check(&report, weed);
    assert!(traffic.cut > 0, "{traffic:?}");
}

fn wait_for(done: impl FnMut() -> bool) {
    let ended = std::iter::repeat_with(done).take(1800).any(|done| {
        done || {
            std::thread::sleep(Duration::from_millis(100));
            false
        }
    });
    assert!(ended, "it did not happen within three minutes");
}

fn check(report: &Value, weed: &Weed) {
    let held: Vec<String> = report["tiers"].as_array().unwrap().iter().map(ToString::to_string).collect();
    println!("tiers: {}", held.join("\n       "));
    println!("work: {}\nrepeated: {}", report["work"], report["repeated"]);
    for (name, wanted) in [("lost", 0), ("wrong", 0)] {
        assert_eq!(report[name], wanted, "{name}: {report}");
    }
    for name in ["unbalanced", "left_behind", "problems"] {
        assert_eq!(report[name], Value::Array(Vec::new()), "{name}");
    }
    for tier in 0..2 {
        assert!(report["tiers"][tier]["stored"].as_u64() > Some(0), "tier {tier} was used: {report}");
    }
    assert_eq!(weed.objects(), Vec::<String>::new(), "closing leaves nothing in the bucket");
}

/// The program under way.
struct Job {
    child: Child,
    _directory: TempDir,
}

impl Job {
    fn start(endpoint: SocketAddr) -> Self {
        let directory = TempDir::with_prefix_in("spill-corpus-", "/var/tmp").unwrap();
        let local = directory.path().join("local");
        let config = directory.path().join("spill.toml");
        let Scale { files, repeat, limit } = Scale::asked_for();
        std::fs::write(&config, settings(&limit, &local.display().to_string(), endpoint)).unwrap();
        let child = Command::new(program())
            .arg(files)
            .args(["--repeat", &repeat, "--json", "--config"])
            .arg(&config)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, _directory: directory }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for it, and gives its numbers.
    fn finish(self) -> Value {
        let output = self.child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        println!("{text}");
        assert!(output.status.success(), "{}", output.status);
        serde_json::from_str(text.trim_end().lines().last().unwrap()).unwrap()
    }
}

/// How much is held.
struct Scale {
    files: OsString,
    repeat: String,
    /// Of memory, and of the local tier.
    limit: String,
}

impl Scale {
    /// What `CORPUS_FILES`, `CORPUS_REPEAT` and `CORPUS_LIMIT` say; else files that every clone has.
    fn asked_for() -> Self {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/spill-core");
        Self {
            files: env::var_os("CORPUS_FILES").unwrap_or_else(|| own.into()),
            repeat: env::var("CORPUS_REPEAT").unwrap_or_else(|_| "12".to_owned()),
            limit: env::var("CORPUS_LIMIT").unwrap_or_else(|_| "1 MiB".to_owned()),
        }
    }
}

fn settings(limit: &str, local: &str, endpoint: SocketAddr) -> String {
    format!(
        r#"
        [memory]
        limit = "{limit}"
        wait_timeout = "2m"

        [[tier]]
        name = "local"
        store = "file://{local}"
        max_spill = "{limit}"
        compress = "lz4"

        [[tier]]
        name = "bucket"
        store = "s3://{BUCKET}/corpus"
        compress = "zstd:1"
        timeout = "5s"
        retries = 8
        [tier.options]
        endpoint = "http://{endpoint}"
        region = "us-east-1"
        allow_http = "true"
        "#
    )
}

/// Cargo builds the examples of a package with its tests, into a directory beside theirs.
fn program() -> PathBuf {
    let test = env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples/corpus");
    assert!(
        program.exists(),
        "{} is not built: run `cargo test` without `--test`, or build it",
        program.display()
    );
    program
}
