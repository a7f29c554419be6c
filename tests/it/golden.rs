//! The stories that every spill buffer has to tell the same way: what is where, and the exact numbers of
//! memory and disk, after every single step.
//!
//! A lump of weight 100 is 100 bytes long, and its frame 192: a header of 64, and the bytes rounded up to a
//! multiple of 64. In the tables `memory` has the keys that are only there, `both` those that are in memory
//! and on disk (so that leaving memory is free), `disk` those that have left memory. `puts` counts all blobs
//! that the store was asked to keep so far, refused ones included.

use std::{collections::BTreeMap, time::Duration};

use spill_buffer::{Event, Location, OnFull, StoreErrorKind};
use spill_conformance::{Faults, Operation};

use crate::support::{
    Lump, LumpCodec, Lumps, at_rest, count, ends_empty, exact, faulty_tier, kind, read, rests_after,
};

/// What is done in one step.
#[derive(Clone, Copy, Debug)]
enum Do {
    /// Insert a lump of this weight: it must be taken.
    Put(char, u64),
    /// Insert a lump of this weight that can't be encoded: it must be taken.
    PutUnencodable(char, u64),
    /// Insert a lump of this weight: it must be refused, with this error.
    Refused(char, u64, &'static str),
    /// The same with one that can't be encoded.
    RefusedUnencodable(char, u64, &'static str),
    /// Read: the value must be the one inserted last.
    Get(char),
    /// Read: the store must fail.
    GetFails(char),
    /// Remove: the key must have been there.
    Remove(char),
    /// Set `max_spill`.
    MaxSpill(u64),
    /// Set the memory limit.
    Limit(u64),
    /// From now on the store fails all calls of this kind.
    Break(Operation, StoreErrorKind),
    /// The store works again.
    Heal,
    /// Let time pass: the clock of the test stands still otherwise.
    Pass(Duration),
}

struct Step {
    what: Do,
    /// Keys in memory, in both, on disk.
    place: [&'static str; 3],
    /// Weight in memory, weight on disk only, bytes stored.
    numbers: [u64; 3],
    puts: u64,
}

const fn step(
    what: Do,
    memory: &'static str,
    both: &'static str,
    disk: &'static str,
    numbers: [u64; 3],
    puts: u64,
) -> Step {
    Step { what, place: [memory, both, disk], numbers, puts }
}

struct Story {
    buffer: Lumps<char>,
    faults: Faults,
    codec: LumpCodec,
    /// What must be there.
    model: BTreeMap<char, Lump>,
    written: u8,
}

impl Story {
    fn new(limit: u64, max_spill: Option<u64>, on_full: OnFull) -> Self {
        let (faults, codec) = (Faults::new(), LumpCodec::default());
        let tier = faulty_tier(&faults).max_spill(max_spill);
        let buffer = exact(limit, on_full).codec(codec.clone()).tier(tier).build().unwrap();
        Self { buffer, faults, codec, model: BTreeMap::new(), written: 0 }
    }

    async fn tell(&mut self, steps: &[Step]) {
        for (number, step) in (1..).zip(steps) {
            let what = format!("step {number}: {:?}", step.what);
            self.act(step.what).await;
            let [memory, disk, stored] = step.numbers;
            rests_after(what.clone(), &self.buffer, at_rest(memory, disk, stored)).await;
            assert_eq!(self.places(), step.place, "{what}");
            assert_eq!(self.faults.counts(Operation::Put).started, step.puts, "puts at {what}");
            self.compare();
        }
    }

    /// Each insert writes another letter, so that no old value can pass for a new one.
    fn lump(&mut self, weight: u64) -> Lump {
        self.written += 1;
        Lump::new(char::from(self.written), weight)
    }

    async fn act(&mut self, what: Do) {
        match what {
            Do::Put(key, weight) => self.put(key, |lump| lump, weight).await,
            Do::PutUnencodable(key, weight) => self.put(key, Lump::unencodable, weight).await,
            Do::Refused(key, weight, error) => self.refused(key, |lump| lump, weight, error).await,
            Do::RefusedUnencodable(key, weight, error) => {
                self.refused(key, Lump::unencodable, weight, error).await;
            }
            Do::Get(key) => assert_eq!(read(&self.buffer, key).await, self.model[&key]),
            Do::GetFails(key) => drop(self.buffer.get(&key).await.unwrap_err()),
            Do::Remove(key) => {
                assert!(self.buffer.remove(&key).unwrap());
                self.model.remove(&key);
                assert_eq!(self.buffer.get(&key).await.unwrap(), None);
            }
            Do::MaxSpill(bytes) => assert!(self.buffer.set_max_spill(0, Some(bytes))),
            Do::Limit(bytes) => self.buffer.set_memory_limit(bytes),
            Do::Break(operation, kind) => self.faults.fail(operation, kind),
            Do::Heal => self.faults.heal(),
            Do::Pass(time) => tokio::time::sleep(time).await,
        }
    }

    async fn put(&mut self, key: char, change: fn(Lump) -> Lump, weight: u64) {
        let lump = change(self.lump(weight));
        self.buffer.insert(key, lump).await.unwrap();
        self.model.insert(key, lump);
    }

    async fn refused(&mut self, key: char, change: fn(Lump) -> Lump, weight: u64, error: &str) {
        let lump = change(self.lump(weight));
        let refused = self.buffer.insert(key, lump).await.unwrap_err();
        assert_eq!((kind(&refused).as_str(), *refused.value), (error, lump));
    }

    fn places(&self) -> [String; 3] {
        let mut places = [const { String::new() }; 3];
        let mut keys = self.buffer.keys();
        keys.sort_unstable();
        for key in keys {
            let place = match self.buffer.location(&key).unwrap() {
                Location::Memory => 0,
                Location::Both(_) => 1,
                Location::Tier(_) => 2,
                other => panic!("{key} is in {other:?}"),
            };
            places[place].push(key);
        }
        places
    }

    /// The keys are the right ones, and so are the values that can be seen without moving any.
    fn compare(&self) {
        assert_eq!(self.buffer.len(), self.model.len() as u64);
        for (key, lump) in &self.model {
            assert!(self.buffer.contains_key(key), "{key}");
            let seen = self.buffer.peek(key);
            assert!(seen.is_none_or(|seen| *seen == *lump), "{key} has an old value");
        }
    }

    async fn end(self) {
        for (key, lump) in &self.model {
            assert_eq!(read(&self.buffer, *key).await, *lump);
        }
        ends_empty(self.buffer).await;
        assert_eq!(self.faults.used(), 0);
    }
}

/// The least recently used entry leaves, restores swap, and whatever is removed or overwritten is gone from
/// both places.
#[tokio::test]
async fn lru_order_restore_swaps_delete_and_overwrite() {
    use Do::{Get, Put, Remove};
    let mut story = Story::new(300, None, OnFull::Reject);
    #[rustfmt::skip]
    story.tell(&[
        //                  memory both  disk    memory disk stored
        step(Put('a', 100), "a",   "",   "",     [100,   0,   0], 0),
        step(Put('b', 100), "ab",  "",   "",     [200,   0,   0], 0),
        // At the limit nothing moves; above it the oldest leaves.
        step(Put('c', 100), "abc", "",   "",     [300,   0,   0], 0),
        step(Put('d', 100), "bcd", "",   "a",    [300, 100, 192], 1),
        // A read of what is in memory moves nothing, but b is now younger than c.
        step(Get('b'),      "bcd", "",   "a",    [300, 100, 192], 1),
        // A restore swaps: a comes in, c leaves. The frame of a stays, as long as there is room for it.
        step(Get('a'),      "bd",  "a",  "c",    [300, 100, 384], 2),
        step(Get('a'),      "bd",  "a",  "c",    [300, 100, 384], 2),
        // Removing: from memory, from disk, from both. Nothing comes back by itself.
        step(Remove('d'),   "b",   "a",  "c",    [200, 100, 384], 2),
        step(Remove('c'),   "b",   "a",  "",     [200,   0, 192], 2),
        step(Remove('a'),   "b",   "",   "",     [100,   0,   0], 2),
        step(Put('e', 100), "be",  "",   "",     [200,   0,   0], 2),
        step(Put('f', 100), "bef", "",   "",     [300,   0,   0], 2),
        step(Put('g', 100), "efg", "",   "b",    [300, 100, 192], 3),
        // Overwriting what is spilled: its frame is given back, e makes room.
        step(Put('b', 100), "bfg", "",   "e",    [300, 100, 192], 4),
        // Overwriting what is in memory exchanges the weights, to the byte.
        step(Put('f',  50), "bfg", "",   "e",    [250, 100, 192], 4),
        step(Get('e'),      "bf",  "e",  "g",    [250, 100, 384], 5),
        step(Put('h', 100), "fh",  "e",  "bg",   [250, 200, 576], 6),
        // 50 bytes are enough, so only f leaves. Its frame has 128 bytes.
        step(Put('i', 100), "hi",  "e",  "bfg",  [300, 250, 704], 7),
        // e is on disk already: it leaves without being written again.
        step(Put('j', 100), "hij", "",   "befg", [300, 350, 704], 7),
        step(Get('f'),      "ij",  "f",  "begh", [250, 400, 896], 8),
    ]).await;
    story.end().await;
}

/// What weighs more than the limit goes to disk at once and comes back without staying, and no other entry
/// moves for it.
#[tokio::test]
async fn heavy_direct_heavy_overwrite_and_light_overwrite() {
    use Do::{Get, Put, Remove};
    let mut story = Story::new(300, None, OnFull::Reject);
    #[rustfmt::skip]
    story.tell(&[
        //                  memory both disk  memory disk stored
        step(Put('a', 100), "a",   "", "",   [100,   0,   0], 0),
        step(Put('h', 400), "a",   "", "h",  [100, 400, 512], 1),
        step(Get('h'),      "a",   "", "h",  [100, 400, 512], 1),
        // Heavy over heavy: the old frame is given back.
        step(Put('h', 500), "a",   "", "h",  [100, 500, 576], 2),
        // Light over heavy, heavy over light: never in two places.
        step(Put('h', 150), "ah",  "", "",   [250,   0,   0], 2),
        step(Put('h', 400), "a",   "", "h",  [100, 400, 512], 3),
        // Exactly the limit is light: it stays, and the others make room for it.
        step(Put('m', 300), "m",   "", "ah", [300, 500, 704], 4),
        // One more is heavy, also over what was spilled: m does not move.
        step(Put('a', 301), "m",   "", "ah", [300, 701, 896], 5),
        step(Put('a', 100), "a",   "", "hm", [100, 700, 896], 6),
        step(Remove('h'),   "a",   "", "m",  [100, 300, 384], 6),
        step(Remove('m'),   "a",   "", "",   [100,   0,   0], 6),
    ]).await;
    story.end().await;
}

/// What does not fit under `max_spill` is refused before a byte is written, and everything stays where and
/// what it was.
#[tokio::test]
async fn cap_reached() {
    use Do::{Get, Limit, MaxSpill, Put, Refused, Remove};
    let mut story = Story::new(200, Some(600), OnFull::Reject);
    #[rustfmt::skip]
    story.tell(&[
        //                              memory both disk    memory disk stored
        step(Put('a', 100),             "a",   "",  "",     [100,   0,   0], 0),
        step(Put('b', 100),             "ab",  "",  "",     [200,   0,   0], 0),
        step(Put('c', 100),             "bc",  "",  "a",    [200, 100, 192], 1),
        step(Put('d', 100),             "cd",  "",  "ab",   [200, 200, 384], 2),
        step(Put('e', 100),             "de",  "",  "abc",  [200, 300, 576], 3),
        // 24 bytes are left: no frame is so short.
        step(Refused('f', 100, "Full"), "de",  "",  "abc",  [200, 300, 576], 3),
        step(Refused('h', 300, "Full"), "de",  "",  "abc",  [200, 300, 576], 3),
        // Overwriting needs no more than the difference.
        step(Put('d', 100),             "de",  "",  "abc",  [200, 300, 576], 3),
        step(Put('d',  50),             "de",  "",  "abc",  [150, 300, 576], 3),
        step(Put('f',  50),             "def", "",  "abc",  [200, 300, 576], 3),
        step(Refused('f',  51, "Full"), "def", "",  "abc",  [200, 300, 576], 3),
        step(Refused('e', 300, "Full"), "def", "",  "abc",  [200, 300, 576], 3),
        // With memory full as well, a spilled value does not give its place up before the new one is safe.
        step(Refused('b', 100, "Full"), "def", "",  "abc",  [200, 300, 576], 3),
        step(Refused('b', 129, "Full"), "def", "",  "abc",  [200, 300, 576], 3),
        // A read does not fail because nothing can leave: the value just does not stay.
        step(Get('a'),                  "def", "",  "abc",  [200, 300, 576], 3),
        step(Remove('a'),               "def", "",  "bc",   [200, 200, 384], 3),
        step(Put('h', 100),             "dfh", "",  "bce",  [200, 300, 576], 4),
        // A frame of 128 fits exactly, and then nothing does.
        step(MaxSpill(704),             "dfh", "",  "bce",  [200, 300, 576], 4),
        step(Put('i',  50),             "fhi", "",  "bcde", [200, 350, 704], 5),
        step(Refused('j', 50, "Full"),  "fhi", "",  "bcde", [200, 350, 704], 5),
        // A cap below what is there refuses what is new and removes nothing.
        step(MaxSpill(0),               "fhi", "",  "bcde", [200, 350, 704], 5),
        step(Refused('j', 50, "Full"),  "fhi", "",  "bcde", [200, 350, 704], 5),
        step(Limit(250),                "fhi", "",  "bcde", [200, 350, 704], 5),
        step(Put('j',  50),             "fhij", "", "bcde", [250, 350, 704], 5),
    ]).await;
    story.end().await;
}

/// A second copy is given up when its room is wanted: the cap is no reason to refuse then.
#[tokio::test]
async fn cap_reached_with_a_second_copy() {
    use Do::{Get, MaxSpill, Put, Refused};
    let mut story = Story::new(200, Some(384), OnFull::Reject);
    #[rustfmt::skip]
    story.tell(&[
        //                              memory both disk   memory disk stored
        step(Put('a', 100),             "a",   "",  "",    [100,   0,   0], 0),
        step(Put('b', 100),             "ab",  "",  "",    [200,   0,   0], 0),
        step(Put('c', 100),             "bc",  "",  "a",   [200, 100, 192], 1),
        step(Get('a'),                  "c",   "a", "b",   [200, 100, 384], 2),
        // c is older than a: the copy of a goes, so that c can be written.
        step(Put('d', 100),             "ad",  "",  "bc",  [200, 200, 384], 3),
        step(Refused('e', 100, "Full"), "ad",  "",  "bc",  [200, 200, 384], 3),
        step(MaxSpill(576),             "ad",  "",  "bc",  [200, 200, 384], 3),
        step(Put('e', 100),             "de",  "",  "abc", [200, 300, 576], 4),
    ]).await;
    story.end().await;
}

/// What can't be encoded stays in memory, is reported once, and holds nobody up.
#[tokio::test]
async fn encode_failure_of_a_victim_and_of_a_heavy_insert() {
    use Do::{Get, Put, PutUnencodable, RefusedUnencodable, Remove};
    let mut story = Story::new(300, None, OnFull::Reject);
    let mut events = story.buffer.events();
    #[rustfmt::skip]
    story.tell(&[
        //                                      memory both disk    memory disk stored
        step(PutUnencodable('x', 100),          "x",   "",  "",     [100,   0,   0], 0),
        step(Put('a', 100),                     "ax",  "",  "",     [200,   0,   0], 0),
        step(Put('b', 100),                     "abx", "",  "",     [300,   0,   0], 0),
        // x is the oldest and can't leave: a does.
        step(Put('c', 100),                     "bcx", "",  "a",    [300, 100, 192], 1),
        step(Put('d', 100),                     "cdx", "",  "ab",   [300, 200, 384], 2),
        // Heavy and unencodable has no place at all; what was under the key is still there.
        step(RefusedUnencodable('h', 400, "Encode"), "cdx", "", "ab", [300, 200, 384], 2),
        step(RefusedUnencodable('c', 400, "Encode"), "cdx", "", "ab", [300, 200, 384], 2),
        step(RefusedUnencodable('a', 400, "Encode"), "cdx", "", "ab", [300, 200, 384], 2),
    ]).await;
    // x once, and each of the heavy ones once.
    assert_eq!(count(&mut events, |event| matches!(event, Event::EncodeFailed { .. })), 4);
    assert_eq!(story.codec.asked(), 6);
    #[rustfmt::skip]
    story.tell(&[
        // Replaced by one that can be encoded, x leaves in its turn.
        step(Put('x', 100),                     "cdx", "",  "ab",   [300, 200, 384], 2),
        step(Put('e', 100),                     "dex", "",  "abc",  [300, 300, 576], 3),
        step(Put('f', 100),                     "efx", "",  "abcd", [300, 400, 768], 4),
        step(Get('e'),                          "efx", "",  "abcd", [300, 400, 768], 4),
        step(Put('g', 100),                     "efg", "",  "abcdx", [300, 500, 960], 5),
        step(Remove('x'),                       "efg", "",  "abcd", [300, 400, 768], 5),
    ]).await;
    assert_eq!(count(&mut events, |event| matches!(event, Event::EncodeFailed { .. })), 0);
    story.end().await;
}

/// A store that refuses to write leaves everything in memory; when it works again, so does everything else.
#[tokio::test(start_paused = true)]
async fn write_failure_then_heal() {
    use Do::{Break, Get, GetFails, Heal, Pass, Put, Refused};
    let second = Duration::from_secs(1);
    let mut story = Story::new(300, None, OnFull::Reject);
    let mut events = story.buffer.events();
    #[rustfmt::skip]
    story.tell(&[
        //                                                  memory both disk  memory disk stored
        step(Put('a', 100),                                 "a",   "",  "",   [100,   0,   0], 0),
        step(Put('b', 100),                                 "ab",  "",  "",   [200,   0,   0], 0),
        step(Put('c', 100),                                 "abc", "",  "",   [300,   0,   0], 0),
        step(Break(Operation::Put, StoreErrorKind::NoSpace), "abc", "", "",   [300,   0,   0], 0),
        step(Refused('d', 100, "Full"),                     "abc", "",  "",   [300,   0,   0], 1),
        // The tier is left alone for a while: nobody asks it again.
        step(Refused('d', 100, "Full"),                     "abc", "",  "",   [300,   0,   0], 1),
        step(Refused('h', 400, "Full"),                     "abc", "",  "",   [300,   0,   0], 1),
        step(Get('a'),                                      "abc", "",  "",   [300,   0,   0], 1),
        step(Heal,                                          "abc", "",  "",   [300,   0,   0], 1),
        step(Pass(second),                                  "abc", "",  "",   [300,   0,   0], 1),
        // b is the oldest, since a was read.
        step(Put('d', 100),                                 "acd", "",  "b",  [300, 100, 192], 2),
        step(Break(Operation::Get, StoreErrorKind::Transient), "acd", "", "b", [300, 100, 192], 2),
    ]).await;
    let of = |event: &Event| matches!(event, Event::WriteFailed { .. } | Event::TierHealed { .. });
    assert_eq!(count(&mut events, of), 2);
    #[rustfmt::skip]
    story.tell(&[
        // A read that fails made room for nothing: c left memory, b is where it was.
        step(GetFails('b'),                                 "ad",  "",  "bc", [200, 200, 384], 3),
        step(Heal,                                          "ad",  "",  "bc", [200, 200, 384], 3),
        step(Get('b'),                                      "ad",  "b", "c",  [300, 100, 384], 3),
    ]).await;
    story.end().await;
}

/// With `keep`, what finds no room stays in memory above the limit, and leaves by itself when it can.
#[tokio::test(start_paused = true)]
async fn write_failure_then_heal_with_keep() {
    use Do::{Break, Heal, Pass, Put};
    let minute = Duration::from_secs(60);
    let mut story = Story::new(300, None, OnFull::Keep);
    #[rustfmt::skip]
    story.tell(&[
        //                                                  memory  both disk  memory disk stored
        step(Put('a', 100),                                 "a",    "",  "",   [100,   0,   0], 0),
        step(Put('b', 200),                                 "ab",   "",  "",   [300,   0,   0], 0),
        step(Break(Operation::Put, StoreErrorKind::Other),  "ab",   "",  "",   [300,   0,   0], 0),
        step(Put('c', 100),                                 "abc",  "",  "",   [400,   0,   0], 1),
        step(Put('h', 400),                                 "abch", "",  "",   [800,   0,   0], 1),
        step(Heal,                                          "abch", "",  "",   [800,   0,   0], 1),
        // 500 have to leave, the oldest first: a, b and c are not enough.
        step(Pass(minute),                                  "",     "",  "abch", [0, 800, 1216], 5),
    ]).await;
    story.end().await;
}
