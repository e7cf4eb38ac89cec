//! Explains the engine's errors to the caller.

use std::path::Path;

use bollard::errors::Error;
use bollard::models::ContainerWaitResponse;
use overmind_core::sandbox::{Exit, SandboxError, SandboxLevel};

use crate::docker::{Options, chain};
use crate::request::bad_config;

/// Clients of the API know this code and the reasons below, so they keep their names although the
/// driver needs no `docker` program.
const DOCKER_UNAVAILABLE: &str = "docker_unavailable";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    SocketMissing,
    PingFailed,
    PingTimedOut,
    ImageMissing,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::SocketMissing => "docker_binary_missing",
            Self::PingFailed => "docker_info_failed",
            Self::PingTimedOut => "docker_info_timeout",
            Self::ImageMissing => "image_missing",
        }
    }
}

/// The error for an unusable engine. `why` goes into the remedy, because the message is fixed.
pub(crate) fn unavailable(reason: Reason, socket: &Path, why: &str) -> SandboxError {
    SandboxError::Unavailable {
        code: DOCKER_UNAVAILABLE.to_owned(),
        message: "Docker daemon is unavailable or inaccessible".to_owned(),
        reason: reason.as_str().to_owned(),
        remedy: format!(
            "start the Docker engine, let this user open its socket, or set the socket's path \
             (tried {}: {why})",
            socket.display()
        ),
    }
}

/// Converts an error from before the command ran.
pub(crate) fn before_start(err: Error, options: &Options) -> SandboxError {
    match err {
        Error::DockerResponseServerError { status_code: 404, message }
            if message.to_lowercase().contains("no such image") =>
        {
            SandboxError::Unavailable {
                code: DOCKER_UNAVAILABLE.to_owned(),
                message: format!("the engine has no image {}", options.image),
                reason: Reason::ImageMissing.as_str().to_owned(),
                remedy: format!(
                    "docker pull {}, or build one here: overmind sandbox image build docker",
                    options.image
                ),
            }
        }
        // The engine refused the request: a limit is out of range, or a path cannot be mounted.
        Error::DockerResponseServerError { status_code: 400, message } => {
            bad_config(format!("the engine refuses the container: {message}"))
        }
        Error::DockerResponseServerError { status_code, message } => SandboxError::Failed {
            level: SandboxLevel::Docker.as_str(),
            message: format!("the engine answered {status_code}: {message}"),
        },
        Error::RequestTimeoutError => {
            unavailable(Reason::PingTimedOut, &options.socket, "no answer")
        }
        err => unavailable(Reason::PingFailed, &options.socket, &chain(&err)),
    }
}

/// How a started container ended; `None` if the engine must be asked again.
pub(crate) fn after_start(answer: Option<Result<ContainerWaitResponse, Error>>) -> Option<Exit> {
    match answer {
        Some(Ok(ended)) => Some(Exit::Code(exit_code(ended.status_code))),
        // The client library reports a nonzero exit code in this way.
        Some(Err(Error::DockerContainerWaitError { code, .. })) => {
            Some(Exit::Code(exit_code(code)))
        }
        // Somebody removed the container, which kills it.
        Some(Err(Error::DockerResponseServerError { status_code: 404, .. })) => {
            Some(Exit::Signal(libc::SIGKILL))
        }
        Some(Err(_)) | None => None,
    }
}

fn exit_code(code: i64) -> i32 {
    i32::try_from(code).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.to_owned() }
    }

    #[test]
    fn an_engines_refusal_keeps_its_text_and_gets_an_explanation() {
        let options = Options { image: "x:1".to_owned(), ..Options::default() };
        match before_start(answered(404, "No such image: x:1"), &options) {
            SandboxError::Unavailable { code, message, reason, remedy } => {
                assert_eq!((code.as_str(), reason.as_str()), (DOCKER_UNAVAILABLE, "image_missing"));
                assert_eq!(message, "the engine has no image x:1");
                assert!(remedy.starts_with("docker pull x:1, or build"), "{remedy}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(
            before_start(answered(400, "range of CPUs"), &options),
            bad_config("the engine refuses the container: range of CPUs")
        );
        assert_eq!(
            before_start(answered(500, "broken"), &options),
            SandboxError::Failed {
                level: "docker",
                message: "the engine answered 500: broken".to_owned()
            }
        );
    }

    #[test]
    fn a_wait_error_with_a_code_is_an_exit_and_a_lost_connection_is_retried() {
        let wait = |code| Error::DockerContainerWaitError { error: String::new(), code };
        assert_eq!(after_start(Some(Err(wait(137)))), Some(Exit::Code(137)));
        assert_eq!(after_start(Some(Err(answered(404, "gone")))), Some(Exit::Signal(9)));
        assert_eq!(after_start(Some(Err(answered(500, "busy")))), None);
        assert_eq!(after_start(Some(Err(Error::RequestTimeoutError))), None);
        assert_eq!(after_start(None), None);
    }
}
