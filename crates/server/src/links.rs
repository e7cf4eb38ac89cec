//! Links that sign in once: kept in memory, for a minute.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a link is valid.
pub(crate) const VALID: Duration = Duration::from_secs(60);
/// Links at once; the oldest goes for one more.
const MOST: usize = 64;

/// Codes by their hash, each with the token that it stands for.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashMap<[u8; 32], (Instant, String)>>);

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Links")
    }
}

impl Links {
    /// A code for the holder of `token`.
    pub(crate) fn make(&self, token: &str) -> String {
        // 244 random bits of the operating system's generator.
        let code = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        self.put(&code, token, Instant::now());
        code
    }

    fn put(&self, code: &str, token: &str, now: Instant) {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, (made, _)| now.duration_since(*made) < VALID);
        if links.len() >= MOST
            && let Some(oldest) =
                links.iter().min_by_key(|(_, (made, _))| *made).map(|(key, _)| *key)
        {
            links.remove(&oldest);
        }
        links.insert(hash(code), (now, token.to_owned()));
    }

    /// The token of a code that is valid. The code stays valid.
    pub(crate) fn look(&self, code: &str) -> Option<String> {
        let links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, token) = links.get(&hash(code))?;
        (Instant::now().duration_since(*made) < VALID).then(|| token.clone())
    }

    /// The token of a code that is valid; the code is used up.
    pub(crate) fn take(&self, code: &str) -> Option<String> {
        self.taken(code, Instant::now())
    }

    fn taken(&self, code: &str, now: Instant) -> Option<String> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, token) = links.remove(&hash(code))?;
        (now.duration_since(made) < VALID).then_some(token)
    }
}

fn hash(code: &str) -> [u8; 32] {
    *blake3::hash(code.as_bytes()).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_good_once_and_for_a_minute() {
        let links = Links::default();
        let code = links.make("t");
        assert_eq!((links.take("other"), links.look("other")), (None, None));
        assert_eq!(links.look(&code).as_deref(), Some("t"));
        assert_eq!(links.take(&code).as_deref(), Some("t"));
        assert_eq!((links.take(&code), links.look(&code)), (None, None));
        let now = Instant::now();
        links.put("late", "t", now);
        assert_eq!(links.taken("late", now + VALID), None);
    }

    #[test]
    fn the_oldest_link_makes_place() {
        let (links, now) = (Links::default(), Instant::now());
        for n in 0..=MOST {
            links.put(&n.to_string(), "t", now + Duration::from_millis(n as u64));
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(links.taken("0", later), None);
        assert_eq!(links.taken("1", later).as_deref(), Some("t"));
    }
}
