//! Query parameters. Unknown names are refused, as in bodies.

use serde::{Deserialize, Serialize};

use crate::{RunStatus, RunView};

/// Query of every list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ListQuery {
    /// Items per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The cursor from the `Link: <…>; rel="next"` header of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Query of `GET /api/runs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct RunListQuery {
    /// Items per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Returns only runs in one of these states, separated by commas: `queued,running`.
    #[cfg_attr(feature = "openapi", param(inline, style = Form, explode = false))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<RunStatus>,
    /// Returns only runs of this agent: its id or exact name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Returns only runs that this run started: its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Returns only runs with this name. A `*` at the end matches all names that begin so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Returns only runs with these labels: `app=web,tier!=gold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Returns only runs that this resource owns: its uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The fields of each run: `full` (the default), or `basic`, the fields for a list.
    #[cfg_attr(feature = "openapi", param(inline))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view: Option<RunView>,
}

/// Query of `POST /api/runs/{id}/cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct CancelQuery {
    /// Also cancels all runs that this run and its children started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cascade: Option<bool>,
}

/// Query of `DELETE /api/runs/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct RemoveQuery {
    /// Also discards work that nobody has decided about or whose worktree was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard: Option<bool>,
}

/// Query of `GET /api/runs/{id}/attestation`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct AttestationQuery {
    /// A program of the run's environment, as `room.attested` names it (`service db`). Default: the
    /// run's own commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// Query of `GET /api/memory`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct MemoryListQuery {
    /// Items per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Returns only items of this collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
}

/// Query of `GET /api/runs/{id}/replay`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ReplayQuery {
    /// Also streams new entries, until the run ends. `1`, `true`, `yes` and `on` mean yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
    /// Ignored; accepted for compatibility, because the server does not poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<i64>,
    /// Continues after this `id:`. The header `Last-Event-ID` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event_id: Option<String>,
}

/// Query of `GET /api/diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct DiffQuery {
    /// The id of a run.
    pub a: String,
    /// The id of another run.
    pub b: String,
}
