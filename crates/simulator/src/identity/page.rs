//! The few pages a person sees: the login with its one button, the code of a desktop app, and what went wrong.
//!
//! Everything that came from a client is escaped, and the pages may run no scripts at all.

use std::fmt::Write as _;

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;background:#f3f4f6;color:#111827;margin:0}\
main{max-width:28rem;margin:12vh auto;padding:2rem;background:#fff;border-radius:.5rem;\
box-shadow:0 1px 4px rgba(0,0,0,.15)}h1{font-size:1.3rem;margin-top:0}\
code{overflow-wrap:anywhere}ul{padding-left:1.2rem}\
button{font:inherit;width:100%;padding:.6rem;border:0;border-radius:.3rem;background:#1d4ed8;color:#fff;cursor:pointer}";

/// What the login page tells.
#[derive(Debug)]
pub(super) struct LoginPage<'a> {
    /// Who logs in.
    pub(super) user: &'a str,
    /// Whose data is exposed.
    pub(super) tenant: &'a str,
    /// Which client asks.
    pub(super) client: &'a str,
    /// Where the user is sent afterwards.
    pub(super) redirect: &'a str,
    /// What is asked for.
    pub(super) scopes: &'a [String],
    /// What the button sends.
    pub(super) ticket: &'a str,
    /// Where the button sends it.
    pub(super) action: &'a str,
}

/// The login page.
pub(super) fn login(page: &LoginPage<'_>) -> Response {
    let mut scopes = String::new();
    for scope in page.scopes {
        write!(scopes, "<li><code>{}</code></li>", escape(scope)).ok();
    }
    let body = format!(
        "<h1>Log in</h1>\
        <p>Continue as <b>{}</b> and let <b>{}</b> read the data of <b>{}</b>?</p><ul>{scopes}</ul>\
        <form method=\"post\" action=\"{}\"><input type=\"hidden\" name=\"ticket\" value=\"{}\">\
        <button type=\"submit\">Log in and allow</button></form>\
        <p>You are then sent to <code>{}</code></p>",
        escape(page.user),
        escape(page.client),
        escape(page.tenant),
        escape(page.action),
        escape(page.ticket),
        escape(page.redirect),
    );
    html(StatusCode::OK, "Log in", &body)
}

/// The code, for a client that has no address.
pub(super) fn code(code: &str) -> Response {
    let body = format!(
        "<h1>You are logged in</h1><p>Copy this code into your application:</p><p><code>{}</code></p>",
        escape(code)
    );
    html(StatusCode::OK, "Logged in", &body)
}

/// What went wrong, where the client cannot be told.
pub(super) fn refusal(text: &str) -> Response {
    let body = format!("<h1>This login is not possible</h1><p>{}</p>", escape(text));
    html(StatusCode::BAD_REQUEST, "Login not possible", &body)
}

fn html(status: StatusCode, title: &str, body: &str) -> Response {
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
        <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
        <style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (status, headers, page).into_response()
}

/// Text as HTML, for elements and for quoted attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
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
