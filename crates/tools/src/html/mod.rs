//! Converts a web page to Markdown that a model can read.
//!
//! [`to_markdown`] parses the page as a browser does, drops what a reader would not see, and writes
//! the rest as Markdown. Hidden text is invisible to people, so it is meant for machines: the
//! classic place for an instruction to an agent. These are dropped: scripts, styles, templates,
//! form controls, comments, elements hidden by attribute (`hidden`, `aria-hidden`, an inline style)
//! or by a simple rule of the page's own style sheets (one class, id or element name), and
//! invisible characters.
//!
//! It cannot detect text that is hidden by an external style sheet, by a script, by a selector with
//! several parts, or by a text color equal to the background. The result stays untrusted.
//!
//! Limits are [`MAX_NODES`] nodes and [`MAX_TIME`] for parsing; the rest is dropped and reported.

mod dom;
mod hidden;
mod invisible;
mod markdown;

use std::time::Duration;

pub(crate) use invisible::strip;

/// Maximum number of nodes of one page.
pub(crate) const MAX_NODES: usize = 300_000;
/// The longest time for parsing one page. Some pages are designed to take forever.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(2);

/// A page converted to Markdown.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) markdown: String,
    /// The number of elements that were dropped because a reader would not see them.
    pub(crate) hidden_elements: usize,
    /// The number of invisible characters that were dropped.
    pub(crate) hidden_characters: usize,
    /// Why the end of the page is missing, if it is.
    pub(crate) cut: Option<&'static str>,
}

/// Converts a page. `base` is the base of its relative links.
///
/// It takes up to [`MAX_TIME`] of computing, so do not call it on an async thread.
pub(crate) fn to_markdown(html: &str, base: &reqwest::Url) -> Page {
    let (tree, cut) = dom::parse(html, MAX_NODES, MAX_TIME);
    let mut page = markdown::render(&tree, base);
    page.cut = cut;
    let (title, in_title) = strip(&page.title);
    let (text, in_text) = strip(&page.markdown);
    (page.title, page.markdown) = (title, text);
    page.hidden_characters = in_title + in_text;
    page
}
