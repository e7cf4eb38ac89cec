//! Reads the services of a file, for each strategy.

use std::path::PathBuf;
use std::time::Duration;

use super::extensions::leads_out;
use super::read::{
    beneath, check_port_names, command, duration, optional_path, path_beneath, required_command,
    variables,
};
use super::reader::{Fields, Reader, join};
use super::yaml::{Node, Value};
use super::{
    CommandLine, ComposeService, ContainerService, DatabaseService, DatabaseTemplate, Phase,
    PostgresService, ProcessService, Pull, Ready, ReadyCheck, Restart, RestartPolicy, Server,
    Service, SqliteService, Strategy,
};
use crate::env::dotenv::is_variable;
use crate::env::template::Template;

const COMMON: &[&str] = &["strategy", "depends_on", "start", "ready", "env"];
const PROCESS: &[&str] = &["command", "cwd", "ports", "restart", "grace"];
const CONTAINER: &[&str] = &[
    "image",
    "pull",
    "command",
    "entrypoint",
    "user",
    "ports",
    "volumes",
    "mounts",
    "memory",
    "cpus",
    "grace",
];
const DATABASE: &[&str] = &["engine", "server", "extensions", "template", "file", "source"];
const COMPOSE: &[&str] = &["file", "profiles", "services"];

#[derive(Clone, Copy)]
enum Kind {
    Process,
    Container,
    Database,
    Compose,
}

pub(super) fn service(reader: &mut Reader, name: &str, node: &Node, path: &str) -> Option<Service> {
    const KINDS: &[(&str, Kind)] = &[
        ("process", Kind::Process),
        ("container", Kind::Container),
        ("database", Kind::Database),
        ("compose", Kind::Compose),
    ];
    let Some((strategy_node, strategy_path)) =
        node.get("strategy").map(|n| (n, join(path, "strategy")))
    else {
        reader.fields(node, path, &[COMMON, PROCESS, CONTAINER, DATABASE, COMPOSE].concat())?;
        reader.hinted(
            node.at,
            path,
            "has no strategy",
            "add `strategy: process`, `container`, `database` or `compose`",
        );
        return None;
    };
    let kind = reader.choice(strategy_node, &strategy_path, KINDS)?;
    let own = match kind {
        Kind::Process => PROCESS,
        Kind::Container => CONTAINER,
        Kind::Database => DATABASE,
        Kind::Compose => COMPOSE,
    };
    let fields = reader.fields(node, path, &[COMMON, own].concat())?;
    let strategy = match kind {
        Kind::Process => process(reader, &fields).map(Strategy::Process),
        Kind::Container => container(reader, &fields).map(Strategy::Container),
        Kind::Database => database(reader, &fields).map(Strategy::Database),
        Kind::Compose => Some(Strategy::Compose(compose(reader, &fields))),
    };
    let default_phase = match kind {
        Kind::Process => Phase::AfterSetup,
        Kind::Container | Kind::Database | Kind::Compose => Phase::BeforeSetup,
    };
    let phase = match fields.get("start") {
        Some((node, path)) => {
            const PHASES: &[(&str, Phase)] =
                &[("before_setup", Phase::BeforeSetup), ("after_setup", Phase::AfterSetup)];
            reader.choice(node, &path, PHASES).unwrap_or(default_phase)
        }
        None => default_phase,
    };
    let depends_on = match fields.get("depends_on") {
        Some((node, path)) => reader.words(node, &path),
        None => Vec::new(),
    };
    let env = match fields.get("env") {
        Some((node, path)) => variables(reader, node, &path),
        None => Vec::new(),
    };
    let strategy = strategy?;
    let service = Service {
        name: name.to_owned(),
        depends_on,
        phase,
        ready: Ready {
            check: ReadyCheck::Started,
            timeout: Duration::from_secs(60),
            interval: Duration::from_millis(100),
        },
        env,
        strategy,
    };
    let ready = ready(reader, &fields, &service);
    Some(Service { ready, ..service })
}

fn process(reader: &mut Reader, fields: &Fields<'_>) -> Option<ProcessService> {
    let command = required_command(reader, fields)?;
    let ports = match fields.get("ports") {
        Some((node, path)) => {
            let names = reader.words(node, &path);
            check_port_names(reader, node, &path, names.iter().map(String::as_str));
            names
        }
        None => Vec::new(),
    };
    let restart = restart(reader, fields);
    Some(ProcessService {
        command,
        cwd: optional_path(reader, fields, "cwd"),
        ports,
        restart,
        grace: duration(reader, fields, "grace").unwrap_or(Duration::from_secs(5)),
    })
}

fn restart(reader: &mut Reader, fields: &Fields<'_>) -> Restart {
    const POLICIES: &[(&str, RestartPolicy)] = &[
        ("never", RestartPolicy::Never),
        ("on-failure", RestartPolicy::OnFailure),
        ("always", RestartPolicy::Always),
    ];
    let mut restart = Restart { policy: RestartPolicy::OnFailure, backoff_ms: 500, max: 5 };
    let Some((node, path)) = fields.get("restart") else { return restart };
    if node.text().is_some() {
        if let Some(policy) = reader.choice(node, &path, POLICIES) {
            restart.policy = policy;
        }
        return restart;
    }
    let Some(fields) = reader.fields(node, &path, &["policy", "backoff", "max"]) else {
        return restart;
    };
    if let Some((node, path)) = fields.get("policy")
        && let Some(policy) = reader.choice(node, &path, POLICIES)
    {
        restart.policy = policy;
    }
    if let Some(backoff) = duration(reader, &fields, "backoff") {
        restart.backoff_ms = u64::try_from(backoff.as_millis()).unwrap_or(u64::MAX).max(10);
    }
    if let Some((node, path)) = fields.get("max")
        && let Some(max) = reader.number(node, &path, 0, 1000)
    {
        restart.max = u32::try_from(max).unwrap_or(u32::MAX);
    }
    restart
}

fn container(reader: &mut Reader, fields: &Fields<'_>) -> Option<ContainerService> {
    const PULLS: &[(&str, Pull)] =
        &[("missing", Pull::Missing), ("never", Pull::Never), ("always", Pull::Always)];
    let Some((image_node, image_path)) = fields.get("image") else {
        reader.problem(fields.at, &fields.path, "a container needs an `image`");
        return None;
    };
    let image = reader.word(image_node, &image_path)?;
    let pull = match fields.get("pull") {
        Some((node, path)) => reader.choice(node, &path, PULLS).unwrap_or(Pull::Missing),
        None => Pull::Missing,
    };
    let mut ports = Vec::new();
    if let Some((node, path)) = fields.get("ports") {
        for (name, _, node, path) in reader.pairs(node, &path) {
            if let Some(port) = reader.number(node, &path, 1, 65_535) {
                ports.push((name.to_owned(), u16::try_from(port).expect("checked to fit")));
            }
        }
        check_port_names(reader, node, &path, ports.iter().map(|(name, _)| name.as_str()));
    }
    let volumes = match fields.get("volumes") {
        Some((node, path)) => {
            let volumes = reader.words(node, &path);
            for volume in volumes.iter().filter(|volume| !volume.starts_with('/')) {
                reader.hinted(
                    node.at,
                    &path,
                    format!("`{volume}` is not an absolute path in the container"),
                    "a volume of the session's own is put there; files of the worktree go under \
                     `mounts`",
                );
            }
            volumes
        }
        None => Vec::new(),
    };
    let mut mounts = Vec::new();
    if let Some((node, path)) = fields.get("mounts") {
        for (source, at, node, path) in reader.pairs(node, &path) {
            let inside = reader.word(node, &path);
            match (beneath(source), inside) {
                (Some(source), Some(inside)) if inside.starts_with('/') => {
                    mounts.push((source, inside));
                }
                (None, _) => reader.problem(at, &path, "is not a path beneath the worktree"),
                (Some(_), _) => {
                    reader.problem(node.at, &path, "is not an absolute path in the container");
                }
            }
        }
    }
    let command = match fields.get("command") {
        Some((node, path)) => match command(reader, node, &path)? {
            CommandLine::Words(words) => Some(words),
            CommandLine::Shell(line) => Some(
                ["/bin/sh", "-c"]
                    .into_iter()
                    .map(ToOwned::to_owned)
                    // A line is for the container's shell, so its dollar signs are kept.
                    .chain([line.replace('$', "$$")])
                    .filter_map(|word| Template::parse(&word).ok())
                    .collect(),
            ),
        },
        None => None,
    };
    Some(ContainerService {
        image,
        pull,
        command,
        entrypoint: fields.get("entrypoint").map(|(node, path)| reader.words(node, &path)),
        user: fields.get("user").and_then(|(node, path)| reader.word(node, &path)),
        ports,
        volumes,
        mounts,
        memory_bytes: fields.get("memory").and_then(|(node, path)| memory(reader, node, &path)),
        cpu_millis: fields.get("cpus").and_then(|(node, path)| cpus(reader, node, &path)),
        grace: duration(reader, fields, "grace").unwrap_or(Duration::from_secs(5)),
    })
}

fn memory(reader: &mut Reader, node: &Node, path: &str) -> Option<u64> {
    let text = node.text().unwrap_or_default();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let scale: Option<u64> = match unit.to_ascii_lowercase().as_str() {
        "m" | "mi" | "mb" | "mib" => Some(1 << 20),
        "g" | "gi" | "gb" | "gib" => Some(1 << 30),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(scale).and_then(|(n, scale)| n.checked_mul(scale));
    if bytes.is_none_or(|bytes| bytes < 6 << 20) {
        reader.hinted(node.at, path, "must be a size of at least 6m", "for example `512m` or `2g`");
        return None;
    }
    bytes
}

fn cpus(reader: &mut Reader, node: &Node, path: &str) -> Option<u32> {
    let number = node.text().and_then(|text| {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let part = format!("{part:0<3}");
        if part.len() > 3 {
            return None;
        }
        whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(part.parse().ok()?)
    });
    if number.is_none_or(|millis| millis == 0) {
        reader.hinted(node.at, path, "must be a number of processors", "for example `2` or `0.5`");
        return None;
    }
    number
}

fn database(reader: &mut Reader, fields: &Fields<'_>) -> Option<DatabaseService> {
    #[derive(Clone, Copy)]
    enum Engine {
        Postgres,
        Sqlite,
        Redis,
    }
    const ENGINES: &[(&str, Engine)] =
        &[("postgres", Engine::Postgres), ("sqlite", Engine::Sqlite), ("redis", Engine::Redis)];
    let Some((node, path)) = fields.get("engine") else {
        reader.hinted(
            fields.at,
            &fields.path,
            "a database needs an `engine`",
            "`postgres`, `sqlite` or `redis`",
        );
        return None;
    };
    let engine = reader.choice(node, &path, ENGINES)?;
    let word = node.text().unwrap_or_default();
    let foreign: &[&str] = match engine {
        Engine::Postgres => &["file", "source"],
        Engine::Sqlite => &["server", "extensions"],
        Engine::Redis => &["file", "source", "extensions", "template"],
    };
    for key in foreign {
        if let Some(at) = fields.key_at(key) {
            let path = join(&fields.path, key);
            reader.problem(at, &path, format!("means nothing to the engine `{word}`"));
        }
    }
    let template = fields.get("template").and_then(|(node, path)| template(reader, node, &path));
    match engine {
        Engine::Postgres => {
            let extensions = match fields.get("extensions") {
                Some((node, path)) => extensions(reader, node, &path),
                None => Vec::new(),
            };
            let server = server(reader, fields, &["postgres://", "postgresql://"]);
            Some(DatabaseService::Postgres(PostgresService { server, extensions, template }))
        }
        Engine::Sqlite => {
            if let Some(template) = &template
                && !template.sql.is_empty()
                && fields.get("source").is_some()
            {
                reader.problem(
                    fields.at,
                    &fields.path,
                    "a copy of `source` and a template of `sql` exclude each other",
                );
            }
            let Some((node, path)) = fields.get("file") else {
                reader.problem(fields.at, &fields.path, "a sqlite database needs a `file`");
                return None;
            };
            let file = path_beneath(reader, node, &path)?;
            let source = optional_path(reader, fields, "source");
            Some(DatabaseService::Sqlite(SqliteService { file, source, template }))
        }
        Engine::Redis => {
            Some(DatabaseService::Redis { server: server(reader, fields, &["redis://"]) })
        }
    }
}

fn extensions(reader: &mut Reader, node: &Node, path: &str) -> Vec<String> {
    let names = reader.words(node, path);
    for name in &names {
        if let Some(how) = leads_out(name) {
            reader.hinted(
                node.at,
                path,
                format!("`{name}` {how}, outside of every sandbox"),
                "remove it: commands in a sandbox could leave it through the database",
            );
        }
    }
    names
}

fn server(reader: &mut Reader, fields: &Fields<'_>, schemes: &[&str]) -> Server {
    let Some((node, path)) = fields.get("server") else { return Server::Embedded };
    if matches!(node.value, Value::Map(_)) {
        let inside = reader.fields(node, &path, &["url_env"]);
        let name = inside
            .and_then(|inside| inside.get("url_env"))
            .and_then(|(node, path)| Some((reader.word(node, &path)?, node.at)));
        return match name {
            Some((name, _)) if is_variable(&name) => Server::UrlFrom(name),
            Some((_, at)) => {
                reader.problem(at, &path, "`url_env` wants the name of a variable");
                Server::Embedded
            }
            None => {
                reader.problem(node.at, &path, "wants `embedded`, a URL, or `{url_env: NAME}`");
                Server::Embedded
            }
        };
    }
    match node.text() {
        Some("embedded") => Server::Embedded,
        Some(url) if schemes.iter().any(|scheme| url.starts_with(scheme)) => {
            Server::Url(url.to_owned())
        }
        Some(_) | None => {
            reader.hinted(
                node.at,
                &path,
                "is not a server of this engine",
                format!("write `embedded`, `{}…`, or `{{url_env: NAME}}`", schemes[0]),
            );
            Server::Embedded
        }
    }
}

fn template(reader: &mut Reader, node: &Node, path: &str) -> Option<DatabaseTemplate> {
    let fields = reader.fields(node, path, &["files", "sql", "command", "timeout"])?;
    let mut sql = Vec::new();
    if let Some((node, path)) = fields.get("sql") {
        for file in reader.words(node, &path) {
            match beneath(&file) {
                Some(file) => sql.push(file),
                None => reader.problem(
                    node.at,
                    &path,
                    format!("`{file}` is not a path beneath the worktree"),
                ),
            }
        }
    }
    let command = fields.get("command").and_then(|(node, path)| command(reader, node, &path));
    if sql.is_empty() && command.is_none() {
        reader.problem(node.at, path, "a template needs `sql` or a `command`");
    }
    let files = match fields.get("files") {
        Some((node, path)) => reader.words(node, &path),
        None => Vec::new(),
    };
    if command.is_some() && files.is_empty() {
        reader.hinted(
            node.at,
            path,
            "a template made by a command needs `files`",
            "name the migrations, so that a change in them makes a new template",
        );
    }
    let timeout = duration(reader, &fields, "timeout").unwrap_or(Duration::from_secs(300));
    Some(DatabaseTemplate { files, sql, command, timeout })
}

fn compose(reader: &mut Reader, fields: &Fields<'_>) -> ComposeService {
    let list = |reader: &mut Reader, key: &str| match fields.get(key) {
        Some((node, path)) => reader.words(node, &path),
        None => Vec::new(),
    };
    ComposeService {
        file: optional_path(reader, fields, "file")
            .unwrap_or_else(|| PathBuf::from("compose.yaml")),
        profiles: list(reader, "profiles"),
        services: list(reader, "services"),
    }
}

fn ready(reader: &mut Reader, fields: &Fields<'_>, service: &Service) -> Ready {
    let first = service.ports().first().map(|&name| name.to_owned());
    let by_default = match (&service.strategy, &first) {
        (Strategy::Process(_) | Strategy::Container(_), Some(port)) => {
            ReadyCheck::Tcp { port: port.clone() }
        }
        // Databases have their own ready checks, and compose waits by itself.
        (
            Strategy::Process(_)
            | Strategy::Container(_)
            | Strategy::Database(_)
            | Strategy::Compose(_),
            _,
        ) => ReadyCheck::Started,
    };
    let mut ready = Ready { check: by_default, ..service.ready.clone() };
    let Some((node, path)) = fields.get("ready") else { return ready };
    if matches!(service.strategy, Strategy::Database(_) | Strategy::Compose(_)) {
        reader.problem(
            node.at,
            &path,
            "databases and compose projects have their own readiness \
            checks",
        );
        return ready;
    }
    match node.text() {
        Some("started") => {
            ready.check = ReadyCheck::Started;
            return ready;
        }
        Some("tcp") => {
            match first {
                Some(port) => ready.check = ReadyCheck::Tcp { port },
                None => reader.problem(node.at, &path, "`tcp` needs a port: declare `ports`"),
            }
            return ready;
        }
        Some(_) => {
            reader.hinted(
                node.at,
                &path,
                "is not a check",
                "write `tcp`, `started`, or a mapping with `http`, `tcp`, `command` or `log`",
            );
            return ready;
        }
        None => {}
    }
    let keys = ["tcp", "http", "command", "log", "port", "status", "timeout", "interval"];
    let Some(fields) = reader.fields(node, &path, &keys) else { return ready };
    if let Some(timeout) = duration(reader, &fields, "timeout") {
        ready.timeout = timeout;
    }
    if let Some(interval) = duration(reader, &fields, "interval") {
        ready.interval = interval.max(Duration::from_millis(10));
    }
    let checks: Vec<&str> =
        keys[..4].iter().copied().filter(|key| fields.key_at(key).is_some()).collect();
    if checks.len() > 1 {
        reader.problem(
            node.at,
            &path,
            format!("one check at a time, not {}", checks.join(" and ")),
        );
    }
    let named = fields.get("port").and_then(|(node, path)| reader.word(node, &path));
    let port_of = |reader: &mut Reader| {
        let port = named.clone().or_else(|| first.clone());
        match port {
            Some(port) if service.ports().contains(&port.as_str()) => Some(port),
            Some(port) => {
                reader.problem(node.at, &path, format!("the service has no port `{port}`"));
                None
            }
            None => {
                reader.problem(node.at, &path, "needs a port: declare `ports`");
                None
            }
        }
    };
    if let Some((node, path)) = fields.get("tcp") {
        if reader.truth(node, &path) == Some(true)
            && let Some(port) = port_of(reader)
        {
            ready.check = ReadyCheck::Tcp { port };
        }
    } else if let Some((node, path)) = fields.get("http") {
        let target = reader.word(node, &path).filter(|target| {
            let fine = target.starts_with('/') && target.chars().all(|c| c.is_ascii_graphic());
            if !fine {
                reader.problem(node.at, &path, "must be a path that begins with `/`");
            }
            fine
        });
        let status = match fields.get("status") {
            Some((node, path)) => match reader.number(node, &path, 100, 599) {
                Some(status) => {
                    let status = u16::try_from(status).expect("checked to fit");
                    status..=status
                }
                None => 200..=399,
            },
            None => 200..=399,
        };
        if let (Some(path), Some(port)) = (target, port_of(reader)) {
            ready.check = ReadyCheck::Http { port, path, status };
        }
    } else if let Some((node, path)) = fields.get("command") {
        if let Some(command) = command(reader, node, &path) {
            ready.check = ReadyCheck::Command(command);
        }
    } else if let Some((node, path)) = fields.get("log")
        && let Some(pattern) = reader.word(node, &path)
    {
        if let Err(err) = regex::Regex::new(&pattern) {
            reader.problem(node.at, &path, format!("is not a regular expression: {err}"));
        }
        ready.check = ReadyCheck::Log(pattern);
    }
    ready
}
