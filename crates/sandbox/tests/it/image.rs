//! The image of the docker tests: the product's own, with busybox only.

use std::path::Path;

use bollard::Docker as Client;
use overmind_sandbox::docker::image::{From, build};

pub(crate) const IMAGE: &str = "overmind-test-busybox:2";

/// Builds the image in the engine at `socket`, unless it exists.
pub(crate) async fn ensure_test_image(socket: &str) {
    build(Path::new(socket), From::Busybox, IMAGE).await.unwrap();
}

pub(crate) async fn client(socket: &str) -> Client {
    let client = Client::connect_with_unix(socket, 30, bollard::API_DEFAULT_VERSION).unwrap();
    client.negotiate_version().await.unwrap()
}
