//! Requirements for every implementation of the store port.
//!
//! [`all`] runs each case on a store of its own and lets `audit` look over what is left. The
//! backends' own tests call it; what only one backend has (files, disks, crashes) is tested
//! there. Nothing in here knows which database it talks to.

#![expect(clippy::unwrap_used, reason = "this is test code that lives in a library")]

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use overmind_core::Fut;
use overmind_core::agent::{Agent, AgentLimits, AgentSpec, AgentStatus, OnUnknown, PolicyKind};
use overmind_core::attest::{Attestation, Check, CheckName};
use overmind_core::ids::{AgentId, ColonyId, IdSource, MemoryId, SessionId, StepId};
use overmind_core::memory::{MemoryItem, Provenance, Trust};
use overmind_core::model::Usage;
use overmind_core::name;
use overmind_core::quest::Author;
use overmind_core::row::{Role, SessionRow, SessionStatus, StepKind, StepRow};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{
    Change, Commit, EventQuery, MemoryScope, NewEvent, Page, Store, StoreError, StreamId,
};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use crate::ids::SeededIds;

mod artifacts;
mod budgets;
mod colonies;
mod inbox;
mod log;
mod memory;
mod memory_life;
mod mesh;
pub mod records;
mod rows;
mod upkeep;
pub mod vault;

/// The measurement of a sandbox.
pub fn attestation() -> Attestation {
    Attestation {
        version: Attestation::VERSION,
        driver: "docker".into(),
        asked: SandboxLevel::Docker,
        achieved: SandboxLevel::Docker,
        at: at(4),
        took_us: 5,
        kernel: "6.1".into(),
        boot: "b".into(),
        config: "c".into(),
        checks: vec![Check {
            name: CheckName::Network,
            expected: "a loopback and no route".into(),
            measured: "lo; no \"route\" ☃".into(),
            pass: true,
        }],
        bounds: Vec::new(),
    }
}

type Case = for<'a> fn(&'a dyn Store, &'a World) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! cases {
    ($($name:path)*) => {
        const CASES: &[(&str, Case)] =
            &[$((stringify!($name), |store, world| Box::pin($name(store, world)))),*];
    };
}

cases! {
    log::events_get_places_without_gaps
    log::events_are_chained_by_the_ports_hash
    log::events_are_read_in_parts
    log::many_writers_at_once_leave_no_gap
    log::a_refused_commit_leaves_no_trace
    log::guards_hold_or_refuse
    log::guards_see_the_commits_before_them
    rows::sessions_round_trip
    rows::attestations_are_kept_once_under_their_digest
    rows::sessions_are_listed_newest_first_in_pages
    rows::steps_round_trip
    rows::agents_keep_their_versions
    memory::memory_is_stored_once_for_a_key
    memory::memory_is_found_by_words
    memory::hostile_terms_are_text
    memory::memory_is_found_by_vector
    memory::memory_is_listed_and_deleted
    memory_life::what_supersedes_takes_the_place_and_the_old_is_history
    memory_life::what_has_expired_is_not_found
    memory_life::filters_narrow_every_search
    memory_life::provenance_and_dates_round_trip
    memory_life::vectors_follow_every_change
    memory_life::the_nearest_are_exactly_the_nearest
    memory_life::items_of_another_model_are_listed_until_they_are_embedded_again
    memory_life::common_words_hide_no_rare_ones
    memory_life::items_of_only_common_words_are_found
    memory_life::a_key_is_free_again_when_its_item_has_expired
    inbox::items_round_trip
    inbox::items_are_listed_newest_first_in_pages
    inbox::changes_are_told_in_order_and_commits_stay_whole
    inbox::sessions_that_wait_without_an_item_are_found
    inbox::retention_takes_the_items_of_a_session_along
    inbox::secrets_never_come_to_rest_in_the_inbox
    colonies::starts_at_the_same_time_keep_the_quota
    colonies::a_colony_with_anything_in_it_is_not_empty
    budgets::limits_windows_and_reservations_round_trip
    budgets::windows_stop_at_the_cap_and_at_nothing
    budgets::calls_are_added_up_by_day
    budgets::retention_takes_calls_along_and_leaves_the_sums
    budgets::secrets_never_come_to_rest_in_calls
    mesh::entries_round_trip_and_are_replaced
    mesh::versions_of_what_was_deleted_are_remembered
    mesh::a_prefix_is_text_and_pages_follow_each_other
    mesh::a_page_of_large_values_ends_early
    mesh::what_has_expired_is_found_by_the_sweep
    mesh::of_many_writers_at_one_version_one_wins
    mesh::letters_round_trip_once_and_in_order
    mesh::letters_are_marked_and_die
    mesh::subscriptions_and_registrations_round_trip
    mesh::secrets_never_come_to_rest_in_the_mesh
    artifacts::artifacts_round_trip_and_are_replaced
    artifacts::artifacts_are_listed_as_they_were_saved
    artifacts::names_that_differ_only_in_case_are_refused
    artifacts::bytes_that_are_held_stay_until_the_hold_ends
    artifacts::retention_takes_artifacts_along
    artifacts::secrets_never_come_to_rest_in_artifacts
    rows::names_of_api_keys_are_unique_until_revoked
    rows::settings_round_trip
    rows::idempotency_keys_are_taken_once
    upkeep::secrets_never_come_to_rest
    log::the_listener_hears_of_every_commit_with_events
    upkeep::checkpoints_cover_what_changed
    upkeep::retention_removes_what_ended_and_explains_it
    upkeep::one_session_is_removed_once_it_has_ended
    upkeep::counts_follow_the_changes
    log::a_dropped_commit_is_whole_or_absent
    upkeep::a_closed_store_says_so
}

/// Runs every case, each on a new store from `make`, and then audits that store.
///
/// # Panics
///
/// When a case does not hold; the message names it.
pub async fn all(make: &dyn Fn() -> Arc<dyn Store>) {
    for (name, case) in CASES {
        eprintln!("conformance: {name}");
        let store = make();
        case(store.as_ref(), &World::default()).await;
        match store.audit().await {
            Ok(report) => assert_eq!(report.findings, [], "audit after {name}"),
            Err(StoreError::Closed { .. }) if name.ends_with("a_closed_store_says_so") => {}
            Err(err) => panic!("audit after {name}: {err}"),
        }
        // Errors only for the case that has closed it already.
        let _ = store.close().await;
    }
}

/// Ids, times and rows for tests of anything that uses a store.
#[derive(Debug)]
pub struct World {
    ids: SeededIds,
}

impl Default for World {
    fn default() -> Self {
        Self { ids: SeededIds::new(1) }
    }
}

/// A time that many seconds after the start of 2026.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_767_225_600_000_000 + seconds * 1_000_000)
}

impl World {
    pub fn ids(&self) -> &dyn IdSource {
        &self.ids
    }

    pub fn session_id(&self) -> SessionId {
        SessionId::mint(&self.ids)
    }

    /// A queued session of some agent, with nothing optional in it.
    pub fn session(&self) -> SessionRow {
        let id = self.session_id();
        SessionRow {
            id,
            colony: ColonyId::DEFAULT,
            name: name::generate(id, 0),
            parent: None,
            agent: AgentId::mint(&self.ids),
            agent_version: 1,
            hive: None,
            epoch: 0,
            status: SessionStatus::Queued,
            task: "say hello".into(),
            step_limit: 8,
            created_at: at(0),
            started_at: None,
            finished_at: None,
            prompt: None,
            approval: None,
            final_answer: None,
            error: None,
            usage: Usage::default(),
            cost_microusd: Some(0),
            cost_at_most: false,
            model_calls: 0,
            steps: 0,
            sandbox: SandboxLevel::Namespace,
            attestation: None,
            command: None,
            room: None,
            workspace: "/workspace".into(),
            forked_from: None,
            created_by: "admin".into(),
            owner: None,
            labels: BTreeMap::new(),
        }
    }

    pub fn step(&self, session: SessionId, idx: u32) -> StepRow {
        StepRow {
            id: StepId::derive(session, u64::from(idx)),
            session,
            idx,
            turn: 0,
            kind: StepKind::Tool,
            input: json!({ "tool_name": "read_file", "args": { "path": "a" } }),
            output: None,
            started_at: at(1),
            finished_at: None,
            error: None,
        }
    }

    pub fn agent(&self, name: &str) -> Agent {
        Agent {
            id: AgentId::mint(&self.ids),
            colony: ColonyId::DEFAULT,
            spec: AgentSpec {
                name: name.into(),
                role: "mends tests".into(),
                model: "deterministic".into(),
                tools_allowed: vec!["run_shell".into()],
                policy: PolicyKind::Auto,
                sandbox: SandboxLevel::Namespace,
                limits: AgentLimits::default(),
                on_unknown: OnUnknown::Ask,
                approvals: vec![],
                reasoning_effort: None,
                max_output_tokens: Some(4096),
                command: None,
                budget: None,
            },
            status: AgentStatus::Active,
            version: 1,
            created_at: at(0),
            updated_at: at(0),
            author: Some(Author { name: "ann".into(), role: Role::Operator }),
        }
    }

    pub fn memory(&self, collection: &str, text: &str) -> MemoryItem {
        MemoryItem {
            id: MemoryId::mint(&self.ids),
            colony: ColonyId::DEFAULT,
            collection: collection.into(),
            text: text.into(),
            embedding: vec![],
            embedding_model: "fts5-bm25".into(),
            metadata: json!({}),
            created_at: at(3),
            source: None,
            provenance: Provenance { author: "admin".into(), trust: Trust::User, event: None },
            expires_at: None,
            supersedes: None,
            superseded_by: None,
        }
    }
}

/// All current items of a collection, or of the default colony.
fn within(collection: Option<&str>) -> MemoryScope {
    MemoryScope::new(ColonyId::DEFAULT, collection.map(str::to_owned), at(4))
}

/// An event of some kind with `payload`.
pub fn event(stream: StreamId, payload: Value) -> NewEvent {
    NewEvent { stream, kind: "test.done", ts: at(1), payload }
}

/// A commit of one event.
pub fn one_event(stream: StreamId, payload: Value) -> Commit {
    Commit { events: vec![event(stream, payload)], ..Commit::default() }
}

/// A commit of one change.
pub fn one_change(change: Change) -> Commit {
    Commit { changes: vec![change], ..Commit::default() }
}

fn first<Id>(limit: u32) -> Page<Id> {
    Page { limit, after: None }
}

fn of_stream(stream: StreamId, after: u64, limit: u32) -> EventQuery {
    EventQuery { stream: Some(stream), after, kinds: &[], limit }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    match result {
        Err(StoreError::Conflict { .. }) => {}
        other => panic!("a conflict was due, not {other:?}"),
    }
}

#[track_caller]
fn missing<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    match result {
        Err(StoreError::NotFound { .. }) => {}
        other => panic!("`not found` was due, not {other:?}"),
    }
}

/// Polls once, and answers whether that was enough.
async fn poll_once<T>(future: &mut Fut<'_, T>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}
