//! The many writers as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    holdfast_e2e::workload::many::writers::run(&[], &arguments)
}
