//! The gateway through its port, on real files. Only the sandbox and the memory are doubles:
//! they are ports, and their real adapters are tested in their own rooms and in the product.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod artifacts;
mod canaries;
mod command;
mod confinement;
mod egress;
mod files;
mod gateway;
mod labels;
mod memory_tools;
mod messages;
mod shell;
mod site;
mod sources;
mod support;
mod tls;
mod verify;
mod web;
