use super::*;

/// Nanoseconds per byte and stored share of one way on some data.
type Ways = [(f64, f64); 3];

/// As measured on one core: as it is, `lz4`, `zstd:1`.
const CORPORA: [(&str, Ways); 6] = [
    ("text 1 MiB", [(0.0, 1.0), (3.18, 0.455), (3.95, 0.323)]),
    ("text 4 KiB", [(0.0, 1.0), (2.81, 0.588), (4.93, 0.435)]),
    ("log", [(0.0, 1.0), (1.83, 0.385), (3.37, 0.233)]),
    ("int64 range", [(0.0, 1.0), (1.89, 0.5), (3.68, 0.127)]),
    ("mixed rows", [(0.0, 1.0), (1.79, 0.667), (4.48, 0.455)]),
    ("random", [(0.0, 1.0), (0.07, 1.0), (0.24, 1.0)]),
];

/// Nanoseconds per byte: more than this disk, the disk, a busy one, object storage near and far.
const WRITES: [f64; 6] = [0.3, 1.0, 2.4, 6.0, 16.0, 100.0];

/// A machine as the chooser takes it to be: two jobs on two cores.
fn takes((time, ratio): (f64, f64), write: f64) -> f64 {
    (ratio * write).max(time / 2.0).max((time + ratio * write) / 2.0)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn nanos(time: f64) -> u64 {
    time as u64
}

struct Machine {
    chooser: Chooser,
    batch: u64,
    batches: u64,
    /// Nanoseconds of everything so far.
    time: f64,
    /// One sample of twenty is far off.
    is_noisy: bool,
}

impl Machine {
    fn new(batch: u64) -> Self {
        Self { chooser: Chooser::new(3, 2, 2), batch, batches: 0, time: 0.0, is_noisy: true }
    }

    /// A factor that looks like noise.
    fn noise(&self, salt: u64) -> f64 {
        let mixed = (self.batches * 31 + salt * 7) % 20;
        if mixed == 13 && self.is_noisy { 40.0 } else { 0.9 + mixed as f64 / 100.0 }
    }

    /// One batch of values of 4 KiB; what was done with it.
    fn batch(&mut self, ways: &Ways, write: f64) -> Vec<Tally> {
        let plan = self.chooser.plan();
        let mut done = vec![Tally::default(); 3];
        for _ in 0..self.batch / 4096 {
            let way = plan.next(&done);
            done[way].raw += 4096;
        }
        let mut stored = 0;
        for (way, tally) in done.iter_mut().enumerate() {
            let raw = tally.raw as f64;
            tally.stored = nanos(raw * ways[way].1);
            tally.nanos = nanos(raw * ways[way].0 * self.noise(way as u64));
            self.time += raw * takes(ways[way], write);
            stored += tally.stored;
        }
        self.chooser.compressed(&done);
        self.chooser.wrote(stored, nanos(stored as f64 * write * 2.0 * self.noise(9)), 2);
        self.batches += 1;
        done
    }

    fn run(&mut self, ways: &Ways, write: f64, batches: u64) {
        for _ in 0..batches {
            self.batch(ways, write);
        }
    }

    fn is_best(&self, ways: &Ways, write: f64) -> bool {
        let best = ways.iter().map(|way| takes(*way, write)).fold(f64::MAX, f64::min);
        takes(ways[self.chooser.chosen], write) <= best * 1.1
    }
}

#[test]
fn a_long_run_is_within_a_tenth_of_the_best_fixed_way() {
    for (name, ways) in CORPORA {
        for write in WRITES {
            for batch in [64 << 10, 2 << 20, 16 << 20] {
                let mut machine = Machine::new(batch);
                machine.run(&ways, write, 2000);
                let bytes = (2000 * batch) as f64;
                let best = ways.iter().map(|way| takes(*way, write)).fold(f64::MAX, f64::min);
                let ratio = machine.time / bytes / best;
                assert!(ratio <= 1.1, "{name}, {write} ns, batches of {batch}: {ratio:.3}");
            }
        }
    }
}

#[test]
fn trying_costs_little() {
    for (name, ways) in CORPORA {
        for write in WRITES {
            let mut machine = Machine::new(2 << 20);
            machine.run(&ways, write, 100);
            let (spent, total) = (machine.chooser.spent, machine.chooser.total);
            machine.run(&ways, write, 1000);
            let (spent, total) = (machine.chooser.spent - spent, machine.chooser.total - total);
            assert!(spent <= ALLOWED * total, "{name}, {write} ns: {:.4}", spent / total);
        }
    }
}

#[test]
fn it_follows_other_data_and_another_disk() {
    for (from, ways_before) in CORPORA {
        for (to, ways) in CORPORA {
            for (before, write) in [(1.0, 1.0), (1.0, 16.0), (16.0, 1.0), (16.0, 16.0), (100.0, 0.3)] {
                let mut machine = Machine::new(2 << 20);
                machine.run(&ways_before, before, 500);
                machine.run(&ways, write, 200);
                assert!(
                    machine.is_best(&ways, write),
                    "{from} at {before} ns, then {to} at {write} ns: {}",
                    machine.chooser.chosen
                );
            }
        }
    }
}

#[test]
fn what_is_far_off_once_changes_nothing() {
    let (_, ways) = CORPORA[0];
    let mut machine = Machine { is_noisy: false, ..Machine::new(2 << 20) };
    machine.run(&ways, 16.0, 100);
    let chosen = machine.chooser.chosen;
    for _ in 0..20 {
        machine.chooser.wrote(1 << 20, 1, 1);
        assert_eq!(machine.chooser.chosen, chosen);
        let mut done = vec![Tally::default(); 3];
        done[chosen] = Tally { raw: 1 << 20, stored: 1 << 20, nanos: 1 << 40 };
        machine.chooser.compressed(&done);
        assert_eq!(machine.chooser.chosen, chosen);
        machine.run(&ways, 16.0, 3);
    }
}

#[test]
fn the_same_measurements_lead_to_the_same_choices() {
    let done = || {
        let mut machine = Machine::new(1 << 20);
        (0..300).map(|batch| machine.batch(&CORPORA[batch / 100].1, 4.0)).collect::<Vec<_>>()
    };
    assert_eq!(done(), done());
}

#[test]
fn what_does_not_shrink_is_left_as_it_is() {
    for write in WRITES {
        let mut machine = Machine::new(2 << 20);
        machine.run(&CORPORA[5].1, write, 20);
        assert_eq!(machine.chooser.chosen, 0, "{write} ns");
    }
}

#[test]
fn what_saves_space_is_taken_when_it_is_about_as_quick() {
    let mut machine = Machine::new(2 << 20);
    machine.run(&[(0.0, 1.0), (1.5, 0.5), (9.0, 0.4)], 1.0, 100);
    assert_eq!(machine.chooser.chosen, 1);
}

#[test]
fn one_way_alone_is_always_taken() {
    let mut chooser = Chooser::new(1, 2, 2);
    for _ in 0..50 {
        assert_eq!(chooser.plan(), Plan { chosen: 0, tried: Vec::new() });
        chooser.compressed(&[Tally { raw: 1 << 20, stored: 1 << 20, nanos: 0 }]);
        chooser.wrote(1 << 20, 1 << 20, 1);
    }
}

#[test]
fn values_too_few_to_be_measured_are_put_together() {
    let mut chooser = Chooser::new(2, 2, 2);
    for _ in 0..16 {
        assert_eq!(chooser.plan().tried, [1]);
        chooser.compressed(&[Tally::default(), Tally { raw: 4096, stored: 2048, nanos: 4096 }]);
    }
    assert!(chooser.plan().tried.is_empty());
}
