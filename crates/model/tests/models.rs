//! Runs the models: they are built with `--cfg shuttle`, so in a directory of their own.
#![cfg(not(shuttle))]

use std::path::Path;
use std::process::Command;

/// Every model holds, and every protocol that is broken on purpose is caught.
#[test]
fn the_models_hold() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let status = Command::new(env!("CARGO"))
        .current_dir(&root)
        .env("RUSTFLAGS", format!("{flags} --cfg shuttle"))
        .args(["test", "--quiet", "--package", "holdfast-model", "--target-dir", "target/model", "--tests"])
        .status()
        .expect("cargo runs, it has built this test");
    assert!(
        status.success(),
        "a model failed; again, alone: RUSTFLAGS='--cfg shuttle' cargo test -p holdfast-model --target-dir \
         target/model NAME, with HOLDFAST_MODEL_SEED as it says above"
    );
}
