//! Containers of a session: with their own network, volumes and outside ports, all labelled.
//!
//! Every name is derived from the session, so the rest of a crash is found without any record.
//! Every object has the data directory's id as a label, so no other object is ever changed. Ports
//! are published on the loopback address only, at numbers that are leased like all others: a number
//! that the engine chooses would change with every restart of the container.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, EndpointSettings, HostConfig, Mount, MountType, NetworkCreateRequest,
    NetworkingConfig, PortBinding, VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, ListContainersOptionsBuilder,
    ListNetworksOptionsBuilder, ListVolumesOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder, StopContainerOptionsBuilder,
};
use futures_util::StreamExt;

use crate::lease::{Progress, Sink, Stream};

/// The label with the data directory's id, on every object of ours.
pub(crate) const LABEL_HOME: &str = "overmind.workspace.home";
pub(crate) const LABEL_SESSION: &str = "overmind.workspace.session";
const LABEL_SERVICE: &str = "overmind.workspace.service";

/// Why a container could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error(
        "the service `{service}` is a container, and there is no Docker engine at {}: start one, \
         or set the socket's path", socket.display()
    )]
    NoEngine {
        service: String,
        socket: PathBuf,
        #[source]
        source: Error,
    },
    #[error("the service `{service}` is a container, and this daemon was given no Docker engine")]
    NotConfigured { service: String },
    #[error("{what}")]
    Engine {
        what: String,
        #[source]
        source: Error,
    },
    #[error("the mount `{}` of `{service}`: {why}", path.display())]
    Mount { service: String, path: PathBuf, why: String },
}

/// The objects of one service, under names that are derived from the session.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ContainerPlan {
    pub(crate) home: String,
    pub(crate) session: String,
    pub(crate) service: String,
    pub(crate) network: String,
    pub(crate) container: String,
    /// Name and path inside.
    pub(crate) volumes: Vec<(String, String)>,
    pub(crate) grace_secs: u64,
}

/// The options with which the container runs.
#[derive(Clone, Debug)]
pub(crate) struct ContainerRun {
    pub(crate) image: String,
    pub(crate) pull: crate::config::Pull,
    pub(crate) command: Option<Vec<String>>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) user: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Port inside, port outside.
    pub(crate) ports: Vec<(u16, u16)>,
    /// Path on this machine, path inside.
    pub(crate) mounts: Vec<(PathBuf, String)>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu_millis: Option<u32>,
}

/// A Docker engine.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    client: Client,
}

fn engine(what: impl Into<String>) -> impl FnOnce(Error) -> ContainerError {
    let what = what.into();
    move |source| ContainerError::Engine { what, source }
}

/// Whether the engine reports that the object does not exist.
fn is_absent(err: &Error) -> bool {
    matches!(err, Error::DockerResponseServerError { status_code: 404, .. })
}

/// Whether it reports that the object already exists, or is being removed.
fn is_conflict(err: &Error) -> bool {
    matches!(err, Error::DockerResponseServerError { status_code: 409, .. })
}

impl Engine {
    pub(crate) async fn connect(socket: &Path, service: &str) -> Result<Self, ContainerError> {
        let refuse = |source| ContainerError::NoEngine {
            service: service.to_owned(),
            socket: socket.to_owned(),
            source,
        };
        let text = socket.to_string_lossy();
        let client =
            Client::connect_with_unix(&text, 120, bollard::API_DEFAULT_VERSION).map_err(refuse)?;
        let client = client.negotiate_version().await.map_err(refuse)?;
        Ok(Self { client })
    }

    /// Makes the volumes, and starts the container in the session's network. Existing objects with
    /// these names are from an earlier attempt and are replaced.
    pub(crate) async fn make(
        &self,
        plan: &ContainerPlan,
        run: &ContainerRun,
        sink: &dyn Sink,
    ) -> Result<(), ContainerError> {
        self.image(&run.image, run.pull, &plan.service, sink).await?;
        for (name, _) in &plan.volumes {
            let request = VolumeCreateRequest {
                name: Some(name.clone()),
                labels: Some(labels(plan)),
                ..VolumeCreateRequest::default()
            };
            let made = self.client.create_volume(request).await;
            made.map_err(engine(format!("making the volume {name}")))?;
        }
        self.remove_container(&plan.container).await?;
        let options = CreateContainerOptionsBuilder::default().name(&plan.container).build();
        let made = self.client.create_container(Some(options), body(plan, run)).await;
        made.map_err(engine(format!("making the container {}", plan.container)))?;
        let started = self.client.start_container(&plan.container, None).await;
        started.map_err(engine(format!("starting the container {}", plan.container)))?;
        Ok(())
    }

    /// The outside port that the engine has actually assigned to an inside port.
    pub(crate) async fn published(
        &self,
        plan: &ContainerPlan,
        inside: u16,
    ) -> Result<Option<u16>, ContainerError> {
        let found = self.client.inspect_container(&plan.container, None).await;
        let found = found.map_err(engine(format!("looking at {}", plan.container)))?;
        let ports = found.network_settings.and_then(|settings| settings.ports).unwrap_or_default();
        let bindings = ports.get(&format!("{inside}/tcp")).cloned().flatten().unwrap_or_default();
        Ok(bindings.iter().find_map(|one| one.host_port.as_ref()?.parse().ok()))
    }

    /// How the container ended, if it did.
    pub(crate) async fn ended(&self, name: &str) -> Option<String> {
        let found = self.client.inspect_container(name, None).await;
        match found {
            Ok(found) => {
                let state = found.state?;
                let running = state.running.unwrap_or(false);
                (!running).then(|| format!("exit code {}", state.exit_code.unwrap_or(-1)))
            }
            Err(err) if is_absent(&err) => Some("it was removed".to_owned()),
            Err(_) => None,
        }
    }

    /// The last lines of the container's output.
    pub(crate) async fn tail(&self, name: &str) -> Vec<String> {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail("20").build();
        let mut stream = self.client.logs(name, Some(options));
        let mut text = String::new();
        while let Some(Ok(piece)) = stream.next().await {
            text.push_str(&piece.to_string());
        }
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// Starts an existing container that does not run; returns `false` if it does not exist.
    pub(crate) async fn start_again(&self, name: &str) -> Result<bool, ContainerError> {
        match self.client.start_container(name, None).await {
            Ok(()) => Ok(true),
            Err(err) if is_absent(&err) => Ok(false),
            Err(err) => Err(engine(format!("starting the container {name} again"))(err)),
        }
    }

    /// Removes container and volumes. Missing ones are no error.
    pub(crate) async fn undo(&self, plan: &ContainerPlan) -> Result<(), ContainerError> {
        let seconds = i32::try_from(plan.grace_secs).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::default().t(seconds).build();
        // The stop only lets the application end in order; the removal is what matters.
        let _ = self.client.stop_container(&plan.container, Some(options)).await;
        self.remove_container(&plan.container).await?;
        for (name, _) in &plan.volumes {
            self.remove_volume(name).await?;
        }
        Ok(())
    }

    pub(crate) async fn remove_container(&self, name: &str) -> Result<(), ContainerError> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match self.client.remove_container(name, Some(options)).await {
            Ok(()) => Ok(()),
            // A conflict means that another request is removing it.
            Err(err) if is_absent(&err) || is_conflict(&err) => Ok(()),
            Err(err) => Err(engine(format!("removing the container {name}"))(err)),
        }
    }

    pub(crate) async fn remove_volume(&self, name: &str) -> Result<(), ContainerError> {
        let options = RemoveVolumeOptionsBuilder::default().force(true).build();
        match self.client.remove_volume(name, Some(options)).await {
            Ok(()) => Ok(()),
            Err(err) if is_absent(&err) => Ok(()),
            Err(err) => Err(engine(format!("removing the volume {name}"))(err)),
        }
    }

    pub(crate) async fn remove_network(&self, name: &str) -> Result<(), ContainerError> {
        match self.client.remove_network(name).await {
            Ok(()) => Ok(()),
            Err(err) if is_absent(&err) => Ok(()),
            Err(err) => Err(engine(format!("removing the network {name}"))(err)),
        }
    }

    /// Makes the session's network unless it exists. Only one caller at a time may do this, because
    /// the engine accepts several networks with one name.
    pub(crate) async fn network(&self, plan: &ContainerPlan) -> Result<(), ContainerError> {
        let filters = HashMap::from([("name", vec![plan.network.as_str()])]);
        let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
        let listed = self.client.list_networks(Some(options)).await;
        let listed = listed.map_err(engine("listing networks"))?;
        if listed.iter().any(|one| one.name.as_deref() == Some(plan.network.as_str())) {
            return Ok(());
        }
        let request = NetworkCreateRequest {
            name: plan.network.clone(),
            driver: Some("bridge".to_owned()),
            labels: Some(labels(plan)),
            ..NetworkCreateRequest::default()
        };
        let made = self.client.create_network(request).await;
        made.map(drop).map_err(engine(format!("making the network {}", plan.network)))
    }

    async fn image(
        &self,
        image: &str,
        pull: crate::config::Pull,
        service: &str,
        sink: &dyn Sink,
    ) -> Result<(), ContainerError> {
        use crate::config::Pull;
        let there = match self.client.inspect_image(image).await {
            Ok(_) => true,
            Err(err) if is_absent(&err) => false,
            Err(err) => return Err(engine(format!("looking for the image {image}"))(err)),
        };
        match (pull, there) {
            (Pull::Missing | Pull::Never, true) => return Ok(()),
            (Pull::Never, false) => {
                let source = self.client.inspect_image(image).await.err();
                let what = format!(
                    "the image {image} does not exist on this machine, and `pull: \
                    never` forbids to download it"
                );
                return match source {
                    Some(source) => Err(ContainerError::Engine { what, source }),
                    None => Ok(()),
                };
            }
            (Pull::Missing, false) | (Pull::Always, _) => {}
        }
        let mut options = CreateImageOptionsBuilder::default().from_image(image);
        if !image.contains('@') && !image.rsplit('/').next().unwrap_or(image).contains(':') {
            // Without a tag, the engine would fetch every tag.
            options = options.tag("latest");
        }
        let mut progress = self.client.create_image(Some(options.build()), None, None);
        while let Some(step) = progress.next().await {
            let step = step.map_err(engine(format!("pulling the image {image}")))?;
            if let Some(line) = step.status {
                sink.tell(Progress::Line { source: service, stream: Stream::Stderr, line: &line });
            }
        }
        Ok(())
    }

    /// Names of containers, volumes and networks with this data directory's id, with the session of
    /// each.
    pub(crate) async fn ours(&self, home: &str) -> Result<Ours, ContainerError> {
        let filters = HashMap::from([("label", vec![format!("{LABEL_HOME}={home}")])]);
        let session = |labels: Option<HashMap<String, String>>| {
            labels.and_then(|labels| labels.get(LABEL_SESSION).cloned()).unwrap_or_default()
        };
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let containers = self.client.list_containers(Some(options)).await;
        let containers = containers.map_err(engine("listing containers"))?;
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let volumes = self.client.list_volumes(Some(options)).await;
        let volumes = volumes.map_err(engine("listing volumes"))?.volumes.unwrap_or_default();
        let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
        let networks = self.client.list_networks(Some(options)).await;
        let networks = networks.map_err(engine("listing networks"))?;
        let named = |one: bollard::models::ContainerSummary| {
            let name = one.names.into_iter().flatten().next()?;
            Some((name.trim_start_matches('/').to_owned(), session(one.labels)))
        };
        Ok(Ours {
            containers: containers.into_iter().filter_map(named).collect(),
            volumes: volumes.into_iter().map(|v| (v.name, session(Some(v.labels)))).collect(),
            networks: networks
                .into_iter()
                .filter_map(|n| Some((n.name?, session(n.labels))))
                .collect(),
        })
    }
}

/// Name and session of each object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ours {
    pub(crate) containers: Vec<(String, String)>,
    pub(crate) volumes: Vec<(String, String)>,
    pub(crate) networks: Vec<(String, String)>,
}

fn labels(plan: &ContainerPlan) -> HashMap<String, String> {
    HashMap::from([
        (LABEL_HOME.to_owned(), plan.home.clone()),
        (LABEL_SESSION.to_owned(), plan.session.clone()),
        (LABEL_SERVICE.to_owned(), plan.service.clone()),
    ])
}

fn body(plan: &ContainerPlan, run: &ContainerRun) -> ContainerCreateBody {
    let mut exposed = Vec::new();
    let mut bindings = HashMap::new();
    for (inside, outside) in &run.ports {
        let key = format!("{inside}/tcp");
        let binding = PortBinding {
            host_ip: Some("127.0.0.1".to_owned()),
            host_port: Some(outside.to_string()),
        };
        bindings.insert(key.clone(), Some(vec![binding]));
        exposed.push(key);
    }
    let volumes = plan.volumes.iter().map(|(name, target)| Mount {
        typ: Some(MountType::VOLUME),
        source: Some(name.clone()),
        target: Some(target.clone()),
        ..Mount::default()
    });
    let files = run.mounts.iter().map(|(source, target)| Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.clone()),
        read_only: Some(true),
        ..Mount::default()
    });
    let endpoint = EndpointSettings {
        aliases: Some(vec![plan.service.clone()]),
        ..EndpointSettings::default()
    };
    ContainerCreateBody {
        image: Some(run.image.clone()),
        cmd: run.command.clone(),
        entrypoint: run.entrypoint.clone(),
        user: run.user.clone(),
        env: Some(run.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        exposed_ports: Some(exposed),
        labels: Some(labels(plan)),
        host_config: Some(HostConfig {
            port_bindings: Some(bindings),
            mounts: Some(volumes.chain(files).collect()),
            network_mode: Some(plan.network.clone()),
            memory: run.memory_bytes.and_then(|bytes| i64::try_from(bytes).ok()),
            nano_cpus: run.cpu_millis.map(|millis| i64::from(millis) * 1_000_000),
            init: Some(true),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            ..HostConfig::default()
        }),
        networking_config: Some(NetworkingConfig {
            endpoints_config: Some(HashMap::from([(plan.network.clone(), endpoint)])),
        }),
        ..ContainerCreateBody::default()
    }
}
