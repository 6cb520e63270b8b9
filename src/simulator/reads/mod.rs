//! Lists and records: accounting and payroll.

use std::sync::Arc;

use axum::Router;

use super::Provider;

/// Routes of ACC, CORE, IMPORT (by id) and PAY.
pub fn router() -> Router<Arc<Provider>> {
    Router::new()
}
