//! Parses server-sent events from bytes that arrive in pieces.

/// Largest event that is accepted, in bytes. The server's own limits are far below.
const MAX_EVENT: usize = 64 << 20;

/// One element of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Message { id: Option<String>, event: Option<String>, data: String },
    Comment(String),
}

/// The error for an event that is longer than an Overmind server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {MAX_EVENT} bytes")]
pub(crate) struct TooLong;

/// Accepts bytes in pieces of any size, and returns frames.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// The incomplete line.
    line: Vec<u8>,
    /// Whether the last byte was a CR. An LF right after it belongs to the same line break.
    after_cr: bool,
    begun: bool,
    id: Option<String>,
    event: Option<String>,
    data: Option<String>,
}

impl Parser {
    /// Accepts the next bytes, and adds the frames that are now complete.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<Frame>) -> Result<(), TooLong> {
        for piece in bytes.split_inclusive(|&b| b == b'\n' || b == b'\r') {
            let (text, ending) = match piece.split_last() {
                Some((&b @ (b'\n' | b'\r'), text)) => (text, Some(b)),
                Some(_) | None => (piece, None),
            };
            let swallowed = self.after_cr && ending == Some(b'\n') && text.is_empty();
            self.after_cr = ending == Some(b'\r');
            if swallowed {
                continue;
            }
            let held = self.line.len() + self.data.as_ref().map_or(0, String::len);
            if held + text.len() > MAX_EVENT {
                return Err(TooLong);
            }
            self.line.extend_from_slice(text);
            if ending.is_some() {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(&line);
                let line = match self.begun {
                    true => &*line,
                    false => line.strip_prefix('\u{feff}').unwrap_or(&line),
                };
                self.begun = true;
                self.line(line, out);
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &str, out: &mut Vec<Frame>) {
        if line.is_empty() {
            let (event, data) = (self.event.take(), self.data.take());
            if let Some(data) = data {
                out.push(Frame::Message { id: self.id.clone(), event, data });
            }
            return;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "" => out.push(Frame::Comment(value.to_owned())),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "event" => self.event = Some(value.to_owned()),
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            _ => {} // unknown fields are ignored, as the format says
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<Frame> {
        let (mut parser, mut out) = (Parser::default(), Vec::new());
        for piece in pieces {
            parser.push(piece, &mut out).unwrap();
        }
        out
    }

    fn message(id: Option<&str>, event: Option<&str>, data: &str) -> Frame {
        Frame::Message { id: id.map(Into::into), event: event.map(Into::into), data: data.into() }
    }

    #[test]
    fn messages_comments_and_names_are_read() {
        let text = b"\xef\xbb\xbfid: 1.0\ndata: {\"a\":\ndata: 1}\n\n: keepalive\n\nevent: done\ndata:x\n\n";
        assert_eq!(
            all(&[text]),
            [
                message(Some("1.0"), None, "{\"a\":\n1}"),
                Frame::Comment("keepalive".into()),
                message(Some("1.0"), Some("done"), "x"),
            ]
        );
    }

    #[test]
    fn an_event_without_data_or_end_is_ignored() {
        assert_eq!(all(&[b"id: 5\n\nevent: x\n\n"]), []);
        assert_eq!(all(&[b"data: x\n"]), []);
        assert_eq!(all(&[b"nonsense\nfoo: bar\n\n"]), []);
    }

    #[test]
    fn any_chunks_and_line_breaks_give_the_same_events() {
        let want = [message(Some("7"), None, "ä\nb"), message(Some("7"), None, "")];
        for ending in ["\n", "\r\n", "\r"] {
            let text = "id: 7\ndata: ä\ndata: b\n\ndata\n\n".replace('\n', ending).into_bytes();
            for size in 1..=text.len() {
                let pieces: Vec<&[u8]> = text.chunks(size).collect();
                // A CR at the very end leaves open whether an LF follows; the event is out anyway.
                assert_eq!(all(&pieces), want, "{ending:?} {size}");
            }
        }
    }

    #[test]
    fn an_endless_line_is_an_error_before_memory_is_full() {
        let (mut parser, mut out) = (Parser::default(), Vec::new());
        let piece = vec![b'x'; 1 << 20];
        let failed = (0..100).find(|_| parser.push(&piece, &mut out).is_err());
        assert_eq!(failed, Some(64));
    }

    #[test]
    fn no_bytes_panic() {
        // Every pair of interesting bytes in every order, whole and cut.
        let bytes = [b'\n', b'\r', b':', b' ', 0, 0xff, b'd', b'a', b't', 0xef, 0xbb];
        for a in bytes {
            for b in bytes {
                for c in bytes {
                    all(&[&[a, b, c, b'\n', b'\n']]);
                    all(&[&[a], &[b], &[c]]);
                }
            }
        }
    }
}
