//! LiteLLM's proxy beside the gateway: the same provider, the same load, one row for each figure.
//!
//! It is another program in another language, which the user of the benchmark installs (`pip
//! install --target DIR 'litellm[proxy]'`); nothing of it is part of the product. It is configured
//! to send data only to the measured provider.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overmind_cli::exit::Failure;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;

use super::relay::{FEW, MANY, Provider, Target, crowd_of, load, per_second};
use super::{Figure, Setting, ms, percentile, process};

/// The token of its callers. It protects nothing: the proxy exists only for this run.
const TOKEN: &str = "sk-overmind-bench";
/// Longest that it may take until it answers: it imports a great deal.
const START: Duration = Duration::from_secs(300);
const STREAMS: u32 = 1_000;

/// Ends with this value, its workers too.
struct Proxy {
    child: Child,
    port: u16,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let workers = family(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in workers.into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

impl Proxy {
    async fn start(packages: &Path, dir: &Path, provider: u16) -> Result<Self, Failure> {
        let config = dir.join("litellm.yaml");
        let text = format!(
            "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n      \
             api_base: http://127.0.0.1:{provider}/v1\n      api_key: none\n\
             litellm_settings:\n  telemetry: false\n  num_retries: 0\n\
             general_settings:\n  master_key: {TOKEN}\n"
        );
        std::fs::write(&config, text)
            .map_err(|err| Failure::failed(format!("writing {}: {err}", config.display())))?;
        // It takes a number and tells none: one that was free a moment ago.
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr());
        let port = port.map_err(|err| Failure::failed(format!("finding a port: {err}")))?.port();
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let child = Command::new("python3")
            .args(["-c", "import sys; from litellm import run_server; sys.exit(run_server())"])
            .arg("--config")
            .arg(&config)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--num_workers", &workers.to_string()])
            .env("PYTHONPATH", packages)
            .env("LITELLM_TELEMETRY", "False")
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("LITELLM_LOG", "ERROR")
            .env("NO_PROXY", "*")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|err| Failure::failed(format!("starting LiteLLM: {err}")))?;
        let mut proxy = Self { child, port };
        let began = Instant::now();
        while load(&proxy.target(false), 1, Duration::from_millis(10)).await.is_err() {
            let ended = proxy.child.try_wait().ok().flatten();
            if ended.is_some() || began.elapsed() > START {
                let mut said = String::new();
                if let (Some(_), Some(mut pipe)) = (ended, proxy.child.stderr.take()) {
                    let _ = pipe.read_to_string(&mut said);
                }
                let last = said.lines().last().unwrap_or("it did not answer in time").to_owned();
                return Err(Failure::failed(format!("LiteLLM does not serve: {last}")));
            }
            SystemClock.sleep_until(SystemClock.now().after(Duration::from_millis(200))).await;
        }
        Ok(proxy)
    }

    fn target(&self, stream: bool) -> Target {
        Target::new(self.port, "/v1/chat/completions", TOKEN, stream)
    }
}

/// A process and all below it.
fn family(root: u32) -> Vec<u32> {
    let all: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&one) = found.get(at) {
        found.extend(all.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

pub(super) async fn measure(setting: &Setting, packages: &Path) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("litellm")?;
    let provider = Provider::start()?;
    let proxy = Proxy::start(packages, &dir, provider.port).await?;
    let direct = Target::new(provider.port, "/v1/chat/completions", "none", false);
    let relayed = proxy.target(false);
    let time = setting.time(Duration::from_secs(3));
    let (mut there, mut here, mut through) = (Vec::new(), Vec::new(), 0.0_f64);
    for _ in 0..3 {
        there.extend(load(&direct, FEW, time / 3).await?);
        here.extend(load(&relayed, FEW, time / 3).await?);
        through = through.max(per_second(load(&relayed, MANY, time / 3).await?.len(), time / 3));
    }
    there.sort_unstable();
    here.sort_unstable();
    let root = proxy.child.id();
    let memory = || family(root).into_iter().map(process::rss).sum();
    let count = setting.count(STREAMS);
    let (failed, peak) = crowd_of(&proxy.target(true), count, memory).await;
    let at = |times: &[Duration], part: f64| ms(percentile(times, part));
    let floor = |part| ("provider alone", at(&there, part));
    let latency = |name, part| {
        let (what, value) = floor(part);
        Figure::new(name, at(&here, part), "ms").floor(what, value)
    };
    Ok(vec![
        latency("litellm latency p50", 0.5)
            .note("LiteLLM's proxy, a worker for each processor, no database: records nothing"),
        latency("litellm latency p99", 0.99),
        Figure::new("litellm requests", through, "requests/s"),
        Figure::new("litellm streams failed", f64::from(failed), "streams")
            .note(format!("of {count} at once")),
        Figure::new("litellm rss", peak, "MiB").note("all its processes while those run, at most"),
    ])
}
