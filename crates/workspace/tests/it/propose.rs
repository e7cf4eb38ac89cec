//! Proposals from files as projects have them.

use overmind_workspace::config::{Config, DatabaseService, Sources, Strategy};

fn accepted(sources: &Sources) -> (Config, String) {
    let proposal = sources.propose();
    let config = Config::parse(&proposal.text)
        .unwrap_or_else(|problems| panic!("{problems:#?}\n{}", proposal.text));
    (config, proposal.text)
}

const COMPOSE: &str = r#"
x-base: &base
  restart: unless-stopped
services:
  db:
    <<: *base
    image: postgres:16-alpine
    environment: {POSTGRES_PASSWORD: dev}
    ports: ["5432:5432"]
    volumes: ["pgdata:/var/lib/postgresql/data"]
  cache:
    image: "redis:7"
  search:
    image: docker.elastic.co/elasticsearch/elasticsearch:${ES_VERSION:-8.15.0}
    environment:
      - discovery.type=single-node
      - ES_JAVA_OPTS=-Xms512m $$X
    ports: ["127.0.0.1:9200:9200/tcp", "9300"]
    volumes: ["esdata:/usr/share/elasticsearch/data", "./es.yml:/es.yml:ro", "/var/run/docker.sock:/s"]
    depends_on: {db: {condition: service_healthy}}
  app:
    build: .
    ports: ["3000:3000"]
volumes: {pgdata: {}, esdata: {}}
"#;

fn variables(sources: &Sources) -> Vec<String> {
    let (config, _) = accepted(sources);
    config.env.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[test]
fn services_get_their_usual_variables_in_the_proposal() {
    let compose =
        "services: {db: {image: postgres}, cache: {image: redis}, jobs-2: {image: redis}}";
    let mut sources = Sources { compose: Some(compose.to_owned()), ..Sources::default() };
    assert_eq!(
        variables(&sources),
        ["DATABASE_URL=${db.url}", "REDIS_URL=${cache.url}", "JOBS_2_URL=${jobs-2.url}"]
    );
    // The project's own variables win, and no name of the project gets another meaning.
    sources.env_example = Some("PGHOST=localhost\nREDIS_URL=none\n".to_owned());
    assert_eq!(
        variables(&sources),
        ["PGHOST=${db.host}", "CACHE_URL=${cache.url}", "JOBS_2_URL=${jobs-2.url}"]
    );
}

#[test]
fn what_a_compose_service_loses_is_named() {
    let compose = r#"
services:
  app:
    image: acme/app
    command: serve --listen "0.0.0.0:8080" --motto 'two words'
    env_file: app.env
    environment: [PLAIN=x, HOST_VAR]
    healthcheck: {test: [CMD, "true"]}
    extends: {file: common.yml, service: base}
    user: "1000"
    container_name: app
  search:
    image: elasticsearch:8
    command: sh -c "never ends
    environment: {discovery.type: single-node, UNSET: null, KEPT: "null"}
"#;
    let sources = Sources { compose: Some(compose.to_owned()), ..Sources::default() };
    let (config, text) = accepted(&sources);
    assert_eq!(config.services.len(), 2);
    let words = r#"["serve", "--listen", "0.0.0.0:8080", "--motto", "two words"]"#;
    assert!(text.contains(words), "{text}");
    for said in [
        "`app` has `env_file`, `healthcheck`, `extends`, `user`: left out",
        "`app` takes variables from the machine: `HOST_VAR`; give them values in `env`",
        "the command of `search` has a quote without its end: left out",
        "`search` has variables with names that no shell has: `discovery.type`: left out",
        "`search` takes variables from the machine: `UNSET`",
    ] {
        assert!(text.contains(said), "{said} in\n{text}");
    }
    assert!(text.contains("KEPT: \"null\"") && !text.contains("UNSET:"), "{text}");
}

#[test]
fn files_may_begin_with_a_byte_order_mark() {
    let dir = tempfile::tempdir().unwrap();
    let package = "\u{feff}{\"scripts\": {\"dev\": \"vite\"}}";
    std::fs::write(dir.path().join("package.json"), package).unwrap();
    let proposal = Sources::read(dir.path()).propose();
    assert!(proposal.text.contains("npm run dev"), "{}", proposal.text);
    assert_eq!(proposal.notes, [""; 0]);
}

#[test]
fn a_rails_project_with_compose_and_a_procfile() {
    let sources = Sources {
        compose: Some(COMPOSE.to_owned()),
        procfile: Some(
            "# dev\nrelease: bin/rails db:migrate\nweb: bin/rails server -p $PORT\ncss: yarn build:css --watch\n"
                .to_owned(),
        ),
        env_example: Some(
            "# copy me\nDATABASE_URL=postgres://app:app@localhost:5432/app\nREDIS_URL=\"redis://localhost:6379/0\"\n\
             export ELASTIC=http://localhost:9200/x?a=$b # why\nSECRET_KEY=changeme\nPORT=3000\n"
                .to_owned(),
        ),
        package_json: Some(r#"{"scripts": {"build:css": "x", "dev": "y"}}"#.to_owned()),
        names: ["Gemfile.lock", "yarn.lock", "package.json"].map(ToOwned::to_owned).to_vec(),
        ..Sources::default()
    };
    let (config, text) = accepted(&sources);
    let names: Vec<&str> = config.services.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["db", "cache", "search", "web", "css"], "{text}");
    assert!(matches!(
        config.service("db").unwrap().strategy,
        Strategy::Database(DatabaseService::Postgres(_))
    ));
    let Strategy::Container(search) = &config.service("search").unwrap().strategy else { panic!() };
    assert_eq!(search.image, "docker.elastic.co/elasticsearch/elasticsearch:8.15.0");
    assert_eq!(search.ports, [("port".to_owned(), 9200), ("port_9300".to_owned(), 9300)]);
    assert_eq!(search.volumes, ["/usr/share/elasticsearch/data"]);
    assert_eq!(search.mounts.len(), 1);
    let env: Vec<String> =
        config.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        env,
        [
            "DATABASE_URL=${db.url}",
            "REDIS_URL=${cache.url}",
            "ELASTIC=http://127.0.0.1:${search.port}/x?a=$$b",
        ]
    );
    let setup: Vec<&str> = config.setup.iter().map(|hook| hook.name.as_str()).collect();
    assert_eq!(setup, ["bundle install", "yarn install --frozen-lockfile", "bin/rails db:migrate"]);
    for said in
        ["`app` of the compose file is built from source", "/var/run/docker.sock", "SECRET_KEY"]
    {
        assert!(text.contains(said), "{said} in\n{text}");
    }
}

#[test]
fn a_node_project_with_a_devcontainer() {
    let sources = Sources {
        devcontainer: Some(
            "{\n  // Node\n  \"image\": \"mcr/x:1\",\n  \"forwardPorts\": [5173,],\n  \"postCreateCommand\": {\"a\": \
             \"npx playwright install\", \"b\": [\"echo\", \"two words\"]},\n}\n"
                .to_owned(),
        ),
        package_json: Some(r#"{"scripts": {"dev": "vite"}}"#.to_owned()),
        names: ["package-lock.json", "package.json"].map(ToOwned::to_owned).to_vec(),
        ..Sources::default()
    };
    let (config, text) = accepted(&sources);
    assert_eq!(config.services.len(), 1, "{text}");
    let setup: Vec<&str> = config.setup.iter().map(|hook| hook.name.as_str()).collect();
    assert_eq!(setup, ["npm ci", "npx playwright install", "echo 'two words'"]);
    assert!(config.worktree.directories.contains_key("node_modules"));
}

#[test]
fn an_empty_or_broken_project_gets_a_working_proposal() {
    let (config, _) = accepted(&Sources::default());
    assert_eq!(config.ports.names, ["PORT"]);
    let broken = Sources {
        compose: Some("services: [\n".to_owned()),
        devcontainer: Some("{".to_owned()),
        package_json: Some("nonsense".to_owned()),
        procfile: Some(":\nweb\n: x\n".to_owned()),
        ..Sources::default()
    };
    let (_, text) = accepted(&broken);
    assert_eq!(text.matches("could not be read").count(), 3, "{text}");
}

/// The form in the design of the earlier system.
const EARLIER: &str = "services:\n  web:\n    command: bundle exec rails s -p $PORT\n    port: 3000\n  \
    db:\n    docker: postgres:16\n    port: 5432\n  cache:\n    docker: redis:7\n    port: 6379\n  \
    mail:\n    docker: mailhog/mailhog\n    port: 1025\nisolation:\n  strategy: ports\n  \
    port_range: 3100-3999\n";

#[test]
fn a_file_in_the_earlier_format_is_converted_in_the_proposal() {
    let config = Config::parse(EARLIER).unwrap();
    assert!(config.earlier);
    assert_eq!(config.ports.range, 3100..=3999);
    let kinds: Vec<_> = config
        .services
        .iter()
        .map(|service| match &service.strategy {
            Strategy::Process(process) => format!("{} {}", service.name, process.command.shown()),
            Strategy::Container(container) => format!("{} {}", service.name, container.image),
            Strategy::Database(_) => format!("{} database", service.name),
            Strategy::Compose(_) => unreachable!(),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "web bundle exec rails s -p $PORT",
            "db database",
            "cache database",
            "mail mailhog/mailhog"
        ]
    );
    assert_eq!(config.service("web").unwrap().depends_on, ["db", "cache", "mail"]);
    let env: Vec<_> = config.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    for wanted in ["WEB_PORT=${web.port}", "DB_PORT=${db.port}", "MAIL_PORT=${mail.port}"] {
        assert!(env.iter().any(|one| one == wanted), "{wanted}: {env:?}");
    }
    let sources = Sources { own: Some(EARLIER.to_owned()), ..Sources::default() };
    let (proposed, text) = accepted(&sources);
    assert_eq!((proposed.services, proposed.earlier), (config.services, false), "{text}");
}

#[test]
fn a_mistake_in_the_current_format_is_not_taken_for_the_earlier_format() {
    for text in [
        "services: {web: {strategy: process, command: x}}",
        "services: {web: {command: x, port: http}}",
        "services: {web: {port: 80}}",
        "isolation: {strategy: docker}",
        "isolation: {sandbox: namespace}",
    ] {
        let problems = Config::parse(text).unwrap_err();
        assert!(problems[0].what.contains("has no version"), "{text}: {problems:?}");
    }
}
