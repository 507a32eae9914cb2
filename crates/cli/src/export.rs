//! Completions and manual pages, generated from the command line's definition. Nothing is written
//! by hand.

use anyhow::Context;
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
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Arguments::command())
            .render(&mut page)
            .context("cannot make the manual page")?;
        report::print(page)?;
        return Ok(0);
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), dir))
        .with_context(|| format!("cannot write manual pages to {}", dir.display()))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_pages_are_made_for_every_subcommand() {
        let dir = tempfile::tempdir().expect("a directory");
        man(&ManArgs { dir: Some(dir.path().to_path_buf()) }).expect("written");
        let page = std::fs::read_to_string(dir.path().join("holdfast-run.1")).expect("a page for run");
        assert!(page.contains("volatile"));
        assert!(!dir.path().join("holdfast-keeper.1").exists(), "keeper is hidden");
    }
}
