//! The books of one tier's blobs: which frames of which are live, who reads them, which are to be deleted.
//!
//! Per live frame they keep its key (to find its entry when the blob is compacted), eight bytes for its two
//! lengths, and one bit.

use std::{collections::BTreeSet, ops::Range};

use crate::{
    BlobId, Stored,
    table::{MAX_BLOBS, MAX_FRAMES},
    tier::Holdings,
};

/// The lengths of a blob's frames.
#[derive(Debug)]
enum Lengths {
    /// A blob of less than 4 GiB: where each frame ends, and the bytes its value had before compression.
    Packed(Box<[(u32, u32)]>),
    /// One frame of any size.
    Single { end: u64, encoded: u64 },
}

/// A frame about to be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLen {
    /// Bytes in the blob, header and padding included.
    pub(crate) stored: u64,
    /// Bytes of the value before compression.
    pub(crate) encoded: u64,
}

#[derive(Debug)]
pub(crate) struct Blob<K> {
    pub(crate) id: BlobId,
    pub(crate) keys: std::sync::Arc<[K]>,
    lengths: Lengths,
    dead: Box<[u64]>,
    live: u32,
    live_bytes: u64,
    readers: u32,
    stored: Stored,
    /// What its entries weigh when it is entered.
    weight: u64,
    /// Bytes of dead frames that were punched out.
    punched: u64,
    /// Not to be compacted: a frame of it is damaged.
    damaged: bool,
    /// It is among the doomed, or being deleted.
    doomed: bool,
    /// Punching it gave nothing back.
    punched_in_vain: bool,
    /// It is being moved to another tier.
    moving: bool,
    /// The lower, the longer ago its frames were written.
    age: u64,
}

/// A blob to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doomed {
    pub(crate) blob: u32,
    pub(crate) id: BlobId,
}

/// A blob to be compacted, with what is live in it.
#[derive(Debug)]
pub(crate) struct Worn<K> {
    pub(crate) blob: u32,
    pub(crate) id: BlobId,
    pub(crate) keys: std::sync::Arc<[K]>,
    /// Frame number and where it is.
    pub(crate) live: Vec<(usize, Range<u64>, u64)>,
    pub(crate) live_bytes: u64,
    pub(crate) total: u64,
    age: u64,
}

/// What is taken out of the books to be compacted together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bite {
    /// Only blobs of which less than this is alive, in thousandths.
    pub(crate) alive_below: u64,
    /// The most live bytes of a blob.
    pub(crate) longest: u64,
    /// The most of several.
    pub(crate) together: u64,
    /// The most live frames of several.
    pub(crate) frames: usize,
}

/// The most blobs that become one.
const MOST_TOGETHER: usize = 16;

impl<K> Blob<K> {
    /// A blob of these frames, in this order, all of them live. `None` when they are too many or too long
    /// for one blob.
    pub(crate) fn new(
        id: BlobId,
        keys: Vec<K>,
        frames: &[FrameLen],
        weight: u64,
        stored: Stored,
    ) -> Option<Self> {
        let live = u32::try_from(frames.len()).ok().filter(|_| frames.len() <= MAX_FRAMES)?;
        let live_bytes: u64 = frames.iter().map(|frame| frame.stored).sum();
        let lengths = match frames {
            [only] => Lengths::Single { end: only.stored, encoded: only.encoded },
            _ => Lengths::Packed(pack(frames)?),
        };
        Some(Self {
            id,
            keys: keys.into(),
            lengths,
            dead: vec![0; frames.len().div_ceil(64)].into(),
            live,
            live_bytes,
            readers: 0,
            stored,
            weight,
            punched: 0,
            damaged: false,
            doomed: false,
            punched_in_vain: false,
            moving: false,
            age: id.get(),
        })
    }

    /// The same, of frames that were in another blob before.
    pub(crate) fn with_age_of(mut self, copied: &Worn<K>) -> Self {
        self.age = copied.age;
        self
    }

    /// Whether its frame can't be in one blob with others.
    fn goes_alone(&self) -> bool {
        match self.lengths {
            Lengths::Single { end, encoded } => end.max(encoded) > u64::from(u32::MAX / 2),
            Lengths::Packed(_) => false,
        }
    }

    fn live_frames(&self) -> Vec<(usize, Range<u64>, u64)> {
        let live = (0..self.keys.len()).filter(|frame| !self.is_dead(*frame));
        let live = live.map(|frame| {
            let (range, encoded) = self.frame(frame);
            (frame, range, encoded)
        });
        live.collect()
    }

    fn frame(&self, frame: usize) -> (Range<u64>, u64) {
        match &self.lengths {
            Lengths::Single { end, encoded } => (0..*end, *encoded),
            Lengths::Packed(frames) => {
                let start = frame.checked_sub(1).map_or(0, |before| frames[before].0);
                let (end, encoded) = frames[frame];
                (start.into()..end.into(), encoded.into())
            }
        }
    }

    fn is_dead(&self, frame: usize) -> bool {
        self.dead[frame / 64] >> (frame % 64) & 1 == 1
    }

    fn garbage(&self) -> u64 {
        self.stored.bytes - self.live_bytes - self.punched
    }

    /// Whether it can be deleted from now on. Says so once.
    fn dooms(&mut self) -> bool {
        let dooms = self.live == 0 && self.readers == 0 && !self.doomed;
        self.doomed |= dooms;
        dooms
    }
}

fn pack(frames: &[FrameLen]) -> Option<Box<[(u32, u32)]>> {
    let mut end = 0u32;
    let lengths = frames.iter().map(|frame| {
        end = end.checked_add(u32::try_from(frame.stored).ok()?)?;
        Some((end, u32::try_from(frame.encoded).ok()?))
    });
    lengths.collect()
}

#[derive(Debug)]
pub(crate) struct Blobs<K> {
    slots: Vec<Option<Blob<K>>>,
    free: Vec<u32>,
    doomed: Vec<Doomed>,
    /// Blobs with both live and dead frames.
    worn: BTreeSet<u32>,
    /// Bytes of the dead frames in these, without what was punched out.
    worn_garbage: u64,
    /// Age and index of blobs that had live frames when they were entered, if anybody asks for the oldest.
    by_age: Option<BTreeSet<(u64, u32)>>,
    totals: Holdings,
}

impl<K> Default for Blobs<K> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            doomed: Vec::new(),
            worn: BTreeSet::new(),
            worn_garbage: 0,
            by_age: None,
            totals: Holdings::default(),
        }
    }
}

impl<K> Blobs<K> {
    pub(crate) fn holdings(&self) -> Holdings {
        self.totals
    }

    pub(crate) fn enter(&mut self, blob: Blob<K>) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|index| *index < MAX_BLOBS)?;
                self.slots.push(None);
                index
            }
        };
        let encoded: u64 = (0..blob.live as usize).map(|frame| blob.frame(frame).1).sum();
        self.totals.entries += u64::from(blob.live);
        self.add_weight(blob.weight);
        self.totals.encoded += encoded;
        self.totals.allocated += blob.stored.allocated;
        self.totals.blobs += 1;
        if let Some(by_age) = self.by_age.as_mut().filter(|_| blob.live > 0) {
            by_age.insert((blob.age, index));
        }
        self.slots[index as usize] = Some(blob);
        Some(index)
    }

    /// Enters a blob that holds nothing of use and has to be deleted.
    pub(crate) fn enter_dead(&mut self, id: BlobId, stored: Stored) {
        let blob = Blob {
            id,
            keys: Vec::new().into(),
            lengths: Lengths::Packed(Box::default()),
            dead: Box::default(),
            live: 0,
            live_bytes: 0,
            // Closed at once below, which dooms it.
            readers: 1,
            stored,
            weight: 0,
            punched: 0,
            damaged: false,
            doomed: false,
            punched_in_vain: false,
            moving: false,
            age: id.get(),
        };
        if let Some(index) = self.enter(blob) {
            self.close(index);
        }
    }

    fn get(&mut self, index: u32) -> Option<&mut Blob<K>> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// Marks a frame dead: its bytes, and whether its blob can be deleted.
    pub(crate) fn bury(&mut self, index: u32, frame: usize, weight: u64) -> (u64, bool) {
        let Some(blob) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else {
            return (0, false);
        };
        debug_assert!(!blob.is_dead(frame), "frame {frame} of {index} died twice");
        let (range, encoded) = blob.frame(frame);
        let bytes = range.end - range.start;
        blob.dead[frame / 64] |= 1 << (frame % 64);
        blob.live -= 1;
        blob.live_bytes -= bytes;
        self.totals.entries -= 1;
        self.totals.weight = self.totals.weight.wrapping_sub(weight);
        self.totals.encoded -= encoded;
        let (doomed, worn) = (blob.dooms(), blob.live > 0);
        if doomed {
            self.doomed.push(Doomed { blob: index, id: blob.id });
        }
        if worn {
            self.worn.insert(index);
            self.worn_garbage += bytes;
        } else {
            self.worn.remove(&index);
            // The frame that just died was never counted here.
            self.worn_garbage -= blob.garbage() - bytes;
        }
        (bytes, doomed)
    }

    /// A reader comes: where the frame is, and the length of its value. Whoever asks may be late, and find
    /// another blob in this place, or none.
    pub(crate) fn open(&mut self, index: u32, frame: usize) -> Option<(BlobId, Range<u64>, u64)> {
        let blob = self.get(index).filter(|blob| !blob.doomed && frame < blob.keys.len())?;
        blob.readers += 1;
        let (range, encoded) = blob.frame(frame);
        Some((blob.id, range, encoded))
    }

    /// A reader goes. `true`: the blob can be deleted from now on.
    pub(crate) fn close(&mut self, index: u32) -> bool {
        let Some(blob) = self.get(index) else { return false };
        blob.readers -= 1;
        let doomed = blob.dooms().then_some(Doomed { blob: index, id: blob.id });
        self.doomed.extend(doomed);
        doomed.is_some()
    }

    pub(crate) fn take_doomed(&mut self, limit: usize) -> Vec<Doomed> {
        let keep = self.doomed.len().saturating_sub(limit);
        self.doomed.split_off(keep)
    }

    pub(crate) fn doom(&mut self, doomed: Doomed) {
        self.doomed.push(doomed);
    }

    /// A doomed blob is gone: the garbage that goes with it.
    pub(crate) fn forget(&mut self, index: u32) -> u64 {
        let Some(blob) = self.slots.get_mut(index as usize).and_then(Option::take) else { return 0 };
        self.free.push(index);
        if let Some(by_age) = &mut self.by_age {
            by_age.remove(&(blob.age, index));
        }
        self.totals.allocated -= blob.stored.allocated;
        self.totals.punched -= blob.punched;
        self.totals.blobs -= 1;
        blob.garbage()
    }

    /// Bytes of a dead range were given back.
    pub(crate) fn punched(&mut self, index: u32, bytes: u64) -> u64 {
        let Some(blob) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else { return 0 };
        let bytes = bytes.min(blob.garbage());
        blob.punched += bytes;
        let allocated = bytes.min(blob.stored.allocated);
        blob.stored.allocated -= allocated;
        if blob.live > 0 {
            self.worn_garbage -= bytes;
        }
        self.totals.punched += bytes;
        self.totals.allocated -= allocated;
        bytes
    }

    /// Bytes of dead frames in blobs with live ones: what only compacting or punching gives back.
    pub(crate) fn worn_garbage(&self) -> u64 {
        self.worn_garbage
    }

    /// The blob with the smallest live share, and the next ones as far as their live frames go with its into one
    /// blob. Each is kept from being deleted until [`close`](Self::close). In books that keep the order of age only
    /// one: frames of different age do not go together.
    pub(crate) fn take_worn(&mut self, bite: &Bite) -> Vec<Worn<K>> {
        let eligible = self.worn.iter().filter_map(|index| {
            let blob = self.slots[*index as usize].as_ref()?;
            let share = blob.live_bytes * 1000 / (blob.stored.bytes - blob.punched).max(1);
            let fits = blob.live_bytes <= bite.longest && !blob.damaged && !blob.moving;
            (fits && share < bite.alive_below).then_some((share, *index, blob.live_bytes, blob.live as usize))
        });
        let mut eligible: Vec<_> = eligible.collect();
        let most = if self.by_age.is_some() { 1 } else { MOST_TOGETHER };
        if eligible.len() > most {
            eligible.select_nth_unstable(most);
            eligible.truncate(most);
        }
        eligible.sort_unstable();
        let (mut total, mut frames) = (0, 0);
        let together = eligible.iter().take_while(|(_, _, bytes, live)| {
            let is_first = frames == 0;
            total += bytes;
            frames += live;
            is_first || (total <= bite.together && frames <= bite.frames)
        });
        let together: Vec<u32> = together.map(|(_, index, ..)| *index).collect();
        together.into_iter().filter_map(|index| self.wear_of(index)).collect()
    }

    /// What compacting a blob takes. Keeps it from being deleted until [`close`](Self::close).
    fn wear_of(&mut self, index: u32) -> Option<Worn<K>> {
        let blob = self.get(index).filter(|blob| !blob.doomed)?;
        blob.readers += 1;
        Some(Worn {
            blob: index,
            id: blob.id,
            live: blob.live_frames(),
            keys: blob.keys.clone(),
            live_bytes: blob.live_bytes,
            total: blob.stored.bytes,
            age: blob.age,
        })
    }

    /// Keeps the order of blobs by age from now on, for [`take_oldest`](Self::take_oldest). For empty books.
    pub(crate) fn keep_order(&mut self) {
        self.by_age = Some(BTreeSet::new());
    }

    /// The oldest blobs that nobody reads, moves or has found damaged, with at most so many live bytes together
    /// but at least one. One with more than `longest` is passed over: it must not keep those behind it. Keeps
    /// them from being deleted until [`close`](Self::close), and from being taken again until
    /// [`stop_moving`](Self::stop_moving).
    pub(crate) fn take_oldest(&mut self, most: u64, longest: u64) -> Vec<Worn<K>> {
        let (mut total, mut frames) = (0, 0);
        let mut taken = Vec::new();
        for (_, index) in self.by_age.iter().flatten() {
            let Some(blob) = self.slots[*index as usize].as_ref() else { continue };
            let busy = blob.readers > 0 || blob.damaged || blob.moving;
            if blob.live == 0 || busy || blob.live_bytes > longest {
                continue;
            }
            total += blob.live_bytes;
            frames += blob.live as usize;
            let too_many = total > most || frames > MAX_FRAMES || blob.goes_alone();
            if too_many && !taken.is_empty() {
                break;
            }
            taken.push(*index);
            if too_many {
                break;
            }
        }
        let worn = taken.into_iter().filter_map(|index| {
            let worn = self.wear_of(index)?;
            self.get(index)?.moving = true;
            Some(worn)
        });
        worn.collect()
    }

    /// What is live by now in a blob being moved.
    pub(crate) fn look_again(&mut self, worn: &mut Worn<K>) {
        if let Some(blob) = self.get(worn.blob) {
            (worn.live, worn.live_bytes) = (blob.live_frames(), blob.live_bytes);
        }
    }

    /// A blob is not being moved any more. `true`: it stayed, and could be compacted or punched.
    pub(crate) fn stop_moving(&mut self, index: u32) -> bool {
        self.get(index).is_some_and(|blob| {
            blob.moving = false;
            blob.live > 0 && blob.garbage() > 0
        })
    }

    /// Runs of dead frames of at least `least` bytes, in the blobs that have live ones as well. Only ranges
    /// that were not punched before: a blob is looked at once. Keeps the blob from being deleted until
    /// [`close`](Self::close).
    pub(crate) fn dead_runs(&mut self, least: u64) -> Option<(u32, BlobId, Vec<Range<u64>>)> {
        let found = self.worn.iter().find_map(|index| {
            let blob = self.slots[*index as usize].as_ref()?;
            if blob.punched > 0 || blob.punched_in_vain || blob.moving || blob.garbage() < least {
                return None;
            }
            let mut runs: Vec<Range<u64>> = Vec::new();
            for frame in (0..blob.keys.len()).filter(|frame| blob.is_dead(*frame)) {
                let (range, _) = blob.frame(frame);
                match runs.last_mut() {
                    Some(run) if run.end == range.start => run.end = range.end,
                    _ => runs.push(range),
                }
            }
            runs.retain(|run| run.end - run.start >= least);
            (!runs.is_empty()).then_some((*index, blob.id, runs))
        })?;
        self.get(found.0)?.readers += 1;
        Some(found)
    }

    pub(crate) fn punch_no_more(&mut self, index: u32) {
        if let Some(blob) = self.get(index) {
            blob.punched_in_vain = true;
        }
    }

    pub(crate) fn mark_damaged(&mut self, index: u32) {
        if let Some(blob) = self.get(index) {
            blob.damaged = true;
        }
    }

    /// An entry's frame was moved here.
    pub(crate) fn add_weight(&mut self, weight: u64) {
        self.totals.weight = self.totals.weight.wrapping_add(weight);
    }

    /// An entry with a frame here has a new weight.
    ///
    /// Wraps, as the others do: the entry may be gone by now, and its new weight taken off before it is
    /// put on here.
    pub(crate) fn reweigh(&mut self, old: u64, new: u64) {
        self.totals.weight = self.totals.weight.wrapping_sub(old).wrapping_add(new);
    }
}
