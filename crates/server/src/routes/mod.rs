//! The table of routes, and a file of handlers for each noun.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use overmind_api::ProblemKind;
use overmind_engine::Caller;

use crate::cx::Cx;
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
pub(crate) mod projects;
pub(crate) mod resources;
pub(crate) mod roles;
pub(crate) mod rooms;
pub(crate) mod runs;
pub(crate) mod services;
pub(crate) mod vault;

/// How long a handler may take until it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// `request_timeout`.
    Quick,
    /// `long_request_timeout`: it works on the whole store, or runs a command.
    Long,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Lower case, as in `axum::routing`.
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) pace: Pace,
}

macro_rules! routes {
    ($($pace:ident $method:ident $path:literal => $handler:path;)*) => {
        /// Every route of the API.
        pub(crate) const ROUTES: &[Route] = &[
            $(Route { method: stringify!($method), path: $path, pace: Pace::$pace },)*
        ];

        fn add_all(mut router: Router<Arc<Cx>>) -> Router<Arc<Cx>> {
            $(router = add(router, $path, || axum::routing::$method($handler));)*
            router
        }
    };
}

routes! {
    Quick get "/health" => health::health;
    Quick get "/healthz" => health::healthz;
    Quick get "/readyz" => health::readyz;
    Quick get "/metrics" => health::metrics;

    Quick post "/api/agents" => agents::agent_create;
    Quick get "/api/agents" => agents::agent_list;
    Quick get "/api/agents/{id}" => agents::agent_fetch;
    Quick patch "/api/agents/{id}" => agents::agent_patch;
    Quick delete "/api/agents/{id}" => agents::agent_remove;
    Quick post "/api/agents/{id}/disable" => agents::agent_disable;
    Quick get "/api/agents/{id}/versions" => agents::agent_versions;

    Quick post "/api/runs" => runs::run_create;
    Quick get "/api/runs" => runs::run_list;
    Quick get "/api/runs/usage" => attach::run_usages;
    Quick post "/api/runs/kill" => kills::run_kill_all;
    Quick get "/api/runs/{id}" => runs::run_fetch;
    Quick post "/api/runs/{id}/cancel" => runs::run_cancel;
    Quick post "/api/runs/{id}/input" => runs::run_input;
    Quick post "/api/runs/{id}/stop" => commands::run_stop;
    Quick post "/api/runs/{id}/send" => commands::run_send;
    Long get "/api/runs/{id}/work" => rooms::run_work;
    Long post "/api/runs/{id}/done" => rooms::run_done;
    Long post "/api/runs/{id}/undo" => rooms::run_undo;
    Quick get "/api/runs/{id}/usage" => commands::run_usage;
    Quick get "/api/runs/{id}/log" => commands::run_log;
    Quick get "/api/runs/{id}/attach" => attach::run_attach;
    Quick post "/api/runs/{id}/approvals/{approval_id}" => runs::run_decide;
    Quick get "/api/runs/{id}/artifacts" => artifacts::artifact_list;
    Quick get "/api/runs/{id}/artifacts/{*name}" => artifacts::artifact_fetch;
    Long put "/api/runs/{id}/artifacts/{*name}" => artifacts::artifact_put;
    Quick delete "/api/runs/{id}/artifacts/{*name}" => artifacts::artifact_delete;
    Quick get "/api/runs/{id}/attestation" => runs::run_attestation;
    Quick get "/api/runs/{id}/steps" => runs::run_steps;
    Quick get "/api/runs/{id}/tool-calls" => runs::run_tool_calls;
    Quick get "/api/runs/{id}/model-calls" => runs::run_model_calls;
    Quick get "/api/runs/{id}/events" => runs::run_events;
    Quick get "/api/runs/{id}/replay" => runs::run_replay;
    Long post "/api/runs/{id}/tools/call" => runs::run_tool_call;
    Long get "/api/runs/{id}/verify" => runs::run_verify;
    Long post "/api/runs/{id}/fork" => runs::run_fork;
    Long get "/api/diff" => runs::run_diff;

    Long get "/api/rooms/leaks" => rooms::room_leaks;
    Long post "/api/rooms/fix" => rooms::room_fix;

    Quick get "/api/projects/trust" => projects::project_trust;
    Quick put "/api/projects/trust" => projects::project_confirm;
    Quick delete "/api/projects/trust" => projects::project_revoke;

    Quick get "/api/kinds" => resources::kind_list;
    Long post "/api/resources" => resources::resource_apply;
    Quick get "/api/resources/{kind}" => resources::resource_list;
    Quick get "/api/resources/{kind}/watch" => resources::resource_watch;
    Quick get "/api/resources/{kind}/{name}" => resources::resource_fetch;
    Quick put "/api/resources/{kind}/{name}" => resources::resource_put;
    Quick delete "/api/resources/{kind}/{name}" => resources::resource_delete;

    Quick get "/api/inbox" => inbox::inbox_list;
    Quick post "/api/inbox/answer" => inbox::inbox_answer_all;
    Quick get "/api/inbox/groups" => inbox::inbox_groups;
    Quick get "/api/inbox/proposals" => inbox::inbox_proposals;
    Quick get "/api/inbox/events" => inbox::inbox_events;
    Quick get "/api/inbox/{id}" => inbox::inbox_fetch;
    Quick post "/api/inbox/{id}/answer" => inbox::inbox_answer;

    Quick post "/api/memory/store" => memory::memory_store;
    Quick post "/api/memory/search" => memory::memory_search;
    Quick get "/api/memory" => memory::memory_list;
    Long post "/api/memory/reembed" => memory::memory_reembed;
    Quick get "/api/memory/{id}" => memory::memory_fetch;
    Quick delete "/api/memory/{id}" => memory::memory_delete;

    Quick get "/api/tools" => admin::tool_list;
    Quick get "/api/events" => admin::event_list;
    Quick get "/api/events/stream" => admin::event_stream;
    Quick get "/api/settings/{name}" => admin::setting_fetch;
    Quick get "/api/settings/mcp/servers" => mcp::mcp_list;
    Long post "/api/settings/mcp/servers" => mcp::mcp_put;
    Quick get "/api/settings/mcp/servers/{id}" => mcp::mcp_fetch;
    Long delete "/api/settings/mcp/servers/{id}" => mcp::mcp_remove;
    Quick post "/api/settings/mcp/servers/{id}/pin" => mcp::mcp_pin;
    Quick post "/api/settings/mcp/servers/{id}/unpin" => mcp::mcp_unpin;
    Quick post "/api/keys" => admin::key_create;
    Quick get "/api/keys" => admin::key_list;
    Quick delete "/api/keys/{id}" => admin::key_revoke;
    Quick get "/api/loops" => loops::loop_list;
    Quick post "/api/loops/{name}/pause" => loops::loop_pause;
    Quick post "/api/loops/{name}/resume" => loops::loop_resume;
    Long post "/api/loops/{name}/run" => loops::loop_run;
    Quick get "/api/status" => admin::status;
    Quick get "/api/version" => admin::version;
    Long get "/api/audit/verify" => admin::audit_verify;
    Long post "/api/backup" => admin::backup;
    Long post "/api/prune" => admin::prune;
    Quick get "/api/openapi.json" => admin::openapi;

    Quick get "/api/vault" => vault::vault_status;
    Quick post "/api/vault/unlock" => vault::vault_unlock;
    Long post "/api/vault/rotate-master" => vault::vault_rotate_master;
    Quick post "/api/vault/import" => vault::secret_import;
    Quick get "/api/vault/secrets" => vault::secret_list;
    Quick put "/api/vault/secrets/{name}" => vault::secret_put;
    Quick delete "/api/vault/secrets/{name}" => vault::secret_remove;
    Quick post "/api/vault/secrets/{name}/rotate" => vault::secret_rotate;
    Quick get "/api/vault/services" => vault::service_list;
    Quick put "/api/vault/services/{name}" => vault::service_put;
    Quick delete "/api/vault/services/{name}" => vault::service_remove;
    Quick get "/api/vault/grants" => vault::grant_list;
    Quick post "/api/vault/grants" => vault::grant_put;
    Quick post "/api/vault/grants/revoke" => vault::grant_revoke;
    Long get "/api/services/{service}/{*path}" => services::service_get;
    Long post "/api/services/{service}/{*path}" => services::service_post;
    Long put "/api/services/{service}/{*path}" => services::service_call_put;
    Long patch "/api/services/{service}/{*path}" => services::service_patch;
    Long delete "/api/services/{service}/{*path}" => services::service_delete;
    Long post "/mesh/api" => services::mesh_api;
    Quick get "/api/budgets" => budgets::budget_list;
    Quick put "/api/budgets" => budgets::budget_put;
    Quick get "/api/budgets/{id}" => budgets::budget_fetch;
    Quick delete "/api/budgets/{id}" => budgets::budget_remove;
    Quick get "/api/costs" => budgets::cost_list;
    Quick get "/api/halt" => budgets::halt_fetch;
    Long post "/api/halt" => budgets::halt;
    Long post "/api/resume" => budgets::resume;
    Quick get "/mesh/blackboard" => mesh::board_list;
    Quick get "/mesh/blackboard/{*key}" => mesh::board_get;
    Quick put "/mesh/blackboard/{*key}" => mesh::board_put;
    Quick delete "/mesh/blackboard/{*key}" => mesh::board_delete;
    Quick get "/mesh/watch" => mesh::board_watch;
    Quick post "/mesh/message" => mesh::message_send;
    Quick get "/mesh/messages" => mesh::message_list;
    Long post "/mesh/messages/receive" => mesh::message_receive;
    Quick post "/mesh/messages/ack" => mesh::message_ack;
    Quick post "/mesh/messages/requeue" => mesh::message_requeue;
    Quick post "/mesh/publish" => mesh::topic_publish;
    Quick post "/mesh/subscribe" => mesh::topic_subscribe;
    Quick delete "/mesh/subscribe" => mesh::topic_unsubscribe;
    Quick get "/mesh/subscriptions" => mesh::topic_list;
    Quick post "/mesh/register" => mesh::register;
    Quick get "/mesh/agents" => mesh::mesh_agent_list;
    Quick get "/mesh/agents/{id}/history" => mesh::agent_history;
    Quick post "/mesh/spawn" => mesh::spawn;
    Quick get "/mesh/permissions" => acl::acl_list;
    Quick get "/mesh/permissions/{agent}" => acl::acl_effective;
    Quick put "/mesh/permissions/{agent}" => acl::acl_put;
    Quick delete "/mesh/permissions/{agent}" => acl::acl_delete;
    Quick get "/mesh/can" => acl::can;

    Long post "/mcp" => door::door;
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

/// By what the router matched, aliases included: the pace, and the path in the table. Methods of
/// one path share the longest pace.
static TEMPLATES: LazyLock<HashMap<String, (Pace, &'static str)>> = LazyLock::new(|| {
    let mut templates = HashMap::new();
    for route in ROUTES {
        for path in [Some(route.path.to_owned()), alias(route.path)].into_iter().flatten() {
            let (pace, _) = templates.entry(path).or_insert((route.pace, route.path));
            if route.pace == Pace::Long {
                *pace = Pace::Long;
            }
        }
    }
    templates
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
    request: Request,
    next: Next,
) -> Response {
    let known = TEMPLATES.get(matched.as_str());
    let &(pace, template) = known.expect("the table and the router are made from the same lines");
    if let Some(caller) = request.extensions().get::<Caller>() {
        let method = request.method().as_str().to_ascii_lowercase();
        if let Err(fault) = roles::check(caller, &method, template) {
            let mut response = fault.into_response();
            response.extensions_mut().insert(Template(template));
            return response;
        }
    }
    let limit = match pace {
        Pace::Long => cx.config.long_request_timeout,
        Pace::Quick => cx.config.request_timeout,
    };
    let answer = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = answer.unwrap_or_else(|_| {
        let text = format!("the server did not finish within {limit:?}; what it began goes on");
        Fault::new(ProblemKind::Slow, text).into_response()
    });
    response.extensions_mut().insert(Template(template));
    response
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
