//! Host names of services, byte by byte.

use std::sync::Arc;

use overmind_server::{Backends, Found, Proxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// One run, `shop`: `web` serves at the first port, nothing at the second, which is `dead`.
#[derive(Debug)]
struct Shop(u16, u16);

impl Backends for Shop {
    fn find(&self, run: &str, service: Option<&str>) -> Found {
        match (run, service) {
            ("shop", None | Some("web")) => Found::Port(self.0),
            ("shop", Some("dead")) => Found::Port(self.1),
            ("shop", Some(_)) => Found::NoService { there: vec!["web".into(), "dead".into()] },
            _ => Found::NoRun { there: vec!["shop".into()] },
        }
    }
}

struct Street {
    port: u16,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Street {
    /// An upstream that echoes each connection behind one line, and the proxy before it.
    async fn new() -> Self {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let web = upstream.local_addr().unwrap().port();
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let (ended, more) = (stop.clone(), tasks.clone());
        tasks.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = ended.cancelled() => return,
                    accepted = upstream.accept() => accepted,
                };
                let (mut stream, _) = accepted.unwrap();
                more.spawn(async move {
                    stream.write_all(b"HTTP/1.1 101 Echo\r\n\r\n").await.unwrap();
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    let _ = write.shutdown().await;
                });
            }
        });
        let backends = Arc::new(Shop(web, dead));
        let proxy = Proxy::bind("127.0.0.1:0".parse().unwrap(), backends).await.unwrap();
        let port = proxy.port();
        tasks.spawn(proxy.serve(stop.clone()));
        Self { port, stop, tasks }
    }

    async fn ask(&self, head: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[tokio::test]
async fn bytes_are_forwarded_both_ways_also_after_an_upgrade() {
    let street = Street::new().await;
    let host = format!("web.shop.localhost:{}", street.port);
    let head = format!("GET /x HTTP/1.1\r\nHost: {host}\r\nUpgrade: echo\r\n\r\n");
    let mut stream = TcpStream::connect(("127.0.0.1", street.port)).await.unwrap();
    // In pieces, as slow clients send it.
    let (first, second) = head.split_at(20);
    stream.write_all(first.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    stream.write_all(second.as_bytes()).await.unwrap();
    let wanted = format!("HTTP/1.1 101 Echo\r\n\r\n{head}");
    let mut answer = vec![0; wanted.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), wanted);
    for said in [&b"\x81\x05hello"[..], b"\0\xff"] {
        stream.write_all(said).await.unwrap();
        let mut back = vec![0; said.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, said);
    }
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    street.end().await;
}

#[tokio::test]
async fn an_unknown_service_is_refused_with_the_known_ones() {
    let street = Street::new().await;
    let ask = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for (head, status, says) in [
        (ask("nobody.localhost"), "404 Not Found", "shop.localhost:"),
        (ask("<b>.localhost"), "404 Not Found", "&lt;b&gt;"),
        (ask("api.shop.localhost"), "404 Not Found", "dead.shop.localhost:"),
        (ask("dead.shop.localhost"), "502 Bad Gateway", "nothing answers there"),
        (ask("example.org"), "404 Not Found", "is not a name of a run"),
        (ask("127.0.0.1"), "404 Not Found", "is not a name of a run"),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "400 Bad Request", "names no host"),
    ] {
        let answer = street.ask(&head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}: {answer}");
        assert!(answer.contains(says), "{head}: {answer}");
    }
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n", "x".repeat(70_000));
    let mut stream = TcpStream::connect(("127.0.0.1", street.port)).await.unwrap();
    stream.write_all(long.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 431");
    street.end().await;
}

#[tokio::test]
async fn pages_of_other_sites_open_no_web_sockets() {
    let street = Street::new().await;
    let ask = async |more: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: web.shop.localhost\r\n{more}\r\n");
        let mut stream = TcpStream::connect(("127.0.0.1", street.port)).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        String::from_utf8(status.to_vec()).unwrap()
    };
    let socket = "Connection: Upgrade\r\nUpgrade: WebSocket\r\n";
    for origin in ["http://evil.example", "null", "http://localhost.evil.example"] {
        let head = format!("{socket}Origin: {origin}\r\n");
        assert_eq!(ask(&head).await, "HTTP/1.1 403", "{origin}");
        // One of two origins is enough.
        let head = format!("Origin: http://shop.localhost\r\n{head}");
        assert_eq!(ask(&head).await, "HTTP/1.1 403", "{origin}");
        // Anything that is no web socket is left to the service and the browser.
        assert_eq!(ask(&format!("Origin: {origin}\r\n")).await, "HTTP/1.1 101", "{origin}");
    }
    for own in
        ["", "Origin: http://web.shop.localhost:8421\r\n", "Origin: http://127.0.0.1:5173\r\n"]
    {
        assert_eq!(ask(&format!("{socket}{own}")).await, "HTTP/1.1 101", "{own}");
    }
    street.end().await;
}

#[tokio::test]
async fn the_proxy_listens_only_on_loopback_and_closes_its_connections() {
    let shop = Arc::new(Shop(1, 1));
    let err = Proxy::bind("0.0.0.0:0".parse().unwrap(), shop).await.unwrap_err();
    assert!(err.to_string().contains("0.0.0.0"), "{err}");
    let street = Street::new().await;
    let host = format!("shop.localhost:{}", street.port);
    let mut stream = TcpStream::connect(("127.0.0.1", street.port)).await.unwrap();
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
    let mut first = [0; 8];
    stream.read_exact(&mut first).await.unwrap();
    street.end().await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}
