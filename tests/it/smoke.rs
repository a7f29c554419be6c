use spill_buffer::{
    ByteLength, BytesCodec, MemoryStore, OnFull, SpillBuffer, TierSpec, compress::Lz4, policies::Lru,
};

#[tokio::test]
async fn exact() {
    let store = MemoryStore::new();
    let b = SpillBuffer::<u64, Vec<u8>>::builder()
        .memory_limit(300)
        .exact(OnFull::Reject)
        .policy(Lru::default())
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(TierSpec::new(store.clone()))
        .build()
        .unwrap();
    for k in 0..3 {
        b.insert(k, vec![k as u8; 100]).await.unwrap();
    }
    assert_eq!(b.usage().memory.resident.weight, 300);
    assert_eq!(b.usage().total().stored, 0);
    b.insert(3, vec![3; 100]).await.unwrap();
    assert!(b.peek(&0).is_none() && b.peek(&1).is_some());
    println!("{:#?}", b.usage());
    assert_eq!(b.get(&0).await.unwrap().unwrap()[..], [0; 100]);
    assert!(b.peek(&1).is_none());
    b.insert(4, vec![4; 500]).await.unwrap();
    assert!(b.peek(&4).is_none());
    assert_eq!(b.get(&4).await.unwrap().unwrap().len(), 500);
    println!("{:#?}", b.usage());
    assert_eq!(b.audit().await.unwrap(), Vec::<String>::new());
    b.close().await.unwrap();
    assert!(b.usage().is_empty(), "{:#?}", b.usage());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        spill_buffer::fs::FsStore::open(spill_buffer::fs::FsOptions::new(dir.path()).allow_tmpfs(true))
            .await
            .unwrap();
    let b = SpillBuffer::<u64, Vec<u8>>::builder()
        .memory_limit(8 << 20)
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(TierSpec::new(store).compress(Lz4))
        .build()
        .unwrap();
    let t = std::time::Instant::now();
    for k in 0..20_000u64 {
        b.insert(k, vec![k as u8; 4096]).await.unwrap();
    }
    println!("insert {:?} {:?}", t.elapsed(), b.stats());
    for k in 0..20_000u64 {
        assert_eq!(b.get(&k).await.unwrap().unwrap()[..], vec![k as u8; 4096]);
    }
    println!("get {:?} {:?}", t.elapsed(), b.stats());
    for k in 0..20_000u64 {
        if k % 2 == 0 {
            b.remove(&k).unwrap();
        }
    }
    println!("{:#?}", b.usage());
    b.close().await.unwrap();
    assert!(b.usage().is_empty(), "{:#?}", b.usage());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
