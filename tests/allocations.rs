//! G01: a hit costs no allocation. In a binary of its own, because it counts every allocation of a thread.

// A global allocator can't be written without it.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use spill_buffer::{ByteLength, BytesCodec, MemoryStore, OnFull, SpillBuffer, TierSpec};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more; nobody asks for it then.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; what it gives back came from `System`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`; what it gives back came from `System`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often this thread allocates during `work`.
fn allocations<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = ALLOCATIONS.get();
    let result = work();
    (ALLOCATIONS.get() - before, result)
}

/// The output of a future that is ready when it is first polled.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a hit had to wait"),
    }
}

#[tokio::test]
async fn g01_a_hit_allocates_nothing() {
    for policy in ["lru", "fifo", "clock", "s3-fifo", "sieve"] {
        let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
            .memory_limit(10_000)
            .exact(OnFull::Reject)
            .boxed_policy(spill_buffer::policies::by_name(policy).unwrap())
            .codec(BytesCodec)
            .weigher(ByteLength)
            .tier(TierSpec::new(MemoryStore::new()))
            .build()
            .unwrap();
        let resident = Arc::new(vec![1; 1000]);
        buffer.insert(1, resident.clone()).await.unwrap();
        buffer.insert(2, vec![2; 1000]).await.unwrap();
        buffer.spill(&2).await.unwrap();
        buffer.get(&2).await.unwrap().unwrap(); // a clean one from now on
        at_once(buffer.get(&1)).unwrap(); // the first read of a thread may set its counters up

        let (count, values) =
            allocations(|| [1, 2, 1, 2].map(|key| at_once(buffer.get(&key)).unwrap().unwrap()));
        assert_eq!(count, 0, "{policy}: {count} allocations for four hits");
        assert!(Arc::ptr_eq(&values[0], &resident) && Arc::ptr_eq(&values[0], &values[2]));
        assert_eq!((*values[1] == [2; 1000], Arc::ptr_eq(&values[1], &values[3])), (true, true));

        let (count, absent) = allocations(|| at_once(buffer.get(&3)).unwrap());
        assert_eq!((count, absent), (0, None), "{policy}: a miss");
        drop(values);
        buffer.close().await.unwrap();
    }
}

/// The counter counts: a test that could not fail would prove nothing.
#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| vec![0u8; 100]).0, 1);
    assert_eq!(allocations(|| std::hint::black_box(7)).0, 0);
}
