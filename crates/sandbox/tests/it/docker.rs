//! The `docker` driver: the suite and special cases, with a real engine; its refusals without one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::query_parameters::ListContainersOptionsBuilder;
use overmind_core::Fut;
use overmind_core::attest::CheckName;
use overmind_core::sandbox::{Exit, HOME, HomeFile, Sandbox, SandboxError, SandboxLevel};
use overmind_sandbox::attest::NOT_ATTESTED;
use overmind_sandbox::docker::{Mutation, Options, image};
use overmind_sandbox::{Docker, RunAs};
use overmind_testkit::real::counterpart;

use crate::image::{IMAGE, client, ensure_test_image};
use crate::support::{
    DOCKER, Place, Subject, Warmed, host_has, init_program, marker, open_to_all, processes_with,
    until,
};

/// Options for the engine under test, with an owner that no other test has.
fn options(socket: &str) -> Options {
    Options {
        socket: PathBuf::from(socket),
        image: IMAGE.to_owned(),
        owner: marker(),
        instance: marker(),
        init_program: init_program(),
        ..Options::default()
    }
}

async fn engine() -> Option<String> {
    let socket = counterpart("DOCKER")?;
    ensure_test_image(&socket).await;
    Some(socket)
}

/// The names of all containers of one owner, running or not.
async fn containers_of(socket: &str, owner: &str) -> Vec<String> {
    let filters = HashMap::from([("label", vec![format!("overmind.owner={owner}")])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let found = client(socket).await.list_containers(Some(options)).await.unwrap();
    found.into_iter().flat_map(|container| container.names.unwrap_or_default()).collect()
}

async fn subject() -> Option<Subject> {
    let socket = engine().await?;
    let sandbox = Arc::new(Docker::new(options(&socket)));
    Some(Subject { sandbox, gives: DOCKER, inside: Some("/workspace"), _keep: None, close: None })
}

mod needs_docker_conformance {
    crate::conformance::suite!(super::subject);
}

/// A driver with prepared containers: from its second call on, each case runs in one.
async fn warm_subject() -> Option<Subject> {
    let socket = engine().await?;
    let docker = Arc::new(Docker::new(Options { waiting: 4, ..options(&socket) }));
    let closing = Arc::clone(&docker);
    let close = Box::new(move || -> Fut<'static, ()> {
        let docker = Arc::clone(&closing);
        Box::pin(async move { docker.settled().await })
    });
    Some(Subject {
        sandbox: Arc::new(Warmed { driver: docker, warmth: Docker::warmth }),
        gives: DOCKER,
        inside: Some("/workspace"),
        _keep: None,
        close: Some(close),
    })
}

mod needs_docker_conformance_of_containers_that_waited {
    crate::conformance::suite!(super::warm_subject);
}

#[tokio::test]
async fn needs_docker_no_container_is_left_after_any_end() {
    let Some(socket) = engine().await else { return };
    let options = options(&socket);
    let docker = Docker::new(options.clone());
    let place = Place::new();

    let result = docker.run(place.sh("exit 4")).await.unwrap();
    assert_eq!(result.exit, Exit::Code(4));
    assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);

    let mut slow = place.sh("sleep 300; :");
    slow.timeout = Duration::from_millis(300);
    assert_eq!(docker.run(slow).await.unwrap().exit, Exit::TimedOut);
    assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);

    let marker = marker();
    {
        let call = docker.run(place.sh(&format!("sleep 300; : {marker}")));
        tokio::select! {
            result = call => panic!("ended by itself: {result:?}"),
            () = until("it runs", || !processes_with(&marker).is_empty()) => {}
        }
    }
    docker.settled().await;
    assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);
    assert_eq!(processes_with(&marker), [0u32; 0]);
}

#[tokio::test]
async fn needs_docker_a_call_dropped_at_any_moment_leaves_no_container() {
    let Some(socket) = engine().await else { return };
    let options = options(&socket);
    let docker = Docker::new(options.clone());
    let place = Place::new();
    for milliseconds in [0, 1, 3, 6, 10, 20, 40, 80, 160, 320] {
        let call = docker.run(place.sh("sleep 300; :"));
        let cut = tokio::time::timeout(Duration::from_millis(milliseconds), call).await;
        assert!(cut.is_err(), "{cut:?}");
    }
    docker.settled().await;
    assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);
}

#[tokio::test]
async fn needs_docker_a_sweep_removes_only_leftovers_of_an_earlier_start() {
    let Some(socket) = engine().await else { return };
    let earlier = options(&socket);
    let later = Options { instance: marker(), ..earlier.clone() };
    let stranger = options(&socket);
    let place = Place::new();
    let marks = [marker(), marker(), marker()];
    let drivers = [&earlier, &later, &stranger].map(|options| Docker::new(options.clone()));
    let calls = drivers.iter().zip(&marks).map(|(driver, mark)| {
        let request = place.sh(&format!("sleep 300; : {mark}"));
        async move { driver.run(request).await }
    });
    let all = futures_util::future::join_all(calls);
    let swept = async {
        for mark in &marks {
            until("it runs", || !processes_with(mark).is_empty()).await;
        }
        assert_eq!(drivers[1].sweep().await, Ok(1));
        until("the earlier one is gone", || processes_with(&marks[0]).is_empty()).await;
        for mark in &marks[1..] {
            assert!(!processes_with(mark).is_empty(), "{mark} was not to be swept");
        }
        assert_eq!(drivers[1].sweep().await, Ok(0));
    };
    tokio::select! {
        results = all => panic!("all ended: {results:?}"),
        () = swept => {}
    }
    for driver in &drivers {
        driver.settled().await;
    }
}

#[tokio::test]
async fn needs_docker_the_engine_confirms_the_bounds() {
    let Some(socket) = engine().await else { return };
    let options = options(&socket);
    let docker = Docker::new(options.clone());
    let place = Place::new();
    let marker = marker();
    let mut request = place.sh(&format!("sleep 300; : {marker}"));
    request.writable = Some("out".into());
    let call = docker.run(request);
    let look = async {
        until("it runs", || !processes_with(&marker).is_empty()).await;
        let name = containers_of(&socket, &options.owner).await.remove(0);
        let name = name.trim_start_matches('/').to_owned();
        client(&socket).await.inspect_container(&name, None).await.unwrap()
    };
    let seen = tokio::select! {
        result = call => panic!("ended by itself: {result:?}"),
        seen = look => seen,
    };
    docker.settled().await;
    let host = seen.host_config.unwrap();
    assert_eq!(host.network_mode.as_deref(), Some("none"));
    assert_eq!(host.readonly_rootfs, Some(true));
    assert_eq!((host.memory, host.memory_swap), (Some(256 << 20), Some(256 << 20)));
    assert_eq!((host.nano_cpus, host.pids_limit), (Some(500_000_000), Some(128)));
    assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
    assert_eq!(host.init, Some(true));
    let labels = seen.config.unwrap().labels.unwrap();
    assert_eq!(labels["overmind.managed"], "true");
    assert_eq!(labels["overmind.instance"], options.instance);
    let mounts = seen.mounts.unwrap();
    let writable: Vec<_> =
        mounts.iter().filter(|m| m.rw == Some(true)).map(|m| m.destination.clone()).collect();
    assert_eq!(writable, [Some("/workspace/out".to_owned())]);
}

#[tokio::test]
async fn needs_docker_the_shown_line_is_the_real_one_without_the_command() {
    let Some(socket) = engine().await else { return };
    let docker = Docker::new(options(&socket));
    let place = Place::new();
    let mut request = place.sh("echo s3cret");
    request.env.push(("TOKEN".to_owned(), "s3cret".to_owned()));
    let shown = docker.run(request).await.unwrap().shown_as.unwrap();
    assert!(shown.starts_with("docker run --rm --network none --read-only --cap-drop ALL "));
    assert!(shown.ends_with(&format!(" {IMAGE} '<redacted-command>'")), "{shown}");
    assert!(shown.contains(" --env TOKEN ") && !shown.contains("s3cret"), "{shown}");
}

#[tokio::test]
async fn needs_docker_a_missing_image_is_named_and_not_downloaded() {
    let Some(socket) = engine().await else { return };
    let digest = "0".repeat(64);
    for image in ["overmind-test-nowhere:1".to_owned(), format!("nowhere@sha256:{digest}")] {
        let options =
            Options { image: image.clone(), enforce_pinned_image: false, ..options(&socket) };
        let docker = Docker::new(options);
        for result in [docker.check().await, docker.run(Place::new().sh("true")).await.map(drop)] {
            match result {
                Err(SandboxError::Unavailable { code, message, reason, remedy }) => {
                    assert_eq!(
                        (code.as_str(), reason.as_str()),
                        ("docker_unavailable", "image_missing")
                    );
                    assert_eq!(message, format!("the engine has no image {image}"));
                    assert!(remedy.starts_with(&format!("docker pull {image}, or")), "{remedy}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn needs_docker_a_limit_refused_by_the_engine_is_a_configuration_error() {
    let Some(socket) = engine().await else { return };
    let docker = Docker::new(options(&socket));
    let place = Place::new();
    let mut request = place.sh("true");
    request.limits.memory_bytes = 1024;
    match docker.run(request).await {
        Err(SandboxError::BadConfig { code, message }) => {
            assert_eq!(code, "bad_config");
            assert!(message.starts_with("the engine refuses the container: "), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn needs_docker_a_healthy_engine_passes_the_check() {
    let Some(socket) = engine().await else { return };
    assert_eq!(Docker::new(options(&socket)).check().await, Ok(()));
}

#[tokio::test]
async fn needs_docker_a_directory_the_user_cannot_use_is_refused_early() {
    use std::os::unix::fs::PermissionsExt;
    let Some(socket) = engine().await else { return };
    let user = Some(RunAs { uid: 54321, gid: 54321 });
    let docker = Docker::new(Options { user, ..options(&socket) });
    let place = Place::new();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let mut request = place.sh("id -u; echo x > out/x");
    request.writable = Some("out".into());
    let result = docker.run(request.clone()).await.unwrap();
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "54321\n"));

    for (path, what) in [(place.workspace().join("out"), "write"), (place.workspace(), "read")] {
        mode(&path, 0o700);
        match docker.run(request.clone()).await {
            Err(SandboxError::BadConfig { message, .. }) => {
                let begin = format!("the container's user 54321:54321 cannot {what} ");
                assert!(message.starts_with(&begin), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    mode(&place.workspace(), 0o777);
}

#[track_caller]
fn assert_unavailable(result: Result<(), SandboxError>, expected: &str) {
    match result {
        Err(SandboxError::Unavailable { code, message, reason, remedy }) => {
            assert_eq!(code, "docker_unavailable");
            assert_eq!(message, "Docker daemon is unavailable or inaccessible");
            assert_eq!(reason, expected);
            assert!(!remedy.is_empty());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn missing_broken_and_silent_engines_have_distinct_errors() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new();
    let at = |name: &str| dir.path().join(name);
    let driver = |socket: PathBuf| Docker::new(options(socket.to_str().unwrap()));

    let missing = driver(at("missing"));
    assert_unavailable(missing.check().await, "docker_binary_missing");
    assert_unavailable(missing.run(place.sh("true")).await.map(drop), "docker_binary_missing");

    // A socket without a listener.
    drop(std::os::unix::net::UnixListener::bind(at("dead")).unwrap());
    assert_unavailable(driver(at("dead")).check().await, "docker_info_failed");

    // Something that listens and is not an engine.
    let wrong = tokio::net::UnixListener::bind(at("wrong")).unwrap();
    let answers = async {
        loop {
            let (mut client, _) = wrong.accept().await.unwrap();
            let _ = tokio::io::AsyncWriteExt::write_all(&mut client, b"no engine\r\n").await;
        }
    };
    tokio::select! {
        result = async { driver(at("wrong")).check().await } => {
            assert_unavailable(result, "docker_info_failed");
        }
        () = answers => {}
    }

    // Something that listens and never answers: the kernel accepts for it.
    let _silent = std::os::unix::net::UnixListener::bind(at("silent")).unwrap();
    assert_unavailable(driver(at("silent")).check().await, "docker_info_timeout");
}

#[tokio::test]
async fn an_image_without_a_digest_is_refused_if_digests_are_required() {
    // No engine is called: the name decides.
    let docker = Docker::new(Options {
        enforce_pinned_image: true,
        image: "alpine:3.20".to_owned(),
        ..options("/nowhere/docker.sock")
    });
    for result in [docker.check().await, docker.run(Place::new().sh("true")).await.map(drop)] {
        match result {
            Err(SandboxError::BadConfig { code, message }) => {
                assert_eq!(code, "image_not_pinned");
                assert_eq!(message, "the image alpine:3.20 is not named by its digest (@sha256:…)");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn needs_docker_an_image_is_built_once_and_pinned_by_its_id() {
    let Some(socket) = engine().await else { return };
    let at = Path::new(&socket);
    let name = format!("overmind-test-{}:1", marker());
    let one = image::build(at, image::From::Busybox, &name).await.unwrap();
    let two = image::build(at, image::From::Busybox, &name).await.unwrap();
    assert_eq!(one, two, "the second build changed nothing");
    assert!(one.id.starts_with("sha256:") && one.bytes > 0, "{one:?}");
    assert!(image::list(at).await.unwrap().contains(&one));

    let pinned = Options { image: one.id.clone(), enforce_pinned_image: true, ..options(&socket) };
    let result = Docker::new(pinned).run(Place::new().sh("id -u; ls /bin | wc -l")).await.unwrap();
    assert_eq!(result.exit, Exit::Code(0), "{result:?}");
    client(&socket)
        .await
        .remove_image(&name, None::<bollard::query_parameters::RemoveImageOptions>, None)
        .await
        .unwrap();
}

#[tokio::test]
async fn needs_docker_an_image_of_the_hosts_packages_has_python_and_git() {
    let Some(socket) = engine().await else { return };
    if !(host_has("dpkg-query") && host_has("git") && host_has("python3")) {
        return;
    }
    let name = "overmind-test-host:1";
    let built = image::build(Path::new(&socket), image::From::Host, name).await.unwrap();
    let docker = Docker::new(Options { image: built.id, ..options(&socket) });
    let place = Place::new();
    let script = "python3 -c 'import json, ssl; print(6 * 7)' && git init -q /tmp/r && ls -d /tmp/r/.git \
                  && awk 'BEGIN { print \"awk\" }' && bash -c 'echo $0' && ! cat /etc/shadow 2>/dev/null";
    let result = docker.run(place.sh(script)).await.unwrap();
    assert_eq!(result.stdout.text, "42\n/tmp/r/.git\nawk\nbash\n", "{result:?}");
}

#[tokio::test]
async fn needs_docker_a_prepared_container_equals_a_new_one() {
    let Some(socket) = engine().await else { return };
    let options = Options { waiting: 1, ..options(&socket) };
    let docker = Docker::new(options.clone());
    let place = Place::new();
    // The kernel's limits of the command, and everything that it can see of its directory.
    let look = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Sig|Umask)' /proc/self/status;                 cat /proc/self/limits /proc/self/oom_score_adj; pwd; env | sort; ls -a / /dev;                 cut -d' ' -f3- /proc/self/mountinfo | grep -v /overmind-probe/ | cut -d' ' -f3- |                 sed 's/ - .*//; s/ master:.*//; s/[a-z]*=.*//' | sort; ls /proc/self/fd | wc -l";
    let mut request = place.sh(look);
    request.writable = Some("out".into());
    request.env.push(("NAME".to_owned(), "two\nlines".to_owned()));
    let cold = docker.run(request.clone()).await.unwrap();
    assert_eq!(docker.warmth().served, 0);
    until("a container waits", || docker.warmth().waiting == 1).await;
    assert_eq!(containers_of(&socket, &options.owner).await.len(), 1, "and no other is there");
    let warm = docker.run(request).await.unwrap();
    assert_eq!(docker.warmth().served, 1);
    let without_host_name = |text: &str| -> Vec<String> {
        // How many signals are queued is counted for all processes of a user, those of other tests too.
        let own = |line: &&str| {
            !["overmind-probe", "HOSTNAME", "SigQ:"].iter().any(|other| line.starts_with(other))
        };
        text.lines().filter(own).map(str::to_owned).collect()
    };
    assert_eq!(cold.exit, Exit::Code(0), "{cold:?}");
    assert_eq!(without_host_name(&warm.stdout.text), without_host_name(&cold.stdout.text));
    assert_eq!(
        (warm.exit, &warm.stderr, &warm.shown_as),
        (cold.exit, &cold.stderr, &cold.shown_as)
    );
    docker.settled().await;
    assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);
}

#[tokio::test]
async fn needs_docker_a_container_serves_one_call_and_one_configuration() {
    let Some(socket) = engine().await else { return };
    let docker = Docker::new(Options { waiting: 2, ..options(&socket) });
    let (one, other) = (Place::new(), Place::new());
    let mark = |place: &Place| {
        let mut request = place.sh("cat /tmp/mark 2>/dev/null; echo $$ > /tmp/mark; cat hello");
        request.limits.tmp_bytes = 1 << 20;
        request
    };
    std::fs::write(other.workspace().join("hello"), "other\n").unwrap();
    for _ in 0..3 {
        for (place, says) in [(&one, "hello\n"), (&other, "other\n")] {
            let result = docker.run(mark(place)).await.unwrap();
            assert_eq!(result.stdout.text, says, "nothing of an earlier call, and its own place");
        }
        until("both wait again", || docker.warmth().waiting == 2).await;
    }
    assert_eq!(docker.warmth().served, 4);
    // Other bounds, and another directory of the same name, are other containers.
    let mut bounded = mark(&one);
    bounded.limits.memory_bytes /= 2;
    docker.run(bounded).await.unwrap();
    let workspace = other.workspace();
    std::fs::rename(&workspace, workspace.with_extension("old")).unwrap();
    std::fs::create_dir(&workspace).unwrap();
    crate::support::open_to_all(&workspace);
    std::fs::write(workspace.join("hello"), "new\n").unwrap();
    assert_eq!(docker.run(mark(&other)).await.unwrap().stdout.text, "new\n");
    assert_eq!(docker.warmth().served, 4);
    docker.settled().await;
}

#[tokio::test]
async fn needs_docker_a_lost_prepared_container_is_replaced() {
    let Some(socket) = engine().await else { return };
    let options = Options { waiting: 1, ..options(&socket) };
    let docker = Docker::new(options.clone());
    let place = Place::new();
    docker.run(place.sh("true")).await.unwrap();
    until("a container waits", || docker.warmth().waiting == 1).await;
    let names = containers_of(&socket, &options.owner).await;
    let how = bollard::query_parameters::RemoveContainerOptionsBuilder::default().force(true);
    let name = names[0].trim_start_matches('/');
    client(&socket).await.remove_container(name, Some(how.build())).await.unwrap();
    let result = docker.run(place.sh("echo ran")).await.unwrap();
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "ran\n"));
    docker.settled().await;
    assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);
}

/// A stand-in for a daemon: starts a container and is killed while it runs.
#[tokio::test]
async fn needs_docker_no_container_outlives_a_killed_daemon() {
    let Some(socket) = engine().await else { return };
    let options = options(&socket);
    let place = Place::new();
    let marker = marker();
    let mut daemon = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "docker::stand_in_for_a_daemon", "--nocapture"])
        .env(
            "STAND_IN",
            serde_json::json!({
                "socket": socket, "owner": options.owner, "instance": options.instance,
                "workspace": place.workspace(), "script": format!("sleep 300; : {marker}"),
            })
            .to_string(),
        )
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("its container runs", || !processes_with(&marker).is_empty()).await;
    while containers_of(&socket, &options.owner).await.len() < 2 {
        crate::support::pause(Duration::from_millis(20)).await;
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    until("its command is gone", || processes_with(&marker).is_empty()).await;
    let gone = async {
        while !containers_of(&socket, &options.owner).await.is_empty() {
            crate::support::pause(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.expect("its container is removed");
    until("the keeper has ended as well", || processes_with(&options.instance).is_empty()).await;
}

/// The test above runs this in a separate process.
#[tokio::test]
#[ignore = "the other half of needs_docker_no_container_outlives_a_killed_daemon"]
#[expect(clippy::disallowed_methods, reason = "another process tells it what to do")]
async fn stand_in_for_a_daemon() {
    let Ok(told) = std::env::var("STAND_IN") else { return };
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let text = |key: &str| told[key].as_str().unwrap().to_owned();
    let docker = Docker::new(Options {
        owner: text("owner"),
        instance: text("instance"),
        waiting: 1,
        ..options(&text("socket"))
    });
    let mut request = Place::new().sh(&text("script"));
    request.workspace = text("workspace").into();
    request.timeout = Duration::from_secs(300);
    let first = overmind_core::sandbox::SandboxRequest {
        argv: vec!["true".to_owned()],
        limits: overmind_core::sandbox::SandboxLimits { pids: 99, ..request.limits },
        ..request.clone()
    };
    // Leaves one that waits, besides the one that runs when this is killed.
    docker.run(first).await.unwrap();
    docker.run(request).await.unwrap();
}

/// The probe's findings in a container of this driver, compared with those of a command.
#[tokio::test]
async fn needs_docker_a_container_passes_every_check_and_is_measured_once() {
    let Some(socket) = engine().await else { return };
    let options = options(&socket);
    let docker = Docker::new(options.clone());
    let first = docker.attest().await.unwrap().expect("this driver is measured");
    let attestation = &first.attestation;
    assert_eq!(attestation.failed().count(), 0);
    assert_eq!(attestation.achieved, SandboxLevel::Docker);
    assert_eq!(attestation.checks.len(), CheckName::ALL.len());
    assert!(!attestation.boot.is_empty() && !attestation.bounds.is_empty());
    let second = docker.attest().await.unwrap().unwrap();
    assert!(Arc::ptr_eq(&first, &second), "measured once");
    assert_eq!(docker.run(Place::new().sh("exit 3")).await.unwrap().exit, Exit::Code(3));
    docker.settled().await;
    assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);

    let other = Options { user: Some(RunAs { uid: 4321, gid: 4321 }), ..options };
    let other = Docker::new(other).attest().await.unwrap().unwrap();
    assert_ne!(other.attestation.config, first.attestation.config);
}

/// Each layer of a container that an engine's settings, or a change of the code, could remove.
#[tokio::test]
async fn needs_docker_a_container_without_a_layer_is_refused_and_runs_nothing() {
    let Some(socket) = engine().await else { return };
    let home = tempfile::tempdir().unwrap();
    let broken: Vec<(Mutation, Vec<CheckName>)> = vec![
        (
            Mutation::Privileged,
            vec![CheckName::Capabilities, CheckName::SystemCalls, CheckName::Devices],
        ),
        (Mutation::HostNetwork, vec![CheckName::Namespaces, CheckName::HostServices]),
        (Mutation::HostProcesses, vec![CheckName::HostProcesses, CheckName::Namespaces]),
        (Mutation::HostIpc, vec![CheckName::Namespaces]),
        (Mutation::HostName, vec![CheckName::Namespaces]),
        (Mutation::Root, vec![CheckName::User]),
        (Mutation::Capability, vec![CheckName::Capabilities]),
        (Mutation::NewPrivileges, vec![CheckName::NoNewPrivileges, CheckName::SetUserId]),
        (Mutation::Unconfined, vec![CheckName::SystemCalls]),
        (Mutation::WritableRoot, vec![CheckName::WriteOutside]),
        (Mutation::Shows(PathBuf::from(&socket)), vec![CheckName::EngineSockets]),
        (Mutation::Shows(home.path().to_owned()), vec![CheckName::Homes]),
        (Mutation::Variable, vec![CheckName::Environment]),
    ];
    for (mutation, expected) in broken {
        let label = format!("{mutation:?}");
        let options = Options { private: vec![home.path().to_owned()], ..options(&socket) };
        let owner = options.owner.clone();
        let docker = Docker::broken(options, mutation);
        let place = Place::new();
        let mut request = place.sh("echo ran > hello");
        request.writable = Some(".".into());
        for answer in [docker.run(request).await.map(drop), docker.attest().await.map(drop)] {
            match answer {
                Err(SandboxError::Unavailable { code, reason, message, remedy }) => {
                    assert_eq!(code, NOT_ATTESTED, "{label}: {message}");
                    let names = reason.strip_prefix("attestation_failed: ").unwrap();
                    let names: Vec<&str> = names.split(", ").collect();
                    for name in &expected {
                        assert!(names.contains(&name.as_str()), "{label}: no {name} in {message}");
                    }
                    assert!(!remedy.is_empty());
                }
                other => panic!("{label}: {other:?}"),
            }
        }
        let untouched = std::fs::read_to_string(place.workspace().join("hello")).unwrap();
        assert_eq!(untouched, "hello\n", "{label}: nothing runs in less than was asked for");
        docker.settled().await;
        assert_eq!(containers_of(&socket, &owner).await, [""; 0], "{label}");
    }
}

/// A device is a layer as well, where this user has one that a container may be given.
#[tokio::test]
async fn needs_docker_a_device_with_state_is_refused() {
    let Some(socket) = engine().await else { return };
    let device = PathBuf::from("/dev/kmsg");
    let readable = std::fs::metadata(&device)
        .is_ok_and(|meta| std::os::unix::fs::MetadataExt::mode(&meta) & 0o004 != 0);
    if !readable {
        return; // Closed to others, so it is to the container's user.
    }
    match Docker::broken(options(&socket), Mutation::Device(device)).attest().await {
        Err(SandboxError::Unavailable { reason, .. }) => {
            assert!(reason.contains("devices"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn needs_docker_home_files_exist_in_new_and_prepared_containers() {
    let Some(socket) = engine().await else { return };
    for waiting in [0, 1] {
        let options = Options { waiting, ..options(&socket) };
        let docker = Docker::new(options.clone());
        let place = Place::new();
        let mut request = place.sh("cat ~/.a/b; stat -c %a ~/.a/b; cat; exit 3");
        request.env.push(("HOME".to_owned(), HOME.to_owned()));
        request.home = vec![HomeFile { path: ".a/b".into(), content: b"decoy\n".to_vec() }];
        request.stdin = b"input".to_vec();
        for _ in 0..2 {
            let result = docker.run(request.clone()).await.unwrap();
            assert_eq!(result.stdout.text, "decoy\n600\ninput", "{result:?}");
            assert_eq!(result.exit, Exit::Code(3));
            if waiting > 0 {
                until("one waits", || docker.warmth().waiting > 0).await;
            }
        }
        assert_eq!(docker.warmth().served, u64::from(waiting > 0));
        docker.settled().await;
        assert_eq!(containers_of(&socket, &options.owner).await, [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn needs_docker_a_workspace_swapped_for_a_link_shows_nothing_else() {
    let Some(socket) = engine().await else { return };
    let place = Place::new();
    let (dir, link) = (place.workspace().join("dd"), place.workspace().join("ll"));
    let outside = place.workspace().with_file_name("outside");
    for made in [&dir, &outside] {
        std::fs::create_dir(made).unwrap();
        open_to_all(made);
    }
    std::fs::write(outside.join("secret"), "a-secret").unwrap();
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let docker = Docker::new(options(&socket));
    let mut request = place.sh("echo began; cat secret; echo x > planted");
    request.workspace = dir.clone();
    request.writable = Some(".".into());
    docker.run(request.clone()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (dir, link, stop) = (dir.clone(), link.clone(), Arc::clone(&stop));
        move || {
            let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..2 {
                    rustix::fs::renameat_with(here, &dir, here, &link, flags).unwrap();
                }
            }
        }
    });
    let (mut refused, mut exchanged, mut ran) = (0, 0, 0);
    let mut said = Vec::new();
    for _ in 0..60 {
        match docker.run(request.clone()).await {
            Ok(result) => {
                ran += 1;
                said.push(result.stdout.text + &result.stderr.text);
            }
            Err(err) if err.to_string().contains("so nothing ran") => exchanged += 1,
            Err(_) => refused += 1,
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    docker.settled().await;
    eprintln!("{refused} refused, {exchanged} exchanged, {ran} ran");
    assert!(!said.iter().any(|said| said.contains("a-secret")), "{said:?}");
    assert!(!outside.join("planted").exists());
    assert!(refused + exchanged > 0, "no container met the link");
    assert!(docker.run(request).await.unwrap().stdout.text.starts_with("began"));
    docker.settled().await;
}
