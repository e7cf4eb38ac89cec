//! The image of the docker tests: busybox and nothing else, made without a registry.

use std::path::Path;

use bollard::Docker as Client;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;

pub(crate) const IMAGE: &str = "overmind-test-busybox:1";

/// Imports the image into the engine at `socket`, unless it is there.
pub(crate) async fn ensure_test_image(socket: &str) {
    let client = client(socket).await;
    if client.inspect_image(IMAGE).await.is_ok() {
        return;
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
    let busybox = busybox.expect("the docker tests need a static busybox (package busybox-static)");
    let listed = std::process::Command::new(busybox).arg("--list").output().unwrap().stdout;

    let mut tar = Tar::default();
    for directory in ["bin/", "etc/", "proc/", "dev/", "tmp/", "root/", "workspace/"] {
        tar.entry(directory, 0o755, b'5', "", &[]);
    }
    tar.entry("bin/busybox", 0o755, b'0', "", &std::fs::read(busybox).unwrap());
    for applet in String::from_utf8(listed).unwrap().lines().filter(|name| *name != "busybox") {
        tar.entry(&format!("bin/{applet}"), 0o777, b'2', "busybox", &[]);
    }
    tar.entry("usr/", 0o755, b'5', "", &[]);
    tar.entry("usr/bin", 0o777, b'2', "../bin", &[]);
    tar.entry("etc/passwd", 0o644, b'0', "", b"root:x:0:0::/root:/bin/sh\n");

    let (name, tag) = IMAGE.split_once(':').unwrap();
    let options = CreateImageOptionsBuilder::default().from_src("-").repo(name).tag(tag).build();
    let body = bollard::body_full(tar.finish().into());
    let mut progress = client.create_image(Some(options), Some(body), None);
    while let Some(step) = progress.next().await {
        step.unwrap();
    }
}

pub(crate) async fn client(socket: &str) -> Client {
    let client = Client::connect_with_unix(socket, 30, bollard::API_DEFAULT_VERSION).unwrap();
    client.negotiate_version().await.unwrap()
}

/// As much of the ustar format as the image needs.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn entry(&mut self, path: &str, mode: u32, kind: u8, link: &str, content: &[u8]) {
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", content.len()));
        put(136, "00000000000");
        put(148, "        ");
        put(157, link);
        put(257, "ustar\x0000");
        header[156] = kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}
