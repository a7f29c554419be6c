//! What holds over a real S3 server that is killed and restarted, behind a network that cuts.
//!
//! The server is SeaweedFS: one static binary, `weed`, which `WEED` names. Without it every test is
//! shown as ignored. `.ci/run` fetches it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, whose counts are to be seen")]

mod corpus;
mod load;
mod weed;

use std::{path::PathBuf, process::ExitCode};

use libtest_mimic::{Arguments, Trial};

use weed::Weed;

type Test = fn(&mut Weed);

const TESTS: [(&str, Test); 4] = [
    ("corpus_in_a_bucket", corpus::in_a_bucket),
    ("corpus_while_the_server_is_killed_and_requests_are_cut", corpus::through_trouble),
    ("few_requests_for_many_values", load::few_requests_for_many_values),
    ("s08_two_buffers_share_a_prefix", load::two_buffers_share_a_prefix),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One server at a time, and the machine to itself.
    arguments.test_threads = Some(1);
    let weed = std::env::var_os("WEED").map(PathBuf::from);
    let trials = TESTS.map(|(name, test)| {
        let Some(program) = weed.clone() else {
            let name = format!("{name} (WEED is not set: it names SeaweedFS's `weed`)");
            return Trial::test(name, || Ok(())).with_ignored_flag(true);
        };
        Trial::test(name, move || {
            test(&mut Weed::start(&program));
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}
