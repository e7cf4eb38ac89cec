//! What a tool call would do, and whether a policy lets it: allow, ask, deny.
//!
//! [`Policy::parse`] reads a policy file and [`Policy::default`] is the built-in one;
//! [`PolicyGate`] is the port [`overmind_core::gate::Gate`] around the policy that holds now.
//! [`propose`] and [`group_key`] spare humans questions; [`explain`] and [`test_records`] are dry
//! runs.
//!
//! Nothing here runs a command, reads a file, asks anybody or waits. What is judged is text: a link
//! that leads out of the workspace, a program that is not what its name says, code of the project
//! that does harm are not seen here. The sandbox is what holds then.

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
