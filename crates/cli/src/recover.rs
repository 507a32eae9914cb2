//! The `recover` subcommand. What is done to each file is decided by the keeper's recovery; this
//! only passes the user's decisions on and shows the outcome.

mod all;

use std::path::{Path, PathBuf};

use holdfast_recovery::{FileOutcome, RecoverOptions, Report};

use crate::args::RecoverArgs;
use crate::named::must_be_a_pool;
use crate::report::Made;
use crate::words::{name_of, quoted, shown};
use crate::{locate, report, user};
use holdfast_look::progress::Progress;

/// The `recover` subcommand.
pub fn run(args: &RecoverArgs) -> anyhow::Result<u8> {
    let Some(pool) = args.pool.as_ref().filter(|_| !args.all) else { return all::run(args) };
    let pool = locate::absolute(pool)?;
    user::become_owner(&pool)?;
    let options = RecoverOptions {
        dry_run: args.dry_run,
        force: absolute(&args.force)?,
        discard: absolute(&args.discard)?,
        replay: args.replay,
        export: args.export.as_deref().map(locate::absolute).transpose()?,
    };
    if args.if_needed && !pool.exists() {
        report::print(format!("there is no pool {} yet\n", name_of(&pool)))?;
        return Ok(0);
    }
    if args.waiting && !pool.exists() {
        return Ok(0);
    }
    must_be_a_pool(&pool)?;
    if args.waiting {
        return waiting(&pool);
    }
    let mut progress = Progress::new();
    let recovered = holdfast_recovery::recover(&pool, &options, &mut |stage, done, total| {
        progress.update(stage, done, total)
    });
    progress.finish();
    let outcome = match recovered {
        Err(error) if error.is_busy() && args.if_needed => {
            report::print(format!("nothing is to be done: {}\n", shown(&error.to_string())))?;
            return Ok(0);
        }
        outcome => outcome?,
    };
    if args.json {
        report::print(report::json(&outcome)?)?;
    } else {
        let (verb, made) = match args.dry_run {
            true => ("would be recovered (dry run, nothing changed)", Made::Would),
            false => ("recovered", Made::Done),
        };
        report::print(format!("pool {} {verb}\n{}", name_of(&pool), report::recovery(&outcome, made)))?;
    }
    let attention = report::needs_attention(&outcome);
    if attention {
        report::say_lines(&advice(&outcome, &pool));
    }
    Ok(u8::from(attention))
}

/// Names a pool that waits.
fn waiting(pool: &Path) -> anyhow::Result<u8> {
    let waits = holdfast_recovery::waits(pool)?;
    if waits {
        let quoted = quoted(pool);
        report::print(format!(
            "Holdfast's pool {} waits for recovery: what programs had synced may be there and not in their files. \
             Before anybody uses them: holdfast recover --pool {quoted}\n",
            name_of(pool)
        ))?;
    }
    Ok(u8::from(waits))
}

/// The number of a slot, as `#12`, is no path.
fn absolute(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    // Whatever else begins so was refused with the command line.
    let is_number = |path: &Path| path.to_str().is_some_and(|text| text.starts_with('#'));
    paths.iter().map(|path| if is_number(path) { Ok(path.clone()) } else { locate::absolute(path) }).collect()
}

/// Files of which it is told what to do about each: what to do is the same for most.
const FILES_TOLD_MAX: usize = 20;

/// What to do about files that were not brought back, and about damage.
pub fn advice(outcome: &Report, pool: &Path) -> String {
    let pool = quoted(pool);
    let mut text = String::new();
    let mut unresolved = outcome.files.iter().filter(|file| report::is_unresolved(file));
    for file in unresolved.by_ref().take(FILES_TOLD_MAX) {
        let named = quoted(Path::new(&file.named));
        let path = shown(&file.path);
        text += &match file.outcome {
            FileOutcome::PutOff => format!(
                "{path} could not be brought back ({reason}). Its data stays in the pool: once nothing stands in the way, \
                 `holdfast recover --pool {pool}` tries again; or give it up with --discard {named}, after --export DIR\n",
                reason = shown(&file.reason),
            ),
            _ => format!(
                "{path} is set aside ({reason}). Decide with `holdfast recover --pool {pool}` and one of: \
                 {force}--export DIR (save what the log holds), --discard {named} (forget it)\n",
                reason = shown(&file.reason),
                force = match file.can_be_forced {
                    true => format!("--force {named} (write what the log holds to whatever stands there), "),
                    false => String::new(),
                },
            ),
        };
    }
    let untold = unresolved.count();
    if untold > 0 {
        text +=
            &format!("and {untold} files more: `holdfast recover --pool {pool} --dry-run` lists them all\n");
    }
    for unknown in outcome.files.iter().filter(|file| report::is_unknown(file)) {
        text += &format!(
            "pool {pool} holds nothing of {}: nothing was done for it; `holdfast recover --pool {pool} --dry-run` says \
             how the files are called of which it holds something\n",
            shown(&unknown.path)
        );
    }
    if !outcome.damaged.is_empty() {
        text += &format!(
            "{} damaged records in pool {pool}: check the media, and the files with their own tools\n",
            outcome.damaged.len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use holdfast_recovery::FileReport;

    use super::*;

    #[test]
    fn what_cannot_be_done_is_not_offered() {
        let file = |path: &str, can_be_forced| FileReport {
            path: path.to_owned(),
            named: path.to_owned(),
            outcome: FileOutcome::SetAside,
            reason: "why".to_owned(),
            records: 1,
            bytes: 1,
            can_be_forced,
        };
        let told = |file| advice(&Report { files: vec![file], ..Report::default() }, Path::new("/pool"));
        assert!(told(file("/srv/a", true)).contains("--force /srv/a"));
        let unknown = told(file("#5", false));
        assert!(!unknown.contains("--force") && unknown.contains("--discard '#5'"), "{unknown}");
    }

    #[test]
    fn numbers_of_slots_are_no_paths() {
        let paths = absolute(&["#12".into(), "/a".into(), "b".into()]).unwrap();
        assert_eq!(&paths[..2], [Path::new("#12"), Path::new("/a")]);
        assert!(paths[2].is_absolute());
    }
}
