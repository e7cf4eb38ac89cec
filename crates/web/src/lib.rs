//! The dashboard: pages for the view models of `overmind-view`, served by the server itself.
//!
//! It is an API client inside the server process. A page uses only the [`Port`]: it reads its data
//! through the API, and forms call the API with the identity of the person who signed in. So roles,
//! limits and masking are implemented in one place.
//!
//! ```text
//! request → page or form? → cookie → visitor → (form: CSRF token) → API calls → view model → HTML
//! ```
//!
//! * Every page is readable and every form works without JavaScript. `assets/app.js` adds live
//!   updates and keyboard shortcuts.
//! * Text of agents is never markup: view models clean it, templates escape it, and the content
//!   security policy of the pages ([`POLICY`]) allows no inline script or style.
//! * The cookie contains a key that was created for this sign-in. No other state is kept between
//!   requests.
//!
//! Where to start: [`answer`]. `sections.rs` contains the list of the sections in the navigation.

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
