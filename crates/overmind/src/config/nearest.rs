//! What somebody may have meant who wrote a key that there is not.

/// The known key most like `given`, if any is like it at all.
pub(crate) fn nearest<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    known
        .into_iter()
        .map(|key| (distance(given, key), key))
        .filter(|(far, key)| *far <= 1 + key.len().min(given.len()) / 4)
        .min()
        .map(|(_, key)| key)
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
    use crate::config::settings::{LISTEN, SETTINGS};

    #[test]
    fn a_near_miss_finds_its_key_and_nonsense_finds_none() {
        let keys = || SETTINGS.iter().map(|setting| setting.key);
        assert_eq!(nearest("server.listne", keys()), Some(LISTEN));
        assert_eq!(nearest("server.lisen", keys()), Some(LISTEN));
        assert_eq!(nearest("banana", keys()), None);
    }
}
