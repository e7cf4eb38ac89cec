//! `docs/pictures`: what the documentation shows of the dashboard, from a real browser.

use anyhow::{Context, Result};

use crate::counterparts;
use crate::host::Host;
use crate::steps::succeed;

/// Pictures of the documentation: a page in one of its looks.
const SHOWN: &[&str] =
    &["now-light", "now-dark", "now-phone", "changes-light", "timeline-light", "fleet-light"];

/// Takes a picture of every page of the scene, and writes those that the documentation shows.
///
/// # Errors
///
/// When the browser is missing, a page has a fault, or a picture cannot be written.
pub fn take(host: &Host) -> Result<()> {
    let modules = counterparts::of_chromium(host)?;
    let all = host.target.join("shots");
    std::fs::create_dir_all(&all).with_context(|| format!("making {}", all.display()))?;
    let mut tests = host.cargo();
    tests.args(["nextest", "run", "--locked", "-p", "overmind-e2e", "-p", "overmind"]);
    tests.args(["-E", "test(the_pages_of_a_busy_morning)"]);
    succeed(tests.env("OVERMIND_TEST_CHROMIUM", modules).env("OVERMIND_TEST_SHOTS", &all))?;
    let shown = host.root.join("docs/pictures");
    std::fs::create_dir_all(&shown).with_context(|| format!("making {}", shown.display()))?;
    for name in SHOWN {
        let file = format!("{name}.png");
        std::fs::copy(all.join(&file), shown.join(&file))
            .with_context(|| format!("copying {file}"))?;
    }
    Ok(())
}
