//! The list of services: built in, declared through the API, declared in the operator's file. Each
//! source overrides the ones before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use overmind_core::row::Role;
use overmind_core::vault::catalogue;
use overmind_core::vault::rows::VaultChange;
use overmind_core::vault::service::{MAX_DECLARED, Service};
use serde_json::{Value, json};

use super::{Origin, ServiceView};
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

pub(super) type All = BTreeMap<String, (Arc<Service>, Origin)>;

/// The built-in services, and those of the file.
pub(super) fn before(file: &[Service]) -> All {
    let own = |origin| move |service: Service| (service.name.clone(), (Arc::new(service), origin));
    let mut all: All = catalogue::built_in().into_iter().map(own(Origin::BuiltIn)).collect();
    all.extend(file.iter().cloned().map(own(Origin::File)));
    all
}

/// Adds a service that was declared through the API. If this program no longer accepts it, it is
/// skipped with a warning.
pub(super) fn declared(all: &mut All, name: &str, value: Value) {
    if all.get(name).is_some_and(|(_, origin)| *origin == Origin::File) {
        tracing::warn!(service = name, "a service of the file goes before the declared one");
        return;
    }
    match serde_json::from_value::<Service>(value).map_err(|err| err.to_string()) {
        Ok(service) => match service.check() {
            Ok(()) if service.name == name => {
                all.insert(name.to_owned(), (Arc::new(service), Origin::Declared));
            }
            Ok(()) => tracing::error!(service = name, "a declared service has another's name"),
            Err(err) => {
                tracing::error!(service = name, error = %err, "a declared service is wrong")
            }
        },
        Err(err) => tracing::error!(service = name, error = %err, "a declared service is damaged"),
    }
}

impl Engine {
    /// Declares a service, or replaces a declaration; it may override a built-in one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] for all but admins, because a declaration determines where a key
    /// is sent. [`EngineError::Invalid`] names the field; [`EngineError::Conflict`] if the
    /// operator's file declares it.
    pub async fn service_put(
        &self,
        by: &Caller,
        service: Service,
    ) -> Result<ServiceView, EngineError> {
        by.require(Role::Admin)?;
        service.check().map_err(|err| EngineError::invalid(err.field, err.problem))?;
        let vault = &self.vault;
        let _turn = vault.change.lock().await;
        let (before, count) = {
            let state = vault.state();
            let declared = |(_, origin): &&(Arc<Service>, Origin)| *origin == Origin::Declared;
            let count = state.services.values().filter(declared).count();
            (state.services.get(&service.name).cloned(), count)
        };
        match &before {
            Some((_, Origin::File)) => return Err(of_the_file(&service.name)),
            Some((_, Origin::Declared)) => {}
            Some((_, Origin::BuiltIn)) | None if count >= MAX_DECLARED => {
                let text = format!("there are {MAX_DECLARED} declared services: remove one");
                return Err(EngineError::conflict(text));
            }
            Some((_, Origin::BuiltIn)) | None => {}
        }
        let payload = json!({
            "by": by.name, "service": service.name, "base_url": service.base_url,
            "secret": service.secret, "auth": service.auth,
            "instead_of": before.map(|(_, origin)| origin.as_str()),
        });
        let value = serde_json::to_value(&service).expect("a declaration is plain data");
        let change = VaultChange::ServicePut { name: service.name.clone(), service: value };
        vault.commit("vault.service_declared", payload, vec![change]).await?;
        let service = Arc::new(service);
        let mut state = vault.state_mut();
        let entry = (Arc::clone(&service), Origin::Declared);
        state.services.insert(service.name.clone(), entry);
        let held = state.secrets.get(&service.secret);
        let ready = service.key_optional || held.is_some_and(|held| held.current.is_ok());
        Ok(ServiceView { service, origin: Origin::Declared, ready })
    }

    /// Removes a declaration; a built-in service of that name applies again.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Conflict`] for one that is built in or in the
    /// operator's file.
    pub async fn service_remove(&self, by: &Caller, name: &str) -> Result<(), EngineError> {
        by.require(Role::Admin)?;
        let vault = &self.vault;
        let _turn = vault.change.lock().await;
        let origin = vault.state().services.get(name).map(|(_, origin)| *origin);
        match origin {
            None => return Err(EngineError::not_found("Service")),
            Some(Origin::File) => return Err(of_the_file(name)),
            Some(Origin::BuiltIn) => {
                return Err(EngineError::conflict("a built-in service cannot be removed"));
            }
            Some(Origin::Declared) => {}
        }
        let payload = json!({ "by": by.name, "service": name });
        let change = VaultChange::ServiceDelete(name.to_owned());
        vault.commit("vault.service_removed", payload, vec![change]).await?;
        let built_in = catalogue::built_in().into_iter().find(|service| service.name == name);
        let mut state = vault.state_mut();
        match built_in {
            Some(service) => {
                state.services.insert(name.to_owned(), (Arc::new(service), Origin::BuiltIn));
            }
            None => drop(state.services.remove(name)),
        }
        drop(state);
        self.regranted();
        Ok(())
    }
}

fn of_the_file(name: &str) -> EngineError {
    let text = format!(
        "`{name}` is declared in the server's own file ([services.{name}]): change it there"
    );
    EngineError::conflict(text)
}
