//! Calls services on behalf of a session: inserts the key into the request, and searches the answer
//! for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::acl::Verb;
use overmind_core::encoded;
use overmind_core::ids::SessionId;
use overmind_core::row::Role;
use overmind_core::store::{Change, Commit, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use overmind_core::vault::outbound::{OutboundCall, OutboundError, SecretHeader};
use overmind_core::vault::placeholder::{Placeholder, looks_like_one};
use overmind_core::vault::resolve::{HeaderFate, Placed};
use overmind_core::vault::rows::minute;
use overmind_core::vault::service::{Method, Service};
use overmind_core::vault::{Secret, Secrets as _, Use};
use serde_json::json;
use zeroize::Zeroizing;

use super::{Bound, Vault};
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::passes::{Holder, LAPSED, Pass};

/// Replaces the key in an answer.
const MASK: &str = "[redacted:secret]";

/// Headers of an answer that concern the connection, or would have an effect here.
const NOT_HANDED_ON: [&str; 11] = [
    "connection",
    "content-encoding",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];

/// A call of a service. It cannot choose the target host.
#[derive(Clone, Debug, Default)]
pub struct ServiceCall {
    pub service: String,
    /// The method in capitals.
    pub method: String,
    /// The path below the service's URL, unchanged.
    pub path: String,
    pub query: Option<String>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// The service's answer, without the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReply {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    /// Whether the body exceeded the service's limit.
    pub truncated: bool,
}

/// The calls of each service in the current minute.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<HashMap<String, (i64, u32)>>);

impl Rates {
    /// Counts one more call, if the limit allows it.
    fn admits(&self, service: &Service, now: Timestamp) -> bool {
        let most = service.limits.per_minute;
        if most == 0 {
            return true;
        }
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = minute(now);
        rates.retain(|_, (at, _)| *at == now);
        let (_, count) = rates.entry(service.name.clone()).or_insert((now, 0));
        *count += 1;
        *count <= most
    }
}

/// A caller that may call one service. It proves that a token was checked.
#[derive(Clone, Debug)]
pub struct ServiceCaller {
    service: String,
    session: Option<SessionId>,
    agent: Option<String>,
    /// A call ends with the token that it uses.
    pass: Pass,
}

impl Engine {
    /// Calls the service of `who`, with its key inserted.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] for the service, and [`EngineError::Forbidden`] if it is not the
    /// service of `who`; [`EngineError::Invalid`] for a call that is not permitted;
    /// [`EngineError::Busy`] beyond the service's rate; [`EngineError::Unavailable`] without a key,
    /// or if the service does not answer; [`EngineError::Unauthenticated`] if the token has ended
    /// meanwhile, in which case the answer is dropped.
    pub async fn service_call(
        &self,
        who: &ServiceCaller,
        call: ServiceCall,
    ) -> Result<ServiceReply, EngineError> {
        let vault = Arc::clone(&self.vault);
        if call.service != who.service {
            let message = format!("this was permission for `{}` alone", who.service);
            return Err(EngineError::Forbidden { message });
        }
        let found = vault.service(&call.service);
        let service = found.ok_or_else(|| EngineError::not_found("Service"))?;
        let method = Method::parse(&call.method).ok_or_else(|| {
            EngineError::invalid("method", format!("no service is called by {}", call.method))
        })?;
        let resolved = service
            .resolve(method, &call.path, call.query.as_deref())
            .map_err(|refused| EngineError::invalid("path", refused.to_string()))?;
        let limits = service.limits;
        if call.body.len() as u64 > limits.request_bytes {
            let text =
                format!("a call of `{}` has at most {} bytes", service.name, limits.request_bytes);
            return Err(EngineError::invalid("body", text));
        }
        let Some(outbound) = vault.parts.outbound.clone() else {
            let message = "this server calls no services".to_owned();
            return Err(EngineError::Unavailable { message });
        };
        if !vault.rates.admits(&service, vault.parts.clock.now()) {
            let message = format!(
                "`{}` may be called {} times a minute: wait for the next",
                service.name, limits.per_minute
            );
            return Err(EngineError::Busy { message });
        }
        let for_what = Use {
            session: who.session,
            agent: who.agent.clone(),
            service: Some(service.name.clone()),
            host: Some(resolved.host.clone()),
        };
        let key = vault.get_for(service.secret.as_str(), for_what);
        if key.is_none() && !service.key_optional {
            let message =
                format!("`{}` has no key: `overmind vault set {}`", service.name, service.secret);
            return Err(EngineError::Unavailable { message });
        }
        let mut headers = forwarded(&service, call.headers)?;
        let mut url = Zeroizing::new(resolved.url.clone());
        match key.as_ref().map(|key| service.place(&resolved, key)) {
            Some(Placed::Header { name, value }) => {
                headers.push((name, Zeroizing::new(value.as_bytes().to_vec())));
            }
            Some(Placed::Url(placed)) => url = placed,
            Some(Placed::Nothing) | None => {}
        }
        for (name, value) in &service.headers {
            headers.push((name.to_ascii_lowercase(), Zeroizing::new(value.as_bytes().to_vec())));
        }
        let sent = outbound.send(OutboundCall {
            method,
            url,
            headers,
            body: call.body,
            timeout: Duration::from_millis(u64::from(limits.timeout_ms)),
            max_response: usize::try_from(limits.response_bytes).unwrap_or(usize::MAX),
            private: service.may_be_private(),
        });
        // Dropping the request closes its connection.
        let reply = tokio::select! {
            biased;
            () = who.pass.ended() => return Err(lapsed()),
            reply = sent => reply.map_err(|err| failed(&service, &err))?,
        };
        let mut handed_on = ServiceReply {
            status: reply.status,
            headers: reply
                .headers
                .into_iter()
                .filter(|(name, _)| !NOT_HANDED_ON.contains(&name.as_str()))
                .collect(),
            body: reply.body,
            truncated: reply.truncated,
        };
        if let Some(key) = key
            && masked(&mut handed_on, &key)
        {
            self.alarmed(&service, who).await?;
        }
        Ok(handed_on)
    }

    /// The rights of a placeholder; `None` for another kind of token.
    pub(crate) async fn placeholder(
        &self,
        token: &str,
    ) -> Result<Option<(Bound, Pass)>, EngineError> {
        if !looks_like_one(token) {
            return Ok(None);
        }
        let wrong = || EngineError::Unauthenticated { message: "the token is not valid".into() };
        let placeholder = self.vault.placeholder_of(token).ok_or_else(wrong)?;
        let Placeholder { session, start, service } = placeholder.clone();
        // It is made before the check, for the reason given there.
        let holder = Holder::Session { session, start, service: Some(service) };
        let pass = self.cortex.passes.enter(&holder);
        let bound = self.vault.bound(placeholder).await.ok_or_else(wrong)?;
        let granted = self.still_granted(&pass, &bound.agent_name, &bound.service.name);
        if granted { Ok(Some((bound, pass))) } else { Err(wrong()) }
    }

    /// Ends the pass with the agent's grant of the service; returns whether the grant still exists.
    fn still_granted(&self, pass: &Pass, agent: &str, service: &str) -> bool {
        self.cortex.passes.bind(pass, agent);
        self.vault.may_call(agent, service)
    }

    /// Ends calls whose grant or service was removed.
    pub(super) fn regranted(&self) {
        self.cortex.passes.regranted(|agent, service| {
            self.vault.service(service).is_some() && self.vault.may_call(agent, service)
        });
    }

    /// Checks a token for services, before it is known which. `given` is the caller's identity in
    /// the request, if any.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unauthenticated`]; [`EngineError::Forbidden`] if `given` is another caller.
    pub async fn service_token(&self, token: &str, given: Option<&str>) -> Result<(), EngineError> {
        let caller = match self.placeholder(token).await? {
            Some((bound, _)) => {
                let rights = Rights::Session { session: bound.session, epoch: bound.start };
                Caller::new(bound.session.to_string(), rights)
            }
            None => self.admit(token, None).await?.0,
        };
        self.who(&caller, given).await.map(drop)
    }

    /// The caller of a service, if permitted. `token` is a placeholder for exactly this service, a
    /// session's own token, or an admin's. It is checked before anything is read or revealed:
    /// whether the service exists is revealed only to permitted callers.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unauthenticated`]; [`EngineError::Forbidden`] without a grant.
    pub async fn service_caller(
        &self,
        token: &str,
        service: &str,
    ) -> Result<ServiceCaller, EngineError> {
        let caller = |session, agent, pass| ServiceCaller {
            service: service.to_owned(),
            session,
            agent,
            pass,
        };
        if let Some((bound, pass)) = self.placeholder(token).await? {
            if bound.service.name != service {
                let message = format!("this placeholder is for `{}` alone", bound.service.name);
                return Err(EngineError::Forbidden { message });
            }
            self.permit_beside(bound.session, Verb::Api, service, "cannot access").await?;
            return Ok(caller(Some(bound.session), Some(bound.agent_name), pass));
        }
        let (proved, pass) = self.admit(token, Some(service)).await?;
        match proved.rights {
            Rights::Session { session, .. } => {
                let row = self.cortex.store.session_fetch(session).await?;
                let row = row.ok_or_else(|| EngineError::not_found("Run"))?;
                self.only_default(&proved, "the vault's services")?;
                let agent = self.cortex.store.agent_fetch(row.agent).await?;
                let agent = agent.ok_or_else(|| EngineError::not_found("Agent"))?.spec.name;
                if !self.still_granted(&pass, &agent, service) {
                    use overmind_core::vault::grant::{GrantKind, remedy};
                    let message = format!(
                        "the agent `{agent}` may not call the service `{service}`; to do: {}",
                        remedy(&agent, GrantKind::Service, service)
                    );
                    return Err(EngineError::Forbidden { message });
                }
                self.permit_beside(session, Verb::Api, service, "cannot access").await?;
                Ok(caller(Some(session), Some(agent), pass))
            }
            Rights::Role(_) | Rights::System(_) => {
                proved.require(Role::Admin)?;
                Ok(caller(None, None, pass))
            }
        }
    }

    /// Raises the alarm that a service returned its own key.
    async fn alarmed(&self, service: &Service, who: &ServiceCaller) -> Result<(), EngineError> {
        let ts = self.vault.parts.clock.now();
        tracing::warn!(service = service.name, "an answer of a service repeated its key");
        let payload = json!({
            "alarm": "key_in_answer", "service": service.name, "secret": service.secret,
            "session": who.session, "agent": who.agent,
        });
        let event = NewEvent { stream: StreamId::System, kind: "vault.leaked", ts, payload };
        let changes: Vec<Change> =
            who.session.map(|session| self.cortex.alarms.raise(session, ts)).into_iter().collect();
        let commit = Commit { guards: Vec::new(), events: vec![event], changes };
        self.cortex.store.commit(commit).await?;
        Ok(())
    }
}

fn forwarded(
    service: &Service,
    headers: Vec<(String, Vec<u8>)>,
) -> Result<Vec<SecretHeader>, EngineError> {
    let mut all = Vec::new();
    for (name, value) in headers {
        match service.header_fate(&name, &value) {
            HeaderFate::Forward => all.push((name.to_ascii_lowercase(), Zeroizing::new(value))),
            HeaderFate::Drop => {}
            HeaderFate::Refuse => {
                return Err(EngineError::invalid("headers", "a header holds a line end"));
            }
        }
    }
    Ok(all)
}

fn lapsed() -> EngineError {
    EngineError::Unauthenticated { message: LAPSED.to_owned() }
}

fn failed(service: &Service, err: &OutboundError) -> EngineError {
    EngineError::Unavailable { message: format!("calling `{}`: {err}", service.name) }
}

/// Masks the key, plain and encoded, in an answer; returns whether there was any.
fn masked(reply: &mut ServiceReply, key: &Secret) -> bool {
    let mut forms = encoded::forms(key.expose());
    forms.push(key.expose().to_owned());
    forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
    let mut found = false;
    for form in &forms {
        found |= replaced(&mut reply.body, form);
        for (_, value) in &mut reply.headers {
            found |= replaced(value, form);
        }
    }
    found
}

fn replaced(bytes: &mut Vec<u8>, form: &str) -> bool {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if !text.contains(form) {
            return false;
        }
        *bytes = text.replace(form, MASK).into_bytes();
        return true;
    }
    let mut found = false;
    while let Some(at) = bytes.windows(form.len()).position(|part| part == form.as_bytes()) {
        bytes.splice(at..at + form.len(), MASK.bytes());
        found = true;
    }
    found
}

impl Vault {
    /// The action of a service call for the policy: method and path.
    pub fn action(
        &self,
        service: &str,
        action: &str,
    ) -> Option<overmind_core::vault::service::Action> {
        self.service(service)?.action(action).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_masked_at_any_position_of_an_answer() {
        let key = Secret::new("the-real-key-4711").unwrap();
        let base64 = encoded::forms(key.expose()).into_iter().max_by_key(String::len).unwrap();
        let reply = |body: &[u8]| ServiceReply {
            status: 200,
            headers: vec![("x-echo".into(), b"a the-real-key-4711 b".to_vec())],
            body: body.to_vec(),
            truncated: false,
        };
        let mut odd = b"\xff\xfe the-real-key-4711 \xff".to_vec();
        odd.extend_from_slice(base64.as_bytes());
        for body in [b"x the-real-key-4711 y".as_slice(), base64.as_bytes(), &odd] {
            let mut reply = reply(body);
            assert!(masked(&mut reply, &key));
            let all = [reply.body.as_slice(), &reply.headers[0].1].concat();
            let shown = String::from_utf8_lossy(&all).into_owned();
            assert!(shown.contains(MASK) && !shown.contains("4711"), "{shown}");
            assert!(!shown.contains(&base64), "{shown}");
        }
        let mut clean = ServiceReply { headers: Vec::new(), ..reply(b"nothing in it") };
        assert!(!masked(&mut clean, &key));
        assert_eq!(clean.body, b"nothing in it");
    }
}
