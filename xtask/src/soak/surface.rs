//! The HTTP surface as strangers use it: a fuzzer that reads the OpenAPI document, and clients that
//! are generated from it, against a server of a scratch directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::counterparts;
use crate::host::Host;
use crate::steps::{output, succeed};

/// Operations that the fuzzer leaves alone, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    // The scratch server has one key, with which the fuzzer calls: revoked, all else is refused.
    ("key_revoke", "it ends the fuzzer's own key"),
];

/// The phase that follows what operations lead to.
const STATEFUL: &str = "stateful";
const HOOKS: &str = include_str!("openapi.py");
const SETTINGS: &str = include_str!("openapi.toml");
const PYTHON_FLOW: &str = include_str!("client.py");
const TYPESCRIPT_FLOW: &str = include_str!("client.ts");

/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of its own directory, killed and removed when this is dropped.
struct Server {
    process: Child,
    dir: PathBuf,
    url: String,
    token: String,
}

impl Server {
    fn start(host: &Host, name: &str) -> Result<Self> {
        succeed(host.cargo().args(["build", "--locked", "-p", "overmind", "--bin", "overmind"]))?;
        // Beneath the system's directory for what is temporary: paths of sockets are short.
        let dir = std::env::temp_dir().join(format!("ovm-{name}-{}", std::process::id()));
        let (data, work) = (dir.join("data"), dir.join("work"));
        std::fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
        let log = std::fs::File::create(dir.join("server.log")).context("making the log")?;
        let mut overmind = Command::new(host.target.join("debug/overmind"));
        overmind.current_dir(&work).env("HOME", &dir).arg("up").arg("--data").arg(&data);
        overmind.args(["--listen", "127.0.0.1:0", "--log", "error", "--workspace"]).arg(&work);
        overmind.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = overmind.spawn().context("starting the server")?;
        let mut server = Self { process, dir, url: String::new(), token: String::new() };
        let began = Instant::now();
        while server.url.is_empty() {
            if let Ok(text) = std::fs::read_to_string(data.join("server.json")) {
                let said: Value = serde_json::from_str(&text).unwrap_or_default();
                server.url = said["url"].as_str().unwrap_or_default().to_owned();
            }
            if let Some(status) = server.process.try_wait()? {
                bail!("the server ended with {status}: {}", server.log());
            }
            if began.elapsed() > PATIENCE {
                bail!("the server is not ready: {}", server.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let token = std::fs::read_to_string(data.join("admin.token")).context("the token")?;
        server.token = token.trim().to_owned();
        Ok(server)
    }

    fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("server.log")).unwrap_or_default()
    }

    /// Makes an agent that answers by itself, and returns its id.
    fn agent(&self, host: &Host) -> Result<String> {
        let mut create = Command::new(host.target.join("debug/overmind"));
        create.arg("--data").arg(self.dir.join("data"));
        create.args([
            "agent",
            "create",
            "--name",
            "stub",
            "--role",
            "says",
            "--model",
            "deterministic",
            "-o",
            "name",
        ]);
        let id = output(&mut create).context("making an agent")?;
        Ok(String::from_utf8_lossy(&id).trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when there is nothing left to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Fuzzes every operation of the document with all checks for `seconds`.
///
/// # Errors
///
/// When a counterpart is missing, the server does not start, or the fuzzer found something.
pub(super) fn fuzz(host: &Host, seconds: u64) -> Result<()> {
    let server = Server::start(host, "fuzz")?;
    write(&server.dir.join("hooks.py"), HOOKS)?;
    write(&server.dir.join("schemathesis.toml"), SETTINGS)?;
    // What operations lead to others has a third of the time: it would get what the rest leaves.
    let agent = server.agent(host)?;
    let found = phases(host, &server, &agent, "examples,coverage,fuzzing", seconds - seconds / 3);
    let found = found.and(phases(host, &server, &agent, STATEFUL, seconds / 3 + 1));
    if server.log().contains("panicked") {
        bail!("the server panicked: {}", server.log());
    }
    found
}

/// Runs some phases of the fuzzer for `seconds`.
fn phases(host: &Host, server: &Server, agent: &str, phases: &str, seconds: u64) -> Result<()> {
    let packages = counterparts::of_schemathesis(host)?;
    let mut fuzzer = Command::new(host.which("python3").context("this needs python3")?);
    fuzzer.arg(Path::new(&packages).join("bin/schemathesis"));
    fuzzer.arg("--config-file").arg(server.dir.join("schemathesis.toml"));
    fuzzer.arg("run").arg(host.root.join("docs/openapi.json"));
    fuzzer.args(["--url", &server.url, "--phases", phases, "--max-time", &seconds.to_string()]);
    fuzzer.args(["-H", &format!("Authorization: Bearer {}", server.token)]);
    fuzzer.args(["--checks", "all", "--continue-on-failure", "--warnings", "off", "--no-color"]);
    fuzzer.args(["--generation-database", "none", "--request-timeout", "60"]);
    if phases == STATEFUL {
        // What one operation answers is given to the next, whether that has a use for it or not.
        fuzzer.args(["--exclude-checks", "positive_data_acceptance"]);
    }
    for (operation, _) in LEFT_OUT {
        fuzzer.args(["--exclude-operation-id", operation]);
    }
    fuzzer.current_dir(&server.dir).stdin(Stdio::null());
    fuzzer.env("PYTHONPATH", format!("{packages}:{}", server.dir.display()));
    fuzzer.env("SCHEMATHESIS_HOOKS", "hooks");
    fuzzer.env("OVERMIND_SOAK_SCRATCH", server.work());
    fuzzer.env("OVERMIND_SOAK_AGENT", agent);
    succeed(&mut fuzzer).with_context(|| format!("fuzzing the HTTP surface: {phases}"))
}

/// Generates a client in Python and one in TypeScript, compiles them, and runs one flow with each.
///
/// # Errors
///
/// When a counterpart is missing, the server does not start, or a client does not compile or run.
pub(super) fn clients(host: &Host) -> Result<()> {
    let python_packages = counterparts::of_python_client(host)?;
    let node_packages = counterparts::of_typescript_client(host)?;
    let server = Server::start(host, "clients")?;
    let document = host.root.join("docs/openapi.json");
    let python = || -> Result<Command> {
        let mut python = Command::new(host.which("python3").context("this needs python3")?);
        let generated = server.dir.join("python");
        python.env("PYTHONPATH", format!("{python_packages}:{}", generated.display()));
        python.env("OVERMIND_URL", &server.url).env("OVERMIND_TOKEN", &server.token);
        python.current_dir(&server.dir).stdin(Stdio::null());
        Ok(python)
    };
    let generate = Path::new(&python_packages).join("bin/openapi-python-client");
    let mut generator = python()?;
    generator.arg(generate).args(["generate", "--meta", "none", "--path"]).arg(&document);
    generator.arg("--output-path").arg(server.dir.join("python/overmind_client"));
    std::fs::create_dir_all(server.dir.join("python")).context("making a directory")?;
    let said = output(&mut generator).context("generating the client in Python")?;
    let said = String::from_utf8_lossy(&said);
    // It also warns of the words of a terminal's WebSocket, which no operation has.
    if said.contains("Endpoint will not be generated") {
        bail!("the client in Python lacks operations:\n{said}");
    }
    succeed(python()?.args(["-m", "compileall", "-q", "python"])).context("compiling it")?;
    write(&server.dir.join("client.py"), PYTHON_FLOW)?;
    succeed(python()?.arg("client.py")).context("running a flow with the client in Python")?;

    let node = || -> Result<Command> {
        let mut node = Command::new(host.which("node").context("this needs node")?);
        node.env("OVERMIND_URL", &server.url).env("OVERMIND_TOKEN", &server.token);
        node.current_dir(server.dir.join("ts")).stdin(Stdio::null());
        Ok(node)
    };
    let ts = server.dir.join("ts");
    std::fs::create_dir_all(&ts).context("making a directory")?;
    let modules = Path::new(&node_packages).join("node_modules");
    std::os::unix::fs::symlink(&modules, ts.join("node_modules")).context("linking packages")?;
    write(&ts.join("package.json"), "{\"type\": \"module\"}")?;
    write(&ts.join("client.ts"), TYPESCRIPT_FLOW)?;
    let mut generator = node()?;
    generator.arg(modules.join("openapi-typescript/bin/cli.js")).arg(&document);
    succeed(generator.args(["-o", "api.d.ts"])).context("generating types of TypeScript")?;
    let mut compiler = node()?;
    compiler.arg(modules.join("typescript/bin/tsc")).args(["--strict", "--target", "es2022"]);
    compiler.args(["--module", "nodenext", "--moduleResolution", "nodenext", "--skipLibCheck"]);
    compiler.args(["--types", "node", "client.ts"]);
    succeed(&mut compiler).context("compiling the client in TypeScript")?;
    succeed(node()?.arg("client.js")).context("running a flow with the client in TypeScript")
}
