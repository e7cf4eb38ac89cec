//! Resources of kinds that are only shown: read from where they are kept, by the methods that their
//! own routes call, which check who asks.

use std::collections::HashMap;

use overmind_api::{Agent, Loop, MemoryItem, Resource, ResourceGone, Run, kind_title};
use overmind_core::ids::{AgentId, MemoryId, RecordId, SessionId};
use overmind_core::record::kinds::project::{self, PROJECT};
use overmind_core::record::{KindInfo, Record, Selector};
use overmind_core::row::SessionRow;
use overmind_core::store::{NameFilter, Page};
use overmind_engine::request::SessionQuery;
use overmind_engine::{Caller, EngineError};

use super::super::vault::secret_info;
use crate::convert;
use crate::cx::Cx;
use crate::fault::Fault;

/// A page: its items, and the position of the next page.
pub(super) type Found = (Vec<Resource>, Option<String>);

/// Which things.
pub(super) struct Wish<'a> {
    pub(super) selector: &'a Selector,
    pub(super) owner: Option<RecordId>,
    /// The answer of the page before.
    pub(super) after: Option<String>,
    pub(super) limit: u32,
}

fn bad_cursor() -> EngineError {
    EngineError::invalid("cursor", "is none that a list of this kind has answered")
}

/// The id that a cursor is.
fn id<T: std::str::FromStr>(after: Option<&str>) -> Result<Option<T>, EngineError> {
    after.map(|text| text.parse().map_err(|_| bad_cursor())).transpose()
}

pub(super) async fn list(
    cx: &Cx,
    by: &Caller,
    info: &'static KindInfo,
    wish: Wish<'_>,
) -> Result<Found, EngineError> {
    walled(cx, by, info)?;
    let (limit, after) = (wish.limit, wish.after.as_deref());
    let full = |count: usize| u32::try_from(count).is_ok_and(|count| count >= limit);
    let (mut found, next): Found = match info.name {
        "session" => {
            let query = SessionQuery {
                selector: wish.selector.clone(),
                owner: wish.owner,
                ..SessionQuery::default()
            };
            let page = Page { after: id::<SessionId>(after)?, limit };
            let rows = cx.engine.session_list(by, query, page).await?;
            let next = rows.last().filter(|_| full(rows.len())).map(|row| row.id.to_string());
            return Ok((sessions(cx, rows).await?, next));
        }
        "agent" => {
            let page = Page { after: id::<AgentId>(after)?, limit };
            let all = cx.engine.agent_list(by, page).await?;
            let next = all.last().filter(|_| full(all.len())).map(|agent| agent.id.to_string());
            (all.into_iter().map(|agent| agent_shown(cx, agent)).collect(), next)
        }
        "secret" => {
            let all = cx.engine.secret_list(by, after, limit)?;
            let next = all.last().filter(|_| full(all.len())).map(|view| view.name.to_string());
            let shown = |view| Resource::of_secret(&secret_info(view));
            (all.into_iter().map(shown).collect(), next)
        }
        "memory" => {
            let page = Page { after: id::<MemoryId>(after)?, limit };
            let all = cx.engine.memory_list(by, None, page).await?;
            let next = all.last().filter(|_| full(all.len())).map(|item| item.id.to_string());
            let shown = |item| memory_shown(cx, item);
            (all.into_iter().map(shown).collect(), next)
        }
        "weaver" => {
            let since = cx.engine.status(by).await?.started_at;
            let all = cx.engine.loop_list(by)?.into_iter();
            (all.map(|one| Resource::of_loop(&Loop::from(one), since)).collect(), None)
        }
        _ => {
            let status = convert::status(cx.engine.status(by).await?);
            (Resource::of_status(info, &status).into_iter().collect(), None)
        }
    };
    found.retain(|one| wish.owner.is_none() && wish.selector.matches(&one.metadata.labels));
    Ok((found, next))
}

/// Refuses a key that is bound to a colony things that belong to none.
fn walled(cx: &Cx, by: &Caller, info: &KindInfo) -> Result<(), EngineError> {
    let Some(wall) = by.wall else { return Ok(()) };
    match info.name {
        "session" | "agent" | "memory" => Ok(()),
        _ => Err(EngineError::Forbidden {
            message: format!(
                "`{}` is bound to the colony `{}` and cannot read {}, which are of the whole server",
                by.name,
                cx.engine.colony_name(wall),
                info.plural
            ),
        }),
    }
}

/// One, by its name or its id.
pub(super) async fn fetch(
    cx: &Cx,
    by: &Caller,
    info: &'static KindInfo,
    name: &str,
) -> Result<Resource, Fault> {
    walled(cx, by, info)?;
    match info.name {
        "session" => {
            let id = match name.parse::<SessionId>() {
                Ok(id) => id,
                Err(_) => {
                    // The newest of that name: of those that have not ended there is one at most.
                    let is = Some(NameFilter::Is(name.to_owned()));
                    let query = SessionQuery { name: is, ..SessionQuery::default() };
                    let page = Page { after: None, limit: 1 };
                    let rows = cx.engine.session_list(by, query, page).await?;
                    rows.first().map(|row| row.id).ok_or_else(|| missing(info, name))?
                }
            };
            let row = cx.engine.session_fetch(by, id).await?;
            let mut shown = sessions(cx, vec![row]).await?;
            shown.pop().ok_or_else(|| missing(info, name))
        }
        "agent" => {
            let agent = cx.engine.agent_fetch(by, name).await?;
            Ok(agent_shown(cx, agent))
        }
        "memory" => {
            let id = name.parse::<MemoryId>().map_err(|_| missing(info, name))?;
            let item = cx.engine.memory_fetch(by, id).await?;
            Ok(memory_shown(cx, item))
        }
        _ => {
            let mut after = None;
            loop {
                let selector = Selector::default();
                let wish = Wish { selector: &selector, owner: None, after, limit: 1000 };
                let (found, next) = list(cx, by, info, wish).await?;
                if let Some(one) = found.into_iter().find(|one| one.metadata.name == name) {
                    return Ok(one);
                }
                after = Some(next.ok_or_else(|| missing(info, name))?);
            }
        }
    }
}

fn in_colony(mut shown: Resource, colony: String) -> Resource {
    shown.metadata.colony = colony;
    shown
}

fn agent_shown(cx: &Cx, agent: overmind_core::agent::Agent) -> Resource {
    let colony = cx.engine.colony_name(agent.colony);
    in_colony(Resource::of_agent(&Agent::from(agent)), colony)
}

fn memory_shown(cx: &Cx, item: overmind_core::memory::MemoryItem) -> Resource {
    let colony = cx.engine.colony_name(item.colony);
    in_colony(Resource::of_memory(&MemoryItem::from(item)), colony)
}

fn missing(info: &KindInfo, name: &str) -> Fault {
    let shown: String = name.chars().take(60).collect();
    EngineError::NotFound { message: format!("there is no {}/{shown}", info.name) }.into()
}

/// Says of a project whether what its file orders was confirmed, to who may read that: admins.
pub(super) async fn trust(cx: &Cx, by: &Caller, record: &mut Record) {
    if record.key.kind.as_str() != PROJECT.name {
        return;
    }
    let Some((path, _)) = project::read(record) else { return };
    let word = match cx.engine.project_trust(by, &path).await {
        Ok(trust) if trust.orders.is_empty() => "nothing to trust",
        Ok(trust) if trust.confirmed().is_some() => "trusted",
        Ok(trust) if trust.given.is_some() => "changed",
        Ok(_) => "needed",
        Err(EngineError::Forbidden { .. }) => return,
        Err(_) => "unreadable",
    };
    if let Some(status) = record.status.as_object_mut() {
        status.insert("trust".to_owned(), word.into());
    }
}

/// Sessions with the names of their agents.
pub(super) async fn sessions(cx: &Cx, rows: Vec<SessionRow>) -> Result<Vec<Resource>, EngineError> {
    let agents: Vec<_> = rows.iter().map(|row| row.agent).collect();
    let names: HashMap<_, _> = cx.engine.agent_names(&agents).await?;
    let shown = |row: SessionRow| {
        let agent_name = names.get(&row.agent).cloned();
        let colony = cx.engine.colony_name(row.colony);
        in_colony(Resource::of_run(&Run { agent_name, ..row.into() }), colony)
    };
    Ok(rows.into_iter().map(shown).collect())
}

/// The message that a session no longer exists.
pub(super) fn gone(info: &KindInfo, id: SessionId, at: u64) -> ResourceGone {
    ResourceGone {
        kind: kind_title(info.name),
        name: id.to_string(),
        uid: id.to_string(),
        resource_version: at.to_string(),
    }
}
