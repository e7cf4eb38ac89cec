//! Outgoing connections of a sandbox whose network is the mesh: to the session's services.
//!
//! A socket belongs to the network in which it was made, wherever its process goes later. So the
//! launcher makes [`MOST`] of them before it leaves the host's network, and every outgoing
//! connection uses one of these. No process outside takes orders: the launcher itself connects
//! them, and only to the ports that were fixed at the start. No text from inside selects a port,
//! because the listener that accepts a connection determines its target.
//!
//! A used socket is taken back and used again. If its peer has not accepted all bytes yet, it waits
//! first.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect_unspec, socket_with, sockopt};
use serde::{Deserialize, Serialize};

use crate::init::door::reach;
use crate::sys;

/// Maximum number of connections to services at once. More wait in the kernel.
pub(crate) const MOST: usize = 64;
/// How long the last bytes may be in transit.
const REST: Duration = Duration::from_secs(10);
/// The interval of checks of the waiting sockets, if no other is free.
const LOOK: Duration = Duration::from_millis(20);

/// One port for outgoing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reach {
    /// The port inside, on the loopback.
    pub(crate) port: u16,
    /// The port on the host's loopback: the same one, except for a probe.
    pub(crate) leads_to: u16,
}

/// Sockets of the host's network.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    ready: Vec<OwnedFd>,
    /// Used sockets that wait, with the start of the wait.
    resting: Vec<(OwnedFd, Instant)>,
}

impl Sockets {
    /// Makes the sockets in the current network of this process.
    ///
    /// # Errors
    ///
    /// Fails if a socket cannot be made.
    pub(crate) fn of_this_network() -> Result<Self, Errno> {
        let make = |_| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            Ok(socket)
        };
        let ready = (0..MOST).map(make).collect::<Result<_, Errno>>()?;
        Ok(Self { ready, resting: Vec::new() })
    }

    pub(crate) fn has_one(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Begins to connect one of them.
    ///
    /// # Errors
    ///
    /// Fails if nobody listens there, or no socket is left.
    pub(crate) fn connected(&mut self, to: SocketAddr, now: Instant) -> Result<OwnedFd, Errno> {
        let socket = self.ready.pop().ok_or(Errno::MFILE)?;
        match reach(&socket, &to) {
            Ok(()) => Ok(socket),
            Err(err) => {
                self.put(socket, false, now);
                Err(err)
            }
        }
    }

    /// Takes a socket back. With `told`, its peer was informed that nothing more comes, so the sent
    /// bytes must arrive; otherwise the peer sees a broken connection.
    pub(crate) fn put(&mut self, socket: OwnedFd, told: bool, now: Instant) {
        match told && !is_over(&socket) {
            true => self.resting.push((socket, now)),
            false => self.renew(socket),
        }
    }

    /// Checks the waiting sockets.
    pub(crate) fn look(&mut self, now: Instant) {
        let over = |(socket, since): &mut (OwnedFd, Instant)| {
            now.duration_since(*since) >= REST || is_over(socket)
        };
        let over: Vec<_> = self.resting.extract_if(.., over).collect();
        for (socket, _) in over {
            self.renew(socket);
        }
    }

    /// The time of the next check, if nothing happens: only if all are in use.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        (self.ready.is_empty() && !self.resting.is_empty()).then(|| now + LOOK)
    }

    /// Ends the rest of its connection. A socket that cannot be reused is closed, and there is one
    /// less.
    fn renew(&mut self, socket: OwnedFd) {
        // The error of the abort is reported once, to us.
        if connect_unspec(&socket).is_ok() && sockopt::socket_error(&socket).is_ok() {
            self.ready.push(socket);
        }
    }
}

/// Whether this side has nothing left of its connection.
fn is_over(socket: &OwnedFd) -> bool {
    /// The kernel's `TCP_CLOSE`.
    const CLOSE: u8 = 7;
    sys::tcp_state(socket.as_fd()).is_ok_and(|state| state == CLOSE)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    /// Reaches it, and hands the connection to a test, which may wait.
    fn connected(sockets: &mut Sockets, to: SocketAddr) -> TcpStream {
        let stream = TcpStream::from(sockets.connected(to, Instant::now()).unwrap());
        stream.set_nonblocking(false).unwrap();
        stream
    }

    #[test]
    fn a_socket_is_reused_and_leads_to_its_current_target() {
        let mut sockets = Sockets::of_this_network().unwrap();
        sockets.ready.truncate(1);
        let (one, two) = (listener(), listener());
        for n in 0u8..100 {
            let (listener, at) = if n % 2 == 0 { &one } else { &two };
            let mut ours = connected(&mut sockets, *at);
            assert!(!sockets.has_one());
            let (mut theirs, _) = listener.accept().unwrap();
            ours.write_all(&[n]).unwrap();
            let mut heard = [0];
            theirs.read_exact(&mut heard).unwrap();
            theirs.write_all(&[n, n]).unwrap();
            assert_eq!(heard, [n]);
            // Ended in good order, by the other side first, or not at all.
            match n % 3 {
                0 => {
                    ours.shutdown(std::net::Shutdown::Write).unwrap();
                    drop(theirs);
                    sockets.put(ours.into(), true, Instant::now());
                }
                1 => {
                    drop(theirs);
                    sockets.put(ours.into(), false, Instant::now());
                }
                _ => {
                    sockets.put(ours.into(), false, Instant::now());
                    let broken = theirs.read(&mut heard).unwrap_err();
                    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);
                }
            }
            while !sockets.has_one() {
                sockets.look(Instant::now());
            }
        }
    }

    #[test]
    fn a_slow_reader_gets_the_last_bytes() {
        let mut sockets = Sockets::of_this_network().unwrap();
        sockets.ready.truncate(1);
        let (listener, at) = listener();
        let mut ours = connected(&mut sockets, at);
        let (mut theirs, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        // More than the other end's buffer takes: some of it waits on this side.
        let (mut sent, piece) = (0, vec![7; 1 << 20]);
        while let Ok(count) = ours.write(&piece) {
            sent += count;
        }
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        sockets.put(ours.into(), true, Instant::now());
        sockets.look(Instant::now());
        assert!(!sockets.has_one() && sockets.due(Instant::now()).is_some());
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).unwrap();
        assert_eq!(heard.len(), sent);
        drop(theirs);
        while !sockets.has_one() {
            sockets.look(Instant::now());
        }
        assert_eq!(sockets.due(Instant::now()), None);
    }

    #[test]
    fn unread_output_delays_the_end_only_briefly() {
        let mut sockets = Sockets::of_this_network().unwrap();
        sockets.ready.truncate(1);
        let (listener, at) = listener();
        let ours = connected(&mut sockets, at);
        let (theirs, _) = listener.accept().unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let now = Instant::now();
        sockets.put(ours.into(), true, now);
        sockets.look(now + REST / 2);
        assert!(!sockets.has_one());
        sockets.look(now + REST);
        assert!(sockets.has_one());
        drop(theirs);
    }

    #[test]
    fn a_port_without_a_listener_uses_no_socket() {
        let mut sockets = Sockets::of_this_network().unwrap();
        let nobody = listener().1;
        for _ in 0..3 * MOST {
            // Said at once, or by what is read of it.
            if let Ok(socket) = sockets.connected(nobody, Instant::now()) {
                sockets.put(socket, false, Instant::now());
            }
        }
        assert_eq!((sockets.ready.len(), sockets.resting.len()), (MOST, 0));
    }
}
