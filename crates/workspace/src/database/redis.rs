//! Gives each session an index of a shared Redis server.
//!
//! The few needed commands are implemented here, because a client library would be larger. Indexes
//! are leased in the machine's registry. An index with foreign keys is skipped, and only an index
//! that was empty when leased is ever flushed.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::database::short_hash;

/// Index 0 is everybody's default, so it is not leased.
pub(crate) const INDEXES: RangeInclusive<u16> = 1..=15;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a Redis server could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    #[error("`{0}` is not the URL of a Redis server: write `redis://[user:password@]host[:port]`")]
    Url(String),
    #[error("asking the Redis server at {address} for {command}")]
    Io {
        address: String,
        command: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the Redis server at {address} answers {command} with: {answer}")]
    Answer { address: String, command: &'static str, answer: String },
    #[error("no index of the Redis server at {address} is free and empty: end a session")]
    NoneFree { address: String },
}

/// A server, from its URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    user: Option<String>,
    pub(crate) password: Option<String>,
}

impl std::fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedisServer({}:{})", self.host, self.port)
    }
}

impl RedisServer {
    pub(crate) fn parse(url: &str) -> Result<Self, RedisError> {
        let shown = || {
            // The password must not appear in messages.
            let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
            RedisError::Url(rest.chars().take(80).collect())
        };
        let rest = url.strip_prefix("redis://").ok_or_else(shown)?;
        let rest = rest.split(['/', '?']).next().unwrap_or(rest);
        let (login, address) = match rest.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, rest),
        };
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| shown())?),
            None => (address, 6379),
        };
        if host.is_empty() {
            return Err(shown());
        }
        let (user, password) = match login.and_then(|login| login.split_once(':')) {
            Some(("", password)) => (None, Some(password.to_owned())),
            Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
            None => (None, login.map(ToOwned::to_owned)),
        };
        Ok(Self { host: host.to_owned(), port, user, password })
    }

    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The name of this server's indexes in the registry.
    pub(crate) fn family(&self) -> String {
        format!("redis-{}", short_hash(&self.address(), 12))
    }

    pub(crate) fn url(&self, index: u16) -> String {
        let login = match (&self.user, &self.password) {
            (Some(user), Some(password)) => format!("{user}:{password}@"),
            (None, Some(password)) => format!(":{password}@"),
            (Some(_) | None, None) => String::new(),
        };
        format!("redis://{login}{}:{}/{index}", self.host, self.port)
    }

    fn connect(&self) -> Result<Connection, RedisError> {
        let failed =
            |source| RedisError::Io { address: self.address(), command: "a connection", source };
        let address = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(failed)?
            .next()
            .ok_or_else(|| failed(io::Error::other("the name has no address")))?;
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
        let mut connection = Connection { stream: BufReader::new(stream), address: self.address() };
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => connection.ok("AUTH", &[user, password])?,
            (None, Some(password)) => connection.ok("AUTH", &[password])?,
            (Some(_) | None, None) => {}
        }
        Ok(connection)
    }

    /// The number of keys in the index.
    pub(crate) fn keys(&self, index: u16) -> Result<u64, RedisError> {
        let mut connection = self.connect()?;
        connection.ok("SELECT", &[&index.to_string()])?;
        let answer = connection.ask("DBSIZE", &[])?;
        answer.strip_prefix(':').and_then(|n| n.parse().ok()).ok_or_else(|| RedisError::Answer {
            address: self.address(),
            command: "DBSIZE",
            answer,
        })
    }

    /// Removes every key of the index.
    pub(crate) fn flush(&self, index: u16) -> Result<(), RedisError> {
        let mut connection = self.connect()?;
        connection.ok("SELECT", &[&index.to_string()])?;
        connection.ok("FLUSHDB", &[])
    }

    /// Whether the server answers.
    pub(crate) fn ping(&self) -> Result<(), RedisError> {
        self.connect()?.ask("PING", &[]).map(drop)
    }

    pub(crate) fn none_free(&self) -> RedisError {
        RedisError::NoneFree { address: self.address() }
    }
}

struct Connection {
    stream: BufReader<TcpStream>,
    address: String,
}

impl Connection {
    fn ask(&mut self, command: &'static str, words: &[&str]) -> Result<String, RedisError> {
        let failed = |source| RedisError::Io { address: self.address.clone(), command, source };
        let mut request = format!("*{}\r\n", words.len() + 1);
        for word in std::iter::once(&command).chain(words) {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes()).map_err(failed)?;
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(failed)?;
        let line = line.trim_end().to_owned();
        if line.starts_with('-') || line.is_empty() {
            return Err(RedisError::Answer {
                address: self.address.clone(),
                command,
                answer: line,
            });
        }
        Ok(line)
    }

    fn ok(&mut self, command: &'static str, words: &[&str]) -> Result<(), RedisError> {
        self.ask(command, words).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_urls_round_trip() {
        let plain = RedisServer::parse("redis://localhost").unwrap();
        assert_eq!((plain.host.as_str(), plain.port), ("localhost", 6379));
        let full = RedisServer::parse("redis://u:p%40@h:1234/5").unwrap();
        assert_eq!(full.url(3), "redis://u:p%40@h:1234/3");
        assert_eq!(RedisServer::parse("redis://:pw@h").unwrap().url(1), "redis://:pw@h:6379/1");
        assert!(RedisServer::parse("http://h").is_err());
        let err = RedisServer::parse("redis://:secret@h:port").unwrap_err().to_string();
        assert!(!err.contains("secret"), "{err}");
    }
}
