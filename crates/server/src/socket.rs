//! A connection that may not stall: a write must be accepted within a time limit.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails a write that has been pending for too long. Without it a client that stops reading
/// would hold its connection, and the pages waiting in it, for ever.
pub(crate) struct Stalling<Io> {
    inner: Io,
    limit: Duration,
    /// Runs from the first write that had to wait until one gets through.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<Io> Stalling<Io> {
    pub(crate) fn new(inner: Io, limit: Duration) -> Self {
        Self { inner, limit, deadline: None }
    }

    fn judge<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.deadline = None;
            return poll;
        }
        let limit = self.limit;
        // The socket's time is the kernel's, not the engine's clock: a test that stops the
        // engine's clock still wants its connections to behave.
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let text = "the client does not read what it is sent";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Stalling<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Stalling<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.judge(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.judge(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(cx);
        self.judge(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.judge(cx, poll)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blocked_write_fails_after_the_limit_and_not_before() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut ours = Stalling::new(ours, Duration::from_secs(10));
        ours.write_all(b"12345678").await.unwrap();
        let began = Instant::now();
        let err = ours.write_all(b"9").await.unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 10);
        // A reader that comes back in time restarts the limit.
        let mut buf = [0; 8];
        theirs.read_exact(&mut buf).await.unwrap();
        let mut ours = Stalling { deadline: None, ..ours };
        ours.write_all(b"9").await.unwrap();
        assert_eq!(theirs.read_u8().await.unwrap(), b'9');
    }
}
