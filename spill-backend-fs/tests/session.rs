//! Sessions: who may read them, who removes them, and where they can't be. Some tests start this very binary
//! again as another process, which runs the one test `as_another_process`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use spill_backend_fs::{FsFactory, FsOptions, FsStore, sweep};
use spill_core::{BlobId, Options, Store, StoreErrorKind, StoreFactory};

const ROLE: &str = "SPILL_TEST_ROLE";
const ROOT: &str = "SPILL_TEST_ROOT";

fn options(root: &Path) -> FsOptions {
    FsOptions::new(root).allow_tmpfs(true)
}

/// A file's bytes, made from its number.
fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + usize::try_from(number % 50).unwrap())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// This binary again, in `role`, started by a shell that runs `before` first.
fn start(role: &str, root: &Path, before: &str) -> Child {
    Command::new("sh")
        .arg("-c")
        .arg(format!("{before}; exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "as_another_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ROOT, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads lines of a child until one that ends with `expected`.
fn wait_for(child: &mut Child, expected: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.trim_end().ends_with(expected) {
            return;
        }
        line.clear();
    }
    panic!("the other process ended before it said {expected:?}");
}

fn succeeds(child: Child) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn as_another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "hold" => hold(&root).await,
            "writer" => write_and_verify(&root).await,
            "many" => many_blobs(&root).await,
            "opener" => {
                for _ in 0..40 {
                    FsStore::open(options(&root)).await.unwrap().close().await.unwrap();
                    drop(FsStore::open(options(&root)).await.unwrap());
                }
            }
            "permissions" => {
                let store = FsStore::open(options(&root.join("made"))).await.unwrap();
                store.put(BlobId::new(1), content(1).into()).await.unwrap();
                println!("ready");
                std::io::stdin().read_line(&mut String::new()).unwrap();
            }
            other => panic!("no role {other}"),
        }
    });
}

/// Has blobs, one unfinished, and waits to be killed or told to end.
async fn hold(root: &Path) {
    let store = FsStore::open(options(root)).await.unwrap();
    for number in 0..20 {
        store.put(BlobId::new(number), content(number).into()).await.unwrap();
    }
    fs::write(store.directory().join("00000000000000ff.part"), "half a blo").unwrap();
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

async fn write_and_verify(root: &Path) {
    let store = FsStore::open(options(root)).await.unwrap();
    let salt = u64::from(std::process::id());
    for number in 0..300 {
        store.put(BlobId::new(number), content(number * 7 + salt).into()).await.unwrap();
    }
    for number in 0..300 {
        let expected = content(number * 7 + salt);
        let got = store.get(BlobId::new(number), 0..expected.len() as u64).await.unwrap();
        assert_eq!(got, expected);
    }
    assert_eq!(store.list(None, usize::MAX).await.unwrap().len(), 300);
    store.close().await.unwrap();
}

async fn many_blobs(root: &Path) {
    // Files are made quickly only in memory: elsewhere fewer must do.
    let blobs: u64 = if root.starts_with("/dev/shm") { 50_000 } else { 5_000 };
    let store = Arc::new(FsStore::open(options(root)).await.unwrap());
    let writers = (0..4).map(|first| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for number in (first..blobs).step_by(4) {
                store.put(BlobId::new(number), content(number).into()).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let readers = (0..32u64).map(|reader| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for step in 0..300 {
                let number = (reader * 7919 + step * 104_729) % blobs;
                let expected = content(number);
                let got = store.get(BlobId::new(number), 0..expected.len() as u64).await.unwrap();
                assert_eq!(got, expected);
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
    assert_eq!(store.list(None, usize::MAX).await.unwrap().len() as u64, blobs);
    store.close().await.unwrap();
}

#[test]
fn s05_only_the_owner_may_read_also_without_a_umask() {
    let root = tempfile::tempdir().unwrap();
    let mut child = start("permissions", root.path(), "umask 0");
    wait_for(&mut child, "ready");
    let made = root.path().join("made");
    let session =
        fs::read_dir(&made).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&made), mode(&session)), (0o700, 0o700));
    for file in [session.join("lock"), session.join("0000000000000001.blob"), made.join(".spill-lock")] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    succeeds(child);
}

#[tokio::test]
async fn s05_a_killed_process_is_swept_and_a_living_one_is_not() {
    let root = tempfile::tempdir().unwrap();
    let mut living = start("hold", root.path(), ":");
    let mut killed = start("hold", root.path(), ":");
    wait_for(&mut living, "ready");
    wait_for(&mut killed, "ready");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let report = sweep(root.path()).unwrap();
    assert_eq!((report.removed, report.living, report.failed), (1, 1, 0), "{report:?}");
    assert!(report.bytes >= 20 * 512, "{report:?}");
    let report = sweep(root.path()).unwrap();
    assert_eq!((report.removed, report.living), (0, 1));
    living.stdin.take().unwrap().write_all(b"\n").unwrap();
    succeeds(living);
    // It ended without closing; opening sweeps too.
    let store = FsStore::open(options(root.path())).await.unwrap();
    let own = store.directory().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(names(root.path()), [".spill-lock".to_owned(), own]);
    store.close().await.unwrap();
    assert!(names(root.path()).is_empty());
}

#[tokio::test]
async fn s05_a_session_is_alive_in_its_own_process_too() {
    let root = tempfile::tempdir().unwrap();
    let first = FsStore::open(options(root.path())).await.unwrap();
    first.put(BlobId::new(1), content(1).into()).await.unwrap();
    let second = FsStore::open(options(root.path())).await.unwrap();
    assert_ne!(first.directory(), second.directory());
    assert_eq!(second.list(None, 10).await.unwrap(), []);
    assert_eq!(sweep(root.path()).unwrap().living, 2);
    second.close().await.unwrap();
    assert_eq!(first.get(BlobId::new(1), 0..8).await.unwrap(), content(1)[..8]);
    first.close().await.unwrap();
    assert!(names(root.path()).is_empty());
}

#[tokio::test]
async fn s05_a_sweep_touches_nothing_foreign_and_follows_no_link() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("0000000000000001.blob"), "precious").unwrap();
    let inside = root.path();
    fs::write(inside.join("notes.txt"), "foreign").unwrap();
    fs::write(inside.join("spill-00000000000000aa"), "a file").unwrap();
    fs::create_dir(inside.join("spill-short")).unwrap();
    fs::write(inside.join("spill-short/0000000000000001.blob"), "foreign").unwrap();
    symlink(outside.path(), inside.join("spill-00000000000000bb")).unwrap();
    // A dead session with a link for a blob, a link for a lock elsewhere, and something foreign.
    fs::create_dir(inside.join("spill-00000000000000cc")).unwrap();
    symlink(
        outside.path().join("0000000000000001.blob"),
        inside.join("spill-00000000000000cc/0000000000000001.blob"),
    )
    .unwrap();
    fs::create_dir(inside.join("spill-00000000000000dd")).unwrap();
    symlink(outside.path().join("lock"), inside.join("spill-00000000000000dd/lock")).unwrap();
    fs::create_dir(inside.join("spill-00000000000000ee")).unwrap();
    fs::write(inside.join("spill-00000000000000ee/thesis.txt"), "foreign").unwrap();

    let report = sweep(inside).unwrap();
    assert_eq!((report.removed, report.living, report.failed), (1, 0, 2), "{report:?}");
    assert_eq!(names(outside.path()), ["0000000000000001.blob"]);
    assert_eq!(fs::read_to_string(outside.path().join("0000000000000001.blob")).unwrap(), "precious");
    let left = names(inside);
    assert!(!left.contains(&"spill-00000000000000cc".to_owned()), "{left:?}");
    for foreign in ["notes.txt", "spill-00000000000000aa", "spill-00000000000000bb", "spill-short"] {
        assert!(left.contains(&foreign.to_owned()), "{foreign} in {left:?}");
    }
    assert_eq!(fs::read_to_string(inside.join("spill-00000000000000ee/thesis.txt")).unwrap(), "foreign");
    // None of it keeps a store from being opened.
    FsStore::open(options(inside)).await.unwrap().close().await.unwrap();
}

#[test]
fn s05_many_dead_sessions_are_swept_with_few_open_files() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..200 {
        let session = root.path().join(format!("spill-{number:016x}"));
        fs::create_dir(&session).unwrap();
        fs::write(session.join("lock"), "").unwrap();
        fs::write(session.join("0000000000000001.blob"), "left").unwrap();
    }
    let mut child = start("hold", root.path(), "ulimit -n 64");
    wait_for(&mut child, "ready");
    assert_eq!(names(root.path()).len(), 2, "the child's session and the lock");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    succeeds(child);
}

#[test]
fn s05_sessions_being_born_are_not_swept() {
    let root = tempfile::tempdir().unwrap();
    let openers: Vec<_> = (0..3).map(|_| start("opener", root.path(), ":")).collect();
    for _ in 0..100 {
        let report = sweep(root.path()).unwrap();
        assert_eq!(report.failed, 0);
    }
    openers.into_iter().for_each(succeeds);
    let report = sweep(root.path()).unwrap();
    assert_eq!((report.living, report.failed), (0, 0));
    assert!(names(root.path()).is_empty());
}

#[test]
fn s05_sweeping_what_is_not_there_or_not_a_directory() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(sweep(&root.path().join("absent")).unwrap(), spill_backend_fs::SweepReport::default());
    assert_eq!(sweep(root.path()).unwrap(), spill_backend_fs::SweepReport::default());
    assert!(names(root.path()).is_empty(), "not even a lock file");
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let message = sweep(&file).unwrap_err().to_string();
    assert!(message.contains(&file.display().to_string()), "{message}");
}

#[test]
fn case_07_processes_share_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let writers: Vec<_> = (0..2).map(|_| start("writer", root.path(), ":")).collect();
    writers.into_iter().for_each(succeeds);
    assert!(names(root.path()).is_empty());
}

#[test]
fn case_19_s06_many_blobs_and_readers_with_few_open_files() {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let root = tempfile::tempdir_in(place).unwrap();
    succeeds(start("many", root.path(), "ulimit -n 64"));
    assert!(names(root.path()).is_empty());
}

#[tokio::test]
async fn case_21_an_absent_directory_is_made_with_its_parents() {
    let root = tempfile::tempdir().unwrap();
    let nested = root.path().join("a/b c/ü");
    let url = url::Url::from_directory_path(&nested).unwrap();
    let store = FsFactory.open(&url, Options::new().with("allow_tmpfs", "true")).await.unwrap();
    assert_eq!(store.info().name, nested.display().to_string());
    store.put(BlobId::new(1), content(1).into()).await.unwrap();
    store.close().await.unwrap();
    assert!(names(&nested).is_empty());
}

#[tokio::test]
async fn case_21_a_file_is_no_directory() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let message = FsStore::open(options(&path)).await.unwrap_err().to_string();
        assert!(message.contains(&path.display().to_string()), "{message}");
        assert!(message.contains("this is a file, or below one; name a directory"), "{message}");
    }
}

#[tokio::test]
async fn case_21_a_read_only_directory_is_denied() {
    let root = tempfile::tempdir().unwrap();
    let _mounted;
    if is_root() {
        // Permissions don't stop root, a read-only file system does.
        let Some(mounted) = Mounted::tmpfs(root.path(), "ro,size=1m") else { return };
        _mounted = mounted;
    } else {
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o500)).unwrap();
    }
    for path in [root.path().to_owned(), root.path().join("below")] {
        let error = FsStore::open(options(&path)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        let message = error.to_string();
        assert!(
            message.contains(&path.display().to_string()) && message.contains("name a directory"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn case_21_a_directory_removed_while_in_use_is_named() {
    let root = tempfile::tempdir().unwrap();
    let store = FsStore::open(options(root.path())).await.unwrap();
    store.put(BlobId::new(1), content(1).into()).await.unwrap();
    fs::remove_dir_all(root.path()).unwrap();
    let error = store.put(BlobId::new(2), content(2).into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other);
    let message = error.to_string();
    let path = store.directory().display().to_string();
    assert!(message.contains(&path) && message.contains("was removed while in use"), "{message}");
    assert_eq!(store.get(BlobId::new(1), 0..1).await.unwrap_err().kind(), StoreErrorKind::NotFound);
    assert_eq!(store.list(None, 10).await.unwrap(), []);
    store.delete(&[BlobId::new(1)]).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn s05_memory_is_refused_unless_allowed() {
    let memory = Path::new("/dev/shm");
    let Ok(root) = tempfile::tempdir_in(memory) else {
        println!("skipped: no {} here", memory.display());
        return;
    };
    let nested = root.path().join("a/b");
    let message = FsStore::open(FsOptions::new(&nested)).await.unwrap_err().to_string();
    assert!(
        message.contains(&nested.display().to_string()) && message.contains("`allow_tmpfs = true`"),
        "{message}"
    );
    assert!(names(root.path()).is_empty(), "refused before anything is made");
    FsStore::open(options(&nested)).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn case_22_a_full_file_system_keeps_nothing_of_a_blob() {
    let root = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::tmpfs(root.path(), "size=4m") else { return };
    let store = FsStore::open(options(root.path())).await.unwrap();
    store.put(BlobId::new(1), vec![1; 1 << 20].into()).await.unwrap();
    let error = store.put(BlobId::new(2), vec![2; 5 << 20].into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace, "{error}");
    assert_eq!(names(store.directory()), ["0000000000000001.blob", "lock"]);
    assert_eq!(store.get(BlobId::new(1), 0..1 << 20).await.unwrap(), vec![1; 1 << 20]);
    store.put(BlobId::new(3), vec![3; 2 << 20].into()).await.unwrap();
    store.close().await.unwrap();
    let reserving = FsStore::open(options(root.path()).reserve_free(2 << 20)).await.unwrap();
    let error = reserving.put(BlobId::new(1), vec![1; 3 << 20].into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace, "{error}");
    reserving.put(BlobId::new(2), vec![1; 1 << 20].into()).await.unwrap();
    reserving.close().await.unwrap();
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.trim_ascii() == b"0"
}

/// A file system in memory, mounted until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(path: &Path, mount_options: &str) -> Option<Self> {
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", mount_options, "tmpfs"]).arg(path).output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(path.to_owned())),
            refused => {
                println!("skipped: no file system can be mounted here: {refused:?}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn s05_a_lock_file_that_a_dead_process_left_is_swept() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join(".spill-lock"), b"").unwrap();
    assert_eq!(spill_backend_fs::sweep(root.path()).unwrap().removed, 0);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}
