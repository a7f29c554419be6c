//! Rule B10: what spilling and restoring need themselves is inside the memory limit, and reported.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::*},
    },
    time::Duration,
};

use spill_buffer::{
    ByteLength, BytesCodec, MemoryStore, OnFull, SpillBuffer, StoreErrorKind, TierSpec, Usage,
};
use spill_conformance::{Faults, Operation};

use crate::support::{Lump, at_rest, ends_empty, exact, faulty_tier, fill, kind, read, rests};

/// What a sampler saw at its worst.
#[derive(Default)]
struct Worst {
    resident: AtomicU64,
    with_restores: AtomicU64,
    buffers: AtomicU64,
    restoring: AtomicU64,
    samples: AtomicU64,
}

impl Worst {
    fn note(&self, usage: &Usage) {
        let memory = &usage.memory;
        self.resident.fetch_max(memory.resident.weight, Relaxed);
        self.with_restores.fetch_max(memory.resident.weight + memory.restoring, Relaxed);
        self.buffers.fetch_max(memory.buffers, Relaxed);
        self.restoring.fetch_max(memory.restoring, Relaxed);
        self.samples.fetch_add(1, Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b10_buffers_and_restores_are_reported_and_inside_the_limit() {
    const LIMIT: u64 = 4 << 20;
    const SLICE: u64 = LIMIT / 8;
    let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
        .memory_limit(LIMIT)
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(TierSpec::new(MemoryStore::new()))
        .build()
        .unwrap();
    assert_eq!(buffer.usage().memory.limit, LIMIT - SLICE);
    let (worst, stop) = (Arc::new(Worst::default()), Arc::new(AtomicBool::new(false)));
    let sampler = std::thread::spawn({
        let (buffer, worst, stop) = (buffer.clone(), worst.clone(), stop.clone());
        move || {
            while !stop.load(Relaxed) {
                worst.note(&buffer.usage());
            }
        }
    });
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let buffer = buffer.clone();
            tokio::spawn(async move {
                for round in 0..600 {
                    let key = worker * 1000 + round % 300;
                    buffer.insert(key, vec![7; 8 << 10]).await.unwrap();
                    let other = worker * 1000 + (round * 7) % 300;
                    buffer.get(&other).await.unwrap();
                    let some: Vec<u64> =
                        (0..4).map(|step| worker * 1000 + (round + step * 70) % 300).collect();
                    buffer.get_many(&some).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    stop.store(true, Relaxed);
    sampler.join().unwrap();
    let [resident, with_restores, buffers, restoring] =
        [&worst.resident, &worst.with_restores, &worst.buffers, &worst.restoring]
            .map(|max| max.load(Relaxed));
    println!("{} samples: {resident} {with_restores} {buffers} {restoring}", worst.samples.load(Relaxed));
    assert!(resident <= LIMIT - SLICE, "{resident}");
    assert!(with_restores <= LIMIT - SLICE, "{with_restores}");
    assert!(buffers > 0 && buffers <= SLICE, "{buffers}");
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b10_a_restore_in_flight_is_reported_until_it_ends() {
    let faults = Faults::new();
    let buffer = exact(300, OnFull::Reject).tier(faulty_tier(&faults)).build().unwrap();
    fill(&buffer, "ab", 100).await;
    buffer.spill(&'a').await.unwrap();
    let gate = faults.hold(Operation::Get);
    let reading = tokio::spawn({
        let buffer = buffer.clone();
        async move { read(&buffer, 'a').await }
    });
    gate.held(1).await;
    let memory = buffer.usage().memory;
    assert_eq!((memory.resident.weight, memory.restoring, memory.buffers), (100, 100, 192));
    // Its room is taken: 100 are left, not 200.
    fill(&buffer, "c", 200).await;
    assert_eq!(buffer.usage().memory.resident.weight, 200);
    gate.release();
    assert_eq!(reading.await.unwrap(), Lump::new('a', 100));
    rests(&buffer, at_rest(300, 100, 2 * 192)).await;
    ends_empty(buffer).await;
}

/// A failed write or read gives its buffers back like a good one.
#[tokio::test(start_paused = true)]
async fn b10_nothing_stays_taken_after_failures() {
    let faults = Faults::new();
    let buffer = exact(300, OnFull::Reject).tier(faulty_tier(&faults)).build().unwrap();
    fill(&buffer, "abcd", 100).await;
    faults.fail(Operation::Put, StoreErrorKind::Transient);
    faults.fail(Operation::Get, StoreErrorKind::Transient);
    for _ in 0..20 {
        assert_eq!(kind(&buffer.insert('h', Lump::new('h', 301)).await.unwrap_err()), "Full");
        assert_eq!(kind(&buffer.insert('e', Lump::new('e', 100)).await.unwrap_err()), "Full");
        buffer.get(&'a').await.unwrap_err();
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    rests(&buffer, at_rest(300, 100, 192)).await;
    ends_empty(buffer).await;
}
