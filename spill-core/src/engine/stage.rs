//! Encoding: values become frames, many of them in one reused buffer, the large ones beside it uncopied.

use std::{
    ops::{Deref, DerefMut, Range},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::guarded;
use crate::{
    Codec, CodecError, Payload, Tag,
    blobs::FrameLen,
    chooser::{Plan, Tally},
    frame::{ALIGN, Compression, Header, checksum, frame_len},
    table::Item,
};

/// A value at least this long is not copied into the stage when it is stored as it is: the store takes it from
/// where it lies.
const UNCOPIED_FROM: usize = 64 << 10;

/// Zeros to pad with.
static ZEROS: [u8; ALIGN] = [0; ALIGN];

/// Buffers for staging, reused because a page's first touch costs more than copying into it ten times.
#[derive(Debug)]
pub(crate) struct StagePool {
    /// Bytes of frames that a stage takes.
    size: usize,
    keep: usize,
    idle: Mutex<Vec<Memory>>,
}

/// A stage begins at a multiple of this: a page, so that a store may write past the page cache from it.
const PAGE: usize = 4096;

/// Bytes that begin at a page.
#[derive(Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Memory {
    fn new(size: usize) -> Self {
        let bytes = vec![0; size + PAGE];
        let start = bytes.as_ptr().addr().wrapping_neg() % PAGE;
        Self { bytes, start, end: start + size }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }
}

impl StagePool {
    pub(crate) fn new(size: usize, keep: usize) -> Arc<Self> {
        Arc::new(Self { size, keep, idle: Mutex::default() })
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn take(self: &Arc<Self>) -> Stage {
        let idle = self.idle.lock().pop();
        Stage { bytes: idle.unwrap_or_else(|| Memory::new(self.size)), pool: self.clone() }
    }
}

/// One buffer; goes back to the pool when the last slice of it is dropped.
struct Stage {
    bytes: Memory,
    pool: Arc<StagePool>,
}

impl AsRef<[u8]> for Stage {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.lock();
        if idle.len() < self.pool.keep {
            idle.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// How the values of one tier become frames.
#[derive(Clone, Debug)]
pub(crate) struct Framing {
    pub(crate) owner: u64,
    /// Ways to compress, and which of them to take.
    pub(crate) ways: Arc<[Compression]>,
    pub(crate) plan: Plan,
    pub(crate) max_bytes: usize,
    pub(crate) max_entries: usize,
}

/// An item as a frame.
#[derive(Debug)]
pub(crate) struct Framed<K, V> {
    pub(crate) item: Item<K, V>,
    pub(crate) len: FrameLen,
    staged: Range<usize>,
    body: Payload,
}

/// What staging came to.
#[derive(Debug)]
pub(crate) struct Staged<K, V> {
    pub(crate) frames: Vec<Framed<K, V>>,
    pub(crate) unencodable: Vec<(Item<K, V>, CodecError)>,
    /// Did not fit any more.
    pub(crate) rest: Vec<Item<K, V>>,
    buffer: Bytes,
    pub(crate) encoding: std::time::Duration,
    /// What was done with each way to compress.
    pub(crate) done: Vec<Tally>,
}

/// Makes frames of items in order, until one blob is full.
pub(crate) fn stage<K, V: 'static>(
    items: Vec<Item<K, V>>,
    framing: &Framing,
    codec: &dyn Codec<V>,
    pool: &Arc<StagePool>,
) -> Staged<K, V> {
    let mut work =
        Work { stage: pool.take(), at: 0, total: 0, done: vec![Tally::default(); framing.ways.len()] };
    let (mut frames, mut unencodable, mut rest) = (Vec::with_capacity(items.len()), Vec::new(), Vec::new());
    let mut encoding = std::time::Duration::ZERO;
    let mut items = items.into_iter();
    for mut item in items.by_ref() {
        let started = Instant::now();
        let encoded = match item.encoded.take() {
            Some(encoded) => Ok(encoded),
            None => guarded(|| codec.encode(&item.value)).unwrap_or_else(|panic| Err(CodecError::new(panic))),
        };
        encoding += started.elapsed();
        let payload = match encoded {
            Ok(payload) => payload,
            Err(error) => {
                unencodable.push((item, error));
                continue;
            }
        };
        let full = frames.len() == framing.max_entries;
        match (!full).then(|| work.frame(&item, &payload, framing, frames.is_empty())).flatten() {
            Some((len, staged, body)) => frames.push(Framed { item, len, staged, body }),
            None => {
                item.encoded = Some(payload);
                rest.push(item);
                break;
            }
        }
    }
    rest.extend(items);
    let done = work.done;
    Staged { frames, unencodable, rest, buffer: Bytes::from_owner(work.stage), encoding, done }
}

struct Work {
    stage: Stage,
    /// Bytes of the stage in use.
    at: usize,
    /// Bytes of all frames so far.
    total: usize,
    done: Vec<Tally>,
}

impl Work {
    /// Makes one frame. `None`: this blob has no room for it; never for the first.
    fn frame<K, V>(
        &mut self,
        item: &Item<K, V>,
        raw: &Payload,
        framing: &Framing,
        first: bool,
    ) -> Option<(FrameLen, Range<usize>, Payload)> {
        let (at, left) = (self.at + ALIGN, self.stage.bytes.len().saturating_sub(self.at));
        let way = framing.plan.next(&self.done);
        let compression = framing.ways.get(way)?;
        let tries = compression.tries(raw.len());
        let worst = if tries { compression.bound(raw.len()) } else { raw.len() };
        let worst_frame = ALIGN + worst.next_multiple_of(ALIGN);
        let uncopied = !tries && raw.len() >= UNCOPIED_FROM;
        // What lies in the stage is never more than the total, so whatever passes here fits there as well.
        if !first && self.total + worst_frame > framing.max_bytes {
            return None;
        }
        let (tag, len, body) = if worst_frame > left || uncopied {
            self.beside(raw, compression, way, worst)
        } else {
            self.inside(raw, compression, way, at..at + worst)
        };
        let (in_stage, crc) = match &body {
            Some(body) => (0, checksum(body)),
            None => (len.next_multiple_of(ALIGN), crc32c::crc32c(&self.stage.bytes[at..at + len])),
        };
        let header = Header {
            owner: framing.owner,
            entry: item.id,
            tag,
            encoded: raw.len() as u64,
            payload: len as u64,
            crc,
        };
        self.stage.bytes[self.at..at].copy_from_slice(&header.to_bytes());
        self.stage.bytes[at + len.min(in_stage)..at + in_stage].fill(0);
        let staged = self.at..at + in_stage;
        self.at = staged.end;
        let stored = frame_len(len as u64);
        self.total += usize::try_from(stored).ok()?;
        self.done[way].raw += raw.len() as u64;
        self.done[way].stored += stored;
        Some((FrameLen { stored, encoded: raw.len() as u64 }, staged, body.unwrap_or_default()))
    }

    /// The payload goes into the stage, unless it turns out to be better left where it is.
    fn inside(
        &mut self,
        raw: &Payload,
        compression: &Compression,
        way: usize,
        place: Range<usize>,
    ) -> (Tag, usize, Option<Payload>) {
        let out = &mut self.stage.bytes[place];
        if compression.tries(raw.len()) {
            let started = Instant::now();
            let packed = compress(compression, &raw.to_bytes(), out);
            self.done[way].nanos += nanos_since(started);
            match packed {
                Some((tag, len)) => return (tag, len, None),
                None if raw.len() >= UNCOPIED_FROM => return (Tag::NONE, raw.len(), Some(raw.clone())),
                None => {}
            }
        }
        raw.copy_to_slice(out);
        (Tag::NONE, raw.len(), None)
    }

    /// The payload stays beside the stage.
    fn beside(
        &mut self,
        raw: &Payload,
        compression: &Compression,
        way: usize,
        worst: usize,
    ) -> (Tag, usize, Option<Payload>) {
        if compression.tries(raw.len()) {
            let started = Instant::now();
            let mut out = vec![0; worst];
            let packed = compress(compression, &raw.to_bytes(), &mut out);
            self.done[way].nanos += nanos_since(started);
            if let Some((tag, len)) = packed {
                out.truncate(len);
                out.shrink_to_fit();
                return (tag, len, Some(out.into()));
            }
        }
        (Tag::NONE, raw.len(), Some(raw.clone()))
    }
}

fn nanos_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A compressor that panics counts as one that can't: the value is stored as it is.
fn compress(compression: &Compression, raw: &[u8], out: &mut [u8]) -> Option<(Tag, usize)> {
    guarded(|| compression.compress(raw, out)).unwrap_or_default()
}

/// The bytes of a blob of these frames, in this order.
pub(crate) fn blob<'a, K: 'a, V: 'a>(
    buffer: &Bytes,
    frames: impl Iterator<Item = &'a Framed<K, V>>,
) -> Payload {
    let mut payload = Payload::new();
    // Frames that lie one behind the other in the stage are written as one piece.
    let mut run = 0..0;
    let flush = |run: &mut Range<usize>, next: usize, payload: &mut Payload| {
        payload.push(buffer.slice(run.clone()));
        *run = next..next;
    };
    for frame in frames {
        if frame.staged.start != run.end {
            flush(&mut run, frame.staged.start, &mut payload);
        }
        run.end = frame.staged.end;
        if !frame.body.is_empty() {
            flush(&mut run, frame.staged.end, &mut payload);
            frame.body.chunks().for_each(|chunk| payload.push(chunk.clone()));
            payload.push(Bytes::from_static(&ZEROS[..padding(frame.body.len())]));
        }
    }
    payload.push(buffer.slice(run));
    payload
}

fn padding(len: usize) -> usize {
    len.next_multiple_of(ALIGN) - len
}

impl<K, V> Staged<K, V> {
    /// Time compressing.
    pub(crate) fn compressing(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.done.iter().map(|tally| tally.nanos).sum())
    }

    pub(crate) fn buffer(&self) -> &Bytes {
        &self.buffer
    }
}
