//! A million calls, in as many configurations as fit.

use std::thread;

use crate::{
    call::Call,
    machine::runtime,
    random::{Random, seed_or},
    shape::Shape,
    world::World,
};

/// Calls of one run; each has a configuration of its own.
const CALLS: u64 = 2500;
const RUNS: u64 = 400;

fn run(seed: u64) {
    let mut random = Random::new(seed.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let exact = random.below(2) == 0;
    let shape = Shape::random(&mut random, exact, true);
    runtime().block_on(async {
        let mut world = World::new(&shape);
        for _ in 0..CALLS {
            world.step(&Call::random(&mut random, &shape)).await;
        }
        world.finish().await;
    });
}

#[test]
fn a05_a_million_random_calls_with_random_faults_equal_the_model() {
    // One run alone is repeated with SPILL_SEED=its seed SPILL_RUNS=1.
    let first = seed_or(1000);
    let runs =
        std::env::var("SPILL_RUNS").map_or(RUNS, |runs| runs.parse().expect("SPILL_RUNS is a whole number"));
    let threads = thread::available_parallelism().map_or(2, |threads| threads.get() as u64).min(runs);
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for seed in (first + thread..first + runs).step_by(usize::try_from(threads).unwrap()) {
                    let told = Told(seed);
                    run(seed);
                    std::mem::forget(told);
                }
            });
        }
    });
}

/// Says which seed failed.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("run it again with SPILL_SEED={} SPILL_RUNS=1", self.0);
    }
}
