//! Files of a project from which its services are made, as far as the server may read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::build::{Site, blocking};
use super::start::ServiceError;
use crate::config::{ContainerService, DatabaseTemplate, Service};
use crate::database::template;
use crate::opener::{self, Own};
use crate::services::compose::{Compose, ComposePlan, judge, named};
use crate::services::{ComposeError, ContainerError};

impl Site<'_> {
    /// The real path of the project's database from which a session's is made.
    pub(super) async fn source(&self, relative: &Path) -> Result<Option<PathBuf>, ServiceError> {
        let own = Own::of(&self.workspace.options.off_limits);
        let (project, relative) = (self.project.clone(), relative.to_owned());
        let found = blocking("looking at the database", move || {
            opener::place(&project, &relative, &own).map_err(|err| ServiceError::Refused {
                path: project.join(relative),
                why: opener::why(&err),
            })
        });
        found.await?
    }

    /// The template's scripts, each with its content.
    pub(super) async fn scripts(
        &self,
        template: &DatabaseTemplate,
    ) -> Result<Vec<(PathBuf, String)>, ServiceError> {
        let (worktree, paths) = (self.worktree.clone(), template.sql.clone());
        let own = Own::of(&self.workspace.options.off_limits);
        let read = blocking("reading the template's scripts", move || {
            let one = |script: &PathBuf| {
                let path = worktree.join(script);
                let refuse = |why: String| ServiceError::Refused { path: path.clone(), why };
                let text = opener::text(&worktree, script, template::LARGEST, &own);
                let text = text.map_err(|err| refuse(opener::why(&err)))?;
                let text = text.ok_or_else(|| refuse("is not there".to_owned()))?;
                let text = String::from_utf8(text);
                Ok((path.clone(), text.map_err(|_| refuse("is not text (UTF-8)".to_owned()))?))
            };
            paths.iter().map(one).collect()
        });
        read.await?
    }

    /// The real path of a compose project's file, whose content may be quoted in errors. The files
    /// that it names were checked, too.
    pub(super) async fn compose_file(&self, relative: &Path) -> Result<PathBuf, ServiceError> {
        let (worktree, relative) = (self.worktree.clone(), relative.to_owned());
        let own = Own::of(&self.workspace.options.off_limits);
        let found = blocking("looking at the compose file", move || {
            let path = worktree.join(&relative);
            match opener::place(&worktree, &relative, &own) {
                Ok(Some(found)) => {
                    let plain = found.strip_prefix(&worktree).unwrap_or(&relative);
                    let looked = named::look(&worktree, plain, &own);
                    looked.map_err(|(named, why)| ServiceError::Refused {
                        path: worktree.join(named),
                        why,
                    })?;
                    Ok(found)
                }
                Ok(None) => Err(ServiceError::Refused { path, why: "is not there".to_owned() }),
                Err(err) => Err(ServiceError::Refused { path, why: opener::why(&err) }),
            }
        });
        found.await?
    }

    /// The checked content of a compose project: it reaches nothing beyond its containers and the
    /// worktree.
    pub(super) async fn compose_config(
        &self,
        compose: &Compose,
        plan: &ComposePlan,
        env: &BTreeMap<String, String>,
    ) -> Result<Value, ServiceError> {
        let config = compose.config(plan, env).await?;
        let (worktree, plan) = (self.worktree.clone(), plan.clone());
        let own = Own::of(&self.workspace.options.off_limits);
        let judged = blocking("judging the compose project", move || {
            let within = |path: &Path| {
                let relative = path.strip_prefix(&worktree);
                let relative = relative.map_err(|_| "is outside of the worktree".to_owned())?;
                opener::plain(&worktree, relative, &own).map_err(|err| opener::why(&err))
            };
            let judged = judge::judge(&config, &plan.project, &within);
            judged.map_err(|all| ComposeError::refused(&plan.service, &all))?;
            Ok::<_, ServiceError>(config)
        });
        judged.await?
    }

    /// Files and directories of the worktree that a container sees; one that a link leads out of
    /// the worktree is refused.
    pub(super) fn mounts(
        &self,
        service: &Service,
        container: &ContainerService,
    ) -> Result<Vec<(PathBuf, String)>, ServiceError> {
        let own = Own::of(&self.workspace.options.off_limits);
        let one = |(relative, inside): &(PathBuf, String)| {
            let refuse = |err: std::io::Error| ContainerError::Mount {
                service: service.name.clone(),
                path: relative.clone(),
                why: format!("it {}", opener::why(&err)),
            };
            let real = opener::shown(&self.worktree, relative, &own).map_err(refuse)?;
            Ok((real, inside.clone()))
        };
        Ok(container.mounts.iter().map(one).collect::<Result<Vec<_>, ContainerError>>()?)
    }
}
