//! Builds the engine's request for one command, and an equivalent command line for people. It is
//! pure: it uses no socket and no file system.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountBindOptions, MountType,
    ResourcesUlimits,
};
use overmind_core::sandbox::{SandboxLimits, SandboxRequest};

use crate::RunAs;
use crate::attest::Program;
use crate::docker::{Options, waiter};

/// The label of every container of this program.
pub(crate) const LABEL_MANAGED: &str = "overmind.managed";
/// The owner's label, which stays the same when the daemon restarts on the same data.
pub(crate) const LABEL_OWNER: &str = "overmind.owner";
/// The label for the start of the owner that made the container.
pub(crate) const LABEL_INSTANCE: &str = "overmind.instance";

/// The request with its paths as the engine needs them.
pub(crate) struct Plan<'a> {
    pub(crate) options: &'a Options,
    pub(crate) request: &'a SandboxRequest,
    /// An absolute path on the host, with links resolved.
    pub(crate) workspace: String,
    /// The writable directory on the host, and its path inside.
    pub(crate) writable: Option<(String, String)>,
    /// The path inside.
    pub(crate) working_dir: String,
    pub(crate) user: RunAs,
    /// Paths inside at which an empty file or directory replaces a secret, and whether it is a
    /// directory.
    pub(crate) secrets: Vec<(String, bool)>,
    /// The parts of a user's repository that are mounted over themselves: path on the host, path
    /// inside, and whether it is read-only.
    pub(crate) fixed: Vec<(String, String, bool)>,
}

impl Plan<'_> {
    pub(crate) fn container(&self) -> ContainerCreateBody {
        let Self { options, request, .. } = self;
        let limits = &request.limits;
        let reads_stdin = !request.stdin.is_empty();
        let labels = [
            (LABEL_MANAGED, "true"),
            (LABEL_OWNER, options.owner.as_str()),
            (LABEL_INSTANCE, options.instance.as_str()),
        ];
        ContainerCreateBody {
            image: Some(options.image.clone()),
            // The image's own entry point must not precede the command.
            entrypoint: Some(request.argv.clone()),
            cmd: Some(Vec::new()),
            env: Some(request.env.iter().map(|(key, value)| format!("{key}={value}")).collect()),
            user: Some(self.user()),
            working_dir: Some(self.working_dir.clone()),
            hostname: Some("sandbox".to_owned()),
            network_disabled: Some(true),
            tty: Some(false),
            attach_stdin: Some(reads_stdin),
            open_stdin: Some(reads_stdin),
            stdin_once: Some(reads_stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            labels: Some(
                labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect(),
            ),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                readonly_rootfs: Some(true),
                cap_drop: Some(vec!["ALL".to_owned()]),
                security_opt: Some(vec!["no-new-privileges".to_owned()]),
                init: Some(options.init),
                nano_cpus: Some(nano_cpus(limits.cpus)),
                memory: Some(bytes(limits.memory_bytes)),
                // This is memory and swap together, so there is no swap on top.
                memory_swap: Some(bytes(limits.memory_bytes)),
                pids_limit: Some(i64::from(limits.pids)),
                ulimits: Some(ulimits(limits)),
                shm_size: Some(bytes(limits.tmp_bytes)),
                ipc_mode: Some("private".to_owned()),
                tmpfs: Some(HashMap::from([("/tmp".to_owned(), self.tmpfs())])),
                mounts: Some(self.mounts()),
                // Output goes to the attached client, and is not also stored by the engine.
                log_config: Some(HostConfigLogConfig {
                    typ: Some("none".to_owned()),
                    config: None,
                }),
                // `auto_remove` is off: the engine could remove the container, with its exit code,
                // before the driver asks for it. The driver always removes the container itself.
                auto_remove: Some(false),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    /// The same container with the waiter instead of the command. Of the request it uses only the
    /// directories and the limits.
    pub(crate) fn waiting(&self, waiter: &Program) -> ContainerCreateBody {
        let mut body = self.container();
        let mut argv = waiter.argv.clone();
        // The last argument there is the program to become.
        argv.pop();
        argv.push(waiter::ARGUMENT.to_owned());
        body.entrypoint = Some(argv);
        body.env = Some(Vec::new());
        (body.attach_stdin, body.open_stdin, body.stdin_once) =
            (Some(true), Some(true), Some(true));
        let mounts = body.host_config.as_mut().and_then(|host| host.mounts.as_mut());
        let files = waiter.files.iter();
        let files = files.map(|file| bind(&file.host.to_string_lossy(), &file.inside, true));
        mounts.expect("every container has the workspace").extend(files);
        body
    }

    fn user(&self) -> String {
        format!("{}:{}", self.user.uid, self.user.gid)
    }

    /// The mount belongs to the user; the engine gives it the mode of `/tmp` in the image, whatever
    /// mode is requested.
    fn tmpfs(&self) -> String {
        let RunAs { uid, gid } = self.user;
        let size = self.request.limits.tmp_bytes;
        format!("rw,nosuid,nodev,exec,mode=1777,uid={uid},gid={gid},size={size}")
    }

    pub(crate) fn mounts(&self) -> Vec<Mount> {
        let whole = self.writable.as_ref().is_some_and(|(_, inside)| inside == "/workspace");
        let mut mounts = vec![bind(&self.workspace, "/workspace", !whole)];
        if let Some((host, inside)) = self.writable.as_ref().filter(|_| !whole) {
            mounts.push(bind(host, inside, false));
        }
        let fixed = self.fixed.iter();
        mounts.extend(fixed.map(|(host, inside, read_only)| bind(host, inside, *read_only)));
        mounts.extend(self.secrets.iter().map(|(inside, directory)| match directory {
            false => bind("/dev/null", inside, true),
            true => Mount {
                typ: Some(MountType::TMPFS),
                target: Some(inside.clone()),
                read_only: Some(true),
                ..Mount::default()
            },
        }));
        mounts
    }

    /// A command line that a person could paste, except for the command and the values of
    /// variables.
    pub(crate) fn shown(&self) -> String {
        let limits = &self.request.limits;
        let mut words: Vec<String> =
            ["docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL"]
                .map(str::to_owned)
                .to_vec();
        let mut option = |name: &str, value: String| {
            words.push(name.to_owned());
            words.push(value);
        };
        option("--security-opt", "no-new-privileges".to_owned());
        option("--user", self.user());
        option("--cpus", limits.cpus.to_string());
        option("--memory", limits.memory_bytes.to_string());
        option("--memory-swap", limits.memory_bytes.to_string());
        option("--pids-limit", limits.pids.to_string());
        for limit in ulimits(limits) {
            let (name, value) = (limit.name.unwrap_or_default(), limit.hard.unwrap_or_default());
            option("--ulimit", format!("{name}={value}"));
        }
        option("--shm-size", limits.tmp_bytes.to_string());
        option("--tmpfs", format!("/tmp:{}", self.tmpfs()));
        option("--workdir", self.working_dir.clone());
        for mount in self.mounts() {
            let to = mount.target.unwrap_or_default();
            let Some(from) = mount.source else {
                option("--mount", format!("type=tmpfs,dst={to},readonly"));
                continue;
            };
            let read_only = if mount.read_only == Some(true) { ",readonly" } else { "" };
            option(
                "--mount",
                format!("type=bind,src={from},dst={to},bind-nonrecursive{read_only}"),
            );
        }
        for (name, _) in &self.request.env {
            option("--env", name.clone());
        }
        if self.options.init {
            words.push("--init".to_owned());
        }
        if !self.request.stdin.is_empty() {
            words.push("--interactive".to_owned());
        }
        words.push(self.options.image.clone());
        let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
        format!("{} '<redacted-command>'", quoted.join(" "))
    }
}

/// A mount without the mounts inside of its source, because the engine would leave those writable.
pub(super) fn bind(host: &str, inside: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(host.to_owned()),
        target: Some(inside.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

fn ulimits(limits: &SandboxLimits) -> Vec<ResourcesUlimits> {
    let same = |name: &str, value: i64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(value),
        hard: Some(value),
    };
    vec![
        same("core", 0),
        same("fsize", bytes(limits.file_bytes)),
        same("nofile", i64::from(limits.open_files)),
    ]
}

/// The engine uses signed numbers; a number that does not fit is effectively unlimited.
fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The engine counts billionths of a processor. A float-to-integer cast saturates.
#[expect(clippy::cast_possible_truncation, reason = "saturates; checked to be finite and above 0")]
fn nano_cpus(cpus: f64) -> i64 {
    ((cpus * 1e9).round() as i64).max(1)
}

/// Quotes a word for a POSIX shell.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    fn request() -> SandboxRequest {
        SandboxRequest {
            argv: vec!["sh".to_owned(), "-lc".to_owned(), "echo $TOKEN".to_owned()],
            workspace: PathBuf::from("/w"),
            writable: None,
            cwd: PathBuf::new(),
            env: vec![("TOKEN".to_owned(), "s3cret".to_owned())],
            home: Vec::new(),
            stdin: Vec::new(),
            timeout: Duration::from_secs(1),
            limits: SandboxLimits::default(),
        }
    }

    fn plan<'a>(options: &'a Options, request: &'a SandboxRequest) -> Plan<'a> {
        Plan {
            options,
            request,
            workspace: "/home/it's/w".to_owned(),
            writable: Some(("/home/it's/w/out".to_owned(), "/workspace/out".to_owned())),
            working_dir: "/workspace".to_owned(),
            user: RunAs { uid: 1000, gid: 1000 },
            secrets: Vec::new(),
            fixed: Vec::new(),
        }
    }

    #[test]
    fn the_shown_command_line_has_every_limit_and_no_secret() {
        let (options, request) = (Options::default(), request());
        assert_eq!(
            plan(&options, &request).shown(),
            "docker run --rm --network none --read-only --cap-drop ALL \
             --security-opt no-new-privileges --user 1000:1000 --cpus 0.5 --memory 268435456 \
             --memory-swap 268435456 --pids-limit 128 --ulimit core=0 --ulimit fsize=1073741824 \
             --ulimit nofile=1024 --shm-size 67108864 \
             --tmpfs /tmp:rw,nosuid,nodev,exec,mode=1777,uid=1000,gid=1000,size=67108864 --workdir /workspace \
             --mount 'type=bind,src=/home/it'\\''s/w,dst=/workspace,bind-nonrecursive,readonly' \
             --mount 'type=bind,src=/home/it'\\''s/w/out,dst=/workspace/out,bind-nonrecursive' \
             --env TOKEN --init alpine:3.20 '<redacted-command>'"
        );
    }

    #[test]
    fn the_container_is_hardened() {
        let (options, request) = (Options::default(), request());
        let body = plan(&options, &request).container();
        assert_eq!(body.entrypoint, Some(request.argv.clone()));
        assert_eq!(body.user.as_deref(), Some("1000:1000"));
        let host = body.host_config.unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.readonly_rootfs, Some(true));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges".to_owned()]));
        assert_eq!(host.nano_cpus, Some(500_000_000));
        assert_eq!((host.memory, host.memory_swap), (Some(256 << 20), Some(256 << 20)));
        assert_eq!(host.pids_limit, Some(128));
        let mounts = host.mounts.unwrap();
        assert_eq!(
            mounts.iter().map(|m| m.read_only).collect::<Vec<_>>(),
            [Some(true), Some(false)]
        );
        assert_eq!(host.privileged, None);
    }

    #[test]
    fn each_secret_is_covered() {
        let (options, request) = (Options::default(), request());
        let mut plan = plan(&options, &request);
        plan.secrets = vec![("/workspace/.env".into(), false), ("/workspace/.aws".into(), true)];
        let mounts = plan.mounts();
        let seen = mounts.iter().skip(2).map(|mount| {
            (mount.source.as_deref(), mount.target.as_deref().unwrap(), mount.read_only)
        });
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [
                (Some("/dev/null"), "/workspace/.env", Some(true)),
                (None, "/workspace/.aws", Some(true)),
            ]
        );
        assert!(plan.shown().contains("--mount type=tmpfs,dst=/workspace/.aws,readonly"));
    }

    #[test]
    fn git_control_files_are_mounted_read_only_over_themselves() {
        let (options, request) = (Options::default(), request());
        let mut plan = plan(&options, &request);
        plan.fixed = vec![
            ("/w/.git".into(), "/workspace/.git".into(), false),
            ("/w/.git/config".into(), "/workspace/.git/config".into(), true),
        ];
        let mounts = plan.mounts();
        let seen = mounts.iter().skip(2).map(|mount| (mount.target.as_deref(), mount.read_only));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [(Some("/workspace/.git"), Some(false)), (Some("/workspace/.git/config"), Some(true)),]
        );
    }

    #[test]
    fn a_completely_writable_workspace_is_one_mount() {
        let (options, request) = (Options::default(), request());
        let mut plan = plan(&options, &request);
        plan.writable = Some((plan.workspace.clone(), "/workspace".to_owned()));
        let mounts = plan.mounts();
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].read_only, Some(false));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quote("a-b_c/d:e,f=g"), "a-b_c/d:e,f=g");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's $x"), r"'it'\''s $x'");
    }
}
