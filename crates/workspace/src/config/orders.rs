//! Lists what a project's file causes: every command that it runs, and everything that changes
//! these commands or their input, one line each for the person who confirms it.

use super::extensions::is_contained;
use super::{
    CommandLine, Config, ContainerService, DatabaseService, DatabaseTemplate, DirectoryStrategy,
    Hook, PostgresService, ReadyCheck, Server, Service, Strategy,
};

impl Config {
    /// The lines, in the file's order. If there are none, nothing needs confirmation.
    pub fn orders(&self) -> Vec<String> {
        let mut orders = Vec::new();
        for (path, strategy) in &self.worktree.directories {
            if *strategy == DirectoryStrategy::Share {
                orders.push(format!("runs can write to the project's own {path}"));
            }
        }
        for service in &self.services {
            service_orders(service, &mut orders);
        }
        for (name, value) in &self.env {
            orders.push(format!("every command has {name}={value}"));
        }
        orders.extend(self.setup.iter().map(|hook| hook_order("setup", hook)));
        orders.extend(self.teardown.iter().map(|hook| hook_order("teardown", hook)));
        for pattern in &self.secrets {
            orders.push(format!("runs in sandboxes are given the secrets {pattern}"));
        }
        orders
    }
}

fn hook_order(kind: &str, hook: &Hook) -> String {
    let command = hook.command.shown();
    match &hook.cwd {
        Some(cwd) => format!("{kind}, in {}: {command}", cwd.display()),
        None => format!("{kind}: {command}"),
    }
}

fn service_orders(service: &Service, orders: &mut Vec<String>) {
    let name = &service.name;
    match &service.strategy {
        Strategy::Process(process) => {
            let command = process.command.shown();
            orders.push(match &process.cwd {
                Some(cwd) => format!("service {name}, in {}: {command}", cwd.display()),
                None => format!("service {name}: {command}"),
            });
        }
        Strategy::Container(container) => orders.push(container_order(name, container)),
        Strategy::Compose(compose) => {
            orders.push(format!("service {name}: containers of {}", compose.file.display()));
        }
        Strategy::Database(DatabaseService::Postgres(postgres)) => {
            postgres_orders(name, postgres, orders);
        }
        Strategy::Database(DatabaseService::Sqlite(sqlite)) => {
            template_orders(name, sqlite.template.as_ref(), orders);
        }
        Strategy::Database(DatabaseService::Redis { server }) => server_order(name, server, orders),
    }
    for (variable, value) in &service.env {
        orders.push(format!("service {name} has {variable}={value}"));
    }
    if let ReadyCheck::Command(command) = &service.ready.check {
        orders.push(format!("service {name} is ready when this succeeds: {}", command.shown()));
    }
}

fn container_order(name: &str, container: &ContainerService) -> String {
    let mut order = format!("service {name}: a container of {}", container.image);
    if let Some(entrypoint) = &container.entrypoint {
        order.push_str(&format!(", entrypoint {}", entrypoint.join(" ")));
    }
    if let Some(command) = &container.command {
        order.push_str(&format!(", {}", CommandLine::Words(command.clone()).shown()));
    }
    for (file, inside) in &container.mounts {
        order.push_str(&format!(", {} at {inside}", file.display()));
    }
    order
}

fn postgres_orders(name: &str, postgres: &PostgresService, orders: &mut Vec<String>) {
    server_order(name, &postgres.server, orders);
    if !postgres.extensions.is_empty() {
        orders.push(format!("database {name} has {}", postgres.extensions.join(", ")));
    }
    for extension in postgres.extensions.iter().filter(|extension| !is_contained(extension)) {
        orders.push(format!(
            "database {name} has {extension}, which can open files and connections and run \
                programs with the rights of the database server, outside of every sandbox"
        ));
    }
    template_orders(name, postgres.template.as_ref(), orders);
}

fn server_order(name: &str, server: &Server, orders: &mut Vec<String>) {
    match server {
        Server::Embedded => {}
        // A URL may contain a password, which is never shown.
        Server::Url(_) => orders.push(format!("database {name} is on a server that it names")),
        Server::UrlFrom(variable) => {
            orders.push(format!("database {name} is on the server of the credential {variable}"));
        }
    }
}

fn template_orders(name: &str, template: Option<&DatabaseTemplate>, orders: &mut Vec<String>) {
    let Some(template) = template else { return };
    for file in &template.sql {
        orders.push(format!("database {name} is filled by {}", file.display()));
    }
    if let Some(command) = &template.command {
        orders.push(format!("database {name} is filled by: {}", command.shown()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(text: &str) -> Vec<String> {
        Config::parse(&format!("version: 1\n{text}")).unwrap().orders()
    }

    #[test]
    fn commands_of_a_project_file_are_listed_with_their_lines() {
        let text = "\
services:
  db: {strategy: database, engine: postgres, template: {files: ['db/**'], sql: [a.sql], command: bin/migrate}}
  web: {strategy: process, command: npm run dev, cwd: app, ports: [http], env: {A: b}}
  search: {strategy: container, image: 'search:8', mounts: {c.yml: /c.yml}}
  stack: {strategy: compose, file: compose.yaml}
env: {LD_PRELOAD: ./evil.so}
setup: npm ci
teardown: {command: bin/bye, cwd: ops}
secrets: ['.env']
worktree: {directories: {node_modules: share, target: skip}}
";
        let wanted = [
            "runs can write to the project's own node_modules",
            "database db is filled by a.sql",
            "database db is filled by: bin/migrate",
            "service web, in app: npm run dev",
            "service web has A=b",
            "service search: a container of search:8, c.yml at /c.yml",
            "service stack: containers of compose.yaml",
            "every command has LD_PRELOAD=./evil.so",
            "setup: npm ci",
            "teardown, in ops: bin/bye",
            "runs in sandboxes are given the secrets .env",
        ];
        assert_eq!(orders(text), wanted);
    }

    #[test]
    fn a_file_without_commands_needs_no_confirmation() {
        assert_eq!(orders("ports: [PORT]\npool: {size: 3}\n"), <[String; 0]>::default());
        let text = "\
services:
  db: {strategy: database, engine: postgres}
  cache: {strategy: database, engine: redis}
  local: {strategy: database, engine: sqlite, file: a.sqlite3}
";
        assert_eq!(orders(text), <[String; 0]>::default());
    }

    #[test]
    fn unknown_extensions_are_listed_with_a_warning() {
        let of = |names: &str| {
            orders(&format!(
                "services:\n  db: {{strategy: database, engine: postgres, extensions: [{names}]}}\n"
            ))
        };
        assert_eq!(of("pgcrypto, uuid-ossp"), ["database db has pgcrypto, uuid-ossp"]);
        let told = of("pgcrypto, timescaledb");
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0], "database db has pgcrypto, timescaledb");
        assert!(told[1].starts_with("database db has timescaledb, which can open files and conn"));
        assert!(told[1].ends_with("outside of every sandbox"), "{told:?}");
    }

    #[test]
    fn server_addresses_are_hidden_because_they_may_contain_passwords() {
        let text = "\
services:
  db: {strategy: database, engine: postgres, server: 'postgres://a:secret@h:5432/x'}
";
        assert_eq!(orders(text), ["database db is on a server that it names"]);
    }
}
