//! Finds the effects of a tool call, and decides with a policy: allow, ask, deny.
//!
//! [`Policy::parse`] reads a policy file and [`Policy::default`] is the built-in one;
//! [`PolicyGate`] implements the port [`overmind_core::gate::Gate`] with the policy in force.
//! [`propose`] and [`group_key`] reduce the questions for humans; [`explain`] and [`test_records`]
//! are dry runs.
//!
//! Nothing here runs a command, reads a file, asks anybody or waits. Only text is judged. So it
//! cannot detect a link that leads out of the workspace, a program that is not what its name says,
//! or harmful code of the project. The sandbox protects against these.

mod approvals;
mod calls;
mod dry;
mod glob;
mod holder;
mod policy;
mod shell;

pub use approvals::{NoProposal, group_key, propose};
pub use dry::{
    Explanation, RecordError, TestLine, explain, explain_command, request, test_records,
};
pub use holder::PolicyGate;
pub use policy::{Policy, PolicyError};
