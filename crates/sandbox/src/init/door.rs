//! The door of a sandbox whose only network is the mesh: what answers inside, and where it leads.
//!
//! The launcher stands outside of the process namespace and within the network namespace. So it
//! listens there, on [`DOOR_PORT`] of the loopback, and for each connection opens the server's unix
//! socket anew: whatever server is there then. It says whose door this is, copies bytes both ways and
//! reads none of them, so nothing that is said inside changes where they go, or from whom they are. The socket's directory was opened before the
//! namespaces were made, and nobody inside can reach the launcher.
//!
//! The other way it lets in: what connects to a port of the session's own on the host's loopback is
//! carried to the same port inside. The host's listeners were bound before there was a network of
//! its own, and lead to no other port.
//!
//! Beside it stands what names are asked of, on port 53: it knows none and says so at once, where
//! programs that heed no `nsswitch.conf` would wait for an answer.
//!
//! One thread and one `poll`. What is not taken is held, up to [`PIECE`] bytes for each direction,
//! and no more is read meanwhile. It ends with the launcher.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use overmind_core::enclosure::DOOR_PORT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    addr::SocketAddrArg, connect, send, shutdown, socket_with,
};

use crate::init::mutation::{Layer, skips};
use crate::init::spec::{Doing, Kind, Step, Stop};

/// Connections at once. More wait in the kernel.
const MOST: usize = 128;
/// Bytes that are read at once, and that are held at most for each direction.
const PIECE: usize = 64 << 10;
/// Pieces of one direction before others have their turn.
const TURNS: usize = 8;
/// For so long a connection waits for a server that is being started anew.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);
/// For so long the inside may go on to speak when the server has ended the connection.
const LINGER: Duration = Duration::from_secs(10);
/// Where names are asked for.
pub(crate) const NAMES_PORT: u16 = 53;

/// Where the door leads: found before there are namespaces, and fixed from then on.
#[derive(Debug)]
pub(crate) struct Way {
    directory: OwnedFd,
    /// Within it.
    name: PathBuf,
    /// Said first on each connection.
    whose: Vec<u8>,
    /// On the host's loopback: what is let in.
    host: Vec<(TcpListener, u16)>,
}

impl Way {
    /// `None`: this kind has no door.
    pub(crate) fn find(kind: &Kind) -> Result<Option<Self>, Stop> {
        let Some(socket) = kind.door() else { return Ok(None) };
        #[cfg(feature = "mutations")]
        let socket = crate::init::mutation::door().unwrap_or(socket);
        let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(Stop::BadConfig(format!("{} is no socket", socket.display())));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())
            .doing(Step::Start, format_args!("the server's directory {}", directory.display()))?;
        Ok(Some(Self { directory, name: name.into(), whose: Vec::new(), host: Vec::new() }))
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

/// What listens inside, and what came through it.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    names: UdpSocket,
    way: Way,
    carrier: Carrier,
}

impl Door {
    /// Opens it, in a network whose loopback is up.
    pub(crate) fn open(way: Way) -> Result<Self, Stop> {
        let at = |port: u16| (Ipv4Addr::LOCALHOST, port);
        let make = || -> io::Result<(TcpListener, UdpSocket)> {
            let listener = TcpListener::bind(at(DOOR_PORT))?;
            listener.set_nonblocking(true)?;
            let names = UdpSocket::bind(at(NAMES_PORT))?;
            names.set_nonblocking(true)?;
            if skips(Layer::OneDoor) {
                std::mem::forget(TcpListener::bind(at(0))?);
            }
            Ok((listener, names))
        };
        let (listener, names) = make().doing(Step::Network, "the door")?;
        Self::of(listener, names, way).doing(Step::Network, "the door")
    }

    fn of(listener: TcpListener, names: UdpSocket, way: Way) -> io::Result<Self> {
        let server = SocketAddrUnix::new(&way.name)?;
        let whose = way.whose.clone();
        let carrier = Carrier { server, whose, open: Vec::new(), scratch: vec![0; PIECE] };
        Ok(Self { listener, names, way, carrier })
    }

    /// Stands where the way begins. After the last fork: no other process is to stand there.
    pub(crate) fn stand(&self) -> Result<(), Stop> {
        rustix::process::fchdir(&self.way.directory).doing(Step::Network, "the door")
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
            if !self.carrier.is_full() {
                let listeners = self.way.host.iter().map(|(listener, _)| listener);
                let all = listeners.chain([&self.listener]);
                fds.extend(all.map(|listener| PollFd::new(listener, PollFlags::IN)));
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
            self.carrier.accept(&self.listener, To::Server);
            for (listener, port) in &self.way.host {
                self.carrier.accept(listener, To::Inside(*port));
            }
            if ready[..N].contains(&true) {
                return Ok(std::array::from_fn(|n| ready[n]));
            }
        }
    }
}

/// Carries connections to one socket, and to ports inside.
#[derive(Debug)]
struct Carrier {
    server: SocketAddrUnix,
    whose: Vec<u8>,
    open: Vec<Connection>,
    scratch: Vec<u8>,
}

/// Where a connection leads: said by who accepted it.
#[derive(Clone, Copy, Debug)]
enum To {
    Server,
    Inside(u16),
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
}

impl Carrier {
    fn is_full(&self) -> bool {
        self.open.len() >= MOST
    }

    fn accept(&mut self, listener: &TcpListener, to: To) {
        while !self.is_full() {
            let Ok((from, _)) = listener.accept() else { return };
            // Small answers must not wait for more to come.
            if from.set_nonblocking(true).and_then(|()| from.set_nodelay(true)).is_ok() {
                self.take(from.into(), to, Instant::now());
            }
        }
    }

    fn take(&mut self, from: OwnedFd, to: To, now: Instant) {
        let held = match to {
            To::Server => self.whose.clone(),
            To::Inside(_) => Vec::new(),
        };
        let (up, down) = (Pipe { held, ..Pipe::default() }, Pipe::default());
        let other = Other::Away(now);
        let mut one = Connection { from, to, since: now, other, up, down, over: None };
        if one.carry(&self.server, &mut self.scratch, now) {
            self.open.push(one);
        }
    }

    fn carry(&mut self, now: Instant) {
        let Self { server, open, scratch, .. } = self;
        open.retain_mut(|one| one.carry(server, scratch, now));
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
        let wait = next.min()?.saturating_duration_since(now);
        // Rounded up, so that it is over when it is looked at.
        Timespec::try_from(wait + Duration::from_millis(1)).ok()
    }
}

impl Connection {
    /// Does what can be done at once; whether anything is left.
    fn carry(&mut self, server: &SocketAddrUnix, scratch: &mut [u8], now: Instant) -> bool {
        if let Other::Away(again) = &mut self.other {
            if now < *again {
                return true;
            }
            let dialled = match self.to {
                To::Server => dial(AddressFamily::UNIX, server),
                To::Inside(port) => {
                    dial(AddressFamily::INET, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
                }
            };
            match (dialled, self.to) {
                (Ok(other), _) => self.other = Other::Open(other),
                (Err(_), To::Server) if now.duration_since(self.since) < PATIENCE => {
                    *again = now + RETRY;
                    return true;
                }
                (Err(_), _) => return false,
            }
        }
        let Other::Open(other) = &self.other else { return true };
        // What the other side says is of no use to one who has left.
        if self.down.pump(other, &self.from, scratch).is_err() || self.down.refused {
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
                    Ok(count) => drop(self.held.drain(..count)),
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
                Ok(sent) => self.held.extend_from_slice(&scratch[sent..count]),
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
    match connect(&other, to) {
        // What is written waits until it is there; what is read says why it is not.
        Ok(()) | Err(Errno::INPROGRESS) => Ok(other),
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
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use super::*;

    /// A door on ports of the test's own, which is served until the test ends.
    struct Open {
        at: SocketAddr,
        names: SocketAddr,
        stop: UnixStream,
        serving: Option<std::thread::JoinHandle<()>>,
    }

    impl Open {
        fn to(socket: &Path, let_in: &[(TcpListener, u16)]) -> Self {
            let any = (Ipv4Addr::LOCALHOST, 0);
            let listener = TcpListener::bind(any).unwrap();
            let names = UdpSocket::bind(any).unwrap();
            let host: Vec<(TcpListener, u16)> =
                let_in.iter().map(|(one, port)| (one.try_clone().unwrap(), *port)).collect();
            for one in host.iter().map(|(one, _)| one).chain([&listener]) {
                one.set_nonblocking(true).unwrap();
            }
            names.set_nonblocking(true).unwrap();
            let (at, asked) = (listener.local_addr().unwrap(), names.local_addr().unwrap());
            let directory = std::fs::File::open("/").unwrap().into();
            let whose = b"mine\n".to_vec();
            let way = Way { directory, name: socket.to_owned(), whose, host };
            let mut door = Door::of(listener, names, way).unwrap();
            let (stop, stopped) = UnixStream::pair().unwrap();
            let serving = std::thread::spawn(move || {
                assert_eq!(door.wait([stopped.as_fd()]).unwrap(), [true]);
                // What was said before the end may be on its way still.
                let ended = Instant::now();
                while !door.carrier.open.is_empty() && ended.elapsed() < PATIENCE {
                    assert_eq!(door.wait([stopped.as_fd()]).unwrap(), [true]);
                }
                assert_eq!(door.carrier.open.len(), 0, "nothing is left of what was carried");
            });
            Self { at, names: asked, stop, serving: Some(serving) }
        }

        fn end(mut self) {
            self.stop.shutdown(Shutdown::Both).unwrap();
            self.serving.take().unwrap().join().unwrap();
        }
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        (dir, socket)
    }

    fn heard(mut stream: impl Read) -> Vec<u8> {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    }

    #[test]
    fn ten_megabytes_pass_both_ways_and_each_end_is_told_of_the_others() {
        let (_dir, socket) = place();
        let server = UnixListener::bind(&socket).unwrap();
        let door = Open::to(&socket, &[]);
        let text: Vec<u8> = (0..10u32 << 20).map(|n| n.to_le_bytes()[1]).collect();
        let wanted = text.clone();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            // To the end first: whoever came has ended its side, and still hears.
            let all = heard(&stream);
            let text = all.strip_prefix(b"mine\n").expect("it is said whose door it is");
            stream.write_all(text).unwrap();
        });
        let mut stream = TcpStream::connect(door.at).unwrap();
        stream.write_all(&text).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(heard(&stream) == wanted);
        echo.join().unwrap();
        drop(stream);
        door.end();
    }

    #[test]
    fn a_connection_waits_for_a_server_that_comes_back_and_the_next_one_reaches_the_next_server() {
        let (_dir, socket) = place();
        let door = Open::to(&socket, &[]);
        for word in ["first", "second"] {
            let mut stream = TcpStream::connect(door.at).unwrap();
            stream.write_all(b"who is there").unwrap();
            let _ = std::fs::remove_file(&socket);
            let server = UnixListener::bind(&socket).unwrap();
            let (mut came, _) = server.accept().unwrap();
            let mut asked = [0; 17];
            came.read_exact(&mut asked).unwrap();
            assert_eq!(&asked, b"mine\nwho is there");
            came.write_all(word.as_bytes()).unwrap();
            drop((came, server));
            assert_eq!(heard(&stream), word.as_bytes());
        }
        door.end();
    }

    #[test]
    fn one_who_leaves_is_told_to_the_server_and_a_server_that_will_hear_no_more_is_heard() {
        let (_dir, socket) = place();
        let server = UnixListener::bind(&socket).unwrap();
        let door = Open::to(&socket, &[]);
        let stream = TcpStream::connect(door.at).unwrap();
        let (mut came, _) = server.accept().unwrap();
        drop(stream);
        assert_eq!(heard(&mut came), b"mine\n");
        drop(came);
        // As a server that refuses a body before it has come: its answer arrives.
        let mut stream = TcpStream::connect(door.at).unwrap();
        let (mut came, _) = server.accept().unwrap();
        came.write_all(b"too much").unwrap();
        came.shutdown(Shutdown::Read).unwrap();
        came.shutdown(Shutdown::Write).unwrap();
        stream.write_all(&vec![0; 1 << 20]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(heard(&stream), b"too much");
        drop((stream, came));
        door.end();
    }

    #[test]
    fn more_than_fit_at_once_wait_and_are_served() {
        let (_dir, socket) = place();
        let server = UnixListener::bind(&socket).unwrap();
        let door = Open::to(&socket, &[]);
        let many = MOST + 20;
        let came: Vec<TcpStream> =
            (0..many).map(|_| TcpStream::connect(door.at).unwrap()).collect();
        let mut served = Vec::new();
        for _ in 0..MOST {
            served.push(server.accept().unwrap().0);
        }
        server.set_nonblocking(true).unwrap();
        assert!(server.accept().is_err(), "no more are open at once");
        server.set_nonblocking(false).unwrap();
        drop(served);
        for _ in MOST..many {
            drop(server.accept().unwrap());
        }
        for stream in came {
            assert_eq!(heard(&stream), b"");
        }
        door.end();
    }

    #[test]
    fn a_port_of_the_host_leads_to_its_own_and_to_no_other() {
        let (_dir, socket) = place();
        let inside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = inside.local_addr().unwrap().port();
        let host = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = host.local_addr().unwrap();
        let door = Open::to(&socket, &[(host, port)]);
        let mut stream = TcpStream::connect(at).unwrap();
        let (mut came, _) = inside.accept().unwrap();
        stream.write_all(b"hello").unwrap();
        let mut said = [0; 5];
        came.read_exact(&mut said).unwrap();
        came.write_all(&said).unwrap();
        drop(came);
        assert_eq!(heard(&stream), b"hello");
        drop(stream);
        // Where nobody listens one is sent away.
        drop(inside);
        let stream = TcpStream::connect(at).unwrap();
        let left = (&stream).read(&mut [0]);
        assert!(matches!(left, Ok(0) | Err(_)), "{left:?}");
        drop(stream);
        door.end();
    }

    #[test]
    fn no_name_is_known_and_that_is_said_at_once() {
        let (_dir, socket) = place();
        let door = Open::to(&socket, &[]);
        let asks = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let question = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01";
        asks.send_to(question, door.names).unwrap();
        let mut answer = [0; 512];
        let count = asks.recv(&mut answer).unwrap();
        let told = b"\x12\x34\x81\x83\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01";
        assert_eq!(&answer[..count], told);
        // What is no question is not answered, and answers least of all.
        for odd in [&b""[..], &question[..20], told, &[0xff; 40]] {
            assert_eq!(no_such_name(odd), None, "{odd:?}");
        }
        door.end();
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_asked_is_answered_with_no_more_than_it_was(
            question in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600),
        ) {
            if let Some(answer) = no_such_name(&question) {
                proptest::prop_assert!(answer.len() <= question.len());
                proptest::prop_assert_eq!(&answer[12..], &question[12..answer.len()]);
            }
        }
    }
}
