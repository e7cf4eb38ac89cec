//! Kills many runs with one request.

use overmind_core::ids::SessionId;
use serde::{Deserialize, Serialize};

use crate::problem::{FieldError, Problem};
use crate::run::RunBasic;

/// Maximum number of runs that one request may kill.
pub const MAX_KILL_BATCH: usize = 1000;

/// Body of `POST /api/runs/kill`: either `ids`, or `all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunsKill {
    /// The runs, at most 1,000, each once. A run without a command is cancelled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, max_items = 1000))]
    pub ids: Vec<SessionId>,
    /// Kills all runs whose command is running or will run, except idle runs. Each request handles 1,000 of them,
    /// newest first. If the answer has a `next`, there are more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// With `all`: continues after this run, the `next` of the previous answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub after: Option<SessionId>,
    /// Cancels the runs and all runs that they started, children first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cascade: bool,
}

impl RunsKill {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        match (self.all, self.ids.len()) {
            (true, 0) => {}
            (true, _) => errors.push(FieldError::new("ids", "give ids or all, not both")),
            (false, 1..=MAX_KILL_BATCH) => {}
            (false, _) => {
                let message = format!("must name 1 to {MAX_KILL_BATCH} runs, unless all is given");
                errors.push(FieldError::new("ids", message));
            }
        }
        if self.after.is_some() && !self.all {
            errors.push(FieldError::new("after", "belongs to all"));
        }
        errors
    }
}

/// The results for the runs of a kill request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunsKilled {
    /// Whether the end of each run was recorded. A run ends when its processes have ended.
    pub ok: bool,
    /// The results, in the order of the request's `ids`; with `all`, newest first.
    pub results: Vec<RunKilled>,
    /// With `all`: the `after` of the next request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub next: Option<SessionId>,
}

/// The result for one run: the current `run`, or the reason why it was not killed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunKilled {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: SessionId,
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunBasic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_request_names_runs_or_all_but_not_both() {
        let ids = |count: u128| (0..count).map(SessionId::from_u128).collect::<Vec<_>>();
        let named = |count| RunsKill { ids: ids(count), ..RunsKill::default() };
        let all = RunsKill { all: true, ..RunsKill::default() };
        let after = Some(SessionId::from_u128(1));
        for good in [
            named(1),
            named(1000),
            RunsKill { cascade: true, ..named(2) },
            all.clone(),
            RunsKill { after, ..all.clone() },
        ] {
            assert_eq!(good.check(), [], "{good:?}");
        }
        for (bad, field) in [
            (named(0), "ids"),
            (named(1001), "ids"),
            (RunsKill { all: true, ..named(1) }, "ids"),
            (RunsKill { after, ..named(1) }, "after"),
        ] {
            let fields: Vec<String> = bad.check().into_iter().map(|error| error.field).collect();
            assert_eq!(fields, [field], "{bad:?}");
        }
    }
}
