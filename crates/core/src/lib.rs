//! The lowest crate: ids, vocabulary, pure state machines, and the ports that adapters implement.
//!
//! It uses no tokio, files, sockets, clock or randomness: time and ids are arguments, and nothing
//! here can fail for an outside reason. Only types that are stored in the log derive `serde`
//! traits, because this crate defines the format of log payloads. Types that cross the network to
//! users are in `api`.

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
pub mod shell_word;
pub mod store;
pub mod telemetry;
pub mod time;
pub mod tool;
pub mod tool_source;
pub mod tool_traits;
pub mod trace;
pub mod vault;

/// A boxed future. Ports are `dyn`, and one box per call costs nothing compared with the call.
pub type Fut<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
