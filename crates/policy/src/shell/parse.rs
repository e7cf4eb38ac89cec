//! The grammar of a POSIX shell with bash's additions, parsed strictly and within limits.
//!
//! This is not a shell: it need not run anything, so it may refuse. It refuses unknown syntax with
//! a [`Misread`], and the caller gives the whole text the highest risk. If sh and bash read the
//! same text differently, it takes the reading that does more, or refuses.
//!
//! Depth, length and count are limited: no input overflows the stack or takes more than linear
//! time.

use super::ast::{
    Assign, Chain, Command, Compound, Join, Redirect, RedirectKind, Script, Shape, Simple, Word,
};
use super::lex::is_name;

/// Longest text that is parsed, in bytes.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Deepest nesting of substitutions and compound commands, including the texts of wrappers.
pub(crate) const MAX_DEPTH: usize = 24;

/// Why a text was not understood; it completes "it was not understood: …".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misread(pub(crate) &'static str);

pub(super) type Read<T> = Result<T, Misread>;

/// Parses a whole command text. `depth` is its nesting depth in other texts.
pub(crate) fn parse(text: &str, depth: usize) -> Read<Script> {
    if text.len() > MAX_BYTES {
        return Err(Misread("it is too long"));
    }
    if let Some(why) = text.chars().find_map(hidden) {
        return Err(Misread(why));
    }
    let chars: Vec<char> = text.chars().collect();
    let mut parser = Parser { chars: &chars, at: 0, depth, here: Vec::new() };
    let script = parser.script(&[])?;
    match parser.peek() {
        None if parser.here.is_empty() => Ok(script),
        None => Err(Misread("a here-document is not closed")),
        Some(_) => Err(Misread("a parenthesis or a word is not allowed here")),
    }
}

/// Characters that a human approver would not see, or would mistake for others.
fn hidden(c: char) -> Option<&'static str> {
    match c {
        '\n' | '\t' | ' '..='~' => None,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => Some("it contains control characters"),
        '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => {
            Some("it contains blanks that are not blanks to a shell")
        }
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{e000}'..='\u{f8ff}'
        | '\u{e0000}'.. => Some("it contains invisible characters"),
        _ => None,
    }
}

/// A here-document whose body follows the next line break.
struct Pending {
    delimiter: String,
    quoted: bool,
    tabs: bool,
}

pub(super) struct Parser<'a> {
    chars: &'a [char],
    at: usize,
    depth: usize,
    here: Vec<Pending>,
}

impl Parser<'_> {
    pub(super) fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// The character before the next one.
    pub(super) fn back(&self) -> Option<char> {
        self.at.checked_sub(1).and_then(|at| self.chars.get(at)).copied()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    pub(super) fn unread(&mut self) {
        self.at = self.at.saturating_sub(1);
    }

    pub(super) fn deeper(&mut self) -> Read<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Misread("it is nested too deeply")) } else { Ok(()) }
    }

    pub(super) fn shallower(&mut self) {
        self.depth -= 1;
    }

    /// Parses the text of a backquote, which was unescaped and so is a text of its own.
    pub(super) fn nested(&mut self, text: &str) -> Read<Script> {
        self.deeper()?;
        let script = parse(text, self.depth)?;
        self.shallower();
        Ok(script)
    }

    /// Parses a script up to its `)`, which is consumed.
    pub(super) fn until_paren(&mut self) -> Read<Script> {
        self.deeper()?;
        let script = self.script(&[])?;
        if self.next() != Some(')') {
            return Err(Misread("a parenthesis is not closed"));
        }
        self.shallower();
        Ok(script)
    }

    /// Skips blanks, comments and line continuations.
    fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => {
                    self.next();
                }
                Some('\\') if self.peek_at(1) == Some('\n') => {
                    self.at += 2;
                }
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                _ => return,
            }
        }
    }

    /// Skips blanks and line breaks; the bodies of here-documents follow a line break.
    fn lines(&mut self) -> Read<()> {
        loop {
            self.blanks();
            if self.peek() != Some('\n') {
                return Ok(());
            }
            self.next();
            // A body is only reached through `line_end`.
            if !self.here.is_empty() {
                return Err(Misread("a here-document begins in the middle of a list"));
            }
        }
    }

    fn skip(&mut self, text: &str) -> bool {
        let same = text.chars().enumerate().all(|(n, c)| self.peek_at(n) == Some(c));
        if same {
            self.at += text.chars().count();
        }
        same
    }

    /// The next reserved word, if there is one: an unquoted word of letters, `{`, `}`, `!`.
    fn reserved(&self) -> String {
        let mut word = String::new();
        let mut n = 0;
        while let Some(c) = self.peek_at(n) {
            if matches!(c, ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')') {
                break;
            }
            if !(c.is_ascii_lowercase() || matches!(c, '{' | '}' | '!' | '[' | ']')) || n > 8 {
                return String::new();
            }
            word.push(c);
            n += 1;
        }
        word
    }

    /// Parses statements up to a `)`, the end, or one of the words in `ends`, which are not
    /// consumed.
    fn script(&mut self, ends: &[&str]) -> Read<Script> {
        let mut script = Script::default();
        loop {
            self.lines()?;
            match self.peek() {
                None | Some(')') => return Ok(script),
                Some(';') if self.peek_at(1) == Some(';') || self.peek_at(1) == Some('&') => {
                    return Ok(script);
                }
                Some(_) => {}
            }
            if ends.contains(&self.reserved().as_str()) {
                return Ok(script);
            }
            script.chains.push(self.chain()?);
        }
    }

    /// Parses one chain, its end, and the here-documents of its line.
    fn chain(&mut self) -> Read<Chain> {
        let mut chain = Chain { pipelines: Vec::new() };
        let mut join = Join::First;
        loop {
            let pipeline = self.pipeline()?;
            chain.pipelines.push((join, pipeline));
            self.blanks();
            if self.skip("&&") {
                join = Join::And;
            } else if self.skip("||") {
                join = Join::Or;
            } else {
                break;
            }
            self.line_end(&mut chain)?;
            self.lines()?;
        }
        match self.peek() {
            Some(';') if !matches!(self.peek_at(1), Some(';' | '&')) => {
                self.next();
            }
            Some('&') => {
                self.next();
            }
            Some(_) | None => {}
        }
        self.line_end(&mut chain)?;
        Ok(chain)
    }

    /// At a line break, reads the bodies of the line's here-documents into their redirects.
    fn line_end(&mut self, chain: &mut Chain) -> Read<()> {
        self.blanks();
        if self.here.is_empty() || self.peek() != Some('\n') {
            return Ok(());
        }
        self.next();
        let mut bodies = Vec::new();
        for pending in std::mem::take(&mut self.here) {
            bodies.push(self.here_text(&pending)?);
        }
        let mut slots: Vec<&mut Word> = Vec::new();
        for (_, pipeline) in &mut chain.pipelines {
            pipeline.iter_mut().for_each(|command| empty_slots(command, &mut slots));
        }
        if slots.len() != bodies.len() {
            return Err(Misread("a here-document whose command is not clear"));
        }
        for (slot, body) in slots.into_iter().zip(bodies) {
            *slot = body;
        }
        Ok(())
    }

    fn here_text(&mut self, pending: &Pending) -> Read<Word> {
        let mut body = String::new();
        loop {
            let mut line = String::new();
            let mut closed = false;
            while let Some(c) = self.next() {
                if c == '\n' {
                    closed = true;
                    break;
                }
                line.push(c);
            }
            let text = if pending.tabs { line.trim_start_matches('\t') } else { &line };
            if text == pending.delimiter {
                break;
            }
            if !closed {
                return Err(Misread("a here-document is not closed"));
            }
            body.push_str(text);
            body.push('\n');
        }
        if pending.quoted {
            let text = super::ast::Piece::Text { text: body, quoted: true };
            return Ok(Word { pieces: vec![text] });
        }
        self.deeper()?;
        let chars: Vec<char> = body.chars().collect();
        let mut inner = Parser { chars: &chars, at: 0, depth: self.depth, here: Vec::new() };
        let mut word = inner.here_body()?;
        if word.pieces.is_empty() {
            word.pieces.push(super::ast::Piece::Text { text: String::new(), quoted: true });
        }
        self.shallower();
        Ok(word)
    }

    fn pipeline(&mut self) -> Read<Vec<Command>> {
        self.blanks();
        // `time` and `coproc` are normal words here: they are removed with the wrappers.
        while self.reserved() == "!" {
            self.next();
            self.blanks();
        }
        let mut commands = vec![self.command()?];
        loop {
            self.blanks();
            if self.peek() != Some('|') || self.peek_at(1) == Some('|') {
                return Ok(commands);
            }
            self.next();
            if self.peek() == Some('&') {
                self.next();
            }
            self.lines()?;
            commands.push(self.command()?);
        }
    }

    fn command(&mut self) -> Read<Command> {
        self.blanks();
        if self.peek() == Some('(') {
            if self.peek_at(1) == Some('(') {
                return self.arithmetic_command();
            }
            self.next();
            let body = self.until_paren()?;
            return self.compound(Shape::Subshell, None, Vec::new(), vec![body]);
        }
        let word = self.reserved();
        match word.as_str() {
            "{" => {
                let body = self.body("{", &["}"])?;
                self.skip("}");
                self.compound(Shape::Group, None, Vec::new(), vec![body])
            }
            "if" => self.branches(),
            "while" | "until" => {
                let condition = self.body(&word, &["do"])?;
                let body = self.body("do", &["done"])?;
                self.skip("done");
                self.compound(Shape::Loop, None, Vec::new(), vec![condition, body])
            }
            "for" | "select" => self.for_loop(&word),
            "case" => self.case(),
            "function" => {
                self.skip("function");
                self.blanks();
                let name = self.word(false)?.bare().map(str::to_owned);
                let name = name.ok_or(Misread("a function without a plain name"))?;
                self.blanks();
                if self.skip("(") {
                    self.blanks();
                    if !self.skip(")") {
                        return Err(Misread("a function with parameters"));
                    }
                }
                self.function(name)
            }
            "[[" => self.test(),
            "then" | "else" | "elif" | "fi" | "do" | "done" | "esac" | "}" | "in" => {
                Err(Misread("a reserved word is not allowed here"))
            }
            _ => self.simple(),
        }
    }

    /// Consumes the word `open`, then statements up to one of `ends`, which is required.
    fn body(&mut self, open: &str, ends: &[&str]) -> Read<Script> {
        self.skip(open);
        self.deeper()?;
        let script = self.script(ends)?;
        self.shallower();
        if ends.contains(&self.reserved().as_str()) && !script.chains.is_empty() {
            Ok(script)
        } else {
            Err(Misread("a compound command is not closed"))
        }
    }

    fn branches(&mut self) -> Read<Command> {
        let mut bodies = vec![self.body("if", &["then"])?];
        loop {
            bodies.push(self.body("then", &["elif", "else", "fi"])?);
            match self.reserved().as_str() {
                "elif" => bodies.push(self.body("elif", &["then"])?),
                "else" => {
                    bodies.push(self.body("else", &["fi"])?);
                    self.skip("fi");
                    break;
                }
                _ => {
                    self.skip("fi");
                    break;
                }
            }
        }
        self.compound(Shape::Branch, None, Vec::new(), bodies)
    }

    fn for_loop(&mut self, word: &str) -> Read<Command> {
        self.skip(word);
        self.blanks();
        let mut variable = None;
        let mut words = Vec::new();
        if self.peek() == Some('(') && self.peek_at(1) == Some('(') {
            let inside = self.arithmetic_text()?;
            let plain = |c: char| c.is_ascii_alphanumeric() || " _+-*/%<>=!;,$".contains(c);
            if !inside.chars().all(plain) || super::lex::sets_dangerous(&inside) {
                return Err(Misread("arithmetic with more than names and numbers"));
            }
        } else {
            let name = self.word(false)?;
            let name = name.bare().filter(|name| is_name(name));
            variable = Some(name.ok_or(Misread("a loop without a plain variable"))?.to_owned());
            self.lines()?;
            if self.reserved() == "in" {
                self.skip("in");
                loop {
                    self.blanks();
                    match self.peek() {
                        Some(';' | '\n') => break,
                        Some('&' | '|' | ')') | None => {
                            return Err(Misread("a loop whose words do not end"));
                        }
                        Some(_) => words.push(self.some_word()?),
                    }
                }
            } else {
                // Without `in`, the loop uses the positional parameters.
                let opaque = super::ast::Piece::Opaque { quoted: false };
                words.push(Word { pieces: vec![opaque] });
            }
        }
        self.blanks();
        if self.peek() == Some(';') {
            self.next();
        }
        self.lines()?;
        if self.reserved() != "do" {
            return Err(Misread("a loop without `do`"));
        }
        let body = self.body("do", &["done"])?;
        self.skip("done");
        self.compound(Shape::Loop, variable, words, vec![body])
    }

    fn case(&mut self) -> Read<Command> {
        self.skip("case");
        self.blanks();
        let mut words = vec![self.some_word()?];
        self.lines()?;
        if self.reserved() != "in" {
            return Err(Misread("a `case` without `in`"));
        }
        self.skip("in");
        let mut bodies = Vec::new();
        self.deeper()?;
        loop {
            self.lines()?;
            if self.reserved() == "esac" {
                self.skip("esac");
                break;
            }
            self.skip("(");
            loop {
                self.blanks();
                words.push(self.some_word()?);
                self.blanks();
                match self.next() {
                    Some('|') => {}
                    Some(')') => break,
                    Some(_) | None => return Err(Misread("a `case` with a strange pattern")),
                }
            }
            bodies.push(self.script(&["esac"])?);
            self.blanks();
            if !(self.skip(";;&") || self.skip(";;") || self.skip(";&"))
                && self.reserved() != "esac"
            {
                return Err(Misread("a `case` that does not end"));
            }
        }
        self.shallower();
        self.compound(Shape::Branch, None, words, bodies)
    }

    fn test(&mut self) -> Read<Command> {
        self.skip("[[");
        let mut words = Vec::new();
        loop {
            while matches!(self.peek(), Some(' ' | '\t' | '\n')) {
                self.next();
            }
            if self.peek().is_none() {
                return Err(Misread("a `[[` is not closed"));
            }
            let word = self.word(true)?;
            if word.bare() == Some("]]") {
                break;
            }
            words.push(word);
        }
        self.compound(Shape::Test, None, words, Vec::new())
    }

    /// Parses `((…))`. Another shell reads it as two subshells, so only text without a second
    /// reading is accepted: `((i++))`, `((n=n+1))`.
    fn arithmetic_command(&mut self) -> Read<Command> {
        let inside = self.arithmetic_text()?;
        let name: String =
            inside.chars().take_while(|c| *c == '_' || c.is_ascii_alphanumeric()).collect();
        let rest = &inside[name.len()..];
        let plain = is_name(&name)
            && !super::lex::sets_dangerous(&inside)
            && (matches!(rest, "++" | "--")
                || ["=", "+=", "-=", "*="].iter().any(|op| {
                    rest.strip_prefix(op).is_some_and(|value| {
                        value.chars().all(|c| c.is_ascii_alphanumeric() || "_+*".contains(c))
                    })
                }));
        if !plain {
            return Err(Misread("parentheses that one shell counts with and another runs"));
        }
        self.compound(Shape::Test, None, Vec::new(), Vec::new())
    }

    fn compound(
        &mut self,
        shape: Shape,
        variable: Option<String>,
        words: Vec<Word>,
        bodies: Vec<Script>,
    ) -> Read<Command> {
        let mut redirects = Vec::new();
        loop {
            self.blanks();
            match self.redirect()? {
                Some(redirect) => redirects.push(redirect),
                None => break,
            }
        }
        match self.peek() {
            None | Some('\n' | ';' | '&' | '|' | ')') => {
                Ok(Command::Compound(Compound { shape, variable, words, bodies, redirects }))
            }
            Some(_) => Err(Misread("a word follows a compound command")),
        }
    }

    fn function(&mut self, name: String) -> Read<Command> {
        self.lines()?;
        self.deeper()?;
        let body = self.command()?;
        self.shallower();
        let Command::Compound(_) = &body else {
            return Err(Misread("a function without braces"));
        };
        let chain = Chain { pipelines: vec![(Join::First, vec![body])] };
        Ok(Command::Function { name, body: Script { chains: vec![chain] } })
    }

    fn some_word(&mut self) -> Read<Word> {
        let word = self.word(false)?;
        if word.pieces.is_empty() { Err(Misread("a word is missing")) } else { Ok(word) }
    }

    fn simple(&mut self) -> Read<Command> {
        let mut simple = Simple::default();
        loop {
            self.blanks();
            if let Some(redirect) = self.redirect()? {
                simple.redirects.push(redirect);
                continue;
            }
            match self.peek() {
                None | Some('\n' | ';' | '&' | '|' | ')') => break,
                Some('(') => {
                    // `name ()` begins a function.
                    let name = match simple.words.as_slice() {
                        [word] if simple.assigns.is_empty() && simple.redirects.is_empty() => {
                            word.bare().map(str::to_owned)
                        }
                        _ => None,
                    };
                    self.next();
                    self.blanks();
                    let (Some(name), true) = (name, self.skip(")")) else {
                        return Err(Misread("a parenthesis in the middle of a command"));
                    };
                    return self.function(name);
                }
                Some(_) => {}
            }
            let word = self.some_word()?;
            if let Some(text) = word.bare()
                && text.len() > 2
                && text.starts_with('{')
                && text.ends_with('}')
                && matches!(self.peek(), Some('<' | '>'))
            {
                return Err(Misread("a redirect that sets a variable"));
            }
            match assignment(&word) {
                Some(mut assign) if simple.words.is_empty() => {
                    if self.peek() == Some('(') {
                        self.array(&mut assign)?;
                    }
                    simple.assigns.push(assign);
                }
                // `export a=(…)`, `declare a=(…)`
                Some(mut assign) if self.peek() == Some('(') => {
                    self.array(&mut assign)?;
                    simple.assigns.push(assign);
                }
                Some(_) | None => simple.words.push(word),
            }
        }
        if simple.words.is_empty() && simple.assigns.is_empty() && simple.redirects.is_empty() {
            return Err(Misread("a command is missing"));
        }
        Ok(Command::Simple(simple))
    }

    fn array(&mut self, assign: &mut Assign) -> Read<()> {
        self.next();
        assign.opaque = true;
        loop {
            self.lines()?;
            match self.peek() {
                Some(')') => {
                    self.next();
                    return Ok(());
                }
                Some(_) => assign.values.push(self.some_word()?),
                None => return Err(Misread("an array is not closed")),
            }
        }
    }

    fn redirect(&mut self) -> Read<Option<Redirect>> {
        let mut digits = 0;
        while self.peek_at(digits).is_some_and(|c| c.is_ascii_digit()) {
            digits += 1;
        }
        let both = digits == 0 && self.peek() == Some('&') && self.peek_at(1) == Some('>');
        let first = self.peek_at(digits);
        if !both && !matches!(first, Some('<' | '>')) {
            // `{fd}>file` names a variable for the number; every other rule reads `{` as a word.
            return Ok(None);
        }
        if !both && digits == 0 && self.peek_at(1) == Some('(') {
            return Ok(None); // `<(`: a word
        }
        self.at += digits + usize::from(both);
        let kind = if self.skip("<<<") {
            RedirectKind::Here
        } else if self.skip("<<-") {
            return self.here_document(true).map(Some);
        } else if self.skip("<<") {
            return self.here_document(false).map(Some);
        } else if self.skip("<>") {
            RedirectKind::ReadWrite
        } else if self.skip("<&") || self.skip(">&") {
            RedirectKind::Duplicate
        } else if self.skip(">>") || self.skip(">|") || self.skip(">") {
            RedirectKind::Write
        } else {
            self.skip("<");
            RedirectKind::Read
        };
        self.blanks();
        let target = self.some_word()?;
        Ok(Some(Redirect { kind, target }))
    }

    fn here_document(&mut self, tabs: bool) -> Read<Redirect> {
        self.blanks();
        let word = self.some_word()?;
        let quoted = word.is_quoted();
        let delimiter = word.literal().ok_or(Misread("a here-document with a strange end"))?;
        self.here.push(Pending { delimiter, quoted, tabs });
        // The body is filled in at the end of the line.
        Ok(Redirect { kind: RedirectKind::Here, target: Word::default() })
    }
}

/// The targets of here-documents without a body yet, in the order of the text.
fn empty_slots<'a>(command: &'a mut Command, slots: &mut Vec<&'a mut Word>) {
    let redirects = match command {
        Command::Simple(simple) => &mut simple.redirects,
        Command::Compound(compound) => &mut compound.redirects,
        Command::Function { .. } => return,
    };
    let empty = redirects.iter_mut().map(|redirect| &mut redirect.target);
    slots.extend(empty.filter(|target| target.pieces.is_empty()));
}

/// The assignment in a word, if it is one.
fn assignment(word: &Word) -> Option<Assign> {
    let (first, rest) = word.pieces.split_first()?;
    let super::ast::Piece::Text { text, quoted: false } = first else { return None };
    let (left, value) = text.split_once('=')?;
    let plain = left.strip_suffix('+').unwrap_or(left);
    let name = plain.split_once('[').map_or(plain, |(name, _)| name);
    if !is_name(name) {
        return None;
    }
    let mut pieces = Vec::new();
    if !value.is_empty() {
        pieces.push(super::ast::Piece::Text { text: value.to_owned(), quoted: false });
    }
    pieces.extend(rest.iter().cloned());
    Some(Assign {
        name: name.to_owned(),
        values: vec![Word { pieces }],
        opaque: plain != left || name != plain,
    })
}
