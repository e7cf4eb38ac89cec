//! The permission matrix of the mesh, from a file that is read again whenever it changes.
//!
//! The format is JSON as in the earlier version, `{"permissions": {"agent": {…}}}`, or the same as
//! TOML if the file is called `….toml`. Without a file, agents have only the permissions that were
//! written through the API.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use overmind_core::Fut;
use overmind_core::acl::PermissionsFile;
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::time::Timestamp;
use overmind_engine::Engine;

use super::StartError;
use crate::config::ConfigError;

/// The time between two checks of the file. A stat costs microseconds, and works on every file
/// system.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The place of the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionsPlace {
    /// The candidates, of which the first existing one is used.
    pub files: Vec<PathBuf>,
    /// Whether a user named the file, so that it must exist.
    pub must: bool,
}

impl PermissionsPlace {
    fn file(&self) -> Option<&Path> {
        self.files.iter().map(PathBuf::as_path).find(|file| file.exists())
    }
}

/// Parses a file.
///
/// # Errors
///
/// Describes the error and its position.
pub fn parse(path: &Path, text: &str) -> Result<PermissionsFile, String> {
    let toml = path.extension().is_some_and(|end| end == "toml");
    let file: PermissionsFile = if toml {
        toml::from_str(text).map_err(|err| err.to_string())?
    } else {
        serde_json::from_str(text).map_err(|err| err.to_string())?
    };
    file.check()?;
    Ok(file)
}

fn read(path: &Path) -> Result<PermissionsFile, String> {
    let text = std::fs::read_to_string(path).map_err(|err| err.to_string())?;
    parse(path, &text)
}

/// Reads the file for the first time.
///
/// # Errors
///
/// Fails if a named file is missing, or is no matrix: the server must not start with other rules
/// than the configured ones.
pub(super) async fn load(place: &PermissionsPlace, engine: &Engine) -> Result<(), StartError> {
    let Some(path) = place.file() else {
        return match (place.must, place.files.first()) {
            (true, Some(path)) => {
                let source = io::Error::from(io::ErrorKind::NotFound);
                Err(ConfigError::Read { path: path.clone(), source }.into())
            }
            _ => Ok(()),
        };
    };
    let file = read(path).map_err(|why| ConfigError::Together {
        message: format!("{} is not a valid permission matrix: {why}", path.display()),
        hint: "docs/mesh.md has its shape".into(),
    })?;
    Ok(engine.permissions_loaded(file, &path.display().to_string()).await?)
}

/// Starts the loop that reads the file again whenever it has changed.
pub(super) async fn watch(place: PermissionsPlace, engine: &Engine) {
    let seen = stamp(&place);
    engine.loop_add(Watched { place, engine: engine.clone(), seen, wrong: None }).await;
}

/// Watches the file. An invalid matrix changes nothing and is reported as an error until the file
/// changes; a deleted file removes all permissions that it gave.
struct Watched {
    place: PermissionsPlace,
    engine: Engine,
    seen: Option<(PathBuf, SystemTime, u64)>,
    wrong: Option<String>,
}

impl Reconcile for Watched {
    fn name(&self) -> &'static str {
        "permissions-file"
    }

    fn pace(&self) -> Pace {
        Pace::every(LOOK_EVERY).steady()
    }

    fn pass(&mut self, _now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(async move {
            let now = stamp(&self.place);
            let mut said = "";
            if now != self.seen {
                self.seen = now;
                let taken = self.take().await;
                self.wrong = taken.err();
                said = "the permissions have changed";
            }
            self.wrong.clone().map_or_else(|| Ok(Report::new(said)), Err)
        })
    }
}

impl Watched {
    async fn take(&self) -> Result<(), String> {
        let (file, name) = match self.place.file() {
            Some(path) => (read(path), path.display().to_string()),
            None => (Ok(PermissionsFile::default()), "(the file is gone)".to_owned()),
        };
        let done = match file {
            Ok(file) => {
                self.engine.permissions_loaded(file, &name).await.map_err(|err| err.to_string())
            }
            Err(why) => Err(why),
        };
        done.map_err(|why| {
            format!("{name} is not a permission matrix; the last one holds: {why}")
        })?;
        tracing::info!(file = name, "the permissions have changed");
        Ok(())
    }
}

fn stamp(place: &PermissionsPlace) -> Option<(PathBuf, SystemTime, u64)> {
    let file = place.file()?;
    let found = std::fs::metadata(file).ok()?;
    Some((file.to_owned(), found.modified().ok()?, found.len()))
}
