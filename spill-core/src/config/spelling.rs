//! Finds the name that was probably meant.

/// The candidate closest to `name`, if one is close enough to be what was meant.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Names are short; a longer one is garbage, and not worth quadratic time.
    if name.len() > 128 {
        return None;
    }
    let enough = (name.chars().count() / 3).clamp(1, 4);
    let name = name.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= enough)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters have to be added, removed, changed, or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (row, letter) in from.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, other) in to.iter().enumerate() {
            let changed = last[column] + usize::from(letter != other);
            let mut best = changed.min(last[column + 1] + 1).min(next[column] + 1);
            let swapped = row > 0 && column > 0 && from[row - 1] == *other && *letter == to[column - 1];
            if swapped {
                best = best.min(before[column - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut last, next);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_edits() {
        for (from, to, edits) in [
            ("", "", 0),
            ("", "ab", 2),
            ("limit", "limit", 0),
            ("limti", "limit", 1),
            ("max_spil", "max_spill", 1),
        ] {
            assert_eq!(distance(from, to), edits, "{from} → {to}");
        }
    }

    #[test]
    fn finds_what_was_meant_and_nothing_else() {
        let names = ["limit", "policy", "on_full"];
        assert_eq!(nearest("Limmit", names), Some("limit"));
        assert_eq!(nearest("onfull", names), Some("on_full"));
        assert_eq!(nearest("colour", names), None);
        assert_eq!(nearest(&"x".repeat(10_000), names), None);
    }
}
