//! Artifacts of runs.

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use overmind_api::{Artifact, ArtifactSaved, ListQuery, Okay};

use crate::calls::{Client, filled, listed, parse};
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::page::{Page, TargetPath};

fn runs(run: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/runs").segment(filled("the run", run)?).then("/artifacts"))
}

fn artifact(run: &str, name: &str) -> Result<TargetPath, ClientError> {
    let name = filled("the artifact's name", name)?;
    Ok(name.split('/').fold(runs(run)?, TargetPath::segment))
}

impl Client {
    /// Returns artifacts, last saved first.
    pub async fn artifact_list(
        &self,
        run: &str,
        query: &ListQuery,
    ) -> Result<Page<Artifact>, ClientError> {
        self.page(listed(runs(run)?, query)).await
    }

    /// Saves a content. If no type is given, the server guesses it.
    pub async fn artifact_put(
        &self,
        run: &str,
        name: &str,
        content: Vec<u8>,
        media_type: Option<&str>,
    ) -> Result<ArtifactSaved, ClientError> {
        let path = artifact(run, name)?;
        let call = Call {
            method: Method::PUT,
            target: path.as_str(),
            headers: vec![(CONTENT_TYPE, media_type.unwrap_or_default().to_owned())],
            body: Some(content.into()),
            patience: Patience::Long,
            also_fine: &[],
        };
        parse(&Box::pin(self.connections().call(call)).await?)
    }

    /// Opens an artifact's content for download in pieces.
    pub async fn artifact_get(&self, run: &str, name: &str) -> Result<Download, ClientError> {
        let path = artifact(run, name)?;
        let call = Call {
            method: Method::GET,
            target: path.as_str(),
            headers: vec![],
            body: None,
            patience: Patience::Long,
            also_fine: &[],
        };
        let response = Box::pin(self.connections().open(&call)).await?;
        let target = self.target().to_string();
        Ok(Download { body: response.into_body(), target, attempt: format!("downloading {name}") })
    }

    pub async fn artifact_delete(&self, run: &str, name: &str) -> Result<Okay, ClientError> {
        self.act(Method::DELETE, artifact(run, name)?.as_str()).await
    }
}

/// The download of a content.
#[derive(Debug)]
pub struct Download {
    body: Incoming,
    target: String,
    attempt: String,
}

impl Download {
    /// Returns the next piece; `None` at the end.
    ///
    /// # Errors
    ///
    /// If the connection broke before the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|err| ClientError::Broken {
                target: self.target.clone(),
                attempt: self.attempt.clone(),
                source: Box::new(err),
            })?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes.into()));
            }
        }
        Ok(None)
    }
}
