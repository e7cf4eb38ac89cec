//! `overmind sandbox image …`: images of the `docker` and the `microvm` sandbox, built here.
//!
//! Needs no server: the images belong to the machine, and the next command finds them.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use overmind_node::app;
use overmind_node::config::Config;
use overmind_sandbox::docker::image as docker_image;
use overmind_sandbox::microvm::image as guest_image;
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Table;
use crate::output::when;
use crate::progress::spin;
use crate::show::{self, cell};

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build an image from this machine's own packages, without a registry
    #[command(after_help = "\
Examples:
  overmind sandbox image build microvm        a kernel from the distribution's package
  overmind sandbox image build docker         a shell and small tools (busybox-static)
  overmind sandbox image build docker --from host   bash, python, git as installed here")]
    Build(BuildArgs),
    /// List the images that were built here
    #[command(visible_alias = "list")]
    #[command(after_help = "\
Example:
  overmind sandbox image ls")]
    Ls,
}

#[derive(Debug, Args)]
pub struct BuildArgs {
    /// For which sandbox
    pub sandbox: ImageFor,
    /// docker: content of the image
    #[arg(long, value_enum, default_value = "busybox")]
    pub from: FromArg,
    /// docker: its name, with a tag
    #[arg(long)]
    pub name: Option<String>,
    /// microvm: a kernel's .deb file; without one it is fetched with apt-get
    #[arg(long, value_name = "FILE")]
    pub kernel_package: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImageFor {
    /// The engine that `sandbox.docker_host` names gets it
    Docker,
    /// It goes into `sandbox.microvm_dir`
    Microvm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FromArg {
    /// One static program: a shell and the usual small tools
    Busybox,
    /// Debian packages as they are installed on this machine
    Host,
}

/// An image as it is shown.
#[derive(Debug, Serialize)]
struct Row {
    sandbox: &'static str,
    name: String,
    id: String,
    bytes: u64,
    /// Whether the next command would run in it.
    in_use: bool,
}

/// # Errors
///
/// The missing program, and how to install it.
pub async fn run(cx: &Context, command: ImageCommand) -> Outcome {
    let config = cx.config(None)?;
    match command {
        ImageCommand::Build(args) => build(cx, &config, args).await?,
        ImageCommand::Ls => list(cx, &config).await?,
    }
    Ok(Exit::Done)
}

async fn build(cx: &Context, config: &Config, args: BuildArgs) -> Result<(), Failure> {
    let row = match args.sandbox {
        ImageFor::Docker => {
            let from = match args.from {
                FromArg::Busybox => docker_image::From::Busybox,
                FromArg::Host => docker_image::From::Host,
            };
            let name = args.name.unwrap_or_else(|| from.name().to_owned());
            let socket = app::docker_options(config, "image").socket;
            let made = docker_image::build(&socket, from, &name);
            let made = spin(&cx.out, "building the image", async {
                made.await.map_err(|err| Failure::failed(format!("building {name}: {err}")))
            })
            .await?;
            docker_row(config, made)
        }
        ImageFor::Microvm => {
            let dir = app::microvm_options(config).dir;
            let sources = guest_image::Sources {
                kernel_package: args.kernel_package.map(|path| cx.cwd.join(path)),
                ..guest_image::Sources::default()
            };
            let made = spin(&cx.out, "building the guest", async move {
                tokio::task::spawn_blocking(move || guest_image::build(&dir, &sources))
                    .await
                    .map_err(|err| Failure::failed(format!("building the guest: {err}")))?
                    .map_err(|err| Failure::failed(format!("building the guest: {err}")))
            })
            .await?;
            guest_row(made)
        }
    };
    let (id, in_use) = (row.id.clone(), row.in_use);
    show::one(&cx.out, &row, &id, || {
        vec![
            ("image", cell(&row.name)),
            ("id", cell(&row.id)),
            ("size", cell(when::bytes(row.bytes))),
        ]
    })?;
    if !in_use {
        cx.out.note(&format!(
            "to use it: sandbox.docker_image = \"{id}\" in the configuration, or \
             OVERMIND_DOCKER_IMAGE={id}"
        ));
    }
    Ok(())
}

fn docker_row(config: &Config, image: docker_image::Image) -> Row {
    let in_use = [&image.name, &image.id].contains(&&config.docker_image);
    Row { sandbox: "docker", name: image.name, id: image.id, bytes: image.bytes, in_use }
}

fn guest_row(image: guest_image::Image) -> Row {
    let guest_image::Manifest { hash, kernel, bytes, .. } = image.manifest;
    Row { sandbox: "microvm", name: format!("linux {kernel}"), id: hash, bytes, in_use: true }
}

async fn list(cx: &Context, config: &Config) -> Result<(), Failure> {
    let mut rows: Vec<Row> = guest_image::current(&app::microvm_options(config).dir)
        .into_iter()
        .map(guest_row)
        .collect();
    // A machine without Docker has none of its images.
    match docker_image::list(&app::docker_options(config, "image").socket).await {
        Ok(images) => rows.extend(images.into_iter().map(|image| docker_row(config, image))),
        Err(err) => cx.out.detail(&format!("no Docker images: {err}")),
    }
    show::list(
        &cx.out,
        &rows,
        |row| row.id.clone(),
        |_| {
            let mut table = Table::new(&["SANDBOX", "IMAGE", "SIZE", "IN USE", "ID"]).right("SIZE");
            for row in &rows {
                let short = row.id.strip_prefix("sha256:").unwrap_or(&row.id);
                table.row(vec![
                    cell(row.sandbox),
                    cell(&row.name),
                    cell(when::bytes(row.bytes)),
                    cell(if row.in_use { "yes" } else { "no" }),
                    cell(if cx.out.wide() { &row.id } else { &short[..short.len().min(12)] }),
                ]);
            }
            table
        },
        "no images yet; create one: overmind sandbox image build docker",
    )
}
