//! `wait --for`: waits until resources reach a state.

use std::time::Duration;

use overmind_api::{ProblemKind, Resource};
use overmind_client::{ClientError, ResourceNews};
use overmind_core::record::condition::{ConditionStatus, conditions};

use crate::args::Format;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::jsonpath::Template;
use crate::remote::Remote;
use crate::resource::{kind, split};
use crate::show;

/// The condition to wait for.
#[derive(Clone, Debug)]
pub enum Wanted {
    Condition(String, ConditionStatus),
    /// Waits until a template gives this text.
    Path(Template, String),
    Delete,
}

/// # Errors
///
/// The accepted values.
pub(crate) fn wanted(text: &str) -> Result<Wanted, String> {
    let may = || {
        "give condition=NAME, condition=NAME=False, jsonpath={.status.phase}=VALUE or delete"
            .to_owned()
    };
    if text == "delete" {
        return Ok(Wanted::Delete);
    }
    match text.split_once('=') {
        Some(("condition", rest)) if !rest.is_empty() => {
            let (name, status) = rest.split_once('=').unwrap_or((rest, "True"));
            let status = match status.to_ascii_lowercase().as_str() {
                "true" => ConditionStatus::True,
                "false" => ConditionStatus::False,
                "unknown" => ConditionStatus::Unknown,
                _ => return Err("a condition is True, False or Unknown".to_owned()),
            };
            Ok(Wanted::Condition(name.to_owned(), status))
        }
        Some(("jsonpath", rest)) => {
            let end = rest.rfind("}=").ok_or_else(may)?;
            let (path, value) = rest.split_at_checked(end + 1).ok_or_else(may)?;
            let value = value.trim_start_matches('=').to_owned();
            Ok(Wanted::Path(Template::parse(path)?, value))
        }
        Some(_) | None => Err(may()),
    }
}

impl Wanted {
    fn met(&self, one: &Resource) -> bool {
        match self {
            Self::Condition(name, status) => {
                let all = conditions(&one.status);
                all.iter().any(|one| one.kind.eq_ignore_ascii_case(name) && one.status == *status)
            }
            Self::Path(template, value) => template.render(&show::to_value(one)) == *value,
            Self::Delete => false,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Condition(name, status) => format!("{name}={status:?}"),
            Self::Path(_, value) => format!("the value `{value}`"),
            Self::Delete => "its deletion".to_owned(),
        }
    }
}

/// # Errors
///
/// When one is not there, is deleted meanwhile, or is not as wanted in time.
pub(crate) async fn wait(
    cx: &Context,
    remote: &Remote,
    words: &[String],
    wanted: &Wanted,
    limit: Option<Duration>,
) -> Outcome {
    let Some((first, rest)) = words.split_first() else {
        return Err(Failure::usage("name a resource: KIND/NAME"));
    };
    let targets: Vec<(String, String)> = if first.contains('/') {
        let mut all = Vec::new();
        for word in words {
            let (word, names) = split(word, &[])?;
            all.extend(names.into_iter().map(|name| (word.clone(), name)));
        }
        all
    } else if rest.is_empty() {
        return Err(Failure::usage(format!("which {first}?")).hint("name it: KIND/NAME"));
    } else {
        rest.iter().map(|name| (first.clone(), name.clone())).collect()
    };
    let all = async {
        for (word, name) in &targets {
            let kind = kind(remote, word).await?.name;
            let found = until(remote, &kind, name, wanted).await?;
            let reference = format!("{kind}/{name}");
            match (&found, cx.out.format) {
                (_, Format::Name) => cx.out.line(&reference)?,
                (Some(found), Format::Json | Format::Yaml) => {
                    cx.out.streamed(&show::to_value(found))?;
                }
                (Some(_), _) => cx.out.line(&format!("{reference} {} met", wanted.shown()))?,
                (None, _) => cx.out.line(&format!("{reference} deleted"))?,
            }
        }
        Ok(Exit::Done)
    };
    match limit {
        None => all.await,
        Some(limit) => match tokio::time::timeout(limit, all).await {
            Ok(done) => done,
            Err(_) => {
                let text =
                    format!("{} was not reached within {} s", wanted.shown(), limit.as_secs_f64());
                Err(Failure::failed(text))
            }
        },
    }
}

/// The resource as it is when it is as wanted; `None` when it is gone, and that was wanted.
async fn until(
    remote: &Remote,
    kind: &str,
    name: &str,
    wanted: &Wanted,
) -> Result<Option<Resource>, Failure> {
    loop {
        let found = match remote.client().resource_fetch(kind, name).await {
            Ok(found) => found,
            Err(err) if err.status() == Some(404) && matches!(wanted, Wanted::Delete) => {
                return Ok(None);
            }
            Err(err) => return Err(err.into()),
        };
        if wanted.met(&found) {
            return Ok(Some(found));
        }
        // Changes after it was read are shown: nothing is missed between the two.
        let after = found.metadata.resource_version.clone();
        let mut is_there = after.is_some();
        let mut stream = remote.client().resource_watch(kind, None, after, 10).await?;
        let ours = |uid: &str| uid == found.metadata.uid;
        while let Some(news) = stream.next().await {
            match news {
                Ok(ResourceNews::Put(one)) if ours(&one.metadata.uid) && wanted.met(&one) => {
                    return Ok(Some(*one));
                }
                Ok(ResourceNews::Put(one)) if ours(&one.metadata.uid) => is_there = true,
                // It was removed before the watch began.
                Ok(ResourceNews::Snapshot(_)) if !is_there => break,
                Ok(ResourceNews::Gone(gone)) if ours(&gone.uid) => {
                    if matches!(wanted, Wanted::Delete) {
                        return Ok(None);
                    }
                    let text = format!("{kind}/{name} was deleted");
                    return Err(Failure::new(Exit::NotFound, text));
                }
                Ok(_) => {}
                // Too many changes happened meanwhile: the list is read again.
                Err(ClientError::Refused(problem))
                    if problem.known_kind() == Some(ProblemKind::Gone) =>
                {
                    break;
                }
                Err(err) => return Err(err.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_conditions_are_parsed_as_in_kubectl() {
        assert!(matches!(wanted("condition=Complete").unwrap(),
            Wanted::Condition(name, ConditionStatus::True) if name == "Complete"));
        assert!(matches!(
            wanted("condition=Ready=false").unwrap(),
            Wanted::Condition(_, ConditionStatus::False)
        ));
        assert!(matches!(wanted("jsonpath={.status.phase}=idle").unwrap(),
            Wanted::Path(_, value) if value == "idle"));
        assert!(matches!(wanted("delete").unwrap(), Wanted::Delete));
        for bad in ["", "complete", "condition=", "condition=A=maybe", "jsonpath=.status", "create"]
        {
            assert!(wanted(bad).is_err(), "{bad}");
        }
    }
}
