//! Handles SIGTERM and SIGINT: the first drains, the second stops now, the third aborts.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How urgently the process was asked to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    #[default]
    No,
    /// Finish the current work.
    Graceful,
    /// Interrupt it; nothing acknowledged is lost.
    Now,
}

/// Watches for signals until the process ends.
#[derive(Debug)]
pub struct Signals(watch::Receiver<Stop>);

impl Signals {
    /// Installs handlers for both signals. Must be called inside of a runtime.
    ///
    /// # Errors
    ///
    /// Fails if the handlers cannot be installed.
    pub fn install() -> std::io::Result<Self> {
        let (term, int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (said, heard) = watch::channel(Stop::No);
        #[expect(
            clippy::disallowed_methods,
            reason = "runs until the process ends, so nothing waits for it"
        )]
        tokio::spawn(count(term, int, said));
        Ok(Self(heard))
    }

    /// Waits until the process is asked to end at least as urgently as `least`.
    pub async fn asked(&mut self, least: Stop) {
        if self.0.wait_for(|stop| *stop >= least).await.is_err() {
            // The watcher ends only with the runtime.
            std::future::pending::<()>().await;
        }
    }
}

async fn count(mut term: Signal, mut int: Signal, said: watch::Sender<Stop>) {
    loop {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        let before = *said.borrow();
        match before {
            Stop::No => said.send_replace(Stop::Graceful),
            Stop::Graceful => said.send_replace(Stop::Now),
            Stop::Now => std::process::abort(),
        };
    }
}
