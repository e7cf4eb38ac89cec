//! The guest's image: a kernel of the distribution and an initial file system that is made here.
//!
//! [`build`] takes a kernel package (given, or fetched with `apt-get download`), unpacks it without
//! installing it, and writes these files to the cache directory, under a name made from the
//! content:
//!
//! ```text
//! <hash>/vmlinux       the kernel, unpacked: an emulated processor would need seconds for it
//! <hash>/initrd.cpio   busybox, some kernel modules, and the script below
//! <hash>/manifest.json what it was made from
//! current              the name of the one in use; others are removed after a while, see
//!                      [`super::prune`]
//! ```
//!
//! It contains no root file system: a guest sees the host's programs, read-only, as the `namespace`
//! sandbox shows them, and the workspace. So the image is small, only its kernel needs updates, and
//! every level offers the same tools.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::microvm::cpio::Cpio;
use crate::microvm::prune;

/// The distribution's kernel with the 9p file system (the smaller `cloud` kernel has none).
pub const KERNEL_PACKAGE: &str = "linux-image-amd64";

/// Modules that the guest needs; they name the modules that they need themselves.
const MODULES: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p"];

/// The file that lists an image's sources; its modification time is the last use.
pub(super) const MANIFEST: &str = "manifest.json";

/// The version of the script and the layout; increased when either changes.
const FORMAT: u32 = 1;

/// The first program of the guest, until it waits for an order; its snapshot is taken at that
/// point.
///
/// The port is opened once and never closed, because closing discards received data. An empty read
/// means that nobody has connected yet.
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
for module in $($b cat /modules/order); do
    $b insmod /modules/$module.ko || echo "overmind-guest: cannot load $module" >/dev/console
done
in= out=
for port in /sys/class/virtio-ports/*; do
    case $($b cat $port/name) in
        overmind.in) in=/dev/${port##*/} ;;
        overmind.out) out=/dev/${port##*/} ;;
    esac
done
exec 3<$in 4>$out
echo overmind-guest-ready >/dev/console
until read line <&3 && [ "$line" = go ]; do $b usleep 5000; done
share() { $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,$3 $1 $2 || echo "overmind-guest: cannot mount $1" >/dev/console; }
share root /root cache=loose,ro,nosuid
share workspace /root/workspace cache=mmap,nosuid,nodev
$b mount -t devtmpfs -o nosuid dev /root/dev
$b mount -t proc proc /root/proc
exec $b switch_root /root $(for word in $($b cat /proc/cmdline); do case $word in overmind.agent=*) echo ${word#*=} ;; esac; done) __microvm-guest <&3 >&4 2>/dev/console
"#;

/// The sources of the guest's image.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// An existing kernel package; without it, one is fetched.
    pub kernel_package: Option<PathBuf>,
    /// A static busybox; without it, the usual places of packages are searched.
    pub busybox: Option<PathBuf>,
}

/// A guest that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The directory with its content.
    pub dir: PathBuf,
    pub manifest: Manifest,
}

/// The sources of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// BLAKE3 of the kernel and the initial file system, in hexadecimal.
    pub hash: String,
    /// The kernel's release, such as `6.1.0-56-amd64`.
    pub kernel: String,
    /// The package's file name.
    pub package: String,
    pub bytes: u64,
}

impl Image {
    pub(crate) fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    pub(crate) fn initrd(&self) -> PathBuf {
        self.dir.join("initrd.cpio")
    }
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

fn failed(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> ImageError {
    move |err| ImageError(format!("{what}: {err}"))
}

/// The image in use, if one was built in `dir`.
pub fn current(dir: &Path) -> Option<Image> {
    let name = std::fs::read_to_string(dir.join("current")).ok()?;
    let dir = dir.join(name.trim());
    let text = std::fs::read(dir.join(MANIFEST)).ok()?;
    let image = Image { manifest: serde_json::from_slice(&text).ok()?, dir };
    (image.kernel().exists() && image.initrd().exists()).then_some(image)
}

/// Makes the image in `dir` and makes it the one in use. The same sources give the same image,
/// which then is not changed. Blocks for some seconds, and for a download if no package is given.
///
/// # Errors
///
/// [`ImageError`] names the missing tool or package, or the file that could not be made. `current`
/// is then unchanged.
pub fn build(dir: &Path, sources: &Sources) -> Result<Image, ImageError> {
    std::fs::create_dir_all(dir).map_err(failed(format_args!("making {}", dir.display())))?;
    let work = dir.join(format!("building-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&work);
    std::fs::create_dir(&work).map_err(failed(format_args!("making {}", work.display())))?;
    let made = assemble(dir, &work, sources);
    let _ = std::fs::remove_dir_all(&work);
    if let Ok(image) = &made {
        prune::mark_used(&image.dir.join(MANIFEST));
        // The image exists anyway; the rest is removed another time.
        if let Err(err) = prune::prune(dir) {
            tracing::warn!(dir = %dir.display(), error = %err, "unused images of microvms stay");
        }
    }
    made
}

fn assemble(dir: &Path, work: &Path, sources: &Sources) -> Result<Image, ImageError> {
    let busybox = static_busybox(sources.busybox.as_deref())?;
    let package = match &sources.kernel_package {
        Some(path) => path.clone(),
        None => fetch(dir)?,
    };
    let unpacked = work.join("package");
    run(
        Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked),
        "dpkg-deb comes with every Debian; elsewhere install dpkg",
    )?;
    let release = only_entry(&unpacked.join("lib/modules"))
        .or_else(|_| only_entry(&unpacked.join("usr/lib/modules")))?;
    let modules = [unpacked.join("lib/modules"), unpacked.join("usr/lib/modules")]
        .map(|dir| dir.join(&release))
        .into_iter()
        .find(|dir| dir.exists())
        .expect("one of the two was just listed");
    let packed = unpacked.join(format!("boot/vmlinuz-{release}"));
    let packed = std::fs::read(&packed)
        .map_err(failed(format_args!("reading {}, the package's kernel", packed.display())))?;
    let kernel = unpack_kernel(&packed)?;
    let initrd = initial_files(&busybox, &modules)?;

    let mut hasher = blake3::Hasher::new();
    hasher.update(&FORMAT.to_le_bytes());
    hasher.update(&kernel).update(&initrd);
    let hash = hasher.finalize().to_hex()[..32].to_owned();
    let manifest = Manifest {
        kernel: release,
        package: package.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        bytes: (kernel.len() + initrd.len()) as u64,
        hash: hash.clone(),
    };
    let image = Image { dir: dir.join(&hash), manifest };
    if !image.dir.join(MANIFEST).exists() {
        let parts = work.join("image");
        let text = serde_json::to_vec_pretty(&image.manifest).expect("plain data");
        std::fs::create_dir(&parts).map_err(failed("making the image's directory"))?;
        for (name, content) in [("vmlinux", kernel), ("initrd.cpio", initrd), (MANIFEST, text)] {
            std::fs::write(parts.join(name), content).map_err(failed(format_args!(
                "writing {} ({} must have room)",
                parts.join(name).display(),
                dir.display()
            )))?;
        }
        // Another build may have been first, with the same result.
        let _ = std::fs::rename(&parts, &image.dir);
    }
    let pointer = work.join("current");
    std::fs::write(&pointer, &hash).map_err(failed("writing the image's name"))?;
    std::fs::rename(&pointer, dir.join("current")).map_err(failed("naming the image in use"))?;
    current(dir).ok_or_else(|| ImageError(format!("the image in {} is gone", dir.display())))
}

/// Fetches the package once: the newest one in the machine's package lists.
fn fetch(dir: &Path) -> Result<PathBuf, ImageError> {
    const REMEDY: &str = "run apt-get update, or fetch the package linux-image-amd64 depends on \
                          elsewhere and give it with --kernel-package";
    let listed = run(Command::new("apt-cache").args(["depends", KERNEL_PACKAGE]), REMEDY)?;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let name = listed
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| name.starts_with("linux-image-"))
        .ok_or_else(|| {
            ImageError(format!("apt-cache names no kernel for {KERNEL_PACKAGE}: {REMEDY}"))
        })?;
    let downloads = dir.join("packages");
    std::fs::create_dir_all(&downloads)
        .map_err(failed(format_args!("making {}", downloads.display())))?;
    let there = || {
        let entries = std::fs::read_dir(&downloads).ok()?;
        let mut names: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        names.retain(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
        });
        names.sort();
        names.pop()
    };
    if let Some(package) = there() {
        return Ok(package);
    }
    run(Command::new("apt-get").args(["-qq", "download", name]).current_dir(&downloads), REMEDY)?;
    there().ok_or_else(|| ImageError(format!("apt-get download {name} brought no file: {REMEDY}")))
}

fn run(command: &mut Command, remedy: &str) -> Result<Vec<u8>, ImageError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|err| ImageError(format!("cannot start {name}: {err}; {remedy}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(ImageError(format!("{name} failed ({}): {}; {remedy}", output.status, words.trim())))
}

fn static_busybox(given: Option<&Path>) -> Result<Vec<u8>, ImageError> {
    let usual = ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"].map(Path::new);
    let places = given.map_or_else(|| usual.to_vec(), |path| vec![path]);
    for place in &places {
        let Ok(program) = std::fs::read(place) else { continue };
        let head = &program[..program.len().min(4096)];
        if !head.windows(8).any(|bytes| bytes == b"/ld-linu" || bytes == b"/ld-musl") {
            return Ok(program);
        }
    }
    Err(ImageError(format!(
        "no static busybox at {}: apt-get install busybox-static",
        places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )))
}

fn only_entry(dir: &Path) -> Result<String, ImageError> {
    let wrong = || {
        ImageError(format!(
            "{} holds no kernel's modules: give a package such as the one that {KERNEL_PACKAGE} depends on",
            dir.display()
        ))
    };
    let mut entries = std::fs::read_dir(dir).map_err(|_| wrong())?;
    let entry = entries.next().and_then(Result::ok).ok_or_else(wrong)?;
    entry.file_name().into_string().map_err(|_| wrong())
}

/// Extracts the kernel from its self-unpacking file, with the offsets of the boot protocol. If the
/// compression is unknown, the file is used as it is and only starts more slowly.
fn unpack_kernel(packed: &[u8]) -> Result<Vec<u8>, ImageError> {
    let number = |at: usize| -> Option<usize> {
        let bytes = packed.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let payload = || {
        let sectors = match *packed.get(0x1f1)? {
            0 => 4,
            sectors => usize::from(sectors),
        };
        let begin = (sectors + 1) * 512 + number(0x248)?;
        // The last four bytes are the unpacked size.
        packed.get(begin..begin + number(0x24c)?.checked_sub(4)?)
    };
    match payload() {
        Some(payload) if payload.starts_with(b"\xfd7zXZ\0") => {
            let kernel = unxz(payload)?;
            if kernel.starts_with(b"\x7fELF") {
                return Ok(kernel);
            }
            Err(ImageError("what xz unpacked is no kernel".to_owned()))
        }
        _ => Ok(packed.to_vec()),
    }
}

fn unxz(packed: &[u8]) -> Result<Vec<u8>, ImageError> {
    let mut xz = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed("starting xz to unpack the kernel (apt-get install xz-utils)"))?;
    let mut input = xz.stdin.take().expect("it was asked for");
    let mut output = xz.stdout.take().expect("it was asked for");
    let mut kernel = Vec::new();
    std::thread::scope(|scope| {
        // A failure to write shows as a failure of xz.
        scope.spawn(move || input.write_all(packed));
        output.read_to_end(&mut kernel)
    })
    .map_err(failed("reading the unpacked kernel"))?;
    let status = xz.wait().map_err(failed("waiting for xz"))?;
    if status.success() {
        Ok(kernel)
    } else {
        Err(ImageError(format!("xz cannot unpack the kernel ({status})")))
    }
}

fn initial_files(busybox: &[u8], modules: &Path) -> Result<Vec<u8>, ImageError> {
    let mut archive = Cpio::default();
    for dir in ["bin", "dev", "proc", "sys", "root", "modules"] {
        archive.directory(dir);
    }
    archive.program("bin/busybox", busybox);
    archive.program("init", SCRIPT.as_bytes());
    let mut order = String::new();
    for (name, content) in in_order(modules)? {
        archive.file(&format!("modules/{name}.ko"), &content);
        writeln!(order, "{name}").expect("writing to a text cannot fail");
    }
    archive.file("modules/order", order.as_bytes());
    Ok(archive.finish())
}

/// The modules and those that they need, in loading order.
fn in_order(modules: &Path) -> Result<Vec<(String, Vec<u8>)>, ImageError> {
    let mut found = std::collections::BTreeMap::new();
    index(&modules.join("kernel"), &mut found)
        .map_err(failed(format_args!("listing {}", modules.display())))?;
    let mut done = Vec::new();
    let mut seen = BTreeSet::new();
    for name in MODULES {
        load(name, &found, &mut seen, &mut done)?;
    }
    Ok(done)
}

type Found = std::collections::BTreeMap<String, PathBuf>;

fn index(dir: &Path, found: &mut Found) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            index(&path, found)?;
        } else if let Some(file) = path.file_name().and_then(|name| name.to_str()) {
            for ending in [".ko", ".ko.xz"] {
                if let Some(name) = file.strip_suffix(ending) {
                    // The kernel treats dashes and underscores as equal.
                    found.insert(name.replace('-', "_"), path.clone());
                }
            }
        }
    }
    Ok(())
}

fn load(
    name: &str,
    found: &Found,
    seen: &mut BTreeSet<String>,
    done: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), ImageError> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    // A module without a file is built into the kernel; otherwise the guest reports that it is
    // missing.
    let Some(path) = found.get(name) else {
        return match name {
            "9p" => Err(ImageError(format!(
                "the kernel package has no module 9p: give one such as {KERNEL_PACKAGE} depends on"
            ))),
            _ => Ok(()),
        };
    };
    let mut content =
        std::fs::read(path).map_err(failed(format_args!("reading {}", path.display())))?;
    if content.starts_with(b"\xfd7zXZ\0") {
        content = unxz(&content)?;
    }
    for needed in needs(&content) {
        load(&needed, found, seen, done)?;
    }
    done.push((name.to_owned(), content));
    Ok(())
}

/// The modules that a module needs: `depends=a,b` in its list of zero-terminated texts.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let rest = &module[at + KEY.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// Copies the daemon's own program to where the guest can start it, under a name made from its
/// content, and returns its path.
pub(crate) fn place_agent(dir: &Path, program: &Path) -> io::Result<PathBuf> {
    let content = std::fs::read(program)?;
    let hash = blake3::hash(&content).to_hex()[..32].to_owned();
    let home = dir.join("agents").join(hash);
    let place = home.join("overmind");
    if !place.exists() {
        std::fs::create_dir_all(&home)?;
        let half = home.join(format!("overmind.{}", std::process::id()));
        std::fs::write(&half, &content)?;
        std::fs::set_permissions(&half, std::fs::Permissions::from_mode(0o755))?;
        std::fs::rename(&half, &place)?;
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_loaded_after_its_dependencies() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("kernel/fs");
        std::fs::create_dir_all(&kernel).unwrap();
        let module = |name: &str, needs: &str| {
            let content = format!("ELF\0name={name}\0depends={needs}\0more=x\0");
            std::fs::write(kernel.join(format!("{name}.ko")), content).unwrap();
        };
        module("9p", "9pnet,netfs");
        module("9pnet", "");
        module("netfs", "");
        module("9pnet_virtio", "9pnet,virtio");
        module("virtio", "virtio_ring");
        module("virtio_ring", "");
        let names: Vec<String> =
            in_order(dir.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["9pnet", "virtio_ring", "virtio", "9pnet_virtio", "netfs", "9p"]);

        std::fs::remove_file(kernel.join("9p.ko")).unwrap();
        let err = in_order(dir.path()).unwrap_err().to_string();
        assert!(err.contains("no module 9p") && err.contains(KERNEL_PACKAGE), "{err}");
    }

    #[test]
    fn missing_programs_are_named_with_their_package() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources { busybox: Some("/bin/sh".into()), ..Sources::default() };
        let err = build(dir.path(), &sources).unwrap_err().to_string();
        assert_eq!(err, "no static busybox at /bin/sh: apt-get install busybox-static");
        assert_eq!(current(dir.path()), None);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing half-made is left");
    }

    #[test]
    fn the_script_starts_the_guest_by_its_name() {
        assert!(SCRIPT.contains(&format!(" {} <&3", crate::microvm::guest::ARGUMENT)));
    }

    #[test]
    fn a_kernel_with_unknown_compression_is_used_unchanged() {
        for unknown in [vec![0; 100], vec![7; 4096]] {
            assert_eq!(unpack_kernel(&unknown).unwrap(), unknown);
        }
    }
}
