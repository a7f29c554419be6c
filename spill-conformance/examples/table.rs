//! Makes the page about conformance from a directory of results.
//!
//! `cargo run -p spill-conformance --example table -- DIRECTORY docs/conformance.md`

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [directory, page] = arguments.as_slice() else {
        return Err("give the directory of results, and the file to write the page to".into());
    };
    let text = spill_conformance::results_table(Path::new(directory))?;
    fs::write(page, text).map_err(|error| format!("{}: {error}", Path::new(page).display()))?;
    Ok(())
}
