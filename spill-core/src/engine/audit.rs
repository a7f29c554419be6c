//! Holds the books against what is there.

use super::Shared;
use crate::{Error, Tally, entry::Phase, table::Key, tier::Tier};

/// Blobs listed in one call.
const PAGE: usize = 1000;

/// Compares numbers and notes those that differ.
struct Comparison(Vec<String>);

impl Comparison {
    fn same(&mut self, what: &str, booked: u64, counted: u64) {
        if booked != counted {
            self.0.push(format!("{what}: the books say {booked}, there are {counted}"));
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    pub(crate) async fn audit(&self) -> Result<Vec<String>, Error> {
        const PHASES: [Phase; 5] =
            [Phase::Resident, Phase::Spilling, Phase::Spilled, Phase::Restoring, Phase::Clean];
        let mut found = Comparison(Vec::new());
        let mut phases = [Tally::default(); 5];
        let mut tiers = vec![Tally::default(); self.tiers.len()];
        self.table.for_each(|_, phase, weight, place| {
            let one = Tally { entries: 1, weight };
            if let Some(index) = PHASES.iter().position(|other| *other == phase) {
                phases[index] = phases[index] + one;
            }
            if let Some(tier) = place.and_then(|place| tiers.get_mut(place.tier())) {
                *tier = *tier + one;
            }
        });
        let mut in_memory = 0;
        for (phase, counted) in PHASES.into_iter().zip(phases) {
            let booked = self.table.tally(phase);
            found.same(&format!("entries {phase:?}"), booked.entries, counted.entries);
            found.same(&format!("weight {phase:?}"), booked.weight, counted.weight);
            if matches!(phase, Phase::Resident | Phase::Spilling | Phase::Clean) {
                in_memory += counted.weight;
            }
        }
        found.same("memory in use", self.memory.levels().used, in_memory);
        for (tier, counted) in self.tiers.iter().zip(tiers) {
            compare_tier(&mut found, tier, counted).await?;
        }
        Ok(found.0)
    }
}

async fn compare_tier<K>(found: &mut Comparison, tier: &Tier<K>, counted: Tally) -> Result<(), Error> {
    let (levels, holdings) = (tier.quota.levels(), tier.holdings());
    let name = &tier.name;
    found.same(&format!("entries in {name}"), holdings.entries, counted.entries);
    found.same(&format!("weight in {name}"), holdings.weight, counted.weight);
    let (mut after, mut blobs, mut bytes) = (None, 0, 0);
    loop {
        let listed = tier.store.list(after, PAGE).await;
        let page = listed.map_err(|source| Error::Store {
            operation: "audit",
            key: "every entry".into(),
            source,
        })?;
        blobs += page.len() as u64;
        bytes += page.iter().map(|blob| blob.stored.bytes).sum::<u64>();
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.id),
            _ => break,
        }
    }
    found.same(&format!("blobs in {name}"), holdings.blobs, blobs);
    found.same(&format!("bytes in {name}"), levels.stored + levels.garbage + holdings.punched, bytes);
    found.same(&format!("bytes being written to {name}"), levels.in_flight, 0);
    Ok(())
}
