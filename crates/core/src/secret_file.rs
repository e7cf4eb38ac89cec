//! Decides which files of a repository are secrets, by name and content.
//!
//! Only the last part of a path counts. A hidden file is a mount point in a sandbox: it can be
//! moved with its directory, but not renamed.

use std::path::{Component, Path};

/// Why a name can be that of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// A file with this name is always secret.
    Always,
    /// A directory whose whole content is secret.
    Directory,
    /// A file that contains one of these texts.
    Holding(&'static [&'static str]),
    /// A file of at most [`SMALL`] bytes that contains one of these texts. Many files have such a
    /// name.
    SmallHolding(&'static [&'static str]),
}

/// Largest file of [`Suspect::SmallHolding`], in bytes.
pub const SMALL: u64 = 32 << 10;

/// Number of bytes of a file in which the texts of [`Suspect::Holding`] are searched.
pub const SEARCHED: u64 = 1 << 20;

const DIRECTORIES: &[&str] =
    &[".ssh", ".aws", ".gnupg", ".kube", ".azure", ".docker", ".password-store"];
const FILES: &[&str] = &[
    ".env",
    ".envrc",
    ".mcp.json",
    ".netrc",
    ".my.cnf",
    ".mylogin.cnf",
    ".boto",
    ".s3cfg",
    ".dockercfg",
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
const ENDINGS: &[&str] =
    &[".p12", ".pfx", ".kdbx", ".jks", ".ppk", ".tfvars", ".tfvars.json", ".tfstate"];
/// Words in names of templates, which are public: after `.env.`, before `.env`, and in names of
/// Terraform variable files.
const TEMPLATES: &[&str] = &["example", "sample", "template", "dist"];
const PRIVATE_KEY: &[&str] = &["PRIVATE KEY"];
/// Markers of a key, in a file with any name.
const KEY_BLOCK: &[&str] = &["PRIVATE KEY-----", "PRIVATE KEY BLOCK-----", "PuTTY-User-Key-File-"];
/// Endings of files that may be keys by their content. Files without an ending also may.
const KEYS: &[&str] =
    &["txt", "asc", "crt", "cer", "cert", "p8", "pk8", "priv", "rsa", "ed25519", "bak"];
const SERVICE_ACCOUNT: &[&str] = &[
    "\"type\": \"service_account\"",
    "\"type\":\"service_account\"",
    "\"type\" : \"service_account\"",
    "PRIVATE KEY-----",
];
const REGISTRY: &[&str] = &["_auth", "_password"];
const ACCOUNT: &[&str] = &["private_key", "client_secret", "refresh_token"];

/// Returns what the name of a file or directory means, in any case. `None`: it is no secret.
pub fn suspect(name: &str) -> Option<Suspect> {
    let lower = name.to_ascii_lowercase();
    let name = lower.as_str();
    let is_template = |rest: &str| rest.split('.').any(|part| TEMPLATES.contains(&part));
    if let Some(of) = name.strip_suffix(".env").filter(|of| !of.is_empty()) {
        return (!is_template(of)).then_some(Suspect::Always);
    }
    if let Some((of, _)) = name.split_once(".tfvars") {
        return (!is_template(of) && !is_template(name)).then_some(Suspect::Always);
    }
    if FILES.contains(&name) || ENDINGS.iter().any(|end| name.ends_with(end)) {
        return Some(Suspect::Always);
    }
    if name.contains(".tfstate.") || (name.starts_with("client_secret") && name.ends_with(".json"))
    {
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
    match name.rsplit_once('.') {
        Some((_, "json")) if account => Some(Suspect::Holding(ACCOUNT)),
        Some((_, "json")) => Some(Suspect::SmallHolding(SERVICE_ACCOUNT)),
        Some((of, end)) if !of.is_empty() => {
            KEYS.contains(&end).then_some(Suspect::SmallHolding(KEY_BLOCK))
        }
        Some(_) | None => Some(Suspect::SmallHolding(KEY_BLOCK)),
    }
}

/// Returns whether a file may be a secret, by the names in its path.
pub fn may_be(path: &Path) -> bool {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            None
        }
    });
    let last = path.file_name();
    names.map(|name| (name, name.to_str())).any(|(name, text)| match text.map(suspect) {
        None | Some(Some(Suspect::Directory)) => true,
        // Directories are called by names without an ending as well.
        Some(Some(_)) => Some(name) == last,
        Some(None) => false,
    })
}

/// Returns the text for a reader of a hidden file: where to grant it, and how.
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
    fn secret_files_are_recognised_by_name_and_templates_are_not() {
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
            ".ENV",
            ".Env.Local",
            "prod.env",
            "app.prod.env",
            ".envrc",
            ".mcp.json",
            ".my.cnf",
            ".boto",
            ".s3cfg",
            ".dockercfg",
            "prod.tfvars",
            "prod.auto.tfvars.json",
            "terraform.tfstate",
            "terraform.tfstate.backup",
            "client_secret.json",
            "client_secret_42.apps.json",
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
            "example.env",
            "example.tfvars",
            "terraform.tfvars.example",
            "main.tf",
            "id_rsa.pub",
            "id_map.rs",
            "credentials.rs",
            "main.rs",
        ] {
            assert_eq!(suspect(name), None, "{name}");
        }
        assert_eq!(suspect(".npmrc"), Some(Suspect::Holding(REGISTRY)));
        assert_eq!(suspect("credentials.json"), Some(Suspect::Holding(ACCOUNT)));
        for name in ["env", "LICENSE", "user_history", "deploy", "notes.txt", "key.asc"] {
            assert_eq!(suspect(name), Some(Suspect::SmallHolding(KEY_BLOCK)), "{name}");
        }
        assert_eq!(suspect("package.json"), Some(Suspect::SmallHolding(SERVICE_ACCOUNT)));
        assert_eq!(suspect(".docker"), Some(Suspect::Directory));
        assert_eq!(suspect(".ssh"), Some(Suspect::Directory));
        assert!(may_be(Path::new("a/.aws/config")) && may_be(Path::new("x/.env")));
        assert!(may_be(Path::new("src/deploy")) && !may_be(Path::new("deploy/main.rs")));
        assert!(!may_be(Path::new("src/main.rs")));
    }
}
