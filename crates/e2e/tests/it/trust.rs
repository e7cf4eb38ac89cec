//! A repository from somebody else: nothing that its file orders runs before the person has read and
//! confirmed it, and no work that runs by itself later is merged unseen.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::path::PathBuf;

use crate::home::{Done, Home, until};
use crate::tty::Person;
use crate::worktrees::House;

/// A house whose project has a `setup` that writes `marker`; nothing in it is confirmed.
fn cloned() -> (House, PathBuf) {
    let house = House::unconfirmed(Some("version: 1\n"));
    let marker = house.home.0.path().join("marker");
    orders(&house, &format!("touch {}", marker.display()));
    (house, marker)
}

fn orders(house: &House, setup: &str) {
    let text = format!("version: 1\nsetup: {setup}\n");
    std::fs::write(house.project.join(".overmind.yml"), text).unwrap();
    house.git(&["commit", "-qam", "the file"]);
}

#[test]
fn commands_of_a_cloned_repository_run_only_after_confirmation() {
    let (house, marker) = cloned();
    let order = format!("setup: touch {}", marker.display());
    let refused = house.run(&["run", "--name", "first", "--wait", "true"]);
    assert_eq!(refused.code, 6, "{refused:?}");
    assert!(refused.err.contains(&order) && refused.err.contains("overmind trust"), "{refused:?}");
    assert!(!marker.exists());
    assert_eq!(house.run(&["ps", "--all", "-o", "json"]).ok().out.trim(), "[]");
    // It is shown, and a script is not asked.
    let shown = house.run(&["trust", "--show"]);
    assert_eq!(shown.code, 1);
    assert!(shown.err.contains(&order), "{shown:?}");
    let asked = house.run(&["trust"]);
    assert_eq!(asked.code, 2, "{asked:?}");
    let dir = house.project.canonicalize().unwrap();
    let typed = format!("type `overmind trust --yes {}`", dir.display());
    assert!(asked.err.contains(&typed) && asked.err.lines().count() == 1, "{asked:?}");
    // With `--here`, none of its commands runs.
    house.run(&["run", "--wait", "--here", "true"]).ok();
    assert!(!marker.exists());
    house.run(&["trust", "--yes"]).ok();
    house.run(&["trust", "--show"]).ok();
    house.run(&["run", "--name", "second", "--wait", "true"]).ok();
    assert!(marker.exists());
    // A changed content is asked about again; so is a withdrawn one.
    std::fs::remove_file(&marker).unwrap();
    orders(&house, &format!("touch {}.2", marker.display()));
    let changed = house.run(&["run", "--wait", "true"]);
    assert!(changed.code == 6 && changed.err.contains("changed since"), "{changed:?}");
    house.run(&["run", "--name", "third", "--wait", "--trust-project", "true"]).ok();
    assert!(marker.with_extension("2").exists());
    house.run(&["trust", "--revoke"]).ok();
    assert_eq!(house.run(&["run", "--wait", "true"]).code, 6);
    // A file without commands asks nothing.
    std::fs::write(house.project.join(".overmind.yml"), "version: 1\nports: [A]\n").unwrap();
    house.run(&["run", "--wait", "true"]).ok();
}

#[test]
fn a_person_at_a_terminal_is_asked_with_the_exact_text() {
    let (house, marker) = cloned();
    let order = format!("setup: touch {}", marker.display());
    let at = |args: &[&str]| {
        let mut command = house.home.0.command(args);
        command.current_dir(&house.project);
        Person::with(command, 200, 30)
    };
    let mut person = at(&["run", "--name", "no", "true"]);
    person.sees(&format!("project {}", house.project.canonicalize().unwrap().display()));
    person.sees(&order);
    person.sees("with the sandbox and the network of each run");
    person
        .sees("run this for runs of the project? [y]es, once for this content, [n]o, [s]how all:");
    person.types("n\n");
    person.sees("overmind trust");
    assert!(!marker.exists());
    let mut person = at(&["run", "--name", "yes", "true"]);
    person.sees("run this for runs of the project?");
    person.types("y\n");
    until("its setup ran", || marker.exists().then_some(()));
    house.run(&["wait", "yes"]).ok();
    // Asked once.
    house.run(&["run", "--name", "again", "--wait", "true"]).ok();
}

#[test]
fn a_long_question_shows_its_beginning_and_all_of_it_on_request() {
    let house = House::unconfirmed(Some("version: 1\n"));
    let steps: String = (1..=40).map(|n| format!("  - \"true step-{n}\"\n")).collect();
    let text = format!("version: 1\nsetup:\n{steps}");
    std::fs::write(house.project.join(".overmind.yml"), text).unwrap();
    house.git(&["commit", "-qam", "the file"]);
    // Nobody is asked without seeing the subject.
    let mut command = house.home.0.command(&["--quiet", "trust"]);
    command.current_dir(&house.project);
    let mut person = Person::with(command, 200, 60);
    person.sees("step-15");
    person.sees("… 25 more lines: `overmind trust --show ");
    person.sees("[s]how all:");
    assert!(!person.screen().contains("step-16"), "{}", person.screen());
    person.types("s\n");
    person.sees("step-40");
    person.sees("[s]how all:");
    person.types("y\n");
    until("it is confirmed", || (house.run(&["trust", "--show"]).code == 0).then_some(()));
}

#[test]
fn objects_of_another_repository_are_named_in_the_question() {
    let (house, _) = cloned();
    let other = house.home.0.path().join("other.git");
    house.git(&["clone", "-q", "--bare", ".", other.to_str().unwrap()]);
    let objects = other.canonicalize().unwrap().join("objects");
    let list = house.project.join(".git/objects/info/alternates");
    std::fs::write(list, format!("{}\n", objects.display())).unwrap();
    let shown = house.run(&["trust", "--show"]);
    let said = format!("its runs can also read the git objects in {}", objects.display());
    assert!(shown.err.contains(&said), "{shown:?}");
}

#[test]
fn keys_below_admin_cannot_confirm_commands() {
    let (house, marker) = cloned();
    let home: &Home = &house.home.0;
    for more in [["--role", "operator"], ["--scope", "runs"]] {
        let args = [&["key", "create", more[1], "-o", "name"], more.as_slice()].concat();
        let secret = home.run(&args).ok().line().to_owned();
        let by = |args: &[&str]| -> Done {
            let mut command = home.command(args);
            command.current_dir(&house.project).env("OVERMIND_TOKEN", &secret);
            crate::home::done(command.output().unwrap())
        };
        assert_eq!(by(&["trust", "--yes"]).code, 6, "{more:?}");
        assert_eq!(by(&["trust", "--show"]).code, 6, "{more:?}");
        assert_ne!(by(&["run", "--trust-project", "--wait", "true"]).code, 0, "{more:?}");
    }
    assert!(!marker.exists());
}

#[test]
fn autorun_files_are_merged_only_after_they_were_shown() {
    let house = House::new(None);
    let line =
        "mkdir -p .vscode; echo touch /tmp/x > .envrc; echo {} > .vscode/tasks.json; echo b > b";
    house.run(&["run", "--name", "sly", "--wait", line]).ok();
    let refused = house.run(&["done", "sly", "--merge"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    for named in [".envrc", ".vscode/tasks.json"] {
        assert!(refused.err.contains(named), "{refused:?}");
        assert!(!house.project.join(named).exists());
    }
    // Nor by callers of the API who did not read it.
    let mut person = {
        let mut command = house.home.0.command(&["done", "sly", "--merge"]);
        command.current_dir(&house.project);
        Person::with(command, 120, 30)
    };
    person.sees("merge them?");
    person.types("n\n");
    person.sees("nothing was done");
    assert!(!house.project.join("b").exists());
    house.run(&["done", "sly", "--merge", "--yes"]).ok();
    assert!(house.project.join(".envrc").exists() && house.project.join("b").exists());
    house.run(&["run", "--name", "plain", "--wait", "echo c > c"]).ok();
    house.run(&["done", "plain", "--merge"]).ok();
}
