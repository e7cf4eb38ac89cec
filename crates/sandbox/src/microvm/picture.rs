//! Snapshots of machines that were stopped while they wait for an order.

use std::io;
use std::path::{Path, PathBuf};

use crate::init::spec::{Program, Spec};
use crate::microvm::machine::Machine;
use crate::microvm::{Microvm, boot_time, bounds, environment, image, prune};

impl Microvm {
    /// The snapshot for such a machine, taken now if there is none yet. Concurrent calls wait for
    /// it.
    pub(super) async fn picture(&self, machine: &Machine<'_>, version: &str) -> Option<PathBuf> {
        let name = machine.fingerprint(version);
        let mut pictures = self.pictures.lock().await;
        if let Some(known) = pictures.get(&name) {
            // Somebody may have emptied the directory.
            if known.as_deref().is_none_or(prune::mark_used) {
                return known.clone();
            }
        }
        let place = self.options.dir.join("pictures").join(&name).join("picture");
        let picture = if prune::mark_used(&place) {
            Some(place)
        } else {
            match self.take_picture(machine, &place).await {
                Ok(()) => {
                    self.prune().await;
                    Some(place)
                }
                Err(why) => {
                    tracing::warn!(error = why, "no picture of the microvm: each call boots one");
                    None
                }
            }
        };
        pictures.insert(name, picture.clone());
        picture
    }

    /// Disables a snapshot from which a machine did not start: until this server ends, such
    /// machines boot.
    pub(super) async fn distrust(&self, machine: &Machine<'_>, version: &str, words: &str) {
        tracing::warn!(words, "no machine begins from the picture of the microvm: each call boots");
        self.pictures.lock().await.insert(machine.fingerprint(version), None);
    }

    /// Removes files that were not used for a long time; see [`prune`].
    async fn prune(&self) {
        let dir = self.options.dir.clone();
        let pruned = tokio::task::spawn_blocking(move || prune::prune(&dir)).await;
        match pruned {
            Ok(Ok(0)) => {}
            Ok(Ok(count)) => {
                tracing::info!(count, "removed unused images and pictures of microvms")
            }
            Ok(Err(err)) => {
                tracing::warn!(dir = %self.options.dir.display(), error = %err,
                    "unused images and pictures of microvms stay");
            }
            Err(err) => tracing::error!(error = %err, "removing unused pictures failed"),
        }
    }

    async fn take_picture(&self, machine: &Machine<'_>, place: &Path) -> Result<(), String> {
        let home = place.parent().expect("it has a directory of its own");
        let half = home.with_extension(format!("half-{}", std::process::id()));
        let made = async {
            let make = || -> io::Result<()> {
                std::fs::create_dir_all(&half)?;
                if let Some(user) = self.outer.run_as {
                    std::os::unix::fs::chown(&half, Some(user.uid), Some(user.gid))?;
                }
                Ok(())
            };
            make().map_err(|err| format!("making {}: {err}", half.display()))?;
            let spec = Spec {
                kind: self.kind(machine.accelerator, Program::Command),
                argv: machine.take_picture(),
                env: environment(),
                home: Vec::new(),
                workspace: half.clone(),
                writable: Some(PathBuf::from(".")),
                cwd: PathBuf::new(),
                private_home: None,
                also_at: None,
                masks: Vec::new(),
                secrets: Vec::new(),
                fixed: crate::repository::Fixed::default(),
                terminal: false,
                limits: bounds(machine.size, machine.size.memory_mib << 21),
                #[cfg(feature = "mutations")]
                mutation: None,
            };
            let outcome = self
                .launch(&spec, &[], 64 << 10, None, boot_time(machine.accelerator))
                .await
                .map_err(|err| err.to_string())?;
            if !outcome.stdout.text.contains("Migration status: completed") {
                let words = outcome.stderr.text.trim();
                return Err(format!("it did not get there ({:?}): {words}", outcome.ended));
            }
            // Another daemon may have been first, with the same result.
            if !home.exists() {
                std::fs::rename(&half, home).map_err(|err| format!("keeping it: {err}"))?;
            }
            Ok(())
        }
        .await;
        let _ = std::fs::remove_dir_all(&half);
        made
    }

    /// The guest's program, copied again if another server has removed it as unused.
    pub(super) async fn keep_agent(&self, agent: &Path) -> Result<(), super::SandboxError> {
        if prune::mark_used(agent) {
            return Ok(());
        }
        let (dir, program) = (self.options.dir.clone(), self.outer.init_program.clone());
        let placed = tokio::task::spawn_blocking(move || image::place_agent(&dir, &program)).await;
        let failed =
            |why: String| super::failed(format!("placing the guest's program again: {why}"));
        match placed {
            Ok(Ok(placed)) if placed == agent => Ok(()),
            Ok(Ok(_)) => {
                Err(super::failed("the server's program was exchanged: start it again".to_owned()))
            }
            Ok(Err(err)) => Err(failed(err.to_string())),
            Err(err) => Err(failed(err.to_string())),
        }
    }
}
