//! The server's own files: no agent and no command reads or writes them, under any name.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::home::{Done, Home};

/// A server that was started in the home of its user, which contains its data directory.
struct AtHome(Home);

impl AtHome {
    fn up() -> Self {
        let mut home = Home::new();
        let mut command = home.command(&["up", "-o", "json"]);
        command.current_dir(home.path());
        home.start_by(command, &["--listen", "none"], &[]);
        std::fs::write(
            home.data().join("policy.toml"),
            "version = 1 # the policy of this server\n",
        )
        .unwrap();
        home.agent("probe", &[]);
        let mut child = home.command(&["vault", "set", "some_key", "--from-stdin"]);
        let file = home.path().join("value");
        std::fs::write(&file, "a-value-of-the-vault").unwrap();
        child.stdin(std::fs::File::open(&file).unwrap());
        assert!(child.status().unwrap().success());
        Self(home)
    }

    /// Each file in the data directory, with its content.
    fn own(&self) -> BTreeMap<String, Vec<u8>> {
        let names = ["admin.token", "token.key", "vault.key", "policy.toml"];
        let read = |name: &str| std::fs::read(self.0.data().join(name));
        names.iter().map(|name| ((*name).to_owned(), read(name).expect(name))).collect()
    }

    /// Runs the agent to its end, and returns its log.
    fn task(&self, task: &str, more: &[&str]) -> (Done, String) {
        let mut args = vec!["run", "probe", task, "--wait"];
        args.extend(more);
        let done = self.0.run(&args);
        let id = self.0.run(&["ps", "--all", "-o", "name", "--limit", "1"]).ok().out;
        let log = id.lines().next().map(|id| self.0.run(&["events", id, "-o", "json"]).out);
        (done, log.unwrap_or_default())
    }

    /// Tries to read and to write with a tool, and to read in a sandbox; all attempts must fail.
    fn tries(&self, spelled: &str, more: &[&str]) {
        let before = self.own();
        for task in [
            format!("read: {spelled}"),
            format!("write: {spelled}: changed"),
            format!("shell: cat '{spelled}'; cat '{spelled}/'*; cp '{spelled}' taken; true"),
        ] {
            let (done, log) = self.task(&task, more);
            let said = [done.out, done.err, log].concat();
            for (name, text) in &before {
                let text = String::from_utf8_lossy(text);
                let shows = text.lines().any(|line| line.len() > 20 && said.contains(line));
                assert!(!shows, "{task} showed {name}: {said}");
            }
            assert!(!self.0.work().join("taken").exists(), "{task}");
        }
        assert_eq!(self.own(), before, "{spelled} changed something");
    }
}

#[test]
fn a_server_in_the_home_directory_hides_its_keys_from_every_agent() {
    let home = AtHome::up();
    let data = home.0.data();
    // Without a project, an agent finds an empty directory.
    let (done, _) = home.task("shell: ls -A; pwd", &[]);
    assert_eq!(done.code, 0, "{done:?}");
    for name in ["admin.token", "policy.toml", "vault.key"] {
        home.tries(&format!("data/{name}"), &[]);
        home.tries(data.join(name).to_str().unwrap(), &[]);
    }
    // In its own project, under every other name.
    let work = home.0.work();
    let project = ["--project", work.to_str().unwrap()];
    std::os::unix::fs::symlink(data.join("admin.token"), work.join("absolute")).unwrap();
    std::os::unix::fs::symlink("../data/admin.token", work.join("relative")).unwrap();
    std::os::unix::fs::symlink("../data", work.join("directory")).unwrap();
    for spelled in ["absolute", "relative", "directory", "directory/token.key", "../data/vault.key"]
    {
        home.tries(spelled, &project);
    }
    home.tries("/workspace/..//DATA/admin.token", &project);
    std::fs::hard_link(data.join("admin.token"), work.join("notes.txt")).unwrap();
    home.tries("notes.txt", &project);
    home.tries("./notes.txt", &project);
}

#[test]
fn home_data_and_system_directories_cannot_be_workspaces_or_projects() {
    let home = AtHome::up();
    let data = home.0.data();
    std::os::unix::fs::symlink(&data, home.0.work().join("link")).unwrap();
    let paths: [PathBuf; 6] = [
        home.0.path().to_owned(),
        data.clone(),
        data.join("processes"),
        home.0.work().join("link"),
        "/".into(),
        "/etc".into(),
    ];
    for path in paths {
        let path = path.to_str().unwrap();
        let of_agent = home.0.run(&["run", "probe", "shell: ls", "--project", path]);
        let of_command = home.0.run(&["run", "--project", path, "--sandbox", "namespace", "ls"]);
        let here = home.0.run(&["run", "--here", "--project", path, "ls"]);
        for done in [of_agent, of_command, here] {
            assert_ne!(done.code, 0, "{path}: {done:?}");
            assert!(done.err.contains("use the directory of a project"), "{path}: {}", done.err);
        }
    }
}

#[test]
fn a_server_does_not_start_on_a_workspace_with_its_keys() {
    let home = Home::new();
    for workspace in [home.path().to_owned(), home.data(), "/".into()] {
        let env = [("OVERMIND_WORKSPACE", workspace.to_str().unwrap())];
        let done = home.run_env(&env, &["up", "--listen", "none"]);
        assert_ne!(done.code, 0);
        done.says("engine.workspace").says("use the directory of a project");
    }
}

#[test]
fn a_sandbox_measurement_includes_the_servers_files() {
    let home = AtHome::up();
    let report = home.0.run(&["sandbox", "attest", "-o", "json"]);
    let text = [report.out.as_str(), report.err.as_str()].concat();
    assert!(text.contains("server_files"), "{text}");
}

/// The secret of a new key.
fn key(home: &Home, name: &str, more: &[&str]) -> String {
    let mut args = vec!["key", "create", name, "-o", "name"];
    args.extend(more);
    home.run(&args).ok().line().to_owned()
}

#[test]
fn an_operator_cannot_run_anything_unsandboxed() {
    let home = Home::up();
    home.agent("mine", &["--sandbox", "none"]);
    let shell = home.run(&["run", "--sandbox", "none", "-d", "--name", "mine", "cat"]).ok();
    assert!(!shell.out.is_empty());
    let secret = key(&home, "op", &["--role", "operator"]);
    let operator = |args: &[&str]| home.run_env(&[("OVERMIND_TOKEN", &secret)], args);
    for args in [
        &["run", "touch", "ran"][..],
        &["run", "--sandbox", "none", "touch", "ran"],
        &["run", "--here", "--sandbox", "namespace", "touch", "ran"],
        &["run", "mine", "shell: touch ran"],
        &["agent", "create", "--name", "own", "--model", "deterministic", "--sandbox", "none"],
        &["agent", "edit", "mine", "--role", "another"],
        &["send", "mine", "text"],
    ] {
        let done = operator(args);
        assert_ne!(done.code, 0, "{args:?}: {done:?}");
        assert!(done.err.contains("only an admin may"), "{args:?}: {}", done.err);
    }
    home.agent("boxed", &[]);
    let done = operator(&["agent", "edit", "boxed", "--sandbox", "none"]);
    assert!(done.code != 0 && done.err.contains("only an admin may"), "{done:?}");
    assert!(!home.work().join("ran").exists());
    operator(&["run", "boxed", "shell: echo fine", "--wait"]).ok();
    home.run(&["kill", "mine"]).ok();
}

#[test]
fn a_scope_limits_a_key_to_its_routes() {
    let home = Home::up();
    home.agent("probe", &[]);
    let [model, runs] = ["model", "runs"].map(|scope| key(&home, scope, &["--scope", scope]));
    let by = |secret: &str, args: &[&str]| home.run_env(&[("OVERMIND_TOKEN", secret)], args);
    for args in [&["ps"][..], &["agent", "list"], &["run", "probe", "shell: ls"], &["status"]] {
        by(&model, args).fails(6).says("has the role model");
    }
    by(&runs, &["run", "probe", "shell: echo fine", "-o", "name"]).ok();
    by(&runs, &["ps"]).ok();
    for args in [&["agent", "list"][..], &["key", "list"], &["memory", "list"]] {
        by(&runs, args).fails(6).says("has the role runs");
    }
    for name in ["pro\u{200B}be", "\u{202E}eborp"] {
        let made = home.run(&["agent", "create", "--name", name, "--model", "deterministic"]);
        assert!(made.code != 0 && made.err.contains("U+20"), "{made:?}");
        let made = home.run(&["key", "create", name]);
        assert!(made.code != 0 && made.err.contains("U+20"), "{made:?}");
    }
}
