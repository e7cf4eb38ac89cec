//! Signing in to the dashboard, with keys that expire.
//!
//! Such a key is made for one sign-in and stored like other keys: it survives a restart, is listed,
//! and can be revoked. Its form is `ovk_<64 digits>.<end in seconds since 1970>`; the stored hash
//! covers all of it, so nobody can extend it. Its name is `<who>@web-<16 digits>`: it acts as
//! `<who>`, with the role that `<who>` had when signing in.

use std::time::Duration;

use overmind_core::ids::{ApiKeyId, ColonyId};
use overmind_core::row::{ApiKey, Role};
use overmind_core::store::Page;
use overmind_core::time::Timestamp;

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::view::NewKey;

/// Separates a name from the number of its sign-in. No name given by a user contains it.
pub(super) const WEB: &str = "@web-";

/// The end of a token that expires; `None` for other tokens.
pub(super) fn end_of(token: &str) -> Option<Timestamp> {
    let (_, seconds) = token.strip_prefix("ovk_")?.split_once('.')?;
    let seconds: i64 = seconds.parse().ok()?;
    Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000)))
}

/// Whether this token belongs to a sign-in, and so expires.
pub fn is_of_a_sign_in(token: &str) -> bool {
    end_of(token).is_some()
}

/// The name as which a key acts.
pub(super) fn acts_as(name: String) -> String {
    match name.split_once(WEB) {
        Some((who, _)) => who.to_owned(),
        None => name,
    }
}

/// How long a sign-in lasts.
pub const SIGN_IN_LASTS: Duration = Duration::from_secs(12 * 3600);

/// Whether a key belongs to a sign-in that has expired by `now`.
fn is_over(key: &ApiKey, now: Timestamp, lifetime: Duration) -> bool {
    key.name.contains(WEB) && key.created_at.after(lifetime) <= now
}

/// Whether a list of keys shows it: a sign-in only while it is valid.
pub(super) fn is_listed(key: &ApiKey, now: Timestamp) -> bool {
    !key.name.contains(WEB) || (key.revoked_at.is_none() && !is_over(key, now, SIGN_IN_LASTS))
}

impl Engine {
    /// Makes a key with the caller's name and role that expires after `lifetime`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] for the tokens of runs, and for keys that may not read runs.
    pub async fn sign_in(&self, by: &Caller, lifetime: Duration) -> Result<NewKey, EngineError> {
        if let Some(colony) = by.wall.filter(|_| by.role().is_some()) {
            let message = format!(
                "`{}` cannot sign in to the dashboard: it is bound to the colony `{}`, and the \
                 dashboard shows the whole server",
                by.name,
                self.colony_name(colony)
            );
            return Err(EngineError::Forbidden { message });
        }
        let role = match by.rights {
            Rights::Role(role @ (Role::Viewer | Role::Runs | Role::Operator | Role::Admin)) => role,
            Rights::Role(Role::Mcp | Role::Model) | Rights::System(_) | Rights::Session { .. } => {
                let message =
                    format!("`{}` cannot sign in to the dashboard: it may not read runs", by.name);
                return Err(EngineError::Forbidden { message });
            }
        };
        let now = self.cortex.clock.now();
        self.sign_ins_expire(by, now, lifetime).await?;
        let end = now.after(lifetime).as_micros() / 1_000_000;
        let random = || uuid::Uuid::new_v4().simple().to_string();
        let (secret, place) = (format!("ovk_{}{}.{end}", random(), random()), random());
        let place: String = place.chars().take(16).collect();
        let key = ApiKey {
            id: ApiKeyId::mint(&*self.cortex.ids),
            colony: ColonyId::DEFAULT,
            name: format!("{}{WEB}{place}", by.name),
            role,
            hash: *blake3::hash(secret.as_bytes()).as_bytes(),
            created_at: now,
            revoked_at: None,
        };
        self.key_commit("key.created", by, &key).await?;
        Ok(NewKey { key, secret })
    }

    /// Revokes the key of a sign-in, for its own holder.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unauthenticated`] if it is no such key, or has expired.
    pub async fn sign_out(&self, token: &str) -> Result<(), EngineError> {
        let by = self.authenticate(token).await?;
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        let key = self.cortex.store.api_key_by_hash(hash).await?;
        match key.filter(|key| key.name.contains(WEB) && key.revoked_at.is_none()) {
            Some(key) => self.key_end(&by, key).await.map(drop),
            None => Err(super::wrong()),
        }
    }

    /// Revokes expired sign-ins, so that none stays unrevoked in the store.
    async fn sign_ins_expire(
        &self,
        by: &Caller,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<(), EngineError> {
        let mut after = None;
        loop {
            let page = self.cortex.store.api_key_list(Page { limit: 1000, after }).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.id);
            for key in page {
                if key.revoked_at.is_none() && is_over(&key, now, lifetime) {
                    self.key_end(by, key).await?;
                }
            }
        }
    }

    /// Ends the sign-ins that were made with a key.
    pub(super) async fn sign_ins_end(&self, by: &Caller, name: &str) -> Result<(), EngineError> {
        let begins = format!("{name}{WEB}");
        let mut after = None;
        loop {
            let page = self.cortex.store.api_key_list(Page { limit: 1000, after }).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.id);
            for key in page {
                if key.revoked_at.is_none() && key.name.starts_with(&begins) {
                    self.key_end(by, key).await?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_token_contains_its_expiry_and_other_tokens_do_not() {
        assert_eq!(end_of("ovk_ab.7"), Some(Timestamp::from_micros(7_000_000)));
        for other in ["ovk_ab", "ova_ab.7", "ovk_ab.", "ovk_ab.x", "ovs_1.2.3"] {
            assert_eq!(end_of(other), None, "{other}");
        }
        assert_eq!(acts_as("ann@web-1f".to_owned()), "ann");
        assert_eq!(acts_as("ann@home".to_owned()), "ann@home");
    }

    #[test]
    fn a_sign_in_key_is_listed_until_it_expires_and_other_keys_always() {
        let at = |hours: u64| Timestamp::from_micros(0).after(Duration::from_secs(hours * 3600));
        let key = |name: &str, revoked_at| ApiKey {
            id: "key_00000000000000000000000000000001".parse().unwrap(),
            colony: ColonyId::DEFAULT,
            name: name.to_owned(),
            role: Role::Viewer,
            hash: [0; 32],
            created_at: at(0),
            revoked_at,
        };
        let web = key("ann@web-1f", None);
        assert!(is_listed(&web, at(11)) && !is_listed(&web, at(12)));
        assert!(is_over(&web, at(12), SIGN_IN_LASTS));
        assert!(!is_listed(&key("ann@web-1f", Some(at(1))), at(2)));
        for other in [key("ann", None), key("ann", Some(at(1)))] {
            assert!(is_listed(&other, at(99)) && !is_over(&other, at(99), SIGN_IN_LASTS));
        }
    }
}
