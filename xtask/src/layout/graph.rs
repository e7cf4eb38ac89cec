//! The crate graph: the one we drew, and the one that is.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Tree;
use crate::host::Host;
use crate::steps::output;

/// Every crate of ours, and every crate of ours that it may use. A new edge is a new line here
/// and in ARCHITECTURE.md, and so a thing to argue for in review.
pub const EDGES: &[(&str, &[&str])] = &[
    ("overmind", &["overmind-cli", "overmind-node", "overmind-sandbox", "overmind-supervise"]),
    ("overmind-api", &["overmind-core"]),
    (
        "overmind-bench",
        &[
            "overmind-api",
            "overmind-cli",
            "overmind-client",
            "overmind-core",
            "overmind-engine",
            "overmind-memory",
            "overmind-node",
            "overmind-policy",
            "overmind-sandbox",
            "overmind-store",
            "overmind-supervise",
        ],
    ),
    (
        "overmind-cli",
        &[
            "overmind-api",
            "overmind-client",
            "overmind-core",
            "overmind-engine",
            "overmind-llm",
            "overmind-node",
            "overmind-policy",
            "overmind-sandbox",
            "overmind-server",
            "overmind-store",
            "overmind-tools",
            "overmind-vault",
            "overmind-view",
            "overmind-workspace",
        ],
    ),
    ("overmind-client", &["overmind-api"]),
    ("overmind-core", &[]),
    ("overmind-e2e", &[]),
    ("overmind-engine", &["overmind-core"]),
    (
        "overmind-fuzz",
        &[
            "overmind-api",
            "overmind-core",
            "overmind-llm",
            "overmind-memory",
            "overmind-policy",
            "overmind-store",
            "overmind-tools",
        ],
    ),
    ("overmind-llm", &["overmind-core"]),
    ("overmind-mcp", &["overmind-core"]),
    ("overmind-memory", &["overmind-core"]),
    (
        "overmind-node",
        &[
            "overmind-core",
            "overmind-engine",
            "overmind-llm",
            "overmind-mcp",
            "overmind-memory",
            "overmind-policy",
            "overmind-sandbox",
            "overmind-server",
            "overmind-store",
            "overmind-supervise",
            "overmind-telemetry",
            "overmind-tools",
            "overmind-vault",
            "overmind-workspace",
        ],
    ),
    ("overmind-policy", &["overmind-core"]),
    ("overmind-sandbox", &["overmind-core"]),
    ("overmind-server", &["overmind-api", "overmind-core", "overmind-engine", "overmind-web"]),
    ("overmind-store", &["overmind-core"]),
    ("overmind-supervise", &["overmind-core"]),
    ("overmind-telemetry", &["overmind-core"]),
    ("overmind-testkit", &["overmind-core"]),
    ("overmind-tools", &["overmind-core"]),
    ("overmind-vault", &["overmind-core"]),
    ("overmind-view", &["overmind-api"]),
    ("overmind-web", &["overmind-api", "overmind-view"]),
    ("overmind-workspace", &["overmind-core"]),
    ("xtask", &[]),
];

/// A package of the workspace, as cargo sees it.
#[derive(Clone, Debug)]
pub struct Package {
    pub name: String,
    /// Names of all its normal dependencies.
    pub uses: BTreeSet<String>,
    /// Names of those normal dependencies that lie in this checkout.
    pub uses_of_ours: BTreeSet<String>,
}

/// Asks cargo for the workspace's packages.
///
/// # Errors
///
/// When cargo fails, for example because a manifest is wrong.
pub fn packages(host: &Host) -> Result<Vec<Package>> {
    let json =
        output(host.cargo().args(["metadata", "--no-deps", "--format-version=1", "--offline"]))?;
    let metadata: Value = serde_json::from_slice(&json).context("reading cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    Ok(packages.iter().map(package).collect())
}

fn package(package: &Value) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // `kind` is null for a normal dependency, "dev" or "build" for the others: those two do not
    // end up in the product, and testkit may use whatever it tests with.
    let normal = || {
        let all = package["dependencies"].as_array().into_iter().flatten();
        all.filter(|dependency| dependency["kind"].is_null())
    };
    Package {
        name: text(&package["name"]),
        uses: normal().map(|dependency| text(&dependency["name"])).collect(),
        uses_of_ours: normal()
            .filter(|dependency| dependency["path"].is_string())
            .map(|dependency| text(&dependency["name"]))
            .collect(),
    }
}

/// The edges that the fenced block labelled `edges` in a Markdown text lists: `a -> b`, or `a -> b, c`.
/// `None` when there is no such block.
pub fn edges_in(markdown: &str) -> Option<BTreeSet<(String, String)>> {
    let (_, after) = markdown.split_once("\n```edges\n")?;
    let (block, _) = after.split_once("\n```")?;
    let edges = block.lines().filter(|line| !line.trim().is_empty()).flat_map(|line| {
        let (from, to) = line.split_once("->").unwrap_or((line, ""));
        let from = from.trim().to_owned();
        to.split(',').map(move |to| (from.clone(), to.trim().to_owned()))
    });
    Some(edges.collect())
}

/// The differences between the graph and `drawn`, and between `ARCHITECTURE.md` and either.
pub fn graph_problems(drawn: &[(&str, &[&str])], packages: &[Package], tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    // Equality, not "subset": a crate missing from the table, or an edge that nobody uses any
    // more, is a problem too, so that this cannot pass by seeing nothing.
    for package in packages {
        let Some((_, allowed)) = drawn.iter().find(|(name, _)| *name == package.name) else {
            problems.push(format!("crate graph: `{}` is not in the table of edges", package.name));
            continue;
        };
        let allowed: BTreeSet<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        for used in package.uses_of_ours.difference(&allowed) {
            problems.push(format!("crate graph: {} -> {used} is not drawn", package.name));
        }
        for unused in allowed.difference(&package.uses_of_ours) {
            problems
                .push(format!("crate graph: {} -> {unused} is drawn but not used", package.name));
        }
    }
    for (name, _) in drawn {
        if !packages.iter().any(|package| package.name == *name) {
            problems.push(format!("crate graph: `{name}` is drawn but does not exist"));
        }
    }

    let found: BTreeSet<(String, String)> = packages
        .iter()
        .flat_map(|from| from.uses_of_ours.iter().map(|to| (from.name.clone(), to.clone())))
        .collect();
    match tree.get("ARCHITECTURE.md").and_then(|file| edges_in(&file.text)) {
        None => problems.push("ARCHITECTURE.md: no fenced block labelled `edges`".to_owned()),
        Some(told) => {
            for (from, to) in found.difference(&told) {
                problems.push(format!("ARCHITECTURE.md: the edge {from} -> {to} is missing"));
            }
            for (from, to) in told.difference(&found) {
                problems.push(format!("ARCHITECTURE.md: the edge {from} -> {to} does not exist"));
            }
        }
    }
    problems
}
