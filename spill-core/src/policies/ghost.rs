//! Remembers the keys that left most lately, by fingerprint.

/// Records in one set: together one cache line.
const WAYS: usize = 8;
/// Records wanted in a set on average, so that few sets overflow.
const FILL: usize = 5;
/// Ages are differences of 32-bit counts that wrap; half the range is old for sure.
const EXPIRED: u32 = u32::MAX / 2;

#[derive(Clone, Copy, Debug)]
struct Record {
    fingerprint: u32,
    /// The count of departures when it left.
    departure: u32,
}

impl Record {
    fn age(self, now: u32) -> u32 {
        now.wrapping_sub(self.departure)
    }
}

/// A bounded set of 32-bit fingerprints that forgets the oldest first.
///
/// A fingerprint belongs to one small set of records, where it takes the place of the oldest: one cache line for
/// each call and no list beside the table. 13 to 20 bytes for each key it has to remember; one in fifty is
/// forgotten early because its set overflows. Two keys share a fingerprint once in 2^32, so a stranger is taken for
/// one of n remembered keys once in 2^32 / n.
#[derive(Debug, Default)]
pub(super) struct Ghost {
    sets: Vec<[Record; WAYS]>,
    /// How many departures back it remembers.
    reach: u32,
    departures: u32,
}

/// Spreads a hash over 32 bits even if only some of its bits are good.
pub(super) fn fold(hash: u64) -> u32 {
    (hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

impl Ghost {
    /// How many keys it remembers at most.
    pub(super) fn reach(&self) -> usize {
        self.reach as usize
    }

    /// Sets how many keys to remember. O(1) amortised while it moves in small steps.
    pub(super) fn set_reach(&mut self, reach: usize) {
        self.reach = u32::try_from(reach).unwrap_or(EXPIRED).min(EXPIRED - 1);
        let fits = self.sets.len() * FILL;
        if reach > fits || reach < fits / 8 {
            self.rebuild((reach + reach / 2).div_ceil(FILL).max(1));
        }
    }

    /// Remembers a key that leaves.
    pub(super) fn insert(&mut self, fingerprint: u32) {
        if !self.sets.is_empty() {
            self.departures = self.departures.wrapping_add(1);
            self.put(Record { fingerprint, departure: self.departures });
        }
    }

    /// Whether the key is remembered; forgets it.
    pub(super) fn remove(&mut self, fingerprint: u32) -> bool {
        if self.sets.is_empty() {
            return false;
        }
        let (now, reach) = (self.departures, self.reach);
        let set = self.set_of(fingerprint);
        let found = self.sets[set]
            .iter_mut()
            .find(|record| record.fingerprint == fingerprint && record.age(now) < reach);
        if let Some(record) = found {
            record.departure = now.wrapping_sub(EXPIRED);
            return true;
        }
        false
    }

    /// How many records there is room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.sets.capacity() * WAYS
    }

    fn put(&mut self, new: Record) {
        let now = self.departures;
        let set = self.set_of(new.fingerprint);
        let oldest = self.sets[set].iter_mut().max_by_key(|record| record.age(now));
        if let Some(oldest) = oldest.filter(|oldest| oldest.age(now) > new.age(now)) {
            *oldest = new;
        }
    }

    fn set_of(&self, fingerprint: u32) -> usize {
        ((u64::from(fingerprint) * self.sets.len() as u64) >> 32) as usize
    }

    fn rebuild(&mut self, sets: usize) {
        let (now, reach) = (self.departures, self.reach);
        let empty = Record { fingerprint: 0, departure: now.wrapping_sub(EXPIRED) };
        let old = std::mem::replace(&mut self.sets, vec![[empty; WAYS]; sets]);
        for record in old.into_iter().flatten().filter(|record| record.age(now) < reach) {
            self.put(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_last_to_leave_and_forgets_those_before() {
        let mut ghost = Ghost::default();
        ghost.set_reach(1_000);
        for key in 0..10_000 {
            ghost.insert(fold(key));
        }
        let known = (0..10_000).filter(|key| ghost.remove(fold(*key))).collect::<Vec<_>>();
        assert!(known.iter().all(|key| *key >= 9_000), "only the last thousand can be known");
        assert!(known.len() > 950, "{} of the last thousand are known", known.len());
        assert!((0..10_000).all(|key| !ghost.remove(fold(key))), "asking forgets");
    }

    #[test]
    fn grows_and_shrinks_without_forgetting_who_is_in_reach() {
        let mut ghost = Ghost::default();
        for key in 0..5_000_usize {
            ghost.set_reach(key + 1);
            ghost.insert(fold(key as u64));
        }
        ghost.set_reach(100);
        assert!(ghost.room() < 1_000, "room for {} after it shrank", ghost.room());
        let known = (0..5_000).filter(|key| ghost.remove(fold(*key))).count();
        assert!((90..=100).contains(&known), "{known} known");
    }
}
