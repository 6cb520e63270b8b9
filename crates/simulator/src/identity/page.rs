//! The pages for people: the login, the code for desktop apps, and errors.
//!
//! All text from clients is escaped, and the pages run no scripts.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{AUTHORIZE, parameters::Parameters};
use crate::settings::Settings;

/// The login page. Its button sends the same request with the parameter `auto`.
pub(super) fn login(
    settings: &Settings,
    tenant: &str,
    scopes: &[String],
    redirect: &str,
    request: &Parameters,
) -> Response {
    let scopes: String =
        scopes.iter().map(|scope| format!("<li><code>{}</code></li>", escape(scope))).collect();
    let field = |(name, value): (&str, &str)| {
        format!("<input type=\"hidden\" name=\"{}\" value=\"{}\">", escape(name), escape(value))
    };
    let fields: String = request.pairs().chain([("auto", "1")]).map(field).collect();
    let body = format!(
        "<h1>Log in</h1>\
        <p>Continue as <b>{}</b> and let <b>{}</b> read the data of <b>{}</b>?</p><ul>{scopes}</ul>\
        <form method=\"get\" action=\"{AUTHORIZE}\">{fields}\
        <button type=\"submit\">Log in and allow</button></form>\
        <p>You are then sent to <code>{}</code></p>",
        escape(&settings.invoicing.mail),
        escape(&settings.client.id),
        escape(tenant),
        escape(redirect),
    );
    html(StatusCode::OK, "Log in", &body)
}

/// Shows the code to a client without a redirect address.
pub(super) fn code(code: &str) -> Response {
    let body = format!(
        "<h1>You are logged in</h1><p>Copy this code into your application:</p><p><code>{}</code></p>",
        escape(code)
    );
    html(StatusCode::OK, "Logged in", &body)
}

/// An error that cannot be sent to the client.
pub(super) fn refusal(text: &str) -> Response {
    let body = format!("<h1>This login is not possible</h1><p>{}</p>", escape(text));
    html(StatusCode::BAD_REQUEST, "Login not possible", &body)
}

fn html(status: StatusCode, title: &str, body: &str) -> Response {
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
        <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
        </head><body><main>{body}</main></body></html>"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; base-uri 'none'"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (status, headers, page).into_response()
}

/// Escapes text for elements and quoted attributes.
fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_leave_its_element_or_attribute() {
        assert_eq!(
            escape(r#"<a href="x" b='y'>&amp;é"#),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;é"
        );
    }
}
