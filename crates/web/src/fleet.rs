//! The actions on a fleet's page: the same changes of its spec that `overmind scale` and `overmind
//! rollout` make.

use http::StatusCode;
use overmind_api::Resource;
use serde_json::{Map, Value, json};

use crate::form::Fields;
use crate::lists::time;
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Maximum number of revisions that are read; a fleet keeps fewer.
const PACKS: usize = 200;

/// Returns the packs of a fleet: one for each revision.
pub(crate) async fn packs(ask: &Ask<'_>, fleet: &Resource) -> Result<Vec<Resource>, Refusal> {
    let target = format!("/api/resources/pack?owner={}&limit={PACKS}", fleet.metadata.uid);
    ask.port.call(ask.secret, Call::get(target)).await.value()
}

/// Scales, pauses, resumes, restarts, or rolls back to a revision. `base`: the fleet's path in the
/// API.
pub(crate) async fn act(
    ask: &Ask<'_>,
    base: &str,
    verb: &str,
    fields: &Fields,
) -> Result<(), Refusal> {
    let fleet: Resource = ask.port.call(ask.secret, Call::get(base)).await.value()?;
    match verb {
        "scale" if fleet.spec.get("scale").is_some() => Err(Refusal {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            message: "the number of runs of this fleet follows its `spec.scale`: change that"
                .into(),
        }),
        "scale" => {
            let wanted = number(fields, "replicas")?;
            change(ask, base, fleet, |spec| put(spec, "replicas", json!(wanted))).await
        }
        "restart" => {
            let at = time(ask, Some(fleet.metadata.creation_timestamp)).await.to_string();
            change(ask, base, fleet, |spec| {
                if let Some(template) = spec.get_mut("template").and_then(Value::as_object_mut) {
                    template.insert("restartedAt".to_owned(), json!(at));
                }
            })
            .await
        }
        "undo" => {
            let wanted = number(fields, "revision")?;
            let packs = packs(ask, &fleet).await?;
            let is = |pack: &&Resource| {
                pack.spec.get("revision").and_then(Value::as_u64) == Some(wanted)
            };
            let pack = packs.iter().find(is).ok_or_else(|| Refusal {
                status: StatusCode::NOT_FOUND,
                message: format!("this fleet has no revision {wanted} any more"),
            })?;
            let template = pack.spec.get("template").cloned().unwrap_or(Value::Null);
            change(ask, base, fleet, |spec| put(spec, "template", template.clone())).await
        }
        "pause" => change(ask, base, fleet, |spec| put(spec, "paused", json!(true))).await,
        "resume" => change(ask, base, fleet, |spec| drop(spec.remove("paused"))).await,
        _ => Err(Refusal {
            status: StatusCode::NOT_FOUND,
            message: format!("`{verb}` is not an action of a fleet"),
        }),
    }
}

fn put(spec: &mut Map<String, Value>, key: &str, value: Value) {
    spec.insert(key.to_owned(), value);
}

fn number(fields: &Fields, name: &str) -> Result<u64, Refusal> {
    let text = fields.get(name);
    text.parse().map_err(|_| Refusal {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        message: format!("`{name}` must be a whole number, not `{text}`"),
    })
}

/// Changes the spec of a resource. If its status was written meanwhile, the change is repeated on
/// the new version.
///
/// # Errors
///
/// Returns the refusal of the API.
pub(crate) async fn change(
    ask: &Ask<'_>,
    base: &str,
    mut resource: Resource,
    set: impl Fn(&mut Map<String, Value>),
) -> Result<(), Refusal> {
    for further in 0.. {
        if let Some(spec) = resource.spec.as_object_mut() {
            set(spec);
        }
        let meta = &resource.metadata;
        let body = json!({"apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"name": meta.name, "labels": meta.labels,
                "annotations": meta.annotations, "resourceVersion": meta.resource_version},
            "spec": resource.spec});
        match ask.port.call(ask.secret, Call::put(base, body)).await.check() {
            Err(refusal) if refusal.status == StatusCode::CONFLICT && further < 5 => {
                resource = ask.port.call(ask.secret, Call::get(base)).await.value()?;
            }
            done => return done,
        }
    }
    Ok(())
}
