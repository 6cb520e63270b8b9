//! The effects of fault rules on answers, the same for the gateway and the identity provider.

use axum::response::{IntoResponse as _, Response};

use crate::{
    answer::{hang_up, html_answer, oversized_answer, unknown_path},
    knobs::{Effect, Tells},
    refusal::{Refusal, throttled, used_up},
};

pub(super) mod spoil;

/// What is answered before anything is checked or done; `None` for effects that need the right answer first.
pub(crate) fn instead(effect: &Effect) -> Option<Response> {
    match *effect {
        Effect::Throttle { seconds, tells } => Some(throttled(seconds.into(), tells).into_response()),
        Effect::Quota { seconds } => Some(used_up(seconds.into(), Tells::Both).into_response()),
        Effect::Status(status) => Some(failed(status.get())),
        Effect::UnknownPath => Some(unknown_path()),
        Effect::Drop => Some(hang_up()),
        Effect::Html { status } => Some(html_answer(status.get())),
        Effect::Oversized { bytes, status } => Some(oversized_answer(status.get(), bytes as usize)),
        _ => None,
    }
}

fn failed(status: u16) -> Response {
    if status >= 502 {
        Refusal::gateway(status, "The service is unavailable.").into_response()
    } else {
        Refusal::api(status, "An error has occurred.").into_response()
    }
}
