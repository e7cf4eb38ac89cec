//! Tools that come and go: the gateway's side of a
//! [`ToolSource`](overmind_core::tool_source::ToolSource).
//!
//! A source's list is read again whenever the source returns another list. A tool whose schema does
//! not compile, or whose name lacks its source's prefix, is skipped with a warning: one bad tool
//! affects only itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use overmind_core::ids::SessionId;
use overmind_core::tool::{ToolContext, ToolOutcome, ToolSpec};
use overmind_core::tool_source::{CHANGED, ToolSource};

use crate::answer::{Failure, brief, envelope};
use crate::gateway::denied;
use crate::schema::{self, Checker};

type List = Arc<[ToolSpec]>;

#[derive(Debug, Default)]
pub(crate) struct Sources {
    sources: Vec<Arc<dyn ToolSource>>,
    seen: Mutex<Arc<Seen>>,
}

/// The compiled state of the sources' lists, as last read.
#[derive(Debug, Default)]
struct Seen {
    /// The lists themselves, one for each source. They are held, so that an equal pointer means the
    /// same list.
    lists: Vec<List>,
    /// The built-in tools' list with which they were merged, and the result.
    merged: Option<(List, List)>,
    tools: HashMap<String, Arc<Dynamic>>,
}

#[derive(Debug)]
struct Dynamic {
    checker: Checker,
    definition: String,
    source: Arc<dyn ToolSource>,
    spec: ToolSpec,
}

impl Sources {
    pub(crate) fn add(&mut self, source: Arc<dyn ToolSource>) {
        self.sources.push(source);
    }

    /// Whether names with `prefix` could belong to an existing source.
    pub(crate) fn overlaps(&self, prefix: &str) -> bool {
        let overlap = |other: &str| other.starts_with(prefix) || prefix.starts_with(other);
        self.sources.iter().any(|source| overlap(source.prefix()))
    }

    /// The built-in tools and those of the sources, by name.
    pub(crate) fn merged(&self, built_in: &Arc<[ToolSpec]>) -> Arc<[ToolSpec]> {
        if self.sources.is_empty() {
            return Arc::clone(built_in);
        }
        let seen = self.look();
        if let Some((with, merged)) = &seen.merged
            && Arc::ptr_eq(with, built_in)
        {
            return Arc::clone(merged);
        }
        let mut all: Vec<ToolSpec> = built_in.to_vec();
        all.extend(seen.tools.values().map(|tool| tool.spec.clone()));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let merged: Arc<[ToolSpec]> = all.into();
        let kept = Seen {
            lists: seen.lists.clone(),
            merged: Some((Arc::clone(built_in), Arc::clone(&merged))),
            tools: seen.tools.clone(),
        };
        let mut now = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&now, &seen) {
            *now = Arc::new(kept);
        }
        merged
    }

    pub(crate) async fn answer(
        &self,
        context: &ToolContext,
        name: &str,
        args: &Value,
        definition: Option<&str>,
    ) -> ToolOutcome {
        let Some(tool) = self.look().tools.get(name).cloned() else {
            return denied(format!("Tool '{}' is not registered", brief(name)));
        };
        if !context.allowed.iter().any(|allowed| allowed == name) {
            return denied(format!("Tool '{name}' is not allowed for agent {}", context.agent));
        }
        if definition.is_some_and(|known| known != tool.definition) {
            return ToolOutcome {
                allowed: false,
                ..ToolOutcome::failure(
                    CHANGED,
                    format!(
                        "the tool `{name}` is not the one this session began with: its definition \
                         has changed since; go on without it, or start a new session"
                    ),
                )
            };
        }
        if let Err(refused) = schema::bounded(args).and_then(|()| tool.checker.check(args)) {
            return ToolOutcome { allowed: true, result: envelope(Err(refused)) };
        }
        tool.source.call(context, name, args).await
    }

    /// Checks the arguments against the tool's current schema; an unknown tool accepts all.
    pub(crate) fn check(&self, name: &str, args: &Value) -> Result<(), Failure> {
        let Some(tool) = self.look().tools.get(name).cloned() else { return Ok(()) };
        schema::bounded(args).and_then(|()| tool.checker.check(args))
    }

    pub(crate) fn session_ended(&self, session: SessionId) {
        self.sources.iter().for_each(|source| source.session_ended(session));
    }

    /// The current lists, compiled once for each change.
    fn look(&self) -> Arc<Seen> {
        let lists: Vec<_> = self.sources.iter().map(|source| source.specs()).collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same = seen.lists.len() == lists.len()
            && seen.lists.iter().zip(&lists).all(|(old, new)| Arc::ptr_eq(old, new));
        if !same {
            let mut tools = HashMap::new();
            for (source, list) in self.sources.iter().zip(&lists) {
                for spec in list.iter() {
                    match dynamic(source, spec, seen.tools.get(&spec.name)) {
                        Ok(tool) => {
                            tools.insert(spec.name.clone(), tool);
                        }
                        Err(why) => {
                            tracing::warn!(tool.name = %brief(&spec.name), why, "tool left out");
                        }
                    }
                }
            }
            *seen = Arc::new(Seen { lists, merged: None, tools });
        }
        Arc::clone(&seen)
    }
}

fn dynamic(
    source: &Arc<dyn ToolSource>,
    spec: &ToolSpec,
    old: Option<&Arc<Dynamic>>,
) -> Result<Arc<Dynamic>, String> {
    if let Some(old) = old.filter(|old| old.spec == *spec && Arc::ptr_eq(&old.source, source)) {
        return Ok(Arc::clone(old));
    }
    if !spec.name.starts_with(source.prefix()) {
        return Err(format!("its name does not begin with `{}`", source.prefix()));
    }
    let checker = Checker::untrusted(&spec.schema)?;
    Ok(Arc::new(Dynamic {
        checker,
        definition: spec.definition(),
        source: Arc::clone(source),
        // Whatever a source claims, its tools must be in allow-lists.
        spec: ToolSpec { internal: false, ..spec.clone() },
    }))
}
