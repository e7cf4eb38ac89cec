//! Links, pipes and similar objects in place of a file that the server reads: refused at once by
//! their type, without content of other files in an environment or in an error.

use std::collections::HashSet;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use overmind_core::off_limits::{FileId, OffLimits, Own};
use overmind_core::room::{RoomEnd, RoomMade, Rooms as _};
use overmind_workspace::rooms::LocalRooms;
use rustix::fs::{CWD, FileType, Mode};

use crate::rooms::Yard;
use crate::tree_repo::{commit, git, write};

const SECRET: &str = "wholly-secret-words";

/// A server whose files are in one directory, with a key in it.
#[derive(Debug)]
struct Server(PathBuf);

impl Own for Server {
    fn refusal(&self, path: &Path) -> Option<String> {
        self.0.starts_with(path).then(|| "holds the server's own".to_owned())
    }

    fn all(&self) -> HashSet<FileId> {
        let found = [self.0.clone(), self.0.join("key")].map(|path| path.metadata().unwrap());
        found.map(|found| FileId { device: found.dev(), inode: found.ino() }).into()
    }

    fn withheld(&self, _: &Path) -> Result<Vec<PathBuf>, String> {
        Ok(Vec::new())
    }
}

fn server(yard: &Yard) -> (LocalRooms, PathBuf) {
    let own = yard.root.join("own");
    if !own.exists() {
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("key"), SECRET).unwrap();
    }
    let off_limits = OffLimits::new(Arc::new(Server(own.clone())));
    (yard.rooms_with(|options| options.off_limits = off_limits), own)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Absolute,
    Relative,
    ToDirectory,
    ToDevice,
    HardLink,
    Pipe,
    Socket,
    Device,
    Large,
    Directory,
}

const ALL: [Shape; 10] = [
    Shape::Absolute,
    Shape::Relative,
    Shape::ToDirectory,
    Shape::ToDevice,
    Shape::HardLink,
    Shape::Pipe,
    Shape::Socket,
    Shape::Device,
    Shape::Large,
    Shape::Directory,
];

impl Shape {
    /// Whether it could be put there.
    fn put(self, at: &Path, own: &Path) -> bool {
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::remove_file(at).ok();
        let node = |kind, device| rustix::fs::mknodat(CWD, at, kind, Mode::RUSR, device);
        match self {
            Self::Absolute => symlink(own.join("key"), at).unwrap(),
            Self::Relative => {
                let depth = at.parent().unwrap().components().count() - 1;
                let up: PathBuf = std::iter::repeat_n("..", depth).collect();
                symlink(up.join(own.strip_prefix("/").unwrap()).join("key"), at).unwrap();
                assert_eq!(std::fs::read_to_string(at).unwrap(), SECRET);
            }
            Self::ToDirectory => symlink(own, at).unwrap(),
            Self::ToDevice => symlink("/dev/zero", at).unwrap(),
            Self::HardLink => std::fs::hard_link(own.join("key"), at).unwrap(),
            Self::Pipe => node(FileType::Fifo, 0).unwrap(),
            Self::Socket => drop(UnixListener::bind(at).unwrap()),
            // `/dev/zero`; only root can create one.
            Self::Device => {
                return node(FileType::CharacterDevice, rustix::fs::makedev(1, 5)).is_ok();
            }
            Self::Large => std::fs::File::create(at).unwrap().set_len(10 << 30).unwrap(),
            Self::Directory => std::fs::create_dir(at).unwrap(),
        }
        true
    }
}

/// The content of an environment; links are listed with their targets.
fn holds(dir: &Path, text: &str) -> bool {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut entries = entries.filter(|path| !path.is_symlink());
    entries.any(|path| match path.is_dir() {
        true => holds(&path, text),
        false => String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains(text),
    })
}

async fn tried(yard: &Yard, number: u128) -> Result<RoomMade, String> {
    let (rooms, _) = server(yard);
    let order = yard.order(number, "tries");
    let made = rooms.prepare(order.clone(), yard.sink()).await.map_err(|err| err.to_string());
    let said = format!("{made:?}");
    assert!(!said.contains(SECRET) && !said.contains("wholly"), "{said}");
    if let Ok(made) = &made {
        assert!(!holds(&made.directory, SECRET), "{said}");
        yard.close(&rooms, &order, RoomEnd::Park).await;
    }
    made
}

const PROJECT: &str = "worktree: {include_file: more/list}\nservices:\n  db: {strategy: database, engine: \
                       sqlite, source: dev.sqlite3, file: own.sqlite3}\n";

/// Puts every shape in the place of a file.
async fn every_shape(source: &str) {
    for shape in ALL {
        let yard = Yard::with_git();
        yard.file(PROJECT);
        let (_, own) = server(&yard);
        if !shape.put(&yard.repo.join(source), &own) {
            continue;
        }
        let err = tried(&yard, 1).await.expect_err(&format!("{source} as {shape:?}"));
        let name = Path::new(source).file_name().unwrap().to_str().unwrap();
        assert!(err.contains(name) || err.contains("repository"), "{source} as {shape:?}: {err}");
    }
}

macro_rules! whatever_stands_for {
    ($($test:ident: $source:literal),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            every_shape($source).await;
        }
    )*};
}

// Files that are read whole, by the server or by git.
whatever_stands_for! {
    the_projects_file_is_refused_by_what_it_is: ".overmind.yml",
    a_list_of_what_to_include_is_refused_by_what_it_is: "more/list",
    a_database_is_refused_by_what_it_is: "dev.sqlite3",
    a_head_is_refused_by_what_it_is: ".git/HEAD",
    settings_are_refused_by_what_they_are: ".git/config",
    an_index_is_refused_by_what_it_is: ".git/index",
    packed_references_are_refused_by_what_they_are: ".git/packed-refs",
    a_list_of_shallow_commits_is_refused_by_what_it_is: ".git/shallow",
    the_way_to_the_common_directory_is_refused_by_what_it_is: ".git/commondir",
    a_list_of_what_to_ignore_is_refused_by_what_it_is: ".git/info/exclude",
    a_list_of_alternates_is_refused_by_what_it_is: ".git/objects/info/alternates",
    a_log_of_the_head_is_refused_by_what_it_is: ".git/logs/HEAD",
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_replaced_while_it_is_opened_shows_nothing_else() {
    let yard = Yard::with_git();
    yard.file("");
    let (_, own) = server(&yard);
    let (file, over) = (yard.repo.join(".overmind.yml"), Arc::new(AtomicBool::new(false)));
    let swaps = std::thread::spawn({
        let (over, text) = (Arc::clone(&over), std::fs::read(&file).unwrap());
        move || {
            let (evil, good) = (file.with_extension("evil"), file.with_extension("good"));
            while !over.load(Ordering::Relaxed) {
                symlink(own.join("key"), &evil).unwrap();
                std::fs::rename(&evil, &file).unwrap();
                std::fs::write(&good, &text).unwrap();
                std::fs::rename(&good, &file).unwrap();
            }
        }
    });
    for number in 1..20 {
        tried(&yard, number).await.ok();
    }
    over.store(true, Ordering::Relaxed);
    swaps.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_and_references_are_read_only_inside_their_repository() {
    for (number, name) in (1..).zip(["objects", "refs", "logs", "info"]) {
        let yard = Yard::with_git();
        yard.file("");
        let (_, own) = server(&yard);
        let at = yard.repo.join(".git").join(name);
        std::fs::rename(&at, yard.root.join("moved")).unwrap();
        symlink(yard.root.join("moved"), &at).unwrap();
        let err = tried(&yard, number).await.expect_err(name);
        assert!(err.contains(name) && err.contains("link"), "{err}");
        std::fs::remove_file(&at).unwrap();
        symlink(&own, &at).unwrap();
        tried(&yard, number + 100).await.expect_err(name);
    }
    // Or contain files that git never stores there.
    let yard = Yard::with_git();
    yard.file("");
    let (_, own) = server(&yard);
    let objects = yard.repo.join(".git/objects");
    for (number, name) in (1..).zip(["agent.sock", "pack/agent.sock", "ssh"]) {
        let at = objects.join(name);
        match name {
            "ssh" => std::fs::create_dir(&at).unwrap(),
            _ => Shape::Socket.put(&at, &own).then_some(()).unwrap(),
        }
        let err = tried(&yard, number).await.unwrap_err();
        assert!(err.contains("objects") && err.contains(at.file_name().unwrap().to_str().unwrap()));
        if at.is_dir() { std::fs::remove_dir(at) } else { std::fs::remove_file(at) }.unwrap();
    }
    tried(&yard, 9).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn server_files_are_never_copied_into_a_worktree() {
    let yard = Yard::with_git();
    // Its data directory is in the repository, below another directory than the working directory.
    let own = yard.repo.join("deep/own");
    write(&yard.repo, ".gitignore", "big\nignored\n");
    yard.file("worktree: {include: [key, ignored], directories: {big: copy}}\n");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("key"), SECRET).unwrap();
    std::fs::write(own.join("more"), SECRET).unwrap();
    for name in ["big", "ignored", "left"] {
        std::fs::create_dir(yard.repo.join(name)).unwrap();
        std::fs::hard_link(own.join("key"), yard.repo.join(name).join("innocent")).unwrap();
        write(&yard.repo, &format!("{name}/honest"), "fine\n");
    }
    let off_limits = OffLimits::new(Arc::new(Server(own.clone())));
    let rooms = yard.rooms_with(|options| options.off_limits = off_limits);
    let mut order = yard.order(1, "carries");
    order.wish.carry_changes = true;
    order.project = yard.repo.join("app");
    let err = rooms.prepare(order.clone(), yard.sink()).await.unwrap_err().to_string();
    assert!(err.contains("begins at") && err.contains("the server's own"), "{err}");
    drop(rooms);
    // Even if all of it may be shown, the server's own files are left out.
    let own_files = Files(own.clone());
    let rooms = yard.rooms_with(|options| options.off_limits = OffLimits::new(Arc::new(own_files)));
    let order = overmind_core::room::RoomOrder {
        session: overmind_core::ids::SessionId::from_u128(2),
        ..order
    };
    let made = rooms.prepare(order.clone(), yard.sink()).await.unwrap();
    let top = made.worktree.clone().unwrap();
    assert!(!holds(&top, SECRET), "{made:?}");
    for name in ["big", "ignored", "left"] {
        assert!(top.join(name).join("honest").is_file(), "{name}: {made:?}");
    }
    yard.close(&rooms, &order, RoomEnd::Discard).await;
}

/// Knows the server's files, and refuses no directory.
#[derive(Debug)]
struct Files(PathBuf);

impl Own for Files {
    fn refusal(&self, _: &Path) -> Option<String> {
        None
    }

    fn all(&self) -> HashSet<FileId> {
        Server(self.0.clone()).all()
    }

    fn withheld(&self, _: &Path) -> Result<Vec<PathBuf>, String> {
        Ok(Vec::new())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_link_out_of_the_tree_are_refused_and_inner_links_followed() {
    let yard = Yard::with_git();
    let (_, own) = server(&yard);
    let template = "services:\n  db:\n    strategy: database\n    engine: sqlite\n    file: own.sqlite3\n    \
                    template: {sql: [t.sql]}\n";
    symlink(own.join("key"), yard.repo.join("t.sql")).unwrap();
    yard.file(template);
    let err = tried(&yard, 1).await.unwrap_err();
    assert!(err.contains("t.sql"), "{err}");
    std::fs::remove_file(yard.repo.join("t.sql")).unwrap();
    write(&yard.repo, "db/real.sql", "CREATE TABLE t (n);\n");
    symlink("db/real.sql", yard.repo.join("t.sql")).unwrap();
    commit(&yard.repo, "a link within");
    tried(&yard, 2).await.unwrap();
    // The project's file itself may be a link, too; but not to files of git.
    std::fs::rename(yard.repo.join(".overmind.yml"), yard.repo.join("db/o.yml")).unwrap();
    symlink("db/o.yml", yard.repo.join(".overmind.yml")).unwrap();
    tried(&yard, 3).await.unwrap();
    std::fs::remove_file(yard.repo.join(".overmind.yml")).unwrap();
    symlink(".git/config", yard.repo.join(".overmind.yml")).unwrap();
    tried(&yard, 4).await.unwrap_err();
    assert_eq!(git(&yard.repo, &["rev-parse", "--abbrev-ref", "HEAD"]).trim(), "main");
}

#[test]
fn a_socket_file_of_the_test_is_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("s");
    assert!(Shape::Socket.put(&at, dir.path()));
    assert!(at.symlink_metadata().unwrap().file_type().is_socket());
}
