//! The dashboard: pages over the view models of `overmind-view`, served by the server itself.
//!
//! It is a client of the API inside the process. A page knows the [`Port`] and nothing else of the
//! server: what it shows it reads by the API, and what a form does it does by the API, with the
//! identity of whoever signed in. So roles, limits and masking are decided in one place.
//!
//! ```text
//! request → page or form? → cookie → visitor → (form: CSRF token) → API calls → view model → HTML
//! ```
//!
//! * Every page reads and every form works without JavaScript. `assets/app.js` adds live updates
//!   and keys.
//! * Text of agents is text: templates escape it, view models have cleaned it, and the policy of
//!   the pages ([`POLICY`]) allows no inline script or style.
//! * The cookie holds a key that was minted for this sign-in. Nothing else is kept between requests.
//!
//! Where to start: [`answer`]; `sections.rs` is the list that the navigation is made from.

mod agents;
mod assets;
mod costs;
mod fleet;
mod form;
#[cfg(test)]
mod hostile;
mod lists;
mod login;
mod memory;
mod mesh;
mod now;
mod page;
mod port;
mod resources;
mod run;
mod run_pages;
mod sections;
mod settings;
mod settings_admin;
mod site;
mod start;

pub use page::POLICY;
pub use port::{Call, Fut, Pass, Port, Refusal, Reply, SignIn, Visitor};
pub use site::{Answer, Incoming, answer, is_stray, serves};
