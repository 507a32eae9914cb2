//! Completions and manual pages, generated from the command line's definition.

mod man;
mod mount;
mod pool;
mod roff;

use clap::CommandFactory;

use crate::args::{Arguments, CompletionsArgs, ManArgs};
use crate::report;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), "holdfast", &mut script);
    report::print(script)?;
    Ok(0)
}

/// Prints the main manual page or writes all of them.
pub fn man(args: &ManArgs) -> anyhow::Result<u8> {
    match &args.dir {
        None => report::print(man::main_page()?)?,
        Some(dir) => man::write_all(dir)?,
    }
    Ok(0)
}
