//! Builds images for the `docker` driver without a registry.
//!
//! [`build`] assembles a root file system from files of this machine and imports it through the
//! engine's API. There are two kinds:
//!
//! * [`From::Busybox`]: one static program of some 2 MB, with a shell and the usual small tools;
//! * [`From::Host`]: the files of some Debian packages as they are installed here (a full shell,
//!   Python, git) and of all packages that they depend on, some 150 MB.
//!
//! The image has a label with a hash of its sources, so building the same image again changes
//! nothing. Its id (`sha256:…`) can be given as the driver's image and counts as pinned.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bollard::models::ImageSummary;
use bollard::query_parameters::{CreateImageOptionsBuilder, ListImagesOptionsBuilder};
use bollard::{API_DEFAULT_VERSION, Docker as Client};
use futures_util::StreamExt;
use tokio::io::AsyncReadExt;

use crate::docker::chain;
use crate::docker::tar::Tar;

/// The label of images that were built here; its value is a hash of their sources.
const LABEL: &str = "overmind.sandbox.image";

/// The source of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Busybox,
    Host,
}

impl From {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busybox => "busybox",
            Self::Host => "host",
        }
    }

    /// The default name of an image of this kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busybox => "overmind-sandbox:busybox",
            Self::Host => "overmind-sandbox:host",
        }
    }
}

/// An image in the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    /// `sha256:…`
    pub id: String,
    pub bytes: u64,
}

/// The error: the attempt, the object, the cause, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageError(String);

impl std::fmt::Display for ImageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ImageError {}

fn engine(socket: &Path) -> impl Fn(bollard::errors::Error) -> ImageError + '_ {
    move |err| ImageError(format!("the engine at {}: {}", socket.display(), chain(&err)))
}

async fn client(socket: &Path) -> Result<Client, ImageError> {
    let text = socket.to_string_lossy();
    // Importing many files takes the engine some time.
    let client =
        Client::connect_with_unix(&text, 600, API_DEFAULT_VERSION).map_err(engine(socket))?;
    client.negotiate_version().await.map_err(engine(socket))
}

/// The images that were built here.
///
/// # Errors
///
/// [`ImageError`] if there is no engine at `socket`.
pub async fn list(socket: &Path) -> Result<Vec<Image>, ImageError> {
    let client = client(socket).await?;
    let filters = HashMap::from([("label", vec![LABEL])]);
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let found = client.list_images(Some(options)).await.map_err(engine(socket))?;
    let mut images: Vec<Image> = found.iter().flat_map(named).collect();
    images.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(images)
}

fn named(summary: &ImageSummary) -> Vec<Image> {
    let bytes = u64::try_from(summary.size).unwrap_or(0);
    let one = |name: &String| Image { name: name.clone(), id: summary.id.clone(), bytes };
    summary.repo_tags.iter().map(one).collect()
}

/// Builds the image `name` (`repository:tag`), unless the engine has it from the same sources. The
/// engine's own limits apply; a host's image takes it some seconds.
///
/// # Errors
///
/// [`ImageError`] names the missing package or tool, or the engine's answer.
pub async fn build(socket: &Path, from: From, name: &str) -> Result<Image, ImageError> {
    let Some((repository, tag)) = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))
    else {
        return Err(ImageError(format!("the image name {name} has no tag: use {name}:1")));
    };
    let client = client(socket).await?;
    let content = blocking(move || match from {
        From::Busybox => busybox(),
        From::Host => host_files(),
    })
    .await?;
    if let Some(there) = find(&client, name, &content.hash).await {
        return Ok(there);
    }

    let label = format!("LABEL {LABEL}={}", content.hash);
    let options = CreateImageOptionsBuilder::default()
        .from_src("-")
        .repo(repository)
        .tag(tag)
        .changes(vec![label])
        .build();
    let body = match content.files {
        Files::Bytes(tar) => tar,
        Files::Paths(paths) => tar_of(&paths).await?,
    };
    let mut progress =
        client.create_image(Some(options), Some(bollard::body_full(body.into())), None);
    while let Some(step) = progress.next().await {
        step.map_err(engine(socket))?;
    }
    find(&client, name, &content.hash)
        .await
        .ok_or_else(|| ImageError(format!("the engine took {name} and does not have it")))
}

async fn find(client: &Client, name: &str, hash: &str) -> Option<Image> {
    let found = client.inspect_image(name).await.ok()?;
    let labels = found.config.and_then(|config| config.labels)?;
    (labels.get(LABEL).map(String::as_str) == Some(hash)).then(|| Image {
        name: name.to_owned(),
        id: found.id.unwrap_or_default(),
        bytes: found.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|err| Err(ImageError(format!("collecting the files: {err}"))))
}

struct Content {
    hash: String,
    files: Files,
}

enum Files {
    /// A whole archive.
    Bytes(Vec<u8>),
    /// Paths to put into an archive, without the leading slash.
    Paths(BTreeSet<PathBuf>),
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";

fn busybox() -> Result<Content, ImageError> {
    let program = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|place| Path::new(place).exists())
        .ok_or_else(|| {
            ImageError("no static busybox: apt-get install busybox-static".to_owned())
        })?;
    let bytes =
        std::fs::read(program).map_err(|err| ImageError(format!("reading {program}: {err}")))?;
    let head = &bytes[..bytes.len().min(4096)];
    if head.windows(8).any(|at| at == b"/ld-linu" || at == b"/ld-musl") {
        return Err(ImageError(format!(
            "{program} needs libraries that an empty image has not: apt-get install busybox-static"
        )));
    }
    let listed = output(Command::new(program).arg("--list"))?;

    let mut tar = Tar::default();
    for directory in ["bin", "etc", "proc", "dev", "sys", "root", "workspace", "usr"] {
        tar.directory(directory, 0o755);
    }
    tar.directory("tmp", 0o1777);
    tar.file("bin/busybox", 0o755, &bytes);
    for applet in String::from_utf8_lossy(&listed).lines().filter(|name| *name != "busybox") {
        tar.link(&format!("bin/{applet}"), "busybox");
    }
    tar.link("usr/bin", "../bin");
    tar.file("etc/passwd", 0o644, PASSWD.as_bytes());
    tar.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    let tar = tar.finish();
    Ok(Content { hash: hash(&[&tar]), files: Files::Bytes(tar) })
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Packages that an agent's commands usually need. Those that are not installed here are skipped.
const PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "bzip2",
    "ca-certificates",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "file",
    "findutils",
    "gawk",
    "git",
    "grep",
    "gzip",
    "hostname",
    "jq",
    "less",
    "libc-bin",
    "make",
    "mawk",
    "patch",
    "perl-base",
    "procps",
    "python3",
    "ripgrep",
    "sed",
    "tar",
    "unzip",
    "util-linux",
    "xz-utils",
    "zip",
];

/// Files that packages generate at installation; no package lists them.
const GENERATED: &[&str] = &["etc/ld.so.cache", "etc/ssl/certs"];

/// Paths that are never taken, whatever package owns them.
const LEFT_OUT: &[&str] = &[
    "etc/shadow",
    "etc/gshadow",
    "etc/sudoers",
    "root",
    "home",
    "var",
    "run",
    "boot",
    "proc",
    "sys",
    "dev",
    "tmp",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
];

fn host_files() -> Result<Content, ImageError> {
    let installed = installed()?;
    let packages = closure(&installed);
    if !packages.contains_key("libc6") {
        return Err(ImageError(
            "dpkg names no usual packages here: build the image from busybox".to_owned(),
        ));
    }
    let mut listing = Command::new("dpkg-query");
    listing.arg("--listfiles").args(packages.values().map(|package| &package.qualified));
    let listed = output(&mut listing)?;
    let mut paths = BTreeSet::new();
    for line in listed.split(|byte| *byte == b'\n') {
        let path = Path::new(std::ffi::OsStr::from_bytes(line));
        if path.is_absolute() {
            take(path, &mut paths);
        }
    }
    // Directories that are links on this machine; the image must contain them.
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        if Path::new("/").join(name).symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            paths.insert(PathBuf::from(name));
        }
    }
    alternatives(&mut paths);
    for name in GENERATED {
        take_all(&Path::new("/").join(name), &mut paths);
    }
    let versions: Vec<String> = packages
        .values()
        .map(|package| format!("{}={}", package.qualified, package.version))
        .collect();
    let hash = hash(&[b"host-1", versions.join("\n").as_bytes()]);
    Ok(Content { hash, files: Files::Paths(paths) })
}

#[derive(Debug)]
struct Package {
    /// The package's name, with the architecture if dpkg requires it.
    qualified: String,
    version: String,
    needs: Vec<String>,
}

fn installed() -> Result<BTreeMap<String, Package>, ImageError> {
    let mut query = Command::new("dpkg-query");
    query.args([
        "--show",
        "--showformat",
        "${db:Status-Abbrev}\t${Package}\t${binary:Package}\t${Version}\t${Pre-Depends}, ${Depends}\n",
    ]);
    let text = output(&mut query)?;
    Ok(parse_installed(&String::from_utf8_lossy(&text)))
}

fn parse_installed(text: &str) -> BTreeMap<String, Package> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let mut cells = line.split('\t');
        let (Some(status), Some(name), Some(qualified), Some(version), Some(needs)) =
            (cells.next(), cells.next(), cells.next(), cells.next(), cells.next())
        else {
            continue;
        };
        if !status.starts_with("ii") {
            continue;
        }
        // In `a (>= 1) | b:any, c`, any installed alternative is accepted.
        let needs = needs
            .split([',', '|'])
            .filter_map(|one| one.split_whitespace().next())
            .map(|one| one.split(':').next().unwrap_or(one).to_owned())
            .collect();
        let package =
            Package { qualified: qualified.to_owned(), version: version.to_owned(), needs };
        all.insert(name.to_owned(), package);
    }
    all
}

fn closure(installed: &BTreeMap<String, Package>) -> BTreeMap<&str, &Package> {
    let mut taken = BTreeMap::new();
    let mut open: Vec<&str> = PACKAGES.to_vec();
    while let Some(name) = open.pop() {
        let Some((name, package)) = installed.get_key_value(name) else { continue };
        if taken.insert(name.as_str(), package).is_none() {
            open.extend(package.needs.iter().map(String::as_str));
        }
    }
    taken
}

/// Adds a path under its real name, because `/bin/sh` may be `/usr/bin/sh`.
fn take(path: &Path, paths: &mut BTreeSet<PathBuf>) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
    let Ok(parent) = parent.canonicalize() else { return };
    let real = parent.join(name);
    let relative = real.strip_prefix("/").unwrap_or(&real).to_owned();
    let unwanted = LEFT_OUT.iter().any(|out| relative.starts_with(out));
    if !unwanted && real.symlink_metadata().is_ok() {
        paths.insert(relative);
    }
}

fn take_all(path: &Path, paths: &mut BTreeSet<PathBuf>) {
    take(path, paths);
    let Ok(entries) = std::fs::read_dir(path) else { return };
    for entry in entries.filter_map(Result::ok) {
        take_all(&entry.path(), paths);
    }
}

/// Adds programs whose name leads through `/etc/alternatives` to one that is included.
fn alternatives(paths: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = std::fs::read_dir("/usr/bin") else { return };
    for link in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let Ok(middle) = std::fs::read_link(&link) else { continue };
        if !middle.starts_with("/etc/alternatives") {
            continue;
        }
        let target = link.canonicalize().ok();
        let target = target.as_deref().and_then(|target| target.strip_prefix("/").ok());
        if target.is_some_and(|target| paths.contains(target)) {
            take(&link, paths);
            take(&middle, paths);
        }
    }
}

/// Runs GNU tar, which keeps links, holes and long names.
async fn tar_of(paths: &BTreeSet<PathBuf>) -> Result<Vec<u8>, ImageError> {
    let mut list = Vec::new();
    // The entries of the front archive must not be repeated.
    let front = ["etc", "etc/passwd", "etc/group"].map(Path::new);
    for path in paths.iter().filter(|path| !front.contains(&path.as_path())) {
        list.extend_from_slice(path.as_os_str().as_bytes());
        list.push(0);
    }
    let failed = |err: std::io::Error| ImageError(format!("tar: {err}"));
    let names = tempfile_of(&list).map_err(failed)?;
    let mut child = tokio::process::Command::new("tar")
        .args(["--create", "--directory=/", "--no-recursion", "--null", "--files-from=-"])
        .args(["--owner=0", "--group=0", "--numeric-owner", "--ignore-failed-read"])
        // The machine's set-user-id bits have no use in the sandbox.
        .arg("--mode=ug-s")
        .stdin(Stdio::from(names))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut archive = Vec::new();
    let mut out = child.stdout.take().expect("it was asked for");
    out.read_to_end(&mut archive).await.map_err(failed)?;
    let status = child.wait().await.map_err(failed)?;
    if !status.success() {
        return Err(ImageError(format!("tar ended with {status}")));
    }
    // Mount points that no package contains are in a separate archive at the front.
    let mut front = Tar::default();
    for directory in ["etc", "proc", "dev", "sys", "root", "workspace", "var"] {
        front.directory(directory, 0o755);
    }
    front.directory("tmp", 0o1777);
    front.file("etc/passwd", 0o644, PASSWD.as_bytes());
    front.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    let mut whole = front.without_end();
    whole.extend_from_slice(&archive);
    Ok(whole)
}

/// A file in memory, positioned at its beginning.
fn tempfile_of(content: &[u8]) -> std::io::Result<std::fs::File> {
    use std::io::{Seek, Write};
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("names", flags)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

fn output(command: &mut Command) -> Result<Vec<u8>, ImageError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|err| ImageError(format!("cannot start {name}: {err}; it is a Debian's tool")))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let words = String::from_utf8_lossy(&output.stderr);
        Err(ImageError(format!("{name} failed ({}): {}", output.status, words.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_include_their_installed_dependencies() {
        let text = "ii \tgit\tgit\t1:2\tlibc6 (>= 2.36), , perl | perl-base:any\n\
                    ii \tlibc6\tlibc6:amd64\t2.36\t\n\
                    ii \tperl-base\tperl-base\t5\tlibc6\n\
                    ii \tvim\tvim\t9\tlibc6\n\
                    rc \tjq\tjq\t1\t\n";
        let installed = parse_installed(text);
        let names: Vec<&str> = closure(&installed).into_keys().collect();
        assert_eq!(names, ["git", "libc6", "perl-base"]);
        assert_eq!(installed["libc6"].qualified, "libc6:amd64");
    }

    #[test]
    fn personal_files_and_secrets_are_not_copied_into_the_image() {
        let mut paths = BTreeSet::new();
        for path in ["/etc/shadow", "/root", "/usr/bin/env", "/var/lib/dpkg", "/nowhere"] {
            take(Path::new(path), &mut paths);
        }
        assert_eq!(paths.iter().collect::<Vec<_>>(), [Path::new("usr/bin/env")]);
    }

    #[tokio::test]
    async fn a_name_without_a_tag_is_refused_first() {
        let err = build(Path::new("/nowhere"), From::Busybox, "x/y").await.unwrap_err();
        assert_eq!(err.to_string(), "the image name x/y has no tag: use x/y:1");
        let err = list(Path::new("/nowhere")).await.unwrap_err().to_string();
        assert!(err.starts_with("the engine at /nowhere: "), "{err}");
    }
}
