//! Manual pages, made from the command line's definition: options as they are parsed, examples as
//! `--help` has them, and the sections that readers of section 1 look for. A page of section 5 has
//! the keys of the configuration, which are options of `serve`.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::roff::{heading, item, paragraph, verbatim};
use super::{mount, pool};
use crate::args::Arguments;

/// Writes every page to `man1`, `man5` and `man8` below a directory.
pub fn write_all(dir: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write manual pages to {}", dir.display());
    for section in ["man1", "man5", "man8"] {
        std::fs::create_dir_all(dir.join(section)).with_context(cannot)?;
    }
    for (name, page) in pages()? {
        std::fs::write(dir.join("man1").join(format!("{name}.1")), page).with_context(cannot)?;
    }
    std::fs::write(dir.join("man5/holdfast-pool.5"), pool::page()).with_context(cannot)?;
    std::fs::write(dir.join("man8/mount.holdfast.8"), mount::page()).with_context(cannot)?;
    std::fs::write(dir.join("man5/holdfast.toml.5"), configuration()).with_context(cannot)
}

/// The main page.
pub fn main_page() -> anyhow::Result<String> {
    page(&built(), "holdfast")
}

fn built() -> Command {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    command
}

fn pages() -> anyhow::Result<Vec<(String, String)>> {
    let all = named(&built(), "holdfast");
    all.into_iter().map(|(name, command)| page(&command, &name).map(|page| (name, page))).collect()
}

/// A command and all below it, each with the name of its page.
fn named(command: &Command, name: &str) -> Vec<(String, Command)> {
    let below = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let below = below.flat_map(|sub| named(sub, &format!("{name}-{}", sub.get_name())));
    [(name.to_owned(), command.clone())].into_iter().chain(below).collect()
}

fn page(command: &Command, name: &str) -> anyhow::Result<String> {
    let man = Man::new(command.clone()).title(name.to_uppercase()).manual("Holdfast");
    let man = man.source(concat!("holdfast ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    let made = man
        .render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .and_then(|()| man.render_synopsis_section(&mut page))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| man.render_options_section(&mut page))
        .and_then(|()| match command.get_subcommands().any(|sub| !sub.is_hide_set()) {
            true => man.render_subcommands_section(&mut page),
            false => Ok(()),
        });
    made.context("cannot make the manual page")?;
    let mut page = String::from_utf8(page).context("a page that is no text")?;
    let (examples, notes) = after_help(command);
    // `run` and its like say it themselves.
    let (notes, status): (Vec<_>, Vec<_>) =
        notes.into_iter().partition(|note| !note.starts_with("Exit status: "));
    if !notes.is_empty() {
        heading(&mut page, "NOTES");
        notes.iter().for_each(|note| paragraph(&mut page, note));
    }
    heading(&mut page, "EXIT STATUS");
    match status.first().and_then(|status| status.strip_prefix("Exit status: ")) {
        Some(status) => paragraph(&mut page, &(status[..1].to_uppercase() + &status[1..])),
        None => exit_status(name).iter().for_each(|(code, what)| item(&mut page, code, what)),
    }
    let takes_pool = command.get_arguments().any(|arg| arg.get_id() == "pool");
    let keeps = command.get_arguments().any(|arg| arg.get_id() == "stop_max");
    if takes_pool || name == "holdfast" {
        heading(&mut page, "ENVIRONMENT");
        for (variable, what, is_for_keepers) in ENVIRONMENT {
            if keeps || name == "holdfast" || !is_for_keepers {
                item(&mut page, variable, what);
            }
        }
        heading(&mut page, "FILES");
        FILES.iter().for_each(|(file, what)| item(&mut page, file, what));
    }
    heading(&mut page, "EXAMPLES");
    verbatim(&mut page, &examples);
    heading(&mut page, "SEE ALSO");
    let below = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let below = below.map(|sub| format!("{name}-{}(1)", sub.get_name()));
    let above = name.rsplit_once('-').map(|(above, _)| format!("{above}(1)"));
    let mut see: Vec<String> = above.into_iter().chain(below).collect();
    if takes_pool || name == "holdfast" {
        see.push("holdfast-pool(5)".to_owned());
    }
    see.push("holdfast.toml(5)".to_owned());
    paragraph(&mut page, &see.join(", "));
    Ok(page)
}

/// The examples that stand behind the help, and the paragraphs after them.
fn after_help(command: &Command) -> (String, Vec<String>) {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut parts = text.split("\n\n").map(str::to_owned);
    let examples = parts.next().unwrap_or_default();
    let examples = examples.strip_prefix("Examples:\n").unwrap_or(&examples).to_owned();
    (examples, parts.collect())
}

fn exit_status(name: &str) -> &'static [(&'static str, &'static str)] {
    match name {
        "holdfast-run" => &[
            ("the program's", "It ran, and everything that it wrote is on the disk."),
            ("128 + n", "Signal n killed the program."),
            ("120", "Holdfast refused or failed before the program started."),
            ("121", "The keeper died or could not bring everything to the disk, and the program returned 0."),
            ("126, 127", "The program cannot be executed, or there is none of that name."),
            ("2", "The command line is wrong."),
        ],
        "holdfast-recover" => &[
            ("0", "Everything that was acknowledged is in the files."),
            (
                "1",
                "Something was set aside, put off or is damaged, the pool holds nothing of a file that was named, or it \
                 cannot be used.",
            ),
            ("2", "The command line is wrong."),
        ],
        "holdfast-doctor" => &[
            ("0", "Programs can be run here; the verdict says whether power cuts are survived."),
            ("1", "They cannot, until something is mended: the verdict says what."),
            ("2", "The command line is wrong."),
        ],
        "holdfast-bench" => &[
            ("0", "It is done; for compare: nothing is slower under Holdfast beyond the spread."),
            ("1", "It failed, or the reports cannot be compared: the message says why."),
            ("2", "The command line is wrong."),
            ("3", "Compare: something is slower under Holdfast beyond the spread."),
            ("128 + n", "Signal n interrupted it. What was made is removed."),
        ],
        "holdfast-demo" => &[
            ("0", "Every row that Holdfast acknowledged is there."),
            ("1", "A row is lost, nothing was absorbed or at stake, or it failed: the output says what."),
            ("2", "The command line is wrong."),
            ("128 + n", "Signal n interrupted it. What was made is removed."),
        ],
        "holdfast-config" | "holdfast-config-check" => &[
            ("0", "Nothing is wrong."),
            ("1", "Something is: it is named with file and line."),
            ("2", "The command line is wrong."),
        ],
        _ => &[
            ("0", "It is done."),
            ("1", "It failed: the message says why."),
            ("2", "The command line is wrong."),
        ],
    }
}

/// Variables, and whether only commands look at them that may start a keeper.
const ENVIRONMENT: &[(&str, &str, bool)] = &[
    ("HOLDFAST_POOL", "The pool, where --pool names none.", false),
    ("HOLDFAST_CONFIG_DIR", "The directory of the configuration, instead of /etc/holdfast.", false),
    ("HOLDFAST_DURABILITY", "As --durability.", true),
    (
        "HOLDFAST_RUNTIME_DIR",
        "Where a keeper makes its socket: a directory of its user alone. The pool says where that is.",
        true,
    ),
    ("XDG_RUNTIME_DIR", "The same, as a directory that others use, too.", true),
    ("NOTIFY_SOCKET, WATCHDOG_USEC", "Where a service manager hears of readiness and signs of life.", true),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/holdfast/holdfast.toml", "What is asked of every keeper, see holdfast.toml(5)."),
    ("/etc/holdfast/pools.d/*.toml", "What is asked of the keeper of one pool."),
    ("/dev/shm/holdfast-UID.pool", "The pool of a run with --volatile that names none."),
    ("/run/holdfast, $XDG_RUNTIME_DIR/holdfast, /tmp/holdfast-UID", "Sockets of keepers."),
];

/// The page about the configuration.
fn configuration() -> String {
    let mut page = String::from(".TH HOLDFAST.TOML 5 \"\" holdfast Holdfast\n");
    heading(&mut page, "NAME");
    paragraph(&mut page, "holdfast.toml, pools.d/*.toml - the configuration of Holdfast");
    heading(&mut page, "DESCRIPTION");
    for text in [
        "/etc/holdfast/holdfast.toml is about every keeper. Its key `pool` names the pool that is meant where \
         none is named.",
        "A file in /etc/holdfast/pools.d is about one pool: its `pool` names it, `user` whose it is, and \
         `mounts` the file systems without which its files cannot be recovered. A program or keeper that \
         names no pool has the one of its user.",
        "Flags and variables come before the pool's file, and that before holdfast.toml. Who joins a keeper \
         has it as it is. The files must be root's or the reader's own, and nobody else's to write to. \
         Sizes and times are texts such as \"4G\" and \"200ms\", or numbers of bytes and milliseconds.",
        "A file that is wrong stops whoever needs it; `holdfast config check` says what is wrong, by file \
         and line.",
    ] {
        paragraph(&mut page, text);
    }
    heading(&mut page, "KEYS");
    item(&mut page, "mounts", "A list of mount points (pools.d only).");
    let main = built();
    let serve = main.find_subcommand("serve").expect("it is there");
    let flags_only = ["nvm-latency-ns", "nvm-bandwidth", "log-level", "help", "version"];
    for arg in serve.get_arguments() {
        let Some(long) = arg.get_long().filter(|long| !flags_only.contains(long)) else { continue };
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        item(&mut page, long, &help);
    }
    heading(&mut page, "EXAMPLES");
    let (examples, notes) = after_help(main.find_subcommand("config").expect("it is there"));
    if let Some(example) = notes.iter().find(|note| note.trim_start().starts_with("pool =")) {
        verbatim(&mut page, example);
    }
    verbatim(&mut page, &examples);
    heading(&mut page, "SEE ALSO");
    paragraph(&mut page, "holdfast(1), holdfast-config(1), holdfast-serve(1)");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_sections() {
        let dir = tempfile::tempdir().expect("a directory");
        write_all(dir.path()).expect("written");
        let names: Vec<String> = named(&built(), "holdfast").into_iter().map(|(name, _)| name).collect();
        for name in ["holdfast", "holdfast-run", "holdfast-bench-compare", "holdfast-config-show"] {
            assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
        }
        for name in names {
            let page = std::fs::read_to_string(dir.path().join(format!("man1/{name}.1"))).expect("a page");
            for section in ["EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
                assert!(page.contains(&format!(".SH \"{section}\"")), "{name} has no {section}");
            }
        }
        let run = std::fs::read_to_string(dir.path().join("man1/holdfast-run.1")).expect("a page");
        for word in ["ENVIRONMENT", "FILES", "HOLDFAST_POOL", "121", "redis\\-server", ".TH HOLDFAST-RUN 1"] {
            assert!(run.contains(word), "{word}\n{run}");
        }
        assert!(!dir.path().join("man1/holdfast-keeper.1").exists(), "keeper is hidden");
        let keys = std::fs::read_to_string(dir.path().join("man5/holdfast.toml.5")).expect("a page");
        assert!(dir.path().join("man5/holdfast-pool.5").exists());
        for key in ["write\\-behind", "mounts", "spill\\-size"] {
            assert!(keys.contains(&format!("\\fB{key}\\fR")), "{key}\n{keys}");
        }
    }
}
