//! An incremental parser of `text/event-stream`; the pieces may have any size.
//!
//! It follows the WHATWG rules: lines end in LF, CR or CRLF; `:` begins a comment (providers send
//! pings this way); several `data` lines are joined by LF; an empty line ends an event. Pieces may
//! be cut anywhere, also within a CRLF or a UTF-8 sequence. Invalid UTF-8 becomes U+FFFD, as the
//! rules require.
//!
//! There are two deviations. An event without data is dropped whatever its name, as in browsers. At
//! the end of the stream [`Parser::finish`] returns an event that lacks only its empty line,
//! because some servers end that way.

/// Longest accepted line, and longest accepted event, in bytes.
pub const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// One event with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `event` field; empty when the server sent none.
    pub name: String,
    /// The `data` lines, joined by LF.
    pub data: String,
}

/// The error for a stream with a line or an event of more than [`MAX_EVENT_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {MAX_EVENT_BYTES} bytes")]
pub struct TooLarge;

/// The state between two pieces of one stream.
#[derive(Debug, Default)]
pub struct Parser {
    /// The bytes of a line that is not complete yet.
    line: Vec<u8>,
    /// Whether the last byte was a CR, so that a following LF belongs to it.
    after_cr: bool,
    /// Whether the first line is over; only that line may begin with a byte order mark.
    past_first_line: bool,
    name: String,
    data: String,
    has_data: bool,
}

impl Parser {
    /// Takes the next piece and appends the events that it completes to `events`.
    ///
    /// # Errors
    ///
    /// [`TooLarge`]; the parser must not be fed again after that.
    pub fn push(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if self.after_cr {
                self.after_cr = false;
                if bytes[0] == b'\n' {
                    bytes = &bytes[1..];
                    continue;
                }
            }
            let Some(end) = bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) else {
                if self.line.len() + bytes.len() > MAX_EVENT_BYTES {
                    return Err(TooLarge);
                }
                self.line.extend_from_slice(bytes);
                return Ok(());
            };
            self.after_cr = bytes[end] == b'\r';
            if self.line.len() + end > MAX_EVENT_BYTES {
                return Err(TooLarge);
            }
            if self.line.is_empty() {
                // The common case: a whole line within one piece needs no copy.
                self.take_line(&bytes[..end], events)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.take_line(&line, events)?;
                line.clear();
                self.line = line;
            }
            bytes = &bytes[end + 1..];
        }
        Ok(())
    }

    /// Ends the stream. Returns an event that lacks only the closing empty line.
    ///
    /// # Errors
    ///
    /// [`TooLarge`], as for [`push`](Self::push).
    pub fn finish(mut self) -> Result<Option<Event>, TooLarge> {
        let mut events = Vec::new();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, &mut events)?;
        }
        self.take_line(b"", &mut events)?;
        Ok(events.pop())
    }

    fn take_line(&mut self, mut line: &[u8], events: &mut Vec<Event>) -> Result<(), TooLarge> {
        if !self.past_first_line {
            self.past_first_line = true;
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = std::mem::take(&mut self.data);
            if std::mem::take(&mut self.has_data) {
                events.push(Event { name, data });
            }
            return Ok(());
        }
        let (field, value) = match line.iter().position(|b| *b == b':') {
            Some(0) => return Ok(()),
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &b""[..]),
        };
        match field {
            b"data" => {
                if self.data.len() + value.len() >= MAX_EVENT_BYTES {
                    return Err(TooLarge);
                }
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(&String::from_utf8_lossy(value));
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            // `id` and `retry` are for clients that reconnect; a model call is made again instead.
            _ => {}
        }
        Ok(())
    }
}

/// Parses a whole stream in pieces of `piece` bytes (at least 1). It is for tests and fuzzing: the
/// result must not depend on `piece`.
///
/// # Errors
///
/// [`TooLarge`].
pub fn parse_all(bytes: &[u8], piece: usize) -> Result<Vec<Event>, TooLarge> {
    let mut parser = Parser::default();
    let mut events = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        parser.push(piece, &mut events)?;
    }
    events.extend(parser.finish()?);
    Ok(events)
}

#[cfg(test)]
mod tests {
    use overmind_testkit::soak;
    use proptest::prelude::*;

    use super::*;

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.into(), data: data.into() }
    }

    #[track_caller]
    fn check(stream: &str, want: &[Event]) {
        for piece in 1..=stream.len().max(1) {
            assert_eq!(parse_all(stream.as_bytes(), piece).unwrap(), want, "pieces of {piece}");
        }
    }

    #[test]
    fn lines_may_end_in_lf_cr_or_crlf_even_mixed() {
        let want = [event("a", "1\n2"), event("", "3")];
        check("event: a\ndata: 1\ndata: 2\n\ndata: 3\n\n", &want);
        check("event: a\r\ndata: 1\r\ndata: 2\r\n\r\ndata: 3\r\n\r\n", &want);
        check("event: a\rdata: 1\rdata: 2\r\rdata: 3\r\r", &want);
        check("event: a\r\ndata: 1\ndata: 2\r\r\ndata: 3\n\r\n", &want);
    }

    #[test]
    fn comments_unknown_fields_and_empty_events_are_skipped() {
        check(
            ": ping\n\n:\nid: 7\nretry: 10\nfoo: bar\ndata:x\n\nevent: lost\n\n",
            &[event("", "x")],
        );
    }

    #[test]
    fn only_one_space_after_the_colon_is_syntax() {
        check("data:  two\ndata\ndata:a: b\n\n", &[event("", " two\n\na: b")]);
    }

    #[test]
    fn text_beyond_ascii_survives_any_cut() {
        check("data: grüße 日本 🦀\n\n", &[event("", "grüße 日本 🦀")]);
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_first_field() {
        check("\u{feff}data: x\n\ndata: \u{feff}y\n\n", &[event("", "x"), event("", "\u{feff}y")]);
    }

    #[test]
    fn the_last_event_needs_no_blank_line() {
        check("data: x\n\ndata: [DONE]", &[event("", "x"), event("", "[DONE]")]);
        check("data: x\n", &[event("", "x")]);
    }

    #[test]
    fn invalid_utf8_becomes_replacement_characters() {
        assert_eq!(parse_all(b"data: a\xFFb\n\n", 3).unwrap(), [event("", "a\u{fffd}b")]);
    }

    #[test]
    fn an_endless_line_is_refused_before_memory_is_full() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1024 * 1024];
        let fed = (0..64).take_while(|_| parser.push(&piece, &mut Vec::new()).is_ok()).count();
        assert_eq!(fed, MAX_EVENT_BYTES / piece.len());
        assert!(parser.line.len() <= MAX_EVENT_BYTES);
    }

    #[test]
    fn an_event_with_endless_lines_is_refused() {
        let mut parser = Parser::default();
        let line = [b"data: ".as_slice(), &vec![b'x'; 1024 * 1024], b"\n"].concat();
        let fed = (0..64).take_while(|_| parser.push(&line, &mut Vec::new()).is_ok()).count();
        assert!(fed < 17, "{fed} MiB were taken");
    }

    /// Bytes that make streams likely: field names, line ends, and arbitrary bytes.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            Just(b"data".to_vec()),
            Just(b"event".to_vec()),
            Just(b": ".to_vec()),
            Just(b":".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just("ü🦀".as_bytes().to_vec()),
            Just(b"\xEF\xBB\xBF".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
        ];
        proptest::collection::vec(word, 0..60).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: soak::count(400, 10_000),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn any_chunks_give_the_same_events(
            stream in stream(),
            cuts in proptest::collection::vec(0_usize..200, 0..20),
        ) {
            let whole = parse_all(&stream, usize::MAX).unwrap();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.sort_unstable();
            let mut parser = Parser::default();
            let mut events = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([stream.len()]) {
                parser.push(&stream[from..cut], &mut events).unwrap();
                from = cut;
            }
            events.extend(parser.finish().unwrap());
            prop_assert_eq!(&events, &whole);
            prop_assert_eq!(parse_all(&stream, 1).unwrap(), whole);
        }
    }
}
