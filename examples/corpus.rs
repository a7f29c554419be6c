//! The main job: holds every file of a directory as an entry of a buffer whose memory limit is far smaller
//! than the data, reads everything back in random order, removes, overwrites, reads again, and checks every
//! byte by its hash. `cargo run --release --example corpus -- --help` says more.
//!
//! What the command line asks for is in `arguments`, the files in `files`, the phases in `run`, the numbers
//! in `report`, the memory of the process in `process`.

#[path = "corpus/arguments.rs"]
mod arguments;
#[path = "corpus/files.rs"]
mod files;
#[path = "corpus/process.rs"]
mod process;
#[path = "corpus/report.rs"]
mod report;
#[path = "corpus/run.rs"]
mod run;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use spill_buffer::{
    ByteLength, BytesCodec, Config, Event, blocking,
    config::{Amount, Compression, TierConfig},
};
use tokio::runtime::Runtime;
use url::Url;

use arguments::{Arguments, Command, HELP};
use files::{Files, Key};
use report::Report;
use run::Run;

/// What ends a run early, in words for people.
type Fault = Box<dyn std::error::Error>;

const SPILL_DIR: &str = "/var/tmp/spill-corpus";
const MEMORY: Amount = Amount::Bytes(64 << 20);

fn main() -> ExitCode {
    process::with_one_arena();
    let arguments = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Command::Run(arguments)) => arguments,
        Ok(Command::Help) => {
            print(HELP);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            tell(&format!("corpus: {error}\nTry --help."));
            return ExitCode::from(2);
        }
    };
    match corpus(&arguments) {
        Ok(report) if report.is_good() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            tell(&format!("corpus: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn corpus(arguments: &Arguments) -> Result<Report, Fault> {
    let directory = arguments.directory.clone().map_or_else(files::registry_sources, Ok)?;
    let config = config(arguments)?;
    let files = Files::find(directory)?;
    let report = Report {
        directory: files.root().display().to_string(),
        files: files.len() as u64,
        repeat: arguments.repeat.unwrap_or(1),
        compress: config.tiers.iter().map(|tier| tier.compress.to_string()).collect::<Vec<_>>().join(", "),
        memory_limit: config.memory.budget(spill_buffer::total_memory())?.limit,
        ..Report::default()
    };
    let runtime = Runtime::new()?;
    let before = sessions(&config);
    let spilled = Arc::new(AtomicU64::new(0));
    let buffer = open(&config, &runtime, spilled.clone())?;
    let ours: Vec<_> = sessions(&config).difference(&before).cloned().collect();
    let mut report = Run::new(&buffer, runtime.handle(), &files, spilled, report).run()?;
    let left = ours.iter().filter(|session| session.exists());
    report.left_behind = left.map(|session| format!("{} is still there", session.display())).collect();
    print(&report.to_string());
    if arguments.json {
        print(&format!("{}\n", serde_json::to_string(&report)?));
    }
    Ok(report)
}

/// The settings: those of the file, or one tier of local files; then the environment; then the arguments.
fn config(arguments: &Arguments) -> Result<Config, Fault> {
    let mut config = match &arguments.config {
        Some(path) => Config::from_file(path)?,
        None => local(arguments.spill_dir.as_deref().unwrap_or(Path::new(SPILL_DIR)))?,
    };
    config = config.with_process_env()?;
    if let Some(limit) = arguments.memory {
        config.memory.limit = Some(limit);
    }
    if let Some(compress) = &arguments.compress {
        config.tiers.iter_mut().for_each(|tier| tier.compress = compress.clone());
    }
    Ok(config)
}

fn local(directory: &Path) -> Result<Config, Fault> {
    let path = std::path::absolute(directory)?;
    let url = Url::from_file_path(&path).map_err(|()| format!("--dir {}: not a path", path.display()))?;
    let mut tier = TierConfig::new(url.as_str().parse()?);
    tier.compress = Compression::Named { name: "lz4".into(), argument: None };
    let mut config = Config::default();
    config.memory.limit = Some(MEMORY);
    config.tiers.push(tier);
    Ok(config)
}

fn open(
    config: &Config,
    runtime: &Runtime,
    spilled: Arc<AtomicU64>,
) -> Result<blocking::SpillBuffer<Key, Bytes>, Fault> {
    let builder = runtime.block_on(spill_buffer::open::<Key, Bytes>(config))?;
    let observer = move |event: &Event| {
        if let Event::Spilled { weight, .. } = event {
            spilled.fetch_add(*weight, Relaxed);
        }
    };
    let builder = builder.codec(BytesCodec).weigher(ByteLength).observer(observer);
    let buffer = builder.runtime(runtime.handle().clone()).build()?;
    Ok(blocking::SpillBuffer::on(buffer, runtime.handle().clone()))
}

/// The session directories below those that the tiers name.
fn sessions(config: &Config) -> BTreeSet<PathBuf> {
    let roots = config.tiers.iter().filter_map(|tier| tier.store.as_url().to_file_path().ok());
    let entries = roots.filter_map(|root| std::fs::read_dir(root).ok()).flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect()
}

#[expect(clippy::print_stdout, reason = "the table and the JSON are what the program is for")]
fn print(text: &str) {
    print!("{text}");
}

#[expect(clippy::print_stderr, reason = "a program tells people how it is getting on")]
fn tell(line: &str) {
    eprintln!("{line}");
}
