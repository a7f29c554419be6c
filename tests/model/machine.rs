//! The state machine: proptest makes configurations and calls, and cuts a failure down.

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, RngSeed, TestRunner},
};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use tokio::runtime::Runtime;

use crate::{
    call::Call,
    random::{Random, seed_or},
    shape::Shape,
    world::World,
};

/// The reference is the configuration alone: what must be there depends on what the buffer took, so the map
/// is the world's.
struct Calls<const EXACT: bool, const FAULTS: bool>;

impl<const EXACT: bool, const FAULTS: bool> ReferenceStateMachine for Calls<EXACT, FAULTS> {
    type State = Shape;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<Shape> {
        let shape = |seed| Shape::random(&mut Random::new(seed), EXACT, FAULTS);
        any::<u64>().no_shrink().prop_map(shape).boxed()
    }

    fn transitions(shape: &Shape) -> BoxedStrategy<Call> {
        let shape = shape.clone();
        (0..if FAULTS { 1120u32 } else { 1000 }, any::<u32>(), any::<u32>())
            .prop_map(move |(kind, a, b)| Call::of(kind, a, b, &shape))
            .boxed()
    }

    fn apply(shape: Shape, _: &Call) -> Shape {
        shape
    }
}

struct Machine {
    runtime: Runtime,
    world: World,
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

struct Model<const EXACT: bool, const FAULTS: bool>;

impl<const EXACT: bool, const FAULTS: bool> StateMachineTest for Model<EXACT, FAULTS> {
    type SystemUnderTest = Machine;
    type Reference = Calls<EXACT, FAULTS>;

    fn init_test(shape: &Shape) -> Machine {
        let runtime = runtime();
        let world = runtime.block_on(async { World::new(shape) });
        Machine { runtime, world }
    }

    fn apply(mut machine: Machine, _: &Shape, call: Call) -> Machine {
        machine.runtime.block_on(machine.world.step(&call));
        machine
    }

    fn teardown(mut machine: Machine, _: Shape) {
        machine.runtime.block_on(machine.world.finish());
    }
}

fn run<const EXACT: bool, const FAULTS: bool>(cases: u32) {
    let seed = seed_or(1);
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        rng_algorithm: RngAlgorithm::ChaCha,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let strategy = Calls::<EXACT, FAULTS>::sequential_strategy(200..400);
    let result = TestRunner::new(config.clone()).run(&strategy, |(shape, calls, seen)| {
        Model::<EXACT, FAULTS>::test_sequential(config.clone(), shape, calls, seen);
        Ok(())
    });
    if let Err(error) = result {
        panic!("run it again with SPILL_SEED={seed}: {error}");
    }
}

#[test]
fn exact_buffers_equal_the_model() {
    run::<true, false>(200);
}

#[test]
fn buffers_with_watermarks_equal_the_model() {
    run::<false, false>(200);
}

#[test]
fn exact_buffers_whose_stores_fail_equal_the_model() {
    run::<true, true>(200);
}

#[test]
fn buffers_with_watermarks_whose_stores_fail_equal_the_model() {
    run::<false, true>(200);
}
