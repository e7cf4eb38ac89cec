//! Which machine, how large, how busy: without it a figure cannot be compared with another.

use std::process::Command;

use anyhow::Result;

use crate::host::Host;
use crate::steps::output;

/// The facts about the machine that a reader needs to compare.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub cores: usize,
    pub processor: String,
    pub memory_mib: u64,
    pub kernel: String,
    pub rustc: String,
    /// The commit, or empty outside a repository.
    pub commit: String,
    /// Runnable processes, averaged over 1, 5 and 15 minutes, before the run.
    pub load: String,
}

impl Machine {
    /// Reads `/proc` and asks rustc and git. What cannot be read stays empty.
    ///
    /// # Errors
    ///
    /// When rustc does not answer.
    pub fn look(host: &Host) -> Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        let field = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = memory.split(' ').next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        let mut git = Command::new("git");
        git.current_dir(&host.root).args([
            "-c",
            "safe.directory=*",
            "rev-parse",
            "--short",
            "HEAD",
        ]);
        Ok(Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            memory_mib: kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            rustc: text(output(Command::new("rustc").arg("--version"))?),
            commit: output(&mut git).map(text).unwrap_or_default(),
            load: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
        })
    }

    pub(super) fn markdown(&self) -> String {
        let Self { cores, processor, memory_mib, kernel, rustc, commit, load } = self;
        format!(
            "* {cores} cores ({processor}), {memory_mib} MiB of memory, Linux {kernel}\n\
             * {rustc}; commit {commit}\n\
             * load average before the run: {load}\n"
        )
    }
}
