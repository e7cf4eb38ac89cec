//! The effects of the built-in tools on their arguments. The policy, the canaries and the views of calls
//! read it here. A tool of an MCP server has no row: it may do anything.

/// The paths that a file tool is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// The path in this argument, which is required.
    Of(&'static str),
    /// The path in this argument, or the workspace.
    OrWorkspace(&'static str),
    /// The path in this argument, if there is one.
    IfGiven(&'static str),
    /// The path in the second name, of each object in the first argument, a required list.
    Each(&'static str, &'static str),
}

/// The objects that a tool reads or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touches {
    /// Only Overmind itself. The permission matrix decides what it may reach there.
    Overmind,
    Reads(Paths),
    Writes(Paths),
    /// The host of the URL in this argument.
    Host(&'static str),
    /// Everything that the command in its arguments does.
    Command,
}

/// The destination of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// They stay in the workspace, in the memory, or with the operators.
    Inside,
    /// They are a command.
    Command,
    /// Somebody else gets them: another agent, or a host.
    Outside,
}

/// The traits of one built-in tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolTraits {
    pub name: &'static str,
    pub touches: Touches,
    pub carries: Carries,
    /// The argument that describes a call best; `None` if no single one does.
    pub headline: Option<&'static str>,
}

const fn row(
    name: &'static str,
    touches: Touches,
    carries: Carries,
    headline: Option<&'static str>,
) -> ToolTraits {
    ToolTraits { name, touches, carries, headline }
}

const fn mesh(name: &'static str) -> ToolTraits {
    row(name, Touches::Overmind, Carries::Outside, None)
}

/// All built-in tools.
pub const TRAITS: &[ToolTraits] = &[
    row("run_shell", Touches::Command, Carries::Command, Some("command")),
    row("run_command", Touches::Command, Carries::Command, Some("program")),
    row("read_file", Touches::Reads(Paths::Of("path")), Carries::Inside, Some("path")),
    row("list_files", Touches::Reads(Paths::OrWorkspace("path")), Carries::Inside, Some("path")),
    row("write_file", Touches::Writes(Paths::Of("path")), Carries::Inside, Some("path")),
    row("edit_file", Touches::Writes(Paths::Of("path")), Carries::Inside, Some("path")),
    row("verify", Touches::Reads(Paths::Each("checks", "path")), Carries::Inside, None),
    row("http_request", Touches::Host("url"), Carries::Outside, Some("url")),
    row("web_fetch", Touches::Host("url"), Carries::Outside, Some("url")),
    row("store_memory", Touches::Overmind, Carries::Inside, Some("text")),
    row("search_memory", Touches::Overmind, Carries::Inside, Some("query")),
    row("ask_user", Touches::Overmind, Carries::Inside, Some("message")),
    row("final_answer", Touches::Overmind, Carries::Inside, Some("message")),
    row("save_artifact", Touches::Reads(Paths::IfGiven("path")), Carries::Outside, None),
    mesh("list_artifacts"),
    mesh("read_artifact"),
    mesh("ask_people"),
    mesh("cost_left"),
    mesh("list_agents"),
    mesh("list_shared_state"),
    mesh("publish_event"),
    mesh("read_agent_history"),
    mesh("read_answer"),
    mesh("read_messages"),
    mesh("read_shared_state"),
    mesh("send_message"),
    mesh("spawn_agent"),
    mesh("subscribe_event"),
    mesh("write_shared_state"),
];

/// Returns the traits of a tool; `None` if it is not built in.
pub fn traits(tool: &str) -> Option<&'static ToolTraits> {
    TRAITS.iter().find(|row| row.name == tool)
}

/// Returns whether a tool's arguments are a command.
pub fn is_command(tool: &str) -> bool {
    traits(tool).is_some_and(|row| row.carries == Carries::Command)
}
