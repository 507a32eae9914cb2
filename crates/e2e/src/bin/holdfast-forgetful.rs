//! Serves one forgetful disk to a test.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    holdfast_forgetful::program(&arguments)
}
