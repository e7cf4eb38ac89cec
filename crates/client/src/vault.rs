//! The vault: one method per operation.

use hyper::Method;
use overmind_api::{
    GrantInfo, GrantPut, ListQuery, Okay, SecretImport, SecretInfo, SecretPut, SecretRotate,
    ServiceInfo, ServicePut, VaultInfo, VaultPassphrase,
};

use crate::calls::{Client, filled, listed};
use crate::connection::Patience;
use crate::error::ClientError;
use crate::page::{Page, TargetPath};

impl Client {
    pub async fn vault_status(&self) -> Result<VaultInfo, ClientError> {
        self.get("/api/vault").await
    }

    pub async fn vault_unlock(&self, with: &VaultPassphrase) -> Result<VaultInfo, ClientError> {
        self.post("/api/vault/unlock", with).await
    }

    pub async fn vault_rotate_master(
        &self,
        with: &VaultPassphrase,
    ) -> Result<VaultInfo, ClientError> {
        let path = "/api/vault/rotate-master";
        self.send(Method::POST, path, with, None, Patience::Long).await
    }

    /// Returns secrets sorted by name.
    pub async fn secret_list(&self, query: &ListQuery) -> Result<Page<SecretInfo>, ClientError> {
        self.page(listed(TargetPath::new("/api/vault/secrets"), query)).await
    }

    pub async fn secret_put(
        &self,
        name: &str,
        secret: &SecretPut,
    ) -> Result<SecretInfo, ClientError> {
        let path = secret_path(name)?;
        self.send(Method::PUT, path.as_str(), secret, None, Patience::Quick).await
    }

    pub async fn secret_rotate(
        &self,
        name: &str,
        rotate: &SecretRotate,
    ) -> Result<SecretInfo, ClientError> {
        self.post(secret_path(name)?.then("/rotate").as_str(), rotate).await
    }

    pub async fn secret_remove(&self, name: &str) -> Result<Okay, ClientError> {
        self.act(Method::DELETE, secret_path(name)?.as_str()).await
    }

    /// Imports either all secrets or none, and returns the changed ones.
    pub async fn secret_import(
        &self,
        import: &SecretImport,
    ) -> Result<Vec<SecretInfo>, ClientError> {
        self.post("/api/vault/import", import).await
    }

    /// Returns services sorted by name.
    pub async fn service_list(&self, query: &ListQuery) -> Result<Page<ServiceInfo>, ClientError> {
        self.page(listed(TargetPath::new("/api/vault/services"), query)).await
    }

    pub async fn service_put(
        &self,
        name: &str,
        service: &ServicePut,
    ) -> Result<ServiceInfo, ClientError> {
        let path = service_path(name)?;
        self.send(Method::PUT, path.as_str(), service, None, Patience::Quick).await
    }

    pub async fn service_remove(&self, name: &str) -> Result<Okay, ClientError> {
        self.act(Method::DELETE, service_path(name)?.as_str()).await
    }

    pub async fn grant_list(&self, query: &ListQuery) -> Result<Page<GrantInfo>, ClientError> {
        self.page(listed(TargetPath::new("/api/vault/grants"), query)).await
    }

    pub async fn grant_put(&self, grant: &GrantPut) -> Result<GrantInfo, ClientError> {
        self.post("/api/vault/grants", grant).await
    }

    pub async fn grant_revoke(&self, grant: &GrantPut) -> Result<Okay, ClientError> {
        self.post("/api/vault/grants/revoke", grant).await
    }
}

fn secret_path(name: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/vault/secrets").segment(filled("the secret", name)?))
}

fn service_path(name: &str) -> Result<TargetPath, ClientError> {
    Ok(TargetPath::new("/api/vault/services").segment(filled("the service", name)?))
}
