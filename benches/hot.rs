//! The paths every request takes: a hit, a miss, an insert with room. `cargo bench --bench hot`.
#![expect(clippy::expect_used, reason = "a bench that can't be set up ends with a panic")]
#![allow(missing_docs, reason = "what criterion's macros make has none")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use spill_buffer::{BytesCodec, MemoryStore, SpillBuffer, TierSpec};

const KEYS: u64 = 100_000;

fn buffer(runtime: &tokio::runtime::Runtime) -> SpillBuffer<u64, Vec<u8>> {
    let _inside = runtime.enter();
    SpillBuffer::builder()
        .memory_limit(1 << 30)
        .codec(BytesCodec)
        .weigher(|_: &u64, value: &Vec<u8>| value.len() as u64)
        .tier(TierSpec::new(MemoryStore::new()))
        .build()
        .expect("a valid buffer")
}

fn hot(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let buffer = buffer(&runtime);
    runtime.block_on(async {
        for key in 0..KEYS {
            buffer.insert(key, vec![0; 64]).await.expect("room");
        }
    });
    let mut key = 0u64;
    let mut next = move || {
        key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (key >> 33) % KEYS
    };
    criterion.bench_function("peek", |bencher| bencher.iter(|| black_box(buffer.peek(&next()))));
    let mut next_key = next;
    criterion.bench_function("get, resident", |bencher| {
        bencher.iter(|| runtime.block_on(async { black_box(buffer.get(&next_key()).await) }));
    });
    criterion.bench_function("get, absent", |bencher| {
        bencher.iter(|| runtime.block_on(async { black_box(buffer.get(&(KEYS + 1)).await) }));
    });
    criterion.bench_function("overwrite, resident", |bencher| {
        bencher.iter(|| {
            runtime.block_on(async { black_box(buffer.insert(next_key(), vec![0; 64]).await.is_ok()) })
        });
    });
}

criterion_group!(benches, hot);
criterion_main!(benches);
