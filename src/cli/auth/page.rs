//! The pages that the browser shows after the login. Plain, self-contained and without secrets.
//!
//! Text from outside is escaped and cut. No page runs a script, loads anything or sends a referrer, because its address holds the
//! code.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

/// Longest text from outside, in characters.
const MAX_TEXT_CHARS: usize = 300;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;background:#f3f4f6;color:#111827;margin:0}\
main{max-width:32rem;margin:12vh auto;padding:2rem;background:#fff;border-radius:.5rem;\
box-shadow:0 1px 4px rgba(0,0,0,.15)}h1{font-size:1.3rem;margin-top:0}p{overflow-wrap:anywhere}";

/// End of the page of a failed login.
const RETRY_HINT: &str =
    "</p><p>Nothing was changed. The terminal says more; run the command again to try once more.";

/// A page and its status.
#[derive(Debug)]
pub(super) struct LoginPage {
    status: StatusCode,
    title: &'static str,
    /// HTML.
    text: Cow<'static, str>,
}

impl LoginPage {
    /// The command ended before the login did.
    pub(super) const UNFINISHED: Self = Self::fixed(
        StatusCode::SERVICE_UNAVAILABLE,
        "Not logged in",
        "The login was given up before it was finished.</p><p>Nothing was changed. Run the command again to try once more.",
    );
    /// The callback does not belong to this login.
    pub(super) const NOT_TRUSTED: Self = Self::fixed(
        StatusCode::BAD_REQUEST,
        "Not trusted",
        "This answer does not belong to the login that was started here, so the login was canceled. If you did not start a login \
         just now, another site may have sent you here.</p><p>Nothing was changed. The terminal says more; run the command again \
         to try once more.",
    );
    /// A second callback.
    pub(super) const LATE: Self = Self::fixed(
        StatusCode::CONFLICT,
        "Already answered",
        "This login has been answered already; the first page says how it went.",
    );
    /// The request names another host than the redirect address.
    pub(super) const WRONG_HOST: Self = Self::fixed(
        StatusCode::MISDIRECTED_REQUEST,
        "Wrong address",
        "This address only takes the browser back from a login.",
    );
    pub(super) const WRONG_PATH: Self =
        Self::fixed(StatusCode::NOT_FOUND, "Not here", "There is nothing at this address.");
    pub(super) const WRONG_METHOD: Self =
        Self::fixed(StatusCode::METHOD_NOT_ALLOWED, "Wrong method", "This address takes GET only.");

    const fn fixed(status: StatusCode, title: &'static str, text: &'static str) -> Self {
        Self { status, title, text: Cow::Borrowed(text) }
    }

    /// The grant is stored under this name, or used by the command alone; `who` logged in, where that is known.
    pub(super) fn done(grant: Option<&str>, who: Option<&str>) -> Self {
        let who = who.map_or_else(String::new, |who| format!(" as <b>{}</b>", escape(who)));
        let kept = match grant {
            Some(grant) => format!("the workers have the grant <b>{}</b>", escape(grant)),
            None => "only the command in the terminal uses the login".to_owned(),
        };
        let text = format!("You are logged in{who}, and {kept}. You can close this page.");
        Self { status: StatusCode::OK, title: "Logged in", text: text.into() }
    }

    /// The identity service refused the login, for this reason.
    pub(super) fn refused(reason: &str) -> Self {
        let text = format!("The identity service refused the login: {}{RETRY_HINT}", escape(reason));
        Self { status: StatusCode::OK, title: "Not logged in", text: text.into() }
    }

    /// The identity service accepted the login, and a later step failed; `reason` has no secrets.
    pub(super) fn failed(reason: &str) -> Self {
        let text = format!(
            "The identity service accepted the login, but it was not finished: {}{RETRY_HINT}",
            escape(reason)
        );
        Self { status: StatusCode::BAD_GATEWAY, title: "Not logged in", text: text.into() }
    }
}

impl IntoResponse for LoginPage {
    fn into_response(self) -> Response {
        let Self { status, title, text } = self;
        let page = format!(
            "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} - Tributary</title>\
            <style>{STYLE}</style></head><body><main><h1>{title}</h1><p>{text}</p></main></body></html>"
        );
        let headers = [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CACHE_CONTROL, "no-store"),
            (
                header::CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
            ),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        let mut response = (status, headers, page).into_response();
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
        }
        response
    }
}

/// Text from outside, cut, on one line and HTML-escaped.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len().min(MAX_TEXT_CHARS));
    for letter in text.chars().take(MAX_TEXT_CHARS) {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    if text.chars().nth(MAX_TEXT_CHARS).is_some() {
        escaped.push('…');
    }
    escaped
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    async fn shown(page: LoginPage) -> (u16, String) {
        let response = page.into_response();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn text_from_outside_is_escaped_and_cut() {
        let reason = format!("<script>alert('x')</script>\"&\u{1b}[2J{}", "y".repeat(10_000));

        for page in [LoginPage::refused(&reason), LoginPage::failed(&reason)] {
            let (_, text) = shown(page).await;

            assert!(!text.contains("<script") && !text.contains('\u{1b}'), "{text}");
            assert!(text.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;"), "{text}");
            assert!(text.len() < 3_000, "{}", text.len());
        }
    }

    #[tokio::test]
    async fn only_a_stored_login_reads_as_done() {
        let done = LoginPage::done(Some("accounting"), Some("ana@example.com"));

        let (status, text) = shown(done).await;

        assert_eq!(status, 200);
        assert!(text.contains("Logged in") && text.contains("ana@example.com"), "{text}");
        for page in [
            LoginPage::refused("no"),
            LoginPage::NOT_TRUSTED,
            LoginPage::failed("no"),
            LoginPage::UNFINISHED,
            LoginPage::LATE,
            LoginPage::WRONG_HOST,
            LoginPage::WRONG_PATH,
            LoginPage::WRONG_METHOD,
        ] {
            let (_, text) = shown(page).await;
            assert!(!text.contains("Logged in") && !text.contains("are logged in"), "{text}");
        }
    }

    #[test]
    fn no_page_sends_a_referrer() {
        let response = LoginPage::NOT_TRUSTED.into_response();

        assert_eq!(response.headers()["referrer-policy"], "no-referrer");
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert!(
            response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'")
        );
    }
}
