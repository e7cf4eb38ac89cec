//! What may stand after the `?`. Unknown names are refused, as in bodies.

use serde::{Deserialize, Serialize};

use crate::{RunStatus, RunView};

/// Of every list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ListQuery {
    /// Items per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where to go on: the cursor in the last page's `Link: <…>; rel="next"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Of `GET /api/runs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct RunListQuery {
    /// Items per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only runs that stand at one of these, separated by commas: `queued,running`.
    #[cfg_attr(feature = "openapi", param(inline, style = Form, explode = false))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<RunStatus>,
    /// Only runs of this agent: its id or exact name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Only runs that were started for this one: its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Only runs of this name, or with a `*` at its end of names that begin so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only runs with these labels: `app=web,tier!=gold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Only runs that were started for this resource: its uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How much of each: `full`, as where nothing is said, or `basic`, which is what a list shows.
    #[cfg_attr(feature = "openapi", param(inline))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view: Option<RunView>,
}

/// Of `POST /api/runs/{id}/cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct CancelQuery {
    /// Also all runs that were started for it, and for those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cascade: Option<bool>,
}

/// Of `DELETE /api/runs/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct RemoveQuery {
    /// Throw away work that nobody has decided about, or whose worktree was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard: Option<bool>,
}

/// Of `GET /api/runs/{id}/attestation`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct AttestationQuery {
    /// A program of the run's environment, as `room.attested` names it (`service db`); not given: the run's
    /// own commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// Of `GET /api/memory`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct MemoryListQuery {
    /// Items per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only this collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
}

/// Of `GET /api/runs/{id}/replay`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ReplayQuery {
    /// Stay and stream what is added, until the run ends. `1`, `true`, `yes` and `on` are yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
    /// Taken for compatibility and without effect: nothing polls here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<i64>,
    /// Resume after this `id:`; the header `Last-Event-ID` wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event_id: Option<String>,
}

/// Of `GET /api/diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct DiffQuery {
    /// A run's id.
    pub a: String,
    /// Another run's id.
    pub b: String,
}
