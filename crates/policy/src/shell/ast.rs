//! The syntax tree of a command text, without knowledge about programs.

/// A list of statements in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Script {
    pub(crate) chains: Vec<Chain>,
}

/// Pipelines joined by `&&` and `||`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chain {
    pub(crate) pipelines: Vec<(Join, Vec<Command>)>,
}

/// How a pipeline is joined to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    First,
    And,
    Or,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    Simple(Simple),
    Compound(Compound),
    Function { name: String, body: Script },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Simple {
    pub(crate) assigns: Vec<Assign>,
    pub(crate) words: Vec<Word>,
    pub(crate) redirects: Vec<Redirect>,
}

/// `NAME=value` before a command or alone. `append` marks `NAME+=value` and array elements, whose
/// values are not followed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assign {
    pub(crate) name: String,
    pub(crate) values: Vec<Word>,
    pub(crate) opaque: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `( … )`
    Subshell,
    /// `{ …; }`
    Group,
    /// `while`, `until`, `for`, `select`
    Loop,
    /// `if`, `case`
    Branch,
    /// `[[ … ]]` and `(( … ))`
    Test,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compound {
    pub(crate) shape: Shape,
    /// The variable of a `for`.
    pub(crate) variable: Option<String>,
    /// The words that a `for` iterates over, a `case` inspects, or a test contains.
    pub(crate) words: Vec<Word>,
    pub(crate) bodies: Vec<Script>,
    pub(crate) redirects: Vec<Redirect>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Redirect {
    pub(crate) kind: RedirectKind,
    pub(crate) target: Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectKind {
    Read,
    Write,
    ReadWrite,
    /// `>&` or `<&`: a number, `-` or, in bash, a file.
    Duplicate,
    /// The target is the text for the command's standard input.
    Here,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Word {
    pub(crate) pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    Text {
        text: String,
        quoted: bool,
    },
    Variable {
        name: String,
        quoted: bool,
    },
    /// Its text is known only when the command runs, but it has no effects.
    Opaque {
        quoted: bool,
    },
    /// `$( )` or backquotes: the output becomes text.
    Output {
        script: Script,
        quoted: bool,
    },
    /// `<( )` and `>( )`: replaced by a file name.
    Process {
        script: Script,
    },
}

impl Word {
    /// The text, if the whole word is unquoted text.
    pub(crate) fn bare(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Text { text, quoted: false }] => Some(text),
            _ => None,
        }
    }

    /// The text, if it is known here, with quotes removed and nothing expanded.
    pub(crate) fn literal(&self) -> Option<String> {
        let mut all = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text { text, .. } => all.push_str(text),
                Piece::Variable { .. }
                | Piece::Opaque { .. }
                | Piece::Output { .. }
                | Piece::Process { .. } => return None,
            }
        }
        Some(all)
    }

    pub(crate) fn is_quoted(&self) -> bool {
        self.pieces.iter().any(|piece| match piece {
            Piece::Text { quoted, .. }
            | Piece::Variable { quoted, .. }
            | Piece::Opaque { quoted }
            | Piece::Output { quoted, .. } => *quoted,
            Piece::Process { .. } => false,
        })
    }
}
