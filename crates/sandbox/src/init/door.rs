//! The proxy of a sandbox whose only network is the mesh: its listeners inside, and where they
//! lead.
//!
//! A sandbox that must not reach the server has no listener for it, but everything else.
//!
//! The launcher is outside of the process namespace and inside of the network namespace. It listens
//! there on [`DOOR_PORT`] of the loopback, and for each connection opens the server's unix socket
//! again, so it reaches the current server. It first sends which sandbox the connection comes from,
//! then copies bytes both ways and reads none of them. So no text from inside can change their
//! target or their sender. The socket's directory was opened before the namespaces were made, and
//! no process inside can reach the launcher.
//!
//! The proxy also forwards incoming connections: a connection to a port of the session on the
//! host's loopback goes to the same port inside. These host listeners were bound before the network
//! namespace existed, and lead to no other port. And it forwards outgoing connections: a connection
//! inside to a port of a service in the session's environment goes to that service, see
//! [`super::outward`].
//!
//! A DNS server beside it listens on port 53. It answers at once that a name does not exist,
//! because programs that ignore `nsswitch.conf` would otherwise wait for an answer.
//!
//! There is one thread with one `poll`. For each direction of a connection, up to [`PIECE`] unsent
//! bytes are buffered, and no more is read meanwhile. Connections to the server, incoming and
//! outgoing ones are counted separately, so none of these kinds delays another. The proxy ends with
//! the launcher.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use overmind_core::enclosure::{DOOR_PORT, NAMES_PORT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    addr::SocketAddrArg, connect, send, shutdown, socket_with, sockopt,
};

use crate::init::mutation::{Layer, skips};
use crate::init::outward::Sockets;
use crate::init::spec::{Doing, Kind, Step, Stop};

/// Maximum number of connections to the server at once, and of incoming ones. More wait in the
/// kernel.
const MOST: usize = 128;
/// Maximum number of bytes of one read, and of the buffer of each direction.
const PIECE: usize = 64 << 10;
/// Maximum number of reads of one direction before others have their turn.
const TURNS: usize = 8;
/// Maximum number of connections accepted at one port before others have their turn.
const ACCEPTED: usize = 16;
/// How long a connection waits for a server that is being restarted.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);
/// How long the inside may continue to send after the server has ended the connection.
const LINGER: Duration = Duration::from_secs(10);
/// How long a command's last output is forwarded after its end, in total and while nobody accepts
/// any of it. Both are less than the time that an aborted call gets to end.
const LAST_WORDS: Duration = Duration::from_secs(3);
const UNHEARD: Duration = Duration::from_secs(1);

/// The targets of the proxy, found before there are namespaces, and fixed from then on.
#[derive(Debug)]
pub(crate) struct Way {
    /// The directory of the server's socket, and the socket's name in it.
    server: Option<(OwnedFd, PathBuf)>,
    /// The line that is sent first on each connection.
    whose: Vec<u8>,
    /// Listeners on the host's loopback for incoming connections.
    host: Vec<(TcpListener, u16)>,
    /// Outgoing ports inside, with their targets on the host's loopback.
    out: Vec<(u16, SocketAddr)>,
    /// Sockets of the host's network; outgoing connections use only these.
    sockets: Sockets,
}

impl Way {
    /// Finds the targets; `None` if this kind of sandbox forwards nothing.
    pub(crate) fn find(kind: &Kind) -> Result<Option<Self>, Stop> {
        if !kind.has_way() {
            return Ok(None);
        }
        let socket = kind.door();
        #[cfg(feature = "mutations")]
        let socket = crate::init::mutation::door().or(socket);
        let reaches = kind.reaches().iter().map(|reach| (reach.port, reach.leads_to));
        #[cfg(feature = "mutations")]
        let reaches = crate::init::mutation::ways_out(reaches);
        let out: Vec<(u16, SocketAddr)> =
            reaches.map(|(port, end)| (port, (Ipv4Addr::LOCALHOST, end).into())).collect();
        let sockets = match out.is_empty() {
            true => Sockets::default(),
            false => Sockets::of_this_network().doing(Step::Start, "sockets of the host's")?,
        };
        let server = socket.map(place_of).transpose()?;
        let (whose, host) = (Vec::new(), Vec::new());
        Ok(Some(Self { server, whose, host, out, sockets }))
    }

    /// Sets the line that is sent on each connection before any bytes from inside.
    pub(crate) fn say_first(&mut self, whose: String) {
        self.whose = whose.into_bytes();
    }

    /// Accepts incoming connections at these ports of the host's loopback; returns the ports that
    /// are in use by others.
    pub(crate) fn let_in(&mut self, ports: &[u16]) -> Vec<u16> {
        let mut taken = Vec::new();
        for port in ports {
            let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, *port))
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
            match bound {
                Ok(listener) => self.host.push((listener, *port)),
                Err(_) => taken.push(*port),
            }
        }
        taken
    }
}

/// The directory of the server's socket, opened, and the socket's name.
fn place_of(socket: &Path) -> Result<(OwnedFd, PathBuf), Stop> {
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(Stop::BadConfig(format!("{} is no socket", socket.display())));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())
        .doing(Step::Start, format_args!("the server's directory {}", directory.display()))?;
    Ok((directory, name.into()))
}

/// The listeners inside, and the connections that they accepted.
#[derive(Debug)]
pub(crate) struct Door {
    names: UdpSocket,
    /// The directory in which the server's socket is.
    directory: Option<OwnedFd>,
    /// The listeners, inside and outside, with their targets.
    listeners: Vec<(TcpListener, To)>,
    carrier: Carrier,
}

impl Door {
    /// Opens the proxy in a network whose loopback is up.
    pub(crate) fn open(way: Way) -> Result<Self, Stop> {
        let at = |port: u16| (Ipv4Addr::LOCALHOST, port);
        let make = || -> io::Result<(UdpSocket, Vec<(TcpListener, To)>)> {
            let mut inside = Vec::new();
            if way.server.is_some() {
                inside.push((TcpListener::bind(at(DOOR_PORT))?, To::Server));
            }
            for (port, end) in &way.out {
                inside.push((TcpListener::bind(at(*port))?, To::Host(*end)));
            }
            if skips(Layer::OneDoor) {
                std::mem::forget(TcpListener::bind(at(0))?);
            }
            Ok((UdpSocket::bind(at(NAMES_PORT))?, inside))
        };
        let (names, inside) = make().doing(Step::Network, "the door")?;
        Self::of(names, inside, way).doing(Step::Network, "the door")
    }

    /// `inside` are the listeners there, with their targets.
    fn of(names: UdpSocket, inside: Vec<(TcpListener, To)>, way: Way) -> io::Result<Self> {
        let Way { server, whose, host, out: _, sockets } = way;
        let host = host.into_iter().map(|(listener, port)| (listener, To::Inside(port)));
        let listeners: Vec<(TcpListener, To)> = inside.into_iter().chain(host).collect();
        names.set_nonblocking(true)?;
        for (listener, _) in &listeners {
            listener.set_nonblocking(true)?;
        }
        let (directory, name) = server.unzip();
        let server = name.map(|name| SocketAddrUnix::new(&name)).transpose()?;
        let scratch = vec![0; PIECE];
        let carrier = Carrier { server, whose, sockets, open: Vec::new(), scratch };
        Ok(Self { names, directory, listeners, carrier })
    }

    /// Changes to the directory of the server's socket. Call it after the last fork, because no
    /// other process may have that working directory.
    pub(crate) fn stand(&self) -> Result<(), Stop> {
        let Some(directory) = &self.directory else { return Ok(()) };
        rustix::process::fchdir(directory).doing(Step::Network, "the door")
    }

    /// Forwards bytes until one of `others` is readable or closed; returns which.
    ///
    /// # Errors
    ///
    /// Fails if polling fails. An error of one connection ends only that connection.
    pub(crate) fn wait<const N: usize>(
        &mut self,
        others: [BorrowedFd<'_>; N],
    ) -> io::Result<[bool; N]> {
        loop {
            let mut fds: Vec<PollFd<'_>> =
                others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            fds.push(PollFd::new(&self.names, PollFlags::IN));
            for (listener, to) in &self.listeners {
                if self.carrier.has_room(*to) {
                    fds.push(PollFd::new(listener, PollFlags::IN));
                }
            }
            self.carrier.interests(&mut fds);
            let timeout = self.carrier.due(Instant::now());
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[N] {
                names(&self.names);
            }
            self.carrier.carry(Instant::now());
            for (listener, to) in &self.listeners {
                self.carrier.accept(listener, *to);
            }
            if ready[..N].contains(&true) {
                return Ok(std::array::from_fn(|n| ready[n]));
            }
        }
    }
}

impl Door {
    /// Forwards the bytes from inside that are not delivered yet. It is for the time after the last
    /// process inside has ended: a host's kernel would also deliver what an ended program had sent.
    ///
    /// It ends when everything is delivered, when the receiver accepts nothing for [`UNHEARD`], and
    /// in any case after [`LAST_WORDS`]. The command's exit is already known, so no error here
    /// changes it.
    pub(crate) fn finish(mut self) {
        let began = Instant::now();
        let (mut moved, mut heard) = (began, self.carrier.heard());
        // No new connections are accepted. One that came from inside and was closed there may still
        // wait.
        self.listeners.retain(|(_, to)| !matches!(to, To::Inside(_)));
        loop {
            let now = Instant::now();
            self.carrier.carry(now);
            let mut came = false;
            for (listener, to) in &self.listeners {
                came |= self.carrier.accept(listener, *to);
            }
            self.carrier.open.retain(|one| !one.inside_said_all());
            let so_far = self.carrier.heard();
            if so_far != heard || self.carrier.somebody_is_away() {
                (moved, heard) = (now, so_far);
            }
            let until = (began + LAST_WORDS).min(moved + UNHEARD);
            if now >= until || (self.carrier.open.is_empty() && !came) {
                return;
            }
            if came {
                continue;
            }
            let mut fds = Vec::new();
            self.carrier.interests(&mut fds);
            let due = self.carrier.due(now);
            let until = timespec(until.saturating_duration_since(now));
            match poll(&mut fds, due.into_iter().chain(until).min().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Rounded up, so that the time has passed at the next check.
fn timespec(wait: Duration) -> Option<Timespec> {
    Timespec::try_from(wait + Duration::from_millis(1)).ok()
}

/// Forwards connections to one socket, to ports inside and to ports of the host.
#[derive(Debug)]
struct Carrier {
    /// The server's socket, if the sandbox may reach it.
    server: Option<SocketAddrUnix>,
    whose: Vec<u8>,
    sockets: Sockets,
    open: Vec<Connection>,
    scratch: Vec<u8>,
}

/// The target of a connection, which depends on the listener that accepted it.
#[derive(Clone, Copy, Debug)]
enum To {
    Server,
    Inside(u16),
    /// A port of the host's loopback.
    Host(SocketAddr),
}

#[derive(Debug)]
struct Connection {
    /// The accepted side.
    from: OwnedFd,
    to: To,
    since: Instant,
    other: Other,
    up: Pipe,
    down: Pipe,
    /// The time at which the other side had sent everything while the accepted side had not.
    over: Option<Instant>,
}

/// The other side of a connection.
#[derive(Debug)]
enum Other {
    /// No server listens there yet; the next attempt is at this time.
    Away(Instant),
    Open(OwnedFd),
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Pipe {
    /// Bytes that were read but not sent yet.
    held: Vec<u8>,
    /// Whether nothing more comes.
    ended: bool,
    /// Whether the other side was informed of that.
    told: bool,
    /// Whether the other side accepts nothing more, so that bytes are dropped.
    refused: bool,
    /// The number of bytes that the other side's socket accepted.
    taken: u64,
}

impl Carrier {
    /// Whether one more connection to this kind of target is allowed. Each kind is counted
    /// separately.
    fn has_room(&self, to: To) -> bool {
        let of_kind = |kind: fn(&To) -> bool| self.open.iter().filter(|one| kind(&one.to)).count();
        match to {
            To::Server => of_kind(|to| matches!(to, To::Server)) < MOST,
            To::Inside(_) => of_kind(|to| matches!(to, To::Inside(_))) < MOST,
            To::Host(_) => self.sockets.has_one(),
        }
    }

    /// Accepts connections; returns whether there were any.
    fn accept(&mut self, listener: &TcpListener, to: To) -> bool {
        // The loop is bounded, because connections that end at once are not counted.
        for n in 0..ACCEPTED {
            if !self.has_room(to) {
                return n > 0;
            }
            let Ok((from, _)) = listener.accept() else { return n > 0 };
            // Small answers must not wait for more bytes.
            if from.set_nonblocking(true).and_then(|()| from.set_nodelay(true)).is_ok() {
                self.take(from.into(), to, Instant::now());
            }
        }
        true
    }

    fn take(&mut self, from: OwnedFd, to: To, now: Instant) {
        let held = match to {
            To::Server => self.whose.clone(),
            To::Inside(_) | To::Host(_) => Vec::new(),
        };
        let (up, down) = (Pipe { held, ..Pipe::default() }, Pipe::default());
        let other = Other::Away(now);
        self.open.push(Connection { from, to, since: now, other, up, down, over: None });
        self.carry_some(self.open.len() - 1, now);
    }

    /// How many bytes from inside, on the current connections, were accepted by the other side.
    fn heard(&self) -> u64 {
        self.open.iter().map(|one| one.outward().taken).sum()
    }

    fn somebody_is_away(&self) -> bool {
        self.open.iter().any(|one| matches!(one.other, Other::Away(_)))
    }

    fn carry(&mut self, now: Instant) {
        self.sockets.look(now);
        self.carry_some(0, now);
    }

    /// Forwards the available bytes of connections from number `first` on, and drops those that are
    /// over.
    fn carry_some(&mut self, first: usize, now: Instant) {
        let Self { server, sockets, open, scratch, .. } = self;
        let mut n = 0;
        open.retain_mut(|one| {
            n += 1;
            if n <= first || one.carry(server.as_ref(), sockets, scratch, now) {
                return true;
            }
            if let (To::Host(_), Other::Open(other)) = (one.to, one.other.taken(now)) {
                sockets.put(other, one.up.told, now);
            }
            false
        });
    }

    /// The events to wait for.
    fn interests<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        for one in &self.open {
            let Other::Open(other) = &one.other else { continue };
            for (fd, from, to) in [(&one.from, &one.up, &one.down), (other, &one.down, &one.up)] {
                let mut wanted = PollFlags::empty();
                if from.held.is_empty() && !from.ended {
                    wanted |= PollFlags::IN;
                }
                if !to.held.is_empty() {
                    wanted |= PollFlags::OUT;
                }
                // Otherwise its end would be reported again and again.
                if !wanted.is_empty() {
                    fds.push(PollFd::new(fd, wanted));
                }
            }
        }
    }

    /// The time until the next action is due, if nothing happens.
    fn due(&self, now: Instant) -> Option<Timespec> {
        let next = self.open.iter().filter_map(|one| match (&one.other, one.over) {
            (Other::Away(again), _) => Some(*again),
            (Other::Open(_), Some(over)) => Some(over + LINGER),
            (Other::Open(_), None) => None,
        });
        let next = next.chain(self.sockets.due(now));
        timespec(next.min()?.saturating_duration_since(now))
    }
}

impl Connection {
    /// Does everything that is possible without waiting; returns whether the connection still
    /// exists.
    fn carry(
        &mut self,
        server: Option<&SocketAddrUnix>,
        sockets: &mut Sockets,
        scratch: &mut [u8],
        now: Instant,
    ) -> bool {
        if let Other::Away(again) = &mut self.other {
            if now < *again {
                return true;
            }
            let dialled = match self.to {
                To::Server => match server {
                    Some(server) => dial(AddressFamily::UNIX, server),
                    // Without a target no connection is accepted for it.
                    None => return false,
                },
                To::Inside(port) => {
                    dial(AddressFamily::INET, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
                }
                To::Host(end) => sockets.connected(end, now),
            };
            match (dialled, self.to) {
                (Ok(other), _) => self.other = Other::Open(other),
                (Err(_), To::Server) if now.duration_since(self.since) < PATIENCE => {
                    *again = now + RETRY;
                    return true;
                }
                (Err(_), To::Server) => return false,
                (Err(_), To::Inside(_) | To::Host(_)) => {
                    self.break_off();
                    return false;
                }
            }
        }
        let Other::Open(other) = &self.other else { return true };
        // The accepted side is closed, so bytes for it are useless.
        if self.down.pump(other, &self.from, scratch).is_err() {
            self.break_off();
            return false;
        }
        if self.down.refused {
            return false;
        }
        if self.up.pump(&self.from, other, scratch).is_err() {
            return false;
        }
        if self.down.told {
            let over = *self.over.get_or_insert(now);
            return !self.up.told && now.duration_since(over) < LINGER;
        }
        true
    }
}

impl Connection {
    /// The direction that leads out of the sandbox.
    fn outward(&self) -> &Pipe {
        match self.to {
            To::Server | To::Host(_) => &self.up,
            To::Inside(_) => &self.down,
        }
    }

    /// Whether no more bytes come from inside, and all were delivered or refused.
    fn inside_said_all(&self) -> bool {
        let pipe = self.outward();
        pipe.told || pipe.refused
    }

    /// Resets the connection: the other end failed or nobody listens there, and the accepted side
    /// must not take that for a regular end.
    fn break_off(&self) {
        match self.to {
            To::Server => {}
            To::Inside(_) | To::Host(_) => {
                let _ = sockopt::set_socket_linger(&self.from, Some(Duration::ZERO));
            }
        }
    }
}

impl Other {
    /// Takes the connection out and leaves none in its place.
    fn taken(&mut self, now: Instant) -> Self {
        std::mem::replace(self, Self::Away(now))
    }
}

impl Pipe {
    /// Forwards bytes until one side must be waited for.
    ///
    /// # Errors
    ///
    /// Fails if the side that is read from fails. If the other side accepts nothing more, `refused`
    /// is set.
    fn pump(&mut self, from: &OwnedFd, to: &OwnedFd, scratch: &mut [u8]) -> Result<(), Errno> {
        for _ in 0..TURNS {
            if !self.held.is_empty() {
                match send(to, &self.held, SendFlags::NOSIGNAL) {
                    Ok(count) => {
                        self.taken += count as u64;
                        drop(self.held.drain(..count));
                    }
                    Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                    Err(_) => self.refuse(),
                }
                continue;
            }
            if self.ended {
                break;
            }
            let count = match rustix::io::read(from, &mut *scratch) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(err) => return Err(err),
            };
            if self.refused {
                continue;
            }
            match send(to, &scratch[..count], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.taken += sent as u64;
                    self.held.extend_from_slice(&scratch[sent..count]);
                }
                Err(Errno::AGAIN | Errno::INTR) => self.held.extend_from_slice(&scratch[..count]),
                Err(_) => self.refuse(),
            }
        }
        if self.ended && self.held.is_empty() && !self.told {
            self.told = true;
            let _ = shutdown(to, Shutdown::Write);
        }
        Ok(())
    }

    fn refuse(&mut self) {
        self.refused = true;
        self.held = Vec::new();
    }
}

fn dial(family: AddressFamily, to: &impl SocketAddrArg) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let other = socket_with(family, SocketType::STREAM, flags, None)?;
    if family == AddressFamily::INET {
        sockopt::set_tcp_nodelay(&other, true)?;
    }
    reach(&other, to)?;
    Ok(other)
}

/// Begins to connect.
pub(super) fn reach(other: &OwnedFd, to: &impl SocketAddrArg) -> Result<(), Errno> {
    match connect(other, to) {
        // Bytes wait until the connection exists; a read reports why it failed.
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(err) => Err(err),
    }
}

/// Answers DNS questions. `localhost` and similar names are in `/etc/hosts`.
fn names(socket: &UdpSocket) {
    let mut question = [0u8; 512];
    for _ in 0..TURNS {
        let Ok((count, from)) = socket.recv_from(&mut question) else { return };
        if let Some(answer) = no_such_name(&question[..count]) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// The answer to a DNS question: no such name. `None` if it is no question.
fn no_such_name(question: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const IS_ANSWER: u8 = 0x80;
    const NO_SUCH_NAME: u8 = 3;
    let (head, rest) = question.split_at_checked(HEADER)?;
    if head[2] & IS_ANSWER != 0 || head[4..6] != [0, 1] {
        return None;
    }
    // The name consists of labels, each after its length, and an empty one; then type and class
    // follow.
    let mut end = 0;
    loop {
        match *rest.get(end)? {
            0 => break,
            length if length < 64 => end += 1 + usize::from(length),
            _ => return None,
        }
    }
    let asked = rest.get(..end + 5)?;
    // The answer repeats the question; its opcode and the recursion flag are kept.
    let kept = head[2] & 0x79;
    let flags = [IS_ANSWER | kept, IS_ANSWER | NO_SUCH_NAME];
    Some([&head[..2], &flags, &[0, 1, 0, 0, 0, 0, 0, 0], asked].concat())
}

#[cfg(test)]
mod tests;
