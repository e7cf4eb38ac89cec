//! Parses a page with html5ever into a tree whose nodes are in an arena.
//!
//! Nodes of the arena do not own each other, so a page with a million levels is freed like any
//! other; code that walks the tree uses its own stack.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use html5ever::interface::{ElementFlags, NodeOrText, QuirksMode, TreeSink};
use html5ever::tendril::{StrTendril, TendrilSink};
use html5ever::{Attribute, ExpandedName, LocalName, QualName};

/// Bytes that are parsed between two checks of the time.
const PIECE_BYTES: usize = 512;

/// The number of a node in its tree.
pub(super) type NodeId = usize;

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// The document, comments and declarations, which are not shown.
    Other,
    Text(String),
    Element(Element),
}

#[derive(Debug)]
pub(super) struct Element {
    pub(super) name: LocalName,
    attributes: Vec<(LocalName, String)>,
}

impl Element {
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(have, _)| &**have == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Tree {
    pub(super) const ROOT: NodeId = 0;

    pub(super) fn kind(&self, id: NodeId) -> &Kind {
        &self.nodes[id].kind
    }

    pub(super) fn children(&self, id: NodeId) -> &[NodeId] {
        &self.nodes[id].children
    }

    /// All nodes, in the order of creation.
    pub(super) fn ids(&self) -> std::ops::Range<NodeId> {
        0..self.nodes.len()
    }

    /// The text directly inside of a node, as in a title or a style sheet.
    pub(super) fn text(&self, id: NodeId) -> String {
        let texts = self.children(id).iter().filter_map(|child| match self.kind(*child) {
            Kind::Text(text) => Some(text.as_str()),
            Kind::Element(_) | Kind::Other => None,
        });
        texts.collect()
    }
}

/// Parses a page; returns why its end is missing if a limit was reached.
pub(super) fn parse(
    html: &str,
    max_nodes: usize,
    max_time: Duration,
) -> (Tree, Option<&'static str>) {
    let mut parser = html5ever::parse_document(Sink::new(max_nodes), Default::default());
    let begun = Instant::now();
    let (mut rest, mut cut) = (html, None);
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(piece_of(rest));
        parser.process(StrTendril::from(piece));
        rest = later;
        if parser.tokenizer.sink.sink.full.get() {
            cut = Some("the page has too many elements");
            break;
        }
        if begun.elapsed() > max_time {
            cut = Some("the page takes too long to parse");
            break;
        }
    }
    (parser.finish(), cut)
}

fn piece_of(text: &str) -> usize {
    match text.floor_char_boundary(PIECE_BYTES) {
        0 => text.len(),
        at => at,
    }
}

/// A reference to a node for html5ever.
#[derive(Clone, Debug)]
struct Handle {
    id: NodeId,
    name: Option<Rc<QualName>>,
}

#[derive(Debug)]
struct Sink {
    nodes: RefCell<Vec<Node>>,
    max: usize,
    full: Cell<bool>,
}

impl Sink {
    fn new(max: usize) -> Self {
        let root = Node { parent: None, children: Vec::new(), kind: Kind::Other };
        // All nodes over the limit are this node, which is not part of the tree.
        let spare = Node { parent: None, children: Vec::new(), kind: Kind::Other };
        Self { nodes: RefCell::new(vec![root, spare]), max, full: Cell::new(false) }
    }

    const SPARE: NodeId = 1;

    fn make(&self, kind: Kind) -> NodeId {
        let mut nodes = self.nodes.borrow_mut();
        if nodes.len() >= self.max {
            self.full.set(true);
            return Self::SPARE;
        }
        nodes.push(Node { parent: None, children: Vec::new(), kind });
        nodes.len() - 1
    }

    fn detach(&self, id: NodeId) {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(parent) = nodes[id].parent.take() {
            // It is mostly the last one.
            if let Some(at) = nodes[parent].children.iter().rposition(|child| *child == id) {
                nodes[parent].children.remove(at);
            }
        }
    }

    /// Inserts a child, or text, before the child at `at`.
    fn insert(&self, parent: NodeId, at: usize, child: NodeOrText<Handle>) {
        if parent == Self::SPARE {
            return;
        }
        let id = match child {
            NodeOrText::AppendNode(handle) => {
                self.detach(handle.id);
                handle.id
            }
            NodeOrText::AppendText(text) => {
                let mut nodes = self.nodes.borrow_mut();
                let before = at.checked_sub(1).and_then(|at| nodes[parent].children.get(at));
                if let Some(before) = before.copied()
                    && let Kind::Text(have) = &mut nodes[before].kind
                {
                    have.push_str(&text);
                    return;
                }
                drop(nodes);
                self.make(Kind::Text(text.to_string()))
            }
        };
        if id == Self::SPARE {
            return;
        }
        let mut nodes = self.nodes.borrow_mut();
        nodes[id].parent = Some(parent);
        // Removing the child from its old parent may have made this list shorter.
        let at = at.min(nodes[parent].children.len());
        nodes[parent].children.insert(at, id);
    }

    fn append_to(&self, parent: NodeId, child: NodeOrText<Handle>) {
        let at = self.nodes.borrow()[parent].children.len();
        self.insert(parent, at, child);
    }
}

impl TreeSink for Sink {
    type Handle = Handle;
    type Output = Tree;
    type ElemName<'a> = ExpandedName<'a>;

    fn finish(self) -> Tree {
        Tree { nodes: self.nodes.into_inner() }
    }

    fn parse_error(&self, _: Cow<'static, str>) {}

    fn get_document(&self) -> Handle {
        Handle { id: Tree::ROOT, name: None }
    }

    fn elem_name<'a>(&'a self, target: &'a Handle) -> ExpandedName<'a> {
        target.name.as_ref().expect("it is asked of elements only").expanded()
    }

    fn create_element(
        &self,
        name: QualName,
        attributes: Vec<Attribute>,
        _: ElementFlags,
    ) -> Handle {
        let attributes = attributes
            .into_iter()
            .map(|attribute| (attribute.name.local, attribute.value.to_string()))
            .collect();
        let id = self.make(Kind::Element(Element { name: name.local.clone(), attributes }));
        Handle { id, name: Some(Rc::new(name)) }
    }

    fn create_comment(&self, _: StrTendril) -> Handle {
        Handle { id: self.make(Kind::Other), name: None }
    }

    fn create_pi(&self, _: StrTendril, _: StrTendril) -> Handle {
        Handle { id: self.make(Kind::Other), name: None }
    }

    fn append(&self, parent: &Handle, child: NodeOrText<Handle>) {
        self.append_to(parent.id, child);
    }

    fn append_based_on_parent_node(
        &self,
        element: &Handle,
        prev_element: &Handle,
        child: NodeOrText<Handle>,
    ) {
        let has_parent = self.nodes.borrow()[element.id].parent.is_some();
        match has_parent {
            true => self.append_before_sibling(element, child),
            false => self.append(prev_element, child),
        }
    }

    fn append_doctype_to_document(&self, _: StrTendril, _: StrTendril, _: StrTendril) {}

    /// A template's contents are below the template, which is never shown.
    fn get_template_contents(&self, target: &Handle) -> Handle {
        Handle { id: target.id, name: None }
    }

    fn same_node(&self, x: &Handle, y: &Handle) -> bool {
        match (&x.name, &y.name) {
            // Elements over the limit share a node, but each has its own name.
            (Some(x), Some(y)) => Rc::ptr_eq(x, y),
            (None, None) => x.id == y.id,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    fn set_quirks_mode(&self, _: QuirksMode) {}

    fn append_before_sibling(&self, sibling: &Handle, new_node: NodeOrText<Handle>) {
        if let NodeOrText::AppendNode(handle) = &new_node {
            self.detach(handle.id);
        }
        let place = {
            let nodes = self.nodes.borrow();
            nodes[sibling.id].parent.and_then(|parent| {
                let at = nodes[parent].children.iter().rposition(|child| *child == sibling.id);
                at.map(|at| (parent, at))
            })
        };
        if let Some((parent, at)) = place {
            self.insert(parent, at, new_node);
        }
    }

    fn add_attrs_if_missing(&self, target: &Handle, attributes: Vec<Attribute>) {
        let mut nodes = self.nodes.borrow_mut();
        if let Kind::Element(element) = &mut nodes[target.id].kind {
            for attribute in attributes {
                if element.attribute(&attribute.name.local).is_none() {
                    let value = attribute.value.to_string();
                    element.attributes.push((attribute.name.local, value));
                }
            }
        }
    }

    fn remove_from_parent(&self, target: &Handle) {
        self.detach(target.id);
    }

    fn reparent_children(&self, node: &Handle, new_parent: &Handle) {
        if node.id == Self::SPARE || new_parent.id == Self::SPARE {
            return;
        }
        let mut nodes = self.nodes.borrow_mut();
        let children = std::mem::take(&mut nodes[node.id].children);
        for child in &children {
            nodes[*child].parent = Some(new_parent.id);
        }
        nodes[new_parent.id].children.extend(children);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(tree: &Tree) -> usize {
        tree.ids().filter(|id| matches!(tree.kind(*id), Kind::Element(_))).count()
    }

    #[test]
    fn a_page_of_any_depth_is_parsed_and_freed() {
        // The parser looks through all open elements for each new one, so more takes long.
        let (tree, cut) = parse(&"<i>".repeat(20_000), 300_000, Duration::from_secs(60));
        assert_eq!(cut, None);
        assert!(elements(&tree) > 20_000);
    }

    #[test]
    fn a_page_that_multiplies_elements_is_truncated_at_the_limit() {
        // Each paragraph opens every formatting element before it again.
        let marks: String = (0..500).map(|n| format!("<b id={n}>")).collect();
        let bomb = format!("<p>{marks}{}", "<p>x".repeat(10_000));
        let (tree, cut) = parse(&bomb, 50_000, Duration::from_secs(60));
        assert_eq!(cut, Some("the page has too many elements"));
        assert!(tree.nodes.len() <= 50_000);
    }

    #[test]
    fn a_slow_page_is_truncated_when_its_time_is_over() {
        let slow = "<div>".repeat(50_000) + &"<p>".repeat(100_000);
        let (_, cut) = parse(&slow, 300_000, Duration::ZERO);
        assert_eq!(cut, Some("the page takes too long to parse"));
    }
}
