//! What the command line asks for. Parsed by hand: seven options need no library.

use std::{ffi::OsString, fmt::Display, path::PathBuf, str::FromStr};

use spill_buffer::config::{Amount, Compression};

pub(crate) const HELP: &str = "\
Holds every file of a directory in a buffer far smaller than the data, and checks every byte that comes back.

Usage: cargo run --release --example corpus -- [DIR] [OPTIONS]

  DIR                 the files to hold [the sources in cargo's registry]

Options:
  --memory SIZE       memory limit of the buffer: bytes, a size, or a share of the machine's memory [64MiB]
  --repeat N          hold every file N times, a few bytes changed each time [1]
  --compress NAME     none, auto, lz4, snappy, zstd or zstd:LEVEL [lz4]
  --dir SPILL_DIR     where to spill to; on a disk, not in memory [/var/tmp/spill-corpus]
  --config FILE       take the settings from a TOML file; --memory and --compress win over it
  --json              the numbers as one JSON object on the last line
  --help              this text

Variables like SPILL_MEMORY_POLICY override settings too: see docs/config.md. The process runs with
MALLOC_ARENA_MAX=1 unless that is set: with more, glibc keeps memory that the buffer has long given back.

Phases: insert all, read all in random order, remove half, overwrite a quarter of the rest, read all again,
remove all, close. Exit status: 0 when all is well; 1 when a value is lost or wrong, when the books do not
balance, or when the session directory is still there at the end; 2 for wrong arguments.

spill_mb_s     weight spilled while inserting, in 10^6 bytes per second of that phase, the time to read and
               hash the files included
restore_mb_s   weight read back from the tier in the first read, per second spent waiting for it
";

/// What to run.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Run(Arguments),
}

/// Options that were not given are `None`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) memory: Option<Amount>,
    pub(crate) repeat: Option<u32>,
    pub(crate) compress: Option<Compression>,
    pub(crate) spill_dir: Option<PathBuf>,
    pub(crate) config: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Reads the arguments, the program's name not among them. An error says what is wrong and what would be
/// right.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parsed = Arguments::default();
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        if !text.starts_with('-') {
            once(&mut parsed.directory, "DIR", argument.into())?;
            continue;
        }
        let (name, attached) = match text.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text.as_str(), None),
        };
        let mut value = || attached.clone().or_else(|| rest.next()).ok_or(format!("{name} needs a value"));
        match name {
            "--help" | "-h" => return Ok(Command::Help),
            "--json" if attached.is_none() => parsed.json = true,
            "--json" => return Err("--json takes no value".into()),
            "--memory" => once(&mut parsed.memory, name, value_of(name, &value()?)?)?,
            "--repeat" => once(&mut parsed.repeat, name, repeat(&value()?)?)?,
            "--compress" => once(&mut parsed.compress, name, value_of(name, &value()?)?)?,
            "--dir" => once(&mut parsed.spill_dir, name, value()?.into())?,
            "--config" => once(&mut parsed.config, name, value()?.into())?,
            _ => return Err(format!("there is no option {name}")),
        }
    }
    match (&parsed.config, &parsed.spill_dir) {
        (Some(_), Some(_)) => Err("--dir goes with no --config: the file says where to spill to".into()),
        _ => Ok(Command::Run(parsed)),
    }
}

fn once<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name} was given twice")),
    }
}

fn value_of<T: FromStr<Err: Display>>(name: &str, value: &OsString) -> Result<T, String> {
    let text = value.to_string_lossy();
    text.parse().map_err(|error| format!("{name} {text}: {error}"))
}

fn repeat(value: &OsString) -> Result<u32, String> {
    match value.to_string_lossy().parse() {
        Ok(times @ 1..=1_000_000) => Ok(times),
        _ => Err(format!("--repeat {}: write a number from 1 to 1000000", value.to_string_lossy())),
    }
}
