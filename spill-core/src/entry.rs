//! The life of an entry as one pure function, [`step`]. The table carries it out; nothing else decides
//! what an entry becomes.

/// Where an entry's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Not there: never inserted, removed, or replaced by another insert of its key.
    Absent,
    /// Only in memory.
    Resident,
    /// In memory, and being written to a tier.
    Spilling,
    /// Only in a tier.
    Spilled,
    /// In a tier, and being read back.
    Restoring,
    /// In memory and in a tier: leaving memory is free.
    Clean,
}

/// What happens to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It was picked to leave memory.
    Evict,
    /// Its frame is down. `touched`: it was read while it was written.
    PutDone { touched: bool },
    /// No tier took it.
    PutFailed,
    /// A caller asks for the value.
    Get,
    /// The value was read back. `stays`: there is room for it in memory.
    GetDone { stays: bool },
    /// It could not be read back.
    GetFailed,
    /// A new value was inserted under its key.
    Insert,
    /// Its key was removed.
    Remove,
    /// Its tier runs short of room and wants the second copy back.
    DropCopy,
}

/// What has to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Write a frame.
    Put,
    /// Its weight no longer counts.
    FreeWeight,
    /// Its frame is garbage.
    BuryFrame,
    /// Its frame, now being written, is garbage as soon as the write has ended.
    BuryFrameWhenPut,
    /// It can be picked again.
    Readmit,
    /// It can't be picked again for now.
    Park,
    /// Hand out the value.
    Serve,
    /// Start reading.
    Read,
    /// Wait for the read that is under way.
    Join,
    /// Everybody who waits gets the value.
    ServeWaiting,
    /// Everybody who waits gets the error.
    FailWaiting,
}

/// The phase after an event, and what to do. `None`: this event can't meet this phase.
pub(crate) fn step(phase: Phase, event: Event) -> Option<(Phase, &'static [Effect])> {
    use Effect::*;
    use Phase::*;
    let (next, effects): (Phase, &'static [Effect]) = match (phase, event) {
        (Resident, Event::Evict) => (Spilling, &[Put]),
        (Clean, Event::Evict) => (Spilled, &[FreeWeight]),

        (Spilling, Event::PutDone { touched: false }) => (Spilled, &[FreeWeight]),
        (Spilling, Event::PutDone { touched: true }) => (Clean, &[Readmit]),
        (Spilling, Event::PutFailed) => (Resident, &[Park]),
        // Whoever removed or replaced it while it was written left the end of the write to us.
        (Absent, Event::PutDone { .. }) => (Absent, &[FreeWeight, BuryFrame]),
        (Absent, Event::PutFailed) => (Absent, &[FreeWeight]),

        (Absent, Event::Get) => (Absent, &[]),
        (Resident | Spilling | Clean, Event::Get) => (phase, &[Serve]),
        (Spilled, Event::Get) => (Restoring, &[Read]),
        (Restoring, Event::Get) => (Restoring, &[Join]),

        (Restoring, Event::GetDone { stays: true }) => (Clean, &[Readmit, ServeWaiting]),
        (Restoring, Event::GetDone { stays: false }) => (Spilled, &[ServeWaiting]),
        (Restoring, Event::GetFailed) => (Spilled, &[FailWaiting]),
        // They asked before it was removed or replaced, so the value read is a right answer.
        (Absent, Event::GetDone { .. }) => (Absent, &[ServeWaiting]),
        (Absent, Event::GetFailed) => (Absent, &[FailWaiting]),

        (Absent, Event::Insert) => (Resident, &[Readmit]),
        (Resident, Event::Insert) => (Resident, &[FreeWeight, Readmit]),
        (Spilling, Event::Insert) => (Resident, &[BuryFrameWhenPut, Readmit]),
        (Spilled | Restoring, Event::Insert) => (Resident, &[BuryFrame, Readmit]),
        (Clean, Event::Insert) => (Resident, &[FreeWeight, BuryFrame, Readmit]),

        (Absent, Event::Remove) => (Absent, &[]),
        (Resident, Event::Remove) => (Absent, &[FreeWeight]),
        (Spilling, Event::Remove) => (Absent, &[BuryFrameWhenPut]),
        (Spilled | Restoring, Event::Remove) => (Absent, &[BuryFrame]),
        (Clean, Event::Remove) => (Absent, &[FreeWeight, BuryFrame]),

        (Clean, Event::DropCopy) => (Resident, &[BuryFrame]),
        // The copy was given up, or became the only one, since the tier noted it.
        (_, Event::DropCopy) => (phase, &[]),

        (Absent | Spilling | Spilled | Restoring, Event::Evict)
        | (Resident | Spilled | Restoring | Clean, Event::PutDone { .. } | Event::PutFailed)
        | (Resident | Spilling | Spilled | Clean, Event::GetDone { .. } | Event::GetFailed) => return None,
    };
    Some((next, effects))
}

#[cfg(test)]
mod tests {
    use super::{Effect::*, Phase::*, *};

    const PHASES: [Phase; 6] = [Absent, Resident, Spilling, Spilled, Restoring, Clean];
    const EVENTS: [Event; 11] = [
        Event::Evict,
        Event::PutDone { touched: false },
        Event::PutDone { touched: true },
        Event::PutFailed,
        Event::Get,
        Event::GetDone { stays: false },
        Event::GetDone { stays: true },
        Event::GetFailed,
        Event::Insert,
        Event::Remove,
        Event::DropCopy,
    ];

    fn in_memory(phase: Phase) -> bool {
        matches!(phase, Resident | Spilling | Clean)
    }

    fn in_tier(phase: Phase) -> bool {
        matches!(phase, Spilled | Restoring | Clean)
    }

    /// The table of the design, cell by cell: `phase x event -> next`.
    #[test]
    fn every_cell_leads_where_the_design_says() {
        let (gone, no) = (Some(Absent), None);
        #[rustfmt::skip]
        let table: [(Phase, [Option<Phase>; 11]); 6] = [
            //          evict           put done       touched      put failed      get              done, goes      done, stays  get failed     insert          remove drop copy
            (Absent,    [no,             gone,          gone,        gone,           gone,            gone,           gone,        gone,          Some(Resident), gone,  gone]),
            (Resident,  [Some(Spilling), no,            no,          no,             Some(Resident),  no,             no,          no,            Some(Resident), gone,  Some(Resident)]),
            (Spilling,  [no,             Some(Spilled), Some(Clean), Some(Resident), Some(Spilling),  no,             no,          no,            Some(Resident), gone,  Some(Spilling)]),
            (Spilled,   [no,             no,            no,          no,             Some(Restoring), no,             no,          no,            Some(Resident), gone,  Some(Spilled)]),
            (Restoring, [no,             no,            no,          no,             Some(Restoring), Some(Spilled),  Some(Clean), Some(Spilled), Some(Resident), gone,  Some(Restoring)]),
            (Clean,     [Some(Spilled),  no,            no,          no,             Some(Clean),     no,             no,          no,            Some(Resident), gone,  Some(Resident)]),
        ];
        for (phase, row) in table {
            for (event, expected) in EVENTS.into_iter().zip(row) {
                assert_eq!(step(phase, event).map(|(next, _)| next), expected, "{phase:?} x {event:?}");
            }
        }
    }

    /// Weight and frames are given back exactly when the entry stops holding them, whatever happens.
    #[test]
    fn effects_balance_the_books() {
        for phase in PHASES {
            for event in EVENTS {
                let Some((next, effects)) = step(phase, event) else { continue };
                let cell = format!("{phase:?} x {event:?} -> {next:?} {effects:?}");
                let has = |effect: Effect| effects.contains(&effect);
                let ends_a_put = matches!(event, Event::PutDone { .. } | Event::PutFailed);
                let replaces = event == Event::Insert;

                // An entry that is being written leaves its weight to the write.
                let frees = match (phase, next) {
                    (Spilling, _) if !ends_a_put => false,
                    (Absent, Absent) => ends_a_put,
                    _ => in_memory(phase) && (replaces || !in_memory(next)),
                };
                assert_eq!(has(FreeWeight), frees, "{cell}");

                let buries = match (phase, event) {
                    (Absent, Event::PutDone { .. }) => true,
                    _ => in_tier(phase) && (replaces || !in_tier(next)),
                };
                assert_eq!(has(BuryFrame), buries, "{cell}");
                assert_eq!(
                    has(BuryFrameWhenPut),
                    phase == Spilling && !ends_a_put && !in_tier(next) && next != Spilling,
                    "{cell}"
                );
            }
        }
    }

    /// Nobody who waits for a read is forgotten, and a key that is there is never answered with silence.
    #[test]
    fn effects_answer_everybody() {
        for phase in PHASES {
            for event in EVENTS {
                let Some((_, effects)) = step(phase, event) else { continue };
                let cell = format!("{phase:?} x {event:?} {effects:?}");
                match event {
                    Event::Get if phase == Absent => assert!(effects.is_empty(), "{cell}"),
                    Event::Get => {
                        assert!(matches!(effects, [Serve | Read | Join]), "{cell}");
                        assert_eq!(effects.contains(&Serve), in_memory(phase), "{cell}");
                    }
                    Event::GetDone { .. } => assert!(effects.contains(&ServeWaiting), "{cell}"),
                    Event::GetFailed => assert!(effects.contains(&FailWaiting), "{cell}"),
                    _ => assert!(!effects.iter().any(|e| matches!(e, Serve | Read | Join)), "{cell}"),
                }
            }
        }
    }
}
