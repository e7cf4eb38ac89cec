//! Which files of a repository are secrets, by their names and by what stands in them.
//!
//! Only the last name of a path counts: what is withheld is a mount point in a sandbox, which can
//! be moved with the directory that it lies in, and not be renamed.

use std::path::{Component, Path};

/// Why a name makes a file or directory a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// It is one, whatever is in it.
    Always,
    /// A directory, with all that is in it.
    Directory,
    /// A file in which one of these texts occurs.
    Holding(&'static [&'static str]),
}

/// Bytes of a file that are searched for the texts of [`Suspect::Holding`].
pub const SEARCHED: u64 = 1 << 20;

const DIRECTORIES: &[&str] =
    &[".ssh", ".aws", ".gnupg", ".kube", ".azure", ".docker", ".password-store"];
const FILES: &[&str] = &[
    ".env",
    ".netrc",
    ".pgpass",
    ".git-credentials",
    ".pypirc",
    ".vault-token",
    "master.key",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
];
const ENDINGS: &[&str] = &[".p12", ".pfx", ".kdbx"];
/// Behind `.env.`: what a project shows to everybody.
const TEMPLATES: &[&str] = &["example", "sample", "template", "dist"];
const PRIVATE_KEY: &[&str] = &["PRIVATE KEY"];
const REGISTRY: &[&str] = &["_auth", "_password"];
const ACCOUNT: &[&str] = &["private_key", "client_secret", "refresh_token"];

/// What the name of a file or directory says. `None`: it is no secret.
pub fn suspect(name: &str) -> Option<Suspect> {
    if FILES.contains(&name) || ENDINGS.iter().any(|end| name.ends_with(end)) {
        return Some(Suspect::Always);
    }
    if let Some(of) = name.strip_prefix(".env.") {
        let last = of.rsplit('.').next().unwrap_or(of);
        return (!TEMPLATES.contains(&last)).then_some(Suspect::Always);
    }
    if DIRECTORIES.contains(&name) {
        return Some(Suspect::Directory);
    }
    if name.starts_with('.') && name.ends_with("_history") {
        return Some(Suspect::Always);
    }
    if name == ".npmrc" || name == ".yarnrc.yml" {
        return Some(Suspect::Holding(REGISTRY));
    }
    let is_key = name.ends_with(".pem") || name.ends_with(".key");
    if is_key || (name.starts_with("id_") && !name.contains('.')) {
        return Some(Suspect::Holding(PRIVATE_KEY));
    }
    let account =
        name.contains("credentials") || name.contains("service") && name.contains("account");
    (account && name.ends_with(".json")).then_some(Suspect::Holding(ACCOUNT))
}

/// Whether a file may be a secret by the names on its way.
pub fn may_be(path: &Path) -> bool {
    path.components().any(|part| match part {
        Component::Normal(name) => name.to_str().is_none_or(|name| suspect(name).is_some()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            false
        }
    })
}

/// What whoever meets a withheld file is told: where it was granted, and how.
pub fn withheld(path: &str) -> String {
    format!(
        "withheld: {path} is a secret of this repository; who runs the agent grants it with \
         `secrets: [\"{path}\"]` in the project's .overmind.yml"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_its_name_and_a_template_is_none() {
        for name in [
            ".env",
            ".env.local",
            ".env.production",
            ".env.example.local",
            "id_rsa",
            ".netrc",
            "store.p12",
            ".bash_history",
            "master.key",
        ] {
            assert_eq!(suspect(name), Some(Suspect::Always), "{name}");
        }
        for name in ["tls.pem", "server.key", "id_deploy"] {
            assert_eq!(suspect(name), Some(Suspect::Holding(PRIVATE_KEY)), "{name}");
        }
        for name in [
            ".env.example",
            ".env.sample",
            ".env.template",
            ".env.local.example",
            "env",
            ".envrc",
            "id_rsa.pub",
            "id_map.rs",
            "user_history",
            "package.json",
            "credentials.rs",
            "main.rs",
        ] {
            assert_eq!(suspect(name), None, "{name}");
        }
        assert_eq!(suspect(".npmrc"), Some(Suspect::Holding(REGISTRY)));
        assert_eq!(suspect("credentials.json"), Some(Suspect::Holding(ACCOUNT)));
        assert_eq!(suspect(".ssh"), Some(Suspect::Directory));
        assert!(may_be(Path::new("a/.aws/config")) && may_be(Path::new("x/.env")));
        assert!(!may_be(Path::new("src/main.rs")));
    }
}
