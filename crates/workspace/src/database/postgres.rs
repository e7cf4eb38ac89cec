//! A logical PostgreSQL database for each session, on a server that sessions share.
//!
//! Each database belongs to its own role; `PUBLIC` may not connect to it, so no other session can.
//! It is a copy of a template, which the project's own migrations make once and which is kept until
//! one of its source files changes. Objects of a template belong to the template's role and are
//! transferred in the copy, so a session owns everything in its database.
//!
//! Names begin with `ovm_s_` (sessions) and `ovm_t_` (templates). A comment on each contains its
//! data directory and session, and nothing without that comment is ever dropped. Connections are
//! made without TLS, so a shared server must be reached over loopback, a Unix socket or a trusted
//! network.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use super::short_hash;

/// The time limit of a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// The number of templates of one service that are kept, the newest first.
const KEPT_TEMPLATES: usize = 2;

/// Why a database could not be made or dropped.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error("`{0}` is not the URL of a PostgreSQL server")]
    Url(String),
    #[error("connecting to PostgreSQL at {at}{}", causes(source))]
    Connect {
        at: String,
        #[source]
        source: tokio_postgres::Error,
    },
    #[error("connecting to PostgreSQL at {at} took more than {} s", CONNECT.as_secs())]
    Slow { at: String },
    #[error("{what} at {at}{}", causes(source))]
    Sql {
        what: String,
        at: String,
        #[source]
        source: tokio_postgres::Error,
    },
}

/// The server's own message, which the client's error contains in its source.
fn causes(err: &tokio_postgres::Error) -> String {
    match err.as_db_error() {
        Some(said) => {
            let mut text = format!(": {}", said.message());
            for more in [said.detail(), said.hint()].into_iter().flatten() {
                let _ = write!(text, " ({more})");
            }
            text
        }
        None => String::new(),
    }
}

/// A server with its administrator's login.
#[derive(Clone, Debug)]
pub(crate) struct PostgresServer {
    config: Config,
}

/// The names of a session's database, derived from the session.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Names {
    pub(crate) home: String,
    pub(crate) session: String,
    pub(crate) database: String,
    pub(crate) role: String,
}

impl Names {
    pub(crate) fn of(home: &str, session: &str, service: &str) -> Self {
        let hash = short_hash(&format!("{home}\0{session}\0{service}"), 16);
        let word: String = service
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
            .take(24)
            .collect();
        let name = format!("ovm_s_{hash}_{word}");
        Self {
            home: home.to_owned(),
            session: session.to_owned(),
            database: name.clone(),
            role: name,
        }
    }

    fn comment(&self) -> String {
        serde_json::json!({"overmind": {"home": self.home, "session": self.session}}).to_string()
    }
}

/// A template's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateNames {
    pub(crate) home: String,
    /// The common prefix of all templates of this service.
    pub(crate) prefix: String,
    /// The name of both database and role.
    pub(crate) name: String,
}

impl TemplateNames {
    pub(crate) fn of(home: &str, project: &Path, service: &str, key: &str) -> Self {
        let of = short_hash(&format!("{home}\0{}\0{service}", project.display()), 12);
        let prefix = format!("ovm_t_{of}_");
        Self { home: home.to_owned(), name: format!("{prefix}{key}"), prefix }
    }

    fn comment(&self) -> String {
        serde_json::json!({"overmind": {"home": self.home, "template": true}}).to_string()
    }

    /// The name of the database while it is filled.
    pub(crate) fn draft(&self) -> String {
        format!("{}_new", self.name)
    }
}

/// One of our databases that was found in a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: String,
    /// `None` for a template.
    pub(crate) session: Option<String>,
    pub(crate) bytes: u64,
}

/// An open connection; closed when dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    at: String,
    _driver: JoinSet<()>,
}

impl PostgresServer {
    pub(crate) fn parse(url: &str) -> Result<Self, PostgresError> {
        let refuse = || {
            let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
            PostgresError::Url(rest.chars().take(80).collect())
        };
        let mut config = Config::from_str(url).map_err(|_| refuse())?;
        config.connect_timeout(CONNECT).application_name("overmind");
        if config.get_dbname().is_none() {
            config.dbname("postgres");
        }
        Ok(Self { config })
    }

    pub(crate) fn host(&self) -> String {
        match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "127.0.0.1".to_owned(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.config.get_ports().first().copied().unwrap_or(5432)
    }

    /// All addresses to which a connection may be made: a URL may name several, and numeric ones
    /// beside names.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
        let names = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        });
        let numbers = self.config.get_hostaddrs().iter().map(ToString::to_string);
        let all = |(at, host): (usize, String)| format!("{host}:{}", port(at));
        names.enumerate().map(all).chain(numbers.enumerate().map(all)).collect()
    }

    fn at(&self) -> String {
        format!("{}:{}", self.host(), self.port())
    }

    async fn connect(&self, database: Option<&str>) -> Result<Connection, PostgresError> {
        let mut config = self.config.clone();
        if let Some(database) = database {
            config.dbname(database);
        }
        let at = self.at();
        let connected = tokio::time::timeout(CONNECT, config.connect(NoTls)).await;
        let connected = connected.map_err(|_| PostgresError::Slow { at: at.clone() })?;
        let (client, connection) =
            connected.map_err(|source| PostgresError::Connect { at: at.clone(), source })?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(err) = connection.await {
                tracing::debug!(%err, "a connection to PostgreSQL ended");
            }
        });
        Ok(Connection { client, at, _driver: driver })
    }

    /// Returns the version, if the server answers.
    pub(crate) async fn version(&self) -> Result<String, PostgresError> {
        let connection = self.connect(None).await?;
        connection.one_text("asking for the version", "SHOW server_version_num").await
    }

    /// Keeps sessions out of the databases that every server has. Only for our own server.
    pub(crate) async fn close_to_public(&self) -> Result<(), PostgresError> {
        let admin = self.connect(None).await?;
        let sql = "REVOKE CONNECT, TEMPORARY ON DATABASE postgres FROM PUBLIC; \
                   REVOKE CONNECT ON DATABASE template1 FROM PUBLIC";
        admin.run("closing the server's own databases", sql).await
    }

    /// Makes role and database. Remains of an earlier attempt under these names are replaced.
    pub(crate) async fn create(
        &self,
        names: &Names,
        password: &str,
        extensions: &[String],
        template: Option<&TemplateNames>,
    ) -> Result<(), PostgresError> {
        let admin = self.connect(None).await?;
        admin.drop_database(&names.database).await?;
        admin.drop_role(&names.role).await?;
        let (database, role) = (quoted(&names.database), quoted(&names.role));
        admin.make_role(&names.role, password, &names.comment()).await?;
        let from = match template {
            Some(template) => quoted(&template.name),
            None => "template0".to_owned(),
        };
        let what = || format!("making the database {}", names.database);
        admin
            .run(what(), &format!("CREATE DATABASE {database} OWNER {role} TEMPLATE {from}"))
            .await?;
        let comment = literal(&names.comment());
        // Both are in one message, so that nobody connects in between.
        admin
            .run(
                what(),
                &format!(
                    "REVOKE ALL ON DATABASE {database} FROM PUBLIC; COMMENT ON DATABASE {database} IS \
                     {comment}"
                ),
            )
            .await?;
        let inside = self.connect(Some(&names.database)).await?;
        let what = || format!("giving the database {} to its role", names.database);
        if let Some(template) = template {
            // This affects only this database, because the template's role owns nothing that the
            // whole server shares.
            let owner = quoted(&template.name);
            inside.run(what(), &format!("REASSIGN OWNED BY {owner} TO {role}")).await?;
        } else {
            inside.run(what(), &format!("ALTER SCHEMA public OWNER TO {role}")).await?;
            inside.extensions(extensions).await?;
        }
        Ok(())
    }

    /// Drops database and role, and disconnects clients. Missing ones are no error.
    pub(crate) async fn drop(&self, names: &Names) -> Result<(), PostgresError> {
        let admin = self.connect(None).await?;
        admin.drop_database(&names.database).await?;
        admin.drop_role(&names.role).await
    }

    /// Whether the template exists and is complete.
    pub(crate) async fn has_template(&self, names: &TemplateNames) -> Result<bool, PostgresError> {
        let admin = self.connect(None).await?;
        admin
            .is(
                "looking for the template",
                "SELECT 1 FROM pg_database WHERE datistemplate AND datname = $1",
                &names.name,
            )
            .await
    }

    /// Begins a template: an empty database, filled by its own role. The caller fills it, then
    /// calls [`Draft::finish`]. It waits for others that make the same template.
    pub(crate) async fn draft(
        &self,
        names: &TemplateNames,
        password: &str,
        extensions: &[String],
    ) -> Result<Option<Draft>, PostgresError> {
        let admin = self.connect(None).await?;
        let hash = blake3::hash(names.name.as_bytes());
        let bytes: [u8; 8] = hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes");
        let lock = i64::from_le_bytes(bytes);
        admin
            .run(
                "waiting for whoever makes the template",
                &format!("SELECT pg_advisory_lock({lock})"),
            )
            .await?;
        let there = admin
            .is(
                "looking for the template",
                "SELECT 1 FROM pg_database WHERE datistemplate AND datname = $1",
                &names.name,
            )
            .await?;
        if there {
            return Ok(None);
        }
        admin.drop_database(&names.draft()).await?;
        admin.drop_role(&names.name).await?;
        admin.make_role(&names.name, password, &names.comment()).await?;
        let (draft, role) = (quoted(&names.draft()), quoted(&names.name));
        let what = || format!("making the template {}", names.name);
        admin.run(what(), &format!("CREATE DATABASE {draft} TEMPLATE template0")).await?;
        let comment = literal(&names.comment());
        admin
            .run(
                what(),
                &format!(
                    "REVOKE ALL ON DATABASE {draft} FROM PUBLIC; GRANT ALL ON DATABASE {draft} TO {role}; \
                     COMMENT ON DATABASE {draft} IS {comment}"
                ),
            )
            .await?;
        let inside = self.connect(Some(&names.draft())).await?;
        inside.run(what(), &format!("ALTER SCHEMA public OWNER TO {role}")).await?;
        inside.extensions(extensions).await?;
        Ok(Some(Draft { admin, server: self.clone(), names: names.clone() }))
    }

    /// All of our databases that belong to this data directory.
    pub(crate) async fn ours(&self, home: &str) -> Result<Vec<Found>, PostgresError> {
        let admin = self.connect(None).await?;
        let rows = admin
            .client
            .query(
                "SELECT datname::text, shobj_description(oid, 'pg_database'), pg_database_size(oid) \
                 FROM pg_database WHERE datname LIKE 'ovm\\_%' ORDER BY datname",
                &[],
            )
            .await
            .map_err(|source| admin.failed("listing databases", source))?;
        let found = rows.iter().filter_map(|row| {
            let (name, comment): (String, Option<String>) = (row.get(0), row.get(1));
            let comment: serde_json::Value = serde_json::from_str(&comment?).ok()?;
            let ours = &comment["overmind"];
            // A database that is just being dropped is still listed, but has no size.
            let bytes: Option<i64> = row.get(2);
            let bytes = u64::try_from(bytes?).unwrap_or(0);
            let session = ours["session"].as_str().map(ToOwned::to_owned);
            (ours["home"].as_str() == Some(home)).then_some(Found { name, session, bytes })
        });
        Ok(found.collect())
    }

    /// All of our roles for sessions of this data directory, with their sessions.
    pub(crate) async fn our_roles(
        &self,
        home: &str,
    ) -> Result<Vec<(String, String)>, PostgresError> {
        let admin = self.connect(None).await?;
        let rows = admin
            .client
            .query(
                "SELECT rolname::text, shobj_description(oid, 'pg_authid') FROM pg_roles \
                 WHERE rolname LIKE 'ovm\\_s\\_%' ORDER BY rolname",
                &[],
            )
            .await
            .map_err(|source| admin.failed("listing roles", source))?;
        let found = rows.iter().filter_map(|row| {
            let (name, comment): (String, Option<String>) = (row.get(0), row.get(1));
            let comment: serde_json::Value = serde_json::from_str(&comment?).ok()?;
            let ours = &comment["overmind"];
            let session = ours["session"].as_str()?.to_owned();
            (ours["home"].as_str() == Some(home)).then_some((name, session))
        });
        Ok(found.collect())
    }

    /// Drops a database and a role with the same name.
    pub(crate) async fn drop_named(&self, name: &str) -> Result<(), PostgresError> {
        let admin = self.connect(None).await?;
        admin.drop_database(name).await?;
        admin.drop_role(name).await
    }
}

/// A template that is being filled.
#[derive(Debug)]
pub(crate) struct Draft {
    /// This connection holds the advisory lock.
    admin: Connection,
    server: PostgresServer,
    names: TemplateNames,
}

impl Draft {
    /// Runs an SQL file as the template's own role.
    pub(crate) async fn script(&self, path: &Path, text: &str) -> Result<(), PostgresError> {
        let inside = self.server.connect(Some(&self.names.draft())).await?;
        let role = quoted(&self.names.name);
        inside.run("taking the template's role", &format!("SET ROLE {role}")).await?;
        inside.run(format!("running {}", path.display()), text).await
    }

    /// Completes the template: from now on it is copied, and nobody connects to it.
    pub(crate) async fn finish(self) -> Result<(), PostgresError> {
        let (draft, name) = (self.names.draft(), quoted(&self.names.name));
        let what = || format!("finishing the template {}", self.names.name);
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}",
            literal(&draft)
        );
        self.admin.run(what(), &end).await?;
        self.admin.run(what(), &format!("ALTER ROLE {name} NOLOGIN")).await?;
        self.admin
            .run(what(), &format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false", quoted(&draft)))
            .await?;
        self.admin.run(what(), &end).await?;
        let rename = format!("ALTER DATABASE {} RENAME TO {name}", quoted(&draft));
        self.admin.run(what(), &rename).await?;
        self.admin.run(what(), &format!("ALTER DATABASE {name} WITH IS_TEMPLATE true")).await?;
        self.prune().await;
        Ok(())
    }

    /// Drops the draft.
    pub(crate) async fn abandon(self) -> Result<(), PostgresError> {
        self.admin.drop_database(&self.names.draft()).await?;
        self.admin.drop_role(&self.names.name).await
    }

    /// Drops older templates of the same service. One that is being copied stays.
    async fn prune(&self) {
        let listed = self
            .admin
            .client
            .query(
                "SELECT datname::text FROM pg_database WHERE starts_with(datname::text, $1) \
                 AND datistemplate ORDER BY oid DESC",
                &[&self.names.prefix],
            )
            .await;
        let Ok(rows) = listed else { return };
        for row in rows.iter().skip(KEPT_TEMPLATES) {
            let name: String = row.get(0);
            if let Err(err) = self.admin.drop_database(&name).await {
                tracing::debug!(name, %err, "an old template stays for now");
                continue;
            }
            let _ = self.admin.drop_role(&name).await;
        }
    }
}

impl Connection {
    fn failed(&self, what: impl Into<String>, source: tokio_postgres::Error) -> PostgresError {
        PostgresError::Sql { what: what.into(), at: self.at.clone(), source }
    }

    async fn run(&self, what: impl Into<String>, sql: &str) -> Result<(), PostgresError> {
        self.client.batch_execute(sql).await.map_err(|source| self.failed(what, source))
    }

    async fn is(&self, what: &str, sql: &str, name: &str) -> Result<bool, PostgresError> {
        let rows = self.client.query(sql, &[&name]).await;
        rows.map(|rows| !rows.is_empty()).map_err(|source| self.failed(what, source))
    }

    async fn one_text(&self, what: &str, sql: &str) -> Result<String, PostgresError> {
        let row = self.client.query_one(sql, &[]).await;
        row.map(|row| row.get(0)).map_err(|source| self.failed(what, source))
    }

    async fn make_role(
        &self,
        name: &str,
        password: &str,
        comment: &str,
    ) -> Result<(), PostgresError> {
        let (role, password) = (quoted(name), literal(password));
        let what = || format!("making the role {name}");
        let sql = format!(
            "CREATE ROLE {role} LOGIN PASSWORD {password} NOSUPERUSER NOCREATEDB NOCREATEROLE \
             NOREPLICATION NOBYPASSRLS; COMMENT ON ROLE {role} IS {}",
            literal(comment)
        );
        self.run(what(), &sql).await?;
        let superuser = self
            .is(
                "asking what may be done",
                "SELECT 1 FROM pg_roles WHERE rolname = current_user AND rolsuper AND $1 <> ''",
                name,
            )
            .await?;
        if !superuser {
            // Only a member of a role may transfer objects to it.
            self.run(what(), &format!("GRANT {role} TO CURRENT_USER")).await?;
        }
        Ok(())
    }

    async fn drop_database(&self, name: &str) -> Result<(), PostgresError> {
        let what = || format!("dropping the database {name}");
        let template = self
            .is(&what(), "SELECT 1 FROM pg_database WHERE datistemplate AND datname = $1", name)
            .await?;
        if template {
            let sql = format!("ALTER DATABASE {} WITH IS_TEMPLATE false", quoted(name));
            self.run(what(), &sql).await?;
        }
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", quoted(name));
        self.run(what(), &sql).await
    }

    async fn drop_role(&self, name: &str) -> Result<(), PostgresError> {
        self.run(
            format!("dropping the role {name}"),
            &format!("DROP ROLE IF EXISTS {}", quoted(name)),
        )
        .await
    }

    async fn extensions(&self, extensions: &[String]) -> Result<(), PostgresError> {
        for extension in extensions {
            let sql = format!("CREATE EXTENSION IF NOT EXISTS {}", quoted(extension));
            self.run(format!("adding the extension {extension}"), &sql).await?;
        }
        Ok(())
    }
}

/// Quotes a name for SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a text for SQL, for any value of `standard_conforming_strings`.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A URL for an application.
pub(crate) fn url(user: &str, password: &str, host: &str, port: u16, database: &str) -> String {
    if host.starts_with('/') {
        let host = host.replace('%', "%25").replace('/', "%2F");
        return format!("postgres://{user}:{password}@{host}:{port}/{database}");
    }
    format!("postgres://{user}:{password}@{host}:{port}/{database}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_that_a_postgres_url_may_name_is_known() {
        for (url, wanted) in [
            ("postgres://ann:pw@db/app", &["db:5432"][..]),
            ("postgres://a:1,b:2/app", &["a:1", "b:2"]),
            ("postgres://db:7/app?hostaddr=127.0.0.1", &["db:7", "127.0.0.1:7"]),
            ("postgres://%2Frun%2Fpg/app", &["/run/pg:5432"]),
        ] {
            assert_eq!(PostgresServer::parse(url).unwrap().addresses(), wanted, "{url}");
        }
    }

    #[test]
    fn database_names_are_derived_from_the_session_and_fit() {
        let one = Names::of("h", "s", "Primary-Database-With-A-Long-Name-Indeed");
        assert_eq!(one, Names::of("h", "s", "Primary-Database-With-A-Long-Name-Indeed"));
        assert_ne!(one.database, Names::of("h", "s2", "x").database);
        assert!(one.database.len() <= 63, "{}", one.database);
        let template = TemplateNames::of("h", Path::new("/p"), "db", "0123456789abcdef");
        assert!(template.draft().len() <= 63, "{}", template.draft());
    }

    #[test]
    fn names_and_texts_cannot_break_out_of_their_quotes() {
        assert_eq!(quoted("a\"; DROP"), "\"a\"\"; DROP\"");
        assert_eq!(literal("it's \\' x"), "E'it\\'s \\\\\\' x'");
        let err = PostgresServer::parse("postgres://u:secret@h:99999999/x").unwrap_err();
        assert!(!err.to_string().contains("secret"));
    }
}
