//! Projects of callers who may not use all of the host: foreign targets are refused, also while
//! they are replaced.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use overmind_core::room::RoomReach;
use overmind_workspace::tree::{Prepared, Request, Taken, TreeError};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::tree_repo::{World, commit, git, read, write};

/// A project directory of a caller's beside a repository that is not theirs.
fn theirs(world: &World) -> PathBuf {
    let project = world.dir.path().join("allowed/project");
    std::fs::create_dir_all(&project).unwrap();
    project
}

fn prepare(world: &World, at: &Path, reach: RoomReach) -> Result<Prepared, TreeError> {
    let request = Request { reach, ..Request::new(at, "run") };
    world.trees.prepare(&request)
}

fn within(roots: &[&Path], above: bool) -> RoomReach {
    RoomReach::Within { roots: roots.iter().map(|root| (*root).to_owned()).collect(), above }
}

#[test]
fn a_project_that_leads_to_a_foreign_repository_is_refused() {
    for how in ["file", "link", "shared directory", "objects", "objects of objects"] {
        let world = World::new();
        let other = world.repo.join(".git");
        let project = theirs(&world);
        let root = project.parent().unwrap();
        if how != "file" && how != "link" {
            git(&project, &["init", "-q", "-b", "main"]);
            write(&project, "own.txt", "own");
            commit(&project, "own");
        }
        let borrow = |objects: &Path, from: &Path| {
            write(objects, "info/alternates", &format!("{}/objects\n", from.display()));
        };
        match how {
            "file" => write(&project, ".git", &format!("gitdir: {}\n", other.display())),
            "link" => symlink(&other, project.join(".git")).unwrap(),
            "shared directory" => {
                write(&project, ".git/commondir", &format!("{}\n", other.display()));
            }
            "objects" => borrow(&project.join(".git/objects"), &other),
            _ => {
                let between = root.join("between.git");
                std::fs::create_dir_all(between.join("objects/pack")).unwrap();
                write(&between, "HEAD", "ref: refs/heads/main\n");
                borrow(&project.join(".git/objects"), &between);
                borrow(&between.join("objects"), &other);
            }
        }
        let found = prepare(&world, &project, within(&[root], true));
        let Err(TreeError::Beyond { path, .. }) = &found else { panic!("{how}: {found:?}") };
        assert!(path.starts_with(&world.repo), "{how}: {}", path.display());
        // Callers who may use the other one as well may redirect to it.
        let both = within(&[root, &world.repo], true);
        assert!(prepare(&world, &project, both).is_ok(), "{how}");
        // An admin may use any repository, but a run may have written the redirect to this one.
        let found = world.trees.prepare(&Request::new(&project, "run"));
        match how {
            "objects" | "objects of objects" => assert!(found.is_ok(), "{how}: {found:?}"),
            _ => assert!(matches!(found, Err(TreeError::NotOurs { .. })), "{how}: {found:?}"),
        }
    }
}

#[test]
fn an_admin_uses_a_foreign_repository_only_if_it_names_the_directory() {
    let world = World::new();
    let at = |name: &str| world.dir.path().join(name);
    let found = |dir: &Path| world.trees.prepare(&Request::new(dir, "run"));
    let refused = |dir: &Path, way: &str| match found(dir) {
        Err(err @ TreeError::NotOurs { .. }) => assert!(err.to_string().contains(way), "{err}"),
        other => panic!("{other:?}"),
    };
    let repair = |dir: &Path, way: &[&str]| git(dir, way);
    // A linked worktree, before and after it is moved.
    let linked = at("linked one");
    git(&world.repo, &["worktree", "add", "-q", "-b", "linked", linked.to_str().unwrap()]);
    assert_eq!(read(&found(&linked).unwrap().path.join("a.txt")), "one\n");
    let moved = at("it's moved");
    std::fs::rename(&linked, &moved).unwrap();
    refused(&moved, "it'\\''s moved' worktree repair");
    repair(&moved, &["worktree", "repair"]);
    assert!(found(&moved).is_ok());
    // A copy of the worktree is refused, because its repository does not name the copy.
    std::fs::create_dir(at("copy")).unwrap();
    std::fs::copy(moved.join(".git"), at("copy/.git")).unwrap();
    refused(&at("copy"), "worktree repair");
    // A git directory at a separate place.
    let apart = at("apart");
    std::fs::create_dir(&apart).unwrap();
    git(&apart, &["init", "-q", "-b", "main", "--separate-git-dir", at("git").to_str().unwrap()]);
    write(&apart, "apart.txt", "apart");
    commit(&apart, "apart");
    refused(&apart, "core.worktree");
    // A person's changes at its top are written there meanwhile.
    let sub = apart.join("sub");
    std::fs::create_dir(&sub).unwrap();
    assert_eq!(overmind_workspace::rooms::project_top(&sub), Some(apart.clone()));
    repair(&apart, &["config", "core.worktree", apart.to_str().unwrap()]);
    assert_eq!(read(&found(&apart).unwrap().path.join("apart.txt")), "apart");
    // A submodule names its directory by itself.
    let file = ["-c", "protocol.file.allow=always", "submodule", "add", "-q"];
    git(&world.repo, &[&file[..], &[apart.to_str().unwrap(), "lib"]].concat());
    assert_eq!(read(&found(&world.repo.join("lib")).unwrap().path.join("apart.txt")), "apart");
}

/// Git follows lists of any length.
#[test]
fn too_many_or_too_long_alternates_are_refused() {
    for how in ["padded", "one of many"] {
        let world = World::new();
        let project = theirs(&world);
        let root = project.parent().unwrap();
        git(&project, &["init", "-q", "-b", "main"]);
        write(&project, "own.txt", "own");
        commit(&project, "own");
        let victim = git(&world.repo, &["rev-parse", "HEAD"]);
        let objects = project.join(".git/objects");
        let way = "../../../../repo/.git/objects";
        let own: Vec<_> = (0..80).map(|number| root.join(format!("store{number}"))).collect();
        let list = match how {
            "padded" => format!("{}\n{way}\n", "# nothing\n".repeat(10_000)),
            _ => {
                own.iter().for_each(|store| std::fs::create_dir_all(store).unwrap());
                let own = own.iter().map(|store| format!("{}\n", store.display()));
                format!("{}{way}\n", own.collect::<String>())
            }
        };
        write(&objects, "info/alternates", &list);
        // The attack works: git has the commit of the other repository.
        git(&project, &["cat-file", "-e", &format!("{victim}^{{tree}}")]);
        git(&project, &["update-ref", "refs/heads/main", &victim]);
        let found = prepare(&world, &project, within(&[root], true));
        let refused = matches!(found, Err(TreeError::Beyond { .. } | TreeError::Unsound { .. }));
        assert!(refused, "{how}: {found:?}");
    }
}

#[test]
fn a_submodule_with_foreign_objects_is_treated_as_missing() {
    let world = World::new();
    let project = theirs(&world);
    let library = world.dir.path().join("allowed/library");
    for (at, file) in [(&library, "lib.txt"), (&project, "main.txt")] {
        std::fs::create_dir_all(at).unwrap();
        git(at, &["init", "-q", "-b", "main"]);
        write(at, file, file);
        commit(at, file);
    }
    let add = ["-c", "protocol.file.allow=always", "submodule", "add", "-q", "../library", "lib"];
    git(&project, &add);
    commit(&project, "with a library");
    let root = project.parent().unwrap();
    let made = prepare(&world, &project, within(&[root], true)).unwrap();
    assert_eq!(read(&made.path.join("lib/lib.txt")), "lib.txt");
    let list = project.join(".git/modules/lib/objects/info/alternates");
    std::fs::write(list, format!("{}\n", world.repo.join(".git/objects").display())).unwrap();
    let made = prepare(&world, &project, within(&[root], true)).unwrap();
    assert!(!made.path.join("lib/lib.txt").exists(), "{:?}", made.warnings);
}

#[test]
fn a_project_may_be_part_of_a_repository_if_allowed() {
    let world = World::new();
    let part = world.repo.join("src");
    let made = prepare(&world, &part, within(&[&part], true)).unwrap();
    assert_eq!((read(&made.path.join("a.txt")), made.taken), ("one\n".into(), Taken::CheckedOut));
    // A directory of runs is not part of the repository that contains the data directory.
    let made = prepare(&world, &part, within(&[&part], false)).unwrap();
    assert_eq!(made.taken, Taken::Copied);
    assert!(!made.path.join("a.txt").exists() && made.path.join("lib.rs").exists());
}

#[test]
fn files_written_by_a_run_are_copied_and_links_not_followed() {
    let world = World::new();
    let own = theirs(&world);
    write(&own, "own.txt", "own");
    write(&own, ".git", &format!("gitdir: {}/.git\n", world.repo.display()));
    let made = prepare(&world, &own, RoomReach::Nothing).unwrap();
    assert_eq!((read(&made.path.join("own.txt")), made.taken), ("own".into(), Taken::Copied));
    assert!(!made.path.join("a.txt").exists());
    assert!(made.borrowed.is_empty(), "{:?}", made.borrowed);
}

#[test]
fn a_project_replaced_by_a_link_during_creation_reveals_nothing() {
    let world = World::new();
    write(&world.repo, "a.txt", "uncommitted, and not theirs\n");
    let before = git(&world.repo, &["for-each-ref"]);
    let project = theirs(&world);
    git(&project, &["init", "-q", "-b", "main"]);
    write(&project, "own.txt", "own");
    commit(&project, "own");
    let root = project.parent().unwrap();
    let link = root.join("link");
    symlink(&world.repo, &link).unwrap();
    let stop = AtomicBool::new(false);
    let (mut made, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &project, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for number in 0..80 {
            // A copy and a worktree: each has its own code path.
            let reach = match number % 2 {
                0 => within(&[root], true),
                _ => RoomReach::Nothing,
            };
            let mut request = Request { reach, ..Request::new(&project, "run") };
            request.options.carry_changes = true;
            match world.trees.prepare(&request) {
                Ok(prepared) => {
                    made += 1;
                    if prepared.path.join("a.txt").exists() {
                        stop.store(true, Ordering::Relaxed);
                        panic!("{prepared:?}");
                    }
                }
                Err(_) => refused += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(made + refused, 80);
    assert!(refused > 0, "it was never exchanged while it was looked at");
    assert_eq!(git(&world.repo, &["for-each-ref"]), before);
}
