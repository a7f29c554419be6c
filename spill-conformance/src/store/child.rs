//! Another process: this test binary, started again, that does what a case asks of it.
//!
//! Both sides are here. The case starts a [`Child`] with a [`Role`] and talks to it in lines: the child's
//! begin with a mark, as other things may print too. A child ends when its input does, so that none outlives
//! its test, and in any case after a while.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    process::{self, Command, Stdio},
    str::FromStr,
    sync::Arc,
    thread,
    time::Duration,
};

use futures_util::future::try_join_all;
use spill_core::Store;
use tokio::sync::mpsc;

use super::{
    StoreHarness,
    place::{Place, expect, expect_all, expect_missing, id, ids, put, put_all},
};
use crate::{
    random::Random,
    runner::{Stop, Verdict, ensure, ensure_eq},
};

/// Holds the order of a child: role, namespace and seed.
const ORDER_VARIABLE: &str = "SPILL_CONFORMANCE_ORDER";
const MARK: &str = "spill-conformance: ";
/// Lines that nobody has read yet.
const MOST_LINES: usize = 64;
/// Blobs that a child holds, with ids from zero on.
pub(super) const HELD: u64 = 20;
/// Blobs that a child that puts without end keeps, of each of its writers.
const KEPT: u64 = 4;
const WRITERS: u64 = 3;

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Puts blobs, says `ready`, checks them when told `check`, and closes when told `close`.
    Hold,
    /// Puts blobs without end, and says `put` after each.
    PutWithoutEnd,
    /// Opens, puts and closes without end, and says `closed` after each.
    OpenAndCloseWithoutEnd,
    /// Says `ready`, hammers its session when told `go`, checks it, and closes.
    Hammer,
}

impl Role {
    const ALL: [(&'static str, Self); 4] = [
        ("hold", Self::Hold),
        ("put-without-end", Self::PutWithoutEnd),
        ("open-and-close-without-end", Self::OpenAndCloseWithoutEnd),
        ("hammer", Self::Hammer),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, role)| *role == self).map_or("", |(name, _)| name)
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, role)| *role).ok_or(())
    }
}

/// The length of a blob that a child holds.
fn held_len(number: u64, seed: u64) -> usize {
    Random::new(seed * 1000 + number).below(20_000)
}

/// What a child was started for.
#[derive(Debug)]
pub(super) struct Order {
    role: Role,
    namespace: String,
    seed: u64,
}

impl Order {
    /// The order this process was started with, if it is a child.
    pub(super) fn from_environment() -> Option<Self> {
        let text = env::var(ORDER_VARIABLE).ok()?;
        let mut fields = text.split(' ');
        let (role, namespace, seed) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { role: role.parse().ok()?, namespace: namespace.to_owned(), seed: seed.parse().ok()? })
    }

    /// Does it, and ends the process.
    pub(super) fn obey(self, harness: &StoreHarness) -> ! {
        let limit = harness.time_limit;
        // Should the thread not start, the end of the input still ends the process.
        let _ = thread::Builder::new().name("time limit".into()).spawn(move || {
            thread::sleep(limit);
            process::exit(3);
        });
        let verdict = self.run(harness);
        match &verdict {
            Ok(()) => say("fine"),
            Err(Stop::Failed(message) | Stop::NotApplicable(message) | Stop::Waived(message)) => {
                say(&format!("wrong {message}"));
            }
        }
        process::exit(i32::from(verdict.is_err()))
    }

    fn run(&self, harness: &StoreHarness) -> Verdict {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        let mut orders = orders()?;
        runtime.block_on(async {
            let opening = || async { Ok::<_, Stop>((harness.open)(self.namespace.clone()).await?) };
            match self.role {
                Role::Hold => hold(opening().await?, self.seed, &mut orders).await,
                Role::PutWithoutEnd => put_without_end(opening().await?, self.seed).await,
                Role::Hammer => {
                    let store = opening().await?;
                    say("ready");
                    let _ = orders.recv().await;
                    hammer(&store, self.seed).await?;
                    Ok(store.close().await?)
                }
                Role::OpenAndCloseWithoutEnd => loop {
                    let store = opening().await?;
                    put_all(&*store, &[(id(1), 5000), (id(2), 10)]).await?;
                    expect(&*store, id(1), 5000).await?;
                    store.delete(&[id(1)]).await?;
                    store.close().await?;
                    say("closed");
                },
            }
        })
    }
}

/// The lines of the input. When it ends, so does this process: its test is over.
fn orders() -> Result<mpsc::Receiver<String>, Stop> {
    let (send, orders) = mpsc::channel(MOST_LINES);
    let reader = thread::Builder::new().name("orders".into()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
        process::exit(2);
    });
    reader.map_err(|error| format!("no thread to read orders on: {error}"))?;
    Ok(orders)
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // When nobody listens, nobody waits for it either.
    let _ = writeln!(out, "{MARK}{}", line.replace('\n', " ")).and_then(|()| out.flush());
}

async fn hold(store: Arc<dyn Store>, seed: u64, orders: &mut mpsc::Receiver<String>) -> Verdict {
    let blobs: Vec<_> = (0..HELD).map(|number| (id(number), held_len(number, seed))).collect();
    put_all(&*store, &blobs).await?;
    say("ready");
    while let Some(order) = orders.recv().await {
        if order == "close" {
            break;
        }
        expect_all(&*store, &blobs).await?;
        ensure_eq!(ids(&*store).await?.len(), blobs.len(), "blobs listed by the process that put them");
        put(&*store, id(1000), 3000).await?;
        expect(&*store, id(1000), 3000).await?;
        store.delete(&[id(1000)]).await?;
        say("checked");
    }
    Ok(store.close().await?)
}

async fn put_without_end(store: Arc<dyn Store>, seed: u64) -> Verdict {
    let writers = (0..WRITERS).map(|writer| {
        let store = Arc::clone(&store);
        async move {
            let mut random = Random::new(seed * 100 + writer);
            for number in 0.. {
                let first = (writer + 1) << 32;
                let len = 1 + random.below(300_000);
                put(&*store, id(first + number), len).await?;
                say("put");
                if number >= KEPT {
                    store.delete(&[id(first + number - KEPT)]).await?;
                }
            }
            Ok::<(), Stop>(())
        }
    });
    try_join_all(writers).await.map(drop)
}

/// Works on a session with several tasks, and checks at the end that exactly what should be there is.
pub(super) async fn hammer(store: &Arc<dyn Store>, seed: u64) -> Verdict {
    const TASKS: u64 = 4;
    const ROUNDS: u64 = 60;
    let len = move |number: u64| Random::new(seed * 7 + number).below(6000);
    let tasks = (0..TASKS).map(|task| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            for number in task * ROUNDS..(task + 1) * ROUNDS {
                put(&*store, id(number), len(number)).await?;
                expect(&*store, id(number), len(number)).await?;
                if number % 3 == 0 {
                    store.delete(&[id(number)]).await?;
                    expect_missing(&*store, id(number)).await?;
                }
            }
            Ok::<(), Stop>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.map_err(|error| format!("a task ended early: {error}"))??;
    }
    let left: Vec<_> = (0..TASKS * ROUNDS)
        .filter(|number| number % 3 != 0)
        .map(|number| (id(number), len(number)))
        .collect();
    let wanted: Vec<_> = left.iter().map(|(id, _)| *id).collect();
    ensure_eq!(ids(&**store).await?, wanted, "listing of a session that was hammered beside another process");
    expect_all(&**store, &left).await
}

/// Another process at work. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: Option<process::Child>,
    lines: mpsc::Receiver<String>,
    patience: Duration,
}

impl Child {
    /// Starts this binary again, to work in the namespace of a case.
    pub(super) async fn start(place: &Place, role: Role, seed: u64) -> Result<Self, Stop> {
        let order = format!("{} {} {seed}", role.name(), place.namespace());
        let variables = place.child_variables();
        let started = tokio::task::spawn_blocking(move || -> io::Result<_> {
            let mut process = Command::new(env::current_exe()?)
                .envs(variables)
                .env(ORDER_VARIABLE, order)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()?;
            let (send, lines) = mpsc::channel(MOST_LINES);
            if let Some(out) = process.stdout.take() {
                thread::Builder::new().name("lines".into()).spawn(move || {
                    let lines = BufReader::new(out).lines().map_while(Result::ok);
                    for line in lines.filter_map(|line| Some(line.strip_prefix(MARK)?.to_owned())) {
                        if send.blocking_send(line).is_err() {
                            return;
                        }
                    }
                })?;
            }
            Ok((process, lines))
        });
        let started = started.await.map_err(|error| error.to_string())?;
        let (process, lines) = started.map_err(|error| format!("can't start this binary again: {error}"))?;
        Ok(Self { process: Some(process), lines, patience: place.time_limit() })
    }

    /// Waits until it says this.
    pub(super) async fn expect(&mut self, word: &str) -> Verdict {
        let line = tokio::time::timeout(self.patience, self.lines.recv()).await;
        match line.map_err(|_| format!("the other process does not say {word}"))? {
            Some(line) if line == word => Ok(()),
            Some(line) => Err(format!("in the other process: {line}").into()),
            None => Err(format!("the other process ended and did not say {word}").into()),
        }
    }

    /// Tells it something.
    pub(super) fn tell(&mut self, order: &str) -> Verdict {
        let input = self.process.as_mut().and_then(|process| process.stdin.as_mut());
        let input = input.ok_or("the other process has no input")?;
        // A few bytes never fill the pipe, so this does not block.
        let told = writeln!(input, "{order}");
        told.map_err(|error| format!("the other process does not listen: {error}").into())
    }

    /// Tells it something, and waits until it is done.
    pub(super) async fn ask(&mut self, order: &str, answer: &str) -> Verdict {
        self.tell(order)?;
        self.expect(answer).await
    }

    /// Kills it as by `kill -9`, and waits until it is gone.
    pub(super) async fn kill(mut self) -> Verdict {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let killed = tokio::task::spawn_blocking(move || {
            let killed = process.kill();
            process.wait().and(killed)
        });
        let killed = killed.await.map_err(|error| error.to_string())?;
        killed.map_err(|error| format!("can't kill the other process: {error}").into())
    }

    /// Waits until it has ended by itself, without an error.
    pub(super) async fn end(mut self) -> Verdict {
        self.expect("fine").await?;
        let Some(mut process) = self.process.take() else { return Ok(()) };
        // Waiting closes the input, which would end it before its time.
        let input = process.stdin.take();
        let ended = tokio::task::spawn_blocking(move || {
            let ended = process.wait();
            drop(input);
            ended
        });
        let status = ended.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        ensure!(status.success(), "the other process ended with {status}");
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            // So that it does not stay as a zombie; should no thread start, it does until this process ends.
            let _ = thread::Builder::new().spawn(move || process.wait());
        }
    }
}
