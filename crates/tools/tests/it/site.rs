//! A web site on loopback with configurable faults, and a name server for it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overmind_core::Fut;
use overmind_tools::Options;
use overmind_tools::egress::{Egress, Resolve};

use crate::support::Bench;

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The reaction of the site to a request for one path.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Writes these bytes and hangs up.
    Answer(Vec<u8>),
    /// Writes the first, then the second again and again, as fast as it is read.
    Endless(Vec<u8>, Vec<u8>),
    /// The same, but with a pause before each.
    Drip(Vec<u8>, Vec<u8>),
}

impl Way {
    pub(crate) fn page(content_type: &str, body: impl AsRef<[u8]>) -> Self {
        Self::with(&format!("content-type: {content_type}\r\n"), body)
    }

    pub(crate) fn with(headers: &str, body: impl AsRef<[u8]>) -> Self {
        Self::status("200 OK", headers, body)
    }

    pub(crate) fn status(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut all = format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        )
        .into_bytes();
        all.extend(body);
        Self::Answer(all)
    }

    pub(crate) fn redirect(status: &str, to: &str) -> Self {
        Self::status(status, &format!("location: {to}\r\n"), "")
    }
}

type Routes = Arc<Mutex<HashMap<String, Way>>>;

#[derive(Debug)]
pub(crate) struct Site {
    address: SocketAddr,
    routes: Routes,
    seen: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
}

impl Site {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (routes, seen) = (Routes::default(), Arc::new(Mutex::new(Vec::new())));
        let stop = Arc::new(AtomicBool::new(false));
        let (in_routes, in_seen, in_stop) = (routes.clone(), seen.clone(), stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if in_stop.load(Ordering::SeqCst) {
                    return;
                }
                let (routes, seen) = (in_routes.clone(), in_seen.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &routes, &seen));
            }
        });
        Self { address, routes, seen, stop }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn route(&self, path: &str, way: Way) -> &Self {
        self.routes.lock().unwrap().insert(path.into(), way);
        self
    }

    /// `http://site.test:<port><path>`
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://site.test:{}{path}", self.port())
    }

    /// Every request so far, head and body.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// A bench that may reach this site as `site.test` with every method, and whatever else the
    /// rules say; `{port}` in them is the site's.
    pub(crate) fn bench(&self, rules: &[&str], names: Names) -> (Bench, Arc<Names>) {
        self.bench_with(rules, names, |_| {})
    }

    pub(crate) fn bench_with(
        &self,
        rules: &[&str],
        names: Names,
        change: impl FnOnce(&mut Egress),
    ) -> (Bench, Arc<Names>) {
        let port = self.port();
        let mut all =
            vec![format!("private GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS http://site.test:{port}")];
        all.extend(rules.iter().map(|rule| rule.replace("{port}", &port.to_string())));
        let mut egress = Egress::allowing(&all).unwrap();
        change(&mut egress);
        let names = Arc::new(names.with("site.test", &[LOOPBACK]));
        let options = Options { egress, resolver: names.clone(), ..Options::default() };
        (Bench::with(options, Vec::new()), names)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, routes: &Routes, seen: &Mutex<Vec<String>>) {
    let Some(request) = read_request(&mut stream) else { return };
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    seen.lock().unwrap().push(request);
    let way = routes.lock().unwrap().get(&path).cloned();
    let way = way.unwrap_or_else(|| Way::status("404 Not Found", "", "no such page"));
    match way {
        Way::Answer(bytes) => {
            let _ = stream.write_all(&bytes);
        }
        Way::Endless(head, piece) => {
            let mut next = stream.write_all(&head);
            while next.is_ok() {
                next = stream.write_all(&piece);
            }
        }
        Way::Drip(head, piece) => {
            let mut next = stream.write_all(&head);
            while next.is_ok() {
                std::thread::sleep(Duration::from_millis(20));
                next = stream.write_all(&piece);
            }
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let wanted = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())
                .unwrap_or(0_usize);
            if body.len() >= wanted {
                return Some(text);
            }
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            n => all.extend(&buffer[..n]),
        }
    }
}

/// A name server: each look-up takes the next answer; the last one stays.
#[derive(Debug, Default)]
pub(crate) struct Names {
    answers: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
}

impl Names {
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Adds the target of the name to its earlier targets.
    pub(crate) fn with(self, name: &str, addresses: &[IpAddr]) -> Self {
        self.answers.lock().unwrap().entry(name.into()).or_default().push(addresses.to_vec());
        self
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> Fut<'a, Result<Vec<IpAddr>, String>> {
        self.asked.lock().unwrap().push(host.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let found = match answers.get_mut(host) {
            Some(all) if all.len() > 1 => Ok(all.remove(0)),
            Some(all) => Ok(all[0].clone()),
            None => Err("no such name".to_owned()),
        };
        Box::pin(std::future::ready(found))
    }
}
