//! Commands whose network is the mesh, and the services of their sessions.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use overmind_core::attest::{Attestation, Check, CheckName};
use overmind_core::enclosure::{Enclose as _, EnclosePlan, MAX_REACHED, Network};
use overmind_core::process::ProcessUser;
use overmind_core::sandbox::SandboxError;
use overmind_sandbox::attest::NOT_ATTESTED;
use overmind_sandbox::{Enclosures, Layer, Mutation, Options, RunAs};

use crate::enclosure::{Place, command, until};
use crate::support::{init_program, open_to_all};

/// A service of the host: sends its word, then repeats its input to the end.
struct Service {
    port: u16,
    /// The accepted connection.
    came: Arc<AtomicUsize>,
}

impl Service {
    fn says(word: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self::at(listener, word)
    }

    fn at(listener: TcpListener, word: &'static str) -> Self {
        let port = listener.local_addr().unwrap().port();
        let came = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&came);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let mut said = Vec::new();
                    if stream.read_to_end(&mut said).is_ok() {
                        let _ = stream.write_all(&[word.as_bytes(), b" ", &said].concat());
                    }
                });
            }
        });
        Self { port, came }
    }

    fn visitors(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }
}

fn reaching(place: &Place, reaches: &[u16], script: &str) -> EnclosePlan {
    let argv = ["python3", "-c", &format!("{ASK}{script}")].map(str::to_owned).into();
    let (network, reaches) = (Network::Mesh, reaches.to_vec());
    EnclosePlan { argv, network, reaches, ..place.plan("") }
}

const ASK: &str = r#"
import os, socket, sys
def ask(port, text=b"hello", host="127.0.0.1"):
    try:
        with socket.create_connection((host, port), timeout=60) as one:
            one.sendall(text)
            one.shutdown(socket.SHUT_WR)
            said = b""
            while piece := one.recv(65536):
                said += piece
            return said
    except OSError as err:
        return type(err).__name__.encode()
def show(*what):
    print(*[one.decode() if isinstance(one, bytes) else one for one in what], flush=True)
"#;

fn services(record: &Attestation) -> &Check {
    let of = |check: &&Check| check.name == CheckName::HostServices;
    record.checks.iter().find(of).unwrap()
}

#[tokio::test]
async fn only_the_sessions_services_answer_on_their_ports() {
    let place = Place::new();
    let (mine, second, other) =
        (Service::says("mine"), Service::says("second"), Service::says("other"));
    let script = format!(
        r#"
show(ask({mine}), ask({second}), ask({mine}, b"again"))
show(ask({other}), ask({other}, host="::1"), ask({mine}, host="::1"))
# Nothing that is said leads elsewhere.
for text in [b"CONNECT 127.0.0.1:{other} HTTP/1.1\r\n\r\n", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 {other}\r\n",
             b"\4\1" + ({other}).to_bytes(2, "big") + b"\x7f\0\0\1\0", b"\5\1\0"]:
    assert ask({mine}, text) == b"mine " + text, text
# Nor does any address of this machine.
for host in ["127.0.0.2", "0.0.0.0", "localhost"]:
    show(host, ask({mine}, host=host), ask({other}, host=host))
for host in ["169.254.169.254", "198.51.100.1"]:
    show(host, ask({mine}, host=host))
# It is taken inside, so nothing here stands in for the service.
try:
    socket.create_server(("127.0.0.1", {mine}))
except OSError as err:
    show(os.strerror(err.errno))
"#,
        mine = mine.port,
        second = second.port,
        other = other.port
    );
    let plan = reaching(&place, &[mine.port, second.port], &script);
    let record = place.enclosures.enclose(plan.clone()).await.unwrap().attested;
    let record = &record.attestation;
    assert_eq!(record.driver, "namespace of a command that lives, network mesh");
    assert_eq!(record.failed().count(), 0);
    let mut ports = [mine.port, second.port];
    ports.sort_unstable();
    let named = format!("at ports {}, {}; listening: ", ports[0], ports[1]);
    assert!(services(record).expected.contains(&named), "{:?}", services(record));
    for port in ports {
        let listens = format!("tcp 127.0.0.1:{port}");
        assert!(services(record).measured.contains(&listens), "{:?}", services(record));
    }
    assert!(services(record).measured.ends_with("10 of 10 to its services"));
    assert_eq!((mine.visitors(), second.visitors()), (0, 0), "nobody measured at their ends");

    let (status, out) = place.run(plan).await;
    let refused = "ConnectionRefusedError";
    let expected = format!(
        "mine hello second hello mine again\n{refused} {refused} {refused}\n127.0.0.2 {refused} \
         {refused}\n0.0.0.0 mine hello {refused}\nlocalhost mine hello {refused}\n169.254.169.254 \
         OSError\n198.51.100.1 OSError\nAddress already in use\n"
    );
    assert_eq!(out, expected);
    assert!(status.success());
    assert_eq!(other.visitors(), 0, "nobody came to the host's other port");
    // Without services the record is the earlier one; each set of services has its own record.
    let plain = place.enclosures.enclose(reaching(&place, &[], "")).await.unwrap().attested;
    assert!(!services(&plain.attestation).expected.contains("services"));
    assert_ne!(plain.attestation.config, record.config);
    let one = place.enclosures.enclose(reaching(&place, &[mine.port], "")).await.unwrap().attested;
    assert_ne!(one.attestation.config, record.config);
}

#[tokio::test]
async fn a_command_reaches_a_restarted_service() {
    let place = Place::new();
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = first.local_addr().unwrap();
    let script = format!(
        r#"
one = socket.create_connection(("127.0.0.1", {port}))
one.sendall(b"hello")
show(one.recv(5))
# It goes away, and comes back.
show(one.recv(5) or b"ended")
show(ask({port}))
sys.stdin.readline()
show(ask({port}))
"#,
        port = at.port()
    );
    let mut command = place.command(reaching(&place, &[at.port()], &script)).await;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut hear = || lines.next().unwrap().unwrap();
    let (mut came, _) = first.accept().unwrap();
    drop(first);
    let mut said = [0; 5];
    came.read_exact(&mut said).unwrap();
    came.write_all(&said).unwrap();
    assert_eq!(hear(), "hello");
    drop(came);
    assert_eq!(hear(), "ended");
    assert_eq!(hear(), "ConnectionResetError");
    let again = Service::at(TcpListener::bind(at).unwrap(), "again");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(hear(), "again hello");
    assert!(child.wait().unwrap().success());
    assert_eq!(again.visitors(), 1);
}

#[tokio::test]
async fn inbound_and_outbound_ports_work_at_the_same_time() {
    let place = Place::new();
    let service = Service::says("echo");
    let own = {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        free.local_addr().unwrap().port()
    };
    // Serves by asking its service: half-closed ends, 10 MB there and back, all the way.
    let script = format!(
        r#"
serves = socket.create_server(("127.0.0.1", {own}))
show("ready")
came, _ = serves.accept()
said = b""
while piece := came.recv(65536):
    said += piece
came.sendall(ask({service}, said))
came.close()
"#,
        service = service.port
    );
    let plan = EnclosePlan { ports: vec![own], ..reaching(&place, &[service.port], &script) };
    let mut child = place.command(plan).await.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    let text: Vec<u8> = (0..10u32 << 20).map(|n| n.to_le_bytes()[1]).collect();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, own)).unwrap();
    let mut says = stream.try_clone().unwrap();
    let wanted = [b"echo ", text.as_slice()].concat();
    let saying = std::thread::spawn(move || {
        says.write_all(&text).unwrap();
        says.shutdown(Shutdown::Write).unwrap();
    });
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    saying.join().unwrap();
    assert!(heard == wanted, "{} bytes", heard.len());
    assert!(child.wait().unwrap().success());
    until("its port is free again", || TcpListener::bind((Ipv4Addr::LOCALHOST, own)).ok());
}

#[tokio::test]
async fn an_ordinary_users_sandbox_reaches_only_its_services() {
    if !rustix::process::geteuid().is_root() {
        return; // The tests above were it.
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("init");
    std::fs::copy(init_program(), &program).unwrap();
    let at = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        open_to_all(&path);
        path.canonicalize().unwrap()
    };
    let (work, door) = (at("work"), at("door").join("agents.sock"));
    open_to_all(dir.path());
    let user = ProcessUser { uid: 54321, gid: 54321 };
    let run_as = Some(RunAs { uid: user.uid, gid: user.gid });
    let options = Options { init_program: program, run_as, ..Options::default() };
    let enclosures = Enclosures::new(options, dir.path().join("homes"), Vec::new(), Some(door));
    let (mine, other) = (Service::says("mine"), Service::says("other"));
    let script = format!("show(ask({}), ask({}))", mine.port, other.port);
    let place = Place::new();
    let plan = EnclosePlan {
        workspace: work.clone(),
        cwd: work,
        ..reaching(&place, &[mine.port], &script)
    };
    let env = plan.env.clone();
    let enclosed = enclosures.enclose(plan).await.unwrap();
    assert_eq!(enclosed.user, Some(user));
    let mut command = command(&env, enclosed);
    let output = command.uid(user.uid).gid(user.gid).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said, "mine hello ConnectionRefusedError\n", "{why}");
    assert_eq!(other.visitors(), 0);
}

#[tokio::test]
async fn too_many_and_foreign_targets_are_refused() {
    let (mine, other) = (Service::says("mine"), Service::says("other"));
    for mutation in [
        Mutation::LeadsOutTo(other.port),
        Mutation::LetsOut(other.port),
        Mutation::Without(Layer::OneDoor),
    ] {
        let mut place = Place::new();
        let label = format!("{mutation:?}");
        let plan = reaching(&place, &[mine.port], "open('ran', 'w')");
        let enclosures = std::mem::replace(&mut place.enclosures, Place::new().enclosures);
        match enclosures.broken(mutation).enclose(plan).await {
            Err(SandboxError::Unavailable { code, reason, message, .. }) => {
                assert_eq!(code, NOT_ATTESTED, "{label}: {message}");
                let name = CheckName::HostServices.as_str();
                assert!(reason.ends_with(name), "{label}: {reason}: {message}");
            }
            other => panic!("{label}: {other:?}"),
        }
    }
    assert_eq!(mine.visitors(), 0);
}

#[tokio::test]
async fn invalid_outbound_ports_are_refused_before_the_start() {
    let place = Place::new();
    let many: Vec<u16> = (20_000..).take(MAX_REACHED + 1).collect();
    for (reaches, why) in
        [(&[80][..], "port 80"), (&[53], "port 53"), (&[0], "port 0"), (&many, "33 ports")]
    {
        let plan = reaching(&place, reaches, "");
        match place.enclosures.enclose(plan.clone()).await {
            Err(SandboxError::BadConfig { message, .. }) => {
                assert!(message.contains(why) && message.contains("\"host\""), "{message}");
            }
            other => panic!("{other:?}"),
        }
        // With another network, they are not checked.
        let plan = EnclosePlan { network: Network::None, ..plan };
        place.enclosures.enclose(plan).await.unwrap();
    }
    // So many are let out, and one named twice counts once.
    let most: Vec<u16> = many[1..].iter().chain([&many[1]]).copied().collect();
    place.enclosures.enclose(reaching(&place, &most, "")).await.unwrap();
}
