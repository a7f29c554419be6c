//! Rules C: compression and frames.

use std::{sync::Arc, time::Instant};

use spill_buffer::{
    Compressor, Error, MemoryStore, OnFull, Store, Tag, TierSpec,
    compress::{Lz4, Snappy, Zstd},
};

use crate::harness::*;

/// Every shipped one, and none.
fn compressors() -> Vec<(Tag, Option<Arc<dyn Compressor>>)> {
    let shipped: [Arc<dyn Compressor>; 4] =
        [Arc::new(Lz4), Arc::new(Snappy::new()), Arc::new(Zstd::default()), Arc::new(Zstd::new(9).unwrap())];
    let shipped = shipped.into_iter().map(|compressor| (compressor.tag(), Some(compressor)));
    std::iter::once((Tag::NONE, None)).chain(shipped).collect()
}

/// Text that every compressor makes fewer bytes.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let words = noise(seed, 64);
    (0..len).map(|at| words[at % 7 + at / 97 % 50] & 0x3f).collect()
}

/// The tag of every frame in a store, which holds a frame per blob.
async fn tags(store: &MemoryStore) -> Vec<Tag> {
    let mut tags = Vec::new();
    for blob in store.list(None, usize::MAX).await.unwrap() {
        let bytes = store.get(blob.id, 0..64).await.unwrap();
        tags.push(Tag(bytes[5]));
    }
    tags
}

/// One buffer, a tier per compressor, frames of all in one mix: each says itself how it is to be read.
#[tokio::test]
async fn c01_any_mix_of_frames_reads_back() {
    let mut builder = exact(100_000);
    let (mut stores, mut expected) = (Vec::new(), Vec::new());
    for (number, (tag, compressor)) in compressors().into_iter().enumerate() {
        let store = MemoryStore::new();
        let tier = TierSpec::new(store.clone()).name(format!("tier {number}")).batch_entries(1);
        builder = builder.tier(tier.compress_with(compressor).max_spill(0));
        stores.push(store);
        expected.push(tag);
    }
    let buffer = builder.build().unwrap();
    // A tier after the other is opened, so that each gets some.
    for tier in 0..stores.len() {
        assert!(buffer.set_max_spill(tier, None));
        for key in 0..4 {
            let key = tier as u64 * 4 + key;
            put_away(&buffer, key, text(key, 5000)).await;
        }
        assert!(buffer.set_max_spill(tier, Some(0)));
    }
    for (store, tag) in stores.iter().zip(expected) {
        assert_eq!(tags(store).await, [tag; 4]);
    }
    for key in 0..stores.len() as u64 * 4 {
        assert_eq!(get(&buffer, key).await.unwrap(), text(key, 5000), "{key}");
    }
    finish(buffer).await;
}

/// What a buffer writes with one it reads whichever others are registered, and in whatever order.
#[tokio::test]
async fn c01_frames_of_one_are_read_with_others_registered() {
    for (tag, writes) in compressors() {
        let store = MemoryStore::new();
        let tier = TierSpec::new(store.clone()).batch_entries(1).compress_with(writes);
        let mut builder = exact(10_000).tier(tier);
        for (_, other) in compressors().into_iter().rev() {
            builder = other.into_iter().fold(builder, spill_buffer::Builder::compressor);
        }
        let buffer = builder.build().unwrap();
        put_away(&buffer, 1, text(1, 5000)).await;
        assert_eq!(tags(&store).await, [tag]);
        assert_eq!(get(&buffer, 1).await.unwrap(), text(1, 5000));
        finish(buffer).await;
    }
}

/// Looks as if it compressed by half; answers with an error, a panic, or other bytes when read.
#[derive(Clone, Copy, Debug)]
enum Treacherous {
    Fails,
    Panics,
}

impl Compressor for Treacherous {
    fn tag(&self) -> Tag {
        Tag(200)
    }

    fn name(&self) -> &'static str {
        "treacherous"
    }

    fn bound(&self, raw: usize) -> usize {
        raw
    }

    fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, spill_buffer::CompressError> {
        if raw[0] == 0 {
            panic!("a compressor that panics");
        }
        out[..raw.len() / 2].copy_from_slice(&raw[..raw.len() / 2]);
        Ok(raw.len() / 2)
    }

    fn decompress(&self, _packed: &[u8], _out: &mut [u8]) -> Result<(), spill_buffer::CompressError> {
        match self {
            Self::Fails => Err(spill_buffer::CompressError::new("treacherous", "never again")),
            Self::Panics => panic!("a decompressor that panics"),
        }
    }
}

#[tokio::test]
async fn c03_a_compressor_that_fails_or_panics_hurts_only_its_values() {
    for compressor in [Treacherous::Fails, Treacherous::Panics] {
        let tier = TierSpec::new(MemoryStore::new()).compress(compressor);
        let buffer = exact(100_000).tier(tier).build().unwrap();
        buffer.insert(1, vec![1; 1000]).await.unwrap();
        buffer.insert(2, vec![0; 1000]).await.unwrap(); // panics when compressed: stored as it is
        buffer.insert(3, vec![3; 100]).await.unwrap(); // too small to be tried
        buffer.reclaim(u64::MAX).await.unwrap();
        let error = buffer.get(&1).await.unwrap_err();
        assert!(matches!(&error, Error::Corrupt { key, .. } if key == "1"), "{error}");
        assert_eq!(get(&buffer, 2).await.unwrap(), [0; 1000]);
        assert_eq!(get(&buffer, 3).await.unwrap(), [3; 100]);
        assert!(buffer.remove(&1).unwrap());
        finish(buffer).await;
    }
}

/// Every byte of a stored frame, changed, is found by a checksum before a compressor sees it.
#[tokio::test]
async fn c03_damage_is_found_wherever_it_is() {
    for (_, compressor) in compressors() {
        let store = MemoryStore::new();
        let tier = TierSpec::new(store.clone()).batch_entries(1).compress_with(compressor);
        let buffer = exact(1000).tier(tier).build().unwrap();
        put_away(&buffer, 1, text(1, 900)).await;
        let blob = store.list(None, 1).await.unwrap()[0];
        let len = usize::try_from(blob.stored.bytes).unwrap();
        for at in 0..len {
            let flip = |mut bytes: Vec<u8>| {
                bytes[at] ^= 1 << (at % 8);
                Some(bytes)
            };
            store.tamper(blob.id, flip);
            let error = buffer.get(&1).await.expect_err("damaged");
            assert!(matches!(error, Error::Corrupt { .. }), "byte {at}: {error}");
            store.tamper(blob.id, flip);
        }
        assert_eq!(get(&buffer, 1).await.unwrap(), text(1, 900), "whole again");
        finish(buffer).await;
    }
}

#[tokio::test]
async fn c02_what_does_not_shrink_is_stored_as_it_is() {
    for (tag, compressor) in compressors() {
        let store = MemoryStore::new();
        let tier = TierSpec::new(store.clone()).batch_entries(1).compress_with(compressor);
        let buffer = exact(4 << 20).tier(tier).build().unwrap();
        // Twice: the choice depends on the bytes alone.
        for key in 0..2 {
            put_away(&buffer, key, noise(2, 1 << 20)).await;
        }
        // Compressible at its head only: sampled over its whole length.
        let mut mixed = noise(3, 1 << 20);
        mixed[..64 << 10].fill(b'a');
        put_away(&buffer, 2, mixed).await;
        assert_eq!(tags(&store).await, [Tag::NONE; 3]);
        let stored: Vec<u64> =
            store.list(None, 9).await.unwrap().iter().map(|blob| blob.stored.bytes).collect();
        assert_eq!(stored, [frame(1 << 20); 3]);
        put_away(&buffer, 3, text(4, 1 << 20)).await;
        assert_eq!(tags(&store).await[3], tag);
        assert_eq!(get(&buffer, 0).await.unwrap(), noise(2, 1 << 20));
        finish(buffer).await;
    }
}

/// Trying costs little: the samples are a sixty-fourth of a value of 1 MiB.
#[tokio::test]
async fn c02_trying_touches_only_samples() {
    /// Counts the bytes it is shown.
    #[derive(Debug)]
    struct Shown(Arc<std::sync::atomic::AtomicUsize>);

    impl Compressor for Shown {
        fn tag(&self) -> Tag {
            Tag(201)
        }
        fn name(&self) -> &'static str {
            "shown"
        }
        fn bound(&self, raw: usize) -> usize {
            raw
        }
        fn compress(&self, raw: &[u8], _out: &mut [u8]) -> Result<usize, spill_buffer::CompressError> {
            self.0.fetch_add(raw.len(), std::sync::atomic::Ordering::SeqCst);
            Ok(raw.len())
        }
        fn decompress(&self, _: &[u8], _: &mut [u8]) -> Result<(), spill_buffer::CompressError> {
            unreachable!("nothing was compressed")
        }
    }

    let shown = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let tier = TierSpec::new(MemoryStore::new()).compress(Shown(shown.clone()));
    let buffer = exact(4 << 20).tier(tier).build().unwrap();
    put_away(&buffer, 1, noise(1, 1 << 20)).await;
    let shown = shown.load(std::sync::atomic::Ordering::SeqCst);
    assert!(shown > 0 && shown < (1 << 20) / 20, "{shown} bytes were shown to the compressor");
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 1 << 20));
    finish(buffer).await;
}

/// Around the header and padding, what is too small to compress, a page, work done on the spot, what is not
/// copied, what is sampled, and a batch.
fn boundary_sizes() -> Vec<usize> {
    let around = [64, 128, 4096, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];
    let around = around.into_iter().flat_map(|size: usize| [size - 64, size - 1, size, size + 1, size + 64]);
    let mut sizes: Vec<usize> = [0, 1, 2].into_iter().chain(around).collect();
    sizes.sort_unstable();
    sizes.dedup();
    assert!([0, 1, 63, 65, 127, 129, 4095, 4096, 4097].iter().all(|size| sizes.contains(size)));
    sizes
}

#[tokio::test]
async fn c04_every_size_round_trips_under_every_compressor() {
    let sizes = boundary_sizes();
    for (tag, compressor) in compressors() {
        let tier = TierSpec::new(MemoryStore::new()).compress_with(compressor);
        // Some are light and some heavy, some are batched and some alone.
        let buffer = exact(3 << 20).exact(OnFull::Reject).tier(tier).build().unwrap();
        for (key, len) in (0..).zip(&sizes) {
            buffer.insert(key, noise(key, *len)).await.unwrap();
            buffer.insert(1000 + key, text(key, *len)).await.unwrap();
        }
        buffer.reclaim(u64::MAX).await.unwrap();
        for (key, len) in (0..).zip(&sizes) {
            assert!(get(&buffer, key).await.unwrap() == noise(key, *len), "{tag:?}: noise, {len} bytes");
            assert!(get(&buffer, 1000 + key).await.unwrap() == text(key, *len), "{tag:?}: text, {len} bytes");
        }
        finish(buffer).await;
    }
}

#[tokio::test]
async fn c04_64_mib_round_trip_under_every_compressor() {
    const LEN: usize = 64 << 20;
    let started = Instant::now();
    let piece = text(1, 1 << 20);
    for (tag, compressor) in compressors() {
        let tier = TierSpec::new(MemoryStore::new()).compress_with(compressor);
        let buffer = exact(1 << 20).tier(tier).build().unwrap();
        for len in [LEN - 1, LEN, LEN + 1] {
            let value: Vec<u8> = piece.iter().copied().cycle().take(len).collect();
            buffer.insert(1, value).await.unwrap();
            let back = buffer.take(&1).await.unwrap().unwrap();
            assert_eq!(back.len(), len);
            let same = back.chunks(piece.len()).all(|chunk| *chunk == piece[..chunk.len()]);
            assert!(same, "{tag:?}: {len} bytes");
        }
        swept(&buffer).await;
        finish(buffer).await;
        println!("{tag:?}: done after {:?}", started.elapsed());
    }
}

/// Values that are themselves frames, taken from a store, change nothing.
#[tokio::test]
async fn c04_values_that_look_like_frames_round_trip() {
    for (_, compressor) in compressors() {
        let store = MemoryStore::new();
        let tier = TierSpec::new(store.clone()).compress_with(compressor);
        let buffer = exact(1 << 20).tier(tier).build().unwrap();
        for key in 0..3 {
            buffer.insert(key, text(key, 300)).await.unwrap();
        }
        buffer.reclaim(u64::MAX).await.unwrap();
        let blob = store.list(None, 1).await.unwrap()[0];
        let frames = store.get(blob.id, 0..blob.stored.bytes).await.unwrap().to_vec();
        let cut = frames[..frames.len() - 1].to_vec();
        let headers: Vec<u8> = frames[..64].repeat(20);
        for (key, value) in (10..).zip([&frames, &cut, &headers]) {
            buffer.insert(key, value.clone()).await.unwrap();
        }
        buffer.reclaim(u64::MAX).await.unwrap();
        for (key, value) in (10..).zip([&frames, &cut, &headers]) {
            assert_eq!(get(&buffer, key).await.as_ref(), Some(value));
        }
        for key in 0..3 {
            assert_eq!(get(&buffer, key).await.unwrap(), text(key, 300));
        }
        finish(buffer).await;
    }
}
