//! A bounded map that keeps recently used entries.

use std::collections::HashMap;
use std::hash::Hash;

/// It has two generations. A used entry moves to the young one. When that is full, it becomes the
/// old one, and entries that were not used since are dropped. The map holds at most twice `half`
/// entries and, unlike a linked list, needs neither links nor `unsafe`.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(half: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: half.max(1) }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&mut V>
    where
        K: Copy,
    {
        if !self.young.contains_key(key) {
            let value = self.old.remove(key)?;
            self.insert(*key, value);
        }
        self.young.get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_used_entries_and_is_bounded() {
        let mut recent = Recent::new(10);
        for n in 0..1_000 {
            recent.insert(n, n);
            assert!(recent.get(&0).is_some(), "0 is used every time");
            assert!(recent.young.len() + recent.old.len() <= 20);
        }
        assert!(recent.get(&999).is_some());
        assert!(recent.get(&500).is_none());
        recent.remove(&999);
        assert!(recent.get(&999).is_none());
    }
}
