//! The table of routes, and a file of handlers for each noun.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::LazyLock;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{RequestExt as _, Router};

use overmind_api::ProblemKind;
use overmind_engine::Caller;

use self::roles::{Needs, Of, Own};
use crate::cx::Cx;
use crate::extract::RunPath;
use crate::fault::Fault;

pub(crate) mod acl;
pub(crate) mod admin;
pub(crate) mod agents;
pub(crate) mod artifacts;
pub(crate) mod attach;
pub(crate) mod budgets;
pub(crate) mod commands;
pub(crate) mod door;
pub(crate) mod health;
pub(crate) mod inbox;
pub(crate) mod kills;
pub(crate) mod llm;
pub(crate) mod loops;
pub(crate) mod mcp;
pub(crate) mod memory;
pub(crate) mod mesh;
pub(crate) mod policy;
pub(crate) mod projects;
pub(crate) mod resources;
pub(crate) mod roles;
pub(crate) mod rooms;
pub(crate) mod runs;
pub(crate) mod services;
pub(crate) mod sign_in;
pub(crate) mod vault;
pub(crate) mod web;

/// Makes a repeated request return the first response, if [`Keys::Honours`] requires it.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How long a handler may take until it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// `request_timeout`.
    Quick,
    /// `long_request_timeout`: it works on the whole store, or runs a command.
    Long,
}

/// The treatment of an `Idempotency-Key` by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// A repeated request with the same key is answered with the first one's answer.
    Honours,
    /// The header is forwarded to the called service, which may honour it.
    PassesOn,
    /// A request that changes something and carries a key is refused; reads may carry one.
    Refuses,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Lower case, as in `axum::routing`.
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) pace: Pace,
    /// Which roles and scopes of API keys it takes.
    pub(crate) needs: Needs,
    /// The access of a run's own token through the route.
    pub(crate) own: Own,
    /// What it does for keys that are bound to a colony.
    pub(crate) of: Of,
    pub(crate) keys: Keys,
}

macro_rules! keys {
    () => {
        Keys::Refuses
    };
    ($keys:ident) => {
        Keys::$keys
    };
}

macro_rules! routes {
    ($($pace:ident $needs:ident $own:ident $of:ident $method:ident $path:literal $($keys:ident)? => $handler:path;)*) => {
        /// Every route of the API.
        pub(crate) const ROUTES: &[Route] = &[
            $(Route {
                method: stringify!($method),
                path: $path,
                pace: Pace::$pace,
                needs: Needs::$needs,
                own: Own::$own,
                of: Of::$of,
                keys: keys!($($keys)?),
            },)*
        ];

        fn add_all(mut router: Router<Arc<Cx>>) -> Router<Arc<Cx>> {
            $(router = add(router, $path, || axum::routing::$method($handler));)*
            router
        }
    };
}

// How long it may take · which roles and scopes of keys · what a run's own token reaches · what keys that are
// bound to a colony reach · method · path · what it does with an `Idempotency-Key`, where it does not refuse one.
routes! {
    Quick Anyone All Swarm get "/health" => health::health;
    Quick Anyone All Swarm get "/healthz" => health::healthz;
    Quick Anyone All Swarm get "/readyz" => health::readyz;
    Quick Viewer Nothing Swarm get "/metrics" => health::metrics;

    Quick Operator Nothing Colony post "/api/agents" Honours => agents::agent_create;
    Quick Viewer AsAgent Colony get "/api/agents" => agents::agent_list;
    Quick ViewerOrRuns AsAgent Colony get "/api/agents/{id}" => agents::agent_fetch;
    Quick Operator Nothing Colony patch "/api/agents/{id}" => agents::agent_patch;
    Quick Operator Nothing Colony delete "/api/agents/{id}" => agents::agent_remove;
    Quick Operator Nothing Colony post "/api/agents/{id}/disable" => agents::agent_disable;
    Quick ViewerOrRuns Nothing Colony get "/api/agents/{id}/versions" => agents::agent_versions;

    Quick OperatorOrRuns AsAgent Colony post "/api/runs" Honours => runs::run_create;
    Quick ViewerOrRuns Tree Colony get "/api/runs" => runs::run_list;
    Quick ViewerOrRuns Nothing Colony get "/api/runs/usage" => attach::run_usages;
    Quick Operator Below Colony post "/api/runs/kill" => kills::run_kill_all;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}" => runs::run_fetch;
    Long Admin Nothing Run delete "/api/runs/{id}" => runs::run_remove;
    Quick OperatorOrRuns Below Run post "/api/runs/{id}/cancel" => runs::run_cancel;
    Quick OperatorOrRuns Nothing Run post "/api/runs/{id}/input" => runs::run_input;
    Quick OperatorOrRuns Below Run post "/api/runs/{id}/stop" => commands::run_stop;
    Quick OperatorOrRuns Below Run post "/api/runs/{id}/send" => commands::run_send;
    Long ViewerOrRuns Tree Run get "/api/runs/{id}/work" => rooms::run_work;
    Long Operator Nothing Run post "/api/runs/{id}/done" => rooms::run_done;
    Long Operator Nothing Run post "/api/runs/{id}/undo" => rooms::run_undo;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/usage" => commands::run_usage;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/log" => commands::run_log;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/attach" => attach::run_attach;
    Quick OperatorOrRuns Nothing Run post "/api/runs/{id}/approvals/{approval_id}" => runs::run_decide;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/artifacts" => artifacts::artifact_list;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/artifacts/{*name}" => artifacts::artifact_fetch;
    Long Operator Itself Run put "/api/runs/{id}/artifacts/{*name}" => artifacts::artifact_put;
    Quick Operator Nothing Run delete "/api/runs/{id}/artifacts/{*name}" => artifacts::artifact_delete;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/attestation" => runs::run_attestation;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/steps" => runs::run_steps;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/tool-calls" => runs::run_tool_calls;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/model-calls" => runs::run_model_calls;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/events" => runs::run_events;
    Quick ViewerOrRuns Tree Run get "/api/runs/{id}/replay" => runs::run_replay;
    Long Operator Itself Run post "/api/runs/{id}/tools/call" => runs::run_tool_call;
    Long ViewerOrRuns Tree Run get "/api/runs/{id}/verify" => runs::run_verify;
    Long OperatorOrRuns Nothing Run post "/api/runs/{id}/fork" => runs::run_fork;
    Long Viewer Nothing Swarm get "/api/diff" => runs::run_diff;

    Long Operator Nothing Swarm get "/api/rooms/leaks" => rooms::room_leaks;
    Long Admin Nothing Swarm post "/api/rooms/fix" => rooms::room_fix;

    Quick Admin Nothing Swarm get "/api/projects/trust" => projects::project_trust;
    Quick Admin Nothing Swarm put "/api/projects/trust" => projects::project_confirm;
    Quick Admin Nothing Swarm delete "/api/projects/trust" => projects::project_revoke;

    Quick Viewer Nothing Colony get "/api/kinds" => resources::kind_list;
    Long Operator Nothing Colony post "/api/resources" => resources::resource_apply;
    Quick Viewer Nothing Colony get "/api/resources/{kind}" => resources::resource_list;
    Quick Viewer Nothing Colony get "/api/resources/{kind}/watch" => resources::resource_watch;
    Quick Viewer Nothing Colony get "/api/resources/{kind}/{name}" => resources::resource_fetch;
    Quick Viewer Nothing Colony get "/api/resources/{kind}/{name}/events" => resources::resource_events;
    Quick Viewer Nothing Colony get "/api/resources/{kind}/{name}/owned" => resources::resource_owned;
    Quick Operator Nothing Colony put "/api/resources/{kind}/{name}" => resources::resource_put;
    Quick Operator Nothing Colony delete "/api/resources/{kind}/{name}" => resources::resource_delete;

    Quick ViewerOrRuns Nothing Colony get "/api/inbox" => inbox::inbox_list;
    Quick OperatorOrRuns Nothing Colony post "/api/inbox/answer" => inbox::inbox_answer_all;
    Quick ViewerOrRuns Nothing Colony get "/api/inbox/groups" => inbox::inbox_groups;
    Quick ViewerOrRuns Nothing Swarm get "/api/inbox/proposals" => inbox::inbox_proposals;
    Quick ViewerOrRuns Nothing Colony get "/api/inbox/events" => inbox::inbox_events;
    Quick ViewerOrRuns Nothing Colony get "/api/inbox/{id}" => inbox::inbox_fetch;
    Quick OperatorOrRuns Nothing Colony post "/api/inbox/{id}/answer" => inbox::inbox_answer;

    Quick Operator Nothing Colony post "/api/memory/store" => memory::memory_store;
    Quick Viewer Nothing Colony post "/api/memory/search" => memory::memory_search;
    Quick Viewer Nothing Colony get "/api/memory" => memory::memory_list;
    Long Admin Nothing Swarm post "/api/memory/reembed" => memory::memory_reembed;
    Quick Viewer Nothing Colony get "/api/memory/{id}" => memory::memory_fetch;
    Quick Operator Nothing Colony delete "/api/memory/{id}" => memory::memory_delete;

    Quick Viewer Nothing Colony get "/api/tools" => admin::tool_list;
    Quick Viewer Nothing Swarm get "/api/events" => admin::event_list;
    Quick Viewer Nothing Swarm get "/api/events/stream" => admin::event_stream;
    Quick Admin Nothing Swarm get "/api/settings/{name}" => admin::setting_fetch;
    Quick Viewer Nothing Swarm get "/api/settings/mcp/servers" => mcp::mcp_list;
    Long Admin Nothing Swarm post "/api/settings/mcp/servers" => mcp::mcp_put;
    Quick Viewer Nothing Swarm get "/api/settings/mcp/servers/{id}" => mcp::mcp_fetch;
    Long Admin Nothing Swarm delete "/api/settings/mcp/servers/{id}" => mcp::mcp_remove;
    Quick Admin Nothing Swarm post "/api/settings/mcp/servers/{id}/pin" => mcp::mcp_pin;
    Quick Admin Nothing Swarm post "/api/settings/mcp/servers/{id}/unpin" => mcp::mcp_unpin;
    Quick Viewer Nothing Swarm post "/api/policy/explain" => policy::policy_explain;
    Quick Admin Nothing Swarm post "/api/keys" => admin::key_create;
    Quick Admin Nothing Swarm get "/api/keys" => admin::key_list;
    Quick Admin Nothing Swarm delete "/api/keys/{id}" => admin::key_revoke;
    Quick Viewer Nothing Swarm post "/api/sign-in/links" => sign_in::link_create;
    Quick Viewer Nothing Swarm get "/api/loops" => loops::loop_list;
    Quick Admin Nothing Swarm post "/api/loops/{name}/pause" => loops::loop_pause;
    Quick Admin Nothing Swarm post "/api/loops/{name}/resume" => loops::loop_resume;
    Long Admin Nothing Swarm post "/api/loops/{name}/run" => loops::loop_run;
    Quick Viewer Nothing Swarm get "/api/status" => admin::status;
    Quick ViewerOrRuns All Colony get "/api/version" => admin::version;
    Long Viewer Nothing Swarm get "/api/audit/verify" => admin::audit_verify;
    Long Admin Nothing Swarm post "/api/backup" => admin::backup;
    Long Admin Nothing Swarm post "/api/prune" => admin::prune;
    Quick ViewerOrRuns All Colony get "/api/openapi.json" => admin::openapi;

    Quick Viewer Nothing Swarm get "/api/vault" => vault::vault_status;
    Quick Admin Nothing Swarm post "/api/vault/unlock" => vault::vault_unlock;
    Long Admin Nothing Swarm post "/api/vault/rotate-master" => vault::vault_rotate_master;
    Quick Admin Nothing Swarm post "/api/vault/import" => vault::secret_import;
    Quick Admin Nothing Swarm get "/api/vault/secrets" => vault::secret_list;
    Quick Admin Nothing Swarm put "/api/vault/secrets/{name}" => vault::secret_put;
    Quick Admin Nothing Swarm delete "/api/vault/secrets/{name}" => vault::secret_remove;
    Quick Admin Nothing Swarm post "/api/vault/secrets/{name}/rotate" => vault::secret_rotate;
    Quick Viewer Nothing Swarm get "/api/vault/services" => vault::service_list;
    Quick Admin Nothing Swarm put "/api/vault/services/{name}" => vault::service_put;
    Quick Admin Nothing Swarm delete "/api/vault/services/{name}" => vault::service_remove;
    Quick Admin Nothing Swarm get "/api/vault/grants" => vault::grant_list;
    Quick Admin Nothing Swarm post "/api/vault/grants" => vault::grant_put;
    Quick Admin Nothing Swarm post "/api/vault/grants/revoke" => vault::grant_revoke;
    Long Admin AsAgent Swarm get "/api/services/{service}/{*path}" PassesOn => services::service_get;
    Long Admin AsAgent Swarm post "/api/services/{service}/{*path}" PassesOn => services::service_post;
    Long Admin AsAgent Swarm put "/api/services/{service}/{*path}" PassesOn => services::service_call_put;
    Long Admin AsAgent Swarm patch "/api/services/{service}/{*path}" PassesOn => services::service_patch;
    Long Admin AsAgent Swarm delete "/api/services/{service}/{*path}" PassesOn => services::service_delete;
    Long Admin AsAgent Swarm post "/mesh/api" => services::mesh_api;
    Quick Viewer Nothing Swarm get "/api/budgets" => budgets::budget_list;
    Quick Admin Nothing Swarm put "/api/budgets" => budgets::budget_put;
    Quick Viewer Nothing Swarm get "/api/budgets/{id}" => budgets::budget_fetch;
    Quick Admin Nothing Swarm delete "/api/budgets/{id}" => budgets::budget_remove;
    Quick Viewer Nothing Swarm get "/api/costs" => budgets::cost_list;
    Quick Viewer Nothing Swarm get "/api/halt" => budgets::halt_fetch;
    Long Operator Nothing Swarm post "/api/halt" => budgets::halt;
    Long Operator Nothing Swarm post "/api/resume" => budgets::resume;
    Quick Viewer AsAgent Default get "/mesh/blackboard" => mesh::board_list;
    Quick Viewer AsAgent Default get "/mesh/blackboard/{*key}" => mesh::board_get;
    Quick Operator AsAgent Default put "/mesh/blackboard/{*key}" => mesh::board_put;
    Quick Operator AsAgent Default delete "/mesh/blackboard/{*key}" => mesh::board_delete;
    Quick Viewer AsAgent Default get "/mesh/history/{*key}" => mesh::board_history;
    Quick Viewer AsAgent Default get "/mesh/watch" => mesh::board_watch;
    Quick Operator AsAgent Default post "/mesh/message" => mesh::message_send;
    Quick Viewer AsAgent Default get "/mesh/messages" => mesh::message_list;
    Long Operator AsAgent Default post "/mesh/messages/receive" => mesh::message_receive;
    Quick Operator AsAgent Default post "/mesh/messages/ack" => mesh::message_ack;
    Quick Operator AsAgent Default post "/mesh/messages/requeue" => mesh::message_requeue;
    Quick Operator AsAgent Default post "/mesh/publish" => mesh::topic_publish;
    Quick Operator AsAgent Default post "/mesh/subscribe" => mesh::topic_subscribe;
    Quick Operator AsAgent Default delete "/mesh/subscribe" => mesh::topic_unsubscribe;
    Quick Viewer AsAgent Default get "/mesh/subscriptions" => mesh::topic_list;
    Quick Operator AsAgent Default post "/mesh/register" => mesh::register;
    Quick Viewer AsAgent Default get "/mesh/agents" => mesh::mesh_agent_list;
    Quick Viewer AsAgent Default get "/mesh/agents/{id}/history" => mesh::agent_history;
    Quick Operator AsAgent Default post "/mesh/spawn" => mesh::spawn;
    Quick Viewer Nothing Default get "/mesh/permissions" => acl::acl_list;
    Quick Viewer Itself Default get "/mesh/permissions/{agent}" => acl::acl_effective;
    Quick Admin Nothing Default put "/mesh/permissions/{agent}" => acl::acl_put;
    Quick Admin Nothing Default delete "/mesh/permissions/{agent}" => acl::acl_delete;
    Quick Viewer Itself Default get "/mesh/can" => acl::can;

    Long OperatorOrMcp AsAgent Swarm post "/mcp" => door::door;
}

/// Adds a route, and its alias: what is served under `/api/runs` is also under `/api/sessions`, and
/// the list of the shared state also with a slash at its end.
fn add(
    router: Router<Arc<Cx>>,
    path: &str,
    methods: impl Fn() -> axum::routing::MethodRouter<Arc<Cx>>,
) -> Router<Arc<Cx>> {
    let router = router.route(path, methods());
    match alias(path) {
        Some(alias) => router.route(&alias, methods()),
        None => router,
    }
}

fn alias(path: &str) -> Option<String> {
    if path == "/mesh/blackboard" {
        return Some("/mesh/blackboard/".to_owned());
    }
    path.strip_prefix("/api/runs").map(|rest| format!("/api/sessions{rest}"))
}

/// The lines of the table of one path.
struct Lines {
    path: &'static str,
    /// The longest pace of them.
    pace: Pace,
    routes: Vec<&'static Route>,
}

impl Lines {
    /// The line of this method. `HEAD` is `GET` without the body.
    fn of(&self, method: &Method) -> Option<&'static Route> {
        let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
        self.routes.iter().copied().find(|route| route.method.eq_ignore_ascii_case(method))
    }
}

/// By the router's match, aliases included.
static LINES: LazyLock<HashMap<String, Lines>> = LazyLock::new(|| {
    let mut all: HashMap<String, Lines> = HashMap::new();
    for route in ROUTES {
        for path in [Some(route.path.to_owned()), alias(route.path)].into_iter().flatten() {
            let new = Lines { path: route.path, pace: route.pace, routes: Vec::new() };
            let lines = all.entry(path).or_insert(new);
            lines.routes.push(route);
            if route.pace == Pace::Long {
                lines.pace = Pace::Long;
            }
        }
    }
    all
});

/// The whole API. What no route takes is answered with a problem, too.
pub(crate) fn router(cx: Arc<Cx>) -> Router {
    add_all(Router::new())
        .route_layer(from_fn_with_state(Arc::clone(&cx), within_its_time))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .with_state(cx)
}

/// The table's path of the route that answered, for the log and the metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template(pub(crate) &'static str);

async fn within_its_time(
    State(cx): State<Arc<Cx>>,
    matched: MatchedPath,
    mut request: Request,
    next: Next,
) -> Response {
    let known = LINES.get(matched.as_str());
    let lines = known.expect("the table and the router are made from the same lines");
    // A method that the path does not take has no line: it is refused behind this.
    if let Some(route) = lines.of(request.method())
        && let Err(fault) = may_begin(&cx, route, &mut request).await
    {
        let mut response = fault.into_response();
        response.extensions_mut().insert(Template(lines.path));
        return response;
    }
    let limit = match lines.pace {
        Pace::Long => cx.config.long_request_timeout,
        Pace::Quick => cx.config.request_timeout,
    };
    let answer = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = answer.unwrap_or_else(|_| {
        let text = format!(
            "the server did not finish within {limit:?}; the work continues in the \
            background"
        );
        Fault::new(ProblemKind::Slow, text).into_response()
    });
    response.extensions_mut().insert(Template(lines.path));
    response
}

/// The requirements for a request before its handler begins.
async fn may_begin(cx: &Cx, route: &Route, request: &mut Request) -> Result<(), Fault> {
    if let Some(caller) = request.extensions().get::<Caller>() {
        roles::check(cx, caller, route)?;
        if route.of == Of::Run && caller.wall.is_some() {
            let caller = caller.clone();
            let run = request.extract_parts::<RunPath>().await?;
            cx.engine.session_within(&caller, run.0).await?;
        }
    }
    let carries = request.headers().contains_key(IDEMPOTENCY_KEY);
    if carries && route.keys == Keys::Refuses && route.method != "get" {
        return Err(takes_no_key(route));
    }
    Ok(())
}

/// Clients that send a key rely on it, so it is not ignored.
fn takes_no_key(route: &Route) -> Fault {
    let named = |route: &Route| format!("{} {}", route.method.to_uppercase(), route.path);
    let text = format!("{} does not support an Idempotency-Key; nothing was done", named(route));
    let honour = ROUTES.iter().filter(|route| route.keys == Keys::Honours).map(named);
    let honour = honour.collect::<Vec<_>>().join(" and ");
    Fault::new(ProblemKind::BadRequest, text)
        .with_hint(format!("{honour} support one; leave the header out here"))
        .closing()
}

async fn not_found(method: Method, uri: Uri) -> Fault {
    let path: String = uri.path().chars().take(200).collect();
    Fault::new(ProblemKind::NotFound, format!("there is no {method} {path} here"))
        .with_hint("GET /api/openapi.json lists every path")
}

async fn method_not_allowed(method: Method, uri: Uri) -> Fault {
    let path: String = uri.path().chars().take(200).collect();
    let text = format!("{path} does not take {method}; the Allow header says what it takes");
    Fault::new(ProblemKind::MethodNotAllowed, text)
}
