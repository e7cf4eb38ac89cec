//! Authentication: the admin token, named API keys, and tokens of sessions.

use overmind_core::agent::COMMANDS;
use overmind_core::ids::{ApiKeyId, ColonyId, SessionId};
use overmind_core::name;
use overmind_core::row::{ApiKey, Role};
use overmind_core::store::{Change, Commit, NewEvent, Page, StreamId};
use serde_json::json;
use subtle::ConstantTimeEq;

use crate::Engine;
use crate::caller::{Caller, Part, Rights};
use crate::colonies::bindable;
use crate::cortex::{Cortex, tokens};
use crate::error::EngineError;
use crate::passes::{Holder, Pass};
use crate::view::NewKey;

mod sign_in;

pub use sign_in::{SIGN_IN_LASTS, is_of_a_sign_in};

fn wrong() -> EngineError {
    EngineError::Unauthenticated { message: "the token is not valid".into() }
}

/// Names of callers without a key. A key of such a name would be taken for them in the log, and
/// share the idempotency keys of their requests.
const RESERVED: [&str; 3] = ["admin", Part::Dispatcher.name(), Part::Reconcilers.name()];
/// Prefixes of the names of sessions and agents.
const RESERVED_BEGINNINGS: [&str; 2] = ["ses_", "agent:"];

/// The reason why a name cannot be used, if it cannot.
pub(crate) fn reserved(name: &str) -> Option<String> {
    // A reader of the log may confuse `Admin` and `admin`.
    let plain = name.to_lowercase();
    let is =
        RESERVED.contains(&&*plain) || RESERVED_BEGINNINGS.iter().any(|of| plain.starts_with(of));
    is.then(|| {
        format!(
            "name must be none of {}, and not begin with {}: the log calls others so",
            RESERVED.join(", "),
            RESERVED_BEGINNINGS.join(" or ")
        )
    })
}

impl Engine {
    /// The key of this name that is not revoked.
    pub(crate) async fn key_named(&self, name: &str) -> Result<Option<ApiKey>, EngineError> {
        let mut after = None;
        loop {
            let keys = self.cortex.store.api_key_list(Page { after, limit: 500 }).await?;
            let Some(last) = keys.last() else { return Ok(None) };
            after = Some(last.id);
            let mut named = keys.into_iter().filter(|key| key.name == name);
            if let Some(key) = named.find(|key| key.revoked_at.is_none()) {
                return Ok(Some(key));
            }
        }
    }

    /// Finds the owner of `token`: the admin token, an `ovk_…` API key, or an `ovs_…` token of a
    /// session that is running in the token's epoch.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unauthenticated`]; the message is the same for every wrong token.
    pub async fn authenticate(&self, token: &str) -> Result<Caller, EngineError> {
        let holder = self.holder(token).ok_or_else(wrong)?;
        self.caller_of(&holder).await
    }

    /// The same for a caller that stays connected: the pass reports when the token has ended. With
    /// `service` it also ends when the grant of it is revoked, once [`Passes::bind`] has set the
    /// owner.
    ///
    /// [`Passes::bind`]: crate::passes::Passes::bind
    pub(crate) async fn admit(
        &self,
        token: &str,
        service: Option<&str>,
    ) -> Result<(Caller, Pass), EngineError> {
        let mut holder = self.holder(token).ok_or_else(wrong)?;
        if let Holder::Session { service: of, .. } = &mut holder {
            *of = service.map(str::to_owned);
        }
        // It is made before the check, for the reason given there.
        let pass = self.cortex.passes.enter(&holder);
        Ok((self.caller_of(&holder).await?, pass))
    }

    /// The owner that a token claims, if it was made here or may be a key.
    fn holder(&self, token: &str) -> Option<Holder> {
        if token.len() > 256 {
            return None;
        }
        if let Some(rest) = token.strip_prefix("ovs_") {
            return self.session_holder(rest);
        }
        if sign_in::end_of(token).is_some_and(|end| end <= self.cortex.clock.now()) {
            return None;
        }
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        if bool::from(hash.ct_eq(&self.cortex.config.admin_hash)) {
            return Some(Holder::Admin);
        }
        Some(Holder::Key(hash))
    }

    /// Whether that claim is valid now.
    async fn caller_of(&self, holder: &Holder) -> Result<Caller, EngineError> {
        let hash = match holder {
            Holder::Admin => return Ok(Caller::admin()),
            Holder::Session { session, start, service: _ } => {
                return self.session_caller(*session, *start).await.ok_or_else(wrong);
            }
            Holder::Key(hash) => *hash,
        };
        // The key is found by its hash, so timing reveals only the hash of a guess.
        let read = match self.cortex.identities.of(&hash) {
            Ok(caller) => return Ok(caller),
            Err(read) => read,
        };
        let key = self.cortex.store.api_key_by_hash(hash).await?;
        let key = key.filter(|key| key.revoked_at.is_none()).ok_or_else(wrong)?;
        let caller = Caller::new(sign_in::acts_as(key.name), Rights::Role(key.role));
        let caller = Caller { key: Some(key.id), ..caller };
        let caller = match key.colony {
            ColonyId::DEFAULT => caller,
            colony => caller.within(colony),
        };
        self.cortex.identities.keep(hash, caller.clone(), read);
        Ok(caller)
    }

    fn session_holder(&self, rest: &str) -> Option<Holder> {
        let mut parts = rest.splitn(3, '.');
        let session: SessionId = format!("ses_{}", parts.next()?).parse().ok()?;
        let start: u32 = parts.next()?.parse().ok()?;
        let given = parts.next()?;
        let wanted = self.cortex.session_mac(session, start);
        let made_here = bool::from(given.as_bytes().ct_eq(wanted.as_bytes()));
        made_here.then_some(Holder::Session { session, start, service: None })
    }

    async fn session_caller(&self, session: SessionId, epoch: u32) -> Option<Caller> {
        let caller = |colony: ColonyId| {
            Caller::new(session.to_string(), Rights::Session { session, epoch }).within(colony)
        };
        let read = match self.cortex.tokens.colony_of(session, epoch) {
            Ok(colony) => return colony.map(caller),
            Err(read) => read,
        };
        let row = self.cortex.store.session_fetch(session).await.ok()??;
        let start = tokens::start_of(&row)?;
        self.cortex.tokens.keep(session, start, row.colony, read);
        (start == epoch).then(|| caller(row.colony))
    }

    /// The token for a session's own processes, valid until it ends or starts again.
    pub fn session_token(&self, session: SessionId, epoch: u32) -> String {
        self.cortex.session_token(session, epoch)
    }

    /// Makes a key. Only the result contains its secret.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if a key of that name is in use.
    pub async fn key_create(
        &self,
        by: &Caller,
        name: &str,
        role: Role,
    ) -> Result<NewKey, EngineError> {
        self.key_create_in(by, name, role, None).await
    }

    /// Works as [`Self::key_create`]. With a colony, the key is bound to it.
    ///
    /// # Errors
    ///
    /// Also [`EngineError::NotFound`] for the colony, and [`EngineError::Invalid`] for a role that
    /// cannot be bound.
    pub async fn key_create_in(
        &self,
        by: &Caller,
        name: &str,
        role: Role,
        colony: Option<&str>,
    ) -> Result<NewKey, EngineError> {
        by.require(Role::Admin)?;
        let colony = match colony {
            Some(colony) => {
                let colony = self.colony_named(by, colony)?;
                bindable(role, colony)?;
                colony
            }
            None => ColonyId::DEFAULT,
        };
        let name = name.trim();
        if name.is_empty() || name.chars().count() > 100 {
            return Err(EngineError::invalid("name", "name must be 1 to 100 printable characters"));
        }
        name::check_readable(name)
            .map_err(|why| EngineError::invalid("name", format!("name {why}")))?;
        self.no_secret("name", name)?;
        if let Some(message) = reserved(name) {
            return Err(EngineError::invalid("name", message));
        }
        if name == COMMANDS || self.find_agent(&Caller::admin(), name).await.is_ok() {
            let message = format!("an agent is called `{name}`: give the key another name");
            return Err(EngineError::conflict(message));
        }
        // It has 244 random bits from the operating system's generator.
        let secret =
            format!("ovk_{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let key = ApiKey {
            id: ApiKeyId::mint(&*self.cortex.ids),
            colony,
            name: name.to_owned(),
            role,
            hash: *blake3::hash(secret.as_bytes()).as_bytes(),
            created_at: self.cortex.clock.now(),
            revoked_at: None,
        };
        self.key_commit("key.created", by, &key).await?;
        Ok(NewKey { key, secret })
    }

    /// Keys, newest first, including revoked ones. Sign-ins are listed while they are valid.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn key_list(
        &self,
        by: &Caller,
        page: Page<ApiKeyId>,
    ) -> Result<Vec<ApiKey>, EngineError> {
        by.require(Role::Admin)?;
        let now = self.cortex.clock.now();
        let wanted = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let (mut keys, mut after) = (Vec::new(), page.after);
        loop {
            let more = self.cortex.store.api_key_list(Page { limit: page.limit, after }).await?;
            let whole = more.len() < wanted;
            after = more.last().map(|key| key.id);
            keys.extend(more.into_iter().filter(|key| sign_in::is_listed(key, now)));
            if whole || keys.len() >= wanted {
                keys.truncate(wanted);
                return Ok(keys);
            }
        }
    }

    /// Revokes a key, which is useless when this returns.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Conflict`] if it was already revoked.
    pub async fn key_revoke(&self, by: &Caller, id: ApiKeyId) -> Result<ApiKey, EngineError> {
        by.require(Role::Admin)?;
        let mut after = None;
        loop {
            let page = self.cortex.store.api_key_list(Page { limit: 1000, after }).await?;
            let Some(last) = page.last() else { return Err(EngineError::not_found("Key")) };
            after = Some(last.id);
            if let Some(mut key) = page.into_iter().find(|key| key.id == id) {
                if key.revoked_at.is_some() {
                    return Err(EngineError::conflict("Key is already revoked"));
                }
                key = self.key_end(by, key).await?;
                self.sign_ins_end(by, &key.name).await?;
                return Ok(key);
            }
        }
    }

    async fn key_end(&self, by: &Caller, mut key: ApiKey) -> Result<ApiKey, EngineError> {
        key.revoked_at = Some(self.cortex.clock.now());
        // Held during the commit, so that a reader of the event finds the key revoked.
        let _revoking = self.cortex.identities.revoking();
        // This also comes before it, because the event may reach streams first. If the commit
        // fails, the key's owner can open them again.
        self.cortex.passes.revoked(key.hash);
        self.key_commit("key.revoked", by, &key).await?;
        self.cortex.passes.revoked(key.hash);
        Ok(key)
    }

    async fn key_commit(
        &self,
        kind: &'static str,
        by: &Caller,
        key: &ApiKey,
    ) -> Result<(), EngineError> {
        let event = NewEvent {
            stream: StreamId::System,
            kind,
            ts: self.cortex.clock.now(),
            payload: json!({
                "by": by.name, "key_id": key.id, "name": key.name, "role": key.role,
                "colony": self.colony_name(key.colony),
            }),
        };
        let changes = vec![Change::ApiKeyPut(Box::new(key.clone()))];
        self.cortex.store.commit(Commit { guards: vec![], events: vec![event], changes }).await?;
        Ok(())
    }
}

impl Cortex {
    /// `start` is the session's epoch, or the number of its command's process.
    pub(crate) fn session_token(&self, session: SessionId, start: u32) -> String {
        let bare = session.to_string();
        let bare = bare.trim_start_matches("ses_");
        format!("ovs_{bare}.{start}.{}", self.session_mac(session, start))
    }

    fn session_mac(&self, session: SessionId, start: u32) -> String {
        let mut mac = blake3::Hasher::new_keyed(&self.config.token_key);
        mac.update(b"session-token-1").update(&session.as_u128().to_be_bytes());
        mac.update(&start.to_be_bytes());
        mac.finalize().to_hex().to_string()
    }
}
