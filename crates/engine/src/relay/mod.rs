//! Relays model calls of programs: identifies the caller, checks permissions, reserves the cost,
//! settles it.
//!
//! ```text
//! Caller (proved) ─▶ may it name this model ─▶ plan ─▶ reserve ─▶ open ─▶ bytes ─▶ settle
//! ```
//!
//! If a limit applies, nothing is sent before the maximum cost is reserved on disk; otherwise the
//! reservation may still be on its way there. Each call is settled exactly once: by its reported
//! usage, by the streamed part if it broke off or nobody wanted the rest, and by nothing if the
//! provider refused it.

mod counted;
mod raise;
mod tab;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::acl::Verb;
use overmind_core::budget::{self, Ask, Spend};
use overmind_core::command::Launch;
use overmind_core::enclosure::{DOOR_URL, Network};
use overmind_core::ids::{AgentId, ColonyId, SessionId};
use overmind_core::model::Models;
use overmind_core::process::prompt::Provider;
use overmind_core::relay::{
    Answer, Call, Dialect, Endpoint, Hop, Offered, Peek, Refusal, RefusalKind, Upstreams, Worst,
    is_trouble, may_use,
};
use overmind_core::session::Spec;
use overmind_core::trace::Trail;

pub use self::tab::{Relayed, RelayedBody};
use self::tab::{Seen, Tab};
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::passes::{LAPSED, Pass};
use crate::{BudgetError, Engine};

/// The output limit of a call that names none, in tokens: more than models produce.
const MOST_OUTPUT: u64 = 128_000;
/// Maximum number of sessions whose agents are cached.
const MAX_KNOWN: usize = 10_000;

/// The variable with the address of this server's API for commands, as a socket or by HTTP.
pub const SERVER: &str = "OVERMIND_SERVER";
/// The variable with the HTTP address of this server for commands.
pub const GATEWAY: &str = "OVERMIND_GATEWAY";

/// Why a call was not relayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A limit, an unknown price or an emergency stop prevents it.
    #[error("{}", .0.message())]
    Budget(budget::Refusal),
}

/// A caller with a valid token.
#[derive(Clone, Debug)]
pub struct Proved {
    pub caller: Caller,
    /// For a placeholder of the vault: the only provider that may be called.
    pub only: Option<String>,
    pass: Pass,
}

/// The owner on whose behalf a call is made. It never changes for a session.
#[derive(Clone, Debug)]
struct Party {
    session: Option<SessionId>,
    agent: Option<AgentId>,
    colony: ColonyId,
    /// The models that it may name; `None` means all.
    models: Option<Arc<[String]>>,
    trail: Option<Trail>,
}

/// The state between calls.
#[derive(Debug, Default)]
pub(crate) struct Relaying {
    parties: Mutex<HashMap<SessionId, Party>>,
}

impl Engine {
    /// The caller with this token.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unauthenticated`] if it is not valid.
    pub async fn relay_caller(&self, token: &str) -> Result<Proved, EngineError> {
        let Some((bound, pass)) = self.placeholder(token).await? else {
            let (caller, pass) = self.admit(token, None).await?;
            return Ok(Proved { caller, only: None, pass });
        };
        let rights = Rights::Session { session: bound.session, epoch: bound.start };
        let caller = Caller::new(bound.session.to_string(), rights);
        Ok(Proved { caller, only: Some(bound.service.name.clone()), pass })
    }

    /// Relays a call. When this returns, the provider has begun to answer.
    ///
    /// The call and its answer end with the token of `by`: see [`RelayedBody::next`].
    ///
    /// # Errors
    ///
    /// [`RelayError`]. Nothing was sent then, or nothing was billed, with two exceptions: the token
    /// has ended while a provider was called, or the connection broke after the provider had the
    /// request. In these cases the maximum cost counts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection to the provider; the reservation is settled at its
    /// maximum if anything was sent.
    pub async fn relay(&self, by: &Proved, mut call: Call) -> Result<Relayed, RelayError> {
        let Proved { caller: by, only, pass } = by;
        let upstreams = self.upstreams()?;
        if call.peek.background {
            let text = "`background` is not passed on: nobody would see what such a call costs";
            return Err(Refusal::bad_request(text).into());
        }
        let party = self.party(by).await?;
        let hops = upstreams.plan(call.endpoint, &call.peek.model)?;
        permitted(&party, &call.peek.model, &hops)?;
        if let Some(only) = only
            && let Some(hop) = hops.iter().find(|hop| hop.provider != *only)
        {
            let text = format!(
                "this placeholder is for `{only}` alone, and model `{}` is of `{}`",
                call.peek.model.trim(),
                hop.provider
            );
            return Err(Refusal::new(RefusalKind::Forbidden, text).into());
        }
        if let Some(session) = party.session {
            self.goes_on(session).await?;
            let model = call.peek.model.trim();
            let asked = self.permit_beside(session, Verb::Model, model, "cannot use model").await;
            asked.map_err(|err| match err {
                EngineError::Forbidden { message } => Refusal::new(RefusalKind::Forbidden, message),
                err => {
                    tracing::error!(%session, error = %err, "asking who may use a model");
                    let text = "the permissions of the session's agent could not be looked up";
                    Refusal::new(RefusalKind::Internal, text)
                }
            })?;
        }
        let mut ask = self.ask(by, &party, upstreams, &call, &hops);
        self.trace_call(by, party.trail, &ask, &mut call.headers);
        let hold = match self.hold(upstreams, pass, &mut call, &hops, &mut ask).await {
            Ok(hold) => hold,
            Err(err) => {
                let err = match (err, &call.peek.surcharge) {
                    (RelayError::Budget(refusal), Some(option)) => {
                        RelayError::Budget(refusal.asking(option))
                    }
                    (err, _) => err,
                };
                if let (Some(session), RelayError::Budget(refusal)) = (party.session, &err) {
                    Box::pin(self.ask_for_more(session, &call.peek.model, refusal)).await;
                }
                return Err(err);
            }
        };
        let seen = Seen::of(&call, upstreams.capture(), by.trace);
        let tab = Tab::new(self, ask, hold, seen);
        let opened = tokio::select! {
            biased;
            () = pass.ended() => {
                let refusal = Refusal::new(RefusalKind::Unauthenticated, LAPSED);
                match call.sent.is_marked() {
                    true => tab.forsaken(&refusal),
                    false => tab.failed(&refusal, None, call.endpoint.dialect()),
                }
                return Err(refusal.into());
            }
            opened = upstreams.open(&call, &hops) => opened,
        };
        let lost = lost(upstreams, &call, &hops);
        match opened {
            Ok(answer) => {
                let why = unanswered(&answer, &hops);
                let relayed = tab.opened(answer, &hops, lost, pass.clone());
                if let Some(session) = party.session {
                    match why {
                        Some(why) => {
                            Box::pin(self.call_failed(session, &call.peek.model, &why)).await
                        }
                        None => self.call_answered(session).await,
                    }
                }
                Ok(relayed)
            }
            Err(refusal) => {
                tab.failed(&refusal, lost, call.endpoint.dialect());
                if let Some(session) = party.session.filter(|_| refusal.kind.is_trouble()) {
                    let failed = self.call_failed(session, &call.peek.model, &refusal.message);
                    Box::pin(failed).await;
                }
                Err(refusal.into())
            }
        }
    }

    /// The models that a caller may name.
    ///
    /// # Errors
    ///
    /// [`RelayError`] if the caller may make no calls.
    pub async fn relay_models(
        &self,
        by: &Caller,
        dialect: Dialect,
    ) -> Result<Vec<Offered>, RelayError> {
        let upstreams = self.upstreams()?;
        let party = self.party(by).await?;
        let mut offered = upstreams.offered(dialect);
        if let Some(models) = &party.models {
            offered.retain(|one| may_use(models, &one.name));
            // A permitted model is listed, even if only its provider knows that it exists.
            for name in models.iter().filter(|name| !name.ends_with('*')) {
                if !offered.iter().any(|one| one.name == *name) {
                    offered.push(Offered { name: name.clone(), provider: "overmind".into() });
                }
            }
        }
        Ok(offered)
    }

    fn upstreams(&self) -> Result<&dyn Upstreams, Refusal> {
        self.models.upstreams().ok_or_else(|| {
            Refusal::new(RefusalKind::NotFound, "this server does not pass on model calls")
        })
    }

    async fn party(&self, by: &Caller) -> Result<Party, Refusal> {
        let session = match &by.rights {
            Rights::Role(_) | Rights::System(_) => {
                by.require_models()
                    .map_err(|err| Refusal::new(RefusalKind::Forbidden, err.to_string()))?;
                return Ok(Party {
                    session: None,
                    agent: None,
                    colony: by.colony,
                    models: None,
                    trail: None,
                });
            }
            Rights::Session { session, .. } => *session,
        };
        let known = || self.relaying.parties.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(party) = known().get(&session) {
            return Ok(party.clone());
        }
        let party = self.party_of(session).await.map_err(|err| {
            tracing::error!(%session, error = %err, "looking up who makes a model call");
            Refusal::new(RefusalKind::Internal, "the session's agent could not be looked up")
        })?;
        let mut known = known();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(session, party.clone());
        Ok(party)
    }

    /// Refuses the calls of a run that is being stopped. An agent whose tool was ended by the stop
    /// asks its model what to do next, and nobody wants to pay for that.
    async fn goes_on(&self, session: SessionId) -> Result<(), Refusal> {
        let row = self.find_session(session).await.map_err(|err| {
            tracing::error!(%session, error = %err, "looking up who makes a model call");
            Refusal::new(RefusalKind::Internal, "the run could not be looked up")
        })?;
        match row.command.is_some_and(|command| command.stopping) {
            true => Err(Refusal::new(
                RefusalKind::Forbidden,
                "this run is being stopped: it makes no more model calls",
            )),
            false => Ok(()),
        }
    }

    async fn party_of(&self, session: SessionId) -> Result<Party, EngineError> {
        let row = self.find_session(session).await?;
        let Spec { agent, trace, .. } = self.spec_of(session).await?;
        let trail = Trail::of_session(session, trace, self.cortex.config.traced);
        let models = match &agent.command {
            Some(command) if command.models.is_empty() => None,
            Some(command) => Some(command.models.as_slice().into()),
            // A session of our own loop has exactly one model.
            None => Some([agent.model.clone()].into()),
        };
        let agent = Some(row.agent);
        Ok(Party { session: Some(session), agent, colony: row.colony, models, trail })
    }

    /// The maximum cost of a call, at any of its providers.
    fn ask(
        &self,
        by: &Caller,
        party: &Party,
        upstreams: &dyn Upstreams,
        call: &Call,
        hops: &[Hop],
    ) -> Ask {
        let each = hops.iter().map(|hop| worst(upstreams, call.endpoint, &call.peek, hop));
        let worst = each.reduce(|a, b| Spend {
            microusd: a.microusd.zip(b.microusd).map(|(a, b)| a.max(b)),
            tokens: a.tokens.max(b.tokens),
        });
        let first = hops.first();
        Ask {
            call: self.budgets().call_id(),
            session: party.session,
            agent: party.agent,
            colony: party.colony,
            caller: by.name.clone(),
            provider: first.map(|hop| hop.provider.clone()).unwrap_or_default(),
            model: first.map(|hop| hop.model.clone()).unwrap_or_default(),
            worst: worst.unwrap_or(Spend::NONE),
            at: self.cortex.clock.now(),
        }
    }
}

/// The maximum cost of a call at one provider.
fn worst(upstreams: &dyn Upstreams, endpoint: Endpoint, peek: &Peek, hop: &Hop) -> Spend {
    if !endpoint.is_billed() {
        return Spend::NONE;
    }
    let most = match endpoint {
        Endpoint::Embeddings => 0,
        Endpoint::Chat | Endpoint::Responses | Endpoint::Messages | Endpoint::CountTokens => {
            MOST_OUTPUT
        }
    };
    let usage = peek.worst(most);
    let microusd = match upstreams.worst(hop, &usage) {
        Worst::Costs(microusd) => priced(microusd, peek.surcharge.is_some()),
        Worst::Unknown => None,
    };
    Spend { microusd, tokens: usage.input_tokens.saturating_add(usage.output_tokens) }
}

/// The price of a call in the table, unless an option of the call may raise it. A free model stays
/// free.
fn priced(microusd: u64, surcharged: bool) -> Option<u64> {
    (microusd == 0 || !surcharged).then_some(microusd)
}

/// The possible bills of providers that had the call but gave no usable answer: nobody saw what
/// they did, so the maximum cost counts.
fn lost(upstreams: &dyn Upstreams, call: &Call, hops: &[Hop]) -> Option<Spend> {
    let lost = call.sent.lost();
    let hops = lost.iter().filter_map(|at| hops.get(*at));
    let each = hops.map(|hop| worst(upstreams, call.endpoint, &call.peek, hop));
    each.reduce(Spend::plus)
}

/// Why a provider's answer is not usable, and not because of this one call.
fn unanswered(answer: &Answer, hops: &[Hop]) -> Option<String> {
    let hop = hops.get(answer.hop);
    let provider = hop.map_or("", |hop| hop.provider.as_str());
    let said = answer.body.tally().ending.error.map(|error| error.message);
    let said = said.filter(|said| !said.is_empty()).map(|said| format!(": {said}"));
    let said = said.unwrap_or_default();
    match (answer.status, hop) {
        // It does so to every call until the configuration is changed.
        (404, Some(Hop { endpoint, model, .. })) => Some(format!(
            "provider {provider} answers 404 to {} for model `{model}`{said}; check the model's name, and \
             the provider's base_url in the configuration: overmind doctor",
            endpoint.path()
        )),
        (status, _) if is_trouble(status) => {
            Some(format!("provider {provider} answers {status}{said}"))
        }
        (_, _) => None,
    }
}

/// Whether a caller may name a model: by the given name, or by the models it leads to.
fn permitted(party: &Party, model: &str, hops: &[Hop]) -> Result<(), Refusal> {
    let Some(models) = &party.models else { return Ok(()) };
    if may_use(models, model.trim()) || hops.iter().all(|hop| may_use(models, &hop.model)) {
        return Ok(());
    }
    let text = format!(
        "this session's agent may not use model `{model}`; it may use {}. An operator can add it to \
         `models` of the agent's command",
        models.join(", ")
    );
    Err(Refusal::new(RefusalKind::Forbidden, text))
}

fn refused(err: BudgetError) -> RelayError {
    match err {
        BudgetError::Refused(refusal) => RelayError::Budget(*refusal),
        err @ (BudgetError::Twice(_) | BudgetError::Store(_)) => {
            tracing::error!(error = %err, "a model call could not be reserved for");
            let text = "the budget could not be saved, so the call was not made";
            Refusal::new(RefusalKind::Overloaded, text).into()
        }
    }
}

/// The data that agents' programs need to call this server for models.
#[derive(Clone, Default)]
pub(crate) struct Door {
    /// The address without a slash at its end; `None` if no program could reach it.
    server: Option<String>,
    /// It is asked at each start, because a key may be added to the vault at any time.
    models: Option<Arc<dyn Models>>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Door {
    /// `environment` contains the variables of all commands.
    pub(crate) fn new(environment: &[(String, String)], models: Arc<dyn Models>) -> Self {
        let server = environment.iter().find(|(name, _)| name == GATEWAY);
        Self {
            server: server.map(|(_, at)| at.trim_end_matches('/').to_owned()),
            models: Some(models),
        }
    }

    /// Whether some provider of the dialect is ready.
    fn ready(&self, dialect: Dialect) -> bool {
        let upstreams = self.models.as_ref().and_then(|models| models.upstreams());
        upstreams.is_some_and(|all| all.is_ready(dialect))
    }

    /// The address that a process's program must call, if any.
    ///
    /// # Errors
    ///
    /// Explains why the address is not available although the agent needs it.
    pub(crate) fn of(&self, launch: &Launch, network: Network) -> Result<Option<&str>, String> {
        let own = launch.env.iter().chain(&launch.env_from).any(|(name, _)| {
            ["ANTHROPIC_", "OPENAI_", "CODEX_"].iter().any(|start| name.starts_with(start))
        });
        let server = match network {
            Network::Mesh => Some(DOOR_URL),
            Network::Host | Network::None => self.server.as_deref(),
        };
        let reaches = network != Network::None;
        let wanted = match (launch.gateway, launch.provider) {
            (Some(wanted), _) => wanted,
            (None, Provider::Claude) => !own && reaches && self.ready(Dialect::Anthropic),
            (None, Provider::Codex) => !own && reaches && self.ready(Dialect::OpenAi),
            (None, Provider::Raw | Provider::Lines) => false,
        };
        match (server, wanted) {
            (_, false) => Ok(None),
            (Some(server), true) => Ok(Some(server)),
            (None, true) if launch.gateway.is_none() => Ok(None),
            (None, true) => Err("its program calls models through this server, but this server \
                listens on no TCP address without TLS: set `listen`"
                .to_owned()),
        }
    }
}

/// Most output tokens of a model call of Claude Code through this server, unless its agent or run
/// sets the variable. Its own default of up to 64,000 would be reserved in full with each call.
const CLAUDE_OUTPUT: (&str, &str) = ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "28000");

/// The variables that direct a program to this server.
pub(crate) fn variables(launch: &Launch, server: &str, token: &str) -> Vec<(&'static str, String)> {
    let anthropic = ("ANTHROPIC_BASE_URL", format!("{server}/llm/anthropic"));
    let openai = ("OPENAI_BASE_URL", format!("{server}/llm/openai/v1"));
    let token = || token.to_owned();
    match launch.provider {
        Provider::Claude => {
            let (name, most) = CLAUDE_OUTPUT;
            let mut own = launch.env.iter().chain(&launch.env_from);
            let most = (!own.any(|(own, _)| own == name)).then(|| (name, most.to_owned()));
            [anthropic, ("ANTHROPIC_AUTH_TOKEN", token())].into_iter().chain(most).collect()
        }
        Provider::Codex => vec![openai, ("OPENAI_API_KEY", token())],
        Provider::Raw | Provider::Lines => {
            vec![anthropic, ("ANTHROPIC_API_KEY", token()), openai, ("OPENAI_API_KEY", token())]
        }
    }
}

/// The command line for the same, for a program that ignores such variables: Codex.
pub(crate) fn arguments(provider: Provider, server: &str, argv: Vec<String>) -> Vec<String> {
    let is_codex = provider == Provider::Codex
        && matches!(argv.as_slice(), [program, exec, ..] if program == "codex" && exec == "exec");
    if !is_codex {
        return argv;
    }
    let settings = [
        "model_provider=\"overmind\"".to_owned(),
        "model_providers.overmind.name=\"Overmind\"".to_owned(),
        format!("model_providers.overmind.base_url=\"{server}/llm/openai/v1\""),
        "model_providers.overmind.env_key=\"OPENAI_API_KEY\"".to_owned(),
        "model_providers.overmind.wire_api=\"responses\"".to_owned(),
    ];
    let (before, after) = argv.split_at(2);
    let set = settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]);
    before.iter().cloned().chain(set).chain(after.iter().cloned()).collect()
}
