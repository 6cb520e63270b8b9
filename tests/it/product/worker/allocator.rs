//! The allocator of the shipped binary and its settings.

use std::process::Command;

use crate::support::Result;

crate::tests! {
    plain the_allocator_applies_its_settings;
}

async fn the_allocator_applies_its_settings() -> Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    let output = command.arg("--version").env("MALLOC_CONF", "confirm_conf:true").output().unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    for setting in ["narenas:4", "dirty_decay_ms:500", "muzzy_decay_ms:0", "background_thread:true"] {
        let set = format!("Set conf value: {setting}");
        assert!(said.lines().any(|line| line.ends_with(&set)), "{set} in {said}");
    }
    assert!(!said.contains("Invalid"), "{said}");
    Ok(())
}
