//! Inputs that broke other systems and that take a process of their own: the cases 7 and 11. The tests start this
//! very binary again, which runs the one test `as_another_process` in the role that the environment names.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use spill_buffer::{Event, Location, MemoryStore, OnFull, StoreErrorKind, TierSpec};

use crate::harness::*;

const ROLE: &str = "SPILL_IT_ROLE";
const ROOT: &str = "SPILL_IT_ROOT";

/// This binary again, in `role`, started by a shell that runs `before` first.
fn start(role: &str, root: &Path, before: &str) -> Child {
    Command::new("sh")
        .arg("-c")
        .arg(format!("{before}; exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "processes::as_another_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ROOT, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads lines of a child until it says that it is ready.
fn wait_until_ready(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.trim_end().ends_with("ready") {
            return;
        }
        line.clear();
    }
    panic!("the other process ended before it was ready");
}

fn succeeds(child: Child) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn as_another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "keys" => hold_many_keys(&root).await,
            "file size" => break_off(&root).await,
            other => panic!("no role {other}"),
        }
    });
}

/// A value that is of this process and no other.
fn own(key: u64) -> Vec<u8> {
    let mut value = std::process::id().to_le_bytes().to_vec();
    value.extend_from_slice(&key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    value
}

async fn hold_many_keys(root: &Path) {
    const KEYS: u64 = 100_000;
    let waiting = OnFull::Wait(std::time::Duration::from_secs(600));
    let tier = TierSpec::new(files(root).await);
    let buffer = exact(64 << 10).exact(waiting).capacity(spill_buffer::FixedBudget::default()).tier(tier);
    let buffer = buffer.build().unwrap();
    tell_and_wait();
    for key in 0..KEYS {
        buffer.insert(key, own(key)).await.unwrap();
    }
    // Some go and some change while the other process works, too.
    for key in (0..KEYS).step_by(10) {
        assert!(buffer.remove(&key).unwrap());
    }
    for key in (5..KEYS).step_by(10) {
        buffer.insert(key, own(key + KEYS)).await.unwrap();
    }
    let keys: Vec<u64> = (0..KEYS).collect();
    for some in keys.chunks(1000) {
        for (key, answer) in some.iter().zip(buffer.get_many(some).await) {
            let expected = match key % 10 {
                0 => None,
                5 => Some(own(key + KEYS)),
                _ => Some(own(*key)),
            };
            assert_eq!(answer.unwrap().map(|value| value.to_vec()), expected, "{key}");
        }
    }
    assert_eq!(buffer.len(), KEYS - KEYS / 10);
    assert!(buffer.usage().spilled.entries > KEYS / 2, "{:#?}", buffer.usage());
    finish(buffer).await;
}

fn tell_and_wait() {
    #[expect(clippy::print_stdout, reason = "the other process listens")]
    {
        println!("ready");
    }
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// duckdb 15173, monarch 1421: two processes with one directory.
#[test]
fn case_07_two_processes_on_one_directory_are_exact() {
    let root = tempfile::tempdir().unwrap();
    let mut children = [start("keys", root.path(), ":"), start("keys", root.path(), ":")];
    children.iter_mut().for_each(wait_until_ready);
    for child in &mut children {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
    children.into_iter().for_each(succeeds);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// No file may be longer than 2 999 808 bytes in this process, so a write breaks off there.
async fn break_off(root: &Path) {
    const VALUE: usize = 4 << 20;
    let store = files(root).await;
    let directory = store.directory().to_owned();
    let buffer = exact(16 << 20)
        .tier(TierSpec::new(store).name("first").max_spill(64 << 20))
        .tier(TierSpec::new(MemoryStore::new()).name("second"))
        .build()
        .unwrap();
    put_away(&buffer, 0, noise(0, 1 << 20)).await;
    let mut events = buffer.events();
    put_away(&buffer, 1, noise(1, VALUE)).await;
    match events.next().await.unwrap() {
        Event::WriteFailed { tier, error, .. } => {
            assert_eq!((&*tier, error.kind()), ("first", StoreErrorKind::NoSpace), "{error}");
        }
        other => panic!("{other:?}"),
    }
    swept(&buffer).await;
    let usage = buffer.usage();
    assert_eq!((usage.tiers[0].entries, usage.tiers[0].stored), (1, frame(1 << 20)), "only what was there");
    assert_eq!((usage.tiers[0].garbage, usage.tiers[0].blobs), (0, 1));
    assert_eq!(usage.tiers[1].stored, frame(VALUE as u64));
    let lengths: u64 =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!((frame(1 << 20)..frame(1 << 20) + 1000).contains(&lengths), "{lengths}");
    assert_eq!(buffer.location(&1), Some(Location::Tier("second".into())));
    assert!(get(&buffer, 1).await.unwrap() == noise(1, VALUE));
    assert!(get(&buffer, 0).await.unwrap() == noise(0, 1 << 20));
    finish(buffer).await;
}

/// starrocks 79458, celeborn 3469: a file that can't grow beyond byte 3 000 000 or so.
#[test]
#[cfg(unix)]
fn case_11_a_file_that_can_not_grow_any_more() {
    let root = tempfile::tempdir().unwrap();
    // In blocks of 512 bytes.
    let mut child = start("file size", root.path(), "trap '' XFSZ; ulimit -f 5859");
    drop(child.stdin.take());
    succeeds(child);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}
