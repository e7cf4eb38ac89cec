//! View models: the data of each page for people, made from the types of the API.
//!
//! A view model contains finished text in reading order, with the meaning of each part ([`Tone`]).
//! It knows no HTML, no terminal and no style: a page or a table decides how a tone looks. Every
//! text from agents in it has been cleaned by [`clean`].
//!
//! No I/O and no clock: the current time is an argument.

mod agent;
mod changes;
pub mod clean;
mod costs;
pub mod documents;
mod fleet;
mod health;
mod lists;
mod log;
mod memory;
mod mesh;
mod now;
mod parts;
mod resource;
mod run;
mod settings;
mod terminal;
mod timeline;
mod when;
pub mod yaml;

pub use agent::{AgentPage, VersionRow};
pub use changes::{ChangedFile, Changes, Row, Side};
pub use costs::{Bar, BudgetRow, CostChart, CostsPage};
pub use fleet::{FleetPanel, Revision};
pub use health::{CheckRow, HealthData, HealthPage, LoopRow};
pub use lists::{AgentRow, AgentsPage, RunRow, RunsPage};
pub use log::{ArtifactRow, Compared, LogRow, StepView, Verdict, bytes};
pub use memory::MemoryRow;
pub use mesh::{
    BoardRow, BoardValue, KeyChange, KeyHistory, LetterRow, MayRow, MeshAgentRow, tree,
};
pub use now::{Answer, Card, FOLDED, Fold, Group, Item, Now, NowData};
pub use parts::{Pill, Tone, error_text, headline, main_argument, money, status, thousands};
pub use resource::{
    ConditionRow, KindRow, OwnedRow, Recurring, ResourcePage, ResourceRow, ResourceTable,
};
pub use run::{Fact, RunPage};
pub use settings::{
    ExplainedAction, ExplainedCall, KeyRow, KeysPage, PolicyRow, ProviderRow, SecretRow, ServerRow,
    ToolRow, vault,
};
pub use terminal::TerminalPanel;
pub use timeline::{Entry, Mark, Story, story};
pub use when::{When, elapsed, span};
