//! Suggests the known word that is most similar to an unknown one.

/// The word of `known` that is most like `given`, if any is like it at all: one change is, and one more
/// for each four characters of the shorter of the two. The first in the alphabet of those as near.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|word| (distance(given, word), word))
        .filter(|(far, word)| *far <= 1 + word.chars().count().min(given.chars().count()) / 4)
        // A text of two letters in which both differ is not similar: "id".
        .filter(|(far, word)| *far < word.chars().count())
        .min()
        .map(|(_, word)| word)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_miss_gets_a_suggestion_and_nonsense_gets_none() {
        for (given, known, meant) in [
            ("server.listne", &["server.listen", "server.log"][..], Some("server.listen")),
            ("stratgey", &["strategy", "start"], Some("strategy")),
            ("sevices", &["services", "setup"], Some("services")),
            ("rnu", &["run", "result", "resume"], Some("run")),
            ("gtp-5", &["gpt-5", "gpt-5-mini"], Some("gpt-5")),
            ("ps", &["up"], None),
            ("banana", &["services", "setup"], None),
            ("", &["a"], None),
        ] {
            assert_eq!(nearest(given, known.iter().copied()), meant, "{given}");
        }
    }
}
