//! Gives space back: deletes blobs with nothing alive, gives up second copies when a tier runs short. Copying
//! what is alive out of worn blobs is next door, in `compactor`.

use std::{sync::Arc, time::Duration};

use super::{
    Shared,
    compactor::{self, Gain},
};
use crate::{Event, StoreError, blobs::Doomed, ledger::QuotaLevels, table::Key, tier::Tier};

/// Blobs deleted in one call.
const DELETE_AT_ONCE: usize = 1000;
/// The first wait after deleting failed; doubles with each further failure.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Deletes one tier's dead blobs as they come, as long as the buffer lives.
pub(crate) async fn run<K: Key, V: Send + Sync + 'static>(shared: Arc<Shared<K, V>>, tier: Arc<Tier<K>>) {
    let mut wait = FIRST_WAIT;
    loop {
        tier.wake_deleter.notified().await;
        while !delete_doomed(&shared, &tier).await {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        wait = FIRST_WAIT;
    }
}

/// Deletes all blobs that are dead by now. `false`: some could not be, and are dead still.
pub(crate) async fn delete_doomed<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
) -> bool {
    let mut batch = Batch { tier, doomed: Vec::new(), failed: Vec::new() };
    loop {
        batch.doomed = tier.doomed(DELETE_AT_ONCE);
        if batch.doomed.is_empty() {
            return batch.failed.is_empty();
        }
        let ids: Vec<_> = batch.doomed.iter().map(|doomed| doomed.id).collect();
        if let Err(error) = tier.store.delete(&ids).await {
            report(shared, tier, &ids, &error);
            let all = error.failed().is_empty();
            let refused = batch.doomed.extract_if(.., |doomed| all || error.failed().contains(&doomed.id));
            batch.failed.extend(refused);
        }
        if tier.set_deletes_fail(!batch.failed.is_empty()) && batch.failed.is_empty() {
            // Nobody copied while what was copied stayed.
            tier.wake_compactor.notify_one();
        }
        if !batch.doomed.is_empty() {
            batch.doomed.drain(..).for_each(|doomed| tier.deleted(doomed));
            shared.room_in_tier(tier);
        }
    }
}

fn report<K: Key, V: Send + Sync + 'static>(
    shared: &Shared<K, V>,
    tier: &Tier<K>,
    ids: &[crate::BlobId],
    error: &StoreError,
) {
    let blobs = if error.failed().is_empty() { ids.to_vec() } else { error.failed().to_vec() };
    tracing::debug!(tier = &*tier.name, %error, "blobs were not deleted and are counted as garbage until they are");
    shared.watchers.tell(&Event::DeleteFailed { tier: tier.name.clone(), blobs, error: error.clone() });
}

/// Blobs being deleted, and those that could not be: back among the doomed in the end, also if the call is
/// abandoned.
struct Batch<'a, K> {
    tier: &'a Tier<K>,
    doomed: Vec<Doomed>,
    failed: Vec<Doomed>,
}

impl<K> Drop for Batch<'_, K> {
    fn drop(&mut self) {
        self.doomed.drain(..).chain(self.failed.drain(..)).for_each(|doomed| self.tier.not_deleted(doomed));
    }
}

/// Tries to get `need` bytes of room in a tier: deletes what is dead, gives up second copies, compacts and
/// punches. `true` if there is room now.
pub(crate) async fn make_room<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
    need: u64,
) -> bool {
    let enough = || tier.quota.levels().room() >= need;
    if enough() || !tier.has_slack() {
        return enough();
    }
    let _one_at_a_time = tier.making_room.lock().await;
    let stayed = tier.stayed();
    // A failed delete is tried again by the tier's own task; here it is only no room.
    delete_doomed(shared, tier).await;
    if enough() {
        return true;
    }
    give_up_copies(shared, tier, |levels| levels.room().saturating_add(levels.garbage) >= need);
    delete_doomed(shared, tier).await;
    let mut gain = Gain::Some;
    while !enough() && gain == Gain::Some {
        gain = compactor::compact(shared, tier, compactor::Why::NeedsRoom).await;
        let garbage = tier.quota.levels().garbage.saturating_add(tier.batch_bytes as u64);
        if gain == Gain::Nothing && give_up_copies(shared, tier, |levels| levels.garbage >= garbage) {
            // With less alive in them blobs may fit into the room that there is, or go as a whole.
            gain = Gain::Some;
        }
        if gain == Gain::Some {
            delete_doomed(shared, tier).await;
        }
    }
    tier.tried_to_make_room(gain == Gain::Nothing && !enough(), stayed);
    enough()
}

/// Gives up second copies, oldest first, until it is `enough`. `true`: there was one.
fn give_up_copies<K: Key, V: Send + Sync + 'static>(
    shared: &Shared<K, V>,
    tier: &Tier<K>,
    enough: impl Fn(&QuotaLevels) -> bool,
) -> bool {
    let mut given = false;
    while !enough(&tier.quota.levels())
        && let Some((key, at)) = tier.copies.take_oldest()
    {
        if let Some(weight) = shared.table.drop_copy(&key, at) {
            shared.bury(at, weight);
            given = true;
        }
    }
    given
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// An entry is in memory and in a tier from now on.
    pub(crate) fn note_clean(&self, key: K, at: crate::table::Place) {
        let Some(tier) = self.tiers.get(at.tier()) else { return };
        tier.copies.note(key, at, |key, at| self.table.is_clean_at(key, at));
    }
}
