//! The OpenAPI document, made from the handlers and the wire types.

use overmind_api::{
    AttachSaid, AttachWord, BlackboardChange, InboxSnapshot, MeshAgent, Problem, ResourceGone,
    Timeline,
};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, SecurityRequirement};
use utoipa::{Modify, OpenApi};

use super::bounds;
use crate::routes::{
    acl, admin, agents, artifacts, attach, budgets, commands, door, health, inbox, kills, loops,
    mcp, memory, mesh, policy, projects, resources, rooms, runs, services, sign_in, vault,
};

/// Paths that need no token.
const PUBLIC: [&str; 3] = ["/health", "/healthz", "/readyz"];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Overmind",
        description = "Runs AI agents durably: agents are definitions, runs are agents at work.\n\n\
            Everything under `/api/runs` is also served under `/api/sessions`. Lists are bare \
            arrays of at most `limit` items; `Link: <…>; rel=\"next\"` leads to the next page. \
            Errors are RFC 9457 problems that also carry `\"ok\": false` and `\"error\"`. Unknown \
            keys in bodies and queries are refused. `POST /api/agents` and `POST /api/runs` honour an \
            `Idempotency-Key`; another request that changes something and carries one is refused \
            with 400.",
        license(name = "MIT OR Apache-2.0"),
    ),
    paths(
        health::health, health::healthz, health::readyz, health::metrics,
        agents::agent_create, agents::agent_list, agents::agent_fetch, agents::agent_patch,
        agents::agent_disable, agents::agent_remove, agents::agent_versions,
        runs::run_create, runs::run_list, runs::run_fetch, runs::run_remove, runs::run_cancel, runs::run_input,
        commands::run_stop, commands::run_send, commands::run_usage, commands::run_log,
        attach::run_attach, attach::run_usages, kills::run_kill_all,
        runs::run_decide, runs::run_attestation, runs::run_steps, runs::run_tool_calls, runs::run_model_calls,
        runs::run_events, runs::run_replay, runs::run_tool_call, runs::run_verify, runs::run_fork,
        runs::run_diff,
        artifacts::artifact_list, artifacts::artifact_fetch, artifacts::artifact_put,
        artifacts::artifact_delete,
        rooms::run_work, rooms::run_done, rooms::run_undo, rooms::room_leaks, rooms::room_fix,
        projects::project_trust, projects::project_confirm, projects::project_revoke,
        resources::kind_list, resources::resource_apply, resources::resource_list,
        resources::resource_watch, resources::resource_fetch, resources::resource_events, resources::resource_owned, resources::resource_put,
        resources::resource_delete,
        inbox::inbox_list, inbox::inbox_fetch, inbox::inbox_answer, inbox::inbox_answer_all,
        inbox::inbox_groups, inbox::inbox_proposals, inbox::inbox_events,
        budgets::budget_list, budgets::budget_put, budgets::budget_fetch, budgets::budget_remove,
        budgets::cost_list, budgets::halt_fetch, budgets::halt, budgets::resume,
        mcp::mcp_list, mcp::mcp_fetch, mcp::mcp_put, mcp::mcp_remove, mcp::mcp_pin, mcp::mcp_unpin,
        memory::memory_store, memory::memory_search, memory::memory_list, memory::memory_delete,
        memory::memory_fetch, memory::memory_reembed,
        sign_in::link_create,
        loops::loop_list, loops::loop_pause, loops::loop_resume, loops::loop_run,
        admin::tool_list, admin::event_list, admin::event_stream, admin::setting_fetch, admin::key_create,
        admin::key_list, admin::key_revoke, admin::status, admin::version, admin::audit_verify,
        admin::backup, admin::prune, admin::openapi,
        vault::vault_status, vault::vault_unlock, vault::vault_rotate_master, vault::secret_import,
        vault::secret_list, vault::secret_put, vault::secret_remove, vault::secret_rotate,
        vault::service_list, vault::service_put, vault::service_remove,
        vault::grant_list, vault::grant_put, vault::grant_revoke,
        services::service_get, services::service_post, services::service_call_put,
        services::service_patch, services::service_delete, services::mesh_api,
        mesh::board_list, mesh::board_get, mesh::board_put, mesh::board_delete,
        mesh::board_history, mesh::board_watch,
        mesh::message_send, mesh::message_list, mesh::message_receive, mesh::message_ack,
        mesh::message_requeue, mesh::topic_publish, mesh::topic_subscribe,
        mesh::topic_unsubscribe, mesh::topic_list, mesh::register, mesh::mesh_agent_list,
        mesh::agent_history, mesh::spawn, acl::acl_list, acl::acl_effective, acl::acl_put,
        acl::acl_delete, acl::can, door::door, policy::policy_explain,
    ),
    components(schemas(Problem, InboxSnapshot, AttachWord, AttachSaid, BlackboardChange, MeshAgent, ResourceGone, Timeline)),
    modifiers(&Common),
)]
struct Document;

/// Responses that are the same for every operation.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The admin token, an API key (`ovk_…`) or a run's token (`ovs_…`)"))
            .build();
        if let Some(components) = document.components.as_mut() {
            components.add_security_scheme("token", SecurityScheme::Http(token));
        }
        let problem =
            || ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        for (path, item) in &mut document.paths.paths {
            let operations =
                [&mut item.get, &mut item.post, &mut item.patch, &mut item.delete, &mut item.put];
            for operation in operations.into_iter().flatten() {
                let public = PUBLIC.contains(&path.as_str());
                operation.security = Some(if public {
                    Vec::new()
                } else {
                    vec![SecurityRequirement::new::<_, _, &str>("token", [])]
                });
                let responses = &mut operation.responses.responses;
                for (status, response) in responses.iter_mut() {
                    let RefOr::T(response) = response else { continue };
                    if response.description.is_empty() {
                        // Each response must have one, and "what was asked for" is sufficient.
                        response.description = "OK".to_owned();
                    }
                    if status.as_str() >= "400" && response.content.is_empty() {
                        response
                            .content
                            .insert("application/problem+json".into(), RefOr::T(problem()));
                    }
                }
                let text =
                    "Any other failure: 400, 401, 403, 408, 413, 415, 421, 429, 500, 503 or 504";
                let other = ResponseBuilder::new()
                    .description(text)
                    .content("application/problem+json", problem())
                    .build();
                responses.insert("default".to_owned(), RefOr::T(other));
            }
        }
    }
}

/// The document as [`super::openapi`] has it, made from the code now: `docs/openapi.json` is
/// written with it, and compared.
pub fn openapi_from_code() -> String {
    let mut document =
        serde_json::to_value(Document::openapi()).expect("an OpenAPI document is a tree of texts");
    bounds::state(&mut document);
    let mut text =
        serde_json::to_string_pretty(&document).expect("a tree of texts is written as JSON");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::openapi::openapi;
    use crate::routes::ROUTES;

    fn document() -> Value {
        serde_json::from_str(&openapi_from_code()).unwrap()
    }

    #[test]
    fn the_openapi_document_matches_the_code() {
        assert_eq!(openapi(), openapi_from_code(), "run `cargo xtask openapi`, and build again");
    }

    #[test]
    fn the_document_has_exactly_the_routes_that_are_served() {
        let document = document();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        let described: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(move |method| (path.clone(), method.clone()))
            })
            .collect();
        let served: BTreeSet<(String, String)> = ROUTES
            .iter()
            .map(|route| (route.path.replace("{*", "{"), route.method.into()))
            .collect();
        assert_eq!(described, served);
    }

    #[test]
    fn every_response_is_described_with_the_words_of_the_wire() {
        let document = document();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                for (status, response) in operation["responses"].as_object().unwrap() {
                    let said = response["description"].as_str().unwrap_or_default();
                    assert!(!said.is_empty(), "{} {status}", operation["operationId"]);
                }
            }
        }
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas.iter().filter(|(_, schema)| schema["enum"].is_array()) {
            let words = schema["enum"].as_array().unwrap();
            let plain = |word: &Value| word.as_str().is_some_and(|w| w == w.to_lowercase());
            assert!(words.iter().all(plain), "{name}: {words:?}");
        }
        let of_wire = overmind_api::RunStatus::ALL.iter().map(|word| word.as_str());
        assert_eq!(schemas["RunStatus"]["enum"], of_wire.collect::<Value>());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk(value: &Value, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(to)) = map.get("$ref") {
                        found.insert(to.clone());
                    }
                    map.values().for_each(|value| walk(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, found)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let document = document();
        let mut found = BTreeSet::new();
        walk(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for to in found {
            let pointer = to.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{to} leads nowhere");
        }
    }

    #[test]
    fn only_health_checks_need_no_token() {
        for (path, item) in document()["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let open = operation["security"].as_array().unwrap().is_empty();
                assert_eq!(open, PUBLIC.contains(&path.as_str()), "{method} {path}");
                let default = &operation["responses"]["default"]["content"];
                assert!(default["application/problem+json"].is_object(), "{method} {path}");
            }
        }
    }

    #[test]
    fn operation_names_are_unique_and_the_document_is_stable() {
        let document = document();
        let mut names = BTreeSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()));
            }
        }
        assert_eq!(names.len(), ROUTES.len());
        assert_eq!(openapi(), openapi());
    }
}
