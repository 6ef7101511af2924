//! The memory store, compared with a second telling of the protocol over random sequences of steps.

use std::sync::Arc;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use semel::conformance::Bench;
use semel::conformance::model::{Answer, Driver, Model, Step};
use semel::memory::{Limits, MemoryStore};
use semel::{ManualClock, Timestamp};
use tokio::runtime::{Builder, Runtime};

/// The model, with its answer to the latest step.
#[derive(Debug, Clone)]
struct Told {
    model: Model,
    answer: Answer,
}

struct Rules;

impl ReferenceStateMachine for Rules {
    type State = Told;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Told> {
        Just(Told {
            model: Model::default(),
            answer: Answer::Passed,
        })
        .boxed()
    }

    fn transitions(_: &Told) -> BoxedStrategy<Step> {
        any::<[u8; 6]>().prop_map(Step::of).boxed()
    }

    fn apply(mut told: Told, step: &Step) -> Told {
        told.answer = told.model.step(step);
        told
    }
}

struct Memory {
    runtime: Runtime,
    bench: Bench,
    driver: Driver,
}

impl StateMachineTest for Memory {
    type SystemUnderTest = Self;
    type Reference = Rules;

    fn init_test(_: &Told) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
        let store = MemoryStore::with_clock(Limits::default(), clock.clone());
        let bench = Bench::new(store).with_clock(clock).exclusive();
        let driver = Driver::new(&bench).expect("the clock can be advanced");
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        Self {
            runtime,
            bench,
            driver,
        }
    }

    fn apply(mut memory: Self, told: &Told, step: Step) -> Self {
        let taken = memory
            .driver
            .step(&memory.bench, &step, &told.answer, &told.model);
        if let Err(failure) = memory.runtime.block_on(taken) {
            panic!("{step:?}: {failure}");
        }
        memory
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        // Kept with the repository only where a regression is worth keeping: see golden tests.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn memory_answers_as_the_rules_say(sequential 1..120 => Memory);
}
