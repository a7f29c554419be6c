//! The suite for codecs.
//!
//! Not proven: anything about values that are not among the samples, and what damage that leaves a valid
//! encoding turns a value into; the frame's checksum is there for that.

use std::{fmt::Debug, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use spill_core::Codec;

use crate::{
    random::Random,
    runner::{Suite, Verdict, ensure},
};

const LIMIT: Duration = Duration::from_secs(60);
/// The most positions of one sample that are cut at or damaged.
const POSITIONS: usize = 300;

struct Subject<C, V> {
    codec: C,
    samples: Vec<V>,
}

/// The checks for a codec over sample values, named `codec/<name>/<check>`.
///
/// Give it the values that are likely to go wrong: empty ones, the largest, each variant of an enum.
///
/// ```
/// use spill_core::BytesCodec;
/// let samples = vec![Vec::new(), vec![0], vec![7; 5000]];
/// spill_conformance::codec_suite("bytes", BytesCodec, samples).report().assert_passed();
/// ```
pub fn codec_suite<V, C>(name: &str, codec: C, samples: Vec<V>) -> Suite
where
    V: PartialEq + Debug + Send + Sync + 'static,
    C: Codec<V>,
{
    type Check<C, V> = fn(&Arc<Subject<C, V>>) -> Verdict;
    let checks: [(&str, Check<C, V>); 5] = [
        ("what_is_encoded_comes_back", what_is_encoded_comes_back),
        ("a_cut_off_end_never_panics", a_cut_off_end_never_panics),
        ("damage_never_panics", damage_never_panics),
        ("garbage_never_panics", garbage_never_panics),
        ("works_from_many_threads", works_from_many_threads),
    ];
    let subject = Arc::new(Subject { codec, samples });
    let mut suite = Suite::new("codec", name);
    for (check_name, check) in checks {
        let subject = Arc::clone(&subject);
        suite.add_bounded(format!("codec/{name}/{check_name}"), LIMIT, move || check(&subject));
    }
    suite
}

impl<C: Codec<V>, V: PartialEq + Debug> Subject<C, V> {
    fn round_trip(&self, index: usize) -> Verdict {
        let value = &self.samples[index];
        let encoded =
            self.codec.encode(value).map_err(|error| format!("encode of sample {index}: {error}"))?;
        let decoded = self
            .codec
            .decode(encoded.to_bytes())
            .map_err(|error| format!("decode of sample {index}: {error}"))?;
        ensure!(decoded == *value, "sample {index}: another value comes back: {decoded:?}, wanted {value:?}");
        Ok(())
    }

    fn encoded(&self) -> impl Iterator<Item = Vec<u8>> {
        self.samples.iter().filter_map(|value| Some(self.codec.encode(value).ok()?.to_bytes().into()))
    }
}

fn what_is_encoded_comes_back<C: Codec<V>, V: PartialEq + Debug>(subject: &Arc<Subject<C, V>>) -> Verdict {
    ensure!(!subject.samples.is_empty(), "there are no samples: nothing can be checked");
    (0..subject.samples.len()).try_for_each(|index| subject.round_trip(index))
}

fn positions(len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(len / POSITIONS + 1)
}

fn a_cut_off_end_never_panics<C: Codec<V>, V: PartialEq + Debug>(subject: &Arc<Subject<C, V>>) -> Verdict {
    for encoded in subject.encoded().map(Bytes::from) {
        for len in positions(encoded.len()) {
            let _ = subject.codec.decode(encoded.slice(..len));
            let _ = subject.codec.decode(encoded.slice(len..));
        }
    }
    Ok(())
}

fn damage_never_panics<C: Codec<V>, V: PartialEq + Debug>(subject: &Arc<Subject<C, V>>) -> Verdict {
    for encoded in subject.encoded() {
        for at in positions(encoded.len()) {
            for flip in [1, 0x80, 0xFF] {
                let mut damaged = encoded.clone();
                damaged[at] ^= flip;
                let _ = subject.codec.decode(damaged.into());
            }
        }
    }
    Ok(())
}

fn garbage_never_panics<C: Codec<V>, V: PartialEq + Debug>(subject: &Arc<Subject<C, V>>) -> Verdict {
    let mut random = Random::new(17);
    for _ in 0..1000 {
        let len = random.below(200);
        let _ = subject.codec.decode(random.bytes(len).into());
    }
    for byte in [0, 0x7F, 0x80, 0xFF] {
        let _ = subject.codec.decode(vec![byte; 100].into());
    }
    Ok(())
}

fn works_from_many_threads<C, V>(subject: &Arc<Subject<C, V>>) -> Verdict
where
    V: PartialEq + Debug + Send + Sync + 'static,
    C: Codec<V>,
{
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let subject = Arc::clone(subject);
            thread::spawn(move || (0..subject.samples.len()).try_for_each(|index| subject.round_trip(index)))
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "panicked when it was used from many threads")??;
    }
    Ok(())
}
