//! The suite for victim policies: each against a model of what it holds.
//!
//! Not proven: how good its choices are, and how fast it makes them.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use spill_core::{Arrival, MAX_WEIGHT, Marks, Policy, Slot, Touch};

use crate::{
    random::Random,
    runner::{Stop, Suite, Verdict, ensure, ensure_eq},
};

const LIMIT: Duration = Duration::from_secs(60);
const SEEDS: u64 = 20;
const STEPS: usize = 5000;

/// The checks for a policy, named `policy/<its name>/<check>`. `make` makes one that holds nothing.
///
/// ```
/// use std::collections::VecDeque;
/// use spill_core::{Arrival, Marks, Policy, Slot, Touch};
///
/// #[derive(Debug, Default)]
/// struct Oldest(VecDeque<Slot>);
///
/// impl Policy for Oldest {
///     fn name(&self) -> &'static str {
///         "oldest"
///     }
///     fn touch(&self) -> Touch {
///         Touch::Nothing
///     }
///     fn admit(&mut self, arrival: &Arrival) {
///         self.0.push_back(arrival.slot);
///     }
///     fn forget(&mut self, slot: Slot) {
///         self.0.retain(|other| *other != slot);
///     }
///     fn victim(&mut self, _marks: &dyn Marks) -> Option<Slot> {
///         self.0.pop_front()
///     }
/// }
///
/// spill_conformance::policy_suite(|| Box::<Oldest>::default()).report().assert_passed();
/// ```
pub fn policy_suite<F>(make: F) -> Suite
where
    F: Fn() -> Box<dyn Policy> + Send + Sync + 'static,
{
    type Check = fn(&dyn Fn() -> Box<dyn Policy>) -> Verdict;
    let checks: [(&str, Check); 9] = [
        ("name_and_touch_are_constant", name_and_touch_are_constant),
        ("an_empty_one_has_no_victim", an_empty_one_has_no_victim),
        ("each_entry_is_offered_once", each_entry_is_offered_once),
        ("a_forgotten_entry_is_not_offered", a_forgotten_entry_is_not_offered),
        ("forgetting_what_it_does_not_hold_does_nothing", forgetting_what_it_does_not_hold_does_nothing),
        ("slots_are_used_again", slots_are_used_again),
        ("entries_read_all_the_time_are_offered_too", entries_read_all_the_time_are_offered_too),
        ("extreme_weights_work", extreme_weights_work),
        ("random_operations_agree_with_a_model", random_operations_agree_with_a_model),
    ];
    let make = Arc::new(make);
    let policy_name = make().name();
    let mut suite = Suite::new("policy", policy_name);
    for (name, check) in checks {
        let make = Arc::clone(&make);
        suite.add_bounded(format!("policy/{policy_name}/{name}"), LIMIT, move || check(&*make));
    }
    suite
}

/// The marks as the buffer keeps them, for the kind of touch the policy asked for.
struct Book {
    touch: Touch,
    marks: RefCell<HashMap<Slot, u64>>,
}

impl Marks for Book {
    fn get(&self, slot: Slot) -> u64 {
        self.marks.borrow().get(&slot).copied().unwrap_or(0)
    }

    fn reset(&self, slot: Slot, count: u8) {
        if let (Touch::Count(most), Some(mark)) = (self.touch, self.marks.borrow_mut().get_mut(&slot)) {
            *mark = u64::from(count.min(most));
        }
    }
}

/// A policy beside a model of what it should hold.
struct Trial {
    policy: Box<dyn Policy>,
    book: Book,
    held: BTreeSet<Slot>,
    tick: u64,
}

impl Trial {
    fn new(make: &dyn Fn() -> Box<dyn Policy>) -> Self {
        let policy = make();
        let book = Book { touch: policy.touch(), marks: RefCell::default() };
        Self { policy, book, held: BTreeSet::new(), tick: 0 }
    }

    fn admit(&mut self, slot: u32, weight: u64, fingerprint: u64) {
        let slot = Slot::new(slot);
        self.tick += 1;
        let mark = if self.book.touch == Touch::Stamp { self.tick } else { 0 };
        self.book.marks.borrow_mut().insert(slot, mark);
        self.held.insert(slot);
        self.policy.admit(&Arrival { slot, weight, fingerprint, tick: self.tick });
    }

    fn admit_all(&mut self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            self.admit(slot, 100, u64::from(slot) * 31);
        }
    }

    fn read(&mut self, slot: Slot) {
        self.tick += 1;
        if let Some(mark) = self.book.marks.borrow_mut().get_mut(&slot) {
            *mark = match self.book.touch {
                Touch::Nothing => 0,
                Touch::Count(most) => u64::from(most).min(*mark + 1),
                Touch::Stamp => self.tick,
            };
        }
    }

    fn read_all(&mut self) {
        for slot in self.held.clone() {
            self.read(slot);
        }
    }

    fn forget(&mut self, slot: Slot) {
        self.policy.forget(slot);
        self.held.remove(&slot);
        self.book.marks.borrow_mut().remove(&slot);
    }

    /// Asks for a victim: one that the model holds, or none when it holds none.
    fn victim(&mut self) -> Result<Option<Slot>, Stop> {
        let victim = self.policy.victim(&self.book);
        match victim {
            Some(slot) => {
                ensure!(self.held.remove(&slot), "offers {slot:?}, which it does not hold");
                self.book.marks.borrow_mut().remove(&slot);
            }
            None => ensure!(
                self.held.is_empty(),
                "offers no victim although it holds {} entries",
                self.held.len()
            ),
        }
        Ok(victim)
    }

    /// Asks for victims until there is none; `between` runs after each.
    fn drain(&mut self, between: impl Fn(&mut Self)) -> Verdict {
        while self.victim()?.is_some() {
            between(self);
        }
        ensure_eq!(self.victim()?, None, "the victim of an emptied policy");
        Ok(())
    }
}

fn name_and_touch_are_constant(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    let mut trial = Trial::new(make);
    let (name, touch) = (trial.policy.name(), trial.policy.touch());
    ensure!(!name.is_empty(), "the name is empty");
    trial.admit_all(0..10);
    trial.victim()?;
    ensure_eq!((trial.policy.name(), trial.policy.touch()), (name, touch), "name and touch after calls");
    Ok(())
}

fn an_empty_one_has_no_victim(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    Trial::new(make).drain(|_| ())
}

fn each_entry_is_offered_once(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    for count in [1, 2, 3, 10, 100, 2000] {
        let mut trial = Trial::new(make);
        trial.admit_all(0..count);
        trial.drain(|_| ())?;
        // Again in the same one, which may remember them, and in another order.
        trial.admit_all((0..count).rev());
        trial.drain(|_| ())?;
    }
    Ok(())
}

fn a_forgotten_entry_is_not_offered(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    for keep in 1..=5 {
        let mut trial = Trial::new(make);
        trial.admit_all(0..60);
        // Some have been looked at by then, and may be in another queue.
        trial.read_all();
        for _ in 0..10 {
            trial.victim()?;
        }
        for slot in trial.held.clone() {
            if slot.get() % 5 + 1 != keep {
                trial.forget(slot);
            }
        }
        trial.drain(|_| ())?;
    }
    Ok(())
}

fn forgetting_what_it_does_not_hold_does_nothing(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    let mut trial = Trial::new(make);
    trial.forget(Slot::new(3));
    trial.admit_all(0..20);
    trial.forget(Slot::new(1000));
    for _ in 0..3 {
        trial.forget(Slot::new(5));
    }
    if let Some(victim) = trial.victim()? {
        trial.forget(victim);
    }
    trial.drain(|_| ())
}

fn slots_are_used_again(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    let mut trial = Trial::new(make);
    for round in 0..200 {
        // One slot for ever new keys, among others that stay for a while.
        trial.admit(0, 10, round);
        trial.admit(1 + u32::try_from(round % 50).unwrap_or(0), 10, 10_000 + round);
        trial.forget(Slot::new(0));
        trial.admit(0, 20, 20_000 + round);
        for slot in [Slot::new(0), Slot::new(1 + u32::try_from((round + 1) % 50).unwrap_or(0))] {
            trial.forget(slot);
        }
        if round % 3 == 0 {
            trial.victim()?;
        }
    }
    trial.drain(|_| ())
}

fn entries_read_all_the_time_are_offered_too(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    let mut trial = Trial::new(make);
    trial.admit_all(0..200);
    for _ in 0..10 {
        trial.read_all();
    }
    trial.drain(|trial| {
        for _ in 0..3 {
            trial.read_all();
        }
    })
}

fn extreme_weights_work(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    let mut trial = Trial::new(make);
    for slot in 0..1000 {
        let weight = [0, 1, MAX_WEIGHT][slot as usize % 3];
        trial.admit(slot, weight, u64::MAX - u64::from(slot % 10));
    }
    for slot in (0..1000).step_by(7) {
        trial.forget(Slot::new(slot));
    }
    trial.drain(|_| ())?;
    trial.admit_all(0..10);
    trial.drain(|_| ())
}

fn random_operations_agree_with_a_model(make: &dyn Fn() -> Box<dyn Policy>) -> Verdict {
    for seed in 1..=SEEDS {
        random_run(make, seed).map_err(|stop| stop.at(format_args!("seed {seed}")))?;
    }
    Ok(())
}

fn random_run(make: &dyn Fn() -> Box<dyn Policy>, seed: u64) -> Verdict {
    let (mut trial, mut random) = (Trial::new(make), Random::new(seed));
    // From a handful of slots to many, so that both reuse and growth happen.
    let slots = 4 << (seed % 8);
    for _ in 0..STEPS {
        let number = random.below(slots);
        let slot = Slot::new(u32::try_from(number).unwrap_or(0));
        match random.below(10) {
            0..=3 if !trial.held.contains(&slot) => {
                let (weight, key) = (random.next() % 10_000, random.next() % (2 * slots as u64));
                trial.admit(slot.get(), weight, key);
            }
            4 => trial.forget(slot),
            5 | 6 => {
                trial.victim()?;
            }
            _ => trial.read(slot),
        }
    }
    trial.drain(|_| ())
}
