//! Checks that the mesh proxy of a sandbox leads to its target and nowhere else.
//!
//! While the probe runs, the driver replaces the server behind the proxy: it listens on a socket
//! that nobody else knows of, and answers with the secret and the bytes that it received. The probe
//! sends texts that could redirect a real proxy, and sees whether each arrived unchanged. The
//! driver also listens behind each forwarded port, on a random port of the host's loopback, and its
//! answer names the port.

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, poll_fn, select};
use overmind_core::enclosure::{DOOR_PORT, NAMES_PORT};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::facts::Facts;
use super::questions::Questions;

/// Maximum number of bytes that the probe sends on one connection.
const MOST: u64 = 4096;

/// The listeners that are expected in the network of a sandbox whose network is the mesh and which
/// has these forwarded ports, with or without a proxy.
pub(super) fn expected_listeners(door: bool, reaches: &[u16]) -> Vec<String> {
    let door = door.then_some(&DOOR_PORT).into_iter();
    let tcp = door.chain(reaches).map(|port| format!("tcp 127.0.0.1:{port}"));
    let mut all: Vec<String> = tcp.chain([format!("udp 127.0.0.1:{NAMES_PORT}")]).collect();
    all.sort();
    all
}

/// The texts that the probe sends, each on its own connection: a plain word, and texts that would
/// redirect one kind of proxy or another. `port` is a port of the host.
fn words(questions: &Questions) -> Vec<Vec<u8>> {
    let port = questions.tcp_port;
    let socks: Vec<u8> = [&[4, 1][..], &port.to_be_bytes(), &[127, 0, 0, 1, 0]].concat();
    vec![
        questions.nonce.clone().into_bytes(),
        format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").into_bytes(),
        format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")
            .into_bytes(),
        format!("PROXY TCP4 127.0.0.1 127.0.0.1 1 {port}\r\n").into_bytes(),
        socks,
    ]
}

/// The number of [`words`].
pub(super) const WORDS: usize = 5;

/// Runs the checks inside of the sandbox.
pub(super) fn look(questions: &Questions, facts: &mut Facts) {
    if !questions.way {
        return;
    }
    match listeners() {
        Ok(found) => facts.listeners = found,
        Err(err) => facts.unknown.push(format!("what listens: {err}")),
    }
    for words in words(questions) {
        if questions.door {
            let wanted = answer(questions, None, &words);
            let kept = say(DOOR_PORT, &words).is_ok_and(|said| said == wanted);
            *if kept { &mut facts.door_kept } else { &mut facts.door_lost } += 1;
        }
        for port in &questions.reaches {
            let wanted = answer(questions, Some(*port), &words);
            let kept = say(*port, &words).is_ok_and(|said| said == wanted);
            *if kept { &mut facts.reaches_kept } else { &mut facts.reaches_lost } += 1;
        }
    }
}

/// The answer to a connection through the proxy, or through this forwarded port.
fn answer(questions: &Questions, at: Option<u16>, words: &[u8]) -> Vec<u8> {
    let at = at.map(|port| format!(" at {port} ")).unwrap_or_default();
    [questions.secret.as_bytes(), at.as_bytes(), words].concat()
}

/// Sends a text to this port and reads the whole answer.
fn say(port: u16, words: &[u8]) -> io::Result<Vec<u8>> {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_millis(500))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(words)?;
    stream.shutdown(Shutdown::Write)?;
    let mut heard = Vec::new();
    stream.take(2 * MOST).read_to_end(&mut heard)?;
    Ok(heard)
}

/// The listeners of this network namespace: listening TCP sockets, and bound UDP sockets.
fn listeners() -> io::Result<Vec<String>> {
    /// `TCP_LISTEN`, and the state of a UDP socket that is not connected.
    const STATES: [(&str, &str); 2] = [("tcp", "0A"), ("udp", "07")];
    let mut found = Vec::new();
    for (kind, state) in STATES {
        for version in ["", "6"] {
            let table = match std::fs::read_to_string(format!("/proc/self/net/{kind}{version}")) {
                Ok(table) => table,
                // The kernel has no IPv6.
                Err(err) if version == "6" && err.kind() == io::ErrorKind::NotFound => continue,
                Err(err) => return Err(err),
            };
            found.extend(table.lines().skip(1).filter_map(|line| {
                let mut fields = line.split_ascii_whitespace().skip(1);
                let at = fields.next()?;
                (fields.nth(1)? == state).then(|| format!("{kind} {}", address(at)))
            }));
        }
    }
    found.sort();
    Ok(found)
}

/// Parses an address as the kernel writes it: words in the machine's byte order, in hexadecimal
/// digits.
fn address(text: &str) -> String {
    let parse = || {
        let (ip, port) = text.split_once(':')?;
        let words: Option<Vec<u32>> = ip
            .as_bytes()
            .chunks(8)
            .map(|word| {
                let whole = std::str::from_utf8(word).ok().filter(|word| word.len() == 8)?;
                u32::from_str_radix(whole, 16).ok()
            })
            .collect();
        let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
        let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
            Ok(four) => IpAddr::from(Ipv4Addr::from(four)),
            Err(_) => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        };
        Some(SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?)).to_string())
    };
    parse().unwrap_or_else(|| text.to_owned())
}

/// The driver's side: the listeners behind the proxy and behind each forwarded port. Dropping it
/// closes and removes the sockets.
#[derive(Debug)]
pub(crate) struct DoorTrap {
    listener: tokio::net::UnixListener,
    path: PathBuf,
    /// The listeners, in the order of the ports in the questions.
    ends: Vec<tokio::net::TcpListener>,
    questions: Questions,
}

impl DoorTrap {
    /// # Errors
    ///
    /// Fails if a socket cannot be made.
    pub(crate) fn set(questions: &Questions) -> io::Result<Self> {
        let path = questions.trap_file.with_extension("sock");
        // The path goes through the directory's descriptor: a full path may be too long for a
        // socket's address.
        let (directory, name) = (path.parent(), path.file_name());
        let directory = rustix::fs::open(
            directory.unwrap_or(Path::new("/")),
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let number = directory.as_raw_fd();
        let short = Path::new("/proc/self/fd").join(number.to_string());
        let listener = tokio::net::UnixListener::bind(short.join(name.unwrap_or_default()))?;
        let mut trap = Self { listener, path, ends: Vec::new(), questions: questions.clone() };
        // Commands may run as another user.
        std::fs::set_permissions(&trap.path, std::fs::Permissions::from_mode(0o666))?;
        for _ in &questions.reaches {
            let end = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            end.set_nonblocking(true)?;
            trap.ends.push(tokio::net::TcpListener::from_std(end)?);
        }
        Ok(trap)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The listening ports of the host's loopback, in the order of the ports in the questions.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot report a port.
    pub(crate) fn ends(&self) -> io::Result<Vec<u16>> {
        self.ends.iter().map(|end| Ok(end.local_addr()?.port())).collect()
    }

    /// Answers connections for as long as `probe` takes.
    pub(crate) async fn attend<T>(&self, probe: impl Future<Output = T>) -> T {
        let mut probe = pin!(probe);
        loop {
            tokio::select! {
                biased;
                answer = &mut probe => return answer,
                () = self.answer() => {}
            }
        }
    }

    async fn answer(&self) {
        let at_a_port = poll_fn(|cx| {
            for (end, port) in self.ends.iter().zip(&self.questions.reaches) {
                if let Poll::Ready(Ok((stream, _))) = end.poll_accept(cx) {
                    return Poll::Ready((stream, *port));
                }
            }
            Poll::Pending
        });
        match select(pin!(self.listener.accept()), at_a_port).await {
            Either::Left((Ok((stream, _)), _)) => self.say(stream, None).await,
            // The failure shows in the answer that the probe does not get.
            Either::Left((Err(_), _)) => std::future::pending().await,
            Either::Right(((stream, port), _)) => self.say(stream, Some(port)).await,
        }
    }

    /// Reads one connection to its end, and answers.
    async fn say(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin, at: Option<u16>) {
        let mut said = Vec::new();
        if (&mut stream).take(MOST).read_to_end(&mut said).await.is_ok() {
            let _ = stream.write_all(&answer(&self.questions, at, &said)).await;
        }
    }
}

impl Drop for DoorTrap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_in_the_kernels_format() {
        let v4 = u32::from_ne_bytes([127, 0, 0, 1]);
        assert_eq!(address(&format!("{v4:08X}:0050")), "127.0.0.1:80");
        let last = u32::from_ne_bytes([0, 0, 0, 1]);
        assert_eq!(address(&format!("{:024}{last:08X}:1F90", 0)), "[::1]:8080");
        for odd in ["", "xyz:1", "00:1", "0100007F"] {
            assert_eq!(address(odd), odd);
        }
    }

    #[test]
    fn listening_sockets_are_found() {
        let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = format!("tcp {}", here.local_addr().unwrap());
        assert!(listeners().unwrap().contains(&at));
        drop(here);
        assert!(!listeners().unwrap().contains(&at));
    }
}
