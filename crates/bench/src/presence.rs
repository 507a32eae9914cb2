//! What Holdfast costs programs that have no use for it: they sync nothing, start many processes,
//! or only read.
//!
//! Timed is the program alone, inside the run: starting and stopping a keeper has a benchmark of
//! its own.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::lab::{Lab, Side};
use crate::report::{Bar, Check, Outcome, Run, interleave};

const MODULES: u32 = 24;
/// Larger files are left out, or what is read would not stay in the page cache of a small machine,
/// and a few of them would be most of it.
const FILE_KIB_MAX: u32 = 1024;
const BAR: f64 = 0.97;

/// `cargo build` of a crate without dependencies: processes, short-lived files, renames and links.
pub fn cargo_build(lab: &Lab) -> Result<Outcome> {
    let dir = lab.home(&Side::Native).join("crate");
    plant(&dir)?;
    let script = "rm -rf target && TIMEFORMAT=%3R && { time cargo build --quiet --offline; } 2>&1";
    compare(lab, &format!("cd {} && {script}", dir.display()), "cargo build")
}

/// `find /usr -type f | xargs cat`: opens, reads and closes, with as many programs as xargs starts
/// for that.
pub fn find_cat(lab: &Lab) -> Result<Outcome> {
    let script = format!(
        "TIMEFORMAT=%3R && {{ time find /usr -xdev -type f -size -{FILE_KIB_MAX}k -readable -print0 2>/dev/null | \
         xargs -0 cat >/dev/null; }} 2>&1"
    );
    compare(lab, &script, "find and cat")
}

/// Runs a script that prints the seconds of what counts, natively and under Holdfast in turn.
fn compare(lab: &Lab, script: &str, what: &str) -> Result<Outcome> {
    let program = ["bash", "-c", script].map(String::from);
    let sample = |side: Side| {
        let program = program.clone();
        move || {
            let told = lab.run(&side, &program)?;
            let seconds = told.trim().parse::<f64>();
            Ok(seconds.with_context(|| format!("{what} printed {told}"))? * 1000.0)
        }
    };
    // Warm, on the one path that all sides use.
    sample(Side::Native)()?;
    let sides: Vec<Run<'_>> = vec![
        (format!("{what}, native"), Box::new(sample(Side::Native))),
        (format!("{what}, holdfast"), Box::new(sample(lab.main_side_with("--durability=sync")?))),
        (format!("{what}, every write durable"), Box::new(sample(lab.main_side()?))),
    ];
    let series = interleave(lab.options.rounds, "ms", sides)?;
    // Times: native over Holdfast is the speed of Holdfast over native.
    let checks = vec![
        Check::ratio(&series[0], &series[1], Some(Bar::AtLeast(BAR))),
        Check::ratio(&series[0], &series[2], None),
    ];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

/// Writes a crate with a library of some modules and a program that uses it.
fn plant(dir: &Path) -> Result<()> {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))
    };
    fs::create_dir_all(dir.join("src")).with_context(|| format!("could not make {}", dir.display()))?;
    write(
        "Cargo.toml",
        "[package]\nname = \"plain\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )?;
    let mut library = String::new();
    for module in 0..MODULES {
        library += &format!("pub mod m{module};\n");
        let body = (0..12).map(|function| {
            format!(
                "pub fn f{function}(text: &str) -> Vec<String> {{\n    let mut parts: Vec<String> = \
                 text.split_whitespace().map(|part| format!(\"{{part}}-{module}-{function}\")).collect();\n    \
                 parts.sort();\n    parts\n}}\n"
            )
        });
        write(&format!("src/m{module}.rs"), &body.collect::<String>())?;
    }
    write("src/lib.rs", &library)?;
    write("src/main.rs", "fn main() {\n    println!(\"{:?}\", plain::m3::f4(\"a b c\"));\n}\n")
}
