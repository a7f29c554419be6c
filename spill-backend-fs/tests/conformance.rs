//! The conformance suite over the local-file store.

use std::{fs, path::Path, process::ExitCode, sync::Arc};

use spill_backend_fs::{FsOptions, FsStore};
use spill_conformance::{Arguments, StoreHarness, run_store_suite};
use spill_core::{BoxError, Store};

fn main() -> ExitCode {
    let Ok(root) = tempfile::tempdir() else { return ExitCode::FAILURE };
    let place = |root: &Path| {
        let root = root.to_owned();
        move |namespace: String| root.join(namespace)
    };
    let (open_at, look_at, plant_at) = (place(root.path()), place(root.path()), place(root.path()));
    let harness = StoreHarness::new(move |namespace| {
        let options = FsOptions::new(open_at(namespace)).allow_tmpfs(true);
        async move { Ok(Arc::new(FsStore::open(options).await?) as Arc<dyn Store>) }
    })
    .with_leftovers(move |namespace| {
        let place = look_at(namespace);
        async move { entries(&place, "") }
    })
    .with_foreign(move |namespace| {
        let place = plant_at(namespace);
        async move { plant(&place) }
    });
    run_store_suite(&Arguments::from_args(), harness).exit_code()
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
