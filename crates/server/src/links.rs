//! Links that sign in once: kept in memory, for a minute.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a link is valid.
pub(crate) const VALID: Duration = Duration::from_secs(60);
/// Links of one caller at once; the caller's oldest goes for one more. Callers are keys, which only
/// admins make.
const MOST: usize = 8;

/// A link that was made.
struct Link {
    made: Instant,
    /// The name of the caller who created it.
    by: String,
    /// The token that the link signs in with.
    token: String,
}

/// Links by the hash of their code.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashMap<[u8; 32], Link>>);

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Links")
    }
}

impl Links {
    /// A code for the caller `by`, the holder of `token`.
    pub(crate) fn make(&self, by: &str, token: &str) -> String {
        // 244 random bits of the operating system's generator.
        let code = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        self.put(&code, (by, token), Instant::now());
        code
    }

    fn put(&self, code: &str, (by, token): (&str, &str), now: Instant) {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, link| now.duration_since(link.made) < VALID);
        let own = || links.iter().filter(|(_, link)| link.by == by);
        if own().count() >= MOST
            && let Some(oldest) = own().min_by_key(|(_, link)| link.made).map(|(key, _)| *key)
        {
            links.remove(&oldest);
        }
        let link = Link { made: now, by: by.to_owned(), token: token.to_owned() };
        links.insert(hash(code), link);
    }

    /// The token of a code that is valid. The code stays valid.
    pub(crate) fn look(&self, code: &str) -> Option<String> {
        let links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.get(&hash(code))?;
        (Instant::now().duration_since(link.made) < VALID).then(|| link.token.clone())
    }

    /// The token of a code that is valid; the code is used up.
    pub(crate) fn take(&self, code: &str) -> Option<String> {
        self.taken(code, Instant::now())
    }

    fn taken(&self, code: &str, now: Instant) -> Option<String> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.remove(&hash(code))?;
        (now.duration_since(link.made) < VALID).then_some(link.token)
    }
}

fn hash(code: &str) -> [u8; 32] {
    *blake3::hash(code.as_bytes()).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_code_works_once_within_a_minute() {
        let links = Links::default();
        let code = links.make("ann", "t");
        assert_eq!((links.take("other"), links.look("other")), (None, None));
        assert_eq!(links.look(&code).as_deref(), Some("t"));
        assert_eq!(links.take(&code).as_deref(), Some("t"));
        assert_eq!((links.take(&code), links.look(&code)), (None, None));
        let now = Instant::now();
        links.put("late", ("ann", "t"), now);
        assert_eq!(links.taken("late", now + VALID), None);
    }

    #[test]
    fn a_new_link_replaces_only_the_callers_oldest() {
        let (links, now) = (Links::default(), Instant::now());
        links.put("of the admin", ("admin", "a"), now);
        for n in 0..=MOST {
            links.put(&n.to_string(), ("viewer", "t"), now + Duration::from_millis(n as u64));
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(links.taken("0", later), None);
        assert_eq!(links.taken("1", later).as_deref(), Some("t"));
        assert_eq!(links.taken("of the admin", later).as_deref(), Some("a"));
    }
}
