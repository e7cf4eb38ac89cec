//! Budgets, costs and the emergency stop.

use hyper::Method;
use overmind_api::{Budget, BudgetPut, Cost, CostsQuery, HaltRequest, HaltState};

use crate::calls::{Client, filled};
use crate::connection::Patience;
use crate::error::ClientError;
use crate::page::TargetPath;

impl Client {
    /// Returns all limits with the state of their windows, widest scope first.
    pub async fn budget_list(&self) -> Result<Vec<Budget>, ClientError> {
        self.get("/api/budgets").await
    }

    /// Sets a limit, or replaces it.
    pub async fn budget_put(&self, budget: &BudgetPut) -> Result<Budget, ClientError> {
        self.send(Method::PUT, "/api/budgets", budget, None, Patience::Quick).await
    }

    /// Removes a limit, and returns its last state.
    pub async fn budget_remove(&self, id: &str) -> Result<Budget, ClientError> {
        let path = TargetPath::new("/api/budgets").segment(filled("the budget", id)?);
        self.act(Method::DELETE, path.as_str()).await
    }

    /// Returns costs, highest first.
    pub async fn costs(&self, query: &CostsQuery) -> Result<Vec<Cost>, ClientError> {
        let path = TargetPath::new("/api/costs")
            .query("by", query.by)
            .query("since", query.since.as_ref())
            .query("until", query.until.as_ref())
            .query("limit", query.limit);
        self.get(path.as_str()).await
    }

    pub async fn halt_fetch(&self) -> Result<HaltState, ClientError> {
        self.get("/api/halt").await
    }

    /// Starts an emergency stop: no call that costs money may start.
    pub async fn halt(&self, halt: &HaltRequest) -> Result<HaltState, ClientError> {
        self.send(Method::POST, "/api/halt", halt, None, Patience::Long).await
    }

    /// Ends an emergency stop.
    pub async fn resume(&self) -> Result<HaltState, ClientError> {
        self.act(Method::POST, "/api/resume").await
    }
}
