//! The cases, one file for several groups that belong together. Each is a plain async function over a
//! `Place`; its name is the case's name.

mod basics;
mod cancel;
mod concurrency;
mod delete;
mod faults;
mod listing;
mod payloads;
mod processes;
mod ranges;
mod sessions;
mod sweep;

use super::Case;

/// Lists functions as cases of a group: `cases!(Basics: one, two needs [Leftovers])`.
macro_rules! cases {
    ($group:ident: $($name:ident $(needs [$($need:ident $(($trouble:expr))?),*])?),* $(,)?) => {
        &[$($crate::store::Case {
            name: stringify!($name),
            group: $crate::store::Group::$group,
            needs: &[$($($crate::store::Need::$need $(($trouble))?),*)?],
            run: |place| Box::pin(async move { $name(&place).await }),
        }),*]
    };
}
use cases;

pub(super) const GROUPS: &[&[Case]] = &[
    basics::BASICS,
    basics::SIZES,
    ranges::RANGES,
    listing::LISTING,
    delete::DELETE,
    basics::IDS,
    concurrency::CONCURRENCY,
    cancel::CANCEL,
    payloads::USAGE,
    sessions::SESSIONS,
    sessions::CLOSE,
    payloads::PAYLOADS,
    ranges::PUNCH,
    faults::PUTS,
    faults::READS,
    faults::OTHERS,
    faults::VALUES,
    sweep::SWEEP,
    processes::PROCESSES,
];
