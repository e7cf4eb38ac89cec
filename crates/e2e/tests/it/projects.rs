//! Projects: where callers below admin may have runs work.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::path::Path;

use crate::home::{Done, Home};

fn key(home: &Home, name: &str) -> String {
    home.run(&["key", "create", name, "--role", "operator", "-o", "name"]).ok().line().to_owned()
}

fn runs(home: &Home, key: &str, dir: &Path) -> Done {
    let dir = dir.to_str().unwrap();
    let run = ["run", "sh", "shell: true", "--once", "--wait", "--project", dir];
    home.run_env(&[("OVERMIND_TOKEN", key)], &run)
}

fn project(home: &Home, spec: &str) -> Done {
    let text =
        format!("apiVersion: overmind/v1\nkind: Project\nmetadata: {{name: web}}\nspec: {spec}\n");
    std::fs::write(home.work().join("project.yaml"), text).unwrap();
    home.run(&["apply", "-f", "project.yaml"])
}

/// Declares a directory as a project, in which keys below admin may have runs work.
pub(crate) fn declare(home: &Home, path: &Path) {
    let text = format!(
        "apiVersion: overmind/v1\nkind: Project\nmetadata: {{name: declared}}\nspec: {{path: {}}}\n",
        path.canonicalize().unwrap().display()
    );
    let file = home.path().join("declared.yaml");
    std::fs::write(&file, text).unwrap();
    home.run(&["apply", "-f", file.to_str().unwrap()]).ok();
}

#[test]
fn an_operator_works_only_in_projects_that_an_admin_declared() {
    let home = Home::up();
    home.agent("sh", &["--on-unknown", "retry", "--sandbox", "namespace"]);
    let (op, ci) = (key(&home, "op"), key(&home, "ci"));
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let (web, other) = (top.join("web"), top.join("web2"));
    std::fs::create_dir_all(web.join("sub")).unwrap();
    std::fs::create_dir_all(&other).unwrap();

    runs(&home, &op, &web).fails(6).says("overmind explain project");
    project(&home, &format!("{{path: {}}}", web.display())).ok();
    home.run(&["get", "projects"]).ok().shows(web.to_str().unwrap()).shows("nothing to trust");
    runs(&home, &op, &web).ok();
    runs(&home, &op, &web.join("sub")).ok();
    runs(&home, &op, &other).fails(6);
    // No link leads out of it, and the project itself may not be a link.
    std::os::unix::fs::symlink(&other, web.join("link")).unwrap();
    runs(&home, &op, &web.join("link")).fails(6);
    std::fs::rename(&web, top.join("away")).unwrap();
    std::os::unix::fs::symlink(&other, &web).unwrap();
    runs(&home, &op, &web).fails(6);
    std::fs::remove_file(&web).unwrap();
    std::fs::rename(top.join("away"), &web).unwrap();

    // For some keys only; operators cannot declare any.
    project(&home, &format!("{{path: {}, callers: [ci]}}", web.display())).ok();
    runs(&home, &op, &web).fails(6).says("add `op` to its `callers`");
    runs(&home, &ci, &web).ok();
    let apply = ["apply", "-f", "project.yaml"];
    home.run_env(&[("OVERMIND_TOKEN", &op)], &apply).fails(6);
    home.run_env(&[("OVERMIND_TOKEN", &op)], &["delete", "project", "web"]).fails(6);
    project(&home, "{path: /}").fails(2).says("every file");
    home.run(&["delete", "project", "web"]).ok();
    runs(&home, &ci, &web).fails(6);
}
