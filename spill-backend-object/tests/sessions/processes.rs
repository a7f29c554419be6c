//! Two processes on one prefix, one of which is killed.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use object_store::local::LocalFileSystem;
use spill_backend_object::ObjectStoreBackend;
use spill_core::{BlobId, Store};

use crate::{ids, put};

const CHILD_DIRECTORY: &str = "SPILL_TEST_DIRECTORY";

fn shared_files(directory: &Path) -> ObjectStoreBackend {
    let files = LocalFileSystem::new_with_prefix(directory).unwrap();
    // The owner is the name of the executable, the same for both processes.
    ObjectStoreBackend::new(Arc::new(files), "shared").unwrap()
}

/// The other process: keeps blobs, says where, and waits to be killed or told to go on.
#[tokio::test]
#[ignore = "it is the other process of another test"]
async fn the_other_process() {
    let directory = std::env::var_os(CHILD_DIRECTORY).expect("started by another test");
    let store = shared_files(Path::new(&directory));
    for number in 0..3 {
        put(&store, number).await;
    }
    let name = store.info().name.clone();
    let (_, place) = name.split_once("/shared/").unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "\nready shared/{place}").unwrap();
    out.flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    assert_eq!(ids(&store, None, 10).await, [0, 1, 2]);
    assert_eq!(store.get(BlobId::new(2), 0..10).await.unwrap(), vec![7; 10]);
    store.close().await.unwrap();
}

/// Starts the other process; it, and where its session is.
fn other_process(directory: &Path) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::the_other_process", "--ignored", "--nocapture"])
        .env(CHILD_DIRECTORY, directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let place = lines.find_map(|line| Some(line.unwrap().strip_prefix("ready ")?.to_owned())).unwrap();
    (child, place)
}

/// As if everything in the directory had been written two days ago.
fn age(directory: &Path) -> usize {
    let past = SystemTime::now() - Duration::from_secs(48 * 3600);
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|file| std::fs::File::options().write(true).open(file).unwrap().set_modified(past).unwrap())
        .count()
}

fn files_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[tokio::test]
async fn s08_two_sessions_and_two_processes_share_a_prefix() {
    let root = tempfile::tempdir().unwrap();
    let (mine, yours) = (shared_files(root.path()), shared_files(root.path()));
    put(&mine, 1).await;
    put(&yours, 1).await;
    put(&yours, 2).await;
    let (mut killed, killed_place) = other_process(root.path());
    let (mut living, living_place) = other_process(root.path());
    let (killed_place, living_place) = (root.path().join(killed_place), root.path().join(living_place));
    assert_eq!(killed_place.parent(), living_place.parent(), "the same owner");
    assert_eq!((ids(&mine, None, 10).await, ids(&yours, None, 10).await), (vec![1], vec![1, 2]));

    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(mine.sweep().await.unwrap().living, 3, "it died just now");
    assert_eq!(age(&killed_place), 4);
    let report = mine.sweep().await.unwrap();
    assert_eq!((report.living, report.removed, report.objects), (2, 1, 4));
    assert_eq!((files_in(&killed_place), files_in(&living_place)), (0, 4));

    mine.delete(&[BlobId::new(1), BlobId::new(2)]).await.unwrap();
    assert_eq!(ids(&yours, None, 10).await, [1, 2]);
    living.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert!(living.wait().unwrap().success(), "the other process lost something");
    assert_eq!(files_in(&living_place), 0);
    yours.close().await.unwrap();
    mine.close().await.unwrap();
    let owner = living_place.parent().unwrap();
    let left: usize = std::fs::read_dir(owner).unwrap().map(|entry| files_in(&entry.unwrap().path())).sum();
    assert_eq!(left, 0);
}
