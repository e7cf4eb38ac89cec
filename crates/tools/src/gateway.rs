//! The gateway: registry, allow-list, validation, handler and envelope, in this order.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;

use serde_json::Value;

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::canary::Planter;
use overmind_core::gate::PolicyVersion;
use overmind_core::ids::SessionId;
use overmind_core::memory::Memory;
use overmind_core::sandbox::{Sandbox, SandboxLevel};
use overmind_core::tool::{ToolContext, ToolOutcome, ToolSpec, Toolbox};
use overmind_core::tool_source::ToolSource;

use crate::answer::{Answer, Failure, envelope};
use crate::binding::{self, Execution};
use crate::canaries::Watch;
use crate::options::Options;
use crate::schema::Checker;
use crate::sources::Sources;
use crate::workspace::{self, blocking};
use crate::{builtin, schema};

/// Maximum number of bytes of arguments, counted as compact JSON.
pub const MAX_ARGS_BYTES: usize = 1 << 20;
/// Maximum number of levels of objects and arrays in the arguments; the arguments themselves are
/// the first level.
pub const MAX_ARGS_DEPTH: usize = 64;

/// One tool: its description and its handler.
///
/// The gateway has checked the allow-list and the schema before it calls [`Tool::call`]. A handler
/// may still refuse what a schema cannot express, with `bad_args`.
pub trait Tool: Send + Sync + fmt::Debug {
    /// Called once, when the tool is registered.
    fn spec(&self) -> ToolSpec;

    /// # Cancel safety
    ///
    /// Dropping the future must stop the work, or leave only work that ends soon by itself and is
    /// done completely or not at all.
    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer>;

    /// The program that such a call would start; a human who approves a call approves this too.
    /// `None` for a tool that starts none, and for arguments that it would refuse.
    fn execution(&self, context: &ToolContext, args: &Value) -> Option<Execution> {
        let _ = (context, args);
        None
    }

    /// Whether it runs programs in the sandbox of the session's level.
    fn is_sandboxed(&self) -> bool {
        false
    }
}

/// Finds the driver of a level; `None` if this hive has none.
pub type SandboxLookup = Arc<dyn Fn(SandboxLevel) -> Option<Arc<dyn Sandbox>> + Send + Sync>;

/// The driver for a session's commands: the sandbox of its environment, otherwise the driver of its
/// level.
pub(crate) fn driver_for(
    context: &ToolContext,
    sandboxes: &SandboxLookup,
) -> Option<Arc<dyn Sandbox>> {
    context.driver.clone().or_else(|| sandboxes(context.sandbox))
}

/// The dependencies of the built-in tools.
#[derive(Clone)]
pub struct Parts {
    pub sandboxes: SandboxLookup,
    pub memory: Arc<dyn Memory>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// Why a tool was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    #[error("registering tool `{name}`: the name is taken")]
    Duplicate { name: String },
    #[error("registering tool `{name}`: its schema is not usable: {why}")]
    Schema { name: String, why: String },
}

#[derive(Debug)]
struct Registered {
    tool: Arc<dyn Tool>,
    checker: Checker,
    internal: bool,
}

/// The tools of one hive.
pub struct Gateway {
    tools: BTreeMap<String, Registered>,
    specs: Arc<[ToolSpec]>,
    sources: Sources,
    sandboxes: SandboxLookup,
    canaries: Option<Planter>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("tools", &self.tools)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// Makes a gateway with the built-in tools.
    ///
    /// # Panics
    ///
    /// Panics if the schema of a built-in tool does not compile; a test of this crate fails then,
    /// too.
    pub fn new(parts: Parts) -> Self {
        Self::with_tools(parts, Vec::new()).expect("the built-in tools register")
    }

    /// Makes a gateway with the built-in tools and others.
    ///
    /// # Errors
    ///
    /// [`RegisterError`] if a name is taken, or a schema is broken or refers to another document:
    /// nothing is ever fetched for a schema.
    pub fn with_tools(parts: Parts, more: Vec<Arc<dyn Tool>>) -> Result<Self, RegisterError> {
        Self::with_options(parts, Options::default(), more)
    }

    /// Makes a gateway with the built-in tools as an operator configured them, and others.
    ///
    /// # Errors
    ///
    /// The same as for [`Gateway::with_tools`].
    pub fn with_options(
        parts: Parts,
        options: Options,
        more: Vec<Arc<dyn Tool>>,
    ) -> Result<Self, RegisterError> {
        let sandboxes = Arc::clone(&parts.sandboxes);
        let canaries = options.canaries.clone();
        let mut tools = BTreeMap::new();
        let mut specs = Vec::new();
        for tool in builtin::all(parts, options).into_iter().chain(more) {
            let spec = tool.spec();
            let name = spec.name.clone();
            let checker = Checker::new(&spec.schema)
                .map_err(|why| RegisterError::Schema { name: name.clone(), why })?;
            let entry = Registered { tool, checker, internal: spec.internal };
            if tools.insert(name.clone(), entry).is_some() {
                return Err(RegisterError::Duplicate { name });
            }
            specs.push(spec);
        }
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { tools, specs: specs.into(), sources: Sources::default(), sandboxes, canaries })
    }

    /// Adds tools that appear and disappear. They are validated and allowed like all others.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Duplicate`] if a tool or another source has names with its prefix.
    pub fn with_source(mut self, source: Arc<dyn ToolSource>) -> Result<Self, RegisterError> {
        let prefix = source.prefix().to_owned();
        let taken = prefix.is_empty()
            || self.tools.keys().any(|name| name.starts_with(&prefix))
            || self.sources.overlaps(&prefix);
        if taken {
            return Err(RegisterError::Duplicate { name: prefix });
        }
        self.sources.add(source);
        Ok(self)
    }

    /// Calls a tool, and watches for canaries.
    async fn answer(
        &self,
        context: &ToolContext,
        name: &str,
        args: &Value,
        definition: Option<&str>,
    ) -> ToolOutcome {
        let Some(planter) = &self.canaries else {
            return self.unwatched(context, name, args, definition).await;
        };
        let (watch, context) = Watch::begin(planter, context);
        if let Some(refused) = watch.refusal(name, args) {
            return refused;
        }
        let outcome = self.unwatched(&context, name, args, definition).await;
        watch.end(outcome, name, args)
    }

    async fn unwatched(
        &self,
        context: &ToolContext,
        name: &str,
        args: &Value,
        definition: Option<&str>,
    ) -> ToolOutcome {
        let Some(entry) = self.tools.get(name) else {
            return self.sources.answer(context, name, args, definition).await;
        };
        if !entry.internal && !context.allowed.iter().any(|allowed| allowed == name) {
            return denied(format!("Tool '{name}' is not allowed for agent {}", context.agent));
        }
        let answer = match schema::bounded(args).and_then(|()| entry.checker.check(args)) {
            Ok(()) => caught(name, || entry.tool.call(context, args)).await,
            Err(refused) => Err(refused),
        };
        ToolOutcome { allowed: true, result: envelope(answer) }
    }
}

impl Toolbox for Gateway {
    fn specs(&self) -> Arc<[ToolSpec]> {
        self.sources.merged(&self.specs)
    }

    fn call<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
    ) -> Fut<'a, ToolOutcome> {
        Box::pin(self.answer(context, name, args, None))
    }

    fn call_defined<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
        definition: &'a str,
    ) -> Fut<'a, ToolOutcome> {
        Box::pin(self.answer(context, name, args, Some(definition)))
    }

    fn misfit(&self, name: &str, args: &Value) -> Option<String> {
        let refused = match self.tools.get(name) {
            Some(entry) => schema::bounded(args).and_then(|()| entry.checker.check(args)),
            None => self.sources.check(name, args),
        };
        refused.err().map(|failure| failure.in_words())
    }

    fn bind<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
        files: &'a [String],
        policy: &'a PolicyVersion,
    ) -> Fut<'a, String> {
        let tool = self.tools.get(name);
        let execution = tool.and_then(|entry| entry.tool.execution(context, args));
        let execution = execution.unwrap_or_default();
        Box::pin(binding::bind(context, name, args, execution, files, policy))
    }

    fn attested<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
    ) -> Fut<'a, Option<Arc<Attested>>> {
        Box::pin(async move {
            let sandboxed = self.tools.get(name).is_some_and(|entry| entry.tool.is_sandboxed());
            let driver = driver_for(context, &self.sandboxes).filter(|_| sandboxed)?;
            driver.attest().await.ok().flatten()
        })
    }

    fn artifact<'a>(
        &'a self,
        workspace: &'a Path,
        path: &'a str,
        max_bytes: usize,
    ) -> Fut<'a, Option<Vec<u8>>> {
        let (workspace, path) = (workspace.to_owned(), path.to_owned());
        let read = blocking(move || Ok(workspace::artifact(&workspace, &path, max_bytes)));
        Box::pin(async move { read.await.ok().flatten() })
    }

    fn session_ended(&self, session: SessionId) {
        self.sources.session_ended(session);
    }
}

pub(crate) fn denied(message: String) -> ToolOutcome {
    ToolOutcome { allowed: false, ..ToolOutcome::failure("tool_not_allowed", message) }
}

/// Runs a handler; a panic becomes an answer, so that a bug in one tool affects only one call.
async fn caught<'a>(name: &str, start: impl FnOnce() -> Fut<'a, Answer>) -> Answer {
    let mut work = match catch_unwind(AssertUnwindSafe(start)) {
        Ok(work) => work,
        Err(_) => return Err(panicked(name)),
    };
    std::future::poll_fn(move |cx| {
        // This is unwind safe: after a panic the future is never polled again, only dropped.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(poll) => poll,
            Err(_) => Poll::Ready(Err(panicked(name))),
        }
    })
    .await
}

fn panicked(name: &str) -> Failure {
    tracing::error!(tool.name = name, "a tool's handler panicked");
    Failure::tool_error(format!(
        "the tool `{name}` failed inside (a bug in it, not in the call); what it did so far is unknown"
    ))
}
