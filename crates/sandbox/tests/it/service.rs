//! Commands that are services: they survive their starter, and reach no server.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use overmind_core::attest::CheckName;
use overmind_core::enclosure::{Enclose as _, EnclosePlan, Network};
use overmind_core::sandbox::SandboxError;
use overmind_sandbox::attest::NOT_ATTESTED;
use overmind_sandbox::{Enclosures, Layer, Mutation, Options};
use rustix::process::{Pid, Signal};

use crate::enclosure::{Place, until};
use crate::support::init_program;

fn free() -> u16 {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    free.local_addr().unwrap().port()
}

fn python(place: &Place, script: &str) -> EnclosePlan {
    let argv = ["python3", "-c", script].map(str::to_owned).into();
    EnclosePlan { argv, server: false, network: Network::Mesh, ..place.plan("") }
}

/// Sends `here` to each connection, without end.
fn serves(port: u16) -> String {
    format!(
        "import socket\nat = socket.create_server(('127.0.0.1', {port}))\nwhile True:\n    \
         one, _ = at.accept()\n    one.sendall(b'here')\n    one.close()\n"
    )
}

fn said_at(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    (!said.is_empty()).then_some(said)
}

/// Starts it below a shell that ends when its handle is dropped; the shell, and its number.
async fn below_a_shell(place: &Place, plan: EnclosePlan) -> (Child, Pid) {
    let command = place.command(plan).await;
    let script = "\"$@\" </dev/null >/dev/null 2>&1 & echo $!; read end";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(place.at("work")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (shell, Pid::from_raw(line.trim().parse().unwrap()).unwrap())
}

fn is_there(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn a_service_survives_its_starter() {
    let place = Place::new();
    let mut begun = Vec::new();
    for detached in [true, false] {
        let port = free();
        let plan = EnclosePlan { ports: vec![port], detached, ..python(&place, &serves(port)) };
        let (shell, pid) = below_a_shell(&place, plan).await;
        assert_eq!(until("it serves", || said_at(port)), "here");
        begun.push((shell, pid, port));
    }
    for (shell, ..) in &mut begun {
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
    let [(_, kept, port), (_, gone, _)] = begun.as_slice() else { unreachable!() };
    until("it went with its starter", || (!is_there(*gone)).then_some(()));
    assert_eq!(said_at(*port).unwrap(), "here");
    assert!(is_there(*kept));
    rustix::process::kill_process(*kept, Signal::TERM).unwrap();
    until("it ended by what it was told", || (!is_there(*kept)).then_some(()));
    until("its port is free again", || TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).ok());
}

#[tokio::test]
async fn a_service_whose_port_is_taken_does_not_run() {
    let place = Place::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let plan = EnclosePlan { ports: vec![port], ..python(&place, "open('ran', 'w')") };
    let (status, out) = place.run(EnclosePlan { detached: true, ..plan.clone() }).await;
    assert_eq!(status.code(), Some(125), "{out}");
    assert!(out.contains(&format!("port {port} of this machine")), "{out}");
    assert!(!place.at("work/ran").exists());
    // A service whose log is read is running.
    let (status, out) = place.run(plan).await;
    assert!(status.success() && out.contains("is taken here"), "{out}");
    assert!(place.at("work/ran").exists());
}

const LOOK: &str = r#"
import os, socket
def at(family, where):
    one = socket.socket(family)
    try:
        one.connect(where)
        return "reached"
    except OSError as err:
        return type(err).__name__
"#;

#[tokio::test]
async fn a_service_has_no_relay_and_sees_no_server_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (door, api) = (dir.path().join("door.sock"), dir.path().join("api.sock"));
    let _listening = [&door, &api].map(|path| UnixListener::bind(path).unwrap());
    let mut place = Place::new();
    let options = Options { init_program: init_program(), ..Options::default() };
    let homes = place.at("homes");
    let enclosures =
        || Enclosures::new(options.clone(), homes.clone(), vec![api.clone()], Some(door.clone()));
    place.enclosures = enclosures();
    let script = format!(
        "{LOOK}print(at(socket.AF_INET, ('127.0.0.1', 80)), at(socket.AF_UNIX, '{}'))",
        api.display()
    );
    // A run reaches both on its own network; a service neither.
    for (network, server, wanted) in [
        (Network::Mesh, true, "reached FileNotFoundError\n"),
        (Network::Mesh, false, "ConnectionRefusedError FileNotFoundError\n"),
        (Network::Host, true, " reached\n"),
        (Network::Host, false, " FileNotFoundError\n"),
    ] {
        let plan = EnclosePlan { server, network, ..python(&place, &script) };
        let (status, out) = place.run(plan).await;
        assert!(status.success() && out.ends_with(wanted), "{network:?} {server}: {out}");
    }
    let plan = || python(&place, "open('ran', 'w')");
    let record = place.enclosures.enclose(plan()).await.unwrap().attested;
    let record = &record.attestation;
    assert_eq!(record.driver, "namespace of a command that lives, network of its room");
    let services = record.checks.iter().find(|one| one.name == CheckName::HostServices).unwrap();
    assert!(services.measured.contains("listening: udp 127.0.0.1:53"), "{services:?}");
    // An unexpected relay is found before a command runs, and so is another way out.
    let port = free();
    for mutation in [
        Mutation::LeadsTo(door.clone()),
        Mutation::LetsOut(port),
        Mutation::Without(Layer::OneDoor),
        Mutation::Without(Layer::NetworkNamespace),
    ] {
        let label = format!("{mutation:?}");
        match enclosures().broken(mutation).enclose(plan()).await {
            Err(SandboxError::Unavailable { code, .. }) => {
                assert_eq!(code, NOT_ATTESTED, "{label}")
            }
            other => panic!("{label}: {other:?}"),
        }
    }
    assert!(!place.at("work/ran").exists());
}

#[tokio::test]
async fn loader_variables_reach_the_command_but_not_the_launcher() {
    let place = Place::new();
    let none = place.at("work/none.so").display().to_string();
    let mut plan = place.plan("echo \"$LD_PRELOAD $LD_LIBRARY_PATH\"");
    for (name, value) in [("LD_PRELOAD", none.as_str()), ("LD_LIBRARY_PATH", "/lib/nowhere")] {
        plan.env.push((name.to_owned(), value.to_owned()));
    }
    let enclosed = place.enclosures.enclose(plan.clone()).await.unwrap();
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH"] {
        assert!(enclosed.needs.contains(&(name.to_owned(), String::new())), "{name}");
    }
    let (status, out) = place.run(plan).await;
    assert!(status.success() && out.contains(&format!("{none} /lib/nowhere\n")), "{out}");
    // The loader complains once for each program that it loads: the command, and no launcher.
    assert_eq!(out.matches("cannot be preloaded").count(), 1, "{out}");
}

#[tokio::test]
async fn a_service_reopens_its_log_by_name() {
    let place = Place::new();
    let log = place.at("data/service.log");
    let file = std::fs::File::create(&log).unwrap();
    let plan = python(&place, "open('/dev/stdout', 'w').write('by name\\n')");
    let mut command = place.command(EnclosePlan { detached: true, ..plan }).await;
    let again = file.try_clone().unwrap();
    let status = command.stdin(Stdio::null()).stdout(file).stderr(again).status().unwrap();
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(status.success() && said == "by name\n", "{status} {said}");
    // And to no other file there.
    let script = format!("open('{}', 'a')", place.at("data/secret").display());
    let (status, out) = place.run(python(&place, &script)).await;
    assert!(!status.success() && out.contains("FileNotFoundError"), "{out}");
}
