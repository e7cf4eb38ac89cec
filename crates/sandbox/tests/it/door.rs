//! Commands whose network is the mesh: one relay answers, and leads to one socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use overmind_core::attest::CheckName;
use overmind_core::enclosure::{DOOR_URL, Enclose as _, EnclosePlan, Network, door_of};
use overmind_core::ids::SessionId;
use overmind_core::sandbox::SandboxError;
use overmind_sandbox::attest::NOT_ATTESTED;
use overmind_sandbox::{Layer, Mutation};

use crate::enclosure::{Place, until};

fn meshed(place: &Place, script: &str) -> EnclosePlan {
    EnclosePlan { network: Network::Mesh, ..place.plan(script) }
}

/// Sends a word, and then repeats what each connection sent.
fn serve(socket: &Path, word: &'static str) {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for came in listener.incoming() {
            let mut came = came.unwrap();
            let mut lines = BufReader::new(came.try_clone().unwrap());
            let (mut whose, mut said) = (String::new(), String::new());
            lines.read_line(&mut whose).unwrap();
            if door_of(whose.trim_end()) == Some(SessionId::from_u128(7)) {
                lines.read_line(&mut said).unwrap();
                came.write_all(format!("{word} {said}").as_bytes()).unwrap();
            }
        }
    });
}

/// Asks at the door, in a shell.
const ASK: &str = "ask() { exec 3<>/dev/tcp/127.0.0.1/80; echo \"$1\" >&3; cat <&3; exec 3>&-; }; ";

fn in_bash(place: &Place, script: &str) -> EnclosePlan {
    let argv = ["bash", "-c", script].map(str::to_owned).into();
    EnclosePlan { argv, ..meshed(place, "") }
}

#[tokio::test]
async fn only_the_relay_answers_inside() {
    let place = Place::new();
    serve(&place.at("data/agents.sock"), "server");
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    assert_eq!(DOOR_URL, "http://127.0.0.1:80");
    let script = format!(
        "{ASK} ask hello; ask again; ask 'CONNECT 127.0.0.1:{port} HTTP/1.1'
         reach() {{ (exec 3<>/dev/tcp/$1/$2) 2>/dev/null && echo reached $1 $2; }}
         reach 127.0.0.1 {port}; reach ::1 {port}; reach 169.254.169.254 80; reach 198.51.100.1 443
         getent hosts localhost | grep -qw localhost && echo localhost
         getent hosts example.com; getent ahosts metadata.google.internal; reach example.com 80
         cat /etc/resolv.conf; ls {data} 2>&1 | grep -c 'No such'; exit 3",
        data = place.at("data").display(),
    );
    let plan = in_bash(&place, &script);
    let enclosed = place.enclosures.enclose(plan.clone()).await.unwrap();
    let record = &enclosed.attested.attestation;
    assert_eq!(record.driver, "namespace of a command that lives, network mesh");
    assert_eq!(record.failed().count(), 0);
    let check = |name| record.checks.iter().find(|check| check.name == name).unwrap();
    let services = check(CheckName::HostServices);
    assert!(services.measured.starts_with("none; listening: tcp 127.0.0.1:80, udp 127.0.0.1:53; "));
    assert!(services.measured.contains("5 of 5 words"), "{services:?}");
    assert_eq!(check(CheckName::Network).measured, "lo; no route");
    assert_eq!(check(CheckName::MetadataService).measured, "none");

    let (status, out) = place.run(plan).await;
    let told = format!(
        "server hello\nserver again\nserver CONNECT 127.0.0.1:{port} HTTP/1.1\nlocalhost\n\
         nameserver 127.0.0.1\noptions timeout:1 attempts:1\n1\n"
    );
    assert_eq!((status.code(), out.as_str()), (Some(3), told.as_str()));
    host.set_nonblocking(true).unwrap();
    assert!(host.accept().is_err(), "nobody came to the host's port");
}

#[tokio::test]
async fn dns_clients_get_no_such_name_at_once() {
    let place = Place::new();
    let script = "import socket, struct, time
began = time.monotonic()
asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asks.settimeout(20)
asks.connect(('127.0.0.1', 53))
asks.send(b'\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3com\\0\\0\\1\\0\\1')
print(asks.recv(512)[3] & 15)
try:
    socket.getaddrinfo('example.com', 80)
except socket.gaierror as err:
    print('unknown')
";
    let argv = ["python3", "-c", script].map(str::to_owned).into();
    let plan = EnclosePlan { argv, ..meshed(&place, "") };
    assert_eq!(place.run(plan).await.1, "3\nunknown\n");
}

#[tokio::test]
async fn the_relay_reaches_a_restarted_server() {
    let place = Place::new();
    let socket = place.at("data/agents.sock");
    serve(&socket, "first");
    let script = format!("{ASK} ask one; read a; ask two; read b; ask three");
    let mut child = place
        .command(in_bash(&place, &script))
        .await
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut hear = |wanted: &str| {
        let mut heard = vec![0; wanted.len()];
        out.read_exact(&mut heard).unwrap();
        assert_eq!(String::from_utf8(heard).unwrap(), wanted);
    };
    hear("first one\n");
    serve(&socket, "second");
    keys.write_all(b"\n").unwrap();
    hear("second two\n");
    // A connection without a server waits for the next one.
    std::fs::remove_file(&socket).unwrap();
    keys.write_all(b"\n").unwrap();
    serve(&socket, "third");
    hear("third three\n");
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn inbound_connections_reach_a_programs_own_ports_until_it_ends() {
    let place = Place::new();
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let script = format!(
        "import socket
one = socket.create_server(('127.0.0.1', {port}))
print('ready', flush=True)
for n in range(2):
    came, _ = one.accept()
    came.sendall(b'inside ' + came.recv(64))
    came.close()
input()
"
    );
    let argv = ["python3", "-c", &script].map(str::to_owned).into();
    let plan = EnclosePlan { argv, ports: vec![port], ..meshed(&place, "") };
    let mut child =
        place.command(plan).await.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    for word in ["one", "two"] {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(word.as_bytes()).unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, format!("inside {word}"));
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    until("the port is free again", || TcpListener::bind(("127.0.0.1", port)).ok());

    // A port in use is reported, and the command runs nevertheless.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let plan = EnclosePlan { ports: vec![port], ..meshed(&place, "echo runs") };
    let (_, out) = place.run(plan).await;
    assert!(out.starts_with("runs\n"), "{out}");
    assert!(out.contains(&format!("port {port} is taken here")), "{out}");
}

#[tokio::test]
async fn a_relay_to_another_target_and_a_wider_network_are_refused() {
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path().join("other.sock");
    serve(&other, "other");
    for (mutation, expected) in [
        (Mutation::LeadsTo(other), vec![CheckName::HostServices]),
        (Mutation::Without(Layer::OneDoor), vec![CheckName::HostServices]),
        (
            Mutation::Without(Layer::NetworkNamespace),
            vec![CheckName::HostServices, CheckName::Namespaces],
        ),
    ] {
        let mut place = Place::new();
        let label = format!("{mutation:?}");
        let plan = meshed(&place, "echo ran > ran");
        let enclosures = std::mem::replace(&mut place.enclosures, Place::new().enclosures);
        match enclosures.broken(mutation).enclose(plan).await {
            Err(SandboxError::Unavailable { code, reason, message, .. }) => {
                assert_eq!(code, NOT_ATTESTED, "{label}: {message}");
                for name in expected {
                    assert!(reason.contains(name.as_str()), "{label}: {name} not in {message}");
                }
            }
            other => panic!("{label}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn without_the_agents_socket_the_mesh_is_refused() {
    let place = Place::new();
    let homes = place.at("homes");
    let options = overmind_sandbox::Options {
        init_program: crate::support::init_program(),
        ..overmind_sandbox::Options::default()
    };
    let without = overmind_sandbox::Enclosures::new(options, homes, Vec::new(), None);
    match without.enclose(meshed(&place, "true")).await {
        Err(SandboxError::BadConfig { message, .. }) => {
            assert!(message.contains("no socket for agents"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
