//! `/_control`: knobs, steps of the world, and what is true now.

use std::sync::Arc;

use axum::Router;

use super::Provider;

/// Routes under `/_control`.
pub fn router() -> Router<Arc<Provider>> {
    Router::new()
}
