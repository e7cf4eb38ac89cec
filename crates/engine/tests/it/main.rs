//! The engine over the real SQLite store, with tools and models that do what each test says.

mod artifacts;
mod attested;
mod budgets;
mod canaries;
mod enclosed;
mod fleets;
mod gate;
mod humans;
mod inbox;
mod kills;
mod lapses;
mod live;
mod loops;
mod mesh;
mod names;
mod orders;
mod records;
mod recovery;
mod registry;
mod replays;
mod rests;
mod rituals;
mod rooms;
mod runs;
mod vault;
mod world;
