//! Everything in memory: what a read, an overwrite, and a key that comes for one that leaves cost.

use std::{
    hint::black_box,
    path::Path,
    process::Command,
    sync::Barrier,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{Scenario, runtime};
use crate::{
    data,
    systems::memory::{Foyer, Key, MemoryCache, Moka, PlainMap, QuickCache, Spill, Value},
    trial::{Figures, Trial},
};

pub(crate) struct Hot;

const SYSTEMS: [&str; 9] = [
    "spill",
    "quick_cache",
    "moka",
    "foyer fifo",
    "foyer lru",
    "foyer s3-fifo",
    "foyer sieve",
    "foyer lfu",
    "dashmap",
];

/// Those whose work is counted, which takes long: of foyer the one that reads with the least.
const COUNTED_SYSTEMS: [&str; 5] = ["spill", "quick_cache", "moka", "foyer s3-fifo", "dashmap"];

/// So many between two looks at the clock.
const CHUNK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Peek,
    Get,
    /// Of a key that is there.
    Insert,
    /// Of a key that is not there, for which another leaves.
    Churn,
}

const OPERATIONS: [(&str, Operation); 4] = [
    ("peek", Operation::Peek),
    ("get", Operation::Get),
    ("insert", Operation::Insert),
    ("churn", Operation::Churn),
];

/// How long it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Time(Duration),
    /// So many by one thread. What they cost is counted from outside.
    Count(usize),
}

/// A case, of its name: `peek, u64, 2 threads`, or `peek, u64, counted`; and inside that `peek, u64, 1000 operations`.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    operation: Operation,
    key: &'a str,
    how: &'a str,
}

impl<'a> Case<'a> {
    fn parse(name: &'a str) -> Result<Self> {
        let mut parts = name.split(", ");
        let mut part = || parts.next().with_context(|| format!("no case {name:?}"));
        let operation = part()?;
        let operation = OPERATIONS.iter().find(|(known, _)| *known == operation);
        Ok(Self { operation: operation.context("no such operation")?.1, key: part()?, how: part()? })
    }
}

/// The sizes of one trial.
#[derive(Clone, Copy, Debug)]
struct Plan {
    operation: Operation,
    /// Keys that are there when it begins.
    keys: usize,
    threads: usize,
    until: Until,
    /// The length of the list of keys that each thread goes through, round and round.
    samples: usize,
}

impl Plan {
    fn new(case: Case<'_>, quick: bool) -> Result<Self> {
        let Case { operation, how, .. } = case;
        let (count, unit) = how.split_once(' ').context("a number is missing")?;
        let count = count.parse()?;
        Ok(match unit {
            "operations" => {
                Self { operation, keys: 10_000, threads: 1, until: Until::Count(count), samples: 1 << 17 }
            }
            "thread" | "threads" if quick => {
                let until = Until::Time(Duration::from_millis(100));
                Self { operation, keys: 100_000, threads: count, until, samples: 1 << 19 }
            }
            "thread" | "threads" => {
                let until = Until::Time(Duration::from_secs(1));
                Self { operation, keys: 1_000_000, threads: count, until, samples: 1 << 21 }
            }
            _ => bail!("no such case: {how}"),
        })
    }

    /// Caches divide their room among shards, which fill unevenly: with twice the room they lose nothing. But where
    /// a key is to leave for each that comes, they have room for just as many as there are.
    fn room(&self) -> usize {
        if self.operation == Operation::Churn { self.keys } else { self.keys * 2 }
    }

    /// The keys that one thread asks for, in order.
    ///
    /// Where keys come and go that is every key it owns, those first that are there from the beginning.
    fn numbers(&self, thread: usize) -> Result<Vec<u64>> {
        if self.operation != Operation::Churn {
            return data::zipf(self.keys as u64, 0.99, self.samples, thread as u64);
        }
        let all = self.keys / self.threads + self.samples;
        Ok((0..all).map(|index| (index * self.threads + thread) as u64).collect())
    }
}

impl Scenario for Hot {
    fn name(&self) -> &'static str {
        "hot"
    }

    fn about(&self) -> &'static str {
        "10^6 values of 64 bytes, all in memory, asked for by zipf 0.99. `peek` reads and leaves no trace where a \
         system can do that; `get` is what users call, for Spill an awaited future; `insert` puts another value under \
         a key that is there; `churn` inserts a key that is not there and makes another leave: caches have room \
         for just 10^6, Spill and the plain map are told to remove the oldest. Keys and values that are inserted are \
         made beforehand. `counted` is the work of one call with \
         10^4 keys, by valgrind, if there is one. All systems hash with foldhash. The plain map is no competitor, but a floor."
    }

    fn cases(&self, quick: bool) -> Vec<String> {
        let keys = ["u64", "String"];
        // Under valgrind only starting takes many seconds.
        let counted_keys = if quick { &keys[..1] } else { &keys };
        let timed = OPERATIONS.iter().flat_map(|(operation, _)| {
            keys.iter().flat_map(move |key| {
                ["1 thread", "2 threads"].iter().map(move |threads| format!("{operation}, {key}, {threads}"))
            })
        });
        let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
        let counted = if quick { &["get"][..] } else { &["peek", "get"] };
        let counted = counted.iter().filter(move |_| has_valgrind);
        timed
            .chain(counted.flat_map(|operation| {
                counted_keys.iter().map(move |key| format!("{operation}, {key}, counted"))
            }))
            .collect()
    }

    fn systems(&self, case: &str) -> Vec<&'static str> {
        if self.is_exact(case) { COUNTED_SYSTEMS.to_vec() } else { SYSTEMS.to_vec() }
    }

    fn main_figure(&self) -> &'static str {
        "M ops/s"
    }

    fn next_figures(&self) -> &'static [&'static str] {
        &["ns/op", "instructions/op"]
    }

    fn is_exact(&self, case: &str) -> bool {
        case.ends_with("counted")
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let case = Case::parse(&trial.case)?;
        if case.how == "counted" {
            return counted(trial, dir);
        }
        let plan = Plan::new(case, trial.quick)?;
        match case.key {
            "u64" => with_keys::<u64>(&trial.system, plan),
            "String" => with_keys::<String>(&trial.system, plan),
            key => bail!("no keys of kind {key}"),
        }
    }
}

fn with_keys<K: Key>(system: &str, plan: Plan) -> Result<Figures> {
    match system {
        "spill" => measure::<K, Spill<K>>(system, plan),
        "quick_cache" => measure::<K, QuickCache<K>>(system, plan),
        "moka" => measure::<K, Moka<K>>(system, plan),
        "dashmap" => measure::<K, PlainMap<K>>(system, plan),
        system if system.starts_with("foyer ") => measure::<K, Foyer<K>>(system, plan),
        _ => bail!("there is no system {system:?}"),
    }
}

fn measure<K: Key, C: MemoryCache<K>>(system: &str, plan: Plan) -> Result<Figures> {
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let cache = C::open(system, plan.room())?;
    runtime.block_on(fill::<K, C>(&cache, plan.keys))?;
    let start = Barrier::new(plan.threads);
    let rates = std::thread::scope(|scope| {
        let work = |thread| {
            let (cache, start, handle) = (&cache, &start, runtime.handle());
            move || {
                let lane = Lane { cache, list: K::list(plan.numbers(thread)?.into_iter()), plan };
                start.wait();
                handle.block_on(lane.run())
            }
        };
        let threads: Vec<_> = (0..plan.threads).map(|thread| scope.spawn(work(thread))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<f64>>| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        threads.into_iter().map(join).collect::<Result<Vec<f64>>>()
    })?;
    let all: f64 = rates.iter().sum();
    let each = plan.threads as f64 / all;
    Ok(Figures::from([("M ops/s".into(), all / 1e6), ("ns/op".into(), each * 1e9)]))
}

async fn fill<K: Key, C: MemoryCache<K>>(cache: &C, keys: usize) -> Result<()> {
    let list = K::list(0..keys as u64);
    for index in 0..keys {
        cache.insert(K::owned(K::at(&list, index)), value(index)).await?;
    }
    cache.settle();
    Ok(())
}

fn value(number: usize) -> Value {
    let mut value = [0x5b; 64];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// What one thread does.
struct Lane<'a, K: Key, C> {
    cache: &'a C,
    list: K::List,
    plan: Plan,
}

impl<K: Key, C: MemoryCache<K>> Lane<'_, K, C> {
    /// Operations in a second.
    async fn run(&self) -> Result<f64> {
        match self.plan.until {
            Until::Count(count) => self.timed(0, Duration::MAX, count).await.map(|(_, rate)| rate),
            Until::Time(time) => {
                // The first tenth sets threads' counters up and fills caches of the processor; it does not count.
                let (done, _) = self.timed(0, time / 10, self.plan.samples / 10).await?;
                self.timed(done, time, usize::MAX).await.map(|(_, rate)| rate)
            }
        }
    }

    /// How many operations were done, from this one on, and how many a second.
    async fn timed(&self, first: usize, time: Duration, most: usize) -> Result<(usize, f64)> {
        let samples = self.plan.samples;
        // Keys that came and went must not come again soon: a cache may remember them.
        let last = if self.plan.operation == Operation::Churn { samples } else { usize::MAX };
        let last = last.min(first.saturating_add(most));
        let mut spent = Duration::ZERO;
        let mut at = first;
        while at < last && spent < time {
            let end = last.min(at + CHUNK).min(at + samples - at % samples);
            let indexes = at % samples..at % samples + (end - at);
            let new = self.new_entries(indexes.clone());
            let began = Instant::now();
            match self.plan.operation {
                Operation::Peek => self.peek(indexes)?,
                Operation::Get => self.get(indexes).await?,
                Operation::Insert => self.insert(new).await?,
                Operation::Churn => self.churn(indexes, new).await?,
            }
            spent += began.elapsed();
            at = end;
        }
        Ok((at, (at - first) as f64 / spent.as_secs_f64()))
    }

    /// What a chunk of inserts hands over, made before its time is taken.
    fn new_entries(&self, indexes: std::ops::Range<usize>) -> Vec<(K, Value)> {
        let behind = match self.plan.operation {
            Operation::Peek | Operation::Get => return Vec::new(),
            Operation::Insert => 0,
            Operation::Churn => self.plan.keys / self.plan.threads,
        };
        indexes.map(|index| (K::owned(K::at(&self.list, index + behind)), value(index))).collect()
    }

    fn peek(&self, indexes: std::ops::Range<usize>) -> Result<()> {
        let mut lost = 0;
        for index in indexes {
            let held = black_box(self.cache.peek(K::at(&self.list, index)));
            lost += usize::from(held.is_none());
        }
        ensure!(lost == 0, "{lost} keys are gone");
        Ok(())
    }

    async fn get(&self, indexes: std::ops::Range<usize>) -> Result<()> {
        let mut lost = 0;
        for index in indexes {
            let held = black_box(self.cache.get(K::at(&self.list, index)).await?);
            lost += usize::from(held.is_none());
        }
        ensure!(lost == 0, "{lost} keys are gone");
        Ok(())
    }

    async fn insert(&self, new: Vec<(K, Value)>) -> Result<()> {
        for (key, value) in new {
            self.cache.insert(key, value).await?;
        }
        Ok(())
    }

    async fn churn(&self, indexes: std::ops::Range<usize>, new: Vec<(K, Value)>) -> Result<()> {
        for (index, (key, value)) in indexes.zip(new) {
            self.cache.insert(key, value).await?;
            self.cache.remove_oldest(K::at(&self.list, index))?;
        }
        Ok(())
    }
}

/// Operations of the shorter and the longer of two runs, the difference between which counts: what starting and
/// filling costs is in both.
const COUNTED: (u32, u32) = (20_000, 120_000);

/// What one operation costs in instructions and allocations, as valgrind counts them.
fn counted(trial: &Trial, dir: &Path) -> Result<Figures> {
    let name = trial.case.strip_suffix("counted").context("not a case that counts")?;
    let both = |tool: &str, line: &str| -> Result<f64> {
        let run = |operations| {
            let case = format!("{name}{operations} operations");
            under_valgrind(tool, line, &Trial { case, dir: dir.into(), ..trial.clone() })
        };
        // The runtime's threads allocate one more or less: never less than nothing for each.
        Ok(((run(COUNTED.1)? - run(COUNTED.0)?) / f64::from(COUNTED.1 - COUNTED.0)).max(0.0))
    };
    Ok(Figures::from([
        ("instructions/op".into(), both("callgrind", "Collected : ")?),
        ("allocations/op".into(), both("memcheck", "total heap usage: ")?),
    ]))
}

/// The number behind these words in what a tool of valgrind says about a trial.
fn under_valgrind(tool: &str, words: &str, trial: &Trial) -> Result<f64> {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}"));
    // Nothing but its total is asked of either.
    match tool {
        "callgrind" => command.arg("--callgrind-out-file=/dev/null"),
        _ => command.args(["--leak-check=no", "--undef-value-errors=no"]),
    };
    let output = command
        .arg(std::env::current_exe()?)
        .args(["--trial", &serde_json::to_string(trial)?])
        .output()
        .context("can't start valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "under valgrind: {text}");
    let number = text.lines().find_map(|line| line.split_once(words)?.1.split_whitespace().next());
    let number = number.with_context(|| format!("{tool} says nothing of {words:?}"))?;
    Ok(number.replace(',', "").parse()?)
}
