//! Resolves paths as far as text alone allows.

use super::expand::{FOUND, HERE, HOLE, HOME, SPLIT};

/// Any path at all.
pub(crate) fn anywhere() -> String {
    HOLE.to_string()
}

/// Any path with the same end: `…/.git/hooks/x`.
fn open(path: &str) -> String {
    let end = path.rsplit([HOLE, SPLIT]).next().unwrap_or_default();
    let plain = end.starts_with('/') && !end.split('/').any(|part| part == "..");
    if plain { format!("{HOLE}{}", end.trim_end_matches('/')) } else { anywhere() }
}

/// The path in the form of policies: relative to the workspace, absolute, from `~/`, or
/// [`anywhere`].
///
/// `from` is such a path. Links are not followed, because there is no disk access here. If a link
/// leads out, the sandbox protects.
pub(crate) fn resolve(path: &str, from: &str, workspace: &str) -> String {
    if path.contains([HOLE, SPLIT]) {
        return open(path);
    }
    if path.len() == FOUND.len_utf8() && path.contains(FOUND) {
        return ".".to_owned();
    }
    if path.contains(FOUND) {
        return anywhere();
    }
    if let Some(rest) = path.strip_prefix(HOME) {
        return clean("~", rest);
    }
    if let Some(rest) = path.strip_prefix(HERE) {
        return if from.contains(HOLE) {
            anywhere()
        } else {
            join(from, &format!("./{rest}"), workspace)
        };
    }
    if path.contains([HOME, HERE]) {
        return anywhere();
    }
    if path.starts_with('/') {
        return inside(&clean("", path), workspace);
    }
    if from.contains(HOLE) {
        return anywhere();
    }
    join(from, path, workspace)
}

fn join(from: &str, path: &str, workspace: &str) -> String {
    if let Some(rest) = from.strip_prefix('~') {
        return clean("~", &format!("{rest}/{path}"));
    }
    let base = if from.starts_with('/') { from.to_owned() } else { format!("{workspace}/{from}") };
    inside(&clean("", &format!("{base}/{path}")), workspace)
}

/// Whether these parts lead to a link of the kernel, whose parent is not the directory in the text:
/// `/proc/self/cwd`, `/proc/1/root`, `/dev/fd/3`.
fn is_magic_link(parts: &[&str]) -> bool {
    matches!(
        parts,
        ["proc", _, .., "cwd" | "root" | "exe"] | ["proc", _, .., "fd", _] | ["dev", "fd", _]
    )
}

/// Removes `.`, `..` and double slashes. A `..` above `~` leads anywhere. One after a link of
/// `/proc` is kept, because paths below such a link are judged like all of its possible targets.
fn clean(root: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if root.is_empty() && is_magic_link(&parts) {
                    continue;
                }
                if parts.pop().is_none() && root == "~" {
                    return anywhere();
                }
            }
            part => parts.push(part),
        }
    }
    if parts.is_empty() && root.is_empty() {
        "/".to_owned()
    } else {
        format!("{root}/{}", parts.join("/"))
    }
}

/// Makes an absolute path in the workspace relative to it.
fn inside(path: &str, workspace: &str) -> String {
    if path == workspace {
        return ".".to_owned();
    }
    match path.strip_prefix(workspace).and_then(|rest| rest.strip_prefix('/')) {
        Some(rest) if workspace != "/" => rest.to_owned(),
        Some(_) | None => path.to_owned(),
    }
}

/// Whether a resolved path is in the workspace.
pub(crate) fn in_workspace(target: &str) -> bool {
    !target.starts_with(['/', '~']) && !target.contains([HOLE, SPLIT])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_workspace_and_escapes_are_detected() {
        let check = |path: &str, from: &str, is: &str| {
            assert_eq!(resolve(path, from, "/workspace"), is, "{path} from {from}");
        };
        check("src/../a.rs", ".", "a.rs");
        check("..", "src", ".");
        check("../x", ".", "/x");
        check("../../etc/shadow", "src", "/etc/shadow");
        check("/workspace/./src//a", ".", "src/a");
        check("/workspaces/a", ".", "/workspaces/a");
        check("/workspace/../etc/passwd", ".", "/etc/passwd");
        check("//etc///shadow", ".", "/etc/shadow");
        check("\u{e004}/.ssh/id", ".", "~/.ssh/id");
        check("\u{e004}/../x", ".", "\u{e000}");
        check("a/\u{e000}/b", ".", "\u{e000}/b");
        check("\u{e000}x/b/", ".", "\u{e000}");
        check("\u{e000}/../b", ".", "\u{e000}");
        check("a", "\u{e000}", "\u{e000}");
        check("a", "/etc", "/etc/a");
        check("a", "~/x", "~/x/a");
        check("/", ".", "/");
        check("/proc/self/cwd/../../etc/shadow", ".", "/proc/self/cwd/etc/shadow");
        check("/proc/1/root/../x", ".", "/proc/1/root/x");
        check("/proc/cpuinfo/../version", ".", "/proc/version");
    }
}
