//! Reads an answer that is one JSON document, byte by byte as it passes. It builds no tree and
//! keeps only the few values that are needed.

use memchr::memchr2;
use overmind_core::json;
use overmind_core::relay::ending::{self, MAX_CHOICES};
use overmind_core::relay::{CallError, Ending, Endpoint, Tally};
use serde_json::Value;

use super::scan::{is_call, response_end, usage_of};

/// Longest value that is kept; token counts are short.
const MAX_VALUE: usize = 16 * 1024;
/// The depth at which the fields of a choice, or of an output item, are found.
const IN_LIST: u32 = 3;

/// Follows a JSON document and keeps some top-level values and one value of each choice.
#[derive(Debug)]
pub(crate) struct Document {
    endpoint: Endpoint,
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Whether the next string may be a name; otherwise a value comes next.
    name_next: bool,
    /// The text of the name that is being read or was read last.
    name: Vec<u8>,
    reading_name: bool,
    /// Whether the position is inside the list of choices or items.
    in_list: bool,
    /// The value that is being kept, and the depth of its name.
    keeping: Option<(Wanted, u32)>,
    value: Vec<u8>,
    usage: Option<Value>,
    model: Option<String>,
    ending: Ending,
    /// For the Responses format: the status, why the answer is incomplete, whether it contains a
    /// call.
    status: Option<String>,
    why: Option<String>,
    calls: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Usage,
    Model,
    Id,
    Error,
    /// The reason why the answer stopped.
    Finish,
    Status,
    Incomplete,
    /// The type of an output item.
    Item,
}

impl Document {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            depth: 0,
            in_string: false,
            escaped: false,
            name_next: false,
            name: Vec::with_capacity(32),
            reading_name: false,
            in_list: false,
            keeping: None,
            value: Vec::with_capacity(128),
            usage: None,
            model: None,
            ending: Ending::default(),
            status: None,
            why: None,
            calls: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            // Inside texts that are not needed, skip from quote to quote.
            if self.in_string && !self.escaped && !self.reading_name && self.keeping.is_none() {
                match memchr2(b'"', b'\\', &bytes[at..]) {
                    None => return,
                    Some(skip) => at += skip,
                }
            }
            self.byte(bytes[at]);
            at += 1;
        }
    }

    /// Whether names at the current depth are read.
    fn names_here(&self) -> bool {
        self.depth == 1 || (self.depth == IN_LIST && self.in_list)
    }

    fn wanted(&self) -> Option<Wanted> {
        let top = self.depth == 1;
        match (self.name.as_slice(), self.endpoint) {
            (b"usage", _) if top => Some(Wanted::Usage),
            (b"model", _) if top => Some(Wanted::Model),
            (b"id", _) if top => Some(Wanted::Id),
            (b"error", _) if top => Some(Wanted::Error),
            (b"stop_reason", Endpoint::Messages) if top => Some(Wanted::Finish),
            (b"status", Endpoint::Responses) if top => Some(Wanted::Status),
            (b"incomplete_details", Endpoint::Responses) if top => Some(Wanted::Incomplete),
            (b"finish_reason", Endpoint::Chat) if !top => Some(Wanted::Finish),
            (b"type", Endpoint::Responses) if !top => Some(Wanted::Item),
            _ => None,
        }
    }

    fn byte(&mut self, byte: u8) {
        if let Some((wanted, depth)) = self.keeping {
            let ends = !self.in_string && self.depth == depth && matches!(byte, b',' | b'}');
            if ends {
                self.keeping = None;
                self.kept(wanted);
            } else if self.value.len() < MAX_VALUE {
                self.value.push(byte);
            } else {
                self.keeping = None;
            }
        }
        if self.in_string {
            if self.escaped {
                self.escaped = false;
            } else if byte == b'\\' {
                self.escaped = true;
            } else if byte == b'"' {
                self.in_string = false;
                self.reading_name = false;
            } else if self.reading_name && self.name.len() < 64 {
                self.name.push(byte);
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.name_next && self.names_here() {
                    self.reading_name = true;
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.name_next = byte == b'{' && self.names_here();
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' if self.names_here() => self.name_next = true,
            b':' if self.name_next && self.names_here() => {
                self.name_next = false;
                if self.depth == 1 {
                    self.in_list = match self.endpoint {
                        Endpoint::Chat => self.name == b"choices",
                        Endpoint::Responses => self.name == b"output",
                        Endpoint::Embeddings | Endpoint::Messages | Endpoint::CountTokens => false,
                    };
                }
                self.keeping = self.wanted().map(|wanted| (wanted, self.depth));
                self.value.clear();
            }
            _ => {}
        }
    }

    fn kept(&mut self, wanted: Wanted) {
        let value = json::read::<Value>(&self.value);
        self.value.clear();
        let Ok(value) = value else { return };
        let text = value.as_str();
        match wanted {
            Wanted::Usage => self.usage = Some(value),
            Wanted::Model => {
                let name = text.filter(|name| name.len() <= 256);
                self.model = name.map(str::to_owned).or(self.model.take());
            }
            Wanted::Id => self.ending.id = text.and_then(ending::word).map(str::to_owned),
            Wanted::Error => self.ending.error = CallError::of(&value),
            Wanted::Finish => {
                let why = text.and_then(ending::finish);
                self.ending.finish.extend(why);
                self.ending.finish.truncate(MAX_CHOICES);
            }
            Wanted::Status => self.status = text.map(str::to_owned),
            Wanted::Incomplete => self.why = value["reason"].as_str().map(str::to_owned),
            Wanted::Item => self.calls |= text.is_some_and(is_call),
        }
    }

    pub(super) fn tally(&self) -> Tally {
        let usage = self.usage.as_ref().and_then(|usage| usage_of(self.endpoint, usage));
        let mut ending = self.ending.clone();
        if let Some(status) = &self.status {
            let why = response_end(status, self.why.as_deref(), self.calls);
            ending.finish.extend(ending::finish(why));
        }
        Tally { is_final: usage.is_some(), usage, model: self.model.clone(), said_bytes: 0, ending }
    }
}
