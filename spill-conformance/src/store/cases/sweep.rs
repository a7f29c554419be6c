//! What dead sessions left is removed, and nothing else. Dead here are stores that were dropped without being
//! closed; killed processes are in `processes`.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::future::{try_join, try_join_all};
use spill_core::Store;

use super::cases;
use crate::{
    runner::{Stop, Verdict, ensure, ensure_eq},
    store::{
        Case,
        place::{Place, expect, expect_all, id, ids, put, put_all},
    },
};

pub(super) const SWEEP: &[Case] = cases!(Sweep:
    sweeping_where_nothing_ever_was_is_fine needs [Sweep],
    a_dropped_session_is_swept needs [Sweep, Leftovers],
    every_dropped_session_is_counted_once needs [Sweep, Leftovers],
    a_living_session_is_left_alone needs [Sweep],
    the_dead_are_told_from_the_living needs [Sweep, Leftovers],
    foreign_things_are_left_alone needs [Sweep, Foreign, Leftovers],
    sweeping_again_finds_nothing needs [Sweep, Leftovers],
    a_closed_session_leaves_nothing_to_sweep needs [Sweep],
    two_sweeps_at_once_are_one needs [Sweep, Leftovers],
    sessions_come_and_go_during_sweeps needs [Sweep],
);

/// Opens sessions side by side, and puts a few blobs into each.
async fn sessions(place: &Place, count: usize) -> Result<Vec<Arc<dyn Store>>, Stop> {
    let mut opened = Vec::new();
    for _ in 0..count {
        let store = place.open().await?;
        put_all(&*store, &blobs()).await?;
        opened.push(store);
    }
    Ok(opened)
}

fn blobs() -> Vec<(spill_core::BlobId, usize)> {
    (0..7).map(|number| (id(number), 500)).collect()
}

/// Drops sessions without closing them: they are dead.
fn drop_all(place: &Place, sessions: Vec<Arc<dyn Store>>) {
    for store in sessions {
        place.forget(&store);
        drop(store);
    }
}

async fn sweeping_where_nothing_ever_was_is_fine(place: &Place) -> Verdict {
    ensure_eq!(place.sweep().await?, 0, "sessions swept where none ever was");
    Ok(())
}

async fn a_dropped_session_is_swept(place: &Place) -> Verdict {
    let opened = sessions(place, 1).await?;
    drop_all(place, opened);
    place.sweep_all().await?;
    Ok(())
}

async fn every_dropped_session_is_counted_once(place: &Place) -> Verdict {
    // Opened before any of them is dead, as opening may sweep too.
    let opened = sessions(place, 5).await?;
    drop_all(place, opened);
    ensure_eq!(place.sweep_all().await?, 5, "dead sessions swept in all");
    Ok(())
}

async fn a_living_session_is_left_alone(place: &Place) -> Verdict {
    let store = place.open().await?;
    for number in 0..20 {
        put(&*store, id(number), 300).await?;
        ensure_eq!(place.sweep().await?, 0, "sessions swept while the only one lives");
        expect(&*store, id(number / 2), 300).await?;
    }
    ensure_eq!(ids(&*store).await?.len(), 20, "blobs of a session that lived through sweeps");
    Ok(())
}

async fn the_dead_are_told_from_the_living(place: &Place) -> Verdict {
    let mut opened = sessions(place, 6).await?;
    let living = opened.split_off(3);
    let before = place.leftovers().await?.len();
    drop_all(place, opened);
    let swept = AtomicU64::new(0);
    place
        .soon(|| async {
            let swept = swept.fetch_add(place.sweep().await?, Ordering::Relaxed);
            let left = place.leftovers().await?.len();
            let dead = 3 * blobs().len();
            ensure!(
                left + dead <= before,
                "{swept} swept, {left} things are left of {before}, of which {dead} blobs were dead"
            );
            Ok(())
        })
        .await?;
    ensure_eq!(swept.into_inner(), 3, "dead sessions swept");
    for store in living {
        expect_all(&*store, &blobs()).await?;
        ensure_eq!(ids(&*store).await?.len(), blobs().len(), "blobs listed of a living session");
        place.close(store).await?;
    }
    ensure_eq!(place.leftovers().await?, Vec::<String>::new(), "left over after the living closed");
    Ok(())
}

async fn foreign_things_are_left_alone(place: &Place) -> Verdict {
    let look = || async { Ok::<BTreeSet<_>, Stop>(place.leftovers().await?.into_iter().collect()) };
    let mut opened = sessions(place, 2).await?;
    let ours = look().await?;
    place.plant_foreign().await?;
    let foreign: BTreeSet<String> = look().await?.difference(&ours).cloned().collect();
    ensure!(!foreign.is_empty(), "nothing foreign can be seen after it was planted");
    let living = opened.split_off(1);
    drop_all(place, opened);
    for _ in 0..3 {
        place.sweep().await?;
        let left = look().await?;
        let gone: Vec<_> = foreign.difference(&left).collect();
        ensure!(gone.is_empty(), "a sweep removed what is not the store's: {gone:?}");
        expect_all(&*living[0], &blobs()).await?;
    }
    Ok(())
}

async fn sweeping_again_finds_nothing(place: &Place) -> Verdict {
    let opened = sessions(place, 2).await?;
    drop_all(place, opened);
    place.sweep_all().await?;
    for _ in 0..3 {
        ensure_eq!(place.sweep().await?, 0, "sessions swept after all were");
    }
    Ok(())
}

async fn a_closed_session_leaves_nothing_to_sweep(place: &Place) -> Verdict {
    for store in sessions(place, 3).await? {
        place.close(store).await?;
    }
    ensure_eq!(place.sweep().await?, 0, "sessions swept after all were closed");
    Ok(())
}

async fn two_sweeps_at_once_are_one(place: &Place) -> Verdict {
    let opened = sessions(place, 8).await?;
    drop_all(place, opened);
    let swept = AtomicU64::new(0);
    place
        .soon(|| async {
            let found = try_join_all([place.sweep(), place.sweep(), place.sweep()]).await?;
            swept.fetch_add(found.iter().sum(), Ordering::Relaxed);
            ensure_eq!(place.leftovers().await?, Vec::<String>::new(), "left over after sweeps at once");
            Ok(())
        })
        .await?;
    ensure_eq!(swept.into_inner(), 8, "dead sessions that sweeps at once say they swept");
    Ok(())
}

async fn sessions_come_and_go_during_sweeps(place: &Place) -> Verdict {
    let over = AtomicBool::new(false);
    let sweeps = async {
        while !over.load(Ordering::Relaxed) {
            place.sweep().await?;
            tokio::task::yield_now().await;
        }
        Ok::<(), Stop>(())
    };
    let come_and_go = async {
        let stays = place.open().await?;
        put_all(&*stays, &blobs()).await?;
        for round in 0..15 {
            let store = place.open().await?;
            put_all(&*store, &blobs()).await?;
            // A sweep gets its turn, also where nothing ever waits.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            expect_all(&*store, &blobs()).await?;
            if round % 3 == 0 {
                drop_all(place, vec![store]);
            } else {
                place.close(store).await?;
            }
        }
        expect_all(&*stays, &blobs()).await?;
        place.close(stays).await
    };
    let work = async {
        let verdict = come_and_go.await;
        over.store(true, Ordering::Relaxed);
        verdict
    };
    try_join(sweeps, work).await.map(drop)
}
