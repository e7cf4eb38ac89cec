//! Real processes, real terminals, real kills.

mod adoption;
mod attach;
mod common;
mod figures;
mod lives;
mod logs;
mod trees;
