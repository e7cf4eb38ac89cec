//! Merges two rankings into one.
//!
//! It uses reciprocal rank fusion: an item at place `r` (from 1) of a list gets `weight / (k + r)`
//! from it, and its score is the sum over both lists. BM25 and cosines have unrelated scales that
//! differ between queries; places can be added. An item that is in only one list is still found.

use std::collections::HashMap;

use overmind_core::ids::MemoryId;
use overmind_core::memory::MemoryHit;
use overmind_core::store::MemoryMatch;

/// The place of an item that was found only by words without any weight.
const LAST: u32 = 1_000_000;

/// The weights of the places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fusion {
    /// Keeps one first place from outweighing two good ones.
    pub damping: f64,
    /// The weight of a place in the list by words.
    pub words: f64,
    /// The weight of a place in the list by vectors.
    pub meaning: f64,
}

impl Default for Fusion {
    /// The values that ranked best on one half of a labelled set, with a static model's vectors;
    /// `docs/benchmarks.md` reports the other half. The usual damping of 60 hardly distinguishes a
    /// first place from a tenth.
    fn default() -> Self {
        Self { damping: 5.0, words: 1.0, meaning: 0.75 }
    }
}

impl Fusion {
    /// The best `top_k` of the merged lists, each of which is sorted best first. Of equal scores
    /// the newer item comes first.
    pub(crate) fn fuse(
        self,
        words: Vec<MemoryMatch>,
        meaning: Vec<MemoryMatch>,
        top_k: usize,
    ) -> Vec<MemoryHit> {
        let mut hits: HashMap<MemoryId, MemoryHit> = HashMap::new();
        for (weight, list) in [(self.words, words), (self.meaning, meaning)] {
            for (place, MemoryMatch { item, bm25 }) in (1_u32..).zip(list) {
                // "Newest first" is no ranking, so such items count as if they were far behind.
                let idle = bm25.total_cmp(&MemoryMatch::IDLE).is_eq();
                let place = if idle { LAST } else { place };
                let score = weight / (self.damping + f64::from(place));
                hits.entry(item.id).or_insert(MemoryHit { item, score: 0.0 }).score += score;
            }
        }
        let mut hits: Vec<_> = hits.into_values().collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.item.id.cmp(&a.item.id)));
        hits.truncate(top_k);
        hits
    }
}

#[cfg(test)]
mod tests {
    use overmind_core::ids::ColonyId;
    use overmind_core::memory::{MemoryItem, Provenance};
    use overmind_core::time::Timestamp;
    use serde_json::json;

    use super::*;

    fn item(n: u128) -> MemoryMatch {
        let item = MemoryItem {
            id: MemoryId::from_u128(n),
            colony: ColonyId::DEFAULT,
            collection: "c".into(),
            text: String::new(),
            embedding: vec![],
            embedding_model: String::new(),
            metadata: json!({}),
            created_at: Timestamp::default(),
            source: None,
            provenance: Provenance::default(),
            expires_at: None,
            supersedes: None,
            superseded_by: None,
        };
        MemoryMatch { item, bm25: 0.5 }
    }

    fn order(hits: &[MemoryHit]) -> Vec<u128> {
        hits.iter().map(|hit| hit.item.id.as_u128()).collect()
    }

    #[test]
    fn an_item_in_both_lists_ranks_above_the_first_of_one_list() {
        let even = Fusion { damping: 60.0, words: 1.0, meaning: 1.0 };
        let hits = even.fuse(vec![item(1), item(2)], vec![item(3), item(2)], 10);
        assert_eq!(order(&hits), [2, 3, 1]);
        assert!((hits[0].score - 2.0 / 62.0).abs() < 1e-12);
        assert!((hits[1].score - 1.0 / 61.0).abs() < 1e-12);
        assert_eq!(even.fuse(vec![item(1), item(2)], vec![], 1).len(), 1);
    }

    #[test]
    fn a_weight_decides_between_equal_places() {
        let words = Fusion { damping: 60.0, words: 2.0, meaning: 1.0 };
        assert_eq!(order(&words.fuse(vec![item(1)], vec![item(2)], 2)), [1, 2]);
        let meaning = Fusion { damping: 60.0, words: 1.0, meaning: 2.0 };
        assert_eq!(order(&meaning.fuse(vec![item(1)], vec![item(2)], 2)), [2, 1]);
    }

    #[test]
    fn very_common_words_do_not_affect_the_ranking() {
        let even = Fusion { damping: 60.0, words: 1.0, meaning: 1.0 };
        let idle = |n| MemoryMatch { bm25: MemoryMatch::IDLE, ..item(n) };
        let hits = even.fuse(vec![idle(9), item(1)], vec![item(2)], 10);
        assert_eq!(order(&hits), [2, 1, 9]);
        assert!(hits[2].score > 0.0, "and it is still found");
    }
}
