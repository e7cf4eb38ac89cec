//! Declared things of every kind.

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

    /// By name. `kind`: any word for it.
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

    /// What was written of one, oldest first.
    pub async fn resource_events(&self, kind: &str, name: &str) -> Result<Vec<Event>, ClientError> {
        self.get(path(kind, name)?.then("/events").as_str()).await
    }

    /// What exists for one.
    pub async fn resource_owned(
        &self,
        kind: &str,
        name: &str,
    ) -> Result<Vec<ResourceOwned>, ClientError> {
        self.get(path(kind, name)?.then("/owned").as_str()).await
    }

    /// Creates or changes one to what `document` says.
    pub async fn resource_put(
        &self,
        kind: &str,
        name: &str,
        document: &Value,
    ) -> Result<ResourceApplied, ClientError> {
        let path = path(kind, name)?;
        self.send(Method::PUT, path.as_str(), document, None, Patience::Quick).await
    }

    /// Creates or changes many: all of them or none.
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

    /// The resources of a kind as they change: what is there first, or what changed `after` that
    /// resource version. Resumes by itself, up to `max_resumes` times in a row.
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

/// What the stream says.
#[derive(Clone, Debug, PartialEq)]
pub enum ResourceNews {
    /// As it stands now.
    Put(Box<Resource>),
    /// It is gone, or does not match any more; it may not have been sent before.
    Gone(ResourceGone),
    /// All existing ones have been sent; what follows happens now.
    Snapshot(ResourceSnapshot),
}

/// Resources as they change. Resumes by itself where the connection broke.
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
    /// The next news; `None` only after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the stream broke and could not be resumed; it is over then. A problem of
    /// the kind `gone` says to watch again from the start.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call goes on.
    pub async fn next(&mut self) -> Option<Result<ResourceNews, ClientError>> {
        self.0.next().await
    }
}
