//! The list of sections, from which the navigation is made.

use overmind_api::Role;

/// A section of the dashboard. To add one, add a line to [`SECTIONS`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) path: &'static str,
    /// The key that opens it after `g`.
    pub(crate) key: &'static str,
    /// Returns whether a role sees it.
    pub(crate) shown: fn(Role) -> bool,
}

pub(crate) const SECTIONS: &[Section] = &[
    Section { title: "Now", path: "/", key: "n", shown: reads },
    Section { title: "Sessions", path: "/runs", key: "s", shown: reads },
    Section { title: "Agents", path: "/agents", key: "a", shown: sees_agents },
    Section { title: "Resources", path: "/resources", key: "r", shown: sees_agents },
    Section { title: "Memory", path: "/memory", key: "m", shown: sees_agents },
    Section { title: "Mesh", path: "/board", key: "b", shown: sees_agents },
    Section { title: "Costs", path: "/costs", key: "c", shown: sees_agents },
    Section { title: "Settings", path: "/settings", key: "e", shown: sees_agents },
];

fn reads(role: Role) -> bool {
    !matches!(role, Role::Mcp | Role::Model)
}

fn sees_agents(role: Role) -> bool {
    matches!(role, Role::Viewer | Role::Operator | Role::Admin)
}
