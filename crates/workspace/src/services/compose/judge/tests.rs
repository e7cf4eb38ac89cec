//! One service, or one other key, at a time.

use super::super::ComposePort;
use super::*;

/// As `config` says paths: absolute. `/w/link` is a link, `/w/keys` the server's.
fn within(path: &Path) -> Result<(), String> {
    let plain = path.components().all(|part| part.as_os_str() != "..");
    match path.to_str() {
        Some("/w/link" | "/w/keys") => Err("is refused".to_owned()),
        Some(text) if plain && (text == "/w" || text.starts_with("/w/")) => Ok(()),
        _ => Err("leads out".to_owned()),
    }
}

fn of(config: &Value) -> Vec<String> {
    let judged = judge(config, "ovm-1-stack", &within);
    judged.err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

/// The project with these keys of a service.
fn with(keys: Value) -> Value {
    let mut service = json!({"image": "busybox:1", "networks": {"default": null}});
    service.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    json!({
        "name": "ovm-1-stack",
        "services": {"web": service},
        "networks": {"default": {"name": "ovm-1-stack_default", "ipam": {}}},
    })
}

#[test]
fn compose_keys_beyond_the_containers_are_refused_by_name() {
    let hostile = [
        ("privileged", json!({"privileged": true})),
        ("pid", json!({"pid": "host"})),
        ("pid", json!({"pid": "container:abc"})),
        ("ipc", json!({"ipc": "host"})),
        ("ipc", json!({"ipc": "container:abc"})),
        ("network_mode", json!({"network_mode": "host"})),
        ("network_mode", json!({"network_mode": "container:abc"})),
        ("network_mode", json!({"network_mode": "some_other_network"})),
        ("userns_mode", json!({"userns_mode": "host"})),
        ("uts", json!({"uts": "host"})),
        ("cgroup", json!({"cgroup": "host"})),
        ("cgroup_parent", json!({"cgroup_parent": "/system.slice"})),
        ("cap_add", json!({"cap_add": ["SYS_ADMIN"]})),
        ("devices", json!({"devices": [{"source": "/dev/sda", "target": "/dev/sda"}]})),
        ("device_cgroup_rules", json!({"device_cgroup_rules": ["b 8:* rwm"]})),
        ("security_opt", json!({"security_opt": ["seccomp:unconfined"]})),
        (
            "security_opt",
            json!({"security_opt": ["no-new-privileges:true", "apparmor=unconfined"]}),
        ),
        ("security_opt", json!({"security_opt": ["no-new-privileges:false"]})),
        ("volumes_from", json!({"volumes_from": ["container:db"]})),
        ("runtime", json!({"runtime": "nvidia"})),
        ("gpus", json!({"gpus": [{"count": -1}]})),
        ("credential_spec", json!({"credential_spec": {"file": "x"}})),
        ("use_api_socket", json!({"use_api_socket": true})),
        ("provider", json!({"provider": {"type": "x"}})),
        ("post_start", json!({"post_start": [{"command": ["x"], "privileged": true}]})),
        ("pre_stop", json!({"pre_stop": [{"command": ["x"], "privileged": true}]})),
        ("sysctls", json!({"sysctls": {"kernel.shmmax": "1"}})),
        ("storage_opt", json!({"storage_opt": {"size": "1"}})),
        ("logging", json!({"logging": {"driver": "syslog", "options": {"x": "y"}}})),
        ("oom_score_adj", json!({"oom_score_adj": -1000})),
        ("oom_kill_disable", json!({"oom_kill_disable": true})),
        ("container_name", json!({"container_name": "db"})),
        ("annotations", json!({"annotations": {"run.oci": "x"}})),
        ("blkio_config", json!({"blkio_config": {"weight": 1}})),
        ("isolation", json!({"isolation": "process"})),
        ("group_add", json!({"group_add": ["docker"]})),
        ("extra_hosts", json!({"extra_hosts": ["me=host-gateway"]})),
        ("extra_hosts", json!({"extra_hosts": {"me": ["host-gateway"]}})),
        ("extra_hosts", json!({"extra_hosts": {"meta": "169.254.169.254"}})),
        ("volumes", json!({"volumes": [{"type": "bind", "source": "/", "target": "/host"}]})),
        (
            "volumes",
            json!({"volumes": [
                {"type": "bind", "source": "/var/run/docker.sock", "target": "/s"}
            ]}),
        ),
        ("volumes", json!({"volumes": [{"type": "bind", "source": "/w/../x", "target": "/x"}]})),
        ("volumes", json!({"volumes": [{"type": "bind", "source": "/w/link", "target": "/x"}]})),
        ("volumes", json!({"volumes": [{"type": "bind", "source": "/w/keys", "target": "/x"}]})),
        ("volumes", json!({"volumes": [{"type": "bind", "source": "data", "target": "/x"}]})),
        ("volumes", json!({"volumes": [{"type": "bind", "target": "/x"}]})),
        ("volumes", json!({"volumes": ["/:/host"]})),
        ("volumes", json!({"volumes": [{"type": "npipe", "source": "x", "target": "/x"}]})),
        ("volumes", json!({"volumes": [{"source": "/", "target": "/x"}]})),
        (
            "volumes.bind.propagation",
            json!({"volumes": [{
                "type": "bind", "source": "/w/a", "target": "/x", "bind": {"propagation": "shared"}
            }]}),
        ),
        (
            "volumes.image",
            json!({"volumes": [{"type": "volume", "target": "/x", "image": {"subpath": "/"}}]}),
        ),
        ("build", json!({"build": "/"})),
        ("build.context", json!({"build": {"context": "/etc"}})),
        ("build.context", json!({"build": {"context": "https://example.com/x.git"}})),
        ("build.dockerfile", json!({"build": {"context": "/w", "dockerfile": "../../etc/passwd"}})),
        ("build.dockerfile", json!({"build": {"context": "/w", "dockerfile": "/root/x"}})),
        ("build.network", json!({"build": {"context": "/w", "network": "host"}})),
        ("build.privileged", json!({"build": {"context": "/w", "privileged": true}})),
        (
            "build.entitlements",
            json!({"build": {"context": "/w", "entitlements": ["network.host"]}}),
        ),
        ("build.ssh", json!({"build": {"context": "/w", "ssh": [{"id": "default"}]}})),
        (
            "build.additional_contexts",
            json!({"build": {"context": "/w", "additional_contexts": {"x": "/etc"}}}),
        ),
        ("build.cache_to", json!({"build": {"context": "/w", "cache_to": ["type=local,dest=/"]}})),
        ("build.secrets", json!({"build": {"context": "/w", "secrets": [{"source": "x"}]}})),
        ("build.tags", json!({"build": {"context": "/w", "tags": ["alpine:3.20"]}})),
        ("env_file", json!({"env_file": [{"path": "/etc/shadow", "required": true}]})),
        ("label_file", json!({"label_file": ["/etc/shadow"]})),
        (
            "deploy.resources.reservations.devices",
            json!({"deploy": {"resources": {"reservations": {"devices": [{"count": 1}]}}}}),
        ),
        ("deploy.mode", json!({"deploy": {"mode": "global"}})),
        ("networks.driver_opts", json!({"networks": {"default": {"driver_opts": {"x": "y"}}}})),
        ("networks", json!({"networks": ["bridge"]})),
        ("something_new", json!({"something_new": {"deep": true}})),
    ];
    assert!(hostile.len() >= 60, "{}", hostile.len());
    for (key, keys) in hostile {
        let said = of(&with(keys.clone()));
        let wanted = format!("service web: `{key}` ");
        assert!(said.iter().any(|one| one.starts_with(&wanted)), "{keys}: {said:?}");
    }
}

#[test]
fn networks_and_volumes_belong_to_the_project() {
    let hostile = [
        ("network x: `external`", "networks", json!({"name": "ovm-1-stack_x", "external": true})),
        ("network x: `name`", "networks", json!({"name": "bridge"})),
        ("network x: `driver`", "networks", json!({"driver": "macvlan"})),
        ("network x: `driver`", "networks", json!({"driver": "host"})),
        ("network x: `driver_opts`", "networks", json!({"driver_opts": {"parent": "eth0"}})),
        ("network x: `ipam`", "networks", json!({"ipam": {"config": [{"subnet": "8.8.8.0/24"}]}})),
        ("volume x: `external`", "volumes", json!({"name": "prod", "external": true})),
        ("volume x: `name`", "volumes", json!({"name": "ovm-1-other_data"})),
        ("volume x: `driver`", "volumes", json!({"driver": "rexray"})),
        (
            "volume x: `driver_opts`",
            "volumes",
            json!({"driver": "local", "driver_opts": {"type": "none", "o": "bind", "device": "/"}}),
        ),
        ("secret x: `file`", "secrets", json!({"file": "/etc/shadow"})),
        ("secret x: `environment`", "secrets", json!({"environment": "HOME"})),
        ("secret x: `external`", "secrets", json!({"external": true})),
        ("config x: `file`", "configs", json!({"file": "/w/link"})),
    ];
    for (wanted, kind, body) in hostile {
        let mut config = with(json!({}));
        config[kind]["x"] = body.clone();
        let said = of(&config);
        assert!(said.iter().any(|one| one.starts_with(wanted)), "{body}: {said:?}");
    }
    for (wanted, config) in [
        ("the project: `models`", json!({"services": {}, "models": {"x": {"model": "y"}}})),
        ("service web: `services`", json!({"services": {"web": "busybox"}})),
    ] {
        let said = of(&config);
        assert!(said.iter().any(|one| one.starts_with(wanted)), "{config}: {said:?}");
    }
}

#[test]
fn ordinary_compose_services_are_accepted() {
    let honest = [
        json!({}),
        json!({"command": ["run", "--fast"], "entrypoint": null}),
        json!({"environment": {"A": "b", "C": null}}),
        json!({"ports": [
            {"mode": "ingress", "target": 80, "published": "8080", "protocol": "tcp",
             "host_ip": "0.0.0.0"}
        ]}),
        json!({"expose": ["3000"], "hostname": "web", "domainname": "x"}),
        json!({"depends_on": {"db": {"condition": "service_healthy", "required": true}}}),
        json!({"healthcheck": {"test": ["CMD", "true"], "interval": "1s", "retries": 3}}),
        json!({"restart": "unless-stopped", "user": "1000:1000", "working_dir": "/app"}),
        json!({"labels": {"a": "b"}, "tmpfs": ["/tmp"], "read_only": true, "init": true}),
        json!({"volumes": [{"type": "volume", "source": "data", "target": "/d", "volume": {}}]}),
        json!({"volumes": [
            {"type": "bind", "source": "/w/src", "target": "/src", "read_only": true,
             "bind": {"create_host_path": true}}
        ]}),
        json!({"volumes": [{"type": "tmpfs", "target": "/t", "tmpfs": {"size": "1024"}}]}),
        json!({"mem_limit": "1073741824", "cpus": 0.5, "pids_limit": 100, "shm_size": "67108864"}),
        json!({"deploy": {"resources": {"limits": {"cpus": "0.5", "memory": "50m"}},
                          "placement": {}, "replicas": 2}}),
        json!({"ulimits": {"nofile": {"soft": 1, "hard": 2}}, "tty": true, "stdin_open": true}),
        json!({"stop_grace_period": "5s", "stop_signal": "SIGINT", "cap_drop": ["ALL"]}),
        json!({"security_opt": ["no-new-privileges:true"], "privileged": false}),
        json!({"profiles": ["dev"], "platform": "linux/amd64", "pull_policy": "always"}),
        json!({"build": {"context": "/w", "dockerfile": "Dockerfile", "target": "dev",
                         "args": {"A": "b"}}}),
        json!({"build": {"context": "/w/sub", "dockerfile_inline": "FROM busybox"}}),
        json!({"networks": {"default": {"aliases": ["api"]}, "back": null}}),
        json!({"network_mode": "service:db", "networks": null, "pid": "service:db"}),
        json!({"extra_hosts": ["api=10.0.0.2"], "dns": ["1.1.1.1"]}),
        json!({"secrets": [{"source": "key", "target": "/run/k"}], "x-team": {"a": 1}}),
        json!({"cap_add": null, "devices": [], "develop": {"watch": []}, "links": ["db"]}),
    ];
    assert!(honest.len() >= 20);
    for keys in honest {
        let mut config = with(keys.clone());
        config["networks"]["back"] = json!({"name": "ovm-1-stack_back", "driver": "bridge",
                                             "internal": true});
        config["volumes"] = json!({"data": {"name": "ovm-1-stack_data", "driver": "local"}});
        config["secrets"] = json!({"key": {"name": "ovm-1-stack_key", "file": "/w/key.txt"}});
        config["configs"] = json!({"c": {"content": "text"}});
        config["x-common"] = json!({"privileged": true});
        assert_eq!(of(&config), Vec::<String>::new(), "{keys}");
    }
}

#[test]
fn compose_starts_exactly_the_checked_project() {
    let config = json!({"services": {
        "web": {"image": "alpine:3.20", "build": {"context": "/w"}, "environment": {"A": "$$b"},
                "ports": [{"target": 80, "published": "80", "protocol": "tcp"}]},
        "db": {"image": "db:1", "restart": "always", "ports": [{"target": 1}],
               "deploy": {"replicas": 1, "restart_policy": {"condition": "any"}},
               "volumes": [{"type": "bind", "source": "/w/a", "target": "/a"}]},
        "cache": {"image": "cache:1", "restart": "always"},
    }});
    let port = ComposePort { service: "web".into(), target: 80, protocol: "tcp".into() };
    assert_eq!(
        sealed(config, &[(port, 20_001)]),
        json!({"services": {
            "web": {"build": {"context": "/w"}, "environment": {"A": "$$b"},
                    "ports": ["127.0.0.1:20001:80/tcp"]},
            "db": {"image": "db:1", "deploy": {"replicas": 1},
                   "volumes": [{"type": "bind", "source": "/w/a", "target": "/a"}]},
            "cache": {"image": "cache:1", "restart": "always"},
        }})
    );
}

/// The reason for which a bind of this source is refused, in a project with no other bind.
fn bound(source: &str) -> Vec<String> {
    let bind = json!({"type": "bind", "source": source, "target": "/x"});
    of(&with(json!({"volumes": [bind]})))
}

#[test]
fn a_compose_path_is_checked_as_docker_will_read_it() {
    let seen = std::cell::RefCell::new(Vec::new());
    let within = |path: &Path| {
        seen.borrow_mut().push(path.to_string_lossy().into_owned());
        Ok(())
    };
    let config = json!({
        "name": "ovm-1-stack",
        "services": {"web": {
            "build": {"context": "/w/$$ctx", "dockerfile": "$$file"},
            "env_file": [{"path": "/w/e$$$$nv"}],
            "volumes": [{"type": "bind", "source": "/w/a$$b", "target": "/x"}],
        }},
        "configs": {"c": {"file": "/w/$$c"}},
        "secrets": {"s": {"file": "/w/$$s"}},
    });
    assert_eq!(judge(&config, "ovm-1-stack", &within), Ok(()));
    let mut seen = seen.into_inner();
    seen.sort();
    let read = ["/w/$c", "/w/$ctx", "/w/$ctx/$file", "/w/$s", "/w/a$b", "/w/e$$nv"];
    assert_eq!(seen, read);
    // `/w/link` is what is refused.
    assert_eq!(bound("/w/link").len(), 1);
    assert!(bound("/w/a$$b").is_empty());
    for single in ["/w/a$b", "/w/${HOME}", "/w/a$$$b", "$HOME"] {
        let refused = bound(single);
        assert!(refused.iter().any(|why| why.contains("a single `$`")), "{single}: {refused:?}");
    }
    let refused = of(&with(json!({"command": ["sh", "-c", "echo $HOME"]})));
    assert_eq!(
        refused,
        ["the project: `services.web.command.2` has a single `$`: write `$$` for a plain one"]
    );
    assert!(of(&with(json!({"command": ["sh", "-c", "echo $$HOME"]}))).is_empty());
}

#[test]
fn bind_sources_below_writable_directories_are_refused() {
    let bind = |source: &str, read_only: bool| json!({"type": "bind", "source": source, "target": "/x", "read_only": read_only});
    let two = |first: Value, second: Value| {
        let mut config = with(json!({"volumes": [first]}));
        config["services"]["zweit"] = json!({"image": "busybox:1", "volumes": [second]});
        of(&config)
    };
    let refused = two(bind("/w", false), bind("/w/sub/deep", true));
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].starts_with("service zweit: `volumes` names /w/sub/deep, which lies in /w: ")
    );
    assert!(refused[0].contains("service web may write there"), "{refused:?}");
    assert_eq!(two(bind("/w/sub/deep", false), bind("/w", false)).len(), 1, "in any order");
    for (first, second) in [
        (bind("/w", true), bind("/w/sub", false)),
        (bind("/w/sub", false), bind("/w/sub", false)),
        (bind("/w/sub", false), bind("/w/subtle", false)),
        (bind("/w/sub", false), bind("/w", true)),
    ] {
        assert!(two(first.clone(), second.clone()).is_empty(), "{first} {second}");
    }
    // Configs and secrets count like binds, also in one service.
    let mut config = with(json!({"volumes": [bind("/w/a", false), bind("/w/a/b", false)]}));
    config["secrets"] = json!({"s": {"file": "/w/a/s"}});
    let refused = of(&config);
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused.iter().any(|why| why.starts_with("secret s: `file`")), "{refused:?}");
}

#[test]
fn a_volume_name_is_not_a_path() {
    for source in ["/etc", "../x", "a/b"] {
        let volume = json!({"type": "volume", "source": source, "target": "/x"});
        assert_eq!(of(&with(json!({"volumes": [volume]}))).len(), 1, "{source}");
    }
    let volume = json!({"type": "volume", "source": "data", "target": "/x"});
    assert!(of(&with(json!({"volumes": [volume]}))).is_empty());
}
