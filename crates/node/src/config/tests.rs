use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::layers::Source;
use super::*;

/// Loads a configuration from a file's text, variables and flags.
fn load(
    file: &str,
    env: &[(&'static str, &'static str)],
    flags: &[(&'static str, &'static str, &str)],
) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("overmind.toml");
    fs::write(&path, file).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let flags = Flags {
        data: Some(dir.path().to_owned()),
        config: None,
        accept_loss: false,
        without_keys: false,
        values: flags.iter().map(|(key, flag, value)| (*key, *flag, (*value).to_owned())).collect(),
    };
    Config::load(&flags, &Env::from_pairs(env.iter().copied()), Path::new("/cwd"))
}

/// The message without the file's directory.
fn error(file: &str, env: &[(&'static str, &'static str)]) -> String {
    let err = load(file, env, &[]).unwrap_err();
    let text = err.to_string();
    match text.find("overmind.toml") {
        Some(at) if text.starts_with('/') => text[at..].to_owned(),
        _ => text,
    }
}

#[test]
fn the_defaults_are_a_server_on_loopback_with_everything_in_the_data_directory() {
    let config = load("", &[], &[]).unwrap();
    assert_eq!(config.listen, Some("127.0.0.1:8420".parse().unwrap()));
    assert_eq!(config.socket, Some(config.data.path().join("overmind.sock")));
    assert_eq!(config.store_path, config.data.path().join("overmind.db"));
    assert_eq!(config.workspace, Path::new("/cwd"));
    assert_eq!(config.retention, None);
    let cassettes = config.data.path().join("cassettes");
    assert_eq!(config.var(env::CASSETTES), Some(cassettes.display().to_string()));
    assert_eq!(config.var(env::OPENAI_API_KEY), None);
}

#[test]
fn a_flag_overrides_a_variable_the_file_and_the_default_and_sources_are_recorded() {
    let file = "[server]\nlisten = \"127.0.0.1:1\"\ndrain_seconds = 3\n";
    let at = |config: &Config, key: &str| config.layers.0[key].source.clone();

    let from_file = load(file, &[], &[]).unwrap();
    assert_eq!(from_file.listen.unwrap().port(), 1);
    assert!(matches!(at(&from_file, "server.listen"), Source::File { line: 2, .. }));
    assert!(matches!(at(&from_file, "server.drain_seconds"), Source::File { line: 3, .. }));
    assert_eq!(at(&from_file, "log.level"), Source::Default);

    let from_env = load(file, &[(env::LISTEN, "[::1]:2")], &[]).unwrap();
    assert_eq!(from_env.listen.unwrap().to_string(), "[::1]:2");
    assert_eq!(at(&from_env, "server.listen"), Source::Env(env::LISTEN));

    let flag = [("server.listen", "--listen", "localhost:3")];
    let from_flag = load(file, &[(env::LISTEN, "[::1]:2")], &flag).unwrap();
    assert_eq!(from_flag.listen.unwrap().to_string(), "127.0.0.1:3");
    assert_eq!(at(&from_flag, "server.listen"), Source::Flag("--listen"));
}

#[test]
fn host_and_port_count_only_without_a_full_address() {
    let port = load("", &[(env::PORT, "9")], &[]).unwrap();
    assert_eq!(port.listen.unwrap().to_string(), "127.0.0.1:9");
    let host = load("", &[(env::HOST, "::1")], &[]).unwrap();
    assert_eq!(host.listen.unwrap().to_string(), "[::1]:8420");
    let whole = load("", &[(env::PORT, "9"), (env::LISTEN, "127.0.0.1:1")], &[]).unwrap();
    assert_eq!(whole.listen.unwrap().port(), 1);
}

#[test]
fn an_unknown_key_is_reported_with_its_line_and_a_suggestion() {
    let suggest = |file: &str| load(file, &[], &[]).unwrap_err().hint();
    assert_eq!(
        error("# a comment\n[server]\nlisten = \"none\"\nlisen = 1\n", &[]),
        "overmind.toml:4: there is no setting `server.lisen`"
    );
    assert_eq!(suggest("[server]\nlisen = 1").unwrap(), "did you mean `server.listen`?");
    assert_eq!(suggest("listen = 1").unwrap(), "did you mean `server.listen`?");
    // In another table than its own.
    assert_eq!(suggest("[server]\nmax_running = 3").unwrap(), "did you mean `engine.max_running`?");
    assert_eq!(suggest("max_runing = 3").unwrap(), "did you mean `engine.max_running`?");
    assert_eq!(suggest("[otel]\ndisabled = true").unwrap(), "did you mean `telemetry.disabled`?");
    assert_eq!(suggest("[zebra]\nx = 1").unwrap(), "`overmind config show` lists all settings");
    assert_eq!(
        suggest("[providers.vllm]\nbase_ur = \"http://x\"").unwrap(),
        "did you mean `providers.vllm.base_url`?"
    );
}

#[test]
fn a_flag_can_be_a_toml_boolean() {
    for (file, key, value) in [
        ("telemetry.disabled = true", "telemetry.disabled", "true"),
        ("sandbox.docker_pinned = true", "sandbox.docker_pinned", "yes"),
        ("sandbox.microvm_emulation = false", "sandbox.microvm_emulation", "no"),
        ("tools.canaries = false", "tools.canaries", "off"),
    ] {
        let layers = load(file, &[], &[]).unwrap().layers;
        assert_eq!(layers.text_of(key), Some(value), "{file}");
    }
    let err = error("log.format = true", &[]);
    assert!(err.contains("it must be one of auto, text, json"), "{err}");
}

#[test]
fn an_invalid_value_is_reported_with_position_and_valid_values() {
    for (file, wanted) in [
        ("engine.max_running = 0", "it must be a whole number from 1 to 100000"),
        ("engine.max_running = -3", "it must be a whole number from 1 to 100000"),
        ("engine.max_running = \"many\"", "it must be a whole number from 1 to 100000"),
        ("engine.max_running = 1.5", "it must be a whole number from 1 to 100000"),
        ("log.format = \"xml\"", "it must be one of auto, text, json"),
        ("server.listen = \"example.org:80\"", "it must be an address such as 127.0.0.1:8420"),
        ("server.listen = 8420", "it must be an address such as 127.0.0.1:8420"),
        ("models.base_url = \"localhost:11434\"", "it must be a URL that begins with"),
        ("server.allowed_hosts = \"a,b\"", "it must be an array of texts"),
        ("server.allowed_hosts = [1]", "it must be an array of texts"),
        ("log.level = true", "it must be a text"),
        ("models.openai_timeout_seconds = 0", "it must be a number of seconds"),
        ("models.openai_timeout_seconds = nan", "it must be a number of seconds"),
    ] {
        let text = error(file, &[]);
        let head = file.split(" = ").next().unwrap();
        assert!(text.starts_with(&format!("`{head}` from ")), "{text}");
        assert!(text.contains(":1 is `") && text.contains(wanted), "{text}");
    }
    assert_eq!(
        error("", &[(env::MAX_RUNNING, "lots")]),
        "`engine.max_running` from environment OVERMIND_MAX_RUNNING is `lots`; it must be a \
         whole number from 1 to 100000"
    );
}

#[test]
fn an_invalid_secret_is_never_printed() {
    let text = error("", &[(env::OPENAI_API_KEY, "sk-very\nsecret")]);
    assert!(!text.contains("sk-very"), "{text}");
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    let text = error("[server]\nlisten = \n", &[]);
    assert!(text.starts_with("overmind.toml:2 is not TOML: "), "{text}");
}

#[test]
fn a_key_in_a_file_readable_by_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("overmind.toml");
    fs::write(&path, "models.openai_api_key = \"sk-x\"\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let flags = Flags { data: Some(dir.path().to_owned()), ..Flags::default() };
    let load = || Config::load(&flags, &Env::default(), Path::new("/"));
    let err = load().unwrap_err();
    assert!(err.to_string().contains("`models.openai_api_key` and its mode is 0640"), "{err}");
    assert!(!err.to_string().contains("sk-x"));
    assert_eq!(err.hint(), Some(format!("chmod 600 {}", path.display())));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(load().unwrap().var(env::OPENAI_API_KEY).unwrap(), "sk-x");
}

#[test]
fn addresses_beyond_loopback_require_tls() {
    let open = load("", &[(env::LISTEN, "0.0.0.0:8420")], &[]).unwrap_err();
    assert!(open.to_string().contains("without TLS"), "{open}");
    let half = load("", &[(env::TLS_CERT, "/c.pem")], &[]).unwrap_err();
    assert!(half.to_string().contains("belong together"), "{half}");
    let both = [(env::LISTEN, "0.0.0.0:8420"), (env::TLS_CERT, "c.pem"), (env::TLS_KEY, "/k")];
    let tls = load("", &both, &[]).unwrap().tls.unwrap();
    assert_eq!(tls, ("/cwd/c.pem".into(), "/k".into()));
}

#[test]
fn an_unreachable_server_configuration_is_refused() {
    let none = [(env::LISTEN, "none"), (env::SOCKET, "none")];
    assert!(load("", &none, &[]).unwrap_err().to_string().contains("are both `none`"));
}

#[test]
fn relative_paths_start_at_the_configuration_file() {
    let config =
        load("store.path = \"sub/x.db\"\nengine.workspace = \"~/w\"", &[(env::HOME, "/h")], &[]);
    let config = config.unwrap();
    assert_eq!(config.store_path, config.data.path().join("sub/x.db"));
    assert_eq!(config.workspace, Path::new("/h/w"));
}

#[test]
fn providers_are_tables_and_require_a_url() {
    let file = "[providers.ollama]\nbase_url = \"http://127.0.0.1:11434/v1\"\n\
                [providers.acme]\nbase_url = \"https://x/v1\"\napi_key = \"k\"\nformat = \"anthropic\"\n\
                models = [\"acme-*\"]\n";
    let providers = load(file, &[], &[]).unwrap().providers;
    assert_eq!(providers.len(), 2);
    assert_eq!((providers[0].name.as_str(), providers[0].format.as_str()), ("acme", "anthropic"));
    assert_eq!(providers[0].models, ["acme-*"]);
    assert_eq!(providers[1].format, "openai-chat");
    let err = load("[providers.x]\nformat = \"anthropic\"", &[], &[]).unwrap_err();
    assert_eq!(err.to_string(), "[providers.x] has no `base_url`");
    // It would stand beside the built-in one, which would still get the calls and the key.
    let err = load("[providers.anthropic]\nbase_url = \"https://proxy/v1\"", &[], &[]).unwrap_err();
    assert!(err.to_string().contains("the name of a built-in provider"), "{err}");
    assert!(err.hint().unwrap().contains("models.anthropic_url"), "{err:?}");
}

#[test]
fn the_sandbox_takes_a_user_by_number_and_absolute_directories() {
    let file = "sandbox.run_as = \"1000:100\"\nsandbox.read_only = [\"/opt/x\"]";
    let config = load(file, &[], &[]).unwrap();
    assert_eq!(config.sandbox_run_as, Some((1000, 100)));
    assert_eq!(config.sandbox_read_only, [Path::new("/opt/x")]);
    assert!(error("sandbox.run_as = \"bob\"", &[]).contains("`sandbox.run_as` is `bob`"));
    assert!(error("sandbox.read_only = [\"opt\"]", &[]).contains("holds opt"));
    assert!(error("sandbox.docker_pinned = \"maybe\"", &[]).contains("it must be one of yes, no"));
}

#[test]
fn a_named_configuration_file_must_exist() {
    let env = Env::from_pairs([(env::HOME, "/h"), (env::CONFIG, "/does/not/exist.toml")]);
    let err = Config::load(&Flags::default(), &env, Path::new("/")).unwrap_err();
    assert!(err.to_string().starts_with("reading /does/not/exist.toml: "), "{err}");
}

#[test]
fn canaries_are_declared_as_tables_and_never_print_their_secret() {
    let file = "[canaries.db]\nenv = \"DB_PASSWORD\"\n\
                [canaries.stripe]\nenv = \"STRIPE_KEY\"\ncredential = \"STRIPE\"\n\
                [canaries.netrc]\nfile = \".netrc\"\n\
                text = \"machine example.org\\npassword {canary}\\n\"\n";
    let literal = "sk_live_4eC39HqLyjWDarjtT1zdp7dc";
    let config = load(file, &[("OVERMIND_CRED_STRIPE", literal)], &[]).unwrap();
    let declared = config.declared_canaries().unwrap();
    let places: Vec<String> = declared.iter().map(|one| one.place.to_string()).collect();
    assert_eq!(places, ["env DB_PASSWORD", "file ~/.netrc", "env STRIPE_KEY"]);
    assert_eq!(declared[1].text.as_deref(), Some("machine example.org\npassword {canary}\n"));
    assert_eq!(declared[2].value.as_deref(), Some(literal));
    assert!(!format!("{config:?}").contains(literal), "no value in a log");
}

#[test]
fn an_invalid_canary_is_refused_by_its_key() {
    let cred = [("OVERMIND_CRED_SHORT", "hunter2")];
    for (file, words) in [
        ("[canaries.a]\ntext = \"{canary}\"", "[canaries.a] needs `env` or `file`"),
        ("[canaries.a]\nenv = \"A\"\nfile = \"b\"", "[canaries.a] needs `env` or `file`"),
        ("[canaries.a]\nenv = \"PATH\"", "`canaries.a.env` cannot be"),
        ("[canaries.a]\nenv = \"LD_PRELOAD\"", "`canaries.a.env` cannot be"),
        ("[canaries.a]\nenv = \"OVERMIND_SESSION\"", "`canaries.a.env` cannot be"),
        ("[canaries.a]\nenv = \"A=B\"", "`canaries.a.env` cannot be"),
        ("[canaries.a]\nenv = \"DEPLOY_GITHUB_TOKEN\"", "`canaries.a.env` cannot be"),
        ("[canaries.a]\nfile = \"/etc/x\"", "`canaries.a.file` cannot be"),
        ("[canaries.a]\nfile = \"../x\"", "`canaries.a.file` cannot be"),
        ("[canaries.a]\nfile = \".aws\"", "`canaries.a.file` cannot be"),
        ("[canaries.a]\nenv = \"A\"\ncredential = \"NONE\"", "the secret `NONE`, which is not set"),
        ("[canaries.a]\nenv = \"A\"\ncredential = \"SHORT\"", "which could occur in ordinary text"),
        ("[canaries.a]\nenv = \"A\"\ntext = \"{canary}\"", "`canaries.a.text` is not"),
        ("[canaries.a]\nfile = \"a\"\ntext = \"none\"", "`canaries.a.text` is not"),
        (
            "[canaries.a]\nenv = \"A\"\n[canaries.b]\nenv = \"A\"",
            "[canaries.b] uses the same \
            place",
        ),
        (
            "[canaries.a]\nfile = \"d\"\n[canaries.b]\nfile = \"d/e\"",
            "[canaries.b] uses the same place",
        ),
        ("[canaries.a]\nvalue = \"x\"", "canaries.a.value"),
    ] {
        let loaded = load(file, &cred, &[]).and_then(|config| config.declared_canaries());
        let err = loaded.unwrap_err().to_string();
        assert!(err.contains(words) && !err.contains("hunter2"), "{file}: {err}");
    }
    // A client that only calls the server has no secrets and needs none.
    assert!(load("[canaries.a]\nenv = \"A\"\ncredential = \"NONE\"", &[], &[]).is_ok());
    let many: String = (0..17).map(|n| format!("[canaries.c{n}]\nenv = \"C{n}\"\n")).collect();
    assert!(error(&many, &[]).contains("declares 17 canaries"));
}
