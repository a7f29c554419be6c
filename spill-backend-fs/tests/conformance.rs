//! The conformance suite over the local-file store.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
};

use spill_backend_fs::{FsOptions, FsStore};
use spill_conformance::{Arguments, StoreHarness, Trouble, run_store_suite};
use spill_core::{BoxError, Store};

#[path = "support/troubled.rs"]
mod troubled;

use troubled::Troubled;

/// Where a namespace is, in this process and in those it starts.
fn place(namespace: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("fs-conformance").join(namespace)
}

fn options(namespace: &str) -> FsOptions {
    FsOptions::new(place(namespace)).allow_tmpfs(true)
}

fn main() -> ExitCode {
    let harness = StoreHarness::new(|namespace| async move {
        Ok(Arc::new(FsStore::open(options(&namespace)).await?) as Arc<dyn Store>)
    })
    .named("fs")
    .with_leftovers(|namespace| async move { entries(&place(&namespace), "") })
    .with_foreign(|namespace| async move { plant(&place(&namespace)) })
    .with_processes()
    .with_sweep(|namespace| async move {
        let swept = tokio::task::spawn_blocking(move || spill_backend_fs::sweep(&place(&namespace)));
        Ok(swept.await??.removed as u64)
    })
    .with_faults(Trouble::OF_FILES, |namespace, medium| async move {
        let options = options(&namespace).durable(true);
        Ok(Arc::new(FsStore::open_with(options, Arc::new(Troubled(medium))).await?) as Arc<dyn Store>)
    })
    .waive("faults/get_has_a_flipped_bit", "bytes are verified by the frames above the store, not by it");
    let conclusion = run_store_suite(&Arguments::from_args(), harness);
    clear();
    conclusion.exit_code()
}

/// Removes the directories of this run; those of others may be in use.
fn clear() {
    let own = format!("-{}-", process::id());
    let Ok(entries) = fs::read_dir(place("")) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().contains(&own)) {
        // What can't be removed is in the build directory, and goes with it.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Everything below a directory; directories end in a slash.
fn entries(directory: &Path, prefix: &str) -> Result<Vec<String>, BoxError> {
    let mut found = Vec::new();
    let listed = match fs::read_dir(directory) {
        Ok(listed) => listed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error.into()),
    };
    for entry in listed {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            let below = format!("{name}/");
            found.extend(entries(&entry.path(), &below)?);
            found.push(below);
        } else {
            found.push(name);
        }
    }
    Ok(found)
}

/// Foreign things beside the blobs, and beside the session.
fn plant(place: &Path) -> Result<(), BoxError> {
    let sessions = fs::read_dir(place)?.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    for directory in sessions.map(|entry| entry.path()).chain([place.to_owned()]) {
        for name in [
            "0",
            "00000000000000FF.blob",
            "notes.txt",
            "000000000000000a",
            "000000000000000b.blob.bak",
            ".hidden",
        ] {
            fs::write(directory.join(name), b"not a blob")?;
        }
        fs::create_dir_all(directory.join("000000000000000c.blob"))?;
    }
    Ok(())
}
