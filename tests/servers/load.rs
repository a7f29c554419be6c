//! Buffers in this process over a bucket: how many requests they make, and that they share a prefix.

use std::{net::SocketAddr, sync::Arc};

use spill_buffer::{ByteLength, BytesCodec, SpillBuffer, TierSpec, registry};
use spill_buffer::{Options, Store};
use spill_conformance::{FaultStore, Faults, Operation};

use crate::weed::{ACCESS_KEY, BUCKET, SECRET_KEY, Weed};

const MIB: u64 = 1 << 20;

fn on_a_runtime<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

async fn open(endpoint: SocketAddr, prefix: &str) -> Arc<dyn Store> {
    let options = Options::new()
        .with("endpoint", format!("http://{endpoint}"))
        .with("allow_http", "true")
        .with("region", "us-east-1")
        .with("access_key_id", ACCESS_KEY)
        .with("secret_access_key", SECRET_KEY);
    let url = format!("s3://{BUCKET}/{prefix}").parse().unwrap();
    registry().store("s3").unwrap().open(&url, options).await.unwrap()
}

fn value(key: u64) -> Vec<u8> {
    let bytes: Vec<u8> = (0..512_u64)
        .flat_map(|n| (key << 16 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    assert_eq!(bytes.len(), 4096);
    bytes
}

/// At most one PUT per 8 MiB spilled, one GET per restore, deletes in batches: 4 KiB values under load.
pub(crate) fn few_requests_for_many_values(weed: &mut Weed) {
    const MEMORY: u64 = 512 * MIB;
    const SPILLED: u64 = 192 * MIB;
    on_a_runtime(async {
        let faults = Faults::new();
        let store = FaultStore::new(open(weed.address(), "requests").await, faults.clone());
        let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
            .memory_limit(MEMORY)
            .codec(BytesCodec)
            .weigher(ByteLength)
            .tier(TierSpec::new(store))
            .build()
            .unwrap();
        let keys = (MEMORY + SPILLED) / 4096;
        for key in 0..keys {
            buffer.insert(key, value(key)).await.unwrap();
        }
        buffer.reclaim(0).await.unwrap();
        let stats = buffer.stats();
        let puts = faults.counts(Operation::Put).started;
        println!("{} MiB spilled by {puts} PUTs", stats.bytes_written / MIB);
        assert!(puts * 8 * MIB <= stats.bytes_written, "{puts} PUTs for {} bytes", stats.bytes_written);

        let (mut restored, gets_before) = (0, faults.counts(Operation::Get).started);
        for key in (0..keys).step_by(97) {
            let before = buffer.stats().hits_restored;
            assert_eq!(*buffer.get(&key).await.unwrap().unwrap(), value(key));
            restored += buffer.stats().hits_restored - before;
        }
        let gets = faults.counts(Operation::Get).started - gets_before;
        println!("{restored} restores by {gets} GETs");
        assert!(restored > 100 && gets <= restored);

        let blobs = buffer.usage().tiers[0].blobs;
        buffer.clear().unwrap();
        buffer.close().await.unwrap();
        let deletes = faults.counts(Operation::Delete).started;
        println!("{blobs} blobs deleted by {deletes} calls and closing");
        assert!(deletes < blobs);
    });
}

/// Two buffers on one prefix do not see each other.
pub(crate) fn two_buffers_share_a_prefix(weed: &mut Weed) {
    on_a_runtime(async {
        let address = weed.address();
        let work = |name: u64| async move {
            let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
                .memory_limit(MIB)
                .codec(BytesCodec)
                .weigher(ByteLength)
                .tier(TierSpec::from_arc(open(address, "shared").await))
                .build()
                .unwrap();
            for key in 0..2000 {
                buffer.insert(key, value(key << 8 | name)).await.unwrap();
            }
            for key in 0..2000 {
                assert_eq!(
                    *buffer.get(&key).await.unwrap().unwrap(),
                    value(key << 8 | name),
                    "{key} of {name}"
                );
            }
            assert!(buffer.usage().tiers[0].stored > 0);
            buffer.close().await.unwrap();
            assert!(buffer.usage().is_empty());
        };
        tokio::join!(work(1), work(2));
    });
}
