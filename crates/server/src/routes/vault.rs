//! The vault: secrets that go in and never come out, services, grants.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
#[cfg(feature = "openapi")]
use overmind_api::ListQuery;
use overmind_api::{
    GrantInfo, GrantPut, Okay, SecretImport, SecretInfo, SecretPut, SecretRotate, SecretText,
    ServiceInfo, ServicePut, VaultInfo, VaultPassphrase,
};
use overmind_core::vault::grant::{Grant, GrantKind, GrantRow};
use overmind_core::vault::service::Service;
use overmind_core::vault::{Secret, SecretName, import};
use overmind_engine::{SecretView, ServiceView, VaultStatus};

use crate::cx::Cx;
use crate::extract::{Body, LargeBody, Query, SecretPath, ServicePath, Who};
use crate::fault::Fault;
use crate::page::{Hex, Window, json, list};

pub(super) fn secret_info(view: SecretView) -> SecretInfo {
    SecretInfo {
        name: view.name.to_string(),
        version: view.version,
        versions: view.versions,
        created_at: view.created_at,
        created_by: view.created_by,
        uses: view.uses,
        last_used_at: view.last_used_at,
        problem: view.problem,
        shadows_environment: view.shadows_environment,
    }
}

fn service_info(view: ServiceView) -> ServiceInfo {
    ServiceInfo {
        name: view.service.name.clone(),
        origin: view.origin.as_str().to_owned(),
        ready: view.ready,
        service: serde_json::to_value(&*view.service).expect("a declaration is plain data"),
    }
}

fn grant_info(row: GrantRow) -> GrantInfo {
    let GrantRow { grant: Grant { agent, kind, object }, created_at, created_by } = row;
    GrantInfo { agent, kind: kind.as_str().to_owned(), object, created_at, created_by }
}

fn info(status: VaultStatus) -> VaultInfo {
    VaultInfo {
        locked: status.locked,
        protection: status.protection.map(|protection| protection.as_str().to_owned()),
        secrets: status.secrets as u64,
        damaged: status.damaged as u64,
    }
}

/// Never quotes the value.
fn secret(field: &str, text: &SecretText) -> Result<Secret, Fault> {
    Secret::new(text.expose()).map_err(|err| Fault::invalid(field, err.to_string()))
}

fn grant(put: GrantPut) -> Result<Grant, Fault> {
    let GrantPut { agent, secret, service } = put;
    let (kind, object) = match (secret, service) {
        (Some(secret), None) => (GrantKind::Secret, secret),
        (None, Some(service)) => (GrantKind::Service, service),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Fault::invalid("secret", "either `secret` or `service` must be given"));
        }
    };
    Ok(Grant { agent, kind, object: object.to_ascii_lowercase() })
}

/// Says whether the vault is open, and how its key is kept.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/vault", tag = "vault", responses((status = 200, body = VaultInfo))
))]
pub(crate) async fn vault_status(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    Ok(json(&info(cx.engine.vault_status(&caller)?)))
}

/// Opens a vault that is locked: with a passphrase, or because its key file is back.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/vault/unlock", tag = "vault", request_body = VaultPassphrase,
    responses((status = 200, body = VaultInfo),
        (status = 409, description = "It stays locked, and why: its passphrase was not given, or its key file is not there"),
        (status = 422, description = "The passphrase is wrong"))
))]
pub(crate) async fn vault_unlock(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<VaultPassphrase>,
) -> Result<Response, Fault> {
    let passphrase = body.value.passphrase.as_ref().map(|text| secret("passphrase", text));
    let passphrase = passphrase.transpose()?;
    let engine = cx.engine.clone();
    let work = async move { engine.vault_unlock(&caller, passphrase).await };
    // A locked vault is the expected state here, and no failure of the server.
    let status = cx.detached(work).await.map_err(Fault::unavailable_is_conflict)?;
    Ok(json(&info(status)))
}

/// Puts all secrets under a new master key; with a passphrase, under that one from now on.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/vault/rotate-master", tag = "vault", request_body = VaultPassphrase,
    responses((status = 200, body = VaultInfo), (status = 409, description = "A secret is damaged"),
        (status = 503, description = "The vault is locked"))
))]
pub(crate) async fn vault_rotate_master(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<VaultPassphrase>,
) -> Result<Response, Fault> {
    let passphrase = body.value.passphrase.as_ref().map(|text| secret("passphrase", text));
    let passphrase = passphrase.transpose()?;
    let engine = cx.engine.clone();
    let work = async move { engine.vault_rotate_master(&caller, passphrase).await };
    Ok(json(&info(cx.detached(work).await?)))
}

/// Lists the secrets by name, without their values. Admins only.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/vault/secrets", tag = "vault", params(ListQuery),
    responses((status = 200, body = [SecretInfo]))
))]
pub(crate) async fn secret_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    window: Window<Hex>,
) -> Result<Response, Fault> {
    let Window { limit, after } = window;
    let after = after.map(|Hex(text)| text);
    let all = cx.engine.secret_list(&caller, after.as_deref(), limit)?;
    Ok(list(&uri, limit, all, |view| Hex(view.name.to_string()).to_string(), secret_info))
}

/// Sets a secret: its first version, or the next. Answers without the value.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/api/vault/secrets/{name}", tag = "vault", request_body = SecretPut,
    params(("name" = String, Path)),
    responses((status = 200, body = SecretInfo), (status = 422, description = "A field is wrong"),
        (status = 503, description = "The vault is locked"))
))]
pub(crate) async fn secret_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    SecretPath(name): SecretPath,
    body: Body<SecretPut>,
) -> Result<Response, Fault> {
    let SecretPut { value, keep } = &body.value;
    let (value, keep) = (secret("value", value)?, *keep);
    let engine = cx.engine.clone();
    let work = async move { engine.secret_set(&caller, &name, value, keep, false).await };
    Ok(json(&secret_info(cx.detached(work).await?)))
}

/// Gives an existing secret a new value, or that of an earlier version.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/vault/secrets/{name}/rotate", tag = "vault",
    request_body = SecretRotate, params(("name" = String, Path)),
    responses((status = 200, body = SecretInfo), (status = 404, description = "`Secret not found`"),
        (status = 422, description = "A field is wrong"),
        (status = 503, description = "The vault is locked"))
))]
pub(crate) async fn secret_rotate(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    SecretPath(name): SecretPath,
    body: Body<SecretRotate>,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let SecretRotate { value, restore, keep } = &body.value;
    let keep = *keep;
    let view = match (value, *restore) {
        (Some(value), None) => {
            let value = secret("value", value)?;
            let work = async move { engine.secret_set(&caller, &name, value, keep, true).await };
            cx.detached(work).await?
        }
        (None, Some(version)) => {
            let work = async move { engine.secret_restore(&caller, &name, version).await };
            cx.detached(work).await?
        }
        (Some(_), Some(_)) | (None, None) => {
            return Err(Fault::invalid("value", "either `value` or `restore` must be given"));
        }
    };
    Ok(json(&secret_info(view)))
}

/// Removes a secret with all its versions.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/vault/secrets/{name}", tag = "vault",
    params(("name" = String, Path)),
    responses((status = 200, body = Okay), (status = 404, description = "`Secret not found`"))
))]
pub(crate) async fn secret_remove(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    SecretPath(name): SecretPath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    cx.detached(async move { engine.secret_remove(&caller, &name).await }).await?;
    Ok(json(&Okay { ok: true }))
}

/// Sets many secrets, all or none; answers with those that changed.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/vault/import", tag = "vault", request_body = SecretImport,
    responses((status = 200, body = [SecretInfo]), (status = 422, description = "A field is wrong"))
))]
pub(crate) async fn secret_import(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LargeBody(body): LargeBody<SecretImport>,
) -> Result<Response, Fault> {
    // Lines of a file without a value are left out; here each name was meant.
    for (name, text) in &body.secrets {
        import::name_of(name).parse::<SecretName>().map_err(|err| {
            let shown: String = name.chars().filter(|c| !c.is_control()).take(24).collect();
            Fault::invalid("secrets", format!("`{shown}`: {err}"))
        })?;
        if text.expose().trim().is_empty() {
            return Err(Fault::invalid("secrets", format!("`{name}` has no value: leave it out")));
        }
    }
    let pairs = body.secrets.iter().map(|(name, text)| (name.as_str(), text.expose()));
    let all =
        import::from_pairs(pairs).map_err(|err| Fault::invalid("secrets", err.to_string()))?;
    let engine = cx.engine.clone();
    let work = async move { engine.secret_import(&caller, all).await };
    let all: Vec<SecretInfo> = cx.detached(work).await?.into_iter().map(secret_info).collect();
    Ok(json(&all))
}

/// Lists the services by name.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/vault/services", tag = "vault", params(ListQuery),
    responses((status = 200, body = [ServiceInfo]))
))]
pub(crate) async fn service_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    window: Window<Hex>,
) -> Result<Response, Fault> {
    let Window { limit, after } = window;
    let after = after.map(|Hex(text)| text);
    let all = cx.engine.service_list(&caller, after.as_deref(), limit)?;
    Ok(list(&uri, limit, all, |view| Hex(view.service.name.clone()).to_string(), service_info))
}

/// Declares a service, also in place of a built-in one. Admins only: it controls where a key is sent.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/api/vault/services/{name}", tag = "vault", request_body = ServicePut,
    params(("name" = String, Path)),
    responses((status = 200, body = ServiceInfo),
        (status = 409, description = "The server's own file declares it"),
        (status = 422, description = "A field is wrong; `errors` names it"))
))]
pub(crate) async fn service_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    ServicePath(name): ServicePath,
    body: Body<ServicePut>,
) -> Result<Response, Fault> {
    let ServicePut(mut value) = body.value;
    if let Some(fields) = value.as_object_mut() {
        let given = fields.insert("name".to_owned(), name.clone().into());
        if given.is_some_and(|given| given != *name) {
            return Err(Fault::invalid("name", "it is another than the path's"));
        }
    }
    let service: Service =
        serde_json::from_value(value).map_err(|err| Fault::invalid("service", err.to_string()))?;
    let engine = cx.engine.clone();
    let work = async move { engine.service_put(&caller, service).await };
    Ok(json(&service_info(cx.detached(work).await?)))
}

/// Removes a declaration; a built-in service of that name applies again.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/vault/services/{name}", tag = "vault",
    params(("name" = String, Path)),
    responses((status = 200, body = Okay), (status = 404, description = "`Service not found`"),
        (status = 409, description = "It is built in, or declared in the server's own file"))
))]
pub(crate) async fn service_remove(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    ServicePath(name): ServicePath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    cx.detached(async move { engine.service_remove(&caller, &name).await }).await?;
    Ok(json(&Okay { ok: true }))
}

/// Lists who may use what. Admins only: it names secrets.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/vault/grants", tag = "vault", params(ListQuery),
    responses((status = 200, body = [GrantInfo]))
))]
pub(crate) async fn grant_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    window: Window<Hex>,
) -> Result<Response, Fault> {
    let Window { limit, after } = window;
    let after = after.and_then(|Hex(text)| serde_json::from_str::<Grant>(&text).ok());
    let all = cx.engine.grant_list(&caller, after.as_ref(), limit)?;
    let place = |row: &GrantRow| {
        Hex(serde_json::to_string(&row.grant).expect("a grant is three texts")).to_string()
    };
    Ok(list(&uri, limit, all, place, grant_info))
}

/// Lets agents use a secret or a service. Admins only.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/vault/grants", tag = "vault", request_body = GrantPut,
    responses((status = 200, body = GrantInfo), (status = 422, description = "A field is wrong"))
))]
pub(crate) async fn grant_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<GrantPut>,
) -> Result<Response, Fault> {
    let grant = grant(body.value)?;
    let engine = cx.engine.clone();
    let row = cx.detached(async move { engine.grant_put(&caller, grant).await }).await?;
    Ok(json(&grant_info(row)))
}

/// Takes a grant back, by the words that it was given in.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/vault/grants/revoke", tag = "vault", request_body = GrantPut,
    responses((status = 200, body = Okay), (status = 404, description = "`Grant not found`"))
))]
pub(crate) async fn grant_revoke(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<GrantPut>,
) -> Result<Response, Fault> {
    let grant = grant(body.value)?;
    let engine = cx.engine.clone();
    cx.detached(async move { engine.grant_remove(&caller, &grant).await }).await?;
    Ok(json(&Okay { ok: true }))
}
