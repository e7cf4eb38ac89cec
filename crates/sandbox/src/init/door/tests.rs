//! A door on ports of the test's own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};

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
        Self::with(socket, let_in, &[])
    }

    /// Connections to a listener of `out` are forwarded to the address beside it.
    fn with(
        socket: &Path,
        let_in: &[(TcpListener, u16)],
        out: &[(TcpListener, SocketAddr)],
    ) -> Self {
        let (mut door, at, asked) = door(socket, let_in, out);
        let (stop, stopped) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || {
            assert_eq!(door.wait([stopped.as_fd()]).unwrap(), [true]);
            // Data sent before the end may still be in transit.
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

/// A relay without a server; the address of the server's listener, and the address for DNS.
fn door(
    socket: &Path,
    let_in: &[(TcpListener, u16)],
    out: &[(TcpListener, SocketAddr)],
) -> (Door, SocketAddr, SocketAddr) {
    let any = (Ipv4Addr::LOCALHOST, 0);
    let listener = TcpListener::bind(any).unwrap();
    let names = UdpSocket::bind(any).unwrap();
    let host: Vec<(TcpListener, u16)> =
        let_in.iter().map(|(one, port)| (one.try_clone().unwrap(), *port)).collect();
    let (at, asked) = (listener.local_addr().unwrap(), names.local_addr().unwrap());
    let directory = std::fs::File::open("/").unwrap().into();
    let (name, whose) = (socket.to_owned(), b"mine\n".to_vec());
    let sockets = Sockets::of_this_network().unwrap();
    let server = Some((directory, name));
    let way = Way { server, whose, host, out: Vec::new(), sockets };
    let out = out.iter().map(|(one, to)| (one.try_clone().unwrap(), To::Host(*to)));
    let inside = [(listener, To::Server)].into_iter().chain(out).collect();
    (Door::of(names, inside, way).unwrap(), at, asked)
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

/// Sends a text, ends its side, and reads the answer.
fn there_and_back(at: SocketAddr, text: &[u8]) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(text).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(heard(&stream) == text);
}

fn ten_megabytes() -> Vec<u8> {
    (0..10u32 << 20).map(|n| n.to_le_bytes()[1]).collect()
}

#[test]
fn ten_megabytes_pass_the_relay_and_both_ends_close() {
    let (_dir, socket) = place();
    let server = UnixListener::bind(&socket).unwrap();
    let door = Open::to(&socket, &[]);
    let text = ten_megabytes();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        // Reads to the end first: the client has ended its side, and can still read.
        let all = heard(&stream);
        let text = all.strip_prefix(b"mine\n").expect("it is said whose door it is");
        stream.write_all(text).unwrap();
    });
    there_and_back(door.at, &text);
    echo.join().unwrap();
    door.end();
}

#[test]
fn connections_wait_for_a_restarted_server() {
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
fn half_closed_connections_are_passed_on_in_both_directions() {
    let (_dir, socket) = place();
    let server = UnixListener::bind(&socket).unwrap();
    let door = Open::to(&socket, &[]);
    let stream = TcpStream::connect(door.at).unwrap();
    let (mut came, _) = server.accept().unwrap();
    drop(stream);
    assert_eq!(heard(&mut came), b"mine\n");
    drop(came);
    // Like a server that refuses a body before it has arrived: its answer is delivered.
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
fn connections_beyond_the_limit_wait() {
    let (_dir, socket) = place();
    let server = UnixListener::bind(&socket).unwrap();
    let door = Open::to(&socket, &[]);
    let many = MOST + 20;
    let came: Vec<TcpStream> = (0..many).map(|_| TcpStream::connect(door.at).unwrap()).collect();
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
fn each_outbound_port_reaches_only_its_own_target() {
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
    // Connections to a missing listener are closed.
    drop(inside);
    let stream = TcpStream::connect(at).unwrap();
    let left = (&stream).read(&mut [0]);
    assert!(matches!(left, Ok(0) | Err(_)), "{left:?}");
    drop(stream);
    door.end();
}

#[test]
fn dns_queries_are_answered_at_once_with_no_such_name() {
    let (_dir, socket) = place();
    let door = Open::to(&socket, &[]);
    let asks = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let question = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01";
    asks.send_to(question, door.names).unwrap();
    let mut answer = [0; 512];
    let count = asks.recv(&mut answer).unwrap();
    let told = b"\x12\x34\x81\x83\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01";
    assert_eq!(&answer[..count], told);
    // Anything that is no question is ignored, above all answers.
    for odd in [&b""[..], &question[..20], told, &[0xff; 40]] {
        assert_eq!(no_such_name(odd), None, "{odd:?}");
    }
    door.end();
}

/// A service of the host, and the port that leads to it.
fn way_out() -> (TcpListener, TcpListener, SocketAddr) {
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let inside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = inside.local_addr().unwrap();
    (service, inside, at)
}

#[test]
fn ten_megabytes_pass_outbound_and_both_ends_close() {
    let (_dir, socket) = place();
    let (service, inside, at) = way_out();
    let door = Open::with(&socket, &[], &[(inside, service.local_addr().unwrap())]);
    let text = ten_megabytes();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = service.accept().unwrap();
        // Reads to the end first: the client has ended its side, and can still read.
        let all = heard(&stream);
        stream.write_all(&all).unwrap();
    });
    there_and_back(at, &text);
    echo.join().unwrap();
    door.end();
}

#[test]
fn restarted_services_are_reachable_and_stopped_ones_reset() {
    let (_dir, socket) = place();
    let (service, inside, at) = way_out();
    let to = service.local_addr().unwrap();
    let door = Open::with(&socket, &[], &[(inside, to)]);
    let mut listening = Some(service);
    for round in 0..3 {
        let service = listening.take().unwrap_or_else(|| TcpListener::bind(to).unwrap());
        let mut stream = TcpStream::connect(at).unwrap();
        let (mut came, _) = service.accept().unwrap();
        stream.write_all(b"ping").unwrap();
        let mut said = [0; 4];
        came.read_exact(&mut said).unwrap();
        came.write_all(&[round]).unwrap();
        // It ends first, so that its port is free for the next one.
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(heard(&mut came), b"");
        drop((came, service));
        assert_eq!(heard(&stream), [round]);
        let nobody = TcpStream::connect(at).unwrap().read(&mut [0]).unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::ConnectionReset);
    }
    door.end();
}

#[test]
fn outbound_floods_do_not_block_the_server() {
    let (_dir, socket) = place();
    let server = UnixListener::bind(&socket).unwrap();
    let (service, inside, at) = way_out();
    let (other, other_inside, other_at) = way_out();
    let ways =
        [(inside, service.local_addr().unwrap()), (other_inside, other.local_addr().unwrap())];
    let door = Open::with(&socket, &[], &ways);
    let many = crate::init::outward::MOST + 20;
    let mut came: Vec<TcpStream> = (0..many).map(|_| TcpStream::connect(at).unwrap()).collect();
    let mut served = Vec::new();
    for _ in 0..crate::init::outward::MOST {
        served.push(service.accept().unwrap().0);
    }
    // The relay answers nevertheless.
    let mut asks = TcpStream::connect(door.at).unwrap();
    asks.write_all(b"hello").unwrap();
    let (mut asked, _) = server.accept().unwrap();
    let mut said = [0; 10];
    asked.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"mine\nhello");
    service.set_nonblocking(true).unwrap();
    assert!(service.accept().is_err(), "no more are open at once");
    service.set_nonblocking(false).unwrap();
    // Those that waited have their turn, also at another port.
    let mut last = TcpStream::connect(other_at).unwrap();
    let waiting = came.split_off(crate::init::outward::MOST);
    drop((came, served));
    for _ in crate::init::outward::MOST..many {
        drop(service.accept().unwrap());
    }
    drop(other.accept().unwrap());
    assert_eq!(heard(&mut last), b"");
    for stream in waiting {
        assert_eq!(heard(&stream), b"");
    }
    // A connection whose own side is open would be waited for.
    drop((asks, asked, last));
    door.end();
}

/// Something that has ended, so that a door looks once at what there is.
fn ended() -> UnixStream {
    UnixStream::pair().unwrap().0
}

#[test]
fn the_last_output_of_an_ended_program_is_delivered() {
    let (_dir, socket) = place();
    let server = UnixListener::bind(&socket).unwrap();
    let (service, inside, at_service) = way_out();
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let host = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, at) = (own.local_addr().unwrap().port(), host.local_addr().unwrap());
    let out = [(inside, service.local_addr().unwrap())];
    let (mut door, at_server, _) = door(&socket, &[(host, port)], &out);
    // An inbound connection gets its answer at the end: more than the kernel buffers.
    let asks = TcpStream::connect(at).unwrap();
    door.wait([ended().as_fd()]).unwrap();
    let (mut came, _) = own.accept().unwrap();
    let text = ten_megabytes();
    let said = text.clone();
    let answers = std::thread::spawn(move || came.write_all(&said).unwrap());
    let hears = std::thread::spawn(move || heard(&asks));
    // Others connected from inside and left before the relay accepted them; more than the limit.
    for _ in 0..=ACCEPTED {
        TcpStream::connect(at_service).unwrap().write_all(b"to a service").unwrap();
    }
    TcpStream::connect(at_server).unwrap().write_all(b"to the server").unwrap();
    door.finish();
    answers.join().unwrap();
    assert!(hears.join().unwrap() == text);
    assert_eq!(heard(server.accept().unwrap().0), b"mine\nto the server");
    for _ in 0..=ACCEPTED {
        assert_eq!(heard(service.accept().unwrap().0), b"to a service");
    }
    // And no further connection is accepted.
    drop(TcpStream::connect(at).unwrap_err());
}

#[test]
fn a_reader_that_reads_nothing_does_not_delay_the_end() {
    let (_dir, socket) = place();
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let host = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, at) = (own.local_addr().unwrap().port(), host.local_addr().unwrap());
    let (mut door, at_server, _) = door(&socket, &[(host, port)], &[]);
    let deaf = TcpStream::connect(at).unwrap();
    door.wait([ended().as_fd()]).unwrap();
    let (mut came, _) = own.accept().unwrap();
    came.set_nonblocking(true).unwrap();
    let piece = vec![7; 1 << 20];
    while came.write(&piece).is_ok() {
        door.wait([ended().as_fd()]).unwrap();
    }
    // There is no server.
    let asks = TcpStream::connect(at_server).unwrap();
    door.finish();
    drop((deaf, asks));
}

proptest::proptest! {
    #[test]
    fn dns_answers_are_never_larger_than_the_queries(
        question in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600),
    ) {
        if let Some(answer) = no_such_name(&question) {
            proptest::prop_assert!(answer.len() <= question.len());
            proptest::prop_assert_eq!(&answer[12..], &question[12..answer.len()]);
        }
    }
}
