//! Resources of every kind.

use hyper::Method;
use overmind_api::{
    Event, KindView, Resource, ResourceApplied, ResourceApply, ResourceDeleteQuery,
    ResourceDeleted, ResourceGone, ResourceListQuery, ResourceOwned, ResourceSnapshot,
    ResourcesApplied,
};
use serde_json::Value;

use crate::calls::{Client, filled};
use crate::connection::Patience;
use crate::error::ClientError;
use crate::page::{Page, TargetPath};
use crate::stream::{From, Message, Reader, Said, Stream};

fn kind_path(kind: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/resources").segment(filled("the kind", kind)?))
}

fn path(kind: &str, name: &str) -> Result<TargetPath, ClientError> {
    Ok(kind_path(kind)?.segment(filled("the name", name)?))
}

impl Client {
    pub async fn kind_list(&self) -> Result<Vec<KindView>, ClientError> {
        self.get("/api/kinds").await
    }

    /// Returns resources sorted by name. `kind` is any name of the kind.
    pub async fn resource_list(
        &self,
        kind: &str,
        query: &ResourceListQuery,
    ) -> Result<Page<Resource>, ClientError> {
        let path = kind_path(kind)?
            .query("limit", query.limit)
            .query("cursor", query.cursor.as_ref())
            .query("selector", query.selector.as_ref())
            .query("owner", query.owner.as_ref());
        self.page(path).await
    }

    pub async fn resource_fetch(&self, kind: &str, name: &str) -> Result<Resource, ClientError> {
        self.get(path(kind, name)?.as_str()).await
    }

    /// Returns the events of one resource, oldest first.
    pub async fn resource_events(&self, kind: &str, name: &str) -> Result<Vec<Event>, ClientError> {
        self.get(path(kind, name)?.then("/events").as_str()).await
    }

    /// Returns the objects that a resource owns.
    pub async fn resource_owned(
        &self,
        kind: &str,
        name: &str,
    ) -> Result<Vec<ResourceOwned>, ClientError> {
        self.get(path(kind, name)?.then("/owned").as_str()).await
    }

    /// Creates a resource, or changes it to match `document`.
    pub async fn resource_put(
        &self,
        kind: &str,
        name: &str,
        document: &Value,
    ) -> Result<ResourceApplied, ClientError> {
        let path = path(kind, name)?;
        self.send(Method::PUT, path.as_str(), document, None, Patience::Quick).await
    }

    /// Creates or changes many resources: either all or none.
    pub async fn resource_apply(
        &self,
        apply: &ResourceApply,
    ) -> Result<ResourcesApplied, ClientError> {
        self.send(Method::POST, "/api/resources", apply, None, Patience::Long).await
    }

    pub async fn resource_delete(
        &self,
        kind: &str,
        name: &str,
        query: &ResourceDeleteQuery,
    ) -> Result<ResourceDeleted, ClientError> {
        let path = path(kind, name)?
            .query("cascade", query.cascade.as_ref())
            .query("resource_version", query.resource_version);
        self.act(Method::DELETE, path.as_str()).await
    }

    /// Streams the changes of a kind's resources: first the existing ones, or the changes after the
    /// resource version `after`. Reconnects automatically, up to `max_resumes` times in a row.
    pub async fn resource_watch(
        &self,
        kind: &str,
        selector: Option<&str>,
        after: Option<String>,
        max_resumes: u32,
    ) -> Result<ResourceWatch, ClientError> {
        let from = From {
            attempt: format!("watching resources of kind {kind}"),
            target: kind_path(kind)?.then("/watch").query("selector", selector).as_str().to_owned(),
            last: after,
            max_resumes,
            ends: false,
        };
        Ok(ResourceWatch(Stream::open(self.clone(), from, News).await?))
    }
}

/// A message of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum ResourceNews {
    /// The present state of a resource.
    Put(Box<Resource>),
    /// The resource was removed or no longer matches. It may never have been sent before.
    Gone(ResourceGone),
    /// All existing resources have been sent, and changes follow.
    Snapshot(ResourceSnapshot),
}

/// Streams changes of resources. Reconnects automatically.
#[derive(Debug)]
pub struct ResourceWatch(Stream<News>);

#[derive(Debug)]
struct News;

impl Reader for News {
    type Item = ResourceNews;

    fn read(&self, message: Message) -> Result<Said<ResourceNews>, serde_json::Error> {
        Ok(Said::Item(match message.event.as_deref() {
            Some("put") => ResourceNews::Put(serde_json::from_str(&message.data).map(Box::new)?),
            Some("deleted") => ResourceNews::Gone(serde_json::from_str(&message.data)?),
            Some("snapshot") => ResourceNews::Snapshot(serde_json::from_str(&message.data)?),
            Some(_) | None => return Ok(Said::Unknown),
        }))
    }
}

impl ResourceWatch {
    /// Returns the next message; `None` only after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the stream broke and could not be resumed. It is then over. After a
    /// problem of the kind `gone`, start a new watch.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues.
    pub async fn next(&mut self) -> Option<Result<ResourceNews, ClientError>> {
        self.0.next().await
    }
}
