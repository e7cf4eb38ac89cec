//! Runs one server: starts it, reads its tools, watches it, and restarts it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::ids::SessionId;
use overmind_core::off_limits::OffLimits;
use overmind_core::sandbox::SandboxLevel;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::book::Retired;
use super::{McpServers, ServerState};
use crate::artifacts;
use crate::config::{Scope, ServerConfig, Transport, Value};
use crate::link::{Link, Target};
use crate::vet::{Offered, vet};

/// The delay before the second attempt; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LAST_DELAY: Duration = Duration::from_secs(60);
/// After running for this time, the delay is reset to the first.
const STEADY: Duration = Duration::from_secs(60);
/// The shortest time between two reads of a list, however often the server announces changes.
const LOOK_DELAY: Duration = Duration::from_millis(500);

impl McpServers {
    /// Starts the worker of an enabled server that has none.
    pub(super) fn start_worker(&self, id: &str) {
        let Some(me) = self.me.upgrade() else { return };
        let (stop, tasks, enabled) = {
            let book = self.lock();
            let Some(server) = book.find(id) else { return };
            (server.stop.clone(), server.tasks.clone(), server.config.enabled)
        };
        if enabled && !self.stop.is_cancelled() {
            let id = id.to_owned();
            tasks.clone().spawn(async move { me.live(&id, &stop, &tasks).await });
        }
    }

    /// Waits until everything that a server started has ended.
    pub(super) async fn retire(&self, old: Retired) {
        old.stop.cancel();
        for own in &old.own {
            own.end().await;
        }
        drop(old.link);
        old.tasks.close();
        old.tasks.wait().await;
    }

    async fn live(self: &Arc<Self>, id: &str, stop: &CancellationToken, tasks: &TaskTracker) {
        let mut delay = FIRST_DELAY;
        loop {
            let Some((config, wake)) = ({
                let book = self.lock();
                book.find(id).map(|s| (Arc::clone(&s.config), Arc::clone(&s.wake)))
            }) else {
                return;
            };
            let began = self.parts.clock.now();
            let ended = tokio::select! {
                // The dropped future of `once` ends its connection; the server's tasks wait for
                // that.
                () = stop.cancelled() => {
                    self.forget_link(id);
                    return;
                }
                ended = self.once(id, &config, stop, tasks) => ended,
            };
            let Err(reason) = ended else { return };
            if self.parts.clock.now().since(began) > STEADY {
                delay = FIRST_DELAY;
            }
            let next = self.parts.clock.now().after(delay);
            let reason = self.masked(&config, reason);
            tracing::warn!(mcp.server = id, reason, "MCP server failed; its tools do not answer");
            self.set_state(id, stop, ServerState::Failed { reason, next_try: Some(next) });
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.parts.clock.sleep_until(next) => {}
                () = wake.notified() => {}
            }
            delay = (delay * 2).min(LAST_DELAY);
        }
    }

    /// Handles one connection from start to end. `Ok` if it was told to stop, or has nothing more
    /// to do.
    async fn once(
        self: &Arc<Self>,
        id: &str,
        config: &Arc<ServerConfig>,
        stop: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<(), String> {
        let target = self.target(config, None)?;
        let (link, offered) = self.connect(config, &target, tasks).await?;
        self.accept(id, config, &link, offered, stop).await?;
        match config.scope {
            Scope::Session => {
                // This was only to read its tools; sessions get their own instances.
                link.close().await;
                self.set_state(id, stop, ServerState::Ready);
                stop.cancelled().await;
                Ok(())
            }
            Scope::Shared => {
                if let Some(server) =
                    self.current(id, stop).as_deref_mut().and_then(|b| b.find_mut(id))
                {
                    server.link = Some(Arc::clone(&link));
                }
                self.set_state(id, stop, ServerState::Ready);
                let ended = self.watch(id, config, &link, stop).await;
                self.forget_link(id);
                link.close().await;
                ended
            }
        }
    }

    /// Drops the server's shared connection, if it has ended.
    fn forget_link(&self, id: &str) {
        let mut book = self.lock();
        if let Some(server) = book.find_mut(id)
            && (server.stop.is_cancelled()
                || server.link.as_ref().is_some_and(|link| link.is_closed()))
        {
            server.link = None;
        }
    }

    /// Reads the list again whenever the server announces a change, until the connection ends.
    async fn watch(
        self: &Arc<Self>,
        id: &str,
        config: &Arc<ServerConfig>,
        link: &Arc<Link>,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = link.closed() => return Err(link.why_closed()),
                () = link.changed() => {}
            }
            let offered = tokio::time::timeout(config.limits.start(), link.tools()).await;
            let offered = offered.map_err(|_elapsed| late("list its tools again", config))??;
            self.accept(id, config, link, offered, stop).await?;
            self.parts.clock.sleep_until(self.parts.clock.now().after(LOOK_DELAY)).await;
        }
    }

    /// Connects and lists the tools, within the configured time.
    pub(super) async fn connect(
        &self,
        config: &ServerConfig,
        target: &Target,
        tasks: &TaskTracker,
    ) -> Result<(Arc<Link>, Vec<Offered>), String> {
        let work = async {
            let launcher = &self.parts.launcher;
            let limits = &config.limits;
            let link = Link::open(target, launcher, config.protocol, limits, tasks).await?;
            match link.tools().await {
                Ok(offered) => Ok((link, offered)),
                Err(why) => {
                    link.close().await;
                    Err(why)
                }
            }
        };
        tokio::time::timeout(config.limits.start(), Box::pin(work))
            .await
            .map_err(|_elapsed| late("answer", config))?
    }

    /// Stores the tools that a server offers now.
    pub(super) async fn accept(
        &self,
        id: &str,
        config: &ServerConfig,
        link: &Link,
        offered: Vec<Offered>,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        let seen = vet(offered, config.trust_annotations);
        {
            let Some(mut book) = self.current(id, stop) else { return Ok(()) };
            let Some(server) = book.find_mut(id) else { return Ok(()) };
            server.seen = Some(seen);
            server.protocol.clone_from(&link.protocol);
            server.server_info.clone_from(&link.server_info);
            server.attested = link.attested();
        }
        // The mark comes before the notification, because notified callers check it.
        link.taken();
        self.pin_first(id).await?;
        self.publish();
        Ok(())
    }

    /// The book, if the calling worker is still the server's current one.
    fn current(
        &self,
        id: &str,
        stop: &CancellationToken,
    ) -> Option<std::sync::MutexGuard<'_, super::Book>> {
        let book = self.lock();
        // A replaced server has another token, and the old one is cancelled.
        (!stop.is_cancelled() && book.find(id).is_some()).then_some(book)
    }

    fn set_state(&self, id: &str, stop: &CancellationToken, state: ServerState) {
        if let Some(mut book) = self.current(id, stop)
            && let Some(server) = book.find_mut(id)
        {
            server.state = state;
        }
        self.publish();
    }

    /// Where and how a server is started: for all sessions, or for one.
    pub(super) fn target(
        &self,
        config: &ServerConfig,
        session: Option<(SessionId, &Path, &OffLimits)>,
    ) -> Result<Target, String> {
        match &config.transport {
            Transport::Http { url, headers } => {
                Ok(Target::Http { url: url.clone(), headers: self.values(headers.iter())? })
            }
            Transport::Stdio { command, args, env, sandbox, read_only, writes_workspace } => {
                let (workspace, cwd, writable) = match session {
                    Some((session, workspace, off_limits)) => {
                        let place = artifacts::place(session, &config.id);
                        artifacts::make(workspace, off_limits, &place).map_err(|err| {
                            format!("making {} in the workspace: {err}", place.display())
                        })?;
                        let writable =
                            if *writes_workspace { PathBuf::from(".") } else { place.clone() };
                        (workspace.to_owned(), place, writable)
                    }
                    None => {
                        let own = self.parts.scratch.join(&config.id);
                        artifacts::make_own(&own)
                            .map_err(|err| format!("making {}: {err}", own.display()))?;
                        (own, PathBuf::from("."), PathBuf::from("."))
                    }
                };
                let home = match sandbox {
                    SandboxLevel::Namespace => PathBuf::from("/workspace").join(&cwd),
                    SandboxLevel::None | SandboxLevel::Docker | SandboxLevel::Microvm => {
                        workspace.join(&cwd)
                    }
                };
                let home = home.to_str().ok_or("its directory is not UTF-8")?;
                let mut all: Vec<(String, String)> = [
                    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
                    ("HOME", home.trim_end_matches("/.")),
                    ("LANG", "C.UTF-8"),
                    ("TMPDIR", "/tmp"),
                ]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
                let own = self.values(env.iter())?;
                all.retain(|(name, _)| !own.iter().any(|(mine, _)| mine == name));
                all.extend(own);
                Ok(Target::Program {
                    argv: std::iter::once(command).chain(args).cloned().collect(),
                    env: all,
                    level: *sandbox,
                    workspace,
                    writable: Some(writable),
                    cwd,
                    read_only: read_only.clone(),
                })
            }
        }
    }

    fn values<'a>(
        &self,
        values: impl Iterator<Item = (&'a String, &'a Value)>,
    ) -> Result<Vec<(String, String)>, String> {
        values
            .map(|(name, value)| match value {
                Value::Plain(text) => Ok((name.clone(), text.clone())),
                Value::Secret { secret } => {
                    (self.parts.secrets)(secret).map(|text| (name.clone(), text)).ok_or_else(|| {
                        format!("the secret `{secret}` for {name} is not known: set it")
                    })
                }
            })
            .collect()
    }

    /// The texts that a server's results and messages must not show: its secrets. Plain values are
    /// configuration, which a result may repeat.
    pub(super) fn hidden_texts(&self, config: &ServerConfig) -> Vec<String> {
        let values = match &config.transport {
            Transport::Stdio { env, .. } => env,
            Transport::Http { headers, .. } => headers,
        };
        let secret = |value: &Value| match value {
            Value::Plain(_) => None,
            Value::Secret { secret } => (self.parts.secrets)(secret),
        };
        // Shorter ones would mask parts of ordinary text.
        values.values().filter_map(secret).filter(|text| text.len() >= 6).collect()
    }

    pub(super) fn masked(&self, config: &ServerConfig, mut text: String) -> String {
        for hidden in self.hidden_texts(config) {
            text = text.replace(&hidden, "***");
        }
        text
    }
}

fn late(what: &str, config: &ServerConfig) -> String {
    format!(
        "it did not {what} within {} ms (limits.start_ms): see that it runs by hand, or give it longer",
        config.limits.start_ms
    )
}
