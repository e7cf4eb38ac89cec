//! Writes a tree as Markdown.
//!
//! The walk has its own stack. Everything that a page could nest or repeat to make work or text
//! grow faster than the page is limited: levels of lists, tables and inline marks, the length of a
//! link, the total length.

use super::Page;
use super::dom::{Element, Kind, NodeId, Tree};
use super::hidden::Hidden;

/// Longest Markdown of one page.
const MAX_MARKDOWN_BYTES: usize = 4 << 20;
/// Maximum number of nested lists and quotes that are shown as such.
const MAX_LEVELS: usize = 12;
/// Maximum number of nested tables that are shown; the cells of a deeper one become paragraphs.
const MAX_TABLES: usize = 4;
/// Maximum number of nested inline marks (`**`, `*`, links).
const MAX_INLINE: usize = 8;
/// Longest link that is shown.
const MAX_LINK_BYTES: usize = 2000;

pub(super) fn render(tree: &Tree, base: &reqwest::Url) -> Page {
    let mut base = base.clone();
    let mut title = String::new();
    for id in tree.ids() {
        let Kind::Element(element) = tree.kind(id) else { continue };
        match &*element.name {
            "title" if title.is_empty() => title = one_line(&tree.text(id)),
            "base" => {
                if let Some(Ok(found)) = element.attribute("href").map(|href| base.join(href)) {
                    base = found;
                }
            }
            _ => {}
        }
    }
    let hidden = Hidden::of(tree);
    let mut writer = Writer { base, ..Writer::default() };
    let mut walk = vec![Walk::Enter(Tree::ROOT)];
    while let Some(step) = walk.pop() {
        match step {
            Walk::Leave(what) => writer.leave(what),
            Walk::Enter(_) if writer.is_full() => {}
            Walk::Enter(id) => match tree.kind(id) {
                Kind::Text(text) => writer.text(text),
                Kind::Element(element) if hidden.hides(element) => {
                    writer.hidden_elements += usize::from(Hidden::is_suspect(element));
                }
                Kind::Element(element) => {
                    let leave = writer.enter(tree, id, element);
                    walk.push(Walk::Leave(leave));
                    walk.extend(tree.children(id).iter().rev().map(|child| Walk::Enter(*child)));
                }
                Kind::Other => {
                    walk.extend(tree.children(id).iter().rev().map(|child| Walk::Enter(*child)));
                }
            },
        }
    }
    writer.flush();
    let full = writer.is_full();
    let mut markdown = writer.here.out;
    if full {
        markdown.truncate(markdown.floor_char_boundary(MAX_MARKDOWN_BYTES));
    }
    Page { title, markdown, hidden_elements: writer.hidden_elements, ..Page::default() }
}

enum Walk {
    Enter(NodeId),
    Leave(Leave),
}

/// The action at an element's end.
#[derive(Debug)]
enum Leave {
    Nothing,
    Block,
    Heading,
    Level,
    Pre(String),
    Mark { mark: &'static str, from: Place },
    Link { to: String, from: Place },
    Cell,
    Row,
    Table,
}

/// A position in the current paragraph.
#[derive(Clone, Copy, Debug)]
struct Place {
    paragraph: usize,
    at: usize,
}

#[derive(Debug)]
enum Level {
    Quote,
    Item { marker: String, used: bool },
}

/// Text that is being written; a table's cell has its own.
#[derive(Debug, Default)]
struct Text {
    out: String,
    paragraph: String,
    levels: Vec<Level>,
    /// Whether the last written block was in a list.
    after_item: bool,
}

#[derive(Debug, Default)]
struct Table {
    rows: Vec<Vec<String>>,
    has_head: bool,
    /// The text that continues after the cell.
    outer: Option<Text>,
}

#[derive(Debug)]
struct Writer {
    base: reqwest::Url,
    here: Text,
    /// The number of paragraphs: a mark that was opened in an earlier one is forgotten.
    paragraphs: usize,
    heading: usize,
    pre: usize,
    inline: usize,
    tables: Vec<Table>,
    /// For each open list the next number, or `None` for a bullet list.
    lists: Vec<Option<u64>>,
    hidden_elements: usize,
    /// Bytes written in total, including cells.
    bytes: usize,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            base: reqwest::Url::parse("about:blank").expect("a constant"),
            here: Text::default(),
            paragraphs: 0,
            heading: 0,
            pre: 0,
            inline: 0,
            tables: Vec::new(),
            lists: Vec::new(),
            hidden_elements: 0,
            bytes: 0,
        }
    }
}

impl Writer {
    fn is_full(&self) -> bool {
        self.bytes + self.here.paragraph.len() > MAX_MARKDOWN_BYTES
    }

    fn text(&mut self, text: &str) {
        if self.pre > 0 {
            self.here.paragraph.push_str(text);
            return;
        }
        for c in text.chars() {
            if !c.is_whitespace() || c == '\u{a0}' {
                self.here.paragraph.push(if c == '\u{a0}' { ' ' } else { c });
            } else if !self.here.paragraph.is_empty() && !self.here.paragraph.ends_with([' ', '\n'])
            {
                self.here.paragraph.push(' ');
            }
        }
    }

    fn place(&self) -> Place {
        Place { paragraph: self.paragraphs, at: self.here.paragraph.len() }
    }

    fn enter(&mut self, tree: &Tree, id: NodeId, element: &Element) -> Leave {
        match &*element.name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.flush();
                self.heading = usize::from(element.name.as_bytes()[1] - b'0');
                Leave::Heading
            }
            "br" => {
                self.here.paragraph.push('\n');
                Leave::Nothing
            }
            "hr" => {
                self.flush();
                self.block("---");
                Leave::Nothing
            }
            "img" => {
                self.image(element);
                Leave::Nothing
            }
            "pre" => {
                self.flush();
                self.pre += 1;
                Leave::Pre(language(tree, id, element))
            }
            "blockquote" => self.level(Level::Quote),
            "ul" | "menu" | "ol" => {
                self.flush();
                let start = element.attribute("start").and_then(|start| start.parse().ok());
                let numbered = &*element.name == "ol";
                self.lists.push(numbered.then(|| start.unwrap_or(1)));
                Leave::Block
            }
            "li" => {
                let marker = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number = number.saturating_add(1);
                        format!("{}. ", number.saturating_sub(1))
                    }
                    Some(None) | None => "- ".to_owned(),
                };
                self.level(Level::Item { marker, used: false })
            }
            "dd" => self.level(Level::Item { marker: ": ".into(), used: false }),
            "table" if self.tables.len() < MAX_TABLES => {
                self.flush();
                self.tables.push(Table::default());
                Leave::Table
            }
            "tr" => match self.tables.last_mut() {
                Some(table) if table.outer.is_none() => {
                    table.rows.push(Vec::new());
                    Leave::Row
                }
                Some(_) | None => self.paragraph(),
            },
            "td" | "th" => self.cell(&element.name),
            "b" | "strong" => self.mark("**"),
            "i" | "em" | "cite" | "dfn" | "var" => self.mark("*"),
            "code" | "kbd" | "samp" | "tt" => self.mark("`"),
            "del" | "s" | "strike" => self.mark("~~"),
            "a" => self.link(element),
            "address" | "article" | "aside" | "body" | "caption" | "center" | "details" | "div"
            | "dl" | "dt" | "fieldset" | "figcaption" | "figure" | "footer" | "form" | "header"
            | "hgroup" | "html" | "legend" | "main" | "nav" | "p" | "search" | "section"
            | "summary" | "tbody" | "tfoot" | "thead" | "table" => self.paragraph(),
            _ => Leave::Nothing,
        }
    }

    fn paragraph(&mut self) -> Leave {
        if self.pre == 0 {
            self.flush();
        }
        Leave::Block
    }

    fn level(&mut self, level: Level) -> Leave {
        self.flush();
        if self.here.levels.len() == MAX_LEVELS {
            return Leave::Block;
        }
        self.here.levels.push(level);
        Leave::Level
    }

    fn cell(&mut self, name: &str) -> Leave {
        let Some(table) = self.tables.last_mut().filter(|table| table.outer.is_none()) else {
            return self.paragraph();
        };
        table.has_head |= name == "th" && table.rows.len() == 1;
        table.outer = Some(std::mem::take(&mut self.here));
        self.paragraphs += 1;
        Leave::Cell
    }

    fn mark(&mut self, mark: &'static str) -> Leave {
        if self.pre > 0 || self.inline == MAX_INLINE {
            return Leave::Nothing;
        }
        self.inline += 1;
        Leave::Mark { mark, from: self.place() }
    }

    fn link(&mut self, element: &Element) -> Leave {
        let to = element.attribute("href").and_then(|href| self.shown_link(href));
        match to {
            Some(to) if self.pre == 0 && self.inline < MAX_INLINE => {
                self.inline += 1;
                Leave::Link { to, from: self.place() }
            }
            Some(_) | None => Leave::Nothing,
        }
    }

    fn shown_link(&self, href: &str) -> Option<String> {
        let href = href.trim();
        if href.is_empty() || href.starts_with('#') || href.len() > MAX_LINK_BYTES {
            return None;
        }
        let url = self.base.join(href).ok()?;
        let fits = matches!(url.scheme(), "http" | "https" | "mailto")
            && url.as_str().len() <= MAX_LINK_BYTES;
        fits.then(|| match url.as_str() {
            plain if !plain.contains(['(', ')']) => plain.to_owned(),
            other => format!("<{other}>"),
        })
    }

    fn image(&mut self, element: &Element) {
        let alt = one_line(element.attribute("alt").unwrap_or_default());
        if alt.is_empty() {
            return;
        }
        let to = element.attribute("src").and_then(|src| self.shown_link(src));
        match to {
            Some(to) => self.here.paragraph.push_str(&format!("![{alt}]({to})")),
            None => self.here.paragraph.push_str(&format!("[image: {alt}]")),
        }
    }

    fn leave(&mut self, what: Leave) {
        match what {
            Leave::Nothing | Leave::Row => {}
            Leave::Block => {
                if self.pre == 0 {
                    self.flush();
                }
            }
            Leave::Heading => {
                self.flush();
                self.heading = 0;
            }
            Leave::Level => {
                self.flush();
                self.here.levels.pop();
            }
            Leave::Pre(language) => self.leave_pre(&language),
            Leave::Mark { mark, from } => {
                self.inline -= 1;
                self.surround(from, mark, mark);
            }
            Leave::Link { to, from } => {
                self.inline -= 1;
                self.surround(from, "[", &format!("]({to})"));
            }
            Leave::Cell => {
                self.flush();
                if let Some(table) = self.tables.last_mut()
                    && let Some(outer) = table.outer.take()
                {
                    let cell = std::mem::replace(&mut self.here, outer).out;
                    if table.rows.is_empty() {
                        table.rows.push(Vec::new());
                    }
                    if let Some(row) = table.rows.last_mut() {
                        row.push(cell);
                    }
                }
            }
            Leave::Table => {
                self.flush();
                if let Some(table) = self.tables.pop() {
                    self.put_table(table);
                }
            }
        }
    }

    fn leave_pre(&mut self, language: &str) {
        self.pre -= 1;
        if self.pre > 0 {
            return;
        }
        let text = std::mem::take(&mut self.here.paragraph);
        self.paragraphs += 1;
        let text = text.trim_matches('\n').trim_end();
        if text.is_empty() {
            return;
        }
        let fence = "`".repeat((longest_run(text, '`') + 1).max(3));
        self.block(&format!("{fence}{language}\n{text}\n{fence}"));
    }

    /// Puts marks around the text since `from`, but not around white space or nothing.
    fn surround(&mut self, from: Place, open: &str, close: &str) {
        let paragraph = &mut self.here.paragraph;
        if from.paragraph != self.paragraphs || from.at > paragraph.len() {
            return;
        }
        let inner = &paragraph[from.at..];
        let trimmed = inner.trim();
        if trimmed.is_empty() {
            return;
        }
        let at = from.at + (inner.len() - inner.trim_start().len());
        let end = at + trimmed.len();
        let rest = paragraph.split_off(end);
        paragraph.insert_str(at, open);
        paragraph.push_str(close);
        if !rest.is_empty() {
            paragraph.push(' ');
        }
    }

    /// Ends the current paragraph.
    fn flush(&mut self) {
        let text = std::mem::take(&mut self.here.paragraph);
        self.paragraphs += 1;
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        match self.heading {
            0 => {
                let lines: Vec<&str> = text.split('\n').map(str::trim).collect();
                self.block(&lines.join("\n"));
            }
            n => self.block(&format!("{} {}", "#".repeat(n), one_line(text))),
        }
    }

    /// Writes one block, with the prefixes of surrounding lists and quotes before its lines.
    fn block(&mut self, text: &str) {
        let before = self.here.out.len();
        let Text { out, levels, after_item, .. } = &mut self.here;
        let starts_item =
            levels.iter().any(|level| matches!(level, Level::Item { used: false, .. }));
        if !out.is_empty() {
            out.push('\n');
            if !(starts_item && *after_item) {
                let quotes = levels.iter().take_while(|level| matches!(level, Level::Quote));
                out.push_str(">".repeat(quotes.count()).as_str());
                out.push('\n');
            }
        }
        let (mut first, mut later) = (String::new(), String::new());
        for level in levels.iter_mut() {
            match level {
                Level::Quote => {
                    first.push_str("> ");
                    later.push_str("> ");
                }
                Level::Item { marker, used } => {
                    let blank = " ".repeat(marker.len());
                    first.push_str(if *used { &blank } else { marker });
                    later.push_str(&blank);
                    *used = true;
                }
            }
        }
        for (n, line) in text.split('\n').enumerate() {
            if n > 0 {
                out.push('\n');
            }
            let prefix = if n == 0 { first.as_str() } else { later.as_str() };
            out.push_str(if line.is_empty() { prefix.trim_end() } else { prefix });
            out.push_str(line);
        }
        *after_item = levels.iter().any(|level| matches!(level, Level::Item { .. }));
        self.bytes += self.here.out.len() - before;
    }

    /// Writes a table if all cells have one line; otherwise it is layout, and its cells become
    /// paragraphs.
    fn put_table(&mut self, mut table: Table) {
        table.rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
        let columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let layout = !(2..=64).contains(&columns)
            || table.rows.iter().flatten().any(|cell| cell.contains('\n'));
        if layout {
            for cell in table.rows.into_iter().flatten().filter(|cell| !cell.is_empty()) {
                self.block(&cell);
            }
            return;
        }
        let line = |cells: &[String]| {
            let padded = (0..columns).map(|n| cells.get(n).map_or("", String::as_str));
            let cells: Vec<String> = padded.map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |", cells.join(" | "))
        };
        let mut lines = Vec::with_capacity(table.rows.len() + 2);
        let mut rows = table.rows.iter();
        match table.has_head {
            true => lines.extend(rows.next().map(|row| line(row))),
            false => lines.push(line(&[])),
        }
        lines.push(format!("|{}", " --- |".repeat(columns)));
        lines.extend(rows.map(|row| line(row)));
        self.block(&lines.join("\n"));
    }
}

/// The language of a code block, from its class.
fn language(tree: &Tree, id: NodeId, element: &Element) -> String {
    let of = |element: &Element| {
        let classes = element.attribute("class")?.split_ascii_whitespace();
        classes.filter_map(|class| class.strip_prefix("language-")).next().map(str::to_owned)
    };
    let inner = tree.children(id).iter().find_map(|child| match tree.kind(*child) {
        Kind::Element(element) => of(element),
        Kind::Text(_) | Kind::Other => None,
    });
    let found = of(element).or(inner).unwrap_or_default();
    let plain = found.len() <= 20 && found.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
    if plain { found } else { String::new() }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn longest_run(text: &str, wanted: char) -> usize {
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c == wanted { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

#[cfg(test)]
mod tests {
    use crate::html::to_markdown;

    fn markdown(html: &str) -> String {
        to_markdown(html, &reqwest::Url::parse("https://a.test/dir/page").unwrap()).markdown
    }

    #[test]
    fn headings_paragraphs_and_marks_are_written_as_markdown() {
        for (html, wanted) in [
            ("<h1>One  <em>two</em></h1><p>a\n  b<br>c</p>", "# One *two*\n\na b\nc"),
            ("x <b> bold </b>y <i></i>z", "x **bold** y z"),
            ("<p>use <code>a b</code>, <del>old</del></p>", "use `a b`, ~~old~~"),
            ("<b><p>one</p><p>two</p></b>", "one\n\ntwo"),
            ("a<hr>b", "a\n\n---\n\nb"),
            ("1 &lt; 2 &amp;&amp; 3&nbsp;4", "1 < 2 && 3 4"),
        ] {
            assert_eq!(markdown(html), wanted, "{html}");
        }
    }

    #[test]
    fn links_are_absolute_and_only_to_allowed_schemes() {
        for (html, wanted) in [
            ("<a href='x?q=1'>t</a>", "[t](https://a.test/dir/x?q=1)"),
            ("<a href='//b.test/(1)'>t</a>", "[t](<https://b.test/(1)>)"),
            ("<a href='javascript:alert(1)'>t</a>", "t"),
            ("<a href='#here'>t</a>", "t"),
            ("<a href='x'> </a>", ""),
            ("<img src='i.png' alt='a\nb'>", "![a b](https://a.test/dir/i.png)"),
            ("<img src='data:image/png;base64,AAAA' alt='dot'>", "[image: dot]"),
            ("<base href='https://c.test/z/'><a href='x'>t</a>", "[t](https://c.test/z/x)"),
        ] {
            assert_eq!(markdown(html), wanted, "{html}");
        }
    }

    #[test]
    fn lists_quotes_and_code_keep_their_shape() {
        let html = "<ul><li>a<li>b<ol start=3><li>c</li><li><p>d</p><p>e</p></ol></ul><p>f";
        assert_eq!(markdown(html), "- a\n- b\n  3. c\n  4. d\n\n     e\n\nf");
        let html = "<blockquote><p>a</p><p>b</p></blockquote>";
        assert_eq!(markdown(html), "> a\n>\n> b");
        let html = "<pre><code class='x language-rust'>fn a() {\n    b()\n}\n</code></pre>";
        assert_eq!(markdown(html), "```rust\nfn a() {\n    b()\n}\n```");
        assert_eq!(markdown("<pre>a\n```\nb</pre>"), "````\na\n```\nb\n````");
        assert_eq!(markdown("<dl><dt>t<dd>d</dl>"), "t\n\n: d");
    }

    #[test]
    fn a_data_table_stays_a_table_and_a_layout_table_becomes_text() {
        let html = "<table><tr><th>a<th>b<tr><td>1|2<td><b>3</b><tr><td>only</table>";
        assert_eq!(markdown(html), "| a | b |\n| --- | --- |\n| 1\\|2 | **3** |\n| only |  |");
        let html = "<table><tr><td>x<td>y</table>";
        assert_eq!(markdown(html), "|  |  |\n| --- | --- |\n| x | y |");
        let html = "<table><tr><td><p>a</p><p>b</p><td>c</table>d";
        assert_eq!(markdown(html), "a\n\nb\n\nc\n\nd");
    }

    #[test]
    fn hidden_text_is_removed_and_counted() {
        let html = "<title> T\n t </title><style>.x{display:none}</style>\
            <p>seen<!-- comment --></p><script>evil()</script><noscript>n</noscript>\
            <p style='display:none'>h1</p><p hidden>h2</p><div aria-hidden=true><p>h3</p></div>\
            <p class='y x'>h4</p><span style='font-size:0'>h5</span><template>h6</template>\
            <textarea>h7</textarea><p>a\u{200b}b\u{e0041}</p>";
        let page = to_markdown(html, &reqwest::Url::parse("https://a.test/").unwrap());
        assert_eq!(page.title, "T t");
        assert_eq!(page.markdown, "seen\n\nab");
        assert_eq!((page.hidden_elements, page.hidden_characters), (5, 2));
        assert_eq!(page.cut, None);
    }

    #[test]
    fn nested_and_repeated_elements_are_bounded() {
        for unit in
            ["<ul><li>x", "<blockquote>x", "<table><tr><td>x", "<b>x", "<a href=y>x", "<pre>x"]
        {
            let page = unit.repeat(2000);
            assert!(markdown(&page).len() < page.len() * 40, "{unit}");
        }
    }
}
