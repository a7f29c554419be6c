//! Several processes in one place: at work, killed, and swept.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::cases;
use crate::{
    random::Random,
    runner::{Verdict, ensure, ensure_eq},
    store::{
        Case,
        child::{Child, HELD, Role, hammer},
        place::{Place, expect, expect_missing, id, ids, put, put_all},
    },
};

/// Kills in each case that kills: at as many points, told apart by a seed.
const KILLS: u64 = 5;

pub(super) const PROCESSES: &[Case] = cases!(Processes:
    another_process_is_another_session needs [Processes],
    two_processes_at_work_are_both_exact needs [Processes],
    opening_leaves_a_living_process_alone needs [Processes],
    nothing_is_seen_of_a_process_killed_while_it_puts needs [Processes],
    nothing_is_seen_of_a_process_killed_while_it_opens_or_closes needs [Processes],
    processes_that_close_leave_nothing needs [Processes, Leftovers],
    what_a_killed_process_left_is_swept needs [Processes, Sweep, Leftovers],
    what_one_killed_while_it_opens_or_closes_left_is_swept needs [Processes, Sweep, Leftovers],
    a_sweep_leaves_a_living_process_alone needs [Processes, Sweep],
    a_sweep_tells_the_killed_from_the_living needs [Processes, Sweep, Leftovers],
);

/// Checks that a new session works, and knows of nothing before it.
async fn a_new_session_is_new(place: &Place) -> Verdict {
    let store = place.open().await?;
    ensure_eq!(ids(&*store).await?, [], "listing of a session opened after a process was killed");
    for number in [0, 1, 1 << 32, (1 << 32) + 1] {
        expect_missing(&*store, id(number)).await?;
        put(&*store, id(number), 700).await?;
        expect(&*store, id(number), 700).await?;
    }
    place.close(store).await
}

/// Starts a process, and kills it in the middle of its work: after a seeded number of words and moments.
async fn start_and_kill(place: &Place, role: Role, word: &str, seed: u64) -> Verdict {
    let mut child = Child::start(place, role, seed).await?;
    for _ in 0..seed * 2 + 1 {
        child.expect(word).await?;
    }
    // Whatever moment this is, the outcome has to be the same.
    tokio::time::sleep(Duration::from_micros(Random::new(seed).next() % 3000)).await;
    child.kill().await
}

async fn another_process_is_another_session(place: &Place) -> Verdict {
    let store = place.open().await?;
    put_all(&*store, &(0..HELD).map(|number| (id(number), 100)).collect::<Vec<_>>()).await?;
    let mut child = Child::start(place, Role::Hold, 1).await?;
    child.expect("ready").await?;
    store.delete(&[id(3)]).await?;
    child.ask("check", "checked").await?;
    ensure_eq!(ids(&*store).await?.len() as u64, HELD - 1, "blobs listed beside another process");
    for number in (0..HELD).filter(|number| *number != 3) {
        expect(&*store, id(number), 100).await?;
    }
    child.tell("close")?;
    child.end().await?;
    expect(&*store, id(0), 100).await
}

async fn two_processes_at_work_are_both_exact(place: &Place) -> Verdict {
    let store = place.open().await?;
    let mut child = Child::start(place, Role::Hammer, 1).await?;
    child.expect("ready").await?;
    child.tell("go")?;
    hammer(&store, 2).await?;
    child.end().await
}

async fn opening_leaves_a_living_process_alone(place: &Place) -> Verdict {
    let mut child = Child::start(place, Role::Hold, 1).await?;
    child.expect("ready").await?;
    for _ in 0..5 {
        let store = place.open().await?;
        put(&*store, id(1), 50).await?;
        place.close(store).await?;
        child.ask("check", "checked").await?;
    }
    child.tell("close")?;
    child.end().await
}

async fn nothing_is_seen_of_a_process_killed_while_it_puts(place: &Place) -> Verdict {
    for seed in 0..KILLS {
        start_and_kill(place, Role::PutWithoutEnd, "put", seed).await?;
        a_new_session_is_new(place).await?;
    }
    Ok(())
}

async fn nothing_is_seen_of_a_process_killed_while_it_opens_or_closes(place: &Place) -> Verdict {
    for seed in 0..KILLS {
        start_and_kill(place, Role::OpenAndCloseWithoutEnd, "closed", seed).await?;
        a_new_session_is_new(place).await?;
    }
    Ok(())
}

async fn processes_that_close_leave_nothing(place: &Place) -> Verdict {
    let mut children = try_join_all((0..3).map(|seed| Child::start(place, Role::Hold, seed))).await?;
    // All of them live before the first one closes.
    for child in &mut children {
        child.expect("ready").await?;
    }
    for child in &mut children {
        child.tell("close")?;
    }
    try_join_all(children.into_iter().map(Child::end)).await?;
    ensure_eq!(place.leftovers().await?, Vec::<String>::new(), "left over after three processes closed");
    Ok(())
}

async fn what_a_killed_process_left_is_swept(place: &Place) -> Verdict {
    for seed in 0..KILLS {
        start_and_kill(place, Role::PutWithoutEnd, "put", seed).await?;
        let left = place.leftovers().await?;
        ensure!(!left.is_empty(), "nothing is there of a process that was killed while it put");
        ensure_eq!(place.sweep_all().await?, 1, "dead sessions swept");
        a_new_session_is_new(place).await?;
    }
    Ok(())
}

async fn what_one_killed_while_it_opens_or_closes_left_is_swept(place: &Place) -> Verdict {
    for seed in 0..KILLS {
        start_and_kill(place, Role::OpenAndCloseWithoutEnd, "closed", seed).await?;
        place.sweep_all().await?;
    }
    Ok(())
}

async fn a_sweep_leaves_a_living_process_alone(place: &Place) -> Verdict {
    let mut child = Child::start(place, Role::Hold, 1).await?;
    child.expect("ready").await?;
    for _ in 0..5 {
        ensure_eq!(place.sweep().await?, 0, "sessions swept while the only one lives");
        child.ask("check", "checked").await?;
    }
    child.tell("close")?;
    child.end().await
}

async fn a_sweep_tells_the_killed_from_the_living(place: &Place) -> Verdict {
    let mut children = try_join_all((0..3).map(|seed| Child::start(place, Role::Hold, seed))).await?;
    for child in &mut children {
        child.expect("ready").await?;
    }
    let before = place.leftovers().await?.len() as u64;
    children.remove(1).kill().await?;
    place
        .soon(|| async {
            place.sweep().await?;
            let left = place.leftovers().await?.len() as u64;
            ensure!(
                left + HELD <= before,
                "{left} things are left of {before}, of which {HELD} blobs were dead"
            );
            Ok(())
        })
        .await?;
    for mut child in children {
        child.ask("check", "checked").await?;
        child.tell("close")?;
        child.end().await?;
    }
    ensure_eq!(place.sweep_all().await?, 0, "sessions left to sweep after all others closed");
    Ok(())
}
