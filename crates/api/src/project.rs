//! Commands and rights that projects request, and an admin's confirmation of them.

use std::path::PathBuf;

use overmind_core::room::trust;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::problem::FieldError;

/// Longest path of a project, in bytes.
const PATH_BYTES: usize = 4096;

/// The orders of a project's file, and whether they may be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProjectTrust {
    /// The project's top directory, with links resolved.
    #[cfg_attr(feature = "openapi", schema(example = "/home/ann/shop"))]
    pub project: String,
    /// BLAKE3 of its `.overmind.yml`, in hexadecimal; omitted if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The commands and rights that the file requests, one line each, in its order. If empty, no
    /// confirmation is needed.
    #[cfg_attr(feature = "openapi", schema(example = json!(["setup: npm ci"])))]
    pub orders: Vec<String>,
    /// Directories of other repositories' objects that the repository names in its
    /// `objects/info/alternates`, and that its runs can read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(example = json!(["/srv/git/shop.git/objects"])))]
    pub borrows: Vec<String>,
    /// Whether runs may execute the orders.
    pub trusted: bool,
    /// The confirmation, for the present content of the file or an earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<ProjectTrustGiven>,
}

/// An admin's confirmation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProjectTrustGiven {
    pub hash: String,
    /// Whether `setup` uses the host's network in a sandbox. Otherwise it uses the network of its
    /// run.
    pub setup_network: bool,
    pub by: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
}

impl From<trust::RoomTrust> for ProjectTrust {
    fn from(trust: trust::RoomTrust) -> Self {
        let trusted = trust.holds();
        let trust::RoomTrust { project, repository: _, hash, orders, borrows, given } = trust;
        let given = given.map(|given| {
            let trust::TrustGiven { hash, setup_network, by, at } = given;
            ProjectTrustGiven { hash, setup_network, by, at }
        });
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let (project, borrows) = (text(project), borrows.into_iter().map(text).collect());
        Self { project, hash, orders, borrows, trusted, given }
    }
}

/// Confirms what a project's file orders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProjectConfirm {
    /// An absolute path in the project.
    #[cfg_attr(feature = "openapi", schema(max_length = 4096, example = "/home/ann/shop"))]
    pub project: String,
    /// The hash of the content that the admin read.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9a-f]{64}$"))]
    pub hash: String,
    /// Lets `setup` use the host's network in sandboxes, for example to install packages.
    #[serde(default)]
    pub setup_network: bool,
}

impl ProjectConfirm {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let Some(why) = path_mistake(&self.project) {
            errors.push(FieldError::new("project", why));
        }
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if self.hash.len() != 64 || !self.hash.bytes().all(hex) {
            errors.push(FieldError::new("hash", "must be 64 hexadecimal digits in lower case"));
        }
        errors
    }
}

/// Returns why a text cannot be the path of a project.
pub fn path_mistake(path: &str) -> Option<String> {
    let odd = !path.starts_with('/') || path.contains('\0') || path.len() > PATH_BYTES;
    odd.then(|| format!("must be an absolute path of at most {PATH_BYTES} bytes"))
}

/// The result of revoking a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProjectRevoked {
    /// Whether there was a confirmation.
    pub revoked: bool,
}

/// The query for one project.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ProjectQuery {
    /// An absolute path in the project.
    pub project: String,
}
