//! Reads words: quotes, expansions, and their contents.

use super::ast::{Piece, Word};
use super::parse::{Misread, Parser, Read};

/// Characters that end an unquoted word.
fn ends_word(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')')
}

pub(super) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c == '_' || c.is_ascii_alphabetic())
        && chars.all(|c| c == '_' || c.is_ascii_alphanumeric())
}

/// Collects pieces and joins adjacent texts.
#[derive(Default)]
struct Pieces(Vec<Piece>);

impl Pieces {
    fn text(&mut self, c: char, quoted: bool) {
        if let Some(Piece::Text { text, quoted: last }) = self.0.last_mut()
            && *last == quoted
        {
            text.push(c);
        } else {
            self.0.push(Piece::Text { text: c.to_string(), quoted });
        }
    }

    /// Makes sure that a quoted word exists even if it is empty.
    fn empty(&mut self) {
        self.0.push(Piece::Text { text: String::new(), quoted: true });
    }
}

impl Parser<'_> {
    /// Reads one word. `conditional` means inside of `[[ ]]`, where only blanks end a word.
    pub(super) fn word(&mut self, conditional: bool) -> Read<Word> {
        let mut pieces = Pieces::default();
        while let Some(c) = self.peek() {
            match c {
                '\\' => {
                    self.next();
                    match self.next() {
                        Some('\n') => {}
                        Some(c) => pieces.text(c, true),
                        None => return Err(Misread("it ends with a backslash")),
                    }
                }
                '\'' => {
                    self.next();
                    pieces.empty();
                    loop {
                        match self.next() {
                            Some('\'') => break,
                            Some(c) => pieces.text(c, true),
                            None => return Err(Misread("a quote is not closed")),
                        }
                    }
                }
                '"' => {
                    self.next();
                    pieces.empty();
                    self.quoted(&mut pieces, Some('"'))?;
                }
                '$' => self.dollar(&mut pieces, false)?,
                '`' => self.backquotes(&mut pieces, false)?,
                '<' | '>' if !conditional && self.peek_at(1) == Some('(') => {
                    self.next();
                    self.next();
                    let script = self.until_paren()?;
                    pieces.0.push(Piece::Process { script });
                }
                '(' if !conditional
                    && matches!(self.back(), Some('@' | '!' | '+' | '?' | '*'))
                    && !pieces.0.is_empty() =>
                {
                    return Err(Misread("it uses extended patterns"));
                }
                c if conditional && !matches!(c, ' ' | '\t' | '\n') => {
                    self.next();
                    pieces.text(c, false);
                }
                c if ends_word(c) => break,
                c => {
                    self.next();
                    pieces.text(c, false);
                }
            }
        }
        Ok(Word { pieces: pieces.0 })
    }

    /// Reads the body of a here-document whose delimiter was not quoted.
    pub(super) fn here_body(&mut self) -> Read<Word> {
        let mut pieces = Pieces::default();
        self.quoted(&mut pieces, None)?;
        Ok(Word { pieces: pieces.0 })
    }

    /// Reads text in double quotes up to `end`, or to the end of the text.
    fn quoted(&mut self, pieces: &mut Pieces, end: Option<char>) -> Read<()> {
        loop {
            match self.peek() {
                None if end.is_none() => return Ok(()),
                None => return Err(Misread("a quote is not closed")),
                c if c == end => {
                    self.next();
                    return Ok(());
                }
                Some('\\') => {
                    self.next();
                    match self.next() {
                        Some('\n') => {}
                        Some(c @ ('$' | '`' | '\\')) => pieces.text(c, true),
                        Some('"') if end.is_some() => pieces.text('"', true),
                        Some(c) => {
                            pieces.text('\\', true);
                            pieces.text(c, true);
                        }
                        None => pieces.text('\\', true),
                    }
                }
                Some('$') => self.dollar(pieces, true)?,
                Some('`') => self.backquotes(pieces, true)?,
                Some(c) => {
                    self.next();
                    pieces.text(c, true);
                }
            }
        }
    }

    fn dollar(&mut self, pieces: &mut Pieces, quoted: bool) -> Read<()> {
        self.next();
        match self.peek() {
            Some('(') if self.peek_at(1) == Some('(') => self.arithmetic(pieces),
            Some('(') => {
                self.next();
                let script = self.until_paren()?;
                pieces.0.push(Piece::Output { script, quoted });
                Ok(())
            }
            Some('{') => {
                self.next();
                self.parameter(pieces, quoted)
            }
            Some('[') => Err(Misread("it uses the old form of arithmetic")),
            Some('\'') if !quoted => {
                self.next();
                pieces.empty();
                self.ansi_c(pieces)
            }
            Some('"') if !quoted => {
                self.next();
                pieces.empty();
                self.quoted(pieces, Some('"'))
            }
            // The value is a number, so it can be no name and no option.
            Some('?' | '#' | '$' | '!') => {
                self.next();
                pieces.text('0', true);
                Ok(())
            }
            Some('@' | '*' | '-' | '0'..='9') => {
                self.next();
                // "$@" is several words even in quotes.
                pieces.0.push(Piece::Opaque { quoted: false });
                Ok(())
            }
            Some(c) if c == '_' || c.is_ascii_alphabetic() => {
                let name = self.name();
                pieces.0.push(Piece::Variable { name, quoted });
                Ok(())
            }
            Some(_) | None => {
                pieces.text('$', quoted);
                Ok(())
            }
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| *c == '_' || c.is_ascii_alphanumeric()) {
            self.next();
            name.push(c);
        }
        name
    }

    /// Reads `$(( … ))`: a number, unless the two brackets mean a command in a command.
    fn arithmetic(&mut self, pieces: &mut Pieces) -> Read<()> {
        let inside = self.arithmetic_text()?;
        // A command would need a word of its own; subscripts are evaluated as text again.
        let plain = |c: char| c.is_ascii_alphanumeric() || " \t_+-*/%()<>=!&|?:,$^~".contains(c);
        if !inside.chars().all(plain) || inside.contains("$(") || sets_dangerous(&inside) {
            return Err(Misread("arithmetic with more than names and numbers"));
        }
        pieces.0.push(Piece::Opaque { quoted: true });
        Ok(())
    }

    /// Reads the text between `((` and `))`; both are consumed.
    pub(super) fn arithmetic_text(&mut self) -> Read<String> {
        self.next();
        self.next();
        let mut inside = String::new();
        let mut open = 0_u32;
        loop {
            match self.next() {
                Some('(') => {
                    open += 1;
                    inside.push('(');
                }
                Some(')') if open > 0 => {
                    open -= 1;
                    inside.push(')');
                }
                Some(')') if self.peek() == Some(')') => {
                    self.next();
                    return Ok(inside);
                }
                Some(')') => {
                    return Err(Misread("a parenthesis that may be arithmetic or a command"));
                }
                Some(c) => inside.push(c),
                None => return Err(Misread("arithmetic is not closed")),
            }
        }
    }

    /// Reads `${ … }` after its brace.
    fn parameter(&mut self, pieces: &mut Pieces, quoted: bool) -> Read<()> {
        if self.peek().is_some_and(|c| c.is_whitespace() || c == '|') {
            return Err(Misread("`${ …; }` runs commands in newer shells"));
        }
        let length = self.peek() == Some('#') && self.peek_at(1).is_some_and(|c| c != '}');
        let indirect = self.peek() == Some('!');
        if length || indirect {
            self.next();
        }
        let name = self.name();
        if !indirect && !length && !name.is_empty() && self.peek() == Some('}') {
            self.next();
            pieces.0.push(Piece::Variable { name, quoted });
            return Ok(());
        }
        let sets =
            self.peek() == Some('=') || (self.peek() == Some(':') && self.peek_at(1) == Some('='));
        if sets && super::variables::dangerous_variable(&name) {
            return Err(Misread("it sets a variable that changes programs"));
        }
        // The rest may contain quotes and substitutions: those run, but the resulting text is not
        // known.
        self.deeper()?;
        let mut inner = Pieces::default();
        let mut last = ' ';
        loop {
            match self.peek() {
                None => return Err(Misread("a `${` is not closed")),
                Some('}') => {
                    self.next();
                    break;
                }
                Some('@')
                    if self.peek_at(1).is_some_and(|c| c.is_ascii_alphabetic())
                        && self.peek_at(2) == Some('}') =>
                {
                    return Err(Misread("it expands a variable as a prompt or as code"));
                }
                Some('[') if last == ' ' => {
                    // A subscript is arithmetic; only plain ones are accepted.
                    self.next();
                    let mut inside = String::new();
                    loop {
                        match self.next() {
                            Some(']') => break,
                            Some(c) if c.is_ascii_alphanumeric() || "_@*-+$#".contains(c) => {
                                inside.push(c);
                            }
                            Some(_) | None => return Err(Misread("a subscript that may run code")),
                        }
                    }
                    last = ']';
                    continue;
                }
                Some('\\') => {
                    self.next();
                    self.next();
                }
                Some('\'') if !quoted => {
                    self.next();
                    while self.next().ok_or(Misread("a quote is not closed"))? != '\'' {}
                }
                Some('\'') => {
                    self.next();
                }
                Some('"') => {
                    self.next();
                    self.quoted(&mut inner, Some('"'))?;
                }
                Some('$') => self.dollar(&mut inner, quoted)?,
                Some('`') => self.backquotes(&mut inner, quoted)?,
                Some(_) => {
                    self.next();
                }
            }
            last = 'x';
        }
        self.shallower();
        for piece in inner.0 {
            if let Piece::Output { script, .. } | Piece::Process { script } = piece {
                pieces.0.push(Piece::Output { script, quoted });
            }
        }
        if length {
            pieces.text('0', true);
        } else {
            // `${x[@]}`, `${@}` and `${!x*}` are several words even in quotes.
            let one = last != ']' && !indirect && !name.is_empty();
            pieces.0.push(Piece::Opaque { quoted: quoted && one });
        }
        Ok(())
    }

    fn backquotes(&mut self, pieces: &mut Pieces, quoted: bool) -> Read<()> {
        self.next();
        let mut inside = String::new();
        loop {
            match self.next() {
                Some('`') => break,
                Some('\\') => match self.next() {
                    Some(c @ ('`' | '\\' | '$')) => inside.push(c),
                    Some('"') if quoted => inside.push('"'),
                    Some(c) => {
                        inside.push('\\');
                        inside.push(c);
                    }
                    None => return Err(Misread("a backquote is not closed")),
                },
                Some(c) => inside.push(c),
                None => return Err(Misread("a backquote is not closed")),
            }
        }
        let script = self.nested(&inside)?;
        pieces.0.push(Piece::Output { script, quoted });
        Ok(())
    }

    /// Reads `$'…'` after its quote, with escapes as in bash. A shell without them sees another
    /// text, which begins with a dollar and so names nothing else.
    fn ansi_c(&mut self, pieces: &mut Pieces) -> Read<()> {
        loop {
            match self.next() {
                None => return Err(Misread("a quote is not closed")),
                Some('\'') => return Ok(()),
                Some('\\') => {
                    let c = match self.next() {
                        None => return Err(Misread("a quote is not closed")),
                        Some('n') => '\n',
                        Some('t') => '\t',
                        Some('x') => self.digits(16, 2)?,
                        Some('u') => self.digits(16, 4)?,
                        Some('U') => self.digits(16, 8)?,
                        Some('0'..='7') => {
                            self.unread();
                            self.digits(8, 3)?
                        }
                        Some('\\') => '\\',
                        Some('\'') => '\'',
                        Some('"') => '"',
                        Some('?') => '?',
                        Some(_) => return Err(Misread("an escape that makes a control character")),
                    };
                    pieces.text(c, true);
                }
                Some(c) => pieces.text(c, true),
            }
        }
    }

    fn digits(&mut self, radix: u32, most: usize) -> Read<char> {
        let mut value = 0_u32;
        let mut seen = 0;
        while seen < most
            && let Some(digit) = self.peek().and_then(|c| c.to_digit(radix))
        {
            self.next();
            value = value.saturating_mul(radix).saturating_add(digit);
            seen += 1;
        }
        match char::from_u32(value) {
            // Bytes above 0x7f combine with adjacent bytes to other characters.
            Some(c) if seen > 0 && (' '..='~').contains(&c) => Ok(c),
            Some('\n') if seen > 0 => Ok('\n'),
            Some(_) | None => Err(Misread("an escape that makes a hidden character")),
        }
    }
}

/// Whether arithmetic may set a variable that affects programs.
pub(super) fn sets_dangerous(arithmetic: &str) -> bool {
    let names = arithmetic.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    names.into_iter().any(super::variables::dangerous_variable)
}
