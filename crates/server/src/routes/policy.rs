//! The policy: explaining a call.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use overmind_api::{PolicyExplain, PolicyExplained};
use overmind_core::gate::Labels;
use overmind_engine::ExplainDraft;

use crate::cx::Cx;
use crate::extract::{Body, Who};
use crate::fault::Fault;
use crate::page::json;

/// Says what a command or a call of a tool would do, and whether it is allowed, asked or denied.
///
/// Nothing runs and nothing is recorded. With `agent`, the agent's tools, approvals and sandbox
/// count as well.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/policy/explain", tag = "server", request_body = PolicyExplain,
    responses(
        (status = 200, body = PolicyExplained),
        (status = 404, description = "`Agent not found`"),
        (status = 409, description = "The server has no policy"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn policy_explain(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<PolicyExplain>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let (tool, args) = body.value.call();
    let PolicyExplain { agent, sandbox, untrusted, private, worktree, .. } = body.value;
    let labels = Labels { untrusted, private };
    let sandbox = sandbox.map(Into::into);
    let draft = ExplainDraft { tool, args, agent, sandbox, labels, worktree };
    let done = cx.engine.policy_explain(&caller, draft).await?;
    Ok(json(&PolicyExplained::new(done.verdict, done.tool, done.agent, done.sandbox.into())))
}
