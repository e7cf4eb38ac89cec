//! Containers in a real engine, from an image that is built here.

use std::path::Path;
use std::process::{Command, Stdio};

use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use overmind_testkit::real::counterpart;
use overmind_workspace::leaks::LeakKind;
use overmind_workspace::lease::TreeEnd;

use crate::support::{Bench, chain};

const IMAGE: &str = "overmind-workspace-test:1";

async fn engine(socket: &str) -> bollard::Docker {
    let client = bollard::Docker::connect_with_unix(socket, 60, bollard::API_DEFAULT_VERSION);
    client.unwrap().negotiate_version().await.unwrap()
}

/// One static program, as an image.
async fn image(client: &bollard::Docker, dir: &Path) {
    let root = dir.join("image");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::create_dir_all(root.join("tmp")).unwrap();
    let program =
        ["/usr/bin/busybox", "/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    std::fs::copy(program.unwrap(), root.join("bin/busybox")).unwrap();
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    let tar = Command::new("tar").arg("-C").arg(&root).args(["-c", "."]).output().unwrap();
    assert!(tar.status.success());
    let (name, tag) = IMAGE.split_once(':').unwrap();
    let options = CreateImageOptionsBuilder::default().from_src("-").repo(name).tag(tag).build();
    let body = bollard::body_full(tar.stdout.into());
    let mut progress = client.create_image(Some(options), Some(body), None);
    while let Some(step) = progress.next().await {
        step.unwrap();
    }
}

fn config(more: &str) -> String {
    format!(
        "
services:
  web:
    strategy: container
    image: {IMAGE}
    pull: never
    command: [busybox, sh, -c, 'echo hello from $${{OVM_NAME}} > /data/index.html; busybox sleep 0.3; exec busybox httpd -f -p 8080 -h /data']
    ports: {{http: 8080}}
    volumes: [/data]
    mounts: {{hello.txt: /etc/hello.txt}}
    env: {{OVM_NAME: '${{session.id}}'}}
    {more}
env: {{WEB_URL: '${{web.url}}'}}
"
    )
}

fn get(url: &str) -> String {
    let script =
        "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())";
    let output =
        Command::new("python3").args(["-c", script, url]).stderr(Stdio::inherit()).output();
    String::from_utf8(output.unwrap().stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn needs_docker_each_session_has_its_own_container_network_and_volume() {
    let Some(socket) = counterpart("DOCKER") else { return };
    let mut bench = Bench::new();
    bench.docker = Some(socket.clone().into());
    let client = engine(&socket).await;
    image(&client, &bench.root).await;
    let workspace = bench.workspace();
    let files = [("hello.txt", "from the worktree")];
    let networks = async || {
        let all = client.list_networks(None).await.unwrap();
        let ours = all.into_iter().filter_map(|n| n.name).filter(|n| n.starts_with("ovm-"));
        ours.collect::<std::collections::BTreeSet<String>>()
    };
    let before = networks().await;
    let mut urls = Vec::new();
    for session in ["s1", "s2"] {
        let request = bench.request_with(session, &config("ready: tcp"), &files);
        let lease = workspace.build(request, &bench.told).await;
        let lease = lease.unwrap_or_else(|err| panic!("{}", chain(&err)));
        let url = lease.env["WEB_URL"].clone();
        // Ready means that the program inside answers, not only the engine's proxy.
        assert_eq!(get(&format!("{url}/index.html")), format!("hello from {session}"));
        urls.push(url);
    }
    assert_ne!(urls[0], urls[1]);
    // Other tests, and earlier failed ones, have their own networks.
    let ours: Vec<String> = networks().await.into_iter().filter(|n| !before.contains(n)).collect();
    assert_eq!(ours.len(), 2, "{ours:?}");

    // Objects that a crash left are found by their label, and removed; foreign ones are not.
    let report = workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    assert_eq!(report.leaks, []);
    assert_eq!(get(&format!("{}/index.html", urls[1])), "hello from s2");
    std::fs::remove_dir_all(bench.path("home/leases/s2")).unwrap();
    let found = workspace.leaks().await;
    let kinds: Vec<String> = found.iter().map(|one| format!("{:?}", one.kind)).collect();
    for kind in ["Container", "Network", "Volume", "Port", "TempFiles", "Worktree"] {
        assert!(kinds.iter().any(|one| one == kind), "{kind} in {found:#?}");
    }
    let other = Bench::new();
    let mut options = other.options();
    options.docker = Some(socket.into());
    let stranger = overmind_workspace::lease::Workspace::open(options).unwrap();
    assert_eq!(stranger.leaks().await, [], "another data directory sees none of ours");
    for finding in found.iter().filter(|one| one.kind != LeakKind::Worktree) {
        // Whatever the answer is, it changes nothing.
        let _ = stranger.fix(finding).await;
    }
    assert_eq!(workspace.leaks().await, found);
    // A network can be removed once its container is removed: the findings are in that order.
    for finding in &found {
        workspace.fix(finding).await.unwrap();
    }
    assert_eq!(workspace.leaks().await, []);
}

#[tokio::test]
async fn needs_docker_a_container_that_ends_or_has_no_image_is_reported_and_undone() {
    let Some(socket) = counterpart("DOCKER") else { return };
    let mut bench = Bench::new();
    bench.docker = Some(socket.clone().into());
    let client = engine(&socket).await;
    image(&client, &bench.root).await;
    let workspace = bench.workspace();
    let text = format!(
        "services: {{box: {{strategy: container, image: '{IMAGE}', pull: never, command: [busybox, sh, -c, 'echo cannot; exit 3'], ports: {{x: 80}}}}}}\n"
    );
    let err = workspace.build(bench.request("s1", &text), &bench.told).await.unwrap_err();
    let said = chain(&err);
    assert!(said.contains("exit code 3") && said.contains("cannot"), "{said}");
    bench.assert_nothing_left(&workspace).await;
    let text = "services: {box: {strategy: container, image: 'overmind-nowhere:1', pull: never}}\n";
    let err = workspace.build(bench.request("s1", text), &bench.told).await.unwrap_err();
    assert!(chain(&err).contains("`pull: never` forbids"), "{}", chain(&err));
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn without_docker_a_container_service_reports_the_missing_parts() {
    let bench = Bench::new();
    let mut options = bench.options();
    options.docker = Some(bench.path("nothing.sock"));
    let workspace = overmind_workspace::lease::Workspace::open(options).unwrap();
    let text = "services: {box: {strategy: container, image: x}}\n";
    let err = workspace.build(bench.request("s1", text), &bench.told).await.unwrap_err();
    assert!(chain(&err).contains("there is no Docker engine at"), "{}", chain(&err));
    // Unchecked objects are not reported as clean.
    let leaks = workspace.leaks().await;
    assert_eq!(leaks.len(), 1);
    assert!(!leaks[0].fixable && leaks[0].how.contains("were not looked for"), "{leaks:?}");
}
