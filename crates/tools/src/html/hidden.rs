//! Finds the parts of a page that are not visible.

use std::collections::HashSet;

use super::dom::{Element, Kind, Tree};

/// Elements without readable content.
const NEVER_SHOWN: [&str; 22] = [
    "head", "script", "style", "noscript", "template", "iframe", "object", "embed", "applet",
    "canvas", "svg", "math", "audio", "video", "select", "option", "datalist", "button", "input",
    "textarea", "dialog", "noframes",
];
/// Maximum number of bytes of style sheets that are searched, and of rules that are kept.
const MAX_STYLE_BYTES: usize = 256 << 10;
const MAX_RULES: usize = 4096;

/// The elements that the page's own style sheets hide.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    classes: HashSet<String>,
    ids: HashSet<String>,
    names: HashSet<String>,
}

impl Hidden {
    pub(super) fn of(tree: &Tree) -> Self {
        let mut this = Self::default();
        let mut left = MAX_STYLE_BYTES;
        for id in tree.ids() {
            if let Kind::Element(element) = tree.kind(id)
                && &*element.name == "style"
            {
                let text = tree.text(id);
                let text = &text[..text.floor_char_boundary(left)];
                left -= text.len();
                this.read(text);
            }
        }
        this
    }

    /// Reads the hiding rules of one style sheet, if their selector is one name.
    fn read(&mut self, css: &str) {
        let css = without_comments(css);
        let mut css = css.as_str();
        // Rules in `@media` and similar blocks apply only sometimes and are skipped.
        while let Some(open) = css.find('{') {
            let selectors = css[..open].rsplit([';', '}']).next().unwrap_or_default().trim();
            let body = &css[open + 1..];
            // A rule that is never closed ends with its style sheet.
            let end = body.find(['{', '}']).unwrap_or(body.len());
            if body[end..].starts_with('{') {
                css = after_block(body);
                continue;
            }
            if hides(&body[..end]) {
                for selector in selectors.split(',').map(str::trim) {
                    self.add(selector);
                }
            }
            css = body.get(end + 1..).unwrap_or_default();
        }
    }

    fn add(&mut self, selector: &str) {
        if self.classes.len() + self.ids.len() + self.names.len() >= MAX_RULES {
            return;
        }
        let plain = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
        };
        match selector.split_at_checked(1) {
            Some((".", name)) if plain(name) => self.classes.insert(name.to_owned()),
            Some(("#", name)) if plain(name) => self.ids.insert(name.to_owned()),
            _ if plain(selector) => self.names.insert(selector.to_ascii_lowercase()),
            _ => false,
        };
    }

    /// Whether a reader would not see this element; also `true` for elements without readable
    /// content.
    pub(super) fn hides(&self, element: &Element) -> bool {
        let name = &*element.name;
        let class = || element.attribute("class").unwrap_or_default().split_ascii_whitespace();
        NEVER_SHOWN.contains(&name)
            || element.attribute("hidden").is_some()
            || element.attribute("inert").is_some()
            || element.attribute("aria-hidden").is_some_and(|v| v.eq_ignore_ascii_case("true"))
            || element.attribute("style").is_some_and(hides)
            || self.names.contains(name)
            || element.attribute("id").is_some_and(|id| self.ids.contains(id))
            || class().any(|class| self.classes.contains(class))
    }

    /// Whether an element was hidden from readers, instead of having no readable content.
    pub(super) fn is_suspect(element: &Element) -> bool {
        !NEVER_SHOWN.contains(&&*element.name)
    }
}

fn without_comments(css: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(css.len()), css);
    while let Some((before, after)) = rest.split_once("/*") {
        out.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out
}

/// The text after the block that was just opened.
fn after_block(css: &str) -> &str {
    let mut depth = 1_usize;
    for (at, byte) in css.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &css[at + 1..];
        }
    }
    ""
}

/// Whether declarations hide an element.
fn hides(declarations: &str) -> bool {
    let mut far = false;
    for declaration in declarations.split(';') {
        let Some((name, value)) = declaration.split_once(':') else { continue };
        let value = value.to_ascii_lowercase();
        let value = value.split('!').next().unwrap_or_default().trim();
        match name.trim().to_ascii_lowercase().as_str() {
            "display" if value == "none" => return true,
            "visibility" if matches!(value, "hidden" | "collapse") => return true,
            "content-visibility" if value == "hidden" => return true,
            "opacity" | "font-size" if nothing(value) => return true,
            "color" | "-webkit-text-fill-color" if value == "transparent" => return true,
            "clip" if value.starts_with("rect(") => far |= value.matches('0').count() >= 3,
            "clip-path" if value.starts_with("inset(50%") || value.starts_with("inset(100%") => {
                return true;
            }
            "left" | "top" | "right" | "bottom" | "text-indent" | "margin-left" | "margin-top" => {
                far |= value.strip_prefix('-').is_some_and(|v| number(v) >= Some(900.0));
            }
            _ => {}
        }
    }
    far
}

fn nothing(value: &str) -> bool {
    number(value) == Some(0.0)
}

/// The number at the beginning of a length or a percentage.
fn number(value: &str) -> Option<f64> {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    value[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hiding_style_declarations_are_recognised() {
        for (css, wanted) in [
            ("display:none", true),
            ("Color: red; DISPLAY : None !important", true),
            ("visibility: hidden", true),
            ("opacity:0", true),
            ("opacity:0.5", false),
            ("font-size: 0px", true),
            ("font-size:10px", false),
            ("position:absolute; left:-9999px", true),
            ("margin-left:-10px", false),
            ("color: transparent", true),
            ("clip: rect(0 0 0 0)", true),
            ("display:block", false),
            ("", false),
        ] {
            assert_eq!(hides(css), wanted, "{css}");
        }
    }

    #[test]
    fn the_pages_own_rules_hide_elements_by_class_id_and_name() {
        let mut hidden = Hidden::default();
        hidden.read(
            "/* .not{display:none} */ @import url(x); .a, p.b, #c { display: none } \
             .shown{color:red} @media print { .d { display:none } .e{} } aside{visibility:hidden} \
             @media screen{.f{opacity:0}} .g{display:none",
        );
        let set = |names: &HashSet<String>| {
            let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
            all.sort_unstable();
            all.join(" ")
        };
        assert_eq!(set(&hidden.classes), "a g");
        assert_eq!(set(&hidden.ids), "c");
        assert_eq!(set(&hidden.names), "aside");
    }
}
