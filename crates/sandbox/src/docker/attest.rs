//! Measures a container with the probe.
//!
//! The container is the same as for a command, and also shows the files that the probe needs,
//! read-only, below [`Program::DIRECTORY`]. So the probe runs in any image, also in one without a
//! libc. Things that the engine's configuration adds to every container are present in this one,
//! too.
//!
//! It does not prove that a later image of the same name has the same variables, and it proves
//! nothing about the workspace, which differs for each command.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
#[cfg(feature = "mutations")]
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::CreateContainerOptionsBuilder;
use overmind_core::attest::{Attestation, Attested, Bound};
use overmind_core::sandbox::{SandboxError, SandboxLevel, SandboxResult};

use crate::attest::{self, Inquiry, Program};
use crate::docker::Docker;
use crate::docker::place::Place;
use crate::docker::plan::{Plan, bind};
use crate::docker::removal::Removal;

/// Writable places besides those that the request names.
const WRITABLE: &[&str] = &["/tmp", "/dev/shm", "/dev/mqueue"];

/// A defect of a container, made by a test.
#[cfg(feature = "mutations")]
#[derive(Clone, Debug)]
pub enum Mutation {
    Privileged,
    HostNetwork,
    HostProcesses,
    HostIpc,
    HostName,
    Root,
    Capability,
    NewPrivileges,
    /// The container has no filter for system calls.
    Unconfined,
    WritableRoot,
    Device(PathBuf),
    /// The container shows this path of the host at the same path inside.
    Shows(PathBuf),
    /// The container gets the daemon's variables.
    Variable,
}

impl Docker {
    /// A driver whose containers lack one layer, to test that it is refused.
    #[cfg(feature = "mutations")]
    pub fn broken(options: super::Options, mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), ..Self::new(options) }
    }

    /// The attestation of this driver with this engine, or the refusal.
    pub(super) async fn attested(&self) -> Result<Arc<Attested>, SandboxError> {
        let config = self.config();
        let notary = self.options.notary.as_ref();
        self.attestations.get(&config, notary, self.measure(config.clone())).await
    }

    /// Identifies the measured configuration. A restarted engine may have a new configuration: it
    /// has created its socket, or the file with its process number, again.
    fn config(&self) -> String {
        let stamp = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
        };
        let options = &self.options;
        let socket = &options.socket;
        let all = format!(
            "{} {socket:?} {:?} {:?} {:?} {:?} {} {:?}",
            attest::this_kernel(),
            stamp(socket),
            stamp(&socket.with_file_name("docker.pid")),
            options.image,
            options.user,
            options.init,
            (&options.private, &options.private_files, &options.rooms),
        );
        blake3::hash(all.as_bytes()).to_hex()[..32].to_owned()
    }

    async fn measure(&self, config: String) -> Result<Attestation, SandboxError> {
        let failed = |why: String| SandboxError::Failed {
            level: SandboxLevel::Docker.as_str(),
            message: format!("measuring the sandbox: {why}"),
        };
        let program = Program::find(&self.options.init_program)
            .await
            .map_err(|err| failed(format!("finding the probe's files: {err}")))?;
        let sockets = [self.options.socket.clone()];
        let mut inquiry =
            Inquiry::begin(SandboxLevel::Docker, &self.options.private, &sockets, WRITABLE)?;
        inquiry = inquiry.with(|traps| traps.and_files(&self.options.private_files));
        inquiry.request.argv.clone_from(&program.argv);
        let result = self.run_probe(&inquiry, &program).await?;
        inquiry.conclude(&result, None, config, bounds())
    }

    async fn run_probe(
        &self,
        inquiry: &Inquiry,
        program: &Program,
    ) -> Result<SandboxResult, SandboxError> {
        let request = &inquiry.request;
        let Place { workspace, writable, working_dir, user, .. } =
            Place::resolve(request, self.options.user)?;
        let client = self.client().await?;
        let secrets = Vec::new();
        let plan = Plan {
            options: &self.options,
            request,
            workspace,
            writable,
            working_dir,
            user,
            secrets,
            fixed: Vec::new(),
        };
        let mut body = plan.container();
        if let Some(host) = &mut body.host_config {
            let mounts = host.mounts.get_or_insert_default();
            for file in &program.files {
                mounts.push(bind(&file.host.to_string_lossy(), &file.inside, true));
            }
        }
        self.mutate(&mut body, inquiry);

        let begun = Instant::now();
        self.keeper.ensure(&self.options).map_err(|err| SandboxError::Failed {
            level: SandboxLevel::Docker.as_str(),
            message: format!(
                "cannot start the watchdog {}: {err}",
                self.options.init_program.display()
            ),
        })?;
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("overmind-{}-{next}", self.options.instance);
        let removal = Removal::armed(client.clone(), name, Arc::clone(&self.outstanding));
        let options = CreateContainerOptionsBuilder::default().name(removal.name()).build();
        if let Err(err) = client.create_container(Some(options), body).await {
            if matches!(err, bollard::errors::Error::DockerResponseServerError { .. }) {
                removal.disarm();
            }
            return Err(self.before_start(err));
        }
        let ran = self.run_created(&client, removal.name(), request, None).await;
        removal.now().await;
        let ran = ran?;
        Ok(SandboxResult {
            exit: ran.exit,
            stdout: ran.stdout.finish(),
            stderr: ran.stderr.finish(),
            elapsed: begun.elapsed(),
            level: SandboxLevel::Docker,
            shown_as: None,
        })
    }

    #[cfg(not(feature = "mutations"))]
    #[expect(clippy::unused_self, reason = "what stands here in tests uses it")]
    fn mutate(&self, _body: &mut ContainerCreateBody, _inquiry: &Inquiry) {}

    #[cfg(feature = "mutations")]
    fn mutate(&self, body: &mut ContainerCreateBody, inquiry: &Inquiry) {
        use bollard::models::DeviceMapping;
        let Some(mutation) = &self.mutation else { return };
        let host = body.host_config.get_or_insert_default();
        match mutation {
            Mutation::Privileged => host.privileged = Some(true),
            Mutation::HostNetwork => {
                body.network_disabled = Some(false);
                body.hostname = None;
                host.network_mode = Some("host".to_owned());
            }
            Mutation::HostProcesses => host.pid_mode = Some("host".to_owned()),
            Mutation::HostIpc => host.ipc_mode = Some("host".to_owned()),
            Mutation::HostName => {
                body.hostname = None;
                host.uts_mode = Some("host".to_owned());
            }
            Mutation::Root => body.user = Some("0:0".to_owned()),
            Mutation::Capability => host.cap_add = Some(vec!["NET_RAW".to_owned()]),
            Mutation::NewPrivileges => host.security_opt = None,
            Mutation::Unconfined => {
                let options = host.security_opt.get_or_insert_default();
                options.push("seccomp=unconfined".to_owned());
            }
            Mutation::WritableRoot => host.readonly_rootfs = Some(false),
            Mutation::Device(path) => {
                let path = Some(path.to_string_lossy().into_owned());
                host.devices = Some(vec![DeviceMapping {
                    path_on_host: path.clone(),
                    path_in_container: path,
                    cgroup_permissions: Some("rwm".to_owned()),
                }]);
            }
            Mutation::Shows(path) => {
                let path = path.to_string_lossy();
                host.mounts.get_or_insert_default().push(bind(&path, &path, true));
            }
            Mutation::Variable => {
                let (name, value) = inquiry.traps.variable();
                body.env.get_or_insert_default().push(format!("{name}={value}"));
            }
        }
    }
}

/// The limits of a request that are enforced, with the mechanism of each.
fn bounds() -> Vec<Bound> {
    let by = |limit: &str, text: &str| Bound {
        limit: limit.to_owned(),
        enforced_by: Some(text.to_owned()),
        remark: String::new(),
    };
    vec![
        by("memory_bytes", "the engine's cgroup, for the whole container"),
        by("cpus", "the engine's cgroup, for the whole container"),
        by("pids", "the engine's cgroup, for the whole container"),
        by("tmp_bytes", "size of the file system in memory"),
        by("file_bytes", "rlimit, for each file"),
        by("open_files", "rlimit, for each process"),
        by("output_bytes", "the driver"),
        by("timeout", "the driver, for the whole container"),
    ]
}
