//! The likely meaning of a misspelt name.

/// Letters of a name that are looked at: names may come from a hostile file or peer.
const LOOKED_AT: usize = 128;

/// The name of `known` that is most like `wanted`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = wanted.to_ascii_lowercase();
    let ranked = known.into_iter().map(|name| (distance(&wanted, name), name));
    ranked.min().filter(|(far, name)| *far <= 2 + name.len() / 4).map(|(_, name)| name)
}

/// Letters to change, add or leave out between two names; of long ones the beginnings are compared.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(LOOKED_AT).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (done, letter) in one.chars().take(LOOKED_AT).enumerate() {
        let mut diagonal = done;
        let mut left = done + 1;
        for (cell, candidate) in row.iter_mut().skip(1).zip(&other) {
            let here = (diagonal + usize::from(letter != *candidate)).min(left + 1).min(*cell + 1);
            diagonal = std::mem::replace(cell, here);
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = done + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_found_and_a_far_one_is_not() {
        let known = ["batch_size", "seed", "shuffle", "global_batch_size"];
        for (wanted, found) in [
            ("bach_size", Some("batch_size")),
            ("batchsize", Some("batch_size")),
            ("SEED", Some("seed")),
            ("suffle", Some("shuffle")),
            ("learning_rate", None),
        ] {
            assert_eq!(nearest(wanted, known), found, "{wanted}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(nearest(&"x".repeat(100_000), known), None);
        assert_eq!(nearest("x", []), None);
    }
}
