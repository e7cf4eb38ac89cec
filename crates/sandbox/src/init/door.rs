//! The door of a sandbox whose only network is the mesh: what answers inside, and where it leads.
//!
//! For one that is not to reach the server there is no door, and all the rest of this.
//!
//! The launcher stands outside of the process namespace and within the network namespace. So it
//! listens there, on [`DOOR_PORT`] of the loopback, and for each connection opens the server's unix
//! socket anew: whatever server is there then. It says whose door this is, copies bytes both ways and
//! reads none of them, so nothing that is said inside changes where they go, or from whom they are. The socket's directory was opened before the
//! namespaces were made, and nobody inside can reach the launcher.
//!
//! The other way it lets in: what connects to a port of the session's own on the host's loopback is
//! carried to the same port inside. The host's listeners were bound before there was a network of
//! its own, and lead to no other port. And it lets out: what connects inside to a port on which a
//! service of the session's room listens is carried there, see [`super::outward`].
//!
//! Beside it stands what names are asked of, on port 53: it knows none and says so at once, where
//! programs that heed no `nsswitch.conf` would wait for an answer.
//!
//! One thread and one `poll`. What is not taken is held, up to [`PIECE`] bytes for each direction,
//! and no more is read meanwhile. What goes to the server, what is let in and what is let out are
//! counted each by itself, so none of them keeps another waiting. It ends with the launcher.

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

/// Connections to the server at once, and as many that are let in. More wait in the kernel.
const MOST: usize = 128;
/// Bytes that are read at once, and that are held at most for each direction.
const PIECE: usize = 64 << 10;
/// Pieces of one direction before others have their turn.
const TURNS: usize = 8;
/// Connections at one port before others have their turn.
const ACCEPTED: usize = 16;
/// For so long a connection waits for a server that is being started anew.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);
/// For so long the inside may go on to speak when the server has ended the connection.
const LINGER: Duration = Duration::from_secs(10);
/// For so long what a command said last is carried on after its end, and for so long when nobody takes
/// any of it. Less than a call that was broken off is given to go.
const LAST_WORDS: Duration = Duration::from_secs(3);
const UNHEARD: Duration = Duration::from_secs(1);

/// Where the door leads: found before there are namespaces, and fixed from then on.
#[derive(Debug)]
pub(crate) struct Way {
    /// To the server: the directory of its socket, and the name within it.
    server: Option<(OwnedFd, PathBuf)>,
    /// Said first on each connection.
    whose: Vec<u8>,
    /// On the host's loopback: what is let in.
    host: Vec<(TcpListener, u16)>,
    /// Ports inside, and where on the host's loopback each leads.
    out: Vec<(u16, SocketAddr)>,
    /// Of the host's network: by these alone is anything let out.
    sockets: Sockets,
}

impl Way {
    /// `None`: for this kind nothing is carried.
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

    /// Has this said on each connection before anything that comes from inside.
    pub(crate) fn say_first(&mut self, whose: String) {
        self.whose = whose.into_bytes();
    }

    /// Lets in what comes to these ports of the host's loopback; answers those that are taken.
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

/// The directory of the server's socket, and the socket's name.
fn place_of(socket: &Path) -> Result<(OwnedFd, PathBuf), Stop> {
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(Stop::BadConfig(format!("{} is no socket", socket.display())));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())
        .doing(Step::Start, format_args!("the server's directory {}", directory.display()))?;
    Ok((directory, name.into()))
}

/// What listens inside, and what came through it.
#[derive(Debug)]
pub(crate) struct Door {
    names: UdpSocket,
    /// Where the way to the server begins.
    directory: Option<OwnedFd>,
    /// What listens, inside and outside, and where what comes to it leads.
    listeners: Vec<(TcpListener, To)>,
    carrier: Carrier,
}

impl Door {
    /// Opens it, in a network whose loopback is up.
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

    /// `inside` is what listens there, and where it leads.
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

    /// Stands where the way to the server begins. After the last fork: no other process is to stand
    /// there.
    pub(crate) fn stand(&self) -> Result<(), Stop> {
        let Some(directory) = &self.directory else { return Ok(()) };
        rustix::process::fchdir(directory).doing(Step::Network, "the door")
    }

    /// Waits until one of `others` has something to be read, or has ended, and carries meanwhile;
    /// answers which.
    ///
    /// # Errors
    ///
    /// What polling gives. What goes wrong with one connection ends that one alone.
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
    /// Carries on what was said inside and is not heard yet. For when nobody is left there: as on a
    /// host, where the kernel still delivers what a program that has ended had sent.
    ///
    /// It ends when all is handed over, when who is there takes nothing for [`UNHEARD`], and in any
    /// case after [`LAST_WORDS`]. How the command ended is known by then: nothing that goes wrong here
    /// changes that.
    pub(crate) fn finish(mut self) {
        let began = Instant::now();
        let (mut moved, mut heard) = (began, self.carrier.heard());
        // Nobody comes in any more. Who came from inside and left again may wait still.
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

/// Rounded up, so that it is over when it is looked at.
fn timespec(wait: Duration) -> Option<Timespec> {
    Timespec::try_from(wait + Duration::from_millis(1)).ok()
}

/// Carries connections to one socket, to ports inside and to ports of the host.
#[derive(Debug)]
struct Carrier {
    /// Where the door leads, if there is one.
    server: Option<SocketAddrUnix>,
    whose: Vec<u8>,
    sockets: Sockets,
    open: Vec<Connection>,
    scratch: Vec<u8>,
}

/// Where a connection leads: said by who accepted it.
#[derive(Clone, Copy, Debug)]
enum To {
    Server,
    Inside(u16),
    /// A port of the host's loopback.
    Host(SocketAddr),
}

#[derive(Debug)]
struct Connection {
    /// Who came.
    from: OwnedFd,
    to: To,
    since: Instant,
    other: Other,
    up: Pipe,
    down: Pipe,
    /// When the other side had said all, and who came not yet.
    over: Option<Instant>,
}

/// The other side.
#[derive(Debug)]
enum Other {
    /// Nobody is there yet: tried again then.
    Away(Instant),
    Open(OwnedFd),
}

/// One direction.
#[derive(Debug, Default)]
struct Pipe {
    /// Read, and not taken yet.
    held: Vec<u8>,
    /// Nothing more comes.
    ended: bool,
    /// And the other side knows.
    told: bool,
    /// The other side takes nothing more: what comes is dropped.
    refused: bool,
    /// Bytes that the other side's socket took.
    taken: u64,
}

impl Carrier {
    /// Whether one more can be carried there. Each kind counts by itself.
    fn has_room(&self, to: To) -> bool {
        let of_kind = |kind: fn(&To) -> bool| self.open.iter().filter(|one| kind(&one.to)).count();
        match to {
            To::Server => of_kind(|to| matches!(to, To::Server)) < MOST,
            To::Inside(_) => of_kind(|to| matches!(to, To::Inside(_))) < MOST,
            To::Host(_) => self.sockets.has_one(),
        }
    }

    /// Whether anybody came.
    fn accept(&mut self, listener: &TcpListener, to: To) -> bool {
        // Bounded: those that end as soon as they have come take no room.
        for n in 0..ACCEPTED {
            if !self.has_room(to) {
                return n > 0;
            }
            let Ok((from, _)) = listener.accept() else { return n > 0 };
            // Small answers must not wait for more to come.
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

    /// How many bytes of those that are being carried have come from inside and were taken.
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

    /// Carries what there is of those from number `first`, and lets go of those that are over.
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

    /// What is waited for.
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
                // Else its end would be told again and again.
                if !wanted.is_empty() {
                    fds.push(PollFd::new(fd, wanted));
                }
            }
        }
    }

    /// How long nothing is to be done, if nothing happens.
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
    /// Does what can be done at once; whether anything is left.
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
                    // Without a door nothing is accepted at one.
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
        // What the other side says is of no use to one who has left.
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
    /// The direction that leads out.
    fn outward(&self) -> &Pipe {
        match self.to {
            To::Server | To::Host(_) => &self.up,
            To::Inside(_) => &self.down,
        }
    }

    /// Whether no more comes from inside, and all of it was handed over or is refused.
    fn inside_said_all(&self) -> bool {
        let pipe = self.outward();
        pipe.told || pipe.refused
    }

    /// Nobody listens at the other end, or it broke. Who came is not to take that for an end in good
    /// order.
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
    /// Leaves nobody there.
    fn taken(&mut self, now: Instant) -> Self {
        std::mem::replace(self, Self::Away(now))
    }
}

impl Pipe {
    /// Carries what there is, until one side has to be waited for.
    ///
    /// # Errors
    ///
    /// The side that is read from broke. One that takes nothing more makes it `refused`.
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
        // What is written waits until it is there; what is read says why it is not.
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(err) => Err(err),
    }
}

/// Answers whoever asks for names. `localhost` and its like stand in `/etc/hosts`.
fn names(socket: &UdpSocket) {
    let mut question = [0u8; 512];
    for _ in 0..TURNS {
        let Ok((count, from)) = socket.recv_from(&mut question) else { return };
        if let Some(answer) = no_such_name(&question[..count]) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// The answer to a question of DNS: there is no such name. `None`: it is none.
fn no_such_name(question: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const IS_ANSWER: u8 = 0x80;
    const NO_SUCH_NAME: u8 = 3;
    let (head, rest) = question.split_at_checked(HEADER)?;
    if head[2] & IS_ANSWER != 0 || head[4..6] != [0, 1] {
        return None;
    }
    // Labels, each after its length, up to the empty one; then type and class.
    let mut end = 0;
    loop {
        match *rest.get(end)? {
            0 => break,
            length if length < 64 => end += 1 + usize::from(length),
            _ => return None,
        }
    }
    let asked = rest.get(..end + 5)?;
    // What was asked stands in the answer; its kind and whether more may be asked are kept.
    let kept = head[2] & 0x79;
    let flags = [IS_ANSWER | kept, IS_ANSWER | NO_SUCH_NAME];
    Some([&head[..2], &flags, &[0, 1, 0, 0, 0, 0, 0, 0], asked].concat())
}

#[cfg(test)]
mod tests;
