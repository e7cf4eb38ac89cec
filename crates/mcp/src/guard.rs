//! Limits the output of a server before it is parsed, and repairs messages that strict JSON parsers
//! would refuse.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use overmind_core::json;
use tokio::io::{AsyncRead, ReadBuf};

/// Longest message: enough for a result with a picture.
pub(crate) const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// Maximum number of bytes of lines that are no messages, over the lifetime of a connection. Some
/// servers print a greeting.
pub(crate) const MAX_GARBAGE_BYTES: usize = 256 << 10;

/// Why we ended a connection, for later errors.
pub(crate) type Reason = Arc<Mutex<Option<String>>>;

/// Passes a server's output through, line by line, and fails once a limit is exceeded: such a
/// server is disconnected. A server that sends an unreadable message is disconnected, too, because
/// a caller would wait for it forever.
#[derive(Debug)]
pub(crate) struct Guarded<R> {
    inner: R,
    /// The incomplete current line.
    line: Vec<u8>,
    /// Complete lines that were not read yet, and the position up to which they were.
    ready: Vec<u8>,
    given: usize,
    garbage: usize,
    reason: Reason,
    /// Incremented as soon as the server announces a changed list of tools. The library reports the
    /// announcement in a separate task, possibly after the answer that follows it.
    announced: Arc<AtomicU64>,
    matched: usize,
}

/// In a result's text it is no announcement; that only causes an unnecessary check.
const ANNOUNCEMENT: &[u8] = b"notifications/tools/list_changed";

/// The text that every message contains.
const VERSION: &[u8] = b"\"jsonrpc\"";

impl<R> Guarded<R> {
    pub(crate) fn new(inner: R, reason: Reason, announced: Arc<AtomicU64>) -> Self {
        let (line, ready) = (Vec::new(), Vec::new());
        Self { inner, line, ready, given: 0, garbage: 0, reason, announced, matched: 0 }
    }

    fn look(&mut self, bytes: &[u8]) -> Result<(), String> {
        for &byte in bytes {
            // Its first letter, `n`, occurs again only where starting over is right.
            self.matched = match byte == ANNOUNCEMENT[self.matched] {
                true => self.matched + 1,
                false => usize::from(byte == ANNOUNCEMENT[0]),
            };
            if self.matched == ANNOUNCEMENT.len() {
                self.announced.fetch_add(1, Ordering::SeqCst);
                self.matched = 0;
            }
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() > MAX_MESSAGE_BYTES {
                return Err(format!("it sent a message of more than {MAX_MESSAGE_BYTES} bytes"));
            }
            if self.line.first().is_some_and(|first| !matches!(first, b'{' | b'[' | b'\n')) {
                self.garbage += piece.len();
            }
            if piece.ends_with(b"\n") {
                self.whole()?;
            }
        }
        if self.garbage > MAX_GARBAGE_BYTES {
            return Err(format!(
                "it sent more than {MAX_GARBAGE_BYTES} bytes that are no messages"
            ));
        }
        Ok(())
    }

    /// Handles the end of a line.
    fn whole(&mut self) -> Result<(), String> {
        // A line without a version is no message of the protocol, and its reader skips it.
        let is_message = self.line.first() == Some(&b'{')
            && self.line.windows(VERSION.len()).any(|at| at == VERSION);
        match json::mended(&self.line) {
            Cow::Owned(mended) if is_message => self.ready.extend_from_slice(&mended),
            Cow::Owned(_) | Cow::Borrowed(_) => self.ready.extend_from_slice(&self.line),
        }
        if is_message && let Err(err) = json::read::<serde_json::Value>(&self.line) {
            return Err(format!("it sent a message that cannot be read: {err}"));
        }
        self.line.clear();
        // One picture must not keep megabytes allocated.
        self.line.shrink_to(64 << 10);
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Guarded<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.given == this.ready.len() {
            this.ready.clear();
            this.ready.shrink_to(64 << 10);
            this.given = 0;
            let mut bytes = [0; 8 << 10];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                // A line without an end is no message.
                return Poll::Ready(Ok(()));
            }
            if let Err(why) = this.look(read.filled()) {
                *this.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
                return Poll::Ready(Err(io::Error::other(why)));
            }
        }
        let left = &this.ready[this.given..];
        let left = &left[..left.len().min(buf.remaining())];
        buf.put_slice(left);
        this.given += left.len();
        Poll::Ready(Ok(()))
    }
}

/// The last part of a server's standard error.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    kept: VecDeque<u8>,
    total: u64,
}

const TAIL_BYTES: usize = 2 << 10;

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let last = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let over = (self.kept.len() + last.len()).saturating_sub(TAIL_BYTES);
        self.kept.drain(..over.min(self.kept.len()));
        self.kept.extend(last);
    }

    /// One line that can be shown: without control characters, and only the last words.
    pub(crate) fn words(&self) -> Option<String> {
        let bytes: Vec<u8> = self.kept.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let (text, _) = crate::vet::clean(&text);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(4)..].join(" | ");
        let from = last.ceil_char_boundary(last.len().saturating_sub(500));
        (!last.is_empty()).then(|| last[from..].to_owned())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn read(bytes: &[u8]) -> Result<usize, String> {
        let reason = Reason::default();
        let mut guarded = Guarded::new(bytes, Arc::clone(&reason), Arc::default());
        let (mut buffer, mut total) = (vec![0; 64 << 10], 0);
        loop {
            match guarded.read(&mut buffer).await {
                Ok(0) => return Ok(total),
                Ok(count) => total += count,
                Err(_) => return Err(reason.lock().unwrap().clone().expect("a reason is kept")),
            }
        }
    }

    #[tokio::test]
    async fn messages_and_a_greeting_are_forwarded() {
        let text = b"Server listening\n{\"jsonrpc\":\"2.0\"}\n[]\n".repeat(100);
        assert_eq!(read(&text).await, Ok(text.len()));
    }

    #[tokio::test]
    async fn a_change_notification_is_processed_before_the_following_answer() {
        let announced = Arc::<AtomicU64>::default();
        let text = b"{\"method\":\"nnotifications/tools/list_changed\"}\n{\"id\":1}\n";
        let mut guarded = Guarded::new(&text[..], Reason::default(), Arc::clone(&announced));
        let mut byte = [0];
        while guarded.read(&mut byte).await.unwrap() == 1 && byte != *b"\n" {}
        assert_eq!(announced.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn half_characters_are_replaced_and_unreadable_messages_disconnect() {
        let text = b"chat {\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"left \\ud83d right\"}\n";
        let mut guarded = Guarded::new(&text[..], Reason::default(), Arc::default());
        let mut all = String::new();
        guarded.read_to_string(&mut all).await.unwrap();
        assert_eq!(all.len(), text.len());
        assert!(all.contains(r"left \ufffd right"), "{all}");
        for line in [r#"{"jsonrpc":"2.0","id":1,"result":}"#, r#"{"jsonrpc":"2.0""#] {
            let why = read(format!("{line}\n").as_bytes()).await.unwrap_err();
            assert!(why.contains("cannot be read"), "{why}");
        }
        assert_eq!(read(b"{ not a message\n").await, Ok(16));
    }

    #[tokio::test]
    async fn endless_lines_and_endless_output_are_cut_off() {
        let mut long = vec![b'{'];
        long.resize(MAX_MESSAGE_BYTES + 10, b'x');
        assert!(read(&long).await.unwrap_err().contains("a message of more than"));
        assert!(read(&b"chatter\n".repeat(64 << 10)).await.unwrap_err().contains("no messages"));
    }

    #[test]
    fn the_last_output_is_kept_as_plain_text() {
        let mut tail = Tail::default();
        assert_eq!(tail.words(), None);
        tail.push(&b"x".repeat(100_000));
        tail.push(b"\n\x1b[31mError: no key\n\n");
        assert_eq!(tail.total, 100_021);
        assert!(tail.words().unwrap().ends_with("| [31mError: no key"));
    }
}
