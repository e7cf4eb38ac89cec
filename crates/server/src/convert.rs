//! Between the engine's words and the wire's, where `api` cannot (it does not know the engine).

use overmind_api as api;
use overmind_core::ids::AgentId;
use overmind_core::relay::Dialect;
use overmind_engine::Raise;
use overmind_engine::request::{AgentDraft, AgentPatch, Decision, ForkDraft, InboxAnswer};
use overmind_engine::view::{
    AgentView, DiffReport, DiffRow, Divergence, InboxGroup, InboxProposal, ModelCallView,
    Readiness, Status, TimelineData, TimelineItem, ToolCallView, VerifyReport,
};

pub(crate) fn agent_draft(body: api::AgentCreate) -> AgentDraft {
    AgentDraft {
        name: body.name,
        role: body.role,
        model: body.model,
        tools_allowed: body.tools_allowed,
        policy: body.policy.map(Into::into),
        sandbox: body.sandbox.map(Into::into),
        limits: body.limits.map(Into::into),
        on_unknown: body.on_unknown.map(Into::into),
        approvals: body.approvals,
        reasoning_effort: body.reasoning_effort,
        max_output_tokens: body.max_output_tokens,
        command: body.command.map(Into::into),
        budget: body.budget.and_then(|budget| budget.limit()),
    }
}

pub(crate) fn agent_patch(body: api::AgentPatch, if_version: Option<u32>) -> AgentPatch {
    AgentPatch {
        name: body.name,
        role: body.role,
        model: body.model,
        tools_allowed: body.tools_allowed,
        status: body.status.map(Into::into),
        policy: body.policy.map(Into::into),
        sandbox: body.sandbox.map(Into::into),
        limits: body.limits.map(Into::into),
        on_unknown: body.on_unknown.map(Into::into),
        approvals: body.approvals,
        reasoning_effort: body.reasoning_effort,
        max_output_tokens: body.max_output_tokens,
        command: body.command.map(Into::into),
        budget: body.budget.map(|budget| budget.limit()),
        if_version,
    }
}

pub(crate) fn agent(view: AgentView) -> api::Agent {
    api::Agent { warnings: view.warnings, ..view.agent.into() }
}

pub(crate) fn fork(body: api::ForkRequest) -> ForkDraft {
    ForkDraft { at: body.at, model: body.model, prompt: body.prompt, name: body.name }
}

pub(crate) fn decision(verdict: api::Verdict) -> Decision {
    match verdict {
        api::Verdict::Approve => Decision::Approve,
        api::Verdict::Deny => Decision::Deny,
    }
}

/// `message` exists for an answer: the request was checked.
pub(crate) fn inbox_answer(
    decision: api::InboxDecision,
    message: Option<String>,
    reason: Option<String>,
    raise: Option<api::InboxRaise>,
) -> InboxAnswer {
    if let (api::InboxDecision::Approve, Some(raise)) = (decision, raise) {
        let api::InboxRaise { usd, tokens, for_good } = raise;
        let microusd = usd.and_then(|usd| api::microusd_of(usd).ok()).unwrap_or(0);
        let raise = Raise { microusd, tokens: tokens.unwrap_or(0), for_good };
        return InboxAnswer::Raise { raise, reason };
    }
    match decision {
        api::InboxDecision::Approve => InboxAnswer::Approve { reason },
        api::InboxDecision::Deny => InboxAnswer::Deny { reason },
        api::InboxDecision::Answer => InboxAnswer::Words { message: message.unwrap_or_default() },
    }
}

/// `None` for an empty group, which does not exist.
pub(crate) fn inbox_group(group: InboxGroup) -> Option<api::InboxGroup> {
    let InboxGroup { key, items } = group;
    Some(api::InboxGroup {
        group: key,
        count: u32::try_from(items.len()).unwrap_or(u32::MAX),
        ids: items.iter().map(|item| item.id).collect(),
        oldest_at: items.last()?.asked_at,
        sample: items.into_iter().next()?.into(),
    })
}

/// `None` for a proposal without approvals, which does not exist.
pub(crate) fn inbox_proposal(proposal: InboxProposal) -> Option<api::InboxProposal> {
    let InboxProposal { rule, items } = proposal;
    Some(api::InboxProposal {
        rule,
        count: u32::try_from(items.len()).unwrap_or(u32::MAX),
        ids: items.iter().map(|item| item.id).collect(),
        sample: items.into_iter().next()?.into(),
    })
}

pub(crate) fn tool_call(view: ToolCallView) -> api::ToolCall {
    api::ToolCall {
        id: view.id,
        run_id: view.session,
        step_id: view.step,
        tool_name: view.tool,
        args_json: view.args,
        result_json: view.result,
        allowed: view.allowed,
        latency_ms: view.latency_ms,
        created_at: view.at,
        seq: view.seq,
    }
}

pub(crate) fn model_call(view: ModelCallView, agent: AgentId) -> api::ModelCall {
    api::ModelCall {
        id: view.id,
        via: view.via.to_owned(),
        client_session: view.client_session,
        run_id: Some(view.session),
        agent_id: Some(agent),
        model: view.model,
        request_json: view.request,
        response_json: view.response,
        usage_json: view.usage,
        error: view.error,
        latency_ms: view.latency_ms,
        created_at: view.at,
        seq: view.seq,
    }
}

pub(crate) fn timeline(item: TimelineItem, agent: AgentId) -> api::Timeline {
    let data = match item.data {
        TimelineData::Event(event) => api::TimelineData::Event(event.into()),
        TimelineData::Step(step) => api::TimelineData::Step(step.into()),
        TimelineData::ToolCall(call) => api::TimelineData::ToolCall(tool_call(call)),
        TimelineData::ModelCall(call) => api::TimelineData::ModelCall(model_call(call, agent)),
    };
    api::Timeline::new(item.at, data)
}

pub(crate) fn verify(report: VerifyReport) -> api::VerifyReport {
    api::VerifyReport {
        ok: report.divergence.is_none(),
        run_id: report.session,
        events: report.events,
        decided: report.decided,
        divergence: report.divergence.map(|Divergence { seq, recorded, decided }| {
            api::Divergence { seq, recorded, decided }
        }),
    }
}

pub(crate) fn diff(report: DiffReport) -> api::Diff {
    let row = |DiffRow { idx, a, b, same }: DiffRow| api::DiffRow {
        idx,
        a: a.map(Into::into),
        b: b.map(Into::into),
        same,
    };
    api::Diff {
        a: report.a.into(),
        b: report.b.into(),
        common: report.common,
        rows: report.rows.into_iter().map(row).collect(),
    }
}

pub(crate) fn ready(readiness: Readiness) -> api::Ready {
    let (ok, state, reason) = match readiness {
        Readiness::Ready => (true, "ready", None),
        Readiness::Draining => (false, "draining", Some("the server is shutting down".to_owned())),
        Readiness::Degraded(why) => (false, "degraded", Some(why)),
    };
    api::Ready { ok, state: state.to_owned(), reason }
}

pub(crate) fn status(status: Status) -> api::Status {
    let refused = status.policy_refused;
    api::Status {
        version: status.version.to_owned(),
        started_at: status.started_at,
        now: status.now,
        ready: ready(status.ready),
        running: status.running,
        queued: status.queued,
        capacity: status.capacity,
        store: status.store.into(),
        policy: status.policy.map(|(source, version)| api::PolicyStatus {
            source: source.as_str().to_owned(),
            file: source.file().map(str::to_owned),
            version: version.0,
            refused,
        }),
        answers: status
            .answers
            .into_iter()
            .map(|dialect| match dialect {
                Dialect::Anthropic => "anthropic".to_owned(),
                Dialect::OpenAi => "openai".to_owned(),
            })
            .collect(),
        tools: status.tools,
    }
}
