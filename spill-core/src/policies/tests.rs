//! What every shipped policy has to do, and what only some promise.
#![allow(clippy::cast_possible_truncation, reason = "tests use a few thousand slots")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Arrival, Marks, Slot, Touch};

/// Plays the buffer: hands out slots, again after they are free, and keeps the marks.
#[derive(Debug)]
struct Buffer {
    policy: Box<dyn Policy>,
    table: Table,
    /// By slot: the ticks of arrival and of the last insert or read.
    residents: BTreeMap<u32, (u64, u64)>,
    free: Vec<u32>,
    tick: u64,
}

#[derive(Debug)]
struct Table {
    touch: Touch,
    marks: RefCell<Vec<u64>>,
    looks: Cell<usize>,
}

impl Marks for Table {
    fn get(&self, slot: Slot) -> u64 {
        self.looks.set(self.looks.get() + 1);
        self.marks.borrow()[slot.index()]
    }

    fn reset(&self, slot: Slot, count: u8) {
        if let Touch::Count(_) = self.touch {
            self.marks.borrow_mut()[slot.index()] = count.into();
        }
    }
}

impl Buffer {
    fn new(name: &str) -> Self {
        let policy = by_name(name).unwrap();
        let table = Table { touch: policy.touch(), marks: RefCell::default(), looks: Cell::new(0) };
        Self { policy, table, residents: BTreeMap::new(), free: Vec::new(), tick: 0 }
    }

    fn admit(&mut self, weight: u64, key: u64) -> Slot {
        self.tick += 1;
        let number = self.free.pop().unwrap_or(self.table.marks.borrow().len() as u32);
        let mut marks = self.table.marks.borrow_mut();
        if marks.len() == number as usize {
            marks.push(0);
        }
        marks[number as usize] = if self.table.touch == Touch::Stamp { self.tick } else { 0 };
        drop(marks);
        self.residents.insert(number, (self.tick, self.tick));
        let slot = Slot::new(number);
        self.policy.admit(&Arrival {
            slot,
            weight,
            fingerprint: key.wrapping_mul(0x1234_5678_9ABC_DEF1),
            tick: self.tick,
        });
        slot
    }

    fn read(&mut self, slot: Slot) {
        self.tick += 1;
        self.residents.get_mut(&slot.get()).unwrap().1 = self.tick;
        let mark = &mut self.table.marks.borrow_mut()[slot.index()];
        match self.table.touch {
            Touch::Nothing => {}
            Touch::Count(most) => *mark = (*mark + 1).min(most.into()),
            Touch::Stamp => *mark = self.tick,
        }
    }

    fn free(&mut self, slot: Slot) {
        assert!(self.residents.remove(&slot.get()).is_some(), "{slot:?} is not resident");
        self.free.push(slot.get());
    }

    fn forget(&mut self, slot: Slot) {
        self.policy.forget(slot);
        self.free(slot);
    }

    fn victim(&mut self) -> Option<Slot> {
        let victim = self.policy.victim(&self.table)?;
        self.free(victim);
        Some(victim)
    }

    /// Any resident, picked by a number.
    fn nth(&self, number: usize) -> Option<Slot> {
        let nth = number.checked_rem(self.residents.len())?;
        self.residents.keys().nth(nth).map(|slot| Slot::new(*slot))
    }

    fn oldest_by(&self, tick: impl Fn(&(u64, u64)) -> u64) -> Option<Slot> {
        self.residents.iter().min_by_key(|(_, ticks)| tick(ticks)).map(|(slot, _)| Slot::new(*slot))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Admit { weight: u64, key: u64 },
    Read(usize),
    Forget(usize),
    ForgetStranger(u32),
    Victim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let weight = prop_oneof![Just(0), 1..200_u64, 1_000_000..2_000_000_u64, Just(u64::MAX)];
    let step = prop_oneof![
        4 => (weight, 0..50_u64).prop_map(|(weight, key)| Step::Admit { weight, key }),
        4 => any::<usize>().prop_map(Step::Read),
        1 => any::<usize>().prop_map(Step::Forget),
        1 => (0..1_000_u32).prop_map(Step::ForgetStranger),
        2 => Just(Step::Victim),
    ];
    prop::collection::vec(step, 0..400)
}

/// Plays the steps, then drains; `expected` says who must be the next victim, if the policy is exact.
fn play(name: &str, steps: &[Step], expected: impl Fn(&Buffer) -> Option<Slot>) {
    let mut buffer = Buffer::new(name);
    let check = |buffer: &mut Buffer| {
        let (before, expected) = (buffer.residents.len(), expected(buffer));
        let victim = buffer.victim();
        assert_eq!(victim.is_some(), before > 0, "{name} has a victim while it holds an entry");
        if expected.is_some() {
            assert_eq!(victim, expected, "{name}");
        }
        victim
    };
    for step in steps {
        match *step {
            Step::Admit { weight, key } => {
                buffer.admit(weight, key);
            }
            Step::Read(number) => buffer.nth(number).into_iter().for_each(|slot| buffer.read(slot)),
            Step::Forget(number) => buffer.nth(number).into_iter().for_each(|slot| buffer.forget(slot)),
            Step::ForgetStranger(number) if !buffer.residents.contains_key(&number) => {
                buffer.policy.forget(Slot::new(number));
            }
            Step::ForgetStranger(_) => {}
            Step::Victim => {
                check(&mut buffer);
            }
        }
    }
    while check(&mut buffer).is_some() {}
    assert!(buffer.residents.is_empty(), "{name} never offered {:?}", buffer.residents);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(20_240_817),
        ..ProptestConfig::default()
    })]

    #[test]
    fn b09_each_entry_is_offered_once(steps in steps()) {
        for name in NAMES {
            play(name, &steps, |_| None);
        }
    }

    #[test]
    fn b08_lru_is_exact(steps in steps()) {
        play("lru", &steps, |buffer| buffer.oldest_by(|ticks| ticks.1));
    }

    #[test]
    fn fifo_is_exact(steps in steps()) {
        play("fifo", &steps, |buffer| buffer.oldest_by(|ticks| ticks.0));
    }
}

#[test]
fn a_slot_used_again_does_not_inherit() {
    for name in NAMES {
        let mut buffer = Buffer::new(name);
        let first = buffer.admit(1, 1);
        let second = buffer.admit(1, 2);
        (0..3).for_each(|_| buffer.read(first));
        buffer.forget(first);
        assert_eq!(buffer.admit(1, 3), first, "the slot is used again");
        assert_eq!(buffer.victim(), Some(second), "{name}: the older one");
        assert_eq!(buffer.victim(), Some(first), "{name}");
        assert_eq!(buffer.victim(), None, "{name}");
    }
}

#[test]
fn admitting_a_slot_twice_holds_it_once() {
    for name in NAMES {
        let mut policy = by_name(name).unwrap();
        let buffer = Buffer::new(name);
        buffer.table.marks.borrow_mut().push(0);
        for tick in 1..3 {
            policy.admit(&Arrival { slot: Slot::new(0), weight: 1, fingerprint: 1, tick });
        }
        assert_eq!(policy.victim(&buffer.table), Some(Slot::new(0)), "{name}");
        assert_eq!(policy.victim(&buffer.table), None, "{name}");
    }
}

#[test]
fn churn_does_not_grow_the_books() {
    for name in NAMES {
        let mut buffer = Buffer::new(name);
        let mut churn = |rounds: u64| {
            for round in 0..rounds {
                let slot = buffer.admit(1, round);
                buffer.read(slot);
                if buffer.residents.len() > 50 {
                    let oldest = buffer.oldest_by(|ticks| ticks.0).unwrap();
                    if round % 3 == 0 {
                        buffer.victim().unwrap();
                    } else {
                        buffer.forget(oldest);
                    }
                }
            }
            // All a policy keeps is in its debug form, so nothing can grow unseen.
            format!("{:?}", buffer.policy).len()
        };
        let (early, late) = (churn(1_000), churn(100_000));
        assert!(late < early * 3 / 2, "{name} grew from {early} to {late} characters");
    }
}

#[test]
fn one_victim_looks_at_a_bounded_number_of_marks() {
    for name in ["clock", "s3-fifo", "sieve"] {
        let mut buffer = Buffer::new(name);
        for key in 0..10_000 {
            let slot = buffer.admit(1, key);
            (0..3).for_each(|_| buffer.read(slot));
        }
        buffer.victim().unwrap();
        let looks = buffer.table.looks.get();
        assert!((1..=1024).contains(&looks), "{name} looked at {looks} marks");
    }
}

/// Reads go on while a victim is picked: whatever is reset has been read again at the next look.
#[derive(Debug)]
struct ReadAllTheTime(Cell<u64>);

impl Marks for ReadAllTheTime {
    fn get(&self, _slot: Slot) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }

    fn reset(&self, _slot: Slot, _count: u8) {}
}

#[test]
fn b09_entries_that_are_read_all_the_time_leave_in_the_end() {
    for name in NAMES {
        let mut buffer = Buffer::new(name);
        for key in 0..100 {
            buffer.admit(1, key);
        }
        let marks = ReadAllTheTime(Cell::new(1_000));
        for _ in 0..100 {
            let victim = buffer.policy.victim(&marks).unwrap();
            buffer.free(victim);
        }
        assert_eq!(buffer.policy.victim(&marks), None, "{name}");
    }
}

#[test]
fn s3_fifo_large_newcomers_do_not_drive_out_small_entries_that_are_read() {
    const SMALL: usize = 1_000;
    let mut buffer = Buffer::new("s3-fifo");
    let small: Vec<Slot> = (0..1_000).map(|key| buffer.admit(1_000, key)).collect();
    for key in 1_000..1_100 {
        small.iter().chain(&small).for_each(|slot| buffer.read(*slot));
        // Memory has room for the small ones and for three large ones.
        while buffer.residents.len() >= SMALL + 3 {
            let victim = buffer.victim().unwrap();
            assert!(!small.contains(&victim), "large newcomers must drive out one another");
        }
        buffer.admit(400_000, key);
    }
}
