//! From a web page to Markdown that a model can read.
//!
//! [`to_markdown`] parses the page as a browser does, drops what a reader would not see, and
//! writes the rest as Markdown. Text that a page hides is not shown to people, so it is there for
//! machines: the classic place of an instruction to an agent. Dropped are scripts, styles,
//! templates, forms' controls, comments, elements that are hidden by attribute (`hidden`,
//! `aria-hidden`, an inline style that hides), by a plain rule of the page's own style sheets
//! (one class, id or element name), and characters without a shape.
//!
//! What it cannot see: text hidden by a style sheet of another file, by a script, by a
//! selector of several parts, or by being as pale as its ground. The result stays untrusted.
//!
//! Bounds: [`MAX_NODES`] nodes, [`MAX_TIME`] for parsing; what is over is left out, and said.

mod dom;
mod hidden;
mod invisible;
mod markdown;

use std::time::Duration;

pub(crate) use invisible::strip;

/// Most nodes of one page.
pub(crate) const MAX_NODES: usize = 300_000;
/// Longest parsing of one page. Some pages are made to take for ever.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(2);

/// A page as Markdown.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) markdown: String,
    /// Elements that were left out because a reader would not see them.
    pub(crate) hidden_elements: usize,
    /// Characters without a shape that were left out.
    pub(crate) hidden_characters: usize,
    /// Why the end of the page is missing, if it is.
    pub(crate) cut: Option<&'static str>,
}

/// Reads a page. `base` is what its relative links start from.
///
/// Takes up to [`MAX_TIME`] of computing: not for an async thread.
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
