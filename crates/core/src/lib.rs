//! The ground floor: ids, vocabulary, pure state machines, and the ports that adapters fill.
//!
//! No tokio, no files, no sockets, no clock, no randomness: time and ids are arguments, and
//! nothing here can fail for a reason outside. `serde` appears only for what stands in the log
//! (its payloads are this crate's own format); what crosses the network to users is in `api`.

use std::future::Future;
use std::pin::Pin;

pub mod acl;
pub mod agent;
pub mod approval;
pub mod artifact;
pub mod attest;
pub mod budget;
pub mod bus;
pub mod canary;
pub mod command;
pub mod conflict;
pub mod effect;
pub mod enclosure;
pub mod encoded;
pub mod failpoint;
pub mod fleet;
pub mod gate;
pub mod ids;
pub mod imports;
pub mod inbox;
pub mod json;
pub mod live;
pub mod loops;
pub mod masking;
pub mod memory;
pub mod mesh;
pub mod model;
pub mod name;
pub mod nearest;
pub mod objects;
pub mod off_limits;
pub mod piped;
pub mod policy;
pub mod process;
pub mod quest;
pub mod queue;
pub mod record;
pub mod relay;
pub mod replay;
pub mod retry;
pub mod ritual;
pub mod room;
pub mod row;
pub mod sandbox;
pub mod schedule;
pub mod secret_file;
pub mod session;
pub mod store;
pub mod telemetry;
pub mod time;
pub mod tool;
pub mod tool_source;
pub mod trace;
pub mod vault;

/// A boxed future: ports are `dyn`, and a box per call costs nothing next to the call.
pub type Fut<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
