//! Inputs that broke other systems, with directories and file systems: the cases 21, 22 and 27.

use std::{fs, path::Path};

use spill_buffer::{
    BlobId, Error, Location, Store, StoreErrorKind, TierSpec, config::Config, fs::FsOptions, fs::FsStore,
};

use crate::harness::*;

fn config(root: &Path) -> Config {
    let root = root.display();
    let text =
        format!("[memory]\nlimit = 300\n[[tier]]\nstore = \"file://{root}\"\noptions.allow_tmpfs = true");
    Config::from_toml(&text, "spill.toml").unwrap()
}

/// duckdb-r 2562, presto 21015: a spill directory that is not there yet is made, with its parents.
#[tokio::test]
async fn case_21_a_nested_directory_is_made() {
    let root = tempfile::tempdir().unwrap();
    let nested = root.path().join("a/b c/d");
    let builder = spill_buffer::open::<u64, Vec<u8>>(&config(&nested)).await.unwrap();
    let buffer = builder.codec(spill_buffer::BytesCodec).weigher(spill_buffer::ByteLength).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    assert!(nested.is_dir());
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100));
    finish(buffer).await;
    assert_eq!(fs::read_dir(&nested).unwrap().count(), 0);
}

/// A file, something below a file, and where nothing can be made: refused when the buffer is built.
#[tokio::test]
async fn case_21_where_there_can_be_no_directory_the_error_names_the_path() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "precious").unwrap();
    let read_only = root.path().join("read-only");
    fs::create_dir(&read_only).unwrap();
    let mut permissions = fs::metadata(&read_only).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&read_only, permissions).unwrap();
    let mut paths = vec![file.clone(), file.join("below")];
    if cfg!(target_os = "linux") {
        paths.push("/proc/spill".into());
    }
    // Whoever may do everything is stopped by no permission.
    if fs::write(read_only.join("probe"), "").is_err() {
        paths.extend([read_only.clone(), read_only.join("below")]);
    }
    for path in paths {
        let error = match spill_buffer::open::<u64, Vec<u8>>(&config(&path)).await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{} was taken", path.display()),
        };
        assert!(error.contains(&path.display().to_string()) && error.contains("tier[0].store"), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

/// The directory goes while the buffer runs: what is in memory stays there, the rest is a typed error.
#[tokio::test]
async fn case_21_a_directory_that_is_removed_costs_only_what_was_in_it() {
    let root = tempfile::tempdir().unwrap();
    let store = files(root.path()).await;
    let directory = store.directory().to_owned();
    let buffer = exact(10_000).tier(TierSpec::new(store).batch_entries(1)).build().unwrap();
    for key in 0..4 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    for key in 10..14 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    fs::remove_dir_all(root.path()).unwrap();
    for key in 10..14 {
        match buffer.spill(&key).await {
            Err(Error::Full { source: Some(source), .. }) => {
                assert!(source.to_string().contains(&directory.display().to_string()), "{source}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(buffer.location(&key), Some(Location::Memory));
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
    }
    for key in 0..4 {
        let error = buffer.get(&key).await.unwrap_err();
        assert_eq!(store_kind(&error), Some(StoreErrorKind::NotFound), "{error}");
        assert!(buffer.contains_key(&key) && buffer.remove(&key).unwrap());
    }
    within(60, buffer.close()).await.unwrap();
    assert!(buffer.usage().is_empty(), "{:#?}", buffer.usage());
    assert!(!root.path().exists());
}

/// A small file system in memory, as long as this lives.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(mebibytes: u32) -> Option<Self> {
        let here = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"]).arg(here.path());
        let output = mount.stderr(std::process::Stdio::null()).status();
        output.is_ok_and(|status| status.success()).then(|| Self(here))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let done = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(std::thread::panicking() || done.is_ok_and(|status| status.success()), "still mounted");
    }
}

/// opendal 3052: a tier that is smaller than the value.
#[tokio::test]
async fn case_22_a_value_larger_than_the_file_system_stays_in_memory() {
    const VALUE: usize = 5 << 20;
    let scripted = Scripted::new();
    let mounted = Tmpfs::mount(4);
    let (tier, directory) = match &mounted {
        Some(tmpfs) => {
            let store = files(tmpfs.0.path()).await;
            let directory = store.directory().to_owned();
            (TierSpec::new(store), Some(directory))
        }
        None => {
            eprintln!("no tmpfs can be mounted here: a store with a quota stands for it");
            scripted.faults.set_quota(Some(4 << 20));
            (scripted.tier(), None)
        }
    };
    let buffer = exact(16 << 20).tier(tier.batch_entries(1)).build().unwrap();
    put_away(&buffer, 0, noise(0, 100)).await;
    buffer.insert(1, noise(1, VALUE)).await.unwrap();
    match buffer.spill(&1).await {
        Err(Error::Full { source: Some(source), .. }) => {
            assert_eq!(source.kind(), StoreErrorKind::NoSpace, "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(buffer.location(&1), Some(Location::Memory));
    assert!(get(&buffer, 1).await.unwrap() == noise(1, VALUE));
    swept(&buffer).await;
    assert_eq!(buffer.usage().total().blobs, 1);
    if let Some(directory) = &directory {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.retain(|name| name != "lock");
        assert_eq!(names, ["0000000000000000.blob"], "no leftovers");
    }
    // What fits goes out still.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    put_away(&buffer, 2, noise(2, 1 << 20)).await;
    assert!(get(&buffer, 2).await.unwrap() == noise(2, 1 << 20));
    finish(buffer).await;
    if let Some(tmpfs) = &mounted {
        assert_eq!(fs::read_dir(tmpfs.0.path()).unwrap().count(), 0);
    }
}

/// minio 5376: many put and delete in one directory at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn case_27_sixteen_put_and_delete_loops_in_one_directory() {
    const ROUNDS: u64 = 200;
    let root = tempfile::tempdir().unwrap();
    let mut loops = Vec::new();
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(std::sync::Arc::new(files(root.path()).await));
    }
    for number in 0..16u64 {
        let store = stores[number as usize % 4].clone();
        let path = root.path().to_owned();
        loops.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let id = BlobId::new(number * ROUNDS + round);
                let bytes = noise(id.get(), 1 + (round * 37 % 5000) as usize);
                store.put(id, bytes.clone().into()).await.unwrap();
                assert_eq!(store.get(id, 0..bytes.len() as u64).await.unwrap(), bytes);
                store.delete(&[id]).await.unwrap();
                store.delete(&[id]).await.unwrap();
                let gone = store.get(id, 0..1).await.unwrap_err();
                assert_eq!(gone.kind(), StoreErrorKind::NotFound);
                // Sessions come and go beside it, and sweep what is dead.
                if round % 50 == number {
                    let options = FsOptions::new(&path).allow_tmpfs(true);
                    FsStore::open(options).await.unwrap().close().await.unwrap();
                }
            }
        }));
    }
    for one in loops {
        within(120, one).await.unwrap();
    }
    for store in stores {
        assert_eq!(store.list(None, 10).await.unwrap(), []);
        store.close().await.unwrap();
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}
