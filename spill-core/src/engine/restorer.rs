//! Brings spilled values back: makes room, reads (neighbours in one blob together), verifies, decodes. One
//! flight per key: whoever asks meanwhile waits for the same read.

use std::{borrow::Borrow, hash::Hash, ops::Range, sync::Arc};

use bytes::Bytes;
use tokio::time::Instant;

use super::{INLINE_DECODE, Shared, guarded};
use crate::{
    Admission, CodecError, Error, Event, StoreError, StoreErrorKind,
    frame::{self, Expected},
    ledger::Share,
    table::{Fetch, Key, Landing, Request},
    tier::Reader,
};

/// At most this much is read in one call, unless one frame is longer.
const READ_AT_ONCE: u64 = 8 << 20;

/// What a value is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To stay in memory, if it can.
    Keep,
    /// To be handed out and removed: no room is made for it.
    Take,
}

/// A request in flight. However it ends, those who wait get an answer, and the entry is not left waiting.
struct InFlight<K: Key, V: Send + Sync + 'static> {
    shared: Arc<Shared<K, V>>,
    request: Option<Request<K, V>>,
    share: Option<Share>,
}

impl<K: Key, V: Send + Sync + 'static> InFlight<K, V> {
    fn land(mut self, landing: Landing<V>) {
        self.finish(landing);
    }

    fn finish(&mut self, landing: Landing<V>) {
        let Some(Request { key, id, pilot, .. }) = self.request.take() else { return };
        let shared = &self.shared;
        // A read that failed of an entry that was replaced or removed meanwhile is nobody's error: look again.
        let overtaken = landing.is_err() && shared.table.locate(&key, id).is_none();
        let landing = if overtaken { Ok(None) } else { landing };
        let value = match &landing {
            Ok(Some(value)) => Some((value, self.share.take())),
            _ => None,
        };
        if let Some(at) = shared.table.end_restore(&key, id, value) {
            shared.note_clean(key.clone(), at);
            shared.queue.admit(&shared.table, &key, id);
            shared.shrink();
        }
        // Bytes that turned out not to be needed go before anybody is woken.
        drop(self.share.take());
        shared.room_in_memory();
        pilot.land(landing);
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for InFlight<K, V> {
    fn drop(&mut self) {
        let error = self.shared.gone("get");
        self.finish(Err(error));
    }
}

/// A request and the frame it wants.
type Wanted<K, V> = (InFlight<K, V>, Reader<K>);

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Starts reading; the answers go to those who wait for the requests' flights. When they are small and their store
    /// has them at hand, they are there when this returns.
    pub(crate) fn start_restore(self: &Arc<Self>, requests: Vec<Request<K, V>>, purpose: Purpose) {
        let weight = requests.iter().fold(0, |sum: u64, request| sum.saturating_add(request.weight));
        let restoring = self.restoring(requests, purpose);
        if weight <= INLINE_DECODE {
            self.tasks.begin_job(restoring);
        } else {
            self.tasks.spawn_job(restoring);
        }
    }

    fn restoring(
        self: &Arc<Self>,
        requests: Vec<Request<K, V>>,
        purpose: Purpose,
    ) -> impl Future<Output = ()> + Send + use<K, V> {
        let flights = requests.into_iter().map(|request| InFlight {
            shared: self.clone(),
            request: Some(request),
            share: None,
        });
        let flights: Vec<_> = flights.collect();
        self.clone().restore(flights, purpose)
    }

    async fn restore(self: Arc<Self>, mut flights: Vec<InFlight<K, V>>, purpose: Purpose) {
        if purpose == Purpose::Keep {
            self.make_room_for(&mut flights).await;
        }
        let mut wanted: Vec<Wanted<K, V>> = Vec::with_capacity(flights.len());
        for flight in flights {
            match self.reader_of(&flight) {
                Some(reader) => wanted.push((flight, reader)),
                // Removed or replaced before it could be read.
                None => flight.land(Ok(None)),
            }
        }
        if wanted.len() == 1 {
            return self.read_run(wanted).await;
        }
        wanted.sort_by_key(|(_, reader)| (reader.tier.index, reader.id, reader.range.start));
        let mut runs: Vec<Vec<Wanted<K, V>>> = Vec::new();
        for next in wanted {
            match runs.last_mut().filter(|run| goes_with(run, &next)) {
                Some(run) => run.push(next),
                None => runs.push(vec![next]),
            }
        }
        futures_util::future::join_all(runs.into_iter().map(|run| self.read_run(run))).await;
    }

    /// Takes memory for all flights at once: one that held its part while waiting for the next one's could wait
    /// for ever.
    async fn make_room_for(&self, flights: &mut [InFlight<K, V>]) {
        let limit = self.memory.levels().limit;
        let weight =
            |flight: &InFlight<K, V>| flight.request.as_ref().map_or(u64::MAX, |request| request.weight);
        let light = |flight: &&mut InFlight<K, V>| weight(flight) <= limit;
        let total = flights.iter().map(weight).filter(|weight| *weight <= limit).sum();
        let Some(mut share) = self.room_for_restore(total).await else { return };
        for flight in flights.iter_mut().filter(light) {
            flight.share = Some(share.split(weight(flight)));
        }
    }

    /// Brings a spilled value into memory, to stay there if it can. As long as the caller keeps what is
    /// returned, bringing it in again costs no read.
    pub(crate) async fn bring_home<Q>(self: &Arc<Self>, key: &Q) -> Result<Option<Arc<V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some((_, weight, ..)) = self.table.find(key) else { return Ok(None) };
        let limit = self.memory.levels().limit;
        match self.table.fetch(key) {
            Fetch::Absent => Ok(None),
            Fetch::Here(value, _) => Ok(Some(value)),
            fetch if weight > limit => {
                if let Fetch::Start(request, _) = fetch {
                    self.start_restore(vec![request], Purpose::Take);
                }
                Err(Error::TooHeavy { operation: "pin", key: "an entry".into(), weight, limit })
            }
            Fetch::Join(flight, _) => flight.landing().await,
            Fetch::Start(request, flight) => {
                self.start_restore(vec![request], Purpose::Keep);
                flight.landing().await
            }
            Fetch::Alive(value, id) => {
                let share = self.room_for_restore(weight).await;
                if let (Some(share), Some(key)) = (share, self.table.key_of(key))
                    && self.table.come_home(&key, id, &value, share)
                {
                    if let Some(at) = self.table.locate(&key, id) {
                        self.note_clean(key.clone(), at);
                    }
                    self.queue.admit(&self.table, &key, id);
                    self.shrink();
                }
                Ok(Some(value))
            }
        }
    }

    fn reader_of(&self, flight: &InFlight<K, V>) -> Option<Reader<K>> {
        let request = flight.request.as_ref()?;
        // Compaction may move it before the blob is open, and the place may be another blob's by then. Once it
        // is open, the place is the blob's. If it never holds still, whoever waits looks again.
        let mut at = request.at;
        for _ in 0..3 {
            let reader = self.tiers.get(at.tier())?.reader(at);
            let now = self.table.locate(&request.key, request.id)?;
            if now == at {
                return reader;
            }
            at = now;
        }
        None
    }

    /// Takes the memory a restored value needs to stay. `None`: it can't stay, and is handed out as it is.
    /// A read never fails because others can't be evicted.
    async fn room_for_restore(&self, weight: u64) -> Option<Share> {
        match self.memory.admission(weight) {
            Admission::ToTier | Admission::Refuse => return None,
            Admission::Now | Admission::AfterRoom => {}
        }
        if let Some(share) = self.memory.try_take(weight) {
            return Some(share);
        }
        let mut stuck = self.stuck.subscribe();
        let wait = self.memory.wait(weight);
        self.wake_spiller.notify_one();
        tokio::select! {
            biased;
            share = wait => share,
            _ = stuck.changed() => None,
        }
    }

    /// Reads frames of one blob in one call, and lands each.
    async fn read_run(self: &Arc<Self>, run: Vec<Wanted<K, V>>) {
        let started = Instant::now();
        let (Some((_, first)), Some(end)) =
            (run.first(), run.iter().map(|(_, reader)| reader.range.end).max())
        else {
            return;
        };
        let (tier, id, range) = (first.tier.clone(), first.id, first.range.start..end);
        let bytes = range.end - range.start;
        let Ok(permits) = self.reading.acquire_many(self.read_permits(bytes)).await else { return };
        let buffered = self.buffered(bytes);
        let reading = std::time::Instant::now();
        match tier.read(id, range.clone()).await {
            Ok(read) => {
                self.counters.read(bytes, reading.elapsed());
                let entries = run.len() as u64;
                self.open_run(run, read, range.start).await;
                let took = started.elapsed();
                self.watchers.tell(&Event::Restored {
                    tier: tier.name.clone(),
                    entries,
                    stored: bytes,
                    took,
                });
            }
            Err(error) if run.len() == 1 => run.into_iter().for_each(|one| self.fail(one, &error)),
            // One bad neighbour must not fail the others: each is read by itself.
            Err(_) => {
                // Each takes permits of its own: whoever waits for more while holding some may wait for ever.
                drop((permits, buffered));
                for one in run {
                    Box::pin(self.read_run(vec![one])).await;
                }
            }
        }
    }

    /// Verifies and decodes what was read, and lands it.
    async fn open_run(self: &Arc<Self>, run: Vec<Wanted<K, V>>, read: Bytes, start: u64) {
        let shared = self.clone();
        let stored = read.len() as u64;
        let decoded: u64 = run.iter().map(|(_, reader)| reader.encoded).sum();
        let work = move || {
            let alone = run.len() == 1;
            for (flight, reader) in run {
                let frame = slice(&read, start, &reader.range);
                let landing = shared.open(&flight, &reader, frame, alone);
                if let Err(error) = &landing {
                    shared.restore_failed(&flight, error);
                }
                // The reader first: whoever is woken may remove the entry and expect its blob to go.
                drop(reader);
                flight.land(landing);
            }
        };
        // If the runtime goes, the flights are dropped with the work, and say so to those who wait.
        drop(self.compute(stored.max(decoded), INLINE_DECODE, work).await);
    }

    fn open(
        &self,
        flight: &InFlight<K, V>,
        reader: &Reader<K>,
        frame: Option<Bytes>,
        alone: bool,
    ) -> Landing<V> {
        let Some(request) = &flight.request else { return Ok(None) };
        let key = || format!("{:?}", request.key);
        let corrupt = |reason: String| Error::Corrupt {
            key: key(),
            tier: reader.tier.name.to_string(),
            blob: reader.id,
            reason,
        };
        let frame = frame.ok_or_else(|| corrupt("the store gave fewer bytes than were asked for".into()))?;
        let expected = Expected { owner: self.owner, entry: request.id, encoded: reader.encoded };
        let opening = std::time::Instant::now();
        let encoded = guarded(|| frame::open(&frame, &expected, &self.compressors)).map_err(&corrupt)?;
        let mut encoded = encoded.map_err(|error| corrupt(error.to_string()))?;
        if !alone && shares_memory(&encoded, &frame) {
            // A slice would keep its neighbours' bytes alive as well.
            encoded = Bytes::copy_from_slice(&encoded);
        }
        drop(frame);
        self.counters.decompress(opening.elapsed());
        let decoding = std::time::Instant::now();
        let value =
            guarded(|| self.codec.decode(encoded)).unwrap_or_else(|panic| Err(CodecError::new(panic)));
        self.counters.decode(decoding.elapsed());
        value.map(|value| Some(Arc::new(value))).map_err(|source| Error::Decode { key: key(), source })
    }

    fn fail(&self, (flight, reader): Wanted<K, V>, error: &StoreError) {
        let Some(request) = &flight.request else { return };
        let key = format!("{:?}", request.key);
        let error = match error.kind() {
            StoreErrorKind::Corrupt => Error::Corrupt {
                key,
                tier: reader.tier.name.to_string(),
                blob: reader.id,
                reason: error.to_string(),
            },
            _ => Error::Store { operation: "restore", key, source: error.clone() },
        };
        self.restore_failed(&flight, &error);
        drop(reader);
        flight.land(Err(error));
    }

    fn restore_failed(&self, flight: &InFlight<K, V>, error: &Error) {
        self.counters.restore_failed();
        if let Some(request) = &flight.request {
            let key = format!("{:?}", request.key);
            self.watchers.tell(&Event::RestoreFailed { key, error: error.clone() });
        }
    }
}

/// Whether a frame is close enough behind a run to be read with it.
fn goes_with<K: Key, V: Send + Sync + 'static>(run: &[Wanted<K, V>], (_, next): &Wanted<K, V>) -> bool {
    let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else { return false };
    let same_blob = last.tier.index == next.tier.index && last.id == next.id;
    let gap = next.range.start.saturating_sub(last.range.end);
    same_blob && gap <= last.tier.store.info().read_gap && next.range.end - first.range.start <= READ_AT_ONCE
}

fn slice(read: &Bytes, start: u64, range: &Range<u64>) -> Option<Bytes> {
    let from = usize::try_from(range.start - start).ok()?;
    let to = usize::try_from(range.end - start).ok()?;
    (to <= read.len()).then(|| read.slice(from..to))
}

fn shares_memory(part: &Bytes, whole: &Bytes) -> bool {
    let whole_range = whole.as_ptr_range();
    part.is_empty() || whole_range.contains(&part.as_ptr())
}
