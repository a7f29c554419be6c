//! Rules I01 to I08: inserting and overwriting; and the cases 9, 14, 15 and 29.

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::*},
    },
    time::Duration,
};

use bytes::Bytes;
use spill_buffer::{
    ByteLength, BytesCodec, Codec, CodecError, Error, Event, Location, MemoryStore, OnFull, Payload,
    SpillBuffer, StoreErrorKind, TierSpec,
};
use spill_conformance::{Faults, Operation};
use tokio::task::JoinSet;

use crate::support::{
    Lump, LumpCodec, Lumps, Numbers, at_rest, count, ends_empty, exact, faulty_tier, fill, in_memory, kind,
    memory_tier, read, rests, stored, until,
};

const WAIT: OnFull = OnFull::Wait(Duration::from_secs(30));

fn faulty(limit: u64, on_full: OnFull) -> (Lumps<char>, Faults) {
    let faults = Faults::new();
    (exact(limit, on_full).tier(faulty_tier(&faults)).build().unwrap(), faults)
}

#[tokio::test]
async fn i01_overwriting_a_resident_value_exchanges_weights_and_lets_go_of_the_old_one() {
    let (buffer, faults) = faulty(300, OnFull::Reject);
    let old = Arc::new(Lump::new('o', 100));
    buffer.insert('a', old.clone()).await.unwrap();
    fill(&buffer, "bc", 100).await;
    assert_eq!(Arc::strong_count(&old), 2);
    let new = Arc::new(Lump::new('n', 40));
    buffer.insert('a', new.clone()).await.unwrap();
    assert_eq!(Arc::strong_count(&old), 1, "nobody but the test has the old one");
    assert!(Arc::ptr_eq(&buffer.get(&'a').await.unwrap().unwrap(), &new));
    assert_eq!(buffer.len(), 3);
    rests(&buffer, at_rest(240, 0, 0)).await;
    // Back to the limit: no room is asked for that the old one does not give.
    buffer.insert('a', Lump::new('m', 100)).await.unwrap();
    rests(&buffer, at_rest(300, 0, 0)).await;
    assert_eq!(Arc::strong_count(&new), 1);
    // 50 more than there is: one other entry leaves, and not the one being replaced.
    buffer.insert('b', Lump::new('b', 150)).await.unwrap();
    rests(&buffer, at_rest(250, 100, 192)).await;
    assert_eq!(in_memory(&buffer), "ab");
    // As large as memory: all others leave; what is replaced is not written for nothing.
    buffer.insert('a', Lump::new('a', 300)).await.unwrap();
    rests(&buffer, at_rest(300, 250, 192 + stored(150))).await;
    assert_eq!(faults.counts(Operation::Put).started, 2);
    ends_empty(buffer).await;
}

#[tokio::test]
async fn i01_overwriting_what_is_in_both_places_leaves_garbage_that_is_given_back() {
    let (buffer, _) = faulty(300, OnFull::Reject);
    fill(&buffer, "a", 100).await;
    buffer.spill(&'a').await.unwrap();
    read(&buffer, 'a').await;
    assert_eq!(buffer.location(&'a'), Some(Location::Both("memory:".into())));
    buffer.insert('a', Lump::new('n', 300)).await.unwrap();
    rests(&buffer, at_rest(300, 0, 0)).await;
    assert_eq!(read(&buffer, 'a').await, Lump::new('n', 300));
    ends_empty(buffer).await;
}

/// What is being written when it is replaced pays for nothing: whoever replaces it waits for room, without
/// spinning, until it has left.
#[tokio::test]
async fn i01_overwriting_what_a_caller_spills() {
    for weight in [0, 50, 100] {
        let (buffer, faults) = faulty(300, OnFull::Reject);
        fill(&buffer, "abc", 100).await;
        let gate = faults.hold(Operation::Put);
        let spilling = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.spill(&'a').await }
        });
        gate.held(1).await;
        let inserting = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.insert('a', Lump::new('n', weight)).await }
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        gate.release();
        inserting.await.unwrap().unwrap();
        spilling.await.unwrap().unwrap();
        rests(&buffer, at_rest(200 + weight, 0, 0)).await;
        assert_eq!(*buffer.peek(&'a').unwrap(), Lump::new('n', weight));
        ends_empty(buffer).await;
    }
}

/// What is being written when it is replaced does not come back.
#[tokio::test]
async fn i01_overwriting_what_is_being_spilled() {
    for weight in [50, 100, 200] {
        let (buffer, faults) = faulty(300, OnFull::Reject);
        fill(&buffer, "abc", 100).await;
        let gate = faults.hold(Operation::Put);
        let inserting = |key, lump| {
            let buffer = buffer.clone();
            tokio::spawn(async move { buffer.insert(key, lump).await })
        };
        let first = inserting('d', Lump::new('d', 100));
        gate.held(1).await;
        let second = inserting('a', Lump::new('n', weight));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(*buffer.get(&'a').await.unwrap().unwrap(), Lump::new('a', 100), "readable meanwhile");
        gate.release();
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
        assert_eq!(*buffer.peek(&'a').unwrap(), Lump::new('n', weight));
        until(&buffer, |usage| usage.total().garbage == 0).await;
        let now = Numbers::of(&buffer.usage());
        assert!(now.resident <= 300, "{now:?}");
        assert_eq!(now.resident + now.spilled, 300 + weight, "{weight}: {now:?}");
        rests(&buffer, now).await;
        ends_empty(buffer).await;
    }
}

#[tokio::test]
async fn i02_overwriting_a_spilled_value_gives_its_frame_back() {
    let (buffer, faults) = faulty(300, OnFull::Reject);
    fill(&buffer, "ab", 100).await;
    buffer.spill(&'a').await.unwrap();
    rests(&buffer, at_rest(100, 100, 192)).await;
    let gate = faults.hold(Operation::Delete);
    buffer.insert('a', Lump::new('n', 100)).await.unwrap();
    gate.held(1).await;
    // Garbage is counted until it is gone.
    let now = Numbers { resident: 200, spilled: 0, stored: 0, garbage: 192 };
    assert_eq!(Numbers::of(&buffer.usage()), now);
    gate.release();
    rests(&buffer, at_rest(200, 0, 0)).await;
    assert_eq!(read(&buffer, 'a').await, Lump::new('n', 100));
    assert_eq!(faults.counts(Operation::Get).started, 0, "what is replaced is never read");
    ends_empty(buffer).await;
}

#[tokio::test]
async fn i02_a_full_quota_takes_an_overwrite_of_equal_size() {
    let faults = Faults::new();
    let tier = faulty_tier(&faults).max_spill(3 * 192);
    let buffer = exact(400, OnFull::Reject).tier(tier).build().unwrap();
    fill(&buffer, "abcde", 100).await;
    buffer.spill(&'b').await.unwrap();
    buffer.spill(&'c').await.unwrap();
    rests(&buffer, at_rest(200, 300, 3 * 192)).await;
    for (round, key) in "abcabc".chars().enumerate() {
        let lump = Lump::new(char::from(b'0' + u8::try_from(round).unwrap()), 100);
        buffer.insert(key, lump).await.unwrap();
        until(&buffer, |usage| usage.total().garbage == 0).await;
        rests(&buffer, at_rest(300, 200, 2 * 192)).await;
        // The room that was given back is room again.
        assert!(buffer.spill(&key).await.unwrap());
        rests(&buffer, at_rest(200, 300, 3 * 192)).await;
        assert_eq!(faults.used(), 3 * 192);
    }
    ends_empty(buffer).await;
}

/// With memory full as well, the old frame would have to go before the new one is safe: refused, and the old
/// value is still there.
#[tokio::test]
async fn i02_a_full_quota_and_a_full_memory_refuse_an_overwrite_and_keep_the_old_value() {
    let tier = TierSpec::new(MemoryStore::new()).max_spill(3 * 192);
    let buffer = exact(300, OnFull::Reject).tier(tier).build().unwrap();
    fill(&buffer, "abcdef", 100).await;
    rests(&buffer, at_rest(300, 300, 3 * 192)).await;
    keeps_the_old_value(&buffer, 'a', Lump::new('x', 100), "Full").await;
    // Room anywhere is enough.
    assert!(buffer.remove(&'f').unwrap());
    buffer.insert('a', Lump::new('x', 100)).await.unwrap();
    rests(&buffer, at_rest(300, 200, 2 * 192)).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn i03_overwrites_of_any_size_leave_a_key_in_one_place_with_the_new_value() {
    let (buffer, _) = faulty(300, OnFull::Reject);
    fill(&buffer, "z", 50).await;
    // Light, exactly the limit, one above, heavy, weightless, and back: every pair of neighbours once.
    let weights = [100, 300, 301, 1000, 0, 301, 100, 1000, 300, 0, 1000, 301, 300, 100, 0, 300, 1000, 100];
    for (round, weight) in weights.into_iter().enumerate() {
        let letter = char::from(b'a' + u8::try_from(round).unwrap());
        let lump = Lump::new(letter, weight);
        buffer.insert('k', lump).await.unwrap();
        let heavy = weight > 300;
        until(&buffer, |usage| usage.total().garbage == 0).await;
        let place = buffer.location(&'k').unwrap();
        let right = if heavy { Location::Tier("memory:".into()) } else { Location::Memory };
        assert_eq!(place, right, "round {round}");
        assert_eq!(buffer.peek(&'k').as_deref(), (!heavy).then_some(&lump), "round {round}");
        assert_eq!(read(&buffer, 'k').await, lump, "round {round}");
        assert_eq!((buffer.len(), buffer.keys().len()), (2, 2));
        let usage = buffer.usage();
        assert_eq!(usage.memory.resident.weight + usage.spilled.weight, 50 + weight);
    }
    ends_empty(buffer).await;
}

/// A heavy insert that is under way when a light one of the same key comes and goes: the one that ends last
/// wins, and the loser leaves nothing behind.
#[tokio::test]
async fn i03_a_heavy_and_a_light_overwrite_at_once() {
    let (buffer, faults) = faulty(300, OnFull::Reject);
    fill(&buffer, "k", 100).await;
    let gate = faults.hold(Operation::Put);
    let heavy = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.insert('k', Lump::new('h', 400)).await }
    });
    gate.held(1).await;
    assert_eq!(read(&buffer, 'k').await, Lump::new('k', 100));
    fill(&buffer, "k", 200).await;
    assert_eq!(read(&buffer, 'k').await, Lump::new('k', 200));
    gate.release();
    heavy.await.unwrap().unwrap();
    assert_eq!(read(&buffer, 'k').await, Lump::new('h', 400));
    rests(&buffer, at_rest(0, 400, stored(400))).await;
    ends_empty(buffer).await;
}

/// Writers of every weight and readers of one key at once, with others in the way: each read is a value that
/// was written, whole; the last is one of the last of each writer; and the books balance.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i03_racing_overwrites_end_in_one_of_them_whole() {
    let buffer = exact::<u32>(1000, WAIT).tier(memory_tier()).build().unwrap();
    let weight =
        |letter: u8, round: u64| [0, 100, 400, 1000, 1001, 3000][usize::from(letter) % 6] + round % 2;
    let mut tasks = JoinSet::new();
    for letter in b'a'..=b'l' {
        let buffer = buffer.clone();
        tasks.spawn(async move {
            for round in 0..200u32 {
                let lump = Lump::new(char::from(letter), weight(letter, round.into()));
                buffer.insert(round % 3, lump).await.unwrap();
                let other = Lump::new(char::from(letter), 150);
                buffer.insert(100 + u32::from(letter), other).await.unwrap();
                for key in 0..3 {
                    if let Some(lump) = buffer.get(&key).await.unwrap() {
                        let right = [0, 1].map(|round| weight(lump.letter, round));
                        assert!(right.contains(&lump.weight), "{lump:?}");
                    } else {
                        assert!(round < 2, "a key that was inserted is never absent");
                    }
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    until(&buffer, |usage| usage.memory.spilling.entries == 0 && usage.total().garbage == 0).await;
    assert_eq!(buffer.len(), 3 + 12);
    let usage = buffer.usage();
    assert!(usage.memory.resident.weight <= 1000, "{usage:#?}");
    assert_eq!(buffer.audit().await.unwrap(), Vec::<String>::new());
    ends_empty(buffer).await;
}

/// Inserts a value that must be refused, and shows that it came back and the old one is still there.
async fn keeps_the_old_value(buffer: &Lumps<char>, key: char, new: Lump, error: &str) {
    let before = (Numbers::of(&buffer.usage()), buffer.location(&key), buffer.len());
    let new = Arc::new(new);
    let refused = buffer.insert(key, new.clone()).await.unwrap_err();
    assert_eq!(kind(&refused), error, "{refused}");
    assert!(Arc::ptr_eq(&refused.value, &new), "the very value comes back");
    drop(refused);
    assert_eq!(Arc::strong_count(&new), 1, "nothing of it is left behind");
    rests(buffer, before.0).await;
    assert_eq!((before.1, before.2), (buffer.location(&key), buffer.len()));
    assert_eq!(read(buffer, key).await, Lump::new(key, 100));
}

#[tokio::test]
async fn i04_a_refused_overwrite_leaves_the_old_value() {
    let faults = Faults::new();
    let tier = faulty_tier(&faults).max_spill(192);
    let buffer = exact(300, OnFull::Reject).tier(tier).build().unwrap();
    fill(&buffer, "abcd", 100).await;
    rests(&buffer, at_rest(300, 100, 192)).await;
    // One that is in memory, and one that is spilled.
    for key in ['b', 'a'] {
        // Heavy, and no room for its frame.
        keeps_the_old_value(&buffer, key, Lump::new('n', 301), "Full").await;
        keeps_the_old_value(&buffer, key, Lump::new('n', 500).unencodable(), "Full").await;
    }
    // Light, and 50 more than there is room for.
    keeps_the_old_value(&buffer, 'b', Lump::new('n', 150), "Full").await;
    assert_eq!(faults.counts(Operation::Put).started, 1);

    assert!(buffer.set_max_spill(0, None));
    for key in ['b', 'a'] {
        keeps_the_old_value(&buffer, key, Lump::new('n', 301).unencodable(), "Encode").await;
        keeps_the_old_value(&buffer, key, Lump::new('n', 301).panicking(), "Encode").await;
        keeps_the_old_value(&buffer, key, Lump::new('n', 16).weighing(u64::MAX), "Weigh").await;
    }
    ends_empty(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn i04_an_overwrite_that_waited_in_vain_leaves_the_old_value() {
    let (buffer, faults) = faulty(300, WAIT);
    fill(&buffer, "abcd", 100).await;
    rests(&buffer, at_rest(300, 100, 192)).await;
    faults.fail(Operation::Put, StoreErrorKind::NoSpace);
    for new in [Lump::new('n', 150), Lump::new('n', 301)] {
        let started = tokio::time::Instant::now();
        keeps_the_old_value(&buffer, 'c', new, "Full").await;
        assert_eq!(started.elapsed().as_secs(), 30);
    }
    faults.heal();
    // It can leave memory like any other, and be overwritten.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(buffer.spill(&'c').await.unwrap());
    buffer.insert('c', Lump::new('n', 301)).await.unwrap();
    rests(&buffer, at_rest(200, 401, 192 + stored(301))).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn i05_a_heavy_value_that_can_not_be_encoded_comes_back_with_the_reason() {
    let (buffer, faults) = faulty(300, WAIT);
    let mut events = buffer.events();
    fill(&buffer, "abc", 100).await;
    let heavy = Arc::new(Lump::new('h', 400).unencodable());
    let refused = buffer.insert('h', heavy.clone()).await.unwrap_err();
    assert!(Arc::ptr_eq(&refused.value, &heavy));
    // What was refused, because of what the codec said, because of what was wrong below it.
    let Error::Encode { key, source } = &refused.error else { panic!("{refused}") };
    assert_eq!((key.as_str(), source.to_string().as_str()), ("'h'", "not for the disk"));
    let (mut chain, mut next) = (Vec::new(), refused.source());
    while let Some(error) = next {
        chain.push(error.to_string());
        next = error.source();
    }
    assert_eq!(chain, ["encode of 'h': not for the disk", "not for the disk", "not for the disk"]);
    drop(refused);

    rests(&buffer, at_rest(300, 0, 0)).await;
    assert!(!buffer.contains_key(&'h'));
    assert_eq!(in_memory(&buffer), "abc");
    assert_eq!((Arc::strong_count(&heavy), faults.counts(Operation::Put).started), (1, 0));
    assert_eq!(count(&mut events, |event| matches!(event, Event::EncodeFailed { .. })), 1);
    ends_empty(buffer).await;
}

#[tokio::test]
async fn i06_another_entry_that_can_not_be_encoded_stays_and_is_reported_once() {
    let codec = LumpCodec::default();
    let buffer = exact(300, WAIT).codec(codec.clone()).tier(memory_tier()).build().unwrap();
    let mut events = buffer.events();
    buffer.insert('x', Lump::new('x', 100).unencodable()).await.unwrap();
    fill(&buffer, "abcdefgh", 100).await;
    rests(&buffer, at_rest(300, 600, 6 * 192)).await;
    assert_eq!(in_memory(&buffer), "ghx");
    let mut failed = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::EncodeFailed { key, error } = event {
            failed.push((key, error.to_string()));
        }
    }
    assert_eq!(failed, [("'x'".to_owned(), "not for the disk".to_owned())]);
    assert_eq!(codec.asked(), 7, "x once, and each that left once");
    assert_eq!(*buffer.get(&'x').await.unwrap().unwrap(), Lump::new('x', 100).unencodable());
    // Until it is replaced: by another one of its kind, it is reported again.
    buffer.insert('x', Lump::new('y', 100).unencodable()).await.unwrap();
    fill(&buffer, "ijk", 100).await;
    assert_eq!(in_memory(&buffer), "jkx");
    assert_eq!(count(&mut events, |event| matches!(event, Event::EncodeFailed { .. })), 1);
    ends_empty(buffer).await;
}

#[tokio::test]
async fn i07_a_failing_victim_never_blocks_those_behind_it() {
    for bad in [Lump::unencodable, Lump::panicking] {
        let buffer = exact(2300, WAIT).tier(memory_tier()).build().unwrap();
        buffer.insert(0, bad(Lump::new('x', 100))).await.unwrap();
        for key in 1..=22 {
            buffer.insert(key, Lump::new('g', 100)).await.unwrap();
        }
        rests(&buffer, at_rest(2300, 0, 0)).await;
        buffer.set_memory_limit(100);
        rests(&buffer, at_rest(100, 2200, 22 * 192)).await;
        assert!(buffer.peek(&0).is_some());
        ends_empty(buffer).await;
    }
}

/// The same when it is the caller who wants them out.
#[tokio::test]
async fn i07_reclaiming_goes_past_a_failing_victim() {
    let buffer = exact(2300, WAIT).tier(memory_tier().max_spill(22 * 192)).build().unwrap();
    buffer.insert(0, Lump::new('x', 100).unencodable()).await.unwrap();
    // Too big for the tier.
    buffer.insert(1, Lump { length: 100_000, ..Lump::new('x', 100) }).await.unwrap();
    for key in 2..=22 {
        buffer.insert(key, Lump::new('g', 100)).await.unwrap();
    }
    assert_eq!(buffer.reclaim(500).await.unwrap(), 500);
    assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 1600);
    rests(&buffer, at_rest(200, 2100, 21 * 192)).await;
    ends_empty(buffer).await;
}

/// Counts the encoded values that are alive.
#[derive(Clone, Debug, Default)]
struct Living {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct OneOf(Vec<u8>, Living);

impl AsRef<[u8]> for OneOf {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for OneOf {
    fn drop(&mut self) {
        self.1.now.fetch_sub(1, SeqCst);
    }
}

impl Codec<Vec<u8>> for Living {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        let now = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        Ok(Bytes::from_owner(OneOf(value.clone(), self.clone())).into())
    }

    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, CodecError> {
        BytesCodec.decode(bytes)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i08_insert_many_keeps_a_bounded_number_of_encoded_values_alive() {
    let (living, faults) = (Living::default(), Faults::new());
    // Above this length an encoded value is not copied, and lives until it is written.
    const LENGTH: usize = 64 << 10;
    let tier = TierSpec::new(MemoryStore::new()).batch_entries(4).batch_bytes(1 << 20).layer(&faults);
    let buffer = SpillBuffer::<u32, Vec<u8>>::builder()
        .memory_limit(16 * LENGTH as u64)
        .codec(living.clone())
        .weigher(ByteLength)
        .tier(tier)
        .build()
        .unwrap();
    faults.delay(Operation::Put, Duration::from_millis(1));
    let entries = (0..200).map(|key| (key, vec![7; if key % 50 == 0 { 20 * LENGTH } else { LENGTH }]));
    let refused = buffer.insert_many(entries).await;
    assert!(refused.is_empty(), "{refused:?}");
    let most = living.most.load(SeqCst);
    // Two batches of four are written at once, and each may hold one more for the next.
    assert!((2..=10).contains(&most), "{most}");
    until(&buffer, |usage| usage.memory.spilling.entries == 0).await;
    assert_eq!(living.now.load(SeqCst), 0);
    assert_eq!(buffer.len(), 200);
    ends_empty(buffer).await;
}

#[tokio::test]
async fn i08_insert_many_gives_back_what_is_refused_and_takes_the_rest() {
    let buffer = exact(300, OnFull::Reject).tier(memory_tier().max_spill(192)).build().unwrap();
    let entries = "abcdefg".chars().map(|key| (key, Lump::new(key, if key == 'c' { 301 } else { 100 })));
    let refused = buffer.insert_many(entries).await;
    let kinds: Vec<_> = refused.iter().map(|(key, error)| (*key, kind(error), error.value.letter)).collect();
    let full = |key: char| (key, "Full".to_owned(), key as u8);
    assert_eq!(kinds, [full('c'), full('f'), full('g')]);
    rests(&buffer, at_rest(300, 100, 192)).await;
    ends_empty(buffer).await;
}
