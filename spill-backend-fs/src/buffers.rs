//! Memory that values are read into, used again and again: on many machines the first touch of fresh memory costs
//! more than reading into it. Reading itself is in `store` and `ring`.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;

/// What is returned starts at a multiple of this in memory.
pub(crate) const ALIGNMENT: usize = 64;

/// Lengths of buffers are multiples of this.
const STEP: usize = 4096;

/// Bytes of buffers that wait to be used again, at most.
const IDLE: usize = 8 << 20;

/// What is shorter is copied out: so a value that stays for long takes no more memory than it needs.
const COPIED: usize = 32 << 10;

/// Buffers that wait to be used again.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    bytes: usize,
    by_length: BTreeMap<usize, Vec<Box<[u8]>>>,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("idle_bytes", &self.0.lock().bytes).finish()
    }
}

impl Buffers {
    /// A buffer with room for this many bytes from where it is aligned to `alignment`; `None` if there is no memory.
    /// What is in it is anything that was read before.
    pub(crate) fn take(self: &Arc<Self>, length: usize, alignment: usize) -> Option<Buffer> {
        let needed = length.checked_add(alignment)?.checked_next_multiple_of(STEP)?;
        let idle = self.0.lock().take(needed);
        let memory = match idle {
            Some(memory) => memory,
            None => fresh(needed)?,
        };
        let start = memory.as_ptr().addr().wrapping_neg() % alignment;
        Some(Buffer { memory, start, pool: Arc::clone(self) })
    }
}

/// Zeroed by the allocator, which knows what is zero already.
fn fresh(length: usize) -> Option<Box<[u8]>> {
    if length > isize::MAX as usize {
        return None;
    }
    Some(vec![0; length].into_boxed_slice())
}

impl Idle {
    /// One of this length, or a little longer.
    fn take(&mut self, needed: usize) -> Option<Box<[u8]>> {
        let (&length, buffers) = self.by_length.range_mut(needed..=needed + needed / 8).next()?;
        let memory = buffers.pop()?;
        if buffers.is_empty() {
            self.by_length.remove(&length);
        }
        self.bytes -= length;
        Some(memory)
    }

    /// Keeps this one; gives back others that are too much then.
    fn keep(&mut self, memory: Box<[u8]>) -> Vec<Box<[u8]>> {
        let mut surplus = Vec::new();
        if memory.len() > IDLE / 2 {
            surplus.push(memory);
            return surplus;
        }
        while self.bytes + memory.len() > IDLE {
            // Of other lengths first: this one is asked for now.
            let others = self.by_length.keys().rev().copied();
            let Some(length) = others.max_by_key(|length| *length != memory.len()) else { break };
            surplus.extend(self.take(length));
        }
        self.bytes += memory.len();
        self.by_length.entry(memory.len()).or_default().push(memory);
        surplus
    }
}

/// Memory in use; it goes back when it is dropped.
pub(crate) struct Buffer {
    memory: Box<[u8]>,
    /// Where it is aligned.
    start: usize,
    pool: Arc<Buffers>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("length", &self.memory.len()).finish_non_exhaustive()
    }
}

impl Buffer {
    /// From where it is aligned.
    pub(crate) fn aligned(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }

    /// A part of what is in it, counted from where it is aligned, in memory that starts at a multiple of
    /// [`ALIGNMENT`].
    pub(crate) fn into_bytes(mut self, part: Range<usize>) -> Bytes {
        let mut part = self.start + part.start..self.start + part.end;
        if part.len() < COPIED {
            return copy(&self.memory[part]);
        }
        let aligned = self.memory.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        if !(self.memory.as_ptr().addr() + part.start).is_multiple_of(ALIGNMENT) {
            self.memory.copy_within(part.clone(), aligned);
            part = aligned..aligned + part.len();
        }
        Bytes::from_owner(self).slice(part)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let surplus = self.pool.0.lock().keep(memory);
        // Not under the lock: giving back large pieces of memory takes long.
        drop(surplus);
    }
}

fn copy(bytes: &[u8]) -> Bytes {
    let mut copy: Vec<u8> = Vec::with_capacity(bytes.len() + ALIGNMENT - 1);
    let padding = copy.as_ptr().addr().wrapping_neg() % ALIGNMENT;
    copy.resize(padding, 0);
    copy.extend_from_slice(bytes);
    Bytes::from(copy).split_off(padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_returned_is_aligned_and_the_memory_is_used_again() {
        let pool = Arc::<Buffers>::default();
        let mut first = pool.take(100_000, 512).unwrap();
        first.aligned()[..100_000].fill(7);
        let place = first.aligned().as_ptr().addr();
        assert!(place.is_multiple_of(512));
        for start in [0, 1, 64, 511] {
            let mut buffer = pool.take(200_000, 512).unwrap();
            buffer.aligned()[start..start + 100].fill(9);
            let long = buffer.into_bytes(start..start + 100_000);
            assert!(long.as_ptr().addr().is_multiple_of(ALIGNMENT) && long[..100] == [9; 100]);
        }
        let bytes = first.into_bytes(512..612);
        assert!(bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) && bytes[..] == [7; 100]);
        assert_eq!(pool.take(100_000, 512).unwrap().aligned().as_ptr().addr(), place);
    }

    #[test]
    fn no_more_than_so_many_bytes_are_idle() {
        let pool = Arc::<Buffers>::default();
        for length in [1 << 20, 100_000, 10 << 20, 5000, 3 << 20] {
            let taken: Vec<_> = (0..20).map(|_| pool.take(length, 64).unwrap()).collect();
            drop(taken);
            let idle = pool.0.lock();
            let counted: usize = idle.by_length.iter().map(|(length, all)| length * all.len()).sum();
            assert!(counted == idle.bytes && idle.bytes <= IDLE, "{counted} {}", idle.bytes);
        }
    }

    #[test]
    fn no_memory_is_no_panic() {
        assert!(Arc::<Buffers>::default().take(usize::MAX - 100, 64).is_none());
    }
}
