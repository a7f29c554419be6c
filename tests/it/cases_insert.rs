//! Small inputs that broke others, around inserting: the cases 9, 14, 15 and 29.

use spill_buffer::{Event, Location, MemoryStore, OnFull, TierSpec};

use crate::support::{Lump, at_rest, count, ends_empty, exact, fill, in_memory, memory_tier, read, rests};

#[tokio::test]
async fn case_09_the_cap_in_effect_is_the_cap_reported() {
    for cap in [0, 63, 191, 192, 193, 383, 384, 575, 576, 577] {
        let built = exact(300, OnFull::Reject).tier(memory_tier().max_spill(cap)).build().unwrap();
        let set = exact(300, OnFull::Reject).tier(memory_tier()).build().unwrap();
        assert_eq!(set.usage().tiers[0].max_spill, None);
        assert!(set.clone().set_max_spill(0, Some(cap)));
        assert!(!set.set_max_spill(1, Some(cap)), "there is no such tier");
        for (way, buffer) in [("builder", built), ("setter", set)] {
            assert_eq!(buffer.usage().tiers[0].max_spill, Some(cap), "{way}");
            let mut taken = 0;
            for key in 0.. {
                if buffer.insert(key, Lump::new('a', 100)).await.is_err() {
                    break;
                }
                taken += 1;
            }
            let spilled = cap / 192;
            assert_eq!(taken, 3 + spilled, "{way} of {cap}");
            rests(&buffer, at_rest(300, spilled * 100, spilled * 192)).await;
            // Raised by exactly one frame, it takes exactly one more.
            assert!(buffer.set_max_spill(0, Some((spilled + 1) * 192)));
            buffer.insert(1000, Lump::new('a', 100)).await.unwrap();
            buffer.insert(1001, Lump::new('a', 100)).await.unwrap_err();
            rests(&buffer, at_rest(300, (spilled + 1) * 100, (spilled + 1) * 192)).await;
            assert!(buffer.set_max_spill(0, None));
            assert_eq!((buffer.usage().tiers[0].max_spill, buffer.usage().total().max_spill), (None, None));
            buffer.insert(1001, Lump::new('a', 100)).await.unwrap();
            ends_empty(buffer).await;
        }
    }
}

#[tokio::test]
async fn case_14_a_key_inserted_again_is_counted_and_listed_once() {
    let buffer = exact(300, OnFull::Reject).tier(memory_tier()).build().unwrap();
    fill(&buffer, "kab", 100).await;
    buffer.insert('k', Lump::new('n', 100)).await.unwrap();
    rests(&buffer, at_rest(300, 0, 0)).await;
    // Three more push everything out, k last.
    fill(&buffer, "cde", 100).await;
    rests(&buffer, at_rest(300, 300, 3 * 192)).await;
    assert_eq!(in_memory(&buffer), "cde");
    let mut keys = buffer.keys();
    keys.sort_unstable();
    assert_eq!((keys, buffer.len()), ("abcdek".chars().collect(), 6));
    assert_eq!(buffer.usage().tiers[0].entries, 3);
    assert_eq!(read(&buffer, 'k').await, Lump::new('n', 100));
    assert!(buffer.remove(&'k').unwrap());
    assert_eq!((buffer.get(&'k').await.unwrap(), buffer.len()), (None, 5));
    ends_empty(buffer).await;
}

/// One of a thousand values makes the codec fail, in one batch with others.
async fn one_of_a_thousand(bad: fn(Lump) -> Lump) {
    let tier = TierSpec::new(MemoryStore::new()).batch_entries(64);
    let buffer = exact::<u32>(100_000, OnFull::Reject).tier(tier).build().unwrap();
    let mut events = buffer.events();
    for key in 0..1000 {
        let lump = Lump::new(char::from(b'a' + (key % 26) as u8), 100);
        buffer.insert(key, if key == 17 { bad(lump) } else { lump }).await.unwrap();
    }
    rests(&buffer, at_rest(100_000, 0, 0)).await;
    buffer.set_memory_limit(100);
    rests(&buffer, at_rest(100, 99_900, 999 * 192)).await;
    let failed = |event: &Event| matches!(event, Event::EncodeFailed { key, .. } if key == "17");
    assert_eq!(count(&mut events, failed), 1);
    assert_eq!(buffer.location(&17), Some(Location::Memory));
    for key in 0..1000 {
        let lump = buffer.get(&key).await.unwrap().unwrap();
        assert_eq!((lump.letter, lump.weight), (b'a' + (key % 26) as u8, 100));
    }
    ends_empty(buffer).await;
}

#[tokio::test]
async fn case_15_the_codec_fails_for_one_of_a_thousand() {
    one_of_a_thousand(Lump::unencodable).await;
}

#[tokio::test]
async fn case_15_the_codec_panics_for_one_of_a_thousand() {
    one_of_a_thousand(Lump::panicking).await;
}

#[tokio::test]
async fn case_29_one_value_that_can_not_be_encoded_does_not_break_the_limit() {
    for position in [0, 1, 11, 22] {
        let buffer = exact(300, OnFull::Reject).tier(memory_tier()).build().unwrap();
        let (mut good, mut bad_is_in) = (0, false);
        for key in ('a'..).take(23) {
            if good == position && !bad_is_in {
                buffer.insert('!', Lump::new('!', 100).unencodable()).await.unwrap();
                bad_is_in = true;
            }
            if good < 22 {
                fill(&buffer, &key.to_string(), 100).await;
                good += 1;
            }
            // The limit is held at every step.
            assert!(buffer.usage().memory.resident.weight <= 300);
        }
        rests(&buffer, at_rest(300, 2000, 20 * 192)).await;
        assert_eq!(buffer.len(), 23);
        // What can't leave is all that is above a limit that it does not fit under.
        buffer.set_memory_limit(50);
        rests(&buffer, at_rest(100, 2200, 22 * 192)).await;
        assert_eq!(in_memory(&buffer), "!");
        ends_empty(buffer).await;
    }
}
