//! The search for secrets, on texts with and without them.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::support::run_directory;
use crate::support::secrets::Secrets;

crate::tests! {
    plain a_secret_is_found_in_every_form_wherever_it_stands;
    plain text_that_only_resembles_a_secret_is_not_reported;
    plain files_are_searched_as_deep_as_they_lie;
}

const SECRET: &str = "s3cret/with+signs?and=more";

fn secrets() -> Secrets {
    let mut secrets = Secrets::default();
    secrets.add("the key", SECRET);
    secrets
}

async fn a_secret_is_found_in_every_form_wherever_it_stands() {
    let secrets = secrets();

    for before in ["", "x", "xy", "xyz", "{\"token\":\""] {
        let plain = format!("{before}{SECRET}\"}}");
        let forms = [
            plain.clone(),
            format!("log: {}", STANDARD.encode(&plain)),
            format!("log: {}", URL_SAFE_NO_PAD.encode(&plain)),
            format!("?a={before}&key=s3cret%2Fwith%2Bsigns%3Fand%3Dmore"),
        ];
        for form in forms {
            assert!(!secrets.found_in("it", form.as_bytes()).is_empty(), "{form}");
        }
    }
}

async fn text_that_only_resembles_a_secret_is_not_reported() {
    for text in ["", "s3cret", "s3cret/with+signs?and=mor", "S3CRET/WITH+SIGNS?AND=MORE", "[hidden]"] {
        assert_eq!(secrets().found_in("it", text.as_bytes()), Vec::<String>::new(), "{text}");
    }
}

async fn files_are_searched_as_deep_as_they_lie() {
    let directory = run_directory::create("rig-secrets").unwrap();
    let deep = directory.join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(directory.join("clean"), "nothing").unwrap();
    std::fs::write(deep.join("log"), format!("\u{0}\u{1}{SECRET}")).unwrap();

    let found = secrets().found_below(&directory);

    assert_eq!(found, [format!("the key in {}", deep.join("log").display())]);
}
