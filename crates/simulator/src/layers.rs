//! What applies to every answer.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::Response,
};

use super::Core;

/// Dates an answer by the provider's clock instead of the machine's.
pub(super) async fn set_date(State(core): State<Arc<Core>>, mut answer: Response) -> Response {
    if let Ok(date) = HeaderValue::try_from(core.clock.now().http_date()) {
        answer.headers_mut().insert(header::DATE, date);
    }
    answer
}
