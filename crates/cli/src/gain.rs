//! The `bench` and `demo` subcommands: they call the library that does it.

use holdfast_gain::{BenchOptions, DemoOptions, Host, Interrupted};

use crate::args::{BenchArgs, BenchCommand, BenchWorkerArgs, DemoArgs};
use crate::words::{quoted, shown};
use crate::{locate, preload, report};

/// `bench compare`: something is slower beyond the spread.
const EXIT_SLOWER: u8 = 3;

fn host() -> anyhow::Result<Host> {
    preload::library()?;
    Ok(Host {
        executable: locate::executable()?,
        version: env!("CARGO_PKG_VERSION"),
        keep_out: preload::keep_out,
        say: report::say,
        print: |text| report::print(text),
        shown,
    })
}

/// The `bench` subcommand.
pub fn bench(args: &BenchArgs) -> anyhow::Result<u8> {
    if let Some(BenchCommand::Compare { before, after }) = &args.command {
        let is_slower = holdfast_gain::compare(before, after, &host()?)?;
        return Ok(if is_slower { EXIT_SLOWER } else { 0 });
    }
    let words = std::env::args_os().skip(1).map(|word| quoted(word.as_ref()));
    let options = BenchOptions {
        dir: args.dir.clone(),
        pool: args.pool.clone(),
        rounds: args.rounds,
        time_ms: args.time,
        json: args.json.clone(),
        html: args.html.clone(),
        command: std::iter::once("holdfast".to_owned()).chain(words).collect::<Vec<_>>().join(" "),
    };
    status(holdfast_gain::bench(&options, &host()?).map(|()| 0))
}

/// The `demo` subcommand.
pub fn demo(args: &DemoArgs) -> anyhow::Result<u8> {
    let options = DemoOptions { dir: args.dir.clone(), seconds: args.seconds };
    status(holdfast_gain::demo(&options, &host()?).map(|all_there| u8::from(!all_there)))
}

/// The worker of `bench`.
pub fn work(args: &BenchWorkerArgs) -> anyhow::Result<u8> {
    holdfast_gain::work(&args.workload, &args.dir, args.time_ms)?;
    Ok(0)
}

/// Who was interrupted ends as if by that signal.
fn status(result: anyhow::Result<u8>) -> anyhow::Result<u8> {
    result.or_else(|error| match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => {
            report::say(&interrupted.to_string());
            Ok(128 + interrupted.0)
        }
        None => Err(error),
    })
}
