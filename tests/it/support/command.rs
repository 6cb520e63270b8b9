//! The binary as a user calls it: arguments, variables and standard input in; exit code and both outputs back.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Runs `tributary` with these variables and no others.
pub(crate) async fn tributary(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    tributary_given(arguments, environment, b"").await
}

/// As [`tributary`], with `input` on its standard input.
pub(crate) async fn tributary_given(
    arguments: &[&str],
    environment: &[(&str, &str)],
    input: &[u8],
) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(arguments).env_clear().envs(environment.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let input = input.to_vec();
    let run = move || {
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().unwrap();
        // If it ends without reading, the pipe breaks, and its exit code says why.
        stdin.write_all(&input).ok();
        drop(stdin);
        child.wait_with_output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

/// Its standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Its standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
